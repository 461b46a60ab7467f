// grammar/schema_merge.c - schemas as JSON values: references, the schema that two schemas make together, their types.
#include "grammar/grammar_internal.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

sl_expr sl_schema_refuse(sl_schema_reader *r, sl_err code, const char *fmt, ...) {
    char text[512];
    va_list ap;
    if (sl_builder_failed(r->b)) return 0;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return sl_builder_fail(
        r->b, sl_fail(sl_builder_error(r->b), code, "%.100s#%.300s: %s", r->what, r->path.n ? r->path.data : "", text));
}

static const json_t *out_of_memory(sl_schema_reader *r) {
    sl_schema_refuse(r, SL_ERR_MEMORY, "out of memory");
    return NULL;
}

int sl_schema_enter(sl_schema_reader *r, const char *part, size_t *before) {
    *before = r->path.n;
    if (sl_text_append(&r->path, "/", 1, sl_builder_error(r->b)) ||
        sl_text_append(&r->path, part, strlen(part), sl_builder_error(r->b)))
        sl_builder_fail(r->b, SL_ERR_MEMORY);
    if (++r->depth > SL_GRAMMAR_MOST_NESTING)
        sl_schema_refuse(r, SL_ERR_UNSUPPORTED, "more than %d nested schemas", SL_GRAMMAR_MOST_NESTING);
    return !sl_builder_failed(r->b);
}

void sl_schema_leave(sl_schema_reader *r, size_t before) {
    r->depth--;
    r->path.n = before;
    if (r->path.data) r->path.data[before] = 0;
}

// ---- keywords ----

static const struct {
    const char *name;
    int types; // what it restricts; 0: nothing; -1: it is no restriction of one type
} keywords[] = {
    {"type", -1},
    {"enum", -1},
    {"const", -1},
    {"anyOf", -1},
    {"oneOf", -1},
    {"allOf", -1},
    {"$ref", -1},
    {"properties", SL_OBJECT},
    {"required", SL_OBJECT},
    {"additionalProperties", SL_OBJECT},
    {"items", SL_ARRAY},
    {"prefixItems", SL_ARRAY},
    {"minItems", SL_ARRAY},
    {"maxItems", SL_ARRAY},
    {"minLength", SL_STRING},
    {"maxLength", SL_STRING},
    {"pattern", SL_STRING},
    {"format", SL_STRING},
    {"minimum", SL_INTEGER | SL_FRACTION},
    {"maximum", SL_INTEGER | SL_FRACTION},
    {"exclusiveMinimum", SL_INTEGER | SL_FRACTION},
    {"exclusiveMaximum", SL_INTEGER | SL_FRACTION},
    {"$defs", 0},
    {"definitions", 0},
    {"$schema", 0},
    {"$id", 0},
    {"$anchor", 0},
    {"$comment", 0},
    {"title", 0},
    {"description", 0},
    {"default", 0},
    {"example", 0},
    {"examples", 0},
    {"deprecated", 0},
    {"readOnly", 0},
    {"writeOnly", 0},
    {"contentEncoding", 0},
    {"contentMediaType", 0},
    {"contentSchema", 0},
    {"discriminator", 0},
};

static int types_of_keyword(const char *name) { // -2: unknown
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++)
        if (!strcmp(keywords[i].name, name)) return keywords[i].types;
    return strncmp(name, "x-", 2) ? -2 : 0;
}

int sl_schema_is_annotation(sl_schema_reader *r, const char *keyword) {
    int types = types_of_keyword(keyword);
    if (types == -2) sl_schema_refuse(r, SL_ERR_UNSUPPORTED, "keyword \"%.100s\" is not supported", keyword);
    return types == 0;
}

// ---- types ----

static const struct {
    const char *name;
    int types;
} type_names[] = {
    {"null", SL_NULL},     {"boolean", SL_BOOLEAN}, {"integer", SL_INTEGER}, {"number", SL_INTEGER | SL_FRACTION},
    {"string", SL_STRING}, {"array", SL_ARRAY},     {"object", SL_OBJECT},
};

int sl_schema_type_of(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return SL_OBJECT;
    case JSON_ARRAY:
        return SL_ARRAY;
    case JSON_STRING:
        return SL_STRING;
    case JSON_INTEGER:
        return SL_INTEGER;
    case JSON_REAL:
        return json_real_value(value) == floor(json_real_value(value)) ? SL_INTEGER : SL_FRACTION;
    case JSON_NULL:
        return SL_NULL;
    default:
        return SL_BOOLEAN;
    }
}

static int read_type(sl_schema_reader *r, const json_t *type) {
    const char *name = json_string_value(type);
    for (size_t i = 0; name && i < sizeof type_names / sizeof *type_names; i++)
        if (!strcmp(name, type_names[i].name)) return type_names[i].types;
    return (int)sl_schema_refuse(r, SL_ERR_FORMAT,
                                 "type is %s%.100s, expected null, boolean, integer, number, string, array or object",
                                 name ? "" : sl_json_type(type), name ? name : "");
}

int sl_schema_types(sl_schema_reader *r, const json_t *schema, int *written) {
    const json_t *type = json_object_get(schema, "type"), *values = json_object_get(schema, "enum"),
                 *value = json_object_get(schema, "const");
    int types = type ? 0 : SL_ANY, of_values = 0, of_keywords = 0;
    size_t i;
    json_t *v;
    const char *keyword;
    if (json_is_array(type))
        json_array_foreach((json_t *)type, i, v) types |= read_type(r, v);
    else if (type)
        types = read_type(r, type);
    json_array_foreach((json_t *)values, i, v) of_values |= sl_schema_type_of(v);
    if (value) of_values |= sl_schema_type_of(value);
    if (values || value) types &= of_values;
    json_object_foreach((json_t *)schema, keyword, v) {
        int known = types_of_keyword(keyword);
        if (known > 0) of_keywords |= known;
    }
    *written = type || values || value || !of_keywords ? types : of_keywords;
    return types;
}

// ---- references ----

// Undoes the escapes of a part of a JSON pointer: ~0 ~1 and %41.
static void unescape(char *s) {
    char *to = s;
    for (; *s; s++) {
        unsigned byte;
        if (*s == '%' && sscanf(s + 1, "%2x", &byte) == 1 && s[1] && s[2])
            *to++ = (char)byte, s += 2;
        else if (*s == '~' && (s[1] == '0' || s[1] == '1'))
            *to++ = *++s == '0' ? '~' : '/';
        else
            *to++ = *s;
    }
    *to = 0;
}

const json_t *sl_schema_resolve(sl_schema_reader *r, const json_t *ref) {
    const char *pointer = json_string_value(ref);
    const json_t *at = r->root;
    if (!pointer) return sl_schema_refuse(r, SL_ERR_FORMAT, "$ref is %s, expected a string", sl_json_type(ref)), NULL;
    if (pointer[0] != '#' || (pointer[1] && pointer[1] != '/'))
        return sl_schema_refuse(r, SL_ERR_UNSUPPORTED, "$ref \"%.100s\" is not supported, expected #/...", pointer), NULL;
    char *parts = strdup(pointer + 1), *rest = parts;
    if (!parts) return out_of_memory(r);
    while (at && rest && *rest) {
        char *part = ++rest;
        rest = strchr(part, '/');
        if (rest) *rest = 0;
        unescape(part);
        at = json_is_array(at) ? json_array_get(at, (size_t)strtoul(part, NULL, 10)) : json_object_get(at, part);
        if (rest) *rest = '/';
    }
    free(parts);
    if (!at) sl_schema_refuse(r, SL_ERR_FORMAT, "$ref \"%.100s\" names nothing in the schema", pointer);
    return at;
}

// ---- merging ----

typedef struct merging {
    sl_schema_reader *r;
    const json_t *a, *b; // without $ref, allOf, const
    json_t *out;
} merging;

enum { MOST_MADE = 1 << 16 };

static json_t *keep(sl_schema_reader *r, json_t *made) {
    if (json_array_size(r->made) >= MOST_MADE) {
        json_decref(made);
        return sl_schema_refuse(r, SL_ERR_UNSUPPORTED, "merging makes more than %d schemas", MOST_MADE), NULL;
    }
    if (!made || json_array_append_new(r->made, made)) return (json_t *)out_of_memory(r);
    return made;
}

static void set(merging *m, const char *keyword, const json_t *value) {
    if (value && json_object_set(m->out, keyword, (json_t *)value)) out_of_memory(m->r);
}

static const json_t *true_or(const json_t *schema) {
    return schema ? schema : json_true();
}

static const json_t *merge_plain(sl_schema_reader *r, const json_t *a, const json_t *b);

static const json_t *merge_part(merging *m, const char *part, const json_t *a, const json_t *b) {
    size_t before;
    const json_t *merged = sl_schema_enter(m->r, part, &before) ? sl_schema_merge(m->r, a, NULL, b) : NULL;
    sl_schema_leave(m->r, before);
    return merged;
}

// A property that only one schema names must be one of the additional properties of the other one.
static void merge_properties(merging *m) {
    const json_t *pa = json_object_get(m->a, "properties"), *pb = json_object_get(m->b, "properties");
    const json_t *more_a = json_object_get(m->a, "additionalProperties"),
                 *more_b = json_object_get(m->b, "additionalProperties");
    const char *name;
    json_t *p;
    if (pa || pb) set(m, "properties", keep(m->r, json_object()));
    json_t *out = json_object_get(m->out, "properties");
    json_object_foreach((json_t *)pa, name, p) {
        const json_t *other = json_object_get(pb, name);
        const json_t *merged = merge_part(m, name, p, true_or(other ? other : more_b));
        if (merged && json_object_set(out, name, (json_t *)merged)) out_of_memory(m->r);
    }
    json_object_foreach((json_t *)pb, name, p) {
        const json_t *merged = json_object_get(pa, name) ? NULL : merge_part(m, name, true_or(more_a), p);
        if (merged && json_object_set(out, name, (json_t *)merged)) out_of_memory(m->r);
    }
    if (more_a || more_b)
        set(m, "additionalProperties", merge_part(m, "additionalProperties", true_or(more_a), true_or(more_b)));
}

static void merge_items(merging *m) {
    const json_t *ia = json_object_get(m->a, "items"), *ib = json_object_get(m->b, "items");
    const json_t *la = json_object_get(m->a, "prefixItems"), *lb = json_object_get(m->b, "prefixItems");
    if ((la && (lb || ib)) || (lb && ia))
        sl_schema_refuse(m->r, SL_ERR_UNSUPPORTED,
                         "keyword \"prefixItems\" of one schema cannot be merged with lists of another");
    set(m, "prefixItems", la ? la : lb);
    if (ia && ib)
        set(m, "items", merge_part(m, "items", ia, ib));
    else
        set(m, "items", ia ? ia : ib);
}

static void merge_lists(merging *m) {
    const json_t *ra = json_object_get(m->a, "required"), *rb = json_object_get(m->b, "required");
    const json_t *ea = json_object_get(m->a, "enum"), *eb = json_object_get(m->b, "enum");
    set(m, "required", ra ? ra : rb);
    if (ra && rb) {
        json_t *both = keep(m->r, json_copy((json_t *)ra)); // a name twice does not matter
        if (both && json_array_extend(both, (json_t *)rb)) out_of_memory(m->r);
        set(m, "required", both);
    }
    set(m, "enum", ea ? ea : eb);
    if (ea && eb) {
        json_t *both = keep(m->r, json_array()), *x, *y;
        size_t i, k;
        json_array_foreach((json_t *)ea, i, x) {
            int is_common = 0;
            json_array_foreach((json_t *)eb, k, y) is_common |= json_equal(x, y);
            if (is_common && json_array_append(both, x)) out_of_memory(m->r);
        }
        set(m, "enum", both);
    }
}

static void merge_types(merging *m) {
    int written, a = sl_schema_types(m->r, m->a, &written), b = sl_schema_types(m->r, m->b, &written);
    if (!json_object_get(m->a, "type") && !json_object_get(m->b, "type")) return;
    json_t *types = keep(m->r, json_array());
    for (size_t i = 0; i < sizeof type_names / sizeof *type_names; i++) {
        int common = a & b & type_names[i].types;
        if (type_names[i].types == SL_INTEGER && (a & b & SL_FRACTION)) common = 0; // "number" follows
        if (type_names[i].types == (SL_INTEGER | SL_FRACTION)) common &= SL_FRACTION;
        if (common && json_array_append_new(types, json_string(type_names[i].name))) out_of_memory(m->r);
    }
    set(m, "type", types);
}

static void merge_limits(merging *m) {
    static const struct {
        const char *name;
        int is_least; // the larger one counts
    } limits[] = {{"minItems", 1}, {"maxItems", 0}, {"minLength", 1},        {"maxLength", 0},
                  {"minimum", 1},  {"maximum", 0},  {"exclusiveMinimum", 1}, {"exclusiveMaximum", 0}};
    static const char *const equals[] = {"pattern", "format"}, *const singles[] = {"anyOf", "oneOf"};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        const json_t *a = json_object_get(m->a, limits[i].name), *b = json_object_get(m->b, limits[i].name);
        int is_a_larger = a && b && json_number_value(a) > json_number_value(b);
        set(m, limits[i].name, !b || (a && is_a_larger == limits[i].is_least) ? a : b);
    }
    for (size_t i = 0; i < 2; i++) {
        const json_t *a = json_object_get(m->a, equals[i]), *b = json_object_get(m->b, equals[i]);
        if (a && b && !json_equal((json_t *)a, (json_t *)b))
            sl_schema_refuse(m->r, SL_ERR_UNSUPPORTED, "keyword \"%s\" of two schemas cannot be merged", equals[i]);
        set(m, equals[i], a ? a : b);
    }
    for (size_t i = 0; i < 2; i++) {
        const json_t *a = json_object_get(m->a, singles[i]), *b = json_object_get(m->b, singles[i]);
        if (a && b) sl_schema_refuse(m->r, SL_ERR_UNSUPPORTED, "keyword \"%s\" of two schemas cannot be merged", singles[i]);
        set(m, singles[i], a ? a : b);
    }
}

static const json_t *merge_plain(sl_schema_reader *r, const json_t *a, const json_t *b) {
    if (json_is_true(a) || json_is_false(b)) return b;
    if (json_is_true(b) || json_is_false(a)) return a;
    merging m = {.r = r, .a = a, .b = b, .out = keep(r, json_object())};
    if (!m.out) return NULL;
    merge_types(&m);
    merge_properties(&m);
    merge_items(&m);
    merge_lists(&m);
    merge_limits(&m);
    return sl_builder_failed(r->b) ? NULL : m.out;
}

// A schema without $ref, allOf, const and annotations at its top.
static const json_t *simplify(sl_schema_reader *r, const json_t *schema, const char *without) {
    const json_t *ref = NULL, *all = NULL, *merged;
    const char *keyword;
    json_t *v, *out, *values;
    size_t i, before;
    if (json_is_boolean(schema)) return schema;
    if (!json_is_object(schema))
        return sl_schema_refuse(r, SL_ERR_FORMAT, "the schema is %s, expected an object", sl_json_type(schema)), NULL;
    out = keep(r, json_object());
    json_object_foreach((json_t *)schema, keyword, v) {
        if (!out || sl_builder_failed(r->b)) return NULL;
        if (sl_schema_is_annotation(r, keyword) || (without && !strcmp(keyword, without))) continue;
        if (!strcmp(keyword, "$ref"))
            ref = v;
        else if (!strcmp(keyword, "allOf"))
            all = v;
        else if (strcmp(keyword, "const") && json_object_set(out, keyword, v))
            return out_of_memory(r);
    }
    merged = out;
    if ((v = json_object_get(schema, "const")) && (!without || strcmp(without, "const"))) {
        values = keep(r, json_pack("{s:[O]}", "enum", v));
        merged = values ? merge_plain(r, merged, values) : NULL;
    }
    if (all && !json_is_array(all))
        return sl_schema_refuse(r, SL_ERR_FORMAT, "allOf is %s, expected a list", sl_json_type(all)), NULL;
    if (!sl_schema_enter(r, ref ? "$ref" : "allOf", &before)) merged = NULL;
    const json_t *target = ref && merged ? sl_schema_resolve(r, ref) : NULL;
    if (ref) merged = target ? sl_schema_merge(r, target, NULL, merged) : NULL;
    json_array_foreach((json_t *)all, i, v) merged = merged ? sl_schema_merge(r, merged, NULL, v) : NULL;
    sl_schema_leave(r, before);
    return sl_builder_failed(r->b) ? NULL : merged;
}

const json_t *sl_schema_merge(sl_schema_reader *r, const json_t *a, const char *without, const json_t *b) {
    const json_t *x = simplify(r, a, without), *y = x ? simplify(r, b, NULL) : NULL;
    return y ? merge_plain(r, x, y) : NULL;
}

// ---- schemas without a common value ----

static int is_in(const json_t *list, const json_t *value) {
    size_t i;
    json_t *v;
    json_array_foreach((json_t *)list, i, v) {
        if (json_equal(v, (json_t *)value)) return 1;
        if (json_is_number(v) && json_is_number(value) && json_number_value(v) == json_number_value(value)) return 1;
    }
    return 0;
}

static int have_no_common_value(const json_t *a, const json_t *b) {
    size_t i;
    json_t *v;
    json_array_foreach((json_t *)a, i, v) {
        if (is_in(b, v)) return 0;
    }
    return 1;
}

int sl_schema_are_disjoint(sl_schema_reader *r, const json_t *a, const json_t *b) {
    int a_written, b_written;
    const char *name;
    json_t *p;
    size_t before;
    const json_t *x = simplify(r, a, NULL), *y = x ? simplify(r, b, NULL) : NULL;
    if (!y) return 0;
    if (json_is_false(x) || json_is_false(y)) return 1;
    int a_types = sl_schema_types(r, x, &a_written), b_types = sl_schema_types(r, y, &b_written);
    int common = (a_types & b_written) | (b_types & a_written);
    const json_t *ea = json_object_get(x, "enum"), *eb = json_object_get(y, "enum");
    if (!common || (ea && eb && have_no_common_value(ea, eb))) return 1;
    if (common != SL_OBJECT) return 0;
    json_object_foreach(json_object_get(x, "properties"), name, p) {
        const json_t *other = json_object_get(json_object_get(y, "properties"), name);
        json_t *text = json_string(name);
        int both = text && other && is_in(json_object_get(x, "required"), text) && is_in(json_object_get(y, "required"), text);
        json_decref(text);
        if (!both) continue;
        int are = sl_schema_enter(r, name, &before) && sl_schema_are_disjoint(r, p, other);
        sl_schema_leave(r, before);
        if (are) return 1;
    }
    return 0;
}
