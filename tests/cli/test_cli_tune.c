// tests/cli/test_cli_tune.c - sleigh tune and --attn-profile as a user runs them, on the embedded model.
#include "cli/attn/attn_profile.h"
#include "tests/support/run_cli.h"

#include <math.h>
#include <stdlib.h>

#define PREFILL                                                                                                                \
    "tune", "-m", tiny(), "--parts", "prefill", "--length", "256,512", "--task", "niah-single", "--samples", "2", "--check",   \
        "1", "--attn-prefill", "sample:alpha_c={0.3,0.9}:alpha_s=0.5,streaming:sink=4:window=64"
#define BUDGETS                                                                                                                \
    "tune", "-m", tiny(), "--parts", "budgets", "--length", "384", "--task", "niah-single,qa-1hop", "--samples", "2",          \
        "--check", "1", "--attn", "santa:S=3", "--iterations", "3", "--episodes", "2", "--batch-questions", "3"

static char *text_of(const char *name) {
    size_t n;
    return slurp(in_tmp(name), &n);
}

static int lines_of(const char *name) {
    size_t n;
    const char *text = slurp(in_tmp(name), &n);
    return count_of(text, n, '\n');
}

// n sentences on one line, for JSON.
static const char *one_line(int n) {
    static char text[32768];
    snprintf(text, sizeof text, "%s", long_text(n));
    for (char *p = text; *p; p++)
        if (*p == '\n') *p = ' ';
    return text;
}

static json_t *profile(const char *name) {
    json_error_t e;
    json_t *root = json_load_file(in_tmp(name), 0, &e);
    if (!root) FAIL("%s: %s", name, e.text);
    return root;
}

// The table, the profile, and a run that reads it.
static void prefill(void) {
    result r = RUN(PREFILL, "--out", in_tmp("p.json"), "-o", "json");
    json_t *rows = document(&r), *row;
    size_t i;
    int n_chosen = 0;
    json_array_foreach(rows, i, row) {
        const char *verdict = json_string_value(json_object_get(row, "result"));
        if (!strcmp(verdict, "chosen")) n_chosen++;
    }
    CHECK_INT(n_chosen, 4); // two lengths, on the prompts of --samples and of --check
    json_decref(rows);
    json_t *root = profile("p.json"), *ranges = json_object_get(json_object_get(root, "prefill"), "ranges");
    CHECK_INT(json_array_size(ranges), 2);
    CHECK_INT(number(json_array_get(ranges, 0), "from"), 192);
    CHECK_INT(number(json_array_get(ranges, 1), "from"), 384);
    // The choice has the least work of the rows within the loss; on these prompts that is a method with a mask.
    const char *attn = json_string_value(json_object_get(json_array_get(ranges, 1), "attn"));
    CHECK(strcmp(attn, "dense"));
    char used[256], long_prompt[8192];
    snprintf(used, sizeof used, "with %s attention", attn);
    snprintf(long_prompt, sizeof long_prompt, "%s", long_text(60));
    CHECK(!remove(in_tmp("p.times.json"))); // the times of this machine would decide otherwise
    result with = RUN("generate", "-m", tiny(), "-p", long_prompt, "-n", "2", "--attn-profile", in_tmp("p.json"));
    result same = RUN("generate", "-m", tiny(), "-p", long_prompt, "-n", "2", "--attn-prefill", attn);
    CHECK_GOOD(with);
    CHECK_HAS(with.err, used);
    CHECK_HAS(with.err, "attn-prefill auto: ");
    check_same(&with, &same);
    result brief = RUN("generate", "-m", tiny(), "-p", "a", "-n", "2", "--attn-profile", in_tmp("p.json"));
    CHECK_GOOD(brief);
    CHECK_HAS(brief.err, "with dense attention"); // shorter than every range
    result flag = RUN("generate", "-m", tiny(), "-p", long_prompt, "-n", "2", "--attn-profile", in_tmp("p.json"),
                      "--attn-prefill", "dense");
    CHECK_GOOD(flag);
    CHECK_HAS(flag.err, "with dense attention"); // the flag takes precedence
    json_decref(root);
}

// Writes the profile `name` of the embedded model with these parts.
static void write_profile(const char *name, const char *parts) {
    char text[4096];
    sl_error e;
    json_t *model = cli_attn_profile_model(tiny(), 0, NULL, &e);
    char *fields = json_dumps(model, 0);
    snprintf(text, sizeof text, "{\"format\": \"sleigh attention profile 1\", \"model\": %s, %s}", fields, parts);
    free(fields), json_decref(model);
    spill(in_tmp(name), text, strlen(text));
}

// A method that sees two blocks only, and a profile that has it from a length on.
#define SHORT_VIEW "streaming:sink=1:window=1"
#define RANGE_FROM(n) "\"prefill\": {\"segment\": 32768, \"ranges\": [{\"from\": " n ", \"attn\": \"" SHORT_VIEW "\"}]}"

// A line of --jsonl gets the same answer after a line that another method prefilled, and alone.
static void lines(void) {
    char text[16384], one[8192];
    write_profile("p.json", RANGE_FROM("1000"));
    snprintf(one, sizeof one, "{\"prompt\": \"%.8000s\", \"seq\": 5}\n", one_line(60));
    snprintf(text, sizeof text, "{\"prompt\": \"%.4000s\", \"seq\": 4}\n%s", one_line(25), one);
    spill(in_tmp("two.jsonl"), text, strlen(text));
    spill(in_tmp("one.jsonl"), one, strlen(one));
    result two = RUN("generate", "-m", tiny(), "--jsonl", in_tmp("two.jsonl"), "-n", "4", "--temp", "0", "--attn-profile",
                     in_tmp("p.json"));
    result alone = RUN("generate", "-m", tiny(), "--jsonl", in_tmp("one.jsonl"), "-n", "4", "--temp", "0", "--attn-profile",
                       in_tmp("p.json"));
    CHECK_GOOD(two);
    CHECK_GOOD(alone);
    CHECK_HAS(two.err, "attn-prefill auto: streaming:sink=1:window=1 for ");
    const char *a = strstr(strchr(two.out, '\n'), "\"logits"), *b = strstr(alone.out, "\"logits");
    CHECK(a && b && !strncmp(a, b, 28));
}

// Checks the line of --jsonl that `row` points at, and returns the next one.
static const char *check_line(const char *row, const char *attn, char logits[17]) {
    json_t *line = json_loads(row, JSON_DISABLE_EOF_CHECK, NULL);
    CHECK(line);
    CHECK_STR(json_string_value(json_object_get(line, "attn_prefill")), attn);
    snprintf(logits, 17, "%s", json_string_value(json_object_get(line, "logits")));
    json_decref(line);
    return strchr(row, '\n') + 1;
}

// Lines ask for auto on their own, one by one and in a batch: each gets the method for its own length. A rule of
// --attn-prefill-layer changes one layer of auto.
static void auto_by_line(void) {
    static const char *const want[] = {"dense", SHORT_VIEW, "dense", SHORT_VIEW};
    static const char *const fields[] = {"auto", "auto", "dense", SHORT_VIEW};
    char text[40000] = "", one[8192], logits[2][4][17];
    write_profile("p.json", RANGE_FROM("1000"));
    for (int i = 0; i < 4; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text),
                 "{\"prompt\": \"%.*s\", \"seq\": 5, \"attn_prefill\": \"%s\"}\n", i ? 8000 : 2000, one_line(60), fields[i]);
    spill(in_tmp("lines"), text, strlen(text));
#define LINES                                                                                                                  \
    "generate", "-m", tiny(), "--jsonl", in_tmp("lines"), "-n", "2", "--temp", "0", "--attn-profile", in_tmp("p.json"),        \
        "--attn-prefill", "threshold"
    result r[2] = {RUN(LINES), RUN(LINES, "--parallel", "4")};
    for (int k = 0; k < 2; k++) {
        CHECK_GOOD(r[k]);
        const char *row = r[k].out;
        for (int i = 0; i < 4; i++) row = check_line(row, want[i], logits[k][i]);
        CHECK_STR(logits[k][1], logits[k][3]); // of the same prompt and method
        CHECK(strcmp(logits[k][1], logits[k][2]));
    }
    for (int i = 0; i < 4; i++) CHECK_STR(logits[0][i], logits[1][i]);
    snprintf(one, sizeof one, "%.8000s", one_line(60));
    result rule = RUN("generate", "-m", tiny(), "-p", one, "-n", "1", "--attn-profile", in_tmp("p.json"),
                      "--attn-prefill-layer", "0=dense");
    CHECK_GOOD(rule);
    CHECK_HAS(rule.err, "with 0=dense 1-3=" SHORT_VIEW " attention");
}

// auto runs in the segments of the profile, and in those of the flag if it is given.
static void segment(void) {
    static const char method[] = "sample:alpha_c=0.5:alpha_s=0.5";
    char prompt[8192], parts[256], logits[4][17];
    snprintf(parts, sizeof parts, "\"prefill\": {\"segment\": 256, \"ranges\": [{\"from\": 300, \"attn\": \"%s\"}]}", method);
    write_profile("p.json", parts);
    snprintf(prompt, sizeof prompt, "%.8000s", one_line(60));
#define ONE "generate", "-m", tiny(), "-p", prompt, "-n", "1", "--temp", "0", "-o", "json"
    result r[] = {RUN(ONE, "--attn-profile", in_tmp("p.json")), RUN(ONE, "--attn-prefill", method, "--prefill-segment", "256"),
                  RUN(ONE, "--attn-profile", in_tmp("p.json"), "--prefill-segment", "32k"), RUN(ONE, "--attn-prefill", method)};
    for (int i = 0; i < 4; i++) {
        json_t *root = document(&r[i]);
        snprintf(logits[i], 17, "%s", json_string_value(json_object_get(root, "logits")));
        json_decref(root);
    }
    CHECK_STR(logits[0], logits[1]);
    CHECK_STR(logits[2], logits[3]);
    CHECK(strcmp(logits[0], logits[2]));
}

// A chat that grows past a range: each turn is prefilled with the method for the length so far, and the rows of the earlier
// turns stay.
static void auto_in_chat(void) {
    char input[9000];
    write_profile("p.json", RANGE_FROM("1000"));
    snprintf(input, sizeof input, "Hello\n%.8000s\n/regen\n", one_line(60));
    result r = RUN_IN(input, "chat", "-m", tiny(), "--chat-template", "zephyr", "-n", "4", "--temp", "0", "--attn-profile",
                      in_tmp("p.json"));
    CHECK_GOOD(r);
    CHECK_HAS(r.err, "attn-prefill auto: " SHORT_VIEW " for ");
}

// auto in a list of eval and of compare has the figures of the method that it chooses; the file of --out names the profile.
static void auto_in_lists(void) {
// The lists of eval and compare name the methods for decoding, so this part of a profile has no effect there.
#define DRAWS ", \"decode\": {\"layers\": [\"santa:S=1\", \"santa:S=1\", \"santa:S=1\", \"santa:S=1\"]}"
#define EVAL                                                                                                                   \
    "eval", "-m", tiny(), "--task", "niah-single", "--length", "700", "--samples", "1", "--question-dense", "--attn-prefill",  \
        "auto,dense," SHORT_VIEW, "--prefill-check", "2", "--attn-profile", in_tmp("p.json"), "-o", "json"
    static const char *const keys[] = {"score", "prefill_density", "prefill_cra", "prefill_error"};
    write_profile("p.json", RANGE_FROM("300") DRAWS);
    result r = RUN(EVAL, "--out", in_tmp("o"));
    json_t *all = document(&r), *rows = json_object_get(all, "rows");
    CHECK_INT(json_array_size(rows), 6); // the task and all, for each method
    const json_t *row = json_array_get(rows, 0), *same = json_array_get(rows, 4);
    CHECK_STR(json_string_value(json_object_get(row, "attn_prefill")), "auto");
    CHECK_STR(json_string_value(json_object_get(row, "attn")), "dense");
    for (int k = 0; k < 4; k++) CHECK(number(row, keys[k]) == number(same, keys[k]));
    CHECK(number(row, "prefill_density") < 1);
    json_decref(all);
    write_profile("p.json", RANGE_FROM("400") DRAWS);
    result other = RUN(EVAL, "--out", in_tmp("o"));
    check_error(&other, 2, "was written with attn-profile = \"fnv1a:");
    result rule = RUN("eval", "-m", tiny(), "--length", "700", "--samples", "1", "--attn-prefill-layer", "0=auto");
    check_error(&rule, 2, "--attn-prefill-layer auto: expected --attn-profile FILE");
    result none = RUN("compare", "-m", tiny(), "-p", "a", "--attn", "dense", "--attn-prefill", "dense,auto");
    check_error(&none, 2, "--attn-prefill auto: expected --attn-profile FILE");
    char prompt[8192];
    snprintf(prompt, sizeof prompt, "%.8000s", one_line(40));
    result c = RUN("compare", "-m", tiny(), "-p", prompt, "-n", "2", "--attn", "dense", "--attn-prefill", "auto," SHORT_VIEW,
                   "--attn-profile", in_tmp("p.json"), "-o", "json");
    CHECK_HAS(c.err, "attention: dense\n");
    result plain = RUN("compare", "-m", tiny(), "-p", prompt, "-n", "1", "--attn", "dense", "--attn-profile", in_tmp("p.json"));
    CHECK_GOOD(plain);
    CHECK(!strstr(plain.err, "attn-prefill auto"));
    all = document(&c), rows = json_object_get(all, "methods");
    row = json_array_get(rows, 0), same = json_array_get(rows, 1);
    CHECK_STR(json_string_value(json_object_get(row, "attn_prefill")), "auto");
    CHECK(number(row, "kl") > 0 && number(row, "kl") == number(same, "kl"));
    CHECK(number(row, "prefill_density") < 1 && number(row, "prefill_density") == number(same, "prefill_density"));
    json_decref(all);
}

// The profile has the draws of each layer; a run uses them, and --attn-layer changes one of them.
static void budgets(void) {
    result r = RUN(BUDGETS, "--out", in_tmp("b.json"));
    CHECK_GOOD(r);
    CHECK_HAS(r.out, "| uniform S=3,3,3,3 |");
    for (char *line = text_of("b.json.log"); (line = strstr(line, "\"reward\":")); line++) {
        double reward = 3 * atof(line + 9); // of three prompts, each right or wrong
        CHECK(reward >= 0 && reward <= 3 && fabs(reward - round(reward)) < 1e-9);
    }
    write_profile("own.json", "\"decode\": {\"layers\": [\"santa:S=5\", \"dense\", \"santa:S=2\", \"santa:S=2\"]}");
    result used = RUN("generate", "-m", tiny(), "-p", question, "-n", "2", "--attn-profile", in_tmp("own.json"));
    CHECK_GOOD(used);
    CHECK_HAS(used.err, "attention: 0=santa:S=5 1=dense 2-3=santa:S=2\n");
    result changed = RUN("generate", "-m", tiny(), "-p", question, "-n", "2", "--attn-profile", in_tmp("own.json"),
                         "--attn-layer", "3=dense");
    CHECK_GOOD(changed);
    CHECK_HAS(changed.err, "attention: 0=santa:S=5 1=dense 2=santa:S=2 3=dense\n");
    result other =
        RUN("generate", "-m", tiny(), "-p", question, "-n", "2", "--attn-profile", in_tmp("own.json"), "--attn", "dense");
    CHECK_GOOD(other);
    CHECK_HAS(other.err, "attention: dense\n");
}

// A run that was killed after k measurements continues from its log, with an incomplete last line, and writes the same bytes as
// a run without a stop; another seed writes other measurements.
static void continues(void) {
    result whole = RUN(BUDGETS, "--out", in_tmp("a.json"));
    CHECK_GOOD(whole);
    char *want = text_of("a.json"), *log = text_of("a.json.log");
    int n_lines = lines_of("a.json.log");
    for (int k = 1; k < n_lines; k += 7) {
        char *end = log;
        for (int i = 0; i < k; i++) end = strchr(end, '\n') + 1;
        spill(in_tmp("b.json.log"), log, (size_t)(end - log) + 9); // 9 bytes of the next line
        remove(in_tmp("b.json"));
        result r = RUN(BUDGETS, "--out", in_tmp("b.json"));
        CHECK_GOOD(r);
        CHECK_STR(text_of("b.json"), want);
        CHECK_STR(r.out, whole.out);
        CHECK_INT(lines_of("b.json.log"), n_lines);
    }
    result again = RUN(BUDGETS, "--out", in_tmp("a.json")); // measures nothing
    CHECK_GOOD(again);
    CHECK_HAS(again.err, "a.json.log has 16 measurements");
    CHECK_STR(text_of("a.json"), want);
    CHECK_INT(lines_of("a.json.log"), n_lines);
    char *last = text_of("a.json.log"), twice[1 << 16];
    snprintf(twice, sizeof twice, "%s%s", last, strchr(last, '\n') + 1);
    spill(in_tmp("b.json.log"), twice, strlen(twice));
    result bad = RUN(BUDGETS, "--out", in_tmp("b.json"));
    check_error(&bad, 1, "b.json.log: line 18: the measurement ");
    result seed = RUN(BUDGETS, "--out", in_tmp("a.json"), "--seed", "1");
    check_error(&seed, 2, "a.json.log was written with seed = 0, but this command has 1");
    result threads = RUN(BUDGETS, "--out", in_tmp("t.json"), "-t", "1"); // equal seeds give equal bytes
    CHECK_GOOD(threads);
    CHECK_STR(text_of("t.json"), want);
}

// Texts without questions: the loss is the KL divergence; full shares lose nothing.
static void texts(void) {
    char line[16384];
    int n = 0;
    for (int i = 0; i < 3; i++)
        n += snprintf(line + n, sizeof line - n, "{\"text\": \"%d. %.5000s\"}\n", i, one_line(40 + 10 * i));
    spill(in_tmp("texts.jsonl"), line, (size_t)n);
#define TEXTS                                                                                                                  \
    "tune", "-m", tiny(), "--measure", "kl", "--score", "4", "--jsonl", in_tmp("texts.jsonl"), "--samples", "2", "--check",    \
        "1", "--iterations", "2", "--episodes", "2", "--attn", "santa:S=4", "--out", in_tmp("k.json"), "--length"
    result r = RUN(TEXTS, "256", "--loss", "1e-9", "--attn-prefill", "streaming:sink=1:window=1", "-o", "json");
    json_t *rows = document(&r), *row;
    size_t i;
    json_array_foreach(rows, i, row) {
        const char *setting = json_string_value(json_object_get(row, "setting"));
        if (!strncmp(setting, "streaming", 9)) {
            CHECK(number(row, "x") > 0);
            CHECK_STR(json_string_value(json_object_get(row, "result")), "the loss is too large");
        }
        if (!strcmp(setting, "dense")) CHECK(number(row, "x") == 0);
    }
    json_decref(rows);
    json_t *root = profile("k.json"), *prefill = json_object_get(root, "prefill");
    CHECK_STR(json_string_value(json_object_get(json_array_get(json_object_get(prefill, "ranges"), 0), "attn")), "dense");
    json_decref(root);
    result none = RUN(TEXTS, "128k");
    check_error(&none, 1, "expected prompts of at least 98304 tokens, found none");
}

// The budgets of texts do not depend on what was measured before them, in this run or in a run that it continues.
static void parts(void) {
    static const char *const names[] = {"one.json", "both.json", "rest.json"};
    json_t *decode[3];
    char line[512];
    snprintf(line, sizeof line, "{\"text\": \"%.400s\"}\n", one_line(8));
    spill(in_tmp("texts.jsonl"), line, strlen(line));
    for (int i = 0; i < 3; i++) {
        char out[256];
        if (i == 2) { // the first line of the log, and one measurement
            char *log = text_of("one.json.log"), *end = strchr(strchr(log, '\n') + 1, '\n') + 1;
            CHECK_HAS(log, "\"error/");
            spill(in_tmp("rest.json.log"), log, (size_t)(end - log));
        }
        snprintf(out, sizeof out, "%s", in_tmp(names[i]));
        result r = RUN("tune", "-m", tiny(), "--measure", "kl", "--score", "4", "--jsonl", in_tmp("texts.jsonl"), "--samples",
                       "1", "--check", "0", "--iterations", "0", "--attn", "santa:S=4", "--out", out, "--length", "64",
                       "--attn-prefill", "streaming", "--parts", i == 1 ? "prefill,budgets" : "budgets");
        CHECK_GOOD(r);
        json_t *root = profile(names[i]);
        CHECK((json_object_get(root, "prefill") != NULL) == (i == 1));
        decode[i] = json_incref(json_object_get(root, "decode"));
        json_decref(root);
    }
    CHECK(decode[0] && json_equal(decode[0], decode[1]) && json_equal(decode[0], decode[2]));
    for (int i = 0; i < 3; i++) json_decref(decode[i]);
}

// The error of a layer is the mean over the decoded tokens: of two tokens, the mean of those of each token.
static void errors(void) {
    static const char *const scores[] = {"1", "1", "2"};
    double error[3][4];
    for (int i = 0; i < 3; i++) { // run 0 has a word less
        char text[1024] = "{\"text\": \"The", out[256];
        for (int k = 0; k < 60 + (i > 0); k++) strcat(text, k % 3 ? " the" : " of");
        strcat(text, "\"}\n");
        spill(in_tmp("texts.jsonl"), text, strlen(text));
        snprintf(out, sizeof out, "%s/%d.json", test_tmp(), i);
        result r = RUN("tune", "-m", tiny(), "--measure", "kl", "--score", scores[i], "--jsonl", in_tmp("texts.jsonl"),
                       "--samples", "1", "--check", "0", "--iterations", "0", "--attn", "santa:S=4", "--out", out, "--length",
                       "64", "--parts", "budgets");
        CHECK_GOOD(r);
        strcat(out, ".log");
        size_t n;
        json_t *line = json_loads(strchr(slurp(out, &n), '\n') + 1, JSON_DISABLE_EOF_CHECK, NULL),
               *list = json_object_get(json_object_get(line, "value"), "error");
        CHECK_INT(json_array_size(list), 4);
        for (size_t l = 0; l < 4; l++) error[i][l] = json_number_value(json_array_get(list, l));
        json_decref(line);
    }
    for (int l = 0; l < 4; l++) CHECK_NEAR(error[2][l], (error[0][l] + error[1][l]) / 2, 1e-3 * error[2][l]);
}

static void refused(void) {
    static const struct {
        const char *flag, *value, *message;
    } cases[] = {
        {"--parts", "prefill,budgett", "--parts prefill,budgett: expected prefill, budgets or both"},
        {"--jsonl", "-", "--jsonl -: expected a file, because the run may be continued"},
        {"--attn-prefill", "sampel", "--attn-prefill sampel: unknown method; did you mean sample?"},
        {"--attn-prefill", "dense", "dense is always measured"},
        {"--attn-prefill", "auto", "--attn-prefill auto: expected sample, vertical-slash, xattention, streaming or threshold"},
        {"--attn", "topk", "--attn topk: expected one method with a number of draws S"},
        {"--measure", "kl", "--measure kl needs --jsonl FILE"},
        {"--length", "512,512", "--length 512 is named twice"},
        {"--length", "256k", "--length 262144: expected at most 131072"},
        {"--task", "niah", "--task niah: unknown task"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        result r = RUN("tune", "-m", tiny(), "--out", in_tmp("p.json"), "--samples", "1", "--check", "0", "--iterations", "0",
                       cases[i].flag, cases[i].value);
        check_error(&r, 2, cases[i].message);
    }
    for (int i = 0; i < 2; i++) {
        result r =
            RUN("tune", "-m", tiny(), "--out", in_tmp("p.json"), "--length", i ? "64-2112+64" : "64-2048+64", "--parts", "x");
        check_error(&r, 2, i ? "--length: expected at most 32 lengths" : "--parts x: expected");
    }
    result r = RUN("tune", "-m", tiny());
    check_error(&r, 2, "flag --out is required");
    spill(in_tmp("p.json.log"), "text\n", 5);
    r = RUN(PREFILL, "--out", in_tmp("p.json"));
    check_error(&r, 1, "p.json.log");
    spill(in_tmp("bad.json"), "{", 1);
    r = RUN("generate", "-m", tiny(), "-p", "a", "-n", "1", "--attn-profile", in_tmp("bad.json"));
    check_error(&r, 1, "--attn-profile ");
    for (int i = 0; i < 3; i++) {
        static const char *const commands[] = {"eval", "compare", "generate"};
        r = RUN_IN("{}", commands[i], "-m", tiny(), "--attn-profile", "-", i ? "-p" : "--samples", i ? "a" : "1", "--attn",
                   "dense");
        check_error(&r, 2, "--attn-profile -: expected the path of a file; a profile is not read from standard input");
    }
}

static const test_case cases[] = {
    {"prefill", NEEDS_NOTHING, prefill},
    {"lines", NEEDS_NOTHING, lines},
    {"auto_by_line", NEEDS_NOTHING, auto_by_line},
    {"segment", NEEDS_NOTHING, segment},
    {"auto_in_chat", NEEDS_NOTHING, auto_in_chat},
    {"auto_in_lists", NEEDS_NOTHING, auto_in_lists},
    {"budgets", NEEDS_NOTHING, budgets},
    {"continues", NEEDS_SPEED, continues},
    {"texts", NEEDS_NOTHING, texts},
    {"parts", NEEDS_NOTHING, parts},
    {"errors", NEEDS_NOTHING, errors},
    {"refused", NEEDS_NOTHING, refused},
    {0},
};

const test_suite suite_cli_tune = {"cli_tune", cases};
