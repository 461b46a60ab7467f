// server/api/reply_usage.c - counts, log-probabilities and small bodies; see reply_internal.h and replies.h.
#include "base/number.h"
#include "base/utf8.h"
#include "engine/draft/draft_counts.h"
#include "server/api/reply_internal.h"

#include <math.h>
#include <string.h>

static json_t *number_json(double x) { // JSON has no infinity; OpenAI writes -9999 for a probability of 0
    return isnan(x) ? json_null() : json_real(isfinite(x) ? x : x < 0 ? -9999.0 : 9999.0);
}

json_t *api_utf8_json(const char *bytes, size_t n) {
    static const char replacement[] = "\xef\xbf\xbd";
    sl_text text = {0};
    sl_error why;
    int rc = 0;
    size_t at = sl_utf8_valid_run(bytes, n);
    if (at == n) return json_stringn(n ? bytes : "", n);
    rc = sl_text_append(&text, bytes, at, &why);
    while (!rc && at < n) {
        at += sl_utf8_invalid_run(bytes + at, n - at);
        rc = sl_text_append(&text, replacement, sizeof replacement - 1, &why);
        size_t run = at < n ? sl_utf8_valid_run(bytes + at, n - at) : 0;
        if (!rc) rc = sl_text_append(&text, bytes + at, run, &why);
        at += run;
    }
    json_t *out = rc ? NULL : json_stringn(text.data, text.n);
    sl_text_free(&text);
    return out;
}

// ---- usage ----

int api_n_calls(const api_choice *c) {
    return api_parser_n_calls(c->parser);
}

int api_has_room_left(const api_choice *c) {
    return c->stop != SL_STOP_LENGTH && c->stop != SL_STOP_CONTEXT;
}

const char *api_finish_reason(const api_choice *c) {
    return !api_has_room_left(c) ? "length" : api_n_calls(c) ? "tool_calls" : "stop";
}

static json_t *answers_json(const api_attention *a) {
    json_t *list = json_array();
    for (int i = 0; i < a->n_answers; i++) {
        char hash[17];
        snprintf(hash, sizeof hash, "%016llx", (unsigned long long)a->answers[i].logits_hash);
        json_array_append_new(list, json_pack("{s:i, s:I, s:s}", "index", i, "sequence", (json_int_t)a->answers[i].sequence,
                                              "logits_hash", hash));
    }
    return list;
}

static json_t *count_json(uint64_t n, int is_unknown) {
    return is_unknown ? json_null() : json_integer((json_int_t)n);
}

int api_add_attention(const api_reply *r, json_t *usage) {
    const api_attention *a = &r->attention;
    const sl_attention_work *w = &a->work;
    if (!r->has_attention) return !usage;
    int n = a->no_work, has_bound = w->layer_steps && !n;
    json_t *v = json_pack("{s:s, s:s, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "method", a->method, "prefill",
                          a->prefill ? a->prefill : "dense", "seed", (json_int_t)a->seed, "rows_read", count_json(a->rows, n),
                          "dense_rows", count_json(a->dense_rows, n), "bytes_read", count_json(w->bytes, n), "dense_bytes",
                          count_json(w->dense_bytes, n), "layer_steps", count_json(w->layer_steps, n), "certified",
                          count_json(w->certified, n), "stated_error", number_json(has_bound ? w->stated_error : NAN),
                          "stated_error_max", number_json(has_bound ? w->stated_error_max : NAN), "answers", answers_json(a));
    if (v) json_object_set_new(v, "exact_heads", count_json(w->exact_heads, n));
    if (v && a->draft) json_object_set_new(v, "drafts", sl_draft_counts_json(&a->drafts, a->draft, a->n_draft));
    return json_object_set_new(usage, "attention", v);
}

json_t *api_chat_usage(const api_reply *r) {
    json_t *v = json_pack("{s:i, s:i, s:i, s:{s:i}, s:{s:i}}", "prompt_tokens", r->n_prompt, "completion_tokens",
                          r->n_generated, "total_tokens", r->n_prompt + r->n_generated, "prompt_tokens_details",
                          "cached_tokens", r->n_cached, "completion_tokens_details", "reasoning_tokens", r->n_reasoning);
    if (!api_add_attention(r, v)) return v;
    json_decref(v);
    return NULL;
}

// ---- log-probabilities ----

static json_t *bytes_json(const char *bytes, size_t n) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_integer((unsigned char)bytes[i]));
    return list;
}

static json_t *logprob_json(const api_logprob *p) {
    return json_pack("{s:o, s:o, s:o}", "token", api_utf8_json(p->bytes, p->n), "logprob", number_json(p->logprob), "bytes",
                     bytes_json(p->bytes, p->n));
}

static size_t n_chars(const char *bytes, size_t n) { // characters that begin here
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += ((unsigned char)bytes[i] & 0xc0) != 0x80;
    return count;
}

int api_add_logprobs(api_choice *c, const api_token *tokens, int n, sl_error *err) {
    if (n && !c->logprobs) c->logprobs = json_array();
    for (int i = 0; i < n; i++) {
        const api_token *t = &tokens[i];
        json_t *entry = logprob_json(&t->token), *top = json_array();
        for (int j = 0; j < t->n_top; j++) json_array_append_new(top, logprob_json(&t->top[j]));
        // A token that begins within a character has the place of this character.
        int is_within = t->token.n && ((unsigned char)t->token.bytes[0] & 0xc0) == 0x80 && c->n_chars > 0;
        int rc = !entry || json_array_size(top) != (size_t)t->n_top || json_object_set_new(entry, "top_logprobs", top) ||
                 json_object_set_new(entry, "text_offset", json_integer((json_int_t)c->n_chars - is_within)) ||
                 json_array_append_new(c->logprobs, entry);
        if (rc) return sl_fail(err, SL_ERR_MEMORY, "reply: out of memory");
        c->n_chars += n_chars(t->token.bytes, t->token.n);
    }
    return 0;
}

json_t *api_chat_logprobs(json_t *tokens) {
    size_t i;
    json_t *entry;
    if (!tokens) return json_null();
    json_array_foreach(tokens, i, entry) json_object_del(entry, "text_offset");
    return json_pack("{s:o, s:n}", "content", tokens, "refusal");
}

// {token: logprob} of the alternatives and of the token itself. Of tokens with one text, the more probable one counts.
static json_t *top_json(const json_t *entry) {
    const json_t *list = json_object_get(entry, "top_logprobs");
    if (json_is_null(json_object_get(entry, "logprob"))) return json_null();
    json_t *out = json_object();
    for (size_t i = 0; i <= json_array_size(list); i++) {
        const json_t *p = i < json_array_size(list) ? json_array_get(list, i) : entry;
        const char *token = json_string_value(json_object_get(p, "token"));
        if (!json_object_get(out, token)) json_object_set(out, token, json_object_get(p, "logprob"));
    }
    return out;
}

json_t *api_completion_logprobs(json_t *tokens) {
    size_t i;
    json_t *entry;
    if (!tokens) return json_null();
    json_t *names = json_array(), *logprobs = json_array(), *top = json_array(), *offsets = json_array();
    json_array_foreach(tokens, i, entry) {
        json_array_append(names, json_object_get(entry, "token"));
        json_array_append(logprobs, json_object_get(entry, "logprob"));
        json_array_append_new(top, top_json(entry));
        json_array_append(offsets, json_object_get(entry, "text_offset"));
    }
    json_decref(tokens);
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", names, "token_logprobs", logprobs, "top_logprobs", top, "text_offset",
                     offsets);
}

// ---- other bodies ----

json_t *api_tokenize_json(const api_request *r, const int32_t *ids, int n, const api_logprob *pieces, int n_ctx) {
    json_t *tokens = json_array(), *strings = json_array();
    for (int i = 0; i < n; i++) {
        json_t *piece = pieces ? api_utf8_json(pieces[i].bytes, pieces[i].n) : NULL;
        if (pieces) json_array_append(strings, piece);
        json_array_append_new(tokens, r->with_pieces && pieces ? json_pack("{s:i, s:O}", "id", (int)ids[i], "piece", piece)
                                                               : json_integer(ids[i]));
        json_decref(piece);
    }
    json_t *out = json_pack("{s:i, s:i, s:o}", "count", n, "max_model_len", n_ctx, "tokens", tokens);
    if (r->with_strings) json_object_set(out, "token_strs", strings);
    json_decref(strings);
    return out;
}

json_t *api_detokenize_json(const char *text, size_t n) {
    return json_pack("{s:o, s:o}", "prompt", api_utf8_json(text, n), "content", api_utf8_json(text, n));
}

json_t *api_template_json(const char *prompt, size_t n) {
    return json_pack("{s:o}", "prompt", api_utf8_json(prompt, n));
}

json_t *api_count_json(int n_tokens) {
    return json_pack("{s:i}", "input_tokens", n_tokens);
}

json_t *api_models_json(const char *model, const char *root, long long created, int n_ctx) {
    return json_pack("{s:s, s:[{s:s, s:s, s:I, s:s, s:s, s:i}]}", "object", "list", "data", "id", model, "object", "model",
                     "created", (json_int_t)created, "owned_by", "sleigh", "root", root, "max_model_len", n_ctx);
}
