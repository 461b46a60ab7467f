// attention/santa.cu - the SANTA family on CUDA: exact scores of all keys, S drawn rows of V, in one kernel.
//
// A block has a producer warp that streams K through a ring, consumer warps that turn scores into stored weights (stages.h:
// bf16 beside a power of two for each block of 32 rows, and integer masses), and drawer warps. Drawers take query heads in
//
// The draws are draw_samplers.c's: integer thresholds on integer masses, so equal stored weights give equal rows.
#include "attention/draw_rows.h"
#include "attention/head_dim.h"

namespace {

enum sampler { INDEPENDENT, STRATIFIED, SYSTEMATIC, TILES_PROPORTIONAL, TILES_UNIFORM };
enum { THREADS = 32 * (1 + CONSUMERS) + DRAW_THREADS };

struct santa_params {
    score_params score;
    draw_params draw;
    sampler kind;
};

struct shared_head {
    score_head score;
    draw_space draw;
};
enum { HEAD_BYTES = (sizeof(shared_head) + 127) / 128 * 128 };

// ---- budgets of tiles ----

// W S = q mass + r: q < 2^32, r < mass.
__device__ uint32_t divide(uint64_t W, int S, uint64_t mass, uint64_t *r) {
    uint32_t q = (uint32_t)((double)W / (double)mass * S);
    uint64_t low = W * (uint64_t)S, high = __umul64hi(W, (uint64_t)S);
    uint64_t part = q * mass, part_high = __umul64hi(q, mass);
    int64_t rest_high = (int64_t)(high - part_high - (low < part));
    uint64_t rest = low - part;
    while (rest_high < 0) { // the estimate was one too large
        q--;
        rest += mass;
        rest_high += rest < mass;
    }
    while (rest_high > 0 || rest >= mass) {
        q++;
        rest_high -= rest < mass;
        rest -= mass;
    }
    *r = rest;
    return q;
}

// Bit i: the tile of value x[i] is one of the `wanted` largest of all threads' values, the lower tile on ties. A thread has the
// tiles from EACH * thread on; values are below 2^n_bits. Finds the least of them bit by bit.
template <int EACH> __device__ int select_largest(draw_space *s, const uint64_t x[EACH], int n_bits, int wanted, int thread) {
    int open = (1 << EACH) - 1, chosen = 0, n_open = EACH * DRAW_THREADS, turn = 0;
    for (int bit = n_bits - 1; bit >= 0 && wanted < n_open; bit--, turn ^= 1) {
        int ones = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++) ones |= (int)(x[i] >> bit & 1) << i;
        ones &= open;
        int n = sum_threads(s, thread, __popc(ones), turn);
        if (n >= wanted) {
            open = ones, n_open = n;
        } else {
            chosen |= ones, open &= ~ones;
            wanted -= n, n_open -= n;
        }
    }
    uint64_t all;
    int before = wanted < n_open ? (int)scan_threads(s, thread, __popc(open), &all) - __popc(open) : 0;
    for (int i = 0; i < EACH; i++)
        if (open >> i & 1 && before++ < wanted) chosen |= 1 << i;
    return chosen;
}

// Draws before each tile to s->first; returns how many there are in all. T tiles, at most TILES_MAX.
__device__ int plan_tiles(draw_space *s, const head_view &h, sampler kind, int S, int thread) {
    enum { EACH = TILES_MAX / DRAW_THREADS };
    int T = ceil_div(h.n_blocks, TILE_BLOCKS), each = max(1, (2 * S + T) / (2 * T)), n[EACH], own = 0;
    uint64_t remainder[EACH] = {}, all;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int t = thread * EACH + i;
        uint64_t W = tile_begin(s, h, t + 1) - tile_begin(s, h, t);
        n[i] = kind == TILES_PROPORTIONAL && W > 0 ? (int)divide(W, S, h.total, &remainder[i]) : W > 0 ? each : 0;
        own += n[i];
    }
    if (kind == TILES_PROPORTIONAL) {
        int left = S - sum_threads(s, thread, own, 1);
        int more = left ? select_largest<EACH>(s, remainder, 64 - __clzll(h.total), left, thread) : 0;
#pragma unroll
        for (int i = 0; i < EACH; i++) n[i] += more >> i & 1;
        own += __popc(more);
    }
    int before = (int)scan_threads(s, thread, own, &all) - own;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        s->first[thread * EACH + i] = before;
        before += n[i];
    }
    if (thread == 0) s->first[TILES_MAX] = (int)all;
    drawers_sync();
    return (int)all;
}

struct draw {
    int pool;   // row of the pool
    float coef; // of its row of V, the normaliser included
};

// Draw number m of n.
__device__ draw draw_row(const draw_space *s, const head_view &h, sampler kind, int S, int m, const sl_rng_id &id) {
    if (kind < TILES_PROPORTIONAL) {
        uint64_t u = sl_rng_u64(&id, kind == SYSTEMATIC ? 0 : m, SL_STREAM_ATTENTION);
        uint64_t t = kind == INDEPENDENT ? threshold(h.total, 1, 0, u) : threshold(h.total, S, m, u);
        return {find_row(s, h, t).pool, 1.0f / S};
    }
    int low = 0, high = ceil_div(h.n_blocks, TILE_BLOCKS); // first[low] <= m < first[high]
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (s->first[middle] <= m)
            low = middle;
        else
            high = middle;
    }
    uint64_t begin = tile_begin(s, h, low), W = tile_begin(s, h, low + 1) - begin,
             u = sl_rng_u64(&id, low, SL_STREAM_ATTENTION);
    int n = s->first[low + 1] - s->first[low];
    int pool = find_row(s, h, begin + threshold(W, n, m - s->first[low], u)).pool;
    return {pool, kind == TILES_PROPORTIONAL ? 1.0f / S : (float)((double)W / ((double)n * (double)h.total))};
}

// Part `part` of one query head's draws, and their rows' sum.
template <int DIM> __device__ void draw_head(const santa_params &p, draw_space *s, int slot, int head, int part, int thread) {
    const sl_row row = p.score.rows[slot / p.score.n_kv_heads];
    int S = p.draw.S, index = slot * p.score.group + head, n_read = 0;
    sl_rng_id id = rng_of(p.draw, row, slot % p.score.n_kv_heads * p.score.group + head);
    head_view h = view_of(p.score, row, slot, head);
    wait_scored(p.score, slot, row.position + 1, thread);
    load_head(s, &h, thread);
    int n = h.total == 0 ? 0 : p.kind < TILES_PROPORTIONAL ? S : plan_tiles(s, h, p.kind, S, thread);
    int from = (int)((int64_t)n * part / p.draw.parts), end = (int)((int64_t)n * (part + 1) / p.draw.parts);
    row_sum sum = {};
    for (int m = from + thread; m - thread < end; m += DRAW_THREADS) {
        draw d = m < end ? draw_row(s, h, p.kind, S, m, id) : draw{-1, 0};
        __syncwarp(); // a warp's 32 places are its own
        s->row[thread] = d.pool, s->coef[thread] = d.coef;
        __syncwarp();
        n_read += gather<DIM>(p.draw.v, s, thread, &sum);
    }
    write_head<DIM>(p.draw, s, sum, index, part, thread);
    if (p.draw.stats && thread % 32 == 0) {
        atomicAdd(&p.draw.stats->v_rows, (unsigned long long)n_read);
        atomicAdd(&p.draw.stats->bytes, (unsigned long long)n_read * DIM * sizeof(bf16));
        if (thread == 0) atomicAdd(&p.draw.stats->samples, (unsigned long long)(end - from));
    }
}

// out = sum_m v_(row m) / S over S rows drawn from softmax(q K^T / sqrt(DIM)) (flash: tiles weighted by their exact mass).
//
// grid: a block for each multiprocessor, whatever the lengths; all of them are there at once, which the drawers' wait needs.
// precondition: counters are 0, and are 0 again at the end. K below each sequence's newest row, lengths and page tables are
// read while the kernel in front may still run, everything else after it. bytes: K once, 2 + 1/4 a row and query head of stored
// weights (written, and partly read from the L2 cache), drawn rows of V. order of reduction: masses are integers; a head's
// draws, a warp's 32 of each 128 in order, then the warps in order.
template <int DIM> __global__ void __maxnreg__(144) santa_ring_kernel(const santa_params p) {
    extern __shared__ __align__(128) char memory[];
    shared_head *head = (shared_head *)memory;
    score_begin(p.score, &head->score);
    __syncthreads();
    sl_start_next();
    ring r = {&head->score, memory + HEAD_BYTES, p.score.n_stages, layout<DIM>::stage(p.score.group), 0, 0};
    int warp = threadIdx.x / 32, thread = threadIdx.x - 32 * CONSUMERS;
    if (warp < CONSUMERS)
        consume<DIM>(p.score, r);
    else if (warp < CONSUMERS + DRAWERS)
        draw_all(p.score, p.draw, &head->draw, thread,
                 [&](int slot, int h, int part) { draw_head<DIM>(p, &head->draw, slot, h, part, thread); });
    else
        produce<DIM>(p.score, r);
}

// ---- launch ----

template <int DIM> void launch(const sl_attn_cuda_decode_args *a, sampler kind) {
    santa_params p = {.score = score_params_of<DIM>(a), .draw = draw_params_of(a), .kind = kind};
    SL_CHECK(ceil_div(p.score.max_blocks, TILE_BLOCKS) <= TILES_MAX);
    size_t bytes = HEAD_BYTES + (size_t)p.score.n_stages * layout<DIM>::stage(p.score.group);
    sl_launch(santa_ring_kernel<DIM>, dim3(sl_multiprocessors()), dim3(THREADS), bytes, a->stream, p);
}

size_t workspace(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_seqs, int, int n_kv) {
    return score_workspace(geom, n_seqs, n_kv) + draw_workspace(geom, n_seqs, (int)sl_attn_get(spec, "S"));
}

// All keys; what is drawn of V the kernel counts.
void account(const sl_attn_geom *geom, const sl_attn_spec *, int n_kv, sl_attn_stats *stats) {
    stats->k_rows += (uint64_t)n_kv * geom->n_kv_heads;
    stats->bytes += (uint64_t)n_kv * geom->n_kv_heads * geom->head_dim * sizeof(bf16);
    stats->features += geom->n_heads;
}

template <sampler KIND> void decode(const sl_attn_cuda_decode_args *args) {
    sl_with_head_dim(args->geom->head_dim, [&](auto dim) { launch<dim>(args, KIND); });
}

} // namespace

#define OPS(KIND)                                                                                                              \
    { .workspace = workspace, .decode = decode<KIND>, .needs = NULL, .state = NULL, .account = account, .prefill = NULL }
const sl_attn_cuda_ops sl_santa_cuda_ops = OPS(INDEPENDENT), sl_santa_strat_cuda_ops = OPS(STRATIFIED),
                       sl_santa_sys_cuda_ops = OPS(SYSTEMATIC), sl_santa_prop_cuda_ops = OPS(TILES_PROPORTIONAL),
                       sl_santa_flash_cuda_ops = OPS(TILES_UNIFORM);
