// engine/draft/draft_spec.h - what {draft} asks for.
#ifndef SLEIGH_DRAFT_SPEC_H
#define SLEIGH_DRAFT_SPEC_H

#include "base/error.h"
#include "engine/sleigh.h"

enum {
    SL_DRAFT_MOST = 8,    // drafts of a pass without `most`
    SL_DRAFT_METHODS = 2, // methods of a specification
    SL_NGRAM_LONGEST = 64
};

typedef struct sl_draft_spec {
    int has_ngram, n_methods;
    int of_model;                     // the methods run with the draft model, not with the model itself
    int min, max;                     // ids of an n-gram
    int least, most;                  // drafts of a pass where the source has any
    char attn[SL_DRAFT_METHODS][128]; // of the methods
    const char *weights;              // the format that the methods read (sl_draft_format); NULL: the model's own weights
} sl_draft_spec;

// "int4", "int8" or "fp8", the formats of copies of a model's weights for its own drafts; NULL: name is none of them.
const char *sl_draft_format(const char *name);

// Reads "ngram", "ngram:min=4:most=6", "self:most=4:attn=santa-is:S=64", "self:weights=int4", "self:attn=dense:weights=int4",
// "ngram+self:attn=...", "model", "auto", "auto:weights=int4". SL_ERR_ARG
int sl_draft_parse(const char *draft, sl_draft_spec *out, sl_error *err);

#endif
