// grammar/key_sets.c - sorted sets of 64-bit keys that are found again by content.
#include "grammar/grammar_internal.h"

#include <stdlib.h>
#include <string.h>

int sl_keys_push(sl_keys *keys, uint64_t key, sl_error *err) {
    if (keys->n == keys->cap) {
        size_t cap = keys->cap ? 2 * keys->cap : 64;
        uint64_t *grown = realloc(keys->data, cap * sizeof *grown);
        if (!grown) return sl_fail(err, SL_ERR_MEMORY, "%zu places in a grammar: out of memory", cap);
        keys->data = grown;
        keys->cap = cap;
    }
    keys->data[keys->n++] = key;
    return 0;
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

void sl_keys_sort(sl_keys *keys) {
    size_t n = 0;
    if (keys->n > 1) qsort(keys->data, keys->n, sizeof *keys->data, by_value);
    for (size_t i = 0; i < keys->n; i++)
        if (i == 0 || keys->data[i] != keys->data[n - 1]) keys->data[n++] = keys->data[i];
    keys->n = n;
}

// The keys are numbers that this program gives, so a grammar cannot choose keys that collide.
static uint32_t hash(const uint64_t *keys, size_t n) {
    uint64_t h = n;
    for (size_t i = 0; i < n; i++) {
        h = (h ^ keys[i]) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return (uint32_t)(h >> 32);
}

static uint32_t *find_slot(sl_key_sets *s, const uint64_t *keys, size_t n) {
    uint32_t mask = s->n_slots - 1, i = hash(keys, n) & mask;
    for (; s->slots[i]; i = (i + 1) & mask) {
        uint32_t at = s->from[s->slots[i] - 1], size = s->from[s->slots[i]] - at;
        if (size == n && (n == 0 || !memcmp(s->all.data + at, keys, n * sizeof *keys))) break;
    }
    return &s->slots[i];
}

static int grow(sl_key_sets *s, sl_error *err) {
    uint32_t cap = s->cap ? 2 * s->cap : 64;
    uint32_t *from = realloc(s->from, ((size_t)cap + 1) * sizeof *from), *slots = calloc(2 * (size_t)cap, sizeof *slots);
    if (from) s->from = from;
    if (!from || !slots) return free(slots), sl_fail(err, SL_ERR_MEMORY, "%u states of a grammar: out of memory", cap);
    free(s->slots);
    s->from[0] = 0;
    s->slots = slots;
    s->cap = cap;
    s->n_slots = 2 * cap;
    for (uint32_t i = 0; i < s->n; i++) *find_slot(s, s->all.data + s->from[i], s->from[i + 1] - s->from[i]) = i + 1;
    return 0;
}

int sl_key_sets_find(sl_key_sets *s, const sl_keys *keys, uint32_t *id, sl_error *err) {
    int rc = s->n == s->cap ? grow(s, err) : 0;
    if (rc) return rc;
    uint32_t *slot = find_slot(s, keys->data, keys->n);
    if (!*slot) {
        size_t before = s->all.n;
        for (size_t i = 0; !rc && i < keys->n; i++) rc = sl_keys_push(&s->all, keys->data[i], err);
        if (rc) s->all.n = before;
        if (rc) return rc;
        s->from[s->n + 1] = (uint32_t)s->all.n;
        *slot = ++s->n;
    }
    *id = *slot - 1;
    return 0;
}

void sl_key_sets_free(sl_key_sets *s) {
    free(s->all.data), free(s->from), free(s->slots);
    *s = (sl_key_sets){0};
}

size_t sl_key_sets_bytes(const sl_key_sets *s) {
    return s->all.cap * sizeof *s->all.data + s->cap * sizeof *s->from + s->n_slots * sizeof *s->slots;
}
