// backend/cuda/cuda_backend.h - the state of the CUDA backend, for the C files of this folder and the attention runner.
//
// The files depend on each other in this order: cuda_error.c -> cuda_device.c (errors, memory) -> cuda_graph.c, gemm.c,
// prefill_fp8.c, cuda_place.c, cuda_ranks.c, cuda_sampling.c -> cuda_backend.c (operations, and the table of all functions).
#ifndef SLEIGH_CUDA_BACKEND_H
#define SLEIGH_CUDA_BACKEND_H

#include "backend/backend.h"
#include "backend/cuda/rank_sum.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>

enum {
    // Recordings. Without drafts, a run needs one for each number of sequences. With drafts, a pass of up to N sequences has any
    // number of rows up to N (1 + n_draft), and the steps of each method that drafts have up to N rows: 32 sequences with 8
    // drafts and the two methods of `auto` need 32 (1 + 8) + 32 + 2 * 32 = 384. Sequences that attend exactly because they are
    // short, and drafts of both methods in one pass, need more for a while; the least recently used ones make room.
    SL_MAX_GRAPHS = 384,
    SL_BRANCHES = 4,
    SL_MAX_GEMMS = 64,
    SL_LT_WORKSPACE = 32 << 20, // bytes of scratch memory for cuBLASLt
    SL_STAGING = 64 << 20,      // bytes of one pinned buffer for weights
    SL_WIDE = 64 << 20,         // bytes of scratch memory for a part of a packed weight in bf16, or as rows of fp8
    SL_ROUNDED = 32 << 20,      // bytes of scratch memory for rows of x in fp8; prefill_fp8.c has more
};

// What is multiplied by the scales of a product of fp8.
typedef enum {
    SL_SCALES_NONE,  // the product is bf16
    SL_SCALES_ROWS,  // output (r, o) by the scale of row r of x and the scale of row o of W: x_scale [n_rows], w_scale [n_out]
    SL_SCALES_BLOCKS // the sum of 128 products by the scales of 128 columns of row r, and of 128 x 128 numbers of W:
                     // x_scale [n_in / 128][n_rows], w_scale [n_out / 128][n_in / 128, rounded up to a multiple of 4];
                     // n_rows, n_out and n_in are multiples of 4, 128 and 128; the scales are 16-byte aligned
} sl_gemm_scales;

// One matrix product of prefill. The algorithm does not depend on the number of rows. So the sums of a row have the same order
// in a whole prompt and in chunks.
typedef struct sl_gemm_plan {
    int n_out, n_in, is_fp32; // is_fp32: the output is fp32, else bf16
    sl_gemm_scales scales;
    cublasStatus_t status; // of the choice; if it is not CUBLAS_STATUS_SUCCESS, there is no algorithm
    cublasLtMatmulDesc_t op;
    cublasLtMatmulAlgo_t algo;
} sl_gemm_plan;

// What a rank of a tensor-parallel run has in common with the others.
typedef struct sl_cuda_ranks {
    sl_comm *comm;
    sl_exchange exchange;              // of every call, without its slots
    float *slots[SL_MOST_RANKS][2];    // of all ranks
    char *memory;                      // this rank's exchange memory: two slots, then the flags
    volatile sl_exchange_fault *fault; // host memory
    int next_slot;                     // that the next exchange takes
    int n_sharing;                     // ranks that use this GPU
    struct sl_nccl *nccl;              // NULL: not in use
    pthread_t watch;                   // with nccl: ends the run if a rank does not come
    int is_watched;                    // the thread runs
    atomic_int is_closing;             // 1: the thread ends
    // The parts of all ranks, which NCCL brings: [n][SL_EXCHANGE_SLOT]. NULL: the ranks map each other's memory
    float *gathered;
    void *board; // with `gathered`: the board of comm, registered with CUDA. It has the flags of all ranks
} sl_cuda_ranks;

typedef struct sl_cuda {
    sl_backend base; // the first member: sl_cuda_of converts a pointer to it
    int index;       // of the GPU
    struct cudaDeviceProp props;
    int ptx_version; // generation of the kernels that this GPU runs: 90
    cudaStream_t stream;
    cudaStream_t aside; // for copies beside other operations (aside_begin)
    cudaEvent_t aside_event;
    cudaStream_t branches[SL_BRANCHES]; // for kernels that run beside each other (sl_cuda_branch_out)
    cudaEvent_t branch_events[SL_BRANCHES];
    sl_error first_error; // since the last finish(); code 0: none
    // linear layers of prefill
    cublasLtHandle_t lt;
    void *lt_workspace;
    sl_gemm_plan gemms[SL_MAX_GEMMS];
    int n_gemms;
    // weights: blocks in device memory, freed with the backend, and pinned buffers for the copies
    void **blocks;
    int n_blocks, cap_blocks;
    char *staging[2];
    cudaEvent_t staging_read[2]; // the last copy from the buffer has ended
    int next_staging;
    void *wide;       // SL_WIDE bytes, for prefills with packed weights; NULL: there is none
    uint8_t *rounded; // scratch memory for prefills with inputs of fp8 (prefill_fp8.c); NULL: there is none
    struct { // of dummy weights (dummy_weights.h): most matrices, and projections of queries; values NULL: not made yet
        double deviation;
        bf16 *values;
    } quantiles[2];
    // rotations (RoPE); all layers of a step share them
    float *inv_freq;         // [head_dim / 2]
    const void *inv_freq_of; // the host array that was copied to inv_freq
    float *rope;             // [rows][head_dim / 2][2] cosine and sine
    size_t rope_size;        // bytes
    // recorded steps
    struct {
        sl_step_key key;
        cudaGraphExec_t exec;
        uint64_t used; // n_steps of its last replay
        int next_slot; // sl_cuda_ranks.next_slot at its end
    } graphs[SL_MAX_GRAPHS];
    int n_graphs;
    uint64_t n_steps;
    unsigned skipped_parts; // SL_PART_...
    // token sampling
    void *sample_ws;
    size_t sample_ws_size;
    void *settings; // sl_cuda_sampling [sample_rows], then int32_t [sample_rows]: the ids for the host
    int sample_rows;
    int32_t *sampled_ids; // [sample_rows] pinned
    uint32_t *allowed;    // [allowed_words] of the rows that sample from some tokens only
    size_t allowed_words;
    cudaEvent_t sampled;  // sampled_ids holds the ids of the last step
    sl_cuda_ranks *ranks; // NULL: the process has the whole model
} sl_cuda;

static inline sl_cuda *sl_cuda_of(const sl_backend *be) {
    return (sl_cuda *)be; // sl_cuda_init created it in memory that is not const
}

// ---- cuda_device.c ----

// Makes c's GPU the current device of the calling thread. CUDA allocates, launches, records and queries on the current device,
// so every function of the backend that does one of these things calls sl_cuda_use first. Otherwise two backends in one process
// would use one GPU. After a failure, finish() reads CUDA's last error.
void sl_cuda_use(const sl_cuda *c);
// Between the two calls, kernels may be queued on c->branches, and then run beside each other: after what was queued on the
// backend's stream before branch_out, and before what is queued there after branch_in.
void sl_cuda_branch_out(sl_cuda *c);
void sl_cuda_branch_in(sl_cuda *c);

// Stores the first error for finish(). Returns 1 when rc is an error.
int sl_cuda_keep_error(sl_cuda *c, cudaError_t rc, const char *what);
int sl_cuda_ranks_check(const sl_cuda *c, sl_error *err); // SL_ERR_DEVICE: a rank has not come; 0 also without ranks

int sl_cuda_device_open(sl_cuda *c, sl_error *err); // the GPU c->index: its properties, a stream
void sl_cuda_device_close(sl_cuda *c);

void sl_cuda_describe(const sl_backend *be, char *buf, size_t size);
size_t sl_cuda_free_memory(const sl_backend *be);
void *sl_cuda_alloc(const sl_backend *be, size_t size);
void sl_cuda_release(const sl_backend *be, void *p, size_t size);
void *sl_cuda_alloc_host(const sl_backend *be, size_t size);
void sl_cuda_release_host(const sl_backend *be, void *p, size_t size);
void sl_cuda_copy(const sl_backend *be, void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                  size_t height);
void sl_cuda_clear(const sl_backend *be, void *p, size_t size);
void sl_cuda_upload(const sl_backend *be, void *to, const void *from, size_t size);
void sl_cuda_download(const sl_backend *be, void *to, const void *from, size_t size);
void *sl_cuda_stream(const sl_backend *be);
int sl_cuda_finish(const sl_backend *be, sl_error *err);

// ---- cuda_graph.c ----
void sl_cuda_run_step(const sl_backend *be, sl_step_key key, void (*forward)(const struct sl_batch *batch),
                      const struct sl_batch *batch);
void sl_cuda_forget(const sl_backend *be);

// ---- gemm.c ----

// out [n_rows][out_stride] = x W^T
typedef struct sl_cuda_product {
    const void *w; // [n_out][n_in] bf16; with scales fp8
    int n_out, n_in;
    const void *x; // [n_rows][n_in], as w
    int n_rows;
    sl_gemm_scales scales;
    const float *w_scale, *x_scale;
    int is_fp32, accumulate; // is_fp32: out is fp32, and `accumulate` adds to it; else out is bf16
    void *out;
    int out_stride;
} sl_cuda_product;
void sl_cuda_gemm(sl_cuda *c, const sl_cuda_product *product);
// 1: sl_cuda_gemm computes this product of fp8 on this GPU with this cuBLASLt.
int sl_cuda_gemm_takes_fp8(sl_cuda *c, sl_gemm_scales scales, int n_out, int n_in, int is_fp32);
// The address of an output; how many rows of n_in numbers fit into `size` bytes, a multiple of 256.
char *sl_cuda_output_at(const sl_cuda_product *p, size_t row, int col);
int sl_cuda_rows_that_fit(size_t size, int n_in, size_t number_size);
int sl_cuda_gemm_init(sl_cuda *c, sl_error *err);
void sl_cuda_gemm_free(sl_cuda *c);

// ---- prefill_fp8.c ----

// Decides how prefills round the inputs of a block of packed weights. If its weights ask for different inputs, or cuBLASLt has
// no product for them, all become SL_INPUTS_PLAIN. Static inputs get the largest scale, because x is rounded once. Allocates
// c->rounded if it is needed.
int sl_cuda_settle_inputs(sl_cuda *c, sl_weight *const *weights, int n, sl_error *err);
void sl_cuda_prefill_fp8(sl_cuda *c, const sl_weight *w, const sl_cuda_product *product); // product: the bf16 one

// ---- cuda_ranks.c; c->ranks is there, unless a function says otherwise ----

// The memory that gets this rank's part for the next exchange.
float *sl_cuda_ranks_slot(const sl_cuda *c);
int sl_cuda_ranks_rows(int n_cols); // the most rows of one exchange
// Queues: x [n_rows][n_cols] += the sum of the parts [n_rows][n_cols] in the slots of all ranks. norm: as linear_norm in a
// decode step; NULL: none
void sl_cuda_ranks_add(sl_cuda *c, int n_rows, int n_cols, float *x, const sl_next_norm *norm);
// The same for a prefill, without a norm: the order of the sum may be another one. x: [n_rows][x_stride]
void sl_cuda_ranks_add_prefill(sl_cuda *c, int n_rows, int n_cols, float *x, int x_stride);
// Call before a step that is recorded or replayed: makes slot 0 the next one. Without ranks it does nothing.
void sl_cuda_ranks_begin_step(sl_cuda *c);
void sl_cuda_ranks_free(sl_cuda *c); // also without ranks

// ---- cuda_sampling.c ----
void sl_cuda_sample_rows(const sl_backend *be, const float *logits, const sl_row *rows, const sl_sampling *const *sampling,
                         const uint32_t *const *allowed, int n_rows, int n_vocab, int32_t *ids);
int sl_cuda_sampled_ids(const sl_backend *be, int32_t *ids, int n, sl_error *err);
void sl_cuda_sampling_free(sl_cuda *c);

// ---- cuda_place.c ----
size_t sl_cuda_placed_bytes(const sl_backend *be, sl_weight *const *weights, int n, sl_cut cut);
int sl_cuda_place(const sl_backend *be, sl_weight *const *weights, int n, sl_cut cut, sl_error *err);
void sl_cuda_place_free(sl_cuda *c);

#endif
