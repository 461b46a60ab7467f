// engine/draft/draft_counts.h - sums of what drafts came to, and their fields.
#ifndef SLEIGH_DRAFT_COUNTS_H
#define SLEIGH_DRAFT_COUNTS_H

#include "engine/sleigh.h"

#include <jansson.h>

void sl_draft_counts_add(sl_draft_counts *to, const sl_draft_counts *from);
// The object `drafts` of commands and of the server (docs/output.md). most: drafts of a step, the length of accepted_at. NULL:
// out of memory
json_t *sl_draft_counts_json(const sl_draft_counts *c, const char *draft, int most);

#endif
