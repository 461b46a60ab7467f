// tests/support/nulls.c - see nulls.h.
#include "tests/support/nulls.h"
#include "tests/test.h"

#include <string.h>

typedef struct trial {
    json_t *root;
    const char *file;
    const char *const *maps;
    null_probe probe;
    int n;
} trial;

static void run_probe(const trial *t, char *out, size_t size) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", test_tmp(), t->file);
    CHECK(!json_dump_file(t->root, path, 0));
    t->probe(out, size);
}

static int is_map(const trial *t, const char *name) {
    for (const char *const *m = t->maps; *m; m++)
        if (!strcmp(*m, name)) return 1;
    return 0;
}

static void try_field(trial *t, json_t *object, const char *field, json_t *value) {
    static char absent[8192], null[8192];
    CHECK(!json_object_del(object, field));
    run_probe(t, absent, sizeof absent);
    CHECK(!json_object_set_new(object, field, json_null()));
    run_probe(t, null, sizeof null);
    CHECK(!json_object_set(object, field, value));
    if (strcmp(absent, null)) FAIL("%s: %s as null gives \"%s\", its absence \"%s\"", t->file, field, null, absent);
    t->n++;
}

static void try_all(trial *t, json_t *value, int is_fields) {
    const char *keys[512];
    int n = 0;
    for (size_t i = 0; i < json_array_size(value); i++) try_all(t, json_array_get(value, i), 1);
    for (void *at = json_object_iter(value); at && n < 512; at = json_object_iter_next(value, at))
        keys[n++] = json_object_iter_key(at);
    for (int i = 0; i < n; i++) { // a change of the object invalidates the iterator, so the keys are collected first
        char key[128];
        snprintf(key, sizeof key, "%s", keys[i]);
        json_t *inside = json_incref(json_object_get(value, key));
        try_all(t, inside, !is_map(t, key));
        if (is_fields) try_field(t, value, key, inside);
        json_decref(inside);
    }
}

int test_nulls(json_t *root, const char *file, const char *const *maps, null_probe probe) {
    trial t = {root, file, maps, probe, 0};
    try_all(&t, root, 1);
    return t.n;
}
