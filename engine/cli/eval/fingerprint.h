// engine/cli/eval/fingerprint.h - what a model folder holds, in three short texts: results of other weights are told apart,
// whatever their folder is called.
#ifndef SLEIGH_FINGERPRINT_H
#define SLEIGH_FINGERPRINT_H

#include "engine/base/error.h"
#include "engine/base/hash.h"

typedef struct cli_fingerprint {
    char config[SL_HASH_TEXT]; // "fnv1a:" and 16 digits: of config.json and generation_config.json
    char
        weights[SL_HASH_TEXT]; // of every tensor's name, dtype, shape and samples of its data, however the tensors lie in files
    char tokenizer[SL_HASH_TEXT]; // of the tokenizer's and the chat template's files
} cli_fingerprint;

// Reads 8 blocks of 4 KiB of each tensor: 10 MB of a model of 16 GB. Two models that differ in a few numbers alone may look the
// same. is_dummy: there are no weights to read. The files of weights are watched from then on (watch.h).
int cli_fingerprint_read(const char *dir, int is_dummy, cli_fingerprint *out, sl_error *err);

#endif
