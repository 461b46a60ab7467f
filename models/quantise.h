// models/quantise.h - rounds plain weights to a format: when they are loaded (--weights), or for a folder (sleigh quantize).
#ifndef SLEIGH_QUANTISE_H
#define SLEIGH_QUANTISE_H

#include "backend/weight.h"

// Columns that share a scale in SL_INT4, if the caller does not choose; the other formats have a scale for each row.
enum { SL_QUANTISE_GROUP = 128 };

// The format of a weight.
typedef struct sl_quantise_spec {
    sl_format format; // SL_FP8, SL_INT8, SL_INT4; SL_BF16: the weight is not rounded
    int group;        // SL_INT4: columns that share a scale
} sl_quantise_spec;

// What the options of sl_model_options ask for, as texts; NULL: not given.
typedef struct sl_quantise_texts {
    const char *weights;          // "fp8", "int8", "int4", "int4:group=32"
    const char *head, *embedding; // also "bf16"
} sl_quantise_texts;

// The formats of a model's matrices.
typedef struct sl_quantise_specs {
    sl_quantise_spec linear, head, embedding; // head: lm_head, and an embedding that is tied to it
    int has_head, has_embedding;              // 1: given, not the default
} sl_quantise_specs;

// texts NULL: nothing is rounded. Without a format of its own, the head is int8 where the linear layers are int4, because it
// decides between single tokens; otherwise head and embedding are not rounded. SL_ERR_ARG
int sl_quantise_parse(const sl_quantise_texts *texts, sl_quantise_specs *out, sl_error *err);
int sl_quantise_is_plain(const sl_quantise_specs *specs); // 1: nothing is rounded
// Continues an FNV-1a hash (base/hash.h) with the formats. Nothing is rounded: the hash stays.
uint64_t sl_quantise_hash(const sl_quantise_specs *specs, uint64_t hash);

// Rounds `plain`, a weight with data, to *to, whose format, shape, group and scale_rows (1) are set. Writes to->data
// [n_rows][row bytes] and to->scale, whose memory the caller gives. Numbers are rounded to nearest. Each scale is a bf16
// number, as files hold it: the one of a few that has the least sum of squared errors. The integer formats may have negative
// scales, so that the number of the largest size is -8 or -128. The threads of the calling thread's pool share the work. Their
// number does not change the result. SL_ERR_FORMAT: a number is not finite.
int sl_quantise(const sl_weight *plain, const sl_weight *to, sl_error *err);

#endif
