// tests/engine/test_model_settings.c - what a folder's files say beside weights: end tokens, BOS, sampling, and a vocabulary
// that is smaller than the tokenizer's.
#include "cli/eval/fingerprint.h"
#include "engine/engine_internal.h"
#include "models/config.h"
#include "tests/support/tensor_file.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static sl_error err;

static void copy_tiny(void) {
    char command[512];
    snprintf(command, sizeof command, "cp models/tiny/*.json '%s' && rm -f '%s'/special_tokens_map.json", test_tmp(),
             test_tmp());
    CHECK_INT(system(command), 0);
    test_set_field("tokenizer_config.json", "chat_template", NULL); // its end of a turn would be an end token
}

static sl_model *load(test_lines *lines) {
    sl_model *model;
    *lines = (test_lines){0};
    const sl_model_options o = {.flags = SL_MODEL_DUMMY, .log = {.fn = test_note_line, .ctx = lines}};
    CHECK_OK(sl_model_load(test_tmp(), &o, &model, &err), err);
    return model;
}

static void end_tokens(void) {
    static const struct {
        const char *config, *generation, *tokenizer; // eos_token_id, eos_token_id, eos_token; NULL: no field
        const char *ids, *says;
    } rows[] = {
        {"1009", "1009", "\"<|eot_id|>\"", "1009 1012", ""},
        {NULL, NULL, "\"<|eot_id|>\"", "1012", ""},
        {NULL, NULL, "{\"content\":\"<|eot_id|>\",\"special\":true}", "1012", ""},
        {"[1009]", "[1012,1010]", "\"<|eot_id|>\"", "1009 1012 1010", ""},
        {NULL, "1011", NULL, "1011", ""},
        {"null", "[]", "null", "",
         "no end token is known (eos_token_id, eos_token, chat template), so an answer ends only at its limit"},
        {NULL, NULL, "\"<no such token>\"", "", "no end token is known"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char ids[128] = "";
        test_lines lines;
        copy_tiny();
        test_set_field("config.json", "eos_token_id", rows[i].config);
        test_set_field("generation_config.json", "eos_token_id", rows[i].generation);
        test_set_field("tokenizer_config.json", "eos_token", rows[i].tokenizer);
        sl_model *model = load(&lines);
        const sl_config *c = sl_model_config(model);
        for (int k = 0; k < c->n_eos; k++)
            snprintf(ids + strlen(ids), sizeof ids - strlen(ids), "%s%d", k ? " " : "", c->eos[k]);
        if (strcmp(ids, rows[i].ids)) FAIL("row %zu: end tokens %s, expected %s", i, ids, rows[i].ids);
        if (*rows[i].says ? lines.n != 1 || !strstr(lines.text, rows[i].says) : lines.n != 0)
            FAIL("row %zu: %s", i, lines.text);
        for (int id = 0; id < c->n_vocab; id++) {
            int is_listed = 0;
            for (int k = 0; k < c->n_eos; k++) is_listed |= c->eos[k] == id;
            CHECK_INT(sl_model_is_eos(model, id), is_listed);
        }
        sl_model_free(model);
    }
}

// The token that the folder's template writes after replies is an end token too.
static void end_of_turn(void) {
    test_lines lines;
    copy_tiny();
    test_set_field("config.json", "eos_token_id", "1009");
    test_set_field("generation_config.json", "eos_token_id", NULL);
    test_set_field("tokenizer_config.json", "eos_token", NULL);
    for (int i = 0; i < 2; i++) {
        sl_model *model = load(&lines);
        CHECK(sl_model_is_eos(model, 1009) && sl_model_is_eos(model, 1013) == i);
        sl_model_free(model);
        test_set_field("tokenizer_config.json", "chat_template",
                       "\"{% for m in messages %}{{ m.content }}<|reserved_special_token_0|>{% endfor %}\"");
    }
}

static void two_bos(void) {
    test_lines lines;
    copy_tiny();
    test_set_field("config.json", "bos_token_id", "1");
    sl_model_free(load(&lines));
    CHECK_INT(lines.n, 1);
    CHECK(strstr(lines.text, "bos_token_id of config.json is 1, but the tokenizer's BOS is 1008, which Sleigh uses"));
    test_set_field("config.json", "bos_token_id", NULL);
    sl_model_free(load(&lines));
    CHECK_INT(lines.n, 0);
}

// The sampling that generate, chat, sl_generate and sl_chat use.
static void sampling(void) {
    const struct {
        const char *generation;
        sl_sampling want;
    } rows[] = {
        {"{}", {.temp = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f, .repeat_penalty = 1, .repeat_last_n = 64}},
        {"{\"do_sample\":false,\"temperature\":0.6}",
         {.temp = 0, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f, .repeat_penalty = 1, .repeat_last_n = 64}},
        {"{\"do_sample\":true,\"temperature\":0.6,\"top_p\":0.9,\"top_k\":50.0,\"min_p\":0,\"repetition_penalty\":1.1}",
         {.temp = 0.6f, .top_k = 50, .top_p = 0.9f, .min_p = 0, .repeat_penalty = 1.1f, .repeat_last_n = -1}},
        {"{\"temperature\":0,\"top_k\":-1,\"top_p\":1}",
         {.temp = 0, .top_k = 0, .top_p = 1, .min_p = 0.05f, .repeat_penalty = 1, .repeat_last_n = 64}},
        {"{\"temperature\":1,\"top_k\":0,\"top_p\":null,\"max_length\":NaN}",
         {.temp = 1, .top_k = 0, .top_p = 0.95f, .min_p = 0.05f, .repeat_penalty = 1, .repeat_last_n = 64}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char path[512];
        test_lines lines;
        copy_tiny();
        snprintf(path, sizeof path, "%s/generation_config.json", test_tmp());
        FILE *f = fopen(path, "w");
        CHECK(f && fputs(rows[i].generation, f) >= 0 && !fclose(f));
        sl_model *model = load(&lines);
        const sl_sampling got = sl_model_sampling(model), *w = &rows[i].want;
        if (got.temp != w->temp || got.top_k != w->top_k || got.top_p != w->top_p || got.min_p != w->min_p ||
            got.repeat_penalty != w->repeat_penalty || got.repeat_last_n != w->repeat_last_n)
            FAIL("%s: temp %g, top_k %d, top_p %g, min_p %g, penalty %g of %d", rows[i].generation, got.temp, got.top_k,
                 got.top_p, got.min_p, got.repeat_penalty, got.repeat_last_n);
        CHECK(got.presence_penalty == 0 && got.frequency_penalty == 0 && got.seed == 0);
        sl_sampling own = {
            .temp = 0.5f, .top_k = 3, .top_p = NAN, .min_p = 0.5f, .repeat_penalty = 2, .repeat_last_n = SL_UNSET};
        const sl_sampling otherwise = sl_sampling_default();
        sl_sampling_complete(model, &otherwise, &own); // what the caller sets stays
        CHECK(own.temp == 0.5f && own.top_k == 3 && own.top_p == w->top_p && own.min_p == 0.5f && own.repeat_penalty == 2);
        CHECK_INT(own.repeat_last_n, 64); // the caller's penalty is no penalty of the model
        sl_model_free(model);
    }
}

static float any_float(uint64_t *seed) { // or NaN: not given
    return test_uniform(seed) < 0.4 ? NAN : (float)test_uniform(seed);
}

static float first_of(float a, float b, float c) {
    return !isnan(a) ? a : !isnan(b) ? b : c;
}

// Every field: the caller's value, else the model's, else the other one.
static void order_of_sampling(void) {
    uint64_t seed = test_seed;
    for (int i = 0; i < 2000; i++) {
        sl_model model = {.config = {.gen_temp = any_float(&seed),
                                     .gen_top_p = any_float(&seed),
                                     .gen_min_p = any_float(&seed),
                                     .gen_repeat_penalty = any_float(&seed),
                                     .gen_top_k = (int)(4 * test_uniform(&seed)) - 1,
                                     .gen_do_sample = (int)(3 * test_uniform(&seed)) - 1}};
        const sl_config *c = &model.config;
        const sl_sampling last = {2, 12, 3, 4, 5, 13, 6, 7, NULL, 0, 8}, own = {.temp = any_float(&seed),
                                                                                .top_k = i % 3 ? SL_UNSET : i % 5,
                                                                                .top_p = any_float(&seed),
                                                                                .min_p = any_float(&seed),
                                                                                .repeat_penalty = any_float(&seed),
                                                                                .repeat_last_n = i % 2 ? SL_UNSET : i % 7 - 1,
                                                                                .presence_penalty = any_float(&seed),
                                                                                .frequency_penalty = any_float(&seed),
                                                                                .seed = 9};
        int is_models = isnan(own.repeat_penalty) && !isnan(c->gen_repeat_penalty);
        sl_sampling got = own;
        sl_sampling_complete(&model, &last, &got);
        CHECK(got.temp == first_of(own.temp, c->gen_do_sample == 0 ? 0 : c->gen_temp, last.temp));
        CHECK(got.top_p == first_of(own.top_p, c->gen_top_p, last.top_p));
        CHECK(got.min_p == first_of(own.min_p, c->gen_min_p, last.min_p));
        CHECK(got.repeat_penalty == first_of(own.repeat_penalty, c->gen_repeat_penalty, last.repeat_penalty));
        CHECK(got.presence_penalty == first_of(own.presence_penalty, NAN, last.presence_penalty));
        CHECK(got.frequency_penalty == first_of(own.frequency_penalty, NAN, last.frequency_penalty));
        CHECK_INT(got.top_k, own.top_k != SL_UNSET ? own.top_k : c->gen_top_k != -1 ? c->gen_top_k : last.top_k);
        CHECK_INT(got.repeat_last_n, own.repeat_last_n != SL_UNSET ? own.repeat_last_n : is_models ? -1 : last.repeat_last_n);
        CHECK_INT(got.seed, 9);
    }
}

// Operations counted token by token and layer by layer. In the last layer, only the last token needs more than its K and V.
static void operations(void) {
    const sl_model model = {
        .config = {.n_layers = 3, .hidden = 20, .n_ffn = 28, .n_heads = 6, .n_kv_heads = 2, .head_dim = 5, .n_vocab = 41}};
    const sl_config *c = &model.config;
    for (int from = 0; from < 9; from += 4)
        for (int n = 1; n < 6; n++) {
            double products = c->n_vocab * c->hidden; // a product and its sum are two operations
            for (int layer = 0; layer < c->n_layers; layer++)
                for (int i = 0; i < n; i++) {
                    products += 2 * c->n_kv_heads * c->head_dim * c->hidden;
                    if (layer + 1 == c->n_layers && i + 1 < n) continue;
                    products += 2 * c->n_heads * c->head_dim * c->hidden + 3 * c->hidden * c->n_ffn;
                    for (int key = 0; key <= from + i; key++) products += 2 * c->n_heads * c->head_dim;
                }
            CHECK_NEAR(sl_model_prefill_flops(&model, from, n), 2 * products, 0);
        }
}

typedef struct heard {
    char text[1024];
} heard;

static int hear(void *ctx, const char *text, size_t n) {
    heard *h = ctx;
    CHECK(strlen(h->text) + n < sizeof h->text);
    strncat(h->text, text, n);
    return 0;
}

// The embedded model's generation_config.json says do_sample false, so no seed changes a text.
static void library_defaults(void) {
    sl_model *model;
    sl_engine *engine;
    heard texts[3] = {0};
    CHECK_OK(sl_model_load("models/tiny", NULL, &model, &err), err);
    CHECK_OK(sl_engine_new(model, &(sl_engine_options){.n_ctx = 256, .n_threads = 1}, &engine, &err), err);
    for (int i = 0; i < 3; i++) {
        sl_generation o = sl_generation_default();
        o.max_tokens = 24, o.sampling.seed = 7u * (unsigned)i;
        if (i == 2) o.sampling.temp = 1.5f; // the caller's value
        CHECK_OK(sl_generate(engine, "The old river", &o, hear, &texts[i], NULL, &err), err);
    }
    CHECK_STR(texts[1].text, texts[0].text);
    CHECK(strcmp(texts[2].text, texts[0].text));
    sl_engine_free(engine);
    sl_model_free(model);
}

// A tokenizer may have more ids than the model. A prompt that holds one of them is refused.
static void small_vocabulary(void) {
    static const char prompt[] = "The old<|eot_id|>";
    test_lines lines;
    sl_engine *engine;
    copy_tiny();
    test_set_field("config.json", "vocab_size", "1010");
    test_set_field("config.json", "eos_token_id", "1009");
    test_set_field("generation_config.json", "eos_token_id", NULL);
    test_set_field("tokenizer_config.json", "eos_token", "\"<|eot_id|>\"");
    sl_model *model = load(&lines);
    CHECK_INT(lines.n, 1);
    CHECK(strstr(lines.text, "the tokenizer has ids up to 1023, and vocab_size is 1010"));
    CHECK(sl_model_config(model)->n_eos == 1 && sl_model_config(model)->eos[0] == 1009); // 1012 is never sampled
    CHECK_OK(sl_model_materialise(model, 1, NULL, NULL, &err), err);
    CHECK_OK(sl_engine_new(model, &(sl_engine_options){.n_ctx = 64, .n_threads = 1}, &engine, &err), err);
    sl_generation o = sl_generation_default();
    o.max_tokens = 4;
    CHECK_ERR(sl_generate(engine, prompt, &o, NULL, NULL, NULL, &err), err, SL_ERR_ARG,
              "id 1012 (<|eot_id|>), expected 0 to 1009");
    CHECK_OK(sl_generate(engine, "The old", &o, NULL, NULL, NULL, &err), err);
    sl_engine_free(engine);
    sl_model_free(model);
}

// Each file that decides ids or numbers changes a fingerprint, and no other one.
static void fingerprints(void) {
    static const struct {
        const char *file, *field, *value;
        int is_tokenizer;
    } rows[] = {
        {"config.json", "sliding_window", "512", 0},
        {"generation_config.json", "top_k", "7", 0},
        {"tokenizer.json", "version", "\"2.0\"", 1},
        {"tokenizer_config.json", "model_max_length", "77", 1},
        {"special_tokens_map.json", "pad_token", "\"<|eot_id|>\"", 1},
    };
    cli_fingerprint before, after;
    char command[512];
    snprintf(command, sizeof command, "cp models/tiny/*.json '%s'", test_tmp());
    CHECK_INT(system(command), 0);
    CHECK_OK(cli_fingerprint_read(test_tmp(), 1, NULL, &before, &err), err);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        test_set_field(rows[i].file, rows[i].field, rows[i].value);
        CHECK_OK(cli_fingerprint_read(test_tmp(), 1, NULL, &after, &err), err);
        if ((strcmp(before.config, after.config) == 0) != rows[i].is_tokenizer) FAIL("%s: the config's hash", rows[i].file);
        if ((strcmp(before.tokenizer, after.tokenizer) == 0) == rows[i].is_tokenizer)
            FAIL("%s: the tokenizer's hash", rows[i].file);
        before = after;
    }
    const sl_rope_options rope = {.theta = 1e6};
    CHECK_OK(cli_fingerprint_read(test_tmp(), 1, &rope, &after, &err), err);
    CHECK(strcmp(before.config, after.config));
}

static const test_case cases[] = {{"fingerprints", 0, fingerprints},
                                  {"end-tokens", 0, end_tokens},
                                  {"end-of-turn", 0, end_of_turn},
                                  {"bos", 0, two_bos},
                                  {"sampling", 0, sampling},
                                  {"order-of-sampling", 0, order_of_sampling},
                                  {"operations", 0, operations},
                                  {"library-defaults", 0, library_defaults},
                                  {"small-vocabulary", 0, small_vocabulary},
                                  {0}};
const test_suite suite_model_settings = {"model_settings", cases};
