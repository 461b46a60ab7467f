// tests/models/test_kv_scales.c - checkpoints with scales for a KV cache of fp8: which caches use them, and damaged scales.
#include "engine/engine_internal.h"
#include "tests/support/models.h"
#include "tests/support/tensor_file.h"
#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 4, KV_HEADS = 2, DIM = 128, LENGTH = 300 };
static sl_error err;

// No module of the model has such a name, so its weights stay bf16.
#define DESCRIPTION(SCHEME)                                                                                                    \
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"float-quantized\",\"config_groups\":{\"g\":{\"targets\":"           \
    "[\"re:nothing\"],\"weights\":{\"num_bits\":8,\"type\":\"float\"}}},\"kv_cache_scheme\":" SCHEME "}"
#define SCHEME "{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"attn_head\",\"symmetric\":true}"

static const float k_scale[LAYERS] = {0.02f, 0.03f, 0.05f, 0.01f}; // one for a layer
static const uint16_t v_scale[LAYERS][KV_HEADS] = {{0x3c00, 0x3c80}, {0x3d00, 0x3c00}, {0x3c20, 0x3c40}, {0x3c60, 0x3c00}};

// Writes the tiny model with scales, and one more change (NULL: none).
static void write_checkpoint(const char *description, const test_tensor *change) {
    static char names[2 * LAYERS][80];
    test_tensor t[2 * LAYERS + 1];
    int n = 0;
    for (int i = 0; i < LAYERS; i++) {
        snprintf(names[2 * i], sizeof *names, "model.layers.%d.self_attn.k_proj.k_scale", i);
        snprintf(names[2 * i + 1], sizeof *names, "model.layers.%d.self_attn.v_scale", i);
        t[n++] = (test_tensor){names[2 * i], "F32", "[]", &k_scale[i], sizeof *k_scale};
        t[n++] = (test_tensor){names[2 * i + 1], "BF16", "[2,1,1]", v_scale[i], sizeof *v_scale};
        for (int j = n - 2; change && j < n; j++)
            if (!strcmp(t[j].name, change->name)) t[j] = *change;
    }
    test_write_model("models/tiny", t, n);
    test_set_field("config.json", "quantization_config", description);
}

static int load(sl_model **model) {
    return sl_model_load(test_tmp(), &(sl_model_options){.flags = SL_MODEL_NO_TOKENIZER}, model, &err);
}

// Every row of an fp8 cache has the scales of the checkpoint. Rows of other caches have their own.
static void which_caches(void) {
    static const char *const types[][2] = {{"fp8", "fp8"}, {"int8", "int8"}, {"fp8", "int8"}};
    write_checkpoint(DESCRIPTION(SCHEME), NULL);
    for (int t = 0; t < 3; t++) {
        sl_model *model;
        sl_engine *engine;
        sl_session *s;
        CHECK_OK(load(&model), err);
        const sl_config *c = sl_model_config(model);
        CHECK(c->n_layers == LAYERS && c->n_kv_heads == KV_HEADS && c->head_dim == DIM);
        CHECK_OK(sl_engine_new(model,
                               &(sl_engine_options){
                                   .n_ctx = 512, .n_threads = 2, .cache_type_k = types[t][0], .cache_type_v = types[t][1]},
                               &engine, &err),
                 err);
        CHECK_OK(sl_session_new(engine, 0, &s, &err), err);
        int32_t *ids = test_ids(LENGTH, c->n_vocab, test_seed);
        CHECK_OK(sl_prefill(s, ids, LENGTH, NULL, &err), err);
        CHECK_OK(sl_decode(&s, 1, ids, &err), err);
        for (int i = 0; i < LAYERS * KV_HEADS * (LENGTH + 1); i++) {
            const int layer = i % LAYERS, h = i / LAYERS % KV_HEADS, j = i / LAYERS / KV_HEADS;
            const sl_kv_view view = sl_kv_view_of(&engine->device.pool, &s->kv, layer, LENGTH + 1);
            const float k = sl_kv_k_run(&view, KV_HEADS, DIM, j / SL_PAGE, h).scale[j % SL_PAGE];
            const float v = sl_kv_v_run(&view, KV_HEADS, DIM, j / SL_PAGE, h).scale[j % SL_PAGE];
            CHECK((k == k_scale[layer]) == !strcmp(types[t][0], "fp8"));
            CHECK((v == sl_bf16_to_f32(v_scale[layer][h])) == !strcmp(types[t][1], "fp8"));
        }
        for (int i = 0; i < c->n_vocab; i++) CHECK(isfinite(sl_session_logits(s, &err)[i]));
        sl_session_free(s), sl_engine_free(engine), sl_model_free(model), free(ids);
    }
}

static void damaged(void) {
#define K "model.layers.2.self_attn.k_proj.k_scale"
#define V "model.layers.3.self_attn.v_scale"
    static const float zero, infinite[KV_HEADS] = {1, INFINITY}, three[3] = {1, 1, 1};
    static const struct {
        const char *description;
        test_tensor change;
        int code;
        const char *message;
    } all[] = {
        {DESCRIPTION(SCHEME),
         {K, NULL, NULL, NULL, 0},
         SL_ERR_FORMAT,
         "tensor model.layers.2.self_attn.k_scale is missing, which kv_cache_scheme needs"},
        {DESCRIPTION(SCHEME), {K, "F32", "[1]", &zero, sizeof zero}, SL_ERR_FORMAT, K " has the scale 0, expected a finite"},
        {DESCRIPTION(SCHEME), {V, "F32", "[2]", infinite, sizeof infinite}, SL_ERR_FORMAT, V " has the scale inf, expected"},
        {DESCRIPTION(SCHEME), {V, "F32", "[3]", three, sizeof three}, SL_ERR_FORMAT, V " has shape [3], expected [1] or [2]"},
        {DESCRIPTION(SCHEME), {V, "I32", "[2]", three, 8}, SL_ERR_UNSUPPORTED, V " has dtype I32, expected BF16, F16 or F32"},
        {DESCRIPTION("null"), {K, "F32", "[1]", three, sizeof *three}, SL_ERR_UNSUPPORTED, "Sleigh would not use it"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        sl_model *model;
        write_checkpoint(all[i].description, &all[i].change);
        CHECK_ERR(load(&model), err, all[i].code, all[i].message);
    }
}

static const test_case cases[] = {{"which-caches", 0, which_caches}, {"damaged", 0, damaged}, {0}};
const test_suite suite_kv_scales = {"kv_scales", cases};
