// base/documents.c - see documents.h.
#include "base/documents.h"
#include "base/git_lfs.h"
#include "base/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void sl_documents_path(const sl_documents *d, const char *name, char buf[SL_DOCUMENT_PATH]) {
    snprintf(buf, SL_DOCUMENT_PATH, d->made ? "%.4000s (%.150s)" : "%.4000s/%.150s", d->path, name);
}

int sl_documents_have(const sl_documents *d, const char *name) {
    char path[SL_DOCUMENT_PATH];
    if (d->made) return json_object_get(d->made, name) != NULL;
    sl_documents_path(d, name, path);
    return access(path, F_OK) == 0;
}

static int is_missing(const sl_documents *d, const char *name, sl_error *err) {
    return sl_fail(err, SL_ERR_IO, "%s: it has no %s", d->path, name);
}

int sl_documents_json(const sl_documents *d, const char *name, int optional, json_t **out, sl_error *err) {
    if (!d->made) return sl_json_load(d->path, name, optional, out, err);
    *out = json_incref(json_object_get(d->made, name));
    return *out || optional ? 0 : is_missing(d, name, err);
}

static int read_file(const char *path, size_t most, sl_text *out, sl_error *err) {
    char buf[65536];
    size_t n, start = out->n;
    int rc = sl_text_append(out, "", 0, err);
    FILE *f = rc ? NULL : fopen(path, "rb");
    if (!rc && !f) return sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
    while (!rc && (n = fread(buf, 1, sizeof buf, f)) > 0) {
        rc = sl_text_append(out, buf, n, err);
        if (!rc && out->n - start > most)
            rc = sl_fail(err, SL_ERR_UNSUPPORTED, "%s: the file is too long, expected at most %zu bytes", path, most);
    }
    if (!rc && ferror(f)) rc = sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
    if (!rc) rc = sl_git_lfs_check(path, out->data + start, out->n - start, err);
    if (f) fclose(f);
    return rc;
}

static int append_made(const char *path, const char *data, size_t n, size_t most, sl_text *out, sl_error *err) {
    if (n > most) return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: %zu bytes, expected at most %zu", path, n, most);
    return sl_text_append(out, data, n, err);
}

int sl_documents_text(const sl_documents *d, const char *name, size_t most, sl_text *out, sl_error *err) {
    char path[SL_DOCUMENT_PATH];
    sl_documents_path(d, name, path);
    if (!d->made) return read_file(path, most, out, err);
    const json_t *v = json_object_get(d->made, name);
    if (!v) return is_missing(d, name, err);
    if (json_is_string(v)) return append_made(path, json_string_value(v), json_string_length(v), most, out, err);
    char *text = json_dumps(v, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY);
    int rc =
        text ? append_made(path, text, strlen(text), most, out, err) : sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path);
    free(text);
    return rc;
}
