// server/serve/serve_prompts.c - from messages and texts to token ids.
#include "server/serve/serve_internal.h"

#include <string.h>

static int fail_of(const sl_error *why, const char *param, api_error *err) {
    int rc = api_fail_of(err, why);
    snprintf(err->param, sizeof err->param, "%s", param);
    return rc;
}

// ---- the chat template ----

// The variables of the server, and those of the request in their place.
static int merge_options(const json_t *server, const json_t *request, json_t **out, api_error *err) {
    *out = server ? json_copy((json_t *)server) : request ? json_object() : NULL;
    if (!*out) return server || request ? api_no_memory(err) : 0;
    if (!request || !json_object_update(*out, (json_t *)request)) return 0;
    json_decref(*out);
    return api_no_memory(err);
}

// The last message is the beginning of the reply: the prompt ends with its text.
static int cut_after_last(const json_t *messages, sl_prompt *p, api_error *err) {
    static const char field[] = "continue_final_message";
    const json_t *content = json_object_get(json_array_get(messages, json_array_size(messages) - 1), "content");
    const char *text = json_string_value(content);
    size_t n = json_string_length(content), from = 0;
    while (n && strchr(" \t\r\n", text[n - 1])) n--; // templates trim
    while (from < n && strchr(" \t\r\n", text[from])) from++;
    enum { TAIL = 4096 }; // a template writes less than this after the last message
    size_t first = p->text.n > n - from + TAIL ? p->text.n - (n - from) - TAIL : 0;
    for (size_t at = p->text.n; n > from && at-- > first;) {
        sl_prompt head = {0};
        sl_error why;
        if (p->text.n - at < n - from || memcmp(p->text.data + at, text + from, n - from)) continue;
        if (sl_prompt_head(p, at + n - from, &head, &why)) return api_fail_of(err, &why);
        sl_prompt_free(p);
        *p = head;
        return 0;
    }
    return api_fail(err, 400, field, "%s: the chat template does not write the text of the last message as it is", field);
}

int serve_render(const serve_server *s, const api_request *q, sl_prompt *out, api_error *err) {
    const serve_model *m = s->model;
    json_t *options;
    sl_error why;
    if (!m->chat) return fail_of(&m->no_chat, "messages", err);
    int rc = merge_options(m->chat_options, q->options, &options, err);
    if (rc) return rc;
    const sl_chat_request r = {.messages = q->messages,
                               .tools = q->tools,
                               .documents = q->documents,
                               .options = options,
                               .finished = !q->add_generation_prompt || q->continue_final};
    if (sl_chat_render(m->chat, sl_model_tokenizer(m->model), &r, out, &why)) rc = fail_of(&why, "messages", err);
    json_decref(options);
    if (!rc && q->continue_final) rc = cut_after_last(q->messages, out, err);
    return rc;
}

// ---- tokens ----

static int need_tokenizer(const serve_server *s, api_error *err) {
    return sl_model_tokenizer(s->model->model) ? 0 : api_fail(err, 400, NULL, "the model has no tokenizer; expected ids");
}

int serve_tokenize_chat(const serve_server *s, const sl_prompt *p, sl_ids *ids, api_error *err) {
    sl_error why;
    int rc = need_tokenizer(s, err);
    if (!rc && sl_chat_tokenize(s->model->chat, sl_model_tokenizer(s->model->model), p, ids, &why))
        rc = fail_of(&why, "messages", err);
    return rc;
}

int serve_tokenize_text(const serve_server *s, const api_request *q, const api_prompt *p, sl_ids *ids, api_error *err) {
    unsigned flags = (q->add_special ? SL_TOK_BOS : 0) | (q->parse_special ? 0 : SL_TOK_PLAIN);
    int n_vocab = sl_model_n_vocab(s->model->model), rc = 0;
    sl_error why;
    for (size_t i = 0; !p->text && !rc && i < p->n_ids; i++) {
        if (p->ids[i] < 0 || p->ids[i] >= n_vocab)
            return api_fail(err, 400, "prompt", "prompt: id %d; expected 0 to %d", (int)p->ids[i], n_vocab - 1);
        if (sl_ids_push(ids, p->ids[i], &why)) rc = api_fail_of(err, &why);
    }
    if (rc || !p->text) return rc;
    rc = need_tokenizer(s, err);
    if (!rc && sl_tokenize(sl_model_tokenizer(s->model->model), p->text, p->n, flags, ids, &why))
        rc = fail_of(&why, "prompt", err);
    return rc;
}
