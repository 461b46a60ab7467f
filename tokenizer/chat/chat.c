// tokenizer/chat/chat.c - finds and loads chat templates, and renders and tokenizes conversations.
//
// Sources of a model's template, in the order of transformers: chat_template.jinja and additional_chat_templates/,
// chat_template.json, tokenizer_config.json. A template can have the names "default", "tool_use" and "rag".
#include "tokenizer/chat/chat.h"
#include "base/json.h"
#include "tokenizer/chat/chat_builtin.h"
#include "tokenizer/jinja/jinja.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST_TEMPLATE = 1 << 20 }; // bytes; the longest published template has 30 kB

struct sl_chat_template {
    char *name;
    sl_jinja *main, *tool_use;      // tool_use: for conversations with tools; NULL: none
    json_t *tokens;                 // {"bos_token": "<s>", ...} of the documents
    const sl_chat_builtin *builtin; // NULL: a text of the model or the user
};

const char *sl_chat_role(const char *name) {
    static const char *const roles[] = {"system", "user", "assistant"};
    for (size_t i = 0; name && i < sizeof roles / sizeof *roles; i++)
        if (!strcmp(roles[i], name)) return roles[i];
    return NULL;
}

const char *sl_chat_name(const sl_chat_template *t) {
    return t->name;
}

const char *sl_chat_text(const sl_chat_template *t, size_t *n) {
    return sl_jinja_text(t->tool_use ? t->tool_use : t->main, n);
}

void sl_chat_template_free(sl_chat_template *t) {
    if (!t) return;
    sl_jinja_free(t->main);
    sl_jinja_free(t->tool_use);
    json_decref(t->tokens);
    free(t->name);
    free(t);
}

// ---- the special tokens of the documents ----

static const char *const token_names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                          "pad_token", "cls_token", "mask_token"};

// Sets the fields of `tokens` from a document's fields: strings, or objects with "content".
static int add_tokens(json_t *tokens, const json_t *root) {
    for (size_t i = 0; i < sizeof token_names / sizeof *token_names; i++) {
        json_t *v = sl_json_get(root, token_names[i]);
        if (json_is_object(v)) v = sl_json_get(v, "content");
        if (json_is_string(v) && json_object_set(tokens, token_names[i], v)) return -1;
    }
    return 0;
}

static int load_tokens(const sl_documents *d, json_t **out, sl_error *err) {
    static const char *const names[] = {"tokenizer_config.json", "special_tokens_map.json"};
    int rc = 0, is_complete = 0;
    *out = json_object();
    for (size_t i = 0; !rc && i < 2; i++) {
        json_t *root = NULL;
        if (i && is_complete) break; // transformers reads the second file only for old tokenizers
        rc = sl_documents_json(d, names[i], 1, &root, err);
        if (!rc && root && add_tokens(*out, root)) rc = sl_fail(err, SL_ERR_MEMORY, "chat template: out of memory");
        is_complete = sl_json_get(root, "added_tokens_decoder") != NULL;
        json_decref(root);
    }
    return rc;
}

// ---- sources of templates ----

static int parse(const char *path, const char *text, size_t n, sl_jinja **out, sl_error *err) {
    return sl_jinja_parse(path, text, n, out, err);
}

// Parses a document that is a template. *out NULL: there is no such document.
static int load_jinja_document(const sl_documents *d, const char *name, sl_jinja **out, sl_error *err) {
    char path[SL_DOCUMENT_PATH];
    sl_text text = {0};
    *out = NULL;
    if (!sl_documents_have(d, name)) return 0;
    sl_documents_path(d, name, path);
    int rc = sl_documents_text(d, name, MOST_TEMPLATE, &text, err);
    if (!rc) rc = parse(path, text.data, text.n, out, err);
    sl_text_free(&text);
    return rc;
}

// The template of a name in a value of chat_template: a string, a list of {name, template}, or an object {name: template}.
static const json_t *named_template(const json_t *value, const char *name) {
    if (json_is_object(value)) return sl_json_get(value, name);
    if (!json_is_array(value)) return strcmp(name, "default") ? NULL : value;
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *entry = json_array_get(value, i);
        const char *entry_name = json_string_value(sl_json_get(entry, "name"));
        if (entry_name && !strcmp(entry_name, name)) return sl_json_get(entry, "template");
    }
    return NULL;
}

static int load_json_document(const sl_documents *d, const char *document, const char *name, sl_jinja **out, sl_error *err) {
    char path[SL_DOCUMENT_PATH];
    json_t *root;
    *out = NULL;
    int rc = sl_documents_json(d, document, 1, &root, err);
    if (rc || !root) return rc;
    sl_documents_path(d, document, path);
    const json_t *text = named_template(sl_json_get(root, "chat_template"), name);
    if (json_is_string(text))
        rc = parse(path, json_string_value(text), json_string_length(text), out, err);
    else if (text)
        rc = sl_fail(err, SL_ERR_FORMAT, "%s: field chat_template is %s, expected a string", path, sl_json_type(text));
    json_decref(root);
    return rc;
}

// Finds the model's template of a name. *document: where it was found. *out NULL: there is none.
static int find_template(const sl_documents *d, const char *name, const char **document, sl_jinja **out, sl_error *err) {
    static const char *const documents[] = {"chat_template.json", "tokenizer_config.json"};
    char additional[200];
    int is_default = !strcmp(name, "default"), rc;
    *document = "chat_template.jinja";
    snprintf(additional, sizeof additional, "additional_chat_templates/%.100s.jinja", name);
    rc = load_jinja_document(d, is_default ? *document : additional, out, err);
    for (size_t i = 0; !rc && !*out && i < 2; i++) {
        *document = documents[i];
        rc = load_json_document(d, documents[i], name, out, err);
    }
    return rc;
}

// Mistral's own folders have no template: the version of the tokenizer decides the form of prompts.
static int load_mistral(const sl_documents *d, sl_chat_template *t, const char **document, sl_error *err) {
    static const char *const versions[] = {"v1", "v2", "v3", "v7", "v7m1", "v11"};
    char file[40], name[40] = "", version[20] = "";
    json_t *root = NULL;
    int is_tekken = sl_documents_have(d, "tekken.json"), rc = 0;
    if (is_tekken) {
        rc = sl_documents_json(d, "tekken.json", 0, &root, err);
        const char *text = json_string_value(sl_json_get(sl_json_get(root, "config"), "version"));
        snprintf(version, sizeof version, "%s", text ? text : "");
        json_decref(root);
    }
    for (size_t i = 0; !rc && !is_tekken && i < sizeof versions / sizeof *versions; i++) {
        snprintf(file, sizeof file, "tokenizer.model.%s", versions[i]);
        if (sl_documents_have(d, file)) snprintf(version, sizeof version, "%.2s%s", versions[i], i == 5 ? "1" : "");
    }
    if (rc || (!is_tekken && !*version)) return rc;
    snprintf(name, sizeof name, "mistral-%s%s", version, is_tekken ? "-tekken" : "");
    t->builtin = sl_chat_builtin_find(name);
    if (!t->builtin)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "%s: there is no chat template for version %s of Mistral's tokenizers; pass {template_name}", d->path,
                       version);
    *document = t->builtin->name;
    return parse(t->builtin->name, t->builtin->text, strlen(t->builtin->text), &t->main, err);
}

static int load_own(const sl_documents *d, sl_chat_template *t, const char **document, sl_error *err) {
    const char *other;
    int rc = find_template(d, "default", document, &t->main, err);
    if (!rc) rc = find_template(d, "tool_use", t->main ? &other : document, &t->tool_use, err);
    if (rc) return rc;
    if (!t->main && t->tool_use) {
        t->main = t->tool_use;
        t->tool_use = NULL;
    }
    if (t->main) return 0;
    rc = load_mistral(d, t, document, err);
    if (rc || t->main) return rc;
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "%s: the model has no chat template; pass {template_name} with a file or one of: %s", d->path,
                   sl_chat_names());
}

static int load_file(const char *path, sl_jinja **out, sl_error *err) {
    char dir[SL_DOCUMENT_PATH];
    const char *slash = strrchr(path, '/');
    snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - path) + (slash == path) : 1, slash ? path : ".");
    return load_jinja_document(&SL_FOLDER(dir), slash ? slash + 1 : path, out, err);
}

static int load_named(const sl_documents *d, const char *name, sl_chat_template *t, const char **title, sl_error *err) {
    *title = name;
    t->builtin = sl_chat_builtin_find(name);
    if (t->builtin) return parse(name, t->builtin->text, strlen(t->builtin->text), &t->main, err);
    int rc = !strchr(name, '/') ? find_template(d, name, title, &t->main, err) : 0;
    if (!rc && t->main) *title = name;
    if (rc || t->main) return rc;
    *title = name;
    rc = access(name, F_OK) ? 0 : load_file(name, &t->main, err);
    if (rc || t->main) return rc;
    return sl_fail(err, SL_ERR_ARG, "{template_name} %.100s: expected a file, or one of %s", name, sl_chat_names());
}

int sl_chat_load(const sl_documents *d, const char *name, sl_chat_template **out, sl_error *err) {
    sl_chat_template *t = calloc(1, sizeof *t);
    const char *title = NULL;
    if (!t) return sl_fail(err, SL_ERR_MEMORY, "chat template: out of memory");
    int rc = name ? load_named(d, name, t, &title, err) : load_own(d, t, &title, err);
    if (!rc) rc = load_tokens(d, &t->tokens, err);
    if (!rc && !(t->name = strdup(title))) rc = sl_fail(err, SL_ERR_MEMORY, "chat template: out of memory");
    if (rc) {
        sl_chat_template_free(t);
        return rc;
    }
    *out = t;
    return 0;
}

// ---- variables ----

json_t *sl_chat_messages(const sl_message *messages, int n) {
    json_t *list = json_array();
    for (int i = 0; list && i < n; i++) {
        json_t *content = json_stringn_nocheck(messages[i].content ? messages[i].content : "", messages[i].n);
        json_t *message = content ? json_pack("{s:s, s:o}", "role", messages[i].role, "content", content) : NULL;
        if (json_array_append_new(list, message)) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static int set(json_t *object, const char *name, json_t *value) { // takes the reference; -1: out of memory
    return value ? json_object_set_new_nocheck(object, name, value) : -1;
}

// A message as transformers gives it to the template: fields of null are left out, and the names of thoughts are joined.
static json_t *plain_message(const json_t *message) {
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    const char *key;
    json_t *value, *made = json_object(), *thoughts = NULL;
    int bad = !made;
    json_object_foreach((json_t *)message, key, value) if (!json_is_null(value)) bad |=
        json_object_set_nocheck(made, key, value) != 0;
    for (size_t i = 0; !bad && !thoughts && i < 3; i++) thoughts = json_object_get(made, names[i]);
    if (thoughts && !json_object_get(made, "thinking")) bad |= json_object_set(made, "thinking", thoughts) != 0;
    if (thoughts) bad |= json_object_set(made, "reasoning_content", thoughts) != 0;
    if (!bad) return made;
    json_decref(made);
    return NULL;
}

// The value of a JSON text: of another text the text itself, of an empty text an empty object.
static int parse_value(const char *field, const json_t *text, json_t **out, sl_error *err) {
    json_error_t e = {0};
    if (!json_is_string(text))
        *out = json_incref((json_t *)text);
    else if (!json_string_length(text))
        *out = json_object();
    else
        *out = json_loadb(json_string_value(text), json_string_length(text), JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
    if (!*out && json_error_code(&e) == json_error_numeric_overflow)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s of a message has a number that is too large", field);
    if (!*out) *out = json_incref((json_t *)text);
    return 0;
}

// For Mistral's built-in templates: the arguments of tool calls as values, and the content of a tool's message as `parsed`.
static int parse_texts(json_t *message, sl_error *err) {
    json_t *calls = json_deep_copy(json_object_get(message, "tool_calls")), *call, *value = NULL;
    const json_t *content = json_object_get(message, "content");
    size_t i;
    int rc = 0;
    json_array_foreach(calls, i, call) {
        json_t *function = json_object_get(call, "function"), *arguments = json_object_get(function, "arguments");
        if (!rc && arguments) rc = parse_value("arguments", arguments, &value, err);
        if (!rc && arguments && json_object_set_new(function, "arguments", value)) rc = SL_ERR_MEMORY;
    }
    if (!rc && calls && json_object_set(message, "tool_calls", calls)) rc = SL_ERR_MEMORY;
    json_decref(calls);
    if (!rc && content) rc = parse_value("content", content, &value, err);
    if (!rc && content && json_object_set_new(message, "parsed", value)) rc = SL_ERR_MEMORY;
    return rc == SL_ERR_MEMORY ? sl_fail(err, SL_ERR_MEMORY, "chat template: out of memory") : rc;
}

static int add_messages(const sl_chat_template *t, const sl_chat_request *r, json_t *marked, sl_error *err) {
    json_t *list = json_array();
    int rc = 0;
    for (size_t i = 0; i < json_array_size(r->messages); i++) {
        const json_t *message = json_array_get(r->messages, i);
        if (!json_is_object(message)) {
            json_decref(list);
            return sl_fail(err, SL_ERR_ARG, "message %zu is %s, expected an object", i + 1, sl_json_type(message));
        }
        json_t *made = plain_message(message);
        if (made && t->builtin && !strncmp(t->builtin->name, "mistral-v", 9)) rc = parse_texts(made, err);
        if (json_array_append_new(list, made) && !rc) rc = sl_fail(err, SL_ERR_MEMORY, "chat template: out of memory");
        if (rc) {
            json_decref(list);
            return rc;
        }
    }
    return set(marked, "messages", list) ? sl_fail(err, SL_ERR_MEMORY, "chat template: out of memory") : 0;
}

// 1: the tokenizer puts the blank of SentencePiece in front of a text after a special token, or puts none anywhere.
static int writes_blank(const sl_tokenizer *tok) {
    sl_ids start = {0}, later = {0};
    sl_text text = {0};
    int32_t bos = tok ? sl_tokenizer_bos(tok) : -1;
    int same = 0;
    if (bos >= 0 && !sl_token_bytes(tok, bos, &text, NULL) && !sl_text_append(&text, "a", 1, NULL) &&
        !sl_tokenize(tok, "a", 1, 0, &start, NULL) && !sl_tokenize(tok, text.data, text.n, 0, &later, NULL))
        same = later.n == start.n + 1 && !memcmp(later.data + 1, start.data, start.n * sizeof *start.data);
    sl_ids_free(&start);
    sl_ids_free(&later);
    sl_text_free(&text);
    return same;
}

// The variables with marks, and those without.
static int make_variables(const sl_chat_template *t, const sl_tokenizer *tok, const sl_chat_request *r, json_t *marked,
                          json_t *plain, sl_error *err) {
    const struct {
        const char *name, *otherwise;
        int32_t id;
    } ends[] = {{"bos_token", t->builtin ? t->builtin->bos : NULL, tok ? sl_tokenizer_bos(tok) : -1},
                {"eos_token", t->builtin ? t->builtin->eos : NULL, tok ? sl_tokenizer_eos(tok) : -1}};
    int bad = json_object_update(plain, t->tokens) != 0;
    for (int i = 0; !bad && i < 2; i++) {
        sl_text text = {0};
        if (json_object_get(plain, ends[i].name)) continue;
        if (ends[i].id >= 0 && sl_token_bytes(tok, ends[i].id, &text, NULL)) bad = 1;
        if (!bad && text.n) bad |= set(plain, ends[i].name, json_stringn_nocheck(text.data, text.n));
        if (!bad && !tok && ends[i].otherwise) bad |= set(plain, ends[i].name, json_string(ends[i].otherwise));
        sl_text_free(&text);
    }
    bad |= set(plain, "add_generation_prompt", json_boolean(!r->finished));
    bad |= json_object_set(marked, "tools", r->tools ? (json_t *)r->tools : json_null());
    bad |= json_object_set(marked, "documents", r->documents ? (json_t *)r->documents : json_null());
    if (t->builtin) bad |= set(plain, "blank", json_string(writes_blank(tok) ? "" : " "));
    if (r->options) bad |= json_object_update(marked, (json_t *)r->options);
    if (bad) return sl_fail(err, SL_ERR_MEMORY, "chat template: out of memory");
    return add_messages(t, r, marked, err);
}

// ---- rendering ----

void sl_prompt_free(sl_prompt *p) {
    sl_text_free(&p->text);
    free(p->plain);
    *p = (sl_prompt){0};
}

int sl_prompt_head(const sl_prompt *p, size_t n, sl_prompt *out, sl_error *err) {
    sl_prompt_free(out);
    int rc = sl_text_append(&out->text, p->text.data, n, err);
    if (rc || !p->n_plain) return rc;
    out->plain = malloc(p->n_plain * sizeof *out->plain);
    if (!out->plain) return sl_fail(err, SL_ERR_MEMORY, "chat template: out of memory");
    for (; out->n_plain < p->n_plain && p->plain[out->n_plain].from < n; out->n_plain++) {
        out->plain[out->n_plain] = p->plain[out->n_plain];
        if (out->plain[out->n_plain].to > n) out->plain[out->n_plain].to = n;
    }
    return 0;
}

// The marked bytes as spans.
static int make_spans(const unsigned char *marks, size_t n, sl_prompt *out, sl_error *err) {
    size_t count = 0;
    for (size_t i = 0; marks && i < n; i++) count += marks[i] && (!i || !marks[i - 1]);
    if (!count) return 0;
    out->plain = malloc(count * sizeof *out->plain);
    if (!out->plain) return sl_fail(err, SL_ERR_MEMORY, "chat template: out of memory");
    for (size_t i = 0; i < n; i++) {
        if (!marks[i]) continue;
        if (!i || !marks[i - 1]) out->plain[out->n_plain++].from = i;
        out->plain[out->n_plain - 1].to = i + 1;
    }
    return 0;
}

int sl_chat_render(const sl_chat_template *t, const sl_tokenizer *tok, const sl_chat_request *r, sl_prompt *out,
                   sl_error *err) {
    json_t *marked = json_object(), *plain = json_object();
    sl_jinja_output text = {0};
    sl_prompt_free(out);
    int rc = marked && plain ? 0 : sl_fail(err, SL_ERR_MEMORY, "chat template: out of memory");
    if (!rc) rc = make_variables(t, tok, r, marked, plain, err);
    if (!rc && r->parse_special && json_object_update(plain, marked))
        rc = sl_fail(err, SL_ERR_MEMORY, "chat template: out of memory");
    const sl_jinja_input in = {.plain = plain, .marked = r->parse_special ? NULL : marked, .now = time(NULL)};
    if (!rc) rc = sl_jinja_render(t->tool_use && r->tools ? t->tool_use : t->main, &in, &text, err);
    if (!rc) rc = make_spans(text.marks, text.text.n, out, err);
    if (!rc) {
        out->text = text.text;
        text.text = (sl_text){0};
    } else {
        sl_prompt_free(out);
    }
    sl_jinja_output_free(&text);
    json_decref(marked);
    json_decref(plain);
    return rc;
}

// ---- tokens ----

typedef struct marker_check {
    const sl_tokenizer *tok;
    const sl_prompt *p;
    const char *missing;
} marker_check;

// 1: the text occurs in the prompt where no byte of it comes from messages.
static int writes(const sl_prompt *p, const char *marker) {
    size_t n = strlen(marker), span = 0;
    for (size_t at = 0; at + n <= p->text.n;) {
        const char *found = memmem(p->text.data + at, p->text.n - at, marker, n);
        if (!found) return 0;
        at = (size_t)(found - p->text.data);
        while (span < p->n_plain && p->plain[span].to <= at) span++;
        if (span == p->n_plain || p->plain[span].from >= at + n) return 1;
        at++;
    }
    return 0;
}

static void check_marker(void *ctx, const char *marker) {
    marker_check *c = ctx;
    if (!c->missing && *marker && sl_tokenizer_find(c->tok, marker) < 0 && writes(c->p, marker)) c->missing = marker;
}

static int check_markers(const sl_chat_template *t, const sl_tokenizer *tok, const sl_prompt *p, sl_error *err) {
    marker_check c = {.tok = tok, .p = p};
    const char *name;
    json_t *text;
    sl_chat_markers(check_marker, &c);
    for (int i = 0; t->builtin && t->builtin->markers[i]; i++) check_marker(&c, t->builtin->markers[i]);
    json_object_foreach(t->tokens, name, text) check_marker(&c, json_string_value(text));
    if (!c.missing) return 0;
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "chat template %.200s: it writes %.100s, which is no token of this model's tokenizer", t->name, c.missing);
}

int sl_chat_tokenize(const sl_chat_template *t, const sl_tokenizer *tok, const sl_prompt *p, sl_ids *ids, sl_error *err) {
    sl_text bos = {0};
    int32_t id = sl_tokenizer_bos(tok);
    int rc = check_markers(t, tok, p, err);
    if (!rc && id >= 0) rc = sl_token_bytes(tok, id, &bos, err);
    int has_bos =
        bos.n && p->text.n >= bos.n && !memcmp(p->text.data, bos.data, bos.n) && !(p->n_plain && p->plain[0].from < bos.n);
    if (!rc) rc = sl_tokenize_marked(tok, p->text.data, p->text.n, p->plain, p->n_plain, has_bos ? 0 : SL_TOK_BOS, ids, err);
    sl_text_free(&bos);
    return rc;
}

static int blank(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

int32_t sl_chat_end_of_turn(const sl_chat_template *t, const sl_tokenizer *tok) {
    static const char reply[] = "Sleigh's reply";
    const sl_message probe[] = {{"user", "a", 1}, {"assistant", reply, sizeof reply - 1}, {"user", "c", 1}};
    json_t *messages = sl_chat_messages(probe, 3);
    sl_prompt p = {0};
    sl_ids ids = {0};
    int32_t end = -1;
    if (messages && !sl_chat_render(t, tok, &(sl_chat_request){.messages = messages}, &p, NULL)) {
        const char *at = memmem(p.text.data, p.text.n, reply, sizeof reply - 1);
        size_t from = at ? (size_t)(at - p.text.data) + sizeof reply - 1 : p.text.n;
        while (from < p.text.n && blank(p.text.data[from])) from++;
        if (from < p.text.n && !sl_tokenize(tok, p.text.data + from, p.text.n - from, 0, &ids, NULL) && ids.n &&
            sl_tokenizer_is_special(tok, ids.data[0]))
            end = ids.data[0];
    }
    json_decref(messages);
    sl_prompt_free(&p);
    sl_ids_free(&ids);
    return end;
}
