// tests/cli/test_cli_cliffs.c - sleigh bench attn --cliffs: the order of the measurements and the rules on made-up times,
// flags, and small runs of the program.
#include "cli/bench/cliffs.h"
#include "tests/support/run_cli.h"

#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>

// ---- made-up times ----

enum { METHODS = 3, SEQS = 4, ROWS = 5 };
static const int seqs_of[SEQS] = {1, 4, 16, 64}, rows_of[ROWS] = {256, 1024, 4096, 16384, 32768};

static cli_cliffs new_cliffs(int most_rows) {
    static const char *const items[] = {"dense", "santa:S=16", "topk:k=64"};
    cli_cliffs c = {.kinds = {{"flat", 1}, {"peaked", 4}}, .n_kinds = 2, .most_rows = most_rows};
    sl_error err;
    CHECK_OK(cli_attn_list_parse("--attn", &(cli_list){.items = (const char **)items, .n = METHODS}, &c.methods, &err), err);
    for (int i = 0; i < SEQS; i++) c.n_seqs.at[c.n_seqs.n++] = seqs_of[SEQS - 1 - i], c.n_seqs.at[c.n_seqs.n++] = 1; // unsorted
    for (int i = 0; i < ROWS; i++) c.n_kv.at[c.n_kv.n++] = rows_of[i];
    CHECK_OK(cli_cliffs_open(&c, &err), err);
    CHECK(c.n_seqs.n == SEQS && c.n_kv.n == ROWS);
    for (int i = 0; i < SEQS; i++) CHECK_INT(c.n_seqs.at[i], seqs_of[i]);
    return c;
}

typedef struct made_clock {
    const cli_cliffs *c;
    int calls, n_order, n_seqs[1000], n_kv[1000];
    int count[METHODS][SEQS][ROWS]; // measurements of a cell
    int fails_at;                   // call; 0: none
} made_clock;

static int index_of(const int *list, int x) {
    int i = 0;
    while (list[i] != x) i++;
    return i;
}

// Dense attention takes 1 us a row; santa takes half of it, but 1.2 times at 4 x 1024 and 1.05 times at 16 x 256; topk has no
// time at 4096 rows, and at 16384 rows takes less than at 1024. The first measurement of each cell takes 3 times as long.
static int made_time(void *ctx, const sl_attn_spec *spec, int n_seqs, int n_kv, double *us, sl_error *err) {
    made_clock *m = ctx;
    int method = 0, s = index_of(seqs_of, n_seqs), r = index_of(rows_of, n_kv);
    while (m->c->methods.specs[method].method != spec->method) method++;
    if (++m->calls == m->fails_at) return sl_fail(err, SL_ERR_DEVICE, "made up");
    m->n_seqs[m->n_order] = n_seqs, m->n_kv[m->n_order++] = n_kv;
    double dense = (double)n_seqs * n_kv;
    *us = dense;
    if (method == 1) *us = n_seqs == 4 && n_kv == 1024 ? 1.2 * dense : n_seqs == 16 && n_kv == 256 ? 1.05 * dense : 0.5 * dense;
    if (method == 2) *us = n_kv == 4096 ? NAN : n_kv == 16384 ? 0.5 * 1024 * n_seqs : 0.9 * dense;
    if (m->count[method][s][r]++ == 0) *us *= 3;
    return 0;
}

static void rules(void) {
    cli_cliffs c = new_cliffs(64 * 32768);
    made_clock m = {.c = &c};
    sl_error err;
    CHECK_OK(cli_cliffs_time(&c, 1, &(cli_clock){.time = made_time, .ctx = &m}, 1000, &err), err);
    CHECK_INT(m.calls, METHODS * SEQS * ROWS * CLI_CLIFF_PASSES);
    CHECK_INT(c.n_timed, m.calls - SEQS * CLI_CLIFF_PASSES); // topk has no time at one number of rows
    for (int method = 0; method < METHODS; method++)
        for (int s = 0; s < SEQS; s++)
            for (int r = 0; r < ROWS; r++) {
                cli_cliff_cell x = {1, method, s, r}, smaller, of_other_kind = {0, method, s, r};
                CHECK_INT(m.count[method][s][r], CLI_CLIFF_PASSES);
                CHECK(isnan(*cli_cliffs_us(&c, of_other_kind)));
                CHECK_INT(isnan(*cli_cliffs_us(&c, x)), method == 2 && r == 2);
                CHECK_INT(cli_cliffs_is_slow(cli_cliffs_of_dense(&c, x)), method == 1 && s == 1 && r == 1);
                double share = cli_cliffs_of_fewer_rows(&c, x, &smaller);
                CHECK_INT(isnan(share), r == 0 || (method == 2 && r == 2));
                CHECK_INT(cli_cliffs_is_drop(share), method == 2 && r == 3);
                if (method == 2 && r == 3) CHECK(smaller.rows == 1 && smaller.seqs == s && fabs(share - 0.5 / 0.9) < 1e-9);
                CHECK(!cli_cliffs_is_drop(cli_cliffs_of_fewer_seqs(&c, x, &smaller)));
                CHECK(isnan(share = cli_cliffs_of_fewer_seqs(&c, x, &smaller)) == (s == 0 || (method == 2 && r == 2)));
            }
    *cli_cliffs_us(&c, (cli_cliff_cell){1, 0, 2, 0}) = 900; // 16 x 256: fewer us than 4 x 256
    cli_cliff_cell smaller;
    CHECK(cli_cliffs_is_drop(cli_cliffs_of_fewer_seqs(&c, (cli_cliff_cell){1, 0, 2, 0}, &smaller)) && smaller.seqs == 1);
    cli_cliffs_free(&c);
}

static void limits_of_rules(void) {
    CHECK(!cli_cliffs_is_slow(1.1) && cli_cliffs_is_slow(1.11) && !cli_cliffs_is_slow(NAN));
    CHECK(!cli_cliffs_is_drop(0.95) && cli_cliffs_is_drop(0.94) && !cli_cliffs_is_drop(NAN));
}

// Sizes with every second value of an axis come last, but the ends of an axis come first. Sizes with too many rows are left
// out.
static void order(void) {
    cli_cliffs c = new_cliffs(64 * 4096);
    made_clock m = {.c = &c};
    sl_error err;
    CHECK_OK(cli_cliffs_time(&c, 0, &(cli_clock){.time = made_time, .ctx = &m}, 1000, &err), err);
    int n_first = 0, n_last = 0;
    for (int i = 0; i < m.n_order; i++) {
        CHECK(m.n_seqs[i] * m.n_kv[i] <= 64 * 4096);
        int is_last = m.n_seqs[i] == 4 || m.n_kv[i] == 1024 || m.n_kv[i] == 16384;
        n_first += !is_last, n_last += is_last;
        if (!is_last) CHECK_INT(n_last, 0);
    }
    CHECK(n_first > 0 && n_last > 0 && n_first + n_last == m.n_order);
    cli_cliffs_free(&c);
}

static void time_is_over(void) {
    cli_cliffs c = new_cliffs(64 * 32768);
    made_clock m = {.c = &c};
    sl_error err;
    CHECK_OK(cli_cliffs_time(&c, 0, &(cli_clock){.time = made_time, .ctx = &m}, 0, &err), err);
    CHECK_INT(m.calls, 1);
    CHECK(*cli_cliffs_us(&c, (cli_cliff_cell){0, 0, 0, 0}) == 3 * 256);
    m.fails_at = 5;
    CHECK_ERR(cli_cliffs_time(&c, 1, &(cli_clock){.time = made_time, .ctx = &m}, 1000, &err), err, SL_ERR_DEVICE, "made up");
    CHECK_INT(m.calls, 5);
    cli_cliffs_free(&c);
}

// ---- the program ----

static void errors(void) {
    static const struct {
        const char *args[8], *part;
        int code;
    } cases[] = {
        {{"--cliffs"}, "flag --cliffs needs the subject attn", 2},
        {{"decode", "--cliffs"}, "flag --cliffs needs the subject attn", 2},
        {{"attn", "--cliffs-seconds", "3"}, "flag --cliffs-seconds needs --cliffs", 2},
        {{"attn", "--cliffs", "--cliffs-seconds", "-1"}, "--cliffs-seconds -1: expected", 2},
        {{"attn", "--cliffs", "-n", "4"}, "flag --steps cannot be used with --cliffs", 2},
        {{"attn", "--cliffs", "--calibrate"}, "flag --calibrate cannot be used with --cliffs", 2},
        {{"attn", "--cliffs", "--phase", "decode"}, "flag --phase cannot be used with --cliffs", 2},
        {{"attn", "--cliffs", "--states", "/nowhere"}, "states.json", 1},
        {{"attn", "--cliffs", "-d", "0,4"}, "--depth 0: expected at least 1", 2},
        {{"attn", "--cliffs", "-d", "1000k"}, "--batch and --depth: expected a size of at most 131072 rows", 2},
        {{"attn", "--cliffs", "--attn", "sample"}, "sample", 1},
        {{"attn", "--cliffs", "--attn", "nope"}, "nope", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *args[12] = {"bench"};
        int n = 1;
        for (int j = 0; j < 8 && cases[i].args[j]; j++) args[n++] = cases[i].args[j];
        if (strcmp(args[1], "attn")) args[n++] = "-m", args[n++] = tiny();
        if (!strcmp(args[1], "attn")) args[n++] = "--device", args[n++] = "cpu";
        result r = run_args(NULL, args);
        check_error(&r, cases[i].code, cases[i].part);
    }
    result r = RUN("bench", "attn", "--cliffs", "--states", "x", "-m", tiny());
    check_error(&r, 2, "flag --model cannot be used with --states");
}

#define CLIFFS "bench", "attn", "--cliffs", "-m", tiny(), "--device", "cpu", "-b", "2,1", "-d", "300,64", "-r", "1"

static void check_row(const json_t *row) {
    double us = number(row, "us"), of_dense = number(row, "of_dense");
    CHECK(us > 0 && of_dense > 0);
    CHECK(json_is_true(json_object_get(row, "slow")) == (of_dense > CLI_CLIFF_SLOW));
    if (!strcmp(json_string_value(json_object_get(row, "attn")), "dense")) CHECK(of_dense == 1);
    int drops = 0;
    static const char *const keys[] = {"of_fewer_rows", "of_fewer_seqs"};
    for (int i = 0; i < 2; i++) {
        const json_t *share = json_object_get(row, keys[i]);
        CHECK(json_is_null(share) == (i ? number(row, "n_seqs") == 1 : number(row, "n_kv") == 64));
        drops |= !json_is_null(share) && json_number_value(share) < CLI_CLIFF_LESS;
    }
    CHECK(json_is_true(json_object_get(row, "drop")) == drops);
}

static void small_run(void) {
    result r = RUN(CLIFFS, "--attn", "santa-pps:S={4,128}", "-o", "json");
    CHECK_HAS(r.err, "left out: the states of a model");
    json_t *rows = document(&r), *row;
    size_t i;
    CHECK_INT(json_array_size(rows), 2 * 3 * 4); // kinds, methods with dense, sizes
    json_array_foreach(rows, i, row) check_row(row);
    json_decref(rows);
    result md = RUN(CLIFFS, "--attn", "santa-pps:S=4", "--query-deviation", "2");
    CHECK_GOOD(md);
    CHECK_HAS(md.out, "model: tiny (8 query heads, 2 KV heads, dimension 128)\n");
    CHECK_HAS(md.out, "cpu: 8 of 8 cells timed; "); // one kind
    CHECK_LACKS(md.out, "peaked");
}

// Without --attn the command times every method of the CPU. The test is short because it has one size.
static void all_methods(void) {
    result r = RUN("bench", "attn", "--cliffs", "-m", tiny(), "--device", "cpu", "-b", "1", "-d", "300", "-r", "1",
                   "--query-deviation", "1", "-o", "json");
    static const char *const some[] = {"dense",          "santa:S=1",          "santa-pps:S=8192",
                                       "santa-is:S=256", "topk:k=1024",        "quest:tokens=16",
                                       "bernoulli:B=16", "magicpig:K=10:L=16", "santa-is:proposal=int8:epsilon=0.2"};
    json_t *rows = document(&r), *row;
    size_t i;
    for (int k = 0; k < 9; k++) {
        int n = 0;
        json_array_foreach(rows, i, row) n += !strcmp(json_string_value(json_object_get(row, "attn")), some[k]);
        if (n != 1) FAIL("%d rows of %s", n, some[k]);
    }
    CHECK(json_array_size(rows) > 60);
    json_decref(rows);
}

// The states of a model have the shape of their folder, and are timed with all their rows.
static void states(void) {
    enum { HEADS = 4, KV_HEADS = 2, DIM = 64, N = 300, STEPS = 3 };
    static bf16 numbers[N * KV_HEADS * DIM];
    char dir[256], header[200];
    snprintf(dir, sizeof dir, "%s", in_tmp("states"));
    CHECK(!mkdir(dir, 0700));
    int n = snprintf(header, sizeof header,
                     "{\"n_heads\":%d,\"n_kv_heads\":%d,\"head_dim\":%d,\"n_rows\":%d,\"n_steps\":%d,\"source\":\"made\"}",
                     HEADS, KV_HEADS, DIM, N, STEPS);
    spill(in_tmp("states/states.json"), header, (size_t)n);
    for (int i = 0; i < N * KV_HEADS * DIM; i++) numbers[i] = (bf16)(0x3f00 + i % 64);
    spill(in_tmp("states/q.bf16"), (const char *)numbers, STEPS * HEADS * DIM * sizeof(bf16));
    spill(in_tmp("states/k.bf16"), (const char *)numbers, sizeof numbers);
    spill(in_tmp("states/v.bf16"), (const char *)numbers, sizeof numbers);
    result r = RUN("bench", "attn", "--cliffs", "--states", dir, "--device", "cpu", "-b", "1", "-d", "64", "-r", "1", "--attn",
                   "santa-is:S=4", "-o", "json");
    CHECK_LACKS(r.err, "left out");
    json_t *rows = document(&r), *row;
    size_t i;
    int of_states = 0;
    json_array_foreach(rows, i, row) {
        int is_states = !strcmp(json_string_value(json_object_get(row, "attention")), "states of a model");
        of_states += is_states;
        if (is_states) CHECK_INT(number(row, "n_kv"), N);
        CHECK_STR(json_string_value(json_object_get(row, "model")), "made (4 query heads, 2 KV heads, dimension 64)");
    }
    CHECK_INT(of_states, 2);
    CHECK_INT(json_array_size(rows), 2 + 2 * 2 * 2);
    json_decref(rows);
}

static const test_case cases[] = {
    {"rules", 0, rules},
    {"limits-of-rules", 0, limits_of_rules},
    {"order", 0, order},
    {"time-is-over", 0, time_is_over},
    {"errors", NEEDS_NOTHING, errors},
    {"small-run", NEEDS_NOTHING, small_run},
    {"all-methods", NEEDS_NOTHING, all_methods},
    {"states", NEEDS_NOTHING, states},
    {0},
};
const test_suite suite_cli_cliffs = {"cli_cliffs", cases};
