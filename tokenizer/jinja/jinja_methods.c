// tokenizer/jinja/jinja_methods.c - attributes and methods of values, as Python's types have them. The sandbox of transformers
// forbids methods that change a list or dict. Methods that Sleigh does not have are refused by name when a template calls them.
#include "tokenizer/jinja/jinja_internal.h"

#include <string.h>

typedef enum {
    M_FORBIDDEN, // by the sandbox
    M_MISSING,   // Python has it, Sleigh does not
    M_STRIP,
    M_LSTRIP,
    M_RSTRIP,
    M_SPLIT,
    M_RSPLIT,
    M_SPLITLINES,
    M_STARTSWITH,
    M_ENDSWITH,
    M_REPLACE,
    M_UPPER,
    M_LOWER,
    M_TITLE,
    M_CAPITALIZE,
    M_SWAPCASE,
    M_FIND,
    M_RFIND,
    M_INDEX,
    M_RINDEX,
    M_COUNT,
    M_JOIN,
    M_FORMAT,
    M_REMOVEPREFIX,
    M_REMOVESUFFIX,
    M_PARTITION,
    M_RPARTITION,
    M_LJUST,
    M_RJUST,
    M_CENTER,
    M_ZFILL,
    M_ISALPHA,
    M_ISDIGIT,
    M_ISALNUM,
    M_ISSPACE,
    M_ISUPPER,
    M_ISLOWER,
    M_GET,
    M_ITEMS,
    M_KEYS,
    M_VALUES,
    M_COPY,
    M_LIST_COUNT,
    M_LIST_INDEX,
    M_CYCLE,
    M_CHANGED,
    M_NEXT,
    M_RESET
} method_id;

static const struct {
    const char *name;
    j_type type;
    method_id id;
} methods[] = {
    {"strip", J_STRING, M_STRIP},
    {"lstrip", J_STRING, M_LSTRIP},
    {"rstrip", J_STRING, M_RSTRIP},
    {"split", J_STRING, M_SPLIT},
    {"rsplit", J_STRING, M_RSPLIT},
    {"splitlines", J_STRING, M_SPLITLINES},
    {"startswith", J_STRING, M_STARTSWITH},
    {"endswith", J_STRING, M_ENDSWITH},
    {"replace", J_STRING, M_REPLACE},
    {"upper", J_STRING, M_UPPER},
    {"lower", J_STRING, M_LOWER},
    {"title", J_STRING, M_TITLE},
    {"capitalize", J_STRING, M_CAPITALIZE},
    {"swapcase", J_STRING, M_SWAPCASE},
    {"find", J_STRING, M_FIND},
    {"rfind", J_STRING, M_RFIND},
    {"index", J_STRING, M_INDEX},
    {"rindex", J_STRING, M_RINDEX},
    {"count", J_STRING, M_COUNT},
    {"join", J_STRING, M_JOIN},
    {"format", J_STRING, M_FORMAT},
    {"removeprefix", J_STRING, M_REMOVEPREFIX},
    {"removesuffix", J_STRING, M_REMOVESUFFIX},
    {"partition", J_STRING, M_PARTITION},
    {"rpartition", J_STRING, M_RPARTITION},
    {"ljust", J_STRING, M_LJUST},
    {"rjust", J_STRING, M_RJUST},
    {"center", J_STRING, M_CENTER},
    {"zfill", J_STRING, M_ZFILL},
    {"isalpha", J_STRING, M_ISALPHA},
    {"isdigit", J_STRING, M_ISDIGIT},
    {"isalnum", J_STRING, M_ISALNUM},
    {"isspace", J_STRING, M_ISSPACE},
    {"isupper", J_STRING, M_ISUPPER},
    {"islower", J_STRING, M_ISLOWER},
    {"casefold", J_STRING, M_MISSING},
    {"encode", J_STRING, M_MISSING},
    {"expandtabs", J_STRING, M_MISSING},
    {"format_map", J_STRING, M_MISSING},
    {"isascii", J_STRING, M_MISSING},
    {"isdecimal", J_STRING, M_MISSING},
    {"isidentifier", J_STRING, M_MISSING},
    {"isnumeric", J_STRING, M_MISSING},
    {"isprintable", J_STRING, M_MISSING},
    {"istitle", J_STRING, M_MISSING},
    {"maketrans", J_STRING, M_MISSING},
    {"translate", J_STRING, M_MISSING},
    {"get", J_DICT, M_GET},
    {"items", J_DICT, M_ITEMS},
    {"keys", J_DICT, M_KEYS},
    {"values", J_DICT, M_VALUES},
    {"copy", J_DICT, M_COPY},
    {"fromkeys", J_DICT, M_MISSING},
    {"clear", J_DICT, M_FORBIDDEN},
    {"pop", J_DICT, M_FORBIDDEN},
    {"popitem", J_DICT, M_FORBIDDEN},
    {"setdefault", J_DICT, M_FORBIDDEN},
    {"update", J_DICT, M_FORBIDDEN},
    {"count", J_LIST, M_LIST_COUNT},
    {"index", J_LIST, M_LIST_INDEX},
    {"copy", J_LIST, M_COPY},
    {"append", J_LIST, M_FORBIDDEN},
    {"clear", J_LIST, M_FORBIDDEN},
    {"pop", J_LIST, M_FORBIDDEN},
    {"reverse", J_LIST, M_FORBIDDEN},
    {"insert", J_LIST, M_FORBIDDEN},
    {"sort", J_LIST, M_FORBIDDEN},
    {"extend", J_LIST, M_FORBIDDEN},
    {"remove", J_LIST, M_FORBIDDEN},
    {"count", J_TUPLE, M_LIST_COUNT},
    {"index", J_TUPLE, M_LIST_INDEX},
    {"grouper", J_TUPLE, M_MISSING},
    {"list", J_TUPLE, M_MISSING},
    {"cycle", J_LOOP, M_CYCLE},
    {"changed", J_LOOP, M_CHANGED},
    {"next", J_CYCLER, M_NEXT},
    {"reset", J_CYCLER, M_RESET},
    {"count", J_RANGE, M_MISSING},
    {"index", J_RANGE, M_MISSING},
    {"isdisjoint", J_VIEW, M_MISSING},
    {"mapping", J_VIEW, M_MISSING},
    {"send", J_ITERATOR, M_MISSING},
    {"throw", J_ITERATOR, M_MISSING},
    {"close", J_ITERATOR, M_MISSING},
    {"name", J_MACRO, M_MISSING},
    {"arguments", J_MACRO, M_MISSING},
    {"catch_kwargs", J_MACRO, M_MISSING},
    {"catch_varargs", J_MACRO, M_MISSING},
    {"caller", J_MACRO, M_MISSING},
    {"explicit_caller", J_MACRO, M_MISSING},
    {"used", J_JOINER, M_MISSING},
    {"sep", J_JOINER, M_MISSING},
    {"items", J_CYCLER, M_MISSING},
    {"pos", J_CYCLER, M_MISSING},
};

// ---- attributes ----

static int is(const char *name, size_t n, const char *text) {
    return n == strlen(text) && !memcmp(name, text, n);
}

static int loop_attribute(j_run *r, j_loop *loop, const char *name, size_t n, j_value *out) {
    int64_t index = (int64_t)loop->at;
    if (is(name, n, "index0"))
        *out = sl_j_int(index);
    else if (is(name, n, "index"))
        *out = sl_j_int(index + 1);
    else if (is(name, n, "first"))
        *out = sl_j_bool(index == 0);
    else if (is(name, n, "last"))
        *out = sl_j_bool(!sl_j_loop_has(r, loop, loop->at + 2));
    else if (is(name, n, "depth"))
        *out = sl_j_int(loop->depth + 1);
    else if (is(name, n, "depth0"))
        *out = sl_j_int(loop->depth);
    else if (is(name, n, "previtem"))
        *out = index ? loop->items.items[index - 1] : sl_j_undefined(&r->base, "there is no previous item");
    else if (is(name, n, "nextitem"))
        *out = sl_j_loop_has(r, loop, loop->at + 2) ? loop->items.items[index + 1]
                                                    : sl_j_undefined(&r->base, "there is no next item");
    else if (is(name, n, "length") || is(name, n, "revindex") || is(name, n, "revindex0")) {
        sl_j_loop_has(r, loop, SIZE_MAX);
        int64_t length = (int64_t)loop->items.n;
        *out = sl_j_int(name[0] == 'l' ? length : length - index - (n == 9));
    } else
        return 0;
    return 1;
}

static int is_number_attribute(const char *name, size_t n) {
    static const char *const names[] = {"real",       "imag",      "numerator", "denominator", "conjugate",
                                        "bit_length", "bit_count", "to_bytes",  "from_bytes",  "as_integer_ratio",
                                        "is_integer", "hex",       "fromhex"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (is(name, n, names[i])) return 1;
    return 0;
}

int sl_j_attribute(j_run *r, j_value v, const char *name, size_t n, j_value *out) {
    j_base *b = &r->base;
    if (v.type == J_LOOP && loop_attribute(r, v.loop, name, n, out)) return 1;
    if (v.type == J_RANGE && (is(name, n, "start") || is(name, n, "stop") || is(name, n, "step"))) {
        *out = sl_j_int(name[2] == 'a' ? v.range->start : name[2] == 'o' ? v.range->stop : v.range->step);
        return 1;
    }
    if (v.type == J_CYCLER && is(name, n, "current")) {
        *out = v.cycler->items.items[v.cycler->at];
        return 1;
    }
    if (n > 4 && !memcmp(name, "__", 2) && !memcmp(name + n - 2, "__", 2) &&
        !(v.type == J_DICT && sl_j_dict_find(v.dict, name, n))) {
        *out = sl_j_undefined(b, "access to attribute '%.*s' of '%s' object is unsafe.", (int)n, name, sl_j_type_name(v));
        return 1;
    }
    if (sl_j_is_number(v) && is_number_attribute(name, n))
        sl_j_fail(b, SL_ERR_UNSUPPORTED, "the attribute %.*s of a number is not supported", (int)n, name);
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        if (methods[i].type != v.type || !is(name, n, methods[i].name)) continue;
        if (methods[i].id == M_FORBIDDEN) {
            *out = sl_j_undefined(b, "access to attribute '%.*s' of '%s' object is unsafe.", (int)n, name, sl_j_type_name(v));
            return 1;
        }
        j_method *m = sl_j_alloc(b, sizeof *m);
        *m = (j_method){.self = v, .id = (int)i};
        *out = (j_value){.type = J_METHOD, .method = m};
        return 1;
    }
    return 0;
}

// ---- methods of strings ----

// The bytes [*from, *to) that optional arguments start and end of find, count, startswith choose. Returns 0 if start is after
// the end of the text.
static int bounds(j_base *b, const char *what, const j_string *s, j_value start, j_value end, size_t *from, size_t *to) {
    int64_t n = (int64_t)sl_j_n_chars(b, s), ends[2] = {0, n};
    const j_value given[] = {start, end};
    for (int k = 0; k < 2; k++) {
        if (!sl_j_given(given[k]) || given[k].type == J_NONE) continue;
        int64_t i = sl_j_int_arg(b, what, given[k]);
        if (i < 0) i = i + n < 0 ? 0 : i + n;
        ends[k] = k && i > n ? n : i;
    }
    if (ends[0] > n) return 0;
    *from = sl_j_offset(s, (size_t)ends[0]);
    *to = sl_j_offset(s, (size_t)ends[1]);
    return 1;
}

static j_value find(j_base *b, const char *what, const j_string *s, const j_args *args, method_id id) {
    j_value a[3];
    size_t from, to, at = SIZE_MAX, count = 0;
    sl_j_take_args(b, what, args, "sub start end", a);
    const j_string *sub = sl_j_string_arg(b, what, a[0]);
    int inside = bounds(b, what, s, a[1], a[2], &from, &to) && from <= to;
    if (id == M_COUNT) {
        if (!inside) return sl_j_int(0);
        if (!sub->n) {
            const j_string *part = sl_j_part(b, s, from, to);
            return sl_j_int((int64_t)sl_j_n_chars(b, part) + 1);
        }
        while ((at = sl_j_find(b, s, from, to, sub, 0)) != SIZE_MAX) {
            sl_j_step(b, 1);
            from = at + sub->n, count++;
        }
        return sl_j_int((int64_t)count);
    }
    if (inside) at = sl_j_find(b, s, from, to, sub, id == M_RFIND || id == M_RINDEX);
    if (at != SIZE_MAX) return sl_j_int((int64_t)sl_j_n_chars(b, sl_j_part(b, s, 0, at)));
    if (id == M_INDEX || id == M_RINDEX) sl_j_fail(b, SL_ERR_ARG, "substring not found");
    return sl_j_int(-1);
}

static int has_affix(j_base *b, const char *what, const j_string *s, j_value affix, size_t from, size_t to, int at_end) {
    if (affix.type == J_TUPLE) {
        for (size_t i = 0; i < affix.list->n; i++) {
            if (affix.list->items[i].type == J_TUPLE) sl_j_fail(b, SL_ERR_ARG, "%s: expected a tuple of str", what);
            if (has_affix(b, what, s, affix.list->items[i], from, to, at_end)) return 1;
        }
        return 0;
    }
    const j_string *x = sl_j_string_arg(b, what, affix);
    return from <= to && x->n <= to - from && !memcmp(at_end ? s->s + to - x->n : s->s + from, x->s, x->n);
}

static j_value affixed(j_base *b, const char *what, const j_string *s, const j_args *args, int at_end) {
    j_value a[3];
    size_t from, to;
    sl_j_take_args(b, what, args, "prefix start end", a);
    if (!sl_j_given(a[0])) sl_j_fail(b, SL_ERR_ARG, "%s needs an argument", what);
    if (!bounds(b, what, s, a[1], a[2], &from, &to)) return sl_j_bool(0);
    return sl_j_bool(has_affix(b, what, s, a[0], from, to, at_end));
}

static j_value remove_affix(j_base *b, const char *what, const j_string *s, const j_args *args, int at_end) {
    j_value a[1];
    sl_j_take_args(b, what, args, "affix", a);
    const j_string *x = sl_j_string_arg(b, what, a[0]);
    if (!x->n || !has_affix(b, what, s, a[0], 0, s->n, at_end)) return sl_j_text(s);
    return sl_j_text(at_end ? sl_j_part(b, s, 0, s->n - x->n) : sl_j_part(b, s, x->n, s->n));
}

static j_value partition(j_base *b, const char *what, const j_string *s, const j_args *args, int last) {
    j_value a[1];
    sl_j_take_args(b, what, args, "sep", a);
    const j_string *x = sl_j_string_arg(b, what, a[0]), *empty = sl_j_literal(b, "");
    if (!x->n) sl_j_fail(b, SL_ERR_ARG, "empty separator");
    size_t at = sl_j_find(b, s, 0, s->n, x, last);
    j_value parts[] = {sl_j_text(last ? empty : s), sl_j_text(empty), sl_j_text(last ? s : empty)};
    if (at != SIZE_MAX) {
        parts[0] = sl_j_text(sl_j_part(b, s, 0, at));
        parts[1] = sl_j_text(x);
        parts[2] = sl_j_text(sl_j_part(b, s, at + x->n, s->n));
    }
    return sl_j_list_new(b, J_TUPLE, parts, 3);
}

static j_value join(j_base *b, const char *what, const j_string *s, const j_args *args) {
    j_value a[1];
    j_buffer out = {0};
    sl_j_take_args(b, what, args, "iterable", a);
    if (!sl_j_given(a[0])) sl_j_fail(b, SL_ERR_ARG, "join needs an argument");
    j_list all = sl_j_elements(b, a[0]);
    for (size_t i = 0; i < all.n; i++) {
        if (all.items[i].type != J_STRING)
            sl_j_fail(b, SL_ERR_ARG, "sequence item %zu: expected str instance, %s found", i, sl_j_type_name(all.items[i]));
        if (i) sl_j_put_string(b, &out, s);
        sl_j_put_string(b, &out, all.items[i].s);
    }
    return sl_j_text(sl_j_buffer_string(b, &out));
}

static j_value padded(j_base *b, const char *what, const j_string *s, const j_args *args, method_id id) {
    j_value a[2];
    j_buffer out = {0};
    sl_j_take_args(b, what, args, id == M_ZFILL ? "width" : "width fillchar", a);
    int64_t width = sl_j_int_arg(b, what, a[0]), n = (int64_t)sl_j_n_chars(b, s), pad = width > n ? width - n : 0;
    const j_string *fill = sl_j_literal(b, id == M_ZFILL ? "0" : " ");
    if (id != M_ZFILL && sl_j_given(a[1])) fill = sl_j_string_arg(b, what, a[1]);
    if (sl_j_n_chars(b, fill) != 1) sl_j_fail(b, SL_ERR_ARG, "the fill character must be exactly one character long");
    int64_t left = id == M_LJUST ? 0 : id == M_CENTER ? pad / 2 + (pad & width & 1) : pad;
    size_t sign = id == M_ZFILL && s->n && (s->s[0] == '-' || s->s[0] == '+');
    sl_j_put_string(b, &out, sl_j_part(b, s, 0, sign));
    for (int64_t i = 0; i < pad; i++) {
        sl_j_step(b, 1);
        if (i == left) sl_j_put_string(b, &out, sl_j_part(b, s, sign, s->n));
        sl_j_put_string(b, &out, fill);
    }
    if (left >= pad) sl_j_put_string(b, &out, sl_j_part(b, s, sign, s->n));
    return sl_j_text(sl_j_buffer_string(b, &out));
}

static j_value split(j_base *b, const char *what, const j_string *s, const j_args *args, method_id id) {
    j_value a[2];
    if (id == M_SPLITLINES) {
        sl_j_take_args(b, what, args, "keepends", a);
        return sl_j_split_lines(b, s, sl_j_given(a[0]) && sl_j_true(b, a[0]));
    }
    sl_j_take_args(b, what, args, "sep maxsplit", a);
    const j_string *separator = sl_j_given(a[0]) && a[0].type != J_NONE ? sl_j_string_arg(b, what, a[0]) : NULL;
    return sl_j_split(b, s, separator, sl_j_given(a[1]) ? sl_j_int_arg(b, what, a[1]) : -1, id == M_RSPLIT);
}

static j_value string_method(j_base *b, const char *what, method_id id, const j_string *s, const j_args *args) {
    static const j_case cases[] = {J_UPPER, J_LOWER, J_TITLE_WORDS, J_CAPITALIZE, J_SWAP};
    j_value a[3];
    switch (id) {
    case M_STRIP:
    case M_LSTRIP:
    case M_RSTRIP: {
        sl_j_take_args(b, what, args, "chars", a);
        const j_string *chars = sl_j_given(a[0]) && a[0].type != J_NONE ? sl_j_string_arg(b, what, a[0]) : NULL;
        return sl_j_text(sl_j_strip(b, s, chars, id != M_RSTRIP, id != M_LSTRIP));
    }
    case M_SPLIT:
    case M_RSPLIT:
    case M_SPLITLINES:
        return split(b, what, s, args, id);
    case M_STARTSWITH:
    case M_ENDSWITH:
        return affixed(b, what, s, args, id == M_ENDSWITH);
    case M_REPLACE:
        sl_j_take_args(b, what, args, "old new count", a);
        return sl_j_text(sl_j_replace(b, s, sl_j_string_arg(b, what, a[0]), sl_j_string_arg(b, what, a[1]),
                                      sl_j_given(a[2]) ? sl_j_int_arg(b, what, a[2]) : -1));
    case M_FIND:
    case M_RFIND:
    case M_INDEX:
    case M_RINDEX:
    case M_COUNT:
        return find(b, what, s, args, id);
    case M_JOIN:
        return join(b, what, s, args);
    case M_FORMAT:
        return sl_j_text(sl_j_format(b, s, args));
    case M_REMOVEPREFIX:
    case M_REMOVESUFFIX:
        return remove_affix(b, what, s, args, id == M_REMOVESUFFIX);
    case M_PARTITION:
    case M_RPARTITION:
        return partition(b, what, s, args, id == M_RPARTITION);
    case M_LJUST:
    case M_RJUST:
    case M_CENTER:
    case M_ZFILL:
        return padded(b, what, s, args, id);
    default: // without arguments
        sl_j_take_args(b, what, args, "", a);
        if (id >= M_UPPER && id <= M_SWAPCASE) return sl_j_text(sl_j_case(b, s, cases[id - M_UPPER]));
        return sl_j_bool(sl_j_is_class(b, s, (j_class)(id - M_ISALPHA)));
    }
}

// ---- methods of other values ----

static j_value dict_method(j_base *b, const char *what, method_id id, const j_dict *d, const j_args *args) {
    j_value a[2];
    if (id == M_GET) {
        sl_j_take_args(b, what, args, "key default", a);
        if (!sl_j_given(a[0])) sl_j_fail(b, SL_ERR_ARG, "get needs an argument");
        sl_j_check_key(b, a[0]);
        const j_value *found = sl_j_dict_get(b, d, a[0]);
        return found ? *found : sl_j_given(a[1]) ? a[1] : sl_j_none();
    }
    sl_j_take_args(b, what, args, "", a);
    if (id != M_COPY) return sl_j_view(b, d, id != M_VALUES, id != M_KEYS);
    j_value made = sl_j_dict_new(b, J_DICT);
    for (size_t i = 0; i < d->n; i++) sl_j_dict_set(b, made.dict, d->pairs[i].key, d->pairs[i].value);
    return made;
}

static j_value list_method(j_base *b, const char *what, method_id id, j_value v, const j_args *args) {
    j_value a[1];
    if (id == M_COPY) {
        sl_j_take_args(b, what, args, "", a);
        return v; // lists never change
    }
    sl_j_take_args(b, what, args, "value", a);
    if (!sl_j_given(a[0])) sl_j_fail(b, SL_ERR_ARG, "%s needs an argument", what);
    int64_t count = 0;
    for (size_t i = 0; i < v.list->n; i++) {
        int equal = sl_j_identical(v.list->items[i], a[0]) || sl_j_equal(b, v.list->items[i], a[0]);
        if (equal && id == M_LIST_INDEX) return sl_j_int((int64_t)i);
        count += equal;
    }
    if (id == M_LIST_INDEX) sl_j_fail(b, SL_ERR_ARG, "the value is not in the list");
    return sl_j_int(count);
}

static j_value loop_method(j_base *b, method_id id, j_loop *loop, const j_args *args) {
    if (args->n_names) sl_j_fail(b, SL_ERR_ARG, "cycle and changed take no keyword arguments");
    if (id == M_CYCLE) {
        if (!args->n) sl_j_fail(b, SL_ERR_ARG, "no items for cycling given");
        return args->items[loop->at % args->n];
    }
    j_value now = sl_j_list_new(b, J_TUPLE, args->items, args->n);
    if (loop->has_changed && sl_j_equal(b, loop->last, now)) return sl_j_bool(0);
    loop->has_changed = 1;
    loop->last = now;
    return sl_j_bool(1);
}

static j_value cycler_method(j_base *b, method_id id, j_cycler *c, const j_args *args) {
    if (args->n + args->n_names) sl_j_fail(b, SL_ERR_ARG, "the methods of a cycler take no arguments");
    j_value current = c->items.items[c->at];
    c->at = id == M_NEXT ? (c->at + 1) % c->items.n : 0;
    return id == M_NEXT ? current : sl_j_none();
}

j_value sl_j_call_method(j_run *r, const j_method *m, const j_args *args) {
    j_base *b = &r->base;
    const char *name = methods[m->id].name;
    method_id id = methods[m->id].id;
    if (id == M_MISSING) sl_j_fail(b, SL_ERR_UNSUPPORTED, "%s.%s is not supported", sl_j_type_name(m->self), name);
    switch (m->self.type) {
    case J_STRING:
        if (m->self.s->safe && args->n)
            sl_j_fail(b, SL_ERR_UNSUPPORTED, "%s of a string of the filter safe is not supported", name);
        return string_method(b, name, id, m->self.s, args);
    case J_DICT:
        return dict_method(b, name, id, m->self.dict, args);
    case J_LIST:
    case J_TUPLE:
        return list_method(b, name, id, m->self, args);
    case J_LOOP:
        return loop_method(b, id, m->self.loop, args);
    default:
        return cycler_method(b, id, m->self.cycler, args);
    }
}
