// tests/support/mask_patterns.h - the masks that read no scores, by their definitions: bigbird, hash-sparse, hyperattention.
#ifndef SLEIGH_MASK_PATTERNS_H
#define SLEIGH_MASK_PATTERNS_H

#include "tests/support/mask_reference.h"

// keep[j] = 1 for the key blocks j <= i that query block i visits, beside those that every mask has. The caller clears keep.
void naive_bigbird(const segment *s, const sl_attn_spec *spec, int head, int i, char *keep);
void naive_hash_sparse(const segment *s, const sl_attn_spec *spec, int head, int i, char *keep);
void naive_hyperattention(const segment *s, const sl_attn_spec *spec, int head, int i, char *keep);

#endif
