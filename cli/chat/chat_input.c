// cli/chat/chat_input.c - see chat_input.h.
#include "cli/chat/chat_input.h"
#include "cli/process.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char first_prompt[] = "> ", next_prompt[] = ". ";

int chat_input_open(chat_input *in, const cli_word *words, sl_error *err) {
    int out = isatty(STDERR_FILENO) ? STDERR_FILENO : STDOUT_FILENO;
    *in = (chat_input){.on_terminal = isatty(STDIN_FILENO)};
    return in->on_terminal && isatty(out) ? cli_editor_open(out, words, &in->editor, err) : 0;
}

void chat_input_close(chat_input *in) {
    cli_editor_close(in->editor);
    sl_text_free(&in->edited);
    free(in->line);
}

int chat_input_has_colour(const chat_input *in) {
    return in->editor && cli_editor_has_colour(in->editor);
}

// Reads a plain line; *line and *n: without its line break.
static int read_plain(chat_input *in, const char *prompt, char **line, size_t *n, sl_error *err) {
    if (in->on_terminal) fputs(prompt, stderr);
    errno = 0;
    ssize_t length = getline(&in->line, &in->cap, stdin);
    if (length < 0 && errno == EINTR) {
        clearerr(stdin);
        return CLI_LINE_INTERRUPTED;
    }
    if (length < 0 && ferror(stdin)) return sl_fail(err, SL_ERR_IO, "cannot read standard input: %s", strerror(errno));
    if (length < 0) return CLI_LINE_END;
    while (length && (in->line[length - 1] == '\n' || in->line[length - 1] == '\r')) length--;
    *line = in->line, *n = (size_t)length;
    return CLI_LINE;
}

static int read_line(chat_input *in, const char *prompt, char **line, size_t *n, sl_error *err) {
    if (!in->editor) return read_plain(in, prompt, line, n, err);
    int rc = cli_editor_read(in->editor, prompt, &in->edited, err);
    *line = in->edited.data, *n = in->edited.n;
    return rc;
}

static int append(const chat_input *in, const char *line, size_t n, sl_text *text, sl_error *err) {
    return in->editor ? cli_editor_expand(in->editor, line, text, err) : sl_text_append(text, line, n, err);
}

int chat_input_read(chat_input *in, sl_text *text, int *is_command, sl_error *err) {
    int more = 1, got = 0;
    text->n = 0;
    *is_command = 0;
    while (more) {
        char *line = NULL;
        size_t n = 0;
        int rc = read_line(in, got ? next_prompt : first_prompt, &line, &n, err);
        if (rc < 0) return rc;
        if (rc == CLI_LINE_INTERRUPTED) { // start the message again
            cli_clear_interrupt();
            if (!in->on_terminal) return sl_fail(err, SL_ERR_IO, "interrupted");
            fputs(in->editor ? "(/quit or Ctrl+D ends the chat)\n" : "\n(/quit or Ctrl+D ends the chat)\n", stderr);
            text->n = 0;
            got = 0;
            continue;
        }
        if (rc == CLI_LINE_END) break;
        if (!got) *is_command = n && line[0] == '/';
        got = 1;
        more = n && line[n - 1] == '\\';
        if (more) line[n - 1] = '\n';
        rc = append(in, line, n, text, err);
        if (rc) return rc;
    }
    if (got && in->editor && text->n) cli_editor_remember(in->editor, text);
    return got;
}
