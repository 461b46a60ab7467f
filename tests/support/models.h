// tests/support/models.h - what tests of whole models share.
#ifndef SLEIGH_TEST_MODELS_H
#define SLEIGH_TEST_MODELS_H

#include "engine/sleigh.h"

#include <stdint.h>

typedef struct rig { // a model with an engine on it
    sl_model *model;
    sl_engine *engine;
    int n_vocab;
} rig;

// The model of folder dir, without its tokenizer. attn: the method of all layers, NULL: o->attn's plan
rig rig_load(const char *dir, const char *attn, sl_engine_options o);
void rig_close(rig *r); // after its sessions
sl_session *rig_session(rig *r, uint32_t sequence);

enum { RIG_BATCH = 3, RIG_BATCH_STEPS = 3 };
extern const int rig_batch_lengths[RIG_BATCH]; // tokens; the second crosses into a new page
// Prefills sequences 50, 51 and 52 of these lengths, decodes RIG_BATCH_STEPS of the batch; the logits of all to out
// [RIG_BATCH][n_vocab].
void rig_run_batch(rig *r, float *out);

int test_argmax(const float *x, int n); // the lowest of equal ones
// n ids of a model's vocabulary, its last 16 (special ones) left out. From malloc.
int32_t *test_ids(int n, int n_vocab, uint64_t seed);

#endif
