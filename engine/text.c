// engine/text.c - text to token ids and back, in plain C arrays (sleigh.h).
#include "engine/engine_internal.h"

#include <limits.h>
#include <stdlib.h>

int sl_model_need_tokenizer(const sl_model *model, sl_error *err) {
    return model->tokenizer ? 0 : sl_fail(err, SL_ERR_ARG, "%s: the model was loaded without a tokenizer", model->name);
}

int sl_model_tokenize(const sl_model *model, const char *text, size_t n, unsigned flags, int32_t **ids, int *n_ids,
                      sl_error *err) {
    sl_ids found = {0};
    int rc = sl_model_need_tokenizer(model, err);
    if (!rc) rc = sl_tokenize(model->tokenizer, text, n, flags, &found, err);
    if (!rc && found.n > INT_MAX) rc = sl_fail(err, SL_ERR_ARG, "a text of %zu tokens: expected at most %d", found.n, INT_MAX);
    if (!rc && !found.data && !(found.data = malloc(sizeof *found.data))) // no ids: the caller gets a block to free
        rc = sl_fail(err, SL_ERR_MEMORY, "token ids: out of memory");
    if (rc) {
        sl_ids_free(&found);
        return rc;
    }
    *ids = found.data;
    *n_ids = (int)found.n;
    return 0;
}

int sl_model_detokenize(const sl_model *model, const int32_t *ids, int n_ids, unsigned flags, char **text, size_t *n,
                        sl_error *err) {
    sl_text out = {0};
    int rc = sl_model_need_tokenizer(model, err);
    if (!rc && n_ids < 0) rc = sl_fail(err, SL_ERR_ARG, "a list of %d token ids: expected 0 or more", n_ids);
    if (!rc) rc = sl_detokenize(model->tokenizer, ids, (size_t)n_ids, (flags & SL_TOK_SPECIALS) != 0, &out, err);
    if (!rc) rc = sl_text_append(&out, "", 0, err); // a NUL, also without ids
    if (rc) {
        sl_text_free(&out);
        return rc;
    }
    *text = out.data;
    if (n) *n = out.n;
    return 0;
}

void sl_free(void *p) {
    free(p);
}
