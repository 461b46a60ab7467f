// cli/options/option_values.c - see option_values.h.
#include "cli/options/option_values.h"
#include "base/number.h"
#include "cli/grow.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static int takes_all(const cli_option *opt) {
    return opt->type == OPT_INTS && strlen(opt->value) > 4 && !strcmp(opt->value + strlen(opt->value) - 4, ",all");
}

static int bad_value(const cli_option *opt, const char *flag, const char *value, sl_error *err) {
    const char *kind = opt->type == OPT_FLOAT ? "a number" : "a whole number";
    char min[SL_NUMBER_TEXT], max[SL_NUMBER_TEXT];
    sl_number_text(opt->min, min), sl_number_text(opt->max, max);
    if (takes_all(opt))
        return sl_fail(err, SL_ERR_ARG, "%s %.100s: expected whole numbers, %s or more, or all", flag, value, min);
    if (opt->type == OPT_CTX)
        return sl_fail(err, SL_ERR_ARG, "%s %.100s: expected a whole number, %s or more, or 0", flag, value, min);
    if (opt->type == OPT_SEED)
        return sl_fail(err, SL_ERR_ARG, "%s %.100s: expected -1 or a whole number from 0 to %s", flag, value, max);
    if (opt->max >= CLI_BIG && opt->type != OPT_UINT32)
        return sl_fail(err, SL_ERR_ARG, "%s %.100s: expected %s, %s or more", flag, value, kind, min);
    return sl_fail(err, SL_ERR_ARG, "%s %.100s: expected %s from %s to %s", flag, value, kind, min, max);
}

static int parse_number(const cli_option *opt, const char *flag, const char *value, double *out, sl_error *err) {
    char *end;
    double number;
    errno = 0;
    if (opt->type == OPT_FLOAT)
        number = strtod(value, &end);
    else {
        long long whole = strtoll(value, &end, 10);
        int kilo = end != value && (*end == 'k' || *end == 'K');
        number = (double)whole * (kilo ? 1024 : 1);
        end += kilo;
    }
    if (end == value || *end || errno || isspace((unsigned char)*value) ||
        !((number >= opt->min && number <= opt->max) || (opt->type == OPT_CTX && number == 0)))
        return bad_value(opt, flag, value, err);
    *out = number;
    return 0;
}

static int random_seed(uint32_t *seed, sl_error *err) {
    if (getrandom(seed, sizeof *seed, 0) == (ssize_t)sizeof *seed) return 0;
    return sl_fail(err, SL_ERR_IO, "--seed -1: cannot read a random number: %s", strerror(errno));
}

static int set_number(const cli_option *opt, void *field, const char *flag, const char *value, sl_error *err) {
    double number = 0;
    if (opt->type == OPT_SEED && !strcmp(value, "-1")) return random_seed(field, err);
    int rc = parse_number(opt, flag, value, &number, err);
    if (rc) return rc;
    if (opt->type == OPT_FLOAT)
        *(double *)field = number;
    else if (opt->type == OPT_UINT32 || opt->type == OPT_SEED)
        *(uint32_t *)field = (uint32_t)number;
    else
        *(int *)field = (int)number;
    return 0;
}

static int by_size(const void *x, const void *y) {
    int a = *(const int *)x, b = *(const int *)y;
    return (a > b) - (a < b);
}

void cli_sort_ints(cli_ints *list) {
    qsort(list->at, list->n, sizeof *list->at, by_size);
}

static int add_int(cli_ints *list, const char *flag, double number, sl_error *err) {
    if (list->n == CLI_MAX_INTS) return sl_fail(err, SL_ERR_ARG, "%s: expected at most %d numbers", flag, CLI_MAX_INTS);
    list->at[list->n++] = (int)number;
    return 0;
}

// FIRST-LAST, FIRST-LAST+STEP or FIRST-LAST*FACTOR. Writes NULs over the signs in `word`.
static int add_range(cli_ints *list, const cli_option *opt, const char *flag, const char *value, char *word, sl_error *err) {
    const cli_option any = {.type = OPT_INT, .min = 1, .max = CLI_BIG};
    double first = 0, last = 0, by = 1;
    char *dash = strchr(word, '-'), *sign = dash + 1 + strcspn(dash + 1, "+*"), how = *sign;
    *dash = *sign = 0;
    int rc = parse_number(opt, flag, word, &first, err);
    if (!rc) rc = parse_number(opt, flag, dash + 1, &last, err);
    if (!rc && how) rc = parse_number(&any, flag, sign + 1, &by, err);
    if (rc) return rc;
    if (last < first || (how == '*' && (by < 2 || first < 1)))
        return sl_fail(err, SL_ERR_ARG, "%s %.100s: expected a rising range: FIRST-LAST, FIRST-LAST+STEP or FIRST-LAST*FACTOR",
                       flag, value);
    for (double x = first; !rc && x <= last; x = how == '*' ? x * by : x + by) rc = add_int(list, flag, x, err);
    return rc;
}

static int set_ints(const cli_option *opt, void *field, const char *flag, const char *value, sl_error *err) {
    cli_ints *list = field;
    int rc = 0;
    list->n = 0;
    for (const char *p = value; !rc && p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
        char word[64];
        double number = CLI_ALL;
        snprintf(word, sizeof word, "%.*s", (int)strcspn(p, ","), p);
        int is_all = takes_all(opt) && !strcmp(word, "all");
        if (*word && strchr(word + 1, '-')) {
            rc = add_range(list, opt, flag, value, word, err);
            continue;
        }
        if (!is_all) rc = parse_number(opt, flag, word, &number, err);
        if (!rc) rc = add_int(list, flag, number, err);
    }
    return rc;
}

// fresh: replaces the pairs from the environment.
static int add_pair(const cli_option *opt, void *field, const char *flag, const char *value, int fresh, sl_error *err) {
    cli_ints *list = field;
    const char *comma = strchr(value, ',');
    char first[32];
    double a = 0, b = 0;
    if (fresh) list->n = 0;
    if (!comma) return sl_fail(err, SL_ERR_ARG, "%s %.100s: expected two numbers, for example 512,128", flag, value);
    snprintf(first, sizeof first, "%.*s", (int)(comma - value), value);
    int rc = parse_number(opt, flag, first, &a, err);
    if (!rc) rc = parse_number(opt, flag, comma + 1, &b, err);
    if (!rc) rc = add_int(list, flag, a, err);
    return rc ? rc : add_int(list, flag, b, err);
}

// A number of bytes: 512M, 1.5G, 2T.
static int set_size(const cli_option *opt, void *field, const char *flag, const char *value, sl_error *err) {
    static const char suffixes[] = "KMGT";
    char *end;
    double number = isdigit((unsigned char)*value) ? strtod(value, &end) : 0, unit = 1;
    const char *at = number > 0 && *end ? strchr(suffixes, toupper((unsigned char)*end)) : NULL;
    if (at) unit = (double)(1ull << (10 * (at - suffixes + 1)));
    if (!(number > 0) || end[at != NULL] || number * unit < opt->min || number * unit > opt->max)
        return sl_fail(err, SL_ERR_ARG, "%s %.100s: expected a number of bytes above 0, such as 512M, 40G or 1.5T", flag,
                       value);
    *(size_t *)field = (size_t)(number * unit);
    return 0;
}

static int set_choice(const cli_option *opt, void *field, const char *flag, const char *value, sl_error *err) {
    size_t n = strlen(value);
    for (const char *p = opt->value; *p;) {
        size_t m = strcspn(p, ",");
        if (m == n && !memcmp(p, value, n)) {
            *(const char **)field = value;
            return 0;
        }
        p += m + (p[m] == ',');
    }
    return sl_fail(err, SL_ERR_ARG, "%s %.100s: expected one of %s", flag, value, opt->value);
}

int cli_list_add(cli_list *list, const char *item, sl_error *err) {
    const char **items = cli_grow(list->items, list->n, &list->cap, sizeof *items);
    if (!items) return sl_fail(err, SL_ERR_MEMORY, "command line: out of memory");
    list->items = items;
    list->items[list->n++] = item;
    return 0;
}

static int set_switch(int *field, const char *flag, const char *value, sl_error *err) {
    if (strcmp(value, "0") && strcmp(value, "1")) return sl_fail(err, SL_ERR_ARG, "%s %.100s: expected 0 or 1", flag, value);
    *field = *value == '1';
    return 0;
}

int cli_option_set(const cli_option *opt, void *field, const char *flag, const char *value, int is_fresh, sl_error *err) {
    switch (opt->type) {
    case OPT_STRING:
        *(const char **)field = value;
        return 0;
    case OPT_CHOICE:
        return set_choice(opt, field, flag, value, err);
    case OPT_SIZE:
        return set_size(opt, field, flag, value, err);
    case OPT_INTS:
        return set_ints(opt, field, flag, value, err);
    case OPT_PAIRS:
        return add_pair(opt, field, flag, value, is_fresh, err);
    case OPT_LIST:
        if (is_fresh) ((cli_list *)field)->n = 0;
        return cli_list_add(field, value, err);
    case OPT_FLAG:
    case OPT_SWITCH:
        return set_switch(field, flag, value, err);
    default:
        return set_number(opt, field, flag, value, err);
    }
}
