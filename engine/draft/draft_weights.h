// engine/draft/draft_weights.h - copies of the model's matrices in fewer bits, for drafts of `self:weights=int4`. Drafts read
// them with the K and V of the session; verifications read the model's own weights, so no bit of a text depends on the copies.
//
// The copies are what {weights} makes: int4 in groups of 128 columns, and with it an output head of int8 (also as an embedding
// that is tied to it). An embedding of its own and the vectors are those of the model. They take memory beside the model's
// weights: sl_engine_place leaves room for them.
#ifndef SLEIGH_DRAFT_WEIGHTS_H
#define SLEIGH_DRAFT_WEIGHTS_H

#include "engine/engine_internal.h"

// Lists the copies, without data: e->rounded, e->device.draft_bytes. Call it before sl_engine_place. Errors of
// sl_model_list_rounded. SL_ERR_MEMORY: they do not fit beside the model's weights into the memory of the device, or a GPU's
// into host memory, where they are made.
int sl_draft_weights_list(sl_engine *e, const char *format, sl_error *err);
// Makes them: e->device.draft_weights. Call it after the model's weights are placed.
int sl_draft_weights_make(sl_engine *e, const sl_engine_options *o, sl_error *err);

#endif
