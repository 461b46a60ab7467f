// engine/attend/observe.c - the observer of decode steps. It reports what the running method did, and the error of the method
// against dense attention on the same queries and KV. It reports the same about shadow methods (the SANTA paper's same-state
// protocol).
//
// An observer does not change a step: the outputs have equal bits with and without it, and the engine's statistics do not count
// shadows. sl_engine_observe and the next step of a session allocate all memory.
#include "attention/stages/stages.h"
#include "base/comm.h"
#include "base/thread_pool.h"
#include "engine/engine_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static sl_attn_spec dense_spec(void) {
    return (sl_attn_spec){.method = &sl_method_dense};
}

void sl_observation_free(sl_engine *e, sl_observation *o) {
    if (e->device.attention->unobserve) e->device.attention->unobserve(e, o);
    free(o->shadows);
    free(o->dense);
    free(o->queries);
    free(o->running);
    free(o->reports);
    free(o->masses);
    free(o->tiles);
    free(o->profiles);
    free(o->scores);
    *o = (sl_observation){0};
}

static int add_shadow(sl_engine *e, sl_observation *o, const sl_attn_spec *spec, sl_error *err) {
    int rc = sl_engine_need_buckets(e, spec, err);
    if (!rc) rc = e->device.attention->check_shadow(e, spec, err);
    size_t state = rc ? 0 : sl_align(e->device.attention->state_size(e, spec));
    if (state > o->state_size) o->state_size = state;
    return rc;
}

static int new_arrays(const sl_engine *e, sl_observation *o, sl_error *err) {
    size_t n_seqs = e->n_sequences, heads = n_seqs * e->geom.n_heads;
    o->max_pages = sl_kv_pages_of(e->n_ctx);
    o->shadows = calloc(o->observer.n_shadows + 1, sizeof *o->shadows);
    o->dense = malloc(2 * heads * e->geom.head_dim * sizeof *o->dense);
    o->queries = malloc(n_seqs * sizeof *o->queries);
    o->running = malloc(heads * sizeof *o->running);
    o->reports = malloc(heads * sizeof *o->reports);
    o->masses = malloc(heads * o->max_pages * sizeof *o->masses);
    o->tiles = malloc(heads * sizeof *o->tiles);
    int has_profiles = !o->observer.with_profile;
    if (o->observer.with_profile) {
        o->profiles = malloc(heads * sizeof *o->profiles);
        if (!e->device.backend->is_device) o->scores = malloc(heads * o->max_pages * SL_PAGE * sizeof *o->scores);
        has_profiles = o->profiles && (o->scores || e->device.backend->is_device);
    }
    if (o->shadows && o->dense && o->queries && o->running && o->reports && o->masses && o->tiles && has_profiles) return 0;
    return sl_fail(err, SL_ERR_MEMORY, "observer of %d methods: out of memory", o->observer.n_shadows);
}

static int set_observer(sl_engine *e, const sl_observer *observer, sl_error *err) {
    sl_observation o = {0};
    sl_attn_spec dense = dense_spec();
    int rc = 0;
    if (observer) {
        SL_CHECK(observer->fn && observer->n_shadows >= 0);
        o.observer = *observer;
        if (o.observer.n_seeds < 1) o.observer.n_seeds = 1;
        rc = new_arrays(e, &o, err);
        if (!rc) rc = add_shadow(e, &o, &dense, err);
        for (int i = 0; !rc && i < observer->n_shadows; i++) {
            o.shadows[i] = observer->shadows[i];
            rc = add_shadow(e, &o, &o.shadows[i], err);
        }
        if (!rc && e->device.attention->observe) rc = e->device.attention->observe(e, &o, err);
    }
    if (rc) {
        sl_observation_free(e, &o);
        return rc;
    }
    o.version = e->observation.version + 1;
    sl_observation_free(e, &e->observation);
    e->observation = o;
    return 0;
}

int sl_engine_observe(sl_engine *e, const sl_observer *observer, sl_error *err) {
    int rc = sl_engine_enter(e, err);
    if (rc) return rc;
    rc = set_observer(e, observer, err);
    sl_engine_leave(e);
    return rc;
}

size_t sl_shadow_state_size(const sl_engine *e) {
    return sl_shadow_state_at(e, e->geom.n_layers, 0);
}

size_t sl_shadow_state_at(const sl_engine *e, int layer, int which) {
    const sl_observation *o = &e->observation;
    return ((size_t)layer * o->observer.n_shadows * o->observer.n_seeds + which) * o->state_size;
}

// ---- fields of a report that the method does not fill ----

typedef struct squares {
    double error, norm; // |out - mu|^2 and |mu|^2
} squares;

// Sets error, cosine and bias of one head's output against dense attention's output mu.
static squares compare(const float *out, const float *mu, int dim, sl_attn_report *r) {
    double error = 0, dot = 0, norm = 0, out_norm = 0;
    for (int d = 0; d < dim; d++) {
        double e = (double)out[d] - mu[d];
        error += e * e, dot += (double)out[d] * mu[d], norm += (double)mu[d] * mu[d], out_norm += (double)out[d] * out[d];
    }
    r->error = (float)sqrt(error / norm);
    r->cosine = (float)(dot / sqrt(norm * out_norm));
    r->bias = (float)((dot - norm) / norm);
    return (squares){error, norm};
}

static int by_falling_mass(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a < b) - (a > b);
}

// The fewest masses whose sum is at least `share` of the total. Sorts mass.
static uint32_t fewest_reaching(double *mass, int n, double share) {
    double total = 0, sum = 0;
    uint32_t count = 0;
    qsort(mass, n, sizeof *mass, by_falling_mass);
    for (int i = 0; i < n; i++) total += mass[i];
    while (sum < share * total) sum += mass[count++];
    return count;
}

void sl_observation_count_tiles(const sl_observation *o, int first, int n, int n_pages) {
    for (int i = first; i < first + n; i++) {
        double *mass = o->masses + (size_t)i * o->max_pages, most = -INFINITY;
        for (int page = 0; page < n_pages; page++) most = mass[page] > most ? mass[page] : most;
        for (int page = 0; page < n_pages; page++) mass[page] = exp2(mass[page] - most);
        o->tiles[i] = fewest_reaching(mass, n_pages, 0.9);
    }
}

typedef struct head_report {
    sl_attn_report report;
    squares squares;
    sl_attn_spread profile;
} head_report;

// heads: [n], all heads of the layer
static void tell(const sl_observation *o, const sl_attn_record *what, head_report *heads, int n) {
    squares layer = {0};
    for (int h = 0; h < n; h++) layer.error += heads[h].squares.error, layer.norm += heads[h].squares.norm;
    for (int h = 0; h < n; h++) {
        if (sl_observes_error(o)) heads[h].report.layer_error = (float)sqrt(layer.error / layer.norm);
        sl_attn_record record = *what;
        record.head = h;
        record.report = &heads[h].report;
        if (what->profile) record.profile = &heads[h].profile;
        o->observer.fn(o->observer.ctx, &record);
    }
}

void sl_observation_report(const sl_engine *e, const sl_attn_record *what, int i, const sl_attn_report *reports,
                           const float *out) {
    const sl_observation *o = &e->observation;
    int n = e->geom.n_heads, dim = e->geom.head_dim, n_ranks = sl_comm_n(e->comm);
    head_report own[n], all[n * n_ranks];
    memset(own, 0, sizeof own);
    for (int h = 0; h < n; h++) {
        own[h].report = reports[h];
        if (what->profile) own[h].profile = what->profile[h];
        if (!sl_observes_error(o)) continue;
        own[h].squares = compare(out + (size_t)h * dim, o->dense + ((size_t)i * n + h) * dim, dim, &own[h].report);
        own[h].report.tiles = o->tiles[i * n + h];
    }
    if (e->comm)
        sl_engine_gather(e, own, sizeof own, all);
    else
        memcpy(all, own, sizeof own);
    tell(o, what, all, n * n_ranks);
}

// ---- one step of one layer, on the host ----

int sl_host_check_shadow(sl_engine *e, const sl_attn_spec *spec, sl_error *err) {
    const sl_attn_method *m = spec->method;
    if (!m->cpu || !m->cpu->decode)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "observer: method %s is not offered for decoding on this device", m->name);
    sl_kv_need need[SL_MAX_NEEDS];
    int rc = m->supports ? m->supports(&e->geom, spec, err) : 0, n = rc ? 0 : e->device.attention->needs(spec, need);
    for (int i = 0; !rc && i < n; i++) rc = sl_kv_keep(&e->device.pool, need[i], err);
    if (rc) return rc;
    return sl_workspace_reserve(&e->device.pass.workspace, m->cpu->workspace(&e->geom, spec, e->n_sequences, 1, e->n_ctx), err);
}

// log2 of the mass of one page's rows: log2 sum_j 2^{s_j}.
static double page_mass(const float *score, int n_rows) {
    double most = -INFINITY, sum = 0;
    for (int j = 0; j < n_rows; j++) most = score[j] > most ? score[j] : most;
    for (int j = 0; j < n_rows; j++) sum += exp2(score[j] - most);
    return most + log2(sum);
}

typedef struct study {
    const sl_observation *o;
    const sl_attn_decode_args *a;
} study;

static void study_group(void *ctx, size_t pair, int thread) {
    (void)thread;
    const study *s = ctx;
    const sl_observation *o = s->o;
    int n_kv_heads = s->a->geom->n_kv_heads, group = s->a->geom->n_heads / n_kv_heads;
    sl_group g = sl_group_of(s->a, (int)pair / n_kv_heads, (int)pair % n_kv_heads);
    int n_pages = sl_kv_pages_of(g.kv->n_kv);
    size_t first = pair * group * o->max_pages;
    float score[SL_MAX_GROUP * SL_CHUNK];
    for (int page = 0; page < n_pages; page++) {
        int n_rows = sl_page_rows(g.kv, page);
        sl_score_exact(&g, page, score);
        for (int i = 0; i < group; i++) {
            const float *own = score + i * SL_CHUNK;
            size_t at = first + (size_t)i * o->max_pages + page;
            o->masses[at] = page_mass(own, n_rows);
            if (o->scores) memcpy(o->scores + at * SL_PAGE, own, n_rows * sizeof *own);
        }
    }
    sl_observation_count_tiles(o, (int)pair * group, group, n_pages);
}

static void make_profile(void *ctx, size_t i, int thread) {
    (void)thread;
    const study *s = ctx;
    sl_attn_spread_of(s->o->scores + i * s->o->max_pages * SL_PAGE, s->a->seqs[i / s->a->geom->n_heads].kv.n_kv,
                      &s->o->profiles[i]);
}

// Counts, for every head, the fewest tiles that hold 90% of dense attention's mass (santa-flash spreads draws over all tiles,
// so draws in other tiles are wasted), and makes the profiles.
static void study_masses(const sl_observation *o, const sl_attn_decode_args *a) {
    study s = {o, a};
    sl_parallel((size_t)a->n_seqs * a->geom->n_kv_heads, study_group, &s);
    if (o->scores) sl_parallel((size_t)a->n_seqs * a->geom->n_heads, make_profile, &s);
}

// profiles: NULL, or [n_seqs][n_heads]
static void report(const sl_engine *e, const sl_attn_decode_args *a, const sl_attn_spread *profiles) {
    for (int i = 0; i < a->n_seqs; i++) {
        const sl_attn_query *q = &a->seqs[i];
        const sl_attn_record record = {.sequence = q->sequence,
                                       .position = q->position,
                                       .layer = a->layer,
                                       .n_kv = q->kv.n_kv,
                                       .spec = a->spec,
                                       .seed = a->seed + q->seed,
                                       .profile = profiles ? profiles + i * e->geom.n_heads : NULL};
        sl_observation_report(e, &record, i, &a->reports[i * e->geom.n_heads], q->out);
    }
}

// Runs spec on the queries of `a` and writes its outputs to `out`. which: the number of the shadow and of its state; -1: dense
// attention as the reference, without a report.
static void run_shadow(sl_engine *e, const sl_attn_decode_args *a, const sl_batch *batch, const sl_attn_spec *spec,
                       uint32_t seed, int which, float *out) {
    sl_observation *o = &e->observation;
    size_t row = (size_t)e->geom.n_heads * e->geom.head_dim;
    int keeps = which >= 0 && e->device.attention->state_size(e, spec) > 0;
    sl_attn_stats unused = {0};
    for (int i = 0; i < a->n_seqs; i++) {
        o->queries[i] = a->seqs[i];
        o->queries[i].out = out + i * row;
        o->queries[i].stats = NULL; // an observer changes no statistics
        o->queries[i].state = keeps ? batch->ranges[i].session->shadow_state + sl_shadow_state_at(e, a->layer, which) : NULL;
    }
    sl_attn_decode_args args = *a;
    args.spec = spec;
    args.exact_below = 0; // a shadow shows what the method does
    args.seed = seed;
    args.seqs = o->queries;
    args.stats = &unused;
    args.reports = o->reports;
    spec->method->cpu->decode(&args);
    if (which >= 0) report(e, &args, NULL);
}

void sl_host_observe(sl_engine *e, const sl_attn_decode_args *a, const sl_batch *batch) {
    sl_observation *o = &e->observation;
    const sl_observer *observer = &o->observer;
    if (sl_observes_error(o)) {
        sl_attn_spec dense = dense_spec();
        run_shadow(e, a, batch, &dense, a->seed, -1, o->dense);
    }
    if (sl_observes_error(o) || observer->with_profile) study_masses(o, a);
    report(e, a, o->profiles);
    float *out = o->dense + (size_t)e->n_sequences * e->geom.n_heads * e->geom.head_dim;
    for (int i = 0; i < observer->n_shadows; i++)
        for (int j = 0; j < observer->n_seeds; j++)
            run_shadow(e, a, batch, &o->shadows[i], a->seed + (uint32_t)j, i * observer->n_seeds + j, out);
}
