// tokenizer/jinja/jinja_eval.c - expressions of templates.
#include "tokenizer/jinja/jinja_internal.h"

#include <math.h>
#include <string.h>

// ---- attributes and elements ----

static const char *object_name(j_value v, char buf[40]) { // as Jinja's messages name a value
    snprintf(buf, 40, "%s object", sl_j_type_name(v));
    return v.type == J_NONE ? "None" : buf;
}

j_value sl_j_get_attribute(j_run *r, j_value v, const j_string *name) {
    j_base *b = &r->base;
    char buf[40];
    j_value out;
    const j_value *found = NULL;
    sl_j_defined(b, v);
    sl_j_step(b, 1);
    if (v.type != J_NAMESPACE && sl_j_attribute(r, v, name->s, name->n, &out)) return out;
    if (v.type == J_DICT || v.type == J_NAMESPACE) found = sl_j_dict_find(v.dict, name->s, name->n);
    if (found) return *found;
    return sl_j_undefined(b, "'%s' has no attribute '%.*s'", object_name(v, buf), (int)name->n, name->s);
}

j_value sl_j_get_item(j_run *r, j_value v, j_value key) {
    j_base *b = &r->base;
    int found;
    char buf[40];
    sl_j_defined(b, v);
    sl_j_step(b, 1);
    j_value out = sl_j_index(b, v, key, &found);
    if (found) return out;
    if (key.type != J_STRING) {
        const j_string *text = sl_j_repr(b, key);
        return sl_j_undefined(b, "%s has no element %.*s", object_name(v, buf), (int)text->n, text->s);
    }
    if (v.type == J_NAMESPACE) {
        const j_value *at = sl_j_dict_find(v.dict, key.s->s, key.s->n);
        if (at) return *at;
    } else if (sl_j_attribute(r, v, key.s->s, key.s->n, &out)) {
        return out;
    }
    return sl_j_undefined(b, "'%s' has no attribute '%.*s'", object_name(v, buf), (int)key.s->n, key.s->s);
}

// ---- arithmetic ----

static _Noreturn void bad_operands(j_base *b, const char *op, j_value x, j_value y) {
    sl_j_defined(b, x);
    sl_j_defined(b, y);
    sl_j_fail(b, SL_ERR_ARG, "unsupported operand type(s) for %s: '%s' and '%s'", op, sl_j_type_name(x), sl_j_type_name(y));
}
static _Noreturn void too_large(j_base *b) {
    sl_j_fail(b, SL_ERR_UNSUPPORTED, "an integer has more than 64 bits");
}
static double real(j_value v) {
    return v.type == J_FLOAT ? v.f : (double)v.i;
}

static j_value add_strings(j_base *b, const j_string *x, const j_string *y) {
    j_buffer out = {0};
    int safe = x->safe || y->safe;
    sl_j_put_string(b, &out, safe ? sl_j_escape(b, x) : x);
    sl_j_put_string(b, &out, safe ? sl_j_escape(b, y) : y);
    j_string *made = (j_string *)sl_j_buffer_string(b, &out);
    made->safe = safe;
    return sl_j_text(made);
}

j_value sl_j_add(j_base *b, j_value x, j_value y) {
    int64_t i;
    if (sl_j_is_whole(x) && sl_j_is_whole(y)) {
        if (__builtin_add_overflow(x.i, y.i, &i)) too_large(b);
        return sl_j_int(i);
    }
    if (sl_j_is_number(x) && sl_j_is_number(y)) return sl_j_float(real(x) + real(y));
    if (x.type != y.type) bad_operands(b, "+", x, y);
    if (x.type == J_STRING) return add_strings(b, x.s, y.s);
    if (x.type != J_LIST && x.type != J_TUPLE) bad_operands(b, "+", x, y);
    j_list list = {0};
    for (size_t k = 0; k < x.list->n; k++) sl_j_push(b, &list, x.list->items[k]);
    for (size_t k = 0; k < y.list->n; k++) sl_j_push(b, &list, y.list->items[k]);
    return sl_j_list_of(b, list, x.type);
}

static j_value repeat(j_base *b, j_value x, int64_t n) {
    j_buffer out = {0};
    j_list list = {0};
    if (x.type == J_STRING) {
        for (int64_t i = 0; i < n && x.s->n; i++) {
            sl_j_step(b, 1);
            sl_j_put_string(b, &out, x.s);
        }
        return sl_j_text(sl_j_buffer_string(b, &out));
    }
    for (int64_t i = 0; i < n && x.list->n; i++)
        for (size_t k = 0; k < x.list->n; k++) sl_j_push(b, &list, x.list->items[k]);
    return sl_j_list_of(b, list, x.type);
}

static int is_sequence(j_value v) {
    return v.type == J_STRING || v.type == J_LIST || v.type == J_TUPLE;
}

static j_value multiply(j_base *b, j_value x, j_value y) {
    int64_t i;
    if (sl_j_is_whole(x) && sl_j_is_whole(y)) {
        if (__builtin_mul_overflow(x.i, y.i, &i)) too_large(b);
        return sl_j_int(i);
    }
    if (sl_j_is_number(x) && sl_j_is_number(y)) return sl_j_float(real(x) * real(y));
    if (is_sequence(x) && sl_j_is_whole(y)) return repeat(b, x, y.i);
    if (is_sequence(y) && sl_j_is_whole(x)) return repeat(b, y, x.i);
    bad_operands(b, "*", x, y);
}

static j_value divide(j_base *b, j_op op, j_value x, j_value y) {
    const char *const text = op == J_DIV ? "/" : op == J_MOD ? "%" : "//";
    if (op == J_MOD && x.type == J_STRING) {
        if (y.type == J_UNDEFINED) sl_j_defined(b, y);
        return sl_j_text(sl_j_percent(b, x.s, y));
    }
    if (!sl_j_is_number(x) || !sl_j_is_number(y)) bad_operands(b, text, x, y);
    int whole = sl_j_is_whole(x) && sl_j_is_whole(y);
    if (real(y) == 0)
        sl_j_fail(b, SL_ERR_ARG, "%s",
                  op == J_DIV ? "division by zero"
                  : whole     ? "integer division or modulo by zero"
                              : "float modulo");
    if (op == J_DIV) {
        return sl_j_float(real(x) / real(y));
    }
    if (whole) {
        if (y.i == -1) {
            if (op == J_MOD) return sl_j_int(0);
            if (x.i == INT64_MIN) too_large(b);
            return sl_j_int(-x.i);
        }
        int64_t q = x.i / y.i, m = x.i % y.i;
        int adjust = m != 0 && (m < 0) != (y.i < 0);
        return sl_j_int(op == J_MOD ? m + adjust * y.i : q - adjust);
    }
    double m = fmod(real(x), real(y)), q = (real(x) - m) / real(y);
    if (m != 0 && (m < 0) != (real(y) < 0)) m += real(y), q -= 1;
    if (m == 0) m = copysign(0, real(y));
    if (op == J_MOD) return sl_j_float(m);
    double whole_q = floor(q);
    if (q - whole_q > 0.5) whole_q += 1;
    return sl_j_float(q != 0 ? whole_q : copysign(0, real(x) / real(y)));
}

static j_value power(j_base *b, j_value x, j_value y) {
    if (!sl_j_is_number(x) || !sl_j_is_number(y)) bad_operands(b, "** or pow()", x, y);
    if (!sl_j_is_whole(x) || !sl_j_is_whole(y) || y.i < 0) {
        if (real(x) == 0 && real(y) < 0) sl_j_fail(b, SL_ERR_ARG, "0.0 cannot be raised to a negative power");
        double p = pow(real(x), real(y));
        if (isnan(p) && !isnan(real(x)) && !isnan(real(y)))
            sl_j_fail(b, SL_ERR_UNSUPPORTED, "complex numbers are not supported");
        if (isinf(p) && isfinite(real(x)) && isfinite(real(y)))
            sl_j_fail(b, SL_ERR_ARG, "(34, 'Numerical result out of range')");
        return sl_j_float(p);
    }
    int64_t p = 1, base = x.i;
    for (int64_t e = y.i; e > 0; e >>= 1) {
        if ((e & 1) && __builtin_mul_overflow(p, base, &p)) too_large(b);
        if (e > 1 && __builtin_mul_overflow(base, base, &base)) too_large(b);
    }
    return sl_j_int(p);
}

static j_value binary(j_run *r, const j_node *n) {
    j_base *b = &r->base;
    j_value x = sl_j_eval(r, n->a), y = sl_j_eval(r, n->b);
    int64_t i;
    switch (n->op) {
    case J_ADD:
        return sl_j_add(b, x, y);
    case J_SUB:
        if (sl_j_is_whole(x) && sl_j_is_whole(y)) {
            if (__builtin_sub_overflow(x.i, y.i, &i)) too_large(b);
            return sl_j_int(i);
        }
        if (!sl_j_is_number(x) || !sl_j_is_number(y)) bad_operands(b, "-", x, y);
        return sl_j_float(real(x) - real(y));
    case J_MUL:
        return multiply(b, x, y);
    case J_POW:
        return power(b, x, y);
    default:
        return divide(b, n->op, x, y);
    }
}

static j_value signed_value(j_run *r, const j_node *n) {
    j_value v = sl_j_eval(r, n->a);
    sl_j_defined(&r->base, v);
    if (!sl_j_is_number(v))
        sl_j_fail(&r->base, SL_ERR_ARG, "bad operand type for unary %s: '%s'", n->kind == N_NEGATIVE ? "-" : "+",
                  sl_j_type_name(v));
    if (v.type == J_FLOAT) return sl_j_float(n->kind == N_NEGATIVE ? -v.f : v.f);
    if (n->kind == N_NEGATIVE && v.i == INT64_MIN) too_large(&r->base);
    return sl_j_int(n->kind == N_NEGATIVE ? -v.i : v.i);
}

// ---- comparisons ----

static int holds(j_base *b, j_op op, j_value x, j_value y) {
    if (op == J_EQ || op == J_NE) return sl_j_equal(b, x, y) == (op == J_EQ);
    if (op == J_IN || op == J_NOT_IN) return sl_j_contains(b, y, x) == (op == J_IN);
    int c = sl_j_compare(b, x, y, op == J_LT ? "<" : op == J_LE ? "<=" : op == J_GT ? ">" : ">=");
    if (c == 2) return 0;
    return op == J_LT ? c < 0 : op == J_LE ? c <= 0 : op == J_GT ? c > 0 : c >= 0;
}

static j_value compare(j_run *r, const j_node *n) {
    j_value left = sl_j_eval(r, n->a);
    for (const j_node *o = n->list; o; o = o->next) {
        j_value right = sl_j_eval(r, o->a);
        if (!holds(&r->base, o->op, left, right)) return sl_j_bool(0);
        left = right;
    }
    return sl_j_bool(1);
}

// ---- calls ----

void sl_j_eval_args(j_run *r, const j_node *n, j_args *out) {
    j_base *b = &r->base;
    j_list items = {0}, names = {0}, values = {0};
    for (const j_node *x = n->list; x; x = x->next) sl_j_push(b, &items, sl_j_eval(r, x));
    if (n->b) {
        j_list more = sl_j_elements(b, sl_j_eval(r, n->b));
        for (size_t i = 0; i < more.n; i++) sl_j_push(b, &items, more.items[i]);
    }
    for (const j_node *x = n->list2; x; x = x->next) {
        sl_j_push(b, &names, sl_j_text(x->name));
        sl_j_push(b, &values, sl_j_eval(r, x->a));
    }
    if (n->c) {
        j_value more = sl_j_eval(r, n->c);
        if (more.type != J_DICT) sl_j_fail(b, SL_ERR_ARG, "argument after ** must be a mapping, not %s", sl_j_type_name(more));
        for (size_t i = 0; i < more.dict->n; i++) {
            if (more.dict->pairs[i].key.type != J_STRING) sl_j_fail(b, SL_ERR_ARG, "keywords must be strings");
            sl_j_push(b, &names, more.dict->pairs[i].key);
            sl_j_push(b, &values, more.dict->pairs[i].value);
        }
    }
    *out = (j_args){.items = items.items, .n = items.n, .values = values.items, .n_names = names.n};
    out->names = sl_j_alloc(b, (names.n + 1) * sizeof *out->names);
    for (size_t i = 0; i < names.n; i++) {
        out->names[i] = names.items[i].s;
        for (size_t k = 0; k < i; k++)
            if (sl_j_same(out->names[k], out->names[i]))
                sl_j_fail(b, SL_ERR_ARG, "keyword argument repeated: %.*s", (int)out->names[i]->n, out->names[i]->s);
    }
}

int sl_j_take_args(j_base *b, const char *what, const j_args *args, const char *names, j_value *out) {
    size_t n = 0;
    int given = 0;
    for (const char *p = names; *p; n++) {
        size_t len = strcspn(p, " ");
        out[n] = (j_value){.type = J_UNDEFINED};
        if (n < args->n) out[n] = args->items[n];
        for (size_t k = 0; k < args->n_names; k++)
            if (args->names[k]->n == len && !memcmp(args->names[k]->s, p, len)) {
                if (n < args->n) sl_j_fail(b, SL_ERR_ARG, "%s got multiple values for argument '%.*s'", what, (int)len, p);
                out[n] = args->values[k];
            }
        given += sl_j_given(out[n]);
        p += len + (p[len] == ' ');
    }
    if ((size_t)given != args->n + args->n_names)
        sl_j_fail(b, SL_ERR_ARG, "%s has other parameters: expected %s", what, *names ? names : "none");
    return given;
}

const j_string *sl_j_string_arg(j_base *b, const char *what, j_value v) {
    sl_j_defined(b, v);
    if (v.type != J_STRING) sl_j_fail(b, SL_ERR_ARG, "%s: an argument is %s, expected str", what, sl_j_type_name(v));
    return v.s;
}

int64_t sl_j_int_arg(j_base *b, const char *what, j_value v) {
    sl_j_defined(b, v);
    if (!sl_j_is_whole(v)) sl_j_fail(b, SL_ERR_ARG, "%s: an argument is %s, expected int", what, sl_j_type_name(v));
    return v.i;
}

j_value sl_j_call(j_run *r, j_value f, const j_args *args) {
    j_base *b = &r->base;
    sl_j_defined(b, f);
    sl_j_step(b, 1);
    switch (f.type) {
    case J_MACRO:
        return sl_j_call_macro(r, f.macro, args);
    case J_FUNCTION:
        return sl_j_call_function(r, (int)f.i, args);
    case J_METHOD:
        return sl_j_call_method(r, f.method, args);
    case J_LOOP:
        return sl_j_call_loop(r, f.loop, args);
    case J_JOINER:
        if (args->n + args->n_names) sl_j_fail(b, SL_ERR_ARG, "a joiner takes no arguments");
        return f.cycler->at++ ? f.cycler->items.items[0] : sl_j_text(sl_j_literal(b, ""));
    default:
        sl_j_fail(b, SL_ERR_ARG, "'%s' object is not callable", sl_j_type_name(f));
    }
}

// ---- expressions ----

static j_value display(j_run *r, const j_node *n) { // of a list or tuple
    j_list list = {0};
    for (const j_node *x = n->list; x; x = x->next) sl_j_push(&r->base, &list, sl_j_eval(r, x));
    return sl_j_list_of(&r->base, list, n->kind == N_LIST ? J_LIST : J_TUPLE);
}

static j_value dict_display(j_run *r, const j_node *n) {
    j_value made = sl_j_dict_new(&r->base, J_DICT);
    for (const j_node *x = n->list; x; x = x->next) {
        j_value key = sl_j_eval(r, x->a);
        sl_j_dict_set(&r->base, made.dict, key, sl_j_eval(r, x->b));
    }
    return made;
}

static j_value name_value(j_run *r, const j_node *n) {
    const j_value *v = sl_j_lookup(r->scope, n->name);
    if (v) return *v;
    int id = sl_j_function_id(n->name);
    if (id >= 0) return (j_value){.type = J_FUNCTION, .i = id};
    return sl_j_undefined(&r->base, "'%.*s' is undefined", (int)n->name->n, n->name->s);
}

static j_value called(j_run *r, const j_node *n) { // of a call, filter or test
    j_args args;
    j_value v = n->a ? sl_j_eval(r, n->a) : sl_j_none();
    sl_j_eval_args(r, n, &args);
    r->base.line = n->line;
    if (n->kind == N_CALL) return sl_j_call(r, v, &args);
    if (n->kind == N_FILTER) return sl_j_filter(r, n->name, v, &args);
    return sl_j_bool(sl_j_test(r, n->name, v, &args));
}

static j_value evaluated(j_run *r, const j_node *n) {
    j_base *b = &r->base;
    j_value v;
    j_buffer text = {0};
    switch (n->kind) {
    case N_CONST:
        return n->value;
    case N_NAME:
        return name_value(r, n);
    case N_LIST:
    case N_TUPLE:
        return display(r, n);
    case N_DICT:
        return dict_display(r, n);
    case N_ATTRIBUTE:
        return sl_j_get_attribute(r, sl_j_eval(r, n->a), n->name);
    case N_ITEM:
        v = sl_j_eval(r, n->a);
        return sl_j_get_item(r, v, sl_j_eval(r, n->b));
    case N_SLICE: {
        v = sl_j_eval(r, n->a);
        j_value start = n->b ? sl_j_eval(r, n->b) : sl_j_none(), stop = n->c ? sl_j_eval(r, n->c) : sl_j_none();
        return sl_j_slice(b, v, start, stop, n->d ? sl_j_eval(r, n->d) : sl_j_none());
    }
    case N_CALL:
    case N_FILTER:
    case N_TEST:
        return called(r, n);
    case N_NOT:
        return sl_j_bool(!sl_j_true(b, sl_j_eval(r, n->a)));
    case N_NEGATIVE:
    case N_POSITIVE:
        return signed_value(r, n);
    case N_AND:
        v = sl_j_eval(r, n->a);
        return sl_j_true(b, v) ? sl_j_eval(r, n->b) : v;
    case N_OR:
        v = sl_j_eval(r, n->a);
        return sl_j_true(b, v) ? v : sl_j_eval(r, n->b);
    case N_BINARY:
        return binary(r, n);
    case N_COMPARE:
        return compare(r, n);
    case N_CONCAT:
        for (const j_node *x = n->list; x; x = x->next) sl_j_put_string(b, &text, sl_j_str(b, sl_j_eval(r, x)));
        return sl_j_text(sl_j_buffer_string(b, &text));
    case N_CONDITION:
        if (sl_j_true(b, sl_j_eval(r, n->a))) return sl_j_eval(r, n->b);
        if (n->c) return sl_j_eval(r, n->c);
        return sl_j_undefined(b, "the inline if-expression on line %d evaluated to false and no else section was defined.",
                              n->line);
    default: // a slice among several subscripts
        sl_j_fail(b, SL_ERR_UNSUPPORTED, "this subscript is not supported");
    }
}

j_value sl_j_eval(j_run *r, const j_node *n) {
    sl_j_enter(&r->base);
    sl_j_step(&r->base, 1);
    r->base.line = n->line;
    if (n->kind == N_SLICE && !n->a) sl_j_fail(&r->base, SL_ERR_UNSUPPORTED, "this subscript is not supported");
    j_value v = evaluated(r, n);
    sl_j_leave(&r->base);
    return v;
}
