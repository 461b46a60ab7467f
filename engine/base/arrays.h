// engine/base/arrays.h - the growing arrays that texts and ids are appended to. Knows nothing of tokenizers.
#ifndef SLEIGH_ARRAYS_H
#define SLEIGH_ARRAYS_H

#include "engine/base/error.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Growing array of ids; zero-initialise, free with sl_ids_free.
typedef struct sl_ids {
    int32_t *data;
    size_t n, cap;
} sl_ids;
int sl_ids_push(sl_ids *ids, int32_t id, sl_error *err);
void sl_ids_free(sl_ids *ids);

// Growing byte string, zero-initialised by its owner; once appended to, always NUL-terminated past its end.
typedef struct sl_text {
    char *data;
    size_t n, cap;
} sl_text;
int sl_text_append(sl_text *text, const char *data, size_t n, sl_error *err);
void sl_text_free(sl_text *text);

#ifdef __cplusplus
}
#endif

#endif
