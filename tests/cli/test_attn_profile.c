// tests/cli/test_attn_profile.c - the file of --attn-profile: what is read, what is refused, the choice by length.
#include "cli/attn/attn_profile.h"
#include "tests/support/run_cli.h"

#include <limits.h>
#include <stdlib.h>

enum { N_LAYERS = 4 }; // of the embedded model

static char *text_of(const char *name) {
    size_t n;
    return slurp(in_tmp(name), &n);
}

// Writes a profile for the embedded model: `parts` follows "model".
static const char *profile_with(const char *parts) {
    static char text[8192];
    sl_error e;
    json_t *model = cli_attn_profile_model(tiny(), 0, NULL, &e);
    CHECK(model);
    char *fields = json_dumps(model, 0);
    snprintf(text, sizeof text, "{\"format\": \"sleigh attention profile 1\", \"model\": %s%s%s}", fields, *parts ? ", " : "",
             parts);
    free(fields), json_decref(model);
    spill(in_tmp("p.json"), text, strlen(text));
    return in_tmp("p.json");
}

static int read_profile(const char *path, cli_attn_profile *p, sl_error *e) {
    return cli_attn_profile_read(path, tiny(), 0, NULL, N_LAYERS, "cpu", p, e);
}

#define RANGES                                                                                                                 \
    "\"prefill\": {\"segment\": 4096, \"ranges\": [{\"from\": 100, \"attn\": \"sample:alpha_c=0.9\", \"found\": {}},"          \
    " {\"from\": 200, \"attn\": \"dense\"}, {\"from\": 300, \"attn\": \"streaming:window=64\"}]}"

static void good(void) {
    static const struct {
        int n;
        const char *attn;
    } lengths[] = {
        {1, "dense"},   {99, "dense"},  {100, "sample:alpha_c=0.9"},         {199, "sample:alpha_c=0.9"},
        {200, "dense"}, {299, "dense"}, {300, "streaming:sink=4:window=64"}, {1 << 30, "streaming:sink=4:window=64"}};
    cli_attn_profile p;
    sl_error e;
    char text[256];
    CHECK_OK(
        read_profile(profile_with(RANGES ", \"decode\": {\"layers\": [\"dense\", \"santa:S=3\", \"topk:k=5\", \"santa:S=1\"]},"
                                         " \"auto\": {\"calibration\": \"table.json\"}"),
                     &p, &e),
        e);
    CHECK_INT(p.segment, 4096);
    CHECK_INT(p.decode.n_layers, N_LAYERS);
    sl_attn_format(&p.decode.layer[1], text, sizeof text);
    CHECK_STR(text, "santa:S=3");
    CHECK_STR(p.calibration, in_tmp("table.json")); // beside the profile
    CHECK_INT(p.crossover, 0);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        sl_attn_format(cli_attn_profile_choose(&p, lengths[i].n), text, sizeof text);
        CHECK_STR(text, lengths[i].attn);
    }
    cli_attn_profile_free(&p);
    CHECK_OK(read_profile(profile_with(""), &p, &e), e); // no part is needed
    CHECK_INT(p.n_ranges + p.decode.n_layers + *p.calibration, 0);
    cli_attn_profile_free(&p);
}

static void refused(void) {
    static const struct {
        const char *parts, *message;
    } cases[] = {
        {"\"prefil\": {}", "p.json: unknown field prefil"},
        {"\"prefill\": []", "field prefill is a list, expected an object"},
        {"\"prefill\": {\"segment\": 1.5, \"ranges\": []}", "field prefill.segment is a number, expected an integer"},
        {"\"prefill\": {\"segment\": 64, \"ranges\": []}", "field prefill.segment is 64, expected 128 or more"},
        {"\"prefill\": {\"segment\": 128, \"ranges\": {}}",
         "field prefill.ranges is an object, expected a list of 1 to 32 ranges"},
        {"\"prefill\": {\"segment\": 128, \"ranges\": [7]}", "field prefill.ranges[0] is an integer, expected an object"},
        {"\"prefill\": {\"segment\": 128, \"ranges\": [{\"from\": 1, \"attn\": \"sample\", \"to\": 2}]}",
         "unknown field prefill.ranges[0].to"},
        {"\"prefill\": {\"segment\": 128, \"ranges\": [{\"from\": 9, \"attn\": \"sample\"}, {\"from\": 9, \"attn\": "
         "\"sample\"}]}",
         "field prefill.ranges[1].from is 9, expected 10 or more"},
        {"\"prefill\": {\"segment\": 128, \"ranges\": [{\"from\": 1}]}",
         "field prefill.ranges[0].attn is missing, expected a string"},
        {"\"prefill\": {\"segment\": 128, \"ranges\": [{\"from\": 1, \"attn\": \"sampel\"}]}", "did you mean sample?"},
        {"\"prefill\": {\"segment\": 128, \"ranges\": [{\"from\": 1, \"attn\": \"santa:S=4\"}]}",
         "expected a method for prefill"},
        {"\"decode\": {\"layers\": \"dense\"}", "field decode.layers is a string, expected a list of methods"},
        {"\"decode\": {\"layers\": [\"dense\"]}", "field decode.layers has 1 methods, expected 4, one for each layer"},
        {"\"decode\": {\"layers\": [\"dense\", \"dense\", \"dense\", 4]}",
         "field decode.layers[3] is an integer, expected a string"},
        {"\"decode\": {\"layers\": [\"sample\", \"dense\", \"dense\", \"dense\"]}", "expected a method for decoding"},
        {"\"decode\": {\"layers\": [\"dense\", \"santa:S=0\", \"dense\", \"dense\"]}", "field decode.layers[1]: "},
        {"\"auto\": {\"calibration\": 1}", "field auto.calibration is an integer, expected a string"},
        {"\"auto\": {}", "field auto.calibration is missing, expected a string"},
    };
    cli_attn_profile p;
    sl_error e;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_ERR(read_profile(profile_with(cases[i].parts), &p, &e), e, SL_ERR_FORMAT, cases[i].message);
        cli_attn_profile_free(&p);
    }
    CHECK_ERR(read_profile(in_tmp("none.json"), &p, &e), e, SL_ERR_IO, "none.json: No such file");
    spill(in_tmp("bad.json"), "{\n\"format\":", 11);
    CHECK_ERR(read_profile(in_tmp("bad.json"), &p, &e), e, SL_ERR_FORMAT, "bad.json: line 2: ");
    spill(in_tmp("bad.json"), "{\"format\": \"other\"}", 19);
    CHECK_ERR(read_profile(in_tmp("bad.json"), &p, &e), e, SL_ERR_FORMAT,
              "field format is other, expected \"sleigh attention profile 1\"");
    spill(in_tmp("bad.json"), "[]", 2);
    CHECK_ERR(read_profile(in_tmp("bad.json"), &p, &e), e, SL_ERR_FORMAT, "field format is missing");
    CHECK_ERR(cli_attn_profile_read(profile_with(""), tiny(), 1, NULL, N_LAYERS, "cpu", &p, &e), e, SL_ERR_UNSUPPORTED,
              "made for a model with weights fnv1a:"); // random weights are another model
    CHECK(strstr(e.message, " has dummy; "));
    char *text = (profile_with(""), text_of("p.json")), *config = strstr(text, "fnv1a:");
    config[6] = config[6] == '0' ? '1' : '0';
    spill(in_tmp("other.json"), text, strlen(text));
    CHECK_ERR(read_profile(in_tmp("other.json"), &p, &e), e, SL_ERR_UNSUPPORTED, "made for a model with config fnv1a:");
}

// Times of this device raise the crossover; times of another device do not; other files of times are refused.
static void times(void) {
    static const cli_prefill_time measured[] = {{100, 80, 100}, {200, 100, 100}, {300, 90, 100}},
                                  slow[] = {{100, 99, 100}, {200, 99, 100}, {300, 96, 100}};
    cli_attn_profile p;
    sl_error e;
    char path[CLI_PROFILE_PATH], text[256];
    CHECK_INT(cli_prefill_crossover(measured, 3), 300); // not 100: at 200 it is not faster
    CHECK_INT(cli_prefill_crossover(measured, 1), 100);
    CHECK_INT(cli_prefill_crossover(slow, 3), INT_MAX);
    const char *profile = profile_with(RANGES);
    cli_prefill_times_path(profile, path);
    CHECK_STR(path, in_tmp("p.times.json"));
    CHECK_OK(cli_prefill_times_write(path, "cpu", measured, 3, &e), e);
    CHECK_OK(read_profile(profile, &p, &e), e);
    sl_attn_format(cli_attn_profile_choose(&p, 150), text, sizeof text);
    CHECK_STR(text, "dense");
    sl_attn_format(cli_attn_profile_choose(&p, 300), text, sizeof text);
    CHECK_STR(text, "streaming:sink=4:window=64");
    cli_attn_profile_free(&p);
    CHECK_OK(cli_prefill_times_write(path, "cuda: another", slow, 3, &e), e);
    CHECK_OK(read_profile(profile, &p, &e), e);
    CHECK_INT(p.crossover, 0);
    cli_attn_profile_free(&p);
    CHECK_OK(cli_prefill_times_write(path, "cpu", slow, 2, &e), e);
    CHECK_ERR(read_profile(profile, &p, &e), e, SL_ERR_FORMAT, "expected the times of the ranges of");
    cli_attn_profile_free(&p);
}

// Two writes of the same parts have equal bytes, and what is written can be read.
static void written(void) {
    sl_error e;
    char first[2048];
    cli_attn_profile p;
    for (int i = 0; i < 2; i++) {
        json_t *model = cli_attn_profile_model(tiny(), 0, NULL, &e);
        json_t *prefill = json_pack("{s:i, s:[{s:i, s:s}]}", "segment", 256, "ranges", "from", 5, "attn", "sample");
        CHECK_OK(cli_attn_profile_write(in_tmp("w.json"), model, prefill, NULL, json_string("/t.json"), &e), e);
        if (!i) snprintf(first, sizeof first, "%s", text_of("w.json"));
    }
    CHECK_STR(text_of("w.json"), first);
    CHECK_OK(read_profile(in_tmp("w.json"), &p, &e), e);
    CHECK_INT(p.ranges[0].from, 5);
    CHECK_STR(p.calibration, "/t.json");
    cli_attn_profile_free(&p);
}

static const test_case cases[] = {
    {"good", NEEDS_NOTHING, good},
    {"refused", NEEDS_NOTHING, refused},
    {"times", NEEDS_NOTHING, times},
    {"written", NEEDS_NOTHING, written},
    {0},
};

const test_suite suite_attn_profile = {"attn_profile", cases};
