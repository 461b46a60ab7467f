// tests/backend/test_packed.c - weights in the order of a GPU's kernels (backend/cuda/packed.h), read back by its definition,
// against sl_weight_widen.
#include "backend/cuda/packed.h"
#include "tests/support/stored_weight.h"
#include "tests/test.h"

#include <stdlib.h>

// Where piece `piece` of n lies in memory: the first pieces of all leaves, then the second ones, and so on.
static int place_of(int n, int piece) {
    for (int j = 0, place = 0; j < n; j++)
        for (int leaf = 0; leaf < 16; leaf++) {
            int at = n * leaf / 16 + j;
            if (at >= n * (leaf + 1) / 16) continue;
            if (at == piece) return place;
            place++;
        }
    FAIL("piece %d of %d lies nowhere", piece, n);
    return -1;
}

static int index_of(const int *list, int x) {
    int i = 0;
    while (list[i] != x) i++;
    return i;
}

// The number that is stored for a row of 8 and a column.
static float number_at(const sl_cuda_packing *p, const uint8_t *data, const float *scale, int row, int col) {
    static const int pairs[] = {0, 2, 4, 6, 1, 3, 5, 7}, fp8[] = {2, 0, 3, 1}, in_order[] = {0, 1, 2, 3, 4, 5, 6, 7};
    int is_nibbles = sl_is_nibbles(p->format), c = col % 128, u = c / 32, is_split = p->per_piece == 8;
    int t = is_split ? c % 16 / 4 : c % 32 / 8, i = is_split ? c % 32 / 16 * 4 + c % 4 : c % 8; // column c_i of lane (row, t)
    int place = place_of(p->n_pieces, col / 128), word = is_nibbles ? u : 2 * u + i / 4;
    const uint8_t *at = data + (size_t)place * (is_nibbles ? 512 : 1024) + word / 4 * 512 + (4 * row + t) * 16 + word % 4 * 4;
    scale += (((p->n_sets == 1 ? 0 : place) * 8 + row) * p->per_piece + c / (128 / p->per_piece)) * p->width;
    int nibble = index_of(p->format == SL_IQ4 ? in_order : pairs, i),
        byte = index_of(p->format == SL_FP8 ? fp8 : in_order, i % 4);
    int code = is_nibbles ? at[nibble / 2] >> 4 * (nibble % 2) & 15 : at[byte];
    float zero = 0;
    if (p->width == 2 && p->format == SL_INT4) { // 136 + zero twice
        bf16 two[2];
        memcpy(two, &scale[1], sizeof two);
        CHECK_INT(two[0], two[1]);
        zero = sl_bf16_to_f32(two[0]) - 136;
    } else if (p->width == 2 && p->format == SL_INT8)
        zero = scale[1] - 128 - 8388608;
    switch (p->format) {
    case SL_INT4:
        return ((float)code - 8 - zero) * scale[0];
    case SL_INT8:
        return ((float)code - 128 - zero) * scale[0];
    case SL_UINT4:
    case SL_UINT8: {
        float product = (float)code * scale[0];
        return product + scale[1];
    }
    case SL_FP8:
        return sl_fp8_to_f32((uint8_t)code) * scale[0];
    default:
        return sl_code_book(p->format)[code] * scale[0];
    }
}

static void check(test_storage kind, int n_rows, int n_cols, int is_wide) {
    uint64_t seed = test_seed + (uint64_t)n_cols;
    sl_weight w = test_stored_weight(kind, n_rows, n_cols, &seed);
    sl_cuda_packing p = sl_cuda_packing_of(&w);
    if (is_wide) p.width = 2;
    CHECK(sl_cuda_can_pack(&w) && sl_cuda_has_kernels(&p));
    size_t n_bytes = sl_packed_bytes(&p, 8), n_scales = sl_packed_scales(&p, 8);
    uint8_t *data = malloc(n_bytes);
    float *scale = malloc(n_scales * sizeof *scale), *want = malloc((size_t)n_cols * sizeof *want);
    for (int i = 0; i < n_rows / 8; i++) {
        sl_cuda_pack_rows(&w, &p, i, (char *)data, scale);
        for (int row = 0; row < 8; row++) {
            sl_weight_widen(&w, (size_t)(8 * i + row), want);
            for (int col = 0; col < p.n_pieces * 128; col++) {
                float got = number_at(&p, data, scale, row, col);
                if (col >= n_cols && !w.min && got != got) FAIL("%s: a column after the last one is NaN", test_stored_name(&w));
                float number = col < n_cols ? want[w.order ? w.order[col] : col] : got;
                if (memcmp(&got, &number, sizeof got))
                    FAIL("%s, %d columns: row %d, column %d is %.9g, expected %.9g", test_stored_name(&w), n_cols, 8 * i + row,
                         col, (double)got, (double)number);
            }
        }
    }
    free(data), free(scale), free(want), test_stored_free(&w);
}

static void packs(void) {
    static const int cols[] = {8, 32, 136, 576, 1152, 2304, 4104};
    for (int k = 0; k < N_TEST_STORAGES; k++)
        for (size_t c = 0; c < sizeof cols / sizeof *cols; c++) check(test_storages[k], 16, cols[c], 0);
}

// A weight without zero points among weights that have them.
static void gets_zero_points(void) {
    check((test_storage){SL_INT4, 32, 0}, 8, 264, 1);
    check((test_storage){SL_INT4, 0, 0}, 8, 264, 1);
    check((test_storage){SL_INT8, 128, 0}, 8, 264, 1);
}

// Every kind of kernel has a weight in the list of the tests.
static void kinds(void) {
    int n_rows = 8, n_cols = 256;
#define FIND(FORMAT, PER_PIECE, WIDTH)                                                                                         \
    {                                                                                                                          \
        int found = 0;                                                                                                         \
        for (int k = 0; k < N_TEST_STORAGES; k++) {                                                                            \
            uint64_t seed = test_seed;                                                                                         \
            sl_weight w = test_stored_weight(test_storages[k], n_rows, n_cols, &seed);                                         \
            sl_cuda_packing p = sl_cuda_packing_of(&w);                                                                        \
            found |= p.format == FORMAT && p.per_piece == PER_PIECE && p.width == WIDTH;                                       \
            test_stored_free(&w);                                                                                              \
        }                                                                                                                      \
        if (!found) FAIL("%s, %d scales, width %d: no weight", sl_formats[FORMAT].name, PER_PIECE, WIDTH);                     \
    }
    SL_PACKED_KINDS(FIND)
#undef FIND
}

static void refuses(void) {
    static const struct {
        test_storage kind;
        int n_rows, n_cols;
    } weights[] = {{{SL_INT4, 48, 0}, 8, 96},  {{SL_INT8, 16, TEST_ZERO}, 8, 64}, {{SL_INT4, 16, 0}, 8, 64},
                   {{SL_FP8, 32, 0}, 8, 64},   {{SL_UINT4, 16, 0}, 8, 64},        {{SL_INT4, 32, 0}, 12, 64},
                   {{SL_UINT8, 32, 0}, 8, 68}, {{SL_BF16, 0, 0}, 8, 64},          {{SL_IQ4, 16, 0}, 8, 64}};
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
        uint64_t seed = test_seed;
        sl_weight w = test_stored_weight(weights[i].kind, weights[i].n_rows, weights[i].n_cols, &seed);
        if (sl_cuda_can_pack(&w)) FAIL("%s, [%d][%d] is packed", test_stored_name(&w), w.n_rows, w.n_cols);
        test_stored_free(&w);
    }
}

static const test_case cases[] = {
    {"packs", 0, packs}, {"gets-zero-points", 0, gets_zero_points}, {"kinds", 0, kinds}, {"refuses", 0, refuses}, {0}};
extern const test_suite suite_packed;
const test_suite suite_packed = {"packed", cases};
