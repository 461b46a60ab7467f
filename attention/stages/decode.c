// attention/stages/decode.c - runs a composition of stages for every sequence and head of a decode call.
//
// These passes follow one another. The tasks of a pass run on all threads; a pass without work is left out:
//   1. begin of the proposal, if it has one: a task for each KV head;
//   2. proposal: a task for each chunk of 1,024 rows of a KV head;
//   3. running masses; if the draw is from a set: the rows of the set, their exact scores, masses and sizes: a task for each
//      query head;
//   4. the plan of a layer, for draws that have one: a task for each sequence;
//   5. draw, refine, combine: a task for each query head;
//   6. what the layer keeps for its next step: a task for each sequence;
//   7. exact attention of layers whose error is not certified, with --on-miss=dense: a task for each query head;
//   8. distinct rows, for the statistics: a task for each KV head.
// The result of a task does not depend on the thread that runs it.
#include "attention/stages/stages.h"
#include "base/thread_pool.h"

#include <math.h>
#include <string.h>

// ---- what a specification needs ----

static int budget(const sl_attn_spec *spec, const sl_draw *draw, int n_kv) {
    return draw->budget ? draw->budget(spec, n_kv) : (int)sl_attn_get(spec, "S");
}

static int size_power(const sl_attn_spec *spec, const sl_draw *draw) {
    return draw->size_power ? draw->size_power(spec) : 0;
}

// 1: the exact scores of the rows of a set are not those of the proposal.
static int scores_set(const sl_composition *c) {
    return c->select && !c->propose->exact;
}

// 1: the norms of V of all pages are read, for sizes or for a bound of the draw.
static int reads_norms(const sl_attn_spec *spec, const sl_draw *draw) {
    sl_kv_need need;
    return size_power(spec, draw) || (draw->needs && draw->needs(spec, &need) && need.kind == &sl_page_norms);
}

static int needs(const sl_attn_spec *spec, sl_kv_need *out) {
    sl_composition c = sl_composition_of(spec);
    int n = c.propose->needs ? c.propose->needs(spec, out) : 0;
    if (!c.draw) return n;
    if (c.draw->needs) n += c.draw->needs(spec, out + n);
    if (size_power(spec, c.draw)) out[n++] = (sl_kv_need){&sl_page_norms, 0};
    SL_CHECK(n <= SL_MAX_NEEDS);
    return n;
}

// ---- what a layer keeps ----

static size_t state(const sl_attn_geom *g, const sl_attn_spec *spec) { // a multiple of 8: states may lie side by side
    const sl_draw *draw = sl_composition_of(spec).draw;
    size_t norms = ((size_t)g->n_heads * sizeof(float) + 7) / 8 * 8;
    return draw && draw->keeps && draw->keeps(spec) ? sizeof(sl_layer_state) + norms : 0;
}

static sl_layer open_layer(const sl_attn_decode_args *args, int s, sl_head *heads) {
    sl_layer_state *m = args->seqs[s].state;
    uint32_t position = args->seqs[s].position;
    return (sl_layer){.args = args,
                      .query = &args->seqs[s],
                      .heads = heads,
                      .state = m,
                      .follows = m && position && m->threshold.next == position};
}

static void keep_norms(const sl_layer *l) {
    int n_heads = l->args->geom->n_heads, dim = l->args->geom->head_dim;
    if (!l->state) return;
    l->state->threshold.next = l->query->position + 1;
    for (int h = 0; h < n_heads; h++) l->state->norm[h] = (float)sl_norm(l->query->out + (size_t)h * dim, dim);
}

// ---- the workspace ----

// Arrays of an item: the masses that the proposal gives, the sizes, and the exact masses of a set.
enum { PROPOSED, SIZES, OF_SET, N_MASSES };

// Byte offsets of arrays [item][...] and [pair][...]. An item is a (sequence, query head), a pair is a (sequence, KV head).
typedef struct layout {
    size_t cap, cap_set, n_scratch; // of an item
    size_t n_state;                 // bytes of a pair
    size_t heads, groups, layers, reports, states;
    size_t n_blocks[N_MASSES], stored[N_MASSES], ref[N_MASSES], cum[N_MASSES]; // n_blocks 0: there is no such array
    size_t row, count, inv_pi, scratch, rows, coef, score, set;
    size_t size; // of the workspace
} layout;

static size_t blocks_of(int n_kv, int unit) {
    return unit ? ((size_t)(n_kv + unit - 1) / unit + SL_BLOCK - 1) / SL_BLOCK : 0;
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

static layout lay_out(const sl_attn_geom *g, const sl_attn_spec *spec, int n_seqs, int n_kv) {
    sl_composition c = sl_composition_of(spec);
    size_t pairs = (size_t)n_seqs * g->n_kv_heads, items = (size_t)n_seqs * g->n_heads, at = 0;
    layout l = {.cap = c.draw->capacity(spec, n_kv),
                .n_scratch = c.draw->scratch ? c.draw->scratch(spec, n_kv) : 0,
                .n_state = c.propose->state ? (c.propose->state(g, spec, n_kv) + 63) / 64 * 64 : 0,
                .n_blocks = {blocks_of(n_kv, c.propose->unit), size_power(spec, c.draw) ? blocks_of(n_kv, 1) : 0,
                             scores_set(&c) ? blocks_of(n_kv, 1) : 0}};
    if (c.select) { // its draw uses the arrays of the draw
        l.cap_set = c.select->capacity(spec, n_kv);
        l.cap = larger(l.cap, l.cap_set);
        l.n_scratch = larger(l.n_scratch, c.select->scratch ? c.select->scratch(spec, n_kv) : 0);
    }
    l.heads = sl_workspace_take(&at, items * sizeof(sl_head));
    l.groups = sl_workspace_take(&at, pairs * sizeof(sl_group));
    l.layers = sl_workspace_take(&at, n_seqs * sizeof(sl_layer));
    l.reports = sl_workspace_take(&at, items * sizeof(sl_attn_report));
    l.states = sl_workspace_take(&at, pairs * l.n_state);
    for (int i = 0; i < N_MASSES; i++) {
        l.stored[i] = sl_workspace_take(&at, items * l.n_blocks[i] * SL_BLOCK * sizeof(bf16));
        l.ref[i] = sl_workspace_take(&at, items * l.n_blocks[i] * sizeof(int16_t));
        l.cum[i] = sl_workspace_take(&at, items * (l.n_blocks[i] + 1) * sizeof(uint64_t));
    }
    l.row = sl_workspace_take(&at, items * l.cap * sizeof(int32_t));
    l.count = sl_workspace_take(&at, items * l.cap * sizeof(int32_t));
    l.inv_pi = sl_workspace_take(&at, items * l.cap * sizeof(float));
    l.scratch = sl_workspace_take(&at, items * l.n_scratch * sizeof(uint64_t));
    l.rows = sl_workspace_take(&at, items * l.cap * sizeof(sl_kv_row));
    l.coef = sl_workspace_take(&at, items * l.cap * sizeof(float));
    l.score = sl_workspace_take(&at, items * l.cap * sizeof(float));
    l.set = sl_workspace_take(&at, items * l.cap_set * sizeof(int32_t));
    l.size = at;
    return l;
}

static size_t workspace(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_seqs, int n_tokens, int n_kv) {
    (void)n_tokens; // these methods have no prefill
    sl_composition c = sl_composition_of(spec);
    size_t exact = sl_online_softmax_workspace(geom, spec, &sl_propose_exact, n_seqs, n_kv), own = exact; // of ranges, too
    if (!sl_reads_ranges(&c))
        own = lay_out(geom, spec, n_seqs, n_kv).size;
    else if (!c.draw)
        own = sl_online_softmax_workspace(geom, spec, c.propose, n_seqs, n_kv);
    return own > exact ? own : exact;
}

// ---- one call ----

typedef struct call {
    const sl_attn_decode_args *args;
    sl_composition stages;
    layout l;
    char *ws;
    sl_head *heads;      // [n_seqs * n_heads]
    sl_group *groups;    // [n_seqs * n_kv_heads]
    sl_layer *layers;    // [n_seqs]
    int group, n_chunks; // query heads of a KV head; chunks of the longest sequence, 0 without scores
} call;

static sl_masses masses_of(const call *c, int which, size_t item, int n) {
    return (sl_masses){
        .n = n,
        .n_blocks = (n + SL_BLOCK - 1) / SL_BLOCK,
        .stored = (bf16 *)(c->ws + c->l.stored[which]) + item * c->l.n_blocks[which] * SL_BLOCK,
        .ref = (int16_t *)(c->ws + c->l.ref[which]) + item * c->l.n_blocks[which],
        .cum = (uint64_t *)(c->ws + c->l.cum[which]) + item * (c->l.n_blocks[which] + 1),
    };
}

static void open_head(call *c, size_t item, const sl_group *g, int index) {
    const sl_attn_decode_args *a = c->args;
    const sl_layer *l = &c->layers[g->query - a->seqs];
    int head = g->h * g->n + index, unit = c->stages.propose->unit, n = unit ? (g->kv->n_kv + unit - 1) / unit : 0;
    size_t at = item * c->l.cap;
    sl_head *x = &c->heads[item];
    *x = (sl_head){
        .group = g,
        .draw = c->stages.draw,
        .index = index,
        .q = g->q + (size_t)index * g->head_dim,
        .masses = masses_of(c, PROPOSED, item, n),
        .set = (int32_t *)(c->ws + c->l.set) + item * c->l.cap_set,
        .S = budget(a->spec, c->stages.draw, g->kv->n_kv),
        .id = sl_attn_rng_id(a->seed + g->query->seed, g->query->sequence, g->query->position, a->layer,
                             a->geom->first_head + head),
        .norm_before = l->follows ? l->state->norm[head] : -1,
        .draws = {.row = (int32_t *)(c->ws + c->l.row) + at,
                  .count = (int32_t *)(c->ws + c->l.count) + at,
                  .inv_pi = (float *)(c->ws + c->l.inv_pi) + at,
                  .scratch = (uint64_t *)(c->ws + c->l.scratch) + item * c->l.n_scratch},
        .rows = (sl_kv_row *)(c->ws + c->l.rows) + at,
        .coef = (float *)(c->ws + c->l.coef) + at,
        .score = (float *)(c->ws + c->l.score) + at,
        .out = g->query->out + (size_t)head * g->head_dim,
        .report = (sl_attn_report *)(c->ws + c->l.reports) + item,
    };
    *x->report = (sl_attn_report){SL_ATTN_NO_VALUES, .features = 1};
    x->u = sl_uniform_philox(&x->id);
    if (c->l.n_blocks[SIZES]) x->sizes = masses_of(c, SIZES, item, g->kv->n_kv);
}

static void open_call(call *c) {
    const sl_attn_geom *g = c->args->geom;
    int group = g->n_heads / g->n_kv_heads;
    for (int s = 0; s < c->args->n_seqs; s++) c->layers[s] = open_layer(c->args, s, c->heads + (size_t)s * g->n_heads);
    for (int pair = 0; pair < c->args->n_seqs * g->n_kv_heads; pair++) {
        sl_group *x = &c->groups[pair];
        *x = sl_group_of(c->args, pair / g->n_kv_heads, pair % g->n_kv_heads);
        x->state = c->ws + c->l.states + (size_t)pair * c->l.n_state;
        for (int i = 0; i < group; i++) open_head(c, (size_t)pair * group + i, x, i);
    }
}

// ---- the passes ----

// Scores one chunk of a KV head for its group. Fills stored masses, refs and in-block masses of the chunk.
static void propose_chunk(const call *c, const sl_group *g, sl_head *heads, int chunk) {
    const sl_proposal *propose = c->stages.propose;
    int unit = propose->unit, first = chunk * (SL_CHUNK / SL_PAGE), last = first + SL_CHUNK / SL_PAGE;
    int pages = sl_kv_pages_of(g->kv->n_kv), power = c->stages.select ? 0 : size_power(c->args->spec, c->stages.draw);
    float score[SL_MAX_GROUP * SL_CHUNK];
    bf16 norms[SL_CHUNK], of_head[SL_CHUNK];
    if (last > pages) last = pages;
    int from = chunk * SL_CHUNK / unit, n = (g->kv->n_kv + unit - 1) / unit - from;
    if (n > SL_CHUNK / unit) n = SL_CHUNK / unit;
    for (int page = first; page < last; page++) {
        propose->score(g, page, score + (page - first) * (SL_PAGE / unit));
        if (power) sl_norms_of_page(g, page, norms + (page - first) * SL_PAGE);
    }
    for (int i = 0; i < g->n; i++) {
        const sl_masses *masses = &heads[i].masses, *sizes = &heads[i].sizes;
        int b = from / SL_BLOCK;
        g->kernels->masses(score + (size_t)i * SL_CHUNK, n, masses->stored + from, masses->ref + b, masses->cum + b + 1);
        if (!power) continue;
        const bf16 *size_norms = norms;
        if (c->stages.draw->size_norms) {
            for (int page = first; page < last; page++)
                c->stages.draw->size_norms(&heads[i], page, norms + (page - first) * SL_PAGE,
                                           of_head + (page - first) * SL_PAGE);
            size_norms = of_head;
        }
        g->kernels->sizes(masses->stored + from, masses->ref + b, size_norms, n, power, sizes->stored + from, sizes->ref + b,
                          sizes->cum + b + 1);
    }
}

// ---- the rows of a set ----

// The exact scores of the set as masses of all rows.
static void score_set(const call *c, sl_head *x) {
    const sl_group *g = x->group;
    float score[SL_CHUNK];
    x->masses = masses_of(c, OF_SET, (size_t)(x - c->heads), g->kv->n_kv);
    sl_refine(x);
    for (int from = 0, i = 0; from < x->masses.n; from += SL_CHUNK) {
        int n = x->masses.n - from < SL_CHUNK ? x->masses.n - from : SL_CHUNK, b = from / SL_BLOCK;
        for (int j = 0; j < n; j++) score[j] = -INFINITY;
        for (; i < x->n_set && x->set[i] < from + n; i++) score[x->set[i] - from] = x->score[i];
        g->kernels->masses(score, n, x->masses.stored + from, x->masses.ref + b, x->masses.cum + b + 1);
    }
    sl_masses_finish(&x->masses);
}

// The norms of rows outside of the set count as 0: such a row has no effect, even if it is not finite.
static void size_set(sl_head *x, int power) {
    const sl_masses *masses = &x->masses, *sizes = &x->sizes;
    for (int page = 0, i = 0; page * SL_PAGE < masses->n; page++) {
        int from = page * SL_PAGE, n = sl_page_rows(x->group->kv, page), b = from / SL_BLOCK;
        bf16 norms[SL_PAGE], of_set[SL_PAGE] = {0};
        if (i < x->n_set && x->set[i] < from + n) sl_norms_of_page(x->group, page, norms);
        for (; i < x->n_set && x->set[i] < from + n; i++) of_set[x->set[i] - from] = norms[x->set[i] - from];
        x->group->kernels->sizes(masses->stored + from, masses->ref + b, of_set, n, power, sizes->stored + from, sizes->ref + b,
                                 sizes->cum + b + 1);
    }
}

static void select_rows(const call *c, sl_head *x) {
    const sl_attn_spec *spec = c->args->spec;
    int n_kv = x->group->kv->n_kv, power = size_power(spec, c->stages.draw);
    x->S = budget(spec, c->stages.select, n_kv);
    if (c->stages.select->prepare) c->stages.select->prepare(x);
    if (x->needs_exact) return;
    c->stages.select->run(x);
    x->S = budget(spec, c->stages.draw, n_kv);
    x->n_set = x->draws.n;
    memcpy(x->set, x->draws.row, (size_t)x->n_set * sizeof *x->set);
    if (scores_set(&c->stages))
        score_set(c, x);
    else
        sl_masses_keep(&x->masses, x->set, x->n_set);
    if (power) size_set(x, power);
    sl_draws_clear(&x->draws);
    x->needs_exact = sl_masses_out_of_range(&x->masses);
}

static void finish_masses(const call *c, sl_head *x) {
    sl_masses *masses = &x->masses;
    if (!c->stages.propose->unit) {
        // no masses: the draw selects a set by itself
    } else if (c->stages.propose->score) {
        sl_masses_finish(masses);
        x->needs_exact = sl_masses_out_of_range(masses);
    } else { // uniform
        memset(masses->stored, 0, (size_t)masses->n_blocks * SL_BLOCK * sizeof *masses->stored);
        memset(masses->cum, 0, ((size_t)masses->n_blocks + 1) * sizeof *masses->cum);
        for (int b = 0; b < masses->n_blocks; b++) masses->ref[b] = SL_REF_EMPTY;
        masses->top = SL_REF_EMPTY;
        masses->uniform = 1u << 30;
    }
    if (c->stages.select && !x->needs_exact) select_rows(c, x);
    if (x->sizes.stored && !(c->stages.select && x->needs_exact)) { // a set that was not selected has no sizes
        sl_masses_finish(&x->sizes);
        x->is_unbounded = sl_sizes_out_of_range(&x->sizes, masses);
    }
    if (c->stages.draw->prepare && !x->needs_exact) c->stages.draw->prepare(x);
}

// Attends to every row exactly, because this head needs it (needs_exact: its scores are out of the range of stored masses, or
// its draw says so), or because its layer missed the stated error and goes dense.
static void fall_back(const call *c, sl_head *x) {
    sl_attn_report *r = x->report;
    sl_exact_head(x);
    r->fallback = 1;
    r->v_rows = r->samples = (uint32_t)x->group->kv->n_kv;
    if (sl_attn_states_error(c->args->spec)) r->error_bound = 0;
}

static void repair(const call *c, sl_head *x) {
    if (c->layers[x->group->query - c->args->seqs].goes_dense) fall_back(c, x);
}

// An output that is no number has no bound. Of a layer, sl_threshold_settle states the bound.
static void check_bound(sl_head *x) {
    sl_attn_report *r = x->report;
    if (!isnan(r->error_bound))
        r->error_bound = (float)fmax(r->error_bound, sl_relative_bound(0, sl_norm(x->out, x->group->head_dim)));
}

static void draw_and_combine(const call *c, sl_head *x) {
    int refined = c->stages.normaliser == SL_BY_SAMPLE && !c->stages.propose->exact;
    x->report->budget = (uint32_t)x->S;
    if (x->needs_exact) {
        fall_back(c, x);
        check_bound(x);
        if (c->stages.propose->report) c->stages.propose->report(x);
        return;
    }
    c->stages.draw->run(x);
    if (refined) sl_refine(x);
    if (c->stages.draw->expect) c->stages.draw->expect(x);
    sl_combine(x, c->stages.normaliser, refined);
    if (c->stages.draw->measure) c->stages.draw->measure(x);
    check_bound(x);
    x->report->samples = (uint32_t)x->draws.n_draws;
    x->report->v_rows = (uint32_t)x->draws.n;
    if (c->stages.propose->report) c->stages.propose->report(x);
}

// Merges the ascending lists of the group's heads: the rows that they drew, or the rows of their sets. Returns the number of
// rows that at least one head has; *fresh: the number of these rows in the newest page.
static int count_distinct(const sl_group *g, const sl_head *heads, int of_sets, int *fresh) {
    int at[SL_MAX_GROUP] = {0}, n_rows[SL_MAX_GROUP], newest = sl_kv_n_built(g->kv) * SL_PAGE;
    const int32_t *row[SL_MAX_GROUP];
    for (int i = 0; i < g->n; i++) {
        row[i] = of_sets ? heads[i].set : heads[i].draws.row;
        n_rows[i] = of_sets ? heads[i].n_set : heads[i].draws.n;
    }
    *fresh = 0;
    for (int n = 0;; n++) {
        int32_t least = INT32_MAX;
        for (int i = 0; i < g->n; i++)
            if (at[i] < n_rows[i] && row[i][at[i]] < least) least = row[i][at[i]];
        if (least == INT32_MAX) return n;
        *fresh += least >= newest;
        for (int i = 0; i < g->n; i++) at[i] += at[i] < n_rows[i] && row[i][at[i]] == least;
    }
}

// Norms of V that the group reads: of every row, or, for draws from a set, of the whole pages that have a row of a head's set.
static int n_norms(const call *c, const sl_group *g, const sl_head *heads) {
    int n_kv = g->kv->n_kv, at[SL_MAX_GROUP] = {0}, n = 0;
    if (!reads_norms(c->args->spec, c->stages.draw)) return 0;
    if (!c->stages.select) return n_kv;
    for (int page = 0; page * SL_PAGE < n_kv; page++) {
        int end = (page + 1) * SL_PAGE, is_read = 0;
        for (int i = 0; i < g->n; i++)
            for (; at[i] < heads[i].n_set && heads[i].set[at[i]] < end; at[i]++) is_read = 1;
        n += is_read ? sl_page_rows(g->kv, page) : 0;
    }
    return n;
}

static void report_group(const call *c, const sl_group *g, const sl_head *heads) {
    const sl_proposal *propose = c->stages.propose;
    size_t k_row = sl_k_row_bytes(g), v_row = sl_v_row_bytes(g);
    int selects = c->stages.select != NULL, refined = (selects || c->stages.normaliser == SL_BY_SAMPLE) && !propose->exact,
        fresh;
    int distinct = count_distinct(g, heads, 0, &fresh), scored = selects ? count_distinct(g, heads, 1, &fresh) : distinct;
    int needs_exact = c->layers[g->query - c->args->seqs].goes_dense, n_kv = g->kv->n_kv;
    for (int i = 0; i < g->n; i++) needs_exact |= heads[i].needs_exact;
    if (needs_exact) distinct = scored = n_kv, fresh = sl_page_rows(g->kv, sl_kv_n_built(g->kv));
    // A proposal from page extras has already read the keys of the newest page.
    int refined_rows = refined ? scored - (propose->needs ? fresh : 0) : 0;
    int k_rows = refined          ? refined_rows + (propose->needs ? sl_page_rows(g->kv, sl_kv_n_built(g->kv)) : 0)
                 : propose->needs ? 0
                                  : n_kv;
    uint64_t bytes = propose->bytes(g) + refined_rows * k_row + (uint64_t)distinct * v_row;
    if (needs_exact && !refined) k_rows = n_kv, bytes += n_kv * k_row; // exact attention reads the scored keys again
    bytes += (uint64_t)n_norms(c, g, heads) * sizeof(bf16);
    for (int i = 0; i < g->n; i++) {
        sl_attn_report *r = heads[i].report;
        r->k_rows = (uint32_t)k_rows;
        r->v_distinct = (uint32_t)distinct;
        r->bytes = bytes;
        r->dense_bytes = (uint64_t)n_kv * (k_row + v_row);
    }
}

// The tasks of the passes. ctx is the call.

static void begin_task(void *ctx, size_t pair, int thread) {
    (void)thread;
    const call *c = ctx;
    c->stages.propose->begin(&c->groups[pair]);
}

static void propose_task(void *ctx, size_t task, int thread) {
    (void)thread;
    const call *c = ctx;
    size_t pair = task / c->n_chunks;
    int chunk = (int)(task % c->n_chunks);
    if (chunk * SL_CHUNK < c->groups[pair].kv->n_kv) propose_chunk(c, &c->groups[pair], c->heads + pair * c->group, chunk);
}

static void masses_task(void *ctx, size_t item, int thread) {
    (void)thread;
    const call *c = ctx;
    finish_masses(c, &c->heads[item]);
}

static void plan_task(void *ctx, size_t s, int thread) {
    (void)thread;
    const call *c = ctx;
    c->stages.draw->plan(&c->layers[s]);
}

static void settle_task(void *ctx, size_t s, int thread) {
    (void)thread;
    const call *c = ctx;
    c->stages.draw->settle(&c->layers[s]);
}

static void draw_task(void *ctx, size_t item, int thread) {
    (void)thread;
    const call *c = ctx;
    draw_and_combine(c, &c->heads[item]);
}

static void repair_task(void *ctx, size_t item, int thread) {
    (void)thread;
    const call *c = ctx;
    repair(c, &c->heads[item]);
}

static void report_task(void *ctx, size_t pair, int thread) {
    (void)thread;
    const call *c = ctx;
    report_group(c, &c->groups[pair], c->heads + pair * c->group);
}

static void run(call *c) {
    const sl_proposal *propose = c->stages.propose;
    const sl_draw *draw = c->stages.draw;
    int n_seqs = c->args->n_seqs, repairs = 0;
    size_t n_pairs = (size_t)n_seqs * c->args->geom->n_kv_heads, n_items = n_pairs * c->group;
    if (propose->begin) sl_parallel(n_pairs, begin_task, c);
    sl_parallel(n_pairs * c->n_chunks, propose_task, c);
    if (propose->unit || c->stages.select || draw->prepare) sl_parallel(n_items, masses_task, c);
    if (draw->plan) sl_parallel(n_seqs, plan_task, c);
    sl_parallel(n_items, draw_task, c);
    if (draw->settle) sl_parallel(n_seqs, settle_task, c);
    for (int s = 0; s < n_seqs; s++) repairs |= c->layers[s].goes_dense;
    if (repairs) sl_parallel(n_items, repair_task, c);
    for (int s = 0; s < n_seqs; s++)
        if (c->layers[s].goes_dense)
            sl_reports_state_zero(c->args->geom, c->layers[s].query->out, c->layers[s].heads[0].report);
    sl_parallel(n_pairs, report_task, c);
}

// Of sequences that do not attend exactly.
static void decode_stages(const sl_attn_decode_args *a) {
    call c = {.args = a, .stages = sl_composition_of(a->spec), .ws = a->ws->data};
    c.group = a->geom->n_heads / a->geom->n_kv_heads;
    SL_CHECK(c.group <= SL_MAX_GROUP);
    if (sl_reads_ranges(&c.stages)) {
        const sl_draw *draw = c.stages.draw;
        sl_online_softmax_decode(a, draw ? &sl_propose_exact : c.stages.propose, draw ? draw->ranges : NULL);
        return;
    }
    c.l = lay_out(a->geom, a->spec, a->n_seqs, sl_longest(a));
    SL_CHECK(c.l.size <= a->ws->size);
    c.heads = (sl_head *)(c.ws + c.l.heads);
    c.groups = (sl_group *)(c.ws + c.l.groups);
    c.layers = (sl_layer *)(c.ws + c.l.layers);
    c.n_chunks = c.stages.propose->score ? (sl_longest(a) + SL_CHUNK - 1) / SL_CHUNK : 0;
    open_call(&c);
    run(&c);
    sl_reports_close(a, c.heads[0].report);
    for (int s = 0; s < a->n_seqs; s++) keep_norms(&c.layers[s]);
}

// ---- sequences with few rows ----

static int is_exact(const sl_attn_decode_args *a, int s) {
    return a->seqs[s].kv.n_kv < a->exact_below;
}

// Exact attention leaves the state of a layer as it is. The first step that draws after it finds a state of another position.
void sl_stages_decode(const sl_attn_decode_args *a) {
    for (int first = 0, end; first < a->n_seqs; first = end) {
        sl_attn_decode_args part = *a;
        int exact = is_exact(a, first);
        for (end = first + 1; end < a->n_seqs && is_exact(a, end) == exact;) end++;
        part.seqs += first, part.n_seqs = end - first;
        if (part.reports) part.reports += (size_t)first * a->geom->n_heads;
        if (exact)
            sl_online_softmax_decode(&part, &sl_propose_exact, NULL);
        else
            decode_stages(&part);
    }
}

const sl_attn_ops sl_stages_ops = {.workspace = workspace, .decode = sl_stages_decode, .needs = needs, .state = state};
