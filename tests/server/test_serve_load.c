// tests/server/test_serve_load.c - many requests at once: each answer is that of its prompt alone, clients leave in every
// phase, the queue is full, the server drains.
#include "base/clock.h"
#include "tests/server/serve_fixture.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static sl_error err;

// ---- 200 mixed requests ----

enum { REQUESTS = SANITIZED ? 60 : 200, CLIENTS = 12, BASES = 3 };

typedef struct mixed {
    sl_text prompt;
    const char *attn, *prefill, *regex;
    int max_tokens, n, is_stream, leaves, has_penalty;
    uint32_t seed;
    double temp;
    char *text[2], hash[2][17];
} mixed;

static const char *const methods[] = {NULL, "santa:S=8", "santa-prop:S=16", "topk:k=8", "quest:tokens=32"};
static const char *const regexes[] = {" [0-9]{1,3}(, [0-9]{1,3})*", "[a-z ]{2,40}\\."};
static const char sparse[] = "vertical-slash:columns=20:slashes=40";
static mixed requests[REQUESTS];
static int n_requests;
static atomic_int next_request;

static void add(sl_text *t, const char *text) {
    CHECK(!sl_text_append(t, text, strlen(text), NULL));
}

static void add_sentences(sl_text *t, int from, int n) {
    char line[80];
    for (int i = 0; i < n; i++) {
        snprintf(line, sizeof line, "The number of the house %d is %d. ", from + i, (from + i) * 7919 % 1000);
        add(t, line);
    }
}

static mixed random_request(int i) {
    mixed m = {.attn = methods[test_below(5)],
               .prefill = test_below(5) ? NULL : sparse,
               .regex = test_below(4) ? NULL : regexes[test_below(2)],
               .max_tokens = 1 + test_below(12),
               .n = test_below(6) ? 1 : 2,
               .is_stream = test_below(2),
               .leaves = test_below(8) == 0,
               .has_penalty = test_below(4) == 0,
               .seed = (uint32_t)test_below(1000),
               .temp = test_below(3) ? 1 : 0};
    add_sentences(&m.prompt, 100 * test_below(BASES), test_below(10) ? 16 * test_below(2) : 40); // shared beginnings
    add_sentences(&m.prompt, 1000 + i, 1 + test_below(3));
    add(&m.prompt, "What is");
    return m;
}

static char *body_of(const mixed *m) {
    json_t *v = json_pack("{s:s, s:i, s:i, s:b, s:f, s:I, s:s?, s:s?, s:{s:b}}", "prompt", m->prompt.data, "max_tokens",
                          m->max_tokens, "n", m->n, "stream", m->is_stream, "temperature", m->temp, "seed", (json_int_t)m->seed,
                          "attn", m->attn, "attn_prefill", m->prefill, "stream_options", "include_usage", 1);
    if (m->regex) json_object_set_new(v, "structured_outputs", json_pack("{s:s}", "regex", m->regex));
    if (m->has_penalty) json_object_set_new(v, "repetition_penalty", json_real(1.3));
    char *text = json_dumps(v, 0);
    json_decref(v);
    return text;
}

static void take_usage(mixed *m, const json_t *answer) {
    const json_t *answers = json_object_get(json_object_get(json_object_get(answer, "usage"), "attention"), "answers");
    for (int i = 0; i < m->n; i++) {
        const char *hash = json_string_value(json_object_get(json_array_get(answers, (size_t)i), "logits_hash"));
        snprintf(m->hash[i], sizeof m->hash[i], "%s", hash ? hash : "");
    }
}

static void take_choices(mixed *m, const json_t *answer) {
    const json_t *c;
    size_t i;
    json_array_foreach(json_object_get(answer, "choices"), i, c) {
        long long index = json_integer_value(json_object_get(c, "index"));
        const char *text = json_string_value(json_object_get(c, "text"));
        char **to = &m->text[index];
        size_t n = *to ? strlen(*to) : 0;
        *to = realloc(*to, n + strlen(text) + 1);
        strcpy(*to + n, text);
    }
}

static void ask(mixed *m) {
    char *body = body_of(m);
    int fd = server_open("POST", "/v1/completions", body);
    free(body);
    if (m->leaves) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        poll(&p, 1, (int)(m->seed % 60));
        close(fd);
        return;
    }
    server_reply r = server_read(fd);
    if (r.status != 200) return; // the texts stay empty
    json_t *v = m->is_stream ? server_events(&r) : server_keep_json(json_pack("[O]", server_json(&r))), *e;
    size_t i;
    json_array_foreach(v, i, e) {
        take_choices(m, e);
        if (json_object_get(e, "usage")) take_usage(m, e);
    }
}

static void *client(void *unused) {
    for (int i; (i = atomic_fetch_add(&next_request, 1)) < n_requests;) ask(&requests[i]);
    return unused;
}

static void check_alone(mixed *m, int i) {
    const sl_tokenizer *tok = sl_model_tokenizer(server_model());
    sl_ids ids = {0};
    char hash[17];
    CHECK_OK(sl_tokenize(tok, m->prompt.data, m->prompt.n, SL_TOK_BOS, &ids, &err), err);
    server_question q = {.ids = ids.data, .n = (int)ids.n, .max_tokens = m->max_tokens, .attn = m->attn, .prefill = m->prefill};
    q.seed = m->seed, q.sampling = sl_model_sampling(server_model()), q.sampling.temp = (float)m->temp;
    if (m->has_penalty) q.sampling.repeat_penalty = 1.3f, q.sampling.repeat_last_n = -1;
    sl_grammar *regex = NULL;
    if (m->regex) CHECK_OK(sl_grammar_new(SL_GRAMMAR_REGEX, m->regex, strlen(m->regex), &regex, &err), err);
    q.grammar = regex;
    for (q.sequence = 0; (int)q.sequence < m->n; q.sequence++) {
        const server_alone alone = server_answer_alone(&q);
        snprintf(hash, sizeof hash, "%016llx", (unsigned long long)alone.hash);
        if (!m->text[q.sequence] || strcmp(m->text[q.sequence], alone.text) || strcmp(m->hash[q.sequence], hash))
            FAIL("request %d, %s: %s %s, alone %s %s", i, m->attn ? m->attn : "dense", m->text[q.sequence], m->hash[q.sequence],
                 alone.text, hash);
    }
    sl_grammar_free(regex);
    sl_ids_free(&ids);
}

// Asks the first n requests, in a KV cache that is too small for all. Returns the number of those that leave.
static int ask_mixed(int n, int is_recorded) {
    pthread_t threads[CLIENTS];
    int n_left = 0;
    server_start(&(server_settings){.n_sequences = 4, .kv_tokens = 20 * 256, .is_recorded = is_recorded});
    test_draw_from(test_seed);
    for (int i = 0; i < n; i++) requests[i] = random_request(i), n_left += requests[i].leaves;
    n_requests = n;
    atomic_store(&next_request, 0);
    for (int i = 0; i < CLIENTS; i++) CHECK(!pthread_create(&threads[i], NULL, client, NULL));
    for (int i = 0; i < CLIENTS; i++) pthread_join(threads[i], NULL);
    CHECK(server_metric("vllm:prefix_cache_hits_total") > 0);
    server_wait("vllm:num_requests_running", 0);
    return n_left;
}

static void free_mixed(int n) {
    for (int i = 0; i < n; i++) sl_text_free(&requests[i].prompt), free(requests[i].text[0]), free(requests[i].text[1]);
}

// Methods, prefills, formats, seeds, lengths, streams, clients that leave: every answer has the text and the logits of its
// prompt alone.
static void mixed_requests(void) {
    CHECK(ask_mixed(REQUESTS, 0) > 5);
    for (int i = 0; i < REQUESTS; i++)
        if (!requests[i].leaves) check_alone(&requests[i], i);
    server_stop();
    free_mixed(REQUESTS);
}

// Another rank of the model takes the steps of the server's scheduler from the messages alone (serve_ranks.c).
static void followed(void) {
    enum { N = 40 };
    ask_mixed(N, 1);
    server_end();
    const sl_text *all = server_recording();
    CHECK(all->n > 1000);
    CHECK_OK(server_follow(all->data, all->n, &err), err);
    server_stop();
    free_mixed(N);
}

// ---- conversations ----

static void say(json_t *messages, const char *role, const char *text) {
    json_array_append_new(messages, json_pack("{s:s, s:s}", "role", role, "content", text));
}

typedef struct turn_usage {
    int n_prompt, n_cached;
} turn_usage;

static int int_of(const json_t *v, const char *key) {
    return (int)json_integer_value(json_object_get(v, key));
}

static turn_usage ask_chat(json_t *messages) {
    json_t *body = json_pack("{s:O, s:i, s:f}", "messages", messages, "max_tokens", 10, "temperature", 0.0);
    char *text = json_dumps(body, 0);
    json_t *v = server_post("/v1/chat/completions", 200, text), *usage = json_object_get(v, "usage");
    const turn_usage u = {int_of(usage, "prompt_tokens"),
                          int_of(json_object_get(usage, "prompt_tokens_details"), "cached_tokens")};
    const json_t *message = json_object_get(json_array_get(json_object_get(v, "choices"), 0), "message");
    say(messages, "assistant", json_string_value(json_object_get(message, "content")));
    free(text), json_decref(body);
    return u;
}

// As Claude Code does: the first line of the system text is another one in each turn.
static turn_usage ask_messages(json_t *messages, const char *system, int turn) {
    char line[64];
    snprintf(line, sizeof line, "x-anthropic-billing-header: cc_version=1; cch=%05d;", turn * 7919);
    json_t *body = json_pack("{s:O, s:i, s:f, s:[{s:s, s:s}, {s:s, s:s}]}", "messages", messages, "max_tokens", 10,
                             "temperature", 0.0, "system", "type", "text", "text", line, "type", "text", "text", system);
    char *text = json_dumps(body, 0);
    json_t *v = server_post("/v1/messages", 200, text), *usage = json_object_get(v, "usage");
    const int n_cached = int_of(usage, "cache_read_input_tokens");
    const turn_usage u = {int_of(usage, "input_tokens") + n_cached, n_cached};
    const char *answer = json_string_value(json_object_get(json_array_get(json_object_get(v, "content"), 0), "text"));
    say(messages, "assistant", answer ? answer : "");
    free(text), json_decref(body);
    return u;
}

// 12 turns of an agent: a turn prefills only its new tokens, the answer of the turn before among them.
static void conversation(void) {
    enum { TURNS = 12, PAGE = 256 };
    sl_text system = {0};
    add_sentences(&system, 0, 40);
    for (int is_claude = 0; is_claude < 2; is_claude++) {
        json_t *messages = json_array();
        int before = 0;
        server_start(&(server_settings){.n_ctx = 8192, .kv_tokens = 16384});
        if (!is_claude) say(messages, "system", system.data);
        for (int turn = 0; turn < TURNS; turn++) {
            char line[64];
            sl_text result = {0};
            snprintf(line, sizeof line, "Result %d: ", turn);
            add(&result, line);
            add_sentences(&result, 100 * turn, 8);
            say(messages, "user", result.data);
            const turn_usage u = is_claude ? ask_messages(messages, system.data, turn) : ask_chat(messages);
            CHECK_INT(u.n_cached, before / PAGE * PAGE); // every full page of the prompt before
            before = u.n_prompt;
            sl_text_free(&result);
        }
        CHECK(before > 8 * PAGE);
        json_decref(messages);
        server_stop();
    }
    sl_text_free(&system);
}

// ---- clients that leave ----

static char *long_body(int n_sentences, int max_tokens, int is_stream, int number) {
    sl_text prompt = {0};
    add_sentences(&prompt, 10000 * number, n_sentences);
    json_t *v = json_pack("{s:s, s:i, s:b, s:b}", "prompt", prompt.data, "max_tokens", max_tokens, "stream", is_stream,
                          "ignore_eos", 1);
    char *text = json_dumps(v, 0);
    json_decref(v), sl_text_free(&prompt);
    return text;
}

static int open_long(int n_sentences, int max_tokens, int is_stream, int number) {
    char *body = long_body(n_sentences, max_tokens, is_stream, number);
    int fd = server_open("POST", "/v1/completions", body);
    free(body);
    CHECK(fd >= 0);
    return fd;
}

// While the answer is decoded, streamed or not (llama.cpp#24496); while it waits (llama.cpp#13262).
static void leave_decode(void) {
    server_start(&(server_settings){.n_sequences = 1, .n_ctx = 32768});
    for (int is_stream = 0; is_stream < 2; is_stream++) {
        double cancelled = server_metric("sleigh_cancelled_total");
        int running = open_long(2, 30000, is_stream, 1), waiting = open_long(2, 30000, is_stream, 2);
        server_wait("vllm:num_requests_waiting", 1);
        double start = server_metric("vllm:prompt_tokens_total");
        close(waiting);
        server_wait("vllm:num_requests_waiting", 0);
        close(running);
        double left = sl_now_ms();
        server_wait("vllm:num_requests_running", 0);
        CHECK(sl_now_ms() - left < 1000);
        CHECK(server_metric("vllm:prompt_tokens_total") == start); // the waiting one never ran
        CHECK(server_metric("sleigh_cancelled_total") > cancelled);
    }
    server_stop();
}

// During long prefills (ik_llama.cpp#1020); nine clients at once (llama.cpp#9928). Meanwhile other questions get answers
// (ik_llama.cpp#1210).
static void leave_prefill(void) {
    enum { N = 9 };
    int fds[N];
    server_start(&(server_settings){.n_sequences = 9, .n_ctx = 32768, .kv_tokens = 9 * 32768});
    for (int i = 0; i < N; i++) fds[i] = open_long(1200, 10, i % 2, 1 + i);
    server_wait("vllm:num_requests_running", N);
    for (int i = 0; i < 3; i++) {
        double start = sl_now_ms();
        CHECK_INT(server_ask("GET", i ? "/slots" : "/health", NULL).status, 200);
        CHECK(sl_now_ms() - start < 500);
    }
    for (int i = 0; i < N; i++) close(fds[i]);
    double left = sl_now_ms();
    server_wait("vllm:num_requests_running", 0);
    CHECK(sl_now_ms() - left < 2000);
    CHECK(server_metric("vllm:generation_tokens_total") == 0);
    server_stop();
}

// ---- limits ----

static void queue_full(void) {
    server_start(&(server_settings){.n_sequences = 1, .n_ctx = 32768, .max_waiting = 2});
    int fds[3];
    for (int i = 0; i < 3; i++) fds[i] = open_long(2, 30000, 0, i), server_wait("vllm:num_requests_waiting", i ? i : 0);
    server_wait("vllm:num_requests_waiting", 2);
    server_reply r = server_ask("POST", "/v1/completions", "{\"prompt\": \"a\", \"max_tokens\": 1}");
    CHECK_INT(r.status, 429);
    CHECK(strstr(r.head, "Retry-After: "));
    CHECK(strstr(r.body, "rate_limit_error"));
    CHECK(server_metric("sleigh_refused_total") == 1);
    for (int i = 0; i < 3; i++) close(fds[i]);
    server_wait("vllm:num_requests_running", 0);
    server_stop();
}

// An answer that outgrows the KV cache ends with an error, and the others go on.
static void cache_full(void) {
    int fds[2], n_failed = 0;
    server_start(&(server_settings){.n_sequences = 2, .n_ctx = 2048, .kv_tokens = 10 * 256});
    for (int i = 0; i < 2; i++) fds[i] = open_long(1, -1, 1, i);
    for (int i = 0; i < 2; i++) {
        server_reply r = server_read(fds[i]);
        CHECK_INT(r.status, 200);
        CHECK(strstr(r.body, "[DONE]"));
        n_failed += strstr(r.body, "the KV cache is full") != NULL;
    }
    CHECK_INT(n_failed, 1);
    server_post("/v1/completions", 200, "{\"prompt\": \"a\", \"max_tokens\": 2}");
    server_stop();
}

// ---- drain ----

static void drain(void) {
    server_start(&(server_settings){.n_ctx = 4096, .drain_timeout = 30});
    int fd = open_long(2, 300, 1, 1);
    server_wait("vllm:num_requests_running", 1);
    serve_drain(server_object());
    CHECK_INT(server_ask("GET", "/health", NULL).status, 503);
    server_post("/v1/completions", 503, "{\"prompt\": \"a\"}");
    server_reply r = server_read(fd);
    CHECK(r.status == 200 && strstr(r.body, "[DONE]")); // the running answer is whole
    server_stop();
}

static void drain_late(void) { // answers that take longer are cut
    server_start(&(server_settings){.n_ctx = 32768, .drain_timeout = 0.2});
    int fd = open_long(2, 30000, 1, 1);
    server_wait("vllm:num_requests_running", 1);
    double start = sl_now_ms();
    server_stop();
    CHECK(sl_now_ms() - start < 5000);
    CHECK_INT(server_read(fd).status, 0);
}

const test_suite suite_serve_load = {"serve_load", (const test_case[]){{"mixed", 0, mixed_requests},
                                                                       {"followed", 0, followed},
                                                                       {"conversation", 0, conversation},
                                                                       {"leave-decode", 0, leave_decode},
                                                                       {"leave-prefill", 0, leave_prefill},
                                                                       {"queue-full", 0, queue_full},
                                                                       {"cache-full", 0, cache_full},
                                                                       {"drain", 0, drain},
                                                                       {"drain-late", 0, drain_late},
                                                                       {0}}};
