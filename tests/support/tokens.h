// tests/support/tokens.h - what tests of tokenizers share: ids and texts that must come out, vectors of other encoders, prose.
#ifndef SLEIGH_TEST_TOKENS_H
#define SLEIGH_TEST_TOKENS_H

#include "tokenizer/tokenizer.h"

#include <jansson.h>

#define IDS(...) (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t)
#define TEXT(s) s, sizeof s - 1

sl_tokenizer *tokens_load(const char *dir);
void tokens_write(const char *name, const void *data, size_t n); // to test_tmp()
void tokens_link(const char *path, const char *name);            // test_tmp()/name is the file at path

void tokens_expect_ids(const sl_tokenizer *tok, const char *text, size_t n_text, unsigned flags, const int32_t *want, size_t n);
void tokens_expect_text(const sl_tokenizer *tok, const int32_t *ids, size_t n_ids, const char *want, size_t n);

// Every line of a vector file (scripts/make_vocabularies.py says what is in it). `text` tokenized with first_flags gives `ids`;
// with other_flags it gives the field `other`, or `ids` where there is none. The ids decode to the field `decoded` (NULL: not
// looked at), or to what "decoded" says, or to the text. Returns the number of lines.
int tokens_check_vectors(const sl_tokenizer *tok, const char *path, unsigned first_flags, const char *other,
                         unsigned other_flags, const char *decoded);

// Streams the ids of the text, and compares what is written after each with what they decode to.
void tokens_check_stream(const sl_tokenizer *tok, const char *text, size_t n);

// How fast prose of the vocabulary's own words is encoded, in MB/s of this thread's time. Its words are token ids [256, end).
double tokens_prose_rate(const sl_tokenizer *tok, int end, size_t size);

double tokens_now(void); // of this thread, in seconds: other processes do not count

#ifdef __SANITIZE_ADDRESS__
enum { TOKENS_SLOWER = 10, TOKENS_MIN_RATE = 0 };
#else
enum { TOKENS_SLOWER = 1, TOKENS_MIN_RATE = 5 }; // times the limit; MB/s
#endif

#endif
