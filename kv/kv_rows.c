// kv/kv_rows.c - see kv_rows.h.
#include "kv/kv_rows.h"

#include <math.h>
#include <string.h>

// ---- rounding ----

// The scale of a row whose largest number is stored as `most`. given: the scale of a checkpoint; 0: none.
static float scale_of(const float *x, int n, float most, float given) {
    float largest = 0, zero = 0; // zero: NaN if a number is not finite
    for (int i = 0; i < n; i++) largest = fmaxf(largest, fabsf(x[i])), zero += 0 * x[i];
    float scale = given > 0 ? given : largest / most;
    return isnan(zero) ? NAN : scale > 0 ? scale : 1;
}

void sl_kv_store(void *blocks, sl_format f, int head_dim, size_t block, int row, const float *x, float given) {
    char *at = (char *)blocks + block * sl_kv_block_bytes(f, head_dim);
    float *scales = (float *)(at + SL_PAGE * sl_format_bytes(f, (size_t)head_dim));
    bf16 *halves = (bf16 *)at + (size_t)row * head_dim;
    uint8_t *bytes = (uint8_t *)at + (size_t)row * head_dim;
    if (f == SL_BF16) {
        for (int i = 0; i < head_dim; i++) halves[i] = sl_f32_to_bf16(x[i]);
        return;
    }
    float most = f == SL_FP8 ? 448 : 127, scale = scales[row] = scale_of(x, head_dim, most, given);
    for (int i = 0; i < head_dim; i++) {
        float q = isnan(scale) ? 0 : x[i] / scale;
        q = q > most    ? most
            : q < -most ? -most
                        : q; // larger by the rounding of the scale, or by more if the scale is given or subnormal
        bytes[i] = f == SL_FP8 ? sl_f32_to_fp8(q) : (uint8_t)(int8_t)rintf(q);
    }
}

void sl_kv_widen(sl_kv_run run, int head_dim, int n_rows, float *out) {
    for (int j = 0; j < n_rows; j++, out += head_dim) {
        sl_kv_row row = sl_kv_row_at(run, head_dim, j);
        for (int i = 0; i < head_dim; i++) out[i] = sl_kv_number(row, run.format, i);
    }
}

// ---- names ----

int sl_kv_formats_parse(const char *dtype, const char *k, const char *v, sl_kv_formats *out, sl_error *err) {
    static const struct {
        const char *name;
        sl_format format;
    } names[] = {{"auto", SL_BF16},    {"bf16", SL_BF16}, {"bfloat16", SL_BF16}, {"fp8", SL_FP8},
                 {"fp8_e4m3", SL_FP8}, {"int8", SL_INT8}, {"q8_0", SL_INT8}};
    const char *const texts[] = {dtype, k, v};
    *out = (sl_kv_formats){SL_BF16, SL_BF16};
    for (int i = 0; i < 3; i++) { // later options replace earlier ones
        size_t j = 0, n = sizeof names / sizeof *names;
        if (!texts[i] || (i > 0 && !strcmp(texts[i], "auto"))) continue;
        while (j < n && strcmp(names[j].name, texts[i])) j++;
        if (j == n && i == 0)
            return sl_fail(err, SL_ERR_ARG, "{kv_cache_dtype} %.40s: expected auto, bf16, fp8, int8 or q8_0", dtype);
        if (j == n && i == 1)
            return sl_fail(err, SL_ERR_ARG, "{cache_type_k} %.40s: expected auto, bf16, fp8, int8 or q8_0", k);
        if (j == n) return sl_fail(err, SL_ERR_ARG, "{cache_type_v} %.40s: expected auto, bf16, fp8, int8 or q8_0", v);
        if (i != 2) out->k = names[j].format;
        if (i != 1) out->v = names[j].format;
    }
    return 0;
}
