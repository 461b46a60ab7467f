// attention/cuda/lists/quest.cu - Quest on CUDA. It scores units of 16 rows by page bounds, and reads K and V of the units with
// the largest scores.
//
// Three kernels: score_bounds_kernel stores bounds as masses, select_rows_kernel selects units, attend_rows_kernel reads their
// rows.
// page_bounds.cu builds the page extra. With SL_OFFLOADED_ROWS the kernels are compiled for rows in host memory
// (offloaded_rows.cuh), with SL_BYTE_ROWS for a cache of fp8 or int8 (stored_rows.cuh).
//
// Measured in us (H100 80GB, 21 November 2026, 32 heads, 8 KV heads, head_dim 128, 1024 tokens a head, cold L2, graph replays;
// an empty replay takes 3 us). Dense decode's times are in brackets: 1 x 32k 37 (64), 8 x 32k 114 (363), 32 x 8k 287 (363). The
// three kernels take 11, 9 and 16 us at 1 x 32k, and 41, 10 and 66 us at 8 x 32k. To read the bytes of the first and the third
// kernel takes 22 and 45 us at 8 x 32k.
#include "attention/cuda/head_dim.cuh"
#include "attention/cuda/lists/joined.h"
#include "attention/cuda/lists/score_bounds.cuh"
#include "attention/cuda/lists/select_rows.cuh"

namespace {

size_t lay_out(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_seqs, int n_kv, void *ws, score_params *score,
               attend_params *p) {
    int n_heads = n_seqs * geom->n_heads, n_units = ceil_div(n_kv, UNIT), most = most_selected(spec, n_units, UNIT);
    arena a = after_counters(ws);
    take_masses(&a, score, geom, n_seqs, n_units);
    p->lists = take_lists(&a, n_heads, most, n_units, UNIT);
    take_partials(&a, p, n_heads, geom->head_dim, most * UNIT, 0);
    return bytes_taken(a, ws);
}

size_t workspace(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_seqs, int n_tokens, int n_kv) {
    if (spec->plus) return sl_joined_cuda_ops.workspace(geom, spec, n_seqs, n_tokens, n_kv);
    score_params score;
    attend_params p;
    return lay_out(geom, spec, n_seqs, n_kv, NULL, &score, &p);
}

template <int DIM> void launch(const sl_attn_cuda_decode_args *a) {
    bounds_params bounds = bounds_params_of<DIM>(a);
    attend_params p = attend_params_of(a);
    lay_out(a->geom, a->spec, a->n_seqs, a->max_kv, a->ws, &bounds.score, &p);
    p.reads_k = p.reads_newest = 1;
    launch_bounds<DIM>(bounds, a->stream);
    launch_select(select_params_of(a->spec, bounds.score, p.lists, a->stats), a->n_seqs * a->geom->n_heads, a->stream);
    int n_heads = a->n_seqs * a->geom->n_heads;
    if constexpr (!IS_BYTES)
        launch_attend<DIM, true, false>(p, n_heads, 1, a->stream);
    else if (a->format == SL_FP8)
        launch_attend<DIM, true, false, SL_FP8>(p, n_heads, 1, a->stream);
    else
        launch_attend<DIM, true, false, SL_INT8>(p, n_heads, 1, a->stream);
}

void decode(const sl_attn_cuda_decode_args *args) {
    if (args->spec->plus) return sl_joined_cuda_ops.decode(args);
    SL_WITH_HEAD_DIM(args->geom->head_dim, launch, args);
}

int needs(const sl_attn_spec *, sl_kv_need *out) {
    *out = {&sl_key_bounds, 0};
    return 1;
}

// Counts the bounds, and the keys of the newest page. The kernels count the other reads, also those of a join.
void account_bounds(const sl_attn_geom *geom, const sl_attn_spec *, int n_kv, sl_attn_stats *stats) {
    sl_cuda_account_bounds(geom, counted_row(geom->head_dim), n_kv, stats);
}

} // namespace

#if defined SL_OFFLOADED_ROWS || defined SL_BYTE_ROWS
#define OFFLOADED_OPS NULL
#define BYTES_OPS NULL
#else
#define OFFLOADED_OPS &sl_quest_offloaded_cuda_ops
#define BYTES_OPS &sl_quest_bytes_cuda_ops
#endif
const sl_attn_cuda_ops SL_TABLE_OF_UNIT(sl_quest) = {.workspace = workspace,
                                                     .decode = decode,
                                                     .needs = needs,
                                                     .state = NULL,
                                                     .max_rows = 0,
                                                     .account = account_bounds,
                                                     .prefill = NULL,
                                                     .supports = NULL,
                                                     .mask = NULL,
                                                     .mask_workspace = NULL,
                                                     .offloaded = OFFLOADED_OPS,
                                                     .bytes = BYTES_OPS};
