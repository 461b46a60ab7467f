// attention/cuda/lists/joined.cu - `first+value` on CUDA: a sampler of the SANTA family draws rows of V from the exact
// probabilities of the set of rows that topk, topp, streaming or quest takes, or from the probabilities that dense-q estimates.
// (bernoulli.cu has the joins of its methods.)
//
// | kernel                       | first method      | does                                                       |
// |------------------------------|-------------------|------------------------------------------------------------|
// | of the first method's scores | all but streaming | stores scores as masses                                    |
// | select_rows_kernel           | topk, topp, quest | writes the set of each query head, as bits                 |
// | store_set_kernel             | all               | stores masses as score_keys.cuh does, 0 outside of the set |
// | draw_set_kernel              | all               | draws from them, and sums the rows of V (samplers.cuh)     |
//
// The positions of rows give the set of streaming. Rows keep their numbers of the cache, as on the CPU (decode.c, select_rows).
// So a tile of the samplers has 256 rows of the cache, and equal stored masses give the rows that the CPU draws. The naive
// versions are in tests/cuda/naive.h: naive_score, naive_reference and naive_mass over the rows of the set.
#include "attention/cuda/head_dim.cuh"
#include "attention/cuda/lists/joined.h"
#include "attention/cuda/lists/score_bounds.cuh"
#include "attention/cuda/lists/select_rows.cuh"
#include "attention/cuda/mma_tiles.cuh"
#include "attention/cuda/quantised/quantised_scores.h"
#include "attention/cuda/santa/samplers.cuh"

namespace {

enum {
    // Few warps in a thread block, so that many thread blocks are resident: most spans of a long context have few rows of a
    // set, and the time of a thread block is latency. (Times: results/cliffs.md, "Joins".)
    SET_WARPS = 4,
    SET_THREADS = 32 * SET_WARPS,
    SPAN_BLOCKS = 32, // blocks of a thread block: a lane has one
    SPAN_PAGES = SPAN_BLOCKS * BLOCK / SL_PAGE,
    SETS_PER_SM = 6, // resident thread blocks of store_set_kernel
    // Resident thread blocks of draw_set_kernel: more where many heads draw, and else more registers for each. With IS_LONG
    // each has its arrays in the workspace, for one on each multiprocessor (take_draw_arrays).
    DRAWERS_OF_FEW_HEADS = IS_LONG ? 1 : 3,
    DRAWERS_OF_MANY_HEADS = IS_LONG ? 1 : 4,
};

// The masses that store_set_kernel finds or makes.
enum set_masses {
    SCORED, // of exact scores of the set (quest, streaming)
    KEPT,   // of all keys; those outside of the set become 0 (topk, topp)
    ALL,    // of all rows, and the set is all rows (dense-q)
};

struct set_params {
    score_params score; // masses of rows
    row_lists lists;    // of the first method; plan NULL: its set is the first `sink` and the last `window` rows
    int sink, window;
    bool reads_newest; // K of the newest page is already counted, because it has no page extra
    sl_attn_cuda_stats *stats;
};

struct draw_set_params {
    score_params score;
    draw_params draw;
    sampler kind;
};

// ---- the rows of a set ----

// The lowest n bits; n may lie outside of 0 .. 32.
__device__ uint32_t low_bits(int n) {
    return n <= 0 ? 0 : n >= 32 ? ~0u : (1u << n) - 1;
}

// Bit i: row 32 block + i is in the set of query head `head`, counted over all sequences.
__device__ uint32_t rows_of_set(const set_params &p, int head, int block, int n_kv) {
    int left = n_kv - block * BLOCK; // rows of the sequence from the block on
    if (!p.lists.plan) return low_bits(left) & (low_bits(p.sink - block * BLOCK) | ~low_bits(left - p.window));
    const uint32_t *mask = p.lists.mask + (size_t)head * p.lists.mask_words;
    if (p.lists.unit == 1) return __ldcg(mask + block);
    uint32_t units = __ldcg(mask + block / UNIT) >> block % UNIT * 2; // two units in a block, 16 blocks in a word
    return low_bits(left) & ((units & 1 ? 0xffffu : 0) | (units & 2 ? 0xffff0000u : 0));
}

// ---- masses of the set ----

// The masses of one block of 32 rows, from their exact scores. rows: [GROUP_MAX][SPAN_BLOCKS] as rows_of_set; any: the rows
// that a head of the group has. page: that of the block. tile: shared memory for K of the block. All its copies are in flight
// together, because with loads from global memory the scorer waits for one pair after the other. A unit of 16 rows without a
// row of the set is not read.
template <int DIM>
__device__ block_masses score_set(const set_params &p, const scorer<DIM> &a, int page, int kv_head, int first,
                                  const uint32_t rows[GROUP_MAX][SPAN_BLOCKS], uint32_t any, bf16 *tile) {
    enum { PIECES = DIM / 8 }; // of 16 bytes in a row
    int lane = threadIdx.x % 32;
    const bf16 *k = p.score.k + (((size_t)page * p.score.n_kv_heads + kv_head) * SL_PAGE + first % SL_PAGE) * DIM;
    __syncwarp(); // all lanes have read the tile before
#pragma unroll
    for (int i = lane; i < BLOCK * PIECES; i += 32)
        copy_async(tile + 8 * i, k + 8 * i, any & (i < UNIT * PIECES ? 0xffffu : 0xffff0000u));
    copies_landed();
    __syncwarp();
    float s[8];
    a.scores((const char *)tile, s);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t own = rows[lane % 4 * 2 + i % 2][first / BLOCK % SPAN_BLOCKS];
        s[i] = own >> row_of_part(i / 2) & 1 ? s[i] * p.score.scale : -INFINITY;
    }
    return to_masses(s);
}

// The stored masses of a block, with 0 for rows outside of the set (sl_masses_keep).
__device__ block_masses keep_set(const set_params &p, int seq_head, int first, const uint32_t rows[GROUP_MAX][SPAN_BLOCKS]) {
    int g = threadIdx.x % 32 / 4, quarter = threadIdx.x % 4, block = first / BLOCK;
    uint32_t own = rows[g][block % SPAN_BLOCKS] >> 8 * quarter, x[4] = {};
    block_masses kept = {.w = make_uint4(0, 0, 0, 0), .mass = 0, .ref = REF_EMPTY};
    if (g < p.score.group) {
        size_t at = (size_t)seq_head * p.score.max_blocks + block;
        kept.w = __ldcg((const uint4 *)(p.score.w + (at * p.score.group + g) * BLOCK) + quarter);
        kept.ref = ref_of(__ldcg(p.score.mass + ((size_t)seq_head * p.score.group + g) * p.score.max_blocks + block));
    }
    const uint32_t pairs[4] = {kept.w.x, kept.w.y, kept.w.z, kept.w.w};
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = pairs[i] & ((own >> 2 * i & 1 ? 0xffffu : 0) | (own >> 2 * i & 2 ? 0xffff0000u : 0));
    kept.w = make_uint4(x[0], x[1], x[2], x[3]);
    kept.mass = mass_of_block(kept.w);
    uint32_t left = x[0] | x[1] | x[2] | x[3];
    left |= __shfl_xor_sync(~0u, left, 1);
    left |= __shfl_xor_sync(~0u, left, 2);
    if (!left) kept.ref = REF_EMPTY;
    return kept;
}

// The counters `done` and `top` of a seq_head say to the drawers that all masses are stored, and the largest reference of each
// head (draw_rows.cuh). Thread h of the first span sets for head h what the spans do not know. A head whose scores of the first
// method are beyond stored masses gets a reference that is beyond them too, so that it attends exactly.
__device__ void count_stored(const set_params &p, int seq_head, int n_kv) {
    int h = threadIdx.x, head = seq_head * p.score.group + h;
    if (h == 0) p.score.done[seq_head] = done_target(CONSUMER_WARPS, n_kv);
    if (h < p.score.group && p.lists.plan && is_beyond(p.lists.plan[head].top))
        atomicMax(p.score.top + head, SL_REF_INVALID - REF_EMPTY);
}

// The largest references of a span of blocks, for masses that are already those of the set.
__device__ void find_tops(const set_params &p, int seq_head, int block, int n_blocks) {
    for (int h = threadIdx.x / 32; h < p.score.group; h += SET_WARPS) {
        const uint64_t *mass = p.score.mass + ((size_t)seq_head * p.score.group + h) * p.score.max_blocks;
        int top = __reduce_max_sync(~0u, block < n_blocks ? ref_of(__ldcg(mass + block)) : (int)REF_EMPTY);
        if (threadIdx.x % 32 == 0) atomicMax(p.score.top + seq_head * p.score.group + h, top - REF_EMPTY);
    }
}

// Stores the masses of all rows of a sequence for each query head of a group, as FOUND says, and sets the counters for the
// drawers.
//
// Grid: (spans of 1,024 rows; sequences x KV heads; thread blocks that share a span). The warps of a span take its blocks that
// have a row of the set in turn.
// Preconditions: the counters `done` and `top` are 0.
// Bytes: with SCORED, K of the units of 16 rows that have a row of the set, once for the group. 1/4 byte of block masses for
// each row and query head, and, but for ALL, 2 bytes of row masses for each row of a block with a row of the set.
// Shared memory: with SCORED, K of a block for each warp.
// Order of reduction: as in score_keys.cuh.
template <int DIM, set_masses FOUND>
__global__ void __launch_bounds__(SET_THREADS, SETS_PER_SM) store_set_kernel(const set_params p) {
    extern __shared__ __align__(16) bf16 tiles[]; // with SCORED: [SET_WARPS][BLOCK][DIM]
    __shared__ uint32_t rows[GROUP_MAX][SPAN_BLOCKS];
    sl_start_next();
    sl_wait_previous();
    int seq_head = blockIdx.y, kv_head = seq_head % p.score.n_kv_heads, group = p.score.group;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, block = blockIdx.x * SPAN_BLOCKS + lane;
    const sl_row row = p.score.rows[seq_head / p.score.n_kv_heads];
    int n_kv = row.position + 1, n_blocks = ceil_div(n_kv, BLOCK), newest = (n_kv - 1) / SL_PAGE, n_read = 0;
    if ((int)blockIdx.x * SPAN_BLOCKS >= n_blocks) return;
    if (blockIdx.x + blockIdx.z == 0) count_stored(p, seq_head, n_kv);
    if constexpr (FOUND == ALL) {
        if (blockIdx.x + blockIdx.y + threadIdx.x == 0) *p.score.next_item = 0; // quantised_scores.h
        find_tops(p, seq_head, block, n_blocks);
        return;
    }
    scorer<DIM> a; // q and the pages are loaded together with the bits of the set
    if (FOUND == SCORED) a.begin((const char *)(p.score.q + (size_t)seq_head * group * DIM), group);
    int page = __ldg(row.pages + min((int)blockIdx.x * SPAN_PAGES + lane % SPAN_PAGES, newest));
#pragma unroll
    for (int h = warp; h < GROUP_MAX; h += SET_WARPS)
        rows[h][lane] = h < group && block < n_blocks ? rows_of_set(p, seq_head * group + h, block, n_kv) : 0;
    __syncthreads();
    uint32_t any = 0;
#pragma unroll
    for (int h = 0; h < GROUP_MAX; h++) any |= rows[h][lane];
    for (int h = warp; h < group && !any && block < n_blocks && blockIdx.z == 0; h += SET_WARPS)
        store_result(p.score, p.score.mass + ((size_t)seq_head * group + h) * p.score.max_blocks + block, (uint64_t)MASS_EMPTY);
    int top = REF_EMPTY;
    uint32_t chosen = __ballot_sync(~0u, any != 0);
    for (int i = 0; chosen; chosen &= chosen - 1, i++) {
        if (i % (SET_WARPS * gridDim.z) != SET_WARPS * blockIdx.z + warp) continue;
        int at = __ffs(chosen) - 1, first = (blockIdx.x * SPAN_BLOCKS + at) * BLOCK;
        uint32_t read = __shfl_sync(~0u, any, at);
        int own_page = __shfl_sync(~0u, page, at * BLOCK / SL_PAGE);
        block_masses x;
        if constexpr (FOUND == SCORED)
            x = score_set<DIM>(p, a, own_page, kv_head, first, rows, read, tiles + warp * BLOCK * DIM);
        else
            x = keep_set(p, seq_head, first, rows);
        top = max(top, store_block(p.score, seq_head, first, x));
        if (!p.reads_newest || first / SL_PAGE < newest) n_read += __popc(read);
    }
    if (lane % 4 == 0 && lane / 4 < group && top > REF_EMPTY)
        atomicMax(p.score.top + seq_head * group + lane / 4, top - REF_EMPTY);
    if (FOUND != SCORED || !p.stats || n_read == 0 || lane > 0) return;
    atomicAdd(&p.stats->k_rows, (unsigned long long)n_read);
    atomicAdd(&p.stats->bytes, (unsigned long long)n_read * counted_row(DIM));
}

// ---- draws ----

// out = sum_m v_(row m) / S over rows drawn from the stored masses; santa-flash: as in santa.cu.
//
// Grid: up to PER_SM thread blocks for each multiprocessor, which take parts of query heads in turn. `done` is complete, so
// no drawer waits.
// Bytes: the block masses of all rows and the row masses of drawn blocks, from the L2 cache, and the drawn rows of V.
// Order of reduction: as in santa.cu.
template <int DIM, int PER_SM>
__global__ void __launch_bounds__(DRAW_THREADS, PER_SM) draw_set_kernel(const draw_set_params p) {
    __shared__ __align__(16) draw_space space;
    int thread = threadIdx.x;
    sl_start_next();
    draw_all(p.score, p.draw, &space, thread, sampler_drawer<DIM, draw_set_params>{p, &space, thread});
}

// ---- launch ----

enum first_method { KEYS, UNITS, POSITIONS, QUANTISED }; // topk and topp; quest; streaming; dense-q

first_method first_of(const sl_attn_spec *spec) {
    return sl_attn_has(spec, "tokens")   ? UNITS
           : sl_attn_has(spec, "window") ? POSITIONS
           : sl_attn_has(spec, "bits")   ? QUANTISED
                                         : KEYS;
}

// The parameters of the kernels of a join. bounds: of quest.
struct join_params {
    set_params set;
    draw_set_params draw;
    bounds_params bounds;
};

size_t lay_out(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_seqs, int n_kv, void *ws, join_params *p) {
    first_method first = first_of(spec);
    int n_heads = n_seqs * geom->n_heads, unit = first == UNITS ? (int)UNIT : 1, n_entries = ceil_div(n_kv, unit);
    arena a = after_counters(ws);
    take_masses(&a, &p->set.score, geom, n_seqs, n_kv);
    take_draw_arrays(&a, &p->draw.draw, geom, n_seqs, (int)sl_attn_get(spec, "S"));
    if (first == UNITS) take_masses(&a, &p->bounds.score, geom, n_seqs, n_entries);
    if (first == UNITS || first == KEYS)
        p->set.lists = take_lists(&a, n_heads, most_selected(spec, n_entries, unit), n_entries, unit);
    return bytes_taken(a, ws);
}

size_t workspace(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_seqs, int n_tokens, int n_kv) {
    if (!IS_LONG && n_kv > ROWS_MAX) return sl_joined_long_cuda_ops.workspace(geom, spec, n_seqs, n_tokens, n_kv);
    join_params p = {};
    return lay_out(geom, spec, n_seqs, n_kv, NULL, &p);
}

template <int DIM> join_params params_of(const sl_attn_cuda_decode_args *a) {
    first_method first = first_of(a->spec);
    join_params p = {};
    p.set.score = score_params_of<DIM>(a), p.set.stats = a->stats, p.set.reads_newest = first == UNITS;
    if (first == POSITIONS) p.set.sink = (int)sl_attn_get(a->spec, "sink"), p.set.window = (int)sl_attn_get(a->spec, "window");
    if (first == UNITS) p.bounds = bounds_params_of<DIM>(a);
    p.draw.draw = draw_params_of(a, (int)sl_attn_get(a->spec, "S"));
    lay_out(a->geom, a->spec, a->n_seqs, a->max_kv, a->ws, &p);
    p.set.score.n_discarded = 0; // most row masses of a set are never written
    p.draw.score = p.set.score;
    SL_CHECK(sampler_of(a->spec->plus, &p.draw.kind) && a->max_kv <= ROWS_MAX);
    return p;
}

template <int DIM> void launch(const sl_attn_cuda_decode_args *a) {
    first_method first = first_of(a->spec);
    const join_params p = params_of<DIM>(a);
    int n_heads = a->n_seqs * a->geom->n_heads, n_parts = n_heads * p.draw.draw.parts;
    auto store_set = first == KEYS        ? store_set_kernel<DIM, KEPT>
                     : first == QUANTISED ? store_set_kernel<DIM, ALL>
                                          : store_set_kernel<DIM, SCORED>;
    if (first == UNITS) launch_bounds<DIM>(p.bounds, a->stream);
    if (first == KEYS) launch_score<DIM>(p.set.score, a->stream);
    if (first == QUANTISED) sl_cuda_store_quantised_masses(a, p.set.score.mass, p.set.score.w);
    if (p.set.lists.plan)
        launch_select(select_params_of(a->spec, first == UNITS ? p.bounds.score : p.set.score, p.set.lists, NULL), n_heads,
                      a->stream);
    bool scores = first == UNITS || first == POSITIONS;
    dim3 spans(ceil_div(p.set.score.max_blocks, SPAN_BLOCKS), a->n_seqs * a->geom->n_kv_heads);
    int n_sms = sl_multiprocessors(), n_spans = spans.x * spans.y;
    if (first != QUANTISED) spans.z = max(1, min(SETS_PER_SM * n_sms / n_spans, SPAN_BLOCKS / SET_WARPS));
    sl_launch(store_set, spans, dim3(SET_THREADS), scores ? SET_WARPS * BLOCK * DIM * sizeof(bf16) : 0, a->stream, p.set);
    if (n_parts <= DRAWERS_OF_FEW_HEADS * n_sms)
        sl_launch(draw_set_kernel<DIM, DRAWERS_OF_FEW_HEADS>, dim3(n_parts), dim3(DRAW_THREADS), 0, a->stream, p.draw);
    else
        sl_launch(draw_set_kernel<DIM, DRAWERS_OF_MANY_HEADS>, dim3(min(n_parts, DRAWERS_OF_MANY_HEADS * n_sms)),
                  dim3(DRAW_THREADS), 0, a->stream, p.draw);
}

void decode(const sl_attn_cuda_decode_args *args) {
    if (!IS_LONG && args->max_kv > ROWS_MAX) return sl_joined_long_cuda_ops.decode(args);
    SL_WITH_HEAD_DIM(args->geom->head_dim, launch, args);
}

} // namespace

const sl_attn_cuda_ops SL_TABLE_OF_UNIT(sl_joined) = {.workspace = workspace,
                                                      .decode = decode,
                                                      .needs = NULL,
                                                      .state = NULL,
                                                      .max_rows = SL_CUDA_LONG_ROWS,
                                                      .account = NULL,
                                                      .prefill = NULL,
                                                      .supports = NULL,
                                                      .mask = NULL,
                                                      .mask_workspace = NULL,
                                                      .offloaded = NULL,
                                                      .bytes = NULL};
