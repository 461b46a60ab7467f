// base/arrays.h - growing arrays of token ids and of bytes, spans of bytes.
#ifndef SLEIGH_ARRAYS_H
#define SLEIGH_ARRAYS_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// A growing array of ids. Initialise with zeros, free with sl_ids_free.
typedef struct sl_ids {
    int32_t *data;
    size_t n, cap;
} sl_ids;
int sl_ids_push(sl_ids *ids, int32_t id, sl_error *err);
void sl_ids_free(sl_ids *ids);

// A growing byte string. Initialise with zeros, free with sl_text_free. data[n] is NUL after the first sl_text_append.
typedef struct sl_text {
    char *data;
    size_t n, cap;
} sl_text;
int sl_text_append(sl_text *text, const char *data, size_t n, sl_error *err);
void sl_text_free(sl_text *text);

typedef struct sl_span { // the bytes [from, to) of a text
    size_t from, to;
} sl_span;

#ifdef __cplusplus
}
#endif

#endif
