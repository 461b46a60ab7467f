// models/output_folder.c - see output_folder.h.
#include "models/output_folder.h"
#include "base/whole_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_SIZE = 4400 };

// ---- begin and end ----

// 1: there are files in the folder.
static int has_files(const char *path) {
    DIR *dir = opendir(path);
    const struct dirent *entry;
    int found = 0;
    while (dir && (entry = readdir(dir))) found |= strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
    if (dir) closedir(dir);
    return found;
}

int sl_output_folder_begin(sl_output_folder *f, const char *path, sl_error *err) {
    struct stat st;
    size_t n = strlen(path);
    int exists = !lstat(path, &st);
    *f = (sl_output_folder){0};
    while (n > 1 && path[n - 1] == '/') n--;
    if (n == 0 || n > 3000) return sl_fail(err, SL_ERR_ARG, "\"%.200s\": expected the path of a folder", path);
    if (exists && !S_ISDIR(st.st_mode))
        return sl_fail(err, SL_ERR_ARG, "%s: expected a new or an empty folder, found a file or a link", path);
    if (has_files(path)) return sl_fail(err, SL_ERR_ARG, "%s: expected a new or an empty folder, found one with files", path);
    // The rename at the end replaces an empty folder. A mount point cannot be replaced, and this test refuses it at the start.
    if (exists && (rmdir(path) || mkdir(path, 0777)))
        return sl_fail(err, SL_ERR_IO, "%s: the empty folder cannot be replaced: %s", path, strerror(errno));
    f->path = strndup(path, n);
    if (!f->path || asprintf(&f->tmp, "%s.tmp.%ld", f->path, (long)getpid()) < 0) {
        f->tmp = NULL;
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path);
    }
    if (!mkdir(f->tmp, 0777)) return 0;
    int rc = sl_fail(err, SL_ERR_IO, "cannot make the folder %s: %s", f->tmp, strerror(errno));
    free(f->tmp);
    f->tmp = NULL; // nothing to delete
    return rc;
}

static int delete_one(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st, (void)type, (void)at;
    return remove(path);
}

int sl_output_folder_end(sl_output_folder *f, int ok, sl_error *err) {
    int rc = 0;
    if (ok && rename(f->tmp, f->path)) {
        rc = sl_fail(err, SL_ERR_IO, "cannot rename %s to %s: %s", f->tmp, f->path, strerror(errno));
        ok = 0;
    }
    if (!ok && f->tmp) nftw(f->tmp, delete_one, 8, FTW_DEPTH | FTW_PHYS);
    free(f->path);
    free(f->tmp);
    *f = (sl_output_folder){0};
    return rc;
}

// ---- files ----

// Writes the bytes of `from`, or data[0..n) where it is NULL.
static int write_file(const char *path, FILE *from, const char *data, size_t n, sl_error *err) {
    char buffer[65536];
    sl_whole_file whole;
    FILE *f = sl_whole_file_open(&whole, path, 0666);
    int ok = f && (!n || fwrite(data, 1, n, f) == n);
    while (ok && from && (n = fread(buffer, 1, sizeof buffer, from)) > 0) ok = fwrite(buffer, 1, n, f) == n;
    return sl_whole_file_close(&whole, ok, err);
}

int sl_output_folder_put(const sl_output_folder *f, const char *name, const char *data, size_t n, sl_error *err) {
    char path[PATH_SIZE];
    snprintf(path, sizeof path, "%s/%s", f->tmp, name);
    return write_file(path, NULL, data, n, err);
}

static int copy_file(const char *from, const char *to, sl_error *err) {
    FILE *f = fopen(from, "re");
    if (!f) return sl_fail(err, SL_ERR_IO, "%s: %s", from, strerror(errno));
    int rc = write_file(to, f, NULL, 0, err);
    if (!rc && ferror(f)) rc = sl_fail(err, SL_ERR_IO, "%s: cannot be read", from);
    fclose(f);
    return rc;
}

// 1: weights in any format, lists of their shards, config.json (which changes), and hidden files.
static int is_left_out(const char *name) {
    static const char *const ends[] = {".safetensors", ".safetensors.index.json",
                                       ".bin",         ".bin.index.json",
                                       ".pt",          ".pth",
                                       ".gguf",        ".h5",
                                       ".msgpack",     ".onnx",
                                       ".npz"};
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        size_t n_end = strlen(ends[i]);
        if (n > n_end && !strcmp(name + n - n_end, ends[i])) return 1;
    }
    return *name == '.' || !strcmp(name, "config.json");
}

// Copies the files of a folder, but not its folders.
static int copy_files(const char *from, const char *to, sl_error *err) {
    DIR *dir = opendir(from);
    const struct dirent *entry;
    int rc = dir ? 0 : sl_fail(err, SL_ERR_IO, "%s: %s", from, strerror(errno));
    while (!rc && (entry = readdir(dir))) {
        char source[PATH_SIZE], target[PATH_SIZE];
        struct stat st;
        snprintf(source, sizeof source, "%.4000s/%.300s", from, entry->d_name);
        snprintf(target, sizeof target, "%.4000s/%.300s", to, entry->d_name);
        if (!is_left_out(entry->d_name) && !stat(source, &st) && S_ISREG(st.st_mode)) rc = copy_file(source, target, err);
    }
    if (dir) closedir(dir);
    return rc;
}

int sl_output_folder_copy(const sl_output_folder *f, const char *from, sl_error *err) {
    char source[PATH_SIZE], target[PATH_SIZE];
    struct stat st;
    snprintf(source, sizeof source, "%.4000s/additional_chat_templates", from);
    snprintf(target, sizeof target, "%.4000s/additional_chat_templates", f->tmp);
    int rc = copy_files(from, f->tmp, err);
    if (rc || stat(source, &st) || !S_ISDIR(st.st_mode)) return rc;
    if (mkdir(target, 0777)) return sl_fail(err, SL_ERR_IO, "cannot make the folder %s: %s", target, strerror(errno));
    return copy_files(source, target, err);
}
