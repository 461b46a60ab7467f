// engine/cli/bench/attn_timing.h - times attention kernels alone, through the function pointers that the engine calls.
//
// A time is the median of replays of a captured graph. Before each one 512 MB are written, so that nothing of K and V is in
// the L2 cache; that leaves it full of changed lines, whose writing back (about 40 MB) is part of the time. Pages are always
// shuffled, K and V are normal numbers, queries too, of a deviation that makes attention flat (1) or peaked (4)
// and with channels of different size (query_spread).
#ifndef SLEIGH_ATTN_TIMING_H
#define SLEIGH_ATTN_TIMING_H

#include "attention/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sl_bench_attn sl_bench_attn; // device memory for one geometry

typedef struct sl_bench_attn_limits {
    int n_pages;  // that one decode or prefill needs
    int n_seqs;   // of a decode
    int n_tokens; // of a prefill
    double query_deviation, query_spread;
} sl_bench_attn_limits;

typedef struct sl_bench_attn_device {
    char name[256];
    double read_gb_s; // of a kernel that only reads
    double empty_us;  // of a graph whose kernel does nothing: part of every time
} sl_bench_attn_device;

// SL_ERR_DEVICE without a GPU, SL_ERR_MEMORY when it is too small.
int sl_bench_attn_open(const sl_attn_geom *geom, const sl_bench_attn_limits *limits, sl_bench_attn **out, sl_error *err);
void sl_bench_attn_close(sl_bench_attn *bench);
int sl_bench_attn_device_of(sl_bench_attn *bench, sl_bench_attn_device *out, sl_error *err);

// Of GPU number `index`, for a bench of whole models: the rate at which a kernel that only reads runs; its name on the bus.
int sl_bench_read_rate(int index, double *gb_s, sl_error *err);
int sl_bench_pci_id(int index, char *buf, int size, sl_error *err);

typedef struct sl_bench_attn_time { // over the repetitions, after ten that are not timed
    double us;                      // the median
    double mean_us;
} sl_bench_attn_time;

typedef struct sl_bench_attn_result {
    sl_bench_attn_time time;
    double bytes;    // that the step read, by the method's own account
    double features; // share of key features that it read, likewise
} sl_bench_attn_result;

// One new token of each of n_seqs sequences of n_kv[i] rows. spec's method must offer decode on CUDA.
int sl_bench_attn_decode(sl_bench_attn *bench, const sl_attn_spec *spec, int n_seqs, const int *n_kv, int repetitions,
                         sl_bench_attn_result *out, sl_error *err);
// n_tokens of one sequence at position `first` on. spec's method must offer prefill on CUDA.
int sl_bench_attn_prefill(sl_bench_attn *bench, const sl_attn_spec *spec, int n_tokens, int first, int repetitions,
                          sl_bench_attn_time *out, sl_error *err);

#ifdef __cplusplus
}
#endif

#endif
