// backend/dummy_weights.c - see dummy_weights.h.
#include "backend/dummy_weights.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/philox.h"
#include "base/quantile.h"
#include "base/thread_pool.h"

#include <string.h>

uint64_t sl_dummy_key(const char *name) {
    return sl_fnv1a(SL_FNV1A_START, name, strlen(name));
}

static int ends_with(const char *name, const char *end) {
    size_t n = strlen(name), n_end = strlen(end);
    return n >= n_end && !strcmp(name + n - n_end, end);
}

double sl_dummy_deviation(const char *name, int n_columns) {
    const double deviation = 0.02, of_scores = 4;
    return ends_with(name, ".q_proj.weight") ? of_scores / (deviation * n_columns) : deviation;
}

bf16 sl_dummy_vector(const char *name) {
    return sl_f32_to_bf16(ends_with(name, ".bias") ? 0 : 1);
}

enum { STEP = 4096 }; // numbers that a thread makes at a time

typedef struct fill_call {
    uint64_t key;
    const bf16 *quantiles;
    double deviation;
    size_t from, n;
    bf16 *out;
} fill_call;

static void make_quantiles(void *ctx, size_t piece, int thread) {
    (void)thread;
    const fill_call *c = ctx;
    for (size_t w = piece * STEP; w < (piece + 1) * STEP && w < SL_DUMMY_QUANTILES; w++)
        c->out[w] = sl_f32_to_bf16((float)(c->deviation * sl_normal_quantile(((double)w + 0.5) / SL_DUMMY_QUANTILES)));
}

void sl_dummy_quantiles(double deviation, bf16 *quantiles) {
    fill_call c = {.deviation = deviation, .out = quantiles};
    sl_parallel((SL_DUMMY_QUANTILES + STEP - 1) / STEP, make_quantiles, &c);
}

static void fill_blocks(void *ctx, size_t piece, int thread) {
    (void)thread;
    const fill_call *c = ctx;
    for (size_t i = piece * STEP; i < (piece + 1) * STEP && i < c->n; i += 8) {
        uint64_t at = (c->from + i) / 8;
        sl_philox4 r =
            sl_philox((uint32_t)c->key, (uint32_t)(c->key >> 32), (uint32_t)at, (uint32_t)(at >> 32), 0, SL_STREAM_WEIGHTS);
        for (size_t j = 0; j < 8 && i + j < c->n; j++) c->out[i + j] = c->quantiles[r.v[j / 2] >> 16 * (j % 2) & 0xffff];
    }
}

void sl_dummy_fill(uint64_t key, const bf16 *quantiles, size_t from, size_t n, bf16 *out) {
    fill_call c = {.key = key, .quantiles = quantiles, .from = from, .n = n, .out = out};
    SL_CHECK(from % 8 == 0);
    sl_parallel((n + STEP - 1) / STEP, fill_blocks, &c);
}
