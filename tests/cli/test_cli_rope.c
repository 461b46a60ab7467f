// tests/cli/test_cli_rope.c - --rope-scaling on the command line: the limit of --ctx-size, the warning, what results depend on,
// and files that belong to one scaling.
#include "tests/support/run_cli.h"

#include <stdlib.h>

#define GENERATE "generate", "-m", tiny(), "-p", question, "-n", "3"
#define WARNING "warning: a context of "

static int n_of(const char *text, const char *part) {
    int n = 0;
    for (const char *p = text; (p = strstr(p, part)); p++) n++;
    return n;
}

static void limits(void) {
    static const struct {
        const char *args[8];
        const char *part;
    } bad[] = {
        {{"-c", "131073"},
         "--ctx-size 131073: expected 1 to 131072, this model's max_position_embeddings (--rope-scaling runs"},
        {{"-c", "132k", "--rope-theta", "1e6"}, "--ctx-size 135168: expected 1 to 131072"},
        {{"-c", "20000k", "--rope-scaling", "linear", "--rope-scale", "2"},
         "--ctx-size 20480000: expected 1 to 16777216, because fp32"},
        {{"--rope-scaling", "yarn"}, "--rope-scaling yarn needs --rope-scale"},
        {{"--rope-scaling", "dynamic"}, "--rope-scaling dynamic: expected one of none,linear,llama3,yarn"},
        {{"--rope-scale", "2"}, "--rope-scale 2 needs --rope-scaling linear, llama3 or yarn"},
        {{"--rope-scaling", "linear", "--rope-scale", "0.5"}, "--rope-scale 0.5: expected"},
        {{"--rope-scaling", "linear", "--rope-scale", "2", "--yarn-orig-ctx", "9"},
         "--rope-original-ctx 9 needs --rope-scaling llama3 or yarn"},
        {{"--rope-freq-scale", "0.5"}, "--rope-scale N divides the frequencies by N"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *args[24] = {GENERATE};
        for (int n = 7, j = 0; j < 8 && bad[i].args[j]; j++) args[n++] = bad[i].args[j];
        result r = run_args(NULL, args);
        check_error(&r, 2, bad[i].part);
    }
}

// One warning where the context is longer than the trained one, and none elsewhere.
static void warning(void) {
    result r = RUN(GENERATE, "-c", "132k", "--rope-scaling", "yarn", "--rope-scale", "2");
    CHECK_GOOD(r);
    CHECK_INT(n_of(r.err, WARNING "135168 tokens, and this model was trained on 131072; RoPE: theta 500000, yarn, factor 2,"),
              1);
    CHECK_HAS(r.err,
              "\nrope: theta 500000, yarn, factor 2, original context 131072, attention factor 1.06931472, beta 32 and 1\n");
    r = RUN(GENERATE, "-c", "128k", "--rope-scaling", "yarn", "--rope-scale", "2");
    CHECK_GOOD(r);
    CHECK_INT(n_of(r.err, WARNING), 0);
    r = RUN(GENERATE, "-c", "132k", "--rope-scaling", "linear", "--rope-scale", "2", "-q");
    CHECK_GOOD(r);
    CHECK_STR(r.err, "");
    r = RUN_IN("/ctx 200k\n/ctx 100k\n/ctx 210k\n/exit\n", "chat", "-m", tiny(), "--chat-template", "zephyr", "--rope-scaling",
               "linear", "--rope-scale", "2");
    CHECK_GOOD(r);
    CHECK_HAS(r.err, "context: 0 of 215040 tokens");
    CHECK_INT(n_of(r.err, WARNING "204800"), 1);
    CHECK_INT(n_of(r.err, WARNING), 1);
    r = RUN("generate", "-m", tiny(), "-p", "x", "-n", "1", "-c", "0", "--rope-scaling", "llama3", "--rope-scale", "16");
    CHECK_GOOD(r);
    CHECK_HAS(r.err, "context 262144 of 16777216 tokens");
}

// The embedded model has llama3 with factor 8. The same scaling gives the same bits, another one gives others.
static void results(void) {
    static const struct {
        const char *args[7];
        int same;
    } cases[] = {
        {{"--rope-scaling", "llama3"}, 1},
        {{"--rope-scaling", "llama3", "--rope-scale", "8", "--rope-original-ctx", "8192"}, 1},
        {{"--rope-freq-base", "500000"}, 1},
        {{"--rope-scaling", "yarn", "--rope-scale", "1", "--rope-theta", "500000"}, 0},
        {{"--rope-scaling", "none"}, 0},
        {{"--rope-scaling", "linear", "--rope-scale", "2"}, 0},
        {{"--rope-theta", "10000"}, 0},
    };
    char want[256], got[256];
    result r = RUN(GENERATE);
    stat_line(&r, "logits", want);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *args[24] = {GENERATE};
        for (int n = 7, j = 0; j < 7 && cases[i].args[j]; j++) args[n++] = cases[i].args[j];
        r = run_args(NULL, args);
        CHECK_GOOD(r);
        if ((strcmp(stat_line(&r, "logits", got), want) == 0) != cases[i].same)
            FAIL("case %zu: logits %s and %s", i, got, want);
    }
}

// Every command that runs a model takes the flag.
static void commands(void) {
    char text[256], ids[256], npy[256], profile[256]; // in_tmp keeps its last paths only
    const char *words = long_text(40);
    snprintf(text, sizeof text, "%s", in_tmp("text"));
    snprintf(ids, sizeof ids, "%s", in_tmp("ids"));
    snprintf(npy, sizeof npy, "%s", in_tmp("x.npy"));
    snprintf(profile, sizeof profile, "%s", in_tmp("p.json"));
    spill(text, words, strlen(words));
    spill(ids, "1,2,3,4,5", 9);
    const char *const args[][14] = {
        {"chat", "-m", tiny(), "--chat-template", "zephyr", "-n", "2"},
        {"compare", "-m", tiny(), "-p", question, "-n", "2", "--attn", "santa:S=4"},
        {"eval", "-m", tiny(), "--task", "niah-single", "--length", "300", "--samples", "1"},
        {"perplexity", "-m", tiny(), "-f", text, "-c", "64", "--windows", "1"},
        {"logits", "-m", tiny(), "--ids", ids, "-o", npy},
        {"bench", "-m", tiny(), "-p", "8", "-n", "0", "-r", "1"},
        {"inspect", "-m", tiny()},
        {"tune", "-m", tiny(), "--out", profile, "--parts", "prefill", "--length", "300", "--samples", "1", "--check"},
    };
    for (size_t i = 0; i < sizeof args / sizeof *args; i++) {
        const char *all[40];
        int n = 0;
        for (int j = 0; j < 14 && args[i][j]; j++) all[n++] = args[i][j];
        if (!strcmp(args[i][0], "tune"))
            all[n++] = "0", all[n++] = "--task", all[n++] = "niah-single", all[n++] = "--attn-prefill", all[n++] = "streaming";
        all[n++] = "--rope-scaling", all[n++] = "yarn", all[n++] = "--rope-scale", all[n++] = "2", all[n] = NULL;
        result r = run_args("Hello\n", all);
        if (r.code) FAIL("%s: %s", args[i][0], r.err);
        if (!strcmp(args[i][0], "inspect")) CHECK_HAS(r.out, "| context limit | 262144 |");
    }
}

// A file of results or a profile of one scaling is refused with another one.
static void files(void) {
#define EVAL "eval", "-m", tiny(), "--task", "niah-single", "--length", "300", "--samples", "1", "--out", in_tmp("o")
    result r = RUN(EVAL, "--rope-scaling", "linear", "--rope-scale", "2", "-o", "json");
    CHECK_GOOD(r);
    CHECK_HAS(r.out, "\"rope\": \"theta 500000, linear, factor 2\"");
    r = RUN(EVAL, "--rope-scaling", "linear", "--rope-scale", "2");
    CHECK_GOOD(r);
    r = RUN(EVAL, "--rope-scaling", "linear", "--rope-scale", "3");
    check_error(&r, 2, "was written with config");
    r = RUN(EVAL);
    check_error(&r, 2, "was written with config");
    const char *const tune[] = {"tune",
                                "-m",
                                tiny(),
                                "--out",
                                in_tmp("p.json"),
                                "--parts",
                                "prefill",
                                "--length",
                                "300",
                                "--samples",
                                "1",
                                "--check",
                                "0",
                                "--task",
                                "niah-single",
                                "--attn-prefill",
                                "streaming",
                                "--rope-scaling",
                                "linear",
                                "--rope-scale",
                                "2",
                                NULL};
    r = run_args(NULL, tune);
    CHECK_GOOD(r);
    r = RUN(GENERATE, "--attn-profile", in_tmp("p.json"), "--rope-scaling", "linear", "--rope-scale", "2");
    CHECK_GOOD(r);
    r = RUN(GENERATE, "--attn-profile", in_tmp("p.json"));
    check_error(&r, 1, "made for a model with config fnv1a:");
}

static const test_case cases[] = {
    {"limits", NEEDS_NOTHING, limits},     {"warning", NEEDS_NOTHING, warning}, {"results", NEEDS_NOTHING, results},
    {"commands", NEEDS_NOTHING, commands}, {"files", NEEDS_NOTHING, files},     {0},
};
const test_suite suite_cli_rope = {"cli_rope", cases};
