// kv/kv_place.h - where the rows of K and V of an engine on a GPU lie, and what fits: all on the GPU, or all rows in
// pinned host memory and a part of them on the GPU too.
//
// With the rows on the host, the host keeps K and V of a row side by side, so that one fetch brings both. The GPU keeps:
//
//   fixed      weights, scratch memory, workspace
//   proposing  the page extras from which a method chooses rows (quantised keys, bounds, lists), of all pages
//   newest     the frames: the newest page of each sequence, whose rows every step reads, and a few spare ones
//   streamed   the rows of one sequence in two layers: a prefill uses one of them while it streams the other one from the host
//   hot        a cache of rows that were read lately: at most hot_share of all rows, and less if no more fit
//
// The functions only compute. They allocate nothing, so an engine can refuse a context before it allocates.
#ifndef SLEIGH_KV_PLACE_H
#define SLEIGH_KV_PLACE_H

#include "base/error.h"

#include <stddef.h>

typedef enum { SL_KV_AUTO, SL_KV_GPU, SL_KV_OFFLOADED } sl_kv_place; // auto: the GPU if the context fits there, else the host

typedef struct sl_kv_demand {
    size_t row;       // bytes of K and V of a row, over all layers and KV heads (sl_kv_bytes_per_token)
    size_t proposing; // bytes of page extras of a page, over all layers and KV heads
    size_t fixed;     // bytes on the GPU beside the cache
    int n_ctx, n_sequences;
    long long n_pages; // of the pool; 0: enough for n_sequences sequences of n_ctx tokens
    int spare_frames;  // frames beside one for each sequence
    size_t streamed;   // bytes of a row in the memory that a prefill streams to
    double hot_share;  // 0 to 1
} sl_kv_demand;

typedef struct sl_kv_room { // bytes
    size_t gpu, host;       // free; host: sl_host_memory_allowed, or what the user allows
    size_t gpu_most;        // most bytes of the cache on the GPU (all but fixed); 0: no limit
} sl_kv_room;

typedef struct sl_kv_layout {
    sl_kv_place place;                              // GPU or HOST
    size_t fixed, proposing, newest, streamed, hot; // bytes on the GPU; place GPU: `newest` holds all rows
    size_t host;                                    // bytes of pinned host memory
    long long hot_rows;                             // of all sequences, each in every layer and KV head
    int n_frames;                                   // pages of `newest`
} sl_kv_layout;

// Fills *out. SL_ERR_MEMORY: the context does not fit at this place. The message states the missing bytes, and the largest
// context and the largest number of sequences that would fit, on the GPU and on the host.
int sl_kv_place_rows(const sl_kv_demand *d, const sl_kv_room *room, sl_kv_place place, sl_kv_layout *out, sl_error *err);

// The largest n_ctx, a multiple of SL_PAGE, with which n_sequences sequences fit at this place; 0: none.
long long sl_kv_largest_ctx(const sl_kv_demand *d, const sl_kv_room *room, sl_kv_place place);

#endif
