// cli/resume_file.c - see resume_file.h.
#include "cli/resume_file.h"
#include "base/json.h"
#include "cli/commands.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

void cli_settings_show(const json_t *settings, const char *key, char buf[160]) {
    const json_t *value = sl_json_get(settings, key);
    char *text = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
    snprintf(buf, 160, "%s", text ? text : "(not set)");
    free(text);
}

static int not_ours(const cli_resume *r, sl_error *err) {
    return sl_fail(err, SL_ERR_ARG, "%s %s: expected a file that sleigh %s wrote, found another line 1; name another file",
                   r->flag, r->path, r->command);
}

// The first key of `some` that `others` do not have or have with another value; NULL: none.
static const char *differing(const json_t *some, const json_t *others) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)some, key, value) {
        const json_t *other = sl_json_get(others, key);
        if ((json_is_null(value) && !other) || !strcmp(key, "model")) continue; // null: absent in both
        if (!other || !json_equal(other, value)) return key;
    }
    return NULL;
}

const char *cli_settings_differ(const json_t *a, const json_t *b) {
    const char *key = differing(a, b);
    return key ? key : differing(b, a);
}

static int check_settings(const cli_resume *r, const json_t *header, const json_t *settings, sl_error *err) {
    char name[32], before[160], now[160];
    snprintf(name, sizeof name, "sleigh_%s", r->command);
    const json_t *was = sl_json_get(header, "settings"), *version = sl_json_get(header, name);
    if (!json_is_object(was) || json_integer_value(version) != r->version) return not_ours(r, err);
    const char *key = cli_settings_differ(settings, was);
    if (!key) return 0;
    cli_settings_show(was, key, before), cli_settings_show(settings, key, now);
    return sl_fail(err, SL_ERR_ARG,
                   "%s %s was written with %s = %s, but this command has %s; name another file, or remove this one", r->flag,
                   r->path, key, before, now);
}

// Reads complete lines. *end: the end of the last complete line.
static int read_lines(const cli_resume *r, FILE *f, const json_t *settings, long *end, sl_error *err) {
    char *line = NULL, head[32];
    size_t cap = 0, n_head = (size_t)snprintf(head, sizeof head, "{\"sleigh_%s\":", r->command);
    ssize_t size;
    int rc = 0;
    *end = 0;
    for (int n = 1; !rc && (size = getline(&line, &cap, f)) > 0; n++) {
        if (line[size - 1] != '\n') { // incomplete: it may be removed only if this command wrote it
            if (n == 1 && strncmp(line, head, strlen(line) < n_head ? strlen(line) : n_head)) rc = not_ours(r, err);
            break;
        }
        json_error_t e;
        json_t *value = json_loadb(line, (size_t)size, JSON_REJECT_DUPLICATES, &e);
        rc = !value   ? sl_fail(err, SL_ERR_FORMAT, "%s %s: line %d: %s", r->flag, r->path, n, e.text)
             : n == 1 ? check_settings(r, value, settings, err)
                      : r->take(r->ctx, n, value, err);
        json_decref(value);
        *end += size;
    }
    if (!rc && ferror(f)) rc = sl_fail(err, SL_ERR_IO, "%s: cannot read %s: %s", r->flag, r->path, strerror(errno));
    free(line);
    return rc;
}

static int cannot_write(const char *flag, const char *path, sl_error *err) {
    return sl_fail(err, SL_ERR_IO, "%s: cannot write %s: %s", flag, path, strerror(errno));
}

int cli_resume_open(const cli_resume *r, const json_t *settings, FILE **out, sl_error *err) {
    FILE *f = fopen(r->path, "a+");
    long end = 0;
    char name[32];
    if (!f) return cannot_write(r->flag, r->path, err);
    int rc =
        flock(fileno(f), LOCK_EX | LOCK_NB) ? sl_fail(err, SL_ERR_IO, "%s %s: another run writes to it", r->flag, r->path) : 0;
    rewind(f);
    if (!rc) rc = read_lines(r, f, settings, &end, err);
    if (!rc && (ftruncate(fileno(f), end) || fseek(f, 0, SEEK_END))) rc = cannot_write(r->flag, r->path, err);
    snprintf(name, sizeof name, "sleigh_%s", r->command);
    if (!rc && !end) {
        json_t *head = json_pack("{s:i, s:s, s:O}", name, r->version, "commit", cli_commit(), "settings", settings);
        rc = cli_resume_add(f, r->flag, r->path, head, err);
        json_decref(head);
    }
    if (rc)
        fclose(f);
    else
        *out = f;
    return rc;
}

int cli_resume_add(FILE *f, const char *flag, const char *path, const json_t *line, sl_error *err) {
    char *text = cli_resume_text(line);
    int rc = cli_resume_add_text(f, flag, path, text, err);
    free(text);
    return rc;
}

char *cli_resume_text(const json_t *line) {
    return line ? json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
}

int cli_resume_add_text(FILE *f, const char *flag, const char *path, const char *text, sl_error *err) {
    if (!text) return sl_fail(err, SL_ERR_MEMORY, "%s %s: out of memory, or text that is not UTF-8", flag, path);
    return fprintf(f, "%s\n", text) < 0 || fflush(f) ? cannot_write(flag, path, err) : 0;
}
