// engine/attend/observe_cuda.c - the observer of decode steps on a GPU: engine/attend/observe.c's protocol with the kernels
// that decode.
//
// In each layer the running method, dense attention and every shadow are launched one after the other, one sequence at a time.
// (The result of a sequence is the same in any batch.) The results are stored in one block of device memory. The host downloads
// this block and reports. So an observed step is not recorded, and its time is meaningless.
//
// Kernels count for all heads of a launch together. A report gets an equal share of the rows, draws and bytes, so sums and
// means over heads are exact, but the values of single heads are not known. Effective samples and bounds are not known either:
// NaN. Outputs are bf16, and the rounding of both outputs contributes about 0.002 to a relative error.
#include "attention/exact_step_cuda.h"
#include "attention/stages/stages.h"
#include "backend/cuda/cuda.h"
#include "base/thread_pool.h"
#include "engine/attend/attn_launch_cuda.h"
#include "engine/attend/observe_cuda.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct sl_device_observation {
    int n_specs,
        n_launches;      // n_launches: of a layer and sequence; the running method, dense attention, each shadow with each seed
    sl_attn_spec *specs; // [n_specs] dense attention, then the shadows
    size_t *ws_at;       // [n_specs] offset of the specification's workspace in ws, for one sequence
    void *ws;
    size_t ws_size;
    sl_row *rows, *host_rows; // [n_launches][n_sequences] on the device, and on the host
    char *block, *host_block; // results of a layer on the device, and on the host
};

// The layout of a block: results of a layer for n sequences.
typedef struct results {
    bf16 *out;                   // [n_launches][n][n_heads][head_dim]
    sl_attn_cuda_stats *counted; // [n_launches][n]
    float *masses;               // [n][n_heads][max_pages]
    float *scores;               // [n][n_heads][max_pages][256], when the observer wants profiles
} results;

enum { OUT, COUNTED, MASSES, SCORES, N_RESULTS };

// Fills at: the offsets of the results of n sequences in a block, and then the bytes of the block.
static void lay_out_block(const sl_engine *e, const sl_observation *o, int n, size_t at[N_RESULTS + 1]) {
    size_t n_launches = o->device->n_launches, heads = (size_t)n * e->geom.n_heads, pages = heads * o->max_pages;
    at[OUT] = 0;
    at[COUNTED] = sl_align(n_launches * heads * e->geom.head_dim * sizeof(bf16));
    at[MASSES] = at[COUNTED] + sl_align(n_launches * n * sizeof(sl_attn_cuda_stats));
    at[SCORES] = at[MASSES] + pages * sizeof(float);
    at[N_RESULTS] = at[SCORES] + (o->observer.with_profile ? pages * SL_PAGE * sizeof(float) : 0);
}

static results results_of(const sl_engine *e, int n, char *block) {
    const sl_observation *o = &e->observation;
    size_t at[N_RESULTS + 1];
    lay_out_block(e, o, n, at);
    return (results){(bf16 *)(block + at[OUT]), (sl_attn_cuda_stats *)(block + at[COUNTED]), (float *)(block + at[MASSES]),
                     o->observer.with_profile ? (float *)(block + at[SCORES]) : NULL};
}

static size_t block_size(const sl_engine *e, const sl_observation *o, int n) {
    size_t at[N_RESULTS + 1];
    lay_out_block(e, o, n, at);
    return at[N_RESULTS];
}

// ---- memory ----

int sl_cuda_check_shadow(sl_engine *e, const sl_attn_spec *spec, sl_error *err) {
    return sl_cuda_check_method(e, spec, "observed", err);
}

static size_t rows_size(const sl_engine *e, const struct sl_device_observation *d) {
    return (size_t)d->n_launches * e->n_sequences * sizeof *d->rows;
}

void sl_cuda_free_observation(sl_engine *e, sl_observation *o) {
    struct sl_device_observation *d = o->device;
    const sl_backend *be = e->device.backend;
    if (!d) return;
    be->release(be, d->ws, d->ws_size);
    be->release(be, d->rows, rows_size(e, d));
    be->release(be, d->block, block_size(e, o, e->n_sequences));
    free(d->specs);
    free(d->ws_at);
    free(d->host_rows);
    free(d->host_block);
    free(d);
    o->device = NULL;
}

// Every specification has a separate part of the workspace, because a method reads there what its last call wrote.
static void lay_out(const sl_engine *e, struct sl_device_observation *d) {
    for (int i = 0; i < d->n_specs; i++) {
        d->ws_at[i] = d->ws_size;
        d->ws_size += sl_align(sl_cuda_ops_of(e, &d->specs[i])->workspace(&e->geom, &d->specs[i], 1, 1, e->n_ctx));
    }
}

int sl_cuda_new_observation(sl_engine *e, sl_observation *o, sl_error *err) {
    const sl_backend *be = e->device.backend;
    if (e->device.pool.offload)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "{kv_cache} host: steps are not observed, because dense attention reads every row; use {kv_cache} gpu");
    struct sl_device_observation *d = o->device = calloc(1, sizeof *d);
    if (d) {
        int n = o->observer.n_shadows;
        d->n_specs = sl_observes_error(o) ? 1 + n : 0;
        d->n_launches = d->n_specs ? 2 + n * o->observer.n_seeds : 1;
        d->specs = calloc(d->n_specs + 1, sizeof *d->specs);
        d->ws_at = calloc(d->n_specs + 1, sizeof *d->ws_at);
    }
    if (d && d->specs && d->ws_at) {
        size_t size = block_size(e, o, e->n_sequences);
        d->specs[0].method = &sl_method_dense;
        for (int i = 1; i < d->n_specs; i++) d->specs[i] = o->shadows[i - 1];
        lay_out(e, d);
        if (d->ws_size) d->ws = be->alloc(be, d->ws_size);
        d->rows = be->alloc(be, rows_size(e, d));
        d->host_rows = malloc(rows_size(e, d));
        d->block = be->alloc(be, size);
        d->host_block = malloc(size);
        if ((d->ws || !d->ws_size) && d->rows && d->host_rows && d->block && d->host_block) return 0;
    }
    return sl_fail(err, SL_ERR_MEMORY, "observer of %d methods on a GPU: out of memory", o->observer.n_shadows);
}

// ---- launches ----

// The specification of launch `which` (-1: the running method). *seed: the offset from the engine's seed.
static int spec_of(const sl_observation *o, int which, uint32_t *seed) {
    *seed = which < 2 ? 0 : (uint32_t)((which - 2) % o->observer.n_seeds);
    return which < 2 ? which - 1 : 1 + (which - 2) / o->observer.n_seeds;
}

// Uploads the rows of every launch: the rows of the step with the launch's seed and state.
static void send_rows(const sl_batch *batch, int layer) {
    sl_engine *e = batch->ranges[0].session->engine;
    int n = batch->n_ranges;
    const sl_observation *o = &e->observation;
    struct sl_device_observation *d = o->device;
    for (int which = 0; which < d->n_launches; which++)
        for (int i = 0; i < n; i++) {
            sl_row *row = &d->host_rows[which * n + i];
            uint32_t seed;
            spec_of(o, which, &seed);
            *row = e->device.pass.rows[i];
            row->seed += seed;
            if (which) row->state = NULL;
            const sl_session *s = batch->ranges[i].session;
            if (which > 1 && s->shadow_state) row->state = s->shadow_state + sl_shadow_state_at(e, layer, which - 2);
        }
    e->device.backend->upload(e->device.backend, d->rows, d->host_rows, (size_t)d->n_launches * n * sizeof *d->rows);
}

// Shadows draw in every step: they show what their methods do.
static void launch(const sl_batch *batch, const sl_attn_cuda_decode_args *running, int which, const results *to) {
    sl_engine *e = batch->ranges[0].session->engine;
    const sl_plan *plan = sl_session_plan(batch->ranges[0].session);
    const struct sl_device_observation *d = e->observation.device;
    size_t row = (size_t)e->geom.n_heads * e->geom.head_dim;
    int n = running->n_seqs, n_exact = sl_cuda_exact_rows(batch, running->layer);
    uint32_t seed;
    int spec = spec_of(&e->observation, which, &seed);
    sl_attn_cuda_decode_args args = *running;
    if (spec >= 0) {
        args = sl_cuda_decode_args_of(e, &d->specs[spec], running->layer, running->q);
        args.ws = (char *)d->ws + d->ws_at[spec];
    }
    args.n_seqs = 1;
    for (int i = 0; i < n; i++) {
        args.rows = d->rows + which * n + i;
        args.q = running->q + i * row;
        args.out = to->out + (which * n + i) * row;
        args.stats = to->counted + which * n + i;
        if (spec < 0 && i < n_exact) {
            sl_attn_cuda_decode_args exact = sl_cuda_exact_args_of(e, plan, &args);
            sl_cuda_ops_of(e, exact.spec)->decode(&exact);
            sl_cuda_exact_step(&args);
            continue;
        }
        sl_cuda_ops_of(e, args.spec)->decode(&args);
        sl_cuda_end_step(&args, 1, 0);
    }
}

// ---- reports ----

static uint32_t share_of(uint64_t total, int n, int i) {
    return (uint32_t)(total / n + ((uint64_t)i < total % n));
}

// The stated error of the layer that was counted; NaN: none.
static float stated_error_of(const sl_attn_stats *s) {
    if (!s->stated) return NAN;
    return s->unbounded ? INFINITY : (float)s->stated_most;
}

// exact: the sequence attended exactly in place of spec. numbers: the output of the heads.
static void fill_reports(const sl_engine *e, const sl_attn_spec *spec, int exact, int n_kv, const sl_attn_cuda_stats *counted,
                         const float *numbers, sl_attn_report *out) {
    static const sl_attn_spec dense = {.method = &sl_method_dense};
    const sl_attn_geom *g = &e->geom;
    int n = g->n_heads, n_kv_heads = g->n_kv_heads;
    sl_attn_stats s = sl_attn_stats_of_kernels(counted);
    const sl_attn_spec *run = exact ? &dense : spec;
    const sl_attn_cuda_ops *ops = sl_cuda_ops_of(e, run);
    if (ops->account) ops->account(g, run, n_kv, &s);
    for (int h = 0; h < n; h++) {
        int kv_head = h / (n / n_kv_heads);
        out[h] = (sl_attn_report){SL_ATTN_NO_VALUES,
                                  .k_rows = share_of(s.k_rows, n_kv_heads, kv_head),
                                  .v_distinct = share_of(s.v_distinct, n_kv_heads, kv_head),
                                  .features = (float)(s.features / n),
                                  .bytes = share_of(s.bytes, n_kv_heads, kv_head),
                                  .dense_bytes = n_kv * sl_kv_bytes_per_token(1, 1, g->head_dim, e->device.formats),
                                  .v_rows = share_of(s.v_rows, n, h),
                                  .samples = share_of(s.samples, n, h),
                                  .ess = NAN,
                                  .score_bound = NAN,
                                  .exact = (uint32_t)exact,
                                  .certified = (uint32_t)s.certified,
                                  .tries = share_of(s.tries, n, h),
                                  .fallback = share_of(s.fallbacks, n, h),
                                  .heavy_tail = share_of(s.heavy_tails, n, h)};
        out[h].stated_error = stated_error_of(&s);
        const float *of_head = numbers + (size_t)h * g->head_dim;
        if (exact && sl_attn_states_error(spec))
            out[h].error_bound = (float)sl_relative_bound(0, sl_norm(of_head, g->head_dim));
    }
    if (exact && sl_attn_certifies_layer(spec)) sl_reports_state_zero(g, numbers, out);
}

static void widen(const bf16 *from, size_t n, float *to) {
    for (size_t i = 0; i < n; i++) to[i] = sl_bf16_to_f32(from[i]);
}

// Stores dense attention's outputs and tiles. report compares the other launches with them.
static void take_dense(sl_engine *e, int n, const results *r) {
    sl_observation *o = &e->observation;
    size_t heads = (size_t)n * e->geom.n_heads;
    widen(r->out + heads * e->geom.head_dim, heads * e->geom.head_dim, o->dense);
    for (size_t i = 0; i < heads * o->max_pages; i++) o->masses[i] = r->masses[i];
    for (int i = 0; i < n; i++)
        sl_observation_count_tiles(o, i * e->geom.n_heads, e->geom.n_heads, e->device.pass.rows[i].position / SL_PAGE + 1);
}

typedef struct profile_call {
    const sl_engine *e;
    const results *r;
} profile_call;

static void make_profile(void *ctx, size_t i, int thread) {
    (void)thread;
    const profile_call *c = ctx;
    const sl_observation *o = &c->e->observation;
    sl_attn_spread_of(c->r->scores + i * o->max_pages * SL_PAGE, c->e->device.pass.rows[i / c->e->geom.n_heads].position + 1,
                      &o->profiles[i]);
}

static void report(const sl_batch *batch, const sl_attn_cuda_decode_args *running, int which, const results *r) {
    sl_engine *e = batch->ranges[0].session->engine;
    sl_observation *o = &e->observation;
    size_t row = (size_t)e->geom.n_heads * e->geom.head_dim;
    float *out = o->dense + e->n_sequences * row;
    int n = running->n_seqs, n_exact = sl_cuda_exact_rows(batch, running->layer);
    uint32_t seed;
    int spec = spec_of(o, which, &seed);
    for (int i = 0; i < n; i++) {
        const sl_row *at = &e->device.pass.rows[i];
        const sl_attn_record record = {.sequence = at->sequence,
                                       .position = (uint32_t)at->position,
                                       .layer = running->layer,
                                       .n_kv = at->position + 1,
                                       .spec = spec < 0 ? running->spec : &o->device->specs[spec],
                                       .seed = at->seed + seed,
                                       .profile = which || !o->profiles ? NULL : o->profiles + i * e->geom.n_heads};
        widen(r->out + (which * n + i) * row, row, out);
        fill_reports(e, record.spec, spec < 0 && i < n_exact, record.n_kv, &r->counted[which * n + i], out, o->reports);
        sl_observation_report(e, &record, i, o->reports, out);
    }
}

void sl_cuda_observe(const sl_batch *batch, const sl_attn_cuda_decode_args *running) {
    sl_engine *e = batch->ranges[0].session->engine;
    const sl_backend *be = e->device.backend;
    struct sl_device_observation *d = e->observation.device;
    int n = running->n_seqs;
    size_t size = (size_t)n * e->geom.n_heads * e->geom.head_dim * sizeof(bf16);
    const results there = results_of(e, n, d->block), here = results_of(e, n, d->host_block);
    be->clear(be, there.counted, (size_t)d->n_launches * n * sizeof *there.counted);
    send_rows(batch, running->layer);
    for (int which = 0; which < d->n_launches; which++) launch(batch, running, which, &there);
    if (d->n_specs || there.scores) sl_cuda_page_masses(running, e->observation.max_pages, there.masses, there.scores);
    be->copy(be, running->out, size, there.out, size, size, 1);
    be->download(be, d->host_block, d->block, block_size(e, &e->observation, n));
    if (d->n_specs) take_dense(e, n, &here);
    if (here.scores) sl_parallel((size_t)n * e->geom.n_heads, make_profile, &(profile_call){e, &here});
    for (int i = 0; i < n; i++) {
        sl_attn_stats counted = sl_attn_stats_of_kernels(&here.counted[i]);
        sl_attn_stats_add(&e->stats, &counted);
    }
    for (int which = 0; which < d->n_launches; which++)
        if (which != 1) report(batch, running, which, &here);
}
