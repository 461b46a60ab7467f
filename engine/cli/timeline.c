// engine/cli/timeline.c - one session as the commands use it: prefill, feed, generate with streaming, statistics; see run.h.
#include "engine/cli/progress.h"
#include "engine/cli/run.h"

#include <string.h>

int cli_timeline_open(cli_timeline *t, cli_run *run, uint32_t sequence, sl_error *err) {
    const cli_list *stops = &run->options->stops;
    *t = (cli_timeline){.run = run};
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
    *t = (cli_timeline){0};
}

int cli_timeline_cut(cli_timeline *t, int n_tokens, sl_error *err) {
    int rc = sl_session_truncate(t->session, n_tokens, err);
    if (rc) return rc;
    t->ids.n = (size_t)n_tokens;
    sl_sampler_truncate(t->sampler, n_tokens);
    t->n_prefill = t->n_feed = t->n_decode = t->n_generated = 0;
    t->prefill_ms = t->feed_ms = t->decode_ms = t->prefill_flops = 0;
    t->stopped = NULL;
    sl_engine_reset_stats(t->run->engine);
    return 0;
}

int cli_timeline_common(const cli_timeline *t, const int32_t *ids, int n) {
    int i = 0;
    while (i < n && i < (int)t->ids.n && ids[i] == t->ids.data[i]) i++;
    return i;
}

int cli_check_prompt(const cli_run *run, size_t n, sl_error *err) {
    size_t n_ctx = (size_t)sl_engine_n_ctx(run->engine);
    if (n == 0) return sl_fail(err, SL_ERR_FORMAT, "the prompt is empty and this model's tokenizer puts no BOS in front");
    if (n <= n_ctx) return 0;
    return sl_fail(err, SL_ERR_CONTEXT,
                   "the prompt has %zu tokens, the context holds %zu; --ctx-size sets it, this model's limit is %d", n, n_ctx,
                   sl_model_config(run->model)->n_ctx);
}

// ---- tokens in ----

static int note(cli_timeline *t, int32_t id, sl_error *err) { // a token entered the context
    int rc = sl_sampler_accept(t->sampler, id, err);
    return rc ? rc : sl_ids_push(&t->ids, id, err);
}

// In pieces of a prefill pass, so that Ctrl+C is heard; the logits do not depend on the pieces.
int cli_timeline_prefill(cli_timeline *t, const int32_t *ids, int n, sl_error *err) {
    cli_progress progress;
    int rc = 0, piece = sl_engine_prefill_chunk(t->run->engine);
    double start = cli_now();
    cli_progress_begin(&progress, "prefill", "tokens");
    for (int i = 0; !rc && !t->stopped && i < n; i += piece) {
        int m = n - i < piece ? n - i : piece;
        t->prefill_flops += sl_model_prefill_flops(t->run->model, sl_session_n_tokens(t->session), m);
        rc = sl_prefill(t->session, ids + i, m, NULL, err);
        for (int j = 0; !rc && j < m; j++) rc = note(t, ids[i + j], err);
        if (!rc) t->n_prefill += m;
        cli_progress_update(&progress, i + m, n);
        if (cli_interrupted()) t->stopped = "interrupted";
    }
    cli_progress_end(&progress);
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
        if (!rc) rc = note(t, ids[i], err);
        if (!rc) t->n_feed++;
        cli_progress_update(&progress, i + 1, n);
        if (cli_interrupted()) t->stopped = "interrupted";
    }
    cli_progress_end(&progress);
    t->feed_ms += cli_now() - start;
    return rc;
}

// ---- text out ----

int cli_sink_stdout(void *ctx, const char *text, size_t n, sl_error *err) {
    (void)ctx;
    int rc = cli_write(text, n, err);
    return rc ? rc : cli_flush(err);
}

typedef struct stream {
    cli_timeline *t;
    sl_detok_stream detok;
    sl_text piece;
    cli_sink sink;
    void *ctx;
} stream;

// Hands on what the last token made printable. Sets `stopped` at a stop string.
static int emit(stream *s, sl_error *err) {
    const char *text = s->piece.data;
    size_t n = s->piece.n;
    s->piece.n = 0;
    int rc = 0;
    if (n && s->t->stopper) rc = sl_stopper_feed(s->t->stopper, text, n, &text, &n, err);
    if (rc < 0) return rc;
    if (rc == 1) s->t->stopped = "stop string";
    return n ? s->sink(s->ctx, text, n, err) : 0;
}

// The end of the stream: half a character, then what looked like the beginning of a stop string.
static int finish(stream *s, sl_error *err) {
    const char *before = s->t->stopped, *text;
    size_t n = 0;
    if (!strcmp(before, "stop string")) return 0;
    int rc = sl_detok_end(&s->detok, &s->piece, err);
    if (!rc) rc = emit(s, err);
    if (rc || !s->t->stopper || s->t->stopped != before) return rc;
    sl_stopper_flush(s->t->stopper, &text, &n);
    return n ? s->sink(s->ctx, text, n, err) : 0;
}

static int step(stream *s, sl_error *err) {
    cli_timeline *t = s->t;
    int n_predict = t->run->options->n_predict, position = sl_session_n_tokens(t->session);
    if (cli_interrupted())
        t->stopped = "interrupted";
    else if (n_predict >= 0 && t->n_generated >= n_predict)
        t->stopped = "limit";
    if (t->stopped) return 0;
    int32_t id =
        sl_sampler_draw(t->sampler, sl_session_logits(t->session), sl_session_sequence(t->session), (uint32_t)position);
    t->n_generated++;
    if (sl_model_is_eos(t->run->model, id)) {
        t->stopped = "eos";
        return 0;
    }
    int rc = 0;
    if (id < sl_tokenizer_n_vocab(s->detok.tok)) rc = sl_detok_next(&s->detok, id, &s->piece, err); // else padding: no text
    if (!rc) rc = emit(s, err);
    if (rc || t->stopped) return rc;
    if (n_predict >= 0 && t->n_generated >= n_predict)
        t->stopped = "limit"; // its logits would not be used
    else if (position >= sl_engine_n_ctx(t->run->engine))
        t->stopped = "context full";
    if (t->stopped) return 0;
    double start = cli_now();
    rc = sl_decode(&t->session, 1, &id, err);
    t->decode_ms += cli_now() - start;
    if (!rc) rc = cli_stats_check(&t->run->stats, err);
    if (rc) return rc;
    t->n_decode++;
    return note(t, id, err);
}

int cli_timeline_generate(cli_timeline *t, int at_start, cli_sink sink, void *ctx, sl_error *err) {
    if (t->stopped) return 0; // interrupted while the prompt was read
    stream s = {.t = t, .detok = sl_detok_begin(sl_model_tokenizer(t->run->model), 0, at_start), .sink = sink, .ctx = ctx};
    int rc = 0;
    if (t->stopper) sl_stopper_reset(t->stopper);
    while (!rc && !t->stopped) rc = step(&s, err);
    if (!rc) rc = finish(&s, err);
    sl_text_free(&s.piece);
    return rc;
}

// ---- statistics ----

static double per_second(double n, double ms) {
    return ms > 0 ? n * 1e3 / ms : 0;
}

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
    fprintf(out, "prefill: %.2f ms, %d tokens, %.2f tok/s, %.1f GFLOP/s\n", t->prefill_ms, t->n_prefill,
            per_second(t->n_prefill, t->prefill_ms), per_second(t->prefill_flops, t->prefill_ms) * 1e-9);
    if (t->n_feed)
        fprintf(out, "feed: %.2f ms, %d tokens, %.2f tok/s\n", t->feed_ms, t->n_feed, per_second(t->n_feed, t->feed_ms));
    fprintf(out, "decode: %.2f ms, %d runs, %.2f tok/s\n", t->decode_ms, t->n_decode, per_second(t->n_decode, t->decode_ms));
    fprintf(out, "bandwidth: %.2f GB/s, %.0f bytes a step\n", step_ms > 0 ? bytes / step_ms * 1e-6 : 0,
            steps ? bytes / steps : 0);
    share(out, "k_rows", a->k_rows, a->dense_k_rows);
    share(out, "v_rows", a->v_rows, a->dense_v_rows);
    share(out, "v_distinct", a->v_distinct, a->dense_k_rows);
    share(out, "kv_bytes", a->bytes, a->dense_bytes);
    fprintf(out, "samples: %llu\n", (unsigned long long)a->samples);
    if (a->features < (double)a->steps)
        fprintf(out, "features: %.2f%% of key features\n", 100 * a->features / (double)a->steps);
    if (a->tries)
        fprintf(out, "certified: %.2f draws a head, %llu of %llu heads went dense\n", (double)a->tries / (double)a->steps,
                (unsigned long long)a->fallbacks, (unsigned long long)a->steps);
    fprintf(out, "logits: %016llx\n",
            (unsigned long long)sl_logits_hash(sl_session_logits(t->session), sl_model_config(run->model)->n_vocab));
    fprintf(out, "stopped: %s, %d prompt tokens, %d generated, %zu in the context\n", t->stopped ? t->stopped : "not begun",
            (int)t->ids.n - t->n_decode, t->n_generated, t->ids.n);
    fprintf(out, "peak_rss: %.1f MiB\n", cli_peak_mib());
}
