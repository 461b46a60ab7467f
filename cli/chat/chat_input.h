// cli/chat/chat_input.h - reads the user's messages and commands.
//
// On a terminal the user edits lines (line_editor.h). Other input is read as lines of any length. A message is one line, or
// several if all but the last end in a backslash. A pasted text is one insertion, with its line breaks.
#ifndef SLEIGH_CHAT_INPUT_H
#define SLEIGH_CHAT_INPUT_H

#include "cli/chat/line_editor.h"

typedef struct chat_input {
    cli_editor *editor; // NULL: plain lines
    int on_terminal;    // standard input is a terminal
    char *line;         // buffer of getline
    size_t cap;
    sl_text edited;
} chat_input;

// words: as cli_editor_open.
int chat_input_open(chat_input *in, const cli_word *words, sl_error *err);
void chat_input_close(chat_input *in);
// Reads the next message into *text. *is_command: the user typed a / at its beginning. Returns 1, 0 at the end of the input, or
// a negative sl_err.
int chat_input_read(chat_input *in, sl_text *text, int *is_command, sl_error *err);
int chat_input_has_colour(const chat_input *in);

#endif
