// engine/prefill.c - appends the tokens of a prompt to a session, pass by pass: chunks, or segments of a sparse prefill.
#include "engine/engine_internal.h"
#include "kv/kv_offload.h"

#include <stdlib.h>
#include <string.h>

// Makes the range `range` of a pass, rows from `first` on, and uploads the ids.
static void set_range(const sl_prefill_part *part, int range, int first) {
    sl_session *s = part->session;
    sl_device *d = &s->engine->device;
    sl_kv_write_out(&d->pool, &s->kv);
    const int32_t *pages = d->pool.offload ? d->pool.offload->in_order : sl_session_page_table(s);
    for (int i = 0; i < part->n; i++)
        d->pass.rows[first + i] = (sl_row){.position = s->kv.n_tokens + i, .sequence = s->sequence, .pages = pages};
    d->pass.ranges[range] = (sl_row_range){.session = s, .first = first, .n_rows = part->n, .position = s->kv.n_tokens};
    d->backend->upload(d->backend, d->pass.ids + first, part->ids, part->n * sizeof *part->ids);
}

// Prefills of n sessions write the last rows of the logits, because decode steps use the first ones.
static int first_logits_row(const sl_engine *e, int n) {
    return e->n_step_rows - n;
}

// A range for each part.
static sl_batch prefill_batch(const sl_prefill_part *parts, int n_parts) {
    const sl_engine *e = parts[0].session->engine;
    const sl_sparse_prefill *prefill = &e->prefill;
    sl_device *d = &parts[0].session->engine->device;
    int n_rows = 0;
    for (int i = 0; i < n_parts; n_rows += parts[i++].n) set_range(&parts[i], i, n_rows);
    sl_pass_upload(d, n_rows, NULL);
    sl_batch pass = sl_pass_batch(d, 0, 0, n_parts, n_rows, SL_LINEAR_PREFILL);
    pass.logits = d->pass.logits + (size_t)first_logits_row(e, n_parts) * e->model->config.n_vocab;
    if (prefill->has_masks) pass.propose = d->attention->propose;
    if (prefill->segment_tokens) pass.attend_step = SL_MASK_BLOCK;
    if (d->pool.offload) pass.open_layer = sl_kv_stream_open;
    return pass;
}

static void run_prefill(const sl_batch *pass) {
    pass->weights->config->arch->forward(pass);
    if (pass->open_layer) sl_kv_stream_close(pass);
}

static int reserve_prefill(sl_session *s, const int32_t *ids, int n, sl_error *err) {
    sl_engine *e = s->engine;
    if (n <= 0) return sl_fail(err, SL_ERR_ARG, "prefill of %d tokens: expected at least 1", n);
    if (n > e->n_ctx - s->kv.n_tokens)
        return sl_fail(err, SL_ERR_CONTEXT, "the prompt has %d tokens, %d are in the context already, and {n_ctx} is %d", n,
                       s->kv.n_tokens, e->n_ctx);
    int rc = sl_check_ids(e, ids, n, err);
    if (!rc) rc = sl_session_sync_state(s, err);
    if (!rc) rc = sl_session_reserve_segments(s, n, err);
    if (!rc) rc = sl_kv_reserve(&e->device.pool, &s->kv, s->kv.n_tokens + n, err);
    return rc;
}

int sl_session_next_pass(const sl_session *s, int n) {
    const sl_engine *e = s->engine;
    int segment = e->prefill.segment_tokens, most = segment ? segment - s->kv.n_tokens % segment : e->prefill_chunk;
    return n < most ? n : most;
}

// Appends a pass of m tokens, which forward has run or queued.
static void end_pass(sl_session *s, const int32_t *ids, int m) {
    sl_engine *e = s->engine;
    memcpy(s->ids + s->kv.n_tokens, ids, m * sizeof *ids);
    if (e->prefill.segment_tokens) {
        sl_session_add_segment(s, s->kv.n_tokens, m);
        sl_prefill_pass_done(e, s->sequence, s->kv.n_tokens, m);
    }
    if (s->n_prefilled == s->kv.n_tokens) s->n_prefilled += m;
    s->kv.n_tokens += m;
}

// 1: a prefill with a progress or cancel callback waits after the pass of m tokens that ends at token n_done of n. A device
// queues chunks, and has no work while the host waits, so the host waits for every fourth chunk only.
static int is_wait(const sl_engine *e, int n_done, int m, int n) {
    return !e->device.backend->is_device || m > e->prefill_chunk || n_done == n || n_done / e->prefill_chunk % 4 == 0;
}

// Prefills pass by pass. After an error the session has the tokens of before.
static int prefill(sl_session *s, const int32_t *ids, int n, const sl_progress *progress, sl_error *err) {
    sl_engine *e = s->engine;
    int before = s->kv.n_tokens, rc = 0;
    int is_watched = e->cancel.fn || (progress && progress->fn);
    for (int i = 0, m; !rc && i < n; i += m) {
        m = sl_session_next_pass(s, n - i);
        rc = sl_cancel_poll(&e->cancel, err);
        if (rc) break;
        sl_batch pass = prefill_batch(&(sl_prefill_part){s, ids + i, m}, 1);
        pass.n_out = i + m == n;
        if (progress && m > e->prefill_chunk) e->prefill.progress = (struct sl_pass_progress){*progress, i, m, n};
        run_prefill(&pass);
        e->prefill.progress = (struct sl_pass_progress){0};
        end_pass(s, ids + i, m);
        if (!is_watched || !is_wait(e, i + m, m, n)) continue;
        rc = e->device.backend->finish(e->device.backend, err);
        if (!rc) sl_progress_report(progress, i + m, n);
    }
    int finished = e->device.backend->finish(e->device.backend, rc ? NULL : err);
    if (!rc) rc = finished;
    if (rc) sl_session_cut_rows(s, before);
    return rc;
}

int sl_prefill_claimed(sl_session *s, const int32_t *ids, int n, const sl_progress *progress, sl_error *err) {
    sl_engine *e = s->engine;
    int rc = sl_engine_begin(e, err);
    if (rc) return rc;
    rc = reserve_prefill(s, ids, n, err);
    if (!rc) {
        // Only the last chunk writes logits. A cancelled prefill leaves the session its logits, so fetch them.
        int keeps = e->cancel.fn != NULL && s->has_logits;
        sl_logits_before_step(&e->device, &s, keeps ? 0 : 1, first_logits_row(e, 1), 1);
        rc = prefill(s, ids, n, progress, err);
        if (rc && !keeps) s->has_logits = 0;
    }
    if (!rc) {
        sl_logits_after_step(&e->device, &s, 1, first_logits_row(e, 1));
        sl_session_build_extras(s);
    }
    sl_engine_end(e);
    return rc;
}

int sl_prefill(sl_session *s, const int32_t *ids, int n, const sl_progress *progress, sl_error *err) {
    int rc = sl_engine_claim(s->engine, err);
    if (rc) return rc;
    rc = sl_prefill_claimed(s, ids, n, progress, err);
    sl_engine_release(s->engine);
    return rc;
}

// ---- prompts of several sessions in one pass ----

int sl_prefill_joins(const sl_engine *e) {
    return e->device.backend->is_device && !e->device.pool.offload && !e->prefill.segment_tokens;
}

static int reserve_parts(const sl_prefill_part *parts, int n_parts, sl_error *err) {
    int rc = 0, i;
    for (i = 0; !rc && i < n_parts; i++) rc = reserve_prefill(parts[i].session, parts[i].ids, parts[i].n, err);
    for (int j = 0; rc && j < i; j++) sl_session_cut_rows(parts[j].session, parts[j].session->kv.n_tokens);
    return rc;
}

static int run_parts(const sl_prefill_part *parts, int n_parts, sl_session *const *sessions, sl_error *err) {
    sl_engine *e = sessions[0]->engine;
    sl_batch pass = prefill_batch(parts, n_parts);
    const sl_row_range *ranges = pass.ranges;
    int last_rows[n_parts]; // at most n_sequences: the precondition of sl_prefill_together
    for (int i = 0; i < n_parts; i++) last_rows[i] = ranges[i].first + ranges[i].n_rows - 1;
    sl_logits_before_step(&e->device, sessions, n_parts, first_logits_row(e, n_parts), n_parts);
    pass.n_out = n_parts, pass.out_rows = last_rows;
    run_prefill(&pass);
    for (int i = 0; i < n_parts; i++) end_pass(sessions[i], parts[i].ids, parts[i].n);
    int rc = e->device.backend->finish(e->device.backend, err);
    for (int i = 0; rc && i < n_parts; i++) sl_session_cut_rows(sessions[i], ranges[i].position), sessions[i]->has_logits = 0;
    if (rc) return rc;
    sl_logits_after_step(&e->device, sessions, n_parts, first_logits_row(e, n_parts));
    for (int i = 0; i < n_parts; i++) sl_session_build_extras(sessions[i]);
    return 0;
}

int sl_prefill_together(const sl_prefill_part *parts, int n_parts, sl_error *err) {
    sl_engine *e = parts[0].session->engine;
    int n_rows = 0;
    for (int i = 0; i < n_parts; i++) n_rows += parts[i].n;
    SL_CHECK(sl_prefill_joins(e) && n_parts <= e->n_sequences && n_rows <= e->prefill_chunk);
    int rc = sl_engine_enter(e, err);
    if (rc) return rc;
    sl_session *sessions[n_parts];
    for (int i = 0; i < n_parts; i++) sessions[i] = parts[i].session;
    rc = sl_cancel_poll(&e->cancel, err);
    if (!rc) rc = reserve_parts(parts, n_parts, err);
    if (!rc) rc = run_parts(parts, n_parts, sessions, err);
    sl_engine_leave(e);
    return rc;
}

// ---- logits of every token ----

// The logits of rows [first, first + n) of a pass, to host memory [n][n_vocab]. Waits. A device makes as many at a time as
// sl_pass_buffers.logits holds.
static int download_logits(sl_engine *e, const sl_batch *pass, int first, int n, float *logits, sl_error *err) {
    const sl_backend *be = e->device.backend;
    size_t n_vocab = e->model->config.n_vocab;
    for (int i = 0, most = be->is_device ? e->n_sequences : n; i < n; i += most) {
        int rows = n - i < most ? n - i : most;
        float *to = be->is_device ? e->device.pass.logits : logits;
        e->model->config.arch->logits(pass, first + i, rows, to);
        if (be->is_device) be->download(be, logits + i * n_vocab, to, rows * n_vocab * sizeof(float));
    }
    return be->finish(be, err);
}

enum { GROUP = 64 }; // rows of logits made at a time: 32 MB with a vocabulary of 128k

// The body of sl_prefill_logits. logits: scratch memory [GROUP][n_vocab]

static int prefill_logits(sl_session *s, const int32_t *ids, int n, float *logits, sl_logits_fn fn, void *ctx,
                          const sl_progress *progress, sl_error *err) {
    sl_engine *e = s->engine;
    size_t n_vocab = e->model->config.n_vocab;
    int rc = 0, most = e->device.pass.max_rows < GROUP ? e->device.pass.max_rows : GROUP;
    for (int i = 0, m; !rc && i < n; i += m) {
        m = sl_session_next_pass(s, n - i);
        rc = sl_cancel_poll(&e->cancel, err);
        if (rc) break;
        sl_batch pass = prefill_batch(&(sl_prefill_part){s, ids + i, m}, 1);
        pass.n_out = m;
        pass.logits = NULL; // in groups, below
        pass.logits_mode = SL_LINEAR_PREFILL;
        run_prefill(&pass);
        end_pass(s, ids + i, m);
        for (int j = 0; !rc && j < m; j += most) {
            int rows = m - j < most ? m - j : most;
            rc = download_logits(e, &pass, j, rows, logits, err);
            if (!rc) rc = fn(ctx, i + j, rows, logits, err);
            if (!rc && i + j + rows == n) memcpy(s->logits, logits + (rows - 1) * n_vocab, n_vocab * sizeof *logits);
        }
        if (!rc) sl_progress_report(progress, i + m, n);
    }
    return rc;
}

int sl_prefill_logits(sl_session *s, const int32_t *ids, int n, sl_logits_fn fn, void *ctx, const sl_progress *progress,
                      sl_error *err) {
    sl_engine *e = s->engine;
    int before = s->kv.n_tokens, rc = sl_engine_enter(e, err);
    if (rc) return rc;
    float *logits = malloc(GROUP * (size_t)e->model->config.n_vocab * sizeof *logits);
    rc = logits ? reserve_prefill(s, ids, n, err) : sl_fail(err, SL_ERR_MEMORY, "logits of %d rows: out of memory", GROUP);
    if (!rc) {
        sl_logits_before_step(&e->device, NULL, 0, 0, e->n_sequences); // after an error the session has its logits
        rc = prefill_logits(s, ids, n, logits, fn, ctx, progress, err);
        if (rc)
            sl_session_cut_rows(s, before);
        else {
            sl_session_build_extras(s);
            s->has_logits = 1, s->n_logits++;
        }
    }
    free(logits);
    sl_engine_leave(e);
    return rc;
}
