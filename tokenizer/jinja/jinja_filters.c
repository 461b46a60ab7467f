// tokenizer/jinja/jinja_filters.c - the filters of Jinja 3.1, and tojson of transformers. A filter that Python writes as a
// generator gives an iterator, which can be read once. An error within such a filter is kept until the iterator reaches it.
#include "tokenizer/jinja/jinja_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef j_value (*filter_fn)(j_run *r, j_value v, const j_args *args);

static j_value text_of(const j_string *s) {
    return sl_j_text(s);
}
static int flag(j_base *b, j_value v) { // of an argument; not given: 0
    return sl_j_given(v) && sl_j_true(b, v);
}

// ---- strings ----

static j_value call_of(j_run *r, j_value v, const char *method, const j_args *args) { // soft_str(v).method(args)
    j_value m;
    if (!sl_j_attribute(r, text_of(sl_j_str(&r->base, v)), method, strlen(method), &m)) SL_CHECK(0);
    return sl_j_call_method(r, m.method, args);
}

static j_value f_trim(j_run *r, j_value v, const j_args *args) {
    return call_of(r, v, "strip", args);
}
static j_value f_upper(j_run *r, j_value v, const j_args *args) {
    return call_of(r, v, "upper", args);
}
static j_value f_lower(j_run *r, j_value v, const j_args *args) {
    return call_of(r, v, "lower", args);
}
static j_value f_capitalize(j_run *r, j_value v, const j_args *args) {
    return call_of(r, v, "capitalize", args);
}
static j_value f_title(j_run *r, j_value v, const j_args *args) {
    sl_j_take_args(&r->base, "title", args, "", NULL);
    return text_of(sl_j_case(&r->base, sl_j_str(&r->base, v), J_TITLE));
}
static j_value f_center(j_run *r, j_value v, const j_args *args) {
    j_value a[1];
    sl_j_take_args(&r->base, "center", args, "width", a);
    if (!sl_j_given(a[0])) a[0] = sl_j_int(80);
    return call_of(r, v, "center", &(j_args){.items = a, .n = 1});
}

static j_value f_replace(j_run *r, j_value v, const j_args *args) {
    j_base *b = &r->base;
    j_value a[3];
    sl_j_take_args(b, "replace", args, "old new count", a);
    if (!sl_j_given(a[0]) || !sl_j_given(a[1])) sl_j_fail(b, SL_ERR_ARG, "replace needs two arguments");
    int64_t most = sl_j_given(a[2]) && a[2].type != J_NONE ? sl_j_int_arg(b, "replace", a[2]) : -1;
    return text_of(sl_j_replace(b, sl_j_str(b, v), sl_j_str(b, a[0]), sl_j_str(b, a[1]), most));
}

static j_value f_string(j_run *r, j_value v, const j_args *args) {
    sl_j_take_args(&r->base, "string", args, "", NULL);
    return text_of(sl_j_str(&r->base, v));
}

static j_value f_safe(j_run *r, j_value v, const j_args *args) {
    sl_j_take_args(&r->base, "safe", args, "", NULL);
    j_string *s = (j_string *)sl_j_part(&r->base, sl_j_str(&r->base, v), 0, sl_j_str(&r->base, v)->n);
    s->safe = 1;
    return text_of(s);
}

static j_value f_escape(j_run *r, j_value v, const j_args *args) {
    sl_j_take_args(&r->base, "escape", args, "", NULL);
    return text_of(sl_j_escape(&r->base, sl_j_str(&r->base, v)));
}

static j_value f_indent(j_run *r, j_value v, const j_args *args) {
    j_base *b = &r->base;
    j_value a[3];
    j_buffer out = {0}, width = {0};
    sl_j_take_args(b, "indent", args, "width first blank", a);
    sl_j_defined(b, v);
    if (v.type != J_STRING) sl_j_fail(b, SL_ERR_ARG, "indent of a value of the type %s", sl_j_type_name(v));
    if (sl_j_given(a[0]) && a[0].type == J_STRING)
        sl_j_put_string(b, &width, a[0].s);
    else
        for (int64_t n = sl_j_given(a[0]) ? sl_j_int_arg(b, "indent", a[0]) : 4; n > 0; n--) sl_j_put_text(b, &width, " ");
    const j_string *indent = sl_j_buffer_string(b, &width);
    sl_j_put_string(b, &out, v.s);
    sl_j_put_text(b, &out, "\n"); // so that the last line counts even if it is empty
    j_list lines = sl_j_elements(b, sl_j_split_lines(b, sl_j_buffer_string(b, &out), 0));
    out = (j_buffer){0};
    if (flag(b, a[1])) sl_j_put_string(b, &out, indent);
    for (size_t i = 0; i < lines.n; i++) {
        const j_string *line = lines.items[i].s;
        if (i) sl_j_put_text(b, &out, "\n");
        if (i && (line->n || flag(b, a[2]))) sl_j_put_string(b, &out, indent);
        sl_j_put_string(b, &out, line);
    }
    j_string *made = (j_string *)sl_j_buffer_string(b, &out);
    made->safe = v.s->safe;
    return text_of(made);
}

static j_value f_truncate(j_run *r, j_value v, const j_args *args) {
    j_base *b = &r->base;
    j_value a[4];
    j_buffer out = {0};
    sl_j_take_args(b, "truncate", args, "length killwords end leeway", a);
    const j_string *s = sl_j_string_arg(b, "truncate", v), *end = sl_j_literal(b, "...");
    int64_t length = sl_j_given(a[0]) ? sl_j_int_arg(b, "truncate", a[0]) : 255;
    int64_t leeway = sl_j_given(a[3]) && a[3].type != J_NONE ? sl_j_int_arg(b, "truncate", a[3]) : 5;
    if (sl_j_given(a[2])) end = sl_j_string_arg(b, "truncate", a[2]);
    int64_t n_end = (int64_t)sl_j_n_chars(b, end);
    if (length < n_end) sl_j_fail(b, SL_ERR_ARG, "expected length >= %lld, got %lld", (long long)n_end, (long long)length);
    if (leeway < 0) sl_j_fail(b, SL_ERR_ARG, "expected leeway >= 0, got %lld", (long long)leeway);
    if ((int64_t)sl_j_n_chars(b, s) - leeway <= length) return v;
    const j_string *cut = sl_j_part(b, s, 0, sl_j_offset(s, (size_t)(length - n_end)));
    if (!flag(b, a[1])) {
        size_t at = sl_j_find(b, cut, 0, cut->n, sl_j_literal(b, " "), 1);
        if (at != SIZE_MAX) cut = sl_j_part(b, cut, 0, at);
    }
    sl_j_put_string(b, &out, cut);
    sl_j_put_string(b, &out, end);
    return text_of(sl_j_buffer_string(b, &out));
}

static j_value f_format(j_run *r, j_value v, const j_args *args) {
    j_base *b = &r->base;
    if (args->n && args->n_names) sl_j_fail(b, SL_ERR_ARG, "can't handle positional and keyword arguments at the same time");
    j_value given = sl_j_list_new(b, J_TUPLE, args->items, args->n);
    if (args->n_names) given = sl_j_dict_new(b, J_DICT);
    for (size_t i = 0; i < args->n_names; i++) sl_j_dict_set(b, given.dict, text_of(args->names[i]), args->values[i]);
    return text_of(sl_j_percent(b, sl_j_str(b, v), given));
}

static j_value f_wordcount(j_run *r, j_value v, const j_args *args) {
    j_base *b = &r->base;
    int64_t count = 0;
    int inside = 0;
    uint32_t c;
    sl_j_take_args(b, "wordcount", args, "", NULL);
    const j_string *s = sl_j_str(b, v);
    for (size_t i = 0, len; i < s->n; i += len) {
        len = sl_j_char(s->s + i, s->n - i, &c);
        int word = c == '_' || sl_j_is_class(b, sl_j_part(b, s, i, i + len), J_IS_ALNUM);
        count += word && !inside;
        inside = word;
    }
    return sl_j_int(count);
}

static j_value f_tojson(j_run *r, j_value v, const j_args *args) {
    j_base *b = &r->base;
    j_value a[4];
    j_buffer out = {0}, indent = {0};
    j_json o = {.indent = -1};
    sl_j_take_args(b, "tojson", args, "ensure_ascii indent separators sort_keys", a);
    o.ascii = flag(b, a[0]);
    o.sort = flag(b, a[3]);
    if (sl_j_given(a[1]) && a[1].type != J_NONE) {
        o.indent = 0;
        if (a[1].type == J_STRING)
            sl_j_put_string(b, &indent, a[1].s);
        else
            for (int64_t n = sl_j_int_arg(b, "tojson", a[1]); n > 0; n--) sl_j_put_text(b, &indent, " ");
    }
    o.indent_text = sl_j_buffer_string(b, &indent);
    o.item_separator = sl_j_literal(b, o.indent < 0 ? ", " : ",");
    o.key_separator = sl_j_literal(b, ": ");
    if (sl_j_given(a[2]) && a[2].type != J_NONE) {
        j_list pair = sl_j_elements(b, a[2]);
        if (pair.n != 2) sl_j_fail(b, SL_ERR_ARG, "tojson: separators has %zu elements, expected 2", pair.n);
        o.item_separator = sl_j_string_arg(b, "tojson", pair.items[0]);
        o.key_separator = sl_j_string_arg(b, "tojson", pair.items[1]);
    }
    sl_j_put_json(b, &out, v, &o);
    return text_of(sl_j_buffer_string(b, &out));
}

// ---- numbers ----

static j_value f_abs(j_run *r, j_value v, const j_args *args) {
    sl_j_take_args(&r->base, "abs", args, "", NULL);
    sl_j_defined(&r->base, v);
    if (!sl_j_is_number(v)) sl_j_fail(&r->base, SL_ERR_ARG, "bad operand type for abs(): '%s'", sl_j_type_name(v));
    if (v.type == J_FLOAT) return sl_j_float(fabs(v.f));
    if (v.i == INT64_MIN) sl_j_fail(&r->base, SL_ERR_UNSUPPORTED, "an integer has more than 64 bits");
    return sl_j_int(v.i < 0 ? -v.i : v.i);
}

static j_value float_as_int(j_base *b, double x, j_value otherwise) {
    if (isnan(x)) return otherwise;
    if (fabs(x) >= 9223372036854775808.0) sl_j_fail(b, SL_ERR_UNSUPPORTED, "an integer has more than 64 bits");
    return sl_j_int((int64_t)x);
}

static j_value f_int(j_run *r, j_value v, const j_args *args) {
    j_base *b = &r->base;
    j_value a[2];
    int64_t i;
    double x;
    sl_j_take_args(b, "int", args, "default base", a);
    sl_j_defined(b, v);
    j_value otherwise = sl_j_given(a[0]) ? a[0] : sl_j_int(0);
    int64_t base = sl_j_given(a[1]) ? sl_j_int_arg(b, "int", a[1]) : 10;
    if (sl_j_is_whole(v)) return sl_j_int(v.i);
    if (v.type == J_FLOAT) {
        if (isinf(v.f)) sl_j_fail(b, SL_ERR_ARG, "cannot convert float infinity to integer");
        return float_as_int(b, v.f, otherwise);
    }
    if (v.type != J_STRING) return otherwise;
    int has_base = base == 0 || (base >= 2 && base <= 36); // otherwise the text may still be that of a float
    int is = has_base ? sl_j_parse_int(v.s->s, v.s->n, (int)base, &i) : 0;
    if (is < 0) sl_j_fail(b, SL_ERR_UNSUPPORTED, "an integer has more than 64 bits");
    if (is) return sl_j_int(i);
    if (!sl_j_parse_float(v.s->s, v.s->n, &x) || isinf(x)) return otherwise;
    return float_as_int(b, x, otherwise);
}

static j_value f_float(j_run *r, j_value v, const j_args *args) {
    j_base *b = &r->base;
    j_value a[1];
    double x;
    sl_j_take_args(b, "float", args, "default", a);
    sl_j_defined(b, v);
    if (sl_j_is_whole(v)) return sl_j_float((double)v.i);
    if (v.type == J_FLOAT) return v;
    if (v.type == J_STRING && sl_j_parse_float(v.s->s, v.s->n, &x)) return sl_j_float(x);
    return sl_j_given(a[0]) ? a[0] : sl_j_float(0);
}

static j_value f_round(j_run *r, j_value v, const j_args *args) {
    j_base *b = &r->base;
    j_value a[2];
    char text[400];
    double x;
    sl_j_take_args(b, "round", args, "precision method", a);
    int64_t precision = sl_j_given(a[0]) ? sl_j_int_arg(b, "round", a[0]) : 0;
    const j_string *method = sl_j_given(a[1]) ? sl_j_string_arg(b, "round", a[1]) : sl_j_literal(b, "common");
    sl_j_defined(b, v);
    if (!sl_j_is_number(v)) sl_j_fail(b, SL_ERR_ARG, "round of a value of the type %s", sl_j_type_name(v));
    if (precision < 0 || precision > 22)
        sl_j_fail(b, SL_ERR_UNSUPPORTED, "round: precision %lld is not supported", (long long)precision);
    if (sl_j_equals(method, "common")) {
        if (sl_j_is_whole(v) || !isfinite(v.f)) return sl_j_is_whole(v) ? sl_j_int(v.i) : v;
        const j_value arguments[] = {v};
        snprintf(text, sizeof text, "%%.%df", (int)precision);
        const j_string *rounded = sl_j_percent(b, sl_j_literal(b, text), sl_j_list_new(b, J_TUPLE, arguments, 1));
        if (!sl_j_parse_float(rounded->s, rounded->n, &x)) sl_j_fail(b, SL_ERR_UNSUPPORTED, "round of this number");
        return sl_j_float(x);
    }
    double power = pow(10, (double)precision), scaled = (v.type == J_FLOAT ? v.f : (double)v.i) * power;
    if (!sl_j_equals(method, "ceil") && !sl_j_equals(method, "floor"))
        sl_j_fail(b, SL_ERR_ARG, "method must be common, ceil or floor");
    return sl_j_float((sl_j_equals(method, "ceil") ? ceil(scaled) : floor(scaled)) / power + 0.0);
}

// ---- keys of sort, unique, map and others ----

// The part of an element that an attribute like "function.name" or 0 names. attribute not given or none: the element.
static j_value part_of(j_run *r, j_value item, j_value attribute, j_value otherwise) {
    j_base *b = &r->base;
    if (!sl_j_given(attribute) || attribute.type == J_NONE) return item;
    if (attribute.type != J_STRING) return sl_j_get_item(r, item, attribute);
    j_list parts = sl_j_elements(b, sl_j_split(b, attribute.s, sl_j_literal(b, "."), -1, 0));
    for (size_t i = 0; i < parts.n; i++) {
        const j_string *part = parts.items[i].s;
        int64_t number;
        int is_number = part->n > 0;
        for (size_t k = 0; k < part->n; k++) is_number &= part->s[k] >= '0' && part->s[k] <= '9';
        j_value key = is_number && sl_j_parse_int(part->s, part->n, 10, &number) == 1 ? sl_j_int(number) : parts.items[i];
        item = sl_j_get_item(r, item, key);
        if (item.type == J_UNDEFINED && sl_j_given(otherwise) && otherwise.type != J_NONE) item = otherwise;
    }
    return item;
}

static j_value without_case(j_base *b, j_value v, int case_sensitive) {
    return case_sensitive || v.type != J_STRING ? v : text_of(sl_j_case(b, v.s, J_LOWER));
}

static void sort_by(j_base *b, j_value *items, j_value *keys, size_t n, int reverse) { // stable
    for (size_t i = 1; i < n; i++) {
        j_value item = items[i], key = keys[i];
        size_t j = i;
        for (; j > 0; j--) {
            int c = reverse ? sl_j_compare(b, keys[j - 1], key, "<") : sl_j_compare(b, key, keys[j - 1], "<");
            if (c != -1) break;
            items[j] = items[j - 1], keys[j] = keys[j - 1];
        }
        items[j] = item, keys[j] = key;
    }
}

static j_value f_sort(j_run *r, j_value v, const j_args *args) {
    j_base *b = &r->base;
    j_value a[3], none = {.type = J_UNDEFINED};
    j_list items = {0}, keys = {0}, names = {0};
    sl_j_take_args(b, "sort", args, "reverse case_sensitive attribute", a);
    if (sl_j_given(a[2]) && a[2].type == J_STRING) names = sl_j_elements(b, sl_j_split(b, a[2].s, sl_j_literal(b, ","), -1, 0));
    j_list all = sl_j_elements(b, v);
    for (size_t i = 0; i < all.n; i++) {
        j_list key = {0};
        sl_j_push(b, &items, all.items[i]);
        for (size_t k = 0; k < names.n; k++)
            sl_j_push(b, &key, without_case(b, part_of(r, all.items[i], names.items[k], none), flag(b, a[1])));
        if (!names.n) sl_j_push(b, &key, without_case(b, part_of(r, all.items[i], a[2], none), flag(b, a[1])));
        sl_j_push(b, &keys, sl_j_list_of(b, key, J_LIST));
    }
    sort_by(b, items.items, keys.items, items.n, flag(b, a[0]));
    return sl_j_list_of(b, items, J_LIST);
}

static j_value f_dictsort(j_run *r, j_value v, const j_args *args) {
    j_base *b = &r->base;
    j_value a[3];
    j_list items = {0}, keys = {0};
    sl_j_take_args(b, "dictsort", args, "case_sensitive by reverse", a);
    sl_j_defined(b, v);
    if (v.type != J_DICT) sl_j_fail(b, SL_ERR_ARG, "dictsort of a value of the type %s", sl_j_type_name(v));
    int by_value = sl_j_given(a[1]) && a[1].type == J_STRING && sl_j_equals(a[1].s, "value");
    if (sl_j_given(a[1]) && !by_value && !(a[1].type == J_STRING && sl_j_equals(a[1].s, "key")))
        sl_j_fail(b, SL_ERR_ARG, "You can only sort by either \"key\" or \"value\"");
    for (size_t i = 0; i < v.dict->n; i++) {
        const j_value pair[] = {v.dict->pairs[i].key, v.dict->pairs[i].value};
        sl_j_push(b, &items, sl_j_list_new(b, J_TUPLE, pair, 2));
        sl_j_push(b, &keys, without_case(b, pair[by_value], flag(b, a[0])));
    }
    sort_by(b, items.items, keys.items, items.n, flag(b, a[2]));
    return sl_j_list_of(b, items, J_LIST);
}

static j_value f_unique(j_run *r, j_value v, const j_args *args) {
    j_base *b = &r->base;
    j_value a[2], none = {.type = J_UNDEFINED};
    j_list items = {0};
    sl_j_take_args(b, "unique", args, "case_sensitive attribute", a);
    j_list all = sl_j_elements(b, v);
    j_value seen = sl_j_dict_new(b, J_DICT);
    for (size_t i = 0; i < all.n; i++) {
        j_value key = without_case(b, part_of(r, all.items[i], a[1], none), flag(b, a[0]));
        sl_j_check_key(b, key);
        if (sl_j_dict_get(b, seen.dict, key)) continue;
        sl_j_dict_set(b, seen.dict, key, sl_j_none());
        sl_j_push(b, &items, all.items[i]);
    }
    return sl_j_iterator(b, items);
}

static j_value least_or_most(j_run *r, const char *what, j_value v, const j_args *args, int sign) {
    j_base *b = &r->base;
    j_value a[2], none = {.type = J_UNDEFINED}, best = none, best_key = none;
    sl_j_take_args(b, what, args, "case_sensitive attribute", a);
    j_list all = sl_j_elements(b, v);
    for (size_t i = 0; i < all.n; i++) {
        j_value key = without_case(b, part_of(r, all.items[i], a[1], none), flag(b, a[0]));
        if (i && sl_j_compare(b, key, best_key, sign < 0 ? "<" : ">") != sign) continue;
        best = all.items[i];
        best_key = key;
    }
    return all.n ? best : sl_j_undefined(b, "No aggregated item, sequence was empty.");
}
static j_value f_min(j_run *r, j_value v, const j_args *args) {
    return least_or_most(r, "min", v, args, -1);
}
static j_value f_max(j_run *r, j_value v, const j_args *args) {
    return least_or_most(r, "max", v, args, 1);
}

static j_value f_sum(j_run *r, j_value v, const j_args *args) {
    j_base *b = &r->base;
    j_value a[2], none = {.type = J_UNDEFINED};
    sl_j_take_args(b, "sum", args, "attribute start", a);
    j_value total = sl_j_given(a[1]) ? a[1] : sl_j_int(0);
    if (total.type == J_STRING) sl_j_fail(b, SL_ERR_ARG, "sum() can't sum strings [use ''.join(seq) instead]");
    j_list all = sl_j_elements(b, v);
    for (size_t i = 0; i < all.n; i++) total = sl_j_add(b, total, part_of(r, all.items[i], a[0], none));
    return total;
}

static j_value f_join(j_run *r, j_value v, const j_args *args) {
    j_base *b = &r->base;
    j_value a[2], none = {.type = J_UNDEFINED};
    j_buffer out = {0};
    sl_j_take_args(b, "join", args, "d attribute", a);
    const j_string *between = sl_j_given(a[0]) ? sl_j_str(b, a[0]) : sl_j_literal(b, "");
    j_list all = sl_j_elements(b, v);
    for (size_t i = 0; i < all.n; i++) {
        if (i) sl_j_put_string(b, &out, between);
        sl_j_put_string(b, &out, sl_j_str(b, part_of(r, all.items[i], a[1], none)));
    }
    return text_of(sl_j_buffer_string(b, &out));
}

// ---- elements ----

static j_value f_length(j_run *r, j_value v, const j_args *args) {
    sl_j_take_args(&r->base, "length", args, "", NULL);
    if (v.type == J_LOOP) sl_j_loop_has(r, v.loop, SIZE_MAX); // a loop reads its elements late; the length needs all of them
    return sl_j_int((int64_t)sl_j_length(&r->base, v));
}

static j_value f_list(j_run *r, j_value v, const j_args *args) {
    sl_j_take_args(&r->base, "list", args, "", NULL);
    j_list all = sl_j_elements(&r->base, v);
    return sl_j_list_new(&r->base, J_LIST, all.items, all.n);
}

static j_value f_first(j_run *r, j_value v, const j_args *args) {
    j_base *b = &r->base;
    j_value first;
    sl_j_take_args(b, "first", args, "", NULL);
    if (v.type != J_ITERATOR) v = sl_j_iterator(b, sl_j_elements(b, v));
    return sl_j_next(b, v, &first) ? first : sl_j_undefined(b, "No first item, sequence was empty.");
}

static j_value f_last(j_run *r, j_value v, const j_args *args) {
    j_base *b = &r->base;
    sl_j_take_args(b, "last", args, "", NULL);
    if (v.type == J_ITERATOR || !sl_j_is_iterable(v))
        sl_j_fail(b, SL_ERR_ARG, "'%s' object is not reversible", sl_j_type_name(v));
    j_list all = sl_j_elements(b, v);
    return all.n ? all.items[all.n - 1] : sl_j_undefined(b, "No last item, sequence was empty.");
}

static j_value f_reverse(j_run *r, j_value v, const j_args *args) {
    j_base *b = &r->base;
    j_list items = {0};
    j_buffer out = {0};
    sl_j_take_args(b, "reverse", args, "", NULL);
    if (!sl_j_is_iterable(v)) sl_j_fail(b, SL_ERR_ARG, "argument must be iterable");
    j_list all = sl_j_elements(b, v);
    for (size_t i = all.n; i-- > 0;) {
        if (v.type == J_STRING)
            sl_j_put_string(b, &out, all.items[i].s);
        else
            sl_j_push(b, &items, all.items[i]);
    }
    if (v.type == J_STRING) return text_of(sl_j_buffer_string(b, &out));
    return v.type == J_ITERATOR ? sl_j_list_of(b, items, J_LIST) : sl_j_iterator(b, items);
}

static j_value f_items(j_run *r, j_value v, const j_args *args) {
    j_base *b = &r->base;
    sl_j_take_args(b, "items", args, "", NULL);
    if (v.type == J_UNDEFINED) return sl_j_iterator(b, (j_list){0});
    if (v.type != J_DICT) { // Python's generator fails when it is first read
        j_value it = sl_j_iterator(b, (j_list){0});
        it.iterator->failed = "Can only get item pairs from a mapping.";
        it.iterator->code = SL_ERR_ARG;
        return it;
    }
    return sl_j_iterator(b, *sl_j_view(b, v.dict, 1, 1).list);
}

static j_value f_default(j_run *r, j_value v, const j_args *args) {
    j_value a[2];
    sl_j_take_args(&r->base, "default", args, "default_value boolean", a);
    if (v.type != J_UNDEFINED && !(flag(&r->base, a[1]) && !sl_j_true(&r->base, v))) return v;
    return sl_j_given(a[0]) ? a[0] : text_of(sl_j_literal(&r->base, ""));
}

static j_value f_batch(j_run *r, j_value v, const j_args *args) {
    j_base *b = &r->base;
    j_value a[2];
    j_list rows = {0}, row = {0};
    sl_j_take_args(b, "batch", args, "linecount fill_with", a);
    int64_t n = sl_j_int_arg(b, "batch", a[0]);
    if (n < 1) sl_j_fail(b, SL_ERR_UNSUPPORTED, "batch: a count of %lld is not supported", (long long)n);
    j_list all = sl_j_elements(b, v);
    for (size_t i = 0; i < all.n; i++) {
        if ((int64_t)row.n == n) {
            sl_j_push(b, &rows, sl_j_list_of(b, row, J_LIST));
            row = (j_list){0};
        }
        sl_j_push(b, &row, all.items[i]);
    }
    while (row.n && sl_j_given(a[1]) && a[1].type != J_NONE && (int64_t)row.n < n) sl_j_push(b, &row, a[1]);
    if (row.n) sl_j_push(b, &rows, sl_j_list_of(b, row, J_LIST));
    return sl_j_iterator(b, rows);
}

static j_value f_slice(j_run *r, j_value v, const j_args *args) {
    j_base *b = &r->base;
    j_value a[2];
    j_list rows = {0};
    sl_j_take_args(b, "slice", args, "slices fill_with", a);
    int64_t n = sl_j_int_arg(b, "slice", a[0]);
    if (n < 1 || n > 100000) sl_j_fail(b, SL_ERR_UNSUPPORTED, "slice: a count of %lld is not supported", (long long)n);
    j_list all = sl_j_elements(b, v);
    size_t each = all.n / (size_t)n, more = all.n % (size_t)n, at = 0;
    for (size_t i = 0; i < (size_t)n; i++) {
        j_list row = {0};
        for (size_t k = 0; k < each + (i < more); k++) sl_j_push(b, &row, all.items[at++]);
        if (sl_j_given(a[1]) && a[1].type != J_NONE && i >= more) sl_j_push(b, &row, a[1]);
        sl_j_push(b, &rows, sl_j_list_of(b, row, J_LIST));
    }
    return sl_j_iterator(b, rows);
}

static j_value f_attr(j_run *r, j_value v, const j_args *args) {
    j_base *b = &r->base;
    j_value a[1], out;
    sl_j_take_args(b, "attr", args, "name", a);
    const j_string *name = sl_j_string_arg(b, "attr", a[0]);
    if (v.type == J_UNDEFINED || v.type == J_NAMESPACE) return sl_j_get_attribute(r, v, name);
    if (sl_j_attribute(r, v, name->s, name->n, &out)) return out;
    return sl_j_undefined(b, "'%s object' has no attribute '%.*s'", sl_j_type_name(v), (int)name->n, name->s);
}

// ---- map, select and reject ----

typedef struct each { // a filter or test over elements, which may fail at any of them
    j_run *r;
    j_value source;
    const j_args *args;
    int by_attribute, keep; // select and reject
    int is_map;
    j_list made;
} each;

static void map_elements(each *e) {
    j_run *r = e->r;
    j_base *b = &r->base;
    const j_args *args = e->args;
    j_value attribute = {.type = J_UNDEFINED}, otherwise = attribute;
    j_args rest = {0};
    if (!args->n) {
        for (size_t i = 0; i < args->n_names; i++) {
            if (sl_j_equals(args->names[i], "attribute"))
                attribute = args->values[i];
            else if (sl_j_equals(args->names[i], "default"))
                otherwise = args->values[i];
            else
                sl_j_fail(b, SL_ERR_ARG, "Unexpected keyword argument '%.*s'", (int)args->names[i]->n, args->names[i]->s);
        }
        if (!sl_j_given(attribute)) sl_j_fail(b, SL_ERR_ARG, "map requires a filter argument");
    } else {
        rest = *args;
        rest.items++, rest.n--;
    }
    j_list all = sl_j_elements(b, e->source);
    for (size_t i = 0; i < all.n; i++)
        sl_j_push(b, &e->made,
                  args->n ? sl_j_filter(r, sl_j_string_arg(b, "map", args->items[0]), all.items[i], &rest)
                          : part_of(r, all.items[i], attribute, otherwise));
}

static void select_elements(each *e) {
    j_run *r = e->r;
    j_base *b = &r->base;
    const j_args *args = e->args;
    size_t skip = e->by_attribute ? 1 : 0;
    j_value none = {.type = J_UNDEFINED};
    if (args->n < skip) sl_j_fail(b, SL_ERR_ARG, "Missing parameter for attribute name");
    int has_test = args->n > skip;
    j_args rest = *args;
    if (has_test) rest.items += skip + 1, rest.n -= skip + 1;
    j_list all = sl_j_elements(b, e->source);
    for (size_t i = 0; i < all.n; i++) {
        j_value v = e->by_attribute ? part_of(r, all.items[i], args->items[0], none) : all.items[i];
        int holds = has_test ? sl_j_test(r, sl_j_string_arg(b, "select", args->items[skip]), v, &rest) : sl_j_true(b, v);
        if (holds == e->keep) sl_j_push(b, &e->made, all.items[i]);
    }
}

static void do_each(void *ctx) {
    each *e = ctx;
    e->is_map ? map_elements(e) : select_elements(e);
}

static j_value each_element(j_run *r, j_value v, const j_args *args, int is_map, int by_attribute, int keep) {
    j_base *b = &r->base;
    each e = {.r = r, .source = v, .args = args, .by_attribute = by_attribute, .keep = keep, .is_map = is_map};
    j_scope *scope = r->scope;
    j_buffer *out = r->out;
    int failed = sl_j_true(b, v) && sl_j_try(b, do_each, &e);
    r->scope = scope;
    r->out = out;
    j_value it = sl_j_iterator(b, e.made);
    if (failed) {
        if (b->code != SL_ERR_ARG) sl_j_fail(b, b->code, "%s", strdupa(b->text));
        it.iterator->failed = sl_j_string(b, b->text, strlen(b->text) + 1)->s;
        it.iterator->code = b->code;
    }
    return it;
}

static j_value f_map(j_run *r, j_value v, const j_args *args) {
    return each_element(r, v, args, 1, 0, 0);
}
static j_value f_select(j_run *r, j_value v, const j_args *args) {
    return each_element(r, v, args, 0, 0, 1);
}
static j_value f_reject(j_run *r, j_value v, const j_args *args) {
    return each_element(r, v, args, 0, 0, 0);
}
static j_value f_selectattr(j_run *r, j_value v, const j_args *args) {
    return each_element(r, v, args, 0, 1, 1);
}
static j_value f_rejectattr(j_run *r, j_value v, const j_args *args) {
    return each_element(r, v, args, 0, 1, 0);
}

// ---- the table ----

static const struct {
    const char *name;
    filter_fn fn; // NULL: Jinja has it, Sleigh does not
} filters[] = {
    {"abs", f_abs},           {"attr", f_attr},
    {"batch", f_batch},       {"capitalize", f_capitalize},
    {"center", f_center},     {"count", f_length},
    {"d", f_default},         {"default", f_default},
    {"dictsort", f_dictsort}, {"e", f_escape},
    {"escape", f_escape},     {"filesizeformat", NULL},
    {"first", f_first},       {"float", f_float},
    {"forceescape", NULL},    {"format", f_format},
    {"groupby", NULL},        {"indent", f_indent},
    {"int", f_int},           {"items", f_items},
    {"join", f_join},         {"last", f_last},
    {"length", f_length},     {"list", f_list},
    {"lower", f_lower},       {"map", f_map},
    {"max", f_max},           {"min", f_min},
    {"pprint", NULL},         {"random", NULL},
    {"reject", f_reject},     {"rejectattr", f_rejectattr},
    {"replace", f_replace},   {"reverse", f_reverse},
    {"round", f_round},       {"safe", f_safe},
    {"select", f_select},     {"selectattr", f_selectattr},
    {"slice", f_slice},       {"sort", f_sort},
    {"string", f_string},     {"striptags", NULL},
    {"sum", f_sum},           {"title", f_title},
    {"tojson", f_tojson},     {"trim", f_trim},
    {"truncate", f_truncate}, {"unique", f_unique},
    {"upper", f_upper},       {"urlencode", NULL},
    {"urlize", NULL},         {"wordcount", f_wordcount},
    {"wordwrap", NULL},       {"xmlattr", NULL},
};

j_value sl_j_filter(j_run *r, const j_string *name, j_value v, const j_args *args) {
    j_base *b = &r->base;
    sl_j_step(b, 1);
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++) {
        if (!sl_j_equals(name, filters[i].name)) continue;
        if (!filters[i].fn) sl_j_fail(b, SL_ERR_UNSUPPORTED, "the filter '%s' is not supported", filters[i].name);
        sl_j_enter(b);
        j_value made = filters[i].fn(r, v, args);
        sl_j_leave(b);
        return made;
    }
    sl_j_fail(b, SL_ERR_ARG, "No filter named '%.*s'.", (int)(name->n < 100 ? name->n : 100), name->s);
}
