// engine/draft/draft_counts.c - see draft_counts.h.
#include "engine/draft/draft_counts.h"

#include "base/number.h"

int sl_draft_counts_text(char *buf, size_t size, const sl_draft_counts *c, const char *method) {
    return sl_print(buf, size,
                    "drafts: %.2f tokens a pass; %llu of %llu drafts accepted; %llu passes with ngram, %llu with %s, "
                    "%llu without drafts",
                    c->n_steps ? 1 + (double)c->n_accepted_tokens / (double)c->n_steps : 1,
                    (unsigned long long)c->n_accepted_tokens, (unsigned long long)c->n_draft_tokens,
                    (unsigned long long)c->n_ngram_drafts, (unsigned long long)(c->n_drafts - c->n_ngram_drafts), method,
                    (unsigned long long)(c->n_steps - c->n_drafts));
}

void sl_draft_counts_add(sl_draft_counts *to, const sl_draft_counts *from) {
    to->n_steps += from->n_steps, to->n_drafts += from->n_drafts, to->n_ngram_drafts += from->n_ngram_drafts;
    to->n_draft_tokens += from->n_draft_tokens, to->n_accepted_tokens += from->n_accepted_tokens;
    for (int i = 0; i < SL_MAX_DRAFT; i++) to->accepted_at[i] += from->accepted_at[i];
}

json_t *sl_draft_places_json(const sl_draft_counts *c, int most) {
    json_t *places = json_array();
    for (int i = 0; i < most; i++) json_array_append_new(places, json_integer((json_int_t)c->accepted_at[i]));
    return places;
}

json_t *sl_draft_counts_json(const sl_draft_counts *c, const char *draft, int most) {
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:o}", "draft", draft, "steps", (json_int_t)c->n_steps, "draft_steps",
                     (json_int_t)c->n_drafts, "ngram_steps", (json_int_t)c->n_ngram_drafts, "drafted",
                     (json_int_t)c->n_draft_tokens, "accepted", (json_int_t)c->n_accepted_tokens, "accepted_at",
                     sl_draft_places_json(c, most));
}
