// cli/attn/attn_auto.c - see attn_auto.h.
#include "cli/attn/attn_auto.h"
#include "cli/bench/calibrate.h"
#include "cli/error_text.h"
#include "cli/output/progress_bar.h"
#include "cli/process.h"
#include "engine/engine.h"

#include <stdio.h>
#include <string.h>

static void report_line(cli_auto *a, const char *line) {
    size_t n = strlen(a->said);
    if (strstr(a->said, line)) return;
    snprintf(a->said + n, sizeof a->said - n, "%s\n", line); // a line that does not fit is printed again
    cli_say("%s", line);
}

// ---- measuring ----

static int same_prefill(const sl_auto_prefill *a, const sl_auto_prefill *b) {
    return a->attn.method == b->attn.method && (!a->attn.method || sl_attn_same(&a->attn, &b->attn)) &&
           a->density == b->density;
}

// 1: auto measured the table, with other methods than those of `wanted`.
static int is_outdated(const sl_auto_table *t, const sl_auto_table *wanted) {
    int same = t->n_specs == wanted->n_specs && same_prefill(&t->prefill, &wanted->prefill);
    for (int s = 0; same && s < t->n_specs; s++) same = sl_attn_same(&t->specs[s], &wanted->specs[s]);
    return t->automatic && !same;
}

// Measures *t, makes it the table and writes it to path. If this fails, the table stays as it is and a line gives the reason.
static int measure(cli_auto *a, cli_auto_measure *fn, const char *device, const char *path, sl_auto_table *t, sl_error *err) {
    char line[1280], reason[320];
    sl_error why;
    snprintf(reason, sizeof reason, a->has_table ? "the table of %s has the methods of another version" : "no table for %s",
             t->device);
    int rc = fn(device, reason, t, &why);
    if (rc && cli_interrupted()) return sl_fail(err, (sl_err)rc, "%s", cli_error_text(&why));
    if (rc) {
        snprintf(line, sizeof line, "attn auto: %scannot measure a table: %s",
                 a->has_table ? "" : "dense: ", cli_error_text(&why));
        report_line(a, line);
        return 0;
    }
    sl_auto_free(&a->table);
    a->table = *t, a->has_table = 1;
    *t = (sl_auto_table){0};
    if (!sl_auto_write(&a->table, path, &why)) return 0;
    snprintf(line, sizeof line, "attn auto: the table is for this run only: %s", cli_error_text(&why));
    report_line(a, line);
    return 0;
}

static const char *given_table(const cli_auto *a, const cli_attention_options *o) { // NULL: none
    return o->calibration ? o->calibration : a->calibration;
}

static int measure_if_needed(cli_auto *a, const cli_attention_options *o, const char *device, const sl_attn_geom *geom,
                             const char *path, sl_error *err) {
    cli_auto_measure *fn = a->measure ? a->measure : sl_device_is_gpu(device) ? cli_calibrate_gpu : NULL;
    sl_auto_table t = {0};
    if (!fn || given_table(a, o) || !o->auto_calibrate) return 0;
    int rc = cli_calibration_begin(device, geom, o->query_deviation, &t, err);
    t.automatic = 1;
    if (!rc && (!a->has_table || is_outdated(&a->table, &t))) rc = measure(a, fn, device, path, &t, err);
    sl_auto_free(&t);
    return rc;
}

// ---- the table ----

// Finds and reads the table, or measures one, once.
static int open_table(cli_auto *a, const cli_attention_options *o, const char *device, const sl_config *c, sl_error *err) {
    const sl_attn_geom geom = {
        .n_layers = c->n_layers, .n_heads = c->n_heads, .n_kv_heads = c->n_kv_heads, .head_dim = c->head_dim};
    char name[256];
    const char *given = given_table(a, o);
    if (a->is_open) return 0;
    int rc = sl_device_name(device, name, sizeof name, err);
    if (!rc && given) snprintf(a->path, sizeof a->path, "%s", given);
    if (!rc && !given) rc = sl_auto_path(name, &geom, a->path, sizeof a->path, err);
    if (!rc) rc = sl_auto_read(a->path, !given, &a->table, err);
    a->has_table = !rc && a->table.n_specs > 0;
    if (a->has_table) rc = sl_auto_check(&a->table, a->path, name, &geom, err);
    if (!rc) rc = measure_if_needed(a, o, device, &geom, a->path, err);
    if (rc)
        cli_auto_close(a);
    else
        a->is_open = 1;
    return rc;
}

// ---- the choices ----

static void report_missing(cli_auto *a) {
    char line[4224];
    snprintf(line, sizeof line, "attn auto: dense: %s does not exist; `sleigh bench attn --calibrate -m DIR` creates it",
             a->path);
    report_line(a, line);
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

int cli_auto_choose_plan(cli_auto *a, const cli_attention_options *o, const char *device, const sl_config *config,
                         const sl_attn_plan *plan, int n_seqs, int n_kv, int quiet, sl_attn_plan *out, sl_error *err) {
    *out = (sl_attn_plan){0};
    int wanted = sl_auto_in_plan(plan), rc = wanted ? open_table(a, o, device, config, err) : 0;
    if (rc) return rc;
    if (wanted && !a->has_table) report_missing(a);
    if (wanted && a->has_table && !quiet) report_choices(a, plan, n_seqs, n_kv);
    return sl_auto_choose_plan(a->has_table ? &a->table : NULL, plan, n_seqs, n_kv, out, err);
}

// What the table says about prefill, or why auto is dense.
static void report_prefill(cli_auto *a) {
    static const char calibrate[] = "`sleigh bench attn --calibrate -m DIR`";
    char text[4096 + 256], line[4096 + 320];
    if (!a->is_open)
        snprintf(text, sizeof text, "dense: no --attn-profile FILE names a method; `sleigh tune` makes such a file");
    else if (!a->has_table)
        snprintf(text, sizeof text,
                 "dense: %s does not exist; %s creates it, and `sleigh tune` finds methods for --attn-profile", a->path,
                 calibrate);
    else if (!a->table.prefill.attn.method)
        snprintf(text, sizeof text, "dense: %s has no times of prefill; %s measures them", a->path, calibrate);
    else
        sl_auto_prefill_format(&a->table, text, sizeof text);
    snprintf(line, sizeof line, "attn-prefill auto: %s", text);
    report_line(a, line);
}

int cli_auto_choose_prefill(cli_auto *a, const cli_attention_options *o, const char *device, const sl_config *config,
                            const cli_attn_profile *profile, int n_tokens, sl_attn_spec *out, sl_error *err) {
    *out = *cli_attn_profile_choose(profile, n_tokens);
    if (profile->n_ranges) return 0;
    int rc = o->has_plan ? open_table(a, o, device, config, err) : 0;
    if (rc) return rc;
    if (a->has_table && n_tokens >= sl_auto_prefill_crossover(&a->table.prefill)) *out = a->table.prefill.attn;
    report_prefill(a);
    return 0;
}

void cli_auto_close(cli_auto *a) {
    sl_auto_free(&a->table);
    a->is_open = a->has_table = 0;
}
