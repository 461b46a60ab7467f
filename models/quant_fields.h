// models/quant_fields.h - reads fields of the description of a quantised checkpoint.
#ifndef SLEIGH_QUANT_FIELDS_H
#define SLEIGH_QUANT_FIELDS_H

#include "base/json.h"
#include "models/quant_scheme.h"

// SL_ERR_UNSUPPORTED when the object has a field that the list lacks, or when a field of `refused` is not neutral: null, false,
// an empty object or list. NULL ends a list.
int sl_quant_check_fields(const sl_json_file *f, const char *const *known, const char *const *refused, sl_error *err);
// Reads kv_cache_scheme: fp8 with scales of a tensor or of a KV head, or null. *has_scales: the checkpoint has the scales.
int sl_quant_read_kv_scheme(const sl_json_file *f, int *has_scales, sl_error *err);
// SL_ERR_UNSUPPORTED when the field is given and is none of `allowed`, which NULL ends.
int sl_quant_check_string(const sl_json_file *f, const char *field, const char *const *allowed, sl_error *err);
// Adds a rule for every string of the list f->root[field], which may be missing.
int sl_quant_add_rules(sl_quant *q, const sl_json_file *f, const char *field, sl_quant_match match, int scheme, sl_error *err);

#endif
