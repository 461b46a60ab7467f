// tests/tokenizer/test_unicode.c - properties and form C of all code points, against what the Python package tokenizers does.
// scripts/goldens/make_unicode_goldens.py makes the file of goldens and describes it.
#include "tests/support/code_points.h"
#include "tests/test.h"
#include "tokenizer/tokenizer_internal.h"
#include "tokenizer/unicode/unicode.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

static const char goldens[] = "tests/goldens/unicode.json";
enum { BLOCK = 4096 };

static json_t *read_goldens(void) {
    json_error_t e;
    json_t *root = json_load_file(goldens, 0, &e);
    if (!root) FAIL("%s: %s", goldens, e.text);
    return root;
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
    return fnv_byte(hash, sl_unicode_is(*(const sl_unicode_property *)property, c));
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

// ---- form C ----

static sl_error err;

static uint32_t hash_nfc(const char *text, size_t n) {
    sl_text out = {0};
    uint32_t hash = FNV_BASIS;
    CHECK_OK(sl_nfc_append(text, n, &out, &err), err);
    for (size_t i = 0; i < out.n; i++) hash = fnv_byte(hash, (unsigned char)out.data[i]);
    if (sl_nfc_is(text, n) && (out.n != n || memcmp(out.data, text, n))) FAIL("sl_nfc_is says that %.40s is in form C", text);
    sl_text_free(&out);
    return hash;
}

// Each character before U+0301, and between the marks U+035D and U+0334 of other classes.
static size_t put_contexts(uint32_t from, char *text) {
    static const char after[2][8] = {"\xcc\x81x\xcd\x9d", "\xcc\xb4"};
    size_t n = 0;
    for (uint32_t c = from; c < from + BLOCK; c++) {
        for (int i = 0; i < 2 && !is_surrogate(c); i++) {
            n += utf8_put(c, text + n);
            memcpy(text + n, after[i], strlen(after[i]));
            n += strlen(after[i]);
        }
    }
    return n;
}

static void nfc_points(void) {
    static char text[BLOCK * 16];
    json_t *root = read_goldens(), *want = json_object_get(root, "nfc");
    size_t block = 0;
    for (uint32_t from = 0; from < SL_CODE_POINTS; from += BLOCK) {
        size_t n = put_contexts(from, text);
        if (n > 0 && hash_nfc(text, n) != (uint32_t)json_integer_value(json_array_get(want, block++)))
            FAIL("form C of some code point of U+%04X to U+%04X differs", from, from + BLOCK - 1);
    }
    CHECK_INT(block, (long long)json_array_size(want));
    json_decref(root);
}

static void nfc_texts(void) {
    json_t *root = read_goldens(), *texts = json_object_get(root, "nfc_texts");
    CHECK_INT(json_array_size(texts), 400);
    CHECK(!json_array_append(texts, json_object_get(root, "nfc_pairs")));
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *row = json_array_get(texts, i), *text = json_array_get(row, 0);
        if (hash_nfc(json_string_value(text), json_string_length(text)) != (uint32_t)json_integer_value(json_array_get(row, 1)))
            FAIL("form C of text %zu differs: %.60s", i, json_string_value(text));
    }
    json_decref(root);
}

static const test_case cases[] = {
    {"properties", NEEDS_NOTHING, properties},
    {"nfc_points", NEEDS_NOTHING, nfc_points},
    {"nfc_texts", NEEDS_NOTHING, nfc_texts},
    {0},
};
const test_suite suite_unicode = {"unicode", cases};
