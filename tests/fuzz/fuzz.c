// tests/fuzz/fuzz.c - the table of targets and their helpers; see fuzz.h.
#include "tests/fuzz/fuzz.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const fuzz_target fuzz_targets[] = {
    {"safetensors", fuzz_safetensors},
    {"buckets", fuzz_buckets},
    {"model", fuzz_model},
    {"config", fuzz_config},
    {"gguf", fuzz_gguf},
    {"bpe", fuzz_bpe},
    {"tokenizer-model", fuzz_tokenizer_model},
    {"tekken", fuzz_tekken},
    {"pattern", fuzz_pattern},
    {"text", fuzz_text},
    {"chat", fuzz_chat},
    {"jinja", fuzz_jinja},
    {"conversation", fuzz_conversation},
    {"jsonl", fuzz_jsonl},
    {"questions", fuzz_questions},
    {"attn", fuzz_attn},
    {"results", fuzz_results},
    {"plot", fuzz_plot},
    {"api", fuzz_api},
    {"calls", fuzz_calls},
    {"grammar", fuzz_grammar},
    {"http", fuzz_http},
    {0},
};

const fuzz_target *fuzz_find(const char *name) {
    for (const fuzz_target *t = fuzz_targets; t->name; t++)
        if (!strcmp(t->name, name)) return t;
    return NULL;
}

// ---- files ----

const char *fuzz_path(const char *name) {
    static char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", fuzz_dir(), name);
    return path;
}

void fuzz_write(const char *name, const char *data, size_t n) {
    FILE *f = fopen(fuzz_path(name), "wb");
    FUZZ_CHECK(f && (n == 0 || fwrite(data, 1, n, f) == n) && !fclose(f), fuzz_path(name));
}

void fuzz_remove(const char *name) {
    unlink(fuzz_path(name));
}

void fuzz_remove_files(const char *const *names) {
    for (; *names; names++) fuzz_remove(*names);
}

// The name in a line "%%NAME" of the input. NULL: the line has another form, or the name is not in the list.
static const char *marked(const char *p, const char *end, const char *const *names, int *is_mark) {
    *is_mark = end - p >= 2 && p[0] == '%' && p[1] == '%';
    for (; *is_mark && *names; names++)
        if ((size_t)(end - p) == strlen(*names) + 2 && !memcmp(p + 2, *names, strlen(*names))) return *names;
    return NULL;
}

void fuzz_files(const char *data, size_t n, const char *first, const char *const *names) {
    const char *name = first, *from = data, *end = data + n;
    fuzz_remove_files(names);
    for (const char *p = data, *stop; p <= end; p = stop + 1) {
        int is_mark;
        stop = p < end ? memchr(p, '\n', (size_t)(end - p)) : NULL;
        if (!stop) stop = end;
        const char *next = marked(p, stop, names, &is_mark);
        if (is_mark || stop == end) { // the newline before a mark is part of the mark
            const char *last = !is_mark ? end : p > from ? p - 1 : p;
            if (name && !(is_mark && p == data)) fuzz_write(name, from, (size_t)(last - from));
            name = next;
            from = stop < end ? stop + 1 : end;
        }
    }
}

// ---- errors ----

// Bytes of the printable UTF-8 character at s; 0: s does not begin with one.
static int printable(const unsigned char *s) {
    if (s[0] >= 0x20 && s[0] < 0x7f) return 1;
    int n = s[0] >= 0xc2 && s[0] < 0xe0 ? 2 : s[0] >= 0xe0 && s[0] < 0xf0 ? 3 : s[0] >= 0xf0 && s[0] < 0xf5 ? 4 : 0;
    for (int i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if (n == 2 && s[0] == 0xc2 && s[1] < 0xa0)
        return 0; // control characters of Latin-1, like 0x9b, which begins a terminal command
    if (n == 3 && ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f))) return 0;
    if (n == 4 && ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))) return 0;
    return n;
}

int fuzz_ok(int rc, const sl_error *err) {
    const unsigned char *s = (const unsigned char *)err->message;
    FUZZ_CHECK(rc <= 0 && rc >= SL_ERR_NOT_FINITE, err->message);
    if (rc == 0) return 1;
    FUZZ_CHECK(err->code == (sl_err)rc && *s, err->message);
    for (int n; *s; s += n) {
        n = printable(s);
        FUZZ_CHECK(n > 0, err->message);
    }
    return 0;
}
