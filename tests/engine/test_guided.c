// tests/engine/test_guided.c - generations that follow a grammar: random prompts and sampling parameters, of which each answer
// must follow it; where it begins and ends; streams side by side with and without a grammar; errors of one stream.
#include "engine/engine_internal.h"
#include "engine/stream.h"
#include "tests/support/schema_documents.h"
#include "tests/support/models.h"
#include "tests/test.h"

#include <math.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>

static sl_error err;

enum { N_CTX = 2048, ROUNDS = 16, TEXT = 8192, DOT_LINE = 331, ID_A = 97 }; // DOT_LINE: the token ".\n"

static const char *device = "cpu";
static sl_model *model;
static sl_engine *engine;

static void open_all(int n_sequences) {
    const sl_engine_options o = {.device = device, .n_ctx = N_CTX, .n_sequences = n_sequences, .n_threads = 1};
    CHECK_OK(sl_model_load("models/tiny", NULL, &model, &err), err);
    CHECK_OK(sl_engine_new(model, &o, &engine, &err), err);
    test_draw_from(test_seed);
}

static void close_all(void) {
    sl_engine_free(engine), sl_model_free(model);
}

static sl_grammar *grammar_of(sl_grammar_kind kind, const char *text) {
    sl_grammar *g;
    if (sl_grammar_new(kind, text, strlen(text), &g, &err)) FAIL("%s: %s", text, err.message);
    return g;
}

typedef struct answer {
    char text[TEXT];
    size_t n;
    sl_generated of;
} answer;

static int hear(void *ctx, const char *text, size_t n) {
    answer *a = ctx;
    CHECK(a->n + n < TEXT);
    memcpy(a->text + a->n, text, n);
    a->text[a->n += n] = 0;
    return 0;
}

static answer say(const sl_generation *o, const char *prompt) {
    answer a = {.n = 0};
    CHECK_OK(sl_generate(engine, prompt, o, hear, &a, &a.of, &err), err);
    return a;
}

static int fails(const sl_generation *o, answer *a) {
    *a = (answer){.n = 0};
    return sl_generate(engine, "The", o, hear, a, &a->of, &err);
}

static const char *random_prompt(void) {
    static char prompt[30];
    int n = test_below(sizeof prompt);
    for (int i = 0; i < n; i++) prompt[i] = "abcdefgh .\"{1"[test_below(13)];
    prompt[n] = 0;
    return prompt;
}

static sl_generation random_options(const sl_grammar *g) {
    sl_generation o = sl_generation_default();
    o.sampling = sl_sampling_default();
    o.sampling.temp = test_below(5) ? 0.5f + (float)test_below(4) : 0;
    o.sampling.top_k = test_below(3) ? test_below(3) : 40;
    o.sampling.top_p = test_below(2) ? 1 : 0.5f, o.sampling.min_p = test_below(2) ? 0 : 0.3f;
    o.sampling.repeat_penalty = test_below(3) ? 1 : 1.5f, o.sampling.frequency_penalty = test_below(3) ? 0 : 2;
    o.sampling.seed = (uint32_t)test_below(1000), o.sequence = (uint32_t)test_below(9);
    o.grammar = g, o.max_tokens = 0;
    return o;
}

// ---- answers follow the grammar ----

static void schemas(void) {
    open_all(1);
    sl_grammar *g = grammar_of(SL_GRAMMAR_JSON_SCHEMA, document_schema);
    for (int i = 0; i < ROUNDS; i++) {
        const sl_generation o = random_options(g);
        const answer a = say(&o, random_prompt());
        CHECK_INT(a.of.stop, SL_STOP_END);
        check_document(a.text);
    }
    CHECK(engine->matchers.newest && !engine->matchers.newest->older);
    sl_grammar_free(g), close_all();
}

static void on_gpu(void (*fn)(void)) {
    device = "cuda";
    fn();
    device = "cpu";
}

static void schemas_on_gpu(void) {
    on_gpu(schemas);
}

enum { PROMPTS = 12 };

static void greedy_answers(answer *out) {
    open_all(1);
    sl_grammar *g = grammar_of(SL_GRAMMAR_JSON_SCHEMA, document_schema);
    sl_generation o = random_options(g);
    o.sampling = sl_sampling_default(), o.sampling.temp = 0;
    for (int i = 0; i < PROMPTS; i++) {
        char prompt[40];
        snprintf(prompt, sizeof prompt, "The %d%cd lamp of %s", i * 7, 'a' + i, i % 2 ? "the river" : "a garden");
        out[i] = say(&o, prompt);
        CHECK_INT(out[i].of.stop, SL_STOP_END);
        check_document(out[i].text);
    }
    sl_grammar_free(g), close_all();
}

// The logits of the devices differ by roundings, which change the larger one of two tokens only if both are about equal.
static void cpu_and_gpu(void) {
    static answer cpu[PROMPTS], gpu[PROMPTS];
    int n_equal = 0;
    greedy_answers(cpu);
    device = "cuda";
    greedy_answers(gpu);
    device = "cpu";
    for (int i = 0; i < PROMPTS; i++) n_equal += !strcmp(cpu[i].text, gpu[i].text);
    if (n_equal < PROMPTS / 2) FAIL("%d of %d answers are equal, expected most", n_equal, PROMPTS);
}

static int matches(const char *pattern, const char *text) {
    regex_t r;
    CHECK_INT(regcomp(&r, pattern, REG_EXTENDED | REG_NOSUB), 0);
    int found = !regexec(&r, text, 0, NULL, 0);
    regfree(&r);
    return found;
}

static void kinds(void) {
    static const struct {
        sl_grammar_kind kind;
        const char *text, *pattern;
    } rows[] = {
        {SL_GRAMMAR_GBNF, "root ::= pair (\", \" pair){0,2} # end\npair ::= [a-c]{2} \"=\" [0-9]{1,3}",
         "^[a-c]{2}=[0-9]{1,3}(, [a-c]{2}=[0-9]{1,3}){0,2}$"},
        {SL_GRAMMAR_REGEX, "[A-F0-9]{4}(-[a-z ]{3,9})?", "^[A-F0-9]{4}(-[a-z ]{3,9})?$"},
        {SL_GRAMMAR_CHOICE, "[\"yes\", \"no\", \"not \xe2\x82\xac\"]", "^(yes|no|not \xe2\x82\xac)$"},
        {SL_GRAMMAR_CHOICE, "[\"\"]", "^$"},
        {SL_GRAMMAR_JSON_SCHEMA, "{\"type\": \"integer\", \"minimum\": 7, \"maximum\": 1200}", "^[0-9]+$"},
    };
    open_all(1);
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        sl_grammar *g = grammar_of(rows[k].kind, rows[k].text);
        for (int i = 0; i < 6; i++) {
            const sl_generation o = random_options(g);
            const answer a = say(&o, random_prompt());
            CHECK_INT(a.of.stop, SL_STOP_END);
            if (!matches(rows[k].pattern, a.text)) FAIL("\"%s\" does not match %s", a.text, rows[k].pattern);
        }
        sl_grammar_free(g);
    }
    sl_grammar *g;
    CHECK_OK(sl_grammar_new(SL_GRAMMAR_JSON_OBJECT, NULL, 0, &g, &err), err);
    for (int i = 0, n_whole = 0; i < 6 || !n_whole; i++) { // an object of any depth seldom ends
        sl_generation o = random_options(g);
        o.max_tokens = 300;
        const answer a = say(&o, random_prompt());
        json_t *v = json_loads(a.text, JSON_ALLOW_NUL, NULL);
        CHECK(a.text[0] == '{' && (a.of.stop == SL_STOP_END) == (v != NULL));
        CHECK(a.of.stop == SL_STOP_END || a.of.stop == SL_STOP_LENGTH);
        n_whole += v != NULL;
        json_decref(v);
        CHECK(i < 400);
    }
    sl_grammar_free(g), close_all();
}

// ---- where an answer ends ----

// max_tokens and stop strings cut the answer that comes without them.
static void cuts(void) {
    open_all(1);
    sl_grammar *g = grammar_of(SL_GRAMMAR_JSON_SCHEMA, document_schema);
    for (int i = 0; i < ROUNDS; i++) {
        sl_generation o = random_options(g);
        char prompt[30];
        strcpy(prompt, random_prompt());
        const answer whole = say(&o, prompt);
        int n = whole.of.n_generated;
        o.max_tokens = 1 + test_below(n + 2);
        const answer cut = say(&o, prompt);
        CHECK(cut.n <= whole.n && !memcmp(cut.text, whole.text, cut.n - (cut.n > 3 ? 3 : cut.n))); // half a character: U+FFFD
        CHECK_INT(cut.of.stop, o.max_tokens < n ? SL_STOP_LENGTH : SL_STOP_END);
        CHECK_INT(cut.of.n_generated, o.max_tokens < n ? o.max_tokens : n);
        const char *stops[] = {"\"a", "]"};
        const char *first = strstr(whole.text, stops[0]);
        o.stop = stops, o.n_stop = 2, o.max_tokens = 0;
        const answer stopped = say(&o, prompt);
        CHECK_INT(stopped.of.stop, SL_STOP_STRING);
        CHECK(first && !memcmp(stopped.text, whole.text, stopped.n) && whole.text + stopped.n <= first);
    }
    sl_grammar_free(g), close_all();
}

// An end token comes only where the text is complete, and ends it there.
static void ends(void) {
    open_all(1);
    sl_grammar *three = grammar_of(SL_GRAMMAR_GBNF, "root ::= \"aaa\" [a-b]*"), *row = grammar_of(SL_GRAMMAR_REGEX, "a*");
    const sl_logit_bias likely[] = {{1009, 100}, {ID_A, 90}}, no_end[] = {{1009, -INFINITY}, {1012, -INFINITY}};
    sl_generation o = random_options(three);
    o.sampling = sl_sampling_default();
    o.sampling.bias = likely, o.sampling.n_bias = 2;
    answer a = say(&o, "The");
    CHECK_STR(a.text, "aaa");
    CHECK(a.of.stop == SL_STOP_END && a.of.n_generated == 3);
    o.grammar = row;
    a = say(&o, "The");
    CHECK(a.of.stop == SL_STOP_END && a.n == 0);
    o.sampling.bias = no_end, o.max_tokens = 9;
    a = say(&o, "The");
    CHECK(a.of.stop == SL_STOP_LENGTH && a.n >= 9 && strspn(a.text, "a") == a.n);
    // The caller's end token, a letter that the grammar would allow, is an end only where the text is complete.
    sl_session *session;
    sl_stream *stream;
    const sl_logit_bias both[] = {{'b', 100}, {ID_A, 90}};
    o.sampling.bias = both, o.grammar = three;
    CHECK_OK(sl_session_new(engine, 1, &session, &err), err);
    CHECK_OK(sl_prefill(session, (const int32_t[]){1, 2}, 2, NULL, &err), err);
    CHECK_OK(sl_stream_new(session, &o, &stream, &err), err);
    sl_stream_set_end(stream, 'b');
    CHECK_OK(sl_stream_begin(stream, 0, &err), err);
    while (sl_stream_is_running(stream)) CHECK_OK(sl_streams_step(&stream, 1, &err), err);
    CHECK(sl_stream_result(stream).stop == SL_STOP_END && sl_stream_result(stream).n_generated == 3);
    sl_stream_free(stream), sl_session_free(session);
    sl_grammar_free(three), sl_grammar_free(row), close_all();
}

// ---- where a grammar begins ----

static void after(void) {
    static const struct {
        int32_t id;                         // the id of the first token
        const char *after, *choices, *text; // NULL: an error
    } rows[] = {
        {DOT_LINE, ".\n", "[\"yes\"]", ".\nyes"},
        {DOT_LINE, ".", "[\"yes\"]", ".\nyes"},
        {DOT_LINE, ".", "[\"\\nyes\"]", ".\nyes"},
        {DOT_LINE, ".", "[\"\\n\"]", ".\n"},
        {1013, "<|reserved_special_token_0|>", "[\"yes\"]", "yes"},
        {DOT_LINE, "\n", "[\"no\"]", ".\nno"},
        {ID_A, "aaa", "[\"yes\"]", "aaayes"},
    };
    open_all(1);
    sl_generation o = random_options(NULL);
    o.sampling = sl_sampling_default();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const sl_logit_bias bias = {rows[i].id, 100};
        sl_grammar *g = grammar_of(SL_GRAMMAR_CHOICE, rows[i].choices);
        o.sampling.bias = &bias, o.sampling.n_bias = 1, o.grammar = g, o.grammar_after = rows[i].after;
        const answer a = say(&o, "The");
        CHECK_STR(a.text, rows[i].text);
        CHECK_INT(a.of.stop, SL_STOP_END);
        sl_grammar_free(g);
    }
    // The text before is the text without a grammar; the grammar goes on with the rest of the token that ends `after`.
    sl_grammar *g = grammar_of(SL_GRAMMAR_REGEX, "[a-zA-Z ,.\\n]{0,12}<[0-9]{2}>");
    for (int i = 0; i < ROUNDS; i++) {
        sl_generation plain = random_options(NULL);
        plain.max_tokens = 24;
        char prompt[30], marker[8] = "";
        strcpy(prompt, random_prompt());
        const answer free_text = say(&plain, prompt);
        size_t n = 1 + (size_t)test_below(5), at = free_text.n > n ? (size_t)test_below((int)(free_text.n - n)) : 0;
        memcpy(marker, free_text.text + at, n);
        if (free_text.n <= n || strspn(free_text.text, "abcdefghijklmnopqrstuvwxyz ,.ABCDEFGHIJKLMNOPQRSTUVWXYZ") < free_text.n)
            continue;
        const char *found = strstr(free_text.text, marker) + n;
        o = plain;
        o.grammar = g, o.grammar_after = marker, o.max_tokens = 0;
        const answer a = say(&o, prompt);
        CHECK(!memcmp(a.text, free_text.text, (size_t)(found - free_text.text)));
        CHECK(matches("^[a-zA-Z ,.\n]{0,12}<[0-9]{2}>$", a.text + (found - free_text.text)));
    }
    const sl_logit_bias bias = {DOT_LINE, 100};
    answer a;
    o = random_options(g);
    o.sampling.bias = &bias, o.sampling.n_bias = 1;
    sl_grammar *yes = grammar_of(SL_GRAMMAR_CHOICE, "[\".yes\"]");
    int32_t *ids;
    int n_ids;
    CHECK_OK(sl_model_tokenize(model, " the", 4, 0, &ids, &n_ids, &err), err);
    CHECK_INT(n_ids, 1);
    const sl_logit_bias the = {ids[0], 100};
    o.sampling.bias = &the, o.grammar = yes, o.grammar_after = " t";
    CHECK_ERR(fails(&o, &a), err, SL_ERR_ARG, "grammar_after: the token that ends it goes on with \"he\"");
    sl_free(ids);
    sl_grammar_free(yes), sl_grammar_free(g), close_all();
}

// ---- streams side by side ----

enum { STREAMS = 6, DEAD = 2, AMBIGUOUS = 3 };

typedef struct lane {
    sl_session *session;
    sl_stream *stream;
    sl_generation o;
    int32_t ids[400];
    int n;
    uint64_t hash;
    sl_stop stop;
} lane;

static void begin(lane *l, int i) {
    int32_t *ids = test_ids(20 + i, sl_model_n_vocab(model), test_seed + (uint64_t)i);
    CHECK_OK(sl_session_new(engine, l->o.sequence, &l->session, &err), err);
    CHECK_OK(sl_prefill(l->session, ids, 20 + i, NULL, &err), err);
    CHECK_OK(sl_stream_new(l->session, &l->o, &l->stream, &err), err);
    CHECK_OK(sl_stream_begin(l->stream, 0, &err), err);
    free(ids);
}

static void end(lane *l) {
    const int32_t *ids = sl_stream_ids(l->stream, &l->n);
    CHECK(l->n < 400);
    memcpy(l->ids, ids, (size_t)l->n * sizeof *ids);
    l->hash = sl_logits_hash(sl_session_last_logits(l->session), sl_model_n_vocab(model));
    l->stop = sl_stream_result(l->stream).stop;
    sl_stream_free(l->stream), sl_session_free(l->session);
}

// Streams with and without a grammar give what each gives alone. One has no token left and one is too ambiguous: these end
// alone.
static void side_by_side(void) {
    open_all(STREAMS);
    sl_grammar *g = grammar_of(SL_GRAMMAR_JSON_SCHEMA, document_schema), *row = grammar_of(SL_GRAMMAR_REGEX, "x?[a-z ]{3}qqq");
    sl_grammar *hard =
        grammar_of(SL_GRAMMAR_GBNF, "root ::= \"qx\" ([e]? [t]? [a]? [o]? [n]? [i]? [s]? [h]? [r]? [ ]? [d]? [l]?){1500}");
    const sl_grammar *of[STREAMS] = {g, NULL, row, hard, g, NULL};
    const sl_logit_bias no_q[] = {{'q', -INFINITY}};
    lane lanes[STREAMS], alone[STREAMS];
    sl_stream *streams[STREAMS];
    for (int i = 0; i < STREAMS; i++) {
        lanes[i] = (lane){.o = random_options(of[i])};
        lanes[i].o.max_tokens = 120;
        if (i == DEAD) lanes[i].o.sampling.bias = no_q, lanes[i].o.sampling.n_bias = 1;
        alone[i] = lanes[i];
        begin(&alone[i], i);
        while (sl_stream_is_running(alone[i].stream)) CHECK_OK(sl_streams_step(&alone[i].stream, 1, &err), err);
        end(&alone[i]);
    }
    for (int i = 0; i < STREAMS; i++) begin(&lanes[i], i), streams[i] = lanes[i].stream;
    for (int is_more = 1; is_more;) {
        CHECK_OK(sl_streams_step(streams, STREAMS, &err), err);
        is_more = 0;
        for (int i = 0; i < STREAMS; i++) is_more |= sl_stream_is_running(streams[i]);
    }
    const sl_error *dead = sl_stream_error(streams[DEAD]), *ambiguous = sl_stream_error(streams[AMBIGUOUS]);
    CHECK(dead->code == SL_ERR_ARG && strstr(dead->message, "grammar: the logit biases leave no token that it allows"));
    CHECK(ambiguous->code == SL_ERR_UNSUPPORTED && strstr(ambiguous->message, "too ambiguous"));
    CHECK_INT(sl_session_n_tokens(lanes[DEAD].session), 20 + DEAD + sl_stream_result(streams[DEAD]).n_generated);
    for (int i = 0; i < STREAMS; i++) {
        end(&lanes[i]);
        CHECK((lanes[i].stop == SL_STOP_ERROR) == (i == DEAD || i == AMBIGUOUS));
        CHECK(lanes[i].stop == alone[i].stop && lanes[i].n == alone[i].n && lanes[i].hash == alone[i].hash);
        CHECK(!memcmp(lanes[i].ids, alone[i].ids, (size_t)alone[i].n * sizeof *alone[i].ids));
    }
    sl_grammar_free(g), sl_grammar_free(row), sl_grammar_free(hard), close_all();
}

static void side_by_side_on_gpu(void) {
    on_gpu(side_by_side);
}

// ---- matchers and options ----

static int n_matchers(void) {
    int n = 0;
    for (const sl_kept_matcher *k = engine->matchers.newest; k; k = k->older) n++;
    return n;
}

// Equal grammars share a matcher; some stay without users; objects can be freed in any order.
static void kept(void) {
    open_all(1);
    sl_stream *streams[30];
    sl_session *session;
    CHECK_OK(sl_session_new(engine, 1, &session, &err), err);
    for (int i = 0; i < 30; i++) {
        char text[40];
        snprintf(text, sizeof text, "[\"yes\", \"%c\"]", 'a' + i / 2);
        sl_grammar *g = grammar_of(SL_GRAMMAR_CHOICE, text);
        const sl_generation o = random_options(g);
        CHECK_OK(sl_stream_new(session, &o, &streams[i], &err), err);
        sl_grammar_free(g); // the stream uses it
    }
    CHECK_INT(n_matchers(), 15);
    for (int i = 0; i < 29; i++) sl_stream_free(streams[i]);
    CHECK_INT(n_matchers(), 9); // 8 without users
    sl_session_free(session), close_all();
    sl_stream_free(streams[29]); // the last user of all
}

static void refusals(void) {
    sl_grammar *g = grammar_of(SL_GRAMMAR_REGEX, "a"), *none;
    open_all(1);
    sl_session *session;
    sl_stream *stream;
    CHECK_OK(sl_session_new(engine, 1, &session, &err), err);
    sl_generation o = random_options(NULL);
    o.grammar_after = "x";
    CHECK_ERR(sl_stream_new(session, &o, &stream, &err), err, SL_ERR_ARG, "grammar_after: expected a grammar");
    o.grammar = g, o.grammar_after = "";
    CHECK_ERR(sl_stream_new(session, &o, &stream, &err), err, SL_ERR_ARG, "grammar_after: the text is empty");
    sl_session_free(session), close_all();
    model_fixture r = model_fixture_load("models/tiny", "dense", (sl_engine_options){.device = "cpu", .n_ctx = 512});
    session = model_fixture_session(&r, 1);
    o.grammar_after = NULL;
    CHECK_ERR(sl_stream_new(session, &o, &stream, &err), err, SL_ERR_ARG, "grammar: expected none");
    sl_session_free(session), model_fixture_close(&r);
    CHECK_ERR(sl_grammar_new((sl_grammar_kind)9, "a", 1, &none, &err), err, SL_ERR_ARG, "a grammar of kind 9");
    CHECK_ERR(sl_grammar_new(SL_GRAMMAR_JSON_SCHEMA, "{\n\"a\"}", 6, &none, &err), err, SL_ERR_FORMAT,
              "schema: line 2, column 4");
    CHECK_ERR(sl_grammar_new(SL_GRAMMAR_CHOICE, "{}", 2, &none, &err), err, SL_ERR_FORMAT, "expected a list of strings");
    CHECK_ERR(sl_grammar_new(SL_GRAMMAR_GBNF, "root ::=\n (", 11, &none, &err), err, SL_ERR_FORMAT, "line 2, column 3");
    CHECK_ERR(sl_grammar_new(SL_GRAMMAR_REGEX, "a(?=b)", 6, &none, &err), err, SL_ERR_FORMAT, "regex: column");
    sl_grammar_free(g);
}

static const test_case cases[] = {
    {"schemas", NEEDS_NOTHING, schemas},
    {"kinds", NEEDS_NOTHING, kinds},
    {"cuts", NEEDS_NOTHING, cuts},
    {"ends", NEEDS_NOTHING, ends},
    {"after", NEEDS_NOTHING, after},
    {"side-by-side", NEEDS_NOTHING, side_by_side},
    {"schemas-gpu", NEEDS_GPU, schemas_on_gpu},
    {"cpu-and-gpu", NEEDS_GPU, cpu_and_gpu},
    {"side-by-side-gpu", NEEDS_GPU, side_by_side_on_gpu},
    {"kept", NEEDS_NOTHING, kept},
    {"refusals", NEEDS_NOTHING, refusals},
    {0},
};
const test_suite suite_guided = {"guided", cases};
