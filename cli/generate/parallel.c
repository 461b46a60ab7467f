// cli/generate/parallel.c - sleigh generate --parallel N: many prompts in static batches of N, one JSON object per
// answer.
//
// All prompts are read, tokenized and checked first. Then each group of N lines is prefilled line by line and decoded together.
// Finished slots are not refilled until the whole batch ends. A line with another "attn" starts a new group, because the engine
// decodes with one plan at a time. Each line of a group has its own method for prefill. An answer does not depend on the other
// lines of its group.
#include "cli/generate/parallel.h"
#include "base/json.h"
#include "cli/error_text.h"
#include "cli/generate/answer.h"
#include "cli/generate/chat_record.h"
#include "cli/grow.h"
#include "cli/io.h"
#include "cli/output/progress_bar.h"
#include "cli/process.h"
#include "cli/records.h"
#include "cli/run/load_model.h"
#include "cli/run/run.h"
#include "cli/timeline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct request { // a line of the file
    int line;
    json_t *record;
    sl_ids ids;
    int n_dense; // first ids, which are prefilled; --attn decodes the rest
    char *attn;  // plan, with the choice of auto
    char *attn_prefill;
    cli_timeline t;
    sl_text text;
} request;

typedef struct job {
    const cli_generate_flags *o;
    cli_run *run;
    cli_records records;
    eval_prompter prompter; // of --chat
    request *requests;
    int n_requests, cap_requests;
    cli_timeline **batch; // [--parallel]
    const char *attn;     // method in use; NULL: the method of the flags
    cli_model_name model;
    cli_totals all;
} job;

// ---- reading ----

static int add_request(job *j, json_t *record, sl_error *err) {
    request *grown = cli_grow(j->requests, j->n_requests, &j->cap_requests, sizeof *grown);
    if (!grown) return sl_fail(err, SL_ERR_MEMORY, "%s: %d lines: out of memory", j->records.path, j->n_requests);
    j->requests = grown;
    j->requests[j->n_requests++] = (request){.line = j->records.n_lines, .record = json_incref(record)};
    return 0;
}

static int read_requests(job *j, sl_error *err) {
    json_t *record;
    int rc = 0;
    while (!rc && !(rc = cli_records_next(&j->records, &record, err)) && record) {
        rc = add_request(j, record, err);
        json_decref(record);
    }
    if (!rc && !j->n_requests) rc = sl_fail(err, SL_ERR_FORMAT, "%s: expected prompts, found none", j->records.path);
    return rc;
}

static int choose(job *j, request *r, sl_error *err) {
    char text[CLI_ATTN_TEXT];
    int rc = cli_run_choose_text(j->run, cli_record_attn(r->record), (int)r->ids.n, text, sizeof text, err);
    if (!rc && !(r->attn = strdup(text))) rc = sl_fail(err, SL_ERR_MEMORY, "--parallel: out of memory");
    return rc;
}

// Tokenizes all prompts and checks their lengths.
static int tokenize_all(job *j, sl_error *err) {
    const sl_tokenizer *tok = sl_model_tokenizer(j->run->model);
    int rc = 0;
    j->prompter.tok = tok;
    for (int i = 0; !rc && i < j->n_requests; i++) {
        request *r = &j->requests[i];
        rc = j->prompter.chat.template ? chat_record_tokenize(&j->prompter, r->record, &r->ids, &r->n_dense, err)
                                       : cli_records_tokenize(&j->records, tok, r->record, &r->ids, &r->n_dense, err);
        if (!rc) rc = cli_check_prompt(j->run, r->ids.n, "--ctx-size", err);
        if (!rc) rc = choose(j, r, err);
        if (j->o->input->question_dense) r->n_dense = (int)r->ids.n;
        rc = cli_records_at_line(&j->records, r->line, rc, err);
    }
    return rc;
}

// ---- a group ----

static int set_method(job *j, const char *attn, sl_error *err) {
    if (attn == j->attn || (attn && j->attn && !strcmp(attn, j->attn))) return 0;
    sl_error why;
    int rc = cli_run_set_attention(j->run, attn, &why);
    if (rc) return sl_fail(err, rc, "\"attn\": %.900s", cli_error_text(&why));
    j->attn = attn;
    return 0;
}

static int begin(job *j, request *r, int index, sl_error *err) {
    const cli_generate_flags *o = j->o;
    char prefill[CLI_ATTN_TEXT];
    int n = (int)r->ids.n;
    int rc = cli_timeline_open(&r->t, j->run, cli_record_sequence(r->record, o->run->sampling.seq_id, index), err);
    if (!rc) rc = cli_answer_set_prefill(j->run, r->record, err);
    if (!rc) rc = cli_run_set_prompt(j->run, n, err); // --attn=auto chooses the same plan for all of the group
    cli_run_format_prefill(j->run, prefill, sizeof prefill);
    if (!rc && !(r->attn_prefill = strdup(prefill))) rc = sl_fail(err, SL_ERR_MEMORY, "--parallel: out of memory");
    if (!rc) rc = cli_timeline_prefill(&r->t, r->ids.data, r->n_dense, err);
    if (!rc) rc = cli_timeline_feed(&r->t, r->ids.data + r->n_dense, n - r->n_dense, err);
    if (!rc) rc = sl_text_append(&r->text, "", 0, err);
    r->t.n_logprobs = cli_answer_logprobs(o->output, r->record);
    if (!rc)
        rc = cli_timeline_begin(&r->t, o->run->limits.n_predict, j->prompter.chat.template != NULL, cli_sink_text, &r->text,
                                err);
    return rc;
}

static int print_answer(const job *j, const request *r, const cli_totals *group, sl_error *err) {
    const cli_answer a = {.model = &j->model,
                          .index = (int)(r - j->requests),
                          .group = j->all.n_groups,
                          .id = sl_json_get(r->record, "id"),
                          .prompt = &r->ids,
                          .text = &r->text,
                          .t = &r->t,
                          .attn_prefill = r->attn_prefill,
                          .totals = group,
                          .with_prompt = j->o->output->display_prompt};
    return cli_records_at_line(&j->records, r->line, cli_answer_print(&a, err), err);
}

static int run_group(job *j, request *r, int n, sl_error *err) {
    int first = (int)(r - j->requests);
    int rc = cli_records_at_line(&j->records, r->line, set_method(j, cli_record_attn(r->record), err), err);
    sl_engine_reset_stats(j->run->engine);
    for (int i = 0; !rc && i < n; i++) {
        rc = cli_records_at_line(&j->records, r[i].line, begin(j, &r[i], first + i, err), err);
        j->batch[i] = &r[i].t;
    }
    if (!rc) rc = cli_timelines_generate(j->batch, n, err);
    if (!rc && cli_interrupted())
        rc = sl_fail(err, SL_ERR_IO, "%s: interrupted in lines %d to %d", j->records.path, r->line, r[n - 1].line);
    const cli_totals group = cli_totals_of(j->batch, rc ? 0 : n);
    for (int i = 0; !rc && i < n; i++) rc = print_answer(j, &r[i], &group, err);
    if (!rc) rc = cli_flush(err);
    cli_totals_add(&j->all, &group);
    return rc;
}

static void free_request(request *r) {
    cli_timeline_close(&r->t);
    sl_ids_free(&r->ids);
    sl_text_free(&r->text);
    free(r->attn);
    free(r->attn_prefill);
    json_decref(r->record);
    r->record = NULL;
}

// Number of requests from r on that form a group: at most --parallel, with one method.
static int group_size(const job *j, const request *r) {
    int most = j->o->input->parallel, left = j->n_requests - (int)(r - j->requests), n = 1;
    while (n < most && n < left && !strcmp(r[n].attn, r->attn)) n++;
    return n;
}

// ---- all groups ----

static int run_groups(job *j, sl_error *err) {
    cli_progress progress;
    double prefill = 0;
    int rc = 0;
    for (int i = 0; i < j->n_requests; i++)
        if (j->requests[i].n_dense) prefill += sl_model_prefill_flops(j->run->model, 0, j->requests[i].n_dense);
    cli_progress_begin_run(&progress, "generate", "prompts", j->n_requests, prefill, 0);
    for (int i = 0, n; !rc && i < j->n_requests; i += n) {
        n = group_size(j, &j->requests[i]);
        rc = run_group(j, &j->requests[i], n, err);
        for (int k = i; k < i + n; k++) cli_timeline_close(&j->requests[k].t);
        cli_progress_update(&progress, i + n, j->n_requests);
    }
    cli_progress_end(&progress);
    return rc;
}

static int check_flags(const cli_generate_flags *o, sl_error *err) {
    if (o->input->prompts && o->input->jsonl)
        return sl_fail(err, SL_ERR_ARG, "--prompts and --jsonl: expected only one of them");
    int rc = cli_check_chat_flags(o->chat, o->given, err);
    if (rc) return rc;
    if (o->input->prompts && o->input->question_dense) return sl_fail(err, SL_ERR_ARG, "flag --question-dense needs --jsonl");
    return cli_records_check_flags(o->input, &o->run->ids, o->input->prompts ? "--prompts" : "--jsonl", err);
}

static int run_job(job *j, sl_error *err) {
    const cli_generate_flags *o = j->o;
    int rc = tokenize_all(j, err);
    j->batch = malloc((size_t)o->input->parallel * sizeof *j->batch);
    if (!rc && !j->batch) rc = sl_fail(err, SL_ERR_MEMORY, "--parallel %d: out of memory", o->input->parallel);
    if (rc) return rc;
    char prefill[CLI_ATTN_TEXT];
    cli_run_format_prefill(j->run, prefill, sizeof prefill);
    cli_run_describe(j->run, stderr);
    fprintf(stderr,
            o->input->prompts || o->input->question_dense
                ? "setup: A, prefill of prompts with %s attention; --attn decodes the answers\n"
                : "setup: B, prefill of prompts and contexts with %s attention; --attn decodes questions and answers\n",
            prefill);
    fprintf(stderr, "parallel: %d prompt%s in static batches of %d\n", j->n_requests, cli_s(j->n_requests), o->input->parallel);
    cli_catch_interrupt(1);
    rc = run_groups(j, err);
    if (!rc && o->output->perf) cli_totals_print(&j->all, j->run->load_ms, stderr);
    return rc;
}

int cli_generate_parallel(const cli_generate_flags *o, sl_error *err) {
    job j = {.o = o};
    cli_run run;
    int rc = cli_need_model(&o->run->model, err);
    if (!rc) rc = check_flags(o, err);
    if (!rc && o->chat->is_on) rc = cli_chat_load(&o->run->model, o->chat, &j.prompter.chat, err);
    if (!rc)
        rc = cli_records_open(&j.records, o->input->prompts ? o->input->prompts : o->input->jsonl,
                              o->input->prompts ? CLI_RECORDS_PLAIN
                              : o->chat->is_on  ? CLI_RECORDS_CHATS
                                                : CLI_RECORDS_PROMPTS,
                              err);
    if (!rc) rc = read_requests(&j, err);
    if (!rc) rc = cli_run_open(&run, o->run, o->input->parallel, err);
    if (!rc) {
        j.run = &run;
        cli_model_name_of(run.model, o->run->model.path, &j.model);
        rc = run_job(&j, err);
        for (int i = 0; i < j.n_requests; i++) cli_timeline_close(&j.requests[i].t); // before the engine is freed
        if (!rc) rc = cli_run_finish(&run, err);
        cli_run_close(&run);
    }
    for (int i = 0; i < j.n_requests; i++) free_request(&j.requests[i]);
    cli_records_close(&j.records);
    eval_prompter_free(&j.prompter);
    free(j.requests);
    free(j.batch);
    return rc;
}
