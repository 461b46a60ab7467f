// cli/attn/attn_auto.h - --attn=auto and --attn-prefill=auto on the command line: reads the table of this device and model at
// first use, and reports each new choice on stderr.
//
// If a GPU has no table, this file measures one (calibrate.h) and keeps it in the cache folder. If another version of the
// program measured a table with other candidates, this file measures again: auto chooses only methods of the table. A table
// that the user measured stays. --no-auto-calibrate forbids both. A CPU is never measured here: that takes minutes.
#ifndef SLEIGH_ATTN_AUTO_H
#define SLEIGH_ATTN_AUTO_H

#include "attention/auto.h"
#include "cli/attn/attn_profile.h"
#include "cli/options/options.h"
#include "models/config.h"

// cli_calibrate_gpu, or a test's function in its place.
typedef int cli_auto_measure(const char *device, const char *reason, sl_auto_table *table, sl_error *err);

typedef struct cli_auto {
    sl_auto_table table;
    cli_auto_measure *measure; // NULL: cli_calibrate_gpu on a GPU, nothing on a CPU
    const char *calibration;   // table of --attn-profile; --calibration takes precedence; NULL: none
    int is_open, has_table;    // without a table, auto means dense
    char path[4096];           // of the table
    char said[4096];           // lines that were printed already
} cli_auto;

// Copies `plan` to *out and replaces each auto by the method for a context of n_kv tokens in batches of n_seqs. The caller
// frees *out. The table is --calibration FILE, else that of a->calibration, else the file in the cache folder. If no table
// exists and none can be measured, a line on stderr gives the reason, and auto means dense. quiet: do not report the choices.
// SL_ERR_FORMAT: the file is not a table. SL_ERR_UNSUPPORTED: the table is for another device or model.
int cli_auto_choose_plan(cli_auto *a, const cli_attention_options *o, const char *device, const sl_config *config,
                         const sl_attn_plan *plan, int n_seqs, int n_kv, int quiet, sl_attn_plan *out, sl_error *err);
// *out becomes the method that --attn-prefill=auto means for a prompt of n_tokens. If the profile has methods for prefill, it
// is that of the prompt's range. Otherwise it is the method of the table from its crossover on, and dense below. The table is
// that of cli_auto_choose_plan; compare and eval use none, because they record only the profile. Without a table, or without
// times of prefill in it, a line on stderr gives the reason, and auto means dense.
int cli_auto_choose_prefill(cli_auto *a, const cli_attention_options *o, const char *device, const sl_config *config,
                            const cli_attn_profile *profile, int n_tokens, sl_attn_spec *out, sl_error *err);
void cli_auto_close(cli_auto *a);

#endif
