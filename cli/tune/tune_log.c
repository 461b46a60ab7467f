// cli/tune/tune_log.c - the log of measurements and the table of sleigh tune; see tune.h.
#include "cli/commands.h"
#include "cli/eval/fingerprint.h"
#include "cli/io.h"
#include "cli/output/progress_bar.h"
#include "cli/resume_file.h"
#include "cli/run/attn_flags.h"
#include "cli/run/load_model.h"
#include "cli/run/pick_device.h"
#include "cli/tune/tune.h"

#include <string.h>

enum { LOG_VERSION = 1 };

// ---- the log ----

json_t *tune_find(const tune *t, const char *name) {
    return json_object_get(t->log, name);
}

int tune_record(tune *t, const char *name, json_t *value, sl_error *err) {
    json_t *line = json_pack("{s:s, s:O}", "name", name, "value", value);
    int bad = !line || json_object_set_new(t->log, name, value);
    int rc = bad ? sl_fail(err, SL_ERR_MEMORY, "a measurement: out of memory") : 0;
    if (!rc) rc = cli_resume_add(t->log_file, "--out", t->log_path, line, err);
    json_decref(line);
    return rc;
}

static int take_line(void *ctx, int n, const json_t *line, sl_error *err) {
    tune *t = ctx;
    const char *name = json_string_value(json_object_get(line, "name"));
    json_t *value = json_object_get(line, "value");
    if (!name || !json_is_object(value) || json_object_size(line) != 2)
        return sl_fail(err, SL_ERR_FORMAT, "--out %s: line %d: expected a measurement, {\"name\", \"value\"}", t->log_path, n);
    if (json_object_get(t->log, name))
        return sl_fail(err, SL_ERR_FORMAT, "--out %s: line %d: the measurement %.200s occurs twice", t->log_path, n, name);
    return json_object_set(t->log, name, value) ? sl_fail(err, SL_ERR_MEMORY, "measurements: out of memory") : 0;
}

// Adds the hash of the file of --jsonl.
static int put_hash(tune *t, sl_error *err) {
    sl_text file = {0};
    char hash[SL_HASH_TEXT];
    int rc = cli_read_file(t->o.tasks->jsonl, &file, err);
    sl_hash_text(sl_fnv1a(SL_FNV1A_START, file.data, file.n), hash);
    sl_text_free(&file);
    json_object_set_new(t->settings, "jsonl", json_string(hash));
    return rc;
}

// What every measurement depends on. Names of measurements hold the rest.
int tune_open_log(tune *t, sl_error *err) {
    const cli_tune_flags *o = &t->o;
    const cli_model_options *folder = &o->run->model;
    cli_fingerprint model;
    sl_kv_formats cache;
    char arithmetic[256];
    int rc = cli_fingerprint_read(folder->path, cli_is_dummy(folder), &folder->rope, &model, err);
    if (!rc) rc = sl_device_arithmetic(t->run.device, arithmetic, sizeof arithmetic, err);
    if (!rc) rc = cli_kv_formats(&o->run->device, &cache, err);
    if (rc) return rc;
    t->settings = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:b, s:b, s:s?, s:s?, s:I, s:I, s:i, s:i, s:s, s:s, s:i}",
                            "version", cli_version(), "model", t->model.name, "config", model.config, "weights", model.weights,
                            "tokenizer", model.tokenizer, "device", t->device, "arithmetic", arithmetic, "question-dense",
                            o->tasks->question_dense, "chat", o->chat->is_on, "system-prompt", o->chat->system, "chat-template",
                            t->prompter.chat.template ? sl_chat_name(t->prompter.chat.template) : NULL, "seed",
                            (json_int_t)o->run->sampling.seed, "task-seed", (json_int_t)o->tasks->seed, "n-predict",
                            o->tasks->n_predict, "prefill-segment", o->run->attention.prefill_segment, "haystack",
                            o->tasks->haystack, "measure", o->tune->measure, "score", o->tune->score);
    int below;
    rc = cli_exact_below(&o->run->attention, &below, err);
    if (!rc && t->settings && below && json_object_set_new(t->settings, "exact-below", json_integer(below)))
        rc = sl_fail(err, SL_ERR_MEMORY, "--exact-below: out of memory");
    if (!rc && t->settings && o->tasks->jsonl) rc = put_hash(t, err);
    if (rc) return rc;
    json_t *stops = json_array();
    for (int i = 0; i < o->run->limits.stops.n; i++) json_array_append_new(stops, json_string(o->run->limits.stops.items[i]));
    if (!t->settings || json_object_set_new(t->settings, "stop", stops) || cli_put_formats(t->settings, o->run, cache))
        return sl_fail(err, SL_ERR_MEMORY, "settings: out of memory");
    t->log = json_object();
    const cli_resume file = {
        .flag = "--out", .path = t->log_path, .command = "tune", .version = LOG_VERSION, .take = take_line, .ctx = t};
    rc = cli_resume_open(&file, t->settings, &t->log_file, err);
    if (!rc && json_object_size(t->log)) cli_say("log: %s has %zu measurements", t->log_path, json_object_size(t->log));
    return rc;
}

// ---- the table ----

static const cli_column columns[] = {
    {.title = "part", .key = "part"},
    {.title = "length", .key = "length"},
    {.title = "setting", .key = "setting"},
    {.title = "prompts", .key = "prompts"},
    {.title = "n", .key = "n"},
    {.title = "score", .key = "x", .low = "low", .high = "high", .digits = 3},
    {.title = "loss", .key = "loss", .digits = 4},
    {.title = "density", .key = "density", .digits = 3},
    {.title = "work", .key = "work", .digits = 3},
    {.title = "prefill ms", .key = "prefill_ms", .digits = 1},
    {.title = "result", .key = "result"},
};
enum { N_COLUMNS = sizeof columns / sizeof *columns };

static const cli_column kl_columns[] = {
    {.title = "part", .key = "part"},
    {.title = "length", .key = "length"},
    {.title = "setting", .key = "setting"},
    {.title = "prompts", .key = "prompts"},
    {.title = "n", .key = "n"},
    {.title = "KL", .key = "x", .spread = "x_se", .digits = -4},
    {.title = "density", .key = "density", .digits = 3},
    {.title = "work", .key = "work", .digits = 3},
    {.title = "prefill ms", .key = "prefill_ms", .digits = 1},
    {.title = "result", .key = "result"},
};
enum { N_KL_COLUMNS = sizeof kl_columns / sizeof *kl_columns };

int tune_print(tune *t, json_t *row, sl_error *err) {
    static const char *const keys[] = {"part", "length", "setting", "prompts", "n",    "x",          "x_se",
                                       "low",  "high",   "loss",    "density", "work", "prefill_ms", "result"};
    json_t *ordered = json_object();
    for (size_t i = 0; ordered && i < sizeof keys / sizeof *keys; i++) {
        json_t *value = json_object_get(row, keys[i]);
        json_object_set_new(ordered, keys[i], value ? json_incref(value) : json_null());
    }
    json_decref(row);
    return cli_rows_add(&t->rows, ordered, err);
}

void tune_open_table(tune *t) {
    int is_kl = tune_is_kl(t);
    t->rows = (cli_rows){.format = t->o.output->format,
                         .columns = is_kl ? kl_columns : columns,
                         .n_columns = is_kl ? N_KL_COLUMNS : N_COLUMNS,
                         .model = &t->model};
}
