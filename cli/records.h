// cli/records.h - reads files of many prompts or texts, one per line: JSONL (--jsonl) or plain text (--prompts).
//
// A record of a prompt is an object with "prompt", or with "context" and "question" (set-up B: --attn decodes the question).
// Optional fields: "id", "attn" (the method of this line), "attn_prefill" (its method for prefill), "seq" (the sequence number
// that keys its random numbers) and "logprobs" (the number of alternatives for each generated token). A plain line becomes a
// record with "prompt" only. A record of a text is an object with "text"; "id" is optional. Blank lines are skipped. Errors
// name file and line.
#ifndef SLEIGH_RECORDS_H
#define SLEIGH_RECORDS_H

#include "base/arrays.h"
#include "base/error.h"
#include "cli/options/options.h"
#include "tokenizer/tokenizer.h"

#include <jansson.h>
#include <stdio.h>

typedef enum {
    CLI_RECORDS_PROMPTS, // JSONL
    CLI_RECORDS_PLAIN,   // lines of text, not JSON
    CLI_RECORDS_TEXTS,   // JSONL
    CLI_RECORDS_CHATS,   // JSONL of prompts, or of conversations: "messages" and "tools"
} cli_records_kind;

typedef struct cli_records {
    const char *path;
    cli_records_kind kind;
    FILE *file;
    char *line; // buffer of getline
    size_t cap;
    int n_lines;        // lines read so far
    sl_ids context_ids; // ids of `context`, the context of the last record
    sl_text context, whole;
} cli_records;

// Path "-" is standard input.
int cli_records_open(cli_records *r, const char *path, cli_records_kind kind, sl_error *err);
void cli_records_close(cli_records *r);
// Reads and checks the next record. *out: the caller releases it; NULL at the end of the file.
int cli_records_next(cli_records *r, json_t **out, sl_error *err);
// Checks all lines before hours of work, then rewinds the file. *n: the number of records; 0 for a pipe, which cannot be
// rewound and is not checked.
int cli_records_check(cli_records *r, int *n, sl_error *err);
// Tokenizes the prompt, or context and question as one text, with BOS. *n_shared: tokens of the context, or all tokens of a
// prompt.
int cli_records_tokenize(cli_records *r, const sl_tokenizer *tok, const json_t *record, sl_ids *ids, int *n_shared,
                         sl_error *err);
const char *cli_record_attn(const json_t *record);                          // NULL: the method of the flags
const char *cli_record_attn_prefill(const json_t *record);                  // the same
const json_t *cli_record_logprobs(const json_t *record);                    // an integer; NULL: --logprobs decides
uint32_t cli_record_sequence(const json_t *record, uint32_t seq_id, int i); // "seq" of the record, else seq_id + i
// Adds file and line to the message of an error, except SL_ERR_IO, whose message names a file already. Returns rc.
int cli_records_at_line(const cli_records *r, int line, int rc, sl_error *err);
// SL_ERR_ARG: a flag for a single prompt was given. mode: the flag that selects many prompts.
int cli_records_check_flags(const cli_input_options *o, const cli_ids_options *ids, const char *mode, sl_error *err);

#endif
