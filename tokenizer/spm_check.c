// tokenizer/spm_check.c - checks a SentencePiece model before the library reads it. The library does not check the file. It
// follows the trie of normalisation rules without a bound. It writes more matches than its arrays hold. It throws if a piece
// holds a NUL. The file is a protobuf (ModelProto of sentencepiece_model.proto). This reader checks the fields that the library
// uses.
#include "tokenizer/tokenizer_internal.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_PIECE = 1024,      // bytes
    MOST_RULES = 32,        // rules that match at one place: the library's array of matches
    MOST_USER_DEFINED = 64, // user-defined pieces that match at one place: another array of the library
    MOST_REPLACEMENT = 255, // bytes
    LABELS = 256,
};
enum { NORMAL = 1, USER_DEFINED = 4, LAST_TYPE = 6, LAST_MODEL_TYPE = 4 };

typedef struct bytes {
    const unsigned char *at;
    size_t n;
} bytes;

typedef struct checker {
    const char *file;
    const unsigned char *start; // of the file, for messages
    sl_error *err;
    sl_spm_model *out;
    bytes charsmap;      // the rules of the normaliser; the last field counts
    bytes *user_defined; // [n_user_defined]
    size_t n_user_defined, cap_user_defined;
    int n_pieces;
    int add_dummy_prefix, remove_extra_whitespaces;
} checker;

static int no_memory(const checker *c) {
    return sl_fail(c->err, SL_ERR_MEMORY, "%s: out of memory", c->file);
}

// ---- protobuf ----

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

typedef struct field {
    uint64_t number;
    int type;
    uint64_t value; // a number, or the length of BYTES
    bytes data;     // the content of BYTES
    bytes whole;    // the field with its tag
} field;

static int malformed(const checker *c, const unsigned char *at, const char *expected) {
    return sl_fail(c->err, SL_ERR_FORMAT,
                   "%s: neither tiktoken ranks nor a SentencePiece model: byte %zu: expected %s (truncated?)", c->file,
                   (size_t)(at - c->start), expected);
}

static int take_varint(const checker *c, bytes *from, uint64_t *out) {
    const unsigned char *start = from->at;
    *out = 0;
    for (int shift = 0; from->n > 0 && shift < 64; shift += 7) {
        unsigned char byte = *from->at++;
        from->n--;
        *out |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return 0;
    }
    return malformed(c, start, "a number of at most 10 bytes");
}

static int take_fixed(const checker *c, bytes *from, size_t size, uint64_t *out) {
    if (from->n < size) return malformed(c, from->at, size == 4 ? "4 bytes" : "8 bytes");
    *out = 0;
    for (size_t i = size; i-- > 0;) *out = *out << 8 | from->at[i];
    from->at += size, from->n -= size;
    return 0;
}

static int take_field(const checker *c, bytes *from, field *f) {
    const unsigned char *start = from->at;
    uint64_t tag;
    int rc = take_varint(c, from, &tag);
    if (rc) return rc;
    *f = (field){.number = tag >> 3, .type = (int)(tag & 7)};
    if (tag > UINT32_MAX || f->number == 0) return malformed(c, start, "a field number from 1 to 536870911");
    if (f->type == VARINT) {
        rc = take_varint(c, from, &f->value);
    } else if (f->type == FIXED32 || f->type == FIXED64) {
        rc = take_fixed(c, from, f->type == FIXED32 ? 4 : 8, &f->value);
    } else if (f->type == BYTES) {
        rc = take_varint(c, from, &f->value);
        if (!rc && f->value > from->n) rc = malformed(c, start, "a field that ends where its message ends, or before");
        if (rc) return rc;
        f->data = (bytes){from->at, (size_t)f->value};
        from->at += f->data.n, from->n -= f->data.n;
    } else {
        rc = malformed(c, start, "a field of type 0, 1, 2 or 5");
    }
    f->whole = (bytes){start, (size_t)(from->at - start)};
    return rc;
}

static int expect_type(const checker *c, const field *f, int type, const char *name) {
    if (f->type == type) return 0;
    return sl_fail(c->err, SL_ERR_FORMAT,
                   "%s: neither tiktoken ranks nor a SentencePiece model: byte %zu: field %s has type %d, expected %d", c->file,
                   (size_t)(f->whole.at - c->start), name, f->type, type);
}

// ---- the trie of the normaliser's rules ----

// A double array. Unit i holds a label (the last byte of the path from the root), a flag (a rule ends at this unit), and an
// offset to the base of the children. The children are the units base ^ byte. The value of a rule is the unit at the base.
// Units may share a base.
typedef struct trie {
    const unsigned char *units; // [n] of 4 bytes each, little-endian
    uint32_t n;
    bytes replacements; // NUL-terminated texts; a value is an offset into them
    int32_t *child;     // [n] by base: the next child to visit, -1: none
    int32_t *sibling;   // [n] by unit: the next unit of the same base
    int32_t *open;      // [n] the bases from the root to the visited base
    uint8_t *state;     // [n] by base: NEW, OPEN, DONE
    uint8_t *depth;     // [n] by base: the most rules on one way down
} trie;
enum { NEW, OPEN, DONE };

static uint32_t unit_at(const trie *t, size_t i) {
    const unsigned char *u = t->units + 4 * i;
    return u[0] | u[1] << 8 | u[2] << 16 | (uint32_t)u[3] << 24;
}
static int ends_rule(uint32_t unit) {
    return unit >> 8 & 1;
}
static uint32_t base_of(uint32_t i, uint32_t unit) {
    return i ^ (unit >> 10 << (unit >> 9 & 1 ? 8 : 0));
}

static int trie_new(const checker *c, trie *t) {
    size_t n = t->n;
    t->child = malloc(n * sizeof *t->child);
    t->sibling = malloc(n * sizeof *t->sibling);
    t->open = malloc(n * sizeof *t->open);
    t->state = calloc(n, 1);
    t->depth = calloc(n, 1);
    if (!t->child || !t->sibling || !t->open || !t->state || !t->depth) return no_memory(c);
    memset(t->child, 0xff, n * sizeof *t->child);
    for (uint32_t i = 0; i < t->n; i++) {
        uint32_t unit = unit_at(t, i), base = i ^ (unit & 0xff);
        if (unit >> 31 || base >= t->n) continue; // a value, or a label without a base
        t->sibling[i] = t->child[base];
        t->child[base] = (int32_t)i;
    }
    return 0;
}

static void trie_free(trie *t) {
    free(t->child), free(t->sibling), free(t->open), free(t->state), free(t->depth);
}

// Returns the base of unit i's children. Any byte may follow in a text, so all units of the base must exist.
static int check_base(const checker *c, const trie *t, uint32_t i, uint32_t *base) {
    *base = base_of(i, unit_at(t, i));
    if ((*base | (LABELS - 1)) < t->n) return 0;
    return sl_fail(c->err, SL_ERR_FORMAT, "%s: precompiled_charsmap: unit %u leads to units up to %u, the trie has %u", c->file,
                   i, *base | (LABELS - 1), t->n);
}

static int check_replacement(const checker *c, const trie *t, uint32_t base) {
    uint32_t at = unit_at(t, base) & INT32_MAX;
    int grown = 0;
    if (at >= t->replacements.n)
        return sl_fail(c->err, SL_ERR_FORMAT, "%s: precompiled_charsmap: value %u at unit %u, the replacements have %zu bytes",
                       c->file, at, base, t->replacements.n);
    for (size_t i = at; i < t->replacements.n && i - at <= MOST_REPLACEMENT; i++) {
        unsigned char byte = t->replacements.at[i];
        if (!byte) {
            if (grown > c->out->growth) c->out->growth = grown;
            return 0;
        }
        grown += byte == ' ' ? 3 : 1; // a blank becomes U+2581
    }
    return sl_fail(c->err, SL_ERR_FORMAT, "%s: precompiled_charsmap: the replacement at byte %u has no end within %d bytes",
                   c->file, at, MOST_REPLACEMENT);
}

static void deepen(trie *t, uint32_t base, int depth) {
    if (depth > UINT8_MAX) depth = UINT8_MAX;
    if (depth > t->depth[base]) t->depth[base] = (uint8_t)depth;
}

// Visits every base that a text can reach, each once.
static int walk(const checker *c, trie *t) {
    uint32_t root, n_open = 1;
    int rc = check_base(c, t, 0, &root);
    if (rc) return rc;
    t->open[0] = (int32_t)root;
    t->state[root] = OPEN;
    while (n_open > 0) {
        uint32_t base = (uint32_t)t->open[n_open - 1], next;
        int32_t i = t->child[base];
        if (i < 0) {
            t->state[base] = DONE;
            n_open--;
            continue;
        }
        rc = check_base(c, t, (uint32_t)i, &next);
        if (!rc && ends_rule(unit_at(t, (size_t)i))) rc = check_replacement(c, t, next);
        if (rc) return rc;
        if (t->state[next] == OPEN)
            return sl_fail(c->err, SL_ERR_FORMAT, "%s: precompiled_charsmap: unit %d is part of a loop", c->file, i);
        if (t->state[next] == DONE) {
            deepen(t, base, t->depth[next] + ends_rule(unit_at(t, (size_t)i)));
            t->child[base] = t->sibling[i];
        } else {
            t->state[next] = OPEN;
            t->open[n_open++] = (int32_t)next;
        }
    }
    if (t->depth[root] > MOST_RULES)
        return sl_fail(c->err, SL_ERR_FORMAT,
                       "%s: precompiled_charsmap: %d rules or more match at one place, expected at most %d", c->file,
                       t->depth[root], MOST_RULES);
    return 0;
}

// The charsmap: the size of the trie in bytes (4 bytes), the trie, the replacements.
static int check_charsmap(const checker *c) {
    bytes rest = c->charsmap;
    uint64_t size;
    if (rest.n == 0) return 0;
    if (rest.n < 4)
        return sl_fail(c->err, SL_ERR_FORMAT, "%s: precompiled_charsmap: %zu bytes, expected 4 or more", c->file, rest.n);
    int rc = take_fixed(c, &rest, 4, &size);
    if (rc) return rc;
    if (size % 4 || size < 4 * LABELS || size > rest.n)
        return sl_fail(c->err, SL_ERR_FORMAT,
                       "%s: precompiled_charsmap: the trie says it has %llu bytes, expected a multiple of 4 from %d to %zu",
                       c->file, (unsigned long long)size, 4 * LABELS, rest.n);
    trie t = {.units = rest.at, .n = (uint32_t)(size / 4), .replacements = {rest.at + size, rest.n - size}};
    rc = trie_new(c, &t);
    if (!rc) rc = walk(c, &t);
    trie_free(&t);
    return rc;
}

// ---- pieces ----

static int push_user_defined(checker *c, bytes text) {
    if (c->n_user_defined == c->cap_user_defined) {
        size_t cap = c->cap_user_defined ? 2 * c->cap_user_defined : 64;
        bytes *grown = realloc(c->user_defined, cap * sizeof *grown);
        if (!grown) return no_memory(c);
        c->user_defined = grown;
        c->cap_user_defined = cap;
    }
    c->user_defined[c->n_user_defined++] = text;
    return 0;
}

static int check_piece(checker *c, bytes from) {
    bytes text = {0};
    uint64_t type = NORMAL;
    float score = 0;
    int i = c->n_pieces++, rc = 0;
    while (!rc && from.n > 0) {
        field f;
        rc = take_field(c, &from, &f);
        if (!rc && f.number == 1) rc = expect_type(c, &f, BYTES, "piece"), text = f.data;
        if (!rc && f.number == 2) {
            uint32_t raw = (uint32_t)f.value;
            rc = expect_type(c, &f, FIXED32, "score");
            memcpy(&score, &raw, sizeof score);
        }
        if (!rc && f.number == 3) rc = expect_type(c, &f, VARINT, "type"), type = f.value;
    }
    if (rc) return rc;
    if (text.n == 0 || text.n > MOST_PIECE)
        return sl_fail(c->err, SL_ERR_FORMAT, "%s: piece %d has %zu bytes, expected 1 to %d", c->file, i, text.n, MOST_PIECE);
    if (memchr(text.at, 0, text.n))
        return sl_fail(c->err, SL_ERR_FORMAT, "%s: piece %d holds a NUL byte, expected none", c->file, i);
    if (type < NORMAL || type > LAST_TYPE)
        return sl_fail(c->err, SL_ERR_FORMAT, "%s: piece %d has type %llu, expected %d to %d", c->file, i,
                       (unsigned long long)type, NORMAL, LAST_TYPE);
    if (!isfinite(score))
        return sl_fail(c->err, SL_ERR_FORMAT, "%s: piece %d has the score %g, expected a finite number", c->file, i, score);
    return type == USER_DEFINED ? push_user_defined(c, text) : 0;
}

static int by_text(const void *a, const void *b) { // a text comes before the texts that begin with it
    const bytes *x = a, *y = b;
    int order = memcmp(x->at, y->at, x->n < y->n ? x->n : y->n);
    return order ? order : (x->n > y->n) - (x->n < y->n);
}

static int check_user_defined(const checker *c) {
    const bytes *chain[MOST_USER_DEFINED]; // each begins the next
    int n = 0;
    if (c->n_user_defined > 0) qsort(c->user_defined, c->n_user_defined, sizeof *c->user_defined, by_text);
    for (size_t i = 0; i < c->n_user_defined; i++) {
        const bytes *text = &c->user_defined[i];
        while (n > 0 && (chain[n - 1]->n > text->n || memcmp(chain[n - 1]->at, text->at, chain[n - 1]->n))) n--;
        if (n == MOST_USER_DEFINED)
            return sl_fail(c->err, SL_ERR_FORMAT,
                           "%s: more than %d user-defined pieces match at one place, the last is \"%.*s\"", c->file,
                           MOST_USER_DEFINED, (int)text->n, (const char *)text->at);
        chain[n++] = text;
    }
    return 0;
}

// ---- the model ----

static int check_trainer(const checker *c, bytes from) {
    int rc = 0;
    while (!rc && from.n > 0) {
        field f;
        rc = take_field(c, &from, &f);
        if (rc || f.number != 3) continue;
        rc = expect_type(c, &f, VARINT, "model_type");
        if (!rc && (f.value < 1 || f.value > LAST_MODEL_TYPE))
            rc = sl_fail(c->err, SL_ERR_FORMAT, "%s: field model_type is %llu, expected 1 to %d", c->file,
                         (unsigned long long)f.value, LAST_MODEL_TYPE);
    }
    return rc;
}

static int check_normalizer(checker *c, bytes from) {
    int rc = 0;
    while (!rc && from.n > 0) {
        field f;
        rc = take_field(c, &from, &f);
        if (!rc && f.number == 2) rc = expect_type(c, &f, BYTES, "precompiled_charsmap"), c->charsmap = f.data;
        if (!rc && f.number == 3) rc = expect_type(c, &f, VARINT, "add_dummy_prefix"), c->add_dummy_prefix = f.value != 0;
        if (!rc && f.number == 4)
            rc = expect_type(c, &f, VARINT, "remove_extra_whitespaces"), c->remove_extra_whitespaces = f.value != 0;
    }
    return rc;
}

static int check_denormalizer(const checker *c, bytes from) {
    int rc = 0;
    while (!rc && from.n > 0) {
        field f;
        rc = take_field(c, &from, &f);
        if (!rc && f.number == 2 && (f.type != BYTES || f.data.n > 0))
            rc = sl_fail(c->err, SL_ERR_UNSUPPORTED, "%s: field denormalizer_spec has rules, only none are supported", c->file);
    }
    return rc;
}

static int check_model(checker *c, bytes from) {
    static const char *const names[] = {"", "pieces", "trainer_spec", "normalizer_spec", "self_test_data", "denormalizer_spec"};
    int rc = 0;
    while (!rc && from.n > 0) {
        field f;
        rc = take_field(c, &from, &f);
        if (rc || f.number > 5) continue;
        rc = expect_type(c, &f, BYTES, names[f.number]);
        if (!rc && f.number == 1) rc = check_piece(c, f.data);
        if (!rc && f.number == 2) rc = check_trainer(c, f.data);
        if (!rc && f.number == 3) rc = check_normalizer(c, f.data);
        if (!rc && f.number == 5) rc = check_denormalizer(c, f.data);
        // Leave out the samples of self_test_data: the library would encode them at load, and print differences.
        if (!rc && f.number <= 3) rc = sl_text_append(&c->out->proto, (const char *)f.whole.at, f.whole.n, c->err);
    }
    if (!rc && c->n_pieces == 0)
        rc =
            sl_fail(c->err, SL_ERR_FORMAT, "%s: neither tiktoken ranks nor a SentencePiece model: it holds no pieces", c->file);
    if (!rc) rc = check_user_defined(c);
    return rc ? rc : check_charsmap(c);
}

int sl_spm_check(const char *file, const char *data, size_t n, sl_spm_model *out, sl_error *err) {
    *out = (sl_spm_model){.growth = 3}; // a blank, or a byte that is not UTF-8
    checker c = {.file = file,
                 .start = (const unsigned char *)data,
                 .err = err,
                 .out = out,
                 .add_dummy_prefix = 1,
                 .remove_extra_whitespaces = 1};
    int rc = check_model(&c, (bytes){(const unsigned char *)data, n});
    out->strip = c.remove_extra_whitespaces ? SL_SPM_STRIP_ALL : c.add_dummy_prefix ? SL_SPM_STRIP_ONE : SL_SPM_STRIP_NONE;
    out->add_dummy_prefix = c.add_dummy_prefix;
    free(c.user_defined);
    return rc;
}
