// tests/cli/test_cli_tune.c - sleigh tune and --attn-profile as a user runs them, on the embedded model.
#include "tests/support/run_cli.h"

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
        if (!strncmp(json_string_value(json_object_get(row, "setting")), "sample", 6))
            CHECK(number(row, "work") > number(row, "density")); // the estimator
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
    RUN("tune", "-m", tiny(), "--parts", "budgets", "--length", "256", "--task", "niah-single", "--samples", "1", "--check",
        "0", "--iterations", "0", "--out", in_tmp("any.json"));
    const char *model = strstr(text_of("any.json"), "\"model\"");
    CHECK(model);
    snprintf(text, sizeof text, "{\"format\": \"sleigh attention profile 1\", %.*s, %s}", (int)(strchr(model, '}') + 1 - model),
             model, parts);
    spill(in_tmp(name), text, strlen(text));
}

// A line of --jsonl gets the same answer after a line that another method prefilled, and alone.
static void lines(void) {
    char text[16384], one[8192];
    write_profile("p.json", "\"prefill\": {\"segment\": 32768, \"ranges\": [{\"from\": 1000, \"attn\": "
                            "\"streaming:sink=1:window=1\"}]}");
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

// The profile has the draws of each layer; a run uses them, and --attn-layer changes one of them.
static void budgets(void) {
    result r = RUN(BUDGETS, "--out", in_tmp("b.json"));
    CHECK_GOOD(r);
    CHECK_HAS(r.out, "| uniform S=3,3,3,3 |");
    json_t *root = profile("b.json"), *decode = json_object_get(root, "decode"), *value,
           *found = json_object_get(json_object_get(decode, "found"), "schedules");
    const char *key;
    CHECK_INT(json_array_size(json_object_get(decode, "layers")), 4);
    CHECK_INT(json_object_size(found), 3);
    json_object_foreach(found, key, value) {
        int sum = 0;
        for (size_t l = 0; l < 4; l++) sum += (int)json_integer_value(json_array_get(json_object_get(value, "budgets"), l));
        CHECK_INT(sum, 12);
    }
    json_decref(root);
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

static void refused(void) {
    static const struct {
        const char *flag, *value, *message;
    } cases[] = {
        {"--parts", "prefill,decode", "--parts prefill,decode: expected prefill, budgets or both"},
        {"--attn-prefill", "oracle", "--attn-prefill oracle"},
        {"--attn-prefill", "sampel", "--attn-prefill sampel: unknown method; did you mean sample?"},
        {"--attn-prefill", "dense", "dense is always measured"},
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
    result r = RUN("tune", "-m", tiny());
    check_error(&r, 2, "flag --out is required");
    spill(in_tmp("p.json.log"), "text\n", 5);
    r = RUN(PREFILL, "--out", in_tmp("p.json"));
    check_error(&r, 1, "p.json.log");
    spill(in_tmp("bad.json"), "{", 1);
    r = RUN("generate", "-m", tiny(), "-p", "a", "-n", "1", "--attn-profile", in_tmp("bad.json"));
    check_error(&r, 1, "--attn-profile ");
    result note = RUN("generate", "-m", tiny(), "-p", "a", "-n", "1", "--attn-prefill", "auto");
    CHECK_GOOD(note);
    CHECK_HAS(note.err, "attn-prefill auto: dense: no --attn-profile FILE names a method");
}

static const test_case cases[] = {
    {"prefill", NEEDS_NOTHING, prefill},
    {"lines", NEEDS_NOTHING, lines},
    {"budgets", NEEDS_NOTHING, budgets},
    {"continues", NEEDS_NOTHING, continues},
    {"texts", NEEDS_NOTHING, texts},
    {"refused", NEEDS_NOTHING, refused},
    {0},
};

const test_suite suite_cli_tune = {"cli_tune", cases};
