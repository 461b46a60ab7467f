// cli/io.c - see io.h.
#include "cli/io.h"
#include "cli/rank_team.h"
#include "cli/output/progress_bar.h"
#include "cli/process.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- reading ----

// The first byte that no text has: a NUL; in a PDF byte 0. text->n: there is none.
static size_t binary_byte(const sl_text *text) {
    static const char pdf[] = "%PDF-";
    const char *nul = text->n ? memchr(text->data, 0, text->n) : NULL;
    if (text->n >= strlen(pdf) && !memcmp(text->data, pdf, strlen(pdf))) return 0;
    return nul ? (size_t)(nul - text->data) : text->n;
}

int cli_check_text(const char *path, const sl_text *text, sl_error *err) {
    const char *name = !path || !strcmp(path, "-") ? "standard input" : path;
    size_t at = binary_byte(text);
    if (at == text->n) return 0;
    if (at == 0 && text->data[0]) return sl_fail(err, SL_ERR_FORMAT, "%s is a PDF: expected text (`pdftotext` makes it)", name);
    return sl_fail(err, SL_ERR_FORMAT, "%s: byte %zu is 0: expected text, found a binary file", name, at);
}

int cli_read_file(const char *path, sl_text *out, sl_error *err) {
    int is_stdin = !strcmp(path, "-"), rc = 0;
    FILE *f = is_stdin ? stdin : fopen(path, "rb");
    if (!f) return sl_fail(err, SL_ERR_IO, "cannot open %s: %s", path, strerror(errno));
    char buf[65536];
    size_t n;
    while (!rc && (n = fread(buf, 1, sizeof buf, f)) > 0) rc = sl_text_append(out, buf, n, err);
    if (!rc && ferror(f))
        rc = sl_fail(err, SL_ERR_IO, "cannot read %s: %s", is_stdin ? "standard input" : path, strerror(errno));
    if (!is_stdin) fclose(f);
    return rc ? rc : sl_text_append(out, "", 0, err); // gives an empty file a buffer too
}

static int read_standard_input(const cli_input_options *o, sl_text *out, sl_error *err) {
    int unused = 0, rc = 0;
    if (!sl_comm_rank(o->comm)) {
        if (isatty(STDIN_FILENO) && !o->file_given)
            return sl_fail(err, SL_ERR_ARG, "no input: give --prompt or --file, or pipe text into standard input");
        rc = cli_read_file("-", out, err);
    }
    return rc ? rc : cli_team_share(o->comm, out, &unused, err);
}

int cli_read_input(const cli_input_options *o, sl_text *out, sl_error *err) {
    int by_prompt = o->prompt_given, by_file = o->file_given; // CLI_BY_FLAG is above CLI_BY_ENV: a flag takes precedence
    if (by_prompt && by_prompt == by_file) return sl_fail(err, SL_ERR_ARG, "--prompt and --file: expected only one of them");
    if (by_prompt > by_file) return sl_text_append(out, o->prompt, strlen(o->prompt), err);
    return by_file && strcmp(o->file, "-") ? cli_read_file(o->file, out, err) : read_standard_input(o, out, err);
}

int cli_parse_ids(const char *source, const sl_text *text, sl_ids *ids, sl_error *err) {
    const char *p = text->data, *end = p ? p + text->n : p;
    while (p < end) {
        if (*p == ',' || *p == ' ' || *p == '\t' || *p == '\r' || *p == '\n') {
            p++;
            continue;
        }
        char *after;
        errno = 0;
        long id = strtol(p, &after, 10);
        if (after == p || errno || id < 0 || id > INT32_MAX || (after < end && !strchr(", \t\r\n", *after)) ||
            (after < end && !*after))
            return sl_fail(err, SL_ERR_FORMAT, "%s: byte %td: expected token ids, separated by commas or blanks", source,
                           p - text->data);
        int rc = sl_ids_push(ids, (int32_t)id, err);
        if (rc) return rc;
        p = after;
    }
    return 0;
}

// ---- writing ----

static int stdout_failed(int why, sl_error *err) {
    if (why == EPIPE) cli_note_closed_output();
    return sl_fail(err, SL_ERR_IO, "cannot write to standard output: %s", strerror(why));
}

// Writes n bytes, or what stdout holds if data is NULL. Returns 0 or the error. A write that Ctrl+C interrupts would fail, and
// stdio drops what it did not write. So the signal waits, or goes to another thread.
static int write_out(const char *data, size_t n) {
    sigset_t interrupt, before;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    pthread_sigmask(SIG_BLOCK, &interrupt, &before);
    int failed = data ? fwrite(data, 1, n, stdout) != n : fflush(stdout) || ferror(stdout), why = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return !failed ? 0 : why ? why : EIO;
}

int cli_write(const char *data, size_t n, sl_error *err) {
    cli_progress_before_output(data, n);
    int why = n ? write_out(data, n) : 0;
    return why ? stdout_failed(why, err) : 0;
}

int cli_printf(sl_error *err, const char *fmt, ...) {
    va_list ap;
    char *text = NULL;
    va_start(ap, fmt);
    int n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n < 0) return sl_fail(err, SL_ERR_MEMORY, "output: out of memory");
    int rc = cli_write(text, (size_t)n, err);
    free(text);
    return rc;
}

int cli_flush(sl_error *err) {
    int why = write_out(NULL, 0);
    cli_progress_show();
    return why ? stdout_failed(why, err) : 0;
}

// ---- numbers ----

const char *cli_s(long long n) {
    return n == 1 ? "" : "s";
}

const char *cli_bytes(double bytes, char buf[32]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int u = 0;
    while (bytes >= 1024 && u < 4) bytes /= 1024, u++;
    snprintf(buf, 32, u ? "%.2f %s" : "%.0f %s", bytes, units[u]);
    return buf;
}

double cli_per_second(double n, double ms) {
    return ms > 0 ? n * 1e3 / ms : 0;
}

int cli_common_prefix(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b) {
    size_t most = n_a < n_b ? n_a : n_b, n = 0;
    while (n < most && a[n] == b[n]) n++;
    return (int)n;
}
