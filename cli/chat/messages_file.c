// cli/chat/messages_file.c - see messages_file.h.
#include "cli/chat/messages_file.h"
#include "base/whole_file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

int cli_messages_read(const char *path, sl_messages *m, sl_error *err) {
    json_error_t e;
    FILE *f = fopen(path, "rb");
    if (!f) return sl_fail(err, SL_ERR_IO, "cannot open %s: %s", path, strerror(errno));
    json_t *list = json_loadf(f, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    fclose(f);
    if (!list) return sl_fail(err, SL_ERR_FORMAT, "%s: line %d: %s", path, e.line, e.text);
    int rc = sl_messages_from_json(path, list, m, err);
    json_decref(list);
    return rc;
}

// A file that is not a conversation is another file of the user, so it stays.
static int check_replaceable(const char *path, sl_error *err) {
    struct stat st;
    sl_messages old = {0};
    sl_error why;
    if (stat(path, &st)) return 0;
    int rc = S_ISREG(st.st_mode) ? cli_messages_read(path, &old, &why) : SL_ERR_ARG;
    sl_messages_clear(&old);
    return rc ? sl_fail(err, SL_ERR_ARG, "%s exists and is not a saved conversation; it is not replaced", path) : 0;
}

int cli_messages_write(const char *path, const sl_messages *m, sl_error *err) {
    json_t *list = NULL;
    sl_whole_file w;
    int rc = check_replaceable(path, err);
    if (!rc) rc = sl_messages_to_json(m, &list, err);
    if (rc) return rc;
    FILE *f = sl_whole_file_open(&w, path, 0666);
    int ok = f && !json_dumpf(list, f, JSON_INDENT(1)) && fputc('\n', f) != EOF;
    json_decref(list);
    return sl_whole_file_close(&w, ok, err);
}
