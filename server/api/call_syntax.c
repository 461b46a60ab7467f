// server/api/call_syntax.c - see call_syntax.h.
#include "server/api/call_syntax.h"

#include <stdlib.h>
#include <string.h>

int api_nesting_next(api_nesting *s, char c) {
    if (s->quote) {
        if (s->escaped)
            s->escaped = 0;
        else if (c == '\\')
            s->escaped = 1;
        else if (c == s->quote)
            s->quote = 0;
        return 0;
    }
    if (c == '"' || c == '\'') s->quote = c;
    if (c == '{' || c == '[' || c == '(') s->depth++;
    return (c == '}' || c == ']' || c == ')') && --s->depth <= 0;
}

// ---- lists of calls ----

void api_calls_free(api_calls *calls) {
    for (size_t i = 0; i < calls->n; i++) {
        free(calls->items[i].name);
        sl_text_free(&calls->items[i].arguments);
    }
    free(calls->items);
    *calls = (api_calls){0};
}

int api_calls_add(api_calls *calls, const char *name, size_t n_name, const char *arguments, size_t n, sl_error *err) {
    api_call *grown = realloc(calls->items, (calls->n + 1) * sizeof *grown);
    if (!grown) return sl_fail(err, SL_ERR_MEMORY, "calls: out of memory");
    calls->items = grown;
    api_call *call = &grown[calls->n];
    *call = (api_call){.name = strndup(name, n_name)};
    calls->n++;
    if (!call->name) return sl_fail(err, SL_ERR_MEMORY, "calls: out of memory");
    return sl_text_append(&call->arguments, arguments, n, err);
}

// ---- JSON ----

// The text of the member `key` of the object that begins at text, which is valid JSON. n_out 0: there is none.
static const char *member_text(const char *text, size_t n, const char *key, size_t *n_out) {
    size_t i = 1, n_key = strlen(key);
    *n_out = 0;
    while (i < n && text[i] != '}') {
        while (i < n && text[i] != '"') i++;
        size_t from = ++i;
        for (; i < n && text[i] != '"'; i++) i += text[i] == '\\';
        int is_key = i - from == n_key && !memcmp(text + from, key, n_key);
        while (i < n && text[i] != ':') i++;
        for (i++; i < n && api_is_blank(text[i]);) i++;
        size_t value = i;
        api_nesting s = {0};
        for (; i < n; i++) {
            if (!s.depth && !s.quote && (text[i] == ',' || text[i] == '}')) break;
            api_nesting_next(&s, text[i]);
        }
        if (is_key) {
            *n_out = i - value;
            while (*n_out && api_is_blank(text[value + *n_out - 1])) --*n_out;
            return text + value;
        }
        if (i < n && text[i] == ',') i++;
    }
    return NULL;
}

// text: that of `object`
static int call_of_object(const json_t *object, const char *text, size_t n, api_calls *calls, int *is_call, sl_error *err) {
    const json_t *name = json_object_get(object, "name"), *arguments = json_object_get(object, "arguments");
    const char *key = arguments ? "arguments" : "parameters";
    if (!arguments) arguments = json_object_get(object, key);
    size_t n_arguments = 0;
    const char *written = json_is_object(arguments) ? member_text(text, n, key, &n_arguments) : NULL;
    *is_call = json_is_string(name) && json_string_length(name) > 0 &&
               (json_is_object(arguments) ? written != NULL : !arguments || json_is_null(arguments));
    if (!*is_call) return 0;
    return api_calls_add(calls, json_string_value(name), json_string_length(name), written ? written : "{}",
                         written ? n_arguments : 2, err);
}

// The end of the value that begins at text + i.
static size_t value_end(const char *text, size_t i, size_t n) {
    api_nesting s = {0};
    while (i < n && !api_nesting_next(&s, text[i])) i++;
    return i < n ? i + 1 : n;
}

static int calls_of_list(const json_t *list, const char *text, size_t n, api_calls *calls, int *is_call, sl_error *err) {
    int rc = 0;
    *is_call = json_array_size(list) > 0;
    size_t at = 1;
    for (size_t i = 0; !rc && *is_call && i < json_array_size(list); i++) {
        *is_call = json_is_object(json_array_get(list, i));
        while (*is_call && at < n && text[at] != '{') at++;
        size_t end = *is_call ? value_end(text, at, n) : n;
        if (*is_call) rc = call_of_object(json_array_get(list, i), text + at, end - at, calls, is_call, err);
        at = end;
    }
    return rc;
}

int api_calls_of_json(const char *text, size_t n, api_calls *calls, int *is_call, sl_error *err) {
    json_t *v = json_loadb(text, n, JSON_DECODE_INT_AS_REAL | JSON_REJECT_DUPLICATES, NULL);
    *is_call = 0;
    int rc = 0;
    while (n && api_is_blank(*text)) text++, n--;
    if (json_is_object(v)) rc = call_of_object(v, text, n, calls, is_call, err);
    if (json_is_array(v)) rc = calls_of_list(v, text, n, calls, is_call, err);
    json_decref(v);
    if (!*is_call) api_calls_free(calls);
    return rc;
}

size_t api_mistral_name(const char *s, size_t n) {
    static const char args[] = "[ARGS]", id[] = "[CALL_ID]";
    size_t length = 0, n_args = sizeof args - 1;
    while (length < n && s[length] != '[') length++;
    size_t rest = n - length;
    int has_args = rest >= n_args && !memcmp(s + n - n_args, args, n_args);
    int has_id = has_args && rest > n_args + sizeof id - 1 && !memcmp(s + length, id, sizeof id - 1);
    if (rest && !has_id && !(has_args && rest == n_args)) return 0;
    while (length && api_is_blank(s[length - 1])) length--;
    for (size_t i = 0; i < length; i++)
        if (s[i] <= ' ' || s[i] > '~') return 0; // blanks, other control characters, bytes of other alphabets
    return length;
}

static size_t skip_blanks(const char *text, size_t i, size_t n) {
    while (i < n && api_is_blank(text[i])) i++;
    return i;
}

// { "name": ..., and the other keys that models write first.
api_shape api_shape_of_json(const char *text, size_t n) {
    static const char *const keys[] = {"name\"", "arguments\"", "parameters\"", "type\"", "id\"", NULL};
    size_t i = 0;
    if (text[0] == '[') i = skip_blanks(text, 1, n);
    if (i >= n) return API_SHAPE_OPEN;
    if (text[i] != '{') return API_SHAPE_OTHER;
    i = skip_blanks(text, i + 1, n);
    if (i >= n) return API_SHAPE_OPEN;
    if (text[i++] != '"') return API_SHAPE_OTHER;
    for (const char *const *key = keys; *key; key++) {
        size_t whole = strlen(*key), m = whole < n - i ? whole : n - i;
        if (!memcmp(text + i, *key, m)) return m == whole ? API_SHAPE_CALL : API_SHAPE_OPEN;
    }
    return API_SHAPE_OTHER;
}
