// server/api/api_values.c - fields that have a form of their own: stop strings, biases, formats, attention, prompts.
#include "server/api/api_input.h"
#include "base/number.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_STOPS = 32, MOST_BIASES = 4096, MOST_PROMPTS = 4096 };

const char *api_item_name(char buf[API_NAME], const char *name, size_t i, const char *field) {
    snprintf(buf, API_NAME, "%.100s[%zu]%s%.30s", name, i, field[0] ? "." : "", field);
    return buf;
}

int api_read_items(void *out, const json_t *v, const char *name, api_read_fn read, api_error *err) {
    char item[API_NAME];
    int rc = 0;
    if (!json_is_array(v)) return api_wrong_type(v, name, "a list", err);
    for (size_t i = 0; !rc && i < json_array_size(v); i++)
        rc = read(out, json_array_get(v, i), api_item_name(item, name, i, ""), err);
    return rc;
}

// ---- sampling ----

int api_read_stop(void *out, const json_t *v, const char *name, api_error *err) {
    api_request *r = out;
    char item[API_NAME];
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (!json_is_array(v) && !json_is_string(v)) return api_wrong_type(v, name, "a string or a list of strings", err);
    if (n > MOST_STOPS) return api_fail(err, 400, name, "%s has %zu strings, expected at most %d", name, n, MOST_STOPS);
    if (r->stop) return api_fail(err, 400, name, "%s: stop strings are given twice", name);
    r->stop = calloc(n + 1, sizeof *r->stop);
    if (!r->stop) return api_no_memory(err);
    for (size_t i = 0; i < n; i++) {
        const json_t *s = json_is_array(v) ? json_array_get(v, i) : v;
        api_item_name(item, name, i, "");
        if (!json_is_string(s)) return api_wrong_type(s, item, "a string", err);
        int rc = api_string(s, item, &r->stop[i], err);
        if (rc) return rc;
        if (!r->stop[i][0]) return api_fail(err, 400, name, "%s holds an empty string, expected text", name);
        r->n_stop++;
    }
    return 0;
}

int api_read_seed(void *out, const json_t *v, const char *name, api_error *err) {
    api_request *r = out;
    double x = json_number_value(v);
    if (!json_is_number(v) || x != floor(x)) return api_wrong_type(v, name, "an integer", err);
    if (x < -1 || x > UINT32_MAX)
        return api_fail(err, 400, name, "%s is %.0f, expected 0 to %u, or -1 for a random seed", name, x, UINT32_MAX);
    r->has_seed = x >= 0;
    r->seed = x >= 0 ? (uint32_t)x : 0;
    return 0;
}

static int add_bias(api_request *r, sl_logit_bias *list, long long id, const json_t *bias, const char *name, api_error *err) {
    double x = json_number_value(bias);
    if (id < 0 || id > INT32_MAX) return api_fail(err, 400, name, "%s: expected token ids from 0 to %d", name, INT32_MAX);
    if (!json_is_number(bias)) return api_wrong_type(bias, name, "a bias from -100 to 100", err);
    if (!(x >= -100 && x <= 100)) return api_fail(err, 400, name, "%s: found a bias of %g, expected -100 to 100", name, x);
    list[r->sampling.n_bias++] = (sl_logit_bias){(int32_t)id, (float)x};
    return 0;
}

// {"id": bias, ...}, or llama.cpp's [[id, bias], ...].
int api_read_logit_bias(void *out, const json_t *v, const char *name, api_error *err) {
    api_request *r = out;
    size_t n = json_is_object(v) ? json_object_size(v) : json_array_size(v);
    int rc = 0;
    if (!json_is_object(v) && !json_is_array(v)) return api_wrong_type(v, name, "an object of ids and biases", err);
    if (n > MOST_BIASES) return api_fail(err, 400, name, "%s has %zu ids, expected at most %d", name, n, MOST_BIASES);
    sl_logit_bias *list = calloc(n + 1, sizeof *list);
    if (!list) return api_no_memory(err);
    r->sampling.bias = list;
    for (void *at = json_object_iter((json_t *)v); !rc && at; at = json_object_iter_next((json_t *)v, at)) {
        char *end;
        const char *key = json_object_iter_key(at);
        long long id = key[0] >= '0' && key[0] <= '9' ? strtoll(key, &end, 10) : -1;
        rc = add_bias(r, list, id >= 0 && !*end ? id : -1, json_object_iter_value(at), name, err);
    }
    for (size_t i = 0; !rc && json_is_array(v) && i < n; i++) {
        const json_t *pair = json_array_get(v, i), *id = json_array_get(pair, 0);
        rc = add_bias(r, list, json_is_integer(id) ? json_integer_value(id) : -1, json_array_get(pair, 1), name, err);
    }
    return rc;
}

// ---- attention ----

static int append(sl_text *text, const char *s, api_error *err) {
    sl_error why;
    return sl_text_append(text, s, strlen(s), &why) ? api_no_memory(err) : 0;
}

// ":" and "," would begin another parameter or method.
static int is_word(const char *s) {
    return *s && !s[strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.+")];
}

static int append_parameter(sl_text *text, const char *key, const json_t *v, const char *name, api_error *err) {
    char number[SL_NUMBER_TEXT];
    const char *value = json_is_string(v)    ? json_string_value(v)
                        : json_is_boolean(v) ? (json_is_true(v) ? "1" : "0")
                        : json_is_integer(v)
                            ? (snprintf(number, sizeof number, "%lld", (long long)json_integer_value(v)), number)
                        : json_is_real(v) ? sl_number_text(json_real_value(v), number)
                                          : "";
    if (!is_word(key) || !is_word(value)) return api_fail(err, 400, name, "%s.%.40s: expected a number or a word", name, key);
    int rc = append(text, ":", err);
    if (!rc) rc = append(text, key, err);
    if (!rc) rc = append(text, "=", err);
    return rc ? rc : append(text, value, err);
}

static int attn_of_object(const json_t *v, const char *name, sl_text *text, api_error *err) {
    const json_t *method = sl_json_get(v, "name");
    if (!json_is_string(method) || !is_word(json_string_value(method)))
        return api_fail(err, 400, name, "%s.name is %s, expected the name of a method", name, sl_json_type(method));
    int rc = append(text, json_string_value(method), err);
    for (void *at = json_object_iter((json_t *)v); !rc && at; at = json_object_iter_next((json_t *)v, at)) {
        const char *key = json_object_iter_key(at);
        const json_t *value = json_object_iter_value(at);
        if (strcmp(key, "name") && !json_is_null(value)) rc = append_parameter(text, key, value, name, err);
    }
    return rc;
}

// "santa-prop:S=128", or {"name": "santa-prop", "S": 128}.
static int read_method(char **out, const json_t *v, const char *name, api_error *err) {
    const char *s = NULL;
    sl_text text = {0};
    if (!json_is_string(v) && !json_is_object(v)) return api_wrong_type(v, name, "a string or an object", err);
    int rc = json_is_string(v) ? api_string(v, name, &s, err) : attn_of_object(v, name, &text, err);
    if (!rc && s && !*s) rc = api_fail(err, 400, name, "%s is empty, expected a method", name);
    if (!rc && s) rc = append(&text, s, err);
    if (rc) {
        sl_text_free(&text);
        return rc;
    }
    free(*out);
    *out = text.data;
    return 0;
}

int api_read_attn(void *out, const json_t *v, const char *name, api_error *err) {
    return read_method(&((api_request *)out)->attn, v, name, err);
}

int api_read_attn_prefill(void *out, const json_t *v, const char *name, api_error *err) {
    return read_method(&((api_request *)out)->attn_prefill, v, name, err);
}

// ---- the form of the answer ----

int api_set_format(api_request *r, api_format_kind kind, const json_t *value, const char *field, api_error *err) {
    if (r->format.kind != API_FORMAT_FREE)
        return api_fail(err, 400, field, "%s: %s gives another format already; expected one of them", field, r->format.field);
    r->format = (api_format){kind, value, field};
    return 0;
}

// {type: "text" | "json_object" | "json_schema", json_schema: {name, schema, strict}}. /v1/responses (text.format) and
// /v1/messages (output_format) have the schema at the top, and so has llama.cpp's json_object.
int api_read_response_format(void *out, const json_t *v, const char *name, api_error *err) {
    static const char *const fields[] = {"response_format", "text.format", "output_format", "output_config.format"};
    const char *type, *field = fields[0];
    if (!json_is_object(v)) return api_wrong_type(v, name, "an object", err);
    for (int i = 0; i < 4; i++)
        if (!strcmp(fields[i], name)) field = fields[i];
    const json_t *kind = sl_json_get(v, "type"), *inner = sl_json_get(v, "json_schema");
    const json_t *schema = sl_json_get(json_is_object(inner) ? inner : v, "schema");
    if (!kind) return api_fail(err, 400, name, "%s.type is missing, expected text, json_object or json_schema", name);
    int rc = api_string(kind, name, &type, err);
    if (rc || !strcmp(type, "text")) return rc;
    if (strcmp(type, "json_object") && strcmp(type, "json_schema"))
        return api_fail(err, 400, name, "%s.type is %.40s, expected text, json_object or json_schema", name, type);
    if (schema && !json_is_object(schema)) return api_wrong_type(schema, name, "an object as the schema", err);
    if (schema) return api_set_format(out, API_FORMAT_SCHEMA, schema, field, err);
    if (!strcmp(type, "json_schema")) return api_fail(err, 400, name, "%s: the schema is missing", name);
    return api_set_format(out, API_FORMAT_JSON, NULL, field, err);
}

static int all_strings(const json_t *v) {
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!json_is_string(json_array_get(v, i))) return 0;
    return json_array_size(v) > 0;
}

static int read_structure(api_request *r, const char *key, const json_t *v, api_error *err) {
    static const char name[] = "structured_outputs";
    if (!strcmp(key, "json")) {
        if (!json_is_object(v)) return api_wrong_type(v, name, "an object as the value of json", err);
        return api_set_format(r, API_FORMAT_SCHEMA, v, name, err);
    }
    if (!strcmp(key, "regex") || !strcmp(key, "grammar")) {
        if (!json_is_string(v)) return api_wrong_type(v, name, "a string as the value of regex or grammar", err);
        return api_set_format(r, key[0] == 'r' ? API_FORMAT_REGEX : API_FORMAT_GRAMMAR, v, name, err);
    }
    if (!strcmp(key, "choice")) {
        if (!all_strings(v)) return api_fail(err, 400, name, "%s.choice: expected a list of strings", name);
        return api_set_format(r, API_FORMAT_CHOICE, v, name, err);
    }
    if (!strcmp(key, "json_object")) return json_is_true(v) ? api_set_format(r, API_FORMAT_JSON, NULL, name, err) : 0;
    return api_fail(err, 400, name, "%s.%.40s: expected json, json_object, regex, choice or grammar", name, key);
}

int api_read_structured_outputs(void *out, const json_t *v, const char *name, api_error *err) {
    int rc = 0;
    if (!json_is_object(v)) return api_wrong_type(v, name, "an object", err);
    for (void *at = json_object_iter((json_t *)v); !rc && at; at = json_object_iter_next((json_t *)v, at))
        if (!json_is_null(json_object_iter_value(at)))
            rc = read_structure(out, json_object_iter_key(at), json_object_iter_value(at), err);
    return rc;
}

int api_read_schema(void *out, const json_t *v, const char *name, api_error *err) {
    if (!json_is_object(v)) return api_wrong_type(v, name, "an object", err);
    return api_set_format(out, API_FORMAT_SCHEMA, v, "json_schema", err);
}

int api_read_grammar(void *out, const json_t *v, const char *name, api_error *err) {
    if (!json_is_string(v)) return api_wrong_type(v, name, "a string", err);
    return json_string_length(v) ? api_set_format(out, API_FORMAT_GRAMMAR, v, "grammar", err) : 0; // llama.cpp's "": none
}

// ---- templates and reasoning ----

int api_set_option(api_request *r, const char *key, json_t *value, api_error *err) {
    if (!r->options) r->options = json_object();
    return json_object_set_new(r->options, key, value) ? api_no_memory(err) : 0;
}

int api_read_template_options(void *out, const json_t *v, const char *name, api_error *err) {
    api_request *r = out;
    if (!json_is_object(v)) return api_wrong_type(v, name, "an object", err);
    if (!r->options) r->options = json_object();
    return !r->options || json_object_update(r->options, (json_t *)v) ? api_no_memory(err) : 0;
}

int api_read_reasoning_format(void *out, const json_t *v, const char *name, api_error *err) {
    const char *s;
    int rc = json_is_string(v) ? api_string(v, name, &s, err) : api_wrong_type(v, name, "a string", err);
    if (rc) return rc;
    ((api_request *)out)->raw_reasoning = !strcmp(s, "none");
    if (!strcmp(s, "none") || !strcmp(s, "auto") || !strcmp(s, "deepseek")) return 0;
    return api_fail(err, 400, name, "%s is %.40s, expected none, auto or deepseek", name, s);
}

int api_read_effort(void *out, const json_t *v, const char *name, api_error *err) {
    if (!json_is_string(v)) return api_wrong_type(v, name, "a string", err);
    return strcmp(json_string_value(v), "none") ? 0 : api_set_option(out, "enable_thinking", json_false(), err);
}

int api_read_thinking(void *out, const json_t *v, const char *name, api_error *err) {
    const json_t *type = sl_json_get(v, "type");
    const char *s = json_is_string(type) ? json_string_value(type) : "";
    int is_on = !strcmp(s, "enabled") || !strcmp(s, "adaptive");
    if (!json_is_object(v)) return api_wrong_type(v, name, "an object", err);
    if (!is_on && strcmp(s, "disabled"))
        return api_fail(err, 400, name, "%s.type is \"%.40s\", expected enabled, adaptive or disabled", name, s);
    return api_set_option(out, "enable_thinking", json_boolean(is_on), err);
}

int api_read_modalities(void *out, const json_t *v, const char *name, api_error *err) {
    (void)out;
    if (!json_is_array(v)) return api_wrong_type(v, name, "a list", err);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *s = json_array_get(v, i);
        if (!json_is_string(s) || strcmp(json_string_value(s), "text"))
            return api_fail(err, 400, name, "%s: expected [\"text\"], because this server writes text only", name);
    }
    return 0;
}

int api_read_truncation(void *out, const json_t *v, const char *name, api_error *err) {
    (void)out;
    if (!json_is_string(v)) return api_wrong_type(v, name, "a string", err);
    if (!strcmp(json_string_value(v), "disabled")) return 0;
    return api_fail(err, 400, name, "%s is %.40s, expected disabled: this server never shortens a conversation", name,
                    json_string_value(v));
}

// ---- prompts ----

static int read_ids(const json_t *v, const char *name, api_prompt *out, api_error *err) {
    out->ids = malloc((json_array_size(v) + 1) * sizeof *out->ids);
    if (!out->ids) return api_no_memory(err);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *id = json_array_get(v, i);
        if (!json_is_integer(id)) return api_wrong_type(id, name, "token ids", err);
        if (json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX)
            return api_fail(err, 400, name, "%s: found the token id %lld, expected 0 to %d", name,
                            (long long)json_integer_value(id), INT32_MAX);
        out->ids[out->n_ids++] = (int32_t)json_integer_value(id);
    }
    return 0;
}

static int read_one(const json_t *v, const char *name, api_prompt *out, api_error *err) {
    if (json_is_array(v)) return read_ids(v, name, out, err);
    if (!json_is_string(v)) return api_wrong_type(v, name, "a string or a list of token ids", err);
    out->text = json_string_value(v);
    out->n = json_string_length(v);
    return 0;
}

static int make_prompts(api_request *r, size_t n, const char *name, api_error *err) {
    if (n < 1 || n > MOST_PROMPTS)
        return api_fail(err, 400, name, "%s has %zu prompts, expected 1 to %d", name, n, MOST_PROMPTS);
    if (r->prompts) return api_fail(err, 400, name, "%s: a prompt is given twice", name);
    r->prompts = calloc(n, sizeof *r->prompts);
    if (!r->prompts) return api_no_memory(err);
    r->n_prompts = (int)n;
    return 0;
}

int api_read_prompt(void *out, const json_t *v, const char *name, api_error *err) {
    api_request *r = out;
    char item[API_NAME];
    int is_list = json_is_array(v) && !json_is_integer(json_array_get(v, 0));
    int rc = make_prompts(r, is_list ? json_array_size(v) : 1, name, err);
    if (!rc && !is_list) return read_one(v, name, r->prompts, err);
    for (int i = 0; !rc && i < r->n_prompts; i++)
        rc = read_one(json_array_get(v, (size_t)i), api_item_name(item, name, (size_t)i, ""), &r->prompts[i], err);
    return rc;
}

int api_read_text_prompt(void *out, const json_t *v, const char *name, api_error *err) {
    if (!json_is_string(v)) return api_wrong_type(v, name, "a string", err);
    return api_read_prompt(out, v, name, err);
}

int api_read_tokens(void *out, const json_t *v, const char *name, api_error *err) {
    api_request *r = out;
    if (!json_is_array(v)) return api_wrong_type(v, name, "a list of token ids", err);
    int rc = make_prompts(r, 1, name, err);
    return rc ? rc : read_ids(v, name, r->prompts, err);
}
