// server/serve/serve_format.c - the grammar of an answer: the format that the request gives, or a call of one of its tools.
#include "server/serve/serve_internal.h"
#include "grammar/grammar.h"

#include <stdlib.h>
#include <string.h>

static int read_format(const api_format *f, sl_grammar **out, sl_error *err) {
    const char *text = json_string_value(f->value);
    size_t n = json_string_length(f->value);
    switch (f->kind) {
    case API_FORMAT_JSON:
        return sl_grammar_new_json_object(out, err);
    case API_FORMAT_SCHEMA:
        return sl_grammar_new_schema(f->value, out, err);
    case API_FORMAT_REGEX:
        return sl_grammar_new_regex(text, n, out, err);
    case API_FORMAT_CHOICE:
        return sl_grammar_new_choice(f->value, out, err);
    default:
        return sl_grammar_new_gbnf(text, n, NULL, out, err);
    }
}

// ---- calls ----

typedef struct call_form {
    const char *before, *arguments, *after; // the marks around a call; the member with its arguments
} call_form;

// NULL: a grammar cannot write calls of this format.
static const call_form *form_of(api_call_format f) {
    static const call_form hermes = {"<tool_call>\n", "arguments", "\n</tool_call>"}, llama3 = {"", "parameters", ""};
    return f == API_CALLS_HERMES ? &hermes : f == API_CALLS_LLAMA3 ? &llama3 : NULL;
}

// Takes v, a string, and appends it as JSON writes it, which GBNF reads as the same text.
static int append_string(sl_text *to, json_t *v, sl_error *err) {
    char *text = v ? json_dumps(v, JSON_ENCODE_ANY) : NULL;
    int rc = text ? sl_text_append(to, text, strlen(text), err) : sl_fail(err, SL_ERR_MEMORY, "a grammar: out of memory");
    free(text);
    json_decref(v);
    return rc;
}

static int append(sl_text *to, const char *text, sl_error *err) {
    return sl_text_append(to, text, strlen(text), err);
}

// Appends the text of a call up to its arguments, and the rule of these, whose schema it adds.
static int append_call(const call_form *form, const json_t *function, size_t i, sl_text *gbnf, json_t *schemas, sl_error *err) {
    json_t *parameters = json_object_get(function, "parameters");
    char rule[32];
    sl_text name = {0};
    snprintf(rule, sizeof rule, "tool-%zu", i);
    parameters =
        json_object_size(parameters) ? json_incref(parameters) : json_pack("{s:s, s:{}}", "type", "object", "properties");
    int rc = append_string(&name, json_incref(json_object_get(function, "name")), err);
    if (!rc) rc = append_string(gbnf, json_sprintf("%s{\"name\": %s, \"%s\": ", form->before, name.data, form->arguments), err);
    if (!rc) rc = append(gbnf, " ", err);
    if (!rc) rc = append(gbnf, rule, err);
    sl_text_free(&name);
    if (json_object_set_new(schemas, rule, parameters) && !rc) rc = sl_fail(err, SL_ERR_MEMORY, "a grammar: out of memory");
    return rc;
}

// The calls of the tools that the request allows: root ::= ("..." tool-0 | "..." tool-1) "}...". Each schema is read alone, so
// that a "$ref" within it finds its place.
static int write_calls(const call_form *form, const api_request *q, sl_text *gbnf, json_t *schemas, sl_error *err) {
    const json_t *tool;
    size_t i, n = 0;
    int rc = append(gbnf, "root ::= (", err);
    json_array_foreach(q->tools, i, tool) {
        const json_t *function = json_object_get(tool, "function");
        if (q->tool_name && strcmp(json_string_value(json_object_get(function, "name")), q->tool_name)) continue;
        if (!rc && n++) rc = append(gbnf, " | ", err);
        if (!rc) rc = append_call(form, function, i, gbnf, schemas, err);
    }
    if (!rc) rc = append(gbnf, ") ", err);
    return rc ? rc : append_string(gbnf, json_sprintf("}%s", form->after), err);
}

static int read_calls(const call_form *form, const api_request *q, sl_grammar **out, sl_error *err) {
    sl_text gbnf = {0};
    json_t *schemas = json_object();
    int rc = write_calls(form, q, &gbnf, schemas, err);
    if (!rc) rc = sl_grammar_new_gbnf(gbnf.data, gbnf.n, schemas, out, err);
    sl_text_free(&gbnf);
    json_decref(schemas);
    return rc;
}

// ---- the request ----

// The message begins with the field.
static int refuse(const char *field, const sl_error *why, api_error *err) {
    int is_named = !strncmp(why->message, field, strlen(field));
    if (why->code == SL_ERR_MEMORY) return api_no_memory(err);
    return api_fail(err, 400, field, "%s%s%s", is_named ? "" : field, is_named ? "" : ": ", why->message);
}

int serve_make_grammar(const serve_server *s, serve_request *r, int in_reasoning, api_error *err) {
    const api_request *q = &r->api;
    sl_error why;
    int is_call = q->tool_choice == API_TOOLS_REQUIRED || q->tool_choice == API_TOOLS_NAMED;
    const call_form *form = form_of(s->calls);
    if (!is_call && q->format.kind == API_FORMAT_FREE) return 0;
    if (is_call && !form)
        return api_fail(err, 400, "tool_choice",
                        "tool_choice: the calls of this chat template cannot be forced; expected auto or none, or a template "
                        "with calls in the form hermes or llama3_json");
    int rc = is_call ? read_calls(form, q, &r->grammar, &why) : read_format(&q->format, &r->grammar, &why);
    if (rc) return refuse(is_call ? "tools" : q->format.field, &why, err);
    r->grammar_after = in_reasoning ? "</think>" : NULL;
    return 0;
}
