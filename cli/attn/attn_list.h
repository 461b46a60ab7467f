// cli/attn/attn_list.h - the list of attention methods that --attn takes in bench, compare and eval. Repeated flags and
// commas separate methods. Braces hold the values of a parameter: 'dense,santa-prop:S={64,128}' is three methods.
#ifndef SLEIGH_ATTN_LIST_H
#define SLEIGH_ATTN_LIST_H

#include "attention/attention.h"
#include "cli/options/options.h"

enum { CLI_ATTN_NAME = 512 };

typedef struct cli_attn_list {
    char **names;        // [n] as sl_attn_format writes them
    sl_attn_spec *specs; // [n]
    int n, cap;
} cli_attn_list;

// Parses a method; messages name `flag` in place of --attn.
int cli_attn_parse(const char *flag, const char *text, sl_attn_spec *spec, sl_error *err);
// The methods of `flag`; without the flag the list is `dense`. SL_ERR_ARG: a method is named twice. The caller frees *out, also
// after an error.
int cli_attn_list_parse(const char *flag, const cli_list *items, cli_attn_list *out, sl_error *err);
// The methods of --attn-prefill of compare and eval. SL_ERR_ARG also: cli_check_auto refuses one.
int cli_prefill_list_parse(const cli_attention_options *o, cli_attn_list *out, sl_error *err);
// SL_ERR_ARG: a method for prefill of compare or eval is auto, and there is no --attn-profile.
int cli_check_auto(const cli_attention_options *o, const char *flag, const sl_attn_spec *spec, sl_error *err);
int cli_attn_list_repeat(cli_attn_list *list, int times, sl_error *err); // the whole list, `times` times
// For plots: methods that differ only in their budget lie on one curve. Returns the budget, the first parameter if it is S or
// k, else NaN. name: the method without its budget. 'santa-is:S=64:proposal=int8' is 64 on curve 'santa-is:proposal=int8'.
double cli_attn_curve(const cli_attn_list *list, int i, char name[CLI_ATTN_NAME]);
void cli_attn_list_free(cli_attn_list *list);

#endif
