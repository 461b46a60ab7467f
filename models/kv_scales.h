// models/kv_scales.h - the scales that a checkpoint has for a KV cache of fp8: one for a layer, or one for each KV head.
//
// A quantised checkpoint says so in its description (kv_cache_scheme, or kv_cache_quant_algo of ModelOpt). A cache of fp8 then
// stores numbers with these scales in place of scales of its own (kv/kv_rows.h); caches of other formats do not use them.
#ifndef SLEIGH_KV_SCALES_H
#define SLEIGH_KV_SCALES_H

#include "models/config.h"
#include "models/safetensors.h"

typedef struct sl_kv_scales {
    float *k, *v; // [n_layers][n_kv_heads]; NULL: the checkpoint has none
} sl_kv_scales;

// Reads the scales of every layer. SL_ERR_FORMAT: a scale is missing, has another shape, or is not a finite number above 0.
int sl_kv_scales_load(const sl_config *config, const sl_tensors *tensors, sl_kv_scales *out, sl_error *err);
void sl_kv_scales_free(sl_kv_scales *scales);
int sl_kv_scales_is_name(const char *tensor); // 1: the name is of a tensor that sl_kv_scales_load may read

#endif
