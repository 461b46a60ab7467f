// engine/engine_call.c - the frame of every call that runs an engine: one call at a time, with the engine's number of threads.
#include "base/number.h"
#include "engine/engine_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

int sl_engine_is_foreign(const sl_engine *e) {
    return e->process != getpid();
}

int sl_engine_check_process(const sl_engine *e, sl_error *err) {
    if (!sl_engine_is_foreign(e)) return 0;
    return sl_fail(
        err, SL_ERR_ARG,
        "process %d made this engine, and process %d is its child after fork(), which lacks the engine's threads: make "
        "a new engine in the child; the model can be used in both",
        (int)e->process, (int)getpid());
}

int sl_engine_claim(sl_engine *e, sl_error *err) {
    int rc = sl_engine_check_process(e, err);
    if (rc) return rc;
    if (!atomic_flag_test_and_set(&e->is_busy)) return 0;
    return sl_fail(err, SL_ERR_ARG, "another call runs this engine: an engine serves one call at a time");
}

void sl_engine_release(sl_engine *e) {
    atomic_flag_clear(&e->is_busy);
}

int sl_engine_begin(sl_engine *e, sl_error *err) {
    int rc = e->threads ? 0 : sl_threads_open(e->n_threads, &e->threads, err);
    if (!rc) e->outside = sl_threads_use(e->threads);
    return rc;
}

void sl_engine_end(sl_engine *e) {
    sl_threads_use(e->outside);
}

int sl_engine_enter(sl_engine *e, sl_error *err) {
    int rc = sl_engine_claim(e, err);
    if (rc) return rc;
    rc = sl_engine_begin(e, err);
    if (rc) sl_engine_release(e);
    return rc;
}

void sl_engine_leave(sl_engine *e) {
    sl_engine_end(e);
    sl_engine_release(e);
}

void sl_engine_log(const sl_engine *e, const char *format, ...) {
    char line[512];
    va_list ap;
    if (!e->log.fn) return;
    va_start(ap, format);
    sl_vprint(line, sizeof line, format, ap);
    va_end(ap);
    e->log.fn(e->log.ctx, line);
}
