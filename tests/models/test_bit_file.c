// tests/models/test_bit_file.c - bit files: a good one, every error, the file in the folder of a model.
#include "models/bit_file.h"
#include "engine/engine.h"
#include "tests/support/bucket_plan.h"
#include "tests/test.h"

#include <string.h>

static sl_error err;

typedef struct fixture {
    sl_model *model;
    sl_buckets numbers;
    bucket_plan plan;
    char path[600];
} fixture;

static fixture open_fixture(void) {
    fixture f = {0};
    CHECK_OK(sl_model_load("tests/goldens/gqa", &(sl_model_options){.flags = SL_MODEL_NO_TOKENIZER}, &f.model, &err), err);
    const sl_config *c = sl_model_config(f.model);
    f.numbers = test_buckets_new(c->n_layers, c->n_kv_heads, c->head_dim, 6, 0, 0, test_seed);
    f.plan = bit_plan_of(&f.numbers, sl_tensors_hash(sl_model_tensors(f.model), sl_config_hash(c)));
    snprintf(f.path, sizeof f.path, "%s/" SL_BIT_FILE, test_tmp());
    return f;
}

static void close_fixture(fixture *f) {
    test_buckets_free(&f->numbers);
    sl_model_free(f->model);
}

static int try_open(const fixture *f, sl_bit_file **out) {
    bucket_plan_write(&f->plan, f->path);
    return sl_bit_file_open(f->path, sl_model_config(f->model), sl_model_tensors(f->model), out, &err);
}

static void good_file(void) {
    fixture f = open_fixture();
    const sl_config *c = sl_model_config(f.model);
    sl_bit_file *file;
    size_t n = (size_t)c->n_layers * c->n_kv_heads * TEST_KEY_BITS;
    CHECK_OK(try_open(&f, &file), err);
    const sl_key_bits *b = sl_bit_file_get(file), *want = &f.numbers.bits;
    CHECK_INT(b->n_bits, TEST_KEY_BITS);
    CHECK(!memcmp(b->wq, want->wq, n * c->head_dim * sizeof(bf16)) && !memcmp(b->wk, want->wk, n * c->head_dim * sizeof(bf16)));
    CHECK(!memcmp(b->bq, want->bq, n * sizeof(float)) && !memcmp(b->bk, want->bk, n * sizeof(float)));
    sl_bit_file_close(file);
    close_fixture(&f);
}

static void errors(void) {
    static const struct {
        int text, tensor; // the part that is changed; -1: none
        const char *to;   // the text, or the dtype; NULL: the part is missing
        sl_err code;
        const char *part;
    } faults[] = {
        {0, -1, NULL, SL_ERR_FORMAT, "metadata format_version is missing"},
        {0, -1, "2", SL_ERR_UNSUPPORTED, "format_version is \"2\", expected 1"},
        {1, -1, NULL, SL_ERR_FORMAT, "metadata bits is missing"},
        {1, -1, "0", SL_ERR_FORMAT, "bits is \"0\", expected an integer from 32 to 128"},
        {1, -1, "160", SL_ERR_FORMAT, "bits is \"160\", expected an integer from 32 to 128"},
        {1, -1, "40", SL_ERR_FORMAT, "bits is 40, expected a multiple of 32"},
        {1, -1, "64", SL_ERR_FORMAT, "tensor wq has shape"},
        {2, -1, NULL, SL_ERR_FORMAT, "metadata model is missing"},
        {2, -1, "fnv1a:0123456789abcdef", SL_ERR_UNSUPPORTED,
         "made for another model: metadata model is \"fnv1a:0123456789abcdef\", expected fnv1a:"},
        {2, -1, "fnv1a:0123456789abcdef", SL_ERR_UNSUPPORTED, "scripts/train/train_bits.py makes the file of a model"},
        {-1, 0, NULL, SL_ERR_FORMAT, "tensor wq is missing"},
        {-1, 1, NULL, SL_ERR_FORMAT, "tensor wk is missing"},
        {-1, 2, NULL, SL_ERR_FORMAT, "tensor bq is missing"},
        {-1, 3, NULL, SL_ERR_FORMAT, "tensor bk is missing"},
        {-1, 1, "F16", SL_ERR_FORMAT, "tensor wk has dtype F16, expected BF16"},
        {-1, 3, "BF16", SL_ERR_FORMAT, "tensor bk has dtype BF16, expected F32"},
    };
    fixture f = open_fixture();
    bucket_plan good = f.plan;
    sl_bit_file *file = NULL;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        f.plan = good;
        if (faults[i].text >= 0 && !faults[i].to) f.plan.texts[faults[i].text].name = NULL;
        if (faults[i].text >= 0 && faults[i].to)
            snprintf(f.plan.texts[faults[i].text].text, sizeof f.plan.texts->text, "%s", faults[i].to);
        if (faults[i].tensor >= 0 && !faults[i].to) f.plan.tensors[faults[i].tensor].name = NULL;
        if (faults[i].tensor >= 0 && faults[i].to) f.plan.tensors[faults[i].tensor].dtype = faults[i].to;
        CHECK_ERR(try_open(&f, &file), err, faults[i].code, faults[i].part);
        CHECK(strstr(err.message, f.path) == err.message);
    }
    f.plan = good;
    f.plan.tensors[4] = f.plan.tensors[3], f.plan.tensors[4].name = "w3";
    CHECK_ERR(try_open(&f, &file), err, SL_ERR_FORMAT, "tensor w3: a bit file has no such tensor");
    CHECK(!file);
    close_fixture(&f);
}

// An engine opens the file for the method that reads it, beside a bucket file for another method, and decodes with both.
static void in_the_folder(void) {
    fixture f = open_fixture();
    char dir[600], path[700];
    sl_model *model;
    sl_engine *engine;
    sl_bit_file *file;
    sl_session *s;
    snprintf(dir, sizeof dir, "%s/model", test_tmp());
    bucket_plan_link("tests/goldens/gqa", dir);
    CHECK_OK(sl_model_load(dir, &(sl_model_options){.flags = SL_MODEL_NO_TOKENIZER}, &model, &err), err);
    CHECK_OK(sl_engine_new(model, &(sl_engine_options){.n_ctx = 512, .n_threads = 1}, &engine, &err), err);
    CHECK_ERR(sl_engine_set_attention(engine, "vattention:predictor=hash", &err), err, SL_ERR_IO,
              "the model has no bit file; scripts/train/train_bits.py makes it");
    snprintf(path, sizeof path, "%s/" SL_BIT_FILE, dir);
    bucket_plan_write(&f.plan, path);
    CHECK_OK(sl_model_open_bits(model, &file, &err), err);
    sl_bit_file_close(file);
    CHECK_OK(sl_engine_set_attention(engine, "vattention:predictor=hash", &err), err);
    CHECK(sl_engine_bit_tensors(engine) && !sl_engine_bucket_tensors(engine));
    CHECK_ERR(sl_engine_set_attention(engine, "saap:dense-layers=0", &err), err, SL_ERR_IO, "the model has no bucket file");
    bucket_plan buckets =
        bucket_plan_of(&f.numbers, sl_tensors_hash(sl_model_tensors(model), sl_config_hash(sl_model_config(model))));
    snprintf(path, sizeof path, "%s/saap.safetensors", dir);
    bucket_plan_write(&buckets, path);
    static const char *const methods[] = {"vattention:predictor=buckets:epsilon=0.5", "vattention:predictor=hash:epsilon=0.5",
                                          "saap-kmeans:l=2:dense-layers=0"};
    int32_t ids[400];
    for (int i = 0; i < 400; i++) ids[i] = i * 7 % 90 + 1;
    for (int i = 0; i < 3; i++) {
        CHECK_OK(sl_engine_set_attention(engine, methods[i], &err), err);
        CHECK_OK(sl_session_new(engine, 1, &s, &err), err);
        CHECK_OK(sl_prefill(s, ids, 400, NULL, &err), err);
        for (int step = 0; step < 3; step++) CHECK_OK(sl_decode(&s, 1, ids + step, &err), err);
        const float *logits = sl_session_logits(s, NULL);
        CHECK(logits && logits[0] == logits[0]);
        sl_session_free(s);
    }
    sl_engine_free(engine);
    sl_model_free(model);
    close_fixture(&f);
}

// The file of models/prose belongs to its weights.
static void of_the_prose_model(void) {
    sl_model *model;
    sl_bit_file *file;
    CHECK_OK(sl_model_load("models/prose", &(sl_model_options){.flags = SL_MODEL_NO_TOKENIZER}, &model, &err), err);
    CHECK_OK(sl_model_open_bits(model, &file, &err), err);
    CHECK_INT(sl_bit_file_get(file)->n_bits, 64);
    sl_bit_file_close(file);
    sl_model_free(model);
}

static const test_case cases[] = {
    {"good-file", 0, good_file},
    {"errors", 0, errors},
    {"in-the-folder", 0, in_the_folder},
    {"of-the-prose-model", 0, of_the_prose_model},
    {0},
};
const test_suite suite_bit_file = {"bit_file", cases};
