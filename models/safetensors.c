// models/safetensors.c - maps the files of a folder and checks every tensor's extent. See safetensors.h.
#include "models/safetensors.h"
#include "models/dequant.h"
#include "base/git_lfs.h"
#include "base/hash.h"
#include "base/json.h"
#include "models/dequant.h"
#include "models/safetensors_header.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_HEADER ((uint64_t)100 << 20)

struct sl_tensors {
    sl_tensor_file *shards;
    int n_shards;
    sl_tensor *tensors; // sorted by name once all shards are open
    int n_tensors;
    size_t n_bytes;
    sl_header metadata; // of one file, without its entries; empty for a folder
    char *memory;       // [memory_size] of the tensors that have no file, or are packed in it; NULL: not allocated
    size_t memory_size;
};

static const struct {
    const char *name;
    int bits;
} dtypes[] = {
    {"BF16", 16},   {"F16", 16},    {"F32", 32},    {"F64", 64}, {"C64", 64},    {"I8", 8},      {"U8", 8},
    {"I16", 16},    {"U16", 16},    {"I32", 32},    {"U32", 32}, {"I64", 64},    {"U64", 64},    {"BOOL", 8},
    {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6},
};

static int dtype_bits(const char *name) { // 0: a dtype of a newer version of the format
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (!strcmp(name, dtypes[i].name)) return dtypes[i].bits;
    return 0;
}

// The bytes of a number of the dtypes that Sleigh reads; 1: it reads no numbers of this dtype.
static size_t alignment(const char *dtype) {
    if (!strcmp(dtype, "BF16") || !strcmp(dtype, "F16")) return 2;
    return !strcmp(dtype, "F32") || !strcmp(dtype, "I32") ? 4 : 1;
}

int sl_tensor_file_map(const char *path, sl_tensor_file *s, sl_error *err) {
    struct stat st;
    *s = (sl_tensor_file){.path = strdup(path), .fd = -1};
    if (!s->path) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
    int rc = 0;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode))
        rc = sl_fail(err, SL_ERR_IO, "%s: not a regular file", path);
    else if (st.st_size < 1)
        rc = sl_fail(err, SL_ERR_FORMAT, "%s: 0 bytes, the file is empty", path);
    if (!rc) {
        s->size = (size_t)st.st_size;
        s->modified = st.st_mtim;
        s->map = mmap(NULL, s->size, PROT_READ, MAP_SHARED, fd, 0);
        if (s->map == MAP_FAILED) {
            s->map = NULL;
            rc = sl_fail(err, SL_ERR_IO, "%s: cannot be mapped: %s", path, strerror(errno));
        } else
            rc = sl_git_lfs_check(path, s->map, s->size, err);
    }
    if (rc)
        close(fd);
    else
        s->fd = fd;
    return rc;
}

void sl_tensor_file_unmap(sl_tensor_file *s) {
    if (s->map) munmap(s->map, s->size);
    if (s->fd >= 0) close(s->fd);
    free(s->path);
    *s = (sl_tensor_file){.fd = -1};
}

static int check_extent(const char *path, const sl_header_entry *t, size_t data_size, sl_error *err) {
    int bits = dtype_bits(t->dtype);
    uint64_t count = 1;
    for (int i = 0; i < t->n_dims; i++)
        if (__builtin_mul_overflow(count, (uint64_t)t->dims[i], &count) || count > INT64_MAX / 8)
            return sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s: its shape overflows", path, t->name);
    if (t->begin > t->end)
        return sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s: data_offsets begin at %lld and end at %lld", path, t->name,
                       (long long)t->begin, (long long)t->end);
    if ((uint64_t)t->end > data_size)
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: tensor %s: data_offsets end at %lld, the file holds %zu bytes of data (truncated?)", path, t->name,
                       (long long)t->end, data_size);
    if (!bits) return 0; // only a tensor that nobody reads may have it
    if (count % 8 * bits % 8)
        return sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s: its shape and dtype %s do not fill whole bytes", path, t->name,
                       t->dtype);
    uint64_t need = count / 8 * bits + count % 8 * bits / 8;
    if ((uint64_t)(t->end - t->begin) != need)
        return sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s: %lld bytes of data, its shape and dtype %s need %llu", path, t->name,
                       (long long)(t->end - t->begin), t->dtype, (unsigned long long)need);
    return 0;
}

static int by_begin(const void *a, const void *b) {
    const sl_header_entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

// The tensors must cover the data area exactly, without overlaps and holes.
static int check_cover(const char *path, sl_header *h, size_t data_size, sl_error *err) {
    int64_t at = 0;
    if (h->n > 0) qsort(h->entries, h->n, sizeof *h->entries, by_begin);
    for (int i = 0; i < h->n; i++) {
        const sl_header_entry *t = &h->entries[i];
        if (t->begin < at)
            return sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s overlaps tensor %s", path, t->name, h->entries[i - 1].name);
        if (t->begin > at)
            return sl_fail(err, SL_ERR_FORMAT, "%s: %lld bytes before tensor %s belong to no tensor", path,
                           (long long)(t->begin - at), t->name);
        at = t->end;
    }
    if ((size_t)at != data_size)
        return sl_fail(err, SL_ERR_FORMAT, "%s: %zu bytes after the last tensor belong to no tensor", path,
                       data_size - (size_t)at);
    return 0;
}

// The format does not align data. A CPU reads numbers at other addresses than multiples of their size slowly, or not at all.
static int align(sl_tensor *t, sl_error *err) {
    if ((uintptr_t)t->data % alignment(t->dtype_name) == 0) return 0;
    t->copy = malloc(t->n_bytes + 1);
    if (!t->copy) return sl_fail(err, SL_ERR_MEMORY, "%s: tensor %s: out of memory", t->file, t->name);
    t->data = memcpy(t->copy, t->data, t->n_bytes);
    return 0;
}

// Moves the entries to t->tensors. Afterwards t owns the names.
static int take_entries(sl_tensors *t, const sl_tensor_file *s, sl_header *h, size_t data_offset, sl_error *err) {
    sl_tensor *grown = realloc(t->tensors, ((size_t)t->n_tensors + (size_t)h->n + 1) * sizeof *grown);
    if (!grown) return sl_fail(err, SL_ERR_MEMORY, "%s: %d tensors: out of memory", s->path, h->n);
    t->tensors = grown;
    for (int i = 0; i < h->n; i++) {
        sl_header_entry *e = &h->entries[i];
        sl_tensor *to = &t->tensors[t->n_tensors++];
        *to = (sl_tensor){.name = e->name,
                          .file = s->path,
                          .n_dims = e->n_dims,
                          .data = s->map + data_offset + e->begin,
                          .n_bytes = (size_t)(e->end - e->begin)};
        memcpy(to->dtype_name, e->dtype, sizeof to->dtype_name);
        memcpy(to->dims, e->dims, sizeof to->dims);
        t->n_bytes += to->n_bytes;
        e->name = NULL;
        int rc = align(to, err);
        if (rc) return rc;
    }
    return 0;
}

// metadata: gets the header's metadata; NULL: not wanted
static int open_shard(sl_tensors *t, const char *path, sl_header *metadata, sl_error *err) {
    sl_tensor_file *s = &t->shards[t->n_shards++];
    int rc = sl_tensor_file_map(path, s, err);
    if (!rc && s->size < 8) rc = sl_fail(err, SL_ERR_FORMAT, "%s: %zu bytes, a safetensors file has at least 8", path, s->size);
    if (rc) return rc;
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--) n = n << 8 | (unsigned char)s->map[i];
    if (n > MAX_HEADER || n > s->size - 8)
        return sl_fail(err, SL_ERR_FORMAT, "%s: the header says it has %llu bytes, expected at most %llu%s", path,
                       (unsigned long long)n, (unsigned long long)(s->size - 8 < MAX_HEADER ? s->size - 8 : MAX_HEADER),
                       n <= MAX_HEADER ? ", the rest of the file (truncated?)" : "");
    sl_header h;
    size_t data_offset = 8 + (size_t)n, data_size = s->size - data_offset;
    rc = sl_header_parse(path, s->map + 8, (size_t)n, &h, err);
    if (rc) return rc;
    for (int i = 0; !rc && i < h.n; i++) rc = check_extent(path, &h.entries[i], data_size, err);
    if (!rc) rc = check_cover(path, &h, data_size, err);
    if (!rc) rc = take_entries(t, s, &h, data_offset, err);
    if (!rc && metadata) {
        *metadata = (sl_header){.metadata = h.metadata, .n_metadata = h.n_metadata};
        h.metadata = NULL, h.n_metadata = 0;
    }
    sl_header_free(&h);
    return rc;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const sl_tensor *)a)->name, ((const sl_tensor *)b)->name);
}

static int sort_names(sl_tensors *t, sl_error *err) {
    if (t->n_tensors > 0) qsort(t->tensors, t->n_tensors, sizeof *t->tensors, by_name);
    for (int i = 1; i < t->n_tensors; i++)
        if (!strcmp(t->tensors[i].name, t->tensors[i - 1].name))
            return sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s occurs twice (also in %s)", t->tensors[i].file,
                           t->tensors[i].name, t->tensors[i - 1].file);
    return 0;
}

// Opens every shard that weight_map names. As in transformers, a shard may have tensors that weight_map lacks. map: weight_map,
// which gives the file of each tensor.
static int open_index(sl_tensors *t, const char *dir, const json_t *map, sl_error *err) {
    const char *key;
    json_t *value;
    char path[4096];
    t->shards = calloc(json_object_size(map) + 1, sizeof *t->shards);
    if (!t->shards) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", dir);
    json_object_foreach((json_t *)map, key, value) {
        const char *name = json_string_value(value);
        if (!name || !*name || strchr(name, '/'))
            return sl_fail(err, SL_ERR_FORMAT,
                           "%s/model.safetensors.index.json: tensor %s: expected the name of a file in this folder", dir, key);
        snprintf(path, sizeof path, "%s/%s", dir, name);
        int known = 0;
        for (int i = 0; i < t->n_shards; i++) known |= !strcmp(t->shards[i].path, path);
        int rc = known ? 0 : open_shard(t, path, NULL, err);
        if (rc) return rc;
    }
    int rc = sort_names(t, err);
    if (rc) return rc;
    json_object_foreach((json_t *)map, key, value) {
        const sl_tensor *found = sl_tensors_find(t, key);
        snprintf(path, sizeof path, "%s/%s", dir, json_string_value(value));
        if (!found || strcmp(found->file, path))
            return sl_fail(err, SL_ERR_FORMAT,
                           "%s: tensor %s is not in this file, but model.safetensors.index.json names this file", path, key);
    }
    return 0;
}

static int exists(const char *dir, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return access(path, F_OK) == 0;
}

static int open_folder(sl_tensors *t, const char *dir, sl_error *err) {
    char path[4096];
    if (exists(dir, "model.safetensors")) { // the single file wins, as in transformers
        t->shards = calloc(1, sizeof *t->shards);
        if (!t->shards) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", dir);
        snprintf(path, sizeof path, "%s/model.safetensors", dir);
        int rc = open_shard(t, path, NULL, err);
        return rc ? rc : sort_names(t, err);
    }
    if (!exists(dir, "model.safetensors.index.json"))
        return exists(dir, "pytorch_model.bin")
                   ? sl_fail(err, SL_ERR_IO, "%s: no model.safetensors; pytorch_model.bin is not read", dir)
                   : sl_fail(err, SL_ERR_IO,
                             "%s: neither model.safetensors nor model.safetensors.index.json exists; {SL_MODEL_DUMMY} makes "
                             "random weights",
                             dir);
    json_t *root;
    int rc = sl_json_load(dir, "model.safetensors.index.json", 0, &root, err);
    if (rc) return rc;
    const json_t *map = sl_json_get(root, "weight_map");
    rc = json_is_object(map) ? open_index(t, dir, map, err)
                             : sl_fail(err, SL_ERR_FORMAT,
                                       "%s/model.safetensors.index.json: field weight_map is missing or not an object", dir);
    json_decref(root);
    return rc;
}

static int open_file(sl_tensors *t, const char *path, sl_error *err) {
    t->shards = calloc(1, sizeof *t->shards);
    if (!t->shards) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path);
    int rc = open_shard(t, path, &t->metadata, err);
    return rc ? rc : sort_names(t, err);
}

// fn: open_folder, open_file
static int open_path(const char *path, int (*fn)(sl_tensors *t, const char *path, sl_error *err), sl_tensors **out,
                     sl_error *err) {
    sl_tensors *t = calloc(1, sizeof *t);
    if (!t) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path);
    int rc = strlen(path) > 3000 ? sl_fail(err, SL_ERR_ARG, "%.200s...: the path is too long", path) : fn(t, path, err);
    if (rc) {
        sl_tensors_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

int sl_tensors_open(const char *dir, sl_tensors **out, sl_error *err) {
    return open_path(dir, open_folder, out, err);
}

int sl_tensors_open_file(const char *path, sl_tensors **out, sl_error *err) {
    return open_path(path, open_file, out, err);
}

// ---- tensors without a file ----

static int declare(sl_tensors *t, const sl_tensor_shape *shape, sl_error *err) {
    sl_tensor *to = &t->tensors[t->n_tensors];
    *to = (sl_tensor){.name = strdup(shape->name), .file = t->shards[0].path, .dtype_name = "BF16"};
    if (!to->name) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", shape->name);
    t->n_tensors++;
    if (shape->n_rows) to->dims[to->n_dims++] = shape->n_rows;
    to->dims[to->n_dims++] = shape->n_cols;
    to->n_bytes = 2 * (size_t)(shape->n_rows ? shape->n_rows : 1) * (size_t)shape->n_cols;
    t->n_bytes += to->n_bytes;
    return 0;
}

int sl_tensors_declare(const sl_tensor_shape *shapes, int n, sl_tensors **out, sl_error *err) {
    sl_tensors *t = calloc(1, sizeof *t);
    if (t) t->shards = calloc(1, sizeof *t->shards), t->tensors = calloc(n, sizeof *t->tensors);
    int ok = t && t->shards && t->tensors;
    if (ok) {
        t->n_shards = 1;
        t->shards[0].fd = -1;
        ok = (t->shards[0].path = strdup("dummy weights")) != NULL;
    }
    int rc = ok ? 0 : sl_fail(err, SL_ERR_MEMORY, "%d tensors: out of memory", n);
    for (int i = 0; !rc && i < n; i++) rc = declare(t, &shapes[i], err);
    if (!rc) rc = sort_names(t, err);
    if (rc) {
        sl_tensors_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

int sl_tensors_of_files(sl_tensor_file *files, int n_files, sl_tensor *tensors, int n_tensors, sl_tensors **out,
                        sl_error *err) {
    sl_tensors *t = calloc(1, sizeof *t);
    if (!t) {
        for (int i = 0; i < n_tensors; i++) free((char *)tensors[i].name);
        for (int i = 0; i < n_files; i++) sl_tensor_file_unmap(&files[i]);
        free(files);
        free(tensors);
        return sl_fail(err, SL_ERR_MEMORY, "%d tensors: out of memory", n_tensors);
    }
    *t = (sl_tensors){.shards = files, .n_shards = n_files, .tensors = tensors, .n_tensors = n_tensors};
    for (int i = 0; i < n_tensors; i++) t->n_bytes += tensors[i].n_bytes;
    int rc = sort_names(t, err);
    if (rc) {
        sl_tensors_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

static int needs_memory(const sl_tensor *t) {
    return !t->data && !t->packed.is_kept;
}

size_t sl_tensors_bytes_to_allocate(const sl_tensors *t) {
    size_t size = 0;
    for (int i = 0; i < t->n_tensors; i++)
        if (needs_memory(&t->tensors[i])) size += (t->tensors[i].n_bytes + 63) / 64 * 64;
    return size;
}

int sl_tensors_allocate(sl_tensors *t, sl_error *err) {
    size_t size = sl_tensors_bytes_to_allocate(t), at = 0;
    SL_CHECK(!t->memory);
    if (!size) return 0;
    void *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return sl_fail(err, SL_ERR_MEMORY, "%s: %zu MiB cannot be allocated: %s", t->shards[0].path, size >> 20,
                       strerror(errno));
    t->memory = map;
    t->memory_size = size;
    for (int i = 0; i < t->n_tensors; i++) {
        if (!needs_memory(&t->tensors[i])) continue;
        t->tensors[i].data = t->memory + at;
        at += (t->tensors[i].n_bytes + 63) / 64 * 64;
    }
    return 0;
}

void sl_tensors_release(sl_tensors *t) {
    if (!t->memory) return;
    for (int i = 0; i < t->n_tensors; i++) {
        const char *data = t->tensors[i].data;
        if (data >= t->memory && data < t->memory + t->memory_size) t->tensors[i].data = NULL;
    }
    munmap(t->memory, t->memory_size);
    t->memory = NULL;
    t->memory_size = 0;
}

const void *sl_tensors_memory(const sl_tensors *t, size_t *size) {
    *size = t->memory_size;
    return t->memory;
}

// ---- access ----

void sl_tensors_close(sl_tensors *t) {
    if (!t) return;
    sl_tensors_release(t);
    for (int i = 0; i < t->n_tensors; i++) free((char *)t->tensors[i].name), free(t->tensors[i].copy);
    for (int i = 0; i < t->n_shards; i++) sl_tensor_file_unmap(&t->shards[i]);
    free(t->tensors);
    free(t->shards);
    sl_header_free(&t->metadata);
    free(t);
}

int sl_tensors_n_files(const sl_tensors *t) {
    return t->n_shards;
}
const sl_tensor_file *sl_tensors_file(const sl_tensors *t, int i) {
    return &t->shards[i];
}

int sl_tensor_file_check(const sl_tensor_file *f, sl_error *err) {
    struct stat st;
    if (f->fd < 0) return 0;
    if (fstat(f->fd, &st)) return sl_fail(err, SL_ERR_IO, "%s: %s", f->path, strerror(errno));
    if ((size_t)st.st_size != f->size)
        return sl_fail(err, SL_ERR_IO,
                       "%s changed while it was in use: %lld bytes, expected %zu; results since then may be wrong", f->path,
                       (long long)st.st_size, f->size);
    if (st.st_mtim.tv_sec != f->modified.tv_sec || st.st_mtim.tv_nsec != f->modified.tv_nsec)
        return sl_fail(
            err, SL_ERR_IO,
            "%s changed while it was in use: modified at %lld.%09ld, expected %lld.%09ld; results since then may be wrong",
            f->path, (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec, (long long)f->modified.tv_sec, f->modified.tv_nsec);
    return 0;
}

int sl_tensors_count(const sl_tensors *t) {
    return t->n_tensors;
}
const sl_tensor *sl_tensors_at(const sl_tensors *t, int i) {
    return &t->tensors[i];
}
size_t sl_tensors_bytes(const sl_tensors *t) {
    return t->n_bytes;
}

const char *sl_tensors_metadata(const sl_tensors *t, const char *name) {
    for (int i = 0; i < t->metadata.n_metadata; i++)
        if (!strcmp(t->metadata.metadata[2 * i], name)) return t->metadata.metadata[2 * i + 1];
    return NULL;
}

static uint64_t hash_tensor(const sl_tensor *t, uint64_t hash) {
    enum { BLOCK = 4096, BLOCKS = 8 };
    uint64_t n_dims = (uint64_t)t->n_dims;
    const char *type = t->packed.type ? t->packed.type->name : t->dtype_name;
    const void *data = t->packed.type ? t->packed.data : t->data;
    size_t n_bytes = t->packed.type ? t->packed.n_bytes : t->n_bytes;
    hash = sl_fnv1a(hash, t->name, strlen(t->name) + 1);
    hash = sl_fnv1a(hash, type, strlen(type) + 1);
    hash = sl_fnv1a(hash, &n_dims, sizeof n_dims);
    hash = sl_fnv1a(hash, t->dims, (size_t)t->n_dims * sizeof *t->dims);
    if (n_bytes <= BLOCKS * BLOCK) return sl_fnv1a(hash, data, n_bytes);
    size_t step = (n_bytes - BLOCK) / (BLOCKS - 1);
    for (int i = 0; i < BLOCKS; i++)
        hash = sl_fnv1a(hash, (const char *)data + (i + 1 < BLOCKS ? i * step : n_bytes - BLOCK), BLOCK);
    return hash;
}

uint64_t sl_tensors_hash(const sl_tensors *t, uint64_t hash) {
    for (int i = 0; i < t->n_tensors; i++) hash = hash_tensor(&t->tensors[i], hash);
    return hash;
}

const sl_tensor *sl_tensors_find(const sl_tensors *t, const char *name) {
    sl_tensor key = {.name = name};
    return t->n_tensors ? bsearch(&key, t->tensors, t->n_tensors, sizeof key, by_name) : NULL;
}

void sl_format_dims(const int64_t *dims, int n, char *buf, size_t size) {
    size_t at = (size_t)snprintf(buf, size, "[");
    for (int i = 0; i < n && at < size; i++)
        at += (size_t)snprintf(buf + at, size - at, "%s%lld", i ? ", " : "", (long long)dims[i]);
    if (at < size) snprintf(buf + at, size - at, "]");
}

const char *sl_tensors_place(const sl_tensors *t) {
    return t->n_shards == 1 ? t->shards[0].path : "the model's shards";
}

int sl_tensors_bind(const sl_tensors *t, const char *name, int n_rows, int n_cols, sl_weight *out, sl_error *err) {
    const sl_tensor *found = sl_tensors_find(t, name);
    if (!found)
        return sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s is missing%s", sl_tensors_place(t), name,
                       strcmp(name, "lm_head.weight") ? ""
                                                      : "; only with tie_word_embeddings true in config.json, the "
                                                        "embeddings take its place");
    int rank = n_rows ? 2 : 1;
    const int64_t want[2] = {n_rows ? n_rows : n_cols, n_cols};
    if (found->n_dims != rank || memcmp(found->dims, want, rank * sizeof *want)) {
        char got[128], expected[128];
        sl_format_dims(found->dims, found->n_dims, got, sizeof got);
        sl_format_dims(want, rank, expected, sizeof expected);
        return sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s has shape %s, expected %s", found->file, name, got, expected);
    }
    if (found->packed.is_kept) {
        const sl_block_type *type = found->packed.type;
        *out = (sl_weight){.format = type->format,
                           .n_rows = n_rows,
                           .n_cols = n_cols,
                           .group = type->group,
                           .scale_rows = 1,
                           .name = found->name};
        return 0;
    }
    int format = !strcmp(found->dtype_name, "BF16")  ? SL_BF16
                 : !strcmp(found->dtype_name, "F16") ? SL_F16
                 : !strcmp(found->dtype_name, "F32") ? SL_F32
                                                     : -1;
    if (format < 0)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: tensor %s has dtype %s, expected BF16, F16 or F32", found->file, name,
                       found->dtype_name);
    *out = (sl_weight){
        .data = found->data, .format = (sl_format)format, .n_rows = n_rows ? n_rows : 1, .n_cols = n_cols, .name = found->name};
    return 0;
}
