// tests/support/schema_documents.c - see schema_documents.h.
#include "tests/support/schema_documents.h"
#include "tests/test.h"

#include <jansson.h>
#include <string.h>

const char document_schema[] =
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":12},\"age\":{\"type\":\"integer\","
    "\"minimum\":0,\"maximum\":120},\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"red\",\"\xc3\xa9t\xc3\xa9\",null]},"
    "\"minItems\":1,\"maxItems\":3}},\"required\":[\"name\",\"age\",\"tags\"]}";

void check_document(const char *text) {
    json_error_t e;
    json_t *v = json_loads(text, JSON_REJECT_DUPLICATES, &e), *tags = json_object_get(v, "tags"), *tag;
    size_t i, n_chars = 0;
    if (!v) FAIL("%s: %s", text, e.text);
    const char *name = json_string_value(json_object_get(v, "name"));
    for (const char *p = name; p && *p; p++) n_chars += (*p & 0xc0) != 0x80;
    const json_t *age = json_object_get(v, "age");
    if (!name || n_chars > 12 || !json_is_integer(age) || json_integer_value(age) < 0 || json_integer_value(age) > 120 ||
        !json_is_array(tags) || json_array_size(tags) < 1 || json_array_size(tags) > 3 || json_object_size(v) != 3)
        FAIL("%s: does not follow the schema", text);
    json_array_foreach(tags, i, tag) {
        const char *s = json_string_value(tag);
        if (!json_is_null(tag) && (!s || (strcmp(s, "red") && strcmp(s, "\xc3\xa9t\xc3\xa9")))) FAIL("%s: a wrong tag", text);
    }
    json_decref(v);
}
