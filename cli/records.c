// cli/records.c - see records.h.
#include "cli/records.h"
#include "base/json.h"
#include "base/nearest.h"
#include "cli/attn/attn_list.h"
#include "cli/error_text.h"
#include "cli/io.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cli_records_open(cli_records *r, const char *path, cli_records_kind kind, sl_error *err) {
    *r = (cli_records){.path = path, .kind = kind, .file = strcmp(path, "-") ? fopen(path, "rb") : stdin};
    return r->file ? 0 : sl_fail(err, SL_ERR_IO, "cannot open %s: %s", path, strerror(errno));
}

void cli_records_close(cli_records *r) {
    if (r->file && r->file != stdin) fclose(r->file);
    free(r->line);
    sl_ids_free(&r->context_ids);
    sl_text_free(&r->context);
    sl_text_free(&r->whole);
    *r = (cli_records){0};
}

static int check_text(const cli_records *r, const json_t *record, sl_error *err) {
    if (json_is_string(sl_json_get(record, "text"))) return 0;
    return sl_fail(err, SL_ERR_FORMAT, "%s: line %d: expected an object with a string \"text\"", r->path, r->n_lines);
}

static int check_messages(const cli_records *r, const json_t *record, const json_t *messages, const char *other,
                          sl_error *err) {
    const json_t *tools = sl_json_get(record, "tools");
    if (other)
        return sl_fail(err, SL_ERR_FORMAT, "%s: line %d: expected \"messages\" or \"%s\", found both", r->path, r->n_lines,
                       other);
    if (!json_array_size(messages))
        return sl_fail(err, SL_ERR_FORMAT, "%s: line %d: \"messages\": expected a list of messages", r->path, r->n_lines);
    if (tools && !json_is_array(tools))
        return sl_fail(err, SL_ERR_FORMAT, "%s: line %d: \"tools\": expected a list of tools", r->path, r->n_lines);
    return 0;
}

static int check_prompt(const cli_records *r, const json_t *record, sl_error *err) {
    const json_t *prompt = sl_json_get(record, "prompt");
    const char *other = sl_json_get(record, "context") ? "context" : sl_json_get(record, "question") ? "question" : NULL;
    const json_t *messages = r->kind == CLI_RECORDS_CHATS ? sl_json_get(record, "messages") : NULL;
    if (messages) return check_messages(r, record, messages, prompt ? "prompt" : other, err);
    if (prompt && other)
        return sl_fail(err, SL_ERR_FORMAT, "%s: line %d: expected \"prompt\" or \"%s\", found both", r->path, r->n_lines,
                       other);
    if (prompt && !json_is_string(prompt))
        return sl_fail(err, SL_ERR_FORMAT, "%s: line %d: \"prompt\": expected a string", r->path, r->n_lines);
    for (int i = 0; !prompt && i < 2; i++) {
        const char *field = i ? "question" : "context";
        if (!json_is_string(sl_json_get(record, field)))
            return sl_fail(err, SL_ERR_FORMAT, "%s: line %d: expected an object with a string \"%s\"%s", r->path, r->n_lines,
                           field, i || other ? "" : ", or a string \"prompt\"");
    }
    return 0;
}

// Checks a field with a method, which is only parsed: this model may still refuse it later.
static int check_attn(const cli_records *r, const json_t *record, const char *field, const char *flag, sl_error *err) {
    const json_t *attn = sl_json_get(record, field);
    const char *text = json_string_value(attn); // NULL: no string
    sl_attn_spec spec;
    sl_error why;
    if (!attn) return 0;
    if (!text || strlen(text) != json_string_length(attn))
        return sl_fail(err, SL_ERR_FORMAT, "%s: line %d: \"%s\": expected a string, as %s takes it", r->path, r->n_lines, field,
                       flag);
    if (!cli_attn_parse(flag, text, &spec, &why)) return 0;
    return sl_fail(err, SL_ERR_FORMAT, "%s: line %d: \"%s\": %.800s", r->path, r->n_lines, field, why.message);
}

// Refuses a field that no command knows, which would be left out in silence. The last fields before the chats' describe a
// record for its reader or for a script, as scripts/train/tiny_text.py writes them; no command reads them.
static int check_fields(const cli_records *r, json_t *record, sl_error *err) {
    static const char *const known[] = {"context", "question", "prompt", "id",   "reference", "attn",     "attn_prefill",
                                        "seq",     "logprobs", "answer", "kind", "metadata",  "messages", "tools"};
    int n_known = sizeof known / sizeof *known - (r->kind == CLI_RECORDS_CHATS ? 0 : 2);
    const char *name;
    json_t *value;
    json_object_foreach(record, name, value) {
        int i = 0;
        while (i < n_known && strcmp(known[i], name)) i++;
        if (i < n_known) continue;
        const char *nearest = sl_nearest(name, known, n_known);
        return sl_fail(err, SL_ERR_FORMAT, "%s: line %d: unknown field \"%.60s\"%s%s%s", r->path, r->n_lines, name,
                       nearest ? "; did you mean \"" : "; docs/use.md lists the fields", nearest ? nearest : "",
                       nearest ? "\"?" : "");
    }
    return 0;
}

// Checks the fields of a line.
static int check_record(const cli_records *r, json_t *record, sl_error *err) {
    const json_t *seq = sl_json_get(record, "seq"), *logprobs = sl_json_get(record, "logprobs");
    if (r->kind == CLI_RECORDS_TEXTS) return check_text(r, record, err);
    int rc = check_prompt(r, record, err);
    if (!rc) rc = check_fields(r, record, err);
    if (rc) return rc;
    if (seq && (!json_is_integer(seq) || json_integer_value(seq) < 0 || json_integer_value(seq) > UINT32_MAX))
        return sl_fail(err, SL_ERR_FORMAT, "%s: line %d: \"seq\": expected a whole number from 0 to 4294967295", r->path,
                       r->n_lines);
    if (logprobs &&
        (!json_is_integer(logprobs) || json_integer_value(logprobs) < 0 || json_integer_value(logprobs) > SL_MAX_LOGPROBS))
        return sl_fail(err, SL_ERR_FORMAT, "%s: line %d: \"logprobs\": expected a whole number from 0 to %d", r->path,
                       r->n_lines, SL_MAX_LOGPROBS);
    rc = check_attn(r, record, "attn", "--attn", err);
    return rc ? rc : check_attn(r, record, "attn_prefill", "--attn-prefill", err);
}

static int plain_record(const cli_records *r, size_t n, json_t **out, sl_error *err) {
    while (n && (r->line[n - 1] == '\n' || r->line[n - 1] == '\r')) n--;
    json_t *text = json_stringn(r->line, n);
    if (!text) return sl_fail(err, SL_ERR_FORMAT, "%s: line %d: expected UTF-8 text", r->path, r->n_lines);
    *out = json_object();
    json_object_set_new(*out, "prompt", text);
    return 0;
}

int cli_records_next(cli_records *r, json_t **out, sl_error *err) {
    ssize_t n;
    *out = NULL;
    while (errno = 0, (n = getline(&r->line, &r->cap, r->file)) >= 0) {
        r->n_lines++;
        if (strspn(r->line, " \t\r\n") == (size_t)n) continue;
        if (r->kind == CLI_RECORDS_PLAIN) return plain_record(r, (size_t)n, out, err);
        json_error_t e;
        json_t *record = json_loadb(r->line, (size_t)n, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &e);
        if (!record)
            return sl_fail(err, SL_ERR_FORMAT, "%s: line %d: expected a JSON object: %s (column %d)", r->path, r->n_lines,
                           e.text, e.column);
        int rc = check_record(r, record, err);
        if (rc)
            json_decref(record);
        else
            *out = record;
        return rc;
    }
    return ferror(r->file) ? sl_fail(err, SL_ERR_IO, "cannot read %s: %s", r->path, strerror(errno)) : 0;
}

int cli_records_check(cli_records *r, int *n, sl_error *err) {
    json_t *record;
    int rc = 0;
    *n = 0;
    if (fseek(r->file, 0, SEEK_SET)) return 0;
    while (!(rc = cli_records_next(r, &record, err)) && record) {
        json_decref(record);
        ++*n;
    }
    r->n_lines = 0;
    if (!rc) rewind(r->file);
    return rc;
}

static int set_text(sl_text *text, const json_t *string, sl_error *err) {
    text->n = 0;
    return sl_text_append(text, json_string_value(string), json_string_length(string), err);
}

int cli_records_tokenize(cli_records *r, const sl_tokenizer *tok, const json_t *record, sl_ids *ids, int *n_shared,
                         sl_error *err) {
    const json_t *prompt = sl_json_get(record, "prompt"), *context = sl_json_get(record, "context"),
                 *question = sl_json_get(record, "question");
    size_t n = json_string_length(context);
    int rc = 0;
    if (!prompt && (!r->context.data || n != r->context.n || memcmp(r->context.data, json_string_value(context), n))) {
        r->context_ids.n = 0;
        rc = set_text(&r->context, context, err);
        if (!rc) rc = sl_tokenize(tok, r->context.data, r->context.n, SL_TOK_BOS, &r->context_ids, err);
    }
    if (!rc) rc = set_text(&r->whole, prompt ? prompt : context, err);
    if (!rc && !prompt) rc = sl_text_append(&r->whole, json_string_value(question), json_string_length(question), err);
    ids->n = 0;
    if (!rc) rc = sl_tokenize(tok, r->whole.data, r->whole.n, SL_TOK_BOS, ids, err);
    *n_shared = prompt ? (int)ids->n : 0;
    if (rc || prompt) return rc;
    *n_shared = cli_common_prefix(ids->data, ids->n, r->context_ids.data, r->context_ids.n);
    return 0;
}

const char *cli_record_attn(const json_t *record) {
    return json_string_value(sl_json_get(record, "attn"));
}

const char *cli_record_attn_prefill(const json_t *record) {
    return json_string_value(sl_json_get(record, "attn_prefill"));
}

const json_t *cli_record_logprobs(const json_t *record) {
    return sl_json_get(record, "logprobs");
}

uint32_t cli_record_sequence(const json_t *record, uint32_t seq_id, int i) {
    const json_t *seq = sl_json_get(record, "seq");
    return seq ? (uint32_t)json_integer_value(seq) : seq_id + (uint32_t)i;
}

int cli_records_at_line(const cli_records *r, int line, int rc, sl_error *err) {
    char reason[800];
    if (!rc || rc == SL_ERR_IO) return rc;
    snprintf(reason, sizeof reason, "%.799s", cli_error_text(err));
    return sl_fail(err, (sl_err)rc, "%s: line %d: %s", r->path, line, reason);
}

int cli_records_check_flags(const cli_input_options *o, const cli_ids_options *ids, const char *mode, sl_error *err) {
    const char *other = o->prompt              ? "--prompt"
                        : o->file              ? "--file"
                        : ids->path            ? "--ids"
                        : ids->n_random        ? "--random-prompt"
                        : o->dense_prefix >= 0 ? "--dense-prefix"
                                               : NULL;
    return other ? sl_fail(err, SL_ERR_ARG, "flag %s cannot be used with %s", other, mode) : 0;
}
