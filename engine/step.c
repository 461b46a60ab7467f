// engine/step.c - decode steps: token sampling, and sl_step, which samples and then decodes. engine/prefill.c appends prompts.
//
// A step makes an sl_batch (models/arch.h), the input of one pass, and calls the architecture's forward. On a device it goes
// through a recording (sl_backend.run_step). docs/architecture.md shows the path down to a kernel.
#include "engine/draft/draft.h"
#include "engine/engine_internal.h"
#include "kv/kv_offload.h"

#include <stdlib.h>
#include <string.h>

// ---- token ids ----

int sl_find_bad_id(const sl_engine *e, const int32_t *ids, int n) {
    int i = 0;
    while (i < n && ids[i] >= 0 && ids[i] < e->model->config.n_vocab) i++;
    return i;
}

int sl_check_ids(const sl_engine *e, const int32_t *ids, int n, sl_error *err) {
    const sl_tokenizer *tok = e->model->tokenizer;
    int i = sl_find_bad_id(e, ids, n);
    if (i == n) return 0;
    sl_text text = {0}; // of a token that the tokenizer has and the model lacks
    if (tok && ids[i] >= 0 && ids[i] < sl_tokenizer_n_vocab(tok)) sl_detokenize(tok, &ids[i], 1, 1, &text, NULL);
    int rc = sl_fail(err, SL_ERR_ARG, "token %d of %d: id %d%s%.60s%s, expected 0 to %d", i, n, ids[i], text.n ? " (" : "",
                     text.n ? text.data : "", text.n ? ")" : "", e->model->config.n_vocab - 1);
    sl_text_free(&text);
    return rc;
}

// ---- groups of a decode step: one launch serves sessions of one plan ----

// The number of runs from the first on whose sessions have its plan.
static int group_size(const sl_run *runs, int n) {
    int m = 1;
    while (m < n && sl_session_plan(runs[m].session) == sl_session_plan(runs[0].session)) m++;
    return m;
}

// order: [n] the indices of the sessions in the order of their plans' numbers, so that sessions of one plan are neighbours and
// recordings are found again. Sessions of one plan that attend exactly in more layers come first (sl_plan_exact_rows).
static void group(sl_session *const *sessions, int n, int *order) {
    uint64_t key[n]; // n is at most n_sequences: check_batch
    for (int i = 0; i < n; i++) {
        key[i] = (uint64_t)sl_session_plan(sessions[i])->number << 32 | (UINT32_MAX - (uint32_t)sl_plan_n_exact(sessions[i]));
        int at = i;
        for (; at > 0 && key[order[at - 1]] > key[i]; at--) order[at] = order[at - 1];
        order[at] = i;
    }
}

// Which kernels run depends on the methods, on the rows that attend exactly, and on whether rows share a session.
static sl_step_key key_of(const sl_plan *plan, const sl_batch *step, int first) {
    const sl_engine *e = step->ranges[0].session->engine;
    uint32_t has_runs = step->n_rows > step->n_ranges;
    sl_step_key key = {.n = step->n_rows, .first = first, .plan = plan->number << 1 | has_runs};
    for (int i = 0; i < plan->n_splits && !e->plans.draws_always; i++)
        key.exact_rows[i] = (uint16_t)sl_plan_exact_rows(step->ranges, step->n_ranges, plan->splits[i]);
    return key;
}

static int n_rows_of(const sl_run *runs, int n) {
    int n_rows = 0;
    for (int i = 0; i < n; i++) n_rows += runs[i].n;
    return n_rows;
}

// The next rows of n sessions: a range for each run. The runs are grouped. has_ids 0: the device samples the ids.
static void set_rows(sl_run *runs, int n, int has_ids) {
    sl_engine *e = runs[0].session->engine;
    int32_t ids[n_rows_of(runs, n)]; // at most n_step_rows
    int row = 0;
    for (int i = 0, end = 0, first_row = 0; i < n; i++) {
        sl_run *r = &runs[i];
        sl_session *s = r->session;
        const int32_t *pages = sl_session_page_table(s);
        if (i == end) first_row = row, end = i + group_size(runs + i, n - i);
        r->row = row;
        e->device.pass.ranges[i] =
            (sl_row_range){.session = s, .first = row - first_row, .n_rows = r->n, .position = s->kv.n_tokens, .is_decode = 1};
        for (int j = 0; j < r->n; j++, row++) {
            if (has_ids) ids[row] = r->ids[j];
            e->device.pass.rows[row] = (sl_row){.position = s->kv.n_tokens + j,
                                                .sequence = s->sequence,
                                                .pages = pages,
                                                .state = s->device_state,
                                                .seed = s->seed};
        }
    }
    sl_pass_upload(&e->device, row, has_ids ? ids : NULL);
}

// Runs a decode step of runs whose rows and ids are set. On a device it queues the step.
static void run_groups(const sl_run *runs, int n) {
    sl_engine *e = runs[0].session->engine;
    const sl_backend *be = e->device.backend;
    const sl_arch *arch = e->model->config.arch;
    for (int first = 0, m; first < n; first += m) {
        m = group_size(runs + first, n - first);
        int n_rows = n_rows_of(runs + first, m), row = runs[first].row;
        sl_batch step = sl_pass_batch(&e->device, row, first, m, n_rows, SL_LINEAR_DECODE);
        step.n_out = n_rows;
        if (sl_session_plan(runs[first].session)->has_draft_weights) step.weights = &e->device.draft_weights;
        if (be->run_step && !e->observation.observer.fn)
            be->run_step(be, key_of(sl_session_plan(runs[first].session), &step, row), arch->forward, &step);
        else
            arch->forward(&step); // an observed step is not recorded: the host looks at every layer
    }
}

// ---- tokens that the device samples ----

// 1: the backend can sample in its memory with the parameters of this sampler.
static int is_for_device(const sl_engine *e, const sl_sampler *sampler) {
    const sl_backend *be = e->device.backend;
    return be->sample_rows && be->can_sample(sl_sampler_params(sampler), e->model->config.n_vocab);
}

static int n_for_device(const sl_engine *e, sl_sampler *const *samplers, int n) {
    int count = 0;
    for (int i = 0; i < n; i++) count += is_for_device(e, samplers[i]);
    return count;
}

// 1: the device can sample the tokens after all rows of a run together. Then they depend on the logits alone: no device offers
// penalties, and the run has no grammar.
static int samples_next(const sl_run *r) {
    return r->sampler && is_for_device(r->session->engine, r->sampler) && !sl_sampler_allowed(r->sampler);
}

static const sl_sampling greedy = {.top_p = 1, .repeat_penalty = 1}; // of rows whose ids are not used

// Queues the sampling of the tokens after the rows of a pass that is queued: sl_run.next. A token has the position behind its
// row. Returns 0 when no run has such tokens.
static int queue_next(const sl_run *runs, int n) {
    sl_engine *e = runs[0].session->engine;
    const sl_backend *be = e->device.backend;
    sl_pass_buffers *p = &e->device.pass;
    int n_rows = n_rows_of(runs, n), is_any = 0, row = 0;
    const sl_sampling *params[n_rows];
    const uint32_t *allowed[n_rows];
    for (int i = 0; i < n; i++)
        for (int j = 0, samples = samples_next(&runs[i]); j < runs[i].n; j++, row++) {
            params[row] = samples ? sl_sampler_params(runs[i].sampler) : &greedy, allowed[row] = NULL;
            p->rows[row].position++;
            is_any |= samples;
        }
    if (!is_any) return 0;
    sl_pass_upload(&e->device, n_rows, NULL);
    be->sample_rows(be, p->logits, p->device_rows, params, allowed, n_rows, e->model->config.n_vocab, p->ids);
    return 1;
}

// Sets sl_run.next. is_queued: of queue_next
static int take_next(const sl_run *runs, int n, int is_queued, sl_error *err) {
    const sl_backend *be = runs[0].session->engine->device.backend;
    int n_rows = n_rows_of(runs, n), ids[n_rows];
    int rc = is_queued ? be->sampled_ids(be, ids, n_rows, err) : 0;
    for (int i = 0; !rc && i < n; i++)
        for (int j = 0; runs[i].sampler && j < runs[i].n; j++)
            runs[i].next[j] = is_queued && samples_next(&runs[i]) ? ids[runs[i].row + j] : -1;
    return rc;
}

// ---- decode ----

// Checks the sessions of a batch. A step needs different sessions of one engine.
static int check_batch(sl_engine *e, sl_session *const *batch, int n, sl_error *err) {
    if (n > e->n_sequences)
        return sl_fail(err, SL_ERR_ARG, "a batch of %d sequences: this engine takes 1 to %d ({n_sequences})", n,
                       e->n_sequences);
    uint64_t mark = ++e->n_batches;
    for (int i = 0; i < n; i++) {
        sl_session *s = batch[i];
        if (s->engine != e) return sl_fail(err, SL_ERR_ARG, "session %d of the batch belongs to another engine", i);
        if (s->batch_mark == mark) return sl_fail(err, SL_ERR_ARG, "session %d is in the batch twice", i);
        s->batch_mark = mark;
    }
    return 0;
}

static int claim(sl_session *const *batch, int n, sl_error *err) {
    if (n < 1) return sl_fail(err, SL_ERR_ARG, "a batch of %d sequences: expected at least 1", n);
    return sl_engine_claim(batch[0]->engine, err);
}

// Checks the batch, and begins work of its engine, which the caller has claimed.
static int begin(sl_session *const *batch, int n, sl_error *err) {
    sl_engine *e = batch[0]->engine;
    int rc = sl_engine_begin(e, err);
    if (rc) return rc;
    rc = check_batch(e, batch, n, err);
    if (rc) sl_engine_end(e);
    return rc;
}

static int check_room(const sl_session *s, int n_rows, sl_error *err) {
    if (s->kv.n_tokens + n_rows <= s->engine->n_ctx) return 0;
    return sl_fail(err, SL_ERR_CONTEXT, "sequence %u: the context is full: %d tokens, {n_ctx} %d", s->sequence, s->kv.n_tokens,
                   s->engine->n_ctx);
}

// Prepares sessions and pages for a step. After an error no session has more pages than before.
static int reserve_decode(const sl_run *runs, int n, sl_error *err) {
    sl_engine *e = runs[0].session->engine;
    int rc = 0, i;
    for (i = 0; !rc && i < n; i++) {
        sl_session *s = runs[i].session;
        rc = check_room(s, runs[i].n, err);
        if (!rc) rc = sl_session_sync_state(s, err);
        if (!rc) rc = sl_kv_reserve(&e->device.pool, &s->kv, s->kv.n_tokens + runs[i].n, err);
    }
    for (int j = 0; rc && j < i; j++) sl_kv_truncate(&e->device.pool, &runs[j].session->kv, runs[j].session->kv.n_tokens);
    for (int j = 0; !rc && j < n; j++) {
        sl_kv_hold(&e->device.pool, &runs[j].session->kv);
        sl_session_build_extras(runs[j].session);
    }
    return rc;
}

static void append(sl_session *s, int32_t id) { // its row is in the pages
    s->ids[s->kv.n_tokens++] = id;
}

// Runs a pass over all rows of grouped runs, and appends the first token of each.
static int decode(sl_run *runs, int n, sl_error *err) {
    sl_engine *e = runs[0].session->engine;
    sl_session *sessions[n];
    int rc = reserve_decode(runs, n, err);
    if (rc) return rc;
    for (int i = 0; i < n; i++) sessions[i] = runs[i].session;
    sl_logits_before_step(&e->device, sessions, n, 0, n_rows_of(runs, n));
    set_rows(runs, n, 1);
    run_groups(runs, n);
    int is_queued = queue_next(runs, n);
    rc = e->device.backend->finish(e->device.backend, err);
    if (!rc) rc = take_next(runs, n, is_queued, err);
    if (rc) return rc;
    for (int i = 0; i < n; i++) {
        if (e->device.attention->account) e->device.attention->account(e, sessions[i], runs[i].n);
        append(sessions[i], runs[i].ids[0]);
        sl_logits_after_step(&e->device, &sessions[i], 1, runs[i].row);
    }
    return 0;
}

// The same for runs of sessions [n] in any order. Sets their rows.
static int decode_any(sl_session *const *batch, sl_run *runs, int n, sl_error *err) {
    int order[n]; // n is at most n_sequences: check_batch
    sl_run grouped[n];
    group(batch, n, order);
    for (int i = 0; i < n; i++) grouped[i] = runs[order[i]];
    int rc = decode(grouped, n, err);
    for (int i = 0; i < n; i++) runs[order[i]].row = grouped[i].row;
    return rc;
}

static int decode_ids(sl_session *const *batch, int n, const int32_t *ids, sl_error *err) {
    sl_run runs[n];
    for (int i = 0; i < n; i++) runs[i] = (sl_run){.session = batch[i], .ids = &ids[i], .n = 1};
    return decode_any(batch, runs, n, err);
}

int sl_decode_runs_claimed(sl_run *runs, int n, sl_error *err) {
    sl_session *batch[n];
    for (int i = 0; i < n; i++) batch[i] = runs[i].session;
    int rc = begin(batch, n, err);
    if (rc) return rc;
    rc = sl_cancel_poll(&batch[0]->engine->cancel, err);
    if (!rc) rc = decode_any(batch, runs, n, err);
    sl_engine_end(batch[0]->engine);
    return rc;
}

void sl_run_take(const sl_run *r, int i) {
    SL_CHECK(i > 0 && i < r->n);
    append(r->session, r->ids[i]);
    sl_logits_after_step(&r->session->engine->device, &(sl_session *){r->session}, 1, r->row + i);
}

static int check_rows(const sl_session *s, const int32_t *ids, int n, sl_error *err) {
    const sl_engine *e = s->engine;
    if (n < 1 || n > 1 + e->n_draft)
        return sl_fail(err, SL_ERR_ARG, "a pass of %d rows: expected 1 to %d (1 + n_draft)", n, 1 + e->n_draft);
    int most = sl_plan_most_rows(s);
    if (n > most)
        return sl_fail(err, SL_ERR_ARG,
                       "a pass of %d rows after %d tokens: expected at most %d: rows of one page of %d, all below or all above "
                       "{exact_below}",
                       n, s->kv.n_tokens, most, SL_PAGE);
    if (n > 1 && e->observation.observer.fn)
        return sl_fail(err, SL_ERR_ARG, "a pass of %d rows: an observer sees single steps only", n);
    int rc = sl_check_ids(e, ids, n, err);
    return rc || n == 1 ? rc : sl_draft_check_state(e, &sl_session_plan(s)->methods, err);
}

int sl_decode_rows(sl_session *const *batch, int n_seqs, const int32_t *ids, int n, sl_error *err) {
    int rc = claim(batch, n_seqs, err);
    if (rc) return rc;
    sl_run runs[n_seqs];
    for (int i = 0; i < n_seqs; i++) runs[i] = (sl_run){.session = batch[i], .ids = ids, .n = n};
    for (int i = 0; !rc && i < n_seqs; i++) rc = check_rows(batch[i], ids, n, err);
    if (!rc) rc = sl_decode_runs_claimed(runs, n_seqs, err);
    for (int i = 0; !rc && i < n_seqs; i++)
        for (int j = 1; j < n; j++) sl_run_take(&runs[i], j);
    sl_engine_release(batch[0]->engine);
    return rc;
}

int sl_decode(sl_session *const *batch, int n, const int32_t *ids, sl_error *err) {
    int rc = claim(batch, n, err);
    if (rc) return rc;
    sl_engine *e = batch[0]->engine;
    rc = begin(batch, n, err);
    if (!rc) {
        rc = sl_cancel_poll(&e->cancel, err);
        if (!rc) rc = sl_check_ids(e, ids, n, err);
        if (!rc) rc = decode_ids(batch, n, ids, err);
        sl_engine_end(e);
    }
    sl_engine_release(e);
    return rc;
}

// ---- the matrices of a step, for benches ----

static void no_attention(const sl_batch *b, int layer, int first, int n, sl_queries q, void *out) {
    (void)b, (void)layer, (void)first, (void)n, (void)q, (void)out;
}

static void run_head(const sl_batch *b) {
    b->weights->config->arch->logits(b, 0, b->n_out, b->logits);
}

// The recordings have keys that no step has.
static void run_part(const sl_batch *b, int is_head) {
    const sl_backend *be = b->backend;
    void (*forward)(const sl_batch *batch) = is_head ? run_head : b->weights->config->arch->forward;
    if (be->run_step)
        be->run_step(be, (sl_step_key){.n = b->n_rows, .first = -1 - is_head}, forward, b);
    else
        forward(b);
}

static int run_linear(sl_session *const *batch, int n, void (*mark)(void *ctx, void *stream), void *ctx, sl_error *err) {
    sl_engine *e = batch[0]->engine;
    const sl_backend *be = e->device.backend;
    sl_run runs[n]; // n is at most n_sequences: check_batch
    const int32_t id = 0;
    for (int i = 0; i < n; i++) runs[i] = (sl_run){.session = batch[i], .ids = &id, .n = 1};
    int rc = reserve_decode(runs, n, err);
    if (rc) return rc;
    sl_logits_before_step(&e->device, batch, 0, 0, n); // downloads the logits that the head overwrites
    set_rows(runs, n, 1);
    sl_batch head = sl_pass_batch(&e->device, 0, 0, n, n, SL_LINEAR_DECODE), layers;
    head.n_out = n, head.attend = no_attention;
    layers = head, layers.logits = NULL;
    void *stream = be->stream ? be->stream(be) : NULL;
    if (stream) run_part(&layers, 0), run_part(&head, 1);
    mark(ctx, stream);
    run_part(&layers, 0);
    mark(ctx, stream);
    run_part(&head, 1);
    mark(ctx, stream);
    return be->finish(be, err);
}

int sl_run_linear(sl_session *const *batch, int n, void (*mark)(void *ctx, void *stream), void *ctx, sl_error *err) {
    int rc = claim(batch, n, err);
    if (rc) return rc;
    sl_engine *e = batch[0]->engine;
    rc = begin(batch, n, err);
    if (!rc) {
        rc = run_linear(batch, n, mark, ctx, err);
        sl_engine_end(e);
    }
    sl_engine_release(e);
    return rc;
}

// ---- the next token ----

static int check_sampling(sl_session *const *batch, int n, sl_sampler *const *samplers, sl_error *err) {
    int n_vocab = batch[0]->engine->model->config.n_vocab, rc = 0;
    for (int i = 0; !rc && i < n; i++) {
        rc = sl_session_need_logits(batch[i], err);
        if (!rc && sl_sampler_n_vocab(samplers[i]) != n_vocab)
            rc = sl_fail(err, SL_ERR_ARG, "sampler %d is for %d tokens, but the model has %d", i,
                         sl_sampler_n_vocab(samplers[i]), n_vocab);
    }
    return rc;
}

// Samples the rows that are not for the device, to ids.
static int sample_on_host(sl_session *const *batch, int n, sl_sampler *const *samplers, int32_t *ids, sl_error *err) {
    const sl_engine *e = batch[0]->engine;
    int rc = 0;
    for (int i = 0; !rc && i < n; i++)
        if (!is_for_device(e, samplers[i])) rc = sl_session_check_logits(batch[i], err);
    for (int i = 0; !rc && i < n; i++)
        if (!is_for_device(e, samplers[i]))
            ids[i] = sl_sampler_sample(samplers[i], sl_session_logits(batch[i], NULL), batch[i]->sequence,
                                       (uint32_t)batch[i]->kv.n_tokens);
    return rc;
}

// Runs of the rows whose ids the device samples.
static void one_row_each(sl_session *const *batch, int n, sl_run *runs) {
    for (int i = 0; i < n; i++) runs[i] = (sl_run){.session = batch[i], .n = 1};
}

// Queues the sampling of the batch's next ids, to sl_pass_buffers.ids. Row first + i of the logits has those of session i. Sets
// the rows of a step over the ids. Rows that are not for the device are sampled by the host, to host_ids. So the others do not
// wait until the host has sampled them too.
static int queue_sampling(sl_engine *e, sl_session *const *batch, int first, sl_run *runs, int n, sl_sampler *const *samplers,
                          int32_t *host_ids, sl_error *err) {
    const sl_backend *be = e->device.backend;
    const sl_sampling *params[n]; // n is at most n_sequences: check_batch
    const uint32_t *allowed[n];
    for (int i = 0; i < n; i++) {
        int is_device = is_for_device(e, samplers[i]);
        params[i] = is_device ? sl_sampler_params(samplers[i]) : &greedy;
        allowed[i] = is_device ? sl_sampler_allowed(samplers[i]) : NULL;
    }
    int n_vocab = e->model->config.n_vocab;
    set_rows(runs, n, 0);
    be->sample_rows(be, e->device.pass.logits + (size_t)first * n_vocab, e->device.pass.device_rows, params, allowed, n,
                    n_vocab, e->device.pass.ids);
    int rc = sample_on_host(batch, n, samplers, host_ids, err);
    for (int i = 0; !rc && i < n; i++)
        if (!is_for_device(e, samplers[i])) be->upload(be, e->device.pass.ids + i, &host_ids[i], sizeof *host_ids);
    return rc;
}

// Waits for the ids of queue_sampling. -1: the logits are not finite
static int sampled_ids(const sl_engine *e, int n, sl_sampler *const *samplers, const int32_t *host_ids, int32_t *ids,
                       sl_error *err) {
    int rc = e->device.backend->sampled_ids(e->device.backend, ids, n, err);
    for (int i = 0; !rc && i < n; i++)
        if (!is_for_device(e, samplers[i])) ids[i] = host_ids[i];
    return rc;
}

// A device samples id -1 from logits that are not finite.
static int check_sampled(sl_session *const *batch, int n, const int32_t *ids, sl_error *err) {
    for (int i = 0; i < n; i++)
        if (ids[i] < 0) return sl_session_check_logits(batch[i], err);
    return 0;
}

// Makes n consecutive rows of the logits hold those of the batch. Returns the first row. If the logits of the batch already lie
// in consecutive rows, nothing is copied, because other rows may hold the logits after drafts.
static int logits_in_rows(sl_session *const *batch, int n) {
    int first = batch[0]->logits_row, i = 0;
    while (i < n && first >= 0 && batch[i]->logits_row == first + i) i++;
    if (i == n) return first;
    sl_logits_to_rows(&batch[0]->engine->device, batch, n);
    return 0;
}

static int sample(sl_session *const *batch, int n, sl_sampler *const *samplers, int32_t *ids, sl_error *err) {
    sl_engine *e = batch[0]->engine;
    if (!n_for_device(e, samplers, n)) return sample_on_host(batch, n, samplers, ids, err);
    int32_t host_ids[n];
    sl_run runs[n];
    one_row_each(batch, n, runs);
    int rc = queue_sampling(e, batch, logits_in_rows(batch, n), runs, n, samplers, host_ids, err);
    if (!rc) rc = sampled_ids(e, n, samplers, host_ids, ids, err);
    return rc ? rc : check_sampled(batch, n, ids, err);
}

int sl_sample_claimed(sl_session *const *batch, int n, sl_sampler *const *samplers, int32_t *ids, sl_error *err) {
    int rc = begin(batch, n, err);
    if (rc) return rc;
    rc = check_sampling(batch, n, samplers, err);
    if (!rc) rc = sample(batch, n, samplers, ids, err);
    sl_engine_end(batch[0]->engine);
    return rc;
}

int sl_sample(sl_session *const *batch, int n, sl_sampler *const *samplers, int32_t *ids, sl_error *err) {
    int rc = claim(batch, n, err);
    if (rc) return rc;
    rc = sl_sample_claimed(batch, n, samplers, ids, err);
    sl_engine_release(batch[0]->engine);
    return rc;
}

// Queues sampling and step together, so that the device never waits for the host. A sequence that samples an end token takes
// part in the step, but keeps its length and the logits from before the step. The same holds for all sequences when the logits
// of one are not finite.
static int step_on_device(sl_session *const *batch, int n, sl_sampler *const *samplers, int32_t *ids, sl_error *err) {
    sl_engine *e = batch[0]->engine;
    const sl_backend *be = e->device.backend;
    size_t size = n * (size_t)e->model->config.n_vocab * sizeof(float);
    int32_t host_ids[n];
    sl_run runs[n];
    one_row_each(batch, n, runs);
    int rc = reserve_decode(runs, n, err);
    if (rc) return rc;
    sl_logits_to_rows(&e->device, batch, n);
    rc = queue_sampling(e, batch, 0, runs, n, samplers, host_ids, err);
    if (rc) return rc;
    be->copy(be, e->device.pass.last_logits, size, e->device.pass.logits, size, size, 1);
    run_groups(runs, n);
    rc = sampled_ids(e, n, samplers, host_ids, ids, err);
    if (rc) return rc;
    sl_logits_after_step(&e->device, batch, n, 0);
    int is_finite = 1;
    for (int i = 0; i < n; i++) is_finite &= ids[i] >= 0;
    for (int i = 0; !is_finite && i < n; i++) sl_logits_restore(batch[i], i);
    if (!is_finite) return check_sampled(batch, n, ids, err);
    for (int i = 0; i < n; i++) {
        sl_session *s = batch[i];
        if (sl_model_is_eos(e->model, ids[i])) {
            sl_logits_restore(s, i);
            continue;
        }
        if (e->device.attention->account) e->device.attention->account(e, s, 1);
        append(s, ids[i]);
    }
    return 0;
}

// Samples on the host, then decodes the tokens that do not end their sequences.
static int step_on_host(sl_session *const *batch, int n, sl_sampler *const *samplers, int32_t *ids, sl_error *err) {
    int n_live = 0, rc = sample(batch, n, samplers, ids, err);
    if (rc) return rc;
    sl_run live[n];
    for (int i = 0; i < n; i++)
        if (!sl_model_is_eos(batch[i]->engine->model, ids[i]))
            live[n_live++] = (sl_run){.session = batch[i], .ids = &ids[i], .n = 1};
    return n_live ? decode(live, n_live, err) : 0;
}

static int step_any(sl_session *const *batch, int n, sl_sampler *const *samplers, int32_t *ids, sl_error *err) {
    const sl_engine *e = batch[0]->engine;
    int order[n];
    sl_session *grouped[n];
    sl_sampler *grouped_samplers[n];
    int32_t grouped_ids[n];
    group(batch, n, order);
    for (int i = 0; i < n; i++) grouped[i] = batch[order[i]], grouped_samplers[i] = samplers[order[i]];
    // step_on_device appends an end token before it is known, and an observer must not see that row.
    int on_device = !e->observation.observer.fn && n_for_device(e, samplers, n) > 0;
    int rc = (on_device ? step_on_device : step_on_host)(grouped, n, grouped_samplers, grouped_ids, err);
    for (int i = 0; !rc && i < n; i++) ids[order[i]] = grouped_ids[i];
    return rc;
}

int sl_step_claimed(sl_session *const *batch, int n, sl_sampler *const *samplers, int32_t *ids, sl_error *err) {
    int rc = begin(batch, n, err);
    if (rc) return rc;
    sl_engine *e = batch[0]->engine;
    rc = sl_cancel_poll(&e->cancel, err);
    if (!rc) rc = check_sampling(batch, n, samplers, err);
    for (int i = 0; !rc && i < n; i++) rc = check_room(batch[i], 1, err);
    if (!rc) rc = step_any(batch, n, samplers, ids, err);
    sl_engine_end(e);
    return rc;
}

int sl_step(sl_session *const *batch, int n, sl_sampler *const *samplers, int32_t *ids, sl_error *err) {
    int rc = claim(batch, n, err);
    if (rc) return rc;
    rc = sl_step_claimed(batch, n, samplers, ids, err);
    sl_engine_release(batch[0]->engine);
    return rc;
}
