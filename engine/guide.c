// engine/guide.c - see guide.h.
#include "engine/guide.h"
#include "engine/engine_internal.h"

#include <stdlib.h>
#include <string.h>

// ---- the matchers of an engine ----

enum { IDLE = 8, MATCHER_BYTES = 32 << 20 }; // matchers without users that stay; memory of one

static void free_matcher(sl_kept_matcher *k) {
    sl_matcher_free(k->matcher);
    sl_grammar_free((sl_grammar *)k->grammar);
    free(k);
}

void sl_matchers_free(sl_matchers *all) {
    for (sl_kept_matcher *k; (k = all->newest);) {
        all->newest = k->older;
        free_matcher(k);
    }
    sl_token_trie_free(all->trie);
}

static void drop_old(sl_matchers *all) {
    int n_idle = 0;
    for (sl_kept_matcher **at = &all->newest, *k; (k = *at);) {
        n_idle += !k->n_users;
        if (k->n_users || n_idle <= IDLE) {
            at = &k->older;
            continue;
        }
        *at = k->older;
        free_matcher(k);
    }
}

static int new_matcher(sl_matchers *all, const sl_model *model, const sl_grammar *g, sl_kept_matcher **out, sl_error *err) {
    const sl_config *c = &model->config;
    int rc = all->trie ? 0 : sl_token_trie_new(model->tokenizer, c->n_vocab, c->eos, c->n_eos, &all->trie, err);
    if (rc) return rc;
    sl_kept_matcher *k = calloc(1, sizeof *k);
    if (!k) return sl_fail(err, SL_ERR_MEMORY, "a matcher: out of memory");
    rc = sl_matcher_new(g, all->trie, MATCHER_BYTES, &k->matcher, err);
    if (rc) return free(k), rc;
    sl_grammar_use(g);
    k->grammar = g;
    *out = k;
    return 0;
}

static int take_matcher(sl_engine *e, const sl_grammar *g, sl_kept_matcher **out, sl_error *err) {
    sl_matchers *all = &e->matchers;
    sl_kept_matcher **at = &all->newest, *k;
    while (*at && !sl_grammar_equal((*at)->grammar, g)) at = &(*at)->older;
    int rc = 0;
    if ((k = *at))
        *at = k->older;
    else
        rc = new_matcher(all, e->model, g, &k, err);
    if (rc) return rc;
    k->older = all->newest;
    all->newest = k;
    k->n_users++;
    drop_old(all);
    *out = k;
    return 0;
}

// ---- a guide ----

struct sl_guide {
    sl_engine *engine; // which the guide's stream keeps alive
    sl_kept_matcher *kept;
    sl_grammar_run *run;
    uint32_t *bits; // [words of n_vocab]
    char *after;    // NULL: the grammar begins at once
    sl_text before; // the end of the text before the grammar, without the whole of `after`
    int has_begun;  // the grammar
};

int sl_guide_new(sl_engine *e, const sl_grammar *g, const char *after, sl_guide **out, sl_error *err) {
    if (!e->model->tokenizer) return sl_fail(err, SL_ERR_ARG, "{grammar}: expected none, because the model has no tokenizer");
    if (after && !*after)
        return sl_fail(err, SL_ERR_ARG, "{grammar_after}: the text is empty, expected at least one character");
    sl_guide *guide = calloc(1, sizeof *guide);
    if (!guide) return sl_fail(err, SL_ERR_MEMORY, "a grammar: out of memory");
    guide->engine = e;
    int rc = take_matcher(e, g, &guide->kept, err);
    if (!rc) rc = sl_grammar_run_new(guide->kept->matcher, &guide->run, err);
    if (!rc) guide->bits = malloc((size_t)sl_token_trie_words(e->matchers.trie) * sizeof *guide->bits);
    if (!rc && after) guide->after = strdup(after);
    if (!rc && (!guide->bits || (after && !guide->after))) rc = sl_fail(err, SL_ERR_MEMORY, "a grammar: out of memory");
    if (rc) return sl_guide_free(guide), rc;
    *out = guide;
    return 0;
}

void sl_guide_free(sl_guide *g) {
    if (!g) return;
    sl_grammar_run_free(g->run);
    if (g->kept) g->kept->n_users--, drop_old(&g->engine->matchers);
    sl_text_free(&g->before);
    free(g->bits), free(g->after);
    free(g);
}

void sl_guide_begin(sl_guide *g) {
    sl_grammar_run_reset(g->run);
    g->before.n = 0;
    g->has_begun = !g->after;
}

// The bytes of the last token behind `after`.
static int begin_grammar(sl_guide *g, const char *rest, size_t n, sl_error *err) {
    size_t n_space = 0;
    g->has_begun = 1;
    int rc = sl_grammar_accept_bytes(g->run, rest, n, err);
    if (rc != SL_ERR_ARG) return rc;
    while (n_space < n && memchr(" \t\r\n", rest[n_space], 4)) n_space++;
    rc = sl_grammar_accept_bytes(g->run, rest + n_space, n - n_space, err);
    if (rc != SL_ERR_ARG) return rc;
    return sl_fail(err, rc, "{grammar_after}: the token that ends it goes on with \"%.*s\", which the grammar does not allow",
                   (int)n, rest);
}

static int accept_before(sl_guide *g, int32_t id, sl_error *err) {
    size_t n_after = strlen(g->after);
    int rc = sl_token_bytes(g->engine->model->tokenizer, id, &g->before, err);
    if (rc) return rc;
    const char *text = g->before.data, *found = g->before.n ? memmem(text, g->before.n, g->after, n_after) : NULL;
    if (found) return begin_grammar(g, found + n_after, g->before.n - (size_t)(found - text) - n_after, err);
    if (g->before.n < n_after) return 0;
    size_t n_over = g->before.n - (n_after - 1);
    memmove(g->before.data, text + n_over, n_after - 1);
    g->before.n = n_after - 1;
    return 0;
}

int sl_guide_accept(sl_guide *g, int32_t id, sl_error *err) {
    int rc = g->has_begun ? sl_grammar_accept(g->run, id, err) : accept_before(g, id, err);
    return rc ? rc : g->has_begun && sl_grammar_must_end(g->run);
}

int sl_guide_limit(sl_guide *g, sl_sampler *sampler, int32_t end, sl_error *err) {
    if (!g->has_begun) return sl_sampler_allow(sampler, NULL, err);
    int rc = sl_grammar_allowed(g->run, g->bits, err);
    if (rc) return rc;
    if (end >= 0 && end < g->engine->model->config.n_vocab) {
        uint32_t bit = 1u << end % 32, *word = &g->bits[end / 32];
        *word = sl_grammar_can_end(g->run) ? *word | bit : *word & ~bit;
    }
    return sl_sampler_allow(sampler, g->bits, err);
}
