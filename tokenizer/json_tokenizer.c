// tokenizer/json_tokenizer.c - reads a tokenizer.json whose model is BPE: over bytes (GPT-2, Llama 3, Qwen, SmolLM2) or over
// characters (Llama 2, Mistral 7B). A field that would change the ids in a way that Sleigh does not implement is refused by
// name.
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/json_part.h"
#include "tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TOKEN = 2048 };

typedef struct reader {
    const char *path;
    const json_t *root, *model;
    sl_tokenizer *tok;
    int by_bytes; // the vocabulary is written in the alphabet of bytes
    sl_error *err;
} reader;

static sl_part part_of(const reader *r, const json_t *object, const char *field) {
    return (sl_part){r->path, field, sl_json_get(object, field), r->err};
}

static int refuse(reader *r, const char *field, const char *why) {
    return sl_fail(r->err, SL_ERR_UNSUPPORTED, "%s: field %s: %s", r->path, field, why);
}

// Reads a flag of an object of the file.
static int read_flag(reader *r, const json_t *object, const char *field, int def, int *out) {
    return sl_json_bool(&(sl_json_file){r->path, (json_t *)object}, field, def, out, r->err);
}

// The bytes of a string of the vocabulary: what the string stands for in the alphabet of bytes, else the string. out has room
// for MOST_TOKEN bytes. *n: their number; 0: the string is too long. Returns 0 if the alphabet lacks a character.
static int bytes_of(const reader *r, const char *s, size_t n_s, char *out, size_t *n) {
    ptrdiff_t decoded = r->by_bytes && n_s < MOST_TOKEN ? sl_alphabet_decode(s, n_s, out) : -1;
    *n = n_s < MOST_TOKEN ? n_s : 0;
    if (decoded < 0)
        memcpy(out, s, *n);
    else
        *n = (size_t)decoded;
    return decoded >= 0 || !r->by_bytes;
}

// ---- the model ----

static int read_vocab(reader *r, sl_bpe_options options) {
    const json_t *vocab = sl_json_get(r->model, "vocab");
    const char *key;
    json_t *value;
    int most = r->tok->n_vocab;
    if (!json_is_object(vocab)) return refuse(r, "model.vocab", "missing or not an object");
    json_object_foreach((json_t *)vocab, key, value) {
        json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || id > SL_MOST_TOKEN_ID)
            return sl_fail(r->err, SL_ERR_FORMAT, "%s: field model.vocab: \"%.60s\" has no id from 0 to %d", r->path, key,
                           SL_MOST_TOKEN_ID);
        if (id >= most) most = (int)id + 1;
    }
    r->tok->n_vocab = most;
    int rc = sl_bpe_new(most, json_object_size(vocab), options, &r->tok->bpe, r->err);
    if (rc) return rc;
    json_object_foreach((json_t *)vocab, key, value) {
        char bytes[MOST_TOKEN];
        size_t n;
        int is_text = bytes_of(r, key, strlen(key), bytes, &n);
        if (n == 0 && *key)
            return sl_fail(r->err, SL_ERR_UNSUPPORTED, "%s: field model.vocab: \"%.60s...\" is too long", r->path, key);
        rc = sl_bpe_add(r->tok->bpe, r->path, (int32_t)json_integer_value(value), bytes, n, is_text, r->err);
        if (rc) return rc;
    }
    return 0;
}

static const char *whole_string(const json_t *v) { // NULL: not a string, or a string with a NUL inside
    const char *s = json_string_value(v);
    return s && strlen(s) == json_string_length(v) ? s : NULL;
}

// A merge is "left right" or ["left", "right"].
static int read_merge(reader *r, const json_t *m, int32_t rank) {
    char text[2 * MOST_TOKEN], bytes[MOST_TOKEN];
    int32_t id[2];
    const char *part[2] = {whole_string(json_array_get(m, 0)), whole_string(json_array_get(m, 1))};
    if (whole_string(m) && json_string_length(m) < sizeof text) {
        strcpy(text, whole_string(m));
        char *blank = strchr(text, ' ');
        if (blank) *blank = 0, part[0] = text, part[1] = blank + 1;
    }
    for (int i = 0; i < 2; i++) {
        size_t n = 0;
        id[i] = part[i] && bytes_of(r, part[i], strlen(part[i]), bytes, &n) ? sl_bpe_find(r->tok->bpe, bytes, n) : -1;
        if (id[i] < 0)
            return sl_fail(r->err, SL_ERR_FORMAT, "%s: field model.merges: entry %d is not a pair of known tokens", r->path,
                           rank);
    }
    return sl_bpe_merge(r->tok->bpe, r->path, rank, id[0], id[1], r->err);
}

// Bytes without a token and without an unknown token are left out of a text, as in the package tokenizers.
static int read_unk(reader *r) {
    const char *unk;
    char bytes[MOST_TOKEN];
    size_t n;
    int32_t id = -1;
    int rc = sl_json_string(&(sl_json_file){r->path, (json_t *)r->model}, "unk_token", &unk, r->err);
    if (rc) return rc;
    if (unk) {
        bytes_of(r, unk, strlen(unk), bytes, &n);
        id = sl_bpe_find(r->tok->bpe, bytes, n);
        if (id < 0) return sl_fail(r->err, SL_ERR_FORMAT, "%s: field unk_token: \"%.60s\" is not in model.vocab", r->path, unk);
    }
    return sl_bpe_finish(r->tok->bpe, id, r->err);
}

static int read_model(reader *r) {
    static const char *const empty[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) {
        const json_t *v = sl_json_get(r->model, empty[i]);
        if (v && !(json_is_string(v) && json_string_length(v) == 0)) return refuse(r, empty[i], "only null is supported");
    }
    const json_t *dropout = sl_json_get(r->model, "dropout");
    if (dropout && !(json_is_number(dropout) && json_number_value(dropout) == 0))
        return refuse(r, "dropout", "only null and 0 are supported, because ids must not be random");
    sl_bpe_options options = {.by_chars = !r->by_bytes};
    int rc = read_flag(r, r->model, "ignore_merges", 0, &options.ignore_merges);
    if (!rc) rc = read_flag(r, r->model, "byte_fallback", 0, &options.byte_fallback);
    if (!rc) rc = read_flag(r, r->model, "fuse_unk", 0, &options.fuse_unk);
    if (!rc) rc = read_vocab(r, options);
    if (!rc) rc = read_unk(r);
    if (!rc && r->by_bytes && options.byte_fallback && sl_bpe_missing_byte(r->tok->bpe) >= 0)
        rc = sl_fail(r->err, SL_ERR_UNSUPPORTED,
                     "%s: field byte_fallback: not supported with ByteLevel, and byte 0x%02x has no token", r->path,
                     sl_bpe_missing_byte(r->tok->bpe));
    const json_t *merges = sl_json_get(r->model, "merges");
    if (!rc && !json_is_array(merges)) rc = refuse(r, "model.merges", "missing or not a list");
    for (size_t i = 0; !rc && i < json_array_size(merges); i++) rc = read_merge(r, json_array_get(merges, i), (int32_t)i);
    return rc;
}

// ---- added tokens ----

static int read_added_token(reader *r, size_t i, const json_t *t) {
    const json_t *content = sl_json_get(t, "content"), *id = sl_json_get(t, "id");
    sl_added token = {.text = (char *)json_string_value(content), .n = json_string_length(content)};
    if (!json_is_string(content) || !json_is_integer(id))
        return refuse(r, "added_tokens", "expected entries with id and content");
    if (json_integer_value(id) < 0 || json_integer_value(id) > SL_MOST_TOKEN_ID || token.n == 0)
        return sl_fail(r->err, SL_ERR_FORMAT, "%s: field added_tokens: entry %zu has no text, or no id from 0 to %d", r->path,
                       i, SL_MOST_TOKEN_ID);
    token.id = (int32_t)json_integer_value(id);
    int rc = sl_added_flags(r->path, t, 0, &token, r->err);
    if (!rc) rc = sl_added_check(r->tok, r->path, &token, r->err);
    if (!rc && sl_tokenizer_find(r->tok, token.text) >= 0)
        return sl_fail(r->err, SL_ERR_FORMAT, "%s: two added tokens have the text %.60s", r->path, token.text);
    return rc ? rc : sl_tokenizer_add(r->tok, r->path, &token, r->err);
}

static int read_added(reader *r) {
    const sl_part root = {r->path, "", r->root, r->err};
    const json_t *list;
    int rc = sl_part_list(&root, "added_tokens", &list);
    for (size_t i = 0; !rc && i < json_array_size(list); i++) rc = read_added_token(r, i, json_array_get(list, i));
    return rc;
}

// ---- the post-processor ----

// Reads a TemplateProcessing that adds at most a BOS before the text: its `single` is Sequence A, or SpecialToken BOS, Sequence
// A.
static int read_template(reader *r, const json_t *post) {
    const json_t *single = sl_json_get(post, "single");
    size_t n = json_array_size(single);
    const json_t *bos = n == 2 ? sl_json_get(json_array_get(single, 0), "SpecialToken") : NULL;
    const json_t *text = n > 0 ? sl_json_get(json_array_get(single, n - 1), "Sequence") : NULL;
    const char *which = json_string_value(sl_json_get(text, "id")), *name = json_string_value(sl_json_get(bos, "id"));
    if (!which || strcmp(which, "A") || (name ? n != 2 : n != 1))
        return refuse(r, "post_processor.single", "expected the sequence A, with at most one special token before it");
    if (!name) return 0;
    const json_t *ids = sl_json_get(sl_json_get(sl_json_get(post, "special_tokens"), name), "ids");
    int32_t id = sl_tokenizer_find(r->tok, name);
    if (id < 0) id = sl_tokenizer_piece(r->tok, name, strlen(name));
    if (id < 0 || json_array_size(ids) != 1 || !json_is_integer(json_array_get(ids, 0)) ||
        json_integer_value(json_array_get(ids, 0)) != id)
        return sl_fail(r->err, SL_ERR_UNSUPPORTED,
                       "%s: field post_processor.special_tokens: %.60s: expected one id, the id of the added token", r->path,
                       name);
    if (r->tok->add_bos) return refuse(r, "post_processor", "two templates with a special token");
    r->tok->bos = id;
    r->tok->add_bos = 1;
    return 0;
}

static int read_post_step(void *ctx, const sl_part *p) {
    if (sl_part_is(p, "ByteLevel")) return 0; // it changes offsets, not ids
    if (sl_part_is(p, "TemplateProcessing")) return read_template(ctx, p->v);
    return sl_part_refuse(p, "supported are TemplateProcessing and ByteLevel");
}

// ---- the file ----

static int read_all(reader *r) {
    const sl_part norm = part_of(r, r->root, "normalizer"), pre = part_of(r, r->root, "pre_tokenizer"),
                  decoder = part_of(r, r->root, "decoder"), post = part_of(r, r->root, "post_processor");
    int rc = sl_normalizer_read(&norm, &r->tok->norm);
    if (!rc) rc = sl_pre_tokenizer_read(&pre, &r->tok->pre);
    if (!rc) rc = sl_decoder_read(&decoder, &r->tok->decoder);
    if (rc) return rc;
    r->by_bytes = r->tok->by_alphabet = sl_pre_tokenizer_by_bytes(r->tok->pre);
    if (r->by_bytes != sl_decoder_by_bytes(r->tok->decoder))
        return refuse(r, "decoder", "expected ByteLevel with a ByteLevel pre_tokenizer, and only then");
    rc = read_model(r);
    if (!rc) rc = read_added(r);
    return rc ? rc : sl_part_each(&post, "processors", read_post_step, r);
}

int sl_json_tokenizer_load(const sl_documents *documents, int *is_bpe, sl_tokenizer *tok, sl_error *err) {
    char path[SL_DOCUMENT_PATH];
    json_t *root;
    *is_bpe = 0;
    int rc = sl_documents_json(documents, "tokenizer.json", 1, &root, err);
    if (rc || !root) return rc;
    sl_documents_path(documents, "tokenizer.json", path);
    reader r = {.path = path, .root = root, .model = sl_json_get(root, "model"), .tok = tok, .err = err};
    const sl_part model = {path, "model", r.model, err};
    int untyped = r.model && !sl_json_get(r.model, "type") && sl_json_get(r.model, "merges"); // old files
    if (untyped || sl_part_is(&model, "BPE")) {
        *is_bpe = 1;
        tok->kind = "bpe";
        rc = read_all(&r);
    } else {
        sl_part_refuse(&model, "Sleigh reads only BPE from tokenizer.json, and the folder has no tokenizer.model");
    }
    json_decref(root);
    return rc;
}
