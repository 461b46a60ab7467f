// server/api/python_calls.c - calls that a model writes as Python: [f(a=1, b="x"), g()]. Values are literals, which become
// JSON.
#include "base/utf8.h"
#include "server/api/call_syntax.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEEPEST = 1024 }; // nested brackets: as deep as the grammar of a forced call goes

typedef struct reader {
    const char *at, *end;
    sl_text *out; // the JSON text
    sl_error *err;
    int rc; // an error of memory
} reader;

static void put(reader *r, const char *s, size_t n) {
    if (!r->rc) r->rc = sl_text_append(r->out, s, n, r->err);
}

static void skip(reader *r) {
    while (r->at < r->end && api_is_blank(*r->at)) r->at++;
}

static int take(reader *r, char c) {
    skip(r);
    if (r->at == r->end || *r->at != c) return 0;
    r->at++;
    return 1;
}

static int is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static int is_digit(char c) {
    return c >= '0' && c <= '9';
}

// The name that s[0..n) begins with; 0: there is none. with_dots: the name of a function, which may have dots and minus signs
static size_t name_length(const char *s, size_t n, int with_dots) {
    size_t i = 0;
    while (i < n && (is_letter(s[i]) || (i && (is_digit(s[i]) || (with_dots && (s[i] == '.' || s[i] == '-')))))) i++;
    return i;
}

// ---- literals ----

static int read_value(reader *r, int depth);

static void put_code_point(reader *r, unsigned long c) {
    char json[16];
    if (c > 0xffff)
        put(r, json,
            (size_t)snprintf(json, sizeof json, "\\u%04lx\\u%04lx", 0xd800 + ((c - 0x10000) >> 10),
                             0xdc00 + ((c - 0x10000) & 0x3ff)));
    else
        put(r, json, (size_t)snprintf(json, sizeof json, "\\u%04lx", c));
}

static int read_hex(reader *r, int n_digits) {
    char digits[9] = {0}, *end;
    if (r->end - r->at < n_digits) return 0;
    memcpy(digits, r->at, (size_t)n_digits);
    unsigned long c = strtoul(digits, &end, 16);
    if (end != digits + n_digits || digits[0] == '-' || digits[0] == '+' || api_is_blank(digits[0])) return 0;
    if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return 0;
    put_code_point(r, c);
    r->at += n_digits;
    return 1;
}

// After a backslash. Python keeps the backslash of an escape that it does not know.
static int read_escape(reader *r) {
    if (r->at == r->end) return 0;
    char c = *r->at++;
    if (!c) return 0;
    if (c == 'x') return read_hex(r, 2);
    if (c == 'u') return read_hex(r, 4);
    if (c == 'U') return read_hex(r, 8);
    if (c == '\'') return put(r, "'", 1), 1;
    if (c == '\n') return 1;
    if (c == '0' || c == 'a' || c == 'v') return put_code_point(r, c == '0' ? 0 : c == 'a' ? 7 : 11), 1;
    if (strchr("n\"t\\rbf", c)) return put(r, r->at - 2, 2), 1; // JSON has the same
    put(r, "\\\\", 2);
    r->at--;
    return 1;
}

static int read_string(reader *r) {
    char quote = *r->at++;
    put(r, "\"", 1);
    while (r->at < r->end && *r->at != quote) {
        unsigned char c = (unsigned char)*r->at;
        if (c == '\\') {
            r->at++;
            if (!read_escape(r)) return 0;
        } else if (c == '"') {
            r->at++;
            put(r, "\\\"", 2);
        } else if (c < 0x20) {
            r->at++;
            put_code_point(r, c);
        } else {
            size_t n = sl_utf8_length((const unsigned char *)r->at, (size_t)(r->end - r->at));
            if (!n) return 0;
            put(r, r->at, n);
            r->at += n;
        }
    }
    put(r, "\"", 1);
    return r->at++ < r->end;
}

// The numbers that JSON writes in the same way.
static int read_number(reader *r) {
    const char *s = r->at;
    if (s < r->end && *s == '-') s++;
    const char *digits = s;
    while (s < r->end && is_digit(*s)) s++;
    if (s == digits || (*digits == '0' && s - digits > 1)) return 0;
    if (s < r->end && *s == '.') {
        digits = ++s;
        while (s < r->end && is_digit(*s)) s++;
        if (s == digits) return 0;
    }
    if (s < r->end && (*s == 'e' || *s == 'E')) {
        s++;
        if (s < r->end && (*s == '-' || *s == '+')) s++;
        digits = s;
        while (s < r->end && is_digit(*s)) s++;
        if (s == digits) return 0;
    }
    put(r, r->at, (size_t)(s - r->at));
    r->at = s;
    return 1;
}

static int read_word(reader *r) {
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"},
                                           {"true", "true"}, {"false", "false"}, {"null", "null"}};
    size_t n = name_length(r->at, (size_t)(r->end - r->at), 0);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (n == strlen(words[i][0]) && !memcmp(r->at, words[i][0], n)) {
            r->at += n;
            put(r, words[i][1], strlen(words[i][1]));
            return 1;
        }
    return 0;
}

// Goes to the item behind n items of a sequence that ends with `close`. 1: an item follows. 0: the end is read; a comma may
// stand before the end. -1: a comma is missing.
static int next_item(reader *r, char close, int n) {
    if (take(r, close)) return 0;
    if (n && !take(r, ',')) return -1;
    if (n && take(r, close)) return 0;
    if (n) put(r, ", ", 2);
    return 1;
}

static int read_list(reader *r, char close, int depth) {
    int more;
    put(r, "[", 1);
    for (int n = 0; (more = next_item(r, close, n)) > 0; n++)
        if (!read_value(r, depth + 1)) return 0;
    put(r, "]", 1);
    return !more;
}

static int read_dict(reader *r, int depth) {
    int more;
    put(r, "{", 1);
    for (int n = 0; (more = next_item(r, '}', n)) > 0; n++) {
        skip(r);
        if (r->at == r->end || (*r->at != '"' && *r->at != '\'') || !read_string(r) || !take(r, ':')) return 0;
        put(r, ": ", 2);
        if (!read_value(r, depth + 1)) return 0;
    }
    put(r, "}", 1);
    return !more;
}

static int read_value(reader *r, int depth) {
    skip(r);
    if (r->at == r->end || depth > DEEPEST || r->rc) return 0;
    char c = *r->at;
    if (c == '"' || c == '\'') return read_string(r);
    if (c == '[' || c == '(') return r->at++, read_list(r, c == '[' ? ']' : ')', depth);
    if (c == '{') return r->at++, read_dict(r, depth);
    return is_letter(c) ? read_word(r) : read_number(r);
}

// ---- calls ----

// name=value, ... and the closing bracket, as a JSON object.
static int read_arguments(reader *r) {
    int more;
    put(r, "{", 1);
    for (int n = 0; (more = next_item(r, ')', n)) > 0; n++) {
        skip(r);
        size_t length = name_length(r->at, (size_t)(r->end - r->at), 0);
        if (!length) return 0;
        put(r, "\"", 1);
        put(r, r->at, length);
        put(r, "\": ", 3);
        r->at += length;
        if (!take(r, '=') || !read_value(r, 0)) return 0;
    }
    put(r, "}", 1);
    return !more;
}

// Python allows no name twice, and clients read no NUL.
static int is_clean(const sl_text *json) {
    json_t *v = json_loadb(json->data, json->n, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, NULL);
    json_decref(v);
    return v != NULL;
}

static int read_calls(reader *r, api_calls *calls) {
    if (!take(r, '[')) return 0;
    for (int n = 0; !take(r, ']'); n++) {
        if (n && !take(r, ',')) return 0;
        skip(r);
        const char *name = r->at;
        size_t length = name_length(name, (size_t)(r->end - name), 1);
        r->at += length;
        if (!length || !take(r, '(')) return 0;
        r->out->n = 0;
        if (!read_arguments(r) || r->rc || !is_clean(r->out)) return 0;
        r->rc = api_calls_add(calls, name, length, r->out->data, r->out->n, r->err);
        if (r->rc) return 0;
    }
    skip(r);
    return r->at == r->end && calls->n > 0;
}

int api_calls_of_python(const char *text, size_t n, api_calls *calls, int *is_call, sl_error *err) {
    sl_text out = {0};
    reader r = {text, text + n, &out, err, 0};
    *is_call = read_calls(&r, calls) && !r.rc;
    sl_text_free(&out);
    if (!*is_call) api_calls_free(calls);
    return r.rc;
}

int api_is_python_name(const char *name) {
    size_t n = strlen(name);
    return n > 0 && name_length(name, n, 1) == n;
}

api_shape api_shape_of_python(const char *text, size_t n) {
    size_t i = 1;
    while (i < n && api_is_blank(text[i])) i++;
    if (i == n) return API_SHAPE_OPEN;
    size_t length = name_length(text + i, n - i, 1);
    if (!length) return API_SHAPE_OTHER;
    if (i + length == n) return API_SHAPE_OPEN;
    return text[i + length] == '(' ? API_SHAPE_CALL : API_SHAPE_OTHER;
}
