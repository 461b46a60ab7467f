// cli/eval/cmd_eval.c - sleigh eval: asks the questions of generated tasks, or of a file, with each method on the same
// prefilled context.
//
// Set-up B: the context is prefilled (densely, or with each method of --attn-prefill), and the method decodes question and
// answer (--question-dense: set-up A). All questions about a text are asked with one method before the next, so that the page
// extras of a method are built once. The random numbers of a sample are keyed by its task, length and number, so an answer does
// not depend on the number of samples, their order or the threads.
#include "cli/eval/eval.h"
#include "base/hash.h"
#include "cli/error_text.h"
#include "cli/eval/eval_plot.h"
#include "cli/eval/eval_table.h"
#include "cli/io.h"
#include "cli/output/certificates.h"
#include "cli/output/plot.h"
#include "cli/process.h"
#include "cli/rank_checks.h"
#include "cli/resume_file.h"
#include "cli/run/load_model.h"
#include "cli/run/pick_device.h"
#include "cli/watch.h"
#include "models/source.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEFAULT_SAMPLES = 32,
    MOST_CELLS = 1 << 24,
};

// ---- flags and samples ----

static int check_flags(const cli_eval_flags *o, sl_error *err) {
    static const char *const of_tasks[] = {"--task", "--length", "--questions", "--haystack", NULL};
    const char *procedure = o->eval->procedure, *grader = o->eval->grader, *plot = o->output->plot;
    const char *other = cli_given_flag(o->given, of_tasks);
    if (o->tasks->jsonl && other) return sl_fail(err, SL_ERR_ARG, "flag %s cannot be used with --jsonl", other);
    if (!o->tasks->jsonl && procedure) return sl_fail(err, SL_ERR_ARG, "flag --procedure needs --jsonl");
    if (procedure && !eval_procedure_find(procedure))
        return sl_fail(err, SL_ERR_ARG, "--procedure %.60s: expected one of %s", procedure, eval_procedure_names());
    if (grader && eval_grader_find(grader) == GRADE_NONE)
        return sl_fail(err, SL_ERR_ARG, "--grader %.60s: unknown grader; `sleigh eval --help` lists all graders", grader);
    if (o->eval->dump && plot)
        return sl_fail(err, SL_ERR_ARG, "flag --plot cannot be used with --dump, which does not run the model");
    if (procedure && grader)
        return sl_fail(err, SL_ERR_ARG, "flag --grader cannot be used with --procedure, which sets the grader");
    int rc = cli_check_chat_flags(o->chat, o->given, err);
    if (!rc && o->tasks->jsonl) rc = cli_ranks_check_file(o->ranks, o->tasks->jsonl, "--jsonl", err);
    if (rc) return rc;
    return plot ? cli_plot_check(plot, "--plot", err) : 0;
}

static int add_group(eval *e, const char *task, int length, int n, sl_error *err) {
    eval_scores *s = &e->scores;
    for (int g = 0; g < s->n_groups; g++)
        if (s->groups[g].length == length && !strcmp(s->groups[g].task, task))
            return sl_fail(err, SL_ERR_ARG, "--task %s with --length %d is named twice", task, length);
    eval_group *groups = realloc(s->groups, (size_t)(s->n_groups + 1) * sizeof *groups);
    if (groups) s->groups = groups;
    int *tasks = realloc(e->tasks, (size_t)(s->n_groups + 1) * sizeof *tasks);
    if (tasks) e->tasks = tasks;
    if (!groups || !tasks) return sl_fail(err, SL_ERR_MEMORY, "--task: out of memory");
    groups[s->n_groups] = (eval_group){.task = task, .length = length, .first = s->n_samples, .n = n};
    tasks[s->n_groups++] = eval_task_find(task);
    s->n_samples += n;
    return 0;
}

static int add_task(eval *e, int task, sl_error *err) {
    int rc = 0;
    for (int i = 0; !rc && i < e->o.tasks->lengths.n; i++)
        rc = add_group(e, eval_task_name(task), e->o.tasks->lengths.at[i],
                       e->o.tasks->samples ? e->o.tasks->samples : DEFAULT_SAMPLES, err);
    return rc;
}

static int list_tasks(eval *e, sl_error *err) {
    int rc = 0;
    for (const char *p = e->o.tasks->tasks; !rc && p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
        char name[32];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(p, ","), p);
        int task = eval_task_find(name), all = !strcmp(name, "all");
        if (task < 0 && !all)
            return sl_fail(err, SL_ERR_ARG, "--task %s: unknown task; `sleigh eval --help` lists all tasks", name);
        for (int i = 0; all && !rc && eval_task_name(i); i++) rc = add_task(e, i, err);
        if (!all) rc = add_task(e, task, err);
    }
    return rc;
}

static int by_task(const void *a, const void *b) { // stable: by line within a task
    const eval_record *x = a, *y = b;
    int order = strcmp(x->task, y->task);
    return order ? order : x->line - y->line;
}

static int list_records(eval *e, sl_error *err) {
    const cli_eval_flags *o = &e->o;
    const eval_procedure *procedure = o->eval->procedure ? eval_procedure_find(o->eval->procedure) : NULL;
    eval_grader grader = procedure ? procedure->grader : o->eval->grader ? eval_grader_find(o->eval->grader) : GRADE_NONE;
    int rc = eval_records_read(o->tasks->jsonl, grader, procedure, o->tasks->n_predict, &e->records, err), n = e->records.n;
    if (rc) return rc;
    qsort(e->records.at, (size_t)n, sizeof *e->records.at, by_task);
    for (int i = 0, j; !rc && i < n; i = j) {
        for (j = i + 1; j < n && !strcmp(e->records.at[j].task, e->records.at[i].task);) j++;
        int wanted = o->tasks->samples && o->tasks->samples < j - i ? o->tasks->samples : j - i;
        if (wanted < j - i) { // keep the first records of the group
            for (int k = i + wanted; k < j; k++) free(e->records.at[k].task), eval_text_free(&e->records.at[k].text);
            memmove(&e->records.at[i + wanted], &e->records.at[j], (size_t)(n - j) * sizeof *e->records.at);
            n = e->records.n = n - (j - i - wanted);
            j = i + wanted;
        }
        rc = add_group(e, e->records.at[i].task, 0, wanted, err);
    }
    return rc;
}

static int n_questions(const eval *e, int group) { // per text
    return e->o.tasks->jsonl ? 1 : eval_task_questions(e->tasks[group], e->maker.n_questions);
}

// The samples of one text are one cluster. In a file, consecutive lines with the same context are one text.
static void find_clusters(eval *e) {
    for (int g = 0; g < e->scores.n_groups; g++)
        for (int i = 0, at = e->scores.groups[g].first; i < e->scores.groups[g].n; i++) {
            int same = 0;
            if (e->o.tasks->jsonl && i) {
                const sl_text *a = &e->records.at[at + i - 1].text.context, *b = &e->records.at[at + i].text.context;
                same = a->n && a->n == b->n && !memcmp(a->data, b->data, a->n);
            }
            int next = i ? e->scores.cluster[at + i - 1] + !same : 0;
            e->scores.cluster[at + i] = e->o.tasks->jsonl ? next : i / n_questions(e, g);
        }
}

// ---- prompts ----

// Gets the text of a group and number. The caller frees a generated text (free_text).
static int get_text(eval *e, int group, int number, eval_text *out, sl_error *err) {
    const eval_group *g = &e->scores.groups[group];
    if (e->o.tasks->jsonl) {
        *out = e->records.at[g->first + number].text;
        return 0;
    }
    int rc = eval_task_text(&e->maker, e->tasks[group], g->length, (uint32_t)number, out, err);
    for (int q = 0; !rc && e->o.eval->grader && q < out->n_items; q++)
        out->items[q].grader = eval_grader_find(e->o.eval->grader);
    return rc;
}

static void free_text(const eval *e, eval_text *text) {
    if (!e->o.tasks->jsonl) eval_text_free(text);
}

// Checks limits before a text is generated, because long texts take long to generate.
static int check_limits(const eval *e, sl_error *err) {
    const cli_eval_flags *o = &e->o;
    long long cells = (long long)e->scores.n_samples * e->scores.n_methods;
    sl_config config;
    if (cells > MOST_CELLS)
        return sl_fail(err, SL_ERR_ARG, "--samples: %d questions with %d methods are %lld answers; expected at most %d",
                       e->scores.n_samples, e->scores.n_methods, cells, MOST_CELLS);
    int rc = cli_read_config(o->run, &config, err);
    if (rc) return rc;
    for (int i = 0; !o->tasks->jsonl && i < o->tasks->lengths.n; i++)
        if (o->tasks->lengths.at[i] > config.n_ctx)
            return sl_fail(err, SL_ERR_ARG, "--length %d: expected at most %d, %s", o->tasks->lengths.at[i], config.n_ctx,
                           cli_limit_text(&config));
    if (o->tasks->n_predict > config.n_ctx)
        return sl_fail(err, SL_ERR_ARG, "--n-predict %d: expected at most %d, %s", o->tasks->n_predict, config.n_ctx,
                       cli_limit_text(&config));
    return 0;
}

// Checks that each --length is long enough for its task, before the weights are loaded.
static int check_lengths(eval *e, sl_error *err) {
    int rc = 0;
    for (int g = 0; !rc && !e->o.tasks->jsonl && g < e->scores.n_groups; g++) {
        eval_text text;
        rc = get_text(e, g, 0, &text, err);
        if (!rc) free_text(e, &text);
    }
    return rc;
}

// Adds file and line to an error about a line of --jsonl.
static int at_line(const eval *e, int sample, int rc, sl_error *err) {
    if (!rc || !e->o.tasks->jsonl || rc == SL_ERR_IO) return rc;
    sl_error why = *err;
    return sl_fail(err, (sl_err)rc, "%s: line %d: %.800s", e->o.tasks->jsonl, e->records.at[sample].line, cli_error_text(&why));
}

static int dump_item(eval *e, FILE *f, int group, int number, const eval_text *text, const eval_item *item, sl_error *err) {
    const eval_group *g = &e->scores.groups[group];
    sl_text input = {0};
    sl_ids ids = {0};
    int rc = sl_text_append(&input, text->context.data ? text->context.data : "", text->context.n, err);
    if (!rc) rc = sl_text_append(&input, item->question.data, item->question.n, err);
    if (!rc) rc = eval_prompt_ids(&e->prompter, &text->context, item, &ids, NULL, err);
    if (!rc) {
        json_t *line = json_pack("{s:i, s:s, s:s%, s:s%, s:s%, s:O, s:i, s:s}", "index", number, "task", g->task, "input",
                                 input.data, input.n, "question", item->question.data, item->question.n, "answer_prefix",
                                 item->prefix.data ? item->prefix.data : "", item->prefix.n, "outputs", item->references,
                                 "length", (int)ids.n + item->n_predict, "grader", eval_grader_name(item->grader));
        if (line && item->answer.n) json_object_set_new(line, "answer", json_stringn(item->answer.data, item->answer.n));
        rc = cli_resume_add(f, "--dump", e->o.eval->dump, line, err);
        json_decref(line);
    }
    sl_text_free(&input);
    sl_ids_free(&ids);
    return rc;
}

static int dump(eval *e, sl_error *err) {
    FILE *f = fopen(e->o.eval->dump, "w");
    int rc = f ? 0 : sl_fail(err, SL_ERR_IO, "--dump: cannot write %s: %s", e->o.eval->dump, strerror(errno));
    for (int g = 0; !rc && g < e->scores.n_groups; g++) {
        int per_text = n_questions(e, g);
        for (int i = 0; !rc && i < e->scores.groups[g].n; i += per_text) {
            eval_text text;
            rc = get_text(e, g, i / per_text, &text, err);
            for (int q = 0; !rc && q < text.n_items && i + q < e->scores.groups[g].n; q++)
                rc = dump_item(e, f, g, i + q, &text, &text.items[q], err);
            if (!rc) free_text(e, &text);
        }
    }
    if (f && fclose(f) && !rc) rc = sl_fail(err, SL_ERR_IO, "--dump: cannot write %s: %s", e->o.eval->dump, strerror(errno));
    return rc;
}

// ---- answers ----

static int interrupted(const eval *e, sl_error *err) {
    char done[64] = ""; // only rank 0 knows
    if (!sl_ranks_rank(e->o.ranks)) snprintf(done, sizeof done, " (%d of %d answers are done)", e->n_done, e->n_todo);
    return sl_fail(err, SL_ERR_IO, "interrupted; %s%s",
                   e->o.output->path ? "run the same command to continue" : "a run with --out FILE can be continued", done);
}

// n_predict: most tokens of the answer.
static int ask(eval *e, const sl_ids *ids, int n_shared, int n_predict, sl_error *err) {
    cli_timeline *t = &e->t;
    int n = (int)ids->n, n_dense = e->o.tasks->question_dense ? n : n_shared;
    int rc = cli_run_set_prompt(&e->run, n, err);
    if (!rc) rc = cli_timeline_prefix(t, ids->data, n_dense, n, err);
    if (!rc) rc = cli_timeline_feed(t, ids->data + n_dense, n - n_dense, err);
    e->answer.n = 0;
    if (!rc) rc = sl_text_append(&e->answer, "", 0, err);
    if (!rc) rc = cli_timeline_generate(t, n_predict, 0, cli_sink_text, &e->answer, err);
    return !rc && cli_interrupted() ? interrupted(e, err) : rc;
}

static uint32_t sequence_of(const eval *e, const eval_group *g, int number) {
    char name[256];
    int n = snprintf(name, sizeof name, "%.200s/%d/%d", g->task, g->length, number);
    return e->o.run->sampling.seq_id + sl_fnv1a_32(SL_FNV1A_32_START, name, (size_t)n);
}

static eval_prefill prefill_of(const eval *e, int n_prompt) {
    const cli_timeline *t = &e->t;
    const sl_prefill_report r = cli_timeline_prefill_total(t);
    int is_whole = t->n_prefill > 0 && t->n_prefill + t->n_feed == n_prompt;
    return (eval_prefill){.ttft_ms = is_whole ? t->prefill_ms + t->feed_ms : NAN,
                          .density = sl_prefill_density(&r),
                          .kept = sl_prefill_share(r.kept),
                          .cra = sl_prefill_share(r.measured),
                          .error = sl_prefill_error(&r),
                          .error_max = r.n_errors ? r.error_max : NAN};
}

// An answer on its way to rank 0. The reports of the heads follow, [n_layers][n_heads] if has_heads, and then the line of
// --out.
typedef struct answer_part {
    sl_attn_stats stats;
    eval_prefill prefill;
    double score;
    int group, number, method, has_heads;
} answer_part;

static int give_answer(eval *e, const answer_part *part, const char *line, sl_error *err) {
    const cli_timeline *t = &e->t;
    size_t n_heads = part->has_heads ? (size_t)e->scores.n_layers * (size_t)e->scores.n_heads * sizeof *t->prefill : 0;
    e->part.n = 0;
    int rc = sl_text_append(&e->part, (const char *)part, sizeof *part, err);
    if (!rc) rc = sl_text_append(&e->part, (const char *)t->prefill, n_heads, err);
    if (!rc && line) rc = sl_text_append(&e->part, line, strlen(line), err);
    return rc ? rc : cli_shards_give(&e->shards, e->part.data, e->part.n, err);
}

// Takes an answer of this rank or of another one; a cli_shards.take.
static int take_answer(void *ctx, const char *data, size_t n, sl_error *err) {
    eval *e = ctx;
    eval_scores *s = &e->scores;
    answer_part part;
    memcpy(&part, data, sizeof part);
    const char *heads = data + sizeof part, *line = heads;
    if (part.has_heads) line += (size_t)s->n_layers * (size_t)s->n_heads * sizeof(sl_prefill_report);
    int cell = eval_cell(s, part.method, s->groups[part.group].first + part.number);
    s->score[cell] = part.score, s->bytes[cell] = (double)part.stats.bytes, s->dense[cell] = (double)part.stats.dense_bytes;
    eval_scores_set_stated(s, cell, &part.stats);
    s->prefill[cell] = part.prefill;
    eval_scores_add_heads(s, part.method, part.group, part.has_heads ? (const sl_prefill_report *)heads : NULL);
    char *text = e->out ? strndup(line, n - (size_t)(line - data)) : NULL;
    int rc = e->out ? cli_resume_add_text(e->out, "--out", e->o.output->path, text, err) : 0;
    free(text);
    cli_progress_update(&e->progress, ++e->n_done, e->n_todo);
    return rc;
}

static int record_answer(eval *e, int group, int number, int method, const eval_item *item, int n_prompt, sl_error *err) {
    const eval_group *g = &e->scores.groups[group];
    const sl_attn_stats *a = sl_engine_attn_stats(e->run.engine);
    char extracted[EVAL_EXTRACT], *text = NULL;
    json_t *whole = NULL;
    const json_t *references = item->references;
    if (item->grader == GRADE_EXACT && item->answer.n)
        references = whole = json_pack("[s%]", item->answer.data, item->answer.n);
    double score = eval_grade(item->grader, e->answer.data, e->answer.n, references, extracted);
    const answer_part part = {.stats = *a,
                              .prefill = prefill_of(e, n_prompt),
                              .score = score,
                              .group = group,
                              .number = number,
                              .method = method,
                              .has_heads = e->scores.heads && e->t.prefill};
    int rc = cli_watch_check(err);
    if (!rc && e->o.output->path) {
        json_t *line = json_pack("{s:s, s:i, s:i, s:i, s:s, s:f, s:s, s:s%, s:s, s:O, s:i, s:i, s:s, s:I, s:I}", "task",
                                 g->task, "length", g->length, "sample", number, "text", e->scores.cluster[g->first + number],
                                 "attn", e->scores.methods[method], "score", score, "grader", eval_grader_name(item->grader),
                                 "answer", e->answer.data, e->answer.n, "extracted", extracted, "references", references,
                                 "n_prompt", n_prompt, "n_generated", e->t.n_sampled, "stopped", e->t.stopped, "kv_bytes",
                                 (json_int_t)a->bytes, "kv_dense_bytes", (json_int_t)a->dense_bytes);
        if (line) eval_prefill_put(&e->scores, line, method, &part.prefill);
        if (line) cli_certificates_put(line, a);
        text = cli_resume_text(line);
        if (!text) rc = cli_resume_add_text(NULL, "--out", e->o.output->path, NULL, err); // the reason
        json_decref(line);
    }
    json_decref(whole);
    if (!rc) rc = give_answer(e, &part, text, err);
    free(text);
    return rc;
}

static int set_methods(eval *e, int m, sl_error *err) {
    int rc = cli_run_set_attention_but(&e->run, e->scores.methods[m], &e->o.run->attention.attn_layers, err);
    if (!rc) rc = cli_run_set_prefill(&e->run, eval_prefill_of(&e->scores, m), &e->o.run->attention.attn_prefill_layers, err);
    return rc ? rc : cli_ranks_check_plans(e->o.ranks, &e->run, err);
}

static int ask_all(eval *e, int group, int first, const eval_text *text, int n, sl_error *err) {
    const eval_group *g = &e->scores.groups[group];
    int rc = 0;
    for (int q = 0; !rc && q < n; q++) {
        rc = eval_prompt_ids(&e->prompter, &text->context, &text->items[q], &e->ids[q], &e->n_shared[q], err);
        if (!rc) rc = cli_check_prompt(&e->run, e->ids[q].n, "--ctx-size", err);
        rc = at_line(e, g->first + first + q, rc, err);
    }
    for (int m = 0; !rc && m < e->scores.n_methods; m++) {
        int is_set = 0;
        for (int q = 0; !rc && q < n; q++) {
            if (!isnan(e->scores.score[eval_cell(&e->scores, m, g->first + first + q)])) continue;
            cli_progress_item(&e->progress, g->task);
            if (!is_set++) rc = set_methods(e, m, err);
            sl_session_set_sequence(e->t.session, sequence_of(e, g, first + q));
            if (!rc) rc = ask(e, &e->ids[q], e->n_shared[q], text->items[q].n_predict, err);
            if (!rc) rc = record_answer(e, group, first + q, m, &text->items[q], (int)e->ids[q].n, err);
        }
    }
    return rc;
}

static int is_done(const eval *e, int group, int first, int n) {
    for (int m = 0; m < e->scores.n_methods; m++)
        for (int q = 0; q < n; q++)
            if (isnan(e->scores.score[eval_cell(&e->scores, m, e->scores.groups[group].first + first + q)])) return 0;
    return 1;
}

// 1: the sample has the text of the sample before it, or in a file a context that begins with the one before.
static int continues_text(const eval *e, int sample) {
    if (!e->o.tasks->jsonl) return e->scores.cluster[sample] == e->scores.cluster[sample - 1];
    const sl_text *a = &e->records.at[sample - 1].text.context, *b = &e->records.at[sample].text.context;
    return a->n && a->n <= b->n && !memcmp(a->data, b->data, a->n);
}

// Numbers the texts that are left. Samples that share a prefill stay together.
static int find_units(eval *e, sl_error *err) {
    const eval_scores *s = &e->scores;
    int n = 0;
    e->unit = malloc((size_t)s->n_samples * sizeof *e->unit);
    if (!e->unit) return sl_fail(err, SL_ERR_MEMORY, "--samples: out of memory");
    for (int g = 0; g < s->n_groups; g++)
        for (int i = 0, at = s->groups[g].first, is_new = 1; i < s->groups[g].n; i++) {
            e->unit[at + i] = -1;
            if (i && !continues_text(e, at + i)) is_new = 1;
            if (is_done(e, g, i, 1)) continue;
            n += is_new, is_new = 0;
            e->unit[at + i] = n - 1;
        }
    e->shards =
        (cli_shards){.ranks = e->o.ranks, .team = e->o.run->model.tensor_parallel, .n_units = n, .take = take_answer, .ctx = e};
    return 0;
}

// The unit of n samples; -1: all are answered, or another rank asks them.
static int my_unit(const eval *e, int group, int first, int n) {
    const int *unit = e->unit + e->scores.groups[group].first + first;
    for (int q = 0; q < n; q++)
        if (unit[q] >= 0) return cli_shards_is_mine(&e->shards, unit[q]) ? unit[q] : -1;
    return -1;
}

// Operations of the prefills of the generated texts that are left; 0: the lengths of a file are not known beforehand.
static double prefill_left(const eval *e) {
    double sum = 0;
    for (int g = 0; !e->o.tasks->jsonl && g < e->scores.n_groups; g++) {
        const eval_group *group = &e->scores.groups[g];
        int per_text = n_questions(e, g);
        for (int i = 0; i < group->n; i += per_text)
            if (my_unit(e, g, i, group->n - i < per_text ? group->n - i : per_text) >= 0)
                sum += sl_model_prefill_flops(e->run.model, 0, group->length);
    }
    return sum;
}

// Ends the unit before, and forgets its tokens: how much of a prompt is prefilled must not depend on the number of ranks.
static int begin_unit(eval *e, int unit, int *current, sl_error *err) {
    int rc = *current >= 0 && unit != *current ? cli_shards_end_unit(&e->shards, err) : 0;
    if (!rc && unit >= 0 && unit != *current) rc = cli_timeline_cut(&e->t, 0, err);
    *current = unit;
    return rc;
}

static int run_texts(eval *e, sl_error *err) {
    int rc = 0, current = -1;
    cli_progress_begin_run(&e->progress, "eval", "answers", e->n_todo, prefill_left(e), 0);
    for (int g = 0; !rc && g < e->scores.n_groups; g++) {
        int per_text = n_questions(e, g);
        for (int i = 0; !rc && i < e->scores.groups[g].n; i += per_text) {
            int n = e->scores.groups[g].n - i < per_text ? e->scores.groups[g].n - i : per_text;
            int unit = my_unit(e, g, i, n);
            eval_text text;
            if (unit < 0) continue;
            rc = begin_unit(e, unit, &current, err);
            if (!rc) rc = get_text(e, g, i / per_text, &text, err);
            if (rc) break;
            rc = ask_all(e, g, i, &text, n, err);
            free_text(e, &text);
        }
    }
    if (!rc) rc = begin_unit(e, -1, &current, err);
    if (!rc) rc = cli_shards_finish(&e->shards, err);
    if (rc == SL_ERR_CANCELLED) rc = interrupted(e, err); // while rank 0 waited
    cli_progress_end(&e->progress);
    return rc;
}

// ---- the run ----

static int open_run(eval *e, sl_error *err) {
    const cli_eval_flags *o = &e->o;
    int n = o->tasks->jsonl ? 1 : o->eval->questions, *n_ctx = &e->run_options.limits.n_ctx;
    e->ids = calloc((size_t)n, sizeof *e->ids);
    e->n_shared = calloc((size_t)n, sizeof *e->n_shared);
    if (!e->ids || !e->n_shared) return sl_fail(err, SL_ERR_MEMORY, "--questions %d: out of memory", n);
    for (int i = 0; !o->tasks->jsonl && i < o->tasks->lengths.n; i++)
        if (o->tasks->lengths.at[i] > *n_ctx) *n_ctx = o->tasks->lengths.at[i];
    int rc = cli_run_open(&e->run, &e->run_options, 1, err);
    const sl_config *config = rc ? NULL : sl_model_config(e->run.model);
    if (!rc && e->scores.lists_prefill) rc = eval_scores_alloc_heads(&e->scores, config->n_layers, config->n_heads, err);
    if (rc) return rc;
    const cli_sampling_options *s = &o->run->sampling;
    if (!s->temp_given) // greedy, with the penalties of the flags; ignores the settings of the model
        e->run.sampling = (sl_sampling){.temp = 0,
                                        .top_p = 1,
                                        .repeat_penalty = (float)s->repeat_penalty,
                                        .repeat_last_n = s->repeat_last_n,
                                        .presence_penalty = (float)s->presence_penalty,
                                        .frequency_penalty = (float)s->frequency_penalty,
                                        .seed = s->seed};
    return cli_timeline_open(&e->t, &e->run, 0, err);
}

static int run(eval *e, sl_error *err) {
    char device[256];
    int rc = open_run(e, err);
    if (!rc) rc = find_units(e, err);
    if (rc) return rc;
    sl_engine_describe(e->run.engine, device, sizeof device);
    fprintf(stderr, "model: %s\nbackend: %s\nsetup: %s\n", e->o.run->model.path, device,
            e->o.tasks->question_dense ? "A, prefill of contexts and questions; each method decodes the answers"
                                       : "B, prefill of contexts; each method decodes questions and answers");
    fprintf(stderr, "prefill:");
    for (int i = 0; i < e->prefills.n; i++) fprintf(stderr, "%s %s", i ? "," : "", e->prefills.names[i]);
    fprintf(stderr, "\n");
    fprintf(stderr, "samples: %d with %d method%s each, %d of %d answers left\n", e->scores.n_samples, e->scores.n_methods,
            cli_s(e->scores.n_methods), e->n_todo, e->scores.n_samples * e->scores.n_methods);
    cli_ranks_describe(e->o.ranks, e->o.run->model.tensor_parallel, e->shards.n_units, "text");
    cli_catch_interrupt(1);
    return run_texts(e, err);
}

// s: e->scores, or the complete samples of an interrupted run, which is not drawn.
static int print_table(eval *e, const eval_scores *s, sl_error *err) {
    char title[320];
    size_t n = (size_t)s->n_methods * (size_t)(s->n_groups + 1);
    eval_summary *summary = calloc(n, sizeof *summary);
    if (!summary) return sl_fail(err, SL_ERR_MEMORY, "the table: out of memory");
    const eval_source source = {.settings = e->settings, .model = &e->name, .n_planned = e->scores.n_samples};
    eval_summarise(s, summary);
    int rc = eval_print(s, summary, &source, e->o.output->format, err);
    snprintf(title, sizeof title, "%.200s, %d sample%s", e->name.name, s->n_samples, cli_s(s->n_samples));
    if (!rc && e->o.output->plot && s == &e->scores) rc = eval_plot(e->o.output->plot, title, s, &e->attn, summary, err);
    free(summary);
    return rc;
}

// Prints what an interrupted run has: the samples that every method answered. The interruption stays the error.
static void print_partial(eval *e) {
    eval_scores part;
    sl_error why;
    if (eval_scores_complete(&e->scores, &part, &why)) return;
    if (part.n_samples) print_table(e, &part, &why);
    eval_scores_free(&part);
}

static int list_methods(eval *e, sl_error *err) {
    const cli_attention_options *o = &e->o.run->attention;
    int rc = cli_attn_list_parse("--attn", &o->attns, &e->attn, err);
    if (!rc) rc = cli_prefill_list_parse(o, &e->prefills, err);
    if (!rc) rc = cli_attn_list_repeat(&e->attn, e->prefills.n, err);
    e->scores.prefills = e->prefills.names;
    e->scores.n_prefills = e->prefills.n;
    e->scores.lists_prefill = o->attn_prefills.n > 0 || o->attn_prefill_layers.n > 0;
    e->scores.methods = e->attn.names;
    e->scores.n_methods = e->attn.n;
    return rc;
}

// What this command chooses in place of flags that are not given.
static void set_defaults(eval *e) {
    const cli_eval_flags *o = &e->o;
    const eval_procedure *procedure = o->eval->procedure ? eval_procedure_find(o->eval->procedure) : NULL;
    cli_list *stops = &e->run_options.limits.stops;
    if (o->chat->is_on && procedure && !o->chat->system) e->prompter.chat.system = procedure->system;
    e->newline[0] = "\n"; // answers in the plain wording are one line
    if (!o->tasks->jsonl && !o->chat->is_on && !stops->n) *stops = (cli_list){.items = e->newline, .n = 1};
    e->run_options.device.name = cli_pick_device(o->run, e->attn.specs, e->attn.n);
}

// Makes all checks that do not need the weights of the model.
static int prepare(eval *e, sl_tokenizer **tok, sl_error *err) {
    const cli_eval_flags *o = &e->o;
    int rc = cli_need_model(&o->run->model, err);
    if (!rc) rc = cli_check_device(&o->run->device, err);
    if (!rc) rc = check_flags(o, err);
    if (!rc) rc = list_methods(e, err);
    if (!rc) rc = o->tasks->jsonl ? list_records(e, err) : list_tasks(e, err);
    if (!rc) rc = check_limits(e, err);
    if (!rc) rc = sl_tokenizer_load(sl_source_documents(o->run->model.source), tok, err);
    if (!rc && o->chat->is_on) rc = cli_chat_load(&o->run->model, o->chat, &e->prompter.chat, err);
    if (rc) return rc;
    set_defaults(e);
    e->prompter.tok = *tok;
    e->maker = eval_maker_of(o->tasks, o->chat->is_on, o->eval->questions, &e->prompter);
    rc = eval_scores_alloc(&e->scores, err);
    if (rc) return rc;
    find_clusters(e);
    if (!o->eval->dump) rc = eval_make_settings(e, err);
    return rc ? rc : check_lengths(e, err);
}

static void close_eval(eval *e) {
    cli_timeline_close(&e->t);
    cli_run_close(&e->run);
    for (int i = 0; e->ids && i < (e->o.tasks->jsonl ? 1 : e->o.eval->questions); i++) sl_ids_free(&e->ids[i]);
    free(e->ids), free(e->n_shared), free(e->tasks), free(e->unit);
    sl_text_free(&e->answer), sl_text_free(&e->part);
    if (e->out) fclose(e->out);
    eval_prompter_free(&e->prompter);
    eval_scores_free(&e->scores);
    eval_records_free(&e->records);
    cli_attn_list_free(&e->attn);
    cli_attn_list_free(&e->prefills);
    json_decref(e->settings);
}

// Opens --out in rank 0, and tells the other ranks which answers it has.
static int open_out(eval *e, sl_error *err) {
    int n = e->scores.n_samples * e->scores.n_methods;
    sl_ranks *ranks = e->o.ranks;
    sl_text done = {0};
    int rc = sl_ranks_rank(ranks) || !e->o.output->path
                 ? 0
                 : eval_file_open(e->o.output->path, e->settings, &e->scores, &e->out, err);
    if (!ranks) return rc;
    for (int i = 0; !rc && i < n; i++) rc = sl_text_append(&done, isnan(e->scores.score[i]) ? "" : "y", 1, err);
    if (!rc) rc = sl_ranks_broadcast(ranks, &done, err);
    for (int i = 0; !rc && i < n && sl_ranks_rank(ranks); i++) e->scores.score[i] = done.data[i] ? 0 : NAN;
    sl_text_free(&done);
    return rc;
}

int cmd_eval(const cli_eval_flags *o, sl_error *err) {
    eval e = {.o = *o, .run_options = *o->run};
    e.o.run = &e.run_options;
    sl_tokenizer *tok = NULL;
    int is_first = !sl_ranks_rank(o->ranks), rc = prepare(&e, &tok, err);
    if (!rc && o->eval->dump) {
        if (is_first) rc = dump(&e, err);
    } else if (!rc) {
        rc = cli_ranks_compare(o->ranks, e.settings, err);
        if (!rc) rc = open_out(&e, err);
        e.n_todo = rc ? 0 : eval_scores_missing(&e.scores);
        if (!rc && e.n_todo) rc = run(&e, err);
        if (is_first && !rc)
            rc = print_table(&e, &e.scores, err);
        else if (is_first && cli_interrupt_came()) // also while rank 0 waited for another team
            print_partial(&e);
    }
    close_eval(&e);
    sl_tokenizer_free(tok);
    return rc;
}
