// tokenizer/bpe_json.c - reads a byte-level BPE tokenizer.json (GPT-2, Llama 3, Qwen2.5, Qwen3). A field that would change the
// ids in a way that Sleigh does not implement is refused by name.
#include "engine/base/json.h"
#include "tokenizer/tokenizer_internal.h"
#include "tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// GPT-2's alphabet writes each byte as a printable character. Printable Latin-1 bytes are their own characters; the other 68
// bytes are U+0100 and up, in order.
static void make_alphabet(int16_t byte_of[512]) {
    int next = 256;
    for (int i = 0; i < 512; i++) byte_of[i] = -1;
    for (int b = 0; b < 256; b++) {
        int own = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        byte_of[own ? b : next++] = (int16_t)b;
    }
}

// Decodes a vocabulary string to bytes; returns -1 if it holds a character outside the alphabet. All characters of the alphabet
// are below U+0800.
static int decode(const int16_t byte_of[512], const char *s, char *out, size_t cap) {
    size_t n = 0;
    for (const unsigned char *p = (const unsigned char *)s; *p; n++) {
        unsigned c = *p++;
        if (c >= 0x80) {
            if ((c & 0xe0) != 0xc0 || (*p & 0xc0) != 0x80) return -1;
            c = (c & 31) << 6 | (*p++ & 63);
        }
        if (c >= 512 || byte_of[c] < 0 || n >= cap) return -1;
        out[n] = (char)byte_of[c];
    }
    return (int)n;
}

typedef struct reader {
    const char *path;
    const json_t *root, *model;
    sl_tokenizer *tok;
    int16_t byte_of[512];
    sl_error *err;
} reader;

static int refuse(reader *r, const char *field, const char *why) {
    return sl_fail(r->err, SL_ERR_UNSUPPORTED, "%s: field %s: %s", r->path, field, why);
}

static const char *type_of(const json_t *v) {
    const char *s = json_string_value(sl_json_get(v, "type"));
    return s ? s : "(none)";
}

static int is_type(const json_t *v, const char *type) {
    return !strcmp(type_of(v), type);
}

// Reads a flag of an object of the file.
static int read_flag(reader *r, const json_t *object, const char *field, int def, int *out) {
    return sl_json_bool(&(sl_json_file){r->path, (json_t *)object}, field, def, out, r->err);
}

// Reads a list of an object of the file. *out is NULL if the object has none.
static int read_list(reader *r, const json_t *object, const char *field, const json_t **out) {
    *out = sl_json_get(object, field);
    if (!*out || json_is_array(*out)) return 0;
    return sl_fail(r->err, SL_ERR_FORMAT, "%s: field %s is %s, expected a list", r->path, field, sl_json_type(*out));
}

static int read_added_token(reader *r, size_t i, const json_t *t) {
    // A normalised token is searched in the normalised text; without a normaliser both texts are the same.
    static const char *const flags[] = {"single_word", "lstrip", "rstrip", "normalized"};
    const size_t n_flags = sizeof flags / sizeof *flags - !r->tok->nfc;
    const json_t *content = sl_json_get(t, "content"), *id = sl_json_get(t, "id");
    int set, special;
    if (!json_is_string(content) || !json_is_integer(id))
        return refuse(r, "added_tokens", "expected entries with id and content");
    for (size_t f = 0; f < n_flags; f++) {
        int rc = read_flag(r, t, flags[f], 0, &set);
        if (rc) return rc;
        if (set) return refuse(r, flags[f], "added tokens with this flag are not supported");
    }
    if (json_integer_value(id) < 0 || json_integer_value(id) > SL_MOST_TOKEN_ID || json_string_length(content) == 0)
        return sl_fail(r->err, SL_ERR_FORMAT, "%s: field added_tokens: entry %zu has no text, or no id from 0 to %d", r->path,
                       i, SL_MOST_TOKEN_ID);
    int rc = read_flag(r, t, "special", 0, &special);
    return rc ? rc
              : sl_tokenizer_add(r->tok, r->path, (int32_t)json_integer_value(id), json_string_value(content),
                                 json_string_length(content), special, r->err);
}

static int read_added(reader *r) {
    const json_t *list;
    int rc = read_list(r, r->root, "added_tokens", &list);
    for (size_t i = 0; !rc && i < json_array_size(list); i++) rc = read_added_token(r, i, json_array_get(list, i));
    return rc ? rc : sl_tokenizer_index(r->tok, r->path, r->err);
}

static int read_vocab(reader *r) {
    const json_t *vocab = sl_json_get(r->model, "vocab");
    const char *key;
    json_t *value;
    int most = r->tok->n_vocab, ignore_merges;
    if (!json_is_object(vocab)) return refuse(r, "model.vocab", "missing or not an object");
    json_object_foreach((json_t *)vocab, key, value) {
        json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || id > SL_MOST_TOKEN_ID)
            return sl_fail(r->err, SL_ERR_FORMAT, "%s: field model.vocab: \"%.60s\" has no id from 0 to %d", r->path, key,
                           SL_MOST_TOKEN_ID);
        if (id >= most) most = (int)id + 1;
    }
    r->tok->n_vocab = most;
    int rc = read_flag(r, r->model, "ignore_merges", 0, &ignore_merges);
    if (!rc) rc = sl_bpe_new(most, json_object_size(vocab), ignore_merges, &r->tok->bpe, r->err);
    if (rc) return rc;
    json_object_foreach((json_t *)vocab, key, value) {
        char bytes[2048];
        int32_t id = (int32_t)json_integer_value(value);
        int n = decode(r->byte_of, key, bytes, sizeof bytes);
        if (sl_tokenizer_added(r->tok, id)) continue; // the vocabulary repeats an added token
        if (n < 0)
            return sl_fail(r->err, SL_ERR_FORMAT, "%s: field model.vocab: \"%.60s\" is not written in the byte-level alphabet",
                           r->path, key);
        rc = sl_bpe_add(r->tok->bpe, r->path, id, bytes, (size_t)n, r->err);
        if (rc) return rc;
    }
    return sl_bpe_finish(r->tok->bpe, r->path, r->err);
}

static const char *whole_string(const json_t *v) { // NULL: not a string, or a string with a NUL inside
    const char *s = json_string_value(v);
    return s && strlen(s) == json_string_length(v) ? s : NULL;
}

// A merge is "left right" or ["left", "right"].
static int read_merge(reader *r, const json_t *m, int32_t rank) {
    char text[4096], bytes[2][2048];
    int32_t id[2];
    const char *part[2] = {whole_string(json_array_get(m, 0)), whole_string(json_array_get(m, 1))};
    if (whole_string(m) && json_string_length(m) < sizeof text) {
        strcpy(text, whole_string(m));
        char *blank = strchr(text, ' ');
        if (blank) *blank = 0, part[0] = text, part[1] = blank + 1;
    }
    for (int i = 0; i < 2; i++) {
        int n = part[i] ? decode(r->byte_of, part[i], bytes[i], sizeof bytes[i]) : -1;
        id[i] = n > 0 ? sl_bpe_find(r->tok->bpe, bytes[i], (size_t)n) : -1;
        if (id[i] < 0)
            return sl_fail(r->err, SL_ERR_FORMAT, "%s: field model.merges: entry %d is not a pair of known tokens", r->path,
                           rank);
    }
    return sl_bpe_merge(r->tok->bpe, r->path, rank, id[0], id[1], r->err);
}

static int read_model(reader *r) {
    static const char *const null_fields[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < sizeof null_fields / sizeof *null_fields; i++) {
        const json_t *v = sl_json_get(r->model, null_fields[i]);
        if (v && !(json_is_string(v) && json_string_length(v) == 0)) return refuse(r, null_fields[i], "only null is supported");
    }
    int rc = read_vocab(r);
    const json_t *merges = sl_json_get(r->model, "merges");
    if (!rc && !json_is_array(merges)) rc = refuse(r, "model.merges", "missing or not a list");
    for (size_t i = 0; !rc && i < json_array_size(merges); i++) rc = read_merge(r, json_array_get(merges, i), (int32_t)i);
    return rc;
}

static int read_split(reader *r, const json_t *p, const char **regex) {
    const char *behavior = whole_string(sl_json_get(p, "behavior")),
               *found = whole_string(sl_json_get(sl_json_get(p, "pattern"), "Regex"));
    int invert, rc = read_flag(r, p, "invert", 0, &invert);
    if (rc) return rc;
    if (!found || *regex || !behavior || strcmp(behavior, "Isolated") || invert)
        return refuse(r, "pre_tokenizer", "only one Split is supported, with a Regex, behavior Isolated and invert false");
    *regex = found;
    return 0;
}

static int read_byte_level(reader *r, const json_t *p, const char **regex) {
    int prefix, own, rc = read_flag(r, p, "add_prefix_space", 0, &prefix);
    if (!rc) rc = read_flag(r, p, "use_regex", 1, &own);
    if (rc) return rc;
    if (prefix) return refuse(r, "pre_tokenizer.add_prefix_space", "only false is supported");
    if (!*regex && own) *regex = sl_pattern_gpt2;
    return 0;
}

// The pattern is the Regex of a Split, or GPT-2's pattern if ByteLevel has use_regex.
static int read_pre_tokenizer(reader *r) {
    const json_t *pre = sl_json_get(r->root, "pre_tokenizer"), *list = NULL;
    const char *regex = NULL;
    int is_list = is_type(pre, "Sequence"), rc = is_list ? read_list(r, pre, "pretokenizers", &list) : 0;
    size_t n = is_list ? json_array_size(list) : 1;
    for (size_t i = 0; !rc && i < n; i++) {
        const json_t *p = is_list ? json_array_get(list, i) : pre;
        if (is_type(p, "Split"))
            rc = read_split(r, p, &regex);
        else if (is_type(p, "ByteLevel"))
            rc = read_byte_level(r, p, &regex);
        else
            rc = sl_fail(r->err, SL_ERR_UNSUPPORTED, "%s: field pre_tokenizer: type %s, supported are Split and ByteLevel",
                         r->path, type_of(p));
    }
    if (rc) return rc;
    return regex ? sl_pattern_new(r->path, regex, &r->tok->pattern, r->err) : refuse(r, "pre_tokenizer", "no pattern");
}

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

static int read_post_processor(reader *r, const json_t *post) {
    if (!post || is_type(post, "ByteLevel")) return 0; // ByteLevel changes offsets, not ids
    if (is_type(post, "TemplateProcessing")) return read_template(r, post);
    if (!is_type(post, "Sequence"))
        return sl_fail(r->err, SL_ERR_UNSUPPORTED,
                       "%s: field post_processor: type %s, supported are TemplateProcessing and ByteLevel", r->path,
                       type_of(post));
    const json_t *list;
    int rc = read_list(r, post, "processors", &list);
    for (size_t i = 0; !rc && i < json_array_size(list); i++) rc = read_post_processor(r, json_array_get(list, i));
    return rc;
}

static int read_all(reader *r) {
    const json_t *normalizer = sl_json_get(r->root, "normalizer");
    r->tok->nfc = normalizer && is_type(normalizer, "NFC");
    if (normalizer && !r->tok->nfc)
        return sl_fail(r->err, SL_ERR_UNSUPPORTED, "%s: field normalizer: type %s, only null and NFC are supported", r->path,
                       type_of(normalizer));
    make_alphabet(r->byte_of);
    int rc = read_added(r);
    if (!rc) rc = read_model(r);
    if (!rc) rc = read_pre_tokenizer(r);
    return rc ? rc : read_post_processor(r, sl_json_get(r->root, "post_processor"));
}

int sl_bpe_json_load(const sl_documents *documents, int *is_bpe, sl_tokenizer *tok, sl_error *err) {
    char path[SL_DOCUMENT_PATH];
    json_t *root;
    *is_bpe = 0;
    int rc = sl_documents_json(documents, "tokenizer.json", 1, &root, err);
    if (rc || !root) return rc;
    sl_documents_path(documents, "tokenizer.json", path);
    reader r = {.path = path, .root = root, .model = sl_json_get(root, "model"), .tok = tok, .err = err};
    int by_bytes = json_is_true(sl_json_get(r.model, "byte_fallback"));
    if (!is_type(r.model, "BPE") || by_bytes || !is_type(sl_json_get(root, "decoder"), "ByteLevel")) {
        sl_fail(err, SL_ERR_UNSUPPORTED,
                "%s: field model: type %s%s; Sleigh reads only byte-level BPE from tokenizer.json, and the folder has no "
                "tokenizer.model",
                path, type_of(r.model), by_bytes ? " with byte_fallback" : "");
    } else {
        *is_bpe = 1;
        tok->kind = "bpe";
        rc = read_all(&r);
    }
    json_decref(root);
    return rc;
}
