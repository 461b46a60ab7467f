// cli/bench/attn_states.h - queries, keys and values of a model, as `sleigh bench attn --states DIR` reads them.
//
// scripts/measure/attention_states.py writes DIR. It runs a model over a text, and puts the heads of all layers side by side,
// as one layer of a larger model. DIR has four files:
//
//   states.json  {"n_heads", "n_kv_heads", "head_dim", "n_rows", "n_steps", "source"}
//   q.bf16       [n_steps][n_heads][head_dim]; step t is the query at position n_rows - n_steps + t
//   k.bf16       [n_kv_heads][n_rows][head_dim], after RoPE
//   v.bf16       [n_kv_heads][n_rows][head_dim]
#ifndef SLEIGH_ATTN_STATES_H
#define SLEIGH_ATTN_STATES_H

#include "attention/attention.h"

typedef struct cli_attn_states {
    sl_attn_geom geom;
    int n_rows, n_steps;
    char source[160]; // model and text, for the table
    bf16 *q, *k, *v;
} cli_attn_states;

// SL_ERR_IO, SL_ERR_FORMAT: a file is missing, has other fields or another size.
int cli_attn_states_read(cli_attn_states *s, const char *dir, sl_error *err);
void cli_attn_states_free(cli_attn_states *s);

#endif
