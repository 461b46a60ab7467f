// cli/timeline.c - see timeline.h.
#include "cli/timeline.h"
#include "cli/io.h"
#include "cli/output/certificates.h"
#include "cli/output/prefill_fields.h"
#include "cli/output/progress_bar.h"
#include "cli/process.h"
#include "cli/run/draft_flags.h"
#include "cli/run/run.h"
#include "engine/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int new_stream(const cli_timeline *t, const sl_sampling *sampling, sl_stream **out, sl_error *err) {
    const cli_list *stops = &t->run->options->limits.stops;
    const sl_generation how = {.sampling = *sampling,
                               .stop = stops->items,
                               .n_stop = stops->n,
                               .n_logprobs = -1,
                               .grammar = t->run->grammar,
                               .grammar_after = t->run->options->grammar.after,
                               .draft = cli_draft(&t->run->options->drafts)};
    return sl_stream_new(t->session, &how, out, err);
}

int cli_timeline_open(cli_timeline *t, cli_run *run, uint32_t sequence, sl_error *err) {
    *t = (cli_timeline){.run = run, .n_logprobs = -1};
    int rc = sl_session_new(run->engine, sequence, &t->session, err);
    if (!rc) rc = new_stream(t, &run->sampling, &t->stream, err);
    if (rc) cli_timeline_close(t);
    return rc;
}

int cli_timeline_take(cli_timeline *t, sl_session *session, sl_error *err) {
    sl_session_set_sequence(session, sl_session_sequence(t->session));
    sl_stream_free(t->stream);
    sl_session_free(t->session);
    t->session = session, t->stream = NULL;
    return new_stream(t, &t->run->sampling, &t->stream, err);
}

void cli_timeline_close(cli_timeline *t) {
    sl_stream_free(t->stream);
    sl_session_free(t->session);
    free(t->prefill);
    *t = (cli_timeline){0};
}

uint64_t cli_timeline_logits_hash(const cli_timeline *t) {
    return sl_logits_hash(sl_session_last_logits(t->session), sl_model_config(t->run->model)->n_vocab);
}

int cli_timeline_cut(cli_timeline *t, int n_tokens, sl_error *err) {
    int rc = sl_session_truncate(t->session, n_tokens, err);
    if (rc) return rc;
    t->n_prefill = t->n_feed = t->n_decode = t->n_more = t->n_sampled = t->n_prompt = 0;
    t->prefill_ms = t->feed_ms = t->decode_ms = t->prefill_flops = 0;
    t->stopped = NULL;
    free(t->prefill);
    t->prefill = NULL;
    sl_engine_reset_stats(t->run->engine);
    return 0;
}

int cli_timeline_prefix(cli_timeline *t, const int32_t *ids, int n_prefill, int n, sl_error *err) {
    int keep = sl_session_keep(t->session, ids, n, n_prefill);
    if (n_prefill == SL_CONTINUES) n_prefill = n;
    sl_prefill_report *kept = keep == n_prefill ? t->prefill : NULL; // of the rows that all stay
    if (kept) t->prefill = NULL;
    int rc = cli_timeline_cut(t, keep, err);
    if (kept) t->prefill = kept;
    return rc ? rc : cli_timeline_prefill(t, ids + keep, n_prefill - keep, err);
}

int cli_timeline_set_sampling(cli_timeline *t, const sl_sampling *sampling, sl_error *err) {
    sl_stream *stream;
    int rc = new_stream(t, sampling, &stream, err);
    if (rc) return rc;
    sl_stream_free(t->stream);
    t->stream = stream;
    return 0;
}

int cli_check_prompt(const cli_run *run, size_t n, const char *how, sl_error *err) {
    size_t n_ctx = (size_t)sl_engine_n_ctx(run->engine);
    int limit = sl_model_config(run->model)->n_ctx;
    if (n == 0) return sl_fail(err, SL_ERR_FORMAT, "the prompt is empty, and the tokenizer of this model adds no BOS token");
    if (n <= n_ctx) return 0;
    if (n <= (size_t)limit)
        return sl_fail(err, SL_ERR_CONTEXT,
                       "the prompt has %zu tokens, but the context holds %zu; raise it with %s (this model's limit is %d)", n,
                       n_ctx, how, limit);
    return sl_fail(err, SL_ERR_CONTEXT,
                   "the prompt has %zu tokens, and this model's limit is %d; shorten it, or run the model past its limit with "
                   "--rope-scaling yarn --rope-scale %d",
                   n, limit, (int)((n + (size_t)limit - 1) / (size_t)limit));
}

// ---- tokens in ----

sl_prefill_report *cli_new_prefill_reports(int n) {
    sl_prefill_report *reports = malloc((size_t)n * sizeof *reports);
    for (int i = 0; reports && i < n; i++) reports[i] = sl_prefill_report_none();
    return reports;
}

// Makes t->prefill, when a layer does not prefill densely.
static int new_prefill_reports(cli_timeline *t, sl_error *err) {
    const sl_config *c = sl_model_config(t->run->model);
    int n = c->n_layers * c->n_heads;
    if (sl_attn_plan_is_dense(&t->run->prefill) || t->prefill) return 0;
    t->prefill = cli_new_prefill_reports(n);
    return t->prefill ? 0 : sl_fail(err, SL_ERR_MEMORY, "reports of %d heads: out of memory", n);
}

sl_prefill_report cli_timeline_prefill_total(const cli_timeline *t) {
    const sl_config *c = sl_model_config(t->run->model);
    sl_prefill_report all = sl_prefill_report_none();
    for (int i = 0; t->prefill && i < c->n_layers * c->n_heads; i++) sl_prefill_report_add(&all, &t->prefill[i]);
    return all;
}

// The progress of a pass, whose first token is number `from` of n.
typedef struct pass {
    cli_progress *progress;
    int from, n;
} pass;

static void update_pass(void *ctx, int done, int total) {
    const pass *p = ctx;
    (void)total;
    cli_progress_update(p->progress, p->from + done, p->n);
}

// Prefills one pass at a time, to react to Ctrl+C in between. The logits do not depend on the passes.
int cli_timeline_prefill(cli_timeline *t, const int32_t *ids, int n, sl_error *err) {
    cli_progress progress;
    int rc = new_prefill_reports(t, err);
    double start = sl_now_ms();
    t->run->prefill_into = t->prefill;
    cli_progress_begin_prefill(&progress, t->run->model, sl_session_n_tokens(t->session));
    for (int i = 0, m; !rc && !t->stopped && i < n; i += m) {
        m = sl_session_next_pass(t->session, n - i);
        t->prefill_flops += sl_model_prefill_flops(t->run->model, sl_session_n_tokens(t->session), m);
        rc = sl_prefill(t->session, ids + i, m, &(sl_progress){update_pass, &(pass){&progress, i, n}}, err);
        if (!rc) t->n_prefill += m;
        cli_progress_update(&progress, i + m, n);
        if (cli_interrupted()) t->stopped = "interrupted";
    }
    cli_progress_end(&progress);
    t->run->prefill_into = NULL;
    if (!rc) rc = cli_stats_check(&t->run->stats, err);
    t->prefill_ms += sl_now_ms() - start;
    return rc;
}

int cli_timeline_feed(cli_timeline *t, const int32_t *ids, int n, sl_error *err) {
    cli_progress progress;
    int rc = 0;
    double start = sl_now_ms();
    cli_progress_begin(&progress, "feed", "tokens");
    for (int i = 0; !rc && !t->stopped && i < n; i++) {
        rc = sl_decode(&t->session, 1, &ids[i], err);
        if (!rc) rc = cli_stats_check(&t->run->stats, err);
        if (!rc) t->n_feed++;
        cli_progress_update(&progress, i + 1, n);
        if (cli_interrupted()) t->stopped = "interrupted";
    }
    cli_progress_end(&progress);
    t->feed_ms += sl_now_ms() - start;
    return rc;
}

// ---- text out ----

int cli_sink_text(void *ctx, const char *text, size_t n, sl_error *err) {
    return sl_text_append(ctx, text, n, err);
}

int cli_sink_stdout(void *ctx, const char *text, size_t n, sl_error *err) {
    (void)ctx;
    int rc = cli_write(text, n, err);
    return rc ? rc : cli_flush(err);
}

// The text of the tokens of a step, for a model without tokenizer: their ids.
static int show_ids(cli_timeline *t, sl_error *err) {
    char number[16];
    int n_ids, rc = 0;
    const int32_t *ids = sl_stream_ids(t->stream, &n_ids);
    for (int i = t->n_sampled; !rc && i < n_ids && !sl_model_is_eos(t->run->model, ids[i]); i++) {
        int n = snprintf(number, sizeof number, i ? " %d" : "%d", ids[i]);
        rc = t->sink(t->sink_ctx, number, (size_t)n, err);
    }
    return rc;
}

const char *cli_stop_name(sl_stop reason) {
    static const char *const names[] = {[SL_STOP_END] = "eos",
                                        [SL_STOP_STRING] = "stop string",
                                        [SL_STOP_LENGTH] = "limit",
                                        [SL_STOP_CONTEXT] = "context full",
                                        [SL_STOP_CALLER] = "interrupted",
                                        [SL_STOP_ERROR] = "error"};
    return names[reason];
}

// Takes text and counts from the stream.
static int take_step(cli_timeline *t, sl_error *err) {
    const sl_generated now = sl_stream_result(t->stream);
    size_t n;
    const char *text = sl_stream_text(t->stream, &n);
    int rc = n ? t->sink(t->sink_ctx, text, n, err) : 0;
    if (!rc && !sl_model_tokenizer(t->run->model)) rc = show_ids(t, err);
    t->n_decode = now.n_steps, t->n_more = sl_stream_n_more(t->stream);
    sl_stream_ids(t->stream, &t->n_sampled);
    if (sl_stream_is_running(t->stream)) return rc;
    t->stopped = cli_stop_name(now.stop);
    if (rc || now.stop != SL_STOP_ERROR) return rc;
    *err = *sl_stream_error(t->stream);
    return err->code;
}

// Ends a generation that Ctrl+C or a limit of 0 tokens stops.
static int check_running(cli_timeline *t, sl_error *err) {
    if (!sl_stream_is_running(t->stream) || !(cli_interrupted() || t->n_predict == 0)) return 0;
    int rc = sl_stream_stop(t->stream, cli_interrupted() ? SL_STOP_CALLER : SL_STOP_LENGTH, err);
    return rc ? rc : take_step(t, err);
}

static int advance(cli_timeline *t, sl_error *err) {
    double start = sl_now_ms();
    int rc = sl_streams_step(&t->stream, 1, err);
    t->decode_ms += sl_now_ms() - start;
    if (!rc) rc = cli_stats_check(&t->run->stats, err);
    return rc ? rc : take_step(t, err);
}

int cli_timeline_generate(cli_timeline *t, int n_predict, int at_start, cli_sink sink, void *ctx, sl_error *err) {
    t->n_prompt = sl_session_n_tokens(t->session);
    t->n_predict = n_predict;
    t->sink = sink;
    t->sink_ctx = ctx;
    sl_stream_set_limits(t->stream, n_predict < 0 ? 0 : n_predict, t->n_logprobs);
    int rc = sl_stream_begin(t->stream, at_start, err);
    if (!rc && t->stopped) rc = sl_stream_end(t->stream, err); // the prefill was interrupted
    while (!rc && sl_stream_is_running(t->stream)) {
        rc = check_running(t, err);
        if (!rc && sl_stream_is_running(t->stream)) rc = advance(t, err);
    }
    if (rc) sl_stream_end(t->stream, NULL);
    return rc;
}

// ---- statistics ----

static void share(FILE *out, const char *key, uint64_t n, uint64_t dense) {
    fprintf(out, "%s: %llu of %llu, %.2f%%\n", key, (unsigned long long)n, (unsigned long long)dense,
            dense ? 100.0 * n / dense : 100.0);
}

static void describe_drafts(const cli_timeline *t, FILE *out) {
    char line[512];
    sl_stream_describe_drafts(t->stream, line, sizeof line);
    if (*line) fprintf(out, "%s\n", line);
}

void cli_timeline_stats(const cli_timeline *t, FILE *out) {
    const cli_run *run = t->run;
    const sl_attn_stats *a = sl_engine_attn_stats(run->engine);
    int steps = t->n_feed + t->n_decode;
    double step_ms = t->feed_ms + t->decode_ms;
    double bytes = (double)sl_model_decode_bytes(run->model) * steps + a->bytes;
    fprintf(out, "load: %.2f ms\n", run->load_ms);
    fprintf(out, "prefill: %.2f ms, %d token%s, %.2f tok/s, %.1f GFLOP/s\n", t->prefill_ms, t->n_prefill, cli_s(t->n_prefill),
            cli_per_second(t->n_prefill, t->prefill_ms), cli_per_second(t->prefill_flops, t->prefill_ms) * 1e-9);
    const sl_prefill_report prefill = cli_timeline_prefill_total(t);
    cli_prefill_print(&prefill, out);
    if (t->n_feed)
        fprintf(out, "feed: %.2f ms, %d token%s, %.2f tok/s\n", t->feed_ms, t->n_feed, cli_s(t->n_feed),
                cli_per_second(t->n_feed, t->feed_ms));
    fprintf(out, "decode: %.2f ms, %d step%s, %.2f tok/s\n", t->decode_ms, t->n_decode, cli_s(t->n_decode),
            cli_per_second(t->n_decode + t->n_more, t->decode_ms));
    describe_drafts(t, out);
    fprintf(out, "bandwidth: %.2f GB/s, %.0f bytes a step\n", step_ms > 0 ? bytes / step_ms * 1e-6 : 0,
            steps ? bytes / steps : 0);
    share(out, "k_rows", a->k_rows, a->dense_k_rows);
    share(out, "v_rows", a->v_rows, a->dense_v_rows);
    if (sl_attn_knows_distinct(a->v_rows, a->v_distinct))
        share(out, "v_distinct", a->v_distinct, a->dense_k_rows);
    else
        fprintf(out, "v_distinct: -\n");
    share(out, "kv_bytes", a->bytes, a->dense_bytes);
    if (a->fetched + a->hits > 0)
        fprintf(out, "host_rows: %llu fetched, %llu of the hot rows, %.2f%% hits\n", (unsigned long long)a->fetched,
                (unsigned long long)a->hits, 100.0 * (double)a->hits / (double)(a->fetched + a->hits));
    fprintf(out, "samples: %llu\n", (unsigned long long)a->samples);
    if (a->features < (double)a->steps)
        fprintf(out, "features: %.2f%% of key features\n", 100 * a->features / (double)a->steps);
    cli_certificates_print(a, &run->plan, out);
    fprintf(out, "logits: %016llx\n", (unsigned long long)cli_timeline_logits_hash(t));
    int is_default = t->stopped && !strcmp(t->stopped, "limit") && !run->options->limits.n_predict_given;
    fprintf(out, "stopped: %s, %d prompt tokens, %d generated, %d in the context%s\n", t->stopped ? t->stopped : "not begun",
            t->n_prompt, t->n_sampled, sl_session_n_tokens(t->session),
            is_default ? "; -n N sets another limit, -n -1 none" : "");
    fprintf(out, "peak_rss: %.1f MiB\n", cli_peak_mib());
}
