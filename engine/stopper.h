// engine/stopper.h - stop strings in a stream of text.
#ifndef SLEIGH_STOPPER_H
#define SLEIGH_STOPPER_H

#include "base/error.h"

#include <stddef.h>

// Delays text that may be the beginning of a stop string.
typedef struct sl_stopper sl_stopper;
int sl_stopper_new(const char *const *stops, int n, sl_stopper **out, sl_error *err); // an empty string is SL_ERR_ARG
void sl_stopper_free(sl_stopper *s);
void sl_stopper_reset(sl_stopper *s);
const char *sl_stopper_found(const sl_stopper *s); // the stop string that is complete; NULL: none is
// Feeds text[0..n). *out, *n_out: the text that can be shown now, valid until the next call. Returns 1 when a stop string is
// complete; the stop string and the text after it are dropped. Otherwise returns 0 or a negative sl_err.
int sl_stopper_feed(sl_stopper *s, const char *text, size_t n, const char **out, size_t *n_out, sl_error *err);
// Call at the end of the stream. *out, *n_out: the delayed text.
void sl_stopper_flush(sl_stopper *s, const char **out, size_t *n_out);

#endif
