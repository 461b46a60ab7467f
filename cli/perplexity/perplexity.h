// cli/perplexity/perplexity.h - the state of sleigh perplexity, which its files share: cmd_perplexity.c (flags, order of
// work, scores), perplexity_texts.c (texts and windows) and perplexity_print.c (output).
#ifndef SLEIGH_PERPLEXITY_H
#define SLEIGH_PERPLEXITY_H

#include "base/arrays.h"
#include "cli/commands.h"
#include "cli/output/model_name.h"
#include "cli/output/progress_bar.h"
#include "cli/output/rows.h"
#include "cli/output/summary.h"
#include "cli/run/run.h"
#include "cli/shards.h"

#include <jansson.h>

typedef struct perplexity_text {
    json_t *id; // NULL: the only text, of --file
    sl_ids ids;
    int n_windows; // that are scored
} perplexity_text;

// What the model sees before the scored tokens. Every history scores the same tokens, so the numbers at the same index of two
// nll are of the same token.
typedef struct perplexity_history {
    int n_tokens;   // before the first token of each segment; CLI_ALL: every token of the window
    char name[16];  // "1024", "all"
    char title[40]; // of its column in the rows of windows or texts
    cli_values nll; // one group per text or window
} perplexity_history;

typedef struct perplexity {
    const cli_perplexity_flags *o;
    cli_run run;
    sl_session *session;
    perplexity_text *texts; // [n_texts]
    int n_texts, has_bos, n_vocab;
    int n_ctx, stride, segment; // tokens
    int first;                  // index in a window of the token before the first scored one
    int n_dense;                // first tokens of a window, prefilled with dense attention; n_ctx: the whole window in one pass
    int n_planned;              // windows of the whole run
    int groups_are_texts;       // 1: the standard error is between texts; 0: between windows
    perplexity_history histories[CLI_MAX_INTS]; // [n_histories]; without --history: one, of all tokens
    int n_histories;
    int32_t *ids;                 // [n_ctx] the tokens that the model reads
    int offset;                   // index of ids[0] in the window
    cli_shards shards;            // the windows
    cli_values scored;            // of a window: the values of each history, and then n_read
    int n_read;                   // tokens that the model has read for this window
    double n_read_all;            // tokens that were read for all windows whose results rank 0 has
    int taken_text, taken_window; // the text and the window whose results rank 0 takes next
    cli_progress progress;
    // The complete rows of the output: windows of --file, or texts of --jsonl.
    int n_rows, n_windows, n_scored; // n_scored: scored tokens of a history
    json_t *rows;                    // -o json
    cli_rows table;                  // other formats
    cli_column columns[6 + CLI_MAX_INTS];
    cli_model_name name;
    char attn[CLI_ATTN_TEXT];
} perplexity;

#endif
