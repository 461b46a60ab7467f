// server/serve/serve_conversations.c - conversations whose rows stay after an answer, for the next request that names them.
//
// A request with `conversation_id` continues the session of the last one with this name: the common prefix of its prompt and
// the session's tokens stays, and only the other tokens are prefilled. So the rows of earlier answers are those of their decode
// steps, as in sl_chat_say. A conversation that the server does not have begins like any prompt. The server keeps the
// conversations that were used last, and gives them up when a job needs their pages.
#include "server/serve/serve_internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct serve_conversation {
    char *name; // name_of
    sl_session *session;
    int is_busy;   // an answer uses the session
    uint64_t used; // serve_server.n_uses at the last request
} serve_conversation;

static void drop(serve_server *s, serve_conversation *v) {
    sl_session_free(v->session);
    free(v->name);
    *v = s->conversations[--s->n_conversations];
}

int serve_conversation_give_up(void *server) {
    serve_server *s = server;
    serve_conversation *oldest = NULL;
    for (int i = 0; i < s->n_conversations; i++) {
        serve_conversation *v = &s->conversations[i];
        if (!v->is_busy && (!oldest || v->used < oldest->used)) oldest = v;
    }
    if (oldest) drop(s, oldest);
    return oldest != NULL;
}

serve_conversation *serve_conversations_new(int n) {
    return calloc((size_t)n + 1, sizeof(serve_conversation));
}

void serve_conversations_free(serve_server *s) {
    while (s->n_conversations) drop(s, &s->conversations[0]);
    free(s->conversations);
    s->conversations = NULL;
}

// The id and the cache_salt as one text. Both may have any characters, so the length of the id comes first.
static char *name_of(const api_request *q) {
    const char *salt = q->cache_salt ? q->cache_salt : "";
    char *name = NULL;
    return asprintf(&name, "%zu %s%s", strlen(q->conversation_id), q->conversation_id, salt) < 0 ? NULL : name;
}

static serve_conversation *find(serve_server *s, const char *name) {
    for (int i = 0; i < s->n_conversations; i++)
        if (!strcmp(s->conversations[i].name, name)) return &s->conversations[i];
    return NULL;
}

// A conversation that the server does not have: its session begins with the pages of the prefix cache. Takes the name.
static int open_new(serve_server *s, char *name, const sl_job_options *o, serve_conversation **out, sl_error *err) {
    sl_cached_prompt p = {
        .ids = (int32_t *)o->ids, .n = o->n - 1, .segment = o->prefill ? o->segment : 0, .salt = (char *)o->salt};
    sl_session *session = NULL;
    if (o->prefill) p.prefill = *o->prefill; // p borrows all
    if (s->n_conversations == s->options.keep_conversations && !serve_conversation_give_up(s)) {
        free(name); // answers use all conversations, so the server does not keep this one
        return 0;
    }
    int rc = sl_prefix_open(s->scheduler, &p, &session, err);
    if (rc) {
        free(name);
        return rc;
    }
    *out = &s->conversations[s->n_conversations++];
    **out = (serve_conversation){.name = name, .session = session};
    return 0;
}

int serve_conversation_begin(serve_server *s, serve_choice *c, sl_job_options *o, sl_error *err) {
    char *name = name_of(&c->request->api);
    serve_conversation *v = name ? find(s, name) : NULL;
    int rc = name ? 0 : sl_fail(err, SL_ERR_MEMORY, "conversation: out of memory");
    if (v && v->is_busy) rc = sl_fail(err, SL_ERR_BUSY, "conversation_id: an answer of this conversation runs");
    if (rc || v)
        free(name);
    else
        rc = open_new(s, name, o, &v, err);
    if (!rc && v) rc = sl_session_truncate(v->session, sl_session_keep(v->session, o->ids, o->n, SL_CONTINUES), err);
    if (rc || !v) return rc;
    int n = sl_session_n_tokens(v->session);
    o->session = v->session, o->ids += n, o->n -= n;
    v->is_busy = 1, v->used = ++s->n_uses;
    c->kept = v->session;
    return 0;
}

void serve_conversation_end(serve_server *s, serve_choice *c) {
    for (int i = 0; c->kept && i < s->n_conversations; i++)
        if (s->conversations[i].session == c->kept) s->conversations[i].is_busy = 0;
    c->kept = NULL;
}
