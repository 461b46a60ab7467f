// backend/sampler.c - see sampler.h. Greedy sampling scans the logits. Other sampling sorts the candidates, the best
// first, because top-k, top-p and min-p each keep the first candidates of this order.
#include "backend/sampler.h"
#include "base/number.h"
#include "base/philox.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct candidate {
    float logit;
    int32_t id;
} candidate;

struct sl_sampler {
    sl_sampling params;
    sl_logit_bias *bias; // a copy
    uint32_t *allowed;   // [words of n_vocab], a copy; NULL: none was made
    int is_limited;      // to `allowed`
    int n_vocab;
    candidate *candidates; // [n_vocab]
    double *mass;          // [n_vocab] of sorted candidates
    int32_t *count;        // [n_vocab] occurrences within the penalty window
    int32_t *history;      // every token of the context
    size_t n_history, cap_history;
};

sl_sampling sl_sampling_default(void) {
    return (sl_sampling){.temp = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f, .repeat_penalty = 1, .repeat_last_n = 64};
}

static int out_of_range(const char *option, float x, float min, float max, sl_error *err) {
    char text[3][SL_NUMBER_TEXT];
    return sl_fail(err, SL_ERR_ARG, "{%s} %s: expected %s to %s", option, sl_float_text(x, text[0]),
                   sl_float_text(min, text[1]), sl_float_text(max, text[2]));
}

int sl_sampling_check(const sl_sampling *s, int n_vocab, sl_error *err) {
    const struct {
        const char *option;
        float value, min, max;
    } ranges[] = {
        {"temp", s->temp, 0, 1e6f},
        {"top_p", s->top_p, 0, 1},
        {"min_p", s->min_p, 0, 1},
        {"repeat_penalty", s->repeat_penalty, 1e-6f, 1e6f},
        {"presence_penalty", s->presence_penalty, -1e6f, 1e6f},
        {"frequency_penalty", s->frequency_penalty, -1e6f, 1e6f},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (!(ranges[i].value >= ranges[i].min && ranges[i].value <= ranges[i].max))
            return out_of_range(ranges[i].option, ranges[i].value, ranges[i].min, ranges[i].max, err);
    if (s->top_k < 0) return sl_fail(err, SL_ERR_ARG, "{top_k} %d: expected 0 (off) or more", s->top_k);
    if (s->repeat_last_n < -1)
        return sl_fail(err, SL_ERR_ARG, "{repeat_last_n} %d: expected -1 (the context) or more", s->repeat_last_n);
    if (s->n_bias < 0) return sl_fail(err, SL_ERR_ARG, "a list of %d logit biases: expected 0 or more", s->n_bias);
    for (int i = 0; i < s->n_bias; i++)
        if (s->bias[i].id < 0 || s->bias[i].id >= n_vocab || isnan(s->bias[i].bias))
            return sl_fail(err, SL_ERR_ARG, "{bias} %d: expected ids from 0 to %d and a number", s->bias[i].id, n_vocab - 1);
    return 0;
}

int sl_sampler_new(const sl_sampling *params, int n_vocab, sl_sampler **out, sl_error *err) {
    if (n_vocab < 1) return sl_fail(err, SL_ERR_ARG, "a vocabulary of %d tokens: expected at least 1", n_vocab);
    int rc = sl_sampling_check(params, n_vocab, err);
    if (rc) return rc;
    sl_sampler *s = calloc(1, sizeof *s);
    if (!s) return sl_fail(err, SL_ERR_MEMORY, "sampler: out of memory");
    s->params = *params;
    s->n_vocab = n_vocab;
    s->candidates = malloc(n_vocab * sizeof *s->candidates);
    s->mass = malloc(n_vocab * sizeof *s->mass);
    s->count = calloc(n_vocab, sizeof *s->count);
    s->bias = malloc((params->n_bias + 1) * sizeof *s->bias);
    if (!s->candidates || !s->mass || !s->count || !s->bias) {
        sl_sampler_free(s);
        return sl_fail(err, SL_ERR_MEMORY, "sampler: out of memory");
    }
    if (params->n_bias > 0) memcpy(s->bias, params->bias, params->n_bias * sizeof *s->bias);
    s->params.bias = s->bias; // a GPU reads the biases from here in every step
    *out = s;
    return 0;
}

void sl_sampler_free(sl_sampler *s) {
    if (!s) return;
    free(s->bias), free(s->allowed), free(s->candidates), free(s->mass), free(s->count), free(s->history);
    free(s);
}

const sl_sampling *sl_sampler_params(const sl_sampler *s) {
    return &s->params;
}

int sl_sampler_n_vocab(const sl_sampler *s) {
    return s->n_vocab;
}

// ---- history ----

static size_t window_begin(const sl_sampler *s, size_t n) { // first token of the penalty window of a context of n tokens
    int last = s->params.repeat_last_n;
    return last < 0 || n <= (size_t)last ? 0 : n - (size_t)last;
}

int sl_sampler_accept(sl_sampler *s, int32_t id, sl_error *err) {
    if (id < 0 || id >= s->n_vocab) return sl_fail(err, SL_ERR_ARG, "token id %d: expected 0 to %d", id, s->n_vocab - 1);
    if (s->n_history == s->cap_history) {
        size_t cap = s->cap_history ? 2 * s->cap_history : 1024;
        int32_t *grown = realloc(s->history, cap * sizeof *grown);
        if (!grown) return sl_fail(err, SL_ERR_MEMORY, "sampler: a history of %zu tokens: out of memory", cap);
        s->history = grown;
        s->cap_history = cap;
    }
    size_t before = window_begin(s, s->n_history);
    s->history[s->n_history++] = id;
    s->count[id]++;
    if (window_begin(s, s->n_history) > before) s->count[s->history[before]]--;
    return 0;
}

int sl_sampler_n_tokens(const sl_sampler *s) {
    return (int)s->n_history;
}

void sl_sampler_truncate(sl_sampler *s, int n_tokens) {
    if (n_tokens < 0) n_tokens = 0;
    if ((size_t)n_tokens >= s->n_history) return;
    for (size_t i = window_begin(s, s->n_history); i < s->n_history; i++) s->count[s->history[i]] = 0;
    s->n_history = (size_t)n_tokens;
    for (size_t i = window_begin(s, s->n_history); i < s->n_history; i++) s->count[s->history[i]]++;
}

// ---- sampling ----

static int better(const candidate *a, const candidate *b) {
    return a->logit != b->logit ? a->logit > b->logit : a->id < b->id;
}

static void sift_down(candidate *x, int i, int n) { // x is a heap with the worst candidate on top
    for (int child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && better(&x[child], &x[child + 1])) child++;
        if (!better(&x[i], &x[child])) return;
        candidate t = x[i];
        x[i] = x[child], x[child] = t;
    }
}

// Moves the k best candidates to the front, the best first. O(n log k). Allocates nothing.
static void sort_best(candidate *x, int n, int k) {
    for (int i = k / 2 - 1; i >= 0; i--) sift_down(x, i, k);
    for (int i = k; i < n; i++) {
        if (!better(&x[i], &x[0])) continue;
        candidate t = x[0];
        x[0] = x[i], x[i] = t;
        sift_down(x, 0, k);
    }
    for (int i = k - 1; i > 0; i--) {
        candidate t = x[0];
        x[0] = x[i], x[i] = t;
        sift_down(x, 0, i);
    }
}

int sl_sampler_allow(sl_sampler *s, const uint32_t *allowed, sl_error *err) {
    size_t n = ((size_t)s->n_vocab + 31) / 32;
    if (allowed && !s->allowed && !(s->allowed = malloc(n * sizeof *allowed)))
        return sl_fail(err, SL_ERR_MEMORY, "sampler: out of memory");
    if (allowed) memcpy(s->allowed, allowed, n * sizeof *allowed);
    s->is_limited = allowed != NULL;
    return 0;
}

const uint32_t *sl_sampler_allowed(const sl_sampler *s) {
    return s->is_limited ? s->allowed : NULL;
}

// The logits of allowed tokens, with bias and penalties; NaN counts as -inf.
static void load_candidates(sl_sampler *s, const float *logits) {
    const sl_sampling *p = &s->params;
    for (int i = 0; i < s->n_vocab; i++) s->candidates[i] = (candidate){isnan(logits[i]) ? -INFINITY : logits[i], i};
    for (int i = 0; s->is_limited && i < s->n_vocab; i++)
        if (!(s->allowed[i / 32] >> i % 32 & 1)) s->candidates[i].logit = -INFINITY;
    for (int i = 0; i < p->n_bias; i++) {
        float *x = &s->candidates[s->bias[i].id].logit;
        *x += s->bias[i].bias;
        if (isnan(*x)) *x = -INFINITY; // inf - inf: a ban wins
    }
    if (p->repeat_last_n == 0 || (p->repeat_penalty == 1 && p->presence_penalty == 0 && p->frequency_penalty == 0)) return;
    for (int i = 0; i < s->n_vocab; i++) {
        if (s->count[i] == 0) continue;
        float *x = &s->candidates[i].logit;
        *x = *x <= 0 ? *x * p->repeat_penalty : *x / p->repeat_penalty;
        *x -= (float)s->count[i] * p->frequency_penalty + p->presence_penalty;
    }
}

// mass[i] = e^((logit_i - logit_0) / temp) of sorted candidates. Returns their sum.
static double fill_masses(sl_sampler *s, int n, double temp) {
    double sum = 0;
    for (int i = 0; i < n; i++) {
        s->mass[i] = i == 0 ? 1 : exp(((double)s->candidates[i].logit - s->candidates[0].logit) / temp);
        sum += s->mass[i];
    }
    return sum;
}

// Applies top-k, top-p and min-p. Returns the number of sorted candidates that remain.
static int filter(sl_sampler *s) {
    const sl_sampling *p = &s->params;
    int n = p->top_k > 0 && p->top_k < s->n_vocab ? p->top_k : s->n_vocab;
    sort_best(s->candidates, s->n_vocab, n);
    if (p->top_p < 1) {
        double sum = fill_masses(s, n, 1), running = 0;
        for (int i = 0; i < n; i++) {
            running += s->mass[i];
            if (running >= p->top_p * sum) n = i + 1; // ends the loop, and keeps at least one candidate
        }
    }
    if (p->min_p > 0) {
        int keep = 1;
        float least = s->candidates[0].logit + logf(p->min_p);
        while (keep < n && s->candidates[keep].logit >= least) keep++;
        n = keep;
    }
    return n;
}

static int32_t greedy(const candidate *x, int n) {
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i].logit > x[best].logit) best = i;
    return x[best].id;
}

int32_t sl_sampler_sample(sl_sampler *s, const float *logits, uint32_t sequence, uint32_t position) {
    load_candidates(s, logits);
    if (s->params.temp == 0) return greedy(s->candidates, s->n_vocab);
    int n = filter(s);
    if (s->candidates[0].logit == -INFINITY || s->candidates[0].logit == INFINITY) return s->candidates[0].id;
    const sl_rng_id id = {.seed = s->params.seed, .sequence = sequence, .position = position};
    double sum = fill_masses(s, n, s->params.temp), running = 0;
    double t = (double)(sl_rng_u64(&id, 0, SL_STREAM_TOKEN) >> 11) * 0x1p-53 * sum;
    for (int i = 0; i < n; i++) {
        running += s->mass[i];
        if (running > t) return s->candidates[i].id;
    }
    return s->candidates[n - 1].id; // reached when the sum was rounded up
}
