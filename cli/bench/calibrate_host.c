// cli/bench/calibrate_host.c - see calibrate_host.h.
#include "cli/bench/calibrate_host.h"
#include "attention/prefill/prefill_mask.h"
#include "backend/backend.h"
#include "backend/dummy_weights.h"
#include "base/thread_pool.h"
#include "cli/bench/calibrate.h"
#include "cli/bench/random_mask.h"
#include "cli/output/summary.h"
#include "cli/process.h"

#include <stdlib.h>
#include <string.h>

#define DUMMY_DEVIATION                                                                                                        \
    0.02 // deviation of sl_dummy_fill's numbers; queries are scaled up, because the keys have this deviation too
enum { WARM_UP = 2, STEPS_BEFORE = 12 };

struct cli_host_clock {
    sl_attn_geom geom;
    double query_deviation;
    int repetitions;
    sl_kv_pool pool;
    sl_workspace ws;
    bf16 *quantiles; // table for sl_dummy_fill
    sl_threads *threads, *outside;
    const cli_attn_states *states; // NULL: normal numbers
};

void cli_host_clock_use(cli_host_clock *c, const cli_attn_states *states) {
    c->states = states;
}

int cli_host_clock_open(const sl_attn_geom *geom, int n_pages, double query_deviation, int n_threads, int repetitions,
                        cli_host_clock **out, sl_error *err) {
    int rc = sl_cpu_choose(err);
    if (rc) return rc;
    cli_host_clock *c = calloc(1, sizeof *c);
    if (!c) return sl_fail(err, SL_ERR_MEMORY, "calibrate: out of memory");
    rc = sl_threads_open(n_threads ? n_threads : sl_cpu_cores(), &c->threads, err);
    if (rc) {
        cli_host_clock_close(c);
        return rc;
    }
    c->outside = sl_threads_use(c->threads); // this file calls the methods without an engine
    c->geom = *geom, c->query_deviation = query_deviation, c->repetitions = repetitions;
    c->quantiles = malloc(SL_DUMMY_QUANTILES * sizeof *c->quantiles);
    rc = c->quantiles ? 0 : sl_fail(err, SL_ERR_MEMORY, "calibrate: out of memory");
    if (!rc) rc = sl_kv_pool_init(&c->pool, sl_cpu_memory(), 1, geom->n_kv_heads, geom->head_dim, n_pages, err);
    if (rc) {
        cli_host_clock_close(c);
        return rc;
    }
    size_t n = (size_t)n_pages * geom->n_kv_heads * SL_PAGE * geom->head_dim;
    sl_dummy_quantiles(DUMMY_DEVIATION, c->quantiles);
    sl_dummy_fill(sl_dummy_key("k"), c->quantiles, 0, n, c->pool.k);
    sl_dummy_fill(sl_dummy_key("v"), c->quantiles, 0, n, c->pool.v);
    *out = c;
    return 0;
}

void cli_host_clock_close(cli_host_clock *c) {
    if (!c) return;
    if (c->threads) sl_threads_use(c->outside);
    sl_threads_close(c->threads);
    sl_kv_pool_free(&c->pool);
    sl_workspace_free(&c->ws);
    free(c->quantiles);
    free(c);
}

// Inputs and outputs of one step.
typedef struct batch {
    int n;
    sl_kv_seq *seqs;        // [n]
    sl_attn_query *queries; // [n]
    float *q, *out;         // [n][n_heads][head_dim]
    size_t state_size;      // 0: the method keeps no state
    char *state, *before;   // [n][state_size]; before: at the start of each timed step
} batch;

static void fill_queries(const cli_host_clock *c, float *q, size_t n) {
    enum { AT_ONCE = 512 };
    double scale = c->query_deviation / (DUMMY_DEVIATION * DUMMY_DEVIATION);
    bf16 some[AT_ONCE];
    for (size_t i = 0; i < n; i += AT_ONCE) {
        size_t m = n - i < AT_ONCE ? n - i : AT_ONCE;
        sl_dummy_fill(sl_dummy_key("q"), c->quantiles, i, m, some);
        for (size_t j = 0; j < m; j++) q[i + j] = (float)(scale * sl_bf16_to_f32(some[j]));
    }
}

// Copies the first n_kv rows of the states to a sequence.
static void fill_rows(cli_host_clock *c, const sl_kv_seq *seq, int n_kv) {
    const cli_attn_states *s = c->states;
    size_t row = (size_t)c->geom.head_dim;
    for (int h = 0; h < c->geom.n_kv_heads; h++)
        for (int j = 0; j < n_kv; j++) {
            size_t from = ((size_t)h * s->n_rows + j) * row;
            size_t to = (((size_t)seq->pages[j / SL_PAGE] * c->geom.n_kv_heads + h) * SL_PAGE + j % SL_PAGE) * row;
            memcpy((bf16 *)c->pool.k + to, s->k + from, row * sizeof(bf16));
            memcpy((bf16 *)c->pool.v + to, s->v + from, row * sizeof(bf16));
        }
}

static void fill_model_queries(const cli_host_clock *c, float *q, int n_seqs) {
    size_t n = (size_t)c->geom.n_heads * c->geom.head_dim;
    const bf16 *from = c->states->q + (size_t)(c->states->n_steps - 1) * n;
    for (size_t i = 0; i < n_seqs * n; i++) q[i] = sl_bf16_to_f32(from[i % n]);
}

static int open_batch(cli_host_clock *c, const sl_attn_spec *spec, int n_seqs, int n_kv, batch *b, sl_error *err) {
    const sl_attn_ops *ops = spec->method->cpu;
    sl_kv_need need[SL_MAX_NEEDS];
    size_t row = (size_t)c->geom.n_heads * c->geom.head_dim;
    size_t state = ops->state ? (ops->state(&c->geom, spec) + 63) / 64 * 64 : 0;
    *b = (batch){.n = n_seqs,
                 .state_size = state,
                 .seqs = calloc(n_seqs, sizeof *b->seqs),
                 .queries = calloc(n_seqs, sizeof *b->queries)};
    b->q = malloc(n_seqs * row * sizeof *b->q), b->out = malloc(n_seqs * row * sizeof *b->out);
    b->state = calloc(n_seqs, state + 1), b->before = calloc(n_seqs, state + 1);
    if (!b->seqs || !b->queries || !b->q || !b->out || !b->state || !b->before)
        return sl_fail(err, SL_ERR_MEMORY, "calibrate: out of memory");
    if (c->states)
        fill_model_queries(c, b->q, n_seqs);
    else
        fill_queries(c, b->q, n_seqs * row);
    int rc = sl_workspace_reserve(&c->ws, ops->workspace(&c->geom, spec, n_seqs, 1, n_kv), err);
    int n_needs = ops->needs ? ops->needs(spec, need) : 0;
    for (int i = 0; !rc && i < n_needs; i++) rc = sl_kv_keep(&c->pool, need[i], err);
    for (int s = 0; !rc && s < n_seqs; s++) {
        rc = sl_kv_reserve(&c->pool, &b->seqs[s], n_kv, err);
        if (rc) return rc;
        if (c->states) fill_rows(c, &b->seqs[s], n_kv);
        b->seqs[s].n_tokens = n_kv - 1; // as in the engine: build the extras before the newest row
        for (int i = 0; i < n_needs; i++) sl_kv_build(&c->pool, &b->seqs[s], 0, need[i]);
        b->seqs[s].n_tokens = n_kv;
        b->queries[s] = (sl_attn_query){.q = b->q + s * row,
                                        .out = b->out + s * row,
                                        .sequence = (uint32_t)s,
                                        .state = state ? b->state + s * state : NULL};
    }
    return rc;
}

static void close_batch(cli_host_clock *c, batch *b) {
    for (int s = 0; b->seqs && s < b->n; s++) sl_kv_seq_free(&c->pool, &b->seqs[s]);
    free(b->seqs), free(b->queries), free(b->q), free(b->out), free(b->state), free(b->before);
}

// A step over n_kv rows. Returns its microseconds.
static double step(cli_host_clock *c, const sl_attn_spec *spec, batch *b, int n_kv, uint32_t seed) {
    sl_attn_stats stats = {0};
    for (int s = 0; s < b->n; s++) {
        b->queries[s].position = (uint32_t)n_kv - 1;
        b->queries[s].kv = sl_kv_view_of(&c->pool, &b->seqs[s], 0, n_kv);
    }
    sl_attn_decode_args args = {
        .geom = &c->geom, .spec = spec, .seed = seed, .n_seqs = b->n, .seqs = b->queries, .ws = &c->ws, .stats = &stats};
    double start = sl_now_ms();
    spec->method->cpu->decode(&args);
    return 1e3 * (sl_now_ms() - start);
}

// A method with a state plans a step from the steps before it. So each timed step starts from the state after these steps.
static void take_steps_before(cli_host_clock *c, const sl_attn_spec *spec, batch *b, int n_kv) {
    int n = !b->state_size ? 0 : n_kv - 1 < STEPS_BEFORE ? n_kv - 1 : STEPS_BEFORE;
    for (int i = n; i > 0; i--) step(c, spec, b, n_kv - i, 0);
    memcpy(b->before, b->state, b->n * b->state_size);
}

int cli_host_clock_time(void *ctx, const sl_attn_spec *spec, int n_seqs, int n_kv, double *us, sl_error *err) {
    cli_host_clock *c = ctx;
    batch b;
    double times[c->repetitions];
    int rc = open_batch(c, spec, n_seqs, n_kv, &b, err);
    if (!rc) take_steps_before(c, spec, &b, n_kv);
    for (int i = -WARM_UP; !rc && i < c->repetitions; i++) {
        memcpy(b.state, b.before, n_seqs * b.state_size);
        double us = step(c, spec, &b, n_kv, (uint32_t)(i + WARM_UP));
        if (i >= 0) times[i] = us;
    }
    if (!rc) cli_sort(times, c->repetitions);
    if (!rc) *us = times[c->repetitions / 2];
    close_batch(c, &b);
    return rc;
}

// ---- prefill ----

// Inputs and outputs of the prefill of one sequence.
typedef struct prompt {
    sl_kv_seq seq;
    float *q, *out; // [n_tokens][n_heads][head_dim]
    sl_prefill_mask mask;
} prompt;

static int open_prompt(cli_host_clock *c, const sl_attn_spec *spec, int n_tokens, prompt *p, sl_error *err) {
    const sl_attn_geom *g = &c->geom;
    const sl_attn_spec dense = {.method = &sl_method_dense};
    size_t n = (size_t)n_tokens * g->n_heads * g->head_dim, ws = sl_mask_workspace(g, spec, n_tokens, n_tokens),
           dense_ws = sl_method_dense.cpu->workspace(g, &dense, 1, n_tokens, n_tokens);
    *p = (prompt){.mask = sl_mask_of(g->n_heads, n_tokens, n_tokens)};
    p->q = malloc(n * sizeof *p->q), p->out = malloc(n * sizeof *p->out), p->mask.bits = malloc(sl_mask_bytes(&p->mask));
    if (!p->q || !p->out || !p->mask.bits) return sl_fail(err, SL_ERR_MEMORY, "calibrate: out of memory");
    fill_queries(c, p->q, n);
    int rc = sl_workspace_reserve(&c->ws, ws > dense_ws ? ws : dense_ws, err);
    if (!rc) rc = sl_kv_reserve(&c->pool, &p->seq, n_tokens, err);
    p->seq.n_tokens = n_tokens;
    return rc;
}

static void close_prompt(cli_host_clock *c, prompt *p) {
    sl_kv_seq_free(&c->pool, &p->seq);
    free(p->q), free(p->out), free(p->mask.bits);
}

static void make_mask(cli_host_clock *c, const sl_attn_spec *spec, prompt *p, int n_tokens) {
    const sl_mask_args args = {.geom = &c->geom,
                               .spec = spec,
                               .n_tokens = n_tokens,
                               .q = p->q,
                               .kv = sl_kv_view_of(&c->pool, &p->seq, 0, n_tokens),
                               .ws = &c->ws,
                               .mask = &p->mask};
    sl_mask_propose(&args);
}

static void attend(cli_host_clock *c, prompt *p, int n_tokens, int is_sparse) {
    const sl_attn_spec dense = {.method = &sl_method_dense};
    const sl_attn_prefill_args args = {.geom = &c->geom,
                                       .spec = &dense,
                                       .n_tokens = n_tokens,
                                       .q = p->q,
                                       .out = p->out,
                                       .kv = sl_kv_view_of(&c->pool, &p->seq, 0, n_tokens),
                                       .ws = &c->ws,
                                       .mask = is_sparse ? &p->mask : NULL};
    sl_method_dense.cpu->prefill(&args);
}

typedef enum { DENSE, MASK, SPARSE } part;

// Median microseconds of one part, after one call that is not timed.
static double time_part(cli_host_clock *c, const sl_attn_spec *spec, prompt *p, int n_tokens, part part) {
    double times[c->repetitions];
    for (int i = -1; i < c->repetitions; i++) {
        double start = sl_now_ms();
        if (part == MASK)
            make_mask(c, spec, p, n_tokens);
        else
            attend(c, p, n_tokens, part == SPARSE);
        if (i >= 0) times[i] = 1e3 * (sl_now_ms() - start);
    }
    cli_sort(times, c->repetitions);
    return times[c->repetitions / 2];
}

int cli_host_clock_prefill(void *ctx, const sl_attn_spec *spec, double density, sl_auto_length *l, sl_error *err) {
    cli_host_clock *c = ctx;
    prompt p;
    int rc = open_prompt(c, spec, l->n_tokens, &p, err);
    if (!rc) {
        l->dense_us = time_part(c, spec, &p, l->n_tokens, DENSE);
        l->mask_us = time_part(c, spec, &p, l->n_tokens, MASK);
        cli_random_mask(&p.mask, density);
        l->attention_us = time_part(c, spec, &p, l->n_tokens, SPARSE);
    }
    close_prompt(c, &p);
    return rc;
}
