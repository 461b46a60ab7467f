// cli/compare/compare_heads.h - heads of the methods, and dense attention, on the states of the dense run.
#ifndef SLEIGH_COMPARE_HEADS_H
#define SLEIGH_COMPARE_HEADS_H

#include "cli/compare/compare.h"

int compare_observes(const compare *c); // 1: --heads or --attention needs the steps of a dense run
// Begin and end the observation of one prompt's dense run. compare_observe_end: rc of the run between the two calls; returns
// it, or an error of the observer.
int compare_observe_begin(compare *c, sl_error *err);
int compare_observe_end(compare *c, compare_prompt *p, int rc, sl_error *err);

// The errors (which = 0) or cosines (1) of a layer's outputs (-1: of all layers), in groups: prompts if there are at least
// CLI_MIN_GROUPS, else steps. The caller frees *out.
int compare_outputs_values(const compare *c, const compare_method *m, int which, int layer, cli_values *out, sl_error *err);

#endif
