// cli/compare/compare_heads.c - observes the steps of the dense run: the error of each method's heads on the queries,
// keys and values of these steps, and how dense attention spreads its mass.
#include "cli/compare/compare_heads.h"
#include "cli/grow.h"
#include "cli/watch.h"

#include <math.h>

int compare_observes(const compare *c) {
    return c->o->compare->heads || c->o->compare->attention;
}

static void add_tiles(compare_method *m, const sl_attn_report *p) {
    int i = 0;
    while (i < N_TILES - 1 && p->tiles > 1u << i) i++;
    m->tiles[i].n++, m->tiles[i].error += p->error, m->tiles[i].cosine += p->cosine;
}

static int add_output(compare_outputs *o, const sl_attn_report *p) {
    float(*grown)[2] = cli_grow(o->x, o->n, &o->cap, sizeof *grown);
    if (!grown) return SL_ERR_MEMORY;
    o->x = grown;
    o->x[o->n][0] = p->error, o->x[o->n][1] = p->cosine;
    o->n++;
    return 0;
}

static int add_record(compare_method *m, const sl_attn_record *r, int n_heads) {
    const sl_attn_report *p = r->report;
    compare_head *h = &m->heads[r->layer * n_heads + r->head];
    double ess = p->ess > 0 ? p->ess : NAN, spread = p->v_rows / ess - 1; // squared; below 0 only by rounding
    h->n++;
    h->error += p->error, h->cosine += p->cosine, h->bias += p->bias;
    h->k_rows += p->k_rows, h->v_rows += p->v_rows, h->v_distinct += p->v_distinct;
    h->samples += p->samples, h->ess += ess;
    h->spread += sqrt(spread < 0 ? 0 : spread);
    h->bytes += (double)p->bytes, h->dense_bytes += (double)p->dense_bytes;
    return add_output(&m->outputs, p);
}

static void add_profile(compare *c, const sl_attn_record *r) {
    const sl_attn_spread *p = r->profile;
    sl_attn_spread *sum = &c->profiles[r->layer * sl_model_config(c->run.model)->n_heads + r->head];
    sum->keys_entropy += p->keys_entropy, sum->keys_squares += p->keys_squares;
    sum->sink += p->sink, sum->window += p->window;
    sum->distance_mean += p->distance_mean, sum->distance_median += p->distance_median;
    sum->rows_90 += p->rows_90;
}

// Receives, for each layer, the heads of dense attention, which runs, and then the heads of each method in order.
static void observe(void *ctx, const sl_attn_record *r) {
    compare *c = ctx;
    int n_heads = sl_model_config(c->run.model)->n_heads, n_methods = c->o->compare->heads ? c->n_decode : 0;
    int which = c->n_observed++ / n_heads % (n_methods + 1) - 1;
    if (which < 0) {
        c->n_steps += r->layer == 0 && r->head == 0;
        if (r->profile) add_profile(c, r);
        return;
    }
    for (int i = which; i < c->attn.n;
         i += c->n_decode) { // the method with each prefill: the states are those of dense prefill
        if (!c->observe_rc) c->observe_rc = add_record(&c->methods[i], r, n_heads);
        if (r->layer == sl_model_config(c->run.model)->n_layers - 1) add_tiles(&c->methods[i], r->report);
    }
}

// Observes the methods, with the choice of auto for the current prompt.
int compare_observe_begin(compare *c, sl_error *err) {
    const sl_attn_plan listed = {.n_layers = c->n_decode, .layer = c->attn.specs};
    sl_attn_plan shadows;
    if (!compare_observes(c)) return 0;
    int rc = cli_run_choose_plan(&c->run, &listed, &shadows, err);
    const sl_observer observer = {.fn = observe,
                                  .ctx = c,
                                  .with_profile = c->o->compare->attention,
                                  .shadows = shadows.layer,
                                  .n_shadows = c->o->compare->heads ? shadows.n_layers : 0};
    if (!rc) rc = sl_engine_observe(c->run.engine, &observer, err);
    if (!rc) rc = cli_watch_buckets(c->run.engine, err);
    sl_attn_plan_free(&shadows);
    return rc;
}

int compare_observe_end(compare *c, compare_prompt *p, int rc, sl_error *err) {
    if (!compare_observes(c)) return rc;
    int back = sl_engine_observe(c->run.engine, NULL, rc ? NULL : err);
    p->n_steps = c->n_steps;
    if (!rc) rc = back;
    return !rc && c->observe_rc ? sl_fail(err, c->observe_rc, "errors of the heads: out of memory") : rc;
}

int compare_outputs_values(const compare *c, const compare_method *m, int which, int layer, cli_values *out, sl_error *err) {
    const sl_config *config = sl_model_config(c->run.model);
    int n = config->n_layers * config->n_heads, from = layer < 0 ? 0 : layer * config->n_heads;
    int end = layer < 0 ? n : from + config->n_heads, prompt = 0, rc = 0, by_step = c->n_prompts < CLI_MIN_GROUPS;
    *out = (cli_values){0};
    for (int step = 0; !rc && step < m->outputs.n / n; step++) {
        for (; !rc && step == c->prompts[prompt].n_steps; prompt++) rc = cli_values_end_group(out, err);
        for (int i = from; !rc && i < end; i++) rc = cli_values_add(out, m->outputs.x[(size_t)step * n + i][which], err);
        if (!rc && by_step) rc = cli_values_end_group(out, err);
    }
    return rc ? rc : cli_values_end_group(out, err);
}
