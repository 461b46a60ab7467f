// models/gguf_vocab.c - the vocabulary of a GGUF file, and the ids of its special tokens. See gguf_documents.h.
#include "models/gguf_documents.h"

#include <stdio.h>
#include <string.h>

int sl_gguf_vocab_open(const sl_gguf *g, sl_gguf_vocab *out, sl_error *err) {
    int rc = sl_gguf_array(g, "tokenizer.ggml.tokens", SL_GGUF_STRING, &out->tokens, err);
    if (!rc) rc = sl_gguf_array(g, "tokenizer.ggml.token_type", SL_GGUF_I32, &out->types, err);
    if (rc) return rc;
    if (!out->tokens || out->tokens->n == 0 || out->tokens->n >= 1 << 24)
        return sl_fail(err, SL_ERR_FORMAT, "%s: key tokenizer.ggml.tokens has %llu elements, expected 1 to %d", g->path,
                       (unsigned long long)(out->tokens ? out->tokens->n : 0), (1 << 24) - 1);
    if (out->types && out->types->n != out->tokens->n)
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: key tokenizer.ggml.token_type has %llu elements, tokenizer.ggml.tokens has %llu", g->path,
                       (unsigned long long)out->types->n, (unsigned long long)out->tokens->n);
    return 0;
}

int sl_gguf_token_type(const sl_gguf *g, const sl_gguf_vocab *v, uint64_t i, int *type, sl_error *err) {
    long long x = v->types ? sl_gguf_int_at(v->types, i) : SL_GGUF_NORMAL;
    *type = (int)x;
    if (x >= SL_GGUF_NORMAL && x <= SL_GGUF_BYTE) return 0;
    return sl_fail(err, SL_ERR_FORMAT, "%s: key tokenizer.ggml.token_type: element %llu is %lld, expected %d to %d", g->path,
                   (unsigned long long)i, x, SL_GGUF_NORMAL, SL_GGUF_BYTE);
}

int sl_gguf_is_kind(const sl_gguf *g, const char *kind) {
    sl_gguf_string model;
    return !sl_gguf_text(g, "tokenizer.ggml.model", &model, NULL) && sl_gguf_equals(model, kind);
}

int sl_gguf_token_id(const sl_gguf *g, const char *name, int *id, sl_error *err) {
    static const struct {
        const char *name;
        int id;
    } sentencepiece[] = {{"unknown_token_id", 0}, {"bos_token_id", 1}, {"eos_token_id", 2}}; // where the file has none
    char key[64];
    long long def = -1, x;
    sl_gguf_vocab v;
    snprintf(key, sizeof key, "tokenizer.ggml.%s", name);
    int rc = sl_gguf_array(g, "tokenizer.ggml.tokens", SL_GGUF_STRING, &v.tokens, err);
    if (rc) return rc;
    long long most = v.tokens && v.tokens->n < INT32_MAX ? (long long)v.tokens->n - 1 : INT32_MAX;
    for (int i = 0; i < 3 && sl_gguf_is_kind(g, "llama"); i++)
        if (!strcmp(name, sentencepiece[i].name) && sentencepiece[i].id <= most) def = sentencepiece[i].id;
    rc = sl_gguf_int(g, key, 0, most, &def, &x, err);
    *id = (int)x;
    return rc;
}

sl_gguf_string sl_gguf_token_text(const sl_gguf_vocab *v, int id) {
    const char *at = v->tokens->at;
    sl_gguf_string s = {0};
    for (int i = 0; i <= id; i++) s = sl_gguf_next_string(&at);
    return s;
}
