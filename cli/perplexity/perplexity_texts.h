// cli/perplexity/perplexity_texts.h - the texts of sleigh perplexity and their windows.
#ifndef SLEIGH_PERPLEXITY_TEXTS_H
#define SLEIGH_PERPLEXITY_TEXTS_H

#include "cli/perplexity/perplexity.h"
#include "cli/records.h"

// Where the texts come from: the lines of --jsonl, or the text of --file.
typedef struct perplexity_input {
    cli_records records;
    sl_text text;
} perplexity_input;

// Opens the input and checks its lines, before the model is loaded.
int perplexity_open_input(const cli_input_options *o, perplexity_input *in, sl_error *err);
void perplexity_close_input(perplexity_input *in);

// Tokenises the texts, sets the sizes of windows, and cuts the texts into windows. SL_ERR_FORMAT: a text is too short.
int perplexity_cut_texts(perplexity *p, perplexity_input *in, sl_error *err);
void perplexity_free_texts(perplexity *p);

#endif
