// engine/base/progress.h - how long-running functions report progress: they call a function on the caller's thread.
#ifndef SLEIGH_ENGINE_PROGRESS_H
#define SLEIGH_ENGINE_PROGRESS_H

#include <stddef.h>

typedef void (*sl_progress_fn)(void *ctx, int done, int total);
typedef struct sl_progress {
    sl_progress_fn fn;
    void *ctx;
} sl_progress;

static inline void sl_progress_report(const sl_progress *progress, int done, int total) { // progress may be NULL
    if (progress && progress->fn) progress->fn(progress->ctx, done, total);
}

#endif
