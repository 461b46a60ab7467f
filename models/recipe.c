// models/recipe.c - see recipe.h.
#include "models/recipe.h"
#include "base/thread_pool.h"
#include "models/gguf_tensors.h"
#include "models/quantise.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

// ---- memory: data, scales, zero points or minimums, order ----

static size_t padded(size_t n) {
    return (n + 63) / 64 * 64;
}

static size_t data_bytes(const sl_recipe *r, const sl_weight *w) {
    return r->making == SL_MADE_STORED && !r->index ? 0 : (size_t)w->n_rows * sl_weight_row_bytes(w);
}

size_t sl_recipe_bytes(const sl_recipe *r, const sl_weight *w) {
    if (r->making == SL_MADE_NOT) return 0;
    size_t n = sl_weight_scales(w);
    return padded(data_bytes(r, w)) + padded(n * sizeof *w->scale) + (r->zero ? padded(n) : 0) +
           (sl_formats[w->format].has_min ? padded(n * sizeof *w->min) : 0) +
           (r->index ? padded((size_t)w->n_cols * sizeof *w->order) : 0);
}

size_t sl_recipe_read_bytes(const sl_recipe *r, const sl_weight *w) {
    return sl_weight_bytes(w) + (r->zero && !w->data ? sl_weight_scales(w) : 0) +
           (r->index && !w->data ? (size_t)w->n_cols * sizeof *w->order : 0);
}

// ---- numbers of tensors ----

float sl_tensor_number(const sl_tensor *t, size_t i) {
    const uint8_t *bytes = t->data;
    uint16_t half;
    float x;
    if (!strcmp(t->dtype_name, "F32")) {
        memcpy(&x, bytes + sizeof x * i, sizeof x);
        return x;
    }
    if (!strcmp(t->dtype_name, "F8_E4M3")) return sl_fp8_to_f32(bytes[i]);
    if (!strcmp(t->dtype_name, "U8")) return bytes[i] == 255 ? NAN : ldexpf(1, bytes[i] - 127); // E8M0
    memcpy(&half, bytes + sizeof half * i, sizeof half);
    return !strcmp(t->dtype_name, "BF16") ? sl_bf16_to_f32(half) : sl_f16_to_f32(half);
}

static int is_transposed(const sl_recipe *r) {
    return r->making == SL_MADE_GPTQ || r->making == SL_MADE_AWQ;
}

static int make_scales(const sl_recipe *r, const sl_weight *w, float *scale, sl_error *err) {
    size_t n = sl_weight_scales(w), groups = (size_t)sl_weight_groups(w), rows = n / groups;
    float global = r->global ? sl_tensor_number(r->global, 0) : 1;
    if (!(global > 0 && isfinite(global)))
        return sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s is %g, expected a finite number above 0", r->global->file,
                       r->global->name, (double)global);
    for (size_t i = 0; i < n; i++) {
        float x = sl_tensor_number(r->scale, is_transposed(r) ? i % groups * rows + i / groups : i);
        scale[i] = r->global_is == SL_GLOBAL_DIVISOR ? x / global : x * global;
        if (!isfinite(scale[i]))
            return sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s: number %zu is %g, expected a finite number", r->scale->file,
                           r->scale->name, i, (double)scale[i]);
    }
    return 0;
}

// Position in a word of AWQ of row n of 8.
static const int awq_nibble[8] = {0, 4, 1, 5, 2, 6, 3, 7};

// The zero point of row `row` and group g, as sl_weight has it.
static int zero_of(const sl_recipe *r, const sl_weight *w, size_t row, size_t g) {
    size_t groups = (size_t)sl_weight_groups(w), bits = w->format == SL_INT4 ? 4 : 8, n = (size_t)w->n_rows;
    const uint32_t *words = r->zero->data;
    if (!strcmp(r->zero->dtype_name, "I8")) return ((const int8_t *)r->zero->data)[row * groups + g];
    if (r->making == SL_MADE_GPTQ)
        return (int)((words[g * (n / 8) + row / 8] + (r->zero_offset ? 0x11111111u : 0)) >> 4 * (row % 8) & 15) - 8;
    if (r->making == SL_MADE_AWQ) return (int)(words[g * (n / 8) + row / 8] >> 4 * awq_nibble[row % 8] & 15) - 8;
    size_t bit = row * bits; // packed along the rows
    return (int)(words[bit / 32 * groups + g] >> bit % 32 & ((1u << bits) - 1)) - (1 << (bits - 1));
}

// Returns 0 when every zero point is 0.
static int make_zeros(const sl_recipe *r, const sl_weight *w, int8_t *zero) {
    size_t n = sl_weight_scales(w), groups = (size_t)sl_weight_groups(w);
    int any = 0;
    for (size_t i = 0; i < n; i++) {
        zero[i] = (int8_t)zero_of(r, w, i / groups, i % groups);
        any |= zero[i];
    }
    return any;
}

// order[i]: the columns of group 0, then those of group 1, and so on. *is_other: 0 when this is the order of the matrix.
static int make_order(const sl_recipe *r, const sl_weight *w, int32_t *order, int *is_other, sl_error *err) {
    const int32_t *index = r->index->data;
    int at = 0, groups = sl_weight_groups(w);
    *is_other = 0;
    for (int i = 0; i < w->n_cols; i++)
        if (index[i] < 0 || index[i] >= groups)
            return sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s: number %d is %d, expected a group from 0 to %d", r->index->file,
                           r->index->name, i, (int)index[i], groups - 1);
    for (int g = 0; g < groups; g++) {
        int first = at;
        for (int i = 0; i < w->n_cols; i++)
            if (index[i] == g) *is_other |= at != i, order[at++] = i;
        if (at - first != w->group)
            return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: tensor %s gives %d columns to group %d, expected %d", r->index->file,
                           r->index->name, at - first, g, w->group);
    }
    return 0;
}

// ---- data ----

typedef struct data_call {
    const sl_recipe *r;
    const sl_weight *w;
    uint8_t *to;
    atomic_int has_nan;
} data_call;

// Eight rows of a matrix [n_cols / 8][n_rows] or [n_cols][n_rows / 8] of words.
static void unpack_rows(void *ctx, size_t piece, int thread) {
    (void)thread;
    const data_call *c = ctx;
    const uint32_t *words = c->r->q->data;
    size_t n = (size_t)c->w->n_rows, row_bytes = sl_weight_row_bytes(c->w);
    for (int i = 0; i < c->w->n_cols; i++) {
        size_t k = (size_t)(c->w->order ? c->w->order[i] : i);
        for (size_t j = 0; j < 8; j++) {
            size_t row = piece * 8 + j;
            unsigned u = c->r->making == SL_MADE_GPTQ ? words[k / 8 * n + row] >> 4 * (k % 8) & 15
                                                      : words[k * (n / 8) + piece] >> 4 * awq_nibble[j] & 15;
            sl_nibble_put(c->to + row * row_bytes, i, u);
        }
    }
}

// A row of weight_packed: bytes of q + 128, or nibbles of q + 8 in another order of columns.
static void copy_row(void *ctx, size_t row, int thread) {
    (void)thread;
    const data_call *c = ctx;
    size_t row_bytes = sl_weight_row_bytes(c->w);
    const uint8_t *from = (const uint8_t *)c->r->q->data + row * row_bytes;
    uint8_t *to = c->to + row * row_bytes;
    for (int i = 0; i < c->w->n_cols; i++) {
        int k = c->w->order ? c->w->order[i] : i;
        if (c->w->format == SL_INT8)
            to[i] = from[k] ^ 128;
        else
            sl_nibble_put(to, i, from[k / 2] >> 4 * (k % 2) & 15u);
    }
}

static void find_nan(void *ctx, size_t row, int thread) {
    (void)thread;
    data_call *c = ctx;
    const uint8_t *from = (const uint8_t *)c->r->q->data + row * (size_t)c->w->n_cols;
    int found = 0;
    for (int i = 0; i < c->w->n_cols; i++) found |= (from[i] & 127) == 127;
    if (found) c->has_nan = 1;
}

static int make_data(const sl_recipe *r, sl_weight *w, char *memory, sl_error *err) {
    data_call c = {.r = r, .w = w, .to = (uint8_t *)memory};
    w->data = memory;
    if (is_transposed(r)) {
        sl_parallel((size_t)w->n_rows / 8, unpack_rows, &c);
    } else if (r->making == SL_MADE_OFFSET || w->order) {
        sl_parallel((size_t)w->n_rows, copy_row, &c);
    } else {
        w->data = r->q->data;
        if (w->format == SL_FP8) sl_parallel((size_t)w->n_rows, find_nan, &c);
    }
    return c.has_nan ? sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s: a number is NaN", r->q->file, r->q->name) : 0;
}

int sl_recipe_make(const sl_recipe *r, sl_weight *w, char *memory, sl_error *err) {
    size_t n = sl_weight_scales(w), at = padded(data_bytes(r, w));
    float *scale = (float *)(memory + at);
    int8_t *zero = (int8_t *)(memory + (at += padded(n * sizeof *scale)));
    int32_t *order = (int32_t *)(memory + at + (r->zero ? padded(n) : 0));
    int rc = 0, is_other = 0;
    w->scale = scale;
    if (r->making == SL_MADE_ROUNDED) {
        w->data = memory;
        return sl_quantise(&r->plain, w, err);
    }
    if (r->making == SL_MADE_BLOCKS) {
        float *min = sl_formats[w->format].has_min ? (float *)zero : NULL; // a weight has zero points or minimums, not both
        w->data = memory, w->min = min;
        return sl_gguf_split(r->q, (uint8_t *)memory, scale, min, err);
    }
    rc = make_scales(r, w, scale, err);
    if (!rc && r->zero && make_zeros(r, w, zero)) w->zero = zero;
    if (!rc && r->index) rc = make_order(r, w, order, &is_other, err);
    if (is_other) w->order = order;
    return rc ? rc : make_data(r, w, memory, err);
}
