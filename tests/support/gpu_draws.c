// tests/support/gpu_draws.c - see gpu_draws.h.
#include "tests/support/gpu_draws.h"

#ifdef SLEIGH_CUDA
#include "tests/support/gpu.h"

#include <stdlib.h>
#include <string.h>

uint64_t *gpu_block_masses(const sl_masses *size) {
    size_t n_blocks = size->n_blocks;
    uint64_t *mass = malloc((n_blocks + 1) * sizeof *mass);
    for (size_t b = 0; b < n_blocks; b++) {
        uint64_t in_block = 0;
        for (int j = 0; j < SL_BLOCK; j++) in_block += (uint32_t)(sl_bf16_to_f32(size->stored[b * SL_BLOCK + j]) * 0x1p30f);
        mass[b] = (uint64_t)(uint16_t)size->ref[b] << 48 | in_block;
    }
    uint64_t *on_gpu = gpu_copy(mass, (n_blocks + 1) * sizeof *mass);
    free(mass);
    return on_gpu;
}

static uint64_t draw_of(int row, float inv_pi) { // the row is in the high bits, so that integers sort by row
    uint32_t bits;
    memcpy(&bits, &inv_pi, sizeof bits);
    return (uint64_t)row << 32 | bits;
}

void check_same_draws(const char *what, const sl_draws *want, const int32_t *row, const float *inv_pi, int n_entries) {
    uint64_t *got = malloc((n_entries + 1) * sizeof *got);
    int n_drawn = 0, at = 0;
    for (int i = 0; i < n_entries; i++)
        if (row[i] >= 0) got[n_drawn++] = draw_of(row[i], inv_pi[i]);
    sl_sort(got, n_drawn);
    CHECK_INT(n_drawn, want->n_draws);
    for (int i = 0; i < want->n; i++)
        for (int c = 0; c < want->count[i]; c++, at++)
            if (got[at] != draw_of(want->row[i], want->inv_pi[i]))
                FAIL("%s: draw %d is of row %d, expected row %d, or 1 / pi is not %.9g", what, at, (int)(got[at] >> 32),
                     want->row[i], want->inv_pi[i]);
    free(got);
}
#endif
