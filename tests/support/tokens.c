// tests/support/tokens.c - see tokens.h.
#include "tests/support/tokens.h"
#include "tests/test.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

double tokens_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

sl_tokenizer *tokens_load(const char *dir) {
    sl_error err = {0};
    sl_tokenizer *tok = NULL;
    CHECK_OK(sl_tokenizer_load(&SL_FOLDER(dir), &tok, &err), err);
    return tok;
}

void tokens_write(const char *name, const void *data, size_t n) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", test_tmp(), name);
    FILE *f = fopen(path, "wb");
    CHECK(f && (n == 0 || fwrite(data, 1, n, f) == n) && !fclose(f));
}

void tokens_link(const char *path, const char *name) {
    char whole[PATH_MAX], link[512];
    snprintf(link, sizeof link, "%s/%s", test_tmp(), name);
    CHECK(realpath(path, whole) && !symlink(whole, link));
}

void tokens_expect_ids(const sl_tokenizer *tok, const char *text, size_t n_text, unsigned flags, const int32_t *want,
                       size_t n) {
    sl_error err = {0};
    sl_ids got = {0};
    CHECK_OK(sl_tokenize(tok, text, n_text, flags, &got, &err), err);
    for (size_t i = 0; i < n || i < got.n; i++)
        if (i >= n || i >= got.n || got.data[i] != want[i])
            FAIL("%.200s: id %zu is %d (of %zu), expected %d (of %zu)", text, i, i < got.n ? got.data[i] : -1, got.n,
                 i < n ? want[i] : -1, n);
    sl_ids_free(&got);
}

void tokens_expect_text(const sl_tokenizer *tok, const int32_t *ids, size_t n_ids, const char *want, size_t n) {
    sl_error err = {0};
    sl_text whole = {0};
    CHECK_OK(sl_detokenize(tok, ids, n_ids, 1, &whole, &err), err);
    if (whole.n != n || memcmp(whole.data, want, n))
        FAIL("decoded to \"%.200s\" (%zu bytes), expected \"%.200s\" (%zu bytes)", whole.data, whole.n, want, n);
    sl_text_free(&whole);
}

// ---- vectors ----

static size_t ids_of(const json_t *list, int32_t *ids, size_t cap) {
    CHECK(json_array_size(list) <= cap);
    for (size_t i = 0; i < json_array_size(list); i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return json_array_size(list);
}

static const json_t *first_of(const json_t *row, const char *a, const char *b,
                              const char *c) { // the first of these fields that the row has
    const json_t *v = json_object_get(row, a);
    if (!v) v = json_object_get(row, b);
    return v ? v : json_object_get(row, c);
}

int tokens_check_vectors(const sl_tokenizer *tok, const char *path, unsigned first_flags, const char *other,
                         unsigned other_flags, const char *decoded) {
    char *line = NULL;
    size_t cap = 0;
    int count = 0;
    FILE *f = fopen(path, "r");
    if (!f) FAIL("%s: cannot be opened", path);
    for (ssize_t length; (length = getline(&line, &cap, f)) > 0; count++) {
        int32_t ids[4096], others[4096];
        json_error_t e;
        json_t *v = json_loadb(line, (size_t)length, JSON_ALLOW_NUL, &e);
        if (!v) FAIL("%s: line %d: %s", path, count + 1, e.text);
        const json_t *t = json_object_get(v, "text"), *d = decoded ? first_of(v, decoded, "decoded", "text") : NULL;
        const char *text = json_string_value(t);
        size_t n = json_string_length(t), n_ids = ids_of(json_object_get(v, "ids"), ids, 4096),
               n_others = ids_of(first_of(v, other, "ids", "ids"), others, 4096);
        tokens_expect_ids(tok, text, n, first_flags, ids, n_ids);
        tokens_expect_ids(tok, text, n, other_flags, others, n_others);
        if (d) tokens_expect_text(tok, ids, n_ids, json_string_value(d), json_string_length(d));
        json_decref(v);
    }
    free(line), fclose(f);
    return count;
}

// ---- streaming ----

static size_t whole_characters(const char *s, size_t n) { // number of bytes before an unfinished last character
    size_t back = 0;
    while (back < 3 && back < n && ((unsigned char)s[n - 1 - back] & 0xc0) == 0x80) back++;
    unsigned char lead = back < n ? (unsigned char)s[n - 1 - back] : 0;
    size_t need = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
    return need > back + 1 ? n - back - 1 : n;
}

// After each token the stream must have written the whole characters of the decoded text, and nothing more.
void tokens_check_stream(const sl_tokenizer *tok, const char *text, size_t n) {
    sl_error err = {0};
    sl_ids ids = {0};
    sl_text streamed = {0}, whole = {0};
    sl_detok_stream s = sl_detok_begin(tok, 1, 1);
    CHECK_OK(sl_tokenize(tok, text, n, 0, &ids, &err), err);
    CHECK(ids.n > 12);
    for (size_t i = 0; i < ids.n; i++) {
        CHECK_OK(sl_detok_next(&s, ids.data[i], &streamed, &err), err);
        whole.n = 0;
        CHECK_OK(sl_detokenize(tok, ids.data, i + 1, 1, &whole, &err), err);
        CHECK_INT(streamed.n, whole_characters(whole.data, whole.n));
        CHECK(!streamed.n || !memcmp(streamed.data, whole.data, streamed.n));
    }
    CHECK_OK(sl_detok_end(&s, &streamed, &err), err);
    CHECK_INT(streamed.n, whole.n);
    sl_ids_free(&ids);
    sl_text_free(&streamed);
    sl_text_free(&whole);
}

// ---- speed ----

// Words of the vocabulary with a frequency proportional to 1 / id. One word in six is joined from two, like a rare word.
static void make_prose(const sl_tokenizer *tok, int end, sl_text *text, size_t size) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz";
    uint64_t rng = test_seed;
    sl_error err = {0};
    for (int glued = 0; text->n < size;) {
        sl_text word = {0};
        int32_t id = (int32_t)(256 * exp(test_uniform(&rng) * log(end / 256.0)));
        CHECK_OK(sl_detokenize(tok, &id, 1, 0, &word, &err), err);
        if (word.n > 1 && (word.data[0] == ' ') != glued && strspn(word.data + 1, letters) == word.n - 1) {
            CHECK_OK(sl_text_append(text, word.data, word.n, &err), err);
            glued = test_uniform(&rng) < 1.0 / 6;
            if (!glued && test_uniform(&rng) < 0.1) CHECK_OK(sl_text_append(text, ",", 1, &err), err);
        }
        sl_text_free(&word);
    }
}

double tokens_prose_rate(const sl_tokenizer *tok, int end, size_t size) {
    sl_error err = {0};
    sl_text text = {0};
    double best = 1e9;
    make_prose(tok, end, &text, size);
    for (int i = 0; i < 3; i++) {
        sl_ids ids = {0};
        double start = tokens_now();
        CHECK_OK(sl_tokenize(tok, text.data, text.n, 0, &ids, &err), err);
        if (tokens_now() - start < best) best = tokens_now() - start;
        sl_ids_free(&ids);
    }
    double rate = (double)text.n / best / 1e6;
    sl_text_free(&text);
    return rate;
}
