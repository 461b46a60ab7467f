// tests/backend/test_dummy.c - dummy models (random weights, made from config.json only): their shapes and values, equal values
// for any number of threads, and the commands' flags for them.
#include "attention/stages/stages.h"
#include "backend/dummy_weights.h"
#include "base/philox.h"
#include "models/safetensors.h"
#include "engine/engine_internal.h"
#include "tests/support/run_cli.h"
#include "base/quantile.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

static sl_error err;

static const char *write_config(int tied) {
    char text[1024];
    int n = snprintf(text, sizeof text,
                     "{\"model_type\":\"llama\",\"hidden_size\":96,\"num_hidden_layers\":2,\"num_attention_heads\":4,"
                     "\"num_key_value_heads\":2,\"head_dim\":32,\"intermediate_size\":160,\"vocab_size\":301,"
                     "\"max_position_embeddings\":2048,\"eos_token_id\":7,\"tie_word_embeddings\":%s}",
                     tied ? "true" : "false");
    spill(in_tmp("config.json"), text, (size_t)n);
    return test_tmp();
}

static sl_model *load(const char *dir) {
    sl_model *model;
    CHECK_OK(sl_model_load(dir, &(sl_model_options){.flags = SL_MODEL_DUMMY}, &model, &err), err);
    CHECK(sl_model_is_dummy(model));
    return model;
}

static void shapes_without_memory(void) {
    sl_model *model = load(write_config(0));
    const sl_tensors *t = sl_model_tensors(model);
    sl_engine *engine;
    CHECK_INT(sl_tensors_count(t), 3 + 2 * 9);
    for (int i = 0; i < sl_tensors_count(t); i++) CHECK(!sl_tensors_at(t, i)->data);
    CHECK_INT(sl_tensors_bytes(t), 2 * (2 * 301 * 96 + 96 + 2 * (2 * 96 + 2 * 96 * 128 + 2 * 96 * 64 + 3 * 96 * 160)));
    const sl_tensor *k = sl_tensors_find(t, "model.layers.1.self_attn.k_proj.weight");
    CHECK(k && k->n_dims == 2 && k->dims[0] == 64 && k->dims[1] == 96);
    CHECK_STR(k->dtype_name, "BF16");
    CHECK(!sl_model_tokenizer(model));
    CHECK_INT(sl_model_decode_bytes(model), sl_tensors_bytes(t) - 2 * 301 * 96); // a step reads one row of the embedding table
    CHECK_ERR(sl_engine_new(model, &(sl_engine_options){0}, &engine, &err), err, SL_ERR_ARG, "not made yet");
    sl_model_free(model);
    model = load(write_config(1));
    CHECK_INT(sl_tensors_count(sl_model_tensors(model)), 2 + 2 * 9);
    CHECK_INT(sl_model_decode_bytes(model), sl_tensors_bytes(sl_model_tensors(model))); // tied: the head reads all of it
    sl_model_free(model);
}

static void progress(void *ctx, int done, int total) {
    CHECK(done >= *(int *)ctx && done <= total);
    *(int *)ctx = done;
}

// Each element is the value of the formula in dummy_weights.h, with one thread and with three.
static void weights(void) {
    int last = 0;
    const sl_progress p = {progress, &last};
    sl_model *a = load(write_config(0)), *b = load(test_tmp());
    CHECK_INT(sl_model_bytes_to_allocate(a), sl_tensors_bytes(sl_model_tensors(a)));
    CHECK_OK(sl_model_materialise(a, 1, &p, NULL, &err), err);
    CHECK_INT(sl_model_bytes_to_allocate(a), 0);
    CHECK_OK(sl_model_materialise(b, 3, NULL, NULL, &err), err);
    CHECK_OK(sl_model_materialise(b, 2, NULL, NULL, &err), err); // the weights exist: does nothing
    for (int i = 0; i < sl_tensors_count(sl_model_tensors(a)); i++) {
        const sl_tensor *x = sl_tensors_at(sl_model_tensors(a), i), *y = sl_tensors_at(sl_model_tensors(b), i);
        const bf16 *w = x->data;
        size_t n = x->n_bytes / 2;
        uint64_t key = sl_dummy_key(x->name);
        CHECK(x->data != y->data && (uintptr_t)x->data % 64 == 0);
        CHECK(!memcmp(x->data, y->data, x->n_bytes));
        for (size_t j = 0; j < n; j++) {
            if (x->n_dims == 1) {
                CHECK(sl_bf16_to_f32(w[j]) == 1);
                continue;
            }
            sl_philox4 r = sl_philox((uint32_t)key, (uint32_t)(key >> 32), (uint32_t)(j / 8), 0, 0, SL_STREAM_WEIGHTS);
            uint32_t word = r.v[j % 8 / 2] >> (j % 2 ? 16 : 0) & 0xffff;
            double q = sl_normal_quantile((word + 0.5) / 65536), of_queries = 4 / (0.02 * 96);
            if (w[j] != sl_f32_to_bf16((float)((strstr(x->name, "q_proj") ? of_queries : 0.02) * q)))
                FAIL("%s: element %zu is wrong", x->name, j);
        }
    }
    sl_model_free(a), sl_model_free(b);
}

static void distribution(void) { // moments of a million numbers, within five standard deviations
    enum { N = 1 << 20 };
    bf16 *w = malloc(N * sizeof *w), *quantiles = malloc(SL_DUMMY_QUANTILES * sizeof *quantiles), part[24];
    sl_dummy_quantiles(0.02, quantiles);
    sl_dummy_fill(sl_dummy_key("a"), quantiles, 0, N, w);
    double moment[5] = {0}, neighbours = 0;
    for (int i = 0; i < N; i++) {
        double x = sl_bf16_to_f32(w[i]) / 0.02, power = x;
        for (int m = 1; m <= 4; m++, power *= x) moment[m] += power / N;
        if (i > 0) neighbours += x * sl_bf16_to_f32(w[i - 1]) / 0.02 / N;
    }
    CHECK_NEAR(moment[1], 0, 5 / sqrt(N));
    CHECK_NEAR(moment[2], 1, 5 * sqrt(2.0 / N) + 1e-4); // quantiles of 16 bits have 4e-5 less variance
    CHECK_NEAR(moment[3], 0, 5 * sqrt(15.0 / N));
    CHECK_NEAR(moment[4], 3, 5 * sqrt(96.0 / N) + 3e-3);
    CHECK_NEAR(neighbours, 0, 5 / sqrt(N));
    sl_dummy_fill(sl_dummy_key("a"), quantiles, 4096, 21,
                  part); // a part from the middle; it ends within a Philox block
    CHECK(!memcmp(part, w + 4096, 21 * sizeof *part));
    sl_dummy_fill(sl_dummy_key("b"), quantiles, 0, 24, part);
    CHECK(memcmp(part, w, sizeof part));
    free(w), free(quantiles);
}

static void runs(void) {
    for (int tied = 0; tied < 2; tied++) {
        sl_model *model = load(write_config(tied));
        sl_engine *engine;
        sl_session *s;
        int32_t ids[300], next = 5;
        for (int i = 0; i < 300; i++) ids[i] = i;
        CHECK_OK(sl_model_materialise(model, 0, NULL, NULL, &err), err);
        CHECK_OK(sl_engine_new(model, &(sl_engine_options){.n_ctx = 512}, &engine, &err), err);
        CHECK_OK(sl_session_new(engine, 0, &s, &err), err);
        CHECK_OK(sl_prefill(s, ids, 300, NULL, &err), err);
        CHECK_OK(sl_decode(&s, 1, &next, &err), err);
        double square = 0;
        for (int i = 0; i < 301; i++) square += (double)sl_session_logits(s, NULL)[i] * sl_session_logits(s, NULL)[i];
        CHECK(square > 0 && isfinite(square));
        sl_session_free(s);
        sl_engine_free(engine);
        sl_model_free(model);
    }
}

static void load_errors(void) {
    sl_model *model;
    CHECK_ERR(sl_model_load(test_tmp(), &(sl_model_options){.flags = SL_MODEL_DUMMY}, &model, &err), err, SL_ERR_IO,
              "config.json");
    write_config(0);
    CHECK_ERR(sl_model_load(test_tmp(), NULL, &model, &err), err, SL_ERR_IO, "SL_MODEL_DUMMY makes");
    spill(in_tmp("tokenizer.json"), "{", 1); // a tokenizer.json that exists must be valid
    CHECK_ERR(sl_model_load(test_tmp(), &(sl_model_options){.flags = SL_MODEL_DUMMY}, &model, &err), err, SL_ERR_FORMAT,
              "tokenizer.json");
    CHECK_OK(sl_model_load("models/tiny", NULL, &model, &err), err);
    CHECK(!sl_model_is_dummy(model));
    CHECK_OK(sl_model_materialise(model, 0, NULL, NULL, &err), err); // the model has weights: does nothing
    sl_model_free(model);
    CHECK_OK(sl_model_load("models/tiny", &(sl_model_options){.flags = SL_MODEL_DUMMY}, &model, &err),
             err); // the weights of the folder are not read
    CHECK(sl_model_is_dummy(model) && sl_model_tokenizer(model));
    sl_model_free(model);
}

static void too_large(void) { // two terabytes: loading works, because it needs shapes only; making the weights fails
    static const char config[] = "{\"model_type\":\"llama\",\"hidden_size\":65536,\"num_hidden_layers\":1,"
                                 "\"num_attention_heads\":256,\"head_dim\":128,\"intermediate_size\":65536,"
                                 "\"vocab_size\":16777216,\"tie_word_embeddings\":true}";
    spill(in_tmp("config.json"), config, strlen(config));
    sl_model *model = load(test_tmp());
    CHECK_ERR(sl_model_materialise(model, 0, NULL, NULL, &err), err, SL_ERR_MEMORY, "do not fit into memory");
    CHECK(!sl_tensors_at(sl_model_tensors(model), 0)->data);
    sl_model_free(model);
}

static void shipped_configs(void) {
    static const struct {
        const char *dir;
        long long parameters;
        int n_ctx;
        int32_t eos[2];
    } models[] = {{"models/llama-3.1-8b", 8030261248, 131072, {128001, 128009}},
                  {"models/llama-3.1-70b", 70553706496, 131072, {128001, 128009}},
                  {"models/llama-3.2-1b", 1235814400, 131072, {128001, 128009}},
                  {"models/llama-3.2-3b", 3212749824, 131072, {128001, 128009}},
                  {"models/qwen2.5-7b", 7615616512, 32768, {151643, 151645}},
                  {"models/qwen3-8b", 8190735360, 40960, {151643, 151645}}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        sl_model *model = load(models[i].dir);
        CHECK_INT(sl_tensors_bytes(sl_model_tensors(model)) / 2, models[i].parameters);
        CHECK_INT(sl_model_config(model)->n_ctx, models[i].n_ctx);
        for (int e = 0; e < 2; e++) CHECK(sl_model_is_eos(model, models[i].eos[e]));
        sl_model_free(model);
    }
}

// ---- the commands ----

static void generating(void) {
    const char *dir = write_config(0);
    result a =
        RUN("generate", "-m", dir, "--load-format", "dummy", "--random-prompt", "300", "-n", "12", "--ignore-eos", "-t", "1");
    result b =
        RUN("generate", "-m", dir, "--load-format", "dummy", "--random-prompt", "300", "-n", "12", "--ignore-eos", "-t", "2");
    result c = RUN("generate", "-m", dir, "--load-format", "dummy", "--random-prompt", "300", "-n", "12", "--seed", "1");
    check_same(&a, &b);
    CHECK_GOOD(c);
    CHECK(strcmp(a.out, c.out));
    CHECK_HAS(a.err, "dummy weights");
    CHECK_INT(stat_count(&a, "prefill"), 300);
    int n = 0, id, at = 0;
    for (const char *p = a.out; sscanf(p, "%d%n", &id, &at) == 1; p += at, n++) CHECK(id >= 0 && id < 301 && id != 7);
    CHECK_INT(n, 12);
    spill(in_tmp("ids"), "1 2,3\n4", 7);
    result d = RUN("generate", "-m", dir, "--load-format", "dummy", "--ids", in_tmp("ids"), "-n", "1", "--ignore-eos");
    CHECK_GOOD(d);
    CHECK_INT(stat_count(&d, "prefill"), 4);
    result text = RUN("generate", "-m", tiny(), "--load-format", "dummy", "-p", question, "-n", "4"); // with its tokenizer
    CHECK_GOOD(text);
    result again = RUN("generate", "-m", tiny(), "--ids", in_tmp("ids"), "-n", "4"); // --ids works for any model
    CHECK_GOOD(again);
    result l = RUN("logits", "-m", dir, "--load-format", "dummy", "--ids", in_tmp("ids"), "-o", in_tmp("x.npy"));
    CHECK_GOOD(l);
    result i = RUN("inspect", "-m", dir, "--load-format", "dummy", "--tensors");
    CHECK_GOOD(i);
    CHECK_HAS(i.out, "| lm_head.weight | BF16 | [301, 96] |");
}

static void command_errors(void) {
    write_config(0);
    static const struct {
        const char *args[6], *part;
        int code;
    } cases[] = {
        {{"generate", "-p", "x"}, "no tokenizer", 2},
        {{"chat", "--chat-template", "llama3"}, "no tokenizer", 2},
        {{"generate", "--random-prompt", "4", "--stop", "x"}, "--stop needs a tokenizer", 2},
        {{"generate", "--random-prompt", "4", "-p", "x"}, "--prompt cannot be used with --random-prompt", 2},
        {{"generate", "--random-prompt", "4", "--ids", "y"}, "--random-prompt cannot be used with --ids", 2},
        {{"generate", "--random-prompt", "4", "--jsonl", "y"}, "--random-prompt cannot be used with --jsonl", 2},
        {{"generate", "--random-prompt", "4k"}, "--random-prompt 4096: expected 1 to 2048", 2},
        {{"generate", "--ids", "/no/such/ids"}, "/no/such/ids", 1},
        {{"generate", "--random-prompt", "4", "--load-format", "gguf"},
         "--load-format gguf: expected one of auto,safetensors,dummy",
         2},
        {{"generate", "--random-prompt", "4", "--load-format", "auto"}, "neither model.safetensors", 1},
        {{"inspect", "-m", "/no/such/folder"}, "/no/such/folder: there is no such folder", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *args[12] = {cases[i].args[0], "-m", test_tmp(), "--load-format", "dummy"};
        for (int j = 1; j < 6 && cases[i].args[j]; j++) args[4 + j] = cases[i].args[j];
        result r = run_args(NULL, args);
        check_error(&r, cases[i].code, cases[i].part);
    }
    spill(in_tmp("ids"), "1 301", 5);
    result r = RUN("generate", "-m", test_tmp(), "--load-format", "dummy", "--ids", in_tmp("ids"));
    check_error(&r, 1, "id 301 at index 1; expected 0 to 300");
}

static const test_case cases[] = {
    {"shapes-without-memory", 0, shapes_without_memory},
    {"weights", 0, weights},
    {"distribution", 0, distribution},
    {"runs", 0, runs},
    {"load-errors", 0, load_errors},
    {"too-large", 0, too_large},
    {"shipped-configs", 0, shipped_configs},
    {"generating", 0, generating},
    {"command-errors", 0, command_errors},
    {0},
};
extern const test_suite suite_dummy;
const test_suite suite_dummy = {"dummy", cases};
