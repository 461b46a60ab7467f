// tests/models/test_rope.c - scaled RoPE: its frequencies against transformers and against double precision, the fields of
// config.json, and the options that replace them.
#include "engine/base/json.h"
#include "models/config.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static sl_error err;

static void write_config(const char *rope, int head_dim, int n_ctx) {
    char path[512];
    snprintf(path, sizeof path, "%s/config.json", test_tmp());
    FILE *f = fopen(path, "w");
    CHECK(f);
    fprintf(f,
            "{\"model_type\":\"llama\",\"vocab_size\":64,\"hidden_size\":64,\"intermediate_size\":64,\"num_hidden_layers\":1,"
            "\"num_attention_heads\":4,\"head_dim\":%d,\"max_position_embeddings\":%d%s}",
            head_dim, n_ctx, rope);
    CHECK_INT(fclose(f), 0);
}

static sl_config config_of(const char *rope, int head_dim, int n_ctx) {
    sl_config c;
    write_config(rope, head_dim, n_ctx);
    CHECK_OK(sl_config_load(&SL_FOLDER(test_tmp()), &c, &err), err);
    return c;
}

// Both compute in fp32, with other orders and other powers: a few 2^-24 each. An exponent near 1 multiplies the error of the
// power by ln(theta), below 14.
static const double FP32_NEAR = 4e-6;

static void goldens(void) {
    json_t *root;
    CHECK_OK(sl_json_load("tests/goldens", "rope.json", 0, &root, &err), err);
    const json_t *cases = json_object_get(root, "cases");
    CHECK(json_array_size(cases) >= 11);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *item = json_array_get(cases, i), *want = json_object_get(item, "inv_freq");
        int head_dim = (int)json_integer_value(json_object_get(item, "head_dim"));
        char rope[512], *scaling = json_dumps(json_object_get(item, "rope_scaling"), JSON_COMPACT);
        float got[128];
        snprintf(rope, sizeof rope, ",\"rope_theta\":%g,\"rope_scaling\":%s",
                 json_number_value(json_object_get(item, "rope_theta")), scaling);
        free(scaling);
        sl_config c = config_of(rope, head_dim, (int)json_integer_value(json_object_get(item, "max_position_embeddings")));
        sl_config_rope(&c, got);
        CHECK_INT(json_array_size(want), head_dim / 2);
        for (int d = 0; d < head_dim / 2; d++) {
            double w = json_number_value(json_array_get(want, (size_t)d));
            if (!(fabs(got[d] / w - 1) <= FP32_NEAR)) FAIL("case %zu, pair %d: got %.9g, expected %.9g", i, d, got[d], w);
        }
        CHECK_NEAR(c.rope_attention, json_number_value(json_object_get(item, "attention_factor")), 1e-6);
    }
    json_decref(root);
}

// ---- double precision ----

// Turns of pair i within the original context: original * f / 2 pi.
static double turns_of(const sl_config *c, double freq) {
    return c->rope_original_ctx * freq / (2 * M_PI);
}

static double llama3_want(const sl_config *c, double freq) {
    double turns = turns_of(c, freq);
    if (turns < c->rope_low_freq) return freq / c->rope_factor;
    if (turns > c->rope_high_freq) return freq;
    double kept = (turns - c->rope_low_freq) / (c->rope_high_freq - c->rope_low_freq);
    return kept * freq + (1 - kept) * freq / c->rope_factor;
}

// The ramp goes from the last pair with at least beta_fast turns to the first pair with at most beta_slow turns, which this
// function finds by counting.
static double yarn_want(const sl_config *c, int i) {
    int low = 0, high = 0, last = c->head_dim - 1;
    for (int d = 0; d <= last; d++) {
        double turns = turns_of(c, pow(c->rope_theta, -2.0 * d / c->head_dim));
        if (turns >= c->rope_beta_fast) low = d;
        if (turns > c->rope_beta_slow) high = d + 1;
    }
    if (high > last) high = last;
    double freq = pow(c->rope_theta, -2.0 * i / c->head_dim), kept = 1 - (i - low) / (high - low + (high == low) * 0.001);
    kept = kept < 0 ? 0 : kept > 1 ? 1 : kept;
    return kept * freq + (1 - kept) * freq / c->rope_factor;
}

static void frequencies(void) {
    static const int dims[] = {16, 64, 80, 128}, contexts[] = {64, 4096, 32768};
    static const float thetas[] = {10000, 500000, 1e6f}, factors[] = {1, 2, 8, 64};
    int n_mixed[2] = {0};
    float got[64];
    for (int n = 0; n < 4 * 3 * 3 * 4; n++) {
        sl_config c = {.head_dim = dims[n % 4],
                       .rope_original_ctx = contexts[n / 4 % 3],
                       .rope_theta = thetas[n / 12 % 3],
                       .rope_factor = factors[n / 36],
                       .rope_low_freq = 1,
                       .rope_high_freq = 4,
                       .rope_beta_fast = 32,
                       .rope_beta_slow = 1,
                       .rope_truncate = 1};
        for (int type = SL_ROPE_PLAIN; type <= SL_ROPE_YARN; type++) {
            c.rope_type = (sl_rope_type)type;
            sl_config_rope(&c, got);
            for (int i = 0; i < c.head_dim / 2; i++) {
                double f = pow(c.rope_theta, -2.0 * i / c.head_dim), want = f;
                if (type == SL_ROPE_LINEAR) want = f / c.rope_factor;
                if (type == SL_ROPE_LLAMA3) want = llama3_want(&c, f);
                if (type == SL_ROPE_YARN) want = yarn_want(&c, i);
                // The share of f in a mix has an absolute error of FP32_NEAR, and f is up to `factor` times the result.
                int is_mixed = want < f * 0.999 && want > f / c.rope_factor * 1.001;
                if (!(fabs(got[i] / want - 1) <= FP32_NEAR * (type >= SL_ROPE_LLAMA3 && want < f ? 1 + c.rope_factor : 1)))
                    FAIL("type %d, head_dim %d, theta %g, context %d, factor %g, pair %d: got %.9g, expected %.9g", type,
                         c.head_dim, c.rope_theta, c.rope_original_ctx, c.rope_factor, i, got[i], want);
                if (type >= SL_ROPE_LLAMA3) n_mixed[type - SL_ROPE_LLAMA3] += is_mixed;
            }
        }
    }
    CHECK(n_mixed[0] > 100 && n_mixed[1] > 100);
}

// ---- config.json and options ----

#define YARN ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":32768}"
#define LLAMA3                                                                                                                 \
    ",\"rope_theta\":500000,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,"                \
    "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192}"

static void fields(void) {
    static const struct {
        const char *rope, *want;
    } cases[] = {
        {"", "theta 10000, plain"},
        {",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}", "theta 10000, linear, factor 2"},
        {YARN, "theta 10000, yarn, factor 4, original context 32768, attention factor 1.13862944, beta 32 and 1"},
        {",\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":2,\"rope_theta\":2e4,\"beta_fast\":8,\"beta_slow\":0.5}",
         "theta 20000, yarn, factor 2, original context 40960, attention factor 1.06931472, beta 8 and 0.5"},
        {",\"original_max_position_embeddings\":1024,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2,"
         "\"original_max_position_embeddings\":2048,\"truncate\":false,\"attention_factor\":1.5}",
         "theta 10000, yarn, factor 2, original context 1024, attention factor 1.5, beta 32 and 1, not truncated"},
        {",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":1,\"mscale\":1}",
         "theta 10000, yarn, factor 1, original context 40960, attention factor 1, beta 32 and 1"},
        {LLAMA3, "theta 500000, llama3, factor 8, original context 8192, frequency factors 1 and 4"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        sl_config c = config_of(cases[i].rope, 64, 40960);
        sl_config_describe_rope(&c, text, sizeof text);
        CHECK_STR(text, cases[i].want);
        CHECK(c.n_ctx == 40960 && c.n_trained == 40960 && c.n_scaled == 40960 && !c.is_rope_changed);
    }
}

static void options(void) {
    static const struct {
        const char *rope;
        sl_rope_options o;
        int n_ctx, n_scaled;
        const char *want;
    } cases[] = {
        {"", {0}, 4096, 4096, "theta 10000, plain"},
        {LLAMA3,
         {.theta = 1e6},
         4096,
         4096,
         "theta 1000000, llama3, factor 8, original context 8192, frequency factors 1 and 4"},
        {"", {.scaling = "none"}, 1 << 24, 4096, "theta 10000, plain"},
        {LLAMA3, {.scaling = "none", .theta = 3e4}, 1 << 24, 4096, "theta 30000, plain"},
        {"", {.scaling = "linear", .factor = 4}, 1 << 24, 16384, "theta 10000, linear, factor 4"},
        {",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}",
         {.scaling = "linear", .factor = 8},
         1 << 24,
         16384,
         "theta 10000, linear, factor 8"},
        {"",
         {.scaling = "yarn", .factor = 4},
         1 << 24,
         16384,
         "theta 10000, yarn, factor 4, original context 4096, attention factor 1.13862944, beta 32 and 1"},
        {"",
         {.scaling = "yarn", .factor = 4, .original_ctx = 512, .attention_factor = 1, .beta_fast = 64, .beta_slow = 2},
         1 << 24,
         4096,
         "theta 10000, yarn, factor 4, original context 512, attention factor 1, beta 64 and 2"},
        {YARN,
         {.scaling = "yarn"},
         1 << 24,
         131072,
         "theta 10000, yarn, factor 4, original context 32768, attention factor 1.13862944, beta 32 and 1"},
        {YARN,
         {.scaling = "yarn", .factor = 8},
         1 << 24,
         262144,
         "theta 10000, yarn, factor 8, original context 32768, attention factor 1.20794415, beta 32 and 1"},
        {LLAMA3,
         {.scaling = "llama3", .factor = 32},
         1 << 24,
         16384,
         "theta 500000, llama3, factor 32, original context 8192, frequency factors 1 and 4"},
        {LLAMA3,
         {.scaling = "llama3", .factor = 4, .low_freq_factor = 2, .high_freq_factor = 8},
         1 << 24,
         4096,
         "theta 500000, llama3, factor 4, original context 8192, frequency factors 2 and 8"},
        {"",
         {.scaling = "llama3", .factor = 8},
         1 << 24,
         32768,
         "theta 10000, llama3, factor 8, original context 4096, frequency factors 1 and 4"},
        {LLAMA3,
         {.scaling = "yarn", .factor = 2},
         1 << 24,
         8192,
         "theta 500000, yarn, factor 2, original context 4096, attention factor 1.06931472, beta 32 and 1"},
        {"", {.scaling = "linear", .factor = 1e6}, 1 << 24, 1 << 24, "theta 10000, linear, factor 1000000"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        sl_config c = config_of(cases[i].rope, 64, 4096);
        CHECK_OK(sl_config_change_rope(&c, &cases[i].o, &err), err);
        sl_config_describe_rope(&c, text, sizeof text);
        CHECK_STR(text, cases[i].want);
        CHECK_INT(c.n_ctx, cases[i].n_ctx);
        CHECK_INT(c.n_scaled, cases[i].n_scaled);
        CHECK_INT(c.n_trained, 4096);
        CHECK_INT(c.is_rope_changed, cases[i].o.scaling || cases[i].o.theta);
    }
}

static void refused_options(void) {
    static const struct {
        sl_rope_options o;
        const char *part;
    } cases[] = {
        {{.scaling = "dynamic"}, "rope_scaling dynamic: expected none, linear, llama3 or yarn"},
        {{.scaling = "yarn"}, "rope_scaling yarn needs rope_scale"},
        {{.scaling = "linear", .factor = 0.5}, "rope_scale 0.5: expected 1 to"},
        {{.scaling = "linear", .factor = NAN}, "rope_scale nan: expected 1 to"},
        {{.theta = 0.5}, "rope_theta 0.5: expected 1 to"},
        {{.factor = 4}, "rope_scale 4 needs rope_scaling linear, llama3 or yarn"},
        {{.original_ctx = 4096}, "rope_original_ctx 4096 needs rope_scaling llama3 or yarn"},
        {{.scaling = "none", .factor = 4}, "rope_scale 4 needs rope_scaling linear, llama3 or yarn"},
        {{.scaling = "linear", .factor = 4, .original_ctx = 4096}, "rope_original_ctx 4096 needs rope_scaling llama3 or yarn"},
        {{.scaling = "yarn", .factor = 4, .low_freq_factor = 1}, "rope_low_freq_factor 1 needs rope_scaling llama3"},
        {{.scaling = "yarn", .factor = 4, .high_freq_factor = 1}, "rope_high_freq_factor 1 needs rope_scaling llama3"},
        {{.scaling = "llama3", .factor = 4, .attention_factor = 1}, "yarn_attention_factor 1 needs rope_scaling yarn"},
        {{.scaling = "llama3", .factor = 4, .beta_fast = 1}, "yarn_beta_fast 1 needs rope_scaling yarn"},
        {{.scaling = "llama3", .factor = 4, .beta_slow = 1}, "yarn_beta_slow 1 needs rope_scaling yarn"},
        {{.scaling = "llama3", .factor = 4, .low_freq_factor = 4}, "expected more than rope_low_freq_factor, which is 4"},
        {{.scaling = "yarn", .factor = 4, .beta_fast = 1}, "expected more than yarn_beta_slow, which is 1"},
        {{.scaling = "yarn", .factor = 4, .theta = 1}, "rope_theta 1: rope_scaling yarn needs more than 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sl_config c = config_of("", 64, 4096);
        CHECK_ERR(sl_config_change_rope(&c, &cases[i].o, &err), err, SL_ERR_ARG, cases[i].part);
    }
}

static const test_case cases[] = {
    {"goldens", 0, goldens}, {"frequencies", 0, frequencies},         {"fields", 0, fields},
    {"options", 0, options}, {"refused-options", 0, refused_options}, {0},
};
const test_suite suite_rope = {"rope", cases};
