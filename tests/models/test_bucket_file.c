// tests/models/test_bucket_file.c - bucket files: a good one, every error, the hash of a model.
#include "models/bucket_file.h"
#include "base/hash.h"
#include "engine/engine.h"
#include "tests/support/bucket_plan.h"
#include "tests/test.h"

#include <stdlib.h>
#include <string.h>

enum { C = 6, W = 32, DENSE = 1 };
static sl_error err;

typedef struct fixture {
    sl_model *model;
    const sl_config *config;
    sl_buckets buckets;
    bucket_plan plan;
    char path[600];
} fixture;

static fixture open_fixture(int width) {
    fixture f = {0};
    CHECK_OK(sl_model_load("tests/goldens/gqa", &(sl_model_options){.flags = SL_MODEL_NO_TOKENIZER}, &f.model, &err), err);
    f.config = sl_model_config(f.model);
    f.buckets = test_buckets_new(f.config->n_layers, f.config->n_kv_heads, f.config->head_dim, C, width, DENSE, test_seed);
    f.plan = bucket_plan_of(&f.buckets, sl_tensors_hash(sl_model_tensors(f.model), sl_config_hash(f.config)));
    snprintf(f.path, sizeof f.path, "%s/" SL_BUCKET_FILE, test_tmp());
    return f;
}

static void close_fixture(fixture *f) {
    test_buckets_free(&f->buckets);
    sl_model_free(f->model);
}

static int try_open(const fixture *f, sl_bucket_file **out) {
    bucket_plan_write(&f->plan, f->path);
    return sl_bucket_file_open(f->path, f->config, sl_model_tensors(f->model), out, &err);
}

static void good_file(void) {
    for (int i = 0; i < 4; i++) { // with and without a classifier, with and without centroids of roped keys
        fixture f = open_fixture(i & 1 ? W : 0);
        sl_bucket_file *file;
        int n = f.config->n_layers * f.config->n_kv_heads * C * f.config->head_dim;
        float inv_freq[128];
        if (i & 2) f.plan.tensors[1].name = NULL;
        CHECK_OK(try_open(&f, &file), err);
        const sl_buckets *b = sl_bucket_file_get(file);
        CHECK_INT(b->n_layers, f.config->n_layers);
        CHECK_INT(b->n_kv_heads, f.config->n_kv_heads);
        CHECK_INT(b->head_dim, f.config->head_dim);
        CHECK_INT(b->n_buckets, C);
        CHECK_INT(b->width, i & 1 ? W : 0);
        CHECK_INT(b->n_dense, DENSE);
        CHECK(!memcmp(b->centroids, f.buckets.centroids, n * sizeof(bf16)));
        CHECK(i & 2 ? !b->roped : !memcmp(b->roped, f.buckets.roped, n * sizeof(bf16)));
        CHECK((b->w1 != NULL) == (i & 1) && (b->w2 != NULL) == (i & 1) && (b->b1 != NULL) == (i & 1) &&
              (b->b2 != NULL) == (i & 1));
        if (i & 1) CHECK(b->b2[C - 1] == f.buckets.b2[C - 1] && b->w2[C * W - 1] == f.buckets.w2[C * W - 1]);
        sl_config_rope(f.config, inv_freq);
        CHECK(!memcmp(b->inv_freq, inv_freq, f.config->head_dim / 2 * sizeof *inv_freq));
        sl_bucket_file_close(file);
        close_fixture(&f);
    }
}

// ---- errors ----

typedef struct fault {
    const char *name; // of a tensor or of metadata
    int is_tensor;
    const char *text; // the metadata's text, or the tensor's dtype; NULL: the file lacks it
    int dim;          // -1: the shape is right; else this dimension is one too small; 9: one dimension more, of 1
    sl_err code;
    const char *part;
} fault;

static const fault faults[] = {
    {"format_version", 0, NULL, -1, SL_ERR_FORMAT, "metadata format_version is missing"},
    {"format_version", 0, "2", -1, SL_ERR_UNSUPPORTED, "format_version is \"2\", expected 1"},
    {"buckets", 0, NULL, -1, SL_ERR_FORMAT, "metadata buckets is missing"},
    {"buckets", 0, "0", -1, SL_ERR_FORMAT, "buckets is \"0\", expected an integer from 1 to 4096"},
    {"buckets", 0, "4097", -1, SL_ERR_FORMAT, "buckets is \"4097\", expected an integer from 1 to 4096"},
    {"buckets", 0, "6x", -1, SL_ERR_FORMAT, "buckets is \"6x\", expected an integer"},
    {"buckets", 0, "", -1, SL_ERR_FORMAT, "buckets is \"\", expected an integer"},
    {"buckets", 0, "7", -1, SL_ERR_FORMAT, "tensor centroids has shape"},
    {"width", 0, NULL, -1, SL_ERR_FORMAT, "metadata width is missing"},
    {"width", 0, "40", -1, SL_ERR_FORMAT, "width is 40, expected a multiple of 16"},
    {"width", 0, "-16", -1, SL_ERR_FORMAT, "width is \"-16\", expected an integer from 0 to 8192"},
    {"width", 0, "0", -1, SL_ERR_FORMAT, "tensor w1: unexpected, because metadata width is 0"},
    {"dense_layers", 0, NULL, -1, SL_ERR_FORMAT, "metadata dense_layers is missing"},
    {"dense_layers", 0, "99", -1, SL_ERR_FORMAT, "dense_layers is \"99\", expected an integer from 0 to "},
    {"model", 0, NULL, -1, SL_ERR_FORMAT, "metadata model is missing"},
    {"model", 0, "fnv1a:0123456789abcdef", -1, SL_ERR_UNSUPPORTED,
     "made for another model: metadata model is \"fnv1a:0123456789abcdef\", expected fnv1a:"},
    {"centroids", 1, NULL, -1, SL_ERR_FORMAT, "tensor centroids is missing"},
    {"centroids", 1, "F32", -1, SL_ERR_FORMAT, "tensor centroids has dtype F32, expected BF16"},
    {"centroids", 1, "BF16", 0, SL_ERR_FORMAT, "tensor centroids has shape"},
    {"centroids", 1, "BF16", 1, SL_ERR_FORMAT, "tensor centroids has shape"},
    {"centroids", 1, "BF16", 2, SL_ERR_FORMAT, "tensor centroids has shape"},
    {"centroids", 1, "BF16", 3, SL_ERR_FORMAT, "tensor centroids has shape"},
    {"centroids", 1, "BF16", 9, SL_ERR_FORMAT, "tensor centroids has shape"},
    {"centroids_roped", 1, "F16", -1, SL_ERR_FORMAT, "tensor centroids_roped has dtype F16, expected BF16"},
    {"centroids_roped", 1, "BF16", 2, SL_ERR_FORMAT, "tensor centroids_roped has shape"},
    {"w1", 1, NULL, -1, SL_ERR_FORMAT, "tensor w1 is missing"},
    {"w1", 1, "F16", -1, SL_ERR_FORMAT, "tensor w1 has dtype F16, expected BF16"},
    {"w1", 1, "BF16", 2, SL_ERR_FORMAT, "tensor w1 has shape"},
    {"b1", 1, NULL, -1, SL_ERR_FORMAT, "tensor b1 is missing"},
    {"b1", 1, "BF16", -1, SL_ERR_FORMAT, "tensor b1 has dtype BF16, expected F32"},
    {"b1", 1, "F32", 2, SL_ERR_FORMAT, "tensor b1 has shape"},
    {"w2", 1, NULL, -1, SL_ERR_FORMAT, "tensor w2 is missing"},
    {"w2", 1, "F16", -1, SL_ERR_FORMAT, "tensor w2 has dtype F16, expected BF16"},
    {"w2", 1, "BF16", 3, SL_ERR_FORMAT, "tensor w2 has shape"},
    {"b2", 1, NULL, -1, SL_ERR_FORMAT, "tensor b2 is missing"},
    {"b2", 1, "BF16", -1, SL_ERR_FORMAT, "tensor b2 has dtype BF16, expected F32"},
    {"b2", 1, "F32", 2, SL_ERR_FORMAT, "tensor b2 has shape"},
};

static void inject(bucket_plan *p, const fault *f) {
    for (int i = 0; i < PLAN_TEXTS && !f->is_tensor; i++) {
        if (strcmp(p->texts[i].name, f->name)) continue;
        if (f->text)
            snprintf(p->texts[i].text, sizeof p->texts[i].text, "%s", f->text);
        else
            p->texts[i].name = NULL;
        return;
    }
    for (int i = 0; i < PLAN_TENSORS; i++) {
        if (!p->tensors[i].name || strcmp(p->tensors[i].name, f->name)) continue;
        p->tensors[i].name = f->text ? f->name : NULL;
        p->tensors[i].dtype = f->text;
        if (f->dim == 9) p->tensors[i].dims[p->tensors[i].n_dims++] = 1;
        if (f->dim >= 0 && f->dim < 9) p->tensors[i].dims[f->dim]--;
        return;
    }
    FAIL("no part %s", f->name);
}

static void errors(void) {
    fixture f = open_fixture(W);
    bucket_plan good = f.plan;
    static float spare[1 << 16]; // for tensors of a larger dtype
    sl_bucket_file *file = NULL;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        f.plan = good;
        inject(&f.plan, &faults[i]);
        for (int t = 0; t < PLAN_TENSORS; t++)
            if (f.plan.tensors[t].name && f.plan.tensors[t].dtype != good.tensors[t].dtype) f.plan.tensors[t].data = spare;
        CHECK_ERR(try_open(&f, &file), err, faults[i].code, faults[i].part);
        CHECK(strstr(err.message, f.path) == err.message);
    }
    f.plan = good;
    f.plan.tensors[6].name = "w3", f.plan.tensors[6].dtype = "F32", f.plan.tensors[6].data = spare;
    f.plan.tensors[6].dims[0] = 3, f.plan.tensors[6].n_dims = 1;
    CHECK_ERR(try_open(&f, &file), err, SL_ERR_FORMAT, "tensor w3: a bucket file has no such tensor");
    CHECK(!file);
    close_fixture(&f);
}

static void in_the_folder(void) {
    fixture f = open_fixture(W);
    char dir[600], path[700];
    sl_bucket_file *file;
    sl_model *model;
    snprintf(dir, sizeof dir, "%s/model", test_tmp());
    snprintf(path, sizeof path, "%s/" SL_BUCKET_FILE, dir);
    bucket_plan_link("tests/goldens/gqa", dir);
    CHECK_OK(sl_model_load(dir, &(sl_model_options){.flags = SL_MODEL_NO_TOKENIZER}, &model, &err), err);
    CHECK_ERR(sl_model_open_buckets(model, &file, &err), err, SL_ERR_IO,
              "the model has no bucket file; scripts/train/train_saap.py");
    bucket_plan_write(&f.plan, path);
    CHECK_OK(sl_model_open_buckets(model, &file, &err), err);
    sl_bucket_file_close(file);
    sl_model_free(model);
    CHECK_OK(sl_model_load(dir, &(sl_model_options){.flags = SL_MODEL_NO_TOKENIZER | SL_MODEL_DUMMY}, &model, &err), err);
    CHECK_ERR(sl_model_open_buckets(model, &file, &err), err, SL_ERR_ARG, "these are random");
    sl_model_free(model);
    close_fixture(&f);
}

// ---- the hash ----

// The hash of a text that models/config.h describes.
static void hash_of_a_config(void) {
    static const char text[] =
        "model_type=llama\nvocab_size=1024\nhidden_size=256\nintermediate_size=768\nnum_hidden_layers=4\n"
        "num_attention_heads=8\nnum_key_value_heads=2\nhead_dim=128\nrms_norm_eps=9.99999975e-06\n"
        "tie_word_embeddings=0\nrope_theta=500000\nrope_type=llama3\nfactor=8\nlow_freq_factor=1\n"
        "high_freq_factor=4\noriginal_max_position_embeddings=8192\n";
    sl_config a, b;
    CHECK_OK(sl_config_load(&SL_FOLDER("models/tiny"), &a, &err), err);
    CHECK(sl_config_hash(&a) == sl_fnv1a(SL_FNV1A_START, text, strlen(text)));
    b = a, b.n_ctx = 7, b.bos = 3, b.gen_temp = 1; // no arithmetic
    CHECK(sl_config_hash(&a) == sl_config_hash(&b));
    b = a, b.rope_theta = 500001;
    CHECK(sl_config_hash(&a) != sl_config_hash(&b));
    b = a, b.n_heads = 16;
    CHECK(sl_config_hash(&a) != sl_config_hash(&b));
    static const char *const scalings[] = {"none", "linear"}; // parameters of the file's llama3 do not count
    for (int i = 0; i < 2; i++) {
        b = a;
        CHECK_OK(sl_config_change_rope(&b, &(sl_rope_options){.scaling = scalings[i], .factor = i ? 2 : 0}, &err), err);
        CHECK(b.rope_low_freq == 0 && b.rope_high_freq == 0 && b.rope_original_ctx == 0);
    }
}

// An engine opens the file once, for the first method of any layer that needs it.
static void engines(void) {
    sl_model *model;
    sl_engine *e;
    sl_attn_spec specs[2];
    sl_attn_plan plan;
    const sl_tensors *first = NULL;
    CHECK_OK(sl_model_load("models/tiny", &(sl_model_options){.flags = SL_MODEL_NO_TOKENIZER}, &model, &err), err);
    const int n_layers = sl_model_config(model)->n_layers;
    CHECK_OK(sl_attn_parse("dense", &specs[0], &err), err);
    CHECK_OK(sl_attn_parse("saap:l=3", &specs[1], &err), err);
    CHECK_OK(sl_engine_new(model, &(sl_engine_options){.n_ctx = 256, .n_threads = 1}, &e, &err), err);
    CHECK(!sl_engine_bucket_tensors(e));
    for (int layer = n_layers - 1; layer >= 0; layer--) {
        CHECK_OK(sl_attn_plan_init(&plan, n_layers, &specs[0], &err), err);
        plan.layer[layer] = specs[1];
        CHECK_OK(sl_engine_set_plan(e, &plan, &err), err);
        CHECK(sl_engine_bucket_tensors(e) && (!first || first == sl_engine_bucket_tensors(e)));
        first = sl_engine_bucket_tensors(e);
        sl_attn_plan_free(&plan);
    }
    sl_engine_free(e), sl_model_free(model);
}

static const test_case cases[] = {
    {"engines", NEEDS_NOTHING, engines},
    {"good-file", NEEDS_NOTHING, good_file},
    {"errors", NEEDS_NOTHING, errors},
    {"in-the-folder", NEEDS_NOTHING, in_the_folder},
    {"hash-of-a-config", NEEDS_NOTHING, hash_of_a_config},
    {0},
};
const test_suite suite_bucket_file = {"bucket_file", cases};
