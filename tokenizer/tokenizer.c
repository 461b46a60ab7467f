// tokenizer/tokenizer.c - one interface over BPE and SentencePiece: chooses the file of a model's tokenizer, encodes texts with
// added tokens, decodes ids.
#include "tokenizer/tokenizer.h"
#include "base/json.h"
#include "tokenizer/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

static const char U2581[] = "\xe2\x96\x81"; // SentencePiece's blank

typedef struct encoder {
    const sl_tokenizer *tok;
    sl_ids *ids;
    const char *text; // the whole text
    const sl_span *plain;
    size_t n_plain;
    sl_view view; // the normalised part
} encoder;

// ---- loading ----

// The model without a blank in front of a text: a second normalizer_spec replaces the field of the first one.
static int load_bare(const char *path, sl_spm_model *model, sl_tokenizer *tok, sl_error *err) {
    static const char no_prefix[] = {3 << 3 | 2, 2, 3 << 3, 0};
    int rc = sl_text_append(&model->proto, no_prefix, sizeof no_prefix, err);
    return rc ? rc : sl_spm_load(path, model, &tok->spm_bare, err);
}

static int load_sentencepiece(const sl_documents *d, const char *path, const sl_text *data, sl_tokenizer *tok, sl_error *err) {
    sl_spm_model model;
    tok->kind = "sentencepiece";
    int rc = sl_spm_check(path, data->data, data->n, &model, err);
    if (!rc) rc = sl_spm_load(path, &model, &tok->spm, err);
    if (!rc) rc = sl_blank_load(d, &tok->blank, &tok->joins_blank, err);
    if (!rc && tok->blank != SL_BLANK_ALWAYS && model.add_dummy_prefix) rc = load_bare(path, &model, tok, err);
    sl_text_free(&model.proto);
    if (rc) return rc;
    tok->strip = tok->blank == SL_BLANK_NEVER ? SL_SPM_STRIP_NONE : model.strip;
    tok->n_vocab = sl_spm_n(tok->spm);
    tok->bos = sl_spm_bos(tok->spm);
    tok->eos = sl_spm_eos(tok->spm);
    tok->add_bos = tok->bos >= 0;
    for (int i = 0; !rc && i < sl_spm_n(tok->spm); i++) {
        sl_spm_kind kind;
        const char *piece = sl_spm_piece(tok->spm, i, &kind);
        const sl_added token = {.text = (char *)piece, .n = strlen(piece), .id = i, .special = 1};
        if (kind == SL_SPM_CONTROL || kind == SL_SPM_UNKNOWN) rc = sl_tokenizer_add(tok, path, &token, err);
    }
    return rc;
}

static int has_decoder(const sl_documents *d, int *has, sl_error *err) {
    json_t *config = NULL;
    int rc = sl_documents_json(d, "tokenizer_config.json", 1, &config, err);
    *has = json_object_size(sl_json_get(config, "added_tokens_decoder")) > 0;
    json_decref(config);
    return rc;
}

// A model file holds lines of base64 and rank, or a protobuf. The first line of a rank file is printable text. A protobuf
// begins with control characters: most begin with the tag of the first field, and the byte of this tag is also a newline.
static int load_model_file(const sl_documents *d, const char *name, sl_tokenizer *tok, sl_error *err) {
    char path[SL_DOCUMENT_PATH];
    sl_text data = {0};
    int has, rc = sl_documents_text(d, name, SL_MOST_MODEL_FILE, &data, err), lines = !rc && data.n > 0 && data.data[0] != '\n';
    sl_documents_path(d, name, path);
    for (size_t i = 0; lines && i < data.n && i < 64 && data.data[i] != '\n'; i++)
        lines = (data.data[i] >= ' ' && data.data[i] <= '~') || (data.data[i] == '\r' && data.data[i + 1] == '\n');
    if (!rc) rc = has_decoder(d, &has, err);
    if (!rc)
        rc = lines ? sl_tiktoken_load(path, data.data, data.n, !has, tok, err) : load_sentencepiece(d, path, &data, tok, err);
    sl_text_free(&data);
    return rc;
}

// Folders of Mistral have its own name of the file, with the version of the control tokens.
static const char *find_model_file(const sl_documents *d, const char **version) {
    static const char *const files[][2] = {
        {"tokenizer.model", ""},        {"tokenizer.model.v1", "v1"}, {"tokenizer.model.v2", "v2"},
        {"tokenizer.model.v3", "v3"},   {"tokenizer.model.v7", "v7"}, {"tokenizer.model.v7m1", "v7"},
        {"tokenizer.model.v11", "v11"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (sl_documents_have(d, files[i][0])) return *version = files[i][1], files[i][0];
    return NULL;
}

static int load(const sl_documents *d, sl_tokenizer *tok, sl_error *err) {
    int is_bpe, rc = sl_json_tokenizer_load(d, &is_bpe, tok, err);
    if (rc) return rc;
    if (!is_bpe && sl_documents_have(d, "tekken.json")) {
        rc = sl_tekken_load(d, tok, err);
        if (rc) return rc;
    } else if (!is_bpe) {
        const char *name = find_model_file(d, &tok->version);
        if (!name) // *err says why tokenizer.json is refused
            return sl_documents_have(d, "tokenizer.json")
                       ? SL_ERR_UNSUPPORTED
                       : sl_fail(err, SL_ERR_IO, "%s: neither tokenizer.json nor tokenizer.model exists", d->path);
        rc = load_model_file(d, name, tok, err);
        if (rc) return rc;
    }
    rc = sl_token_files_load(d, tok, err);
    return rc ? rc : sl_tokenizer_index(tok, d->path, err);
}

int sl_tokenizer_load(const sl_documents *documents, sl_tokenizer **out, sl_error *err) {
    sl_tokenizer *tok = calloc(1, sizeof *tok);
    if (!tok) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", documents->path);
    tok->bos = tok->eos = -1;
    tok->version = "";
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
    for (int i = 0; i < tok->n_added; i++) free(tok->added[i].text), free(tok->added[i].found);
    for (int i = 0; i < 2; i++) free(tok->sets[i].tokens);
    free(tok->added), free(tok->added_of);
    sl_normalizer_free(tok->norm);
    sl_pre_tokenizer_free(tok->pre);
    sl_decoder_free(tok->decoder);
    sl_bpe_free(tok->bpe);
    sl_spm_free(tok->spm), sl_spm_free(tok->spm_bare);
    free(tok);
}

const char *sl_tokenizer_kind(const sl_tokenizer *tok) {
    return tok->kind;
}
const char *sl_tokenizer_version(const sl_tokenizer *tok) {
    return tok->version;
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

int sl_tokenizer_adds_bos(const sl_tokenizer *tok) {
    return tok->add_bos;
}

// ---- text to ids ----

static int encode_piece(void *ctx, const char *piece, size_t n, int is_match, sl_error *err) {
    const encoder *e = ctx;
    (void)is_match;
    return sl_bpe_encode(e->tok->bpe, piece, n, e->ids, err);
}

// Encodes a text without added tokens.
static int encode_model(encoder *e, const char *text, size_t n, int at_start, sl_error *err) {
    const sl_tokenizer *tok = e->tok;
    if (n == 0) return 0;
    if (!tok->spm)
        return tok->pre ? sl_pre_tokenizer_split(tok->pre, text, n, at_start, encode_piece, e, err)
                        : sl_bpe_encode(tok->bpe, text, n, e->ids, err);
    int has = tok->joins_blank && (text[0] == ' ' || (n >= 3 && !memcmp(text, U2581, 3)));
    int wants = tok->blank == SL_BLANK_ALWAYS || (tok->blank == SL_BLANK_FIRST && at_start && !has);
    return sl_spm_encode(wants || !tok->spm_bare ? tok->spm : tok->spm_bare, text, n, e->ids, err);
}

// ---- the tokens of the normalised text ----

static int encode_normalised(void *ctx, size_t from, size_t to, sl_error *err) {
    encoder *e = ctx;
    return encode_model(e, e->view.data + from, to - from, e->view.at_start && from == 0, err);
}

static int push_token(void *ctx, const sl_added *token, size_t from, sl_error *err) {
    const encoder *e = ctx;
    (void)from;
    return sl_ids_push(e->ids, token->id, err);
}

// Returns where the byte `at` of the text is after the normalisation of the text.
static int normalised_place(const encoder *e, const char *text, size_t at, size_t *place, sl_error *err) {
    sl_text buffers[2] = {{0}, {0}};
    sl_view view = {text, at, 0};
    int rc = at && e->tok->norm ? sl_normalizer_run(e->tok->norm, &view, buffers, err) : 0; // a blank may begin any text
    *place = at ? view.n : 0;
    sl_text_free(&buffers[0]), sl_text_free(&buffers[1]);
    return rc;
}

// Writes the plain spans that lie in text[from, to) of the whole text, as spans of the normalised text of n bytes.
static int normalised_spans(const encoder *e, size_t from, size_t to, size_t n, sl_span *out, size_t *n_out, sl_error *err) {
    int rc = 0;
    for (size_t i = 0; !rc && i < e->n_plain; i++) {
        size_t a = e->plain[i].from > from ? e->plain[i].from : from, b = e->plain[i].to < to ? e->plain[i].to : to;
        if (a >= b) continue;
        sl_span *s = &out[*n_out];
        rc = normalised_place(e, e->text + from, a - from, &s->from, err);
        if (!rc) rc = normalised_place(e, e->text + from, b - from, &s->to, err);
        if (*n_out > 0 && s->from < s[-1].to) s->from = s[-1].to;
        if (s->to > n || b == to) s->to = n;
        if (s->from < s->to) ++*n_out;
    }
    return rc;
}

// Encodes the part [from, to) of the whole text. It holds no token that is searched before the normalisation.
static int encode_part(void *ctx, size_t from, size_t to, sl_error *err) {
    encoder *e = ctx;
    const sl_added_set *set = &e->tok->sets[1];
    sl_text buffers[2] = {{0}, {0}};
    e->view = (sl_view){e->text + from, to - from, from == 0};
    int rc = e->tok->norm ? sl_normalizer_run(e->tok->norm, &e->view, buffers, err) : 0;
    if (!rc && set->n == 0) {
        rc = encode_normalised(e, 0, e->view.n, err);
    } else if (!rc) {
        sl_added_search s = {.set = set, .on_text = encode_normalised, .on_token = push_token, .ctx = e};
        sl_span *plain = malloc((e->n_plain + 1) * sizeof *plain);
        if (!plain) rc = sl_fail(err, SL_ERR_MEMORY, "added tokens: out of memory");
        if (!rc && set->has_special) rc = normalised_spans(e, from, to, e->view.n, plain, &s.n_plain, err);
        s.plain = plain;
        if (!rc) rc = sl_added_split(&s, e->view.data, e->view.n, err);
        free(plain);
    }
    sl_text_free(&buffers[0]), sl_text_free(&buffers[1]);
    return rc;
}

// A text that begins with BOS gets no other one.
static void drop_second_bos(const sl_tokenizer *tok, size_t first, sl_ids *ids) {
    if (ids->n < first + 2 || ids->data[first] != tok->bos || ids->data[first + 1] != tok->bos) return;
    ids->n--;
    memmove(ids->data + first, ids->data + first + 1, (ids->n - first) * sizeof *ids->data);
}

int sl_tokenize_marked(const sl_tokenizer *tok, const char *text, size_t n, const sl_span *plain, size_t n_plain,
                       unsigned flags, sl_ids *ids, sl_error *err) {
    encoder e = {.tok = tok, .ids = ids, .text = text, .plain = plain, .n_plain = n_plain};
    const sl_added_search s = {&tok->sets[0], plain, n_plain, encode_part, push_token, &e};
    int adds_bos = (flags & SL_TOK_BOS) && tok->add_bos;
    size_t first = ids->n;
    int rc = adds_bos ? sl_ids_push(ids, tok->bos, err) : 0;
    if (!rc) rc = sl_added_split(&s, text, n, err);
    if (!rc && adds_bos) drop_second_bos(tok, first, ids);
    return rc;
}

int sl_tokenize(const sl_tokenizer *tok, const char *text, size_t n, unsigned flags, sl_ids *ids, sl_error *err) {
    const sl_span all = {0, n};
    return sl_tokenize_marked(tok, text, n, &all, flags & SL_TOK_PLAIN ? 1 : 0, flags, ids, err);
}

// ---- ids to text ----

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

// Decodes as SentencePiece does: it drops blanks that it added at the start of a text, and reads <0xNN> as a byte.
static int append_spm(const sl_tokenizer *tok, int32_t id, int specials, int *at_start, sl_text *text, sl_error *err) {
    sl_spm_kind kind;
    const char *piece = sl_spm_piece(tok->spm, id, &kind);
    const sl_added *a = sl_tokenizer_added(tok, id);
    int start = *at_start;
    size_t before = text->n;
    if (kind != SL_SPM_CONTROL || specials) *at_start = 0; // a token that is left out leaves the start as it is
    if (a) return append_special(a, specials, text, err);
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
    const sl_added *a = sl_tokenizer_added(tok, id);
    if (tok->spm && sl_tokenizer_has_piece(tok, id)) return append_spm(tok, id, specials, at_start, text, err);
    if (a && a->special && !specials) return 0;
    size_t n = 0;
    const char *bytes = tok->spm ? NULL : sl_bpe_bytes(tok->bpe, id, &n);
    if (a) bytes = a->found, n = a->n_found;
    if (!bytes) return 0; // an id without a token has no text
    if (tok->decoder) return sl_decoder_append(tok->decoder, bytes, n, at_start, text, err);
    *at_start = 0;
    return sl_text_append(text, bytes, n, err);
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
