// models/quant_config.h - how the linear layers of a quantised checkpoint are stored, from the documents of its folder.
//
// The description is the field quantization_config (old: compression_config) of config.json, or hf_quant_config.json
// (ModelOpt), or quantize_config.json (GPTQ). Sleigh understands every field of it, or refuses the field by name.
#ifndef SLEIGH_QUANT_CONFIG_H
#define SLEIGH_QUANT_CONFIG_H

#include "base/documents.h"
#include "models/quant_scheme.h"

// round: as in sl_quantise_parse. SL_ERR_UNSUPPORTED: a field or a value is not supported. SL_ERR_FORMAT: it is malformed.
// SL_ERR_ARG: a format of `round` is not known, or round->weights is given and the checkpoint is quantised already.
int sl_quant_load(const sl_documents *documents, const sl_quantise_texts *round, sl_quant *out, sl_error *err);

#endif
