// cli/model_path.c - see model_path.h.
#include "cli/model_path.h"
#include "cli/hub.h"
#include "models/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// 1: path fits and exists. fmt and its arguments: one path.
#define EXISTS(path, ...) ((size_t)snprintf(path, CLI_PATH_SIZE, __VA_ARGS__) < CLI_PATH_SIZE && !access(path, F_OK))

// The folder of the program file, without a slash at the end. 0: unknown.
static int program_folder(char dir[CLI_PATH_SIZE]) {
    ssize_t n = readlink("/proc/self/exe", dir, CLI_PATH_SIZE - 1);
    if (n <= 0) return 0;
    dir[n] = 0;
    *strrchr(dir, '/') = 0;
    return 1;
}

// Calls fn with each folder of installed models that may hold models, in the order of the search, until fn returns 1. Returns
// the last value of fn, or 0.
static int each_root(int (*fn)(void *ctx, const char *root), void *ctx) {
    static const char *const up[] = {"..", "../.."}; // build/sleigh, build/san/sleigh
    char dir[CLI_PATH_SIZE], path[CLI_PATH_SIZE];
    const char *env = getenv("SLEIGH_MODELS");
    if (env && *env && fn(ctx, env)) return 1;
    if (!program_folder(dir)) return 0;
    if (EXISTS(path, "%s/../share/sleigh/models", dir) && fn(ctx, path)) return 1;
    for (int i = 0; i < 2; i++) // a source tree has sleigh.h, so that other folders "models" are not searched
        if (EXISTS(path, "%s/%s/engine/sleigh.h", dir, up[i]) && EXISTS(path, "%s/%s/models", dir, up[i]) && fn(ctx, path))
            return 1;
    return 0;
}

typedef struct search {
    const char *name;   // below a root
    char *path;         // [CLI_PATH_SIZE] the result
    char searched[600]; // the roots, for the message
} search;

static int look_in(void *ctx, const char *root) {
    search *s = ctx;
    char config[CLI_PATH_SIZE], real[CLI_PATH_SIZE]; // realpath removes ".." from the path that tables and messages show
    size_t n = strlen(s->searched);
    int is_folder = EXISTS(config, "%s/%s/config.json", root, s->name);
    if (EXISTS(s->path, "%s/%s", root, s->name) && (is_folder || sl_gguf_is(s->path))) {
        if (realpath(s->path, real)) strcpy(s->path, real);
        return 1;
    }
    snprintf(s->searched + n, sizeof s->searched - n, "%s%s", n ? ", " : "", realpath(root, real) ? real : root);
    return 0;
}

// 1: the name may be that of an installed model: no absolute path, and no part of it is "." or "..".
static int may_be_installed(const char *name) {
    if (!*name || *name == '/') return 0;
    for (const char *part = name; part; part = strchr(part, '/') ? strchr(part, '/') + 1 : NULL) {
        size_t n = strcspn(part, "/");
        if ((n == 1 || n == 2) && !strncmp(part, "..", n)) return 0;
    }
    return 1;
}

int cli_model_path(const char *name, char path[CLI_PATH_SIZE], sl_error *err) {
    search s = {.name = strncmp(name, "models/", 7) ? name : name + 7, .path = path};
    if (EXISTS(path, "%s", name)) return cli_hub_folder(name, path, err);
    if (!may_be_installed(name)) return sl_fail(err, SL_ERR_IO, "--model %.300s: there is no such folder", name);
    if (each_root(look_in, &s)) return 0;
    int rc = cli_hub_find(name, path, err);
    if (rc <= 0) return rc;
    return sl_fail(err, SL_ERR_IO,
                   "--model %.300s: there is no such folder, and no installed model has this name (searched: %s)", name,
                   *s.searched ? s.searched : "no folder");
}
