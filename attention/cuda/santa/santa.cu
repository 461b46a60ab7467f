// attention/cuda/santa/santa.cu - the SANTA family on CUDA: exact scores of all keys and S drawn rows of V, in one kernel.
// The naive versions are in tests/cuda/naive.h: naive_score, naive_mass, naive_draw_systematic and naive_sum_of_rows.
//
// | role     | warps   | does                                                              |
// |----------|---------|-------------------------------------------------------------------|
// | consumer | 4, or 8 | scores tiles of K and stores masses (score_keys.cuh)              |
// | drawer   | 4       | draws rows and sums their rows of V (draw_rows.cuh, samplers.cuh) |
// | producer | 1       | copies K and q into ring stages (score_keys.cuh)                  |
//
// With SL_BYTE_ROWS, K and V are fp8 or int8 (stored_rows.cuh), and 8 warps score.
//
// | shared memory, in order | bytes (DIM 128, group 4)           | contents                                           |
// |-------------------------|------------------------------------|----------------------------------------------------|
// | block_shared            | about 10 KB                        | ring barriers and tile_infos, then draw_space      |
// | ring stages             | 6 x 17408, or 3 x 33792 with LONG  | K, then q (score_keys.cuh)                         |
// | with SL_BYTE_ROWS       | 5 x 17920                          | K, its scales, then q                              |
#include "attention/cuda/head_dim.cuh"
#include "attention/cuda/santa/samplers.cuh"

namespace {

enum {
    THREADS = 32 * (1 + CONSUMER_WARPS) + DRAW_THREADS,
    REGISTERS = IS_BYTES ? 120 : 144, // of a thread: a thread block of the linear layer before fits on the same multiprocessor
};

struct santa_params {
    score_params score;
    draw_params draw;
    sampler kind;
};

struct block_shared {
    score_shared score;
    draw_space draw;
};
enum { SHARED_BYTES = (sizeof(block_shared) + 127) / 128 * 128 };

// out = sum_m v_(row m) / S over S rows drawn from softmax(q K^T / sqrt(DIM)). santa-flash multiplies the rows of a tile by the
// tile's share of the mass (samplers.cuh).
//
// Grid: one thread block per multiprocessor, for any lengths. All thread blocks must be resident at the same time, because
// drawers wait for other thread blocks.
// Preconditions: the counters are 0 at the start. They are 0 again at the end. Before the previous kernel has ended, the kernel
// reads only K of earlier tokens, lengths and page tables.
// Bytes: K once; 2 + 1/4 bytes per row and query head of stored masses (written, and partly read from the L2 cache); drawn rows
// of V.
// Order of reduction: masses are integers, so their order has no effect. A warp adds its 32 of every 128 draws in order. Then
// the sums of the warps are added in order.
template <int DIM, typename Config> __global__ void __maxnreg__(REGISTERS) santa_ring_kernel(const santa_params p) {
    extern __shared__ __align__(128) char memory[];
    block_shared *shared = (block_shared *)memory;
    ring r = {&shared->score, memory + SHARED_BYTES, p.score.n_stages, layout<DIM, Config>::stage(p.score.group), 0, 0};
    int warp = threadIdx.x / 32, thread = threadIdx.x - 32 * CONSUMER_WARPS;
    producer to;
    sl_start_next();
    if (warp == CONSUMER_WARPS + DRAW_WARPS) to = produce_begin(p.score, r);
    score_begin<Config>(&shared->score, 32 * Config::SIZE);
    __syncthreads();
    if (warp < CONSUMER_WARPS)
        consume<DIM, Config>(p.score, r);
    else if (warp < CONSUMER_WARPS + DRAW_WARPS)
        draw_all(p.score, p.draw, &shared->draw, thread, sampler_drawer<DIM, santa_params>{p, &shared->draw, thread});
    else
        produce<DIM, Config>(p.score, to);
}

// ---- launch ----

size_t lay_out(const sl_attn_geom *geom, int S, int n_seqs, int n_kv, void *ws, santa_params *p) {
    arena a = after_counters(ws);
    take_masses(&a, &p->score, geom, n_seqs, n_kv);
    take_draw_arrays(&a, &p->draw, geom, n_seqs, S);
    return bytes_taken(a, ws);
}

size_t workspace(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_seqs, int n_tokens, int n_kv) {
    if (!IS_LONG && n_kv > ROWS_MAX) return SL_LONG_TABLE(sl_santa)[0].workspace(geom, spec, n_seqs, n_tokens, n_kv);
    santa_params p;
    return lay_out(geom, (int)sl_attn_get(spec, "S"), n_seqs, n_kv, NULL, &p);
}

template <int DIM, bool LONG> void launch_tiles(const sl_attn_cuda_decode_args *a, santa_params p) {
    typedef score_config<false, LONG> config;
    size_t bytes = set_tiles<DIM, config>(&p.score, SHARED_BYTES);
    sl_launch(santa_ring_kernel<DIM, config>, dim3(sl_multiprocessors()), dim3(THREADS), bytes, a->stream, p);
}

template <int DIM> void launch(const sl_attn_cuda_decode_args *a, sampler kind) {
    int S = (int)sl_attn_get(a->spec, "S");
    santa_params p = {.score = score_params_of<DIM>(a), .draw = draw_params_of(a, S), .kind = kind};
    lay_out(a->geom, S, a->n_seqs, a->max_kv, a->ws, &p);
    SL_CHECK(a->max_kv <= ROWS_MAX);
    if (IS_BYTES || uses_long_tiles(p.score, p.draw.parts == 1))
        launch_tiles<DIM, true>(a, p);
    else if constexpr (!IS_BYTES)
        launch_tiles<DIM, false>(a, p);
}

template <sampler KIND> void decode(const sl_attn_cuda_decode_args *args) {
    if (!IS_LONG && args->max_kv > ROWS_MAX) return SL_LONG_TABLE(sl_santa)[KIND].decode(args);
    SL_WITH_HEAD_DIM(args->geom->head_dim, launch, args, KIND);
}

} // namespace

#if defined SL_LONG_CONTEXT || defined SL_BYTE_ROWS
#define BYTES_OPS(KIND) NULL
#else
#define BYTES_OPS(KIND) &sl_santa_bytes_cuda_ops[KIND]
#endif
#define OPS(KIND)                                                                                                              \
    {                                                                                                                          \
        .workspace = workspace, .decode = decode<KIND>, .needs = NULL, .state = NULL, .max_rows = SL_CUDA_LONG_ROWS,           \
        .account = account_all_keys, .prefill = NULL, .supports = NULL, .mask = NULL, .mask_workspace = NULL,                  \
        .offloaded = NULL, .bytes = BYTES_OPS(KIND)                                                                            \
    }
#if defined SL_LONG_CONTEXT || defined SL_BYTE_ROWS
const sl_attn_cuda_ops SL_TABLE_OF_UNIT(sl_santa)[] = {OPS(INDEPENDENT), OPS(STRATIFIED), OPS(SYSTEMATIC),
                                                       OPS(TILES_PROPORTIONAL), OPS(TILES_UNIFORM)};
#else
const sl_attn_cuda_ops sl_santa_cuda_ops = OPS(INDEPENDENT), sl_santa_strat_cuda_ops = OPS(STRATIFIED),
                       sl_santa_sys_cuda_ops = OPS(SYSTEMATIC), sl_santa_prop_cuda_ops = OPS(TILES_PROPORTIONAL),
                       sl_santa_flash_cuda_ops = OPS(TILES_UNIFORM);
#endif
