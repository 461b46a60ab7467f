// cli/generate/jsonl.c - sleigh generate --jsonl: many questions over long contexts, one JSON object per answer.
//
// Set-up B: dense attention prefills the context of a line, and --attn decodes the question token by token. Context and
// question are tokenized as one text; the common prefix with the tokens of only the context counts as the context. One session
// serves all lines: the rows of a common prefix of two consecutive contexts stay in the cache (with a sparse prefill only if
// the second context has the same segments). A line may name its methods ("attn", "attn_prefill") and the sequence number that
// keys its random numbers ("seq"), so that one prefill serves many methods.
#include "cli/generate/jsonl.h"
#include "base/json.h"
#include "cli/error_text.h"
#include "cli/generate/answer.h"
#include "cli/generate/chat_record.h"
#include "cli/io.h"
#include "cli/output/progress_bar.h"
#include "cli/process.h"
#include "cli/records.h"
#include "cli/run/load_model.h"
#include "cli/run/run.h"
#include "cli/timeline.h"

#include <stdio.h>
#include <string.h>

typedef struct job {
    const cli_generate_flags *o;
    cli_run *run;
    cli_timeline t;
    cli_records records;
    int n_total;  // records in the file; 0: unknown
    sl_ids ids;   // of the line
    int n_shared; // tokens of the context, a prefix of ids
    sl_text answer;
    eval_prompter prompter; // of --chat
    sl_text attn;           // method of the previous line; "": the method of the flags
    cli_model_name model;
    cli_totals all;
} job;

// Sets the method of the line if it differs from the previous one.
static int set_method(job *j, const json_t *record, sl_error *err) {
    const char *attn = cli_record_attn(record), *text = attn ? attn : "";
    if (!strcmp(text, j->attn.data ? j->attn.data : "")) return 0;
    sl_error why;
    int rc = cli_run_set_attention(j->run, attn, &why);
    if (rc) return sl_fail(err, rc, "\"attn\": %.900s", cli_error_text(&why));
    j->attn.n = 0;
    return sl_text_append(&j->attn, text, strlen(text) + 1, err);
}

static int answer(job *j, sl_error *err) {
    cli_timeline *t = &j->t;
    int n = (int)j->ids.n, n_dense = j->o->input->question_dense ? n : j->n_shared;
    int rc = cli_timeline_prefix(t, j->ids.data, n_dense, n, err);
    if (!rc) rc = cli_timeline_feed(t, j->ids.data + n_dense, n - n_dense, err);
    j->answer.n = 0;
    if (!rc) rc = sl_text_append(&j->answer, "", 0, err);
    return rc ? rc
              : cli_timeline_generate(t, j->o->run->limits.n_predict, j->prompter.chat.template != NULL, cli_sink_text,
                                      &j->answer, err);
}

static int print_answer(job *j, const json_t *record, int index, sl_error *err) {
    cli_timeline *t = &j->t;
    const cli_totals totals = cli_totals_of(t);
    const cli_answer a = {.model = &j->model,
                          .index = index,
                          .group = index,
                          .id = sl_json_get(record, "id"),
                          .prompt = &j->ids,
                          .text = &j->answer,
                          .t = t,
                          .totals = &totals,
                          .with_prompt = j->o->output->display_prompt};
    cli_totals_add(&j->all, &totals);
    int rc = cli_records_at_line(&j->records, j->records.n_lines, cli_answer_print(&a, err), err);
    return rc ? rc : cli_flush(err);
}

// ---- all lines ----

static int run_line(job *j, const json_t *record, int index, sl_error *err) {
    j->t.n_logprobs = cli_answer_logprobs(j->o->output, record);
    sl_session_set_sequence(j->t.session, cli_record_sequence(record, j->o->run->sampling.seq_id, index));
    int rc = set_method(j, record, err);
    if (!rc) rc = cli_answer_set_prefill(j->run, record, err);
    const sl_tokenizer *tok = sl_model_tokenizer(j->run->model);
    if (!rc)
        rc = j->prompter.chat.template ? chat_record_tokenize(&j->prompter, record, &j->ids, &j->n_shared, err)
                                       : cli_records_tokenize(&j->records, tok, record, &j->ids, &j->n_shared, err);
    if (!rc) rc = cli_check_prompt(j->run, j->ids.n, "--ctx-size", err);
    if (!rc) rc = cli_run_set_prompt(j->run, (int)j->ids.n, err);
    if (!rc) rc = answer(j, err);
    rc = cli_records_at_line(&j->records, j->records.n_lines, rc, err);
    if (!rc && cli_interrupted())
        rc = sl_fail(err, SL_ERR_IO, "%s: interrupted at line %d", j->records.path, j->records.n_lines);
    return rc ? rc : print_answer(j, record, index, err);
}

static int run_lines(job *j, sl_error *err) {
    cli_progress progress;
    json_t *record;
    int rc = 0, index = 0;
    cli_progress_begin_run(&progress, "jsonl", "lines", j->n_total, 0, 0);
    for (; !(rc = cli_records_next(&j->records, &record, err)) && record; index++) {
        rc = run_line(j, record, index, err);
        json_decref(record);
        if (rc) break;
        cli_progress_update(&progress, index + 1, j->n_total);
    }
    cli_progress_end(&progress);
    return rc;
}

static int check_flags(const cli_generate_flags *o, sl_error *err) {
    int rc = cli_check_chat_flags(o->chat, o->given, err);
    return rc ? rc : cli_records_check_flags(o->input, &o->run->ids, "--jsonl", err);
}

static void close_job(job *j) {
    cli_records_close(&j->records);
    eval_prompter_free(&j->prompter);
    sl_ids_free(&j->ids);
    sl_text_free(&j->answer);
    sl_text_free(&j->attn);
}

int cli_generate_jsonl(const cli_generate_flags *o, sl_error *err) {
    job j = {.o = o};
    cli_run run;
    int rc = cli_need_model(&o->run->model, err);
    if (!rc) rc = check_flags(o, err);
    if (!rc && o->chat->is_on) rc = cli_chat_load(&o->run->model, o->chat, &j.prompter.chat, err);
    if (!rc) rc = cli_records_open(&j.records, o->input->jsonl, o->chat->is_on ? CLI_RECORDS_CHATS : CLI_RECORDS_PROMPTS, err);
    if (!rc) rc = cli_records_check(&j.records, &j.n_total, err);
    if (!rc) rc = cli_run_open(&run, o->run, 1, err);
    if (!rc) {
        j.run = &run;
        j.prompter.tok = sl_model_tokenizer(run.model);
        cli_model_name_of(run.model, o->run->model.path, &j.model);
        rc = cli_timeline_open(&j.t, &run, o->run->sampling.seq_id, err);
        if (!rc) {
            char prefill[CLI_ATTN_TEXT];
            cli_run_format_prefill(&run, prefill, sizeof prefill);
            cli_run_describe(&run, stderr);
            fprintf(stderr,
                    o->input->question_dense
                        ? "setup: A, prefill of contexts and questions with %s attention; --attn decodes the answers\n"
                        : "setup: B, prefill of contexts with %s attention; --attn decodes questions and answers\n",
                    prefill);
            cli_catch_interrupt(1);
            rc = run_lines(&j, err);
            if (!rc && o->output->perf) cli_totals_print(&j.all, run.load_ms, stderr);
            cli_timeline_close(&j.t);
        }
        if (!rc) rc = cli_run_finish(&run, err);
        cli_run_close(&run);
    }
    close_job(&j);
    return rc;
}
