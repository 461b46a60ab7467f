// cli/compare/compare_prefix.c - see compare_prefix.h.
#include "cli/compare/compare_prefix.h"
#include "cli/process.h"

// Adds what the last prefill did to the figures of a method for prefill.
static void add_prefill(compare *c, int which) {
    const sl_config *config = sl_model_config(c->run.model);
    const cli_timeline *t = &c->t;
    int n = config->n_layers * config->n_heads;
    for (int i = 0; t->prefill && i < n; i++) sl_prefill_report_add(&c->prefill_heads[which * n + i], &t->prefill[i]);
    if (t->n_prefill < sl_session_n_tokens(t->session)) return;
    c->prefill_ms[which] += t->prefill_ms;
    c->n_timed[which]++;
}

int compare_hold_prefix(compare *c, int which, const int32_t *ids, int n_prefill, int n, sl_error *err) {
    int rc = which < 0 ? cli_run_set_prefill(&c->run, "dense", NULL, err)
                       : cli_run_set_prefill(&c->run, c->prefills.names[which], &c->o->run->attention.attn_prefill_layers, err);
    if (!rc) rc = cli_timeline_prefix(&c->t, ids, n_prefill, n, err);
    if (!rc && cli_interrupted()) rc = sl_fail(err, SL_ERR_IO, "interrupted");
    for (int i = 0; which < 0 && i < c->prefills.n; i++)
        if (compare_is_dense_prefill(c, i)) which = i;
    if (!rc && which >= 0 && c->t.n_prefill) add_prefill(c, which);
    return rc;
}
