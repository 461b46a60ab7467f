// tests/test_cuda_is.c - santa-is and dense-q on a GPU: stored weights against the CPU's scores of the same quantised pages,
// and, from the very weights that the kernel stored, the CPU's draws: the output must be the mean of these rows with their
// exact scores.
#include "tests/gpu.h"

#ifdef SLEIGH_CUDA
#include "attention/cuda.h"
#include "attention/stages.h"
#include "tests/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COUNTER_BYTES = 65536 * 4, MAX_SEQS = 16 };
static sl_error err;
static const double LOG2_E = 1.4426950408889634;

typedef struct run {
    ref_cache c;
    sl_attn_spec spec;
    sl_kv_need need; // NULL kind: none
    int max_kv, max_blocks, n_slots, group, S, layer;
    uint32_t seed;
    unsigned char *extra; // [n_pages][n_kv_heads][size]
    sl_row rows[MAX_SEQS];
    sl_attn_cuda_decode_args args;
    bf16 *out;      // [n_seqs][n_heads][head_dim], read back
    uint64_t *mass; // [n_slots][group][max_blocks]
    bf16 *w;        // [n_slots][max_blocks][group][32]
} run;

static const void *extra_of(const run *r, int page, int h) { // page of the pool
    return r->extra + ((size_t)page * r->c.geom.n_kv_heads + h) * r->need.kind->size(r->need.arg, r->c.geom.head_dim);
}

// Quantised copies of all pages but each sequence's newest, to the device.
static void *build_extra(run *r) {
    const sl_attn_geom *g = &r->c.geom;
    size_t size = r->need.kind->size(r->need.arg, g->head_dim), all = (size_t)r->c.pool.n_pages * g->n_kv_heads * size;
    r->extra = malloc(all);
    memset(r->extra, 0xFF, all);
    for (int s = 0; s < r->c.n_seqs; s++)
        for (int p = 0; p < (r->c.seqs[s].n_tokens - 1) / SL_PAGE; p++)
            for (int h = 0; h < g->n_kv_heads; h++)
                r->need.kind->build(r->need.arg, g->head_dim, ref_k_row(&r->c, s, h, p * SL_PAGE), NULL, NULL, NULL,
                                    (void *)extra_of(r, r->c.seqs[s].pages[p], h));
    return gpu_copy(r->extra, all);
}

static run run_new(ref_cache c, const char *attn, uint32_t seed) {
    const sl_attn_geom *g = &c.geom;
    run r = {.c = c, .seed = seed, .layer = 3, .group = g->n_heads / g->n_kv_heads, .n_slots = c.n_seqs * g->n_kv_heads};
    CHECK_OK(sl_attn_parse(attn, &r.spec, &err), err);
    if (sl_attn_has(&r.spec, "S")) r.S = (int)sl_attn_get(&r.spec, "S");
    for (int s = 0; s < c.n_seqs; s++) r.max_kv = c.seqs[s].n_tokens > r.max_kv ? c.seqs[s].n_tokens : r.max_kv;
    r.max_blocks = (r.max_kv + 2 * SL_BLOCK - 1) / (2 * SL_BLOCK) * 2;
    size_t row = (size_t)g->n_heads * g->head_dim, bytes = (size_t)c.pool.n_pages * g->n_kv_heads * SL_PAGE * g->head_dim * 2;
    bf16 *q = malloc(c.n_seqs * row * sizeof *q);
    for (int s = 0; s < c.n_seqs; s++) {
        r.rows[s].position = c.seqs[s].n_tokens - 1, r.rows[s].sequence = 7u * s, r.rows[s].seed = seed;
        r.rows[s].pages = gpu_copy(c.seqs[s].pages, c.seqs[s].n_pages * sizeof(int32_t));
    }
    for (size_t i = 0; i < c.n_seqs * row; i++) {
        q[i] = sl_f32_to_bf16(c.q[i]);
        c.q[i] = sl_bf16_to_f32(q[i]);
    }
    r.args = (sl_attn_cuda_decode_args){
        .layer = r.layer,
        .n_seqs = c.n_seqs,
        .max_kv = r.max_kv,
        .rows = gpu_copy(r.rows, sizeof r.rows),
        .q = gpu_copy(q, c.n_seqs * row * sizeof *q),
        .out = gpu_new(c.n_seqs * row * sizeof(bf16)),
        .k = gpu_copy(c.pool.k, bytes),
        .v = gpu_copy(c.pool.v, bytes),
        .stats = gpu_zero(sizeof(sl_attn_cuda_stats)),
        .ws = gpu_zero(r.spec.method->cuda->workspace(g, &r.spec, c.n_seqs, 1, r.max_kv)),
    };
    if (r.spec.method->cuda->needs) {
        r.spec.method->cuda->needs(&r.spec, &r.need);
        r.args.extra_size[0] = r.need.kind->size(r.need.arg, g->head_dim);
        r.args.extra[0] = build_extra(&r);
    }
    r.out = malloc(c.n_seqs * row * sizeof *r.out);
    r.mass = malloc((size_t)r.n_slots * r.group * r.max_blocks * sizeof *r.mass);
    r.w = malloc((size_t)r.n_slots * r.group * r.max_blocks * SL_BLOCK * sizeof *r.w);
    free(q);
    return r;
}

static void launch(run *r) {
    r->args.geom = &r->c.geom, r->args.spec = &r->spec; // r may have moved
    r->spec.method->cuda->decode(&r->args);
    size_t n_mass = (size_t)r->n_slots * r->group * r->max_blocks;
    gpu_read(r->out, r->args.out, (size_t)r->c.n_seqs * r->c.geom.n_heads * r->c.geom.head_dim * sizeof *r->out);
    gpu_read(r->mass, (char *)r->args.ws + COUNTER_BYTES, n_mass * sizeof *r->mass);
    gpu_read(r->w, (char *)r->args.ws + COUNTER_BYTES + n_mass * sizeof *r->mass, n_mass * SL_BLOCK * sizeof *r->w);
    int *counters = malloc(COUNTER_BYTES);
    gpu_read(counters, r->args.ws, COUNTER_BYTES);
    for (int i = 0; i < COUNTER_BYTES / 4; i++) CHECK_INT(counters[i], 0);
    free(counters);
}

static void run_free(run *r) {
    ref_cache_free(&r->c);
    free(r->out), free(r->mass), free(r->w), free(r->extra);
    gpu_free_all();
}

static const float *query_of(const run *r, int s, int head) {
    return r->c.q + ((size_t)s * r->c.geom.n_heads + head) * r->c.geom.head_dim;
}

static double exact_score(const run *r, int s, int head, int j) { // in log2 units
    int dim = r->c.geom.head_dim;
    const bf16 *k = ref_k_row(&r->c, s, head / r->group, j);
    double x = 0;
    for (int d = 0; d < dim; d++) x += (double)query_of(r, s, head)[d] * sl_bf16_to_f32(k[d]);
    return x * LOG2_E / sqrt(dim);
}

// The CPU's scores of one head: quantised pages, exact newest page.
static void cpu_scores(const run *r, int s, int head, float *score) {
    const sl_attn_kernels *kernels = sl_attn_kernels_best();
    int dim = r->c.geom.head_dim, n = r->c.seqs[s].n_tokens, n_built = (n - 1) / SL_PAGE;
    for (int p = 0; p < n_built; p++) {
        const f16 *step = extra_of(r, r->c.seqs[s].pages[p], head / r->group);
        sl_quant_query q;
        kernels->quantise_query(query_of(r, s, head), step, step + dim, dim, r->need.arg, (float)(LOG2_E / sqrt(dim)), &q);
        kernels->score_quantised(&q, 1, (const uint8_t *)(step + 2 * dim), dim, r->need.arg, score + p * SL_PAGE, SL_PAGE);
    }
    for (int j = n_built * SL_PAGE; j < n; j++) score[j] = (float)exact_score(r, s, head, j);
}

// One head's stored weights as the CPU keeps them; masses are checked on the way.
static sl_weights weights_of(const run *r, int s, int head, int n) {
    int slot = s * r->c.geom.n_kv_heads + head / r->group, h = head % r->group, n_blocks = (n + SL_BLOCK - 1) / SL_BLOCK;
    sl_weights wt = {.n = n, .n_blocks = n_blocks};
    wt.w = calloc((size_t)n_blocks * SL_BLOCK, sizeof *wt.w);
    wt.ref = malloc(n_blocks * sizeof *wt.ref);
    wt.cum = malloc((n_blocks + 1) * sizeof *wt.cum);
    for (int b = 0; b < n_blocks; b++) {
        uint64_t packed = r->mass[((size_t)slot * r->group + h) * r->max_blocks + b], mass = 0;
        const bf16 *w = r->w + (((size_t)slot * r->max_blocks + b) * r->group + h) * SL_BLOCK;
        wt.ref[b] = (int16_t)(packed >> 48);
        for (int i = 0; i < SL_BLOCK; i++) {
            if (b * SL_BLOCK + i >= n) CHECK_INT(w[i], 0);
            mass += (uint32_t)(sl_bf16_to_f32(w[i]) * 0x1p30f);
            wt.w[b * SL_BLOCK + i] = w[i];
        }
        CHECK_INT(packed & 0xffffffffffff, mass);
        wt.cum[b + 1] = mass;
    }
    sl_weights_finish(&wt);
    return wt;
}

static void weights_free(sl_weights *wt) {
    free(wt->w), free(wt->ref), free(wt->cum);
}

static int n_weights, n_other; // stored weights that were compared, and those that are not the CPU's

// Stored weights are the CPU's, but for the last bit where a score differs in its last bits.
static void compare_weights(const run *r, int s, int head, const sl_weights *wt) {
    int n = wt->n;
    float *score = malloc((n + SL_PAGE) * sizeof *score);
    bf16 *w = malloc((n + SL_PAGE) * sizeof *w);
    int16_t *ref = malloc(wt->n_blocks * sizeof *ref);
    uint64_t *mass = malloc(wt->n_blocks * sizeof *mass);
    cpu_scores(r, s, head, score);
    sl_attn_kernels_best()->weigh(score, n, w, ref, mass);
    for (int b = 0; b < wt->n_blocks; b++) {
        int moved = wt->ref[b] != ref[b]; // a maximum next to an integer
        if (moved && abs(wt->ref[b] - ref[b]) > 1)
            FAIL("head %d, block %d: reference %d, the CPU's %d", head, b, wt->ref[b], ref[b]);
        for (int j = b * SL_BLOCK; j < n && j < (b + 1) * SL_BLOCK; j++) {
            n_weights++;
            double got = ldexp(sl_bf16_to_f32(wt->w[j]), wt->ref[b]), want = ldexp(sl_bf16_to_f32(w[j]), ref[b]);
            if (got == want) continue;
            n_other++;
            if (!(fabs(got - want) <= want * 0x1p-7 + ldexp(0x1p-120, ref[b])))
                FAIL("%s, sequence %d, %d rows, head %d, row %d: weight %g, the CPU's %g", r->spec.method->name, s, n, head, j,
                     got, want);
        }
    }
    free(score), free(w), free(ref), free(mass);
}

// Draws from the stored weights as draw_pps.c's run_importance.
static sl_draws draw(const run *r, int s, int head, const sl_weights *wt) {
    int n = wt->n, n_proposed = (n - 1) / SL_PAGE * SL_PAGE;
    size_t most = (size_t)r->S + SL_PAGE;
    sl_draws d = {.row = malloc(most * sizeof *d.row),
                  .count = malloc(most * sizeof *d.count),
                  .inv_pi = malloc(most * sizeof *d.inv_pi),
                  .scratch = malloc(2 * most * sizeof *d.scratch)};
    const sl_rng_id id = {
        .seed = r->seed, .sequence = 7u * s, .position = (uint32_t)n - 1, .layer = (uint32_t)r->layer, .head = (uint32_t)head};
    sl_weights proposed = *wt;
    sl_draws_clear(&d);
    if (n_proposed > 0) {
        sl_weights_keep(&proposed, n_proposed);
        sl_weights_mix(&proposed, 0.01);
        sl_draw_take_all(&proposed, r->S, 0, sl_uniform_philox(&id), &d);
    }
    return d;
}

static void check_output(const run *r, int s, int head, const double *sum, const double *size, double total) {
    const bf16 *out = r->out + ((size_t)s * r->c.geom.n_heads + head) * r->c.geom.head_dim;
    for (int x = 0; x < r->c.geom.head_dim; x++) {
        double got = sl_bf16_to_f32(out[x]), want = sum[x] / total;
        // bf16, and scores off by 2^-12 of themselves in fp32 sums of products up to 2^5 times as large
        if (!(fabs(got - want) <= fabs(want) * 0x1p-8 + size[x] / total * 0x1p-11 + 1e-7))
            FAIL("%s, S %d, %d rows, sequence %d, head %d: output %d is %g, the drawn rows give %g", r->spec.method->name, r->S,
                 r->c.seqs[s].n_tokens, s, head, x, got, want);
    }
}

// santa-is: the combination of the rows that the CPU draws from the stored weights.
static void check_drawn(const run *r, int s, int head) {
    int n = r->c.seqs[s].n_tokens, dim = r->c.geom.head_dim, newest = (n - 1) / SL_PAGE * SL_PAGE;
    sl_weights wt = weights_of(r, s, head, n);
    compare_weights(r, s, head, &wt);
    sl_draws d = draw(r, s, head, &wt);
    double sum[128] = {0}, size[128] = {0}, total = 0, top = -INFINITY, *score = malloc((d.n + SL_PAGE) * sizeof *score);
    for (int i = 0; i < d.n; i++) top = fmax(top, score[i] = exact_score(r, s, head, d.row[i]));
    for (int b = newest / SL_BLOCK; b < wt.n_blocks; b++) top = fmax(top, wt.ref[b]);
    for (int i = 0; i < d.n + n - newest; i++) {
        int j = i < d.n ? d.row[i] : newest + i - d.n;
        double share = i < d.n ? d.count[i] * (double)d.inv_pi[i] * exp2(score[i] - top)
                               : sl_bf16_to_f32(wt.w[j]) * exp2(wt.ref[j / SL_BLOCK] - top);
        const bf16 *v = ref_v_row(&r->c, s, head / r->group, j);
        for (int x = 0; x < dim; x++) sum[x] += share * sl_bf16_to_f32(v[x]), size[x] += fabs(share * sl_bf16_to_f32(v[x]));
        total += share;
    }
    check_output(r, s, head, sum, size, total);
    free(score), free(d.row), free(d.count), free(d.inv_pi), free(d.scratch);
    weights_free(&wt);
}

// dense-q: every row with its stored weight.
static void check_all(const run *r, int s, int head) {
    int n = r->c.seqs[s].n_tokens, dim = r->c.geom.head_dim;
    sl_weights wt = weights_of(r, s, head, n);
    compare_weights(r, s, head, &wt);
    double sum[128] = {0}, size[128] = {0}, total = 0;
    for (int j = 0; j < n; j++) {
        double share = sl_bf16_to_f32(wt.w[j]) * exp2(wt.ref[j / SL_BLOCK] - wt.top);
        const bf16 *v = ref_v_row(&r->c, s, head / r->group, j);
        for (int x = 0; x < dim; x++) sum[x] += share * sl_bf16_to_f32(v[x]), size[x] += fabs(share * sl_bf16_to_f32(v[x]));
        total += share;
    }
    check_output(r, s, head, sum, size, total);
    weights_free(&wt);
}

static void check_run(run *r) {
    launch(r);
    for (int s = 0; s < r->c.n_seqs; s++)
        for (int h = 0; h < r->c.geom.n_heads; h++) (r->S ? check_drawn : check_all)(r, s, h);
}

static void check(int n_heads, int n_kv_heads, int dim, int n_seqs, const int *lengths, double scale, const char *attn) {
    run r = run_new(ref_cache_new(n_heads, n_kv_heads, dim, n_seqs, lengths, scale, test_seed), attn, 11);
    check_run(&r);
    run_free(&r);
}

// At most one weight in a thousand is not the CPU's.
static void report_weights(void) {
    printf("      %d of %d stored weights differ from the CPU's in their last bit\n", n_other, n_weights);
    if (n_other > n_weights / 1000 + 3) FAIL("%d of %d stored weights differ from the CPU's", n_other, n_weights);
    n_other = n_weights = 0;
}

static void lengths(void) {
    static const int all[] = {1, 31, 255, 256, 257, 513, 1000, 8192, 32769};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        double scale = i % 3 == 0 ? 0 : i % 3 == 1 ? 1 : 4;
        check(8, 2, 128, 1, &all[i], scale, "santa-is:S=128");
        check(8, 2, 128, 1, &all[i], 4, "santa-is:S=256");
        check(8, 2, 128, 1, &all[i], scale, "dense-q");
    }
    report_weights();
}

static void samples(void) {
    static const int n = 3000;
    static const char *const attn[] = {"santa-is:S=1",   "santa-is:S=3",    "santa-is:S=127", "santa-is:S=129",
                                       "santa-is:S=513", "santa-is:S=2000", "santa-is:S=4096"};
    for (size_t i = 0; i < sizeof attn / sizeof *attn; i++) check(4, 1, 128, 1, &n, 2, attn[i]);
    report_weights();
}

static void shapes(void) {
    static const int dims[] = {64, 80, 96, 128}, groups[] = {1, 2, 3, 4, 8}, lengths[] = {700, 1, 2049};
    static const char *const proposals[] = {"int8", "int4", "int3"}, *const bits[] = {"8", "4", "3"};
    for (int d = 0; d < 4; d++)
        for (int g = 0; g < 5; g++)
            for (int b = 0; b < 3; b++) {
                char attn[64];
                snprintf(attn, sizeof attn, "santa-is:S=64:proposal=%s", proposals[b]);
                check(2 * groups[g], 2, dims[d], 3, lengths, 2, attn);
                snprintf(attn, sizeof attn, "dense-q:bits=%s", bits[b]);
                check(2 * groups[g], 2, dims[d], 3, lengths, 2, attn);
            }
    report_weights();
}

// Keys of the newest page that lie along head 0's query: its rows weigh 2^shift times as much as others.
static void a_heavy_newest_page(void) {
    static const int n = 1000;
    static const double shifts[] = {4, 8, 9, 12, 40, 2000};
    for (size_t i = 0; i < sizeof shifts / sizeof *shifts; i++) {
        ref_cache c = ref_cache_new(4, 1, 128, 1, &n, 1, test_seed);
        double square = 0;
        for (int d = 0; d < 128; d++) square += (double)c.q[d] * c.q[d];
        for (int j = 768; j < n; j += 5)
            for (int d = 0; d < 128; d++)
                ((bf16 *)ref_k_row(&c, 0, 0, j))[d] =
                    sl_f32_to_bf16((float)(c.q[d] / square * sqrt(128) / LOG2_E * (shifts[i] + 4)));
        run r = run_new(c, "santa-is:S=64", 3);
        check_run(&r);
        run_free(&r);
    }
    n_other = n_weights = 0; // huge scores differ by more than a last bit now and then
}

// Once S covers all rows, it is dense attention.
static void equals_dense(void) {
    static const int n = 1500;
    run r = run_new(ref_cache_new(8, 2, 128, 1, &n, 2, test_seed), "santa-is:S=1500", 5);
    launch(&r);
    for (int h = 0; h < 8; h++) {
        double *p = malloc(n * sizeof *p), mu[128];
        ref_attention(&r.c, 0, h, r.c.q + h * 128, n, p, mu);
        for (int d = 0; d < 128; d++) CHECK_NEAR(sl_bf16_to_f32(r.out[h * 128 + d]), mu[d], 0.01 * fabs(mu[d]) + 2e-3);
        free(p);
    }
    run_free(&r);
}

static void ragged_batch(void) {
    static const int lengths[16] = {1, 5000, 256, 257, 31, 9000, 1024, 77, 4096, 300, 2, 20000, 512, 513, 100, 3333};
    static const char *const attn[] = {"santa-is:S=256", "dense-q", "santa-is:S=128:proposal=int8"};
    for (int i = 0; i < 3; i++) {
        run r = run_new(ref_cache_new(8, 2, 128, 16, lengths, 3, test_seed), attn[i], 5);
        check_run(&r);
        // Each alone: equal bits.
        size_t row = (size_t)8 * 128;
        bf16 alone[8 * 128];
        sl_attn_cuda_decode_args args = r.args;
        args.n_seqs = 1, args.ws = gpu_zero(r.spec.method->cuda->workspace(&r.c.geom, &r.spec, 1, 1, r.max_kv));
        for (int s = 0; s < 16; s++) {
            args.rows = r.args.rows + s, args.q = r.args.q + s * row;
            r.spec.method->cuda->decode(&args);
            gpu_read(alone, args.out, sizeof alone);
            if (memcmp(alone, r.out + s * row, sizeof alone)) FAIL("%s: sequence %d alone gives other bits", attn[i], s);
        }
        run_free(&r);
    }
    report_weights();
}

static void equal_bits(void) {
    static const int lengths[3] = {5000, 70, 9000};
    static const char *const attn[] = {"santa-is:S=256", "dense-q"};
    for (int k = 0; k < 2; k++) {
        run r = run_new(ref_cache_new(8, 2, 128, 3, lengths, 2, test_seed), attn[k], 5);
        size_t size = (size_t)3 * 8 * 128 * sizeof(bf16);
        bf16 *first = malloc(size);
        launch(&r);
        memcpy(first, r.out, size);
        for (int i = 0; i < 100; i++) {
            r.spec.method->cuda->decode(&r.args);
            gpu_read(r.out, r.args.out, size);
            CHECK(!memcmp(first, r.out, size));
        }
        free(first);
        run_free(&r);
    }
}

static double mean_error(const char *attn, int n, double scale) {
    double sum = 0;
    run r = run_new(ref_cache_new(32, 8, 128, 1, &n, scale, test_seed), attn, 5);
    launch(&r);
    for (int h = 0; h < 32; h++) {
        double *p = malloc(n * sizeof *p), mu[128];
        float out[128];
        ref_attention(&r.c, 0, h, r.c.q + h * 128, n, p, mu);
        for (int d = 0; d < 128; d++) out[d] = sl_bf16_to_f32(r.out[h * 128 + d]);
        sum += ref_relative(out, mu, 128) / 32;
        free(p);
    }
    run_free(&r);
    return sum;
}

// Peaked queries: at most 0.55 of the error of the published method's default.
static void error_against_prop(void) {
    double is = mean_error("santa-is:S=256", 16384, 4), prop = mean_error("santa-prop:S=128", 16384, 4);
    printf("      peaked, 16384 rows: relative error of santa-is int4 S=256 %.4f, of santa-prop S=128 %.4f: %.2f of it\n", is,
           prop, is / prop);
    CHECK(is <= 0.55 * prop);
}
#endif

static const test_case cases[] = {
    GPU_CASE("lengths", lengths),
    GPU_CASE("samples", samples),
    GPU_CASE("shapes", shapes),
    GPU_CASE("a-heavy-newest-page", a_heavy_newest_page),
    GPU_CASE("equals-dense", equals_dense),
    GPU_CASE("ragged-batch", ragged_batch),
    GPU_CASE("equal-bits", equal_bits),
    GPU_CASE("error-against-prop", error_against_prop),
    {0},
};
const test_suite suite_cuda_is = {"cuda_is", cases};
