// tests/grammar/grammar_oracle.c - see grammar_oracle.h.
#include "tests/grammar/grammar_oracle.h"

#include "tests/test.h"

#include <stdarg.h>
#include <string.h>

const char *const oracle_chars[] = {
    "e", "t", "a", "n", "h", " ", "o", "r", "\xc3\xa9", "\xc3\xa8", "\xe2\x82\xac", "\xf0\x9f\x98\x80", NULL};
enum { N_CHARS = 12 };

// ---- random grammars ----

static int add(oracle *o, oracle_expr e) {
    CHECK(o->n_exprs < ORACLE_EXPRS);
    o->exprs[o->n_exprs] = e;
    return o->n_exprs++;
}

static int make_chars(oracle *o, oracle_kind kind) {
    oracle_expr e = {.kind = kind,
                     .n = 1 + test_below(kind == ORACLE_TEXT ? 3 : 4),
                     .is_inverted = kind == ORACLE_CLASS && test_below(4) == 0};
    for (int i = 0; i < e.n; i++) e.chars[i] = test_below(N_CHARS);
    return add(o, e);
}

// rule: rules above it may stand first; -1: any rule may.
static int make(oracle *o, int rule, int depth, int has_rules) {
    int what = depth == 0 ? test_below(3) : test_below(8);
    if (what == 0) return make_chars(o, ORACLE_TEXT);
    if (what == 1) return make_chars(o, ORACLE_CLASS);
    if (what == 2) {
        int from = rule + 1, n = ORACLE_RULES - from;
        if (!has_rules || n == 0) return make_chars(o, ORACLE_CLASS);
        return add(o, (oracle_expr){.kind = ORACLE_RULE, .part = {from + test_below(n)}});
    }
    if (what == 3) {
        oracle_expr e = {.kind = ORACLE_REPEAT, .part = {make(o, rule, depth - 1, has_rules)}, .min = test_below(3)};
        e.max = test_below(2) ? -1 : e.min + test_below(3);
        return add(o, e);
    }
    oracle_expr e = {.kind = what < 6 ? ORACLE_SEQUENCE : ORACLE_CHOICE, .n = 2 + test_below(2)};
    int is_led = e.kind == ORACLE_SEQUENCE && test_below(2); // by characters: then rules behind them can recur
    for (int i = 0; i < e.n; i++)
        e.part[i] = is_led && i == 0 ? make_chars(o, ORACLE_CLASS) : make(o, is_led ? -1 : rule, depth - 1, has_rules);
    return add(o, e);
}

static int can_produce(const oracle *o, int index) {
    const oracle_expr *e = &o->exprs[index];
    if (e->kind == ORACLE_RULE) return o->productive[e->part[0]];
    if (e->kind == ORACLE_REPEAT) return e->min == 0 || can_produce(o, e->part[0]);
    if (e->kind != ORACLE_SEQUENCE && e->kind != ORACLE_CHOICE) return 1;
    int n = 0;
    for (int i = 0; i < e->n; i++) n += can_produce(o, e->part[i]);
    return e->kind == ORACLE_CHOICE ? n > 0 : n == e->n;
}

void oracle_make(oracle *o, int has_rules) {
    memset(o, 0, sizeof *o);
    for (int r = 0; r < ORACLE_RULES; r++) o->rules[r] = make(o, r, has_rules ? 3 : 4, has_rules);
    for (int pass = 0; pass < ORACLE_RULES; pass++)
        for (int r = 0; r < ORACLE_RULES; r++) o->productive[r] = can_produce(o, o->rules[r]);
}

int oracle_is_productive(const oracle *o) {
    return o->productive[0];
}

// ---- texts ----

typedef struct writer {
    char *out;
    size_t n, size;
} writer;

__attribute__((format(printf, 2, 3))) static void put(writer *w, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    w->n += (size_t)vsnprintf(w->out + w->n, w->size - w->n, fmt, ap);
    va_end(ap);
    CHECK(w->n < w->size);
}

static void print(const oracle *o, int index, int is_gbnf, writer *w) {
    const oracle_expr *e = &o->exprs[index];
    const char *quote = e->kind == ORACLE_TEXT && is_gbnf ? "\"" : "";
    if (e->kind == ORACLE_TEXT || e->kind == ORACLE_CLASS) {
        put(w, "%s%s", e->kind == ORACLE_CLASS ? "[" : quote, e->is_inverted ? "^" : "");
        for (int i = 0; i < e->n; i++) put(w, "%s", oracle_chars[e->chars[i]]);
        put(w, "%s", e->kind == ORACLE_CLASS ? "]" : quote);
    } else if (e->kind == ORACLE_RULE) {
        put(w, e->part[0] == 0 ? "root" : "rule-%d", e->part[0]);
    } else if (e->kind == ORACLE_REPEAT) {
        put(w, "(");
        print(o, e->part[0], is_gbnf, w);
        put(w, ")");
        if (e->min == 0 && e->max == -1)
            put(w, "*");
        else if (e->min == 1 && e->max == -1)
            put(w, "+");
        else if (e->min == 0 && e->max == 1)
            put(w, "?");
        else if (e->max == e->min)
            put(w, "{%d}", e->min);
        else if (e->max == -1)
            put(w, "{%d,}", e->min);
        else
            put(w, "{%d,%d}", e->min, e->max);
    } else {
        put(w, "(");
        for (int i = 0; i < e->n; i++) {
            if (i > 0) put(w, "%s", e->kind == ORACLE_CHOICE ? "|" : is_gbnf ? " " : "");
            print(o, e->part[i], is_gbnf, w);
        }
        put(w, ")");
    }
}

size_t oracle_print_gbnf(const oracle *o, char *out, size_t size) {
    writer w = {out, 0, size};
    for (int r = 0; r < ORACLE_RULES; r++) {
        put(&w, r == 0 ? "root ::= " : "rule-%d ::= ", r);
        print(o, o->rules[r], 1, &w);
        put(&w, "\n");
    }
    return w.n;
}

size_t oracle_print_regex(const oracle *o, char *out, size_t size) {
    writer w = {out, 0, size};
    print(o, o->rules[0], 0, &w);
    return w.n;
}

// ---- matching ----

static int is_member(const oracle_expr *e, const char *s, size_t n) {
    for (int i = 0; i < e->n; i++)
        if (strlen(oracle_chars[e->chars[i]]) == n && !memcmp(oracle_chars[e->chars[i]], s, n)) return !e->is_inverted;
    return e->is_inverted;
}

// Returns how many bytes a character has that begins with the byte c. -1: no character begins with c.
static int length_of(unsigned char c) {
    return c < 0x80 ? 1 : c < 0xc2 ? -1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : -1;
}

// Whether s[0..n) are the first bytes of a character of `length` bytes.
static int is_start(const unsigned char *s, int n, int length) {
    static const unsigned char low[] = {[0] = 0xa0, [0x10] = 0x90}, high[] = {[0x0d] = 0x9f, [0x14] = 0x8f};
    if (length < 0 || n > length) return 0;
    for (int i = 1; i < n; i++) {
        unsigned char lo = 0x80, hi = 0xbf;
        if (i == 1 && (s[0] == 0xe0 || s[0] == 0xf0)) lo = low[s[0] - 0xe0];
        if (i == 1 && (s[0] == 0xed || s[0] == 0xf4)) hi = high[s[0] - 0xe0];
        if (s[i] < lo || s[i] > hi) return 0;
    }
    return 1;
}

// The characters of a class in full, else the first bytes of one.
static uint64_t class_ends(const oracle *o, const oracle_expr *e, int i) {
    const unsigned char *s = (const unsigned char *)o->text + i;
    int length = i < o->n ? length_of(s[0]) : -1;
    if (length < 0 || i + length > o->n || !is_start(s, length, length)) return 0;
    return is_member(e, o->text + i, (size_t)length) ? 1ull << (i + length) : 0;
}

static int class_live(const oracle *o, const oracle_expr *e, int i) {
    const unsigned char *s = (const unsigned char *)o->text + i;
    int n = o->n - i, length = n > 0 ? length_of(s[0]) : 0;
    if (n == 0) return 1;
    if (n == length) return class_ends(o, e, i) != 0;
    if (n > length || !is_start(s, n, length)) return 0;
    if (e->is_inverted) return 1; // 64 characters begin with these bytes, and a class excludes at most 4
    for (int k = 0; k < e->n; k++)
        if ((int)strlen(oracle_chars[e->chars[k]]) == length && !memcmp(oracle_chars[e->chars[k]], s, (size_t)n)) return 1;
    return 0;
}

static size_t text_of(const oracle_expr *e, char *out) {
    out[0] = 0;
    for (int k = 0; k < e->n; k++) strcat(out, oracle_chars[e->chars[k]]);
    return strlen(out);
}

static uint64_t ends_of(oracle *o, int index, int i);
static int is_live(oracle *o, int index, int i);

static uint64_t ends_of_all(oracle *o, int index, uint64_t from) {
    uint64_t out = 0;
    for (int i = 0; i <= o->n; i++)
        if (from >> i & 1) out |= ends_of(o, index, i);
    return out;
}

static int is_live_any(oracle *o, int index, uint64_t from) {
    for (int i = 0; i <= o->n; i++)
        if (from >> i & 1 && is_live(o, index, i)) return 1;
    return 0;
}

// The ends of a repetition; *live: the text ends within it.
static uint64_t repeat(oracle *o, const oracle_expr *e, int i, int *live) {
    uint64_t at = 1ull << i, out = 0;
    *live = 0;
    for (int k = 0; at; k++) {
        if (k >= e->min && !(at & ~out)) break; // nothing new
        if (k >= e->min) out |= at;
        if (e->max >= 0 && k == e->max) break;
        *live |= is_live_any(o, e->part[0], at);
        at = ends_of_all(o, e->part[0], at);
    }
    *live |= (int)(out >> o->n & 1);
    return out;
}

static uint64_t ends_of(oracle *o, int index, int i) {
    const oracle_expr *e = &o->exprs[index];
    char text[32];
    uint64_t out = 0;
    size_t n;
    int live;
    switch (e->kind) {
    case ORACLE_TEXT:
        n = text_of(e, text);
        return i + (int)n <= o->n && !memcmp(o->text + i, text, n) ? 1ull << (i + (int)n) : 0;
    case ORACLE_CLASS:
        return class_ends(o, e, i);
    case ORACLE_SEQUENCE:
        out = 1ull << i;
        for (int k = 0; k < e->n; k++) out = ends_of_all(o, e->part[k], out);
        return out;
    case ORACLE_CHOICE:
        for (int k = 0; k < e->n; k++) out |= ends_of(o, e->part[k], i);
        return out;
    case ORACLE_REPEAT:
        return repeat(o, e, i, &live);
    default:
        if (!o->ends_known[e->part[0]][i]) {
            o->ends[e->part[0]][i] = ends_of(o, o->rules[e->part[0]], i);
            o->ends_known[e->part[0]][i] = 1;
        }
        return o->ends[e->part[0]][i];
    }
}

// Whether the text from i to its end begins a text of the expression.
static int is_live(oracle *o, int index, int i) {
    const oracle_expr *e = &o->exprs[index];
    char text[32];
    uint64_t at = 1ull << i;
    int live = 0, n = o->n - i;
    if (!can_produce(o, index)) return 0;
    switch (e->kind) {
    case ORACLE_TEXT:
        return n <= (int)text_of(e, text) && !memcmp(text, o->text + i, (size_t)n);
    case ORACLE_CLASS:
        return class_live(o, e, i);
    case ORACLE_SEQUENCE:
        for (int k = 0; k < e->n && !live; k++) {
            live = is_live_any(o, e->part[k], at);
            at = ends_of_all(o, e->part[k], at);
        }
        return live;
    case ORACLE_CHOICE:
        for (int k = 0; k < e->n && !live; k++) live = is_live(o, e->part[k], i);
        return live;
    case ORACLE_REPEAT:
        repeat(o, e, i, &live);
        return live;
    default:
        if (o->live[e->part[0]][i] < 0) o->live[e->part[0]][i] = (int8_t)is_live(o, o->rules[e->part[0]], i);
        return o->live[e->part[0]][i];
    }
}

void oracle_match(oracle *o, const char *text, size_t n, int *follows, int *is_prefix) {
    CHECK(n <= ORACLE_LONGEST);
    o->text = text;
    o->n = (int)n;
    memset(o->ends_known, 0, sizeof o->ends_known);
    memset(o->live, -1, sizeof o->live);
    *follows = (int)(ends_of(o, o->rules[0], 0) >> n & 1);
    *is_prefix = is_live(o, o->rules[0], 0);
}
