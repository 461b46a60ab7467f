// cli/bench/attn_timing.h - times only attention kernels, through the function pointers that the engine calls.
//
// A time is the median over replays of a captured graph. Before each replay 512 MB are written, so that K and V are not in the
// L2 cache. The cache is then full of modified lines, so the time includes their write-back (about 40 MB). Pages are in random
// order. K, V and queries are normal numbers, or those of a model (attn_states.h). The deviation of normal queries makes
// attention flat (1) or peaked (4), and query_spread varies the scales of their channels.
//
// A replay of decode is a step after the step of the replay before: one position further, with other queries, and with the
// state that the method kept. A series of steps begins with an empty state, and its first steps are not timed. With a model's
// states the series has the model's steps, otherwise SL_BENCH_STEPS.
#ifndef SLEIGH_ATTN_TIMING_H
#define SLEIGH_ATTN_TIMING_H

#include "cli/bench/attn_states.h"

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SL_BENCH_STEPS = 30, SL_BENCH_UNTIMED = 10 };

typedef struct sl_bench_attn sl_bench_attn; // device memory for one geometry

static inline int sl_bench_gpu_index(const char *device) { // of a GPU that --device names
    int index;
    return sscanf(device, "cuda:%d", &index) == 1 ? index : 0;
}

typedef struct sl_bench_attn_limits {
    int n_pages;  // pages of the largest decode or prefill
    int n_seqs;   // sequences of the largest decode
    int n_tokens; // tokens of the largest prefill
    double query_deviation, query_spread;
    int device;                    // index of the GPU
    const cli_attn_states *states; // NULL: normal numbers. Otherwise every sequence has its rows
    sl_format format;              // of the cache: SL_BF16, SL_FP8 or SL_INT8
} sl_bench_attn_limits;

typedef struct sl_bench_attn_device {
    char name[256];
    double read_gb_s; // rate of a read-only kernel
    double empty_us;  // time of a graph with an empty kernel; a part of every time
} sl_bench_attn_device;

// SL_ERR_DEVICE: there is no GPU. SL_ERR_MEMORY: its memory is too small.
int sl_bench_attn_open(const sl_attn_geom *geom, const sl_bench_attn_limits *limits, sl_bench_attn **out, sl_error *err);
void sl_bench_attn_close(sl_bench_attn *bench);
int sl_bench_attn_device_of(sl_bench_attn *bench, sl_bench_attn_device *out, sl_error *err);

// Rate of a read-only kernel, and PCI id, of GPU number `index`; for the bench of whole models.
int sl_bench_read_rate(int index, double *gb_s, sl_error *err);
int sl_bench_pci_id(int index, char *buf, int size, sl_error *err);

typedef struct sl_bench_attn_time { // over the repetitions; prefill: after ten replays that are not timed
    double us;                      // median
    double mean_us;
} sl_bench_attn_time;

typedef struct sl_bench_attn_result {
    sl_bench_attn_time time;
    double bytes;    // bytes that the step read, as the method counts them
    double features; // share of key features that the step read, as the method counts them
} sl_bench_attn_result;

// Times one new token for each of n_seqs sequences, up to n_kv[i] rows at the end of a series. The method must offer decode on
// CUDA.
int sl_bench_attn_decode(sl_bench_attn *bench, const sl_attn_spec *spec, int n_seqs, const int *n_kv, int repetitions,
                         sl_bench_attn_result *out, sl_error *err);
// Times the prefill of n_tokens of one sequence, from position `first`. With a cache of fp8 or int8 this includes the copy of
// its rows as bf16. The method must offer prefill on CUDA.
int sl_bench_attn_prefill(sl_bench_attn *bench, const sl_attn_spec *spec, int n_tokens, int first, int repetitions,
                          sl_bench_attn_time *out, sl_error *err);
// Times the prefill of the first n_tokens of a sequence with a random mask (random_mask.h). Writes its density to *reached.
int sl_bench_attn_masked(sl_bench_attn *bench, int n_tokens, double density, int repetitions, double *reached,
                         sl_bench_attn_time *out, sl_error *err);
// Times only the mask of the first n_tokens of a sequence. The method must offer a mask on CUDA.
int sl_bench_attn_mask(sl_bench_attn *bench, const sl_attn_spec *spec, int n_tokens, int repetitions, sl_bench_attn_time *out,
                       sl_error *err);

#ifdef __cplusplus
}
#endif

#endif
