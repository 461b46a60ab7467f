// tokenizer/added_tokens.c - the tokens that a tokenizer finds in a text before its model sees the text: special tokens and
// other added tokens. The readers of the file formats add the tokens; the loader calls sl_tokenizer_index once.
#define _GNU_SOURCE
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/unicode/chars.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

// ---- the list of tokens ----

enum { MOST_ADDED = 1 << 16 }; // published files have up to 6,500

static sl_added *grow(sl_tokenizer *tok) {
    if (tok->n_added == tok->cap_added) {
        int cap = tok->cap_added ? 2 * tok->cap_added : 64;
        sl_added *grown = realloc(tok->added, (size_t)cap * sizeof *grown);
        if (!grown) return NULL;
        tok->added = grown;
        tok->cap_added = cap;
    }
    return &tok->added[tok->n_added];
}

static unsigned bucket_of(const char *text, size_t n) { // FNV-1a
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)text[i]) * 16777619u;
    return (h ^ h >> 16) % SL_ADDED_BUCKETS;
}

static sl_added *find_text(const sl_tokenizer *tok, const char *text, size_t n) {
    for (int i = tok->buckets[bucket_of(text, n)] - 1; i >= 0; i = tok->added[i].next)
        if (tok->added[i].n == n && !memcmp(tok->added[i].text, text, n)) return &tok->added[i];
    return NULL;
}

int sl_tokenizer_add(sl_tokenizer *tok, const char *file, const sl_added *token, sl_error *err) {
    if (token->n == 0) return sl_fail(err, SL_ERR_FORMAT, "%s: added token %d is empty, expected a text", file, token->id);
    if (token->id < 0 || token->id > SL_MOST_TOKEN_ID)
        return sl_fail(err, SL_ERR_FORMAT, "%s: added token %d: expected an id from 0 to %d", file, token->id,
                       SL_MOST_TOKEN_ID);
    sl_added *known = find_text(tok, token->text, token->n);
    if (known && known->id != token->id)
        return sl_fail(err, SL_ERR_FORMAT, "%s: two added tokens have the text %.60s: the ids are %d and %d", file, token->text,
                       known->id, token->id);
    if (!known) {
        int *bucket = &tok->buckets[bucket_of(token->text, token->n)];
        if (tok->n_added == MOST_ADDED)
            return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: more than %d added tokens", file, MOST_ADDED);
        known = grow(tok);
        if (!known) return sl_fail(err, SL_ERR_MEMORY, "%s: added tokens: out of memory", file);
        char *copy = malloc(token->n + 1);
        if (!copy) return sl_fail(err, SL_ERR_MEMORY, "%s: added tokens: out of memory", file);
        memcpy(copy, token->text, token->n);
        copy[token->n] = 0;
        *known = (sl_added){.text = copy, .n = token->n, .id = token->id, .next = *bucket - 1};
        *bucket = ++tok->n_added;
    }
    known->special = token->special, known->normalized = token->normalized;
    known->lstrip = token->lstrip, known->rstrip = token->rstrip, known->single_word = token->single_word;
    if (token->id >= tok->n_vocab) tok->n_vocab = token->id + 1;
    return 0;
}

const sl_added *sl_tokenizer_added(const sl_tokenizer *tok, int32_t id) {
    return id >= 0 && id < tok->n_added_of && tok->added_of[id] >= 0 ? &tok->added[tok->added_of[id]] : NULL;
}

int32_t sl_tokenizer_find(const sl_tokenizer *tok, const char *piece) {
    const sl_added *a = find_text(tok, piece, strlen(piece));
    return a ? a->id : -1;
}

void sl_tokenizer_make_special(sl_tokenizer *tok, const char *text) {
    sl_added *a = find_text(tok, text, strlen(text));
    if (a) a->special = 1;
}

int sl_tokenizer_is_special(const sl_tokenizer *tok, int32_t id) {
    const sl_added *a = sl_tokenizer_added(tok, id);
    return a && a->special;
}

// ---- tokens of the model ----

int32_t sl_tokenizer_piece(const sl_tokenizer *tok, const char *text, size_t n) {
    char bytes[2048];
    if (tok->spm) return sl_spm_find(tok->spm, text, n);
    if (!tok->by_alphabet) return sl_bpe_find(tok->bpe, text, n);
    ptrdiff_t n_bytes = n <= sizeof bytes ? sl_alphabet_decode(text, n, bytes) : -1;
    if (n_bytes >= 0) return sl_bpe_find(tok->bpe, bytes, (size_t)n_bytes);
    return sl_bpe_find_other(tok->bpe, text, n);
}

int sl_tokenizer_has_piece(const sl_tokenizer *tok, int32_t id) {
    size_t n;
    return tok->spm ? id >= 0 && id < sl_spm_n(tok->spm) : sl_bpe_bytes(tok->bpe, id, &n) != NULL;
}

int sl_added_check(const sl_tokenizer *tok, const char *path, const sl_added *token, sl_error *err) {
    int32_t found = sl_tokenizer_piece(tok, token->text, token->n);
    if (found >= 0 && found != token->id)
        return sl_fail(err, SL_ERR_FORMAT, "%s: added token \"%.60s\" has the id %d, but the vocabulary gives it %d", path,
                       token->text, token->id, found);
    if (found < 0 && sl_tokenizer_has_piece(tok, token->id))
        return sl_fail(err, SL_ERR_FORMAT, "%s: added token \"%.60s\" has the id %d of another token of the vocabulary", path,
                       token->text, token->id);
    return 0;
}

// ---- the index ----

static int by_found(const void *a, const void *b) { // a text comes before longer texts that begin with it
    const sl_added *x = *(const sl_added *const *)a, *y = *(const sl_added *const *)b;
    int c = memcmp(x->found, y->found, x->n_found < y->n_found ? x->n_found : y->n_found);
    if (!c) c = (x->n_found > y->n_found) - (x->n_found < y->n_found);
    return c ? c : (x > y) - (x < y);
}

// The string that is searched. The normaliser may change the text of a normalized token.
static int make_found(const sl_tokenizer *tok, sl_added *a, sl_error *err) {
    sl_text buffers[2] = {{0}, {0}};
    sl_view text = {a->text, a->n, 1};
    int rc = a->normalized && tok->norm ? sl_normalizer_run(tok->norm, &text, buffers, err) : 0;
    free(a->found);
    a->found = rc ? NULL : malloc(text.n + 1);
    if (!rc && !a->found) rc = sl_fail(err, SL_ERR_MEMORY, "added tokens: out of memory");
    if (!rc) {
        memcpy(a->found, text.data, text.n);
        a->n_found = text.n;
        const char *own = memmem(text.data, text.n, a->text, a->n);
        a->n_lead = own ? (size_t)(own - text.data) : 0;
    }
    sl_text_free(&buffers[0]), sl_text_free(&buffers[1]);
    return rc;
}

// Two tokens may have one normalised text: the first one counts. A token whose normalised text is empty is found nowhere.
static int make_set(sl_tokenizer *tok, int normalized, sl_error *err) {
    sl_added_set *set = &tok->sets[normalized];
    int n = 0;
    set->tokens = malloc(((size_t)tok->n_added + 1) * sizeof *set->tokens);
    if (!set->tokens) return sl_fail(err, SL_ERR_MEMORY, "added tokens: out of memory");
    for (int i = 0; i < tok->n_added; i++)
        if (tok->added[i].normalized == normalized && tok->added[i].n_found > 0) set->tokens[n++] = &tok->added[i];
    if (n > 0) qsort(set->tokens, (size_t)n, sizeof *set->tokens, by_found);
    for (int i = 0; i < n; i++) {
        const sl_added *a = set->tokens[i], *last = set->n > 0 ? set->tokens[set->n - 1] : NULL;
        if (!last || last->n_found != a->n_found || memcmp(last->found, a->found, a->n_found)) set->tokens[set->n++] = a;
        set->has_special |= a->special;
    }
    for (int b = 0, i = 0; b <= 256; b++) {
        set->first[b] = i;
        while (b < 256 && i < set->n && (unsigned char)set->tokens[i]->found[0] == b) i++;
    }
    return 0;
}

int sl_tokenizer_index(sl_tokenizer *tok, const char *file, sl_error *err) {
    for (int i = 0; i < tok->n_added; i++)
        if (tok->added[i].id >= tok->n_added_of) tok->n_added_of = tok->added[i].id + 1;
    tok->added_of = malloc((size_t)(tok->n_added_of + 1) * sizeof *tok->added_of);
    if (!tok->added_of) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", file);
    memset(tok->added_of, 0xff, (size_t)(tok->n_added_of + 1) * sizeof *tok->added_of);
    for (int i = 0; i < tok->n_added; i++) {
        sl_added *a = &tok->added[i];
        if (tok->added_of[a->id] >= 0)
            return sl_fail(err, SL_ERR_FORMAT, "%s: two added tokens have the id %d: %.60s and %.60s", file, a->id,
                           tok->added[tok->added_of[a->id]].text, a->text);
        tok->added_of[a->id] = i;
        int rc = make_found(tok, a, err);
        if (rc) return rc;
        if (tok->bpe && a->special) sl_bpe_hide(tok->bpe, a->id);
    }
    int rc = make_set(tok, 0, err);
    return rc ? rc : make_set(tok, 1, err);
}

// ---- the search ----

// Returns the first token of the set in [lo, hi) whose byte `at` is `byte` or more. All tokens of the range are longer than
// `at` and share the first `at` bytes.
static int first_from(const sl_added_set *set, int lo, int hi, size_t at, int byte) {
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if ((unsigned char)set->tokens[mid]->found[at] < byte)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

// Whether a special token at `at` has bytes in a plain span. What the normaliser puts in front of its text does not count.
// next: the first span that may end after `at`
static int in_plain(const sl_added_search *s, const sl_added *token, size_t at, size_t next) {
    size_t from = at + token->n_lead, to = at + token->n_found;
    for (size_t i = next; i < s->n_plain && s->plain[i].from < to; i++)
        if (s->plain[i].to > from && s->plain[i].to > s->plain[i].from) return 1;
    return 0;
}

// Returns the longest token at text + at. A special token does not count in a plain span. Each byte of the text narrows the
// range by binary search. A linear search would compare every '<' of a text with all special tokens, of which Llama 3 has 256.
static const sl_added *longest_at(const sl_added_search *s, const char *text, size_t n, size_t at, size_t next) {
    const sl_added_set *set = s->set;
    const sl_added *found = NULL;
    int b = (unsigned char)text[at], lo = set->first[b], hi = set->first[b + 1];
    for (size_t k = 1; lo < hi; k++) {
        const sl_added *token = set->tokens[lo];
        if (token->n_found == k) {
            if (!(token->special && in_plain(s, token, at, next))) found = token;
            lo++; // texts are unique, so the others are longer
        }
        if (at + k >= n) break;
        b = (unsigned char)text[at + k];
        lo = first_from(set, lo, hi, k, b);
        hi = first_from(set, lo, hi, k, b + 1);
    }
    return found;
}

static int is_single_word(const char *text, size_t n, size_t from, size_t to) {
    size_t len;
    return !(from > 0 && sl_char_is(SL_UNICODE_WORD, sl_char_before(text, from, &len))) &&
           !(to < n && sl_char_is(SL_UNICODE_WORD, sl_char_at(text + to, n - to, &len)));
}

// The next token is searched after the token's own text, also where the token takes white space after it. So a token that
// begins with white space may be found in white space that the token before it took.
int sl_added_split(const sl_added_search *s, const char *text, size_t n, sl_error *err) {
    int rc = 0;
    size_t done = 0, next = 0, len;
    for (size_t at = 0; !rc && at < n && s->set->n > 0;) {
        int b = (unsigned char)text[at];
        if (s->set->first[b] == s->set->first[b + 1]) {
            at++;
            continue;
        }
        while (next < s->n_plain && s->plain[next].to <= at) next++;
        const sl_added *a = longest_at(s, text, n, at, next);
        if (!a) {
            at++;
            continue;
        }
        size_t from = at, to = at + a->n_found;
        at = to;
        if (a->single_word && !is_single_word(text, n, from, to)) continue;
        while (a->lstrip && from > done && sl_char_is(SL_UNICODE_WHITE, sl_char_before(text, from, &len))) from -= len;
        while (a->rstrip && to < n && sl_char_is(SL_UNICODE_WHITE, sl_char_at(text + to, n - to, &len))) to += len;
        if (from > done) rc = s->on_text(s->ctx, done, from, err);
        if (!rc) rc = s->on_token(s->ctx, a, from, err);
        done = to;
    }
    return rc || done >= n ? rc : s->on_text(s->ctx, done, n, err);
}
