// server/serve/serve_format.c - the grammar of an answer: the format that the request gives, or calls of its tools.
#include "server/serve/serve_internal.h"
#include "grammar/grammar.h"

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

// ---- the request ----

// The message begins with the field.
static int refuse(const char *field, const sl_error *why, api_error *err) {
    int is_named = !strncmp(why->message, field, strlen(field));
    if (why->code == SL_ERR_MEMORY) return api_no_memory(err);
    return api_fail(err, 400, field, "%s%s%s", is_named ? "" : field, is_named ? "" : ": ", why->message);
}

int serve_make_grammar(const serve_server *s, serve_request *r, api_error *err) {
    const api_request *q = &r->api;
    const char *field = q->format.field;
    int is_call = q->tool_choice == API_TOOLS_REQUIRED || q->tool_choice == API_TOOLS_NAMED;
    sl_error why;
    if (!is_call && q->format.kind == API_FORMAT_FREE) return 0;
    int rc = is_call ? serve_force_calls(s->calls, s->model->model, q, &r->grammar, &field, &why)
                     : read_format(&q->format, &r->grammar, &why);
    if (rc) return refuse(field, &why, err);
    r->grammar_after = r->in_reasoning ? "</think>" : NULL;
    return 0;
}
