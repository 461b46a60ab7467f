// cli/options/habits.h - flags that users of llama.cpp and vLLM type from habit, and that are not flags of Sleigh.
//
// A row does one of three things: it names a flag of Sleigh that does the same, or it accepts the flag because the flag changes
// nothing here, or it refuses the flag and names the right one. If several rows have the same name, the first row that accepts
// the value decides. The parser (options.c) looks here after the table of flags. `sleigh help flags` prints the rows, and
// docs/flags.md holds them (tests/cli/test_cli_habits.c compares the two).
#ifndef SLEIGH_HABITS_H
#define SLEIGH_HABITS_H

#include <stdio.h>

typedef enum {
    HABIT_SAME,    // stands for the flag `target`
    HABIT_NOTHING, // is accepted, and changes nothing; a line on stderr says so
    HABIT_REFUSED, // is a usage error
} cli_habit_type;

typedef struct cli_habit {
    const char *names;   // separated by blanks
    const char *value;   // placeholder; "[...]": the value may be missing; NULL: takes no value
    const char *accepts; // the values of this row, separated by commas; NULL: every value
    cli_habit_type type;
    unsigned commands;
    const char *target;   // HABIT_SAME: the flag of Sleigh
    const char *as_value; // HABIT_SAME: the value for that flag; NULL: the value that the user gave
    const char *text;     // what Sleigh does, or the right flag
} cli_habit;

extern const cli_habit cli_habits[];
extern const int cli_n_habits;

// The row for a flag of a command; NULL: there is none. *i: index of the first row to look at; afterwards that of the result.
const cli_habit *cli_habit_find(const char *name, unsigned command, int *i);
int cli_habit_accepts(const cli_habit *h, const char *value); // value NULL: the flag came without a value
int cli_habit_optional(const cli_habit *h);                   // 1: the value may be missing; h->value is not NULL
int cli_habit_is_value(const char *word); // 1: the word can be the value of a flag whose value may be missing
void cli_habits_print(FILE *out);         // the rows as a Markdown table

#endif
