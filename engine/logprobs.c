// engine/logprobs.c - see logprobs.h.
#include "engine/logprobs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void sl_logprobs_begin(sl_logprobs *l, int n_top, int n_vocab) {
    l->n_top = n_top < n_vocab ? n_top : n_vocab;
    l->n_vocab = n_vocab;
    l->n = 0;
}

void sl_logprobs_free(sl_logprobs *l) {
    free(l->logits);
    free(l->tokens);
}

static int no_memory(sl_error *err) {
    return sl_fail(err, SL_ERR_MEMORY, "{logprobs}: out of memory");
}

int sl_logprobs_before(sl_logprobs *l, const float *logits, sl_error *err) {
    if (!l->logits) l->logits = malloc((size_t)l->n_vocab * sizeof *l->logits);
    if (!l->logits) return no_memory(err);
    memcpy(l->logits, logits, (size_t)l->n_vocab * sizeof *l->logits);
    return 0;
}

double sl_log_sum(const float *logits, int n) {
    double most = logits[0], sum = 0;
    for (int i = 1; i < n; i++)
        if (logits[i] > most) most = logits[i];
    for (int i = 0; i < n; i++) sum += exp(logits[i] - most);
    return most + log(sum);
}

// The n largest logits in falling order; of equal ones the lowest id comes first.
static void find_top(const float *logits, int n_vocab, int n, sl_logprob *top) {
    int n_top = 0;
    for (int id = 0; id < n_vocab && n; id++) {
        if (n_top == n && !(logits[id] > top[n - 1].at)) continue;
        int at = n_top < n ? n_top++ : n - 1;
        for (; at > 0 && logits[id] > top[at - 1].at; at--) top[at] = top[at - 1];
        top[at] = (sl_logprob){id, logits[id]};
    }
}

int sl_logprobs_add(sl_logprobs *l, int32_t id, sl_error *err) {
    if (l->n_top < 0) return 0;
    if (l->n == l->cap) {
        int cap = l->cap ? 2 * l->cap : 16;
        sl_token_logprobs *grown = realloc(l->tokens, (size_t)cap * sizeof *grown);
        if (!grown) return no_memory(err);
        l->tokens = grown, l->cap = cap;
    }
    sl_token_logprobs *t = &l->tokens[l->n++];
    double log_sum = sl_log_sum(l->logits, l->n_vocab);
    t->sampled = (sl_logprob){id, l->logits[id] - log_sum + 0.0}; // + 0.0 turns -0 into 0
    t->n_top = l->n_top;
    find_top(l->logits, l->n_vocab, l->n_top, t->top);
    for (int i = 0; i < l->n_top; i++) t->top[i].at = t->top[i].at - log_sum + 0.0;
    return 0;
}
