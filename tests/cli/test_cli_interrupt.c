// tests/cli/test_cli_interrupt.c - Ctrl+C during long commands: what they have so far is printed, and the exit code is not 0.
#include "tests/support/gpu.h"
#include "tests/support/pty.h"
#include "tests/support/run_cli.h"

#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

// Waits until a file of the folder of the case holds a text n times, and some milliseconds more, and interrupts the program.
static result interrupt_later(pid_t pid, const char *name, const char *text, int n, int ms) {
    enum { TRIES = 24000 }; // 4 minutes: a sanitizer build on a loaded machine is slow
    int found = 0;
    for (int i = 0; i < TRIES && found < n; i++) {
        size_t size;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        found = 0;
        if (access(in_tmp(name), R_OK)) continue;
        for (const char *p = slurp(in_tmp(name), &size); (p = strstr(p, text)); p++) found++;
    }
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
    kill(pid, SIGINT);
    result r = finish(pid, NULL);
    if (found < n) FAIL("\"%s\" %d times in %s, expected %d times: %s", text, found, name, n, r.err);
    return r;
}

static result interrupt(pid_t pid, const char *name, const char *text, int n) {
    return interrupt_later(pid, name, text, n, 0);
}

// ---- eval ----

#define EVAL(FORMAT)                                                                                                           \
    "eval", "-m", tiny(), "--task", "niah-single,vt", "--length", "600", "--samples", "5000", "--attn", "dense,topk:k=16",     \
        "--out", out, "-o", FORMAT

// Samples of the file that both methods answered: each text is asked with dense attention first.
static int complete_samples(const char *path) {
    size_t n;
    int found = 0;
    for (const char *p = slurp(path, &n); (p = strstr(p, "\"attn\":\"topk:k=16\"")); p++) found++;
    return found;
}

static void eval_table(void) {
    char out[256], part[128];
    snprintf(out, sizeof out, "%s", in_tmp("answers"));
    const char *const args[] = {EVAL("md"), NULL}, *const as_json[] = {EVAL("json"), NULL};
    result r = interrupt(start(NULL, 0, NULL, args), "answers", "\"attn\":\"topk:k=16\"", 5);
    check_error(&r, 1, "interrupted; run the same command to continue (");
    CHECK_HAS(r.err, " of 20000 answers are done)");
    int n = complete_samples(out);
    snprintf(part, sizeof part, "%d samples of %d texts; interrupted, 10000 samples were planned\n\n", n, n);
    CHECK_HAS(r.out, part);
    CHECK_HAS(r.out, "| method | niah-single 600 | KV bytes % |\n"); // the other task has no answers
    CHECK_HAS(r.out, "Difference to dense in points");

    // The next run continues, and its table holds the answers of both.
    r = interrupt(start(NULL, 0, NULL, as_json), "answers", "\"attn\":\"topk:k=16\"", n + 4);
    check_error(&r, 1, "interrupted; ");
    r.code = 0;
    json_t *table = document(&r), *rows = json_object_get(table, "rows");
    CHECK(json_is_true(json_object_get(table, "interrupted")));
    CHECK_INT(json_array_size(rows), 2 * 2); // two methods, the task and the mean of all tasks
    CHECK_INT(number(json_array_get(rows, 0), "samples"), complete_samples(out));
    CHECK(complete_samples(out) >= n + 4);
    json_decref(table);
}

// ---- bench ----

// A run of hours is announced. Ctrl+C ends it between two steps, after the rows that are known.
static void bench_rows(void) {
    const char *const args[] = {"bench", "-m",   tiny(),          "-p", "1", "-n", "30000", "-r", "20",
                                "-o",    "json", "--memory-rate", "20", NULL};
    result r = interrupt(start(NULL, 0, NULL, args), "stdout", "\"pp1\"", 1);
    check_error(&r, 1, "interrupted");
    CHECK_HAS(r.err, "\ntime: this run takes about ");
    CHECK_HAS(r.err, " for decode steps; a lower --depth, --batch or -r makes it shorter\n");
    r.code = 0;
    json_t *rows = document(&r);
    CHECK_INT(json_array_size(rows), 1);
    json_decref(rows);
}

// The answers before the first line that is not complete are printed.
static void generate_parallel(void) {
    enum { N = 400 };
    char file[N * 16];
    int n = 0;
    for (int i = 0; i < N; i++) n += snprintf(file + n, sizeof file - (size_t)n, "House %d\n", i);
    spill(in_tmp("prompts"), file, (size_t)n);
    const char *const args[] = {"generate", "-m",  tiny(),         "--prompts", in_tmp("prompts"), "-np", "3",
                                "-n",       "200", "--ignore-eos", NULL};
    result r = interrupt(start(NULL, 0, NULL, args), "stdout", "\"index\":1,", 1);
    int first = 0, last = 0, n_lines = count_of(r.out, r.n_out, '\n');
    check_error(&r, -SIGINT, "prompts: interrupted in lines ");
    CHECK(sscanf(strstr(r.err, "interrupted in lines "), "interrupted in lines %d to %d", &first, &last) == 2);
    CHECK(n_lines >= 2 && first == n_lines + 1 && last >= first && last < N);
}

#ifdef SLEIGH_CUDA
// Rows are printed as soon as they are known.
static void bench_attn_rows(void) {
    const char *const args[] = {"bench",     "attn", "--phase", "decode", "-b",    "1", "-d",
                                "1k-32k+1k", "-r",   "1000",    "--attn", "dense", NULL};
    result r = interrupt(start(NULL, 0, NULL, args), "stdout", "\n| 1 x 1k | dense | ", 1);
    check_error(&r, 1, "interrupted; the table has ");
    CHECK_HAS(r.err, " rows of at most 32");
    CHECK_LACKS(r.out, "| 1 x 32k |");
}
#endif

// ---- perplexity ----

#define PERPLEXITY "perplexity", "-m", tiny(), "-f", book(), "-c", "64", "--attn", "santa:S=4"

static const char *book(void) {
    static char path[256];
    snprintf(path, sizeof path, "%s", in_tmp("text"));
    FILE *f = fopen(path, "w");
    for (int i = 0; f && i < 40; i++) fputs(long_text(400), f);
    CHECK(f && !fclose(f));
    return path;
}

static void perplexity_windows(void) {
    const char *const args[] = {PERPLEXITY, NULL};
    result r = interrupt(start(NULL, 0, NULL, args), "stdout", "\n| 3 | ", 1); // the row of the fourth window
    int n = 0, rows = 0;
    for (const char *p = r.out; (p = strstr(p, "\n| ")); p++) rows += p[3] >= '0' && p[3] <= '9';
    const char *end = strstr(r.err, "interrupted; the result is of ");
    CHECK(end && sscanf(end, "interrupted; the result is of %d windows, ", &n) == 1 && n == rows);
    check_error(&r, 1, " were planned");
    char line[64];
    snprintf(line, sizeof line, ", %d of ", 31 * n); // a window scores its second half, but its last token has no successor
    CHECK_HAS(r.out, line);
    snprintf(line, sizeof line, " tokens scored in %d windows of 64, ", n);
    CHECK_HAS(r.out, line);
}

// The JSON of an interrupted run says so. The bar on the terminal shows when some windows are complete.
static void perplexity_json(void) {
    int n = 0;
    PTY_START((pty_options){0}, PERPLEXITY, "-o", "json");
    while (!n) {
        pty_expect("\033[Kperplexity [");
        pty_expect(" windows");
        const char *count = pty_since() - strlen(" windows");
        while (count[-1] != ' ') count--; // "12/5650"
        n = atoi(count);
    }
    pty_signal(SIGINT);
    CHECK_INT(pty_finish(), 1);
    const char *from = strstr(pty_seen(), "\033[K{"), *end = strstr(pty_seen(), "\r\n}");
    CHECK(from && end);
    json_t *out = json_loadb(from + 3, (size_t)(end + 3 - (from + 3)), 0, NULL);
    CHECK(out && json_is_true(json_object_get(out, "interrupted")) &&
          json_array_size(json_object_get(out, "windows")) >= (size_t)n);
    const json_t *windows = json_object_get(out, "windows");
    size_t last = json_array_size(windows) - 1;
    CHECK_INT(number(out, "scored"), 31 * ((int)last + 1));
    CHECK(number(out, "ppl") == number(json_array_get(windows, last), "ppl_so_far")); // no token of the next window counts
    json_decref(out);
}

// Writes n lines with a text of more than 128 tokens.
static const char *book_lines(int n, const char *name) {
    static char path[256];
    snprintf(path, sizeof path, "%s", in_tmp(name));
    FILE *f = fopen(path, "w");
    for (int i = 0; f && i < n; i++) {
        json_t *line = json_pack("{s:o}", "text", json_sprintf("%d: %.700s", 7919 * i % 10007, long_text(20)));
        json_dumpf(line, f, 0);
        fputc('\n', f);
        json_decref(line);
    }
    CHECK(f && !fclose(f));
    return path;
}

// The table of an interrupted run is that of a run of its complete texts. The windows of the next text, of which
// there are some nearly always, are left out.
static void perplexity_texts(void) {
    char all[256];
    int n = 0;
    snprintf(all, sizeof all, "%s", book_lines(1000, "all.jsonl"));
    const char *const args[] = {"perplexity", "-m",        tiny(), "--jsonl",   all,     "-c",
                                "16",         "--windows", "4",    "--history", "4,all", NULL};
    result r = interrupt_later(start(NULL, 0, NULL, args), "stdout", "\n| 8 | ", 1, 25); // in the middle of a text
    const char *said = strstr(r.err, "interrupted; the result is of "), *table = strstr(r.out, "\n\n| history | ");
    CHECK(said && sscanf(said, "interrupted; the result is of %d windows, ", &n) == 1 && n >= 36 && n % 4 == 0);
    check_error(&r, 1, " windows, 4000 were planned");
    result whole = RUN("perplexity", "-m", tiny(), "--jsonl", book_lines(n / 4, "some.jsonl"), "-c", "16", "--windows", "4",
                       "--history", "4,all");
    CHECK_GOOD(whole);
    CHECK(table && strstr(whole.out, "\n\n| history | "));
    CHECK_STR(table, strstr(whole.out, "\n\n| history | "));
}

// ---- compare ----

// Writes n lines with equal questions about different texts.
static const char *questions(int n, const char *name) {
    static char path[256];
    snprintf(path, sizeof path, "%s", in_tmp(name));
    FILE *f = fopen(path, "w");
    for (int i = 0; f && i < n; i++)
        fprintf(f, "{\"context\": \"The hidden number of house %d is %d. \", \"question\": \"What is it?\", \"id\": %d}\n", i,
                7919 * i % 10007, i);
    CHECK(f && !fclose(f));
    return path;
}

// The tables of an interrupted run are those of a run of its complete prompts. Three methods have answered the next prompt, and
// do not count it.
static void compare_tables(void) {
    char all[256];
    int n = 0;
    snprintf(all, sizeof all, "%s", questions(5000, "all.jsonl"));
    const char *const args[] = {"compare",     "-m",     tiny(),
                                "--jsonl",     all,      "-n",
                                "6",           "--attn", "dense,topk:k=4096,streaming:sink=1:window=8,santa:S=4",
                                "--temp",      "0",      "--heads",
                                "--attention", NULL};
    result r = interrupt_later(start(NULL, 0, NULL, args), "stdout", "prompt 3: ", 1, 60); // in the middle of a prompt
    const char *said = strstr(r.err, "interrupted; the tables are of "), *tables = strstr(r.out, "texts: ");
    CHECK(said && sscanf(said, "interrupted; the tables are of %d prompts, ", &n) == 1 && n >= 4);
    check_error(&r, 1, " prompts, 5000 were planned");
    result whole = RUN("compare", "-m", tiny(), "--jsonl", questions(n, "some.jsonl"), "-n", "6", "--attn",
                       "dense,topk:k=4096,streaming:sink=1:window=8,santa:S=4", "--temp", "0", "--heads", "--attention");
    CHECK_GOOD(whole);
    CHECK(tables && strstr(whole.out, "texts: "));
    CHECK_STR(tables, strstr(whole.out, "texts: "));
}

// ---- chat ----

// Without a terminal, Ctrl+C ends the chat, not only the answer: the next messages are not read.
static void chat_pipe(void) {
    const char *const args[] = {"chat", "-m", tiny(), "--chat-template", "zephyr", "-n", "20000", "--ignore-eos", NULL};
    result r = interrupt(start("Hello\n/stats\n", 13, NULL, args), "stdout", " ", 3);
    check_error(&r, 1, "interrupted");
    CHECK_LACKS(r.err, "stopped: ");
}

static const test_case cases[] = {
    {"compare-tables", NEEDS_NOTHING, compare_tables},
    {"perplexity-windows", NEEDS_NOTHING, perplexity_windows},
    {"perplexity-json", NEEDS_NOTHING, perplexity_json},
    {"perplexity-texts", NEEDS_NOTHING, perplexity_texts},
    {"eval-table", NEEDS_NOTHING, eval_table},
    {"bench-rows", NEEDS_NOTHING, bench_rows},
    {"generate-parallel", NEEDS_NOTHING, generate_parallel},
    GPU_CASE("bench-attn-rows", bench_attn_rows),
    {"chat-pipe", NEEDS_NOTHING, chat_pipe},
    {0},
};
extern const test_suite suite_cli_interrupt;
const test_suite suite_cli_interrupt = {"cli_interrupt", cases};
