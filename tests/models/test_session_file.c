// tests/models/test_session_file.c - sl_session_save and sl_session_load: a loaded session continues with the bits of the saved
// one, and every fault of a file is one error.
#include "engine/engine.h"
#include "tests/support/models.h"
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static sl_error err;

static const char *const methods[] = {
    "dense", "quest:tokens=64", "santa-prop:S=16", "santa-pps:S=16:budget=carried", "santa-is:proposal=int8:epsilon=0.3",
};
enum { N_METHODS = sizeof methods / sizeof *methods, MAX_IDS = 1024, STEPS = 4 };
static const int lengths[] = {1, 255, 256, 257, 700};
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };

static model_fixture open_model(const char *dir, const char *attn, const char *device, int n_ctx) {
    return model_fixture_load(dir, attn, (sl_engine_options){.n_ctx = n_ctx, .n_sequences = 2, .device = device, .seed = 3});
}

static const char *path_of(const char *name) {
    static char path[300];
    snprintf(path, sizeof path, "%s/%s", test_tmp(), name);
    return path;
}

// Writes the session to the file `name`.
static void save(const sl_session *s, const int32_t *ids, const char *name) {
    CHECK_OK(sl_session_save(s, ids, path_of(name), NULL, &err), err);
}

// Loads a file, and checks that it has these ids.
static sl_session *load(model_fixture *r, const int32_t *expected, int n_expected, const char *name) {
    sl_session *s;
    int32_t *ids;
    int n;
    CHECK_OK(sl_session_load(r->engine, path_of(name), &s, &ids, &n, NULL, &err), err);
    CHECK_INT(n, n_expected);
    CHECK(!memcmp(ids, expected, (size_t)n * sizeof *ids));
    CHECK_INT(sl_session_n_tokens(s), n);
    sl_free(ids);
    return s;
}

static int equal_logits(const sl_session *a, const sl_session *b, int n_vocab) {
    return !memcmp(sl_session_logits(a, NULL), sl_session_logits(b, NULL), (size_t)n_vocab * sizeof(float));
}

// Appends the likeliest token, and adds it to ids [*n].
static void step(sl_session *s, int n_vocab, int32_t *ids, int *n) {
    ids[*n] = test_argmax(sl_session_logits(s, NULL), n_vocab);
    CHECK_OK(sl_decode(&s, 1, &ids[(*n)++], &err), err);
}

// ---- equal bits ----

// Saves a session after `before` steps. It and the loaded one take STEPS more.
static void check_continues(const char *attn, const char *device, int length, int before) {
    model_fixture r = open_model("models/tiny", attn, device, MAX_IDS),
                  other = open_model("models/tiny", attn, device, MAX_IDS);
    int32_t *prompt = test_ids(length, r.n_vocab, test_seed), ids[MAX_IDS], again[MAX_IDS];
    int n = length;
    sl_session *s = model_fixture_session(&r, 5);
    memcpy(ids, prompt, (size_t)n * sizeof *ids);
    CHECK_OK(sl_prefill(s, ids, n, NULL, &err), err);
    for (int i = 0; i < before; i++) step(s, r.n_vocab, ids, &n);
    save(s, ids, "session");
    sl_session *loaded = load(&other, ids, n, "session");
    CHECK_INT(sl_session_sequence(loaded), 5);
    CHECK_INT(sl_session_n_prefilled(loaded), length);
    CHECK(equal_logits(s, loaded, r.n_vocab));
    memcpy(again, ids, (size_t)n * sizeof *ids);
    for (int i = 0, m = n; i < STEPS; i++) {
        step(s, r.n_vocab, ids, &n);
        step(loaded, r.n_vocab, again, &m);
        if (!equal_logits(s, loaded, r.n_vocab))
            FAIL("%s, %d tokens, %d steps: step %d after the load has other bits", attn, length, before, i);
    }
    sl_session_free(s), sl_session_free(loaded);
    model_fixture_close(&r), model_fixture_close(&other);
    free(prompt);
}

static void continues_on(const char *device) {
    for (int i = 0; i < N_LENGTHS; i++) check_continues("dense", device, lengths[i], i % 2 ? 3 : 0);
    for (int m = 0; m < N_METHODS; m++) check_continues(methods[m], device, 300, 3);
}

static void continues(void) {
    continues_on("cpu");
}

static void continues_on_gpu(void) {
    continues_on("cuda");
}

// A load into an engine with another method begins with the bits of a fork.
static void other_method(void) {
    model_fixture r = open_model("models/tiny", "santa-pps:S=16:budget=carried", "cpu", MAX_IDS),
                  other = open_model("models/tiny", "santa-is:S=16:budget=carried", "cpu", MAX_IDS);
    int32_t *prompt = test_ids(300, r.n_vocab, test_seed), ids[MAX_IDS];
    int n = 300;
    memcpy(ids, prompt, (size_t)n * sizeof *ids);
    sl_session *s = model_fixture_session(&r, 0), *fork;
    CHECK_OK(sl_prefill(s, ids, n, NULL, &err), err);
    for (int i = 0; i < 3; i++) step(s, r.n_vocab, ids, &n);
    save(s, ids, "session");
    sl_session *loaded = load(&other, ids, n, "session");
    CHECK_OK(sl_engine_set_attention(r.engine, "santa-is:S=16:budget=carried", &err), err);
    CHECK_OK(sl_session_fork(s, n, 0, &fork, &err), err);
    CHECK_OK(sl_decode(&fork, 1, &ids[0], &err), err);
    CHECK_OK(sl_decode(&loaded, 1, &ids[0], &err), err);
    CHECK(equal_logits(fork, loaded, r.n_vocab));
    sl_session_free(s), sl_session_free(fork), sl_session_free(loaded);
    model_fixture_close(&r), model_fixture_close(&other);
    free(prompt);
}

// A session that was cut has no logits; so has the loaded one. A file replaces an older file.
static void cut(void) {
    model_fixture r = open_model("models/tiny", "dense", "cpu", MAX_IDS);
    int32_t *ids = test_ids(300, r.n_vocab, test_seed);
    sl_session *s = model_fixture_session(&r, 0);
    CHECK_OK(sl_prefill(s, ids, 300, NULL, &err), err);
    save(s, ids, "session");
    CHECK_OK(sl_session_truncate(s, 256, &err), err);
    save(s, ids, "session");
    sl_session *loaded = load(&r, ids, 256, "session");
    CHECK(!sl_session_logits(loaded, NULL));
    CHECK_OK(sl_prefill(loaded, ids + 256, 44, NULL, &err), err);
    CHECK_OK(sl_prefill(s, ids + 256, 44, NULL, &err), err);
    CHECK(equal_logits(s, loaded, r.n_vocab));
    sl_session_free(s), sl_session_free(loaded);
    model_fixture_close(&r);
    free(ids);
}

// ---- segments of sparse prefills ----

static void set_prefill(model_fixture *r, const char *attn) {
    sl_attn_spec spec;
    sl_attn_plan plan;
    CHECK_OK(sl_attn_parse(attn, &spec, &err), err);
    CHECK_OK(sl_attn_plan_init(&plan, sl_model_config(r->model)->n_layers, &spec, &err), err);
    CHECK_OK(sl_engine_set_prefill(r->engine, &plan, 256, &err), err);
    sl_attn_plan_free(&plan);
}

// Segments of the engine's own methods can serve a later prompt; those of other methods cannot.
static void segments(void) {
    static const struct {
        const char *attn;
        int reusable; // of 600 tokens, for a prompt of 900
    } engines[] = {{"streaming:window=64", 512}, {"streaming:window=64:sink=8", 0}, {"dense", 0}};
    model_fixture r = open_model("models/tiny", "dense", "cpu", MAX_IDS);
    int32_t *ids = test_ids(600, r.n_vocab, test_seed);
    set_prefill(&r, "streaming:window=64");
    sl_session *s = model_fixture_session(&r, 0);
    CHECK_OK(sl_prefill(s, ids, 600, NULL, &err), err);
    CHECK_INT(sl_session_reusable(s, 600, 900), 512);
    save(s, ids, "session");
    for (int i = 0; i < 3; i++) {
        model_fixture other = open_model("models/tiny", "dense", "cpu", MAX_IDS);
        set_prefill(&other, engines[i].attn);
        sl_session *loaded = load(&other, ids, 600, "session");
        CHECK_INT(sl_session_reusable(loaded, 600, 900), engines[i].reusable);
        CHECK_INT(sl_session_reusable(loaded, 600, 0), 600);
        sl_session_free(loaded);
        model_fixture_close(&other);
    }
    sl_session_free(s);
    model_fixture_close(&r);
    free(ids);
}

// ---- faults ----

static char *read_whole(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    CHECK(f && !fseek(f, 0, SEEK_END));
    *n = (size_t)ftell(f);
    char *data = malloc(*n);
    rewind(f);
    CHECK(data && fread(data, 1, *n, f) == *n);
    fclose(f);
    return data;
}

static void write_whole(const char *path, const char *data, size_t n) {
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(data, 1, n, f) == n);
    CHECK(!fclose(f));
}

static void check_refused(model_fixture *r, const char *name, int code, const char *part) {
    sl_session *s = (sl_session *)r;
    int32_t *ids = NULL;
    int n = 77, rc = sl_session_load(r->engine, path_of(name), &s, &ids, &n, NULL, &err);
    if (rc != code || !strstr(err.message, part))
        FAIL("returned %d: %s; expected %d: %s", rc, rc ? err.message : "", code, part);
    CHECK(s == (sl_session *)r && !ids && n == 77);
}

// A file with `from` replaced by `to`, which has the same length, in its header.
static void damaged(void) {
    static const struct {
        const char *from, *to;
        int code;
        const char *part;
    } edits[] = {
        {"sleigh-session-2", "sleigh-session-1", SL_ERR_ARG, "metadata format is sleigh-session-1, expected sleigh-session-2"},
        {"\"format\"", "\"fxrmat\"", SL_ERR_FORMAT, "metadata format is missing, expected sleigh-session-2"},
        {"MLP 768", "MLP 769", SL_ERR_ARG, "metadata shape is llama, 4 layers, hidden 256, MLP 769"},
        {"head_dim 128", "head_dim 192", SL_ERR_ARG, "metadata shape is llama, 4 layers"},
        {"\"weights\":\"fnv1a:", "\"weights\":\"fnv1b:", SL_ERR_ARG, "metadata weights is fnv1b:"},
        {"\"rope\":\"theta 5", "\"rope\":\"theta 4", SL_ERR_ARG, "metadata rope is theta 400000, llama3"},
        {"\"head\":\"own\"", "\"head\":\"wno\"", SL_ERR_ARG, "metadata head is wno, expected own"},
        {"\"head\":\"own\"", "\"hxad\":\"own\"", SL_ERR_FORMAT, "metadata head is missing, expected own"},
        {"\"sequence\":\"5\"", "\"sequence\":\"x\"", SL_ERR_FORMAT, "metadata sequence is x, expected a number"},
        {"\"n_prefilled\":\"300\"", "\"n_prefilled\":\"301\"", SL_ERR_FORMAT, "metadata n_prefilled is 301"},
        {"\"ids\"", "\"xds\"", SL_ERR_FORMAT, "expected a tensor ids"},
        {"\"k\"", "\"x\"", SL_ERR_FORMAT, "tensor k is missing"},
        {"\"logits\":{\"dtype\":\"F32\"", "\"logits\":{\"dtype\":\"I32\"", SL_ERR_FORMAT,
         "tensor logits is I32 [1024], expected F32"},
        {"[4,2,300,128]", "[4,2,150,256]", SL_ERR_FORMAT, "tensor k is BF16 [4, 2, 150, 256], expected BF16 [4, 2, 300, 128]"},
        {"\"segments\":{\"dtype\":\"I32\",\"shape\":[2,3]", "\"segments\":{\"dtype\":\"I32\",\"shape\":[3,2]", SL_ERR_FORMAT,
         "tensor segments is I32 [3, 2], expected I32 [3, 3]"},
    };
    model_fixture r = open_model("models/tiny", "dense", "cpu", MAX_IDS);
    int32_t *ids = test_ids(300, r.n_vocab, test_seed);
    set_prefill(&r, "streaming:window=64");
    sl_session *s = model_fixture_session(&r, 5);
    CHECK_OK(sl_prefill(s, ids, 300, NULL, &err), err);
    save(s, ids, "session");
    size_t n;
    char *good = read_whole(path_of("session"), &n);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        char *bad = malloc(n);
        memcpy(bad, good, n);
        char *at = memmem(bad, n, edits[i].from, strlen(edits[i].from));
        CHECK(at && strlen(edits[i].from) == strlen(edits[i].to));
        memcpy(at, edits[i].to, strlen(edits[i].to));
        write_whole(path_of("bad"), bad, n);
        check_refused(&r, "bad", edits[i].code, edits[i].part);
        free(bad);
    }
    write_whole(path_of("bad"), good, n - 1);
    check_refused(&r, "bad", SL_ERR_FORMAT, "truncated?");
    write_whole(path_of("bad"), good, 0);
    check_refused(&r, "bad", SL_ERR_FORMAT, "the file is empty");
    check_refused(&r, "missing", SL_ERR_IO, "No such file");
    int32_t *found = memmem(good, n, ids, 300 * sizeof *ids);
    CHECK(found != NULL);
    found[7] = 1 << 20;
    write_whole(path_of("bad"), good, n);
    check_refused(&r, "bad", SL_ERR_FORMAT, "tensor ids: token 7 is 1048576, expected 0 to 1023");
    free(good), free(ids);
    sl_session_free(s);
    model_fixture_close(&r);
}

static void refused(void) {
    model_fixture r = open_model("models/tiny", "dense", "cpu", MAX_IDS),
                  small = open_model("models/tiny", "dense", "cpu", 256),
                  prose = open_model("models/prose", "dense", "cpu", MAX_IDS);
    int32_t *ids = test_ids(300, r.n_vocab, test_seed);
    sl_session *s = model_fixture_session(&r, 0);
    CHECK_INT(sl_session_save(s, ids, path_of("session"), NULL, &err), SL_ERR_ARG);
    CHECK(strstr(err.message, "empty") && access(path_of("session"), F_OK));
    CHECK_OK(sl_prefill(s, ids, 300, NULL, &err), err);
    CHECK_INT(sl_session_save(s, ids, path_of("none/session"), NULL, &err), SL_ERR_IO);
    save(s, ids, "session");
    check_refused(&small, "session", SL_ERR_CONTEXT, "the session has 300 tokens, and n_ctx is 256");
    check_refused(&prose, "session", SL_ERR_ARG, "metadata shape is llama");
    size_t before, after;
    free(read_whole(path_of("session"), &before));
    ids[3] = -1;
    CHECK_INT(sl_session_save(s, ids, path_of("session"), NULL, &err), SL_ERR_ARG);
    free(read_whole(path_of("session"), &after)); // the older file stays
    CHECK_INT((long long)before, (long long)after);
    sl_session_free(s);
    model_fixture_close(&r), model_fixture_close(&small), model_fixture_close(&prose);
    free(ids);
}

static const test_case cases[] = {
    {"continues", 0, continues},       {"continues-on-gpu", NEEDS_GPU, continues_on_gpu},
    {"other-method", 0, other_method}, {"cut", 0, cut},
    {"segments", 0, segments},         {"damaged", 0, damaged},
    {"refused", 0, refused},           {0},
};
const test_suite suite_session_file = {"session_file", cases};
