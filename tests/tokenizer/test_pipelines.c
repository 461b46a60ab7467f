// tests/tokenizer/test_pipelines.c - compares every step of tokenizer.json with the package tokenizers
// (scripts/goldens/make_pipelines.py), and the blanks of SentencePiece with transformers and mistral-common
// (scripts/goldens/make_blanks.py).
#include "tests/support/run_cli.h"
#include "tests/support/tokens.h"
#include "tests/support/venv.h"
#include "tests/test.h"
#include "tokenizer/json_part.h"

#include <stdlib.h>
#include <string.h>

static sl_error err;

static uint32_t fnv(uint32_t h, const char *data, size_t n) {
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)data[i]) * 16777619u;
    return h;
}

static uint32_t hash_at(const json_t *hashes, size_t i) { // eight digits for each text; 0: the row has no such hashes
    char digits[9] = "";
    if (!hashes) return 0;
    CHECK(json_string_length(hashes) >= 8 * i + 8);
    memcpy(digits, json_string_value(hashes) + 8 * i, 8);
    return (uint32_t)strtoul(digits, NULL, 16);
}

// Writes the tokenizer.json of a pipeline, and loads it.
static sl_tokenizer *load(const json_t *row, const json_t *added) {
    char path[256];
    const json_t *first = json_object_get(row, "first_added"), *model = json_object_get(row, "model");
    snprintf(path, sizeof path, "tests/vocabularies/%s/tokenizer.json", json_string_value(json_object_get(row, "base")));
    json_t *root = json_load_file(path, 0, NULL), *patch = json_deep_copy(json_object_get(row, "patch"));
    CHECK(root && patch && !json_object_update(root, patch));
    if (model) CHECK(!json_object_update(json_object_get(root, "model"), (json_t *)model));
    for (size_t i = 0; first && i < json_array_size(added); i++) {
        json_t *token = json_copy(json_array_get(added, i));
        CHECK(!json_object_set_new(token, "id", json_integer(json_integer_value(first) + (json_int_t)i)));
        CHECK(!json_array_append_new(json_object_get(root, "added_tokens"), token));
    }
    char *text = json_dumps(root, 0);
    tokens_write("tokenizer.json", text, strlen(text));
    free(text);
    json_decref(root), json_decref(patch);
    return tokens_load(test_tmp());
}

static void check_text(const sl_tokenizer *tok, const char *name, const json_t *text, unsigned flags, uint32_t want_ids,
                       uint32_t want_text) {
    sl_ids ids = {0};
    sl_text decoded = {0};
    uint32_t h = 2166136261u;
    char number[16];
    CHECK_OK(sl_tokenize(tok, json_string_value(text), json_string_length(text), flags, &ids, &err), err);
    for (size_t i = 0; i < ids.n; i++) h = fnv(h, number, (size_t)snprintf(number, sizeof number, "%d,", ids.data[i]));
    if (h != want_ids) {
        for (size_t i = 0; i < ids.n; i++) printf("%s%d", i ? "," : "      ids: ", ids.data[i]);
        FAIL("%s: other ids of \"%.200s\"", name, json_string_value(text));
    }
    CHECK_OK(sl_detokenize(tok, ids.data, ids.n, 1, &decoded, &err), err);
    if (want_text && fnv(2166136261u, decoded.data, decoded.n) != want_text)
        FAIL("%s: the ids of \"%.200s\" become \"%.200s\"", name, json_string_value(text), decoded.data);
    // The stream writes the same text. It writes U+FFFD for bytes that are not UTF-8.
    sl_text streamed = {0};
    sl_detok_stream s = sl_detok_begin(tok, 1, 1);
    for (size_t i = 0; i < ids.n; i++) CHECK_OK(sl_detok_next(&s, ids.data[i], &streamed, &err), err);
    CHECK_OK(sl_detok_end(&s, &streamed, &err), err);
    if (want_text && (streamed.n != decoded.n || memcmp(streamed.data, decoded.data, decoded.n)))
        FAIL("%s: \"%.200s\" is streamed as \"%.200s\"", name, decoded.data, streamed.data);
    sl_ids_free(&ids);
    sl_text_free(&decoded), sl_text_free(&streamed);
}

static void check_file(const char *path) {
    json_error_t e;
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &e), *row, *text;
    if (!root) FAIL("%s: line %d: %s", path, e.line, e.text);
    const json_t *texts = json_object_get(root, "texts"), *added = json_object_get(root, "added");
    size_t i, k = 0, n_decoded = 0;
    CHECK(json_array_size(json_object_get(root, "pipelines")) > 150 && json_array_size(texts) >= 30);
    json_array_foreach(json_object_get(root, "pipelines"), i, row) {
        sl_tokenizer *tok = load(row, added);
        json_array_foreach(texts, k, text) {
            uint32_t decoded = hash_at(json_object_get(row, "decoded"), k);
            n_decoded += decoded != 0;
            const char *name = json_string_value(json_object_get(row, "name"));
            check_text(tok, name, text, 0, hash_at(json_object_get(row, "ids"), k), decoded);
        }
        sl_tokenizer_free(tok);
    }
    CHECK(n_decoded > 20 * k);
    printf("      %zu pipelines, %zu texts each\n", i, k);
    json_decref(root);
}

static void goldens(void) {
    check_file("tests/goldens/pipelines.json");
}

static void other_texts(void) { // made now, with the seed of the test
    char command[1400];
    const char *python = venv_python("tokenizers");
    snprintf(command, sizeof command, "%s scripts/goldens/make_pipelines.py --seed %llu --texts 140 --out '%s' >'%s' 2>&1",
             python, (unsigned long long)test_seed, in_tmp("pipelines.json"), in_tmp("said"));
    if (system(command)) FAIL("%s", slurp(in_tmp("said"), &(size_t){0}));
    check_file(in_tmp("pipelines.json"));
}

// ---- SentencePiece ----

static void check_blanks(int mistral) {
    json_t *root = json_load_file("tests/goldens/blanks.json", JSON_ALLOW_NUL, NULL), *row, *text;
    size_t i, k;
    int n = 0;
    CHECK(json_array_size(json_object_get(root, "texts")) >= 300);
    json_array_foreach(json_object_get(root, "rows"), i, row) {
        const char *name = json_string_value(json_object_get(row, "name")),
                   *file = json_string_value(json_object_get(row, "mistral"));
        char path[512] = "tests/vocabularies/llama/tokenizer.model";
        if (!file != !mistral) continue;
        if (file) snprintf(path, sizeof path, "%s/%s", venv_file(VENV_MISTRAL), file);
        // Mistral's folders have its own name of the file, and no tokenizer_config.json.
        const char *link = file ? "tokenizer.model.v3" : "tokenizer.model";
        tokens_link(path, link);
        char *config = json_dumps(json_object_get(row, "config"), 0);
        if (config) tokens_write("tokenizer_config.json", config, strlen(config));
        sl_tokenizer *tok = tokens_load(test_tmp());
        CHECK_STR(sl_tokenizer_kind(tok), "sentencepiece");
        json_array_foreach(json_object_get(root, "texts"), k, text)
            check_text(tok, name, text, file ? SL_TOK_PLAIN : 0, hash_at(json_object_get(row, "ids"), k),
                       hash_at(json_object_get(row, "decoded"), k));
        sl_tokenizer_free(tok);
        free(config);
        remove(in_tmp(link));
        n++;
    }
    CHECK_INT(n, mistral ? 4 : 7);
    json_decref(root);
}

static void blanks(void) {
    check_blanks(0);
}
static void mistral(void) {
    check_blanks(1);
}

// ---- decoders, against the steps done one after the other on the whole text ----

static void byte_tokens(void) {
    static const char *const forms[] = {"<0x%02X>", "<0x%02x>"};
    char token[16];
    for (int i = 0; i < 512; i++) {
        snprintf(token, sizeof token, forms[i / 256], i % 256);
        CHECK_INT(sl_byte_token(token, 6), i % 256);
        CHECK(sl_byte_token(token, 5) < 0 && sl_byte_token(token, 7) < 0);
        for (int at = 0; at < 6; at++)
            for (const char *other = "/:@G`g"; *other; other++) { // beside the digits and letters
                char was = token[at];
                token[at] = *other;
                CHECK_INT(sl_byte_token(token, 6), -1);
                token[at] = was;
            }
    }
}

enum { MOST_TEXT = 2048 };

// Replaces each `from` in text by `to`.
static void replace_all(char *text, const char *from, const char *to) {
    char out[MOST_TEXT];
    size_t n = 0;
    for (const char *at = text; *at;) {
        int is_found = !strncmp(at, from, strlen(from));
        for (const char *c = to; is_found && *c; c++) out[n++] = *c;
        if (!is_found) out[n++] = *at;
        at += is_found ? strlen(from) : 1;
    }
    out[n] = 0;
    strcpy(text, out);
}

static void random_decoders(void) {
    static const char *const parts[] = {"a", "b", " ", "_", "ab", "\xe2\x96\x81", "<0x62>", "<0x20>", "<0x6>", ""};
    uint64_t seed = test_seed;
    for (int round = 0; round < 4000; round++) {
        int has_blank = round % 3 == 0, n_replace = (int)(3 * test_uniform(&seed)), by_bytes = test_uniform(&seed) < 0.5,
            fuses = test_uniform(&seed) < 0.5, strips = test_uniform(&seed) < 0.6, is_never = test_uniform(&seed) < 0.5,
            start = 1;
        const char *from[2] = {"a", "\xe2\x96\x81"}, *to[2] = {test_uniform(&seed) < 0.5 ? "_" : "", " "};
        json_t *steps = json_array(), *root;
        char want[MOST_TEXT] = "", token[64];
        sl_decoder *d = NULL;
        sl_text text = {0};
        for (int i = 0; i < n_replace; i++)
            json_array_append_new(
                steps, json_pack("{s:s,s:{s:s},s:s}", "type", "Replace", "pattern", "String", from[i], "content", to[i]));
        if (by_bytes) json_array_append_new(steps, json_pack("{s:s}", "type", "ByteFallback"));
        if (fuses) json_array_append_new(steps, json_pack("{s:s}", "type", "Fuse"));
        if (strips)
            json_array_append_new(steps,
                                  json_pack("{s:s,s:s,s:i,s:i}", "type", "Strip", "content", " ", "start", 1, "stop", 0));
        root = has_blank ? json_pack("{s:s,s:s,s:s}", "type", "Metaspace", "replacement", from[1], "prepend_scheme",
                                     is_never ? "never" : "always")
                         : json_pack("{s:s,s:O}", "type", "Sequence", "decoders", steps);
        CHECK_OK(sl_decoder_read(&(sl_part){"tokenizer.json", "decoder", root, &err}, &d), err);
        for (int k = (int)(8 * test_uniform(&seed)), first = 1; k > 0; k--, first = 0) {
            token[0] = 0;
            for (int i = (int)(4 * test_uniform(&seed)); i >= 0; i--) strcat(token, parts[(int)(10 * test_uniform(&seed))]);
            CHECK_OK(sl_decoder_append(d, token, strlen(token), &start, &text, &err), err);
            if (has_blank) replace_all(token, from[1], first && !is_never ? "" : " ");
            for (int i = 0; i < n_replace && !has_blank; i++) replace_all(token, from[i], to[i]);
            if (by_bytes && !has_blank && !strcmp(token, "<0x62>")) strcpy(token, "b");
            if (by_bytes && !has_blank && !strcmp(token, "<0x20>")) strcpy(token, " ");
            strcat(want, token + (strips && !fuses && !has_blank && token[0] == ' '));
        }
        const char *end = want + (strips && fuses && !has_blank && want[0] == ' ');
        if (text.n != strlen(end) || memcmp(text.n ? text.data : "", end, text.n))
            FAIL("round %d: \"%.*s\", expected \"%s\"", round, (int)text.n, text.data, end);
        sl_decoder_free(d), sl_text_free(&text);
        json_decref(root), json_decref(steps);
    }
}

// Which steps may follow which.
static void orders_of_decoders(void) {
    enum { REPLACE, BYTES, FUSE, STRIP, STRIP_TWO, STRIP_END, BYTE_LEVEL, METASPACE, N_STEPS };
    static const char *const steps[N_STEPS] = {"{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"b\"}",
                                               "{\"type\":\"ByteFallback\"}",
                                               "{\"type\":\"Fuse\"}",
                                               "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}",
                                               "{\"type\":\"Strip\",\"content\":\" \",\"start\":2,\"stop\":0}",
                                               "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":1}",
                                               "{\"type\":\"ByteLevel\"}",
                                               "{\"type\":\"Metaspace\",\"replacement\":\"_\"}"};
    uint64_t seed = test_seed;
    for (int round = 0; round < 3000; round++) {
        int n = 1 + (int)(4 * test_uniform(&seed)), count[N_STEPS] = {0}, is_good = 1;
        char text[1024] = "{\"type\":\"Sequence\",\"decoders\":[";
        for (int i = 0; i < n; i++) {
            int step = (int)(N_STEPS * test_uniform(&seed));
            is_good &= step != STRIP_TWO && step != STRIP_END && (step < BYTE_LEVEL || n == 1);
            if (step == REPLACE) is_good &= !count[BYTES] && !count[FUSE] && !count[STRIP];
            if (step == BYTES) is_good &= !count[FUSE] && !count[STRIP];
            if (step == STRIP) is_good &= !count[STRIP];
            count[step]++;
            sprintf(text + strlen(text), "%s%s", i ? "," : "", steps[step]);
        }
        strcat(text, "]}");
        sl_decoder *d = NULL;
        json_t *root = json_loads(text, 0, NULL);
        int rc = sl_decoder_read(&(sl_part){"tokenizer.json", "decoder", root, &err}, &d);
        if (rc != (is_good ? 0 : SL_ERR_UNSUPPORTED)) FAIL("%s: returned %d", text, rc);
        sl_decoder_free(d);
        json_decref(root);
    }
}

// The bytes of an id are those inside a text: with the blank that a text drops at its beginning. Other ids have none.
static void bytes_of_ids(void) {
    tokens_link("tests/vocabularies/llama/tokenizer.model", "tokenizer.model");
    sl_tokenizer *tok = tokens_load(test_tmp());
    sl_ids ids = {0};
    sl_text text = {0};
    CHECK_OK(sl_tokenize(tok, "a b", 3, 0, &ids, &err), err);
    CHECK(ids.n >= 2);
    for (size_t i = 0; i < ids.n; i++) CHECK_OK(sl_token_bytes(tok, ids.data[i], &text, &err), err);
    CHECK_STR(text.data, " a b");
    const int32_t none[] = {-1, sl_tokenizer_n_vocab(tok), INT32_MAX};
    for (int i = 0; i < 3; i++) CHECK_OK(sl_token_bytes(tok, none[i], &text, &err), err);
    CHECK_STR(text.data, " a b");
    sl_ids_free(&ids), sl_text_free(&text);
    sl_tokenizer_free(tok);
}

static const test_case cases[] = {
    {"orders_of_decoders", NEEDS_NOTHING, orders_of_decoders},
    {"bytes_of_ids", NEEDS_NOTHING, bytes_of_ids},
    {"byte_tokens", NEEDS_NOTHING, byte_tokens},
    {"random_decoders", NEEDS_NOTHING, random_decoders},
    {"goldens", NEEDS_NOTHING, goldens},
    {"other_texts", NEEDS_NOTHING, other_texts},
    {"blanks", NEEDS_NOTHING, blanks},
    {"mistral", NEEDS_NOTHING, mistral},
    {0},
};
extern const test_suite suite_pipelines;
const test_suite suite_pipelines = {"pipelines", cases};
