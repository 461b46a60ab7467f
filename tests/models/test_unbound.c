// tests/models/test_unbound.c - tensors of a folder that no weight binds: a head beside tied embeddings, and others.
#include "cli/eval/fingerprint.h"
#include "engine/engine.h"
#include "models/config.h"
#include "tests/support/models.h"
#include "tests/support/tensor_file.h"
#include "tests/test.h"

#include <stdlib.h>
#include <string.h>

static sl_error err;

static int load(sl_model **model, test_lines *lines) {
    *lines = (test_lines){0};
    const sl_model_options options = {.flags = SL_MODEL_NO_TOKENIZER, .log = {.fn = test_note_line, .ctx = lines}};
    return sl_model_load(test_tmp(), &options, model, &err);
}

// The embeddings of tests/goldens/tied, times `factor`, which is a power of two, so that bf16 holds every product.
static uint16_t *read_embeddings(int exponents, size_t *n_bytes, char *shape, size_t size) {
    char *data;
    json_t *header = test_read_tensors("tests/goldens/tied/model.safetensors", &data);
    const json_t *embed = json_object_get(header, "model.embed_tokens.weight"), *at = json_object_get(embed, "data_offsets");
    size_t begin = (size_t)json_integer_value(json_array_get(at, 0)), end = (size_t)json_integer_value(json_array_get(at, 1));
    CHECK_STR(json_string_value(json_object_get(embed, "dtype")), "BF16");
    snprintf(shape, size, "[%lld,%lld]", (long long)json_integer_value(json_array_get(json_object_get(embed, "shape"), 0)),
             (long long)json_integer_value(json_array_get(json_object_get(embed, "shape"), 1)));
    uint16_t *copy = malloc(end - begin);
    memcpy(copy, data + begin, end - begin);
    for (size_t i = 0; i < (end - begin) / 2; i++)
        if (copy[i] & 0x7f80) copy[i] = (uint16_t)(copy[i] + exponents * 0x80);
    *n_bytes = end - begin;
    json_decref(header), free(data);
    return copy;
}

// Logits after three tokens of the model in `dir`.
static float *run(const char *dir) {
    static const int32_t ids[] = {1, 17, 5};
    model_fixture r = model_fixture_load(dir, "dense", (sl_engine_options){.n_sequences = 1});
    sl_session *s = model_fixture_session(&r, 0);
    CHECK_OK(sl_prefill(s, ids, 3, NULL, &err), err);
    float *out = malloc((size_t)r.n_vocab * sizeof *out);
    memcpy(out, sl_session_logits(s, NULL), (size_t)r.n_vocab * sizeof *out);
    sl_session_free(s);
    model_fixture_close(&r);
    return out;
}

static void ties(void) {
    static const struct {
        int exponents; // of the head against the embeddings
        float factor;  // of the logits
        int tied;
        const char *says;
    } heads[] = {
        {0, 1, 1, "/model.safetensors: tensor lm_head.weight equals model.embed_tokens.weight"},
        {1, 2, 0, "/model.safetensors: tensor lm_head.weight differs from model.embed_tokens.weight and is used"},
    };
    cli_fingerprint prints[2];
    float *want = run("tests/goldens/tied");
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        char shape[64];
        test_lines lines;
        sl_model *model;
        test_tensor head = {.name = "lm_head.weight", .dtype = "BF16", .shape = shape};
        head.data = read_embeddings(heads[i].exponents, &head.n_bytes, shape, sizeof shape);
        test_write_model("tests/goldens/tied", &head, 1);
        CHECK_OK(load(&model, &lines), err);
        const sl_config *c = sl_model_config(model);
        char command[1024], copy[256]; // a fingerprint watches the file, which the next head replaces
        snprintf(copy, sizeof copy, "%s/copy%zu", test_tmp(), i);
        snprintf(command, sizeof command, "mkdir '%s' && cp '%s'/*.json '%s'/model.safetensors '%s'", copy, test_tmp(),
                 test_tmp(), copy);
        CHECK_INT(system(command), 0);
        CHECK_OK(cli_fingerprint_read(copy, 0, NULL, &prints[i], &err), err);
        CHECK_INT(c->tied, heads[i].tied);
        CHECK_INT(lines.n, 1);
        if (!strstr(lines.text, heads[i].says)) FAIL("the log says: %s", lines.text);
        float *got = run(test_tmp());
        for (int j = 0; j < c->n_vocab; j++)
            if (got[j] != heads[i].factor * want[j]) FAIL("head %zu, logit %d: %g, without a head %g", i, j, got[j], want[j]);
        sl_model_free(model);
        free(got), free((void *)head.data);
    }
    free(want);
    CHECK(strcmp(prints[0].config, prints[1].config)); // one config.json, but results of another head
}

// Without a head of its own an untied model cannot run: transformers would make a random one.
static void missing_head(void) {
    const test_tensor none = {.name = "lm_head.weight"};
    test_lines lines;
    sl_model *model;
    test_write_model("tests/goldens/mha", &none, 1);
    CHECK_ERR(load(&model, &lines), err, SL_ERR_FORMAT, "tensor lm_head.weight is missing; only with tie_word_embeddings true");
    test_set_field("config.json", "tie_word_embeddings", "true");
    CHECK_OK(load(&model, &lines), err);
    CHECK_INT(lines.n, 0);
    sl_model_free(model);
}

static void others(void) {
    static const float zeros[4];
    static const struct {
        const char *name, *says; // says: a part of the error, or of the log
        int is_ignored;
    } rows[] = {
        {"model.layers.0.self_attn.q_proj.bias", "part of a module that Sleigh computes without it", 0},
        {"model.layers.1.mlp.up_proj.weight_scale", "part of a module that Sleigh computes without it", 0},
        {"model.layers.1.mlp.up_proj.qzeros", "part of a module that Sleigh computes without it", 0},
        {"model.norm.bias", "part of a module that Sleigh computes without it", 0},
        {"lm_head.bias", "part of a module that Sleigh computes without it", 0},
        {"model.layers.0.self_attn.q_norm.weight", "an unknown part of a layer", 0},
        {"model.layers.0.self_attn.sinks", "part of a module", 0},
        {"model.layers.7.mlp.up_proj.weight", "of a layer beyond num_hidden_layers", 0},
        {"model.layers.7.self_attn.q_proj.bias", "of a layer beyond num_hidden_layers", 0},
        {"model.vision_tower.patch_embedding.weight", "no part of the architecture", 0},
        {"v_head.summary.weight", "no part of the architecture", 0},
        {"lora", "no part of the architecture", 0},
        {"model.layers.0.self_attn.rotary_emb.inv_freq", "1 tensor like model.layers.0.self_attn.rotary_emb.inv_freq: not used",
         1},
        {"model.rotary_emb.cos_cached", "1 tensor like model.rotary_emb.cos_cached: not used", 1},
        {"mtp.fc.weight", "1 tensor like mtp.fc.weight: not used; Sleigh has no multi-token prediction", 1},
        {"model.mtp_layers.0.input_proj.weight", "1 tensor like model.mtp_layers.0.input_proj.weight: not used", 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const test_tensor extra = {rows[i].name, "F32", "[4]", zeros, sizeof zeros};
        test_lines lines;
        sl_model *model;
        test_write_model("tests/goldens/mha", &extra, 1);
        int rc = load(&model, &lines);
        const char *said = rows[i].is_ignored ? lines.text : err.message;
        if (rc != (rows[i].is_ignored ? 0 : SL_ERR_UNSUPPORTED) || !strstr(said, rows[i].says) || !strstr(said, rows[i].name))
            FAIL("%s: returned %d, \"%s\"", rows[i].name, rc, rc ? err.message : lines.text);
        CHECK_INT(lines.n, rows[i].is_ignored);
        if (!rc) sl_model_free(model);
    }
    const test_tensor two[] = {{"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", "[4]", zeros, sizeof zeros},
                               {"model.layers.1.self_attn.rotary_emb.inv_freq", "F32", "[4]", zeros, sizeof zeros}};
    test_lines lines;
    sl_model *model;
    test_write_model("tests/goldens/mha", two, 2);
    CHECK_OK(load(&model, &lines), err);
    CHECK_INT(lines.n, 1); // one line for all layers
    CHECK(strstr(lines.text, "2 tensors like "));
    sl_model_free(model);
}

static const test_case cases[] = {{"ties", 0, ties}, {"missing-head", 0, missing_head}, {"others", 0, others}, {0}};
const test_suite suite_unbound = {"unbound", cases};
