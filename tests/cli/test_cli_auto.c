// tests/cli/test_cli_auto.c - the first use of --attn=auto on a device: a missing table is measured once and kept. A given
// clock stands for the GPU. tests/attention/test_auto.c tests the choices and the files.
#include "cli/attn/attn_auto.h"
#include "cli/bench/calibrate.h"
#include "cli/output/progress_bar.h"
#include "tests/support/gpu.h"
#include "tests/support/run_cli.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static sl_error err;
static const sl_attn_geom shape = {.n_layers = 1, .n_heads = 8, .n_kv_heads = 2, .head_dim = 128}; // of the embedded model

static sl_attn_spec parse(const char *text) {
    sl_attn_spec spec;
    CHECK_OK(sl_attn_parse(text, &spec, &err), err);
    return spec;
}

// ---- stderr and the cache folder of this process ----

typedef struct place {
    int was_stderr;
    char *was_cache;
} place;

static place enter(const char *cache) {
    const char *was = getenv("XDG_CACHE_HOME");
    place p = {dup(STDERR_FILENO), was ? strdup(was) : NULL};
    int file = open(in_tmp("stderr"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    setenv("XDG_CACHE_HOME", cache, 1);
    fflush(stderr);
    dup2(file, STDERR_FILENO);
    close(file);
    return p;
}

static const char *leave(place *p) { // returns what was written to stderr
    size_t n;
    fflush(stderr);
    dup2(p->was_stderr, STDERR_FILENO);
    close(p->was_stderr);
    if (p->was_cache)
        setenv("XDG_CACHE_HOME", p->was_cache, 1);
    else
        unsetenv("XDG_CACHE_HOME");
    free(p->was_cache);
    return slurp(in_tmp("stderr"), &n);
}

// ---- measuring ----

static int first_rows; // of the first call of a clock

static int made_time(void *ctx, const sl_attn_spec *spec, int n_seqs, int n_kv, double *us, sl_error *e) {
    (void)e;
    if (++*(int *)ctx == 1) first_rows = n_seqs * n_kv;
    *us = spec->method == &sl_method_dense ? n_kv * n_seqs : 1000 + 0.5 * n_kv * n_seqs; // equal at 2000 rows
    return 0;
}

// A prefill that is faster from 2048 tokens on.
static int made_prefill(void *ctx, const sl_attn_spec *spec, double density, sl_auto_length *l, sl_error *e) {
    (void)spec, (void)e;
    ++*(int *)ctx;
    l->dense_us = l->n_tokens, l->mask_us = 700, l->attention_us = density * l->n_tokens;
    return 0;
}

// The largest sizes of decoding and of prefill are timed twice before the line. Their times alone decide about the seconds.
static void announced(void) {
    for (int with_prefill = 0; with_prefill < 2; with_prefill++) {
        int calls = 0, rc;
        cli_progress after;
        const cli_clock clock = {made_time, &calls, made_prefill};
        const cli_grid grid = {{{1, 3}, 2}, {{512, 1024, 4096}, 3}, 4096, {{512, 2048}, 2}, 4096}; // the last size is 3 x 1024
        sl_auto_table t = {.n_specs = 2, .specs = {parse("dense"), parse("santa-is:S=256")}};
        if (with_prefill) t.prefill = (sl_auto_prefill){.attn = parse("sample"), .density = 0.5};
        place p = enter(test_tmp());
        rc = cli_calibrate_announced(&clock, &grid, "no table for X", &t, &err);
        const char *said = leave(&p);
        CHECK_OK(rc, err);
        CHECK_STR(said, with_prefill ? "attn auto: no table for X, measuring 2 methods and sparse prefill, about 1 s\n"
                                     : "attn auto: no table for X, measuring 2 methods, about 1 s\n");
        CHECK(t.n_points == 5 && t.prefill.n_lengths == 2 * with_prefill);
        CHECK_INT(calls, 2 + 5 * 2 + with_prefill * (2 + 2));
        CHECK_INT(first_rows, 4096);
        cli_progress_begin(&after, "after", "");
        CHECK(!after.outer);
        cli_progress_end(&after);
        sl_auto_free(&t);
    }
}

static int slow_time(void *ctx, const sl_attn_spec *spec, int n_seqs, int n_kv, double *us, sl_error *e) {
    (void)ctx, (void)spec, (void)e;
    *us = 1;
    usleep(n_seqs * n_kv == 4096 ? 100000 : 0);
    return 0;
}

static int slow_prefill(void *ctx, const sl_attn_spec *spec, double density, sl_auto_length *l, sl_error *e) {
    (void)ctx, (void)spec, (void)density, (void)e;
    l->dense_us = l->mask_us = l->attention_us = 1;
    usleep(l->n_tokens == 2048 ? 100000 : 0);
    return 0;
}

// The estimate: each size and method takes as long as the largest size, 0.1 s, and a prefill as much as the square of its
// length says. A loaded machine takes longer.
static void estimated(void) {
    for (int with_prefill = 0; with_prefill < 2; with_prefill++) {
        const cli_clock clock = {slow_time, NULL, slow_prefill};
        const cli_grid grid = {{{1, 2, 4}, 3}, {{128, 256, 512, 768, 1024}, 5}, 4096, {{2048}, 1}, 4096},
                       one = {{{1}, 1},
                              {{256}, 1},
                              4096,
                              {{2048, 1024, 2047, 2046, 2045, 2044, 2043, 2042, 2041, 2040, 2039, 2038, 2037, 2036}, 14},
                              4096};
        sl_auto_table t = {.n_specs = 2, .specs = {parse("dense"), parse("santa-is:S=256")}};
        if (with_prefill) t.prefill = (sl_auto_prefill){.attn = parse("sample"), .density = 0.5};
        place p = enter(test_tmp());
        int rc = cli_calibrate_announced(&clock, with_prefill ? &one : &grid, "why", &t, &err);
        const char *about = strstr(leave(&p), "about ");
        CHECK_OK(rc, err);
        double seconds = about ? atof(about + 6) : 0, least = with_prefill ? 2 : 3; // 13.2 x 0.1 s; 30 x 0.1 s
        if (!(seconds >= least && seconds <= 4 * least)) FAIL("%.0f s, expected %.0f", seconds, least);
        sl_auto_free(&t);
    }
}

// In place of cli_calibrate_gpu.
static struct {
    int calls;
    int fails;
    const cli_attention_options *other; // another process measures too and ends first
} measuring;

static int choose(const cli_attention_options *o, char name[32]);

static int measure(const char *device, const char *reason, sl_auto_table *t, sl_error *e) {
    int calls = 0;
    const cli_clock clock = {made_time, &calls, made_prefill};
    const cli_grid grid = {{{1}, 1}, {{1024, 4096}, 2}, 4096, {{1024, 2048}, 2}, 4096};
    const cli_attention_options *other = measuring.other;
    char name[32];
    measuring.calls++;
    measuring.other = NULL;
    if (strcmp(device, "cpu")) return sl_fail(e, SL_ERR_ARG, "found device %s, expected cpu", device);
    if (other && choose(other, name)) return sl_fail(e, SL_ERR_IO, "the other process failed: %s", err.message);
    return measuring.fails ? sl_fail(e, SL_ERR_MEMORY, "the memory is too small")
                           : cli_calibrate_announced(&clock, &grid, reason, t, e);
}

// The method that auto:epsilon=0.2 chooses for a long context. Asks twice, as a run does: first quietly.
static int choose(const cli_attention_options *o, char name[32]) {
    const sl_config config = {.n_layers = 4, .n_heads = 8, .n_kv_heads = 2, .head_dim = 128};
    sl_attn_spec request = parse("auto:epsilon=0.2");
    sl_attn_plan wanted, plan;
    cli_auto a = {.measure = measure};
    CHECK_OK(sl_attn_plan_init(&wanted, config.n_layers, &request, &err), err);
    int rc = 0;
    for (int i = 0; !rc && i < 2; i++) {
        rc = cli_auto_choose_plan(&a, o, "cpu", &config, &wanted, 1, 8192, i == 0, &plan, &err);
        if (!rc) snprintf(name, 32, "%s", plan.layer[0].method->name);
        sl_attn_plan_free(&plan);
    }
    sl_attn_plan_free(&wanted);
    cli_auto_close(&a);
    return rc;
}

// ---- the output of a measurement ----

// The rows of the table with this head have these numbers, but for the rounding of the file and of the table. last: of the last
// column.
static void check_numbers(const char *md, const char *head, int n_columns, int n_rows, const double *want, double last) {
    const char *p = strstr(md, head);
    if (!p) FAIL("no table %s in %s", head, md);
    p = strchr(strchr(p, '\n') + 1, '\n') + 1;
    for (int i = 0; i < n_rows; i++, p = strchr(p, '\n') + 1) {
        char *at = (char *)p;
        for (int k = 0; k < n_columns; k++, want++, at = strchr(at, '|'))
            CHECK_NEAR(strtod(at + 1, &at), *want, (k + 1 < n_columns ? 0.051 : last) + 1e-5 * *want);
        CHECK(at[1] == '\n');
    }
    CHECK(*p == '\n');
}

// The tables of bench attn --calibrate show the times of the file that it writes, and the choices that follow from them. One
// delta and epsilon is asked once.
static void tables(void) {
    enum { POINTS = 4, METHODS = 5, LENGTHS = 2 };
    static const char list[] =
        "dense,santa-pps:S=64,santa-pps:epsilon=0.2,santa-is:epsilon=0.2:proposal=int8,santa-pps:epsilon=0."
        "2:delta=0.01";
    double points[POINTS][2 + METHODS], lengths[LENGTHS][5];
    char file[256], line[512] = "| sequences | rows |";
    snprintf(file, sizeof file, "%s", in_tmp("table"));
    result r = RUN("bench", "attn", "--calibrate", "-m", tiny(), "-b", "2,1", "-d", "128,300", "-p", "256,130", "-r", "1",
                   "--attn", list, "--mask-density", "0.25", "--calibration", file);
    sl_auto_table t;
    CHECK_GOOD(r);
    CHECK_OK(sl_auto_read(file, 0, &t, &err), err);
    CHECK(t.n_points == POINTS && t.n_specs == METHODS && t.prefill.n_lengths == LENGTHS);
    for (int i = 0; i < POINTS; i++) {
        points[i][0] = 1 + i / 2, points[i][1] = i % 2 ? 300 : 128;
        CHECK(t.points[i].n_seqs == points[i][0] && t.points[i].n_kv == points[i][1]);
        memcpy(points[i] + 2, t.points[i].us, METHODS * sizeof(double));
    }
    for (int s = 0; s < METHODS; s++) {
        char name[64];
        sl_attn_format(&t.specs[s], name, sizeof name);
        snprintf(line + strlen(line), sizeof line - strlen(line), " %s |", name);
    }
    check_numbers(r.out, strcat(line, "\n|---|---|---|---|---|---|---|\n"), 2 + METHODS, POINTS, *points, 0.051);
    for (int i = 0; i < LENGTHS; i++) {
        const sl_auto_length *l = &t.prefill.lengths[i];
        memcpy(
            lengths[i],
            (double[]){i ? 256 : 130, l->dense_us, l->mask_us, l->attention_us, (l->mask_us + l->attention_us) / l->dense_us},
            sizeof *lengths);
    }
    check_numbers(r.out,
                  "| tokens | dense | mask of sample:alpha_c=0.95 | attention with 0.25 of the blocks | both / dense |\n"
                  "|---|---|---|---|---|\n",
                  5, LENGTHS, *lengths, 0.0006);
    static const char *const requests[] = {"auto", "auto:epsilon=0.2:delta=0.05", "auto:epsilon=0.2:delta=0.01"};
    const char *p = strstr(r.out, "\n\nauto: ") + 2;
    for (int i = 0; i < 3 * 2; i++, p = strchr(p, '\n') + 1) { // on the longest contexts, for 1 and 2 sequences
        sl_attn_spec request = parse(requests[i / 2]);
        sl_auto_choice choice;
        sl_auto_choose(&t, &request, 1 + i % 2, 1 << 30, &choice);
        int n = snprintf(line, sizeof line, "%s: ", requests[i / 2]);
        sl_auto_choice_format(&t, &request, &choice, line + n, sizeof line - (size_t)n);
        if (strncmp(p, line, strlen(line)) || p[strlen(line)] != '\n') FAIL("expected %s in %s", line, p);
    }
    CHECK(!strncmp(p, "microseconds of", 15));
    sl_auto_free(&t);
    static cli_grid grid = {.n_seqs = {.n = 23}, .n_kv = {.n = 23}, .most_rows = 1 << 20}; // 529 sizes
    int calls = 0;
    for (int i = 0; i < 23; i++) grid.n_seqs.at[i] = grid.n_kv.at[i] = 1 + i;
    t = (sl_auto_table){.n_specs = 1, .specs = {parse("dense")}};
    int rc = cli_calibrate(&(cli_clock){made_time, &calls, made_prefill}, &grid, &t, &err);
    sl_auto_free(&t);
    CHECK_ERR(rc, err, SL_ERR_ARG, "--batch and --depth: expected at most 512 sizes");
}

// ---- the first use ----

#define OLD(FIELDS)                                                                                                            \
    "{\"format\": \"sleigh attention calibration 1\", " FIELDS ", \"date\": \"2026-11-21\", \"n_heads\": 8, "                  \
    "\"n_kv_heads\": 2, \"head_dim\": 128, \"query_deviation\": 4, \"attn\": [\"dense\"], "                                    \
    "\"points\": [{\"n_seqs\": 1, \"n_kv\": 64, \"us\": [9]}]}"

static const char announcement[] = "attn auto: no table for cpu, measuring ", chosen[] = "attn auto: santa-pps:epsilon=0.2",
                  again[] = "attn auto: the table of cpu has the methods of another version, measuring ",
                  nothing[] =
                      "attn auto: dense: no method that states epsilon 0.2, delta 0.05 or less was measured (1 sequence, "
                      "cpu, table of 2026-11-21)\n",
                  by_user[] = OLD("\"device\": \"cpu\""), by_auto[] = OLD("\"device\": \"cpu\", \"automatic\": true"),
                  of_gpu[] = OLD("\"device\": \"gpu\", \"automatic\": true");

typedef struct use {
    const char *name, *file;                                 // file: the table before
    int is_forbidden, is_blocked, is_named, fails, is_raced; // circumstances
    int calls;                                               // how often a table was measured, in two runs one after the other
    const char *method;                                      // of both runs; NULL: an error, which is lines[0]
    const char *lines[3];                                    // on stderr of the first run
} use;

static const use uses[] = {
    {.name = "no table", .calls = 1, .method = "santa-pps", .lines = {announcement, chosen}},
    {.name = "two processes", .is_raced = 1, .calls = 2, .method = "santa-pps", .lines = {announcement, chosen}},
    {.name = "folder not writable",
     .is_blocked = 1,
     .calls = 2,
     .method = "santa-pps",
     .lines = {announcement, chosen, "attn auto: the table is for this run only: cannot write "}},
    {.name = "failure",
     .fails = 1,
     .calls = 2,
     .method = "dense",
     .lines = {"attn auto: dense: cannot measure a table: the memory is too small\n"}},
    {.name = "forbidden",
     .is_forbidden = 1,
     .method = "dense",
     .lines = {"attn auto: dense: ", " does not exist; `sleigh bench attn --calibrate -m DIR` creates it\n"}},
    {.name = "table of the user", .file = by_user, .method = "dense", .lines = {nothing}},
    {.name = "other methods", .file = by_auto, .calls = 1, .method = "santa-pps", .lines = {again, chosen}},
    {.name = "other methods, forbidden", .file = by_auto, .is_forbidden = 1, .method = "dense", .lines = {nothing}},
    {.name = "other methods, failure",
     .file = by_auto,
     .fails = 1,
     .calls = 2,
     .method = "dense",
     .lines = {"attn auto: cannot measure a table: the memory is too small\n", nothing}},
    {.name = "broken table", .file = "{", .lines = {"cpu-h8-kv2-d128.json: line 1: "}},
    {.name = "table of another device", .file = of_gpu, .lines = {"measured on gpu, this device is cpu"}},
    {.name = "missing --calibration", .is_named = 1, .lines = {"none.json: No such file"}},
};

static int lines_with(const char *text, const char *part) {
    int n = 0;
    for (const char *p = text; (p = strstr(p, part)); p++) n++;
    return n;
}

static void check_use(const use *u, const char *cache) {
    char path[512], none[256], name[32] = "";
    snprintf(none, sizeof none, "%s", in_tmp("none.json"));
    const cli_attention_options o = {
        .auto_calibrate = !u->is_forbidden, .query_deviation = 4, .calibration = u->is_named ? none : NULL};
    measuring.calls = 0, measuring.fails = u->fails, measuring.other = u->is_raced ? &o : NULL;
    for (int run = 0; run < 2; run++) {
        place p = enter(cache);
        int rc_path = sl_auto_path("cpu", &shape, path, sizeof path, &err);
        if (run == 0 && u->is_blocked) spill(cache, "", 0); // a file where the folder would be
        if (run == 0 && u->file) {
            sl_auto_table empty = {.n_specs = 0};
            sl_auto_write(&empty, path, &err); // makes the folders
            spill(path, u->file, strlen(u->file));
        }
        int rc = choose(&o, name);
        const char *said = leave(&p);
        CHECK_INT(rc_path, 0);
        if (!u->method && (!rc || !strstr(err.message, u->lines[0]))) FAIL("%s: %s", u->name, rc ? err.message : "no error");
        if (u->method && rc) FAIL("%s: %s", u->name, err.message);
        if (u->method && strcmp(name, u->method)) FAIL("%s, run %d: %s: %s", u->name, run, name, said);
        for (int i = 0; !run && u->method && i < 3 && u->lines[i]; i++)
            if (lines_with(said, u->lines[i]) != (u->is_raced ? 2 : 1)) FAIL("%s: %s", u->name, said);
        if (u->calls < 2 && run && strstr(said, "measuring")) FAIL("%s, run 1: %s", u->name, said);
    }
    if (measuring.calls != u->calls) FAIL("%s: measured %d times, expected %d", u->name, measuring.calls, u->calls);
    if (!u->method || u->fails || u->is_blocked || u->is_forbidden || u->file == by_user) return;
    sl_auto_table t; // what was kept
    CHECK_OK(sl_auto_read(path, 0, &t, &err), err);
    CHECK(t.automatic && t.n_points == 2 && t.n_specs > 2 && t.query_deviation == 4);
    CHECK(t.prefill.n_lengths == 2 && t.prefill.attn.method && !strcmp(t.prefill.attn.method->name, "sample"));
    CHECK_OK(sl_auto_check(&t, path, "cpu", &shape, &err), err);
    sl_auto_free(&t);
}

static void first_use(void) {
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++) {
        char cache[256];
        snprintf(cache, sizeof cache, "%s/cache%zu", test_tmp(), i);
        check_use(&uses[i], cache);
    }
}

// What --attn-prefill=auto means for n_tokens.
static const char *choose_prefill(const cli_attention_options *o, cli_auto *a, int n_tokens) {
    static const cli_attn_profile none;
    const sl_config config = {.n_layers = 4, .n_heads = 8, .n_kv_heads = 2, .head_dim = 128};
    sl_attn_spec spec;
    int rc = cli_auto_choose_prefill(a, o, "cpu", &config, &none, n_tokens, &spec, &err);
    return rc ? err.message : spec.method->name;
}

// Without a table, --attn-prefill=auto measures one, once. Its own table without times of prefill is measured again.
static void prefill(void) {
    static const char line[] =
        "attn-prefill auto: sample:alpha_c=0.95, dense below 2048 tokens (timed with 0.5 of the blocks, cpu, table of ";
    const cli_attention_options o = {.has_plan = 1, .auto_calibrate = 1, .query_deviation = 4};
    char path[512];
    measuring.calls = measuring.fails = 0, measuring.other = NULL;
    for (int run = 0; run < 3; run++) {
        cli_auto a = {.measure = measure};
        sl_auto_table t;
        place p = enter(in_tmp("prefill"));
        int rc = sl_auto_path("cpu", &shape, path, sizeof path, &err);
        if (!rc && run == 2) {
            rc = sl_auto_read(path, 0, &t, &err);
            t.prefill = (sl_auto_prefill){.n_lengths = 0};
            if (!rc) rc = sl_auto_write(&t, path, &err);
            sl_auto_free(&t);
        }
        const char *below = choose_prefill(&o, &a, 2047), *above = choose_prefill(&o, &a, 2048);
        const char *said = leave(&p);
        cli_auto_close(&a);
        CHECK_OK(rc, err);
        CHECK_STR(below, "dense");
        CHECK_STR(above, "sample");
        if (lines_with(said, line) != 1) FAIL("run %d: %s", run, said);
        CHECK_INT(lines_with(said, run == 0   ? "attn auto: no table for cpu, measuring "
                                   : run == 1 ? "attn-prefill auto: "
                                              : "attn auto: the table of cpu has the methods of another version, measuring "),
                  1);
    }
    CHECK_INT(measuring.calls, 2);
}

// eval and compare record the profile and no table, so their auto reads none.
static void prefill_recorded(void) {
    const cli_attention_options o = {.auto_calibrate = 1, .query_deviation = 4};
    cli_auto a = {.measure = measure};
    measuring.calls = 0;
    place p = enter(in_tmp("prefill"));
    const char *name = choose_prefill(&o, &a, 1 << 20), *said = leave(&p);
    cli_auto_close(&a);
    CHECK_STR(name, "dense");
    CHECK_STR(said, "attn-prefill auto: dense: no --attn-profile FILE names a method; `sleigh tune` makes such a file\n");
    CHECK_INT(measuring.calls, 0);
}

// On a CPU, auto measures nothing, with and without the flag.
static void cpu(void) {
    static const char *const flags[] = {"--auto-calibrate", "--no-auto-calibrate"};
    for (int i = 0; i < 2; i++) {
        place p = enter(in_tmp("empty"));
        result r = RUN("generate", "-m", tiny(), "-p", question, "-n", "1", "--attn", "auto", "--attn-prefill", "auto",
                       "--device", "cpu", flags[i]);
        leave(&p);
        CHECK_GOOD(r);
        CHECK_HAS(r.err, "attn-prefill auto: dense: ");
        CHECK_HAS(r.err, " does not exist; `sleigh bench attn --calibrate -m DIR` creates it, and `sleigh tune` finds ");
        CHECK_HAS(r.err, "attn auto: dense: ");
        CHECK_HAS(r.err, " does not exist; `sleigh bench attn --calibrate -m DIR` creates it\n");
        CHECK_LACKS(r.err, "measuring");
    }
}

#ifdef SLEIGH_CUDA
// The first run measures a table, and the second run reads it.
static void gpu(void) {
    place p = enter(in_tmp("gpu"));
    result without = RUN("generate", "-m", tiny(), "-p", question, "-n", "1", "--device", "cuda", "--attn", "auto",
                         "--no-auto-calibrate"),
           first = RUN("generate", "-m", tiny(), "-p", question, "-n", "1", "--device", "cuda", "--attn", "auto:epsilon=0.2"),
           second = RUN("generate", "-m", tiny(), "-p", question, "-n", "1", "--device", "cuda", "--attn", "auto");
    leave(&p);
    CHECK_GOOD(without);
    CHECK_HAS(without.err, " does not exist; `sleigh bench attn --calibrate -m DIR` creates it\n");
    CHECK_GOOD(first);
    CHECK_HAS(first.err, "attn auto: no table for ");
    CHECK_HAS(first.err, ", measuring ");
    CHECK_HAS(first.err, "(1 sequence, ");
    CHECK_GOOD(second);
    CHECK_LACKS(second.err, "measuring");
    CHECK_HAS(second.err, "(1 sequence, ");
}
#endif

static const test_case cases[] = {
    {"announced", 0, announced},
    {"estimated", 0, estimated},
    {"tables", 0, tables},
    {"first_use", 0, first_use},
    {"prefill", 0, prefill},
    {"prefill_recorded", 0, prefill_recorded},
    {"cpu", 0, cpu},
    WHOLE_GPU_CASE("gpu", gpu),
    {0},
};
extern const test_suite suite_cli_auto;
const test_suite suite_cli_auto = {"cli_auto", cases};
