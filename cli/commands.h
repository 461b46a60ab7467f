// cli/commands.h - the function of each command, and the flags that it takes. cmd_NAME.c defines cmd_NAME.
//
// A command of one file lies in cli/. A command of several files has a folder.
// A command returns 0 or a negative sl_err with the reason in *err. main.c prints the reason as one `sleigh: error:` line on
// stderr. The exit code is 2 for a usage error (SL_ERR_ARG) and 1 for any other error.
#ifndef SLEIGH_COMMANDS_H
#define SLEIGH_COMMANDS_H

#include "base/error.h"
#include "base/ranks.h"
#include "cli/options/options.h"

typedef struct cli_generate_flags {
    const cli_run_options *run;
    const cli_input_options *input;
    const cli_chat_options *chat;
    const cli_cache_options *cache;
    const cli_output_options *output;
    const cli_given *given;
} cli_generate_flags;

typedef struct cli_chat_flags {
    const cli_run_options *run;
    const cli_chat_options *chat;
    const cli_cache_options *cache;
} cli_chat_flags;

typedef struct cli_bench_flags {
    const cli_run_options *run;
    const cli_bench_options *bench;
    const cli_output_options *output;
    const cli_given *given;
} cli_bench_flags;

typedef struct cli_compare_flags {
    const cli_run_options *run;
    const cli_input_options *input;
    const cli_chat_options *chat;
    const cli_compare_options *compare;
    const cli_output_options *output;
    const cli_given *given;
} cli_compare_flags;

typedef struct cli_perplexity_flags {
    const cli_run_options *run;
    const cli_input_options *input;
    const cli_perplexity_options *perplexity;
    const cli_output_options *output;
    sl_ranks *ranks; // NULL: one process
} cli_perplexity_flags;

typedef struct cli_eval_flags {
    const cli_run_options *run;
    const cli_task_options *tasks;
    const cli_chat_options *chat;
    const cli_eval_options *eval;
    const cli_output_options *output;
    const cli_given *given;
    sl_ranks *ranks; // NULL: one process
} cli_eval_flags;

typedef struct cli_tune_flags {
    const cli_run_options *run;
    const cli_task_options *tasks;
    const cli_chat_options *chat;
    const cli_tune_options *tune;
    const cli_output_options *output;
    const cli_given *given;
} cli_tune_flags;

typedef struct cli_serve_flags {
    const cli_run_options *run;
    const cli_chat_options *chat;
    const cli_serve_options *serve;
} cli_serve_flags;

typedef struct cli_quantize_flags {
    const cli_model_options *model;
    const cli_quantize_options *quantize;
    const cli_output_options *output;
    int n_threads; // 0: one for each core
} cli_quantize_flags;

int cmd_generate(const cli_generate_flags *o, sl_error *err);
int cmd_chat(const cli_chat_flags *o, sl_error *err);
int cmd_tokenize(const cli_model_options *model, const cli_input_options *input, const cli_tokenize_options *o,
                 const char *format, sl_error *err);
int cmd_detokenize(const cli_model_options *model, const cli_input_options *input, sl_error *err); // cmd_tokenize.c
int cmd_logits(const cli_run_options *o, const char *path, sl_error *err);
int cmd_inspect(const cli_run_options *o, const cli_output_options *output, sl_error *err);
int cmd_methods(const char *format, sl_error *err);
int cmd_version(sl_error *err);
int cmd_compare(const cli_compare_flags *o, sl_error *err);
int cmd_perplexity(const cli_perplexity_flags *o, sl_error *err);
int cmd_bench(const char *subject, const cli_bench_flags *o, sl_error *err); // subject NULL: a model
int cmd_eval(const cli_eval_flags *o, sl_error *err);
int cmd_tune(const cli_tune_flags *o, sl_error *err);
int cmd_serve(const cli_serve_flags *o, sl_error *err);
int cmd_quantize(const cli_quantize_flags *o, sl_error *err);
int cmd_plot(const char *data, const char *picture, sl_error *err); // NULL: not given

struct cli_options;
int cli_command_run(const struct cli_options *o, sl_error *err); // the command that was parsed (commands.c)

const char *cli_commit(void);  // the commit of this build; "": unknown (cmd_version.c)
const char *cli_version(void); // "0.1.0 (commit 0123abc)" (cmd_version.c)

#endif
