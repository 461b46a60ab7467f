// attention/cuda/lists/subset.cu - topk, topp and random on CUDA: attention over selected rows. The method streaming is in
// dense_decode.cu.
//
// | method     | kernels                                                                                      |
// |------------|----------------------------------------------------------------------------------------------|
// | topk, topp | score_keys_kernel, select_rows_kernel (select_rows.cuh), attend_rows_kernel (attend_rows.cuh) |
// | random     | draw_uniform_kernel, attend_rows_kernel                                                      |
//
// Measured in us (as in quest.cu, peaked queries). topk, k = 128: 1 x 8k 30, 1 x 32k 56, 8 x 32k 229, 32 x 8k 263. topp, p =
// 0.95: 1 x 32k 64, 8 x 32k 263. In addition to the scores, the selection costs 10 us, and the latency of loading rows costs 6
// us.
#include "attention/cuda/head_dim.cuh"
#include "attention/cuda/lists/joined.h"
#include "attention/cuda/lists/select_rows.cuh"
#include "attention/random_counter.h"

namespace {

// ---- topk, topp ----

// The arrays of the workspace. Returns its size.
size_t lay_out_subset(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_seqs, int n_kv, void *ws, score_params *score,
                      attend_params *p) {
    int n_heads = n_seqs * geom->n_heads, most = most_selected(spec, n_kv, 1);
    arena a = after_counters(ws);
    take_masses(&a, score, geom, n_seqs, n_kv);
    p->lists = take_lists(&a, n_heads, most, n_kv, 1);
    take_partials(&a, p, n_heads, geom->head_dim, most, 0);
    return bytes_taken(a, ws);
}

size_t subset_workspace(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_seqs, int n_tokens, int n_kv) {
    if (spec->plus) return sl_joined_cuda_ops.workspace(geom, spec, n_seqs, n_tokens, n_kv);
    score_params score;
    attend_params p;
    return lay_out_subset(geom, spec, n_seqs, n_kv, NULL, &score, &p);
}

template <int DIM> void launch_subset(const sl_attn_cuda_decode_args *a) {
    score_params score = score_params_of<DIM>(a);
    attend_params p = attend_params_of(a);
    lay_out_subset(a->geom, a->spec, a->n_seqs, a->max_kv, a->ws, &score, &p);
    p.mass = score.mass, p.w = score.w, p.max_blocks = score.max_blocks;
    launch_score<DIM>(score, a->stream);
    launch_select(select_params_of(a->spec, score, p.lists, a->stats), a->n_seqs * a->geom->n_heads, a->stream);
    launch_attend<DIM, false, false>(p, a->n_seqs * a->geom->n_heads, 1, a->stream);
}

void subset_decode(const sl_attn_cuda_decode_args *args) {
    if (args->spec->plus) return sl_joined_cuda_ops.decode(args);
    SL_WITH_HEAD_DIM(args->geom->head_dim, launch_subset, args);
}

// ---- random ----

enum { DRAW_THREADS = 256 };

// Parameters of draw_uniform_kernel.
struct random_params {
    const sl_row *rows;
    row_lists lists;
    int n_heads, first_head, S, layer;
    sl_attn_cuda_stats *stats;
};

// Draws S rows of each query head uniformly with replacement. The list has the order of the draws, so a row that is drawn again
// is listed again. From n rows of equal mass, draw_samplers.c draws the same row: floor(u n / 2^64). Grid: a thread block per
// query head.
// GLOBAL: the bits of a long context are made in the mask itself.
template <bool GLOBAL> __global__ void __launch_bounds__(DRAW_THREADS) draw_uniform_kernel(const random_params p) {
    extern __shared__ uint32_t row_bits[];
    __shared__ int n_distinct;
    sl_start_next();
    sl_wait_previous();
    int head = blockIdx.x;
    uint32_t *mask = p.lists.mask + (size_t)head * p.lists.mask_words, *drawn = GLOBAL ? mask : row_bits; // a bit for each row
    const sl_row row = p.rows[head / p.n_heads];
    sl_rng_id id = sl_attn_rng_id(row.seed, row.sequence, (uint32_t)row.position, p.layer, p.first_head + head % p.n_heads);
    for (int i = threadIdx.x; i < p.lists.mask_words; i += DRAW_THREADS) drawn[i] = 0;
    if (threadIdx.x == 0) n_distinct = 0;
    __syncthreads();
    for (int m = threadIdx.x; m < p.S; m += DRAW_THREADS) {
        int j = (int)__umul64hi(sl_draw_random(&id, m), (uint64_t)(row.position + 1));
        p.lists.list[(size_t)head * p.lists.capacity + m] = j;
        atomicOr(&drawn[j / 32], 1u << j % 32);
    }
    __syncthreads();
    int n = 0;
    for (int i = threadIdx.x; i < p.lists.mask_words; i += DRAW_THREADS) {
        uint32_t bits = GLOBAL ? __ldcg(drawn + i) : drawn[i];
        if (!GLOBAL) mask[i] = bits;
        n += __popc(bits);
    }
    n = __reduce_add_sync(~0u, n);
    if (threadIdx.x % 32 == 0) atomicAdd(&n_distinct, n);
    __syncthreads();
    if (threadIdx.x > 0) return;
    p.lists.plan[head] = {{0, p.S, p.S, p.S}, 0, 1, 0};
    if (!p.stats) return;
    atomicAdd(&p.stats->v_rows, (unsigned long long)n_distinct);
    atomicAdd(&p.stats->samples, (unsigned long long)p.S);
}

size_t lay_out_random(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_seqs, int n_kv, void *ws, attend_params *p) {
    int S = (int)sl_attn_get(spec, "S"), n_heads = n_seqs * geom->n_heads;
    arena a = after_counters(ws);
    p->lists = take_lists(&a, n_heads, S, n_kv, 1);
    take_partials(&a, p, n_heads, geom->head_dim, S, 0);
    return bytes_taken(a, ws);
}

size_t random_workspace(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_seqs, int, int n_kv) {
    attend_params p;
    return lay_out_random(geom, spec, n_seqs, n_kv, NULL, &p);
}

template <int DIM> void launch_random(const sl_attn_cuda_decode_args *a) {
    attend_params p = attend_params_of(a);
    lay_out_random(a->geom, a->spec, a->n_seqs, a->max_kv, a->ws, &p);
    p.reads_k = 1;
    random_params draw = {a->rows,  p.lists, a->geom->n_heads, a->geom->first_head, (int)sl_attn_get(a->spec, "S"),
                          a->layer, a->stats};
    bool global = p.lists.memory != NULL;
    sl_launch(global ? draw_uniform_kernel<true> : draw_uniform_kernel<false>, dim3(a->n_seqs * a->geom->n_heads),
              dim3(DRAW_THREADS), global ? 0 : p.lists.mask_words * sizeof(uint32_t), a->stream, draw);
    launch_attend<DIM, true, false>(p, a->n_seqs * a->geom->n_heads, 1, a->stream);
}

void random_decode(const sl_attn_cuda_decode_args *args) {
    SL_WITH_HEAD_DIM(args->geom->head_dim, launch_random, args);
}

void account_random(const sl_attn_geom *geom, const sl_attn_spec *, int, sl_attn_stats *stats) {
    stats->features += geom->n_heads;
}

} // namespace

const sl_attn_cuda_ops sl_subset_cuda_ops = {.workspace = subset_workspace,
                                             .decode = subset_decode,
                                             .needs = NULL,
                                             .state = NULL,
                                             .max_rows = 0,
                                             .account = account_all_keys,
                                             .prefill = NULL,
                                             .supports = NULL,
                                             .mask = NULL,
                                             .mask_workspace = NULL,
                                             .offloaded = NULL,
                                             .bytes = NULL};
const sl_attn_cuda_ops sl_random_cuda_ops = {.workspace = random_workspace,
                                             .decode = random_decode,
                                             .needs = NULL,
                                             .state = NULL,
                                             .max_rows = 0,
                                             .account = account_random,
                                             .prefill = NULL,
                                             .supports = NULL,
                                             .mask = NULL,
                                             .mask_workspace = NULL,
                                             .offloaded = NULL,
                                             .bytes = NULL};
