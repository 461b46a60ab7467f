// cli/generate/prompt_cache.c - see prompt_cache.h.
#include "cli/generate/prompt_cache.h"
#include "cli/io.h"
#include "cli/output/progress_bar.h"

#include <unistd.h>

int cli_prompt_cache_load(cli_timeline *t, const cli_cache_options *o, sl_error *err) {
    const char *path = o->path;
    sl_session *session;
    cli_progress bar;
    const sl_progress progress = {.fn = cli_progress_update, .ctx = &bar};
    if (!path && o->read_only) return sl_fail(err, SL_ERR_ARG, "flag --prompt-cache-ro needs --prompt-cache FILE");
    if (!path) return 0;
    if (access(path, F_OK)) {
        if (o->read_only) cli_say("prompt cache: %s does not exist", path);
        return 0;
    }
    cli_progress_begin(&bar, "prompt cache", "layers");
    int rc = sl_session_load(t->run->engine, path, &session, &progress, err);
    cli_progress_end(&bar);
    if (!rc) rc = cli_timeline_take(t, session, err);
    int n = rc ? 0 : sl_session_n_tokens(t->session);
    if (!rc) cli_say("prompt cache: %d token%s from %s", n, cli_s(n), path);
    return rc;
}

int cli_prompt_cache_save(const cli_timeline *t, const cli_cache_options *o, sl_error *err) {
    cli_progress bar;
    const sl_progress progress = {.fn = cli_progress_update, .ctx = &bar};
    if (!o->path || o->read_only) return 0;
    cli_progress_begin(&bar, "prompt cache", "layers");
    int rc = sl_session_save(t->session, o->path, &progress, err);
    cli_progress_end(&bar);
    int n = sl_session_n_tokens(t->session);
    if (!rc) cli_say("prompt cache: %d token%s to %s", n, cli_s(n), o->path);
    return rc;
}
