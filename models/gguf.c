// models/gguf.c - the container of a GGUF file. See gguf.h.
//
// The file is little-endian: "GGUF", the version, the number of tensors, the number of values, the values, the descriptions of
// the tensors, and from the next multiple of the alignment on the data.
#include "models/gguf.h"
#include "base/git_lfs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_KEY = 65535, // bytes, as in the format's description
    MOST_NAME = 255,  // bytes of a tensor's name; the format's description has 64
    MOST_DEPTH = 4,   // arrays in arrays
    MOST_PARTS = 1000,
    DEFAULT_ALIGNMENT = 32,
    MOST_ALIGNMENT = 1 << 20,
    LEAST_VALUE = 8 + 4 + 1,          // bytes of a value with an empty key
    LEAST_TENSOR = 8 + 4 + 8 + 4 + 8, // bytes of the description of a tensor with an empty name
};

// ---- reading ----

typedef struct cursor {
    const char *path;
    const char *start, *at, *end;
    sl_error *err;
} cursor;

static int fail(const cursor *c, const char *what) {
    return sl_fail(c->err, SL_ERR_FORMAT, "%s: byte %zu: expected %s", c->path, (size_t)(c->at - c->start), what);
}

static size_t left(const cursor *c) {
    return (size_t)(c->end - c->at);
}

static uint64_t number_at(const char *at, size_t size) {
    uint64_t x = 0;
    for (size_t i = size; i-- > 0;) x = x << 8 | (unsigned char)at[i];
    return x;
}

static int take(cursor *c, size_t size, uint64_t *out, const char *what) {
    *out = 0;
    if (left(c) < size) return fail(c, what);
    *out = number_at(c->at, size);
    c->at += size;
    return 0;
}

static int take_string(cursor *c, sl_gguf_string *out, const char *what) {
    uint64_t n;
    int rc = take(c, 8, &n, what);
    *out = (sl_gguf_string){0};
    if (rc) return rc;
    if (n > left(c))
        return sl_fail(c->err, SL_ERR_FORMAT, "%s: byte %zu: %s of %llu bytes, the file has %zu more (truncated?)", c->path,
                       (size_t)(c->at - 8 - c->start), what, (unsigned long long)n, left(c));
    *out = (sl_gguf_string){c->at, (size_t)n};
    c->at += n;
    return 0;
}

// Takes a string of 1 to `most` bytes without NUL. *out is from malloc.
static int take_name(cursor *c, size_t most, char **out, const char *what) {
    sl_gguf_string s;
    int rc = take_string(c, &s, what);
    if (rc) return rc;
    if (s.n == 0 || s.n > most || memchr(s.at, 0, s.n))
        return sl_fail(c->err, SL_ERR_FORMAT, "%s: byte %zu: %s has %zu bytes%s, expected 1 to %zu without NUL", c->path,
                       (size_t)(s.at - c->start), what, s.n, memchr(s.at, 0, s.n) ? " with a NUL" : "", most);
    *out = strndup(s.at, s.n);
    return *out ? 0 : sl_fail(c->err, SL_ERR_MEMORY, "%s: out of memory", c->path);
}

// ---- values ----

static int take_type(cursor *c, const char *key, sl_gguf_type *out) {
    uint64_t type;
    *out = SL_GGUF_U8;
    int rc = take(c, 4, &type, "the type of a value");
    if (rc) return rc;
    if (type > SL_GGUF_F64)
        return sl_fail(c->err, SL_ERR_FORMAT, "%s: key %.200s has type %llu, expected 0 to %d", c->path, key,
                       (unsigned long long)type, SL_GGUF_F64);
    *out = (sl_gguf_type)type;
    return 0;
}

static int check_bools(const cursor *c, const char *key, const char *at, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        if ((unsigned char)at[i] > 1)
            return sl_fail(c->err, SL_ERR_FORMAT, "%s: key %.200s is the bool %d, expected 0 or 1", c->path, key,
                           (unsigned char)at[i]);
    return 0;
}

static int skip_items(cursor *c, const char *key, sl_gguf_type type, uint64_t n, int depth);

static int take_array(cursor *c, const char *key, int depth, sl_gguf_value *v) {
    v->n = 0;
    int rc = depth > MOST_DEPTH
                 ? sl_fail(c->err, SL_ERR_FORMAT, "%s: key %.200s: more than %d arrays in arrays", c->path, key, MOST_DEPTH)
                 : take_type(c, key, &v->item_type);
    if (!rc) rc = take(c, 8, &v->n, "the number of elements of an array");
    v->at = c->at;
    return rc ? rc : skip_items(c, key, v->item_type, v->n, depth);
}

// Checks n elements, and moves behind them.
static int skip_items(cursor *c, const char *key, sl_gguf_type type, uint64_t n, int depth) {
    size_t size = sl_gguf_type_size(type), least = size ? size : type == SL_GGUF_STRING ? 8 : 12;
    int rc = 0;
    if (n > left(c) / least)
        return sl_fail(c->err, SL_ERR_FORMAT, "%s: key %.200s has %llu elements of type %s, the file has %zu more bytes",
                       c->path, key, (unsigned long long)n, sl_gguf_type_name(type), left(c));
    if (size) {
        if (type == SL_GGUF_BOOL) rc = check_bools(c, key, c->at, n);
        c->at += n * size;
        return rc;
    }
    for (uint64_t i = 0; !rc && i < n; i++) {
        sl_gguf_string s;
        sl_gguf_value inner = {0};
        rc = type == SL_GGUF_STRING ? take_string(c, &s, "a string") : take_array(c, key, depth + 1, &inner);
    }
    return rc;
}

static int take_value(cursor *c, sl_gguf_value *v) {
    int rc = take_name(c, MOST_KEY, &v->key, "the key of a value");
    if (!rc) rc = take_type(c, v->key, &v->type);
    if (rc) return rc;
    v->n = 1;
    v->at = c->at;
    return v->type == SL_GGUF_ARRAY ? take_array(c, v->key, 1, v) : skip_items(c, v->key, v->type, 1, 1);
}

static int by_key(const void *a, const void *b) {
    return strcmp(((const sl_gguf_value *)a)->key, ((const sl_gguf_value *)b)->key);
}

// ---- the header ----

typedef struct part { // one file
    sl_gguf_value *values;
    int n_values;
    sl_gguf_tensor *tensors;
    int n_tensors;
} part;

static void free_values(sl_gguf_value *values, int n) {
    for (int i = 0; i < n; i++) free(values[i].key);
    free(values);
}

static void free_tensors(sl_gguf_tensor *tensors, int n) {
    for (int i = 0; i < n; i++) free(tensors[i].name);
    free(tensors);
}

static int check_version(const cursor *c, uint64_t version) {
    if (version == 2 || version == 3) return 0;
    if (!(version & 0xffff))
        return sl_fail(c->err, SL_ERR_UNSUPPORTED, "%s: the file is big-endian, only little-endian GGUF files are read",
                       c->path);
    return sl_fail(c->err, SL_ERR_UNSUPPORTED, "%s: GGUF version %llu, expected 2 or 3%s", c->path, (unsigned long long)version,
                   version == 1 ? "; convert the model again" : "");
}

static int take_count(cursor *c, size_t least, const char *what, uint64_t *out) {
    int rc = take(c, 8, out, what);
    if (rc) return rc;
    if (*out <= left(c) / least && *out < INT32_MAX) return 0;
    return sl_fail(c->err, SL_ERR_FORMAT, "%s: %s is %llu, the file has %zu more bytes", c->path, what,
                   (unsigned long long)*out, left(c));
}

static int take_values(cursor *c, part *p, uint64_t n) {
    int rc = 0;
    p->values = calloc(n + 1, sizeof *p->values);
    if (!p->values) return sl_fail(c->err, SL_ERR_MEMORY, "%s: out of memory", c->path);
    for (uint64_t i = 0; !rc && i < n; i++) rc = take_value(c, &p->values[p->n_values++]);
    if (rc) return rc;
    qsort(p->values, (size_t)p->n_values, sizeof *p->values, by_key);
    for (int i = 1; i < p->n_values; i++)
        if (!strcmp(p->values[i].key, p->values[i - 1].key))
            return sl_fail(c->err, SL_ERR_FORMAT, "%s: key %.200s occurs twice", c->path, p->values[i].key);
    return 0;
}

// ---- tensors ----

static int refuse_type(const cursor *c, const sl_gguf_tensor *t, int id, const sl_block_type *type) {
    char list[160];
    sl_block_type_list(list, sizeof list);
    return sl_fail(c->err, SL_ERR_UNSUPPORTED, "%s: tensor %s has type %s (%d), supported are %s", c->path, t->name,
                   type ? type->name : "unknown", id, list);
}

// Computes t->n_bytes.
static int measure(const cursor *c, sl_gguf_tensor *t) {
    uint64_t values = 1, bytes;
    for (int i = 0; i < t->n_dims; i++)
        if (t->dims[i] < 1 || __builtin_mul_overflow(values, (uint64_t)t->dims[i], &values) || values > INT64_MAX / 8)
            return sl_fail(c->err, SL_ERR_FORMAT, "%s: tensor %s: dimension %d is %lld, or the shape overflows", c->path,
                           t->name, i, (long long)t->dims[i]);
    if (t->dims[0] % t->type->n_values)
        return sl_fail(c->err, SL_ERR_FORMAT,
                       "%s: tensor %s: rows of %lld values are no whole blocks of %d, as type %s has them", c->path, t->name,
                       (long long)t->dims[0], t->type->n_values, t->type->name);
    if (__builtin_mul_overflow(values / (uint64_t)t->type->n_values, t->type->n_bytes, &bytes))
        return sl_fail(c->err, SL_ERR_FORMAT, "%s: tensor %s: its shape overflows", c->path, t->name);
    t->n_bytes = (size_t)bytes;
    return 0;
}

static int take_tensor(cursor *c, sl_gguf_tensor *t) {
    uint64_t n_dims, x;
    int rc = take_name(c, MOST_NAME, &t->name, "the name of a tensor");
    if (!rc) rc = take(c, 4, &n_dims, "the number of dimensions");
    if (rc) return rc;
    if (n_dims < 1 || n_dims > SL_GGUF_MAX_DIMS)
        return sl_fail(c->err, SL_ERR_FORMAT, "%s: tensor %s has %llu dimensions, expected 1 to %d", c->path, t->name,
                       (unsigned long long)n_dims, SL_GGUF_MAX_DIMS);
    t->n_dims = (int)n_dims;
    for (int i = 0; !rc && i < t->n_dims; i++) {
        rc = take(c, 8, &x, "a dimension");
        t->dims[i] = (int64_t)x;
    }
    if (!rc) rc = take(c, 4, &x, "the type of a tensor");
    if (rc) return rc;
    const sl_block_type *type = x <= INT32_MAX ? sl_block_type_find((int)x) : NULL;
    if (!type || !type->n_values) return refuse_type(c, t, (int)x, type);
    t->type = type;
    t->file = c->path;
    rc = take(c, 8, &t->offset, "the offset of a tensor");
    return rc ? rc : measure(c, t);
}

static int by_offset(const void *a, const void *b) {
    const sl_gguf_tensor *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return (x->n_bytes > y->n_bytes) - (x->n_bytes < y->n_bytes);
}

// Checks that the tensors follow one another with at most alignment - 1 bytes between two, and that the file holds them all.
static int place_tensors(const cursor *c, part *p, uint64_t alignment) {
    uint64_t base = ((uint64_t)(c->at - c->start) + alignment - 1) / alignment * alignment;
    uint64_t size = (uint64_t)(c->end - c->start), room = size > base ? size - base : 0, at = 0;
    if (p->n_tensors > 0) qsort(p->tensors, (size_t)p->n_tensors, sizeof *p->tensors, by_offset);
    for (int i = 0; i < p->n_tensors; i++) {
        sl_gguf_tensor *t = &p->tensors[i];
        if (t->offset % alignment)
            return sl_fail(c->err, SL_ERR_FORMAT, "%s: tensor %s: offset %llu is not a multiple of the alignment %llu", c->path,
                           t->name, (unsigned long long)t->offset, (unsigned long long)alignment);
        if (t->offset < at)
            return sl_fail(c->err, SL_ERR_FORMAT, "%s: tensor %s overlaps tensor %s", c->path, t->name, p->tensors[i - 1].name);
        if (t->offset - at >= alignment)
            return sl_fail(c->err, SL_ERR_FORMAT, "%s: %llu bytes before tensor %s belong to no tensor", c->path,
                           (unsigned long long)(t->offset - at), t->name);
        if (t->offset > room || t->n_bytes > room - t->offset)
            return sl_fail(c->err, SL_ERR_FORMAT,
                           "%s: tensor %s has %zu bytes from offset %llu on, the file holds %llu bytes of data (truncated?)",
                           c->path, t->name, t->n_bytes, (unsigned long long)t->offset, (unsigned long long)room);
        t->data = (const unsigned char *)c->start + base + t->offset;
        at = t->offset + t->n_bytes;
    }
    return 0;
}

static int find_alignment(const cursor *c, const part *p, uint64_t *out) {
    const sl_gguf_value key = {.key = "general.alignment"};
    const sl_gguf_value *v = bsearch(&key, p->values, (size_t)p->n_values, sizeof key, by_key);
    *out = DEFAULT_ALIGNMENT;
    if (!v) return 0;
    *out = v->type == SL_GGUF_U32 ? number_at(v->at, 4) : 0;
    if (*out >= 8 && *out <= MOST_ALIGNMENT && !(*out & (*out - 1))) return 0;
    return sl_fail(c->err, SL_ERR_FORMAT,
                   "%s: key general.alignment is %llu of type %s, expected a power of two from 8 to %d of type u32", c->path,
                   (unsigned long long)*out, sl_gguf_type_name(v->type), MOST_ALIGNMENT);
}

static int parse_part(cursor *c, part *p) {
    uint64_t version, n_tensors, n_values, alignment;
    int rc = sl_git_lfs_check(c->path, c->at, left(c), c->err);
    if (rc) return rc;
    if (left(c) < 4 || memcmp(c->at, "GGUF", 4)) return fail(c, "\"GGUF\"");
    c->at += 4;
    rc = take(c, 4, &version, "the version");
    if (!rc) rc = check_version(c, version);
    if (!rc) rc = take_count(c, LEAST_TENSOR, "the number of tensors", &n_tensors);
    if (!rc) rc = take_count(c, LEAST_VALUE, "the number of values", &n_values);
    if (!rc) rc = take_values(c, p, n_values);
    if (!rc) rc = find_alignment(c, p, &alignment);
    if (rc) return rc;
    if (n_tensors > left(c) / LEAST_TENSOR)
        return sl_fail(c->err, SL_ERR_FORMAT, "%s: the number of tensors is %llu, the file has %zu more bytes", c->path,
                       (unsigned long long)n_tensors, left(c));
    p->tensors = calloc(n_tensors + 1, sizeof *p->tensors);
    if (!p->tensors) return sl_fail(c->err, SL_ERR_MEMORY, "%s: out of memory", c->path);
    for (uint64_t i = 0; !rc && i < n_tensors; i++) rc = take_tensor(c, &p->tensors[p->n_tensors++]);
    return rc ? rc : place_tensors(c, p, alignment);
}

// ---- files ----

static int by_name(const void *a, const void *b) {
    return strcmp(((const sl_gguf_tensor *)a)->name, ((const sl_gguf_tensor *)b)->name);
}

// Moves the tensors of a part to g, and keeps the values of the first part.
static int take_part(sl_gguf *g, part *p, sl_error *err) {
    sl_gguf_tensor *grown = realloc(g->tensors, ((size_t)g->n_tensors + (size_t)p->n_tensors + 1) * sizeof *grown);
    if (!grown) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", g->path);
    g->tensors = grown;
    if (p->n_tensors) memcpy(grown + g->n_tensors, p->tensors, (size_t)p->n_tensors * sizeof *grown);
    g->n_tensors += p->n_tensors;
    p->n_tensors = 0;
    if (!g->values) {
        g->values = p->values, g->n_values = p->n_values;
        p->values = NULL, p->n_values = 0;
    }
    return 0;
}

static int check_split(const char *path, part *p, int no, int n_parts, sl_error *err) {
    const sl_gguf of = {.path = path, .values = p->values, .n_values = p->n_values};
    long long value;
    int rc = sl_gguf_int(&of, "split.no", no, no, NULL, &value, err);
    return rc ? rc : sl_gguf_int(&of, "split.count", n_parts, n_parts, NULL, &value, err);
}

// no: the number of the part, from 0 on. The first part says how many there are.
static int open_part(sl_gguf *g, const char *path, int no, int n_parts, sl_error *err) {
    sl_tensor_file *f = &g->files[g->n_files++];
    *f = (sl_tensor_file){.fd = -1};
    int rc = sl_tensor_file_map(path, f, err);
    if (rc) return rc;
    part p = {0};
    cursor c = {f->path, f->map, f->map, f->map + f->size, err};
    if (!no) g->path = f->path;
    rc = parse_part(&c, &p);
    if (!rc && no) rc = check_split(f->path, &p, no, n_parts, err);
    if (!rc) rc = take_part(g, &p, err);
    free_values(p.values, p.n_values);
    free_tensors(p.tensors, p.n_tensors);
    return rc;
}

// The name of part `no` of n_parts, from the path of part 0. 0: the path has no number of a part.
static int part_path(const char *first, int no, int n_parts, char *path, size_t size) {
    char end[32];
    size_t n = strlen(first), n_end = (size_t)snprintf(end, sizeof end, "-%05d-of-%05d.gguf", 1, n_parts);
    if (n < n_end || strcmp(first + n - n_end, end)) return 0;
    snprintf(path, size, "%.*s-%05d-of-%05d.gguf", (int)(n - n_end), first, no + 1, n_parts);
    return 1;
}

static int open_parts(sl_gguf *g, sl_error *err) {
    const long long one = 1, none = 0, unknown = -1;
    long long n_parts, no, n_tensors;
    char path[4200];
    int rc = sl_gguf_int(g, "split.count", 0, MOST_PARTS, &one, &n_parts, err);
    if (!rc) rc = sl_gguf_int(g, "split.no", 0, MOST_PARTS, &none, &no, err);
    if (!rc) rc = sl_gguf_int(g, "split.tensors.count", 0, INT32_MAX, &unknown, &n_tensors, err);
    if (rc) return rc;
    if (no != 0)
        return sl_fail(err, SL_ERR_ARG,
                       "%s: part %lld of %lld, expected the first part, whose name ends with -00001-of-%05lld.gguf", g->path,
                       no + 1, n_parts, n_parts);
    if (n_parts < 2) return 0;
    sl_tensor_file *files = realloc(g->files, (size_t)n_parts * sizeof *files);
    if (!files) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", g->path);
    g->files = files;
    for (int i = 1; !rc && i < n_parts; i++)
        rc = part_path(g->path, i, (int)n_parts, path, sizeof path)
                 ? open_part(g, path, i, (int)n_parts, err)
                 : sl_fail(err, SL_ERR_FORMAT, "%s: part 1 of %lld, expected a name that ends with -00001-of-%05lld.gguf",
                           g->path, n_parts, n_parts);
    if (!rc && n_tensors >= 0 && n_tensors != g->n_tensors)
        rc = sl_fail(err, SL_ERR_FORMAT, "%s: key split.tensors.count is %lld, the parts have %d tensors", g->path, n_tensors,
                     g->n_tensors);
    return rc;
}

int sl_gguf_open(const char *path, sl_gguf *g, sl_error *err) {
    *g = (sl_gguf){.files = calloc(1, sizeof *g->files)};
    if (!g->files) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path);
    if (strlen(path) > 3000) return sl_fail(err, SL_ERR_ARG, "%.200s...: the path is too long", path);
    int rc = open_part(g, path, 0, 0, err);
    if (!rc) rc = open_parts(g, err);
    if (rc) return rc;
    if (g->n_tensors > 0) qsort(g->tensors, (size_t)g->n_tensors, sizeof *g->tensors, by_name);
    for (int i = 1; i < g->n_tensors; i++)
        if (!strcmp(g->tensors[i].name, g->tensors[i - 1].name))
            return sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s occurs twice", g->tensors[i].file, g->tensors[i].name);
    return 0;
}

void sl_gguf_close(sl_gguf *g) {
    free_values(g->values, g->n_values);
    free_tensors(g->tensors, g->n_tensors);
    for (int i = 0; i < g->n_files; i++) sl_tensor_file_unmap(&g->files[i]);
    free(g->files);
    *g = (sl_gguf){0};
}

const sl_gguf_tensor *sl_gguf_find_tensor(const sl_gguf *g, const char *name) {
    const sl_gguf_tensor key = {.name = (char *)name};
    return g->n_tensors ? bsearch(&key, g->tensors, (size_t)g->n_tensors, sizeof key, by_name) : NULL;
}

int sl_gguf_is(const char *path) {
    char start[4] = "";
    size_t n = strlen(path);
    if (n > 5 && !strcmp(path + n - 5, ".gguf")) return 1;
    FILE *f = fopen(path, "rb");
    n = f ? fread(start, 1, sizeof start, f) : 0;
    if (f) fclose(f);
    return n == sizeof start && !memcmp(start, "GGUF", sizeof start);
}
