// base/progress.h - how long-running functions report progress, and how they ask whether to stop.
#ifndef SLEIGH_ENGINE_PROGRESS_H
#define SLEIGH_ENGINE_PROGRESS_H

#include "base/error.h"

static inline void sl_progress_report(const sl_progress *progress, int done, int total) { // progress may be NULL
    if (progress && progress->fn) progress->fn(progress->ctx, done, total);
}

// Returns SL_ERR_CANCELLED when the caller wants to stop. cancel may be NULL
static inline int sl_cancel_poll(const sl_cancel *cancel, sl_error *err) {
    return cancel && cancel->fn && cancel->fn(cancel->ctx) ? sl_fail(err, SL_ERR_CANCELLED, "cancelled by the caller") : 0;
}

#endif
