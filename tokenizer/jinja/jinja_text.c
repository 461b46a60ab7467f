// tokenizer/jinja/jinja_text.c - strings of templates. Every operation carries the marks of its bytes along.
//
// Characters are code points, as in Python. A byte that is not valid UTF-8 counts as a character.
#include "base/utf8.h"
#include "tokenizer/jinja/jinja_internal.h"
#include "tokenizer/unicode/unicode.h"

#include <string.h>

// ---- making strings ----

void sl_j_put(j_base *b, j_buffer *out, const char *s, const unsigned char *mark, size_t n) {
    if (!n) return;
    sl_j_step(b, 1 + n / 64);
    if (n > out->cap - out->n) {
        size_t cap = 2 * (out->n + n) + 64;
        out->s = sl_j_grow(b, out->s, out->n, cap);
        if (out->mark) out->mark = sl_j_grow(b, out->mark, out->n, cap);
        out->cap = cap;
    }
    if (mark && !out->mark) {
        out->mark = sl_j_alloc(b, out->cap);
        memset(out->mark, 0, out->n);
    }
    memcpy(out->s + out->n, s, n);
    if (mark)
        memcpy(out->mark + out->n, mark, n);
    else if (out->mark)
        memset(out->mark + out->n, 0, n);
    out->n += n;
}

void sl_j_put_text(j_base *b, j_buffer *out, const char *s) {
    sl_j_put(b, out, s, NULL, strlen(s));
}

void sl_j_put_string(j_base *b, j_buffer *out, const j_string *s) {
    sl_j_put(b, out, s->s, s->mark, s->n);
}

static const j_string *make(j_base *b, const char *s, const unsigned char *mark, size_t n) {
    j_string *x = sl_j_alloc(b, sizeof *x);
    *x = (j_string){.s = s ? s : "", .mark = mark, .n = n};
    return x;
}

const j_string *sl_j_buffer_string(j_base *b, const j_buffer *buffer) {
    return make(b, buffer->s, buffer->mark, buffer->n);
}

const j_string *sl_j_string(j_base *b, const char *s, size_t n) {
    return make(b, n ? sl_j_grow(b, (void *)s, n, n) : NULL, NULL, n);
}

const j_string *sl_j_literal(j_base *b, const char *s) {
    return make(b, s, NULL, strlen(s));
}

const j_string *sl_j_part(j_base *b, const j_string *s, size_t from, size_t to) {
    j_string *part = (j_string *)make(b, s->s + from, s->mark ? s->mark + from : NULL, to - from);
    part->safe = s->safe;
    return part;
}

// ---- comparing ----

int sl_j_equals(const j_string *a, const char *text) {
    return a->n == strlen(text) && !memcmp(a->s, text, a->n);
}

int sl_j_same(const j_string *a, const j_string *b) {
    return a->n == b->n && !memcmp(a->s, b->s, a->n);
}

int sl_j_order(const j_string *a, const j_string *b) { // the order of UTF-8 bytes is the order of code points
    int c = memcmp(a->s, b->s, a->n < b->n ? a->n : b->n);
    return c ? c : (a->n > b->n) - (a->n < b->n);
}

// ---- characters ----

size_t sl_j_char(const char *s, size_t n, uint32_t *code) {
    const unsigned char *p = (const unsigned char *)s;
    size_t len = sl_utf8_length(p, n);
    *code = len == 1   ? p[0]
            : len == 2 ? (p[0] & 31u) << 6 | (p[1] & 63u)
            : len == 3 ? (p[0] & 15u) << 12 | (p[1] & 63u) << 6 | (p[2] & 63u)
            : len == 4 ? (p[0] & 7u) << 18 | (p[1] & 63u) << 12 | (p[2] & 63u) << 6 | (p[3] & 63u)
                       : 0xdc00u + p[0]; // as Python's surrogateescape
    return len ? len : 1;
}

size_t sl_j_n_chars(j_base *b, const j_string *s) {
    size_t count = 0;
    uint32_t code;
    sl_j_step(b, s->n / 16);
    for (size_t i = 0; i < s->n; count++) i += sl_j_char(s->s + i, s->n - i, &code);
    return count;
}

size_t sl_j_offset(const j_string *s, size_t n_chars) {
    size_t i = 0;
    uint32_t code;
    for (; n_chars > 0 && i < s->n; n_chars--) i += sl_j_char(s->s + i, s->n - i, &code);
    return i;
}

int sl_j_is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

static int is_line_end(uint32_t c) {
    return (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

// The start of the character that ends at `end`.
static size_t char_before(const j_string *s, size_t end, uint32_t *code) {
    for (size_t back = end < 4 ? end : 4; back > 1; back--)
        if (sl_utf8_length((const unsigned char *)s->s + end - back, back) == back) {
            sl_j_char(s->s + end - back, back, code);
            return end - back;
        }
    sl_j_char(s->s + end - 1, 1, code);
    return end - 1;
}

// ---- searching ----

size_t sl_j_find(j_base *b, const j_string *s, size_t from, size_t to, const j_string *what, int last) {
    if (to < from || what->n > to - from) return SIZE_MAX;
    sl_j_step(b, (to - from) / 64);
    if (!last) {
        if (!what->n) return from;
        const char *at = memmem(s->s + from, to - from, what->s, what->n);
        return at ? (size_t)(at - s->s) : SIZE_MAX;
    }
    for (size_t at = to - what->n + 1; at-- > from;)
        if (!memcmp(s->s + at, what->s, what->n)) return at;
    return SIZE_MAX;
}

static int has_char(const j_string *chars, uint32_t code) {
    uint32_t c;
    if (!chars) return sl_j_is_space(code);
    for (size_t i = 0; i < chars->n;) {
        i += sl_j_char(chars->s + i, chars->n - i, &c);
        if (c == code) return 1;
    }
    return 0;
}

const j_string *sl_j_strip(j_base *b, const j_string *s, const j_string *chars, int left, int right) {
    size_t from = 0, to = s->n;
    uint32_t code;
    while (left && from < to) {
        size_t len = sl_j_char(s->s + from, to - from, &code);
        if (!has_char(chars, code)) break;
        from += len;
    }
    while (right && from < to) {
        size_t start = char_before(s, to, &code);
        if (!has_char(chars, code)) break;
        to = start;
    }
    sl_j_step(b, (from + s->n - to) / 8);
    return sl_j_part(b, s, from, to);
}

const j_string *sl_j_replace(j_base *b, const j_string *s, const j_string *old, const j_string *new, int64_t most) {
    j_buffer out = {0};
    size_t at = 0;
    uint32_t code;
    for (; most != 0 && at <= s->n; most -= most > 0) {
        size_t found = sl_j_find(b, s, at, s->n, old, 0);
        if (found == SIZE_MAX) break;
        sl_j_step(b, 1);
        sl_j_put(b, &out, s->s + at, s->mark ? s->mark + at : NULL, found - at);
        sl_j_put_string(b, &out, new);
        at = found + old->n;
        if (!old->n) { // between all characters
            if (at == s->n) return sl_j_buffer_string(b, &out);
            size_t len = sl_j_char(s->s + at, s->n - at, &code);
            sl_j_put(b, &out, s->s + at, s->mark ? s->mark + at : NULL, len);
            at += len;
        }
    }
    sl_j_put(b, &out, s->s + at, s->mark ? s->mark + at : NULL, s->n - at);
    return sl_j_buffer_string(b, &out);
}

// ---- properties of characters ----

static const char *category(uint32_t c) { // two letters
    size_t low = 0, high = sl_category_runs_n;
    while (high - low > 1) {
        size_t mid = (low + high) / 2;
        if (sl_category_runs[mid] >> 5 <= c)
            low = mid;
        else
            high = mid;
    }
    return sl_category_names[sl_category_runs[low] & 31];
}

static int is_upper(uint32_t c) {
    if (c < 0x80) return c >= 'A' && c <= 'Z';
    return !strcmp(category(c), "Lu") || sl_code_set_has(sl_other_uppercase, c);
}
static int is_lower(uint32_t c) {
    if (c < 0x80) return c >= 'a' && c <= 'z';
    return !strcmp(category(c), "Ll") || sl_code_set_has(sl_other_lowercase, c);
}
static int is_title(uint32_t c) {
    return c >= 0x80 && !strcmp(category(c), "Lt");
}
static int is_cased(uint32_t c) {
    return is_upper(c) || is_lower(c) || is_title(c);
}

int sl_j_is_printable(uint32_t c) {
    if (c < 0x80) return c >= 32 && c < 127;
    const char *k = category(c);
    return k[0] != 'Z' && k[0] != 'C';
}

int sl_j_is_class(j_base *b, const j_string *s, j_class class) {
    int cased = 0;
    uint32_t c;
    sl_j_step(b, s->n / 8);
    for (size_t i = 0; i < s->n;) {
        i += sl_j_char(s->s + i, s->n - i, &c);
        const char *k = category(c);
        int alpha = k[0] == 'L', digit = !strcmp(k, "Nd") || c == 0xb2 || c == 0xb3 || c == 0xb9;
        int ok = class == J_IS_ALPHA   ? alpha
                 : class == J_IS_DIGIT ? digit
                 : class == J_IS_ALNUM ? alpha || k[0] == 'N'
                 : class == J_IS_SPACE ? sl_j_is_space(c)
                 : class == J_IS_UPPER ? !is_lower(c) && !is_title(c)
                                       : !is_upper(c) && !is_title(c);
        if (!ok) return 0;
        cased |= class == J_IS_UPPER ? is_upper(c) : class == J_IS_LOWER ? is_lower(c) : 1;
    }
    return cased;
}

// ---- escapes of HTML ----

const j_string *sl_j_escape(j_base *b, const j_string *s) {
    static const char letters[] = "&<>'\"";
    static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    j_buffer out = {0};
    if (s->safe) return s;
    for (size_t i = 0; i < s->n; i++) {
        const unsigned char *mark = s->mark ? s->mark + i : NULL;
        const char *at = s->s[i] ? strchr(letters, s->s[i]) : NULL, *entity = at ? entities[at - letters] : NULL;
        sl_j_step(b, 1);
        if (!entity) sl_j_put(b, &out, s->s + i, mark, 1);
        for (; entity && *entity; entity++) sl_j_put(b, &out, entity, mark, 1);
    }
    j_string *made = (j_string *)sl_j_buffer_string(b, &out);
    made->safe = 1;
    return made;
}

// ---- upper and lower case ----

size_t sl_j_encode(uint32_t c, char text[4]) {
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, c >>= 6) text[i] = (char)(0x80 | (c & 63));
    text[0] = (char)(n == 1 ? c : (n == 2 ? 0xc0u : n == 3 ? 0xe0u : 0xf0u) | c);
    return n;
}

static int is_ignorable(uint32_t c) { // Case_Ignorable of Unicode
    static const uint32_t others[] = {'\'',   '.',    ':',    0xb7,   0x387,  0x55f,  0x5f4,  0x2018, 0x2019,
                                      0x2024, 0x2027, 0xfe13, 0xfe52, 0xfe55, 0xff07, 0xff0e, 0xff1a};
    const char *k = category(c);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i] == c) return 1;
    return !strcmp(k, "Mn") || !strcmp(k, "Me") || !strcmp(k, "Cf") || !strcmp(k, "Lm") || !strcmp(k, "Sk");
}

// 1: the sigma at byte `at` of a text that begins at byte `from` ends a word, where its lower case is another letter.
static int ends_word(const j_string *s, size_t from, size_t at, size_t len) {
    uint32_t c = 0;
    size_t i = at;
    while (i > from && (i = char_before(s, i, &c), is_ignorable(c))) {
    }
    if (!is_cased(c) || is_ignorable(c)) return 0;
    for (i = at + len; i < s->n;) {
        i += sl_j_char(s->s + i, s->n - i, &c);
        if (!is_ignorable(c)) return !is_cased(c);
    }
    return 1;
}

static void put_case(j_base *b, j_buffer *out, const j_string *s, size_t from, size_t at, size_t len, uint32_t c, j_case to) {
    const unsigned char *mark = s->mark ? s->mark + at : NULL;
    char one[4];
    const char *text = one;
    size_t n = 1;
    uint32_t single;
    if (c < 0x80) {
        one[0] = (char)c;
        if (to != J_LOWER && c >= 'a' && c <= 'z') one[0] = (char)(c - 32);
        if (to == J_LOWER && c >= 'A' && c <= 'Z') one[0] = (char)(c + 32);
    } else if (c >= 0xd800 && c <= 0xdfff) { // a byte that is not UTF-8
        text = s->s + at;
        n = len;
    } else if ((text = sl_j_case_of(c, to, &single))) {
        n = strlen(text);
    } else {
        if (c == 0x3a3 && to == J_LOWER && ends_word(s, from, at, len)) single = 0x3c2;
        text = one;
        n = sl_j_encode(single, one);
    }
    for (size_t i = 0; i < n; i++) sl_j_put(b, out, text + i, mark, 1);
}

const j_string *sl_j_case(j_base *b, const j_string *s, j_case to) {
    j_buffer out = {0};
    uint32_t c;
    int begins = 1;  // a word of J_TITLE and J_TITLE_WORDS, the text of J_CAPITALIZE
    size_t from = 0; // Jinja's title lowers the rest of each word on its own
    sl_j_step(b, s->n);
    for (size_t i = 0, len; i < s->n; i += len) {
        len = sl_j_char(s->s + i, s->n - i, &c);
        j_case this = to;
        if (to == J_CAPITALIZE || to == J_TITLE_WORDS) this = begins ? J_TITLE : J_LOWER;
        if (to == J_TITLE) this = begins ? J_UPPER : J_LOWER;
        if (to == J_SWAP) this = is_upper(c) ? J_LOWER : is_lower(c) ? J_UPPER : J_SWAP;
        if (this == J_SWAP)
            sl_j_put(b, &out, s->s + i, s->mark ? s->mark + i : NULL, len);
        else
            put_case(b, &out, s, from, i, len, c, this);
        if (to == J_TITLE && begins) from = i + len;
        if (to == J_TITLE)
            begins = sl_j_is_space(c) || (c < 0x80 && c && strchr("-({[<", (int)c));
        else
            begins = to == J_TITLE_WORDS && !is_cased(c);
    }
    j_string *made = (j_string *)sl_j_buffer_string(b, &out);
    made->safe = s->safe;
    return made;
}

// ---- lists of parts ----

static void reverse(j_list *list) {
    for (size_t i = 0; i < list->n / 2; i++) {
        j_value x = list->items[i];
        list->items[i] = list->items[list->n - 1 - i];
        list->items[list->n - 1 - i] = x;
    }
}

static void push_part(j_base *b, j_list *list, const j_string *s, size_t from, size_t to) {
    sl_j_push(b, list, sl_j_text(sl_j_part(b, s, from, to)));
}

static j_value split_at_space(j_base *b, const j_string *s, int64_t most) {
    j_list list = {0};
    size_t at = 0, len;
    uint32_t c;
    for (;; most -= most > 0) {
        for (; at < s->n; at += len) {
            len = sl_j_char(s->s + at, s->n - at, &c);
            if (!sl_j_is_space(c)) break;
        }
        if (at >= s->n) break;
        size_t from = at;
        if (most == 0) {
            push_part(b, &list, s, from, s->n);
            break;
        }
        for (; at < s->n; at += len) {
            len = sl_j_char(s->s + at, s->n - at, &c);
            if (sl_j_is_space(c)) break;
        }
        push_part(b, &list, s, from, at);
    }
    return sl_j_list_of(b, list, J_LIST);
}

static j_value split_at_space_from_right(j_base *b, const j_string *s, int64_t most) {
    j_list list = {0};
    size_t end = s->n, start;
    uint32_t c;
    for (;; most -= most > 0) {
        for (; end > 0; end = start) {
            start = char_before(s, end, &c);
            if (!sl_j_is_space(c)) break;
        }
        if (end == 0) break;
        size_t to = end;
        if (most == 0) {
            push_part(b, &list, s, 0, to);
            break;
        }
        for (; end > 0; end = start) {
            start = char_before(s, end, &c);
            if (sl_j_is_space(c)) break;
        }
        push_part(b, &list, s, end, to);
    }
    reverse(&list);
    return sl_j_list_of(b, list, J_LIST);
}

j_value sl_j_split(j_base *b, const j_string *s, const j_string *separator, int64_t most, int from_right) {
    j_list list = {0};
    sl_j_step(b, s->n / 16);
    if (!separator) return from_right ? split_at_space_from_right(b, s, most) : split_at_space(b, s, most);
    if (!separator->n) sl_j_fail(b, SL_ERR_ARG, "empty separator");
    size_t from = 0, to = s->n;
    for (; most != 0; most -= most > 0) {
        size_t at = sl_j_find(b, s, from, to, separator, from_right);
        if (at == SIZE_MAX) break;
        if (from_right) {
            push_part(b, &list, s, at + separator->n, to);
            to = at;
        } else {
            push_part(b, &list, s, from, at);
            from = at + separator->n;
        }
    }
    push_part(b, &list, s, from, to);
    if (from_right) reverse(&list);
    return sl_j_list_of(b, list, J_LIST);
}

j_value sl_j_split_lines(j_base *b, const j_string *s, int keep_ends) {
    j_list list = {0};
    uint32_t c;
    sl_j_step(b, s->n / 8);
    for (size_t from = 0, at = 0; from < s->n; from = at) {
        size_t len = 0;
        for (; at < s->n; at += len) {
            len = sl_j_char(s->s + at, s->n - at, &c);
            if (is_line_end(c)) break;
        }
        size_t end = at;
        if (at < s->n) at += c == '\r' && at + 1 < s->n && s->s[at + 1] == '\n' ? 2 : len;
        push_part(b, &list, s, from, keep_ends ? at : end);
    }
    return sl_j_list_of(b, list, J_LIST);
}
