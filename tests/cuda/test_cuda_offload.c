// tests/cuda/test_cuda_offload.c - K and V in host memory. Kernels that fetch rows give the bits of those that read rows on the
// GPU; so do whole models, through prefills, steps, page borders, batches, forks, cuts and files of sessions. Errors come
// before any allocation.
#include "tests/support/gpu.h"

#ifdef SLEIGH_CUDA
#include "backend/cuda/kv_pages.h"
#include "engine/engine.h"
#include "tests/support/decode_check.h"
#include "tests/support/models.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static sl_error err;

// ---- copies between pages and rows ----

// Page-locked memory of one case, freed by free_pinned.
enum { MOST_PINNED = 8 };
static void *pinned[MOST_PINNED];
static int n_pinned;

static void *new_pinned(size_t size) {
    CHECK(n_pinned < MOST_PINNED && cudaHostAlloc(&pinned[n_pinned], size, cudaHostAllocMapped) == cudaSuccess);
    memset(pinned[n_pinned], 0xFF, size);
    return pinned[n_pinned++];
}

static void free_pinned(void) {
    cudaDeviceSynchronize();
    while (n_pinned > 0) CHECK(cudaFreeHost(pinned[--n_pinned]) == cudaSuccess);
}

// Moves pages on the GPU and on the CPU, and compares all memory.
static void check_moves(int n_layers, int n_kv_heads, int dim, int n, int to_host, int aside) {
    enum { AT = 140, PAGES = 150 };
    size_t page = (size_t)n_kv_heads * SL_PAGE * dim, ordinary = n_layers * AT * page, rows = 2 * n_layers * PAGES * page;
    bf16 *k = malloc(ordinary * sizeof *k), *v = malloc(ordinary * sizeof *v),
         *offloaded = new_pinned(rows * sizeof *offloaded);
    bf16 *want_rows = malloc(rows * sizeof *want_rows), *got = malloc(ordinary * sizeof *got);
    for (size_t i = 0; i < ordinary; i++) k[i] = (bf16)(i * 7919 + 1), v[i] = (bf16)(i * 104729 + 2);
    for (size_t i = 0; i < rows; i++) offloaded[i] = want_rows[i] = (bf16)(i * 1299709 + 3);
    bf16 *gpu_k = gpu_copy(k, ordinary * sizeof *k), *gpu_v = gpu_copy(v, ordinary * sizeof *v);
    sl_page_move m = {.n = n,
                      .n_layers = n_layers,
                      .n_kv_heads = n_kv_heads,
                      .head_dim = dim,
                      .page_rows = SL_PAGE,
                      .to_host = to_host,
                      .aside = aside,
                      .k = gpu_k,
                      .v = gpu_v,
                      .rows = offloaded,
                      .k_layer = AT * page,
                      .rows_layer = 2 * PAGES * page};
    for (int i = 0; i < n; i++) m.at[i] = (i * 3 + 1) % AT, m.page[i] = (PAGES - 1 - i * 7 % PAGES + PAGES) % PAGES;
    sl_cuda_move_pages(&m, 0);
    gpu_sync("moves");
    m.k = k, m.v = v, m.rows = want_rows;
    sl_cpu_memory()->move_pages(sl_cpu_memory(), &m);
    for (size_t i = 0; i < rows; i++)
        if (offloaded[i] != want_rows[i])
            FAIL("head_dim %d: element %zu of the rows is %04x, expected %04x", dim, i, offloaded[i], want_rows[i]);
    for (int is_v = 0; is_v < 2; is_v++) {
        gpu_read(got, is_v ? gpu_v : gpu_k, ordinary * sizeof *got);
        for (size_t i = 0; i < ordinary; i++)
            if (got[i] != (is_v ? v : k)[i]) FAIL("head_dim %d: element %zu of %s", dim, i, is_v ? "V" : "K");
    }
    free(k), free(v), free(want_rows), free(got);
    gpu_free_all();
    free_pinned();
}

static void moves(void) {
    static const int dims[] = {64, 80, 96, 128};
    for (int i = 0; i < 4; i++)
        for (int to_host = 0; to_host < 2; to_host++) {
            check_moves(2, 1, dims[i], 3, to_host, 0);
            check_moves(1, 2, dims[i], SL_MOVE_MOST, to_host, 0);
            check_moves(1, 2, dims[i], 57, to_host, 1);
        }
}

// ---- kernels ----

// A fixture's cache on the host: the rows of all pages, and a frame of each sequence. Memory that no kernel may read is NaN.
typedef struct host_cache {
    bf16 *rows;
    sl_attn_cuda_decode_args args;
    sl_row offloaded_rows[FIXTURE_SEQS];
    bf16 *out;
} host_cache;

static host_cache host_cache_of(const decode_fixture *r) {
    const ref_cache *c = r->c;
    const sl_attn_geom *g = &c->geom;
    const sl_attn_cuda_ops *ops = r->spec.method->cuda->offloaded;
    CHECK(ops && sl_attn_on_offloaded_rows(&r->spec));
    size_t page = (size_t)g->n_kv_heads * SL_PAGE * g->head_dim, n_out = (size_t)c->n_seqs * g->n_heads * g->head_dim;
    host_cache h = {.rows = new_pinned(2 * page * c->pool.n_pages * sizeof(bf16)), .args = r->args};
    h.args.k = gpu_new(page * c->n_seqs * sizeof(bf16)), h.args.v = gpu_new(page * c->n_seqs * sizeof(bf16));
    h.args.offloaded_rows = h.rows;
    h.args.out = gpu_new(n_out * sizeof(bf16));
    h.args.ws = gpu_zero(ops->workspace(r->args.geom, &r->spec, c->n_seqs, 1, r->max_kv));
    h.args.stats = gpu_zero(sizeof(sl_attn_cuda_stats));
    h.args.rows = gpu_new(sizeof h.offloaded_rows);
    h.out = malloc(n_out * sizeof(bf16));
    return h;
}

// Copies a page to the frame of a sequence, and to host memory all pages before it. The other rows of the host become NaN.
static void place(host_cache *h, const decode_fixture *r) {
    const ref_cache *c = r->c;
    const sl_attn_geom *g = &c->geom;
    int dim = g->head_dim;
    size_t block = (size_t)SL_PAGE * dim, page = g->n_kv_heads * block;
    memset(h->rows, 0xFF, 2 * page * c->pool.n_pages * sizeof(bf16));
    for (int s = 0; s < c->n_seqs; s++) {
        const int32_t *pages = c->seqs[s].pages;
        int newest = r->rows[s].position / SL_PAGE;
        for (int i = 0; i < newest; i++)
            for (size_t j = 0; j < (size_t)g->n_kv_heads * SL_PAGE; j++) {
                bf16 *to = h->rows + (pages[i] * (size_t)g->n_kv_heads * SL_PAGE + j) * 2 * dim;
                memcpy(to, c->pool.k + pages[i] * page + j * dim, dim * sizeof(bf16));
                memcpy(to + dim, c->pool.v + pages[i] * page + j * dim, dim * sizeof(bf16));
            }
        CHECK(!cudaMemcpy((bf16 *)h->args.k + s * page, c->pool.k + pages[newest] * page, page * sizeof(bf16),
                          cudaMemcpyHostToDevice));
        CHECK(!cudaMemcpy((bf16 *)h->args.v + s * page, c->pool.v + pages[newest] * page, page * sizeof(bf16),
                          cudaMemcpyHostToDevice));
        int32_t *table = malloc((newest + 1) * sizeof *table);
        memcpy(table, pages, newest * sizeof *table);
        table[newest] = s; // the frame
        h->offloaded_rows[s] = r->rows[s];
        h->offloaded_rows[s].pages = gpu_copy(table, (newest + 1) * sizeof *table);
        free(table);
    }
    CHECK(!cudaMemcpy((void *)h->args.rows, h->offloaded_rows, sizeof h->offloaded_rows, cudaMemcpyHostToDevice));
}

// Decodes n_steps steps with rows on the GPU and with rows on the host, and compares outputs and counts.
static void check_decode(ref_cache *c, const char *attn, int n_steps, int least_kv) {
    decode_fixture r = fixture_new_for(c, attn, 17, least_kv);
    host_cache h = host_cache_of(&r);
    size_t n = (size_t)c->n_seqs * c->geom.n_heads * c->geom.head_dim;
    bf16 *want = malloc(n_steps * n * sizeof *want);
    sl_attn_cuda_stats on_gpu, offloaded;
    CHECK(!cudaMemset(r.args.stats, 0, sizeof on_gpu));
    for (int i = 0; i < n_steps; i++) {
        fixture_go_back(&r, n_steps - 1 - i);
        fixture_decode(&r);
        memcpy(want + i * n, r.out, n * sizeof *want);
    }
    gpu_read(&on_gpu, r.args.stats, sizeof on_gpu);
    fixture_seed(&r, 17); // clears the state
    for (int i = 0; i < n_steps; i++) {
        fixture_go_back(&r, n_steps - 1 - i);
        place(&h, &r);
        h.args.spec = &r.spec;
        r.spec.method->cuda->offloaded->decode(&h.args);
        sl_cuda_end_step(&h.args, 1, 0);
        gpu_read(h.out, h.args.out, n * sizeof *h.out);
        gpu_sync("decode with rows on the host");
        for (size_t j = 0; j < n; j++)
            if (h.out[j] != want[i * n + j])
                FAIL("%s, step %d, head %zu, column %zu: %.9g, expected %.9g", attn, i, j / c->geom.head_dim,
                     j % c->geom.head_dim, sl_bf16_to_f32(h.out[j]), sl_bf16_to_f32(want[i * n + j]));
    }
    gpu_read(&offloaded, h.args.stats, sizeof offloaded);
    CHECK(offloaded.v_rows == on_gpu.v_rows && offloaded.k_rows == on_gpu.k_rows && offloaded.samples == on_gpu.samples);
    CHECK(offloaded.stated == on_gpu.stated && offloaded.certified == on_gpu.certified);
    CHECK(offloaded.bytes == on_gpu.bytes && on_gpu.fetched == 0 && on_gpu.hits == 0);
    if (c->seqs[0].n_tokens > 600) CHECK(offloaded.fetched + offloaded.hits > 0);
    int *counters = malloc(SL_CUDA_COUNTERS * sizeof *counters);
    gpu_read(counters, h.args.ws, SL_CUDA_COUNTERS * sizeof *counters);
    for (int i = 0; i < SL_CUDA_COUNTERS; i++) CHECK_INT(counters[i], 0);
    free(counters), free(want), free(h.out);
    fixture_free(&r);
    free_pinned();
}

static const char *const draws[] = {"santa-is:S=64", "santa-is:S=700", "santa-is:S=64:proposal=int3",
                                    "santa-is:proposal=int8:epsilon=0.3"};
enum { N_DRAWS = sizeof draws / sizeof *draws };

static void lengths(void) {
    static const int all[] = {1, 255, 256, 257, 258, 513, 1000, 8192, 32769};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        ref_cache c = ref_cache_new(8, 2, 128, 1, &all[i], i % 3 * 2, test_seed);
        ref_add_to_values(&c, 1); // without a mean, a stated error needs every row
        for (int k = 0; k < N_DRAWS; k++) check_decode(&c, draws[k], all[i] > 2 ? 3 : 1, 0);
        ref_cache_free(&c);
    }
}

static void shapes(void) {
    static const int dims[] = {64, 80, 96, 128}, lengths[] = {700, 1, 2049};
    for (int d = 0; d < 4; d++)
        for (int group = 1; group <= 8; group += group < 4 ? 1 : 4) {
            ref_cache c = ref_cache_new(2 * group, 2, dims[d], 3, lengths, 2, test_seed);
            for (int k = 0; k < N_DRAWS; k++) check_decode(&c, draws[k], 1, 0);
            ref_cache_free(&c);
        }
}

static void ragged_batch(void) {
    ref_cache c = ref_cache_new(8, 2, 128, FIXTURE_SEQS, fixture_ragged, 3, test_seed);
    ref_add_to_values(&c, 1);
    for (int k = 0; k < N_DRAWS; k++) check_decode(&c, draws[k], 2, 0);
    ref_cache_free(&c);
}

// Methods that read lists of rows where they lie.
static void other_methods(void) {
    static const char *const attn[] = {
        "quest:tokens=64",           "quest:tokens=1024",          "vattention:epsilon=0.3:predictor=quest:base=0.02:top=0.02",
        "saap:l=3:sink=2:window=64", "saap-kmeans:l=2:window=300", "saap-is:l=2:S=32:proposal=cells:sink=1:window=128"};
    static const int lengths[] = {4800, 700, 257};
    for (size_t k = 0; k < sizeof attn / sizeof *attn; k++) {
        static const int dims[] = {64, 80, 96, 128};
        for (int d = 0; d < 4; d++) {
            ref_cache c = ref_cache_new(8, 2, dims[d], 3, lengths, 2, test_seed);
            ref_add_to_values(&c, 1);
            check_decode(&c, attn[k], 2, 0);
            ref_cache_free(&c);
        }
    }
    ref_cache c = ref_cache_new(8, 2, 128, FIXTURE_SEQS, fixture_ragged, 3, test_seed);
    ref_add_to_values(&c, 1);
    for (size_t k = 0; k < sizeof attn / sizeof *attn; k++) check_decode(&c, attn[k], 1, 0);
    ref_cache_free(&c);
}

// Scores beyond the range of stored masses: a head attends to every row, on the host and in the frame.
static void exact_heads(void) {
    static const int n = 1000;
    ref_cache c = ref_cache_new(4, 1, 128, 1, &n, 1, test_seed);
    double square = 0;
    for (int d = 0; d < 128; d++) square += (double)c.q[d] * c.q[d];
    for (int j = 768; j < n; j += 5)
        for (int d = 0; d < 128; d++)
            ((bf16 *)ref_k_row(&c, 0, 0, j))[d] = sl_f32_to_bf16((float)(c.q[d] / square * sqrt(128) * 1.4427 * 4000));
    check_decode(&c, "santa-is:S=64:budget=even", 1, 0);
    check_decode(&c, "santa-is:proposal=int8:epsilon=0.3", 1, 0);
    check_decode(&c, "quest:tokens=512", 1, 0); // more rows than the newest page has
    ref_cache_free(&c);
}

static void long_contexts(void) {
    static const int n[] = {SL_CUDA_SHORT_ROWS + 1, 700};
    ref_cache c = ref_cache_new(4, 2, 64, 2, n, 2, test_seed);
    ref_add_to_values(&c, 1);
    for (int k = 0; k < N_DRAWS; k++) check_decode(&c, draws[k], 2, 0);
    ref_cache_free(&c);
    static const int few = 3000;
    ref_cache d = ref_cache_new(8, 2, 128, 1, &few, 3, test_seed);
    ref_add_to_values(&d, 1);
    for (int k = 0; k < N_DRAWS; k++) check_decode(&d, draws[k], 2, SL_CUDA_SHORT_ROWS + 1);
    ref_cache_free(&d);
}

// ---- the cache of hot rows ----

// Gives the cache on the host a cache of hot rows with n_sets sets for each KV head.
static void add_hot(host_cache *h, const decode_fixture *r, int n_sets) {
    const sl_attn_geom *g = &r->c->geom;
    size_t sets = (size_t)g->n_kv_heads * n_sets, ways = sets * SL_KV_HOT_WAYS;
    uint32_t *versions = malloc(r->c->pool.n_pages * sizeof *versions);
    for (int i = 0; i < r->c->pool.n_pages; i++) versions[i] = 1000u + i;
    h->args.hot = (sl_kv_hot_rows){.n_sets = n_sets,
                                   .imposed = -1,
                                   .tags = gpu_zero(ways * sizeof(uint64_t)),
                                   .order = gpu_zero(sets * sizeof(uint32_t)),
                                   .rows = gpu_new(ways * 2 * g->head_dim * sizeof(bf16)),
                                   .versions = gpu_copy(versions, r->c->pool.n_pages * sizeof *versions)};
    free(versions);
}

// Checks that every way of the cache is a copy of the row of its tag, and that no set has a row twice. Returns the rows.
static int check_hot(const host_cache *h, const decode_fixture *r) {
    const sl_attn_geom *g = &r->c->geom;
    const sl_kv_hot_rows *hot = &h->args.hot;
    int dim = g->head_dim, n = 0;
    size_t ways = (size_t)g->n_kv_heads * hot->n_sets * SL_KV_HOT_WAYS;
    uint64_t *tags = malloc(ways * sizeof *tags);
    bf16 *rows = malloc(ways * 2 * dim * sizeof *rows);
    gpu_read(tags, hot->tags, ways * sizeof *tags);
    gpu_read(rows, hot->rows, ways * 2 * dim * sizeof *rows);
    for (size_t i = 0; i < ways; i++) {
        if (!tags[i]) continue;
        uint32_t at = (uint32_t)tags[i], page = at / SL_PAGE, head = (uint32_t)(i / ((size_t)hot->n_sets * SL_KV_HOT_WAYS));
        CHECK((int)page < r->c->pool.n_pages);
        const bf16 *want = h->rows + (((size_t)page * g->n_kv_heads + head) * SL_PAGE + at % SL_PAGE) * 2 * dim;
        CHECK(!memcmp(rows + i * 2 * dim, want, 2 * dim * sizeof *rows));
        for (size_t j = i / SL_KV_HOT_WAYS * SL_KV_HOT_WAYS; j < i; j++) CHECK(tags[j] != tags[i]);
        n++;
    }
    free(tags), free(rows);
    return n;
}

// One step on the host. Checks its output. Sets *fetched and *hits.
static void hot_step(host_cache *h, decode_fixture *r, const char *what, unsigned long long *fetched,
                     unsigned long long *hits) {
    size_t n = (size_t)r->c->n_seqs * r->c->geom.n_heads * r->c->geom.head_dim;
    sl_attn_cuda_stats stats;
    CHECK(!cudaMemset(h->args.stats, 0, sizeof stats));
    h->args.spec = &r->spec;
    r->spec.method->cuda->offloaded->decode(&h->args);
    gpu_read(h->out, h->args.out, n * sizeof *h->out);
    gpu_sync(what);
    for (size_t j = 0; j < n; j++)
        if (h->out[j] != r->out[j]) FAIL("%s: element %zu is %04x, expected %04x", what, j, h->out[j], r->out[j]);
    gpu_read(&stats, h->args.stats, sizeof stats);
    *fetched = stats.fetched, *hits = stats.hits;
}

// The same draws again and again. With many sets, all rows are found from the second step on, until the pages change.
static void check_hot_rows(int n_heads, int n_kv_heads, int dim, int n_sets, const char *attn) {
    static const int lengths[] = {5000, 900, 2300};
    ref_cache c = ref_cache_new(n_heads, n_kv_heads, dim, 3, lengths, 2, test_seed);
    decode_fixture r = fixture_new(&c, attn, 17);
    host_cache h = host_cache_of(&r);
    unsigned long long fetched, hits, all, n_pages = c.pool.n_pages;
    fixture_decode(&r);
    place(&h, &r);
    add_hot(&h, &r, n_sets);
    hot_step(&h, &r, "an empty cache", &all, &hits);
    CHECK(all > 0 && hits == 0);
    int n = check_hot(&h, &r);
    CHECK(n > 0 && n <= (int)all);
    hot_step(&h, &r, "the same step again", &fetched, &hits);
    CHECK_INT(fetched + hits, all);
    if (n_sets > 10000)
        CHECK(hits > all * 3 / 4); // only the last turn of a list is kept; a head with many heavy rows has more
    else
        CHECK(hits > 0 || n_sets == 1);
    CHECK_INT(check_hot(&h, &r) >= n, 1);
    uint32_t *versions = malloc(n_pages * sizeof *versions);
    for (unsigned long long i = 0; i < n_pages; i++) versions[i] = 5000u + (uint32_t)i;
    CHECK(!cudaMemcpy((void *)h.args.hot.versions, versions, n_pages * sizeof *versions, cudaMemcpyHostToDevice));
    hot_step(&h, &r, "pages that were written again", &fetched, &hits);
    CHECK_INT(hits, 0);
    CHECK_INT(fetched, all);
    h.args.hot.imposed = 1 << 16; // for benches: every row counts as found
    gpu_sync("imposed hits");
    sl_attn_cuda_stats stats;
    CHECK(!cudaMemset(h.args.stats, 0, sizeof stats));
    r.spec.method->cuda->offloaded->decode(&h.args);
    gpu_read(&stats, h.args.stats, sizeof stats);
    CHECK(stats.hits == all && stats.fetched == 0);
    free(versions), free(h.out);
    fixture_free(&r);
    ref_cache_free(&c);
    free_pinned();
}

// The same for a step of a stated error. It searches, because fixture_seed clears its state.
static void check_hot_stated(int n_heads, int n_kv_heads, int dim) {
    static const int lengths[] = {5000, 900, 2300};
    ref_cache c = ref_cache_new(n_heads, n_kv_heads, dim, 3, lengths, 2, test_seed);
    ref_add_to_values(&c, 1); // without a mean, a stated error needs every row
    decode_fixture r = fixture_new(&c, "santa-is:proposal=int8:epsilon=0.3", 17);
    host_cache h = host_cache_of(&r);
    unsigned long long fetched, hits;
    fixture_decode(&r);
    place(&h, &r);
    add_hot(&h, &r, 20000);
    fixture_seed(&r, 17);
    hot_step(&h, &r, "a stated error and an empty cache", &fetched, &hits);
    CHECK(fetched > 0 && hits == 0);
    CHECK(check_hot(&h, &r) > 0);
    fixture_seed(&r, 17);
    hot_step(&h, &r, "the same step of a stated error again", &fetched, &hits);
    CHECK(hits > 0);
    free(h.out);
    fixture_free(&r);
    ref_cache_free(&c);
    free_pinned();
}

static void hot_rows(void) {
    static const int sets[] = {1, 7, 64, 20000};
    for (int i = 0; i < 4; i++) {
        check_hot_rows(8, 2, 128, sets[i], "santa-is:S=256:budget=even");
        check_hot_rows(4, 4, 64, sets[i], "santa-is:S=100:budget=even");
        check_hot_rows(6, 2, 80, sets[i], "santa-is:S=64:budget=even");
        check_hot_rows(8, 1, 96, sets[i], "santa-is:S=32:proposal=int8:budget=even");
    }
    check_hot_stated(8, 2, 128);
    check_hot_stated(4, 4, 64);
}

// ---- models ----

enum { N_CTX = 1300, BATCH = 3 };

// The first layer decodes with quest, because it is dense with saap.
static model_fixture open_at(const char *place, const char *attn, int chunk) {
    const sl_engine_options o = {
        .n_ctx = N_CTX, .n_sequences = BATCH, .prefill_chunk = chunk, .device = "cuda", .kv_cache = place, .seed = 1};
    model_fixture r;
    sl_attn_plan plan;
    sl_attn_spec spec, first;
    CHECK_OK(sl_model_load("models/tiny", &(sl_model_options){.flags = SL_MODEL_NO_TOKENIZER}, &r.model, &err), err);
    CHECK_OK(sl_attn_parse(attn, &spec, &err), err);
    CHECK_OK(sl_attn_parse("quest:tokens=64", &first, &err), err);
    CHECK_OK(sl_attn_plan_init(&plan, sl_model_config(r.model)->n_layers, &spec, &err), err);
    if (sl_attn_has(&spec, "dense-layers")) plan.layer[0] = first;
    CHECK_OK(sl_engine_new_planned(r.model, &o, &plan, &r.engine, &err), err);
    sl_attn_plan_free(&plan);
    r.n_vocab = sl_model_n_vocab(r.model);
    return r;
}

static void check_bits(const float *got, const float *want, int n, const char *what) {
    for (int i = 0; i < n; i++)
        if (memcmp(got + i, want + i, sizeof *got)) FAIL("%s: logit %d is %.9g, expected %.9g", what, i, got[i], want[i]);
}

static void compare_logits(sl_session *const s[2], int n_vocab, const char *what) {
    check_bits(sl_session_logits(s[1], NULL), sl_session_logits(s[0], NULL), n_vocab, what);
}

static int32_t fed(int i, int step) {
    return (int32_t)((i * 131 + step * 17 + 7) % 1000);
}

// The same calls on an engine with the cache on the GPU (0) and on the host (1).
static void check_model(const char *attn, int gpu_chunk, int host_chunk) {
    model_fixture m[2] = {open_at("gpu", attn, gpu_chunk), open_at("host", attn, host_chunk)};
    int n_vocab = m[0].n_vocab;
    static const int lengths[BATCH] = {250, 511, 900};
    sl_session *s[2][BATCH];
    for (int i = 0; i < BATCH; i++) {
        int32_t *ids = test_ids(lengths[i], n_vocab, test_seed + i);
        for (int k = 0; k < 2; k++) {
            s[k][i] = model_fixture_session(&m[k], i);
            CHECK_OK(sl_prefill(s[k][i], ids, lengths[i], NULL, &err), err);
        }
        compare_logits((sl_session *[]){s[0][i], s[1][i]}, n_vocab, "prefill");
        free(ids);
    }
    for (int step = 0; step < 40; step++) { // across borders of pages; alone at first, then in a batch
        int n = step < 10 ? 1 : BATCH;
        for (int k = 0; k < 2; k++) {
            int32_t ids[BATCH];
            for (int i = 0; i < BATCH; i++) ids[i] = fed(i, step);
            CHECK_OK(sl_decode(s[k], n, ids, &err), err);
        }
        for (int i = 0; i < n; i++) compare_logits((sl_session *[]){s[0][i], s[1][i]}, n_vocab, "step");
    }
    // Cut inside a page that lies on the host, and decode. Prefill more tokens. Fork inside a page, and at the end of a page.
    for (int turn = 0; turn < 3; turn++) {
        for (int k = 0; k < 2; k++) {
            sl_session *fork;
            if (turn == 0) CHECK_OK(sl_session_truncate(s[k][2], 400, &err), err);
            if (turn == 1) {
                int32_t *ids = test_ids(300, n_vocab, test_seed + 50);
                CHECK_OK(sl_prefill(s[k][2], ids, 300, NULL, &err), err);
                free(ids);
            }
            if (turn == 2) {
                CHECK_OK(sl_session_fork(s[k][2], 512, 7, &fork, &err), err);
                sl_session_free(s[k][1]);
                s[k][1] = fork;
                CHECK_OK(sl_session_fork(s[k][2], 333, 8, &fork, &err), err);
                sl_session_free(s[k][0]);
                s[k][0] = fork;
            }
            for (int step = 0; step < 20; step++) {
                int32_t ids[BATCH];
                for (int i = 0; i < BATCH; i++) ids[i] = fed(i, 100 * turn + step);
                CHECK_OK(sl_decode(s[k], BATCH, ids, &err), err);
            }
        }
        for (int i = 0; i < BATCH; i++)
            compare_logits((sl_session *[]){s[0][i], s[1][i]}, n_vocab,
                           turn == 0   ? "after a cut"
                           : turn == 1 ? "prefill on"
                                       : "forks");
    }
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < BATCH; i++) sl_session_free(s[k][i]);
        model_fixture_close(&m[k]);
    }
}

static void model_bits(void) {
    check_model("santa-is:S=16:budget=even", 0, 0);
    check_model("santa-is:proposal=int8:epsilon=0.3", 300, 128);
    check_model("quest:tokens=128", 0, 0);
    check_model("vattention:epsilon=0.3:predictor=quest", 0, 0);
    check_model("saap:l=8:window=64", 0, 128);
    check_model("saap-is:l=4:S=32:proposal=cells:window=64", 0, 0);
}

// Logits of every token of a prefill, in small chunks on the host.
typedef struct kept {
    float *data;
    int n_vocab;
} kept;
static int keep(void *ctx, int first, int n_rows, const float *logits, sl_error *e) {
    kept *k = ctx;
    (void)e;
    memcpy(k->data + (size_t)first * k->n_vocab, logits, (size_t)n_rows * k->n_vocab * sizeof *logits);
    return 0;
}

static void prefill_bits(void) {
    enum { N = 1100 };
    static const int chunks[] = {0, 256, 300, 17};
    float *want = NULL;
    for (int i = -1; i < 4; i++) {
        model_fixture m = open_at(i < 0 ? "gpu" : "host", "santa-is:S=16", i < 0 ? 0 : chunks[i]);
        int32_t *ids = test_ids(N, m.n_vocab, test_seed);
        kept k = {malloc((size_t)N * m.n_vocab * sizeof(float)), m.n_vocab};
        sl_session *s = model_fixture_session(&m, 0);
        CHECK_OK(sl_prefill_logits(s, ids, N, keep, &k, NULL, &err), err);
        if (i < 0)
            want = k.data;
        else {
            check_bits(k.data, want, N * m.n_vocab, "prefill in chunks");
            free(k.data);
        }
        sl_session_free(s);
        model_fixture_close(&m);
        free(ids);
    }
    free(want);
}

// More sessions than frames, in turns.
static void turns_bits(void) {
    enum { N = 7 };
    model_fixture m[2];
    float *want = NULL;
    for (int k = 0; k < 2; k++) {
        m[k] = model_fixture_load(
            "models/tiny", "santa-is:S=16",
            (sl_engine_options){.n_ctx = 4096, .n_sequences = 1, .device = "cuda", .kv_cache = k ? "host" : "gpu"});
        sl_session *s[N];
        int n_vocab = m[k].n_vocab;
        float *got = malloc((size_t)N * n_vocab * sizeof *got);
        for (int i = 0; i < N; i++) {
            int32_t *ids = test_ids(300 + 40 * i, n_vocab, test_seed + i);
            s[i] = model_fixture_session(&m[k], i);
            CHECK_OK(sl_prefill(s[i], ids, 300 + 40 * i, NULL, &err), err);
            free(ids);
        }
        for (int step = 0; step < 30; step++)
            for (int i = 0; i < N; i++) {
                int32_t id = fed(i, step);
                CHECK_OK(sl_decode(&s[i], 1, &id, &err), err);
            }
        for (int i = 0; i < N; i++) {
            memcpy(got + (size_t)i * n_vocab, sl_session_logits(s[i], NULL), n_vocab * sizeof *got);
            sl_session_free(s[i]);
        }
        if (k == 0)
            want = got;
        else {
            check_bits(got, want, N * n_vocab, "sessions in turns");
            free(got);
        }
        model_fixture_close(&m[k]);
    }
    free(want);
}

// A session that was saved at one place continues at both.
static void files(void) {
    enum { N = 700, STEPS = 30 };
    static const char *const places[] = {"gpu", "host"};
    char path[300];
    float *want = NULL;
    snprintf(path, sizeof path, "%s/session", test_tmp());
    for (int from = 0; from < 2; from++) {
        model_fixture a = open_at(places[from], "santa-is:proposal=int8:epsilon=0.3", 0);
        int32_t *ids = test_ids(N + STEPS, a.n_vocab, test_seed);
        sl_session *s = model_fixture_session(&a, 3);
        CHECK_OK(sl_prefill(s, ids, N - 5, NULL, &err), err);
        for (int i = N - 5; i < N; i++) CHECK_OK(sl_decode(&s, 1, ids + i, &err), err);
        CHECK_OK(sl_session_save(s, path, NULL, &err), err);
        sl_session_free(s);
        model_fixture_close(&a);
        for (int to = 0; to < 2; to++) {
            model_fixture b = open_at(places[to], "santa-is:proposal=int8:epsilon=0.3", 0);
            CHECK_OK(sl_session_load(b.engine, path, &s, NULL, &err), err);
            CHECK_INT(sl_session_n_tokens(s), N);
            CHECK(!memcmp(sl_session_ids(s), ids, N * sizeof *ids));
            for (int i = N; i < N + STEPS; i++) CHECK_OK(sl_decode(&s, 1, ids + i, &err), err);
            const float *got = sl_session_logits(s, NULL);
            if (!want) {
                want = malloc(b.n_vocab * sizeof *want);
                memcpy(want, got, b.n_vocab * sizeof *want);
            }
            check_bits(got, want, b.n_vocab, "a session from a file");
            sl_session_free(s);
            model_fixture_close(&b);
        }
        free(ids);
    }
    free(want);
}

// Random rows are the same at both places.
static void random_rows(void) {
    model_fixture m[2] = {open_at("gpu", "santa-is:S=16", 0), open_at("host", "santa-is:S=16", 0)};
    sl_session *s[2];
    for (int k = 0; k < 2; k++) {
        s[k] = model_fixture_session(&m[k], 4);
        CHECK_OK(sl_session_fill(s[k], 1000, &err), err);
        CHECK_ERR(sl_session_fill(s[k], 10, &err), err, SL_ERR_ARG, "expected an empty session, found 1000 tokens");
        for (int step = 0; step < 30; step++) {
            int32_t id = fed(1, step);
            CHECK_OK(sl_decode(&s[k], 1, &id, &err), err);
        }
    }
    compare_logits(s, m[0].n_vocab, "random rows");
    const sl_attn_stats *stats = sl_engine_attn_stats(m[1].engine);
    CHECK(stats->fetched > 0 && stats->hits > 0 && stats->v_rows > stats->fetched + stats->hits);
    CHECK_OK(sl_engine_impose_hits(m[1].engine, 0, &err), err);
    CHECK_ERR(sl_engine_impose_hits(m[0].engine, 0, &err), err, SL_ERR_ARG, "expected kv_cache host");
    sl_engine_reset_stats(m[1].engine);
    CHECK_OK(sl_decode(&s[1], 1, &(int32_t){5}, &err), err);
    stats = sl_engine_attn_stats(m[1].engine);
    CHECK(stats->fetched > 0 && stats->hits == 0);
    for (int k = 0; k < 2; k++) sl_session_free(s[k]), model_fixture_close(&m[k]);
}

// Recorded steps allocate nothing, also when a page becomes full.
static size_t taken(void) {
    size_t free = 0, total = 0;
    CHECK(cudaMemGetInfo(&free, &total) == cudaSuccess);
    return total - free;
}

static void no_allocation(void) {
    model_fixture m = open_at("host", "santa-is:S=16", 0);
    sl_session *s = model_fixture_session(&m, 0);
    int32_t *ids = test_ids(500, m.n_vocab, test_seed);
    CHECK_OK(sl_prefill(s, ids, 500, NULL, &err), err);
    for (int i = 0; i < 3; i++) CHECK_OK(sl_decode(&s, 1, ids, &err), err);
    size_t before = taken();
    for (int i = 0; i < 60; i++) CHECK_OK(sl_decode(&s, 1, ids + i, &err), err);
    CHECK_INT(taken(), before);
    sl_session_free(s), free(ids);
    model_fixture_close(&m);
}

// ---- errors ----

static void errors(void) {
    sl_model *model;
    sl_engine *engine;
    CHECK_OK(sl_model_load("models/tiny", &(sl_model_options){.flags = SL_MODEL_NO_TOKENIZER}, &model, &err), err);
    sl_engine_options o = {.device = "cuda", .n_ctx = 512, .kv_cache = "host"};
    CHECK_OK(sl_engine_new(model, &(sl_engine_options){.device = "cuda", .n_ctx = 256}, &engine, &err),
             err); // loads the kernels
    sl_engine_free(engine);
    size_t before = taken();
    CHECK_ERR(sl_engine_new(model, &o, &engine, &err), err, SL_ERR_UNSUPPORTED, "attn dense: not offered with kv_cache host");
    o.attn = "santa-prop";
    CHECK_ERR(sl_engine_new(model, &o, &engine, &err), err, SL_ERR_UNSUPPORTED, "santa-is, quest, vattention, saap or saap-is");
    o.attn = "vattention";
    CHECK_ERR(sl_engine_new(model, &o, &engine, &err), err, SL_ERR_UNSUPPORTED,
              "predictor oracle: not offered with kv_cache host");
    o.attn = "vattention:predictor=int4";
    CHECK_ERR(sl_engine_new(model, &o, &engine, &err), err, SL_ERR_UNSUPPORTED,
              "predictor int4: not offered with kv_cache host");
    o.attn = "saap";
    CHECK_ERR(sl_engine_new(model, &o, &engine, &err), err, SL_ERR_UNSUPPORTED, "saap: layer 0 is dense (dense-layers 1)");
    o.attn = "santa-is", o.kv_cache = "disk";
    CHECK_ERR(sl_engine_new(model, &o, &engine, &err), err, SL_ERR_ARG, "kv_cache disk: expected gpu, host or auto");
    o.kv_cache = "host", o.host_memory = 1 << 20;
    CHECK_ERR(sl_engine_new(model, &o, &engine, &err), err, SL_ERR_MEMORY, "in host memory, where 0.00 are free");
    o.host_memory = (size_t)1 << 32, o.kv_gpu_memory = 1 << 20;
    CHECK_ERR(sl_engine_new(model, &o, &engine, &err), err, SL_ERR_MEMORY, "K and V in host memory: n_ctx 512");
    CHECK_INT(taken(), before);
    o.kv_gpu_memory = 0;
    CHECK_OK(sl_engine_new(model, &o, &engine, &err), err);
    CHECK_ERR(sl_engine_set_attention(engine, "dense", &err), err, SL_ERR_UNSUPPORTED,
              "attn dense: not offered with kv_cache host");
    sl_attn_spec spec;
    sl_attn_plan plan;
    CHECK_OK(sl_attn_parse("streaming", &spec, &err), err);
    CHECK_OK(sl_attn_plan_init(&plan, sl_model_config(model)->n_layers, &spec, &err), err);
    CHECK_ERR(sl_engine_set_prefill(engine, &plan, 512, &err), err, SL_ERR_UNSUPPORTED,
              "attn_prefill streaming: not offered with");
    sl_attn_plan_free(&plan);
    const sl_observer observer = {.fn = (void (*)(void *, const sl_attn_record *))abort, .with_error = 1};
    CHECK_ERR(sl_engine_observe(engine, &observer, &err), err, SL_ERR_UNSUPPORTED, "not offered with kv_cache host");
    CHECK_INT(sl_engine_kv_layout(engine)->place, SL_KV_OFFLOADED);
    sl_engine_free(engine);
    o.kv_cache = "auto"; // it fits on the GPU
    CHECK_OK(sl_engine_new(model, &o, &engine, &err), err);
    CHECK_INT(sl_engine_kv_layout(engine)->place, SL_KV_GPU);
    sl_engine_free(engine);
    sl_model_free(model);
}
#endif

static const test_case cases[] = {
    GPU_CASE("moves", moves),
    GPU_CASE("lengths", lengths),
    GPU_CASE("shapes", shapes),
    GPU_CASE("ragged-batch", ragged_batch),
    GPU_CASE("other-methods", other_methods),
    GPU_CASE("exact-heads", exact_heads),
    GPU_CASE("long-contexts", long_contexts),
    GPU_CASE("hot-rows", hot_rows),
    GPU_CASE("model-bits", model_bits),
    GPU_CASE("prefill-bits", prefill_bits),
    GPU_CASE("turns-bits", turns_bits),
    GPU_CASE("files", files),
    GPU_CASE("random-rows", random_rows),
    WHOLE_GPU_CASE("no-allocation", no_allocation),
    WHOLE_GPU_CASE("errors", errors),
    {0},
};
const test_suite suite_cuda_offload = {"cuda_offload", cases};
