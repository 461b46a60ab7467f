// tests/support/tensor_file.c - see tensor_file.h.
#include "tests/support/tensor_file.h"
#include "tests/test.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static char *read_all(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END)) FAIL("cannot read %s", path);
    *n = (size_t)ftell(f);
    char *data = malloc(*n + 1);
    rewind(f);
    if (!data || fread(data, 1, *n, f) != *n) FAIL("cannot read %s", path);
    fclose(f);
    return data;
}

json_t *test_read_tensors(const char *path, char **data) {
    size_t n, header = 0;
    char *all = read_all(path, &n);
    for (int i = 7; i >= 0; i--) header = header << 8 | (unsigned char)all[i];
    json_t *root = json_loadb(all + 8, header, 0, NULL);
    if (!root) FAIL("%s: no header", path);
    memmove(all, all + 8 + header, n - 8 - header);
    *data = all;
    return root;
}

static void add(json_t *header, FILE *f, const char *name, const char *dtype, json_t *shape, const void *data, size_t n,
                size_t *at) {
    json_object_set_new(
        header, name,
        json_pack("{s:s,s:O,s:[I,I]}", "dtype", dtype, "shape", shape, "data_offsets", (json_int_t)*at, (json_int_t)(*at + n)));
    if (fwrite(data, 1, n, f) != n) FAIL("cannot write %s", name);
    *at += n;
}

static int is_changed(const char *name, const test_tensor *changes, int n) {
    for (int i = 0; i < n; i++)
        if (!strcmp(changes[i].name, name)) return 1;
    return 0;
}

void test_write_model(const char *folder, const test_tensor *changes, int n) {
    char command[1024], path[512], *data, *text;
    snprintf(command, sizeof command, "cp %s/*.json '%s'", folder, test_tmp());
    CHECK_INT(system(command), 0);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    json_t *old = test_read_tensors(path, &data), *header = json_object(), *tensor;
    const char *name;
    size_t at = 0;
    snprintf(path, sizeof path, "%s/data", test_tmp());
    FILE *f = fopen(path, "wb");
    if (!f) FAIL("cannot write %s", path);
    json_object_foreach(old, name, tensor) {
        const json_t *offsets = json_object_get(tensor, "data_offsets");
        if (!offsets || is_changed(name, changes, n)) continue;
        size_t begin = (size_t)json_integer_value(json_array_get(offsets, 0));
        add(header, f, name, json_string_value(json_object_get(tensor, "dtype")), json_object_get(tensor, "shape"),
            data + begin, (size_t)json_integer_value(json_array_get(offsets, 1)) - begin, &at);
    }
    for (int i = 0; i < n; i++) {
        if (!changes[i].shape) continue;
        json_t *shape = json_loads(changes[i].shape, 0, NULL);
        add(header, f, changes[i].name, changes[i].dtype, shape, changes[i].data, changes[i].n_bytes, &at);
        json_decref(shape);
    }
    fclose(f);
    text = json_dumps(header, JSON_COMPACT);
    uint64_t size = strlen(text);
    snprintf(path, sizeof path, "%s/model.safetensors", test_tmp());
    f = fopen(path, "wb");
    uint64_t padded = (size + 7) / 8 * 8;
    if (!f || fwrite(&padded, 8, 1, f) != 1 || fwrite(text, 1, size, f) != size) FAIL("cannot write %s", path);
    for (; size < padded; size++) fputc(' ', f);
    if (fclose(f)) FAIL("cannot write %s", path);
    snprintf(command, sizeof command, "cd '%s' && cat data >> model.safetensors && rm data", test_tmp());
    CHECK_INT(system(command), 0);
    free(text), free(data);
    json_decref(old), json_decref(header);
}

void test_set_field(const char *file, const char *field, const char *value) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", test_tmp(), file);
    json_t *root = json_load_file(path, 0, NULL);
    if (!root) FAIL("cannot read %s", path);
    json_object_del(root, field);
    if (value) CHECK_INT(json_object_set_new(root, field, json_loads(value, JSON_DECODE_ANY, NULL)), 0);
    CHECK_INT(json_dump_file(root, path, 0), 0);
    json_decref(root);
}

void test_note_line(void *ctx, const char *line) {
    test_lines *lines = ctx;
    size_t n = strlen(lines->text);
    snprintf(lines->text + n, sizeof lines->text - n, "%s\n", line);
    lines->n++;
}
