// backend/cuda/cuda_place.c - copies weights to the GPU, or makes the weights of a dummy model there.
//
// Weights that an operation reads together (q, k, v; gate, up) lie in one block, one matrix after the other. Quantised weights
// stay packed if the kernels can read them (packed.h). Those of equal packings that are neighbours in a block form a run, one
// matrix; after it come its scales and its order. A weight with the columns of one rank has a block of its own. All others are
// bf16 on the GPU: F16 and F32 weights are rounded there, and the host rounds the numbers of the other quantised weights.
// Weights are copied from the mapped file to the GPU through two pinned buffers. While CUDA copies one buffer, threads fill the
// other one.
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/cuda_error.h"
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/packed_linear.h"
#include "backend/dummy_weights.h"
#include "base/thread_pool.h"

#include <stdlib.h>
#include <string.h>

static size_t count(const sl_weight *w) {
    return (size_t)w->n_rows * w->n_cols;
}

static int init_staging(sl_cuda *c, sl_error *err) {
    for (int i = 0; i < 2 && !c->staging[i]; i++) {
        int rc = sl_cuda_check(cudaHostAlloc((void **)&c->staging[i], SL_STAGING, 0), "pinned memory for weights", err);
        if (!rc) rc = sl_cuda_check(cudaEventCreateWithFlags(&c->staging_read[i], cudaEventDisableTiming), "event", err);
        if (rc) return rc;
    }
    return 0;
}

typedef struct copy_call {
    char *to;
    const char *from;
    size_t n;
} copy_call;

enum { PART = 1 << 20 }; // bytes that a thread copies at a time

static void copy_part(void *ctx, size_t i, int thread) {
    (void)thread;
    const copy_call *c = ctx;
    size_t at = i * PART, left = c->n - at;
    memcpy(c->to + at, c->from + at, left < PART ? left : PART);
}

// Copies `size` bytes from the host to the GPU, SL_STAGING bytes at a time.
static int send(sl_cuda *c, void *to, const void *from, size_t size, sl_error *err) {
    int rc = 0;
    for (size_t at = 0; !rc && at < size; at += SL_STAGING, c->next_staging ^= 1) {
        size_t n = size - at < SL_STAGING ? size - at : SL_STAGING;
        char *piece = c->staging[c->next_staging];
        rc = sl_cuda_check(cudaEventSynchronize(c->staging_read[c->next_staging]), "weights", err);
        if (rc) break;
        sl_parallel((n + PART - 1) / PART, copy_part, &(copy_call){piece, (const char *)from + at, n});
        rc = sl_cuda_check(cudaMemcpyAsync((char *)to + at, piece, n, cudaMemcpyHostToDevice, c->stream), "weights", err);
        if (!rc) rc = sl_cuda_check(cudaEventRecord(c->staging_read[c->next_staging], c->stream), "weights", err);
    }
    return rc;
}

// Copies parts of an F16 or F32 weight into a temporary buffer on the GPU, and rounds them on the GPU.
static int send_rounded(sl_cuda *c, bf16 *to, const sl_weight *w, sl_error *err) {
    size_t each = sl_format_bytes(w->format, 1), n = count(w), part = n < SL_STAGING / each ? n : SL_STAGING / each;
    void *unrounded = NULL;
    int rc = sl_cuda_check(cudaMalloc(&unrounded, part * each), "weights to be rounded to bf16", err);
    for (size_t at = 0, m; !rc && at < n; at += m) {
        m = n - at < part ? n - at : part;
        rc = send(c, unrounded, (const char *)w->data + at * each, m * each, err);
        if (!rc) sl_cuda_to_bf16(unrounded, w->format, m, to + at, c->stream);
    }
    if (!rc) rc = sl_cuda_check(cudaStreamSynchronize(c->stream), "weights to be rounded to bf16", err);
    cudaFree(unrounded);
    return rc;
}

typedef struct widen_call {
    const sl_weight *w;
    int first;
    bf16 *to;
    float *rows; // [threads][n_cols]
} widen_call;

static void widen_row(void *ctx, size_t i, int thread) {
    const widen_call *c = ctx;
    size_t n = (size_t)c->w->n_cols;
    float *row = c->rows + n * (size_t)thread;
    sl_weight_widen(c->w, (size_t)c->first + i, row);
    for (size_t j = 0; j < n; j++) c->to[i * n + j] = sl_f32_to_bf16(row[j]);
}

// Rounds the numbers of a quantised weight to bf16 on the host, some rows at a time, and copies them.
static int send_widened(sl_cuda *c, bf16 *to, const sl_weight *w, sl_error *err) {
    enum { ELEMENTS = 16 << 20 };
    size_t n = (size_t)w->n_cols;
    int step = (size_t)ELEMENTS > n ? (int)(ELEMENTS / n) : 1, rc = 0;
    bf16 *rounded = malloc((size_t)step * n * sizeof *rounded);
    float *rows = malloc((size_t)sl_threads_n() * n * sizeof *rows);
    if (!rounded || !rows) rc = sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", w->name);
    for (int first = 0; !rc && first < w->n_rows; first += step) {
        int n_rows = w->n_rows - first < step ? w->n_rows - first : step;
        sl_parallel((size_t)n_rows, widen_row, &(widen_call){w, first, rounded, rows});
        rc = send(c, to + (size_t)first * n, rounded, (size_t)n_rows * n * sizeof *rounded, err);
    }
    free(rounded);
    free(rows);
    return rc;
}

// Finds or makes the table of a deviation.
static int dummy_quantiles(sl_cuda *c, double deviation, const bf16 **out, sl_error *err) {
    enum { BYTES = SL_DUMMY_QUANTILES * sizeof(bf16) };
    int i = c->quantiles[0].values && c->quantiles[0].deviation != deviation;
    SL_CHECK(!c->quantiles[i].values || c->quantiles[i].deviation == deviation);
    *out = c->quantiles[i].values;
    if (*out) return 0;
    bf16 *values = malloc(BYTES);
    if (!values) return sl_fail(err, SL_ERR_MEMORY, "dummy weights: out of memory");
    sl_dummy_quantiles(deviation, values);
    int rc = sl_cuda_check(cudaMalloc((void **)&c->quantiles[i].values, BYTES), "dummy weights", err);
    if (!rc) rc = send(c, c->quantiles[i].values, values, BYTES, err);
    free(values);
    c->quantiles[i].deviation = deviation;
    *out = c->quantiles[i].values;
    return rc;
}

static int ranks_of(const sl_cuda *c, sl_cut cut) { // that have the columns
    return cut == SL_CUT_COLS && c->ranks ? c->ranks->exchange.n : 1;
}

// Makes a dummy weight with the same numbers as on the CPU (backend/dummy_weights.h). The numbers of a part are those of its
// place in the whole weight. sl_cuda_dummy_fill takes rows of a multiple of 8 numbers: the backend's `prepare` refuses a model
// with others before its weights are placed.
static int make_dummy(sl_cuda *c, bf16 *to, const sl_weight *w, sl_cut cut, sl_error *err) {
    if (w->n_rows > 1) {
        const bf16 *quantiles;
        SL_CHECK(cut == SL_CUT_NOT || c->ranks);
        size_t own = w->n_cols, cols = own * ranks_of(c, cut), rank = cut == SL_CUT_NOT ? 0 : c->ranks->exchange.rank;
        int rc = dummy_quantiles(c, sl_dummy_deviation(w->name, (int)cols), &quantiles, err);
        if (!rc)
            sl_cuda_dummy_fill(sl_dummy_key(w->name), quantiles, rank * (cut == SL_CUT_COLS ? own : count(w)), w->n_rows, own,
                               cols, to, c->stream);
        return rc;
    }
    bf16 *values = malloc(count(w) * sizeof *values);
    if (!values) return sl_fail(err, SL_ERR_MEMORY, "dummy weights: out of memory");
    for (size_t i = 0; i < count(w); i++) values[i] = sl_dummy_vector(w->name);
    int rc = send(c, to, values, count(w) * sizeof *values, err);
    free(values);
    return rc;
}

static int keep_block(sl_cuda *c, void *block, sl_error *err) {
    if (c->n_blocks == c->cap_blocks) {
        int cap = c->cap_blocks ? 2 * c->cap_blocks : 256;
        void **blocks = realloc(c->blocks, cap * sizeof *blocks);
        if (!blocks) return sl_fail(err, SL_ERR_MEMORY, "weights: out of memory");
        c->blocks = blocks;
        c->cap_blocks = cap;
    }
    c->blocks[c->n_blocks++] = block;
    return 0;
}

// ---- packed weights ----

static int rows_of(sl_weight *const *weights, int n) {
    int rows = 0;
    for (int i = 0; i < n; i++) rows += weights[i]->n_rows;
    return rows;
}

// The packing of weight i of a block. If another weight of its format has zero points or an order, it gets zero points too, so
// that the two can form a run.
static sl_cuda_packing packing_in(sl_weight *const *weights, int n, int i, int n_ranks) {
    sl_cuda_packing k = sl_cuda_packing_of_part(weights[i], n_ranks), wide = k;
    wide.width = 2;
    for (int j = 0; j < n; j++)
        if (weights[j]->format == k.format && (weights[j]->zero || weights[j]->order) && sl_cuda_has_kernels(&wide))
            return wide;
    return k;
}

static int same_order(const sl_weight *a, const sl_weight *b) {
    if (!a->order || !b->order) return a->order == b->order;
    return !memcmp(a->order, b->order, (size_t)a->n_cols * sizeof *a->order);
}

// How many weights from weight i on form a run.
static int run_of(sl_weight *const *weights, int n, int i) {
    sl_cuda_packing a = packing_in(weights, n, i, 1);
    for (int j = i + 1; j < n; j++) {
        sl_cuda_packing b = packing_in(weights, n, j, 1);
        int is_equal = a.format == b.format && a.per_piece == b.per_piece && a.n_sets == b.n_sets && a.width == b.width;
        if (!is_equal || !same_order(weights[i], weights[j])) return j - i;
    }
    return n - i;
}

// 1: the kernels can read the block packed. Those for gate and up (two weights) read both at once.
static int stays_packed(sl_weight *const *weights, int n, int n_ranks) {
    for (int i = 0; i < n; i++) {
        if (!sl_cuda_can_pack(weights[i])) return 0; // before the packing: it takes only such weights
        sl_cuda_packing k = packing_in(weights, n, i, n_ranks);
        if (!sl_cuda_packed_rows(&k)) return 0;
    }
    return n != 2 || run_of(weights, n, 0) == 2;
}

// Where the parts of a run lie after its data. order: 0 bytes without an order
typedef struct run_place {
    size_t scales, order, end;
} run_place;

static run_place place_of_run(sl_weight *const *weights, int n, const sl_cuda_packing *k) {
    int rows = rows_of(weights, n) / k->n_beside;
    run_place at = {.scales = sl_align(sl_packed_bytes(k, rows))};
    at.order = sl_align(at.scales + sl_packed_scales(k, rows) * sizeof(float));
    at.end = sl_align(at.order + (weights[0]->order ? (size_t)weights[0]->n_cols * sizeof(int32_t) : 0));
    return at;
}

size_t sl_cuda_placed_bytes(const sl_backend *be, sl_weight *const *weights, int n, sl_cut cut) {
    size_t size = 0;
    int n_ranks = ranks_of(sl_cuda_of(be), cut);
    sl_cuda_use(sl_cuda_of(be));
    if (!stays_packed(weights, n, n_ranks)) return (size_t)rows_of(weights, n) * (size_t)weights[0]->n_cols * sizeof(bf16);
    for (int i = 0, m; i < n; i += m) {
        sl_cuda_packing k = packing_in(weights, n, i, n_ranks);
        m = run_of(weights, n, i);
        size += place_of_run(weights + i, m, &k).end;
    }
    return size;
}

typedef struct pack_call {
    const sl_weight *w;
    const sl_cuda_packing *packing;
    int first; // in 8 rows
    char *data;
    float *scale;
} pack_call;

static void pack_rows(void *ctx, size_t i, int thread) {
    (void)thread;
    const pack_call *c = ctx;
    sl_cuda_pack_rows(c->w, c->packing, c->first + (int)i, c->data + i * sl_packed_bytes(c->packing, SL_PIECE_ROWS),
                      c->scale + i * sl_packed_scales(c->packing, SL_PIECE_ROWS));
}

// Packs a weight, some rows at a time, and copies them to data and scale.
static int send_packed(sl_cuda *c, char *data, float *scale, const sl_weight *w, const sl_cuda_packing *k, sl_error *err) {
    size_t row_bytes = sl_packed_bytes(k, SL_PIECE_ROWS), row_scales = sl_packed_scales(k, SL_PIECE_ROWS);
    int all = w->n_rows / SL_PIECE_ROWS / k->n_beside, most = row_bytes < SL_STAGING ? (int)(SL_STAGING / row_bytes) : 1,
        rc = 0;
    if (most > all) most = all;
    pack_call call = {
        .w = w, .packing = k, .data = malloc(most * row_bytes), .scale = malloc(most * row_scales * sizeof(float))};
    if (!call.data || !call.scale) rc = sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", w->name);
    for (int first = 0, n; !rc && first < all; first += n) {
        n = all - first < most ? all - first : most;
        call.first = first;
        sl_parallel((size_t)n, pack_rows, &call);
        rc = send(c, data + first * row_bytes, call.data, n * row_bytes, err);
        if (!rc) rc = send(c, scale + first * row_scales, call.scale, n * row_scales * sizeof(float), err);
    }
    free(call.data);
    free(call.scale);
    return rc;
}

// A weight whose zero points or minimums lie beside its scales has zero or min point there.
static int place_run(sl_cuda *c, sl_weight *const *weights, int n, const sl_cuda_packing *k, char *block, sl_error *err) {
    run_place at = place_of_run(weights, n, k);
    float *scales = (float *)(block + at.scales);
    int32_t *order = (int32_t *)(block + at.order);
    const int32_t *host_order = weights[0]->order;
    int rc = host_order ? send(c, order, host_order, (size_t)weights[0]->n_cols * sizeof *order, err) : 0;
    for (int i = 0; !rc && i < n; i++) {
        sl_weight *w = weights[i];
        rc = send_packed(c, block, scales, w, k, err);
        w->data = block, w->scale = scales, w->scale_rows = 1;
        w->min = sl_formats[w->format].has_min ? scales : NULL;
        w->zero = k->width == 2 && !w->min ? (const int8_t *)scales : NULL;
        w->order = host_order ? order : NULL;
        block += sl_packed_bytes(k, w->n_rows / k->n_beside), scales += sl_packed_scales(k, w->n_rows / k->n_beside);
    }
    return rc;
}

static int place_packed(sl_cuda *c, sl_weight *const *weights, int n, int n_ranks, char *block, sl_error *err) {
    int rc = c->wide ? 0 : sl_cuda_check(cudaMalloc(&c->wide, SL_WIDE), "scratch memory for packed weights", err);
    sl_cuda_packing k[3]; // of all, because a placed weight no longer says what it had
    int runs[3];
    SL_CHECK(n <= 3);
    for (int i = 0; i < n; i++) k[i] = packing_in(weights, n, i, n_ranks), runs[i] = run_of(weights, n, i);
    if (n_ranks > 1) weights[0]->inputs = SL_INPUTS_PLAIN; // products of fp8 take rows that do not lie side by side
    if (!rc) rc = sl_cuda_settle_inputs(c, weights, n, err);
    for (int i = 0; !rc && i < n; i += runs[i]) {
        size_t size = place_of_run(weights + i, runs[i], &k[i]).end;
        rc = place_run(c, weights + i, runs[i], &k[i], block, err);
        block += size;
    }
    return rc;
}

// ---- all weights ----

static int place_bf16(sl_cuda *c, sl_weight *const *weights, int n, sl_cut cut, bf16 *to, sl_error *err) {
    int rc = 0;
    for (int i = 0; !rc && i < n; i++) {
        sl_weight *w = weights[i];
        if (!w->data)
            rc = make_dummy(c, to, w, cut, err);
        else if (w->format == SL_BF16)
            rc = send(c, to, w->data, count(w) * sizeof *to, err);
        else if (sl_formats[w->format].has_scale)
            rc = send_widened(c, to, w, err);
        else
            rc = send_rounded(c, to, w, err);
        *w = (sl_weight){.data = to, .format = SL_BF16, .n_rows = w->n_rows, .n_cols = w->n_cols, .name = w->name};
        to += count(w);
    }
    return rc;
}

int sl_cuda_place(const sl_backend *be, sl_weight *const *weights, int n, sl_cut cut, sl_error *err) {
    sl_cuda *c = sl_cuda_of(be);
    int n_ranks = ranks_of(c, cut);
    void *block = NULL;
    SL_CHECK(n == 1 || cut != SL_CUT_COLS);
    sl_cuda_use(c);
    int rc = init_staging(c, err);
    if (!rc) rc = sl_cuda_check(cudaMalloc(&block, sl_cuda_placed_bytes(be, weights, n, cut)), "weights", err);
    if (!rc) rc = keep_block(c, block, err);
    if (!rc)
        rc = stays_packed(weights, n, n_ranks) ? place_packed(c, weights, n, n_ranks, block, err)
                                               : place_bf16(c, weights, n, cut, block, err);
    return rc ? rc : sl_cuda_check(cudaGetLastError(), "weights", err);
}

void sl_cuda_place_free(sl_cuda *c) {
    for (int i = 0; i < c->n_blocks; i++) cudaFree(c->blocks[i]);
    free(c->blocks);
    cudaFree(c->wide);
    cudaFree(c->rounded);
    for (int i = 0; i < 2; i++) {
        cudaFree(c->quantiles[i].values);
        if (c->staging_read[i]) cudaEventDestroy(c->staging_read[i]);
        cudaFreeHost(c->staging[i]);
    }
}
