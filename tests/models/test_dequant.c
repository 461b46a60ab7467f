// tests/models/test_dequant.c - the blocks of GGUF tensors (models/dequant.h) against the definitions of the format, computed
// for one number at a time in double precision.
#include "models/dequant.h"
#include "tests/test.h"

#include <math.h>
#include <string.h>

typedef unsigned char byte;

static double half(const byte *p) { // fp16, from its definition
    int bits = p[0] | p[1] << 8, sign = bits >> 15, exp = bits >> 10 & 31, frac = bits & 1023;
    double x = exp ? ldexp(1 + frac / 1024.0, exp - 15) : ldexp(frac / 1024.0, -14);
    return sign ? -x : x;
}

static int bit(const byte *p, int i) {
    return p[i / 8] >> i % 8 & 1;
}

// Nibble of number i of a small block: the low nibbles are numbers 0 to 15, the high ones 16 to 31.
static int nibble(const byte *qs, int i) {
    return i < 16 ? qs[i] % 16 : qs[i - 16] / 16;
}

static double q8_0(const byte *b, int i) {
    return half(b) * (signed char)b[2 + i];
}
static double q4_0(const byte *b, int i) {
    return half(b) * (nibble(b + 2, i) - 8);
}
static double q4_1(const byte *b, int i) {
    return half(b) * nibble(b + 4, i) + half(b + 2);
}
static double q5_0(const byte *b, int i) {
    return half(b) * (nibble(b + 6, i) + 16 * bit(b + 2, i) - 16);
}
static double q5_1(const byte *b, int i) {
    return half(b) * (nibble(b + 8, i) + 16 * bit(b + 4, i)) + half(b + 2);
}

static const int table[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static double iq4_nl(const byte *b, int i) {
    return half(b) * table[nibble(b + 2, i)];
}
static double iq4_xs(const byte *b, int i) {
    int s = i / 32, low = b[4 + s / 2] >> 4 * (s % 2) & 15, high = (b[2] | b[3] << 8) >> 2 * s & 3;
    return half(b) * (low + 16 * high - 32) * table[nibble(b + 8 + 16 * s, i % 32)];
}

// sc: 12 bytes with 8 scales and 8 minimums of 6 bits
static double with_scale(const byte *b, int s, int q) {
    const byte *sc = b + 4;
    int scale = s < 4 ? sc[s] % 64 : sc[s + 4] % 16 + 16 * (sc[s - 4] / 64);
    int min = s < 4 ? sc[s + 4] % 64 : sc[s + 4] / 16 + 16 * (sc[s] / 64);
    return half(b) * scale * q - half(b + 2) * min;
}
static double q4_k(const byte *b, int i) {
    int s = i / 32, packed = b[16 + 32 * (s / 2) + i % 32];
    return with_scale(b, s, s % 2 ? packed / 16 : packed % 16);
}
static double q5_k(const byte *b, int i) {
    int s = i / 32, packed = b[48 + 32 * (s / 2) + i % 32];
    return with_scale(b, s, (s % 2 ? packed / 16 : packed % 16) + 16 * (b[16 + i % 32] >> s & 1));
}
static double q6_k(const byte *b, int i) {
    int part = i / 128, k = i % 128 / 32, l = i % 32; // half of the block, quarter of the half
    int low = b[64 * part + 32 * (k % 2) + l] >> (k < 2 ? 0 : 4) & 15, high = b[128 + 32 * part + l] >> 2 * k & 3;
    return half(b + 208) * (signed char)b[192 + 8 * part + 2 * k + l / 16] * (low + 16 * high - 32);
}

static double f32(const byte *b, int i) {
    float x;
    (void)i;
    memcpy(&x, b, 4);
    return x;
}
static double f16_number(const byte *b, int i) {
    (void)i;
    return half(b);
}
static double bf16_number(const byte *b, int i) {
    byte wide[4] = {0, 0, b[0], b[1]};
    return f32(wide, i);
}

static const struct {
    int id;
    const char *name;
    int n_values, n_bytes, halves[3]; // halves: places of fp16 numbers, ended by -1
    double (*number)(const byte *b, int i);
} types[] = {
    {0, "F32", 1, 4, {-1}, f32},
    {1, "F16", 1, 2, {0, -1}, f16_number},
    {30, "BF16", 1, 2, {-1}, bf16_number},
    {8, "Q8_0", 32, 34, {0, -1}, q8_0},
    {2, "Q4_0", 32, 18, {0, -1}, q4_0},
    {3, "Q4_1", 32, 20, {0, 2, -1}, q4_1},
    {6, "Q5_0", 32, 22, {0, -1}, q5_0},
    {7, "Q5_1", 32, 24, {0, 2, -1}, q5_1},
    {12, "Q4_K", 256, 144, {0, 2, -1}, q4_k},
    {13, "Q5_K", 256, 176, {0, 2, -1}, q5_k},
    {14, "Q6_K", 256, 210, {208, -1}, q6_k},
    {20, "IQ4_NL", 32, 18, {0, -1}, iq4_nl},
    {23, "IQ4_XS", 256, 136, {0, -1}, iq4_xs},
};
enum { N_TYPES = sizeof types / sizeof *types };

// Every product of a block is exact in fp32 (at most 24 bits), and one addition rounds it. So fp32 gives the exact number,
// rounded once.
static void numbers(void) {
    uint64_t rng = test_seed;
    byte block[256];
    float y[SL_BLOCK_MOST];
    for (int t = 0; t < N_TYPES; t++)
        for (int round = 0; round < 300; round++) {
            const sl_block_type *type = sl_block_type_find(types[t].id);
            CHECK(type && type->n_values);
            for (int i = 0; i < types[t].n_bytes; i++) block[i] = (byte)(256 * test_uniform(&rng));
            for (int i = 0; types[t].halves[i] >= 0; i++) block[types[t].halves[i] + 1] &= 0xbf; // finite
            if (types[t].id == 0 || types[t].id == 30) block[types[t].n_bytes - 1] &= 0xbf;
            sl_block_unpack(type, block, y);
            for (int i = 0; i < types[t].n_values; i++) {
                float want = (float)types[t].number(block, i);
                if (y[i] != want) FAIL("%s, round %d: number %d is %.9g, expected %.9g", type->name, round, i, y[i], want);
            }
        }
}

static void table_of_types(void) {
    char list[200];
    sl_block_type_list(list, sizeof list);
    for (int t = 0; t < N_TYPES; t++) {
        const sl_block_type *type = sl_block_type_find(types[t].id);
        CHECK_STR(type->name, types[t].name);
        CHECK_INT(type->n_values, types[t].n_values);
        CHECK_INT(type->n_bytes, types[t].n_bytes);
        CHECK(strstr(list, types[t].name) != NULL);
    }
    CHECK_STR(sl_block_type_find(10)->name, "Q2_K"); // known, and not read
    CHECK(!sl_block_type_find(10)->n_values && !strstr(list, "Q2_K"));
    CHECK(!sl_block_type_find(4) && !sl_block_type_find(-1));
}

// Every fp16 number, the middle between each and the next one, and the neighbours of the middle.
static void to_f16(void) {
    for (int i = 0; i < 0x7c00; i++) {
        float x = sl_f16_to_f32((f16)i), next = i + 1 < 0x7c00 ? sl_f16_to_f32((f16)(i + 1)) : 65536, middle = (x + next) / 2;
        CHECK_INT(sl_f32_to_f16(x), i);
        CHECK_INT(sl_f32_to_f16(-x), i | 0x8000);
        CHECK_INT(sl_f32_to_f16(middle), i + i % 2);
        CHECK_INT(sl_f32_to_f16(nextafterf(middle, 0)), i);
        CHECK_INT(sl_f32_to_f16(nextafterf(middle, INFINITY)), i + 1);
    }
    CHECK_INT(sl_f32_to_f16(INFINITY), 0x7c00);
    CHECK_INT(sl_f32_to_f16(-1e30f), 0xfc00);
    CHECK_INT(sl_f32_to_f16(NAN) & 0x7e00, 0x7e00);
    CHECK_INT(sl_f32_to_f16(1e-30f), 0);
}

static const test_case cases[] = {{"numbers", NEEDS_NOTHING, numbers},
                                  {"table-of-types", NEEDS_NOTHING, table_of_types},
                                  {"to-f16", NEEDS_NOTHING, to_f16},
                                  {0}};

const test_suite suite_dequant = {"dequant", cases};
