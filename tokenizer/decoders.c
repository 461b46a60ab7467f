// tokenizer/decoders.c - the decoder of a tokenizer.json: makes text of tokens. It decodes one token at a time, so that an
// answer can be shown while it is made. A step that needs the tokens after a token is refused.
#include "tokenizer/json_part.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_REPLACE = 8, MOST_MARK = 4 };

typedef struct replace { // of each token
    sl_finder find;
    char *text;
    size_t n;
} replace;

struct sl_decoder {
    int by_bytes; // ByteLevel: tokens are bytes
    replace replace[MOST_REPLACE];
    int n_replace;
    int byte_fallback; // <0x41> is a byte
    int fuses;         // the steps after Fuse see the whole text
    int strips;        // drop this character from the start of the text (with Fuse) or of each token
    char strip;
    char mark[MOST_MARK]; // Metaspace: stands for a blank
    size_t n_mark;
    int drops_marks; // Metaspace: the first token's marks have no text
};

// ---- reading ----

static int read_replace(const sl_part *p, sl_decoder *d) {
    if (d->fuses || d->byte_fallback || d->strips || d->n_replace == MOST_REPLACE)
        return sl_part_refuse(p, "expected before ByteFallback, Fuse and Strip, and at most 8 times");
    replace *r = &d->replace[d->n_replace++];
    const char *text;
    int rc = sl_part_finder(p, &r->find);
    if (!rc) rc = sl_part_string(p, "content", &text);
    if (rc) return rc;
    if (!text) return sl_part_refuse(p, "expected a content");
    r->n = strlen(text);
    r->text = strdup(text);
    return r->text ? 0 : sl_fail(p->err, SL_ERR_MEMORY, "%s: out of memory", p->path);
}

static int read_strip(const sl_part *p, sl_decoder *d) {
    static const long long zero;
    const sl_json_file f = {p->path, (json_t *)p->v};
    const char *content;
    int start, stop, rc = sl_part_string(p, "content", &content);
    if (!rc) rc = sl_json_int(&f, "start", 0, 1 << 20, &zero, &start, p->err);
    if (!rc) rc = sl_json_int(&f, "stop", 0, 1 << 20, &zero, &stop, p->err);
    if (rc) return rc;
    int is_char = content && content[0] > 0 && !content[1];
    if (d->strips || !is_char || start > 1 || stop > 0)
        return sl_part_refuse(p, "expected once, with a content of one ASCII character, start 0 or 1, and stop 0");
    d->strips = start, d->strip = content[0];
    return 0;
}

static int read_metaspace(const sl_part *p, sl_decoder *d) {
    const char *mark;
    sl_blank blank;
    int rc = sl_part_string(p, "replacement", &mark);
    if (!rc) rc = sl_blank_read(p, &blank);
    if (rc) return rc;
    d->n_mark = mark ? strlen(mark) : 0;
    if (d->n_mark == 0 || d->n_mark > MOST_MARK) return sl_part_refuse(p, "expected a replacement of one character");
    memcpy(d->mark, mark, d->n_mark);
    d->drops_marks = blank != SL_BLANK_NEVER;
    return 0;
}

static int read_step(void *ctx, const sl_part *p) {
    sl_decoder *d = ctx;
    int first = !d->n_replace && !d->byte_fallback && !d->fuses && !d->strips;
    if (d->by_bytes || d->n_mark > 0) return sl_part_refuse(p, "there is a step before it, expected none");
    if (sl_part_is(p, "Replace")) return read_replace(p, d);
    if (sl_part_is(p, "Strip")) return read_strip(p, d);
    if (sl_part_is(p, "Fuse")) return d->fuses = 1, 0;
    if (sl_part_is(p, "ByteFallback")) {
        if (d->fuses || d->strips) return sl_part_refuse(p, "expected before Fuse and Strip");
        return d->byte_fallback = 1, 0;
    }
    int is_bytes = sl_part_is(p, "ByteLevel");
    if (!is_bytes && !sl_part_is(p, "Metaspace"))
        return sl_part_refuse(p, "supported are ByteLevel, Metaspace, Replace, ByteFallback, Fuse and Strip");
    if (!first) return sl_part_refuse(p, "expected alone");
    return is_bytes ? (d->by_bytes = 1, 0) : read_metaspace(p, d);
}

int sl_decoder_read(const sl_part *p, sl_decoder **out) {
    if (!p->v)
        return sl_fail(p->err, SL_ERR_UNSUPPORTED, "%s: field decoder is missing: expected how tokens become text", p->path);
    sl_decoder *d = calloc(1, sizeof *d);
    if (!d) return sl_fail(p->err, SL_ERR_MEMORY, "%s: out of memory", p->path);
    *out = d;
    return sl_part_each(p, "decoders", read_step, d);
}

void sl_decoder_free(sl_decoder *d) {
    if (!d) return;
    for (int i = 0; i < d->n_replace; i++) sl_finder_free(&d->replace[i].find), free(d->replace[i].text);
    free(d);
}

int sl_decoder_by_bytes(const sl_decoder *d) {
    return d->by_bytes;
}

// ---- decoding ----

typedef struct replace_ctx {
    const replace *with;
    sl_text *out;
} replace_ctx;

static int replace_piece(void *ctx, const char *piece, size_t n, int is_match, sl_error *err) {
    const replace_ctx *c = ctx;
    return is_match ? sl_text_append(c->out, c->with->text, c->with->n, err) : sl_text_append(c->out, piece, n, err);
}

static int hex_digit(int c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int sl_byte_token(const char *token, size_t n) {
    if (n != 6 || memcmp(token, "<0x", 3) || token[5] != '>') return -1;
    int high = hex_digit(token[3]), low = hex_digit(token[4]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

static int append_marked(const sl_decoder *d, const char *token, size_t n, int is_first, sl_text *out, sl_error *err) {
    int rc = 0;
    for (size_t at = 0; !rc && at < n;) {
        if (n - at >= d->n_mark && !memcmp(token + at, d->mark, d->n_mark)) {
            if (!(is_first && d->drops_marks)) rc = sl_text_append(out, " ", 1, err);
            at += d->n_mark;
        } else {
            rc = sl_text_append(out, token + at++, 1, err);
        }
    }
    return rc;
}

int sl_decoder_append(const sl_decoder *d, const char *token, size_t n, int *at_start, sl_text *out, sl_error *err) {
    sl_text texts[2] = {{0}, {0}};
    int rc = 0, start = *at_start;
    if (d->by_bytes) return *at_start = 0, sl_text_append(out, token, n, err);
    if (d->n_mark > 0) return *at_start = 0, append_marked(d, token, n, start, out, err);
    for (int i = 0; !rc && i < d->n_replace; i++) {
        sl_text *to = &texts[i % 2];
        to->n = 0;
        rc = sl_text_append(to, "", 0, err);
        if (!rc) rc = sl_finder_split(&d->replace[i].find, token, n, replace_piece, &(replace_ctx){&d->replace[i], to}, err);
        token = to->data, n = to->n;
    }
    int byte = !rc && d->byte_fallback ? sl_byte_token(token, n) : -1;
    char one = (char)byte;
    if (byte >= 0) token = &one, n = 1;
    if (!rc && n > 0) {
        size_t drop = d->strips && (start || !d->fuses) && token[0] == d->strip;
        *at_start = 0;
        rc = sl_text_append(out, token + drop, n - drop, err);
    }
    sl_text_free(&texts[0]), sl_text_free(&texts[1]);
    return rc;
}
