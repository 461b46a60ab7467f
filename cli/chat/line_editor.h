// cli/chat/line_editor.h - lines that the user edits in a terminal, with libedit: arrow keys, a history in a file,
// completion with Tab, and pasted texts of any size as one insertion (pastes.h).
#ifndef SLEIGH_LINE_EDITOR_H
#define SLEIGH_LINE_EDITOR_H

#include "base/arrays.h"
#include "base/error.h"

typedef struct cli_editor cli_editor;

typedef struct cli_word { // a word that Tab completes at the beginning of a line
    const char *text;
    int takes_file; // Tab completes a file name after it
} cli_word;

// words: ends with {0}, and must outlive the editor. out: descriptor of the terminal for prompts and echo. The terminal stays
// open until cli_editor_close (terminal.h): between two lines it neither echoes input nor cuts long lines.
int cli_editor_open(int out, const cli_word *words, cli_editor **editor, sl_error *err);
void cli_editor_close(cli_editor *e);

typedef enum { CLI_LINE, CLI_LINE_INTERRUPTED, CLI_LINE_END } cli_line;
// Reads a line into *line, without its line break, with the labels of long pastes. CLI_LINE_END: the user or the terminal ended
// the input. Returns a negative sl_err after an error.
int cli_editor_read(cli_editor *e, const char *prompt, sl_text *line, sl_error *err);
// Appends the line with pasted texts in the place of their labels.
int cli_editor_expand(const cli_editor *e, const char *line, sl_text *out, sl_error *err);
// Adds a text to the history and to its file, and forgets the pastes. The file may be missing or unwritable.
void cli_editor_remember(cli_editor *e, const sl_text *text);
int cli_editor_has_colour(const cli_editor *e); // 1: the terminal shows colours and $NO_COLOR is not set

#endif
