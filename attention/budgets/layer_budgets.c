// attention/budgets/layer_budgets.c - see layer_budgets.h.
#include "attention/budgets/layer_budgets.h"
#include "base/error.h"
#include "base/philox.h"

#include <math.h>
#include <string.h>

enum { MOST_LAYERS = 1024 };

void sl_layer_budgets_round(const double *share, int n, int total, int *budget) {
    double sum = 0, rest[MOST_LAYERS];
    int left = total;
    SL_CHECK(n > 0 && n <= MOST_LAYERS && total >= n);
    for (int i = 0; i < n; i++) sum += share[i];
    for (int i = 0; i < n; i++) {
        double exact = sum > 0 ? share[i] / sum * total : (double)total / n;
        budget[i] = exact < 1 ? 1 : (int)exact;
        rest[i] = exact - budget[i]; // negative for a layer that the floor of 1 raised
        left -= budget[i];
    }
    for (; left > 0; left--) { // to the largest remainder
        int best = 0;
        for (int i = 1; i < n; i++) best = rest[i] > rest[best] ? i : best;
        budget[best]++, rest[best] -= 1;
    }
    for (; left < 0; left++) { // the floors of 1 took too many: from the smallest remainder of a layer above 1
        int best = -1;
        for (int i = 0; i < n; i++)
            if (budget[i] > 1 && (best < 0 || rest[i] < rest[best])) best = i;
        budget[best]--, rest[best] += 1;
    }
}

void sl_layer_budgets_by_variance(const double *error, int n, int total, int *budget) {
    double deviation[MOST_LAYERS];
    SL_CHECK(n > 0 && n <= MOST_LAYERS);
    for (int i = 0; i < n; i++) deviation[i] = sqrt(error[i]);
    sl_layer_budgets_round(deviation, n, total, budget);
}

void sl_layer_budgets_policy(const double *theta, int n, double *p) {
    double most = theta[0], sum = 0;
    for (int i = 1; i < n; i++) most = theta[i] > most ? theta[i] : most;
    for (int i = 0; i < n; i++) sum += p[i] = exp(theta[i] - most);
    for (int i = 0; i < n; i++) p[i] /= sum;
}

void sl_layer_budgets_draw(const double *p, int n, int total, uint32_t seed, uint32_t update, uint32_t episode, int *s) {
    const sl_rng_id id = {.seed = seed, .sequence = episode, .position = update};
    memset(s, 0, n * sizeof *s);
    for (int i = 0; i < total; i++) {
        double u = (double)(sl_rng_u64(&id, (uint32_t)i, SL_STREAM_TUNE) >> 11) * 0x1p-53;
        int layer = 0;
        for (double sum = p[0]; layer + 1 < n && u >= sum; sum += p[layer]) layer++;
        s[layer]++;
    }
}

void sl_layer_budgets_learn(double *theta, int n, int total, double rate, const int *s, const double *reward, int n_episodes) {
    double p[MOST_LAYERS], baseline = 0;
    SL_CHECK(n > 0 && n <= MOST_LAYERS && n_episodes > 0);
    sl_layer_budgets_policy(theta, n, p);
    for (int k = 0; k < n_episodes; k++) baseline += reward[k] / n_episodes;
    for (int i = 0; i < n; i++) {
        double gradient = 0;
        for (int k = 0; k < n_episodes; k++)
            gradient += (reward[k] - baseline) * (s[(size_t)k * n + i] - total * p[i]) / n_episodes;
        theta[i] += rate * gradient;
    }
}
