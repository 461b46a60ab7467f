// models/trained_file.h - what the files have in common that scripts train for a model (bucket_file.h, bit_file.h): safetensors
// with metadata. Errors name the file, the tensor or metadata, the found and the expected value.
#ifndef SLEIGH_TRAINED_FILE_H
#define SLEIGH_TRAINED_FILE_H

#include "base/hash.h"
#include "models/config.h"
#include "models/safetensors.h"

// The hash of a model's config and weights, which a trained file names.
void sl_trained_hash(const sl_config *config, const sl_tensors *weights, char out[SL_HASH_TEXT]);
// SL_ERR_UNSUPPORTED: metadata format_version is not 1, or metadata model is not the hash of the model's config and weights.
// script: makes the file of a model.
int sl_trained_check(const sl_tensors *t, const char *path, const char *script, const sl_config *config,
                     const sl_tensors *weights, sl_error *err);
// An integer of the metadata. SL_ERR_FORMAT: it is missing, or not from least to most.
int sl_trained_int(const sl_tensors *t, const char *path, const char *name, int least, int most, int *out, sl_error *err);

// A tensor of shape [layers][KV heads][dims].
typedef struct sl_trained_part {
    const char *name, *dtype;
    int dims[2];         // dims[1] 0: one dimension only
    int needed;          // 1: the file must have it; 0: it may; -1: it must not
    const void **to;     // data; NULL where the file lacks it
    const char *because; // of needed -1, for the message: what rules the tensor out
} sl_trained_part;

// Fills *to of each part. SL_ERR_FORMAT: a tensor is missing, unexpected, or has another dtype or shape. kind: of the file, for
// messages.
int sl_trained_bind(const sl_tensors *t, const char *path, const char *kind, const sl_config *config,
                    const sl_trained_part *parts, int n, sl_error *err);

#endif
