// models/gguf_tensors.h - the weights of a GGUF file, under the names that Hugging Face gives them.
//
// Tensors of type F32, F16 and BF16 stay in the mapped file. Packed tensors (quantised ones, and those of q and k of
// architecture llama, whose rows lie in another order) have no data until sl_tensors_unpack.
//
// The quantised matrices are kept: recipes make weights of their blocks (models/recipe.h), whose numbers are those of the file.
// Where --weights rounds the matrices, they are unpacked instead, into fp32 if they all need at most 4 GiB then, and into fp16
// in larger models. The numbers of all supported types are multiples of 2^-24, the distance of the smallest fp16 numbers, so
// fp16 rounds a number by at most 2^-11 of its size (bf16: 2^-8). For SmolLM2-135M (Q4_1), the logits then differ from double
// precision by 2.4e-3 to 4.9e-3 of their size, and with fp32 by 0.5e-3 to 1.9e-3, which is the noise of a bf16 KV cache. The
// choice depends on the file only, not on the machine.
#ifndef SLEIGH_GGUF_TENSORS_H
#define SLEIGH_GGUF_TENSORS_H

#include "base/progress.h"
#include "models/gguf.h"

// n_heads, n_kv_heads: of q and k, whose rows the file has in another order; 0: in the same order. keep_blocks: 1: the
// quantised matrices are kept. most_fp32: the most bytes of unpacked matrices as fp32; if they need more, they become fp16.
// Takes over the mappings of *g, whose tensors and values are then undefined, also after an error. Refuses names that no
// architecture has.
#define SL_GGUF_MOST_FP32 ((size_t)4 << 30)
int sl_gguf_tensors(sl_gguf *g, int n_heads, int n_kv_heads, int keep_blocks, size_t most_fp32, sl_tensors **out,
                    sl_error *err);
// Allocates memory for the packed tensors, and makes their numbers. Progress is in MiB. The work is divided over the pool of
// the calling thread (sl_parallel). Does nothing when it was done before. A number that is not finite is SL_ERR_FORMAT.
int sl_tensors_unpack(sl_tensors *t, const sl_progress *progress, const sl_cancel *cancel, sl_error *err);
// Makes a weight of the blocks of a kept tensor: data, scale, and min of a format that has it, in the shapes of sl_weight. The
// work is divided over the pool of the calling thread. SL_ERR_FORMAT: a number is not finite.
int sl_gguf_split(const sl_tensor *t, uint8_t *data, float *scale, float *min, sl_error *err);

#endif
