// models/quantise.h - rounds plain weights to a format when they are loaded (--weights).
#ifndef SLEIGH_QUANTISE_H
#define SLEIGH_QUANTISE_H

#include "backend/weight.h"

// Columns that share a scale in SL_INT4, if the caller does not choose; the other formats have a scale for each row.
enum { SL_QUANTISE_GROUP = 128 };

// What --weights asks for.
typedef struct sl_quantise_spec {
    sl_format format; // SL_FP8, SL_INT8, SL_INT4; SL_BF16: nothing is rounded
    int group;        // SL_INT4: columns that share a scale
} sl_quantise_spec;

// Reads "fp8", "int8", "int4" or "int4:group=32". NULL: nothing is rounded. SL_ERR_ARG
int sl_quantise_parse(const char *text, sl_quantise_spec *out, sl_error *err);

// Rounds `plain`, a weight with data, to *to, whose format, shape, group and scale_rows (1) are set. Writes to->data
// [n_rows][row bytes] and to->scale, whose memory the caller gives. Numbers are rounded to nearest. Each scale is the one of a
// few that has the least sum of squared errors. The integer formats may have negative scales, so that the number of the
// largest size is -8 or -128. The threads of the calling thread's pool share the work. Their number does not change the result.
// SL_ERR_FORMAT: a number is not finite.
int sl_quantise(const sl_weight *plain, const sl_weight *to, sl_error *err);

#endif
