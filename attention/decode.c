// attention/decode.c - runs a composition of stages for every sequence and head of a decode call.
//
// Three passes inside one parallel region: (1) proposal, a task per 1,024-row chunk of a KV head; (2) draw and combine, a
// task per query head; (3) distinct rows of a KV head, for the statistics. No task's result depends on how tasks are spread.
#include "attention/kernels.h"
#include "attention/stages.h"

#include <math.h>
#include <string.h>

// Where everything lies in the workspace. One slot per (sequence, query head).
typedef struct layout {
    size_t n_rows, n_blocks, cap, n_scratch;                                           // of a slot
    size_t w, ref, cum, row, count, per_draw, scratch, rows, coef, n_drawn, n_sampled; // byte offsets of [slot][...]
    size_t size;
} layout;

static size_t take(size_t *at, size_t bytes) {
    size_t offset = *at;
    *at += (bytes + 63) / 64 * 64;
    return offset;
}

static layout lay_out(const sl_attn_geom *geom, int S, int n_seqs, int n_kv) {
    size_t slots = (size_t)n_seqs * geom->n_heads, at = 0;
    layout l = {.n_blocks = (size_t)(n_kv + SL_BLOCK - 1) / SL_BLOCK,
                .cap = sl_draw_capacity(S, n_kv),
                .n_scratch = sl_draw_scratch(S, n_kv)};
    l.n_rows = l.n_blocks * SL_BLOCK;
    l.w = take(&at, slots * l.n_rows * sizeof(bf16));
    l.ref = take(&at, slots * l.n_blocks * sizeof(int16_t));
    l.cum = take(&at, slots * (l.n_blocks + 1) * sizeof(uint64_t));
    l.row = take(&at, slots * l.cap * sizeof(int32_t));
    l.count = take(&at, slots * l.cap * sizeof(int32_t));
    l.per_draw = take(&at, slots * l.cap * sizeof(float));
    l.scratch = take(&at, slots * l.n_scratch * sizeof(uint64_t));
    l.rows = take(&at, slots * l.cap * sizeof(bf16 *));
    l.coef = take(&at, slots * l.cap * sizeof(float));
    l.n_drawn = take(&at, slots * sizeof(int32_t));
    l.n_sampled = take(&at, slots * sizeof(int32_t));
    l.size = at;
    return l;
}

static int budget(const sl_attn_spec *spec) {
    return (int)sl_attn_get(spec, "S");
}

static size_t workspace(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_seqs, int n_tokens, int n_kv) {
    (void)n_tokens; // decode alone
    return lay_out(geom, budget(spec), n_seqs, n_kv).size;
}

static sl_weights weights_of(const layout *l, char *ws, size_t slot, int n) {
    return (sl_weights){
        .n = n,
        .n_blocks = (n + SL_BLOCK - 1) / SL_BLOCK,
        .w = (bf16 *)(ws + l->w) + slot * l->n_rows,
        .ref = (int16_t *)(ws + l->ref) + slot * l->n_blocks,
        .cum = (uint64_t *)(ws + l->cum) + slot * (l->n_blocks + 1),
    };
}

static sl_draws draws_of(const layout *l, char *ws, size_t slot) {
    return (sl_draws){
        .n = ((int32_t *)(ws + l->n_drawn))[slot],
        .n_samples = ((int32_t *)(ws + l->n_sampled))[slot],
        .row = (int32_t *)(ws + l->row) + slot * l->cap,
        .count = (int32_t *)(ws + l->count) + slot * l->cap,
        .per_draw = (float *)(ws + l->per_draw) + slot * l->cap,
        .scratch = (uint64_t *)(ws + l->scratch) + slot * l->n_scratch,
    };
}

// Exact scores of one chunk of KV head h for its group, as stored weights and in-block masses.
static void propose_chunk(const sl_attn_decode_args *a, const layout *l, const sl_attn_kernels *kernels, int s, int h,
                          int chunk) {
    const sl_attn_geom *g = a->geom;
    const sl_attn_query *query = &a->seqs[s];
    int group = g->n_heads / g->n_kv_heads, end = (chunk + 1) * SL_CHUNK;
    if (end > query->kv.n_kv) end = query->kv.n_kv;
    float scale = (float)(1.4426950408889634 / sqrt(g->head_dim)), score[SL_MAX_GROUP * SL_PAGE];
    const float *q = query->q + (size_t)h * group * g->head_dim;
    for (int j = chunk * SL_CHUNK; j < end; j += SL_PAGE) {
        int n = end - j < SL_PAGE ? end - j : SL_PAGE;
        const bf16 *k = query->kv.k + sl_kv_block(&query->kv, g->n_kv_heads, g->head_dim, j / SL_PAGE, h);
        kernels->score(q, group, k, n, g->head_dim, scale, score, SL_PAGE);
        for (int i = 0; i < group; i++) {
            sl_weights wt = weights_of(l, a->ws->data, (size_t)s * g->n_heads + h * group + i, query->kv.n_kv);
            int b = j / SL_BLOCK, n_blocks = (n + SL_BLOCK - 1) / SL_BLOCK;
            kernels->weigh(score + i * SL_PAGE, n, wt.w + j, wt.ref + b);
            for (int e = b + n_blocks; b < e; b++) wt.cum[b + 1] = sl_block_mass(wt.w + (size_t)b * SL_BLOCK);
        }
    }
}

static void draw_and_combine(const sl_attn_decode_args *a, const layout *l, const sl_attn_kernels *kernels, int s, int head) {
    const sl_attn_geom *g = a->geom;
    const sl_attn_query *query = &a->seqs[s];
    char *ws = a->ws->data;
    size_t slot = (size_t)s * g->n_heads + head;
    sl_weights wt = weights_of(l, ws, slot, query->kv.n_kv);
    sl_draws draws = draws_of(l, ws, slot);
    const sl_rng_id id = {.seed = a->seed,
                          .sequence = query->sequence,
                          .position = query->position,
                          .layer = (uint32_t)a->layer,
                          .head = (uint32_t)head};
    sl_weights_finish(&wt);
    a->spec->method->stages->draw(&wt, budget(a->spec), sl_uniform_philox(&id), &draws);
    ((int32_t *)(ws + l->n_drawn))[slot] = draws.n;
    ((int32_t *)(ws + l->n_sampled))[slot] = draws.n_samples;
    sl_combine(&draws, &query->kv, g->n_kv_heads, g->head_dim, head / (g->n_heads / g->n_kv_heads), kernels,
               (const bf16 **)(ws + l->rows) + slot * l->cap, (float *)(ws + l->coef) + slot * l->cap,
               query->out + (size_t)head * g->head_dim);
}

// Rows that at least one head of the group drew: a merge of their ascending lists.
static int count_distinct(const sl_attn_decode_args *a, const layout *l, int s, int h) {
    int group = a->geom->n_heads / a->geom->n_kv_heads, at[SL_MAX_GROUP] = {0}, n = 0;
    sl_draws draws[SL_MAX_GROUP];
    for (int i = 0; i < group; i++) draws[i] = draws_of(l, a->ws->data, (size_t)s * a->geom->n_heads + h * group + i);
    for (;; n++) {
        int32_t least = INT32_MAX;
        for (int i = 0; i < group; i++)
            if (at[i] < draws[i].n && draws[i].row[at[i]] < least) least = draws[i].row[at[i]];
        if (least == INT32_MAX) return n;
        for (int i = 0; i < group; i++) at[i] += at[i] < draws[i].n && draws[i].row[at[i]] == least;
    }
}

static void count_stats(const sl_attn_decode_args *a, const layout *l, const int64_t n_distinct) {
    const sl_attn_geom *g = a->geom;
    sl_attn_stats st = {.v_distinct = (uint64_t)n_distinct};
    size_t row_bytes = (size_t)g->head_dim * sizeof(bf16);
    for (int s = 0; s < a->n_seqs; s++) {
        uint64_t rows = (uint64_t)a->seqs[s].kv.n_kv * g->n_kv_heads;
        st.steps += g->n_heads;
        st.k_rows += rows;
        st.dense_k_rows += rows, st.dense_v_rows += rows;
        for (int head = 0; head < g->n_heads; head++) {
            sl_draws draws = draws_of(l, a->ws->data, (size_t)s * g->n_heads + head);
            st.v_rows += draws.n;
            st.samples += draws.n_samples;
        }
    }
    st.bytes = (st.k_rows + st.v_distinct) * row_bytes;
    st.dense_bytes = (st.dense_k_rows + st.dense_v_rows) * row_bytes;
    sl_attn_stats_add(a->stats, &st);
}

static void decode(const sl_attn_decode_args *a) {
    const sl_attn_geom *g = a->geom;
    const sl_attn_kernels *kernels = sl_attn_kernels_best();
    int longest = 0;
    for (int s = 0; s < a->n_seqs; s++) longest = a->seqs[s].kv.n_kv > longest ? a->seqs[s].kv.n_kv : longest;
    layout l = lay_out(g, budget(a->spec), a->n_seqs, longest);
    SL_CHECK(l.size <= a->ws->size && g->n_heads / g->n_kv_heads <= SL_MAX_GROUP);
    int n_chunks = (longest + SL_CHUNK - 1) / SL_CHUNK, n_pairs = a->n_seqs * g->n_kv_heads;
    int64_t n_distinct = 0;
#pragma omp parallel
    {
#pragma omp for schedule(dynamic)
        for (int task = 0; task < n_pairs * n_chunks; task++) {
            int pair = task / n_chunks, chunk = task % n_chunks, s = pair / g->n_kv_heads;
            if (chunk * SL_CHUNK < a->seqs[s].kv.n_kv) propose_chunk(a, &l, kernels, s, pair % g->n_kv_heads, chunk);
        }
#pragma omp for schedule(dynamic)
        for (int slot = 0; slot < a->n_seqs * g->n_heads; slot++)
            draw_and_combine(a, &l, kernels, slot / g->n_heads, slot % g->n_heads);
#pragma omp for schedule(dynamic) reduction(+ : n_distinct)
        for (int pair = 0; pair < n_pairs; pair++)
            n_distinct += count_distinct(a, &l, pair / g->n_kv_heads, pair % g->n_kv_heads);
    }
    count_stats(a, &l, n_distinct);
}

const sl_attn_ops sl_stages_ops = {.workspace = workspace, .decode = decode};
