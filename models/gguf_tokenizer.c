// models/gguf_tokenizer.c - tokenizer.json and tokenizer_config.json of a GGUF file. See gguf_documents.h.
//
// A byte-level BPE is complete in the file, except for its pre-tokenizer and its normalizer: the file has only a name for them.
// The table pre_tokenizers has what the original models' tokenizer.json have under these names.
#include "models/gguf_documents.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int out_of_memory(const sl_gguf *g, sl_error *err) {
    return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", g->path);
}

// A string of the file as JSON. *out NULL with SL_ERR_FORMAT: it is not UTF-8.
static int text_json(const sl_gguf *g, const char *key, uint64_t i, sl_gguf_string s, json_t **out, sl_error *err) {
    *out = json_stringn(s.at, s.n);
    if (*out) return 0;
    return sl_fail(err, SL_ERR_FORMAT, "%s: key %s: text %llu is not UTF-8", g->path, key, (unsigned long long)i);
}

// ---- pre-tokenizers ----

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)"
#define LLAMA3(digits)                                                                                                         \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" digits                                                 \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define TEKKEN                                                                                                                 \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER                                        \
    "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

enum { MOST_SPLITS = 4 };

static const struct {
    const char *name;
    const char *splits[MOST_SPLITS + 1]; // patterns, each on the pieces of the one before
    int has_own_pattern;                 // ByteLevel splits by GPT-2's pattern
    int has_digits;                      // Digits, each on its own
    int nfc, ignore_merges, add_bos;
} pre_tokenizers[] = {
    {.name = "llama-bpe", .splits = {LLAMA3("{1,3}")}, .ignore_merges = 1, .add_bos = 1},
    {.name = "llama3", .splits = {LLAMA3("{1,3}")}, .ignore_merges = 1, .add_bos = 1},
    {.name = "llama-v3", .splits = {LLAMA3("{1,3}")}, .ignore_merges = 1, .add_bos = 1},
    {.name = "qwen2", .splits = {LLAMA3("")}, .nfc = 1},
    {.name = "tekken", .splits = {TEKKEN}, .ignore_merges = 1, .add_bos = 1},
    {.name = "smollm", .has_digits = 1, .has_own_pattern = 1},
    {.name = "gpt-2", .has_own_pattern = 1},
    {.name = "default", .splits = {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
};
enum { N_PRE = sizeof pre_tokenizers / sizeof *pre_tokenizers };

static int find_pre(const sl_gguf *g, int *index, sl_error *err) {
    sl_gguf_string name;
    char list[200];
    size_t n = 0;
    int rc = sl_gguf_text(g, "tokenizer.ggml.pre", &name, err);
    if (rc) return rc;
    for (*index = 0; *index < N_PRE; ++*index)
        if (sl_gguf_equals(name, pre_tokenizers[*index].name)) return 0;
    for (int i = 0; i < N_PRE; i++)
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "", pre_tokenizers[i].name);
    return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: key tokenizer.ggml.pre is %s%.*s%s, supported are %s", g->path,
                   name.at ? "\"" : "", name.at ? (int)(name.n < 60 ? name.n : 60) : 7, name.at ? name.at : "missing",
                   name.at ? "\"" : "", list);
}

static json_t *pre_json(int index) {
    json_t *list = json_array();
    if (pre_tokenizers[index].has_digits)
        json_array_append_new(list, json_pack("{s:s, s:b}", "type", "Digits", "individual_digits", 1));
    for (const char *const *split = pre_tokenizers[index].splits; *split; split++)
        json_array_append_new(list, json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex", *split,
                                              "behavior", "Isolated", "invert", 0));
    json_array_append_new(list, json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1,
                                          "use_regex", pre_tokenizers[index].has_own_pattern));
    return json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", list);
}

// Whether texts begin with BOS. Where the file does not say it, this depends on the kind of the tokenizer.
static int read_add_bos(const sl_gguf *g, int *add, sl_error *err) {
    int index, def = sl_gguf_is_kind(g, "llama");
    if (sl_gguf_is_kind(g, "gpt2")) {
        int rc = find_pre(g, &index, err);
        if (rc) return rc;
        def = pre_tokenizers[index].add_bos;
    }
    return sl_gguf_bool(g, "tokenizer.ggml.add_bos_token", def, add, err);
}

// ---- tokenizer.json ----

static int add_token(const sl_gguf *g, json_t *vocab, json_t *added, int id, int type, sl_gguf_string s, sl_error *err) {
    json_t *text;
    int rc = text_json(g, "tokenizer.ggml.tokens", (uint64_t)id, s, &text, err), failed = 0;
    if (rc) return rc;
    if (type == SL_GGUF_NORMAL) {
        const char *key = json_string_value(text);
        if (json_object_get(vocab, key) || strlen(key) != s.n)
            rc = sl_fail(err, SL_ERR_FORMAT, "%s: key tokenizer.ggml.tokens: token %d %s", g->path, id,
                         strlen(key) != s.n ? "holds a NUL" : "occurs twice");
        else
            failed = json_object_set_new(vocab, key, json_integer(id));
    } else if (type == SL_GGUF_CONTROL || type == SL_GGUF_UNKNOWN || type == SL_GGUF_USER_DEFINED) {
        failed = json_array_append_new(added, json_pack("{s:i, s:O, s:b, s:b, s:b, s:b, s:b}", "id", id, "content", text,
                                                        "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special",
                                                        type != SL_GGUF_USER_DEFINED));
    } else if (type == SL_GGUF_BYTE) {
        rc = sl_fail(err, SL_ERR_UNSUPPORTED, "%s: key tokenizer.ggml.token_type: token %d of a gpt2 vocabulary is a byte (%d)",
                     g->path, id, SL_GGUF_BYTE);
    }
    json_decref(text);
    return failed ? out_of_memory(g, err) : rc;
}

static int read_tokens(const sl_gguf *g, const sl_gguf_vocab *v, json_t *vocab, json_t *added, sl_error *err) {
    const char *at = v->tokens->at;
    int type, rc = 0;
    for (uint64_t i = 0; !rc && i < v->tokens->n; i++) {
        sl_gguf_string s = sl_gguf_next_string(&at);
        rc = sl_gguf_token_type(g, v, i, &type, err);
        if (!rc) rc = add_token(g, vocab, added, (int)i, type, s, err);
    }
    return rc;
}

static int read_merges(const sl_gguf *g, json_t *merges, sl_error *err) {
    const sl_gguf_value *v;
    int rc = sl_gguf_array(g, "tokenizer.ggml.merges", SL_GGUF_STRING, &v, err);
    if (!rc && !v) rc = sl_fail(err, SL_ERR_FORMAT, "%s: key tokenizer.ggml.merges is missing", g->path);
    const char *at = rc ? NULL : v->at;
    for (uint64_t i = 0; !rc && i < v->n; i++) {
        json_t *text;
        rc = text_json(g, "tokenizer.ggml.merges", i, sl_gguf_next_string(&at), &text, err);
        if (!rc && json_array_append_new(merges, text)) rc = out_of_memory(g, err);
    }
    return rc;
}

// A BOS before the text, if the tokenizer adds one.
static int post_json(const sl_gguf *g, const sl_gguf_vocab *v, json_t **out, sl_error *err) {
    int add, bos;
    json_t *text;
    *out = json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 1, "trim_offsets", 0, "use_regex", 1);
    int rc = read_add_bos(g, &add, err);
    if (!rc) rc = sl_gguf_token_id(g, "bos_token_id", &bos, err);
    if (rc || !add) return rc;
    if (bos < 0)
        return sl_fail(err, SL_ERR_FORMAT, "%s: texts begin with BOS, but key tokenizer.ggml.bos_token_id is missing", g->path);
    rc = text_json(g, "tokenizer.ggml.tokens", (uint64_t)bos, sl_gguf_token_text(v, bos), &text, err);
    if (rc) return rc;
    const char *name = json_string_value(text);
    json_decref(*out);
    *out = json_pack("{s:s, s:[{s:{s:s, s:i}}, {s:{s:s, s:i}}], s:{s:{s:s, s:[i], s:[s]}}}", "type", "TemplateProcessing",
                     "single", "SpecialToken", "id", name, "type_id", 0, "Sequence", "id", "A", "type_id", 0, "special_tokens",
                     name, "id", name, "ids", bos, "tokens", name);
    json_decref(text);
    return *out ? 0 : out_of_memory(g, err);
}

static int make_bpe(const sl_gguf *g, json_t **out, sl_error *err) {
    sl_gguf_vocab v;
    int index, rc = sl_gguf_vocab_open(g, &v, err);
    if (!rc) rc = find_pre(g, &index, err);
    if (rc) return rc;
    json_t *vocab = json_object(), *added = json_array(), *merges = json_array(), *post = NULL;
    rc = vocab && added && merges ? read_tokens(g, &v, vocab, added, err) : out_of_memory(g, err);
    if (!rc) rc = read_merges(g, merges, err);
    if (!rc) rc = post_json(g, &v, &post, err);
    if (!rc) {
        json_t *model = json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:O, s:O}", "type", "BPE", "dropout", "unk_token",
                                  "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0,
                                  "ignore_merges", pre_tokenizers[index].ignore_merges, "vocab", vocab, "merges", merges);
        json_t *normalizer = pre_tokenizers[index].nfc ? json_pack("{s:s}", "type", "NFC") : json_null();
        *out = json_pack("{s:s, s:O, s:o, s:o, s:O, s:{s:s}, s:o}", "version", "1.0", "added_tokens", added, "normalizer",
                         normalizer, "pre_tokenizer", pre_json(index), "post_processor", post, "decoder", "type", "ByteLevel",
                         "model", model);
        if (!*out) rc = out_of_memory(g, err);
    }
    json_decref(vocab), json_decref(added), json_decref(merges), json_decref(post);
    return rc;
}

int sl_gguf_tokenizer(const sl_gguf *g, json_t **json, sl_text *model, sl_error *err) {
    sl_gguf_string kind;
    sl_gguf_vocab v;
    *json = NULL;
    *model = (sl_text){0};
    int rc = sl_gguf_text(g, "tokenizer.ggml.model", &kind, err);
    if (rc || !kind.at) return rc;
    if (sl_gguf_equals(kind, "gpt2")) return make_bpe(g, json, err);
    if (!sl_gguf_equals(kind, "llama"))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "%s: key tokenizer.ggml.model is \"%.*s\", supported are \"gpt2\" and \"llama\"", g->path,
                       (int)(kind.n < 60 ? kind.n : 60), kind.at);
    rc = sl_gguf_vocab_open(g, &v, err);
    return rc ? rc : sl_gguf_sentencepiece(g, &v, model, err);
}

// ---- tokenizer_config.json ----

static int copy_token(const sl_gguf *g, const sl_gguf_vocab *v, const char *key, const char *field, json_t *to, sl_error *err) {
    json_t *text;
    int id, rc = sl_gguf_token_id(g, key, &id, err);
    if (rc || id < 0) return rc;
    rc = text_json(g, "tokenizer.ggml.tokens", (uint64_t)id, sl_gguf_token_text(v, id), &text, err);
    return rc ? rc : json_object_set_new(to, field, text) ? out_of_memory(g, err) : 0;
}

static int copy_flag(const sl_gguf *g, const char *key, const char *field, json_t *to, sl_error *err) {
    int set;
    if (!sl_gguf_find(g, key)) return 0;
    int rc = sl_gguf_bool(g, key, 0, &set, err);
    return rc ? rc : json_object_set_new(to, field, json_boolean(set)) ? out_of_memory(g, err) : 0;
}

static int read_template(const sl_gguf *g, const char *key, json_t **out, sl_error *err) {
    sl_gguf_string text;
    *out = NULL;
    int rc = sl_gguf_text(g, key, &text, err);
    return rc || !text.at ? rc : text_json(g, key, 0, text, out, err);
}

static int add_named(const sl_gguf *g, const sl_gguf_value *names, json_t *list, sl_error *err) {
    const char *at = names->at;
    char key[200];
    json_t *text;
    for (uint64_t i = 0; i < names->n; i++) {
        sl_gguf_string name = sl_gguf_next_string(&at);
        if (name.n > 100 || memchr(name.at, 0, name.n))
            return sl_fail(err, SL_ERR_FORMAT,
                           "%s: key tokenizer.chat_templates: name %llu has %zu bytes, expected at most 100", g->path,
                           (unsigned long long)i, name.n);
        snprintf(key, sizeof key, "tokenizer.chat_template.%.*s", (int)name.n, name.at);
        int rc = read_template(g, key, &text, err);
        if (rc) return rc;
        if (!text)
            return sl_fail(err, SL_ERR_FORMAT, "%s: key %s is missing, but tokenizer.chat_templates names it", g->path, key);
        if (json_array_append_new(list, json_pack("{s:s%, s:o}", "name", name.at, name.n, "template", text)))
            return sl_fail(err, SL_ERR_FORMAT, "%s: key tokenizer.chat_templates: name %llu is not UTF-8", g->path,
                           (unsigned long long)i);
    }
    return 0;
}

// The default template alone is a string; with named ones, all are a list of names and templates.
static int add_templates(const sl_gguf *g, json_t *to, sl_error *err) {
    const sl_gguf_value *names;
    json_t *text, *list;
    int rc = read_template(g, "tokenizer.chat_template", &text, err);
    if (rc) return rc;
    rc = sl_gguf_array(g, "tokenizer.chat_templates", SL_GGUF_STRING, &names, err);
    if (rc || !names || names->n == 0) {
        if (!rc && text) json_object_set(to, "chat_template", text);
        json_decref(text);
        return rc;
    }
    list = json_array();
    if (text) json_array_append_new(list, json_pack("{s:s, s:o}", "name", "default", "template", text));
    rc = add_named(g, names, list, err);
    json_object_set_new(to, "chat_template", list);
    return rc;
}

// SentencePiece puts a blank before a text, and the file does not say whether this is each text between special tokens (Llama
// 2, Mistral v1, and what llama.cpp does: "legacy") or the first one only. Mistral's tokenizers from v2 on do the latter. They
// have [INST] as a control token, as no other SentencePiece vocabulary has.
static int has_inst(const sl_gguf *g, const sl_gguf_vocab *v) {
    const char *at = v->tokens->at;
    for (uint64_t i = 0; i < v->tokens->n; i++) {
        sl_gguf_string s = sl_gguf_next_string(&at);
        int type = 0;
        if (sl_gguf_equals(s, "[INST]")) return !sl_gguf_token_type(g, v, i, &type, NULL) && type == SL_GGUF_CONTROL;
    }
    return 0;
}

static int fill_config(const sl_gguf *g, json_t *to, sl_error *err) {
    static const char *const tokens[][2] = {{"bos_token_id", "bos_token"},
                                            {"eos_token_id", "eos_token"},
                                            {"unknown_token_id", "unk_token"},
                                            {"padding_token_id", "pad_token"}};
    sl_gguf_vocab v;
    int add, is_spm = sl_gguf_is_kind(g, "llama"), rc = add_templates(g, to, err);
    if (rc || (!is_spm && !sl_gguf_is_kind(g, "gpt2"))) return rc;
    rc = sl_gguf_vocab_open(g, &v, err);
    for (int i = 0; !rc && i < 4; i++) rc = copy_token(g, &v, tokens[i][0], tokens[i][1], to, err);
    if (!rc) rc = read_add_bos(g, &add, err);
    if (!rc && json_object_set_new(to, "add_bos_token", json_boolean(add))) rc = out_of_memory(g, err);
    if (!rc) rc = copy_flag(g, "tokenizer.ggml.add_eos_token", "add_eos_token", to, err);
    if (rc || !is_spm) return rc;
    rc = sl_gguf_bool(g, "tokenizer.ggml.add_space_prefix", 1, &add, err);
    if (!rc && json_object_set_new(to, "add_prefix_space", json_boolean(add))) rc = out_of_memory(g, err);
    if (!rc && json_object_set_new(to, "legacy", json_boolean(!has_inst(g, &v)))) rc = out_of_memory(g, err);
    return rc;
}

int sl_gguf_tokenizer_config(const sl_gguf *g, json_t **out, sl_error *err) {
    json_t *to = json_object();
    int rc = to ? fill_config(g, to, err) : out_of_memory(g, err);
    if (rc) {
        json_decref(to);
        return rc;
    }
    *out = to;
    return 0;
}
