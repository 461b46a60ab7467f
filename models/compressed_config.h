// models/compressed_config.h - the config.json of a compressed-tensors checkpoint. models/quant_compressed.h reads it.
#ifndef SLEIGH_COMPRESSED_CONFIG_H
#define SLEIGH_COMPRESSED_CONFIG_H

#include "base/arrays.h"
#include "models/quantise.h"

// Appends to *out the config.json of folder `from`, with a field quantization_config in addition: all linear layers have the
// format specs->linear, lm_head has specs->head (SL_BF16: it is plain). SL_ERR_ARG: config.json ties the head to the embedding,
// and the head has a format.
int sl_compressed_config(const char *from, const sl_quantise_specs *specs, sl_text *out, sl_error *err);

#endif
