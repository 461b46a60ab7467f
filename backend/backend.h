// backend/backend.h - the operations that a model calls: one table of functions for each device.
//
// The residual stream, the logits and all sums are fp32. The input of a linear layer (an "activation") is fp32 on the CPU and
// bf16 on CUDA. There are two kinds of linear layer:
//   decode   takes any number of rows. The reduction order of a row does not depend on the other rows. So a row has equal bits
//            in every batch.
//   prefill  is for many rows and sums in another order. On the CPU the order does not depend on the other rows either, and it
//            is the same with AVX2 and AVX-512 (backend/cpu/cpu_ops.h). On CUDA prefill calls cuBLASLt. The algorithm for a
//            matrix does not depend on the number of rows.
//
// Operations read and write the backend's memory: host memory on the CPU, device memory on CUDA. On CUDA the functions queue
// the operations in order and return before the operations have run. finish() waits for all queued operations and returns the
// first error.
#ifndef SLEIGH_BACKEND_H
#define SLEIGH_BACKEND_H

#include "backend/row.h"
#include "backend/weight.h"
#include "base/comm.h"

#include <stddef.h>
#include <stdint.h>

typedef struct sl_rope {
    int head_dim;
    float *inv_freq; // [head_dim / 2], scaling applied (llama3, linear, yarn); host memory
    float scale;     // factor of cosine and sine; 1 without yarn
} sl_rope;

typedef enum { SL_LINEAR_DECODE, SL_LINEAR_PREFILL } sl_linear_mode;

enum { SL_NORM_TILE = 16 }; // numbers of x with one partial sum
// An RMSNorm, h = x / sqrt(mean(x^2) + eps) * w, and the memory for its results.
typedef struct sl_next_norm {
    const sl_weight *w; // [hidden]
    float eps;
    void *rows;  // activations [n_rows][hidden]
    float *sums; // [n_rows][hidden / SL_NORM_TILE], rounded down
} sl_next_norm;

// The results, which qkv and gate_up read. There are two forms: h itself; or, in a decode step on CUDA, x * w with partial sums
// of x^2. Then the operation that multiplies the rows by a matrix divides the products by sqrt(mean(x^2) + eps).
typedef struct sl_normed {
    const void *rows;  // activations [n_rows][hidden]: h, or x * w
    const float *sums; // [n_rows][hidden / SL_NORM_TILE]; NULL: the rows are h
    float eps;         // with sums
} sl_normed;

typedef struct sl_qkv {
    const sl_weight *q, *k, *v; // in one block of memory (place)
    int n_rows, first;          // queries are computed for rows [first, n_rows) only
    sl_normed x;                // [n_rows][hidden]
    const sl_row *rows;         // [n_rows]
    sl_linear_mode mode;
    const sl_rope *rope;
    int n_heads, n_kv_heads;
    bf16 *k_layer, *v_layer;          // [n_pages][n_kv_heads] blocks of the KV cache (kv/kv_rows.h)
    sl_format k_format, v_format;     // of the blocks; equal on CUDA
    const float *k_scales, *v_scales; // [n_kv_heads] as in sl_kv_rows
    // activations [n_rows][parts * (n_heads * head_dim + 2 * n_kv_heads * head_dim)]; parts: SL_QKV_PARTS with biases or norms,
    // else 1. On CUDA also K and V as bf16 (staged), before they are stored in a cache of fp8 or int8
    void *work;
    // Biases, added to the products. All three are NULL, or all three lie in one block of memory (place).
    const sl_weight *q_bias, *k_bias, *v_bias; // [n_heads * head_dim], [n_kv_heads * head_dim] twice
    // RMSNorm of every query head and key head, after the biases and before RoPE. Both are NULL, or neither.
    const sl_weight *q_norm, *k_norm; // [head_dim]
    float norm_eps;
} sl_qkv;

enum { SL_QKV_PARTS = 3 }; // CUDA: fp32 products (two parts) and bf16 rows: queries, staged K and V

// Queries of consecutive rows: row i's [n_heads][head_dim] activations begin i * stride elements after data.
typedef struct sl_queries {
    const void *data;
    size_t stride;
} sl_queries;

// Pages to copy between K and V in the backend's memory, and rows of the host (kv/kv_offload.h), in every layer and KV
// head. A row of the host has K and V side by side.
enum { SL_MOVE_MOST = 128 };
typedef struct sl_page_move {
    int n; // pages, at most SL_MOVE_MOST
    int n_layers, n_kv_heads, head_dim, page_rows;
    int to_host;                // 1: k and v to rows; 0: rows to k and v
    int aside;                  // 1: beside other operations, between aside_begin and aside_end
    bf16 *k, *v;                // layers k_layer elements apart, each [pages][n_kv_heads][page_rows][head_dim]
    bf16 *rows;                 // layers rows_layer elements apart, each [pages][n_kv_heads][page_rows][2][head_dim]
    size_t k_layer, rows_layer; // elements
    int32_t at[SL_MOVE_MOST];   // [n] pages of k and v
    int32_t page[SL_MOVE_MOST]; // [n] pages of rows
} sl_page_move;

typedef struct sl_shape { // of a model
    int hidden, n_ffn, n_heads, n_kv_heads, head_dim;
} sl_shape;

struct sl_sampling; // engine/sleigh.h
struct sl_batch;    // models/arch.h; a backend only passes it on

// What decides the operations of a decode step, besides the engine's buffers.
enum { SL_STEP_SPLITS = 20 };
typedef struct sl_step_key {
    int n, first;                        // rows of the step, and the first of them in the engine's buffers
    uint32_t plan;                       // number of the plan of attention methods
    uint16_t exact_rows[SL_STEP_SPLITS]; // the first rows, which attend exactly in layers of split i (sl_plan.splits)
} sl_step_key;

// Parts of a decode step. A bench skips a part to measure the time that the part takes.
enum { SL_PART_LINEAR = 1, SL_PART_ATTENTION = 2, SL_PART_REST = 4 };

typedef struct sl_backend sl_backend;
struct sl_backend {
    const char *name; // "cpu"
    size_t act_size;  // bytes of an activation
    int is_device;    // 1: the backend's memory is not host memory
    // "avx512, 4 threads"
    void (*describe)(const sl_backend *be, char *buf, size_t size);
    // Called before the first weight is placed. Allocates the scratch memory that operations of this shape need, so that no
    // operation fails later for lack of memory. SL_ERR_UNSUPPORTED with the reason, or SL_ERR_MEMORY. NULL: takes every shape,
    // needs no scratch memory
    int (*prepare)(const sl_backend *be, const sl_shape *shape, sl_error *err);
    void (*free)(const sl_backend *be); // NULL: nothing to free

    // ---- memory ----
    size_t (*free_memory)(const sl_backend *be);                 // bytes that can still be allocated
    void *(*alloc)(const sl_backend *be, size_t size);           // zeros, 256-byte aligned; NULL: out of memory
    void (*release)(const sl_backend *be, void *p, size_t size); // p may be NULL
    // Copies `height` runs of `width` bytes within the backend's memory. In `to`, a run begins to_pitch bytes after the run
    // before it. In `from`, it begins from_pitch bytes after it.
    void (*copy)(const sl_backend *be, void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                 size_t height);
    void (*clear)(const sl_backend *be, void *p, size_t size);
    void (*upload)(const sl_backend *be, void *to, const void *from, size_t size);   // `from` may change after the call
    void (*download)(const sl_backend *be, void *to, const void *from, size_t size); // waits for all operations queued before
    // Host memory that the device's kernels read and write themselves, page-locked; NULL: out of memory. On the CPU as alloc
    void *(*alloc_host)(const sl_backend *be, size_t size);
    void (*release_host)(const sl_backend *be, void *p, size_t size); // p may be NULL
    void (*move_pages)(const sl_backend *be, const sl_page_move *move);
    // Moves with `aside` that are queued after aside_begin wait for the operations queued before it, and run beside the
    // operations queued after it. Operations queued after aside_end wait for these moves. On the CPU every operation has ended
    // at its return
    void (*aside_begin)(const sl_backend *be);
    void (*aside_end)(const sl_backend *be);
    // Queues the numbers [from, from + n) of sl_dummy_fill; from: a multiple of 8. quantiles: the backend's memory
    void (*fill)(const sl_backend *be, uint64_t key, const bf16 *quantiles, size_t from, size_t n, bf16 *out);
    // Rounds n_rows rows of head_dim bf16 numbers and stores them as the first rows of blocks of fp8 or int8: sl_kv_store
    // (kv/kv_rows.h) of every row. All pointers are the backend's memory
    void (*store_rows)(const sl_backend *be, const bf16 *rows, sl_format format, int head_dim, int n_rows, void *blocks);
    // Copies n weights of equal n_cols into one block of the backend's memory, without gaps, and sets their data and scale
    // pointers. The format of their numbers there is the backend's. Weights without data (a dummy model) get random numbers.
    // cut: which part of the whole weights this rank has (models/cut.h). With SL_CUT_COLS there is one weight.
    // NULL: operations read weights where the loader put them
    int (*place)(const sl_backend *be, sl_weight *const *weights, int n, sl_cut cut, sl_error *err);
    // That place allocates; NULL: no place
    size_t (*placed_bytes)(const sl_backend *be, sl_weight *const *weights, int n, sl_cut cut);
    // The stream of the operations (cudaStream_t), for kernels of other folders. Also makes the backend's device the current
    // device of the calling thread, because a launch goes to the current device. NULL: there is no stream
    void *(*stream)(const sl_backend *be);
    int (*finish)(const sl_backend *be, sl_error *err); // SL_ERR_DEVICE: an operation failed since the last finish

    // ---- a step ----
    // Runs forward(batch) (models/arch.h) for a decode step. The first call of a key runs forward and then records it. Later
    // calls of this key replay the recording. So calls of equal key must queue the same operations with the same arguments.
    // NULL: the backend records nothing; call forward directly
    void (*run_step)(const sl_backend *be, sl_step_key key, void (*forward)(const struct sl_batch *batch),
                     const struct sl_batch *batch);
    void (*forget)(const sl_backend *be); // deletes all recordings
    // Steps that are recorded after this call skip these parts (SL_PART_...). Their results are meaningless. NULL: not offered
    void (*skip_parts)(const sl_backend *be, unsigned parts);
    // Computes the rotations (cosines and sines) of the step's rows, which all layers share.
    void (*prepare_rope)(const sl_backend *be, const sl_rope *rope, const sl_row *rows, int n_rows);

    // ---- token sampling in the backend's memory; NULL: the host samples ----
    int (*can_sample)(const struct sl_sampling *sampling, int n_vocab); // 0: not with these parameters
    // Queues: ids[i] = the token that sl_sampler_sample samples from logits [n_rows][n_vocab], row i, for rows[i].sequence and
    // .position. ids: the backend's memory. allowed[i]: as in sl_sampler_allow, host memory; NULL: every token
    void (*sample_rows)(const sl_backend *be, const float *logits, const sl_row *rows,
                        const struct sl_sampling *const *sampling, const uint32_t *const *allowed, int n_rows, int n_vocab,
                        int32_t *ids);
    // Waits for the sampling, but not for operations queued after it. ids: host memory; -1: the row's logits are not finite
    int (*sampled_ids)(const sl_backend *be, int32_t *ids, int n, sl_error *err);

    // ---- operations of a model ----
    // x[i] = table[ids[i]]: x [n_rows][hidden] fp32
    void (*embed)(const sl_backend *be, const sl_weight *table, const int32_t *ids, int n_rows, float *x);
    // out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * w: activations [n_rows][w->n_cols]
    void (*rmsnorm)(const sl_backend *be, const float *x, const sl_weight *w, int n_rows, float eps, void *out);
    // out[r][o] = sum_i x[r][i] w[o][i], added to out if `accumulate`: x activations [n_rows][w->n_cols], out fp32
    // [n_rows][w->n_rows]
    void (*linear)(const sl_backend *be, const sl_weight *w, const void *x, int n_rows, sl_linear_mode mode, int accumulate,
                   float *out);
    // Adds x w^T to out (linear with `accumulate`), then norms the rows of out. out: [n_rows][hidden]. Returns the normed rows.
    sl_normed (*linear_norm)(const sl_backend *be, const sl_weight *w, const void *x, int n_rows, sl_linear_mode mode,
                             float *out, const sl_next_norm *norm);
    // Multiplies x by the q, k and v matrices and adds the biases. Norms and rotates the query and key heads (Hugging Face's
    // half-split layout). Stores k and v into each row's page, rounded.
    sl_queries (*qkv)(const sl_backend *be, const sl_qkv *args);
    // out = silu(gate x) * (up x): activations [n_rows][gate->n_rows]; work: [n_rows][2 * gate->n_rows]
    void (*gate_up)(const sl_backend *be, const sl_weight *gate, const sl_weight *up, sl_normed x, int n_rows,
                    sl_linear_mode mode, void *work, void *out);
};

int sl_cpu_check_threads(int n_threads, sl_error *err); // SL_ERR_ARG when n_threads is not 0 to 1024
// Opens a CPU backend; each engine has its own. n_threads 0: every core that this process may use. The caller ends its use with
// free().
int sl_cpu_open(int n_threads, const sl_backend **out, sl_error *err);
int sl_cpu_cores(void); // the cores that this process may use
// Chooses the instruction set: the best one, or the one that SLEIGH_ISA names. sl_cpu_open calls it too.
int sl_cpu_choose(sl_error *err);
void sl_cpu_arithmetic(char *buf, size_t size); // after sl_cpu_choose: "avx512"
const sl_backend *sl_cpu_memory(void);          // host memory: only the functions of the part "memory" may be called

#endif
