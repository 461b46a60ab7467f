// engine/engine_device.h - sl_device: what an engine has on one device.
#ifndef SLEIGH_ENGINE_DEVICE_H
#define SLEIGH_ENGINE_DEVICE_H

#include "engine/attend/attn_runner.h"
#include "engine/engine.h"
#include "models/arch.h"

// The buffers of a pass: a chunk or a segment of a prefill, or a decode step.
typedef struct sl_pass_buffers {
    int max_rows;     // of a pass that is no segment
    int row_capacity; // max_rows, or the largest segment
    // In host memory.
    sl_workspace workspace;    // of attention on the CPU
    sl_row_range *ranges;      // [n_sequences]
    sl_row *rows;              // [row_capacity]
    sl_attn_query *queries;    // [n_step_rows]
    sl_session **logits_owner; // [n_step_rows] row i of logits holds the logits of this session; NULL: none
    // In the backend's memory.
    void *scratch; // the architecture's activations of max_rows rows
    size_t scratch_size;
    void *segment; // sl_batch.segment of row_capacity rows; NULL: no segments
    size_t segment_size;
    sl_row *device_rows; // [row_capacity]; on the CPU the same array as rows
    int32_t *ids;        // [row_capacity]
    float *logits;       // [n_step_rows][n_vocab] of the last step
    float *last_logits;  // [n_step_rows][n_vocab] on a device: logits before the step, for sequences that end with it; before
                         // this, rows that move
    size_t logits_size;  // bytes of each of these two
    void *stats;         // sl_attn_cuda_stats [2], on a device: of all steps; saved (sl_attn_runner.set_aside)
    size_t stats_size;
    // On a device with a cache of fp8 or int8: K and V of one layer of one sequence as bf16, which a prefill reads.
    struct sl_wide_rows {
        int n_pages;       // of the longest sequence; 0: none
        bf16 *k, *v;       // [n_pages][n_kv_heads][256][head_dim]
        int32_t *in_order; // [n_pages] 0, 1, 2, ..: their page table
        size_t size;       // bytes of k, and of v
    } wide;
} sl_pass_buffers;

// One device: its backend, which keeps the recordings of steps, and what lies in its memory.
typedef struct sl_device {
    const sl_backend *backend;
    const sl_attn_runner *attention;
    sl_model_weights weights; // the model's, in the backend's memory
    // The same with matrices in fewer bits, for drafts; fields NULL: none. draft_bytes: memory that they take in addition
    sl_model_weights draft_weights;
    size_t draft_bytes;
    sl_kv_formats formats; // of the pool
    sl_kv_pool pool;
    sl_kv_layout kv;                   // where K and V lie
    int n_pages;                       // of the pool
    struct sl_device_buckets *buckets; // the tensors of the bucket file (engine_buckets.c); NULL on the CPU
    sl_pass_buffers pass;
} sl_device;

// ---- engine_device.c ----

// Opens the backend that the options name: d->backend, d->attention.
int sl_device_open(sl_device *d, const sl_engine_options *o, sl_error *err);
void sl_device_close(sl_device *d); // call after sl_engine_close_buckets

// ---- pass_buffers.c ----

void sl_pass_upload(const sl_device *d, int n, const int32_t *ids); // the n rows of a pass, and ids unless they are NULL
// A batch of n_rows rows from row `first` on, and n_ranges ranges from range first_range on. More rows than max_rows are a
// segment.
sl_batch sl_pass_batch(sl_device *d, int first, int first_range, int n_ranges, int n_rows, sl_linear_mode mode);

// Makes the buffers of passes of d->pass.max_rows rows and of steps of n_sequences sessions and n_step_rows rows.
int sl_device_new_buffers(sl_device *d, int n_sequences, int n_step_rows, sl_error *err);
void sl_device_free_buffers(sl_device *d);
// Bytes of sl_pass_buffers.wide for each token of the longest sequence.
size_t sl_device_wide_bytes(const sl_device *d, const sl_config *c);
int sl_device_new_wide(sl_device *d, int n_ctx, sl_error *err);
// Makes room for segments of n_rows rows. 0: none. After an error there are no segments.
int sl_device_set_segment(sl_device *d, int n_rows, sl_error *err);

// ---- logits.c: the logits of the last step, and the session that owns each row of them ----

// Call before a pass over n sessions writes rows [first, first + n_rows) of the logits. Saves the logits of other sessions in
// these rows.
void sl_logits_before_step(sl_device *d, sl_session *const *sessions, int n, int first, int n_rows);
// Call after a pass: row first + i of the logits holds the logits of sessions[i].
void sl_logits_after_step(sl_device *d, sl_session *const *sessions, int n, int first);
// On a device: makes row i of the logits hold the logits of sessions[i]. Copies logits only if the row does not hold them,
// within the device where it has them. Overwrites last_logits.
void sl_logits_to_rows(sl_device *d, sl_session *const *sessions, int n);
// On a device, after a step: gives the session of row i the logits from before the step (sl_pass_buffers.last_logits).
void sl_logits_restore(sl_session *s, int i);
// SL_ERR_ARG when the session has no logits; the message says what to call.
int sl_session_need_logits(const sl_session *s, sl_error *err);
void sl_logits_forget_row(sl_session *s); // from now on only s->logits holds the logits

#endif
