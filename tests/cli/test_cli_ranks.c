// tests/cli/test_cli_ranks.c - eval and perplexity as several ranks: the bytes of one process, and the end of all ranks when
// one of them fails.
#include "base/clock.h"
#include "tests/support/mpirun.h"
#include "tests/support/run_cli.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { ARGS = 40, LIMIT_MS = 10000 }; // all ranks must end within this time

static result as_ranks(int n, const char *const *args) {
    char line[300];
    snprintf(line, sizeof line, MPIRUN "-q -np %d \"$0\" \"$@\"", n);
    return run_shell(line, args);
}

// A run of n ranks has the standard output of one process.
static void check_ranks(const char *const *args, int n) {
    result one = run_args(NULL, args), several = as_ranks(n, args);
    CHECK_GOOD(one);
    CHECK_GOOD(several);
    CHECK_INT(several.n_out, one.n_out);
    CHECK_STR(several.out, one.out);
    char share[32];
    snprintf(share, sizeof share, "ranks: %d share ", n);
    CHECK_HAS(several.err, share);
}
#define CHECK_RANKS(n, ...) check_ranks((const char *const[]){__VA_ARGS__, NULL}, n)

// ---- equal bytes ----

#define EVAL "eval", "-m", tiny(), "--length", "600", "--attn", "dense,santa-prop:S=16"

static void eval_tables(void) { // 10 texts; 3 texts with samples of 3 questions each, and a part of them; 1 text
    need_mpi();
    CHECK_RANKS(2, EVAL, "--task", "niah-single,vt", "--samples", "5");
    CHECK_RANKS(3, EVAL, "--task", "niah-multikey", "--samples", "8", "--questions", "3", "-o", "json");
    CHECK_RANKS(3, EVAL, "--task", "fwe", "--samples", "1", "-o", "csv", "--temp", "0.7", "--seed", "5");
}

// Questions of a file: those about one context, or about one that begins with it, stay together. The answers must not depend on
// what a rank has asked before.
static void eval_file(void) {
    need_mpi();
    char path[256], line[3000];
    snprintf(path, sizeof path, "%s", in_tmp("questions"));
    FILE *f = fopen(path, "w");
    CHECK(f != NULL);
    for (int i = 0; i < 12; i++) {
        snprintf(line, sizeof line, "The hidden number of bay %d is %d. The grass is green. %s", i / 3, 48213 + i / 3,
                 i % 3 == 2 ? "The lake is calm. " : "");
        fprintf(f, "{\"context\": \"%s%s\", \"question\": \"What is the hidden number of bay %d? Answer:\", \"answer\": %d}\n",
                "The sky is clear. The sun is warm. ", line, i / 3, 48213 + i / 3);
    }
    fclose(f);
    const char *const args[] = {"eval", "-m", tiny(), "--jsonl", path, "--attn", "dense,topk:k=8", "-o", "json", NULL};
    check_ranks(args, 3);
}

// The fields that are times.
static void remove_times(json_t *value) {
    json_t *item;
    size_t i;
    const char *key;
    if (json_is_object(value)) {
        json_object_del(value, "ttft_ms");
        json_object_foreach(value, key, item) remove_times(item);
    }
    json_array_foreach(value, i, item) remove_times(item);
}

// The figures of each layer and head are sums over the answers of all ranks, in the order of one process.
static void eval_prefills(void) {
    need_mpi();
    const char *const args[] = {"eval",
                                "-m",
                                tiny(),
                                "--task",
                                "niah-single",
                                "--length",
                                "600",
                                "--samples",
                                "3",
                                "--attn",
                                "dense",
                                "-o",
                                "json",
                                "--prefill-check",
                                "2",
                                "--attn-prefill",
                                "dense,sample:alpha_c=0.9",
                                "-t",
                                "1",
                                NULL};
    result one = run_args(NULL, args), two = as_ranks(2, args);
    json_t *a = document(&one), *b = document(&two);
    remove_times(a), remove_times(b);
    char *x = json_dumps(a, JSON_INDENT(1)), *y = json_dumps(b, JSON_INDENT(1));
    int is_same = !strcmp(x, y), has_heads = strstr(x, "\"cra\"") || strstr(x, "\"density\"");
    json_decref(a), json_decref(b), free(x), free(y);
    CHECK(has_heads);
    CHECK(is_same);
}

// Rank 0 writes --out, in the order of one process, and the other ranks know what it holds.
static void eval_continues(void) {
    need_mpi();
    char path[2][256];
    size_t n;
    for (int samples = 2; samples <= 5; samples += 3) {
        for (int k = 0; k < 2; k++) {
            char number[8];
            snprintf(number, sizeof number, "%d", samples);
            snprintf(path[k], sizeof path[k], "%s", in_tmp(k ? "several" : "one"));
            const char *const args[] = {EVAL, "--task", "niah-single,vt", "--samples", number, "--out", path[k], NULL};
            result r = k ? as_ranks(2, args) : run_args(NULL, args);
            CHECK_GOOD(r);
        }
        CHECK_STR(slurp(path[1], &n), slurp(path[0], &n));
    }
    result r = RUN_SHELL(MPIRUN "-q -np 2 \"$0\" \"$@\"", EVAL, "--task", "niah-single,vt", "--samples", "5", "--out", path[1],
                         "--seed", "9");
    check_error(&r, 2, "was written with seed = 0, but this command has 9");
}

static const char *texts_file(int n_texts) {
    FILE *f = fopen(in_tmp("texts"), "w");
    CHECK(f != NULL);
    for (int i = 0; i < n_texts; i++) {
        fprintf(f, "{\"text\": \"");
        for (const char *p = long_text(8 + 3 * (i % 3)); *p; p++) *p == '\n' ? fputs("\\n", f) : fputc(*p, f);
        fprintf(f, "\"}\n");
    }
    fclose(f);
    return in_tmp("texts");
}

static void perplexities(void) { // windows that overlap; histories; texts of one to four windows, and of one row each
    need_mpi();
    char text[256], lines[256];
    snprintf(text, sizeof text, "%s", in_tmp("text"));
    spill(text, long_text(60), strlen(long_text(60)));
    CHECK_RANKS(2, "perplexity", "-m", tiny(), "-f", text, "-c", "200", "--stride", "90");
    CHECK_RANKS(3, "perplexity", "-m", tiny(), "-f", text, "-c", "200", "-o", "json", "--attn", "santa-prop:S=8");
    CHECK_RANKS(3, "perplexity", "-m", tiny(), "-f", text, "-c", "200", "--history", "20,60,all", "--segment", "30");
    snprintf(lines, sizeof lines, "%s", texts_file(10));
    CHECK_RANKS(2, "perplexity", "-m", tiny(), "--jsonl", lines, "-c", "64", "-o", "jsonl");
    texts_file(2);
    CHECK_RANKS(3, "perplexity", "-m", tiny(), "--jsonl", lines, "-c", "64", "--windows", "1", "-o", "json");
}

// The GPUs of a host, or one GPU for both ranks.
static void on_gpus(void) {
    need_mpi();
    char text[256];
    snprintf(text, sizeof text, "%s", in_tmp("text"));
    spill(text, long_text(60), strlen(long_text(60)));
    CHECK_RANKS(2, EVAL, "--task", "niah-single,vt", "--samples", "3", "-o", "json", "--device", "cuda");
    CHECK_RANKS(2, "perplexity", "-m", tiny(), "-f", text, "-c", "200", "-o", "json", "--device", "cuda");
}

// ---- faults ----

// A text must occur n times.
static void check_times(const char *text, const char *part, int n) {
    int found = 0;
    for (const char *p = text; (p = strstr(p, part)); p += strlen(part)) found++;
    if (found != n) FAIL("\"%s\" occurs %d times, expected %d: %s", part, found, n, text);
}

static int is_alive(long process) { // a zombie is not
    char path[64], state = 'Z';
    snprintf(path, sizeof path, "/proc/%ld/stat", process);
    FILE *f = fopen(path, "r");
    if (f && fscanf(f, "%*d (%*[^)]) %c", &state) != 1) state = 'Z';
    if (f) fclose(f);
    return state != 'Z';
}

// Sends a signal to rank `rank` of three in the middle of a run. All of them must end in time.
static result hurt(const char *flags, int rank, int sig, long *process) {
    char line[700], name[32], out[256];
    size_t n;
    snprintf(out, sizeof out, "%s", in_tmp("answers"));
    snprintf(line, sizeof line,
             MPIRUN "%s -np 3 /bin/sh -c 'echo $$ >%s/rank$OMPI_COMM_WORLD_RANK; exec \"$0\" \"$@\"' \"$0\" \"$@\"", flags,
             test_tmp());
    remove(out);
    pid_t pid = start_shell(
        line, (const char *const[]){EVAL, "--task", "vt", "--samples", "100000", "--out", out, "--threads", "1", NULL});
    wait_for_bytes(pid, out, 3000); // answers of several texts
    snprintf(name, sizeof name, "rank%d", rank);
    *process = atol(slurp(in_tmp(name), &n));
    CHECK(*process > 1 && !kill((pid_t)*process, sig));
    double start = sl_now_ms();
    result r = finish(pid, NULL);
    double ms = sl_now_ms() - start;
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "rank%d", i);
        long of_rank = atol(slurp(in_tmp(name), &n));
        while (is_alive(of_rank))
            if ((ms = sl_now_ms() - start) > LIMIT_MS) FAIL("rank %d is left: %s", i, r.err);
    }
    if (ms > LIMIT_MS) FAIL("the ranks ended after %.0f ms: %s", ms, r.err);
    return r;
}

// A stopped rank, and a killed rank whose launcher does not end the others (as srun does), are silent.
static void silence(void) {
    need_mpi();
    static const struct {
        const char *flags;
        int rank, sig;
    } cases[] = {
        {"-q", 1, SIGSTOP}, {"-q", 0, SIGSTOP}, {"-q --mca btl self,tcp", 2, SIGSTOP}, {"-q --enable-recovery", 1, SIGKILL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char part[64];
        long process;
        result r = hurt(cases[i].flags, cases[i].rank, cases[i].sig, &process);
        check_times(r.err, "sleigh: error: ", 1);
        snprintf(part, sizeof part, "sleigh: error: rank %d of 3 (", cases[i].rank);
        CHECK_HAS(r.err, part);
        snprintf(part, sizeof part, ", process %ld) has given no sign of life for 5 s", process);
        CHECK_HAS(r.err, part);
        CHECK(r.code == 1 || cases[i].sig == SIGKILL); // mpirun --enable-recovery returns 0
    }
}

static void killed(void) { // mpirun ends the others, and says which rank was killed
    need_mpi();
    long process;
    result r = hurt("", 1, SIGKILL, &process);
    CHECK(r.code == 137);
    check_times(r.err, "sleigh: error: ", 0);
    check_times(r.err, "process rank 1 ", 1);
    CHECK_HAS(r.err, "exited on signal 9");
}

static void interrupted(void) { // Ctrl+C in rank 0 and in another rank
    need_mpi();
    for (int rank = 0; rank < 3; rank += 2) {
        char part[64];
        long process;
        result r = hurt("-q", rank, SIGINT, &process);
        check_times(r.err, "sleigh: error: ", 1);
        snprintf(part, sizeof part, ", process %ld): interrupted; run the same command to continue", process);
        CHECK_HAS(r.err, part);
        CHECK_INT(r.code, 1);
        if (rank == 0) CHECK_HAS(r.out, "; interrupted, 100000 samples were planned");
    }
}

// ---- refused at the start ----

static void refused(void) {
    need_mpi();
    static const char two[] = MPIRUN "-q -np 2 \"$0\" \"$@\"";
    result r = RUN_SHELL(MPIRUN "-q -np 1 \"$0\" \"$@\" : -np 1 \"$0\" \"$@\" --seed 4", EVAL, "--samples", "2");
    check_error(&r, 2, "rank 1 of 2 (");
    CHECK_HAS(r.err, "has arguments = [\"eval\",");
    r = RUN_SHELL(MPIRUN "-q -np 1 -x SLEIGH_ISA=avx2 \"$0\" \"$@\" : -np 1 \"$0\" \"$@\"", EVAL, "--samples", "2");
    check_error(&r, 2, "has environment = ");
    r = RUN_SHELL(two, EVAL, "--samples", "2", "--no-such-flag");
    check_error(&r, 2, "rank 0 of 2 (");
    r = RUN_SHELL(two, "generate", "-m", tiny(), "-p", "Hello");
    check_error(&r, 2, "only the commands eval and perplexity share their work between ranks");
    r = RUN_SHELL(two, "perplexity", "-m", tiny());
    check_error(&r, 2, "--file: expected the name of a file, because only rank 0 has standard input");
    r = RUN_SHELL(two, "eval", "-m", tiny(), "--length", "600", "--samples", "1", "--attn", "auto");
    CHECK_INT(r.code, 2);
    check_times(r.err, "sleigh: error: ", 1);
    CHECK_HAS(r.err, "auto cannot be used with several ranks");
}

// Ranks that find another program, or another model under the same name, and a rank without a model.
static void unequal(void) {
    need_mpi();
    char line[1200], command[700];
    const char *tmp = test_tmp();
    spill(in_tmp("text"), long_text(30), strlen(long_text(30)));
    snprintf(command, sizeof command,
             "mkdir '%s/a' '%s/b' '%s/c' && cp -r '%s' '%s/a/m' && cp -r '%s' '%s/b/m' && chmod -R u+w '%s' && "
             "printf '\\001' | dd of='%s/b/m/model.safetensors' bs=1 seek=$(($(stat -c %%s '%s/b/m/model.safetensors') - 9)) "
             "conv=notrunc 2>/dev/null && cp '%s' '%s/program' && echo >>'%s/program'",
             tmp, tmp, tmp, tiny(), tmp, tiny(), tmp, tmp, tmp, tmp, cli_binary(), tmp, tmp);
    CHECK(!system(command));
    snprintf(line, sizeof line,
             "p=$(realpath \"$0\"); " MPIRUN "-q -np 1 -wdir %s/a \"$p\" \"$@\" : -np 1 -wdir %s/b \"$p\" \"$@\"", tmp, tmp);
    result r = RUN_SHELL(line, "eval", "-m", "m", "--length", "600", "--samples", "2");
    check_error(&r, 2, "rank 1 of 2 (");
    CHECK_HAS(r.err, "has weights = \"fnv1a:");
    r = RUN_SHELL(line, "perplexity", "-m", "m", "-c", "64", "-f", in_tmp("text"));
    check_error(&r, 2, "has weights = \"fnv1a:");
    snprintf(line, sizeof line,
             "p=$(realpath \"$0\"); " MPIRUN "-q -np 1 -wdir %s/a \"$p\" \"$@\" : -np 1 -wdir %s/c \"$p\" \"$@\"", tmp, tmp);
    r = RUN_SHELL(line, "eval", "-m", "m", "--length", "600", "--samples", "2");
    check_error(&r, 1, "sleigh: error: rank 1 of 2 (");
    CHECK_HAS(r.err, "): --model m: there is no such folder");
    snprintf(line, sizeof line, MPIRUN "-q -np 1 \"$0\" \"$@\" : -np 1 %s/program \"$@\"", tmp);
    r = RUN_SHELL(line, EVAL, "--samples", "2");
    check_error(&r, 2, "has program = \"");
}

// A launcher that is not of Open MPI must not make two runs of one.
static void other_launchers(void) {
    need_mpi();
    static const char *const variables[] = {"PMI_SIZE", "SLURM_STEP_NUM_TASKS"};
    for (int i = 0; i < 2; i++) {
        char line[200];
        snprintf(line, sizeof line, "ASAN_OPTIONS=detect_leaks=0 %s=2 exec \"$0\" \"$@\"", variables[i]);
        result r = RUN_SHELL(line, EVAL, "--samples", "1");
        check_error(&r, 1, "the launcher has started 2 ranks, and Open MPI connects 1; use mpirun of Open MPI");
    }
}

static const test_case cases[] = {{"silence", NEEDS_NOTHING, silence},
                                  {"eval_tables", NEEDS_NOTHING, eval_tables},
                                  {"eval_file", NEEDS_NOTHING, eval_file},
                                  {"eval_prefills", NEEDS_NOTHING, eval_prefills},
                                  {"eval_continues", NEEDS_NOTHING, eval_continues},
                                  {"perplexities", NEEDS_NOTHING, perplexities},
                                  {"on_gpus", NEEDS_GPU, on_gpus},
                                  {"killed", NEEDS_NOTHING, killed},
                                  {"interrupted", NEEDS_NOTHING, interrupted},
                                  {"refused", NEEDS_NOTHING, refused},
                                  {"unequal", NEEDS_NOTHING, unequal},
                                  {"other_launchers", NEEDS_NOTHING, other_launchers},
                                  {0}};
extern const test_suite suite_cli_ranks;
const test_suite suite_cli_ranks = {"cli_ranks", cases};
