// tests/cli/test_cli_parts.c - shared parts of the commands: table rows, sizes, token ids as text, the nearest name,
// states of a model for `bench attn`.
#include "cli/bench/attn_states.h"
#include "cli/io.h"
#include "base/nearest.h"
#include "cli/options/options.h"
#include "cli/output/rows.h"
#include "tests/support/run_cli.h"

#include <fcntl.h>
#include <math.h>
#include <unistd.h>

static sl_error err;

static const cli_column columns[] = {
    {.title = "name", .key = "name"},
    {.title = "n", .key = "n"},
    {.title = "share %", .key = "share", .low = "low", .high = "high", .digits = 1, .scale = 100},
    {.title = "hidden", .key = "n", .hidden = 1},
    {.title = "mean", .key = "mean", .spread = "error", .digits = -3},
    {.title = "change", .key = "change", .digits = 2, .sign = 1},
};

static json_t *row(const char *name, int n, double share, double mean, double error, double change) {
    json_t *out = json_pack("{s:s, s:i, s:f, s:f, s:f}", "name", name, "n", n, "share", share, "low", share / 2, "high", 0.995);
    json_object_set_new(out, "mean", cli_number(mean));
    json_object_set_new(out, "error", cli_number(error));
    json_object_set_new(out, "change", cli_number(change));
    return out;
}

// The output of two rows.
static const char *printed(const char *format, int n) {
    cli_rows rows = {.format = format, .columns = columns, .n_columns = sizeof columns / sizeof *columns};
    size_t size;
    fflush(stdout);
    int was = dup(STDOUT_FILENO), file = open(in_tmp("rows"), O_WRONLY | O_CREAT | O_TRUNC, 0600), rc = 0;
    dup2(file, STDOUT_FILENO);
    if (n > 0) rc = cli_rows_add(&rows, row("a \"b\", c", 7, 0.25, 1234.5678, 0.0625, -0.001), &err);
    if (n > 1 && !rc) rc = cli_rows_add(&rows, row("d", -1, -0.0, NAN, 1, 2.345), &err);
    if (!rc) rc = cli_rows_end(&rows, &err);
    fflush(stdout);
    dup2(was, STDOUT_FILENO);
    close(was), close(file);
    CHECK_OK(rc, err);
    return slurp(in_tmp("rows"), &size);
}

static void tables(void) {
    CHECK_STR(printed("md", 2), "| name | n | share % | mean | change |\n|---|---|---|---|---|\n"
                                "| a \"b\", c | 7 | 25.0 (12.5 to 99.5) | 1.23e+03 ± 0.0625 | -0.00 |\n"
                                "| d | -1 | 0.0 (0.0 to 99.5) | - | +2.35 |\n");
    CHECK_STR(printed("csv", 2), "name,n,share,low,high,mean,error,change\n"
                                 "\"a \"\"b\"\", c\",7,0.25,0.125,0.995,1234.5678,0.0625,-0.001\n"
                                 "\"d\",-1,-0.0,-0.0,0.995,,1.0,2.345\n");
    const char *one = "{\"name\":\"a \\\"b\\\", c\",\"n\":7,\"share\":0.25,\"low\":0.125,\"high\":0.995,\"mean\":1234.5678,"
                      "\"error\":0.0625,\"change\":-0.001}";
    char want[1024];
    snprintf(want, sizeof want, "[\n%s\n]\n", one);
    CHECK_STR(printed("json", 1), want);
    CHECK_STR(printed("json", 0), "[]\n");
    snprintf(want, sizeof want, "%s\n", one);
    CHECK_STR(printed("jsonl", 1), want);
    const char *two = printed("json", 2);
    CHECK_HAS(two, "}\n,\n{");
    cli_rows rows = {.format = "md"};
    CHECK_ERR(cli_rows_add(&rows, NULL, &err), err, SL_ERR_MEMORY, "a row: ");
}

static void bytes(void) {
    static const struct {
        double bytes;
        const char *text;
    } cases[] = {{0, "0 B"},
                 {1023, "1023 B"},
                 {1024, "1.00 KiB"},
                 {1024 * 1024 - 1, "1024.00 KiB"},
                 {1024 * 1024, "1.00 MiB"},
                 {1.5 * 1024 * 1024 * 1024, "1.50 GiB"},
                 {1024.0 * 1024 * 1024 * 1024, "1.00 TiB"},
                 {1024.0 * 1024 * 1024 * 1024 * 1024, "1024.00 TiB"}};
    char buf[32];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) CHECK_STR(cli_bytes(cases[i].bytes, buf), cases[i].text);
}

static void ids(void) {
    static const struct {
        const char *text;
        int n, last, byte; // byte: position of the error; -1: none
    } cases[] = {{"0,2147483647", 2, 2147483647, -1},
                 {" 1\t2\r\n3,,4 ", 4, 4, -1},
                 {"", 0, 0, -1},
                 {" , ", 0, 0, -1},
                 {"2147483648", 0, 0, 0},
                 {"5,-1", 0, 0, 2},
                 {"1;2", 0, 0, 0},
                 {"12 x", 0, 0, 3},
                 {"1,99999999999999999999", 0, 0, 2},
                 {"7", 1, 7, -1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sl_ids out = {0};
        char part[64];
        const sl_text text = {.data = (char *)cases[i].text, .n = strlen(cases[i].text)};
        int rc = cli_parse_ids("list", &text, &out, &err);
        snprintf(part, sizeof part, "list: byte %d: expected token ids", cases[i].byte);
        if (cases[i].byte >= 0) CHECK_ERR(rc, err, SL_ERR_FORMAT, part);
        if (cases[i].byte < 0) CHECK_OK(rc, err);
        if (cases[i].byte < 0) CHECK_INT(out.n, cases[i].n);
        if (cases[i].n) CHECK_INT(out.data[out.n - 1], cases[i].last);
        sl_ids_free(&out);
    }
    sl_ids out = {0};
    CHECK(cli_parse_ids("list", &(sl_text){.data = "1\0002", .n = 3}, &out, &err) ==
          SL_ERR_FORMAT); // a NUL does not end the text
    sl_ids_free(&out);
}

// Five letters allow two edits, three letters allow one. A swap of two neighbours is one edit.
static void nearest(void) {
    static const char *const names[] = {"--samples", "--seed", "--stop", "--step", "heads"};
    static const struct {
        const char *word, *want; // NULL: no name is near
    } cases[] = {
        {"--seed", "--seed"},  {"--sede", "--seed"},       {"--sample", "--samples"},
        {"--ste", "--step"},   {"--stxp", "--stop"},       {"--smaplse", "--samples"},
        {"--smaplsex", NULL},  {"--amplesx", "--samples"}, {"--x", NULL},
        {"-x", NULL},          {"--abcdefg", NULL},        {"--sexxx", NULL},
        {"--seddx", "--seed"}, {"--esde", NULL},           {"-seed", "--seed"},
        {"ehasd", "heads"},    {"hxxds", "heads"},         {"ehxsd", NULL},
        {"he", NULL},          {"eads", "heads"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *got = sl_nearest(cases[i].word, names, 5);
        if (!got != !cases[i].want || (got && strcmp(got, cases[i].want)))
            FAIL("%s: %s, expected %s", cases[i].word, got ? got : "none", cases[i].want ? cases[i].want : "none");
    }
}

static void write_numbers(const char *name, size_t n) {
    bf16 numbers[256];
    for (int i = 0; i < 256; i++) numbers[i] = (bf16)i;
    spill(in_tmp(name), (const char *)numbers, n * sizeof *numbers);
}

// Reads a folder of states with n_q, n_k and 160 numbers. want: the error, or NULL.
static void read_states(const char *header, size_t n_q, size_t n_k, const char *want) {
    cli_attn_states s;
    char folder[600];
    snprintf(folder, sizeof folder, "%s", in_tmp(""));
    spill(in_tmp("states.json"), header, strlen(header));
    write_numbers("q.bf16", n_q), write_numbers("k.bf16", n_k), write_numbers("v.bf16", 160);
    int rc = cli_attn_states_read(&s, folder, &err);
    if (want) {
        CHECK(rc != 0 && !s.q);
        CHECK_HAS(err.message, want);
        return;
    }
    CHECK_OK(rc, err);
    CHECK(s.geom.n_heads == 4 && s.geom.n_kv_heads == 2 && s.geom.head_dim == 16 && s.n_rows == 5 && s.n_steps == 3);
    CHECK(s.q[191] == 191 && s.k[159] == 159 && s.v[159] == 159);
    CHECK_STR(s.source, "a model");
    cli_attn_states_free(&s);
}

static void states(void) {
#define SHAPE_OF(KV_HEADS, STEPS)                                                                                              \
    "{\"n_heads\": 4, \"n_kv_heads\": " KV_HEADS ", \"head_dim\": 16, \"n_rows\": 5, \"n_steps\": " STEPS                      \
    ", \"source\": \"a model\"}"
    read_states(SHAPE_OF("2", "3"), 192, 160, NULL);
    read_states(SHAPE_OF("2", "3"), 191, 160, "q.bf16: found 191 numbers, expected 192");
    read_states(SHAPE_OF("2", "3"), 192, 161, "k.bf16: found more than 160 numbers, expected 160");
    read_states(SHAPE_OF("3", "3"), 192, 160, "found n_heads 4, expected a multiple of n_kv_heads, 3");
    read_states(SHAPE_OF("2", "6"), 192, 160, "n_steps");
    read_states("{\"n_heads\": 4}", 192, 160, "n_kv_heads");
    read_states("[1]", 192, 160, "states.json");
}

static const test_case cases[] = {
    {"tables", NEEDS_NOTHING, tables},   {"bytes", NEEDS_NOTHING, bytes},   {"ids", NEEDS_NOTHING, ids},
    {"nearest", NEEDS_NOTHING, nearest}, {"states", NEEDS_NOTHING, states}, {0},
};
const test_suite suite_cli_parts = {"cli_parts", cases};
