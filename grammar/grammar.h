// grammar/grammar.h - structured output: which tokens may come next, so that the text follows a grammar.
//
// Four objects:
//   sl_grammar      a grammar over bytes and tokens, read from GBNF, a JSON schema, a regular expression or a list of texts.
//                   Immutable. sleigh.h declares it, and sl_grammar_new, which reads any of them from a text.
//   sl_token_trie   the bytes of a tokenizer's tokens. Immutable.
//   sl_matcher      a grammar with a trie, and what it has computed so far. One thread at a time may use a matcher and its
//                   runs.
//   sl_grammar_run  one generation: where the text is in the grammar.
//
// A prefix of a text is viable if some continuation by bytes and named tokens follows the grammar. A token is allowed if its
// bytes leave the prefix viable. An end token is allowed if the text follows the grammar. A token that the grammar names is
// allowed where the grammar names it, whatever its bytes are. Other special tokens are never allowed.
//
// Any thread may read a grammar or a trie. Grammar and trie must live as long as their matchers, a matcher as long as its runs.
// All functions sl_*_free allow NULL.
#ifndef SLEIGH_GRAMMAR_H
#define SLEIGH_GRAMMAR_H

#include "base/json.h"
#include "tokenizer/tokenizer.h"

// ---- grammars ----

// The readers. docs/structured-output.md has the dialects. SL_ERR_FORMAT: the text or the schema is malformed, or a text has a
// construct that the reader does not know. SL_ERR_UNSUPPORTED: a keyword of a schema is not supported, the grammar is
// left-recursive, it is too large, or no text follows it.

// text [n]: GBNF with a rule "root". Messages name line and column. parts: an object, or NULL. If the text uses a name and
// does not define it, the part of this name defines it. A part is an object with one of these members:
//   "schema": a JSON schema     the JSON texts of the values that it allows
//   "arguments": a JSON schema  the objects that it allows, as the arguments of a call in Python: (a=1, b="x")
//   "token": an id              this token, which may be special. No text of bytes can stand for it, and it stands for no text.
int sl_grammar_new_gbnf(const char *text, size_t n, const json_t *parts, sl_grammar **out, sl_error *err);
// The JSON texts of the values that a JSON schema allows. Messages name the place as a JSON pointer.
int sl_grammar_new_schema(const json_t *schema, sl_grammar **out, sl_error *err);
// Any JSON object.
int sl_grammar_new_json_object(sl_grammar **out, sl_error *err);
// text [n]: a regular expression that the whole text must match. Messages name the column.
int sl_grammar_new_regex(const char *text, size_t n, sl_grammar **out, sl_error *err);
// One of the strings of a list.
int sl_grammar_new_choice(const json_t *texts, sl_grammar **out, sl_error *err);
void sl_grammar_use(const sl_grammar *g); // one more user; sl_grammar_free ends the use
// 1: the grammars have the same graph, so the same texts follow them. Grammars that a reader made of equal texts are equal.
int sl_grammar_equal(const sl_grammar *a, const sl_grammar *b);

// ---- tokens ----

typedef struct sl_token_trie sl_token_trie;

// n_vocab: the ids of the model, which may be more or fewer than the ids of the tokenizer. ends: [n_ends] the tokens that end a
// text, also those that are not special. Takes 5 MB and 50 ms for 128k tokens. SL_ERR_ARG: an end token is not below n_vocab.
int sl_token_trie_new(const sl_tokenizer *tok, int n_vocab, const int32_t *ends, int n_ends, sl_token_trie **out,
                      sl_error *err);
void sl_token_trie_free(sl_token_trie *trie);
int sl_token_trie_words(const sl_token_trie *trie); // words of 32 bits for all ids: (n_vocab + 31) / 32

// ---- generations ----

typedef struct sl_matcher sl_matcher;
typedef struct sl_grammar_run sl_grammar_run;

// most_bytes: what the matcher may store to find it again; it drops the oldest sets of tokens first. 0: 64 MiB. One call may
// take more memory for its own time. SL_ERR_ARG: the grammar names a token that the trie does not have.
int sl_matcher_new(const sl_grammar *g, const sl_token_trie *trie, size_t most_bytes, sl_matcher **out, sl_error *err);
void sl_matcher_free(sl_matcher *m); // after its runs
size_t sl_matcher_bytes(const sl_matcher *m);

// A run at the empty text; a run at the text of another run.
int sl_grammar_run_new(sl_matcher *m, sl_grammar_run **out, sl_error *err);
int sl_grammar_run_copy(const sl_grammar_run *run, sl_grammar_run **out, sl_error *err);
void sl_grammar_run_free(sl_grammar_run *run);
void sl_grammar_run_reset(sl_grammar_run *run); // back to the empty text

// bits: [sl_token_trie_words]; bit id % 32 of word id / 32 is 1 for each allowed token. SL_ERR_UNSUPPORTED: no token of the
// vocabulary is allowed, or the grammar is so ambiguous that the answer takes too long. SL_ERR_ARG: the run has ended.
int sl_grammar_allowed(sl_grammar_run *run, uint32_t *bits, sl_error *err);
// Appends a token to the text; an end token ends the run. SL_ERR_ARG: the token is not allowed, or the run has ended. After an
// error the run is where it was.
int sl_grammar_accept(sl_grammar_run *run, int32_t id, sl_error *err);
// The same for bytes [n] that a token holds beside others. SL_ERR_ARG: no text of the grammar goes on with them.
int sl_grammar_accept_bytes(sl_grammar_run *run, const char *bytes, size_t n, sl_error *err);
int sl_grammar_can_end(const sl_grammar_run *run);  // 1: the text follows the grammar
int sl_grammar_must_end(const sl_grammar_run *run); // 1: it does, and no longer text does. An ended run must end too.

#endif
