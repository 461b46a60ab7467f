// engine/prefill_report.c - what sparse prefills report: key blocks, kept mass, and checks of single rows against dense
// attention.
//
// The attention runner fills sl_sparse_prefill.counts and pass_reports while a pass runs. sl_prefill_pass_done adds them up.
#include "engine/engine_internal.h"

#include <stdlib.h>
#include <string.h>

static size_t n_heads_of(const sl_engine *e) { // of all layers
    return (size_t)e->geom.n_layers * e->geom.n_heads;
}

// ---- reports ----

sl_prefill_report sl_prefill_report_none(void) {
    return (sl_prefill_report){.kept = SL_MASK_NOT_SAMPLED, .measured = SL_MASK_NOT_SAMPLED};
}

static int32_t least_share(int32_t a, int32_t b) {
    if (a == SL_MASK_NOT_SAMPLED || b == SL_MASK_NOT_SAMPLED) return a > b ? a : b;
    return a < b ? a : b;
}

void sl_prefill_report_add(sl_prefill_report *to, const sl_prefill_report *from) {
    to->visited += from->visited, to->causal += from->causal;
    to->kept = least_share(to->kept, from->kept), to->measured = least_share(to->measured, from->measured);
    to->n_errors += from->n_errors, to->errors += from->errors;
    if (from->error_max > to->error_max || isnan(from->error_max)) to->error_max = from->error_max; // not a number: it stays
}

sl_prefill_report sl_engine_prefill_report(const sl_engine *e, int layer, int head) {
    return e->prefill.reports[(size_t)layer * e->geom.n_heads + head];
}

sl_prefill_report sl_engine_prefill_total(const sl_engine *e) {
    sl_prefill_report all = sl_prefill_report_none();
    for (size_t i = 0; i < n_heads_of(e); i++) sl_prefill_report_add(&all, &e->prefill.reports[i]);
    return all;
}

// ---- a pass ----

static void begin_pass(sl_engine *e) {
    memset(e->prefill.counts, 0, n_heads_of(e) * sizeof *e->prefill.counts);
    for (size_t i = 0; i < n_heads_of(e); i++) e->prefill.pass_reports[i] = sl_prefill_report_none();
}

void sl_prefill_pass_done(sl_engine *e, uint32_t sequence, int position, int n) {
    sl_sparse_prefill *p = &e->prefill;
    if (e->device.attention->collect_prefill) e->device.attention->collect_prefill(e);
    for (size_t i = 0; i < n_heads_of(e); i++) {
        sl_prefill_report *r = &p->pass_reports[i];
        r->visited = p->counts[i].visited, r->causal = p->counts[i].causal;
        sl_prefill_report_add(&p->reports[i], r);
        int layer = (int)i / e->geom.n_heads;
        const sl_prefill_record record = {.sequence = sequence,
                                          .position = position,
                                          .n_tokens = n,
                                          .layer = layer,
                                          .head = (int)i % e->geom.n_heads,
                                          .spec = &p->plan.layer[layer],
                                          .report = r};
        if (p->observer.fn && r->causal) p->observer.fn(p->observer.ctx, &record);
    }
    begin_pass(e);
}

int sl_prefill_n_checked(const sl_engine *e, int n) {
    return e->prefill.observer.n_rows < n ? e->prefill.observer.n_rows : n;
}

int sl_prefill_checked_row(const sl_engine *e, int n, int i) {
    return (int)((int64_t)(i + 1) * n / sl_prefill_n_checked(e, n)) - 1;
}

// ---- the observer ----

int sl_engine_observe_prefill(sl_engine *e, const sl_prefill_observer *observer, sl_error *err) {
    int rc = sl_engine_enter(e, err);
    if (rc) return rc;
    sl_sparse_prefill *p = &e->prefill;
    size_t n = (size_t)e->geom.n_heads * (e->geom.head_dim + 1);
    if (observer && observer->n_rows && e->device.attention->collect_prefill)
        rc = sl_fail(err, SL_ERR_UNSUPPORTED,
                     "{prefill_check} %d: not offered on a GPU, where no kernel computes dense attention of single rows; use "
                     "{device} cpu",
                     observer->n_rows);
    if (!rc && observer && observer->n_rows && !p->checked && !(p->checked = malloc(n * sizeof *p->checked)))
        rc = sl_fail(err, SL_ERR_MEMORY, "outputs of a row: out of memory");
    if (!rc) p->observer = observer ? *observer : (sl_prefill_observer){0};
    sl_engine_leave(e);
    return rc;
}

// ---- life ----

void sl_prefill_reset(sl_engine *e) {
    for (size_t i = 0; i < n_heads_of(e); i++) e->prefill.reports[i] = sl_prefill_report_none();
}

int sl_prefill_new_reports(sl_engine *e, sl_error *err) {
    size_t n = n_heads_of(e);
    sl_sparse_prefill *p = &e->prefill;
    p->counts = malloc(n * sizeof *p->counts);
    p->pass_reports = malloc(n * sizeof *p->pass_reports);
    p->reports = malloc(n * sizeof *p->reports);
    if (!p->counts || !p->pass_reports || !p->reports)
        return sl_fail(err, SL_ERR_MEMORY, "reports of %zu heads: out of memory", n);
    begin_pass(e);
    sl_prefill_reset(e);
    return 0;
}

void sl_prefill_free_reports(sl_engine *e) {
    free(e->prefill.counts);
    free(e->prefill.pass_reports);
    free(e->prefill.reports);
    free(e->prefill.checked);
}
