// cli/eval/eval_grade.c - see eval_grade.h.
#include "cli/eval/eval_grade.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct span {
    const char *p;
    size_t n;
} span;

static const char *const names[] = {
    [GRADE_NONE] = "none",
    [GRADE_SUBSTRING] = "substring",
    [GRADE_ANY] = "any",
    [GRADE_WORDS] = "words",
    [GRADE_INTEGERS] = "integers",
    [GRADE_EXACT] = "exact",
    [GRADE_BOXED] = "boxed",
    [GRADE_NUMERIC_BOX] = "numeric-boxed",
    [GRADE_CHOICE_BOX] = "choice-boxed",
    [GRADE_NUMERIC_LINE] = "numeric-line",
    [GRADE_CHOICE_LINE] = "choice-line",
};
enum { N_GRADERS = sizeof names / sizeof *names };

eval_grader eval_grader_find(const char *name) {
    for (int i = GRADE_NONE + 1; i < N_GRADERS; i++)
        if (!strcmp(name, names[i])) return (eval_grader)i;
    return GRADE_NONE;
}

const char *eval_grader_name(eval_grader grader) {
    return names[grader];
}

int eval_grader_is_choice(eval_grader grader) {
    return grader == GRADE_CHOICE_BOX || grader == GRADE_CHOICE_LINE;
}

// ---- parts of a text ----

static int is_word(char c) { // any byte of a character beyond ASCII counts as a letter
    return isalnum((unsigned char)c) || (unsigned char)c >= 128;
}

static span trim(span s) {
    while (s.n && isspace((unsigned char)*s.p)) s.p++, s.n--;
    while (s.n && isspace((unsigned char)s.p[s.n - 1])) s.n--;
    return s;
}

static span last_bytes(span s, size_t n) {
    return n < s.n ? (span){s.p + s.n - n, n} : s;
}

static span last_words(span s, int n) {
    size_t at = s.n;
    while (n-- && at) {
        while (at && isspace((unsigned char)s.p[at - 1])) at--;
        while (at && !isspace((unsigned char)s.p[at - 1])) at--;
    }
    return (span){s.p + at, s.n - at};
}

static span last_line(span s) { // s: without blanks at its end
    size_t at = s.n;
    while (at && s.p[at - 1] != '\n') at--;
    return (span){s.p + at, s.n - at};
}

// 1: `part` occurs in s, case ignored (ASCII). whole: only without a letter or digit on either side.
static int contains(span s, span part, int whole) {
    if (!part.n) return 0;
    for (size_t i = 0; i + part.n <= s.n; i++) {
        if (strncasecmp(s.p + i, part.p, part.n)) continue;
        size_t end = i + part.n;
        if (!whole || ((!i || !is_word(s.p[i - 1])) && (end == s.n || !is_word(s.p[end])))) return 1;
    }
    return 0;
}

// Finds the content of the last \boxed{...} with balanced braces.
static int last_boxed(span s, span *out) {
    static const char word[] = "\\boxed{";
    enum { N = sizeof word - 1 };
    for (size_t i = s.n; i-- > 0;) {
        if (s.n - i < N || memcmp(s.p + i, word, N)) continue;
        int depth = 1;
        for (size_t j = i + N; j < s.n; j++) {
            depth += (s.p[j] == '{') - (s.p[j] == '}');
            if (depth) continue;
            *out = trim((span){s.p + i + N, j - i - N});
            return 1;
        }
    }
    return 0;
}

// ---- numbers ----

static size_t minus(span s, size_t i) { // length in bytes of a minus sign at i, ASCII or U+2212; 0: none
    if (i < s.n && s.p[i] == '-') return 1;
    return i + 3 <= s.n && !memcmp(s.p + i, "\xE2\x88\x92", 3) ? 3 : 0;
}

static int is_digit(span s, size_t i) {
    return i < s.n && isdigit((unsigned char)s.p[i]);
}

// 1: the comma at i separates thousands: exactly three digits follow.
static int is_thousands(span s, size_t i) {
    return s.p[i] == ',' && is_digit(s, i + 1) && is_digit(s, i + 2) && is_digit(s, i + 3) && !is_digit(s, i + 4);
}

// Reads the number at i: sign, digits with commas between thousands, decimals. Returns its length in bytes; 0: no number.
static size_t number_at(span s, size_t i, double *out) {
    char digits[64];
    size_t n = 0, at = i, sign = minus(s, i);
    if (sign) digits[n++] = '-', at += sign;
    if (!is_digit(s, at)) return 0;
    for (; at < s.n && (is_digit(s, at) || is_thousands(s, at)); at++)
        if (s.p[at] != ',' && n < sizeof digits - 2) digits[n++] = s.p[at];
    if (at < s.n && s.p[at] == '.' && is_digit(s, at + 1)) {
        do {
            if (n < sizeof digits - 2) digits[n++] = s.p[at];
        } while (is_digit(s, ++at));
    }
    digits[n] = 0;
    *out = strtod(digits, NULL);
    return at - i;
}

// Finds the next number from byte `from` on. Looks at the byte before it: after a letter or digit, a minus is a hyphen.
static int next_number(span s, size_t from, span *found, double *out) {
    for (size_t i = from; i < s.n; i++) {
        if (i && isalnum((unsigned char)s.p[i - 1])) continue; // x2 and B12 are names; in 3-4 the minus is a hyphen
        size_t n = number_at(s, i, out);
        if (!n) continue;
        *found = (span){s.p + i, n};
        return 1;
    }
    return 0;
}

static size_t end_of(span s, span part) {
    return (size_t)(part.p - s.p) + part.n;
}

static int first_number(span s, span *found, double *out) {
    return next_number(s, 0, found, out);
}

static int last_number(span s, span *found, double *out) {
    double x;
    size_t from = 0;
    for (span next; next_number(s, from, &next, &x); from = end_of(s, next)) *found = next, *out = x;
    return from > 0;
}

static int take(span *s, const char *word) {
    size_t n = strlen(word);
    if (s->n < n || memcmp(s->p, word, n)) return 0;
    *s = trim((span){s->p + n, s->n - n});
    return 1;
}

// Reads all of s as a number. Ignores currency and per cent signs; accepts fractions a/b and \frac{a}{b}.
static int as_number(span s, double *out) {
    static const char *const fractions[] = {"\\frac{", "\\dfrac{", "\\tfrac{"};
    double a, b = 1;
    int frac = 0;
    s = trim(s);
    while (take(&s, "$") || take(&s, "\\$")) {
    }
    size_t n = minus(s, 0);
    double sign = n ? -1 : 1;
    s = trim((span){s.p + n, s.n - n});
    while (take(&s, "$") || take(&s, "\\$")) {
    }
    while (s.n && strchr(".%\\$", s.p[s.n - 1]) && s.p[s.n - 1]) s.n--;
    for (int i = 0; !frac && i < 3; i++) frac = take(&s, fractions[i]);
    if (!is_digit(s, 0)) return 0;
    n = number_at(s, 0, &a);
    s = trim((span){s.p + n, s.n - n});
    if (frac ? take(&s, "}{") : take(&s, "/")) {
        n = number_at(s, 0, &b);
        s = (span){s.p + n, s.n - n};
        if (!n || (frac && !take(&s, "}"))) return 0;
    } else if (frac) {
        return 0;
    }
    *out = sign * a / b;
    return s.n == 0 && b != 0;
}

static int same_number(double a, double b) {
    return fabs(a - b) <= 1e-9 * fmax(1, fmax(fabs(a), fabs(b)));
}

// ---- choice letters ----

// 1: a letter A to D is at i, without a letter, digit or apostrophe on either side.
static int is_choice(span s, size_t i) {
    if (!strchr("ABCDabcd", s.p[i]) || !s.p[i]) return 0;
    int before = i && (is_word(s.p[i - 1]) || s.p[i - 1] == '\'');
    int after = i + 1 < s.n && (is_word(s.p[i + 1]) || s.p[i + 1] == '\'');
    return !before && !after;
}

// The first or last choice letter. Takes a lower-case letter only if there is no capital, because "a" is also a word.
static char find_choice(span s, int backwards) {
    for (int lower = 0; lower < 2; lower++)
        for (size_t j = 0; j < s.n; j++) {
            size_t i = backwards ? s.n - 1 - j : j;
            if (is_choice(s, i) && (islower((unsigned char)s.p[i]) != 0) == lower) return (char)toupper((unsigned char)s.p[i]);
        }
    return 0;
}

// ---- graders ----

static span reference(const json_t *references, size_t i) {
    const json_t *text = json_array_get(references, i);
    return trim((span){json_string_value(text), json_string_length(text)});
}

static void keep(span s, char extracted[EVAL_EXTRACT]) {
    size_t n = s.n < EVAL_EXTRACT - 1 ? s.n : EVAL_EXTRACT - 1;
    while (n && n < s.n && ((unsigned char)s.p[n] & 0xC0) == 0x80) n--; // do not cut a character in two
    memcpy(extracted, s.p, n);
    extracted[n] = 0;
}

static double share_found(span s, const json_t *references, int whole) {
    size_t n = json_array_size(references), found = 0;
    for (size_t i = 0; i < n; i++) found += (size_t)contains(s, reference(references, i), whole);
    return n ? (double)found / (double)n : 0;
}

static double share_of_integers(span s, const json_t *references) {
    enum { MAX = 64 };
    double seen[MAX], x, want;
    size_t n = json_array_size(references), n_seen = 0, right = 0, from = 0;
    for (span found; n_seen < n && n_seen < MAX && next_number(s, from, &found, &x); from = end_of(s, found)) {
        int is_new = x == floor(x);
        for (size_t i = 0; i < n_seen; i++) is_new &= seen[i] != x;
        if (!is_new) continue;
        seen[n_seen++] = x;
        for (size_t i = 0; i < n; i++)
            if (as_number(reference(references, i), &want) && same_number(x, want)) {
                right++;
                break;
            }
    }
    return n ? (double)right / (double)n : 0;
}

static double grade_number(span chunk, int last, const json_t *references, char *extracted) {
    double x, want;
    span found = trim(chunk);
    if (!as_number(chunk, &x) && !(last ? last_number : first_number)(chunk, &found, &x)) return 0;
    keep(found, extracted);
    for (size_t i = 0; i < json_array_size(references); i++)
        if (as_number(reference(references, i), &want) && same_number(x, want)) return 1;
    return 0;
}

static double grade_letter(char letter, const json_t *references, char *extracted) {
    if (!letter) return 0;
    extracted[0] = letter;
    extracted[1] = 0;
    for (size_t i = 0; i < json_array_size(references); i++) {
        span want = reference(references, i);
        if (want.n == 1 && toupper((unsigned char)*want.p) == letter) return 1;
    }
    return 0;
}

static double grade_text(span s, const json_t *references, int numbers, char *extracted) {
    double x, y;
    keep(s, extracted);
    for (size_t i = 0; i < json_array_size(references); i++) {
        span want = reference(references, i);
        if (want.n == s.n && !memcmp(want.p, s.p, s.n)) return 1;
        if (numbers && as_number(s, &x) && as_number(want, &y) && same_number(x, y)) return 1;
    }
    return 0;
}

double eval_grade(eval_grader grader, const char *answer, size_t n, const json_t *references, char extracted[EVAL_EXTRACT]) {
    span s = trim((span){answer, n}), box, line = last_line(s), found;
    double x;
    char letter;
    extracted[0] = 0;
    switch (grader) {
    case GRADE_SUBSTRING:
        return share_found(s, references, 0);
    case GRADE_ANY:
        return share_found(s, references, 0) > 0;
    case GRADE_WORDS:
        return share_found(s, references, 1);
    case GRADE_INTEGERS:
        return share_of_integers(s, references);
    case GRADE_EXACT:
        return grade_text(s, references, 0, extracted);
    case GRADE_BOXED:
        return last_boxed(s, &box) ? grade_text(box, references, 1, extracted) : 0;
    case GRADE_NUMERIC_BOX:
        return grade_number(last_boxed(s, &box) ? box : last_bytes(s, 200), 1, references, extracted);
    case GRADE_CHOICE_BOX:
        return grade_letter(find_choice(last_boxed(s, &box) ? box : last_bytes(s, 300), 1), references, extracted);
    case GRADE_NUMERIC_LINE:
        return grade_number(first_number(line, &found, &x) ? line : last_words(s, 25), 0, references, extracted);
    case GRADE_CHOICE_LINE:
        letter = find_choice(line, 0);
        return grade_letter(letter ? letter : find_choice(last_words(s, 10), 1), references, extracted);
    case GRADE_NONE:
        break;
    }
    return 0;
}
