// tests/cli/test_progress.c - progress bars: time left, text at every width, and the screen after bars, rows and messages.
#include "cli/bench/bench_cost.h"
#include "cli/io.h"
#include "cli/options/all_options.h"
#include "cli/output/progress_bar.h"
#include "cli/process.h"
#include "models/source.h"
#include "tests/support/pty.h"
#include "tests/support/run_cli.h"

#include <fcntl.h>
#include <math.h>
#include <pty.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

// ---- time left ----

static double squared(const cli_progress *p, int n) {
    (void)p;
    return (double)n * n;
}

static void time_left(void) {
    cli_progress even = {.label = "upload", .unit = "tensors", .done = 50, .total = 100};
    cli_progress prefill = {.label = "prefill", .unit = "tokens", .cost = squared, .done = 50, .total = 100};
    CHECK_NEAR(cli_progress_left(&even, NULL, 10e3), 10e3, 0);
    CHECK_NEAR(cli_progress_left(&prefill, NULL, 10e3), 30e3, 0); // a quarter of the work took 10 s
    prefill.done = 90;
    CHECK_NEAR(cli_progress_left(&prefill, NULL, 81e3), 19e3, 1e-6);
    prefill.done = 100;
    CHECK_NEAR(cli_progress_left(&prefill, NULL, 81e3), 0, 0);
    even.done = 0;
    CHECK(isnan(cli_progress_left(&even, NULL, 10e3))); // no basis
    even.total = 0;
    CHECK(isnan(cli_progress_left(&even, NULL, 10e3))); // lines of a pipe
    prefill.start = 5e3, prefill.done = 50;
    CHECK_NEAR(cli_progress_left(&prefill, NULL, 15e3), 30e3, 0); // counted from its own start
}

// The prefills of a run and the rest of its work have different speeds.
static void time_left_of_run(void) {
    cli_progress run = {.label = "bench", .unit = "tests", .done = 1, .total = 4, .is_run = 1};
    cli_progress prefill = {.label = "prefill", .unit = "tokens", .cost = squared, .done = 10, .total = 20, .start = 20e3};
    run.prefill = (cli_work){.total = 900, .done = 200, .ms = 5e3};
    run.rest = (cli_work){.total = 40, .done = 10};
    // 700 at 200 in 5 s, and 30 at 10 in the other 15 s
    CHECK_NEAR(cli_progress_left(&run, NULL, 20e3), 17.5e3 + 45e3, 1e-6);
    // The running prefill has done 100 in 4 s: 600 left at 300 in 9 s. The rest took 24 - 9 s.
    CHECK_NEAR(cli_progress_left(&run, &prefill, 24e3), 18e3 + 45e3, 1e-6);
    prefill.cost = NULL; // an inner level that is no prefill
    CHECK_NEAR(cli_progress_left(&run, &prefill, 20e3), 17.5e3 + 45e3, 1e-6);
    run.rest.done = 0;
    CHECK(isnan(cli_progress_left(&run, NULL, 20e3)));
    run.rest.rate = 0.01; // known before the run: 40 at 10 a second
    CHECK_NEAR(cli_progress_left(&run, NULL, 20e3), 17.5e3 + 4e3, 1e-6);
    run.prefill.done = 1000; // more than was planned
    CHECK_NEAR(cli_progress_left(&run, NULL, 20e3), 4e3, 1e-6);
    run.rest = (cli_work){.total = CLI_NO_WORK};
    run.prefill = (cli_work){.total = 900, .done = 300, .ms = 6e3};
    CHECK_NEAR(cli_progress_left(&run, NULL, 20e3), 12e3, 1e-6);
}

// The cost of tokens is that of the model: attention makes later tokens dearer.
static void prefill_cost(void) {
    sl_model *model;
    sl_error err;
    CHECK_OK(sl_model_load(tiny(), &(sl_model_options){.flags = SL_MODEL_NO_TOKENIZER}, &model, &err), err);
    cli_progress p;
    cli_progress_begin_prefill(&p, model, 1000);
    cli_progress_end(&p);
    p.start = 0, p.done = 8192, p.total = 32768;
    double half = sl_model_prefill_flops(model, 1000, 8192), all = sl_model_prefill_flops(model, 1000, 32768);
    double left = cli_progress_left(&p, NULL, 10e3);
    CHECK_NEAR(left, 10e3 * (all - half) / half, 1e-6);
    CHECK(left > 1.5 * 30e3); // a linear estimate gives 30 s
    p.done = 0;
    CHECK(isnan(cli_progress_left(&p, NULL, 10e3)));
    sl_model_free(model);
}

// ---- text ----

static void durations(void) {
    static const struct {
        double ms;
        const char *text;
    } all[] = {{0, "0 s"},        {89.4e3, "89 s"},   {90e3, "2 min"}, {5399e3, "90 min"},
               {5400e3, "1.5 h"}, {360e6, "100.0 h"}, {NAN, "?"}};
    char buf[32];
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) CHECK_STR(cli_duration(all[i].ms, buf), all[i].text);
}

static const cli_progress prefill_bar = {.label = "prefill", .unit = "tokens", .cost = squared, .done = 4096, .total = 8192};

static void bars(void) {
    char buf[CLI_LINE];
    cli_progress_bar(&prefill_bar, NULL, 8e3, 100, buf);
    CHECK_STR(buf, "prefill [#######                       ] 4096/8192 tokens, 512/s, 24 s left");
    cli_progress_line(&prefill_bar, NULL, 8e3, buf);
    CHECK_STR(buf, "prefill: 4096 of 8192 tokens, 512/s, 24 s left");
    cli_progress slow = {.label = "upload", .unit = "tensors", .done = 3, .total = 6};
    cli_progress_line(&slow, NULL, 12e3, buf);
    CHECK_STR(buf, "upload: 3 of 6 tensors, 4.0 s each, 12 s left");
    cli_progress_line(&slow, NULL, 1e3, buf);
    CHECK_STR(buf, "upload: 3 of 6 tensors, 3.0/s, 1 s left");
    slow.done = 0;
    cli_progress_line(&slow, NULL, 12e3, buf);
    CHECK_STR(buf, "upload: 0 of 6 tensors, ? left");
    cli_progress lines = {.label = "jsonl", .unit = "lines", .done = 7, .is_run = 1};
    cli_progress_line(&lines, NULL, 12e3, buf);
    CHECK_STR(buf, "jsonl: 7 lines, ? left");
}

static void bars_of_run(void) {
    char buf[CLI_LINE];
    cli_progress run = {.label = "bench", .unit = "tests", .item = "tg128 @ d8192", .done = 1, .total = 4, .is_run = 1},
                 inner = prefill_bar;
    run.prefill = (cli_work){.total = 900, .done = 300, .ms = 6e3};
    run.rest = (cli_work){.total = CLI_NO_WORK};
    inner.cost = NULL, inner.start = 8e3;
    cli_progress_bar(&run, &inner, 12e3, 100, buf);
    CHECK_STR(buf, "bench [###############               ] 1/4 tests, 12 s left; tg128 @ d8192: prefill 50%");
    cli_progress_line(&run, &inner, 12e3, buf);
    CHECK_STR(buf, "bench: 1 of 4 tests, 12 s left; tg128 @ d8192: prefill 50%");
    run.item[0] = 0;
    cli_progress_line(&run, &inner, 12e3, buf);
    CHECK_STR(buf, "bench: 1 of 4 tests, 12 s left; prefill 50%");
    run.prefill.total = 0, run.rest.total = 0, run.done = 0; // no basis yet: the inner level has its own estimate
    cli_progress_line(&run, &inner, 12e3, buf);
    CHECK_STR(buf, "bench: 0 of 4 tests, ? left; prefill 50%, 4 s left");
    run.done = 3, run.rest.total = 40; // no estimate of the rest: the share of the tests
    cli_progress_bar(&run, NULL, 12e3, 25, buf);
    CHECK_STR(buf, "bench 75%, ? left");
}

// At every width the bar stays below the last column, and says as much as fits.
static void widths(void) {
    char buf[CLI_LINE];
    cli_progress run = {.label = "bench", .unit = "tests", .item = "tg128 @ d8192", .done = 1, .total = 4, .is_run = 1};
    for (int columns = 1; columns < 700; columns++) {
        cli_progress_bar(&prefill_bar, NULL, 8e3, columns, buf);
        CHECK((int)strlen(buf) < columns);
        cli_progress_bar(&run, &prefill_bar, 8e3, columns, buf);
        CHECK((int)strlen(buf) < columns);
    }
    static const struct {
        int columns;
        const char *text;
    } all[] = {{60, "prefill [###           ] 4096/8192 tokens, 512/s, 24 s left"},
               {50, "prefill [##         ] 4096/8192 tokens, 24 s left"},
               {40, "prefill [###           ] 25%, 24 s left"},
               {33, "prefill [#      ] 25%, 24 s left"},
               {30, "prefill 25%, 24 s left"},
               {25, "prefill 25%, 24 s left"},
               {20, "prefill 25%"},
               {6, "prefi"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        cli_progress_bar(&prefill_bar, NULL, 8e3, all[i].columns, buf);
        CHECK_STR(buf, all[i].text);
    }
}

// ---- the screen ----

enum { ROWS = 2000, MOST_COLUMNS = 100 };

// A terminal that knows line feeds, carriage returns and ESC [ K, and wraps long lines.
typedef struct terminal {
    int columns, row, column, n_wraps;
    char cells[ROWS][MOST_COLUMNS + 1];
} terminal;

static void put(terminal *t, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] == '\r') {
            t->column = 0;
        } else if (bytes[i] == '\n') {
            if (++t->row == ROWS) FAIL("more than %d rows", ROWS);
        } else if (n - i >= 3 && !memcmp(bytes + i, "\033[K", 3)) {
            memset(&t->cells[t->row][t->column], 0, (size_t)(MOST_COLUMNS - t->column));
            i += 2;
        } else {
            if ((unsigned char)bytes[i] < ' ') FAIL("byte %d on the terminal", bytes[i]);
            if (t->column == t->columns) t->n_wraps++, t->row++, t->column = 0;
            t->cells[t->row][t->column++] = bytes[i];
        }
    }
}

static const char *row_text(const terminal *t, int row) {
    return row <= t->row ? t->cells[row] : "";
}

static const char *screen_text(const terminal *t) {
    static char out[64 * (MOST_COLUMNS + 2)];
    CHECK(t->row < 64);
    out[0] = 0;
    for (int i = 0; i <= t->row; i++) sprintf(out + strlen(out), "%s%s", t->cells[i], i < t->row ? "\n" : "");
    return out;
}

// Runs fn in a process whose stdout and stderr are a terminal. Returns the bytes that it wrote.
static const char *written(void (*fn)(void), int columns, const char *term, size_t *n) {
    static char bytes[1 << 16];
    const struct winsize size = {.ws_row = ROWS, .ws_col = (unsigned short)columns};
    int master, slave, status;
    if (openpty(&master, &slave, NULL, NULL, &size)) TEST_SKIP("needs a pseudo-terminal");
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) FAIL("fork");
    if (pid == 0) {
        close(master);
        dup2(slave, STDOUT_FILENO), dup2(slave, STDERR_FILENO);
        setvbuf(stdout, NULL, _IOLBF, 0); // as stdio buffers a terminal
        setenv("TERM", term, 1);
        fn();
        fflush(NULL);
        _exit(0);
    }
    close(slave);
    *n = 0;
    for (ssize_t got; *n < sizeof bytes && (got = read(master, bytes + *n, sizeof bytes - *n)) > 0;) *n += (size_t)got;
    close(master);
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    return bytes;
}

static int count(const char *bytes, size_t n, const char *part) {
    int found = 0;
    for (size_t i = 0; i + strlen(part) <= n; i++) found += !memcmp(bytes + i, part, strlen(part));
    return found;
}

// Draws a bar at once: the work began long ago.
static void begin_old(cli_progress *p) {
    cli_progress_begin_run(p, "bench", "tests", 10, 0, 0);
    p->start -= 100e3;
    cli_progress_update(p, 5, 10);
}

static void rows_and_messages(void) {
    cli_progress run, inner;
    cli_printf(NULL, "| test | ");
    cli_printf(NULL, "tok/s |\n");
    cli_flush(NULL);
    begin_old(&run);
    cli_printf(NULL, "| pp512 |");
    cli_printf(NULL, " 10 |\n");
    cli_flush(NULL); // draws the bar again
    cli_say("attn auto: dense");
    cli_write("| tg128 | 20 |\n", 15, NULL); // without a flush: the next report draws the bar
    cli_progress_begin(&inner, "prefill", "tokens");
    cli_progress_update(&inner, 1, 2);
    cli_write("half a ", 7, NULL);
    cli_flush(NULL);
    cli_progress_update(&inner, 2, 3); // would clear the unfinished row
    cli_write("row\n", 4, NULL);
    cli_progress_end(&inner);
    cli_say("last message");
    cli_progress_end(&run);
    cli_say("the end");
}

static void screen(void) {
    static const int all[] = {100, 80, 40, 20};
    for (int i = 0; i < 4; i++) {
        static terminal t;
        size_t n;
        t = (terminal){.columns = all[i]};
        const char *bytes = written(rows_and_messages, all[i], "xterm", &n);
        put(&t, bytes, n);
        CHECK_STR(screen_text(&t), "| test | tok/s |\n| pp512 | 10 |\nattn auto: dense\n| tg128 | 20 |\nhalf a row\n"
                                   "last message\nthe end\n");
        CHECK_INT(t.n_wraps, 0);
        if (count(bytes, n, "bench ") < 4) FAIL("%d bars", count(bytes, n, "bench "));
        CHECK_INT(count(bytes, n, "half a row"), 1);
    }
}

// The bar is removed before an error that ends the program inside a signal handler.
static void end_in_handler(void) {
    cli_progress run;
    begin_old(&run);
    const char *erase = cli_progress_erase(), message[] = "sleigh: error: cut\n";
    if (write(STDERR_FILENO, erase, strlen(erase)) < 0 || write(STDERR_FILENO, message, sizeof message - 1) < 0) _exit(1);
    cli_progress_end(&run);
}

static void screen_of_handler(void) {
    static terminal t;
    size_t n;
    t = (terminal){.columns = 80};
    const char *bytes = written(end_in_handler, 80, "xterm", &n);
    put(&t, bytes, n);
    CHECK_STR(screen_text(&t), "sleigh: error: cut\n");
    CHECK_STR(cli_progress_erase(), ""); // no bar
}

static void one_bar(void) {
    cli_progress run;
    begin_old(&run);
    cli_progress_end(&run);
}

static void many_reports(void) {
    cli_progress run;
    begin_old(&run);
    for (double start = sl_now_ms(); sl_now_ms() < start + 250; usleep(1000)) cli_progress_update(&run, 6, 10);
    cli_progress_end(&run);
}

static void new_run(void) {
    cli_progress run;
    cli_progress_begin_run(&run, "bench", "tests", 10, 0, 0);
    for (int i = 0; i < 9; i++) cli_progress_update(&run, i, 10);
    cli_progress_end(&run);
}

// A bar is drawn at most ten times a second, and not in the first second.
static void rate(void) {
    size_t n;
    const char *bytes = written(many_reports, 80, "xterm", &n);
    int bars = count(bytes, n, "bench ");
    if (bars < 1 || bars > 12) FAIL("%d bars in a quarter of a second", bars); // a loaded machine takes longer
    written(new_run, 80, "xterm", &n);
    CHECK_INT(n, 0);
}

// A terminal that cannot clear a line gets lines.
static void dumb(void) {
    static const char *const names[] = {"dumb", ""};
    for (int i = 0; i < 2; i++) {
        size_t n;
        const char *bytes = written(one_bar, 80, names[i], &n), *want = "progress: bench: 5 of 10 tests, 2 min left\r\n";
        if (n != strlen(want) || memcmp(bytes, want, n)) FAIL("%.*s", (int)n, bytes);
    }
}

static void resized(void) {
    cli_progress run;
    static const int widths[] = {100, 20, 70};
    begin_old(&run);
    for (int i = 0; i < 3; i++) {
        const struct winsize size = {.ws_row = ROWS, .ws_col = (unsigned short)widths[i]};
        ioctl(STDERR_FILENO, TIOCSWINSZ, &size);
        cli_progress_hide();
        cli_progress_show();
    }
    cli_progress_end(&run);
}

static void sizes(void) {
    size_t n;
    const char *bytes = written(resized, 80, "xterm", &n);
    CHECK_INT(count(bytes, n, "bench [###############               ] 5/10 tests, 2 min left"), 3); // 80, 100 and 70 columns
    CHECK_INT(count(bytes, n, "bench 50%\r"), 1);
}

// ---- commands ----

// Waits for a bar and another row, and interrupts the command.
static void bar_and_row(const char *bar, const char *row) {
    pty_expect(bar);
    pty_expect(row);
    pty_signal(SIGINT);
    CHECK_INT(pty_finish(), 1);
}

// The rows of a command are whole, although a bar is on the screen between them.
static void command_rows(void) {
    static terminal t;
    char path[256], start[32];
    int n = 0, n_windows = 0;
    snprintf(path, sizeof path, "%s", in_tmp("text"));
    FILE *f = fopen(path, "w");
    for (int i = 0; f && i < 40; i++) fputs(long_text(400), f);
    CHECK(f && !fclose(f));
    PTY_START(((pty_options){.columns = 100}), "perplexity", "-m", tiny(), "-f", path, "-c", "256");
    bar_and_row("\033[Kperplexity [", "\033[K| ");
    t = (terminal){.columns = 100};
    put(&t, pty_seen(), strlen(pty_seen()));
    CHECK_INT(t.n_wraps, 0);
    for (int i = 0; i <= t.row; i++) {
        const char *row = row_text(&t, i);
        CHECK(!strstr(row, "windows, ") || strstr(row, "interrupted; ")); // no bar is left
        snprintf(start, sizeof start, "| %d | %d | ", n, 256 * n);
        if (strstr(row, "| ") && row[2] >= '0' && row[2] <= '9') {
            if (strncmp(row, start, strlen(start)) || row[strlen(row) - 1] != '|') FAIL("row %d: %s", n, row);
            n++;
        }
    }
    const char *end = strstr(pty_seen(), "interrupted; the result is of ");
    CHECK(end && sscanf(end, "interrupted; the result is of %d", &n_windows) == 1);
    CHECK_INT(n, n_windows);
}

// Millions of short steps: a run of at least minutes on every machine, which reacts to Ctrl+C at once.
#define LONG_BENCH "bench", "-m", tiny(), "-p", "0", "-n", "30000", "-r", "300", "--memory-rate", "20"

// The bar follows the width of the terminal while the command runs.
static void command_resized(void) {
    PTY_START(((pty_options){.columns = 80}), LONG_BENCH);
    pty_expect("\ntime: this run takes about ");
    pty_expect("\033[Kbench [");
    pty_expect("] 0/1 tests, ");
    pty_resize(24, 20);
    pty_expect("\033[Kbench 0%");
    pty_resize(24, 40);
    bar_and_row("\033[Kbench [", "] ");
    CHECK_HAS(pty_since(), "\033[Ksleigh: error: interrupted");
}

static void command_dumb(void) {
    static const char *const env[] = {"TERM=dumb", NULL};
    PTY_START(((pty_options){.env = env}), LONG_BENCH);
    bar_and_row("\nprogress: bench: 0 of 1 tests, ", " left");
    CHECK_INT(pty_count("\033", 0), 0);
}

// ---- the cost of a bench ----

static int no_row(void *ctx, const cli_bench_row *row, sl_error *err) {
    (void)row, (void)err;
    ++*(int *)ctx;
    return 0;
}

// The cost of a plan is the work that its run reports.
static void bench_cost(void) {
    static const struct {
        char *flags[2];
        cli_bench_plan plan;
        int n_filled, depth; // sequences after the first that are filled, and their depth
    } all[] = {
        {{0},
         {.batches = {{1, 3}, 2},
          .depths = {{0, 300, 40}, 3},
          .tests = {{0, 3}, {20, 0}, {10, 2}},
          .n_tests = 3,
          .repetitions = 2},
         2,
         300},
        {{"--ragged"},
         {.batches = {{3, 2}, 2}, .depths = {{50, 200}, 2}, .tests = {{0, 2}}, .n_tests = 1, .repetitions = 1},
         -1,
         0},
        {{"--copy"}, {.batches = {{1, 4}, 2}, .depths = {{100}, 1}, .tests = {{0, 2}}, .n_tests = 1, .repetitions = 1}, 0, 0},
        {{"--attn", "dense,topk:k=8"},
         {.batches = {{2}, 1}, .depths = {{90}, 1}, .tests = {{0, 2}, {5, 0}}, .n_tests = 2, .repetitions = 3},
         1,
         90},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char *args[8] = {"-m", (char *)tiny(), "--device", "cpu", "--memory-rate", "20", all[i].flags[0], all[i].flags[1]};
        int n_rows = 0;
        cli_options o;
        cli_bench b;
        sl_error e;
        CHECK_OK(cli_options_parse(&o, CLI_BENCH, 6 + !!all[i].flags[0] + !!all[i].flags[1], args, &e), e);
        CHECK_OK(sl_source_open(o.run.model.path, &o.run.model.source, &e), e);
        int was = dup(STDERR_FILENO), none = open("/dev/null", O_WRONLY); // the description of the run is not shown
        dup2(none, STDERR_FILENO);
        const cli_bench_flags flags = {&o.run, &o.bench, &o.output, &o.given};
        int rc = cli_bench_open(&b, &flags, &all[i].plan, &e);
        if (!rc) rc = cli_bench_run(&b, no_row, &n_rows, &e);
        dup2(was, STDERR_FILENO);
        close(was), close(none);
        signal(SIGINT, SIG_DFL);
        CHECK_OK(rc, e);
        CHECK(n_rows > 0 && b.prefill.rate > 0 && b.steps.rate > 0);
        CHECK_NEAR(b.progress.prefill.done, b.prefill.total, 1e-9 * b.prefill.total);
        CHECK_NEAR(b.progress.rest.done, b.steps.total, 1e-9 * b.steps.total);
        int held[4] = {0};
        cli_bench_cost cost; // what --copy would save
        cli_bench_cost_of(b.model, (sl_kv_formats){0}, &o.bench, &all[i].plan, 1, 0, held, &cost);
        double fill = all[i].n_filled * sl_model_prefill_flops(b.model, 0, all[i].depth);
        if (all[i].n_filled >= 0) CHECK_NEAR(cost.fill, fill, 3e-3 * fill);
        cli_bench_close(&b);
        cli_options_free(&o);
    }
}

static void announcements(void) {
    char line[320];
    cli_bench_announce(100e3, 79e3, 0, 0, line, sizeof line);
    CHECK_STR(line, "");
    cli_bench_announce(NAN, 79e3, 0, 0, line, sizeof line);
    CHECK_STR(line, "");
    cli_bench_announce(100e3, 81e3, 0, 0, line, sizeof line);
    CHECK_STR(line, "time: this run takes about 3 min on this CPU: 2 min for prefills, 81 s for decode steps; a lower --depth, "
                    "--batch or -r makes it shorter");
    cli_bench_announce(8000e3, 600e3, 6000e3, 1, line, sizeof line);
    CHECK_STR(line,
              "time: this run takes about 2.4 h on this GPU: 2.2 h for prefills, 10 min for decode steps; a lower --depth, "
              "--batch or -r makes it shorter, and so does --copy, which prefills one sequence for the whole batch");
}

static const test_case cases[] = {
    {"time-left", NEEDS_NOTHING, time_left},
    {"time-left-of-run", NEEDS_NOTHING, time_left_of_run},
    {"prefill-cost", NEEDS_NOTHING, prefill_cost},
    {"durations", NEEDS_NOTHING, durations},
    {"bars", NEEDS_NOTHING, bars},
    {"bars-of-run", NEEDS_NOTHING, bars_of_run},
    {"widths", NEEDS_NOTHING, widths},
    {"screen", NEEDS_NOTHING, screen},
    {"screen-of-handler", NEEDS_NOTHING, screen_of_handler},
    {"rate", NEEDS_NOTHING, rate},
    {"dumb", NEEDS_NOTHING, dumb},
    {"sizes", NEEDS_NOTHING, sizes},
    {"command-rows", NEEDS_NOTHING, command_rows},
    {"command-resized", NEEDS_NOTHING, command_resized},
    {"command-dumb", NEEDS_NOTHING, command_dumb},
    {"bench-cost", NEEDS_NOTHING, bench_cost},
    {"announcements", NEEDS_NOTHING, announcements},
    {0},
};
extern const test_suite suite_progress;
const test_suite suite_progress = {"progress", cases};
