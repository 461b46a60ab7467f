// tokenizer/pretokenize.c - splits text into pieces by a model's pre-tokenizer pattern, with PCRE2 and its JIT.
//
// The patterns are written for Oniguruma (Hugging Face) and Rust's engines (tiktoken). The \s of these engines is Unicode's
// White_Space; PCRE2's \s also matches U+180E. So this file replaces \s and \S by explicit character classes before compiling.
// Syntax that has another meaning in PCRE2 than in one of those engines is refused (check_escape, check_group,
// check_quantifier). The error gives the pattern and the position.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/tokenizer_internal.h"
#include "engine/base/utf8.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char sl_pattern_llama3[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const char sl_pattern_gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

#define WHITE "\\t-\\r\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

enum { MOST_STACK = 512 << 20 };

struct sl_pattern {
    pcre2_code *code;
};

static int put(sl_text *out, const char *s, sl_error *err) {
    return sl_text_append(out, s, strlen(s), err);
}

// ---- syntax with several meanings. Each check returns the reason to refuse, or NULL if all engines agree ----

static size_t count_digits(const char *p) {
    return strspn(p, "0123456789");
}

// p: after the backslash. In Oniguruma, \h is a hex digit, \v is one character, and \K and \G depend on the start of the
// search. \w there includes marks and fewer numbers, so \b and \B match at other places. Clusters (\X), line breaks (\R), \Q,
// \N, \c, octal escapes and bytes beyond ASCII (\xE9) differ from engine to engine.
static const char *check_escape(const char *p, int in_class) {
    if (*p == 'p' || *p == 'P') { // general categories; a script is PCRE2's Script_Extensions from 10.40 on
        int letters = p[1] != '{' || !p[2] ? 0 : p[3] == '}' ? 1 : p[3] && p[4] == '}' ? 2 : 0;
        if (letters && strchr("CLMNPSZ", p[2]) && (letters == 1 || (p[3] >= 'a' && p[3] <= 'z'))) return NULL;
        return "a property that is no general category";
    }
    if (*p == 'x') {
        if (p[1] == '{' || (p[1] >= '0' && p[1] <= '7' && p[2] && strchr("0123456789abcdefABCDEF", p[2]))) return NULL;
        return "an \\x escape that is neither \\x{...} nor two digits of ASCII";
    }
    if (*p >= '1' && *p <= '9') return in_class || count_digits(p) > 1 ? "an octal escape or a reference beyond 9" : NULL;
    int plain = !((*p >= '0' && *p <= '9') || (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p & 0x80));
    if (plain || strchr(in_class ? "abdDefnrst" : "aAdDefnrsStzZ", *p)) return NULL;
    return "an escape that means something else, or nothing, in another engine";
}

// p: at the parenthesis. Oniguruma's (?m) is PCRE2's (?s), and its (?i) in mid-pattern covers the alternatives that follow.
// Verbs, conditions, calls, comments and free spacing differ from engine to engine.
static const char *check_group(const char *p, int at_start) {
    static const char *const agreed[] = {"?:", "?=", "?!", "?>", "?<=", "?<!", "?i:", "?-i:"};
    if (p[1] == '*') return "a verb";
    if (p[1] != '?' || (at_start && !strncmp(p, "(?i)", 4))) return NULL;
    for (size_t i = 0; i < sizeof agreed / sizeof *agreed; i++)
        if (!strncmp(p + 1, agreed[i], strlen(agreed[i]))) return NULL;
    return "a group or flag that means something else, or nothing, in another engine";
}

// p: at the brace. Oniguruma reads a{2}? as (?:a{2})?, a{1,3}+ as (?:a{1,3})+, and {,3} as a quantifier.
static const char *check_quantifier(const char *p) {
    size_t least = count_digits(p + 1), comma = p[1 + least] == ',', most = comma ? count_digits(p + 2 + least) : 0;
    const char *end = p + 1 + least + comma + most;
    if (*end != '}' || (least == 0 && most == 0)) return NULL; // letters
    if (least == 0) return "{,n}";
    if (end[1] == '+') return "a + after a count in braces";
    return end[1] == '?' && !comma ? "a ? after a count in braces" : NULL;
}

static const char *check_char(const char *regex, const char *p, int in_class) {
    if (*p == '\\') return in_class && p[1] == 'S' ? "\\S inside a character class" : check_escape(p + 1, in_class);
    if (in_class) return *p == '[' ? "[ inside a character class" : p[0] == '&' && p[1] == '&' ? "&&, an intersection" : NULL;
    if (*p == '^' || *p == '$') return "an anchor, which stands for lines in some engines and for the text in others";
    return *p == '(' ? check_group(p, p == regex) : *p == '{' ? check_quantifier(p) : NULL;
}

// The first ']' of a class is a letter. An unescaped '[' in a class nests classes in some engines and is a letter in others.
static int spell_out_white(const char *file, const char *regex, sl_text *out, sl_error *err) {
    int in_class = 0, rc = 0;
    for (const char *p = regex; !rc && *p; p++) {
        const char *why = check_char(regex, p, in_class), *from = p;
        if (why)
            return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: pre_tokenizer pattern: %s, at \"%.12s\" (byte %zu) of %.400s", file,
                           why, p, (size_t)(p - regex), regex);
        if (*p == '\\' && p[1]) {
            p++;
            if (*p == 's')
                rc = put(out, in_class ? WHITE : "[" WHITE "]", err);
            else if (*p == 'S')
                rc = put(out, "[^" WHITE "]", err);
            else
                rc = sl_text_append(out, from, 2, err);
            continue;
        }
        if (*p == '[') {
            in_class = 1;
            if (p[1] == '^') p++;
            if (p[1] == ']') p++;
        } else if (*p == ']') {
            in_class = 0;
        }
        rc = sl_text_append(out, from, (size_t)(p - from) + 1, err);
    }
    return rc;
}

int sl_pattern_new(const char *file, const char *regex, sl_pattern **out, sl_error *err) {
    sl_text spelled = {0};
    int code;
    PCRE2_SIZE at;
    sl_pattern *p = calloc(1, sizeof *p);
    int rc = p ? spell_out_white(file, regex, &spelled, err) : sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", file);
    if (!rc) {
        p->code = pcre2_compile((PCRE2_SPTR)spelled.data, spelled.n, PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
        if (!p->code) {
            PCRE2_UCHAR why[160];
            pcre2_get_error_message(code, why, sizeof why);
            rc = sl_fail(err, SL_ERR_UNSUPPORTED,
                         "%s: pre_tokenizer pattern: %s (at byte %zu of its spelled-out form), in %.400s", file, (char *)why,
                         at, regex);
        }
    }
    sl_text_free(&spelled);
    if (rc) {
        sl_pattern_free(p);
        return rc;
    }
    pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE); // may fail: without JIT the results are the same, but slower
    *out = p;
    return 0;
}

void sl_pattern_free(sl_pattern *p) {
    if (!p) return;
    pcre2_code_free(p->code);
    free(p);
}

typedef struct matcher { // PCRE2's objects for one call
    pcre2_match_data *data;
    pcre2_match_context *limits;
    pcre2_jit_stack *stack;
} matcher;

static void end_matcher(matcher *m) {
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->limits);
    pcre2_jit_stack_free(m->stack);
}

// PCRE2's default JIT stack of 32 KiB fails on a long run if the pattern keeps a place for each character. This stack grows
// with the text; the memory is reserved, and committed only when it is used. The match limit stops patterns that take
// exponential time; it grows with the text too.
static int begin_matcher(matcher *m, size_t n, sl_error *err) {
    size_t stack = n < MOST_STACK / 64 - 4096 ? 64 * (n + 4096) : MOST_STACK;
    size_t steps = n < UINT32_MAX / 32 ? 10000000 + 16 * n : UINT32_MAX;
    *m = (matcher){pcre2_match_data_create(1, NULL), pcre2_match_context_create(NULL),
                   pcre2_jit_stack_create(32 << 10, stack, NULL)};
    if (!m->data || !m->limits) { // without a stack (no JIT, or no address space) PCRE2 uses its default
        end_matcher(m);
        return sl_fail(err, SL_ERR_MEMORY, "pre-tokenizer: out of memory");
    }
    pcre2_jit_stack_assign(m->limits, NULL, m->stack);
    pcre2_set_match_limit(m->limits, (uint32_t)steps);
    return 0;
}

static int match_failed(int code, size_t at, sl_error *err) { // `at`: bytes after the last added token
    PCRE2_UCHAR why[160];
    pcre2_get_error_message(code, why, sizeof why);
    int memory = code == PCRE2_ERROR_NOMEMORY || code == PCRE2_ERROR_JIT_STACKLIMIT || code == PCRE2_ERROR_HEAPLIMIT;
    return sl_fail(err, memory ? SL_ERR_MEMORY : SL_ERR_UNSUPPORTED,
                   "pre-tokenizer: the pattern cannot be matched at byte %zu of the text: %s", at, (char *)why);
}

// offset: the place of this run in the text, for messages.
static int split_valid(const sl_pattern *p, const matcher *m, const char *text, size_t n, size_t offset, sl_piece_fn fn,
                       void *ctx, sl_error *err) {
    size_t at = 0, search = 0, last = SIZE_MAX; // the end of the last match
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(m->data);
    while (at < n) {
        int found = search > n ? PCRE2_ERROR_NOMATCH
                               : pcre2_match(p->code, (PCRE2_SPTR)text, n, search, PCRE2_NO_UTF_CHECK, m->data, m->limits);
        if (found < 0 && found != PCRE2_ERROR_NOMATCH) return match_failed(found, offset + search, err);
        size_t from = found < 0 ? n : span[0], to = found < 0 ? n : span[1];
        if (found >= 0 && to == from && from == last) { // an empty match right after a match does not count
            search = from + (from < n ? sl_utf8_length((const unsigned char *)text + from, n - from) : 1);
            continue;
        }
        int rc = from > at ? fn(ctx, text + at, from - at, 0, err) : 0;
        if (!rc && found >= 0) rc = fn(ctx, text + from, to - from, 1, err);
        if (rc) return rc;
        at = search = last = to;
    }
    return 0;
}

int sl_pattern_split(const sl_pattern *p, const char *text, size_t n, sl_piece_fn fn, void *ctx, sl_error *err) {
    matcher m;
    int rc = begin_matcher(&m, n, err);
    if (rc) return rc;
    for (size_t at = 0; !rc && at < n;) {
        size_t run = sl_utf8_valid_run(text + at, n - at);
        if (run > 0) rc = split_valid(p, &m, text + at, run, at, fn, ctx, err);
        at += run;
        size_t bad = sl_utf8_invalid_run(text + at, n - at);
        if (!rc && bad > 0) rc = fn(ctx, text + at, bad, 0, err);
        at += bad;
    }
    end_matcher(&m);
    return rc;
}
