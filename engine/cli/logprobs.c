// engine/cli/logprobs.c - see logprobs.h.
#include "engine/cli/logprobs.h"
#include "engine/cli/grow.h"
#include "engine/cli/output/summary.h"
#include "engine/cli/output/token_json.h"

#include <stdlib.h>
#include <string.h>

void cli_logprobs_begin(cli_logprobs *l, int n_top, int n_vocab) {
    l->n_top = n_top < n_vocab ? n_top : n_vocab;
    l->n_vocab = n_vocab;
    l->n = 0;
}

void cli_logprobs_free(cli_logprobs *l) {
    free(l->logits);
    free(l->tokens);
}

static int no_memory(sl_error *err) {
    return sl_fail(err, SL_ERR_MEMORY, "--logprobs: out of memory");
}

int cli_logprobs_before(cli_logprobs *l, const float *logits, sl_error *err) {
    if (!l->logits) l->logits = malloc((size_t)l->n_vocab * sizeof *l->logits);
    if (!l->logits) return no_memory(err);
    memcpy(l->logits, logits, (size_t)l->n_vocab * sizeof *l->logits);
    return 0;
}

static void find_top(const float *logits, int n_vocab, int n, cli_logprob *top) {
    int n_top = 0;
    for (int id = 0; id < n_vocab && n; id++) {
        if (n_top == n && !(logits[id] > top[n - 1].at)) continue;
        int at = n_top < n ? n_top++ : n - 1;
        for (; at > 0 && logits[id] > top[at - 1].at; at--) top[at] = top[at - 1];
        top[at] = (cli_logprob){id, logits[id]};
    }
}

int cli_logprobs_add(cli_logprobs *l, int32_t id, sl_error *err) {
    if (l->n_top < 0) return 0;
    cli_token_logprobs *grown = cli_grow(l->tokens, l->n, &l->cap, sizeof *grown);
    if (!grown) return no_memory(err);
    l->tokens = grown;
    cli_token_logprobs *t = &l->tokens[l->n++];
    double log_sum = cli_log_sum(l->logits, l->n_vocab);
    t->sampled = (cli_logprob){id, l->logits[id] - log_sum + 0.0}; // + 0.0 turns -0 into 0
    find_top(l->logits, l->n_vocab, l->n_top, t->top);
    for (int i = 0; i < l->n_top; i++) t->top[i].at = t->top[i].at - log_sum + 0.0;
    return 0;
}

static json_t *logprob_json(const sl_tokenizer *tok, const cli_logprob *p) {
    json_t *out = cli_token_json(tok, p->id);
    if (out) json_object_set_new(out, "logprob", json_real(p->at));
    return out;
}

json_t *cli_logprobs_json(const cli_logprobs *l, const sl_tokenizer *tok) {
    json_t *list = json_array();
    for (int i = 0; list && i < l->n; i++) {
        json_t *token = logprob_json(tok, &l->tokens[i].sampled), *top = json_array();
        for (int j = 0; j < l->n_top; j++) json_array_append_new(top, logprob_json(tok, &l->tokens[i].top[j]));
        json_object_set_new(token, "top_logprobs", top);
        json_array_append_new(list, token);
    }
    return list;
}
