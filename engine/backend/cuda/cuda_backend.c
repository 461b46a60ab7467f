// engine/backend/cuda/cuda_backend.c - the CUDA backend: the operations of a step, and the table of all functions.
//
// Operations are queued on one stream and return nothing. The first error is kept until finish(), which returns it.
#include "engine/backend/cuda/cuda_backend.h"
#include "engine/backend/cuda/cuda.h"
#include "engine/backend/cuda/linear.h"
#include "engine/backend/cuda/cuda_ops.h"
#include "engine/backend/cuda/cuda_sampler.h"

#include <stdlib.h>

// ---- operations ----

// The state of the backend. Its GPU is the current device of the calling thread afterwards.
static sl_cuda *use(const sl_backend *be) {
    sl_cuda_use(sl_cuda_of(be));
    return sl_cuda_of(be);
}

// The first step of a key is not recorded (sl_cuda_replay), so the buffers grow outside of recordings.
static void begin(const sl_backend *be, const sl_rope *rope, const sl_row *rows, int n_rows) {
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
        sl_cuda_forget(be); // recordings keep the old address
        cudaFree(c->rope);
        c->rope = NULL;
        c->rope_size = 0;
        if (sl_cuda_keep_error(c, cudaMalloc((void **)&c->rope, size), "rotations")) return;
        c->rope_size = size;
    }
    if (c->skipped_parts & SL_PART_REST) return;
    sl_cuda_rope_table(c->inv_freq, rows, n_rows, rope->head_dim, (float2 *)c->rope, c->stream);
}

static void skip_parts(const sl_backend *be, unsigned parts) {
    sl_cuda_of(be)->skipped_parts = parts;
}

static void embed(const sl_backend *be, const sl_weight *table, const int32_t *ids, int n_rows, float *x) {
    sl_cuda *c = use(be);
    if (c->skipped_parts & SL_PART_REST) return;
    sl_cuda_embed(table->data, ids, n_rows, table->n_cols, x, c->stream);
}

static void rmsnorm(const sl_backend *be, const float *x, const sl_weight *w, int n_rows, float eps, void *out) {
    sl_cuda *c = use(be);
    if (c->skipped_parts & SL_PART_REST) return;
    sl_cuda_rmsnorm(x, w->data, n_rows, w->n_cols, eps, out, c->stream);
}

// Multiplies one matrix with any number of rows, at most SL_LINEAR_ROWS per launch. out_cols: elements of an output row.
static void decode_linear(sl_cuda *c, sl_cuda_linear l, int n_rows, size_t out_cols) {
    if (c->skipped_parts & SL_PART_LINEAR) return;
    for (int r = 0; r < n_rows; r += SL_LINEAR_ROWS) {
        sl_cuda_linear part = l;
        part.n_rows = n_rows - r < SL_LINEAR_ROWS ? n_rows - r : SL_LINEAR_ROWS;
        part.x = l.x + (size_t)r * l.n_in;
        if (l.out32) part.out32 = l.out32 + r * out_cols;
        if (l.out16) part.out16 = l.out16 + r * out_cols;
        if (l.rope) part.rope = l.rope + (size_t)r * (l.head_dim / 2);
        if (l.rows) part.rows = l.rows + r;
        sl_cuda_linear_decode(&part, c->stream);
    }
}

static void linear(const sl_backend *be, const sl_weight *w, const void *x, int n_rows, sl_linear_mode mode, int position,
                   int accumulate, float *out) {
    (void)position;
    sl_cuda *c = use(be);
    if (mode == SL_LINEAR_PREFILL)
        sl_cuda_gemm(c, w->data, w->n_rows, w->n_cols, x, n_rows, 1, accumulate, out, w->n_rows);
    else
        decode_linear(c,
                      (sl_cuda_linear){.w = w->data,
                                       .n_out = w->n_rows,
                                       .n_in = w->n_cols,
                                       .x = x,
                                       .end = accumulate ? SL_LINEAR_ADD : SL_LINEAR_STORE,
                                       .out32 = out},
                      n_rows, w->n_rows);
}

// Prefill. One product computes q, k and v of all rows. The last layer needs the queries of the last rows only (a->first > 0):
// there one product computes k and v of all rows, and another one q of the rows [first, n_rows).
static sl_queries qkv_prefill(sl_cuda *c, const sl_qkv *a) {
    int dim = a->rope->head_dim, q_dim = a->q->n_rows, all = q_dim + 2 * a->k->n_rows, n_in = a->q->n_cols;
    int n = a->n_rows - a->first;
    bf16 *work = a->work;
    const bf16 *x = a->x;
    const float2 *rope = (const float2 *)c->rope;
    if (a->first == 0) {
        sl_cuda_gemm(c, a->q->data, all, n_in, x, n, 0, 0, work, all);
        sl_cuda_rope_append(work, all, rope, a->rows, n, a->n_heads, a->n_kv_heads, dim, a->k_layer, a->v_layer, c->stream);
        return (sl_queries){.data = work, .stride = all};
    }
    sl_cuda_gemm(c, a->k->data, all - q_dim, n_in, x, a->n_rows, 0, 0, work, all - q_dim);
    sl_cuda_rope_append(work, all - q_dim, rope, a->rows, a->n_rows, 0, a->n_kv_heads, dim, a->k_layer, a->v_layer, c->stream);
    bf16 *q = work + (size_t)a->n_rows * (all - q_dim);
    if (n == 0) return (sl_queries){.data = q, .stride = q_dim};
    sl_cuda_gemm(c, a->q->data, q_dim, n_in, x + (size_t)a->first * n_in, n, 0, 0, q, q_dim);
    sl_cuda_rope_append(q, q_dim, rope + (size_t)a->first * (dim / 2), a->rows + a->first, n, a->n_heads, 0, dim, NULL, NULL,
                        c->stream);
    return (sl_queries){.data = q, .stride = q_dim};
}

static sl_queries qkv(const sl_backend *be, const sl_qkv *a) {
    sl_cuda *c = use(be);
    size_t n_in = a->q->n_cols, q_dim = a->q->n_rows;
    SL_CHECK((const bf16 *)a->k->data == (const bf16 *)a->q->data + q_dim * n_in);
    SL_CHECK((const bf16 *)a->v->data == (const bf16 *)a->k->data + (size_t)a->k->n_rows * n_in);
    if (a->mode == SL_LINEAR_PREFILL) return qkv_prefill(c, a);
    SL_CHECK(a->first == 0);
    decode_linear(c,
                  (sl_cuda_linear){.w = a->q->data,
                                   .n_out = (int)q_dim + 2 * a->k->n_rows,
                                   .n_in = (int)n_in,
                                   .x = a->x,
                                   .end = SL_LINEAR_ROPE_APPEND,
                                   .out16 = a->work,
                                   .n_heads = a->n_heads,
                                   .n_kv_heads = a->n_kv_heads,
                                   .head_dim = a->rope->head_dim,
                                   .rope = (const float2 *)c->rope,
                                   .rows = a->rows,
                                   .k = a->k_layer,
                                   .v = a->v_layer},
                  a->n_rows, q_dim);
    return (sl_queries){.data = a->work, .stride = q_dim};
}

static void gate_up(const sl_backend *be, const sl_weight *gate, const sl_weight *up, const void *x, int n_rows,
                    sl_linear_mode mode, int position, void *work, void *out) {
    (void)position;
    sl_cuda *c = use(be);
    SL_CHECK((const bf16 *)up->data == (const bf16 *)gate->data + (size_t)gate->n_rows * gate->n_cols);
    int n_out = 2 * gate->n_rows;
    if (mode == SL_LINEAR_PREFILL) {
        sl_cuda_gemm(c, gate->data, n_out, gate->n_cols, x, n_rows, 0, 0, work, n_out);
        sl_cuda_swiglu(work, n_rows, gate->n_rows, out, c->stream);
        return;
    }
    decode_linear(
        c,
        (sl_cuda_linear){.w = gate->data, .n_out = n_out, .n_in = gate->n_cols, .x = x, .end = SL_LINEAR_SWIGLU, .out16 = out},
        n_rows, gate->n_rows);
}

// ---- the table ----

static int prepare(const sl_backend *be, const sl_shape *s, sl_error *err) {
    (void)be;
    int group = s->n_heads / s->n_kv_heads, dim = s->head_dim;
    if (dim != 64 && dim != 80 && dim != 96 && dim != 128)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "head_dim %d: on a GPU 64, 80, 96 and 128 are supported; use --device cpu",
                       dim);
    if (group != 1 && group != 2 && group != 3 && group != 4 && group != 8)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "%d query heads for each key head: on a GPU 1, 2, 3, 4 and 8 are supported; use --device cpu", group);
    if (s->hidden % 8 || s->n_ffn % 8)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "hidden_size %d, intermediate_size %d: on a GPU both must be multiples of 8; use --device cpu",
                       s->hidden, s->n_ffn);
    return 0;
}

static void destroy(const sl_backend *be) {
    sl_cuda *c = sl_cuda_of(be);
    sl_cuda_use(c);
    sl_cuda_forget(be);
    sl_cuda_place_free(c);
    sl_cuda_gemm_free(c);
    sl_cuda_sampling_free(c);
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
    .place = sl_cuda_place,
    .stream = sl_cuda_stream,
    .finish = sl_cuda_finish,
    .replay = sl_cuda_replay,
    .forget = sl_cuda_forget,
    .leave_out = skip_parts,
    .begin = begin,
    .draws = sl_cuda_sampler_offers,
    .draw = sl_cuda_sample_rows,
    .drawn = sl_cuda_sampled_ids,
    .embed = embed,
    .rmsnorm = rmsnorm,
    .linear = linear,
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
