// tests/grammar/grammar_oracle.h - a second implementation of grammars: random grammars, which texts follow them and which
// texts are prefixes of such texts, by trying all ways.
#ifndef SLEIGH_TEST_GRAMMAR_ORACLE_H
#define SLEIGH_TEST_GRAMMAR_ORACLE_H

#include <stddef.h>
#include <stdint.h>

enum { ORACLE_RULES = 5, ORACLE_EXPRS = 400, ORACLE_LONGEST = 60 };

typedef enum { ORACLE_TEXT, ORACLE_CLASS, ORACLE_SEQUENCE, ORACLE_CHOICE, ORACLE_REPEAT, ORACLE_RULE } oracle_kind;

typedef struct oracle_expr {
    oracle_kind kind;
    int part[4], n; // SEQUENCE, CHOICE: parts. REPEAT: part[0]. RULE: part[0] is its number
    int min, max;   // max -1: no limit
    int chars[4];   // TEXT, CLASS: [n] characters of oracle_chars
    int is_inverted;
} oracle_expr;

typedef struct oracle {
    oracle_expr exprs[ORACLE_EXPRS];
    int n_exprs, rules[ORACLE_RULES];
    int productive[ORACLE_RULES];
    // the text that is being matched
    const char *text;
    int n;
    uint64_t ends[ORACLE_RULES][ORACLE_LONGEST + 1]; // bit j: the rule matches from i to j
    int8_t ends_known[ORACLE_RULES][ORACLE_LONGEST + 1], live[ORACLE_RULES][ORACLE_LONGEST + 1];
} oracle;

extern const char *const oracle_chars[]; // ended by NULL

// A random grammar from test_draw. has_rules 0: a single rule without references, so that it is regular.
void oracle_make(oracle *o, int has_rules);
int oracle_is_productive(const oracle *o);
// Writes it as GBNF, or as a regular expression. Returns its length.
size_t oracle_print_gbnf(const oracle *o, char *out, size_t size);
size_t oracle_print_regex(const oracle *o, char *out, size_t size);
// *follows: text [n] follows the grammar. *is_prefix: it begins a text that does.
void oracle_match(oracle *o, const char *text, size_t n, int *follows, int *is_prefix);

#endif
