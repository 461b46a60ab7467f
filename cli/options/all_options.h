// cli/options/all_options.h - the flags of all commands together: what the table of flags describes, the parser fills, and the
// dispatch of commands splits. Other files take the small structs (options.h).
#ifndef SLEIGH_ALL_OPTIONS_H
#define SLEIGH_ALL_OPTIONS_H

#include "cli/options/command.h"
#include "cli/options/options.h"

typedef struct cli_options {
    cli_run_options run;
    cli_input_options input;
    cli_chat_options chat;
    cli_cache_options cache;
    cli_output_options output;
    cli_tokenize_options tokenize;
    cli_bench_options bench;
    cli_compare_options compare;
    cli_perplexity_options perplexity;
    cli_task_options tasks;
    cli_eval_options eval;
    cli_tune_options tune;
    cli_quantize_options quantize;
    cli_serve_options serve;
    const char *what;       // the subject after `bench`, the file after `plot`
    struct sl_ranks *ranks; // base/ranks.h; NULL: one process
    int quiet, help;
    int random_seed;      // 1: --seed -1
    char no_effect[1024]; // flags that were accepted and change nothing (habits.h), each with the reason; "": none
    cli_list owned;       // strings that values point into: texts after --escape
    cli_given given;
} cli_options;

// Fills *o with the defaults, the environment and args[0..n) for this command. Values point into args and the environment.
int cli_options_parse(cli_options *o, unsigned command, int n, char **args, sl_error *err);
void cli_options_free(cli_options *o);

#endif
