// backend/cpu/cpu_ops.inc.h - the inner loops of the CPU backend (cpu_ops.h), compiled once per instruction set. SL_ISA
// is the name of the instruction set.
#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/simd.h"

#include <math.h>

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define STRING_(a) #a
#define STRING(a) STRING_(a)

// Scale, offset and minimum of a group of a row: a loaded element x stands for (x - offset) * scale, plus min in formats that
// have one.
typedef struct group_scale {
    float scale, offset, min;
} group_scale;

SIMD_INLINE group_scale scale_of(const sl_weight *w, sl_format format, size_t row, int group) {
    size_t at = sl_weight_scale_at(w, row) + (size_t)group;
    return (group_scale){w->scale[at] / load_factor(format), load_offset(format) + (w->zero ? (float)w->zero[at] : 0),
                         sl_formats[format].has_min ? w->min[at] : 0};
}

// The number of row `row`, column i.
SIMD_INLINE float number_at(const sl_weight *w, sl_format format, size_t row, int i) {
    float x = weight_at(sl_weight_row(w, row), format, (size_t)i);
    if (!sl_formats[format].has_scale) return x;
    group_scale s = scale_of(w, format, row, i / w->group);
    x = (x - s.offset) * s.scale;
    return sl_formats[format].has_min ? x + s.min : x;
}

// Adds the products of VW columns, from column i on, of n_out outputs and n_rows rows. Each vector of weights is loaded once
// and used for all rows.
CHECKED_BY_ROWS SIMD_INLINE void add_columns(sl_format format, const char *const row[4], const v_scale scale[4], const float *x,
                                             int n, int i, int n_out, int n_rows, vf acc[4][6]) {
    vf wv[4];
    for (int a = 0; a < n_out; a++) {
        wv[a] = sl_formats[format].has_scale ? v_load_scaled(row[a], format, (size_t)i, scale[a])
                                             : v_load_weight(row[a], format, (size_t)i);
    }
    for (int r = 0; r < n_rows; r++) {
        vf xv = v_load(x + (size_t)r * n + i);
        for (int a = 0; a < n_out; a++) acc[a][r] = v_fma(wv[a], xv, acc[a][r]);
    }
}

// Adds the products of columns [from, to). The columns belong to one group.
CHECKED_BY_ROWS SIMD_INLINE void add_group(const sl_weight *w, sl_format format, const float *x, int o, int n_out, int n_rows,
                                           int from, int to, vf acc[4][6]) {
    int n = w->n_cols, scaled = sl_formats[format].has_scale, i = from;
    const char *row[4];
    v_scale scale[4];
    for (int a = 0; a < n_out; a++) {
        row[a] = sl_weight_row(w, (size_t)o + a);
        if (!scaled) continue;
        group_scale s = scale_of(w, format, (size_t)o + a, from / w->group);
        scale[a] = v_scale_of(format, s.scale, s.offset, s.min);
    }
    if (!scaled) { // memory limits the loop, and rows are too short for the processor's own prefetch: ask for the next tile
        enum { LINE = 64 };
        size_t tile = (size_t)n_out * sl_weight_row_bytes(w);
        int line = LINE / sl_formats[format].n_bytes;
        for (; i + line <= to; i += line) {
            for (int a = 0; a < n_out; a++) __builtin_prefetch(row[a] + tile + sl_format_bytes(format, (size_t)i), 0, 2);
            for (int j = 0; j < line; j += VW) add_columns(format, row, scale, x, n, i + j, n_out, n_rows, acc);
        }
    }
    for (; i < to; i += VW) add_columns(format, row, scale, x, n, i, n_out, n_rows, acc);
}

// Adds the products of columns [begin, end), whole vectors, and then the lanes.
CHECKED_BY_ROWS SIMD_INLINE void sum_leaf(const sl_weight *w, sl_format format, const float *x, int o, int n_out, int n_rows,
                                          int begin, int end, float sums[4][6]) {
    vf acc[4][6];
    for (int a = 0; a < n_out; a++)
        for (int r = 0; r < n_rows; r++) acc[a][r] = v_set(0);
    int step = sl_formats[format].has_scale ? w->group : end;
    for (int from = begin, next = begin - begin % step + step; from < end; from = next, next += step)
        add_group(w, format, x, o, n_out, n_rows, from, next < end ? next : end, acc);
    for (int a = 0; a < n_out; a++)
        for (int r = 0; r < n_rows; r++) sums[a][r] = v_sum(acc[a][r]);
}

// Computes n_out outputs of n_rows rows.
CHECKED_BY_ROWS SIMD_INLINE void linear_tile(const sl_weight *w, sl_format format, const float *x, int o, int n_out, int n_rows,
                                             int n_leaves, int accumulate, float *out) {
    int n = w->n_cols, n_vec = n / VW * VW, leaf = n_vec / n_leaves;
    float sums[SL_MOST_LEAVES][4][6];
    for (int l = 0; l < n_leaves; l++) sum_leaf(w, format, x, o, n_out, n_rows, l * leaf, (l + 1) * leaf, sums[l]);
    sl_add_leaves(n_leaves, 4 * 6, n_out, 6, (size_t)n_rows, sums[0][0]);
    for (int a = 0; a < n_out; a++) {
        for (int r = 0; r < n_rows; r++) {
            float sum = sums[0][a][r];
            for (int i = n_vec; i < n; i++) sum += number_at(w, format, (size_t)o + a, i) * x[(size_t)r * n + i];
            float *to = out + (size_t)r * w->n_rows + o + a;
            *to = accumulate ? *to + sum : sum;
        }
    }
}

#define TILES(N_OUT, N_ROWS)                                                                                                   \
    for (; o + (N_OUT) <= o_to; o += (N_OUT)) linear_tile(w, format, x, o, N_OUT, N_ROWS, n_leaves, accumulate, out)
#define ROWS(N_ROWS)                                                                                                           \
    case N_ROWS:                                                                                                               \
        TILES(N_ROWS <= 2 || VW == 16 ? 4 : 2, N_ROWS);                                                                        \
        TILES(1, N_ROWS);                                                                                                      \
        break

// The sums of a tile must fit into the registers: 32 with AVX-512, 16 otherwise.
CHECKED_BY_ROWS SIMD_INLINE void linear_rows(const sl_weight *w, sl_format format, const float *x, int n_rows, int o_from,
                                             int o_to, int n_leaves, int accumulate, float *out) {
    enum { MOST = 6 };
    for (int n_now; n_rows > 0; n_rows -= n_now) { // in equal parts of at most 6 rows
        int o = o_from, n_parts = (n_rows + MOST - 1) / MOST;
        n_now = (n_rows + n_parts - 1) / n_parts;
        switch (n_now) {
            ROWS(1);
            ROWS(2);
            ROWS(3);
            ROWS(4);
            ROWS(5);
            ROWS(6);
        }
        x += (size_t)n_now * w->n_cols;
        out += (size_t)n_now * w->n_rows;
    }
}

// Calls FN(w, FORMAT, ...) with the weight's format as a constant.
#define BY_FORMAT(FN, W, ...)                                                                                                  \
    switch ((W)->format) {                                                                                                     \
    case SL_BF16:                                                                                                              \
        FN(W, SL_BF16, __VA_ARGS__);                                                                                           \
        break;                                                                                                                 \
    case SL_F16:                                                                                                               \
        FN(W, SL_F16, __VA_ARGS__);                                                                                            \
        break;                                                                                                                 \
    case SL_F32:                                                                                                               \
        FN(W, SL_F32, __VA_ARGS__);                                                                                            \
        break;                                                                                                                 \
    case SL_FP8:                                                                                                               \
        FN(W, SL_FP8, __VA_ARGS__);                                                                                            \
        break;                                                                                                                 \
    case SL_INT8:                                                                                                              \
        FN(W, SL_INT8, __VA_ARGS__);                                                                                           \
        break;                                                                                                                 \
    case SL_UINT8:                                                                                                             \
        FN(W, SL_UINT8, __VA_ARGS__);                                                                                          \
        break;                                                                                                                 \
    case SL_UINT4:                                                                                                             \
        FN(W, SL_UINT4, __VA_ARGS__);                                                                                          \
        break;                                                                                                                 \
    case SL_FP4:                                                                                                               \
        FN(W, SL_FP4, __VA_ARGS__);                                                                                            \
        break;                                                                                                                 \
    case SL_IQ4:                                                                                                               \
        FN(W, SL_IQ4, __VA_ARGS__);                                                                                            \
        break;                                                                                                                 \
    default:                                                                                                                   \
        FN(W, SL_INT4, __VA_ARGS__);                                                                                           \
    }

CHECKED_BY_ROWS static void linear(const sl_weight *w, const float *x, int n_rows, int o_from, int o_to, int n_leaves,
                                   int accumulate, float *out) {
    SL_CHECK(n_leaves <= SL_MOST_LEAVES && (n_leaves == 1 || w->n_cols % (n_leaves * SL_LEAF_UNIT) == 0));
    check_rows(sl_weight_row(w, (size_t)o_from), 0, 1, (size_t)(o_to - o_from) * sl_weight_row_bytes(w));
    check_rows(w->scale, 0, 1, sl_weight_scales(w) * sizeof *w->scale);
    if (w->min) check_rows(w->min, 0, 1, sl_weight_scales(w) * sizeof *w->min);
    if (w->zero) check_rows(w->zero, 0, 1, sl_weight_scales(w) * sizeof *w->zero);
    check_rows(x, 0, 1, (size_t)n_rows * w->n_cols * sizeof *x);
    check_rows(out + o_from, w->n_rows * sizeof *out, n_rows, (o_to - o_from) * sizeof *out);
    BY_FORMAT(linear_rows, w, x, n_rows, o_from, o_to, n_leaves, accumulate, out)
}

SIMD_INLINE void widen_from(const sl_weight *w, sl_format format, size_t row, int col, int n, float *dst) {
    const char *from = sl_weight_row(w, row);
    int i = 0;
    if (!sl_formats[format].has_scale)
        for (; i + VW <= n; i += VW) v_store(dst + i, v_load_weight(from, format, (size_t)(col + i)));
    else
        while (i + VW <= n) {
            int group = (col + i) / w->group, end = (group + 1) * w->group - col;
            group_scale g = scale_of(w, format, row, group);
            v_scale s = v_scale_of(format, g.scale, g.offset, g.min);
            for (; i + VW <= n && i < end; i += VW) v_store(dst + i, v_load_scaled(from, format, (size_t)(col + i), s));
        }
    for (; i < n; i++) dst[i] = number_at(w, format, row, col + i);
}

static void widen(const sl_weight *w, size_t row, int col, int n, float *dst) {
    BY_FORMAT(widen_from, w, row, col, n, dst)
}

#include "backend/cpu/prefill_ops.inc.h"

static void rmsnorm(const float *x, const sl_weight *w, float eps, float *out) {
    int n = w->n_cols, n_vec = n / VW * VW;
    vf acc = v_set(0);
    for (int i = 0; i < n_vec; i += VW) acc = v_fma(v_load(x + i), v_load(x + i), acc);
    float sum = v_sum(acc);
    for (int i = n_vec; i < n; i++) sum += x[i] * x[i];
    float scale = 1.0f / sqrtf(sum / (float)n + eps);
    for (int i = 0; i < n; i++) out[i] = x[i] * scale * weight_at(w->data, w->format, (size_t)i);
}

// silu(g) u = g u / (1 + e^-g). The exponent of e^-g = 2^t is limited to t <= 126, so that 2^t stays finite. For larger t the
// quotient is below 2^-125 g u.
SIMD_INLINE vf silu_times(vf g, vf u) {
    vf t = g * -1.44269504f, limit = v_set(126.0f);
    vi big = t > limit;
    t = (vf)((big & (vi)limit) | (~big & (vi)t));
    return g / (1.0f + v_exp2(t)) * u;
}

static void swiglu(float *gate, const float *up, size_t n) {
    size_t i = 0;
    for (; i + VW <= n; i += VW) v_store(gate + i, silu_times(v_load(gate + i), v_load(up + i)));
    for (; i < n; i++) {
        float g[VW] = {gate[i]}, u[VW] = {up[i]};
        v_store(g, silu_times(v_load(g), v_load(u)));
        gate[i] = g[0];
    }
}

const sl_cpu_ops PASTE(sl_cpu_ops_, SL_ISA) = {
    .isa = STRING(SL_ISA),
    .tile_rows = TILE_ROWS,
    .linear = linear,
    .pack = pack,
    .prefill = prefill,
    .widen = widen,
    .rmsnorm = rmsnorm,
    .swiglu = swiglu,
};
