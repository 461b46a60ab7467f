// tests/cuda/test_cuda_saap.c - saap and saap-kmeans on a GPU: the index has the CPU's bits; a step lists the CPU's rows, and
// its output is that of attention in double precision over these rows.
#include "tests/support/gpu.h"

#ifdef SLEIGH_CUDA
#include "attention/extras/bucket_visit.h"
#include "tests/support/bucket_plan.h"
#include "tests/support/decode_check.h"
#include "tests/support/models.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static ref_cache cache_of(int n_heads, int n_kv_heads, int dim, int n_seqs, const int *lengths, int C, int W) {
    ref_cache c = ref_cache_new(n_heads, n_kv_heads, dim, n_seqs, lengths, 1, test_seed + C);
    ref_add_to_values(&c, 1); // a missing row moves every output
    test_buckets_free(&c.buckets);
    c.buckets = test_buckets_new(1, n_kv_heads, dim, C, W, 0, test_seed + 7);
    return c;
}

static decode_fixture fixture_for(ref_cache *c, const char *attn, int least_kv) {
    c->geom.buckets = c->pool.buckets = &c->buckets;
    for (int s = 0; s < c->n_seqs; s++) c->queries[s].kv.pool = &c->pool;
    return fixture_new_for(c, attn, 1, least_kv);
}

static decode_fixture fixture_of(ref_cache *c, const char *attn) {
    return fixture_for(c, attn, 0);
}

// ---- the index ----

// Compares the first `used` bytes of the blocks of a page extra, but for the bytes [skip, end).
static void compare_extra(const decode_fixture *r, int i, sl_kv_need need, size_t used, size_t skip, size_t end) {
    const ref_cache *c = r->c;
    size_t size = r->args.extra_size[i], heads = c->geom.n_kv_heads;
    int span = need.kind->span, n_blocks = span ? r->n_slots : c->pool.n_pages;
    unsigned char *got = malloc(n_blocks * heads * size + 1);
    int32_t *slots = malloc(c->pool.n_pages * sizeof *slots);
    gpu_read(got, r->args.extra[i], n_blocks * heads * size);
    if (span) gpu_read(slots, r->args.extra_slots[i], c->pool.n_pages * sizeof *slots);
    for (int s = 0; s < c->n_seqs; s++)
        for (int page = 0; page < (c->seqs[s].n_tokens - 1) / SL_PAGE; page++) {
            if (span && (page + 1) % span) continue;
            int32_t id = c->seqs[s].pages[page], block = span ? slots[id] : id;
            for (size_t h = 0; h < heads; h++) {
                const unsigned char *own = got + (block * heads + h) * size;
                const unsigned char *want = sl_kv_extra(&c->queries[s].kv, need, page, (int)h);
                for (size_t b = 0; b < used; b++)
                    if ((b < skip || b >= end) && own[b] != want[b])
                        FAIL("%s %d, head_dim %d, C %d, sequence %d, page %d, KV head %zu: byte %zu is %02x, expected %02x",
                             need.kind->name, need.arg, c->geom.head_dim, c->buckets.n_buckets, s, page, h, b, own[b], want[b]);
            }
        }
    free(got), free(slots);
}

static void try_index(const char *attn, int dim, int C, int n_seqs, const int *lengths) {
    ref_cache c = cache_of(4, 2, dim, n_seqs, lengths, C, 16);
    decode_fixture r = fixture_of(&c, attn);
    sl_kv_need need[SL_MAX_NEEDS];
    int n = r.spec.method->cuda->needs(&r.spec, need);
    for (int i = 0; i < n; i++) {
        if (need[i].kind == &sl_bucket_lists_kind) // numbers of `first` after number C are not written
            compare_extra(&r, i, need[i], sizeof(sl_bucket_lists), (C + 1) * sizeof(uint16_t), offsetof(sl_bucket_lists, row));
        else
            compare_extra(&r, i, need[i], need[i].kind == &sl_bucket_rows_kind ? sizeof(sl_bucket_rows) : r.args.extra_size[i],
                          0, 0);
    }
    fixture_free(&r);
    ref_cache_free(&c);
}

static void index_bits(void) {
    static const int lengths[] = {1, 256, 257, 700, 4096, 4097, 9000}, few[] = {600, 4400};
    static const int dims[] = {64, 80, 96, 128}, counts[] = {1, 5, 13, 128, 129, 1000, 4096};
    for (int kind = 0; kind < 3; kind++) {
        const char *attn = kind == 1 ? "saap-kmeans:rope=1" : kind == 2 ? "saap-is" : "saap";
        for (int d = 0; d < 4; d++) try_index(attn, dims[d], 13 + d, 2, few);
        try_index(attn, 64, 64, 7, lengths);
    }
    for (int i = 0; i < 7; i++) try_index("saap-is", 64, counts[i], 1, few + 1);
}

// ---- the rows of a step ----

// What the CPU visits for one KV head.
typedef struct cpu_visit {
    sl_attn_decode_args args;
    sl_group group;
    sl_bucket_visit visit;
} cpu_visit;

static void visit_on_cpu(const decode_fixture *r, int s, int h, cpu_visit *out) {
    out->args = (sl_attn_decode_args){.geom = &r->c->geom,
                                      .spec = &r->spec,
                                      .layer = FIXTURE_LAYER,
                                      .seed = 1,
                                      .n_seqs = r->c->n_seqs,
                                      .seqs = r->c->queries};
    const sl_proposal *propose = sl_composition_of(&r->spec).propose;
    out->group = sl_group_of(&out->args, s, h);
    out->group.state = malloc(propose->state(&r->c->geom, &r->spec, r->c->seqs[s].n_tokens) + 64);
    propose->begin(&out->group);
    out->visit = sl_bucket_visit_of(&out->group);
}

// 1: no bucket outside of the choice has nearly the score of a visited one. Only then must both devices choose the same.
static int is_clear(const cpu_visit *v, int C, int l) {
    double least = INFINITY, most = -INFINITY;
    if (v->visit.sink >= v->visit.window || l == 0 || l >= C) return 1;
    for (int c = 0; c < C; c++) {
        if (v->visit.visited[c])
            least = fmin(least, v->visit.score[c]);
        else
            most = fmax(most, v->visit.score[c]);
    }
    return least - most > 1e-4 * fmax(fabs(least), 1e-3);
}

// The lists that the last step wrote (attention_cuda.h).
typedef struct step_lists {
    int max_sections, *count;
    int32_t *list;
} step_lists;

static step_lists read_lists(const decode_fixture *r) {
    step_lists l = {.max_sections = (r->args.max_kv - 1) / SL_BUCKET_SPAN_ROWS + 1};
    size_t n = (size_t)r->n_pairs * l.max_sections, bytes = n * sizeof *l.count;
    const char *at = (char *)((int *)r->args.ws + SL_CUDA_COUNTERS);
    l.count = malloc(bytes), l.list = malloc(n * SL_BUCKET_SPAN_ROWS * sizeof *l.list);
    gpu_read(l.count, at, bytes);
    gpu_read(l.list, at + (bytes + SL_CUDA_ALIGNMENT - 1) / SL_CUDA_ALIGNMENT * SL_CUDA_ALIGNMENT,
             n * SL_BUCKET_SPAN_ROWS * sizeof *l.list);
    return l;
}

// The position of a pool row of KV head h; -1: sequence s has no such row.
static int position_of(const decode_fixture *r, int s, int h, int pool_row) {
    const ref_cache *c = r->c;
    int heads = c->geom.n_kv_heads, page = pool_row / SL_PAGE / heads;
    for (int i = 0; i < c->seqs[s].n_pages && pool_row / SL_PAGE % heads == h; i++)
        if (c->seqs[s].pages[i] == page) return i * SL_PAGE + pool_row % SL_PAGE;
    return -1;
}

// Marks the rows that the GPU reads for a KV head. Every row must be listed at most once.
static void mark_rows(const decode_fixture *r, const step_lists *l, const sl_bucket_visit *v, int s, int h, char *reads) {
    int n = r->c->seqs[s].n_tokens, pair = s * r->c->geom.n_kv_heads + h, n_built = (n - 1) / SL_PAGE;
    for (int j = 0; j < n; j++) reads[j] = j < v->sink || j >= v->window;
    if (v->sink >= v->window) return;
    int spans = (v->window + SL_BUCKET_SPAN_ROWS - 1) / SL_BUCKET_SPAN_ROWS, full = n_built / SL_BUCKET_SPAN;
    for (int i = 0; i <= (spans < full ? spans : full); i++) {
        size_t at = (size_t)pair * l->max_sections + i;
        for (int k = 0; k < l->count[at]; k++) {
            int j = position_of(r, s, h, l->list[at * SL_BUCKET_SPAN_ROWS + k]);
            if (j < v->sink || j >= v->window || reads[j])
                FAIL("sequence %d, KV head %d: row %d is listed twice, or in the sink or window", s, h, j);
            reads[j] = 1;
        }
    }
}

// The output of a head against attention in double precision over the marked rows.
static void check_output(const decode_fixture *r, int s, int head, const char *reads) {
    const ref_cache *c = r->c;
    int n = c->seqs[s].n_tokens, dim = c->geom.head_dim;
    size_t at = ((size_t)s * c->geom.n_heads + head) * dim;
    double *p = malloc(n * sizeof *p), mu[128], kept = 0;
    float out[128];
    ref_attention(c, s, head, c->q + at, n, p, mu);
    memset(mu, 0, sizeof mu);
    for (int j = 0; j < n; j++) {
        if (!reads[j]) continue;
        kept += p[j];
        for (int d = 0; d < dim; d++) mu[d] += p[j] * sl_bf16_to_f32(ref_v_row(c, s, head / r->group, j)[d]);
    }
    for (int d = 0; d < dim; d++) mu[d] /= kept, out[d] = sl_bf16_to_f32(r->out[at + d]);
    double error = ref_relative(out, mu, dim);
    if (!(error < 0x1p-7)) FAIL("%s, sequence %d of %d rows, head %d: off by %g", r->spec.method->name, s, n, head, error);
    free(p);
}

// Compares the last step with the CPU. Returns the share of KV heads whose choice is clear.
static double check_step(decode_fixture *r) {
    const ref_cache *c = r->c;
    step_lists l = read_lists(r);
    int n_clear = 0, C = c->buckets.n_buckets;
    for (int pair = 0; pair < r->n_pairs; pair++) {
        int s = pair / c->geom.n_kv_heads, h = pair % c->geom.n_kv_heads, n = c->seqs[s].n_tokens;
        cpu_visit v;
        visit_on_cpu(r, s, h, &v);
        char *reads = malloc(n);
        mark_rows(r, &l, &v.visit, s, h, reads);
        if (is_clear(&v, C, (int)sl_attn_get(&r->spec, "l"))) {
            n_clear++;
            for (int j = 0; j < n; j++)
                if (reads[j] != (int)(v.visit.bitmap[j / 64] >> j % 64 & 1))
                    FAIL("%s, C %d, sequence %d of %d rows, KV head %d: row %d is read: %d, on the CPU: %d",
                         r->spec.method->name, C, s, n, h, j, reads[j], !reads[j]);
        }
        for (int g = 0; g < r->group; g++) check_output(r, s, h * r->group + g, reads);
        free(reads), free(v.group.state);
    }
    free(l.count), free(l.list);
    return (double)n_clear / r->n_pairs;
}

// One step. Where every choice is clear, the counts are the CPU's too. Returns the share of clear choices.
static double try_on(ref_cache *c, const char *attn) {
    decode_fixture r = fixture_of(c, attn);
    fixture_launch(&r);
    double clear = check_step(&r);
    if (clear == 1) {
        sl_attn_stats want = ref_decode(c, attn, 0, c->n_seqs, 1, FIXTURE_LAYER);
        CHECK_INT(r.stats.k_rows, want.k_rows);
        CHECK_INT(r.stats.v_rows, want.v_rows);
        CHECK_INT(r.stats.v_distinct, want.v_distinct);
        CHECK_INT(r.stats.samples, want.samples);
        CHECK_INT(r.stats.bytes, want.bytes);
        CHECK_NEAR(r.stats.features, want.features, 1e-9);
    }
    fixture_free(&r);
    return clear;
}

static const char *const specs[] = {"saap:l=3:dense-layers=0:sink=1:window=100",
                                    "saap:l=4:dense-layers=0:sink=0:window=0",
                                    "saap:l=1:dense-layers=0:sink=300:window=2047",
                                    "saap:l=13:dense-layers=0:sink=0:window=0",
                                    "saap:l=0:dense-layers=0",
                                    "saap-kmeans:l=2:dense-layers=0:window=77",
                                    "saap-kmeans:l=5:dense-layers=0:sink=4500:window=0",
                                    "saap-kmeans:l=2:dense-layers=0:window=5000:rope=1",
                                    "saap-kmeans:l=7:dense-layers=0:window=300:rope=1"};
enum { N_SPECS = sizeof specs / sizeof *specs };

static void lengths(void) {
    static const int all[] = {1, 31, 255, 256, 257, 513, 2047, 2049, 4096, 4097, 4353, 8449, 33000};
    double clear = 0;
    int n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        ref_cache c = cache_of(8, 2, 128, 1, &all[i], 13, 32);
        for (int k = 0; k < N_SPECS; k++, n++) clear += try_on(&c, specs[k]);
        ref_cache_free(&c);
    }
    CHECK(clear > 0.9 * n);
}

static void shapes(void) {
    static const int dims[] = {64, 80, 96, 128}, n_rows[] = {700, 1, 4600};
    for (int d = 0; d < 4; d++)
        for (int group = 1; group <= 8; group++) {
            ref_cache c = cache_of(2 * group, 2, dims[d], 3, n_rows, 20 + group, 16 * group);
            for (int k = 0; k < N_SPECS; k += 1 + (group + d) % 3) try_on(&c, specs[k]);
            ref_cache_free(&c);
        }
}

// Many buckets, and classifiers on both sides of the limits of the kernels: 64 rows of a matrix for a thread block, 128 and
// 1,024 columns at a time, 1,024 buckets.
static void many_buckets(void) {
    static const int counts[] = {31, 32, 33, 64, 65, 256, 1000, 1024, 1025, 4096}, n = 9000;
    static const int widths[] = {16, 48, 128, 144, 1008, 112, 1040, 1024, 2064, 192}, budgets[] = {1, 7, 32, 300, 4096};
    for (int i = 0; i < 10; i++) {
        ref_cache c = cache_of(4, 1, 64, 1, &n, counts[i], widths[i]);
        for (int k = 0; k < 5; k++) {
            char attn[80];
            snprintf(attn, sizeof attn, "%s:l=%d:dense-layers=0:window=200", (i + k) % 3 ? "saap" : "saap-kmeans", budgets[k]);
            try_on(&c, attn);
        }
        ref_cache_free(&c);
    }
}

// More thread blocks than multiprocessors, and more than 8 query heads for each: a thread block multiplies its rows with
// several groups of queries, and loads the rows again, because they do not fit at once.
static void many_queries(void) {
    static const int n[] = {700, 4600, 300};
    ref_cache c = cache_of(32, 4, 64, 3, n, 4096, 1040);
    try_on(&c, "saap:l=40:dense-layers=0:window=100");
    ref_cache_free(&c);
}

// Equal scores: the lower buckets are visited. A NaN among the queries: buckets 0 to l - 1.
static void ties(void) {
    static const int n = 5000;
    for (int is_nan = 0; is_nan < 2; is_nan++) {
        ref_cache c = cache_of(4, 1, 64, 1, &n, 70, 16);
        memset((void *)c.buckets.w2, 0, 70 * 16 * sizeof(bf16));
        memset((void *)c.buckets.b2, 0, 70 * sizeof(float));
        if (is_nan) c.q[3 * 64 + 5] = NAN; // head 3
        decode_fixture r = fixture_of(&c, "saap:l=33:dense-layers=0:window=100");
        fixture_launch(&r);
        step_lists l = read_lists(&r);
        cpu_visit v;
        visit_on_cpu(&r, 0, 0, &v);
        char *reads = malloc(n);
        mark_rows(&r, &l, &v.visit, 0, 0, reads);
        for (int j = 0; j < n; j++) CHECK_INT(reads[j], v.visit.bitmap[j / 64] >> j % 64 & 1);
        for (int head = 0; head < 3; head++) check_output(&r, 0, head, reads);
        for (int d = 0; d < 64 && is_nan; d++) CHECK(isnan(sl_bf16_to_f32(r.out[3 * 64 + d])));
        free(reads), free(v.group.state), free(l.count), free(l.list);
        fixture_free(&r);
        ref_cache_free(&c);
    }
}

static void ragged_batch(void) {
    ref_cache c = cache_of(8, 2, 128, FIXTURE_SEQS, fixture_ragged, 50, 32);
    size_t row = 8 * 128;
    for (int k = 0; k < N_SPECS; k++) {
        try_on(&c, specs[k]);
        decode_fixture r = fixture_of(&c, specs[k]);
        bf16 *all = malloc(FIXTURE_SEQS * row * sizeof *all);
        fixture_launch(&r);
        memcpy(all, r.out, FIXTURE_SEQS * row * sizeof *all);
        for (int s = 0; s < FIXTURE_SEQS; s++) { // alone, with kernels for its length
            fixture_decode_alone(&r, s);
            if (memcmp(all + s * row, r.out, row * sizeof *all)) FAIL("%s, sequence %d: other bits alone", specs[k], s);
        }
        free(all);
        fixture_free(&r);
    }
    ref_cache_free(&c);
}

// A span whose lists have no slot is read from the sorted rows of its pages.
static void spans_without_lists(void) {
    static const int n[] = {9000, 13000};
    ref_cache c = cache_of(4, 2, 64, 2, n, 40, 16);
    for (int k = 0; k < 2; k++) {
        decode_fixture r = fixture_of(&c, k ? "saap-kmeans:l=9:dense-layers=0:window=50" : "saap:l=5:dense-layers=0:window=50");
        int32_t *slots = malloc(c.pool.n_pages * sizeof *slots);
        gpu_read(slots, r.args.extra_slots[1], c.pool.n_pages * sizeof *slots);
        slots[c.seqs[0].pages[31]] = slots[c.seqs[1].pages[15]] = -1;
        r.args.extra_slots[1] = gpu_copy(slots, c.pool.n_pages * sizeof *slots);
        fixture_launch(&r);
        check_step(&r);
        free(slots);
        fixture_free(&r);
    }
    // saap-is draws from such a span too: 4,000 draws from 13,000 rows give nearly dense attention.
    decode_fixture r = fixture_of(&c, "saap-is:l=1:S=4000:dense-layers=0:window=50");
    for (int i = 1; i < 3; i++) {
        int32_t *slots = malloc(c.pool.n_pages * sizeof *slots);
        gpu_read(slots, r.args.extra_slots[i], c.pool.n_pages * sizeof *slots);
        slots[c.seqs[i - 1].pages[15]] = -1;
        r.args.extra_slots[i] = gpu_copy(slots, c.pool.n_pages * sizeof *slots);
        free(slots);
    }
    fixture_launch(&r);
    for (int i = 0; i < 8; i++) CHECK(fixture_error(&r, i / 4, i % 4, NULL) < 0.15);
    fixture_free(&r);
    ref_cache_free(&c);
}

// Layers below dense-layers have the bits of method dense. With l = C the output is that of dense attention.
static void dense(void) {
    static const int n[] = {1000, 5000};
    ref_cache c = cache_of(8, 2, 128, 2, n, 13, 32);
    size_t size = 2 * 8 * 128 * sizeof(bf16);
    decode_fixture r = fixture_of(&c, "dense");
    bf16 *want = malloc(size);
    fixture_launch(&r);
    memcpy(want, r.out, size);
    fixture_free(&r);
    r = fixture_of(&c, "saap:l=3:dense-layers=4");
    fixture_launch(&r);
    CHECK(!memcmp(want, r.out, size));
    sl_attn_stats stats = ref_decode(&c, "saap:l=3:dense-layers=4", 0, 2, 1, FIXTURE_LAYER);
    CHECK_INT(r.stats.k_rows, stats.k_rows);
    CHECK_INT(r.stats.v_rows, stats.v_rows);
    CHECK_INT(r.stats.bytes, stats.bytes);
    fixture_free(&r);
    free(want);
    r = fixture_of(&c, "saap:l=13:dense-layers=0:sink=0:window=0");
    fixture_launch(&r);
    for (int s = 0; s < 2; s++)
        for (int head = 0; head < 8; head++) CHECK(fixture_error(&r, s, head, NULL) < 0x1p-7);
    fixture_free(&r);
    ref_cache_free(&c);
}

// ---- saap-is ----

// The bits of a step, from malloc.
static bf16 *bits_of(ref_cache *c, const char *attn) {
    decode_fixture r = fixture_of(c, attn);
    size_t size = (size_t)c->n_seqs * c->geom.n_heads * c->geom.head_dim * sizeof(bf16);
    bf16 *out = malloc(size);
    fixture_launch(&r);
    memcpy(out, r.out, size);
    fixture_free(&r);
    return out;
}

// With S = 0, or when every row is read exactly, saap-is has the bits of saap.
static void nothing_to_draw(void) {
    static const char *const same[][2] = {
        {"saap:l=3:dense-layers=0:window=100", "saap-is:l=3:dense-layers=0:window=100:S=0"},
        {"saap:l=13:dense-layers=0:window=100", "saap-is:l=13:dense-layers=0:window=100:S=77"},
        {"saap:l=3:dense-layers=0:window=9000", "saap-is:l=3:dense-layers=0:window=9000:S=77"},
        {"saap:l=3:dense-layers=4", "saap-is:l=3:dense-layers=4:S=77"},
        {"saap:l=3:dense-layers=0:window=100", "saap-is:l=3:dense-layers=0:window=100:S=0:proposal=classifier"},
    };
    static const int n[] = {5000, 300, 8800};
    ref_cache c = cache_of(8, 2, 64, 3, n, 13, 32);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        bf16 *want = bits_of(&c, same[i][0]), *got = bits_of(&c, same[i][1]);
        if (memcmp(want, got, 3 * 8 * 64 * sizeof *want)) FAIL("%s has other bits than %s", same[i][1], same[i][0]);
        free(want), free(got);
    }
    ref_cache_free(&c);
    sl_attn_spec spec;
    sl_error err;
    CHECK_OK(sl_attn_parse("saap-is:proposal=classifier", &spec, &err), err);
    CHECK(!sl_attn_on_gpu(&spec));
}

// Compares a step of saap-is with the CPU's. A draw whose threshold lies on the border of two rows may take either row. Returns
// the share of compared heads that have the CPU's output.
static double compare_draws(ref_cache *c, const char *attn) {
    decode_fixture r = fixture_of(c, attn);
    int dim = c->geom.head_dim, n_same = 0, n = 0;
    fixture_launch(&r);
    sl_attn_stats want = ref_decode(c, attn, 0, c->n_seqs, 1, FIXTURE_LAYER);
    CHECK_INT(r.stats.samples, want.samples);
    CHECK(r.stats.v_rows >= want.v_rows); // a row that was drawn twice counts twice
    for (int i = 0; i < c->n_seqs * c->geom.n_heads; i++) {
        float out[128];
        double mu[128];
        cpu_visit v;
        visit_on_cpu(&r, i / c->geom.n_heads, i % c->geom.n_heads / r.group, &v);
        int clear = is_clear(&v, c->buckets.n_buckets, (int)sl_attn_get(&r.spec, "l"));
        free(v.group.state);
        if (!clear) continue;
        for (int d = 0; d < dim; d++) {
            out[d] = sl_bf16_to_f32(r.out[(size_t)i * dim + d]);
            mu[d] = c->out[(size_t)i * dim + d];
        }
        double error = ref_relative(out, mu, dim);
        if (!(error < 0.3)) FAIL("%s, head %d: off by %g from the CPU", attn, i, error);
        n_same += error < 0x1p-7, n++;
    }
    fixture_free(&r);
    return n ? (double)n_same / n : 1;
}

static void draws(void) {
    ref_cache ragged = cache_of(8, 2, 64, FIXTURE_SEQS, fixture_ragged, 50, 32); // a thread block visits several sections
    double of_ragged = compare_draws(&ragged, "saap-is:S=40:l=3:window=100:dense-layers=0");
    ref_cache_free(&ragged);
    if (!(of_ragged > 0.9)) FAIL("ragged: %g of the heads have the CPU's output", of_ragged);
    static const int n[] = {700, 4700, 9000, 256}, long_n = 33000, groups[] = {1, 3, 4, 8}, dims[] = {128, 64, 80, 96};
    double same = 0;
    int n_tried = 0;
    for (int i = 0; i < 4; i++) {
        ref_cache c = cache_of(2 * groups[i], 2, dims[i], 4, n, i == 3 ? 300 : 20 + 30 * i, 32);
        same += compare_draws(&c, "saap-is:S=64:l=3:window=100:dense-layers=0");
        same += compare_draws(&c, "saap-is:S=50:l=0:window=0:sink=400:dense-layers=0");
        n_tried += 2;
        ref_cache_free(&c);
    }
    ref_cache c = cache_of(4, 1, 128, 1, &long_n, 100, 32);
    same += compare_draws(&c, "saap-is:S=300:l=4:dense-layers=0"), n_tried++;
    same += compare_draws(&c, "saap-is:S=300:l=100:dense-layers=0"), n_tried++; // all buckets are visited: nothing is drawn
    ref_cache_free(&c);
    if (!(same > 0.9 * n_tried)) FAIL("%g of the heads have the CPU's output", same / n_tried);
}

// ---- on an engine ----

enum { FULL = 9000, CUT = 6500, STEPS = 3 };

// Logits after the steps, from malloc.
static float *logits_after(sl_session *s, const int32_t *ids, int n_vocab) {
    sl_error err;
    for (int i = 0; i < STEPS; i++) CHECK_OK(sl_decode(&s, 1, ids + i, &err), err);
    float *copy = malloc(n_vocab * sizeof *copy);
    memcpy(copy, sl_session_logits(s, NULL), n_vocab * sizeof *copy);
    return copy;
}

static void check_logits(const char *attn, const char *what, const float *want, float *got, int n_vocab) {
    if (memcmp(want, got, n_vocab * sizeof *want)) FAIL("%s: %s has other logits than a session made at once", attn, what);
    free(got);
}

// A session that was cut inside a span and continued, and a fork that shares pages and continues, have the logits of a session
// that was made at once: their index is that of their rows.
static void cuts_and_forks(void) {
    static const char *const methods[] = {"saap:l=4:window=50", "saap-kmeans:l=4:window=50:rope=1",
                                          "saap-is:S=64:l=4:window=50"};
    sl_error err;
    sl_model *model;
    sl_engine *engine;
    CHECK_OK(sl_model_load("models/tiny", &(sl_model_options){.flags = SL_MODEL_NO_TOKENIZER}, &model, &err), err);
    sl_engine_options options = {.n_ctx = 10240, .n_sequences = 3, .attn = "dense", .device = "cuda", .seed = 1};
    CHECK_OK(sl_engine_new(model, &options, &engine, &err), err);
    int n_vocab = sl_model_n_vocab(model);
    int32_t *ids = test_ids(FULL + STEPS, n_vocab, test_seed), *other = test_ids(FULL, n_vocab, test_seed + 1);
    memcpy(other, ids, CUT * sizeof *ids);
    for (int m = 0; m < 3; m++) {
        sl_session *s, *cut, *fork;
        CHECK_OK(sl_engine_set_attention(engine, methods[m], &err), err);
        CHECK_OK(sl_session_new(engine, 1, &s, &err), err);
        CHECK_OK(sl_prefill(s, ids, FULL, NULL, &err), err);
        float *want = logits_after(s, ids + FULL, n_vocab);
        CHECK_OK(sl_session_new(engine, 1, &cut, &err), err);
        CHECK_OK(sl_prefill(cut, other, FULL, NULL, &err), err);
        free(logits_after(cut, ids + FULL, n_vocab)); // builds the index of rows that the cut drops
        CHECK_OK(sl_session_truncate(cut, CUT, &err), err);
        CHECK_OK(sl_prefill(cut, ids + CUT, FULL - CUT, NULL, &err), err);
        check_logits(methods[m], "a session that was cut", want, logits_after(cut, ids + FULL, n_vocab), n_vocab);
        sl_session_free(cut);
        CHECK_OK(sl_session_fork(s, CUT, 1, &fork, &err), err);
        CHECK_OK(sl_prefill(fork, ids + CUT, FULL - CUT, NULL, &err), err);
        check_logits(methods[m], "a fork", want, logits_after(fork, ids + FULL, n_vocab), n_vocab);
        sl_session_free(s), sl_session_free(fork);
        free(want);
    }
    free(ids), free(other);
    sl_engine_free(engine);
    sl_model_free(model);
}

// Kernels for the longest contexts.
static void long_context(void) {
    static const int n = 140000;
    ref_cache c = cache_of(4, 1, 64, 1, &n, 64, 16);
    try_on(&c, "saap:l=4:dense-layers=0");
    ref_cache_free(&c);
    static const int few = 6000;
    c = cache_of(4, 1, 64, 1, &few, 64, 16);
    decode_fixture r = fixture_for(&c, "saap:l=4:dense-layers=0:window=100", SL_CUDA_LONG_ROWS);
    fixture_launch(&r);
    check_step(&r);
    fixture_free(&r);
    ref_cache_free(&c);
}
#endif

static const test_case cases[] = {
    GPU_CASE("index-bits", index_bits),
    GPU_CASE("lengths", lengths),
    GPU_CASE("shapes", shapes),
    GPU_CASE("many-buckets", many_buckets),
    GPU_CASE("many-queries", many_queries),
    GPU_CASE("ties", ties),
    GPU_CASE("ragged-batch", ragged_batch),
    GPU_CASE("spans-without-lists", spans_without_lists),
    GPU_CASE("dense", dense),
    GPU_CASE("nothing-to-draw", nothing_to_draw),
    GPU_CASE("draws", draws),
    GPU_CASE("cuts-and-forks", cuts_and_forks),
    GPU_CASE("long-context", long_context),
    {0},
};
const test_suite suite_cuda_saap = {"cuda_saap", cases};
