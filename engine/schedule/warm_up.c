// engine/schedule/warm_up.c - sl_scheduler_warm_up: what the first jobs on a device would wait for.
#include "engine/draft/draft.h"
#include "engine/engine_internal.h"
#include "engine/schedule/scheduler_internal.h"

#include <stdlib.h>
#include <string.h>

// A prefill of n_tokens tokens, the largest: it allocates what later passes need, which would make recordings invalid.
static int run_chunk(sl_session *session, int n_tokens, sl_error *err) {
    int32_t *ids = calloc((size_t)n_tokens, sizeof *ids); // the tokens do not matter
    int rc = ids ? sl_prefill(session, ids, n_tokens, NULL, err) : sl_fail(err, SL_ERR_MEMORY, "warm-up: out of memory");
    free(ids);
    return rc ? rc : sl_session_truncate(session, 0, err);
}

// Steps of 1, 2, ..., n sessions. Sessions with so few rows attend exactly. draws: they draw nevertheless.
static int run_steps(sl_session **sessions, int n, int draws, sl_error *err) {
    sl_engine *e = sessions[0]->engine;
    int32_t ids[n];
    memset(ids, 0, sizeof ids);
    int rc = 0;
    e->plans.draws_always = draws;
    for (int i = 0; !rc && i < n; i++) rc = sl_session_truncate(sessions[i], 0, err);
    for (int i = 0; !rc && i < n; i++) rc = sl_prefill(sessions[i], ids, 1, NULL, err);
    for (int i = 1; !rc && i <= n; i++) rc = sl_decode(sessions, i, ids, err);
    e->plans.draws_always = 0;
    return rc;
}

int sl_scheduler_warm_up(sl_scheduler *s, int drafts, sl_error *err) {
    sl_engine *e = sl_scheduler_engine(s);
    enum { MOST = 64 }; // larger batches are recorded when they come
    int rc = 0, most = e->n_sequences < MOST ? e->n_sequences : MOST, n = 0, n_free = e->device.pool.n_free;
    if (!e->device.backend->run_step) return 0;
    if (most > n_free) most = n_free; // a page for each session
    if (most >= e->n_ctx) most = e->n_ctx - 1;
    if (most < 1) return 0;
    sl_session *sessions[most];
    while (n < most && !(rc = sl_session_new(e, 0, &sessions[n], err))) n++;
    int chunk = e->prefill_chunk < n_free * SL_PAGE ? e->prefill_chunk : n_free * SL_PAGE;
    if (chunk > e->n_ctx) chunk = e->n_ctx;
    if (!rc) rc = run_chunk(sessions[0], chunk, err);
    if (!rc) rc = run_steps(sessions, n, 0, err);
    if (!rc && e->plans.of_engine->n_splits) rc = run_steps(sessions, n, 1, err);
    while (n) sl_session_free(sessions[--n]);
    if (!rc && drafts) rc = sl_drafts_warm_up(e, NULL, err);
    sl_engine_reset_stats(e);
    return rc;
}
