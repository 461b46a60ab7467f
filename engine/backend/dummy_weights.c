// engine/backend/dummy_weights.c - see dummy_weights.h.
#include "engine/backend/dummy_weights.h"
#include "engine/base/error.h"
#include "engine/base/hash.h"
#include "engine/base/philox.h"
#include "engine/base/quantile.h"

#include <omp.h>
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

void sl_dummy_quantiles(double deviation, bf16 *quantiles) {
#pragma omp parallel for schedule(static)
    for (int w = 0; w < SL_DUMMY_QUANTILES; w++)
        quantiles[w] = sl_f32_to_bf16((float)(deviation * sl_normal_quantile((w + 0.5) / SL_DUMMY_QUANTILES)));
}

void sl_dummy_fill(uint64_t key, const bf16 *quantiles, size_t from, size_t n, int n_threads, bf16 *out) {
    SL_CHECK(from % 8 == 0);
    size_t first = from / 8, n_blocks = (n + 7) / 8;
    if (n_threads <= 0) n_threads = omp_get_max_threads();
#pragma omp parallel for schedule(static) num_threads(n_threads)
    for (size_t b = 0; b < n_blocks; b++) {
        uint64_t at = first + b;
        sl_philox4 r =
            sl_philox((uint32_t)key, (uint32_t)(key >> 32), (uint32_t)at, (uint32_t)(at >> 32), 0, SL_STREAM_WEIGHTS);
        size_t left = n - 8 * b;
        for (size_t j = 0; j < 8 && j < left; j++) out[8 * b + j] = quantiles[r.v[j / 2] >> 16 * (j % 2) & 0xffff];
    }
}
