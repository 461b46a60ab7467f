// cli/chat/line_editor.c - see line_editor.h.
#include "cli/chat/line_editor.h"
#include "base/make_folders.h"
#include "base/whole_file.h"
#include "cli/chat/line_screen.h"
#include "cli/chat/pastes.h"
#include "cli/chat/terminal.h"
#include "cli/process.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

enum { HISTORY_LINES = 1000, HISTORY_BYTES = 100000, MAX_PROMPT = 64, INPUT_BYTES = 4096 };

struct cli_editor {
    EditLine *el;
    cli_line_screen screen;
    History *history;
    char *history_path; // NULL: no folder for it
    const cli_word *words;
    char prompt[MAX_PROMPT];
    int has_escapes, has_colour;
    unsigned char input[INPUT_BYTES]; // read from the terminal and not yet used: [at, n)
    int at, n;
    cli_line ended; // why the input ended; CLI_LINE: it did not end
    cli_pastes pastes;
    int rc; // of an error in a function that libedit calls; its reason is in *err
    sl_error *err;
};

static cli_editor *editor_of(EditLine *el) {
    void *e;
    el_get(el, EL_CLIENTDATA, &e);
    return e;
}

// ---- input ----

static void draw_again(cli_editor *e, int on_same_rows) {
    el_resize(e->el);
    if (!on_same_rows) cli_line_screen_begin(&e->screen);
    if (on_same_rows && e->has_escapes) {
        cli_line_screen_resized(&e->screen, e->el);
        if (!e->screen.is_whole && e->screen.row) fprintf(e->screen.out, "\033[%dA", e->screen.row);
        if (!e->screen.is_whole) fputs("\r\033[J", e->screen.out);
    }
    el_set(e->el, EL_REFRESH);
}

// Moves below the line when the user ended it somewhere else.
static void leave_line(cli_editor *e) {
    const LineInfoW *line = el_wline(e->el);
    cli_line_screen_settle(&e->screen, e->el, e->prompt, 0);
    int rows = cli_line_screen_row(&e->screen, e->el, line->lastchar) - e->screen.row;
    if (rows && e->has_escapes) fprintf(e->screen.out, "\033[%dB", rows);
    fputc('\n', e->screen.out);
}

// The next byte of the terminal. -1: the input ended; e->ended tells why.
static int next_byte(cli_editor *e) {
    while (e->at == e->n) {
        cli_line_screen_settle(&e->screen, e->el, e->prompt, 0);
        cli_wake event = cli_terminal_wait();
        if (event == CLI_WAKE_RESIZED || event == CLI_WAKE_CONTINUED) {
            draw_again(e, event == CLI_WAKE_RESIZED);
            continue;
        }
        if (event == CLI_WAKE_INTERRUPT) {
            e->ended = CLI_LINE_INTERRUPTED;
            return -1;
        }
        ssize_t n = cli_terminal_read(e->input, sizeof e->input);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (n <= 0) { // the terminal is gone
            e->ended = CLI_LINE_END;
            return -1;
        }
        e->at = 0, e->n = (int)n;
    }
    return e->input[e->at++];
}

// Called by libedit for each character. Bytes that are not UTF-8 become U+FFFD.
static int next_character(EditLine *el, wchar_t *out) {
    cli_editor *e = editor_of(el);
    mbstate_t state = {0};
    for (;;) {
        int byte = next_byte(e), is_inside = !mbsinit(&state);
        if (byte < 0) return e->ended == CLI_LINE_END ? 0 : -1;
        char c = (char)byte;
        size_t n = mbrtowc(out, &c, 1, &state);
        if (n == (size_t)-2) continue; // an incomplete character
        if (n == (size_t)-1) {
            *out = 0xFFFD;
            if (is_inside) e->at--; // this byte begins the next character
        }
        return 1;
    }
}

// ---- keys ----

// Reads a bracketed paste up to its end mark, and inserts the text or its label.
static unsigned char on_paste(EditLine *el, int key) {
    static const char mark[] = "\033[201~";
    const size_t n_mark = sizeof mark - 1;
    cli_editor *e = editor_of(el);
    sl_text text = {0};
    const char *label;
    (void)key;
    while (!e->rc && (text.n < n_mark || memcmp(text.data + text.n - n_mark, mark, n_mark))) {
        int byte = next_byte(e);
        if (byte < 0) { // libedit asks for the next character and gets the same answer
            sl_text_free(&text);
            return CC_REFRESH;
        }
        char c = (char)byte;
        e->rc = sl_text_append(&text, &c, 1, e->err);
    }
    if (!e->rc) {
        text.n -= n_mark;
        cli_paste_clean(&text);
        if (!text.n || (cli_paste_is_short(&text) && !el_insertstr(el, text.data))) {
            sl_text_free(&text);
            return CC_REFRESH;
        }
        e->rc = cli_pastes_add(&e->pastes, &text, &label, e->err);
    }
    sl_text_free(&text);
    if (e->rc) return CC_EOF;
    el_insertstr(el, label);
    return CC_REFRESH;
}

// Deletes the character before the cursor, or a whole label.
static unsigned char on_backspace(EditLine *el, int key) {
    const LineInfo *line = el_line(el);
    size_t n = (size_t)(line->cursor - line->buffer), n_label;
    (void)key;
    if (!n) return CC_ERROR;
    n_label = cli_pastes_label_at_end(&editor_of(el)->pastes, line->buffer, n);
    el_deletestr(el, n_label ? (int)n_label : 1);
    return CC_REFRESH;
}

static unsigned char on_line_break(EditLine *el, int key) {
    (void)key;
    return el_insertstr(el, "\n") ? CC_ERROR : CC_REFRESH;
}

// Writes the candidates below the line, without the folders of files.
static void list_candidates(cli_editor *e, char *const *candidates, int n) {
    FILE *out = e->screen.out;
    leave_line(e);
    for (int i = 0; i < n; i++) {
        size_t length = strlen(candidates[i]);
        const char *name = length > 1 ? memrchr(candidates[i], '/', length - 1) : NULL;
        fprintf(out, "%s  ", name && name > candidates[i] ? name + 1 : candidates[i]);
    }
    fputc('\n', out);
    cli_line_screen_begin(&e->screen);
    el_set(e->el, EL_REFRESH);
}

// Replaces `typed`, the end of the line, by what the candidates have in common. suffix: follows a single candidate.
static unsigned char complete(cli_editor *e, const char *typed, char *const *candidates, int n, const char *suffix) {
    if (n == 0) return CC_ERROR;
    size_t common = strlen(candidates[0]);
    for (int i = 1; i < n; i++) {
        size_t same = 0;
        while (same < common && candidates[i][same] == candidates[0][same]) same++;
        common = same;
    }
    while (common && (candidates[0][common] & 0xC0) == 0x80) common--; // not inside a character of UTF-8
    if (n > 1 && common <= strlen(typed)) {
        list_candidates(e, candidates, n);
        return CC_NORM;
    }
    char *text = strndup(candidates[0], common);
    if (!text) return CC_ERROR;
    el_deletestr(e->el, (int)mbstowcs(NULL, typed, 0));
    el_insertstr(e->el, text);
    if (n == 1 && *suffix) el_insertstr(e->el, suffix);
    free(text);
    return CC_REFRESH;
}

static unsigned char complete_file(cli_editor *e, const char *typed) {
    char pattern[4096];
    size_t n = 0;
    glob_t files;
    for (const char *p = typed; *p && n + 3 < sizeof pattern; p++) {
        if (strchr("*?[\\", *p)) pattern[n++] = '\\';
        pattern[n++] = *p;
    }
    strcpy(pattern + n, "*");
    if (glob(pattern, GLOB_MARK | GLOB_TILDE, NULL, &files)) return CC_ERROR;
    unsigned char result = complete(e, typed, files.gl_pathv, (int)files.gl_pathc, "");
    globfree(&files);
    return result;
}

static unsigned char on_tab(EditLine *el, int key) {
    cli_editor *e = editor_of(el);
    const LineInfo *line = el_line(el);
    char typed[2048], *candidates[32];
    int n = 0;
    size_t length = (size_t)(line->cursor - line->buffer);
    (void)key;
    if (length >= sizeof typed) return CC_ERROR;
    snprintf(typed, sizeof typed, "%.*s", (int)length, line->buffer);
    char *argument = strchr(typed, ' ');
    for (const cli_word *w = e->words; w->text; w++) {
        if (!argument && !strncmp(w->text, typed, length)) {
            if (n < (int)(sizeof candidates / sizeof *candidates)) candidates[n++] = (char *)w->text;
        } else if (argument && w->takes_file && !strncmp(w->text, typed, (size_t)(argument - typed)) &&
                   !w->text[argument - typed]) {
            return complete_file(e, argument + strspn(argument, " "));
        }
    }
    return argument || !length ? CC_ERROR : complete(e, typed, candidates, n, " ");
}

static void bind_keys(EditLine *el) {
    static const char *const keys[][2] = {
        {"\\e[200~", "paste"},
        {"^?", "backspace"},
        {"^H", "backspace"},
        {"\\t", "complete"},
        {"\\e\\r", "line-break"},
        {"^R", "em-inc-search-prev"},
        {"\\e[3~", "ed-delete-next-char"},
        {"\\e[1~", "ed-move-to-beg"},
        {"\\e[4~", "ed-move-to-end"},
        {"\\e[H", "ed-move-to-beg"},
        {"\\e[F", "ed-move-to-end"},
        {"\\eOH", "ed-move-to-beg"},
        {"\\eOF", "ed-move-to-end"},
        {"\\e[1;5C", "em-next-word"},
        {"\\e[1;5D", "ed-prev-word"},
    };
    // The functions with wide characters keep these texts; those with bytes would copy them and never free the copies.
    el_wset(el, EL_ADDFN, L"paste", L"insert a pasted text", on_paste);
    el_wset(el, EL_ADDFN, L"backspace", L"delete a character or a label", on_backspace);
    el_wset(el, EL_ADDFN, L"complete", L"complete a command or a file name", on_tab);
    el_wset(el, EL_ADDFN, L"line-break", L"insert a line break", on_line_break);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) el_set(el, EL_BIND, keys[i][0], keys[i][1], NULL);
}

// ---- the history ----

// $XDG_STATE_HOME/sleigh/chat_history, or below ~/.local/state. NULL: there is no such folder, or no memory.
static char *history_path(void) {
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char *path = NULL;
    int is_state = state && *state == '/'; // the XDG specification ignores relative ones
    if (!is_state && (!home || *home != '/')) return NULL;
    if (asprintf(&path, "%s%s/sleigh/chat_history", is_state ? state : home, is_state ? "" : "/.local/state") < 0) return NULL;
    if (strlen(path) < 4000) return path; // sl_make_folders
    free(path);
    return NULL;
}

static void open_history(cli_editor *e) {
    HistEvent event;
    e->history = history_init();
    if (!e->history) return;
    history(e->history, &event, H_SETSIZE, HISTORY_LINES);
    history(e->history, &event, H_SETUNIQUE, 1);
    el_set(e->el, EL_HIST, history, e->history);
    e->history_path = history_path();
    if (e->history_path) history(e->history, &event, H_LOAD, e->history_path);
}

// Replaces the file at once, so that a chat that ends in between does not lose it. The texts are private: mode 0600.
static void write_history(cli_editor *e) {
    HistEvent event;
    sl_whole_file w;
    if (!e->history_path) return;
    sl_make_folders(e->history_path, 0700);
    FILE *f = sl_whole_file_open(&w, e->history_path, 0600);
    sl_whole_file_close(&w, f && history(e->history, &event, H_SAVE_FP, f) >= 0, NULL); // a chat does not need the file
}

void cli_editor_remember(cli_editor *e, const sl_text *text) {
    HistEvent event;
    cli_pastes_clear(&e->pastes);
    if (!e->history || !text->n || text->n > HISTORY_BYTES) return;
    history(e->history, &event, H_ENTER, text->data);
    write_history(e);
}

// ---- open, read, close ----

// libedit needs a locale with UTF-8 for characters. Numbers keep the format of C.
static void choose_characters(void) {
    if (setlocale(LC_CTYPE, "") && !strcmp(nl_langinfo(CODESET), "UTF-8")) return;
    setlocale(LC_CTYPE, "C.UTF-8");
}

static char *prompt_of(EditLine *el) {
    return editor_of(el)->prompt;
}

int cli_editor_open(int out, const cli_word *words, cli_editor **editor, sl_error *err) {
    const char *term = getenv("TERM"), *no_colour = getenv("NO_COLOR");
    cli_editor *e = calloc(1, sizeof *e);
    if (!e) return sl_fail(err, SL_ERR_MEMORY, "line editor: out of memory");
    e->words = words;
    e->has_escapes = term && *term && strcmp(term, "dumb");
    e->has_colour = e->has_escapes && (!no_colour || !*no_colour);
    choose_characters();
    int rc = cli_terminal_open(STDIN_FILENO, out, e->has_escapes, err), copy = rc ? -1 : dup(out);
    if (!rc) {
        if (copy >= 0 && !cli_line_screen_open(&e->screen, copy, e->has_escapes))
            e->el = el_init_fd("sleigh", stdin, e->screen.out, e->screen.out, STDIN_FILENO, copy, copy);
        if (!e->el) rc = sl_fail(err, SL_ERR_IO, "cannot open the line editor: %s", strerror(errno));
    }
    if (rc) {
        cli_editor_close(e);
        return rc;
    }
    el_set(e->el, EL_CLIENTDATA, e);
    el_set(e->el, EL_EDITOR, "emacs");
    el_set(e->el, EL_PROMPT_ESC, prompt_of, '\1');
    el_set(e->el, EL_GETCFN, next_character);
    // The line breaks of a paste arrive unchanged (-d: while a line is read). Between two lines (-x) the terminal does not
    // collect lines, because it would cut them at 4,095 bytes.
    el_set(e->el, EL_SETTY, "-d", "-icrnl", "-inlcr", NULL);
    el_set(e->el, EL_SETTY, "-x", "-icanon", "-echo", "-iexten", "-icrnl", "-inlcr", NULL);
    bind_keys(e->el);
    open_history(e);
    *editor = e;
    return 0;
}

int cli_editor_read(cli_editor *e, const char *prompt, sl_text *line, sl_error *err) {
    int n = 0, rc = 0;
    // Green for the prompt and bold for the text are readable on white and on black. \1 encloses what has no width.
    snprintf(e->prompt, sizeof e->prompt, e->has_colour ? "\1\033[0;32m\1%c\1\033[0;1m\1 " : "%c ", *prompt);
    e->ended = CLI_LINE, e->rc = 0, e->err = err;
    cli_line_screen_begin(&e->screen);
    const char *text = el_gets(e->el, &n);
    if (text) cli_line_screen_settle(&e->screen, e->el, e->prompt, 1);
    if (e->has_colour) fputs("\033[0m", e->screen.out);
    if (!text) leave_line(e);
    cli_line_screen_begin(&e->screen);
    e->err = NULL;
    if (e->rc) return e->rc;
    if (!text && e->ended == CLI_LINE_INTERRUPTED) {
        cli_pastes_clear(&e->pastes);
        return CLI_LINE_INTERRUPTED;
    }
    if (!text) return CLI_LINE_END;
    size_t length = strlen(text);
    while (length && text[length - 1] == '\n') length--;
    line->n = 0;
    rc = sl_text_append(line, text, length, err);
    return rc ? rc : CLI_LINE;
}

int cli_editor_expand(const cli_editor *e, const char *line, sl_text *out, sl_error *err) {
    return cli_pastes_expand(&e->pastes, line, out, err);
}

int cli_editor_has_colour(const cli_editor *e) {
    return e->has_colour;
}

void cli_editor_close(cli_editor *e) {
    if (!e) return;
    if (e->el) el_end(e->el);
    if (e->history) history_end(e->history);
    cli_line_screen_close(&e->screen);
    cli_terminal_close();
    cli_pastes_clear(&e->pastes);
    free(e->history_path);
    free(e);
}
