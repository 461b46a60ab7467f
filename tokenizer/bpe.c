// tokenizer/bpe.c - byte-pair encoding: two hash tables (bytes to id, pair to merge), and the encoder. The symbols of a piece
// are its bytes or its characters.
//
// The encoder merges the pairs of a piece in order of rank, and the leftmost pair first. It scans short pieces for the lowest
// rank. For long pieces it uses a heap, so that no input takes quadratic time.
#include "tokenizer/unicode/chars.h"
#include "tokenizer/tokenizer_internal.h"
#include "tokenizer/siphash.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

typedef struct token {
    uint32_t at, n; // bytes in the pool
    int known, hidden;
} token;
typedef struct merge {
    int32_t left, right, rank, result;
} merge; // left -1: a free entry

struct sl_bpe {
    int n_vocab;
    sl_bpe_options options;
    size_t n_tokens, most_tokens;
    sl_hash_key key; // random, because the file chooses the entries of the tables
    token *tokens;   // [n_vocab]
    char *pool;      // bytes of all tokens
    size_t n_pool, cap_pool;
    int32_t *by_bytes; // hash table of ids, -1: free
    size_t n_slots;
    int32_t *others; // tokens that no text becomes
    size_t n_others, cap_others;
    merge *merges; // hash table by (left, right)
    size_t n_merges, n_merge_slots;
    int32_t byte_id[256];     // tokens of one byte; by_chars: of one ASCII character. -1: no such token
    int32_t fallback_id[256]; // tokens <0x00> to <0xFF>, -1: no such token
    int32_t unk;
    int32_t *char_id; // by_chars: tokens of one character of U+0000 to U+FFFF; [N_CHARS]
    int crosses;      // a token of a merge has another character before a mark
    int all_bytes;    // every byte is a token
};

enum { N_CHARS = 0x10000 };

static int is_mark(const char *s, size_t n) { // SentencePiece's blank
    return n >= 3 && !memcmp(s, "\xe2\x96\x81", 3);
}

static uint64_t hash_bytes(const sl_bpe *b, const char *s, size_t n) {
    return sl_siphash(&b->key, s, n);
}

static uint64_t hash_pair(const sl_bpe *b, int32_t left, int32_t right) {
    const int32_t pair[2] = {left, right};
    return sl_siphash(&b->key, pair, sizeof pair);
}

static int no_memory(sl_error *err) {
    return sl_fail(err, SL_ERR_MEMORY, "tokenizer: out of memory");
}

static int random_key(sl_hash_key *key, sl_error *err) {
    ssize_t n;
    do n = getrandom(key, sizeof *key, 0);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof *key ? 0 : sl_fail(err, SL_ERR_IO, "getrandom: %s", n < 0 ? strerror(errno) : "too few bytes");
}

int sl_bpe_new(int n_vocab, size_t n_tokens, sl_bpe_options options, sl_bpe **out, sl_error *err) {
    sl_bpe *b = calloc(1, sizeof *b);
    if (!b) return no_memory(err);
    *b = (sl_bpe){.n_vocab = n_vocab, .most_tokens = n_tokens, .options = options, .n_slots = 64};
    while (b->n_slots < 3 * n_tokens) b->n_slots *= 2;
    b->tokens = calloc((size_t)n_vocab + 1, sizeof *b->tokens);
    b->by_bytes = malloc(b->n_slots * sizeof *b->by_bytes);
    int rc = b->tokens && b->by_bytes ? random_key(&b->key, err) : no_memory(err);
    if (rc) {
        sl_bpe_free(b);
        return rc;
    }
    memset(b->by_bytes, 0xff, b->n_slots * sizeof *b->by_bytes);
    *out = b;
    return 0;
}

void sl_bpe_free(sl_bpe *b) {
    if (!b) return;
    free(b->tokens), free(b->pool), free(b->by_bytes), free(b->others), free(b->merges), free(b->char_id);
    free(b);
}

static int32_t *slot_of(const sl_bpe *b, const char *s, size_t n) { // the slot of the token, or the free slot for it
    size_t i = hash_bytes(b, s, n) & (b->n_slots - 1);
    for (;; i = (i + 1) & (b->n_slots - 1)) {
        int32_t id = b->by_bytes[i];
        if (id < 0 || (b->tokens[id].n == n && !memcmp(b->pool + b->tokens[id].at, s, n))) return &b->by_bytes[i];
    }
}

int32_t sl_bpe_find(const sl_bpe *b, const char *s, size_t n) {
    return *slot_of(b, s, n);
}

int32_t sl_bpe_find_other(const sl_bpe *b, const char *s, size_t n) {
    for (size_t i = 0; i < b->n_others; i++) {
        const token *t = &b->tokens[b->others[i]];
        if (t->n == n && !memcmp(b->pool + t->at, s, n)) return b->others[i];
    }
    return -1;
}

int sl_bpe_add(sl_bpe *b, const char *file, int32_t id, const char *bytes, size_t n, int is_text, sl_error *err) {
    if (id < 0 || id >= b->n_vocab || b->tokens[id].known)
        return sl_fail(err, SL_ERR_FORMAT, "%s: token id %d is out of range or occurs twice", file, id);
    if (n == 0) return sl_fail(err, SL_ERR_FORMAT, "%s: token %d is empty", file, id);
    int32_t *slot = is_text ? slot_of(b, bytes, n) : NULL;
    if (slot && *slot >= 0) return sl_fail(err, SL_ERR_FORMAT, "%s: tokens %d and %d have the same bytes", file, *slot, id);
    SL_CHECK(b->n_tokens < b->most_tokens);
    if (n > UINT32_MAX - b->n_pool)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: the tokens have more than %u bytes", file, UINT32_MAX);
    if (b->n_pool + n > b->cap_pool) {
        size_t cap = 2 * (b->n_pool + n) + 4096;
        char *grown = realloc(b->pool, cap);
        if (!grown) return no_memory(err);
        b->pool = grown;
        b->cap_pool = cap;
    }
    memcpy(b->pool + b->n_pool, bytes, n);
    b->tokens[id] = (token){.at = (uint32_t)b->n_pool, .n = (uint32_t)n, .known = 1};
    b->n_pool += n;
    b->n_tokens++;
    if (slot) return *slot = id, 0;
    if (b->n_others == b->cap_others) {
        size_t cap = 2 * b->cap_others + 64;
        int32_t *grown = realloc(b->others, cap * sizeof *grown);
        if (!grown) return no_memory(err);
        b->others = grown;
        b->cap_others = cap;
    }
    b->others[b->n_others++] = id;
    return 0;
}

const char *sl_bpe_bytes(const sl_bpe *b, int32_t id, size_t *n) {
    if (id < 0 || id >= b->n_vocab || !b->tokens[id].known) return NULL;
    *n = b->tokens[id].n;
    return b->pool + b->tokens[id].at;
}

static int grow_merges(sl_bpe *b, sl_error *err) {
    size_t n_slots = b->n_merge_slots ? 2 * b->n_merge_slots : 1024;
    merge *old = b->merges, *fresh = malloc(n_slots * sizeof *fresh);
    if (!fresh) return no_memory(err);
    memset(fresh, 0xff, n_slots * sizeof *fresh);
    for (size_t i = 0; i < b->n_merge_slots; i++) {
        if (old[i].left < 0) continue;
        size_t j = hash_pair(b, old[i].left, old[i].right) & (n_slots - 1);
        while (fresh[j].left >= 0) j = (j + 1) & (n_slots - 1);
        fresh[j] = old[i];
    }
    free(old);
    b->merges = fresh;
    b->n_merge_slots = n_slots;
    return 0;
}

static const merge *find_merge(const sl_bpe *b, int32_t left, int32_t right) {
    if (b->n_merge_slots == 0) return NULL;
    for (size_t i = hash_pair(b, left, right) & (b->n_merge_slots - 1);; i = (i + 1) & (b->n_merge_slots - 1)) {
        if (b->merges[i].left < 0) return NULL;
        if (b->merges[i].left == left && b->merges[i].right == right) return &b->merges[i];
    }
}

// Returns where the second word of a text begins: at a mark (U+2581) after another character. n: nowhere
static size_t next_word(const char *s, size_t n) {
    for (size_t at = 1; at + 3 <= n; at++) {
        const char *mark = memchr(s + at, '\xe2', n - at);
        if (!mark) return n;
        at = (size_t)(mark - s);
        if (is_mark(s + at, n - at) && !(at >= 3 && is_mark(s + at - 3, 3))) return at;
    }
    return n;
}

int sl_bpe_merge(sl_bpe *b, const char *file, int32_t rank, int32_t left, int32_t right, sl_error *err) {
    char joined[1024];
    size_t n_left = 0, n_right = 0;
    const char *l = sl_bpe_bytes(b, left, &n_left), *r = sl_bpe_bytes(b, right, &n_right);
    if (!l || !r) return sl_fail(err, SL_ERR_FORMAT, "%s: merge %d names an unknown token", file, rank);
    if (n_left + n_right > sizeof joined)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: merge %d makes a token of more than %zu bytes", file, rank, sizeof joined);
    memcpy(joined, l, n_left);
    memcpy(joined + n_left, r, n_right);
    int32_t result = sl_bpe_find(b, joined, n_left + n_right);
    if (result < 0) return sl_fail(err, SL_ERR_FORMAT, "%s: merge %d makes an unknown token", file, rank);
    if (find_merge(b, left, right)) return 0; // the first one counts
    if (next_word(joined, n_left + n_right) < n_left + n_right) b->crosses = 1;
    if (3 * (b->n_merges + 1) > 2 * b->n_merge_slots) {
        int rc = grow_merges(b, err);
        if (rc) return rc;
    }
    size_t i = hash_pair(b, left, right) & (b->n_merge_slots - 1);
    while (b->merges[i].left >= 0) i = (i + 1) & (b->n_merge_slots - 1);
    b->merges[i] = (merge){left, right, rank, result};
    b->n_merges++;
    return 0;
}

static int make_chars(sl_bpe *b, sl_error *err) {
    b->char_id = malloc(N_CHARS * sizeof *b->char_id);
    if (!b->char_id) return no_memory(err);
    memset(b->char_id, 0xff, N_CHARS * sizeof *b->char_id);
    for (int32_t id = 0; id < b->n_vocab; id++) {
        size_t n = b->tokens[id].n, len;
        const char *s = b->pool + b->tokens[id].at;
        if (!b->tokens[id].known || n > 3) continue;
        int32_t c = sl_char_at(s, n, &len);
        if (len == n && c >= 0) b->char_id[c] = id;
    }
    return 0;
}

int sl_bpe_finish(sl_bpe *b, int32_t unk, sl_error *err) {
    b->unk = unk;
    b->all_bytes = !b->options.by_chars;
    for (int i = 0; i < 256; i++) {
        static const char hex[] = "0123456789ABCDEF";
        const char byte = (char)i, code[6] = {'<', '0', 'x', hex[i >> 4], hex[i & 15], '>'};
        b->byte_id[i] = b->options.by_chars ? -1 : sl_bpe_find(b, &byte, 1);
        b->fallback_id[i] = sl_bpe_find(b, code, sizeof code);
        if (b->byte_id[i] < 0) b->all_bytes = 0;
    }
    return b->options.by_chars ? make_chars(b, err) : 0;
}

int sl_bpe_missing_byte(const sl_bpe *b) {
    for (int i = 0; i < 256; i++)
        if (b->byte_id[i] < 0) return i;
    return -1;
}

void sl_bpe_hide(sl_bpe *b, int32_t id) {
    if (id >= 0 && id < b->n_vocab) b->tokens[id].hidden = 1;
}

uint64_t sl_bpe_displaced(const sl_bpe *b, size_t *n) {
    uint64_t sum = 0;
    for (size_t i = 0; i < b->n_slots; i++)
        if (b->by_bytes[i] >= 0) {
            const token *t = &b->tokens[b->by_bytes[i]];
            sum += (i - hash_bytes(b, b->pool + t->at, t->n)) & (b->n_slots - 1);
        }
    for (size_t i = 0; i < b->n_merge_slots; i++)
        if (b->merges[i].left >= 0) sum += (i - hash_pair(b, b->merges[i].left, b->merges[i].right)) & (b->n_merge_slots - 1);
    *n = b->n_tokens + b->n_merges;
    return sum;
}

// ---- encoding ----

enum { SHORT = 24, NO_RANK = INT32_MAX };

static int32_t rank_of(const sl_bpe *b, int32_t left, int32_t right, int32_t *result) {
    const merge *m = find_merge(b, left, right);
    if (!m) return NO_RANK;
    *result = m->result;
    return m->rank;
}

static int push_all(sl_ids *ids, const int32_t *from, size_t n, sl_error *err) {
    int rc = 0;
    for (size_t i = 0; !rc && i < n; i++) rc = sl_ids_push(ids, from[i], err);
    return rc;
}

// Returns the token of the byte or of the character at s; -1: none. *len: its bytes
static int32_t symbol_at(const sl_bpe *b, const char *s, size_t n, size_t *len) {
    if (!b->options.by_chars) return *len = 1, b->byte_id[(unsigned char)*s];
    int32_t c = sl_char_at(s, n, len);
    return c < 0 ? -1 : c < N_CHARS ? b->char_id[c] : sl_bpe_find(b, s, *len);
}

// Writes the tokens of the bytes of one symbol. Returns their number; 0: a byte has no such token, or there is no fallback.
static size_t fall_back(const sl_bpe *b, const char *s, size_t n, int32_t *id) {
    if (!b->options.byte_fallback) return 0;
    for (size_t i = 0; i < n; i++) {
        id[i] = b->fallback_id[(unsigned char)s[i]];
        if (id[i] < 0) return 0;
    }
    return n;
}

// Writes the symbols with which the merges begin, at most n. An unknown token is written before the next token of the
// vocabulary, so it comes after the byte tokens between them, as in the package tokenizers.
static size_t first_symbols(const sl_bpe *b, const char *s, size_t n, int32_t *id) {
    size_t n_ids = 0;
    int pending = 0; // an unknown token is not written yet
    if (b->all_bytes) {
        for (size_t i = 0; i < n; i++) id[i] = b->byte_id[(unsigned char)s[i]];
        return n;
    }
    for (size_t at = 0, len; at < n; at += len) {
        int32_t token = symbol_at(b, s + at, n - at, &len);
        if (token >= 0) {
            if (pending) id[n_ids++] = b->unk;
            pending = 0;
            id[n_ids++] = token;
            continue;
        }
        size_t n_bytes = fall_back(b, s + at, len, id + n_ids);
        n_ids += n_bytes;
        if (n_bytes > 0 || b->unk < 0) continue;
        if (pending && !b->options.fuse_unk) id[n_ids++] = b->unk;
        pending = 1;
    }
    if (pending) id[n_ids++] = b->unk;
    return n_ids;
}

static int encode_short(const sl_bpe *b, const char *piece, size_t n, sl_ids *ids, sl_error *err) {
    int32_t id[SHORT], rank[SHORT], result[SHORT];
    n = first_symbols(b, piece, n, id);
    for (size_t i = 0; i + 1 < n; i++) rank[i] = rank_of(b, id[i], id[i + 1], &result[i]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == NO_RANK) break;
        id[best] = result[best];
        n--;
        for (size_t i = best + 1; i < n; i++) id[i] = id[i + 1], rank[i] = rank[i + 1], result[i] = result[i + 1];
        if (best + 1 < n) rank[best] = rank_of(b, id[best], id[best + 1], &result[best]);
        if (best > 0) rank[best - 1] = rank_of(b, id[best - 1], id[best], &result[best - 1]);
    }
    return push_all(ids, id, n, err);
}

// Long pieces: symbols in a doubly linked list, candidate merges in a heap ordered by (rank, place). A candidate is invalid if
// one of its two symbols has changed.
typedef struct symbol {
    int32_t id;
    int64_t prev, next;
} symbol; // id -1: merged away
typedef struct candidate {
    int32_t rank, left_id, right_id, result;
    int64_t at;
} candidate;

static int before(const candidate *a, const candidate *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void heap_push(candidate *heap, size_t *n, candidate c) {
    size_t i = (*n)++;
    for (; i > 0 && before(&c, &heap[(i - 1) / 2]); i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = c;
}

static candidate heap_pop(candidate *heap, size_t *n) {
    candidate top = heap[0], last = heap[--*n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < *n; i = child) {
        if (child + 1 < *n && before(&heap[child + 1], &heap[child])) child++;
        if (!before(&heap[child], &last)) break;
        heap[i] = heap[child];
    }
    heap[i] = last;
    return top;
}

static void offer(const sl_bpe *b, const symbol *s, int64_t at, candidate *heap, size_t *n) {
    candidate c = {.at = at, .left_id = s[at].id};
    if (s[at].next < 0) return;
    c.right_id = s[s[at].next].id;
    c.rank = rank_of(b, c.left_id, c.right_id, &c.result);
    if (c.rank != NO_RANK) heap_push(heap, n, c);
}

static int encode_long(const sl_bpe *b, const char *piece, size_t n, sl_ids *ids, sl_error *err) {
    symbol *s = malloc(n * sizeof *s);
    candidate *heap = malloc(3 * n * sizeof *heap); // n - 1 at the start, at most two more a merge
    int32_t *first = malloc(n * sizeof *first);
    size_t n_heap = 0;
    int rc = s && heap && first ? 0 : no_memory(err);
    n = rc ? 0 : first_symbols(b, piece, n, first);
    for (size_t i = 0; i < n; i++) s[i] = (symbol){first[i], (int64_t)i - 1, i + 1 < n ? (int64_t)i + 1 : -1};
    free(first);
    for (size_t i = 0; !rc && i + 1 < n; i++) offer(b, s, (int64_t)i, heap, &n_heap);
    while (!rc && n_heap > 0) {
        candidate c = heap_pop(heap, &n_heap);
        symbol *left = &s[c.at];
        if (left->id != c.left_id || left->next < 0 || s[left->next].id != c.right_id) continue;
        symbol *right = &s[left->next];
        left->id = c.result;
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0) s[left->next].prev = c.at;
        offer(b, s, c.at, heap, &n_heap);
        if (left->prev >= 0) offer(b, s, left->prev, heap, &n_heap);
    }
    for (int64_t i = n > 0 ? 0 : -1; !rc && i >= 0; i = s[i].next) rc = sl_ids_push(ids, s[i].id, err);
    free(s), free(heap);
    return rc;
}

int sl_bpe_encode(const sl_bpe *b, const char *piece, size_t n, sl_ids *ids, sl_error *err) {
    if (n == 0) return 0;
    if (b->options.ignore_merges || n == 1) {
        int32_t whole = sl_bpe_find(b, piece, n);
        if (whole >= 0 && !b->tokens[whole].hidden) return sl_ids_push(ids, whole, err);
    }
    // No merge joins two words, a mark is a token, and no character is left out: the words of a piece are encoded one by one.
    int by_words = b->options.by_chars && !b->crosses && b->char_id[0x2581] >= 0 && b->unk >= 0, rc = 0;
    for (size_t len; !rc && n > 0; piece += len, n -= len) {
        len = by_words ? next_word(piece, n) : n;
        rc = (len <= SHORT ? encode_short : encode_long)(b, piece, len, ids, err);
    }
    return rc;
}
