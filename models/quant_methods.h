// models/quant_methods.h - readers of the descriptions of quantised checkpoints, one for each quant_method. Only
// quant_config.c calls them.
#ifndef SLEIGH_QUANT_METHODS_H
#define SLEIGH_QUANT_METHODS_H

#include "base/json.h"
#include "models/quant_scheme.h"

// Reads the object f->root for the method q->method. f->path: of the object, for messages.
int sl_quant_read_method(const sl_json_file *f, sl_quant *q, sl_error *err);

#endif
