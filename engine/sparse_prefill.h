// engine/sparse_prefill.h - sl_sparse_prefill: which methods prefills run, their masks, and what they report.
#ifndef SLEIGH_SPARSE_PREFILL_H
#define SLEIGH_SPARSE_PREFILL_H

#include "attention/prefill/prefill_mask.h"
#include "engine/engine.h"

// Memory of the mask of the layer and segment that run.
typedef struct sl_mask_memory {
    sl_prefill_mask host;               // on the CPU
    size_t host_size;                   // bytes of host.bits
    void *device;                       // on a GPU: sl_attn_cuda_prefill_stats [n_layers][n_heads], the mask, workspace
    size_t device_size, mask_at, ws_at; // offsets of the mask and the workspace
} sl_mask_memory;

typedef struct sl_sparse_prefill {
    sl_attn_plan plan; // the method that each layer prefills with
    int has_masks;     // 1: a layer's method proposes a mask
    int version;       // counts the plans that sl_engine_set_prefill has set
    // A prefill pass ends at a multiple of segment_tokens, and runs layer by layer. 0: passes of prefill_chunk tokens
    int segment_tokens;
    sl_mask_memory masks;
    sl_prefill_count *counts;        // [n_layers][n_heads] blocks of the pass that runs
    sl_prefill_report *pass_reports; // [n_layers][n_heads] the other fields of that pass
    sl_prefill_report *reports;      // [n_layers][n_heads] of all passes since the last reset
    sl_prefill_observer observer;
    float *checked; // [n_heads][head_dim + 1] dense attention's outputs of a checked row, and its errors; NULL: no checks
    // During a pass of several chunks on the CPU: where its progress goes. fn NULL: nowhere
    struct sl_pass_progress {
        sl_progress progress;
        int from, n, total; // tokens before the pass, of the pass, of the prefill
    } progress;
} sl_sparse_prefill;

// ---- prefill_plan.c ----

int sl_sparse_prefill_new(sl_engine *e, sl_error *err); // dense attention in every layer, and no reports
void sl_sparse_prefill_free(sl_engine *e);

// ---- prefill_report.c ----

int sl_prefill_new_reports(sl_engine *e, sl_error *err);
void sl_prefill_free_reports(sl_engine *e);
void sl_prefill_reset(sl_engine *e); // forgets all reports
// After a pass of n tokens of a sparse prefill: adds its reports to the engine's reports, and calls the observer.
void sl_prefill_pass_done(sl_engine *e, uint32_t sequence, int position, int n);
// The rows to check in a pass of n tokens: sl_prefill_n_checked rows, in ascending order.
int sl_prefill_n_checked(const sl_engine *e, int n);
int sl_prefill_checked_row(const sl_engine *e, int n, int i);

#endif
