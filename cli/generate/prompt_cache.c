// cli/generate/prompt_cache.c - see prompt_cache.h.
#include "cli/generate/prompt_cache.h"
#include "cli/io.h"
#include "cli/output/progress_bar.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int parse(const char *path, const sl_text *text, sl_messages *messages, sl_error *err) {
    json_error_t e;
    json_t *list = json_loadb(text->data, text->n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    if (!list) return sl_fail(err, SL_ERR_FORMAT, "%s: tensor messages: line %d: %s", path, e.line, e.text);
    int rc = sl_messages_from_json(path, list, messages, err);
    json_decref(list);
    return rc;
}

static int print(const sl_messages *messages, sl_text *out, sl_error *err) {
    json_t *list = NULL;
    int rc = sl_messages_to_json(messages, &list, err);
    if (rc) return rc;
    char *text = json_dumps(list, JSON_COMPACT);
    rc = text ? sl_text_append(out, text, strlen(text), err) : sl_fail(err, SL_ERR_MEMORY, "conversation: out of memory");
    free(text);
    json_decref(list);
    return rc;
}

int cli_prompt_cache_load(cli_timeline *t, const cli_cache_options *o, sl_messages *messages, sl_error *err) {
    const char *path = o->path;
    sl_session *session;
    sl_text text = {0};
    cli_progress bar;
    const sl_progress progress = {.fn = cli_progress_update, .ctx = &bar};
    if (!path && o->read_only) return sl_fail(err, SL_ERR_ARG, "flag --prompt-cache-ro needs --prompt-cache FILE");
    if (!path) return 0;
    if (access(path, F_OK) && errno == ENOENT) {
        if (o->read_only) cli_say("prompt cache: %s does not exist", path);
        return 0;
    }
    cli_progress_begin(&bar, "prompt cache", "layers");
    int rc = sl_session_load_chat(t->run->engine, path, &session, messages ? &text : NULL, &progress, err);
    cli_progress_end(&bar);
    uint32_t sequence = rc ? 0 : sl_session_sequence(session);
    if (!rc) rc = cli_timeline_take(t, session, err);
    if (!rc && text.n) rc = parse(path, &text, messages, err);
    // In a conversation that goes on, /regen draws with other random numbers than before.
    if (!rc && text.n && sequence > sl_session_sequence(t->session)) sl_session_set_sequence(t->session, sequence);
    sl_text_free(&text);
    int n = rc ? 0 : sl_session_n_tokens(t->session);
    if (!rc) cli_say("prompt cache: %d token%s from %s", n, cli_s(n), path);
    return rc;
}

int cli_prompt_cache_save(const cli_timeline *t, const cli_cache_options *o, const sl_messages *messages, sl_error *err) {
    cli_progress bar;
    const sl_progress progress = {.fn = cli_progress_update, .ctx = &bar};
    if (!o->path || o->read_only) return 0;
    sl_text text = {0};
    sl_error why;
    if (!sl_session_n_tokens(t->session)) {
        if (messages && messages->n)
            cli_say("prompt cache: %s is not written, because no message has an answer in this context", o->path);
        return 0;
    }
    if (messages && print(messages, &text, &why)) {
        cli_say("prompt cache: %s is not written: %s", o->path, why.message);
        return 0;
    }
    cli_progress_begin(&bar, "prompt cache", "layers");
    int rc = sl_session_save_chat(t->session, o->path, messages ? &text : NULL, &progress, err);
    cli_progress_end(&bar);
    sl_text_free(&text);
    int n = sl_session_n_tokens(t->session);
    if (!rc) cli_say("prompt cache: %d token%s to %s", n, cli_s(n), o->path);
    return rc;
}
