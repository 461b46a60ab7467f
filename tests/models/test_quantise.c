// tests/models/test_quantise.c - weights that are rounded when they are loaded: the error of each number, the choice of the
// scale, and whole models against models that hold the rounded numbers in fp32.
#include "models/quantise.h"
#include "engine/engine.h"
#include "models/weights.h"
#include "tests/support/models.h"
#include "tests/support/tensor_file.h"
#include "tests/support/threads.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static sl_error err;

// ---- the options ----

static void options(void) {
    static const struct {
        const char *text;
        sl_format format;
        int group;
    } good[] = {{NULL, SL_BF16, 128},   {"fp8", SL_FP8, 128},           {"int8", SL_INT8, 128},
                {"int4", SL_INT4, 128}, {"int4:group=32", SL_INT4, 32}, {"int4:group=16", SL_INT4, 16}};
    static const char *const bad[] = {
        "",     "int5", "int4:group=", "int4:group=0", "int4:group=24", "int8:group=32", "int4:group=32x", "int4:group=-16",
        "INT4", "bf16"};
    sl_quantise_specs s;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        CHECK_OK(sl_quantise_parse(&(sl_quantise_texts){.weights = good[i].text}, &s, &err), err);
        CHECK(s.linear.format == good[i].format && s.linear.group == good[i].group);
        CHECK(s.head.format == (s.linear.format == SL_INT4 ? SL_INT8 : SL_BF16) && s.embedding.format == SL_BF16);
        CHECK_OK(sl_quantise_parse(&(sl_quantise_texts){.head = good[i].text}, &s, &err), err);
        CHECK(s.head.format == good[i].format && s.head.group == good[i].group && s.linear.format == SL_BF16);
        CHECK_OK(sl_quantise_parse(&(sl_quantise_texts){.embedding = good[i].text}, &s, &err), err);
        CHECK(s.embedding.format == good[i].format && s.embedding.group == good[i].group && s.head.format == SL_BF16);
        CHECK(sl_quantise_is_plain(&s) == !good[i].text);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_ERR(sl_quantise_parse(&(sl_quantise_texts){.weights = bad[i]}, &s, &err), err, SL_ERR_ARG,
                  "expected fp8, int8, int4 or int4:group=N");
    CHECK_OK(sl_quantise_parse(&(sl_quantise_texts){.weights = "int4", .head = "bf16", .embedding = "bf16"}, &s, &err), err);
    CHECK(s.linear.format == SL_INT4 && s.head.format == SL_BF16 && s.embedding.format == SL_BF16);
    CHECK_ERR(sl_quantise_parse(&(sl_quantise_texts){.head = "f16"}, &s, &err), err, SL_ERR_ARG,
              "weights_head f16: expected bf16, fp8, int8, int4 or int4:group=N");
    CHECK_ERR(sl_quantise_parse(&(sl_quantise_texts){.embedding = "q8_0"}, &s, &err), err, SL_ERR_ARG,
              "weights_embedding q8_0: expected bf16, fp8");
    CHECK_OK(sl_quantise_parse(NULL, &s, &err), err);
    CHECK(sl_quantise_is_plain(&s));
}

// Formats that give other numbers have other hashes, and what changes nothing keeps the hash.
static void hashes(void) {
    static const sl_quantise_texts texts[] = {{0},
                                              {.weights = "int8"},
                                              {.weights = "int4"},
                                              {.weights = "int4:group=32"},
                                              {.weights = "int4", .head = "bf16"},
                                              {.weights = "int4", .head = "int4"},
                                              {.weights = "int4", .head = "int4:group=32"},
                                              {.weights = "int4", .embedding = "int4"},
                                              {.head = "int8"},
                                              {.embedding = "int8"}};
    enum { N = sizeof texts / sizeof *texts };
    uint64_t got[N];
    sl_quantise_specs s;
    for (int i = 0; i < N; i++) {
        CHECK_OK(sl_quantise_parse(&texts[i], &s, &err), err);
        got[i] = sl_quantise_hash(&s, 47);
        for (int j = 0; j < i; j++)
            if (got[i] == got[j]) FAIL("formats %d and %d have one hash", i, j);
    }
    CHECK(got[0] == 47);
}

// ---- numbers ----

typedef struct rounded {
    sl_weight plain, w;
    float *x; // the plain numbers
} rounded;

static rounded round_normals(sl_format f, int n_rows, int n_cols, int group, float outlier) {
    rounded r = {.x = malloc((size_t)n_rows * (size_t)n_cols * sizeof *r.x)};
    uint64_t seed = test_seed;
    for (size_t i = 0; i < (size_t)n_rows * (size_t)n_cols; i++) r.x[i] = (float)test_normal(&seed) * 0.02f;
    for (int i = 0; i < n_rows; i++) r.x[(size_t)i * (size_t)n_cols + (size_t)(i * 7 % n_cols)] += outlier * (i % 2 ? 1 : -1);
    for (int i = 0; i < n_cols; i++) r.x[i] = 0; // a row of zeros
    r.plain = (sl_weight){.data = r.x, .format = SL_F32, .n_rows = n_rows, .n_cols = n_cols, .name = "w"};
    r.w = (sl_weight){.format = f, .n_rows = n_rows, .n_cols = n_cols, .group = group, .scale_rows = 1};
    r.w.scale = malloc(sl_weight_scales(&r.w) * sizeof *r.w.scale);
    r.w.data = malloc((size_t)n_rows * sl_weight_row_bytes(&r.w));
    CHECK_OK(sl_quantise(&r.plain, &r.w, &err), err);
    return r;
}

static void release(rounded *r) {
    free(r->x), free((void *)r->w.data), free((void *)r->w.scale);
}

// The sum of squared errors of n numbers, with the scale that gives the largest number the largest magnitude of the format.
static double error_of_plain_scale(sl_format f, const float *x, int n) {
    double largest = 0, error = 0;
    for (int i = 0; i < n; i++) largest = fabs(x[i]) > largest ? fabs(x[i]) : largest;
    double scale = largest / (f == SL_FP8 ? 448 : f == SL_INT8 ? 127 : 7);
    for (int i = 0; i < n && largest > 0; i++) {
        double q = f == SL_FP8 ? sl_fp8_to_f32(sl_f32_to_fp8((float)(x[i] / scale))) : rint(x[i] / scale);
        error += (x[i] - scale * q) * (x[i] - scale * q);
    }
    return error;
}

// The number is the one nearest to x among those of its scale, and the scale is at least as good as the plain one.
static void check_numbers(const rounded *r) {
    int n = r->w.n_cols;
    float *got = malloc((size_t)n * sizeof *got);
    double all = 0, all_plain = 0;
    for (int row = 0; row < r->w.n_rows; row++) {
        const float *x = r->x + (size_t)row * (size_t)n;
        sl_weight_widen(&r->w, (size_t)row, got);
        for (int from = 0; from < n; from += r->w.group) {
            int end = from + r->w.group < n ? from + r->w.group : n;
            double scale = r->w.scale[row * ((n + r->w.group - 1) / r->w.group) + from / r->w.group];
            CHECK(sl_bf16_to_f32(sl_f32_to_bf16((float)scale)) == (float)scale);
            for (int i = from; i < end; i++) {
                double y = x[i] / scale, q = got[i] / scale, half = r->w.format == SL_INT4 ? 8 : 128;
                double most = y > half - 1 ? y - (half - 1) : y < -half ? -half - y : 0.5;
                if (r->w.format == SL_FP8) most = fabs(y) > 448 ? fabs(y) - 448 : fmax(fabs(y) / 16, 0x1p-10);
                CHECK_NEAR(q, y, most + 1e-5 * fabs(y));
                all += (x[i] - got[i]) * (x[i] - got[i]);
            }
            all_plain += error_of_plain_scale(r->w.format, x + from, end - from);
        }
    }
    if (!(all <= all_plain * 1.002)) // a scale of fp8 is rounded to bf16 by up to 2^-9, and has few candidates
        FAIL("%s: error %g, plain %g", sl_formats[r->w.format].name, all, all_plain);
    if (r->w.format == SL_INT4 && !(all < 0.9 * all_plain)) FAIL("int4: error %g, plain %g", all, all_plain);
    free(got);
}

static void numbers(void) {
    static const struct {
        sl_format format;
        int n_cols, group;
    } cases[] = {{SL_FP8, 250, 250},  {SL_INT8, 250, 250}, {SL_INT4, 256, 128}, {SL_INT4, 256, 32},
                 {SL_INT4, 576, 128}, {SL_INT4, 33, 33},   {SL_INT4, 80, 16}};
    test_threads(2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int outlier = 0; outlier < 2; outlier++) {
            rounded r = round_normals(cases[i].format, 21, cases[i].n_cols, cases[i].group, outlier ? 0.3f : 0);
            check_numbers(&r);
            release(&r);
        }
}

static void not_finite(void) {
    for (int i = 0; i < 2; i++) {
        rounded r = round_normals(SL_INT4, 4, 64, 32, 0);
        r.x[131] = i ? INFINITY : NAN;
        CHECK_ERR(sl_quantise(&r.plain, &r.w, &err), err, SL_ERR_FORMAT, "tensor w: a number is not finite");
        release(&r);
    }
}

// ---- models ----

enum { MOST_TENSORS = 64 };

// Writes the model of `dir` with the numbers of `model` in fp32 to the folder of the case.
static void write_widened(const char *dir, const sl_model *model) {
    const sl_model_weights *w = sl_model_weight_list(model);
    static test_tensor tensors[MOST_TENSORS];
    static char shapes[MOST_TENSORS][40];
    int n = 0;
    for (int i = 0; i < w->n_tensors; i++) {
        const sl_weight *x = w->tensors[i].weight;
        if (w->tensors[i].same_as) continue;
        size_t n_cols = (size_t)x->n_cols, size = (size_t)x->n_rows * n_cols * sizeof(float);
        float *wide = malloc(size);
        for (int r = 0; r < x->n_rows; r++) sl_weight_widen(x, (size_t)r, wide + (size_t)r * n_cols);
        CHECK(n < MOST_TENSORS);
        if (w->tensors[i].shape.n_rows)
            snprintf(shapes[n], sizeof shapes[n], "[%d,%d]", x->n_rows, x->n_cols);
        else
            snprintf(shapes[n], sizeof shapes[n], "[%d]", x->n_cols);
        tensors[n] =
            (test_tensor){.name = w->tensors[i].shape.name, .dtype = "F32", .shape = shapes[n], .data = wide, .n_bytes = size};
        n++;
    }
    test_write_model(dir, tensors, n);
    for (int i = 0; i < n; i++) free((void *)tensors[i].data);
}

enum { SESSIONS = 3, STEPS = 2 };

// Logits after prefills and steps of a batch: [SESSIONS][n_vocab]. Ends the use of the model.
static float *run_batch(sl_model *model) {
    static const int lengths[SESSIONS] = {130, 7, 41};
    sl_engine *engine;
    sl_session *batch[SESSIONS];
    int n_vocab = sl_model_n_vocab(model);
    float *out = malloc(SESSIONS * (size_t)n_vocab * sizeof *out);
    const sl_engine_options o = {.n_ctx = 256, .n_sequences = SESSIONS, .n_threads = 2};
    CHECK_OK(sl_engine_new(model, &o, &engine, &err), err);
    for (int i = 0; i < SESSIONS; i++) {
        int32_t *ids = test_ids(lengths[i], n_vocab, test_seed + (uint64_t)i);
        CHECK_OK(sl_session_new(engine, (uint32_t)i, &batch[i], &err), err);
        CHECK_OK(sl_prefill(batch[i], ids, lengths[i], NULL, &err), err);
        free(ids);
    }
    for (int i = 0; i < STEPS; i++) CHECK_OK(sl_decode(batch, SESSIONS, (const int32_t[]){i, i + 3, i + 5}, &err), err);
    for (int i = 0; i < SESSIONS; i++) {
        memcpy(out + (size_t)i * (size_t)n_vocab, sl_session_logits(batch[i], &err), (size_t)n_vocab * sizeof *out);
        sl_session_free(batch[i]);
    }
    sl_engine_free(engine), sl_model_free(model);
    return out;
}

static sl_model *load_as(const sl_model_options *formats, const char *dir) {
    sl_model *model;
    sl_model_options o = *formats;
    o.flags = SL_MODEL_NO_TOKENIZER;
    CHECK_OK(sl_model_load(dir, &o, &model, &err), err);
    return model;
}

static sl_model *load_with(const char *dir, const char *weights, const char *activations) {
    return load_as(&(sl_model_options){.weights = weights, .activations = activations}, dir);
}

static sl_model *load_formats(const char *dir, const char *weights, const char *head, const char *embedding) {
    const sl_model_options o = {
        .weights = weights, .weights_head = head, .weights_embedding = embedding, .activations = "float"};
    return load_as(&o, dir);
}

static sl_model *load(const char *dir, const char *weights) {
    return load_with(dir, weights, "float");
}

// A rounded model gives the bits of the model that holds the rounded numbers in fp32.
static void models(void) {
    static const char *const formats[] = {"fp8", "int8", "int4", "int4:group=32"};
    static const char *const dirs[] = {"tests/goldens/gqa", "tests/goldens/tied", "tests/goldens/f32"};
    for (int d = 0; d < 3; d++)
        for (int f = 0; f < 4; f++) {
            sl_model *model = load(dirs[d], formats[f]);
            size_t n_vocab = (size_t)sl_model_n_vocab(model), size = SESSIONS * n_vocab * sizeof(float);
            write_widened(dirs[d], model);
            float *got = run_batch(model), *want = run_batch(load(test_tmp(), NULL)), *plain = run_batch(load(dirs[d], NULL));
            if (memcmp(got, want, size)) FAIL("%s, %s: other bits than with fp32 weights", dirs[d], formats[f]);
            CHECK(memcmp(got, plain, size) != 0);
            free(got), free(want), free(plain);
        }
}

// The same for a head and an embedding with formats of their own.
static void own_formats(void) {
    static const struct {
        const char *dir, *weights, *head, *embedding;
    } cases[] = {{"tests/goldens/gqa", NULL, "int4:group=32", "int8"},
                 {"tests/goldens/gqa", "int8", "fp8", "int4"},
                 {"tests/goldens/f32", "int4", "bf16", "fp8"},
                 {"tests/goldens/tied", NULL, "int4", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sl_model *model = load_formats(cases[i].dir, cases[i].weights, cases[i].head, cases[i].embedding);
        size_t size = SESSIONS * (size_t)sl_model_n_vocab(model) * sizeof(float);
        write_widened(cases[i].dir, model);
        float *got = run_batch(model), *want = run_batch(load(test_tmp(), NULL)), *plain = run_batch(load(cases[i].dir, NULL));
        if (memcmp(got, want, size)) FAIL("case %zu: other bits than with fp32 weights", i);
        CHECK(memcmp(got, plain, size) != 0);
        free(got), free(want), free(plain);
    }
}

static const sl_weight *find(const sl_model *model, const char *name) {
    const sl_model_weights *w = sl_model_weight_list(model);
    for (int i = 0; i < w->n_tensors; i++)
        if (!strcmp(w->tensors[i].shape.name, name)) return w->tensors[i].weight;
    FAIL("no tensor %s", name);
}

// The embeddings stay, int4 makes the head int8, and a tied head makes the embeddings int8. Head and embeddings may have
// formats of their own.
static void formats_of_tensors(void) {
    static const struct {
        const char *dir, *weights, *own_head, *own_embedding;
        sl_format embed, head, up, norm;
    } cases[] = {
        {"tests/goldens/gqa", "int4", "bf16", NULL, SL_BF16, SL_BF16, SL_INT4, SL_BF16},
        {"tests/goldens/gqa", "int8", "int4:group=32", "fp8", SL_FP8, SL_INT4, SL_INT8, SL_BF16},
        {"tests/goldens/gqa", NULL, NULL, "int4", SL_INT4, SL_BF16, SL_BF16, SL_BF16},
        {"tests/goldens/tied", NULL, "fp8", NULL, SL_FP8, SL_FP8, SL_BF16, SL_BF16},
        {"tests/goldens/tied", "int4", "bf16", NULL, SL_BF16, SL_BF16, SL_INT4, SL_BF16},
        {"tests/goldens/gqa", "fp8", NULL, NULL, SL_BF16, SL_BF16, SL_FP8, SL_BF16},
        {"tests/goldens/gqa", "int8", NULL, NULL, SL_BF16, SL_BF16, SL_INT8, SL_BF16},
        {"tests/goldens/gqa", "int4", NULL, NULL, SL_BF16, SL_INT8, SL_INT4, SL_BF16},
        {"tests/goldens/tied", "int8", NULL, NULL, SL_BF16, SL_BF16, SL_INT8, SL_BF16},
        {"tests/goldens/tied", "int4", NULL, NULL, SL_INT8, SL_INT8, SL_INT4, SL_BF16},
        {"tests/goldens/f32", "int4:group=32", NULL, NULL, SL_F32, SL_INT8, SL_INT4, SL_F32},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sl_model *model = load_formats(cases[i].dir, cases[i].weights, cases[i].own_head, cases[i].own_embedding);
        CHECK_INT(find(model, "model.embed_tokens.weight")->format, cases[i].embed);
        CHECK_INT(find(model, "lm_head.weight")->format, cases[i].head);
        CHECK_INT(find(model, "model.layers.1.mlp.up_proj.weight")->format, cases[i].up);
        CHECK_INT(find(model, "model.layers.0.input_layernorm.weight")->format, cases[i].norm);
        CHECK(find(model, "lm_head.weight")->data != NULL);
        sl_model_free(model);
    }
    sl_model *model = NULL;
    const sl_model_options o = {.flags = SL_MODEL_NO_TOKENIZER, .weights_embedding = "int8"};
    CHECK_ERR(sl_model_load("tests/goldens/tied", &o, &model, &err), err, SL_ERR_ARG,
              "weights_embedding int8: this model's embedding is tied to its head; weights_head gives the format of both");
}

// 1: the models give equal bits. Frees both.
static int are_equal(sl_model *a, sl_model *b) {
    size_t size = SESSIONS * (size_t)sl_model_n_vocab(a) * sizeof(float);
    float *x = run_batch(a), *y = run_batch(b);
    int equal = !memcmp(x, y, size);
    free(x), free(y);
    return equal;
}

static void activations(void) {
    static const char dir[] = "tests/goldens/gqa";
    sl_model *model;
    sl_model_options o = {.flags = SL_MODEL_NO_TOKENIZER, .activations = "int8"};
    CHECK(are_equal(load_with(dir, "int4", NULL), load_with(dir, "int4", "int16")));
    CHECK(are_equal(load_with(dir, "int8", "auto"), load_with(dir, "int8", "int16")));
    CHECK(!are_equal(load_with(dir, "int4", "float"), load_with(dir, "int4", "int16")));
    CHECK(!are_equal(load_with(dir, "int4", "int16"), load_with(dir, "int4", "int8")));
    CHECK(!are_equal(load_with(dir, "int8", "float"), load_with(dir, "int8", "int8")));
    CHECK(are_equal(load_with(dir, NULL, "auto"), load_with(dir, NULL, "float")));
    CHECK_ERR(sl_model_load(dir, &o, &model, &err), err, SL_ERR_ARG, "has none");
    o.activations = "int9";
    CHECK_ERR(sl_model_load(dir, &o, &model, &err), err, SL_ERR_ARG,
              "activations int9: expected auto, float, int16, int8 or fp8");
    o.activations = "fp8";
    CHECK_ERR(sl_model_load(dir, &o, &model, &err), err, SL_ERR_ARG, "activations fp8: expected weights of fp8");
    CHECK_INT(find(model = load_with(dir, "fp8", "fp8"), "model.layers.1.mlp.up_proj.weight")->inputs, SL_INPUTS_ROWS);
    CHECK_INT(find(model, "lm_head.weight")->inputs, SL_INPUTS_PLAIN);
    sl_model_free(model);
    CHECK_INT(find(model = load_with(dir, "fp8", NULL), "model.layers.1.mlp.up_proj.weight")->inputs, SL_INPUTS_PLAIN);
    sl_model_free(model);
}

// Random weights are rounded one after the other. Threads and engines do not change them.
static void dummies(void) {
    sl_model *a, *b;
    const sl_model_options o = {.flags = SL_MODEL_NO_TOKENIZER | SL_MODEL_DUMMY, .weights = "int4:group=32"};
    CHECK_OK(sl_model_load("tests/goldens/gqa", &o, &a, &err), err);
    CHECK_OK(sl_model_load("tests/goldens/gqa", &o, &b, &err), err);
    size_t before = sl_model_decode_bytes(a);
    CHECK_OK(sl_model_materialise(a, 1, NULL, NULL, &err), err);
    CHECK_OK(sl_model_materialise(b, 3, NULL, NULL, &err), err);
    CHECK_INT(sl_model_decode_bytes(a), before);
    const sl_weight *x = find(a, "model.layers.1.mlp.down_proj.weight"), *y = find(b, "model.layers.1.mlp.down_proj.weight");
    CHECK(x->format == SL_INT4 && x->group == 32);
    CHECK(!memcmp(x->data, y->data, (size_t)x->n_rows * sl_weight_row_bytes(x)));
    CHECK(!memcmp(x->scale, y->scale, sl_weight_scales(x) * sizeof *x->scale));
    float *row = malloc((size_t)x->n_cols * sizeof *row), sum = 0;
    sl_weight_widen(x, 3, row);
    for (int i = 0; i < x->n_cols; i++) sum += row[i] * row[i];
    CHECK_NEAR(sqrt(sum / x->n_cols), 0.02, 0.006); // the deviation of random weights
    free(row);
    sl_model_free(a), sl_model_free(b);
}

static const test_case cases[] = {
    {"options", 0, options},         {"hashes", 0, hashes},
    {"numbers", 0, numbers},         {"not-finite", 0, not_finite},
    {"models", 0, models},           {"own-formats", 0, own_formats},
    {"activations", 0, activations}, {"formats", 0, formats_of_tensors},
    {"dummies", 0, dummies},         {0},
};
extern const test_suite suite_quantise;
const test_suite suite_quantise = {"quantise", cases};
