// tests/support/stored_weight.c - see stored_weight.h.
#include "tests/support/stored_weight.h"
#include "tests/test.h"

#include <stdlib.h>

const test_storage test_storages[N_TEST_STORAGES] = {
    {SL_INT4, 32, 0},
    {SL_INT4, 64, 0},
    {SL_INT4, 128, 0},
    {SL_INT4, 256, 0},
    {SL_INT4, 0, 0},
    {SL_INT8, 0, 0},
    {SL_INT8, 128, 0},
    {SL_FP8, 0, 0},
    {SL_FP8, 128, 0},
    {SL_INT4, 32, TEST_ZERO},
    {SL_INT4, 64, TEST_ORDER},
    {SL_INT4, 128, TEST_ZERO},
    {SL_INT4, 128, TEST_ZERO | TEST_ORDER},
    {SL_INT4, 0, TEST_ZERO},
    {SL_INT8, 32, 0},
    {SL_INT8, 16, 0},
    {SL_INT8, 0, TEST_ZERO},
    {SL_INT8, 32, TEST_ZERO | TEST_ORDER},
    {SL_INT8, 256, TEST_ORDER},
    {SL_UINT4, 32, 0},
    {SL_UINT8, 32, 0},
    {SL_IQ4, 32, 0},
    {SL_FP4, 32, 0},
    {SL_FP4, 16, 0},
    {SL_UINT4, 0, 0},
    {SL_INT8, 48, 0},
    {SL_IQ4, 96, 0},
};

static void *filled(size_t n, size_t size) {
    return calloc(n + 1, size);
}

sl_weight test_stored_weight(test_storage kind, int n_rows, int n_cols, uint64_t *seed) {
    const sl_format format = kind.format;
    sl_weight w = {.format = format, .n_rows = n_rows, .n_cols = n_cols, .name = "w"};
    size_t n = (size_t)n_rows * n_cols, n_bytes = sl_format_bytes(format, n_cols) * n_rows;
    uint8_t *data = filled(n_bytes, 1);
    w.data = data;
    if (format == SL_BF16) {
        for (size_t i = 0; i < n; i++) ((bf16 *)data)[i] = sl_f32_to_bf16((float)(2 * test_uniform(seed) - 1));
        return w;
    }
    for (size_t i = 0; i < n_bytes; i++) {
        data[i] = (uint8_t)(256 * test_uniform(seed));
        if (format == SL_FP8 && (data[i] & 0x7f) == 0x7f) data[i] = 0; // NaN
    }
    w.group = kind.group ? kind.group : n_cols, w.scale_rows = 1;
    const size_t n_scales = sl_weight_scales(&w);
    float *scale = filled(n_scales, sizeof *scale), *min = sl_formats[format].has_min ? filled(n_scales, sizeof *min) : NULL;
    int8_t *zero = kind.parts & TEST_ZERO ? filled(n_scales, 1) : NULL;
    int32_t *order = kind.parts & TEST_ORDER ? filled(n_cols, sizeof *order) : NULL;
    for (size_t i = 0; i < n_scales; i++) {
        scale[i] = (float)(0.01 + 0.1 * test_uniform(seed));
        if (min) min[i] = (float)test_normal(seed);
        if (zero) zero[i] = (int8_t)(format == SL_INT4 ? 16 * test_uniform(seed) - 8 : 256 * test_uniform(seed) - 128);
    }
    for (int i = 0; order && i < n_cols; i++) { // shuffled
        int j = (int)(test_uniform(seed) * (i + 1));
        order[i] = order[j], order[j] = i;
    }
    w.scale = scale, w.min = min, w.zero = zero, w.order = order;
    return w;
}

void test_stored_free(sl_weight *w) {
    free((void *)w->data), free((void *)w->scale), free((void *)w->min), free((void *)w->zero), free((void *)w->order);
}

const char *test_stored_name(const sl_weight *w) {
    static char text[100];
    snprintf(text, sizeof text, "%s, groups of %d%s%s", sl_formats[w->format].name, w->group, w->zero ? ", zero points" : "",
             w->order ? ", another order" : "");
    return text;
}
