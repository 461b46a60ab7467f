// cli/output/logprobs_json.c - see logprobs_json.h.
#include "cli/output/logprobs_json.h"
#include "cli/output/token_json.h"

static json_t *logprob_json(const sl_tokenizer *tok, const sl_logprob *p) {
    json_t *out = cli_token_json(tok, p->id);
    if (out) json_object_set_new(out, "logprob", json_real(p->at));
    return out;
}

json_t *cli_logprobs_json(const sl_token_logprobs *tokens, int n, const sl_tokenizer *tok) {
    json_t *list = json_array();
    for (int i = 0; list && i < n; i++) {
        json_t *token = logprob_json(tok, &tokens[i].sampled), *top = json_array();
        for (int j = 0; j < tokens[i].n_top; j++) json_array_append_new(top, logprob_json(tok, &tokens[i].top[j]));
        json_object_set_new(token, "top_logprobs", top);
        json_array_append_new(list, token);
    }
    return list;
}
