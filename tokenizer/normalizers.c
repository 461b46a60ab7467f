// tokenizer/normalizers.c - the normaliser of a tokenizer.json: steps that change a text before it is split into pieces.
#include "tokenizer/unicode/chars.h"
#include "tokenizer/json_part.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_STEPS = 16 };

typedef enum { NFC, PREPEND, REPLACE, STRIP } kind;

typedef struct step {
    kind kind;
    sl_finder find; // REPLACE
    char *text;     // PREPEND: the text in front; REPLACE: the text in place of a match
    size_t n;
    int left, right; // STRIP: the ends without white space
} step;

struct sl_normalizer {
    step steps[MOST_STEPS];
    int n;
};

// ---- reading ----

static int read_text(const sl_part *p, const char *field, step *s) {
    const char *text;
    int rc = sl_part_string(p, field, &text);
    if (rc) return rc;
    if (!text) return sl_part_refuse(p, "expected a text");
    s->n = strlen(text);
    s->text = strdup(text);
    return s->text ? 0 : sl_fail(p->err, SL_ERR_MEMORY, "%s: out of memory", p->path);
}

static int read_step(void *ctx, const sl_part *p) {
    sl_normalizer *norm = ctx;
    if (norm->n == MOST_STEPS) return sl_part_refuse(p, "too many steps");
    step *s = &norm->steps[norm->n++];
    if (sl_part_is(p, "NFC")) return s->kind = NFC, 0;
    if (sl_part_is(p, "Prepend")) return s->kind = PREPEND, read_text(p, "prepend", s);
    if (sl_part_is(p, "Replace")) {
        s->kind = REPLACE;
        int rc = sl_part_finder(p, &s->find);
        return rc ? rc : read_text(p, "content", s);
    }
    if (sl_part_is(p, "Strip")) {
        s->kind = STRIP;
        int rc = sl_part_flag(p, "strip_left", 1, &s->left);
        return rc ? rc : sl_part_flag(p, "strip_right", 1, &s->right);
    }
    return sl_part_refuse(p, "supported are NFC, Prepend, Replace and Strip");
}

int sl_normalizer_read(const sl_part *p, sl_normalizer **out) {
    if (!p->v) return 0;
    sl_normalizer *norm = calloc(1, sizeof *norm);
    if (!norm) return sl_fail(p->err, SL_ERR_MEMORY, "%s: out of memory", p->path);
    *out = norm;
    return sl_part_each(p, "normalizers", read_step, norm);
}

void sl_normalizer_free(sl_normalizer *norm) {
    if (!norm) return;
    for (int i = 0; i < norm->n; i++) sl_finder_free(&norm->steps[i].find), free(norm->steps[i].text);
    free(norm);
}

// ---- running ----

typedef struct replace_ctx {
    const step *step;
    sl_text *out;
} replace_ctx;

static int replace_piece(void *ctx, const char *piece, size_t n, int is_match, sl_error *err) {
    const replace_ctx *c = ctx;
    return is_match ? sl_text_append(c->out, c->step->text, c->step->n, err) : sl_text_append(c->out, piece, n, err);
}

static int run_prepend(const step *s, const sl_view *text, sl_text *out, sl_error *err) {
    int rc = sl_text_append(out, s->text, s->n, err);
    return rc ? rc : sl_text_append(out, text->data, text->n, err);
}

static void strip(const step *s, sl_view *text) {
    size_t len;
    while (s->left && text->n > 0 && sl_char_is(SL_UNICODE_WHITE, sl_char_at(text->data, text->n, &len)))
        text->data += len, text->n -= len, text->at_start = 0;
    while (s->right && text->n > 0 && sl_char_is(SL_UNICODE_WHITE, sl_char_before(text->data, text->n, &len))) text->n -= len;
}

int sl_normalizer_run(const sl_normalizer *norm, sl_view *text, sl_text buffers[2], sl_error *err) {
    int rc = 0, used = -1; // the buffer that holds the text
    for (int i = 0; !rc && i < norm->n && text->n > 0; i++) {
        const step *s = &norm->steps[i];
        if (s->kind == STRIP) {
            strip(s, text);
            continue;
        }
        if (s->kind == NFC && sl_nfc_is(text->data, text->n)) continue;
        used = used == 0;
        sl_text *out = &buffers[used];
        out->n = 0;
        rc = sl_text_append(out, "", 0, err);
        if (rc) break;
        if (s->kind == NFC) rc = sl_nfc_append(text->data, text->n, out, err);
        if (s->kind == PREPEND) rc = run_prepend(s, text, out, err);
        if (s->kind == REPLACE) rc = sl_finder_split(&s->find, text->data, text->n, replace_piece, &(replace_ctx){s, out}, err);
        text->data = out->data, text->n = out->n;
    }
    return rc;
}
