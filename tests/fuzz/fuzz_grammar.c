// tests/fuzz/fuzz_grammar.c - grammars from clients: GBNF, JSON schemas, regular expressions, lists of texts.
#include "grammar/grammar_internal.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

enum { N_TOKENS = 6, MOST_NODES = 20000 };

static const sl_token_trie *tokens(void) { // loaded once
    static sl_tokenizer *tok;
    static sl_token_trie *trie;
    sl_error err = {0};
    if (!trie) {
        FUZZ_CHECK(!sl_tokenizer_load(&SL_FOLDER("models/tiny"), &tok, &err), err.message);
        const int32_t end = sl_tokenizer_eos(tok);
        FUZZ_CHECK(!sl_token_trie_new(tok, sl_tokenizer_n_vocab(tok), &end, 1, &trie, &err), err.message);
    }
    return trie;
}

// A run accepts the tokens that its set holds, and no others.
static void check_run(const sl_grammar *g, const char *data, size_t n) {
    const sl_token_trie *trie = tokens();
    sl_matcher *m;
    sl_grammar_run *run;
    sl_error err = {0};
    uint32_t *bits = malloc((size_t)sl_token_trie_words(trie) * sizeof *bits);
    FUZZ_CHECK(bits && !sl_matcher_new(g, trie, 1 << 20, &m, &err), err.message);
    FUZZ_CHECK(!sl_grammar_run_new(m, &run, &err), err.message);
    uint32_t seed = 0;
    for (size_t i = 0; i < n; i++) seed = 31 * seed + (unsigned char)data[i];
    for (int i = 0; i < N_TOKENS && fuzz_ok(sl_grammar_allowed(run, bits, &err), &err); i++) {
        int32_t allowed = -1, refused = -1;
        for (uint32_t k = 0; k < (uint32_t)trie->n_vocab; k++) {
            int32_t id = (int32_t)((seed + k) % (uint32_t)trie->n_vocab);
            *(bits[id / 32] >> id % 32 & 1 ? &allowed : &refused) = id;
        }
        FUZZ_CHECK(allowed >= 0, "a set without a token");
        FUZZ_CHECK(refused < 0 || sl_grammar_accept(run, refused, &err) == SL_ERR_ARG, "a token that is not in the set");
        FUZZ_CHECK(!sl_grammar_accept(run, allowed, &err), err.message);
        err = (sl_error){0};
        if (sl_grammar_must_end(run)) break;
        seed = 1103515245 * seed + 12345;
    }
    sl_grammar_run_free(run);
    sl_matcher_free(m);
    free(bits);
}

// The first byte selects the reader: g GBNF, r a regular expression, c a list of texts, another one a schema.
void fuzz_grammar(const char *data, size_t n) {
    sl_grammar *g = NULL;
    sl_error err = {0};
    int rc = 0;
    if (n == 0) return;
    if (data[0] == 'g' || data[0] == 'r') {
        rc = data[0] == 'g' ? sl_grammar_new_gbnf(data + 1, n - 1, NULL, &g, &err)
                            : sl_grammar_new_regex(data + 1, n - 1, &g, &err);
    } else {
        json_t *root = json_loadb(data + 1, n - 1, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        if (!root) return;
        rc = data[0] == 'c' ? sl_grammar_new_choice(root, &g, &err) : sl_grammar_new_schema(root, &g, &err);
        json_decref(root);
    }
    if (fuzz_ok(rc, &err) && g->n_nodes <= MOST_NODES) check_run(g, data, n);
    sl_grammar_free(g);
}
