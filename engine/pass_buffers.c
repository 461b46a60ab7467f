// engine/pass_buffers.c - sl_pass_buffers: the memory of a pass. A device allocates it once, and again for other segments.
#include "engine/engine_internal.h"
#include "models/pass.h"

#include <stdlib.h>

static void free_rows(sl_device *d) {
    const sl_backend *be = d->backend;
    sl_pass_buffers *p = &d->pass;
    if (be && be->is_device) be->release(be, p->device_rows, p->row_capacity * sizeof *p->device_rows);
    if (be) be->release(be, p->ids, p->row_capacity * sizeof *p->ids);
    free(p->rows);
    p->rows = p->device_rows = NULL, p->ids = NULL;
}

// Makes the arrays of the rows of a pass.
static int new_rows(sl_device *d, int n) {
    const sl_backend *be = d->backend;
    sl_pass_buffers *p = &d->pass;
    free_rows(d);
    p->row_capacity = n;
    p->rows = calloc(n, sizeof *p->rows);
    p->device_rows = be->is_device ? be->alloc(be, n * sizeof *p->device_rows) : p->rows;
    p->ids = be->alloc(be, n * sizeof *p->ids);
    return p->rows && p->device_rows && p->ids;
}

static void free_segment(sl_device *d) {
    if (d->backend) d->backend->release(d->backend, d->pass.segment, d->pass.segment_size);
    d->pass.segment = NULL, d->pass.segment_size = 0;
}

int sl_device_set_segment(sl_device *d, int n_rows, sl_error *err) {
    const sl_backend *be = d->backend;
    sl_pass_buffers *p = &d->pass;
    be->forget(be); // recordings hold the addresses of the rows
    free_segment(d);
    if (n_rows <= p->max_rows) return 0;
    p->segment_size = sl_segment_size(d->weights.config, be, n_rows);
    p->segment = be->alloc(be, p->segment_size);
    if (p->segment && new_rows(d, n_rows)) return 0;
    int rc = sl_fail(err, SL_ERR_MEMORY, "a segment of %d tokens: %zu MiB cannot be allocated; use a smaller {prefill_segment}",
                     n_rows, p->segment_size >> 20);
    free_segment(d);
    return new_rows(d, p->max_rows) ? rc : sl_fail(err, SL_ERR_MEMORY, "the rows of a pass: out of memory");
}

static int new_scratch(sl_device *d, sl_error *err) {
    const sl_config *c = d->weights.config;
    sl_pass_buffers *p = &d->pass;
    p->scratch_size = c->arch->scratch_size(c, d->backend, p->max_rows);
    p->scratch = d->backend->alloc(d->backend, p->scratch_size);
    if (p->scratch) return 0;
    return sl_fail(err, SL_ERR_MEMORY, "activations of %d rows: %zu MiB cannot be allocated; use a smaller {prefill_chunk}",
                   p->max_rows, p->scratch_size >> 20);
}

int sl_device_new_buffers(sl_device *d, int n_sequences, int n_step_rows, sl_error *err) {
    const sl_backend *be = d->backend;
    sl_pass_buffers *p = &d->pass;
    int rc = new_scratch(d, err);
    if (rc) return rc;
    p->logits_size = (size_t)n_step_rows * d->weights.config->n_vocab * sizeof(float);
    p->ranges = calloc(n_sequences, sizeof *p->ranges);
    p->queries = calloc(n_step_rows, sizeof *p->queries);
    p->logits_owner = calloc(n_step_rows, sizeof *p->logits_owner);
    p->logits = be->alloc(be, p->logits_size);
    if (be->is_device) p->last_logits = be->alloc(be, p->logits_size);
    int ok = p->ranges && p->queries && p->logits_owner && p->logits && (p->last_logits || !be->is_device);
    if (ok && new_rows(d, p->max_rows)) return 0;
    return sl_fail(err, SL_ERR_MEMORY, "a batch of %d sequences, %d rows: out of memory", n_sequences, n_step_rows);
}

size_t sl_device_wide_bytes(const sl_device *d, const sl_config *c) {
    if (!d->backend->is_device || d->formats.k == SL_BF16) return 0;
    return 2 * (size_t)c->n_kv_heads * c->head_dim * sizeof(bf16);
}

int sl_device_new_wide(sl_device *d, int n_ctx, sl_error *err) {
    const sl_backend *be = d->backend;
    struct sl_wide_rows *w = &d->pass.wide;
    size_t token = sl_device_wide_bytes(d, d->weights.config);
    if (token == 0) return 0;
    w->n_pages = sl_kv_pages_of(n_ctx);
    w->size = token / 2 * SL_PAGE * w->n_pages;
    w->k = be->alloc(be, w->size), w->v = be->alloc(be, w->size);
    w->in_order = be->alloc(be, w->n_pages * sizeof *w->in_order);
    int32_t *in_order = malloc(w->n_pages * sizeof *in_order);
    int ok = w->k && w->v && w->in_order && in_order;
    for (int i = 0; ok && i < w->n_pages; i++) in_order[i] = i;
    if (ok) be->upload(be, w->in_order, in_order, w->n_pages * sizeof *in_order);
    free(in_order);
    if (ok) return 0;
    return sl_fail(err, SL_ERR_MEMORY, "a layer of %d tokens as bf16: %zu MiB cannot be allocated; pass a smaller {n_ctx}",
                   n_ctx, 2 * w->size >> 20);
}

void sl_device_free_buffers(sl_device *d) {
    const sl_backend *be = d->backend;
    sl_pass_buffers *p = &d->pass;
    free_rows(d);
    free_segment(d);
    if (be) {
        be->release(be, p->scratch, p->scratch_size);
        be->release(be, p->logits, p->logits_size);
        be->release(be, p->last_logits, p->logits_size);
        be->release(be, p->stats, p->stats_size);
        be->release(be, p->wide.k, p->wide.size);
        be->release(be, p->wide.v, p->wide.size);
        be->release(be, p->wide.in_order, p->wide.n_pages * sizeof *p->wide.in_order);
    }
    sl_workspace_free(&p->workspace);
    free(p->ranges);
    free(p->queries);
    free(p->logits_owner);
}

void sl_pass_upload(const sl_device *d, int n, const int32_t *ids) {
    const sl_backend *be = d->backend;
    const sl_pass_buffers *p = &d->pass;
    if (be->is_device) be->upload(be, p->device_rows, p->rows, n * sizeof *p->rows);
    if (ids) be->upload(be, p->ids, ids, n * sizeof *ids);
}

sl_batch sl_pass_batch(sl_device *d, int first, int first_range, int n_ranges, int n_rows, sl_linear_mode mode) {
    sl_pass_buffers *p = &d->pass;
    return (sl_batch){
        .weights = &d->weights,
        .backend = d->backend,
        .scratch = p->scratch,
        .max_rows = p->max_rows,
        .segment = n_rows > p->max_rows ? p->segment : NULL,
        .n_rows = n_rows,
        .ids = p->ids + first,
        .rows = p->device_rows + first,
        .kv = &d->pool,
        .n_ranges = n_ranges,
        .ranges = p->ranges + first_range,
        .mode = mode,
        .attend = d->attention->attend,
        .attend_step = 1,
        .logits_mode = SL_LINEAR_DECODE,
        .gather_logits = d->weights.config->shard.n > 1 ? sl_engine_gather_logits : NULL,
        .logits = p->logits + (size_t)first * d->weights.config->n_vocab,
    };
}
