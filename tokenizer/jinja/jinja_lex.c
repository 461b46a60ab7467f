// tokenizer/jinja/jinja_lex.c - splits a template into tokens, with the white space rules of transformers: trim_blocks,
// lstrip_blocks, no newline at the end, and the modifiers - and + of tags.
#include "tokenizer/jinja/jinja_internal.h"

#include <stdio.h>
#include <string.h>

typedef struct lexer {
    j_base *b;
    const char *s; // with \n as the only line ends
    size_t n, at;
    int line;
    int line_starts; // the last matched text ended with a newline
    j_token *tokens;
    size_t n_tokens, cap;
    char open[256]; // brackets that are open within the tag
    int n_open;
} lexer;

static _Noreturn void syntax(lexer *x, const char *what) {
    x->b->line = x->line;
    sl_j_fail(x->b, SL_ERR_FORMAT, "%s", what);
}

static j_token *add(lexer *x, j_token_type type, const char *s, size_t n) {
    sl_j_step(x->b, 1);
    if (x->n_tokens == x->cap) {
        size_t cap = x->cap ? 2 * x->cap : 256;
        x->tokens = sl_j_grow(x->b, x->tokens, x->n_tokens * sizeof *x->tokens, cap * sizeof *x->tokens);
        x->cap = cap;
    }
    j_token *t = &x->tokens[x->n_tokens++];
    *t = (j_token){.type = type, .line = x->line, .s = s, .n = n};
    return t;
}

static void advance(lexer *x, size_t n) {
    for (size_t i = 0; i < n; i++) x->line += x->s[x->at + i] == '\n';
    x->at += n;
    x->line_starts = n > 0 && x->s[x->at - 1] == '\n';
}

static int starts(const lexer *x, size_t at, const char *text) {
    size_t n = strlen(text);
    return n <= x->n - at && !memcmp(x->s + at, text, n);
}

static size_t blanks(const lexer *x, size_t at) { // bytes of white space
    size_t n = 0;
    uint32_t c;
    while (at + n < x->n) {
        size_t len = sl_j_char(x->s + at + n, x->n - at - n, &c);
        if (!sl_j_is_space(c)) break;
        n += len;
    }
    return n;
}

// ---- text between tags ----

// The length of text[0..n) without the white space that the tag after it removes. sign: the modifier of the tag.
static size_t stripped(lexer *x, const char *s, size_t n, char sign, int is_variable) {
    const j_string text = {.s = s, .n = n};
    if (sign == '-') return sl_j_strip(x->b, &text, NULL, 0, 1)->n;
    if (sign == '+' || is_variable) return n;
    const char *newline = memrchr(s, '\n', n);
    size_t from = newline ? (size_t)(newline - s) + 1 : 0;
    if (!newline && !x->line_starts) return n;
    const j_string last = {.s = s + from, .n = n - from};
    return sl_j_strip(x->b, &last, NULL, 1, 0)->n ? n : from;
}

static void add_data(lexer *x, size_t from, size_t n) {
    if (n) add(x, T_DATA, x->s + from, n);
}

// The end of a block tag or comment at `at`: its length with the white space after it that it removes. 0: it is not there.
static size_t block_end(const lexer *x, size_t at, const char *close) {
    int sign = at < x->n && (x->s[at] == '-' || x->s[at] == '+') ? x->s[at] : 0;
    if (!starts(x, at + (sign != 0), close)) return 0;
    size_t n = (sign != 0) + 2;
    if (sign == '-') return n + blanks(x, at + n);
    return n + (!sign && at + n < x->n && x->s[at + n] == '\n');
}

// {% raw %} at the open brace: the length of the tag; 0: it is another tag.
static size_t word_tag(const lexer *x, size_t at, const char *word, int is_end) {
    size_t start = at;
    at += 2;
    if (at < x->n && (x->s[at] == '-' || x->s[at] == '+')) at++;
    at += blanks(x, at);
    if (!starts(x, at, word)) return 0;
    at += strlen(word);
    at += blanks(x, at);
    if (is_end) {
        size_t n = block_end(x, at, "%}");
        return n ? at + n - start : 0;
    }
    if (starts(x, at, "-%}")) return at + 3 + blanks(x, at + 3) - start;
    return starts(x, at, "%}") ? at + 2 - start : 0;
}

static void lex_raw(lexer *x, size_t n_tag) {
    advance(x, n_tag);
    for (size_t end = x->at; end < x->n; end++) {
        size_t n = starts(x, end, "{%") ? word_tag(x, end, "endraw", 1) : 0;
        if (!n) continue;
        char sign = x->s[end + 2];
        add_data(x, x->at, stripped(x, x->s + x->at, end - x->at, sign, 0));
        advance(x, end + n - x->at);
        return;
    }
    syntax(x, "raw without endraw");
}

static void lex_comment(lexer *x) {
    advance(x, 2 + (x->at + 2 < x->n && (x->s[x->at + 2] == '-' || x->s[x->at + 2] == '+')));
    for (size_t end = x->at; end + 1 < x->n; end++) {
        size_t n = block_end(x, end, "#}");
        if (!n) continue;
        advance(x, end + n - x->at);
        return;
    }
    syntax(x, "a comment without an end");
}

// ---- within tags ----

static int is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
static int is_digit(char c) {
    return c >= '0' && c <= '9';
}

static void put_code(lexer *x, j_buffer *out, uint32_t c) {
    char text[4];
    if (c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff)) syntax(x, "an escape is not a character");
    size_t n = sl_j_encode(c, text);
    sl_j_put(x->b, out, text, NULL, n);
}

// An escape of a string, as in Python. p: after the backslash. Returns its length.
static size_t take_escape(lexer *x, const char *p, const char *end, j_buffer *out) {
    static const char letters[] = "\\'\"abfnrtv", codes[] = "\\'\"\a\b\f\n\r\t\v";
    const char *letter = *p ? strchr(letters, *p) : NULL;
    uint32_t c = 0;
    if (*p == '\n') return 1;
    if (letter) {
        put_code(x, out, (unsigned char)codes[letter - letters]);
        return 1;
    }
    if (*p >= '0' && *p <= '7') {
        size_t n = 0;
        for (; n < 3 && p + n < end && p[n] >= '0' && p[n] <= '7'; n++) c = 8 * c + (uint32_t)(p[n] - '0');
        put_code(x, out, c);
        return n;
    }
    size_t n = *p == 'x' ? 2 : *p == 'u' ? 4 : *p == 'U' ? 8 : 0;
    if (*p == 'N' || (*p & 0x80)) syntax(x, "this escape of a string is not supported");
    if (!n) {
        sl_j_put(x->b, out, "\\", NULL, 1);
        sl_j_put(x->b, out, p, NULL, 1);
        return 1;
    }
    for (size_t i = 1; i <= n; i++) {
        int digit = p + i >= end                               ? -1
                    : is_digit(p[i])                           ? p[i] - '0'
                    : (p[i] | 32) >= 'a' && (p[i] | 32) <= 'f' ? (p[i] | 32) - 'a' + 10
                                                               : -1;
        if (digit < 0) syntax(x, "a cut escape in a string");
        c = 16 * c + (uint32_t)digit;
    }
    put_code(x, out, c);
    return n + 1;
}

static void lex_string(lexer *x) {
    const char *p = x->s + x->at, *end = x->s + x->n, quote = *p++;
    j_buffer out = {0};
    while (p < end && *p != quote) {
        if (*p != '\\') {
            const char *from = p;
            while (p < end && *p != quote && *p != '\\') p++;
            sl_j_put(x->b, &out, from, NULL, (size_t)(p - from));
        } else if (p + 1 < end) {
            p++;
            p += take_escape(x, p, end, &out);
        } else
            break;
    }
    if (p >= end || *p != quote) syntax(x, "a string without an end");
    j_token *t = add(x, T_STRING, x->s + x->at, (size_t)(p + 1 - x->s) - x->at);
    t->value = sl_j_text(sl_j_buffer_string(x->b, &out));
    advance(x, t->n);
}

static size_t digits_at(const lexer *x, size_t at) { // digits with single underscores between them
    size_t n = 0;
    while (at + n < x->n &&
           (is_digit(x->s[at + n]) || (n && x->s[at + n] == '_' && at + n + 1 < x->n && is_digit(x->s[at + n + 1]))))
        n++;
    return n;
}

static void lex_number(lexer *x) {
    const char *s = x->s + x->at;
    size_t whole = digits_at(x, x->at), at = x->at + whole, part = 0, exponent = 0;
    int after_point = x->at > 0 && x->s[x->at - 1] == '.';
    if (!after_point && at < x->n && x->s[at] == '.') part = digits_at(x, at + 1);
    if (part) part++, at += part;
    if (!after_point && at < x->n && (x->s[at] | 32) == 'e') {
        size_t sign = at + 1 < x->n && (x->s[at + 1] == '+' || x->s[at + 1] == '-');
        size_t n = digits_at(x, at + 1 + sign);
        exponent = n ? 1 + sign + n : 0;
    }
    if (part || exponent) {
        double value;
        j_token *t = add(x, T_FLOAT, s, whole + part + exponent);
        if (!sl_j_parse_float(s, t->n, &value)) syntax(x, "this number is not supported");
        t->value = sl_j_float(value);
        advance(x, t->n);
        return;
    }
    size_t n = whole;
    if (*s == '0' && x->at + 1 < x->n && strchr("xXoObB", s[1]) && s[1]) {
        for (n = 2; x->at + n < x->n && (is_letter(s[n]) || is_digit(s[n])); n++) {
        }
    } else if (*s == '0') {
        for (n = 1; n < whole && (s[n] == '0' || (s[n] == '_' && s[n + 1] == '0')); n++) {
        }
    }
    int64_t value;
    j_token *t = add(x, T_INT, s, n);
    if (sl_j_parse_int(s, n, 0, &value) != 1) syntax(x, "this number is not supported");
    t->value = sl_j_int(value);
    advance(x, n);
}

static void lex_operator(lexer *x) {
    static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
    char c = x->s[x->at];
    size_t n = 1;
    for (size_t i = 0; i < sizeof two / sizeof *two; i++)
        if (starts(x, x->at, two[i])) n = 2;
    if (n == 1 && (!c || !strchr("+-/*%~[](){}><=.:|,;", c))) {
        char text[64];
        snprintf(text, sizeof text, "unexpected character '%c' (0x%02x)", c >= 32 && c < 127 ? c : '?', (unsigned char)c);
        syntax(x, text);
    }
    if (c == '(' || c == '[' || c == '{') {
        if (x->n_open == (int)sizeof x->open) syntax(x, "too many open brackets");
        x->open[x->n_open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
        if (!x->n_open || x->open[--x->n_open] != c) syntax(x, "a closing bracket without its opening bracket");
    }
    add(x, T_OPERATOR, x->s + x->at, n);
    advance(x, n);
}

static void lex_tag(lexer *x, int is_block) {
    add(x, is_block ? T_BLOCK_BEGIN : T_VARIABLE_BEGIN, x->s + x->at, 2);
    advance(x, 2 + (x->at + 2 < x->n && (x->s[x->at + 2] == '-' || x->s[x->at + 2] == '+')));
    x->n_open = 0;
    while (x->at < x->n) {
        char c = x->s[x->at];
        size_t n = 0;
        if (!x->n_open) {
            if (is_block)
                n = block_end(x, x->at, "%}");
            else if (starts(x, x->at, "-}}"))
                n = 3 + blanks(x, x->at + 3);
            else if (starts(x, x->at, "}}"))
                n = 2;
        }
        if (n) {
            add(x, is_block ? T_BLOCK_END : T_VARIABLE_END, x->s + x->at, 2);
            advance(x, n);
            return;
        }
        if ((n = blanks(x, x->at))) {
            advance(x, n);
        } else if (is_digit(c)) {
            lex_number(x);
        } else if (is_letter(c)) {
            for (n = 1; x->at + n < x->n && (is_letter(x->s[x->at + n]) || is_digit(x->s[x->at + n])); n++) {
            }
            if (x->at + n < x->n && (x->s[x->at + n] & 0x80)) syntax(x, "a name has a letter that is not ASCII");
            add(x, T_NAME, x->s + x->at, n);
            advance(x, n);
        } else if (c == '\'' || c == '"') {
            lex_string(x);
        } else {
            lex_operator(x);
        }
    }
    syntax(x, "a tag without an end");
}

// ---- the whole template ----

// The text with \n as line ends, and without one newline at the end.
static void normalise(lexer *x, const char *text, size_t n) {
    char *s = sl_j_alloc(x->b, n + 1);
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        s[m++] = text[i] == '\r' ? '\n' : text[i];
        if (text[i] == '\r' && i + 1 < n && text[i + 1] == '\n') i++;
    }
    if (m > 0 && s[m - 1] == '\n') m--;
    s[m] = 0; // so that a byte after the end may be read
    x->s = s;
    x->n = m;
}

j_token *sl_j_lex(j_base *b, const char *text, size_t n) {
    lexer x = {.b = b, .line = 1, .line_starts = 1};
    normalise(&x, text, n);
    while (x.at < x.n) {
        size_t tag = x.at;
        while (tag + 1 < x.n && !(x.s[tag] == '{' && strchr("{%#", x.s[tag + 1]) && x.s[tag + 1])) tag++;
        if (tag + 1 >= x.n) {
            add_data(&x, x.at, x.n - x.at);
            break;
        }
        char kind = x.s[tag + 1], sign = tag + 2 < x.n ? x.s[tag + 2] : 0;
        add_data(&x, x.at, stripped(&x, x.s + x.at, tag - x.at, sign, kind == '{'));
        if (tag > x.at) advance(&x, tag - x.at);
        size_t raw = kind == '%' ? word_tag(&x, tag, "raw", 0) : 0;
        if (raw)
            lex_raw(&x, raw);
        else if (kind == '#')
            lex_comment(&x);
        else
            lex_tag(&x, kind == '%');
    }
    add(&x, T_END, x.s + x.n, 0);
    return x.tokens;
}
