// tokenizer/pattern_syntax.c - reads the regular expression of a pre-tokenizer, in Oniguruma's syntax with Ruby's options, as
// the Python package tokenizers does. Rust's engines (tiktoken) agree on all that published patterns use.
//
// The reader turns each part that matches one character into a set of code points: letters, classes, \p{L}, \s, and letters of
// both cases below (?i). So neither the version of Unicode nor the case folding of the regex library changes the pieces.
// The reader refuses syntax that it does not know, and syntax for which Oniguruma has rules of its own.
#include "tokenizer/pattern_syntax.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_GROUPS = 100, MOST_NESTED_CLASSES = 20, MOST_COUNT = 1000, REFUSED = SL_ERR_UNSUPPORTED };

typedef struct group {
    size_t start;         // in the text
    int fold, all, looks; // outside the group: (?i), (?m); the group itself looks ahead or behind
} group;

typedef struct reader {
    const char *p;
    sl_syntax *out;
    const char *why;
    sl_error *err;
    int fold, all; // inside (?i), (?m)
    group groups[MOST_GROUPS];
    int depth;
    int has_atom;  // 0: a quantifier cannot follow
    size_t atom;   // start of the last atom in the text
    uint32_t last; // inside (?i): the last atom if it is a small letter of ASCII, else 0
} reader;

static int refuse(reader *r, const char *why) {
    r->why = why;
    return REFUSED;
}

// ---- output ----

static int put(reader *r, const char *s) {
    return sl_text_append(&r->out->text, s, strlen(s), r->err);
}

static int equal_sets(const sl_points *a, const sl_points *b) {
    return a->n == b->n && (a->n == 0 || !memcmp(a->ranges, b->ranges, a->n * sizeof *a->ranges));
}

// Writes a reference to the set. Takes the ranges of *set, also after an error.
static int put_set(reader *r, sl_points *set) {
    sl_syntax *s = r->out;
    int i = 0;
    sl_points_sort(set);
    while (i < s->n_sets && !equal_sets(&s->sets[i], set)) i++;
    if (i < s->n_sets) {
        sl_points_free(set);
    } else {
        if (i == SL_SYNTAX_MOST_SETS) return sl_points_free(set), refuse(r, "too many sets of characters");
        if (s->n_sets == s->cap) {
            int cap = s->cap ? 2 * s->cap : 16;
            sl_points *more = realloc(s->sets, (size_t)cap * sizeof *more);
            if (!more)
                return sl_points_free(set), sl_fail(r->err, SL_ERR_MEMORY, "a pattern of a pre-tokenizer: out of memory");
            s->sets = more;
            s->cap = cap;
        }
        s->sets[s->n_sets++] = *set;
    }
    char bytes[2] = {(char)(SL_SYNTAX_SET | i >> SL_SYNTAX_BITS), (char)(SL_SYNTAX_SET | (i & (SL_SYNTAX_SET - 1)))};
    return sl_text_append(&s->text, bytes, 2, r->err);
}

static void begin_atom(reader *r) {
    r->atom = r->out->text.n;
    r->has_atom = 1;
    r->last = 0;
}

static int put_atom(reader *r, sl_points *set) {
    begin_atom(r);
    return put_set(r, set);
}

static int put_range(reader *r, uint32_t first, uint32_t last, int negate) {
    sl_points set = {0};
    int rc = sl_points_add(&set, first, last, r->err);
    if (!rc && negate) rc = sl_points_complement(&set, r->err);
    return rc ? (sl_points_free(&set), rc) : put_set(r, &set);
}

// Encloses the last atom in a group.
static int wrap_atom(reader *r) {
    static const char open[] = "(?:";
    sl_text *text = &r->out->text;
    int rc = put(r, open);
    if (rc) return rc;
    memmove(text->data + r->atom + strlen(open), text->data + r->atom, text->n - strlen(open) - r->atom);
    memcpy(text->data + r->atom, open, strlen(open));
    return put(r, ")");
}

// ---- characters ----

static int hex(const char *p, int most, uint32_t *c) { // digits read
    int n = 0;
    for (*c = 0; n < most && p[n] && strchr("0123456789abcdefABCDEF", p[n]); n++)
        *c = *c << 4 | (uint32_t)(p[n] <= '9' ? p[n] - '0' : (p[n] | 32) - 'a' + 10);
    return n;
}

static int is_scalar(uint32_t c) {
    return c < SL_CODE_POINTS && !(c >= 0xd800 && c < 0xe000);
}

// Reads \xHH, \x{H...} and \uHHHH. p: at the x or u.
static int read_code(reader *r, uint32_t *c) {
    const char *p = r->p;
    int braces = p[0] == 'x' && p[1] == '{', want = p[0] == 'u' ? 4 : 2;
    int n = hex(p + 1 + braces, braces ? 8 : want, c);
    if (braces ? n == 0 || p[2 + n] != '}' : n != want) return refuse(r, "an escape of a code point in another form");
    if (!is_scalar(*c)) return refuse(r, "no code point");
    // Oniguruma reads \xE9 as one byte of UTF-8
    if (p[0] == 'x' && !braces && *c >= 0x80) return refuse(r, "an \\x escape of a byte that is not ASCII");
    r->p += 1 + braces + n + braces;
    return 0;
}

// Reads the escape of one character. p: after the backslash.
static int read_escaped(reader *r, uint32_t *c) {
    static const char letters[] = "ntrfvae", values[] = "\n\t\r\f\v\a\x1b";
    const char *p = r->p, *known = *p ? strchr(letters, *p) : NULL;
    if (*p == 'x' || *p == 'u') return read_code(r, c);
    int plain = *p > ' ' && *p < 0x7f && !(*p >= '0' && *p <= '9') && !((*p | 32) >= 'a' && (*p | 32) <= 'z');
    if (!known && !plain && *p != ' ') return refuse(r, "an escape that Sleigh does not know");
    *c = known ? (unsigned char)values[known - letters] : (unsigned char)*p;
    r->p++;
    return 0;
}

static int read_char(reader *r, uint32_t *c) { // no escape
    const unsigned char *s = (const unsigned char *)r->p;
    size_t n = sl_utf8_length(s, strlen(r->p));
    if (n == 0) return refuse(r, "a byte that is not UTF-8");
    *c = n == 1 ? s[0] : s[0] & (0xff >> (n + 1));
    for (size_t i = 1; i < n; i++) *c = *c << 6 | (s[i] & 0x3f);
    r->p += n;
    return 0;
}

// ---- sets ----

// Adds what an escape like \d means. *is_set 0: the escape is none of these. p: after the backslash.
static int add_escaped_set(reader *r, int in_class, sl_points *out, int *is_set) {
    // Oniguruma's \w matches U+00B2, U+00B3, U+00B9 and U+00BC to U+00BE outside a class only.
    static const struct {
        char letter;
        const char *posix;
    } all[] = {{'d', "digit"}, {'s', "space"}, {'w', "word"}, {'h', "xdigit"}};
    sl_points set = {0};
    int found = 0, rc = 0;
    for (size_t i = 0; i < 4 && !found; i++)
        if ((*r->p | 32) == all[i].letter) rc = sl_points_add_posix(&set, all[i].posix, strlen(all[i].posix), &found, r->err);
    *is_set = found;
    if (!rc && found && !in_class && (*r->p | 32) == 'w') {
        rc = sl_points_add(&set, 0xb2, 0xb3, r->err);
        if (!rc) rc = sl_points_add(&set, 0xb9, 0xb9, r->err);
        if (!rc) rc = sl_points_add(&set, 0xbc, 0xbe, r->err);
    }
    if (!rc && found && !(*r->p & 32)) rc = sl_points_complement(&set, r->err);
    if (!rc && found) rc = sl_points_add_set(out, sl_points_sort(&set), r->err);
    sl_points_free(&set);
    r->p += found;
    return rc;
}

// Adds \p{Lu}, \p{^Lu} or \P{Lu}. p: at the p.
static int add_property(reader *r, sl_points *out) {
    const char *name = r->p + 2, *end = r->p[1] == '{' ? strchr(name, '}') : NULL;
    int negate = *r->p == 'P', found;
    if (!end) return refuse(r, "a property without braces");
    if (*name == '^') negate = !negate, name++;
    sl_points set = {0};
    int rc = sl_points_add_property(&set, name, (size_t)(end - name), &found, r->err);
    if (!rc && !found) rc = refuse(r, "a property that Sleigh does not know");
    if (!rc && negate) rc = sl_points_complement(&set, r->err);
    if (!rc) rc = sl_points_add_set(out, sl_points_sort(&set), r->err);
    sl_points_free(&set);
    if (!rc) r->p = end + 1;
    return rc;
}

// Adds [:alpha:] or [:^alpha:]. p: at the bracket.
static int add_posix(reader *r, sl_points *out) {
    int negate = r->p[2] == '^', found = 0;
    const char *name = r->p + 2 + negate, *end = strstr(name, ":]");
    sl_points set = {0};
    int rc = end ? sl_points_add_posix(&set, name, (size_t)(end - name), &found, r->err) : 0;
    if (!rc && !found) rc = refuse(r, "a named class that Sleigh does not know");
    if (!rc && negate) rc = sl_points_complement(&set, r->err);
    if (!rc) rc = sl_points_add_set(out, sl_points_sort(&set), r->err);
    sl_points_free(&set);
    if (!rc) r->p = end + 2;
    return rc;
}

// ---- classes ----

static int read_class(reader *r, int depth, sl_points *out);

// Reads one character of a class, or adds a set of characters (*is_set).
static int read_member(reader *r, sl_points *out, uint32_t *c, int *is_set) {
    *is_set = 0;
    if (!*r->p) return refuse(r, "the end of the pattern in a class");
    if (*r->p != '\\') return read_char(r, c);
    r->p++;
    int rc = add_escaped_set(r, 1, out, is_set);
    if (rc || *is_set) return rc;
    if (*r->p == 'p' || *r->p == 'P') return *is_set = 1, add_property(r, out);
    if (*r->p == 'b') return *c = '\b', r->p++, 0;
    return read_escaped(r, c);
}

static int read_range(reader *r, int is_first, sl_points *out) {
    uint32_t first, last;
    int is_set, is_dash = *r->p == '-', rc = read_member(r, out, &first, &is_set);
    if (rc || is_set) return rc;
    if (is_dash && !is_first && *r->p != ']')
        return refuse(r, "a - in a class that is neither at an end nor between characters");
    last = first;
    if (r->p[0] == '-' && r->p[1] != ']') {
        r->p++;
        if (*r->p == '[') return refuse(r, "a class as the end of a range");
        rc = read_member(r, out, &last, &is_set);
        if (rc) return rc;
        if (is_set || last < first) return refuse(r, "a range without an end, or with an end before its start");
    }
    return sl_points_add(out, first, last, r->err);
}

// Reads the members up to "&&" or "]".
static int read_members(reader *r, int depth, sl_points *out) {
    int rc = 0;
    const char *start = r->p;
    while (!rc && (*r->p != ']' || r->p == start) && strncmp(r->p, "&&", 2)) {
        if (r->p[0] == '[' && r->p[1] == ':')
            rc = add_posix(r, out);
        else if (*r->p == '[')
            rc = read_class(r, depth + 1, out);
        else
            rc = read_range(r, r->p == start, out);
    }
    return !rc && r->p == start ? refuse(r, "&& with nothing before it") : rc;
}

// Oniguruma folds the case of the whole class before it negates it. Letters such as U+00DF also match two letters there.
static int finish_class(reader *r, int depth, int negate, sl_points *set) {
    int rc = 0;
    if (depth == 0 && r->fold) {
        rc = sl_points_fold(set, r->err);
        if (!rc && !negate && sl_code_sets_meet(sl_points_sort(set), sl_long_folds))
            return refuse(r, "(?i) with a class that has letters like \xc3\x9f, whose other case is two letters");
    }
    return rc || !negate ? rc : sl_points_complement(set, r->err);
}

// Adds a class. p: at the bracket. The first ] of a class is a letter.
static int read_class(reader *r, int depth, sl_points *out) {
    sl_points all = {0}, more = {0};
    int negate = r->p[1] == '^';
    if (depth == MOST_NESTED_CLASSES) return refuse(r, "classes in classes, too deep");
    r->p += 1 + negate;
    int rc = read_members(r, depth, &all);
    while (!rc && *r->p == '&') {
        r->p += 2;
        if (*r->p == ']') rc = refuse(r, "&& with nothing after it");
        if (!rc) rc = read_members(r, depth, &more);
        if (!rc) rc = sl_points_intersect(&all, sl_points_sort(&more), r->err);
        sl_points_free(&more);
    }
    if (!rc) r->p++;
    if (!rc) rc = finish_class(r, depth, negate, &all);
    if (!rc) rc = sl_points_add_set(out, sl_points_sort(&all), r->err);
    sl_points_free(&all);
    return rc;
}

// ---- atoms ----

static int is_letter_or_mark(uint32_t c) {
    return c >= 0x80 && sl_unicode_is(SL_UNICODE_WORD, c);
}

// Inside (?i), Oniguruma also matches letters of two characters: "ss" matches U+00DF.
static int joins(uint32_t before, uint32_t c) {
    return (before == 's' && (c == 's' || c == 't')) || (before == 'f' && (c == 'f' || c == 'i' || c == 'l'));
}

static int put_letter(reader *r, uint32_t c) {
    uint32_t small = c >= 'A' && c <= 'Z' ? c + 32 : c, before = r->last;
    sl_points set = {0};
    int rc = sl_points_add(&set, c, c, r->err);
    if (!rc && r->fold) {
        if (is_letter_or_mark(c)) rc = refuse(r, "(?i) with a letter that is not ASCII");
        if (joins(before, small)) rc = refuse(r, "(?i) with letters that another letter stands for");
        if (!rc) rc = sl_points_fold(&set, r->err);
    }
    if (rc) return sl_points_free(&set), rc;
    rc = put_atom(r, &set);
    r->last = r->fold && small >= 'a' && small <= 'z' ? small : 0;
    return rc;
}

static int put_word(reader *r, const char *before) { // `before`, and the set of \w
    reader word = {.p = "w", .err = r->err};
    sl_points set = {0};
    int is_set, rc = put(r, before);
    if (!rc) rc = add_escaped_set(&word, 0, &set, &is_set);
    return rc ? (sl_points_free(&set), rc) : put_set(r, &set);
}

static int put_boundary(reader *r, int negate) {
    int rc = put_word(r, negate ? "(?:(?<=" : "(?:(?<!");
    if (!rc) rc = put_word(r, ")(?=");
    if (!rc) rc = put_word(r, negate ? ")|(?<!" : ")|(?<=");
    if (!rc) rc = put_word(r, ")(?!");
    return rc ? rc : put(r, "))");
}

// In Ruby, ^ and $ stand for lines, and \Z may stand before a last newline. No line begins at the end of the text.
static int put_anchor(reader *r, char which) {
    r->has_atom = 0;
    r->last = 0;
    if (which == 'A' || which == 'z') return put(r, which == 'A' ? "\\A" : "\\z");
    if (which == 'b' || which == 'B') return put_boundary(r, which == 'B');
    int rc = put(r, which == '^' ? "(?:\\A|(?<=" : which == '$' ? "(?!" : "(?=");
    if (!rc) rc = put_range(r, '\n', '\n', which == '$');
    return rc ? rc : put(r, which == '^' ? ")(?!\\z))" : which == '$' ? ")" : "?\\z)");
}

static int read_escape(reader *r) { // p: after the backslash
    uint32_t c;
    sl_points set = {0};
    int is_set, rc;
    if (*r->p && strchr("AzZbB", *r->p)) return put_anchor(r, *r->p++);
    if (*r->p == 'p' || *r->p == 'P')
        rc = add_property(r, &set), is_set = 1;
    else
        rc = add_escaped_set(r, 0, &set, &is_set);
    if (!rc && is_set) return put_atom(r, &set);
    sl_points_free(&set);
    if (!rc) rc = read_escaped(r, &c);
    return rc ? rc : put_letter(r, c);
}

// ---- groups and quantifiers ----

static int open_group(reader *r) {
    static const struct {
        const char *open, *put;
        int fold, all, looks; // -1: as outside
    } kinds[] = {
        {"(?:", "(?:", -1, -1, 0},   {"(?>", "(?>", -1, -1, 0},   {"(?=", "(?=", -1, -1, 1}, {"(?!", "(?!", -1, -1, 1},
        {"(?<=", "(?<=", -1, -1, 1}, {"(?<!", "(?<!", -1, -1, 1}, {"(?i:", "(?:", 1, -1, 0}, {"(?-i:", "(?:", 0, -1, 0},
        {"(?m:", "(?:", -1, 1, 0},   {"(?-m:", "(?:", -1, 0, 0},
    };
    size_t i = 0, n = sizeof kinds / sizeof *kinds;
    while (i < n && strncmp(r->p, kinds[i].open, strlen(kinds[i].open))) i++;
    if (i == n && (r->p[1] == '?' || r->p[1] == '*')) return refuse(r, "a group or flag that Sleigh does not know");
    if (r->depth == MOST_GROUPS) return refuse(r, "groups in groups, too deep");
    r->groups[r->depth++] = (group){r->out->text.n, r->fold, r->all, i < n && kinds[i].looks};
    if (i < n && kinds[i].fold >= 0) r->fold = kinds[i].fold;
    if (i < n && kinds[i].all >= 0) r->all = kinds[i].all;
    r->p += i < n ? strlen(kinds[i].open) : 1;
    r->has_atom = 0;
    return put(r, i < n ? kinds[i].put : "(?:"); // a group that catches text is a group: no pattern reads what it caught
}

static int close_group(reader *r) {
    if (r->depth == 0) return refuse(r, "a ) without a (");
    const group *g = &r->groups[--r->depth];
    r->fold = g->fold;
    r->all = g->all;
    r->atom = g->start;
    r->has_atom = !g->looks;
    r->p++;
    return put(r, ")");
}

// Reads the count {n}, {n,}, {n,m} or {,m}. Returns its length, or 0: the brace is a letter.
static size_t read_count(const char *p, unsigned long *least, unsigned long *most, int *has_comma, int *open) {
    const char *q = p + 1;
    size_t digits = strspn(q, "0123456789"), more = 0;
    *least = digits ? strtoul(q, NULL, 10) : 0;
    q += digits;
    *has_comma = *q == ',';
    if (*has_comma) more = strspn(++q, "0123456789");
    *most = more ? strtoul(q, NULL, 10) : *least;
    *open = *has_comma && !more;
    q += more;
    return *q == '}' && (digits || more) ? (size_t)(q - p) + 1 : 0;
}

// Oniguruma reads a{2}? as (?:a{2})?, and a{1,3}+ as (?:a{1,3})+.
static int read_braces(reader *r) {
    unsigned long least, most;
    int has_comma, open;
    char count[64];
    size_t n = read_count(r->p, &least, &most, &has_comma, &open);
    if (n == 0) return r->p++, put_letter(r, '{');
    if (!r->has_atom) return refuse(r, "a count without a part of the pattern before it");
    if (least > MOST_COUNT || most > MOST_COUNT || (!open && most < least)) return refuse(r, "a count out of range");
    if (open)
        snprintf(count, sizeof count, "{%lu,}", least);
    else
        snprintf(count, sizeof count, "{%lu,%lu}", least, most);
    r->p += n;
    int rc = put(r, count);
    char after = *r->p;
    if (!rc && after == '?' && has_comma)
        rc = put(r, "?");
    else if (!rc && (after == '?' || after == '+')) {
        rc = wrap_atom(r);
        if (!rc) rc = put(r, after == '?' ? "?" : "+");
    }
    r->p += after == '?' || after == '+';
    r->has_atom = 0;
    return rc;
}

static int read_quantifier(reader *r) {
    char text[3] = {*r->p++};
    if (!r->has_atom) return r->p--, refuse(r, "a quantifier without a part of the pattern before it");
    if (*r->p == '?' || *r->p == '+') text[1] = *r->p++;
    r->has_atom = 0;
    return put(r, text);
}

static int read_part(reader *r) {
    uint32_t c;
    sl_points set = {0};
    int rc;
    switch (*r->p) {
    case '\\':
        return r->p++, read_escape(r);
    case '(':
        return open_group(r);
    case ')':
        return close_group(r);
    case '*':
    case '+':
    case '?':
        return read_quantifier(r);
    case '{':
        return read_braces(r);
    case '^':
    case '$':
        return put_anchor(r, *r->p++);
    case '|':
        return r->p++, r->has_atom = 0, r->last = 0, put(r, "|");
    case '.':
        return r->p++, begin_atom(r), r->all ? put_range(r, 0, SL_CODE_POINTS - 1, 0) : put_range(r, '\n', '\n', 1);
    case '[':
        rc = read_class(r, 0, &set);
        return rc ? (sl_points_free(&set), rc) : put_atom(r, &set);
    default:
        rc = read_char(r, &c);
        return rc ? rc : put_letter(r, c);
    }
}

int sl_syntax_read(const char *regex, sl_syntax *out, const char **why, size_t *at, sl_error *err) {
    reader r = {.p = regex, .out = out, .err = err};
    *out = (sl_syntax){0};
    *why = NULL;
    if (!strncmp(regex, "(?i)", 4)) r.fold = 1, r.p += 4; // in mid-pattern, engines disagree about the alternatives that follow
    int rc = put(&r, "");
    const char *part = r.p;
    while (!rc && *r.p) {
        part = r.p;
        rc = read_part(&r);
    }
    if (!rc && r.depth > 0) rc = refuse(&r, "a ( without a )"), part = r.p;
    *why = r.why;
    *at = (size_t)(part - regex);
    return rc;
}

void sl_syntax_free(sl_syntax *s) {
    for (int i = 0; i < s->n_sets; i++) sl_points_free(&s->sets[i]);
    free(s->sets);
    sl_text_free(&s->text);
    *s = (sl_syntax){0};
}
