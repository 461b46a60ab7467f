// engine/guide.h - keeps a generation within a grammar: says which tokens its sampler may choose next.
#ifndef SLEIGH_GUIDE_H
#define SLEIGH_GUIDE_H

#include "backend/sampler.h"
#include "grammar/grammar.h"

typedef struct sl_kept_matcher {
    struct sl_kept_matcher *older;
    const sl_grammar *grammar;
    sl_matcher *matcher;
    int n_users; // guides
} sl_kept_matcher;

// The matchers of an engine, and the tree of its tokens. Guides of equal grammars share a matcher. Some matchers without users
// stay for later guides, those that were used last.
typedef struct sl_matchers {
    sl_token_trie *trie; // made for the first grammar
    sl_kept_matcher *newest;
} sl_matchers;
void sl_matchers_free(sl_matchers *all); // after their guides

typedef struct sl_guide sl_guide; // a stream has one

// after: as sl_generation.grammar_after, copied. SL_ERR_ARG: the model has no tokenizer, or `after` is empty.
int sl_guide_new(sl_engine *e, const sl_grammar *g, const char *after, sl_guide **out, sl_error *err);
void sl_guide_free(sl_guide *g);

void sl_guide_begin(sl_guide *g); // a new generation
// The text goes on with a token that is not an end token. Returns 1 when the text is complete and no longer text follows the
// grammar; below 0: an error.
int sl_guide_accept(sl_guide *g, int32_t id, sl_error *err);
// Limits the sampler to the tokens that may come next. end: a token that ends the text, besides the model's end tokens; -1:
// none
int sl_guide_limit(sl_guide *g, sl_sampler *sampler, int32_t end, sl_error *err);

#endif
