// server/api/replies.c - the parts of an answer and their order, for all dialects; see replies.h.
#include "server/api/reply_internal.h"

#include <stdlib.h>
#include <string.h>

static int no_memory(sl_error *err) {
    return sl_fail(err, SL_ERR_MEMORY, "reply: out of memory");
}

// ---- parts ----

static int close_part(api_choice *c, sl_error *err) {
    const api_writer *w = c->reply->writer;
    return c->n_parts && c->reply->request->stream && w->close ? w->close(c, &c->parts[c->n_parts - 1], err) : 0;
}

static int add_part(api_choice *c, const api_event *e, sl_error *err) {
    const api_writer *w = c->reply->writer;
    int rc = close_part(c, err);
    if (rc) return rc;
    api_part *grown = realloc(c->parts, (size_t)(c->n_parts + 1) * sizeof *grown);
    if (!grown) return no_memory(err);
    c->parts = grown;
    api_part *p = &grown[c->n_parts];
    *p = (api_part){.kind = e->kind, .index = e->index, .name = e->name ? strdup(e->name) : NULL};
    memcpy(p->id, e->id, sizeof p->id);
    c->n_parts++;
    if (e->name && !p->name) return no_memory(err);
    return c->reply->request->stream && w->open ? w->open(c, p, err) : 0;
}

static int on_event(void *ctx, const api_event *e, sl_error *err) {
    api_choice *c = ctx;
    const api_request *q = c->reply->request;
    int rc = 0;
    if (e->kind == API_EVENT_REASONING && !q->include_reasoning) return 0;
    if (e->kind == API_EVENT_CALL && e->index > 0 && !q->parallel_tool_calls) return 0; // as vLLM does
    if (!c->n_parts || e->kind == API_EVENT_CALL || c->parts[c->n_parts - 1].kind != e->kind) rc = add_part(c, e, err);
    if (rc) return rc;
    api_part *p = &c->parts[c->n_parts - 1];
    rc = sl_text_append(&p->text, e->text, e->n, err);
    return rc || !q->stream ? rc : c->reply->writer->delta(c, p, e->text, e->n, err);
}

// ---- the reply ----

static const api_writer *writer_of(api_endpoint e) {
    return e == API_CHAT          ? &api_chat_writer
           : e == API_COMPLETIONS ? &api_completion_writer
           : e == API_RESPONSES   ? &api_responses_writer
           : e == API_MESSAGES    ? &api_messages_writer
                                  : NULL;
}

static int begin_choice(api_reply *r, int i, const api_reply_options *o, sl_error *err) {
    api_choice *c = &r->choices[i];
    int is_chat = r->request->endpoint != API_COMPLETIONS;
    int has_tools = is_chat && r->request->tools && r->request->tool_choice != API_TOOLS_NONE;
    *c = (api_choice){.index = i, .reply = r};
    const api_parser_options p = {.format = has_tools ? o->calls : API_CALLS_NONE,
                                  .reasoning = is_chat && o->reasoning && !r->request->raw_reasoning,
                                  .in_reasoning = o->in_reasoning,
                                  .tools = r->request->tools,
                                  .number = o->number * 1000003u + (uint64_t)i,
                                  .fn = on_event,
                                  .ctx = c};
    return api_parser_new(&p, &c->parser, err);
}

int api_reply_new(const api_reply_options *options, api_reply **out, sl_error *err) {
    const api_request *q = options->request;
    int n_choices = (q->n_prompts > 0 ? q->n_prompts : 1) * q->n, rc = 0;
    const api_writer *writer = writer_of(q->endpoint);
    SL_CHECK(writer);
    api_reply *r = calloc(1, sizeof *r);
    if (!r) return no_memory(err);
    size_t n_id = strlen(writer->prefix) + strlen(options->id) + 1;
    *r = (api_reply){.request = q, .writer = writer, .created = options->created, .n_choices = n_choices};
    r->id = malloc(n_id);
    r->model = strdup(options->model);
    r->choices = calloc((size_t)n_choices, sizeof *r->choices);
    if (!r->id || !r->model || !r->choices) rc = no_memory(err);
    if (!rc) snprintf(r->id, n_id, "%s%s", writer->prefix, options->id);
    for (int i = 0; !rc && i < n_choices; i++) rc = begin_choice(r, i, options, err);
    if (rc) {
        api_reply_free(r);
        return rc;
    }
    *out = r;
    return 0;
}

static void free_choice(api_choice *c) {
    for (int i = 0; i < c->n_parts; i++) {
        sl_text_free(&c->parts[i].text);
        free(c->parts[i].name);
    }
    free(c->parts);
    free(c->stop_string);
    json_decref(c->logprobs);
    json_decref(c->delta);
    api_parser_free(c->parser);
}

void api_reply_free(api_reply *r) {
    if (!r) return;
    for (int i = 0; r->choices && i < r->n_choices; i++) free_choice(&r->choices[i]);
    free(r->choices);
    free(r->id);
    free(r->model);
    free(r);
}

int api_reply_n_choices(const api_reply *r) {
    return r->n_choices;
}

const char *api_reply_type(const api_reply *r) {
    return r->request->stream ? "text/event-stream" : "application/json";
}

void api_reply_set_prompt(api_reply *r, int n_prompt, int n_cached) {
    r->n_prompt = n_prompt;
    r->n_cached = n_cached;
}

void api_reply_set_attention(api_reply *r, const api_attention *a) {
    r->has_attention = a != NULL;
    if (a) r->attention = *a;
}

int api_reply_begin(api_reply *r, sl_text *out, sl_error *err) {
    return r->request->stream && r->writer->begin ? r->writer->begin(r, out, err) : 0;
}

static int finish(api_choice *c, const api_piece *piece, sl_error *err) {
    c->stop = piece->stop;
    int is_string = piece->stop == SL_STOP_STRING && piece->stop_string;
    if (is_string && !(c->stop_string = strdup(piece->stop_string))) return no_memory(err);
    int rc = api_parser_end(c->parser, err);
    c->finished = 1;
    return rc ? rc : close_part(c, err);
}

int api_reply_piece(api_reply *r, const api_piece *piece, sl_text *out, sl_error *err) {
    SL_CHECK(piece->choice >= 0 && piece->choice < r->n_choices);
    api_choice *c = &r->choices[piece->choice];
    c->out = out;
    r->n_generated += piece->n_generated;
    if (api_parser_is_reasoning(c->parser)) r->n_reasoning += piece->n_generated;
    int rc = api_add_logprobs(c, piece->tokens, piece->n_tokens, err);
    if (!rc) rc = api_parser_feed(c->parser, piece->text, piece->n, err);
    if (!rc && piece->finished) rc = finish(c, piece, err);
    if (!rc && r->request->stream && r->writer->flush) rc = r->writer->flush(c, err);
    c->out = NULL;
    return rc;
}

int api_reply_end(api_reply *r, sl_text *out, sl_error *err) {
    return r->request->stream ? r->writer->end(r, out, err) : api_append_json(out, r->writer->whole(r), err);
}

int api_reply_error(api_reply *r, const api_error *e, sl_text *out, sl_error *err) {
    if (r->request->stream) return r->writer->fail(r, e, out, err);
    return api_append_json(out, api_error_json(e, api_is_messages(r->request->endpoint)), err);
}

int api_reply_keep_alive(api_reply *r, sl_text *out, sl_error *err) {
    if (!r->request->stream) return 0;
    return r->writer->keep_alive ? r->writer->keep_alive(r, out, err) : api_send_text(out, ": waiting\n\n", err);
}
