// kv/kv_offload.h - the rows of a KV pool in host memory, for a device whose memory is too small for them.
//
// The host keeps every page in the layout [n_kv_heads][256][2][head_dim]: K and V of a row side by side, so that one fetch over
// the bus brings both. The device has few pages in the ordinary layout, the frames. The rows of a page lie either in a frame or
// on the host, never in both:
//
//   - sl_kv_hold gives a frame to the page of a sequence's next row, where a step appends K and V. It writes the sequence's
//     earlier pages out.
//   - A prefill streams a layer of its sequence to the staged pages, appends its rows there, and writes the new pages out
//     (sl_kv_bring, sl_kv_write_rows). After a prefill no page of the sequence has a frame.
//   - If no frame is free, the frame that was held least recently is written out.
//
// So kernels find the rows of full pages on the host, by the page's id, and the rows of the newest page in k and v of the pool,
// by the frame. A device's page table has the frame of the newest page in the place of the id (sl_kv_entry).
//
// Shared pages are full pages, or pages of which a fork shares no row that it will write (kv.h). So a page in a frame is the
// newest page of one sequence, or a full page that is written out before the next step of a sequence that holds it.
#ifndef SLEIGH_KV_OFFLOAD_H
#define SLEIGH_KV_OFFLOAD_H

#include "kv/kv.h"

// A cache of hot rows: copies of rows in the device's memory, of one layer. attention/cuda/hot_rows.cuh looks rows up and takes
// rows in. n_sets 0: no cache.
typedef struct sl_kv_hot_rows {
    int n_sets;               // of a KV head
    int imposed;              // for benches: of 65,536 rows, those that count as found in the cache; -1: those that are found
    uint64_t *tags;           // [n_kv_heads][n_sets][8] which rows; 0: none
    uint32_t *order;          // [n_kv_heads][n_sets] attention/extras/hot_order.h
    bf16 *rows;               // [n_kv_heads][n_sets][8][2][head_dim]
    const uint32_t *versions; // [n_pages] of the rows of each page on the host
} sl_kv_hot_rows;

typedef struct sl_kv_offload {
    bf16 *rows;        // [n_layers][n_pages][n_kv_heads][256][2][head_dim], page-locked memory of the host
    size_t n_bytes;    // of rows
    int n_frames;      // pages of pool->k and v
    int32_t *frame_of; // [n_pages] the frame of a page; -1: its rows are on the host
    int32_t *page_of;  // [n_frames] the page in a frame; -1: none
    uint64_t *held;    // [n_frames] the time of the last hold
    uint64_t time;     // counts holds
    // Memory of the device that layers of one sequence are streamed to: [2][n_staged][n_kv_heads][256][head_dim]. Layer i has
    // part i % 2, so that a layer can be streamed while the one before it is in use.
    int n_staged;
    bf16 *staged_k, *staged_v;
    int32_t *in_order;  // [n_staged] 0, 1, 2, ..: the page table of the staged pages, in the device's memory
    uint32_t *versions; // [n_pages] in the device's memory: the pool's version (its low 32 bits) when the page was written to
                        // the host
    sl_kv_hot_rows hot; // of layer 0. A later layer's arrays follow those of the layer before
} sl_kv_offload;

enum { SL_KV_HOT_WAYS = 8 }; // rows of a set of the cache of hot rows
enum {
    SL_KV_OFFLOADED_ROWS = 1 << 30
};                               // a pool has fewer rows of all KV heads: bit 30 is a mark (attention/cuda/offloaded_rows.cuh)
enum { SL_KV_SPARE_FRAMES = 2 }; // beside one for each sequence of a batch: source and target of a copied page

// sl_kv_hold, sl_kv_write_out, sl_kv_entry, sl_kv_offload_forget, sl_kv_publish and sl_kv_hot_layer may be called for a pool
// that is not offloaded; hold, write_out, forget and publish then do nothing. The other functions need an offloaded pool.

// Gives the page of row n_tokens of the sequence a frame, and writes its earlier pages out. Call it after sl_kv_reserve. A
// batch of up to n_frames - SL_KV_SPARE_FRAMES sequences keeps all its frames.
void sl_kv_hold(sl_kv_pool *pool, const sl_kv_seq *seq);
void sl_kv_write_out(sl_kv_pool *pool, const sl_kv_seq *seq); // all pages of the sequence
// Entry i of the page table that kernels read in a step.
int32_t sl_kv_entry(const sl_kv_pool *pool, const sl_kv_seq *seq, int i);
void sl_kv_offload_forget(sl_kv_pool *pool, int32_t page); // the page is free: its frame is free
// Copies the rows of a page. `to` gets a frame.
void sl_kv_offload_copy(sl_kv_pool *pool, int32_t to, int32_t from);

// K and V of the staged pages of a layer.
sl_kv_rows sl_kv_staged(const sl_kv_pool *pool, int layer);
// Copies the rows of pages[0 .. n) in one layer to the staged pages at, at + 1, .. Their rows are on the host.
void sl_kv_bring(const sl_kv_pool *pool, int layer, const int32_t *pages, int n, int at);
// The same from staged page 0 on, beside other operations: between aside_begin and aside_end of the backend.
void sl_kv_bring_aside(const sl_kv_pool *pool, int layer, const int32_t *pages, int n);
// The other direction.
void sl_kv_write_rows(sl_kv_pool *pool, int layer, const int32_t *pages, int n, int at);
// Call after the host has written rows of the sequence's pages. (The functions above do it themselves.)
void sl_kv_publish(sl_kv_pool *pool, const sl_kv_seq *seq);
sl_kv_hot_rows sl_kv_hot_layer(const sl_kv_pool *pool, int layer);
// Row `row` of a page, whose rows are on the host: K, then V. Valid for the host after finish() of the backend.
bf16 *sl_kv_offloaded_row(const sl_kv_pool *pool, int layer, int32_t page, int h, int row);

#endif
