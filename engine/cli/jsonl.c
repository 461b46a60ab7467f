// engine/cli/jsonl.c - sleigh generate --jsonl: many questions over long contexts, one JSON object per answer.
//
// Set-up B: a line's context is prefilled densely, its question goes through the decode method token by token. The tokens
// are those of context and question as one text; what they share with the context's own tokens counts as the context.
// One session serves all lines: a context that begins like the one before keeps the rows of the common part. A line may name
// its own method ("attn") and the sequence that keys its random numbers ("seq"), so that one pass over a context compares many.
#include "engine/cli/print_json.h"
#include "engine/cli/progress.h"
#include "engine/cli/run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct job {
    cli_run *run;
    cli_timeline t;
    const char *path;
    FILE *file;
    char *line; // getline's
    size_t cap;
    int n_lines, n_total; // read so far; of the file, 0: unknown
    int n_dense;          // tokens at the session's beginning that were prefilled densely
    sl_ids ids;           // of the line
    int n_shared;         // of ids: the context's part
    sl_ids context_ids;   // of `context`
    sl_text context, whole, answer;
    sl_text attn; // the method of the line before, "" for the flags'
} job;

// ---- reading ----

// The line's fields. A method is only parsed here: whether this model can run it shows when its turn comes.
static int check_record(const job *j, const json_t *r, sl_error *err) {
    const json_t *attn = json_object_get(r, "attn"), *seq = json_object_get(r, "seq");
    for (int i = 0; i < 2; i++) {
        const char *field = i ? "question" : "context";
        if (!json_is_string(json_object_get(r, field)))
            return sl_fail(err, SL_ERR_FORMAT, "%s: line %d: expected an object with a string \"%s\"", j->path, j->n_lines,
                           field);
    }
    if (seq && (!json_is_integer(seq) || json_integer_value(seq) < 0 || json_integer_value(seq) > UINT32_MAX))
        return sl_fail(err, SL_ERR_FORMAT, "%s: line %d: \"seq\": expected a whole number from 0 to 4294967295", j->path,
                       j->n_lines);
    if (!attn) return 0;
    sl_attn_spec spec;
    sl_error why = {.message = "expected a string, as --attn takes it"};
    const char *text = json_string_value(attn); // NULL: no string
    if (text && strlen(text) == json_string_length(attn) && !sl_attn_parse(text, &spec, &why)) return 0;
    return sl_fail(err, SL_ERR_FORMAT, "%s: line %d: \"attn\": %.800s", j->path, j->n_lines, why.message);
}

// The next line that is not blank, as an object. *out is NULL at the end of the file.
static int next_record(job *j, json_t **out, sl_error *err) {
    ssize_t n;
    *out = NULL;
    while (errno = 0, (n = getline(&j->line, &j->cap, j->file)) >= 0) {
        j->n_lines++;
        if (strspn(j->line, " \t\r\n") == (size_t)n) continue;
        json_error_t e;
        json_t *r = json_loadb(j->line, (size_t)n, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &e);
        if (!r) return sl_fail(err, SL_ERR_FORMAT, "%s: line %d: %s (column %d)", j->path, j->n_lines, e.text, e.column);
        int rc = check_record(j, r, err);
        if (rc)
            json_decref(r);
        else
            *out = r;
        return rc;
    }
    return ferror(j->file) ? sl_fail(err, SL_ERR_IO, "cannot read %s: %s", j->path, strerror(errno)) : 0;
}

// Reads the file once so that a malformed line is found before hours of work. A pipe is not read ahead.
static int check_file(job *j, sl_error *err) {
    json_t *record;
    int rc = 0;
    if (fseek(j->file, 0, SEEK_SET)) return 0;
    while (!(rc = next_record(j, &record, err)) && record) {
        json_decref(record);
        j->n_total++;
    }
    j->n_lines = 0;
    if (!rc) rewind(j->file);
    return rc;
}

// ---- one line ----

static int set_text(sl_text *text, const json_t *string, sl_error *err) {
    text->n = 0;
    return sl_text_append(text, json_string_value(string), json_string_length(string), err);
}

// Sets ids, n_shared.
static int tokenize_line(job *j, const json_t *record, sl_error *err) {
    const sl_tokenizer *tok = sl_model_tokenizer(j->run->model);
    const json_t *context = json_object_get(record, "context"), *question = json_object_get(record, "question");
    size_t n = json_string_length(context);
    int rc = 0;
    if (!j->context.data || n != j->context.n || memcmp(j->context.data, json_string_value(context), n)) {
        j->context_ids.n = 0;
        rc = set_text(&j->context, context, err);
        if (!rc) rc = sl_tokenize(tok, j->context.data, j->context.n, SL_TOK_BOS, &j->context_ids, err);
    }
    if (!rc) rc = set_text(&j->whole, context, err);
    if (!rc) rc = sl_text_append(&j->whole, json_string_value(question), json_string_length(question), err);
    j->ids.n = 0;
    if (!rc) rc = sl_tokenize(tok, j->whole.data, j->whole.n, SL_TOK_BOS, &j->ids, err);
    if (!rc) rc = cli_check_prompt(j->run, j->ids.n, err);
    j->n_shared = 0;
    size_t most = j->ids.n < j->context_ids.n ? j->ids.n : j->context_ids.n;
    while (!rc && (size_t)j->n_shared < most && j->ids.data[j->n_shared] == j->context_ids.data[j->n_shared]) j->n_shared++;
    return rc;
}

// The line's method, if it is not the one that runs.
static int set_method(job *j, const json_t *record, sl_error *err) {
    const json_t *attn = json_object_get(record, "attn");
    const char *text = attn ? json_string_value(attn) : "";
    if (!strcmp(text, j->attn.data ? j->attn.data : "")) return 0;
    sl_error why;
    int rc = cli_run_set_attention(j->run, attn ? text : NULL, &why);
    if (rc) return sl_fail(err, rc, "\"attn\": %.900s", why.message);
    j->attn.n = 0;
    return sl_text_append(&j->attn, text, strlen(text) + 1, err);
}

static int sink_answer(void *ctx, const char *text, size_t n, sl_error *err) {
    return sl_text_append(&((job *)ctx)->answer, text, n, err);
}

static int answer(job *j, sl_error *err) {
    cli_timeline *t = &j->t;
    int n = (int)j->ids.n, n_dense = j->run->options->question_dense ? n : j->n_shared;
    int keep = cli_timeline_common(t, j->ids.data, n_dense);
    if (keep > j->n_dense) keep = j->n_dense;
    if (keep == n) keep = n - 1; // the logits belong to the last step: take the last token again
    int rc = cli_timeline_cut(t, keep, err);
    j->n_dense = keep;
    if (!rc) rc = cli_timeline_prefill(t, j->ids.data + keep, n_dense - keep, err);
    if (!rc) j->n_dense += t->n_prefill;
    if (!rc) rc = cli_timeline_feed(t, j->ids.data + n_dense, n - n_dense, err);
    j->answer.n = 0;
    if (!rc) rc = sl_text_append(&j->answer, "", 0, err);
    return rc ? rc : cli_timeline_generate(t, 0, sink_answer, j, err);
}

static json_t *share(uint64_t n, uint64_t dense) {
    return dense ? json_real((double)n / dense) : json_null();
}

static int print_answer(const job *j, json_t *id, int index, sl_error *err) {
    const cli_timeline *t = &j->t;
    const sl_attn_stats *a = sl_engine_attn_stats(j->run->engine);
    double ms = t->feed_ms + t->decode_ms;
    char attn[CLI_ATTN_TEXT];
    cli_run_format_attention(j->run, attn, sizeof attn);
    json_t *out = json_object();
    json_t *text = json_stringn(j->answer.data, j->answer.n);
    if (!text) { // only --stop texts that cut a character in two lead here
        json_decref(out);
        return sl_fail(err, SL_ERR_FORMAT, "%s: line %d: the answer is not UTF-8", j->path, j->n_lines);
    }
    json_object_set_new(out, "id", id ? json_incref(id) : json_integer(index));
    json_object_set_new(out, "text", text);
    json_object_set_new(out, "attn", json_string(attn));
    json_object_set_new(out, "n_prompt", json_integer((json_int_t)j->ids.n));
    json_object_set_new(out, "n_prefill", json_integer(t->n_prefill)); // 0: the rows of the line before were all that it needs
    json_object_set_new(out, "n_generated", json_integer(t->n_generated));
    json_object_set_new(out, "prefill_ms", json_real(t->prefill_ms));
    json_object_set_new(out, "decode_ms", json_real(ms));
    json_object_set_new(out, "decode_tok_s", json_real(ms > 0 ? (t->n_feed + t->n_decode) * 1e3 / ms : 0));
    json_object_set_new(out, "v_rows_share", share(a->v_rows, a->dense_v_rows));
    json_object_set_new(out, "v_distinct_share", share(a->v_distinct, a->dense_k_rows));
    json_object_set_new(out, "kv_bytes_share", share(a->bytes, a->dense_bytes));
    json_object_set_new(out, "stopped", json_string(t->stopped));
    int rc = cli_print_json(out, JSON_COMPACT, err);
    return rc ? rc : cli_flush(err);
}

// ---- all lines ----

// Errors of a line say which it is.
static int at_line(const job *j, int rc, sl_error *err) {
    char reason[800];
    if (!rc || rc == SL_ERR_IO) return rc;
    snprintf(reason, sizeof reason, "%.799s", err->message);
    return sl_fail(err, (sl_err)rc, "%s: line %d: %s", j->path, j->n_lines, reason);
}

static int run_lines(job *j, sl_error *err) {
    cli_progress progress;
    json_t *record;
    int rc = 0, index = 0;
    cli_progress_begin(&progress, "jsonl", "lines");
    for (; !(rc = next_record(j, &record, err)) && record; index++) {
        const json_t *seq = json_object_get(record, "seq");
        uint32_t sequence = seq ? (uint32_t)json_integer_value(seq) : j->run->options->seq_id + (uint32_t)index;
        sl_session_set_sequence(j->t.session, sequence);
        rc = at_line(j, set_method(j, record, err), err);
        if (!rc) rc = at_line(j, tokenize_line(j, record, err), err);
        if (!rc) rc = at_line(j, answer(j, err), err);
        if (!rc && cli_interrupted()) rc = sl_fail(err, SL_ERR_IO, "%s: interrupted at line %d", j->path, j->n_lines);
        if (!rc) rc = print_answer(j, json_object_get(record, "id"), index, err);
        json_decref(record);
        if (rc) break;
        if (j->n_total) cli_progress_update(&progress, index + 1, j->n_total);
    }
    cli_progress_end(&progress);
    return rc;
}

static int check_flags(const cli_options *o, sl_error *err) {
    const char *other = o->prompt                                    ? "--prompt"
                        : o->file                                    ? "--file"
                        : o->chat                                    ? "--chat"
                        : CLI_GIVEN(o, chat_template) == CLI_BY_FLAG ? "--chat-template"
                        : CLI_GIVEN(o, system_prompt) == CLI_BY_FLAG ? "--system-prompt"
                        : o->ids                                     ? "--ids"
                        : o->random_prompt                           ? "--random-prompt"
                        : o->dense_prefix >= 0                       ? "--dense-prefix"
                        : o->display_prompt                          ? "--display-prompt"
                                                                     : NULL;
    return other ? sl_fail(err, SL_ERR_ARG, "flag %s does not go with --jsonl", other) : 0;
}

static void close_job(job *j) {
    if (j->file && j->file != stdin) fclose(j->file);
    free(j->line);
    sl_ids_free(&j->ids);
    sl_ids_free(&j->context_ids);
    sl_text_free(&j->context);
    sl_text_free(&j->whole);
    sl_text_free(&j->answer);
    sl_text_free(&j->attn);
}

int cmd_jsonl(const cli_options *o, sl_error *err) {
    job j = {.path = o->jsonl, .file = strcmp(o->jsonl, "-") ? NULL : stdin};
    cli_run run;
    int rc = cli_need_model(o, err);
    if (!rc) rc = check_flags(o, err);
    if (!rc && !j.file && !(j.file = fopen(o->jsonl, "rb")))
        rc = sl_fail(err, SL_ERR_IO, "cannot open %s: %s", o->jsonl, strerror(errno));
    if (!rc) rc = check_file(&j, err);
    if (!rc) rc = cli_run_open(&run, o, err);
    if (!rc) {
        j.run = &run;
        rc = cli_timeline_open(&j.t, &run, o->seq_id, err);
        if (!rc) {
            cli_run_describe(&run, stderr);
            fprintf(stderr, o->question_dense ? "setup: A, context and question are prefilled densely\n"
                                              : "setup: B, contexts are prefilled densely; --attn decodes the questions\n");
            cli_catch_interrupt(1);
            rc = run_lines(&j, err);
            if (!rc && o->perf) fprintf(stderr, "load: %.2f ms\npeak_rss: %.1f MiB\n", run.load_ms, cli_peak_mib());
            cli_timeline_close(&j.t);
        }
        if (!rc) rc = cli_run_finish(&run, err);
        cli_run_close(&run);
    }
    close_job(&j);
    return rc;
}
