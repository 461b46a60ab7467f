// tests/support/models.c - see models.h.
#include "tests/support/models.h"
#include "tests/test.h"

#include <stdlib.h>
#include <string.h>

rig rig_load(const char *dir, const char *attn, sl_engine_options o) {
    rig r;
    sl_error err;
    sl_attn_spec spec;
    sl_attn_plan plan = {0};
    CHECK_OK(sl_model_load(dir, SL_MODEL_NO_TOKENIZER, &r.model, &err), err);
    const sl_config *c = sl_model_config(r.model);
    if (attn) {
        CHECK_OK(sl_attn_parse(attn, &spec, &err), err);
        CHECK_OK(sl_attn_plan_init(&plan, c->n_layers, &spec, &err), err);
        o.attn = &plan;
    }
    CHECK_OK(sl_engine_new(r.model, &o, &r.engine, &err), err);
    sl_attn_plan_free(&plan);
    r.n_vocab = c->n_vocab;
    return r;
}

void rig_close(rig *r) {
    sl_engine_free(r->engine);
    sl_model_free(r->model);
}

sl_session *rig_session(rig *r, uint32_t sequence) {
    sl_session *s;
    sl_error err;
    CHECK_OK(sl_session_new(r->engine, sequence, &s, &err), err);
    return s;
}

const int rig_batch_lengths[RIG_BATCH] = {40, 255, 600};

void rig_run_batch(rig *r, float *out) {
    sl_session *batch[RIG_BATCH];
    sl_error err;
    for (int i = 0; i < RIG_BATCH; i++) {
        int32_t *ids = test_ids(rig_batch_lengths[i], r->n_vocab, test_seed + i);
        batch[i] = rig_session(r, 50 + i);
        CHECK_OK(sl_prefill(batch[i], ids, rig_batch_lengths[i], NULL, &err), err);
        free(ids);
    }
    for (int step = 0; step < RIG_BATCH_STEPS; step++)
        CHECK_OK(sl_decode(batch, RIG_BATCH, (int32_t[]){70 + step, 71 + step, 72 + step}, &err), err);
    for (int i = 0; i < RIG_BATCH; i++) {
        memcpy(out + (size_t)i * r->n_vocab, sl_session_logits(batch[i]), r->n_vocab * sizeof *out);
        sl_session_free(batch[i]);
    }
}

int test_argmax(const float *x, int n) {
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

int32_t *test_ids(int n, int n_vocab, uint64_t seed) {
    int32_t *ids = malloc(n * sizeof *ids);
    for (int i = 0; i < n; i++) ids[i] = (int32_t)(test_uniform(&seed) * (n_vocab - 16));
    return ids;
}
