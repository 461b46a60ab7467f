// tests/engine/test_edges.c - borders of what a user gives: times in a table of --attn=auto, layers in a rule of --attn-layer.
#include "attention/auto.h"
#include "engine/engine_internal.h"
#include "tests/support/given_table.h"
#include "tests/test.h"

#include <string.h>

static sl_error err;

// Each time of a table in turn: only a number above 0 is a time. null stands for "not measured", but never for dense.
static void times(void) {
    static const struct {
        const char *text;
        int is_time;
    } values[] = {{"0", 0},  {"0.0", 0},   {"-0.0", 0}, {"1e-9", 1},  {"1", 1},   {"-1e-9", 0},
                  {"-1", 0}, {"\"5\"", 0}, {"true", 0}, {"false", 0}, {"[3]", 0}, {"null", 0}};
    sl_auto_table t;
    for (int at = 0; at < 6; at++) // three times of a point, three of a length
        for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
            const char *x[6] = {"9", "8", "7", "9", "8", "7"};
            char point[200], prefill[300];
            x[at] = values[i].text;
            int is_good = values[i].is_time || (!strcmp(values[i].text, "null") && (at == 1 || at == 2));
            snprintf(point, sizeof point, "{\"n_seqs\": 1, \"n_kv\": 64, \"us\": [%s, %s, %s]}", x[0], x[1], x[2]);
            snprintf(prefill, sizeof prefill,
                     "{\"attn\": \"sample\", \"density\": 0.25, \"lengths\": [{\"n_tokens\": 512, \"dense_us\": %s, "
                     "\"mask_us\": %s, "
                     "\"attention_us\": %s}]}",
                     x[3], x[4], x[5]);
            const char *path = given_table_spill("t.json", "\"dense\", \"santa\", \"topk:k=4\"", point, prefill);
            int rc = sl_auto_read(path, 0, &t, &err);
            if (rc != (is_good ? 0 : SL_ERR_FORMAT)) FAIL("time %d is %s: returned %d", at, values[i].text, rc);
            sl_auto_free(&t);
        }
}

// Random rules of layers, some of which a plan of n layers does not have. A refused rule changes nothing.
static void layers(void) {
    static const char *const methods[] = {"dense", "santa", "topk:k=4", "quest"};
    static const char *const names[] = {"dense", "santa", "topk", "quest"};
    uint64_t seed = test_seed;
    for (int n = 1; n <= 4; n++)
        for (int first = 0; first <= n + 1; first++)
            for (int last = -1; last <= n + 1; last++) { // -1: a rule of one layer
                sl_attn_plan plan;
                sl_attn_spec all;
                char rule[64];
                int end = last < 0 ? first : last, is_good = first <= end && end < n, which = (int)(4 * test_uniform(&seed));
                CHECK_OK(sl_attn_parse("random", &all, &err), err);
                CHECK_OK(sl_attn_plan_init(&plan, n, &all, &err), err);
                if (last < 0)
                    snprintf(rule, sizeof rule, "%d=%s", first, methods[which]);
                else
                    snprintf(rule, sizeof rule, "%d-%d=%s", first, last, methods[which]);
                int rc = sl_attn_plan_set(&plan, "attn_layer", rule, &err);
                if (rc != (is_good ? 0 : SL_ERR_ARG)) FAIL("%s of %d layers: returned %d", rule, n, rc);
                for (int i = 0; i < n; i++)
                    CHECK_STR(plan.layer[i].method->name, is_good && i >= first && i <= end ? names[which] : "random");
                sl_attn_plan_free(&plan);
            }
}

// The public counts of attention are those of the statistics.
static void work(void) {
    sl_engine e = {
        .device = {.attention = &sl_host_attn_runner},
        .stats = {.steps = 3, .bytes = 5, .dense_bytes = 7, .fallbacks = 11, .stated = 13, .certified = 17, .unbounded = 9}};
    e.stats.stated_units = 6ull * SL_STATED_UNIT, e.stats.stated_most = 2.5;
    const sl_attention_work w = sl_engine_attention_work(&e);
    CHECK(w.heads == 3 && w.bytes == 5 && w.dense_bytes == 7 && w.fallbacks == 11 && w.layer_steps == 13);
    CHECK(w.certified == 17 && w.unbounded == 9 && w.stated_error == 1.5 && w.stated_error_max == 2.5);
}

// Chunks and segments of sparse prefills: at least 128 tokens, but a chunk may hold a shorter context whole.
static void chunks(void) {
    static const int contexts[] = {64, 127, 128, 300}, chunks[] = {1, 63, 64, 127, 128, 129, 300}, segments[] = {127, 128, 500};
    sl_model *model;
    sl_attn_spec spec;
    sl_attn_plan plan;
    CHECK_OK(sl_model_load("tests/goldens/gqa", &(sl_model_options){.flags = SL_MODEL_NO_TOKENIZER}, &model, &err), err);
    CHECK_OK(sl_attn_parse("streaming:window=64", &spec, &err), err);
    CHECK_OK(sl_attn_plan_init(&plan, sl_model_config(model)->n_layers, &spec, &err), err);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 7; k++) {
            sl_engine *e;
            const sl_engine_options o = {.n_ctx = contexts[i], .prefill_chunk = chunks[k], .n_threads = 1, .seed = 7};
            CHECK_OK(sl_engine_new(model, &o, &e, &err), err);
            CHECK(e->seed == 7 && e->device.pool.seed == 7); // the seed of page extras
            for (int j = 0; j < 3; j++) {
                int is_good = segments[j] >= 128 && (chunks[k] >= 128 || chunks[k] >= contexts[i]);
                int rc = sl_engine_set_prefill(e, &plan, segments[j], &err);
                if (rc != (is_good ? 0 : SL_ERR_ARG))
                    FAIL("context %d, chunk %d, segment %d: returned %d", contexts[i], chunks[k], segments[j], rc);
            }
            sl_engine_free(e);
        }
    sl_attn_plan_free(&plan);
    sl_model_free(model);
}

static const test_case cases[] = {{"work", 0, work}, {"chunks", 0, chunks}, {"times", 0, times}, {"layers", 0, layers}, {0}};
const test_suite suite_edges = {"edges", cases};
