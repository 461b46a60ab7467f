// engine/cli/generate/prompt_cache.c - see prompt_cache.h.
#include "engine/cli/generate/prompt_cache.h"
#include "engine/cli/io.h"
#include "engine/cli/output/progress_bar.h"

#include <unistd.h>

// t takes the session, and the sampler sees its tokens.
static int take(cli_timeline *t, sl_session *session, const int32_t *ids, int n, sl_error *err) {
    int rc = 0;
    for (int i = 0; !rc && i < n; i++) {
        rc = sl_sampler_accept(t->sampler, ids[i], err);
        if (!rc) rc = sl_ids_push(&t->ids, ids[i], err);
    }
    if (rc) {
        sl_session_free(session);
        return rc;
    }
    sl_session_set_sequence(session, sl_session_sequence(t->session));
    sl_session_free(t->session);
    t->session = session;
    return 0;
}

int cli_prompt_cache_load(cli_timeline *t, sl_error *err) {
    const char *path = t->run->options->prompt_cache;
    sl_session *session;
    int32_t *ids;
    int n;
    cli_progress bar;
    const sl_progress progress = {.fn = cli_progress_update, .ctx = &bar};
    if (!path && t->run->options->prompt_cache_ro)
        return sl_fail(err, SL_ERR_ARG, "flag --prompt-cache-ro needs --prompt-cache FILE");
    if (!path) return 0;
    if (access(path, F_OK)) {
        if (t->run->options->prompt_cache_ro) cli_say("prompt cache: %s does not exist", path);
        return 0;
    }
    cli_progress_begin(&bar, "prompt cache", "layers");
    int rc = sl_session_load(t->run->engine, path, &session, &ids, &n, &progress, err);
    cli_progress_end(&bar);
    if (rc) return rc;
    rc = take(t, session, ids, n, err);
    sl_free(ids);
    if (!rc) cli_say("prompt cache: %d token%s from %s", n, cli_s(n), path);
    return rc;
}

int cli_prompt_cache_save(const cli_timeline *t, sl_error *err) {
    const cli_options *o = t->run->options;
    cli_progress bar;
    const sl_progress progress = {.fn = cli_progress_update, .ctx = &bar};
    if (!o->prompt_cache || o->prompt_cache_ro) return 0;
    cli_progress_begin(&bar, "prompt cache", "layers");
    int rc = sl_session_save(t->session, t->ids.data, o->prompt_cache, &progress, err);
    cli_progress_end(&bar);
    if (!rc) cli_say("prompt cache: %zu token%s to %s", t->ids.n, cli_s((long long)t->ids.n), o->prompt_cache);
    return rc;
}
