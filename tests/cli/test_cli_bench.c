// tests/cli/test_cli_bench.c - sleigh bench and bench decode end to end: rows, formats, figures that are known beforehand, and
// lists of numbers.
#include "cli/attn/attn_list.h"
#include "cli/bench/bench.h"
#include "cli/options/all_options.h"
#include "engine/engine_internal.h"
#include "base/philox.h"
#include "tests/support/run_cli.h"
#include "tests/support/gpu.h"
#include "models/source.h"
#include "tests/support/models.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

enum { KV_TOKEN = 4096 }; // bytes of K and V per token of the embedded model

static json_t *rows_of(const result *r, size_t n) {
    json_t *rows = document(r);
    CHECK_INT(json_array_size(rows), n);
    return rows;
}

// Mean rows of K and V that a dense step reads, with the token before the steps and the tokens of the steps.
static double rows_read(int depth, int steps) {
    return depth + 2 + (steps - 1) / 2.0;
}

static void write_config(void) { // of a model without weights and tokenizer
    static const char config[] =
        "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,"
        "\"num_key_value_heads\":2,\"intermediate_size\":96,\"vocab_size\":8,"
        "\"max_position_embeddings\":256,\"eos_token_id\":[0,1,2,3]}";
    spill(in_tmp("config.json"), config, strlen(config));
}

static void dummy(void) {
    write_config();
    result r =
        RUN("bench", "decode", "-m", test_tmp(), "--load-format", "dummy", "-d", "191", "-b", "2", "-n", "64", "-o", "json");
    CHECK_GOOD(r);
    json_t *rows = rows_of(&r, 1);
    CHECK(json_is_true(json_object_get(json_array_get(rows, 0), "dummy")));
    CHECK(number(json_array_get(rows, 0), "kv_bytes") == 2 * rows_read(191, 64) * 2 * 2 * 16 * 4); // no sequence ends early
    json_decref(rows);
    r = RUN("bench", "decode", "-m", test_tmp(), "--load-format", "dummy", "-d", "191", "-n", "65");
    check_error(&r, 2, "--depth 191: expected at most 190, because a test adds 66 tokens");
}

// Two rows for each number of rows: the layers, with these bytes, and the head.
static void check_linear(const result *r, double layers, double head) {
    CHECK_GOOD(*r);
    json_t *rows = rows_of(r, 4);
    for (size_t i = 0; i < 4; i++) {
        const json_t *row = json_array_get(rows, i);
        double bytes = i % 2 ? head : layers, ms = number(row, "ms");
        CHECK_INT(number(row, "rows"), i < 2 ? 3 : 17);
        CHECK_STR(json_string_value(json_object_get(row, "part")), i % 2 ? "output head" : "layers");
        CHECK(number(row, "bytes") == bytes && number(row, "repetitions") == 2 && ms > 0);
        CHECK_NEAR(number(row, "floor_ms"), bytes / 20e6, 1e-9);
        CHECK_NEAR(number(row, "ratio") / (ms / (bytes / 20e6)), 1, 1e-6);
    }
    json_decref(rows);
}

#define LINEAR "bench", "linear", "-b", "3,17", "-r", "2", "--memory-rate", "20", "-o", "json"

// The embedded model, whose matrices can stay packed on a GPU.
static void linear_on(const char *device) {
    enum { SIZE = 4 * (256 * (1024 + 2 * 256) + 1024 * 256 + 3 * 256 * 768), HEAD = 1024 * 256 };
    result plain = RUN(LINEAR, "-m", tiny(), "--device", device),
           packed = RUN(LINEAR, "-m", tiny(), "--device", device, "--weights", "int4");
    check_linear(&plain, 2 * SIZE, 2 * HEAD);
    check_linear(&packed, SIZE / 2 + SIZE / 128 * 4, HEAD + 1024 * 4); // the head is int8
}

static void linear(void) {
    linear_on("cpu");
    write_config();
    result md = RUN("bench", "linear", "-m", test_tmp(), "--load-format", "dummy", "--device", "cpu", "-r", "1");
    CHECK_GOOD(md);
    CHECK_HAS(md.out, "| rows | part | ms | GB | floor ms | time / floor |\n");
    CHECK_HAS(md.out, "\n| 1 | output head | ");
}

#ifdef SLEIGH_CUDA
static void linear_on_gpu(void) {
    linear_on("cuda");
}
#endif

// Random rows in place of a prefill. Rising and falling depths; every sequence has rows of its own.
static void random_rows(void) {
    result r = RUN("bench", "decode", "-m", tiny(), "--device", "cpu", "--fill", "random", "-b", "2", "-d", "600,0,300", "-n",
                   "3", "--attn", "dense,santa-is:S=16", "--memory-rate", "20", "-o", "json");
    CHECK_GOOD(r);
    json_t *rows = rows_of(&r, 6);
    static const int depths[] = {0, 300, 600};
    for (int i = 0; i < 6; i++) {
        const json_t *row = json_array_get(rows, (size_t)i);
        CHECK_INT(number(row, "depth"), depths[i / 2]);
        CHECK(!strcmp(json_string_value(json_object_get(row, "fill")), "random"));
        CHECK(!strcmp(json_string_value(json_object_get(row, "kv_cache")), "gpu"));
        CHECK(number(row, "bus_rows") == 0 && number(row, "bus_bytes") == 0 && json_is_null(json_object_get(row, "hot_hits")));
        if (i % 2 == 0 && i > 0) CHECK(number(row, "kv_bytes") == 2 * rows_read(depths[i / 2], 3) * KV_TOKEN);
    }
    json_decref(rows);
}

static void errors(void) {
    static const struct {
        const char *args[5], *part;
    } cases[] = {
        {{"decode", "--device", "cpu", "--kv-cache", "host"}, "--kv-cache host: on the CPU, K and V are in host memory anyway"},
        {{"decode", "--device", "cpu", "--kv-cache", "auto"}, "--kv-cache auto: on the CPU, K and V are in host memory anyway"},
        {{"decode", "--device", "cpu", "--hot-hits", "0.5"}, "--hot-hits: expected --kv-cache host with a cache of hot rows"},
        {{"encode"}, "bench encode: expected decode, attn, draft, linear, or no subject"},
        {{"decode", "-p", "8"}, "bench decode: flag --n-prompt belongs to"},
        {{"decode", "-n", "4,0"}, "--steps 0: expected a whole number, 1 or more"},
        {{"-p", "0", "-n", "0"}, "--n-prompt and --n-gen: expected a number above 0"},
        {{"-p", "200k"}, "a test of 204800 tokens: expected at most 131072"},
        {{"-p", "8", "-d", "131072"}, "--depth 131072: expected at most 130943, because"},
        {{"-pg", "512"}, "-pg 512: expected two numbers, for example 512,128"},
        {{"--phase", "decode"}, "flag --phase belongs to `sleigh bench attn`"},
        {{"--plot", "x.jpg"}, "--plot x.jpg: expected a file name that ends in .svg, .pdf or .png"},
        {{"linear", "-d", "4"}, "bench linear: expected no flag --depth"},
        {{"linear", "--attn", "topk"}, "bench linear: expected no flag --attn"},
        {{"decode", "again"}, "unexpected argument \"again\""},
        {{"decode", "--attn", "dense,nope"}, "nope"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *args[12] = {"bench"};
        int n = 1;
        for (int j = 0; j < 5 && cases[i].args[j]; j++) args[n++] = cases[i].args[j];
        args[n++] = "-m", args[n++] = tiny();
        result r = run_args(NULL, args);
        check_error(&r, 2, cases[i].part);
    }
    result large = RUN("bench", "decode", "-m", tiny(), "-b", "1,1024", "-d", "120k", "--memory-rate", "30");
    check_error(&large, 1, "--batch 1024 at --depth 122880: ");
    result r = RUN("bench", "decode");
    check_error(&r, 2, "--model is required");
}

// ---- bench without a subject: llama-bench's shape ----

static void names(void) {
    static const char *const want[] = {"pp8", "pp16", "tg4", "tg4", "pp8+tg2", "pp8+tg2"};
    result r = RUN("bench", "-m", tiny(), "-p", "8-16*2", "-n", "4", "-pg", "8,2", "-d", "300,0", "-b", "1,2", "--attn",
                   "dense,topk:k=8", "-r", "2", "--memory-rate", "30", "-o", "json");
    CHECK_GOOD(r);
    json_t *rows = rows_of(&r, 24);
    for (int i = 0; i < 24; i++) {
        const json_t *row = json_array_get(rows, (size_t)i);
        int batch = i / 6 % 2 + 1, depth = i < 12 ? 0 : 300;
        const char *test = json_string_value(json_object_get(row, "test"));
        CHECK(!strncmp(test, want[i % 6], strlen(want[i % 6])) && !strcmp(test + strlen(want[i % 6]), depth ? " @ d300" : ""));
        CHECK_STR(json_string_value(json_object_get(row, "attn")), i % 6 == 3 || i % 6 == 5 ? "topk:k=8" : "dense");
        CHECK(number(row, "batch") == batch && number(row, "depth") == depth && number(row, "repetitions") == 2);
        CHECK(json_is_null(json_object_get(row, "driver")) && json_is_null(json_object_get(row, "sm_mhz"))); // only on a GPU
        if (i % 6 == 2) { // at depth 0 after a first token, else after the last token in the cache
            int from = depth ? depth : 1;
            CHECK(number(row, "kv_bytes") == batch * rows_read(from, 4) * KV_TOKEN);
        }
    }
    json_decref(rows);
}

static const char *logits_of(json_t *rows, size_t i) {
    return json_string_value(json_object_get(json_array_get(rows, i), "logits"));
}

// After rising depths with cuts in between, a session equals one with a fresh prefill to the last depth.
static void restored(void) {
    result walk = RUN("bench", "-m", tiny(), "-p", "20", "-n", "3", "-d", "70,257,0,300", "-b", "2,1", "--attn",
                      "santa-prop:S=16,santa-is:S=8", "-r", "2", "--memory-rate", "30", "-o", "json"),
           fresh = RUN("bench", "-m", tiny(), "-p", "20", "-n", "3", "-d", "300", "--attn", "santa-prop:S=16,santa-is:S=8",
                       "-r", "1", "--memory-rate", "30", "-o", "json");
    CHECK_GOOD(walk);
    CHECK_GOOD(fresh);
    json_t *all = rows_of(&walk, 24), *last = rows_of(&fresh, 3);
    for (size_t i = 0; i < 3; i++) {
        CHECK_STR(logits_of(all, 21 + i), logits_of(last, i));          // batch 1
        CHECK_STR(logits_of(all, 18 + i), logits_of(last, i));          // the first sequence of a batch of 2
        CHECK(strcmp(logits_of(all, 15 + i), logits_of(last, i)) != 0); // depth 257
    }
    json_decref(all);
    json_decref(last);
    // --ragged returns to smaller depths, which are prefilled again
    result there = RUN("bench", "decode", "-m", tiny(), "-n", "3", "-d", "300", "-b", "4,2,3", "--ragged", "-o", "json"),
           again = RUN("bench", "decode", "-m", tiny(), "-n", "3", "-d", "300", "-b", "3", "--ragged", "-o", "json");
    CHECK_GOOD(there);
    CHECK_GOOD(again);
    all = rows_of(&there, 3), last = rows_of(&again, 1);
    CHECK_STR(logits_of(all, 2), logits_of(last, 0));
    CHECK(number(json_array_get(all, 2), "kv_bytes") == number(json_array_get(last, 0), "kv_bytes"));
    json_decref(all);
    json_decref(last);
}

static void formats(void) {
    result one = RUN("bench", "-m", tiny(), "-p", "8", "-n", "2", "-r", "1", "--memory-rate", "30"),
           many = RUN("bench", "-m", tiny(), "-p", "8", "-n", "2", "-r", "1", "--memory-rate", "30", "--attn", "topk:k=8"),
           csv = RUN("bench", "-m", tiny(), "-p", "8", "-n", "2", "-r", "1", "--memory-rate", "30", "-o", "csv");
    CHECK_GOOD(one);
    CHECK_GOOD(many);
    CHECK_GOOD(csv);
    CHECK(!strncmp(strchr(one.out, '|'), "| test | ", 9) && !strncmp(strchr(many.out, '|'), "| attention | test | ", 21));
    CHECK_HAS(one.out, " | - | - | - | - | - |\n| tg2 | ");
    CHECK_LACKS(one.out, "±"); // one repetition has no standard deviation
    CHECK_HAS(csv.out, ",\"pp8\",8,0,0,1,\"dense\",false,false,\"prefill\",\"gpu\",\"bf16\",\"bf16\",1,0,");
}

// ---- the measurements, without the command ----

enum { MAX_ROWS = 8, BATCH = 2 };

typedef struct measured {
    cli_bench bench;
    int n_rows, depth[MAX_ROWS];
    float *logits[MAX_ROWS][BATCH]; // of each sequence, after the last step of a row
} measured;

static int note_row(void *ctx, const cli_bench_row *r, sl_error *e) {
    measured *m = ctx;
    (void)e;
    CHECK(m->n_rows < MAX_ROWS && r->batch == BATCH);
    double prefill_ms = 0, most = 0;
    for (int j = 0; j < BATCH; j++) {
        size_t size = (size_t)sl_model_config(m->bench.model)->n_vocab * sizeof(float);
        m->logits[m->n_rows][j] = malloc(size);
        memcpy(m->logits[m->n_rows][j], sl_session_logits(m->bench.sessions[j], NULL), size);
        prefill_ms += m->bench.fill_ms[j];
        if (m->bench.fill_ms[j] > most) most = m->bench.fill_ms[j];
        for (int i = 0; i < j; i++) // no two sessions share a row, also not in full pages
            CHECK(m->bench.sessions[i]->kv.pages[0] != m->bench.sessions[j]->kv.pages[0]);
        CHECK(m->bench.batch[BATCH - 1 - j] == m->bench.sessions[j]);
    }
    CHECK(m->bench.o->bench->copy ? prefill_ms == m->bench.fill_ms[0] && most > 0 : m->bench.fill_ms[BATCH - 1] > 0);
    CHECK(r->prefill_ms == prefill_ms);
    CHECK(r->logits == sl_logits_hash(m->logits[m->n_rows][0], sl_model_config(m->bench.model)->n_vocab));
    m->depth[m->n_rows++] = r->depth;
    return 0;
}

static void measure(const cli_bench_plan *plan, int copy, measured *m) {
    char *args[] = {"-m", (char *)tiny(), "--device", "cpu", "--seed", "9", "--threads", "1", "--memory-rate", "20", "--copy"};
    cli_options o;
    sl_error e;
    *m = (measured){0};
    CHECK_OK(cli_options_parse(&o, CLI_BENCH, copy ? 11 : 10, args, &e), e);
    CHECK_OK(sl_source_open(o.run.model.path, &o.run.model.source, &e), e);
    const cli_bench_flags flags = {&o.run, &o.bench, &o.output, &o.given};
    int was = dup(STDERR_FILENO), none = open("/dev/null", O_WRONLY); // the description of the run is not shown
    dup2(none, STDERR_FILENO);
    int rc = cli_bench_open(&m->bench, &flags, plan, &e);
    if (!rc) rc = cli_bench_run(&m->bench, note_row, m, &e);
    dup2(was, STDERR_FILENO);
    close(was), close(none);
    signal(SIGINT, SIG_DFL);
    cli_bench_close(&m->bench);
    cli_options_free(&o);
    CHECK_OK(rc, e);
}

// Logits after n_prompt random tokens of the prompt's sequence and n greedy steps of the session, without end tokens.
static void by_hand(model_fixture *r, int prompt, int sequence, int n_prompt, int n, float *out) {
    const sl_config *c = sl_model_config(r->model);
    sl_session *s = model_fixture_session(r, (uint32_t)sequence);
    sl_error e;
    int32_t ids[512], next;
    for (int i = 0; i < n_prompt; i++) {
        const sl_rng_id id = {.seed = 9, .sequence = (uint32_t)prompt, .position = (uint32_t)i};
        ids[i] = (int32_t)(sl_rng_u64(&id, 0, SL_STREAM_PROMPT) % (uint64_t)c->n_vocab);
    }
    CHECK_OK(sl_prefill(s, ids, n_prompt, NULL, &e), e);
    for (int i = 0; i < n; i++) {
        memcpy(out, sl_session_logits(s, NULL), (size_t)c->n_vocab * sizeof *out);
        for (int k = 0; k < c->n_eos; k++) out[c->eos[k]] = -INFINITY;
        next = test_argmax(out, c->n_vocab);
        CHECK_OK(sl_decode(&s, 1, &next, &e), e);
    }
    memcpy(out, sl_session_logits(s, NULL), (size_t)c->n_vocab * sizeof *out);
    sl_session_free(s);
}

// Each sequence has its own prompt, or with --copy the first one. All logits of each test equal those of sessions by hand.
static void sequences(void) {
    enum { STEPS = 2 };
    const cli_bench_plan plan = {.batches = {.at = {BATCH}, .n = 1},
                                 .depths = {.at = {260, 5}, .n = 2},
                                 .tests = {{0, STEPS}, {7, STEPS}},
                                 .n_tests = 2,
                                 .repetitions = 3};
    for (int copy = 0; copy < 2; copy++) {
        measured m;
        measure(&plan, copy, &m);
        model_fixture r =
            model_fixture_load(tiny(), "dense", (sl_engine_options){.n_ctx = 512, .device = "cpu", .n_threads = 1});
        float *want = malloc((size_t)r.n_vocab * sizeof *want);
        CHECK_INT(m.n_rows, 4);
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < BATCH; j++) {
                const cli_bench_test *t = &plan.tests[i % 2];
                CHECK_INT(m.depth[i], i < 2 ? 5 : 260); // ascending
                // up to the depth, copies hold tokens of the first prompt; then a test prefills tokens of the prompt of each
                // sequence
                if (!copy || !t->n_prompt || !j) {
                    by_hand(&r, copy ? 0 : j, j, m.depth[i] + t->n_prompt, t->n_gen ? t->n_gen + 1 : 0, want);
                    CHECK(!memcmp(m.logits[i][j], want, (size_t)r.n_vocab * sizeof *want));
                }
                free(m.logits[i][j]);
            }
        free(want);
        model_fixture_close(&r);
    }
}

// ---- lists ----

static void check_ints(const char *text, int n, const int *want) {
    cli_options o;
    sl_error e;
    char *args[] = {"-d", (char *)text};
    CHECK_OK(cli_options_parse(&o, CLI_BENCH, 2, args, &e), e);
    CHECK_INT(o.bench.depths.n, n);
    for (int i = 0; i < n; i++) CHECK_INT(o.bench.depths.at[i], want[i]);
    cli_options_free(&o);
}

static void ranges(void) {
    static const struct {
        const char *text, *part;
    } bad[] = {
        {"4-1", "-d 4-1: expected a rising range: FIRST-LAST"},
        {"1-8*1", "-d 1-8*1: expected a rising range"},
        {"0-8*2", "-d 0-8*2: expected a rising range"},
        {"1-", "-d : expected a whole number"},
        {"1-8+", "-d : expected a whole number"},
        {"1-8+0", "-d 0: expected a whole number"},
        {"1-x", "-d x: expected a whole number"},
        {"-4", "-d -4: expected a whole number"},
        {"1-129", "-d: expected at most 128 numbers"},
        {"1,,2", "-d : expected a whole number"},
    };
    check_ints("512-4096*2", 4, (const int[]){512, 1024, 2048, 4096});
    check_ints("1-4", 4, (const int[]){1, 2, 3, 4});
    check_ints("0-1k+512,7", 4, (const int[]){0, 512, 1024, 7});
    check_ints("3-3,1k-5k*2", 4, (const int[]){3, 1024, 2048, 4096});
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cli_options o;
        sl_error e;
        char *args[] = {"-d", (char *)bad[i].text};
        CHECK_ERR(cli_options_parse(&o, CLI_BENCH, 2, args, &e), e, SL_ERR_ARG, bad[i].part);
    }
    cli_options o;
    sl_error e;
    char *most[] = {"-d", "1-128"}, *args[] = {"-pg", "512,128", "-pg", "1k,4"};
    CHECK_OK(cli_options_parse(&o, CLI_BENCH, 2, most, &e), e);
    CHECK(o.bench.depths.n == 128 && o.bench.depths.at[127] == 128);
    cli_options_free(&o);
    CHECK_OK(cli_options_parse(&o, CLI_BENCH, 4, args, &e), e);
    CHECK(o.bench.pairs.n == 4 && o.bench.pairs.at[0] == 512 && o.bench.pairs.at[1] == 128 && o.bench.pairs.at[2] == 1024 &&
          o.bench.pairs.at[3] == 4);
    cli_options_free(&o);
}

static void braces(void) {
    static const char *const want[] = {"dense",
                                       "santa-prop:S=64",
                                       "santa-prop:S=1024",
                                       "santa-is:S=8",
                                       "santa-is:S=16",
                                       "santa-is:S=8:proposal=int8",
                                       "santa-is:S=16:proposal=int8",
                                       "topk:k=128"};
    static const struct {
        const char *text, *part;
    } bad[] = {
        {"dense,", "--attn : unknown method"},
        {"topk:k={64,64}", "--attn: topk:k=64 is named twice"},
        {"topk,topk:k=128", "--attn: topk:k=128 is named twice"},
        {"santa:S={4,8", "expected braces around alternatives"},
        {"santa:S=4}", "expected braces"},
        {"santa:S={4,{5}}", "expected braces"},
        {"dense,santa:S={4,x}", "--attn santa:S=x: --S x: expected"},
        {"santa:S={}", "--attn santa:S=: "},
    };
    const char *flags[] = {"{dense,santa-prop:S=64},santa-prop:S={1k}", "santa-is:proposal={int4,int8}:S={8,16},topk"};
    const cli_list list = {.items = flags, .n = 2}, none = {0};
    cli_attn_list found;
    sl_error e;
    CHECK_OK(cli_attn_list_parse("--attn", &list, &found, &e), e);
    CHECK_INT(found.n, 8);
    for (int i = 0; i < 8; i++) CHECK_STR(found.names[i], want[i]);
    CHECK(sl_attn_get(&found.specs[2], "S") == 1024 && sl_attn_get(&found.specs[6], "S") == 16);
    char name[CLI_ATTN_NAME];
    CHECK(cli_attn_curve(&found, 2, name) == 1024 && !strcmp(name, "santa-prop"));
    CHECK(cli_attn_curve(&found, 6, name) == 16 && !strcmp(name, "santa-is:proposal=int8"));
    CHECK(cli_attn_curve(&found, 7, name) == 128 && !strcmp(name, "topk"));
    CHECK(isnan(cli_attn_curve(&found, 0, name)) && !strcmp(name, "dense"));
    cli_attn_list_free(&found);
    CHECK_OK(cli_attn_list_parse("--attn", &none, &found, &e), e);
    CHECK(found.n == 1 && !strcmp(found.names[0], "dense"));
    cli_attn_list_free(&found);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const cli_list one = {.items = (const char *[]){bad[i].text}, .n = 1};
        int rc = cli_attn_list_parse("--attn", &one, &found, &e);
        cli_attn_list_free(&found);
        CHECK_ERR(rc, e, SL_ERR_ARG, bad[i].part);
    }
}

// ---- plots ----

static void plot(void) {
    result both = RUN("bench", "-m", tiny(), "-p", "0", "-n", "2", "-d", "8,64", "-b", "1,2", "--attn", "dense,topk:k=8", "-r",
                      "1", "--memory-rate", "30", "--plot", in_tmp("a.svg")),
           batches = RUN("bench", "-m", tiny(), "-p", "0", "-n", "2", "-d", "8", "-b", "1,2", "--attn", "dense,topk:k=8", "-r",
                         "1", "--memory-rate", "30", "--plot", in_tmp("d.svg")),
           latency = RUN("bench", "decode", "-m", tiny(), "-n", "2", "-d", "8,64", "-b", "1", "--memory-rate", "30", "--plot",
                         in_tmp("b.png")),
           nothing = RUN("bench", "-m", tiny(), "-p", "8", "-n", "0", "-r", "1", "--plot", in_tmp("c.svg"));
    size_t n;
    CHECK_GOOD(both);
    const char *data = slurp(in_tmp("a.dat"), &n);
    CHECK_HAS(data,
              "# panel: decode step, 1 sequence\n# x: tokens of context; y: time of a step, ms\n# axes: log-x lines ticks\n"
              "# curve: dense\n8 ");
    CHECK_HAS(data,
              "# panel: decode step, 2 sequences\n# x: tokens of context; y: time of a step, ms\n# axes: log-x lines ticks "
              "new-row\n# curve: dense\n8 ");
    CHECK_HAS(data,
              "# panel: speedup of decoding, 2 sequences\n# x: tokens of context; y: speedup over dense\n# axes: log-x lines "
              "ticks\n# curve: topk:k=8\n8 "); // not of dense: its speedup is 1 by definition
    CHECK_GOOD(batches);
    data = slurp(in_tmp("d.dat"), &n);
    CHECK_HAS(data, "# panel: speedup of decoding\n# x: sequences in the batch; y: speedup over dense\n# axes: lines ticks\n"
                    "# curve: topk:k=8\n1 ");
    CHECK_LACKS(data, "decode step");
    CHECK_GOOD(latency);
    data = slurp(in_tmp("b.dat"), &n);
    double low, high, ms;
    const char *point = strstr(data, "# curve: dense\n8 "); // with the bar from 10% to 90% of the steps
    CHECK(point && sscanf(point + 15, "%*f %lf %lf %lf", &ms, &low, &high) == 3 && low <= ms && ms <= high);
    CHECK_LACKS(data, "speedup");
    check_error(&nothing, 2, "--plot draws tests that only decode");
    result r = RUN("bench", "-m", tiny(), "--plot", "/nowhere/x.svg");
    check_error(&r, 1, "--plot /nowhere/x.svg: cannot write to its folder");
}

static void attn_errors(void) {
#ifdef SLEIGH_CUDA
    static const struct {
        const char *args[4], *part;
        int code;
    } cases[] = {
        {{"-b", "0"}, "-b 0: expected a whole number", 2},
        {{"--attn", "dense,nope"}, "nope", 2},
        {{"--attn", ","}, "--attn : unknown method", 2},
        {{"--attn", "bernoulli+santa-pps:S=4"}, "--attn bernoulli:B=8+santa-pps:S=4: not offered on a GPU", 1},
        {{"--attn", "santa-pps:budget=variance"}, "--attn santa-pps:S=128:budget=variance: not offered on a GPU", 1},
        {{"--phase", "load"}, "--phase load: expected one of decode,prefill,masks,all", 2},
        {{"--steps", "4"}, "flag --steps does not belong to `sleigh bench attn`", 2},
        {{"-d", "0"}, "--depth 0: expected at least 1", 2},
        {{"--plot", "x.jpg"}, "--plot x.jpg: expected a file name", 2},
        {{"--plot", "x.svg", "--phase", "prefill"}, "--plot draws decode times; --phase prefill measures none", 2},
        {{"--depth", "4k", "--phase", "masks"}, "flag --depth cannot be used with --phase masks", 2},
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
    check_error(&r, 1, "bench attn times kernels of a GPU, and no GPU was found");
#else
    result r = RUN("bench", "attn");
    check_error(&r, 1, "bench attn times kernels of a GPU, and this build has no CUDA");
#endif
}

#ifdef SLEIGH_CUDA
static void attn_plot(void) {
    size_t n;
    result r = RUN("bench", "attn", "-b", "1,2", "-d", "512,1k", "-r", "2", "--attn", "dense,santa-sys:S=16", "-o", "jsonl",
                   "--plot", in_tmp("k.svg"));
    CHECK_GOOD(r);
    const char *data = slurp(in_tmp("k.dat"), &n);
    CHECK_HAS(data,
              "# panel: attention of a decode step, 1 sequence\n# x: tokens of context; y: time of a step, us\n# axes: log-x "
              "log-y lines ticks\n# curve: dense\n512 ");
    CHECK_HAS(strstr(data, ", 2 sequences\n"), "# curve: santa-sys:S=16\n512 ");
    CHECK_LACKS(data, "prefill");
}

// The bytes that methods read tell what the keys and buckets are. The scores are normal numbers of deviation 2, so that 24% of
// the rows hold 0.9 of a head's mass, and about 70% of the rows that of one of the four heads that share K and V. A method with
// buckets reads few rows, because its layer is not a dense one.
static void attn_reads(void) {
    result r = RUN("bench", "attn", "--phase", "decode", "-b", "1", "-d", "8k", "-r", "2", "--query-deviation", "2", "--attn",
                   "dense,topp:p=0.9,saap-kmeans:l=8:window=256", "-o", "json");
    CHECK_GOOD(r);
    double floor[3]; // proportional to the bytes
    json_t *all = document(&r);
    const json_t *rows = json_object_get(all, "rows");
    CHECK_INT(json_array_size(rows), 3);
    for (size_t i = 0; i < 3; i++) floor[i] = number(json_array_get(rows, i), "floor_us");
    double values = 2 * floor[1] / floor[0] - 1; // the share of V that topp reads
    CHECK(values > 0.4 && values < 0.9);
    CHECK(floor[2] > 0 && floor[2] < 0.5 * floor[0]);
    json_decref(all);
}

// Depths on both sides of the kernels for short contexts, and one beyond the kernels for long ones.
static void attn_depths(void) {
    result r = RUN("bench", "attn", "-b", "1", "-d", "128k,200k", "-r", "2", "--phase", "decode", "--attn",
                   "santa-sys:S=16,santa-prop,santa-pps,santa-is,topk,vattention", "-o", "jsonl");
    CHECK_GOOD(r);
    CHECK_INT(count_of(r.out, r.n_out, '\n'), 12);
    r = RUN("bench", "attn", "-b", "1", "-d", "2097153", "-r", "2", "--phase", "decode", "--attn", "santa-sys:S=16");
    CHECK(r.code);
    CHECK_HAS(r.err, "--attn santa-sys: --depth 2097153; expected at most 2097152");
}
#endif

static const test_case cases[] = {
    {"random-rows", 0, random_rows},
    {"dummy", 0, dummy},
    {"linear", 0, linear},
    GPU_CASE("linear-on-gpu", linear_on_gpu),
    {"errors", 0, errors},
    {"names", 0, names},
    {"sequences", NEEDS_NOTHING, sequences},
    {"restored", NEEDS_SPEED, restored},
    {"formats", 0, formats},
    {"ranges", 0, ranges},
    {"braces", 0, braces},
    {"plot", 0, plot},
    {"attn_errors", 0, attn_errors},
    GPU_CASE("attn-plot", attn_plot),
    GPU_CASE("attn-reads", attn_reads),
    WHOLE_GPU_CASE("attn-depths", attn_depths),
    {0},
};
extern const test_suite suite_cli_bench;
const test_suite suite_cli_bench = {"cli_bench", cases};
