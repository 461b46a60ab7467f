// cli/chat/line_screen.h - what the user sees of a line that libedit edits.
//
// libedit draws changes of a row only, and miscounts where a row has characters of two columns (CJK, emoji) or of none
// (accents): the cursor stands at a wrong place, or the end of a row is lost. Where a change fills a row, libedit can erase the
// next row. So libedit writes into memory. A line of one row with characters of one column is drawn as libedit drew it, and so
// is a line of such characters that is taller than the terminal. Every other line is drawn whole, with the places of its
// characters that libedit assumes.
#ifndef SLEIGH_LINE_SCREEN_H
#define SLEIGH_LINE_SCREEN_H

#include "base/arrays.h"

#include <histedit.h>
#include <stdio.h>

typedef struct cli_line_screen {
    FILE *terminal;
    FILE *out;    // libedit writes here; cli_line_screen_settle shows it
    sl_text held; // written to `out` and not shown
    int has_escapes;
    int row;      // of the cursor, below the first row of the line
    int is_whole; // 1: the line was drawn whole
} cli_line_screen;

// Takes the descriptor. Returns 0, or -1 with errno.
int cli_line_screen_open(cli_line_screen *s, int fd, int has_escapes);
void cli_line_screen_close(cli_line_screen *s);

// Shows the line. prompt: two columns; \1 is left out. at_end: the cursor goes behind the line.
void cli_line_screen_settle(cli_line_screen *s, EditLine *el, const char *prompt, int at_end);
// The same where another text follows the line, or where the cursor is at the beginning of a new row.
void cli_line_screen_begin(cli_line_screen *s);
// The window has another size: its rows are those of the text at the new width.
void cli_line_screen_resized(cli_line_screen *s, EditLine *el);

// The number of the row in which the line's text up to `end` ends, from 0, at the present width of the terminal.
int cli_line_screen_row(const cli_line_screen *s, EditLine *el, const wchar_t *end);

#endif
