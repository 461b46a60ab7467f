// tests/test_cuda_bernoulli.c - Bernoulli qK^T on a GPU: counts and scores are the CPU's, draws follow from the very weights
// that the kernel stored, errors are those of the closed forms, features that count 0 are not read.
#include "tests/gpu.h"

#ifdef SLEIGH_CUDA
#include "attention/cuda.h"
#include "attention/stages.h"
#include "tests/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COUNTER_BYTES = 65536 * 4, MAX_SEQS = 16, LAYER = 3 };
static sl_error err;

typedef struct rig {
    ref_cache *c;
    sl_attn_spec spec;
    uint32_t seed;
    int first, n; // sequences
    int max_kv, max_blocks, group;
    sl_kv_need need;
    sl_attn_stats cpu; // of the CPU's step, whose outputs are in c->out
    sl_attn_cuda_decode_args args;
    bf16 *out;      // [n][n_heads][head_dim], read back
    uint64_t *mass; // [n][n_kv_heads][group][max_blocks]; of a specification with a sampler
    bf16 *w;        // [n][n_kv_heads][max_blocks][group][32]
} rig;

// Sequences [first, first + n) of the cache, whose queries become bf16 numbers. Keys lie by feature where the engine would have
// them so: in all pages but each sequence's newest.
static rig rig_new(ref_cache *c, const char *attn, int first, int n, uint32_t seed) {
    const sl_attn_geom *g = &c->geom;
    rig r = {.c = c, .seed = seed, .first = first, .n = n, .group = g->n_heads / g->n_kv_heads};
    CHECK_OK(sl_attn_parse(attn, &r.spec, &err), err);
    CHECK(sl_attn_on_gpu(&r.spec));
    size_t row = (size_t)g->n_heads * g->head_dim, bytes = (size_t)c->pool.n_pages * g->n_kv_heads * SL_PAGE * g->head_dim * 2;
    bf16 *q = malloc(c->n_seqs * row * sizeof *q);
    for (size_t i = 0; i < c->n_seqs * row; i++) {
        q[i] = sl_f32_to_bf16(c->q[i]);
        c->q[i] = sl_bf16_to_f32(q[i]);
    }
    r.cpu = ref_decode(c, attn, first, n, seed, LAYER);
    sl_row rows[MAX_SEQS];
    int32_t *full = malloc(c->pool.n_pages * sizeof *full), n_full = 0;
    memset(rows, 0, sizeof rows);
    for (int i = 0; i < n; i++) {
        const sl_kv_seq *seq = &c->seqs[first + i];
        rows[i].position = seq->n_tokens - 1, rows[i].sequence = c->queries[first + i].sequence, rows[i].seed = seed;
        rows[i].pages = gpu_copy(seq->pages, seq->n_pages * sizeof(int32_t));
        r.max_kv = seq->n_tokens > r.max_kv ? seq->n_tokens : r.max_kv;
        for (int page = 0; page < (seq->n_tokens - 1) / SL_PAGE; page++) full[n_full++] = seq->pages[page];
    }
    r.max_blocks = (r.max_kv + 2 * SL_BLOCK - 1) / (2 * SL_BLOCK) * 2;
    const sl_attn_cuda_ops *ops = r.spec.method->cuda;
    CHECK_INT(ops->needs(&r.spec, &r.need), 1);
    size_t size = r.need.kind->size(0, g->head_dim);
    r.args = (sl_attn_cuda_decode_args){.geom = g,
                                        .layer = LAYER,
                                        .n_seqs = n,
                                        .max_kv = r.max_kv,
                                        .rows = gpu_copy(rows, n * sizeof *rows),
                                        .q = gpu_copy(q + first * row, n * row * sizeof *q),
                                        .out = gpu_new(n * row * sizeof(bf16)),
                                        .k = gpu_copy(c->pool.k, bytes),
                                        .v = gpu_copy(c->pool.v, bytes),
                                        .extra = {gpu_new(size * c->pool.n_pages * g->n_kv_heads)},
                                        .extra_size = {size},
                                        .stats = gpu_zero(sizeof(sl_attn_cuda_stats)),
                                        .ws = gpu_zero(ops->workspace(g, &r.spec, n, 1, r.max_kv))};
    if (n_full)
        r.need.kind->build_device(&(sl_kv_device_build){.head_dim = g->head_dim,
                                                        .n_kv_heads = g->n_kv_heads,
                                                        .size = size,
                                                        .n = n_full,
                                                        .pages = gpu_copy(full, n_full * sizeof *full),
                                                        .k = r.args.k,
                                                        .v = r.args.v,
                                                        .data = (void *)r.args.extra[0]});
    size_t n_mass = (size_t)n * g->n_heads * r.max_blocks;
    r.out = malloc(n * row * sizeof *r.out);
    r.mass = malloc(n_mass * sizeof *r.mass), r.w = malloc(n_mass * SL_BLOCK * sizeof *r.w);
    free(q), free(full);
    return r;
}

static void launch(rig *r) {
    r->args.spec = &r->spec; // r may have moved
    r->spec.method->cuda->decode(&r->args);
    size_t n_mass = (size_t)r->n * r->c->geom.n_heads * r->max_blocks;
    gpu_read(r->out, r->args.out, (size_t)r->n * r->c->geom.n_heads * r->c->geom.head_dim * sizeof *r->out);
    if (r->spec.plus) {
        gpu_read(r->mass, (char *)r->args.ws + COUNTER_BYTES, n_mass * sizeof *r->mass);
        gpu_read(r->w, (char *)r->args.ws + COUNTER_BYTES + n_mass * sizeof *r->mass, n_mass * SL_BLOCK * sizeof *r->w);
    }
    int *counters = malloc(COUNTER_BYTES);
    gpu_read(counters, r->args.ws, COUNTER_BYTES);
    for (int i = 0; i < COUNTER_BYTES / 4; i++) CHECK_INT(counters[i], 0);
    free(counters);
}

static void rig_free(rig *r) { // but not the cache
    free(r->out), free(r->mass), free(r->w);
    gpu_free_all();
}

// ---- stored weights ----

static uint64_t packed_of(const rig *r, int i, int head, int b) {
    return r->mass[((size_t)i * r->c->geom.n_heads + head) * r->max_blocks + b];
}
static const bf16 *block_of(const rig *r, int i, int head, int b) {
    int slot = i * r->c->geom.n_kv_heads + head / r->group;
    return r->w + (((size_t)slot * r->max_blocks + b) * r->group + head % r->group) * SL_BLOCK;
}

// Score of row j in log2 units, as far as its stored weight knows it.
static double score_of(const rig *r, int i, int head, int j) {
    return (int16_t)(packed_of(r, i, head, j / SL_BLOCK) >> 48) +
           log2(sl_bf16_to_f32(block_of(r, i, head, j / SL_BLOCK)[j % SL_BLOCK]));
}

static sl_weights weights_new(int n) {
    int n_blocks = (n + SL_BLOCK - 1) / SL_BLOCK;
    return (sl_weights){.n = n,
                        .n_blocks = n_blocks,
                        .w = calloc((size_t)n_blocks * SL_BLOCK, sizeof(bf16)),
                        .ref = malloc(n_blocks * sizeof(int16_t)),
                        .cum = malloc((n_blocks + 1) * sizeof(uint64_t))};
}

// One head's stored weights as the CPU keeps them, checked on the way: masses are those of the weights, and weights and
// references those of the scores.
static sl_weights weights_of(const rig *r, int i, int head, const float *score, int n) {
    sl_weights wt = weights_new(n);
    for (int b = 0; b < wt.n_blocks; b++) {
        uint64_t packed = packed_of(r, i, head, b), mass = 0;
        const bf16 *w = block_of(r, i, head, b);
        double top = -INFINITY;
        wt.ref[b] = (int16_t)(packed >> 48);
        for (int x = 0; x < SL_BLOCK; x++) {
            int j = b * SL_BLOCK + x;
            if (j >= n) {
                CHECK_INT(w[x], 0);
                continue;
            }
            double want = exp2(score[j] - wt.ref[b]), got = sl_bf16_to_f32(w[x]);
            if (!(fabs(got - want) <= want * 0x1.02p-8 + 1e-30))
                FAIL("sequence %d, head %d, row %d: weight %g, expected %g", i, head, j, got, want);
            top = fmax(top, score[j]);
            mass += (uint32_t)(got * 0x1p30);
            wt.w[j] = w[x];
        }
        if (fabs(wt.ref[b] - ceil(top)) > 0 && fabs(top - rint(top)) > 1e-3)
            FAIL("sequence %d, head %d, block %d: reference %d, expected %g", i, head, b, wt.ref[b], ceil(top));
        CHECK((packed & 0xffffffffffff) == mass);
        wt.cum[b + 1] = mass;
    }
    sl_weights_finish(&wt);
    return wt;
}

// The CPU's scores of a KV head: [group][n]. Its extras were built by ref_decode.
static float *cpu_scores(const rig *r, int i, int h) {
    ref_cache *c = r->c;
    const sl_proposal *propose = sl_composition_of(&r->spec).propose;
    int s = r->first + i, n = c->seqs[s].n_tokens;
    float *out = malloc((size_t)r->group * n * sizeof *out), page_score[8 * SL_CHUNK];
    sl_attn_decode_args args = {
        .geom = &c->geom, .spec = &r->spec, .layer = LAYER, .seed = r->seed, .n_seqs = c->n_seqs, .seqs = c->queries};
    sl_group g = sl_group_of(&args, s, h);
    g.state = malloc(propose->state(&c->geom, &r->spec, n));
    propose->begin(&g);
    for (int page = 0; page * SL_PAGE < n; page++) {
        propose->score(&g, page, page_score);
        for (int x = 0; x < r->group; x++)
            memcpy(out + (size_t)x * n + page * SL_PAGE, page_score + x * SL_CHUNK, sl_page_rows(g.kv, page) * sizeof *out);
    }
    free(g.state);
    return out;
}

// The output against the rows that the CPU draws from the stored weights.
static void check_draws(const rig *r, int i, int head, const sl_weights *wt) {
    const sl_attn_geom *g = &r->c->geom;
    int s = r->first + i, n = wt->n, dim = g->head_dim, S = (int)sl_attn_get(&r->spec, "S");
    size_t most = sl_sampler_capacity(S, n);
    double want[128] = {0}, size[128] = {0}, total = (double)sl_weights_total(wt);
    sl_draws d = {.row = malloc(most * sizeof *d.row),
                  .count = malloc(most * sizeof *d.count),
                  .inv_pi = malloc(most * sizeof *d.inv_pi),
                  .scratch = malloc(sl_sampler_scratch(S, n) * sizeof *d.scratch)};
    const sl_rng_id id = {.seed = r->seed,
                          .sequence = r->c->queries[s].sequence,
                          .position = (uint32_t)n - 1,
                          .layer = LAYER,
                          .head = (uint32_t)head};
    sl_composition_of(&r->spec).draw->sampler(wt, S, sl_uniform_philox(&id), &d);
    for (int x = 0; x < d.n; x++) {
        double share = d.count[x] * (double)sl_weights_mass(wt, d.row[x]) / total * d.inv_pi[x];
        const bf16 *v = ref_v_row(r->c, s, head / r->group, d.row[x]);
        for (int c = 0; c < dim; c++) {
            double value = share * sl_bf16_to_f32(v[c]);
            want[c] += value, size[c] += fabs(value);
        }
    }
    const bf16 *out = r->out + ((size_t)i * g->n_heads + head) * dim;
    for (int c = 0; c < dim; c++) {
        double got = sl_bf16_to_f32(out[c]);
        if (!(fabs(got - want[c]) <= fabs(want[c]) * 0x1p-8 + size[c] * (S + 8) * 0x1p-24 + 1e-7))
            FAIL("%s+%s, %d rows, sequence %d, head %d: output %d is %g, the drawn rows give %g", r->spec.method->name,
                 r->spec.plus->name, n, i, head, c, got, want[c]);
    }
    free(d.row), free(d.count), free(d.inv_pi), free(d.scratch);
}

static void check_drawn(const rig *r) {
    for (int i = 0; i < r->n; i++)
        for (int h = 0; h < r->c->geom.n_kv_heads; h++) {
            int n = r->c->seqs[r->first + i].n_tokens;
            float *score = cpu_scores(r, i, h);
            for (int x = 0; x < r->group; x++) {
                int head = h * r->group + x;
                sl_weights wt = weights_of(r, i, head, score + (size_t)x * n, n);
                check_draws(r, i, head, &wt);
                free(wt.w), free(wt.ref), free(wt.cum);
            }
            free(score);
        }
}

// Without a sampler: the CPU's outputs. Weights are rounded to bf16, and the output: 2^-9 each.
static void check_alone(const rig *r) {
    int dim = r->c->geom.head_dim, heads = r->c->geom.n_heads;
    for (int i = 0; i < r->n; i++)
        for (int head = 0; head < heads; head++) {
            float got[128];
            double want[128];
            for (int d = 0; d < dim; d++) {
                got[d] = sl_bf16_to_f32(r->out[((size_t)i * heads + head) * dim + d]);
                want[d] = r->c->out[((size_t)(r->first + i) * heads + head) * dim + d];
            }
            double error = ref_relative(got, want, dim);
            if (!(error < 0x1p-7))
                FAIL("%s, sequence %d of %d rows, head %d: relative error %.3g", r->spec.method->name, i,
                     r->c->seqs[r->first + i].n_tokens, head, error);
        }
}

// What the kernel counted and the method's account against the CPU's statistics. The CPU counts rows of V that two heads of a
// group draw once.
static void check_stats(const rig *r) {
    sl_attn_cuda_stats counted;
    sl_attn_stats x = {0};
    gpu_read(&counted, r->args.stats, sizeof counted);
    for (int i = 0; i < r->n; i++) r->spec.method->cuda->account(&r->c->geom, &r->spec, r->c->seqs[r->first + i].n_tokens, &x);
    CHECK_NEAR((double)counted.features / 1024, r->cpu.features, 1e-3 * r->cpu.steps);
    CHECK_INT(counted.samples, r->cpu.samples);
    CHECK_INT(x.k_rows + counted.k_rows, r->cpu.k_rows);
    if (r->spec.plus) return;
    CHECK_INT(x.bytes + counted.bytes, r->cpu.bytes);
    CHECK_INT(x.v_rows + counted.v_rows, r->cpu.v_rows);
    CHECK_INT(x.v_distinct + counted.v_distinct, r->cpu.v_distinct);
}

static void check(ref_cache *c, const char *attn, uint32_t seed) {
    rig r = rig_new(c, attn, 0, c->n_seqs, seed);
    launch(&r);
    if (r.spec.plus)
        check_drawn(&r);
    else
        check_alone(&r);
    check_stats(&r);
    rig_free(&r);
}

// ---- cases ----

static const char *const all[] = {"bernoulli:B=8",
                                  "bernoulli-group:B=8",
                                  "bernoulli:B=3:bernoulli-sampling=iid",
                                  "bernoulli-group:B=5:bernoulli-sampling=iid",
                                  "bernoulli-group:B=1000",
                                  "bernoulli-group:B=8+santa-sys:S=128",
                                  "bernoulli:B=4+santa-sys:S=64",
                                  "bernoulli-group:B=8+santa:S=100",
                                  "bernoulli-group:B=2+santa-strat:S=128",
                                  "bernoulli-group:B=8+santa-prop:S=128",
                                  "bernoulli:B=8+santa-flash:S=600"};
enum { N_ALL = sizeof all / sizeof *all };

static void lengths(void) {
    static const int n[] = {1, 31, 255, 256, 257, 1000, 4097, 32769};
    for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
        ref_cache c = ref_cache_new(8, 2, 128, 1, &n[i], i % 3 == 0 ? 0.3 : i % 3 == 1 ? 1 : 3, test_seed + i);
        for (int m = 0; m < N_ALL; m++)
            if (n[i] < 30000 || m == 1 || m == 5) check(&c, all[m], 11 + m);
        ref_cache_free(&c);
    }
}

static void shapes(void) {
    static const int dims[] = {64, 80, 96, 128}, groups[] = {1, 2, 3, 4, 8}, n[] = {700, 1, 2049};
    static const char *const attn[] = {"bernoulli:B=4", "bernoulli-group:B=4", "bernoulli:B=4+santa-sys:S=32",
                                       "bernoulli-group:B=4+santa-prop:S=32"};
    for (int d = 0; d < 4; d++)
        for (int g = 0; g < 5; g++) {
            ref_cache c = ref_cache_new(2 * groups[g], 2, dims[d], 3, n, 2, test_seed + d);
            for (int m = 0; m < 4; m++) check(&c, attn[m], 5);
            ref_cache_free(&c);
        }
}

// Rows of one feature each, so large that a score is the feature's signed count: read back exactly.
static void counts(void) {
    static const struct {
        int heads, kv_heads, dim, B, iid;
    } x[] = {{8, 2, 128, 8, 0}, {3, 1, 80, 5, 0}, {4, 4, 64, 3, 1}, {8, 1, 96, 30, 0}, {8, 2, 128, 16, 1}};
    int n = 600; // two pages by feature, the newest by rows
    for (int i = 0; i < 5; i++)
        for (int shared = 0; shared < 2; shared++) {
            int dim = x[i].dim, group = x[i].heads / x[i].kv_heads;
            ref_cache c = ref_cache_new(x[i].heads, x[i].kv_heads, dim, 1, &n, 1, test_seed + i);
            float step = (float)(x[i].B * sqrt(dim) * log(2));
            for (int h = 0; h < x[i].kv_heads; h++)
                for (int j = 0; j < n; j++)
                    for (int d = 0; d < dim; d++) ((bf16 *)ref_k_row(&c, 0, h, j))[d] = sl_f32_to_bf16(d == j % dim ? step : 0);
            for (int head = 0; head < x[i].heads; head++) // the largest is 1; with one set, a group's magnitudes are equal
                for (int d = 0; d < dim; d++) {
                    float *q = c.q + head * dim + d, size = fminf(fabsf(*q) / 2, 1);
                    if (shared && head % group) size = fabsf(c.q[head / group * group * dim + d]);
                    if (d == 7) size = 1;
                    *q = copysignf(size, *q);
                }
            char attn[80];
            snprintf(attn, sizeof attn, "bernoulli%s:B=%d:bernoulli-sampling=%s+santa:S=1", shared ? "-group" : "", x[i].B,
                     x[i].iid ? "iid" : "stratified");
            rig r = rig_new(&c, attn, 0, 1, 77);
            launch(&r);
            for (int head = 0; head < x[i].heads; head++)
                for (int j = 0; j < n; j++) {
                    int d = j % dim;
                    const sl_rng_id id = {.seed = 77,
                                          .sequence = c.queries[0].sequence,
                                          .position = (uint32_t)n - 1,
                                          .layer = LAYER,
                                          .head = (uint32_t)(shared ? head / group * group : head)};
                    float q = c.q[head * dim + d];
                    uint64_t u = 0;
                    int want = 0;
                    for (int t = 0; x[i].iid && t < x[i].B; t++)
                        want += fabsf(q) >= 1 ||
                                (long double)sl_rng_u64(&id, t * dim + d, SL_STREAM_FEATURES) * 0x1p-64L < fabsf(q);
                    u = sl_rng_u64(&id, d, SL_STREAM_FEATURES);
                    if (!x[i].iid)
                        want = fabsf(q) >= 1 ? x[i].B : (int)floorl((long double)x[i].B * fabsf(q) + (long double)u * 0x1p-64L);
                    double got = score_of(&r, 0, head, j);
                    if (lrint(got) != (q < 0 ? -want : want))
                        FAIL("%s, head %d, feature %d: count %g, expected %d", attn, head, d, got, q < 0 ? -want : want);
                }
            rig_free(&r);
            ref_cache_free(&c);
        }
}

// Figure 6: squared error of the scores against the closed forms (docs/methods.md). Every head of the group its own counts.
static double closed_form(const float *q, int dim, int B, int iid) {
    double norm = 0, sum = 0, square = 0, f_sum = 0;
    for (int d = 0; d < dim; d++) norm = fmax(norm, fabsf(q[d])), sum += fabsf(q[d]), square += (double)q[d] * q[d];
    for (int d = 0; d < dim; d++) {
        double x = B * (fabsf(q[d]) / norm), f = x - floor(x);
        f_sum += f * (1 - f);
    }
    return iid ? norm * sum / (B * square) - 1.0 / B : norm * norm * f_sum / ((double)B * B * square);
}

static void closed_forms(void) {
    enum { N = 1024, HEADS = 32, KV_HEADS = 8, DIM = 128, STEPS = 24 };
    static const char *const attn[] = {"bernoulli:B=4+santa:S=1", "bernoulli:B=4:bernoulli-sampling=iid+santa:S=1"};
    int n = N;
    double ratio[2] = {0};
    for (int step = 0; step < STEPS; step++) {
        ref_cache c = ref_cache_new(HEADS, KV_HEADS, DIM, 1, &n, 4, test_seed + step); // relative errors know no scale
        for (int iid = 0; iid < 2; iid++) {
            rig r = rig_new(&c, attn[iid], 0, 1, 100 + step);
            launch(&r);
            for (int head = 0; head < HEADS; head++) {
                const float *q = c.q + head * DIM;
                double error = 0, square = 0;
                for (int j = 0; j < n; j++) {
                    const bf16 *k = ref_k_row(&c, 0, head / r.group, j);
                    double want = 0;
                    for (int d = 0; d < DIM; d++) want += (double)q[d] * sl_bf16_to_f32(k[d]);
                    want *= 1.4426950408889634 / sqrt(DIM);
                    error += pow(score_of(&r, 0, head, j) - want, 2), square += want * want;
                }
                ratio[iid] += error / square / closed_form(q, DIM, 4, iid) / (STEPS * HEADS);
            }
            rig_free(&r);
        }
        ref_cache_free(&c);
    }
    printf("      squared error over the closed form: stratified %.3f, iid %.3f\n", ratio[0], ratio[1]);
    CHECK_NEAR(ratio[0], 1, 0.05);
    CHECK_NEAR(ratio[1], 1, 0.05);
}

static void ragged_batch(void) { // 16 sequences together, and each alone: equal bits
    static const int n[16] = {1, 5000, 256, 257, 31, 9000, 1024, 77, 4096, 300, 2, 20000, 512, 513, 100, 3333};
    static const char *const attn[] = {"bernoulli-group:B=4", "bernoulli-group:B=4+santa-sys:S=128"};
    for (int m = 0; m < 2; m++) {
        ref_cache c = ref_cache_new(8, 2, 128, 16, n, 3, test_seed);
        size_t size = 8 * 128 * sizeof(bf16);
        rig r = rig_new(&c, attn[m], 0, 16, 9);
        launch(&r);
        bf16 *together = malloc(16 * size);
        memcpy(together, r.out, 16 * size);
        m ? check_drawn(&r) : check_alone(&r);
        rig_free(&r);
        for (int s = 0; s < 16; s++) {
            r = rig_new(&c, attn[m], s, 1, 9);
            launch(&r);
            if (memcmp((char *)together + s * size, r.out, size)) FAIL("%s: sequence %d differs alone", attn[m], s);
            rig_free(&r);
        }
        free(together);
        ref_cache_free(&c);
    }
}

static void equal_bits(void) {
    static const int n[3] = {5000, 70, 9000};
    ref_cache c = ref_cache_new(8, 2, 128, 3, n, 2, test_seed);
    for (int m = 0; m < N_ALL; m++) {
        rig r = rig_new(&c, all[m], 0, 3, 5);
        size_t size = (size_t)3 * 8 * 128 * sizeof(bf16);
        bf16 *first = malloc(size);
        launch(&r);
        memcpy(first, r.out, size);
        for (int i = 0; i < 20; i++) {
            launch(&r);
            CHECK(!memcmp(first, r.out, size));
        }
        free(first);
        rig_free(&r);
    }
    ref_cache_free(&c);
}

// Features that count 0 for the whole group are not read: NaN in them changes nothing.
static void unread_features(void) {
    static const char *const attn[] = {"bernoulli:B=2", "bernoulli-group:B=2", "bernoulli-group:B=2+santa-sys:S=64"};
    enum { DIM = 64, HEADS = 2 };
    int n = 900;
    ref_cache c = ref_cache_new(4, HEADS, DIM, 1, &n, 1, test_seed);
    for (int i = 0; i < 4 * DIM; i++) c.q[i] *= i % DIM == 3 || i % DIM == 40 ? 8 : i % DIM == 9 ? 0 : 0.3f;
    for (int m = 0; m < 3; m++) {
        rig r = rig_new(&c, attn[m], 0, 1, 3);
        size_t size = (size_t)c.pool.n_pages * HEADS * DIM * SL_PAGE * sizeof(bf16), out = 4 * DIM * sizeof(bf16);
        bf16 *columns = malloc(size), *before = malloc(out);
        int n_poisoned = 0;
        launch(&r);
        memcpy(before, r.out, out);
        gpu_read(columns, r.args.extra[0], size);
        sl_attn_decode_args args = {
            .geom = &c.geom, .spec = &r.spec, .layer = LAYER, .seed = r.seed, .n_seqs = 1, .seqs = c.queries};
        for (int h = 0; h < HEADS; h++) {
            const sl_proposal *propose = sl_composition_of(&r.spec).propose;
            sl_group g = sl_group_of(&args, 0, h);
            g.state = malloc(propose->state(&c.geom, &r.spec, n));
            propose->begin(&g);
            const int32_t *features = g.state; // how many, then which
            int used[DIM] = {0};
            for (int i = 1; i <= features[0]; i++) used[features[i]] = 1;
            for (int page = 0; page < c.pool.n_pages; page++)
                for (int d = 0; d < DIM; d++)
                    for (int j = 0; j < SL_PAGE && !used[d]; j++)
                        columns[((size_t)(page * HEADS + h) * DIM + d) * SL_PAGE + j] = 0x7fc0;
            n_poisoned += DIM - features[0];
            free(g.state);
        }
        CHECK(n_poisoned > 0);
        r.args.extra[0] = gpu_copy(columns, size);
        launch(&r);
        CHECK(!memcmp(before, r.out, out));
        free(columns), free(before);
        rig_free(&r);
    }
    ref_cache_free(&c);
}

static void zero_query(void) { // no feature is read, all scores are 0
    int n = 700;
    ref_cache c = ref_cache_new(4, 2, 64, 1, &n, 0, test_seed);
    for (int m = 0; m < N_ALL; m++) check(&c, all[m], 1);
    ref_cache_free(&c);
}

static void refused(void) { // what no kernel draws with
    static const char *const attn[] = {"bernoulli+santa-pps:S=64", "bernoulli-group+santa-sys:budget=variance"};
    for (int m = 0; m < 2; m++) {
        sl_attn_spec spec;
        CHECK_OK(sl_attn_parse(attn[m], &spec, &err), err);
        CHECK(!sl_attn_on_gpu(&spec));
    }
}
#endif

static const test_case cases[] = {
    GPU_CASE("lengths", lengths),
    GPU_CASE("shapes", shapes),
    GPU_CASE("counts", counts),
    GPU_CASE("closed-forms", closed_forms),
    GPU_CASE("ragged-batch", ragged_batch),
    GPU_CASE("equal-bits", equal_bits),
    GPU_CASE("unread-features", unread_features),
    GPU_CASE("zero-query", zero_query),
    GPU_CASE("refused", refused),
    {0},
};
const test_suite suite_cuda_bernoulli = {"cuda_bernoulli", cases};
