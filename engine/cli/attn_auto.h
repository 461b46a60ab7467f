// engine/cli/attn_auto.h - --attn=auto on the command line: reads the calibration table of this device and model at first use,
// and reports each new choice on stderr.
#ifndef SLEIGH_ATTN_AUTO_H
#define SLEIGH_ATTN_AUTO_H

#include "attention/auto.h"
#include "engine/cli/options.h"
#include "models/config.h"

typedef struct cli_auto {
    sl_auto_table table;
    int is_open, has_table; // without a table, auto means dense
    char said[4096];        // lines that were printed already
} cli_auto;

// Copies `plan` to *out and replaces each auto by the method for a context of n_kv tokens in batches of n_seqs. The caller
// frees *out. The table is --calibration FILE, else the file in the cache folder; without a file, auto means dense. quiet:
// print nothing. SL_ERR_FORMAT: the file is not a table. SL_ERR_UNSUPPORTED: the table is for another device or model.
int cli_auto_choose_plan(cli_auto *a, const cli_options *o, const char *device, const sl_config *config,
                         const sl_attn_plan *plan, int n_seqs, int n_kv, int quiet, sl_attn_plan *out, sl_error *err);
void cli_auto_close(cli_auto *a);

#endif
