// tests/models/test_session_file.c - sl_session_save and sl_session_load: a loaded session continues with the bits of the saved
// one, and every fault of a file is one error.
#include "engine/engine_internal.h"
#include "tests/support/models.h"
#include "tests/support/run_cli.h"
#include "tests/support/session_bytes.h"

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
static void save(const sl_session *s, const char *name) {
    CHECK_OK(sl_session_save(s, path_of(name), NULL, &err), err);
}

// Loads a file, and checks that it has these ids.
static sl_session *load(model_fixture *r, const int32_t *expected, int n_expected, const char *name) {
    sl_session *s;
    CHECK_OK(sl_session_load(r->engine, path_of(name), &s, NULL, &err), err);
    CHECK_INT(sl_session_n_tokens(s), n_expected);
    CHECK(!memcmp(sl_session_ids(s), expected, (size_t)n_expected * sizeof *expected));
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

static void set_dense_layer(model_fixture *r, const char *attn) {
    sl_attn_spec spec;
    sl_attn_plan plan;
    CHECK_OK(sl_attn_parse(attn, &spec, &err), err);
    CHECK_OK(sl_attn_plan_init(&plan, sl_model_config(r->model)->n_layers, &spec, &err), err);
    CHECK_OK(sl_attn_plan_set(&plan, "attn_layer", "1=dense", &err), err);
    CHECK_OK(sl_engine_set_plan(r->engine, &plan, &err), err);
    sl_attn_plan_free(&plan);
}

// Saves a session after `before` steps. It and the loaded one take STEPS more. Layer 1 is dense, which has no state.
static void check_continues(const char *attn, const char *device, int length, int before) {
    model_fixture r = open_model("models/tiny", attn, device, MAX_IDS),
                  other = open_model("models/tiny", attn, device, MAX_IDS);
    set_dense_layer(&r, attn), set_dense_layer(&other, attn);
    int32_t *prompt = test_ids(length, r.n_vocab, test_seed), ids[MAX_IDS], again[MAX_IDS];
    int n = length;
    sl_session *s = model_fixture_session(&r, 5);
    memcpy(ids, prompt, (size_t)n * sizeof *ids);
    CHECK_OK(sl_prefill(s, ids, n, NULL, &err), err);
    for (int i = 0; i < before; i++) step(s, r.n_vocab, ids, &n);
    save(s, "session");
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

// ---- segments of sparse prefills ----

static void set_prefill(model_fixture *r, const char *attn) {
    sl_attn_spec spec;
    sl_attn_plan plan;
    CHECK_OK(sl_attn_parse(attn, &spec, &err), err);
    CHECK_OK(sl_attn_plan_init(&plan, sl_model_config(r->model)->n_layers, &spec, &err), err);
    CHECK_OK(sl_engine_set_prefill(r->engine, &plan, 256, &err), err);
    sl_attn_plan_free(&plan);
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
    int rc = sl_session_load(r->engine, path_of(name), &s, NULL, &err);
    if (rc != code || !strstr(err.message, part))
        FAIL("returned %d: %s; expected %d: %s", rc, rc ? err.message : "", code, part);
    CHECK(s == (sl_session *)r);
}

// A file with `from` replaced by `to`, which has the same length, in its header.
static void damaged(void) {
    static const struct {
        const char *from, *to;
        int code;
        const char *part;
    } edits[] = {
        {"sleigh-session-3", "sleigh-session-1", SL_ERR_ARG, "metadata format is sleigh-session-1, expected sleigh-session-3"},
        {"\"format\"", "\"fxrmat\"", SL_ERR_FORMAT, "metadata format is missing, expected sleigh-session-3"},
        {"MLP 768", "MLP 769", SL_ERR_ARG,
         "metadata shape is llama, 4 layers, hidden 256, MLP 769, 8 heads, 2 KV heads, head_dim 128, vocabulary 1024, "
         "norm_eps "},
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
    save(s, "session");
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
    char *of_k = memmem(good, n, "\"k\":{", 5), *of_v = memmem(good, n, "\"v\":{", 5);
    of_k[1] = 'v', of_v[1] = 'k';
    write_whole(path_of("bad"), good, n);
    check_refused(&r, "bad", SL_ERR_FORMAT, "tensor v does not follow tensor k");
    of_k[1] = 'k', of_v[1] = 'v';
    int32_t *found = memmem(good, n, ids, 300 * sizeof *ids);
    CHECK(found != NULL);
    uint64_t n_header, seed = test_seed;
    memcpy(&n_header, good, 8);
    for (int i = 0; i < 30; i++) { // any bit of K, V, logits or segments
        size_t at = 8 + n_header + (size_t)((double)(n - 8 - n_header) * test_uniform(&seed));
        if (i == 0) at = n - 1;
        if (good + at >= (char *)found && good + at < (char *)(found + 300)) continue;
        good[at] ^= (char)(1 << i % 8);
        write_whole(path_of("bad"), good, n);
        check_refused(&r, "bad", SL_ERR_FORMAT, ": the file is damaged");
        good[at] ^= (char)(1 << i % 8);
    }
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
    CHECK_INT(sl_session_save(s, path_of("session"), NULL, &err), SL_ERR_ARG);
    CHECK(strstr(err.message, "empty") && access(path_of("session"), F_OK));
    CHECK_OK(sl_prefill(s, ids, 300, NULL, &err), err);
    CHECK_INT(sl_session_save(s, path_of("none/session"), NULL, &err), SL_ERR_IO);
    save(s, "session");
    check_refused(&small, "session", SL_ERR_CONTEXT, "the session has 300 tokens, and n_ctx is 256");
    check_refused(&prose, "session", SL_ERR_ARG, "metadata shape is llama");
    size_t before, after;
    free(read_whole(path_of("session"), &before));
    CHECK_OK(sl_session_truncate(s, 0, &err), err);
    CHECK_OK(sl_session_fill(s, 9, &err), err); // rows without tokens
    CHECK_INT(sl_session_save(s, path_of("session"), NULL, &err), SL_ERR_ARG);
    free(read_whole(path_of("session"), &after)); // the older file stays
    CHECK_INT((long long)before, (long long)after);
    sl_session_free(s);
    model_fixture_close(&r), model_fixture_close(&small), model_fixture_close(&prose);
    free(ids);
}

// ---- very small models ----

enum { SMALL_CTX = 300 };

// An engine of a model of random weights.
static sl_engine *small_engine(const char *attn, int n_ctx, sl_log log) {
    static const char config[] =
        "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":1,\"num_attention_heads\":2,"
        "\"num_key_value_heads\":1,\"head_dim\":32,\"intermediate_size\":32,\"vocab_size\":97,"
        "\"max_position_embeddings\":2048}";
    sl_model *model;
    sl_engine *e;
    spill(in_tmp("config.json"), config, sizeof config - 1);
    CHECK_OK(sl_model_load(test_tmp(), &(sl_model_options){.flags = SL_MODEL_DUMMY}, &model, &err), err);
    CHECK_OK(sl_model_materialise(model, 1, NULL, NULL, &err), err);
    CHECK_OK(sl_engine_new(model,
                           &(sl_engine_options){.n_ctx = n_ctx, .n_threads = 1, .n_sequences = 3, .attn = attn, .log = log}, &e,
                           &err),
             err);
    sl_model_free(model);
    return e;
}

static sl_session *small_session(sl_engine *e, const int32_t *ids, int n) {
    sl_session *s;
    CHECK_OK(sl_session_new(e, 0, &s, &err), err);
    CHECK_OK(sl_prefill(s, ids, n, NULL, &err), err);
    return s;
}

static int try_load(sl_engine *e, const char *name) {
    sl_session *s;
    int rc = sl_session_load(e, path_of(name), &s, NULL, &err);
    if (!rc) sl_session_free(s);
    return rc;
}

// Each field of a config that changes rows or logits is compared, and the context must hold the tokens.
static void other_models(void) {
    const int32_t ids[SMALL_CTX] = {7, 8, 9};
    sl_engine *e = small_engine(NULL, SMALL_CTX, (sl_log){0});
    sl_config *c = (sl_config *)sl_model_config(e->model);
    const sl_config own = *c;
    const struct {
        const char *key;
        int *whole;
        float *real;
    } rows[] = {{"shape", &c->n_layers, NULL}, {"shape", &c->hidden, NULL},     {"shape", &c->n_ffn, NULL},
                {"shape", &c->n_heads, NULL},  {"shape", &c->n_kv_heads, NULL}, {"shape", &c->head_dim, NULL},
                {"shape", &c->n_vocab, NULL},  {"shape", NULL, &c->norm_eps},   {"head", &c->tied, NULL},
                {"rope", NULL, &c->rope_theta}};
    sl_session *s = small_session(e, ids, SMALL_CTX);
    save(s, "session");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char part[40];
        snprintf(part, sizeof part, "metadata %s is ", rows[i].key);
        if (rows[i].whole)
            *rows[i].whole ^= 1;
        else
            *rows[i].real *= 1.0001f;
        CHECK_ERR(try_load(e, "session"), err, SL_ERR_ARG, part);
        *c = own;
    }
    strcpy(c->model_type, "mistral");
    CHECK_ERR(try_load(e, "session"), err, SL_ERR_ARG, "metadata shape is llama, 1 layers");
    *c = own;
    CHECK_OK(try_load(e, "session"), err);
    for (int n_ctx = SMALL_CTX - 1; n_ctx <= SMALL_CTX; n_ctx++) {
        sl_engine *other = small_engine("quest:tokens=64", n_ctx, (sl_log){0});
        CHECK_INT(try_load(other, "session"), n_ctx < SMALL_CTX ? SL_ERR_CONTEXT : 0);
        sl_engine_free(other);
    }
    sl_session_free(s), sl_engine_free(e);
}

// Random numbers in place of the table of segments, against the rule: in order, apart, within the tokens, version 0, -1 or -2.
static void random_segments(void) {
    enum { N = 290, SEGMENTS = 3 };
    static const int32_t likely[] = {-3, -2, -1, 0, 1, 127, 128, 129, 255, 256, 257, N - 1, N, N + 1};
    static const int32_t own[SEGMENTS][3] = {{0, 128, 0}, {128, 256, 0}, {256, N, 0}};
    const int32_t ids[N] = {7, 8, 9};
    uint64_t seed = test_seed;
    int n_good = 0;
    model_fixture r = {.engine = small_engine(NULL, SMALL_CTX, (sl_log){0})};
    sl_attn_plan plan;
    sl_attn_spec spec;
    CHECK_OK(sl_attn_parse("streaming:window=64", &spec, &err), err);
    CHECK_OK(sl_attn_plan_init(&plan, 1, &spec, &err), err);
    CHECK_OK(sl_engine_set_prefill(r.engine, &plan, 128, &err), err);
    sl_attn_plan_free(&plan);
    sl_session *s = small_session(r.engine, ids, N);
    save(s, "session");
    size_t n;
    char *file = read_whole(path_of("session"), &n);
    int32_t *at = memmem(file, n, own, sizeof own);
    CHECK(at != NULL);
    for (int round = 0; round < 300; round++) {
        int32_t table[SEGMENTS][3];
        int is_good = 1, before = 0;
        memcpy(table, own, sizeof own);
        for (int change = (int)(test_uniform(&seed) * 4); change >= 0; change--)
            table[(int)(test_uniform(&seed) * SEGMENTS)][(int)(test_uniform(&seed) * 3)] =
                likely[(size_t)(test_uniform(&seed) * (sizeof likely / sizeof *likely))];
        for (int i = 0; i < SEGMENTS; before = table[i++][1])
            is_good &= table[i][0] >= before && table[i][0] < table[i][1] && table[i][1] <= N &&
                       (table[i][2] == 0 || table[i][2] == -1 || table[i][2] == -2);
        memcpy(at, table, sizeof table);
        seal_session(file, n);
        write_whole(path_of("random"), file, n);
        if (try_load(r.engine, "random") != (is_good ? 0 : SL_ERR_FORMAT))
            FAIL("%d to %d (%d), %d to %d (%d), %d to %d (%d): expected %d", table[0][0], table[0][1], table[0][2], table[1][0],
                 table[1][1], table[1][2], table[2][0], table[2][1], table[2][2], is_good);
        n_good += is_good;
    }
    CHECK(n_good > 10 && n_good < 290);
    free(file);
    sl_session_free(s), sl_engine_free(r.engine);
}

static void count_line(void *ctx, const char *line) {
    *(int *)ctx += strstr(line, "its rows have other bits") != NULL;
}

// The state of a method is of the arithmetic that wrote it: with another one the session continues as a fork, and a line says
// so.
static void other_arithmetic(void) {
    enum { N = 200 };
    const int32_t ids[N] = {7, 8, 9, 10, 11, 12};
    int n_lines = 0;
    size_t n;
    sl_engine *e = small_engine("santa-pps:S=8:budget=carried", SMALL_CTX, (sl_log){count_line, &n_lines});
    sl_session *s = small_session(e, ids, N - 3), *fork, *loaded[2];
    for (int i = N - 3; i < N; i++) CHECK_OK(sl_decode(&s, 1, &ids[i], &err), err);
    save(s, "session");
    char *file = read_whole(path_of("session"), &n), *at = memmem(file, n, "\"arithmetic\":\"", 14);
    CHECK(at != NULL);
    at[14] ^= 1;
    write_whole(path_of("other"), file, n);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(sl_session_load(e, path_of(i ? "other" : "session"), &loaded[i], NULL, &err), err);
        CHECK_INT(n_lines, i);
    }
    sl_session_free(s);
    CHECK_OK(sl_session_fork(loaded[0], N, 0, &fork, &err), err);
    CHECK_OK(sl_decode(&fork, 1, ids, &err), err);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(sl_decode(&loaded[i], 1, ids, &err), err);
        CHECK_INT(equal_logits(fork, loaded[i], 97), i);
        sl_session_free(loaded[i]);
    }
    free(file);
    sl_session_free(fork), sl_engine_free(e);
}

static const test_case cases[] = {
    {"other-models", 0, other_models},
    {"random-segments", 0, random_segments},
    {"other-arithmetic", 0, other_arithmetic},
    {"continues", 0, continues},
    {"continues-on-gpu", NEEDS_GPU, continues_on_gpu},
    {"damaged", 0, damaged},
    {"refused", 0, refused},
    {0},
};
const test_suite suite_session_file = {"session_file", cases};
