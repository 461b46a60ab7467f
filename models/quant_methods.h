// models/quant_methods.h - readers of the descriptions of quantised checkpoints, one for each quant_method. Only
// quant_config.c calls them.
#ifndef SLEIGH_QUANT_METHODS_H
#define SLEIGH_QUANT_METHODS_H

#include "base/json.h"
#include "models/quant_config.h"

// Reads the object f->root for the method q->method. f->path: of the object, for messages.
int sl_quant_read_method(const sl_json_file *f, sl_quant *q, sl_error *err);
int sl_quant_read_compressed(const sl_json_file *f, sl_quant *q, sl_error *err); // compressed-tensors

// SL_ERR_UNSUPPORTED when the object has a field that the list lacks, or when a field of `refused` is not neutral: null, false,
// an empty object or list. NULL ends a list.
int sl_quant_check_fields(const sl_json_file *f, const char *const *known, const char *const *refused, sl_error *err);
// Adds a rule or a scheme.
int sl_quant_add_rule(sl_quant *q, const char *path, sl_quant_match match, const char *text, int scheme, sl_error *err);
int sl_quant_add_scheme(sl_quant *q, const char *path, const sl_quant_scheme *scheme, sl_error *err);
// Adds a rule for every string of the list f->root[field], which may be missing.
int sl_quant_add_rules(sl_quant *q, const sl_json_file *f, const char *field, sl_quant_match match, int scheme, sl_error *err);

#endif
