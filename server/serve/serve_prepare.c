// server/serve/serve_prepare.c - the preparing thread: it reads bodies, renders and tokenizes prompts, makes attention plans,
// and answers what needs no model.
#include "server/serve/serve_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

// ---- answers that need no model ----

static void send_json(serve_request *r, json_t *v) {
    serve_reply_json(r->x, 200, v);
}

// The ids of /tokenize and count_tokens.
static int make_ids(const serve_server *s, const api_request *q, sl_ids *ids, api_error *err) {
    sl_prompt p = {0};
    if (!q->messages) return serve_tokenize_text(s, q, &q->prompts[0], ids, err);
    int rc = serve_render(s, q, &p, err);
    if (!rc) rc = serve_tokenize_chat(s, &p, ids, err);
    sl_prompt_free(&p);
    return rc;
}

static int send_tokens(const serve_server *s, serve_request *r, const sl_ids *ids, api_error *err) {
    const sl_tokenizer *tok = sl_model_tokenizer(s->model->model);
    sl_text bytes = {0};
    sl_error why = {0};
    api_logprob *pieces = malloc((ids->n + 1) * sizeof *pieces);
    int rc = pieces ? 0 : SL_ERR_MEMORY;
    for (size_t i = 0; !rc && i < ids->n; i++) {
        size_t before = bytes.n;
        rc = sl_token_bytes(tok, ids->data[i], &bytes, &why);
        pieces[i].n = bytes.n - before;
    }
    const char *at = bytes.data ? bytes.data : "";
    for (size_t i = 0; !rc && i < ids->n; at += pieces[i++].n) pieces[i].bytes = at;
    if (rc)
        rc = api_no_memory(err);
    else
        send_json(r, api_tokenize_json(&r->api, ids->data, (int)ids->n,
                                       r->api.with_pieces || r->api.with_strings ? pieces : NULL, s->n_ctx));
    free(pieces);
    sl_text_free(&bytes);
    return rc;
}

static int tokenize(const serve_server *s, serve_request *r, api_error *err) {
    sl_ids ids = {0};
    int rc = make_ids(s, &r->api, &ids, err);
    if (!rc && r->endpoint == API_COUNT_TOKENS)
        send_json(r, api_count_json((int)ids.n));
    else if (!rc)
        rc = send_tokens(s, r, &ids, err);
    sl_ids_free(&ids);
    return rc;
}

static int detokenize(const serve_server *s, serve_request *r, api_error *err) {
    const sl_tokenizer *tok = sl_model_tokenizer(s->model->model);
    const api_prompt *p = &r->api.prompts[0];
    sl_text text = {0};
    sl_error why;
    if (!tok) return api_fail(err, 400, "tokens", "tokens: the model has no tokenizer");
    int rc = sl_detokenize(tok, p->ids, p->n_ids, 1, &text, &why) ? api_fail_of(err, &why) : 0;
    if (!rc) send_json(r, api_detokenize_json(text.data ? text.data : "", text.n));
    sl_text_free(&text);
    return rc;
}

static int apply_template(const serve_server *s, serve_request *r, api_error *err) {
    sl_prompt p = {0};
    int rc = serve_render(s, &r->api, &p, err);
    if (!rc) send_json(r, api_template_json(p.text.data ? p.text.data : "", p.text.n));
    sl_prompt_free(&p);
    return rc;
}

// ---- sampling ----

static void take_float(float *to, float value) {
    if (!isnan(value)) *to = value;
}

static void take_int(int *to, int value) {
    if (value != SL_UNSET) *to = value;
}

// The biases of the server and of the request, and of the end tokens with ignore_eos.
static int make_biases(const serve_server *s, serve_request *r, api_error *err) {
    const sl_sampling *server = s->model->sampling, *q = &r->api.sampling;
    const sl_model *model = s->model->model;
    int n_vocab = sl_model_n_vocab(model), n_ends = 0, n = 0;
    for (int32_t id = 0; r->api.ignore_eos && id < n_vocab; id++) n_ends += sl_model_is_eos(model, id);
    sl_logit_bias *bias = malloc((size_t)(server->n_bias + q->n_bias + n_ends + 1) * sizeof *bias);
    if (!bias) return api_no_memory(err);
    for (int i = 0; i < server->n_bias; i++) bias[n++] = server->bias[i];
    for (int i = 0; i < q->n_bias; i++) bias[n++] = q->bias[i];
    for (int32_t id = 0; n_ends && id < n_vocab; id++)
        if (sl_model_is_eos(model, id)) bias[n++] = (sl_logit_bias){.id = id, .bias = -INFINITY};
    r->sampling.bias = bias, r->sampling.n_bias = n;
    return 0;
}

static int make_sampling(const serve_server *s, serve_request *r, api_error *err) {
    const sl_sampling *q = &r->api.sampling;
    sl_sampling *to = &r->sampling;
    *to = *s->model->sampling;
    to->bias = NULL, to->n_bias = 0;
    take_float(&to->temp, q->temp);
    take_float(&to->top_p, q->top_p);
    take_float(&to->min_p, q->min_p);
    take_float(&to->repeat_penalty, q->repeat_penalty);
    take_float(&to->presence_penalty, q->presence_penalty);
    take_float(&to->frequency_penalty, q->frequency_penalty);
    take_int(&to->top_k, q->top_k);
    take_int(&to->repeat_last_n, q->repeat_last_n);
    to->seed = r->api.seed;
    if (!r->api.has_seed && getrandom(&to->seed, sizeof to->seed, 0) != (ssize_t)sizeof to->seed)
        return api_fail(err, 500, "seed", "seed: the system gives no random number");
    return make_biases(s, r, err);
}

// ---- prompts ----

static int check_slot(const serve_server *s, const api_request *q, api_error *err) {
    if (!s->options.slot_save_path || q->id_slot < s->n_sequences) return 0;
    return api_fail(err, 400, "id_slot", "id_slot %d: expected -1 to %d", q->id_slot, s->n_sequences - 1);
}

static int check_conversation(const serve_server *s, const serve_request *r, api_error *err) {
    const api_request *q = &r->api;
    if (!q->conversation_id) return 0;
    if (!s->options.keep_conversations)
        return api_fail(err, 400, "conversation_id",
                        "conversation_id: this server keeps no conversations (keep_conversations 0)");
    if (q->n == 1 && r->n_prompts == 1 && !(q->echo && q->n_logprobs >= 0)) return 0;
    return api_fail(err, 400, "conversation_id",
                    "conversation_id: expected one prompt and one answer, without log-probabilities of the prompt");
}

static int check_length(const serve_server *s, const sl_ids *ids, api_error *err) {
    if (!ids->n) return api_fail(err, 400, "prompt", "the prompt is empty, and the tokenizer of this model adds no BOS token");
    if (ids->n <= (size_t)s->n_ctx) return 0;
    api_fail(err, 400, "prompt", "the prompt has %zu tokens; the context of this server holds %d", ids->n, s->n_ctx);
    err->code = "context_length_exceeded";
    return SL_ERR_CONTEXT;
}

static int make_plan(const serve_server *s, serve_request *r, serve_prompt *p, api_error *err) {
    const char *field = NULL;
    sl_error why;
    int rc = s->model->plan(s->model->ctx, r->api.attn, r->api.attn_prefill, (int)p->ids.n, &p->plan, &field, &why);
    if (!rc) return 0;
    rc = api_fail_of(err, &why);
    if (field) snprintf(err->param, sizeof err->param, "%s", field);
    return rc;
}

// Sets the drafts of the request. Those of the server are for requests whose attention can have drafts; what a request asks for
// itself must be possible.
static int choose_drafts(const serve_server *s, serve_request *r, api_error *err) {
    const char *asked = r->api.draft, *draft = asked ? asked : s->model->draft;
    sl_error why;
    int rc = 0;
    if (!draft || !strcmp(draft, "none")) return 0;
    for (int i = 0; !rc && i < r->n_prompts; i++)
        rc = sl_engine_check_draft(s->model->engine, draft, &r->prompts[i].plan.attn, &why);
    if (!rc) r->draft = draft;
    if (!rc || !asked) return 0;
    rc = api_fail_of(err, &why);
    snprintf(err->param, sizeof err->param, "draft");
    return rc;
}

// The text with which an echo begins: that of the request, or of the ids.
static int make_echo(const serve_server *s, const api_prompt *from, serve_prompt *p, api_error *err) {
    const sl_tokenizer *tok = sl_model_tokenizer(s->model->model);
    sl_error why;
    int rc = from->text ? sl_text_append(&p->text, from->text, from->n, &why) : 0;
    for (size_t i = 0; !from->text && tok && !rc && i < p->ids.n; i++) rc = sl_token_bytes(tok, p->ids.data[i], &p->text, &why);
    return rc ? api_fail_of(err, &why) : 0;
}

static int make_texts(const serve_server *s, serve_request *r, api_error *err) {
    int rc = 0;
    for (int i = 0; !rc && i < r->n_prompts; i++) {
        serve_prompt *p = &r->prompts[i];
        rc = serve_tokenize_text(s, &r->api, &r->api.prompts[i], &p->ids, err);
        if (!rc && r->api.echo) rc = make_echo(s, &r->api.prompts[i], p, err);
    }
    return rc;
}

// Special tokens that text leaves out, but that the parser of calls and reasoning must see.
static void name_tokens(const serve_server *s, serve_request *r) {
    static const char *const thoughts[] = {"<think>", "</think>", NULL};
    const sl_tokenizer *tok = sl_model_tokenizer(s->model->model);
    int has_tools = r->api.tools && r->api.tool_choice != API_TOOLS_NONE;
    const char *const *lists[] = {has_tools ? api_call_marks(s->calls) : NULL, s->reasons ? thoughts : NULL};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        for (const char *const *mark = lists[i]; mark && *mark; mark++) {
            int32_t id = sl_tokenizer_find(tok, *mark);
            if (id >= 0 && sl_tokenizer_is_special(tok, id) && r->n_named < (int)(sizeof r->named / sizeof *r->named))
                r->named[r->n_named++] = id;
        }
}

static int make_conversation(const serve_server *s, serve_request *r, api_error *err) {
    sl_prompt p = {0};
    int rc = serve_render(s, &r->api, &p, err);
    if (!rc) rc = serve_tokenize_chat(s, &p, &r->prompts[0].ids, err);
    if (!rc) r->in_reasoning = api_prompt_opens_reasoning(p.text.data, p.text.n);
    sl_prompt_free(&p);
    return rc;
}

// ---- the request ----

static int make_reply(const serve_server *s, serve_request *r, api_error *err) {
    const api_request *q = &r->api;
    sl_error why;
    const api_reply_options o = {.request = q,
                                 .id = r->id,
                                 .model = s->name,
                                 .created = (long long)time(NULL),
                                 .calls = s->calls,
                                 .reasoning = s->reasons,
                                 .in_reasoning = r->in_reasoning,
                                 .number = r->number};
    if (q->request_id) serve_request_name(r, q->request_id);
    if (api_reply_new(&o, &r->reply, &why)) return api_fail_of(err, &why);
    SL_CHECK(api_reply_n_choices(r->reply) == r->n_choices);
    r->bits = calloc((size_t)r->n_choices, sizeof *r->bits);
    if (!r->bits) return api_no_memory(err);
    for (int i = 0; i < r->n_choices; i++) r->bits[i].sequence = (uint32_t)(i % q->n);
    return 0;
}

static int make_choices(serve_request *r, api_error *err) {
    r->n_choices = r->n_prompts * r->api.n;
    r->choices = calloc((size_t)r->n_choices, sizeof *r->choices);
    if (!r->choices) return api_no_memory(err);
    for (int i = 0; i < r->n_choices; i++) r->choices[i] = (serve_choice){.request = r, .index = i, .slot = -1};
    return 0;
}

int serve_make_prompts(serve_request *r, int n, api_error *err) {
    r->prompts = calloc((size_t)n, sizeof *r->prompts);
    if (!r->prompts) return api_no_memory(err);
    r->n_prompts = n;
    return 0;
}

int serve_make_jobs(const serve_server *s, serve_request *r, api_error *err) {
    int rc = 0;
    for (int i = 0; !rc && i < r->n_prompts; i++) {
        rc = check_length(s, &r->prompts[i].ids, err);
        if (!rc) rc = make_plan(s, r, &r->prompts[i], err);
        r->n_prompt_tokens += (int)r->prompts[i].ids.n;
    }
    r->at_start = r->api.messages && !r->api.continue_final;
    if (!rc && r->api.messages) name_tokens(s, r);
    if (!rc) rc = choose_drafts(s, r, err);
    if (!rc) rc = serve_make_grammar(s, r, err);
    if (!rc) rc = make_sampling(s, r, err);
    return rc ? rc : make_choices(r, err);
}

// Sets what the inference thread needs.
static int prepare(const serve_server *s, serve_request *r, api_error *err) {
    int rc = serve_make_prompts(r, serve_n_prompts(&r->api), err);
    if (!rc) rc = check_slot(s, &r->api, err);
    if (!rc) rc = check_conversation(s, r, err);
    if (!rc) rc = r->api.messages ? make_conversation(s, r, err) : make_texts(s, r, err);
    if (!rc) rc = serve_make_jobs(s, r, err);
    if (!rc) rc = make_reply(s, r, err);
    if (rc) return rc;
    api_reply_set_prompt(r->reply, r->n_prompt_tokens, 0);
    r->attention = (api_attention){.method = r->prompts[0].plan.attn_text,
                                   .prefill = r->prompts[0].plan.prefill_text,
                                   .seed = r->sampling.seed,
                                   .draft = r->draft,
                                   .n_draft = sl_engine_n_draft(s->model->engine)};
    return 0;
}

// 1: the request goes to the inference thread; 0: it was answered.
static int handle(serve_server *s, serve_request *r) {
    api_error err;
    if (http_gone(r->x)) return 0;
    if (r->endpoint == SERVE_SLOTS) {
        if (!serve_slots_read(s, r, &err)) return 1;
        serve_refuse(r, &err);
        return 0;
    }
    int rc = api_request_read((api_endpoint)r->endpoint, r->body ? r->body : "", r->n_body, &r->api, &err);
    if (!s->model->comm) serve_drop_body(r); // else the other ranks read it too
    if (!rc && (r->endpoint == API_TOKENIZE || r->endpoint == API_COUNT_TOKENS))
        rc = tokenize(s, r, &err);
    else if (!rc && r->endpoint == API_DETOKENIZE)
        rc = detokenize(s, r, &err);
    else if (!rc && r->endpoint == API_APPLY_TEMPLATE)
        rc = apply_template(s, r, &err);
    else if (!rc && !(rc = prepare(s, r, &err)))
        return 1;
    if (rc) serve_refuse(r, &err);
    return 0;
}

// Where cores are few, a body that takes long (a grammar, a long text) must not delay the tokens of running answers.
static void yield_cores(void) {
    enum { NICENESS = 10 };
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), getpriority(PRIO_PROCESS, 0) + NICENESS); // of this thread: Linux
}

void *serve_prepare_all(void *server) {
    serve_server *s = server;
    yield_cores();
    for (serve_request *r, *next; (r = serve_take_all(&s->to_prepare, -1)) != NULL;)
        for (; r; r = next) {
            next = r->next;
            if (handle(s, r))
                serve_push(&s->to_infer, r);
            else
                serve_request_free(s, r);
        }
    return NULL;
}
