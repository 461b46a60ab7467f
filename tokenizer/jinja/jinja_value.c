// tokenizer/jinja/jinja_value.c - values of templates: truth, comparisons, lists, dicts, elements, and values from JSON. The
// rules are those of Python.
#include "tokenizer/jinja/jinja_internal.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *sl_j_type_name(j_value v) {
    static const char *const names[] = {
        [J_UNDEFINED] = "Undefined", [J_NONE] = "NoneType",  [J_BOOL] = "bool",          [J_INT] = "int",
        [J_FLOAT] = "float",         [J_STRING] = "str",     [J_LIST] = "list",          [J_TUPLE] = "tuple",
        [J_DICT] = "dict",           [J_VIEW] = "dict view", [J_ITERATOR] = "generator", [J_RANGE] = "range",
        [J_NAMESPACE] = "Namespace", [J_MACRO] = "Macro",    [J_FUNCTION] = "function",  [J_METHOD] = "method",
        [J_LOOP] = "LoopContext",    [J_CYCLER] = "Cycler",  [J_JOINER] = "Joiner"};
    return names[v.type];
}

// ---- undefined values ----

j_value sl_j_undefined(j_base *b, const char *fmt, ...) {
    char text[300];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    size_t size = (n < (int)sizeof text ? (size_t)n : sizeof text - 1) + 1;
    return (j_value){.type = J_UNDEFINED, .why = sl_j_grow(b, text, size, size)};
}

void sl_j_defined(j_base *b, j_value v) {
    if (v.type == J_UNDEFINED) sl_j_fail(b, SL_ERR_ARG, "%s", v.why ? v.why : "an argument is missing");
}

// ---- truth and comparisons ----

int sl_j_true(j_base *b, j_value v) {
    switch (v.type) {
    case J_UNDEFINED:
    case J_NONE:
        return 0;
    case J_BOOL:
    case J_INT:
        return v.i != 0;
    case J_FLOAT:
        return v.f != 0;
    default:
        return sl_j_has_length(v) ? sl_j_length(b, v) > 0 : 1;
    }
}

static long double number(j_value v) { // exact for int64_t and double
    return v.type == J_FLOAT ? (long double)v.f : (long double)v.i;
}

static int lists_equal(j_base *b, const j_list *x, const j_list *y) {
    if (x->n != y->n) return 0;
    sl_j_enter(b);
    int equal = 1;
    for (size_t i = 0; equal && i < x->n; i++)
        equal = sl_j_identical(x->items[i], y->items[i]) || sl_j_equal(b, x->items[i], y->items[i]);
    sl_j_leave(b);
    return equal;
}

static int dicts_equal(j_base *b, const j_dict *x, const j_dict *y) {
    if (x->n != y->n) return 0;
    sl_j_enter(b);
    int equal = 1;
    for (size_t i = 0; equal && i < x->n; i++) {
        const j_value *other = sl_j_dict_get(b, y, x->pairs[i].key);
        equal = other && sl_j_equal(b, x->pairs[i].value, *other);
    }
    sl_j_leave(b);
    return equal;
}

int sl_j_identical(j_value x, j_value y) { // `is`, for what has an identity
    if (x.type != y.type) return 0;
    switch (x.type) {
    case J_UNDEFINED:
        return x.why == y.why;
    case J_NONE:
        return 1;
    case J_BOOL:
    case J_INT:
    case J_FUNCTION:
        return x.i == y.i;
    case J_FLOAT:
        return 0;
    default:
        return x.s == y.s; // pointers
    }
}

int sl_j_equal(j_base *b, j_value x, j_value y) {
    sl_j_step(b, 1);
    if (sl_j_is_number(x) && sl_j_is_number(y)) return number(x) == number(y);
    if (x.type != y.type) return 0;
    switch (x.type) {
    case J_UNDEFINED:
    case J_NONE:
        return 1;
    case J_STRING:
        sl_j_step(b, x.s->n / 64);
        return sl_j_same(x.s, y.s);
    case J_LIST:
    case J_TUPLE:
        return lists_equal(b, x.list, y.list);
    case J_DICT:
        return dicts_equal(b, x.dict, y.dict);
    case J_RANGE:
        return x.range->n == y.range->n &&
               (!x.range->n || (x.range->start == y.range->start && (x.range->n == 1 || x.range->step == y.range->step)));
    default:
        return sl_j_identical(x, y);
    }
}

int sl_j_compare(j_base *b, j_value x, j_value y, const char *op) {
    sl_j_step(b, 1);
    sl_j_defined(b, x);
    sl_j_defined(b, y);
    if (sl_j_is_number(x) && sl_j_is_number(y)) {
        long double p = number(x), q = number(y);
        return isnan(p) || isnan(q) ? 2 : (p > q) - (p < q);
    }
    if (x.type == J_STRING && y.type == J_STRING) {
        int c = sl_j_order(x.s, y.s);
        return (c > 0) - (c < 0);
    }
    if (x.type == y.type && (x.type == J_LIST || x.type == J_TUPLE)) {
        sl_j_enter(b);
        for (size_t i = 0; i < x.list->n && i < y.list->n; i++)
            if (!sl_j_equal(b, x.list->items[i], y.list->items[i])) {
                int c = sl_j_compare(b, x.list->items[i], y.list->items[i], op);
                sl_j_leave(b);
                return c;
            }
        sl_j_leave(b);
        return (x.list->n > y.list->n) - (x.list->n < y.list->n);
    }
    sl_j_fail(b, SL_ERR_ARG, "'%s' not supported between instances of '%s' and '%s'", op, sl_j_type_name(x), sl_j_type_name(y));
}

int sl_j_contains(j_base *b, j_value c, j_value x) {
    switch (c.type) {
    case J_STRING:
        if (x.type != J_STRING) {
            sl_j_defined(b, x);
            sl_j_fail(b, SL_ERR_ARG, "'in <string>' requires string as left operand, not %s", sl_j_type_name(x));
        }
        return sl_j_find(b, c.s, 0, c.s->n, x.s, 0) != SIZE_MAX;
    case J_DICT:
        sl_j_check_key(b, x);
        return sl_j_dict_get(b, c.dict, x) != NULL;
    case J_NAMESPACE:
    case J_LOOP:
        sl_j_fail(b, SL_ERR_ARG, "argument of type '%s' is not iterable", sl_j_type_name(c));
    case J_ITERATOR: // it is read up to the element
        for (j_value item; sl_j_next(b, c, &item);)
            if (sl_j_identical(item, x) || sl_j_equal(b, item, x)) return 1;
        return 0;
    default: {
        j_list all = sl_j_elements(b, c);
        for (size_t i = 0; i < all.n; i++)
            if (sl_j_identical(all.items[i], x) || sl_j_equal(b, all.items[i], x)) return 1;
        return 0;
    }
    }
}

// ---- lists ----

void sl_j_push(j_base *b, j_list *list, j_value v) {
    if (!(list->n & (list->n - 1)) && (list->n >= 4 || !list->n)) // the capacity is 4 or a power of two
        list->items = sl_j_grow(b, list->items, list->n * sizeof v, (list->n ? 2 * list->n : 4) * sizeof v);
    list->items[list->n++] = v;
    sl_j_step(b, 1);
}

j_value sl_j_list_of(j_base *b, j_list list, j_type type) {
    j_list *made = sl_j_alloc(b, sizeof *made);
    *made = list;
    return (j_value){.type = type, .list = made};
}

j_value sl_j_list_new(j_base *b, j_type type, const j_value *items, size_t n) {
    sl_j_step(b, n);
    return sl_j_list_of(b, (j_list){.items = sl_j_grow(b, (void *)items, n * sizeof *items, n * sizeof *items), .n = n}, type);
}

j_value sl_j_iterator(j_base *b, j_list list) {
    j_iterator *it = sl_j_alloc(b, sizeof *it);
    *it = (j_iterator){.list = list};
    return (j_value){.type = J_ITERATOR, .iterator = it};
}

// ---- dicts ----

void sl_j_check_key(j_base *b, j_value key) {
    switch (key.type) {
    case J_LIST:
    case J_DICT:
        sl_j_fail(b, SL_ERR_ARG, "unhashable type: '%s'", sl_j_type_name(key));
    case J_TUPLE:
        sl_j_enter(b);
        for (size_t i = 0; i < key.list->n; i++) sl_j_check_key(b, key.list->items[i]);
        sl_j_leave(b);
        return;
    default:
        return;
    }
}

j_value sl_j_dict_new(j_base *b, j_type type) {
    j_dict *d = sl_j_alloc(b, sizeof *d);
    *d = (j_dict){0};
    return (j_value){.type = type, .dict = d};
}

const j_value *sl_j_dict_find(const j_dict *d, const char *key, size_t n) {
    for (size_t i = 0; i < d->n; i++) {
        const j_value *k = &d->pairs[i].key;
        if (k->type == J_STRING && k->s->n == n && !memcmp(k->s->s, key, n)) return &d->pairs[i].value;
    }
    return NULL;
}

const j_value *sl_j_dict_get(j_base *b, const j_dict *d, j_value key) {
    sl_j_step(b, d->n / 16);
    if (key.type == J_STRING) return sl_j_dict_find(d, key.s->s, key.s->n);
    for (size_t i = 0; i < d->n; i++)
        if (d->pairs[i].key.type != J_STRING && (sl_j_identical(d->pairs[i].key, key) || sl_j_equal(b, d->pairs[i].key, key)))
            return &d->pairs[i].value;
    return NULL;
}

void sl_j_dict_set(j_base *b, j_dict *d, j_value key, j_value value) {
    sl_j_check_key(b, key);
    sl_j_step(b, 1);
    const j_value *old = sl_j_dict_get(b, d, key);
    if (old) {
        *(j_value *)old = value;
        return;
    }
    if (d->n == d->cap) {
        d->cap = d->cap ? 2 * d->cap : 4;
        d->pairs = sl_j_grow(b, d->pairs, d->n * sizeof *d->pairs, d->cap * sizeof *d->pairs);
    }
    d->pairs[d->n++] = (j_pair){key, value};
}

j_value sl_j_view(j_base *b, const j_dict *d, int keys, int values) {
    j_list list = {.view = !values ? "dict_keys" : keys ? "dict_items" : "dict_values"};
    for (size_t i = 0; i < d->n; i++) {
        const j_value pair[] = {d->pairs[i].key, d->pairs[i].value};
        sl_j_push(b, &list, keys && values ? sl_j_list_new(b, J_TUPLE, pair, 2) : pair[!keys]);
    }
    return sl_j_list_of(b, list, J_VIEW);
}

// ---- elements ----

int sl_j_has_length(j_value v) {
    return v.type == J_UNDEFINED || v.type == J_STRING || v.type == J_LIST || v.type == J_TUPLE || v.type == J_DICT ||
           v.type == J_VIEW || v.type == J_RANGE || v.type == J_LOOP;
}

size_t sl_j_length(j_base *b, j_value v) {
    switch (v.type) {
    case J_UNDEFINED:
        return 0;
    case J_STRING:
        return v.s->n ? sl_j_n_chars(b, v.s) : 0;
    case J_LIST:
    case J_TUPLE:
    case J_VIEW:
        return v.list->n;
    case J_DICT:
        return v.dict->n;
    case J_RANGE:
        return v.range->n;
    case J_LOOP:
        return v.loop->items.n;
    default:
        sl_j_fail(b, SL_ERR_ARG, "object of type '%s' has no len()", sl_j_type_name(v));
    }
}

int sl_j_is_iterable(j_value v) {
    return v.type == J_ITERATOR || (sl_j_has_length(v) && v.type != J_LOOP);
}

j_value sl_j_range_at(const j_range *r, size_t i) {
    return sl_j_int(r->start + (int64_t)i * r->step);
}

int sl_j_next(j_base *b, j_value v, j_value *out) {
    j_iterator *it = v.iterator;
    sl_j_step(b, 1);
    if (it->at < it->list.n) {
        *out = it->list.items[it->at++];
        return 1;
    }
    if (it->failed) sl_j_fail(b, it->code, "%s", it->failed);
    return 0;
}

static j_list characters(j_base *b, const j_string *s) {
    j_list list = {0};
    uint32_t code;
    for (size_t at = 0, len; at < s->n; at += len) {
        len = sl_j_char(s->s + at, s->n - at, &code);
        j_string *one = (j_string *)sl_j_part(b, s, at, at + len);
        one->safe = 0; // as Python's iterator of a Markup
        sl_j_push(b, &list, sl_j_text(one));
    }
    return list;
}

j_list sl_j_elements(j_base *b, j_value v) {
    j_list list = {0};
    switch (v.type) {
    case J_UNDEFINED:
        return list;
    case J_STRING:
        return characters(b, v.s);
    case J_LIST:
    case J_TUPLE:
    case J_VIEW:
        return *v.list;
    case J_DICT:
        for (size_t i = 0; i < v.dict->n; i++) sl_j_push(b, &list, v.dict->pairs[i].key);
        return list;
    case J_RANGE:
        for (size_t i = 0; i < v.range->n; i++) sl_j_push(b, &list, sl_j_range_at(v.range, i));
        return list;
    case J_ITERATOR:
        for (j_value item; sl_j_next(b, v, &item);) sl_j_push(b, &list, item);
        return list;
    default:
        sl_j_fail(b, SL_ERR_ARG, "'%s' object is not iterable", sl_j_type_name(v));
    }
}

// ---- subscripts ----

j_value sl_j_index(j_base *b, j_value v, j_value key, int *found) {
    const j_value *in_dict;
    *found = 0;
    if (v.type == J_DICT) {
        if (key.type == J_LIST || key.type == J_DICT) return sl_j_none();
        in_dict = sl_j_dict_get(b, v.dict, key);
        if (!in_dict) return sl_j_none();
        *found = 1;
        return *in_dict;
    }
    if (!sl_j_is_whole(key) || !(v.type == J_STRING || v.type == J_LIST || v.type == J_TUPLE || v.type == J_RANGE))
        return sl_j_none();
    size_t n = sl_j_length(b, v);
    int64_t i = key.i < 0 ? key.i + (int64_t)n : key.i;
    if (i < 0 || (uint64_t)i >= n) return sl_j_none();
    *found = 1;
    if (v.type == J_RANGE) return sl_j_range_at(v.range, (size_t)i);
    if (v.type != J_STRING) return v.list->items[i];
    uint32_t code;
    size_t from = sl_j_offset(v.s, (size_t)i);
    return sl_j_text(sl_j_part(b, v.s, from, from + sl_j_char(v.s->s + from, v.s->n - from, &code)));
}

// The bounds of a slice of n elements, as Python's slice.indices.
static void slice_bounds(j_base *b, int64_t n, j_value start, j_value stop, int64_t step, int64_t *from, int64_t *to) {
    const j_value given[] = {start, stop};
    int64_t *const out[] = {from, to}, least = step < 0 ? -1 : 0, most = step < 0 ? n - 1 : n;
    for (int k = 0; k < 2; k++) {
        if (given[k].type == J_NONE) {
            *out[k] = (step < 0) == (k == 0) ? most : least;
            continue;
        }
        if (!sl_j_is_whole(given[k])) {
            sl_j_defined(b, given[k]);
            sl_j_fail(b, SL_ERR_ARG, "slice indices must be integers or None or have an __index__ method");
        }
        int64_t i = given[k].i < 0 ? given[k].i + n : given[k].i;
        *out[k] = i < least ? least : i > most ? most : i;
    }
}

static j_value slice_string(j_base *b, const j_string *s, int64_t from, int64_t to, int64_t step) {
    if (step != 1 && s->safe) sl_j_fail(b, SL_ERR_UNSUPPORTED, "this slice of a string of the filter safe is not supported");
    if (step == 1) {
        if (to <= from) return sl_j_text(sl_j_literal(b, ""));
        size_t start = sl_j_offset(s, (size_t)from);
        const j_string *rest = sl_j_part(b, s, start, s->n);
        return sl_j_text(sl_j_part(b, rest, 0, sl_j_offset(rest, (size_t)(to - from))));
    }
    j_list all = characters(b, s);
    j_buffer out = {0};
    for (int64_t i = from; step > 0 ? i < to : i > to;) {
        sl_j_put_string(b, &out, all.items[i].s);
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    return sl_j_text(sl_j_buffer_string(b, &out));
}

j_value sl_j_slice(j_base *b, j_value v, j_value start, j_value stop, j_value step) {
    int64_t by = 1, from, to;
    sl_j_defined(b, v);
    if (v.type != J_STRING && v.type != J_LIST && v.type != J_TUPLE)
        sl_j_fail(b, v.type == J_RANGE ? SL_ERR_UNSUPPORTED : SL_ERR_ARG, "'%s' object cannot be sliced", sl_j_type_name(v));
    if (step.type != J_NONE) {
        if (!sl_j_is_whole(step))
            sl_j_fail(b, SL_ERR_ARG, "slice indices must be integers or None or have an __index__ method");
        by = step.i;
    }
    if (by == 0) sl_j_fail(b, SL_ERR_ARG, "slice step cannot be zero");
    slice_bounds(b, (int64_t)sl_j_length(b, v), start, stop, by, &from, &to);
    if (v.type == J_STRING) return slice_string(b, v.s, from, to, by);
    if (by == 1) return sl_j_list_new(b, v.type, v.list->items + from, to > from ? (size_t)(to - from) : 0);
    j_list list = {0};
    for (int64_t i = from; by > 0 ? i < to : i > to;) {
        sl_j_push(b, &list, v.list->items[i]);
        if (__builtin_add_overflow(i, by, &i)) break;
    }
    return sl_j_list_of(b, list, v.type);
}

// ---- values from JSON ----

static j_value json_string_of(j_base *b, const char *s, size_t n, int mark) {
    const j_string *made = sl_j_string(b, s, n);
    if (mark && n) {
        unsigned char *marks = sl_j_alloc(b, n);
        memset(marks, 1, n);
        ((j_string *)made)->mark = marks;
    }
    return sl_j_text(made);
}

static int is_known_role(const char *key, size_t n_key, const json_t *value) {
    static const char *const roles[] = {
        "system",    "user",          "assistant",    "tool",      "function",    "developer",   "ipython",
        "tool_call", "tool_response", "tool_results", "model",     "observation", "environment", "environment_factory",
        "tools",     "control",       "context",      "documents", "critic"};
    if (n_key != 4 || memcmp(key, "role", 4) || !json_is_string(value)) return 0;
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (!strcmp(json_string_value(value), roles[i])) return strlen(roles[i]) == json_string_length(value);
    return 0;
}

j_value sl_j_from_json(j_base *b, const json_t *json, int mark) {
    const char *key;
    size_t n_key, i;
    json_t *item;
    j_value made;
    j_list list = {0};
    switch (json_typeof(json)) {
    case JSON_NULL:
        return sl_j_none();
    case JSON_TRUE:
    case JSON_FALSE:
        return sl_j_bool(json_is_true(json));
    case JSON_INTEGER:
        return sl_j_int(json_integer_value(json));
    case JSON_REAL:
        return sl_j_float(json_real_value(json));
    case JSON_STRING:
        return json_string_of(b, json_string_value(json), json_string_length(json), mark);
    case JSON_ARRAY:
        sl_j_enter(b);
        json_array_foreach(json, i, item) sl_j_push(b, &list, sl_j_from_json(b, item, mark));
        sl_j_leave(b);
        return sl_j_list_of(b, list, J_LIST);
    default:
        sl_j_enter(b);
        made = sl_j_dict_new(b, J_DICT);
        json_object_keylen_foreach((json_t *)json, key, n_key, item)
            sl_j_dict_set(b, made.dict, json_string_of(b, key, n_key, mark),
                          sl_j_from_json(b, item, mark && !is_known_role(key, n_key, item)));
        sl_j_leave(b);
        return made;
    }
}
