// attention/extras/page_extras.h - the page extras that attention methods keep for every full page, next to K and V
// (kv/kv_extras.h). Host and CUDA methods share them: both backends build the same bits.
#ifndef SLEIGH_PAGE_EXTRAS_H
#define SLEIGH_PAGE_EXTRAS_H

#include "kv/kv_extras.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const sl_kv_extra_kind sl_page_norms;      // bf16 [256]: |v_j|, rounded up
extern const sl_kv_extra_kind sl_quantised_keys;  // arg: bits
extern const sl_kv_extra_kind sl_key_bounds;      // bf16 [16][2][head_dim]: smallest and largest key of 16 rows by channel
extern const sl_kv_extra_kind sl_keys_by_feature; // bf16 [head_dim][256]

#ifdef __cplusplus
}
#endif

#endif
