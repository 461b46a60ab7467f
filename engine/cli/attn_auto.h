// engine/cli/attn_auto.h - --attn=auto on the command line: the calibration table of this device and model, read when it is
// first wanted, and a line on stderr for every choice that is new.
#ifndef SLEIGH_ATTN_AUTO_H
#define SLEIGH_ATTN_AUTO_H

#include "attention/auto.h"
#include "engine/cli/options.h"
#include "models/config.h"

typedef struct cli_auto {
    sl_auto_table table;
    int is_open, has_table; // without a table auto is dense
    char said[4096];        // lines so far
} cli_auto;

// *out: plan, with what each `auto` in it comes to for a context of n_kv tokens in batches of n_seqs; the caller's to free. A
// plan without auto is copied. --calibration FILE, else the cache's table; where that does not exist auto is dense.
// quiet: say nothing. SL_ERR_FORMAT, SL_ERR_UNSUPPORTED: a table that is none, or another device's or model's.
int cli_auto_resolve(cli_auto *a, const cli_options *o, const char *device, const sl_config *config, const sl_attn_plan *plan,
                     int n_seqs, int n_kv, int quiet, sl_attn_plan *out, sl_error *err);
void cli_auto_close(cli_auto *a);

#endif
