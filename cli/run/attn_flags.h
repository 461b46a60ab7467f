// cli/run/attn_flags.h - attention plans from flags: --attn, --attn-layer, --PARAM and --S-schedule for decoding,
// --attn-prefill and --attn-prefill-layer for prefill. An auto in a flag stays auto.
#ifndef SLEIGH_ATTN_FLAGS_H
#define SLEIGH_ATTN_FLAGS_H

#include "attention/attention.h"
#include "cli/attn/attn_profile.h"
#include "cli/options/options.h"

// profile: of --attn-profile; NULL: none. Its plan takes the place of --attn if this flag is not given. plan: the plan to
// fill, whose n_layers is set; NULL: only checks the flags, as far as possible without a model. *spec: the method of --attn.
int cli_plan_decode(const cli_attention_options *o, const cli_attn_profile *profile, sl_attn_spec *spec, sl_attn_plan *plan,
                    sl_error *err);
// The same for prefill. Without --attn-prefill, a profile with methods for prefill means auto.
int cli_plan_prefill(const cli_attention_options *o, const cli_attn_profile *profile, sl_attn_plan *plan, sl_error *err);
// The value of --exact-below, as sl_engine_options has it.
int cli_exact_below(const cli_attention_options *o, int *rows, sl_error *err);
// Checks the method of a rule of --attn-prefill-layer. sl_attn_plan_set reports errors before the method.
int cli_check_prefill_rule(const cli_attention_options *o, const char *rule, sl_error *err);

#endif
