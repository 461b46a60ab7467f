// engine/cli/attn_auto.c - see attn_auto.h.
#include "engine/cli/attn_auto.h"
#include "engine/cli/output/progress_bar.h"
#include "engine/engine.h"

#include <stdio.h>
#include <string.h>

static void report_line(cli_auto *a, const char *line) {
    size_t n = strlen(a->said);
    if (strstr(a->said, line)) return;
    snprintf(a->said + n, sizeof a->said - n, "%s\n", line); // a line that does not fit is printed again
    cli_say("%s", line);
}

// Finds and reads the table, once.
static int open_table(cli_auto *a, const cli_options *o, const char *device, const sl_config *c, sl_error *err) {
    const sl_attn_geom geom = {
        .n_layers = c->n_layers, .n_heads = c->n_heads, .n_kv_heads = c->n_kv_heads, .head_dim = c->head_dim};
    char name[256], found[4096], line[4224];
    const char *path = o->calibration ? o->calibration : found;
    if (a->is_open) return 0;
    int rc = sl_device_name(device, name, sizeof name, err);
    if (!rc && !o->calibration) rc = sl_auto_path(name, &geom, found, sizeof found, err);
    if (!rc) rc = sl_auto_read(path, !o->calibration, &a->table, err);
    a->has_table = !rc && a->table.n_specs > 0;
    if (a->has_table) rc = sl_auto_check(&a->table, path, name, &geom, err);
    if (rc) {
        cli_auto_close(a);
        return rc;
    }
    a->is_open = 1;
    if (a->has_table) return 0;
    snprintf(line, sizeof line, "attn auto: dense: %s does not exist; `sleigh bench attn --calibrate -m DIR` creates it", path);
    report_line(a, line);
    return 0;
}

static void report_choices(cli_auto *a, const sl_attn_plan *plan, int n_seqs, int n_kv) {
    for (int i = 0; i < plan->n_layers; i++) {
        sl_auto_choice choice;
        char text[512], line[640];
        if (plan->layer[i].method != &sl_method_auto) continue;
        sl_auto_choose(&a->table, &plan->layer[i], n_seqs, n_kv, &choice);
        sl_auto_choice_format(&a->table, &plan->layer[i], &choice, text, sizeof text);
        snprintf(line, sizeof line, "attn auto: %s", text);
        report_line(a, line);
    }
}

int cli_auto_choose_plan(cli_auto *a, const cli_options *o, const char *device, const sl_config *config,
                         const sl_attn_plan *plan, int n_seqs, int n_kv, int quiet, sl_attn_plan *out, sl_error *err) {
    *out = (sl_attn_plan){0};
    int wanted = sl_auto_in_plan(plan), rc = wanted ? open_table(a, o, device, config, err) : 0;
    if (rc) return rc;
    if (wanted && a->has_table && !quiet) report_choices(a, plan, n_seqs, n_kv);
    return sl_auto_choose_plan(a->has_table ? &a->table : NULL, plan, n_seqs, n_kv, out, err);
}

void cli_auto_close(cli_auto *a) {
    sl_auto_free(&a->table);
    a->is_open = a->has_table = 0;
}
