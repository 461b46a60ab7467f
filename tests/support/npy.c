// tests/support/npy.c - see npy.h.
#include "tests/support/npy.h"
#include "tests/test.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

test_array test_read_npy(const char *path) {
    test_array a = {0};
    unsigned char head[10];
    char text[65536];
    FILE *f = fopen(path, "rb");
    if (!f) FAIL("%s: cannot be opened", path);
    CHECK(fread(head, 1, 10, f) == 10 && !memcmp(head, "\x93NUMPY\x01", 7));
    size_t n = head[8] | head[9] << 8;
    CHECK(fread(text, 1, n, f) == n);
    text[n] = 0;
    CHECK(strstr(text, "'<f4'") && strstr(text, "'fortran_order': False"));
    CHECK(sscanf(strstr(text, "'shape': (") + 10, "%d, %d", &a.n_rows, &a.n_cols) == 2);
    size_t count = (size_t)a.n_rows * a.n_cols;
    a.data = malloc(count * sizeof *a.data);
    CHECK(fread(a.data, sizeof *a.data, count, f) == count);
    CHECK(fgetc(f) == EOF);
    fclose(f);
    return a;
}

int32_t *test_read_ids(const char *path, int *n) {
    json_error_t e;
    json_t *list = json_load_file(path, 0, &e);
    if (!list) FAIL("%s: %s", path, e.text);
    CHECK(json_is_array(list));
    *n = (int)json_array_size(list);
    int32_t *ids = malloc(*n * sizeof *ids);
    for (int i = 0; i < *n; i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    json_decref(list);
    return ids;
}
