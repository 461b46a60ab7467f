// cli/eval/eval_plot.c - see eval_plot.h.
#include "cli/eval/eval_plot.h"
#include "cli/attn/attn_list.h"
#include "cli/eval/eval_scores.h"
#include "cli/eval/eval_table.h"
#include "cli/output/plot.h"

#include <stdio.h>

int eval_plot(const char *file, const char *title, const eval_scores *s, const cli_attn_list *attn, const eval_summary *summary,
              sl_error *err) {
    cli_curves curves = {0};
    int rc = 0;
    for (int m = 0; !rc && m < s->n_methods; m++) {
        const eval_summary *all = &summary[m * (s->n_groups + 1) + s->n_groups];
        char name[CLI_ATTN_NAME], curve[2 * CLI_ATTN_NAME];
        double budget = cli_attn_curve(attn, m, name);
        snprintf(curve, sizeof curve, s->n_prefills > 1 ? "%s, prefill %s" : "%s", name, eval_prefill_of(s, m));
        rc = cli_curves_add(
            &curves, curve,
            (cli_point){100 * all->kv_share, 100 * all->score.at, 100 * all->score.low, 100 * all->score.high, budget}, err);
    }
    const cli_panel panel = cli_panel_accuracy(&curves);
    if (!rc) rc = cli_plot(file, title, &panel, 1, err);
    cli_curves_free(&curves);
    return rc;
}
