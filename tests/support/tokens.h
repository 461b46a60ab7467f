// tests/support/tokens.h - for tests of tokenizers: checks of ids and texts, vectors of other encoders, prose.
#ifndef SLEIGH_TEST_TOKENS_H
#define SLEIGH_TEST_TOKENS_H

#include "tests/test.h"
#include "tokenizer/tokenizer.h"

#include <jansson.h>

#define IDS(...) (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t)
#define TEXT(s) s, sizeof s - 1

sl_tokenizer *tokens_load(const char *dir);
void tokens_write(const char *name, const void *data, size_t n); // writes test_tmp()/name
void tokens_link(const char *path, const char *name);            // links test_tmp()/name to the file at path

void tokens_expect_ids(const sl_tokenizer *tok, const char *text, size_t n_text, unsigned flags, const int32_t *want, size_t n);
void tokens_expect_text(const sl_tokenizer *tok, const int32_t *ids, size_t n_ids, const char *want, size_t n);

// Checks every line of a vector file (scripts/goldens/make_vocabularies.py describes its fields). `text` tokenized with
// first_flags must give `ids`. Tokenized with other_flags it must give the field `other`, or `ids` if the line has no such
// field. The ids must decode to the first of these fields that the line has: `decoded` (NULL: no check), "decoded", "text".
// Returns the number of lines.
int tokens_check_vectors(const sl_tokenizer *tok, const char *path, unsigned first_flags, const char *other,
                         unsigned other_flags, const char *decoded);

// Streams the ids of the text, and compares the written text after each id with the decoded text.
void tokens_check_stream(const sl_tokenizer *tok, const char *text, size_t n);

// Returns the speed of encoding prose, in MB/s of this thread's time. The words of the prose are the tokens [256, end).
double tokens_prose_rate(const sl_tokenizer *tok, int end, size_t size);

double tokens_now(void); // processor time of this thread in seconds

enum { TOKENS_SLOWER = SANITIZED ? 10 : 1, TOKENS_MIN_RATE = SANITIZED ? 0 : 5 }; // factor for time limits; MB/s

#endif
