// tests/tokenizer/test_unicode.c - properties of all code points, against what the Python package tokenizers does with them.
// scripts/make_unicode_goldens.py makes the file of goldens and describes it.
#include "tests/test.h"
#include "tokenizer/unicode.h"

#include <jansson.h>
#include <stdio.h>

static const char goldens[] = "tests/goldens/unicode.json";
enum { BLOCK = 4096, FNV_BASIS = 0x811c9dc5, FNV_PRIME = 0x01000193 };

static json_t *read_goldens(void) {
    json_error_t e;
    json_t *root = json_load_file(goldens, 0, &e);
    if (!root) FAIL("%s: %s", goldens, e.text);
    return root;
}

static int is_surrogate(uint32_t c) {
    return c >= 0xd800 && c < 0xe000;
}

static uint32_t hash_byte(uint32_t hash, unsigned char byte) {
    return (hash ^ byte) * FNV_PRIME;
}

// Compares the hash of each block of code points. add adds the bytes of one code point.
static void check_blocks(const char *what, const json_t *want, uint32_t (*add)(uint32_t hash, uint32_t c, const void *ctx),
                         const void *ctx) {
    size_t n = 0;
    for (uint32_t from = 0; from < SL_CODE_POINTS; from += BLOCK) {
        uint32_t hash = FNV_BASIS;
        int any = 0;
        for (uint32_t c = from; c < from + BLOCK; c++) {
            if (is_surrogate(c)) continue;
            any = 1;
            hash = add(hash, c, ctx);
        }
        if (!any) continue;
        if (hash != (uint32_t)json_integer_value(json_array_get(want, n)))
            FAIL("%s: some code point of U+%04X to U+%04X differs", what, from, from + BLOCK - 1);
        n++;
    }
    CHECK_INT(n, (long long)json_array_size(want));
}

static uint32_t add_property(uint32_t hash, uint32_t c, const void *property) {
    return hash_byte(hash, (unsigned char)sl_unicode_is(*(const sl_unicode_property *)property, c));
}

static void properties(void) {
    static const struct {
        const char *name;
        sl_unicode_property property;
    } all[] = {{"white", SL_UNICODE_WHITE},
               {"word", SL_UNICODE_WORD},
               {"numeric", SL_UNICODE_NUMERIC},
               {"punctuation", SL_UNICODE_PUNCTUATION}};
    json_t *root = read_goldens(), *want = json_object_get(root, "properties");
    CHECK_INT(json_object_size(want), 4);
    for (size_t i = 0; i < 4; i++)
        check_blocks(all[i].name, json_object_get(want, all[i].name), add_property, &all[i].property);
    json_decref(root);
}

static const test_case cases[] = {
    {"properties", NEEDS_NOTHING, properties},
    {0},
};
const test_suite suite_unicode = {"unicode", cases};
