// grammar/json_schema.c - reads JSON schemas. The texts of the grammar are texts of values that the schema allows, but not all
// of them: the properties of an object stand in the order of the schema, and an object with "properties" has no other
// properties unless "additionalProperties" says so. The reader refuses keywords that it does not know.
//
// The texts can also be the arguments of a call in Python, (a=1, b="x"), whose values are Python's literals. Then the outermost
// object has the properties that the schema names and no others, because Python allows no argument twice.
#include "grammar/grammar_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_REPEATED = 4096 }; // characters and items: a larger maximum becomes this one, if the minimum allows it

static sl_expr read_schema(sl_schema_reader *r, const json_t *schema);

static sl_expr read_part(sl_schema_reader *r, const char *part, const json_t *schema) {
    size_t before;
    sl_expr e = sl_schema_enter(r, part, &before) ? read_schema(r, schema) : 0;
    sl_schema_leave(r, before);
    return e;
}

static sl_expr nothing(sl_schema_reader *r) {
    return sl_expr_choice(r->b, NULL, 0);
}

static sl_expr as_rule(sl_schema_reader *r, sl_expr e) {
    int rule = sl_builder_rule(r->b, r->path.n ? r->path.data : "/", r->path.n ? r->path.n : 1);
    sl_builder_define(r->b, rule, e);
    return sl_expr_rule(r->b, rule);
}

// The value of a keyword; NULL: it is not there, or an error.
static const json_t *get(sl_schema_reader *r, const json_t *schema, const char *keyword, json_type type, const char *expected) {
    const json_t *v = json_object_get(schema, keyword);
    if (!v || json_typeof(v) == type) return v;
    sl_schema_refuse(r, SL_ERR_FORMAT, "%s is %s, expected %s", keyword, sl_json_type(v), expected);
    return NULL;
}

static int get_count(sl_schema_reader *r, const json_t *schema, const char *keyword, int missing) {
    const json_t *v = json_object_get(schema, keyword);
    double x = json_number_value(v);
    if (!v) return missing;
    if (!json_is_number(v) || x < 0 || x != floor(x))
        return sl_schema_refuse(r, SL_ERR_FORMAT, "%s is %s, expected an integer of 0 or more", keyword,
                                json_is_number(v) ? "below 0 or no integer" : sl_json_type(v));
    return x > SL_GRAMMAR_MOST_NODES ? SL_GRAMMAR_MOST_NODES : (int)x;
}

static int most_repeated(int min, int max) {
    int most = min > MOST_REPEATED ? min : MOST_REPEATED;
    return max > most ? most : max;
}

// ---- strings and numbers ----

static const struct {
    const char *name, *regex;
} formats[] = {
#define DATE                                                                                                                   \
    "[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]" \
    "|2[0-8]))"
#define TIME "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define LABEL "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,30}[a-zA-Z0-9])?"
#define BYTE "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "T" TIME},
    {"duration", "P(?:[0-9]{1,4}W|(?:[0-9]{1,4}Y(?:[0-9]{1,4}M(?:[0-9]{1,4}D)?)?|[0-9]{1,4}M(?:[0-9]{1,4}D)?|[0-9]{1,4}D)"
                 "(?:T[0-9]{1,4}H)?|T(?:[0-9]{1,4}H(?:[0-9]{1,4}M(?:[0-9]{1,4}S)?)?|[0-9]{1,4}M(?:[0-9]{1,4}S)?|[0-9]{1,4}S))"},
    {"uuid", "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"},
    {"email", "[a-zA-Z0-9_+-]{1,30}(?:\\.[a-zA-Z0-9_+-]{1,30}){0,3}@" LABEL "(?:\\." LABEL "){1,4}"},
    {"hostname", LABEL "(?:\\." LABEL "){0,5}"},
    {"ipv4", BYTE "(?:\\." BYTE "){3}"},
    {"ipv6", "[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{1,4}){7}"},
    {"uri", "[a-zA-Z][a-zA-Z0-9+.-]{0,15}://" LABEL "(?:\\." LABEL "){0,5}(?::[1-9][0-9]{0,3})?"
            "(?:/[a-zA-Z0-9._~!$&'()*+,;=:@-]*)*(?:\\?[a-zA-Z0-9._~!$&'()*+,;=:@/-]*)?"},
};

static sl_expr read_format(sl_schema_reader *r, const char *name) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (!strcmp(formats[i].name, name))
            return sl_regex_read(r->b, name, formats[i].regex, strlen(formats[i].regex), sl_expr_json_class, 0);
    return sl_schema_refuse(
        r, SL_ERR_UNSUPPORTED,
        "format \"%.100s\" is not supported, expected date, time, date-time, duration, uuid, email, hostname, "
        "ipv4, ipv6 or uri",
        name);
}

static sl_expr read_pattern(sl_schema_reader *r, const json_t *pattern) {
    char what[200];
    snprintf(what, sizeof what, "%.50s#%.100s: pattern", r->what, r->path.n ? r->path.data : "");
    sl_builder_enter(r->b, what);
    return sl_builder_leave(
        r->b, sl_regex_read(r->b, what, json_string_value(pattern), json_string_length(pattern), sl_expr_json_class, 1));
}

static sl_expr read_string(sl_schema_reader *r, const json_t *schema) {
    const json_t *pattern = get(r, schema, "pattern", JSON_STRING, "a string"),
                 *format = get(r, schema, "format", JSON_STRING, "a string");
    int min = get_count(r, schema, "minLength", 0), max = get_count(r, schema, "maxLength", -1);
    sl_expr quote = SL_LITERAL(r->b, "\"");
    if (sl_builder_failed(r->b)) return 0;
    if ((pattern != NULL) + (format != NULL) + (min > 0 || max >= 0) > 1)
        return sl_schema_refuse(r, SL_ERR_UNSUPPORTED, "keyword \"%s\" beside \"%s\" is not supported",
                                pattern ? "pattern" : "format",
                                pattern && format ? "format"
                                : max >= 0        ? "maxLength"
                                                  : "minLength");
    if (pattern) return SL_SEQUENCE(r->b, quote, read_pattern(r, pattern), quote);
    if (format) return SL_SEQUENCE(r->b, quote, read_format(r, json_string_value(format)), quote);
    if (min == 0 && max < 0) return sl_expr_json_string(r->b, &r->rules);
    if (max >= 0 && max < min) return nothing(r);
    return SL_SEQUENCE(r->b, quote, sl_expr_repeat(r->b, sl_expr_json_character(r->b, &r->rules), min, most_repeated(min, max)),
                       quote);
}

static void read_bound(sl_schema_reader *r, const json_t *schema, const char *keyword, int is_exclusive, sl_bound *out) {
    const json_t *v = json_object_get(schema, keyword);
    *out = (sl_bound){0};
    if (!v) return;
    if (!json_is_number(v))
        sl_schema_refuse(r, SL_ERR_FORMAT, "%s is %s, expected a number", keyword, sl_json_type(v));
    else if (!sl_bound_read(v, out))
        sl_schema_refuse(r, SL_ERR_UNSUPPORTED, "%s: expected at most 18 digits before the point and 40 behind it", keyword);
    out->is_exclusive = is_exclusive;
}

static sl_expr read_number(sl_schema_reader *r, const json_t *schema, int is_integer) {
    sl_bound lo, hi, lo_exclusive, hi_exclusive;
    read_bound(r, schema, "minimum", 0, &lo), read_bound(r, schema, "maximum", 0, &hi);
    read_bound(r, schema, "exclusiveMinimum", 1, &lo_exclusive), read_bound(r, schema, "exclusiveMaximum", 1, &hi_exclusive);
    if (sl_builder_failed(r->b)) return 0;
    double min = json_number_value(json_object_get(schema, "minimum")),
           above = json_number_value(json_object_get(schema, "exclusiveMinimum"));
    double max = json_number_value(json_object_get(schema, "maximum")),
           below = json_number_value(json_object_get(schema, "exclusiveMaximum"));
    if (lo_exclusive.is_set && (!lo.is_set || above >= min)) lo = lo_exclusive;
    if (hi_exclusive.is_set && (!hi.is_set || below <= max)) hi = hi_exclusive;
    if (lo.is_set || hi.is_set) return sl_expr_json_range(r->b, &lo, &hi, is_integer);
    return is_integer ? sl_expr_json_integer(r->b, &r->rules) : sl_expr_json_number(r->b, &r->rules);
}

// ---- arrays ----

static sl_expr read_array(sl_schema_reader *r, const json_t *schema) {
    const json_t *first = get(r, schema, "prefixItems", JSON_ARRAY, "a list of schemas"),
                 *items = json_object_get(schema, "items");
    int min = get_count(r, schema, "minItems", 0), max = get_count(r, schema, "maxItems", -1),
        n_first = (int)json_array_size(first);
    sl_builder *b = r->b;
    if (json_is_array(items))
        return sl_schema_refuse(r, SL_ERR_UNSUPPORTED, "items is a list, which is not supported, expected prefixItems");
    if (sl_builder_failed(b) || (max >= 0 && max < min)) return nothing(r);
    if (!first) {
        sl_expr item = items ? as_rule(r, read_part(r, "items", items)) : sl_expr_json_value(b, &r->rules);
        return sl_expr_json_array(b, &r->rules, item, min, most_repeated(min, max));
    }
    // Built from the end: what may follow the items before.
    int is_open = items && !json_is_false(items), n_last = n_first;
    if (max >= 0 && max < n_first) n_last = max;
    sl_expr rest = sl_expr_literal(b, NULL, 0), comma = sl_expr_json_comma(b, &r->rules),
            space = sl_expr_json_space(b, &r->rules);
    if (is_open && (max < 0 || max > n_first)) {
        int least = min > n_first ? min - n_first : 0;
        sl_expr item = SL_SEQUENCE(b, comma, as_rule(r, read_part(r, "items", items)));
        rest = sl_expr_repeat(b, item, least, max < 0 ? -1 : most_repeated(least, max - n_first));
    } else if (min > n_last) {
        return nothing(r);
    }
    for (int i = n_last - 1; i >= 0; i--) {
        char part[32];
        snprintf(part, sizeof part, "prefixItems/%d", i);
        sl_expr item = read_part(r, part, json_array_get(first, (size_t)i));
        rest = sl_expr_repeat(b, SL_SEQUENCE(b, i > 0 ? comma : space, item, rest), i < min, 1);
        if (i > 0) rest = as_rule(r, rest); // so that expressions do not nest
    }
    return SL_SEQUENCE(b, SL_LITERAL(b, "["), rest, space, SL_LITERAL(b, "]"));
}

// ---- objects ----

typedef struct members {
    sl_ids pairs, required; // [n] "name": value; 1: it must be there
    sl_expr others;         // pairs of other names, each behind a comma; nothing but the empty text: there are none
    sl_expr other;          // the first of them
} members;

// The text of a member before its value.
static sl_expr read_name(sl_schema_reader *r, const char *name) {
    static const char word[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
    if (!r->as_arguments) {
        json_t *text = json_string(name);
        if (!text) sl_schema_refuse(r, SL_ERR_MEMORY, "out of memory");
        sl_expr key = text ? sl_expr_json_constant(r->b, &r->rules, text) : 0;
        json_decref(text);
        return SL_SEQUENCE(r->b, key, sl_expr_json_colon(r->b));
    }
    size_t n = strspn(name, word);
    if (!n || name[n] || (*name >= '0' && *name <= '9'))
        return sl_schema_refuse(r, SL_ERR_UNSUPPORTED,
                                "the name cannot be that of an argument in Python, expected letters, digits and _");
    return SL_SEQUENCE(r->b, sl_expr_literal(r->b, name, n), SL_LITERAL(r->b, "="));
}

static void add_member(sl_schema_reader *r, members *m, const char *name, const json_t *schema, int is_required) {
    size_t before;
    int is_open = sl_schema_enter(r, name, &before), as_arguments = r->as_arguments;
    sl_expr key = is_open ? read_name(r, name) : 0;
    r->as_arguments = 0;
    sl_expr value = is_open ? read_schema(r, schema) : 0;
    r->as_arguments = as_arguments;
    if (is_open) {
        // A pair can occur twice in the grammar: as the first one, and behind a comma.
        sl_parts_push(r->b, &m->pairs, as_rule(r, SL_SEQUENCE(r->b, key, value)));
        sl_parts_push(r->b, &m->required, is_required);
    }
    sl_schema_leave(r, before);
}

static int is_required(const json_t *required, const char *name) {
    size_t i;
    json_t *v;
    json_array_foreach((json_t *)required, i, v) {
        if (json_is_string(v) && !strcmp(json_string_value(v), name)) return 1;
    }
    return 0;
}

// Other properties than those of names[n].
static void read_others(sl_schema_reader *r, members *m, const json_t *more, const char *const *names, size_t n) {
    sl_builder *b = r->b;
    sl_expr value = read_part(r, "additionalProperties", more);
    sl_expr name = n ? sl_expr_json_other_string(b, names, n) : sl_expr_json_string(b, &r->rules);
    m->other = as_rule(r, SL_SEQUENCE(b, name, sl_expr_json_colon(b), value));
    m->others = sl_expr_repeat(b, SL_SEQUENCE(b, sl_expr_json_comma(b, &r->rules), m->other), 0, -1);
}

static void read_members(sl_schema_reader *r, const json_t *schema, members *m) {
    const json_t *properties = get(r, schema, "properties", JSON_OBJECT, "an object"),
                 *more = json_object_get(schema, "additionalProperties");
    const json_t *required = get(r, schema, "required", JSON_ARRAY, "a list of strings");
    const char *name;
    json_t *v;
    size_t i, n = 0, n_most = json_object_size(properties) + json_array_size(required);
    const char **names = malloc((n_most + 1) * sizeof *names);
    if (!names) sl_builder_fail(r->b, sl_fail(sl_builder_error(r->b), SL_ERR_MEMORY, "a schema: out of memory"));
    json_object_foreach((json_t *)properties, name, v) {
        if (sl_builder_failed(r->b)) break;
        add_member(r, m, name, v, is_required(required, name));
        names[n++] = name;
    }
    json_array_foreach((json_t *)required, i, v) {
        name = json_string_value(v);
        if (!name) sl_schema_refuse(r, SL_ERR_FORMAT, "required[%zu] is %s, expected a string", i, sl_json_type(v));
        if (sl_builder_failed(r->b)) break;
        int is_known = json_object_get(properties, name) != NULL;
        for (size_t k = json_object_size(properties); k < n; k++) is_known |= !strcmp(names[k], name);
        if (is_known) continue;
        add_member(r, m, name, more ? more : json_true(), 1);
        names[n++] = name;
    }
    if (!sl_builder_failed(r->b) && !r->as_arguments && (more ? !json_is_false(more) : !properties))
        read_others(r, m, more ? more : json_true(), names, n);
    free(names);
}

static sl_expr read_object(sl_schema_reader *r, const json_t *schema) {
    sl_builder *b = r->b;
    members m = {.other = -1};
    sl_ids firsts = {0}, tail = {0};
    m.others = sl_expr_literal(b, NULL, 0);
    read_members(r, schema, &m);
    if (sl_builder_failed(b)) return sl_ids_free(&m.pairs), sl_ids_free(&m.required), 0;
    size_t n = m.pairs.n, n_optional = 0; // optional pairs before the first one that must be there
    while (n_optional < n && !m.required.data[n_optional]) n_optional++;
    sl_expr comma = sl_expr_json_comma(b, &r->rules), space = sl_expr_json_space(b, &r->rules);
    for (size_t i = n_optional + 1; i < n; i++)
        sl_parts_push(r->b, &tail, sl_expr_repeat(b, SL_SEQUENCE(b, comma, m.pairs.data[i]), m.required.data[i], 1));
    sl_parts_push(r->b, &tail, m.others);
    sl_expr rest = sl_parts_sequence(b, &tail); // behind the pair that must be there, or behind the last pair
    int has_required = n_optional < n;
    if (has_required) sl_parts_push(r->b, &firsts, SL_SEQUENCE(b, m.pairs.data[n_optional], rest));
    if (!has_required && m.other >= 0) sl_parts_push(r->b, &firsts, SL_SEQUENCE(b, m.other, m.others));
    if (has_required && n_optional > 0) rest = SL_SEQUENCE(b, comma, m.pairs.data[n_optional], rest);
    for (size_t i = n_optional; i-- > 0;) { // each optional pair may be the first one
        rest = as_rule(r, rest);
        sl_parts_push(r->b, &firsts, SL_SEQUENCE(b, m.pairs.data[i], rest));
        rest = SL_SEQUENCE(b, sl_expr_repeat(b, SL_SEQUENCE(b, comma, m.pairs.data[i]), 0, 1), rest);
    }
    sl_expr inner = sl_expr_repeat(b, SL_SEQUENCE(b, space, sl_parts_choice(b, &firsts)), has_required, 1);
    sl_ids_free(&m.pairs), sl_ids_free(&m.required);
    const char *brackets = r->as_arguments ? "()" : "{}";
    return SL_SEQUENCE(b, sl_expr_literal(b, brackets, 1), inner, space, sl_expr_literal(b, brackets + 1, 1));
}

// ---- schemas ----

static sl_expr read_enum(sl_schema_reader *r, const json_t *schema, const json_t *values, int types) {
    const char *keyword;
    json_t *v;
    size_t i;
    sl_ids parts = {0};
    json_object_foreach((json_t *)schema, keyword, v) {
        int is_read = !strcmp(keyword, "enum") || !strcmp(keyword, "const") || !strcmp(keyword, "type");
        if (!is_read && !sl_schema_is_annotation(r, keyword))
            return sl_schema_refuse(r, SL_ERR_UNSUPPORTED, "keyword \"%.100s\" beside \"enum\" or \"const\" is not supported",
                                    keyword);
    }
    const json_t *only = json_object_get(schema, "const");
    json_array_foreach((json_t *)values, i, v) {
        if ((types & sl_schema_type_of(v)) && (!only || json_equal((json_t *)only, v)))
            sl_parts_push(r->b, &parts, sl_expr_json_constant(r->b, &r->rules, v));
    }
    return sl_parts_choice(r->b, &parts);
}

static sl_expr read_types(sl_schema_reader *r, const json_t *schema) {
    int written;
    sl_ids parts = {0};
    sl_builder *b = r->b;
    sl_schema_types(r, schema, &written);
    const json_t *values = get(r, schema, "enum", JSON_ARRAY, "a list"), *value = json_object_get(schema, "const");
    if (r->as_arguments && (values || value))
        return sl_schema_refuse(r, SL_ERR_UNSUPPORTED, "keyword \"%s\" is not supported for all arguments of a call in Python",
                                values ? "enum" : "const");
    if (r->as_arguments) return written & SL_OBJECT ? read_object(r, schema) : nothing(r);
    if (values) return read_enum(r, schema, values, written);
    if (value) {
        json_t *list = json_pack("[O]", value);
        sl_expr e = read_enum(r, schema, list, written);
        json_decref(list);
        return e;
    }
    if (written & SL_OBJECT) sl_parts_push(r->b, &parts, read_object(r, schema));
    if (written & SL_ARRAY) sl_parts_push(r->b, &parts, read_array(r, schema));
    if (written & SL_STRING) sl_parts_push(r->b, &parts, read_string(r, schema));
    if (written & (SL_INTEGER | SL_FRACTION)) sl_parts_push(r->b, &parts, read_number(r, schema, !(written & SL_FRACTION)));
    if (written & SL_BOOLEAN) sl_parts_push(r->b, &parts, sl_expr_json_boolean(b, &r->rules));
    if (written & SL_NULL) sl_parts_push(r->b, &parts, sl_expr_json_null(b, &r->rules));
    return sl_parts_choice(r->b, &parts);
}

static sl_expr read_ref(sl_schema_reader *r, const json_t *ref) {
    const json_t *target = sl_schema_resolve(r, ref), *known;
    if (!target) return 0;
    if ((known = json_object_get(r->refs, json_string_value(ref)))) return sl_expr_rule(r->b, (int)json_integer_value(known));
    int rule = sl_builder_rule(r->b, json_string_value(ref), json_string_length(ref));
    if (json_object_set_new(r->refs, json_string_value(ref), json_integer(rule)))
        sl_builder_fail(r->b, sl_fail(sl_builder_error(r->b), SL_ERR_MEMORY, "a schema: out of memory"));
    sl_text path = r->path; // the rule's place is the target
    r->path = (sl_text){0};
    const char *pointer = json_string_value(ref) + 1;
    if (sl_text_append(&r->path, pointer, strlen(pointer), sl_builder_error(r->b))) sl_builder_fail(r->b, SL_ERR_MEMORY);
    if (++r->depth > SL_GRAMMAR_MOST_NESTING)
        sl_schema_refuse(r, SL_ERR_UNSUPPORTED, "more than %d nested schemas", SL_GRAMMAR_MOST_NESTING);
    sl_builder_define(r->b, rule, sl_builder_failed(r->b) ? 0 : read_schema(r, target));
    r->depth--;
    sl_text_free(&r->path);
    r->path = path;
    return sl_expr_rule(r->b, rule);
}

// anyOf or oneOf: one of the branches, each merged with the keywords beside it.
static sl_expr read_branches(sl_schema_reader *r, const json_t *schema, const char *keyword, int has_others) {
    const json_t *branches = get(r, schema, keyword, JSON_ARRAY, "a list of schemas");
    sl_ids parts = {0};
    json_t *x, *y;
    size_t i, k;
    json_array_foreach((json_t *)branches, i, x) {
        char part[40];
        size_t before;
        snprintf(part, sizeof part, "%s/%zu", keyword, i);
        if (!sl_schema_enter(r, part, &before)) return sl_ids_free(&parts), 0;
        for (k = 0; k < i && !strcmp(keyword, "oneOf"); k++) {
            y = json_array_get(branches, k);
            if (!sl_schema_are_disjoint(r, x, y))
                sl_schema_refuse(r, SL_ERR_UNSUPPORTED,
                                 "a value may fit oneOf/%zu too; oneOf is supported where types or constants "
                                 "tell its schemas apart, else write anyOf",
                                 k);
        }
        const json_t *branch = has_others ? sl_schema_merge(r, schema, keyword, x) : x;
        sl_parts_push(r->b, &parts, branch && !sl_builder_failed(r->b) ? read_schema(r, branch) : 0);
        sl_schema_leave(r, before);
        if (sl_builder_failed(r->b)) return sl_ids_free(&parts), 0;
    }
    return sl_parts_choice(r->b, &parts);
}

static sl_expr read_schema(sl_schema_reader *r, const json_t *schema) {
    const char *keyword;
    json_t *v;
    int n = 0;
    if (sl_builder_failed(r->b)) return 0;
    if (json_is_true(schema) && !r->as_arguments) return sl_expr_json_value(r->b, &r->rules);
    if (json_is_false(schema)) return nothing(r);
    if (!json_is_object(schema))
        return sl_schema_refuse(r, SL_ERR_FORMAT, "the schema is %s, expected an object",
                                schema ? sl_json_type(schema) : "missing");
    json_object_foreach((json_t *)schema, keyword, v) n += !sl_schema_is_annotation(r, keyword);
    if (sl_builder_failed(r->b)) return 0;
    const json_t *ref = json_object_get(schema, "$ref");
    if (ref && n == 1 && r->as_arguments) return read_part(r, "$ref", sl_schema_resolve(r, ref)); // not as the rule of a value
    if (ref && n == 1) return read_ref(r, ref);
    if (ref || json_object_get(schema, "allOf")) {
        const json_t *merged = sl_schema_merge(r, schema, NULL, json_true());
        return merged ? read_schema(r, merged) : 0;
    }
    if (n == 0 && !r->as_arguments) return sl_expr_json_value(r->b, &r->rules);
    if (json_object_get(schema, "anyOf")) return read_branches(r, schema, "anyOf", n > 1);
    if (json_object_get(schema, "oneOf")) return read_branches(r, schema, "oneOf", n > 1);
    return read_types(r, schema);
}

sl_expr sl_schema_read(sl_builder *b, const char *what, const json_t *schema, int as_arguments) {
    sl_schema_reader r = {.b = b,
                          .what = what,
                          .root = schema,
                          .made = json_array(),
                          .refs = json_object(),
                          .as_arguments = as_arguments,
                          .rules = SL_JSON_RULES_NONE};
    sl_expr e = 0;
    r.rules.is_python = as_arguments;
    if (!r.made || !r.refs)
        sl_builder_fail(b, sl_fail(sl_builder_error(b), SL_ERR_MEMORY, "a schema: out of memory"));
    else
        e = read_schema(&r, schema);
    json_decref(r.made), json_decref(r.refs);
    sl_text_free(&r.path);
    return e;
}

int sl_grammar_new_schema(const json_t *schema, sl_grammar **out, sl_error *err) {
    sl_builder *b;
    *out = NULL;
    int rc = sl_builder_new(&b, err);
    return rc ? rc : sl_builder_finish_with(b, "schema", sl_schema_read(b, "schema", schema, 0), out);
}
