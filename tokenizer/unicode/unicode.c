// tokenizer/unicode/unicode.c - properties of code points and sets of code points, from the tables of unicode_tables.c.
#include "tokenizer/unicode/unicode.h"

#include <stdlib.h>
#include <string.h>

enum { CATEGORY_BITS = 5, LAST_POINT = SL_CODE_POINTS - 1 };

#define SET(ranges) ((sl_code_set){ranges, sizeof ranges / sizeof *ranges})

// ---- sets ----

int sl_code_set_has(sl_code_set set, uint32_t c) {
    size_t from = 0, to = set.n; // the first range that ends at c or later is in [from, to]
    while (from < to) {
        size_t middle = (from + to) / 2;
        if (set.ranges[middle].last < c)
            from = middle + 1;
        else
            to = middle;
    }
    return from < set.n && set.ranges[from].first <= c;
}

int sl_code_sets_meet(sl_code_set a, sl_code_set b) {
    for (size_t i = 0, j = 0; i < a.n && j < b.n;) {
        if (a.ranges[i].last < b.ranges[j].first)
            i++;
        else if (b.ranges[j].last < a.ranges[i].first)
            j++;
        else
            return 1;
    }
    return 0;
}

void sl_points_free(sl_points *p) {
    free(p->ranges);
    *p = (sl_points){0};
}

int sl_points_add(sl_points *p, uint32_t first, uint32_t last, sl_error *err) {
    if (p->n == p->cap) {
        size_t cap = p->cap ? 2 * p->cap : 4;
        sl_code_range *more = realloc(p->ranges, cap * sizeof *more);
        if (!more) return sl_fail(err, SL_ERR_MEMORY, "a set of %zu ranges of characters: out of memory", cap);
        p->ranges = more;
        p->cap = cap;
    }
    p->ranges[p->n++] = (sl_code_range){first, last};
    return 0;
}

int sl_points_add_set(sl_points *p, sl_code_set set, sl_error *err) {
    int rc = 0;
    for (size_t i = 0; !rc && i < set.n; i++) rc = sl_points_add(p, set.ranges[i].first, set.ranges[i].last, err);
    return rc;
}

static int by_first(const void *a, const void *b) {
    const sl_code_range *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

sl_code_set sl_points_sort(sl_points *p) {
    size_t n = 0;
    if (p->n > 1) qsort(p->ranges, p->n, sizeof *p->ranges, by_first);
    for (size_t i = 0; i < p->n; i++) {
        sl_code_range r = p->ranges[i];
        if (n == 0 || r.first > p->ranges[n - 1].last + 1)
            p->ranges[n++] = r;
        else if (r.last > p->ranges[n - 1].last)
            p->ranges[n - 1].last = r.last;
    }
    p->n = n;
    return (sl_code_set){p->ranges, n};
}

int sl_points_complement(sl_points *p, sl_error *err) {
    sl_points out = {0};
    sl_code_set set = sl_points_sort(p);
    uint32_t next = 0;
    int rc = 0;
    for (size_t i = 0; !rc && i < set.n; i++) {
        if (set.ranges[i].first > next) rc = sl_points_add(&out, next, set.ranges[i].first - 1, err);
        next = set.ranges[i].last + 1;
    }
    if (!rc && next <= LAST_POINT) rc = sl_points_add(&out, next, LAST_POINT, err);
    sl_points_free(p);
    *p = out;
    return rc;
}

int sl_points_intersect(sl_points *p, sl_code_set with, sl_error *err) {
    sl_points other = {0};
    int rc = sl_points_add_set(&other, with, err);
    if (!rc) rc = sl_points_complement(&other, err);
    if (!rc) rc = sl_points_complement(p, err);
    if (!rc) rc = sl_points_add_set(p, sl_points_sort(&other), err);
    sl_points_free(&other);
    return rc ? rc : sl_points_complement(p, err);
}

// ---- case folding ----

// back 0: adds the foldings of the characters of `of`. back 1: adds the characters whose folding is in `of`.
static int add_folds(sl_points *to, sl_code_set of, int back, sl_error *err) {
    int rc = 0;
    for (size_t i = 0; !rc && i < sl_fold_runs_n; i++) {
        const sl_fold_run *run = &sl_fold_runs[i];
        for (uint32_t c = run->first; !rc && c <= run->last; c += (uint32_t)run->step) {
            uint32_t folded = (uint32_t)((int)c + run->distance);
            if (sl_code_set_has(of, back ? folded : c)) rc = sl_points_add(to, back ? c : folded, back ? c : folded, err);
        }
    }
    return rc;
}

int sl_points_fold(sl_points *p, sl_error *err) {
    sl_points found = {0};
    int rc = 0;
    for (int back = 0; !rc && back < 2; back++) {
        rc = add_folds(&found, sl_points_sort(p), back, err);
        if (!rc) rc = sl_points_add_set(p, sl_points_sort(&found), err);
    }
    sl_points_free(&found);
    sl_points_sort(p);
    return rc;
}

// ---- properties ----

// Adds the categories that begin with prefix[0..n).
static int add_categories(sl_points *p, const char *prefix, size_t n, sl_error *err) {
    int rc = 0;
    for (size_t i = 0; !rc && i < sl_category_runs_n; i++) {
        uint32_t run = sl_category_runs[i],
                 next = i + 1 < sl_category_runs_n ? sl_category_runs[i + 1] >> CATEGORY_BITS : SL_CODE_POINTS;
        if (!strncmp(sl_category_names[run & ((1 << CATEGORY_BITS) - 1)], prefix, n))
            rc = sl_points_add(p, run >> CATEGORY_BITS, next - 1, err);
    }
    return rc;
}

static int is_category(const char *name, size_t n) {
    for (size_t i = 0; i < sl_category_names_n; i++)
        if (n <= 2 && !strncmp(sl_category_names[i], name, n)) return 1;
    return 0;
}

int sl_points_add_property(sl_points *p, const char *name, size_t n, int *found, sl_error *err) {
    *found = 1;
    if (n > 0 && is_category(name, n)) return add_categories(p, name, n, err);
    for (size_t i = 0; i < sl_scripts_n; i++)
        if (strlen(sl_scripts[i].name) == n && !memcmp(sl_scripts[i].name, name, n))
            return sl_points_add_set(p, *sl_scripts[i].set, err);
    *found = 0;
    return 0;
}

int sl_points_add_posix(sl_points *p, const char *name, size_t n, int *found, sl_error *err) {
    static const sl_code_range tab[] = {{'\t', '\t'}}, xdigit[] = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
    static const sl_code_set none = {0};
    // Each class is some categories and one set more.
    const struct {
        const char *name, *categories;
        sl_code_set set;
    } classes[] = {
        {"alpha", "L Nl", sl_other_alphabetic},
        {"alnum", "L Nl Nd", sl_other_alphabetic},
        {"word", "L Nl Nd M Pc", sl_other_alphabetic},
        {"upper", "Lu", sl_other_uppercase},
        {"lower", "Ll", sl_other_lowercase},
        {"digit", "Nd", none},
        {"punct", "P S", none},
        {"blank", "Zs", SET(tab)},
        {"cntrl", "Cc", none},
        {"space", "", sl_white_space},
        {"xdigit", "", SET(xdigit)},
    };
    *found = 0;
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        if (strlen(classes[i].name) != n || memcmp(classes[i].name, name, n)) continue;
        int rc = sl_points_add_set(p, classes[i].set, err);
        for (const char *c = classes[i].categories; !rc && *c;) {
            size_t length = strcspn(c, " ");
            rc = add_categories(p, c, length, err);
            c += length + (c[length] == ' ');
        }
        *found = 1;
        return rc;
    }
    return 0;
}

static const char *category_of(uint32_t c) {
    size_t from = 0, to = sl_category_runs_n; // the run of c is in [from, to)
    while (to - from > 1) {
        size_t middle = (from + to) / 2;
        if (sl_category_runs[middle] >> CATEGORY_BITS <= c)
            from = middle;
        else
            to = middle;
    }
    return sl_category_names[sl_category_runs[from] & ((1 << CATEGORY_BITS) - 1)];
}

static int is_word(uint32_t c) {
    static const sl_code_range join_control[] = {{0x200c, 0x200d}};
    const char *category = category_of(c);
    return strchr("LM", category[0]) || !strcmp(category, "Nl") || !strcmp(category, "Nd") || !strcmp(category, "Pc") ||
           sl_code_set_has(sl_other_alphabetic, c) || sl_code_set_has(SET(join_control), c);
}

int sl_unicode_is(sl_unicode_property property, uint32_t c) {
    switch (property) {
    case SL_UNICODE_WHITE:
        return sl_code_set_has(sl_white_space, c);
    case SL_UNICODE_WORD:
        return is_word(c);
    case SL_UNICODE_NUMERIC:
        return category_of(c)[0] == 'N' || sl_code_set_has(sl_numeric_17, c);
    default:
        return sl_code_set_has(sl_punctuation_8, c);
    }
}
