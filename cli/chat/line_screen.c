// cli/chat/line_screen.c - see line_screen.h.
#include "cli/chat/line_screen.h"

#include <limits.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

enum { PROMPT = 2, TAB = 8 }; // columns

static ssize_t hold(void *screen, const char *data, size_t n) {
    cli_line_screen *s = screen;
    sl_error err;
    return sl_text_append(&s->held, data, n, &err) ? 0 : (ssize_t)n;
}

int cli_line_screen_open(cli_line_screen *s, int fd, int has_escapes) {
    *s = (cli_line_screen){.has_escapes = has_escapes};
    s->terminal = fdopen(fd, "w");
    if (!s->terminal) {
        close(fd);
        return -1;
    }
    s->out = fopencookie(s, "w", (cookie_io_functions_t){.write = hold});
    return s->out ? 0 : -1;
}

void cli_line_screen_close(cli_line_screen *s) {
    if (s->out) fclose(s->out);
    if (s->terminal) fclose(s->terminal);
    sl_text_free(&s->held);
}

// ---- places ----

typedef struct place {
    int row, column;
} place;

static struct winsize size_of(const cli_line_screen *s) { // zeros: unknown
    struct winsize size = {0};
    return ioctl(fileno(s->terminal), TIOCGWINSZ, &size) ? (struct winsize){0} : size;
}

// How libedit shows the character.
static int width_of(wchar_t c) {
    if (c < 32 || c == 127) return 2; // ^A
    int width = wcwidth(c);
    return width > 0 ? width : 0;
}

static place next_row(place at) {
    return (place){at.row + 1, 0};
}

// The place behind character c. *from: the place of c, which begins a row if c does not fit into the row.
static place advance(place at, wchar_t c, int columns, place *from) {
    *from = at;
    if (c == '\n') return next_row(at);
    int width = width_of(c);
    if (c == '\t') width = at.column + TAB - at.column % TAB < columns ? TAB - at.column % TAB : columns - at.column;
    if (at.column + width > columns) *from = at = next_row(at);
    at.column += width;
    return at.column >= columns ? next_row(at) : at;
}

// Where the character at `end` stands, or where the next one would.
static place place_of(EditLine *el, const wchar_t *end, int columns) {
    place at = {0, PROMPT}, from;
    for (const wchar_t *p = el_wline(el)->buffer; p < end; p++) at = advance(at, *p, columns, &from);
    if (end < el_wline(el)->lastchar) advance(at, *end, columns, &at);
    return at;
}

int cli_line_screen_row(const cli_line_screen *s, EditLine *el, const wchar_t *end) {
    int columns = size_of(s).ws_col;
    return columns ? place_of(el, end, columns).row : 0;
}

// ---- drawing ----

// at_end: the line ends with the line break of the Enter key. A line that is taller than the terminal cannot be drawn whole,
// because the cursor cannot move above the screen.
static int needs_whole(EditLine *el, struct winsize size, int at_end) {
    const LineInfoW *line = el_wline(el);
    const wchar_t *end = line->lastchar;
    if (at_end && end > line->buffer && end[-1] == '\n') end--;
    int last_row = place_of(el, end, size.ws_col).row;
    if (last_row > 0 && last_row < size.ws_row) return 1;
    for (const wchar_t *p = line->buffer; p < line->lastchar; p++)
        if (*p >= 128 && wcwidth(*p) != 1) return 1;
    return 0;
}

static void put_character(FILE *f, wchar_t c, int width) {
    char bytes[MB_LEN_MAX];
    mbstate_t state = {0};
    if (c == '\t') {
        fprintf(f, "%*s", width, "");
        return;
    }
    if (c < 32 || c == 127) {
        fprintf(f, "^%c", c ^ 64);
        return;
    }
    size_t n = wcrtomb(bytes, c, &state);
    if (n != (size_t)-1) fwrite(bytes, 1, n, f);
}

static void draw_whole(cli_line_screen *s, EditLine *el, const char *prompt, int columns, const wchar_t *cursor) {
    const LineInfoW *line = el_wline(el);
    place at = {0, PROMPT}, from, drawn = at;
    if (s->row) fprintf(s->terminal, "\033[%dA", s->row);
    fputs("\r\033[J", s->terminal);
    for (const char *p = prompt; *p; p++)
        if (*p != '\1') fputc(*p, s->terminal);
    for (const wchar_t *p = line->buffer; p < line->lastchar; p++) {
        at = advance(at, *p, columns, &from);
        if (from.row > drawn.row) fputs("\r\n", s->terminal);
        if (*p != '\n') put_character(s->terminal, *p, (at.row > from.row ? columns : at.column) - from.column);
        if (at.row > from.row) fputs("\r\n", s->terminal);
        drawn = at;
    }
    place end = place_of(el, cursor, columns);
    if (at.row > end.row) fprintf(s->terminal, "\033[%dA", at.row - end.row);
    fputc('\r', s->terminal);
    if (end.column) fprintf(s->terminal, "\033[%dC", end.column);
    s->row = end.row;
}

void cli_line_screen_settle(cli_line_screen *s, EditLine *el, const char *prompt, int at_end) {
    const LineInfoW *line = el_wline(el);
    const wchar_t *cursor = at_end ? line->lastchar : line->cursor;
    struct winsize size = size_of(s);
    int columns = size.ws_col, is_whole = s->has_escapes && columns > PROMPT && needs_whole(el, size, at_end);
    fflush(s->out);
    if (is_whole || s->is_whole)
        draw_whole(s, el, prompt, columns, cursor);
    else
        fwrite(s->held.data, 1, s->held.n, s->terminal);
    s->held.n = 0;
    s->row = columns ? place_of(el, cursor, columns).row : 0;
    s->is_whole = is_whole;
    fflush(s->terminal);
}

void cli_line_screen_begin(cli_line_screen *s) {
    fflush(s->out);
    if (s->held.n) fwrite(s->held.data, 1, s->held.n, s->terminal);
    fflush(s->terminal);
    s->held.n = 0;
    s->row = 0;
}

void cli_line_screen_resized(cli_line_screen *s, EditLine *el) {
    s->row = cli_line_screen_row(s, el, el_wline(el)->cursor);
}
