// tests/models/test_rope.c - scaled RoPE: its frequencies against transformers and against double precision, the fields of
// config.json, and the options that replace them.
#include "base/json.h"
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

// Pair i as a real number, whose frequency theta^(-2 i / d) makes this many turns.
static double pair_with(const sl_config *c, double turns) {
    double low = -1e4, high = 1e4;
    for (int i = 0; i < 200; i++) {
        double middle = (low + high) / 2;
        if (log2(turns_of(c, 1)) - 2 * middle / c->head_dim * log2(c->rope_theta) > log2(turns))
            low = middle;
        else
            high = middle;
    }
    return low;
}

// The kept share falls from 1 at the pair of beta_fast turns to 0 at the pair of beta_slow turns. The function finds both pairs
// by halving an interval. *width: between the two pairs
static double yarn_want(const sl_config *c, int i, double *width) {
    double low = pair_with(c, c->rope_beta_fast), high = pair_with(c, c->rope_beta_slow);
    if (c->rope_truncate) low = floor(low), high = ceil(high);
    if (low < 0) low = 0;
    if (high > c->head_dim - 1) high = c->head_dim - 1;
    *width = high == low ? 0.001 : high - low;
    double freq = pow(c->rope_theta, -2.0 * i / c->head_dim), kept = 1 - (i - low) / *width;
    kept = kept < 0 ? 0 : kept > 1 ? 1 : kept;
    return kept * freq + (1 - kept) * freq / c->rope_factor;
}

static sl_config random_rope(uint64_t *seed) {
    static const int dims[] = {16, 64, 80, 128}, contexts[] = {64, 4096, 32768};
    sl_config c = {.head_dim = dims[(int)(test_uniform(seed) * 4)],
                   .rope_original_ctx = contexts[(int)(test_uniform(seed) * 3)] + (int)(test_uniform(seed) * 100),
                   .rope_theta = (float)exp(log(1000) + test_uniform(seed) * log(1e4)),
                   .rope_factor = test_uniform(seed) < 0.1 ? 1 : (float)(1 + 63 * test_uniform(seed)),
                   .rope_low_freq = (float)(0.5 + test_uniform(seed)),
                   .rope_high_freq = (float)(2 + 4 * test_uniform(seed)),
                   .rope_beta_fast = (float)(8 + 56 * test_uniform(seed)),
                   .rope_beta_slow = (float)(0.5 + 3 * test_uniform(seed)),
                   .rope_attention = 1,
                   .rope_truncate = test_uniform(seed) < 0.5};
    for (int i = 0; i < c.head_dim / 2; i++) c.rope_factors[i] = (float)(0.5 + 8 * test_uniform(seed));
    return c;
}

// Every formula against double precision.
static void frequencies(void) {
    uint64_t seed = test_seed;
    int n_mixed[2] = {0};
    float got[64];
    for (int n = 0; n < 400; n++) {
        sl_config c = random_rope(&seed);
        for (int type = SL_ROPE_PLAIN; type <= SL_ROPE_FACTORS; type++) {
            c.rope_type = (sl_rope_type)type;
            sl_config_rope(&c, got);
            for (int i = 0; i < c.head_dim / 2; i++) {
                double f = pow(c.rope_theta, -2.0 * i / c.head_dim), want = f, width = 1;
                if (type == SL_ROPE_LINEAR) want = f / c.rope_factor;
                if (type == SL_ROPE_FACTORS) want = f / c.rope_factors[i];
                if (type == SL_ROPE_LLAMA3) want = llama3_want(&c, f);
                if (type == SL_ROPE_YARN) want = yarn_want(&c, i, &width);
                // The share of f in a mix has an absolute error of FP32_NEAR, and f is up to `factor` times the result. yarn's
                // share is the quotient of a pair, at most d, and the width, and a pair has the error d 2^-24.
                int is_mix = type == SL_ROPE_LLAMA3 || type == SL_ROPE_YARN;
                int is_mixed = want < f * 0.999 && want > f / c.rope_factor * 1.001;
                double tolerance = FP32_NEAR * (is_mix && want < f ? 1 + c.rope_factor * (1 + c.head_dim / width / 64) : 1);
                if (!(fabs(got[i] / want - 1) <= tolerance))
                    FAIL("type %d, head_dim %d, theta %g, context %d, factor %g, pair %d: got %.9g, expected %.9g", type,
                         c.head_dim, c.rope_theta, c.rope_original_ctx, c.rope_factor, i, got[i], want);
                if (is_mix) n_mixed[type == SL_ROPE_YARN] += is_mixed;
            }
        }
    }
    CHECK(n_mixed[0] > 100 && n_mixed[1] > 100);
}

// Equal texts mean equal frequencies: a change of a number that the type reads changes the text, another change does not.
static void descriptions(void) {
    static const unsigned every = ~0u, llama3 = 1u << SL_ROPE_LLAMA3, yarn = 1u << SL_ROPE_YARN,
                          scaled = llama3 | yarn | 1u << SL_ROPE_LINEAR;
    uint64_t seed = test_seed;
    for (int type = SL_ROPE_PLAIN; type <= SL_ROPE_FACTORS; type++) {
        sl_config own = random_rope(&seed), c;
        own.rope_type = (sl_rope_type)type;
        char before[256], after[256];
        sl_config_describe_rope(&own, before, sizeof before);
        struct {
            float *real;
            int *whole;
            unsigned types;
        } numbers[] = {{&c.rope_theta, NULL, every},
                       {&c.rope_factor, NULL, scaled},
                       {&c.rope_low_freq, NULL, llama3},
                       {&c.rope_high_freq, NULL, llama3},
                       {NULL, &c.rope_original_ctx, llama3 | yarn},
                       {&c.rope_beta_fast, NULL, yarn},
                       {&c.rope_beta_slow, NULL, yarn},
                       {&c.rope_attention, NULL, yarn},
                       {NULL, &c.rope_truncate, yarn}};
        for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
            c = own;
            if (numbers[i].real)
                *numbers[i].real = nextafterf(*numbers[i].real, 1e9f);
            else
                *numbers[i].whole ^= 1;
            sl_config_describe_rope(&c, after, sizeof after);
            if (!strcmp(before, after) != !(numbers[i].types >> type & 1)) FAIL("number %zu: %s and %s", i, before, after);
        }
        for (int i = 0; i < own.head_dim / 2; i++) {
            c = own;
            c.rope_factors[i] = nextafterf(c.rope_factors[i], 1e9f);
            sl_config_describe_rope(&c, after, sizeof after);
            CHECK_INT(!strcmp(before, after), type != SL_ROPE_FACTORS);
        }
    }
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
        {",\"rope_theta\":30000,\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":20000}", "theta 20000, plain"},
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

// YaRN's factor of cosine and sine: sqrt(1/t) = 0.1 m ln(factor) + 1, or the quotient of two such numbers with mscale and
// mscale_all_dim, unless attention_factor gives it.
static void attention_factors(void) {
    static const double mscales[] = {0, 0.5, 0.707, 1, 2}, factors[] = {1, 1.5, 4, 40}, given[] = {0, 0.25, 1.25};
    for (int i = 0; i < 5 * 5 * 4 * 3; i++) {
        double m = mscales[i % 5], all = mscales[i / 5 % 5], factor = factors[i / 25 % 4], a = given[i / 100];
        double of_m = 0.1 * m * log(factor) + 1, of_all = 0.1 * all * log(factor) + 1, want = 0.1 * log(factor) + 1;
        char rope[512];
        int n = snprintf(rope, sizeof rope, ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":%g", factor);
        if (m) n += snprintf(rope + n, sizeof rope - n, ",\"mscale\":%g", m);
        if (all) n += snprintf(rope + n, sizeof rope - n, ",\"mscale_all_dim\":%g", all);
        if (a) n += snprintf(rope + n, sizeof rope - n, ",\"attention_factor\":%g", a);
        snprintf(rope + n, sizeof rope - n, "}");
        if (m && all) want = of_m / of_all;
        CHECK_NEAR(config_of(rope, 64, 4096).rope_attention, a ? a : want, 1e-6);
    }
}

// Each field of a scaling with each type: a type reads its own fields, and another field may only have the neutral value 1.
static void fields_of_types(void) {
    enum { DEFAULT = 1, LINEAR = 2, LLAMA3_TYPE = 4, YARN_TYPE = 8 };
    static const char *const types[] = {"\"rope_type\":\"default\"", "\"rope_type\":\"linear\",\"factor\":2",
                                        "\"rope_type\":\"llama3\",\"factor\":2,\"low_freq_factor\":2,\"high_freq_factor\":3",
                                        "\"rope_type\":\"yarn\",\"factor\":2,\"beta_fast\":3,\"beta_slow\":2"};
    static const struct {
        const char *name;
        int types;
    } rows[] = {{"factor", LINEAR | LLAMA3_TYPE | YARN_TYPE},
                {"low_freq_factor", LLAMA3_TYPE},
                {"high_freq_factor", LLAMA3_TYPE},
                {"attention_factor", YARN_TYPE},
                {"beta_fast", YARN_TYPE},
                {"beta_slow", YARN_TYPE},
                {"mscale", YARN_TYPE},
                {"mscale_all_dim", YARN_TYPE},
                {"original_max_position_embeddings", ~0},
                {"rope_theta", ~0},
                {"short_factor", 0}};
    for (int type = 0; type < 4; type++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            for (int value = 1; value < 3; value++) {
                sl_config c;
                char rope[512], name[64];
                snprintf(name, sizeof name, "\"%s\"", rows[i].name);
                if (strstr(types[type], name)) continue;
                snprintf(rope, sizeof rope, ",\"rope_scaling\":{%s,%s:%d}", types[type], name, value);
                write_config(rope, 64, 4096);
                int rc = sl_config_load(&SL_FOLDER(test_tmp()), &c, &err), reads = rows[i].types >> type & 1;
                if (reads && type == 3 && !strcmp(rows[i].name, "rope_theta") && value == 1) continue; // yarn needs more than 1
                if (rc != (reads || value == 1 ? 0 : SL_ERR_UNSUPPORTED)) FAIL("%s: returned %d", rope, rc);
            }
}

static void check_load(int head_dim, const char *rope, int want) {
    sl_config c;
    write_config(rope, head_dim, 4096);
    int rc = sl_config_load(&SL_FOLDER(test_tmp()), &c, &err);
    if (rc != want) FAIL("%s: returned %d, expected %d", rope, rc, want);
}

// Factors of frequencies: one for each pair, in a range.
static void lists_of_factors(void) {
    static const char *const values[] = {"1", "1e-6", "1e6", "9e-7", "1.1e6", "0", "-1", "null"};
    for (int n = 7; n < 10; n++)
        for (int i = 0; i < 8; i++) {
            char rope[300] = ",\"rope_scaling\":{\"rope_type\":\"frequency_factors\",\"factors\":[";
            for (int k = 0; k < n; k++) sprintf(rope + strlen(rope), "%s%s", k ? "," : "", k == 5 ? values[i] : "2");
            strcat(rope, "]}");
            check_load(16, rope, n == 8 && i < 3 ? 0 : SL_ERR_FORMAT);
        }
}

// Two numbers that must be in order, and two thetas that must be one.
static void orders(void) {
    for (int low = 2; low < 5; low++) {
        char text[300];
        snprintf(text, sizeof text,
                 ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":2,\"low_freq_factor\":%d,\"high_freq_factor\":3}",
                 low);
        check_load(64, text, low < 3 ? 0 : SL_ERR_FORMAT);
        snprintf(text, sizeof text, ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2,\"beta_fast\":3,\"beta_slow\":%d}",
                 low);
        check_load(64, text, low < 3 ? 0 : SL_ERR_FORMAT);
        snprintf(text, sizeof text,
                 ",\"rope_theta\":3000,\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2},\"rope_parameters\":{"
                 "\"rope_theta\":%d000}",
                 low);
        check_load(64, text, low == 3 ? 0 : SL_ERR_FORMAT);
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
    {"goldens", 0, goldens},
    {"frequencies", 0, frequencies},
    {"fields", 0, fields},
    {"options", 0, options},
    {"refused-options", 0, refused_options},
    {"descriptions", 0, descriptions},
    {"fields-of-types", 0, fields_of_types},
    {"orders", 0, orders},
    {"lists-of-factors", 0, lists_of_factors},
    {"attention-factors", 0, attention_factors},
    {0},
};
const test_suite suite_rope = {"rope", cases};
