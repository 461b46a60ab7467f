// models/quant_compressed.h - reads the description of a compressed-tensors checkpoint. Only quant_methods.c calls it.
#ifndef SLEIGH_QUANT_COMPRESSED_H
#define SLEIGH_QUANT_COMPRESSED_H

#include "base/json.h"
#include "models/quant_scheme.h"

int sl_quant_read_compressed(const sl_json_file *f, sl_quant *q, sl_error *err); // f: as in sl_quant_read_method

#endif
