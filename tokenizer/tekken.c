// tokenizer/tekken.c - reads Mistral's tekken.json: the ranks of tiktoken, a pattern, and special tokens. mistral-common's
// Tekkenizer is the authority.
//
// The special tokens have the first ids, and a token of rank r has the id r + the number of special tokens. A file may have
// more ranks than the model uses: the ranks that do not fit into the model's vocabulary are left out.
#include "base/json.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_internal.h"

#include <stdio.h>
#include <string.h>

enum { MOST_TOKEN_BYTES = 1024 };

// Files up to version 7 need not name their special tokens.
static const char *const old_specials[] = {
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
};
enum { N_OLD_SPECIALS = sizeof old_specials / sizeof *old_specials };

typedef struct reader {
    const char *path;
    const json_t *root;
    sl_json_file config;
    sl_tokenizer *tok;
    int n_special, n_vocab;
    const char *pattern;
    sl_error *err;
} reader;

static int read_version(reader *r) {
    static const char *const known[] = {"v1", "v2", "v3", "v7", "v11", "v13", "v15"};
    const char *version;
    int rc = sl_json_string(&r->config, "version", &version, r->err);
    for (size_t i = 0; !rc && version && i < sizeof known / sizeof *known; i++)
        if (!strcmp(version, known[i])) return r->tok->version = known[i], 0;
    return rc ? rc
              : sl_fail(r->err, SL_ERR_UNSUPPORTED,
                        "%s: field config.version is %s%.40s, expected v1, v2, v3, v7, v11, v13 or v15", r->path,
                        version ? "" : "missing", version ? version : "");
}

// tiktoken matches with Rust's regex. pretokenize.c matches as Oniguruma does, which has another \w, \b, ^ and $.
static int engines_agree(const char *pattern) {
    for (const char *p = pattern; *p; p++) {
        if (*p == '$' || (*p == '^' && (p == pattern || p[-1] != '['))) return 0;
        if (*p == '\\' && *++p && strchr("wWbBhH", *p)) return 0;
        if (!*p) break;
    }
    return 1;
}

static int read_config(reader *r) {
    r->config = (sl_json_file){r->path, sl_json_get(r->root, "config")};
    if (!json_is_object(r->config.root))
        return sl_fail(r->err, SL_ERR_FORMAT, "%s: field config is %s, expected an object", r->path,
                       sl_json_type(r->config.root));
    int rc = read_version(r);
    if (!rc) rc = sl_json_int(&r->config, "default_vocab_size", 1, SL_MOST_TOKEN_ID, NULL, &r->n_vocab, r->err);
    if (!rc) rc = sl_json_int(&r->config, "default_num_special_tokens", 3, r->n_vocab, NULL, &r->n_special, r->err);
    if (!rc) rc = sl_json_string(&r->config, "pattern", &r->pattern, r->err);
    if (!rc && !r->pattern) rc = sl_fail(r->err, SL_ERR_FORMAT, "%s: field config.pattern is missing", r->path);
    if (!rc && !engines_agree(r->pattern))
        rc = sl_fail(r->err, SL_ERR_UNSUPPORTED,
                     "%s: field config.pattern: ^, $, \\w, \\b and \\h are not supported, in %.400s", r->path, r->pattern);
    return rc;
}

// ---- special tokens ----

static int add_special(reader *r, int32_t id, const char *text) {
    return sl_tokenizer_add(r->tok, r->path, &(sl_added){.text = (char *)text, .n = strlen(text), .id = id, .special = 1},
                            r->err);
}

static int read_special(reader *r, int32_t i, json_t *entry) {
    sl_json_file f = {r->path, entry};
    const char *text = NULL;
    int rank, rc = sl_json_int(&f, "rank", 0, SL_MOST_TOKEN_ID, NULL, &rank, r->err);
    if (!rc) rc = sl_json_string(&f, "token_str", &text, r->err);
    if (rc) return rc;
    if (!text || !*text || rank != i)
        return sl_fail(r->err, SL_ERR_FORMAT,
                       "%s: field special_tokens: entry %d has rank %d and %s, expected rank %d and a text", r->path, i, rank,
                       text && *text ? "a text" : "no text", i);
    return add_special(r, i, text);
}

// Ids without a name in the file are <SPECIAL_20> and so on.
static int add_specials(reader *r) {
    json_t *list = sl_json_get(r->root, "special_tokens");
    const char *version = r->tok->version;
    int is_old = strlen(version) == 2; // v1 to v7
    int32_t n = list ? (int32_t)json_array_size(list) : N_OLD_SPECIALS, i = 0;
    if ((list && !json_is_array(list)) || (!list && !is_old))
        return sl_fail(r->err, SL_ERR_FORMAT, "%s: field special_tokens is %s, expected a list", r->path, sl_json_type(list));
    if (n > r->n_special)
        return sl_fail(r->err, SL_ERR_FORMAT, "%s: %d special tokens, expected at most default_num_special_tokens %d", r->path,
                       n, r->n_special);
    int rc = 0;
    for (; !rc && i < n; i++)
        rc = list ? read_special(r, i, json_array_get(list, (size_t)i)) : add_special(r, i, old_specials[i]);
    for (; !rc && i < r->n_special; i++) {
        char name[32];
        snprintf(name, sizeof name, "<SPECIAL_%d>", i);
        rc = add_special(r, i, name);
    }
    if (rc) return rc;
    r->tok->bos = sl_tokenizer_find(r->tok, "<s>");
    r->tok->eos = sl_tokenizer_find(r->tok, "</s>");
    r->tok->add_bos = r->tok->bos >= 0;
    return 0;
}

// ---- ranks ----

static int read_rank(reader *r, int32_t i, json_t *entry) {
    sl_json_file f = {r->path, entry};
    char bytes[MOST_TOKEN_BYTES];
    const char *text = NULL;
    int rank, rc = sl_json_int(&f, "rank", 0, SL_MOST_TOKEN_ID, NULL, &rank, r->err);
    if (!rc) rc = sl_json_string(&f, "token_bytes", &text, r->err);
    if (rc) return rc;
    int n = text && strlen(text) <= MOST_TOKEN_BYTES ? sl_decode64(text, strlen(text), bytes) : -1;
    if (rank != i || n <= 0)
        return sl_fail(r->err, SL_ERR_FORMAT,
                       "%s: field vocab: entry %d has rank %d and %s, expected rank %d and bytes in base64", r->path, i, rank,
                       n <= 0 ? "no token_bytes" : "token_bytes", i);
    return sl_bpe_add(r->tok->bpe, r->path, r->n_special + i, bytes, (size_t)n, 1, r->err);
}

static int read_ranks(reader *r) {
    json_t *list = sl_json_get(r->root, "vocab");
    int32_t n = r->n_vocab - r->n_special;
    if (!json_is_array(list) || json_array_size(list) < (size_t)n)
        return sl_fail(r->err, SL_ERR_FORMAT, "%s: field vocab is %s, expected a list of %d tokens or more", r->path,
                       json_is_array(list) ? "too short" : sl_json_type(list), n);
    int rc = sl_bpe_new(r->n_vocab, (size_t)n, (sl_bpe_options){.ignore_merges = 1}, &r->tok->bpe, r->err);
    for (int32_t i = 0; !rc && i < n; i++) rc = read_rank(r, i, json_array_get(list, (size_t)i));
    r->tok->n_vocab = r->n_vocab;
    return rc ? rc : sl_ranks_finish(r->path, r->n_special, r->n_vocab, r->pattern, r->tok, r->err);
}

int sl_tekken_load(const sl_documents *documents, sl_tokenizer *tok, sl_error *err) {
    char path[SL_DOCUMENT_PATH];
    json_t *root;
    int rc = sl_documents_json(documents, "tekken.json", 0, &root, err);
    if (rc) return rc;
    sl_documents_path(documents, "tekken.json", path);
    reader r = {.path = path, .root = root, .tok = tok, .err = err};
    tok->kind = "tekken";
    rc = read_config(&r);
    if (!rc) rc = add_specials(&r);
    if (!rc) rc = read_ranks(&r);
    json_decref(root);
    return rc;
}
