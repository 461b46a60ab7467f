// engine/cli/attn_list.h - a list of attention methods, as --attn takes it where many are run: flags and commas separate, and
// braces sweep a parameter: 'dense,santa-prop:S={64,128}' is three methods.
#ifndef SLEIGH_ATTN_LIST_H
#define SLEIGH_ATTN_LIST_H

#include "attention/attention.h"
#include "engine/cli/options.h"

enum { CLI_ATTN_NAME = 512 };

typedef struct cli_attn_list {
    char **names;        // [n] as sl_attn_format writes them
    sl_attn_spec *specs; // [n]
    int n, cap;
} cli_attn_list;

// `dense` where the flag was not given. A method that is named twice is SL_ERR_ARG. *out is the caller's to free, after an
// error too.
int cli_attn_list_parse(const cli_list *items, cli_attn_list *out, sl_error *err);
// Methods that differ in their budget alone lie on one curve: the name without its first parameter where that is S or k, and
// that parameter, NaN where there is none. 'santa-is:S=64:proposal=int8' is 64 on 'santa-is:proposal=int8'.
double cli_attn_curve(const cli_attn_list *list, int i, char name[CLI_ATTN_NAME]);
void cli_attn_list_free(cli_attn_list *list);

#endif
