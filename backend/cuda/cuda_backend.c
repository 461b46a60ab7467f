// backend/cuda/cuda_backend.c - the CUDA backend: the operations of a step, and the table of all functions.
//
// Operations are queued on one stream and return nothing. finish() returns the first error.
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/kv_pages.h"
#include "backend/cuda/packed_linear.h"
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/cuda_sampler.h"

#include <stdlib.h>

// ---- operations ----

// Returns the state of the backend, and makes its GPU the current device of the calling thread.
static sl_cuda *use(const sl_backend *be) {
    sl_cuda_use(sl_cuda_of(be));
    return sl_cuda_of(be);
}

static int is_packed(const sl_weight *w) { // packed.h
    return sl_formats[w->format].has_scale;
}

// Where the weight that is placed behind w begins.
static const void *end_of(const sl_weight *w) {
    if (!is_packed(w)) return (const bf16 *)w->data + (size_t)w->n_rows * w->n_cols;
    sl_cuda_packing k = sl_cuda_packing_of(w);
    return (const char *)w->data + sl_packed_bytes(&k, w->n_rows);
}

// The buffers grow in the first step of a key only, and this step is not recorded (sl_cuda_run_step).
static void prepare_rope(const sl_backend *be, const sl_rope *rope, const sl_row *rows, int n_rows) {
    sl_cuda *c = use(be);
    size_t half = rope->head_dim / 2, size = (size_t)n_rows * half * sizeof(float2);
    if (c->inv_freq_of != rope->inv_freq) {
        cudaFree(c->inv_freq);
        c->inv_freq = NULL;
        if (sl_cuda_keep_error(c, cudaMalloc((void **)&c->inv_freq, half * sizeof(float)), "rotations")) return;
        sl_cuda_upload(be, c->inv_freq, rope->inv_freq, half * sizeof(float));
        c->inv_freq_of = rope->inv_freq;
    }
    if (size > c->rope_size) {
        sl_cuda_forget(be);                                   // because recordings hold the old address
        if (size < 2 * c->rope_size) size = 2 * c->rope_size; // so that steps with more and more drafts seldom grow it
        cudaFree(c->rope);
        c->rope = NULL;
        c->rope_size = 0;
        if (sl_cuda_keep_error(c, cudaMalloc((void **)&c->rope, size), "rotations")) return;
        c->rope_size = size;
    }
    if (c->skipped_parts & SL_PART_REST) return;
    sl_cuda_rope_table(c->inv_freq, rope->scale, rows, n_rows, rope->head_dim, (float2 *)c->rope, c->stream);
}

static void skip_parts(const sl_backend *be, unsigned parts) {
    sl_cuda_of(be)->skipped_parts = parts;
}

static void move_pages(const sl_backend *be, const sl_page_move *move) {
    sl_cuda_move_pages(move, move->aside ? use(be)->aside : use(be)->stream);
}

static void aside_begin(const sl_backend *be) {
    sl_cuda *c = use(be);
    sl_cuda_keep_error(c, cudaEventRecord(c->aside_event, c->stream), "a copy aside");
    sl_cuda_keep_error(c, cudaStreamWaitEvent(c->aside, c->aside_event, 0), "a copy aside");
}

static void aside_end(const sl_backend *be) {
    sl_cuda *c = use(be);
    sl_cuda_keep_error(c, cudaEventRecord(c->aside_event, c->aside), "a copy aside");
    sl_cuda_keep_error(c, cudaStreamWaitEvent(c->stream, c->aside_event, 0), "a copy aside");
}

static void fill(const sl_backend *be, uint64_t key, const bf16 *quantiles, size_t from, size_t n, bf16 *out) {
    sl_cuda_dummy_fill(key, quantiles, from, 1, n, n, out, use(be)->stream);
}

static void store_blocks(const sl_backend *be, const bf16 *rows, sl_format format, int head_dim, int n_rows, void *blocks) {
    sl_cuda_store_blocks(rows, format, head_dim, n_rows, blocks, use(be)->stream);
}

static void embed(const sl_backend *be, const sl_weight *table, const int32_t *ids, int n_rows, float *x) {
    sl_cuda *c = use(be);
    if (c->skipped_parts & SL_PART_REST) return;
    if (!is_packed(table)) {
        sl_cuda_embed(table->data, ids, n_rows, table->n_cols, x, c->stream);
        return;
    }
    sl_cuda_packed_embed(table, ids, n_rows, x, c->stream);
}

static void rmsnorm(const sl_backend *be, const float *x, const sl_weight *w, int n_rows, float eps, void *out) {
    sl_cuda *c = use(be);
    if (c->skipped_parts & SL_PART_REST) return;
    sl_cuda_rmsnorm(x, w->data, n_rows, w->n_cols, eps, out, c->stream);
}

// The matrices of one operation: their outputs lie side by side.
typedef struct matrices {
    const sl_weight *w[3];
    int n;
    int n_ranks; // that have the columns of the matrix, which is the only one; 0: each matrix has all of them
} matrices;

static int outputs_of(const matrices *m) {
    int n = 0;
    for (int i = 0; i < m->n; i++) n += m->w[i]->n_rows;
    return n;
}

// The rows of the matrices from *i on that lie one behind the other, and so are one matrix. Moves *i behind them.
static int next_run(const matrices *m, int *i) {
    int rows = m->w[*i]->n_rows;
    for ((*i)++; *i < m->n && m->w[*i]->data == end_of(m->w[*i - 1]); (*i)++) rows += m->w[*i]->n_rows;
    return rows;
}

// A launch for each part of n_rows rows of x. l: of all rows. out_cols: elements of an output row
static void launch_rows(sl_cuda *c, const sl_cuda_linear *l, int is_packed, int n_rows, size_t out_cols) {
    for (int r = 0, most = is_packed ? sl_cuda_packed_rows(&l->packing) : sl_cuda_linear_rows(); r < n_rows; r += most) {
        sl_cuda_linear part = *l;
        part.n_rows = n_rows - r < most ? n_rows - r : most;
        part.x = l->x + (size_t)r * l->n_in;
        if (l->out32) part.out32 = l->out32 + r * out_cols;
        if (l->out16) part.out16 = l->out16 + r * out_cols;
        if (l->sums) part.sums = l->sums + (size_t)r * (l->n_in / SL_NORM_TILE);
        if (l->next_sums) part.next_sums = l->next_sums + (size_t)r * (l->n_out / SL_NORM_TILE);
        if (l->rope) part.rope = l->rope + (size_t)r * (l->head_dim / 2);
        if (l->rows) part.rows = l->rows + r;
        if (l->is_staged) part.k = l->k + (size_t)r * l->n_kv_heads * l->head_dim, part.v = l->v + (part.k - l->k);
        (is_packed ? sl_cuda_packed_linear : sl_cuda_linear_decode)(&part, c->stream);
    }
}

// Multiplies the matrices with any number of rows.
static void decode_linear(sl_cuda *c, matrices m, sl_cuda_linear l, int n_rows, size_t out_cols) {
    if (c->skipped_parts & SL_PART_LINEAR) return;
    l.n_out = outputs_of(&m);
    for (int i = 0, first = 0, rows; i < m.n; first += rows) {
        const sl_weight *w = m.w[i];
        sl_cuda_linear part = l;
        rows = next_run(&m, &i);
        part.w = w->data, part.n_in = w->n_cols;
        part.n_ranks = m.n_ranks;
        if (is_packed(w)) part.packing = sl_cuda_packing_of_part(w, m.n_ranks), part.scale = w->scale, part.order = w->order;
        if (rows < l.n_out) part.n_part = rows;
        if (l.end == SL_LINEAR_STORE) part.out32 = l.out32 + first;
        if (l.end == SL_LINEAR_ROPE_APPEND) part.n_heads = l.n_heads - first / l.head_dim;
        launch_rows(c, &part, is_packed(w), n_rows, out_cols);
    }
}

// A prefill with a packed matrix, which becomes bf16 in the scratch memory, as many rows at a time as fit.
static void prefill_widened(sl_cuda *c, const sl_weight *w, const sl_cuda_product *all) {
    for (int first = 0, most = sl_cuda_rows_that_fit(SL_WIDE, w->n_cols, sizeof(bf16)); first < all->n_out; first += most) {
        sl_cuda_product part = *all;
        part.w = c->wide, part.n_out = all->n_out - first < most ? all->n_out - first : most;
        part.out = sl_cuda_output_at(all, 0, first);
        sl_cuda_packed_widen(w, 1, first, part.n_out, c->wide, c->stream);
        sl_cuda_gemm(c, &part);
    }
}

// Multiplies the matrices in a prefill.
static void prefill_linear(sl_cuda *c, matrices m, const bf16 *x, int n_rows, int is_fp32, int accumulate, void *out) {
    sl_cuda_product all = {.n_in = m.w[0]->n_cols,
                           .x = x,
                           .n_rows = n_rows,
                           .is_fp32 = is_fp32,
                           .accumulate = accumulate,
                           .out = out,
                           .out_stride = outputs_of(&m)};
    for (int i = 0, first = 0; i < m.n; first += all.n_out) {
        const sl_weight *w = m.w[i];
        all.n_out = next_run(&m, &i);
        sl_cuda_product p = all;
        p.w = w->data, p.out = sl_cuda_output_at(&all, 0, first);
        if (w->inputs != SL_INPUTS_PLAIN)
            sl_cuda_prefill_fp8(c, w, &p);
        else if (is_packed(w))
            prefill_widened(c, w, &p);
        else
            sl_cuda_gemm(c, &p);
    }
}

// A product of a decode step that is added to the residual stream, and whose columns lie on all ranks. norm NULL: none
static void decode_ranks(sl_cuda *c, const sl_weight *w, const bf16 *x, int n_rows, float *out, const sl_next_norm *norm) {
    const matrices own = {.w = {w}, .n = 1, .n_ranks = c->ranks->exchange.n};
    if (c->skipped_parts & SL_PART_LINEAR) return;
    for (int r = 0, rows, most = sl_cuda_ranks_rows(w->n_rows); r < n_rows; r += rows) {
        sl_next_norm next = norm ? *norm : (sl_next_norm){0};
        rows = n_rows - r < most ? n_rows - r : most;
        decode_linear(c, own,
                      (sl_cuda_linear){.x = x + (size_t)r * w->n_cols, .end = SL_LINEAR_STORE, .out32 = sl_cuda_ranks_slot(c)},
                      rows, w->n_rows);
        if (norm) {
            next.rows = (bf16 *)norm->rows + (size_t)r * w->n_rows;
            next.sums = norm->sums + (size_t)r * (w->n_rows / SL_NORM_TILE);
        }
        sl_cuda_ranks_add(c, rows, w->n_rows, out + (size_t)r * w->n_rows, norm ? &next : NULL);
    }
}

// The same of a prefill. A part of a packed matrix becomes bf16 once, for all exchanges of its outputs.
static void prefill_ranks(sl_cuda *c, const sl_weight *w, const bf16 *x, int n_rows, float *out) {
    const int n_cols = w->n_cols, all = is_packed(w) ? sl_cuda_rows_that_fit(SL_WIDE, n_cols, sizeof(bf16)) : w->n_rows;
    for (int first = 0, n_out; first < w->n_rows; first += n_out) {
        n_out = w->n_rows - first < all ? w->n_rows - first : all;
        if (is_packed(w)) sl_cuda_packed_widen(w, c->ranks->exchange.n, first, n_out, c->wide, c->stream);
        for (int r = 0, rows, most = sl_cuda_ranks_rows(n_out); r < n_rows; r += rows) {
            rows = n_rows - r < most ? n_rows - r : most;
            sl_cuda_gemm(c, &(sl_cuda_product){.w = is_packed(w) ? c->wide : w->data,
                                               .n_out = n_out,
                                               .n_in = n_cols,
                                               .x = x + (size_t)r * n_cols,
                                               .n_rows = rows,
                                               .is_fp32 = 1,
                                               .out = sl_cuda_ranks_slot(c),
                                               .out_stride = n_out});
            sl_cuda_ranks_add_prefill(c, rows, n_out, out + (size_t)r * w->n_rows + first, w->n_rows);
        }
    }
}

static void linear(const sl_backend *be, const sl_weight *w, const void *x, int n_rows, sl_linear_mode mode, int accumulate,
                   float *out) {
    sl_cuda *c = use(be);
    if (c->ranks && accumulate)
        mode == SL_LINEAR_PREFILL ? prefill_ranks(c, w, x, n_rows, out) : decode_ranks(c, w, x, n_rows, out, NULL);
    else if (mode == SL_LINEAR_PREFILL)
        prefill_linear(c, (matrices){.w = {w}, .n = 1}, x, n_rows, 1, accumulate, out);
    else
        decode_linear(c, (matrices){.w = {w}, .n = 1},
                      (sl_cuda_linear){.x = x, .end = accumulate ? SL_LINEAR_ADD : SL_LINEAR_STORE, .out32 = out}, n_rows,
                      w->n_rows);
}

static sl_normed linear_norm(const sl_backend *be, const sl_weight *w, const void *x, int n_rows, sl_linear_mode mode,
                             float *out, const sl_next_norm *norm) {
    int hidden = w->n_rows;
    if (use(be)->skipped_parts & SL_PART_REST) { // the rows keep the numbers of an earlier step, as with a kernel of its own
        linear(be, w, x, n_rows, mode, 1, out);
        return (sl_normed){.rows = norm->rows};
    }
    if (mode == SL_LINEAR_PREFILL || hidden % SL_NORM_MULTIPLE) {
        linear(be, w, x, n_rows, mode, 1, out);
        rmsnorm(be, out, norm->w, n_rows, norm->eps, norm->rows);
        return (sl_normed){.rows = norm->rows};
    }
    if (use(be)->ranks)
        decode_ranks(sl_cuda_of(be), w, x, n_rows, out, norm);
    else
        decode_linear(use(be), (matrices){.w = {w}, .n = 1},
                      (sl_cuda_linear){.x = x,
                                       .end = SL_LINEAR_ADD,
                                       .out32 = out,
                                       .out16 = norm->rows,
                                       .next_w = norm->w->data,
                                       .next_sums = norm->sums},
                      n_rows, hidden);
    return (sl_normed){.rows = norm->rows, .sums = norm->sums, .eps = norm->eps};
}

static int is_bytes(const sl_qkv *a) { // the cache is fp8 or int8
    SL_CHECK(a->k_format == a->v_format);
    return a->k_format != SL_BF16;
}

// Stores rows of K and V, staged as bf16, in a cache of fp8 or int8. k, v: [n_rows][stride]
static void store_rows(sl_cuda *c, const sl_qkv *a, const bf16 *k, const bf16 *v, size_t stride) {
    if (c->skipped_parts & SL_PART_REST) return;
    sl_cuda_store_rows(&(sl_cuda_kv_rows){.k = k,
                                          .v = v,
                                          .stride = stride,
                                          .rows = a->rows,
                                          .n_rows = a->n_rows,
                                          .n_kv_heads = a->n_kv_heads,
                                          .head_dim = a->rope->head_dim,
                                          .format = a->k_format,
                                          .k_layer = a->k_layer,
                                          .v_layer = a->v_layer,
                                          .k_scales = a->k_scales,
                                          .v_scales = a->v_scales},
                       c->stream);
}

// Adds biases, norms, rotates (RoPE) and appends the products of rows [first, first + n_rows): heads of q, k and v. With
// h.kv_stride, h.k and h.v are staged rows of the whole batch (first is 0), and store_rows puts them into the cache.
static void finish_heads(sl_cuda *c, const sl_qkv *a, sl_cuda_heads h, int first) {
    int half = a->rope->head_dim / 2;
    h.head_dim = a->rope->head_dim;
    h.table = (const float2 *)c->rope + (size_t)first * half;
    h.rows = a->rows + first;
    if (!h.kv_stride) h.k = a->k_layer, h.v = a->v_layer;
    h.bias = !a->q_bias ? NULL : h.n_heads ? a->q_bias->data : a->k_bias->data;
    if (a->q_norm) h.q_norm = a->q_norm->data, h.k_norm = a->k_norm->data, h.eps = a->norm_eps;
    if (h.bias || h.q_norm || h.kv_stride)
        sl_cuda_norm_rope_append(&h, c->stream);
    else
        sl_cuda_rope_append(h.q, h.stride, h.table, h.rows, h.n_rows, h.n_heads, h.n_kv_heads, h.head_dim, h.k, h.v, c->stream);
    if (h.kv_stride) store_rows(c, a, h.k, h.v, h.kv_stride);
}

// The heads of bf16 products x [n_rows][stride]. With a cache of fp8 or int8, K and V are rotated in place, like q.
static sl_cuda_heads bf16_heads(const sl_qkv *a, bf16 *x, int stride, int n_rows, int n_heads, int n_kv_heads) {
    sl_cuda_heads h = {
        .qkv = x, .stride = stride, .q = x, .q_stride = stride, .n_rows = n_rows, .n_heads = n_heads, .n_kv_heads = n_kv_heads};
    if (!is_bytes(a) || !n_kv_heads) return h;
    h.k = x + (size_t)n_heads * a->rope->head_dim, h.v = h.k + (size_t)n_kv_heads * a->rope->head_dim;
    h.kv_stride = (size_t)stride;
    return h;
}

// Prefill. One product computes q, k and v of all rows. The last layer needs the queries of the last rows only (a->first > 0):
// there one product computes k and v of all rows, and another product computes q of rows [first, n_rows).
static sl_queries qkv_prefill(sl_cuda *c, const sl_qkv *a) {
    int q_dim = a->q->n_rows, all = q_dim + 2 * a->k->n_rows, n = a->n_rows - a->first;
    bf16 *work = a->work;
    const bf16 *x = a->x.rows;
    if (a->first == 0) {
        prefill_linear(c, (matrices){.w = {a->q, a->k, a->v}, .n = 3}, x, n, 0, 0, work);
        finish_heads(c, a, bf16_heads(a, work, all, n, a->n_heads, a->n_kv_heads), 0);
        return (sl_queries){.data = work, .stride = all};
    }
    prefill_linear(c, (matrices){.w = {a->k, a->v}, .n = 2}, x, a->n_rows, 0, 0, work);
    finish_heads(c, a, bf16_heads(a, work, all - q_dim, a->n_rows, 0, a->n_kv_heads), 0);
    bf16 *q = work + (size_t)a->n_rows * (all - q_dim);
    if (n == 0) return (sl_queries){.data = q, .stride = q_dim};
    prefill_linear(c, (matrices){.w = {a->q}, .n = 1}, x + (size_t)a->first * a->q->n_cols, n, 0, 0, q);
    finish_heads(c, a, bf16_heads(a, q, q_dim, n, a->n_heads, 0), a->first);
    return (sl_queries){.data = q, .stride = q_dim};
}

// Decode with biases or norms. The linear layer stores fp32 products at the start of work, and q after the products. With a
// cache of fp8 or int8, staged rows of K and V follow q.
static sl_queries qkv_decode_products(sl_cuda *c, const sl_qkv *a) {
    int q_dim = a->q->n_rows, all = q_dim + 2 * a->k->n_rows;
    float *products = a->work;
    bf16 *q = (bf16 *)(products + (size_t)a->n_rows * all), *staged = q + (size_t)a->n_rows * q_dim;
    decode_linear(
        c, (matrices){.w = {a->q, a->k, a->v}, .n = 3},
        (sl_cuda_linear){.x = a->x.rows, .sums = a->x.sums, .eps = a->x.eps, .end = SL_LINEAR_STORE, .out32 = products},
        a->n_rows, all);
    if (c->skipped_parts & SL_PART_REST) return (sl_queries){.data = q, .stride = q_dim};
    finish_heads(c, a,
                 (sl_cuda_heads){.qkv = products,
                                 .is_fp32 = 1,
                                 .stride = all,
                                 .q = q,
                                 .q_stride = q_dim,
                                 .n_rows = a->n_rows,
                                 .n_heads = a->n_heads,
                                 .n_kv_heads = a->n_kv_heads,
                                 .k = staged,
                                 .v = staged + a->k->n_rows,
                                 .kv_stride = is_bytes(a) ? 2 * (size_t)a->k->n_rows : 0},
                 0);
    return (sl_queries){.data = q, .stride = q_dim};
}

static sl_queries qkv(const sl_backend *be, const sl_qkv *a) {
    sl_cuda *c = use(be);
    size_t q_dim = a->q->n_rows;
    if (a->q_bias) SL_CHECK(a->k_bias->data == end_of(a->q_bias) && a->v_bias->data == end_of(a->k_bias));
    if (a->mode == SL_LINEAR_PREFILL) return qkv_prefill(c, a);
    SL_CHECK(a->first == 0);
    if (a->q_bias || a->q_norm) return qkv_decode_products(c, a);
    const int is_staged = is_bytes(a);
    const size_t kv_dim = a->k->n_rows;
    bf16 *staged = (bf16 *)a->work + a->n_rows * q_dim; // K [n_rows][kv_dim], then V
    decode_linear(c, (matrices){.w = {a->q, a->k, a->v}, .n = 3},
                  (sl_cuda_linear){.x = a->x.rows,
                                   .sums = a->x.sums,
                                   .eps = a->x.eps,
                                   .end = SL_LINEAR_ROPE_APPEND,
                                   .out16 = a->work,
                                   .n_heads = a->n_heads,
                                   .n_kv_heads = a->n_kv_heads,
                                   .head_dim = a->rope->head_dim,
                                   .rope = (const float2 *)c->rope,
                                   .rows = a->rows,
                                   .k = is_staged ? staged : a->k_layer,
                                   .v = is_staged ? staged + a->n_rows * kv_dim : a->v_layer,
                                   .is_staged = is_staged},
                  a->n_rows, q_dim);
    if (is_staged) store_rows(c, a, staged, staged + a->n_rows * kv_dim, kv_dim);
    return (sl_queries){.data = a->work, .stride = q_dim};
}

static void gate_up(const sl_backend *be, const sl_weight *gate, const sl_weight *up, sl_normed x, int n_rows,
                    sl_linear_mode mode, void *work, void *out) {
    sl_cuda *c = use(be);
    const matrices both = {.w = {gate, up}, .n = 2};
    SL_CHECK(up->data == end_of(gate));
    if (mode == SL_LINEAR_PREFILL) {
        prefill_linear(c, both, x.rows, n_rows, 0, 0, work);
        sl_cuda_swiglu(work, n_rows, gate->n_rows, out, c->stream);
        return;
    }
    decode_linear(c, both, (sl_cuda_linear){.x = x.rows, .sums = x.sums, .eps = x.eps, .end = SL_LINEAR_SWIGLU, .out16 = out},
                  n_rows, gate->n_rows);
}

// ---- the table ----

// SL_ERR_UNSUPPORTED: the columns of a row-parallel weight cannot be divided by the ranks. what: names the columns
static int check_columns(const sl_cuda *c, const char *what, int n_cols, sl_error *err) {
    int n = c->ranks ? c->ranks->exchange.n : 1;
    if (n == 1 || n_cols % SL_PIECE_COLS == 0) return 0;
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "{tensor_parallel} %d: this model has %d %s; on a GPU, each rank needs a multiple of %d of them", n,
                   n * n_cols, what, SL_PIECE_COLS);
}

static int prepare(const sl_backend *be, const sl_shape *s, sl_error *err) {
    int group = s->n_heads / s->n_kv_heads, dim = s->head_dim;
    if (dim != 64 && dim != 80 && dim != 96 && dim != 128)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "head_dim %d: on a GPU 64, 80, 96 and 128 are supported; use {device} cpu",
                       dim);
    if (group > 8)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "%d query heads for each key head: on a GPU 1 to 8 are supported; use {device} cpu", group);
    if (s->hidden % 8 || s->n_ffn % 8)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "hidden_size %d, intermediate_size %d: on a GPU both must be multiples of 8; use {device} cpu",
                       s->hidden, s->n_ffn);
    int n = sl_cuda_of(be)->ranks ? sl_cuda_of(be)->ranks->exchange.n : 1;
    if (n > 1 && s->hidden % (n * SL_NORM_TILE)) // packed.h
        return sl_fail(err, SL_ERR_UNSUPPORTED, "{tensor_parallel} %d: hidden_size %d; on a GPU, ranks need a multiple of %d",
                       n, s->hidden, n * SL_NORM_TILE);
    int rc = check_columns(sl_cuda_of(be), "columns of attention (query heads x head_dim)", s->n_heads * dim, err);
    return rc ? rc : check_columns(sl_cuda_of(be), "columns of the MLP (intermediate_size)", s->n_ffn, err);
}

static void destroy(const sl_backend *be) {
    sl_cuda *c = sl_cuda_of(be);
    sl_cuda_use(c);
    sl_cuda_forget(be);
    sl_cuda_place_free(c);
    sl_cuda_gemm_free(c);
    sl_cuda_sampling_free(c);
    sl_cuda_ranks_free(c);
    cudaFree(c->inv_freq);
    cudaFree(c->rope);
    sl_cuda_device_close(c);
    free(c);
}

static const sl_backend operations = {
    .name = "cuda",
    .act_size = sizeof(bf16),
    .is_device = 1,
    .describe = sl_cuda_describe,
    .prepare = prepare,
    .free = destroy,
    .free_memory = sl_cuda_free_memory,
    .alloc = sl_cuda_alloc,
    .release = sl_cuda_release,
    .copy = sl_cuda_copy,
    .clear = sl_cuda_clear,
    .upload = sl_cuda_upload,
    .download = sl_cuda_download,
    .alloc_host = sl_cuda_alloc_host,
    .release_host = sl_cuda_release_host,
    .move_pages = move_pages,
    .aside_begin = aside_begin,
    .aside_end = aside_end,
    .fill = fill,
    .store_rows = store_blocks,
    .place = sl_cuda_place,
    .placed_bytes = sl_cuda_placed_bytes,
    .stream = sl_cuda_stream,
    .finish = sl_cuda_finish,
    .run_step = sl_cuda_run_step,
    .forget = sl_cuda_forget,
    .skip_parts = skip_parts,
    .prepare_rope = prepare_rope,
    .can_sample = sl_cuda_can_sample,
    .sample_rows = sl_cuda_sample_rows,
    .sampled_ids = sl_cuda_sampled_ids,
    .embed = embed,
    .rmsnorm = rmsnorm,
    .linear = linear,
    .linear_norm = linear_norm,
    .qkv = qkv,
    .gate_up = gate_up,
};

int sl_cuda_init(int index, const sl_backend **out, sl_error *err) {
    sl_cuda *c = calloc(1, sizeof *c);
    if (!c) return sl_fail(err, SL_ERR_MEMORY, "CUDA backend: out of memory");
    c->base = operations;
    c->index = index;
    int rc = sl_cuda_device_open(c, err);
    if (!rc) rc = sl_cuda_gemm_init(c, err);
    if (rc) {
        destroy(&c->base);
        return rc;
    }
    *out = &c->base;
    return 0;
}
