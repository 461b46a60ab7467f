// tests/cli/test_cli_compare_forms.c - cases of the suite cli_compare: batches of prompts, set-ups, chat templates, tables,
// pictures and errors. test_cli_compare.c has the cases about figures.
#include "tests/cli/compare_cases.h"

#include "cli/process.h"
#include "engine/engine.h"
#include "tokenizer/tokenizer.h"

#include <stdlib.h>

// A batch of prompts changes no byte of the output. The prompts and references have different lengths; the last batch is not
// full.
void case_parallel(void) {
    static const char attn[] = "santa-prop:S=12,santa-pps:S=8:budget=even,dense,santa-pps:S=8:budget=carried,"
                               "santa-pps:epsilon=0.3:certify=layer,santa-pps:epsilon=0.3:certify=layer:on-miss=dense";
    char file[16384] = "", path[256];
    result first = {0};
    for (int i = 0; i < 5; i++) {
        char reference[2048];
        snprintf(reference, sizeof reference, " The grass is %s.", i == 2 ? long_text(2) : "green");
        compare_add_line(file, sizeof file,
                         json_pack("{s:s, s:s}", "prompt", i == 4 ? "The grass" : long_text(3 + i), "reference", reference));
    }
    snprintf(path, sizeof path, "%s", in_tmp("five.jsonl"));
    spill(path, file, strlen(file));
    for (int i = 1; i <= 5; i += 2) {
        char n[8];
        snprintf(n, sizeof n, "%d", i);
        result r = RUN("compare", "-m", tiny(), "--jsonl", path, "--attn", attn, "--no-texts", "--no-heads", "-o", "json",
                       "--parallel", n);
        CHECK_GOOD(r);
        if (i == 1)
            first = r;
        else
            CHECK_STR(r.out, first.out);
    }
}

// The times of switches and of the steps after them are parts of the time of the command.
static void check_switches(const result *r, int n, double ms) {
    char line[256];
    double us, first, other;
    int n_switches;
    CHECK(sscanf(stat_line(r, "switch", line),
                 "%lf us to set a method, %lf ms for the first step after it, %lf ms for other steps; %d", &us, &first, &other,
                 &n_switches) == 4);
    CHECK_INT(n_switches, n);
    CHECK(us > 0 && first > 0 && other > 0 && n * (us / 1e3 + first) + other < ms);
}

// One prompt in set-ups A and B; dense attention prefills the question in A. Many methods on a context of one page need pages
// for many forks.
void case_set_ups(void) {
    static const char attn[] = "santa:S=4,santa:S=5,santa:S=6,santa:S=7,santa:S=8,santa-sys:S=8,topk:k=2,quest:tokens=16";
    result a = RUN("compare", "-m", tiny(), "-p", question, "--attn", attn, "-n", "12", "--ignore-eos", "-o", "json");
    double start = sl_now_ms();
    result b = RUN("compare", "-m", tiny(), "-p", question, "--attn", attn, "-n", "12", "--ignore-eos", "-o", "json",
                   "--dense-prefix", "5");
    CHECK_HAS(a.err, "setup: A, ");
    CHECK_HAS(b.err, "setup: B, ");
    check_switches(&b, 1 + 8, sl_now_ms() - start);
    json_t *x = document(&a), *y = document(&b);
    int n_prompt = (int)number(compare_item(x, "prompts", 0), "n_prompt");
    for (size_t m = 0; m < 8; m++) {
        CHECK_INT(number(compare_item(x, "methods", m), "positions"), 11); // dense logits give the first answer token
        CHECK_INT(number(compare_item(x, "methods", m), "question_tokens"), 0);
        CHECK(json_is_null(json_object_get(compare_item(x, "methods", m), "ppl_question")));
        CHECK_INT(number(compare_item(y, "methods", m), "positions"), n_prompt - 5 + 11);
        CHECK_INT(number(compare_item(y, "methods", m), "question_tokens"), n_prompt - 6);
    }
    json_decref(x), json_decref(y);
    x = compare_json(compare_spill_records(1), "santa:S=4", "--question-dense");
    CHECK_INT(number(compare_item(x, "methods", 0), "question_tokens"), 0);
    CHECK(number(compare_item(x, "prompts", 0), "n_dense") == number(compare_item(x, "prompts", 0), "n_prompt"));
    json_decref(x);
    spill(in_tmp("ref.txt"), " 48213.", 7);
    result r = RUN("compare", "-m", tiny(), "-p", question, "--attn", "topk:k=2", "-n", "2", "--reference", in_tmp("ref.txt"));
    CHECK_GOOD(r);
    CHECK_HAS(r.out, "or the reference: ");
}

// --chat puts prompts into the model's template, as in generate. In a record, the dense part is the context with the template
// before it.
void case_chats(void) {
    static const char context[] = "The hidden number of the harbor is 48213. The grass is green. ", asked[] = "What is it?";
    char text[256], lines[512] = "";
    snprintf(text, sizeof text, "%s%s", context, asked);
    compare_add_line(lines, sizeof lines, json_pack("{s:s, s:s}", "context", context, "question", asked));
    compare_add_line(lines, sizeof lines, json_pack("{s:s, s:s}", "prompt", text, "reference", " 48213."));
    spill(in_tmp("chat.jsonl"), lines, strlen(lines));
    for (int chat = 0; chat < 2; chat++) {
        result said = RUN("generate", "-m", tiny(), "-p", text, "-n", "8", "--ignore-eos", "--temp", "0",
                          chat ? "--chat" : NULL, "--chat-template", "llama3", "-sys", "Be brief."),
               r = RUN("compare", "-m", tiny(), "--jsonl", in_tmp("chat.jsonl"), "-n", "8", "--ignore-eos", "--attn",
                       "topk:k=4", "-o", "json", chat ? "--chat" : NULL, "--chat-template", "llama3", "-sys", "Be brief."),
               one = RUN("compare", "-m", tiny(), "-p", text, "-n", "8", "--ignore-eos", "--attn", "topk:k=4", "-o", "json",
                         chat ? "--chat" : NULL, "--chat-template", "llama3", "-sys", "Be brief.");
        char line[256];
        int n_prompt;
        CHECK_GOOD(said);
        CHECK(sscanf(strchr(stat_line(&said, "stopped", line), ','), ", %d prompt", &n_prompt) == 1);
        json_t *many = document(&r), *single = document(&one);
        for (size_t i = 0; i < 3; i++) {
            const json_t *prompt = compare_item(i < 2 ? many : single, "prompts", i % 2),
                         *dense = json_object_get(prompt, "dense");
            CHECK_INT(number(prompt, "n_prompt"), n_prompt);
            CHECK_STR(json_string_value(json_object_get(dense, "text")), said.out);
            if (i == 0) CHECK(number(prompt, "n_dense") > (chat ? 30 : 10) && number(prompt, "n_dense") < n_prompt - 3);
            if (i > 0) CHECK_INT(number(prompt, "n_dense"), n_prompt);
        }
        json_decref(many), json_decref(single);
    }
}

static size_t put_cell(char *out, const char *text, size_t n) {
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\n' || text[i] == '|') out[at++] = '\\';
        out[at++] = text[i] == '\n' ? 'n' : text[i];
    }
    return at;
}

#define MARKED "dense,santa:S=2,streaming:sink=1:window=1"

// In an answer that differs from dense attention's, {+ +} stand around the text after the tokens that are equal.
static void check_marks(const char *records, const char *md) {
    result as_json = RUN("compare", "-m", tiny(), "--jsonl", records, "--attn", MARKED, "-n", "9", "--ignore-eos", "--no-heads",
                         "-o", "json");
    json_t *out = document(&as_json);
    sl_model *model;
    sl_error err;
    int found = 0, at_first = 0; // answers that differ later, and from the first token on
    CHECK_OK(sl_model_load(tiny(), NULL, &model, &err), err);
    for (size_t i = 0; i < 2 * 3; i++) {
        const json_t *prompt = compare_item(out, "prompts", i / 3), *m = compare_item(prompt, "methods", i % 3);
        const char *text = json_string_value(json_object_get(m, "text"));
        char cell[4096];
        size_t n = 0;
        sl_text same = {0};
        sl_detok_stream stream = sl_detok_begin(sl_model_tokenizer(model), 0, 0);
        if (json_is_null(json_object_get(m, "differs_at"))) continue;
        for (int k = 0; k < number(m, "differs_at"); k++)
            CHECK_OK(sl_detok_next(&stream, (int32_t)json_integer_value(compare_item(m, "ids", (size_t)k)), &same, &err), err);
        n += put_cell(cell, text, same.n), n += (size_t)sprintf(cell + n, "{+");
        n += put_cell(cell + n, text + same.n, strlen(text) - same.n), sprintf(cell + n, "+} |\n");
        CHECK_HAS(md, cell);
        found += same.n > 0, at_first += number(m, "differs_at") == 0;
        sl_text_free(&same);
    }
    CHECK(found > 0 && at_first > 0);
    json_decref(out), sl_model_free(model);
}

// A prompt, and a prompt with its reference, must fit the context of the model.
void case_limits(void) {
    char command[1024], prompt[512], reference[512];
    size_t n;
    snprintf(command, sizeof command, "mkdir %s/short && cp -s \"$PWD\"/%s/* %s/short && rm %s/short/config.json", test_tmp(),
             tiny(), test_tmp(), test_tmp());
    CHECK_INT(system(command), 0);
    char *config = slurp("models/tiny/config.json", &n), *limit = strstr(config, "131072");
    CHECK(limit != NULL);
    memcpy(limit, "    64", 6);
    spill(in_tmp("short/config.json"), config, n);
    for (int i = 1; i < 5; i++) { // a short or a long prompt; without a reference, with a short one, with a long one
        char model[256], file[256];
        snprintf(model, sizeof model, "%s", in_tmp("short")), snprintf(file, sizeof file, "%s", in_tmp("reference"));
        snprintf(prompt, sizeof prompt, "%.*s", i % 2 ? 400 : 20, long_text(30));
        snprintf(reference, sizeof reference, "%.*s", i / 2 == 2 ? 400 : 20, long_text(30));
        spill(file, reference, strlen(reference));
        result r = RUN("compare", "-m", model, "-p", prompt, "-n", "2", "--attn", "topk", i > 1 ? "--reference" : NULL, file);
        if (i % 2 || i / 2 == 2)
            check_error(&r, 1, i > 1 ? "the prompt with its reference has " : "the prompt has ");
        else
            CHECK_GOOD(r);
    }
}

// The rows of a table have as many columns as its head. A | in a text is not a column.
void case_tables(void) {
    const char *records = compare_spill_records(2);
    spill(in_tmp("bars.jsonl"), "{\"prompt\": \"a | b | c\\nd | e\"}\n", 31);
    for (int i = 0; i < 2; i++) {
        result r = RUN("compare", "-m", tiny(), "--jsonl", i ? in_tmp("bars.jsonl") : records, "--attn", MARKED, "-n", "9",
                       "--ignore-eos");
        CHECK_GOOD(r);
        int bars = 0, rows = 0;
        for (const char *p = r.out; *p; p += strcspn(p, "\n") + 1) {
            int here = 0;
            for (size_t j = 0; j < strcspn(p, "\n"); j++) here += p[j] == '|' && !(j && p[j - 1] == '\\');
            if (*p == '|' && bars) CHECK_INT(here, bars);
            bars = *p == '|' ? here : 0;
            rows += *p == '|';
        }
        CHECK_INT(rows, (i ? 1 : 2) * 6 + 6 + 6 + 5);
        CHECK_HAS(r.out, "| dense | - | 100.0% | ");
        if (!i) check_marks(records, r.out);
    }
}

// The curves show the figures of the table; the heat map shows the heads of the JSON.
void case_plot(void) {
    const char *records = compare_spill_records(2);
    char data[65536];
    size_t n;
    result r = RUN("compare", "-m", tiny(), "--jsonl", records, "--attn", "santa:S={2,8},streaming:window=8:sink=2", "-n", "20",
                   "--ignore-eos", "-o", "json", "--plot", in_tmp("p.svg"));
    json_t *out = document(&r);
    snprintf(data, sizeof data, "%s", slurp(in_tmp("p.dat"), &n));
    CHECK_HAS(data, "# curve: santa\n# fit: ");
    CHECK_LACKS(data, "# curve: streaming");
    for (size_t i = 0; i < 2; i++) {
        const json_t *row = compare_item(out, "methods", i);
        double at = number(row, "l2"), error = number(row, "l2_se"), point[3] = {0};
        const char *line = strstr(data, i ? "\n8 " : "\n2 ");
        CHECK(line && sscanf(line + 2, "%lf %lf %lf", &point[0], &point[1], &point[2]) == 3);
        CHECK_NEAR(point[0], at, 1e-8);
        CHECK_NEAR(point[1], at - error, 1e-8);
        CHECK_NEAR(point[2], at + error, 1e-8);
    }
    const char *p = strstr(data, "# columns: santa:S=2\n# columns: santa:S=8\n# columns: streaming:sink=2:window=8\n");
    CHECK(p != NULL);
    for (int i = 0; i < 3; i++) p = strchr(p, '\n') + 1;
    size_t n_heads = json_array_size(json_object_get(compare_item(out, "methods", 0), "heads")) / 4; // 4 layers
    for (size_t layer = 0; layer < 4; layer++)
        for (size_t i = 0; i < 3 * n_heads; i++) {
            const json_t *head =
                compare_item(compare_item(out, "methods", i / n_heads), "heads", layer * n_heads + i % n_heads);
            char *end;
            CHECK_NEAR(strtod(p, &end), number(head, "l2"), 1e-8);
            CHECK(end > p);
            p = end;
        }
    json_decref(out);
}

void case_errors(void) {
    static const struct {
        int code;
        const char *args[6], *part;
    } cases[] = {
        {2, {"-p", "x"}, "flag --attn is required"},
        {2, {"-p", "x", "--attn", "dense,,topk"}, "--attn : unknown method"},
        {2, {"-p", "x", "--attn", "dense,santta"}, "santta"},
        {2, {"-p", "x", "--attn", "dense", "--dense-prefix=3"}, "--dense-prefix 3: expected at most 2"},
        {2, {"-p", "x", "--attn", "dense", "--question-dense"}, "flag --question-dense needs --jsonl"},
        {2, {"--jsonl", "-", "--attn", "dense", "--dense-prefix=9"}, "flag --dense-prefix cannot be used with --jsonl"},
        {2, {"--jsonl", "-", "--attn", "dense", "--reference=x"}, "flag --reference cannot be used with --jsonl"},
        {2, {"-p", "x", "--attn", "dense", "-sys", "x"}, "flag --system-prompt needs --chat"},
        {2, {"-p", "x", "--attn", "dense", "--chat-template", "llama3"}, "flag --chat-template needs --chat"},
        {2, {"-p", "x", "--attn", "dense", "--chat", "--chat-template=x"}, "--chat-template x: expected a file, or one of"},
        {1, {"-p", "x", "--attn", "dense", "--reference", "/dev/null"}, "expected a reference with at least one token"},
        {1, {"--jsonl", "-", "--attn", "dense"}, "expected prompts, found none"},
        {2, {"-p", "x", "--attn", "dense", "--plot", "x.jpg"}, "--plot x.jpg: expected a file name"},
        {2, {"-p", "x", "--attn", "dense", "--no-heads", "--plot=x.svg"}, "--plot draws the errors of heads; --no-heads"},
        {2, {"-p", "x", "--attn", "dense", "--no-texts"}, "--no-texts needs tokens to score: give --reference FILE"},
        {2, {"-p", "x", "--attn", "dense", "--parallel", "2"}, "--parallel 2 needs --no-texts"},
        {2,
         {"--jsonl=-", "--attn", "auto", "--no-texts", "--parallel=2"},
         "--parallel 2: auto chooses a method for each prompt"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *args[10] = {"compare", "-m", tiny()};
        memcpy(args + 3, cases[i].args, sizeof cases[i].args);
        result r = run_args("", args);
        check_error(&r, cases[i].code, cases[i].part);
    }
    static const char *const lines[][2] = {
        {"{\"prompt\": \"a\", \"attn\": \"dense\"}", "line 1: \"attn\": not supported here"},
        {"{\"prompt\": \"a\", \"reference\": 1}", "line 1: \"reference\": expected a string"},
        {"{\"prompt\": 1}", "line 1: \"prompt\": expected a string"},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        result r = RUN_IN(lines[i][0], "compare", "-m", tiny(), "--jsonl", "-", "--attn", "dense");
        check_error(&r, 1, lines[i][1]);
    }
    result r = RUN_IN("{\"prompt\": \"a\"}", "compare", "-m", tiny(), "--jsonl", "-", "--attn", "dense", "--no-texts");
    check_error(&r, 1, "line 1: expected \"reference\", whose tokens --no-texts scores");
    r = RUN("compare", "-p", "x", "--attn", "dense");
    check_error(&r, 2, "flag --model is required");
}
