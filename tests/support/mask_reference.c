// tests/support/mask_reference.c - see mask_reference.h.
#include "tests/support/mask_reference.h"
#include "attention/prefill/integer_softmax.h"
#include "tests/support/mask_patterns.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static sl_error err;

// ---- segments ----

static float small_integer(uint64_t *seed) { // -3 .. 3
    return (float)((int)(test_uniform(seed) * 7) - 3);
}

segment segment_new(int n_heads, int n_kv_heads, int head_dim, int base, int n_tokens, uint64_t seed) {
    int n = base + n_tokens;
    segment s = {.n_tokens = n_tokens, .base = base};
    s.c = ref_cache_new(n_heads, n_kv_heads, head_dim, 1, &n, 1, seed);
    size_t size = (size_t)n_tokens * n_heads * head_dim;
    s.q = malloc(size * sizeof *s.q), s.out = malloc(size * sizeof *s.out);
    for (size_t i = 0; i < size; i++) s.q[i] = small_integer(&seed);
    for (int h = 0; h < n_kv_heads; h++)
        for (int j = 0; j < n; j++)
            for (int d = 0; d < head_dim; d++)
                ((bf16 *)ref_k_row(&s.c, 0, h, j))[d] = sl_f32_to_bf16(0.5f * small_integer(&seed));
    s.mask = sl_mask_of(n_heads, n_tokens, n);
    s.mask.bits = s.bits = malloc(sl_mask_bytes(&s.mask));
    s.reports = malloc(n_heads * sizeof *s.reports);
    s.dots = calloc((size_t)n_tokens * n_heads, sizeof *s.dots);
    return s;
}

void segment_make_uneven(segment *s) {
    static const float scales[] = {2, 0.25f, 1, 0.25f, 4, 0.5f, 0.125f};
    for (int h = 0; h < s->c.geom.n_kv_heads; h++)
        for (int j = 0; j < s->base + s->n_tokens; j++)
            for (int d = 0; d < s->c.geom.head_dim; d++) {
                bf16 *key = (bf16 *)ref_k_row(&s->c, 0, h, j) + d;
                *key = sl_f32_to_bf16(sl_bf16_to_f32(*key) * scales[j / 128 % 7]);
            }
}

void segment_free(segment *s) {
    for (int i = 0; i < s->n_tokens * s->c.geom.n_heads; i++) free(s->dots[i]);
    ref_cache_free(&s->c);
    free(s->dots), free(s->q), free(s->out), free(s->bits), free(s->reports);
}

sl_mask_args segment_args(segment *s, const sl_attn_spec *spec) {
    return (sl_mask_args){.geom = &s->c.geom,
                          .spec = spec,
                          .layer = s->layer,
                          .n_tokens = s->n_tokens,
                          .q = s->q,
                          .kv = sl_kv_view_of(&s->c.pool, &s->c.seqs[0], 0, s->base + s->n_tokens),
                          .ws = &s->c.ws,
                          .mask = &s->mask,
                          .reports = s->reports};
}

void segment_mask(segment *s, const char *method) {
    sl_attn_spec spec;
    CHECK_OK(sl_attn_parse(method, &spec, &err), err);
    sl_mask_args args = segment_args(s, &spec);
    size_t bytes = sl_mask_workspace(&s->c.geom, &spec, s->n_tokens, args.kv.n_kv);
    CHECK_OK(sl_workspace_reserve(&s->c.ws, bytes, &err), err);
    memset(s->bits, 0xff, sl_mask_bytes(&s->mask)); // must be overwritten
    sl_mask_propose(&args);
}

void segment_attend(segment *s, const sl_prefill_mask *mask, const char *rule, int step, float *lost,
                    sl_prefill_count *counts) {
    sl_attn_spec dense = {.method = &sl_method_dense}, spec;
    size_t row = (size_t)s->c.geom.n_heads * s->c.geom.head_dim;
    if (rule) CHECK_OK(sl_attn_parse(rule, &spec, &err), err);
    size_t bytes = sl_method_dense.cpu->workspace(&s->c.geom, &dense, 1, step, s->base + s->n_tokens);
    CHECK_OK(sl_workspace_reserve(&s->c.ws, bytes, &err), err);
    for (size_t i = 0; i < s->n_tokens * row; i++) s->out[i] = NAN; // must be overwritten
    for (int i = 0; i < s->n_tokens; i += step) {
        int n = s->n_tokens - i < step ? s->n_tokens - i : step;
        sl_attn_prefill_args args = {.geom = &s->c.geom,
                                     .spec = &dense,
                                     .n_tokens = n,
                                     .q = s->q + i * row,
                                     .out = s->out + i * row,
                                     .kv = sl_kv_view_of(&s->c.pool, &s->c.seqs[0], 0, s->base + i + n),
                                     .ws = &s->c.ws,
                                     .mask = mask,
                                     .skip_distance = rule ? spec.method->cpu->skip_distance(&spec) : 0,
                                     .lost = lost ? lost + (size_t)i * s->c.geom.n_heads : NULL,
                                     .counts = counts};
        sl_method_dense.cpu->prefill(&args);
    }
}

// ---- scores and shares ----

static void fill_dots(const segment *s, int head, int token, float *out) {
    int dim = s->c.geom.head_dim, h = head / (s->c.geom.n_heads / s->c.geom.n_kv_heads);
    const float *q = s->q + ((size_t)token * s->c.geom.n_heads + head) * dim;
    for (int j = 0; j < s->base + s->n_tokens; j++) {
        const bf16 *k = ref_k_row(&s->c, 0, h, j);
        double sum = 0;
        for (int d = 0; d < dim; d++) sum += (double)q[d] * sl_bf16_to_f32(k[d]);
        out[j] = (float)sum; // exact
    }
}

static double dot(const segment *s, int head, int token, int key) { // 0 where there is no such token or key
    int n = s->base + s->n_tokens;
    if (token < 0 || token >= s->n_tokens || key >= n) return 0;
    float **row = &s->dots[(size_t)token * s->c.geom.n_heads + head];
    if (!*row) fill_dots(s, head, token, *row = malloc(n * sizeof **row));
    return (*row)[key];
}

void naive_scores(const segment *s, int head, int token, double *score) {
    for (int j = 0; j <= s->base + token; j++)
        score[j] = dot(s, head, token, j) * 1.4426950408889634 / sqrt(s->c.geom.head_dim);
}

// A mass in units of 2^-bits, to nearest, or down.
static uint64_t mass(int distance, int bits, double add) {
    return (uint64_t)floor(ldexp((double)SL_MASS_SCALE * exp2(-distance / 64.0), bits) + add);
}

typedef struct row {  // of scores, as integers
    int *score;       // [row + 1]
    uint64_t *blocks; // [n_blocks][2] masses of each key block, relative to its ref: up to the split, and after it
    int *ref;         // [n_blocks]
    int top;
    uint64_t z;
} row;

static row row_new(const segment *s, int head, int stride, int number) {
    int per_block = 128 / stride, n_blocks = number / per_block + 1;
    row x = {malloc((number + 1) * sizeof(int)), calloc(n_blocks, 16), malloc(n_blocks * sizeof(int)), -1000000, 0};
    for (int b = 0; b < n_blocks; b++) x.ref[b] = -1000000;
    for (int c = 0; c <= number; c++) {
        double sum = 0;
        for (int t = 0; t < stride; t++) sum += dot(s, head, number * stride + t - s->base, c * stride + stride - 1 - t);
        double score = (double)(float)sum * (sl_score_scale(s->c.geom.head_dim) / (float)stride);
        int *ref = x.ref + c / per_block;
        x.score[c] = (int)lrint(fmax(score, -40000) * 64); // the mass of a lower score is 0
        *ref = fmax(*ref, ceil(x.score[c] / 64.0));
        x.top = x.top > *ref ? x.top : *ref;
    }
    for (int c = 0; c <= number; c++) {
        int b = c / per_block, after = stride == 1 && (number - c) / 128 != number / 128 - b;
        x.blocks[2 * b + after] += mass(64 * x.ref[b] - x.score[c], 16, 0.5);
    }
    for (int b = 0; b < n_blocks; b++)
        x.z += x.top - x.ref[b] > 63 ? 0 : ((x.blocks[2 * b] + x.blocks[2 * b + 1]) << 14) >> (x.top - x.ref[b]);
    return x;
}

static void row_free(row *x) {
    free(x->score), free(x->blocks), free(x->ref);
}

void naive_shares(const segment *s, int head, int stride, int number, uint32_t *share) {
    row x = row_new(s, head, stride, number);
    for (int c = 0; c <= number; c++) share[c] = sl_share(mass(64 * x.top - x.score[c], 30, 0), sl_share_factor(x.z));
    row_free(&x);
}

void naive_block_shares(const segment *s, int head, int stride, int number, uint32_t *share) {
    row x = row_new(s, head, stride, number);
    for (int i = 0; i < 2 * (number * stride / 128 + 1); i++) {
        int shift = x.top - x.ref[i / 2];
        share[i] = sl_share(shift > 63 ? 0 : (x.blocks[i] << 14) >> shift, sl_share_factor(x.z));
    }
    row_free(&x);
}

void naive_block_sums(const segment *s, int head, int i, int stride, uint32_t *sum) {
    int first = i * 128 < s->base ? s->base : i * 128, last = i * 128 + 127, n = s->base + s->n_tokens;
    uint32_t *share = malloc(2 * (i + 1) * sizeof *share);
    if (last >= n) last = n - 1;
    memset(sum, 0, (i + 1) * sizeof *sum);
    for (int number = first / stride; number <= last / stride; number++) {
        naive_block_shares(s, head, stride, number, share);
        for (int j = 0; j < 2 * (i + 1); j++) sum[j / 2] += share[j];
    }
    free(share);
}

// ---- masks by definition ----

typedef struct naive {
    segment *s;
    sl_attn_spec spec;
    sl_prefill_mask m;
    int32_t *kept;
} naive;

static void add(naive *x, int head, int i, int j) {
    if (j < 0 || j > i) return;
    x->m.bits[((size_t)head * x->m.n + i - x->m.first) * x->m.n_words + j / 64] |= 1ull << (j % 64);
}

static int has(const naive *x, int head, int i, int j) {
    return x->m.bits[((size_t)head * x->m.n + i - x->m.first) * x->m.n_words + j / 64] >> (j % 64) & 1;
}

// Takes the largest sum, the lowest index on ties, until `most` are taken or the share of the total is reached.
static void take(const uint32_t *sum, int n, double share, int most, char *taken) {
    unsigned __int128 total = 0, reached = 0, wanted = (uint64_t)llround(share * 4294967296.0);
    memset(taken, 0, n);
    for (int i = 0; i < n; i++) total += sum[i];
    while (most-- > 0 && reached << 32 < wanted * total) {
        int best = -1;
        for (int i = 0; i < n; i++)
            if (!taken[i] && (best < 0 || sum[i] > sum[best])) best = i;
        if (best < 0 || !sum[best]) return;
        taken[best] = 1, reached += sum[best];
    }
}

static void measure(naive *x, int head, int first, int last) {
    uint32_t *share = malloc(2 * (last / 128 + 1) * sizeof *share);
    for (int i = first; i <= last; i++) {
        uint64_t kept = 0, total = 0;
        naive_block_shares(x->s, head, 1, i, share);
        for (int j = 0; j < 2 * (i / 128 + 1); j++) {
            total += share[j];
            if (has(x, head, i / 128, j / 2)) kept += share[j];
        }
        int32_t part = (int32_t)(kept * (1 << 24) / total);
        if (x->kept[head] < 0 || part < x->kept[head]) x->kept[head] = part;
    }
    free(share);
}

// Measures the sampled rows [first, last], and those of the middle query block. A chunk that keeps too little becomes dense.
static void repair(naive *x, int head, int from, int to, int first, int last) {
    int32_t before = x->kept[head];
    int middle = from + (to - 1 - from) / 2, begin = middle * 128, end = middle * 128 + 127,
        most = x->s->base + x->s->n_tokens - 1;
    double least = sl_attn_get(&x->spec, "repair");
    x->kept[head] = SL_MASK_NOT_SAMPLED;
    measure(x, head, first, last);
    if (least > 0) measure(x, head, begin < x->s->base ? x->s->base : begin, end > most ? most : end);
    if ((uint64_t)x->kept[head] << 8 < (uint64_t)llround(least * 4294967296.0)) {
        for (int i = from; i < to; i++)
            for (int j = 0; j <= i; j++) add(x, head, i, j);
        x->kept[head] = 1 << 24;
    }
    if (before != SL_MASK_NOT_SAMPLED && before < x->kept[head]) x->kept[head] = before;
}

static void sample_chunk(naive *x, int head, int from, int to) {
    segment *s = x->s;
    int first = from * 128, last = to * 128 - 1;
    if (first < s->base) first = s->base;
    if (last >= s->base + s->n_tokens) last = s->base + s->n_tokens - 1;
    if (first < last - 127) first = last - 127;
    uint32_t column[256] = {0}, slash[256] = {0}, share[512];
    char columns[256], slashes[256];
    int n_blocks = last / 128 + 1;
    for (int i = first; i <= last; i++) {
        naive_block_shares(s, head, 1, i, share);
        for (int j = 0; j < 2 * (i / 128 + 1); j++) {
            column[j / 2] += share[j];
            if (share[j]) slash[i / 128 - j / 2 - j % 2] += share[j];
        }
    }
    take(column, n_blocks, sl_attn_get(&x->spec, "alpha_c"), n_blocks, columns);
    take(slash, n_blocks, sl_attn_get(&x->spec, "alpha_s"), n_blocks, slashes);
    for (int i = from; i < to; i++)
        for (int b = 0; b < n_blocks; b++) {
            if (columns[b]) add(x, head, i, b);
            if (slashes[b]) add(x, head, i, i - b), add(x, head, i, i - b - 1);
        }
    repair(x, head, from, to, first, last);
}

static void sample(naive *x, int head) {
    int n = (int)sl_attn_get(&x->spec, "chunk_n");
    if (n > x->m.n) n = x->m.n;
    for (int c = 0; c < n; c++) sample_chunk(x, head, x->m.first + c * x->m.n / n, x->m.first + (c + 1) * x->m.n / n);
}

static void vertical_slash(naive *x, int head) {
    int n = x->s->base + x->s->n_tokens, first = n - 64 < x->s->base ? x->s->base : n - 64;
    uint32_t *column = calloc(n, 4), *slash = calloc(n, 4), *share = malloc(4 * n);
    char *columns = malloc(n), *slashes = malloc(n);
    for (int i = first; i < n; i++) {
        naive_shares(x->s, head, 1, i, share);
        for (int j = 0; j <= i; j++) column[j] += share[j], slash[i - j] += share[j];
    }
    take(column, n, 1, (int)sl_attn_get(&x->spec, "columns"), columns);
    take(slash, n, 1, (int)sl_attn_get(&x->spec, "slashes"), slashes);
    for (int i = x->m.first; i < x->m.first + x->m.n; i++)
        for (int o = 0; o < n; o++) {
            if (columns[o]) add(x, head, i, o / 128);
            for (int t = 0; slashes[o] && t < 128; t++)
                if (128 * i + t >= o) add(x, head, i, (128 * i + t - o) / 128);
        }
    measure(x, head, first, n - 1);
    free(column), free(slash), free(share), free(columns), free(slashes);
}

static void xattention(naive *x, int head) {
    uint32_t sum[256];
    char taken[256];
    for (int i = x->m.first; i < x->m.first + x->m.n; i++) {
        naive_block_sums(x->s, head, i, sl_attn_chooses(&x->spec, "stride", "16") ? 16 : 8, sum);
        take(sum, i + 1, sl_attn_get(&x->spec, "threshold"), i + 1, taken);
        for (int j = 0; j <= i; j++)
            if (taken[j]) add(x, head, i, j);
    }
}

static void oracle(naive *x, int head) {
    uint32_t sum[256];
    double share = sl_attn_get(&x->spec, "mass"), density = sl_attn_get(&x->spec, "density");
    for (int i = x->m.first; i < x->m.first + x->m.n; i++) {
        naive_block_sums(x->s, head, i, 1, sum);
        unsigned __int128 total = 0, kept = sum[0] + (uint64_t)(i ? sum[i] : 0), wanted = llround(share * 4294967296.0);
        for (int j = 0; j <= i; j++) total += sum[j];
        for (int n = i ? 2 : 1; share > 0 ? kept << 32 < wanted * total : n < (int)floor(density * (i + 1) + 0.5); n++) {
            int best = -1;
            for (int j = 0; j <= i; j++)
                if (!has(x, head, i, j) && sum[j] && (best < 0 || sum[j] > sum[best])) best = j;
            if (best < 0) break;
            kept += sum[best];
            add(x, head, i, best);
        }
    }
}

static void streaming(naive *x, int head) {
    int sink = (int)sl_attn_get(&x->spec, "sink"), window = (int)sl_attn_get(&x->spec, "window");
    for (int query = x->m.first * 128; query < (x->m.first + x->m.n) * 128; query++)
        for (int key = 0; key <= query; key++)
            if (key < sink || query - key < window) add(x, head, query / 128, key / 128);
}

static void pattern(naive *x, int head, void (*keep_blocks)(const segment *, const sl_attn_spec *, int, int, char *)) {
    for (int i = x->m.first; i < x->m.first + x->m.n; i++) {
        char keep[256] = {0};
        keep_blocks(x->s, &x->spec, head, i, keep);
        for (int j = 0; j <= i; j++)
            if (keep[j]) add(x, head, i, j);
    }
}

static void bigbird(naive *x, int head) {
    pattern(x, head, naive_bigbird);
}
static void hash_sparse(naive *x, int head) {
    pattern(x, head, naive_hash_sparse);
}
static void hyperattention(naive *x, int head) {
    pattern(x, head, naive_hyperattention);
}

void naive_mask(segment *s, const char *method, uint64_t *bits, int32_t *kept) {
    static const struct {
        const char *name;
        void (*fn)(naive *x, int head);
    } methods[] = {{"sample", sample},           {"vertical-slash", vertical_slash}, {"xattention", xattention},
                   {"oracle", oracle},           {"streaming", streaming},           {"bigbird", bigbird},
                   {"hash-sparse", hash_sparse}, {"hyperattention", hyperattention}};
    naive x = {.s = s, .m = s->mask, .kept = kept};
    CHECK_OK(sl_attn_parse(method, &x.spec, &err), err);
    x.m.bits = bits;
    memset(bits, 0, sl_mask_bytes(&x.m));
    for (int head = 0; head < s->c.geom.n_heads; head++) {
        kept[head] = SL_MASK_NOT_SAMPLED;
        for (int i = x.m.first; i < x.m.first + x.m.n; i++) add(&x, head, i, 0), add(&x, head, i, i);
        for (size_t k = 0; k < sizeof methods / sizeof *methods; k++)
            if (!strcmp(methods[k].name, x.spec.method->name)) methods[k].fn(&x, head);
    }
}

// ---- the rule of threshold ----

int naive_rule(const segment *s, int head, int i, double lambda, char *skipped, double *lost) {
    int first = i * 128 < s->base ? s->base : i * 128, last = i * 128 + 127, n_skipped = 0;
    if (last >= s->base + s->n_tokens) last = s->base + s->n_tokens - 1;
    double(*top)[64] = calloc(128, sizeof *top), *score = malloc((last + 1) * sizeof *score), most[128];
    for (int row = first; row <= last; row++) {
        naive_scores(s, head, row - s->base, score);
        for (int j = 0; j <= i; j++) top[row - first][j] = -INFINITY;
        for (int c = 0; c <= row; c++) top[row - first][c / 128] = fmax(top[row - first][c / 128], score[c]);
        most[row - first] = -INFINITY;
    }
    for (int j = 0; j <= i; j++) {
        skipped[j] = 1;
        for (int r = 0; r <= last - first; r++) skipped[j] &= top[r][j] < most[r] + log2(lambda);
        for (int r = 0; r <= last - first && !skipped[j]; r++) most[r] = fmax(most[r], top[r][j]);
        n_skipped += skipped[j];
    }
    for (int row = first; row <= last; row++) {
        double l = 0, d = 0, *own = top[row - first];
        naive_scores(s, head, row - s->base, score);
        for (int c = 0; c <= row; c++)
            if (!skipped[c / 128]) l += exp2(score[c] - most[row - first]);
        for (int j = 0; j <= i; j++)
            if (skipped[j]) d += 128 * exp2(own[j] - most[row - first]);
        lost[row - first] = d / (l + d);
    }
    free(top), free(score);
    return n_skipped;
}
