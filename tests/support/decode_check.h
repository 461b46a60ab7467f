// tests/support/decode_check.h - a decode method on a GPU against the CPU's stages: what it stored against the proposal's
// scores, and from the very weights that it stored the CPU's draw picks its rows: the output must be what these rows give in
// double precision.
#ifndef SLEIGH_TEST_DECODE_RIG_H
#define SLEIGH_TEST_DECODE_RIG_H

#ifdef SLEIGH_CUDA
#include "attention/attention_cuda.h"
#include "attention/stages.h"
#include "tests/support/reference.h"

enum { RIG_LAYER = 3, RIG_SEQS = 16 };
extern const int rig_ragged[RIG_SEQS]; // lengths of a batch: on both sides of pages and chunks

typedef struct rig {
    ref_cache *c; // lent; its queries become bf16 numbers
    sl_attn_spec spec;
    int max_kv, group, n_slots;
    int n_stored;         // 0; 1: weights; 2: sizes too
    int unit, max_blocks; // rows of a stored weight; blocks of them
    size_t state_size;    // bytes of a sequence
    sl_row rows[RIG_SEQS];
    sl_attn_cuda_decode_args args;
    bf16 *out;                 // [n_seqs][n_heads][head_dim] of the last step
    uint64_t *mass[2];         // of weights and sizes: [n_slots][group][max_blocks] score_keys.cuh's
    bf16 *w;                   // [n_slots][max_blocks][group][32]
    sl_attn_stats stats;       // of the last rig_launch
    int n_weights, n_off_by_1; // that rig_check_weights has compared, and those that are not the nearest bf16
} rig;

// Page extras are built on both, of all pages but each sequence's newest. Memory on the GPU is NaN where nothing was written.
rig rig_new(ref_cache *c, const char *attn, uint32_t seed);
void rig_free(rig *r);                 // and all device memory of the case
void rig_upload_rows(rig *r);          // r->rows have changed
void rig_seed(rig *r, uint32_t seed);  // another seed, and no step before
void rig_decode(rig *r);               // one step
void rig_decode_queued(rig *r, int n); // n times the same, none waited for but the last
void rig_launch(rig *r);               // the same, what it stored and counted, and that the counters are 0 again
void rig_decode_alone(rig *r, int s);  // of one sequence: its output is out[0]
void rig_check(rig *r);                // the last rig_launch: every head's output, and what was counted
void rig_check_weights(rig *r);        // the last rig_launch: what was stored, against the scores
double rig_error(const rig *r, int s, int head, double *mu); // |out - mu| / |mu|; mu: [head_dim] dense attention, or NULL

// One head's stored weights (which 0) or sizes (1) as the CPU keeps them; checks that masses are those of the weights.
sl_masses rig_weights(const rig *r, int which, int s, int head);
void rig_weights_free(sl_masses *wt);
// The proposal's scores in log2 units of a KV head: [group][units]. Exact ones in double precision, else the CPU's. From
// malloc.
double *rig_scores(rig *r, int s, int kv_head);

// A step of `attn` on such a cache: all of the above.
void rig_try(const char *attn, int n_heads, int n_kv_heads, int head_dim, int n_seqs, const int *lengths, double query_scale);
void rig_try_on(ref_cache *c, const char *attn);
#endif

#endif
