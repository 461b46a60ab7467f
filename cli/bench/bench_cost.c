// cli/bench/bench_cost.c - see bench_cost.h.
#include "cli/bench/bench_cost.h"
#include "kv/kv.h"

#include <stdio.h>

int cli_bench_depth(const cli_bench_options *o, int depth, int n, int j) {
    int apart = (int)((long long)depth * (n - j) / n);
    return !o->ragged || depth == 0 ? depth : apart > 1 ? (apart - 1) | 1 : 1;
}

double cli_bench_step_bytes(const sl_model *model, sl_kv_formats formats, double n_rows) {
    const sl_config *c = sl_model_config(model);
    return (double)sl_model_decode_bytes(model) +
           n_rows * (double)sl_kv_bytes_per_token(c->n_layers, c->n_kv_heads, c->head_dim, formats);
}

// Adds the prefill of session j to its depth. Without --ragged, sessions only grow.
static void add_fill(const sl_model *model, const cli_bench_options *o, int j, int want, int *held, cli_bench_cost *out) {
    int from = want < *held ? 0 : *held;
    double flops = want > from ? sl_model_prefill_flops(model, from, want - from) : 0;
    *held = want;
    if (j > 0 && o->copy) return;
    out->prefill += flops;
    if (j > 0) out->fill += flops;
}

// Adds one pass of a test of n sequences at their depths.
static void add_pass(const sl_model *model, sl_kv_formats formats, const cli_bench_test *t, int n, const int *depths,
                     cli_bench_cost *out) {
    double rows = 0;
    for (int j = 0; j < n; j++) {
        rows += depths[j] || t->n_prompt ? depths[j] + t->n_prompt : 1; // a step needs a token before it
        if (t->n_prompt)
            out->prefill += sl_model_prefill_flops(model, depths[j], t->n_prompt);
        else
            out->steps += cli_bench_step_bytes(model, formats, depths[j]); // the last token is repeated, for its logits
    }
    for (int i = 0; t->n_gen && i <= t->n_gen; i++) out->steps += cli_bench_step_bytes(model, formats, rows + (double)n * i);
}

void cli_bench_cost_of(const sl_model *model, sl_kv_formats formats, const cli_bench_options *o, const cli_bench_plan *plan,
                       int n_methods, int n_extra, int *held, cli_bench_cost *out) {
    cli_ints depths = plan->depths;
    *out = (cli_bench_cost){0};
    cli_sort_ints(&depths);
    for (int d = 0; d < depths.n; d++)
        for (int i = 0; i < plan->batches.n; i++) {
            int n = plan->batches.at[i];
            for (int j = 0; j < n; j++) add_fill(model, o, j, cli_bench_depth(o, depths.at[d], n, j), &held[j], out);
            for (int t = 0; t < plan->n_tests; t++) {
                const cli_bench_test *test = &plan->tests[t];
                cli_bench_cost pass = {0};
                double passes = (plan->repetitions + (test->n_prompt ? 0 : n_extra)) * (test->n_gen ? n_methods : 1.0);
                add_pass(model, formats, test, n, held, &pass);
                out->prefill += passes * pass.prefill, out->steps += passes * pass.steps;
            }
        }
}

void cli_bench_announce(double prefill_ms, double steps_ms, double copy_ms, int on_gpu, char *buf, size_t size) {
    enum { LONG_MS = 3 * 60 * 1000 };
    char all[32], prefill[32], steps[32];
    double ms = prefill_ms + steps_ms;
    buf[0] = 0;
    if (!(ms >= LONG_MS)) return;
    snprintf(buf, size,
             "time: this run takes about %s on this %s: %s for prefills, %s for decode steps; "
             "a lower --depth, --batch or -r makes it shorter%s",
             cli_duration(ms, all), on_gpu ? "GPU" : "CPU", cli_duration(prefill_ms, prefill), cli_duration(steps_ms, steps),
             copy_ms > ms / 10 ? ", and so does --copy, which prefills one sequence for the whole batch" : "");
}
