// tests/models.c - see models.h.
#include "tests/models.h"
#include "tests/test.h"

#include <stdlib.h>

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
