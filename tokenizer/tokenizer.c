// tokenizer/tokenizer.c - one interface over byte-level BPE and SentencePiece: chooses the file of a folder's tokenizer,
// encodes texts with added tokens, decodes ids.
#include "tokenizer/tokenizer.h"
#include "engine/base/json.h"
#include "tokenizer/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

// ---- loading ----

static int load_sentencepiece(const char *path, const sl_text *data, sl_tokenizer *tok, sl_error *err) {
    sl_spm_model model;
    tok->kind = "sentencepiece";
    int rc = sl_spm_check(path, data->data, data->n, &model, err);
    if (!rc) rc = sl_spm_load(path, &model, &tok->spm, err);
    sl_text_free(&model.proto);
    if (rc) return rc;
    tok->strip = model.strip;
    tok->n_vocab = sl_spm_n(tok->spm);
    tok->bos = sl_spm_bos(tok->spm);
    tok->eos = sl_spm_eos(tok->spm);
    tok->add_bos = tok->bos >= 0;
    for (int i = 0; !rc && i < tok->n_vocab; i++) {
        sl_spm_kind kind;
        const char *piece = sl_spm_piece(tok->spm, i, &kind);
        if (kind == SL_SPM_CONTROL || kind == SL_SPM_UNKNOWN) rc = sl_tokenizer_add(tok, path, i, piece, strlen(piece), 1, err);
    }
    return rc ? rc : sl_tokenizer_index(tok, path, err);
}

// A tokenizer.model holds lines of base64 and rank, or a protobuf. The first line of a rank file is printable text. A protobuf
// begins with control characters: most begin with the tag of the first field, and the byte of this tag is also a newline.
static int load_model_file(const sl_documents *d, sl_tokenizer *tok, sl_error *err) {
    char path[SL_DOCUMENT_PATH];
    sl_text data = {0};
    sl_documents_path(d, "tokenizer.model", path);
    int rc = sl_documents_text(d, "tokenizer.model", SL_MOST_MODEL_FILE, &data, err),
        lines = !rc && data.n > 0 && data.data[0] != '\n';
    for (size_t i = 0; lines && i < data.n && i < 64 && data.data[i] != '\n'; i++)
        lines = (data.data[i] >= ' ' && data.data[i] <= '~') || (data.data[i] == '\r' && data.data[i + 1] == '\n');
    if (!rc) rc = lines ? sl_tiktoken_load(path, data.data, data.n, tok, err) : load_sentencepiece(path, &data, tok, err);
    sl_text_free(&data);
    return rc;
}

// tokenizer_config.json gives "bos_token" and "eos_token", as strings or objects, and add_bos_token. A BOS and an EOS of the
// tokenizer's file have priority.
static int read_config(const sl_documents *d, sl_tokenizer *tok, sl_error *err) {
    static const char *const fields[2] = {"bos_token", "eos_token"};
    int32_t *to[2] = {&tok->bos, &tok->eos};
    char path[SL_DOCUMENT_PATH];
    json_t *root;
    int add_bos, rc = sl_documents_json(d, "tokenizer_config.json", 1, &root, err);
    if (rc || !root) return rc;
    sl_documents_path(d, "tokenizer_config.json", path);
    for (int i = 0; i < 2; i++) {
        const json_t *v = sl_json_get(root, fields[i]);
        const char *text = json_string_value(json_is_object(v) ? sl_json_get(v, "content") : v);
        int32_t id = text ? sl_tokenizer_find(tok, text) : -1;
        if (id >= 0 && *to[i] < 0) *to[i] = id;
    }
    rc = sl_json_bool(&(sl_json_file){path, root}, "add_bos_token", tok->add_bos, &add_bos, err);
    if (!rc && !add_bos) tok->add_bos = 0;
    json_decref(root);
    return rc;
}

static int load(const sl_documents *d, sl_tokenizer *tok, sl_error *err) {
    int is_bpe, rc = sl_bpe_json_load(d, &is_bpe, tok, err);
    if (rc) return rc;
    if (!is_bpe) {
        if (!sl_documents_have(d, "tokenizer.model")) // *err says why tokenizer.json is refused
            return sl_documents_have(d, "tokenizer.json")
                       ? SL_ERR_UNSUPPORTED
                       : sl_fail(err, SL_ERR_IO, "%s: neither tokenizer.json nor tokenizer.model exists", d->path);
        rc = load_model_file(d, tok, err);
        if (rc) return rc;
    }
    return read_config(d, tok, err);
}

int sl_tokenizer_load(const sl_documents *documents, sl_tokenizer **out, sl_error *err) {
    sl_tokenizer *tok = calloc(1, sizeof *tok);
    if (!tok) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", documents->path);
    tok->bos = tok->eos = -1;
    int rc = load(documents, tok, err);
    if (rc) {
        sl_tokenizer_free(tok);
        return rc;
    }
    *out = tok;
    return 0;
}

void sl_tokenizer_free(sl_tokenizer *tok) {
    if (!tok) return;
    for (int i = 0; i < tok->n_added; i++) free(tok->added[i].text);
    free(tok->added), free(tok->added_of);
    sl_pattern_free(tok->pattern);
    sl_bpe_free(tok->bpe);
    sl_spm_free(tok->spm);
    free(tok);
}

const char *sl_tokenizer_kind(const sl_tokenizer *tok) {
    return tok->kind;
}
int sl_tokenizer_n_vocab(const sl_tokenizer *tok) {
    return tok->n_vocab;
}
int32_t sl_tokenizer_bos(const sl_tokenizer *tok) {
    return tok->bos;
}
int32_t sl_tokenizer_eos(const sl_tokenizer *tok) {
    return tok->eos;
}

// ---- text to ids ----

typedef struct encode_ctx {
    const sl_bpe *bpe;
    sl_ids *ids;
} encode_ctx;

static int encode_piece(void *ctx, const char *piece, size_t n, sl_error *err) {
    encode_ctx *c = ctx;
    return sl_bpe_encode(c->bpe, piece, n, c->ids, err);
}

static int encode_text(const sl_tokenizer *tok, const char *text, size_t n, sl_ids *ids, sl_error *err) {
    if (n == 0) return 0;
    if (tok->spm) return sl_spm_encode(tok->spm, text, n, ids, err);
    encode_ctx ctx = {tok->bpe, ids};
    if (!tok->nfc || sl_nfc_is(text, n)) return sl_pattern_split(tok->pattern, text, n, encode_piece, &ctx, err);
    sl_text normalised = {0};
    int rc = sl_nfc_append(text, n, &normalised, err);
    if (!rc) rc = sl_pattern_split(tok->pattern, normalised.data, normalised.n, encode_piece, &ctx, err);
    sl_text_free(&normalised);
    return rc;
}

// Returns how many bytes from `at` on lie before the next plain span: 0 inside a span. *next: the first span that may end after
// `at`.
static size_t bytes_before_span(const sl_span *plain, size_t n_plain, size_t n, size_t at, size_t *next) {
    while (*next < n_plain && (plain[*next].to <= at || plain[*next].from == plain[*next].to)) ++*next;
    if (*next == n_plain) return n - at;
    SL_CHECK(plain[*next].from < plain[*next].to && plain[*next].to <= n &&
             (*next == 0 || plain[*next - 1].to <= plain[*next].from));
    return plain[*next].from > at ? plain[*next].from - at : 0;
}

int sl_tokenize_marked(const sl_tokenizer *tok, const char *text, size_t n, const sl_span *plain, size_t n_plain,
                       unsigned flags, sl_ids *ids, sl_error *err) {
    int rc = (flags & SL_TOK_BOS) && tok->add_bos ? sl_ids_push(ids, tok->bos, err) : 0;
    size_t from = 0, next = 0;
    for (size_t at = 0; !rc && at < n;) {
        size_t n_special = bytes_before_span(plain, n_plain, n, at, &next);
        const sl_added *a = sl_tokenizer_added_at(tok, text + at, n - at, n_special);
        if (!a) {
            at++;
            continue;
        }
        rc = encode_text(tok, text + from, at - from, ids, err);
        if (!rc) rc = sl_ids_push(ids, a->id, err);
        from = at += a->n;
    }
    return rc ? rc : encode_text(tok, text + from, n - from, ids, err);
}

int sl_tokenize(const sl_tokenizer *tok, const char *text, size_t n, unsigned flags, sl_ids *ids, sl_error *err) {
    const sl_span all = {0, n};
    return sl_tokenize_marked(tok, text, n, &all, flags & SL_TOK_PLAIN ? 1 : 0, flags, ids, err);
}

// ---- ids to text ----

static const char U2581[] = "\xe2\x96\x81";

static int append_special(const sl_added *a, int specials, sl_text *text, sl_error *err) {
    return a->special && !specials ? 0 : sl_text_append(text, a->text, a->n, err);
}

static int append_piece(const char *piece, sl_text *text, sl_error *err) { // in a piece U+2581 means a blank
    int rc = 0;
    for (const char *p = piece; !rc && *p;) {
        int is_blank = !strncmp(p, U2581, 3);
        rc = is_blank ? sl_text_append(text, " ", 1, err) : sl_text_append(text, p, 1, err);
        p += is_blank ? 3 : 1;
    }
    return rc;
}

// Decodes as SentencePiece does: it drops blanks that it added at the start of a text, reads <0xNN> as a byte, and gives a
// control piece no text.
static int append_spm(const sl_tokenizer *tok, int32_t id, int specials, int *at_start, sl_text *text, sl_error *err) {
    sl_spm_kind kind;
    const char *piece = sl_spm_piece(tok->spm, id, &kind);
    if (kind == SL_SPM_CONTROL) return append_special(sl_tokenizer_added(tok, id), specials, text, err);
    int start = *at_start;
    size_t before = text->n;
    *at_start = 0;
    if (kind == SL_SPM_UNKNOWN) return append_special(sl_tokenizer_added(tok, id), specials, text, err);
    if (kind == SL_SPM_BYTE) {
        char byte = (char)strtol(piece + 3, NULL, 16);
        return sl_text_append(text, &byte, 1, err);
    }
    int drop = start && tok->strip != SL_SPM_STRIP_NONE && !strncmp(piece, U2581, 3);
    int rc = append_piece(drop ? piece + 3 : piece, text, err);
    *at_start = start && tok->strip == SL_SPM_STRIP_ALL && text->n == before; // nothing written yet: drop the next blank too
    return rc;
}

static int append_token(const sl_tokenizer *tok, int32_t id, int specials, int *at_start, sl_text *text, sl_error *err) {
    if (id < 0 || id >= tok->n_vocab) return sl_fail(err, SL_ERR_ARG, "token id %d: expected 0 to %d", id, tok->n_vocab - 1);
    if (tok->spm) return append_spm(tok, id, specials, at_start, text, err);
    const sl_added *a = sl_tokenizer_added(tok, id);
    if (a) return append_special(a, specials, text, err);
    size_t n = 0;
    const char *bytes = sl_bpe_bytes(tok->bpe, id, &n);
    return bytes ? sl_text_append(text, bytes, n, err) : 0; // an id without a token has no text
}

int sl_detokenize(const sl_tokenizer *tok, const int32_t *ids, size_t n, int specials, sl_text *text, sl_error *err) {
    int rc = sl_text_append(text, "", 0, err), at_start = 1;
    for (size_t i = 0; !rc && i < n; i++) rc = append_token(tok, ids[i], specials, &at_start, text, err);
    return rc;
}

int sl_token_bytes(const sl_tokenizer *tok, int32_t id, sl_text *bytes, sl_error *err) {
    int rc = sl_text_append(bytes, "", 0, err), at_start = 0;
    return rc || id < 0 || id >= tok->n_vocab ? rc : append_token(tok, id, 1, &at_start, bytes, err);
}

// ---- streaming ----

sl_detok_stream sl_detok_begin(const sl_tokenizer *tok, int specials, int at_start) {
    return (sl_detok_stream){.tok = tok, .specials = specials, .at_start = at_start};
}

// Returns the length of the UTF-8 character that begins with these n bytes; 0: with the byte s[n - 1] they cannot become one.
static int utf8_need(const unsigned char *s, int n) {
    int need = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
    if (n < 2 || need < 2) return need;
    unsigned low = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80, high = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
    if (s[1] < low || s[1] > high) return 0;
    for (int i = 2; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    return need;
}

static int append_replacement(sl_text *text, sl_error *err) {
    return sl_text_append(text, "\xef\xbf\xbd", 3, err);
}

static int feed_byte(sl_detok_stream *s, unsigned char byte, sl_text *text, sl_error *err) {
    int rc = 0;
    s->held[s->n_held++] = byte;
    int need = utf8_need(s->held, s->n_held);
    if (need == 0 && s->n_held > 1) { // the held bytes are not a character; this byte may begin one
        s->n_held = 0;
        rc = append_replacement(text, err);
        return rc ? rc : feed_byte(s, byte, text, err);
    }
    if (need == 0) {
        s->n_held = 0;
        return append_replacement(text, err);
    }
    if (need > s->n_held) return 0;
    rc = sl_text_append(text, (const char *)s->held, (size_t)s->n_held, err);
    s->n_held = 0;
    return rc;
}

int sl_detok_next(sl_detok_stream *s, int32_t id, sl_text *text, sl_error *err) {
    sl_text bytes = {0};
    int rc = append_token(s->tok, id, s->specials, &s->at_start, &bytes, err);
    for (size_t i = 0; !rc && i < bytes.n; i++) rc = feed_byte(s, (unsigned char)bytes.data[i], text, err);
    sl_text_free(&bytes);
    return rc;
}

int sl_detok_end(sl_detok_stream *s, sl_text *text, sl_error *err) {
    int held = s->n_held;
    s->n_held = 0;
    return held ? append_replacement(text, err) : sl_text_append(text, "", 0, err);
}
