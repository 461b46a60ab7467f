// engine/backend/cuda/cuda_backend.h - the insides of the CUDA backend, for engine/cuda/*.c alone.
#ifndef SLEIGH_CUDA_BACKEND_H
#define SLEIGH_CUDA_BACKEND_H

#include "engine/backend/backend.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

enum { SL_MAX_GRAPHS = 64, SL_MAX_GEMMS = 32 };

// One matrix product of prefill: the algorithm that cuBLASLt's heuristic names for the widest pass, kept for every number of
// rows, so that a row's sum is taken in one order whole and in chunks.
typedef struct sl_gemm_plan {
    int n_out, n_in, wide; // wide: fp32 out, added to
    cublasLtMatmulDesc_t op;
    cublasLtMatmulAlgo_t algo;
} sl_gemm_plan;

typedef struct sl_cuda {
    sl_backend base; // first: a const sl_backend * is one of these
    int index;
    struct cudaDeviceProp props;
    cudaStream_t stream;
    // prefill's linear layers
    cublasLtHandle_t lt;
    void *lt_workspace;
    sl_gemm_plan gemms[SL_MAX_GEMMS];
    int n_gemms;
    // weights: blocks that are freed with the backend, and pinned memory on their way
    void **blocks;
    int n_blocks, cap_blocks;
    char *staging[2];
    cudaEvent_t staged[2];
    int turn;
    bf16 *quantiles; // of dummy weights; NULL: none were made
    // what all layers of a step share
    float *inv_freq; // [head_dim / 2], of the rope that it was made from
    const void *inv_freq_of;
    float *rope; // [rope_rows][head_dim / 2][2]
    size_t rope_size;
    struct {
        int key;
        cudaGraphExec_t exec;
    } graphs[SL_MAX_GRAPHS];
    int n_graphs;
    // token sampling
    void *draw_ws, *sampling;
    size_t draw_ws_size;
    int draw_rows;
    int32_t *drawn_ids; // [draw_rows] pinned
    cudaEvent_t drawn;
    unsigned left_out; // SL_PART_...
    sl_error failed;   // what the first failure since the last finish() said; code 0: none
} sl_cuda;

static inline sl_cuda *sl_cuda_of(const sl_backend *be) {
    return (sl_cuda *)be; // created by sl_cuda_init, never const memory
}

enum { SL_LT_WORKSPACE = 32 << 20, SL_STAGING = 64 << 20 };

// Remembers the first failure of a step; finish() hands it over. Returns 1 when rc is one.
int sl_cuda_note(sl_cuda *c, cudaError_t rc, const char *what);

// gemm.c: out [n_rows][out_stride] = x [n_rows][x_stride] W^T, bf16; or, wide, fp32 out += x W^T.
void sl_cuda_gemm(sl_cuda *c, const bf16 *w, int n_out, int n_in, const bf16 *x, int n_rows, int wide, int accumulate,
                  void *out, int out_stride);
void sl_cuda_gemm_free(sl_cuda *c);

// cuda_sampling.c
void sl_cuda_draw(const sl_backend *be, const float *logits, const sl_row *rows, const struct sl_sampling *const *sampling,
                  int n_rows, int n_vocab, int32_t *ids);
int sl_cuda_drawn(const sl_backend *be, int32_t *ids, int n, sl_error *err);
void sl_cuda_draw_free(sl_cuda *c);

// upload.c
int sl_cuda_place(const sl_backend *be, sl_weight *const *weights, int n, sl_error *err);
void sl_cuda_place_free(sl_cuda *c);

#endif
