// backend/cuda/prefill_fp8.c - prefills with weights of fp8 and inputs of fp8 (sl_inputs): which weights have them, and their
// products.
//
// A product rounds the rows of x into scratch memory, brings rows of the packed matrix into plain order in other scratch
// memory, and multiplies. The scratch memory c->rounded has these parts:
//   rows      SL_ROUNDED bytes: rows of x
//   scales    of these rows: one for each row, or for 128 columns of a row
//   blocks    scales of the blocks of the matrix in c->wide
//   tail      outputs of 4 rows
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/cuda_error.h"
#include "backend/cuda/fp8_rows.h"
#include "backend/cuda/packed_linear.h"

enum {
    MOST_ROWS = 16384, // of x at a time
    BLOCK = 128,       // columns, and rows of W, that share a scale
    TAIL_ROWS = 4,     // cuBLASLt multiplies blocks with a multiple of 4 rows of x
    MOST_OUTPUTS = 256 * 1024,
    SCALES_AT = SL_ROUNDED,
    SCALES = (SL_ROUNDED / BLOCK > MOST_ROWS ? SL_ROUNDED / BLOCK : MOST_ROWS) * (int)sizeof(float),
    BLOCKS_AT = SCALES_AT + SCALES,
    BLOCKS = SL_WIDE / BLOCK / BLOCK * 4 * (int)sizeof(float), // a row of W with 1 block has 4 scales
    TAIL_AT = BLOCKS_AT + BLOCKS,
    BYTES = TAIL_AT + TAIL_ROWS * MOST_OUTPUTS * (int)sizeof(float),
};

// ---- which weights ----

static sl_gemm_scales scales_of(sl_inputs inputs) {
    if (inputs == SL_INPUTS_GROUPS) return SL_SCALES_BLOCKS;
    return inputs == SL_INPUTS_PLAIN ? SL_SCALES_NONE : SL_SCALES_ROWS;
}

// The scales of the weight fit to its inputs. Parts of the block are products too, so each weight has whole tiles.
static int fits(const sl_weight *w) {
    if (scales_of(w->inputs) == SL_SCALES_ROWS) return w->group == w->n_cols && w->n_rows % 16 == 0;
    return w->inputs == SL_INPUTS_GROUPS && w->group == BLOCK && w->scale_rows == BLOCK && w->n_rows % BLOCK == 0;
}

// 1: there is an algorithm for each part of a product that multiply_all multiplies at once.
static int has_plans(sl_cuda *c, sl_inputs inputs, int n_out, int n_in, int is_fp32) {
    for (int first = 0, most = sl_cuda_rows_that_fit(SL_WIDE, n_in, 1); first < n_out; first += most)
        if (!sl_cuda_gemm_takes_fp8(c, scales_of(inputs), n_out - first < most ? n_out - first : most, n_in, is_fp32)) return 0;
    return 1;
}

// Products of several matrices are bf16, of one fp32. The last layer multiplies q apart from k and v.
static int takes_fp8(sl_cuda *c, sl_weight *const *weights, int n) {
    int n_out = 0, n_in = weights[0]->n_cols, n_first = weights[0]->n_rows;
    sl_inputs inputs = weights[0]->inputs;
    for (int i = 0; i < n; n_out += weights[i++]->n_rows)
        if (weights[i]->inputs != inputs || !fits(weights[i])) return 0;
    if (n_in > SL_FP8_MOST_COLS || n_out > MOST_OUTPUTS || !has_plans(c, inputs, n_out, n_in, n == 1)) return 0;
    return n < 3 || (has_plans(c, inputs, n_first, n_in, 0) && has_plans(c, inputs, n_out - n_first, n_in, 0));
}

int sl_cuda_settle_inputs(sl_cuda *c, sl_weight *const *weights, int n, sl_error *err) {
    int takes = takes_fp8(c, weights, n);
    float scale = 0;
    for (int i = 0; i < n; i++)
        if (weights[i]->input_scale > scale) scale = weights[i]->input_scale;
    for (int i = 0; i < n; i++) {
        weights[i]->input_scale = scale;
        if (!takes) weights[i]->inputs = SL_INPUTS_PLAIN;
    }
    if (!takes || c->rounded) return 0;
    return sl_cuda_check(cudaMalloc((void **)&c->rounded, BYTES), "scratch memory for activations of fp8", err);
}

// ---- products ----

// Rows of x, rounded, and some rows of w.
static void multiply(sl_cuda *c, const sl_weight *w, const sl_cuda_product *part, int first) {
    sl_cuda_packing k = sl_cuda_packing_of(w);
    sl_cuda_product p = *part;
    p.w = c->wide;
    sl_cuda_packed_fp8_rows(w->data, &k, w->n_cols, first, p.n_out, c->wide, c->stream);
    if (p.scales == SL_SCALES_BLOCKS) {
        float *blocks = (float *)(c->rounded + BLOCKS_AT);
        sl_cuda_packed_block_scales(w->scale, &k, first, p.n_out, blocks, c->stream);
        p.w_scale = blocks;
    } else
        p.w_scale = w->scale + first;
    sl_cuda_gemm(c, &p);
}

// All rows of w with the rows of x that `rows` has.
static void multiply_all(sl_cuda *c, const sl_weight *w, const sl_cuda_product *rows) {
    for (int first = 0, most = sl_cuda_rows_that_fit(SL_WIDE, w->n_cols, 1); first < rows->n_out; first += most) {
        sl_cuda_product part = *rows;
        part.n_out = rows->n_out - first < most ? rows->n_out - first : most;
        part.out = sl_cuda_output_at(rows, 0, first);
        multiply(c, w, &part, first);
    }
}

// Up to 3 rows of x in groups: the product has 4 rows, with outputs in scratch memory.
static void multiply_tail(sl_cuda *c, const sl_weight *w, const sl_cuda_product *rows) {
    sl_cuda_product tail = *rows;
    size_t size = rows->is_fp32 ? sizeof(float) : sizeof(bf16), width = rows->n_out * size, pitch = rows->out_stride * size;
    tail.n_rows = TAIL_ROWS, tail.out = c->rounded + TAIL_AT, tail.out_stride = rows->n_out;
    if (rows->accumulate) sl_cuda_copy(&c->base, tail.out, width, rows->out, pitch, width, rows->n_rows);
    sl_cuda_round_groups(rows->x, rows->n_rows, w->n_cols, TAIL_ROWS, c->rounded, (float *)(c->rounded + SCALES_AT), c->stream);
    tail.x = c->rounded;
    multiply_all(c, w, &tail);
    sl_cuda_copy(&c->base, rows->out, pitch, tail.out, width, width, rows->n_rows);
}

void sl_cuda_prefill_fp8(sl_cuda *c, const sl_weight *w, const sl_cuda_product *product) {
    float *scales = (float *)(c->rounded + SCALES_AT);
    int most = sl_cuda_rows_that_fit(SL_ROUNDED, w->n_cols, 1), is_groups = w->inputs == SL_INPUTS_GROUPS;
    if (most > MOST_ROWS) most = MOST_ROWS;
    for (int r = 0, n; r < product->n_rows; r += n) {
        sl_cuda_product rows = *product;
        const bf16 *x = (const bf16 *)product->x + (size_t)r * w->n_cols;
        n = product->n_rows - r < most ? product->n_rows - r : most;
        if (is_groups && n >= TAIL_ROWS) n -= n % TAIL_ROWS;
        rows.x = x, rows.n_rows = n, rows.out = sl_cuda_output_at(product, r, 0);
        rows.scales = scales_of(w->inputs), rows.x_scale = scales;
        if (is_groups && n < TAIL_ROWS) {
            multiply_tail(c, w, &rows);
            continue;
        }
        if (is_groups)
            sl_cuda_round_groups(x, n, w->n_cols, n, c->rounded, scales, c->stream);
        else
            sl_cuda_round_rows(x, n, w->n_cols, w->inputs == SL_INPUTS_STATIC ? w->input_scale : 0, c->rounded, scales,
                               c->stream);
        rows.x = c->rounded;
        multiply_all(c, w, &rows);
    }
}
