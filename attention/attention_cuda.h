// attention/attention_cuda.h - the contract of an attention method on CUDA: the counterpart of sl_attn_ops for device memory.
//
// All pointers point to device memory. Kernels read everything that changes from step to step (lengths, page tables, positions)
// from device memory, so one captured graph of a step serves growing contexts. A launcher may depend on the number of sequences
// and on max_kv, but never on a length. Launchers return nothing. A failed launch is CUDA's last error
// (backend/cuda/device.cuh).
#ifndef SLEIGH_ATTENTION_CUDA_H
#define SLEIGH_ATTENTION_CUDA_H

#include "attention/attention.h"
#include "attention/extras/page_extras.h"
#include "backend/row.h"
#include "kv/kv_offload.h"

#include <cuda_runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

// The most rows of one sequence in a step (drafts). They are neighbours in sl_attn_cuda_decode_args.rows, with one page table
// and consecutive positions. The kernel before attention writes K and V of all of them. So a kernel that starts before that
// kernel has ended reads early only rows that are followed by at least SL_CUDA_RUN_MOST rows of the sequence.
enum { SL_CUDA_RUN_MOST = 16 };

typedef struct sl_attn_cuda_decode_args {
    const sl_attn_geom *geom;
    const sl_attn_spec *spec;
    int layer;
    int n_seqs;
    int max_kv;         // no sequence is longer, in this step and in later replays of the graph
    const sl_row *rows; // [n_seqs]: sequence i has rows[i].position + 1 rows in rows[i].pages
    int has_runs;       // 1: neighbours may be rows of one sequence; 0: each has a sequence of its own
    const bf16 *q;      // [n_seqs][n_heads][head_dim], after RoPE
    bf16 *out;          // [n_seqs][n_heads][head_dim]
    // This layer: [n_pages][n_kv_heads] blocks of 256 rows (kv/kv_rows.h). With offloaded_rows, only the newest page of each
    // sequence lies there. Its entry in the page table is its page in k and v.
    const bf16 *k, *v;
    sl_format format; // of k and v: SL_BF16; of ops->bytes: SL_FP8 or SL_INT8
    const bf16
        *offloaded_rows; // of ops->offloaded: this layer, [n_pages][n_kv_heads][256][2][head_dim] in host memory; else NULL
    sl_kv_hot_rows hot;  // with offloaded_rows: of this layer
    const void *extra[SL_MAX_NEEDS]; // page extras of this layer, in the order of ops->needs: [n_pages][n_kv_heads][extra_size]
    size_t extra_size[SL_MAX_NEEDS];
    size_t state_at; // offset of this layer in rows[i].state; ops->state bytes, zero at a session's start
    // Kernels add to it with integer atomics. sl_cuda_end_step adds the stated errors of layers.
    sl_attn_cuda_stats *stats;
    void *ws; // ops->workspace() bytes, 256-byte aligned; the counters must be zero before the first call
    cudaStream_t stream;
    int keeps_masses; // for tests: stored masses stay in ws
    // Of a span: [n_pages] the block of a page in extra[i], -1: none (sl_kv_extra_slots). NULL: no span.
    const int32_t *extra_slots[SL_MAX_NEEDS];
} sl_attn_cuda_decode_args;

// What prefill with a mask did, of one query head, in device memory. All 0: nothing yet.
typedef struct sl_attn_cuda_prefill_stats {
    unsigned long long visited; // key blocks, summed over the query blocks of calls
    unsigned unkept;            // the largest 2^24 + 1 - sl_mask_report.kept of segments; 0: no rows were sampled
} sl_attn_cuda_prefill_stats;

// A run of consecutive tokens of one sequence. Token i is at position `first` + i and sees rows [0, first + i].
typedef struct sl_attn_cuda_prefill_args {
    const sl_attn_geom *geom;
    const sl_attn_spec *spec;
    int layer;
    int n_tokens, first;
    int n_pages;          // of the pool: k and v have n_pages * n_kv_heads * 256 rows
    const bf16 *q;        // [n_tokens][q_stride]; the first n_heads * head_dim elements of each token, after RoPE
    size_t q_stride;      // elements from token to token, a multiple of 8
    bf16 *out;            // [n_tokens][n_heads][head_dim]
    const bf16 *k, *v;    // this layer: [n_pages][n_kv_heads][256][head_dim]
    const int32_t *pages; // of the sequence
    void *ws;             // sl_cuda_query_blocks_workspace bytes with a mask; NULL: dense prefill needs none
    cudaStream_t stream;
    const struct sl_prefill_mask *mask; // as in sl_attn_prefill_args, with bits in device memory; NULL: all key blocks
    sl_attn_cuda_prefill_stats *stats;  // [n_heads] of a call with a mask; NULL: not wanted
} sl_attn_cuda_prefill_args;

// The first n_rows rows of a sequence in a cache of fp8 or int8, as bf16. Page i of the copy holds page i of the sequence.
typedef struct sl_attn_cuda_widen_args {
    sl_format format; // of k and v
    int n_rows, n_kv_heads, head_dim;
    const bf16 *k, *v;    // this layer: [n_pages][n_kv_heads] blocks
    const int32_t *pages; // of the sequence
    bf16 *to_k, *to_v;    // [pages of n_rows][n_kv_heads][256][head_dim]; to_v NULL: only K
    cudaStream_t stream;
} sl_attn_cuda_widen_args;

// A mask proposal: what sl_mask_args is on the CPU. The segment has the positions [first, first + n_tokens).
typedef struct sl_attn_cuda_mask_args {
    const sl_attn_geom *geom;
    const sl_attn_spec *spec;
    int n_tokens, first;
    const bf16 *q;                      // [n_tokens][q_stride], as in sl_attn_cuda_prefill_args
    size_t q_stride;                    // elements from token to token, a multiple of 8
    const bf16 *k;                      // this layer: [n_pages][n_kv_heads][256][head_dim]
    const int32_t *pages;               // of the sequence
    const struct sl_prefill_mask *mask; // of sl_mask_of, with bits in device memory, overwritten
    sl_attn_cuda_prefill_stats *stats;  // [n_heads]; NULL: not wanted
    void *ws;                           // ops->mask_workspace() bytes, 256-byte aligned
    cudaStream_t stream;
} sl_attn_cuda_mask_args;

// The first SL_CUDA_COUNTERS ints of decode's workspace are counters. attention/cuda/workspace.cuh states their layout. Each
// array after them begins at a multiple of SL_CUDA_ALIGNMENT bytes. Stored masses come first: block masses [n_seqs *
// n_kv_heads][group][max_blocks], then row masses [n_seqs * n_kv_heads][max_blocks][group][32], then (santa-pps, and santa-is
// with a stated error) block masses of sizes. This santa-is stores the sizes of built pages in place of their row masses. The
// saap methods have lists of rows first (bucket_visit.cu): their lengths [n_seqs * n_kv_heads][sections], then pool rows
// [n_seqs * n_kv_heads][sections][4096], with (max_kv - 1) / 4096 + 1 sections.
//
// A layer that carries a threshold (threshold.h) has two places at the end of its state. The place of a step is its position %
// 2. A place is an sl_threshold, which holds for this step, and [n_heads] sl_threshold_step.
enum { SL_CUDA_COUNTERS = 65536, SL_CUDA_ALIGNMENT = 256 };

// The largest number of sequences whose counters fit. Two counters serve all heads. In addition, dense attention uses one
// counter for a KV head. Methods with drawers use two for a KV head and two for a query head (draw_rows.cuh). Methods with
// lists of rows may use three for a query head (attend_rows.cuh uses one).
static inline int sl_cuda_most_seqs(const sl_attn_geom *g, int is_dense) {
    int draws = 2 * (g->n_kv_heads + g->n_heads), rows = 3 * g->n_heads;
    return (SL_CUDA_COUNTERS - 2) / (is_dense ? g->n_kv_heads : draws > rows ? draws : rows);
}

// Rows of a sequence up to which kernels that draw keep a head's arrays in shared memory, and the most rows for which they can
// draw (attention/cuda/long_context.cuh).
enum { SL_CUDA_SHORT_ROWS = 131072, SL_CUDA_LONG_ROWS = 1 << 21 };

typedef struct sl_attn_cuda_ops {
    // Bytes of workspace for decoding n_seqs sequences (n_tokens == 1) or for prefill of n_tokens, of up to n_kv rows.
    size_t (*workspace)(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_seqs, int n_tokens, int n_kv);
    void (*decode)(const sl_attn_cuda_decode_args *args);
    int (*needs)(const sl_attn_spec *spec, sl_kv_need *out); // as in sl_attn_ops; NULL: none
    size_t (*state)(const sl_attn_geom *geom, const sl_attn_spec *spec);
    int max_rows; // of a sequence; 0: any number
    // Adds those reads of a step over n_kv rows that depend only on n_kv. The kernels count the other reads into args->stats.
    void (*account)(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_kv, sl_attn_stats *stats);
    void (*prefill)(const sl_attn_cuda_prefill_args *args);
    // Returns 0, or SL_ERR_UNSUPPORTED with the reason. NULL: the kernels offer every specification.
    int (*supports)(const sl_attn_spec *spec, sl_error *err);
    // A method for prefill. It overwrites the mask; the diagonal and the sink are its work. NULL: no mask on CUDA.
    void (*mask)(const sl_attn_cuda_mask_args *args);
    size_t (*mask_workspace)(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_tokens, int n_kv); // NULL: 0 bytes
    const struct sl_attn_cuda_ops *offloaded; // the same with the rows of full pages in host memory; NULL: not offered
    const struct sl_attn_cuda_ops *bytes;     // the same for a cache of fp8 or int8 (stored_rows.cuh); NULL: not offered
} sl_attn_cuda_ops;

// Ends a step of n_layers layers with the same specification. The function plans the thresholds of the next step, and counts
// the stated errors of the layers into args->stats (stated, certified, unbounded, stated_units, stated_most). The state of
// layer i begins at args->state_at + i * layer_bytes. Call the function once after `decode` of the layers, and before their
// next step. Without the call the next step searches. Kernels of the next step read the state before the kernel before them
// has ended. So the stream must copy something, or launch another graph, between the two steps. For a specification without a
// threshold the function does nothing.
void sl_cuda_end_step(const sl_attn_cuda_decode_args *args, int n_layers, size_t layer_bytes);

// Rows that a draw kernel has fetched from the host: [n_seqs][n_kv_heads][group][n_lists][places].
typedef struct sl_cuda_hot_lists {
    sl_kv_hot_rows hot;
    int n_seqs, n_kv_heads, group, n_lists, places; // places: a multiple of 32
    int *listed;                                    // pool row + 1; 0: none
    const bf16 *fetched;                            // K and V of the rows: [..][2][head_dim]
} sl_cuda_hot_lists;
// hot_rows.cu: takes the rows into the cache. The caller clears the lists before the next launch.
void sl_cuda_keep_hot_rows(const sl_cuda_hot_lists *lists, int head_dim, cudaStream_t stream);

// page_extras.cu: build_device of the page extras.
void sl_cuda_build_norms(const sl_kv_device_build *b);
void sl_cuda_build_quantised(const sl_kv_device_build *b);
void sl_cuda_build_keys_by_feature(const sl_kv_device_build *b);
void sl_cuda_build_bounds(const sl_kv_device_build *b); // page_bounds.cu
// bucket_index.cu: the arrays of b->buckets lie in device memory.
void sl_cuda_build_bucket_rows(const sl_kv_device_build *b);
void sl_cuda_build_bucket_lists(const sl_kv_device_build *b);
void sl_cuda_build_bucket_cells(const sl_kv_device_build *b);

// dense_decode.cu, dense_prefill.cu: head_dim 64, 80, 96, 128; groups of 1 to 8. Every method shares the counters at the
// beginning of the workspace, and every call leaves them at 0.
size_t sl_cuda_dense_workspace(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_seqs, int n_tokens, int n_kv);
void sl_cuda_dense_decode(const sl_attn_cuda_decode_args *args);
void sl_cuda_dense_prefill(const sl_attn_cuda_prefill_args *args);
void sl_cuda_widen_rows(const sl_attn_cuda_widen_args *args); // widen_rows.cu
extern const sl_attn_cuda_ops sl_dense_cuda_ops;              // decode and prefill
extern const sl_attn_cuda_ops sl_streaming_cuda_ops;
extern const sl_attn_cuda_ops sl_dense_bytes_cuda_ops, sl_streaming_bytes_cuda_ops; // decode only
// Bytes of sl_attn_cuda_prefill_args.ws for a call with a mask.
size_t sl_cuda_query_blocks_workspace(const sl_attn_geom *geom, int n_tokens);

// prefill_masks.cu: sample, vertical-slash.
extern const sl_attn_cuda_ops sl_prefill_mask_cuda_ops;
void sl_cuda_streaming_mask(const sl_attn_cuda_mask_args *args);

// santa.cu, for the same shapes.
extern const sl_attn_cuda_ops sl_santa_cuda_ops, sl_santa_strat_cuda_ops, sl_santa_sys_cuda_ops, sl_santa_prop_cuda_ops,
    sl_santa_flash_cuda_ops;
extern const sl_attn_cuda_ops sl_santa_pps_cuda_ops; // pps.cu
// The same kernels for engines whose sequences may have more than SL_CUDA_SHORT_ROWS rows (long_context.cuh). Only the
// launchers of the tables above call them. santa: in the order santa, santa-strat, santa-sys, santa-prop, santa-flash.
extern const sl_attn_cuda_ops sl_santa_long_cuda_ops[5], sl_santa_pps_long_cuda_ops, sl_santa_is_long_cuda_ops,
    sl_bernoulli_long_cuda_ops, sl_bernoulli_group_long_cuda_ops;
// The same kernels for heads of 96 and 128 numbers (head_dim.cuh). Only `decode` of the other tables calls them.
extern const sl_attn_cuda_ops sl_santa_pps_wide_cuda_ops, sl_santa_pps_long_wide_cuda_ops, sl_santa_is_wide_cuda_ops,
    sl_santa_is_long_wide_cuda_ops, sl_santa_is_offloaded_wide_cuda_ops, sl_santa_is_offloaded_long_wide_cuda_ops;
// The same kernels for rows in host memory (offloaded_rows.cuh). They are sl_attn_cuda_ops.offloaded of the tables without
// `offloaded`.
extern const sl_attn_cuda_ops sl_santa_is_offloaded_cuda_ops, sl_santa_is_offloaded_long_cuda_ops, sl_quest_offloaded_cuda_ops,
    sl_vattention_offloaded_cuda_ops, sl_saap_offloaded_cuda_ops, sl_saap_is_offloaded_cuda_ops;

// The same kernels for a cache of fp8 or int8 (stored_rows.cuh). They are sl_attn_cuda_ops.bytes of the tables without `bytes`.
extern const sl_attn_cuda_ops sl_santa_bytes_cuda_ops[5], sl_santa_bytes_long_cuda_ops[5];
extern const sl_attn_cuda_ops sl_santa_pps_bytes_cuda_ops, sl_santa_pps_bytes_wide_cuda_ops, sl_santa_pps_bytes_long_cuda_ops,
    sl_santa_pps_bytes_long_wide_cuda_ops;
extern const sl_attn_cuda_ops sl_santa_is_bytes_cuda_ops, sl_santa_is_bytes_wide_cuda_ops, sl_santa_is_bytes_long_cuda_ops,
    sl_santa_is_bytes_long_wide_cuda_ops;
extern const sl_attn_cuda_ops sl_quest_bytes_cuda_ops;

// The other methods, for the same shapes. bernoulli.cu: alone and with the samplers of santa.cu. subset.cu: topk and topp
// (oracle), random.
extern const sl_attn_cuda_ops sl_bernoulli_cuda_ops, sl_bernoulli_group_cuda_ops;
extern const sl_attn_cuda_ops sl_santa_is_cuda_ops, sl_dense_q_cuda_ops;
extern const sl_attn_cuda_ops sl_subset_cuda_ops, sl_random_cuda_ops, sl_quest_cuda_ops, sl_vattention_cuda_ops;

// saap.cu: saap and saap-kmeans; saap-is. The arrays of geom->buckets lie in device memory.
extern const sl_attn_cuda_ops sl_saap_cuda_ops, sl_saap_is_cuda_ops;

// page_bounds.cu: counts the page bounds that a step over n_kv rows reads, and the keys of the newest page. row_bytes: of a row
// of K.
void sl_cuda_account_bounds(const sl_attn_geom *geom, int row_bytes, int n_kv, sl_attn_stats *stats);

#ifdef __cplusplus
}
#endif

#endif
