// engine/schedule/prefix_file.c - see prefix_file.h.
#include "engine/schedule/prefix_file.h"
#include "engine/engine_internal.h"
#include "engine/schedule/scheduler_internal.h"

#include <stdlib.h>
#include <string.h>

void sl_cached_prompt_free(sl_cached_prompt *p) {
    free(p->ids);
    free(p->salt);
    sl_attn_plan_free(&p->prefill);
    *p = (sl_cached_prompt){0};
}

int sl_cached_prompt_set(sl_cached_prompt *p, const int32_t *ids, int n, const sl_attn_plan *prefill, int segment,
                         const char *salt, sl_error *err) {
    sl_cached_prompt made = {.ids = malloc((size_t)n * sizeof *ids), .n = n, .segment = prefill ? segment : 0};
    int rc = made.ids ? 0 : sl_fail(err, SL_ERR_MEMORY, "a prompt of %d tokens: out of memory", n);
    if (!rc) memcpy(made.ids, ids, (size_t)n * sizeof *ids);
    if (!rc && salt && !(made.salt = strdup(salt))) rc = sl_fail(err, SL_ERR_MEMORY, "a prompt: out of memory");
    if (!rc && prefill) rc = sl_attn_plan_copy(&made.prefill, prefill, err);
    if (rc) {
        sl_cached_prompt_free(&made);
        return rc;
    }
    sl_cached_prompt_free(p);
    *p = made;
    return 0;
}

// The pages that the prefix cache has of the prompt, whole segments only. The caller frees *pages. Returns their number.
static int find(sl_scheduler *s, const sl_cached_prompt *p, int32_t **pages, sl_error *err) {
    char *key;
    int most = p->n / SL_PAGE, rc = sl_prefix_key(&p->prefill, p->segment, p->salt, &key, err);
    if (!rc && !(*pages = malloc(((size_t)most + 1) * sizeof **pages)))
        rc = sl_fail(err, SL_ERR_MEMORY, "a prompt of %d tokens: out of memory", p->n);
    int n = rc ? 0 : sl_prefix_find(sl_scheduler_tree(s), key, p->ids, most, *pages);
    free(key);
    if (rc) return rc;
    return sl_whole_segments(n, p->segment);
}

static int need_tree(const sl_scheduler *s, sl_error *err) {
    return sl_scheduler_tree(s) ? 0 : sl_fail(err, SL_ERR_ARG, "the prefix cache is off");
}

int sl_prefix_open(sl_scheduler *s, const sl_cached_prompt *p, sl_session **out, sl_error *err) {
    sl_session *session = NULL;
    int32_t *pages = NULL;
    int found = sl_scheduler_tree(s) ? find(s, p, &pages, err) : 0, rc = found < 0 ? found : 0;
    if (!rc) rc = sl_scheduler_set_prefill(s, &p->prefill, p->segment, err);
    if (!rc) rc = sl_session_new(sl_scheduler_engine(s), 0, &session, err);
    if (!rc && found) rc = sl_session_share(session, p->ids, pages, found, err);
    free(pages);
    if (rc) {
        sl_session_free(session);
        return rc;
    }
    *out = session;
    return 0;
}

int sl_prefix_save(sl_scheduler *s, const sl_cached_prompt *p, const char *path, int *n, sl_error *err) {
    sl_session *session = NULL;
    int rc = need_tree(s, err);
    if (!rc) rc = sl_prefix_open(s, p, &session, err);
    if (!rc && !session->kv.n_tokens)
        rc =
            sl_fail(err, SL_ERR_ARG, "the prefix cache has no full page (%d tokens) of the prompt of %d tokens", SL_PAGE, p->n);
    if (!rc) rc = sl_session_save(session, path, NULL, err);
    if (!rc) *n = session->kv.n_tokens;
    sl_session_free(session);
    return rc;
}

// Adds the session's pages that any prompt with the same tokens has too.
static int add_pages(sl_scheduler *s, const sl_session *session, const char *path, const sl_session_head *head,
                     const char *salt, sl_cached_prompt *p, sl_error *err) {
    sl_cached_prompt made = {0};
    const sl_attn_plan *prefill = head->segment ? &head->prefill : NULL;
    int n_ctx = sl_engine_n_ctx(sl_scheduler_engine(s));
    int n = sl_session_reusable(session, session->n_prefilled, n_ctx) / SL_PAGE * SL_PAGE;
    char *key = NULL;
    if (!n)
        return sl_fail(err, SL_ERR_ARG, "%s: %d tokens are prefilled, expected a full page (%d tokens) at least", path,
                       session->n_prefilled, SL_PAGE);
    int rc = sl_cached_prompt_set(&made, session->ids, n, prefill, head->segment, salt, err);
    if (!rc) rc = sl_prefix_key(&made.prefill, made.segment, salt, &key, err);
    if (!rc) rc = sl_prefix_add(sl_scheduler_tree(s), key, made.ids, n / SL_PAGE, session->kv.pages, err);
    free(key);
    if (rc) {
        sl_cached_prompt_free(&made);
        return rc;
    }
    sl_cached_prompt_free(p);
    *p = made;
    return 0;
}

int sl_prefix_restore(sl_scheduler *s, const char *path, const char *salt, sl_cached_prompt *p, sl_error *err) {
    sl_session_head head = {0};
    sl_session *session = NULL;
    int rc = need_tree(s, err);
    if (!rc) rc = sl_session_read_head(sl_scheduler_engine(s), path, &head, err);
    if (!rc && !sl_scheduler_make_room(s, sl_kv_pages_of(head.n_tokens)))
        rc = sl_fail(err, SL_ERR_MEMORY, "%s: the KV cache has no room for %d tokens beside the running answers", path,
                     head.n_tokens);
    if (!rc) rc = sl_scheduler_set_prefill(s, &head.prefill, head.segment, err);
    if (!rc) rc = sl_session_load(sl_scheduler_engine(s), path, &session, NULL, err);
    if (!rc) rc = add_pages(s, session, path, &head, salt, p, err);
    sl_session_free(session);
    sl_attn_plan_free(&head.prefill);
    return rc;
}

int sl_prefix_erase(sl_scheduler *s, const sl_cached_prompt *p) {
    char *key = NULL;
    int n = 0;
    if (sl_scheduler_tree(s) && !sl_prefix_key(&p->prefill, p->segment, p->salt, &key, NULL))
        n = sl_prefix_remove(sl_scheduler_tree(s), key, p->ids, p->n / SL_PAGE);
    free(key);
    return n * SL_PAGE;
}
