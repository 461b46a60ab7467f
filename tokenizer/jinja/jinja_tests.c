// tokenizer/jinja/jinja_tests.c - the tests of Jinja 3.1: `x is defined`, `x is in y`.
#include "tokenizer/jinja/jinja_internal.h"

#include <math.h>
#include <string.h>

typedef enum {
    IS_DEFINED,
    IS_UNDEFINED,
    IS_NONE,
    IS_BOOLEAN,
    IS_TRUE,
    IS_FALSE,
    IS_INTEGER,
    IS_FLOAT,
    IS_NUMBER,
    IS_STRING,
    IS_MAPPING,
    IS_SEQUENCE,
    IS_ITERABLE,
    IS_CALLABLE,
    IS_LOWER,
    IS_UPPER,
    IS_ODD,
    IS_EVEN,
    IS_ESCAPED,
    FIRST_WITH_ARGUMENT,
    IS_DIVISIBLE = FIRST_WITH_ARGUMENT,
    IS_IN,
    IS_EQUAL,
    IS_UNEQUAL,
    IS_LESS,
    IS_AT_MOST,
    IS_GREATER,
    IS_AT_LEAST,
    IS_SAME,
    MISSING
} test_id;

static const struct {
    const char *name;
    test_id id;
} tests[] = {
    {"defined", IS_DEFINED},
    {"undefined", IS_UNDEFINED},
    {"none", IS_NONE},
    {"boolean", IS_BOOLEAN},
    {"true", IS_TRUE},
    {"false", IS_FALSE},
    {"integer", IS_INTEGER},
    {"float", IS_FLOAT},
    {"number", IS_NUMBER},
    {"string", IS_STRING},
    {"mapping", IS_MAPPING},
    {"sequence", IS_SEQUENCE},
    {"iterable", IS_ITERABLE},
    {"callable", IS_CALLABLE},
    {"lower", IS_LOWER},
    {"upper", IS_UPPER},
    {"odd", IS_ODD},
    {"even", IS_EVEN},
    {"escaped", IS_ESCAPED},
    {"divisibleby", IS_DIVISIBLE},
    {"in", IS_IN},
    {"==", IS_EQUAL},
    {"eq", IS_EQUAL},
    {"equalto", IS_EQUAL},
    {"!=", IS_UNEQUAL},
    {"ne", IS_UNEQUAL},
    {"<", IS_LESS},
    {"lt", IS_LESS},
    {"lessthan", IS_LESS},
    {"<=", IS_AT_MOST},
    {"le", IS_AT_MOST},
    {">", IS_GREATER},
    {"gt", IS_GREATER},
    {"greaterthan", IS_GREATER},
    {">=", IS_AT_LEAST},
    {"ge", IS_AT_LEAST},
    {"sameas", IS_SAME},
    {"filter", MISSING},
    {"test", MISSING},
};

// value % by, for odd, even and divisibleby.
static double remainder_of(j_base *b, j_value v, j_value by) {
    sl_j_defined(b, v);
    sl_j_defined(b, by);
    if (!sl_j_is_number(v) || !sl_j_is_number(by))
        sl_j_fail(b, SL_ERR_ARG, "unsupported operand type(s) for %%: '%s' and '%s'", sl_j_type_name(v), sl_j_type_name(by));
    if (sl_j_is_whole(v) && sl_j_is_whole(by)) {
        if (!by.i) sl_j_fail(b, SL_ERR_ARG, "integer modulo by zero");
        if (by.i == -1) return 0;
        int64_t m = v.i % by.i;
        return (double)(m && (m < 0) != (by.i < 0) ? m + by.i : m);
    }
    double x = v.type == J_FLOAT ? v.f : (double)v.i, y = by.type == J_FLOAT ? by.f : (double)by.i;
    if (y == 0) sl_j_fail(b, SL_ERR_ARG, "float modulo");
    double m = fmod(x, y);
    return m != 0 && (m < 0) != (y < 0) ? m + y : m;
}

static int compares(j_base *b, test_id id, j_value v, j_value other) {
    const char *op = id == IS_LESS ? "<" : id == IS_AT_MOST ? "<=" : id == IS_GREATER ? ">" : ">=";
    int c = sl_j_compare(b, v, other, op);
    if (c == 2) return 0;
    return id == IS_LESS ? c < 0 : id == IS_AT_MOST ? c <= 0 : id == IS_GREATER ? c > 0 : c >= 0;
}

static int with_argument(j_base *b, test_id id, j_value v, const j_args *args) {
    j_value a[1];
    sl_j_take_args(b, "the test", args, "value", a);
    if (!sl_j_given(a[0])) sl_j_fail(b, SL_ERR_ARG, "the test needs an argument");
    switch (id) {
    case IS_DIVISIBLE:
        return remainder_of(b, v, a[0]) == 0;
    case IS_IN:
        return sl_j_contains(b, a[0], v);
    case IS_EQUAL:
        return sl_j_equal(b, v, a[0]);
    case IS_UNEQUAL:
        return !sl_j_equal(b, v, a[0]);
    case IS_SAME:
        if (v.type == a[0].type && v.type != J_NONE && v.type != J_BOOL && !sl_j_identical(v, a[0]) && sl_j_equal(b, v, a[0]))
            sl_j_fail(b, SL_ERR_UNSUPPORTED, "the test 'sameas' of equal values of the type %s is not supported",
                      sl_j_type_name(v));
        return sl_j_identical(v, a[0]);
    default:
        return compares(b, id, v, a[0]);
    }
}

static int without_argument(j_base *b, test_id id, j_value v) {
    switch (id) {
    case IS_DEFINED:
        return v.type != J_UNDEFINED;
    case IS_UNDEFINED:
        return v.type == J_UNDEFINED;
    case IS_NONE:
        return v.type == J_NONE;
    case IS_BOOLEAN:
        return v.type == J_BOOL;
    case IS_TRUE:
        return v.type == J_BOOL && v.i;
    case IS_FALSE:
        return v.type == J_BOOL && !v.i;
    case IS_INTEGER:
        return v.type == J_INT;
    case IS_FLOAT:
        return v.type == J_FLOAT;
    case IS_NUMBER:
        return sl_j_is_number(v);
    case IS_STRING:
        return v.type == J_STRING;
    case IS_MAPPING:
        return v.type == J_DICT;
    case IS_SEQUENCE: // what has a length and elements by index or key
        return v.type == J_UNDEFINED || v.type == J_STRING || v.type == J_LIST || v.type == J_TUPLE || v.type == J_DICT ||
               v.type == J_RANGE;
    case IS_ITERABLE:
        return sl_j_is_iterable(v) || v.type == J_LOOP;
    case IS_CALLABLE:
        return v.type == J_MACRO || v.type == J_FUNCTION || v.type == J_METHOD || v.type == J_LOOP || v.type == J_JOINER ||
               v.type == J_UNDEFINED; // Undefined has __call__
    case IS_LOWER:
    case IS_UPPER:
        return sl_j_is_class(b, sl_j_str(b, v), id == IS_LOWER ? J_IS_LOWER : J_IS_UPPER);
    case IS_ODD:
    case IS_EVEN:
        return remainder_of(b, v, sl_j_int(2)) == (id == IS_ODD);
    default:
        return v.type == J_STRING && v.s->safe;
    }
}

int sl_j_test(j_run *r, const j_string *name, j_value v, const j_args *args) {
    j_base *b = &r->base;
    sl_j_step(b, 1);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        if (!sl_j_equals(name, tests[i].name)) continue;
        if (tests[i].id == MISSING) sl_j_fail(b, SL_ERR_UNSUPPORTED, "the test '%s' is not supported", tests[i].name);
        if (tests[i].id >= FIRST_WITH_ARGUMENT) return with_argument(b, tests[i].id, v, args);
        if (args->n + args->n_names) sl_j_fail(b, SL_ERR_ARG, "the test '%s' takes no argument", tests[i].name);
        return without_argument(b, tests[i].id, v);
    }
    sl_j_fail(b, SL_ERR_ARG, "No test named '%.*s'.", (int)(name->n < 100 ? name->n : 100), name->s);
}
