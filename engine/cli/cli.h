// engine/cli/cli.h - what the commands of build/sleigh share: the command table and input and output with their errors.
//
// A command returns 0 or a negative sl_err with the reason in *err. main.c turns it into the exit code: 0, 2 for a usage
// error (SL_ERR_ARG), 1 for everything else, and into the one `sleigh: error:` line on stderr.
#ifndef SLEIGH_CLI_H
#define SLEIGH_CLI_H

#include "engine/cli/options.h"
#include "engine/base/error.h"
#include "tokenizer/tokenizer.h"

#include <stddef.h>
#include <stdio.h>

int cmd_generate(const cli_options *o, sl_error *err);
int cmd_jsonl(const cli_options *o, sl_error *err);    // generate --jsonl
int cmd_parallel(const cli_options *o, sl_error *err); // generate --parallel, --prompts
int cmd_chat(const cli_options *o, sl_error *err);
int cmd_tokenize(const cli_options *o, sl_error *err);
int cmd_detokenize(const cli_options *o, sl_error *err);
int cmd_logits(const cli_options *o, sl_error *err);
int cmd_inspect(const cli_options *o, sl_error *err);
int cmd_methods(const cli_options *o, sl_error *err);
int cmd_version(const cli_options *o, sl_error *err);
int cmd_compare(const cli_options *o, sl_error *err);
int cmd_perplexity(const cli_options *o, sl_error *err);
int cmd_bench(const cli_options *o, sl_error *err);
int cmd_bench_decode(const cli_options *o, sl_error *err);
int cmd_bench_attn(const cli_options *o, sl_error *err);
int cmd_eval(const cli_options *o, sl_error *err);

const char *cli_commit(void);  // that this build was made from; "" when unknown (cmd_version.c)
const char *cli_version(void); // "0.1.0 (commit 0123abc)"

// ---- io.c ----

// A whole file as bytes, NUL included; "-" is standard input. Appends to *out.
int cli_read_file(const char *path, sl_text *out, sl_error *err);
// Standard output. Every failure (closed pipe, full disk) is SL_ERR_IO. cli_flush also sends out what stdio holds.
int cli_write(const char *data, size_t n, sl_error *err);
__attribute__((format(printf, 2, 3))) int cli_printf(sl_error *err, const char *fmt, ...);
int cli_flush(sl_error *err);

// Parses ids separated by commas and blanks. SL_ERR_FORMAT names the place of what is no id.
int cli_parse_ids(const char *source, const sl_text *text, sl_ids *ids, sl_error *err);

// -p, -f or standard input, in this order. Giving both flags, or none with a terminal as standard input, is SL_ERR_ARG.
int cli_read_input(const cli_options *o, sl_text *out, sl_error *err);

double cli_now(void);                              // milliseconds, monotonic
double cli_peak_mib(void);                         // peak resident memory of this process
const char *cli_bytes(double bytes, char buf[32]); // "12.3 MiB"

// ---- interrupts (io.c) ----

// Ctrl+C sets a flag from now on. once: a second Ctrl+C ends the program as usual.
void cli_catch_interrupt(int once);
int cli_interrupted(void);
void cli_clear_interrupt(void);

#endif
