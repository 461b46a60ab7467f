// cli/run/grammar_flags.c - see grammar_flags.h.
#include "cli/run/grammar_flags.h"
#include "base/arrays.h"
#include "base/error.h"
#include "cli/io.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

// The list of --choice as JSON. The caller frees it; NULL: a text is not UTF-8, or out of memory
static char *choices_text(const cli_list *choices) {
    json_t *list = json_array();
    int rc = 0;
    for (int i = 0; !rc && i < choices->n; i++) rc = json_array_append_new(list, json_string(choices->items[i]));
    char *text = rc ? NULL : json_dumps(list, JSON_COMPACT);
    json_decref(list);
    return text;
}

static int is_inline(sl_grammar_kind kind, const char *value) {
    if (kind == SL_GRAMMAR_GBNF) return strstr(value, "::=") != NULL;
    return kind != SL_GRAMMAR_JSON_SCHEMA || value[strspn(value, " \t\r\n")] == '{';
}

static int make(sl_grammar_kind kind, const char *flag, const char *value, sl_grammar **out, sl_error *err) {
    const char *where = is_inline(kind, value) ? flag : value;
    sl_text text = {0};
    sl_error why;
    int rc = where == flag ? sl_text_append(&text, value, strlen(value), err) : cli_read_file(value, &text, err);
    if (!rc && (rc = sl_grammar_new(kind, text.n ? text.data : "", text.n, out, &why)))
        rc = sl_fail(err, where == flag ? SL_ERR_ARG : why.code, "%.200s: %s", where, why.message);
    sl_text_free(&text);
    return rc;
}

int cli_make_grammar(const cli_grammar_options *o, sl_grammar **out, sl_error *err) {
    char *choices = o->choices.n ? choices_text(&o->choices) : NULL;
    const struct {
        sl_grammar_kind kind;
        const char *flag, *value;
    } flags[] = {{SL_GRAMMAR_GBNF, "--grammar", o->gbnf},
                 {SL_GRAMMAR_JSON_SCHEMA, "--json-schema", o->schema},
                 {SL_GRAMMAR_REGEX, "--regex", o->regex},
                 {SL_GRAMMAR_CHOICE, "--choice", choices}};
    const char *first = NULL;
    int rc = o->choices.n && !choices ? sl_fail(err, SL_ERR_ARG, "--choice: expected UTF-8") : 0;
    *out = NULL;
    for (size_t i = 0; !rc && i < sizeof flags / sizeof *flags; i++) {
        if (!flags[i].value) continue;
        if (first)
            rc = sl_fail(err, SL_ERR_ARG, "flag %s cannot be used with %s", flags[i].flag, first);
        else
            rc = make(flags[i].kind, first = flags[i].flag, flags[i].value, out, err);
    }
    if (!rc && o->after && !first)
        rc = sl_fail(err, SL_ERR_ARG, "flag --grammar-after needs --grammar, --json-schema, --regex or --choice");
    free(choices);
    return rc;
}
