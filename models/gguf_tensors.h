// models/gguf_tensors.h - the weights of a GGUF file, under the names that Hugging Face gives them.
//
// Tensors of type F32, F16 and BF16 stay in the mapped file. Packed tensors (quantised ones, and those of q and k of
// architecture llama, whose rows lie in another order) have no data until sl_tensors_unpack.
//
// Quantised matrices become fp16. The numbers of all supported types are multiples of 2^-24, the distance of the smallest fp16
// numbers, so fp16 rounds a number by at most 2^-11 of its size. bf16 would round by 2^-8, and fp32 needs twice the memory.
#ifndef SLEIGH_GGUF_TENSORS_H
#define SLEIGH_GGUF_TENSORS_H

#include "engine/base/progress.h"
#include "models/gguf.h"

// n_heads, n_kv_heads: of q and k, whose rows the file has in another order; 0: in the same order. Takes over the mappings of
// *g, whose tensors and values are then undefined, also after an error. Refuses names that no architecture has.
int sl_gguf_tensors(sl_gguf *g, int n_heads, int n_kv_heads, sl_tensors **out, sl_error *err);
// Allocates memory for the packed tensors, and makes their numbers. Progress is in MiB. n_threads 0: every core. The number of
// threads does not change the numbers. Does nothing when it was done before. A number that is not finite is SL_ERR_FORMAT.
int sl_tensors_unpack(sl_tensors *t, int n_threads, const sl_progress *progress, const sl_cancel *cancel, sl_error *err);

#endif
