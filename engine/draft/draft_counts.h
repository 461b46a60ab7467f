// engine/draft/draft_counts.h - sums of what drafts came to, and their fields.
#ifndef SLEIGH_DRAFT_COUNTS_H
#define SLEIGH_DRAFT_COUNTS_H

#include "engine/sleigh.h"

#include <jansson.h>

// "drafts: 2.68 tokens a pass; 37 of 42 drafts accepted; 14 passes with ngram, 1 with self, 7 without drafts", as snprintf.
// method: "self", or what else made the drafts that ngram did not make
int sl_draft_counts_text(char *buf, size_t size, const sl_draft_counts *c, const char *method);
void sl_draft_counts_add(sl_draft_counts *to, const sl_draft_counts *from);
// The object `drafts` of commands and of the server (docs/output.md). most: drafts of a step, the length of accepted_at. NULL:
// out of memory
json_t *sl_draft_counts_json(const sl_draft_counts *c, const char *draft, int most);
json_t *sl_draft_places_json(const sl_draft_counts *c, int most); // its field accepted_at

#endif
