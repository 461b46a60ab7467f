// attention/extras/bucket_visit.h - what one KV head keeps in a step of a method with buckets: the buckets that it visits, and
// the rows that it reads exactly. The proposals of propose_buckets.c fill it, and the draws read it.
#ifndef SLEIGH_BUCKET_VISIT_H
#define SLEIGH_BUCKET_VISIT_H

#include "attention/extras/bucket_index.h"
#include "attention/stages/stages.h"

typedef struct sl_bucket_visit {
    uint64_t *bytes;  // [1] of page extras, centroids and classifier that the step read
    uint64_t *keys;   // [C] scratch: score and bucket, in the order of the visits
    uint64_t *bitmap; // [ceil(n_kv / 64)] bit j: row j is read exactly
    float *score;     // [C] of the buckets; set if a row is left for which a choice or a draw reads it
    float *hidden;    // [W] scratch
    float *logits;    // [C] scratch
    uint8_t *visited; // [C] 1: the rows of the bucket are read exactly. A dense layer visits all buckets
    int sink, window; // rows [0, sink) and from `window` on are read exactly; window is at most the first row without a bucket
} sl_bucket_visit;

extern const sl_proposal sl_propose_bucket_ranks; // the order of the buckets as scores of rows: propose_buckets.c

sl_bucket_visit sl_bucket_visit_of(const sl_group *g);              // valid after the proposal's begin
int sl_bucket_n_spans(const sl_group *g, const sl_bucket_visit *v); // full spans with rows before the window

#endif
