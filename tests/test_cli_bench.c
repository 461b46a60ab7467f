// tests/test_cli_bench.c - sleigh bench decode end to end: which rows it prints, in which formats, and the figures that can be
// known beforehand.
#include "tests/cli.h"
#include "tests/gpu.h"

#include <jansson.h>

enum { KV_TOKEN = 4096 }; // bytes of K and V per token of the embedded model

static json_t *rows_of(const result *r, size_t n) {
    json_error_t e;
    json_t *rows = json_loads(r->out, JSON_REJECT_DUPLICATES, &e);
    if (!rows) FAIL("no JSON: line %d: %s: %s", e.line, e.text, r->out);
    CHECK_INT(json_array_size(rows), n);
    return rows;
}

static double number(const json_t *row, const char *key) {
    if (!json_is_number(json_object_get(row, key))) FAIL("no number \"%s\"", key);
    return json_number_value(json_object_get(row, key));
}

static void check_text(const json_t *row, const char *key, const char *want) {
    const char *text = json_string_value(json_object_get(row, key));
    if (!text || !strstr(text, want)) FAIL("\"%s\" is %s, expected %s", key, text ? text : "no text", want);
}

// Rows of K and V that a dense step reads, on average over the steps: the token before them and their own included.
static double rows_read(int depth, int steps) {
    return depth + 2 + (steps - 1) / 2.0;
}

static void json(void) {
    enum { STEPS = 5 };
    static const int batches[] = {3, 1}, depths[] = {40, 300};
    static const char *const methods[] = {"dense", "santa-prop:S=16", "topk:k=8"};
    result r = RUN("bench", "decode", "-m", tiny(), "-b", "3,1", "-d", "40,300", "--attn", "dense,santa-prop:S=16", "--attn",
                   "topk:k=8", "-n", "5", "-r", "2", "-o", "json");
    CHECK_GOOD(r);
    json_t *rows = rows_of(&r, 12);
    for (int i = 0; i < 12; i++) {
        const json_t *row = json_array_get(rows, (size_t)i);
        int depth = depths[i / 6], batch = batches[i / 3 % 2];
        check_text(row, "model", tiny());
        check_text(row, "device", "cpu: ");
        check_text(row, "version", "0.");
        check_text(row, "attn", methods[i % 3]);
        CHECK(json_is_string(json_object_get(row, "commit")) && json_is_false(json_object_get(row, "dummy")));
        CHECK(number(row, "batch") == batch && number(row, "depth") == depth && number(row, "steps") == STEPS);
        double ms = number(row, "step_ms"), kv = number(row, "kv_bytes"), weights = number(row, "weights_bytes");
        double dense = batch * rows_read(depth, STEPS) * KV_TOKEN;
        CHECK(ms > 0 && number(row, "prefill_tok_s") > 0 && weights > 1e7);
        CHECK(i % 3 == 0 ? kv == dense : kv < dense);
        CHECK_NEAR(number(row, "tok_s") * ms, batch * 1e3, 1e-3);
        CHECK_NEAR(number(row, "token_ms") * batch, ms, 1e-6 * ms);
        CHECK_NEAR(number(row, "gb_s") * ms * 1e6, kv + weights, 1);
        CHECK_NEAR(number(row, "floor_ms") * (kv + weights), ms * weights, 1e-6 * ms * weights);
    }
    json_decref(rows);
}

// Depths of 4 sequences: d / 4, d / 2, 3 d / 4, d, made odd; forks read what own pages would.
static void ragged(void) {
    static const int depths[] = {255, 511, 767, 1023};
    double want = 0;
    for (int i = 0; i < 4; i++) want += rows_read(depths[i], 3) * KV_TOKEN;
    for (int fork = 0; fork < 2; fork++) {
        const char *args[24] = {"bench", "decode", "-m", tiny(), "-b",       "2,4",           "-d", "1k",
                                "-n",    "3",      "-o", "json", "--ragged", "--memory-rate", "20", fork ? "--fork" : NULL};
        result r = run_args(NULL, args);
        CHECK_GOOD(r);
        json_t *rows = rows_of(&r, 2);
        const json_t *row = json_array_get(rows, 1);
        CHECK(number(row, "kv_bytes") == want);
        CHECK(json_is_true(json_object_get(row, "ragged")) && json_is_true(json_object_get(row, "fork")) == fork);
        CHECK_NEAR(number(row, "floor_ms"), number(row, "weights_bytes") / 20e6, 1e-6);
        CHECK(number(json_array_get(rows, 0), "kv_bytes") == (rows_read(511, 3) + rows_read(1023, 3)) * KV_TOKEN);
        json_decref(rows);
    }
    result tiny_depth = RUN("bench", "decode", "-m", tiny(), "-b", "4", "-d", "1", "-n", "1", "--ragged", "-o", "json");
    CHECK_GOOD(tiny_depth);
    json_t *rows = rows_of(&tiny_depth, 1);
    CHECK(number(json_array_get(rows, 0), "kv_bytes") == 4 * 3 * KV_TOKEN);
    json_decref(rows);
}

static int count(const char *text, size_t n, char c) {
    int found = 0;
    for (size_t i = 0; i < n; i++) found += text[i] == c;
    return found;
}

static void tables(void) {
    result md = RUN("bench", "decode", "-m", tiny(), "-b", "1,2", "-d", "64", "-n", "2");
    CHECK_GOOD(md);
    CHECK_HAS(md.out, "| batch | depth | attention | prefill tok/s | step ms | tok/s | GB/s | floor ms | linear ms | attention "
                      "ms | rest ms |\n|---|");
    CHECK_HAS(md.out, "\n| 2 | 64 | dense | ");
    CHECK_HAS(md.err, "model: ");
    CHECK_INT(count(md.out, md.n_out, '\n'), 4);
    CHECK_INT(count(md.out, md.n_out, '|'), 4 * 12);
    result csv = RUN("bench", "decode", "-m", tiny(), "-b", "1,2", "-d", "64", "-n", "2", "-o", "csv");
    CHECK_GOOD(csv);
    size_t line = strcspn(csv.out, "\n");
    int columns = count(csv.out, line, ',');
    CHECK(!strncmp(csv.out, "version,commit,device,model,", 28));
    CHECK_INT(count(csv.out, csv.n_out, '\n'), 3);
    int in_text = 0, commas = 0;
    for (const char *p = csv.out + line + 1; *p != '\n'; p++) {
        in_text ^= *p == '"';
        commas += *p == ',' && !in_text;
    }
    CHECK_INT(commas, columns);
}

static void dummy(void) { // no weights, no tokenizer
    static const char config[] =
        "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,"
        "\"num_key_value_heads\":2,\"intermediate_size\":96,\"vocab_size\":100,"
        "\"max_position_embeddings\":256,\"eos_token_id\":[0,1,2]}";
    spill(in_tmp("config.json"), config, strlen(config));
    result r =
        RUN("bench", "decode", "-m", test_tmp(), "--load-format", "dummy", "-d", "128", "-b", "2", "-n", "64", "-o", "json");
    CHECK_GOOD(r);
    json_t *rows = rows_of(&r, 1);
    CHECK(json_is_true(json_object_get(json_array_get(rows, 0), "dummy")));
    CHECK(number(json_array_get(rows, 0), "kv_bytes") == 2 * rows_read(128, 64) * 2 * 2 * 16 * 4); // no sequence ended early
    json_decref(rows);
    r = RUN("bench", "decode", "-m", test_tmp(), "--load-format", "dummy", "-d", "192", "-n", "64");
    check_error(&r, 2, "--depth 192: with 64 steps and one before them this model's context holds 191");
}

static void errors(void) {
    static const struct {
        const char *args[5], *part;
    } cases[] = {
        {{NULL}, "bench (nothing): expected what to time: decode"},
        {{"encode"}, "bench encode: expected what to time: decode"},
        {{"decode", "again"}, "unexpected argument \"again\""},
        {{"decode", "-b", "0"}, "-b 0: expected a whole number from 1 to 1024"},
        {{"decode", "-b", "1,,2"}, "-b : expected a whole number"},
        {{"decode", "-b", "1,x"}, "-b x: expected a whole number"},
        {{"decode", "-d", "1q"}, "-d 1q: expected a whole number"},
        {{"decode", "--attn", "dense,nope"}, "nope"},
        {{"decode", "--attn", ","}, "--attn: names no method"},
        {{"decode", "-o", "xml"}, "-o xml: expected one of md,json,csv"},
        {{"decode", "--temp", "1"}, "--temp is not one of this command's"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *args[12] = {"bench"};
        int n = 1;
        for (int j = 0; j < 5 && cases[i].args[j]; j++) args[n++] = cases[i].args[j];
        args[n++] = "-m", args[n++] = tiny();
        result r = run_args(NULL, args);
        check_error(&r, 2, cases[i].part);
    }
    result large = RUN("bench", "decode", "-m", tiny(), "-b", "1,1024", "-d", "120k");
    check_error(&large, 1, "--batch 1024 at --depth 122880: ");
    result r = RUN("bench", "decode");
    check_error(&r, 2, "--model is required");
}

static void attn_errors(void) {
#ifdef SLEIGH_CUDA
    static const struct {
        const char *args[4], *part;
        int code;
    } cases[] = {
        {{"-b", "0"}, "-b 0: expected a whole number", 2},
        {{"--attn", "dense,nope"}, "nope", 2},
        {{"--attn", ","}, "--attn: names no method", 2},
        {{"--attn", "bernoulli+santa-pps:S=4"}, "--attn bernoulli+santa-pps:S=4: not offered on a GPU", 1},
        {{"--attn", "santa-pps:budget=variance"}, "--attn santa-pps:budget=variance: not offered on a GPU", 1},
        {{"--phase", "load"}, "--phase load: expected one of decode,prefill,all", 2},
        {{"--steps", "4"}, "--steps is not one of bench attn's flags", 2},
        {{"again"}, "unexpected argument \"again\"", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *args[8] = {"bench", "attn"};
        for (int j = 0; j < 4 && cases[i].args[j]; j++) args[2 + j] = cases[i].args[j];
        result r = run_args(NULL, args);
        check_error(&r, cases[i].code, cases[i].part);
    }
    if (gpu_present()) return;
    result r = RUN("bench", "attn");
    check_error(&r, 1, "bench: no GPU to measure");
#else
    result r = RUN("bench", "attn");
    check_error(&r, 1, "bench attn: this build has no CUDA");
#endif
}

static const test_case cases[] = {
    {"json", 0, json},
    {"ragged", 0, ragged},
    {"tables", 0, tables},
    {"dummy", 0, dummy},
    {"errors", 0, errors},
    {"attn_errors", 0, attn_errors},
    {0},
};
extern const test_suite suite_cli_bench;
const test_suite suite_cli_bench = {"cli_bench", cases};
