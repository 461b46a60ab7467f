// tests/support/venv.c - finds files in the virtual environment of the tests (venv.h).
#include "tests/support/venv.h"

#include "tests/test.h"

#include <glob.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

// The first path that matches the pattern below the environment; NULL: none.
static const char *find(const char *pattern) {
    static char paths[8][PATH_MAX];
    static int next;
    const char *venv = getenv("SLEIGH_VENV");
    char root[PATH_MAX], all[PATH_MAX + 300];
    if (!realpath(venv && *venv ? venv : "build/venv", root)) return NULL;
    snprintf(all, sizeof all, "%s/%s", root, pattern);
    glob_t found = {0};
    char *path = NULL;
    if (!glob(all, 0, NULL, &found)) {
        path = paths[next++ % 8];
        snprintf(path, PATH_MAX, "%s", found.gl_pathv[0]);
    }
    globfree(&found);
    return path;
}

const char *venv_file(const char *name) {
    char pattern[300];
    snprintf(pattern, sizeof pattern, "lib/python3*/site-packages/%s", name);
    const char *path = find(pattern);
    if (!path) TEST_SKIP("needs %s of the Python packages for tests (`make venv`)", name);
    return path;
}

const char *venv_python(const char *modules) {
    char names[200];
    snprintf(names, sizeof names, "%s", modules);
    for (char *rest, *name = strtok_r(names, " ", &rest); name; name = strtok_r(NULL, " ", &rest)) venv_file(name);
    const char *path = find("bin/python");
    if (!path) TEST_SKIP("needs the Python packages for tests (`make venv`)");
    return path;
}
