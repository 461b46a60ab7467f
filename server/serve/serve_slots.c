// server/serve/serve_slots.c - slots: numbers that running answers have, and the prompts that can be saved under them.
//
// An answer has a slot while it runs: the one that `id_slot` names, or else the first free one. With --slot-save-path, a slot
// remembers the last prompt that was prefilled for an answer in it. POST /slots/ID?action=save writes what the prefix cache has
// of this prompt to a file, restore reads such a file into the prefix cache, and erase removes the prompt from the prefix
// cache. The file is read and written on the inference thread, so running answers wait meanwhile.
#include "server/serve/serve_internal.h"
#include "base/clock.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { SAVE, RESTORE, ERASE, N_ACTIONS, MOST_NAME = 200 };

static const char *const actions[] = {"save", "restore", "erase"};

// ---- the request ----

static int find_action(const char *text) {
    int i = 0;
    while (i < N_ACTIONS && (!text || strcmp(text, actions[i]))) i++;
    return i;
}

void serve_slots_request(serve_server *s, http_exchange *x, const char *text) {
    const char *action = http_query(x, "action");
    char *end;
    long id = strtol(text, &end, 10);
    int found = find_action(action);
    if (!s->options.slot_save_path)
        serve_fail_status(x, 501, "slot_save_path: not given, so this server saves no slots");
    else if (*text < '0' || *text > '9' || *end || id >= s->n_sequences)
        serve_fail_status(x, 400, "/slots/%.100s: expected a slot from 0 to %d", text, s->n_sequences - 1);
    else if (found == N_ACTIONS)
        serve_fail_status(x, 400, "action: found %.100s, expected save, restore or erase", action ? action : "none");
    else {
        serve_request *r = serve_hand_over(s, x, SERVE_SLOTS);
        if (r) r->slot.id = (int)id, r->slot.action = found;
        if (r) serve_push(&s->to_prepare, r);
    }
}

typedef struct slot_body {
    const char *filename, *salt;
} slot_body;

static const api_field fields[] = {
    {.name = "filename", .kind = API_STRING, .at = offsetof(slot_body, filename)},
    {.name = "cache_salt", .kind = API_STRING, .at = offsetof(slot_body, salt)},
    {0},
};

// A plain name, which is valid on other systems too.
static int check_name(const char *name, api_error *err) {
    size_t n = name ? strlen(name) : 0;
    if (!n) return api_fail(err, 400, "filename", "filename: expected a name, found none");
    int is_plain = n <= MOST_NAME && sl_utf8_valid_run(name, n) == n && !strstr(name, "..") && !strpbrk(name, "/\\:*?\"<>|") &&
                   name[0] != ' ' && name[0] != '.' && name[n - 1] != ' ' && name[n - 1] != '.';
    for (size_t i = 0; i < n; i++) is_plain &= (unsigned char)name[i] >= ' ' && name[i] != 0x7f;
    if (is_plain) return 0;
    return api_fail(err, 400, "filename",
                    "filename: expected a plain name of at most %d bytes, without folders, \"..\", control characters, any of "
                    ":*?\"<>| and a blank or a dot at its ends",
                    MOST_NAME);
}

static int copy_names(const serve_server *s, serve_request *r, const slot_body *b, api_error *err) {
    size_t n = strlen(s->options.slot_save_path) + strlen(b->filename) + 2;
    r->slot.path = malloc(n);
    if (!r->slot.path || (b->salt && !(r->slot.salt = strdup(b->salt)))) return api_no_memory(err);
    snprintf(r->slot.path, n, "%s/%s", s->options.slot_save_path, b->filename);
    r->slot.name = r->slot.path + strlen(s->options.slot_save_path) + 1;
    return 0;
}

int serve_slots_read(const serve_server *s, serve_request *r, api_error *err) {
    static const api_field *const tables[] = {fields, NULL};
    slot_body b = {0};
    if (r->slot.action == ERASE) return 0; // clients send any body, or none
    json_t *body = json_loadb(r->body ? r->body : "", r->n_body, JSON_REJECT_DUPLICATES, NULL);
    int rc = json_is_object(body) ? 0 : api_fail(err, 400, NULL, "the body: expected an object with \"filename\"");
    if (!rc) rc = api_fields_read(tables, body, "", &b, err);
    if (!rc) rc = check_name(b.filename, err);
    if (!rc && b.salt && r->slot.action == SAVE)
        rc = api_fail(err, 400, "cache_salt", "cache_salt: only restore has it; a slot is saved with the salt of its prompt");
    if (!rc) rc = copy_names(s, r, &b, err);
    json_decref(body);
    return rc;
}

// ---- the actions ----

static json_int_t bytes_of(const char *path) {
    struct stat st;
    return stat(path, &st) ? 0 : (json_int_t)st.st_size;
}

static json_t *save(serve_server *s, const serve_request *r, sl_error *err) {
    const sl_cached_prompt *p = &s->prompts[r->slot.id];
    double start = sl_now_ms();
    int n;
    if (!p->n) sl_fail(err, SL_ERR_ARG, "slot %d: no prompt has been prefilled in it", r->slot.id);
    if (!p->n || sl_prefix_save(s->scheduler, p, r->slot.path, &n, err)) return NULL;
    return json_pack("{s:i, s:s, s:i, s:I, s:{s:f}}", "id_slot", r->slot.id, "filename", r->slot.name, "n_saved", n,
                     "n_written", bytes_of(r->slot.path), "timings", "save_ms", sl_now_ms() - start);
}

static json_t *restore(serve_server *s, const serve_request *r, sl_error *err) {
    sl_cached_prompt *p = &s->prompts[r->slot.id];
    double start = sl_now_ms();
    if (sl_prefix_restore(s->scheduler, r->slot.path, r->slot.salt, p, err)) return NULL;
    return json_pack("{s:i, s:s, s:i, s:I, s:{s:f}}", "id_slot", r->slot.id, "filename", r->slot.name, "n_restored", p->n,
                     "n_read", bytes_of(r->slot.path), "timings", "restore_ms", sl_now_ms() - start);
}

static json_t *erase(serve_server *s, const serve_request *r) {
    sl_cached_prompt *p = &s->prompts[r->slot.id];
    int n = p->n ? sl_prefix_erase(s->scheduler, p) : 0;
    sl_cached_prompt_free(p);
    return json_pack("{s:i, s:i}", "id_slot", r->slot.id, "n_erased", n);
}

// Messages begin with the path of the file. A client gets its name only: the folder is the server's own matter.
static void hide_folder(const serve_request *r, sl_error *why) {
    sl_error shown; // the folder as a message writes it
    sl_fail(&shown, why->code, "%.*s", (int)(r->slot.name - r->slot.path), r->slot.path);
    const size_t n = strlen(shown.message);
    for (const char *at; (at = strstr(why->message, shown.message));)
        sl_fail(why, why->code, "%.*s%s", (int)(at - why->message), why->message, at + n);
}

void serve_slots_run(serve_server *s, serve_request *r) {
    sl_error why = {0};
    api_error e;
    json_t *v = r->slot.action == SAVE ? save(s, r, &why) : r->slot.action == RESTORE ? restore(s, r, &why) : erase(s, r);
    if (v) {
        serve_reply_json(r->x, 200, v);
        return;
    }
    if (why.code) {
        hide_folder(r, &why);
        api_fail_of(&e, &why);
    } else {
        api_no_memory(&e);
    }
    if (why.code == SL_ERR_IO && r->slot.action == RESTORE)
        e.status = 400; // the server cannot open the file that the client names
    serve_refuse(r, &e);
}

// ---- the slots of running answers ----

void serve_slots_begin(serve_server *s, serve_choice *c) {
    int wanted = c->request->api.id_slot, i = 0;
    if (c->slot >= 0) return;
    while (s->running[i]) i++; // the scheduler runs at most n_sequences answers
    c->slot = wanted >= 0 && wanted < s->n_sequences && !s->running[wanted] ? wanted : i;
    s->running[c->slot] = c;
}

void serve_slots_remember(serve_server *s, serve_choice *c) {
    const serve_request *r = c->request;
    const serve_prompt *p = &r->prompts[c->index / r->api.n];
    int slot = r->api.id_slot >= 0 ? r->api.id_slot : c->slot;
    if (!s->options.slot_save_path || slot < 0 || c->is_remembered) return;
    c->is_remembered = 1;
    // Without memory, the slot keeps its last prompt.
    sl_cached_prompt_set(&s->prompts[slot], p->ids.data, (int)p->ids.n, serve_sparse_prefill(p), p->plan.segment,
                         r->api.cache_salt, NULL);
}

void serve_slots_end(serve_server *s, serve_choice *c) {
    if (c->slot >= 0) s->running[c->slot] = NULL;
    c->slot = -1;
}
