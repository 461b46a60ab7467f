// tests/support/bad_values.c - see bad_values.h.
#include "tests/support/bad_values.h"
#include "tests/test.h"

#include <math.h>

const bad_value bad_values[] = {
    {"2^65", 0x6000, 1}, {"-2^100", 0xf180, 1}, {"infinity", 0x7f80, 0}, {"-infinity", 0xff80, 0}, {"NaN", 0x7fc0, 0},
};
const int n_bad_values = sizeof bad_values / sizeof *bad_values;

ref_cache bad_cache(void) {
    static const int n = BAD_ROWS;
    ref_cache c = ref_cache_new(BAD_HEADS, BAD_HEADS, BAD_DIM, 1, &n, 0.3, test_seed);
    ref_add_to_values(&c, 1);
    return c;
}

void bad_plant(ref_cache *c, int kind, int row) {
    float value = sl_bf16_to_f32(bad_values[kind].bits);
    double octaves = bad_values[kind].is_number ? log2(fabs(value)) - log2(BAD_ROWS) : 30, square = 0;
    const float *q = c->q + BAD_DIM;
    bf16 *k = (bf16 *)ref_k_row(c, 0, 1, row);
    for (int d = 0; d < BAD_DIM; d++) square += (double)q[d] * q[d];
    for (int d = 0; d < BAD_DIM; d++) k[d] = sl_f32_to_bf16((float)(-octaves * log(2) * sqrt(BAD_DIM) / square * q[d]));
    ((bf16 *)ref_v_row(c, 0, 1, row))[7] = bad_values[kind].bits;
}
