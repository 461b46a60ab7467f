// base/json_lenient.c - see json_lenient.h. The scanner only finds the tokens that it rewrites. Jansson checks the
// grammar afterwards, so the scanner copies every token that it does not know.
#include "base/json_lenient.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char escaped_mark[] = "\\u0000\\u0001";

typedef struct scanner {
    const char *p, *end;
    const char *copied; // the text before this byte is in *out
    int is_name_bad;    // 1: the value that follows belongs to a name that Jansson cannot hold
    sl_text *out;
    sl_error *err;
} scanner;

// Copies the text up to `to`, writes `in_place`, and goes on at `next`.
static int replace(scanner *s, const char *to, const char *in_place, size_t n, const char *next) {
    int rc = sl_text_append(s->out, s->copied, (size_t)(to - s->copied), s->err);
    if (!rc) rc = sl_text_append(s->out, in_place, n, s->err);
    s->copied = next;
    return rc;
}

// ---- numbers ----

// Writes the token [from, to) as a marked string.
static int mark_token(scanner *s, const char *from, const char *to) {
    int rc = replace(s, from, "\"", 1, from);
    if (!rc) rc = replace(s, from, escaped_mark, sizeof escaped_mark - 1, from);
    return rc ? rc : replace(s, to, "\"", 1, to);
}

static const char *skip_digits(const char *p, const char *end) {
    while (p < end && *p >= '0' && *p <= '9') p++;
    return p;
}

// 1: [p, end) is one number of JSON, except for zeros at its beginning, which Jansson refuses.
static int is_number(const char *p, const char *end) {
    const char *digits = p += p < end && *p == '-';
    p = skip_digits(p, end);
    if (p == digits) return 0;
    if (p < end && *p == '.') {
        digits = ++p;
        p = skip_digits(p, end);
        if (p == digits) return 0;
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
        p++;
        p += p < end && (*p == '+' || *p == '-');
        digits = p;
        p = skip_digits(p, end);
        if (p == digits) return 0;
    }
    return p == end;
}

static int overflows(const char *token, size_t n) {
    json_error_t e;
    if (n < 18 && !memchr(token, 'e', n) && !memchr(token, 'E', n)) return 0;
    json_t *v = json_loadb(token, n, JSON_DECODE_ANY, &e);
    json_decref(v);
    return !v && json_error_code(&e) == json_error_numeric_overflow;
}

static int scan_number(scanner *s) {
    const char *from = s->p;
    while (s->p < s->end && *s->p && strchr("0123456789+-.eE", *s->p)) s->p++;
    int is_marked = is_number(from, s->p) && (s->is_name_bad || overflows(from, (size_t)(s->p - from)));
    s->is_name_bad = 0;
    return is_marked ? mark_token(s, from, s->p) : 0;
}

// 1: the text at s->p is this word, and s->p now stands behind it.
static int scan_word(scanner *s, const char *word) {
    size_t n = strlen(word);
    if ((size_t)(s->end - s->p) < n || memcmp(s->p, word, n)) return 0;
    s->p += n;
    return 1;
}

// ---- strings ----

static int is_surrogate(const char *p, const char *end, const char *kinds) { // "\uD..." with the third digit in `kinds`
    if (end - p < 6 || p[0] != '\\' || p[1] != 'u' || (p[2] != 'd' && p[2] != 'D')) return 0;
    for (int i = 3; i < 6; i++)
        if (!p[i] || !strchr("0123456789abcdefABCDEF", p[i])) return 0;
    return strchr(kinds, p[3]) != NULL;
}

// The number of bytes of the escape at p that the scanner keeps whole. *is_lone: it is a surrogate without a partner.
static int escape_size(const char *p, const char *end, int *is_lone) {
    const char *high = "89abAB", *low = "cdefCDEF";
    *is_lone = 0;
    if (is_surrogate(p, end, high) && is_surrogate(p + 6, end, low)) return 12;
    *is_lone = is_surrogate(p, end, high) || is_surrogate(p, end, low);
    if (*is_lone) return 6;
    return end - p >= 2 ? 2 : 1;
}

// Doubles the backslash of each escape in [from, to) that Jansson cannot hold.
static int rewrite_escapes(scanner *s, const char *from, const char *to, int is_name) {
    int is_lone, rc = 0;
    for (const char *p = from; !rc && p < to;) {
        int size = *p == '\\' ? escape_size(p, to, &is_lone) : 1;
        if (*p == '\\' && (is_lone || (is_name && to - p >= 6 && !memcmp(p, "\\u0000", 6)))) rc = replace(s, p, "\\", 1, p);
        p += size;
    }
    return rc;
}

static int scan_string(scanner *s) {
    const char *from = ++s->p, *to;
    int is_lone, has_lone = 0, has_nul = 0;
    while (s->p < s->end && *s->p != '"') {
        if (*s->p != '\\') {
            s->p++;
            continue;
        }
        if (s->end - s->p >= 6 && !memcmp(s->p, "\\u0000", 6)) has_nul = 1;
        s->p += escape_size(s->p, s->end, &is_lone);
        has_lone |= is_lone;
    }
    to = s->p;
    if (s->p < s->end) s->p++;
    const char *next = s->p;
    while (next < s->end && *next && strchr(" \t\r\n", *next)) next++;
    int is_name = next < s->end && *next == ':';
    s->is_name_bad = is_name && (has_lone || has_nul);
    if (is_name) return s->is_name_bad ? rewrite_escapes(s, from, to, 1) : 0;
    if (!has_lone) return 0;
    int rc = replace(s, from, escaped_mark, sizeof escaped_mark - 1, from);
    return rc ? rc : rewrite_escapes(s, from, to, 0);
}

// ---- the text ----

int sl_json_rewrite(const char *text, size_t n, sl_text *out, sl_error *err) {
    scanner s = {.p = text, .end = text + n, .copied = text, .out = out, .err = err};
    int rc = 0;
    while (!rc && s.p < s.end) {
        const char *at = s.p;
        if (*at == '"')
            rc = scan_string(&s);
        else if (scan_word(&s, "NaN") || scan_word(&s, "Infinity") || scan_word(&s, "-Infinity"))
            rc = mark_token(&s, at, s.p);
        else if (*at == '-' || (*at >= '0' && *at <= '9'))
            rc = scan_number(&s);
        else {
            if (*at == '[' || *at == ',') s.is_name_bad = 0;
            s.p++;
        }
    }
    return rc || !out->data ? rc : replace(&s, s.end, "", 0, s.end);
}
