// cli/chat/pastes.h - pasted texts, and the labels that stand for them in the line that the user edits.
//
// A short paste of one line goes into the line as it is. Another paste is kept here, and the line shows a label:
// "[paste 1: 20 lines, 9,012 bytes]". cli_pastes_expand puts the texts in the place of their labels.
#ifndef SLEIGH_PASTES_H
#define SLEIGH_PASTES_H

#include "base/arrays.h"
#include "base/error.h"

typedef struct cli_paste {
    char label[112];
    sl_text text;
} cli_paste;

typedef struct cli_pastes { // initialise with zeros
    cli_paste *items;
    int n, cap;
} cli_pastes;

// Makes \n of every kind of line break, and removes NULs and a line break at the end.
void cli_paste_clean(sl_text *text);
int cli_paste_is_short(const sl_text *text);
// Keeps the text (*text becomes empty) and sets *label to its label.
int cli_pastes_add(cli_pastes *pastes, sl_text *text, const char **label, sl_error *err);
int cli_pastes_expand(const cli_pastes *pastes, const char *line, sl_text *out, sl_error *err); // appends
// The number of bytes of the label with which line[0..n) ends; 0: it ends with no label.
size_t cli_pastes_label_at_end(const cli_pastes *pastes, const char *line, size_t n);
void cli_pastes_clear(cli_pastes *pastes);

#endif
