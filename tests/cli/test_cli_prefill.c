// tests/cli/test_cli_prefill.c - methods for prefill end to end: by layer, by line, as a list of eval and compare; their
// reports; which rows a line may keep from the line before.
#include "attention/prefill/prefill_mask.h"
#include "tests/support/gpu.h"
#include "tests/support/run_cli.h"

#include <math.h>
#include <stdlib.h>

#define SPARSE "sample:alpha_c=0.3:alpha_s=0.3"
#define NARROW "streaming:sink=1:window=4"
#define STREAMING "streaming:sink=4:window=100"
enum { N_LAYERS = 4, N_HEADS = 8 }; // of the embedded model

static char long_prompt[8192]; // about 480 tokens

static const char *prompt(void) {
    snprintf(long_prompt, sizeof long_prompt, "%s", long_text(22));
    return long_prompt;
}

static json_t *json_of(const char *line) {
    json_t *x = json_loads(line, JSON_DISABLE_EOF_CHECK, NULL);
    if (!x) FAIL("no JSON: %.200s", line);
    return x;
}

static const char *string(const json_t *row, const char *key) {
    const char *text = json_string_value(json_object_get(row, key));
    if (!text) FAIL("no text in %s", key);
    return text;
}

static double cell(const json_t *heads, const char *key, int layer, int head) { // NaN: null
    const json_t *x = json_array_get(json_array_get(json_object_get(heads, key), (size_t)layer), (size_t)head);
    if (!x) FAIL("%s of layer %d, head %d is missing", key, layer, head);
    return json_is_number(x) ? json_number_value(x) : NAN;
}

// ---- flags ----

#define ONE "generate", "-m", tiny(), "-p", prompt(), "-n", "2", "--temp", "0", "--ignore-eos"

// Rules for layers, parameters as flags, and the figures of every layer and head.
static void layers(void) {
    result r = RUN(ONE, "-o", "json", "--attn-prefill", SPARSE, "--attn-prefill-layer", "0=dense", "--attn-prefill-layer",
                   "1-2=threshold:lambda=0.5", "--prefill-check", "3");
    json_t *row = document(&r), *heads = json_object_get(row, "prefill_heads");
    CHECK_STR(string(row, "attn_prefill"), "0=dense 1-2=threshold:lambda=0.5 3=" SPARSE);
    double density = number(row, "prefill_density"), kept = number(row, "prefill_kept"), cra = number(row, "prefill_cra");
    CHECK(0 < density && density < 1 && 0 < kept && kept < 1 && 0 < cra && cra <= 1);
    CHECK(0 < number(row, "prefill_error") && number(row, "prefill_error") < number(row, "prefill_error_max"));
    CHECK(density == number(json_object_get(row, "group"), "prefill_density"));
    double least = 1;
    for (int layer = 0; layer < N_LAYERS; layer++)
        for (int h = 0; h < N_HEADS; h++) {
            if (layer == 0) CHECK(cell(heads, "density", 0, h) == 1 && cell(heads, "error", 0, h) < 1e-5);
            CHECK(isnan(cell(heads, "kept", layer, h)) == (layer < 3) && isnan(cell(heads, "cra", layer, h)) == (layer < 3));
            if (layer == 3) least = fmin(least, cell(heads, "kept", layer, h));
        }
    CHECK(json_array_size(json_object_get(heads, "density")) == N_LAYERS && least == kept);
    json_decref(row);

    result dense = RUN(ONE, "-o", "json", "--prefill-check", "3"), a = RUN(ONE, "--attn-prefill", SPARSE),
           b = RUN(ONE, "--attn-prefill", "sample", "--alpha_c", "0.3", "--alpha_s", "0.3"),
           c = RUN(ONE, "--attn-prefill-layer", "0-3=sample", "--alpha_c", "0.3", "--alpha_s", "0.3");
    CHECK_GOOD(a);
    CHECK_GOOD(c);
    check_same(&b, &a);
    check_same(&c, &a);
    CHECK_HAS(a.err, "prefill_kept: ");
    CHECK_LACKS(a.err, "prefill_cra: ");
    row = document(&dense);
    CHECK_STR(string(row, "attn_prefill"), "dense");
    CHECK(json_is_null(json_object_get(row, "prefill_heads")) && json_is_null(json_object_get(row, "prefill_density")));
    json_decref(row);
}

static void refused(void) {
    static const struct {
        const char *flag, *value, *message;
    } cases[] = {
        {"--attn-prefill-layer", "9=dense", "--attn-prefill-layer 9=dense: expected layers from 0 to 3, in order"},
        {"--attn-prefill-layer", "dense", "--attn-prefill-layer dense: expected LAYER=METHOD or FIRST-LAST=METHOD"},
        {"--attn-prefill-layer", "0=sampel", "--attn-prefill-layer sampel: unknown method; did you mean sample?"},
        {"--attn-prefill-layer", "1-2=santa", "--attn-prefill-layer 1-2=santa: a method for decoding, which does not prefill"},
        {"--alpha_c", "0.5", "flag --alpha_c: the chosen attention method (dense) has no such parameter"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        result r = RUN("generate", "-m", tiny(), "-p", question, "-n", "1", cases[i].flag, cases[i].value);
        check_error(&r, 2, cases[i].message);
    }
}

// --stats: a line for each segment, layer and head, before the lines of the decode steps.
static void stats(void) {
    result r = RUN(ONE, "--attn-prefill", SPARSE, "--prefill-segment", "400", "--prefill-check", "2", "--stats", in_tmp("s"));
    CHECK_GOOD(r);
    size_t n, n_lines = 0, n_first = 0;
    double blocks = 0, dense_blocks = 0, kept = 1;
    const char *line = slurp(in_tmp("s"), &n);
    for (; *line; line = strchr(line, '\n') + 1) {
        json_t *row = json_of(line);
        int is_prefill = json_object_get(row, "attn_prefill") != NULL;
        CHECK(is_prefill == !json_object_get(row, "attn"));
        if (is_prefill) {
            CHECK_STR(string(row, "attn_prefill"), SPARSE);
            CHECK(number(row, "position") == 0 ? number(row, "n_tokens") == 400 : number(row, "position") == 400);
            CHECK(fabs(number(row, "prefill_density") - number(row, "blocks") / number(row, "dense_blocks")) < 1e-8);
            CHECK(number(row, "prefill_cra") <= 1 && number(row, "prefill_error") <= number(row, "prefill_error_max"));
            blocks += number(row, "blocks"), dense_blocks += number(row, "dense_blocks");
            kept = fmin(kept, number(row, "prefill_kept"));
            n_first += number(row, "position") == 0;
        }
        n_lines += is_prefill;
        json_decref(row);
    }
    CHECK_INT(n_first, N_LAYERS * N_HEADS);
    CHECK_INT(n_lines, 2 * n_first);
    char want[256], found[256];
    snprintf(want, sizeof want, "%.0f of %.0f, %.2f%%", blocks, dense_blocks, 100 * blocks / dense_blocks);
    CHECK_STR(stat_line(&r, "prefill_blocks", found), want);
    snprintf(want, sizeof want, "%.2f%%", 100 * kept);
    CHECK_HAS(stat_line(&r, "prefill_kept", found), want);
}

// ---- lines: which rows are shared ----

typedef struct asked {
    int n_sentences; // of the context
    const char *question, *attn_prefill;
} asked;

static void write_lines(const asked *a, int n) {
    char file[65536];
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        json_t *line = json_pack("{s:s, s:s}", "context", long_text(a[i].n_sentences), "question", a[i].question);
        if (a[i].attn_prefill) json_object_set_new(line, "attn_prefill", json_string(a[i].attn_prefill));
        char *text = json_dumps(line, 0);
        at += (size_t)snprintf(file + at, sizeof file - at, "%s\n", text);
        free(text);
        json_decref(line);
    }
    spill(in_tmp("lines"), file, at);
}

#define LINES                                                                                                                  \
    "generate", "-m", tiny(), "--jsonl", in_tmp("lines"), "-n", "2", "--ignore-eos", "--prefill-segment", "128",               \
        "--attn-prefill", SPARSE

// Lines share contexts, and parts of contexts. Each answer has the bits of a run with this line alone, one by one and in a
// batch: a line keeps rows of the line before only where its own prefill would make the same segments.
static void lines(void) {
    static const asked all[] = {
        {15, " House 3:", NULL},      {15, " House 5:", NULL},      // the same context and method: all rows stay
        {15, " House 3:", "dense"},   {10, " House 3:", "dense"},   // dense rows depend on the rows before only
        {10, " House 3:", STREAMING}, {15, " House 3:", STREAMING}, // a longer context: only whole segments of 128 stay
        {10, " House 2:", NULL},
    };
    enum { N = sizeof all / sizeof *all };
    static const char keeps[N] = {0, 2, 0, 2, 0, 1, 0}; // rows of the line before: 0 none, 1 some, 2 all of the context
    json_t *row[N], *batch[N];
    write_lines(all, N);
    result r = RUN(LINES), b = RUN(LINES, "--parallel", "3");
    CHECK_GOOD(r);
    CHECK_GOOD(b);
    const char *p = r.out, *q = b.out;
    for (int i = 0; i < N; i++, p = strchr(p, '\n') + 1, q = strchr(q, '\n') + 1) row[i] = json_of(p), batch[i] = json_of(q);
    for (int i = 0; i < N; i++) {
        char seq[16];
        snprintf(seq, sizeof seq, "%d", i);
        write_lines(&all[i], 1);
        result one = RUN(LINES, "--seq-id", seq);
        CHECK_GOOD(one);
        json_t *alone = json_of(one.out);
        CHECK_STR(string(row[i], "logits"), string(alone, "logits"));
        CHECK_STR(string(batch[i], "logits"), string(alone, "logits"));
        CHECK_STR(string(row[i], "attn_prefill"), all[i].attn_prefill ? all[i].attn_prefill : SPARSE);
        CHECK_STR(string(batch[i], "attn_prefill"), string(row[i], "attn_prefill"));
        double n = number(row[i], "n_prefill"), whole = number(alone, "n_prefill");
        CHECK((keeps[i] == 2) == (n == 0) && (keeps[i] == 0) == (n == whole));
        if (keeps[i] == 1) CHECK_INT((int)(whole - n) % 128, 0);
        int is_dense = !strcmp(string(row[i], "attn_prefill"), "dense"),
            n_cached = (int)(whole - number(batch[i], "n_prefill"));
        CHECK(n_cached % 256 == 0 && (is_dense || !n_cached)); // a sparse prefill shares nothing in a batch
        const json_t *density = json_object_get(batch[i], "prefill_density");
        int is_sparse = !strcmp(string(row[i], "attn_prefill"), SPARSE) && all[i].n_sentences == 15;
        CHECK(is_dense ? json_is_null(density) : json_number_value(density) <= (is_sparse ? 0.99 : 1));
        CHECK(json_equal(json_object_get(batch[i], "prefill_heads"), json_object_get(alone, "prefill_heads")));
        if (keeps[i] == 2) CHECK(json_equal(json_object_get(row[i], "prefill_density"), density)); // of the rows that it keeps
        json_decref(alone);
    }
    for (int i = 0; i < N; i++) json_decref(row[i]), json_decref(batch[i]);
}

static void bad_lines(void) {
    static const struct {
        const char *line, *message;
    } cases[] = {
        {"{\"prompt\":\"a\",\"attn_prefill\":1}", "\"attn_prefill\": expected a string, as --attn-prefill takes it"},
        {"{\"prompt\":\"a\",\"attn_prefill\":\"sampel\"}",
         "\"attn_prefill\": --attn-prefill sampel: unknown method; did you mean sample?"},
        {"{\"prompt\":\"a\",\"attn_prefill\":\"santa\"}",
         "\"attn_prefill\": --attn-prefill santa: a method for decoding, which does not prefill"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        spill(in_tmp("bad"), cases[i].line, strlen(cases[i].line));
        result r = RUN("generate", "-m", tiny(), "--jsonl", in_tmp("bad"), "-n", "1", "--no-perf");
        CHECK(r.code);
        CHECK_HAS(r.err, cases[i].message);
        CHECK_HAS(r.err, "line 1: ");
    }
}

// A chat answers again from the rows that its own prefill made: not from a part of a segment.
static void chat(void) {
    char input[8192];
    snprintf(input, sizeof input, "%s", long_text(22));
    for (char *p = input; (p = strchr(p, '\n')) != NULL;) *p = ' '; // one message
    snprintf(input + strlen(input), sizeof input - strlen(input), "\n/regen\n");
    result r =
        RUN_IN(input, "chat", "-m", tiny(), "--chat-template", "zephyr", "-n", "6", "--temp", "0", "--attn-prefill", SPARSE);
    CHECK_GOOD(r);
    size_t half = strlen(r.out) / 2;
    if (half < 2 || strlen(r.out) != 2 * half || strncmp(r.out, r.out + half, half)) FAIL("two equal answers: found %s", r.out);
}

// ---- eval and compare ----

#define EVAL                                                                                                                   \
    "eval", "-m", tiny(), "--task", "niah-single", "--length", "500", "--samples", "2", "--attn", "dense,streaming:window=64", \
        "--prefill-check", "2"

// Pairs of every method with every method for prefill, as lines of the file and as rows; a run continues.
static void eval(void) {
    result first = RUN(EVAL, "--attn-prefill", "dense", "--out", in_tmp("o"), "-o", "csv");
    CHECK_GOOD(first);
    result r = RUN(EVAL, "--attn-prefill", "dense," SPARSE, "--out", in_tmp("o"), "-o", "json"),
           alone = RUN(EVAL, "--attn-prefill", SPARSE, "-o", "json");
    CHECK_HAS(r.err, "samples: 2 with 4 methods each, 4 of 8 answers left");
    CHECK_HAS(r.err, "prefill: dense, " SPARSE "\n");
    json_t *doc = document(&r), *other = document(&alone), *rows = json_object_get(doc, "rows");
    CHECK_INT(json_array_size(rows), 8);
    for (size_t i = 0; i < 8; i++) {
        const json_t *row = json_array_get(rows, i);
        CHECK_STR(string(row, "attn"), i / 2 % 2 ? "streaming:sink=4:window=64" : "dense");
        CHECK_STR(string(row, "attn_prefill"), i < 4 ? "dense" : SPARSE);
        CHECK(json_is_number(json_object_get(row, "prefill_density")) == (i >= 4));
        CHECK(json_is_number(json_object_get(row, "ttft_ms")) == (i / 2 % 2 == 0));
        CHECK(json_is_null(json_object_get(row, "prefill_heads")) == (i < 4));
        if (i < 4) continue;
        const json_t *same = json_array_get(json_object_get(other, "rows"), i - 4);
        static const char *const keys[] = {"score",       "kv_bytes_share", "prefill_density",
                                           "prefill_cra", "prefill_error",  "prefill_kept"};
        for (int k = 0; k < 6; k++) CHECK(number(row, keys[k]) == number(same, keys[k]));
        CHECK(number(row, "prefill_density") < 1 && number(row, "prefill_cra") < 1 && number(row, "prefill_error") > 0);
        CHECK(json_equal(json_object_get(row, "prefill_heads"), json_object_get(same, "prefill_heads")));
    }
    json_decref(doc), json_decref(other);
    result again = RUN(EVAL, "--attn-prefill", "dense," SPARSE, "--out", in_tmp("o"), "-o", "json"); // no answer is of this run
    doc = document(&again);
    const json_t *kept = json_array_get(json_object_get(doc, "rows"), 7);
    CHECK(json_is_number(json_object_get(kept, "prefill_density")) && json_is_null(json_object_get(kept, "prefill_heads")));
    json_decref(doc);
    result rule = RUN(EVAL, "--out", in_tmp("o"), "--attn-prefill-layer", "0=" SPARSE);
    check_error(&rule, 2, "attn-prefill-layer = (not set)");
    result one = RUN(EVAL, "--attn-prefill-layer", "0=" SPARSE, "-o", "json", "--prefill-check", "0");
    doc = document(&one);
    const json_t *row = json_array_get(json_object_get(doc, "rows"), 0), *heads = json_object_get(row, "prefill_heads");
    static const char *const unknown[] = {"prefill_cra", "prefill_error", "prefill_error_max"}; // no row was checked
    for (int k = 0; k < 3; k++) CHECK(json_is_null(json_object_get(row, unknown[k])));
    CHECK(cell(heads, "density", 0, 0) < 1 && cell(heads, "density", 1, 0) == 1);
    json_decref(doc);
    result twice = RUN(EVAL, "--attn-prefill", "dense,dense");
    check_error(&twice, 2, "--attn-prefill: dense is named twice");
}

#define COMPARE "compare", "-m", tiny(), "--jsonl", in_tmp("c"), "-n", "3", "-o", "json", "--prefill-check", "2", "--attn"

static const json_t *method_at(const json_t *doc, size_t i) {
    return json_array_get(json_object_get(doc, "methods"), i);
}

// The line of compare's file: a long text under `key`, and a reference. question: NULL, or the line's question
static void spill_line(const char *key, const char *question) {
    json_t *line = json_pack("{s:s, s:s*, s:s}", key, prompt(), "question", question, "reference", " 1 2 3 4");
    char *text = json_dumps(line, 0);
    spill(in_tmp("c"), text, strlen(text));
    free(text), json_decref(line);
}

// Each method after each prefill, against dense decoding after dense prefill. A pair does not depend on the other pairs.
static void compare(void) {
    static const char *const keys[] = {"kl", "kl_max",          "top1",         "agreement",   "text_nll",     "ppl_answer",
                                       "l2", "prefill_density", "prefill_kept", "prefill_cra", "prefill_error"};
    spill_line("context", " House 3:");
    result r = RUN(COMPARE, "dense,topk:k=16", "--attn-prefill", "dense," SPARSE),
           alone = RUN(COMPARE, "topk:k=16", "--attn-prefill", SPARSE),
           steps = RUN(COMPARE, "topk:k=16", "--attn-prefill", SPARSE, "--no-texts"), plain = RUN(COMPARE, "topk:k=16");
    json_t *all = document(&r), *one = document(&alone), *forced = document(&steps), *dense = document(&plain);
    for (size_t i = 0; i < 4; i++) {
        const json_t *row = method_at(all, i);
        CHECK_STR(string(row, "attn"), i % 2 ? "topk:k=16" : "dense");
        CHECK_STR(string(row, "attn_prefill"), i < 2 ? "dense" : SPARSE);
        CHECK((number(row, "kl_max") == 0) == (i == 0) && number(row, "ttft_ms") > 0);
        CHECK(json_is_null(json_object_get(row, "prefill_heads")) == (i < 2));
    }
    for (int k = 0; k < 11; k++) CHECK(number(method_at(all, 3), keys[k]) == number(method_at(one, 0), keys[k]));
    for (int k = 0; k < 3; k++) CHECK(number(method_at(forced, 0), keys[k]) == number(method_at(one, 0), keys[k]));
    for (int k = 0; k < 7; k++) CHECK(number(method_at(dense, 0), keys[k]) == number(method_at(all, 1), keys[k]));
    CHECK(!json_object_get(method_at(dense, 0), "ttft_ms") && !json_object_get(method_at(dense, 0), "prefill_density"));
    CHECK(number(method_at(all, 2), "kl") > 0 && number(method_at(all, 2), "prefill_density") < 1);
    CHECK(cell(json_object_get(method_at(all, 2), "prefill_heads"), "density", 0, 0) <= 1);
    json_decref(all), json_decref(one), json_decref(forced), json_decref(dense);

    result md = RUN("compare", "-m", tiny(), "-p", question, "-n", "1", "--attn", "dense", "--attn-prefill", "streaming");
    CHECK_GOOD(md);
    CHECK_HAS(md.out, "| dense, prefill streaming:sink=4 | ");
    static const char other[] = "{\"prompt\":\"a\",\"attn_prefill\":\"sample\"}";
    spill(in_tmp("c"), other, strlen(other));
    result bad = RUN(COMPARE, "dense");
    CHECK_HAS(bad.err, "\"attn_prefill\": not supported here; give the methods with --attn-prefill");
}

// Rules for layers change every method of the list. `dense` of the list is then no longer what the methods are compared with.
static void compare_layers(void) {
    static const char *const keys[] = {"kl",           "top1",        "ppl_answer",   "prefill_density",
                                       "prefill_kept", "prefill_cra", "prefill_error"};
    spill_line("prompt", NULL);
    result by_rule = RUN(COMPARE, "dense", "--no-texts", "--attn-prefill-layer", "0-3=" NARROW),
           by_list = RUN(COMPARE, "dense", "--no-texts", "--attn-prefill", NARROW),
           some = RUN(COMPARE, "dense", "--attn-prefill", "dense," NARROW, "--attn-prefill-layer", "0=dense",
                      "--attn-prefill-layer", "1=" NARROW);
    json_t *a = document(&by_rule), *b = document(&by_list), *c = document(&some);
    for (int k = 0; k < 7; k++) {
        const json_t *x = json_object_get(method_at(a, 0), keys[k]), *y = json_object_get(method_at(b, 0), keys[k]);
        if (!json_equal(x, y)) FAIL("%s: the rule and the list differ", keys[k]);
    }
    CHECK(number(method_at(a, 0), "kl") > 0 && number(method_at(a, 0), "prefill_density") < 1);
    CHECK(json_equal(json_object_get(method_at(a, 0), "prefill_heads"), json_object_get(method_at(b, 0), "prefill_heads")));
    for (size_t i = 0; i < 2; i++) { // dense with layer 1 narrow; narrow with layer 0 dense
        const json_t *heads = json_object_get(method_at(c, i), "prefill_heads");
        CHECK(number(method_at(c, i), "kl") > 0);
        CHECK(cell(heads, "density", 0, 0) == 1 && cell(heads, "density", 1, 0) < 1);
        CHECK((cell(heads, "density", 2, 0) == 1) == (i == 0));
    }
    CHECK_STR(json_string_value(json_array_get(json_object_get(c, "attn_prefill_layer"), 1)), "1=" NARROW);
    CHECK(!json_object_get(b, "attn_prefill_layer"));
    json_decref(a), json_decref(b), json_decref(c);
    result bad = RUN(COMPARE, "dense", "--attn-prefill-layer", "1-2=santa");
    check_error(&bad, 2, "--attn-prefill-layer 1-2=santa: a method for decoding, which does not prefill");
}
#ifdef SLEIGH_CUDA
// auto takes the CPU for a method that a GPU does not prefill with, in a list too.
static void devices(void) {
    static const char cpu[] = "device: cpu, because a GPU does not offer oracle";
    result one = RUN(ONE, "--device", "auto", "--attn-prefill", "oracle");
    result list = RUN("compare", "-m", tiny(), "-p", question, "-n", "1", "--attn", "dense", "--attn-prefill",
                      "streaming,oracle", "--device", "auto");
    result rule = RUN(ONE, "--device", "auto", "--attn-prefill", "threshold:lambda=0.3");
    CHECK_GOOD(one);
    CHECK_GOOD(list);
    CHECK_GOOD(rule);
    CHECK_HAS(one.err, cpu);
    CHECK_HAS(list.err, cpu);
    CHECK_HAS(rule.err, "device: cpu, because a GPU does not offer threshold:lambda=0.3");
}
#endif

static const test_case cases[] = {
    {"layers", NEEDS_NOTHING, layers},
    {"refused", NEEDS_NOTHING, refused},
    {"stats", NEEDS_NOTHING, stats},
    {"lines", NEEDS_NOTHING, lines},
    {"bad_lines", NEEDS_NOTHING, bad_lines},
    {"chat", NEEDS_NOTHING, chat},
    {"eval", NEEDS_NOTHING, eval},
    {"compare", NEEDS_NOTHING, compare},
    {"compare_layers", NEEDS_NOTHING, compare_layers},
    GPU_CASE("devices", devices),
    {0},
};
const test_suite suite_cli_prefill = {"cli_prefill", cases};
