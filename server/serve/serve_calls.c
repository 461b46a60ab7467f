// server/serve/serve_calls.c - the grammar of the calls that a request forces, in the form that the chat template teaches. The
// tools' schemas restrict the arguments.
#include "server/serve/serve_internal.h"
#include "grammar/grammar.h"
#include "server/api/call_syntax.h"

#include <stdlib.h>
#include <string.h>

enum { LONGEST_NAME = 128 }; // of a function without quotes: the parser of calls holds 256 bytes up to the arguments

typedef struct call_mark {
    const char *rule, *token;
    const char *otherwise; // GBNF in place of a token that the vocabulary lacks; NULL: such a vocabulary is refused
} call_mark;

typedef enum call_names { JSON_NAMES, PYTHON_NAMES, MISTRAL_NAMES } call_names;

// The parts of a grammar in GBNF: root ::= FIRST call (BETWEEN call)* LAST, call ::= OPEN name NAMED arguments CLOSE. NULL:
// nothing stands there.
typedef struct call_form {
    call_names names;
    const char *first, *open, *named, *close, *last;
    const char *between; // NULL: the template teaches one call only
    call_mark marks[2];
} call_form;

// Between two calls stands what the templates write there. A model of Mistral may also write the id that its template gives to
// a call.
static const call_form forms[] = {
    [API_CALLS_LLAMA3] = {JSON_NAMES, .open = "\"{\\\"name\\\": \"", .named = "\", \\\"parameters\\\": \"", .close = "\"}\""},
    [API_CALLS_PYTHONIC] = {PYTHON_NAMES, .first = "tag? \"[\"", .between = "\", \"", .last = "\"]\"",
                            .marks = {{"tag", "<|python_tag|>", "\"\""}}},
    [API_CALLS_HERMES] = {JSON_NAMES, .open = "begin \"\\n{\\\"name\\\": \"", .named = "\", \\\"arguments\\\": \"",
                          .close = "\"}\\n\" end", .between = "\"\\n\"",
                          .marks = {{"begin", "<tool_call>", "\"<tool_call>\""}, {"end", "</tool_call>", "\"</tool_call>\""}}},
    [API_CALLS_MISTRAL] = {JSON_NAMES, .first = "mark \" \"? \"[\"", .open = "\"{\\\"name\\\": \"",
                           .named = "\", \\\"arguments\\\": \"",
                           .close = "(\", \\\"id\\\": \\\"\" [a-zA-Z0-9]{9} \"\\\"\")? \"}\"", .between = "\", \"",
                           .last = "\"]\"", .marks = {{"mark", "[TOOL_CALLS]", NULL}}},
    [API_CALLS_MISTRAL_ARGS] = {MISTRAL_NAMES, .open = "mark", .named = "args", .between = "",
                                .marks = {{"mark", "[TOOL_CALLS]", NULL}, {"args", "[ARGS]", NULL}}},
};

static const char *or_nothing(const char *gbnf) {
    return gbnf ? gbnf : "";
}

static int append(sl_text *to, const char *text, sl_error *err) {
    return sl_text_append(to, text, strlen(text), err);
}

// Takes v, a string, and appends it as JSON writes it, which GBNF reads as the same text.
static int append_string(sl_text *to, json_t *v, sl_error *err) {
    char *text = v ? json_dumps(v, JSON_ENCODE_ANY) : NULL;
    int rc = text ? append(to, text, err) : sl_fail(err, SL_ERR_MEMORY, "a grammar: out of memory");
    free(text);
    json_decref(v);
    return rc;
}

// ---- tools ----

static int has_name(const call_form *form, const char *name) {
    size_t n = strlen(name);
    if (form->names == JSON_NAMES) return 1;
    if (n > LONGEST_NAME) return 0;
    return form->names == PYTHON_NAMES ? api_is_python_name(name) : !strpbrk(name, "[{") && api_mistral_name(name, n) == n;
}

static int append_name(const call_form *form, json_t *name, sl_text *gbnf, sl_error *err) {
    sl_text quoted = {0};
    if (form->names != JSON_NAMES) return append_string(gbnf, json_incref(name), err);
    int rc = append_string(&quoted, json_incref(name), err);
    if (!rc) rc = append_string(gbnf, json_stringn(quoted.data, quoted.n), err);
    sl_text_free(&quoted);
    return rc;
}

// Appends a name, and the rule of the arguments, whose schema it adds.
static int append_tool(const call_form *form, const json_t *function, size_t i, sl_text *gbnf, json_t *parts, sl_error *err) {
    json_t *name = json_object_get(function, "name"), *parameters = json_object_get(function, "parameters");
    const char *kind = form->names == PYTHON_NAMES ? "arguments" : "schema";
    char rule[32], tail[64];
    if (!has_name(form, json_string_value(name)))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "tools: the name %.60s of a function cannot be written in a call of this chat "
                       "template, expected at most %d letters, digits, _, - and ., of which the first one is a letter or _",
                       json_string_value(name), LONGEST_NAME);
    snprintf(rule, sizeof rule, "tool-%zu", i);
    snprintf(tail, sizeof tail, " %s %s", or_nothing(form->named), rule);
    json_t *part = json_object_size(parameters) ? json_pack("{s:O}", kind, parameters)
                                                : json_pack("{s:{s:s, s:{}}}", kind, "type", "object", "properties");
    int rc = append_name(form, name, gbnf, err);
    if (!rc) rc = append(gbnf, tail, err);
    if (json_object_set_new(parts, rule, part) && !rc) rc = sl_fail(err, SL_ERR_MEMORY, "a grammar: out of memory");
    return rc;
}

// The tools that the request allows. Each schema is read alone, so that a "$ref" within it finds its place.
static int append_tools(const call_form *form, const api_request *q, sl_text *gbnf, json_t *parts, sl_error *err) {
    const json_t *tool;
    size_t i, n = 0;
    int rc = 0;
    json_array_foreach(q->tools, i, tool) {
        const json_t *function = json_object_get(tool, "function");
        if (q->tool_name && strcmp(json_string_value(json_object_get(function, "name")), q->tool_name)) continue;
        if (!rc && n++) rc = append(gbnf, " | ", err);
        if (!rc) rc = append_tool(form, function, i, gbnf, parts, err);
    }
    return rc;
}

static int write_calls(const call_form *form, const api_request *q, sl_text *gbnf, json_t *parts, sl_error *err) {
    int is_several = form->between && q->tool_choice == API_TOOLS_REQUIRED && q->parallel_tool_calls;
    char text[256];
    snprintf(text, sizeof text, "\nroot ::= %s call (%s call)%s %s\ncall ::= %s (", or_nothing(form->first),
             or_nothing(form->between), is_several ? "*" : "{0}", or_nothing(form->last), or_nothing(form->open));
    int rc = append(gbnf, text, err);
    if (!rc) rc = append_tools(form, q, gbnf, parts, err);
    snprintf(text, sizeof text, ") %s", or_nothing(form->close));
    return rc ? rc : append(gbnf, text, err);
}

// ---- marks ----

// A mark is a token by its id, so that the model cannot spell it.
static int append_mark(const call_mark *mark, const sl_model *model, sl_text *gbnf, json_t *parts, sl_error *err) {
    int32_t id = sl_tokenizer_find(sl_model_tokenizer(model), mark->token);
    char text[64];
    if (id >= 0 && id < sl_model_n_vocab(model)) {
        int is_set = !json_object_set_new(parts, mark->rule, json_pack("{s:i}", "token", (int)id));
        return is_set ? 0 : sl_fail(err, SL_ERR_MEMORY, "a grammar: out of memory");
    }
    if (!mark->otherwise)
        return sl_fail(
            err, SL_ERR_UNSUPPORTED,
            "tool_choice: the tokenizer has no token %s, which calls of this chat template need; expected auto or none",
            mark->token);
    snprintf(text, sizeof text, "\n%s ::= %s", mark->rule, mark->otherwise);
    return append(gbnf, text, err);
}

int serve_force_calls(api_call_format format, const sl_model *model, const api_request *q, sl_grammar **out, const char **field,
                      sl_error *err) {
    const call_form *form = &forms[format];
    sl_text gbnf = {0};
    *field = "tool_choice";
    if (format == API_CALLS_NONE)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "tool_choice: the calls of this chat template cannot be forced; expected auto or none, or a template "
                       "with calls in the form hermes, llama3_json, pythonic or mistral");
    json_t *parts = json_object();
    int rc = parts ? 0 : sl_fail(err, SL_ERR_MEMORY, "a grammar: out of memory");
    for (size_t i = 0; !rc && i < sizeof form->marks / sizeof *form->marks && form->marks[i].rule; i++)
        rc = append_mark(&form->marks[i], model, &gbnf, parts, err);
    if (!rc) *field = "tools", rc = write_calls(form, q, &gbnf, parts, err);
    if (!rc) rc = sl_grammar_new_gbnf(gbnf.data, gbnf.n, parts, out, err);
    sl_text_free(&gbnf);
    json_decref(parts);
    return rc;
}
