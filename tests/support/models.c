// tests/support/models.c - see models.h.
#include "tests/support/models.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

model_fixture model_fixture_load_with(const char *dir, const char *activations, const char *attn, sl_engine_options o) {
    model_fixture r;
    sl_error err;
    const sl_model_options m = {.flags = SL_MODEL_NO_TOKENIZER, .activations = activations};
    CHECK_OK(sl_model_load(dir, &m, &r.model, &err), err);
    if (attn) o.attn = attn;
    CHECK_OK(sl_engine_new(r.model, &o, &r.engine, &err), err);
    r.n_vocab = sl_model_n_vocab(r.model);
    return r;
}

model_fixture model_fixture_load(const char *dir, const char *attn, sl_engine_options o) {
    return model_fixture_load_with(dir, "float", attn, o);
}

void model_fixture_close(model_fixture *r) {
    sl_engine_free(r->engine);
    sl_model_free(r->model);
}

sl_session *model_fixture_session(model_fixture *r, uint32_t sequence) {
    sl_session *s;
    sl_error err;
    CHECK_OK(sl_session_new(r->engine, sequence, &s, &err), err);
    return s;
}

const int model_fixture_lengths[FIXTURE_BATCH] = {40, 255, 600};

void model_fixture_run_batch(model_fixture *r, float *out) {
    sl_session *batch[FIXTURE_BATCH];
    sl_error err;
    for (int i = 0; i < FIXTURE_BATCH; i++) {
        int32_t *ids = test_ids(model_fixture_lengths[i], r->n_vocab, test_seed + i);
        batch[i] = model_fixture_session(r, 50 + i);
        CHECK_OK(sl_prefill(batch[i], ids, model_fixture_lengths[i], NULL, &err), err);
        free(ids);
    }
    for (int step = 0; step < FIXTURE_STEPS; step++)
        CHECK_OK(sl_decode(batch, FIXTURE_BATCH, (int32_t[]){70 + step, 71 + step, 72 + step}, &err), err);
    for (int i = 0; i < FIXTURE_BATCH; i++) {
        memcpy(out + (size_t)i * r->n_vocab, sl_session_logits(batch[i], NULL), r->n_vocab * sizeof *out);
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

int keep_logits(void *ctx, int first, int n_rows, const float *logits, sl_error *err) {
    logit_rows *r = ctx;
    (void)err;
    memcpy(r->data + (size_t)first * r->n_cols, logits, (size_t)n_rows * r->n_cols * sizeof *logits);
    return 0;
}

double relative_logits(const float *got, const float *want, size_t n) {
    double square = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)got[i] - want[i];
        square += d * d, norm += (double)want[i] * want[i];
    }
    return sqrt(square / norm);
}
