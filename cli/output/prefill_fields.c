// cli/output/prefill_fields.c - see prefill_fields.h.
#include "cli/output/prefill_fields.h"

#include <math.h>

static double density(const sl_prefill_report *r) {
    return sl_prefill_density(r);
}
static double kept(const sl_prefill_report *r) {
    return sl_prefill_share(r->kept);
}
static double cra(const sl_prefill_report *r) {
    return sl_prefill_share(r->measured);
}
static double error(const sl_prefill_report *r) {
    return sl_prefill_error(r);
}
static double error_max(const sl_prefill_report *r) {
    return r->n_errors ? r->error_max : NAN;
}

enum { N_FIELDS = 5, PREFIX = sizeof "prefill_" - 1 };
static const struct {
    const char *key;
    double (*value)(const sl_prefill_report *r);
} fields[N_FIELDS] = {{"prefill_density", density},
                      {"prefill_kept", kept},
                      {"prefill_cra", cra},
                      {"prefill_error", error},
                      {"prefill_error_max", error_max}};

void cli_prefill_put(json_t *row, const sl_prefill_report *r) {
    for (int f = 0; f < N_FIELDS; f++) json_object_set_new(row, fields[f].key, cli_number(fields[f].value(r)));
}

json_t *cli_prefill_heads(const sl_prefill_report *heads, int n_layers, int n_heads) {
    uint64_t causal = 0;
    for (int i = 0; heads && i < n_layers * n_heads; i++) causal += heads[i].causal;
    if (!causal) return json_null();
    json_t *out = json_object();
    for (int f = 0; f < N_FIELDS; f++) {
        json_t *layers = json_array();
        for (int layer = 0; layer < n_layers; layer++) {
            json_t *row = json_array();
            for (int h = 0; h < n_heads; h++)
                json_array_append_new(row, cli_number(fields[f].value(&heads[layer * n_heads + h])));
            json_array_append_new(layers, row);
        }
        json_object_set_new(out, fields[f].key + PREFIX, layers);
    }
    return out;
}

void cli_prefill_print(const sl_prefill_report *r, FILE *out) {
    if (!r->causal) return;
    fprintf(out, "prefill_blocks: %llu of %llu, %.2f%%\n", (unsigned long long)r->visited, (unsigned long long)r->causal,
            100 * density(r));
    if (r->kept >= 0) fprintf(out, "prefill_kept: %.2f%% of the mass of a sampled row, at least\n", 100 * kept(r));
    if (r->measured >= 0) fprintf(out, "prefill_cra: %.2f%% of the mass of a checked row, at least\n", 100 * cra(r));
    if (r->n_errors)
        fprintf(out, "prefill_error: %.4f mean, %.4f at most, of %llu checked outputs\n", error(r), r->error_max,
                (unsigned long long)r->n_errors);
}

int cli_prefill_columns(const json_t *rows, cli_column *columns, int n) {
    static const cli_column all[CLI_PREFILL_COLUMNS] = {
        {.title = "TTFT ms", .key = "ttft_ms", .digits = 1},
        {.title = "density %", .key = "prefill_density", .digits = 1, .scale = 100},
        {.title = "estimated CRA %", .key = "prefill_kept", .digits = 1, .scale = 100},
        {.title = "CRA %", .key = "prefill_cra", .digits = 1, .scale = 100},
        {.title = "prefill error", .key = "prefill_error", .digits = 4},
    };
    for (int k = 0; k < CLI_PREFILL_COLUMNS; k++) {
        size_t i;
        json_t *row;
        int some = 0;
        json_array_foreach(rows, i, row) some |= json_is_number(json_object_get(row, all[k].key));
        if (some) columns[n++] = all[k];
    }
    return n;
}
