// server/serve/serve_tokens.c - tokens and their log-probabilities, with the bytes that they have in a text.
#include "server/serve/serve_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void serve_tokens_free(serve_tokens *t) {
    free(t->tokens);
    free(t->tops);
    sl_text_free(&t->bytes);
    *t = (serve_tokens){0};
}

// The bytes of a token, appended to t->bytes. Until set_bytes, *p has their number only.
static int add_bytes(serve_tokens *t, const sl_tokenizer *tok, int32_t id, double at, api_logprob *p, sl_error *err) {
    size_t before = t->bytes.n;
    int rc = tok ? sl_token_bytes(tok, id, &t->bytes, err) : 0;
    *p = (api_logprob){.n = t->bytes.n - before, .logprob = at};
    return rc;
}

// Sets the pointers once t->bytes no longer moves.
static void set_bytes(serve_tokens *t) {
    const char *at = t->bytes.data ? t->bytes.data : "";
    for (int i = 0; i < t->n; i++) {
        t->tokens[i].token.bytes = at;
        at += t->tokens[i].token.n;
        for (int j = 0; j < t->tokens[i].n_top; j++) {
            api_logprob *p = (api_logprob *)&t->tokens[i].top[j];
            p->bytes = at;
            at += p->n;
        }
    }
}

static int reserve(serve_tokens *t, int n, sl_error *err) {
    *t = (serve_tokens){0};
    t->tokens = calloc((size_t)n + 1, sizeof *t->tokens);
    t->tops = calloc((size_t)n * SL_MAX_LOGPROBS + 1, sizeof *t->tops);
    return t->tokens && t->tops ? 0 : sl_fail(err, SL_ERR_MEMORY, "%d log-probabilities: out of memory", n);
}

// l NULL: the token has none.
static int add(serve_tokens *t, const sl_tokenizer *tok, int32_t id, const sl_token_logprobs *l, sl_error *err) {
    api_token *to = &t->tokens[t->n];
    api_logprob *tops = t->tops + (size_t)t->n * SL_MAX_LOGPROBS;
    int rc = add_bytes(t, tok, id, l ? l->sampled.at : NAN, &to->token, err);
    to->top = tops;
    to->n_top = l ? l->n_top : 0;
    for (int i = 0; !rc && i < to->n_top; i++) rc = add_bytes(t, tok, l->top[i].id, l->top[i].at, &tops[i], err);
    t->n++;
    return rc;
}

// The text leaves out the first blank of the token that was added last, or all its bytes.
static void cut(serve_tokens *t, size_t at, size_t n) {
    memmove(t->bytes.data + at, t->bytes.data + at + n, t->bytes.n - at - n);
    t->bytes.n -= n;
    t->tokens[t->n - 1].token.n -= n;
}

// 1: a text that begins with this token does not begin with the token's blank.
static int drops_blank(const sl_tokenizer *tok, int32_t id, const char *bytes, size_t n) {
    sl_detok_stream stream = sl_detok_begin(tok, 1, 1);
    sl_text text = {0};
    int drops = n && *bytes == ' ' && !sl_detok_next(&stream, id, &text, NULL) && !sl_detok_end(&stream, &text, NULL) &&
                (!text.n || *text.data != ' ');
    sl_text_free(&text);
    return drops;
}

int serve_tokens_generated(const sl_tokenizer *tok, const sl_token_logprobs *l, int from, int n, int at_start,
                           serve_tokens *out, sl_error *err) {
    int rc = reserve(out, n - from, err);
    for (int i = from; !rc && i < n; i++) {
        size_t at = out->bytes.n;
        rc = add(out, tok, l[i].sampled.id, &l[i], err);
        if (!rc && tok && i == 0 && at_start &&
            drops_blank(tok, l[i].sampled.id, out->bytes.data + at, out->tokens[out->n - 1].token.n))
            cut(out, at, 1);
    }
    if (!rc) set_bytes(out);
    return rc;
}

// Whether text[at..] begins with bytes[0..n).
static int is_next(const sl_text *text, size_t at, const char *bytes, size_t n) {
    return text->n - at >= n && (!n || !memcmp(text->data + at, bytes, n));
}

int serve_tokens_prompt(const sl_tokenizer *tok, const int32_t *ids, int n, const sl_token_logprobs *l, const sl_text *text,
                        serve_tokens *out, sl_error *err) {
    int rc = reserve(out, n, err);
    size_t at = 0; // in the text
    for (int i = 0; !rc && i < n; i++) {
        size_t from = out->bytes.n;
        rc = add(out, tok, ids[i], i ? &l[i - 1] : NULL, err);
        if (rc || !tok) continue;
        const api_logprob *p = &out->tokens[i].token;
        const char *bytes = out->bytes.data ? out->bytes.data + from : "";
        if (!is_next(text, at, bytes, p->n) && p->n && *bytes == ' ' && is_next(text, at, bytes + 1, p->n - 1))
            cut(out, from, 1); // SentencePiece's first blank
        else if (!is_next(text, at, bytes, p->n) && sl_tokenizer_is_special(tok, ids[i]))
            cut(out, from, p->n); // the tokenizer has added this token
        if (is_next(text, at, out->bytes.data + from, p->n)) at += p->n;
    }
    if (!rc) set_bytes(out);
    return rc;
}
