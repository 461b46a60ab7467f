// cli/attn/attn_profile.h - the file of --attn-profile, which `sleigh tune` writes: attention settings that were found for
// one model.
//
//   {"format": "sleigh attention profile 1",
//    "model": {"config": "fnv1a:...", "weights": "fnv1a:..."},          the model that it is for (fingerprint.h)
//    "prefill": {"segment": 32768, "ranges": [                          --attn-prefill=auto
//       {"from": 12288, "attn": "sample:alpha_c=0.9", "found": {...}}, ...]},
//    "decode": {"layers": ["santa-prop:S=12", ...], "found": {...}},     the method of each layer
//    "auto": {"calibration": "table.json"}}                             the table of --attn=auto
//
// "prefill", "decode" and "auto" are optional. "found" says how the settings were found; a run does not read it. A range is for
// prompts of `from` tokens or more, up to the next range. Shorter prompts are prefilled densely. The file has no times and no
// dates. Next to FILE.json, FILE.times.json may hold the times of prefill on one device: prompts below the measured crossover
// are prefilled densely there.
#ifndef SLEIGH_CLI_ATTN_PROFILE_H
#define SLEIGH_CLI_ATTN_PROFILE_H

#include "attention/attention.h"
#include "base/error.h"
#include "base/hash.h"

#include <jansson.h>

enum { CLI_PROFILE_RANGES = 32, CLI_PROFILE_PATH = 4096 };

typedef struct cli_prefill_range {
    int from;          // tokens of the shortest prompt
    sl_attn_spec attn; // a method for prefill
} cli_prefill_range;

typedef struct cli_attn_profile {
    int segment, n_ranges;                        // n_ranges 0: no "prefill"
    cli_prefill_range ranges[CLI_PROFILE_RANGES]; // `from` ascending
    sl_attn_plan decode;                          // n_layers 0: no "decode"
    char calibration[CLI_PROFILE_PATH];           // "": no "auto"; a relative path begins at the folder of the profile
    int crossover; // from the file of times: shorter prompts are prefilled densely; 0: no times of this device; INT_MAX: dense
                   // prefill is faster at every length
} cli_attn_profile;

// Reads and checks a profile for the model in the folder `model` (is_dummy: its weights are random) with n_layers layers.
// device: the name of the device, for the file of times. SL_ERR_IO: cannot read. SL_ERR_FORMAT: not a profile; names file and
// field. SL_ERR_UNSUPPORTED: made for another model. The caller frees *out, also after an error.
int cli_attn_profile_read(const char *path, const char *model, int is_dummy, const sl_rope_options *rope, int n_layers,
                          const char *device, cli_attn_profile *out, sl_error *err);
// A hash of the profile and of its file of times, if there is one: what auto chooses depends on both.
int cli_attn_profile_hash(const char *path, char out[SL_HASH_TEXT], sl_error *err);
void cli_attn_profile_free(cli_attn_profile *p);
// The method that prefills a prompt of n_tokens: that of its range, or dense.
const sl_attn_spec *cli_attn_profile_choose(const cli_attn_profile *p, int n_tokens);

// {"config", "weights"} of the model. NULL after an error.
json_t *cli_attn_profile_model(const char *model, int is_dummy, const sl_rope_options *rope, sl_error *err);
// Writes a profile of these parts (NULL: left out) and releases them. The same parts give the same bytes.
int cli_attn_profile_write(const char *path, json_t *model, json_t *prefill, json_t *decode, json_t *calibration,
                           sl_error *err);

// ---- the file of times ----

typedef struct cli_prefill_time {
    int from;            // of the range
    double ms, dense_ms; // median times of a prefill
} cli_prefill_time;

// PROFILE.json gives PROFILE.times.json; another name gets .times.json at its end.
void cli_prefill_times_path(const char *profile, char buf[CLI_PROFILE_PATH]);
int cli_prefill_times_write(const char *path, const char *device, const cli_prefill_time *times, int n, sl_error *err);
// The first `from` at which, and at every later one, ms is at most 95% of dense_ms; INT_MAX: there is none.
int cli_prefill_crossover(const cli_prefill_time *times, int n);

#endif
