// tests/support/decode_check.c - see decode_check.h.
#include "tests/support/decode_check.h"

#ifdef SLEIGH_CUDA
#include "tests/support/gpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double LOG2_E = 1.4426950408889634;
static sl_error err;

const int fixture_ragged[FIXTURE_SEQS] = {1, 5000, 256, 257, 31, 9000, 1024, 77, 4096, 300, 2, 20000, 512, 513, 100, 3333};

// ---- the buckets of a model ----

typedef struct fixture_model {
    sl_attn_geom geom;
    sl_buckets buckets;
} fixture_model;

// The numbers of one layer in device memory, for each layer up to FIXTURE_LAYER.
static const void *of_all_layers(const void *data, size_t size) {
    char *all = malloc((FIXTURE_LAYER + 1) * size + 1);
    for (int i = 0; i <= FIXTURE_LAYER && data; i++) memcpy(all + i * size, data, size);
    const void *copy = data ? gpu_copy(all, (FIXTURE_LAYER + 1) * size) : NULL;
    free(all);
    return copy;
}

static fixture_model *model_of(const ref_cache *c) {
    const sl_buckets *b = &c->buckets;
    fixture_model *m = malloc(sizeof *m);
    size_t H = b->n_kv_heads, C = b->n_buckets, W = b->width, d = b->head_dim;
    *m = (fixture_model){.geom = c->geom, .buckets = *b};
    m->geom.buckets = &m->buckets;
    m->buckets.n_layers = FIXTURE_LAYER + 1;
    m->buckets.centroids = of_all_layers(b->centroids, H * C * d * sizeof(bf16));
    m->buckets.roped = of_all_layers(b->roped, H * C * d * sizeof(bf16));
    m->buckets.w1 = of_all_layers(b->w1, H * W * d * sizeof(bf16));
    m->buckets.w2 = of_all_layers(b->w2, H * C * W * sizeof(bf16));
    m->buckets.b1 = of_all_layers(b->b1, H * W * sizeof(float));
    m->buckets.b2 = of_all_layers(b->b2, H * C * sizeof(float));
    m->buckets.inv_freq = gpu_copy(b->inv_freq, d / 2 * sizeof(float));
    return m;
}

// ---- page extras ----

// Pages, or last pages of spans, of all sequences, with what a build on a device reads.
typedef struct build_lists {
    int n;
    int32_t *pages, *index, *slots, *parts, *slot_of; // slot_of: [n_pages of the pool]
} build_lists;

static build_lists list_builds(const ref_cache *c, int span) {
    int most = c->pool.n_pages;
    build_lists l = {0,
                     malloc(most * sizeof(int32_t)),
                     malloc(most * sizeof(int32_t)),
                     malloc(most * sizeof(int32_t)),
                     malloc((size_t)most * (span + 1) * sizeof(int32_t)),
                     malloc(most * sizeof(int32_t))};
    for (int i = 0; i < most; i++) l.slot_of[i] = -1;
    for (int s = 0; s < c->n_seqs; s++)
        for (int i = 0; i < (c->seqs[s].n_tokens - 1) / SL_PAGE; i++) {
            const int32_t *pages = c->seqs[s].pages;
            if (span && (i + 1) % span) continue;
            for (int j = 0; j < span; j++) l.parts[l.n * span + j] = pages[i + 1 - span + j];
            l.pages[l.n] = pages[i], l.index[l.n] = i, l.slots[l.n] = l.slot_of[pages[i]] = span ? l.n : pages[i];
            l.n++;
        }
    return l;
}

static void free_builds(build_lists *l) {
    free(l->pages), free(l->index), free(l->slots), free(l->parts), free(l->slot_of);
}

static void build_extras(decode_fixture *r) {
    sl_kv_need need[SL_MAX_NEEDS];
    const sl_attn_geom *g = &r->c->geom;
    int n = r->ops->needs ? r->ops->needs(&r->spec, need) : 0;
    for (int i = 0; i < n; i++) {
        int span = need[i].kind->span;
        build_lists l = list_builds(r->c, span);
        if (span) r->n_slots = l.n;
        size_t size = need[i].kind->size(need[i].arg, g->head_dim);
        void *data = gpu_new(size * (span ? l.n : r->c->pool.n_pages) * g->n_kv_heads + 1);
        r->args.extra[i] = data, r->args.extra_size[i] = size;
        r->args.extra_slots[i] = span ? gpu_copy(l.slot_of, r->c->pool.n_pages * sizeof(int32_t)) : NULL;
        sl_kv_device_build build = {.arg = need[i].arg,
                                    .head_dim = g->head_dim,
                                    .n_kv_heads = g->n_kv_heads,
                                    .layer = FIXTURE_LAYER,
                                    .size = size,
                                    .n = l.n,
                                    .pages = gpu_copy(l.pages, l.n * sizeof(int32_t)),
                                    .from =
                                        gpu_copy(span ? l.parts : l.pages, (size_t)l.n * (span ? span : 1) * sizeof(int32_t)),
                                    .index = gpu_copy(l.index, l.n * sizeof(int32_t)),
                                    .k = r->args.k,
                                    .v = r->args.v,
                                    .format = r->args.format,
                                    .data = data,
                                    .parts = gpu_copy(l.parts, (size_t)l.n * span * sizeof(int32_t)),
                                    .slots = gpu_copy(l.slots, l.n * sizeof(int32_t)),
                                    .of = r->args.extra[0], // the extra that spans are built from is the first one
                                    .of_size = r->args.extra_size[0],
                                    .buckets = r->args.geom->buckets};
        if (l.n > 0) need[i].kind->build_device(&build);
        ref_build_extras(r->c, need[i], 0, r->c->n_seqs);
        free_builds(&l);
    }
}

// The arrays that decode stores in the workspace: none (0), masses (1), masses and sizes (2).
static int count_stored(const sl_attn_spec *spec) {
    sl_composition c = sl_composition_of(spec);
    if (c.select) return 1; // masses of the set
    if (!c.propose->score || (!c.draw && c.propose != &sl_propose_quantised)) return 0;
    return c.draw && c.draw->size_power && c.draw->size_power(spec) ? 2 : 1;
}

// 1: built pages store sizes in place of row masses, and only block masses of masses (santa-is with a stated error).
static int stores_sizes_only(const decode_fixture *r) {
    return r->n_stored > 1 && sl_composition_of(&r->spec).draw == &sl_draw_importance;
}

static size_t n_masses(const decode_fixture *r) {
    return (size_t)r->n_pairs * r->group * r->max_blocks;
}

static size_t aligned(size_t bytes) {
    return (bytes + SL_CUDA_ALIGNMENT - 1) / SL_CUDA_ALIGNMENT * SL_CUDA_ALIGNMENT;
}

static size_t out_size(const decode_fixture *r, int n_seqs) {
    return (size_t)n_seqs * r->c->geom.n_heads * r->c->geom.head_dim;
}

// See decode_fixture.set. NULL: the specification draws from no set.
static char *take_sets(ref_cache *c, const char *attn, uint32_t seed, int least_kv);

decode_fixture fixture_new(ref_cache *c, const char *attn, uint32_t seed) {
    return fixture_new_for(c, attn, seed, 0);
}

decode_fixture fixture_new_for(ref_cache *c, const char *attn, uint32_t seed, int least_kv) {
    const sl_attn_geom *g = &c->geom;
    decode_fixture r = {.c = c, .group = g->n_heads / g->n_kv_heads, .n_pairs = c->n_seqs * g->n_kv_heads, .max_kv = least_kv};
    r.set = take_sets(c, attn, seed, least_kv);
    CHECK_OK(sl_attn_parse(attn, &r.spec, &err), err);
    CHECK(sl_attn_on_gpu(&r.spec) && c->n_seqs <= FIXTURE_SEQS && c->pool.formats.k == c->pool.formats.v);
    const sl_attn_cuda_ops *ops = c->pool.formats.k == SL_BF16 ? r.spec.method->cuda : r.spec.method->cuda->bytes;
    CHECK(ops != NULL);
    r.ops = ops;
    r.n_stored = count_stored(&r.spec), r.unit = r.set ? 1 : sl_composition_of(&r.spec).propose->unit;
    for (int s = 0; s < c->n_seqs; s++) r.max_kv = c->seqs[s].n_tokens > r.max_kv ? c->seqs[s].n_tokens : r.max_kv;
    if (r.n_stored) r.max_blocks = (((r.max_kv + r.unit - 1) / r.unit + 63) / 64) * 2;
    size_t bytes = (size_t)c->pool.n_pages * g->n_kv_heads * sl_kv_block_bytes(c->pool.formats.k, g->head_dim),
           n_q = out_size(&r, c->n_seqs);
    if (r.spec.method->needs_buckets) r.model = model_of(c), g = &r.model->geom;
    r.state_size = ops->state ? ops->state(g, &r.spec) : 0;
    char *state = gpu_zero(c->n_seqs * r.state_size + 1);
    bf16 *q = malloc(n_q * sizeof *q);
    for (size_t i = 0; i < n_q; i++) {
        q[i] = sl_f32_to_bf16(c->q[i]);
        c->q[i] = sl_bf16_to_f32(q[i]);
    }
    for (int s = 0; s < c->n_seqs; s++)
        r.rows[s] = (sl_row){.position = c->seqs[s].n_tokens - 1,
                             .sequence = c->queries[s].sequence,
                             .seed = seed,
                             .state = state + s * r.state_size,
                             .pages = gpu_copy(c->seqs[s].pages, c->seqs[s].n_pages * sizeof(int32_t))};
    r.args = (sl_attn_cuda_decode_args){.geom = g,
                                        .layer = FIXTURE_LAYER,
                                        .n_seqs = c->n_seqs,
                                        .max_kv = r.max_kv,
                                        .rows = gpu_copy(r.rows, sizeof r.rows),
                                        .q = gpu_copy(q, n_q * sizeof *q),
                                        .out = gpu_new(n_q * sizeof(bf16)),
                                        .k = gpu_copy(c->pool.k, bytes),
                                        .v = gpu_copy(c->pool.v, bytes),
                                        .format = c->pool.formats.k,
                                        .stats = gpu_zero(sizeof(sl_attn_cuda_stats)),
                                        .ws = gpu_zero(ops->workspace(g, &r.spec, c->n_seqs, 1, r.max_kv)),
                                        .keeps_masses = 1};
    build_extras(&r);
    gpu_sync("page extras"); // because a step may read the extras before an earlier kernel has ended
    r.out = malloc(n_q * sizeof *r.out);
    for (int i = 0; i < r.n_stored; i++) r.mass[i] = malloc(n_masses(&r) * sizeof *r.mass[i]);
    if (r.n_stored) r.stored = malloc(n_masses(&r) * SL_BLOCK * sizeof *r.stored);
    free(q);
    return r;
}

void fixture_free(decode_fixture *r) {
    free(r->out), free(r->model), free(r->set);
    free(r->mass[0]), free(r->mass[1]), free(r->stored);
    gpu_free_all();
}

void fixture_upload_rows(decode_fixture *r) {
    CHECK(cudaMemcpy((void *)r->args.rows, r->rows, sizeof r->rows, cudaMemcpyHostToDevice) == cudaSuccess);
}

void fixture_seed(decode_fixture *r, uint32_t seed) {
    for (int s = 0; s < r->c->n_seqs; s++) r->rows[s].seed = seed;
    if (r->state_size) CHECK(cudaMemset(r->rows[0].state, 0, r->c->n_seqs * r->state_size) == cudaSuccess);
    fixture_upload_rows(r);
}

static void decode(decode_fixture *r, const sl_attn_cuda_decode_args *args) {
    r->ops->decode(args);
    sl_cuda_end_step(args, 1, 0);
    gpu_read(r->out, args->out, out_size(r, args->n_seqs) * sizeof *r->out);
}

void fixture_decode(decode_fixture *r) {
    fixture_decode_queued(r, 1);
}

void fixture_decode_queued(decode_fixture *r, int n) {
    r->args.spec = &r->spec; // the caller may have copied *r
    for (int i = 1; i < n; i++) r->ops->decode(&r->args);
    decode(r, &r->args);
}

void fixture_go_back(decode_fixture *r, int back) {
    for (int s = 0; s < r->c->n_seqs; s++) {
        int newest = r->c->seqs[s].n_tokens - 1;
        r->rows[s].position = newest > back ? newest - back : 0;
    }
    fixture_upload_rows(r);
}

void fixture_launch_after(decode_fixture *r, int n_before) {
    for (int back = n_before; back > 0; back--) {
        fixture_go_back(r, back);
        fixture_decode(r);
    }
    fixture_go_back(r, 0);
    fixture_launch(r);
}

void fixture_decode_alone(decode_fixture *r, int s) {
    sl_attn_cuda_decode_args args = r->args;
    args.spec = &r->spec, args.n_seqs = 1, args.max_kv = r->c->seqs[s].n_tokens;
    args.rows += s, args.q += s * out_size(r, 1);
    decode(r, &args);
}

static sl_attn_cuda_stats read_stats(const decode_fixture *r) {
    sl_attn_cuda_stats c;
    gpu_read(&c, r->args.stats, sizeof c);
    return c;
}

void fixture_launch(decode_fixture *r) {
    sl_attn_cuda_stats before = read_stats(r);
    fixture_decode(r);
    const char *at = (char *)((int *)r->args.ws + SL_CUDA_COUNTERS); // attention_cuda.h states the layout
    size_t n = n_masses(r) * sizeof *r->mass[0], n_w = n_masses(r) * SL_BLOCK * sizeof *r->stored;
    if (r->n_stored) gpu_read(r->mass[0], at, n), gpu_read(r->stored, at + aligned(n), n_w);
    if (r->n_stored > 1) gpu_read(r->mass[1], at + aligned(n) + aligned(n_w), n);
    int *counters = malloc(SL_CUDA_COUNTERS * sizeof *counters);
    gpu_read(counters, r->args.ws, SL_CUDA_COUNTERS * sizeof *counters);
    for (int i = 0; i < SL_CUDA_COUNTERS; i++) CHECK_INT(counters[i], 0);
    free(counters);
    sl_attn_cuda_stats now = read_stats(r);
    uint32_t kurtosis_bits = (uint32_t)now.kurtosis; // the largest of all launches so far
    float kurtosis;
    memcpy(&kurtosis, &kurtosis_bits, sizeof kurtosis);
    r->stats = (sl_attn_stats){.k_rows = now.k_rows - before.k_rows,
                               .v_rows = now.v_rows - before.v_rows,
                               .v_distinct = now.v_distinct - before.v_distinct,
                               .samples = now.samples - before.samples,
                               .bytes = now.bytes - before.bytes,
                               .tries = now.tries - before.tries,
                               .fallbacks = now.fallbacks - before.fallbacks,
                               .heavy_tails = now.heavy_tails - before.heavy_tails,
                               .kurtosis = kurtosis,
                               .features = (double)(now.features - before.features) / 1024,
                               .stated = now.stated - before.stated,
                               .certified = now.certified - before.certified,
                               .unbounded = now.unbounded - before.unbounded,
                               .stated_units = now.stated_units - before.stated_units};
    for (int s = 0; s < r->c->n_seqs; s++) r->ops->account(&r->c->geom, &r->spec, r->rows[s].position + 1, &r->stats);
}

static const char *set_of(const decode_fixture *r, int s, int head) {
    return r->set + ((size_t)s * r->c->geom.n_heads + head) * r->max_kv;
}

// p: [n] of dense attention. Fills mu with the mean of the values of the set.
static void mean_of_set(const decode_fixture *r, int s, int head, const double *p, double *mu) {
    double total = 0, v[128];
    int dim = r->c->geom.head_dim;
    memset(mu, 0, dim * sizeof *mu);
    for (int j = 0; j < r->c->seqs[s].n_tokens; j++) {
        if (!set_of(r, s, head)[j]) continue;
        ref_value(r->c, s, head / r->group, j, v);
        total += p[j];
        for (int d = 0; d < dim; d++) mu[d] += p[j] * v[d];
    }
    for (int d = 0; d < dim; d++) mu[d] /= total;
}

double fixture_error(const decode_fixture *r, int s, int head, double *mu) {
    int dim = r->c->geom.head_dim, n = r->c->seqs[s].n_tokens;
    size_t at = s * out_size(r, 1) + (size_t)head * dim;
    double *p = malloc(n * sizeof *p), own[128];
    float out[128];
    ref_attention(r->c, s, head, r->c->q + at, n, p, mu ? mu : own);
    if (r->set) mean_of_set(r, s, head, p, mu ? mu : own);
    for (int d = 0; d < dim; d++) out[d] = sl_bf16_to_f32(r->out[at + d]);
    free(p);
    return ref_relative(out, mu ? mu : own, dim);
}

// ---- the threshold of a layer ----

// The place of a position, at the end of the sequence's state (attention_cuda.h).
static const char *place_of(const decode_fixture *r, int s, int position) {
    size_t place = sizeof(sl_threshold) + r->c->geom.n_heads * sizeof(sl_threshold_step);
    return r->rows[s].state + r->state_size - (position % 2 ? 1 : 2) * place;
}
static const char *place_of_step(const decode_fixture *r, int s) {
    return place_of(r, s, r->rows[s].position);
}

sl_threshold fixture_threshold(const decode_fixture *r, int s) {
    sl_threshold t;
    gpu_read(&t, place_of_step(r, s), sizeof t);
    return t;
}

void fixture_steps(const decode_fixture *r, int s, sl_threshold_step *out) {
    gpu_read(out, place_of_step(r, s) + sizeof(sl_threshold), r->c->geom.n_heads * sizeof *out);
}

// m of a head in the last step (draw_importance.c, size_of_mean), from the norms of the step before.
static double size_of_mean(const decode_fixture *r, int s, int head) {
    int position = r->rows[s].position, first = (position / SL_PAGE - 1) * SL_PAGE;
    sl_threshold_step before;
    double sum = 0;
    gpu_read(&before, place_of(r, s, position - 1) + sizeof(sl_threshold) + head * sizeof before, sizeof before);
    if (position > 0 && fixture_threshold(r, s).next == (uint32_t)position && before.squares > 0)
        return 1.25 * sqrt(before.squares);
    for (int j = first; j < first + SL_PAGE; j++) {
        bf16 norm;
        sl_norms(ref_value_run(r->c, s, head / r->group, j), 1, r->c->geom.head_dim, &norm);
        sum += sl_bf16_to_f32(norm);
    }
    return sum / SL_PAGE;
}

// ---- scores and masses ----

static double exact_score(const decode_fixture *r, int s, int head, int j) { // in log2 units
    int dim = r->c->geom.head_dim;
    const float *q = r->c->q + s * out_size(r, 1) + (size_t)head * dim;
    double dot = 0, k[128];
    ref_key(r->c, s, head / r->group, j, k);
    for (int d = 0; d < dim; d++) dot += q[d] * k[d];
    return dot * LOG2_E / sqrt(dim);
}

static sl_attn_decode_args cpu_args(decode_fixture *r) {
    for (int s = 0; s < r->c->n_seqs; s++) r->c->queries[s].kv.pool = &r->c->pool; // the caller may have copied the cache
    return (sl_attn_decode_args){.geom = &r->c->geom,
                                 .spec = &r->spec,
                                 .layer = FIXTURE_LAYER,
                                 .seed = r->rows[0].seed,
                                 .n_seqs = r->c->n_seqs,
                                 .seqs = r->c->queries};
}

// The state of a proposal after the scores of all pages: the bounds of quantised scores. NULL: the proposal has none.
static void *scored_state(const decode_fixture *r, sl_group *g) {
    const sl_proposal *propose = sl_composition_of(&r->spec).propose;
    int n_kv = g->kv->n_kv;
    if (!propose->state) return NULL;
    float *score = malloc(SL_MAX_GROUP * SL_CHUNK * sizeof *score);
    g->state = malloc(propose->state(&r->c->geom, &r->spec, n_kv));
    for (int page = 0; page * SL_PAGE < n_kv; page++) propose->score(g, page, score);
    free(score);
    return g->state;
}

// The proposed scores of a KV head. bounds: NULL, or [group][pages], the bounds of quantised scores.
static double *proposed_scores(decode_fixture *r, int s, int kv_head, double *bounds) {
    const sl_proposal *propose = sl_composition_of(&r->spec).propose;
    int n_kv = r->c->seqs[s].n_tokens, n = (n_kv + r->unit - 1) / r->unit, each = SL_PAGE / r->unit;
    double *out = malloc((size_t)r->group * n * sizeof *out);
    if (propose->exact) {
        for (int i = 0; i < r->group * n; i++) out[i] = exact_score(r, s, kv_head * r->group + i / n, i % n);
        return out;
    }
    sl_attn_decode_args args = cpu_args(r);
    sl_group g = sl_group_of(&args, s, kv_head);
    float *score = malloc(SL_MAX_GROUP * SL_CHUNK * sizeof *score);
    if (propose->state) g.state = malloc(propose->state(&r->c->geom, &r->spec, n_kv));
    if (propose->begin) propose->begin(&g);
    for (int page = 0; page * SL_PAGE < n_kv; page++) {
        propose->score(&g, page, score);
        for (int h = 0; bounds && h < r->group; h++)
            bounds[h * (n_kv / SL_PAGE + 1) + page] = sl_quantised_bound(&(sl_head){.group = &g, .index = h}, page);
        for (int h = 0; h < r->group; h++)
            for (int i = 0; i < each && page * each + i < n; i++)
                out[(size_t)h * n + page * each + i] = score[h * SL_CHUNK + i];
    }
    free(g.state), free(score);
    return out;
}

double *fixture_scores(decode_fixture *r, int s, int kv_head) {
    return proposed_scores(r, s, kv_head, NULL);
}

// Computes sizes from masses, and checks the sums of the blocks against the sums that the GPU stored.
static void make_sizes(const decode_fixture *r, int s, int head, const uint64_t *packed, sl_masses *masses) {
    size_t n_blocks = masses->n_blocks;
    bf16 *norm = malloc(masses->n * sizeof *norm), *w = malloc(n_blocks * SL_BLOCK * sizeof *w);
    int16_t *ref = malloc(n_blocks * sizeof *ref);
    memcpy(w, masses->stored, n_blocks * SL_BLOCK * sizeof *w);
    memcpy(ref, masses->ref, n_blocks * sizeof *ref);
    for (int j = 0; j < masses->n; j++) sl_norms(ref_value_run(r->c, s, head / r->group, j), 1, r->c->geom.head_dim, norm + j);
    sl_attn_kernels_best()->sizes(w, ref, norm, masses->n, 1, masses->stored, masses->ref, masses->cum + 1);
    for (size_t b = 0; b < n_blocks; b++) {
        CHECK_INT(packed[b] & 0xfffffffff, masses->cum[b + 1]);
        CHECK_INT((int16_t)(packed[b] >> 48), masses->ref[b]);
        if (masses->ref[b] != SL_REF_EMPTY) CHECK_INT((int)(packed[b] >> 36 & 0xff) - 126, masses->ref[b] - ref[b]);
    }
    free(norm), free(w), free(ref);
}

sl_masses fixture_masses(const decode_fixture *r, int which, int s, int head) {
    int pair = s * r->c->geom.n_kv_heads + head / r->group, h = head % r->group, n_kv = r->c->seqs[s].n_tokens;
    int n = r->unit ? (n_kv + r->unit - 1) / r->unit : 0;
    size_t first = ((size_t)pair * r->group + h) * r->max_blocks; // first block of the head
    sl_masses masses = {.n = n, .n_blocks = (n + SL_BLOCK - 1) / SL_BLOCK};
    masses.stored = calloc((size_t)masses.n_blocks * SL_BLOCK + 1, sizeof *masses.stored);
    masses.ref = malloc((masses.n_blocks + 1) * sizeof *masses.ref);
    masses.cum = calloc(masses.n_blocks + 1, sizeof *masses.cum);
    if (which >= r->n_stored) { // the uniform masses of decode.c
        for (int b = 0; b < masses.n_blocks; b++) masses.ref[b] = SL_REF_EMPTY;
        masses.top = SL_REF_EMPTY, masses.uniform = 1u << 30;
        return masses;
    }
    int n_built = stores_sizes_only(r) ? (n_kv - 1) / SL_PAGE * (SL_PAGE / SL_BLOCK) : 0; // blocks with rows of sizes
    for (int b = 0; b < masses.n_blocks; b++) {
        if (which == 1 && stores_sizes_only(r) && b >= n_built) { // the newest page has no sizes
            masses.ref[b] = SL_REF_EMPTY;
            continue;
        }
        if (which == 0 && b < n_built) { // only the block mass is stored
            masses.ref[b] = (int16_t)(r->mass[0][first + b] >> 48);
            masses.cum[b + 1] = r->mass[0][first + b] & 0xfffffffff;
            continue;
        }
        if (r->set && r->mass[0][first + b] == (uint64_t)SL_REF_EMPTY << 48) { // no row of the set: rows are not stored
            masses.ref[b] = SL_REF_EMPTY;
            continue;
        }
        uint64_t packed = r->mass[b < n_built][first + b], mass = 0;
        const bf16 *w = r->stored + (((size_t)pair * r->max_blocks + b) * r->group + h) * SL_BLOCK;
        for (int i = 0; i < SL_BLOCK; i++) {
            masses.stored[b * SL_BLOCK + i] = w[i];
            mass += (uint32_t)(sl_bf16_to_f32(w[i]) * 0x1p30f);
            if (b * SL_BLOCK + i >= n) CHECK_INT(w[i], 0);
        }
        CHECK_INT(packed & (b < n_built ? 0xfffffffff : 0xffffffffffff), mass);
        masses.ref[b] = (int16_t)(packed >> 48), masses.cum[b + 1] = mass;
    }
    if (which == 1 && !n_built && !stores_sizes_only(r)) make_sizes(r, s, head, r->mass[1] + first, &masses);
    sl_masses_finish(&masses);
    return masses;
}

void fixture_masses_free(sl_masses *masses) {
    free(masses->stored), free(masses->ref), free(masses->cum);
}

// The masses of a block of 32 rows whose row masses are not stored.
static void check_block_masses(const decode_fixture *r, int s, int head, const double *score) {
    sl_masses masses = fixture_masses(r, 0, s, head);
    for (int b = 0; b < (r->c->seqs[s].n_tokens - 1) / SL_PAGE * (SL_PAGE / SL_BLOCK); b++) {
        double want = 0, unit = exp2(masses.top - masses.ref[b] - 38); // sl_masses_finish: mass << 8 >> (top - ref)
        for (int j = b * SL_BLOCK; j < (b + 1) * SL_BLOCK; j++) want += exp2(score[j] - masses.ref[b]);
        double got = (double)(masses.cum[b + 1] - masses.cum[b]) * unit;
        if (!(fabs(got - want) <= want * 0x1p-7 + unit))
            FAIL("%s, sequence %d, head %d, block %d: mass %g, expected %g", r->spec.method->name, s, head, b, got, want);
    }
    fixture_masses_free(&masses);
}

// A stored mass is 2^(score - ref). Its rounding has a relative error of at most 2^-8, and the fp32 error of the score adds at
// most another 2^-8. The reference of a block is the largest score of the block, rounded up.
static void check_masses(decode_fixture *r, int which, int s, int head, const double *score) {
    sl_masses masses = fixture_masses(r, which, s, head);
    // Sizes are rounded twice, by 2^-8. If only sizes are stored, they are also rounded up, by 2^-7.
    int n_built = stores_sizes_only(r) ? (masses.n - 1) / SL_PAGE * (SL_PAGE / SL_BLOCK) : 0;
    double relative = !which ? 0x1p-7 : stores_sizes_only(r) ? 0x1p-6 : 0x1.1p-7;
    double near = !which ? 1e-3 : stores_sizes_only(r) ? 0.03 : 0.012;
    for (int b = which ? 0 : n_built; b < (which && stores_sizes_only(r) ? n_built : masses.n_blocks); b++) {
        double top = -INFINITY;
        for (int j = b * SL_BLOCK; j < masses.n && j < (b + 1) * SL_BLOCK; j++) {
            double want = exp2(score[j] - masses.ref[b]), got = sl_bf16_to_f32(masses.stored[j]);
            if (!(fabs(got - want) <= want * relative + 1e-30))
                FAIL("%s, sequence %d of %d rows, head %d, row %d: %s %g, expected %g", r->spec.method->name, s,
                     r->c->seqs[s].n_tokens, head, j, which ? "size" : "mass", got, want);
            top = fmax(top, score[j]);
            r->n_compared++, r->n_off_by_1 += masses.stored[j] != sl_f32_to_bf16((float)want);
        }
        if (masses.ref[b] != ceil(top) && fabs(top - rint(top)) > near)
            FAIL("%s, sequence %d, head %d, block %d: reference %d, expected %g", r->spec.method->name, s, head, b,
                 masses.ref[b], ceil(top));
    }
    fixture_masses_free(&masses);
}

// Rows of the set have the masses of their exact scores, and other rows have none. The reference of a block follows from the
// rows that were scored: all rows (topk), or the rows of the set.
static void check_masses_of_set(const decode_fixture *r, int s, int head) {
    int n = r->c->seqs[s].n_tokens, scores_all = sl_composition_of(&r->spec).propose->exact;
    const char *set = set_of(r, s, head);
    sl_masses masses = fixture_masses(r, 0, s, head);
    for (int b = 0; b < masses.n_blocks; b++) {
        double top = -INFINITY;
        int any = 0;
        for (int j = b * SL_BLOCK; j < n && j < (b + 1) * SL_BLOCK; j++) {
            double score = set[j] || scores_all ? exact_score(r, s, head, j) : -INFINITY;
            double want = set[j] ? exp2(score - masses.ref[b]) : 0, got = sl_bf16_to_f32(masses.stored[j]);
            if (!(fabs(got - want) <= want * 0x1p-7 + (set[j] ? 1e-30 : 0)))
                FAIL("sequence %d of %d rows, head %d, row %d: mass %g, expected %g", s, n, head, j, got, want);
            top = fmax(top, score), any |= got > 0;
        }
        if (any && masses.ref[b] != ceil(top) && fabs(top - rint(top)) > 1e-3)
            FAIL("sequence %d, head %d, block %d: reference %d, expected %g", s, head, b, masses.ref[b], ceil(top));
    }
    fixture_masses_free(&masses);
}

void fixture_check_masses(decode_fixture *r) {
    const sl_attn_geom *g = &r->c->geom;
    for (int i = 0; r->set && i < r->c->n_seqs * g->n_heads; i++) check_masses_of_set(r, i / g->n_heads, i % g->n_heads);
    if (r->set) return;
    for (int pair = 0; r->n_stored && pair < r->n_pairs; pair++) {
        int s = pair / g->n_kv_heads, kv_head = pair % g->n_kv_heads, n_kv = r->c->seqs[s].n_tokens;
        int n = (n_kv + r->unit - 1) / r->unit, n_pages = n_kv / SL_PAGE + 1, sizes_only = stores_sizes_only(r);
        double *bounds = calloc((size_t)r->group * n_pages, sizeof *bounds);
        double *score = proposed_scores(r, s, kv_head, sizes_only ? bounds : NULL);
        for (int h = 0; h < r->group; h++) {
            double *own = score + (size_t)h * n, m = sizes_only && n_pages > 1 ? size_of_mean(r, s, kv_head * r->group + h) : 0;
            check_masses(r, 0, s, kv_head * r->group + h, own);
            if (sizes_only) check_block_masses(r, s, kv_head * r->group + h, own);
            for (int j = 0; r->n_stored > 1 && j < n; j++) {
                bf16 norm;
                sl_norms(ref_value_run(r->c, s, kv_head, j), 1, g->head_dim, &norm);
                own[j] += log2(sl_bf16_to_f32(norm) + m) + bounds[h * n_pages + j / SL_PAGE];
            }
            if (r->n_stored > 1) check_masses(r, 1, s, kv_head * r->group + h, own);
        }
        free(score), free(bounds);
    }
}

// ---- draws ----

// The rows that the CPU draws for one head from the masses that the GPU stored, and the output that these rows give.
typedef struct drawn_head {
    sl_masses masses, sizes;
    sl_draws draws;
    sl_threshold_step step;
    double log2_total;           // of the sum of the drawn rows' masses / pi_j
    double mean[128], size[128]; // sum_j f_j v_j and sum_j f_j |v_j|, with f_j the share of row j
} drawn_head;

// log2 of a row's mass: the stored mass with exact scores, with dense-q, and in the newest page with santa-is; else from the
// exact score.
static double log_mass(const decode_fixture *r, const sl_masses *masses, int s, int head, int j) {
    sl_composition stages = sl_composition_of(&r->spec);
    int is_newest = j >= (r->c->seqs[s].n_tokens - 1) / SL_PAGE * SL_PAGE;
    if (stages.propose->exact || !stages.draw || stages.normaliser == SL_BY_TOTAL ||
        (stages.draw == &sl_draw_importance && is_newest))
        return log2(sl_bf16_to_f32(masses->stored[j])) + masses->ref[j / SL_BLOCK];
    return exact_score(r, s, head, j);
}

// Computes the shares f_j and the means.
static void combine(const decode_fixture *r, drawn_head *h, int s, int head) {
    int by_total = sl_composition_of(&r->spec).normaliser == SL_BY_TOTAL;
    double top = -INFINITY, sum = 0, *share = malloc((h->draws.n + 1) * sizeof *share);
    for (int i = 0; i < h->draws.n; i++) top = fmax(top, share[i] = log_mass(r, &h->masses, s, head, h->draws.row[i]));
    if (by_total) top = log2((double)sl_masses_total(&h->masses)) + h->masses.top - 38;
    for (int i = 0; i < h->draws.n; i++) sum += share[i] = h->draws.count[i] * exp2(share[i] - top) * h->draws.inv_pi[i];
    if (by_total) sum = 1;
    h->log2_total = top + log2(sum);
    for (int i = 0; i < h->draws.n; i++) {
        double v[128];
        ref_value(r->c, s, head / r->group, h->draws.row[i], v);
        for (int d = 0; d < r->c->geom.head_dim; d++) {
            h->mean[d] += share[i] / sum * v[d];
            h->size[d] += share[i] / sum * fabs(v[d]);
        }
    }
    free(share);
}

static void draw_all_rows(sl_draws *out, int n) {
    sl_draws_clear(out);
    for (int j = 0; j < n; j++) sl_draws_add(out, j, 1);
}

static drawn_head draw_head(decode_fixture *r, int s, int head) {
    sl_composition stages = sl_composition_of(&r->spec);
    const sl_draw *draw = stages.draw;
    int n = r->c->seqs[s].n_tokens, dim = r->c->geom.head_dim;
    size_t most = (draw ? draw->capacity(&r->spec, n) : (size_t)n) + 1,
           scratch = draw && draw->scratch ? draw->scratch(&r->spec, n) : 0;
    drawn_head h = {.masses = fixture_masses(r, 0, s, head)};
    if (r->n_stored > 1) h.sizes = fixture_masses(r, 1, s, head);
    h.draws = (sl_draws){.row = malloc(most * sizeof(int32_t)),
                         .count = malloc(most * sizeof(int32_t)),
                         .inv_pi = malloc(most * sizeof(float)),
                         .scratch = malloc((scratch + 1) * sizeof(uint64_t))};
    sl_attn_decode_args args = cpu_args(r);
    sl_group group = sl_group_of(&args, s, head / r->group);
    void *state = draw == &sl_draw_verified ? scored_state(r, &group) : NULL;
    sl_attn_report report = {0};
    sl_head x = {.group = &group,
                 .index = head % r->group,
                 .draw = draw,
                 .q = group.q + (size_t)(head % r->group) * dim,
                 .masses = h.masses,
                 .sizes = h.sizes,
                 .id = {r->rows[s].seed, r->rows[s].sequence, (uint32_t)n - 1, FIXTURE_LAYER, (uint32_t)head},
                 .draws = h.draws,
                 .rows = malloc(most * sizeof *x.rows),
                 .coef = malloc(most * sizeof *x.coef),
                 .score = malloc(most * sizeof *x.score),
                 .out = malloc(dim * sizeof *x.out),
                 .report = &report};
    x.u = sl_uniform_philox(&x.id);
    if (draw) x.S = draw->budget ? draw->budget(&r->spec, n) : (int)sl_attn_get(&r->spec, "S");
    if (sl_carries_threshold(&r->spec)) x.kappa = fixture_threshold(r, s).kappa;
    if (draw && draw->prepare) draw->prepare(&x);
    if (draw)
        draw->run(&x);
    else
        draw_all_rows(&x.draws, n);
    h.draws = x.draws, h.step = x.step;
    free(x.rows), free(x.coef), free(x.score), free(x.out), free(state);
    combine(r, &h, s, head);
    return h;
}

static void drawn_head_free(drawn_head *h) {
    fixture_masses_free(&h->masses), fixture_masses_free(&h->sizes);
    free(h->draws.row), free(h->draws.count), free(h->draws.inv_pi), free(h->draws.scratch);
}

static char *take_sets(ref_cache *c, const char *attn, uint32_t seed, int least_kv) {
    sl_attn_spec spec;
    char first[128];
    CHECK_OK(sl_attn_parse(attn, &spec, &err), err);
    if (!sl_composition_of(&spec).select) return NULL;
    snprintf(first, sizeof first, "%.*s", (int)strcspn(attn, "+"), attn);
    decode_fixture r = fixture_new_for(c, first, seed, least_kv);
    fixture_launch(&r);
    r.set = calloc((size_t)c->n_seqs * c->geom.n_heads, r.max_kv);
    for (int i = 0; i < c->n_seqs * c->geom.n_heads; i++) {
        drawn_head h = draw_head(&r, i / c->geom.n_heads, i % c->geom.n_heads);
        int takes_all = r.n_stored && sl_masses_out_of_range(&h.masses); // the head attends exactly
        for (int k = 0; k < h.draws.n; k++) r.set[(size_t)i * r.max_kv + h.draws.row[k]] = 1;
        if (takes_all) memset(r.set + (size_t)i * r.max_kv, 1, c->seqs[i / c->geom.n_heads].n_tokens);
        drawn_head_free(&h);
    }
    char *set = r.set;
    r.set = NULL;
    fixture_free(&r);
    return set;
}

// ---- the check ----

// The allowed error of a head's output, as a share of the sum of the sizes of its rows, without the rounding of the output to
// bf16.
// - fp32 sums of stored masses: 2^-24 per row.
// - masses from scores of at most a few hundred octaves, which are fp32 sums: 2e-5, doubled.
// - santa-is: its scores are sums of products that are up to 2^5 times as large: 2^-12, doubled. The same for dense-q, which
// takes
//   all rows.
// - streaming: the kernel of dense attention, which rounds masses to bf16 (test_cuda_decode.c).
static double tolerance(const decode_fixture *r, const drawn_head *h) {
    sl_composition stages = sl_composition_of(&r->spec);
    if (stages.propose == &sl_propose_nothing) return 0x1p-7;
    if (!stages.draw || stages.draw == &sl_draw_importance) return 0x1p-11;
    return stages.normaliser == SL_BY_TOTAL ? (h->draws.n_draws + 8) * 0x1p-24 : 4e-5;
}

static void check_output(const decode_fixture *r, const drawn_head *h, int s, int head) {
    int dim = r->c->geom.head_dim;
    const bf16 *out = r->out + s * out_size(r, 1) + (size_t)head * dim;
    for (int d = 0; d < dim; d++) {
        double got = sl_bf16_to_f32(out[d]);
        if (!(fabs(got - h->mean[d]) <= fabs(h->mean[d]) * 0x1p-8 + h->size[d] * tolerance(r, h) + 1e-7)) {
            char attn[128];
            sl_attn_format(&r->spec, attn, sizeof attn);
            FAIL("%s, %d rows, sequence %d, head %d: output %d is %g, the %d rows give %g", attn, r->c->seqs[s].n_tokens, s,
                 head, d, got, h->draws.n, h->mean[d]);
        }
    }
}

// Widens kappa and B of a step as draw_importance.c, measure, does.
static void widen_step(const decode_fixture *r, const drawn_head *h, int s, int head, sl_threshold_step *step) {
    double square = 0;
    if (r->c->seqs[s].n_tokens <= SL_PAGE) return;
    for (int d = 0; d < r->c->geom.head_dim; d++) square += h->mean[d] * h->mean[d];
    double widen = exp2(sl_masses_log2_total(&h->masses) - h->log2_total) * fmax(1, sqrt(square) / size_of_mean(r, s, head));
    step->kappa *= widen, step->B *= widen * widen;
}

// The kernel's step of a head must have the bits of the CPU's, except kappa and B of santa-is with a stated error: they follow
// from the sum over the draws. `trace_squares` and `squares` follow from the output.
static void check_step(const decode_fixture *r, const sl_threshold_step *got, const drawn_head *h, int s, int head) {
    static const char *const names[] = {"total", "rows", "light", "k", "kappa", "B", "spared k", "spared B"};
    sl_threshold_step want = h->step;
    if (stores_sizes_only(r)) widen_step(r, h, s, head, &want);
    const double *a = (const double *)got, *b = (const double *)&want;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(fabs(a[i] - b[i]) <= (stores_sizes_only(r) && (i == 4 || i == 5) ? 0.004 * b[i] : 0)))
            FAIL("%s, %d rows, sequence %d, head %d: %s of the step is %.17g, expected %.17g", r->spec.method->name,
                 r->c->seqs[s].n_tokens, s, head, names[i], a[i], b[i]);
}

// Rows of a KV head that at least one head drew. *fresh: the number of them in the newest page.
static int distinct_rows(const drawn_head *heads, int group, int n_kv, int *fresh) {
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

// Adds the rows and bytes of K that the heads of a KV head read to score the rows of their sets.
static void count_sets(const decode_fixture *r, const sl_group *group, sl_attn_stats *want) {
    const sl_proposal *propose = sl_composition_of(&r->spec).propose;
    int n_kv = group->kv->n_kv, newest = (n_kv - 1) / SL_PAGE * SL_PAGE, s = (int)(group->query - r->c->queries), refined = 0;
    for (int j = 0; !propose->exact && j < (propose->needs ? newest : n_kv); j++) {
        int any = 0;
        for (int h = 0; h < r->group; h++) any |= set_of(r, s, group->h * r->group + h)[j];
        refined += any;
    }
    want->k_rows += propose->exact ? n_kv : refined + (propose->needs ? n_kv - newest : 0);
    want->bytes += propose->bytes(group) + refined * sl_k_row_bytes(group);
}

// Adds the rows and bytes that the heads of a KV head read.
static void count(const decode_fixture *r, const sl_group *group, const drawn_head *heads, sl_attn_stats *want) {
    sl_composition stages = sl_composition_of(&r->spec);
    const sl_proposal *propose = stages.propose;
    int n_kv = group->kv->n_kv, newest = n_kv - (n_kv - 1) / SL_PAGE * SL_PAGE, fresh;
    int distinct = distinct_rows(heads, r->group, n_kv, &fresh);
    int refined = propose->exact || !stages.draw ? 0 : distinct - (propose->needs ? fresh : 0);
    for (int h = 0; h < r->group; h++) {
        want->v_rows += heads[h].draws.n;
        if (stages.draw) want->samples += heads[h].draws.n_draws; // without a draw stage all rows are taken, none is drawn
    }
    if (r->set) count_sets(r, group, want);
    if (!r->stats.v_distinct) return; // samplers read and count a row once per draw
    want->v_distinct += distinct;
    want->k_rows += propose->exact ? n_kv : refined + (propose->needs ? newest : 0);
    want->bytes += propose->bytes(group) + (size_t)(refined + distinct) * sl_k_row_bytes(group); // as long as a row of V
    sl_kv_need norms;                                                                            // that a bound reads
    if (stages.draw && stages.draw->needs && stages.draw->needs(&r->spec, &norms)) want->bytes += n_kv * sizeof(bf16);
}

// For methods that take all rows and store no masses. The output is the CPU's output, except that masses and output are rounded
// to bf16. Each rounding adds at most 2^-8.
static void check_unstored(decode_fixture *r) {
    const sl_attn_geom *g = &r->c->geom;
    char attn[128];
    sl_attn_format(&r->spec, attn, sizeof attn);
    ref_decode(r->c, attn, 0, r->c->n_seqs, r->rows[0].seed, FIXTURE_LAYER);
    for (int i = 0; i < r->c->n_seqs * g->n_heads; i++) {
        float got[128];
        double want[128];
        for (int d = 0; d < g->head_dim; d++) {
            got[d] = sl_bf16_to_f32(r->out[(size_t)i * g->head_dim + d]);
            want[d] = r->c->out[(size_t)i * g->head_dim + d];
        }
        double error = ref_relative(got, want, g->head_dim);
        if (!(error < 0x1p-7))
            FAIL("%s, sequence %d of %d rows, head %d: relative error %.3g", attn, i / g->n_heads,
                 r->c->seqs[i / g->n_heads].n_tokens, i % g->n_heads, error);
    }
}

void fixture_check(decode_fixture *r) {
    const sl_attn_geom *g = &r->c->geom;
    sl_composition stages = sl_composition_of(&r->spec);
    sl_attn_stats want = {0};
    drawn_head heads[SL_MAX_GROUP];
    sl_threshold_step *steps = malloc(g->n_heads * sizeof *steps);
    if (!stages.draw && !r->n_stored) {
        check_unstored(r);
        return;
    }
    for (int pair = 0; pair < r->n_pairs; pair++) {
        int s = pair / g->n_kv_heads, kv_head = pair % g->n_kv_heads;
        if (sl_carries_threshold(&r->spec)) fixture_steps(r, s, steps);
        for (int h = 0; h < r->group; h++) {
            int head = kv_head * r->group + h;
            heads[h] = draw_head(r, s, head);
            check_output(r, &heads[h], s, head);
            if (sl_carries_threshold(&r->spec)) check_step(r, &steps[head], &heads[h], s, head);
        }
        sl_attn_decode_args args = cpu_args(r);
        sl_group group = sl_group_of(&args, s, kv_head);
        count(r, &group, heads, &want);
        for (int h = 0; h < r->group; h++) drawn_head_free(&heads[h]);
    }
    free(steps);
    // vattention plans the length of its sample from sums in floating point, whose order differs.
    uint64_t slack = sl_attn_has(&r->spec, "base") ? want.samples >> 16 : 0;
    CHECK(r->stats.samples + slack >= want.samples && r->stats.samples <= want.samples + slack);
    if (r->set) {
        CHECK_INT(r->stats.k_rows, want.k_rows);
        CHECK_INT(r->stats.bytes, want.bytes + r->stats.v_rows * sl_kv_row_bytes(r->c->pool.formats.v, g->head_dim));
        CHECK(r->stats.features == g->n_heads * r->c->n_seqs);
    }
    if (!r->stats.v_distinct || r->stats.samples != want.samples) return;
    CHECK_INT(r->stats.v_rows, want.v_rows);
    CHECK_INT(r->stats.v_distinct, want.v_distinct);
    CHECK_INT(r->stats.k_rows, want.k_rows);
    CHECK_INT(r->stats.bytes, want.bytes);
    CHECK(r->stats.features == g->n_heads * r->c->n_seqs);
}

void fixture_try_on(ref_cache *c, const char *attn) {
    decode_fixture r = fixture_new(c, attn, 17);
    fixture_launch(&r);
    fixture_check_masses(&r);
    fixture_check(&r);
    fixture_free(&r);
}

void fixture_try(const char *attn, int n_heads, int n_kv_heads, int head_dim, int n_seqs, const int *lengths,
                 double query_scale) {
    ref_cache c = ref_cache_new(n_heads, n_kv_heads, head_dim, n_seqs, lengths, query_scale, test_seed);
    fixture_try_on(&c, attn);
    ref_cache_free(&c);
}
#else
typedef int decode_check_needs_cuda; // a source file is not empty
#endif
