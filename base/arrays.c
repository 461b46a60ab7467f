// base/arrays.c - see arrays.h. The capacity doubles when an array is full.
#include "base/arrays.h"

#include <stdlib.h>
#include <string.h>

int sl_ids_push(sl_ids *ids, int32_t id, sl_error *err) {
    if (ids->n == ids->cap) {
        size_t cap = ids->cap ? 2 * ids->cap : 256;
        int32_t *grown = realloc(ids->data, cap * sizeof *grown);
        if (!grown) return sl_fail(err, SL_ERR_MEMORY, "%zu token ids: out of memory", cap);
        ids->data = grown;
        ids->cap = cap;
    }
    ids->data[ids->n++] = id;
    return 0;
}

void sl_ids_free(sl_ids *ids) {
    free(ids->data);
    *ids = (sl_ids){0};
}

int sl_text_append(sl_text *text, const char *data, size_t n, sl_error *err) {
    if (text->n + n + 1 > text->cap) {
        size_t cap = 2 * (text->n + n) + 64;
        char *grown = realloc(text->data, cap);
        if (!grown) return sl_fail(err, SL_ERR_MEMORY, "a text of %zu bytes: out of memory", cap);
        text->data = grown;
        text->cap = cap;
    }
    if (n > 0) memcpy(text->data + text->n, data, n);
    text->n += n;
    text->data[text->n] = 0;
    return 0;
}

void sl_text_free(sl_text *text) {
    free(text->data);
    *text = (sl_text){0};
}
