// tests/decode_rig.h - a decode method on a GPU against the CPU's stages: from the very weights that the GPU stored the CPU's
// draw picks its rows, and the output must be what these rows give in double precision.
#ifndef SLEIGH_TEST_DECODE_RIG_H
#define SLEIGH_TEST_DECODE_RIG_H

#ifdef SLEIGH_CUDA
#include "attention/cuda.h"
#include "attention/stages.h"
#include "tests/reference.h"

enum { RIG_LAYER = 3 };

typedef struct rig {
    ref_cache c; // its queries rounded to bf16
    sl_attn_spec spec;
    uint32_t seed;
    int max_kv, group, n_slots;
    int unit, max_blocks; // rows of a stored weight, 0: there are none
    sl_attn_cuda_decode_args args;
    bf16 *out;           // [n_seqs][n_heads][head_dim] of the last rig_launch
    uint64_t *mass;      // [n_slots][group][max_blocks] ref << 48 | in-block mass
    bf16 *w;             // [n_slots][max_blocks][group][32]
    sl_attn_stats stats; // of the last rig_launch
} rig;

// Takes the cache over. Page extras are built on both, of the full pages alone.
rig rig_new(ref_cache c, const char *attn, uint32_t seed);
void rig_free(rig *r);
void rig_launch(rig *r); // and checks that the counters are 0 again

// One head's stored weights as the CPU keeps them; checks that masses are those of the weights.
sl_weights rig_weights(const rig *r, int s, int head);
void rig_weights_free(sl_weights *wt);

// What the CPU's draw picks for one head from the GPU's stored weights, and what its rows give.
typedef struct rig_head {
    sl_weights wt;
    sl_draws draws;
    double mean[128], size[128]; // sum_j f_j v_j and sum_j f_j |v_j|, f_j the rows' shares
} rig_head;
rig_head rig_draw(rig *r, int s, int head);
void rig_head_free(rig_head *h);

// Every head of the last rig_launch: the output, and what was counted.
void rig_check(rig *r);
#endif

#endif
