// tests/engine/test_embed.c - sleigh.h as an embedding program uses it: order of frees, sessions without logits, calls that are
// cancelled or overlap, engines in several threads, texts, chats. This file includes engine headers only to look at results.
#include "cli/error_text.h"
#include "base/thread_pool.h"
#include "engine/engine.h"
#include "tests/support/models.h"
#include "tests/support/threads.h"
#include "tests/test.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const char dir[] = "models/tiny";
static const char fact[] = "One of the special magic numbers for tender-garlic is: 4711823. The full studio never broke a pale "
                           "garlic again. What is the special magic number for tender-garlic mentioned in the text? Answer:";
static sl_error err;

static sl_engine *engine_of(const sl_model *model, sl_engine_options o) {
    sl_engine *engine;
    CHECK_OK(sl_engine_new(model, &o, &engine, &err), err);
    return engine;
}

static sl_model *load(void) {
    sl_model *model;
    CHECK_OK(sl_model_load(dir, NULL, &model, &err), err);
    return model;
}

static sl_session *session_of(sl_engine *engine, uint32_t sequence) {
    sl_session *s;
    CHECK_OK(sl_session_new(engine, sequence, &s, &err), err);
    return s;
}

static sl_sampler *greedy(int n_vocab) {
    sl_sampling params = sl_sampling_default();
    sl_sampler *sampler;
    params.temp = 0;
    CHECK_OK(sl_sampler_new(&params, n_vocab, &sampler, &err), err);
    return sampler;
}

// A text of unknown length.
typedef struct heard {
    char text[8192];
    size_t n;
    size_t stop_at; // bytes after which the callback asks to stop; 0: never
} heard;

static int hear(void *ctx, const char *text, size_t n) {
    heard *h = ctx;
    CHECK(h->n + n < sizeof h->text);
    memcpy(h->text + h->n, text, n);
    h->n += n;
    h->text[h->n] = 0;
    return h->stop_at && h->n >= h->stop_at;
}

static sl_generation plain(int max_tokens) {
    sl_generation o = sl_generation_default();
    o.sampling.temp = 0;
    o.max_tokens = max_tokens;
    return o;
}

// ---- lifetime ----

// Objects work until their last user is freed, and the caller may free them in any order.
static void free_order(void) {
    static const char *const orders[] = {"mesp", "psem", "emsp", "mspe", "spem", "epms"}; // model, engine, session, sampler
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        sl_model *model = load();
        sl_engine *engine = engine_of(model, (sl_engine_options){.n_ctx = 256, .n_threads = 2});
        sl_session *s = session_of(engine, 0);
        sl_sampler *sampler = greedy(sl_model_n_vocab(model));
        int32_t id, first[] = {70, 71, 72};
        int has_session = 1, has_sampler = 1;
        CHECK_OK(sl_prefill(s, first, 3, NULL, &err), err);
        for (const char *p = orders[i]; *p; p++) {
            if (*p == 'm') sl_model_free(model);
            if (*p == 'e') sl_engine_free(engine);
            if (*p == 's') sl_session_free(s), has_session = 0;
            if (*p == 'p') sl_sampler_free(sampler), has_sampler = 0;
            if (has_session && has_sampler) CHECK_OK(sl_step(&s, 1, &sampler, &id, &err), err);
        }
    }
    sl_model_free(NULL), sl_engine_free(NULL), sl_session_free(NULL), sl_sampler_free(NULL), sl_chat_free(NULL), sl_free(NULL);
}

static void free_before_chat(void) {
    sl_model *model = load();
    sl_engine *engine = engine_of(model, (sl_engine_options){.n_ctx = 1024, .n_threads = 2});
    sl_chat_options o = sl_chat_options_default();
    sl_chat *chat;
    heard h = {0};
    o.generation = plain(12);
    CHECK_OK(sl_chat_open(engine, &o, &chat, &err), err);
    sl_engine_free(engine);
    sl_model_free(model);
    CHECK_OK(sl_chat_say(chat, fact, hear, &h, NULL, &err), err);
    CHECK(strstr(h.text, "4711823"));
    sl_chat_free(chat);
}

// Two engines share a model; a failed engine leaves the model's other users alone.
static void shared_model(void) {
    sl_model *model = load();
    sl_engine *a = engine_of(model, (sl_engine_options){.n_ctx = 256}), *b;
    CHECK_ERR(sl_engine_new(model, &(sl_engine_options){.n_ctx = -1}, &b, &err), err, SL_ERR_ARG, "n_ctx -1: expected 1 to");
    CHECK_ERR(sl_engine_new(model, &(sl_engine_options){.attn = "sanat"}, &b, &err), err, SL_ERR_ARG, "attn sanat: unknown");
    CHECK_ERR(sl_engine_new(model, &(sl_engine_options){.n_threads = 2000}, &b, &err), err, SL_ERR_ARG, "n_threads 2000");
    CHECK_ERR(sl_engine_new(model, &(sl_engine_options){.n_sequences = -3}, &b, &err), err, SL_ERR_ARG, "n_sequences -3");
    CHECK_ERR(sl_engine_new(model, &(sl_engine_options){.prefill_chunk = -1}, &b, &err), err, SL_ERR_ARG, "prefill_chunk -1");
    b = engine_of(model, (sl_engine_options){.n_ctx = 256, .attn = "santa-prop:S=16"});
    sl_model_free(model);
    sl_engine_free(a);
    CHECK_ERR(sl_engine_set_attention(b, "topk:k=0", &err), err, SL_ERR_ARG, "k 0");
    CHECK_OK(sl_engine_set_attention(b, "topk:k=8", &err), err);
    sl_session *s = session_of(b, 0);
    CHECK_OK(sl_prefill(s, (int32_t[]){70, 71}, 2, NULL, &err), err);
    CHECK_OK(sl_decode(&s, 1, (int32_t[]){72}, &err), err);
    CHECK(sl_engine_attention_work(b).bytes > 0 && sl_engine_attention_work(b).heads == 4 * 8);
    sl_session_free(s);
    sl_engine_free(b);
}

// ---- sessions without logits ----

static void check_no_logits(sl_session *s, sl_sampler *sampler, const char *text) {
    int32_t id = -7;
    int n = sl_session_n_tokens(s);
    CHECK_ERR(sl_step(&s, 1, &sampler, &id, &err), err, SL_ERR_ARG, text);
    CHECK_ERR(sl_sample(&s, 1, &sampler, &id, &err), err, SL_ERR_ARG, text);
    CHECK(sl_session_logits(s, &err) == NULL && err.code == SL_ERR_ARG && strstr(err.message, text));
    CHECK_ERR(sl_session_check_logits(s, &err), err, SL_ERR_ARG, text);
    CHECK_INT(id, -7);
    CHECK_INT(sl_session_n_tokens(s), n);
}

static void no_logits(void) {
    sl_model *model = load();
    sl_engine *engine = engine_of(model, (sl_engine_options){.n_ctx = 256, .n_sequences = 4, .n_threads = 2});
    sl_sampler *sampler = greedy(sl_model_n_vocab(model));
    sl_session *s = session_of(engine, 0), *fork, *part;
    int32_t id, want, ids[] = {70, 71, 72, 73};
    check_no_logits(s, sampler, "the session is empty, so it has no logits; call sl_prefill first");
    CHECK_OK(sl_prefill(s, ids, 4, NULL, &err), err);
    CHECK_OK(sl_sample(&s, 1, &sampler, &want, &err), err);
    CHECK_OK(sl_session_fork(s, 4, 0, &fork, &err), err);
    CHECK_OK(sl_session_fork(s, 3, 0, &part, &err), err);
    check_no_logits(part, sampler, "cut or forked at 3 tokens");
    CHECK(!memcmp(sl_session_logits(s, NULL), sl_session_logits(fork, NULL), sl_model_n_vocab(model) * sizeof(float)));
    CHECK_OK(sl_step(&fork, 1, &sampler, &id, &err), err);
    CHECK_INT(id, want);
    CHECK_OK(sl_session_truncate(s, 4, &err), err); // removes nothing
    CHECK_OK(sl_sample(&s, 1, &sampler, &id, &err), err);
    CHECK_OK(sl_session_truncate(s, 3, &err), err);
    check_no_logits(s, sampler, "call sl_prefill or sl_decode");
    CHECK_OK(sl_decode(&s, 1, &ids[3], &err), err);
    CHECK_OK(sl_sample(&s, 1, &sampler, &id, &err), err);
    CHECK_OK(sl_session_truncate(s, 0, &err), err);
    check_no_logits(s, sampler, "the session is empty");
    sl_session *batch[2] = {fork, s}; // one session of a batch has no logits: no session changes
    sl_sampler *samplers[2] = {sampler, sampler};
    int32_t two[2];
    CHECK_ERR(sl_step(batch, 2, samplers, two, &err), err, SL_ERR_ARG, "the session is empty");
    CHECK_INT(sl_session_n_tokens(fork), 5);
    sl_session_free(s), sl_session_free(fork), sl_session_free(part);
    sl_sampler_free(sampler);
    sl_engine_free(engine), sl_model_free(model);
}

static void wrong_batches(void) {
    sl_model *model = load();
    sl_engine *a = engine_of(model, (sl_engine_options){.n_ctx = 256, .n_sequences = 2});
    sl_engine *b = engine_of(model, (sl_engine_options){.n_ctx = 256});
    sl_session *s = session_of(a, 0), *other = session_of(b, 0);
    sl_sampler *sampler = greedy(sl_model_n_vocab(model)), *small = greedy(10);
    int32_t ids[2] = {70, 71};
    CHECK_OK(sl_prefill(s, ids, 2, NULL, &err), err);
    CHECK_OK(sl_prefill(other, ids, 2, NULL, &err), err);
    CHECK_ERR(sl_decode((sl_session *[]){s, s}, 2, ids, &err), err, SL_ERR_ARG, "session 1 is in the batch twice");
    CHECK_ERR(sl_decode((sl_session *[]){s, other}, 2, ids, &err), err, SL_ERR_ARG,
              "session 1 of the batch belongs to another");
    CHECK_ERR(sl_step(&s, 1, &small, ids, &err), err, SL_ERR_ARG, "sampler 0 is for 10 tokens, but the model has 1024");
    CHECK_ERR(sl_sampler_accept(small, 10, &err), err, SL_ERR_ARG, "token id 10: expected 0 to 9");
    sl_sampler_truncate(small, 100);
    CHECK_ERR(sl_sampler_new(&(sl_sampling){.top_p = 1, .repeat_penalty = 1}, 0, &(sl_sampler *){NULL}, &err), err, SL_ERR_ARG,
              "a vocabulary of 0 tokens");
    CHECK_INT(sl_session_n_tokens(s), 2);
    CHECK_OK(sl_step(&s, 1, &sampler, ids, &err), err);
    sl_sampler_free(sampler), sl_sampler_free(small);
    sl_session_free(s), sl_session_free(other);
    sl_engine_free(a), sl_engine_free(b), sl_model_free(model);
}

// ---- calls that overlap, calls that are cancelled ----

typedef struct inner {
    sl_session *same, *other;
    int n_calls;
} inner;

static void call_inside(void *ctx, int done, int total) {
    inner *in = ctx;
    (void)done, (void)total;
    in->n_calls++;
    CHECK_ERR(sl_decode(&in->same, 1, (int32_t[]){70}, &err), err, SL_ERR_ARG, "another call runs this engine");
    CHECK_OK(sl_prefill(in->other, (int32_t[]){70}, 1, NULL, &err), err);
}

static void overlapping_calls(void) {
    sl_model *model = load();
    sl_engine *a = engine_of(model, (sl_engine_options){.n_ctx = 256, .prefill_chunk = 16, .n_threads = 1});
    sl_engine *b = engine_of(model, (sl_engine_options){.n_ctx = 256, .n_threads = 3});
    inner in = {.same = session_of(a, 0), .other = session_of(b, 0)};
    int32_t *ids = test_ids(40, sl_model_n_vocab(model), test_seed);
    test_threads(2);
    CHECK_OK(sl_prefill(in.same, ids, 40, &(sl_progress){call_inside, &in}, &err), err);
    CHECK_INT(in.n_calls, 3);
    CHECK_INT(sl_session_n_tokens(in.other), 3);
    CHECK_INT(sl_threads_n(), 2); // of the caller, as before
    test_threads(1);
    CHECK_OK(sl_decode(&in.same, 1, ids, &err), err); // the engine is free again
    free(ids);
    sl_session_free(in.same), sl_session_free(in.other);
    sl_engine_free(a), sl_engine_free(b), sl_model_free(model);
}

typedef struct answering {
    sl_engine *engine;
    sl_chat *chat, *other;
    sl_session *s;
    heard h;
} answering;

static int call_in_answer(void *ctx, const char *text, size_t n) {
    answering *a = ctx;
    CHECK_ERR(sl_chat_say(a->chat, "a", NULL, NULL, NULL, &err), err, SL_ERR_ARG, "another call runs this engine");
    CHECK_ERR(sl_chat_again(a->other, NULL, NULL, NULL, &err), err, SL_ERR_ARG, "another call runs this engine");
    CHECK_ERR(sl_generate(a->engine, "a", NULL, NULL, NULL, NULL, &err), err, SL_ERR_ARG, "another call runs this engine");
    CHECK_ERR(sl_prefill(a->s, (int32_t[]){70}, 1, NULL, &err), err, SL_ERR_ARG, "another call runs this engine");
    CHECK_ERR(sl_engine_set_attention(a->engine, "topk:k=8", &err), err, SL_ERR_ARG, "another call runs this engine");
    return hear(&a->h, text, n);
}

// An answer is one call from its first to its last token.
static void calls_in_answers(void) {
    sl_model *model = load();
    sl_engine *engine = engine_of(model, (sl_engine_options){.n_ctx = 512, .n_sequences = 3, .n_threads = 2});
    sl_chat_options o = sl_chat_options_default();
    answering a = {.engine = engine, .s = session_of(engine, 0)};
    o.generation = plain(12);
    CHECK_OK(sl_chat_open(engine, &o, &a.chat, &err), err);
    CHECK_OK(sl_chat_open(engine, &o, &a.other, &err), err);
    CHECK_OK(sl_chat_say(a.chat, fact, call_in_answer, &a, NULL, &err), err);
    CHECK(strstr(a.h.text, "4711823"));
    CHECK_INT(sl_chat_n_messages(a.chat), 2);
    CHECK_INT(sl_chat_n_messages(a.other), 0);
    CHECK_INT(sl_session_n_tokens(a.s), 0);
    a.h.n = 0;
    CHECK_OK(sl_chat_again(a.chat, call_in_answer, &a, NULL, &err), err);
    CHECK_STR(sl_chat_message(a.chat, 1)->content, a.h.text);
    a.h.n = 0;
    CHECK_OK(sl_generate(engine, fact, &o.generation, call_in_answer, &a, NULL, &err), err);
    CHECK(strstr(a.h.text, "4711823"));
    CHECK_OK(sl_prefill(a.s, (int32_t[]){70}, 1, NULL, &err), err); // the engine is free again
    sl_chat_free(a.chat), sl_chat_free(a.other), sl_session_free(a.s);
    sl_engine_free(engine), sl_model_free(model);
}

static int count_down(void *ctx) { // 1 from call n on
    return --*(int *)ctx < 0;
}

static void cancelled_load(void) {
    int left = 0;
    sl_model *model = NULL;
    sl_engine *engine = NULL;
    for (int n = 0; n < 2; n++) { // before the weights, before the tokenizer
        left = n;
        const sl_model_options o = {.cancel = {count_down, &left}};
        CHECK_ERR(sl_model_load(dir, &o, &model, &err), err, SL_ERR_CANCELLED, "cancelled");
        CHECK(model == NULL);
    }
    left = 2;
    CHECK_OK(sl_model_load(dir, &(sl_model_options){.cancel = {count_down, &left}}, &model, &err), err);
    left = 0;
    CHECK_OK(sl_engine_new(model, &(sl_engine_options){.n_ctx = 256, .cancel = {count_down, &left}}, &engine, &err), err);
    sl_engine_free(engine), sl_model_free(model); // on the CPU sl_engine_new uploads nothing, so it does not ask
}

// A cancelled prefill, with any number of finished chunks, and a cancelled step change nothing.
static void cancelled_calls(void) {
    enum { N = 300, CHUNK = 64 };
    int left = 1 << 20;
    sl_model *model = load();
    sl_engine *engine =
        engine_of(model, (sl_engine_options){.n_ctx = 1024, .prefill_chunk = CHUNK, .cancel = {count_down, &left}});
    sl_session *s = session_of(engine, 0), *calm = session_of(engine, 0);
    sl_sampler *sampler = greedy(sl_model_n_vocab(model));
    size_t size = sl_model_n_vocab(model) * sizeof(float);
    int32_t id, *ids = test_ids(2 * N, sl_model_n_vocab(model), test_seed);
    float *before = malloc(size);
    CHECK_OK(sl_prefill(s, ids, N, NULL, &err), err);
    memcpy(before, sl_session_logits(s, NULL), size);
    for (int chunks = 0; chunks * CHUNK < N; chunks++) {
        left = chunks;
        CHECK_ERR(sl_prefill(s, ids + N, N, NULL, &err), err, SL_ERR_CANCELLED, "cancelled");
        CHECK_INT(sl_session_n_tokens(s), N);
        CHECK(!memcmp(before, sl_session_logits(s, NULL), size));
    }
    left = 0;
    CHECK_ERR(sl_decode(&s, 1, ids, &err), err, SL_ERR_CANCELLED, "cancelled");
    CHECK_ERR(sl_step(&s, 1, &sampler, &id, &err), err, SL_ERR_CANCELLED, "cancelled");
    CHECK_INT(sl_session_n_tokens(s), N);
    left = 1 << 20;
    CHECK_OK(sl_prefill(s, ids + N, N, NULL, &err), err);
    sl_session_free(calm);
    calm = session_of(engine, 0);
    memcpy(before, sl_session_logits(s, NULL), size);
    CHECK_OK(sl_session_truncate(s, 0, &err), err); // its pages are needed
    CHECK_OK(sl_prefill(calm, ids, 2 * N, NULL, &err), err);
    CHECK(!memcmp(before, sl_session_logits(calm, NULL), size));
    free(before), free(ids);
    sl_sampler_free(sampler);
    sl_session_free(s), sl_session_free(calm);
    sl_engine_free(engine), sl_model_free(model);
}

// ---- threads ----

enum { THREADS = 2, STEPS = 6, PROMPT = 300 };

typedef struct worker {
    const sl_model *model;
    const char *attn;
    int n_threads;
    uint64_t seed;
    float *logits;   // [STEPS][n_vocab]
    char said[1024]; // an error; "" : none
} worker;

static void *work(void *ctx) { // without CHECK, which may only be used in the test's thread
    worker *w = ctx;
    sl_error e = {0};
    sl_engine *engine = NULL;
    sl_session *s = NULL;
    int n_vocab = sl_model_n_vocab(w->model);
    int32_t *ids = test_ids(PROMPT + STEPS, n_vocab, w->seed);
    const sl_engine_options o = {.n_ctx = 512, .n_threads = w->n_threads, .attn = w->attn, .prefill_chunk = 100};
    int rc = sl_engine_new(w->model, &o, &engine, &e);
    if (!rc) rc = sl_session_new(engine, 0, &s, &e);
    if (!rc) rc = sl_prefill(s, ids, PROMPT, NULL, &e);
    for (int i = 0; !rc && i < STEPS; i++) {
        rc = sl_decode(&s, 1, &ids[PROMPT + i], &e);
        if (!rc) memcpy(w->logits + (size_t)i * n_vocab, sl_session_logits(s, NULL), n_vocab * sizeof(float));
    }
    snprintf(w->said, sizeof w->said, "%s", rc ? e.message : "");
    sl_session_free(s);
    sl_engine_free(engine);
    free(ids);
    return NULL;
}

// Engines with different numbers of threads, in two threads at the same time, compute what they compute alone.
static void two_threads(void) {
    sl_model *model = load();
    size_t n = (size_t)STEPS * sl_model_n_vocab(model);
    worker alone[THREADS], together[THREADS];
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        alone[i] =
            (worker){.model = model, .attn = i ? "santa-pps:S=32" : "dense", .n_threads = 1 + 2 * i, .seed = 7 + (uint64_t)i};
        alone[i].logits = malloc(n * sizeof(float));
        together[i] = alone[i];
        together[i].logits = malloc(n * sizeof(float));
        work(&alone[i]);
        CHECK_STR(alone[i].said, "");
    }
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, work, &together[i]) == 0);
        for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
        for (int i = 0; i < THREADS; i++) {
            CHECK_STR(together[i].said, "");
            CHECK(!memcmp(alone[i].logits, together[i].logits, n * sizeof(float)));
        }
    }
    for (int i = 0; i < THREADS; i++) free(alone[i].logits), free(together[i].logits);
    sl_model_free(model);
}

// No call changes the number of threads of the caller or of another engine.
static void number_of_threads(void) {
    sl_model *model = load();
    char text[256];
    int n_ctx;
    test_threads(5);
    sl_engine *three = engine_of(model, (sl_engine_options){.n_ctx = 256, .n_threads = 3});
    sl_engine *two = engine_of(model, (sl_engine_options){.n_ctx = 256, .n_threads = 2});
    CHECK_OK(sl_engine_largest_ctx(model, "cpu", 1, &n_ctx, &err), err);
    CHECK_ERR(sl_engine_largest_ctx(model, "cpu", 0, &n_ctx, &err), err, SL_ERR_ARG, "n_sequences 0");
    CHECK_OK(sl_device_arithmetic("cpu", text, sizeof text, &err), err);
    sl_engine_describe(three, text, sizeof text);
    CHECK(strstr(text, " 3 threads"));
    sl_engine_describe(two, text, sizeof text);
    CHECK(strstr(text, " 2 threads"));
    for (size_t size = 0; size < 12; size++) { // a text that does not fit is cut
        char part[16];
        memset(part, '#', sizeof part);
        sl_engine_describe(two, part, size);
        CHECK(part[size] == '#' && (size == 0 || (strlen(part) == size - 1 && !strncmp(part, text, size - 1))));
    }
    sl_session *s = session_of(three, 0);
    CHECK_OK(sl_prefill(s, (int32_t[]){70}, 1, NULL, &err), err);
    CHECK_INT(sl_threads_n(), 5);
    test_threads(1);
    sl_session_free(s);
    sl_engine_free(three), sl_engine_free(two), sl_model_free(model);
}

// ---- messages ----

static void check_flags(const char *want) {
    sl_error copy = err;
    CHECK_STR(cli_error_text(&copy), want);
    CHECK_INT(copy.n_options, 0);
}

static void options_in_messages(void) {
    sl_fail(&err, SL_ERR_ARG, "{n_ctx} %d: with {attn} %s use {device} cpu, not {%s} 1", 9, "{attn}", "top_k");
    CHECK_STR(err.message, "n_ctx 9: with attn {attn} use device cpu, not top_k 1");
    CHECK_INT(err.n_options, 4);
    CHECK(!memcmp(err.message + err.options[2].at, "device", err.options[2].n) && err.options[2].n == 6);
    check_flags("--ctx-size 9: with --attn {attn} use --device cpu, not --top-k 1");
    sl_fail(&err, SL_ERR_IO, "%s: {not an option} {} {1}", "{n_ctx}\2n_ctx");
    CHECK_STR(err.message, "{n_ctx}\\x02n_ctx: {not an option} {} {1}");
    CHECK_INT(err.n_options, 0);
    char text[1100];
    memset(text, 'x', sizeof text - 1), text[sizeof text - 1] = 0;
    for (int n = 1000; n < 1030; n++) { // the name of an option at the end of the room
        sl_fail(&err, SL_ERR_ARG, "%.*s{prefill_chunk} 3", n, text);
        CHECK(strlen(err.message) < sizeof err.message);
        cli_error_text(&err);
        CHECK(strlen(err.message) < sizeof err.message);
    }
}

typedef struct lines {
    char last[512];
    int n;
} lines;

static void keep_line(void *ctx, const char *line) {
    lines *l = ctx;
    snprintf(l->last, sizeof l->last, "%s", line);
    l->n++;
}

// A scaling raises the limit of the context, and the log says that the context is longer than the trained one.
static void rope_options(void) {
    sl_model *model, *plain = load();
    lines l = {0};
    const sl_model_options yarn = {.rope = {.scaling = "yarn", .factor = 4}}, wrong = {.rope = {.scaling = "yarn"}};
    CHECK_ERR(sl_model_load("models/tiny", &wrong, &model, &err), err, SL_ERR_ARG, "rope_scaling yarn needs rope_scale");
    CHECK_OK(sl_model_load("models/tiny", &yarn, &model, &err), err);
    CHECK(sl_model_n_ctx(model) > 4 * 131072);
    sl_engine_free(engine_of(model, (sl_engine_options){.n_ctx = 131072, .log = {keep_line, &l}}));
    CHECK_INT(l.n, 0);
    sl_engine *engine = engine_of(model, (sl_engine_options){.n_ctx = 131073, .log = {keep_line, &l}});
    CHECK_INT(l.n, 1);
    CHECK_STR(l.last, "the context has 131073 tokens, and this model was trained on 131072");
    sl_engine_free(engine), sl_model_free(model);
    CHECK_ERR(sl_engine_new(plain, &(sl_engine_options){.n_ctx = 131073}, &engine, &err), err, SL_ERR_ARG,
              "n_ctx 131073: expected 1 to 131072");
    sl_model_free(plain);
}

// ---- texts ----

static void tokens(void) {
    sl_model *model = load(), *bare;
    int32_t *ids;
    int n_ids;
    size_t n;
    char *text;
    CHECK_STR(sl_model_name(model), "tiny");
    CHECK_STR(sl_model_type(model), "llama");
    CHECK_INT(sl_model_n_ctx(model), 131072);
    CHECK_INT(sl_model_n_vocab(model), 1024);
    CHECK(sl_model_is_eos(model, 1009) && !sl_model_is_eos(model, 70));
    CHECK_STR(sl_version(), SLEIGH_VERSION);
    CHECK_OK(sl_model_tokenize(model, "a\0b<|eot_id|>", 13, SL_TOK_BOS, &ids, &n_ids, &err), err);
    CHECK(ids[0] == 1008 && ids[n_ids - 1] == 1012);
    CHECK_OK(sl_model_detokenize(model, ids, n_ids, 0, &text, &n, &err), err);
    CHECK(n == 3 && !memcmp(text, "a\0b", 4));
    sl_free(text);
    CHECK_OK(sl_model_detokenize(model, ids + n_ids - 1, 1, SL_TOK_SPECIALS, &text, NULL, &err), err);
    CHECK_STR(text, "<|eot_id|>");
    sl_free(text), sl_free(ids);
    CHECK_OK(sl_model_tokenize(model, "", 0, 0, &ids, &n_ids, &err), err);
    CHECK_INT(n_ids, 0);
    CHECK_OK(sl_model_detokenize(model, ids, 0, 0, &text, &n, &err), err);
    CHECK_STR(text, "");
    sl_free(text), sl_free(ids);
    CHECK_ERR(sl_model_detokenize(model, (int32_t[]){70}, -1, 0, &text, &n, &err), err, SL_ERR_ARG, "a list of -1 token ids");
    CHECK_ERR(sl_model_detokenize(model, (int32_t[]){5000}, 1, 0, &text, &n, &err), err, SL_ERR_ARG, "5000");
    CHECK_OK(sl_model_load("models/tiny//", &(sl_model_options){.flags = SL_MODEL_NO_TOKENIZER}, &bare, &err), err);
    CHECK_STR(sl_model_name(bare), "tiny");
    CHECK_ERR(sl_model_tokenize(bare, "a", 1, 0, &ids, &n_ids, &err), err, SL_ERR_ARG, "without a tokenizer");
    sl_engine *engine = engine_of(bare, (sl_engine_options){.n_ctx = 256});
    CHECK_ERR(sl_generate(engine, "a", NULL, NULL, NULL, NULL, &err), err, SL_ERR_ARG, "without a tokenizer");
    sl_engine_free(engine), sl_model_free(bare), sl_model_free(model);
}

static void generates(void) {
    static const char *const stops[] = {"823", "never"};
    sl_model *model = load();
    sl_engine *engine = engine_of(model, (sl_engine_options){.n_ctx = 256, .n_threads = 2, .attn = "santa-prop:S=512"});
    sl_generation o = plain(5);
    sl_generated r;
    heard h = {0};
    CHECK_OK(sl_generate(engine, fact, &o, hear, &h, &r, &err), err);
    CHECK(r.stop == SL_STOP_LENGTH && r.n_generated == 5 && r.n_reused == 0 && r.n_prompt > 50);
    CHECK_STR(h.text, " 4711");
    o.max_tokens = 0;
    o.stop = stops, o.n_stop = 2;
    h = (heard){0};
    CHECK_OK(sl_generate(engine, fact, &o, hear, &h, &r, &err), err);
    CHECK_INT(r.stop, SL_STOP_STRING);
    CHECK_STR(h.text, " 4711");
    o.n_stop = 0;
    h = (heard){.stop_at = 3};
    CHECK_OK(sl_generate(engine, fact, &o, hear, &h, &r, &err), err);
    CHECK(r.stop == SL_STOP_CALLER && h.n == 3 && r.n_generated == 3);
    const sl_logit_bias never[] = {{1009, -1e9f}, {1012, -1e9f}};
    o.sampling.bias = never, o.sampling.n_bias = 2;
    h = (heard){0};
    CHECK_OK(sl_generate(engine, fact, &o, hear, &h, &r, &err), err);
    CHECK(r.stop == SL_STOP_CONTEXT && r.n_prompt + r.n_generated == 256 + 1); // the last token needs no room
    const sl_logit_bias end = {1012, 1e9f};
    o.sampling.bias = &end, o.sampling.n_bias = 1;
    CHECK_OK(sl_generate(engine, fact, &o, NULL, NULL, &r, &err), err);
    CHECK(r.stop == SL_STOP_END && r.n_generated == 0);
    o.sampling.top_p = 2;
    CHECK_ERR(sl_generate(engine, fact, &o, NULL, NULL, &r, &err), err, SL_ERR_ARG, "top_p 2: expected 0 to 1");
    o = plain(5);
    o.n_stop = -1;
    CHECK_ERR(sl_generate(engine, fact, &o, NULL, NULL, &r, &err), err, SL_ERR_ARG, "a list of -1 stop strings");
    o = plain(5);
    o.sampling.n_bias = -5;
    CHECK_ERR(sl_generate(engine, fact, &o, NULL, NULL, &r, &err), err, SL_ERR_ARG, "a list of -5 logit biases");
    sl_engine_free(engine), sl_model_free(model);
}

static void cancelled_generation(void) {
    int left = 1; // the prefill of one chunk
    sl_model *model = load();
    sl_engine *engine = engine_of(model, (sl_engine_options){.n_ctx = 256, .n_threads = 2, .cancel = {count_down, &left}});
    sl_generation o = plain(20);
    sl_generated r;
    heard h = {0};
    CHECK_ERR(sl_generate(engine, fact, &o, hear, &h, &r, &err), err, SL_ERR_CANCELLED, "cancelled");
    CHECK_INT(h.n, 0);
    left = 1 + 4;
    CHECK_OK(sl_generate(engine, fact, &o, hear, &h, &r, &err), err);
    CHECK(r.stop == SL_STOP_CALLER && r.n_generated == 4);
    CHECK_STR(h.text, " 471");
    sl_engine_free(engine), sl_model_free(model);
}

// ---- chats ----

static void special_texts(void) { // special tokens in a message are text, unless the chat's options say otherwise
    sl_model *model = load();
    sl_engine *engine = engine_of(model, (sl_engine_options){.n_ctx = 256, .n_sequences = 1, .n_threads = 2});
    int n_prompt[2];
    for (int parse = 0; parse < 2; parse++) {
        sl_chat_options o = sl_chat_options_default();
        sl_generated result;
        sl_chat *chat;
        o.generation = plain(1);
        o.parse_special = parse;
        CHECK_OK(sl_chat_open(engine, &o, &chat, &err), err);
        CHECK_OK(sl_chat_say(chat, "<|eot_id|>", NULL, NULL, &result, &err), err);
        n_prompt[parse] = result.n_prompt;
        sl_chat_free(chat);
    }
    CHECK(n_prompt[0] > n_prompt[1] + 3);
    sl_engine_free(engine), sl_model_free(model);
}

static void chats(void) {
    sl_model *model = load();
    sl_engine *engine = engine_of(model, (sl_engine_options){.n_ctx = 1024, .n_sequences = 2, .n_threads = 2});
    sl_chat_options o = sl_chat_options_default();
    sl_chat *chat, *copy;
    sl_generated first, second, again;
    heard h = {0}, said = {0};
    o.system_prompt = "Be brief.";
    o.generation = plain(12);
    o.generation.sampling.temp = 0.8f;
    o.template_name = "lama3";
    CHECK_ERR(sl_chat_open(engine, &o, &chat, &err), err, SL_ERR_ARG, "template_name lama3: expected a file, or one of llama2");
    o.template_name = NULL;
    CHECK_OK(sl_chat_open(engine, &o, &chat, &err), err);
    CHECK_ERR(sl_chat_again(chat, NULL, NULL, NULL, &err), err, SL_ERR_ARG, "call sl_chat_say first");
    CHECK_OK(sl_chat_say(chat, fact, hear, &h, &first, &err), err);
    CHECK_INT(first.n_reused, 0);
    CHECK_INT(sl_chat_n_messages(chat), 3);
    CHECK_STR(sl_chat_message(chat, 0)->role, "system");
    CHECK_STR(sl_chat_message(chat, 1)->content, fact);
    CHECK_STR(sl_chat_message(chat, 2)->role, "assistant");
    CHECK_STR(sl_chat_message(chat, 2)->content, h.text);
    CHECK(sl_chat_message(chat, 3) == NULL && sl_chat_message(chat, -1) == NULL);
    h.n = 0;
    CHECK_OK(sl_chat_say(chat, "Again?", hear, &h, &second, &err), err);
    CHECK(second.n_reused >= first.n_prompt - 1); // the KV rows of the first turn stay
    h.n = 0;
    CHECK_OK(sl_chat_again(chat, hear, &h, &again, &err), err); // replaces the answer
    CHECK_INT(again.n_reused, again.n_prompt - 1);
    CHECK_INT(sl_chat_n_messages(chat), 5);
    CHECK_STR(sl_chat_message(chat, 4)->content, h.text);
    // A chat with the same messages, which prefills all of them, gives the same answer.
    sl_message messages[4];
    for (int i = 0; i < 4; i++) messages[i] = *sl_chat_message(chat, i);
    o.generation.sequence = 1; // sl_chat_again took the next one
    CHECK_OK(sl_chat_open(engine, &o, &copy, &err), err);
    CHECK_OK(sl_chat_set_messages(copy, messages, 4, &err), err);
    CHECK_OK(sl_chat_again(copy, hear, &said, NULL, &err), err);
    CHECK_STR(said.text, h.text);
    CHECK_INT(sl_chat_n_messages(copy), 5);
    messages[1].role = "tool";
    CHECK_ERR(sl_chat_set_messages(copy, messages, 4, &err), err, SL_ERR_ARG, "message 1 has the role \"tool\"");
    CHECK_ERR(sl_chat_set_messages(copy, messages, -1, &err), err, SL_ERR_ARG, "a list of -1 messages");
    CHECK_INT(sl_chat_n_messages(copy), 5);
    CHECK_OK(sl_chat_reset(copy, &err), err);
    CHECK_INT(sl_chat_n_messages(copy), 1);
    sl_chat_free(copy), sl_chat_free(chat);
    sl_engine_free(engine), sl_model_free(model);
}

// After an error the messages are those of before, and the chat goes on.
static void failed_answers(void) {
    int left = 0;
    sl_model *model = load();
    sl_engine *engine = engine_of(model, (sl_engine_options){.n_ctx = 256, .n_threads = 2, .cancel = {count_down, &left}});
    sl_chat_options o = sl_chat_options_default();
    sl_chat *chat;
    char long_text[2000];
    heard h = {0};
    o.generation = plain(12);
    memset(long_text, 'a', sizeof long_text - 1), long_text[sizeof long_text - 1] = 0;
    CHECK_OK(sl_chat_open(engine, &o, &chat, &err), err);
    CHECK_ERR(sl_chat_say(chat, fact, hear, &h, NULL, &err), err, SL_ERR_CANCELLED, "cancelled");
    CHECK_INT(sl_chat_n_messages(chat), 0);
    left = 1 << 20;
    CHECK_ERR(sl_chat_say(chat, long_text, hear, &h, NULL, &err), err, SL_ERR_CONTEXT, "more than n_ctx 256");
    CHECK_INT(sl_chat_n_messages(chat), 0);
    CHECK_OK(sl_chat_say(chat, fact, hear, &h, NULL, &err), err);
    CHECK(strstr(h.text, "4711823"));
    left = 0;
    CHECK_ERR(sl_chat_again(chat, NULL, NULL, NULL, &err), err, SL_ERR_CANCELLED, "cancelled");
    CHECK_INT(sl_chat_n_messages(chat), 2);
    CHECK_STR(sl_chat_message(chat, 1)->content, h.text);
    o.generation.sampling.min_p = -1;
    CHECK_ERR(sl_chat_set_generation(chat, &o.generation, &err), err, SL_ERR_ARG, "min_p -1");
    sl_chat_free(chat);
    sl_engine_free(engine), sl_model_free(model);
}

static const test_case cases[] = {
    {"free-order", 0, free_order},
    {"free-before-chat", 0, free_before_chat},
    {"shared-model", 0, shared_model},
    {"no-logits", 0, no_logits},
    {"wrong-batches", 0, wrong_batches},
    {"overlapping-calls", 0, overlapping_calls},
    {"calls-in-answers", 0, calls_in_answers},
    {"cancelled-load", 0, cancelled_load},
    {"cancelled-calls", 0, cancelled_calls},
    {"two-threads", 0, two_threads},
    {"number-of-threads", 0, number_of_threads},
    {"options-in-messages", 0, options_in_messages},
    {"rope-options", 0, rope_options},
    {"tokens", 0, tokens},
    {"generates", 0, generates},
    {"cancelled-generation", 0, cancelled_generation},
    {"chats", 0, chats},
    {"special-texts", 0, special_texts},
    {"failed-answers", 0, failed_answers},
    {0},
};
extern const test_suite suite_embed;
const test_suite suite_embed = {"embed", cases};
