// server/serve/serve_metrics.h - counters and histograms in the text format of Prometheus: vLLM's names, and Sleigh's own.
#ifndef SLEIGH_SERVE_METRICS_H
#define SLEIGH_SERVE_METRICS_H

#include "base/arrays.h"
#include "engine/schedule/scheduler.h"

enum { SERVE_BUCKETS = 24 };

typedef enum serve_histogram {
    SERVE_TTFT,       // seconds from the request to its first token
    SERVE_TOKEN_GAP,  // between two tokens
    SERVE_TOKEN_MEAN, // mean of these of an answer
    SERVE_E2E,
    SERVE_QUEUE,
    SERVE_PREFILL,
    SERVE_DECODE,
    SERVE_PROMPT_TOKENS,
    SERVE_ANSWER_TOKENS,
    SERVE_STEP_TOKENS, // a step's tokens: prefilled, fed and generated
    SERVE_N_HISTOGRAMS
} serve_histogram;

typedef enum serve_reason { SERVE_STOP, SERVE_LENGTH, SERVE_ABORT, SERVE_ERROR, SERVE_N_REASONS } serve_reason;

typedef struct serve_metrics { // initialise with zeros
    struct serve_histogram_data {
        uint64_t counts[SERVE_BUCKETS + 1]; // the count of each bucket; the last one has no upper bound
        double sum;
    } histograms[SERVE_N_HISTOGRAMS];
    uint64_t reasons[SERVE_N_REASONS];             // answers
    uint64_t rows, dense_rows, bytes, dense_bytes; // sums over the decode steps of ended answers
    uint64_t heads, exact_heads;                   // of these steps; those that attended exactly because of few rows
    uint64_t layer_steps, certified;               // stated errors of these answers
    double stated_error, stated_error_max;         // sum; largest
    sl_draft_counts drafts;                        // of these answers
    int n_draft;                                   // most drafts of a step; 0: the engine takes none
    sl_scheduler_stats scheduler;
    int n_held; // pages of the KV cache that running answers hold
} serve_metrics;

void serve_observe(serve_metrics *m, serve_histogram h, double value);

typedef struct serve_gauges { // the state at one moment
    const char *model;
    int n_waiting; // requests
    long connections, gone, timeouts, refused;
} serve_gauges;

int serve_metrics_print(const serve_metrics *m, const serve_gauges *g, sl_text *out, sl_error *err);

#endif
