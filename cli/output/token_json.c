// cli/output/token_json.c - see token_json.h.
#include "cli/output/token_json.h"

json_t *cli_ids_json(const sl_ids *ids) {
    json_t *list = json_array();
    for (size_t i = 0; i < ids->n; i++) json_array_append_new(list, json_integer(ids->data[i]));
    return list;
}

static json_t *bytes_json(const sl_text *bytes) {
    json_t *list = json_array();
    for (size_t i = 0; i < bytes->n; i++) json_array_append_new(list, json_integer((unsigned char)bytes->data[i]));
    return list;
}

json_t *cli_ids_text_json(const sl_tokenizer *tok, const sl_ids *ids) {
    sl_text text = {0};
    sl_error why;
    if (!tok) return json_null();
    sl_detok_stream stream = sl_detok_begin(tok, 1, 0);
    int rc = 0, n_vocab = sl_tokenizer_n_vocab(tok);
    for (size_t i = 0; !rc && i < ids->n; i++) // ids above the tokenizer's are padding of the vocabulary and have no text
        if (ids->data[i] < n_vocab) rc = sl_detok_next(&stream, ids->data[i], &text, &why);
    if (!rc) rc = sl_detok_end(&stream, &text, &why);
    json_t *out = rc ? NULL : json_stringn(text.data, text.n);
    sl_text_free(&text);
    return out;
}

json_t *cli_token_json(const sl_tokenizer *tok, int32_t id) {
    const sl_ids one = {.data = &id, .n = 1};
    sl_text bytes = {0};
    sl_error why;
    int rc = tok ? sl_token_bytes(tok, id, &bytes, &why) : 0;
    json_t *out = rc ? NULL
                     : json_pack("{s:i, s:o, s:o}", "id", (int)id, "token", cli_ids_text_json(tok, &one), "bytes",
                                 tok ? bytes_json(&bytes) : json_null());
    sl_text_free(&bytes);
    return out;
}
