// grammar/grammar_texts.c - sl_grammar_new: a grammar from a text (sleigh.h).
#include "grammar/grammar.h"

// *out: a JSON text of any value
static int parse(const char *what, const char *text, size_t n, json_t **out, sl_error *err) {
    json_error_t e;
    *out = json_loadb(text, n, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &e);
    return *out ? 0 : sl_fail(err, SL_ERR_FORMAT, "%s: line %d, column %d: %s", what, e.line, e.column, e.text);
}

int sl_grammar_new(sl_grammar_kind kind, const char *text, size_t n, sl_grammar **out, sl_error *err) {
    json_t *value = NULL;
    int rc = 0;
    if (kind == SL_GRAMMAR_GBNF) return sl_grammar_new_gbnf(text, n, NULL, out, err);
    if (kind == SL_GRAMMAR_REGEX) return sl_grammar_new_regex(text, n, out, err);
    if (kind == SL_GRAMMAR_JSON_OBJECT) return sl_grammar_new_json_object(out, err);
    int is_schema = kind == SL_GRAMMAR_JSON_SCHEMA;
    if (!is_schema && kind != SL_GRAMMAR_CHOICE)
        return sl_fail(err, SL_ERR_ARG, "a grammar of kind %d: expected %d to %d", kind, SL_GRAMMAR_GBNF, SL_GRAMMAR_CHOICE);
    rc = parse(is_schema ? "schema" : "choice", text, n, &value, err);
    if (!rc) rc = is_schema ? sl_grammar_new_schema(value, out, err) : sl_grammar_new_choice(value, out, err);
    json_decref(value);
    return rc;
}
