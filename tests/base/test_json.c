// tests/base/test_json.c - JSON files as Python's json reads them (base/json.h). scripts/goldens/make_json.py makes the
// goldens.
#include "base/json.h"
#include "base/json_lenient.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static sl_error err;

static void goldens(void) {
    FILE *f = fopen("tests/goldens/json.jsonl", "rb");
    int n[2] = {0};
    if (!f) FAIL("cannot open tests/goldens/json.jsonl");
    for (json_t *row; (row = json_loadf(f, JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, NULL)); json_decref(row)) {
        const json_t *text = json_object_get(row, "text"), *value = json_object_get(row, "value");
        json_t *root;
        int rc = sl_json_parse("file", json_string_value(text), json_string_length(text), &root, &err);
        n[json_is_null(value)]++;
        if (json_is_null(value) && rc != SL_ERR_FORMAT) FAIL("%s: returned %d, expected an error", json_string_value(text), rc);
        if (!json_is_null(value) && (rc || !json_equal(root, (json_t *)value)))
            FAIL("%s: %s", json_string_value(text), rc ? err.message : "other values than Python's");
        json_decref(root);
    }
    fclose(f);
    CHECK_INT(n[0], 14);
    CHECK_INT(n[1], 29);
}

// A value that no one can hold is harmless until a getter reads its field.
static void getters(void) {
    static const char text[] = "\xef\xbb\xbf{\"big\": 1000000000000000019884624838656, \"nan\": NaN, \"far\": -1e999, "
                               "\"half\": \"x\\ud800\", \"eps\": 1e-5,"
                               "\"whole\": 50.0, \"part\": 50.5, \"huge\": 1e300, \"nul\": \"\\u0000x\", \"long\": 1%0300d}";
    static const struct {
        const char *field, *part;
    } bad[][2] = {
        {{"big", "field big is 1000000000000000019884624838656, expected an integer"},
         {"nan", "field nan is NaN, expected an integer"}},
        {{"part", "field part is a number, expected an integer"}, {"huge", "field huge is a number, expected an integer"}},
        {{"half", "field half is x\\ud800, expected an integer"}, {"long", "000..., expected an integer"}},
    };
    char json[1024];
    json_t *root;
    int i = 0;
    float x = 0;
    const char *s;
    int n = snprintf(json, sizeof json, text, 0);
    CHECK_OK(sl_json_parse("file", json, (size_t)n, &root, &err), err);
    const sl_json_file f = {"file", root};
    for (size_t k = 0; k < sizeof bad / sizeof **bad; k++)
        CHECK_ERR(sl_json_int(&f, bad[k / 2][k % 2].field, 0, 1 << 20, NULL, &i, &err), err, SL_ERR_FORMAT,
                  bad[k / 2][k % 2].part);
    CHECK_OK(sl_json_int(&f, "whole", 0, 50, NULL, &i, &err), err);
    CHECK_INT(i, 50);
    CHECK_ERR(sl_json_int(&f, "whole", 0, 49, NULL, &i, &err), err, SL_ERR_FORMAT, "field whole is 50, expected 0 to 49");
    CHECK_OK(sl_json_float(&f, "big", 0, 1e31, NULL, &x, &err), err);
    CHECK(x == 1e30f);
    CHECK_OK(sl_json_float(&f, "eps", 0, 1, NULL, &x, &err), err);
    CHECK(x == 1e-5f);
    CHECK_ERR(sl_json_float(&f, "eps", 2, 3, NULL, &x, &err), err, SL_ERR_FORMAT, "eps is 1e-05, expected 2 to 3");
    CHECK_ERR(sl_json_float(&f, "nan", -1e9, 1e9, NULL, &x, &err), err, SL_ERR_FORMAT, "field nan is NaN, expected a number");
    CHECK_ERR(sl_json_float(&f, "far", -1e9, 1e9, NULL, &x, &err), err, SL_ERR_FORMAT,
              "field far is -1e999, expected a number");
    CHECK_ERR(sl_json_bool(&f, "nan", 0, &i, &err), err, SL_ERR_FORMAT, "field nan is NaN, expected true or false");
    CHECK_ERR(sl_json_string(&f, "half", &s, &err), err, SL_ERR_FORMAT, "field half is x\\ud800, expected a string");
    CHECK_ERR(sl_json_string(&f, "nan", &s, &err), err, SL_ERR_FORMAT, "field nan is NaN, expected a string");
    CHECK_ERR(sl_json_string(&f, "nul", &s, &err), err, SL_ERR_FORMAT, "field nul holds a NUL");
    json_decref(root);
}

// A name that is no text does not stop a file, and its number is not taken for the id of a token.
static void names(void) {
    static const char text[] =
        "{\"vocab\": {\"a\": 0, \"\\ud800\": 1, \"b\\u0000\" : 2, \"c\": 3, \"\\ud83d\\ude00\": 4, \"\\udc00\":"
        " [{\"\\udc02\": null}, 5], \"\\udc01\": null, \"e\": 6}}";
    static const struct {
        const char *name;
        int id; // -1: no integer
    } want[] = {{"a", 0}, {"\\ud800", -1}, {"b\\u0000", -1}, {"c", 3}, {"\U0001f600", 4}, {"\\udc01", -1}, {"e", 6}};
    char found[SL_JSON_FOUND];
    json_t *root;
    CHECK_OK(sl_json_parse("file", text, sizeof text - 1, &root, &err), err);
    const json_t *vocab = json_object_get(root, "vocab");
    CHECK_INT(json_object_size(vocab), 8);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const json_t *v = json_object_get(vocab, want[i].name);
        CHECK(v != NULL);
        CHECK_INT(json_is_integer(v) ? json_integer_value(v) : -1, want[i].id);
    }
    CHECK_INT(json_integer_value(json_array_get(json_object_get(vocab, "\\udc00"), 1)), 5);
    CHECK_STR(sl_json_found(json_object_get(vocab, "\\ud800"), found), "1");
    json_decref(root);
}

static void write_file(const char *name, const char *text) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", test_tmp(), name);
    FILE *f = fopen(path, "wb");
    if (!f || fputs(text, f) < 0 || fclose(f)) FAIL("cannot write %s", path);
}

static void files(void) {
    json_t *root;
    char deep[8192];
    CHECK_OK(sl_json_load(test_tmp(), "missing.json", 1, &root, &err), err);
    CHECK(!root);
    CHECK_ERR(sl_json_load(test_tmp(), "missing.json", 0, &root, &err), err, SL_ERR_IO, "missing.json: No such file");
    CHECK_ERR(sl_json_load("tests", "goldens", 1, &root, &err), err, SL_ERR_IO, "tests/goldens: Is a directory");
    write_file("lfs.json", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 17078292\n");
    CHECK_ERR(sl_json_load(test_tmp(), "lfs.json", 1, &root, &err), err, SL_ERR_FORMAT,
              "lfs.json: the file holds a Git LFS pointer");
    CHECK(strstr(err.message, "hf download ORG/NAME"));
    write_file("lines.json", "{\n\"a\": NaN,\n\"b\": 1e999,\n\"c\": ?}");
    CHECK_ERR(sl_json_load(test_tmp(), "lines.json", 1, &root, &err), err, SL_ERR_FORMAT, "lines.json: line 4: ");
    write_file("list.json", "[NaN]");
    CHECK_ERR(sl_json_load(test_tmp(), "list.json", 1, &root, &err), err, SL_ERR_FORMAT, "expected a JSON object");
    memset(deep, '[', sizeof deep - 1), deep[sizeof deep - 1] = 0;
    memcpy(deep, "{\"a\":", 5);
    write_file("deep.json", deep);
    CHECK_ERR(sl_json_load(test_tmp(), "deep.json", 1, &root, &err), err, SL_ERR_FORMAT, "maximum parsing depth");
}

static const test_case cases[] = {
    {"goldens", 0, goldens}, {"getters", 0, getters}, {"names", 0, names}, {"files", 0, files}, {0}};
const test_suite suite_json = {"json", cases};
