// cli/hub.c - see hub.h.
#include "cli/hub.h"
#include "models/gguf.h"
#include "models/source.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

static const char prefix[] = "models--";

// ---- files and folders ----

// Writes a path. 0: it is too long. fmt and its arguments: one path.
#define MAKE_PATH(path, ...) ((size_t)snprintf(path, CLI_PATH_SIZE, __VA_ARGS__) < CLI_PATH_SIZE)

static int is_folder(const char *path) {
    struct stat st;
    return !stat(path, &st) && S_ISDIR(st.st_mode);
}

static int has_file(const char *dir, const char *name) {
    char path[CLI_PATH_SIZE];
    return MAKE_PATH(path, "%s/%s", dir, name) && !access(path, F_OK);
}

static int ends_with(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return n >= m && !strcasecmp(name + n - m, end);
}

typedef int (*name_filter)(const char *name);

static int is_gguf(const char *name) {
    return ends_with(name, ".gguf");
}

static int is_tokenizer(const char *name) { // `tokenize` needs no other file
    return !strncmp(name, "tokenizer.", 10);
}

static int is_model_folder(const char *name) {
    return !strncmp(name, prefix, sizeof prefix - 1);
}

static int is_visible(const char *name) {
    return *name != '.';
}

// Calls fn with the names in a folder that pass the filter, sorted, until fn does not return 0. Returns the last value of fn.
static int each_name(const char *dir, name_filter filter, int (*fn)(void *ctx, const char *name), void *ctx) {
    struct dirent **entries;
    int n = scandir(dir, &entries, NULL, alphasort), rc = 0;
    if (n < 0) return 0;
    for (int i = 0; i < n; i++) {
        if (!rc && filter(entries[i]->d_name)) rc = fn(ctx, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    return rc;
}

static int stop_at_first(void *ctx, const char *name) {
    (void)ctx, (void)name;
    return 1;
}

static int has(const char *dir, name_filter filter) {
    return each_name(dir, filter, stop_at_first, NULL);
}

// ---- names on the hub ----

// models--ORG--NAME as ORG/NAME. n: bytes of `folder` to read.
static void id_of(const char *folder, size_t n, char *buf, size_t size) {
    snprintf(buf, size, "%.*s", (int)(n - (sizeof prefix - 1)), folder + sizeof prefix - 1);
    char *dashes = strstr(buf, "--");
    if (!dashes) return;
    *dashes = '/';
    memmove(dashes + 1, dashes + 2, strlen(dashes + 2) + 1);
}

int cli_hub_name(const char *path, char *buf, size_t size) {
    const char *at = strstr(path, "/snapshots/"), *folder = at;
    while (folder && folder > path && folder[-1] != '/') folder--;
    if (!folder || !is_model_folder(folder)) return 0;
    id_of(folder, (size_t)(at - folder), buf, size);
    return 1;
}

// 1: ORG/NAME, or NAME alone: letters, digits, '.', '_' and '-', with a letter or digit at the start of each part. 0 for the
// name of a file of a model, as tiny/config.json.
static int may_be_id(const char *name) {
    int n_slashes = 0;
    if (ends_with(name, ".json") || ends_with(name, ".safetensors") || is_gguf(name)) return 0;
    for (const char *p = name; *p; p++) {
        int first = p == name || p[-1] == '/';
        if (*p == '/' && !first)
            n_slashes++;
        else if (!isalnum((unsigned char)*p) && (first || !strchr("._-", *p)))
            return 0;
    }
    return *name && n_slashes < 2 && name[strlen(name) - 1] != '/';
}

// ---- a snapshot ----

typedef struct snapshot_check {
    const char *dir;
    char missing[256]; // the first link without a file
} snapshot_check;

static int is_broken_link(void *ctx, const char *name) {
    snapshot_check *c = ctx;
    char path[CLI_PATH_SIZE];
    struct stat st;
    if (!MAKE_PATH(path, "%s/%s", c->dir, name) || lstat(path, &st) || !S_ISLNK(st.st_mode) || !access(path, F_OK)) return 0;
    snprintf(c->missing, sizeof c->missing, "%s", name);
    return 1;
}

static int is_partial(const char *name) {
    return ends_with(name, ".incomplete");
}

// 1: the finished blob of BLOB.incomplete or BLOB.ID.incomplete is missing.
static int lacks_blob(void *ctx, const char *name) {
    char path[CLI_PATH_SIZE];
    return MAKE_PATH(path, "%s/%.*s", (const char *)ctx, (int)strcspn(name, "."), name) && access(path, F_OK);
}

// folder: models--ORG--NAME. The check of a snapshot's files, before a command reads them.
static int check_snapshot(const char *folder, const char *id, const char *snapshot, sl_error *err) {
    snapshot_check c = {.dir = snapshot};
    char path[CLI_PATH_SIZE];
    if (each_name(snapshot, is_visible, is_broken_link, &c))
        return sl_fail(err, SL_ERR_FORMAT,
                       "--model %.300s: the download is not complete: %s is missing; repeat: hf download %s", snapshot,
                       c.missing, id);
    if (MAKE_PATH(path, "%s/blobs", folder) && each_name(path, is_partial, lacks_blob, path))
        return sl_fail(err, SL_ERR_FORMAT,
                       "--model %.300s: the download is not complete: blobs/ holds an .incomplete file; repeat: hf download %s",
                       snapshot, id);
    if (!has_file(snapshot, "config.json") && !has(snapshot, is_gguf))
        return sl_fail(err, SL_ERR_FORMAT, "--model %.300s: config.json is missing; repeat: hf download %s", snapshot, id);
    return 0;
}

static int keep_name(void *ctx, const char *name) {
    char *kept = ctx;
    int is_second = *kept != 0;
    snprintf(kept, 256, "%s", name);
    return is_second;
}

// Finds the commit of refs/main, or the only snapshot.
static int find_commit(const char *folder, char commit[256]) {
    char path[CLI_PATH_SIZE];
    *commit = 0;
    FILE *f = MAKE_PATH(path, "%s/refs/main", folder) ? fopen(path, "r") : NULL;
    int found = f && fscanf(f, "%255[0-9a-zA-Z]", commit) == 1;
    if (f) fclose(f);
    if (found) return 1;
    return MAKE_PATH(path, "%s/snapshots", folder) && !each_name(path, is_visible, keep_name, commit) && *commit;
}

// The GGUF file of a folder. quant: a part of its name; NULL: the only file.
static int use_gguf(const char *dir, const char *quant, char path[CLI_PATH_SIZE], sl_error *err) {
    char file[CLI_PATH_SIZE];
    int rc = sl_source_find_gguf(dir, quant, file, sizeof file, err);
    if (rc) return rc;
    if (*file && MAKE_PATH(path, "%s", file)) return 0;
    return sl_fail(err, SL_ERR_IO, "--model %.300s: no GGUF file has %.60s in its name", dir, quant ? quant : ".gguf");
}

// folder: models--ORG--NAME of a hub cache. quant: the one of NAME:QUANT; NULL: none.
static int open_snapshot(const char *folder, const char *quant, char path[CLI_PATH_SIZE], sl_error *err) {
    char commit[256], id[256], whole[CLI_PATH_SIZE];
    if (!realpath(folder, whole)) snprintf(whole, sizeof whole, "%s", folder);
    const char *last = strrchr(whole, '/') ? strrchr(whole, '/') + 1 : whole;
    if (is_model_folder(last))
        id_of(last, strlen(last), id, sizeof id);
    else
        snprintf(id, sizeof id, "ORG/NAME");
    if (!find_commit(whole, commit))
        return sl_fail(err, SL_ERR_FORMAT,
                       "--model %.300s: expected refs/main or one folder in snapshots/; repeat: hf download %s", folder, id);
    if (!MAKE_PATH(path, "%s/snapshots/%s", whole, commit) || !is_folder(path))
        return sl_fail(err, SL_ERR_FORMAT, "--model %.300s: snapshots/%s is missing; repeat: hf download %s", folder, commit,
                       id);
    int rc = check_snapshot(whole, id, path, err);
    if (rc || (!quant && has_file(path, "config.json"))) return rc;
    snprintf(whole, sizeof whole, "%s", path);
    return use_gguf(whole, quant, path, err);
}

// ---- a path that exists ----

static int add_id(void *ctx, const char *name) {
    char *list = ctx, id[256];
    size_t n = strlen(list);
    id_of(name, strlen(name), id, sizeof id);
    snprintf(list + n, 600 - n, "%s%s", n ? ", " : "", id);
    return 0;
}

static int refuse_file(const char *name, sl_error *err) {
    char folder[CLI_PATH_SIZE];
    snprintf(folder, sizeof folder, "%s", name);
    char *slash = strrchr(folder, '/');
    if (slash) *slash = 0;
    if (ends_with(name, ".safetensors") || ends_with(name, ".json"))
        return sl_fail(err, SL_ERR_FORMAT, "--model %.300s: found a file, expected the folder that holds it: %.300s", name,
                       slash ? (*folder ? folder : "/") : ".");
    return sl_fail(err, SL_ERR_FORMAT,
                   "--model %.300s: found a file, expected the folder of a Hugging Face model, or a GGUF file", name);
}

typedef struct models_of {
    const char *dir;
    char list[600]; // the folders in dir that hold models
} models_of;

static int add_model(void *ctx, const char *name) {
    models_of *m = ctx;
    char config[CLI_PATH_SIZE];
    size_t n = strlen(m->list);
    if (!MAKE_PATH(config, "%s/%s/config.json", m->dir, name) || access(config, F_OK)) return 0;
    snprintf(m->list + n, sizeof m->list - n, "%s%s", n ? ", " : "", name);
    return 0;
}

static int refuse_folder(const char *name, sl_error *err) {
    models_of m = {.dir = name};
    each_name(name, is_visible, add_model, &m);
    return sl_fail(err, SL_ERR_FORMAT, "--model %.300s: found a folder without config.json, expected %s%s", name,
                   *m.list ? "one of its folders: " : "the folder of a Hugging Face model", m.list);
}

int cli_hub_folder(const char *name, char path[CLI_PATH_SIZE], sl_error *err) {
    char inner[CLI_PATH_SIZE], id[256], models[600] = "";
    if (!is_folder(name) && !sl_gguf_is(name)) return refuse_file(name, err);
    if (!MAKE_PATH(path, "%s", name)) return sl_fail(err, SL_ERR_ARG, "--model %.100s...: the path is too long", name);
    if (!is_folder(name)) return 0;
    if (cli_hub_name(name, id, sizeof id)) {
        snprintf(inner, sizeof inner, "%.*s", (int)(strstr(name, "/snapshots/") - name), name);
        int rc = check_snapshot(inner, id, name, err);
        return rc || has_file(name, "config.json") ? rc : use_gguf(name, NULL, path, err);
    }
    if (has_file(name, "config.json")) return 0;
    if (MAKE_PATH(inner, "%s/snapshots", name) && is_folder(inner)) return open_snapshot(name, NULL, path, err);
    if (MAKE_PATH(inner, "%s/hub", name) && is_folder(inner) && has(inner, is_model_folder)) name = inner; // $HF_HOME
    if (has(name, is_model_folder)) {
        each_name(name, is_model_folder, add_id, models);
        return sl_fail(err, SL_ERR_FORMAT, "--model %.300s: found a hub cache, expected one of its models: %s", name, models);
    }
    if (has(name, is_gguf)) return use_gguf(name, NULL, path, err);
    return has(name, is_tokenizer) ? 0 : refuse_folder(name, err);
}

// ---- a name ----

static int cache_root(char root[CLI_PATH_SIZE]) {
    static const struct {
        const char *variable, *below;
    } places[] = {{"HF_HUB_CACHE", ""},
                  {"HUGGINGFACE_HUB_CACHE", ""},
                  {"HF_HOME", "/hub"},
                  {"XDG_CACHE_HOME", "/huggingface/hub"},
                  {"HOME", "/.cache/huggingface/hub"}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *value = getenv(places[i].variable);
        if (value && *value) return MAKE_PATH(root, "%s%s", value, places[i].below);
    }
    return 0;
}

int cli_hub_find(const char *name, char path[CLI_PATH_SIZE], sl_error *err) {
    char root[CLI_PATH_SIZE], folder[CLI_PATH_SIZE], id[CLI_PATH_SIZE];
    const char *slash = strchr(name, '/'), *colon = slash ? strchr(slash, ':') : NULL;
    if (!MAKE_PATH(id, "%.*s", colon ? (int)(colon - name) : (int)strlen(name), name) || !may_be_id(id)) return 1;
    slash = strchr(id, '/');
    int known = cache_root(root), n_org = slash ? (int)(slash - id) : 0;
    const char *last = slash ? slash + 1 : id;
    if (known && MAKE_PATH(folder, "%s/%s%.*s%s%s", root, prefix, n_org, id, slash ? "--" : "", last) && is_folder(folder))
        return open_snapshot(folder, colon ? colon + 1 : NULL, path, err);
    if (!slash) return 1;
    return sl_fail(err, SL_ERR_IO,
                   "--model %.300s: there is no such folder, and the hub cache (%.300s) does not hold this model; "
                   "hf download %.300s gets it",
                   name, known ? root : "HOME is not set", id);
}
