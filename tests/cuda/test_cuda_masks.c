// tests/cuda/test_cuda_masks.c - masks for prefill on CUDA, bit by bit against the CPU, and prefill attention with a mask:
// against double precision, and bit by bit against dense attention, other splits into calls, and other page tables.
//
// Dot products of the segments are exact in fp32 (mask_reference.h). So the scores are equal on both devices, and the masks
// must be equal.
#include "attention/cuda/prefill/dense_prefill.cuh"
#include "tests/cuda/naive.h"
#include "tests/support/gpu.h"
#include "tests/support/mask_reference.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifdef SLEIGH_CUDA

static sl_error err;

typedef struct shape {
    int heads, kv_heads, dim, base, n;
} shape;

static const shape shapes[] = {{1, 1, 64, 0, 1},      {2, 2, 64, 0, 127},  {4, 1, 80, 0, 128},
                               {8, 1, 96, 0, 129},    {4, 1, 128, 0, 513}, {8, 2, 64, 200, 300},
                               {2, 1, 128, 383, 130}, {2, 1, 64, 1000, 1}, {2, 2, 128, 640, 256}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, EXTRA = 16 /* elements after the heads of a token */, GUARD = 64 };

// A segment in device memory.
typedef struct on_gpu {
    segment s;
    bf16 *q, *k, *v, *q_on_cpu; // q: [n_tokens][q_stride]
    size_t q_stride;
    int32_t *pages;
    sl_prefill_mask mask; // bits in device memory
    sl_attn_cuda_prefill_stats *stats;
} on_gpu;

static on_gpu copy_segment(segment s) {
    const sl_attn_geom *g = &s.c.geom;
    size_t row = (size_t)g->n_heads * g->head_dim, pool = (size_t)s.c.pool.n_pages * g->n_kv_heads * SL_PAGE * g->head_dim;
    on_gpu d = {.s = s, .q_stride = row + EXTRA, .mask = s.mask};
    bf16 *q = malloc(s.n_tokens * d.q_stride * sizeof *q);
    memset(q, 0xFF, s.n_tokens * d.q_stride * sizeof *q); // NaN after the heads
    for (int i = 0; i < s.n_tokens; i++)
        for (size_t x = 0; x < row; x++) q[i * d.q_stride + x] = sl_f32_to_bf16(s.q[i * row + x]);
    d.q = gpu_copy(q, s.n_tokens * d.q_stride * sizeof *q);
    d.k = gpu_copy(s.c.pool.k, pool * sizeof *d.k), d.v = gpu_copy(s.c.pool.v, pool * sizeof *d.v);
    d.pages = gpu_copy(s.c.seqs[0].pages, (size_t)(s.base + s.n_tokens + SL_PAGE - 1) / SL_PAGE * sizeof *d.pages);
    d.mask.bits = gpu_new(sl_mask_bytes(&s.mask));
    d.stats = gpu_zero(g->n_heads * sizeof *d.stats);
    d.q_on_cpu = q;
    return d;
}

static on_gpu new_on_gpu(const shape *z, uint64_t seed) {
    return copy_segment(segment_new(z->heads, z->kv_heads, z->dim, z->base, z->n, seed));
}

static void drop(on_gpu *d) {
    segment_free(&d->s);
    free(d->q_on_cpu);
    gpu_free_all();
}

// ---- masks ----

static void propose(on_gpu *d, const sl_attn_spec *spec) {
    const sl_attn_cuda_ops *ops = spec->method->cuda;
    int n_kv = d->s.base + d->s.n_tokens;
    size_t ws = ops->mask_workspace ? ops->mask_workspace(&d->s.c.geom, spec, d->s.n_tokens, n_kv) : 0;
    sl_attn_cuda_mask_args args = {.geom = &d->s.c.geom,
                                   .spec = spec,
                                   .n_tokens = d->s.n_tokens,
                                   .first = d->s.base,
                                   .q = d->q,
                                   .q_stride = d->q_stride,
                                   .k = d->k,
                                   .pages = d->pages,
                                   .mask = &d->mask,
                                   .stats = d->stats,
                                   .ws = ws ? gpu_new(ws) : NULL};
    ops->mask(&args);
}

// The bits of the mask on the GPU, from malloc.
static uint64_t *read_bits(const on_gpu *d) {
    uint64_t *bits = malloc(sl_mask_bytes(&d->mask));
    gpu_read(bits, d->mask.bits, sl_mask_bytes(&d->mask));
    return bits;
}

static void compare_bits(const on_gpu *d, const char *method, const uint64_t *got) {
    sl_prefill_mask other = d->mask;
    other.bits = (uint64_t *)got;
    for (int head = 0; head < d->mask.n_heads; head++)
        for (int i = d->mask.first; i < d->mask.first + d->mask.n; i++)
            for (int j = 0; j < d->mask.n_words * 64; j++) {
                int on_cpu = sl_mask_has(sl_mask_row(&d->s.mask, head, i), j);
                if (sl_mask_has(sl_mask_row(&other, head, i), j) != on_cpu)
                    FAIL("%s, %d + %d tokens, head %d, query block %d, key block %d: expected %d", method, d->s.base,
                         d->s.n_tokens, head, i, j, on_cpu);
            }
}

static void compare_kept(const on_gpu *d, const char *method) {
    sl_attn_cuda_prefill_stats stats[64];
    gpu_read(stats, d->stats, d->mask.n_heads * sizeof *stats);
    for (int head = 0; head < d->mask.n_heads; head++) {
        int unkept = (int)stats[head].unkept, kept = unkept ? (1 << SL_SHARE_BITS) + 1 - unkept : SL_MASK_NOT_SAMPLED;
        CHECK_INT(stats[head].visited, 0);
        if (kept != d->s.reports[head].kept)
            FAIL("%s, head %d: kept %d, expected %d", method, head, kept, d->s.reports[head].kept);
    }
}

static void check_mask(on_gpu *d, const char *method) {
    sl_attn_spec spec;
    CHECK_OK(sl_attn_parse(method, &spec, &err), err);
    segment_mask(&d->s, method);
    for (int i = 0; i < 2; i++) { // twice: the workspace needs no clearing by the caller
        propose(d, &spec);
        uint64_t *bits = read_bits(d);
        if (memcmp(bits, d->s.mask.bits, sl_mask_bytes(&d->mask))) compare_bits(d, method, bits);
        free(bits);
    }
    compare_kept(d, method);
    d->stats = gpu_zero(d->mask.n_heads * sizeof *d->stats);
}

static void check_masks(const char *const *methods) {
    for (int k = 0; k < N_SHAPES; k++) {
        on_gpu d = new_on_gpu(&shapes[k], test_seed + k);
        for (int m = 0; methods[m]; m++) check_mask(&d, methods[m]);
        drop(&d);
    }
}

static void sample(void) {
    check_masks((const char *[]){"sample", "sample:alpha_c=0.6:alpha_s=0.4", "sample:chunk_n=3:alpha_c=0.5:alpha_s=0.5",
                                 "sample:chunk_n=64:alpha_c=0", "sample:alpha_c=1:alpha_s=1", NULL});
}
static void vertical_slash(void) {
    check_masks((const char *[]){"vertical-slash", "vertical-slash:columns=3:slashes=5", "vertical-slash:columns=0:slashes=1",
                                 "vertical-slash:columns=40:slashes=0", NULL});
}
static void streaming(void) {
    check_masks((const char *[]){"streaming", "streaming:sink=0:window=1", "streaming:sink=129:window=128",
                                 "streaming:sink=1:window=200", NULL});
}

static void long_segments(void) {
    static const shape long_shapes[] = {
        {4, 1, 128, 0, 2047}, {2, 1, 128, 100, 4000}, {2, 1, 64, 0, 32769}, {2, 2, 128, 30000, 2769}};
    static const char *const methods[] = {"sample", "sample:chunk_n=4:alpha_c=0.8:alpha_s=0.8", "vertical-slash", "streaming"};
    for (int k = 0; k < 4; k++) {
        on_gpu d = new_on_gpu(&long_shapes[k], test_seed + k);
        for (int m = 0; m < 4; m++) check_mask(&d, methods[m]);
        drop(&d);
    }
}

// One mask of few blocks, for compute-sanitizer's racecheck, which needs minutes for the cases above. 320 tiles are more than
// two for each multiprocessor of today's GPUs, so a thread block computes two tiles: of one task, or of two tasks.
static void check_races(const shape *z, const char *method) {
    sl_attn_spec spec;
    CHECK_OK(sl_attn_parse(method, &spec, &err), err);
    on_gpu d = new_on_gpu(z, test_seed);
    segment_mask(&d.s, method);
    propose(&d, &spec);
    uint64_t *bits = read_bits(&d);
    if (memcmp(bits, d.s.mask.bits, sl_mask_bytes(&d.mask))) compare_bits(&d, method, bits);
    compare_kept(&d, method);
    free(bits);
    drop(&d);
}

static void races_sample(void) { // 4 chunks of 32 heads with 1 to 4 key blocks
    check_races(&(shape){32, 4, 64, 100, 410}, "sample:chunk_n=4:alpha_c=0.6:alpha_s=0.4");
}
static void races_vertical_slash(void) { // 10 key blocks for each of 32 heads, and lists longer than a thread block
    check_races(&(shape){32, 4, 64, 50, 1200}, "vertical-slash:columns=40:slashes=20");
}
// All scores are 0, so many sums are equal: the lower index comes first.
static void ties(void) {
    static const char *const methods[] = {"sample:alpha_c=0.4:alpha_s=0", "sample:alpha_c=0:alpha_s=0.6",
                                          "vertical-slash:columns=301:slashes=0", "vertical-slash:columns=0:slashes=301",
                                          "vertical-slash"};
    segment s = segment_new(2, 1, 64, 10, 1000, test_seed);
    memset(s.q, 0, sizeof *s.q * 1000 * 2 * 64);
    on_gpu d = copy_segment(s);
    for (int m = 0; m < 5; m++) check_mask(&d, methods[m]);
    drop(&d);
}

// Key blocks with one score of 0 and scores of -1, -2, .. units: every distance with a mass above 0, so every result of ex2
// that can differ from the integers of the CPU. A difference of one unit in a block's mass moves the kept share.
static void distances(void) {
    static const char *const methods[] = {"sample:alpha_c=0.15:alpha_s=0", "sample:alpha_c=0.4:alpha_s=0",
                                          "sample:alpha_c=0.6:alpha_s=0", "sample:alpha_c=0.8:alpha_s=0",
                                          "sample:alpha_c=0.95:alpha_s=0"};
    segment s = segment_new(1, 1, 64, 0, 1280, test_seed);
    memset(s.q, 0, sizeof *s.q * 1280 * 64);
    for (int j = 0; j < 1280; j++) {
        bf16 *key = (bf16 *)ref_k_row(&s.c, 0, 0, j);
        float dot = j % 128 ? (float)(j / 128 + 1 - j) / 64 / sl_score_scale(64) : 0;
        key[0] = sl_f32_to_bf16(dot), key[1] = sl_f32_to_bf16((dot - sl_bf16_to_f32(key[0])) * 256);
        s.q[(size_t)j * 64] = 1, s.q[(size_t)j * 64 + 1] = 1.0f / 256;
    }
    on_gpu d = copy_segment(s);
    for (int m = 0; m < 5; m++) check_mask(&d, methods[m]);
    drop(&d);
}

// A NaN in a key that the sampled queries see, an infinite score, and a row whose scores are all far below 0: the mask has
// every block. A single score far below 0 has no mass.
static void no_sums(void) {
    static const char *const methods[] = {"vertical-slash", "sample:chunk_n=2", "sample:chunk_n=2:alpha_c=0.3:alpha_s=0.1"};
    static const struct {
        bf16 value;
        int first, n, is_full;
    } keys[] = {{0x7fc0, 333, 1, 1}, {0x7f00, 333, 1, 1}, {0xff00, 0, 700, 1}, {0xff00, 333, 1, 0}, {0xc900, 128, 60, 0}};
    for (int k = 0; k < 5; k++) {
        segment s = segment_new(4, 2, 64, 100, 600, test_seed);
        for (int i = 0; i < 600 * 4; i++) s.q[(size_t)i * 64 + 5] = 3;
        for (int j = 0; j < keys[k].n; j++) ((bf16 *)ref_k_row(&s.c, 0, 1, keys[k].first + j))[5] = keys[k].value;
        on_gpu d = copy_segment(s);
        for (int m = 0; m < 3; m++) check_mask(&d, methods[m]);
        CHECK((sl_mask_count(&d.s.mask, 2) == sl_mask_causal(&d.s.mask)) == keys[k].is_full);
        drop(&d);
    }
}

// ---- attention with a mask ----

typedef void (*prefill_fn)(const sl_attn_cuda_prefill_args *args);
static const prefill_fn kernels[] = {sl_cuda_dense_prefill, sl_cuda_dense_prefill_mma};

static void random_mask(on_gpu *d, double density, uint64_t seed) {
    const sl_prefill_mask *m = &d->s.mask;
    memset(m->bits, 0, sl_mask_bytes(m));
    for (int head = 0; head < m->n_heads; head++)
        for (int i = m->first; i < m->first + m->n; i++)
            for (int j = 0; j <= i; j++)
                if (j == 0 || j == i || test_uniform(&seed) < density) sl_mask_set(sl_mask_row(m, head, i), j);
    d->mask.bits = gpu_copy(m->bits, sl_mask_bytes(m));
}

// The output from malloc: [n_tokens][n_heads][head_dim]. Checks sentinels around it, and after the workspace.
static bf16 *attend(on_gpu *d, prefill_fn kernel, int masked, int step) { // calls of `step` tokens
    const sl_attn_geom *g = &d->s.c.geom;
    size_t row = (size_t)g->n_heads * g->head_dim, n = d->s.n_tokens * row, ws_size = sl_cuda_query_blocks_workspace(g, step);
    bf16 *out = gpu_new((n + 2 * GUARD) * sizeof *out), *host = malloc((n + 2 * GUARD) * sizeof *host), after_ws[GUARD];
    char *ws = gpu_new(ws_size + sizeof after_ws);
    for (int i = 0; i < d->s.n_tokens; i += step) {
        sl_attn_cuda_prefill_args args = {.geom = g,
                                          .n_tokens = d->s.n_tokens - i < step ? d->s.n_tokens - i : step,
                                          .first = d->s.base + i,
                                          .n_pages = d->s.c.pool.n_pages,
                                          .q = d->q + i * d->q_stride,
                                          .q_stride = d->q_stride,
                                          .out = out + GUARD + i * row,
                                          .k = d->k,
                                          .v = d->v,
                                          .pages = d->pages,
                                          .ws = ws,
                                          .mask = masked ? &d->mask : NULL,
                                          .stats = d->stats};
        kernel(&args);
    }
    gpu_read(host, out, (n + 2 * GUARD) * sizeof *host);
    gpu_read(after_ws, ws + ws_size, sizeof after_ws);
    for (int i = 0; i < GUARD; i++) CHECK(host[i] == 0xFFFF && host[GUARD + n + i] == 0xFFFF && after_ws[i] == 0xFFFF);
    memmove(host, host + GUARD, n * sizeof *host);
    return host;
}

// As in test_cuda_prefill.c.
static const double TOLERANCE = 0x1p-7;

static double row_error(const on_gpu *d, int token, int head, const bf16 *out) {
    const sl_attn_geom *g = &d->s.c.geom;
    const uint64_t *blocks = sl_mask_row(&d->s.mask, head, (d->s.base + token) / SL_MASK_BLOCK);
    naive_cache cache = {d->s.c.pool.k, d->s.c.pool.v, d->s.c.seqs[0].pages, g->n_heads, g->n_kv_heads, g->head_dim};
    double mu[128];
    float got[128];
    for (int i = 0; i < g->head_dim; i++) {
        mu[i] = naive_masked_prefill(cache, d->q_on_cpu, d->q_stride, d->s.base, token, head, blocks, i);
        got[i] = sl_bf16_to_f32(out[i]);
    }
    return ref_relative(got, mu, g->head_dim);
}

static void masked_attention(void) {
    for (int k = 0; k < N_SHAPES; k++) {
        on_gpu d = new_on_gpu(&shapes[k], test_seed + k);
        int heads = d.s.c.geom.n_heads, dim = d.s.c.geom.head_dim;
        random_mask(&d, 0.4, test_seed + 77);
        for (int i = 0; i < 2; i++) {
            bf16 *out = attend(&d, kernels[i], 1, d.s.n_tokens);
            for (int token = 0; token < d.s.n_tokens; token += token < 3 || token > d.s.n_tokens - 4 ? 1 : 37)
                for (int head = 0; head < heads; head++) {
                    double error = row_error(&d, token, head, out + ((size_t)token * heads + head) * dim);
                    if (!(error <= TOLERANCE))
                        FAIL("kernel %d, %d + %d tokens, token %d, head %d: relative error %.3g", i, d.s.base, d.s.n_tokens,
                             token, head, error);
                }
            free(out);
        }
        drop(&d);
    }
}

static void check_equal(const on_gpu *d, const bf16 *want, bf16 *got, const char *what, int kernel, int step) {
    size_t n = (size_t)d->s.n_tokens * d->s.c.geom.n_heads * d->s.c.geom.head_dim;
    for (size_t i = 0; i < n; i++)
        if (want[i] != got[i])
            FAIL("kernel %d, %d + %d tokens, %s, calls of %d tokens: element %zu is %04x, expected %04x", kernel, d->s.base,
                 d->s.n_tokens, what, step, i, got[i], want[i]);
    free(got);
}

static void full_mask(void) { // the bits of dense attention
    for (int k = 0; k < N_SHAPES; k++) {
        on_gpu d = new_on_gpu(&shapes[k], test_seed + k);
        random_mask(&d, 1, 0);
        for (int i = 0; i < 2; i++) {
            bf16 *want = attend(&d, kernels[i], 0, d.s.n_tokens);
            check_equal(&d, want, attend(&d, kernels[i], 1, d.s.n_tokens), "full mask", i, d.s.n_tokens);
            free(want);
        }
        drop(&d);
    }
}

static void splits(void) {
    static const int steps[] = {1 << 20, 1 << 20, 1, 100, 128, 129, 300}; // the first step again: equal calls, equal bits
    for (int k = 0; k < N_SHAPES; k++) {
        on_gpu d = new_on_gpu(&shapes[k], test_seed + k);
        random_mask(&d, 0.5, test_seed + k);
        for (int i = 0; i < 2; i++) {
            bf16 *want = attend(&d, kernels[i], 1, d.s.n_tokens);
            for (int s = 0; s < 7; s++) {
                int step = steps[s] < d.s.n_tokens ? steps[s] : d.s.n_tokens;
                check_equal(&d, want, attend(&d, kernels[i], 1, step), "mask", i, step);
            }
            free(want);
        }
        drop(&d);
    }
}

// The second segment has 64 x 56 pairs of a head and a query block, more than cub sorts in the shared memory of one thread
// block (2,304 keys of 8 bytes). So the sort needs a part of the workspace.
static void counts(void) {
    static const shape both[] = {{4, 2, 64, 200, 700}, {64, 8, 64, 0, 7100}};
    for (int k = 0; k < 2; k++) {
        sl_attn_cuda_prefill_stats stats[64];
        on_gpu d = new_on_gpu(&both[k], test_seed);
        random_mask(&d, 0.3, test_seed);
        free(attend(&d, kernels[0], 1, d.s.n_tokens));
        gpu_read(stats, d.stats, both[k].heads * sizeof *stats);
        for (int head = 0; head < both[k].heads; head++) CHECK_INT(stats[head].visited, sl_mask_count(&d.s.mask, head));
        drop(&d);
    }
}

// Two sequences of other lengths share the first page, and the kernels run them one after the other. Each has the bits of a
// sequence alone, whose rows lie in other pages.
static void shared_prefixes(void) {
    static const shape both[] = {{4, 2, 64, 300, 400}, {4, 2, 64, 300, 213}};
    for (int i = 0; i < 2; i++) {
        on_gpu d[2] = {new_on_gpu(&both[0], test_seed)};
        segment_make_uneven(&d[0].s);
        // The second sequence has the first rows of the first one, up to its own length.
        d[1] = d[0], d[1].s.n_tokens = both[1].n;
        int n_pages = (both[0].base + both[0].n + SL_PAGE - 1) / SL_PAGE, n_pool = d[0].s.c.pool.n_pages;
        int32_t tables[2][8];
        size_t page = (size_t)d[0].s.c.geom.n_kv_heads * SL_PAGE * d[0].s.c.geom.head_dim;
        bf16 *pool[2];
        for (int kv = 0; kv < 2; kv++) { // the pool twice: the second half has the pages of the second sequence
            const bf16 *from = kv ? d[0].s.c.pool.v : d[0].s.c.pool.k;
            bf16 *all = malloc(2 * n_pool * page * sizeof *all);
            memcpy(all, from, n_pool * page * sizeof *all), memcpy(all + n_pool * page, from, n_pool * page * sizeof *all);
            pool[kv] = gpu_copy(all, 2 * n_pool * page * sizeof *all);
            free(all);
        }
        for (int p = 0; p < n_pages; p++) {
            tables[0][p] = d[0].s.c.seqs[0].pages[p];
            tables[1][p] = tables[0][p] + (p > 0 ? n_pool : 0);
        }
        random_mask(&d[0], 0.4, test_seed + 5);
        d[1].mask = sl_mask_of(4, both[1].n, both[1].base + both[1].n);
        d[1].s.mask = d[1].mask, d[1].s.mask.bits = malloc(sl_mask_bytes(&d[1].mask));
        for (int head = 0; head < 4; head++)
            for (int b = d[1].mask.first; b < d[1].mask.first + d[1].mask.n; b++)
                memcpy(sl_mask_row(&d[1].s.mask, head, b), sl_mask_row(&d[0].s.mask, head, b),
                       d[1].mask.n_words * sizeof(uint64_t));
        d[1].mask.bits = gpu_copy(d[1].s.mask.bits, sl_mask_bytes(&d[1].mask));
        for (int k = 0; k < 2; k++) {
            int n = d[k].s.n_tokens;
            d[k].k = gpu_copy(d[0].s.c.pool.k, n_pool * page * sizeof(bf16)), d[k].v = d[0].v;
            bf16 *want = attend(&d[k], kernels[i], 1, n);
            d[k].k = pool[0], d[k].v = pool[1], d[k].s.c.pool.n_pages = 2 * n_pool;
            d[k].pages = gpu_copy(tables[k], n_pages * sizeof(int32_t));
            check_equal(&d[k], want, attend(&d[k], kernels[i], 1, n), "shared page", i, n);
            d[k].s.c.pool.n_pages = n_pool;
            free(want);
        }
        free(d[1].s.mask.bits);
        drop(&d[0]);
    }
}

#endif

static const test_case cases[] = {
    GPU_CASE("sample", sample),
    GPU_CASE("vertical-slash", vertical_slash),
    GPU_CASE("streaming", streaming),
    GPU_CASE("long-segments", long_segments),
    GPU_CASE("races-sample", races_sample),
    GPU_CASE("races-vertical-slash", races_vertical_slash),
    GPU_CASE("ties", ties),
    GPU_CASE("distances", distances),
    GPU_CASE("no-sums", no_sums),
    GPU_CASE("masked-attention", masked_attention),
    GPU_CASE("full-mask", full_mask),
    GPU_CASE("splits", splits),
    GPU_CASE("counts", counts),
    GPU_CASE("shared-prefixes", shared_prefixes),
    {0},
};
const test_suite suite_cuda_masks = {"cuda_masks", cases};
