// engine/backend/cuda/cuda_backend.c - the CUDA backend: memory, weights, the operations of a step on one stream, and recorded
// steps.
//
// Operations are queued and return nothing; what goes wrong is noted and handed over by finish(). A decode step is recorded as
// one CUDA graph per batch size: all that differs from step to step (tokens, positions, page tables) lies in device memory.
#include "engine/backend/cuda/cuda_backend.h"
#include "engine/backend/cuda/cuda.h"
#include "engine/backend/cuda/cuda_error.h"
#include "engine/backend/cuda/linear.h"
#include "engine/backend/cuda/cuda_ops.h"
#include "engine/backend/cuda/cuda_sampler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- errors ----

static int finish(const sl_backend *be, sl_error *err) {
    sl_cuda *c = sl_cuda_of(be);
    sl_cuda_note(c, cudaGetLastError(), "launch");
    sl_cuda_note(c, cudaStreamSynchronize(c->stream), "step");
    if (!c->failed.code) return 0;
    if (err) *err = c->failed;
    int rc = c->failed.code;
    c->failed.code = SL_OK;
    return rc;
}

// ---- memory ----

static size_t free_memory(const sl_backend *be) {
    (void)be;
    size_t free = 0, total = 0;
    return cudaMemGetInfo(&free, &total) == cudaSuccess ? free : 0;
}

static void *take(const sl_backend *be, size_t size) {
    sl_cuda *c = sl_cuda_of(be);
    void *p = NULL;
    sl_error unused;
    if (sl_cuda_check(cudaMalloc(&p, size), "memory", &unused)) return NULL;
    return sl_cuda_note(c, cudaMemsetAsync(p, 0, size, c->stream), "memory") ? NULL : p;
}

static void release(const sl_backend *be, void *p, size_t size) {
    (void)size;
    sl_cuda *c = sl_cuda_of(be);
    if (!p) return;
    sl_cuda_note(c, cudaStreamSynchronize(c->stream), "release");
    sl_cuda_note(c, cudaFree(p), "release");
}

static void copy_runs(const sl_backend *be, void *to, const void *from, size_t pitch, size_t width, size_t height) {
    sl_cuda *c = sl_cuda_of(be);
    sl_cuda_note(c, cudaMemcpy2DAsync(to, pitch, from, pitch, width, height, cudaMemcpyDeviceToDevice, c->stream), "copy");
}

static void clear(const sl_backend *be, void *p, size_t size) {
    sl_cuda *c = sl_cuda_of(be);
    sl_cuda_note(c, cudaMemsetAsync(p, 0, size, c->stream), "clear");
}

// From ordinary memory: CUDA has read all of it when the call returns.
static void upload(const sl_backend *be, void *to, const void *from, size_t size) {
    sl_cuda *c = sl_cuda_of(be);
    sl_cuda_note(c, cudaMemcpyAsync(to, from, size, cudaMemcpyHostToDevice, c->stream), "upload");
}

static void download(const sl_backend *be, void *to, const void *from, size_t size) {
    sl_cuda *c = sl_cuda_of(be);
    sl_cuda_note(c, cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToHost, c->stream), "download");
    sl_cuda_note(c, cudaStreamSynchronize(c->stream), "download");
}

static void *stream(const sl_backend *be) {
    return sl_cuda_of(be)->stream;
}

// ---- recorded steps ----

static cudaGraphExec_t record(sl_cuda *c, void (*fn)(void *ctx), void *ctx) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    if (sl_cuda_note(c, cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal), "recording a step")) return NULL;
    fn(ctx);
    if (sl_cuda_note(c, cudaStreamEndCapture(c->stream, &graph), "recording a step")) return NULL;
    sl_cuda_note(c, cudaGraphInstantiate(&exec, graph, 0), "recording a step");
    cudaGraphDestroy(graph);
    return exec;
}

static void replay(const sl_backend *be, int key, void (*fn)(void *ctx), void *ctx) {
    sl_cuda *c = sl_cuda_of(be);
    for (int i = 0; i < c->n_graphs; i++) {
        if (c->graphs[i].key != key) continue;
        sl_cuda_note(c, cudaGraphLaunch(c->graphs[i].exec, c->stream), "replaying a step");
        return;
    }
    fn(ctx); // this step, unrecorded: buffers grow, which voids recordings, and libraries load, which one must not do
    if (c->failed.code) return;
    cudaGraphExec_t exec = record(c, fn, ctx);
    if (!exec) return;
    if (c->n_graphs == SL_MAX_GRAPHS) cudaGraphExecDestroy(c->graphs[--c->n_graphs].exec);
    c->graphs[c->n_graphs].key = key;
    c->graphs[c->n_graphs++].exec = exec;
}

static void forget(const sl_backend *be) {
    sl_cuda *c = sl_cuda_of(be);
    cudaStreamSynchronize(c->stream);
    while (c->n_graphs > 0) cudaGraphExecDestroy(c->graphs[--c->n_graphs].exec);
}

// ---- operations ----

// Buffers of the rotations grow outside recordings: a step's first run is not one.
static void begin(const sl_backend *be, const sl_rope *rope, const sl_row *rows, int n_rows) {
    sl_cuda *c = sl_cuda_of(be);
    size_t half = rope->head_dim / 2, size = (size_t)n_rows * half * sizeof(float2);
    if (c->inv_freq_of != rope->inv_freq) {
        cudaFree(c->inv_freq);
        c->inv_freq = NULL;
        if (sl_cuda_note(c, cudaMalloc((void **)&c->inv_freq, half * sizeof(float)), "rotations")) return;
        upload(be, c->inv_freq, rope->inv_freq, half * sizeof(float));
        c->inv_freq_of = rope->inv_freq;
    }
    if (size > c->rope_size) {
        forget(be); // recordings hold the old address
        cudaFree(c->rope);
        c->rope = NULL;
        c->rope_size = 0;
        if (sl_cuda_note(c, cudaMalloc((void **)&c->rope, size), "rotations")) return;
        c->rope_size = size;
    }
    if (c->left_out & SL_PART_REST) return;
    sl_cuda_rope_table(c->inv_freq, rows, n_rows, rope->head_dim, (float2 *)c->rope, c->stream);
}

static void leave_out(const sl_backend *be, unsigned parts) {
    sl_cuda_of(be)->left_out = parts;
}

static void embed(const sl_backend *be, const sl_weight *table, const int32_t *ids, int n_rows, float *x) {
    if (sl_cuda_of(be)->left_out & SL_PART_REST) return;
    sl_cuda_embed(table->data, ids, n_rows, table->n_cols, x, sl_cuda_of(be)->stream);
}

static void rmsnorm(const sl_backend *be, const float *x, const sl_weight *w, int n_rows, float eps, void *out) {
    if (sl_cuda_of(be)->left_out & SL_PART_REST) return;
    sl_cuda_rmsnorm(x, w->data, n_rows, w->n_cols, eps, out, sl_cuda_of(be)->stream);
}

// Runs one decode matrix over any number of rows, SL_LINEAR_ROWS at a time.
static void decode_linear(sl_cuda *c, sl_cuda_linear l, int n_rows, size_t out_cols) {
    if (c->left_out & SL_PART_LINEAR) return;
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
    sl_cuda *c = sl_cuda_of(be);
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

// Prefill: one product for all, or, in the last layer, keys and values of all rows and queries of the last ones.
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
    sl_cuda *c = sl_cuda_of(be);
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
    sl_cuda *c = sl_cuda_of(be);
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

// ---- life ----

static void describe(const sl_backend *be, char *buf, size_t size) {
    const sl_cuda *c = sl_cuda_of(be);
    int runtime = 0;
    cudaRuntimeGetVersion(&runtime);
    snprintf(buf, size, "%s, sm_%d%d, CUDA %d.%d, cuBLASLt %zu", c->props.name, c->props.major, c->props.minor, runtime / 1000,
             runtime % 1000 / 10, cublasLtGetVersion());
}

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
    cudaStreamSynchronize(c->stream);
    forget(be);
    sl_cuda_place_free(c);
    sl_cuda_gemm_free(c);
    sl_cuda_draw_free(c);
    cudaFree(c->inv_freq);
    cudaFree(c->rope);
    if (c->stream) cudaStreamDestroy(c->stream);
    free(c);
}

int sl_cuda_count(void) {
    int n = 0;
    if (cudaGetDeviceCount(&n) == cudaSuccess) return n;
    cudaGetLastError();
    return 0;
}

int sl_cuda_name(int index, char *buf, size_t size, sl_error *err) {
    struct cudaDeviceProp props;
    int rc = sl_cuda_check(cudaGetDeviceProperties(&props, index), "reading the GPU's properties", err);
    if (!rc) snprintf(buf, size, "%s", props.name);
    return rc;
}

static const sl_backend operations = {
    .name = "cuda",
    .act_size = sizeof(bf16),
    .is_device = 1,
    .describe = describe,
    .prepare = prepare,
    .free = destroy,
    .free_memory = free_memory,
    .alloc = take,
    .release = release,
    .copy = copy_runs,
    .clear = clear,
    .upload = upload,
    .download = download,
    .place = sl_cuda_place,
    .stream = stream,
    .finish = finish,
    .replay = replay,
    .forget = forget,
    .leave_out = leave_out,
    .begin = begin,
    .draws = sl_cuda_sampler_offers,
    .draw = sl_cuda_draw,
    .drawn = sl_cuda_drawn,
    .embed = embed,
    .rmsnorm = rmsnorm,
    .linear = linear,
    .qkv = qkv,
    .gate_up = gate_up,
};

static int init(sl_cuda *c, sl_error *err) {
    int rc = sl_cuda_check(cudaSetDevice(c->index), "choosing the GPU", err);
    if (!rc) rc = sl_cuda_check(cudaGetDeviceProperties(&c->props, c->index), "reading the GPU's properties", err);
    if (!rc && c->props.major < 8)
        rc = sl_fail(err, SL_ERR_UNSUPPORTED, "%s has compute capability %d.%d: 8.0 or more is needed; use --device cpu",
                     c->props.name, c->props.major, c->props.minor);
    if (!rc) rc = sl_cuda_check(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking), "stream", err);
    if (!rc) rc = sl_cuda_check(cudaMalloc(&c->lt_workspace, SL_LT_WORKSPACE), "cuBLASLt's workspace", err);
    if (!rc && cublasLtCreate(&c->lt) != CUBLAS_STATUS_SUCCESS)
        rc = sl_fail(err, SL_ERR_DEVICE, "cuBLASLt could not be started");
    return rc;
}

int sl_cuda_init(int index, const sl_backend **out, sl_error *err) {
    sl_cuda *c = calloc(1, sizeof *c);
    if (!c) return sl_fail(err, SL_ERR_MEMORY, "CUDA backend: out of memory");
    c->base = operations;
    c->index = index;
    int rc = init(c, err);
    if (rc) {
        destroy(&c->base);
        return rc;
    }
    *out = &c->base;
    return 0;
}
