// attention/cuda/workspace.cuh - the layout of decode's workspace, and the statistics that the host counts.
//
// | bytes                       | contents                                                                   |
// |-----------------------------|----------------------------------------------------------------------------|
// | 0 .. 4 SL_CUDA_COUNTERS - 1 | counters, below                                                            |
// | then                        | the method's arrays in the order of its `lay_out`, each 256-byte aligned   |
//
// A method lays out its arrays in one function. Its `workspace` calls the function with ws = NULL to measure; its launcher
// calls the same function with the memory. So both always agree.
//
// Counters, in ints. S = n_seqs * n_kv_heads (seq_heads), H = n_seqs * n_heads. All counters are 0 between launches.
// | at                   | length | name       | counts                                                                |
// |----------------------|--------|------------|-----------------------------------------------------------------------|
// | 0                    | 1      | next_item  | tickets taken for work items after a thread block's first ones        |
// | 1                    | 1      | next_part  | numbers taken for parts of heads by drawer warps (draw_rows.cuh)      |
// | 2                    | S      | done       | finished work of a seq_head: items, or consumer warps * tiles         |
// | 2 + S                | S      | released   | parts that no longer read the stored masses of a seq_head             |
// | 2 + 2 S              | H      | top        | not a count: the largest reference of a query head minus SL_REF_EMPTY |
// | 2 + 2 S + H          | H      | merged     | finished parts of a query head; santa-pps: newest_done [S]            |
// | SL_CUDA_COUNTERS - H | H      | lists_done | finished chunks of a query head's lists (attend_rows.cuh)             |
#ifndef SLEIGH_ATTENTION_WORKSPACE_CUH
#define SLEIGH_ATTENTION_WORKSPACE_CUH

#include "attention/attention_cuda.h"
#include "attention/cuda/stored_rows.cuh"
#include "base/error.h"

struct decode_counters {
    int *next_item, *next_part;
    int *done, *released; // [n_seq_heads]
    int *top, *merged;    // [n_seqs * n_heads]
    int *lists_done;      // [n_seqs * n_heads]
};

// is_dense: the caller uses only next_item and done.
static inline decode_counters counters_of(const sl_attn_cuda_decode_args *a, int is_dense) {
    int *at = (int *)a->ws, n_seq_heads = a->n_seqs * a->geom->n_kv_heads, n_heads = a->n_seqs * a->geom->n_heads;
    SL_CHECK(a->n_seqs <= sl_cuda_most_seqs(a->geom, is_dense));
    return {.next_item = at,
            .next_part = at + 1,
            .done = at + 2,
            .released = at + 2 + n_seq_heads,
            .top = at + 2 + 2 * n_seq_heads,
            .merged = at + 2 + 2 * n_seq_heads + n_heads,
            .lists_done = at + SL_CUDA_COUNTERS - n_heads};
}

// Memory from which a method takes its arrays. If `at` starts at NULL, the arena only measures.
struct arena {
    char *at;
    template <typename T> T *take(size_t n) {
        T *p = (T *)at;
        at += (n * sizeof(T) + SL_CUDA_ALIGNMENT - 1) / SL_CUDA_ALIGNMENT * SL_CUDA_ALIGNMENT;
        return p;
    }
};

static inline arena after_counters(void *ws) {
    return {(char *)ws + SL_CUDA_COUNTERS * sizeof(int)};
}

static inline size_t bytes_taken(const arena &a, const void *ws) {
    return a.at - (const char *)ws;
}

// ---- statistics that the host counts ----

// Counts k_rows rows of K and v_rows rows of V of every KV head. Each row is read once for all heads of the group.
static inline void count_rows_read(const sl_attn_geom *geom, uint64_t k_rows, uint64_t v_rows, sl_attn_stats *stats) {
    stats->k_rows += k_rows * geom->n_kv_heads;
    stats->v_distinct += v_rows * geom->n_kv_heads;
    stats->v_rows += v_rows * geom->n_heads;
    stats->bytes += (k_rows + v_rows) * geom->n_kv_heads * counted_row(geom->head_dim);
}

// sl_attn_cuda_ops.account of methods that score all keys. Their kernels count the rows of V.
static inline void account_all_keys(const sl_attn_geom *geom, const sl_attn_spec *, int n_kv, sl_attn_stats *stats) {
    count_rows_read(geom, n_kv, 0, stats);
    stats->features += geom->n_heads;
}

#endif
