// cli/options/option_table.h - a row for each flag of each command. The parser (options.c), the help, the man page and the
// shell completion read this table.
#ifndef SLEIGH_OPTION_TABLE_H
#define SLEIGH_OPTION_TABLE_H

#include "cli/options/command.h"

#include <stddef.h>

typedef enum {
    OPT_STRING,
    OPT_INT,    // int, k suffix allowed
    OPT_UINT32, // uint32_t, k suffix allowed
    OPT_SEED,   // the same; -1 is a random number
    OPT_CTX,    // as OPT_INT; 0 is allowed too, whatever `min` says
    OPT_FLOAT,  // double
    OPT_SIZE,   // size_t, bytes; suffix K, M, G or T: times 2^10, 2^20, ..
    OPT_FLAG,   // int, 1 if given
    OPT_SWITCH, // int, --name and --no-name
    OPT_LIST,   // cli_list, repeatable
    OPT_INTS,   // cli_ints, numbers and ranges separated by commas, k suffix allowed; `all` too if `value` ends with this word
    OPT_PAIRS,  // cli_ints, two numbers per flag, repeatable
    OPT_CHOICE, // const char *, one of the words in `value`
} cli_option_type;

typedef struct cli_option {
    const char *group; // heading in the help
    const char *names; // separated by blanks; the first long name gives the environment variable
    const char *value; // placeholder in the help; OPT_CHOICE: the choices
    cli_option_type type;
    size_t field;
    double min, max; // OPT_INT, OPT_UINT32, OPT_FLOAT
    const char *def; // NULL: unset
    unsigned commands;
    const char *help;
} cli_option;

#define CLI_BIG 2147483647.0 // as `max`: no upper limit in the help

extern const cli_option cli_option_table[];
extern const int cli_n_options;

// Copies name i of a row, or word i of any text that blanks separate. Returns 0 if there is none.
int cli_option_name(const char *names, int i, char *out, size_t size);
const char *cli_option_long_name(const cli_option *opt, char buf[32]); // the name in messages: the first long name
const char *cli_option_env(const cli_option *opt, char buf[48]);       // SLEIGH_CTX_SIZE
int cli_option_has_env(const cli_option *opt);                         // 0: this flag has no environment variable
int cli_option_takes_value(const cli_option *opt);

#endif
