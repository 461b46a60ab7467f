// tests/cli/test_line_screen.c - random keys in the line of `sleigh chat`: after each key, a terminal that shows the program's
// output has the rows and the cursor of a second line editor.
#include "tests/support/pty.h"
#include "tests/support/run_cli.h"

#include <stdlib.h>

enum { ROWS = 60, MOST_COLUMNS = 64, CELL = 16, MOST = 400, PATIENCE_S = 15 };

// ---- the terminal ----

typedef struct screen {
    char cell[ROWS][MOST_COLUMNS][CELL]; // "": a blank, or the right half of a character
    int row, column, columns;
} screen;

static int width_of(const char *c) { // of a character of the test
    return !strcmp(c, "\u0301") ? 0 : (unsigned char)*c >= 0xE0 || (unsigned char)*c < ' ' ? 2 : 1;
}

static int length_of(const char *c) { // bytes of UTF-8
    unsigned char b = (unsigned char)*c;
    return b < 0x80 ? 1 : b < 0xE0 ? 2 : b < 0xF0 ? 3 : 4;
}

static void put(screen *s, const char *c, int n) {
    char text[5];
    snprintf(text, sizeof text, "%.*s", n, c);
    int width = width_of(text);
    if (!width) { // the terminal adds it to the character before it
        int at = s->column - 1;
        while (at > 0 && !s->cell[s->row][at][0]) at--;
        if (at >= 0) strncat(s->cell[s->row][at], text, CELL - 1 - strlen(s->cell[s->row][at]));
        return;
    }
    if (s->column + width > s->columns) s->row++, s->column = 0;
    CHECK(s->row < ROWS);
    snprintf(s->cell[s->row][s->column], CELL, "%s", strcmp(text, " ") ? text : "");
    if (width == 2) s->cell[s->row][s->column + 1][0] = 0;
    s->column += width; // `columns`: the next character begins a row
}

static void erase(screen *s, int row, int from) {
    for (int i = from; i < MOST_COLUMNS; i++) s->cell[row][i][0] = 0;
}

static void escape(screen *s, char what, int n) {
    int most = s->columns - 1, one = n > 0 ? n : 1, at = s->column > most ? most : s->column;
    if (what == 'A') s->row -= one;
    if (what == 'B') s->row += one;
    if (what == 'C') s->column = at + one > most ? most : at + one;
    if (what == 'D') s->column = at - one < 0 ? 0 : at - one;
    if (what == 'G') s->column = one - 1;
    if (what == 'J' || what == 'K') erase(s, s->row, at);
    for (int r = s->row + 1; what == 'J' && r < ROWS; r++) erase(s, r, 0);
    if (what == 'P') // delete characters
        for (int i = at; i < s->columns; i++) strcpy(s->cell[s->row][i], i + one < s->columns ? s->cell[s->row][i + one] : "");
    if (what == '@') // insert blanks
        for (int i = most; i >= at; i--) strcpy(s->cell[s->row][i], i - one >= at ? s->cell[s->row][i - one] : "");
    if (!strchr("ABCDGJKP@mhl", what)) FAIL("unknown sequence ESC [ %d %c", n, what);
    if (s->row < 0 || s->row >= ROWS) FAIL("row %d of the screen", s->row);
}

// Shows whole characters and sequences of text[0..n). Returns the bytes that were shown.
static size_t show(screen *s, const char *text, size_t n) {
    size_t at = 0;
    while (at < n) {
        const char *p = text + at;
        size_t length = (size_t)length_of(p);
        if (*p == '\033') {
            length = 2;
            while (at + length < n && !(p[length] >= '@')) length++;
            length++;
        }
        if (at + length > n) return at;
        if (*p == '\033')
            escape(s, p[length - 1], atoi(p + 2));
        else if (*p == '\r')
            s->column = 0;
        else if (*p == '\n')
            s->row++;
        else if (*p == '\b')
            s->column -= s->column > 0;
        else if (*p != '\a')
            put(s, p, (int)length);
        CHECK(s->row < ROWS);
        at += length;
    }
    return at;
}

// ---- the line ----

typedef struct line {
    char at[MOST][5]; // characters
    int n, cursor;
    char label[8][64], text[8][64]; // of long pastes
    int n_pastes;
} line;

static void insert(line *l, const char *text) {
    for (; *text; text += length_of(text)) {
        memmove(l->at[l->cursor + 1], l->at[l->cursor], (size_t)(l->n++ - l->cursor) * sizeof *l->at);
        snprintf(l->at[l->cursor++], sizeof *l->at, "%.*s", length_of(text), text);
    }
}

static void cut(line *l, int from, int to) {
    memmove(l->at[from], l->at[to], (size_t)(l->n - to) * sizeof *l->at);
    l->n -= to - from;
    l->cursor = from;
}

static char *joined(const line *l, int n) { // static
    static char text[MOST * 5];
    *text = 0;
    for (int i = 0; i < n; i++) strcat(text, l->at[i]);
    return text;
}

static void backspace(line *l) {
    const char *before = joined(l, l->cursor);
    int n = l->cursor > 0;
    for (int i = 0; i < l->n_pastes; i++) {
        size_t length = strlen(l->label[i]);
        if (strlen(before) >= length && !strcmp(before + strlen(before) - length, l->label[i])) n = (int)length;
    }
    cut(l, l->cursor - n, l->cursor);
}

// The screen that shows the line.
static void draw(const line *l, int columns, screen *s) {
    memset(s, 0, sizeof *s);
    s->columns = columns;
    int row = 0, column = 2;
    strcpy(s->cell[0][0], ">");
    s->row = -1;
    for (int i = 0; i < l->n; i++) {
        const char *c = l->at[i];
        int width = *c == '\n' ? 0 : width_of(c), at = column - 1;
        if (column + width > columns) row++, column = 0;
        if (i == l->cursor) s->row = row, s->column = column;
        if (*c == '\n') {
            row++, column = 0;
            continue;
        }
        while (!width && at > 0 && !s->cell[row][at][0]) at--;
        if (!width && column)
            strcat(s->cell[row][at], c);
        else if (width && strcmp(c, " "))
            strcpy(s->cell[row][column], c);
        column += width;
        if (column == columns) row++, column = 0;
    }
    if (s->row < 0) s->row = row, s->column = column;
}

// ---- keys ----

static int pick(uint64_t *rng, int n) {
    return (int)(n * test_uniform(rng));
}

// Types a key and does the same to the line.
static void press(line *l, uint64_t *rng, int is_wide) {
    static const char *const plain[] = {"a", "b", " ", "\u00e4", "Z"}, *const wide[] = {"\u4e00", "\U0001f600", "e\u0301", "x"};
    char keys[200];
    int key = pick(rng, 24);
    if (key < 9) { // several characters at once
        *keys = 0;
        for (int i = key < 6 ? 0 : -pick(rng, 12); i < 1; i++)
            strcat(keys, is_wide && pick(rng, 2) ? wide[pick(rng, 4)] : plain[pick(rng, 5)]);
        insert(l, keys);
    } else if (key < 12 || key == 16) {
        l->cursor -= l->cursor > 0;
        strcpy(keys, pick(rng, 2) ? "\033[D" : "\002");
    } else if (key == 12) {
        l->cursor += l->cursor < l->n;
        strcpy(keys, pick(rng, 2) ? "\033[C" : "\006");
    } else if (key == 13) {
        static const char *const home[] = {"\001", "\033[H", "\033OH", "\033[1~"};
        l->cursor = 0;
        strcpy(keys, home[pick(rng, 4)]);
    } else if (key == 14) {
        static const char *const end[] = {"\005", "\033[F", "\033OF", "\033[4~"};
        l->cursor = l->n;
        strcpy(keys, end[pick(rng, 4)]);
    } else if (key == 15) {
        cut(l, l->cursor, l->n);
        strcpy(keys, "\013");
    } else if (key < 19) {
        backspace(l);
        strcpy(keys, pick(rng, 2) ? "\177" : "\b");
    } else if (key < 20) {
        if (l->cursor < l->n) cut(l, l->cursor, l->cursor + 1);
        strcpy(keys, "\033[3~");
    } else if (key < 21) {
        insert(l, "\n");
        strcpy(keys, "\033\r");
    } else if (key < 22) {
        insert(l, "a paste");
        strcpy(keys, "\033[200~a paste\r\033[201~");
    } else if (key < 23 && l->n_pastes < 8) {
        int i = l->n_pastes++;
        snprintf(l->text[i], sizeof l->text[i], "%d\nz", i);
        snprintf(l->label[i], sizeof l->label[i], "[paste %d: 2 lines, 3 bytes]", i + 1);
        insert(l, l->label[i]);
        snprintf(keys, sizeof keys, "\033[200~%d\r\nz\033[201~", i);
    } else {
        l->cursor = l->n;
        strcpy(keys, "\005");
    }
    pty_type(keys);
}

static void print_screen(const char *name, const screen *s) {
    fprintf(stderr, "%s, cursor %d %d\n", name, s->row, s->column);
    for (int r = 0; r < 12; r++) {
        for (int c = 0; c < s->columns; c++) fputs(s->cell[r][c][0] ? s->cell[r][c] : ".", stderr);
        fputc('\n', stderr);
    }
}

static int same_cells(const screen *a, const screen *b) {
    int same = 1;
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < MOST_COLUMNS; c++) same &= !strcmp(a->cell[r][c], b->cell[r][c]);
    return same;
}

// Shows the program's output until the screen is that of the line. *shown: bytes behind pty_expect's text.
static void settle(screen *s, size_t *shown, const line *l) {
    screen want;
    draw(l, s->columns, &want);
    for (;;) {
        screen now;
        *shown += show(s, pty_since() + *shown, strlen(pty_since() + *shown));
        now = *s;
        if (now.column == now.columns) now.row++, now.column = 0;
        if (now.row == want.row && now.column == want.column && same_cells(&now, &want)) return;
        if (pty_more(PATIENCE_S)) continue;
        print_screen("got", s), print_screen("expected", &want);
        FAIL("the screen is not that of the line %s", joined(l, l->n));
    }
}

// The window gets another size. A terminal divides the rows of its text anew, and the program draws the line again.
static void resize(screen *s, size_t *shown, line *l, int columns) {
    // The key before may have drawn an equal line again. When the screen shows the q, this output is complete.
    insert(l, "q"), pty_type("q");
    settle(s, shown, l);
    draw(l, columns, s);
    pty_resize(ROWS, columns);
    while (!strstr(pty_since() + *shown, "\r\033[J"))
        if (!pty_more(PATIENCE_S)) FAIL("the line is not drawn again after a resize");
    settle(s, shown, l);
}

static void random_keys(void) {
    enum { LINES = 12, KEYS = 40 };
    static const int columns[LINES] = {12, 13, 20, 21, 30, 31, 11, 40, 64, 14, 15, 10};
    static line l; // its pastes belong to the chat
    static screen s;
    uint64_t rng = test_seed;
    size_t shown = 0;
    memset(&l, 0, sizeof l);
    PTY_START(((pty_options){.rows = ROWS, .columns = columns[0]}), "chat", "-m", tiny(), "--chat-template", "zephyr", "-n",
              "1");
    pty_expect("/help lists all commands");
    pty_expect("> ");
    draw(&l, columns[0], &s);
    for (int i = 0; i < LINES; i++) {
        for (int k = 0; k < KEYS && l.n < MOST - 100; k++) {
            press(&l, &rng, i % 2);
            settle(&s, &shown, &l);
            if (k == 1) resize(&s, &shown, &l, columns[(i + 3) % LINES]); // a short line
            if (k == KEYS / 2) resize(&s, &shown, &l, columns[(i + 1) % LINES]);
        }
        pty_type("\025");
        l.n = l.cursor = 0;
        settle(&s, &shown, &l);
    }
    pty_type("/quit\r");
    CHECK_INT(pty_finish(), 0);
}

static const test_case cases[] = {{"random_keys", NEEDS_NOTHING, random_keys}, {0}};
const test_suite suite_line_screen = {"line_screen", cases};
