// engine/backend/backend.h - the operations a model is made of, as a table per device. models/*.c calls nothing else.
//
// The residual stream and the logits are fp32, sums are fp32; what a linear layer reads (an "activation") is fp32 on the CPU
// and bf16 on CUDA. Two kinds of linear layer:
//   decode   any number of rows, each with the same reduction order whatever its company: a row alone and in a batch gives
//            equal bits;
//   prefill  a BLAS on fixed panels of rows, a token's place in its panel being its position modulo the panel: a BLAS may sum a
//            panel's rows in different orders (OpenBLAS's Haswell kernels do), so only a fixed place gives a token equal bits
//            whole and in chunks. Another core type of OpenBLAS (OPENBLAS_CORETYPE, else its choice) gives other bits. On CUDA
//            cuBLASLt with one algorithm per matrix, chosen once, whatever the number of rows.
//
// Memory that an operation reads or writes is the backend's: host memory on the CPU, device memory on CUDA, where operations
// are queued in order and return at once; finish() waits and hands over what went wrong.
#ifndef SLEIGH_BACKEND_H
#define SLEIGH_BACKEND_H

#include "engine/base/bf16.h"
#include "engine/base/error.h"

#include <stddef.h>
#include <stdint.h>

typedef enum { SL_BF16, SL_F16, SL_F32 } sl_dtype;

static inline size_t sl_dtype_size(sl_dtype t) {
    return t == SL_F32 ? 4 : 2;
}

// A weight, row-major [n_rows][n_cols]; a vector has n_rows = 1. On the CPU data lies in the mapped file.
// A quantised weight is scale * (data - zero), with one scale and one zero for `group` consecutive columns of a row. The loader
// refuses quantised weights today, and the operations check that a weight has no scale (sl_weight_check).
typedef struct sl_weight {
    const void *data;
    sl_dtype dtype;
    int n_rows, n_cols;
    const void *scale; // [n_rows][n_cols / group]; NULL: data are the numbers themselves
    const void *zero;  // [n_rows][n_cols / group]; NULL: zero is 0
    int group;         // columns that share a scale; 0 without a scale
    const char *name;  // of the tensor. Of a dummy model data is NULL until it is made (engine/backend/dummy_weights.h)
} sl_weight;

// For operations that read data as plain numbers.
static inline void sl_weight_check(const sl_weight *w) {
    SL_CHECK(!w->scale && !w->zero && w->group == 0);
}

// One row of a step: a token of some sequence. On CUDA an array of them lies in device memory, read 16 bytes at a time.
typedef struct sl_row {
    int32_t position;
    uint32_t sequence;    // keys the random numbers
    const int32_t *pages; // of its sequence; row `position` is written by rope_append
    char *state;          // on a device: what its methods keep from step to step, a part for each layer; NULL: nothing
    uint32_t seed;        // of attention's draws
    uint32_t reserved;    // 32 bytes in all
} sl_row;

typedef struct sl_rope {
    int head_dim;
    float *inv_freq; // [head_dim / 2], scaling applied (llama3, linear); host memory
} sl_rope;

typedef enum { SL_LINEAR_DECODE, SL_LINEAR_PREFILL } sl_linear_mode;

typedef struct sl_qkv {
    const sl_weight *q, *k, *v; // placed together (place)
    int n_rows, first;          // queries are wanted of the rows [first, n_rows) alone
    const void *x;              // activations [n_rows][hidden]
    const sl_row *rows;         // [n_rows]
    int position;               // of row 0; the others follow (prefill)
    sl_linear_mode mode;
    const sl_rope *rope;
    int n_heads, n_kv_heads;
    bf16 *k_layer, *v_layer; // [n_pages][n_kv_heads][256][head_dim]
    // activations [n_rows][parts * (n_heads * head_dim + 2 * n_kv_heads * head_dim)]; parts: SL_QKV_PARTS with biases or norms,
    // else 1
    void *work;
    // Biases, added to the products. NULL: none, else all three, placed together.
    const sl_weight *q_bias, *k_bias, *v_bias; // [n_heads * head_dim], [n_kv_heads * head_dim] twice
    // RMSNorm of every query head and key head, after the biases and before RoPE. NULL: none, else both.
    const sl_weight *q_norm, *k_norm; // [head_dim]
    float norm_eps;
} sl_qkv;

enum { SL_QKV_PARTS = 3 }; // CUDA: fp32 products (two parts) and bf16 queries

// Queries of consecutive rows: row i's [n_heads][head_dim] activations begin i * stride elements after data.
typedef struct sl_queries {
    const void *data;
    size_t stride;
} sl_queries;

typedef struct sl_shape { // of a model, for a backend to judge
    int hidden, n_ffn, n_heads, n_kv_heads, head_dim;
} sl_shape;

struct sl_sampling; // engine/backend/sampler.h
struct sl_batch;    // models/arch.h: a backend does not look into it

// Parts of a decode step that a bench leaves out, to see what they cost.
enum { SL_PART_LINEAR = 1, SL_PART_ATTENTION = 2, SL_PART_REST = 4 };

typedef struct sl_backend sl_backend;
struct sl_backend {
    const char *name; // "cpu"
    size_t act_size;  // bytes of an activation
    int is_device;    // its memory is not the host's
    // Describes what runs: "avx512bf16, 4 threads, OpenBLAS 0.3.21".
    void (*describe)(const sl_backend *be, char *buf, size_t size);
    // Before any weight is placed: SL_ERR_UNSUPPORTED with the reason; else takes what operations of this shape need beside
    // their arguments, or SL_ERR_MEMORY. NULL: every shape that a model may have, and nothing to take
    int (*prepare)(const sl_backend *be, const sl_shape *shape, sl_error *err);
    void (*free)(const sl_backend *be); // NULL: nothing to free

    // ---- memory ----
    size_t (*free_memory)(const sl_backend *be);                 // bytes that may still be taken
    void *(*alloc)(const sl_backend *be, size_t size);           // zeros, 256-byte aligned; NULL when there is none
    void (*release)(const sl_backend *be, void *p, size_t size); // p may be NULL
    // height runs of width bytes, pitch bytes apart in both, within the backend's memory
    void (*copy)(const sl_backend *be, void *to, const void *from, size_t pitch, size_t width, size_t height);
    void (*clear)(const sl_backend *be, void *p, size_t size);
    void (*upload)(const sl_backend *be, void *to, const void *from, size_t size);   // from may change after the call
    void (*download)(const sl_backend *be, void *to, const void *from, size_t size); // waits for what was queued before
    // Brings n weights of equal n_cols where operations want them, one after the other, and sets their data. Weights without
    // data (a dummy model) are filled with random numbers there. NULL: they are used where they lie.
    int (*place)(const sl_backend *be, sl_weight *const *weights, int n, sl_error *err);
    // Where operations are queued, for kernels of other folders (cudaStream_t). Makes the backend's device the calling thread's
    // current one, which those kernels need too. NULL: none
    void *(*stream)(const sl_backend *be);
    int (*finish)(const sl_backend *be, sl_error *err); // SL_ERR_DEVICE: an operation failed since the last call

    // ---- a step ----
    // Runs forward(batch) (models/arch.h). Calls of equal key must queue the same operations with the same arguments: CUDA
    // records them once and replays the recording. NULL: operations run where they are called
    void (*replay)(const sl_backend *be, int key, void (*forward)(const struct sl_batch *batch), const struct sl_batch *batch);
    void (*forget)(const sl_backend *be); // the recordings are void
    // From the next recording on, decode steps leave out these parts (SL_PART_...), so that what they compute means nothing.
    // NULL: not offered
    void (*leave_out)(const sl_backend *be, unsigned parts);
    // What all layers of a step share: the rotations of its rows.
    void (*begin)(const sl_backend *be, const sl_rope *rope, const sl_row *rows, int n_rows);

    // ---- token sampling where the logits lie; NULL: on the host ----
    int (*draws)(const struct sl_sampling *sampling, int n_vocab); // 0: not with these parameters
    // Queues: ids[i] = what sl_sampler_draw would draw for rows[i].sequence and .position from logits [n_rows][n_vocab]
    void (*draw)(const sl_backend *be, const float *logits, const sl_row *rows, const struct sl_sampling *const *sampling,
                 int n_rows, int n_vocab, int32_t *ids);
    // Waits for the draw, not for what was queued after it. ids: host memory; -1 for a row with logits that are not finite
    int (*drawn)(const sl_backend *be, int32_t *ids, int n, sl_error *err);

    // x[i] = table[ids[i]]: x [n_rows][hidden] fp32
    void (*embed)(const sl_backend *be, const sl_weight *table, const int32_t *ids, int n_rows, float *x);
    // out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * w: activations [n_rows][w->n_cols]
    void (*rmsnorm)(const sl_backend *be, const float *x, const sl_weight *w, int n_rows, float eps, void *out);
    // out[r][o] = sum_i x[r][i] w[o][i], added to out if `accumulate`: x activations [n_rows][w->n_cols], out fp32
    // [n_rows][w->n_rows]. position: of the first row, the others follow (prefill; decode does not look at it)
    void (*linear)(const sl_backend *be, const sl_weight *w, const void *x, int n_rows, sl_linear_mode mode, int position,
                   int accumulate, float *out);
    // Multiplies x by the q, k and v matrices, adds biases, norms and rotates the query and key heads (Hugging Face's
    // half-split layout), and stores bf16 k and v into each row's page.
    sl_queries (*qkv)(const sl_backend *be, const sl_qkv *args);
    // out = silu(gate x) * (up x): activations [n_rows][gate->n_rows]; work: [n_rows][2 * gate->n_rows]
    void (*gate_up)(const sl_backend *be, const sl_weight *gate, const sl_weight *up, const void *x, int n_rows,
                    sl_linear_mode mode, int position, void *work, void *out);
};

// n_threads 0: every core that this process may use. SL_ERR_ARG if out of 1..1024. The backend is the process's own.
int sl_cpu_init(int n_threads, const sl_backend **out, sl_error *err);
int sl_cpu_threads(void);
void sl_cpu_arithmetic(char *buf, size_t size); // after sl_cpu_init: "avx512, OpenBLAS 0.3.21 SkylakeX"
const sl_backend *sl_cpu_backend(void);         // for its memory alone: operations need sl_cpu_init

#endif
