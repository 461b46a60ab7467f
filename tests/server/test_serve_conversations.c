// tests/server/test_serve_conversations.c - conversation_id: a request continues the rows of the one before, with the bits of a
// session that is continued by hand; and what happens to conversations that the server does not keep.
#include "engine/engine_internal.h"
#include "tests/server/serve_fixture.h"
#include "tests/support/models.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_FIRST = 600, N_MORE = 50, N_ANSWER = 9, TURNS = 3, PAGE = 256 };

static sl_error err;

static const char *message_of(const json_t *v) {
    return json_string_value(json_object_get(json_object_get(v, "error"), "message"));
}

typedef struct turn { // a request, and its answer
    int32_t ids[2048];
    int n;
    int32_t answer[32];
    int n_answer;
    long long n_cached;
    char hash[24];
} turn;

static char *body_of_n(const turn *t, int n_answer, const char *more) {
    static char body[32768];
    int at =
        snprintf(body, sizeof body,
                 "{\"max_tokens\": %d, \"seed\": 5, \"temperature\": 0, \"ignore_eos\": true, \"logprobs\": 0%s, \"prompt\": [",
                 n_answer, more);
    for (int i = 0; i < t->n; i++) at += snprintf(body + at, sizeof body - (size_t)at, "%s%d", i ? "," : "", t->ids[i]);
    snprintf(body + at, sizeof body - (size_t)at, "]}");
    return body;
}

static char *body_of(const turn *t, const char *more) {
    return body_of_n(t, N_ANSWER, more);
}

static void ask(turn *t, const char *more) {
    json_t *usage = json_object_get(server_post("/v1/completions", 200, body_of(t, more)), "usage");
    const json_t *answers = json_object_get(json_object_get(usage, "attention"), "answers");
    t->n_cached = json_integer_value(json_object_get(json_object_get(usage, "prompt_tokens_details"), "cached_tokens"));
    snprintf(t->hash, sizeof t->hash, "%s", json_string_value(json_object_get(json_array_get(answers, 0), "logits_hash")));
}

// The turns by hand, in one session: sl_session_sync and a stream for each. is_fresh: a session of its own for each turn.
// Fills ids, answer, n_cached and hash. Each prompt has the one before, its answer and N_MORE tokens.
static void by_hand(turn turns[TURNS], const char *attn, int is_fresh) {
    const sl_engine_options o = {.n_ctx = 2048, .prefill_chunk = 128, .device = "cpu", .n_threads = 1};
    sl_generation g = sl_generation_default();
    sl_logit_bias no_end[8];
    sl_engine *e;
    sl_session *s = NULL;
    int32_t *made = test_ids(N_FIRST + TURNS * N_MORE, 900, test_seed + 8);
    CHECK_OK(sl_engine_new(server_model(), &o, &e, &err), err);
    g.sampling = sl_model_sampling(server_model());
    g.sampling.temp = 0, g.sampling.seed = 5, g.sampling.bias = no_end, g.max_tokens = N_ANSWER, g.attn = attn;
    for (int id = 0; id < sl_model_n_vocab(server_model()) && g.sampling.n_bias < 8; id++)
        if (sl_model_is_eos(server_model(), id)) no_end[g.sampling.n_bias++] = (sl_logit_bias){id, -INFINITY};
    for (int i = 0; i < TURNS; i++) {
        turn *t = &turns[i];
        sl_stream *stream;
        int kept;
        if (!i) memcpy(t->ids, made, N_FIRST * sizeof *made), t->n = N_FIRST;
        if (i) {
            memcpy(t->ids, t[-1].ids, (size_t)t[-1].n * sizeof *made);
            memcpy(t->ids + t[-1].n, t[-1].answer, (size_t)t[-1].n_answer * sizeof *made);
            t->n = t[-1].n + t[-1].n_answer + N_MORE;
            memcpy(t->ids + t->n - N_MORE, made + N_FIRST + i * N_MORE, N_MORE * sizeof *made);
        }
        if (is_fresh) sl_session_free(s);
        if (!s || is_fresh) CHECK_OK(sl_session_new(e, 0, &s, &err), err);
        sl_session_set_seed(s, 5);
        CHECK_OK(sl_session_sync(s, t->ids, t->n, NULL, &kept, &err), err);
        CHECK_OK(sl_stream_new(s, &g, &stream, &err), err);
        CHECK_OK(sl_stream_begin(stream, 0, &err), err);
        while (sl_stream_is_running(stream)) CHECK_OK(sl_streams_step(&stream, 1, &err), err);
        const int32_t *ids = sl_stream_ids(stream, &t->n_answer);
        memcpy(t->answer, ids, (size_t)t->n_answer * sizeof *ids);
        t->n_cached = kept;
        snprintf(t->hash, sizeof t->hash, "%016llx",
                 (unsigned long long)sl_logits_hash(sl_session_last_logits(s), sl_model_n_vocab(server_model())));
        sl_stream_free(stream);
    }
    sl_session_free(s), sl_engine_free(e);
    free(made);
}

// Each turn prefills the new tokens only, and has the bits of a session that goes on. A request without the field has the bits
// of its prompt alone, also beside them.
static void continues(void) {
    static const char *const attns[] = {NULL, "santa-prop:S=32"};
    for (size_t a = 0; a < 2; a++) {
        static turn want[TURNS], alone[TURNS];
        char with[128], without[64] = "";
        if (attns[a]) snprintf(without, sizeof without, ", \"attn\": \"%s\"", attns[a]);
        snprintf(with, sizeof with, "%s, \"conversation_id\": \"talk\"", without);
        server_start(&(server_settings){.keep_conversations = 2});
        by_hand(want, attns[a], 0);
        for (int i = 0; i < TURNS; i++) {
            turn got = want[i];
            ask(&got, with);
            CHECK_STR(got.hash, want[i].hash);
            CHECK_INT(got.n_cached, want[i].n_cached);
            CHECK(i == 0 || got.n_cached == got.n - N_MORE - 1); // the last token of an answer has no row
        }
        by_hand(alone, attns[a], 1);
        for (int i = 0; i < TURNS; i++) {
            turn got = alone[i];
            ask(&got, without);
            CHECK_STR(got.hash, alone[i].hash);
            CHECK(got.n_cached % PAGE == 0);
        }
        // another salt is another conversation; so is another prompt, from its first different token on
        turn got = want[1];
        snprintf(with + strlen(with), sizeof with - strlen(with), ", \"cache_salt\": \"x\"");
        ask(&got, with);
        CHECK_INT(got.n_cached, 0);
        server_stop();
    }
}

// The first turn takes the pages of the prefix cache, and gives its own.
static void shares_prompts(void) {
    static turn want[TURNS];
    server_start(&(server_settings){.keep_conversations = 2});
    by_hand(want, NULL, 0);
    turn got = want[0];
    ask(&got, ", \"conversation_id\": \"a\"");
    CHECK_INT(got.n_cached, 0);
    ask(&got, ", \"conversation_id\": \"b\"");
    CHECK(got.n_cached == 2 * PAGE && !strcmp(got.hash, want[0].hash));
    ask(&got, "");
    CHECK(got.n_cached == 2 * PAGE && !strcmp(got.hash, want[0].hash));
    server_stop();
}

// Beyond the limit, and when a request needs the pages, the conversation that was used first goes. It then begins anew.
static void given_up(void) {
    static turn want[TURNS];
    server_start(&(server_settings){.keep_conversations = 2});
    by_hand(want, NULL, 0);
    turn got = want[0];
    ask(&got, ", \"conversation_id\": \"a\""), ask(&got, ", \"conversation_id\": \"b\"");
    got = want[1];
    ask(&got, ", \"conversation_id\": \"a\"");
    CHECK_INT(got.n_cached, want[1].n_cached);
    got = want[0];
    ask(&got, ", \"conversation_id\": \"c\""); // in the place of b
    got = want[1];
    ask(&got, ", \"conversation_id\": \"b\"");
    CHECK_INT(got.n_cached, 2 * PAGE);
    server_stop();

    server_start(&(server_settings){.keep_conversations = 2, .n_ctx = 1024, .kv_tokens = 1024, .n_sequences = 2});
    got = want[0];
    ask(&got, ", \"conversation_id\": \"a\"");
    for (int i = 0; i < 600; i++) got.ids[i]++;
    ask(&got, ""); // 3 pages of 4
    got = want[1];
    ask(&got, ", \"conversation_id\": \"a\"");
    CHECK(got.n_cached < want[1].n_cached);
    // two conversations wait for the whole cache: each ends
    int fds[4];
    for (int i = 0; i < 4; i++) {
        char more[64];
        snprintf(more, sizeof more, ", \"conversation_id\": \"%c\"", i % 2 ? 'a' : 'b' + i);
        fds[i] = server_open("POST", "/v1/completions", body_of(&want[i % 2], more));
    }
    for (int i = 0; i < 4; i++) {
        int status = server_read(fds[i]).status;
        CHECK(status == 200 || (status == 429 && i % 2)); // "a" may be busy
    }
    server_stop();
}

enum { N_SHORT = 300 }; // two pages, with an answer too

static turn short_turn(void) {
    turn t = {.n = N_SHORT};
    int32_t *made = test_ids(N_SHORT, 900, test_seed + 8);
    memcpy(t.ids, made, N_SHORT * sizeof *made);
    free(made);
    return t;
}

// Id and salt together name a conversation, whatever characters they have.
static void names(void) {
    turn t = short_turn();
    server_start(&(server_settings){.keep_conversations = 2});
    ask(&t, ", \"conversation_id\": \"a\\nb\", \"cache_salt\": \"c\"");
    ask(&t, ", \"conversation_id\": \"a\", \"cache_salt\": \"b\\nc\"");
    CHECK_INT(t.n_cached, 0);
    ask(&t, ", \"conversation_id\": \"a\\nb\", \"cache_salt\": \"c\"");
    CHECK_INT(t.n_cached, N_SHORT - 1);
    server_stop();
}

// Of the KV cache's pages, those of running answers are in use. Two answers of one prompt share its full pages.
static void usage(void) {
    enum { N_PAGES = 32 };
    turn t = short_turn();
    server_start(&(server_settings){.keep_conversations = 1});
    ask(&t, ", \"conversation_id\": \"a\"");
    server_wait("vllm:kv_cache_usage_perc", 0);
    CHECK(server_metric("sleigh_kv_pages") == N_PAGES && server_metric("sleigh_kv_pages_free") == N_PAGES - 2);
    CHECK(server_metric("sleigh_kv_pages_cached") == 0); // the conversation holds them too
    for (int i = 0; i < N_SHORT; i++) t.ids[i]++;
    int fd = server_open("POST", "/v1/completions", body_of_n(&t, 2 * PAGE - N_SHORT - 1, ", \"n\": 2"));
    server_wait("vllm:kv_cache_usage_perc", 3.0 / N_PAGES);
    close(fd);
    server_wait("vllm:kv_cache_usage_perc", 0);
    server_stop();
}

static void refusals(void) {
    server_start(NULL);
    json_t *e = server_post("/v1/completions", 400, "{\"prompt\": \"a\", \"conversation_id\": \"x\"}");
    CHECK(strstr(message_of(e), "this server keeps no conversations"));
    server_stop();
    server_start(&(server_settings){.keep_conversations = 1});
    static const char *const bad[] = {"{\"prompt\": \"a\", \"n\": 2, \"conversation_id\": \"x\"}",
                                      "{\"prompt\": [\"a\", \"b\"], \"conversation_id\": \"x\"}",
                                      "{\"prompt\": \"a\", \"echo\": true, \"logprobs\": 1, \"conversation_id\": \"x\"}"};
    for (size_t i = 0; i < 3; i++) {
        e = server_post("/v1/completions", 400, bad[i]);
        CHECK(strstr(message_of(e), "expected one prompt and one answer"));
    }
    int fd = server_open("POST", "/v1/completions",
                         "{\"prompt\": \"a\", \"max_tokens\": 1500, \"ignore_eos\": true, \"conversation_id\": \"x\"}");
    server_wait("vllm:num_requests_running", 1);
    e = server_post("/v1/completions", 429, "{\"prompt\": \"a\", \"conversation_id\": \"x\"}");
    CHECK(strstr(message_of(e), "an answer of this conversation runs"));
    close(fd);
    server_wait("vllm:num_requests_running", 0);
    server_post("/v1/completions", 200, "{\"prompt\": \"a\", \"max_tokens\": 2, \"conversation_id\": \"x\"}");
    server_stop();
}

static const test_case cases[] = {
    {"continues", NEEDS_NOTHING, continues},
    {"shares-prompts", NEEDS_NOTHING, shares_prompts},
    {"given-up", NEEDS_NOTHING, given_up},
    {"names", NEEDS_NOTHING, names},
    {"usage", NEEDS_NOTHING, usage},
    {"refusals", NEEDS_NOTHING, refusals},
    {0},
};
extern const test_suite suite_serve_conversations;
const test_suite suite_serve_conversations = {"serve_conversations", cases};
