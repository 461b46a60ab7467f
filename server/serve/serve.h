// server/serve/serve.h - the server: it joins HTTP (server/http), the dialects (server/api) and the scheduler.
//
// Three threads. The HTTP thread answers small questions by itself. The preparing thread reads the bodies of requests, renders
// templates and tokenizes, so that a long body delays neither streams nor steps. The thread that calls serve_run is the
// inference thread: it alone uses the engine, and it writes the answers.
//
// Bits. An answer has the ids, the text and the logits that its prompt has alone, with the methods, the seed and the sequence
// that usage.attention names. Answer i of a prompt has the sequence i.
//
// Ranks that share a model. Rank 0 calls serve_open and serve_run, and each other rank calls serve_follow. All have the same
// options and the same model.
#ifndef SLEIGH_SERVE_H
#define SLEIGH_SERVE_H

#include "engine/engine.h"
#include "server/http/http.h"
#include "tokenizer/chat/chat.h"

typedef struct serve_server serve_server;

typedef struct serve_options {
    http_options http;
    const char *model;          // the model's name in answers
    int max_waiting;            // most requests that wait for their turn
    int step_tokens;            // as in sl_scheduler_options
    int no_prefixes;            // 1: no prefix cache
    const char *slot_save_path; // a folder for the files of slots; NULL: none
    int keep_conversations;     // most conversations whose rows stay after an answer
    double drain_timeout;       // seconds for running answers after serve_drain
} serve_options;

// The attention of one prompt. Free with serve_plan_free.
typedef struct serve_plan {
    sl_attn_plan attn, prefill;
    int segment;                    // the segment of a prefill that is not dense
    char *attn_text, *prefill_text; // as usage.attention shows them
} serve_plan;
void serve_plan_free(serve_plan *p);

// Makes the plan of a prompt of n tokens. attn, prefill: from the request; NULL: the server's. Runs on the preparing thread. On
// an error, *field names the field of the request that caused it, if it was one.
typedef int (*serve_plan_fn)(void *ctx, const char *attn, const char *prefill, int n, serve_plan *out, const char **field,
                             sl_error *err);

// What the caller has loaded. It lives until serve_run returns.
typedef struct serve_model {
    const sl_model *model;
    sl_engine *engine;            // nobody else uses the engine
    sl_comm *comm;                // the ranks that share the model; NULL: one process
    int n_sequences;              // the engine's sequences
    const char *path;             // the model's path
    const sl_chat_template *chat; // NULL: there is none, because of no_chat
    sl_error no_chat;
    const json_t *chat_options;  // variables of the template for all requests; NULL: none
    const sl_sampling *sampling; // what a request gets that names no other values; complete
    serve_plan_fn plan;
    void *ctx;
    const char *attn, *prefill; // the server's methods, for /props
    const char *draft;          // drafts of requests that name none (sl_generation.draft); NULL: no drafts
    const char *version;
    void (*ready)(void *ctx); // requests get answers from now on; NULL: not called
} serve_model;

// Listens. Until serve_run, requests get the status 503. Copies the options. Errors of http_server_new.
int serve_open(const serve_options *o, serve_server **out, sl_error *err);
int serve_port(const serve_server *s);
// Serves until a drain has ended: 0. Then no request is left. With ranks: also an error of a step, after which all ranks
// must end.
int serve_run(serve_server *s, const serve_model *m, sl_error *err);
// Another rank than the first one: takes the steps of rank 0 until rank 0 ends (serve_ranks.c). SL_ERR_FORMAT: the steps of
// this rank differ from those of rank 0. After an error all ranks must end.
int serve_follow(const serve_options *o, const serve_model *m, sl_error *err);
// From any thread. /health and new requests get the status 503; running answers end within drain_timeout. Returns 0 if
// serve_run has not begun: nothing runs.
int serve_drain(serve_server *s);
void serve_free(serve_server *s); // NULL is allowed

#endif
