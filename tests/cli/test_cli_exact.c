// tests/cli/test_cli_exact.c - the flag --exact-below: sequences with few rows attend to every row. The other tests of commands
// run with SLEIGH_EXACT_BELOW=off (tests/main.c).
#include "tests/support/run_cli.h"

#include <jansson.h>
#include <stdlib.h>

enum { HEADS = 4 * 8, STEPS = 40 }; // layers x heads; the first answered token has no step

static const char *prompt;

static json_t *answer(const char *attn, const char *exact_below, char **err) {
    result r = RUN("generate", "-m", tiny(), "-p", prompt, "-n", "41", "--ignore-eos", "--temp", "0", "--seed", "3", "-o",
                   "json", "--attn", attn, exact_below ? "--exact-below" : "--no-display-prompt", exact_below);
    if (err) *err = r.err;
    return document(&r);
}

static double exact_heads(const json_t *v) {
    return number(json_object_get(v, "counters"), "exact_heads");
}

static const char *logits(const json_t *v) {
    return json_string_value(json_object_get(v, "logits"));
}

// A short prompt: auto attends exactly in every step, off draws in every step, a number splits the steps at its row.
static void generate(void) {
    char *text, at_60[16];
    prompt = long_text(4);
    json_t *dense = answer("dense", "auto", &text), *whole = answer("santa-sys:S=4", "auto", NULL),
           *drawn = answer("santa-sys:S=4", "off", NULL), *off = answer("santa-sys:S=4", "0", NULL);
    CHECK(exact_heads(dense) == 0 && !strstr(text, "\nexact:"));
    CHECK(exact_heads(whole) == HEADS * STEPS && exact_heads(drawn) == 0);
    CHECK_STR(logits(whole), logits(dense));
    CHECK(json_equal(json_object_get(whole, "ids"), json_object_get(dense, "ids")));
    CHECK(strcmp(logits(drawn), logits(dense)));
    CHECK_STR(logits(off), logits(drawn));
    CHECK(number(json_object_get(whole, "counters"), "v_rows") == number(json_object_get(whole, "counters"), "dense_v_rows"));
    CHECK(number(json_object_get(drawn, "counters"), "v_rows") < number(json_object_get(drawn, "counters"), "dense_v_rows"));
    int n_prompt = (int)number(whole, "n_prompt");
    snprintf(at_60, sizeof at_60, "%d", n_prompt + 11); // step i has n_prompt + i rows
    json_t *mixed = answer("santa-sys:S=4", at_60, &text), *again = answer("santa-sys:S=4", at_60, NULL);
    CHECK(exact_heads(mixed) == HEADS * 10);
    CHECK_STR(logits(again), logits(mixed));
    CHECK(strcmp(logits(mixed), logits(drawn)) && strcmp(logits(mixed), logits(dense)));
    CHECK_HAS(text, "exact: 320 of 1280 heads attended to every row");
    json_t *values[] = {dense, whole, drawn, off, mixed, again};
    for (int i = 0; i < 6; i++) json_decref(values[i]);
}

// A stated error: exact layers state 0, and are certified.
static void stated(void) {
    prompt = long_text(4);
    json_t *v = answer("santa-pps:epsilon=0.001", "auto", NULL), *c = json_object_get(v, "counters");
    CHECK(exact_heads(v) == HEADS * STEPS);
    CHECK(number(c, "stated") == STEPS * 4 && number(c, "certified") == STEPS * 4 && number(c, "stated_most") == 0);
    json_decref(v);
}

// The environment holds without the flag. Commands that measure a method draw by default.
static void defaults(void) {
    prompt = long_text(4);
    json_t *v = answer("santa-sys:S=4", NULL, NULL);
    CHECK(exact_heads(v) == 0);
    json_decref(v);
    unsetenv("SLEIGH_EXACT_BELOW");
    v = answer("santa-sys:S=4", NULL, NULL);
    CHECK(exact_heads(v) == HEADS * STEPS);
    json_decref(v);
    double same[3];
    static const char *const values[] = {"off", "auto", NULL};
    for (int i = 0; i < 3; i++) {
        result r = RUN("compare", "-m", tiny(), "-p", prompt, "-n", "6", "--attn", "santa-sys:S=1", "--no-heads", "--no-texts",
                       "--reference", in_tmp("reference"), "-o", "json", values[i] ? "--exact-below" : NULL, values[i]);
        if (i == 0) { // the file is missing: the first run makes no figures
            check_error(&r, 1, "reference");
            spill(in_tmp("reference"), " The old river is long.", 23);
            r = RUN("compare", "-m", tiny(), "-p", prompt, "-n", "6", "--attn", "santa-sys:S=1", "--no-heads", "--no-texts",
                    "--reference", in_tmp("reference"), "-o", "json", "--exact-below", "off");
        }
        v = document(&r);
        same[i] = number(json_array_get(json_object_get(v, "methods"), 0), "kl");
        json_decref(v);
    }
    CHECK(same[0] > 0.01 && same[1] < 1e-9 && same[2] == same[0]);
}

static void errors(void) {
    static const char *const bad[] = {"", "-1", "x", "1.5", "4kk", "auto ", "2147483648", "2097152k"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        result r = RUN("generate", "-m", tiny(), "-p", "x", "-n", "1", "--exact-below", bad[i]);
        check_error(&r, 2, "expected a number of rows, auto or off");
    }
    result r = RUN("bench", "attn", "--calibrate", "--device", "cpu", "--exact-below", "4k");
    check_error(&r, 2, "--exact-below cannot be used");
    r = RUN("bench", "attn", "--cliffs", "-m", tiny(), "--device", "cpu", "-b", "1", "-d", "300,600", "--attn", "santa-sys:S=4",
            "--exact-below", "400", "--query-deviation", "1", "-o", "json");
    json_t *v = document(&r), *row;
    size_t i;
    json_array_foreach(v, i, row) {
        int is_dense = !strcmp(json_string_value(json_object_get(row, "attn")), "dense");
        CHECK_INT(json_is_true(json_object_get(row, "exact")), !is_dense && number(row, "n_kv") < 400);
    }
    CHECK_INT(json_array_size(v), 4);
    json_decref(v);
}

static const test_case cases[] = {
    {"generate", 0, generate}, {"stated", 0, stated}, {"defaults", 0, defaults}, {"errors", 0, errors}, {0}};
extern const test_suite suite_cli_exact;
const test_suite suite_cli_exact = {"cli_exact", cases};
