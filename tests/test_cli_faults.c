// tests/test_cli_faults.c - what the system or a user does to build/sleigh that no good run has: closed descriptors, full
// disks, numbers beyond every limit. It must end with one line that says why, and with nothing lost or half-written.
#include "tests/cli.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SMALL "eval", "-m", tiny(), "--task", "niah-single", "--length", "600", "--samples", "2"

// The file of SMALL --out, of a run that nothing happens to.
static const char *good_file(void) {
    char path[256];
    size_t n;
    snprintf(path, sizeof path, "%s", in_tmp("good"));
    result r = RUN(SMALL, "--out", path);
    CHECK_GOOD(r);
    return slurp(path, &n);
}

// A file that is opened while descriptor 1 or 2 is closed must not become standard output or the log.
static void closed_descriptors(void) {
    static const struct {
        const char *shell;
        int code;
    } cases[] = {{"exec \"$0\" \"$@\" 2>&-", 0},
                 {"exec \"$0\" \"$@\" <&-", 0},
                 {"exec \"$0\" \"$@\" >&-", 1},
                 {"exec \"$0\" \"$@\" <&- >&- 2>&-", 1}};
    const char *want = good_file();
    char path[256];
    size_t n;
    snprintf(path, sizeof path, "%s", in_tmp("out"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK(!remove(path) || i == 0);
        result r = RUN_SHELL(cases[i].shell, SMALL, "--out", path);
        CHECK_INT(r.code, cases[i].code); // 1: the table is lost
        CHECK_STR(slurp(path, &n), want);
    }
    result r = RUN_SHELL("exec \"$0\" \"$@\" >&-", "methods");
    check_error(&r, 1, "cannot write to standard output");
    r = RUN_SHELL("exec \"$0\" \"$@\" <&-", "generate", "-m", tiny());
    check_error(&r, 1, "cannot read standard input");
}

static void full_disk(void) {
    result r = RUN(SMALL, "--dump", "/dev/full");
    check_error(&r, 1, "--dump: cannot write /dev/full: No space left");
    CHECK_LACKS(r.err, "--out");
    r = RUN(SMALL, "--dump", "/no/such/file");
    check_error(&r, 1, "--dump: cannot write /no/such/file: No such file");
}

// A limit on a file's size (512-byte blocks) is an error that names the file; what was written whole is gone on from.
static void file_size_limit(void) {
    char path[256], head[320];
    size_t n;
    snprintf(path, sizeof path, "%s", in_tmp("out"));
    result r = RUN(SMALL, "--samples", "8", "--out", path);
    CHECK_GOOD(r);
    const char *want = slurp(path, &n);
    CHECK(!remove(path));
    snprintf(head, sizeof head, "--out: cannot write %s: File too large", path);
    r = RUN_SHELL("ulimit -f 2; exec \"$0\" \"$@\"", SMALL, "--samples", "8", "--out", path);
    check_error(&r, 1, head);
    slurp(path, &n);
    CHECK(n > 0 && n < strlen(want));
    r = RUN(SMALL, "--samples", "8", "--out", path);
    CHECK_GOOD(r);
    CHECK_STR(slurp(path, &n), want);
    spill(in_tmp("ids"), "1008 84 104 101", 15);
    r = RUN_SHELL("ulimit -f 2; exec \"$0\" \"$@\"", "logits", "-m", tiny(), "--ids", in_tmp("ids"), "-o", in_tmp("out.npy"));
    check_error(&r, 1, "out.npy: File too large");
    CHECK(access(in_tmp("out.npy"), F_OK));
}

// Refused in a moment: before texts, ids or weights are made.
static void limits(void) {
    static const struct {
        const char *args[9], *part;
    } cases[] = {
        {{"eval", "-m", "M", "--length", "2147483647"}, "--length 2147483647: expected a whole number from 64 to 16777216"},
        {{"eval", "-m", "M", "--length", "16m"}, "--length 16m"},
        {{"eval", "-m", "M", "--length", "1k,16777216"}, "--length 16777216: expected at most 131072"},
        {{"eval", "-m", "M", "--length", "16777216", "--dump", "/dev/null"}, "--length 16777216: expected at most 131072"},
        {{"eval", "-m", "M", "--samples", "2147483647"}, "--samples 2147483647: expected a whole number from 1 to 1000000"},
        {{"eval", "-m", "M", "--samples", "1000000", "--attn", "santa:S={1,2,3,4,5,6}"}, "are 18000000 answers, expected at "},
        {{"eval", "-m", "M", "-n", "2147483647"}, "--n-predict 2147483647: expected at most 131072"},
        {{"eval", "-m", "M", "-c", "2147483647"}, "--ctx-size 2147483647: expected 1 to 131072"},
        {{"generate", "-m", "D", "--load-format", "dummy", "--random-prompt", "2147483647"}, "--random-prompt 2147483647: exp"},
        {{"generate", "-m", "D", "--load-format", "dummy", "--random-prompt", "5", "-c", "2147483647"},
         "--ctx-size 2147483647"},
        {{"bench", "-m", "M", "-d", "2147483647"}, "--depth 2147483647"},
        {{"bench", "-m", "M", "-d", "1", "-n", "0", "-p", "2147483647"}, "a test of 2147483648 tokens"},
        {{"bench", "-m", "M", "-p", "0", "-pg", "2147483647,2147483647"}, "a test of 4294967295 tokens"},
        {{"bench", "decode", "-m", "D", "--load-format", "dummy", "-d", "2147483647"}, "--depth 2147483647"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *args[10] = {0};
        struct timespec from, to;
        for (int j = 0; j < 9 && cases[i].args[j]; j++) {
            const char *arg = cases[i].args[j];
            args[j] = !strcmp(arg, "M") ? tiny() : !strcmp(arg, "D") ? "models/llama-3.2-1b" : arg;
        }
        clock_gettime(CLOCK_MONOTONIC, &from);
        result r = run_args(NULL, args);
        clock_gettime(CLOCK_MONOTONIC, &to);
        check_error(&r, 2, cases[i].part);
        if (to.tv_sec - from.tv_sec > 10) FAIL("%s: after %ld s", cases[i].part, (long)(to.tv_sec - from.tv_sec));
    }
}

// Methods that differ in a late digit stay two, in the answers' file and in the table.
static void digits(void) {
    size_t n;
    result r = RUN(SMALL, "--attn", "dense,vattention:epsilon={0.05,0.050000001}", "--out", in_tmp("out"), "-o", "csv");
    CHECK_GOOD(r);
    CHECK_HAS(r.out, "vattention:epsilon=0.05\"");
    CHECK_HAS(r.out, "vattention:epsilon=0.050000001\"");
    CHECK_HAS(slurp(in_tmp("out"), &n), "\"attn\":\"vattention:epsilon=0.050000001\"");
    r = RUN("generate", "-m", tiny(), "-p", question, "-n", "2", "--temp", "0.1234567", "--top-p", "0.7", "--attn-layer",
            "1=vattention:epsilon=0.050000001");
    CHECK_GOOD(r);
    CHECK_HAS(r.err, "1=vattention:epsilon=0.050000001 ");
    CHECK_HAS(r.err, "temp 0.1234567, top-k 40, top-p 0.7,");
}

static const test_case cases[] = {
    {"closed_descriptors", NEEDS_NOTHING, closed_descriptors},
    {"full_disk", NEEDS_NOTHING, full_disk},
    {"file_size_limit", NEEDS_NOTHING, file_size_limit},
    {"limits", NEEDS_NOTHING, limits},
    {"digits", NEEDS_NOTHING, digits},
    {0},
};
extern const test_suite suite_cli_faults;
const test_suite suite_cli_faults = {"cli_faults", cases};
