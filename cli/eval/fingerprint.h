// cli/eval/fingerprint.h - hashes of a model folder, to distinguish results of different models.
#ifndef SLEIGH_FINGERPRINT_H
#define SLEIGH_FINGERPRINT_H

#include "base/error.h"
#include "base/hash.h"
#include "cli/options/options.h"
#include "kv/kv_rows.h"

#include <jansson.h>

typedef struct cli_fingerprint {
    // Each "fnv1a:" and 16 digits.
    char config[SL_HASH_TEXT];    // config.json and generation_config.json; RoPE, window and head as Sleigh reads them
    char weights[SL_HASH_TEXT];   // name, dtype, shape and samples of the data of each tensor; independent of shards
    char tokenizer[SL_HASH_TEXT]; // documents of the tokenizer and the chat template
} cli_fingerprint;

// Samples the weights (sl_tensors_hash). is_dummy: there are no weights to read. rope: NULL: as config.json says. From then on
// the files of weights are watched (watch.h).
int cli_fingerprint_read(const char *model, int is_dummy, const sl_rope_options *rope, cli_fingerprint *out, sl_error *err);

// Adds how weights, activations and KV cache are stored, where a flag says it, to the settings of a file of results. Returns 0,
// or another value if memory is short.
int cli_put_formats(json_t *settings, const cli_run_options *o, sl_kv_formats cache);

#endif
