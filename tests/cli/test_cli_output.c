// tests/cli/test_cli_output.c - docs/output.md names every field that a command prints in JSON or csv, and no other field.
//
// A section of the page belongs to one output. The first cells of its tables with the heading "field" hold the fields, those of
// its tables with the heading "line" the keys of lines on stderr.
#include "cli/output/model_name.h"
#include "cli/output/print_json.h"
#include "tests/support/run_cli.h"

#include <jansson.h>
#include <stdlib.h>

// ---- names ----

enum { MAX_NAMES = 200, NAME = 48 };

typedef struct names {
    char at[MAX_NAMES][NAME];
    int optional[MAX_NAMES]; // the page says that it is printed only sometimes
    int n;
} names;

static int has(const names *list, const char *name, size_t n) {
    for (int i = 0; i < list->n; i++)
        if (strlen(list->at[i]) == n && !memcmp(list->at[i], name, n)) return 1;
    return 0;
}

static void add(names *list, const char *name, size_t n, int optional) {
    if (has(list, name, n)) return;
    CHECK(list->n < MAX_NAMES && n < NAME);
    snprintf(list->at[list->n], NAME, "%.*s", (int)n, name);
    list->optional[list->n++] = optional;
}

// ---- the page ----

// The text of the section with this title.
static const char *section(const char *title) {
    static char text[32768];
    char head[128];
    size_t n;
    const char *page = slurp("docs/output.md", &n);
    snprintf(head, sizeof head, "\n## %s\n", title);
    const char *from = strstr(page, head);
    if (!from) FAIL("docs/output.md has no section \"%s\"", title);
    from += strlen(head);
    const char *end = strstr(from, "\n## ");
    CHECK((size_t)(end ? end - from : (long)strlen(from)) < sizeof text);
    snprintf(text, sizeof text, "%.*s", (int)(end ? end - from : (long)strlen(from)), from);
    return text;
}

// The words in backticks in the first cells of the tables with this heading.
static names documented(const char *title, const char *heading) {
    names out = {.n = 0};
    int in_table = 0;
    size_t n = strlen(heading);
    for (const char *line = section(title); *line; line += strcspn(line, "\n"), line += *line == '\n') {
        if (*line != '|') in_table = 0;
        if (!strncmp(line, "| ", 2) && !strncmp(line + 2, heading, n) && !strncmp(line + 2 + n, " |", 2)) in_table = 1;
        if (!in_table) continue;
        const char *end = strchr(line + 1, '|');
        for (const char *p = strchr(line, '`'), *q; p && p < end; p = strchr(q + 1, '`')) {
            q = strchr(p + 1, '`');
            add(&out, p + 1, (size_t)(q - p - 1), !strncmp(end, "| only", 6));
        }
    }
    return out;
}

// Every printed name is in the page. Every name of the page was printed, unless it is optional.
static void compare_names(const char *title, const names *page, const names *printed) {
    for (int i = 0; i < printed->n; i++)
        if (!has(page, printed->at[i], strlen(printed->at[i])))
            FAIL("docs/output.md, \"%s\": lacks `%s`, which the program prints", title, printed->at[i]);
    for (int i = 0; i < page->n; i++)
        if (!page->optional[i] && !has(printed, page->at[i], strlen(page->at[i])))
            FAIL("docs/output.md, \"%s\": names `%s`, which the program does not print", title, page->at[i]);
}

static void check_fields(const char *title, const names *printed) {
    names page = documented(title, "field");
    CHECK(printed->n > 0);
    compare_names(title, &page, printed);
}

// ---- what is printed ----

static void add_keys(names *list, const json_t *value) {
    const char *key;
    size_t i;
    json_t *item;
    json_object_foreach((json_t *)value, key, item) {
        add(list, key, strlen(key), 0);
        add_keys(list, item);
    }
    json_array_foreach(value, i, item) add_keys(list, item);
}

// The keys of the JSON values of a text, of which each takes a line or the text is one value.
static void add_json(names *list, const char *text) {
    json_error_t e;
    while (*text) {
        json_t *value = json_loads(text, JSON_DISABLE_EOF_CHECK, &e);
        if (!value) FAIL("no JSON: %s: %.200s", e.text, text);
        add_keys(list, value);
        json_decref(value);
        text += e.position;
        text += strspn(text, " \n");
    }
}

static names keys_of(const result *r) {
    names out = {.n = 0};
    CHECK_GOOD(*r);
    add_json(&out, r->out);
    return out;
}

// The keys of the first row of -o csv and -o jsonl are equal.
static void check_csv(const result *csv, const result *jsonl) {
    char want[8192] = "";
    const char *key;
    json_t *value, *row = json_loads(jsonl->out, JSON_DISABLE_EOF_CHECK, NULL);
    CHECK_GOOD(*csv);
    CHECK_GOOD(*jsonl);
    CHECK(row != NULL);
    json_object_foreach(row, key, value)
        snprintf(want + strlen(want), sizeof want - strlen(want), "%s%s", *want ? "," : "", key);
    json_decref(row);
    csv->out[strcspn(csv->out, "\n")] = 0;
    CHECK_STR(csv->out, want);
}

// Each heading of a column of the Markdown tables is in the section.
static void check_columns(const char *title, const result *md) {
    const char *text = section(title);
    CHECK_GOOD(*md);
    for (const char *rule = md->out; (rule = strstr(rule, "\n|---|")); rule++) {
        const char *line = rule;
        while (line > md->out && line[-1] != '\n') line--;
        for (const char *p = line + 1, *end; p < rule; p = end + 1) {
            char cell[128];
            end = strchr(p, '|');
            snprintf(cell, sizeof cell, "%.*s", (int)(end - p > 2 ? end - p - 2 : 0), p + 1);
            if (!strstr(text, cell)) FAIL("docs/output.md, \"%s\": lacks the column \"%s\"", title, cell);
        }
    }
}

// Adds the keys of the lines `key: values` on stderr.
static void add_lines(names *list, const result *r) {
    CHECK_GOOD(*r);
    for (const char *line = r->err; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        const char *colon = strstr(line, ": ");
        if (!colon || colon > line + strcspn(line, "\n")) FAIL("a line without a key: %.100s", line);
        if (strncmp(line, "progress: ", 10)) add(list, line, (size_t)(colon - line), 0);
    }
}

// ---- the outputs ----

static void generate(void) {
    result r = RUN("generate", "-m", tiny(), "-p", question, "-n", "2", "-o", "json", "--logprobs", "1", "--display-prompt",
                   "--draft", "ngram");
    names printed = keys_of(&r);
    check_fields("generate -o json", &printed);
}

static void generate_lines(void) {
    static const char title[] = "generate: lines on stderr";
    static const char *const methods[] = {"dense", "santa-pps:epsilon=0.2:certify=head",
                                          "santa-pps:epsilon=0.2:certify=layer:on-miss=dense", "bernoulli:B=8", "vattention"};
    names printed = {.n = 0}, page = documented(title, "line");
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        result r = RUN("generate", "-m", tiny(), "-p", long_text(40), "-n", "2", "--dense-prefix", "850", "--attn", methods[i]);
        add_lines(&printed, &r);
    }
    result sparse =
        RUN("generate", "-m", tiny(), "-p", question, "-n", "2", "--attn-prefill", "sample", "--prefill-check", "1");
    add_lines(&printed, &sparse);
    result drafts = RUN("generate", "-m", tiny(), "-p", question, "-n", "2", "--draft", "ngram");
    add_lines(&printed, &drafts);
    spill(in_tmp("prompts"), "The sky\n", 8);
    result r = RUN("generate", "-m", tiny(), "--prompts", in_tmp("prompts"), "-n", "2", "--draft", "ngram");
    add_lines(&printed, &r);
    compare_names(title, &page, &printed);
}

static void stats(void) {
    size_t n;
    char file[256];
    names printed = {.n = 0};
    snprintf(file, sizeof file, "%s", in_tmp("stats"));
    result r = RUN("generate", "-m", tiny(), "-p", question, "-n", "2", "--attn", "santa", "--stats", file, "--stats-error",
                   "--attn-prefill", "sample");
    CHECK_GOOD(r);
    char *text = slurp(file, &n);
    char *step = strstr(text, "\"n_kv\"");
    CHECK(step != NULL);
    while (step[-1] != '\n') step--;
    text[strcspn(text, "\n")] = 0; // the lines of each kind have the same fields (cli_jsonl/stats_file, cli_prefill/stats)
    step[strcspn(step, "\n")] = 0;
    CHECK_HAS(text, "\"prefill_error\":null,\"prefill_error_max\":null"); // no row was checked
    add_json(&printed, text);
    add_json(&printed, step);
    check_fields("generate --stats", &printed);
}

static void tokenize(void) {
    result r = RUN("tokenize", "-m", tiny(), "-p", "Hello", "-o", "json");
    names printed = keys_of(&r);
    check_fields("tokenize -o json", &printed);
    json_t *o = document(&r);
    CHECK_INT(number(o, "n_tokens"), (double)json_array_size(json_object_get(o, "tokens")));
    json_decref(o);
}

static void inspect(void) {
    result json = RUN("inspect", "-m", tiny(), "-o", "json"), csv = RUN("inspect", "-m", tiny(), "-o", "csv"),
           jsonl = RUN("inspect", "-m", tiny(), "-o", "jsonl"), md = RUN("inspect", "-m", tiny());
    names printed = keys_of(&json), row = keys_of(&jsonl);
    check_fields("inspect", &printed);
    for (int i = 0; i < row.n; i++) CHECK(has(&printed, row.at[i], strlen(row.at[i])));
    check_csv(&csv, &jsonl);
    CHECK(!strncmp(md.out, "model: tiny (llama, ", 20));
}

static void methods(void) {
    result json = RUN("methods", "-o", "json"), csv = RUN("methods", "-o", "csv"), jsonl = RUN("methods", "-o", "jsonl"),
           md = RUN("methods");
    names printed = keys_of(&json);
    check_fields("methods", &printed);
    printed = keys_of(&jsonl);
    check_fields("methods", &printed);
    check_csv(&csv, &jsonl);
    check_columns("methods", &md);
}

#define BENCH "bench", "-m", tiny(), "-p", "8", "-n", "2", "-r", "2", "-b", "1,2", "--attn", "topk:k=8", "--memory-rate", "30"
#define DECODE "bench", "decode", "-m", tiny(), "-d", "16", "-n", "2", "-b", "1", "--memory-rate", "30"

static void bench(void) {
    result json = RUN(BENCH, "-o", "json"), csv = RUN(BENCH, "-o", "csv"), jsonl = RUN(BENCH, "-o", "jsonl"), md = RUN(BENCH);
    names printed = keys_of(&json);
    check_fields("bench", &printed);
    check_csv(&csv, &jsonl);
    check_columns("bench", &md);
    json = RUN(DECODE, "-o", "json"), md = RUN(DECODE);
    printed = keys_of(&json);
    check_fields("bench", &printed);
    check_columns("bench", &md);
}

#define DRAFT "bench", "draft", "-m", tiny(), "-d", "16", "-n", "2", "-r", "1", "--draft", "ngram"

static void bench_draft(void) {
    result json = RUN(DRAFT, "-o", "json"), csv = RUN(DRAFT, "-o", "csv"), jsonl = RUN(DRAFT, "-o", "jsonl"), md = RUN(DRAFT),
           passes = RUN("bench", "draft", "-m", tiny(), "-d", "16", "-r", "1");
    names printed = keys_of(&json);
    check_fields("bench draft", &printed);
    check_csv(&csv, &jsonl);
    check_columns("bench draft", &md);
    check_columns("bench draft", &passes);
}

#define LINEAR "bench", "linear", "-m", tiny(), "-r", "1", "--memory-rate", "20"

static void bench_linear(void) {
    result json = RUN(LINEAR, "-o", "json"), csv = RUN(LINEAR, "-o", "csv"), jsonl = RUN(LINEAR, "-o", "jsonl"),
           md = RUN(LINEAR);
    names printed = keys_of(&json);
    check_fields("bench linear", &printed);
    check_csv(&csv, &jsonl);
    check_columns("bench linear", &md);
}

#define ATTN "bench", "attn", "-b", "1", "-d", "512", "-r", "2", "--attn", "dense"

static void bench_attn(void) {
    result json = RUN(ATTN, "-o", "json"), csv = RUN(ATTN, "-o", "csv"), jsonl = RUN(ATTN, "-o", "jsonl"), md = RUN(ATTN);
    names printed = keys_of(&json), rows = keys_of(&jsonl);
    check_csv(&csv, &jsonl);
    check_fields("bench attn", &printed);
    for (int i = 0; i < rows.n; i++) CHECK(has(&printed, rows.at[i], strlen(rows.at[i])));
    check_columns("bench attn", &md);
}

static void calibrate(void) {
    char file[256];
    size_t n;
    names printed = {.n = 0};
    snprintf(file, sizeof file, "%s", in_tmp("table"));
    result r = RUN("bench", "attn", "--calibrate", "-m", tiny(), "-b", "1", "-d", "256", "-p", "256", "-r", "1",
                   "--calibration", file);
    CHECK_GOOD(r);
    CHECK(!strncmp(r.out, "model: tiny\n", 12));
    add_json(&printed, slurp(file, &n));
    check_fields("bench attn --calibrate", &printed);
}

#define CLIFFS                                                                                                                 \
    "bench", "attn", "--cliffs", "-m", tiny(), "--device", "cpu", "-b", "1", "-d", "64,65", "-r", "1", "--attn", "santa-pps:S=4"

static void cliffs(void) {
    result json = RUN(CLIFFS, "-o", "json"), csv = RUN(CLIFFS, "-o", "csv"), jsonl = RUN(CLIFFS, "-o", "jsonl");
    names printed = keys_of(&json);
    check_fields("bench attn --cliffs", &printed);
    check_csv(&csv, &jsonl);
}

#define COMPARE                                                                                                                \
    "compare", "-m", tiny(), "-p", "The sky is", "-n", "3", "--prefill-check", "1", "--attn-prefill", "sample",                \
        "--attn-prefill-layer", "0=dense", "--attn", "santa:S=4,santa-pps:epsilon=0.3:certify=layer", "--attention"

static void compare_methods(void) {
    result json = RUN(COMPARE, "-o", "json"), csv = RUN(COMPARE, "-o", "csv"), jsonl = RUN(COMPARE, "-o", "jsonl"),
           md = RUN(COMPARE);
    names printed = keys_of(&json);
    check_fields("compare", &printed);
    check_csv(&csv, &jsonl);
    check_columns("compare", &md);
    CHECK(!strncmp(md.out, "model: tiny (llama, ", 20));
    CHECK_HAS(section("compare"), "`switch`");
}

// The keys on stderr are named in the text of the section.
static void check_lines(const char *title, const result *r) {
    names printed = {.n = 0};
    add_lines(&printed, r);
    for (int i = 0; i < printed.n; i++) {
        char word[NAME + 2];
        snprintf(word, sizeof word, "`%s`", printed.at[i]);
        if (!strstr(section(title), word)) FAIL("docs/output.md, \"%s\": lacks the line %s", title, word);
    }
}

// The texts of a file, without and with histories. Adds their fields to *printed.
static void perplexity_texts(const char *file, names *printed) {
    json_t *line = json_pack("{s:s}", "text", long_text(12));
    json_dump_file(line, file, 0);
    json_decref(line);
#define TEXTS "perplexity", "-m", tiny(), "--jsonl", file, "-c", "64", "--windows", "2"
#define HISTORIES TEXTS, "--history", "8,all"
    result json = RUN(TEXTS, "-o", "json"), csv = RUN(TEXTS, "-o", "csv"), jsonl = RUN(TEXTS, "-o", "jsonl"), md = RUN(TEXTS);
    add_json(printed, json.out);
    check_csv(&csv, &jsonl);
    check_columns("perplexity", &md);
    json = RUN(HISTORIES, "-o", "json"), csv = RUN(HISTORIES, "-o", "csv"), jsonl = RUN(HISTORIES, "-o", "jsonl");
    add_json(printed, json.out);
    check_csv(&csv, &jsonl);
    md = RUN(HISTORIES);
    CHECK_GOOD(md);
    CHECK_HAS(md.out, "| perplexity after 8 | perplexity after all |\n");
    md.out = strstr(md.out, "\n\n| history ") + 1; // the names of the other table's columns hold the histories
    check_columns("perplexity", &md);
}

static void perplexity(void) {
    char file[256];
    snprintf(file, sizeof file, "%s", in_tmp("text"));
    spill(file, long_text(12), strlen(long_text(12)));
#define PERPLEXITY "perplexity", "-m", tiny(), "-f", file, "-c", "64"
    result json = RUN(PERPLEXITY, "-o", "json"), csv = RUN(PERPLEXITY, "-o", "csv"), jsonl = RUN(PERPLEXITY, "-o", "jsonl"),
           md = RUN(PERPLEXITY);
    names printed = keys_of(&json);
    check_csv(&csv, &jsonl);
    check_columns("perplexity", &md);
    check_lines("perplexity", &md);
    perplexity_texts(file, &printed);
    check_fields("perplexity", &printed);
}

static void eval(void) {
    char out[256], dump[256];
    size_t n;
    snprintf(out, sizeof out, "%s", in_tmp("out"));
    snprintf(dump, sizeof dump, "%s", in_tmp("dump"));
#define EVAL "eval", "-m", tiny(), "--task", "niah-single", "--length", "300", "--samples", "1", "--attn", "dense,santa"
    result json = RUN(EVAL, "--out", out, "-o", "json"), md = RUN(EVAL), csv = RUN(EVAL, "-o", "csv"),
           jsonl = RUN(EVAL, "-o", "jsonl"), dumped = RUN(EVAL, "--dump", dump);
    CHECK_GOOD(dumped);
    json_t *o = document(&json), *settings = json_incref(json_object_get(o, "settings"));
    json_object_set_new(o, "settings", json_null()); // its fields are in the next section
    names printed = {.n = 0}, lines = {.n = 0}, prompts = {.n = 0};
    add_keys(&printed, o);
    check_fields("eval", &printed);
    check_csv(&csv, &jsonl);
    check_lines("eval", &md);
    add_json(&lines, slurp(out, &n));
    check_fields("eval --out", &lines);
    printed.n = 0;
    add_keys(&printed, settings);
    for (int i = 0; i < printed.n; i++) CHECK(has(&lines, printed.at[i], strlen(printed.at[i])));
    add_json(&prompts, slurp(dump, &n));
    check_fields("eval --dump", &prompts);
    json_decref(settings);
    json_decref(o);
}

// The lines of a picture's data that begin with #.
static void pictures(void) {
    char svg[256], dat[256];
    size_t n;
    names printed = {.n = 0}, page = documented("Pictures", "line");
    snprintf(svg, sizeof svg, "%s", in_tmp("p.svg"));
    snprintf(dat, sizeof dat, "%s", in_tmp("p.dat"));
    result r = RUN(COMPARE, "--plot", svg);
    CHECK_GOOD(r);
    for (const char *line = slurp(dat, &n); *line; line += strcspn(line, "\n"), line += *line == '\n')
        if (*line == '#') add(&printed, line, strcspn(line, ":"), 0);
    compare_names("Pictures", &page, &printed);
}

static void version(void) {
    names printed = {.n = 0}, page = documented("version", "line");
    result r = RUN("version");
    CHECK_GOOD(r);
    for (const char *line = r.out; *line; line += strcspn(line, "\n"), line += *line == '\n')
        add(&printed, line, strcspn(line, ": "), 0);
    compare_names("version", &page, &printed);
}

// JSON is UTF-8, whatever the name of a file is.
static void file_names(void) {
    static const char *const cases[][2] = {
        {"a/b.txt", "a/b.txt"}, {"caf\xe9/\xc3\xa9.txt", "caf?/??.txt"}, {"caf\xc3\xa9", "caf\xc3\xa9"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *name = cli_file_json(cases[i][0]);
        CHECK_STR(json_string_value(name), cases[i][1]);
        json_decref(name);
    }
    const char *file = in_tmp("caf\xe9.txt");
    spill(file, "The old river is long.", 22);
    result r = RUN("perplexity", "-m", tiny(), "-f", file, "-o", "json");
    CHECK_GOOD(r);
    CHECK_HAS(r.out, "caf?.txt\"");
    CHECK_HAS(r.err, "setup: 1 window of ");
}

// The name of a model is that of its folder, or ORGANISATION/NAME in the cache of the hub.
static void model_names(void) {
    static const struct {
        const char *path, *name;
    } cases[] = {
        {"models/tiny", "tiny"},
        {"/a/tiny//", "tiny"},
        {"tiny", "tiny"},
        {"/c/hub/models--meta-llama--Llama-3.1-8B/snapshots/0e9e39f2/", "meta-llama/Llama-3.1-8B"},
        {"models--gpt--a--b/snapshots/1", "gpt/a--b"},
        {"models--gpt2/snapshots/1", "gpt2"},
        {"models--x--y/snapshot/1", "1"},
        {"snapshots/1", "1"},
        {"a|b\n", "a?b?"},
        {"caf\xe9", "caf?"},
        {"caf\xc3\xa9", "caf\xc3\xa9"},
    };
    char name[64];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cli_model_folder_name(cases[i].path, name, sizeof name);
        CHECK_STR(name, cases[i].name);
    }
    cli_model_folder_name(".", name, sizeof name);
    CHECK(*name && strcmp(name, "."));
    const cli_model_name big = {.name = "x", .type = "llama", .dtype = "bf16", .n_params = 8.03e9, .is_dummy = 1};
    char text[CLI_MODEL_TEXT];
    CHECK_STR(cli_model_name_text(&big, text), "x (llama, 8.03 B parameters, bf16, random weights)");
}

static const test_case cases[] = {
    {"file-names", NEEDS_NOTHING, file_names},
    {"model-names", NEEDS_NOTHING, model_names},
    {"generate", NEEDS_NOTHING, generate},
    {"generate-lines", NEEDS_NOTHING, generate_lines},
    {"stats", NEEDS_NOTHING, stats},
    {"tokenize", NEEDS_NOTHING, tokenize},
    {"inspect", NEEDS_NOTHING, inspect},
    {"methods", NEEDS_NOTHING, methods},
    {"bench", NEEDS_NOTHING, bench},
    {"bench-draft", NEEDS_NOTHING, bench_draft},
    {"bench-linear", NEEDS_NOTHING, bench_linear},
    {"bench-attn", NEEDS_GPU, bench_attn},
    {"calibrate", NEEDS_NOTHING, calibrate},
    {"cliffs", NEEDS_NOTHING, cliffs},
    {"compare", NEEDS_NOTHING, compare_methods},
    {"perplexity", NEEDS_NOTHING, perplexity},
    {"eval", NEEDS_NOTHING, eval},
    {"pictures", NEEDS_NOTHING, pictures},
    {"version", NEEDS_NOTHING, version},
    {0},
};
extern const test_suite suite_cli_output;
const test_suite suite_cli_output = {"cli_output", cases};
