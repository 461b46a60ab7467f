// tokenizer/added_tokens.c - the tokens that a tokenizer finds in a text before its model sees the text: special tokens and
// other added tokens. The readers of the file formats add the tokens and call sl_tokenizer_index once.
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

int sl_tokenizer_add(sl_tokenizer *tok, const char *file, int32_t id, const char *text, size_t n, int special, sl_error *err) {
    if (n == 0) return sl_fail(err, SL_ERR_FORMAT, "%s: added token %d is empty, expected a text", file, id);
    if (id < 0 || id > SL_MOST_TOKEN_ID)
        return sl_fail(err, SL_ERR_FORMAT, "%s: added token %d: expected an id from 0 to %d", file, id, SL_MOST_TOKEN_ID);
    if (tok->n_added == tok->cap_added) {
        int cap = tok->cap_added ? 2 * tok->cap_added : 64;
        sl_added *grown = realloc(tok->added, (size_t)cap * sizeof *grown);
        if (!grown) return sl_fail(err, SL_ERR_MEMORY, "%s: added tokens: out of memory", file);
        tok->added = grown;
        tok->cap_added = cap;
    }
    char *copy = malloc(n + 1);
    if (!copy) return sl_fail(err, SL_ERR_MEMORY, "%s: added tokens: out of memory", file);
    memcpy(copy, text, n);
    copy[n] = 0;
    tok->added[tok->n_added++] = (sl_added){copy, n, id, special};
    if (id >= tok->n_vocab) tok->n_vocab = id + 1;
    return 0;
}

static int by_bytes(const void *a, const void *b) { // a text comes before longer texts that begin with it
    const sl_added *x = a, *y = b;
    int c = memcmp(x->text, y->text, x->n < y->n ? x->n : y->n);
    return c ? c : (x->n > y->n) - (x->n < y->n);
}

int sl_tokenizer_index(sl_tokenizer *tok, const char *file, sl_error *err) {
    for (int i = 0; i < tok->n_added; i++)
        if (tok->added[i].id >= tok->n_added_of) tok->n_added_of = tok->added[i].id + 1;
    tok->added_of = malloc((tok->n_added_of + 1) * sizeof *tok->added_of);
    if (!tok->added_of) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", file);
    memset(tok->added_of, 0xff, (tok->n_added_of + 1) * sizeof *tok->added_of);
    if (tok->n_added > 0) qsort(tok->added, tok->n_added, sizeof *tok->added, by_bytes);
    for (int i = 0; i < tok->n_added; i++) {
        const sl_added *a = &tok->added[i];
        if (tok->added_of[a->id] >= 0) return sl_fail(err, SL_ERR_FORMAT, "%s: two added tokens have the id %d", file, a->id);
        if (i > 0 && by_bytes(a - 1, a) == 0)
            return sl_fail(err, SL_ERR_FORMAT, "%s: two added tokens have the text %.60s", file, a->text);
        tok->added_of[a->id] = i;
    }
    for (int b = 0, i = 0; b <= 256; b++) {
        tok->first_added[b] = i;
        while (b < 256 && i < tok->n_added && (unsigned char)tok->added[i].text[0] == b) i++;
    }
    return 0;
}

const sl_added *sl_tokenizer_added(const sl_tokenizer *tok, int32_t id) {
    return id >= 0 && id < tok->n_added_of && tok->added_of[id] >= 0 ? &tok->added[tok->added_of[id]] : NULL;
}

int32_t sl_tokenizer_find(const sl_tokenizer *tok, const char *piece) {
    for (int i = 0; i < tok->n_added; i++)
        if (!strcmp(tok->added[i].text, piece)) return tok->added[i].id;
    return -1;
}

int sl_tokenizer_is_special(const sl_tokenizer *tok, int32_t id) {
    const sl_added *a = sl_tokenizer_added(tok, id);
    return a && a->special;
}

// Returns the first token of added[lo..hi) whose byte `at` is `byte` or more. All tokens of the range are longer than `at` and
// share the first `at` bytes.
static int first_from(const sl_tokenizer *tok, int lo, int hi, size_t at, int byte) {
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if ((unsigned char)tok->added[mid].text[at] < byte)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

// Each byte of the text narrows the range by binary search. A linear search would compare every '<' of a text with all special
// tokens, of which Llama 3 has 256.
const sl_added *sl_tokenizer_added_at(const sl_tokenizer *tok, const char *text, size_t n, size_t n_special) {
    const sl_added *found = NULL;
    int b = (unsigned char)text[0], lo = tok->first_added[b], hi = tok->first_added[b + 1];
    for (size_t at = 1; lo < hi; at++) {
        if (tok->added[lo].n == at) {
            if (!(tok->added[lo].special && at > n_special)) found = &tok->added[lo];
            lo++; // texts are unique, so the others are longer
        }
        if (at >= n) break;
        b = (unsigned char)text[at];
        lo = first_from(tok, lo, hi, at, b);
        hi = first_from(tok, lo, hi, at, b + 1);
    }
    return found;
}
