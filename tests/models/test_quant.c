// tests/models/test_quant.c - quantised checkpoints: every layout against the numbers that it stands for
// (scripts/goldens/make_quantised.py), damaged checkpoints, and descriptions that are refused.
#include "engine/engine.h"
#include "models/quant_bind.h"
#include "models/quant_config.h"
#include "models/weights.h"
#include "tests/support/models.h"
#include "tests/support/tensor_file.h"
#include "tests/support/venv.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static sl_error err;

static const char *made(const char *name) { // the folder of a checkpoint; valid for the next 3 calls
    static char paths[4][512];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof *paths, "%s/made/%s", test_tmp(), name);
    return path;
}

static void make_checkpoints(void) {
    char line[2048];
    const char *python = venv_python("numpy");
    snprintf(line, sizeof line, "mkdir '%s' && '%s' scripts/goldens/make_quantised.py '%s'", made(""), python, made(""));
    if (system(line)) FAIL("%s", line);
}

// ---- every layout ----

enum { N_TOKENS = 70, N_STEPS = 3 };

static float *logits_of(sl_model *model) { // [1 + N_STEPS][n_vocab]; ends the use of the model
    sl_engine *engine;
    sl_session *s;
    size_t n_vocab = (size_t)sl_model_n_vocab(model);
    float *out = malloc((1 + N_STEPS) * n_vocab * sizeof *out);
    int32_t *ids = test_ids(N_TOKENS, (int)n_vocab, test_seed);
    CHECK_OK(sl_engine_new(model, &(sl_engine_options){.n_ctx = 256, .n_threads = 2}, &engine, &err), err);
    CHECK_OK(sl_session_new(engine, 0, &s, &err), err);
    CHECK_OK(sl_prefill(s, ids, N_TOKENS, NULL, &err), err);
    for (int i = 0; i <= N_STEPS; i++) {
        if (i) CHECK_OK(sl_decode(&s, 1, (const int32_t[]){i * 7}, &err), err);
        memcpy(out + (size_t)i * n_vocab, sl_session_logits(s, &err), n_vocab * sizeof *out);
    }
    sl_session_free(s), sl_engine_free(engine), sl_model_free(model), free(ids);
    return out;
}

static sl_model *load(const char *dir, test_lines *lines) {
    sl_model *model;
    *lines = (test_lines){0};
    const sl_model_options o = {
        .flags = SL_MODEL_NO_TOKENIZER, .activations = "float", .log = {.fn = test_note_line, .ctx = lines}};
    CHECK_OK(sl_model_load(dir, &o, &model, &err), err);
    return model;
}

static const sl_weight *find(const sl_model *model, const char *name) {
    const sl_model_weights *w = sl_model_weight_list(model);
    for (int i = 0; i < w->n_tensors; i++)
        if (!strcmp(w->tensors[i].shape.name, name)) return w->tensors[i].weight;
    FAIL("no tensor %s", name);
}

static sl_format format_of(const sl_model *model, const char *name) {
    return find(model, name)->format;
}

static const struct {
    const char *name;
    sl_format q, gate, down; // of layer 1
    int has_activations, has_order;
} layouts[] = {
    {"ct-fp8-tensor", SL_FP8, SL_FP8, SL_FP8, 1, 0},
    {"ct-fp8-channel", SL_FP8, SL_FP8, SL_FP8, 0, 0},
    {"ct-fp8-rows", SL_FP8, SL_FP8, SL_FP8, 1, 0},
    {"ct-fp8-block", SL_FP8, SL_FP8, SL_FP8, 1, 0},
    {"ct-int8", SL_INT8, SL_INT8, SL_INT8, 1, 0},
    {"ct-int8-zeros", SL_INT8, SL_INT8, SL_INT8, 0, 0},
    {"ct-int4", SL_INT4, SL_INT4, SL_INT4, 0, 0},
    {"ct-int4-channel", SL_INT4, SL_INT4, SL_INT4, 0, 0},
    {"ct-int4-zeros", SL_INT4, SL_INT4, SL_INT4, 0, 0},
    {"ct-int4-order", SL_INT4, SL_INT4, SL_INT4, 0, 1},
    {"ct-int4-head", SL_INT4, SL_INT4, SL_INT4, 0, 0},
    {"ct-int8-packed", SL_INT8, SL_INT8, SL_INT8, 0, 0},
    {"ct-int8-packed-zeros", SL_INT8, SL_INT8, SL_INT8, 0, 0},
    {"ct-mixed", SL_BF16, SL_INT4, SL_FP8, 0, 0},
    {"fp8-block", SL_FP8, SL_FP8, SL_FP8, 1, 0},
    {"fp8-tensor", SL_FP8, SL_FP8, SL_FP8, 1, 0},
    {"modelopt", SL_FP8, SL_FP8, SL_FP8, 1, 0},
    {"ct-nvfp4", SL_FP4, SL_FP4, SL_FP4, 1, 0},
    {"ct-nvfp4-weights", SL_FP4, SL_FP4, SL_FP4, 0, 0},
    {"ct-mxfp4", SL_FP4, SL_FP4, SL_FP4, 0, 0},
    {"ct-mixed-fp4", SL_FP8, SL_FP4, SL_FP4, 0, 0},
    {"modelopt-nvfp4", SL_FP4, SL_FP4, SL_FP4, 1, 0},
    {"modelopt-nvfp4-groups", SL_FP4, SL_FP4, SL_FP4, 0, 0},
    {"awq", SL_INT4, SL_INT4, SL_INT4, 0, 0},
    {"awq-part", SL_BF16, SL_INT4, SL_INT4, 0, 0},
    {"gptq", SL_INT4, SL_INT4, SL_INT4, 0, 0},
    {"gptq-zeros", SL_INT4, SL_INT4, SL_INT4, 0, 0},
    {"gptq-v2", SL_INT4, SL_INT4, SL_INT4, 0, 0},
    {"gptq-channel", SL_INT4, SL_INT4, SL_INT4, 0, 0},
    {"gptq-order", SL_INT4, SL_INT4, SL_INT4, 0, 1},
    {"gptq-part", SL_INT4, SL_INT4, SL_BF16, 0, 0},
};

// A checkpoint gives the bits of the numbers that it stands for. With another order of columns, sums have another order too.
static void check_layouts(void) {
    make_checkpoints();
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        char wide[64];
        test_lines lines, none;
        snprintf(wide, sizeof wide, "%s.wide", layouts[i].name);
        sl_model *model = load(made(layouts[i].name), &lines);
        CHECK_INT(lines.n, layouts[i].has_activations);
        CHECK(!lines.n || strstr(lines.text, "asks for quantised activations"));
        CHECK_INT(format_of(model, "model.layers.1.self_attn.q_proj.weight"), layouts[i].q);
        CHECK_INT(format_of(model, "model.layers.1.mlp.gate_proj.weight"), layouts[i].gate);
        CHECK_INT(format_of(model, "model.layers.1.mlp.down_proj.weight"), layouts[i].down);
        CHECK_INT(format_of(model, "lm_head.weight"), strcmp(layouts[i].name, "ct-int4-head") ? SL_BF16 : SL_INT4);
        size_t n = (1 + N_STEPS) * (size_t)sl_model_n_vocab(model);
        float *got = logits_of(model), *want = logits_of(load(made(wide), &none));
        for (size_t j = 0; j < n; j++) {
            CHECK(isfinite(want[j]));
            if (layouts[i].has_order)
                CHECK_NEAR(got[j], want[j], 0.02); // a key on the other side of a rounding boundary of bf16
            else if (got[j] != want[j])
                FAIL("%s: logit %zu is %.9g, expected %.9g", layouts[i].name, j, (double)got[j], (double)want[j]);
        }
        free(got), free(want);
    }
}

// ---- inputs of weights ----

// What a GPU rounds the inputs of layer 1's down_proj to, by the option activations.
static void check_inputs(void) {
    enum { PLAIN = SL_INPUTS_PLAIN, ROWS = SL_INPUTS_ROWS, STATIC = SL_INPUTS_STATIC, GROUPS = SL_INPUTS_GROUPS };
    static const struct {
        const char *name;
        int by_auto, by_fp8; // by_fp8 -1: an error, because no weight takes inputs of fp8
    } cases[] = {{"ct-fp8-tensor", STATIC, STATIC},
                 {"ct-fp8-rows", ROWS, ROWS},
                 {"ct-fp8-channel", PLAIN, ROWS},
                 {"ct-fp8-block", GROUPS, GROUPS},
                 {"fp8-block", GROUPS, GROUPS},
                 {"fp8-tensor", STATIC, STATIC},
                 {"modelopt", STATIC, STATIC},
                 {"ct-mixed", PLAIN, ROWS},
                 {"ct-int8", PLAIN, -1},
                 {"ct-nvfp4", PLAIN, -1}};
    static const char *const options[] = {NULL, "auto", "fp8", "float", "int16"};
    make_checkpoints();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int j = 0; j < 5; j++) {
            sl_model *model;
            const sl_model_options o = {.flags = SL_MODEL_NO_TOKENIZER, .activations = options[j]};
            int want = j < 2 ? cases[i].by_auto : j == 2 ? cases[i].by_fp8 : PLAIN;
            if (j == 4 && cases[i].by_fp8 >= 0 && strcmp(cases[i].name, "ct-mixed")) continue; // no weight takes integers
            int rc = sl_model_load(made(cases[i].name), &o, &model, &err);
            if (want < 0) {
                CHECK_ERR(rc, err, SL_ERR_ARG, "activations fp8: expected weights of fp8 (weights fp8)");
                continue;
            }
            CHECK_OK(rc, err);
            const sl_weight *w = find(model, "model.layers.1.mlp.down_proj.weight");
            if ((int)w->inputs != want) FAIL("%s: inputs %d, expected %d", cases[i].name, w->inputs, want);
            if (want == STATIC) CHECK_NEAR(w->input_scale, 0.02, 1e-8);
            CHECK_INT(find(model, "lm_head.weight")->inputs, PLAIN);
            CHECK_INT(find(model, "model.layers.1.input_layernorm.weight")->inputs, PLAIN);
            sl_model_free(model);
        }
}

// A CPU does not round inputs to fp8: the checkpoint's wish changes no bit, and the caller's wish is an error.
static void inputs_on_cpu(void) {
    sl_model *model;
    sl_engine *engine = NULL;
    test_lines lines;
    make_checkpoints();
    CHECK_OK(sl_model_load(made("ct-fp8-rows"), &(sl_model_options){.flags = SL_MODEL_NO_TOKENIZER}, &model, &err), err);
    size_t size = (1 + N_STEPS) * (size_t)sl_model_n_vocab(model) * sizeof(float);
    CHECK_INT(find(model, "model.layers.1.mlp.down_proj.weight")->inputs, SL_INPUTS_ROWS);
    float *got = logits_of(model), *want = logits_of(load(made("ct-fp8-rows"), &lines));
    CHECK(!memcmp(got, want, size));
    free(got), free(want);
    const sl_model_options fp8 = {.flags = SL_MODEL_NO_TOKENIZER, .activations = "fp8"};
    CHECK_OK(sl_model_load(made("ct-fp8-rows"), &fp8, &model, &err), err);
    CHECK_ERR(sl_engine_new(model, &(sl_engine_options){.n_ctx = 64, .device = "cpu"}, &engine, &err), err, SL_ERR_ARG,
              "activations fp8: only a GPU rounds activations to fp8");
    sl_model_free(model);
}

// ---- damaged checkpoints ----

#define LAYER "model.layers.1.mlp.down_proj." // [128][224]
static const struct {
    const char *name, *tensor, *dtype, *shape; // shape NULL: the tensor is missing
    size_t n_bytes;
    int code;
    const char *message;
} damages[] = {
    {"ct-int4", LAYER "weight_scale", NULL, NULL, 0, SL_ERR_FORMAT, "tensor " LAYER "weight_scale is missing"},
    {"ct-int4", LAYER "weight_packed", NULL, NULL, 0, SL_ERR_FORMAT, "tensor " LAYER "weight_packed is missing"},
    {"ct-int4", LAYER "weight_shape", NULL, NULL, 0, SL_ERR_FORMAT, "tensor " LAYER "weight_shape is missing"},
    {"ct-int4", LAYER "weight_scale", "BF16", "[128,6]", 1536, SL_ERR_FORMAT,
     LAYER "weight_scale has shape [128, 6], expected [128, 7]"},
    {"ct-int4", LAYER "weight_scale", "BF16", "[7,128]", 1792, SL_ERR_FORMAT,
     LAYER "weight_scale has shape [7, 128], expected [128, 7]"},
    {"ct-int4", LAYER "weight_packed", "I32", "[128,27]", 13824, SL_ERR_FORMAT,
     LAYER "weight_packed has shape [128, 27], expected [128, 28]"},
    {"ct-int4", LAYER "weight_packed", "U8", "[128,28]", 3584, SL_ERR_UNSUPPORTED,
     LAYER "weight_packed has dtype U8, expected I32"},
    {"ct-int4", LAYER "weight_scale", "I32", "[128,7]", 3584, SL_ERR_UNSUPPORTED,
     LAYER "weight_scale has dtype I32, expected BF16, F16, F32"},
    {"ct-int4", LAYER "weight_shape", "I64", "[2]", 16, SL_ERR_FORMAT, LAYER "weight_shape is [0, 0], expected [128, 224]"},
    {"ct-int4", LAYER "weight_zero_point", "I32", "[16,7]", 448, SL_ERR_UNSUPPORTED,
     "tensor " LAYER "weight_zero_point: Sleigh would not use it"},
    {"ct-int4-zeros", LAYER "weight_zero_point", NULL, NULL, 0, SL_ERR_FORMAT, LAYER "weight_zero_point is missing"},
    {"ct-int4-zeros", LAYER "weight_zero_point", "I32", "[15,7]", 420, SL_ERR_FORMAT,
     LAYER "weight_zero_point has shape [15, 7], expected [16, 7]"},
    {"ct-int4-order", LAYER "weight_g_idx", NULL, NULL, 0, SL_ERR_FORMAT, LAYER "weight_g_idx is missing"},
    {"ct-int4-order", LAYER "weight_g_idx", "I32", "[224]", 896, SL_ERR_UNSUPPORTED,
     LAYER "weight_g_idx gives 224 columns to group 0, expected 32"},
    {"ct-fp8-tensor", LAYER "weight_scale", "F32", "[2]", 8, SL_ERR_FORMAT, LAYER "weight_scale has shape [2], expected [1]"},
    {"ct-fp8-tensor", LAYER "input_scale", "F32", "[3]", 12, SL_ERR_FORMAT, LAYER "input_scale has shape [3], expected [1]"},
    {"ct-fp8-tensor", LAYER "input_scale", NULL, NULL, 0, SL_ERR_FORMAT, "tensor " LAYER "input_scale is missing"},
    {"fp8-tensor", LAYER "input_scale", NULL, NULL, 0, SL_ERR_FORMAT, "tensor " LAYER "input_scale is missing"},
    {"modelopt", LAYER "input_scale", NULL, NULL, 0, SL_ERR_FORMAT, "tensor " LAYER "input_scale is missing"},
    {"modelopt", LAYER "input_scale", "I32", "[1]", 4, SL_ERR_UNSUPPORTED,
     LAYER "input_scale has dtype I32, expected BF16, F16, F32"},
    {"ct-fp8-tensor", LAYER "input_scale", "F32", "[1]", 4, SL_ERR_FORMAT,
     LAYER "input_scale is 0, expected a finite number of at least 2^-126"},
    {"ct-fp8-tensor", LAYER "weight", "F8_E5M2", "[128,224]", 28672, SL_ERR_UNSUPPORTED,
     LAYER "weight has dtype F8_E5M2, expected F8_E4M3"},
    {"ct-fp8-channel", LAYER "weight_scale", "BF16", "[127]", 254, SL_ERR_FORMAT,
     LAYER "weight_scale has shape [127], expected [128]"},
    {"ct-fp8-block", LAYER "weight_scale", "F32", "[1,1]", 4, SL_ERR_FORMAT,
     LAYER "weight_scale has shape [1, 1], expected [1, 2]"},
    {"fp8-block", LAYER "weight_scale_inv", NULL, NULL, 0, SL_ERR_FORMAT, LAYER "weight_scale_inv is missing"},
    {"fp8-block", LAYER "weight", "F8_E4M3", "[128,223]", 28544, SL_ERR_FORMAT,
     LAYER "weight has shape [128, 223], expected [128, 224]"},
    {"ct-nvfp4", LAYER "weight_global_scale", NULL, NULL, 0, SL_ERR_FORMAT, LAYER "weight_global_scale is missing"},
    {"ct-nvfp4", LAYER "weight_global_scale", "F32", "[2]", 8, SL_ERR_FORMAT,
     LAYER "weight_global_scale has shape [2], expected [1]"},
    {"ct-nvfp4", LAYER "weight_global_scale", "BF16", "[1]", 2, SL_ERR_UNSUPPORTED,
     LAYER "weight_global_scale has dtype BF16, expected F32"},
    {"ct-nvfp4", LAYER "input_global_scale", "F32", "[3]", 12, SL_ERR_FORMAT,
     LAYER "input_global_scale has shape [3], expected [1]"},
    {"ct-nvfp4", LAYER "weight_scale", "F8_E4M3", "[128,7]", 896, SL_ERR_FORMAT,
     LAYER "weight_scale has shape [128, 7], expected [128, 14]"},
    {"ct-nvfp4", LAYER "weight_scale", "U8", "[128,14]", 1792, SL_ERR_UNSUPPORTED,
     LAYER "weight_scale has dtype U8, expected F8_E4M3"},
    {"ct-nvfp4", LAYER "weight_packed", "U8", "[128,111]", 14208, SL_ERR_FORMAT,
     LAYER "weight_packed has shape [128, 111], expected [128, 112]"},
    {"ct-mxfp4", LAYER "weight_scale", "F8_E4M3", "[128,7]", 896, SL_ERR_UNSUPPORTED,
     LAYER "weight_scale has dtype F8_E4M3, expected U8"},
    {"ct-mxfp4", LAYER "weight_scale", "U8", "[7,128]", 896, SL_ERR_FORMAT,
     LAYER "weight_scale has shape [7, 128], expected [128, 7]"},
    {"ct-mxfp4", LAYER "weight_packed", NULL, NULL, 0, SL_ERR_FORMAT, LAYER "weight_packed is missing"},
    {"modelopt-nvfp4", LAYER "weight_scale_2", NULL, NULL, 0, SL_ERR_FORMAT, LAYER "weight_scale_2 is missing"},
    {"modelopt-nvfp4", LAYER "weight", "F8_E4M3", "[128,224]", 28672, SL_ERR_UNSUPPORTED,
     LAYER "weight has dtype F8_E4M3, expected U8"},
    {"awq", LAYER "qzeros", "I32", "[7,15]", 420, SL_ERR_FORMAT, LAYER "qzeros has shape [7, 15], expected [7, 16]"},
    {"awq", LAYER "scales", "F16", "[6,128]", 1536, SL_ERR_FORMAT, LAYER "scales has shape [6, 128], expected [7, 128]"},
    {"awq", LAYER "qweight", "I32", "[28,128]", 14336, SL_ERR_FORMAT, LAYER "qweight has shape [28, 128], expected [224, 16]"},
    {"gptq", LAYER "qweight", "I32", "[27,128]", 13824, SL_ERR_FORMAT, LAYER "qweight has shape [27, 128], expected [28, 128]"},
    {"gptq", LAYER "g_idx", NULL, NULL, 0, SL_ERR_FORMAT, LAYER "g_idx is missing"},
};

static void damaged(void) {
    static const char zeros[1 << 16];
    make_checkpoints();
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        sl_model *model;
        const test_tensor change = {damages[i].tensor, damages[i].dtype, damages[i].shape, zeros, damages[i].n_bytes};
        test_write_model(made(damages[i].name), &change, 1);
        CHECK_ERR(sl_model_load(test_tmp(), &(sl_model_options){.flags = SL_MODEL_NO_TOKENIZER}, &model, &err), err,
                  damages[i].code, damages[i].message);
    }
}

// Some programs write biases of zeros. Another number is an error.
static void zero_biases(void) {
    static uint16_t bias[128];
    make_checkpoints();
    for (int i = 0; i < 2; i++) {
        sl_model *model;
        test_lines lines = {0};
        const test_tensor change = {LAYER "bias", "F16", "[128]", bias, sizeof bias};
        const sl_model_options o = {.flags = SL_MODEL_NO_TOKENIZER, .log = {.fn = test_note_line, .ctx = &lines}};
        bias[99] = i ? 1 : 0;
        test_write_model(made("gptq"), &change, 1);
        int rc = sl_model_load(test_tmp(), &o, &model, &err);
        if (i) {
            CHECK_ERR(rc, err, SL_ERR_UNSUPPORTED, "tensor " LAYER "bias: Sleigh would not use it");
            continue;
        }
        CHECK_OK(rc, err);
        CHECK(lines.n == 1 && strstr(lines.text, "1 bias of quantised layers: not used"));
        sl_model_free(model);
    }
}

// Numbers that a damaged file may hold: found when the weights are made.
static void bad_numbers(void) {
    static unsigned char bytes[28672];
    static const uint16_t infinite[128] = {[77] = 0x7f80};
    static const uint8_t nan[1792] = {[600] = 0xff};
    static const float zero, negative = -1;
    static int32_t index[224];
    sl_model *model;
    const struct {
        const char *name;
        test_tensor change;
        const char *message;
    } cases[] = {
        {"ct-fp8-tensor", {LAYER "weight", "F8_E4M3", "[128,224]", bytes, sizeof bytes}, LAYER "weight: a number is NaN"},
        {"ct-fp8-channel",
         {LAYER "weight_scale", "BF16", "[128,1]", infinite, sizeof infinite},
         LAYER "weight_scale: number 77 is inf, expected a finite number"},
        {"gptq-order",
         {LAYER "g_idx", "I32", "[224]", index, sizeof index},
         LAYER "g_idx: number 200 is 7, expected a group from 0 to 6"},
        {"ct-nvfp4", {LAYER "weight_scale", "F8_E4M3", "[128,14]", nan, sizeof nan}, LAYER "weight_scale: number 600 is "},
        {"ct-mxfp4", {LAYER "weight_scale", "U8", "[128,7]", nan, 896}, LAYER "weight_scale: number 600 is nan"},
        {"ct-nvfp4",
         {LAYER "weight_global_scale", "F32", "[1]", &zero, sizeof zero},
         LAYER "weight_global_scale is 0, expected a finite number above 0"},
        {"modelopt-nvfp4",
         {LAYER "weight_scale_2", "F32", "[]", &negative, sizeof negative},
         LAYER "weight_scale_2 is -1, expected a finite number above 0"},
    };
    bytes[12345] = 0xff;
    index[200] = 7;
    make_checkpoints();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_write_model(made(cases[i].name), &cases[i].change, 1);
        CHECK_ERR(sl_model_load(test_tmp(), &(sl_model_options){.flags = SL_MODEL_NO_TOKENIZER}, &model, &err), err,
                  SL_ERR_FORMAT, cases[i].message);
    }
}

// ---- descriptions ----

#define CT(MORE, WEIGHTS)                                                                                                      \
    "{'quant_method':'compressed-tensors','config_groups':{'g':{'targets':['Linear'],'weights':" WEIGHTS "}}" MORE "}"
#define PACKED ",'format':'pack-quantized'"
#define CT8(INPUTS)                                                                                                            \
    "{'quant_method':'compressed-tensors','format':'float-quantized','config_groups':{'g':{'targets':['Linear'],'weights':" W8 \
    ",'input_activations':" INPUTS "}}}"
#define W4 "{'num_bits':4,'type':'int','group_size':32,'strategy':'group','symmetric':true}"
#define FP4(MORE) "{'num_bits':4,'type':'float','group_size':" MORE "}"
#define KV8(MORE) "{'num_bits':8,'type':'float'" MORE "}"
#define W8 "{'num_bits':8,'type':'float','strategy':'tensor','symmetric':true}"
#define GPTQ(MORE) "{'quant_method':'gptq','bits':4,'group_size':128" MORE "}"
#define AWQ(MORE) "{'quant_method':'awq','bits':4,'group_size':128" MORE "}"
enum { F = SL_ERR_FORMAT, U = SL_ERR_UNSUPPORTED };
static const struct {
    int code;
    const char *text, *message; // message NULL: allowed
} descriptions[] = {
    {0, CT(PACKED, W4), NULL},
    {0, CT(PACKED ",'kv_cache_scheme':null,'transform_config':{},'sparsity_config':{'format':'dense'}", W4), NULL},
    {0, GPTQ(",'format':'gptq_v2','dynamic':{'-:.*down.*':{}},'rotation':null"), NULL},
    {0, AWQ(",'version':'gemm','modules_to_not_convert':null"), NULL},
    {F, "{'bits':4}", "quantization_config: field quant_method is missing"},
    {U, "{'quant_method':'bitsandbytes','load_in_4bit':true}",
     "quant_method is \"bitsandbytes\", supported are awq, compressed"},
    {U, "{'quant_method':'torchao'}", "quant_method is \"torchao\""},
    {U, "{'quant_method':'hqq'}", "quant_method is \"hqq\""},
    {U, "{'quant_method':'exl3'}", "quant_method is \"exl3\""},
    {U, "{'quant_method':'mxfp4'}", "quant_method is \"mxfp4\""},
    {0, CT(",'format':'nvfp4-pack-quantized'", FP4("16,'strategy':'tensor_group'")), NULL},
    {0, CT(",'format':'mxfp4-pack-quantized'", FP4("32")), NULL},
    {U, CT(",'format':'nvfp4-pack-quantized'", FP4("16")),
     "num_bits is 4 bits of type float with group_size 16, supported is 4 "
     "bits of type float, symmetric, of strategy tensor_group"},
    {U, CT(",'format':'nvfp4-pack-quantized'", FP4("32,'strategy':'tensor_group'")), "with group_size 32, supported is"},
    {U, CT(",'format':'nvfp4-pack-quantized'", FP4("16,'strategy':'tensor_group','symmetric':false")), "symmetric"},
    {U, CT(",'format':'mxfp4-pack-quantized'", FP4("16")), "with group_size 16, supported is"},
    {U, CT(",'format':'mxfp4-pack-quantized'", FP4("32,'strategy':'tensor_group'")), "of strategy group with group_size 32"},
    {U, CT(",'format':'mxfp4-pack-quantized'", "{'num_bits':4,'type':'int','group_size':32}"),
     "num_bits is 4 bits of type int"},
    {U, CT(",'format':'mxfp8-quantized'", "{'num_bits':8,'type':'float','group_size':32}"), "field format is mxfp8-quantized"},
    {U, CT(PACKED, "{'num_bits':4,'type':'int','group_size':16,'strategy':'tensor_group'}"),
     "strategy is tensor_group, supported is another one where format is not nvfp4-pack-quantized"},
    {0, CT(PACKED ",'kv_cache_scheme':" KV8(), W4), NULL},
    {0, CT(PACKED ",'kv_cache_scheme':" KV8(",'strategy':'attn_head','dynamic':false,'group_size':null"), W4), NULL},
    {U, CT(PACKED ",'kv_cache_scheme':{'num_bits':4,'type':'float'}", W4),
     "kv_cache_scheme: field num_bits is 4, supported is 8"},
    {U, CT(PACKED ",'kv_cache_scheme':{'num_bits':8,'type':'int'}", W4), "field type is \"int\", supported is \"float\""},
    {U, CT(PACKED ",'kv_cache_scheme':" KV8(",'strategy':'token'"), W4), "strategy is \"token\", supported is \"tensor\""},
    {U, CT(PACKED ",'kv_cache_scheme':" KV8(",'symmetric':false"), W4), "field symmetric is 0, supported is 1"},
    {U, CT(PACKED ",'kv_cache_scheme':" KV8(",'group_size':64"), W4), "field group_size is 64, which is not supported"},
    {F, CT(PACKED ",'kv_cache_scheme':{'num_bits':8}", W4), "kv_cache_scheme: field type is missing"},
    {F, CT(PACKED ",'kv_cache_scheme':'static'", W4), "field kv_cache_scheme is"},
    {U, CT(PACKED ",'transform_config':{'config_groups':{}}", W4), "field transform_config is"},
    {U, CT(PACKED ",'sparsity_config':{'format':'sparse-24'}", W4), "field sparsity_config is sparse-24"},
    {U, CT(PACKED ",'quantization_status':'frozen'", W4), "field quantization_status is frozen, supported is compressed"},
    {U, CT(PACKED ",'new_field':1", W4), "field new_field is 1, which is not supported"},
    {F, CT("", W4), "field format is missing"},
    {0, CT8("{'num_bits':8,'type':'float','strategy':'token','dynamic':true,'symmetric':true}"), NULL},
    {0, CT8("{'num_bits':8,'type':'float','strategy':'tensor','dynamic':true,'group_size':null}"), NULL},
    {0, CT8("{'num_bits':8,'type':'float','group_size':128,'dynamic':true}"), NULL},
    {0, CT8("null"), NULL},
    {U, CT8("{'num_bits':8,'type':'int','strategy':'token','dynamic':true}"),
     "input_activations: field type is \"int\", supported is \"float\""},
    {U, CT8("{'num_bits':4,'type':'float','strategy':'token','dynamic':true}"),
     "input_activations: field num_bits is 4, supported"},
    {U, CT8("{'num_bits':8,'type':'float','symmetric':false}"),
     "input_activations: field symmetric is false, supported is true"},
    {U, CT8("{'num_bits':8,'type':'float','strategy':'channel'}"),
     "input_activations: field strategy is \"channel\", supported"},
    {U, CT8("{'num_bits':8,'type':'float','strategy':'token'}"), "field strategy is token with dynamic false"},
    {U, CT8("{'num_bits':8,'type':'float','strategy':'group','group_size':64,'dynamic':true}"),
     "field strategy is group with dynamic true and group_size 64, supported is group with dynamic true and group_size 128"},
    {U, CT8("{'num_bits':8,'type':'float','block_structure':[1,128]}"), "input_activations: field block_structure is"},
    {U, CT8("{'num_bits':8,'type':'float','hadamard':1}"), "input_activations: field hadamard is 1"},
    {F, CT8("{'num_bits':8,'type':'float','dynamic':'local'}"), "field dynamic is a string"},
    {F, CT8("{'num_bits':8}"), "input_activations: field type is missing"},
    {F, CT8("'fp8'"), "field input_activations is a string, expected an object"},
    {U, CT(PACKED, "{'num_bits':3,'type':'int','group_size':32}"), "num_bits is 3 bits of type int, supported is 4 or 8 bits"},
    {U, CT(PACKED, W8), "num_bits is 8 bits of type float"},
    {U, CT(",'format':'float-quantized'", W4), "num_bits is 4 bits of type int, supported is 8 bits of type float"},
    {U, CT(PACKED, "{'num_bits':4,'type':'int','group_size':24}"), "group_size is 24, supported is a multiple of 16"},
    {F, CT(PACKED, "{'num_bits':4,'type':'int','group_size':32,'strategy':'channel'}"),
     "strategy is channel, and group_size is 32"},
    {U, CT(PACKED, "{'num_bits':4,'type':'int','strategy':'tensor_group'}"), "strategy is tensor_group"},
    {U, CT(PACKED, "{'num_bits':4,'type':'int','group_size':32,'dynamic':true}"), "weights: field dynamic is true"},
    {U, CT(PACKED, "{'num_bits':4,'type':'int','group_size':32,'hadamard':1}"), "weights: field hadamard is 1"},
    {U, CT(PACKED, "{'num_bits':4,'type':'int','group_size':32,'actorder':'dynamic'}"), "actorder is dynamic"},
    {F, CT(PACKED ",'ignore':['re:(']", W4), "pattern (: "},
    {F, CT(PACKED ",'ignore':'lm_head'", W4), "field ignore is a string, expected a list"},
    {U, GPTQ(",'checkpoint_format':'gptq_p'"), "checkpoint_format is \"gptq_p\", supported is \"gptq\" and \"gptq_v2\""},
    {U, GPTQ(",'checkpoint_format':'marlin'"), "checkpoint_format is \"marlin\""},
    {U, GPTQ(",'rotation':'hadamard'"), "field rotation is \"hadamard\""},
    {U, GPTQ(",'pack_dtype':'int8'"), "pack_dtype is \"int8\""},
    {U, GPTQ(",'dynamic':{'+:.*':{'bits':8}}"), "field dynamic has \"+:.*\""},
    {U, GPTQ(",'bits':3"), "field bits is 3, supported is 4"},
    {U, GPTQ(",'group_size':0"), "group_size is 0"},
    {U, AWQ(",'version':'gemv'"), "field version is \"gemv\", supported is \"gemm\""},
    {U, AWQ(",'version':'llm-awq'"), "field version is \"llm-awq\""},
    {U, AWQ(",'zero_point':false"), "field zero_point is false"},
    {U, AWQ(",'bits':8"), "field bits is 8, supported is 4"},
    {U, "{'quant_method':'fp8','fmt':'e5m2'}", "field fmt is \"e5m2\""},
    {U, "{'quant_method':'fp8','scale_fmt':'ue8m0'}", "field scale_fmt is \"ue8m0\""},
    {U, "{'quant_method':'fp8','weight_block_size':[128]}", "field weight_block_size: expected two multiples of 16"},
    {0, "{'quant_method':'modelopt','quant_algo':'NVFP4'}", NULL},
    {U, "{'quant_method':'modelopt','quant_algo':'MXFP8'}",
     "quant_algo is \"MXFP8\", supported is \"FP8\", \"NVFP4\" and \"W4A16_NVFP4\""},
    {U, "{'quant_method':'modelopt','quant_algo':'NVFP4','group_size':32}", "field group_size is 32, supported is 16"},
    {U,
     "{'quant_method':'modelopt','quant_algo':'NVFP4','config_groups':{'g':{'targets':['Linear'],'weights':{'group_size':32}}}"
     "}",
     "field group_size is 32, supported is 16"},
    {U, "{'quant_method':'modelopt','quant_algo':'NVFP4','config_groups':{'g':{'targets':['Linear']},'h':{}}}",
     "field config_groups: expected one group with the targets [\"Linear\"]"},
    {U, "{'quant_method':'modelopt','quant_algo':'FP8','group_size':16}", "field group_size is 16"},
    {0, "{'quant_method':'modelopt','quant_algo':'NVFP4','kv_cache_quant_algo':'FP8'}", NULL},
    {0, "{'quant_method':'modelopt','quant_algo':'FP8','kv_cache_quant_algo':'FP8'}", NULL},
    {U, "{'quant_method':'modelopt','quant_algo':'FP8','kv_cache_quant_algo':'NVFP4'}",
     "field kv_cache_quant_algo is \"NVFP4\", supported is \"FP8\""},
};

static void write_config(const char *description) {
    char path[512], text[4096];
    snprintf(text, sizeof text, "{'model_type':'llama','quantization_config':%s}", description);
    for (char *p = text; *p; p++)
        if (*p == '\'') *p = '"';
    snprintf(path, sizeof path, "%s/config.json", test_tmp());
    FILE *f = fopen(path, "w");
    if (!f || fputs(text, f) < 0 || fclose(f)) FAIL("cannot write %s", path);
}

static void check_descriptions(void) {
    for (size_t i = 0; i < sizeof descriptions / sizeof *descriptions; i++) {
        sl_quant q;
        write_config(descriptions[i].text);
        int rc = sl_quant_load(&SL_FOLDER(test_tmp()), NULL, &q, &err);
        if (!descriptions[i].message) {
            if (rc) FAIL("%s: %s", descriptions[i].text, err.message);
            sl_quant_free(&q);
            continue;
        }
        if (rc >= 0 || !strstr(err.message, descriptions[i].message))
            FAIL("%s: message \"%s\" lacks \"%s\"", descriptions[i].text, err.message, descriptions[i].message);
        CHECK_INT(rc, descriptions[i].code);
    }
}

// Names of modules: the class, a name, a pattern; the list of exceptions wins.
static void names(void) {
    static const struct {
        const char *module;
        int is_head, bits; // 0: plain
    } modules[] = {{"model.layers.0.mlp.up_proj", 0, 4},      {"model.layers.10.mlp.up_proj", 0, 0},
                   {"model.layers.0.mlp.down_proj", 0, 8},    {"model.layers.0.self_attn.q_proj", 0, 4},
                   {"model.layers.1.self_attn.q_proj", 0, 0}, {"lm_head", 1, 4}};
    sl_quant q;
    write_config("{'quant_method':'compressed-tensors','format':'pack-quantized','config_groups':{"
                 "'a':{'targets':['Linear'],'weights':{'num_bits':4,'type':'int','group_size':32}},"
                 "'b':{'targets':['re:.*down_proj'],'weights':{'num_bits':8,'type':'int','group_size':-1}}},"
                 "'ignore':['re:model.layers.10.*','model.layers.1.self_attn.q_proj','re:mlp']}");
    CHECK_OK(sl_quant_load(&SL_FOLDER(test_tmp()), NULL, &q, &err), err);
    for (size_t i = 0; i < sizeof modules / sizeof *modules; i++) {
        const sl_quant_scheme *s = sl_quant_find(&q, modules[i].module, modules[i].is_head);
        if ((s ? s->format == SL_INT4 ? 4 : 8 : 0) != modules[i].bits) FAIL("%s", modules[i].module);
    }
    CHECK_INT(sl_quant_find(&q, "model.layers.0.mlp.down_proj", 0)->strategy, SL_QUANT_CHANNEL);
    sl_quant_free(&q);
    write_config("{'quant_method':'modelopt','quant_algo':'FP8','exclude_modules':['lm_head','model.layers.1*','*.q_proj']}");
    CHECK_OK(sl_quant_load(&SL_FOLDER(test_tmp()), NULL, &q, &err), err);
    CHECK(!sl_quant_find(&q, "lm_head", 1) && !sl_quant_find(&q, "model.layers.1.mlp.up_proj", 0));
    CHECK(!sl_quant_find(&q, "model.layers.0.self_attn.q_proj", 0) && sl_quant_find(&q, "model.layers.0.self_attn.k_proj", 0));
    sl_quant_free(&q);
    write_config(AWQ(",'modules_to_not_convert':['self_attn','layers.2']"));
    CHECK_OK(sl_quant_load(&SL_FOLDER(test_tmp()), NULL, &q, &err), err);
    CHECK(!sl_quant_find(&q, "model.layers.1.self_attn.k_proj", 0) && sl_quant_find(&q, "model.layers.1.mlp.up_proj", 0));
    CHECK(!sl_quant_find(&q, "model.layers.2.mlp.up_proj", 0) && sl_quant_find(&q, "model.layers.22.mlp.up_proj", 0));
    CHECK(!sl_quant_find(&q, "lm_head", 1));
    sl_quant_free(&q);
    write_config(AWQ(""));
    CHECK_ERR(sl_quant_load(&SL_FOLDER(test_tmp()), &(sl_quantise_texts){.weights = "int8"}, &q, &err), err, SL_ERR_ARG,
              "are quantised already (awq)");
}

// Layers that the package compressed-tensors quantised (scripts/goldens/make_fp4.py), and its numbers in fp32.
static void check_fp4(const char *format, const char *weights) {
    enum { N = 24, K = 96 };
    char path[200], config[600];
    sl_tensors *tensors;
    sl_quant q;
    sl_weight w;
    sl_recipe r;
    float row[K];
    snprintf(config, sizeof config,
             "{'quant_method':'compressed-tensors','format':'%s','config_groups':{'g':{'targets':['Linear'],'weights':%s}}}",
             format, weights);
    write_config(config);
    CHECK_OK(sl_quant_load(&SL_FOLDER(test_tmp()), NULL, &q, &err), err);
    snprintf(path, sizeof path, "tests/goldens/fp4/%s.safetensors", format);
    CHECK_OK(sl_tensors_open_file(path, &tensors, &err), err);
    CHECK_OK(sl_quant_bind(sl_quant_find(&q, "lin", 0), tensors, "lin", N, K, &w, &r, &err), err);
    char *memory = aligned_alloc(64, sl_recipe_bytes(&r, &w));
    memset(memory, 0, sl_recipe_bytes(&r, &w));
    CHECK_OK(sl_recipe_make(&r, &w, memory, &err), err);
    const float *want = sl_tensors_find(tensors, "lin.wide")->data;
    for (size_t i = 0; i < N; i++) {
        sl_weight_widen(&w, i, row);
        for (size_t j = 0; j < K; j++)
            if (row[j] != want[i * K + j])
                FAIL("%s: number %zu, %zu is %.9g, expected %.9g", format, i, j, (double)row[j], (double)want[i * K + j]);
    }
    free(memory), sl_tensors_close(tensors), sl_quant_free(&q);
}

static void fp4_of_package(void) {
    check_fp4("nvfp4-pack-quantized", FP4("16,'strategy':'tensor_group'"));
    check_fp4("mxfp4-pack-quantized", FP4("32,'strategy':'group'"));
}

static const test_case cases[] = {
    {"fp4-of-package", 0, fp4_of_package},
    {"layouts", 0, check_layouts},
    {"inputs", 0, check_inputs},
    {"inputs-on-cpu", 0, inputs_on_cpu},
    {"damaged", 0, damaged},
    {"zero-biases", 0, zero_biases},
    {"bad-numbers", 0, bad_numbers},
    {"descriptions", 0, check_descriptions},
    {"names", 0, names},
    {0},
};
extern const test_suite suite_quant;
const test_suite suite_quant = {"quant", cases};
