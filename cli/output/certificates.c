// cli/output/certificates.c - see certificates.h.
#include "cli/output/certificates.h"

#include <math.h>

typedef unsigned long long count;

// ---- lines ----

// The first layer that states its error; NULL: none. *same: every such layer states the same error. *recomputes: every such
// layer that misses its error is computed again with dense attention.
static const sl_attn_spec *stating(const sl_attn_plan *plan, int *same, int *recomputes) {
    const sl_attn_spec *first = NULL;
    *same = *recomputes = 1;
    for (int i = 0; i < plan->n_layers; i++) {
        const sl_attn_spec *s = &plan->layer[i];
        if (!sl_attn_certifies_layer(s)) continue;
        if (!first) first = s;
        *same &= sl_attn_get(s, "epsilon") == sl_attn_get(first, "epsilon") &&
                 sl_attn_get(s, "delta") == sl_attn_get(first, "delta");
        *recomputes &= sl_attn_has(s, "on-miss") && sl_attn_chooses(s, "on-miss", "dense");
    }
    return first;
}

static void print_layers(const sl_attn_stats *a, const sl_attn_plan *plan, FILE *out) {
    int same, recomputes;
    const sl_attn_spec *s = stating(plan, &same, &recomputes);
    fprintf(out, "stated error: ");
    if (s && same) fprintf(out, "%g at delta %g%%, ", sl_attn_get(s, "epsilon"), 100 * sl_attn_get(s, "delta"));
    fprintf(out, "%llu of %llu layer-steps certified (%.2f%%)", (count)a->certified, (count)a->stated,
            100.0 * (double)a->certified / (double)a->stated);
    if (a->stated > a->unbounded)
        fprintf(out, ", mean %.3g, largest %.3g", sl_attn_stats_stated_mean(a), sl_attn_stats_stated_most(a));
    if (a->unbounded) fprintf(out, ", %llu unbounded", (count)a->unbounded);
    if (s && recomputes) fprintf(out, ", %llu computed again with dense attention", (count)(a->stated - a->certified));
    fprintf(out, "\n");
}

void cli_certificates_print(const sl_attn_stats *a, const sl_attn_plan *plan, FILE *out) {
    count dense = a->fallbacks, heads = a->steps;
    if (a->stated) print_layers(a, plan, out);
    if (a->tries)
        fprintf(out, "certified: %.2f draws a head, %llu of %llu heads used dense attention\n",
                (double)a->tries / (double)heads, dense, heads);
    else if (dense)
        fprintf(out,
                "fallbacks: %llu of %llu heads used dense attention: %stheir scores are beyond the range of stored masses\n",
                dense, heads, a->stated ? "their layer's stated error needed it, or " : "");
    if (a->exact_heads)
        fprintf(out, "exact: %llu of %llu heads attended to every row, because their sequences have few rows (--exact-below)\n",
                (count)a->exact_heads, heads);
    if (a->heavy_tails)
        fprintf(out,
                "heavy tails: kurtosis up to %.3g in the base samples of %llu of %llu heads; bound=clt is unreliable for these "
                "heads\n",
                a->kurtosis, (count)a->heavy_tails, heads);
}

// ---- fields ----

static const char STEPS[] = "layer_steps", CERTIFIED[] = "certified_share", MEAN[] = "stated_error",
                  MOST[] = "stated_error_max", UNBOUNDED[] = "unbounded_share";

void cli_certificates_put(json_t *row, const sl_attn_stats *a) {
    double n = a->stated ? (double)a->stated : NAN;
    json_object_set_new(row, STEPS, json_integer((json_int_t)a->stated));
    json_object_set_new(row, CERTIFIED, cli_number((double)a->certified / n));
    json_object_set_new(row, MEAN, cli_number(sl_attn_stats_stated_mean(a)));
    json_object_set_new(row, MOST, cli_number(sl_attn_stats_stated_most(a)));
    json_object_set_new(row, UNBOUNDED, cli_number((double)a->unbounded / n));
}

// The number of `key`; 0: it is missing or null.
static double get(const json_t *row, const char *key) {
    return json_number_value(json_object_get(row, key));
}

int cli_certificates_get(const json_t *row, sl_attn_stats *out) {
    double n = get(row, STEPS), certified = get(row, CERTIFIED), mean = get(row, MEAN), most = get(row, MOST),
           unbounded = get(row, UNBOUNDED);
    *out = (sl_attn_stats){0};
    if (!(n >= 0 && n < 0x1p53 && certified >= 0 && certified <= 1 && unbounded >= 0 && unbounded <= 1)) return 0;
    if (!(mean >= 0 && mean * n < 0x1p63 / SL_STATED_UNIT && most >= 0 && most <= SL_STATED_MOST)) return 0;
    out->stated = (uint64_t)n;
    out->certified = (uint64_t)llround(certified * n);
    out->unbounded = (uint64_t)llround(unbounded * n);
    out->stated_units = (uint64_t)llround(mean * (double)(out->stated - out->unbounded) * SL_STATED_UNIT);
    out->stated_most = most;
    return 1;
}

int cli_certificates_columns(const json_t *rows, cli_column *columns, int n) {
    size_t i;
    json_t *row;
    int some = 0;
    json_array_foreach(rows, i, row) some |= get(row, STEPS) > 0;
    if (!some) return n;
    columns[n] = (cli_column){.title = "layer-steps certified %", .key = CERTIFIED, .digits = 1, .scale = 100};
    columns[n + 1] = (cli_column){.title = "stated error", .key = MEAN, .digits = 3};
    return n + CLI_CERTIFICATE_COLUMNS;
}
