// models/bucket_file.h - the bucket file of a model, saap.safetensors: what attention/extras/buckets.h needs of the model.
// The file is mapped, not copied.
//
//   tensor            dtype  shape (L layers, H KV heads, C buckets, d = head_dim, W width)
//   centroids         BF16   [L, H, C, d]  of keys before RoPE, each of norm 1 before the rounding
//   centroids_roped   BF16   [L, H, C, d]  of keys after RoPE; optional
//   w1, b1            BF16   [L, H, W, d], F32 [L, H, W]   classifier, x -> w2 relu(w1 x + b1) + b2; its batch norm is folded
//   w2, b2            BF16   [L, H, C, W], F32 [L, H, C]   into w1 and b1. Optional, all four or none
//
//   metadata          text
//   format_version    1
//   buckets           C, from 1 to 4096
//   width             W, a multiple of 16 up to 8192; 0 without a classifier
//   dense_layers      number of first layers without trained numbers (zeros in the tensors)
//   model             hash of the model's config and weights: sl_tensors_hash(tensors, sl_config_hash(config)) as "fnv1a:" and
//                     16 hexadecimal digits
//
// Every other metadata is ignored. Another tensor is an error.
#ifndef SLEIGH_BUCKET_FILE_H
#define SLEIGH_BUCKET_FILE_H

#include "attention/extras/buckets.h"
#include "models/config.h"
#include "models/safetensors.h"

#define SL_BUCKET_FILE "saap.safetensors" // its name in the folder of a model

typedef struct sl_bucket_file sl_bucket_file;

// Maps the file and checks metadata, the model's hash, and the dtype and shape of each tensor. Errors name the file, the
// tensor or metadata, the found and the expected value. SL_ERR_IO: the file cannot be read. SL_ERR_UNSUPPORTED: another
// format_version, or made for another model. SL_ERR_FORMAT: all other errors.
int sl_bucket_file_open(const char *path, const sl_config *config, const sl_tensors *weights, sl_bucket_file **out,
                        sl_error *err);
void sl_bucket_file_close(sl_bucket_file *f);
const sl_buckets *sl_bucket_file_get(const sl_bucket_file *f); // valid until the file is closed
const sl_tensors *sl_bucket_file_tensors(const sl_bucket_file *f);

#endif
