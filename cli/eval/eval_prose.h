// cli/eval/eval_prose.h - random sentences and words for `sleigh eval`, in the language of the embedded model.
//
// A prose holds its random state and the first error. After an error its functions do nothing.
#ifndef SLEIGH_EVAL_PROSE_H
#define SLEIGH_EVAL_PROSE_H

#include "base/arrays.h"
#include "base/error.h"
#include "base/philox.h"
#include "cli/eval/eval_words.h"

typedef struct prose {
    sl_rng_id id;
    uint32_t index;
    int rc;
    sl_error *err;
} prose;

enum { PROSE_FACTS, PROSE_FILLER, PROSE_ORDER }; // streams of 2^28 numbers each

prose prose_begin(uint32_t seed, const char *task, uint32_t number, uint32_t length, sl_error *err);
void prose_stream(prose *p, int stream); // starts the stream from its beginning
uint32_t prose_below(prose *p, uint32_t n);
double prose_unit(prose *p);           // [0, 1)
double *prose_sorted(prose *p, int n); // n numbers in [0, 1), ascending; the caller frees them; NULL: error
const char *prose_word(prose *p, const eval_word_list *list);
void prose_put(prose *p, sl_text *to, const char *text, size_t n);

void prose_sentence(prose *p, sl_text *to); // without a leading blank

enum { PROSE_CODED = 16 };
void prose_coded(prose *p, char out[PROSE_CODED]); // a word of two or three random syllables

// A few short sentences, to be repeated.
typedef struct prose_noise {
    const char *const *sentences;
    int n;
} prose_noise;
void prose_begin_noise(prose *p, prose_noise *noise);
void prose_noise_sentence(const prose_noise *noise, int i, prose *p, sl_text *to); // with a leading blank

#endif
