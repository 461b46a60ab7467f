// models/quant_bind.c - see quant_bind.h.
#include "models/quant_bind.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct binding {
    const sl_tensors *tensors;
    const char *module;
    int n_rows, n_cols, groups; // groups: scales of a row
    sl_error *err;
} binding;

// ---- one tensor ----

static const sl_tensor *find(const binding *b, const char *part) {
    char name[300];
    snprintf(name, sizeof name, "%.200s.%.80s", b->module, part);
    return sl_tensors_find(b->tensors, name);
}

static int is_among(const char *dtype, const char *dtypes) { // dtypes: "BF16, F16"
    size_t n = strlen(dtype);
    for (const char *p = dtypes; (p = strstr(p, dtype)) != NULL; p++)
        if ((p == dtypes || p[-1] == ' ') && (!p[n] || p[n] == ',')) return 1;
    return 0;
}

static int wrong_shape(const sl_tensor *t, const char *expected, sl_error *err) {
    char got[128];
    sl_format_dims(t->dims, t->n_dims, got, sizeof got);
    return sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s has shape %s, expected %s", t->file, t->name, got, expected);
}

// The file of a part, for messages; of a part that is missing, the only file.
static const char *file_of(const binding *b, const char *part) {
    const sl_tensor *t = find(b, part);
    return t ? t->file : sl_tensors_place(b->tensors);
}

static int need(const binding *b, const char *part, const char *dtypes, const sl_tensor **out) {
    *out = find(b, part);
    if (!*out)
        return sl_fail(b->err, SL_ERR_FORMAT, "%s: tensor %s.%s is missing, which the quantisation of the layer needs",
                       file_of(b, part), b->module, part);
    if (is_among((*out)->dtype_name, dtypes)) return 0;
    return sl_fail(b->err, SL_ERR_UNSUPPORTED, "%s: tensor %s has dtype %s, expected %s", (*out)->file, (*out)->name,
                   (*out)->dtype_name, dtypes);
}

static int need_shape(const binding *b, const char *part, const char *dtypes, int64_t rows, int64_t cols,
                      const sl_tensor **out) {
    const int64_t want[2] = {rows, cols};
    char expected[64];
    int rc = need(b, part, dtypes, out), rank = cols ? 2 : 1;
    if (rc || ((*out)->n_dims == rank && !memcmp((*out)->dims, want, (size_t)rank * sizeof *want))) return rc;
    sl_format_dims(want, rank, expected, sizeof expected);
    return wrong_shape(*out, expected, b->err);
}

static int is_one_number(const sl_tensor *t) {
    return t->n_dims == 0 || (t->n_dims <= 2 && t->dims[0] == 1 && (t->n_dims == 1 || t->dims[1] == 1));
}

#define SCALE_DTYPES "BF16, F16, F32"

// The scale, and its spread: group and scale_rows of the weight.
static int bind_scale(const binding *b, const char *part, sl_quant_strategy strategy, const sl_weight *w, sl_recipe *r) {
    int64_t rows = (w->n_rows + w->scale_rows - 1) / w->scale_rows;
    if (strategy == SL_QUANT_TENSOR) {
        int rc = need(b, part, SCALE_DTYPES, &r->scale);
        return rc || is_one_number(r->scale) ? rc : wrong_shape(r->scale, "[1]", b->err);
    }
    const sl_tensor *t = find(b, part);
    if (t && strategy == SL_QUANT_CHANNEL && t->n_dims == 1) return need_shape(b, part, SCALE_DTYPES, rows, 0, &r->scale);
    return need_shape(b, part, SCALE_DTYPES, rows, b->groups, &r->scale);
}

// The scale of static inputs.
static int bind_input_scale(const binding *b, sl_weight *w) {
    const sl_tensor *t;
    int rc = need(b, "input_scale", SCALE_DTYPES, &t);
    if (rc) return rc;
    if (!is_one_number(t)) return wrong_shape(t, "[1]", b->err);
    w->input_scale = sl_tensor_number(t, 0);
    if (w->input_scale >= 0x1p-126f && isfinite(w->input_scale)) return 0;
    return sl_fail(b->err, SL_ERR_FORMAT, "%s: tensor %s is %g, expected a finite number of at least 2^-126", t->file, t->name,
                   (double)w->input_scale);
}

// Scales and zero points of activations that Sleigh does not use.
static int bind_activations(const binding *b, sl_recipe *r) {
    static const char *const parts[] = {"input_scale", "input_zero_point", "input_global_scale"};
    for (int i = 0; i < 3; i++) {
        const sl_tensor *t = find(b, parts[i]);
        if (t && !is_one_number(t)) return wrong_shape(t, "[1]", b->err);
        r->unused[i] = t;
    }
    return 0;
}

// ---- layouts ----

// part: the tensor of the packed numbers
static int set_spread(const binding *b, const sl_quant_scheme *s, const char *part, sl_weight *w) {
    w->group = s->strategy == SL_QUANT_GROUP ? s->group : s->strategy == SL_QUANT_BLOCK ? s->block[1] : w->n_cols;
    w->scale_rows = s->strategy == SL_QUANT_TENSOR ? w->n_rows : s->strategy == SL_QUANT_BLOCK ? s->block[0] : 1;
    if (w->group > w->n_cols && s->strategy == SL_QUANT_BLOCK) w->group = w->n_cols;
    if (s->strategy != SL_QUANT_GROUP || w->n_cols % w->group == 0) return 0;
    return sl_fail(b->err, SL_ERR_FORMAT,
                   "%s: tensor %s.%s is of a matrix of %d columns, expected a multiple of the group of %d", file_of(b, part),
                   b->module, part, w->n_cols, w->group);
}

static int bind_bytes(binding *b, const sl_quant_scheme *s, sl_weight *w, sl_recipe *r) {
    int rc = need_shape(b, "weight", s->format == SL_FP8 ? "F8_E4M3" : "I8", w->n_rows, w->n_cols, &r->q);
    if (!rc) rc = bind_scale(b, s->scale_name, s->strategy, w, r);
    const sl_tensor *scale = r->scale;
    if (!rc && s->has_zero)
        rc = need_shape(b, "weight_zero_point", "I8", scale->n_dims ? scale->dims[0] : 1,
                        scale->n_dims > 1 ? scale->dims[1] : 0, &r->zero);
    r->making = SL_MADE_STORED;
    return rc;
}

// The tensor weight_shape holds the shape of the unpacked matrix. The file may not align its numbers.
static int check_stored_shape(const binding *b, sl_recipe *r) {
    const sl_tensor **t = &r->unused[3];
    int rc = need_shape(b, "weight_shape", "I64, I32", 2, 0, t);
    if (rc) return rc;
    int64_t shape[2] = {0};
    int32_t small[2];
    if (!strcmp((*t)->dtype_name, "I64")) {
        memcpy(shape, (*t)->data, sizeof shape);
    } else {
        memcpy(small, (*t)->data, sizeof small);
        shape[0] = small[0], shape[1] = small[1];
    }
    if (shape[0] == b->n_rows && shape[1] == b->n_cols) return 0;
    return sl_fail(b->err, SL_ERR_FORMAT, "%s: tensor %s is [%lld, %lld], expected [%d, %d]", (*t)->file, (*t)->name,
                   (long long)shape[0], (long long)shape[1], b->n_rows, b->n_cols);
}

static int bind_packed(binding *b, const sl_quant_scheme *s, sl_weight *w, sl_recipe *r) {
    int bits = s->format == SL_INT4 ? 4 : 8, values = 32 / bits;
    if (w->n_cols % values)
        return sl_fail(b->err, SL_ERR_UNSUPPORTED, "%s: tensor %s.weight_packed: %d columns, supported are multiples of %d",
                       file_of(b, "weight_packed"), b->module, w->n_cols, values);
    int rc = need_shape(b, "weight_packed", "I32", w->n_rows, w->n_cols / values, &r->q);
    if (!rc) rc = check_stored_shape(b, r);
    if (!rc) rc = bind_scale(b, "weight_scale", s->strategy, w, r);
    if (!rc && s->has_zero && s->strategy == SL_QUANT_TENSOR)
        rc = sl_fail(b->err, SL_ERR_UNSUPPORTED, "%s: tensor %s.weight_packed: zero points of a whole tensor are not supported",
                     file_of(b, "weight_packed"), b->module);
    if (!rc && s->has_zero)
        rc = need_shape(b, "weight_zero_point", "I32", (w->n_rows + values - 1) / values, b->groups, &r->zero);
    if (!rc && s->has_index) rc = need_shape(b, "weight_g_idx", "I32", w->n_cols, 0, &r->index);
    r->making = bits == 4 ? SL_MADE_STORED : SL_MADE_OFFSET;
    return rc;
}

// AWQ and GPTQ: both dimensions are packed somewhere, so they must be multiples of 8.
static int bind_transposed(binding *b, const sl_quant_scheme *s, sl_weight *w, sl_recipe *r) {
    int is_awq = s->layout == SL_QUANT_AWQ, n = w->n_rows, k = w->n_cols;
    if (n % 8 || k % 8)
        return sl_fail(b->err, SL_ERR_UNSUPPORTED, "%s: tensor %s.qweight: the layer is [%d, %d], supported are multiples of 8",
                       file_of(b, "qweight"), b->module, n, k);
    int rc = need_shape(b, "qweight", "I32", is_awq ? k : k / 8, is_awq ? n / 8 : n, &r->q);
    if (!rc) rc = need_shape(b, "scales", SCALE_DTYPES, b->groups, n, &r->scale);
    if (!rc) rc = need_shape(b, "qzeros", "I32", b->groups, n / 8, &r->zero);
    if (!rc && !is_awq) rc = need_shape(b, "g_idx", "I32", k, 0, &r->index);
    r->making = is_awq ? SL_MADE_AWQ : SL_MADE_GPTQ;
    r->zero_offset = s->zero_offset;
    return rc;
}

// NVFP4 has a scale of the tensor and e4m3 scales; MXFP4 has E8M0 scales.
static int bind_fp4(binding *b, const sl_quant_scheme *s, sl_weight *w, sl_recipe *r) {
    int rc = need_shape(b, s->q_name, "U8", w->n_rows, w->n_cols / 2, &r->q);
    if (!rc) rc = need_shape(b, "weight_scale", s->global ? "F8_E4M3" : "U8", w->n_rows, b->groups, &r->scale);
    r->making = SL_MADE_STORED;
    r->global_is = s->global;
    if (rc || !s->global) return rc;
    rc = need(b, s->global == SL_GLOBAL_DIVISOR ? "weight_global_scale" : "weight_scale_2", "F32", &r->global);
    return rc || is_one_number(r->global) ? rc : wrong_shape(r->global, "[1]", b->err);
}

int sl_quant_bind(const sl_quant_scheme *scheme, const sl_tensors *tensors, const char *module, int n_rows, int n_cols,
                  sl_weight *w, sl_recipe *recipe, sl_error *err) {
    static const struct {
        const char *part; // the packed numbers; NULL: scheme->q_name
        int (*bind)(binding *, const sl_quant_scheme *, sl_weight *, sl_recipe *);
    } layouts[] = {[SL_QUANT_BYTES] = {"weight", bind_bytes},
                   [SL_QUANT_PACKED] = {"weight_packed", bind_packed},
                   [SL_QUANT_GPTQ] = {"qweight", bind_transposed},
                   [SL_QUANT_AWQ] = {"qweight", bind_transposed},
                   [SL_QUANT_FP4] = {NULL, bind_fp4}};
    binding b = {.tensors = tensors, .module = module, .n_rows = n_rows, .n_cols = n_cols, .err = err};
    *recipe = (sl_recipe){0};
    *w = (sl_weight){.format = scheme->format, .n_rows = n_rows, .n_cols = n_cols, .inputs = scheme->inputs};
    const char *part = layouts[scheme->layout].part;
    int rc = set_spread(&b, scheme, part ? part : scheme->q_name, w);
    b.groups = sl_weight_groups(w);
    if (!rc) rc = layouts[scheme->layout].bind(&b, scheme, w, recipe);
    if (!rc && w->inputs == SL_INPUTS_STATIC) rc = bind_input_scale(&b, w);
    if (!rc) rc = bind_activations(&b, recipe);
    if (!rc) w->name = recipe->q->name;
    return rc;
}
