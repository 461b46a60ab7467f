// tests/support/decode_check.h - compares a decode method on a GPU with the CPU's stages. The stored masses must agree with the
// proposal's scores. Then the CPU draws rows from the masses that the GPU stored. The GPU's output must equal the output that
// these rows give in double precision.
#ifndef SLEIGH_TEST_DECODE_CHECK_H
#define SLEIGH_TEST_DECODE_CHECK_H

#ifdef SLEIGH_CUDA
#include "attention/attention_cuda.h"
#include "attention/stages/stages.h"
#include "tests/support/reference.h"

enum { FIXTURE_LAYER = 3, FIXTURE_SEQS = 16 };
extern const int fixture_ragged[FIXTURE_SEQS]; // lengths of a batch, on both sides of page and chunk borders

typedef struct decode_fixture {
    ref_cache *c; // belongs to the caller; fixture_new rounds its queries to bf16. K and V have the same format
    sl_attn_spec spec;
    const sl_attn_cuda_ops *ops; // of the method, for the format of the cache
    int max_kv, group, n_pairs;  // n_pairs: pairs of a sequence and a KV head
    int n_stored;                // 0: nothing; 1: masses; 2: masses and sizes
    int unit, max_blocks;        // rows that share a stored mass; blocks of 32 stored masses of the longest head
    // [n_seqs * n_heads][max_kv] The set of a join, 1 for each of its rows. The CPU takes the set from the masses that the
    // first method stores on the GPU when it runs alone. NULL: the first method takes no set, or there is no join.
    char *set;
    size_t state_size;           // bytes per sequence
    struct fixture_model *model; // args.geom with buckets in device memory, for methods that need them; else NULL
    int n_slots;                 // blocks of the page extras of spans
    sl_row rows[FIXTURE_SEQS];
    sl_attn_cuda_decode_args args;
    bf16 *out;                  // [n_seqs][n_heads][head_dim] of the last step
    uint64_t *mass[2];          // block masses and sizes: [n_pairs][group][max_blocks], packed as in score_keys.cuh
    bf16 *stored;               // masses: [n_pairs][max_blocks][group][32]
    sl_attn_stats stats;        // of the last fixture_launch
    int n_compared, n_off_by_1; // masses that fixture_check_masses compared; masses of these that are not the nearest bf16
} decode_fixture;

// Builds page extras on both devices, of all pages except the newest one of each sequence. Device memory that was not written
// is NaN.
decode_fixture fixture_new(ref_cache *c, const char *attn, uint32_t seed);
// The same with memory and kernels for sequences of up to least_kv rows, or more if c has longer ones.
decode_fixture fixture_new_for(ref_cache *c, const char *attn, uint32_t seed, int least_kv);
void fixture_free(decode_fixture *r);                 // also frees all device memory of the case
void fixture_upload_rows(decode_fixture *r);          // after a change of r->rows
void fixture_seed(decode_fixture *r, uint32_t seed);  // sets the seed and clears the state of the step before
void fixture_decode(decode_fixture *r);               // one step
void fixture_decode_queued(decode_fixture *r, int n); // the same step n times; waits for the last one only
// Runs one step, reads its masses, outputs and counts, and checks that the counters are 0 again.
void fixture_launch(decode_fixture *r);
// Moves every sequence to `back` rows before its newest row.
void fixture_go_back(decode_fixture *r, int back);
// Decodes the n_before rows before the newest row, then calls fixture_launch for the newest row.
void fixture_launch_after(decode_fixture *r, int n_before);
void fixture_decode_alone(decode_fixture *r, int s); // one step of sequence s only; its output goes to out[0]
// After fixture_launch: checks every head's output, the counts, and what the heads keep for the layer's next threshold.
void fixture_check(decode_fixture *r);
void fixture_check_masses(decode_fixture *r); // after fixture_launch: compares stored masses with the scores
// |out - mu| / |mu|, with mu dense attention, of a join attention to the set. mu: [head_dim], filled, or NULL.
double fixture_error(const decode_fixture *r, int s, int head, double *mu);

// The threshold of the last step of sequence s, and the steps of its heads [n_heads], from the state on the GPU.
sl_threshold fixture_threshold(const decode_fixture *r, int s);
void fixture_steps(const decode_fixture *r, int s, sl_threshold_step *out);

// The masses (which 0) or sizes (which 1) that the GPU stored for one head, in the CPU's format. Checks that the block masses
// are the sums of the stored masses.
sl_masses fixture_masses(const decode_fixture *r, int which, int s, int head);
void fixture_masses_free(sl_masses *masses);
// The proposed scores of a KV head in log2 units: [group][units], from malloc. Exact scores are computed in double precision,
// other scores by the CPU's code.
double *fixture_scores(decode_fixture *r, int s, int kv_head);

// Makes a fixture for `attn`, launches one step and makes all checks above.
void fixture_try(const char *attn, int n_heads, int n_kv_heads, int head_dim, int n_seqs, const int *lengths,
                 double query_scale);
void fixture_try_on(ref_cache *c, const char *attn);
#endif

#endif
