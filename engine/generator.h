// engine/generator.h - continues a prompt in a session, and streams the text: what sl_generate and sl_chat share.
#ifndef SLEIGH_GENERATOR_H
#define SLEIGH_GENERATOR_H

#include "engine/base/arrays.h"

typedef struct sl_generator sl_generator; // a session, the ids of its tokens, a sampler and stop strings

// The caller has claimed the engine (sl_engine_claim) during sl_generator_run. Other threads see one call from the claim to the
// release, so no call can come between two steps.
int sl_generator_open(sl_engine *engine, const sl_generation *options, sl_generator **out, sl_error *err);
void sl_generator_close(sl_generator *g);
sl_session *sl_generator_session(const sl_generator *g);
const sl_model *sl_generator_model(const sl_generator *g);
// Replaces the options of later calls of sl_generator_run. After an error the previous options stay.
int sl_generator_set_options(sl_generator *g, const sl_generation *options, sl_error *err);

// Another token that ends an answer, which the template of a chat writes after replies; -1: none
void sl_generator_set_end(sl_generator *g, int32_t id);

// Makes the session hold the prompt ids[0..n), and generates. The session keeps the tokens that it shares with the prompt.
// at_start: no text precedes the generated text. text: receives the generated text too; NULL: does not. After an error the
// session holds a prefix of the prompt, and the text so far.
int sl_generator_run(sl_generator *g, const int32_t *ids, int n, int at_start, sl_text_fn on_text, void *ctx, sl_text *text,
                     sl_generated *result, sl_error *err);

#endif
