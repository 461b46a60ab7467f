// tests/cli/test_figures_bench.c - every figure of sleigh bench, computed again from the moments that its clock and its meter
// gave. The clock and the meter are the test's: each call passes a random time, and costs a random energy.
#include "cli/bench/bench.h"
#include "cli/commands.h"
#include "cli/options/all_options.h"
#include "engine/engine.h"
#include "models/source.h"
#include "tests/cli/fields.h"

#include <math.h>
#include <stdlib.h>

// A model of random weights. KV_TOKEN: bytes of K and V per token
static const char config[] =
    "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
    "\"intermediate_size\":96,\"vocab_size\":64,\"max_position_embeddings\":1024,\"eos_token_id\":[0,1,2,3]}";
enum { MAX_EVENTS = 4096, MAX_ROWS = 64, HEAD_DIM = 16, KV_TOKEN = 2 * 2 * 2 * HEAD_DIM * 2 };

// A reading of the clock (ms), or of the meter (J).
typedef struct event {
    int is_joules;
    double at;
} event;

static struct {
    event events[MAX_EVENTS];
    int n;
    double ms, joules, pace;
    uint64_t random;
} fake;

static void log_event(int is_joules, double at) {
    if (fake.n < MAX_EVENTS) fake.events[fake.n++] = (event){is_joules, at};
}

static double fake_now(void) {
    fake.ms += fake.pace * (1 + 4 * test_uniform(&fake.random));
    log_event(0, fake.ms);
    return fake.ms;
}

static int fake_energy(void *gpu, unsigned long long *millijoules) {
    fake.joules += (double)((int)(test_uniform(&fake.random) * 9000)) / 1e3;
    *millijoules = (unsigned long long)llround(1e3 * fake.joules);
    log_event(1, fake.joules);
    return gpu != &fake;
}

static int fake_clock(void *gpu, int type, unsigned *mhz) {
    *mhz = type == 1 ? 1980 : 2619;
    return gpu != &fake;
}

// ---- a run ----

typedef struct run {
    cli_options o;
    cli_bench_plan plan;
    cli_bench b;
    double pace;
    cli_bench_row rows[MAX_ROWS];
    json_t *json[MAX_ROWS];
    uint64_t logits[MAX_ROWS];
    int n_rows;
    double weights;
} run;

// Counts that the CPU does not have, and times of a GPU.
static void make_up(cli_bench_row *r, int i) {
    r->read.fetched = 70 + (uint64_t)i, r->read.hits = 30;
    r->read.stated = 40, r->read.certified = 31, r->read.unbounded = 3, r->read.stated_units = 37ull * SL_STATED_UNIT / 8;
    r->read.stated_most = 0.75;
    r->linear_ms = 1.25 + i, r->attention_ms = 2.5, r->rest_ms = 0.75;
    CHECK(r->test.n_gen ? r->scheduler_ms > 0 && r->scheduler_share > 0 && r->scheduler_share < 1 : isnan(r->scheduler_ms));
    r->scheduler_ms = 0.5 + i, r->scheduler_share = 0.03;
}

static int take_row(void *ctx, const cli_bench_row *row, sl_error *err) {
    run *x = ctx;
    (void)err;
    cli_bench_row *r = &x->rows[x->n_rows];
    *r = *row;
    x->logits[x->n_rows] = sl_logits_hash(sl_session_logits(x->b.sessions[0], NULL), sl_model_config(x->b.model)->n_vocab);
    make_up(r, x->n_rows);
    x->json[x->n_rows++] = cli_bench_json(&x->b, r);
    return 0;
}

static int run_bench(void *ctx, sl_error *err) {
    run *x = ctx;
    const cli_bench_flags flags = {&x->o.run, &x->o.bench, &x->o.output, &x->o.given};
    int rc = cli_bench_open(&x->b, &flags, &x->plan, err);
    x->b.now = fake_now;
    fake.n = 0, fake.pace = x->pace;
    cli_meter *m = &x->b.meter;
    cli_meter_close(m);
    m->library = m->gpu = &fake, m->nvml_energy = fake_energy, m->nvml_clock = fake_clock;
    snprintf(m->driver, sizeof m->driver, "580.1");
    if (!rc) rc = cli_bench_run(&x->b, take_row, x, err);
    m->library = NULL;
    if (x->b.model) x->weights = (double)sl_model_decode_bytes(x->b.model);
    cli_bench_close(&x->b);
    return rc;
}

// ---- the same figures from the events ----

typedef struct reader {
    int at; // in fake.events
} reader;

static double passed(reader *r) { // between two readings of the clock
    const event *e = &fake.events[r->at];
    CHECK(!e[0].is_joules && !e[1].is_joules);
    r->at += 2;
    return e[1].at - e[0].at;
}

// n times in a row, between two readings of the meter. Adds the energy.
static void read_times(reader *r, int n, double *ms, double *joules) {
    const event *e = &fake.events[r->at];
    CHECK(e[0].is_joules && e[n + 2].is_joules);
    for (int i = 0; i < n; i++) ms[i] = e[i + 2].at - e[i + 1].at;
    *joules += e[n + 2].at - e[0].at;
    r->at += n + 3;
}

typedef struct model { // of the caches
    int held[8];
    double fill[8];
} model;

// The rows that session j of n holds before a test.
static int depth_of(const run *x, int depth, int n, int j) {
    if (!x->o.bench.ragged || !depth) return depth;
    int part = depth * (n - j) / n; // session 0 is the deepest
    return part < 2 ? 1 : part % 2 ? part - !(part % 2) : part - 1;
}

static void fill_caches(const run *x, model *m, reader *r, int depth, int n) {
    for (int j = 0; j < n; j++) {
        int want_rows = depth_of(x, depth, n, j), is_copy = x->o.bench.copy && j > 0;
        if (want_rows < m->held[j]) m->held[j] = 0, m->fill[j] = 0;
        if (want_rows > m->held[j] && !is_copy) m->fill[j] += passed(r);
        m->held[j] = want_rows;
    }
}

// Rows of K and V that a dense step reads on average: those before the steps, the step that is not timed, and half of the
// others.
static double dense_rows(const model *m, int batch, int n_prompt, int n_gen) {
    double rows = 0;
    for (int j = 0; j < batch; j++) rows += (m->held[j] || n_prompt ? m->held[j] + n_prompt : 1) + 2 + (n_gen - 1) / 2.0;
    return rows;
}

static void want_test(fields *f, const run *x, const cli_bench_row *r, const char *attn) {
    static char name[80];
    char gen[32] = "", prompt[32] = "", depth[32] = "";
    if (r->test.n_prompt) snprintf(prompt, sizeof prompt, "pp%d", r->test.n_prompt);
    if (r->test.n_gen) snprintf(gen, sizeof gen, "tg%d", r->test.n_gen);
    if (r->depth) snprintf(depth, sizeof depth, " @ d%d", r->depth);
    snprintf(name, sizeof name, "%s%s%s%s", prompt, *prompt && *gen ? "+" : "", gen, depth);
    want_text(f, "version", SLEIGH_VERSION), want_text(f, "commit", cli_commit()), want_text(f, "device", x->b.backend);
    want_text(f, "driver", "580.1"), want(f, "sm_mhz", 1980), want(f, "memory_mhz", 2619);
    want_text(f, "test", name), want(f, "n_prompt", r->test.n_prompt), want(f, "n_gen", r->test.n_gen);
    want(f, "depth", r->depth), want(f, "batch", r->batch), want_text(f, "attn", attn);
    want(f, "ragged", x->o.bench.ragged), want(f, "copy", x->o.bench.copy), want_text(f, "fill", "prefill");
    want_text(f, "kv_cache", "gpu"), want_text(f, "k_format", "bf16"), want_text(f, "v_format", "bf16");
    want(f, "repetitions", x->plan.repetitions), want(f, "seed", x->o.run.sampling.seed);
}

typedef struct times { // of a row
    double ms[8], joules, steps[8 * 64];
} times;

// The figures of a row. first: the times of the row's first method.
static void want_figures(fields *f, const run *x, int i, int is_dense, const model *m, const times *t, const times *first) {
    const cli_bench_row *r = &x->rows[i];
    int runs = x->plan.repetitions, n_gen = r->test.n_gen, n = runs * n_gen,
        outer = (n - 1) / 10; // steps below the 10% quantile
    double rate[8], tokens = r->batch * (r->test.n_prompt + n_gen), fill = 0, held = 0, total = 0, is_decode = n_gen ? 1 : NAN;
    for (int k = 0; k < runs; k++) rate[k] = tokens / (1e-3 * t->ms[k]), total += t->ms[k];
    for (int j = 0; j < r->batch; j++) fill += m->fill[j], held += m->held[j];
    want(f, "ms", mean_of_values(t->ms, runs)), want(f, "ms_sd", deviation_of(t->ms, runs));
    want(f, "ms_median", median_of(t->ms, runs));
    want(f, "tok_s", mean_of_values(rate, runs)), want(f, "tok_s_sd", deviation_of(rate, runs));
    want(f, "tok_s_median", median_of(rate, runs));
    want(f, "prefill_s", fill / 1e3), want(f, "prefill_tok_s", held / (fill / 1e3));
    double step = n ? median_of(t->steps, n) : NAN, mean = n ? mean_of_values(t->steps, n) : NAN;
    want(f, "decode_s", mean * n_gen / 1e3), want(f, "step_ms", step), want(f, "token_ms", mean / r->batch);
    want(f, "step_ms_10", n ? quantile_of(t->steps, n, (outer + 1.0) / n) : NAN);
    want(f, "step_ms_90", n ? quantile_of(t->steps, n, (double)(n - outer) / n) : NAN);
    want(f, "speedup", n ? mean_of_values(first->steps, n) / mean : NAN);
    double bytes = is_dense ? dense_rows(m, r->batch, r->test.n_prompt, n_gen) * KV_TOKEN : r->kv_bytes;
    double gb_s = (x->weights + bytes) / (step / 1e3) / 1e9;
    want(f, "kv_bytes", bytes * is_decode), want(f, "gb_s", gb_s), want(f, "peak_gb_s", 25), want(f, "peak_share", gb_s / 25);
    want(f, "floor_ms", is_decode * x->weights / 25e9 * 1e3), want(f, "weights_bytes", x->weights);
    want(f, "hot_hits", 30.0 / (100 + i)), want(f, "bus_rows", (70.0 + i) / (n_gen ? n_gen : (double)NAN));
    want(f, "bus_bytes", (70.0 + i) / (n_gen ? n_gen : (double)NAN) * 2 * HEAD_DIM * 2); // K and V, elements of 2 bytes
    want(f, "joules_token", total >= 250 ? t->joules / (tokens * runs) : NAN);
    want(f, "linear_ms", 1.25 + i), want(f, "attention_ms", 2.5), want(f, "rest_ms", 0.75);
    want(f, "scheduler_ms", 0.5 + i), want(f, "scheduler_share", 0.03);
    want(f, "layer_steps", 40), want(f, "certified_share", 31 / 40.0), want(f, "unbounded_share", 3 / 40.0);
    want(f, "stated_error", 37 / 8.0 / 37), want(f, "stated_error_max", 0.75);
}

static void check_run(run *x) {
    model m = {0};
    reader r = {0};
    for (int i = 0; i < x->n_rows;) {
        const cli_bench_row *row = &x->rows[i];
        int n = row->test.n_gen ? x->o.run.attention.attns.n : 1;
        static times t[4];
        memset(t, 0, sizeof t);
        for (int run = 0; run < x->plan.repetitions; run++)
            for (int a = 0; a < n; a++) {
                double prompts[1] = {0}, *steps = &t[a].steps[run * row->test.n_gen];
                fill_caches(x, &m, &r, row->depth, row->batch);
                if (row->test.n_prompt) read_times(&r, 1, prompts, &t[a].joules);
                if (row->test.n_gen) read_times(&r, row->test.n_gen, steps, &t[a].joules);
                t[a].ms[run] = prompts[0];
                for (int k = 0; k < row->test.n_gen; k++) t[a].ms[run] += steps[k];
            }
        for (int a = 0; a < n; a++, i++) {
            fields f = {.n = 0};
            char logits[24];
            want_test(&f, x, &x->rows[i], n > 1 ? x->o.run.attention.attns.items[a] : "dense");
            want_figures(&f, x, i, a == 0, &m, &t[a], &t[0]);
            snprintf(
                logits, sizeof logits, "%016llx",
                (unsigned long long)(a == n - 1 ? x->logits[i] : x->rows[i].logits)); // sessions hold those of the last method
            want_text(&f, "logits", logits);
            check_fields(x->json[i], &f, 1e-9);
            json_decref(x->json[i]);
        }
    }
    CHECK_INT(r.at, fake.n); // every reading belongs to a row
}

static void try_run(const char *more, int repetitions, double pace) {
    static run x;
    char *args[] = {"-m", (char *)test_tmp(), "--load-format", "dummy",  "--device", "cpu", "-t", "1",         "--memory-rate",
                    "25", "--attn",           "dense",         "--attn", "topk:k=8", "-s",  "3",  (char *)more};
    sl_error err;
    spill(in_tmp("config.json"), config, sizeof config - 1);
    x = (run){.pace = pace, .plan = {.repetitions = repetitions}};
    CHECK_OK(cli_options_parse(&x.o, CLI_BENCH, more ? 17 : 16, args, &err), err);
    CHECK_OK(sl_source_open(x.o.run.model.path, &x.o.run.model.source, &err), err);
    x.plan.batches = (cli_ints){.at = {3, 2}, .n = 2}, x.plan.depths = (cli_ints){.at = {0, 60, 2}, .n = 3};
    x.plan.n_tests = 3;
    x.plan.tests[0].n_prompt = 9, x.plan.tests[1].n_gen = 10, x.plan.tests[2] = (cli_bench_test){5, 4};
    fake.random = test_seed;
    capture(run_bench, &x);
    CHECK_INT(x.n_rows, 3 * 2 * 5);
    check_run(&x);
    cli_options_free(&x.o);
}

static void bench(void) {
    try_run(NULL, 3, 20);
    try_run("--ragged", 2, 1.5); // tests on both sides of 250 ms
    try_run("--copy", 1, 4);
}

// ---- tables: the cells of a run of one step follow from each other ----

// The number in the column `title` of row `row` (from 0) of a table; text: the cell. NaN: -
static double cell_of(const char *md, const char *title, int row, char text[64]) {
    const char *head = strstr(md, "\n| ") + 1, *line = head, *p = head;
    char name[64];
    int column = 0, length;
    snprintf(name, sizeof name, "| %s |", title);
    const char *found = strstr(head, name);
    if (!found || found > strchr(head, '\n')) FAIL("no column \"%s\" in %.400s", title, head);
    for (; p < found; p++) column += *p == '|';
    for (int i = 0; i < row + 2; i++) line = strchr(line, '\n') + 1;
    for (p = line; column >= 0; p++) column -= *p == '|';
    if (sscanf(p, " %63[^|]%n", text, &length) != 1) FAIL("column \"%s\": %.80s", title, line);
    while (*text && text[strlen(text) - 1] == ' ') text[strlen(text) - 1] = 0;
    return strcmp(text, "-") ? atof(text) : (double)NAN;
}

// A number with so many digits after the point, within its rounding of `x` and a relative error.
static void check_cell(const char *md, const char *title, int row, int digits, double x, double error) {
    char text[64];
    double got = cell_of(md, title, row, text), half = 0.5 * pow(10, -digits);
    int n = strchr(text, '.') ? (int)strspn(strchr(text, '.') + 1, "0123456789") : 0;
    if (n != digits || !(fabs(got - x) <= half * 1.001 + error * fabs(x))) FAIL("%s: got %s, expected %.9g", title, text, x);
}

static void tables(void) {
    enum { BATCH = 2, DEPTH = 30, BYTES = BATCH * (DEPTH + 2) * 4096 };
    char text[64];
#define TINY(...) RUN("bench", __VA_ARGS__, "-m", tiny(), "--memory-rate", "25", "-b", "1,2", "-d", "30")
    result json = TINY("decode", "-n", "1", "-o", "jsonl"), decode = TINY("decode", "-n", "1", "--attn", "dense,topk:k=8"),
           model = TINY("-p", "0", "-n", "1", "-r", "2");
    CHECK_GOOD(json);
    CHECK_GOOD(decode);
    CHECK_GOOD(model);
    json_t *row = json_loads(json.out, JSON_DISABLE_EOF_CHECK, NULL);
    double weights = number(row, "weights_bytes"), floor_ms = weights / 25e9 * 1e3;
    json_decref(row);
    for (int i = 0; i < 4; i++) { // batch 1, 2; dense, topk
        double step = cell_of(decode.out, "step ms", i, text), gb_s = (weights + BYTES / BATCH * (i / 2 + 1)) / step / 1e6;
        double rough = 0.0006 / step; // of the rounding of the step
        check_cell(decode.out, "batch", i, 0, i / 2 + 1, 0), check_cell(decode.out, "depth", i, 0, DEPTH, 0);
        check_cell(decode.out, "steps", i, 0, 1, 0), check_cell(decode.out, "step ms", i, 3, step, 0);
        check_cell(decode.out, "decode s/batch", i, 3, step / 1e3, 0);
        check_cell(decode.out, "ms / output token", i, 3, step / (i / 2 + 1), 0.0006 / step);
        check_cell(decode.out, "tok/s", i, 1, (i / 2 + 1) * 1e3 / step, rough);
        check_cell(decode.out, "floor ms", i, 3, floor_ms, 1e-9);
        if (i % 2) { // of a method that reads less
            double first = cell_of(decode.out, "step ms", i - 1, text);
            check_cell(decode.out, "speedup", i, 3, first / step, rough + 0.0006 / first);
            CHECK_STR((cell_of(decode.out, "attention", i, text), text), "topk:k=8");
        } else {
            check_cell(decode.out, "GB/s", i, 1, gb_s, rough), check_cell(decode.out, "speedup", i, 3, 1, 0);
            check_cell(decode.out, "% of peak", i, 1, 100 * gb_s / 25, rough);
            CHECK_STR((cell_of(decode.out, "attention", i, text), text), "dense");
        }
        CHECK(cell_of(decode.out, "prefill s/batch", i, text) >= 0 && strspn(strchr(text, '.') + 1, "0123456789") == 2);
        CHECK(isnan(cell_of(decode.out, "linear ms", i, text)) && isnan(cell_of(decode.out, "rest ms", i, text)));
        CHECK(isnan(cell_of(decode.out, "attention ms", i, text)));
    }
    for (int i = 0; i < 2; i++) {
        double step = cell_of(model.out, "step ms", i, text), gb_s = (weights + BYTES / BATCH * (i + 1)) / step / 1e6;
        double rough = 0.0006 / step, mean, deviation, rate = cell_of(model.out, "median", i, text);
        check_cell(model.out, "batch", i, 0, i + 1, 0), check_cell(model.out, "step ms", i, 3, step, 0);
        CHECK_STR((cell_of(model.out, "test", i, text), text), "tg1 @ d30");
        check_cell(model.out, "ms / output token", i, 3, step / (i + 1), rough); // of two steps, the median is the mean
        check_cell(model.out, "GB/s", i, 1, gb_s, rough), check_cell(model.out, "% of peak", i, 1, 100 * gb_s / 25, rough);
        check_cell(model.out, "median", i, 2, rate, 0);
        cell_of(model.out, "tok/s", i, text);
        CHECK(sscanf(text, "%lf ± %lf", &mean, &deviation) == 2 && fabs(mean - rate) < 0.006);
        // the rates of the two runs are mean -+ half of their distance d, with deviation d / sqrt 2
        double fast = mean + deviation / sqrt(2), slow = mean - deviation / sqrt(2);
        CHECK_NEAR((1e3 / fast + 1e3 / slow) * (i + 1) / 2, step, 1e-3 + 0.01 * step);
        CHECK(cell_of(model.out, "J / token", i, text) > 0 || !strcmp(text, "-"));
    }
}

// What the help states about flags that are not given.
static void defaults(void) {
    static const struct {
        const char *subject, *test, *next;
        int repetitions, depth;
    } cases[] = {{NULL, "pp512", "tg128", 5, 0}, {"decode", "tg32 @ d512", NULL, 1, 512}};
    spill(in_tmp("config.json"), config, sizeof config - 1);
    for (int i = 0; i < 2; i++) {
        result r =
            RUN("bench", "-m", test_tmp(), "--load-format", "dummy", "--memory-rate", "1", "-o", "json", cases[i].subject);
        json_t *rows = document(&r);
        CHECK_INT(json_array_size(rows), cases[i].next ? 2 : 1);
        for (size_t k = 0; k < json_array_size(rows); k++) {
            const json_t *row = json_array_get(rows, k);
            CHECK_STR(json_string_value(json_object_get(row, "test")), k ? cases[i].next : cases[i].test);
            CHECK_STR(json_string_value(json_object_get(row, "attn")), "dense");
            CHECK(number(row, "repetitions") == cases[i].repetitions && number(row, "depth") == cases[i].depth &&
                  number(row, "batch") == 1);
        }
        json_decref(rows);
    }
}

static const test_case cases[] = {{"bench", 0, bench}, {"tables", 0, tables}, {"defaults", 0, defaults}, {0}};
extern const test_suite suite_figures_bench;
const test_suite suite_figures_bench = {"figures_bench", cases};
