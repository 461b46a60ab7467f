// models/dequant.c - see dequant.h.
//
// A block is split into the elements and scales of a weight (backend/weight.h), whose definition then gives the numbers. So the
// numbers of a packed weight and the unpacked numbers have equal bits.
//
// The names of a block's parts are those of the format: d and m are fp16 numbers, qs holds the low bits of the values, qh their
// high bits, and sc the scales of sub-blocks. The low nibbles of the small types are the first half of the block.
#include "models/dequant.h"

#include <stdio.h>

// ---- numbers of a file: little-endian, at any address ----

static uint32_t u16_at(const unsigned char *p) {
    return p[0] | (uint32_t)p[1] << 8;
}
static uint32_t u32_at(const unsigned char *p) {
    return u16_at(p) | u16_at(p + 2) << 16;
}
static float f16_at(const unsigned char *p) {
    return sl_f16_to_f32((f16)u16_at(p));
}

// ---- blocks of 32: one scale ----

static void halves(const unsigned char *qs, uint8_t *code) {
    for (int j = 0; j < 16; j++) code[j] = qs[j] & 15, code[j + 16] = qs[j] >> 4;
}

// qh: the fifth bits. less: subtracted.
static void halves_5(const unsigned char *qh, const unsigned char *qs, int less, uint8_t *code) {
    uint32_t high = u32_at(qh);
    halves(qs, code);
    for (int j = 0; j < 32; j++) code[j] = (uint8_t)((code[j] | (high >> j & 1) << 4) - (unsigned)less);
}

static void split_q8_0(const unsigned char *b, uint8_t *code, float *scale, float *min) {
    (void)min;
    *scale = f16_at(b);
    memcpy(code, b + 2, 32);
}

static void split_q4(const unsigned char *b, uint8_t *code, float *scale, float *min) { // Q4_0, IQ4_NL
    (void)min;
    *scale = f16_at(b);
    halves(b + 2, code);
}

static void split_q4_1(const unsigned char *b, uint8_t *code, float *scale, float *min) {
    *scale = f16_at(b), *min = f16_at(b + 2);
    halves(b + 4, code);
}

static void split_q5_0(const unsigned char *b, uint8_t *code, float *scale, float *min) {
    (void)min;
    *scale = f16_at(b);
    halves_5(b + 2, b + 6, 16, code);
}

static void split_q5_1(const unsigned char *b, uint8_t *code, float *scale, float *min) {
    *scale = f16_at(b), *min = f16_at(b + 2);
    halves_5(b + 4, b + 8, 0, code);
}

// ---- blocks of 256, in sub-blocks ----

// The scale and the minimum of sub-block s of Q4_K and Q5_K, of 6 bits each.
static void k_scale(const unsigned char *sc, int s, int *scale, int *min) {
    if (s < 4) {
        *scale = sc[s] & 63;
        *min = sc[s + 4] & 63;
    } else {
        *scale = (sc[s + 4] & 15) | sc[s - 4] >> 6 << 4;
        *min = sc[s + 4] >> 4 | sc[s] >> 6 << 4;
    }
}

// qh: the fifth bits, [32]; NULL: Q4_K. The products of the scales are exact.
static void split_k(const unsigned char *b, const unsigned char *qh, const unsigned char *qs, uint8_t *code, float *scale,
                    float *min) {
    float d = f16_at(b), dmin = f16_at(b + 2);
    for (int s = 0; s < 8; s++, code += 32) {
        int sub_scale, sub_min;
        k_scale(b + 4, s, &sub_scale, &sub_min);
        scale[s] = d * (float)sub_scale, min[s] = -(dmin * (float)sub_min);
        const unsigned char *from = qs + s / 2 * 32;
        for (int j = 0; j < 32; j++) code[j] = s % 2 ? from[j] >> 4 : from[j] & 15;
        for (int j = 0; qh && j < 32; j++) code[j] |= (uint8_t)((qh[j] >> s & 1) << 4);
    }
}

static void split_q4_k(const unsigned char *b, uint8_t *code, float *scale, float *min) {
    split_k(b, NULL, b + 16, code, scale, min);
}
static void split_q5_k(const unsigned char *b, uint8_t *code, float *scale, float *min) {
    split_k(b, b + 16, b + 48, code, scale, min);
}

static void split_q6_k(const unsigned char *b, uint8_t *code, float *scale, float *min) {
    const unsigned char *ql = b, *qh = b + 128, *sc = b + 192;
    float d = f16_at(b + 208);
    (void)min;
    for (int i = 0; i < 16; i++) scale[i] = d * (float)(int8_t)sc[i]; // exact
    for (int half = 0; half < 2; half++, ql += 64, qh += 32, code += 128)
        for (int k = 0; k < 4; k++) // the quarter of the half: 32 values with two scales
            for (int l = 0; l < 32; l++) {
                int low = k < 2 ? ql[l + 32 * k] & 15 : ql[l + 32 * (k - 2)] >> 4, high = qh[l] >> 2 * k & 3;
                code[32 * k + l] = (uint8_t)((low | high << 4) - 32);
            }
}

static void split_iq4_xs(const unsigned char *b, uint8_t *code, float *scale, float *min) {
    float d = f16_at(b);
    uint32_t high = u16_at(b + 2);
    const unsigned char *low = b + 4;
    (void)min;
    for (int s = 0; s < 8; s++) {
        int ls = (int)((low[s / 2] >> 4 * (s % 2) & 15) | (high >> 2 * s & 3) << 4);
        scale[s] = d * (float)(ls - 32); // exact
        halves(b + 8 + 16 * s, code + 32 * s);
    }
}

// ---- the table ----

// Types without values are known by name only, for the message that refuses them.
static const sl_block_type types[] = {
    {0, "F32", 1, 4, SL_F32, 0, NULL},
    {1, "F16", 1, 2, SL_F16, 0, NULL},
    {30, "BF16", 1, 2, SL_BF16, 0, NULL},
    {8, "Q8_0", 32, 34, SL_INT8, 32, split_q8_0},
    {2, "Q4_0", 32, 18, SL_INT4, 32, split_q4},
    {3, "Q4_1", 32, 20, SL_UINT4, 32, split_q4_1},
    {6, "Q5_0", 32, 22, SL_INT8, 32, split_q5_0},
    {7, "Q5_1", 32, 24, SL_UINT8, 32, split_q5_1},
    {12, "Q4_K", 256, 144, SL_UINT4, 32, split_q4_k},
    {13, "Q5_K", 256, 176, SL_UINT8, 32, split_q5_k},
    {14, "Q6_K", 256, 210, SL_INT8, 16, split_q6_k},
    {20, "IQ4_NL", 32, 18, SL_IQ4, 32, split_q4},
    {23, "IQ4_XS", 256, 136, SL_IQ4, 32, split_iq4_xs},
    {.id = 9, .name = "Q8_1"},
    {.id = 10, .name = "Q2_K"},
    {.id = 11, .name = "Q3_K"},
    {.id = 15, .name = "Q8_K"},
    {.id = 16, .name = "IQ2_XXS"},
    {.id = 17, .name = "IQ2_XS"},
    {.id = 18, .name = "IQ3_XXS"},
    {.id = 19, .name = "IQ1_S"},
    {.id = 21, .name = "IQ3_S"},
    {.id = 22, .name = "IQ2_S"},
    {.id = 24, .name = "I8"},
    {.id = 25, .name = "I16"},
    {.id = 26, .name = "I32"},
    {.id = 27, .name = "I64"},
    {.id = 28, .name = "F64"},
    {.id = 29, .name = "IQ1_M"},
    {.id = 34, .name = "TQ1_0"},
    {.id = 35, .name = "TQ2_0"},
    {.id = 39, .name = "MXFP4"},
    {.id = 40, .name = "NVFP4"},
};
enum { N_TYPES = sizeof types / sizeof *types };

const sl_block_type *sl_block_type_find(int id) {
    for (int i = 0; i < N_TYPES; i++)
        if (types[i].id == id) return &types[i];
    return NULL;
}

void sl_block_type_list(char *buf, size_t size) {
    size_t n = 0;
    *buf = 0;
    for (int i = 0; i < N_TYPES && n < size; i++)
        if (types[i].n_values) n += (size_t)snprintf(buf + n, size - n, "%s%s", n ? ", " : "", types[i].name);
}

// ---- blocks ----

void sl_block_split(const sl_block_type *type, const unsigned char *block, uint8_t *data, float *scale, float *min) {
    uint8_t code[SL_BLOCK_MOST];
    if (sl_formats[type->format].n_values == 1) {
        type->split(block, data, scale, min);
        return;
    }
    type->split(block, code, scale, min);
    for (int i = 0; i < type->n_values / 2; i++) data[i] = (uint8_t)(code[2 * i] | code[2 * i + 1] << 4);
}

void sl_block_unpack(const sl_block_type *type, const unsigned char *block, float *y) {
    uint8_t data[SL_BLOCK_MOST];
    float scale[SL_BLOCK_MOST / SL_WEIGHT_GROUP], min[SL_BLOCK_MOST / SL_WEIGHT_GROUP];
    sl_weight w = {.data = block, .format = type->format, .n_rows = 1, .n_cols = type->n_values};
    if (type->split) {
        sl_block_split(type, block, data, scale, min);
        w.data = data, w.scale = scale, w.group = type->group, w.scale_rows = 1;
        if (sl_formats[w.format].has_min) w.min = min;
    }
    sl_weight_widen(&w, 0, y);
}
