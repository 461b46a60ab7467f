// cli/generate/prompt_cache.c - see prompt_cache.h.
#include "cli/generate/prompt_cache.h"
#include "cli/io.h"
#include "cli/output/progress_bar.h"

#include <unistd.h>

int cli_prompt_cache_load(cli_timeline *t, sl_error *err) {
    const char *path = t->run->options->prompt_cache;
    sl_session *session;
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
    int rc = sl_session_load(t->run->engine, path, &session, &progress, err);
    cli_progress_end(&bar);
    if (!rc) rc = cli_timeline_take(t, session, err);
    int n = rc ? 0 : sl_session_n_tokens(t->session);
    if (!rc) cli_say("prompt cache: %d token%s from %s", n, cli_s(n), path);
    return rc;
}

int cli_prompt_cache_save(const cli_timeline *t, sl_error *err) {
    const cli_options *o = t->run->options;
    cli_progress bar;
    const sl_progress progress = {.fn = cli_progress_update, .ctx = &bar};
    if (!o->prompt_cache || o->prompt_cache_ro) return 0;
    cli_progress_begin(&bar, "prompt cache", "layers");
    int rc = sl_session_save(t->session, o->prompt_cache, &progress, err);
    cli_progress_end(&bar);
    int n = sl_session_n_tokens(t->session);
    if (!rc) cli_say("prompt cache: %d token%s to %s", n, cli_s(n), o->prompt_cache);
    return rc;
}
