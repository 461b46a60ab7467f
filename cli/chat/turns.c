// cli/chat/turns.c - see turns.h.
#include "cli/chat/turns.h"
#include "base/json.h"
#include "base/whole_file.h"
#include "cli/grow.h"
#include "tokenizer/chat/chat.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

int chat_turns_push(chat_turns *turns, const char *role, const char *text, size_t n, sl_error *err) {
    chat_turn *items = cli_grow(turns->items, turns->n, &turns->cap, sizeof *items);
    if (!items) return sl_fail(err, SL_ERR_MEMORY, "conversation: out of memory");
    turns->items = items;
    chat_turn *t = &items[turns->n];
    *t = (chat_turn){.role = role};
    int rc = sl_text_append(&t->text, text, n, err);
    if (rc)
        sl_text_free(&t->text);
    else
        turns->n++;
    return rc;
}

void chat_turns_pop(chat_turns *turns) {
    sl_text_free(&turns->items[--turns->n].text);
}

void chat_turns_clear(chat_turns *turns) {
    while (turns->n) chat_turns_pop(turns);
    free(turns->items);
    *turns = (chat_turns){0};
}

int chat_turns_last_is(const chat_turns *turns, const char *role) {
    return turns->n && !strcmp(turns->items[turns->n - 1].role, role);
}

const sl_text *chat_turns_system(const chat_turns *turns) {
    return turns->n && !strcmp(turns->items[0].role, "system") ? &turns->items[0].text : NULL;
}

int chat_turns_set_system(chat_turns *turns, const char *text, size_t n, sl_error *err) {
    int had = chat_turns_system(turns) != NULL, rc = n ? chat_turns_push(turns, "system", text, n, err) : 0;
    if (rc) return rc;
    if (had) sl_text_free(&turns->items[0].text);
    chat_turn *items = turns->items;
    if (n) { // the last message becomes the first one
        chat_turn first = items[--turns->n];
        if (!had) memmove(items + 1, items, (size_t)turns->n++ * sizeof *items);
        items[0] = first;
    } else if (had) {
        memmove(items, items + 1, (size_t)--turns->n * sizeof *items);
    }
    return 0;
}

// ---- the file ----

static int bad(const char *path, size_t i, sl_error *err, const char *what, const char *found) {
    return sl_fail(err, SL_ERR_FORMAT, "%s: message %zu: expected %s, found %.60s", path, i + 1, what, found);
}

static int add(const char *path, size_t i, const json_t *message, chat_turns *turns, sl_error *err) {
    const json_t *role = sl_json_get(message, "role"), *content = sl_json_get(message, "content");
    const char *name = json_string_value(role), *known = sl_chat_role(name);
    if (!json_is_object(message)) return bad(path, i, err, "an object with \"role\" and \"content\"", sl_json_type(message));
    if (!known) return bad(path, i, err, "\"role\" system, user or assistant", name ? name : sl_json_type(role));
    if (i && !strcmp(known, "system"))
        return bad(path, i, err, "user or assistant, because only message 1 may be system", name);
    if (!json_is_string(content)) return bad(path, i, err, "a string in \"content\"", sl_json_type(content));
    return chat_turns_push(turns, known, json_string_value(content), json_string_length(content), err);
}

int chat_turns_read(const char *path, chat_turns *turns, sl_error *err) {
    json_error_t e;
    FILE *f = fopen(path, "rb");
    if (!f) return sl_fail(err, SL_ERR_IO, "cannot open %s: %s", path, strerror(errno));
    json_t *root = json_loadf(f, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e), *message;
    fclose(f);
    if (!root) return sl_fail(err, SL_ERR_FORMAT, "%s: line %d: %s", path, e.line, e.text);
    int rc = json_is_array(root)
                 ? 0
                 : sl_fail(err, SL_ERR_FORMAT, "%s: expected a list of messages, found %s", path, sl_json_type(root));
    size_t i;
    json_array_foreach(root, i, message) if (!rc) rc = add(path, i, message, turns, err);
    json_decref(root);
    if (rc) chat_turns_clear(turns);
    return rc;
}

static int to_json(const chat_turns *turns, json_t **out, sl_error *err) {
    json_t *root = json_array();
    int rc = root ? 0 : sl_fail(err, SL_ERR_MEMORY, "conversation: out of memory");
    for (int i = 0; !rc && i < turns->n; i++) {
        const chat_turn *t = &turns->items[i];
        json_t *text = json_stringn(t->text.data, t->text.n);
        if (!text) rc = sl_fail(err, SL_ERR_FORMAT, "message %d is not UTF-8, so JSON cannot hold it", i + 1);
        if (!rc && json_array_append_new(root, json_pack("{s:s, s:o}", "role", t->role, "content", text)))
            rc = sl_fail(err, SL_ERR_MEMORY, "conversation: out of memory");
    }
    if (!rc)
        *out = root;
    else
        json_decref(root);
    return rc;
}

// A file that is not a conversation is another file of the user, so it stays.
static int check_replaceable(const char *path, sl_error *err) {
    struct stat st;
    chat_turns old = {0};
    sl_error why;
    if (stat(path, &st)) return 0;
    int rc = S_ISREG(st.st_mode) ? chat_turns_read(path, &old, &why) : SL_ERR_ARG;
    chat_turns_clear(&old);
    return rc ? sl_fail(err, SL_ERR_ARG, "%s exists and is not a saved conversation; it is not replaced", path) : 0;
}

int chat_turns_write(const char *path, const chat_turns *turns, sl_error *err) {
    json_t *root = NULL;
    sl_whole_file w;
    int rc = check_replaceable(path, err);
    if (!rc) rc = to_json(turns, &root, err);
    if (rc) return rc;
    FILE *f = sl_whole_file_open(&w, path, 0666);
    int ok = f && !json_dumpf(root, f, JSON_INDENT(1)) && fputc('\n', f) != EOF;
    json_decref(root);
    return sl_whole_file_close(&w, ok, err);
}
