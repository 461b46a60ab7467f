// tokenizer/token_files.c - reads what a model folder says about tokens beside its tokenizer: tokenizer_config.json,
// added_tokens.json and special_tokens_map.json. The added tokens of all files together count. A file that contradicts another
// one about the id of a token is refused.
#include "tokenizer/json_part.h"
#include "tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

typedef struct reader {
    sl_tokenizer *tok;
    char path[SL_DOCUMENT_PATH]; // of the file that is read
    sl_error *err;
} reader;

static int add(const reader *r, const sl_added *token) {
    int rc = sl_added_check(r->tok, r->path, token, r->err);
    return rc ? rc : sl_tokenizer_add(r->tok, r->path, token, r->err);
}

static int open_file(reader *r, const sl_documents *d, const char *name, json_t **root) {
    sl_documents_path(d, name, r->path);
    return sl_documents_json(d, name, 1, root, r->err);
}

// ---- tokens with ids ----

// {"32000": {"content": "<x>", "lstrip": false, ...}, ...}
static int read_decoder(const reader *r, const json_t *root) {
    const json_t *list = sl_json_get(root, "added_tokens_decoder");
    const char *key;
    json_t *v;
    if (list && !json_is_object(list))
        return sl_fail(r->err, SL_ERR_FORMAT, "%s: field added_tokens_decoder is %s, expected an object", r->path,
                       sl_json_type(list));
    json_object_foreach((json_t *)list, key, v) {
        const json_t *content = sl_json_get(v, "content");
        char *end;
        long id = strtol(key, &end, 10);
        if (!*key || *end || id < 0 || id > SL_MOST_TOKEN_ID || json_string_length(content) == 0)
            return sl_fail(r->err, SL_ERR_FORMAT,
                           "%s: field added_tokens_decoder: \"%.60s\": expected an id from 0 to %d with a content", r->path,
                           key, SL_MOST_TOKEN_ID);
        sl_added token = {.text = (char *)json_string_value(content), .n = json_string_length(content), .id = (int32_t)id};
        int rc = sl_added_flags(r->path, v, 0, &token, r->err);
        if (!rc) rc = add(r, &token);
        if (rc) return rc;
    }
    return 0;
}

static int read_added_tokens(const reader *r, const json_t *root) { // {"<x>": 32000, ...}
    const char *text;
    json_t *v;
    json_object_foreach((json_t *)root, text, v) {
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || id > SL_MOST_TOKEN_ID)
            return sl_fail(r->err, SL_ERR_FORMAT, "%s: \"%.60s\" has no id from 0 to %d", r->path, text, SL_MOST_TOKEN_ID);
        sl_added token = {.text = (char *)text, .n = strlen(text), .id = (int32_t)id, .normalized = 1};
        int32_t known = sl_tokenizer_find(r->tok, text);
        if (known == token.id) continue; // the other files have its flags
        int rc = add(r, &token);
        if (rc) return rc;
    }
    return 0;
}

// ---- tokens by name ----

static const char *content_of(const json_t *v) { // "<s>" or {"content": "<s>", ...}
    return json_string_value(json_is_object(v) ? sl_json_get(v, "content") : v);
}

// Makes a token that a file names special. Its id comes from the other files; a text that is no token there is ignored.
static int read_special(const reader *r, const json_t *v) {
    const char *text = content_of(v);
    int32_t id = text && *text ? sl_tokenizer_find(r->tok, text) : -1;
    if (!text || !*text) return 0;
    if (id >= 0) return sl_tokenizer_make_special(r->tok, text), 0;
    sl_added token = {.text = (char *)text, .n = strlen(text), .id = sl_tokenizer_piece(r->tok, text, strlen(text))};
    if (token.id < 0) return 0;
    int rc = sl_added_flags(r->path, json_is_object(v) ? v : NULL, 1, &token, r->err);
    token.special = 1;
    return rc ? rc : add(r, &token);
}

// Special tokens are the fields NAME_token, and lists (or objects) of other tokens.
static int read_specials(const reader *r, const json_t *root) {
    static const char *const lists[] = {"additional_special_tokens", "extra_special_tokens"};
    const char *key;
    json_t *v;
    int rc = 0;
    json_object_foreach((json_t *)root, key, v) {
        size_t n = strlen(key);
        if (n > 6 && !strcmp(key + n - 6, "_token")) rc = read_special(r, v);
        if (rc) return rc;
    }
    for (int i = 0; i < 2; i++) {
        const json_t *list = sl_json_get(root, lists[i]);
        for (size_t k = 0; !rc && k < json_array_size(list); k++) rc = read_special(r, json_array_get(list, k));
        if (!json_is_object(list)) continue;
        json_object_foreach((json_t *)list, key, v) rc = rc ? rc : read_special(r, v);
    }
    return rc;
}

// A BOS of the tokenizer's file has priority. tok->eos: -1 at first, because an EOS of the tokenizer's file has not: a model
// that learned to chat ends its answers with another token, which only tokenizer_config.json names.
static void read_ends(const reader *r, const json_t *root) {
    static const char *const fields[2] = {"bos_token", "eos_token"};
    int32_t *to[2] = {&r->tok->bos, &r->tok->eos};
    for (int i = 0; i < 2; i++) {
        const char *text = content_of(sl_json_get(root, fields[i]));
        int32_t id = text ? sl_tokenizer_find(r->tok, text) : -1;
        if (id >= 0 && *to[i] < 0) *to[i] = id;
    }
}

// add_bos_token and add_eos_token say what is put around a text, also where the post-processor of tokenizer.json says something
// else. An EOS after a prompt would end the answer before it begins.
static int read_adds(const reader *r, const json_t *root) {
    const sl_json_file f = {r->path, (json_t *)root};
    int add_bos, add_eos, rc = sl_json_bool(&f, "add_bos_token", r->tok->add_bos, &add_bos, r->err);
    if (!rc) rc = sl_json_bool(&f, "add_eos_token", 0, &add_eos, r->err);
    if (rc) return rc;
    if (add_eos)
        return sl_fail(r->err, SL_ERR_UNSUPPORTED,
                       "%s: field add_eos_token is true, expected false: an EOS after a prompt is not supported", r->path);
    r->tok->add_bos = add_bos && r->tok->bos >= 0;
    return 0;
}

int sl_token_files_load(const sl_documents *d, sl_tokenizer *tok, sl_error *err) {
    reader r = {.tok = tok, .err = err};
    json_t *config = NULL, *added = NULL, *map = NULL;
    int32_t eos = tok->eos;
    tok->eos = -1;
    int rc = open_file(&r, d, "tokenizer_config.json", &config);
    if (!rc) rc = read_decoder(&r, config);
    if (!rc) rc = open_file(&r, d, "added_tokens.json", &added);
    if (!rc) rc = read_added_tokens(&r, added);
    if (!rc) rc = open_file(&r, d, "special_tokens_map.json", &map);
    sl_documents_path(d, "tokenizer_config.json", r.path);
    if (!rc) rc = read_specials(&r, config);
    if (!rc) read_ends(&r, config);
    sl_documents_path(d, "special_tokens_map.json", r.path);
    if (!rc) rc = read_specials(&r, map);
    if (!rc) read_ends(&r, map);
    if (tok->eos < 0) tok->eos = eos;
    sl_documents_path(d, "tokenizer_config.json", r.path);
    if (!rc) rc = read_adds(&r, config);
    json_decref(config), json_decref(added), json_decref(map);
    return rc;
}

// ---- where SentencePiece puts a blank ----

static int read_prepend(void *ctx, const sl_part *p) {
    if (sl_part_is(p, "Prepend")) *(sl_blank *)ctx = SL_BLANK_ALWAYS;
    return 0;
}

static int read_metaspace(void *ctx, const sl_part *p) {
    return sl_part_is(p, "Metaspace") ? sl_blank_read(p, ctx) : 0;
}

// A tokenizer.json whose model Sleigh does not read says it too. In its Metaspace, a text that begins with a blank gets no
// other one. SentencePiece itself (and the setting `legacy`) puts a blank in front of each part, also of such a text.
int sl_blank_load(const sl_documents *d, sl_blank *blank, int *joins, sl_error *err) {
    char path[SL_DOCUMENT_PATH];
    json_t *config = NULL, *json = NULL;
    int prefix = 1, legacy = 1, rc = sl_documents_json(d, "tokenizer_config.json", 1, &config, err);
    sl_documents_path(d, "tokenizer_config.json", path);
    const sl_json_file f = {path, config};
    if (!rc) rc = sl_json_bool(&f, "add_prefix_space", 1, &prefix, err);
    if (!rc) rc = sl_json_bool(&f, "legacy", 1, &legacy, err);
    *blank = !prefix ? SL_BLANK_NEVER : legacy ? SL_BLANK_ALWAYS : SL_BLANK_FIRST;
    if (!rc) rc = sl_documents_json(d, "tokenizer.json", 1, &json, err);
    sl_documents_path(d, "tokenizer.json", path);
    const sl_part norm = {path, "normalizer", sl_json_get(json, "normalizer"), err},
                  pre = {path, "pre_tokenizer", sl_json_get(json, "pre_tokenizer"), err};
    if (!rc) rc = sl_part_each(&norm, "normalizers", read_prepend, blank);
    if (!rc) rc = sl_part_each(&pre, "pretokenizers", read_metaspace, blank);
    *joins = *blank == SL_BLANK_FIRST;
    json_decref(config), json_decref(json);
    return rc;
}
