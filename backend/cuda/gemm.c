// backend/cuda/gemm.c - the linear layers of prefill: cuBLASLt, with one fixed algorithm for each matrix.
//
// out [n_rows][n_out] = x [n_rows][n_in] W^T, in bf16 or fp8 (e4m3) with fp32 sums. cuBLASLt's heuristic chooses an algorithm
// by the number of rows, and the algorithm decides the order of each sum. So this file chooses once for each matrix, for
// PLAN_ROWS rows, among the algorithms that do not split n_in. A token then has equal bits whether its prompt is computed whole
// or in chunks. The choice does not use timings, so every run makes the same choice.
//
// cuBLASLt's matrices are column-major: for cuBLASLt, our row-major x [n_rows][n_in] is an n_in x n_rows matrix, and W is an
// n_in x n_out matrix that the operation transposes. The caller makes the GPU of the backend the current device (sl_cuda_use).
//
// A product of fp8 multiplies output (r, o) by the scale of row r of x and the scale of row o of W ("outer vectors"), or each
// sum of 128 products by the scales of their blocks. cuBLASLt does this since version 12.9, and only on GPUs of compute
// capability 9.0, with bf16 and fp32 outputs.
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/cuda_error.h"

#include <stdio.h>
#include <string.h>

enum {
    PLAN_ROWS = 2048,
    CANDIDATES = 16,
    // Hopper's tensor cores add products of fp8 with 14 bits or so. 0: cuBLASLt adds their sums to fp32 registers after every
    // few instructions. 1 (CUBLASLT_MATMUL_DESC_FAST_ACCUM): it does not, which is faster and less exact.
    FAST_SUMS = 0
};

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
    const cudaDataType in = p->scales ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
    return (layouts){layout(in, p->n_in, p->n_out, p->n_in), layout(in, p->n_in, n_rows, p->n_in),
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

// Sets p->algo. CUBLAS_STATUS_NOT_SUPPORTED: cuBLASLt has no algorithm without a split.
static cublasStatus_t choose(sl_cuda *c, sl_gemm_plan *p) {
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    cublasLtMatmulPreference_t preference;
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE;
    size_t workspace = SL_LT_WORKSPACE;
    int n = 0, best = -1;
    cublasStatus_t rc = cublasLtMatmulPreferenceCreate(&preference);
    if (rc != CUBLAS_STATUS_SUCCESS) return rc;
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes);
    layouts l = layouts_of(p, PLAN_ROWS, p->n_out);
    rc = cublasLtMatmulAlgoGetHeuristic(c->lt, p->op, l.w, l.x, l.out, l.out, preference, CANDIDATES, found, &n);
    cublasLtMatmulPreferenceDestroy(preference);
    free_layouts(l);
    if (rc != CUBLAS_STATUS_SUCCESS) return rc;
    for (int i = 0; i < n && best < 0; i++)
        if (found[i].state == CUBLAS_STATUS_SUCCESS && is_unsplit(&found[i].algo)) best = i;
    if (best < 0) return CUBLAS_STATUS_NOT_SUPPORTED;
    p->algo = found[best].algo;
    return CUBLAS_STATUS_SUCCESS;
}

#if CUBLAS_VERSION >= 120900
// w, x: device memory
static void set_scales(cublasLtMatmulDesc_t op, sl_gemm_scales scales, const float *w, const float *x) {
    int is_rows = scales == SL_SCALES_ROWS;
    const int32_t of_w = is_rows ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F : CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    const int32_t of_x = is_rows ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    const int8_t fast = is_rows && FAST_SUMS;
    cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &of_w, sizeof of_w);
    cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &of_x, sizeof of_x);
    cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &w, sizeof w);
    cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &x, sizeof x);
    cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast);
}
static int has_scales(const sl_cuda *c) {
    return c->props.major == 9 && c->props.minor == 0 && cublasLtGetVersion() >= 120900;
}
#else
static void set_scales(cublasLtMatmulDesc_t op, sl_gemm_scales scales, const float *w, const float *x) {
    (void)op, (void)scales, (void)w, (void)x;
    SL_CHECK(!"has_scales");
}
static int has_scales(const sl_cuda *c) {
    (void)c;
    return 0;
}
#endif

// Finds or makes the plan of a product. Its status is not CUBLAS_STATUS_SUCCESS if cuBLASLt cannot compute the product.
static sl_gemm_plan *plan_of(sl_cuda *c, int n_out, int n_in, int is_fp32, sl_gemm_scales scales) {
    for (int i = 0; i < c->n_gemms; i++) {
        sl_gemm_plan *p = &c->gemms[i];
        if (p->n_out == n_out && p->n_in == n_in && p->is_fp32 == is_fp32 && p->scales == scales) return p;
    }
    SL_CHECK(c->n_gemms < SL_MAX_GEMMS);
    sl_gemm_plan *p = &c->gemms[c->n_gemms++];
    cublasOperation_t transposed = CUBLAS_OP_T;
    *p = (sl_gemm_plan){.n_out = n_out, .n_in = n_in, .is_fp32 = is_fp32, .scales = scales};
    p->status = cublasLtMatmulDescCreate(&p->op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (p->status != CUBLAS_STATUS_SUCCESS) return p;
    cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    if (scales) set_scales(p->op, scales, c->lt_workspace, c->lt_workspace); // any memory: each product sets its own scales
    p->status = choose(c, p);
    return p;
}

int sl_cuda_gemm_takes_fp8(sl_cuda *c, sl_gemm_scales scales, int n_out, int n_in, int is_fp32) {
    // cuBLASLt wants rows of W and of x, and rows of outputs, aligned to 16 bytes. Blocks must be whole.
    int multiple = scales == SL_SCALES_BLOCKS ? 128 : 16;
    if (!has_scales(c) || n_out % multiple || n_in % multiple) return 0;
    return plan_of(c, n_out, n_in, is_fp32, scales)->status == CUBLAS_STATUS_SUCCESS;
}

void sl_cuda_gemm(sl_cuda *c, const sl_cuda_product *a) {
    sl_gemm_plan *p = plan_of(c, a->n_out, a->n_in, a->is_fp32, a->scales);
    if (keep_error(c, p->status, "heuristic", a->n_out, a->n_in)) return;
    const float one = 1, beta = (float)a->accumulate;
    layouts l = layouts_of(p, a->n_rows, a->out_stride);
    if (p->scales) set_scales(p->op, p->scales, a->w_scale, a->x_scale);
    keep_error(c,
               cublasLtMatmul(c->lt, p->op, &one, a->w, l.w, a->x, l.x, &beta, a->out, l.out, a->out, l.out, &p->algo,
                              c->lt_workspace, SL_LT_WORKSPACE, c->stream),
               "product", a->n_out, a->n_in);
    free_layouts(l);
}

int sl_cuda_rows_that_fit(size_t size, int n_in, size_t number_size) {
    enum { MULTIPLE = 256 };
    int most = (int)(size / number_size / n_in / MULTIPLE * MULTIPLE);
    SL_CHECK(most > 0);
    return most;
}

char *sl_cuda_output_at(const sl_cuda_product *p, size_t row, int col) {
    return (char *)p->out + (row * p->out_stride + col) * (p->is_fp32 ? sizeof(float) : sizeof(bf16));
}

int sl_cuda_gemm_init(sl_cuda *c, sl_error *err) {
    int rc = sl_cuda_check(cudaMalloc(&c->lt_workspace, SL_LT_WORKSPACE), "cuBLASLt's workspace", err);
    if (!rc && cublasLtCreate(&c->lt) != CUBLAS_STATUS_SUCCESS)
        rc = sl_fail(err, SL_ERR_DEVICE, "cuBLASLt could not be started");
    return rc;
}

void sl_cuda_gemm_free(sl_cuda *c) {
    for (int i = 0; i < c->n_gemms; i++)
        if (c->gemms[i].op) cublasLtMatmulDescDestroy(c->gemms[i].op);
    if (c->lt) cublasLtDestroy(c->lt);
    cudaFree(c->lt_workspace);
}
