// engine/cli/records.h - files of many prompts, a line each: the JSONL of generate --jsonl, the plain lines of
// --prompts.
//
// A record is an object with "prompt", or with "context" and "question" (set-up B: the question goes through --attn), and
// optionally "id", "attn" (a method of its own) and "seq" (the sequence that keys its random numbers). A plain line is a record
// with a prompt alone. Blank lines are skipped. Errors name file and line.
#ifndef SLEIGH_RECORDS_H
#define SLEIGH_RECORDS_H

#include "engine/base/arrays.h"
#include "engine/base/error.h"
#include "engine/cli/options.h"
#include "tokenizer/tokenizer.h"

#include <jansson.h>
#include <stdio.h>

typedef struct cli_records {
    const char *path;
    int plain;
    FILE *file;
    char *line; // getline's
    size_t cap;
    int n_lines;        // read so far
    sl_ids context_ids; // of `context`, the last record's
    sl_text context, whole;
} cli_records;

// path "-": standard input.
int cli_records_open(cli_records *r, const char *path, int plain, sl_error *err);
void cli_records_close(cli_records *r);
// The next record, checked. *out is NULL at the end of the file; the caller's to release.
int cli_records_next(cli_records *r, json_t **out, sl_error *err);
// Reads the file once so that a malformed line is found before hours of work, and begins anew. *n: records; 0 for a pipe, which
// is not read ahead.
int cli_records_check(cli_records *r, int *n, sl_error *err);
// The ids of the prompt, or of context and question as one text, BOS included. *n_shared: of them the context's own; all of a
// prompt's.
int cli_records_tokenize(cli_records *r, const sl_tokenizer *tok, const json_t *record, sl_ids *ids, int *n_shared,
                         sl_error *err);
const char *cli_record_attn(const json_t *record);                          // NULL: the flags' method
uint32_t cli_record_sequence(const json_t *record, uint32_t seq_id, int i); // its own, or seq_id + i
// Puts file and line in front of an error's message, but for SL_ERR_IO, which names its own. Returns rc.
int cli_records_at_line(const cli_records *r, int line, int rc, sl_error *err);
// SL_ERR_ARG for flags that are about one prompt. mode: the flag that says there are many.
int cli_records_check_flags(const cli_options *o, const char *mode, sl_error *err);

#endif
