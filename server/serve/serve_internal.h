// server/serve/serve_internal.h - the objects of the server, for server/serve/ only.
//
// A request has one owner at a time: the HTTP thread, then the preparing thread, then the inference thread. Queues hand it on.
#ifndef SLEIGH_SERVE_INTERNAL_H
#define SLEIGH_SERVE_INTERNAL_H

#include "engine/schedule/prefix_file.h"
#include "engine/schedule/scheduler.h"
#include "server/api/replies.h"
#include "server/serve/serve.h"
#include "server/serve/serve_metrics.h"

#include <pthread.h>
#include <stdatomic.h>

enum { SERVE_ID = 40, SERVE_SLOTS = API_N_ENDPOINTS }; // SERVE_SLOTS: POST /slots/ID?action=...

// One answer: a job of the scheduler.
typedef struct serve_choice {
    struct serve_request *request;
    int index;   // prompt * n + answer
    sl_job *job; // NULL: not added yet, or freed
    int n_cached;
    int is_echoed;     // the prompt was written
    int is_remembered; // the slot has the prompt
    int n_tokens;      // generated tokens that were written
    int n_logprobs;    // the logprobs of these tokens, with the end token
    int is_ended;
    int slot;          // -1: it has not begun, or has ended
    sl_session *kept;  // the session of its conversation, which stays; NULL: none
    double last_token; // when the last token came, in ms; 0: none came
} serve_choice;

// A prompt of a request.
typedef struct serve_prompt {
    sl_ids ids;
    sl_text text; // what an answer with `echo` begins with
    serve_plan plan;
} serve_prompt;

typedef struct serve_request {
    struct serve_request *next;
    http_exchange *x; // owned
    int endpoint;     // api_endpoint, or SERVE_SLOTS
    char *body;       // [n_body], owned, until the request is read
    size_t n_body;
    char id[SERVE_ID];
    double arrived; // ms
    uint64_t number;
    struct { // of SERVE_SLOTS
        int id, action;
        char *path, *salt; // the file; of the restored prompt, NULL: none
        const char *name;  // the name that the client gave: the end of path
    } slot;

    // ---- made by the preparing thread ----
    api_request api;
    serve_prompt *prompts; // [n_prompts]
    int n_prompts, n_prompt_tokens;
    sl_sampling sampling;                // sampling.bias is owned
    sl_grammar *grammar;                 // all answers follow it; NULL: any text
    const char *grammar_after;           // static
    int32_t named[8];                    // [n_named] special tokens that are written as text
    int n_named, at_start, in_reasoning; // in_reasoning: the prompt has written <think>
    const char *draft;                   // sl_generation.draft
    api_reply *reply;

    // ---- used by the inference thread ----
    serve_server *server;
    serve_choice *choices; // [n_choices]
    int n_choices, n_added, n_ended;
    int is_begun, is_done;   // the answer has begun; the answer is complete, or the client is gone
    int is_cancelled;        // with is_done: its jobs were cancelled
    double sent;             // time of the last send of a stream, in ms
    api_attention attention; // sums of the ended choices
    api_answer_bits *bits;   // [n_choices]
} serve_request;

// Requests on their way from one thread to another.
typedef struct serve_queue {
    pthread_mutex_t lock;
    pthread_cond_t filled;
    serve_request *first, *last;
    int is_woken, is_closed; // ends one wait; ends all waits
} serve_queue;

typedef enum serve_state { SERVE_LOADING, SERVE_RUNNING, SERVE_DRAINING } serve_state;

// What rank 0 tells the other ranks that share the model (serve_ranks.c).
typedef enum serve_ranks_kind { SERVE_RANKS_OPEN, SERVE_RANKS_ADD, SERVE_RANKS_CANCEL, SERVE_RANKS_FREE } serve_ranks_kind;

typedef struct serve_ranks {
    sl_text notes; // of the next message; on other ranks, of the last one
    uint64_t n_messages;
    sl_error lost; // a note that is missing, because there was no memory; code SL_OK: none
} serve_ranks;

typedef struct serve_slot { // a row of /slots
    char id[SERVE_ID];      // "": free
    int choice;
    sl_job_state state;
    int n_prompt, n_done, n_cached, n_generated;
} serve_slot;

struct serve_server {
    serve_options options;
    char *name; // the model's name
    http_server *http;
    const serve_model *model; // from serve_run on
    atomic_int state;         // serve_state
    atomic_int n_requests;    // requests that HTTP has handed over and that are not done
    atomic_size_t n_bytes;    // the bytes of their bodies
    atomic_long n_refused;    // requests that were refused, because too many requests or bytes wait
    serve_queue to_prepare, to_infer;
    pthread_t preparing;
    _Atomic double deadline; // the end of a drain, in ms

    // ---- set before the state becomes SERVE_RUNNING ----
    int n_ctx, n_sequences;
    long long created;                               // seconds since 1970
    char *props, *models, *tokenizer_info, *version; // JSON
    api_call_format calls;
    int reasons;

    // ---- only the inference thread uses these ----
    sl_scheduler *scheduler;
    serve_request **active; // [n_active] in the order of priority and arrival
    int n_active, cap_active;
    sl_text out;                              // bytes to send
    serve_choice **running;                   // [n_sequences] the running answer of each slot; NULL: none
    const sl_session **held;                  // [n_sequences] the sessions of the running answers, for a moment
    struct serve_conversation *conversations; // [n_conversations], at most options.keep_conversations
    int n_conversations;
    uint64_t n_uses; // counts the requests of conversations
    serve_ranks ranks;
    sl_cached_prompt *prompts; // [n_sequences] the last prompt of each slot, with options.slot_save_path

    // ---- what the HTTP thread shows of it ----
    pthread_mutex_t lock;
    serve_metrics metrics;
    serve_slot *slots; // [n_sequences]
    int n_waiting;     // requests
};

// ---- queues (serve_requests.c) ----

void serve_queue_init(serve_queue *q);
void serve_queue_destroy(serve_queue *q);
void serve_queue_close(serve_queue *q); // ends the waits of now and of later
void serve_push(serve_queue *q, serve_request *r);
// All requests, in their order. wait_ms: the longest wait for the first one; negative: without end. NULL: there is none.
serve_request *serve_take_all(serve_queue *q, double wait_ms);

// ---- requests (serve_requests.c) ----

// x NULL: a request of another rank. NULL: no memory
serve_request *serve_request_new(serve_server *s, http_exchange *x, int endpoint);
void serve_request_free(serve_server *s, serve_request *r); // releases the exchange
// A new request for the preparing thread, which the caller pushes. NULL: the exchange was answered.
serve_request *serve_hand_over(serve_server *s, http_exchange *x, int endpoint);
const sl_attn_plan *serve_sparse_prefill(const serve_prompt *p); // NULL: the prefill is dense
// Sets r->id to the visible ASCII characters of the client's name of the request. 0: it has none, and the id stays.
int serve_request_name(serve_request *r, const char *given);
void serve_drop_body(serve_request *r);
// Answers with an error. Only before the answer has begun.
void serve_refuse(serve_request *r, const api_error *e);
void serve_reply_json(http_exchange *x, int status, json_t *v); // takes the reference; NULL: no memory
void serve_fail_status(http_exchange *x, int status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

// ---- the threads ----

void serve_on_request(void *server, http_exchange *x); // serve_routes.c
char *serve_error_body(void *server, const char *path, int status, const char *message, size_t *n, const char **type);
void *serve_prepare_all(void *server);           // serve_prepare.c
int serve_infer(serve_server *s, sl_error *err); // serve_loop.c
static inline int serve_n_prompts(const api_request *q) {
    return q->messages ? 1 : q->n_prompts;
}
// serve_prepare.c: r->prompts [n], without ids
int serve_make_prompts(serve_request *r, int n, api_error *err);
// serve_prepare.c: makes all that the jobs of a request need, from its body, the ids of its prompts and in_reasoning.
int serve_make_jobs(const serve_server *s, serve_request *r, api_error *err);

// ---- active requests (serve_loop.c): the inference thread ----

int serve_make_room(serve_server *s);                // for one more; not 0: no memory
void serve_place(serve_server *s, serve_request *r); // puts a new request behind those of its priority
// Adds the next answer of a request to the scheduler.
int serve_add_job(serve_server *s, serve_request *r, sl_error *err);
void serve_cancel(serve_request *r);                  // cancels its jobs
void serve_forget(serve_server *s, serve_request *r); // frees it
void serve_sweep(serve_server *s);                    // frees the requests that are over, and the jobs that have ended
void serve_free_all(serve_server *s);

// ---- ranks that share the model (serve_ranks.c): the inference thread. In one process they do nothing but the step ----

void serve_ranks_open(serve_server *s, serve_request *r); // a new request; drops its body
void serve_ranks_note(serve_server *s, serve_ranks_kind kind, const serve_request *r, int rc);
int serve_ranks_step(serve_server *s, sl_error *err); // a step of all schedulers. An error ends the run
int serve_ranks_end(serve_server *s, sl_error *err);
// Another rank: does what rank 0 says, to the end (serve_follow.c).
int serve_ranks_follow(serve_server *s, sl_error *err);

// ---- prompts (serve_prompts.c) ----

// Renders the template for the messages of a request.
int serve_render(const serve_server *s, const api_request *q, sl_prompt *out, api_error *err);
int serve_tokenize_chat(const serve_server *s, const sl_prompt *p, sl_ids *ids, api_error *err);
int serve_tokenize_text(const serve_server *s, const api_request *q, const api_prompt *p, sl_ids *ids, api_error *err);

// ---- structured output (serve_format.c) ----

// Sets grammar and grammar_after of a request. With in_reasoning, the grammar begins behind </think>. Status 400: the format,
// the tools or the form of their calls do not make a grammar.
int serve_make_grammar(const serve_server *s, serve_request *r, api_error *err);
// The calls of tools that a request forces, in a form (serve_calls.c). The model gives the ids of special tokens. *field: of an
// error, the field that is wrong.
int serve_force_calls(api_call_format format, const sl_model *model, const api_request *q, sl_grammar **out, const char **field,
                      sl_error *err);

// ---- slots (serve_slots.c) ----

// The HTTP thread: hands POST /slots/ID on, or answers with an error. text: what follows "/slots/".
void serve_slots_request(serve_server *s, http_exchange *x, const char *text);
int serve_slots_read(const serve_server *s, serve_request *r, api_error *err); // the preparing thread: reads the body
void serve_slots_run(serve_server *s, serve_request *r);                       // the inference thread: answers
// The inference thread. An answer has begun: it gets a slot. Its prompt has been prefilled: the slot remembers it. It has
// ended.
void serve_slots_begin(serve_server *s, serve_choice *c);
void serve_slots_remember(serve_server *s, serve_choice *c);
void serve_slots_end(serve_server *s, serve_choice *c);

// ---- conversations (serve_conversations.c): the inference thread ----

// A request with conversation_id: sets what its job continues. SL_ERR_BUSY: an answer of this conversation runs.
int serve_conversation_begin(serve_server *s, serve_choice *c, sl_job_options *o, sl_error *err);
void serve_conversation_end(serve_server *s, serve_choice *c);
int serve_conversation_give_up(void *server);              // sl_scheduler_options.give_up
struct serve_conversation *serve_conversations_new(int n); // room for n; NULL: no memory
void serve_conversations_free(serve_server *s);

// ---- answers (serve_answer.c) ----

void serve_on_change(void *choice, sl_job *job); // sl_job_fn
// Ends the answer with the error of a failed call, as a status or as an event. The first end counts.
void serve_answer_fail(serve_server *s, serve_request *r, const sl_error *of);
void serve_answer_begin(serve_server *s, serve_request *r);
void serve_keep_alive(serve_server *s, serve_request *r);

// ---- tokens with log-probabilities (serve_tokens.c) ----

typedef struct serve_tokens { // initialise with zeros
    api_token *tokens;        // [n]
    api_logprob *tops;
    sl_text bytes;
    int n;
} serve_tokens;
void serve_tokens_free(serve_tokens *t);
// The generated tokens [from, n) of a stream. at_start: token 0 has no first blank of SentencePiece.
int serve_tokens_generated(const sl_tokenizer *tok, const sl_token_logprobs *l, int from, int n, int at_start,
                           serve_tokens *out, sl_error *err);
// The tokens of a prompt, which together spell `text`. l: [n - 1], of all tokens but the first.
int serve_tokens_prompt(const sl_tokenizer *tok, const int32_t *ids, int n, const sl_token_logprobs *l, const sl_text *text,
                        serve_tokens *out, sl_error *err);

// ---- bodies of GET (serve_info.c) ----

int serve_info_make(serve_server *s, sl_error *err); // s->props, s->models, s->tokenizer_info
json_t *serve_slots_json(serve_server *s);
int serve_metrics_text(serve_server *s, sl_text *out, sl_error *err);

#endif
