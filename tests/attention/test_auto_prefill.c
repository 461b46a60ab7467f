// tests/attention/test_auto_prefill.c - --attn-prefill=auto without a profile: the crossover of given times, the times in the
// file of the table, their measurement with a given clock and with the clock of the host, random masks, and the commands.
// tests/attention/test_auto.c tests the rest of the table, tests/cli/test_cli_tune.c tests auto with a profile.
#include "attention/auto.h"
#include "attention/prefill/prefill_mask.h"
#include "cli/bench/calibrate.h"
#include "cli/bench/calibrate_host.h"
#include "cli/bench/random_mask.h"
#include "engine/engine.h"
#include "tests/support/given_table.h"
#include "tests/support/gpu.h"
#include "tests/support/run_cli.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>

static sl_error err;
static const sl_attn_geom shape = {.n_layers = 1, .n_heads = 8, .n_kv_heads = 2, .head_dim = 128}; // of the embedded model

static sl_attn_spec parse(const char *text) {
    sl_attn_spec spec;
    CHECK_OK(sl_attn_parse(text, &spec, &err), err);
    return spec;
}

// ---- the crossover ----

static void crossovers(void) {
    static const struct {
        double us[4][3]; // dense, mask, attention
        int crossover;   // of the lengths 1000, 2000, 3000, 4000; 0: none
    } cases[] = {
        {{{100, 90, 50}, {200, 90, 99}, {300, 90, 150}, {400, 90, 200}}, 2000}, // 189 is at most 95% of 200
        {{{100, 90, 50}, {200, 91.5, 99}, {300, 90, 150}, {400, 90, 200}}, 3000},
        {{{100, 10, 50}, {200, 90, 120}, {300, 90, 150}, {400, 90, 200}}, 3000}, // faster at 1000, slower at 2000
        {{{100, 10, 50}, {200, 10, 99}, {300, 10, 150}, {400, 90, 350}}, 0},     // slower at the largest length
        {{{100, 10, 50}, {200, 10, 99}, {300, 10, 150}, {400, 10, 200}}, 1000},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sl_auto_prefill p = {.attn = parse("sample"), .density = 0.5, .n_lengths = 4};
        for (int j = 0; j < 4; j++) {
            const double *us = cases[i].us[j];
            p.lengths[j] = (sl_auto_length){1000 * (j + 1), us[0], us[1], us[2]};
        }
        int want = cases[i].crossover ? cases[i].crossover : INT_MAX;
        if (sl_auto_prefill_crossover(&p) != want) FAIL("case %zu: %d, expected %d", i, sl_auto_prefill_crossover(&p), want);
        p.attn.method = NULL;
        CHECK_INT(sl_auto_prefill_crossover(&p), INT_MAX); // a table without times of prefill
    }
}

// ---- files ----

static const char *spill_table(const char *name, const char *prefill) {
    return given_table_spill(name, "\"dense\"", "{\"n_seqs\": 1, \"n_kv\": 64, \"us\": [9]}", prefill);
}

#define TIMES(n, dense, mask, attention)                                                                                       \
    "{\"n_tokens\": " #n ", \"dense_us\": " #dense ", \"mask_us\": " #mask ", \"attention_us\": " #attention "}"
#define PREFILL(attn, lengths) "{\"attn\": \"" attn "\", \"density\": 0.25, \"lengths\": [" lengths "]}"

static void files(void) {
    const char *path = spill_table("t.json", PREFILL("sample:alpha_c=0.9", TIMES(512, 9.5, 8, 7) ", " TIMES(768, 20, 8, 7)));
    sl_auto_table t, again;
    CHECK_OK(sl_auto_read(path, 0, &t, &err), err);
    CHECK_OK(sl_auto_write(&t, in_tmp("copy.json"), &err), err);
    CHECK_OK(sl_auto_read(in_tmp("copy.json"), 0, &again, &err), err);
    CHECK(!memcmp(&again.prefill, &t.prefill, sizeof t.prefill));
    CHECK(t.prefill.n_lengths == 2 && t.prefill.density == 0.25 && t.prefill.lengths[0].dense_us == 9.5);
    CHECK(t.prefill.lengths[1].n_tokens == 768 && t.prefill.lengths[1].mask_us == 8 && t.prefill.lengths[1].attention_us == 7);
    CHECK_INT(sl_auto_prefill_crossover(&again.prefill), 768);
    sl_auto_free(&t);
    sl_auto_free(&again);
    CHECK_OK(sl_auto_read(spill_table("t.json", ""), 0, &t, &err), err); // a table for decoding only
    CHECK(!t.prefill.attn.method && t.prefill.n_lengths == 0);
    CHECK_OK(sl_auto_write(&t, in_tmp("copy.json"), &err), err);
    sl_auto_free(&t);
    CHECK_OK(sl_auto_read(in_tmp("copy.json"), 0, &t, &err), err);
    CHECK(!t.prefill.attn.method);
    sl_auto_free(&t);
}

static void broken(void) {
    static const struct {
        const char *prefill, *part;
    } cases[] = {
        {"7", "field prefill: expected an object"},
        {"{}", "field prefill.attn: "},
        {PREFILL("nope", TIMES(512, 9, 8, 7)), "field prefill.attn: attn nope: unknown method"},
        {PREFILL("dense", TIMES(512, 9, 8, 7)), "field prefill.attn: expected a method with a mask"},
        {PREFILL("threshold", TIMES(512, 9, 8, 7)), "field prefill.attn: expected a method with a mask"},
        {PREFILL("auto", TIMES(512, 9, 8, 7)), "field prefill.attn: expected a method with a mask"},
        {"{\"attn\": \"sample\", \"density\": 0, \"lengths\": [" TIMES(512, 9, 8, 7) "]}", "field prefill.density: expected"},
        {"{\"attn\": \"sample\", \"density\": 1.5, \"lengths\": [" TIMES(512, 9, 8, 7) "]}", "field prefill.density: expected"},
        {"{\"attn\": \"sample\", \"lengths\": [" TIMES(512, 9, 8, 7) "]}", "field prefill.density: expected"},
        {PREFILL("sample", ""), "field prefill.lengths: expected a list of 1 to 16 lengths"},
        {PREFILL("sample", "1"), "field prefill.lengths: number 1: expected n_tokens, ascending, and three times > 0"},
        {PREFILL("sample", TIMES(0, 9, 8, 7)), "field prefill.lengths: number 1: expected"},
        {PREFILL("sample", TIMES(512, 9, 0, 7)), "field prefill.lengths: number 1: expected"},
        {PREFILL("sample", TIMES(512, 9, 8, null)), "field prefill.lengths: number 1: expected"},
        {PREFILL("sample", TIMES(512, 9, 8, 7) "," TIMES(512, 9, 8, 7)), "field prefill.lengths: number 2: expected"},
    };
    sl_auto_table t;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int rc = sl_auto_read(spill_table("broken.json", cases[i].prefill), 0, &t, &err);
        sl_auto_free(&t);
        CHECK_ERR(rc, err, SL_ERR_FORMAT, cases[i].part);
        CHECK(strstr(err.message, "broken.json: ") && strstr(err.message, "makes a new table"));
    }
}

// ---- measuring ----

static int made_time(void *ctx, const sl_attn_spec *spec, int n_seqs, int n_kv, double *us, sl_error *e) {
    (void)ctx, (void)spec, (void)e;
    *us = n_seqs * n_kv;
    return 0;
}

// A prefill whose mask costs 200 and whose blocks cost as much as those of dense attention.
static int made_prefill(void *ctx, const sl_attn_spec *spec, double density, sl_auto_length *l, sl_error *e) {
    if (strcmp(spec->method->name, "sample")) return sl_fail(e, SL_ERR_ARG, "found %s", spec->method->name);
    if (l->n_tokens == 666) return sl_fail(e, SL_ERR_DEVICE, "the clock of prefill stopped");
    ++*(int *)ctx;
    l->dense_us = l->n_tokens, l->mask_us = 200, l->attention_us = density * l->n_tokens;
    return 0;
}

static void lengths(void) {
    int calls = 0;
    const cli_clock clock = {made_time, &calls, made_prefill};
    cli_grid grid = {{{1}, 1}, {{64}, 1}, 64, {{1024, 256, 4096, 0, 512, 1024}, 6}, 2048};
    sl_auto_table t = {.n_specs = 1, .specs = {parse("dense")}, .prefill = {.attn = parse("sample"), .density = 0.5}};
    CHECK_OK(cli_calibrate(&clock, &grid, &t, &err), err);
    CHECK(calls == 3 && t.prefill.n_lengths == 3); // each once, and 4096 exceeds the limit
    for (int i = 0; i < 3; i++) CHECK_INT(t.prefill.lengths[i].n_tokens, 256 << i);
    CHECK_INT(sl_auto_prefill_crossover(&t.prefill), 512); // 200 + 256 <= 0.95 x 512
    grid.n_tokens.at[1] = 666;
    CHECK_ERR(cli_calibrate(&clock, &grid, &t, &err), err, SL_ERR_DEVICE, "the clock of prefill stopped");
    for (int i = 0; i < 17; i++) grid.n_tokens.at[i] = i + 1;
    grid.n_tokens.n = 17;
    CHECK_ERR(cli_calibrate(&clock, &grid, &t, &err), err, SL_ERR_ARG, "--n-prompt: expected at most 16 lengths");
    sl_auto_free(&t);
}

// Each row has the sink, the diagonal, and as many blocks as the density says. Rows of equal numbers differ between heads.
static void masks(void) {
    enum { TOKENS = 129 * 128 - 5, BLOCKS = 129 };
    sl_prefill_mask m = sl_mask_of(2, TOKENS, TOKENS), again = m;
    m.bits = malloc(sl_mask_bytes(&m)), again.bits = malloc(sl_mask_bytes(&m));
    memset(again.bits, 0xFF, sl_mask_bytes(&m));
    double density = cli_random_mask(&m, 0.3), same = cli_random_mask(&again, 0.3);
    uint64_t n = 0;
    int equal_rows = 0;
    for (int head = 0; head < 2; head++)
        for (int i = 0; i < BLOCKS; i++) {
            const uint64_t *row = sl_mask_row(&m, head, i);
            int count = 0, want = (int)lround(0.3 * (i + 1)), least = i ? 2 : 1;
            for (int j = 0; j < 64 * m.n_words; j++) count += sl_mask_has(row, j);
            if (count != (want > least ? want : least)) FAIL("head %d, row %d: %d blocks", head, i, count);
            if (!sl_mask_has(row, 0) || !sl_mask_has(row, i) || sl_mask_next(row, i + 1, 64 * m.n_words - 1) < 64 * m.n_words)
                FAIL("head %d, row %d: no sink, no diagonal, or a block past it", head, i);
            equal_rows += head && !memcmp(row, sl_mask_row(&m, 0, i), m.n_words * sizeof *row);
            n += (uint64_t)count;
        }
    CHECK(density == same && !memcmp(m.bits, again.bits, sl_mask_bytes(&m)));
    CHECK_NEAR(density, (double)n / (2 * BLOCKS * (BLOCKS + 1) / 2), 1e-15);
    CHECK(equal_rows < BLOCKS / 4);
    CHECK_NEAR(cli_random_mask(&m, 1), 1, 0);
    free(m.bits);
    free(again.bits);
}

// On the CPU, attention with a tenth of the blocks takes less time than dense attention.
static void host(void) {
    const sl_attn_spec spec = parse("streaming");
    cli_host_clock *clock = NULL;
    sl_auto_length l = {.n_tokens = 2049};
    CHECK_OK(cli_host_clock_open(&shape, 9, 4, 1, 3, &clock, &err), err);
    int rc = cli_host_clock_prefill(clock, &spec, 0.1, &l, &err);
    cli_host_clock_close(clock);
    CHECK_OK(rc, err);
    CHECK(l.mask_us > 0 && l.attention_us > 0 && l.attention_us < l.dense_us);
}

// ---- commands ----

#define GENERATE(...) RUN("generate", "-m", tiny(), "--device", "cpu", "--temp", "0", "-n", "3", "--ignore-eos", __VA_ARGS__)
#define SHORT_VIEW "streaming:sink=1:window=1" // sees two blocks only, so a run shows the method

static void sides(void) {
    const char *text = long_text(40); // about 700 tokens
    const char *table = spill_table("t.json", PREFILL(SHORT_VIEW, TIMES(512, 9, 8, 7) ", " TIMES(640, 20, 8, 7))),
               *slow = spill_table("slow.json", PREFILL(SHORT_VIEW, TIMES(512, 9, 8, 7))), *old = spill_table("old.json", "");
    result below = GENERATE("-p", question, "--attn-prefill", "auto", "--calibration", table), plain = GENERATE("-p", question),
           above = GENERATE("-p", text, "--attn-prefill", "auto", "--calibration", table),
           method = GENERATE("-p", text, "--attn-prefill", SHORT_VIEW), dense = GENERATE("-p", text),
           never = GENERATE("-p", text, "--attn-prefill", "auto", "--calibration", slow),
           without = GENERATE("-p", text, "--attn-prefill", "auto", "--calibration", old),
           layer = GENERATE("-p", text, "--attn-prefill-layer", "1=auto", "--calibration", table),
           same = GENERATE("-p", text, "--attn-prefill-layer", "1=" SHORT_VIEW);
    static const char line[] = "attn-prefill auto: " SHORT_VIEW ", dense below 640 tokens (timed with 0.25 of the blocks, cpu, "
                               "table of 2026-11-21)\n";
    CHECK_HAS(below.err, line);
    check_same(&below, &plain);
    CHECK_HAS(above.err, line);
    CHECK_HAS(above.err, "attn-prefill auto: " SHORT_VIEW " for ");
    check_same(&above, &method);
    CHECK(strcmp(above.out, dense.out) || strcmp(above.err, dense.err));
    CHECK_HAS(never.err, "attn-prefill auto: dense: " SHORT_VIEW " is not faster at 512 tokens (timed with 0.25 of the blocks");
    check_same(&never, &dense);
    CHECK_HAS(without.err, "attn-prefill auto: dense: ");
    CHECK_HAS(without.err, "old.json has no times of prefill; `sleigh bench attn --calibrate -m DIR` measures them\n");
    check_same(&without, &dense);
    check_same(&layer, &same);
}

// From the flags to the table, and from the table to a choice.
static void calibrate(void) {
    char path[256];
    snprintf(path, sizeof path, "%s", in_tmp("made.json"));
    result made = RUN("bench", "attn", "--calibrate", "-m", tiny(), "--device", "cpu", "-b", "1", "-d", "128", "-p", "640,256",
                      "-r", "1", "--attn", "santa", "--mask-method", "sample:alpha_c=0.8", "--mask-density", "0.2",
                      "--calibration", path),
           none = RUN("bench", "attn", "--calibrate", "-m", tiny(), "--device", "cpu", "-b", "1", "-d", "128", "-p", "0", "-r",
                      "1", "--attn", "santa", "--calibration", in_tmp("none.json"));
    sl_auto_table t;
    CHECK_GOOD(made);
    CHECK_HAS(made.out, "| tokens | dense | mask of sample:alpha_c=0.8 | attention with 0.2 of the blocks | both / dense |\n");
    CHECK_HAS(made.out, "\n| 256 | ");
    CHECK_HAS(made.out, "\n| 640 | ");
    CHECK_HAS(made.out, "\nprefill auto: ");
    CHECK_OK(sl_auto_read(path, 0, &t, &err), err);
    CHECK(t.prefill.n_lengths == 2 && t.prefill.lengths[0].n_tokens == 256 && t.prefill.density == 0.2);
    const sl_attn_spec want = parse("sample:alpha_c=0.8");
    CHECK(sl_attn_same(&t.prefill.attn, &want));
    sl_auto_free(&t);
    result then = GENERATE("-p", question, "--attn-prefill", "auto", "--calibration", path);
    CHECK_GOOD(then);
    CHECK_HAS(then.err, "attn-prefill auto: ");
    CHECK_GOOD(none);
    CHECK_LACKS(none.out, "prefill");
    CHECK_OK(sl_auto_read(in_tmp("none.json"), 0, &t, &err), err);
    CHECK(!t.prefill.attn.method);
    sl_auto_free(&t);
}

static void errors(void) {
    static const struct {
        const char *args[6], *part;
        int code;
    } cases[] = {
        {{"bench", "--mask-method", "sample"}, "--mask-method needs --calibrate", 2},
        {{"bench", "attn", "--mask-density", "0.3"}, "--mask-density needs --calibrate", 2},
        {{"bench", "attn", "--calibrate", "--mask-density", "0"}, "--mask-density 0: expected", 2},
        {{"bench", "attn", "--calibrate", "--mask-method", "dense"}, "--mask-method dense: expected a method that makes", 2},
        {{"bench", "attn", "--calibrate", "--mask-method", "threshold"}, "--mask-method threshold: expected a method", 2},
        {{"bench", "attn", "--calibrate", "--mask-method", "auto"}, "--mask-method auto: expected a method that makes", 2},
        {{"bench", "attn", "--calibrate", "--mask-method", "nope"}, "--mask-method nope", 2},
        {{"bench", "attn", "--calibrate", "-p", "1-17"}, "--n-prompt: expected at most 16 lengths", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *args[9] = {0};
        int n = 0;
        for (; n < 6 && cases[i].args[n]; n++) args[n] = cases[i].args[n];
        args[n] = "--device", args[n + 1] = "cpu";
        result r = run_args(NULL, args);
        check_error(&r, cases[i].code, cases[i].part);
    }
}

#ifdef SLEIGH_CUDA
// On a GPU, a mask and a tenth of the blocks are faster than dense attention at 64k tokens, so auto has a crossover.
static void gpu(void) {
    char path[256];
    snprintf(path, sizeof path, "%s", in_tmp("gpu.json"));
    result made = RUN("bench", "attn", "--calibrate", "-m", tiny(), "--device", "cuda", "-b", "1", "-d", "256", "-p",
                      "129,1k,64k", "-r", "3", "--attn", "santa-sys:S=128", "--mask-density", "0.1", "--calibration", path);
    sl_auto_table t;
    CHECK_GOOD(made);
    CHECK_OK(sl_auto_read(path, 0, &t, &err), err);
    int crossover = sl_auto_prefill_crossover(&t.prefill);
    CHECK(t.prefill.n_lengths == 3 && t.prefill.lengths[0].n_tokens == 129);
    for (int i = 0; i < 3; i++)
        CHECK(t.prefill.lengths[i].dense_us > 0 && t.prefill.lengths[i].mask_us > 0 && t.prefill.lengths[i].attention_us > 0);
    CHECK(t.prefill.lengths[2].attention_us < 0.2 * t.prefill.lengths[2].dense_us);
    sl_auto_free(&t);
    if (crossover > 64 << 10) FAIL("no crossover: %s", made.out);
}
#endif

static const test_case cases[] = {
    {"crossovers", 0, crossovers},
    {"files", 0, files},
    {"broken", 0, broken},
    {"lengths", 0, lengths},
    {"masks", 0, masks},
    {"host", 0, host},
    {"sides", 0, sides},
    {"calibrate", 0, calibrate},
    {"errors", 0, errors},
    WHOLE_GPU_CASE("gpu", gpu),
    {0},
};
extern const test_suite suite_auto_prefill;
const test_suite suite_auto_prefill = {"auto_prefill", cases};
