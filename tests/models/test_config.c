// tests/models/test_config.c - config.json against transformers' config classes (tests/goldens/configs.jsonl, which
// scripts/goldens/make_configs.py makes), and sliding windows.
#include "engine/engine.h"
#include "models/config.h"
#include "tests/support/tensor_file.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static sl_error err;

static void write_config(const json_t *root) {
    char path[512];
    snprintf(path, sizeof path, "%s/config.json", test_tmp());
    CHECK_INT(json_dump_file(root, path, 0), 0);
}

static double number(const json_t *object, const char *name, double otherwise) {
    const json_t *v = json_object_get(object, name);
    return v ? (json_is_boolean(v) ? json_is_true(v) : json_number_value(v)) : otherwise;
}

#define SAME(got, want)                                                                                                        \
    do {                                                                                                                       \
        double g_ = (got), w_ = (want);                                                                                        \
        if ((float)g_ != (float)w_) FAIL("%s: %s is %.9g, transformers reads %.9g", text, #got, g_, w_);                       \
    } while (0)

static void compare(const char *text, const sl_config *c, const json_t *want) {
    const json_t *rope = json_object_get(want, "rope");
    const char *type = json_string_value(json_object_get(rope, "rope_type"));
    double window = number(want, "window", 0), n_trained = number(want, "n_trained", 0);
    SAME(c->n_kv_heads, number(want, "n_kv_heads", 0));
    SAME(c->head_dim, number(want, "head_dim", 0));
    SAME(c->n_trained, n_trained);
    SAME(c->norm_eps, number(want, "norm_eps", 0));
    SAME(c->tied, number(want, "tied", 0));
    SAME(c->window, window);
    SAME(c->n_ctx, window && window < n_trained ? window : n_trained);
    if (strcmp(sl_config_rope_name(c), strcmp(type, "default") ? type : "plain"))
        FAIL("%s: RoPE is %s, transformers reads %s", text, sl_config_rope_name(c), type);
    SAME(c->rope_theta, number(rope, "rope_theta", 0));
    SAME(c->rope_factor, number(rope, "factor", 1));
    if (c->rope_type == SL_ROPE_LLAMA3 || c->rope_type == SL_ROPE_YARN)
        SAME(c->rope_original_ctx, number(rope, "original_max_position_embeddings", 0));
    SAME(c->rope_low_freq, number(rope, "low_freq_factor", 0));
    SAME(c->rope_high_freq, number(rope, "high_freq_factor", 0));
    if (c->rope_type != SL_ROPE_YARN) return;
    SAME(c->rope_beta_fast, number(rope, "beta_fast", 32));
    SAME(c->rope_beta_slow, number(rope, "beta_slow", 1));
    SAME(c->rope_truncate, number(rope, "truncate", 1));
}

static void goldens(void) {
    FILE *f = fopen("tests/goldens/configs.jsonl", "rb");
    if (!f) FAIL("cannot open tests/goldens/configs.jsonl");
    json_t *head = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL);
    int n = 0, n_refused = 0;
    for (json_t *row; (row = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL)); json_decref(row), n++) {
        json_t *fields = json_object_get(row, "config"), *want = json_object_get(row, "read");
        char *text = json_dumps(fields, JSON_COMPACT);
        json_object_update(fields, json_object_get(head, "shape"));
        write_config(fields);
        sl_config c;
        int rc = sl_config_load(&SL_FOLDER(test_tmp()), &c, &err);
        if (json_is_null(want) != (rc != 0)) FAIL("%s: returned %d, \"%s\"", text, rc, rc ? err.message : "");
        if (!rc) compare(text, &c, want);
        n_refused += rc != 0;
        free(text);
    }
    json_decref(head);
    fclose(f);
    CHECK_INT(n, 57);
    CHECK_INT(n_refused, 4);
}

// A window limits the context, also with another RoPE. A model with a window gives the logits of one without it.
static void windows(void) {
    static const struct {
        const char *window;
        int n_ctx, most; // asked for; the model's limit
        const char *says;
    } rows[] = {
        {"null", 512, 512, NULL},
        {"64", 0, 64, NULL},
        {"64", 64, 64, NULL},
        {"64", 65, 64, "{n_ctx} 65: expected 1 to 64, this model's limit (sliding_window)"},
        {"512", 513, 512, "this model's limit (sliding_window)"},
        {"511", 512, 511, "this model's limit (sliding_window)"},
        {"1024", 512, 512, NULL},
        {"1024", 513, 512, "this model's limit (max_position_embeddings)"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        sl_model *model;
        sl_engine *engine;
        test_write_model("tests/goldens/mistral", NULL, 0);
        test_set_field("config.json", "sliding_window", rows[i].window);
        CHECK_OK(sl_model_load(test_tmp(), &(sl_model_options){.flags = SL_MODEL_NO_TOKENIZER}, &model, &err), err);
        CHECK_INT(sl_model_n_ctx(model), rows[i].most);
        int rc = sl_engine_new(model, &(sl_engine_options){.n_ctx = rows[i].n_ctx, .n_threads = 1}, &engine, &err);
        char says[256] = "";
        for (const char *p = rows[i].says ? rows[i].says : ""; *p; p++)
            if (*p != '{' && *p != '}') strncat(says, p, 1);
        if (rc != (rows[i].says ? SL_ERR_ARG : 0) || (rc && !strstr(err.message, says)))
            FAIL("window %s, context %d: returned %d, \"%s\"", rows[i].window, rows[i].n_ctx, rc, rc ? err.message : "");
        if (!rc) {
            CHECK_INT(sl_engine_n_ctx(engine), rows[i].n_ctx ? rows[i].n_ctx : rows[i].most);
            sl_engine_free(engine);
        }
        sl_model_free(model);
    }
    sl_config c;
    test_set_field("config.json", "sliding_window", "1000");
    CHECK_OK(sl_config_load(&SL_FOLDER(test_tmp()), &c, &err), err);
    CHECK_OK(sl_config_change_rope(&c, &(sl_rope_options){.scaling = "linear", .factor = 4}, &err), err);
    CHECK(c.n_trained == 512 && c.n_ctx == 1000 && c.n_scaled == 1000);
    CHECK_STR(sl_config_limit(&c), "sliding_window");
    test_set_field("config.json", "sliding_window", "null");
    CHECK_OK(sl_config_load(&SL_FOLDER(test_tmp()), &c, &err), err);
    CHECK_OK(sl_config_change_rope(&c, &(sl_rope_options){.scaling = "linear", .factor = 4}, &err), err);
    CHECK(c.n_ctx == SL_MOST_POSITIONS && c.n_scaled == 2048);
}

static void sliding_layers(void) {
    static const struct {
        const char *model_type, *fields, *says; // says: the error; NULL: it loads
        int window;
    } rows[] = {
        {"qwen2", "{\"layer_types\":[\"full_attention\",\"sliding_attention\"]}", "but use_sliding_window is false", 0},
        {"qwen2",
         "{\"use_sliding_window\":true,\"sliding_window\":null,\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
         "but sliding_window is not given", 0},
        {"llama", "{\"layer_types\":[\"full_attention\",\"sliding_attention\"]}", "but sliding_window is not given", 0},
        {"llama", "{\"layer_types\":[\"full_attention\",\"sliding_attention\"],\"sliding_window\":64}", NULL, 64},
        {"llama", "{\"sliding_window\":64}", NULL, 64},
        {"llama", "{\"sliding_window\":64,\"use_sliding_window\":false}", NULL, 0},
        {"llama", "{\"layer_types\":[\"full_attention\",\"chunked_attention\"]}", "layer_types has \"chunked_attention\"", 0},
        {"llama", "{\"layer_types\":[\"full_attention\",1]}", "layer_types has 1, supported are", 0},
        {"llama", "{\"layer_types\":\"full_attention\"}", "layer_types has 0 entries, expected 2", 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *root = json_loads(rows[i].fields, 0, NULL);
        json_object_update_new(root, json_pack("{s:s,s:i,s:i,s:i,s:i,s:i}", "model_type", rows[i].model_type, "vocab_size", 64,
                                               "hidden_size", 64, "intermediate_size", 64, "num_hidden_layers", 2,
                                               "num_attention_heads", 4));
        json_object_set_new(root, "num_key_value_heads", json_integer(4));
        write_config(root);
        json_decref(root);
        sl_config c;
        int rc = sl_config_load(&SL_FOLDER(test_tmp()), &c, &err);
        if (rc != (!rows[i].says                     ? 0
                   : strstr(rows[i].says, "entries") ? SL_ERR_FORMAT
                                                     : SL_ERR_UNSUPPORTED) ||
            (rc && !strstr(err.message, rows[i].says)))
            FAIL("%s: returned %d, \"%s\"", rows[i].fields, rc, rc ? err.message : "");
        if (!rc) CHECK_INT(c.window, rows[i].window);
    }
}

// ---- bounds ----

typedef struct bound {
    const char *file, *part, *field; // part: an object of the file; "": the file
    double low, high;
    int is_int;
} bound;

// Returns the error of a folder whose field has this value; "": none.
static const char *error_of(const bound *b, double x) {
    json_t *root =
        json_pack("{s:s,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:b,s:i}", "model_type", "qwen2", "vocab_size", 64, "hidden_size", 64,
                  "intermediate_size", 64, "num_hidden_layers", 2, "num_attention_heads", 4, "num_key_value_heads", 4,
                  "max_position_embeddings", 512, "use_sliding_window", 1, "sliding_window", 256);
    const json_t *good = json_string(b->part[0] == 'l' ? "llama3" : "yarn");
    json_t *part = json_object(), *generation = json_object();
    if (b->part[0])
        json_object_update_new(part, json_pack("{s:o,s:f,s:f,s:f}", "rope_type", good, "factor", 2.0, "low_freq_factor", 1.0,
                                               "high_freq_factor", 4.0));
    else
        json_decref((json_t *)good);
    if (b->part[0] == 'y') json_object_del(part, "low_freq_factor"), json_object_del(part, "high_freq_factor");
    json_t *value = b->is_int ? json_integer((json_int_t)x) : json_real(x);
    json_object_set_new(b->part[0] ? part : b->file[0] == 'g' ? generation : root, b->field, value);
    if (b->part[0]) json_object_set(root, "rope_scaling", part);
    write_config(root);
    char path[512];
    snprintf(path, sizeof path, "%s/generation_config.json", test_tmp());
    CHECK_INT(json_dump_file(generation, path, 0), 0);
    json_decref(root), json_decref(part), json_decref(generation);
    sl_config c;
    int rc = sl_config_load(&SL_FOLDER(test_tmp()), &c, &err);
    if (rc) CHECK(rc == SL_ERR_FORMAT || rc == SL_ERR_UNSUPPORTED);
    return rc ? err.message : "";
}

// Every number of config.json and generation_config.json one step outside and on both of its bounds. A value on a bound may be
// refused for another reason, such as a number of heads that does not divide the hidden size.
static void bounds(void) {
    static const bound rows[] = {
        {"c", "", "vocab_size", 1, 1 << 24, 1},
        {"c", "", "hidden_size", 1, 1 << 20, 1},
        {"c", "", "intermediate_size", 1, 1 << 20, 1},
        {"c", "", "num_hidden_layers", 1, 1024, 1},
        {"c", "", "num_attention_heads", 1, 1024, 1},
        {"c", "", "num_key_value_heads", 1, 4, 1}, // the query heads
        {"c", "", "head_dim", 1, 1024, 1},
        {"c", "", "max_position_embeddings", 1, 1 << 28, 1},
        {"c", "", "rms_norm_eps", 0, 1, 0},
        {"c", "", "sliding_window", 1, 1 << 28, 1},
        {"c", "", "max_window_layers", 0, 1 << 20, 1},
        {"c", "", "bos_token_id", 0, 63, 1},
        {"c", "", "rope_theta", 1, 1e12, 0},
        {"c", "llama3", "low_freq_factor", 1e-3, 1e6, 0},
        {"c", "llama3", "high_freq_factor", 1e-3, 1e6, 0},
        {"c", "llama3", "factor", 1, 1e6, 0},
        {"c", "llama3", "original_max_position_embeddings", 1, 1 << 28, 1},
        {"c", "yarn", "beta_fast", 1e-3, 1e6, 0},
        {"c", "yarn", "beta_slow", 1e-3, 1e6, 0},
        {"c", "yarn", "mscale", 0, 1e3, 0},
        {"c", "yarn", "mscale_all_dim", 0, 1e3, 0},
        {"c", "yarn", "attention_factor", 1e-6, 1e3, 0},
        {"g", "", "temperature", 0, 1e6, 0},
        {"g", "", "top_p", 0, 1, 0},
        {"g", "", "min_p", 0, 1, 0},
        {"g", "", "repetition_penalty", 1e-6, 1e6, 0},
        {"g", "", "top_k", -1, 1 << 30, 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const bound *b = &rows[i];
        double step_low = b->is_int ? 1 : b->low ? b->low * 1e-6 : 1e-9, step_high = b->is_int ? 1 : b->high * 1e-6;
        const double outside[] = {b->low - step_low, b->high + step_high}, inside[] = {b->low, b->high};
        char says[100];
        snprintf(says, sizeof says, "field %s is ", b->field);
        for (int j = 0; j < 2; j++) {
            const char *found = error_of(b, outside[j]);
            if (!strstr(found, says) || !strstr(found, ", expected ") || err.code != SL_ERR_FORMAT)
                FAIL("%s of %.9g: \"%s\"", b->field, outside[j], found);
            found = error_of(b, inside[j]);
            if (strstr(found, says)) FAIL("%s of %.9g: \"%s\"", b->field, inside[j], found);
        }
    }
}

static const test_case cases[] = {
    {"goldens", 0, goldens}, {"windows", 0, windows}, {"sliding-layers", 0, sliding_layers}, {"bounds", 0, bounds}, {0}};
const test_suite suite_config = {"config", cases};
