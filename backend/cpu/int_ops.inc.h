// backend/cpu/int_ops.inc.h - integer products (int_ops.h), compiled once per instruction set. SL_ISA is its name.
#include "backend/cpu/int_ops.h"
#include "backend/cpu/simd.h"

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define STRING_(a) #a
#define STRING(a) STRING_(a)

enum { PARTS = SL_INT_LANES / VW, PART_BYTES = 4 * VW }; // a block in vectors

// ---- bytes ----

typedef int8_t vb __attribute__((vector_size(PART_BYTES), may_alias));
typedef int8_t vb_loose __attribute__((vector_size(PART_BYTES), aligned(1), may_alias));

SIMD_INLINE vb load_bytes(const void *p) {
    return *(const vb_loose *)p;
}

// sum + the products of 4 bytes of u, 0 to 15, with 4 of x, in each lane
SIMD_INLINE vi dot_nibbles(vi sum, vb u, vb x) {
#if defined(__AVX512VNNI__)
    return (vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)u, (__m512i)x);
#elif defined(__AVX2__)
    __m256i pairs = _mm256_maddubs_epi16((__m256i)u, (__m256i)x); // at most 2 * 15 * 127
    return sum + (vi)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#else
    for (int l = 0; l < VW; l++)
        for (int j = 4 * l; j < 4 * l + 4; j++) sum[l] += u[j] * x[j];
    return sum;
#endif
}

// The same with w of -128 to 127. x_sum: the sums of x in the lanes
SIMD_INLINE vi dot_bytes(vb w, vb x, vi x_sum) {
#if defined(__AVX512VNNI__)
    __m512i u = _mm512_xor_si512((__m512i)w, _mm512_set1_epi8((char)0x80)); // w + 128, without a sign
    return (vi)_mm512_dpbusd_epi32((__m512i)(-(x_sum << 7)), u, (__m512i)x);
#elif defined(__AVX2__)
    (void)x_sum;
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8((__m256i)w), _mm256_sign_epi8((__m256i)x, (__m256i)w));
    return (vi)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); // a pair is at most 2 * 128 * 127
#else
    (void)x_sum;
    vi sum = {0};
    for (int l = 0; l < VW; l++)
        for (int j = 4 * l; j < 4 * l + 4; j++) sum[l] += w[j] * x[j];
    return sum;
#endif
}

SIMD_INLINE vb low_nibbles(vb x) {
    return x & 15;
}
SIMD_INLINE vb high_nibbles(vb x) {
#if defined(__AVX512F__)
    return (vb)_mm512_srli_epi16((__m512i)x, 4) & 15;
#elif defined(__AVX2__)
    return (vb)_mm256_srli_epi16((__m256i)x, 4) & 15;
#else
    return x >> 4 & 15;
#endif
}

// ---- activations ----

static void quantise_block(const float *x, int n, int is_int4, sl_int_block *out) { // n: columns, at most those of a block
    int cols = is_int4 ? 2 * SL_INT_BYTES : SL_INT_BYTES, lane = cols / SL_INT_LANES;
    float wide[2 * SL_INT_BYTES] = {0};
    memcpy(wide, x, (size_t)n * sizeof *x);
    memset(out, 0, sizeof *out);
    for (int from = 0; from < cols; from += SL_INT_GROUP) {
        const float magic = 12582912.0f; // 1.5 * 2^23: adding it rounds to an integer
        vf most = v_set(0);
        for (int i = from; i < from + SL_INT_GROUP; i += VW) {
            vf v = v_load(wide + i);
            most = v_max(most, v_max(v, -v));
        }
        float largest = v_max_lane(most), inverse = largest > 0 ? 127 / largest : 0;
        for (int i = from; i < from + SL_INT_GROUP; i++) {
            int q = (int)(wide[i] * inverse + magic - magic);
            out->q[is_int4 ? i / 2 + i % 2 * SL_INT_BYTES : i] = (int8_t)q;
            out->sum[i / lane] += q;
        }
        for (int l = from / lane; l < (from + SL_INT_GROUP) / lane; l++) out->scale[l] = largest / 127;
    }
}

static void quantise(const sl_weight *w, const float *x, sl_int_block *out) {
    int is_int4 = w->format == SL_INT4, cols = is_int4 ? 2 * SL_INT_BYTES : SL_INT_BYTES;
    for (int i = 0; i < w->n_cols; i += cols)
        quantise_block(x + i, w->n_cols - i < cols ? w->n_cols - i : cols, is_int4, out++);
}

// ---- products ----

// A block of one output: its bytes, and of each lane the weight's scale and zero point.
typedef struct weights {
    vb low[PARTS], high[PARTS]; // int8: low only
    vf scale[PARTS];
    vi zero[PARTS];
} weights;

SIMD_INLINE void load_elements(const char *row, sl_format format, weights *b) {
    for (int p = 0; p < PARTS; p++) {
        vb bytes = load_bytes(row + p * PART_BYTES);
        b->low[p] = format == SL_INT4 ? low_nibbles(bytes) : bytes;
        if (format == SL_INT4) b->high[p] = high_nibbles(bytes);
    }
}

// Lane j gets from[index[j]]; index is below n, and n is at most 8.
SIMD_INLINE vf spread(const float *from, int n, vi index) {
#if defined(__AVX512F__)
    return _mm512_permutexvar_ps((__m512i)index, _mm512_maskz_loadu_ps((__mmask16)((1 << n) - 1), from));
#elif defined(__AVX2__)
    __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    return _mm256_permutevar8x32_ps(_mm256_maskload_ps(from, mask), (__m256i)index);
#else
    (void)n;
    return (vf){from[index[0]], from[index[1]], from[index[2]], from[index[3]]};
#endif
}

// Where the lanes of a block find their scales in the scales of a row.
typedef struct places {
    int group, n_groups;   // columns of a group; groups of a row
    int n_cols;            // columns of a block
    int is_whole, divides; // a group holds whole blocks; a block holds whole groups
    int first, n;          // the groups of this block
    vi index[PARTS];       // each lane's group, counted from the first one
} places;

SIMD_INLINE places places_of(const sl_weight *w, sl_format format) {
    places s = {.group = w->group, .n_groups = sl_weight_groups(w), .n_cols = (format == SL_INT4 ? 2 : 1) * SL_INT_BYTES};
    s.is_whole = w->group % s.n_cols == 0 || s.n_groups == 1;
    s.divides = s.n_cols % w->group == 0;
    return s;
}

// A lane past the last column gets any group.
SIMD_INLINE void find_groups(places *s, int block) {
    int col = block * s->n_cols, lane = s->n_cols / SL_INT_LANES, last = s->n_groups - 1;
    s->first = col / s->group;
    if (s->is_whole || (s->divides && block > 0 && s->n == s->n_cols / s->group && s->first + s->n <= s->n_groups)) return;
    s->n = 1;
    for (int l = 0; l < SL_INT_LANES; l++) {
        int group = (col + l * lane) / s->group;
        if (group > last) group = last;
        s->index[l / VW][l % VW] = group - s->first;
        s->n = group - s->first + 1;
    }
}

SIMD_INLINE void load_scales(const float *scale, const int8_t *zero, const places *s, weights *b) {
    for (int p = 0; p < PARTS; p++)
        b->scale[p] = s->is_whole ? v_set(scale[s->first]) : spread(scale + s->first, s->n, s->index[p]);
    for (int p = 0; p < PARTS; p++) {
        b->zero[p] = (vi){0};
        if (!zero) continue;
        if (s->is_whole)
            b->zero[p] += zero[s->first];
        else
            for (int l = 0; l < VW; l++) b->zero[p][l] = zero[s->first + s->index[p][l]];
    }
}

// Adds a block of n_out outputs and n_rows rows. row, scale, zero: of each output, from the block on
SIMD_INLINE void add_block(const char *const row[4], const float *const scale[4], const int8_t *const zero[4], const places *s,
                           sl_format format, int has_zero, const sl_int_block *x, size_t n_blocks, int n_out, int n_rows,
                           vf acc[4][4][PARTS]) {
    weights b[4];
    for (int a = 0; a < n_out; a++) {
        load_elements(row[a], format, &b[a]);
        load_scales(scale[a], has_zero ? zero[a] : NULL, s, &b[a]);
    }
    for (int r = 0; r < n_rows; r++, x += n_blocks) {
        for (int p = 0; p < PARTS; p++) {
            vb even = load_bytes(x->q + p * PART_BYTES), odd = load_bytes(x->q + SL_INT_BYTES + p * PART_BYTES);
            vi sum = *(const vi *)(x->sum + p * VW);
            vf x_scale = v_load(x->scale + p * VW);
            for (int a = 0; a < n_out; a++) {
                vi dot = format == SL_INT4 ? dot_nibbles(dot_nibbles(-(sum << 3), b[a].low[p], even), b[a].high[p], odd)
                                           : dot_bytes(b[a].low[p], even, sum);
                if (has_zero) dot -= b[a].zero[p] * sum;
                acc[a][r][p] += __builtin_convertvector(dot, vf) * (b[a].scale[p] * x_scale);
            }
        }
    }
}

CHECKED_BY_ROWS SIMD_INLINE void tile(const sl_weight *w, places *s, sl_format format, int has_zero, const sl_int_block *x,
                                      int o, int n_out, int n_rows, int accumulate, float *out) {
    size_t n_blocks = (size_t)sl_int_blocks(w), row_bytes = sl_weight_row_bytes(w), rest = row_bytes % SL_INT_BYTES;
    const char *row[4];
    const float *scale[4];
    const int8_t *zero[4];
    char end[4][SL_INT_BYTES];
    vf acc[4][4][PARTS];
    for (int a = 0; a < n_out; a++) {
        row[a] = sl_weight_row(w, (size_t)o + a);
        scale[a] = w->scale + sl_weight_scale_at(w, (size_t)o + a);
        if (has_zero) zero[a] = w->zero + sl_weight_scale_at(w, (size_t)o + a);
        for (int r = 0; r < n_rows; r++)
            for (int p = 0; p < PARTS; p++) acc[a][r][p] = v_set(0);
    }
    for (size_t i = 0; i < row_bytes / SL_INT_BYTES; i++) {
        find_groups(s, (int)i);
        add_block(row, scale, zero, s, format, has_zero, x + i, n_blocks, n_out, n_rows, acc);
        for (int a = 0; a < n_out; a++) {
            __builtin_prefetch(row[a] + n_out * row_bytes, 0, 2); // as add_group of cpu_ops.inc.h
            row[a] += SL_INT_BYTES;
        }
    }
    if (rest) {
        for (int a = 0; a < n_out; a++) {
            memset(end[a], 0, SL_INT_BYTES);
            row[a] = memcpy(end[a], row[a], rest);
        }
        find_groups(s, (int)n_blocks - 1);
        add_block(row, scale, zero, s, format, has_zero, x + n_blocks - 1, n_blocks, n_out, n_rows, acc);
    }
    for (int a = 0; a < n_out; a++) {
        for (int r = 0; r < n_rows; r++) {
            float *to = out + (size_t)r * w->n_rows + o + a;
            for (int n = PARTS / 2; n; n /= 2)
                for (int p = 0; p < n; p++) acc[a][r][p] += acc[a][r][p + n];
            float sum = v_sum(acc[a][r][0]);
            *to = accumulate ? *to + sum : sum;
        }
    }
}

#define TILES(N_OUT, N_ROWS)                                                                                                   \
    for (; o + (N_OUT) <= o_to; o += (N_OUT)) tile(w, &groups, format, has_zero, x, o, N_OUT, N_ROWS, accumulate, out)

CHECKED_BY_ROWS SIMD_INLINE void rows(const sl_weight *w, sl_format format, int has_zero, const sl_int_block *x, int n_rows,
                                      int o_from, int o_to, int accumulate, float *out) {
    places groups = places_of(w, format);
    while (n_rows > 0) { // 4, 2 or 1 rows at a time
        int o = o_from, n_now = n_rows >= 4 ? 4 : n_rows >= 2 ? 2 : 1;
        switch (n_now) {
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
        x += (size_t)n_now * sl_int_blocks(w);
        out += (size_t)n_now * w->n_rows;
        n_rows -= n_now;
    }
}

CHECKED_BY_ROWS static void linear(const sl_weight *w, const sl_int_block *x, int n_rows, int o_from, int o_to, int accumulate,
                                   float *out) {
    check_rows(sl_weight_row(w, (size_t)o_from), 0, 1, (size_t)(o_to - o_from) * sl_weight_row_bytes(w));
    check_rows(w->scale, 0, 1, sl_weight_scales(w) * sizeof *w->scale);
    if (w->zero) check_rows(w->zero, 0, 1, sl_weight_scales(w) * sizeof *w->zero);
    check_rows(x, 0, 1, (size_t)n_rows * sl_int_blocks(w) * sizeof *x);
    check_rows(out + o_from, w->n_rows * sizeof *out, n_rows, (o_to - o_from) * sizeof *out);
    int has_zero = w->zero != NULL;
    switch (w->format == SL_INT4 ? 2 + has_zero : has_zero) {
    case 0:
        rows(w, SL_INT8, 0, x, n_rows, o_from, o_to, accumulate, out);
        break;
    case 1:
        rows(w, SL_INT8, 1, x, n_rows, o_from, o_to, accumulate, out);
        break;
    case 2:
        rows(w, SL_INT4, 0, x, n_rows, o_from, o_to, accumulate, out);
        break;
    default:
        rows(w, SL_INT4, 1, x, n_rows, o_from, o_to, accumulate, out);
    }
}

const sl_int_ops PASTE(sl_int_ops_, SL_ISA) = {STRING(SL_ISA), quantise, linear};
