// models/tensors_writer.c - see tensors_writer.h.
#include "models/tensors_writer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int sl_tensors_writer_init(sl_tensors_writer *w, const char *path, sl_error *err) {
    *w = (sl_tensors_writer){.path = strdup(path)};
    return w->path ? 0 : sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path);
}

int sl_tensors_writer_declare(sl_tensors_writer *w, const char *name, const char *dtype, const int64_t *dims, int n_dims,
                              size_t n_bytes, sl_error *err) {
    SL_CHECK(!w->whole.file);
    if (w->n == w->cap) {
        int cap = w->cap ? 2 * w->cap : 64;
        sl_written_tensor *grown = realloc(w->tensors, (size_t)cap * sizeof *grown);
        if (!grown) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", w->path);
        w->tensors = grown;
        w->cap = cap;
    }
    size_t count = 1;
    sl_written_tensor *t = &w->tensors[w->n];
    *t = (sl_written_tensor){.name = strdup(name), .dtype = dtype, .shape = json_array(), .n_bytes = n_bytes};
    int bad = !t->name || !t->shape;
    for (int i = 0; i < n_dims; i++) {
        bad |= json_array_append_new(t->shape, json_integer(dims[i]));
        count *= (size_t)dims[i];
    }
    t->element = count ? n_bytes / count : 1;
    w->n++;
    return bad ? sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", w->path) : w->n - 1;
}

static int by_element(const void *a, const void *b) {
    const sl_written_tensor *const *x = a, *const *y = b;
    if ((*x)->element != (*y)->element) return (*x)->element < (*y)->element ? 1 : -1;
    return (*x > *y) - (*x < *y); // in the order of declaration
}

// The header as text, from malloc; NULL: out of memory. Sets the places of the data.
static char *make_header(sl_tensors_writer *w) {
    sl_written_tensor **order = malloc(((size_t)w->n + 1) * sizeof(sl_written_tensor *));
    json_t *root = json_pack("{s:{s:s}}", "__metadata__", "format", "pt"); // transformers asks for this format
    size_t at = 0;
    int bad = !root || !order;
    for (int i = 0; !bad && i < w->n; i++) order[i] = &w->tensors[i];
    if (!bad) qsort(order, (size_t)w->n, sizeof *order, by_element);
    for (int i = 0; !bad && i < w->n; i++) {
        sl_written_tensor *t = order[i];
        t->at = at;
        at += t->n_bytes;
        bad = json_object_set_new(root, t->name,
                                  json_pack("{s:s, s:O, s:[I, I]}", "dtype", t->dtype, "shape", t->shape, "data_offsets",
                                            (json_int_t)t->at, (json_int_t)at));
    }
    char *text = bad ? NULL : json_dumps(root, JSON_COMPACT);
    json_decref(root);
    free(order);
    return text;
}

static int cannot_write(const sl_tensors_writer *w, sl_error *err) {
    return sl_fail(err, SL_ERR_IO, "cannot write %s: %s", w->path, strerror(errno));
}

int sl_tensors_writer_begin(sl_tensors_writer *w, sl_error *err) {
    char *text = make_header(w);
    if (!text) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", w->path);
    size_t n = strlen(text), padded = (n + 7) / 8 * 8;
    unsigned char size[8];
    for (int i = 0; i < 8; i++) size[i] = (unsigned char)((uint64_t)padded >> 8 * i);
    FILE *f = sl_whole_file_open(&w->whole, w->path, 0666);
    if (!f) errno = w->whole.why;
    int ok = f && fwrite(size, sizeof size, 1, f) == 1 && fwrite(text, 1, n, f) == n;
    for (; ok && n < padded; n++) ok = fputc(' ', f) != EOF;
    int rc = ok ? 0 : cannot_write(w, err);
    w->data_at = 8 + padded;
    free(text);
    return rc;
}

int sl_tensors_writer_put(sl_tensors_writer *w, int tensor, size_t from, const void *data, size_t n, sl_error *err) {
    const sl_written_tensor *t = &w->tensors[tensor];
    SL_CHECK(from <= t->n_bytes && n <= t->n_bytes - from);
    w->n_written += n;
    if (fseeko(w->whole.file, (off_t)(w->data_at + t->at + from), SEEK_SET) || fwrite(data, 1, n, w->whole.file) != n)
        return cannot_write(w, err);
    return 0;
}

int sl_tensors_writer_end(sl_tensors_writer *w, int ok, sl_error *err) {
    size_t all = 0;
    int rc = 0;
    for (int i = 0; i < w->n; i++) {
        all += w->tensors[i].n_bytes;
        json_decref(w->tensors[i].shape);
        free(w->tensors[i].name);
    }
    SL_CHECK(!ok || w->n_written == all);
    if (w->whole.path) rc = sl_whole_file_close(&w->whole, ok, ok ? err : NULL);
    free(w->tensors);
    free(w->path);
    *w = (sl_tensors_writer){0};
    return ok ? rc : 0;
}
