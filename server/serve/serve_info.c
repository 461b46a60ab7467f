// server/serve/serve_info.c - the bodies of /props, /v1/models, /tokenizer_info, /slots and /metrics.
#include "server/serve/serve_internal.h"
#include "attention/methods_json.h"

#include <stdlib.h>
#include <string.h>

// ---- /props ----

static json_t *choices_json(const json_t *words) {
    json_t *list = json_array();
    for (const char *p = json_string_value(words); p && *p;) {
        size_t n = strcspn(p, ",");
        json_array_append_new(list, json_stringn(p, n));
        p += n + (p[n] == ',');
    }
    return list;
}

static json_t *parameters_json(const json_t *params) {
    json_t *list = json_array(), *p;
    size_t i;
    json_array_foreach((json_t *)params, i, p) {
        json_t *choices = json_object_get(p, "choices");
        json_array_append_new(list, json_pack("{s:O, s:O, s:O?, s:O?, s:O, s:o?, s:O}", "name", json_object_get(p, "name"),
                                              "type", json_object_get(p, "type"), "min", json_object_get(p, "min"), "max",
                                              json_object_get(p, "max"), "default", json_object_get(p, "default"), "choices",
                                              choices ? choices_json(choices) : NULL, "about", json_object_get(p, "help")));
    }
    return list;
}

// The methods of a phase that this engine's device offers.
static json_t *attention_json(const char *phase, const char *chosen, int is_gpu) {
    json_t *list = json_array(), *all = sl_attn_methods_json(), *m;
    size_t i;
    json_array_foreach(all, i, m) {
        if (!strstr(json_string_value(json_object_get(m, "phase")), phase)) continue;
        if (!json_is_true(json_object_get(m, is_gpu ? "cuda" : "cpu"))) continue;
        json_array_append_new(list, json_pack("{s:O, s:O, s:O, s:o}", "name", json_object_get(m, "name"), "label",
                                              json_object_get(m, "mean"), "summary", json_object_get(m, "summary"),
                                              "parameters", parameters_json(json_object_get(m, "params"))));
    }
    json_decref(all);
    return json_pack("{s:s, s:o}", "default", chosen, "methods", list);
}

static json_t *sampling_json(const sl_sampling *s) {
    return json_pack("{s:f, s:i, s:f, s:f, s:f, s:i, s:f, s:f}", "temperature", (double)s->temp, "top_k", s->top_k, "top_p",
                     (double)s->top_p, "min_p", (double)s->min_p, "repeat_penalty", (double)s->repeat_penalty, "repeat_last_n",
                     s->repeat_last_n, "presence_penalty", (double)s->presence_penalty, "frequency_penalty",
                     (double)s->frequency_penalty);
}

static json_t *features_json(const serve_server *s) {
    return json_pack("{s:b, s:b, s:b, s:b, s:b}", "chat", s->model->chat != NULL, "tools", s->calls != API_CALLS_NONE,
                     "reasoning", s->reasons, "prefix_cache", !s->options.no_prefixes, "structured_output",
                     sl_model_tokenizer(s->model->model) != NULL);
}

static json_t *props_json(const serve_server *s) {
    const serve_model *m = s->model;
    char backend[256];
    sl_engine_describe(m->engine, backend, sizeof backend);
    int is_gpu = strncmp(backend, "cpu", 3) != 0;
    return json_pack("{s:s, s:s, s:s, s:i, s:i, s:o, s:o, s:o, s:{s:s?, s:i}, s:o}", "model", s->name, "version", m->version,
                     "backend", backend, "n_ctx", s->n_ctx, "parallel", s->n_sequences, "sampling", sampling_json(m->sampling),
                     "attention", attention_json("decode", m->attn, is_gpu), "attention_prefill",
                     attention_json("prefill", m->prefill, is_gpu), "drafts", "default", m->draft, "most",
                     sl_engine_n_draft(m->engine), "features", features_json(s));
}

// ---- /tokenizer_info ----

static json_t *token_json(const sl_tokenizer *tok, int32_t id) {
    sl_text bytes = {0};
    json_t *v = id < 0 || sl_token_bytes(tok, id, &bytes, NULL) || !bytes.n ? NULL : api_utf8_json(bytes.data, bytes.n);
    sl_text_free(&bytes);
    return v;
}

static json_t *tokenizer_json(const serve_server *s) {
    const sl_tokenizer *tok = sl_model_tokenizer(s->model->model);
    size_t n = 0;
    const char *text = s->model->chat ? sl_chat_text(s->model->chat, &n) : NULL;
    return json_pack("{s:s, s:o?, s:o?, s:o?}", "tokenizer_class", tok ? sl_tokenizer_kind(tok) : "none", "bos_token",
                     tok ? token_json(tok, sl_tokenizer_bos(tok)) : NULL, "eos_token",
                     tok ? token_json(tok, sl_tokenizer_eos(tok)) : NULL, "chat_template",
                     text ? api_utf8_json(text, n) : NULL);
}

// ---- all of them ----

static int dump(json_t *v, char **out, sl_error *err) {
    *out = v ? json_dumps(v, JSON_COMPACT) : NULL;
    json_decref(v);
    return *out ? 0 : sl_fail(err, SL_ERR_MEMORY, "server: out of memory");
}

int serve_info_make(serve_server *s, sl_error *err) {
    int rc = dump(props_json(s), &s->props, err);
    if (!rc) rc = dump(json_pack("{s:s}", "version", s->model->version), &s->version, err);
    if (!rc) rc = dump(api_models_json(s->name, s->model->path, s->created, s->n_ctx), &s->models, err);
    return rc ? rc : dump(tokenizer_json(s), &s->tokenizer_info, err);
}

json_t *serve_slots_json(serve_server *s) {
    static const char *const states[] = {"waits", "prefills", "feeds", "decodes", "ended"};
    json_t *list = json_array();
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->n_sequences; i++) {
        const serve_slot *slot = &s->slots[i];
        int is_busy = *slot->id != 0;
        json_array_append_new(list, json_pack("{s:i, s:b, s:i, s:s?, s:i, s:s, s:i, s:i, s:i, s:i}", "id", i, "is_processing",
                                              is_busy, "n_ctx", s->n_ctx, "request_id", is_busy ? slot->id : NULL, "choice",
                                              slot->choice, "state", is_busy ? states[slot->state] : "free", "n_prompt",
                                              slot->n_prompt, "n_done", slot->n_done, "n_cached", slot->n_cached, "n_generated",
                                              slot->n_generated));
    }
    pthread_mutex_unlock(&s->lock);
    return list;
}

int serve_metrics_text(serve_server *s, sl_text *out, sl_error *err) {
    const http_counts http = http_server_counts(s->http);
    pthread_mutex_lock(&s->lock);
    const serve_metrics now = s->metrics;
    const serve_gauges gauges = {.model = s->name,
                                 .n_waiting = s->n_waiting,
                                 .connections = http.connections,
                                 .gone = http.gone,
                                 .timeouts = http.timeouts,
                                 .refused = http.refused + atomic_load(&s->n_refused)};
    pthread_mutex_unlock(&s->lock);
    return serve_metrics_print(&now, &gauges, out, err);
}
