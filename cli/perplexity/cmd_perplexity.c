// cli/perplexity/cmd_perplexity.c - sleigh perplexity: exp of the mean negative log-likelihood of the tokens of texts,
// window by window. (A window is a part of a text here, as in llama.cpp.)
//
// Windows of --ctx-size tokens start --stride tokens apart. The tokenizer's BOS replaces the first token of each window. The
// last --score tokens of a window are scored; by default the second half, as in llama.cpp. Tokens that an earlier window of the
// text scored are not scored again. Tokens after the last whole window are not used. Dense attention takes a window in one
// prefill. With another method, or with --dense-prefix, dense attention prefills the beginning of the window, and a decode step
// predicts each scored token.
//
// With --history, the same tokens are scored several times. For a history of N tokens, the scored tokens of a window are cut
// into segments. For each segment the model reads the N tokens before the segment, and then the segment, from position 0 on.
//
// Memory: the ids of the texts, O(vocabulary), and one number per scored token and history.
#include "base/hash.h"
#include "cli/commands.h"
#include "cli/eval/fingerprint.h"
#include "cli/io.h"
#include "cli/perplexity/perplexity.h"
#include "cli/perplexity/perplexity_print.h"
#include "cli/perplexity/perplexity_texts.h"
#include "cli/process.h"
#include "cli/rank_checks.h"
#include "cli/run/load_model.h"
#include "engine/logprobs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int interrupted(sl_error *err) {
    return sl_fail(err, SL_ERR_CANCELLED, "interrupted");
}

// ---- scores ----

typedef struct scored_rows {
    perplexity *p;
    cli_values *nll;
    int from; // index in p->ids of row 0
} scored_rows;

static int score_rows(void *ctx, int first, int n_rows, const float *logits, sl_error *err) {
    const scored_rows *s = ctx;
    const perplexity *p = s->p;
    int rc = cli_interrupted() ? interrupted(err) : 0;
    for (int i = 0; !rc && i < n_rows; i++, logits += p->n_vocab) {
        int at = s->from + first + i;
        double log_sum = sl_log_sum(logits, p->n_vocab);
        if (!isfinite(log_sum))
            return sl_fail(err, SL_ERR_FORMAT, "the logits after token %d of a window are not finite", p->offset + at);
        rc = cli_values_add(s->nll, log_sum - logits[p->ids[at + 1]], err);
    }
    return rc;
}

// Prefills the first n of p->ids, one pass at a time, to react to Ctrl+C in between.
static int prefill(perplexity *p, int n, sl_error *err) {
    cli_progress bar;
    int rc = 0;
    if (n == 0) return 0;
    cli_progress_begin_prefill(&bar, p->run.model, 0);
    for (int i = 0, m; !rc && i < n; i += m) {
        m = sl_session_next_pass(p->session, n - i);
        rc = cli_interrupted() ? interrupted(err) : sl_prefill(p->session, p->ids + i, m, NULL, err);
        cli_progress_update(&bar, i + m, n);
    }
    cli_progress_end(&bar);
    return rc;
}

// Prefills p->ids [from, end), and scores the successor of each of them.
static int prefill_scored(perplexity *p, int from, int end, cli_values *nll, sl_error *err) {
    cli_progress bar;
    const sl_progress progress = {.fn = cli_progress_update, .ctx = &bar};
    scored_rows rows = {p, nll, from};
    cli_progress_begin_prefill(&bar, p->run.model, from);
    int rc = sl_prefill_logits(p->session, p->ids + from, end - from, score_rows, &rows, &progress, err);
    cli_progress_end(&bar);
    return rc;
}

// Reads n tokens of the window at `ids`, from index `offset` on. Scores those after index `first` of these n tokens. The last
// token is only predicted.
static int score(perplexity *p, const int32_t *ids, int offset, int n, int first, cli_values *nll, sl_error *err) {
    int last = n - 1, n_dense = p->n_dense < first ? p->n_dense : first;
    memcpy(p->ids, ids + offset, n * sizeof *ids);
    if (p->has_bos) p->ids[0] = p->texts[0].ids.data[0];
    p->offset = offset, p->n_read += last;
    int rc = sl_session_truncate(p->session, 0, err);
    if (!rc) rc = prefill(p, n_dense, err);
    if (!rc && p->n_dense == p->n_ctx) return prefill_scored(p, first, last, nll, err);
    for (int i = n_dense; !rc && i < last; i++) {
        if (cli_interrupted()) return interrupted(err);
        rc = sl_decode(&p->session, 1, &p->ids[i], err);
        if (!rc && i >= first) rc = score_rows(&(scored_rows){p, nll, i}, 0, 1, sl_session_logits(p->session, NULL), err);
        cli_progress_work(&p->progress, 1);
    }
    return rc;
}

// ---- windows ----

// The segment of a history that starts at index `at` of a window: the model reads tokens [from, end).
typedef struct segment {
    int from, end;
} segment;

static segment segment_at(const perplexity *p, const perplexity_history *h, int at) {
    int end = at + p->segment < p->n_ctx ? at + p->segment : p->n_ctx;
    return (segment){at - h->n_tokens, end};
}

// The index of the token before the first scored one.
static int first_of(const perplexity *p, int window) {
    int seen = p->n_ctx - p->stride - 1;
    return window && seen > p->first ? seen : p->first;
}

static int score_after(perplexity *p, const perplexity_history *h, const int32_t *ids, int first, sl_error *err) {
    int rc = 0;
    if (h->n_tokens == CLI_ALL) return score(p, ids, 0, p->n_ctx, first, &p->scored, err);
    for (int at = first + 1; !rc && at < p->n_ctx; at += p->segment) {
        segment s = segment_at(p, h, at);
        rc = score(p, ids, s.from, s.end - s.from, h->n_tokens - 1, &p->scored, err);
    }
    return rc;
}

// Scores window i of a text after each history, and gives the values to rank 0. unit: number of the window in the run
static int run_window(perplexity *p, const perplexity_text *t, int i, int unit, sl_error *err) {
    const int32_t *ids = t->ids.data + (size_t)i * p->stride;
    int rc = 0;
    p->scored.n = p->n_read = 0;
    sl_session_set_sequence(p->session, p->o->run->sampling.seq_id + (uint32_t)unit);
    for (int k = 0; !rc && k < p->n_histories; k++) rc = score_after(p, &p->histories[k], ids, first_of(p, i), err);
    if (!rc) rc = cli_values_add(&p->scored, p->n_read, err);
    if (!rc) rc = cli_shards_give(&p->shards, p->scored.x, (size_t)p->scored.n * sizeof *p->scored.x, err);
    return rc ? rc : cli_shards_end_unit(&p->shards, err);
}

static int end_group(perplexity *p, sl_error *err) {
    int rc = 0;
    for (int i = 0; !rc && i < p->n_histories; i++) rc = cli_values_end_group(&p->histories[i].nll, err);
    return rc;
}

// Takes the values of a window from this rank or another one; they are as many for each history; a cli_shards.take.
static int take_window(void *ctx, const char *data, size_t n, sl_error *err) {
    perplexity *p = ctx;
    const perplexity_text *t = &p->texts[p->taken_text];
    const double *x = (const double *)data;
    int rc = 0, n_values = (int)(n / sizeof *x) - 1, n_each = n_values / p->n_histories,
        is_last = ++p->taken_window == t->n_windows;
    for (int k = 0; k < p->n_histories; k++)
        for (int i = 0; !rc && i < n_each; i++) rc = cli_values_add(&p->histories[k].nll, x[k * n_each + i], err);
    if (!rc && (is_last || !p->groups_are_texts)) rc = end_group(p, err);
    if (!rc && !p->o->input->jsonl) rc = perplexity_print_window(p, p->taken_window - 1, err);
    if (!rc && is_last && p->o->input->jsonl) rc = perplexity_print_text(p, p->taken_text, err);
    if (is_last) p->taken_text++, p->taken_window = 0;
    p->n_read_all += x[n_values];
    cli_progress_update(&p->progress, p->shards.n_taken + 1, p->n_planned);
    return rc;
}

// ---- the run ----

// Floating-point operations of the prefills of a window.
static double prefill_flops(const perplexity *p, int window) {
    const sl_model *model = p->run.model;
    double sum = 0;
    if (p->n_dense != p->n_ctx) return p->n_dense ? sl_model_prefill_flops(model, 0, p->n_dense) : 0;
    for (int k = 0; k < p->n_histories; k++) {
        const perplexity_history *h = &p->histories[k];
        if (h->n_tokens == CLI_ALL) sum += sl_model_prefill_flops(model, 0, p->n_ctx - 1);
        for (int at = first_of(p, window) + 1; h->n_tokens != CLI_ALL && at < p->n_ctx; at += p->segment) {
            segment s = segment_at(p, h, at);
            sum += sl_model_prefill_flops(model, 0, s.end - s.from - 1);
        }
    }
    return sum;
}

static void begin_progress(perplexity *p) {
    double steps = p->n_dense == p->n_ctx ? CLI_NO_WORK : (double)p->n_planned * (p->n_ctx - 1 - p->n_dense);
    double prefills = p->n_texts * prefill_flops(p, 0) + (p->n_planned - p->n_texts) * prefill_flops(p, 1);
    int n = sl_ranks_n(p->o->ranks); // the times of the work are those of this rank
    cli_progress_begin_run(&p->progress, "perplexity", "windows", p->n_planned, prefills / n, steps > 0 ? steps / n : steps);
}

// Prints the result of the complete rows after an interruption, which stays the error.
static int print_partial(perplexity *p, int rc, sl_error *err) {
    sl_error why;
    for (int i = 0; i < p->n_histories; i++) {
        cli_values *nll = &p->histories[i].nll;
        nll->n = p->n_scored;
        while (nll->n_groups && nll->ends[nll->n_groups - 1] > nll->n) nll->n_groups--;
    }
    if (p->n_rows) perplexity_print_end(p, &why);
    return sl_fail(err, (sl_err)rc, "interrupted; the result is of %d window%s, %d were planned", p->n_windows,
                   cli_s(p->n_windows), p->n_planned);
}

static int run_texts(perplexity *p, sl_error *err) {
    double start = sl_now_ms();
    int rc = 0, unit = 0;
    begin_progress(p);
    for (int i = 0; i < p->n_texts; i++)
        for (int k = 0; !rc && k < p->texts[i].n_windows; k++, unit++)
            if (cli_shards_is_mine(&p->shards, unit)) rc = run_window(p, &p->texts[i], k, unit, err);
    if (!rc) rc = cli_shards_finish(&p->shards, err);
    cli_progress_end(&p->progress);
    if (sl_ranks_rank(p->o->ranks)) return rc;
    if (rc) return rc == SL_ERR_CANCELLED ? print_partial(p, SL_ERR_IO, err) : rc;
    rc = perplexity_print_end(p, err);
    if (rc) return rc;
    double ms = sl_now_ms() - start;
    fprintf(stderr, "load: %.2f ms\nwindows: %.2f ms, %.0f tokens, %.2f tok/s\npeak_rss: %.1f MiB\n", p->run.load_ms, ms,
            p->n_read_all, cli_per_second(p->n_read_all, ms), cli_peak_mib());
    return 0;
}

static void describe(const perplexity *p) {
    char prefill[CLI_ATTN_TEXT];
    cli_run_format_prefill(&p->run, prefill, sizeof prefill);
    cli_run_describe_attention(&p->run, stderr);
    fprintf(stderr, "setup: %d window%s of %d tokens", p->n_planned, p->n_planned == 1 ? "" : "s", p->n_ctx);
    if (p->o->input->jsonl) fprintf(stderr, " from %d text%s", p->n_texts, p->n_texts == 1 ? "" : "s");
    if (p->o->perplexity->histories.n)
        fprintf(stderr, ", the last %d tokens of each scored after %d histories, in segments of %d\n", p->n_ctx - 1 - p->first,
                p->n_histories, p->segment);
    else if (p->n_dense == p->n_ctx)
        fprintf(stderr, ", each in one prefill with %s attention\n", prefill);
    else
        fprintf(stderr, ", prefill of %d with %s attention, the rest decoded\n", p->n_dense, prefill);
}

static int run(perplexity *p, sl_error *err) {
    int rc = 0;
    p->n_vocab = sl_model_config(p->run.model)->n_vocab;
    p->ids = malloc(p->n_ctx * sizeof *p->ids);
    if (!p->ids) rc = sl_fail(err, SL_ERR_MEMORY, "a window of %d tokens: out of memory", p->n_ctx);
    if (!rc) rc = sl_session_new(p->run.engine, p->o->run->sampling.seq_id, &p->session, err);
    if (!rc) rc = cli_run_set_prompt(&p->run, p->n_dense, err);
    if (rc) return rc;
    if (!rc) rc = cli_ranks_check_plans(p->o->ranks, &p->run, err);
    if (rc) return rc;
    describe(p);
    p->shards = (cli_shards){
        .ranks = p->o->ranks, .team = p->o->run->model.tensor_parallel, .n_units = p->n_planned, .take = take_window, .ctx = p};
    cli_ranks_describe(p->o->ranks, p->o->run->model.tensor_parallel, p->n_planned, "window");
    cli_model_name_of(p->run.model, p->o->run->model.path, &p->name);
    cli_run_format_attention(&p->run, p->attn, sizeof p->attn);
    perplexity_print_begin(p);
    cli_catch_interrupt(1);
    return run_texts(p, err);
}

static int check_flags(const cli_perplexity_flags *o, sl_error *err) {
    int rc = cli_need_model(&o->run->model, err);
    if (!rc && !o->input->prompt_given)
        rc = cli_ranks_check_file(o->ranks, o->input->jsonl ? o->input->jsonl : o->input->file,
                                  o->input->jsonl ? "--jsonl" : "--file", err);
    if (!rc && o->input->jsonl && o->input->file) rc = sl_fail(err, SL_ERR_ARG, "flag --file cannot be used with --jsonl");
    return rc;
}

// Refuses ranks with another model, other texts, other methods (of a profile) or another arithmetic.
static int compare_ranks(const perplexity *p, sl_error *err) {
    const cli_model_options *model = &p->o->run->model;
    cli_fingerprint print;
    char arithmetic[256], texts[SL_HASH_TEXT], attn[CLI_ATTN_TEXT], prefill[CLI_ATTN_TEXT];
    uint64_t hash = SL_FNV1A_START;
    if (!p->o->ranks) return 0;
    for (int i = 0; i < p->n_texts; i++) hash = sl_fnv1a(hash, p->texts[i].ids.data, p->texts[i].ids.n * sizeof(int32_t));
    sl_hash_text(hash, texts);
    cli_plan_format(&p->run.requested, attn, sizeof attn);
    cli_plan_format(&p->run.requested_prefill, prefill, sizeof prefill);
    int rc = cli_fingerprint_read(model->path, cli_is_dummy(model), &model->rope, &print, err);
    if (!rc) rc = sl_device_arithmetic(p->run.device, arithmetic, sizeof arithmetic, err);
    if (rc) return rc;
    json_t *s = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:I}", "config", print.config, "weights", print.weights,
                          "tokenizer", print.tokenizer, "arithmetic", arithmetic, "texts", texts, "attn", attn, "attn-prefill",
                          prefill, "seed", (json_int_t)p->o->run->sampling.seed);
    rc = cli_ranks_compare(p->o->ranks, s, err);
    json_decref(s);
    return rc;
}

int cmd_perplexity(const cli_perplexity_flags *o, sl_error *err) {
    perplexity p = {.o = o};
    perplexity_input in = {0};
    int is_open = 0, rc = check_flags(o, err);
    if (!rc) rc = perplexity_open_input(o->input, &in, err);
    if (!rc) {
        rc = cli_run_open_model(&p.run, o->run, 1, err);
        is_open = !rc;
    }
    if (!rc) rc = perplexity_cut_texts(&p, &in, err);
    perplexity_close_input(&in);
    if (!rc) rc = compare_ranks(&p, err);
    if (!rc) {
        rc = cli_run_open_engine(&p.run, p.n_ctx, 1, err);
        is_open = !rc;
    }
    if (!rc) rc = run(&p, err);
    sl_session_free(p.session);
    if (is_open) cli_run_close(&p.run);
    for (int i = 0; i < p.n_histories; i++) cli_values_free(&p.histories[i].nll);
    cli_values_free(&p.scored);
    perplexity_free_texts(&p);
    json_decref(p.rows);
    free(p.ids);
    return rc;
}
