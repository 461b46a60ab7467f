// tokenizer/bpe_json.c - reads a byte-level BPE tokenizer.json. What it does not implement it refuses with the field's name.
#include "engine/json.h"
#include "tokenizer/internal.h"
#include "tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// GPT-2's alphabet writes each byte as a printable character: printable Latin-1 stands for itself, the other 68 bytes are
// U+0100 and up, in order.
static void make_alphabet(int16_t byte_of[512]) {
    int next = 256;
    for (int i = 0; i < 512; i++) byte_of[i] = -1;
    for (int b = 0; b < 256; b++) {
        int own = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        byte_of[own ? b : next++] = (int16_t)b;
    }
}

// Decodes a vocabulary string to bytes; -1 if it holds a character outside the alphabet. Its characters are below U+0800.
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

enum { MAX_ID = 1 << 24 };

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
    const char *s = json_string_value(json_object_get(v, "type"));
    return s ? s : "(none)";
}

static int read_added(reader *r) {
    static const char *const flags[] = {"single_word", "lstrip", "rstrip"};
    const json_t *list = json_object_get(r->root, "added_tokens");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *t = json_array_get(list, i);
        const json_t *content = json_object_get(t, "content"), *id = json_object_get(t, "id");
        if (!json_is_string(content) || !json_is_integer(id))
            return refuse(r, "added_tokens", "expected entries with id and content");
        for (size_t f = 0; f < sizeof flags / sizeof *flags; f++)
            if (json_is_true(json_object_get(t, flags[f])))
                return refuse(r, flags[f], "added tokens with this flag are not supported");
        if (json_integer_value(id) < 0 || json_integer_value(id) >= MAX_ID || json_string_length(content) == 0)
            return sl_fail(r->err, SL_ERR_FORMAT, "%s: field added_tokens: entry %zu has no text, or no id from 0 to %d",
                           r->path, i, MAX_ID - 1);
        int rc = sl_tokenizer_add(r->tok, (int32_t)json_integer_value(id), json_string_value(content),
                                  json_string_length(content), json_is_true(json_object_get(t, "special")), r->err);
        if (rc) return rc;
    }
    return sl_tokenizer_index(r->tok, r->path, r->err);
}

static int read_vocab(reader *r) {
    const json_t *vocab = json_object_get(r->model, "vocab");
    const char *key;
    json_t *value;
    int most = r->tok->n_vocab;
    if (!json_is_object(vocab)) return refuse(r, "model.vocab", "missing or not an object");
    json_object_foreach((json_t *)vocab, key, value) {
        json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || id >= MAX_ID)
            return sl_fail(r->err, SL_ERR_FORMAT, "%s: field model.vocab: \"%.60s\" has no id from 0 to %d", r->path, key,
                           MAX_ID - 1);
        if (id >= most) most = (int)id + 1;
    }
    r->tok->n_vocab = most;
    int rc = sl_bpe_new(most, json_is_true(json_object_get(r->model, "ignore_merges")), &r->tok->bpe, r->err);
    if (rc) return rc;
    json_object_foreach((json_t *)vocab, key, value) {
        char bytes[2048];
        int32_t id = (int32_t)json_integer_value(value);
        int n = decode(r->byte_of, key, bytes, sizeof bytes);
        if (sl_tokenizer_added(r->tok, id)) continue; // special tokens repeated in the vocabulary
        if (n < 0)
            return sl_fail(r->err, SL_ERR_FORMAT, "%s: field model.vocab: \"%.60s\" is not written in the byte-level alphabet",
                           r->path, key);
        rc = sl_bpe_add(r->tok->bpe, r->path, id, bytes, (size_t)n, r->err);
        if (rc) return rc;
    }
    return sl_bpe_finish(r->tok->bpe, r->path, r->err);
}

// A merge is "left right" or ["left", "right"].
static int read_merge(reader *r, const json_t *m, int32_t rank) {
    char text[4096], bytes[2][2048];
    int32_t id[2];
    const char *part[2] = {json_string_value(json_array_get(m, 0)), json_string_value(json_array_get(m, 1))};
    if (json_is_string(m) && json_string_length(m) < sizeof text) {
        strcpy(text, json_string_value(m));
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
        const json_t *v = json_object_get(r->model, null_fields[i]);
        if (v && !json_is_null(v) && !(json_is_string(v) && json_string_length(v) == 0))
            return refuse(r, null_fields[i], "only null is supported");
    }
    int rc = read_vocab(r);
    const json_t *merges = json_object_get(r->model, "merges");
    if (!rc && !json_is_array(merges)) rc = refuse(r, "model.merges", "missing or not a list");
    for (size_t i = 0; !rc && i < json_array_size(merges); i++) rc = read_merge(r, json_array_get(merges, i), (int32_t)i);
    return rc;
}

// The pattern is a Split's Regex, or GPT-2's where ByteLevel brings its own.
static int read_pre_tokenizer(reader *r) {
    const json_t *pre = json_object_get(r->root, "pre_tokenizer"), *list = json_object_get(pre, "pretokenizers");
    const char *regex = NULL;
    size_t n = !strcmp(type_of(pre), "Sequence") ? json_array_size(list) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *p = !strcmp(type_of(pre), "Sequence") ? json_array_get(list, i) : pre;
        if (!strcmp(type_of(p), "Split")) {
            const char *behavior = json_string_value(json_object_get(p, "behavior"));
            const json_t *pattern = json_object_get(json_object_get(p, "pattern"), "Regex");
            const char *found = json_string_value(pattern);
            if (!found || strlen(found) != json_string_length(pattern) || regex || !behavior || strcmp(behavior, "Isolated") ||
                json_is_true(json_object_get(p, "invert")))
                return refuse(r, "pre_tokenizer",
                              "of Split, only one with a Regex, behavior Isolated, not inverted, is supported");
            regex = found;
        } else if (!strcmp(type_of(p), "ByteLevel")) {
            if (json_is_true(json_object_get(p, "add_prefix_space")))
                return refuse(r, "pre_tokenizer.add_prefix_space", "only false is supported");
            const json_t *own = json_object_get(p, "use_regex");
            if (!regex && (!own || json_is_true(own))) regex = sl_pattern_gpt2;
        } else {
            return sl_fail(r->err, SL_ERR_UNSUPPORTED, "%s: field pre_tokenizer: type %s, supported are Split and ByteLevel",
                           r->path, type_of(p));
        }
    }
    return regex ? sl_pattern_new(r->path, regex, &r->tok->pattern, r->err) : refuse(r, "pre_tokenizer", "no pattern");
}

// Of TemplateProcessing, what puts at most a BOS before the text: its `single` is [SpecialToken BOS], Sequence A.
static int read_template(reader *r, const json_t *post) {
    const json_t *single = json_object_get(post, "single");
    size_t n = json_array_size(single);
    const json_t *bos = n == 2 ? json_object_get(json_array_get(single, 0), "SpecialToken") : NULL;
    const json_t *text = n > 0 ? json_object_get(json_array_get(single, n - 1), "Sequence") : NULL;
    const char *which = json_string_value(json_object_get(text, "id")), *name = json_string_value(json_object_get(bos, "id"));
    if (!which || strcmp(which, "A") || (name ? n != 2 : n != 1))
        return refuse(r, "post_processor.single", "expected the sequence A, with at most one special token before it");
    if (!name) return 0;
    const json_t *ids = json_object_get(json_object_get(json_object_get(post, "special_tokens"), name), "ids");
    int32_t id = sl_tokenizer_find(r->tok, name);
    if (id < 0 || json_array_size(ids) != 1 || !json_is_integer(json_array_get(ids, 0)) ||
        json_integer_value(json_array_get(ids, 0)) != id)
        return sl_fail(r->err, SL_ERR_UNSUPPORTED,
                       "%s: field post_processor.special_tokens: %.60s is not one id, that of the added token", r->path, name);
    if (r->tok->add_bos) return refuse(r, "post_processor", "two templates with a special token");
    r->tok->bos = id;
    r->tok->add_bos = 1;
    return 0;
}

static int read_post_processor(reader *r, const json_t *post) {
    if (!post || json_is_null(post) || !strcmp(type_of(post), "ByteLevel")) return 0; // ByteLevel changes offsets alone
    if (!strcmp(type_of(post), "TemplateProcessing")) return read_template(r, post);
    if (strcmp(type_of(post), "Sequence"))
        return sl_fail(r->err, SL_ERR_UNSUPPORTED,
                       "%s: field post_processor: type %s, supported are TemplateProcessing and ByteLevel", r->path,
                       type_of(post));
    const json_t *list = json_object_get(post, "processors");
    int rc = 0;
    for (size_t i = 0; !rc && i < json_array_size(list); i++) rc = read_post_processor(r, json_array_get(list, i));
    return rc;
}

static int read_all(reader *r) {
    const json_t *normalizer = json_object_get(r->root, "normalizer");
    if (normalizer && !json_is_null(normalizer))
        return sl_fail(r->err, SL_ERR_UNSUPPORTED, "%s: field normalizer: type %s, only null is supported", r->path,
                       type_of(normalizer));
    make_alphabet(r->byte_of);
    int rc = read_added(r);
    if (!rc) rc = read_model(r);
    if (!rc) rc = read_pre_tokenizer(r);
    return rc ? rc : read_post_processor(r, json_object_get(r->root, "post_processor"));
}

int sl_bpe_json_load(const char *dir, int *is_bpe, sl_tokenizer *tok, sl_error *err) {
    char path[4200];
    json_t *root;
    *is_bpe = 0;
    int rc = sl_json_load(dir, "tokenizer.json", 1, &root, err);
    if (rc || !root) return rc;
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    reader r = {.path = path, .root = root, .model = json_object_get(root, "model"), .tok = tok, .err = err};
    if (strcmp(type_of(r.model), "BPE") || json_is_true(json_object_get(r.model, "byte_fallback")) ||
        strcmp(type_of(json_object_get(root, "decoder")), "ByteLevel")) {
        sl_fail(
            err, SL_ERR_UNSUPPORTED,
            "%s: field model: type %s%s; only byte-level BPE is read from tokenizer.json, and no tokenizer.model is beside it",
            path, type_of(r.model), json_is_true(json_object_get(r.model, "byte_fallback")) ? " with byte_fallback" : "");
    } else {
        *is_bpe = 1;
        tok->kind = "bpe";
        rc = read_all(&r);
    }
    json_decref(root);
    return rc;
}
