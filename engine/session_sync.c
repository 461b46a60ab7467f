// engine/session_sync.c - what a session keeps for another prompt, and sl_session_sync.
#include "engine/engine_internal.h"

int sl_session_common(const sl_session *s, const int32_t *ids, int n) {
    int i = 0;
    while (i < n && i < s->kv.n_tokens && ids[i] == s->ids[i]) i++;
    return i;
}

int sl_session_keep(const sl_session *s, const int32_t *ids, int n, int n_prefill) {
    int is_fresh = n_prefill != SL_CONTINUES, keep = sl_session_common(s, ids, is_fresh ? n_prefill : n);
    if (is_fresh && keep > s->n_prefilled) keep = s->n_prefilled;
    int has_logits = is_fresh && s->kv.n_tokens == n && s->has_logits;
    if (keep == n && !has_logits) keep = n - 1; // repeat the last token: the session holds logits of another step
    return sl_session_reusable(s, keep, n_prefill);
}

int sl_session_sync_claimed(sl_session *s, const int32_t *ids, int n, const sl_progress *progress, int *n_kept, sl_error *err) {
    int n_ctx = s->engine->n_ctx;
    if (n < 1) return sl_fail(err, SL_ERR_ARG, "a prompt of %d tokens: expected at least 1", n);
    if (n > n_ctx) return sl_fail(err, SL_ERR_CONTEXT, "the prompt has %d tokens: more than {n_ctx} %d", n, n_ctx);
    int rc = sl_check_ids(s->engine, ids, n, err);
    if (rc) return rc;
    int keep = sl_session_keep(s, ids, n, SL_CONTINUES);
    rc = sl_session_truncate(s, keep, err);
    if (!rc) rc = sl_prefill_claimed(s, ids + keep, n - keep, progress, err);
    if (n_kept && !rc) *n_kept = keep;
    return rc;
}

int sl_session_sync(sl_session *s, const int32_t *ids, int n, const sl_progress *progress, int *n_kept, sl_error *err) {
    int rc = sl_engine_claim(s->engine, err);
    if (rc) return rc;
    rc = sl_session_sync_claimed(s, ids, n, progress, n_kept, err);
    sl_engine_release(s->engine);
    return rc;
}
