// backend/cuda/gemm.c - the linear layers of prefill: cuBLASLt, with one fixed algorithm for each matrix.
//
// out [n_rows][n_out] = x [n_rows][n_in] W^T, in bf16 with fp32 sums. cuBLASLt's heuristic chooses an algorithm by the number
// of rows, and the algorithm decides the order of each sum. So this file chooses once for each matrix, for PLAN_ROWS rows,
// among the algorithms that do not split n_in. A token then has equal bits whether its prompt is computed whole or in chunks.
// The choice does not use timings, so every run makes the same choice.
//
// cuBLASLt's matrices are column-major: for cuBLASLt, our row-major x [n_rows][n_in] is an n_in x n_rows matrix, and W is an
// n_in x n_out matrix that the operation transposes. The caller makes the GPU of the backend the current device (sl_cuda_use).
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/cuda_error.h"

#include <stdio.h>
#include <string.h>

enum { PLAN_ROWS = 2048, CANDIDATES = 16 };

static int keep_error(sl_cuda *c, cublasStatus_t rc, const char *what, int n_out, int n_in) {
    if (rc == CUBLAS_STATUS_SUCCESS) return 0;
    if (!c->first_error.code)
        sl_fail(&c->first_error, SL_ERR_DEVICE, "cuBLASLt %s of a [%d][%d] matrix: %s", what, n_out, n_in,
                cublasLtGetStatusString(rc));
    return 1;
}

// A column-major rows x cols matrix; column i + 1 begins `stride` elements after column i.
static cublasLtMatrixLayout_t layout(cudaDataType type, int rows, int cols, int stride) {
    cublasLtMatrixLayout_t l = NULL;
    return cublasLtMatrixLayoutCreate(&l, type, rows, cols, stride) == CUBLAS_STATUS_SUCCESS ? l : NULL;
}

typedef struct layouts {
    cublasLtMatrixLayout_t w, x, out;
} layouts;

static layouts layouts_of(const sl_gemm_plan *p, int n_rows, int out_stride) {
    return (layouts){layout(CUDA_R_16BF, p->n_in, p->n_out, p->n_in), layout(CUDA_R_16BF, p->n_in, n_rows, p->n_in),
                     layout(p->is_fp32 ? CUDA_R_32F : CUDA_R_16BF, p->n_out, n_rows, out_stride)};
}

static void free_layouts(layouts l) {
    if (l.w) cublasLtMatrixLayoutDestroy(l.w);
    if (l.x) cublasLtMatrixLayoutDestroy(l.x);
    if (l.out) cublasLtMatrixLayoutDestroy(l.out);
}

// Returns 1 when the algorithm adds the products of an output in one pass, without partial sums over parts of n_in.
static int is_unsplit(const cublasLtMatmulAlgo_t *algo) {
    int32_t split = 1;
    uint32_t scheme = 0;
    size_t n;
    cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split, sizeof split, &n);
    cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof scheme, &n);
    return split <= 1 && scheme == CUBLASLT_REDUCTION_SCHEME_NONE;
}

static int choose(sl_cuda *c, sl_gemm_plan *p) {
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    cublasLtMatmulPreference_t preference;
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE;
    size_t workspace = SL_LT_WORKSPACE;
    int n = 0, best = -1;
    layouts l = layouts_of(p, PLAN_ROWS, p->n_out);
    if (keep_error(c, cublasLtMatmulPreferenceCreate(&preference), "preference", p->n_out, p->n_in)) return 1;
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes);
    cublasStatus_t rc = cublasLtMatmulAlgoGetHeuristic(c->lt, p->op, l.w, l.x, l.out, l.out, preference, CANDIDATES, found, &n);
    cublasLtMatmulPreferenceDestroy(preference);
    free_layouts(l);
    for (int i = 0; i < n && best < 0; i++)
        if (found[i].state == CUBLAS_STATUS_SUCCESS && is_unsplit(&found[i].algo)) best = i;
    if (keep_error(c, best < 0 && rc == CUBLAS_STATUS_SUCCESS ? CUBLAS_STATUS_NOT_SUPPORTED : rc, "heuristic", p->n_out,
                   p->n_in))
        return 1;
    p->algo = found[best].algo;
    return 0;
}

static sl_gemm_plan *plan_of(sl_cuda *c, int n_out, int n_in, int is_fp32) {
    for (int i = 0; i < c->n_gemms; i++)
        if (c->gemms[i].n_out == n_out && c->gemms[i].n_in == n_in && c->gemms[i].is_fp32 == is_fp32) return &c->gemms[i];
    SL_CHECK(c->n_gemms < SL_MAX_GEMMS);
    sl_gemm_plan *p = &c->gemms[c->n_gemms];
    cublasOperation_t transposed = CUBLAS_OP_T;
    *p = (sl_gemm_plan){.n_out = n_out, .n_in = n_in, .is_fp32 = is_fp32};
    if (keep_error(c, cublasLtMatmulDescCreate(&p->op, CUBLAS_COMPUTE_32F, CUDA_R_32F), "descriptor", n_out, n_in)) return NULL;
    cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    if (choose(c, p)) {
        cublasLtMatmulDescDestroy(p->op);
        return NULL;
    }
    c->n_gemms++;
    return p;
}

void sl_cuda_gemm(sl_cuda *c, const bf16 *w, int n_out, int n_in, const bf16 *x, int n_rows, int is_fp32, int accumulate,
                  void *out, int out_stride) {
    sl_gemm_plan *p = plan_of(c, n_out, n_in, is_fp32);
    if (!p) return;
    const float one = 1, beta = (float)accumulate;
    layouts l = layouts_of(p, n_rows, out_stride);
    keep_error(c,
               cublasLtMatmul(c->lt, p->op, &one, w, l.w, x, l.x, &beta, out, l.out, out, l.out, &p->algo, c->lt_workspace,
                              SL_LT_WORKSPACE, c->stream),
               "product", n_out, n_in);
    free_layouts(l);
}

int sl_cuda_gemm_init(sl_cuda *c, sl_error *err) {
    int rc = sl_cuda_check(cudaMalloc(&c->lt_workspace, SL_LT_WORKSPACE), "cuBLASLt's workspace", err);
    if (!rc && cublasLtCreate(&c->lt) != CUBLAS_STATUS_SUCCESS)
        rc = sl_fail(err, SL_ERR_DEVICE, "cuBLASLt could not be started");
    return rc;
}

void sl_cuda_gemm_free(sl_cuda *c) {
    for (int i = 0; i < c->n_gemms; i++) cublasLtMatmulDescDestroy(c->gemms[i].op);
    if (c->lt) cublasLtDestroy(c->lt);
    cudaFree(c->lt_workspace);
}
