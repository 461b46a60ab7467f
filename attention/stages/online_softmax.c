// attention/stages/online_softmax.c - the driver of compositions without a draw: every row once, or every row of ranges that
// positions decide (sl_draw.ranges). One pass over pages fuses proposal, draw and combination with an online softmax. A task is
// a chunk of 1,024 rows of a KV head. Partial results merge in the order of the chunks.
//
// Queries of one sequence that follow each other (a token and its drafts) read the same pages. A task of exact attention serves
// all of them: it widens a page once for the heads of several queries. A query head's sums do not depend on the others.
#include "attention/stages/stages.h"
#include "base/thread_pool.h"

#include <math.h>
#include <string.h>

enum { RUN_HEADS = 32 }; // query heads of a run: its frame is then smaller than the frame of a whole group

// Queries [first, first + n) that follow each other in one sequence.
typedef struct query_run {
    int first, n;
} query_run;

// Byte offsets in the workspace. A pair is a (sequence, KV head), an item is a (sequence, query head).
typedef struct layout {
    size_t n_state; // bytes of the proposal's state of a pair
    size_t reports, groups, runs, states, partials, size;
} layout;

static int chunks(int n_kv) {
    return (n_kv + SL_CHUNK - 1) / SL_CHUNK;
}

// Floats of the partial result of a chunk: o [group][head_dim], m [group], l [group].
static size_t partial_floats(const sl_attn_geom *g) {
    return (size_t)(g->n_heads / g->n_kv_heads) * (g->head_dim + 2);
}

int sl_reads_ranges(const sl_composition *c) {
    return !c->draw || (!c->select && c->draw->ranges);
}

static layout lay_out(const sl_attn_geom *g, const sl_attn_spec *spec, const sl_proposal *propose, int n_seqs, int n_kv) {
    size_t pairs = (size_t)n_seqs * g->n_kv_heads, at = 0;
    layout l = {.n_state = propose->state ? (propose->state(g, spec, n_kv) + 63) / 64 * 64 : 0};
    l.reports = sl_workspace_take(&at, (size_t)n_seqs * g->n_heads * sizeof(sl_attn_report));
    l.groups = sl_workspace_take(&at, pairs * sizeof(sl_group));
    l.runs = sl_workspace_take(&at, (size_t)n_seqs * sizeof(query_run));
    l.states = sl_workspace_take(&at, pairs * l.n_state);
    l.partials = sl_workspace_take(&at, pairs * chunks(n_kv) * partial_floats(g) * sizeof(float));
    l.size = at;
    return l;
}

size_t sl_online_softmax_workspace(const sl_attn_geom *g, const sl_attn_spec *spec, const sl_proposal *propose, int n_seqs,
                                   int n_kv) {
    return lay_out(g, spec, propose, n_seqs, n_kv).size;
}

static void clear_partial(int n, int head_dim, float *o, float *m, float *l) {
    memset(o, 0, (size_t)n * head_dim * sizeof *o);
    for (int i = 0; i < n; i++) m[i] = -INFINITY, l[i] = 0;
}

// The rows [*from, *to) that range r of the group has in a page, counted from the page's first row. Returns 0: none.
static int rows_in_page(const sl_group *g, int r, int page, int *from, int *to) {
    int first = page * SL_PAGE;
    *from = g->rows.from[r] > first ? g->rows.from[r] - first : 0;
    *to = g->rows.to[r] - first < SL_PAGE ? g->rows.to[r] - first : SL_PAGE;
    return *from < *to;
}

static int has_rows(const sl_group *g, int chunk) {
    int from = chunk * SL_CHUNK, to = from + SL_CHUNK, any = 0;
    for (int r = 0; r < 2; r++) any |= g->rows.from[r] < to && g->rows.to[r] > from && g->rows.from[r] < g->rows.to[r];
    return any;
}

static int n_rows(const sl_group *g) {
    return g->rows.to[0] - g->rows.from[0] + g->rows.to[1] - g->rows.from[1];
}

static void softmax_chunk(const sl_group *g, const sl_proposal *propose, int chunk, float *partial) {
    int pages = sl_kv_pages_of(g->kv->n_kv), first = chunk * (SL_CHUNK / SL_PAGE), last = first + SL_CHUNK / SL_PAGE,
        dim = g->head_dim;
    float score[SL_MAX_GROUP * SL_CHUNK], *o = partial, *m = o + (size_t)g->n * dim, *l = m + g->n;
    clear_partial(g->n, dim, o, m, l);
    for (int page = first; page < last && page < pages; page++)
        for (int r = 0, from, to; r < 2; r++) {
            if (!rows_in_page(g, r, page, &from, &to)) continue;
            if (propose->exact)
                g->kernels->score(g->q, g->n, sl_kv_run_from(sl_k_page(g, page), dim, from), to - from, dim, g->scale, score,
                                  SL_CHUNK);
            else
                propose->score(g, page, score); // other proposals have every row
            g->kernels->online_softmax(score, SL_CHUNK, g->n, sl_kv_run_from(sl_v_page(g, page), dim, from), to - from, dim, m,
                                       l, o);
        }
}

// The same for the groups [n] of one KV head of queries that follow each other in a sequence, with exact scores. Each query
// sees its own rows. partials: [n]
__attribute__((noinline)) static void softmax_chunk_of_run(const sl_group *const *groups, int n, int chunk,
                                                           float *const *partials) {
    const sl_group *newest = groups[n - 1];
    const int dim = newest->head_dim, of_one = newest->n, heads = n * of_one;
    int pages = sl_kv_pages_of(newest->kv->n_kv), first = chunk * (SL_CHUNK / SL_PAGE), last = first + SL_CHUNK / SL_PAGE;
    float score[RUN_HEADS * SL_CHUNK], q[RUN_HEADS * SL_QUANT_DIM], o[RUN_HEADS * SL_QUANT_DIM], m[RUN_HEADS], l[RUN_HEADS];
    sl_group all = *newest;
    all.q = q, all.n = heads;
    for (int i = 0; i < n; i++) memcpy(q + (size_t)i * of_one * dim, groups[i]->q, (size_t)of_one * dim * sizeof *q);
    clear_partial(heads, dim, o, m, l);
    for (int page = first; page < last && page < pages; page++) {
        const sl_kv_run v = sl_v_page(&all, page);
        sl_score_exact(&all, page, score);
        if ((page + 1) * SL_PAGE <= groups[0]->kv->n_kv) { // every query sees the whole page
            all.kernels->online_softmax(score, SL_CHUNK, heads, v, SL_PAGE, dim, m, l, o);
            continue;
        }
        for (int i = 0, at = 0; i < n; i++, at += of_one)
            if (page * SL_PAGE < groups[i]->kv->n_kv)
                all.kernels->online_softmax(score + (size_t)at * SL_CHUNK, SL_CHUNK, of_one, v,
                                            sl_page_rows(groups[i]->kv, page), dim, m + at, l + at, o + (size_t)at * dim);
    }
    for (int i = 0; i < n; i++) {
        float *to = partials[i];
        memcpy(to, o + (size_t)i * of_one * dim, (size_t)of_one * dim * sizeof *o);
        memcpy(to + (size_t)of_one * dim, m + i * of_one, of_one * sizeof *m);
        memcpy(to + (size_t)of_one * dim + of_one, l + i * of_one, of_one * sizeof *l);
    }
}

// out = sum_c 2^(m_c - m) o_c / sum_c 2^(m_c - m) l_c over the chunks of query head i of the group, in order.
static void merge_chunks(const sl_group *g, int i, const float *partials, size_t stride) {
    float *out = g->query->out + ((size_t)g->h * g->n + i) * g->head_dim, m = -INFINITY, l = 0;
    int n = chunks(g->kv->n_kv);
    for (int c = 0; c < n; c++)
        if (has_rows(g, c)) m = fmaxf(m, partials[c * stride + (size_t)g->n * g->head_dim + i]);
    memset(out, 0, g->head_dim * sizeof *out);
    for (int c = 0; c < n; c++) {
        if (!has_rows(g, c)) continue; // the partial result was not computed
        const float *o = partials + c * stride, *state = o + (size_t)g->n * g->head_dim;
        float factor = exp2f(state[i] - m);
        l += factor * state[g->n + i];
        for (int d = 0; d < g->head_dim; d++) out[d] += factor * o[(size_t)i * g->head_dim + d];
    }
    for (int d = 0; d < g->head_dim; d++) out[d] /= l;
}

// Two passes over the chunks: the first finds the largest score, the second adds up the results of the chunks. So the function
// stores no partial results.
void sl_exact_head(sl_head *x) {
    const int dim = x->group->head_dim, n = chunks(x->group->kv->n_kv);
    float o[SL_QUANT_DIM + 2], *out = x->out, m = -INFINITY, l = 0;
    const float *own_m = o + dim, *own_l = own_m + 1;
    sl_group g = *x->group;
    g.q = x->q, g.n = 1;
    for (int c = 0; c < n; c++) {
        softmax_chunk(&g, &sl_propose_exact, c, o);
        m = fmaxf(m, *own_m);
    }
    memset(out, 0, dim * sizeof *out);
    for (int c = 0; c < n; c++) {
        softmax_chunk(&g, &sl_propose_exact, c, o);
        float factor = exp2f(*own_m - m);
        l += factor * *own_l;
        for (int d = 0; d < dim; d++) out[d] += factor * o[d];
    }
    for (int d = 0; d < dim; d++) out[d] /= l;
}

static void report_head(const sl_group *g, const sl_proposal *propose, int i, sl_attn_report *r) {
    uint64_t n = (uint64_t)n_rows(g), v_row = sl_v_row_bytes(g), k_row = sl_k_row_bytes(g);
    sl_head x = {.group = g, .index = i, .report = r};
    *r = (sl_attn_report){
        SL_ATTN_NO_VALUES,
        .k_rows = (uint32_t)(propose->exact   ? n
                             : propose->needs ? (uint64_t)sl_page_rows(g->kv, sl_kv_n_built(g->kv))
                                              : 0),
        .v_distinct = (uint32_t)n,
        .v_rows = (uint32_t)n,
        .features = 1,
        .bytes = (propose->exact ? n * k_row : propose->bytes(g)) + n * v_row,
        .dense_bytes = (uint64_t)g->kv->n_kv * (k_row + v_row),
    };
    if (propose->report) propose->report(&x);
}

typedef struct call {
    const sl_attn_decode_args *a;
    const sl_proposal *propose;
    sl_ranges_fn ranges; // NULL: every row
    char *states;
    size_t n_state; // bytes of a pair
    sl_group *groups;
    sl_attn_report *reports;
    float *partials;
    size_t stride; // floats of a partial result
    int n_chunks, group;
    int n_runs;
    query_run *runs; // [n_runs]
} call;

static void begin_pair(void *ctx, size_t pair, int thread) {
    (void)thread;
    const call *c = ctx;
    int n_kv_heads = c->a->geom->n_kv_heads;
    c->groups[pair] = sl_group_of(c->a, (int)pair / n_kv_heads, (int)pair % n_kv_heads);
    c->groups[pair].state = c->states + pair * c->n_state;
    if (c->ranges) c->groups[pair].rows = c->ranges(c->a->spec, c->groups[pair].kv->n_kv);
    if (c->propose->begin) c->propose->begin(&c->groups[pair]);
}

// A task is a run, a KV head and a chunk.
static void run_chunk(void *ctx, size_t task, int thread) {
    (void)thread;
    const call *c = ctx;
    int n_kv_heads = c->a->geom->n_kv_heads, chunk = (int)(task % c->n_chunks), h = (int)(task / c->n_chunks % n_kv_heads);
    const query_run *run = &c->runs[task / c->n_chunks / n_kv_heads];
    const sl_group *groups[RUN_HEADS];
    float *partials[RUN_HEADS];
    int n = 0;
    for (int i = 0; i < run->n; i++) {
        size_t pair = (size_t)(run->first + i) * n_kv_heads + h;
        if (!has_rows(&c->groups[pair], chunk)) continue;
        groups[n] = &c->groups[pair];
        partials[n++] = c->partials + (pair * c->n_chunks + chunk) * c->stride;
    }
    if (n == 1)
        softmax_chunk(groups[0], c->propose, chunk, partials[0]);
    else if (n)
        softmax_chunk_of_run(groups, n, chunk, partials);
}

// Splits the queries into runs. Only exact scores of all rows are computed for several queries at once.
static int split(const call *c, query_run *runs) {
    const sl_attn_query *seqs = c->a->seqs;
    int n = 0, most = 1;
    if (c->propose == &sl_propose_exact && !c->ranges && c->group < RUN_HEADS) most = RUN_HEADS / c->group;
    for (int i = 0; i < c->a->n_seqs; i++) {
        int follows = i && seqs[i].kv.pages == seqs[i - 1].kv.pages && seqs[i].kv.n_kv == seqs[i - 1].kv.n_kv + 1;
        if (follows && runs[n - 1].n < most)
            runs[n - 1].n++;
        else
            runs[n++] = (query_run){i, 1};
    }
    return n;
}

static void finish_head(void *ctx, size_t item, int thread) {
    (void)thread;
    const call *c = ctx;
    const sl_group *g = &c->groups[item / c->group];
    int i = (int)item % c->group;
    merge_chunks(g, i, c->partials + item / c->group * c->n_chunks * c->stride, c->stride);
    report_head(g, c->propose, i, &c->reports[item]);
    if (c->ranges) c->reports[item].samples = c->reports[item].budget = (uint32_t)n_rows(g);
}

// What a sequence states that attends exactly because it has few rows.
static void report_exact(const call *c, int s) {
    const sl_attn_geom *g = c->a->geom;
    const float *out = c->a->seqs[s].out;
    sl_attn_report *reports = c->reports + (size_t)s * g->n_heads;
    int of_layer = sl_attn_certifies_layer(c->a->spec), of_head = !of_layer && sl_attn_states_error(c->a->spec);
    if (of_layer) sl_reports_state_zero(g, out, reports);
    for (int h = 0; h < g->n_heads; h++) {
        reports[h].exact = 1;
        reports[h].certified = of_layer && reports[h].stated_error == 0;
        if (of_head) reports[h].error_bound = (float)sl_relative_bound(0, sl_norm(out + (size_t)h * g->head_dim, g->head_dim));
    }
}

void sl_online_softmax_decode(const sl_attn_decode_args *a, const sl_proposal *propose, sl_ranges_fn ranges) {
    const sl_attn_geom *geom = a->geom;
    int longest = sl_longest(a);
    size_t n_pairs = (size_t)a->n_seqs * geom->n_kv_heads;
    layout l = lay_out(geom, a->spec, propose, a->n_seqs, longest);
    SL_CHECK(l.size <= a->ws->size);
    char *ws = a->ws->data;
    call c = {.a = a,
              .propose = propose,
              .ranges = ranges,
              .states = ws + l.states,
              .n_state = l.n_state,
              .groups = (sl_group *)(ws + l.groups),
              .reports = (sl_attn_report *)(ws + l.reports),
              .partials = (float *)(ws + l.partials),
              .stride = partial_floats(geom),
              .n_chunks = chunks(longest),
              .group = geom->n_heads / geom->n_kv_heads,
              .runs = (query_run *)(ws + l.runs)};
    c.n_runs = split(&c, c.runs);
    sl_parallel(n_pairs, begin_pair, &c);
    sl_parallel((size_t)c.n_runs * geom->n_kv_heads * c.n_chunks, run_chunk, &c);
    sl_parallel(n_pairs * c.group, finish_head, &c);
    for (int s = 0; s < a->n_seqs; s++)
        if (a->seqs[s].kv.n_kv < a->exact_below) report_exact(&c, s);
    sl_reports_close(a, c.reports);
}
