// cli/eval/eval_settings.c - the settings of sleigh eval: everything that an answer depends on.
#include "base/hash.h"
#include "cli/attn/attn_profile.h"
#include "cli/eval/eval.h"
#include "cli/run/attn_flags.h"
#include "cli/eval/fingerprint.h"
#include "cli/run/load_model.h"
#include "cli/run/pick_device.h"

enum { GENERATOR = 1 }; // version of the generated texts

static json_t *texts_json(const cli_list *texts) {
    json_t *out = json_array();
    for (int i = 0; i < texts->n; i++) json_array_append_new(out, json_string(texts->items[i]));
    return out;
}

// The system message of the prompts: from the flag, or from the procedure.
static const char *system_of(const eval *e) {
    return e->o.chat->is_on ? e->prompter.chat.system : e->o.chat->system;
}

static json_t *task_settings(const eval *e) {
    const cli_task_options *tasks = e->o.tasks;
    return json_pack("{s:i, s:I, s:i, s:s}", "generator", GENERATOR, "task-seed", (json_int_t)tasks->seed, "questions",
                     e->o.eval->questions, "haystack", tasks->haystack);
}

// The settings that are left out if their flag is not given. Returns 0, or another value if memory is short.
static int put_optional(const eval *e, json_t *s, const char *profile) {
    const cli_attention_options *attention = &e->o.run->attention;
    const cli_sampling_options *sampling = &e->o.run->sampling;
    const char *grader = e->o.eval->grader, *procedure = e->o.eval->procedure;
    int bad = 0, below = 0;
    if (!cli_exact_below(attention, &below, NULL) && below) bad |= json_object_set_new(s, "exact-below", json_integer(below));
    if (e->o.chat->is_on) bad |= json_object_set_new(s, "chat-template", json_string(sl_chat_name(e->prompter.chat.template)));
    if (sampling->temp_given && sampling->temp > 0)
        bad |= json_object_set_new(s, "sampling", json_pack("[i, f, f]", sampling->top_k, sampling->top_p, sampling->min_p));
    if (sampling->repeat_penalty_given) bad |= json_object_set_new(s, "repeat-penalty", json_real(sampling->repeat_penalty));
    if (sampling->repeat_last_n_given) bad |= json_object_set_new(s, "repeat-last-n", json_integer(sampling->repeat_last_n));
    if (sampling->presence_penalty != 0)
        bad |= json_object_set_new(s, "presence-penalty", json_real(sampling->presence_penalty));
    if (sampling->frequency_penalty != 0)
        bad |= json_object_set_new(s, "frequency-penalty", json_real(sampling->frequency_penalty));
    bad |= cli_put_formats(s, e->o.run, e->formats);
    if (grader) bad |= json_object_set_new(s, "grader", json_string(grader));
    if (procedure) bad |= json_object_set_new(s, "procedure", json_string(procedure));
    if (attention->attn_layers.n) bad |= json_object_set_new(s, "attn-layer", texts_json(&attention->attn_layers));
    if (attention->attn_prefill_layers.n)
        bad |= json_object_set_new(s, "attn-prefill-layer", texts_json(&attention->attn_prefill_layers));
    if (attention->attn_profile) bad |= json_object_set_new(s, "attn-profile", json_string(profile));
    if (attention->prefill_segment_given)
        bad |= json_object_set_new(s, "prefill-segment", json_integer(attention->prefill_segment));
    return bad;
}

int eval_make_settings(eval *e, sl_error *err) {
    const cli_model_options *model = &e->o.run->model;
    const cli_sampling_options *sampling = &e->o.run->sampling;
    const cli_task_options *tasks = e->o.tasks;
    const char *device = e->o.run->device.name, *attn_profile = e->o.run->attention.attn_profile;
    cli_fingerprint print;
    char arithmetic[256], profile[SL_HASH_TEXT];
    sl_model_options options = cli_load_options(model, SL_MODEL_NO_TOKENIZER);
    options.log = (sl_log){0}; // the load of the run writes the lines
    int is_dummy = cli_is_dummy(model), rc = cli_model_name_read(model->path, &options, &e->name, err);
    if (!rc) rc = cli_fingerprint_read(model->path, is_dummy, &model->rope, &print, err);
    if (!rc) rc = sl_device_arithmetic(device, arithmetic, sizeof arithmetic, err);
    if (!rc) rc = cli_kv_formats(&e->o.run->device, &e->formats, err);
    if (!rc && attn_profile) rc = cli_attn_profile_hash(attn_profile, profile, err);
    if (rc) return rc;
    json_t *s = e->settings =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:b, s:b, s:s?, s:I, s:I, s:i, s:f}", "version", cli_version(),
                  "model", e->name.name, "load-format", model->load_format, "config", print.config, "weights", print.weights,
                  "tokenizer", print.tokenizer, "device", sl_device_is_gpu(device) ? "cuda" : "cpu", "arithmetic", arithmetic,
                  "question-dense", tasks->question_dense, "chat", e->o.chat->is_on, "system-prompt", system_of(e), "seed",
                  (json_int_t)sampling->seed, "seq-id", (json_int_t)sampling->seq_id, "n-predict", tasks->n_predict, "temp",
                  sampling->temp_given ? sampling->temp : 0.0);
    int bad = !s || put_optional(e, s, profile);
    if (s) bad |= json_object_set_new(s, "stop", texts_json(&e->run_options.limits.stops));
    if (s && tasks->jsonl) bad |= json_object_set_new(s, "jsonl", json_string(e->records.hash));
    if (s && !tasks->jsonl) {
        json_t *generated = task_settings(e);
        bad |= !generated || json_object_update(s, generated);
        json_decref(generated);
    }
    return bad ? sl_fail(err, SL_ERR_MEMORY, "settings: out of memory") : 0;
}
