// attention/prefill/row_sums.c - sums over sampled rows in one pass over the keys, or in two for single keys, without a matrix
// of all scores (row_sums.h).
#include "attention/prefill/row_sums.h"
#include "attention/prefill/integer_softmax.h"
#include "attention/stages/stages.h"
#include "base/thread_pool.h"

#include <math.h>
#include <string.h>

// ---- scratch ----

// base NULL: only computes the bytes.
static size_t lay_out(const sl_attn_geom *g, int n_kv, char *base, sl_row_sums *x) {
    size_t at = 0, n = n_kv, rows = SL_MASK_BLOCK, dim = g->head_dim;
    size_t blocks = (n + SL_MASK_BLOCK - 1) / SL_MASK_BLOCK, words = (blocks + 63) / 64;
#define TAKE(FIELD, N)                                                                                                         \
    do {                                                                                                                       \
        size_t from = sl_workspace_take(&at, (N) * sizeof *x->FIELD);                                                          \
        if (base) x->FIELD = (void *)(base + from);                                                                            \
    } while (0)
    TAKE(block, rows * blocks);
    TAKE(mass, rows * blocks);
    TAKE(scale, rows);
    TAKE(octave, SL_OCTAVE);
    TAKE(near, SL_MASS_REACH);
    TAKE(slash, blocks);
    TAKE(column, n);
    TAKE(offset, n);
    TAKE(sum, n);
    TAKE(rank, n);
    TAKE(set, words);
    TAKE(other, words);
    TAKE(q, rows * dim);
    TAKE(k_page, dim * SL_PAGE);
    TAKE(k, dim * SL_PAGE);
    TAKE(dot, rows * SL_PAGE);
    TAKE(score, rows * SL_PAGE);
#undef TAKE
    return at;
}

size_t sl_mask_measure_workspace(const sl_attn_geom *g, int n_kv) {
    return lay_out(g, n_kv, NULL, &(sl_row_sums){0});
}

size_t sl_mask_run_workspace(const sl_attn_geom *g, const sl_attn_spec *spec, int n_tokens, int n_kv) {
    (void)spec, (void)n_tokens;
    return sl_threads_n() * sl_mask_measure_workspace(g, n_kv);
}

typedef struct run_call {
    const sl_mask_args *a;
    int n;
    sl_mask_task task;
    size_t bytes; // scratch memory of a thread
} run_call;

static void run_task(void *ctx, size_t i, int thread) {
    const run_call *c = ctx;
    sl_row_sums x = {0};
    lay_out(c->a->geom, c->a->kv.n_kv, (char *)c->a->ws->data + c->bytes * (size_t)thread, &x);
    c->task(c->a, c->n - 1 - (int)i, &x); // the last queries see the most keys, so they come first
}

void sl_mask_run(const sl_mask_args *a, int n, sl_mask_task task) {
    run_call c = {a, n, task, sl_mask_measure_workspace(a->geom, a->kv.n_kv)};
    SL_CHECK(c.bytes * sl_threads_n() <= a->ws->size);
    sl_parallel(n, run_task, &c);
}

// ---- scores ----

sl_score_rows sl_rows_of_blocks(const sl_mask_args *a, int head, int from, int to, int stride) {
    int base = a->kv.n_kv - a->n_tokens, first = from * SL_MASK_BLOCK, last = to * SL_MASK_BLOCK - 1;
    if (first < base) first = base;
    if (last >= a->kv.n_kv) last = a->kv.n_kv - 1;
    return (sl_score_rows){.head = head, .stride = stride, .first = first / stride, .n = last / stride - first / stride + 1};
}

static void load_queries(const sl_mask_args *a, const sl_score_rows *rows, float *q) {
    int dim = a->geom->head_dim, base = a->kv.n_kv - a->n_tokens, from = rows->first * rows->stride - base;
    memset(q, 0, (size_t)SL_MASK_BLOCK * dim * sizeof *q);
    for (int i = 0; i < rows->n * rows->stride; i++)
        if (from + i >= 0 && from + i < a->n_tokens)
            memcpy(q + (size_t)i * dim, a->q + ((size_t)(from + i) * a->geom->n_heads + rows->head) * dim, dim * sizeof *q);
}

// Row (t, d) of x->k is channel d of key stride - 1 - t of every column.
static void load_keys(const sl_mask_args *a, const sl_score_rows *rows, int page, sl_row_sums *x) {
    const sl_attn_geom *g = a->geom;
    int dim = g->head_dim, stride = rows->stride, h = rows->head / (g->n_heads / g->n_kv_heads);
    sl_kv_run k = sl_kv_k_run(&a->kv, g->n_kv_heads, dim, page, h);
    sl_attn_kernels_best()->widen_transposed(k, sl_page_rows(&a->kv, page), dim, stride == 1 ? x->k : x->k_page);
    if (stride == 1) return;
    float *to = x->k;
    for (int t = 0; t < stride; t++)
        for (int d = 0; d < dim; d++)
            for (int c = 0; c < SL_PAGE / stride; c++) *to++ = x->k_page[(size_t)d * SL_PAGE + c * stride + stride - 1 - t];
}

static int n_seen(const sl_score_rows *rows, int r, int page) { // columns of a page that row r sees; below 1: none
    int width = SL_PAGE / rows->stride, n = rows->first + r + 1 - page * width;
    return n < width ? n : width;
}

// Writes the scores of all rows with the columns of a page, as far as the rows see them.
static void score_page(const sl_mask_args *a, const sl_score_rows *rows, int page, sl_row_sums *x) {
    int width = SL_PAGE / rows->stride, k = rows->stride * a->geom->head_dim;
    int padded = (rows->n + SL_GEMM_ROWS - 1) / SL_GEMM_ROWS * SL_GEMM_ROWS;
    float scale = sl_score_scale(a->geom->head_dim) / (float)rows->stride;
    load_keys(a, rows, page, x);
    sl_attn_kernels_best()->gemm(x->q, k, x->k, width, padded, width, k, 0, x->dot, width);
    for (int r = 0; r < rows->n; r++)
        for (int c = 0, n = n_seen(rows, r, page); c < n; c++)
            x->score[r * width + c] = sl_score_of(x->dot[r * width + c], scale);
}

// ---- pass 1: masses of key blocks ----

void sl_mass_octave(uint32_t *octave) {
    for (int d = 0; d < SL_OCTAVE; d++) octave[d] = (uint32_t)(0x1p30 * SL_MASS_SCALE * exp2(-d / (double)SL_OCTAVE));
}

static void fill_masses(sl_row_sums *x) {
    sl_mass_octave(x->octave);
    for (int d = 0; d < SL_MASS_REACH; d++)
        x->near[d] = (x->octave[d % SL_OCTAVE] + (1u << (13 + d / SL_OCTAVE))) >> (14 + d / SL_OCTAVE);
}

static uint32_t sum_of_masses(const int32_t *score, int n, int ref, const uint32_t *near) {
    uint32_t sum = 0;
    for (int c = 0; c < n; c++) {
        uint32_t d = (uint32_t)(ref * SL_OCTAVE - score[c]);
        sum += d < SL_MASS_REACH ? near[d] : 0;
    }
    return sum;
}

// score: of the n columns of a block that the row sees; the first n_low of them are up to the split. Returns 0: no sums.
static int mass_of_block(const int32_t *score, int n, int n_low, const uint32_t *near, sl_block_mass *to) {
    int32_t top = score[0], least = -SL_REF_MOST * SL_OCTAVE;
    for (int c = 1; c < n; c++) top = score[c] > top ? score[c] : top;
    if (top > SL_REF_MOST * SL_OCTAVE) return 0;
    *to = (sl_block_mass){.ref = SL_REF_EMPTY};
    if (top < least) return 1;
    to->ref = (int16_t)((top - least + SL_OCTAVE - 1) / SL_OCTAVE - SL_REF_MOST);
    to->low = sum_of_masses(score, n_low, to->ref, near);
    to->high = sum_of_masses(score + n_low, n - n_low, to->ref, near);
    return 1;
}

static int add_block_masses(const sl_score_rows *rows, int page, sl_row_sums *x) {
    int width = SL_PAGE / rows->stride, per_block = SL_MASK_BLOCK / rows->stride, good = 1;
    for (int r = 0; r < rows->n; r++)
        for (int from = 0, n = n_seen(rows, r, page); from < n; from += per_block) {
            int left = n - from < per_block ? n - from : per_block, low = left, row = rows->first + r;
            if (rows->stride == 1 && row % SL_MASK_BLOCK + 1 < low) low = row % SL_MASK_BLOCK + 1;
            sl_block_mass *to = x->mass + (size_t)r * x->n_blocks + (page * width + from) / per_block;
            good &= mass_of_block(x->score + r * width + from, left, low, x->near, to);
        }
    return good;
}

// ---- shares of key blocks ----

static sl_row_scale scale_of(const sl_block_mass *mass, int n) { // factor 0: no sums
    int top = mass[0].ref;
    uint64_t z = 0;
    for (int b = 0; b < n; b++) top = mass[b].ref > top ? mass[b].ref : top;
    for (int b = 0; b < n; b++) z += sl_mass_below(mass[b].low + mass[b].high, top - mass[b].ref);
    return (sl_row_scale){top, z ? sl_share_factor(z) : 0};
}

static int add_shares(const sl_score_rows *rows, int r, sl_row_sums *x) {
    const sl_block_mass *mass = x->mass + (size_t)r * x->n_blocks;
    int diagonal = (rows->first + r) * rows->stride / SL_MASK_BLOCK;
    sl_row_scale scale = x->scale[r] = scale_of(mass, diagonal + 1);
    for (int b = 0; b <= diagonal; b++) {
        uint32_t low = sl_share(sl_mass_below(mass[b].low, scale.top - mass[b].ref), scale.factor);
        uint32_t high = sl_share(sl_mass_below(mass[b].high, scale.top - mass[b].ref), scale.factor);
        x->block[(size_t)r * x->n_blocks + b] = low + high;
        x->slash[diagonal - b] += low;
        if (b < diagonal) x->slash[diagonal - b - 1] += high; // the diagonal has no columns after the split
    }
    return scale.factor != 0;
}

int sl_sum_rows(const sl_mask_args *a, const sl_score_rows *rows, sl_row_sums *x) {
    int width = SL_PAGE / rows->stride, last = rows->first + rows->n - 1;
    SL_CHECK(rows->n > 0 && rows->n * rows->stride <= SL_MASK_BLOCK);
    x->n_columns = last + 1, x->n_blocks = last * rows->stride / SL_MASK_BLOCK + 1;
    memset(x->block, 0, (size_t)rows->n * x->n_blocks * sizeof *x->block);
    memset(x->slash, 0, x->n_blocks * sizeof *x->slash);
    fill_masses(x);
    load_queries(a, rows, x->q);
    for (int page = 0; page <= last / width; page++) {
        score_page(a, rows, page, x);
        if (!add_block_masses(rows, page, x)) return 0;
    }
    for (int r = 0; r < rows->n; r++)
        if (!add_shares(rows, r, x)) return 0;
    return 1;
}

// ---- pass 2: shares of columns and of offsets ----

void sl_sum_lines(const sl_mask_args *a, const sl_score_rows *rows, sl_row_sums *x) {
    int width = SL_PAGE / rows->stride;
    memset(x->column, 0, x->n_columns * sizeof *x->column);
    memset(x->offset, 0, x->n_columns * sizeof *x->offset);
    for (int page = 0; page * width < x->n_columns; page++) {
        score_page(a, rows, page, x);
        for (int r = 0; r < rows->n; r++)
            for (int c = 0, n = n_seen(rows, r, page), column = page * width; c < n; c++, column++) {
                uint32_t d = (uint32_t)(x->scale[r].top * SL_OCTAVE - x->score[r * width + c]);
                uint32_t share = sl_share(sl_fine_mass(x->octave, d), x->scale[r].factor);
                x->column[column] += share;
                x->offset[rows->first + r - column] += share;
            }
    }
}

void sl_sum_blocks(const sl_score_rows *rows, sl_row_sums *x) {
    memcpy(x->sum, x->block, x->n_blocks * sizeof *x->sum);
    for (int r = 1; r < rows->n; r++)
        for (int j = 0; j < x->n_blocks; j++) x->sum[j] += x->block[(size_t)r * x->n_blocks + j];
}

// ---- the mask of a head ----

int32_t sl_rows_kept(const sl_mask_args *a, const sl_score_rows *rows, const sl_row_sums *x) {
    int32_t least = 1 << SL_SHARE_BITS;
    for (int r = 0; r < rows->n; r++) {
        const uint32_t *block = x->block + (size_t)r * x->n_blocks;
        int diagonal = (rows->first + r) / SL_MASK_BLOCK;
        const uint64_t *bits = sl_mask_row(a->mask, rows->head, diagonal);
        uint64_t kept = 0, total = 0;
        for (int j = 0; j <= diagonal; j++) {
            total += block[j];
            if (sl_mask_has(bits, j)) kept += block[j];
        }
        int32_t share = (int32_t)((kept << SL_SHARE_BITS) / total);
        least = share < least ? share : least;
    }
    return least;
}

int32_t sl_mask_measure(const sl_mask_args *a, int head, int first, int n) {
    sl_row_sums x = {0};
    sl_score_rows rows = {.head = head, .stride = 1, .first = a->kv.n_kv - a->n_tokens + first, .n = n};
    SL_CHECK(first >= 0 && first + n <= a->n_tokens && sl_mask_measure_workspace(a->geom, a->kv.n_kv) <= a->ws->size);
    lay_out(a->geom, a->kv.n_kv, a->ws->data, &x);
    return sl_sum_rows(a, &rows, &x) ? sl_rows_kept(a, &rows, &x) : SL_MASK_NOT_SAMPLED;
}

void sl_mask_add_all(const sl_mask_args *a, int head, int from, int to) {
    for (int i = from; i < to; i++) sl_mask_add(a->mask, head, i, 0, i);
}

int sl_sum_query_block(const sl_mask_args *a, int head, int i, int stride, sl_row_sums *x) {
    sl_score_rows rows = sl_rows_of_blocks(a, head, i, i + 1, stride);
    int has_sums = sl_sum_rows(a, &rows, x);
    if (has_sums)
        sl_sum_blocks(&rows, x);
    else
        sl_mask_add_all(a, head, i, i + 1);
    return has_sums;
}

// ---- the largest sums ----

void sl_rank_sums(const uint32_t *sum, int n, uint64_t *rank) {
    for (int i = 0; i < n; i++) rank[i] = (uint64_t)~sum[i] << 32 | (uint32_t)i;
    sl_sort(rank, n);
}

int sl_fewest_reaching(const uint64_t *rank, int n, uint64_t share) {
    uint64_t total = 0, sum = 0;
    int k = 0;
    for (int i = 0; i < n; i++) total += sl_rank_sum(rank[i]);
    while (k < n && sum << 32 < share * total) sum += sl_rank_sum(rank[k++]);
    return k;
}
