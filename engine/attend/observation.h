// engine/attend/observation.h - sl_observation: the observer of decode steps and its memory (observe.c, on a GPU
// observe_cuda.c).
#ifndef SLEIGH_OBSERVATION_H
#define SLEIGH_OBSERVATION_H

#include "engine/engine.h"
#include "models/arch.h"

// An observer and its memory. observer.fn is NULL without an observer.
typedef struct sl_observation {
    sl_observer observer;
    sl_attn_spec *shadows;    // [n_shadows]
    float *dense;             // [2][n_sequences][n_heads][head_dim]: outputs of dense attention, and of one shadow
    sl_attn_query *queries;   // [n_sequences] of a shadow, on the host
    sl_attn_report *running;  // [n_sequences][n_heads] of the method that decodes
    sl_attn_report *reports;  // [n_sequences][n_heads] of a shadow
    double *masses;           // [n_sequences][n_heads][max_pages] log2 of the mass of each page's rows in dense attention
    uint32_t *tiles;          // [n_sequences][n_heads] the fewest 256-row tiles that hold 90% of the mass
    sl_attn_spread *profiles; // [n_sequences][n_heads], when the observer wants them
    float *scores;            // [n_sequences][n_heads][max_pages][256] on the host, for profiles
    int max_pages;
    size_t state_size; // bytes of one shadow's state in one layer
    // Counts sl_engine_observe. A session with another count rebuilds its shadows' state before its next step.
    int version;
    struct sl_device_observation *device; // engine/attend/observe_cuda.c; NULL on the host
} sl_observation;

void sl_observation_free(sl_engine *e, sl_observation *o);
size_t sl_shadow_state_size(const sl_engine *e); // bytes of a session
static inline int sl_observes_error(const sl_observation *o) {
    return o->observer.with_error || o->observer.n_shadows > 0;
}
// The offset of a layer's part in a session's shadow state. which: shadow * n_seeds + seed
size_t sl_shadow_state_at(const sl_engine *e, int layer, int which);
// Sets o->tiles of heads [first, first + n) from n_pages masses of each head. Overwrites o->masses.
void sl_observation_count_tiles(const sl_observation *o, int first, int n, int n_pages);
// Calls the observer with the records of all heads of sequence i of a batch. *what: the fields that the heads share; profile:
// NULL or [n_heads]. reports: [n_heads]. out: [n_heads][head_dim], the outputs to compare with o->dense, when the observer
// wants errors.
void sl_observation_report(const sl_engine *e, const sl_attn_record *what, int i, const sl_attn_report *reports,
                           const float *out);

// Fills *out from the scores of n rows, in log2 units. Overwrites score.
void sl_attn_spread_of(float *score, int n, sl_attn_spread *out);

int sl_host_check_shadow(sl_engine *e, const sl_attn_spec *spec, sl_error *err);
// Runs and reports shadows on the host, after the running method's decode of one layer. a->reports: the running method's
void sl_host_observe(sl_engine *e, const sl_attn_decode_args *a, const sl_batch *batch);

#endif
