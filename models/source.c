// models/source.c - see source.h.
#include "models/source.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_PATH = 3000 }; // bytes, so that the paths of all files fit into their buffers

struct sl_source {
    char *path;
    sl_documents documents;
};

int sl_source_open(const char *path, sl_source **out, sl_error *err) {
    if (strlen(path) > MOST_PATH) return sl_fail(err, SL_ERR_ARG, "%.200s...: the path is too long", path);
    sl_source *s = calloc(1, sizeof *s);
    if (s) s->path = strdup(path);
    if (!s || !s->path) {
        sl_source_close(s);
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path);
    }
    s->documents = SL_FOLDER(s->path);
    *out = s;
    return 0;
}

void sl_source_close(sl_source *s) {
    if (!s) return;
    json_decref(s->documents.made);
    free(s->path);
    free(s);
}

const sl_documents *sl_source_documents(const sl_source *s) {
    return &s->documents;
}

int sl_source_tensors(const sl_source *s, sl_tensors **out, sl_error *err) {
    return sl_tensors_open(s->path, out, err);
}
