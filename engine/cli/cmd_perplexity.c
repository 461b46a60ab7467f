// engine/cli/cmd_perplexity.c - sleigh perplexity: exp of the mean negative log-likelihood of the tokens of a text, window by
// window. (A window is a part of the text here, as in llama.cpp.)
//
// Windows of --ctx-size tokens start --stride tokens apart. The tokenizer's BOS replaces the first token of each window. The
// first half of a window is context and is not scored, as in llama.cpp. Tokens that an earlier window scored are not scored
// again. Tokens after the last whole window are not used. A text with fewer tokens than a window is one window of its length.
// Dense attention takes a window in one prefill pass. With another method, or with --dense-prefix, dense attention prefills the
// beginning of the window, and a decode step predicts each scored token. Memory: O(vocabulary), and one number per scored
// token.
#include "engine/cli/commands.h"
#include "engine/cli/io.h"
#include "engine/cli/output/print_json.h"
#include "engine/cli/output/progress_bar.h"
#include "engine/cli/output/rows.h"
#include "engine/cli/output/summary.h"
#include "engine/cli/process.h"
#include "engine/cli/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct perplexity {
    const cli_options *o;
    cli_run run;
    sl_session *session;
    sl_ids text;
    int has_bos;
    int n_ctx, stride, n_windows;
    int n_planned; // windows of the whole run
    int n_dense;   // first tokens of a window, prefilled with dense attention; n_ctx: the whole window in one pass
    int32_t *ids;  // [n_ctx] ids of the window
    int n_vocab;
    cli_values nll; // one group per window
    cli_progress progress;
    cli_rows table; // -o md, csv, jsonl
    cli_model_name name;
    json_t *windows; // -o json
    char attn[CLI_ATTN_TEXT];
} perplexity;

// ---- one window ----

// Scores the token after token `at` of the window.
static int score(perplexity *p, int at, const float *logits, sl_error *err) {
    double log_sum = cli_log_sum(logits, p->n_vocab);
    if (!isfinite(log_sum)) return sl_fail(err, SL_ERR_FORMAT, "the logits after token %d of a window are not finite", at);
    return cli_values_add(&p->nll, log_sum - logits[p->ids[at + 1]], err);
}

typedef struct scored_rows {
    perplexity *p;
    int from; // index in the window of row 0
} scored_rows;

static int score_rows(void *ctx, int first, int n_rows, const float *logits, sl_error *err) {
    const scored_rows *s = ctx;
    int rc = cli_interrupted() ? sl_fail(err, SL_ERR_IO, "interrupted") : 0;
    for (int i = 0; !rc && i < n_rows; i++) rc = score(s->p, s->from + first + i, logits + (size_t)i * s->p->n_vocab, err);
    return rc;
}

// Prefills tokens from..end of the window. With `scored`, scores the successor of each of them.
static int prefill(perplexity *p, int from, int end, int scored, sl_error *err) {
    cli_progress bar;
    const sl_progress progress = {.fn = cli_progress_update, .ctx = &bar};
    scored_rows rows = {p, from};
    if (from == end) return 0;
    cli_progress_begin_prefill(&bar, p->run.model, from);
    int rc = scored ? sl_prefill_logits(p->session, p->ids + from, end - from, score_rows, &rows, &progress, err)
                    : sl_prefill(p->session, p->ids + from, end - from, &progress, err);
    cli_progress_end(&bar);
    return rc;
}

// first: the first token whose successor is scored. The last token of a window is only predicted.
static int run_window(perplexity *p, int first, sl_error *err) {
    int last = p->n_ctx - 1, n = p->n_dense < first ? p->n_dense : first;
    int rc = sl_session_truncate(p->session, 0, err);
    if (!rc) rc = prefill(p, 0, n, 0, err);
    if (!rc && p->n_dense == p->n_ctx) return prefill(p, first, last, 1, err);
    for (int i = n; !rc && i < last; i++) {
        if (cli_interrupted()) return sl_fail(err, SL_ERR_IO, "interrupted");
        rc = sl_decode(&p->session, 1, &p->ids[i], err);
        if (!rc && i >= first) rc = score_rows(&(scored_rows){p, i}, 0, 1, sl_session_logits(p->session, NULL), err);
        cli_progress_work(&p->progress, 1);
    }
    return rc;
}

// ---- output ----

static int is(const perplexity *p, const char *format) {
    return !strcmp(p->o->format, format);
}

// The row of the last window, with totals so far. n_before: scored tokens of earlier windows.
static json_t *row_of(const perplexity *p, int window, int n_before) {
    cli_estimate mean = cli_values_mean(&p->nll);
    double sum = 0;
    for (int i = n_before; i < p->nll.n; i++) sum += p->nll.x[i];
    json_t *row = json_pack("{s:i, s:i, s:i, s:s}", "window", window, "first_token", window * p->stride, "scored",
                            p->nll.n - n_before, "attn", p->attn);
    json_object_set_new(row, "nll", cli_number(sum / (p->nll.n - n_before)));
    json_object_set_new(row, "ppl", cli_number(exp(sum / (p->nll.n - n_before))));
    json_object_set_new(row, "scored_so_far", json_integer(p->nll.n));
    json_object_set_new(row, "nll_so_far", cli_number(mean.at));
    json_object_set_new(row, "nll_so_far_se", cli_number(mean.error));
    json_object_set_new(row, "ppl_so_far", cli_number(exp(mean.at)));
    json_object_set_new(row, "ppl_so_far_se", cli_number(exp(mean.at) * mean.error));
    return row;
}

static const cli_column columns[] = {
    {.title = "window", .key = "window"},
    {.title = "first token", .key = "first_token"},
    {.title = "scored", .key = "scored"},
    {.title = "perplexity of the window", .key = "ppl", .digits = 4},
    {.title = "perplexity so far", .key = "ppl_so_far", .spread = "ppl_so_far_se", .digits = 4},
};

static int print_window(perplexity *p, int window, int n_before, sl_error *err) {
    json_t *row = row_of(p, window, n_before);
    if (is(p, "json")) {
        if (!p->windows) p->windows = json_array();
        json_array_append_new(p->windows, row);
        return 0;
    }
    return cli_rows_add(&p->table, row, err);
}

static int print_end(perplexity *p, sl_error *err) {
    cli_estimate mean = cli_values_mean(&p->nll);
    double ppl = exp(mean.at);
    if (is(p, "md"))
        return cli_printf(err, "\nperplexity: %.4f ± %.4f, %d of %zu tokens scored in %d window%s of %d, attention %s\n", ppl,
                          ppl * mean.error, p->nll.n, p->text.n, p->n_windows, p->n_windows == 1 ? "" : "s", p->n_ctx, p->attn);
    if (!is(p, "json")) return 0;
    char device[256];
    sl_engine_describe(p->run.engine, device, sizeof device);
    json_t *out = json_pack("{s:s, s:s, s:s, s:o, s:I, s:s, s:i, s:i, s:i, s:I, s:i, s:O}", "version", SLEIGH_VERSION, "commit",
                            cli_commit(), "device", device, "file", cli_file_json(p->o->file ? p->o->file : "-"), "seed",
                            (json_int_t)p->o->seed, "attn", p->attn, "n_ctx", p->n_ctx, "stride", p->stride, "n_dense",
                            p->n_dense, "tokens", (json_int_t)p->text.n, "scored", p->nll.n, "windows", p->windows);
    json_object_set_new(out, "interrupted", json_boolean(p->n_windows < p->n_planned));
    json_object_set_new(out, "nll", cli_number(mean.at));
    json_object_set_new(out, "nll_se", cli_number(mean.error));
    json_object_set_new(out, "ppl", cli_number(ppl));
    json_object_set_new(out, "ppl_se", cli_number(ppl * mean.error));
    return cli_print_json(cli_model_name_json(&p->name, out), JSON_INDENT(1), err);
}

// ---- all windows ----

// Sets the ids of a window. Returns the first token whose successor is scored.
static int begin_window(perplexity *p, int window) {
    memcpy(p->ids, p->text.data + (size_t)window * p->stride, p->n_ctx * sizeof *p->ids);
    if (p->has_bos) p->ids[0] = p->text.data[0];
    sl_session_set_sequence(p->session, p->o->seq_id + (uint32_t)window);
    int half = p->n_ctx / 2, seen = p->n_ctx - p->stride - 1;
    return window && seen > half ? seen : half;
}

// Prints the result of the windows before an interruption, which stays the error. n_scored: their tokens.
static int print_partial(perplexity *p, int n_scored, int rc, sl_error *err) {
    sl_error why;
    int n = p->nll.n_groups;
    p->nll.n = n_scored, p->n_windows = n;
    if (n) print_end(p, &why);
    return sl_fail(err, (sl_err)rc, "interrupted; the result is of %d windows, %d were planned", n, p->n_planned);
}

static int run_windows(perplexity *p, sl_error *err) {
    double start = cli_now(), n_prefill = p->n_dense == p->n_ctx ? p->n_ctx - 1 : p->n_dense;
    double prefill = n_prefill > 0 ? sl_model_prefill_flops(p->run.model, 0, (int)n_prefill) : 0;
    double steps = p->n_dense == p->n_ctx ? CLI_NO_WORK : (double)p->n_windows * (p->n_ctx - 1 - n_prefill);
    int rc = 0, n_before = 0;
    cli_progress_begin_run(&p->progress, "perplexity", "windows", p->n_windows, p->n_windows * prefill, steps);
    for (int i = 0; !rc && i < p->n_windows; i++) {
        int first = begin_window(p, i);
        n_before = p->nll.n;
        rc = run_window(p, first, err);
        if (!rc) rc = cli_values_end_group(&p->nll, err);
        if (!rc) rc = print_window(p, i, n_before, err);
        cli_progress_update(&p->progress, i + 1, p->n_windows);
    }
    cli_progress_end(&p->progress);
    if (rc) return cli_interrupted() ? print_partial(p, n_before, rc, err) : rc;
    rc = print_end(p, err);
    if (rc) return rc;
    double ms = cli_now() - start, n = (double)p->n_windows * (p->n_ctx - 1);
    fprintf(stderr, "load: %.2f ms\nwindows: %.2f ms, %.0f tokens, %.2f tok/s\npeak_rss: %.1f MiB\n", p->run.load_ms, ms, n,
            cli_per_second(n, ms), cli_peak_mib());
    return 0;
}

// ---- set-up ----

// Sets the size of a window and the distance of their starts.
static int set_sizes(perplexity *p, sl_error *err) {
    enum { LEAST = 4 }; // tokens of a window: two of context, one that is scored, and one that is only predicted
    const cli_options *o = p->o;
    int limit = sl_model_config(p->run.model)->n_ctx, n = (int)p->text.n;
    p->n_ctx = o->n_ctx ? o->n_ctx : limit < 512 ? limit : 512;
    p->stride = o->stride ? o->stride : p->n_ctx;
    if (p->stride > p->n_ctx)
        return sl_fail(err, SL_ERR_ARG, "--stride %d: expected at most %d, the window size", p->stride, p->n_ctx);
    if (p->text.n >= (size_t)p->n_ctx) return 0;
    if (n < LEAST) return sl_fail(err, SL_ERR_FORMAT, "the text has %d tokens; expected at least %d", n, LEAST);
    cli_say("window: the text has %d tokens, fewer than the %d of --ctx-size; it is one window of %d tokens", n, p->n_ctx, n);
    p->n_ctx = n;
    if (p->stride > n) p->stride = n;
    return 0;
}

static int cut_windows(perplexity *p, sl_error *err) {
    const cli_options *o = p->o;
    int rc = set_sizes(p, err);
    if (rc) return rc;
    if (o->dense_prefix > p->n_ctx / 2)
        return sl_fail(err, SL_ERR_ARG,
                       "--dense-prefix %d: expected at most %d, half a window, because the other half is scored",
                       o->dense_prefix, p->n_ctx / 2);
    p->n_windows = p->n_planned = (int)((p->text.n - p->n_ctx) / p->stride) + 1;
    int is_dense = 1;
    for (int i = 0; i < p->run.requested.n_layers; i++) is_dense &= p->run.requested.layer[i].method == &sl_method_dense;
    p->n_dense = o->dense_prefix >= 0 ? o->dense_prefix : is_dense ? p->n_ctx : p->n_ctx / 2;
    return 0;
}

static int tokenise(perplexity *p, const sl_text *text, sl_error *err) {
    const sl_tokenizer *tok = sl_model_tokenizer(p->run.model);
    sl_ids bos = {0};
    int rc = sl_tokenize(tok, "", 0, SL_TOK_BOS, &bos, err);
    if (!rc) rc = sl_tokenize(tok, text->data ? text->data : "", text->n, SL_TOK_BOS, &p->text, err);
    p->has_bos = bos.n == 1;
    sl_ids_free(&bos);
    return rc;
}

static void describe(const perplexity *p) {
    const char *s = p->n_windows == 1 ? "" : "s";
    cli_run_describe_attention(&p->run, stderr);
    if (p->n_dense == p->n_ctx)
        fprintf(stderr, "setup: %d window%s of %d tokens, each in one dense prefill pass\n", p->n_windows, s, p->n_ctx);
    else
        fprintf(stderr, "setup: %d window%s of %d tokens, prefill of %d with dense attention, the rest decoded\n", p->n_windows,
                s, p->n_ctx, p->n_dense);
}

static int run_text(perplexity *p, sl_error *err) {
    int rc = 0;
    p->n_vocab = sl_model_config(p->run.model)->n_vocab;
    p->ids = malloc(p->n_ctx * sizeof *p->ids);
    if (!p->ids) rc = sl_fail(err, SL_ERR_MEMORY, "a window of %d tokens: out of memory", p->n_ctx);
    if (!rc) rc = sl_session_new(p->run.engine, p->o->seq_id, &p->session, err);
    if (!rc) rc = cli_run_set_prompt(&p->run, p->n_dense, err);
    if (rc) return rc;
    describe(p);
    cli_model_name_of(p->run.model, p->o->model, &p->name);
    p->table.model = &p->name;
    cli_run_format_attention(&p->run, p->attn, sizeof p->attn);
    cli_catch_interrupt(1);
    return run_windows(p, err);
}

int cmd_perplexity(const cli_options *o, sl_error *err) {
    perplexity p = {.o = o, .table = {.format = o->format, .columns = columns, .n_columns = sizeof columns / sizeof *columns}};
    sl_text text = {0};
    int is_open = 0, rc = cli_need_model(o, err);
    if (!rc) rc = cli_read_input(o, &text, err);
    if (!rc) {
        rc = cli_run_open_model(&p.run, o, err);
        is_open = !rc;
    }
    if (!rc) rc = tokenise(&p, &text, err);
    if (!rc) rc = cut_windows(&p, err);
    if (!rc) {
        rc = cli_run_open_engine(&p.run, p.n_ctx, 1, err);
        is_open = !rc;
    }
    if (!rc) rc = run_text(&p, err);
    sl_session_free(p.session);
    if (is_open) cli_run_close(&p.run);
    cli_values_free(&p.nll);
    json_decref(p.windows);
    sl_ids_free(&p.text);
    sl_text_free(&text);
    free(p.ids);
    return rc;
}
