// tests/decode_rig.c - see decode_rig.h.
#include "tests/decode_rig.h"

#ifdef SLEIGH_CUDA
#include "tests/gpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COUNTERS = 65536, MAX_SEQS = 16 };
static sl_error err;

static void build_extras(rig *r) {
    sl_kv_need need[SL_MAX_NEEDS];
    const sl_attn_cuda_ops *ops = r->spec.method->cuda;
    const sl_attn_geom *g = &r->c.geom;
    int n = ops->needs ? ops->needs(&r->spec, need) : 0, n_pages = 0;
    int32_t *pages = malloc(r->c.pool.n_pages * sizeof *pages);
    for (int s = 0; s < r->c.n_seqs; s++)
        for (int i = 0; i < (r->c.seqs[s].n_tokens - 1) / SL_PAGE; i++) pages[n_pages++] = r->c.seqs[s].pages[i];
    for (int i = 0; i < n; i++) {
        size_t size = need[i].kind->size(need[i].arg, g->head_dim);
        void *data = gpu_new(size * r->c.pool.n_pages * g->n_kv_heads);
        r->args.extra[i] = data, r->args.extra_size[i] = size;
        if (n_pages > 0)
            need[i].kind->build_device(&(sl_kv_device_build){.arg = need[i].arg,
                                                             .head_dim = g->head_dim,
                                                             .n_kv_heads = g->n_kv_heads,
                                                             .size = size,
                                                             .n = n_pages,
                                                             .pages = gpu_copy(pages, n_pages * sizeof *pages),
                                                             .k = r->args.k,
                                                             .v = r->args.v,
                                                             .data = data});
        CHECK_OK(sl_kv_keep(&r->c.pool, need[i], &err), err);
        for (int s = 0; s < r->c.n_seqs; s++) {
            sl_kv_seq before = r->c.seqs[s];
            before.n_tokens--;
            sl_kv_build(&r->c.pool, &before, 0, need[i]);
        }
    }
    free(pages);
}

rig rig_new(ref_cache c, const char *attn, uint32_t seed) {
    const sl_attn_geom *g = &c.geom;
    rig r = {.c = c, .seed = seed, .group = g->n_heads / g->n_kv_heads, .n_slots = c.n_seqs * g->n_kv_heads};
    CHECK_OK(sl_attn_parse(attn, &r.spec, &err), err);
    r.unit = sl_composition_of(&r.spec).propose->score ? sl_composition_of(&r.spec).propose->unit : 0;
    for (int s = 0; s < c.n_seqs; s++) r.max_kv = c.seqs[s].n_tokens > r.max_kv ? c.seqs[s].n_tokens : r.max_kv;
    if (r.unit) r.max_blocks = (((r.max_kv + r.unit - 1) / r.unit + 63) / 64) * 2;
    size_t row = (size_t)g->n_heads * g->head_dim, bytes = (size_t)c.pool.n_pages * g->n_kv_heads * SL_PAGE * g->head_dim * 2;
    sl_row rows[MAX_SEQS];
    bf16 *q = malloc(c.n_seqs * row * sizeof *q);
    memset(rows, 0, sizeof rows);
    for (int s = 0; s < c.n_seqs; s++) {
        rows[s].position = c.seqs[s].n_tokens - 1, rows[s].sequence = c.queries[s].sequence, rows[s].seed = seed;
        rows[s].pages = gpu_copy(c.seqs[s].pages, c.seqs[s].n_pages * sizeof(int32_t));
    }
    for (size_t i = 0; i < c.n_seqs * row; i++) {
        q[i] = sl_f32_to_bf16(c.q[i]);
        c.q[i] = sl_bf16_to_f32(q[i]);
    }
    r.args = (sl_attn_cuda_decode_args){.layer = RIG_LAYER,
                                        .n_seqs = c.n_seqs,
                                        .max_kv = r.max_kv,
                                        .rows = gpu_copy(rows, sizeof rows),
                                        .q = gpu_copy(q, c.n_seqs * row * sizeof *q),
                                        .out = gpu_new(c.n_seqs * row * sizeof(bf16)),
                                        .k = gpu_copy(c.pool.k, bytes),
                                        .v = gpu_copy(c.pool.v, bytes),
                                        .stats = gpu_zero(sizeof(sl_attn_cuda_stats)),
                                        .ws = gpu_zero(r.spec.method->cuda->workspace(g, &r.spec, c.n_seqs, 1, r.max_kv))};
    build_extras(&r);
    r.out = malloc(c.n_seqs * row * sizeof *r.out);
    r.mass = malloc((size_t)r.n_slots * r.group * r.max_blocks * sizeof *r.mass);
    r.w = malloc((size_t)r.n_slots * r.group * r.max_blocks * SL_BLOCK * sizeof *r.w);
    free(q);
    return r;
}

void rig_free(rig *r) {
    ref_cache_free(&r->c);
    free(r->out), free(r->mass), free(r->w);
    gpu_free_all();
}

static sl_attn_cuda_stats read_stats(const rig *r) {
    sl_attn_cuda_stats c;
    gpu_read(&c, r->args.stats, sizeof c);
    return c;
}

void rig_launch(rig *r) {
    size_t n_mass = (size_t)r->n_slots * r->group * r->max_blocks;
    const sl_attn_cuda_ops *ops = r->spec.method->cuda;
    sl_attn_cuda_stats before = read_stats(r);
    r->args.geom = &r->c.geom, r->args.spec = &r->spec; // r may have moved
    for (int s = 0; s < r->c.n_seqs; s++) r->c.queries[s].kv.pool = &r->c.pool;
    ops->decode(&r->args);
    gpu_read(r->out, r->args.out, (size_t)r->c.n_seqs * r->c.geom.n_heads * r->c.geom.head_dim * sizeof *r->out);
    if (n_mass) {
        gpu_read(r->mass, (int *)r->args.ws + COUNTERS, n_mass * sizeof *r->mass);
        gpu_read(r->w, (char *)((int *)r->args.ws + COUNTERS) + n_mass * sizeof *r->mass, n_mass * SL_BLOCK * sizeof *r->w);
    }
    int *counters = malloc(COUNTERS * sizeof *counters);
    gpu_read(counters, r->args.ws, COUNTERS * sizeof *counters);
    for (int i = 0; i < COUNTERS; i++) CHECK_INT(counters[i], 0);
    free(counters);
    sl_attn_cuda_stats now = read_stats(r);
    r->stats = (sl_attn_stats){.k_rows = now.k_rows - before.k_rows,
                               .v_rows = now.v_rows - before.v_rows,
                               .v_distinct = now.v_distinct - before.v_distinct,
                               .samples = now.samples - before.samples,
                               .bytes = now.bytes - before.bytes,
                               .tries = now.tries - before.tries,
                               .features = (double)(now.features - before.features) / 1024};
    for (int s = 0; s < r->c.n_seqs; s++) ops->account(&r->c.geom, &r->spec, r->c.seqs[s].n_tokens, &r->stats);
}

// ---- weights ----

sl_weights rig_weights(const rig *r, int s, int head) {
    int slot = s * r->c.geom.n_kv_heads + head / r->group, h = head % r->group, n_kv = r->c.seqs[s].n_tokens;
    int unit = sl_composition_of(&r->spec).propose->unit, n = unit ? (n_kv + unit - 1) / unit : 0;
    sl_weights wt = {.n = n, .n_blocks = (n + SL_BLOCK - 1) / SL_BLOCK};
    wt.w = calloc((size_t)wt.n_blocks * SL_BLOCK + 1, sizeof *wt.w);
    wt.ref = malloc((wt.n_blocks + 1) * sizeof *wt.ref);
    wt.cum = calloc(wt.n_blocks + 1, sizeof *wt.cum);
    if (!r->unit) { // decode.c's uniform weights
        for (int b = 0; b < wt.n_blocks; b++) wt.ref[b] = SL_REF_EMPTY;
        wt.top = SL_REF_EMPTY, wt.each = 1u << 30;
        return wt;
    }
    for (int b = 0; b < wt.n_blocks; b++) {
        uint64_t packed = r->mass[((size_t)slot * r->group + h) * r->max_blocks + b], mass = 0;
        const bf16 *w = r->w + (((size_t)slot * r->max_blocks + b) * r->group + h) * SL_BLOCK;
        for (int i = 0; i < SL_BLOCK; i++) {
            wt.w[b * SL_BLOCK + i] = w[i];
            mass += (uint32_t)(sl_bf16_to_f32(w[i]) * 0x1p30f);
            if (b * SL_BLOCK + i >= n) CHECK_INT(w[i], 0);
        }
        CHECK_INT(packed & 0xffffffffffff, mass);
        wt.ref[b] = (int16_t)(packed >> 48), wt.cum[b + 1] = mass;
    }
    sl_weights_finish(&wt);
    return wt;
}

void rig_weights_free(sl_weights *wt) {
    free(wt->w), free(wt->ref), free(wt->cum);
}

// ---- draws ----

static double exact_score(const rig *r, int s, int head, int j) { // log2
    int dim = r->c.geom.head_dim;
    const float *q = r->c.q + ((size_t)s * r->c.geom.n_heads + head) * dim;
    const bf16 *k = ref_k_row(&r->c, s, head / r->group, j);
    double dot = 0;
    for (int d = 0; d < dim; d++) dot += (double)q[d] * sl_bf16_to_f32(k[d]);
    return dot * 1.4426950408889634 / sqrt(dim);
}

// f_j to share[i], and the means.
static void combine(const rig *r, rig_head *h, int s, int head) {
    sl_composition stages = sl_composition_of(&r->spec);
    double total = (double)sl_weights_total(&h->wt), top = -INFINITY, sum = 0,
           *share = malloc((h->draws.n + 1) * sizeof *share);
    for (int i = 0; i < h->draws.n; i++) {
        share[i] = stages.propose->exact ? log2((double)sl_weights_mass(&h->wt, h->draws.row[i]) / total)
                                         : exact_score(r, s, head, h->draws.row[i]);
        top = fmax(top, share[i]);
    }
    for (int i = 0; i < h->draws.n; i++) sum += share[i] = h->draws.count[i] * exp2(share[i] - top) * h->draws.inv_pi[i];
    for (int i = 0; i < h->draws.n; i++) {
        const bf16 *v = ref_v_row(&r->c, s, head / r->group, h->draws.row[i]);
        for (int d = 0; d < r->c.geom.head_dim; d++) {
            h->mean[d] += share[i] / sum * sl_bf16_to_f32(v[d]);
            h->size[d] += share[i] / sum * fabs(sl_bf16_to_f32(v[d]));
        }
    }
    free(share);
}

rig_head rig_draw(rig *r, int s, int head) {
    sl_composition stages = sl_composition_of(&r->spec);
    int n = r->c.seqs[s].n_tokens, dim = r->c.geom.head_dim;
    size_t most = stages.draw->capacity(&r->spec, n) + 1,
           scratch = stages.draw->scratch ? stages.draw->scratch(&r->spec, n) : 0;
    rig_head h = {.wt = rig_weights(r, s, head)};
    h.draws = (sl_draws){.row = malloc(most * sizeof(int32_t)),
                         .count = malloc(most * sizeof(int32_t)),
                         .inv_pi = malloc(most * sizeof(float)),
                         .scratch = malloc((scratch + 1) * sizeof(uint64_t))};
    sl_attn_decode_args args = {.geom = &r->c.geom, .spec = &r->spec, .n_seqs = r->c.n_seqs, .seqs = r->c.queries};
    sl_group group = sl_group_of(&args, s, head / r->group);
    sl_attn_report report;
    sl_head x = {.group = &group,
                 .draw = stages.draw,
                 .q = group.q + (size_t)(head % r->group) * dim,
                 .weights = h.wt,
                 .S = stages.draw->budget ? stages.draw->budget(&r->spec, n) : (int)sl_attn_get(&r->spec, "S"),
                 .id = {r->seed, r->c.queries[s].sequence, (uint32_t)n - 1, RIG_LAYER, (uint32_t)head},
                 .draws = h.draws,
                 .rows = malloc(most * sizeof *x.rows),
                 .coef = malloc(most * sizeof *x.coef),
                 .score = malloc(most * sizeof *x.score),
                 .out = malloc(dim * sizeof *x.out),
                 .report = &report};
    x.u = sl_uniform_philox(&x.id);
    stages.draw->run(&x);
    h.draws = x.draws;
    free(x.rows), free(x.coef), free(x.score), free(x.out);
    combine(r, &h, s, head);
    return h;
}

void rig_head_free(rig_head *h) {
    rig_weights_free(&h->wt);
    free(h->draws.row), free(h->draws.count), free(h->draws.inv_pi), free(h->draws.scratch);
}

// ---- the check ----

// The output of fp32 sums and exponentials over the head's rows, rounded to bf16: half an ulp is 2^-9 of it, a weight's
// relative error stays below 2e-5 (scores of a few hundred octaves at most, from fp32 sums). streaming is dense attention's
// kernel, which rounds weights to bf16 (test_cuda_decode.c).
static void check_output(const rig *r, const rig_head *h, int s, int head) {
    double weight = sl_composition_of(&r->spec).propose == &sl_propose_nothing ? 0x1p-7 : 4e-5;
    int dim = r->c.geom.head_dim;
    const bf16 *out = r->out + ((size_t)s * r->c.geom.n_heads + head) * dim;
    for (int d = 0; d < dim; d++) {
        double got = sl_bf16_to_f32(out[d]);
        if (!(fabs(got - h->mean[d]) <= fabs(h->mean[d]) * 0x1p-8 + h->size[d] * weight + 1e-7)) {
            char attn[128];
            sl_attn_format(&r->spec, attn, sizeof attn);
            FAIL("%s, %d rows, sequence %d, head %d: output %d is %g, the %d rows give %g", attn, r->c.seqs[s].n_tokens, s,
                 head, d, got, h->draws.n, h->mean[d]);
        }
    }
}

// Rows of a KV head that at least one head drew; *fresh: those of the newest page.
static int distinct_rows(const rig_head *heads, int group, int n_kv, int *fresh) {
    char *seen = calloc(n_kv, 1);
    int n = 0;
    *fresh = 0;
    for (int h = 0; h < group; h++)
        for (int i = 0; i < heads[h].draws.n; i++) {
            int j = heads[h].draws.row[i];
            n += !seen[j], *fresh += !seen[j] && j >= (n_kv - 1) / SL_PAGE * SL_PAGE;
            seen[j] = 1;
        }
    free(seen);
    return n;
}

void rig_check(rig *r) {
    const sl_proposal *propose = sl_composition_of(&r->spec).propose;
    const sl_attn_geom *g = &r->c.geom;
    sl_attn_stats want = {0};
    sl_attn_decode_args args = {.geom = g, .spec = &r->spec, .n_seqs = r->c.n_seqs, .seqs = r->c.queries};
    rig_head heads[SL_MAX_GROUP];
    for (int slot = 0; slot < r->n_slots; slot++) {
        int s = slot / g->n_kv_heads, kv_head = slot % g->n_kv_heads, n_kv = r->c.seqs[s].n_tokens, fresh;
        for (int h = 0; h < r->group; h++) {
            heads[h] = rig_draw(r, s, kv_head * r->group + h);
            check_output(r, &heads[h], s, kv_head * r->group + h);
            want.v_rows += heads[h].draws.n, want.samples += heads[h].draws.n_samples;
        }
        int distinct = distinct_rows(heads, r->group, n_kv, &fresh), refined = propose->exact ? 0 : distinct;
        sl_group group = sl_group_of(&args, s, kv_head);
        if (propose->needs) refined -= fresh;
        want.v_distinct += distinct;
        want.k_rows += propose->exact ? n_kv : refined + (propose->needs ? n_kv - (n_kv - 1) / SL_PAGE * SL_PAGE : 0);
        want.bytes += propose->bytes(&group) + (size_t)(refined + distinct) * g->head_dim * sizeof(bf16);
        for (int h = 0; h < r->group; h++) rig_head_free(&heads[h]);
    }
    CHECK_INT(r->stats.v_rows, want.v_rows);
    CHECK_INT(r->stats.samples, want.samples);
    CHECK_INT(r->stats.v_distinct, want.v_distinct);
    CHECK_INT(r->stats.k_rows, want.k_rows);
    CHECK_INT(r->stats.bytes, want.bytes);
    CHECK(r->stats.features == g->n_heads * r->c.n_seqs);
}
#else
typedef int decode_rig_needs_cuda; // a source file is not empty
#endif
