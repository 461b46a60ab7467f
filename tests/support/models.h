// tests/support/models.h - fixtures for tests of whole models.
#ifndef SLEIGH_TEST_MODELS_H
#define SLEIGH_TEST_MODELS_H

#include "engine/engine.h"

#include <stdint.h>

typedef struct model_fixture { // a model with an engine on it
    sl_model *model;
    sl_engine *engine;
    int n_vocab;
} model_fixture;

// Loads the model of folder dir, without its tokenizer. activations: as in sl_model_options. attn: the method of all layers;
// NULL: o.attn
model_fixture model_fixture_load_with(const char *dir, const char *activations, const char *attn, sl_engine_options o);
// The same with fp32 activations.
model_fixture model_fixture_load(const char *dir, const char *attn, sl_engine_options o);
void model_fixture_close(model_fixture *r);
sl_session *model_fixture_session(model_fixture *r, uint32_t sequence);

enum { FIXTURE_BATCH = 3, FIXTURE_STEPS = 3 };
extern const int model_fixture_lengths[FIXTURE_BATCH]; // tokens; the second sequence begins a new page during the steps
// Prefills sequences 50, 51 and 52 of these lengths and decodes FIXTURE_STEPS steps of the batch. Writes the logits to out
// [FIXTURE_BATCH][n_vocab].
void model_fixture_run_batch(model_fixture *r, float *out);

int test_argmax(const float *x, int n); // of equal numbers the lowest index
// n ids of a model's vocabulary, without its last 16 ids, which are special. From malloc.
int32_t *test_ids(int n, int n_vocab, uint64_t seed);

typedef struct logit_rows { // ctx of keep_logits, for sl_prefill_logits
    float *data;            // [rows][n_cols]
    int n_cols;
} logit_rows;
int keep_logits(void *ctx, int first, int n_rows, const float *logits, sl_error *err);
// |got - want| / |want|, Euclidean; NaN, which fails every comparison, if a number is NaN
double relative_logits(const float *got, const float *want, size_t n);

#endif
