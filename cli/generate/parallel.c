// cli/generate/parallel.c - sleigh generate --parallel N: many prompts on the scheduler, N at a time, one JSON object per
// answer.
//
// All prompts are read, tokenized and checked first. Then the scheduler runs N lines at a time: when an answer ends, the next
// line takes its place. Each line has its own methods for decoding and prefill. An answer does not depend on the other lines.
// Answers are printed in the order of the lines, so a line waits for the lines before it.
#include "cli/generate/parallel.h"
#include "base/json.h"
#include "cli/error_text.h"
#include "cli/generate/answer.h"
#include "cli/generate/chat_record.h"
#include "cli/grow.h"
#include "cli/io.h"
#include "cli/output/print_json.h"
#include "cli/output/progress_bar.h"
#include "cli/process.h"
#include "cli/records.h"
#include "cli/run/draft_flags.h"
#include "cli/run/load_model.h"
#include "cli/run/run.h"
#include "cli/timeline.h"
#include "cli/watch.h"
#include "engine/draft/draft_counts.h"
#include "engine/schedule/scheduler.h"
#include "engine/stream.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct request { // a line of the file
    struct batch *batch;
    int line;
    json_t *record;
    sl_ids ids;
    int n_dense; // first ids, which are prefilled; --attn decodes the rest
    // ---- while it runs ----
    sl_job *job; // NULL: not begun, or complete
    char *attn, *attn_prefill;
    sl_text text;
    sl_prefill_report *prefill; // [n_layers][n_heads] of a sparse prefill; NULL: dense
    double prefill_ms;          // that the progress shows
    int n_done;                 // prompt tokens that the progress shows
    int n_decode, n_more;       // decode steps; tokens that they appended beyond one each
    // ---- complete ----
    json_t *answer;
} request;

typedef struct batch {
    const cli_generate_flags *o;
    cli_run *run;
    sl_scheduler *scheduler;
    cli_records records;
    eval_prompter prompter; // of --chat
    request *requests;
    int n_requests, cap_requests, n_begun, n_printed, n_running;
    sl_prefill_report *pass; // [n_layers][n_heads] of the sparse pass that runs
    cli_model_name model;
    cli_progress progress;
    cli_totals all; // so far
    int has_stepped, rc;
    sl_error error; // the error of rc, which on_change sets
} batch;

// ---- reading ----

static int add_request(batch *b, json_t *record, sl_error *err) {
    request *grown = cli_grow(b->requests, b->n_requests, &b->cap_requests, sizeof *grown);
    if (!grown) return sl_fail(err, SL_ERR_MEMORY, "%s: %d lines: out of memory", b->records.path, b->n_requests);
    b->requests = grown;
    b->requests[b->n_requests++] = (request){.batch = b, .line = b->records.n_lines, .record = json_incref(record)};
    return 0;
}

static int read_requests(batch *b, sl_error *err) {
    json_t *record;
    int rc = 0;
    while (!rc && !(rc = cli_records_next(&b->records, &record, err)) && record) {
        rc = add_request(b, record, err);
        json_decref(record);
    }
    if (!rc && !b->n_requests) rc = sl_fail(err, SL_ERR_FORMAT, "%s: expected prompts, found none", b->records.path);
    return rc;
}

static int make_plans(batch *b, const request *r, int quiet, cli_plans *out, sl_error *err) {
    const char *attn = cli_record_attn(r->record), *prefill = cli_record_attn_prefill(r->record);
    sl_error why;
    int rc = cli_run_make_plans(b->run, attn, prefill, (int)r->ids.n, quiet, out, &why);
    if (!rc) return 0;
    const char *field = attn && !out->has_decode ? "\"attn\": " : prefill && out->has_decode ? "\"attn_prefill\": " : "";
    cli_plans_free(out);
    return sl_fail(err, rc, "%s%.900s", field, cli_error_text(&why));
}

// Tokenizes all prompts, and checks their lengths and methods.
static int tokenize_all(batch *b, sl_error *err) {
    const sl_tokenizer *tok = sl_model_tokenizer(b->run->model);
    int rc = 0;
    b->prompter.tok = tok;
    for (int i = 0; !rc && i < b->n_requests; i++) {
        request *r = &b->requests[i];
        cli_plans plans = {0};
        rc = b->prompter.chat.template ? chat_record_tokenize(&b->prompter, r->record, &r->ids, &r->n_dense, err)
                                       : cli_records_tokenize(&b->records, tok, r->record, &r->ids, &r->n_dense, err);
        if (!rc) rc = cli_check_prompt(b->run, r->ids.n, "--ctx-size", err);
        if (!rc) rc = make_plans(b, r, 1, &plans, err);
        cli_plans_free(&plans);
        if (b->o->input->question_dense) r->n_dense = (int)r->ids.n;
        rc = cli_records_at_line(&b->records, r->line, rc, err);
    }
    return rc;
}

// ---- what a step has made ----

static int n_heads_of(const batch *b) {
    const sl_config *c = sl_model_config(b->run->model);
    return c->n_layers * c->n_heads;
}

// After a pass of the request: its reports, and the progress.
static void take_pass(batch *b, request *r, const sl_job *j) {
    int n = sl_session_n_tokens(sl_job_session(j));
    double ms = sl_job_times_of(j).prefill_ms;
    if (n > r->n_dense) n = r->n_dense;
    for (int i = 0; r->prefill && ms > r->prefill_ms && i < n_heads_of(b); i++) {
        sl_prefill_report_add(&r->prefill[i], &b->pass[i]);
        b->pass[i] = sl_prefill_report_none();
    }
    b->progress.prefill.ms += ms - r->prefill_ms;
    r->prefill_ms = ms;
    if (n <= r->n_done) return;
    b->progress.prefill.done += sl_model_prefill_flops(b->run->model, r->n_done, n - r->n_done);
    r->n_done = n;
}

static void on_change(void *ctx, sl_job *j) {
    request *r = ctx;
    batch *b = r->batch;
    size_t n;
    const char *text = sl_stream_text(sl_job_stream(j), &n);
    int n_decode = sl_stream_result(sl_job_stream(j)).n_steps, n_more = sl_stream_n_more(sl_job_stream(j));
    take_pass(b, r, j);
    if (n && !b->rc) b->rc = sl_text_append(&r->text, text, n, &b->error);
    b->has_stepped |= n_decode > r->n_decode;
    b->all.n_decode += n_decode + n_more - r->n_decode - r->n_more;
    b->all.n_more += n_more - r->n_more;
    r->n_decode = n_decode, r->n_more = n_more;
    if (sl_job_state_of(j) == SL_JOB_DECODES && b->o->run->limits.n_predict == 0) sl_job_cancel(j);
    for (int i = b->n_printed; (b->rc || cli_interrupted()) && i < b->n_begun; i++)
        if (b->requests[i].job) sl_job_cancel(b->requests[i].job);
    cli_progress_update(&b->progress, b->n_printed, b->n_requests);
}

// ---- the jobs ----

static int prepare(batch *b, request *r, const cli_plans *plans, sl_error *err) {
    int is_sparse = !sl_attn_plan_is_dense(&plans->prefill);
    r->attn = cli_plan_text(&plans->decode), r->attn_prefill = cli_plan_text(&plans->prefill);
    if (is_sparse) r->prefill = cli_new_prefill_reports(n_heads_of(b));
    if (!r->attn || !r->attn_prefill || (is_sparse && !r->prefill)) return sl_fail(err, SL_ERR_MEMORY, "prompt: out of memory");
    return sl_text_append(&r->text, "", 0, err);
}

// Gives the request to the scheduler. A sparse prefill shares no rows with other lines, because its figures are those of all
// rows that the answer reads.
static int add_job(batch *b, request *r, const cli_plans *plans, sl_error *err) {
    const cli_generate_flags *o = b->o;
    const cli_list *stops = &o->run->limits.stops;
    int index = (int)(r - b->requests), n_predict = o->run->limits.n_predict;
    char own[16];
    const sl_generation g = {.sampling = b->run->sampling,
                             .max_tokens = n_predict > 0 ? n_predict : 0,
                             .stop = stops->items,
                             .n_stop = stops->n,
                             .sequence = cli_record_sequence(r->record, o->run->sampling.seq_id, index),
                             .n_logprobs = cli_answer_logprobs(o->output, r->record),
                             .grammar = b->run->grammar,
                             .grammar_after = o->run->grammar.after,
                             .draft = cli_draft(&o->run->drafts)};
    sl_job_options job = sl_job_options_default();
    job.ids = r->ids.data, job.n = (int)r->ids.n, job.n_prefill = r->n_dense;
    job.generation = &g;
    job.attn = &plans->decode;
    job.at_start = b->prompter.chat.template != NULL;
    job.on_change = on_change, job.ctx = r;
    snprintf(own, sizeof own, "%d", r->line);
    if (r->prefill) job.prefill = &plans->prefill, job.segment = plans->segment, job.salt = own;
    return sl_scheduler_add(b->scheduler, &job, &r->job, err);
}

static int begin(batch *b, request *r, sl_error *err) {
    cli_plans plans = {0};
    int rc = make_plans(b, r, 0, &plans, err);
    if (!rc) rc = prepare(b, r, &plans, err);
    if (!rc) rc = add_job(b, r, &plans, err);
    if (!rc) rc = cli_watch_buckets(b->run->engine, err);
    cli_plans_free(&plans);
    b->n_begun++, b->n_running += r->job != NULL;
    return cli_records_at_line(&b->records, r->line, rc, err);
}

// ---- answers ----

// The counts and times of an ended job. Session and stream stay those of the job.
static cli_timeline timeline_of(const batch *b, const request *r) {
    const sl_job_times times = sl_job_times_of(r->job);
    const sl_stream *stream = sl_job_stream(r->job);
    cli_timeline t = {.run = b->run,
                      .session = (sl_session *)sl_job_session(r->job),
                      .stream = (sl_stream *)stream,
                      .n_prefill = r->n_dense - sl_job_n_cached(r->job),
                      .n_feed = (int)r->ids.n - r->n_dense,
                      .n_decode = r->n_decode,
                      .n_more = r->n_more,
                      .prefill_ms = times.prefill_ms,
                      .feed_ms = times.feed_ms,
                      .decode_ms = times.decode_ms,
                      .prefill = r->prefill,
                      .n_logprobs = cli_answer_logprobs(b->o->output, r->record)};
    sl_stream_ids(stream, &t.n_sampled);
    t.stopped = cli_stop_name(b->o->run->limits.n_predict == 0 ? SL_STOP_LENGTH : sl_stream_result(stream).stop);
    return t;
}

static void free_job(request *r) {
    sl_job_free(r->job);
    sl_text_free(&r->text);
    free(r->attn);
    free(r->attn_prefill);
    free(r->prefill);
    r->job = NULL, r->attn = r->attn_prefill = NULL, r->prefill = NULL;
}

// Makes the answer of an ended job.
static int end(batch *b, request *r, sl_error *err) {
    const sl_error *why = sl_job_error(r->job);
    const cli_timeline t = timeline_of(b, r);
    const cli_answer a = {.model = &b->model,
                          .index = (int)(r - b->requests),
                          .id = sl_json_get(r->record, "id"),
                          .prompt = &r->ids,
                          .text = &r->text,
                          .t = &t,
                          .attn = r->attn,
                          .attn_prefill = r->attn_prefill,
                          .totals = &b->all,
                          .with_prompt = b->o->output->display_prompt};
    int rc = why->code;
    if (rc) *err = *why;
    const sl_draft_counts drafts = sl_stream_draft_counts(t.stream);
    b->all.n_prefill += t.n_prefill, b->all.n_feed += t.n_feed, b->all.n_generated += t.n_sampled;
    sl_draft_counts_add(&b->all.drafts, &drafts);
    if (!rc) rc = cli_answer_json(&a, &r->answer, err);
    free_job(r);
    b->n_running--;
    return cli_records_at_line(&b->records, r->line, rc, err);
}

// Prints the answers that no earlier line holds up.
static int print_answers(batch *b, sl_error *err) {
    int rc = 0;
    for (request *r; !rc && b->n_printed < b->n_begun && (r = &b->requests[b->n_printed])->answer; b->n_printed++) {
        rc = cli_print_json(r->answer, JSON_COMPACT, err);
        r->answer = NULL;
        if (!rc) rc = cli_flush(err);
    }
    return rc;
}

static int step(batch *b, sl_error *err) {
    int rc = 0;
    b->has_stepped = 0;
    sl_scheduler_step(b->scheduler);
    const sl_scheduler_stats now = sl_scheduler_stats_of(b->scheduler);
    b->all.n_steps += b->has_stepped;
    b->all.prefill_ms = now.prefill_ms, b->all.feed_ms = now.feed_ms, b->all.decode_ms = now.decode_ms;
    if (b->rc) *err = b->error, rc = b->rc;
    if (!rc) rc = cli_stats_check(&b->run->stats, err);
    if (!rc && cli_interrupted())
        rc = sl_fail(err, SL_ERR_IO, "%s: interrupted in lines %d to %d", b->records.path, b->requests[b->n_printed].line,
                     b->requests[b->n_begun - 1].line);
    for (int i = b->n_printed; !rc && i < b->n_begun; i++) {
        request *r = &b->requests[i];
        if (r->job && sl_job_state_of(r->job) == SL_JOB_ENDED) rc = end(b, r, err);
    }
    return rc ? rc : print_answers(b, err);
}

static int run_all(batch *b, sl_error *err) {
    double prefill = 0;
    int rc = 0;
    for (int i = 0; i < b->n_requests; i++)
        if (b->requests[i].n_dense) prefill += sl_model_prefill_flops(b->run->model, 0, b->requests[i].n_dense);
    cli_progress_begin_run(&b->progress, "generate", "prompts", b->n_requests, prefill, 0);
    sl_engine_reset_stats(b->run->engine);
    b->all = (cli_totals){.n_groups = 1, .n_prompts = b->n_requests};
    while (!rc && b->n_printed < b->n_requests) {
        while (!rc && b->n_begun < b->n_requests && b->n_running < b->o->input->parallel)
            rc = begin(b, &b->requests[b->n_begun], err);
        if (!rc) rc = step(b, err);
        cli_progress_update(&b->progress, b->n_printed, b->n_requests);
    }
    cli_progress_end(&b->progress);
    return rc;
}

// ---- the command ----

static int check_flags(const cli_generate_flags *o, sl_error *err) {
    if (o->input->prompts && o->input->jsonl)
        return sl_fail(err, SL_ERR_ARG, "--prompts and --jsonl: expected only one of them");
    int rc = cli_check_chat_flags(o->chat, o->given, err);
    if (rc) return rc;
    if (o->input->prompts && o->input->question_dense) return sl_fail(err, SL_ERR_ARG, "flag --question-dense needs --jsonl");
    return cli_records_check_flags(o->input, &o->run->ids, o->input->prompts ? "--prompts" : "--jsonl", err);
}

static void describe(const batch *b) {
    const cli_generate_flags *o = b->o;
    char prefill[CLI_ATTN_TEXT];
    cli_run_format_prefill(b->run, prefill, sizeof prefill);
    cli_run_describe(b->run, stderr);
    fprintf(stderr,
            o->input->prompts || o->input->question_dense
                ? "setup: A, prefill of prompts with %s attention; --attn decodes the answers\n"
                : "setup: B, prefill of prompts and contexts with %s attention; --attn decodes questions and answers\n",
            prefill);
    fprintf(stderr, "parallel: %d prompt%s, %d at a time\n", b->n_requests, cli_s(b->n_requests), o->input->parallel);
}

static int run_batch(batch *b, sl_error *err) {
    // A new prompt is prefilled before the next decode step: the sooner it decodes with the others, the fewer steps there are.
    const sl_scheduler_options options = {.step_tokens = INT_MAX};
    int rc = tokenize_all(b, err);
    if (!rc && !(b->pass = cli_new_prefill_reports(n_heads_of(b)))) rc = sl_fail(err, SL_ERR_MEMORY, "reports: out of memory");
    if (!rc) rc = sl_scheduler_new(b->run->engine, &options, &b->scheduler, err);
    if (rc) return rc;
    b->run->prefill_into = b->pass;
    describe(b);
    cli_catch_interrupt(1);
    rc = run_all(b, err);
    if (!rc && b->o->output->perf) cli_totals_print(&b->all, b->run->load_ms, stderr);
    return rc;
}

static void close_batch(batch *b) {
    for (int i = 0; i < b->n_requests; i++) {
        request *r = &b->requests[i];
        free_job(r);
        sl_ids_free(&r->ids);
        json_decref(r->record);
        json_decref(r->answer);
    }
    sl_scheduler_free(b->scheduler);
    free(b->requests);
    free(b->pass);
}

int cli_generate_parallel(const cli_generate_flags *o, sl_error *err) {
    batch b = {.o = o};
    cli_run run;
    int is_open = 0, rc = cli_need_model(&o->run->model, err);
    if (!rc) rc = check_flags(o, err);
    if (!rc && o->chat->is_on) rc = cli_chat_load(&o->run->model, o->chat, &b.prompter.chat, err);
    if (!rc)
        rc = cli_records_open(&b.records, o->input->prompts ? o->input->prompts : o->input->jsonl,
                              o->input->prompts ? CLI_RECORDS_PLAIN
                              : o->chat->is_on  ? CLI_RECORDS_CHATS
                                                : CLI_RECORDS_PROMPTS,
                              err);
    if (!rc) rc = read_requests(&b, err);
    if (!rc) is_open = !(rc = cli_run_open(&run, o->run, o->input->parallel, err));
    if (!rc) {
        b.run = &run;
        cli_model_name_of(run.model, o->run->model.path, &b.model);
        rc = run_batch(&b, err);
    }
    close_batch(&b); // before the engine is freed
    if (!rc) rc = cli_run_finish(&run, err);
    if (is_open) cli_run_close(&run);
    cli_records_close(&b.records);
    eval_prompter_free(&b.prompter);
    return rc;
}
