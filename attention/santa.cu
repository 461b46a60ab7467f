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

// Draws before each tile to s->first; returns how many there are in all. T tiles, at most TILES_MAX.
__device__ int plan_tiles(draw_space *s, const head_view &h, sampler kind, int S, int thread) {
    int T = ceil_div(h.n_blocks, TILE_BLOCKS), each = max(1, (2 * S + T) / (2 * T));
    uint64_t sum = 0, all, own = 0;
    for (int t = thread; t < T; t += DRAW_THREADS) {
        uint64_t W = tile_begin(s, h, t + 1) - tile_begin(s, h, t);
        int n = W > 0 ? each : 0;
        if (kind == TILES_PROPORTIONAL) n = (int)divide(W, S, h.total, &s->remainder[t]);
        s->first[t] = n;
        sum += n;
    }
    scan_threads(s, thread, sum, &all);
    int left = kind == TILES_PROPORTIONAL ? S - (int)all : 0; // for the largest remainders, the lower tile on ties
    for (int t = thread; left > 0 && t < T; t += DRAW_THREADS) {
        int rank = 0;
        uint64_t mine = s->remainder[t];
        for (int i = 0; i < T; i++) rank += s->remainder[i] > mine || (s->remainder[i] == mine && i < t);
        s->first[t] += rank < left;
    }
    drawers_sync();
    enum { EACH = TILES_MAX / DRAW_THREADS };
    int n[EACH];
    for (int i = 0; i < EACH; i++) {
        int t = thread * EACH + i;
        n[i] = t < T ? s->first[t] : 0;
        own += n[i];
    }
    int before = (int)(scan_threads(s, thread, own, &all) - own);
    for (int i = 0; i < EACH; i++) {
        int t = thread * EACH + i;
        if (t < T) s->first[t] = before;
        before += n[i];
    }
    if (thread == 0) s->first[T] = (int)all;
    drawers_sync();
    return (int)all;
}

struct draw {
    int row;
    float coef; // of its row of V, the normaliser included
};

// Draw number m of n.
__device__ draw draw_row(const draw_space *s, const head_view &h, sampler kind, int S, int m, const sl_rng_id &id) {
    if (kind < TILES_PROPORTIONAL) {
        uint64_t u = sl_rng_u64(&id, kind == SYSTEMATIC ? 0 : m, SL_STREAM_ATTENTION);
        uint64_t t = kind == INDEPENDENT ? threshold(h.total, 1, 0, u) : threshold(h.total, S, m, u);
        return {find_row(s, h, t), 1.0f / S};
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
    int row = find_row(s, h, begin + threshold(W, n, m - s->first[low], u));
    return {row, kind == TILES_PROPORTIONAL ? 1.0f / S : (float)((double)W / ((double)n * (double)h.total))};
}

// One query head: its draws, and their rows' sum to p.draw.out.
template <int DIM> __device__ void draw_head(const santa_params &p, draw_space *s, int slot, int head, int thread) {
    const sl_row row = p.score.rows[slot / p.score.n_kv_heads];
    int kv_head = slot % p.score.n_kv_heads, S = p.draw.S;
    sl_rng_id id = rng_of(p.draw, row, kv_head * p.score.group + head);
    head_view h = view_of(p.score, slot, head, row.position + 1);
    load_head(s, &h, thread);
    int n = h.total == 0 ? 0 : p.kind < TILES_PROPORTIONAL ? S : plan_tiles(s, h, p.kind, S, thread), n_read = 0;
    float4 sum = make_float4(0, 0, 0, 0);
    for (int m = 0; m < n; m += DRAW_THREADS) {
        draw d = m + thread < n ? draw_row(s, h, p.kind, S, m + thread, id) : draw{-1, 0};
        __syncwarp(); // a warp's 32 places are its own
        s->row[thread] = d.row, s->coef[thread] = d.coef;
        __syncwarp();
        n_read += gather<DIM>(p.draw.v, p.score.n_kv_heads, s, row.pages, kv_head, thread, &sum);
    }
    write_head<DIM>(s, sum, p.draw.out + ((size_t)slot * p.score.group + head) * DIM, thread);
    if (p.draw.stats && thread % 32 == 0) {
        atomicAdd(&p.draw.stats->v_rows, (unsigned long long)n_read);
        if (thread == 0) atomicAdd(&p.draw.stats->samples, (unsigned long long)n);
    }
}

// out = sum_m v_(row m) / S over S rows drawn from softmax(q K^T / sqrt(DIM)) (flash: tiles weighted by their exact mass).
//
// grid: a block for each multiprocessor, whatever the lengths; all of them are there at once, which the drawers' wait needs.
// precondition: counters are 0, and are 0 again at the end. K below each sequence's newest row, lengths and page tables are
// read while the kernel in front may still run, everything else after it. bytes: K once, 2 + 1/4 a row and query head of stored
// weights (written, and partly read from the L2 cache), drawn rows of V. order of reduction: masses are integers; a head's
// draws, a warp's 32 of each 128 in order, then the warps in order.
template <int DIM> __global__ void __launch_bounds__(THREADS, 1) santa_ring_kernel(const santa_params p) {
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
                 [&](int slot, int h) { draw_head<DIM>(p, &head->draw, slot, h, thread); });
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

size_t workspace(const sl_attn_geom *geom, const sl_attn_spec *, int n_seqs, int, int n_kv) {
    return score_workspace(geom, n_seqs, n_kv);
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
