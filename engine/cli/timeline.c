// engine/cli/timeline.c - see timeline.h.
#include "engine/cli/timeline.h"
#include "engine/cli/io.h"
#include "engine/cli/output/certificates.h"
#include "engine/cli/output/prefill_fields.h"
#include "engine/cli/output/progress_bar.h"
#include "engine/cli/process.h"
#include "engine/cli/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cli_timeline_open(cli_timeline *t, cli_run *run, uint32_t sequence, sl_error *err) {
    const cli_list *stops = &run->options->stops;
    *t = (cli_timeline){.run = run, .n_logprobs = -1};
    int rc = sl_session_new(run->engine, sequence, &t->session, err);
    if (!rc) rc = sl_sampler_new(&run->sampling, sl_model_config(run->model)->n_vocab, &t->sampler, err);
    if (!rc && stops->n) rc = sl_stopper_new(stops->items, stops->n, &t->stopper, err);
    if (rc) cli_timeline_close(t);
    return rc;
}

void cli_timeline_close(cli_timeline *t) {
    sl_stopper_free(t->stopper);
    sl_sampler_free(t->sampler);
    sl_session_free(t->session);
    sl_ids_free(&t->ids);
    sl_ids_free(&t->generated);
    sl_text_free(&t->piece);
    free(t->prefill);
    cli_logprobs_free(&t->logprobs);
    *t = (cli_timeline){0};
}

uint64_t cli_timeline_logits_hash(const cli_timeline *t) {
    return sl_logits_hash(sl_session_last_logits(t->session), sl_model_config(t->run->model)->n_vocab);
}

static int cut_back(cli_timeline *t, int n_tokens, sl_error *err) {
    int rc = sl_session_truncate(t->session, n_tokens, err);
    if (rc) return rc;
    t->ids.n = (size_t)n_tokens;
    sl_sampler_truncate(t->sampler, n_tokens);
    return 0;
}

int cli_timeline_cut(cli_timeline *t, int n_tokens, sl_error *err) {
    int rc = cut_back(t, n_tokens, err);
    if (rc) return rc;
    t->n_prefill = t->n_feed = t->n_decode = t->n_generated = t->n_prompt = 0;
    t->prefill_ms = t->feed_ms = t->decode_ms = t->prefill_flops = 0;
    t->stopped = NULL;
    free(t->prefill);
    t->prefill = NULL;
    sl_engine_reset_stats(t->run->engine);
    return 0;
}

int cli_timeline_prefix(cli_timeline *t, const int32_t *ids, int n_prefill, int n, sl_error *err) {
    int keep = cli_timeline_common(t, ids, n_prefill);
    if (keep > sl_session_n_prefilled(t->session)) keep = sl_session_n_prefilled(t->session);
    int has_logits = sl_session_n_tokens(t->session) == n && sl_session_logits(t->session, NULL);
    if (keep == n && !has_logits) keep = n - 1; // repeat the last token: the session holds logits of another step
    keep = sl_session_reusable(t->session, keep, n_prefill);
    sl_prefill_report *kept = keep == n_prefill ? t->prefill : NULL; // of the rows that all stay
    if (kept) t->prefill = NULL;
    int rc = cli_timeline_cut(t, keep, err);
    if (kept) t->prefill = kept;
    return rc ? rc : cli_timeline_prefill(t, ids + keep, n_prefill - keep, err);
}

int cli_timeline_set_sampling(cli_timeline *t, const sl_sampling *sampling, sl_error *err) {
    sl_sampler *sampler;
    int rc = sl_sampler_new(sampling, sl_model_config(t->run->model)->n_vocab, &sampler, err);
    if (rc) return rc;
    for (size_t i = 0; !rc && i < t->ids.n; i++) rc = sl_sampler_accept(sampler, t->ids.data[i], err);
    if (!rc) {
        sl_sampler *before = t->sampler;
        t->sampler = sampler, sampler = before;
    }
    sl_sampler_free(sampler);
    return rc;
}

int cli_timeline_common(const cli_timeline *t, const int32_t *ids, int n) {
    return cli_common_prefix(ids, (size_t)n, t->ids.data, t->ids.n);
}

int cli_check_prompt(const cli_run *run, size_t n, sl_error *err) {
    size_t n_ctx = (size_t)sl_engine_n_ctx(run->engine);
    int limit = sl_model_config(run->model)->n_ctx;
    if (n == 0) return sl_fail(err, SL_ERR_FORMAT, "the prompt is empty, and the tokenizer of this model adds no BOS token");
    if (n <= n_ctx) return 0;
    if (n <= (size_t)limit)
        return sl_fail(err, SL_ERR_CONTEXT,
                       "the prompt has %zu tokens, but the context holds %zu; raise it with %s (this model's limit is %d)", n,
                       n_ctx, run->options->command & CLI_CHAT ? "/ctx N, or --ctx-size" : "--ctx-size", limit);
    return sl_fail(err, SL_ERR_CONTEXT,
                   "the prompt has %zu tokens, and this model's limit is %d; shorten it, or run the model past its limit with "
                   "--rope-scaling yarn --rope-scale %d",
                   n, limit, (int)((n + (size_t)limit - 1) / (size_t)limit));
}

// ---- tokens in ----

// Records a token that entered the context.
static int record_token(cli_timeline *t, int32_t id, sl_error *err) {
    int rc = sl_sampler_accept(t->sampler, id, err);
    return rc ? rc : sl_ids_push(&t->ids, id, err);
}

// Makes t->prefill, when a layer does not prefill densely.
static int new_prefill_reports(cli_timeline *t, sl_error *err) {
    const sl_config *c = sl_model_config(t->run->model);
    int n = c->n_layers * c->n_heads, is_sparse = 0;
    for (int i = 0; i < t->run->prefill.n_layers; i++) is_sparse |= t->run->prefill.layer[i].method != &sl_method_dense;
    if (!is_sparse || t->prefill) return 0;
    t->prefill = malloc((size_t)n * sizeof *t->prefill);
    if (!t->prefill) return sl_fail(err, SL_ERR_MEMORY, "reports of %d heads: out of memory", n);
    for (int i = 0; i < n; i++) t->prefill[i] = sl_prefill_report_none();
    return 0;
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
    double start = cli_now();
    t->run->prefill_into = t->prefill;
    cli_progress_begin_prefill(&progress, t->run->model, sl_session_n_tokens(t->session));
    for (int i = 0, m; !rc && !t->stopped && i < n; i += m) {
        m = sl_session_next_pass(t->session, n - i);
        t->prefill_flops += sl_model_prefill_flops(t->run->model, sl_session_n_tokens(t->session), m);
        rc = sl_prefill(t->session, ids + i, m, &(sl_progress){update_pass, &(pass){&progress, i, n}}, err);
        for (int j = 0; !rc && j < m; j++) rc = record_token(t, ids[i + j], err);
        if (!rc) t->n_prefill += m;
        cli_progress_update(&progress, i + m, n);
        if (cli_interrupted()) t->stopped = "interrupted";
    }
    cli_progress_end(&progress);
    t->run->prefill_into = NULL;
    if (!rc) rc = cli_stats_check(&t->run->stats, err);
    t->prefill_ms += cli_now() - start;
    return rc;
}

int cli_timeline_feed(cli_timeline *t, const int32_t *ids, int n, sl_error *err) {
    cli_progress progress;
    int rc = 0;
    double start = cli_now();
    cli_progress_begin(&progress, "feed", "tokens");
    for (int i = 0; !rc && !t->stopped && i < n; i++) {
        rc = sl_decode(&t->session, 1, &ids[i], err);
        if (!rc) rc = cli_stats_check(&t->run->stats, err);
        if (!rc) rc = record_token(t, ids[i], err);
        if (!rc) t->n_feed++;
        cli_progress_update(&progress, i + 1, n);
        if (cli_interrupted()) t->stopped = "interrupted";
    }
    cli_progress_end(&progress);
    t->feed_ms += cli_now() - start;
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

// Writes the text that the last token made printable. Sets `stopped` at a stop string.
static int emit(cli_timeline *t, sl_error *err) {
    const char *text = t->piece.data;
    size_t n = t->piece.n;
    t->piece.n = 0;
    int rc = 0;
    if (n && t->stopper) rc = sl_stopper_feed(t->stopper, text, n, &text, &n, err);
    if (rc < 0) return rc;
    if (rc == 1) t->stopped = "stop string";
    return n ? t->sink(t->sink_ctx, text, n, err) : 0;
}

// Writes the rest of the text: an incomplete character, then text that looked like the beginning of a stop string.
static int finish(cli_timeline *t, sl_error *err) {
    const char *before = t->stopped, *text;
    size_t n = 0;
    if (!strcmp(before, "stop string")) return 0;
    int rc = sl_detok_end(&t->detok, &t->piece, err);
    if (!rc) rc = emit(t, err);
    if (rc || !t->stopper || t->stopped != before) return rc;
    sl_stopper_flush(t->stopper, &text, &n);
    return n ? t->sink(t->sink_ctx, text, n, err) : 0;
}

// Appends the text of a token, or its id if the model has no tokenizer.
static int add_piece(cli_timeline *t, int32_t id, sl_error *err) {
    char number[16];
    if (t->detok.tok) // ids above the tokenizer's are padding of the vocabulary and have no text
        return id < sl_tokenizer_n_vocab(t->detok.tok) ? sl_detok_next(&t->detok, id, &t->piece, err) : 0;
    int n = snprintf(number, sizeof number, t->n_generated > 1 ? " %d" : "%d", id);
    return sl_text_append(&t->piece, number, (size_t)n, err);
}

// The reason why the next token is certainly the last one, so that the step of this token is not needed. NULL: there is none.
static const char *ends_with_next(const cli_timeline *t) {
    int n_predict = t->run->options->n_predict;
    if (n_predict >= 0 && t->n_generated + 1 >= n_predict) return "limit";
    return sl_session_n_tokens(t->session) >= sl_engine_n_ctx(t->run->engine) ? "context full" : NULL;
}

static void check_running(cli_timeline *t) {
    if (t->stopped) return;
    if (cli_interrupted())
        t->stopped = "interrupted";
    else if (t->run->options->n_predict == 0)
        t->stopped = "limit";
}

// Handles a sampled token. ending: the reason why it is the last one; else the token was appended to the session, unless it is
// an end token. A token that completes a stop string is removed from the session, because the session must hold only the
// shown text, which chat continues.
static int handle_token(cli_timeline *t, int32_t id, const char *ending, sl_error *err) {
    int n_before = (int)t->ids.n, rc = sl_ids_push(&t->generated, id, err);
    if (!rc) rc = cli_logprobs_add(&t->logprobs, id, err);
    if (rc) return rc;
    t->n_generated++;
    if (sl_model_is_eos(t->run->model, id)) {
        t->stopped = "eos";
        return 0;
    }
    if (!ending) {
        t->n_decode++;
        rc = record_token(t, id, err);
    }
    if (!rc) rc = add_piece(t, id, err);
    if (!rc) rc = emit(t, err);
    if (rc) return rc;
    if (!t->stopped) {
        t->stopped = ending;
        return 0;
    }
    return ending ? 0 : cut_back(t, n_before, err);
}

// The arguments of sl_step and sl_sample: the running timelines of a batch. Timelines that step come first, then timelines that
// only sample their last token.
typedef struct step_batch {
    cli_timeline **t;
    sl_session **sessions;
    sl_sampler **samplers;
    int32_t *ids;
    int n_step, n;
} step_batch;

static int step_batch_new(step_batch *b, int n, sl_error *err) {
    *b = (step_batch){.t = malloc(n * sizeof *b->t),
                      .sessions = malloc(n * sizeof *b->sessions),
                      .samplers = malloc(n * sizeof *b->samplers),
                      .ids = malloc(n * sizeof *b->ids)};
    return b->t && b->sessions && b->samplers && b->ids ? 0 : sl_fail(err, SL_ERR_MEMORY, "a batch of %d: out of memory", n);
}

static void step_batch_free(step_batch *b) {
    free(b->t), free(b->sessions), free(b->samplers), free(b->ids);
}

static void fill_step_batch(step_batch *b, cli_timeline *const *batch, int n) {
    b->n = 0;
    for (int i = 0; i < n; i++) check_running(batch[i]);
    for (int ending = 0; ending < 2; ending++) {
        for (int i = 0; i < n; i++) {
            if (batch[i]->stopped || (ends_with_next(batch[i]) != NULL) != ending) continue;
            b->t[b->n] = batch[i];
            b->sessions[b->n] = batch[i]->session;
            b->samplers[b->n++] = batch[i]->sampler;
        }
        if (!ending) b->n_step = b->n;
    }
}

// Makes one token for each running timeline. Each timeline is charged the time of the whole batch.
static int advance(const step_batch *b, sl_error *err) {
    int n_step = b->n_step, n_sample = b->n - n_step, rc = 0;
    double start = cli_now();
    for (int i = 0; !rc && i < b->n; i++)
        if (b->t[i]->n_logprobs >= 0) { // on a GPU this downloads the logits
            const float *logits = sl_session_logits(b->sessions[i], err);
            rc = logits ? cli_logprobs_before(&b->t[i]->logprobs, logits, err) : (int)err->code;
        }
    if (!rc && n_sample) rc = sl_sample(b->sessions + n_step, n_sample, b->samplers + n_step, b->ids + n_step, err);
    if (!rc && n_step) rc = sl_step(b->sessions, n_step, b->samplers, b->ids, err);
    double ms = cli_now() - start;
    if (!rc) rc = cli_stats_check(&b->t[0]->run->stats, err);
    for (int i = 0; !rc && i < b->n; i++) {
        b->t[i]->decode_ms += ms;
        rc = handle_token(b->t[i], b->ids[i], i < n_step ? NULL : ends_with_next(b->t[i]), err);
    }
    return rc;
}

void cli_timeline_begin(cli_timeline *t, int at_start, cli_sink sink, void *ctx) {
    t->n_prompt = (int)t->ids.n;
    t->detok = sl_detok_begin(sl_model_tokenizer(t->run->model), 0, at_start);
    t->piece.n = 0;
    t->generated.n = 0;
    cli_logprobs_begin(&t->logprobs, t->n_logprobs, sl_model_config(t->run->model)->n_vocab);
    t->sink = sink;
    t->sink_ctx = ctx;
    if (t->stopper) sl_stopper_reset(t->stopper);
}

int cli_timelines_generate(cli_timeline *const *batch, int n, sl_error *err) {
    step_batch b;
    int rc = step_batch_new(&b, n, err);
    if (!rc) fill_step_batch(&b, batch, n);
    while (!rc && b.n) {
        rc = advance(&b, err);
        if (!rc) fill_step_batch(&b, batch, n);
    }
    for (int i = 0; !rc && i < n; i++) rc = finish(batch[i], err);
    step_batch_free(&b);
    return rc;
}

int cli_timeline_generate(cli_timeline *t, int at_start, cli_sink sink, void *ctx, sl_error *err) {
    cli_timeline_begin(t, at_start, sink, ctx);
    return cli_timelines_generate(&t, 1, err);
}

// ---- statistics ----

static void share(FILE *out, const char *key, uint64_t n, uint64_t dense) {
    fprintf(out, "%s: %llu of %llu, %.2f%%\n", key, (unsigned long long)n, (unsigned long long)dense,
            dense ? 100.0 * n / dense : 100.0);
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
            cli_per_second(t->n_decode, t->decode_ms));
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
    int is_default = t->stopped && !strcmp(t->stopped, "limit") && !CLI_GIVEN(run->options, n_predict);
    fprintf(out, "stopped: %s, %d prompt tokens, %d generated, %zu in the context%s\n", t->stopped ? t->stopped : "not begun",
            t->n_prompt, t->n_generated, t->ids.n, is_default ? "; -n N sets another limit, -n -1 none" : "");
    fprintf(out, "peak_rss: %.1f MiB\n", cli_peak_mib());
}
