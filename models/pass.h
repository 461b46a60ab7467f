// models/pass.h - the order of the work of a pass, for every architecture: layer by layer, and within a layer all at once, or,
// for a segment of a sparse prefill, in parts. The architecture gives the arithmetic of a layer as two functions.
#ifndef SLEIGH_PASS_H
#define SLEIGH_PASS_H

#include "models/arch.h"

// Rows [from, from + n) of a batch in one layer.
typedef struct sl_pass_part {
    int layer, from, n;
    // 1: `rest` of a layer and `qkv` of the next layer run over the same rows, one directly after the other. Both calls have
    // the mark. `rest` then norms the rows for this `qkv`, and `qkv` does not norm them.
    int is_joined;
} sl_pass_part;

// A layer of an architecture, in two halves. scratch: what the caller of sl_pass_layers gives.
typedef struct sl_layer_halves {
    // Projects the part's rows and stores their K and V at kv. Returns the queries of the rows from part->from + skip on.
    sl_queries (*qkv)(const sl_batch *batch, const sl_pass_part *part, int skip, sl_kv_rows kv, void *scratch);
    // The rest of the layer: attention (batch->attend), its output projection, and the MLP. q: the queries of the part
    void (*rest)(const sl_batch *batch, const sl_pass_part *part, sl_queries q, void *scratch);
} sl_layer_halves;

void sl_pass_begin(const sl_batch *batch); // checks the batch, and prepares RoPE. Call before every other operation of forward.
// Runs all layers. Rows before those with logits only store K and V in the last layer, as far as masks allow.
void sl_pass_layers(const sl_batch *batch, const sl_layer_halves *halves, void *scratch);

// Bytes of sl_batch.segment: the residual stream, and the queries of a layer, of n_rows rows.
size_t sl_segment_size(const sl_config *c, const sl_backend *be, int n_rows);
float *sl_segment_x(const sl_batch *batch); // the residual stream [n_rows][hidden] of a segment

#endif
