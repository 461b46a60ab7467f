// models/bit_file.h - the bit file of a model, bits.safetensors: the projections of sl_key_bits (attention/extras/buckets.h).
// The file is mapped, not copied.
//
//   tensor   dtype  shape (L layers, H KV heads, B bits, d = head_dim)
//   wq, wk   BF16   [L, H, B, d]  of queries and of keys, after RoPE
//   bq, bk   F32    [L, H, B]
//
//   metadata         text
//   format_version   1
//   bits             B, a multiple of 32 up to 128
//   model            hash of the model's config and weights, as in bucket_file.h
//
// Every other metadata is ignored. Another tensor is an error.
#ifndef SLEIGH_BIT_FILE_H
#define SLEIGH_BIT_FILE_H

#include "attention/extras/buckets.h"
#include "models/config.h"
#include "models/safetensors.h"

#define SL_BIT_FILE "bits.safetensors" // its name in the folder of a model

typedef struct sl_bit_file sl_bit_file;

// Maps the file and checks it. Errors: sl_bucket_file_open.
int sl_bit_file_open(const char *path, const sl_config *config, const sl_tensors *weights, sl_bit_file **out, sl_error *err);
void sl_bit_file_close(sl_bit_file *f);
const sl_key_bits *sl_bit_file_get(const sl_bit_file *f); // valid until the file is closed
const sl_tensors *sl_bit_file_tensors(const sl_bit_file *f);

#endif
