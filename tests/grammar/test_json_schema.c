// tests/grammar/test_json_schema.c - JSON schemas as grammars: which texts follow them, what is refused, and random texts that
// a validator of JSON schemas accepts.
#define _GNU_SOURCE
#include "grammar/grammar_internal.h"
#include "server/api/call_syntax.h"
#include "tests/support/venv.h"
#include "tests/test.h"

#include <math.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

static sl_error err;

static sl_grammar *grammar_of(const char *schema) {
    sl_grammar *g;
    json_t *root = json_loads(schema, JSON_DECODE_ANY, NULL);
    if (!root) FAIL("%s: no JSON", schema);
    if (sl_grammar_new_schema(root, &g, &err)) FAIL("%s: %s", schema, err.message);
    json_decref(root);
    return g;
}

// The arguments of a call in Python. root is freed. Returns the code of an error.
static int read_arguments(json_t *root, sl_grammar **out) {
    static const char text[] = "root ::= tool";
    json_t *parts = json_pack("{s:{s:o}}", "tool", "arguments", root);
    int rc = sl_grammar_new_gbnf(text, sizeof text - 1, parts, out, &err);
    json_decref(parts);
    return rc;
}

static sl_grammar *arguments_of(const char *schema) {
    sl_grammar *g;
    if (read_arguments(json_loads(schema, 0, NULL), &g)) FAIL("%s: %s", schema, err.message);
    return g;
}

static int follows(const sl_grammar *g, const char *text) {
    sl_automaton a;
    CHECK_OK(sl_automaton_new(g, &a, &err), err);
    uint32_t state = a.start;
    for (; *text; text++) CHECK_OK(sl_automaton_step(&a, state, (unsigned char)*text, &state, &err), err);
    int result = a.facts[state].can_end;
    sl_automaton_free(&a);
    return result;
}

// ---- texts that follow a schema and texts that do not ----

typedef struct row {
    const char *schema, *yes[8], *no[8]; // ended by NULL
} row;

static void check_rows_of(const row *rows, size_t n, sl_grammar *(*make)(const char *schema)) {
    for (size_t i = 0; i < n; i++) {
        sl_grammar *g = make(rows[i].schema);
        for (const char *const *t = rows[i].yes; *t; t++)
            if (!follows(g, *t)) FAIL("%s refuses %s", rows[i].schema, *t);
        for (const char *const *t = rows[i].no; *t; t++)
            if (follows(g, *t)) FAIL("%s accepts %s", rows[i].schema, *t);
        sl_grammar_free(g);
    }
}

static void check_rows(const row *rows, size_t n) {
    check_rows_of(rows, n, grammar_of);
}

static void values(void) {
    static const row rows[] = {
        {"true",
         {"{}", "[1, \"a\"]", "null", "-0.5e3", "{\"a\": {\"b\":[]}}"},
         {"", "{a:1}", "01", "\"\n\"", "[1,]", "tru", "+1"}},
        {"{\"type\":\"boolean\"}", {"true", "false"}, {"null", "1"}},
        {"{\"type\":[\"integer\",\"null\"]}", {"1", "-20", "null", "0"}, {"1.0", "\"1\"", "007", "1e3"}},
        {"{\"type\":\"number\"}", {"1", "-1.25", "1e-9", "0.0"}, {"1.", ".5", "1e999", "NaN", "-"}},
        {"{\"type\":\"string\"}",
         {"\"\"", "\"a\\\"\\u00e9\xc3\xa9\"", "\"\\ud83d\\ude00\"", "\"\\\\\\n/\\/\""},
         {"\"", "\"\\ud83d\"", "\"\\u0000\"", "\"\t\"", "\"\\x\"", "\"a\"b\""}},
        {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
         {"\"ab\"", "\"\xe2\x82\xac\\n\\ud83d\\ude00\""},
         {"\"a\"", "\"abcd\"", "\"\""}},
        {"{\"enum\":[\"a\",1,null,{\"x\":[1,2]},\"\xc3\xa9\"]}",
         {"\"a\"", "1", "null", "{\"x\":[1,2]}", "\"\xc3\xa9\""},
         {"\"b\"", "true", "{\"x\":[1]}"}},
        {"{\"type\":\"string\",\"enum\":[\"a\",1]}", {"\"a\""}, {"1"}},
        {"{\"const\":false}", {"false"}, {"true"}},
        {"{\"const\":1.5,\"type\":\"number\"}", {"1.5"}, {"1", "2"}},
        {"{\"description\":\"d\",\"x-note\":1}", {"1", "[]"}, {""}},
    };
    check_rows(rows, sizeof rows / sizeof *rows);
}

static void objects(void) {
#define P "\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"boolean\"},\"c\":{\"type\":\"null\"}}"
    static const row rows[] = {
        {"{\"type\":\"object\"," P "}",
         {"{}", "{\"a\":1}", "{\"b\": true, \"c\":null}", "{\"a\":1,\"c\":null}", "{\n  \"a\": 1,\n  \"b\": true\n}"},
         {"{\"b\":true,\"a\":1}", "{,\"a\":1}", "{\"a\":1,}", "{\"d\":1}", "{\"a\" :1}", "{\"a\":1,\"a\":1}", "{\"a\":  1}"}},
        {"{" P ",\"required\":[\"b\"]}",
         {"{\"b\":true}", "{\"a\":1,\"b\":true}", "{\"b\":true,\"c\":null}", "{\"a\":1,\"b\":false,\"c\":null}"},
         {"{}", "{\"a\":1}", "{\"c\":null}", "{\"a\":1,\"c\":null}"}},
        {"{" P ",\"required\":[\"c\",\"a\"]}",
         {"{\"a\":1,\"c\":null}", "{\"a\":1,\"b\":true,\"c\":null}"},
         {"{\"a\":1}", "{\"c\":null}", "{}"}},
        {"{" P ",\"additionalProperties\":{\"type\":\"string\"}}",
         {"{\"d\":\"x\"}", "{\"a\":1,\"d\":\"\",\"e\":\"\"}", "{}", "{\"aa\":\"\"}", "{\"\":\"\"}"},
         {"{\"a\":\"x\"}", "{\"d\":1}", "{\"d\":\"\",\"a\":1}", "{\"\\u0061\":\"x\"}"}},
        {"{" P ",\"additionalProperties\":false,\"required\":[\"a\"]}", {"{\"a\":1}"}, {"{\"d\":1}", "{\"a\":1,\"d\":1}"}},
        {"{\"type\":\"object\"}", {"{}", "{\"x\":[{}]}"}, {"[]", "{x:1}"}},
        {"{\"type\":\"object\",\"additionalProperties\":false}", {"{}", "{ }"}, {"{\"a\":1}"}},
        {"{\"required\":[\"z\"],\"type\":\"object\"}", {"{\"z\":1}", "{\"z\":1,\"y\":2}"}, {"{}", "{\"y\":1}"}},
        {"{" P ",\"additionalProperties\":true,\"required\":[\"z\",\"b\",\"z\"]}",
         {"{\"b\":true,\"z\":0}", "{\"a\":1,\"b\":true,\"z\":{},\"y\":1}"},
         {"{\"b\":true}", "{\"z\":0}", "{\"b\":true,\"z\":1,\"z\":1}"}},
        {"{\"properties\":{\"a\":false,\"b\":{\"const\":1}}}", {"{}", "{\"b\":1}"}, {"{\"a\":1}"}},
        {"{\"properties\":{\"\xc3\xa9\\\"\":{},\"\xc3\xa8\":{}},\"additionalProperties\":{\"const\":0}}",
         {"{\"\xc3\xa9\\\"\":1,\"\xc3\xa8\":[],\"\xc3\xa9\":0,\"\xc3\xa9x\":0}", "{\"x\":0}"},
         {"{\"\xc3\xa9\":1}", "{\"\xc3\":0}"}},
    };
    check_rows(rows, sizeof rows / sizeof *rows);
}

static void arrays(void) {
    static const row rows[] = {
        {"{\"type\":\"array\"}", {"[]", "[1, {}]", "[\n  1,\n  2\n]", "[ ]"}, {"[", "[1 2]", "[,]"}},
        {"{\"items\":{\"type\":\"integer\"}}", {"[]", "[1,2,3]"}, {"[true]", "{}"}},
        {"{\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":3}", {"[1,2]", "[1,2,3]"}, {"[]", "[1]", "[1,2,3,4]"}},
        {"{\"type\":\"array\",\"maxItems\":0}", {"[]"}, {"[1]"}},
        {"{\"items\":false,\"type\":\"array\"}", {"[]"}, {"[1]"}},
        {"{\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"boolean\"}]}",
         {"[]", "[1]", "[1,true]"},
         {"[true]", "[1,true,1]", "[,true]"}},
        {"{\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"boolean\"}],\"minItems\":2,\"maxItems\":2}",
         {"[1, true]"},
         {"[]", "[1]"}},
        {"{\"prefixItems\":[{\"type\":\"integer\"}],\"items\":{\"type\":\"null\"},\"minItems\":2,\"maxItems\":3}",
         {"[1,null]", "[1,null,null]"},
         {"[1]", "[]", "[1,null,null,null]", "[null]"}},
        {"{\"prefixItems\":[{\"type\":\"integer\"},{\"const\":2}],\"items\":{\"type\":\"null\"},\"maxItems\":1}",
         {"[1]", "[]"},
         {"[1,2]"}},
        {"{\"type\":\"array\",\"items\":{\"type\":\"array\",\"items\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"},"
         "\"minItems\":1}}}",
         {"[[[1],[2,3]],[]]"},
         {"[[[]]]", "[1]"}},
    };
    check_rows(rows, sizeof rows / sizeof *rows);
}

static void combined(void) {
    static const row rows[] = {
        {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}],\"default\":null}", {"1", "null"}, {"true"}},
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"string\"}]}", {"1", "\"\""}, {"null"}},
        {"{\"oneOf\":[{\"$ref\":\"#/$defs/cat\"},{\"$ref\":\"#/$defs/dog\"}],\"discriminator\":{\"propertyName\":\"k\"},"
         "\"$defs\":{\"cat\":{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"c\"}},\"required\":[\"k\"]},"
         "\"dog\":{\"type\":\"object\",\"properties\":{\"k\":{\"enum\":[\"d\",\"e\"]},\"n\":{\"type\":\"integer\"}},"
         "\"required\":[\"k\"]}}}",
         {"{\"k\":\"c\"}", "{\"k\":\"e\",\"n\":1}"},
         {"{}", "{\"k\":\"c\",\"n\":1}"}},
        {"{\"oneOf\":[{\"const\":1},{\"enum\":[2,3]}]}", {"1", "3"}, {"4"}},
        {"{\"allOf\":[{\"type\":\"number\",\"minimum\":1},{\"type\":[\"integer\",\"string\"],\"minimum\":3,\"maximum\":5}]}",
         {"3", "5"},
         {"2", "6", "3.5", "\"a\""}},
        {"{\"allOf\":[{\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]},"
         "{\"properties\":{\"b\":{},\"a\":{\"minimum\":2}},\"required\":[\"b\"]}]}",
         {"{\"a\":2,\"b\":1}"},
         {"{\"a\":1,\"b\":1}", "{\"a\":2}", "{\"b\":1}"}},
        {"{\"allOf\":[{\"properties\":{\"a\":{}},\"additionalProperties\":false},{\"properties\":{\"a\":{},\"b\":{}}}]}",
         {"{}", "{\"a\":1}"},
         {"{\"b\":1}"}},
        {"{\"allOf\":[{\"enum\":[1,2,3]},{\"enum\":[3,2,5]},{\"const\":2}]}", {"2"}, {"3", "1"}},
        {"{\"allOf\":[{\"$ref\":\"#/definitions/"
         "s\"}],\"description\":\"d\",\"maxLength\":2,\"definitions\":{\"s\":{\"type\":\"string\",\"minLength\":1}}}",
         {"\"a\"", "\"ab\""},
         {"\"\"", "\"abc\""}},
        {"{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"anyOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]}",
         {"{\"a\":1}", "{\"b\":1}", "{\"a\":1,\"b\":2}"},
         {"{}"}},
        {"{\"$ref\":\"#/$defs/a~1b/0\",\"$defs\":{\"a/b\":[{\"type\":\"null\"}]}}", {"null"}, {"1"}},
        {"{\"properties\":{\"v\":{\"type\":\"integer\"},\"next\":{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}},"
         "\"required\":[\"v\",\"next\"]}",
         {"{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":null}}"},
         {"{\"v\":1}", "null"}},
        {"{\"$ref\":\"#/$defs/t\",\"$defs\":{\"t\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/t\"}}}}",
         {"[]", "[[],[[]]]"},
         {"[1]"}},
    };
    check_rows(rows, sizeof rows / sizeof *rows);
}

// ---- what is refused ----

static void check_refused(const char *schema, int code, const char *message) {
    sl_grammar *g;
    json_t *root = json_loads(schema, JSON_DECODE_ANY, NULL);
    if (!root) FAIL("%s: no JSON", schema);
    int rc = sl_grammar_new_schema(root, &g, &err);
    if (rc != code || !strstr(err.message, message)) FAIL("%s: %d %s", schema, rc, rc ? err.message : "accepted");
    CHECK(!g);
    json_decref(root);
}

static void keywords(void) {
    static const char *const names[] = {"not",
                                        "if",
                                        "then",
                                        "else",
                                        "patternProperties",
                                        "propertyNames",
                                        "minProperties",
                                        "maxProperties",
                                        "dependencies",
                                        "uniqueItems",
                                        "contains",
                                        "minContains",
                                        "maxContains",
                                        "multipleOf",
                                        "nullable",
                                        "$dynamicRef",
                                        "$recursiveRef",
                                        "dependentSchemas",
                                        "dependentRequired",
                                        "unevaluatedItems",
                                        "unevaluatedProperties",
                                        "additionalItems",
                                        "minlength"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char schema[200], message[100];
        snprintf(message, sizeof message, "keyword \"%s\" is not supported", names[i]);
        snprintf(schema, sizeof schema, "{\"type\":\"string\",\"%s\":true}", names[i]);
        check_refused(schema, SL_ERR_UNSUPPORTED, message);
        snprintf(schema, sizeof schema, "{\"properties\":{\"p\":{\"items\":{\"%s\":1}}}}", names[i]);
        check_refused(schema, SL_ERR_UNSUPPORTED, message);
        CHECK(strstr(err.message, "schema#/p/items: "));
        snprintf(schema, sizeof schema, "{\"allOf\":[{\"type\":\"string\"},{\"%s\":1}]}", names[i]);
        check_refused(schema, SL_ERR_UNSUPPORTED, message);
    }
}

static void refusals(void) {
    static const struct {
        const char *schema, *message;
        int code;
    } rows[] = {
        {"1", "the schema is an integer, expected an object", SL_ERR_FORMAT},
        {"{\"type\":\"text\"}", "type is text, expected null,", SL_ERR_FORMAT},
        {"{\"type\":1}", "type is an integer", SL_ERR_FORMAT},
        {"{\"properties\":[]}", "properties is a list, expected an object", SL_ERR_FORMAT},
        {"{\"required\":\"a\"}", "required is a string, expected a list", SL_ERR_FORMAT},
        {"{\"required\":[1]}", "required[0] is an integer", SL_ERR_FORMAT},
        {"{\"enum\":1}", "enum is an integer, expected a list", SL_ERR_FORMAT},
        {"{\"anyOf\":{}}", "anyOf is an object", SL_ERR_FORMAT},
        {"{\"allOf\":1}", "allOf is an integer", SL_ERR_FORMAT},
        {"{\"minLength\":-1}", "minLength is below 0", SL_ERR_FORMAT},
        {"{\"maxItems\":\"1\"}", "maxItems is a string", SL_ERR_FORMAT},
        {"{\"minimum\":\"1\"}", "minimum is a string, expected a number", SL_ERR_FORMAT},
        {"{\"exclusiveMinimum\":true}", "exclusiveMinimum is true, expected a number", SL_ERR_FORMAT},
        {"{\"maximum\":1e30}", "maximum: expected at most 18 digits", SL_ERR_UNSUPPORTED},
        {"{\"pattern\":\"a(?=b)\"}", "schema#: pattern: column 3: lookaround", SL_ERR_FORMAT},
        {"{\"pattern\":\"a\",\"maxLength\":3}", "keyword \"pattern\" beside \"maxLength\"", SL_ERR_UNSUPPORTED},
        {"{\"format\":\"date\",\"pattern\":\"a\"}", "keyword \"pattern\" beside \"format\"", SL_ERR_UNSUPPORTED},
        {"{\"format\":\"regex\"}", "format \"regex\" is not supported", SL_ERR_UNSUPPORTED},
        {"{\"items\":[{}]}", "items is a list", SL_ERR_UNSUPPORTED},
        {"{\"enum\":[\"a\"],\"minLength\":1}", "keyword \"minLength\" beside \"enum\"", SL_ERR_UNSUPPORTED},
        {"{\"oneOf\":[{\"type\":\"number\"},{\"type\":\"integer\"}]}", "schema#/oneOf/1: a value may fit oneOf/0 too",
         SL_ERR_UNSUPPORTED},
        {"{\"oneOf\":[{\"minLength\":1},{\"minimum\":1}]}", "may fit oneOf/0", SL_ERR_UNSUPPORTED},
        {"{\"$ref\":\"http://x/y\"}", "$ref \"http://x/y\" is not supported", SL_ERR_UNSUPPORTED},
        {"{\"$ref\":\"#/$defs/x\"}", "names nothing in the schema", SL_ERR_FORMAT},
        {"{\"$ref\":1}", "$ref is an integer", SL_ERR_FORMAT},
        {"{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", "is left-recursive", SL_ERR_UNSUPPORTED},
        {"{\"allOf\":[{\"$ref\":\"#\"}]}", "nested schemas", SL_ERR_UNSUPPORTED},
        {"{\"allOf\":[{\"pattern\":\"a\"},{\"pattern\":\"b\"}]}", "keyword \"pattern\" of two schemas cannot be merged",
         SL_ERR_UNSUPPORTED},
        {"{\"allOf\":[{\"anyOf\":[{}]},{\"anyOf\":[{}]}]}", "keyword \"anyOf\" of two schemas", SL_ERR_UNSUPPORTED},
        {"{\"allOf\":[{\"prefixItems\":[{}]},{\"items\":{}}]}", "keyword \"prefixItems\"", SL_ERR_UNSUPPORTED},
        {"false", "no text follows the grammar", SL_ERR_UNSUPPORTED},
        {"{\"enum\":[]}", "no text follows the grammar", SL_ERR_UNSUPPORTED},
        {"{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", "no text follows", SL_ERR_UNSUPPORTED},
        {"{\"allOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}", "no text follows", SL_ERR_UNSUPPORTED},
        {"{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", "no text follows", SL_ERR_UNSUPPORTED},
        {"{\"required\":[\"a\"],\"additionalProperties\":false}", "no text follows", SL_ERR_UNSUPPORTED},
        {"{\"minLength\":1000000}", "the grammar has more than", SL_ERR_UNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) check_refused(rows[i].schema, rows[i].code, rows[i].message);
    // References that double with each step do not take forever.
    char doubling[8192] = "{\"$ref\":\"#/$defs/a0\",\"$defs\":{";
    for (int i = 0; i < 60; i++)
        sprintf(doubling + strlen(doubling), "\"a%d\":{\"allOf\":[{\"$ref\":\"#/$defs/a%d\"},{\"$ref\":\"#/$defs/a%d\"}]},", i,
                i + 1, i + 1);
    strcat(doubling, "\"a60\":{\"type\":\"object\"}}}");
    check_refused(doubling, SL_ERR_UNSUPPORTED, "more than");
}

// ---- numbers ----

// The number that a schema or a text says.
static double as_written(double x, int digits) {
    char text[64];
    snprintf(text, sizeof text, "%.*f", digits, x);
    return strtod(text, NULL);
}

// Random limits of whole numbers or of thousandths, and random numbers around them.
static void numbers(void) {
    static const double steps[] = {1, 0.001, 0.5, 10};
    test_draw_from(test_seed);
    for (int i = 0; i < 400; i++) {
        char schema[300], text[64];
        int is_integer = test_below(2), scale = (int[]){3, 30, 1500, 100000}[test_below(4)];
        double step = is_integer && test_below(3) ? 1 : steps[test_below(4)];
        double lo = (test_below(2 * scale) - scale) * step, hi = lo + test_below(scale) * step;
        int has_lo = test_below(4) > 0, has_hi = test_below(4) > 0 || !has_lo, lo_exclusive = test_below(2),
            hi_exclusive = test_below(2);
        int n = snprintf(schema, sizeof schema, "{\"type\":\"%s\"", is_integer ? "integer" : "number");
        if (has_lo)
            n += snprintf(schema + n, sizeof schema - (size_t)n, ",\"%s\":%.3f", lo_exclusive ? "exclusiveMinimum" : "minimum",
                          lo);
        if (has_hi)
            n += snprintf(schema + n, sizeof schema - (size_t)n, ",\"%s\":%.3f", hi_exclusive ? "exclusiveMaximum" : "maximum",
                          hi);
        strcpy(schema + n, "}");
        sl_grammar *g;
        json_t *root = json_loads(schema, 0, NULL);
        int rc = sl_grammar_new_schema(root, &g, &err);
        json_decref(root);
        int n_found = 0;
        for (int k = 0; k < 60; k++) {
            double x = (k % 2 ? lo : hi) +
                       (test_below(9) - 4) * (is_integer ? 1 : (double[]){0.0005, 0.001, 0.1, 1, 100}[test_below(5)]);
            int digits = is_integer ? 0 : test_below(6);
            snprintf(text, sizeof text, "%.*f", digits, x);
            double v = as_written(x, digits), a = as_written(lo, 3), b = as_written(hi, 3);
            int fits = (!has_lo || (lo_exclusive ? v > a : v >= a)) && (!has_hi || (hi_exclusive ? v < b : v <= b));
            if (v == 0 && text[0] == '-') continue; // -0 is not written
            n_found += fits;
            if (rc) continue;
            if (follows(g, text) != fits) FAIL("%s %s %s", schema, fits ? "refuses" : "accepts", text);
        }
        if (rc && (n_found || !strstr(err.message, "no text follows"))) FAIL("%s: %s", schema, err.message);
        sl_grammar_free(g);
    }
    static const row rows[] = {
        {"{\"type\":\"number\",\"minimum\":0,\"maximum\":1}",
         {"0", "1", "0.5", "1.0", "0.999", "1.000"},
         {"-0", "1.01", "1.0001", "-0.1", "2", "00", "1."}},
        {"{\"type\":\"number\",\"exclusiveMinimum\":0,\"exclusiveMaximum\":1e-9}",
         {"0.0000000005"},
         {"0", "0.0", "0.000000001", "1"}},
        {"{\"type\":\"integer\",\"minimum\":-5,\"maximum\":12}", {"-5", "0", "9", "10", "12"}, {"-6", "13", "-0", "05", "1.0"}},
        {"{\"type\":\"integer\",\"minimum\":999999999999999998}",
         {"999999999999999998", "999999999999999999"},
         {"999999999999999997", "1"}},
        {"{\"type\":\"number\",\"minimum\":0.25,\"maximum\":0.25}", {"0.25", "0.2500"}, {"0.2", "0.251", "0"}},
    };
    check_rows(rows, sizeof rows / sizeof *rows);
}

// ---- arguments of calls in Python ----

static void arguments(void) {
    static const row rows[] = {
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b_2\":{}},\"required\":[\"a\"]}",
         {"(a=1)", "(a=1,b_2=None)", "( a=1, b_2=[True,{\"k\": False}, \"x\"] )", "(\n  a=-3,\n  b_2=\"\\u00e9\\n\"\n)"},
         {"()", "(a=1.5)", "(b_2=1, a=1)", "(a=1, b_2=null)", "(a=1, b_2=true)", "(a=1, c=2)", "(a=1, a=1)"}},
        {"{\"properties\":{\"s\":{\"type\":\"string\"}}}",
         {"()", "(s=\"\")", "(s=\"'\\\\\\\"\")"},
         {"(s=\"\\/\")", "(s=\"\\ud83d\\ude00\")", "(s=\"\\u0000\")", "(s='a')", "(\"s\"=\"a\")", "(s:\"a\")", "{}"}},
        {"{\"properties\":{\"e\":{\"enum\":[true,null,{\"a\":[false,\"b\"]},\"/\"]}}}",
         {"(e=True)", "(e=None)", "(e={\"a\":[False,\"b\"]})", "(e=\"/\")"},
         {"(e=true)", "(e={\"a\":[false,\"b\"]})", "(e=\"\\/\")"}},
        {"{\"$ref\":\"#/$defs/t\",\"$defs\":{\"t\":{\"properties\":{\"kid\":{\"$ref\":\"#/$defs/t\"}}}}}",
         {"()", "(kid={})", "(kid={\"kid\":{\"kid\":{}}})"},
         {"(kid=())", "(kid=(kid={}))", "(kid=None)"}},
        {"{\"anyOf\":[{\"required\":[\"x\"]},{\"required\":[\"y\"]}],\"type\":\"object\",\"properties\":{\"x\":{\"const\":1},"
         "\"y\":"
         "{\"const\":2}}}",
         {"(x=1)", "(y=2)", "(x=1, y=2)"},
         {"()", "(x=2)"}},
        {"{\"type\":\"object\"}", {"()", "( )"}, {"(a=1)"}},
        {"{\"description\":\"none\",\"additionalProperties\":true,\"required\":[\"n\"]}",
         {"(n=1)", "(n={})"},
         {"()", "(n=1, m=1)"}},
    };
    static const struct {
        const char *schema, *part;
    } refused[] = {
        {"{\"properties\":{\"a-b\":{}}}", "tool#/a-b: the name cannot be that of an argument in Python"},
        {"{\"properties\":{\"2a\":{}}}", "tool#/2a: the name"},
        {"{\"properties\":{\"\":{}}}", "tool#/: the name"},
        {"{\"properties\":{\"a\":{\"properties\":{\"b-c\":{\"not\":{}}}}}}", "tool#/a/b-c: keyword \"not\""},
        {"{\"enum\":[{\"a\":1}]}", "tool#: keyword \"enum\" is not supported for all arguments"},
        {"{\"$ref\":\"#\"}", "nested schemas"},
        {"{\"type\":\"string\"}", "no text follows the grammar"},
    };
    check_rows_of(rows, sizeof rows / sizeof *rows, arguments_of);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        sl_grammar *g;
        CHECK_ERR(read_arguments(json_loads(refused[i].schema, 0, NULL), &g), err, SL_ERR_UNSUPPORTED, refused[i].part);
    }
}

// ---- random texts ----

typedef struct tokens {
    sl_tokenizer *tok;
    sl_token_trie *trie;
    int32_t end;
    uint32_t *bits;
} tokens;

static void load_tokens(tokens *t) {
    char folder[300];
    snprintf(folder, sizeof folder, "%s/tokenizers/llama3", test_shared());
    FILE *f = fopen(folder, "rb");
    if (f) fclose(f);
    CHECK_OK(sl_tokenizer_load(&SL_FOLDER(f ? folder : "models/tiny"), &t->tok, &err), err);
    t->end = f ? sl_tokenizer_find(t->tok, "<|eot_id|>") : sl_tokenizer_eos(t->tok);
    CHECK_OK(sl_token_trie_new(t->tok, sl_tokenizer_n_vocab(t->tok), &t->end, 1, &t->trie, &err), err);
    t->bits = malloc((size_t)sl_token_trie_words(t->trie) * sizeof *t->bits);
}

static void free_tokens(tokens *t) {
    free(t->bits), sl_token_trie_free(t->trie), sl_tokenizer_free(t->tok);
}

// Completes a text with the fewest bytes.
static void finish(const sl_grammar *g, sl_text *text) {
    sl_automaton a;
    enum { MOST = 200000 };
    static uint32_t states[MOST], before[MOST];
    static unsigned char bytes[MOST];
    static uint8_t seen[MOST];
    uint32_t n = 1, at = 0, state;
    CHECK_OK(sl_automaton_new(g, &a, &err), err);
    state = a.start;
    for (size_t i = 0; i < text->n; i++)
        CHECK_OK(sl_automaton_step(&a, state, (unsigned char)text->data[i], &state, &err), err);
    memset(seen, 0, sizeof seen);
    states[0] = state;
    for (; !a.facts[states[at]].can_end; at++) {
        for (int c = 0; c < g->n_classes && n < MOST; c++) {
            sl_automaton_begin(&a);
            CHECK_OK(sl_automaton_step(&a, states[at], g->byte_of[c], &state, &err), err);
            CHECK(state < MOST);
            if (state == SL_STATE_DEAD || seen[state]) continue;
            seen[state] = 1, states[n] = state, before[n] = at, bytes[n++] = g->byte_of[c];
        }
        CHECK(at + 1 < n);
    }
    char out[4096];
    size_t n_out = 0;
    for (; at > 0; at = before[at]) out[n_out++] = (char)bytes[at];
    CHECK_OK(sl_text_append(text, "", 0, &err), err);
    while (n_out > 0) CHECK_OK(sl_text_append(text, &out[--n_out], 1, &err), err);
    sl_automaton_free(&a);
}

// Appends random allowed tokens, at most n, and completes the text.
static void random_text(tokens *t, const sl_grammar *g, sl_matcher *m, int n, sl_text *text) {
    sl_grammar_run *run;
    CHECK_OK(sl_grammar_run_new(m, &run, &err), err);
    int n_words = sl_token_trie_words(t->trie);
    for (int i = 0; i < n; i++) {
        int32_t picked = -1;
        CHECK_OK(sl_grammar_allowed(run, t->bits, &err), err);
        int count = 0, is_short = test_below(3) == 0; // often one of the first tokens, which are single bytes
        for (int w = 0; w < n_words; w++)
            for (uint32_t x = t->bits[w]; x; x &= x - 1)
                if ((!is_short || count < 8) && test_below(++count) == 0) picked = 32 * w + __builtin_ctz(x);
        CHECK_OK(sl_grammar_accept(run, picked, &err), err);
        if (picked == t->end) break;
        CHECK_OK(sl_token_bytes(t->tok, picked, text, &err), err);
    }
    sl_grammar_run_free(run);
    finish(g, text);
}

#define ITEM                                                                                                                   \
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":20},\"price\":{"         \
    "\"type\":\"number\",\"minimum\":0.01,\"maximum\":99999.5},"                                                               \
    "\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"maxItems\":3},\"kind\":{\"enum\":[\"a\",\"b\",3,null]}},"  \
    "\"required\":[\"name\",\"kind\"],\"additionalProperties\":false}"

static const char *const schemas[] = {
    "true",
    "{\"type\":\"object\"}",
    ITEM,
    "{\"type\":\"array\",\"items\":" ITEM ",\"minItems\":1,\"maxItems\":4}",
    "{\"properties\":{\"a\":{\"type\":\"integer\",\"exclusiveMinimum\":-1000,\"maximum\":12},\"b\":{\"type\":[\"string\","
    "\"null\"]},\"c\":{}},"
    "\"additionalProperties\":{\"type\":\"boolean\"}}",
    "{\"type\":\"object\",\"properties\":{\"date\":{\"type\":\"string\",\"format\":\"date\"},\"time\":{\"format\":\"time\"},"
    "\"when\":{\"format\":\"date-time\"},"
    "\"id\":{\"format\":\"uuid\"},\"mail\":{\"format\":\"email\"},\"host\":{\"format\":\"hostname\"},\"v4\":{\"format\":"
    "\"ipv4\"},\"v6\":{\"format\":\"ipv6\"},"
    "\"for\":{\"format\":\"duration\"},\"link\":{\"format\":\"uri\"}},\"required\":[\"date\",\"time\",\"when\",\"id\",\"mail\","
    "\"host\",\"v4\",\"v6\",\"for\",\"link\"]}",
    "{\"$ref\":\"#/$defs/"
    "tree\",\"$defs\":{\"tree\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"kids\":{\"type\":\"array\","
    "\"items\":"
    "{\"$ref\":\"#/$defs/tree\"}}},\"required\":[\"v\"]}}}",
    "{\"anyOf\":[{\"type\":\"string\",\"pattern\":\"^[a-z]{2,5}(-[0-9]+)?$\"},{\"type\":\"string\",\"pattern\":"
    "\"\\\\d\\\\s\\\"\"},{\"type\":\"integer\",\"minimum\":100}]}",
    "{\"oneOf\":[{\"properties\":{\"k\":{\"const\":1},\"x\":{\"type\":\"string\"}},\"required\":[\"k\"],\"type\":\"object\"},"
    "{\"properties\":{\"k\":{\"const\":2},\"y\":{\"type\":\"null\"}},\"required\":[\"k\",\"y\"],\"type\":\"object\"},{\"type\":"
    "\"array\",\"maxItems\":2}]}",
    "{\"allOf\":[{\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":0},\"b\":{\"type\":\"string\",\"maxLength\":8}},"
    "\"required\":[\"a\"]},"
    "{\"properties\":{\"a\":{\"maximum\":50},\"c\":{\"type\":\"boolean\"}},\"required\":[\"c\"],\"type\":\"object\"}]}",
    "{\"prefixItems\":[{\"type\":\"number\"},{\"const\":{\"a\":[1,null]}}],\"items\":{\"type\":\"string\",\"maxLength\":4},"
    "\"minItems\":3,\"maxItems\":6,\"type\":\"array\"}",
    "{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"integer\"},\"y\":{\"type\":\"integer\"}},\"anyOf\":[{\"required\":["
    "\"x\"]},{\"required\":[\"y\"]}]}",
    "{\"type\":\"object\",\"properties\":{\"name\":{\"const\":\"get_weather\"},\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"city\":{\"type\":\"string\"},"
    "\"unit\":{\"enum\":[\"C\",\"F\"]}},\"required\":[\"city\"]}},\"required\":[\"name\",\"parameters\"],"
    "\"additionalProperties\":false}",
};
static const char *const argument_schemas[] = {
    ITEM,
    "{\"properties\":{\"a\":{\"type\":[\"boolean\",\"null\"]},\"b\":{},\"c\":{\"type\":\"string\",\"pattern\":\"^[^a-z]{1,9}$"
    "\"}},"
    "\"required\":[\"b\",\"c\"]}",
    "{\"properties\":{\"when\":{\"format\":\"date-time\"},\"deep\":{\"type\":\"array\",\"items\":" ITEM
    ",\"maxItems\":3},\"e\":{\"enum\":[true,false,null,\"\\\"\",{\"a\":[true]}]}},\"required\":[\"e\"]}",
    "{\"$ref\":\"#/$defs/"
    "tree\",\"$defs\":{\"tree\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"number\"},\"kids\":{\"type\":"
    "\"array\",\"items\":{\"$ref\":\"#/$defs/"
    "tree\"}},\"free\":{\"type\":\"object\",\"additionalProperties\":{\"type\":\"string\","
    "\"maxLength\":5},\"properties\":{}}},\"required\":[\"v\"]}}}",
};
enum {
    N_SCHEMAS = sizeof schemas / sizeof *schemas,
    N_ALL = N_SCHEMAS + sizeof argument_schemas / sizeof *argument_schemas,
    N_TEXTS = 12
};

// The value of a text as JSON: the text itself, or what the parser of calls reads from arguments, which the caller frees.
static char *json_of(const sl_text *text, int is_arguments) {
    api_calls calls = {0};
    int is_call = 0;
    char *json, *call = NULL;
    if (!is_arguments) return text->data;
    CHECK(asprintf(&call, "[f%.*s]", (int)text->n, text->data) > 0);
    CHECK_OK(api_calls_of_python(call, strlen(call), &calls, &is_call, &err), err);
    if (!is_call) FAIL("no call: %s", call);
    CHECK(calls.n == 1 && (json = strdup(calls.items[0].arguments.data)) != NULL);
    api_calls_free(&calls);
    free(call);
    return json;
}

// Jansson reads every text, and Python's jsonschema accepts its value. Python reads arguments as the parser of calls does.
static void validated(void) {
    static const char script[] = "import ast, json, sys\n"
                                 "from jsonschema import Draft202012Validator as V\n"
                                 "n = 0\n"
                                 "for line in open(sys.argv[1], encoding='utf-8'):\n"
                                 "    row = json.loads(line)\n"
                                 "    if row['call']:\n"
                                 "        call = ast.parse('f' + row['call'], mode='eval').body\n"
                                 "        read = {k.arg: ast.literal_eval(k.value) for k in call.keywords}\n"
                                 "        if call.args or repr(read) != repr(json.loads(row['text'])):\n"
                                 "            sys.exit(f\"{row['call']}: {row['text']}\")\n"
                                 "    v = V(json.loads(row['schema']), format_checker=V.FORMAT_CHECKER)\n"
                                 "    for e in v.iter_errors(json.loads(row['text'])):\n"
                                 "        sys.exit(f\"{row['schema']}: {row['text']}: {e.message}\")\n"
                                 "    n += 1\n"
                                 "print(n)\n";
    const char *python = venv_python("jsonschema");
    char path[300], program[300], command[1000], out[4000] = "";
    tokens t;
    load_tokens(&t);
    test_draw_from(test_seed);
    snprintf(path, sizeof path, "%s/texts.jsonl", test_tmp());
    snprintf(program, sizeof program, "%s/validate.py", test_tmp());
    FILE *f = fopen(program, "w");
    CHECK(f && fputs(script, f) >= 0 && !fclose(f));
    CHECK((f = fopen(path, "w")) != NULL);
    for (int i = 0; i < N_ALL; i++) {
        int is_call = i >= N_SCHEMAS;
        const char *schema = is_call ? argument_schemas[i - N_SCHEMAS] : schemas[i];
        sl_grammar *g = is_call ? arguments_of(schema) : grammar_of(schema);
        sl_matcher *m;
        CHECK_OK(sl_matcher_new(g, t.trie, 0, &m, &err), err);
        for (int k = 0; k < N_TEXTS; k++) {
            sl_text text = {0};
            json_error_t e;
            random_text(&t, g, m, k < 2 ? 2 : 40, &text);
            char *json = json_of(&text, is_call);
            json_t *value = json_loads(json, JSON_DECODE_ANY, &e);
            if (!value) FAIL("%s: %.300s: %s", schema, json, e.text);
            json_decref(value);
            json_t *row = json_pack("{s:s, s:s, s:s?}", "schema", schema, "text", json, "call", is_call ? text.data : NULL);
            if (is_call) free(json);
            CHECK(row && !json_dumpf(row, f, 0) && fputc('\n', f) == '\n');
            json_decref(row);
            sl_text_free(&text);
        }
        sl_matcher_free(m), sl_grammar_free(g);
    }
    CHECK(!fclose(f));
    free_tokens(&t);
    snprintf(command, sizeof command, "'%s' '%s' '%s' 2>&1", python, program, path);
    CHECK((f = popen(command, "r")) != NULL);
    out[fread(out, 1, sizeof out - 1, f)] = 0;
    int status = pclose(f);
    if (status || atoi(out) != N_ALL * N_TEXTS) FAIL("jsonschema: %.1500s", out);
}

// ---- patterns: PCRE2 as the second implementation ----

static int finds(const char *pattern, const char *text, size_t n) {
    int code;
    PCRE2_SIZE at;
    pcre2_code *re =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_DOLLAR_ENDONLY, &code, &at, NULL);
    CHECK(re != NULL);
    pcre2_match_data *data = pcre2_match_data_create_from_pattern(re, NULL);
    int found = pcre2_match(re, (PCRE2_SPTR)text, n, 0, 0, data, NULL) >= 0;
    pcre2_match_data_free(data), pcre2_code_free(re);
    return found;
}

static void patterns(void) {
    static const char *const list[] = {"^[a-c]+$", "b",      "^a|c$",           "\\d{2,3}",      "^\"a\\\\b\"$", "a.b",
                                       "[^a]",     "^\\s*$", "(ab|c)?\xc3\xa9", "^(a|b\"|\n)*$", "\\W\\w",       "^$"};
    static const char *const chars[] = {"a", "b", "c", "1", "\"", "\\", "\n", "\t", "\xc3\xa9", "\xe2\x82\xac", " ", "\x01"};
    test_draw_from(test_seed);
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        json_t *schema = json_pack("{s:s, s:s}", "type", "string", "pattern", list[i]);
        sl_grammar *g;
        CHECK_OK(sl_grammar_new_schema(schema, &g, &err), err);
        json_decref(schema);
        for (int k = 0; k < 400; k++) {
            char text[64] = "";
            for (int n = test_below(6); n > 0; n--) strcat(text, chars[test_below(12)]);
            json_t *value = json_string(text);
            char *written = json_dumps(value, JSON_ENCODE_ANY);
            for (char *s = written; *s; s++) // Jansson writes \u0001 with capitals
                if (s[0] == '\\' && s[1] == 'u') CHECK(!strncmp(s, "\\u0001", 6));
            int found = finds(list[i], text, strlen(text));
            if (follows(g, written) != found) FAIL("%s %s %s", list[i], found ? "refuses" : "accepts", written);
            free(written);
            json_decref(value);
        }
        sl_grammar_free(g);
    }
}

// A class of n characters, of which each has `step` - 1 neighbours that are not in the class.
static json_t *large_class(uint32_t first, int n, uint32_t step, const char *tail) {
    char *text = malloc((size_t)n * 4 + 32), *to = text;
    *to++ = '[';
    for (int i = 0; i < n; i++) to += sl_utf8_write(first + (uint32_t)i * step, to);
    sprintf(to, "]%s", tail);
    json_t *schema = json_pack("{s:{s:{s:s, s:s}}}", "properties", "code", "type", "string", "pattern", text);
    free(text);
    return schema;
}

// The time for a pattern is bounded by the number of its nodes and by the number of its parts, with all repetitions. A message
// names the pattern. The first two took 5 s and a minute when the time grew with the square of a class.
static void large_patterns(void) {
    static const struct {
        uint32_t first, step;
        int n;
        const char *tail, *message; // NULL: accepted
    } rows[] = {
        {0x10000, 7, 60000, "", NULL},
        {0x10000, 7, 60000, "{30}", "schema#/code: pattern: with it the grammar has more than 524288 nodes"},
        {0x80, 2, 960, "{3000}", "schema#/code: pattern: with it the grammar has more than 2097152 repeated parts"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        sl_grammar *g;
        json_t *schema = large_class(rows[i].first, rows[i].n, rows[i].step, rows[i].tail);
        int rc = sl_grammar_new_schema(schema, &g, &err);
        json_decref(schema);
        if (!rows[i].message) CHECK_OK(rc, err);
        if (rows[i].message) CHECK_ERR(rc, err, SL_ERR_UNSUPPORTED, rows[i].message);
        sl_grammar_free(g);
    }
}

static const test_case cases[] = {
    {"large-patterns", 0, large_patterns},
    {"values", 0, values},
    {"objects", 0, objects},
    {"arrays", 0, arrays},
    {"combined", 0, combined},
    {"keywords", 0, keywords},
    {"refusals", 0, refusals},
    {"numbers", 0, numbers},
    {"patterns", 0, patterns},
    {"arguments", 0, arguments},
    {"validated", 0, validated},
    {0},
};
extern const test_suite suite_json_schema;
const test_suite suite_json_schema = {"json_schema", cases};
