// engine/draft/draft_check.c - says whether drafts can run: what the engine was made for, and methods without a state. The
// checks read what does not change after the engine was made, so another thread may make them while the engine runs.
#ifdef SLEIGH_CUDA
#include "attention/attention_cuda.h"
#endif
#include "engine/draft/draft.h"
#include "engine/engine_internal.h"

#include <string.h>

static int check_method(const sl_engine *e, const sl_attn_spec *spec, int layer, sl_error *err) {
    if (e->device.backend->is_device && !sl_attn_on_gpu(spec)) return 0; // refused by name where a plan is made of it
    if (!e->device.attention->state_size(e, spec)) return 0;
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "{draft}: {attn} %s keeps a state from step to step (layer %d), which a rejected draft would change; "
                   "expected a method without (no carried budget and no stated error)",
                   spec->method->name, layer);
}

int sl_draft_check_state(const sl_engine *e, const sl_attn_plan *methods, sl_error *err) {
    int rc = 0;
    for (int i = 0; !rc && i < methods->n_layers; i++) rc = check_method(e, &methods->layer[i], i, err);
    return rc;
}

int sl_draft_read(const sl_engine *e, const char *draft, sl_draft_spec *out, sl_error *err) {
    int rc = sl_draft_parse(draft, out, err);
    if (rc) return rc;
    if (out->of_model && !e->draft)
        return sl_fail(err, SL_ERR_ARG, "{draft} %s: expected a draft model ({draft_model}), found none", draft);
    if (out->weights && (!e->draft_format || strcmp(out->weights, e->draft_format)))
        return sl_fail(err, SL_ERR_ARG, "{draft} %.80s: expected copies of the weights in %s, found %s", draft, out->weights,
                       e->draft_format ? e->draft_format : "none (draft_weights)");
    if (out->most <= e->n_draft) return 0;
    return sl_fail(err, SL_ERR_ARG, "{draft} %s: most=%d: the engine takes at most %d (n_draft)", draft, out->most, e->n_draft);
}

int sl_engine_check_draft(const sl_engine *e, const char *draft, const sl_attn_plan *attn, sl_error *err) {
    sl_draft_spec spec;
    int rc = sl_draft_read(e, draft, &spec, err);
    for (int i = 0; !rc && i < spec.n_methods; i++) {
        sl_attn_spec method;
        sl_error why;
        rc = sl_attn_parse(spec.attn[i], &method, &why);
        if (!rc && e->device.backend->is_device && !sl_attn_on_gpu(&method))
            rc = sl_fail(&why, SL_ERR_UNSUPPORTED, "{attn} %s: not offered on a GPU", method.method->name);
        if (rc) return sl_fail(err, rc, "{draft} %.80s: %.900s", draft, why.message);
        if (!spec.of_model) rc = check_method(e, &method, 0, err); // a draft model has sessions of its own
    }
    return rc || !attn ? rc : sl_draft_check_state(e, attn, err);
}

#ifdef SLEIGH_CUDA
int sl_draft_needs_cpu(const sl_attn_spec *spec) {
    const sl_attn_geom any = {.n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 64};
    const sl_attn_method *m = spec->method;
    if (!sl_attn_on_gpu(spec) || !m->cuda->state || !m->cuda->state(&any, spec)) return 0;
    return !m->cpu->state || !m->cpu->state(&any, spec);
}
#else
int sl_draft_needs_cpu(const sl_attn_spec *spec) {
    (void)spec;
    return 0;
}
#endif
