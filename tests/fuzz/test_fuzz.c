// tests/fuzz/test_fuzz.c - replays the inputs of tests/fuzz without a fuzzer. Also tests null in files of prompts, questions
// and results, and the escapes that messages write for bytes that a terminal must not receive.
#include "attention/auto.h"
#include "cli/eval/eval_records.h"
#include "cli/eval/eval_scores.h"
#include "cli/records.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/nulls.h"
#include "tests/test.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

// ---- inputs ----

static char input[512]; // path of the current input

const char *fuzz_dir(void) {
    return test_tmp();
}

void fuzz_failed(const char *file, int line, const char *what, const char *found) {
    test_fail(file, line, "%s: %s does not hold: %s", input, what, found);
}

// Runs the complete file and 16 prefixes of it. The memory has exactly the size of the input, so that a read past the end
// faults.
static void run_file(const fuzz_target *target) {
    enum { MOST = 16384, CUTS = 16 };
    static char data[MOST];
    FILE *f = fopen(input, "rb");
    CHECK(f != NULL);
    size_t n = fread(data, 1, MOST, f);
    CHECK(n < MOST && !fclose(f));
    for (int i = CUTS; i >= 0; i--) {
        size_t m = n * (size_t)i / CUTS;
        char *copy = malloc(m ? m : 1);
        CHECK(copy != NULL);
        memcpy(copy, data, m);
        target->run(copy, m);
        free(copy);
    }
}

static int run_folder(const char *folder, const fuzz_target *target) {
    char path[256];
    int n = 0;
    snprintf(path, sizeof path, "tests/fuzz/%s/%s", folder, target->name);
    DIR *dir = opendir(path);
    if (!dir) FAIL("%s is not there", path);
    for (const struct dirent *e; (e = readdir(dir));) {
        if (e->d_name[0] == '.') continue;
        snprintf(input, sizeof input, "%s/%s", path, e->d_name);
        run_file(target);
        n++;
    }
    closedir(dir);
    return n;
}

static void replay(const char *name, int least) {
    const fuzz_target *target = fuzz_find(name);
    CHECK(target != NULL);
    int n = run_folder("seeds", target) + run_folder("crashes", target);
    if (n < least) FAIL("%s: %d inputs, expected at least %d", name, n, least);
}

static void safetensors(void) {
    replay("safetensors", 11);
}
static void buckets(void) {
    replay("buckets", 5);
}
static void model(void) {
    replay("model", 16);
}
static void config(void) {
    replay("config", 11);
}
static void gguf(void) {
    replay("gguf", 4);
}
static void bpe(void) {
    replay("bpe", 10);
}
static void tokenizer_model(void) {
    replay("tokenizer-model", 12);
}
static void tekken(void) {
    replay("tekken", 2);
}
static void pattern(void) {
    replay("pattern", 8);
}
static void text(void) {
    replay("text", 11);
}
static void http(void) {
    replay("http", 10);
}
static void jinja(void) {
    replay("jinja", 2);
}

static void chat(void) {
    replay("chat", 13);
}
static void conversation(void) {
    replay("conversation", 3);
}
static void jsonl(void) {
    replay("jsonl", 11);
}
static void questions(void) {
    replay("questions", 12);
}
static void attn(void) {
    replay("attn", 21);
}
static void results(void) {
    replay("results", 15);
}

static void plot(void) {
    replay("plot", 4);
}

static void api(void) {
    replay("api", 21);
}
static void calls(void) {
    replay("calls", 50);
}
static void grammar(void) {
    replay("grammar", 12);
}

static void all_targets(void) { // each target needs a case here, or nothing replays its inputs
    static const char *const here[] = {
        "safetensors", "buckets", "model",   "config", "gguf",  "bpe",          "tokenizer-model",
        "tekken",      "pattern", "text",    "chat",   "jinja", "conversation", "jsonl",
        "questions",   "attn",    "results", "plot",   "api",   "calls",        "grammar",
        "http",        NULL};
    int n = 0;
    for (; fuzz_targets[n].name && here[n]; n++) CHECK_STR(fuzz_targets[n].name, here[n]);
    CHECK(!fuzz_targets[n].name && !here[n]);
}

// ---- messages ----

static void messages(void) {
    static const struct {
        const char *text, *want;
    } rows[] = {
        {"plain \\ text ~", "plain \\ text ~"},
        {"caf\xc3\xa9 \xe6\x95\x8f \xf0\x9f\xa6\xa5 \xc2\xa0 \xee\x80\x80",
         "caf\xc3\xa9 \xe6\x95\x8f \xf0\x9f\xa6\xa5 \xc2\xa0 \xee\x80\x80"},
        {"\x1b[2J\x07 two\nlines\r\t\x7f", "\\x1b[2J\\x07 two\\x0alines\\x0d\\x09\\x7f"},
        {"\xc2\x9b"
         "31m \xc2\x80",
         "\\xc2\\x9b31m \\xc2\\x80"}, // an 8-bit ESC [
        {"\x9b"
         "31m \xff\xfe",
         "\\x9b31m \\xff\\xfe"},
        {"cut \xe2\x82", "cut \\xe2\\x82"},
        {"\xe2\x82z \xf0\x9f\xa6", "\\xe2\\x82z \\xf0\\x9f\\xa6"},
        {"\xc0\xaf \xe0\x80\xaf \xf0\x80\x80\xaf", "\\xc0\\xaf \\xe0\\x80\\xaf \\xf0\\x80\\x80\\xaf"}, // overlong forms
        {"\xed\xa0\x80 \xed\x9f\xbf", "\\xed\\xa0\\x80 \xed\x9f\xbf"},                                 // a surrogate
        {"\xf4\x90\x80\x80 \xf4\x8f\xbf\xbf \xf5", "\\xf4\\x90\\x80\\x80 \xf4\x8f\xbf\xbf \\xf5"},
    };
    sl_error e;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        CHECK_INT(sl_fail(&e, SL_ERR_FORMAT, "%s", rows[i].text), SL_ERR_FORMAT);
        CHECK_STR(e.message, rows[i].want);
        sl_fail(&e, SL_ERR_FORMAT, "again: %s", e.message); // a message that is quoted again does not change
        CHECK_STR(e.message + 7, rows[i].want);
    }
    for (int shift = 0; shift < 4; shift++) { // a truncated message
        char text[2048];
        for (size_t i = 0; i < sizeof text - 4; i++)
            text[i] = i < (size_t)shift ? 'a' : "\xf0\x9f\xa6\xa5"[(i - (size_t)shift) % 4];
        text[sizeof text - 4] = 0;
        sl_fail(&e, SL_ERR_FORMAT, "%s", text);
        CHECK(!strchr(e.message, '\\') && strlen(e.message) > 1015 && fuzz_ok(0, &e));
        CHECK(!fuzz_ok(SL_ERR_FORMAT, &e));
        memset(text, 7, sizeof text - 1);
        sl_fail(&e, SL_ERR_FORMAT, "%s", text + shift);
        CHECK(strlen(e.message) == 1020 && !strcmp(e.message + 1016, "\\x07"));
    }
}

// ---- null ----

static const char *const no_maps[] = {NULL};

static int write_description(char *out, size_t size, int rc, const sl_error *e, const char *fmt, ...) {
    va_list ap;
    if (rc) return snprintf(out, size, "%s", e->message);
    va_start(ap, fmt);
    int n = vsnprintf(out, size, fmt, ap);
    va_end(ap);
    return n;
}

static void describe_prompt(char *out, size_t size) {
    cli_records r;
    sl_error e = {0};
    json_t *record = NULL;
    CHECK_OK(cli_records_open(&r, fuzz_path("prompts"), 0, &e), e);
    int rc = cli_records_next(&r, &record, &e);
    const char *attn = record ? cli_record_attn(record) : NULL;
    write_description(out, size, rc, &e, "%s %u", attn ? attn : "-", record ? cli_record_sequence(record, 3, 4) : 0);
    json_decref(record);
    cli_records_close(&r);
}

static void describe_question(char *out, size_t size) {
    eval_records r;
    sl_error e = {0};
    int rc = eval_records_read(fuzz_path("questions"), GRADE_NONE, NULL, -1, &r, &e);
    const eval_item *item = rc ? NULL : r.at->text.items;
    char *references = rc ? NULL : json_dumps(item->references, 0);
    const sl_text *context = rc ? NULL : &r.at->text.context;
    write_description(out, size, rc, &e, "%s|%s|%s|%s|%s|%s", rc ? "" : r.at->task, !rc && context->data ? context->data : "-",
                      rc ? "" : item->question.data, !rc && item->prefix.data ? item->prefix.data : "-", references,
                      rc ? "" : eval_grader_name(item->grader));
    free(references);
    if (!rc) eval_records_free(&r);
}

static void describe_table(char *out, size_t size) {
    sl_auto_table t;
    sl_error e = {0};
    int rc = sl_auto_read(fuzz_path("table"), 0, &t, &e);
    write_description(out, size, rc, &e, "%s %d", rc ? "" : t.device, rc ? 0 : t.n_points);
    sl_auto_free(&t);
}

// The first line of a file of results.
static void describe_results(char *out, size_t size) {
    static char name[] = "dense", line[1024];
    char *methods[] = {name};
    eval_group group = {"t", 0, 0, 1};
    eval_scores s = {.groups = &group, .n_groups = 1, .n_samples = 1, .methods = methods, .n_methods = 1};
    json_t *settings = json_pack("{s:s, s:n, s:i}", "model", "m", "system-prompt", "seed", 1);
    sl_error e = {0};
    FILE *f = fopen(fuzz_path("head"), "rb");
    CHECK(settings && f && fgets(line, sizeof line - 1, f));
    fclose(f);
    strcat(line, "\n");
    fuzz_write("results", line, strlen(line));
    CHECK_OK(eval_scores_alloc(&s, &e), e);
    int rc = eval_file_open(fuzz_path("results"), settings, &s, &f, &e);
    if (!rc) fclose(f);
    write_description(out, size, rc, &e, "fits");
    s.groups = NULL;
    eval_scores_free(&s);
    json_decref(settings);
}

static void nulls(void) {
    static const struct {
        const char *text, *file;
        null_probe probe;
        int n;
        const char *want; // part of the message for this file
    } files[] = {
        {"{\"context\":\"c\",\"question\":\"q\",\"attn\":\"santa:S=4\",\"seq\":9,\"id\":1}", "prompts", describe_prompt, 5,
         "santa:S=4 9"},
        {"{\"prompt\":\"p\",\"context\":null,\"seq\":null}", "prompts", describe_prompt, 3, "- 7"},
        {"{\"input\":\"a\\nb\",\"question\":\"b\",\"outputs\":[\"x\"],\"answer\":\"y\",\"task\":\"t\",\"grader\":\"exact\","
         "\"answer_prefix\":\"A\"}",
         "questions", describe_question, 7, "t|a\n|b|A|[\"y\"]|exact"},
        {"{\"prompt\":null,\"question\":\"q\",\"context\":\"c\",\"choices\":[\"x\",\"y\"],\"answers\":null,\"answer\":1}",
         "questions", describe_question, 6, "questions|c|q\nA. x\nB. y|-|[\"B\"]|choice-line"},
        {"{\"prompt\":\"p\",\"answers\":[\"x\"]}", "questions", describe_question, 2, "questions|-|p|-|[\"x\"]|substring"},
        {"{\"format\":\"sleigh attention calibration 1\",\"device\":\"cpu\",\"date\":\"2026\",\"n_heads\":4,\"n_kv_heads\":2,"
         "\"head_dim\":64,\"query_deviation\":1.0,\"attn\":[\"dense\"],\"points\":[{\"n_seqs\":1,\"n_kv\":64,\"us\":[2]}]}",
         "table", describe_table, 12, "cpu 1"},
        {"{\"sleigh_eval\":1,\"commit\":\"x\",\"settings\":{\"model\":\"m\",\"seed\":1,\"stop\":null}}", "head",
         describe_results, 6, "fits"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char found[1024];
        json_t *root = json_loads(files[i].text, 0, NULL);
        CHECK(root != NULL);
        CHECK(!json_dump_file(root, fuzz_path(files[i].file), 0));
        files[i].probe(found, sizeof found);
        CHECK_STR(found, files[i].want);
        CHECK_INT(test_nulls(root, files[i].file, no_maps, files[i].probe), files[i].n);
        json_decref(root);
    }
}

static const test_case cases[] = {
    {"safetensors", 0, safetensors},
    {"buckets", 0, buckets},
    {"model", 0, model},
    {"config", 0, config},
    {"gguf", 0, gguf},
    {"bpe", 0, bpe},
    {"tokenizer-model", 0, tokenizer_model},
    {"tekken", 0, tekken},
    {"pattern", 0, pattern},
    {"text", 0, text},
    {"chat", 0, chat},
    {"http", NEEDS_NOTHING, http},
    {"jinja", 0, jinja},
    {"conversation", NEEDS_NOTHING, conversation},
    {"jsonl", 0, jsonl},
    {"questions", 0, questions},
    {"attn", 0, attn},
    {"results", 0, results},
    {"plot", 0, plot},
    {"api", 0, api},
    {"calls", 0, calls},
    {"grammar", 0, grammar},
    {"all-targets", 0, all_targets},
    {"messages", 0, messages},
    {"nulls", 0, nulls},
    {0},
};
extern const test_suite suite_fuzz;
const test_suite suite_fuzz = {"fuzz", cases};
