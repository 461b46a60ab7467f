// tests/server/serve_fixture.h - the whole server on the embedded model in this process, and a client with one connection for
// each request.
#ifndef SLEIGH_SERVE_FIXTURE_H
#define SLEIGH_SERVE_FIXTURE_H

#include "server/serve/serve.h"
#include "tests/test.h"

#include <jansson.h>

typedef struct server_settings {
    int n_ctx, n_sequences, kv_tokens, max_waiting; // 0: 2048, 4, n_sequences x n_ctx, 512
    int is_loading;                                 // 1: the model stays on its way until server_loaded
    double drain_timeout;                           // 0: 10 s
    const char *model;                              // a folder; NULL: models/tiny
    const char *chat_template;                      // NULL: the model's
    const char *slot_save_path;                     // NULL: none
    int keep_conversations;
    int exact_below;    // of the engine
    int n_draft;        // most drafts of an answer in a step
    const char *draft;  // drafts of requests that name none; NULL: none
    const char *biased; // the tokens whose texts begin with this get the bias; NULL: none
    float bias;
    int is_recorded; // 1: server_recording has what rank 0 of two ranks would send
} server_settings;

void server_start(const server_settings *o); // NULL: zeros
void server_loaded(void);
void server_end(void); // drains the server. It gives no answer any more
// server_end, and checks that no page of the KV cache is in use.
void server_stop(void);
// After server_end: all that rank 0 has sent, and another rank that gets such bytes, with an engine of its own. Returns its
// result (serve_follow). The bytes end with the last message that it reads.
const sl_text *server_recording(void);
int server_follow(const char *bytes, size_t n, sl_error *err);
// Frees a text from malloc, or a JSON value, at server_stop. Return it. The functions below keep what they return.
char *server_keep(char *text);
json_t *server_keep_json(json_t *v);
serve_server *server_object(void);
const sl_model *server_model(void);
sl_sampling server_sampling(void); // the server's, which requests change

typedef struct server_reply {
    int status; // 0: the connection ended without a whole answer
    char *head, *body;
    size_t n; // the bytes of body
} server_reply;

int server_open(const char *method, const char *path, const char *body); // a connection with a request
server_reply server_read(int fd);                                        // the whole answer; closes the connection
// The same in one call. The JSON of the body; NULL: it is none.
server_reply server_ask(const char *method, const char *path, const char *body);
json_t *server_json(const server_reply *r);
// Posts a body, which must get this status.
json_t *server_post(const char *path, int status, const char *body);
// Of a stream: the values of the lines "data: ", in their order, as a list; [DONE] is left out.
json_t *server_events(const server_reply *r);
double server_metric(const char *name); // reads /metrics; name has no labels
// Waits until the metric has this value, at most 10 s.
void server_wait(const char *name, double value);

const json_t *server_member(const json_t *v, const char *path); // "choices/0/message"; NULL: there is none
const char *server_text_at(const json_t *v, const char *path);  // which must be there
// Posts a body with these fields, a seed and a high temperature. The status must be 200.
server_reply server_sample(const char *path, const char *fields, int seed, int is_stream);
int server_sample_open(const char *path, const char *fields, int seed, int is_stream); // a connection with this request

typedef struct server_refusal { // a body that is an error: its fields, the field to blame, a part of the message
    const char *path, *fields, *param, *part;
} server_refusal;
// Each body gets the status 400 and a message that begins with the field. No request may have run on this server.
void server_check_refusals(const server_refusal *cases, size_t n);

// A copy of models/tiny in the folder of the case, whose tokenizer has these special tokens, at most 10, ended by NULL.
const char *server_model_with(const char *const *tokens);

// What the library gives for a prompt alone, in another engine than the server's, without a scheduler.
typedef struct server_alone {
    char text[4096];
    uint64_t hash;
} server_alone;
typedef struct server_question {
    const int32_t *ids;
    int n, max_tokens, at_start;
    const char *attn, *prefill; // NULL: dense
    uint32_t seed, sequence;
    sl_sampling sampling;      // without its seed
    const char *stop;          // NULL: none
    const sl_grammar *grammar; // NULL: any text
} server_question;
server_alone server_answer_alone(const server_question *q);

#endif
