// tokenizer/jinja/jinja_format.c - values as text: str(), repr(), JSON, format strings, dates; and numbers from text. Numbers
// do not depend on the locale of the process.
#include "base/number.h"
#include "tokenizer/jinja/jinja_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- numbers ----

void sl_j_float_text(double x, char out[J_FLOAT_TEXT]) {
    char digits[32];
    int n, exponent;
    if (isnan(x) || isinf(x)) {
        snprintf(out, J_FLOAT_TEXT, "%s", isnan(x) ? "nan" : x < 0 ? "-inf" : "inf");
        return;
    }
    for (int precision = 0; precision < 17; precision++) {
        sl_print(digits, sizeof digits, "%.*e", precision, fabs(x));
        if (sl_strtod(digits, NULL) == fabs(x)) break;
    }
    char *e = strchr(digits, 'e');
    exponent = atoi(e + 1);
    *e = 0;
    if (digits[1] == '.') memmove(digits + 1, digits + 2, strlen(digits + 2) + 1);
    n = (int)strlen(digits);
    const char *sign = signbit(x) ? "-" : "";
    if (exponent < -4 || exponent >= 16)
        snprintf(out, J_FLOAT_TEXT, "%s%c%s%se%c%02d", sign, digits[0], n > 1 ? "." : "", digits + 1, exponent < 0 ? '-' : '+',
                 abs(exponent));
    else if (exponent < 0)
        snprintf(out, J_FLOAT_TEXT, "%s0.%.*s%s", sign, -exponent - 1, "000", digits);
    else if (n <= exponent + 1)
        snprintf(out, J_FLOAT_TEXT, "%s%s%.*s.0", sign, digits, exponent + 1 - n, "0000000000000000");
    else
        snprintf(out, J_FLOAT_TEXT, "%s%.*s.%s", sign, exponent + 1, digits, digits + exponent + 1);
}

// Copies a number's text without blanks around it and without underscores between digits. 0: not such a text.
static int clean_number(const char *s, size_t n, char *out, size_t size) {
    size_t m = 0;
    while (n > 0 && strchr(" \t\n\r\f\v", s[0]) && s[0]) s++, n--;
    while (n > 0 && strchr(" \t\n\r\f\v", s[n - 1]) && s[n - 1]) n--;
    if (!n || n >= size) return 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '_' && (!i || i + 1 == n || s[i - 1] == '_' || strchr("+-.", s[i - 1]) || strchr("+-.", s[i + 1])))
            return 0;
        if (!s[i]) return 0;
        if (s[i] != '_') out[m++] = s[i];
    }
    out[m] = 0;
    return 1;
}

int sl_j_parse_float(const char *s, size_t n, double *out) {
    char text[330];
    if (!clean_number(s, n, text, sizeof text)) return 0;
    const char *p = text + (*text == '+' || *text == '-');
    if (!strcasecmp(p, "inf") || !strcasecmp(p, "infinity") || !strcasecmp(p, "nan")) {
        *out = (*p | 32) == 'n' ? NAN : *text == '-' ? -INFINITY : INFINITY;
        return 1;
    }
    size_t whole = strspn(p, "0123456789"), part = p[whole] == '.' ? strspn(p + whole + 1, "0123456789") : 0;
    if (!whole && !part) return 0;
    p += whole + (p[whole] == '.') + part;
    if (*p == 'e' || *p == 'E') {
        p += 1 + (p[1] == '+' || p[1] == '-');
        size_t digits = strspn(p, "0123456789");
        if (!digits) return 0;
        p += digits;
    }
    if (*p) return 0;
    *out = sl_strtod(text, NULL);
    return 1;
}

int sl_j_parse_int(const char *s, size_t n, int base, int64_t *out) {
    char text[100];
    if (!clean_number(s, n, text, sizeof text)) return 0;
    const char *p = text + (*text == '+' || *text == '-');
    int negative = *text == '-';
    int prefix = *p == '0' ? (p[1] | 32) == 'x' ? 16 : (p[1] | 32) == 'o' ? 8 : (p[1] | 32) == 'b' ? 2 : 0 : 0;
    if (prefix && (base == prefix || base == 0)) {
        p += 2;
        base = prefix;
    } else if (base == 0) {
        if (*p == '0' && strspn(p, "0") != strlen(p)) return 0; // Python refuses 07
        base = 10;
    }
    if (!*p) return 0;
    uint64_t x = 0, most = (uint64_t)INT64_MAX + (uint64_t)negative;
    int large = 0;
    for (; *p; p++) {
        int digit = *p >= '0' && *p <= '9' ? *p - '0' : (*p | 32) >= 'a' && (*p | 32) <= 'z' ? (*p | 32) - 'a' + 10 : 99;
        if (digit >= base) return 0;
        large |= x > (most - (uint64_t)digit) / (uint64_t)base;
        x = x * (uint64_t)base + (uint64_t)digit;
    }
    if (large) return -1;
    *out = (int64_t)(negative ? 0 - x : x);
    return 1;
}

// ---- str and repr ----

static void put_repr_string(j_base *b, j_buffer *out, const j_string *s) {
    if (s->safe) sl_j_fail(b, SL_ERR_UNSUPPORTED, "a string of the filter safe within a list or dict is not supported");
    const char *quote = memchr(s->s, '\'', s->n) && !memchr(s->s, '"', s->n) ? "\"" : "'";
    unsigned char marks[12];
    char escape[12];
    uint32_t c;
    sl_j_put_text(b, out, quote);
    sl_j_step(b, s->n / 4);
    for (size_t i = 0, len; i < s->n; i += len) {
        len = sl_j_char(s->s + i, s->n - i, &c);
        int n = c == '\\' || c == (unsigned char)*quote ? snprintf(escape, sizeof escape, "\\%c", (int)c)
                : c == '\n'                             ? snprintf(escape, sizeof escape, "\\n")
                : c == '\r'                             ? snprintf(escape, sizeof escape, "\\r")
                : c == '\t'                             ? snprintf(escape, sizeof escape, "\\t")
                : sl_j_is_printable(c)                  ? 0
                : c < 0x100                             ? snprintf(escape, sizeof escape, "\\x%02x", c)
                : c < 0x10000                           ? snprintf(escape, sizeof escape, "\\u%04x", c)
                                                        : snprintf(escape, sizeof escape, "\\U%08x", c);
        if (s->mark) memset(marks, s->mark[i], sizeof marks);
        if (n)
            sl_j_put(b, out, escape, s->mark ? marks : NULL, (size_t)n);
        else
            sl_j_put(b, out, s->s + i, s->mark ? s->mark + i : NULL, len);
    }
    sl_j_put_text(b, out, quote);
}

static void put_items(j_base *b, j_buffer *out, const j_list *list, const char *open, const char *close) {
    sl_j_enter(b);
    sl_j_put_text(b, out, open);
    for (size_t i = 0; i < list->n; i++) {
        if (i) sl_j_put_text(b, out, ", ");
        sl_j_put_repr(b, out, list->items[i]);
    }
    sl_j_put_text(b, out, close);
    sl_j_leave(b);
}

static void put_dict(j_base *b, j_buffer *out, const j_dict *d, const char *open, const char *close) {
    sl_j_enter(b);
    sl_j_put_text(b, out, open);
    for (size_t i = 0; i < d->n; i++) {
        if (i) sl_j_put_text(b, out, ", ");
        sl_j_put_repr(b, out, d->pairs[i].key);
        sl_j_put_text(b, out, ": ");
        sl_j_put_repr(b, out, d->pairs[i].value);
    }
    sl_j_put_text(b, out, close);
    sl_j_leave(b);
}

void sl_j_put_repr(j_base *b, j_buffer *out, j_value v) {
    char text[96];
    sl_j_step(b, 1);
    switch (v.type) {
    case J_UNDEFINED:
        sl_j_put_text(b, out, "Undefined");
        return;
    case J_NONE:
        sl_j_put_text(b, out, "None");
        return;
    case J_BOOL:
        sl_j_put_text(b, out, v.i ? "True" : "False");
        return;
    case J_INT:
        snprintf(text, sizeof text, "%lld", (long long)v.i);
        break;
    case J_FLOAT:
        sl_j_float_text(v.f, text);
        break;
    case J_STRING:
        put_repr_string(b, out, v.s);
        return;
    case J_LIST:
        put_items(b, out, v.list, "[", "]");
        return;
    case J_TUPLE:
        put_items(b, out, v.list, "(", v.list->n == 1 ? ",)" : ")");
        return;
    case J_VIEW:
        sl_j_put_text(b, out, v.list->view);
        put_items(b, out, v.list, "([", "])");
        return;
    case J_DICT:
        put_dict(b, out, v.dict, "{", "}");
        return;
    case J_NAMESPACE:
        put_dict(b, out, v.dict, "<Namespace {", "}>");
        return;
    case J_MACRO:
        sl_j_put_text(b, out, "<Macro ");
        if (v.macro->node->name)
            put_repr_string(b, out, v.macro->node->name);
        else
            sl_j_put_text(b, out, "anonymous");
        sl_j_put_text(b, out, ">");
        return;
    case J_RANGE:
        if (v.range->step == 1)
            snprintf(text, sizeof text, "range(%lld, %lld)", (long long)v.range->start, (long long)v.range->stop);
        else
            snprintf(text, sizeof text, "range(%lld, %lld, %lld)", (long long)v.range->start, (long long)v.range->stop,
                     (long long)v.range->step);
        break;
    default:
        sl_j_fail(b, SL_ERR_UNSUPPORTED, "a value of the type %s cannot be written as text", sl_j_type_name(v));
    }
    sl_j_put_text(b, out, text);
}

const j_string *sl_j_repr(j_base *b, j_value v) {
    j_buffer out = {0};
    sl_j_put_repr(b, &out, v);
    return sl_j_buffer_string(b, &out);
}

const j_string *sl_j_str(j_base *b, j_value v) {
    if (v.type == J_STRING) return v.s;
    return v.type == J_UNDEFINED ? sl_j_literal(b, "") : sl_j_repr(b, v);
}

// ---- JSON ----

static void put_json_string(j_base *b, j_buffer *out, const j_string *s, int ascii) {
    static const char letters[] = "\"\\\b\f\n\r\t", written[] = "\"\\bfnrt";
    unsigned char marks[16];
    char escape[16];
    uint32_t c;
    sl_j_put_text(b, out, "\"");
    sl_j_step(b, s->n / 4);
    for (size_t i = 0, len; i < s->n; i += len) {
        len = sl_j_char(s->s + i, s->n - i, &c);
        const char *letter = c && c < 0x80 ? strchr(letters, (int)c) : NULL;
        int n = letter               ? snprintf(escape, sizeof escape, "\\%c", written[letter - letters])
                : c < 0x20           ? snprintf(escape, sizeof escape, "\\u%04x", c)
                : !ascii || c < 0x7f ? 0
                : c < 0x10000        ? snprintf(escape, sizeof escape, "\\u%04x", c)
                              : snprintf(escape, sizeof escape, "\\u%04x\\u%04x", 0xd7c0 + (c >> 10), 0xdc00 + (c & 0x3ff));
        if (s->mark) memset(marks, s->mark[i], sizeof marks);
        if (n)
            sl_j_put(b, out, escape, s->mark ? marks : NULL, (size_t)n);
        else
            sl_j_put(b, out, s->s + i, s->mark ? s->mark + i : NULL, len);
    }
    sl_j_put_text(b, out, "\"");
}

static void json_line(j_base *b, j_buffer *out, const j_json *o, int level) {
    if (o->indent < 0) return;
    sl_j_put_text(b, out, "\n");
    for (int i = 0; i < level; i++) sl_j_put_string(b, out, o->indent_text);
}

static void put_json(j_base *b, j_buffer *out, j_value v, const j_json *o, int level);

static void put_json_list(j_base *b, j_buffer *out, const j_list *list, const j_json *o, int level) {
    sl_j_put_text(b, out, "[");
    for (size_t i = 0; i < list->n; i++) {
        if (i) sl_j_put_string(b, out, o->item_separator);
        json_line(b, out, o, level + 1);
        put_json(b, out, list->items[i], o, level + 1);
    }
    if (list->n) json_line(b, out, o, level);
    sl_j_put_text(b, out, "]");
}

static void put_json_key(j_base *b, j_buffer *out, j_value key, const j_json *o) {
    if (key.type == J_STRING) {
        put_json_string(b, out, key.s, o->ascii);
    } else if (key.type == J_NONE || sl_j_is_number(key)) {
        sl_j_put_text(b, out, "\"");
        put_json(b, out, key, o, 0);
        sl_j_put_text(b, out, "\"");
    } else {
        sl_j_fail(b, SL_ERR_ARG, "keys must be str, int, float, bool or None, not %s", sl_j_type_name(key));
    }
}

static void sort_pairs(j_base *b, j_pair *pairs, size_t n) { // stable
    for (size_t i = 1; i < n; i++) {
        j_pair x = pairs[i];
        size_t j = i;
        for (; j > 0 && sl_j_compare(b, x.key, pairs[j - 1].key, "<") == -1; j--) pairs[j] = pairs[j - 1];
        pairs[j] = x;
    }
}

static void put_json_dict(j_base *b, j_buffer *out, const j_dict *d, const j_json *o, int level) {
    j_pair *pairs = d->pairs;
    if (o->sort && d->n) {
        pairs = sl_j_grow(b, d->pairs, d->n * sizeof *pairs, d->n * sizeof *pairs);
        sort_pairs(b, pairs, d->n);
    }
    sl_j_put_text(b, out, "{");
    for (size_t i = 0; i < d->n; i++) {
        if (i) sl_j_put_string(b, out, o->item_separator);
        json_line(b, out, o, level + 1);
        put_json_key(b, out, pairs[i].key, o);
        sl_j_put_string(b, out, o->key_separator);
        put_json(b, out, pairs[i].value, o, level + 1);
    }
    if (d->n) json_line(b, out, o, level);
    sl_j_put_text(b, out, "}");
}

static void put_json(j_base *b, j_buffer *out, j_value v, const j_json *o, int level) {
    sl_j_enter(b);
    sl_j_step(b, 1);
    switch (v.type) {
    case J_NONE:
        sl_j_put_text(b, out, "null");
        break;
    case J_BOOL:
        sl_j_put_text(b, out, v.i ? "true" : "false");
        break;
    case J_FLOAT:
        if (isfinite(v.f))
            sl_j_put_repr(b, out, v);
        else
            sl_j_put_text(b, out, isnan(v.f) ? "NaN" : v.f < 0 ? "-Infinity" : "Infinity");
        break;
    case J_INT:
        sl_j_put_repr(b, out, v);
        break;
    case J_STRING:
        put_json_string(b, out, v.s, o->ascii);
        break;
    case J_LIST:
    case J_TUPLE:
        put_json_list(b, out, v.list, o, level);
        break;
    case J_DICT:
        put_json_dict(b, out, v.dict, o, level);
        break;
    default:
        sl_j_fail(b, SL_ERR_ARG, "Object of type %s is not JSON serializable", sl_j_type_name(v));
    }
    sl_j_leave(b);
}

void sl_j_put_json(j_base *b, j_buffer *out, j_value v, const j_json *o) {
    put_json(b, out, v, o, 0);
}

// ---- format strings ----

typedef struct format_spec {
    uint32_t fill;
    char align, sign, type; // 0: not given
    int zero, width, precision;
} format_spec;

static void put_padding(j_base *b, j_buffer *out, uint32_t fill, size_t n) {
    char text[4];
    size_t len = sl_j_encode(fill, text);
    for (size_t i = 0; i < n; i++) sl_j_put(b, out, text, NULL, len);
}

static void put_padded(j_base *b, j_buffer *out, const j_string *text, const format_spec *f, char align) {
    size_t n = sl_j_n_chars(b, text), pad = (size_t)f->width > n ? (size_t)f->width - n : 0;
    if (f->align) align = f->align;
    size_t left = align == '>' ? pad : align == '^' ? pad / 2 : 0;
    if (align == '=') { // the sign before the padding
        size_t sign = text->n && strchr("+- ", text->s[0]) ? 1 : 0;
        sl_j_put_string(b, out, sl_j_part(b, text, 0, sign));
        put_padding(b, out, f->fill, pad);
        sl_j_put_string(b, out, sl_j_part(b, text, sign, text->n));
        return;
    }
    put_padding(b, out, f->fill, left);
    sl_j_put_string(b, out, text);
    put_padding(b, out, f->fill, pad - left);
}

static void put_formatted_number(j_base *b, j_buffer *out, j_value v, const format_spec *f) {
    char text[400], sign[2] = {f->sign == '+' || f->sign == ' ' ? f->sign : 0, 0};
    char type = f->type ? f->type : 'd';
    if (type == 'f' || type == 'F' || type == 'e' || type == 'g') {
        double x = v.type == J_FLOAT ? v.f : (double)v.i;
        const char *formats[] = {"%.*f", "%.*e", "%.*g"};
        if (!isfinite(x) || f->precision > 60) sl_j_fail(b, SL_ERR_UNSUPPORTED, "this format of a float is not supported");
        int precision = f->precision < 0 ? 6 : f->precision;
        size_t n = signbit(x) ? 0 : (size_t)snprintf(text, sizeof text, "%s", sign);
        sl_print(text + n, sizeof text - n, formats[type == 'e' ? 1 : type == 'g' ? 2 : 0], precision, x);
    } else {
        if (v.type == J_FLOAT && f->type != 'd') sl_j_fail(b, SL_ERR_UNSUPPORTED, "this format of a float is not supported");
        int64_t i = v.type == J_FLOAT ? (int64_t)v.f : v.i;
        unsigned long long size = i < 0 ? 0 - (unsigned long long)i : (unsigned long long)i;
        const char *minus = i < 0 ? "-" : sign;
        if (type == 'd')
            snprintf(text, sizeof text, "%s%llu", minus, size);
        else
            snprintf(text, sizeof text, type == 'x' ? "%s%llx" : type == 'X' ? "%s%llX" : "%s%llo", minus, size);
    }
    put_padded(b, out, sl_j_string(b, text, strlen(text)), f, '>');
}

static int read_count(const char **p, const char *end) {
    int n = 0;
    while (*p < end && **p >= '0' && **p <= '9' && n < 100000) n = 10 * n + *(*p)++ - '0';
    return n;
}

static void put_percent(j_base *b, j_buffer *out, j_value v, format_spec *f, char type) {
    static const j_string empty = {.s = ""};
    const j_string *text = &empty;
    switch (type) {
    case 's':
    case 'r':
        text = type == 's' ? sl_j_str(b, v) : sl_j_repr(b, v);
        if (f->precision >= 0) text = sl_j_part(b, text, 0, sl_j_offset(text, (size_t)f->precision));
        f->fill = ' ';
        put_padded(b, out, text, f, '>');
        return;
    case 'd':
    case 'i':
    case 'x':
    case 'X':
    case 'o':
    case 'f':
    case 'F':
    case 'e':
    case 'g':
        if (!sl_j_is_number(v) || ((type == 'x' || type == 'X' || type == 'o') && v.type == J_FLOAT))
            sl_j_fail(b, SL_ERR_ARG, "%%%c format: a number is required, not %s", type, sl_j_type_name(v));
        f->type = type == 'i' ? 'd' : type;
        if (f->type == 'd' && f->precision >= 0) break;
        if (f->zero && !f->align) f->fill = '0', f->align = '=';
        put_formatted_number(b, out, v, f);
        return;
    default:
        break;
    }
    sl_j_fail(b, SL_ERR_UNSUPPORTED, "the format %%%c is not supported", type);
}

const j_string *sl_j_percent(j_base *b, const j_string *format, j_value args) {
    const char *p = format->s, *end = p + format->n;
    j_buffer out = {0};
    size_t used = 0;
    int by_name = 0;
    if (format->safe) sl_j_fail(b, SL_ERR_UNSUPPORTED, "a format string of the filter safe is not supported");
    while (p < end) {
        const char *next = memchr(p, '%', (size_t)(end - p));
        if (!next) next = end;
        sl_j_put_string(b, &out, sl_j_part(b, format, (size_t)(p - format->s), (size_t)(next - format->s)));
        p = next + 1;
        if (next == end) break;
        if (p < end && *p == '%') {
            sl_j_put_text(b, &out, "%");
            p++;
            continue;
        }
        j_value v = args;
        format_spec f = {.fill = ' ', .precision = -1};
        int has_value = 0;
        if (p < end && *p == '(') {
            const char *close = memchr(p, ')', (size_t)(end - p));
            if (!close || args.type != J_DICT) sl_j_fail(b, SL_ERR_ARG, "format requires a mapping");
            const j_value *named = sl_j_dict_find(args.dict, p + 1, (size_t)(close - p - 1));
            if (!named) sl_j_fail(b, SL_ERR_ARG, "KeyError: '%.*s'", (int)(close - p - 1), p + 1);
            v = *named;
            has_value = by_name = 1;
            p = close + 1;
        }
        for (; p < end && strchr("-+ 0#", *p); p++) {
            if (*p == '-') f.align = '<';
            if (*p == '+' || (*p == ' ' && f.sign != '+')) f.sign = *p;
            if (*p == '0') f.zero = 1;
            if (*p == '#') sl_j_fail(b, SL_ERR_UNSUPPORTED, "the flag # of a format is not supported");
        }
        f.width = read_count(&p, end);
        if (p < end && *p == '.') {
            p++;
            f.precision = read_count(&p, end);
        }
        if (p >= end) sl_j_fail(b, SL_ERR_ARG, "incomplete format");
        if (!has_value && args.type == J_TUPLE) {
            if (used >= args.list->n) sl_j_fail(b, SL_ERR_ARG, "not enough arguments for format string");
            v = args.list->items[used];
        }
        if (!has_value && args.type != J_TUPLE && used > 0) sl_j_fail(b, SL_ERR_ARG, "not enough arguments for format string");
        used += !has_value;
        put_percent(b, &out, v, &f, *p++);
    }
    int all_used = args.type == J_TUPLE ? used == args.list->n : used == 1 || args.type == J_DICT || args.type == J_LIST;
    if (!by_name && !all_used) sl_j_fail(b, SL_ERR_ARG, "not all arguments converted during string formatting");
    return sl_j_buffer_string(b, &out);
}

static format_spec read_spec(j_base *b, const char *p, const char *end) {
    format_spec f = {.fill = ' ', .precision = -1};
    uint32_t code;
    size_t len = p < end ? sl_j_char(p, (size_t)(end - p), &code) : 0;
    if (len && p + len < end && strchr("<>^=", p[len])) {
        f.fill = code;
        f.align = p[len];
        p += len + 1;
    } else if (p < end && strchr("<>^=", *p))
        f.align = *p++;
    if (p < end && strchr("+- ", *p)) f.sign = *p++;
    if (p < end && *p == '0') {
        f.zero = 1;
        if (!f.align) f.fill = '0', f.align = '=';
        p++;
    }
    f.width = read_count(&p, end);
    if (p < end && *p == '.') {
        p++;
        f.precision = read_count(&p, end);
    }
    if (p < end && strchr("sdfFxXoeg", *p)) f.type = *p++;
    if (p < end) sl_j_fail(b, SL_ERR_UNSUPPORTED, "this format specification is not supported");
    return f;
}

static void put_formatted(j_base *b, j_buffer *out, j_value v, const char *p, const char *end) {
    if (p == end) {
        sl_j_put_string(b, out, sl_j_str(b, v));
        return;
    }
    format_spec f = read_spec(b, p, end);
    if (v.type == J_STRING && (!f.type || f.type == 's') && !f.sign && f.align != '=') {
        const j_string *text = v.s;
        if (f.precision >= 0) text = sl_j_part(b, text, 0, sl_j_offset(text, (size_t)f.precision));
        put_padded(b, out, text, &f, '<');
    } else if (sl_j_is_number(v) && v.type != J_BOOL && f.type != 's' &&
               (v.type == J_INT || (f.type && strchr("fFeg", f.type)))) {
        if (v.type == J_INT && f.precision >= 0 && (!f.type || !strchr("fFeg", f.type)))
            sl_j_fail(b, SL_ERR_ARG, "Precision not allowed in integer format specifier");
        put_formatted_number(b, out, v, &f);
    } else {
        sl_j_fail(b, SL_ERR_UNSUPPORTED, "this format of a value of the type %s is not supported", sl_j_type_name(v));
    }
}

const j_string *sl_j_format(j_base *b, const j_string *format, const j_args *args) {
    j_buffer out = {0};
    size_t at = 0, automatic = 0;
    while (at < format->n) {
        char c = format->s[at];
        if ((c == '{' || c == '}') && at + 1 < format->n && format->s[at + 1] == c) {
            sl_j_put_string(b, &out, sl_j_part(b, format, at, at + 1));
            at += 2;
        } else if (c == '}') {
            sl_j_fail(b, SL_ERR_ARG, "Single '}' encountered in format string");
        } else if (c != '{') {
            size_t from = at++;
            while (at < format->n && format->s[at] != '{' && format->s[at] != '}') at++;
            sl_j_put_string(b, &out, sl_j_part(b, format, from, at));
        } else {
            const char *p = format->s + at + 1, *close = memchr(p, '}', format->n - at - 1);
            if (!close) sl_j_fail(b, SL_ERR_ARG, "Single '{' encountered in format string");
            size_t n_name = 0;
            while (p + n_name < close && !strchr("!:", p[n_name])) n_name++;
            const char *rest = p + n_name;
            if (memchr(p, '{', (size_t)(close - p)) || memchr(p, '.', n_name) || memchr(p, '[', n_name))
                sl_j_fail(b, SL_ERR_UNSUPPORTED, "this field of a format string is not supported");
            j_value v = {.type = J_UNDEFINED};
            int64_t i = -1;
            if (!n_name) i = (int64_t)automatic++;
            if (i >= 0 || sl_j_parse_int(p, n_name, 10, &i) == 1) {
                if (i < 0 || (uint64_t)i >= args->n)
                    sl_j_fail(b, SL_ERR_ARG, "Replacement index %lld out of range for positional args tuple", (long long)i);
                v = args->items[i];
            } else {
                size_t k = 0;
                while (k < args->n_names && !(args->names[k]->n == n_name && !memcmp(args->names[k]->s, p, n_name))) k++;
                if (k == args->n_names) sl_j_fail(b, SL_ERR_ARG, "KeyError: '%.*s'", (int)n_name, p);
                v = args->values[k];
            }
            if (rest < close && *rest == '!') {
                if (rest + 1 < close && (rest[1] == 's' || rest[1] == 'r'))
                    v = sl_j_text(rest[1] == 's' ? sl_j_str(b, v) : sl_j_repr(b, v));
                else
                    sl_j_fail(b, SL_ERR_UNSUPPORTED, "this conversion of a format string is not supported");
                rest += 2;
            }
            if (rest < close && *rest != ':') sl_j_fail(b, SL_ERR_ARG, "expected ':' after conversion specifier");
            put_formatted(b, &out, v, rest < close ? rest + 1 : close, close);
            at = (size_t)(close - format->s) + 1;
        }
    }
    return sl_j_buffer_string(b, &out);
}

// ---- dates ----

static void put_date_part(j_base *b, j_buffer *out, char letter, int padded, const struct tm *t) {
    static const char *const days[] = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"};
    static const char *const months[] = {"January", "February", "March",     "April",   "May",      "June",
                                         "July",    "August",   "September", "October", "November", "December"};
    char text[32] = "";
    const char *zero2 = padded ? "%02d" : "%d";
    int hour12 = t->tm_hour % 12 ? t->tm_hour % 12 : 12;
    switch (letter) {
    case 'd':
        snprintf(text, sizeof text, zero2, t->tm_mday);
        break;
    case 'e':
        snprintf(text, sizeof text, padded ? "%2d" : "%d", t->tm_mday);
        break;
    case 'm':
        snprintf(text, sizeof text, zero2, t->tm_mon + 1);
        break;
    case 'H':
        snprintf(text, sizeof text, zero2, t->tm_hour);
        break;
    case 'I':
        snprintf(text, sizeof text, zero2, hour12);
        break;
    case 'M':
        snprintf(text, sizeof text, zero2, t->tm_min);
        break;
    case 'S':
        snprintf(text, sizeof text, zero2, t->tm_sec);
        break;
    case 'y':
        snprintf(text, sizeof text, zero2, t->tm_year % 100);
        break;
    case 'j':
        snprintf(text, sizeof text, padded ? "%03d" : "%d", t->tm_yday + 1);
        break;
    case 'Y':
        snprintf(text, sizeof text, "%d", t->tm_year + 1900);
        break;
    case 'F':
        snprintf(text, sizeof text, "%d-%02d-%02d", t->tm_year + 1900, t->tm_mon + 1, t->tm_mday);
        break;
    case 'T':
        snprintf(text, sizeof text, "%02d:%02d:%02d", t->tm_hour, t->tm_min, t->tm_sec);
        break;
    case 'a':
    case 'A':
        snprintf(text, sizeof text, letter == 'A' ? "%s" : "%.3s", days[t->tm_wday % 7]);
        break;
    case 'b':
    case 'h':
    case 'B':
        snprintf(text, sizeof text, letter == 'B' ? "%s" : "%.3s", months[t->tm_mon % 12]);
        break;
    case 'p':
        snprintf(text, sizeof text, t->tm_hour < 12 ? "AM" : "PM");
        break;
    case 'Z': // Python's now() has no time zone
    case 'z':
        break;
    case '%':
        snprintf(text, sizeof text, "%%");
        break;
    default:
        sl_j_fail(b, SL_ERR_UNSUPPORTED, "the part %%%c of a date is not supported", letter);
    }
    sl_j_put_text(b, out, text);
}

const j_string *sl_j_strftime(j_base *b, const j_string *format, time_t now) {
    j_buffer out = {0};
    struct tm t;
    if (!localtime_r(&now, &t)) sl_j_fail(b, SL_ERR_ARG, "the time cannot be converted to a date");
    for (size_t i = 0; i < format->n; i++) {
        if (format->s[i] != '%' || i + 1 == format->n) {
            sl_j_put_string(b, &out, sl_j_part(b, format, i, i + 1));
            continue;
        }
        int padded = format->s[++i] != '-' || i + 1 == format->n;
        if (!padded) i++;
        put_date_part(b, &out, format->s[i], padded, &t);
    }
    return sl_j_buffer_string(b, &out);
}
