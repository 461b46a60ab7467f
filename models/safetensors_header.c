// models/safetensors_header.c - a strict parser of the JSON header of one safetensors file.
//
// The format is a small part of JSON: an object of tensors and an optional object __metadata__ of strings. Each tensor is an
// object of dtype, shape and data_offsets. Anything else is an error with its byte position. The parser allocates memory for
// names, entries and metadata.
#include "models/safetensors_header.h"

#include <stdlib.h>
#include <string.h>

typedef struct parser {
    const char *file, *text;
    size_t at, n;
    sl_error *err;
} parser;

static int fail(parser *p, const char *what) {
    return sl_fail(p->err, SL_ERR_FORMAT, "%s: header, byte %zu: expected %s", p->file, p->at, what);
}

static void skip_blanks(parser *p) {
    while (p->at < p->n && strchr(" \t\r\n", p->text[p->at]) && p->text[p->at]) p->at++;
}

static int next_is(parser *p, char c) { // 1: c is next, and is consumed
    skip_blanks(p);
    if (p->at >= p->n || p->text[p->at] != c) return 0;
    p->at++;
    return 1;
}

static int hex4(const char *s) {
    int x = 0;
    for (int i = 0; i < 4; i++) {
        int c = s[i], d = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (d < 0) return -1;
        x = x * 16 + d;
    }
    return x;
}

static int put_utf8(char *to, unsigned c) {
    if (c < 0x80) return to[0] = (char)c, 1;
    if (c < 0x800) return to[0] = (char)(0xc0 | c >> 6), to[1] = (char)(0x80 | (c & 63)), 2;
    if (c < 0x10000)
        return to[0] = (char)(0xe0 | c >> 12), to[1] = (char)(0x80 | (c >> 6 & 63)), to[2] = (char)(0x80 | (c & 63)), 3;
    to[0] = (char)(0xf0 | c >> 18), to[1] = (char)(0x80 | (c >> 12 & 63)), to[2] = (char)(0x80 | (c >> 6 & 63));
    return to[3] = (char)(0x80 | (c & 63)), 4;
}

// Parses the digits of \uXXXX, and the second half of a surrogate pair. Returns the character; -1: NUL, half a pair, no hex
// digits.
static int take_unicode(parser *p) {
    int x = p->n - p->at >= 4 ? hex4(p->text + p->at) : -1;
    if (x <= 0 || (x >= 0xdc00 && x < 0xe000)) return -1;
    p->at += 4;
    if (x < 0xd800 || x >= 0xdc00) return x;
    int low = p->n - p->at >= 6 && p->text[p->at] == '\\' && p->text[p->at + 1] == 'u' ? hex4(p->text + p->at + 2) : -1;
    if (low < 0xdc00 || low >= 0xe000) return -1;
    p->at += 6;
    return 0x10000 + ((x - 0xd800) << 10) + (low - 0xdc00);
}

// Parses a string into out[0..cap), NUL-terminated. Decodes escapes. Refuses NUL and half a surrogate pair.
static int parse_string(parser *p, char *out, size_t cap) {
    size_t n = 0;
    if (!next_is(p, '"')) return fail(p, "a string");
    for (;;) {
        if (p->at >= p->n) return fail(p, "the end of a string");
        unsigned char c = (unsigned char)p->text[p->at++];
        char bytes[4] = {(char)c};
        int len = 1;
        if (c == '"') break;
        if (c < 0x20) return fail(p, "no control character in a string");
        if (c == '\\') {
            static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
            char e = p->at < p->n ? p->text[p->at++] : 0;
            const char *hit = e ? strchr(from, e) : NULL;
            if (hit) {
                bytes[0] = to[hit - from];
            } else {
                int x = e == 'u' ? take_unicode(p) : -1;
                if (x < 0) return fail(p, "a known escape");
                len = put_utf8(bytes, (unsigned)x);
            }
        }
        if (n + len >= cap) return fail(p, "a shorter string");
        memcpy(out + n, bytes, len);
        n += len;
    }
    out[n] = 0;
    return 0;
}

static int parse_number(parser *p, int64_t *out) {
    skip_blanks(p);
    size_t start = p->at;
    uint64_t x = 0;
    while (p->at < p->n && p->text[p->at] >= '0' && p->text[p->at] <= '9') {
        x = x * 10 + (uint64_t)(p->text[p->at] - '0');
        if (x > INT64_MAX / 16) return fail(p, "a smaller number");
        p->at++;
    }
    if (p->at == start) return fail(p, "a non-negative integer");
    if (p->at - start > 1 && p->text[start] == '0') return fail(p, "a number without leading zeros");
    *out = (int64_t)x;
    return 0;
}

static int parse_list(parser *p, int64_t *out, int cap, int *n) {
    *n = 0;
    if (!next_is(p, '[')) return fail(p, "'['");
    if (next_is(p, ']')) return 0;
    do {
        if (*n == cap) return fail(p, "a shorter list");
        int rc = parse_number(p, &out[(*n)++]);
        if (rc) return rc;
    } while (next_is(p, ','));
    return next_is(p, ']') ? 0 : fail(p, "',' or ']'");
}

static int take_null(parser *p) {
    skip_blanks(p);
    if (p->n - p->at < 4 || memcmp(p->text + p->at, "null", 4)) return 0;
    p->at += 4;
    return 1;
}

static int out_of_memory(const parser *p) {
    return sl_fail(p->err, SL_ERR_MEMORY, "%s: header: out of memory", p->file);
}

// Adds a copy of `text` to h->metadata: a name, or the text of the name before.
static int push_metadata(parser *p, sl_header *h, int i, const char *text) {
    if (i == 0) {
        char **grown = realloc(h->metadata, 2 * ((size_t)h->n_metadata + 1) * sizeof *grown);
        if (!grown) return out_of_memory(p);
        h->metadata = grown;
        grown[2 * h->n_metadata] = grown[2 * h->n_metadata + 1] = NULL;
        h->n_metadata++;
    }
    char *copy = strdup(text);
    h->metadata[2 * (h->n_metadata - 1) + i] = copy;
    return copy ? 0 : out_of_memory(p);
}

static int parse_metadata(parser *p, sl_header *h) { // null counts as not given
    static const size_t CAP = 1 << 20;
    if (take_null(p)) return 0;
    char *text = malloc(CAP);
    int rc = text ? 0 : out_of_memory(p);
    if (!rc && !next_is(p, '{')) rc = fail(p, "'{' after __metadata__");
    if (!rc && !next_is(p, '}')) {
        do {
            for (int i = 0; !rc && i < 2; i++) {
                rc = parse_string(p, text, CAP);
                if (!rc && i == 0 && !next_is(p, ':')) rc = fail(p, "':'");
                if (!rc) rc = push_metadata(p, h, i, text);
            }
        } while (!rc && next_is(p, ','));
        if (!rc && !next_is(p, '}')) rc = fail(p, "',' or '}'");
    }
    free(text);
    return rc;
}

// Parses {"dtype": "BF16", "shape": [..], "data_offsets": [begin, end]}, in any order, each field once.
static int parse_tensor(parser *p, sl_header_entry *t) {
    enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4 };
    int seen = 0, rc = 0, n;
    if (!next_is(p, '{')) return fail(p, "'{'");
    do {
        char key[32];
        int64_t offsets[2];
        rc = parse_string(p, key, sizeof key);
        if (rc) return rc;
        int bit = !strcmp(key, "dtype") ? DTYPE : !strcmp(key, "shape") ? SHAPE : !strcmp(key, "data_offsets") ? OFFSETS : 0;
        if (!bit || (seen & bit)) return fail(p, "dtype, shape and data_offsets, each once");
        seen |= bit;
        if (!next_is(p, ':')) return fail(p, "':'");
        if (bit == DTYPE) rc = parse_string(p, t->dtype, sizeof t->dtype);
        if (bit == SHAPE) rc = parse_list(p, t->dims, SL_MAX_DIMS, &t->n_dims);
        if (bit == OFFSETS) {
            rc = parse_list(p, offsets, 2, &n);
            if (!rc && n != 2) return fail(p, "two data_offsets");
            if (!rc) t->begin = offsets[0], t->end = offsets[1];
        }
        if (rc) return rc;
    } while (next_is(p, ','));
    if (!next_is(p, '}')) return fail(p, "',' or '}'");
    return seen == (DTYPE | SHAPE | OFFSETS) ? 0 : fail(p, "dtype, shape and data_offsets");
}

static int push_entry(parser *p, sl_header *h, const sl_header_entry *t) {
    if (h->n == h->cap) {
        int cap = h->cap ? 2 * h->cap : 64;
        sl_header_entry *grown = realloc(h->entries, cap * sizeof *grown);
        if (!grown) return out_of_memory(p);
        h->entries = grown;
        h->cap = cap;
    }
    h->entries[h->n++] = *t;
    return 0;
}

static int parse_entries(parser *p, sl_header *h) {
    if (!next_is(p, '{')) return fail(p, "'{'");
    if (next_is(p, '}')) return 0;
    do {
        char name[512];
        sl_header_entry t = {0};
        int rc = parse_string(p, name, sizeof name);
        if (!rc && !next_is(p, ':')) rc = fail(p, "':'");
        if (!rc && !strcmp(name, "__metadata__")) {
            rc = parse_metadata(p, h);
            if (rc) return rc;
            continue;
        }
        if (!rc) rc = parse_tensor(p, &t);
        if (rc) return rc;
        t.name = strdup(name);
        rc = t.name ? push_entry(p, h, &t) : out_of_memory(p);
        if (rc) {
            free(t.name);
            return rc;
        }
    } while (next_is(p, ','));
    return next_is(p, '}') ? 0 : fail(p, "',' or '}'");
}

int sl_header_parse(const char *file, const char *text, size_t n, sl_header *out, sl_error *err) {
    parser p = {.file = file, .text = text, .n = n, .err = err};
    *out = (sl_header){0};
    int rc = parse_entries(&p, out);
    skip_blanks(&p); // the format pads the header with blanks
    if (!rc && p.at != n) rc = fail(&p, "nothing after the last '}'");
    if (rc) sl_header_free(out);
    return rc;
}

void sl_header_free(sl_header *h) {
    for (int i = 0; i < h->n; i++) free(h->entries[i].name);
    free(h->entries);
    for (int i = 0; i < 2 * h->n_metadata; i++) free(h->metadata[i]);
    free(h->metadata);
    *h = (sl_header){0};
}
