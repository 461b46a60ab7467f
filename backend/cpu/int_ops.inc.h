// backend/cpu/int_ops.inc.h - integer products (int_ops.h), compiled once per instruction set. SL_ISA is its name.
#include "backend/cpu/int_ops.h"
#include "backend/cpu/simd.h"

#include <math.h>

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

// sum + the products of 4 elements with 4 of x in each lane. Elements of 4 bits: u, 0 to 15.
SIMD_INLINE vi dot_unsigned(vi sum, vb u, vb x) {
#if defined(__AVX512VNNI__)
    return (vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)u, (__m512i)x);
#elif defined(__AVX2__)
    __m256i pairs = _mm256_maddubs_epi16((__m256i)u, (__m256i)x); // at most 2 * 15 * 128
    return sum + (vi)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#else
    for (int l = 0; l < VW; l++)
        for (int j = 4 * l; j < 4 * l + 4; j++) sum[l] += u[j] * x[j];
    return sum;
#endif
}

// Elements of 8 bits: with VNNI 0 to 255, otherwise -128 to 127.
enum {
#if defined(__AVX512VNNI__)
    UNSIGNED_BYTES = 1
#else
    UNSIGNED_BYTES = 0
#endif
};

SIMD_INLINE vi dot_bytes(vi sum, vb w, vb x) {
#if defined(__AVX512VNNI__)
    return dot_unsigned(sum, w, x);
#elif defined(__AVX2__) // two products of 128 * 128 do not fit into the 16 bits of maddubs
    __m256i low = _mm256_madd_epi16(_mm256_cvtepi8_epi16(_mm256_castsi256_si128((__m256i)w)),
                                    _mm256_cvtepi8_epi16(_mm256_castsi256_si128((__m256i)x)));
    __m256i high = _mm256_madd_epi16(_mm256_cvtepi8_epi16(_mm256_extracti128_si256((__m256i)w, 1)),
                                     _mm256_cvtepi8_epi16(_mm256_extracti128_si256((__m256i)x, 1)));
    return sum + (vi)_mm256_permute4x64_epi64(_mm256_hadd_epi32(low, high), 0xd8);
#else
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

// Rounds a group to u a, with u of at most `most`. Returns a: NaN if a number is not finite, and 0 if all are too small for a
// quotient.
SIMD_INLINE float quantise_group(const float *x, float most, int32_t *u) {
    const float magic = 12582912.0f; // 1.5 * 2^23: adding it rounds to an integer
    vf sizes = v_set(0), zeros = v_set(0);
    for (int i = 0; i < SL_INT_GROUP; i += VW) {
        vf v = v_load(x + i);
        sizes = v_max(sizes, v_max(v, -v)), zeros += v * 0;
    }
    float largest = v_max_lane(sizes), inverse = most / largest;
    int is_finite = !v_any(zeros != 0);
    if (!is_finite || largest < 0x1p-100f) {
        memset(u, 0, SL_INT_GROUP * sizeof *u);
        return is_finite ? 0 : NAN;
    }
    for (int i = 0; i < SL_INT_GROUP; i += VW) {
        vi rounded = __builtin_convertvector(v_load(x + i) * inverse + magic - magic, vi);
        memcpy(u + i, &rounded, sizeof rounded);
    }
    return largest / most;
}

// x: the columns of a block
SIMD_INLINE void quantise_block(const float *x, int is_nibbles, int is_wide, sl_int_block *out) {
    enum { N_BYTES = SL_INT_BYTES };
    int n_cols = is_nibbles ? 2 * N_BYTES : N_BYTES, lane = n_cols / SL_INT_LANES;
    int32_t u[2 * N_BYTES];
    for (int from = 0; from < n_cols; from += SL_INT_GROUP) {
        float scale = quantise_group(x + from, is_wide ? 127 * 256 : 127, u + from);
        for (int l = from / lane; l < (from + SL_INT_GROUP) / lane; l++) out->scale[l] = scale;
    }
    for (int l = 0; l < SL_INT_LANES; l++) {
        int sum = 0;
        for (int i = 0; i < lane; i++) sum += u[l * lane + i];
        out->sum[l] = sum;
        out->scaled_sum[l] = (float)sum * out->scale[l];
    }
    for (int i = 0; i < 2 * N_BYTES; i++) {
        int of = !is_nibbles ? i % N_BYTES : i < N_BYTES ? 2 * i : 2 * (i - N_BYTES) + 1;
        int high = is_wide ? (u[of] + 128) >> 8 : u[of];
        out->high[i] = (int8_t)high;
        out->low[i] = (int8_t)(is_wide ? u[of] - 256 * high : 0);
    }
}

SIMD_INLINE void quantise_row(const float *x, int n, int is_nibbles, int is_wide, sl_int_block *out) {
    int n_cols = is_nibbles ? 2 * SL_INT_BYTES : SL_INT_BYTES, i = 0;
    for (; i + n_cols <= n; i += n_cols) quantise_block(x + i, is_nibbles, is_wide, out++);
    if (i == n) return;
    float rest[2 * SL_INT_BYTES] = {0};
    memcpy(rest, x + i, (size_t)(n - i) * sizeof *rest);
    quantise_block(rest, is_nibbles, is_wide, out);
}

static void quantise(const sl_weight *w, const float *x, sl_int_block *out) {
    int is_wide = w->activations == SL_ACT_INT16;
    if (sl_formats[w->format].n_values == 2)
        quantise_row(x, w->n_cols, 1, is_wide, out);
    else
        quantise_row(x, w->n_cols, 0, is_wide, out);
}

// ---- a block of a weight ----

// How the elements of a format are multiplied.
typedef enum {
    BYTES,        // SL_INT8
    BYTES_ZERO,   // with zero points
    BYTES_MIN,    // SL_UINT8
    NIBBLES,      // SL_INT4
    NIBBLES_ZERO, // with zero points
    NIBBLES_MIN,  // SL_UINT4
    BOOK,         // SL_FP4, SL_IQ4: a number of 8 bits for each nibble
} kind;

SIMD_INLINE kind kind_of(const sl_weight *w) {
    if (sl_code_book(w->format)) return BOOK;
    int is_nibble = sl_formats[w->format].n_values == 2;
    if (w->min) return is_nibble ? NIBBLES_MIN : BYTES_MIN;
    if (w->zero) return is_nibble ? NIBBLES_ZERO : BYTES_ZERO;
    return is_nibble ? NIBBLES : BYTES;
}

SIMD_INLINE int has_zero(kind k) {
    return k == BYTES_ZERO || k == NIBBLES_ZERO;
}
SIMD_INLINE int has_min(kind k) {
    return k == BYTES_MIN || k == NIBBLES_MIN;
}

// A block of one output: its elements, and of each lane the weight's scale, zero point and minimum.
typedef struct elements {
    vb low[PARTS], high[PARTS]; // of bytes: low only
    vf scale[PARTS], min[PARTS];
    vi zero[PARTS];
} elements;

SIMD_INLINE vb look_up(vb book, vb nibbles) { // book: 16 numbers, repeated
#if defined(__AVX512F__)
    return (vb)_mm512_shuffle_epi8((__m512i)book, (__m512i)nibbles);
#elif defined(__AVX2__)
    return (vb)_mm256_shuffle_epi8((__m256i)book, (__m256i)nibbles);
#else
    for (int j = 0; j < PART_BYTES; j++) nibbles[j] = book[nibbles[j]];
    return nibbles;
#endif
}

// What has been added to q in elements of 8 bits, so that the products can take them.
SIMD_INLINE int bytes_offset(kind k) {
    return k == BYTES_MIN ? UNSIGNED_BYTES ? 0 : -128 : UNSIGNED_BYTES ? 128 : 0;
}

SIMD_INLINE void load_elements(const char *row, kind k, vb book, elements *b) {
    int is_bytes = k == BYTES || k == BYTES_ZERO || k == BYTES_MIN;
    for (int p = 0; p < PARTS; p++) {
        vb bytes = load_bytes(row + p * PART_BYTES);
        b->low[p] = is_bytes ? bytes : low_nibbles(bytes);
        b->high[p] = high_nibbles(bytes);
        if (k == BOOK) b->low[p] = look_up(book, b->low[p]), b->high[p] = look_up(book, b->high[p]);
        if ((is_bytes || k == BOOK) && bytes_offset(k))
            b->low[p] = (vb)(b->low[p] ^ -128), b->high[p] = (vb)(b->high[p] ^ -128);
    }
}

SIMD_INLINE vi products(const elements *b, int p, kind k, const int8_t *x) { // of the elements
    vb even = load_bytes(x + p * PART_BYTES), odd = load_bytes(x + SL_INT_BYTES + p * PART_BYTES);
    switch (k) {
    case BYTES:
    case BYTES_ZERO:
    case BYTES_MIN:
        return dot_bytes((vi){0}, b->low[p], even);
    case BOOK:
        return dot_bytes(dot_bytes((vi){0}, b->low[p], even), b->high[p], odd);
    default:
        return dot_unsigned(dot_unsigned((vi){0}, b->low[p], even), b->high[p], odd);
    }
}

// (sum of (q - z) u) in each lane; with a minimum z is 0
SIMD_INLINE vi dot(const elements *b, int p, kind k, int is_wide, const sl_int_block *x, vi sum) {
    vi d = products(b, p, k, x->high);
    if (is_wide) d = (d << 8) + products(b, p, k, x->low);
    switch (k) {
    case NIBBLES_MIN:
        return d;
    case NIBBLES:
        return d - (sum << 3);
    case NIBBLES_ZERO:
        return d - (b->zero[p] + 8) * sum;
    case BYTES_ZERO:
        return d - (b->zero[p] + bytes_offset(k)) * sum;
    default:
        return d - bytes_offset(k) * sum;
    }
}

// ---- scales ----

// Lane j gets from[index[j]], or 0 if the index is n or above. n: at most 8
SIMD_INLINE vf spread(const float *from, int n, vi index) {
#if defined(__AVX512F__)
    return _mm512_permutexvar_ps((__m512i)index, _mm512_maskz_loadu_ps((__mmask16)((1 << n) - 1), from));
#elif defined(__AVX2__)
    __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    return _mm256_permutevar8x32_ps(_mm256_maskload_ps(from, mask), (__m256i)index);
#else
    vf x = {0};
    for (int l = 0; l < VW; l++)
        if (index[l] < n) x[l] = from[index[l]];
    return x;
#endif
}

// Where the lanes of a block find their scales in the scales of a row, and the code book.
typedef struct places {
    int group, n_groups; // columns of a group; groups of a row
    int n_cols;          // columns of a block
    int blocks;          // of a group, if it holds whole blocks, or if it is the only one; otherwise 0
    int groups;          // of a block, if it holds whole groups; otherwise 0
    int first, n;        // the groups of this block
    vi index[PARTS];     // each lane's group, counted from the first one; a lane past the last column may have n or more
    vb book;
    float factor; // of each scale: 1/2 if the book holds twice the numbers
} places;

// The groups of the lanes of a block that begins at column col.
SIMD_INLINE void find_lanes(places *s, int col) {
    int lane = s->n_cols / SL_INT_LANES;
    s->first = col / s->group;
    for (int l = 0; l < SL_INT_LANES; l++) s->index[l / VW][l % VW] = (col + l * lane) / s->group - s->first;
    s->n = s->index[PARTS - 1][VW - 1] + 1;
}

SIMD_INLINE places places_of(const sl_weight *w) {
    places s = {.group = w->group, .n_groups = sl_weight_groups(w), .factor = w->format == SL_FP4 ? 0.5f : 1};
    const float *book = sl_code_book(w->format);
    s.n_cols = SL_INT_BYTES * sl_formats[w->format].n_values;
    s.blocks = s.n_groups == 1 ? w->n_cols : w->group % s.n_cols == 0 ? w->group / s.n_cols : 0;
    s.groups = s.n_cols % w->group == 0 ? s.n_cols / w->group : 0;
    find_lanes(&s, 0);
    for (int i = 0; book && i < PART_BYTES; i++) s.book[i] = (int8_t)(book[i % 16] / s.factor);
    return s;
}

SIMD_INLINE void find_groups(places *s, int block) {
    if (s->blocks) {
        s->first = block / s->blocks;
        return;
    }
    if (s->groups) // the lanes are those of block 0
        s->first = block * s->groups, s->n = s->groups;
    else
        find_lanes(s, block * s->n_cols);
    if (s->n > s->n_groups - s->first) s->n = s->n_groups - s->first;
}

// The scales of a row of the weight; zero and min: NULL without them.
typedef struct row_scales {
    const float *scale, *min;
    const int8_t *zero;
} row_scales;

SIMD_INLINE void load_scales(const row_scales *r, const places *s, kind k, elements *b) {
    int at = s->first;
    for (int p = 0; p < PARTS; p++) {
        b->scale[p] = s->blocks ? v_set(r->scale[at]) : spread(r->scale + at, s->n, s->index[p]);
        if (k == BOOK) b->scale[p] *= s->factor;
        b->min[p] = !has_min(k) ? v_set(0) : s->blocks ? v_set(r->min[at]) : spread(r->min + at, s->n, s->index[p]);
        b->zero[p] = (vi){0};
        if (has_zero(k) && s->blocks) b->zero[p] += r->zero[at];
        for (int l = 0; has_zero(k) && !s->blocks && l < VW; l++)
            if (s->index[p][l] < s->n) b->zero[p][l] = r->zero[at + s->index[p][l]];
    }
}

// ---- products ----

// Adds a block of n_out outputs and n_rows rows. row: of each output, from the block on
SIMD_INLINE void add_block(const char *const row[4], const row_scales scales[4], const places *s, kind k, int is_wide,
                           const sl_int_block *x, size_t n_blocks, int n_out, int n_rows, vf acc[4][4][PARTS]) {
    elements b[4];
    for (int a = 0; a < n_out; a++) {
        load_elements(row[a], k, s->book, &b[a]);
        load_scales(&scales[a], s, k, &b[a]);
    }
    for (int r = 0; r < n_rows; r++, x += n_blocks) {
        for (int p = 0; p < PARTS; p++) {
            vi sum = *(const vi *)(x->sum + p * VW);
            vf x_scale = v_load(x->scale + p * VW);
            for (int a = 0; a < n_out; a++) {
                vi d = dot(&b[a], p, k, is_wide, x, sum);
                acc[a][r][p] += __builtin_convertvector(d, vf) * (b[a].scale[p] * x_scale);
                if (has_min(k)) acc[a][r][p] += b[a].min[p] * v_load(x->scaled_sum + p * VW);
            }
        }
    }
}

// Adds the lanes of n_out outputs and n_rows rows.
SIMD_INLINE void close_leaf(int n_out, int n_rows, vf acc[4][4][PARTS], float sums[4][4]) {
    for (int a = 0; a < n_out; a++)
        for (int r = 0; r < n_rows; r++) {
            for (int n = PARTS / 2; n; n /= 2)
                for (int p = 0; p < n; p++) acc[a][r][p] += acc[a][r][p + n];
            sums[a][r] = v_sum(acc[a][r][0]);
        }
}

SIMD_INLINE void clear(int n_out, int n_rows, vf acc[4][4][PARTS]) {
    for (int a = 0; a < n_out; a++)
        for (int r = 0; r < n_rows; r++)
            for (int p = 0; p < PARTS; p++) acc[a][r][p] = v_set(0);
}

CHECKED_BY_ROWS SIMD_INLINE void tile(const sl_weight *w, places *s, kind k, const sl_int_block *x, int o, int n_out,
                                      int n_rows, int n_leaves, int accumulate, float *out) {
    size_t n_blocks = (size_t)sl_int_blocks(w), row_bytes = sl_weight_row_bytes(w), rest = row_bytes % SL_INT_BYTES;
    size_t leaf = n_leaves > 1 ? n_blocks / (size_t)n_leaves : SIZE_MAX; // blocks
    float sums[SL_MOST_LEAVES][4][4];
    int is_wide = w->activations == SL_ACT_INT16;
    const char *row[4];
    row_scales scales[4];
    char end[4][SL_INT_BYTES];
    vf acc[4][4][PARTS];
    for (int a = 0; a < n_out; a++) {
        size_t at = sl_weight_scale_at(w, (size_t)o + a);
        row[a] = sl_weight_row(w, (size_t)o + a);
        scales[a] = (row_scales){w->scale + at, has_min(k) ? w->min + at : NULL, has_zero(k) ? w->zero + at : NULL};
    }
    clear(n_out, n_rows, acc);
    for (size_t i = 0, leaf_end = leaf, l = 0; i < row_bytes / SL_INT_BYTES; i++) {
        find_groups(s, (int)i);
        add_block(row, scales, s, k, is_wide, x + i, n_blocks, n_out, n_rows, acc);
        for (int a = 0; a < n_out; a++) {
            __builtin_prefetch(row[a] + n_out * row_bytes, 0, 2); // as add_group of cpu_ops.inc.h
            row[a] += SL_INT_BYTES;
        }
        if (i + 1 == leaf_end) { // of several leaves
            close_leaf(n_out, n_rows, acc, sums[l++]);
            clear(n_out, n_rows, acc);
            leaf_end += leaf;
        }
    }
    if (rest) {
        for (int a = 0; a < n_out; a++) {
            memset(end[a], 0, SL_INT_BYTES);
            row[a] = memcpy(end[a], row[a], rest);
        }
        find_groups(s, (int)n_blocks - 1);
        add_block(row, scales, s, k, is_wide, x + n_blocks - 1, n_blocks, n_out, n_rows, acc);
    }
    if (n_leaves == 1) close_leaf(n_out, n_rows, acc, sums[0]);
    sl_add_leaves(n_leaves, 4 * 4, n_out, 4, (size_t)n_rows, sums[0][0]);
    for (int a = 0; a < n_out; a++) {
        for (int r = 0; r < n_rows; r++) {
            float *to = out + (size_t)r * w->n_rows + o + a;
            *to = accumulate ? *to + sums[0][a][r] : sums[0][a][r];
        }
    }
}

#define TILES(N_OUT, N_ROWS)                                                                                                   \
    for (; o + (N_OUT) <= o_to; o += (N_OUT)) tile(w, &groups, k, x, o, N_OUT, N_ROWS, n_leaves, accumulate, out)

CHECKED_BY_ROWS SIMD_INLINE void rows(const sl_weight *w, kind k, const sl_int_block *x, int n_rows, int o_from, int o_to,
                                      int n_leaves, int accumulate, float *out) {
    const int many = k == NIBBLES_MIN ? 3 : 4; // as many rows of x as registers hold
    places groups = places_of(w);
    while (n_rows > 0) {
        int o = o_from, n_now = n_rows >= many ? many : 1;
        if (n_now == many) {
            TILES(4, many);
            TILES(1, many);
        } else {
            TILES(4, 1);
            TILES(1, 1);
        }
        x += (size_t)n_now * sl_int_blocks(w);
        out += (size_t)n_now * w->n_rows;
        n_rows -= n_now;
    }
}

#define KIND(K)                                                                                                                \
    case K:                                                                                                                    \
        rows(w, K, x, n_rows, o_from, o_to, n_leaves, accumulate, out);                                                        \
        break

CHECKED_BY_ROWS static void linear(const sl_weight *w, const sl_int_block *x, int n_rows, int o_from, int o_to, int n_leaves,
                                   int accumulate, float *out) {
    SL_CHECK(n_leaves <= SL_MOST_LEAVES && (n_leaves == 1 || w->n_cols % (n_leaves * SL_LEAF_UNIT) == 0));
    check_rows(sl_weight_row(w, (size_t)o_from), 0, 1, (size_t)(o_to - o_from) * sl_weight_row_bytes(w));
    check_rows(w->scale, 0, 1, sl_weight_scales(w) * sizeof *w->scale);
    if (w->zero) check_rows(w->zero, 0, 1, sl_weight_scales(w) * sizeof *w->zero);
    if (w->min) check_rows(w->min, 0, 1, sl_weight_scales(w) * sizeof *w->min);
    check_rows(x, 0, 1, (size_t)n_rows * sl_int_blocks(w) * sizeof *x);
    check_rows(out + o_from, w->n_rows * sizeof *out, n_rows, (o_to - o_from) * sizeof *out);
    switch (kind_of(w)) {
        KIND(BYTES);
        KIND(BYTES_ZERO);
        KIND(BYTES_MIN);
        KIND(NIBBLES);
        KIND(NIBBLES_ZERO);
        KIND(NIBBLES_MIN);
        KIND(BOOK);
    }
}

const sl_int_ops PASTE(sl_int_ops_, SL_ISA) = {STRING(SL_ISA), quantise, linear};
