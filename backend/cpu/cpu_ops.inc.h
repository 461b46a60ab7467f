// backend/cpu/cpu_ops.inc.h - the inner loops of the CPU backend (cpu_ops.h), compiled once per instruction set. SL_ISA
// is the name of the instruction set.
#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/simd.h"

#include <math.h>

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define STRING_(a) #a
#define STRING(a) STRING_(a)

// Computes n_out outputs of n_rows rows. Each vector of weights is loaded once and used for all rows.
CHECKED_BY_ROWS SIMD_INLINE void linear_tile(const sl_weight *w, sl_dtype dtype, const float *x, int o, int n_out, int n_rows,
                                             int accumulate, float *out) {
    int n = w->n_cols, n_vec = n / VW * VW;
    size_t base = (size_t)o * n;
    vf acc[4][8];
    for (int a = 0; a < n_out; a++)
        for (int r = 0; r < n_rows; r++) acc[a][r] = v_set(0);
    for (int i = 0; i < n_vec; i += VW) {
        vf wv[4];
        for (int a = 0; a < n_out; a++) wv[a] = v_load_weight(w->data, dtype, base + (size_t)a * n + i);
        for (int r = 0; r < n_rows; r++) {
            vf xv = v_load(x + (size_t)r * n + i);
            for (int a = 0; a < n_out; a++) acc[a][r] = v_fma(wv[a], xv, acc[a][r]);
        }
    }
    for (int a = 0; a < n_out; a++) {
        for (int r = 0; r < n_rows; r++) {
            float sum = v_sum(acc[a][r]);
            for (int i = n_vec; i < n; i++) sum += weight_at(w->data, dtype, base + (size_t)a * n + i) * x[(size_t)r * n + i];
            float *to = out + (size_t)r * w->n_rows + o + a;
            *to = accumulate ? *to + sum : sum;
        }
    }
}

#define TILES(N_OUT, N_ROWS)                                                                                                   \
    for (; o + (N_OUT) <= o_to; o += (N_OUT)) linear_tile(w, dtype, x, o, N_OUT, N_ROWS, accumulate, out)

CHECKED_BY_ROWS SIMD_INLINE void linear_rows(const sl_weight *w, sl_dtype dtype, const float *x, int n_rows, int o_from,
                                             int o_to, int accumulate, float *out) {
    while (n_rows > 0) { // 8, 4, 2 or 1 rows at a time
        int o = o_from, n_now = n_rows >= 8 ? 8 : n_rows >= 4 ? 4 : n_rows >= 2 ? 2 : 1;
        switch (n_now) {
        case 8:
            TILES(2, 8);
            TILES(1, 8);
            break;
        case 4:
            TILES(4, 4);
            TILES(1, 4);
            break;
        case 2:
            TILES(4, 2);
            TILES(1, 2);
            break;
        default:
            TILES(4, 1);
            TILES(1, 1);
        }
        x += (size_t)n_now * w->n_cols;
        out += (size_t)n_now * w->n_rows;
        n_rows -= n_now;
    }
}

CHECKED_BY_ROWS static void linear(const sl_weight *w, const float *x, int n_rows, int o_from, int o_to, int accumulate,
                                   float *out) {
    check_rows((const char *)w->data + (size_t)o_from * w->n_cols * sl_dtype_size(w->dtype), 0, 1,
               (size_t)(o_to - o_from) * w->n_cols * sl_dtype_size(w->dtype));
    check_rows(x, 0, 1, (size_t)n_rows * w->n_cols * sizeof *x);
    check_rows(out + o_from, w->n_rows * sizeof *out, n_rows, (o_to - o_from) * sizeof *out);
    switch (w->dtype) {
    case SL_BF16:
        linear_rows(w, SL_BF16, x, n_rows, o_from, o_to, accumulate, out);
        break;
    case SL_F16:
        linear_rows(w, SL_F16, x, n_rows, o_from, o_to, accumulate, out);
        break;
    case SL_F32:
        linear_rows(w, SL_F32, x, n_rows, o_from, o_to, accumulate, out);
        break;
    }
}

SIMD_INLINE void widen_from(const void *src, sl_dtype dtype, size_t n, float *dst) {
    size_t i = 0;
    for (; i + VW <= n; i += VW) v_store(dst + i, v_load_weight(src, dtype, i));
    for (; i < n; i++) dst[i] = weight_at(src, dtype, i);
}

static void widen(const void *src, sl_dtype dtype, size_t n, float *dst) {
    switch (dtype) {
    case SL_BF16:
        widen_from(src, SL_BF16, n, dst);
        break;
    case SL_F16:
        widen_from(src, SL_F16, n, dst);
        break;
    case SL_F32:
        widen_from(src, SL_F32, n, dst);
        break;
    }
}

static void rmsnorm(const float *x, const sl_weight *w, float eps, float *out) {
    int n = w->n_cols, n_vec = n / VW * VW;
    vf acc = v_set(0);
    for (int i = 0; i < n_vec; i += VW) acc = v_fma(v_load(x + i), v_load(x + i), acc);
    float sum = v_sum(acc);
    for (int i = n_vec; i < n; i++) sum += x[i] * x[i];
    float scale = 1.0f / sqrtf(sum / (float)n + eps);
    for (int i = 0; i < n; i++) out[i] = x[i] * scale * weight_at(w->data, w->dtype, i);
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

const sl_cpu_ops PASTE(sl_cpu_ops_, SL_ISA) = {STRING(SL_ISA), linear, widen, rmsnorm, swiglu};
