// cli/commands.h - the function of each command, which the table in main.c lists. cmd_NAME.c defines cmd_NAME.
//
// A command of one file lies in cli/. A command of several files has a folder.
// A command returns 0 or a negative sl_err with the reason in *err. main.c prints the reason as one `sleigh: error:` line on
// stderr. The exit code is 2 for a usage error (SL_ERR_ARG) and 1 for any other error.
#ifndef SLEIGH_COMMANDS_H
#define SLEIGH_COMMANDS_H

#include "base/error.h"
#include "cli/options/options.h"

int cmd_generate(const cli_options *o, sl_error *err);
int cmd_chat(const cli_options *o, sl_error *err);
int cmd_tokenize(const cli_options *o, sl_error *err);
int cmd_detokenize(const cli_options *o, sl_error *err); // cmd_tokenize.c
int cmd_logits(const cli_options *o, sl_error *err);
int cmd_inspect(const cli_options *o, sl_error *err);
int cmd_methods(const cli_options *o, sl_error *err);
int cmd_version(const cli_options *o, sl_error *err);
int cmd_compare(const cli_options *o, sl_error *err);
int cmd_perplexity(const cli_options *o, sl_error *err);
int cmd_bench(const cli_options *o, sl_error *err);
int cmd_eval(const cli_options *o, sl_error *err);
int cmd_tune(const cli_options *o, sl_error *err);
int cmd_plot(const cli_options *o, sl_error *err);

const char *cli_commit(void);  // the commit of this build; "": unknown (cmd_version.c)
const char *cli_version(void); // "0.1.0 (commit 0123abc)" (cmd_version.c)

#endif
