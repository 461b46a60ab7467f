// cli/bench/calibrate_gpu.c - see calibrate_gpu.h.
#include "cli/bench/calibrate_gpu.h"

#ifdef SLEIGH_CUDA
#include "attention/attention_cuda.h"
#include "cli/bench/attn_timing.h"

#include <math.h>
#include <stdlib.h>

struct cli_gpu_clock {
    sl_bench_attn *bench;
    int repetitions;
};

int cli_gpu_clock_open(const char *device, const sl_attn_geom *geom, const cli_gpu_sizes *sizes, cli_gpu_clock **out,
                       sl_error *err) {
    sl_bench_attn_limits limits = {.n_pages = sizes->n_pages,
                                   .n_seqs = sizes->n_seqs,
                                   .n_tokens = sizes->n_tokens,
                                   .query_deviation = sizes->query_deviation,
                                   .device = sl_bench_gpu_index(device),
                                   .states = sizes->states};
    cli_gpu_clock *c = calloc(1, sizeof *c);
    *out = NULL;
    if (!c) return sl_fail(err, SL_ERR_MEMORY, "calibrate: out of memory");
    c->repetitions = sizes->repetitions;
    int rc = sl_bench_attn_open(geom, &limits, &c->bench, err);
    if (rc)
        cli_gpu_clock_close(c);
    else
        *out = c;
    return rc;
}

void cli_gpu_clock_close(cli_gpu_clock *c) {
    if (c) sl_bench_attn_close(c->bench);
    free(c);
}

int cli_gpu_clock_time(void *ctx, const sl_attn_spec *spec, int n_seqs, int n_kv, double *us, sl_error *err) {
    cli_gpu_clock *c = ctx;
    int lengths[n_seqs], most = spec->plus ? spec->plus->cuda->max_rows : spec->method->cuda->max_rows;
    sl_bench_attn_result result = {0};
    *us = NAN;
    if (most && n_kv > most) return 0;
    for (int i = 0; i < n_seqs; i++) lengths[i] = n_kv;
    int rc = sl_bench_attn_decode(c->bench, spec, n_seqs, lengths, c->repetitions, &result, err);
    *us = result.time.us;
    return rc;
}

int cli_gpu_clock_prefill(void *ctx, const sl_attn_spec *spec, double density, sl_auto_length *l, sl_error *err) {
    const sl_attn_spec dense = {.method = &sl_method_dense};
    cli_gpu_clock *c = ctx;
    sl_bench_attn_time exact = {0}, mask = {0}, attention = {0};
    double reached;
    int rc = sl_bench_attn_prefill(c->bench, &dense, l->n_tokens, 0, c->repetitions, &exact, err);
    if (!rc) rc = sl_bench_attn_mask(c->bench, spec, l->n_tokens, c->repetitions, &mask, err);
    if (!rc) rc = sl_bench_attn_masked(c->bench, l->n_tokens, density, c->repetitions, &reached, &attention, err);
    l->dense_us = exact.us, l->mask_us = mask.us, l->attention_us = attention.us;
    return rc;
}
#else
int cli_gpu_clock_open(const char *device, const sl_attn_geom *geom, const cli_gpu_sizes *sizes, cli_gpu_clock **out,
                       sl_error *err) {
    (void)geom, (void)sizes;
    *out = NULL;
    return sl_fail(err, SL_ERR_UNSUPPORTED, "--device %.40s: this build has no CUDA", device);
}

int cli_gpu_clock_time(void *ctx, const sl_attn_spec *spec, int n_seqs, int n_kv, double *us, sl_error *err) {
    (void)ctx, (void)spec, (void)n_seqs, (void)n_kv, (void)us;
    return sl_fail(err, SL_ERR_UNSUPPORTED, "this build has no CUDA");
}

int cli_gpu_clock_prefill(void *ctx, const sl_attn_spec *spec, double density, sl_auto_length *l, sl_error *err) {
    (void)ctx, (void)spec, (void)density, (void)l;
    return sl_fail(err, SL_ERR_UNSUPPORTED, "this build has no CUDA");
}

void cli_gpu_clock_close(cli_gpu_clock *c) {
    (void)c;
}
#endif
