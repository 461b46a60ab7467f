// tests/cli/test_cli_faults.c - faults of the system or the user: closed descriptors, full disks, numbers beyond the limits.
// The program must end with one line that gives the reason, without lost or partial output.
#include "backend/cpu/cpu_ops.h"
#include "cli/eval/fingerprint.h"
#include "models/safetensors.h"
#include "tests/support/run_cli.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SMALL "eval", "-m", tiny(), "--task", "niah-single", "--length", "600", "--samples", "2"

// The file of SMALL --out after a run without faults.
static const char *good_file(void) {
    char path[256];
    size_t n;
    snprintf(path, sizeof path, "%s", in_tmp("good"));
    result r = RUN(SMALL, "--out", path);
    CHECK_GOOD(r);
    return slurp(path, &n);
}

// A file that is opened while descriptor 1 or 2 is closed must not become standard output or standard error.
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

// A limit on the size of a file (in 512-byte blocks) is an error that names the file. The complete lines can be continued.
static void file_size_limit(void) {
    char path[256], head[320];
    size_t n;
    snprintf(path, sizeof path, "%s", in_tmp("out"));
    result r = RUN(SMALL, "--samples", "4", "--out", path);
    CHECK_GOOD(r);
    const char *want = slurp(path, &n);
    CHECK(!remove(path));
    snprintf(head, sizeof head, "--out: cannot write %s: File too large", path);
    r = RUN_SHELL("ulimit -f 2; exec \"$0\" \"$@\"", SMALL, "--samples", "4", "--out", path);
    check_error(&r, 1, head);
    slurp(path, &n);
    CHECK(n > 0 && n < strlen(want));
    r = RUN(SMALL, "--samples", "4", "--out", path);
    CHECK_GOOD(r);
    CHECK_STR(slurp(path, &n), want);
    spill(in_tmp("ids"), "1008 84 104 101", 15);
    r = RUN_SHELL("ulimit -f 2; exec \"$0\" \"$@\"", "logits", "-m", tiny(), "--ids", in_tmp("ids"), "-o", in_tmp("out.npy"));
    check_error(&r, 1, "out.npy: File too large");
    CHECK(access(in_tmp("out.npy"), F_OK));
}

// The commands refuse these flags before they make texts, ids or weights.
static void limits(void) {
    static const struct {
        const char *args[9], *part;
    } cases[] = {
        {{"eval", "-m", "M", "--length", "2147483647"}, "--length 2147483647: expected a whole number from 64 to 16777216"},
        {{"eval", "-m", "M", "--length", "16m"}, "--length 16m"},
        {{"eval", "-m", "M", "--length", "1k,16777216"}, "--length 16777216: expected at most 131072"},
        {{"eval", "-m", "M", "--length", "16777216", "--dump", "/dev/null"}, "--length 16777216: expected at most 131072"},
        {{"eval", "-m", "M", "--samples", "2147483647"}, "--samples 2147483647: expected a whole number from 1 to 1000000"},
        {{"eval", "-m", "M", "--samples", "1000000", "--attn", "santa:S={1,2,3,4,5,6}"}, "are 18000000 answers; expected at "},
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

// Runs a command under `ulimit -v` or `ulimit -d`.
static result run_limited(char kind, int mib, const char *const *args) {
    char shell[160];
    snprintf(shell, sizeof shell, "ulimit -%c %d; exec timeout 30 \"$0\" \"$@\"", kind, mib << 10);
    return run_shell(shell, args);
}

static int ended_before_main(const result *r) {
    enum { NO_LOADER = 127 }; // the loader cannot map the libraries of the program
    return r->code == NO_LOADER;
}

// MiB of address space (v) or of data (d) that the program needs to load and end. cuBLAS takes several hundred of these MiB.
static int least_memory(char kind) {
    for (int mib = 4; mib < 8192; mib += mib < 100 ? 4 : 25) {
        result r = run_limited(kind, mib, (const char *const[]){"version", NULL});
        int is_crash = r.code == -SIGSEGV && !*r.out && !*r.err; // the constructor of cuBLASLt, for want of memory
        if (ended_before_main(&r) || is_crash) continue;
        CHECK_GOOD(r);
        return mib;
    }
    FAIL("no address space below 8 GiB holds the program");
    return 0;
}

// With any amount of memory a run ends by itself, with the right text or with one error. (A failed check would abort the
// process.)
static void short_memory(void) {
#ifdef __SANITIZE_ADDRESS__
    TEST_SKIP("AddressSanitizer needs all of the address space");
#endif
    const char *const args[] = {"generate", "-m", tiny(), "-p", long_text(8), "-n", "4",
                                "-c",       "4k", "-t",   "2",  "--no-perf",  NULL};
    char want[256]; // a copy, because outputs are reused after some runs
    const int least[2] = {least_memory('v'), least_memory('d')};
    int count[3] = {0};
    enum { ENDED, BAD, GOOD };
    result whole = run_args(NULL, args);
    CHECK_GOOD(whole);
    snprintf(want, sizeof want, "%s", whole.out);
    for (int mib = 0; mib <= 80; mib += mib < 40 ? 4 : 10)
        for (int kind = 0; kind < 2; kind++) {
            result r = run_limited(kind ? 'd' : 'v', mib + least[kind], args);
            int how = ended_before_main(&r) ? ENDED : r.code ? BAD : GOOD;
            if (how == BAD) {
                check_error(&r, 1, "");
                if (r.n_out) FAIL("%d MiB: it failed after \"%s\"", mib, r.out);
            }
            if (how == GOOD) CHECK_STR(r.out, want);
            count[how]++;
        }
    CHECK(count[BAD] >= 8 && count[GOOD] >= 4);
    result r = run_limited('d', least[1] + 16,
                           (const char *const[]){"generate", "-m", tiny(), "-t", "2", "-c", "32k", "-p", "x", NULL});
    check_error(&r, 1, "MiB (32768 tokens) cannot be reserved");
}

static void short_stack(void) {
    result r = RUN_SHELL("ulimit -s 256; exec \"$0\" \"$@\"", SMALL);
    check_error(&r, 1, "the stack limit is 256 KiB; expected at least 1024; raise it with: ulimit -s 1024");
#ifndef __SANITIZE_ADDRESS__ // frames are larger with it
    static const char *const methods[] = {"dense,vattention,santa-pps:epsilon=0.1,santa-is,bernoulli-group:B=8+santa-prop",
                                          "quest,magicpig,streaming,topk:k=8,topp,random"};
    for (int i = 0; i < 2; i++) {
        r = RUN_SHELL("ulimit -s 1024; exec \"$0\" \"$@\"", SMALL, "--samples", "1", "--attn", methods[i]);
        CHECK_GOOD(r);
    }
#endif
}

// ---- weights that change under a run ----

typedef enum { CUT, OVERWRITE, APPEND, TOUCH } harm;

static void copy_model(const char *to) {
    char cmd[1024];
    snprintf(cmd, sizeof cmd, "mkdir -p '%s' && cp %s/* '%s' && chmod u+w '%s'/*", to, tiny(), to, to);
    CHECK_INT(system(cmd), 0);
}

static void harm_file(const char *dir, const char *file, harm how) {
    char path[320], zeros[4096] = {0};
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", dir, file);
    CHECK_INT(stat(path, &st), 0);
    if (how == CUT) CHECK_INT(truncate(path, st.st_size / 8), 0);
    if (how == TOUCH) CHECK_INT(utimensat(AT_FDCWD, path, (struct timespec[2]){{.tv_sec = 1}, {.tv_sec = 1}}, 0), 0);
    if (how == CUT || how == TOUCH) return;
    FILE *f = fopen(path, "r+b");
    CHECK(f && !fseek(f, how == APPEND ? 0 : st.st_size / 2, how == APPEND ? SEEK_END : SEEK_SET));
    CHECK(fwrite(zeros, 1, sizeof zeros, f) == sizeof zeros && !fclose(f));
}

static void do_harm(const char *dir, harm how) {
    harm_file(dir, "model.safetensors", how);
}

// The file keeps the answers from before the change and gets no others.
static void weights_under_eval(void) {
    char dir[256], good[256], out[256];
    size_t n, n_good;
    snprintf(dir, sizeof dir, "%s", in_tmp("model"));
    snprintf(good, sizeof good, "%s", in_tmp("good"));
    snprintf(out, sizeof out, "%s", in_tmp("out"));
    for (harm how = CUT; how <= TOUCH; how++) {
        copy_model(dir);
        if (how == CUT) {
            result r = RUN("eval", "-m", dir, "--task", "niah-single", "--length", "600", "--samples", "3", "--out", good);
            CHECK_GOOD(r);
        }
        const char *want = slurp(good, &n_good);
        long head = (long)(strchr(want, '\n') - want);
        const char *const args[] = {"eval", "-m",        dir,    "--task", "niah-single", "--length",
                                    "600",  "--samples", "1000", "--out",  out,           NULL};
        CHECK(remove(out) == 0 || how == CUT);
        pid_t pid = start(NULL, 0, NULL, args);
        wait_for_bytes(pid, out, head + 300);
        do_harm(dir, how);
        result r = finish(pid, NULL);
        check_error(&r, 1, "/model.safetensors changed while it was in use");
        CHECK_INT(r.n_out, 0); // no table
        const char *got = slurp(out, &n);
        CHECK(n > (size_t)head && got[n - 1] == '\n');
        if (memcmp(got, want, n < n_good ? n : n_good)) FAIL("%d: %.3000s", how, got);
    }
}

// Every command reports the change, at its end at the latest (main.c).
static void weights_under_generate(void) {
    char dir[256];
    const char *m = dir;
    snprintf(dir, sizeof dir, "%s", in_tmp("model"));
    for (harm how = CUT; how <= OVERWRITE; how++) {
        const char *const args[] = {"generate", "-m", m, "-p", question, "--ignore-eos", "-n", "1500", NULL};
        copy_model(dir);
        CHECK(remove(in_tmp("stdout")) == 0 || how == CUT);
        pid_t pid = start(NULL, 0, NULL, args);
        wait_for_bytes(pid, in_tmp("stdout"), 8);
        do_harm(dir, how);
        result r = finish(pid, NULL);
        check_error(&r, 1, "/model.safetensors changed while it was in use");
    }
}

// The same for the bucket file. A cut removes the classifier, which every step reads from 257 tokens on.
static void buckets_under_a_run(void) {
    static const struct {
        harm how;
        const char *n; // tokens
    } runs[] = {{CUT, "1500"}, {TOUCH, "200"}};
    char dir[256];
    snprintf(dir, sizeof dir, "%s", in_tmp("model"));
    for (int i = 0; i < 2; i++) {
        const char *const args[] = {"generate",      "-m", dir,       "-p",           question, "--attn",
                                    "saap:window=8", "-n", runs[i].n, "--ignore-eos", NULL};
        copy_model(dir);
        CHECK(remove(in_tmp("stdout")) == 0 || i == 0);
        pid_t pid = start(NULL, 0, NULL, args);
        wait_for_bytes(pid, in_tmp("stdout"), 8);
        harm_file(dir, "saap.safetensors", runs[i].how);
        result r = finish(pid, NULL);
        check_error(&r, 1, "/saap.safetensors changed while it was in use");
    }
}

// ---- a file of results continues only with the same weights, binary and arithmetic ----

static void spill_text(const char *path, const char *text) {
    spill(path, text, strlen(text));
}

static void edit(const char *path, const char *from, const char *to) { // replaces the first occurrence in a text file
    size_t n;
    char *text = slurp(path, &n), *at = strstr(text, from), edited[32768];
    CHECK(at && n + strlen(to) < sizeof edited);
    snprintf(edited, sizeof edited, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    spill_text(path, edited);
}

// Runs eval with the model folder as the current folder.
static const char in_folder[] = "b=$(realpath \"$0\"); cd \"$1\"; shift; exec \"$b\" \"$@\"";
#define IN(dir, n)                                                                                                             \
    RUN_SHELL(in_folder, dir, "eval", "-m", ".", "--task", "niah-single", "--length", "600", "--samples", n, "--out", out)

static void refused(const char *dir, const char *out, const char *key) {
    char part[64];
    size_t n;
    const char *before = slurp(out, &n);
    snprintf(part, sizeof part, " was written with %s = \"", key);
    result r = IN(dir, "2");
    check_error(&r, 2, part);
    CHECK_HAS(r.err, "but this command has \"");
    CHECK_STR(slurp(out, &n), before);
}

static void resume_elsewhere(void) {
    char first[256], second[256], out[256], path[320];
    snprintf(first, sizeof first, "%s", in_tmp("first"));
    snprintf(second, sizeof second, "%s", in_tmp("second"));
    snprintf(out, sizeof out, "%s", in_tmp("out"));
    copy_model(first), copy_model(second);
    result r = IN(first, "1");
    CHECK_GOOD(r);
    r = IN(second, "2"); // the same weights
    CHECK_GOOD(r);
    CHECK_HAS(r.err, "1 of 2 answers left");
    snprintf(path, sizeof path, "%s/config.json", second);
    edit(path, "{", "{ ");
    refused(second, out, "config");
    edit(path, "{ ", "{");
    snprintf(path, sizeof path, "%s/tokenizer_config.json", second);
    edit(path, "{", "{ ");
    refused(second, out, "tokenizer");
    edit(path, "{ ", "{");
    do_harm(second, TOUCH); // only the time of the file changes
    r = IN(second, "2");
    CHECK_GOOD(r);
    snprintf(path, sizeof path, "%s/model.safetensors", second); // other weights of the same shapes
    FILE *f = fopen(path, "r+b");
    CHECK(f && !fseek(f, -7, SEEK_END) && fputc(0x3a, f) != EOF && !fclose(f));
    refused(second, out, "weights");
    edit(out, "\"settings\":{\"version\":\"0.1.0", "\"settings\":{\"version\":\"0.0.9");
    refused(first, out, "version");
}

// Two instruction sets that sum in different orders.
static void other_arithmetic(void) {
    static const char *const shells[] = {"SLEIGH_ISA=portable exec \"$0\" \"$@\"", "SLEIGH_ISA=avx2 exec \"$0\" \"$@\""};
    char out[256];
    if (!sl_cpu_has("avx2")) TEST_SKIP("needs AVX2");
    snprintf(out, sizeof out, "%s", in_tmp("out"));
    result r = RUN_SHELL(shells[0], SMALL, "--out", out);
    CHECK_GOOD(r);
    r = RUN_SHELL(shells[1], SMALL, "--samples", "3", "--out", out);
    check_error(&r, 2, "was written with arithmetic = \"portable\", but this command has \"avx2\"");
}

// The first and the last bytes of every tensor count. The name of the folder does not.
static void fingerprints(void) {
    static const char model[] = "tests/goldens/mha";
    cli_fingerprint whole, other;
    sl_error err;
    sl_tensors *tensors;
    size_t n;
    char *file = slurp("tests/goldens/mha/model.safetensors", &n), cmd[800], path[320];
    CHECK_OK(cli_fingerprint_read(model, 0, NULL, &whole, &err), err);
    CHECK_OK(sl_tensors_open(model, &tensors, &err), err);
    int n_tensors = sl_tensors_count(tensors);
    for (int i = -1; i < 2 * n_tensors; i++) {
        const sl_tensor *t = sl_tensors_at(tensors, i < 0 ? 0 : i / 2);
        size_t at = (size_t)((const char *)t->data - sl_tensors_file(tensors, 0)->map) + (i % 2 ? t->n_bytes - 1 : 0);
        const char *dir = in_tmp("x");
        snprintf(path, sizeof path, "%s%d", dir, i + 1);
        snprintf(cmd, sizeof cmd, "mkdir '%s' && cp %s/*.json '%s'", path, model, path);
        CHECK_INT(system(cmd), 0);
        strcat(path, "/model.safetensors");
        if (i >= 0) file[at] ^= 1;
        spill(path, file, n);
        if (i >= 0) file[at] ^= 1;
        *strrchr(path, '/') = 0;
        CHECK_OK(cli_fingerprint_read(path, 0, NULL, &other, &err), err);
        CHECK_STR(other.config, whole.config);
        CHECK_STR(other.tokenizer, whole.tokenizer);
        if (!strcmp(other.weights, whole.weights) != (i < 0)) FAIL("tensor %s, byte %zu: %s", t->name, at, other.weights);
    }
    sl_tensors_close(tensors);
    CHECK(n_tensors > 10);
}

// Methods whose parameters differ only in a late digit stay separate in the file and in the table.
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
    {"short_memory", NEEDS_NOTHING, short_memory},
    {"short_stack", NEEDS_NOTHING, short_stack},
    {"weights_under_eval", NEEDS_NOTHING, weights_under_eval},
    {"weights_under_generate", NEEDS_NOTHING, weights_under_generate},
    {"buckets_under_a_run", NEEDS_NOTHING, buckets_under_a_run},
    {"resume_elsewhere", NEEDS_NOTHING, resume_elsewhere},
    {"other_arithmetic", NEEDS_NOTHING, other_arithmetic},
    {"fingerprints", NEEDS_NOTHING, fingerprints},
    {"digits", NEEDS_NOTHING, digits},
    {0},
};
extern const test_suite suite_cli_faults;
const test_suite suite_cli_faults = {"cli_faults", cases};
