// tests/support/models.h - what tests of whole models share.
#ifndef SLEIGH_TEST_MODELS_H
#define SLEIGH_TEST_MODELS_H

#include "engine/sleigh.h"

#include <stdint.h>

typedef struct model_fixture { // a model with an engine on it
    sl_model *model;
    sl_engine *engine;
    int n_vocab;
} model_fixture;

// The model of folder dir, without its tokenizer. attn: the method of all layers, NULL: o->attn's plan
model_fixture model_fixture_load(const char *dir, const char *attn, sl_engine_options o);
void model_fixture_close(model_fixture *r); // after its sessions
sl_session *model_fixture_session(model_fixture *r, uint32_t sequence);

enum { FIXTURE_BATCH = 3, FIXTURE_STEPS = 3 };
extern const int model_fixture_lengths[FIXTURE_BATCH]; // tokens; the second crosses into a new page
// Prefills sequences 50, 51 and 52 of these lengths, decodes FIXTURE_STEPS of the batch; the logits of all to out
// [FIXTURE_BATCH][n_vocab].
void model_fixture_run_batch(model_fixture *r, float *out);

int test_argmax(const float *x, int n); // the lowest of equal ones
// n ids of a model's vocabulary, its last 16 (special ones) left out. From malloc.
int32_t *test_ids(int n, int n_vocab, uint64_t seed);

#endif
