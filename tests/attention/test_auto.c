// tests/attention/test_auto.c - --attn=auto: choices on both sides of the crossover of a given table, tables as files,
// calibration with a given clock and with the clock of the host, and the commands that accept auto.
#include "attention/auto.h"
#include "cli/bench/calibrate.h"
#include "cli/bench/calibrate_host.h"
#include "engine/engine.h"
#include "tests/support/given_table.h"
#include "tests/support/run_cli.h"
#include "tests/support/gpu.h"

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static sl_error err;
static const sl_attn_geom shape = {.n_layers = 1, .n_heads = 8, .n_kv_heads = 2, .head_dim = 128}; // of the embedded model

// ---- given tables ----

static const char *spill_table(const char *name, const char *attn, const char *points) {
    return given_table_spill(name, attn, points, "");
}

static sl_auto_table read_table(const char *path) {
    sl_auto_table t;
    CHECK_OK(sl_auto_read(path, 0, &t, &err), err);
    return t;
}

static const char methods[] =
    "\"dense\", \"santa-pps:S=128\", \"santa-is:S=256\", \"santa-pps:epsilon=0.1\", \"santa-pps:epsilon=0.3:delta=0.01\"";

// The choice for a request, as text; *crossover.
static const char *pick(const sl_auto_table *t, const char *request, int n_seqs, int n_kv, int *crossover) {
    static char text[256];
    sl_attn_spec spec;
    sl_auto_choice choice;
    CHECK_OK(sl_attn_parse(request, &spec, &err), err);
    sl_auto_choose(t, &spec, n_seqs, n_kv, &choice);
    sl_attn_format(&choice.spec, text, sizeof text);
    *crossover = choice.crossover;
    return text;
}

static void choices(void) {
    // With one sequence a candidate is faster at 2048 rows and none is at 4096: the crossover lies above 4096.
    const char *points = "{\"n_seqs\": 1, \"n_kv\": 32768, \"us\": [60, 30, 20, 35, 34]},"
                         "{\"n_seqs\": 1, \"n_kv\": 2048, \"us\": [10, 5, 12, 11, 11]},"
                         "{\"n_seqs\": 1, \"n_kv\": 4096, \"us\": [10, 9.6, 11, null, null]},"
                         "{\"n_seqs\": 1, \"n_kv\": 8192, \"us\": [20, 18, 19, 19.5, 15]},"
                         "{\"n_seqs\": 8, \"n_kv\": 1024, \"us\": [30, 20, 25, 40, 40]},"
                         "{\"n_seqs\": 8, \"n_kv\": 4096, \"us\": [90, 60, 40, 95, 95]}";
    static const struct {
        const char *request;
        int n_seqs, n_kv, crossover;
        const char *want;
    } cases[] = {
        {"auto", 1, 1, 8192, "dense"},
        {"auto", 1, 2048, 8192, "dense"},
        {"auto", 1, 8191, 8192, "dense"},
        {"auto", 1, 8192, 8192, "santa-pps:S=128"},
        {"auto", 1, 32767, 8192, "santa-pps:S=128"},
        {"auto", 1, 32768, 8192, "santa-is:S=256"},
        {"auto", 1, 1 << 30, 8192, "santa-is:S=256"},
        {"auto", 7, 8191, 8192, "dense"}, // 8 sequences are more than 7
        {"auto", 8, 1023, 1024, "dense"},
        {"auto", 8, 1024, 1024, "santa-pps:S=128"},
        {"auto", 99, 4096, 1024, "santa-is:S=256"},
        // 19.5 of 20 is less than 5% faster; a time with a smaller epsilon is an upper bound for a larger one
        {"auto:epsilon=0.1", 1, 8192, 32768, "dense"},
        {"auto:epsilon=0.1", 1, 32768, 32768, "santa-pps:epsilon=0.1"},
        {"auto:epsilon=0.2:delta=0.1", 1, 32768, 32768, "santa-pps:epsilon=0.2:delta=0.1"},
        {"auto:epsilon=0.3:delta=0.02", 1, 8192, 8192, "santa-pps:epsilon=0.3:delta=0.02"},
        {"auto:epsilon=0.3:delta=0.001", 1, 32768, 0, "dense"},
        {"auto:epsilon=0.09", 1, 32768, 0, "dense"},
        {"auto:epsilon=0.3", 8, 4096, 0, "dense"}, // measured, and slower
    };
    sl_auto_table t = read_table(spill_table("t.json", methods, points));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int crossover;
        const char *got = pick(&t, cases[i].request, cases[i].n_seqs, cases[i].n_kv, &crossover);
        if (strcmp(got, cases[i].want) || crossover != cases[i].crossover)
            FAIL("%s, %d x %d: %s from %d on, expected %s from %d on", cases[i].request, cases[i].n_seqs, cases[i].n_kv, got,
                 crossover, cases[i].want, cases[i].crossover);
    }
    int crossover;
    CHECK_STR(pick(NULL, "auto", 1, 1 << 20, &crossover), "dense");
    sl_auto_free(&t);
}

static sl_attn_spec parse(const char *text) {
    sl_attn_spec spec;
    CHECK_OK(sl_attn_parse(text, &spec, &err), err);
    return spec;
}

// Which specifications auto:epsilon=E takes for the error that they state.
static void stated(void) {
    static const struct {
        const char *spec;
        int counts;
    } cases[] = {
        {"dense", 0},
        {"santa-pps:S=128", 0},
        {"santa-is:S=256", 0},
        {"santa-pps:epsilon=0.1:certify=head", 1},
        {"santa-pps:epsilon=0.1:certify=layer", 1},
        {"santa-pps:epsilon=0.1:certify=layer:bound=chi2", 1},
        {"santa-pps:epsilon=0.1:certify=layer:on-miss=dense", 1},
        {"santa-is:proposal=int8:epsilon=0.1", 1},
        {"vattention:epsilon=0.1", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sl_attn_spec spec = parse(cases[i].spec);
        if (sl_auto_counts(&spec) != cases[i].counts) FAIL("%s: expected %d", cases[i].spec, cases[i].counts);
    }
}

// The fastest specification that states the error. It keeps its other parameters; a method that does not count is never chosen.
static void fastest_stated(void) {
    static const char list[] = "\"dense\", \"santa-pps:epsilon=0.2:certify=layer\", \"santa-pps:epsilon=0.1:certify=head\", "
                               "\"vattention:epsilon=0.1\", \"santa-pps:epsilon=0.1:certify=layer:on-miss=dense\"";
    static const struct {
        const char *us, *want;
    } cases[] = {
        {"[20, 8, 9, 1, 10]", "santa-pps:epsilon=0.25:certify=layer"},
        {"[20, 9, 9, 1, 9]", "santa-pps:epsilon=0.25:certify=layer"}, // of equal times the first one in the table
        {"[20, 10, 9, 1, 9]", "santa-pps:epsilon=0.25:certify=head"},
        {"[20, null, 10, 1, 9]", "santa-pps:epsilon=0.25:certify=layer:on-miss=dense"},
        {"[20, 19.5, 20, 1, 21]", "dense"}, // the fastest one is less than 5% faster
    };
    const sl_attn_spec request = parse("auto:epsilon=0.25");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char point[128];
        sl_attn_spec want = parse(cases[i].want);
        sl_auto_choice choice;
        snprintf(point, sizeof point, "{\"n_seqs\": 1, \"n_kv\": 64, \"us\": %s}", cases[i].us);
        sl_auto_table t = read_table(spill_table("stated.json", list, point));
        sl_auto_choose(&t, &request, 1, 64, &choice);
        if (!sl_attn_same(&choice.spec, &want)) FAIL("%s: expected %s", cases[i].us, cases[i].want);
        sl_auto_free(&t);
    }
}

static void lines(void) {
    static const struct {
        const char *request;
        int n_kv;
        const char *want;
    } cases[] = {
        {"auto", 100, "dense below 4096 rows (1 sequence, cpu, table of 2026-11-21)"},
        {"auto", 5000, "santa-is:S=256, dense below 4096 rows (1 sequence, cpu, table of 2026-11-21)"},
        {"auto:epsilon=0.2", 5000,
         "dense: no method that states epsilon 0.2, delta 0.05 or less is faster on the longest contexts (1 sequence, cpu, "
         "table of 2026-11-21)"},
        {"auto:epsilon=0.01", 5000,
         "dense: no method that states epsilon 0.01, delta 0.05 or less was measured (1 sequence, cpu, table of 2026-11-21)"},
    };
    sl_auto_table t = read_table(spill_table("t.json", methods, "{\"n_seqs\": 1, \"n_kv\": 4096, \"us\": [10, 9, 8, 12, 12]}"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512];
        sl_attn_spec spec;
        sl_auto_choice choice;
        CHECK_OK(sl_attn_parse(cases[i].request, &spec, &err), err);
        sl_auto_choose(&t, &spec, 1, cases[i].n_kv, &choice);
        sl_auto_choice_format(&t, &spec, &choice, text, sizeof text);
        CHECK_STR(text, cases[i].want);
    }
    sl_auto_free(&t);
}

// auto in some layers of a plan; the others stay. The engine refuses a plan with auto.
static void plans(void) {
    sl_attn_spec spec;
    sl_attn_plan plan, out;
    sl_auto_table t = read_table(spill_table("t.json", methods, "{\"n_seqs\": 1, \"n_kv\": 64, \"us\": [10, 9, 8, 7, 12]}"));
    CHECK_OK(sl_attn_parse("topk:k=4", &spec, &err), err);
    CHECK_OK(sl_attn_plan_init(&plan, 4, &spec, &err), err);
    CHECK(!sl_auto_in_plan(&plan));
    CHECK_OK(sl_attn_plan_set(&plan, "attn_layer", "1=auto", &err), err);
    CHECK_OK(sl_attn_plan_set(&plan, "attn_layer", "3=auto:epsilon=0.2", &err), err);
    CHECK(sl_auto_in_plan(&plan));
    CHECK_OK(sl_auto_choose_plan(&t, &plan, 1, 100, &out, &err), err);
    CHECK(!sl_auto_in_plan(&out) && !strcmp(out.layer[0].method->name, "topk") && !strcmp(out.layer[2].method->name, "topk"));
    CHECK_STR(out.layer[1].method->name, "santa-is");
    CHECK_STR(out.layer[3].method->name, "santa-pps");
    CHECK_NEAR(sl_attn_get(&out.layer[3], "epsilon"), 0.2, 0);
    CHECK_ERR(sl_attn_parse("auto+santa", &spec, &err), err, SL_ERR_UNSUPPORTED, "auto neither estimates scores nor takes a set of rows");
    CHECK_ERR(sl_attn_parse("auto:S=4", &spec, &err), err, SL_ERR_ARG, "unknown parameter \"S\"");
    sl_model *model;
    sl_engine *engine;
    CHECK_OK(sl_model_load(tiny(), NULL, &model, &err), err);
    const sl_engine_options o = {.n_ctx = 64, .n_threads = 1};
    CHECK_ERR(sl_engine_new_planned(model, &o, &plan, &engine, &err), err, SL_ERR_UNSUPPORTED, "attn auto: not offered");
    sl_model_free(model);
    sl_attn_plan_free(&plan);
    sl_attn_plan_free(&out);
    sl_auto_free(&t);
}

// ---- files ----

static int count_files(const char *dir) {
    DIR *d = opendir(dir);
    int n = 0;
    if (!d) FAIL("cannot open %s", dir);
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void files(void) {
    char dir[256], path[512], blocked[512];
    snprintf(dir, sizeof dir, "%s/a/b", test_tmp());
    snprintf(path, sizeof path, "%s/t.json", dir);
    sl_auto_table t = read_table(spill_table("t.json", methods,
                                             "{\"n_seqs\": 2, \"n_kv\": 64, \"us\": [10.25, 9, 8, null, 12]},"
                                             "{\"n_seqs\": 1, \"n_kv\": 64, \"us\": [10, 9, 8, 7, 12]}"));
    t.automatic = 1;
    CHECK_OK(sl_auto_write(&t, path, &err), err); // makes the folders a and b
    CHECK_OK(sl_auto_write(&t, path, &err), err); // over the first file
    CHECK_INT(count_files(dir), 1);
    sl_auto_table again = read_table(path);
    CHECK_STR(again.device, "cpu");
    CHECK(again.n_points == 2 && again.n_specs == 5 && again.points[0].n_seqs == 1 && again.points[1].us[0] == 10.25);
    CHECK(again.n_heads == 8 && again.n_kv_heads == 2 && again.head_dim == 128 && again.automatic &&
          again.query_deviation == 4);
    CHECK(isnan(again.points[1].us[3]) && !memcmp(again.specs, t.specs, sizeof t.specs));
    sl_auto_free(&again);
    // Texts have 1 to size - 1 printable characters.
    sl_auto_table named = t;
    for (int i = 0; i < 5; i++) {
        static const char *const dates[] = {"2026-11-21 0:30", "", "a\x1f", "\x7f", "~ "};
        memset(named.device, 'x', sizeof named.device - 1), snprintf(named.date, sizeof named.date, "%s", dates[i]);
        CHECK_OK(sl_auto_write(&named, path, &err), err);
        int rc = sl_auto_read(path, 0, &again, &err), is_good = i == 0 || i == 4;
        CHECK_INT(rc, is_good ? 0 : SL_ERR_FORMAT);
        if (is_good) CHECK(!strcmp(again.device, named.device) && !strcmp(again.date, dates[i]));
        if (!is_good) CHECK(strstr(err.message, "field date: expected a text of 1 to 15 "));
        sl_auto_free(&again);
    }
    CHECK_OK(sl_auto_write(&t, path, &err), err);
    // After a failed write the old file is there, and no temporary file is.
    snprintf(blocked, sizeof blocked, "%s/t.json/x.json", dir);
    CHECK_ERR(sl_auto_write(&t, blocked, &err), err, SL_ERR_IO, "x.json: ");
    snprintf(blocked, sizeof blocked, "%s/c", dir);
    CHECK(!mkdir(blocked, 0700));
    CHECK_ERR(sl_auto_write(&t, blocked, &err), err, SL_ERR_IO, "/c: ");
    CHECK_INT(count_files(dir), 2);
    again = read_table(path);
    sl_auto_free(&again);
    CHECK_OK(sl_auto_check(&t, path, "cpu", &shape, &err), err);
    CHECK_ERR(sl_auto_check(&t, path, "NVIDIA H100", &shape, &err), err, SL_ERR_UNSUPPORTED,
              "t.json: measured on cpu, this device is NVIDIA H100");
    CHECK_ERR(
        sl_auto_check(&t, path, "cpu", &(sl_attn_geom){.n_layers = 1, .n_heads = 32, .n_kv_heads = 8, .head_dim = 128}, &err),
        err, SL_ERR_UNSUPPORTED, "t.json: measured for 8 heads, 2 KV heads, head_dim 128; this model has 32, 8, 128");
    sl_auto_free(&t);
}

static void broken(void) {
    static const char point[] = "{\"n_seqs\": 1, \"n_kv\": 64, \"us\": [2, 1]}", two[] = "\"dense\", \"santa\"";
    static const struct {
        const char *attn, *points, *part;
    } cases[] = {
        {"\"dense\", \"santa\"", "", "field points: expected a list"},
        {"", point, "field attn: expected a list"},
        {"\"santa\", \"dense\"", point, "field attn: the first is not dense"},
        {"\"dense\", \"auto\"", point, "field attn: found auto, expected a method"},
        {"\"dense\", \"nope\"", point, "field attn: attn nope: unknown method"},
        {two, "7", "field points: number 1: expected"},
        {two, "{\"n_seqs\": 1, \"n_kv\": 64, \"us\": [2]}", "field points: number 1: expected"},
        {two, "{\"n_seqs\": 1, \"n_kv\": 64, \"us\": [null, 1]}", "field points: number 1: expected"},
        {two, "{\"n_seqs\": 1, \"n_kv\": 64, \"us\": [2, -1]}", "field points: number 1: expected"},
        {two, "{\"n_seqs\": 0, \"n_kv\": 64, \"us\": [2, 1]}", "field points: number 1: expected"},
        {two, "{\"n_seqs\": 1, \"n_kv\": 64, \"us\": [2, 1]}, {\"n_seqs\": 1, \"n_kv\": 64, \"us\": [3, 1]}",
         "field points: two points have the same n_seqs and n_kv"},
        {two, "{", "line 1: "},
    };
    sl_auto_table t;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int rc = sl_auto_read(spill_table("broken.json", cases[i].attn, cases[i].points), 0, &t, &err);
        sl_auto_free(&t);
        CHECK_ERR(rc, err, SL_ERR_FORMAT, cases[i].part);
        CHECK(strstr(err.message, "broken.json: ") && strstr(err.message, "makes a new table"));
    }
    spill(in_tmp("other.json"), "{\"rows\": []}", 12);
    CHECK_ERR(sl_auto_read(in_tmp("other.json"), 1, &t, &err), err, SL_ERR_FORMAT, "not a calibration table");
    CHECK_ERR(sl_auto_read(in_tmp("none.json"), 0, &t, &err), err, SL_ERR_IO, "none.json: No such file");
    CHECK_OK(sl_auto_read(in_tmp("none.json"), 1, &t, &err), err);
    CHECK_INT(t.n_specs, 0);
}

// ---- calibration ----

static int made_time(void *ctx, const sl_attn_spec *spec, int n_seqs, int n_kv, double *us, sl_error *e) {
    if (n_kv == 666) return sl_fail(e, SL_ERR_DEVICE, "the clock stopped");
    ++*(int *)ctx;
    *us = spec->method == &sl_method_dense ? n_kv * n_seqs : 1000 + 0.5 * n_kv * n_seqs; // equal at 2000 rows
    return 0;
}

static void grids(void) {
    int calls = 0, crossover;
    const cli_clock clock = {made_time, &calls, NULL};
    cli_grid grid = {{{4, 1, 4}, 3}, {{4096, 1024, 2048, 512}, 4}, 8192, {{0}, 1}, 8192};
    sl_auto_table t = {.n_specs = 2};
    CHECK_OK(sl_attn_parse("dense", &t.specs[0], &err), err);
    CHECK_OK(sl_attn_parse("santa-is:S=256", &t.specs[1], &err), err);
    CHECK_OK(cli_calibrate(&clock, &grid, &t, &err), err);
    CHECK_INT(t.n_points, 4 + 3); // 4 x 4096 exceeds the limit
    CHECK_INT(calls, 14);
    pick(&t, "auto", 1, 1, &crossover);
    CHECK_INT(crossover, 4096); // at 2048 the candidate takes 99% of the time of dense attention
    pick(&t, "auto", 4, 1, &crossover);
    CHECK_INT(crossover, 1024);
    CHECK(t.prefill.attn.method == NULL); // it was not asked for
    grid.n_kv.at[0] = 666;
    CHECK_ERR(cli_calibrate(&clock, &grid, &t, &err), err, SL_ERR_DEVICE, "the clock stopped");
    grid.most_rows = 100;
    CHECK_ERR(cli_calibrate(&clock, &grid, &t, &err), err, SL_ERR_ARG, "expected a size of at most 100 rows");
    sl_auto_free(&t);
}

// A method that keeps the number of its steps and the position of the last one, and notes what it finds.
static struct {
    int n_steps, n_timed, wrong;
    double squares; // of the queries
} noted;

static size_t probe_workspace(const sl_attn_geom *g, const sl_attn_spec *spec, int n_seqs, int n_tokens, int n_kv) {
    (void)g, (void)spec, (void)n_seqs, (void)n_tokens, (void)n_kv;
    return 64;
}

static size_t probe_state(const sl_attn_geom *g, const sl_attn_spec *spec) {
    (void)g, (void)spec;
    return 2 * sizeof(uint32_t);
}

static void probe_decode(const sl_attn_decode_args *args) {
    enum { N_KV = 300 };
    for (int s = 0; s < args->n_seqs; s++) {
        uint32_t *state = args->seqs[s].state, position = args->seqs[s].position;
        int is_timed = position == N_KV - 1;
        noted.wrong |= args->seqs[s].kv.n_kv != (int)position + 1; // the context grows by a row in each step
        noted.wrong |= state[0] > 0 && state[1] + 1 != position;   // a step follows the one before it
        noted.wrong |= is_timed && state[0] != 12;                 // every timed step follows the same steps
        noted.n_steps++, noted.n_timed += is_timed;
        for (int i = 0; i < 8 * 128; i++) noted.squares += args->seqs[s].q[i] * args->seqs[s].q[i] / (8 * 128);
        state[0]++, state[1] = position;
    }
}

// The host's clock times a method with a state from the state after 12 steps.
static void steady_state(void) {
    static const sl_attn_ops ops = {.workspace = probe_workspace, .decode = probe_decode, .state = probe_state};
    static const sl_attn_method method = {.name = "probe", .mean = SL_MEAN_EXACT, .cpu = &ops};
    const sl_attn_spec spec = {.method = &method};
    cli_host_clock *clock = NULL;
    double us = 0;
    noted.n_steps = noted.n_timed = noted.wrong = 0, noted.squares = 0;
    CHECK_OK(cli_host_clock_open(&shape, 4, 4, 1, 3, &clock, &err), err);
    int rc = cli_host_clock_time(clock, &spec, 2, 300, &us, &err);
    cli_host_clock_close(clock);
    CHECK_OK(rc, err);
    CHECK(!noted.wrong && noted.n_timed == 2 * (2 + 3) && noted.n_steps == 2 * 12 + noted.n_timed && us >= 0);
    CHECK_NEAR(sqrt(noted.squares / noted.n_steps) * 0.02, 4, 0.4); // the deviation of scores, because that of keys is 0.02
}

// From the flag to the file in the cache folder, and from there to a choice.
static void calibrate(void) {
    char cache[256], path[512], before[4096] = "", home[256];
    const char *was = getenv("XDG_CACHE_HOME");
    snprintf(cache, sizeof cache, "%s/cache", test_tmp());
    if (was) snprintf(before, sizeof before, "%s", was);
    setenv("XDG_CACHE_HOME", cache, 1);
    int rc = sl_auto_path("cpu", &shape, path, sizeof path, &err);
    result none = RUN("generate", "-m", tiny(), "-p", question, "-n", "2", "--attn", "auto");
    result made = RUN("bench", "attn", "--calibrate", "-m", tiny(), "-b", "1,2", "-d", "128,512", "-p", "0", "-r", "1");
    result then = RUN("generate", "-m", tiny(), "-p", question, "-n", "2", "--attn", "auto:epsilon=0.01");
    setenv("XDG_CACHE_HOME", "relative", 1);
    int rc_home = sl_auto_path("Some GPU/7", &shape, home, sizeof home, &err);
    if (was)
        setenv("XDG_CACHE_HOME", before, 1);
    else
        unsetenv("XDG_CACHE_HOME");
    CHECK(!rc && !rc_home && strstr(home, "/.cache/sleigh/attn-Some-GPU-7-h8-kv2-d128.json"));
    CHECK_GOOD(none);
    CHECK_HAS(none.err, "attn auto: dense: ");
    CHECK_HAS(none.err,
              "/cache/sleigh/attn-cpu-h8-kv2-d128.json does not exist; `sleigh bench attn --calibrate -m DIR` creates it\n");
    CHECK_HAS(none.err, "attention: dense\n");
    CHECK_GOOD(made);
    CHECK_HAS(made.out, "cpu, 8 heads, 2 KV heads, head_dim 128: microseconds");
    CHECK_HAS(made.out, "\n| 2 | 512 | ");
    CHECK_HAS(made.out, "\nauto: ");
    CHECK_HAS(made.out, "\nauto:epsilon=0.1:delta=0.05: ");
    CHECK_HAS(made.err, "calibration: written to ");
    sl_auto_table t = read_table(path);
    CHECK(t.n_points == 4 && t.n_specs == 13 && t.query_deviation == 4);
    CHECK_OK(sl_auto_check(&t, path, "cpu", &shape, &err), err);
    sl_auto_free(&t);
    CHECK_GOOD(then);
    CHECK_HAS(then.err, "attn auto: dense: no method that states epsilon 0.01, delta 0.05 or less was measured (1 sequence");
}

#ifdef SLEIGH_CUDA
// On a GPU, on both sides of a crossover: auto gives the logits of the method that was measured to be fastest.
static void calibrate_gpu(void) {
    char path[256], attn[128], list[192], device[256];
    json_error_t e;
    sl_auto_choice below, above;
    sl_attn_spec request;
    snprintf(path, sizeof path, "%s", in_tmp("gpu.json"));
    CHECK_OK(sl_attn_parse("auto", &request, &err), err);
    CHECK_OK(sl_device_name("cuda", device, sizeof device, &err), err);
    result made = RUN("bench", "attn", "--calibrate", "-m", tiny(), "--device", "cuda", "-b", "1", "-d", "256,112k", "-r", "5",
                      "--attn", "santa-sys:S=128", "--calibration", path);
    CHECK_GOOD(made);
    sl_auto_table t = read_table(path);
    CHECK(t.n_points == 2 && t.n_specs == 2);
    CHECK_OK(sl_auto_check(&t, path, device, &shape, &err), err);
    sl_auto_choose(&t, &request, 1, 20, &below);
    sl_auto_choose(&t, &request, 1, 120000, &above);
    sl_auto_free(&t);
    CHECK_STR(below.spec.method->name, "dense");
    if (!strcmp(above.spec.method->name, "dense")) FAIL("at 112k rows nothing is faster than dense: %s", made.out);
    CHECK(above.us < above.dense_us);
    sl_attn_format(&above.spec, attn, sizeof attn);
    snprintf(list, sizeof list, "auto,dense,%s", attn);
    result r = RUN("bench", "-m", tiny(), "--device", "cuda", "-p", "0", "-n", "2", "-d", "16,120k", "-r", "1", "--attn", list,
                   "--calibration", path, "-o", "json");
    CHECK_GOOD(r);
    CHECK_HAS(r.err, attn);
    json_t *rows = json_loads(r.out, 0, &e);
    if (!rows) FAIL("no JSON: %s", r.out);
    for (int depth = 0; depth < 2; depth++) {
        json_t *run = json_array_get(rows, 3 * depth), *as = json_array_get(rows, 3 * depth + 1 + depth),
               *other = json_array_get(rows, 3 * depth + 2 - depth);
        CHECK_STR(json_string_value(json_object_get(run, "attn")), "auto");
        CHECK(json_equal(json_object_get(run, "logits"), json_object_get(as, "logits")));
        CHECK(json_equal(json_object_get(run, "kv_bytes"), json_object_get(as, "kv_bytes")));
        CHECK(depth == 0 || !json_equal(json_object_get(run, "logits"), json_object_get(other, "logits")));
    }
    json_decref(rows);
}
#endif

static void calibrate_errors(void) {
    static const struct {
        const char *args[5], *part;
        int code;
    } cases[] = {
        {{"bench", "--calibrate"}, "--calibrate needs the subject attn", 2},
        {{"bench", "decode", "--calibrate"}, "--calibrate needs the subject attn", 2},
        {{"bench", "attn", "--calibrate", "--phase=all"}, "--phase cannot be used with --calibrate", 2},
        {{"bench", "attn", "--calibrate", "--no-auto-calibrate"}, "--auto-calibrate cannot be used with --calibrate", 2},
        {{"bench", "attn", "--calibrate", "-d", "0"}, "--depth 0", 2},
        {{"bench", "attn", "--calibrate", "-d", "4m"}, "-d 4m: expected", 2},
        {{"bench", "attn", "--calibrate", "-m", "/nowhere"}, "/nowhere", 1},
        {{"bench", "attn", "--calibrate", "--attn", "auto"}, "--attn auto: not offered", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *args[8] = {0};
        for (int j = 0; j < 5; j++) args[j] = cases[i].args[j];
        result r = run_args(NULL, args);
        check_error(&r, cases[i].code, cases[i].part);
    }
}

// ---- commands ----

// A table with a crossover at 256 rows. Its method reads few rows, so the rows of a run show the method.
static const char *small_table(void) {
    return spill_table(
        "small.json", "\"dense\", \"santa-pps:S=16\", \"santa-pps:epsilon=0.05\"",
        "{\"n_seqs\": 1, \"n_kv\": 64, \"us\": [10, 11, 12]}, {\"n_seqs\": 1, \"n_kv\": 256, \"us\": [20, 12, 14]}");
}

#define GENERATE(...) RUN("generate", "-m", tiny(), "--temp", "0", "-n", "4", "--ignore-eos", __VA_ARGS__)

static void sides(void) {
    const char *text = long_text(24), *table = small_table(); // about 400 tokens
    result below = GENERATE("-p", question, "--attn", "auto", "--calibration", table),
           dense = GENERATE("-p", question, "--attn", "dense"),
           above = GENERATE("-p", text, "--attn", "auto", "--calibration", table),
           method = GENERATE("-p", text, "--attn", "santa-pps:S=16"),
           stated = GENERATE("-p", text, "--attn", "auto", "--epsilon", "0.4", "--delta=0.1", "--calibration", table),
           same = GENERATE("-p", text, "--attn", "santa-pps:epsilon=0.4:delta=0.1"),
           layers = GENERATE("-p", text, "--attn", "dense", "--attn-layer", "2=auto", "--calibration", table);
    check_same(&below, &dense);
    CHECK_HAS(below.err, "attn auto: dense below 256 rows (1 sequence, cpu, table of 2026-11-21)\n");
    CHECK_HAS(below.err, "attention: dense\n");
    check_same(&above, &method);
    CHECK_HAS(above.err, "attn auto: santa-pps:S=16, dense below 256 rows (1 sequence, cpu, table of 2026-11-21)\n");
    CHECK_HAS(above.err, "attention: santa-pps:S=16\n");
    check_same(&stated, &same);
    CHECK_HAS(stated.err, "attention: santa-pps:epsilon=0.4:delta=0.1\n");
    CHECK_GOOD(layers);
    CHECK_HAS(layers.err, "attention: 0-1=dense 2=santa-pps:S=16 3=dense\n");
}

// auto gives the text and the logits of the method that states the error and is fastest in the table.
static void stated_sides(void) {
    static const struct {
        const char *us, *method;
    } cases[] = {
        {"[20, 12, 14, 15]", "santa-is:proposal=int8:epsilon=0.4:delta=0.1"},
        {"[20, 15, 14, 12]", "santa-pps:certify=layer:on-miss=dense:epsilon=0.4:delta=0.1"},
        {"[20, 15, 14, null]", "santa-pps:certify=layer:epsilon=0.4:delta=0.1"},
        {"[20, 20, 20, 20]", "dense"},
    };
    const char *text = long_text(24);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char point[128];
        snprintf(point, sizeof point, "{\"n_seqs\": 1, \"n_kv\": 256, \"us\": %s}", cases[i].us);
        const char *table = spill_table("sides.json",
                                        "\"dense\", \"santa-is:proposal=int8:epsilon=0.2\", "
                                        "\"santa-pps:epsilon=0.4:certify=layer\", "
                                        "\"santa-pps:epsilon=0.1:certify=layer:on-miss=dense\"",
                                        point);
        result chosen = GENERATE("-p", text, "--attn", "auto", "--epsilon", "0.4", "--delta=0.1", "--calibration", table),
               method = GENERATE("-p", text, "--attn", cases[i].method);
        check_same(&chosen, &method);
    }
}

// The rows of V that are read rise as epsilon falls.
static void epsilons(void) {
    static const char *const requests[] = {"auto:epsilon=0.8", "auto:epsilon=0.4", "auto:epsilon=0.2", "auto:epsilon=0.1",
                                           "auto:epsilon=0.05"};
    const char *text = long_text(60), *table = small_table();
    long last = 0;
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        char line[256];
        result r = GENERATE("-p", text, "--attn", requests[i], "--calibration", table);
        CHECK_GOOD(r);
        long rows = atol(stat_line(&r, "v_rows", line));
        if (rows <= last) FAIL("%s: %ld rows, %ld at the epsilon before", requests[i], rows, last);
        last = rows;
    }
}

static void refusals(void) {
    char wrong[256], cut[256], other[256];
    size_t n;
    snprintf(wrong, sizeof wrong, "%s", in_tmp("wrong.json"));
    snprintf(cut, sizeof cut, "%s", in_tmp("cut.json"));
    snprintf(other, sizeof other, "%s", in_tmp("other.json"));
    char *text = slurp(small_table(), &n);
    spill(cut, text, n / 2);
    memcpy(strstr(text, "\"head_dim\": 128"), "\"head_dim\":  64", 15);
    spill(wrong, text, n);
    memcpy(strstr(text, "\"head_dim\":  64"), "\"head_dim\": 128", 15);
    memcpy(strstr(text, "\"cpu\""), "\"gpu\"", 5);
    spill(other, text, n);
    result a = GENERATE("-p", question, "--attn", "auto", "--calibration", wrong);
    result b = GENERATE("-p", question, "--attn", "auto", "--calibration", cut);
    result c = GENERATE("-p", question, "--attn", "auto", "--calibration", other);
    result d = GENERATE("-p", question, "--attn", "auto", "--calibration", "/nowhere/t.json");
    result e = GENERATE("-p", question, "--attn", "auto", "--S", "4");
    result f = GENERATE("-p", question, "--attn", "dense", "--calibration", cut); // no auto, so the table is not read
    check_error(&a, 1, "wrong.json: measured for 8 heads, 2 KV heads, head_dim 64; this model has 8, 2, 128");
    check_error(&b, 1, "cut.json: line ");
    check_error(&c, 1, "other.json: measured on gpu, this device is cpu");
    check_error(&d, 1, "/nowhere/t.json: No such file");
    check_error(&e, 2, "flag --S: the chosen attention method (auto) has no such parameter");
    CHECK_GOOD(f);
}

// Every line has a choice of its own. Short lines are dense, long lines are not: alone, in a batch, and one after the other.
static void many(void) {
    static char lines[65536];
    const char *table = small_table(), *texts[] = {question, NULL, "The grass is", NULL};
    json_error_t e;
    char answers[4][256];
    size_t at = 0;
    for (int i = 0; i < 4; i++) {
        json_t *line = json_pack("{s:s, s:i}", "prompt", texts[i] ? texts[i] : long_text(20 + i), "seq", i);
        char *text = json_dumps(line, 0);
        at += (size_t)snprintf(lines + at, sizeof lines - at, "%s\n", text);
        free(text), json_decref(line);
    }
    spill(in_tmp("lines.jsonl"), lines, at);
    for (int parallel = 0; parallel < 2; parallel++) {
        result r = parallel
                       ? GENERATE("--jsonl", in_tmp("lines.jsonl"), "--parallel", "4", "--attn", "auto", "--calibration", table)
                       : GENERATE("--jsonl", in_tmp("lines.jsonl"), "--attn", "auto", "--calibration", table);
        CHECK_GOOD(r);
        const char *p = r.out;
        for (int i = 0; i < 4; i++, p = strchr(p, '\n') + 1) {
            json_t *answer = json_loads(p, JSON_DISABLE_EOF_CHECK, &e);
            if (!answer) FAIL("line %d is no JSON: %s", i, p);
            const char *attn = json_string_value(json_object_get(answer, "attn")),
                       *text = json_string_value(json_object_get(answer, "text"));
            CHECK_STR(attn, i % 2 ? "santa-pps:S=16" : "dense");
            if (parallel) CHECK_STR(text, answers[i]);
            snprintf(answers[i], sizeof answers[i], "%s", text);
            json_decref(answer);
        }
        CHECK_HAS(r.err, "attn auto: dense below 256 rows");
        CHECK_HAS(r.err, "attn auto: santa-pps:S=16, dense below 256 rows");
    }
}

// The other commands that accept methods: auto gives the figures of the chosen method.
static void others(void) {
    const char *table = small_table(), *text = long_text(24);
    result c = RUN("compare", "-m", tiny(), "-p", text, "-n", "3", "--attn", "auto,santa-pps:S=16", "--calibration", table,
                   "-o", "csv"),
           b = RUN("bench", "-m", tiny(), "-p", "0", "-n", "2", "-d", "16,300", "-r", "1", "--memory-rate", "30", "--attn",
                   "auto,dense,santa-pps:S=16", "--calibration", table, "-o", "json"),
           p = RUN_IN(text, "perplexity", "-m", tiny(), "-c", "300", "--attn", "auto", "--calibration", table),
           s = RUN("generate", "-m", tiny(), "-p", text, "-n", "2", "--stats", in_tmp("s.jsonl"), "--stats-attn", "auto");
    CHECK_GOOD(c);
    CHECK_HAS(c.err, "attn auto: santa-pps:S=16, dense below 256 rows");
    CHECK_GOOD(b);
    CHECK_HAS(b.err, "attn auto: dense below 256 rows");
    CHECK_HAS(b.err, "attn auto: santa-pps:S=16, dense below 256 rows");
    json_error_t e;
    json_t *rows = json_loads(b.out, 0, &e);
    if (!rows) FAIL("no JSON: %s", b.out);
    for (int depth = 0; depth < 2; depth++) {
        json_t *run = json_array_get(rows, 3 * depth), *as = json_array_get(rows, 3 * depth + 1 + depth);
        CHECK_STR(json_string_value(json_object_get(run, "attn")), "auto");
        CHECK(json_equal(json_object_get(run, "logits"), json_object_get(as, "logits")));
        CHECK(json_equal(json_object_get(run, "kv_bytes"), json_object_get(as, "kv_bytes")));
    }
    json_decref(rows);
    CHECK_GOOD(p);
    CHECK_HAS(p.out, "attention dense"); // decoding begins at 150
    check_error(&s, 1, "method auto is not offered for decoding");
}

static const test_case cases[] = {
    {"choices", 0, choices},
    {"stated", 0, stated},
    {"fastest_stated", 0, fastest_stated},
    {"lines", 0, lines},
    {"plans", 0, plans},
    {"files", 0, files},
    {"broken", 0, broken},
    {"grids", 0, grids},
    {"steady_state", 0, steady_state},
    {"calibrate", 0, calibrate},
    {"calibrate_errors", 0, calibrate_errors},
    WHOLE_GPU_CASE("calibrate-gpu", calibrate_gpu),
    {"sides", 0, sides},
    {"stated_sides", 0, stated_sides},
    {"epsilons", 0, epsilons},
    {"refusals", 0, refusals},
    {"many", 0, many},
    {"others", 0, others},
    {0},
};
extern const test_suite suite_auto;
const test_suite suite_auto = {"auto", cases};
