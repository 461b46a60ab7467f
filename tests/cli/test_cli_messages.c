// tests/cli/test_cli_messages.c - what the program says about mistakes of its user, full disks and Ctrl+C.
#include "tests/support/run_cli.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

// Input that is no prompt is an error before a model is loaded.
static void bad_input(void) {
    static const struct {
        const char *text; // of the file F; NULL: no file
        size_t n;
        int code;
        const char *args[8], *part;
    } cases[] = {
        {NULL, 0, 2, {"generate", "-m", "M", "-p", ""}, "the prompt is empty; to begin with the BOS token alone"},
        {"", 0, 2, {"generate", "-m", "M", "-f", "F"}, "the prompt is empty"},
        {"", 0, 2, {"compare", "-m", "M", "--attn", "dense", "-f", "F"}, "the prompt is empty"},
        {"", 0, 1, {"perplexity", "-m", "M", "-f", "F"}, "the text is empty"},
        {NULL, 0, 2, {"generate", "-m", "M", "-p", "a", "-p", "b"}, "flag -p is given twice"},
        {NULL, 0, 2, {"generate", "-m", "M", "-f", "a", "--file", "b"}, "flag --file is given twice"},
        {"abc\0d", 5, 1, {"generate", "-m", "M", "-f", "F"}, "byte 3 is 0: expected text, found a binary file"},
        {"%PDF-1.7\n", 9, 1, {"generate", "-m", "M", "-f", "F"}, " is a PDF: expected text"},
        {"%PDF-1.7\n", 9, 1, {"perplexity", "-m", "M", "-f", "F"}, " is a PDF: expected text"},
        {"abc\0d", 5, 1, {"compare", "-m", "M", "--attn", "dense", "-f", "F"}, "byte 3 is 0"},
        {NULL,
         0,
         2,
         {"generate", "-m", "M", "-p", "a", "--prompt-cache-ro"},
         "flag --prompt-cache-ro needs --prompt-cache FILE"},
        {NULL, 0, 2, {"chat", "-m", "M", "--prompt-cache-ro"}, "flag --prompt-cache-ro needs --prompt-cache FILE"},
        {NULL, 0, 2, {"generate", "-m", "M", "-p", "a", "--attn", "dense,santa"}, "found a list, expected one method"},
        {NULL, 0, 2, {"generate", "-m", "M", "-p", "a", "--temp", "-1"}, "expected a number from 0 to 1000000"},
        {NULL, 0, 2, {"generate", "-m", "M", "-p", "a", "--attn", "quest:tokens=0"}, "from 16 to 1048576 (method quest)"},
        {"{\"prompt\": \"a\", \"logprob\": 3}\n",
         31,
         1,
         {"generate", "-m", "M", "--jsonl", "F"},
         "line 1: unknown field \"logprob\"; did you mean \"logprobs\"?"},
        {"\n{\"context\": \"a\", \"question\": \"b\", \"temperature\": 0}\n",
         54,
         1,
         {"generate", "-m", "M", "--jsonl", "F"},
         "line 2: unknown field \"temperature\"; docs/use.md lists the fields"},
        {"{\"prompt\": \"a\", \"x\": 3}\n",
         24,
         1,
         {"compare", "-m", "M", "--attn", "dense", "--jsonl", "F"},
         "unknown field \"x\""},
        {"{\n\"prompt\": 1\n}", 15, 1, {"generate", "-m", "M", "--jsonl", "F"}, "line 1: expected a JSON object: "},
    };
    char path[256];
    snprintf(path, sizeof path, "%s", in_tmp("input"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *args[9] = {0};
        if (cases[i].text) spill(path, cases[i].text, cases[i].n);
        for (int j = 0; j < 8 && cases[i].args[j]; j++) {
            const char *arg = cases[i].args[j];
            args[j] = !strcmp(arg, "M") ? tiny() : !strcmp(arg, "F") ? path : arg;
        }
        result r = run_args("", args);
        if (strcmp(args[0], "chat") && r.code != cases[i].code)
            FAIL("case %zu: code %d, expected %d: %s", i, r.code, cases[i].code, r.err);
        CHECK(r.code != 0);
        CHECK_HAS(r.err, cases[i].part);
    }
}

// The advice of a prompt that is too long is possible.
static void long_prompts(void) {
    enum { LIMIT = 131072 };
    char *ids = malloc(2 * (LIMIT + 1) + 1);
    for (int i = 0; i <= LIMIT; i++) memcpy(ids + 2 * i, "9 ", 3);
    spill(in_tmp("ids"), ids, 2 * (LIMIT + 1));
    free(ids);
    result r = RUN("generate", "-m", tiny(), "--ids", in_tmp("ids"), "-n", "1");
    CHECK_INT(r.code, 1);
    CHECK_HAS(r.err,
              "the prompt has 131073 tokens, and this model's limit is 131072; shorten it, or run the model past its limit "
              "with --rope-scaling yarn --rope-scale 2");
    r = RUN("generate", "-m", tiny(), "-p", long_text(20), "-c", "64", "-n", "1");
    CHECK_INT(r.code, 1);
    CHECK_HAS(r.err, "but the context holds 64; raise it with --ctx-size (this model's limit is 131072)");
    char line[4096];
    snprintf(line, sizeof line, "%.4000s\n", long_text(20));
    r = RUN_IN(line, "chat", "-m", tiny(), "--chat-template", "llama3", "-c", "64", "-n", "1");
    CHECK_HAS(r.err, "but the context holds 64; raise it with /ctx N");
}

// One is one: no "1 prompts".
static void plurals(void) {
    spill(in_tmp("one"), "Hello\n", 6);
    result r = RUN("generate", "-m", tiny(), "--prompts", in_tmp("one"), "-n", "2", "--ignore-eos");
    CHECK_GOOD(r);
    CHECK_HAS(r.err, "parallel: 1 prompt, 1 at a time");
    CHECK_HAS(r.err, " ms, 1 prompt in 1 group, 2 tokens generated");
    CHECK_HAS(r.err, "decode: ");
    CHECK_HAS(r.err, " ms, 1 token, ");
    CHECK_LACKS(r.err, "1 tokens");
    r = RUN("compare", "-m", tiny(), "-p", "Hello", "--attn", "santa", "-n", "2", "--no-heads");
    CHECK_GOOD(r);
    CHECK_HAS(r.out, "texts: 1 prompt, seed");
    CHECK_LACKS(r.out, "1 prompts");
    r = RUN("eval", "-m", tiny(), "--task", "niah-single", "--length", "300", "--samples", "1");
    CHECK_GOOD(r);
    CHECK_HAS(r.out, ", 1 sample of 1 text\n");
    CHECK_HAS(r.err, "samples: 1 with 1 method each");
}

// A reader that closes the pipe ends the program as SIGPIPE does, without a message. In /bin/sh the code is 128 + 13.
static void closed_pipe(void) {
    result r = RUN_SHELL("{ sleep 0.3; \"$0\" \"$@\"; echo \"code $?\" >&2; } | true", "methods");
    CHECK_STR(r.err, "code 141\n");
    r = RUN_SHELL("{ sleep 0.3; \"$0\" \"$@\"; echo \"code $?\" >&2; } | true", "generate", "-m", tiny(), "-q", "-p", "a", "-n",
                  "9", "--ignore-eos");
    CHECK_STR(r.err, "code 141\n");
}

// SLEIGH_OUTPUT is a format, also for commands whose -o is a file.
static void output_variable(void) {
    setenv("SLEIGH_OUTPUT", "json", 1);
    spill(in_tmp("ids"), "9", 1);
    result r = RUN("logits", "-m", tiny(), "--ids", in_tmp("ids")), help = RUN("logits", "--help"), list = RUN("methods");
    unsetenv("SLEIGH_OUTPUT");
    check_error(&r, 2, "flag --output is required");
    CHECK_LACKS(help.out, "SLEIGH_OUTPUT");
    CHECK(list.code == 0 && list.out[0] != '|');
}

// A prompt cache that cannot be written does not cost the answer.
static void full_cache(void) {
    char path[256];
    snprintf(path, sizeof path, "%s", in_tmp("cache"));
    result want = RUN("generate", "-m", tiny(), "-p", long_text(9), "-n", "4");
    CHECK_GOOD(want);
    result r = RUN_SHELL("ulimit -f 8; exec \"$0\" \"$@\"", "generate", "-m", tiny(), "-p", long_text(9), "-n", "4",
                         "--prompt-cache", path);
    CHECK_INT(r.code, 1);
    CHECK_HAS(r.err, "cannot write ");
    CHECK_HAS(r.err, ": File too large");
    CHECK_STR(r.out, want.out);
    CHECK(access(path, F_OK) != 0);
}

// Ctrl+C in a prefill: the exit code says so, and the file has the passes that were done.
static void interrupted_prefill(void) {
    char path[256], word[64];
    int n = 0;
    snprintf(path, sizeof path, "%s", in_tmp("cache"));
    const char *const args[] = {"generate", "-m", tiny(),           "-c", "0", "--random-prompt", "100000", "-ub", "256",
                                "-n",       "1",  "--prompt-cache", path, NULL};
    pid_t pid = start(NULL, 0, NULL, args);
    usleep(1500000);
    kill(pid, SIGINT);
    result r = finish(pid, NULL);
    if (r.code == 0) TEST_SKIP("needs a machine that prefills 100,000 tokens in more than a second");
    CHECK_INT(r.code, -SIGINT);
    const char *said = strstr(r.err, "prompt cache: ");
    if (!said) TEST_SKIP("needs a machine that starts in a second");
    CHECK(sscanf(said, "prompt cache: %d tokens to %63s", &n, word) == 2 && n > 0 && n % 256 == 0);
    result again =
        RUN("generate", "-m", tiny(), "--random-prompt", "300", "-n", "1", "--prompt-cache", path, "--prompt-cache-ro");
    CHECK_GOOD(again);
    snprintf(word, sizeof word, "prompt cache: %d tokens from ", n);
    CHECK_HAS(again.err, word);
}

// In a shell, a generation that Ctrl+C ended has the code 130.
static void interrupted_answer(void) {
    result r = RUN_SHELL("\"$0\" \"$@\" & sleep 2; kill -INT $!; wait $!; echo \"code $?\" >&2", "generate", "-m", tiny(), "-p",
                         "a", "-n", "-1", "--ignore-eos", "-q");
    if (strstr(r.err, "code 0")) TEST_SKIP("needs a shell whose background commands get SIGINT");
    CHECK_HAS(r.err, "code 130\n");
}

// A method with an error in place of S does not show an S.
static void labels(void) {
    result r = RUN("generate", "-m", tiny(), "-p", "a", "-n", "1", "--attn", "santa-pps:S=128:epsilon=0.2");
    CHECK_GOOD(r);
    CHECK_HAS(r.err, "attention: santa-pps:epsilon=0.2\n");
    r = RUN("generate", "-m", tiny(), "-p", "a", "-n", "1", "--attn", "santa-pps:S=128");
    CHECK_HAS(r.err, "attention: santa-pps:S=128\n");
}

static void no_gpu(void) {
    result r = RUN("bench", "attn", "--device", "cpu");
    CHECK(r.code != 0);
    r = RUN("bench", "attn");
    if (r.code == 0) TEST_SKIP("needs a machine without a GPU");
    CHECK_HAS(r.err, "bench attn times kernels of a GPU, and ");
}

static const test_case cases[] = {
    {"bad-input", NEEDS_NOTHING, bad_input},
    {"long-prompts", NEEDS_NOTHING, long_prompts},
    {"plurals", NEEDS_NOTHING, plurals},
    {"closed-pipe", NEEDS_NOTHING, closed_pipe},
    {"output-variable", NEEDS_NOTHING, output_variable},
    {"full-cache", NEEDS_NOTHING, full_cache},
    {"interrupted-prefill", NEEDS_NOTHING, interrupted_prefill},
    {"interrupted-answer", NEEDS_NOTHING, interrupted_answer},
    {"labels", NEEDS_NOTHING, labels},
    {"no-gpu", NEEDS_NOTHING, no_gpu},
    {0},
};
const test_suite suite_cli_messages = {"cli_messages", cases};
