// tokenizer/json_part.c - see json_part.h.
#include "tokenizer/json_part.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_DEPTH = 8 }; // of Sequences in Sequences

const char *sl_part_type(const sl_part *p) {
    const char *s = json_string_value(sl_json_get(p->v, "type"));
    return s ? s : "(none)";
}

int sl_part_is(const sl_part *p, const char *type) {
    return !strcmp(sl_part_type(p), type);
}

int sl_part_refuse(const sl_part *p, const char *why) {
    return sl_fail(p->err, SL_ERR_UNSUPPORTED, "%s: field %s: type %.60s: %s", p->path, p->field, sl_part_type(p), why);
}

int sl_part_flag(const sl_part *p, const char *name, int def, int *out) {
    return sl_json_bool(&(sl_json_file){p->path, (json_t *)p->v}, name, def, out, p->err);
}

int sl_part_list(const sl_part *p, const char *name, const json_t **out) {
    *out = sl_json_get(p->v, name);
    if (!*out || json_is_array(*out)) return 0;
    return sl_fail(p->err, SL_ERR_FORMAT, "%s: field %s is %s, expected a list", p->path, name, sl_json_type(*out));
}

int sl_part_string(const sl_part *p, const char *name, const char **out) {
    return sl_json_string(&(sl_json_file){p->path, (json_t *)p->v}, name, out, p->err);
}

static int each(const sl_part *p, const char *list, sl_part_fn fn, void *ctx, int depth) {
    const json_t *parts;
    if (!sl_part_is(p, "Sequence")) return fn(ctx, p);
    if (depth == MOST_DEPTH) return sl_part_refuse(p, "too many levels");
    int rc = sl_part_list(p, list, &parts);
    for (size_t i = 0; !rc && i < json_array_size(parts); i++)
        rc = each(&(sl_part){p->path, p->field, json_array_get(parts, i), p->err}, list, fn, ctx, depth + 1);
    return rc;
}

int sl_part_each(const sl_part *p, const char *list, sl_part_fn fn, void *ctx) {
    return p->v ? each(p, list, fn, ctx, 0) : 0;
}

int sl_part_finder(const sl_part *p, sl_finder *out) {
    const sl_part pattern = {p->path, "pattern", sl_json_get(p->v, "pattern"), p->err};
    const char *text, *regex;
    int rc = sl_part_string(&pattern, "String", &text);
    if (!rc) rc = sl_part_string(&pattern, "Regex", &regex);
    if (rc) return rc;
    if (!text == !regex || (text && !*text)) return sl_part_refuse(p, "expected a pattern with a String or a Regex, not empty");
    if (regex) return sl_pattern_new(p->path, regex, &out->regex, p->err);
    out->n = strlen(text);
    out->text = strdup(text);
    return out->text ? 0 : sl_fail(p->err, SL_ERR_MEMORY, "%s: out of memory", p->path);
}

int sl_added_flags(const char *path, const json_t *v, int special, sl_added *token, sl_error *err) {
    const sl_part p = {path, "added_tokens", v, err};
    int rc = sl_part_flag(&p, "special", special, &token->special);
    if (!rc) rc = sl_part_flag(&p, "normalized", !token->special, &token->normalized);
    if (!rc) rc = sl_part_flag(&p, "lstrip", 0, &token->lstrip);
    if (!rc) rc = sl_part_flag(&p, "rstrip", 0, &token->rstrip);
    return rc ? rc : sl_part_flag(&p, "single_word", 0, &token->single_word);
}
