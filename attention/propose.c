// attention/propose.c - the proposal's weights as integers: in-block mass and running mass (stages.h). The scores themselves
// are made by the vector loops of kernels.h.
#include "attention/stages.h"

uint64_t sl_block_mass(const bf16 *w) {
    uint64_t sum = 0;
    for (int i = 0; i < SL_BLOCK; i++) sum += (uint32_t)(int32_t)(sl_bf16_to_f32(w[i]) * 0x1p30f);
    return sum;
}

static uint64_t to_global(uint64_t mass, int shift) {
    return shift < 64 ? mass << 8 >> shift : 0;
}

void sl_weights_finish(sl_weights *wt) {
    int top = SL_REF_EMPTY;
    for (int b = 0; b < wt->n_blocks; b++) top = wt->ref[b] > top ? wt->ref[b] : top;
    wt->top = top;
    wt->cum[0] = 0;
    for (int b = 0; b < wt->n_blocks; b++) wt->cum[b + 1] = wt->cum[b] + to_global(wt->cum[b + 1], top - wt->ref[b]);
}

uint64_t sl_weights_running(const sl_weights *wt, int j) {
    if (j < 0) return 0;
    int b = j / SL_BLOCK;
    uint64_t mass = 0;
    for (int i = b * SL_BLOCK; i <= j; i++) mass += (uint32_t)(int32_t)(sl_bf16_to_f32(wt->w[i]) * 0x1p30f);
    return wt->cum[b] + to_global(mass, wt->top - wt->ref[b]);
}
