// tests/tokenizer/test_jinja.c - the template language gives the bytes that Python's Jinja gives, set up as transformers does
// (scripts/goldens/make_templates.py).
#include "base/hash.h"
#include "tests/test.h"
#include "tokenizer/chat/chat.h"
#include "tokenizer/chat/chat_builtin.h"
#include "tokenizer/jinja/jinja.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROWS "tests/goldens/templates.jsonl"
enum { NOW = 1732800000 };

static sl_error err;
static time_t now = NOW;

// What Sleigh refuses though Python has it. Each is named in the error.
static const char *const missing[] = {
    "str.encode is not supported",
    "the attribute real of a number is not supported",
    "a value of the type method cannot be written",
    "a value of the type function cannot be written",
    "a value of the type generator cannot be written",
    "an integer has more than 64 bits",
    "the tag 'block' is not supported",
    "a string of the filter safe",
    "replace of a string of the filter safe",
    "str.isdecimal is not supported",
    "'range' object cannot be sliced",
    "this format of a value of the type",
    "this format specification is not supported",
    "this field of a format string is not supported",
    "the format %",
    "the flag # of a format is not supported",
    "the filter '",
    "the test '",
    "the function lipsum is not supported",
    "the part %Q of a date is not supported",
    "batch: a count of 0 is not supported",
    "complex numbers are not supported",
};

static int is_missing(const char *message) {
    for (size_t i = 0; i < sizeof missing / sizeof *missing; i++)
        if (strstr(message, missing[i])) return 1;
    return 0;
}

static int render(const char *text, size_t n, const json_t *context, int mark, sl_jinja_output *out) {
    sl_jinja *t = NULL;
    const sl_jinja_input in = {.plain = mark ? NULL : context, .marked = mark ? context : NULL, .now = now};
    int rc = sl_jinja_parse("template", text, n, &t, &err);
    if (!rc) rc = sl_jinja_render(t, &in, out, &err);
    sl_jinja_free(t);
    return rc;
}

// Renders with and without marks, which must not change the text. want: a text, null (an error), or false (an error of syntax).
// Returns 1 where Sleigh lacks something.
static int check(const char *label, const char *text, size_t n, const json_t *context, const json_t *want, int is_hash) {
    for (int mark = 0; mark < 2; mark++) {
        sl_jinja_output out = {0};
        char hash[17];
        int rc = render(text, n, context, mark, &out);
        if (rc == SL_ERR_UNSUPPORTED && json_is_string(want) && is_missing(err.message)) return 1;
        if (rc && json_is_string(want)) FAIL("%s: %s", label, err.message);
        if (!rc && !json_is_string(want)) FAIL("%s: got \"%s\", expected an error", label, out.text.data);
        if (rc && (json_is_false(want) ? rc != SL_ERR_FORMAT : rc != SL_ERR_ARG) && rc != SL_ERR_UNSUPPORTED)
            FAIL("%s: error %d, expected another code: %s", label, rc, err.message);
        if (rc == SL_ERR_UNSUPPORTED && !strstr(err.message, "not supported") &&
            !is_missing(err.message)) // an error of the template has another code
            FAIL("%s: the code of what is not supported: %s", label, err.message);
        if (!rc && is_hash) {
            snprintf(hash, sizeof hash, "%016llx", (unsigned long long)sl_fnv1a(SL_FNV1A_START, out.text.data, out.text.n));
            if (strcmp(hash, json_string_value(want))) FAIL("%s: another text than Jinja's: \"%s\"", label, out.text.data);
        } else if (!rc &&
                   (out.text.n != json_string_length(want) || memcmp(out.text.data, json_string_value(want), out.text.n))) {
            FAIL("%s: got \"%s\", expected \"%s\"", label, out.text.data, json_string_value(want));
        }
        sl_jinja_output_free(&out);
    }
    return 0;
}

static FILE *open_rows(json_t **head) {
    FILE *f = fopen(ROWS, "r");
    CHECK(f != NULL);
    CHECK(!setenv("TZ", "UTC", 1));
    tzset();
    *head = json_loadf(f, JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, NULL);
    CHECK(*head != NULL);
    return f;
}

static json_t *next_row(FILE *f) {
    return json_loadf(f, JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, NULL);
}

// Expressions and templates; products of numbers as text, formats, keys, escapes, methods with each kind of argument, and
// blanks around tags; templates from a seed; dates.
static void language(void) {
    json_t *head;
    FILE *f = open_rows(&head);
    int n = 0, n_missing = 0, n_errors = 0;
    for (json_t *row; (row = next_row(f)); json_decref(row)) {
        const json_t *text = json_object_get(row, "text"), *want = json_object_get(row, "result");
        if (!text || json_object_get(row, "each")) continue;
        const char *name = json_string_value(json_object_get(row, "context"));
        const json_t *context = json_object_get(json_object_get(head, "contexts"), name ? name : "language");
        const json_t *date = json_object_get(row, "now");
        now = date ? json_integer_value(date) : NOW;
        n_missing += check(json_string_value(text), json_string_value(text), json_string_length(text), context, want, 0);
        n_errors += !json_is_string(want);
        n++;
    }
    now = NOW;
    fclose(f);
    json_decref(head);
    CHECK(n > 6000 && n_errors > 2500);
    if (n_missing > 88) FAIL("%d templates use what Sleigh lacks, expected at most 88", n_missing);
}

// Every operator, filter, test, method and kind of slice on a value of each kind.
static void each_value(void) {
    json_t *head, *context = json_object();
    FILE *f = open_rows(&head);
    const json_t *values = json_object_get(head, "values");
    int n = 0, n_missing = 0, n_errors = 0;
    for (json_t *row; (row = next_row(f)); json_decref(row)) {
        const json_t *text = json_object_get(row, "text"), *each = json_object_get(row, "each");
        if (!each) continue;
        CHECK_INT(json_array_size(each), json_array_size(values));
        for (size_t i = 0; i < json_array_size(each); i++) {
            const json_t *want = json_array_get(each, i);
            char label[300];
            if (json_is_integer(want)) continue; // Python writes an address
            snprintf(label, sizeof label, "%.200s, value %zu", json_string_value(text), i);
            json_object_set(context, "v", json_array_get(values, i));
            n_missing += check(label, json_string_value(text), json_string_length(text), context, want, 0);
            n_errors += !json_is_string(want);
            n++;
        }
    }
    fclose(f);
    json_decref(context);
    json_decref(head);
    CHECK(n > 10000 && n_errors > 4500);
    if (n_missing > 25) FAIL("%d results use what Sleigh lacks, expected at most 25", n_missing);
}

static void read_file(const char *name, sl_text *text) {
    const sl_documents folder = SL_FOLDER("tests/chat/families");
    CHECK_OK(sl_documents_text(&folder, name, 1 << 20, text, &err), err);
}

static void families(void) {
    json_t *head;
    FILE *f = open_rows(&head);
    const json_t *chats = json_object_get(head, "conversations");
    int n = 0, n_families = 0;
    for (json_t *row; (row = next_row(f)); json_decref(row)) {
        const char *file = json_string_value(json_object_get(row, "file")),
                   *name = json_string_value(json_object_get(row, "name"));
        const json_t *results = json_object_get(row, "results");
        char label[100];
        sl_text text = {0};
        if (!results) continue;
        CHECK_INT(json_array_size(results), json_array_size(chats));
        if (file)
            read_file(file, &text);
        else
            CHECK(sl_chat_builtin_find(name) &&
                  !sl_text_append(&text, sl_chat_builtin_find(name)->text, strlen(sl_chat_builtin_find(name)->text), &err));
        for (size_t i = 0; i < json_array_size(chats); i++, n++) {
            snprintf(label, sizeof label, "%.60s, conversation %zu", file ? file : name, i);
            check(label, text.data, text.n, json_array_get(chats, i), json_array_get(results, i), 1);
        }
        n_families++;
        sl_text_free(&text);
    }
    fclose(f);
    json_decref(head);
    CHECK(n_families >= 60 && n > 1000);
    int n_builtin = 0;
    for (const sl_chat_builtin *t = sl_chat_builtins; t->name; t++) n_builtin++;
    CHECK(n_builtin >= 33);
}

static void errors(void) { // each names the line and what is wrong
    static const struct {
        const char *text, *message;
        int rc;
    } cases[] = {
        {"a\n{{ foo.bar }}", "template: line 2: 'foo' is undefined", SL_ERR_ARG},
        {"{% if 1 %}\n{{ foo.bar }}\n{% endif %}\n", "template: line 2: 'foo' is undefined", SL_ERR_ARG},
        {"{{ 'a'|nope }}", "line 1: No filter named 'nope'.", SL_ERR_ARG},
        {"{{ 1 is nope }}", "No test named 'nope'.", SL_ERR_ARG},
        {"{{ lipsum(1) }}", "the function lipsum is not supported", SL_ERR_UNSUPPORTED},
        {"{{ 'a'|urlize }}", "the filter 'urlize' is not supported", SL_ERR_UNSUPPORTED},
        {"\n\n{% include 'x' %}", "line 3: the tag 'include' is not supported", SL_ERR_UNSUPPORTED},
        {"{{ [1].append(2) }}", "access to attribute 'append' of 'list' object is unsafe.", SL_ERR_ARG},
        {"{{ raise_exception('no, ' ~ 7) }}", "the template refuses these messages: no, 7", SL_ERR_ARG},
        {"{% if true %}", "the template ends, expected 'endif'", SL_ERR_FORMAT},
        {"{{ a b }}", "unexpected 'b', expected '}}'", SL_ERR_FORMAT},
        {"{% for x in range(9000) %}{% for y in range(9000) %}x{% endfor %}{% endfor %}", "steps", SL_ERR_UNSUPPORTED},
        {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "levels deep", SL_ERR_UNSUPPORTED},
        {"{% set ns = namespace(s='xxxxxxxxxx') %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
         "MiB of memory", SL_ERR_UNSUPPORTED},
        {"{{ 'a'.translate({}) }}", "str.translate is not supported", SL_ERR_UNSUPPORTED},
        {"{{ '\\ud800' }}", "an escape is not a character", SL_ERR_FORMAT},
        {"{{ 1.5|round(23) }}", "round: precision 23 is not supported", SL_ERR_UNSUPPORTED},
        {"{{ 1.5|round(-1) }}", "round: precision -1 is not supported", SL_ERR_UNSUPPORTED},
        {"{{ '%.61f' % 1.5 }}", "this format of a float is not supported", SL_ERR_UNSUPPORTED},
        {"{{ ['a'|safe] }}", "a string of the filter safe within a list", SL_ERR_UNSUPPORTED},
        {"{{ '%E' % 1.5 }}", "the format %E is not supported", SL_ERR_UNSUPPORTED},
        {"{{ '{:%}'.format(1.5) }}", "this format specification is not supported", SL_ERR_UNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sl_jinja_output out = {0};
        json_t *context = json_object();
        sl_jinja *t = NULL;
        int rc = sl_jinja_parse("template", cases[i].text, strlen(cases[i].text), &t, &err);
        int is_memory = strstr(cases[i].message, "MiB") != NULL;
        const sl_jinja_limits limits = {.most_steps = is_memory ? 0 : 3000000, .most_bytes = is_memory ? 32 << 20 : 0};
        const sl_jinja_input in = {.plain = context, .limits = limits};
        if (!rc) rc = sl_jinja_render(t, &in, &out, &err);
        if (rc != cases[i].rc || !strstr(err.message, cases[i].message))
            FAIL("%s: %d, \"%s\", expected %d, \"%s\"", cases[i].text, rc, rc ? err.message : out.text.data, cases[i].rc,
                 cases[i].message);
        sl_jinja_output_free(&out);
        sl_jinja_free(t);
        json_decref(context);
    }
}

// A form that stands many times side by side, and the same form within itself: only the latter is too deep.
static void depth(void) {
    static const struct {
        const char *before, *open, *inner, *close, *after;
    } forms[] = {
        {"{{", "(", "1", ")", "}}"},
        {"{{", "not ", "1", "", "}}"},
        {"{{", "-", "1", "", "}}"},
        {"{{", "[", "1", "]", "|string}}"},
        {"{{", "{1:", "1", "}", "|tojson}}"},
        {"{{ [[1]] == ", "[", "1", "]", "}}"},
        {"{{", "[0][", "0", "]", "}}"},
        {"{{", "1 if 1 else ", "1", "", "}}"},
        {"{{", "1|default(", "1", ")", "}}"},
        {"", "{% if 1 %}", "x", "{% endif %}", ""},
        {"", "{% for i in [1] %}", "x", "{% endfor %}", ""},
        {"", "{% filter trim %}", "x", "{% endfilter %}", ""},
        {"{% macro f() %}{{ caller() }}{% endmacro %}", "{% call f() %}", "x", "{% endcall %}", ""},
    };
    enum { TIMES = 1200 };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        for (int nested = 0; nested < 2; nested++) {
            char *text;
            size_t n;
            FILE *f = open_memstream(&text, &n);
            for (int k = 0; k < (nested ? 1 : TIMES); k++) {
                fputs(forms[i].before, f);
                for (int j = 0; j < (nested ? TIMES : 1); j++) fputs(forms[i].open, f);
                fputs(forms[i].inner, f);
                for (int j = 0; j < (nested ? TIMES : 1); j++) fputs(forms[i].close, f);
                fputs(forms[i].after, f);
            }
            CHECK(!fclose(f));
            sl_jinja_output out = {0};
            int rc = render(text, n, NULL, 0, &out);
            int is_deep = rc && (strstr(err.message, "levels deep") || strstr(err.message, "open brackets"));
            if (nested ? !is_deep : rc) FAIL("%s, nested %d: %d, %s", forms[i].open, nested, rc, rc ? err.message : "");
            sl_jinja_output_free(&out);
            free(text);
        }
}

static const test_case cases[] = {
    {"language", 0, language}, {"each-value", 0, each_value}, {"families", 0, families},
    {"errors", 0, errors},     {"depth", 0, depth},           {0},
};
extern const test_suite suite_jinja;
const test_suite suite_jinja = {"jinja", cases};
