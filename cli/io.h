// cli/io.h - input and output of the commands.
#ifndef SLEIGH_CLI_IO_H
#define SLEIGH_CLI_IO_H

#include "base/arrays.h"
#include "base/error.h"
#include "cli/options/options.h"

#include <stddef.h>

// Appends a whole file to *out as bytes, NULs included. Path "-" is standard input.
int cli_read_file(const char *path, sl_text *out, sl_error *err);
// Reads the input text from --prompt, --file or standard input. SL_ERR_ARG: both flags, or neither and standard input is a
// terminal.
int cli_read_input(const cli_input_options *o, sl_text *out, sl_error *err);
// SL_ERR_FORMAT: the text of --file, or of standard input if path is NULL or "-", is a PDF or has a NUL byte.
int cli_check_text(const char *path, const sl_text *text, sl_error *err);
// Parses ids that commas and blanks separate. SL_ERR_FORMAT names `source` and the byte where no id begins.
int cli_parse_ids(const char *source, const sl_text *text, sl_ids *ids, sl_error *err);

// Write to standard output. Any failure (closed pipe, full disk) is SL_ERR_IO. cli_flush also writes out stdio's buffer.
int cli_write(const char *data, size_t n, sl_error *err);
__attribute__((format(printf, 2, 3))) int cli_printf(sl_error *err, const char *fmt, ...);
int cli_flush(sl_error *err);

// ---- numbers ----

const char *cli_s(long long n);                    // the ending of a noun after a count: "1 prompt", "2 prompts"
const char *cli_bytes(double bytes, char buf[32]); // "12.3 MiB"
double cli_per_second(double n, double ms);        // n / ms * 1000; 0 if no time passed
// Length of the common prefix of two lists of ids.
int cli_common_prefix(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b);

#endif
