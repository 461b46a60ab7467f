// engine/messages.c - see messages.h.
#include "engine/messages.h"
#include "tokenizer/chat/chat.h"

#include <stdlib.h>
#include <string.h>

static int no_memory(sl_error *err) {
    return sl_fail(err, SL_ERR_MEMORY, "conversation: out of memory");
}

int sl_messages_push(sl_messages *m, const char *role, const char *text, size_t n, sl_error *err) {
    const char *known = sl_chat_role(role);
    if (!known)
        return sl_fail(err, SL_ERR_ARG, "message %d has the role \"%.40s\": expected system, user or assistant", m->n,
                       role ? role : "");
    if (m->n == m->cap) {
        int cap = m->cap ? 2 * m->cap : 16;
        sl_message *grown = realloc(m->items, (size_t)cap * sizeof *grown);
        if (!grown) return no_memory(err);
        m->items = grown;
        m->cap = cap;
    }
    char *content = malloc(n + 1);
    if (!content) return no_memory(err);
    if (n) memcpy(content, text, n);
    content[n] = 0;
    m->items[m->n++] = (sl_message){.role = known, .content = content, .n = n};
    return 0;
}

void sl_messages_pop(sl_messages *m) {
    free((char *)m->items[--m->n].content);
}

void sl_messages_clear(sl_messages *m) {
    while (m->n) sl_messages_pop(m);
    free(m->items);
    *m = (sl_messages){0};
}

int sl_messages_last_is(const sl_messages *m, const char *role) {
    return m->n && !strcmp(m->items[m->n - 1].role, role);
}

int sl_messages_has_question(const sl_messages *m) {
    int n = m->n - sl_messages_last_is(m, "assistant");
    return n > 0 && !strcmp(m->items[n - 1].role, "user");
}

const sl_message *sl_messages_system(const sl_messages *m) {
    return m->n && !strcmp(m->items[0].role, "system") ? &m->items[0] : NULL;
}

int sl_messages_set_system(sl_messages *m, const char *text, size_t n, sl_error *err) {
    int had = sl_messages_system(m) != NULL, rc = n ? sl_messages_push(m, "system", text, n, err) : 0;
    if (rc) return rc;
    if (had) free((char *)m->items[0].content);
    if (n) { // the last message becomes the first one
        sl_message first = m->items[--m->n];
        if (!had) memmove(m->items + 1, m->items, (size_t)m->n++ * sizeof *m->items);
        m->items[0] = first;
    } else if (had) {
        memmove(m->items, m->items + 1, (size_t)--m->n * sizeof *m->items);
    }
    return 0;
}

// ---- JSON ----

static int bad(const char *name, size_t i, sl_error *err, const char *what, const char *found) {
    return sl_fail(err, SL_ERR_FORMAT, "%s: message %zu: expected %s, found %.60s", name, i + 1, what, found);
}

static int add(const char *name, size_t i, const json_t *message, sl_messages *m, sl_error *err) {
    const json_t *role = sl_json_get(message, "role"), *content = sl_json_get(message, "content");
    const char *text = json_string_value(role), *known = sl_chat_role(text);
    if (!json_is_object(message)) return bad(name, i, err, "an object with \"role\" and \"content\"", sl_json_type(message));
    if (!known) return bad(name, i, err, "\"role\" system, user or assistant", text ? text : sl_json_type(role));
    if (i && !strcmp(known, "system"))
        return bad(name, i, err, "user or assistant, because only message 1 may be system", known);
    if (!json_is_string(content)) return bad(name, i, err, "a string in \"content\"", sl_json_type(content));
    return sl_messages_push(m, known, json_string_value(content), json_string_length(content), err);
}

int sl_messages_from_json(const char *name, const json_t *list, sl_messages *m, sl_error *err) {
    const json_t *message;
    size_t i;
    int rc = json_is_array(list)
                 ? 0
                 : sl_fail(err, SL_ERR_FORMAT, "%s: expected a list of messages, found %s", name, sl_json_type(list));
    json_array_foreach(list, i, message) if (!rc) rc = add(name, i, message, m, err);
    if (rc) sl_messages_clear(m);
    return rc;
}

int sl_messages_to_json(const sl_messages *m, json_t **out, sl_error *err) {
    json_t *list = json_array();
    int rc = list ? 0 : no_memory(err);
    for (int i = 0; !rc && i < m->n; i++) {
        json_t *text = json_stringn(m->items[i].content, m->items[i].n);
        if (!text) rc = sl_fail(err, SL_ERR_FORMAT, "message %d is not UTF-8, so JSON cannot hold it", i + 1);
        if (!rc && json_array_append_new(list, json_pack("{s:s, s:o}", "role", m->items[i].role, "content", text)))
            rc = no_memory(err);
    }
    if (!rc)
        *out = list;
    else
        json_decref(list);
    return rc;
}

// ---- turns ----

static int add_answer(sl_messages *m, sl_answer_fn answer, void *ctx, int *is_answer, sl_error *err) {
    sl_text reply = {0};
    *is_answer = 0;
    int rc = answer(ctx, &reply, is_answer, err);
    if (!rc && *is_answer) rc = sl_messages_push(m, "assistant", reply.data, reply.n, err);
    if (rc) *is_answer = 0;
    sl_text_free(&reply);
    return rc;
}

int sl_messages_say(sl_messages *m, const char *text, size_t n, sl_answer_fn answer, void *ctx, sl_error *err) {
    int is_answer, rc = sl_messages_push(m, "user", text, n, err);
    if (rc) return rc;
    rc = add_answer(m, answer, ctx, &is_answer, err);
    if (!is_answer) sl_messages_pop(m);
    return rc;
}

int sl_messages_again(sl_messages *m, sl_session *s, sl_answer_fn answer, void *ctx, sl_error *err) {
    SL_CHECK(sl_messages_has_question(m));
    int is_answer, had = sl_messages_last_is(m, "assistant");
    sl_message old = m->items[m->n - 1];
    uint32_t sequence = sl_session_sequence(s);
    m->n -= had;
    if (had) sl_session_set_sequence(s, sequence + 1);
    int rc = add_answer(m, answer, ctx, &is_answer, err);
    if (had && is_answer) free((char *)old.content);
    if (had && !is_answer) {
        m->items[m->n++] = old; // there is room: it lay here before
        sl_session_set_sequence(s, sequence);
    }
    return rc;
}
