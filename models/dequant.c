// models/dequant.c - see dequant.h.
//
// The names of a block's parts are those of the format: d and m are fp16 numbers, qs holds the low bits of the values, qh their
// high bits, and sc the scales of sub-blocks. The low nibbles of the small types are the first half of the block.
#include "models/dequant.h"

#include <stdint.h>
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

// ---- one number a block ----

static void unpack_f32(const unsigned char *b, float *y) {
    uint32_t u = u32_at(b);
    memcpy(y, &u, 4);
}
static void unpack_f16(const unsigned char *b, float *y) {
    *y = f16_at(b);
}
static void unpack_bf16(const unsigned char *b, float *y) {
    *y = sl_bf16_to_f32((bf16)u16_at(b));
}

// ---- blocks of 32 ----

static void unpack_q8_0(const unsigned char *b, float *y) {
    float d = f16_at(b);
    for (int j = 0; j < 32; j++) y[j] = d * (int8_t)b[2 + j];
}

static void unpack_q4_0(const unsigned char *b, float *y) {
    float d = f16_at(b);
    const unsigned char *qs = b + 2;
    for (int j = 0; j < 16; j++) {
        y[j] = d * ((qs[j] & 15) - 8);
        y[j + 16] = d * ((qs[j] >> 4) - 8);
    }
}

static void unpack_q4_1(const unsigned char *b, float *y) {
    float d = f16_at(b), m = f16_at(b + 2);
    const unsigned char *qs = b + 4;
    for (int j = 0; j < 16; j++) {
        y[j] = d * (qs[j] & 15) + m;
        y[j + 16] = d * (qs[j] >> 4) + m;
    }
}

static void unpack_q5_0(const unsigned char *b, float *y) {
    float d = f16_at(b);
    uint32_t qh = u32_at(b + 2);
    const unsigned char *qs = b + 6;
    for (int j = 0; j < 16; j++) {
        y[j] = d * ((int)((qs[j] & 15) | (qh >> j & 1) << 4) - 16);
        y[j + 16] = d * ((int)(qs[j] >> 4 | (qh >> (j + 16) & 1) << 4) - 16);
    }
}

static void unpack_q5_1(const unsigned char *b, float *y) {
    float d = f16_at(b), m = f16_at(b + 2);
    uint32_t qh = u32_at(b + 4);
    const unsigned char *qs = b + 8;
    for (int j = 0; j < 16; j++) {
        y[j] = d * (int)((qs[j] & 15) | (qh >> j & 1) << 4) + m;
        y[j + 16] = d * (int)(qs[j] >> 4 | (qh >> (j + 16) & 1) << 4) + m;
    }
}

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static void unpack_iq4_nl(const unsigned char *b, float *y) {
    float d = f16_at(b);
    const unsigned char *qs = b + 2;
    for (int j = 0; j < 16; j++) {
        y[j] = d * iq4_values[qs[j] & 15];
        y[j + 16] = d * iq4_values[qs[j] >> 4];
    }
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

// qh: the fifth bits, [32]; NULL: Q4_K
static void unpack_k(const unsigned char *b, const unsigned char *qh, const unsigned char *qs, float *y) {
    float d = f16_at(b), dmin = f16_at(b + 2);
    for (int s = 0; s < 8; s++) {
        int scale, min;
        k_scale(b + 4, s, &scale, &min);
        float ds = d * (float)scale, m = dmin * (float)min; // exact
        const unsigned char *from = qs + s / 2 * 32;
        for (int j = 0; j < 32; j++) {
            int q = (s % 2 ? from[j] >> 4 : from[j] & 15) + (qh ? (qh[j] >> s & 1) << 4 : 0);
            y[32 * s + j] = ds * (float)q - m;
        }
    }
}

static void unpack_q4_k(const unsigned char *b, float *y) {
    unpack_k(b, NULL, b + 16, y);
}
static void unpack_q5_k(const unsigned char *b, float *y) {
    unpack_k(b, b + 16, b + 48, y);
}

static void unpack_q6_k(const unsigned char *b, float *y) {
    const unsigned char *ql = b, *qh = b + 128, *sc = b + 192;
    float d = f16_at(b + 208);
    for (int half = 0; half < 2; half++, ql += 64, qh += 32, sc += 8, y += 128)
        for (int l = 0; l < 32; l++)
            for (int k = 0; k < 4; k++) { // the quarter of the half: 32 values with two scales
                int low = k < 2 ? ql[l + 32 * k] & 15 : ql[l + 32 * (k - 2)] >> 4, high = qh[l] >> 2 * k & 3;
                y[32 * k + l] = d * (float)(int8_t)sc[l / 16 + 2 * k] * (float)((low | high << 4) - 32);
            }
}

static void unpack_iq4_xs(const unsigned char *b, float *y) {
    float d = f16_at(b);
    uint32_t high = u16_at(b + 2);
    const unsigned char *low = b + 4, *qs = b + 8;
    for (int s = 0; s < 8; s++, qs += 16, y += 32) {
        int ls = (int)((low[s / 2] >> 4 * (s % 2) & 15) | (high >> 2 * s & 3) << 4);
        float ds = d * (float)(ls - 32); // exact
        for (int j = 0; j < 16; j++) {
            y[j] = ds * iq4_values[qs[j] & 15];
            y[j + 16] = ds * iq4_values[qs[j] >> 4];
        }
    }
}

// ---- the table ----

// Types without a function are known by name only, for the message that refuses them.
static const sl_block_type types[] = {
    {0, "F32", 1, 4, unpack_f32},
    {1, "F16", 1, 2, unpack_f16},
    {30, "BF16", 1, 2, unpack_bf16},
    {8, "Q8_0", 32, 34, unpack_q8_0},
    {2, "Q4_0", 32, 18, unpack_q4_0},
    {3, "Q4_1", 32, 20, unpack_q4_1},
    {6, "Q5_0", 32, 22, unpack_q5_0},
    {7, "Q5_1", 32, 24, unpack_q5_1},
    {12, "Q4_K", 256, 144, unpack_q4_k},
    {13, "Q5_K", 256, 176, unpack_q5_k},
    {14, "Q6_K", 256, 210, unpack_q6_k},
    {20, "IQ4_NL", 32, 18, unpack_iq4_nl},
    {23, "IQ4_XS", 256, 136, unpack_iq4_xs},
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
        if (types[i].unpack) n += (size_t)snprintf(buf + n, size - n, "%s%s", n ? ", " : "", types[i].name);
}
