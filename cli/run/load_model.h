// cli/run/load_model.h - the flags of --model: checks before slow work, and the loaded model.
#ifndef SLEIGH_LOAD_MODEL_H
#define SLEIGH_LOAD_MODEL_H

#include "cli/options/options.h"
#include "engine/engine.h"

int cli_need_model(const cli_model_options *o, sl_error *err); // SL_ERR_ARG: --model is missing
int cli_is_dummy(const cli_model_options *o);                  // 1: --load-format dummy
// The reason for config->n_ctx, for messages.
const char *cli_limit_text(const sl_config *config);
// Prints a line on stderr and returns 1 if a context of n_ctx tokens is longer than the one that the model was trained on.
int cli_warn_trained(const sl_config *config, int n_ctx);
// Reads config.json of --model, applies --rope-scaling, and checks the flags whose range depends on the model's context. Call
// it before slow work.
int cli_read_config(const cli_run_options *o, sl_config *out, sl_error *err);
// Loads --draft-model; *out NULL: the flag is not given.
int cli_load_draft_model(const cli_draft_options *o, sl_model **out, sl_error *err);
sl_log cli_log(void); // prints the library's lines on stderr
// The options of the library that the flags of --model give. flags: as in sl_model_load
sl_model_options cli_load_options(const cli_model_options *o, unsigned flags);
// Loads --model, or makes dummy weights (--load-format). flags: as in sl_model_load. SL_ERR_ARG: the flags need texts, but
// a dummy model has no tokenizer.
int cli_load_model(const cli_run_options *o, const char *device, unsigned flags, sl_model **out, sl_error *err);

#endif
