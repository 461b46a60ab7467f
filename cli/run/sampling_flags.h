// cli/run/sampling_flags.h - sampling parameters from flags and from the settings of the model.
#ifndef SLEIGH_SAMPLING_FLAGS_H
#define SLEIGH_SAMPLING_FLAGS_H

#include "cli/options/options.h"
#include "engine/engine.h"

int cli_check_biases(const cli_sampling_options *o, sl_error *err); // SL_ERR_ARG: a --logit-bias has another form
// A flag takes precedence over a setting of the model, and a setting over the default of a flag. The caller frees out->bias,
// also after an error.
int cli_make_sampling(const cli_sampling_options *o, const sl_model *model, sl_sampling *out, sl_error *err);

#endif
