// engine/attend/attention_spread.c - how dense attention spreads its mass over the rows of one query head, from the scores of
// the rows.
#include "engine/engine_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Masses are in [0, 1], because the reference is the highest score. The upper bits of a float that is not negative are in the
// order of the floats, so they name its bin.
enum { BIN_SHIFT = 18, N_BINS = (0x3F800000 >> BIN_SHIFT) + 1 };

static int bin_of(float mass) {
    uint32_t bits;
    memcpy(&bits, &mass, sizeof bits);
    return (int)(bits >> BIN_SHIFT);
}

static int by_falling_mass(const void *x, const void *y) {
    float a = *(const float *)x, b = *(const float *)y;
    return (a < b) - (a > b);
}

// The fewest masses whose sum is at least `enough`, at most n. Whole bins are added from the highest one down; only the
// masses of the last bin are sorted. Overwrites mass.
static int fewest_rows(float *mass, int n, const double *bins, const int *counts, double enough) {
    int bin = N_BINS - 1, fewest = 0, n_last = 0;
    double sum = 0;
    // The loop ends, because all bins together hold more than `enough`.
    for (; sum + bins[bin] < enough; bin--) sum += bins[bin], fewest += counts[bin];
    for (int j = 0; j < n; j++)
        if (bin_of(mass[j]) == bin) mass[n_last++] = mass[j];
    qsort(mass, (size_t)n_last, sizeof *mass, by_falling_mass);
    for (int j = 0; j < n_last && sum < enough; j++) sum += mass[j], fewest++;
    return fewest;
}

void sl_attn_spread_of(float *score, int n, sl_attn_spread *out) {
    double bins[N_BINS] = {0}, total = 0, logs = 0, squares = 0, distances = 0, half = 0;
    int counts[N_BINS] = {0}, median = n;
    float most = -INFINITY;
    *out = (sl_attn_spread){0};
    for (int j = 0; j < n; j++) most = score[j] > most ? score[j] : most;
    for (int j = 0; j < n; j++) {
        double log_mass = (double)score[j] - most;
        float mass = isfinite(log_mass) ? (float)exp2(log_mass) : 0; // logits that are not finite end the run later
        int bin = bin_of(mass);
        bins[bin] += mass, counts[bin]++;
        total += mass, squares += (double)mass * mass;
        if (mass > 0) logs += mass * log_mass;
        distances += (double)mass * (n - 1 - j);
        if (j < SL_PROFILE_SINK) out->sink += mass;
        if (n - j <= SL_PROFILE_WINDOW) out->window += mass;
        score[j] = mass;
    }
    while (median > 0 && half < 0.5 * total) half += score[--median];
    out->keys_entropy = total * exp2(-logs / total); // -sum p ln p = ln total - sum m ln m / total
    out->keys_squares = total * total / squares;
    out->sink /= total, out->window /= total;
    out->distance_mean = distances / total;
    out->distance_median = n - 1 - median;
    out->rows_90 = fewest_rows(score, n, bins, counts, 0.9 * total);
}
