// backend/weight.c - see weight.h.
#include "backend/weight.h"

#include <math.h>

size_t sl_weight_bytes(const sl_weight *w) {
    size_t scales = sl_weight_scales(w);
    return (size_t)w->n_rows * sl_weight_row_bytes(w) + scales * sizeof *w->scale + (w->zero ? scales * sizeof *w->zero : 0) +
           (sl_formats[w->format].has_min ? scales * sizeof *w->min : 0) +
           (w->order ? (size_t)w->n_cols * sizeof *w->order : 0);
}

// Shifted left, the bits of e4m3 are bits of f16 with a bias of 15 in place of 7: 2^-8 times the number.
float sl_fp8_to_f32(uint8_t x) {
    return (x & 127) == 127 ? NAN : 256 * sl_f16_to_f32((f16)((x & 128) << 8 | (x & 127) << 7));
}

// Without branches, so that a compiler makes vector code of a loop.
uint8_t sl_f32_to_fp8(float x) {
    float size = fabsf(x), most = size < 448 ? size : 448, small = most + 0x1p14f; // below 2^-6 the sum rounds to 2^-9
    uint32_t u, v, w;
    memcpy(&u, &x, 4), memcpy(&v, &small, 4), memcpy(&w, &most, 4);
    uint32_t normal = (w - 0x3c000000 + 0x7ffff + (w >> 20 & 1)) >> 20; // the bias is 7 in place of 127
    uint32_t out = w < 0x3c800000 ? v - 0x46800000 : normal;
    out = (u & 0x7fffffff) > 0x7f800000 ? 127 : out;
    return (uint8_t)(out | (u >> 24 & 128));
}

// The number that is stored, without scale, zero point and minimum.
static float stored(const char *row, sl_format f, int i) {
    const uint8_t *bytes = (const uint8_t *)row;
    uint16_t half;
    float x;
    switch (f) {
    case SL_BF16:
    case SL_F16:
        memcpy(&half, row + 2 * (size_t)i, 2);
        return f == SL_BF16 ? sl_bf16_to_f32(half) : sl_f16_to_f32(half);
    case SL_F32:
        memcpy(&x, row + 4 * (size_t)i, 4);
        return x;
    case SL_FP8:
        return sl_fp8_to_f32(bytes[i]);
    case SL_INT8:
        return (int8_t)bytes[i];
    case SL_UINT8:
        return bytes[i];
    default:;
    }
    int nibble = bytes[i / 2] >> 4 * (i % 2) & 15;
    return sl_code_book(f) ? sl_code_book(f)[nibble] : (float)nibble - (f == SL_INT4 ? 8 : 0);
}

void sl_weight_widen(const sl_weight *w, size_t row, float *out) {
    const char *from = sl_weight_row(w, row);
    int scaled = sl_formats[w->format].has_scale;
    size_t at = scaled ? sl_weight_scale_at(w, row) : 0;
    for (int i = 0; i < w->n_cols; i++) {
        float x = stored(from, w->format, i);
        if (scaled) {
            size_t g = at + (size_t)(i / w->group);
            x = (x - (w->zero ? w->zero[g] : 0)) * w->scale[g];
            if (w->min) x += w->min[g];
        }
        out[w->order ? w->order[i] : i] = x;
    }
}
