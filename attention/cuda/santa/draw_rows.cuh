// attention/cuda/santa/draw_rows.cuh - draws of rows from stored masses, and the sum of their rows of V, on CUDA. This is the
// work of the drawer warps in decode kernels. The naive versions are in tests/cuda/naive.h: naive_find_row and
// naive_sum_of_rows.
//
// | role   | warps          | does                                                                                    |
// |--------|----------------|-----------------------------------------------------------------------------------------|
// | drawer | DRAW_WARPS = 4 | parts of query heads in order: waits for masses, draws, gathers V, writes the output    |
//
// While drawer warps draw the rows of a head, consumer warps score later heads. So only the draws of the last heads add time.
//
// Worked head: n_kv 32768, so 1024 blocks of 32 rows; S = 128 draws; head_dim 128. load_head: 128 threads read 1024 block
// masses, add neighbours in pairs (shift 1), and scan 512 running sums into `cum`. Each thread computes one threshold t.
// find_row: three steps of 7 comparisons find the entry of t in `cum`; the thread then loads 2 block masses and 2 x 64 bytes of
// row masses, and sums in-block masses up to t. gather: equal neighbouring rows are merged. 16 lanes load one row of V (256
// bytes), so one load instruction of a warp loads two rows. 16 loads are in flight. A lane sums 8 columns of every second row.
// put_columns adds the sums of the two half warps. sum_rows adds the sums of the 4 warps in order. With IS_BYTES a lane loads 8
// bytes, and the scale of a row multiplies its factor.
#ifndef SLEIGH_DRAW_ROWS_CUH
#define SLEIGH_DRAW_ROWS_CUH

#include "attention/cuda/long_context.cuh"
#include "attention/cuda/partial_softmax.cuh"
#include "attention/cuda/score_keys.cuh"
#include "attention/random_counter.h"

namespace {

enum {
    DRAW_WARPS = 4, // drawer warps
    DRAW_THREADS = 32 * DRAW_WARPS,
    TILE_BLOCKS = 8,                          // blocks of a sampler's tile: 256 rows
    TILES_MAX = ROWS_MAX / SL_PAGE,           // tiles of a sequence
    ENTRIES = IS_LONG ? (int)TILES_MAX : 512, // running sums of mass; 512: in shared memory, 8^3, for find_row
    LONG_SHIFT = 3,                           // IS_LONG: an entry is a tile
    DIM_MAX = 128,
    // IS_LONG: bytes of a thread block's arrays in global memory: cum and first of draw_space
    LONG_BYTES = ((ENTRIES + 1) * 8 + (TILES_MAX + 1) * 4 + 255) / 256 * 256,
};
static_assert(!IS_LONG || TILE_BLOCKS == 1 << LONG_SHIFT, "an entry is a tile");

struct draw_params {
    const bf16 *v;         // [n_pages][n_kv_heads] blocks of 256 rows
    bf16 *out;             // [n_seqs][n_kv_heads][group][head_dim]
    int layer, first_head; // first_head: sl_attn_geom.first_head
    int S;
    int parts;              // thread blocks that share the draws of one head
    int *next_part;         // counter: parts that drawers have taken
    int *released;          // [n_seqs * n_kv_heads] counter: parts that no longer read the seq_head's masses
    int *merged;            // [n_seqs * n_heads] counter: finished parts of a head
    float *partial = NULL;  // [n_seqs * n_heads][parts][head_dim]; NULL: one part
    char *of_blocks = NULL; // IS_LONG: [thread blocks][LONG_BYTES]
    sl_attn_cuda_stats *stats = NULL;
};

// The number of parts of S draws. With more parts, a thread block has fewer draws. But every part reads the head's masses
// again.
static int draw_parts(int S) {
    return min(ceil_div(S, 256), 8);
}

// Takes the array of partial sums, which heads need when several thread blocks share their draws, and the arrays of thread
// blocks. The grid has a thread block for each multiprocessor.
static inline void take_draw_arrays(arena *from, draw_params *p, const sl_attn_geom *geom, int n_seqs, int S) {
    int parts = draw_parts(S);
    p->partial = parts == 1 ? NULL : from->take<float>((size_t)n_seqs * geom->n_heads * parts * geom->head_dim);
    if (IS_LONG) p->of_blocks = from->take<char>((size_t)sl_multiprocessors() * LONG_BYTES);
}

// Everything but the arrays of the workspace. S: 0 if the method draws no rows.
static inline draw_params draw_params_of(const sl_attn_cuda_decode_args *a, int S) {
    decode_counters counters = counters_of(a, 0);
    return {.v = a->v,
            .out = a->out,
            .layer = a->layer,
            .first_head = a->geom->first_head,
            .S = S,
            .parts = S ? draw_parts(S) : 1,
            .next_part = counters.next_part,
            .released = counters.released,
            .merged = counters.merged,
            .stats = a->stats};
}

// The key and counter of a head's random numbers. head: query head of this shard.
__device__ sl_rng_id rng_of(const draw_params &p, const sl_row &row, int head) {
    return sl_attn_rng_id(row.seed, row.sequence, (uint32_t)row.position, p.layer, p.first_head + head);
}

struct draw_space {
    context_array<uint64_t, ENTRIES + 1> cum; // mass before each entry
    context_array<int, TILES_MAX + 1> first;  // draws before each tile
    uint64_t scan[DRAW_WARPS];
    int ints[2][DRAW_WARPS];      // one array for each of the two turns of sum_threads
    int ticket, is_last, is_dead; // is_dead: no part needs the seq_head's masses any more
    int row[DRAW_THREADS];        // pool rows of V
    float coef[DRAW_THREADS];
    float sums[DRAW_WARPS][DIM_MAX]; // sums of the drawer warps
};

__device__ void drawers_sync() {
    asm volatile("bar.sync 1, %0;" ::"n"(32 * DRAW_WARPS) : "memory");
}

// Number of drawer threads for which x holds.
__device__ int count_threads(bool x) {
    int n;
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %1, 0; barrier.cta.red.popc.aligned.u32 %0, 1, %2, p; }"
                 : "=r"(n)
                 : "r"((int)x), "n"(32 * DRAW_WARPS)
                 : "memory");
    return n;
}

// The stored masses of one query head, as its drawer reads them.
struct head_view {
    const uint64_t *mass; // [n_blocks]
    const bf16 *w;        // the 32 row masses of block b begin at b * stride
    const int *top;       // the largest reference minus REF_EMPTY; load_head writes the reference to top_ref
    const int32_t *pages; // of the sequence
    int n_kv_heads, kv_head;
    int stride, n_blocks;
    int shift; // an entry of `cum` covers 2^shift blocks
    int top_ref;
    uint64_t total;
};

// Query head `head` of a seq_head's group.
__device__ head_view view_of(const score_params &p, const sl_row &row, int seq_head, int head) {
    return {.mass = p.mass + ((size_t)seq_head * p.group + head) * p.max_blocks,
            .w = p.w + ((size_t)seq_head * p.max_blocks * p.group + head) * BLOCK,
            .top = p.top + seq_head * p.group + head,
            .pages = row.pages,
            .n_kv_heads = p.n_kv_heads,
            .kv_head = seq_head % p.n_kv_heads,
            .stride = p.group * BLOCK,
            .n_blocks = row.position / BLOCK + 1};
}

// The sum of x over the drawer threads. The function has only one barrier, so `turn` must alternate between 0 and 1 from call
// to call.
__device__ int sum_threads(draw_space *s, int turn, int thread, int x) {
    x = __reduce_add_sync(~0u, x);
    if (thread % 32 == 0) s->ints[turn][thread / 32] = x;
    drawers_sync();
    return s->ints[turn][0] + s->ints[turn][1] + s->ints[turn][2] + s->ints[turn][3];
}

// Inclusive scan of x over the drawer threads, and the sum of all.
__device__ uint64_t scan_threads(draw_space *s, int thread, uint64_t x, uint64_t *all) {
    int lane = thread % 32, warp = thread / 32;
    x = sl_scan_lanes(x, lane);
    drawers_sync();
    if (lane == 31) s->scan[warp] = x;
    drawers_sync();
    uint64_t sum = 0;
    for (int i = 0; i < DRAW_WARPS; i++) {
        if (i == warp) x += sum;
        sum += s->scan[i];
    }
    *all = sum;
    return x;
}

// Loads the masses of blocks [first, first + N), N even. Blocks past the last one are empty.
template <int N> __device__ void load_masses(const head_view &h, int first, uint64_t x[N]) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
        ulonglong2 both = make_ulonglong2(MASS_EMPTY, MASS_EMPTY);
        if (first + i < h.n_blocks) both = __ldcg((const ulonglong2 *)(h.mass + first + i));
        x[i] = both.x, x[i + 1] = first + i + 1 < h.n_blocks ? both.y : MASS_EMPTY;
    }
}

// load_head for entries of 2^SHIFT blocks. A warp first issues the loads of all masses of its entries, in whole cache lines,
// because nothing hides their latency after the last key. A lane can have the masses of another thread's entry. So the sums go
// through shared memory.
template <int SHIFT> __device__ void load_entries(draw_space *s, head_view *h, int thread) {
    enum { EACH = ENTRIES / DRAW_THREADS, LOADS = EACH << SHIFT >> 1, LANES = SHIFT ? 1 << SHIFT >> 1 : 1 };
    int lane = thread % 32, first = (ENTRIES / DRAW_WARPS << SHIFT) * (thread / 32) + 2 * lane; // first block of the lane
    int top = __ldcg(h->top) + REF_EMPTY;
    uint64_t x[LOADS][2], entry[EACH], own = 0;
#pragma unroll
    for (int i = 0; i < LOADS; i++) load_masses<2>(*h, first + 64 * i, x[i]);
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        uint64_t a = global_mass(x[i][0], top), b = global_mass(x[i][1], top), *to = s->cum + ((first + 64 * i) >> SHIFT);
        if (SHIFT == 0) {
            to[0] = a, to[1] = b;
            continue;
        }
        a += b;
#pragma unroll
        for (int step = 1; step < LANES; step *= 2) a += __shfl_xor_sync(~0u, a, step);
        if (lane % LANES == 0) *to = a;
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < EACH; i++) own += entry[i] = s->cum[thread * EACH + i];
    uint64_t running = scan_threads(s, thread, own, &h->total) - own;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        s->cum[thread * EACH + i] = running;
        running += entry[i];
    }
    if (thread == 0) s->cum[ENTRIES] = h->total;
    h->top_ref = top, h->shift = SHIFT;
    drawers_sync();
}

// Tiles of a head.
__device__ int tiles_of(const head_view &h) {
    return ceil_div(h.n_blocks, TILE_BLOCKS);
}

// load_head where an entry is a tile. A thread has consecutive tiles.
__device__ void load_tiles(draw_space *s, head_view *h, int thread) {
    int n = tiles_of(*h), each = ceil_div(n, (int)DRAW_THREADS), from = min(thread * each, n), end = min(from + each, n);
    int top = __ldcg(h->top) + REF_EMPTY;
    uint64_t own = 0;
    for (int tile = from; tile < end; tile++) {
        uint64_t x[TILE_BLOCKS], sum = 0;
        load_masses<TILE_BLOCKS>(*h, tile * TILE_BLOCKS, x);
#pragma unroll
        for (int i = 0; i < TILE_BLOCKS; i++) sum += global_mass(x[i], top);
        s->cum[tile] = sum, own += sum;
    }
    uint64_t running = scan_threads(s, thread, own, &h->total) - own;
    for (int tile = from; tile < end; tile++) {
        uint64_t sum = s->cum[tile];
        s->cum[tile] = running, running += sum;
    }
    if (thread == 0) s->cum[n] = h->total;
    h->top_ref = top, h->shift = LONG_SHIFT;
    drawers_sync();
}

// Loads the head's largest reference, and computes the mass before each entry. For entries past the last block this is the
// total.
__device__ void load_head(draw_space *s, head_view *h, int thread) {
    if (IS_LONG)
        load_tiles(s, h, thread);
    else if (h->n_blocks <= ENTRIES)
        load_entries<0>(s, h, thread);
    else if (h->n_blocks <= ENTRIES * 2)
        load_entries<1>(s, h, thread);
    else if (h->n_blocks <= ENTRIES * 4)
        load_entries<2>(s, h, thread);
    else
        load_entries<3>(s, h, thread);
}

// Returns how many of x[0 .. n) are at most t. x is ascending. Each step compares three elements.
template <typename T> __device__ int count_upto(const T *x, int n, T t) {
    int at = 0;
#pragma unroll 1
    for (int step = 1 << ((31 - __clz(max(n, 1))) & ~1); step > 0; step /= 4) {
        int count = 0;
#pragma unroll
        for (int i = 1; i < 4; i++) {
            int place = at + i * step - 1;
            count += place < n && x[place] <= t;
        }
        at += count * step;
    }
    return at;
}

// Mass before a sampler's tile.
__device__ uint64_t tile_begin(const draw_space *s, const head_view &h, int tile) {
    return s->cum[IS_LONG ? min(tile, tiles_of(h)) : min(tile * TILE_BLOCKS >> h.shift, (int)ENTRIES)];
}

// 1 / x. Only the last bits can be wrong.
__device__ double inverse_of(double x) {
    double y;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
    y = fma(fma(-x, y, 1.0), y, y);
    return fma(fma(-x, y, 1.0), y, y);
}

// floor((m mass + floor(u mass / 2^64)) / S). share = 1.0 / S. The function estimates the result in double precision. Then it
// corrects the estimate by the exact remainder.
__device__ uint64_t threshold(uint64_t mass, int S, double share, uint32_t m, uint64_t u) {
    uint64_t low = m * mass + __umul64hi(u, mass);
    uint64_t q = (uint64_t)((m + (double)u * 0x1p-64) * ((double)mass * share)); // below 2^60, so the error is below 2^10
    int rest = (int)(low - q * (unsigned)S), n = __float2int_rd((float)rest * (float)share);
    rest -= n * S; // n estimates floor(rest / S) with an error of at most 1
    return q + (n + (rest >= S) - (rest < 0));
}

// Sum of two row masses, as an integer.
__device__ uint64_t pair_mass(uint32_t pair) {
    return (uint64_t)unit_mass(pair & 0xffff) + unit_mass(pair >> 16);
}

// Loads the 32 row masses of a block.
__device__ void load_row_masses(const head_view &h, int block, uint4 x[4]) {
    const uint4 *w = (const uint4 *)(h.w + (size_t)block * h.stride);
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = __ldcg(w + i);
}

// The first row of a block at which the running mass reaches `limit`. The search takes steps of eight rows, then steps of one
// row.
__device__ int row_in_block(const uint4 x[4], uint64_t limit) {
    uint64_t in_block = 0;
    uint4 own = x[0];
    int row = 0;
#pragma unroll
    for (int i = 0; i < 3; i++) {
        uint64_t next = in_block + pair_mass(x[i].x) + pair_mass(x[i].y) + pair_mass(x[i].z) + pair_mass(x[i].w);
        if (row == 8 * i && next < limit) in_block = next, own = x[i + 1], row = 8 * (i + 1);
    }
    const uint32_t pairs[4] = {own.x, own.y, own.z, own.w};
    int step = 0;
#pragma unroll
    for (int i = 0; i < 7; i++) {
        in_block += unit_mass(i % 2 ? pairs[i / 2] >> 16 : pairs[i / 2] & 0xffff);
        step += in_block < limit;
    }
    return row + step;
}

// find_row within entry e of 2^SHIFT blocks. running: mass before the entry. The function issues the loads of the entry's block
// masses together. For entries of at most two blocks it also issues the loads of the row masses.
template <int SHIFT> __device__ int find_in_entry(const head_view &h, int e, uint64_t running, uint64_t t) {
    enum { N = 1 << SHIFT, M = N < 2 ? 2 : N, AHEAD = N <= 2 ? N : 1 };
    int first = e << SHIFT, at = 0, ref = 0;
    int32_t page = __ldg(h.pages + first * BLOCK / SL_PAGE); // one page holds all blocks of the entry
    uint64_t packed[M];
    uint4 x[AHEAD][4], own[4];
    load_masses<M>(h, first & ~(M - 1), packed);
#pragma unroll
    for (int i = 0; N <= 2 && i < N; i++) load_row_masses(h, min(first + i, h.n_blocks - 1), x[i]);
    if (SHIFT == 0 && first % 2) packed[0] = packed[1];
    ref = ref_of(packed[0]);
#pragma unroll
    for (int i = 0; i < N - 1; i++) {
        uint64_t next = running + global_mass(packed[i], h.top_ref);
        if (at == i && next <= t && first + i + 1 < h.n_blocks) running = next, at = i + 1, ref = ref_of(packed[i + 1]);
    }
    if (N > 2) {
        load_row_masses(h, first + at, own);
    } else {
#pragma unroll
        for (int k = 0; k < 4; k++) own[k] = at ? x[AHEAD - 1][k] : x[0][k];
    }
    // The smallest in_block for which running + to_global(in_block, shift) > t.
    uint64_t limit = (((t - running + 1) << (h.top_ref - ref)) + 255) >> 8;
    int row = (first + at) * BLOCK + row_in_block(own, limit);
    return (page * h.n_kv_heads + h.kv_head) * SL_PAGE + row % SL_PAGE;
}

// The row at threshold t < total, as a pool row: the first row whose running mass exceeds t.
__device__ int find_row(const draw_space *s, const head_view &h, uint64_t t) {
    int entry = 0; // cum[entry] <= t < cum[entry + 1]
    if (IS_LONG) entry = count_upto(s->cum + 1, tiles_of(h) - 1, t);
#pragma unroll
    for (int step = IS_LONG ? 0 : ENTRIES / 8; step > 0; step /= 8) {
        int n = 0;
#pragma unroll
        for (int i = 1; i < 8; i++) n += s->cum[entry + i * step] <= t;
        entry += n * step;
    }
    uint64_t running = s->cum[entry];
    switch (h.shift) {
    case 0:
        return find_in_entry<0>(h, entry, running, t);
    case 1:
        return find_in_entry<1>(h, entry, running, t);
    case 2:
        return find_in_entry<2>(h, entry, running, t);
    default:
        return find_in_entry<3>(h, entry, running, t);
    }
}

// ---- rows of V ----

struct row_sum { // a lane's sum over every (32 / (DIM / 8))-th row: columns 8 (lane % (DIM / 8)) .. + 7
    float x[8];
};

// The factor of a lane's row in `gather`, known before the call. A struct with IS_LATE = 1 computes the factor while the first
// rows are in flight. That costs registers.
struct known_factor {
    enum { IS_LATE = 0 };
    float x;
    __device__ float find() const { return x; }
};

// The rows of V that a kernel draws from, for `gather` and `pairs_of`: v itself, or byte_rows.
__device__ __forceinline__ auto value_rows(const score_params &p, const bf16 *v) {
    if constexpr (IS_BYTES)
        return byte_rows{v, p.is_fp8};
    else
        return v;
}

// The scale of a pool row of V; 1 for bf16 rows.
template <int DIM, typename Rows> __device__ __forceinline__ float value_scale(const Rows &v, int row) {
    if constexpr (IS_BYTES)
        return __ldg(scale_of_pool<DIM>(v.blocks, row));
    else
        return 1;
}

// x[j]: the lane's eight numbers of row (from + j) * ROWS + lane / LANES of the n rows in `row`. Numbers past n read the last
// row again, because with a condition the loads would not be in flight together.
template <int DIM, int N, typename Rows>
__device__ void load_rows(eight_numbers x[N], const Rows &v, const int *row, int n, int from, int lane, uint64_t policy) {
    enum { LANES = DIM / 8, ROWS = 32 / LANES };
#pragma unroll
    for (int j = 0; j < N; j++)
        x[j] = load_piece<DIM>(v, row[min((from + j) * ROWS + lane / LANES, n - 1)], lane % LANES, policy);
}

// Adds the N loads of load_rows to the lane's sum. coef: of the n rows. FP8: of rows of bytes.
template <int DIM, int N, bool FP8>
__device__ __forceinline__ void add_loaded(const eight_numbers x[N], const float *coef, int n, int from, int lane,
                                           row_sum *sum) {
    enum { LANES = DIM / 8, ROWS = 32 / LANES };
    int own = lane / LANES; // row of the lane among those of a load; ROWS or more: the lane has no row
#pragma unroll
    for (int j = 0; j < N; j++) {
        int i = (from + j) * ROWS + own;
        float c = own < ROWS && i < n ? coef[i] : 0;
        float y[8];
        widen8(x[j], y, FP8);
#pragma unroll
        for (int k = 0; k < 8; k++) sum->x[k] += c * y[k];
    }
}

// Adds the lanes' pool rows of V, times their factors, to the warp's sum. row -1: the lane has no row; the lanes without a row
// are the last ones of the warp. Equal neighbours are read once. s->row and s->coef have one place for each thread. AHEAD:
// loads of a lane in flight. Returns the number of rows that were read. The rows of V leave the L2 cache first. With the normal
// policy they would evict changed lines, and the cache would write these lines to memory (16 x 32k, S = 2048: 525 us with the
// normal policy, 486 us with this one). v: value_rows, or paired_rows. The scales of rows of bytes are in flight together with
// the rows.
template <int DIM, int AHEAD = 16, typename Rows, typename Space, typename Factor>
__device__ int gather(const Rows &v, Space *s, int thread, int row, Factor factor, row_sum *sum) {
    enum { LANES = DIM / 8, ROWS = 32 / LANES, PASSES = (32 + ROWS - 1) / ROWS };
    int lane = thread % 32, warp = thread / 32 * 32, before = __shfl_up_sync(~0u, row, 1);
    bool leads = row >= 0 && (lane == 0 || row != before);
    uint32_t leaders = __ballot_sync(~0u, leads), present = __ballot_sync(~0u, row >= 0);
    uint32_t later = leaders & ~(~0u >> (31 - lane)); // leaders after this lane
    int run = (later ? __ffs(later) - 1 : __popc(present)) - lane, n = __popc(leaders);
    int at = __popc(leaders & ((1u << lane) - 1));
    if (n == 0) return 0;
    if (leads) s->row[warp + at] = row; // a warp writes only 32 places: its lanes'
    float scale = IS_BYTES && leads ? value_scale<DIM>(v, row) : 1;
    if (!Factor::IS_LATE && !IS_BYTES)
        if (leads) s->coef[warp + at] = factor.find() * run;
    __syncwarp();
    enum { N = AHEAD < PASSES ? AHEAD : PASSES };
    eight_numbers x[N];
    uint64_t policy = sl_l2_policy(SL_L2_FIRST_OUT);
    load_rows<DIM, N>(x, v, s->row + warp, n, 0, lane, policy);
    if (Factor::IS_LATE || IS_BYTES) {
        float c = factor.find();
        if (leads) s->coef[warp + at] = IS_BYTES ? c * run * scale : c * run;
        __syncwarp();
    }
#pragma unroll 1
    for (int from = 0;;) {
        if constexpr (!IS_BYTES)
            add_loaded<DIM, N, false>(x, s->coef + warp, n, from, lane, sum);
        else if (v.is_fp8)
            add_loaded<DIM, N, true>(x, s->coef + warp, n, from, lane, sum);
        else
            add_loaded<DIM, N, false>(x, s->coef + warp, n, from, lane, sum);
        from += N;
        if (from * ROWS >= n) break;
        load_rows<DIM, N>(x, v, s->row + warp, n, from, lane, policy);
    }
    __syncwarp();
    return n;
}

// Adds the sums of the lanes that hold the same columns, and stores them to columns [DIM].
template <int DIM> __device__ void put_columns(float *columns, const row_sum &sum, int lane) {
    enum { LANES = DIM / 8, ROWS = 32 / LANES };
    row_sum all = sum;
#pragma unroll
    for (int i = 1; i < ROWS; i++)
#pragma unroll
        for (int k = 0; k < 8; k++) all.x[k] += __shfl_sync(~0u, sum.x[k], lane + i * LANES);
    if (lane < LANES)
#pragma unroll
        for (int k = 0; k < 8; k++) columns[lane * 8 + k] = all.x[k];
}

// Adds the sums of the drawer warps in order. Returns column `thread`.
template <int DIM> __device__ float sum_rows(draw_space *s, const row_sum &sum, int thread) {
    put_columns<DIM>(s->sums[thread / 32], sum, thread % 32);
    drawers_sync();
    float x = 0;
    if (thread < DIM)
        for (int i = 0; i < DRAW_WARPS; i++) x += s->sums[i][thread];
    return x;
}

// Column `thread` of exact attention in the first part of a head, 0 in the other parts.
template <int DIM> __device__ float exact_column(const exact_head &h, draw_space *s, int part, int thread) {
    if (part > 0) return 0;
    if (thread < 32) attend_exactly<DIM>(h, s->sums[0]);
    drawers_sync();
    return thread < DIM ? s->sums[0][thread] : 0;
}

// Writes x, column `thread` of query head `head` (counted over all sequences) or of a part of it. The part that finishes last
// adds all parts in order.
template <int DIM> __device__ void write_head(const draw_params &p, draw_space *s, float x, int head, int part, int thread) {
    if (p.parts > 1) {
        float *partial = p.partial + (size_t)head * p.parts * DIM;
        if (thread < DIM) __stcg(partial + part * DIM + thread, x);
        drawers_sync();
        if (thread == 0) s->is_last = counts_last_part(p.merged + head, 1, p.parts);
        drawers_sync();
        if (!s->is_last) return;
        x = 0;
        for (int i = 0; thread < DIM && i < p.parts; i++) x += __ldcg(partial + i * DIM + thread);
    }
    if (thread < DIM) p.out[(size_t)head * DIM + thread] = __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

// ---- order of heads ----

// Waits until all masses of a seq_head of n_kv rows are stored.
__device__ void wait_scored(const score_params &p, int seq_head, int n_kv, int thread) {
    if (thread == 0) {
        int wanted = done_target(CONSUMER_WARPS, n_kv);
        while (load_acquired(p.done + seq_head) != wanted) __nanosleep(20);
    }
    drawers_sync();
}

// Thread 0 counts that this part no longer reads the stored masses of its seq_head. Issue the atomic before gathering V, to
// hide its latency. row: the row that the thread has found, or any number. The barrier consumes `row`, so no load of masses is
// in flight when another thread block discards them.
__device__ int release_masses(const draw_params &d, int seq_head, int thread, int row) {
    count_threads(row >= 0);
    return thread == 0 ? sl_take_number(d.released + seq_head) : 0;
}

// n_released: the result of release_masses. The last part of a seq_head sets the counters to 0. Returns to thread 0 whether
// this part was the last.
__device__ bool clear_counters(const score_params &p, const draw_params &d, int seq_head, int n_released, int thread) {
    if (thread > 0 || n_released < p.group * d.parts - 1) return false;
    p.done[seq_head] = d.released[seq_head] = 0;
    for (int i = 0; p.top && i < p.group; i++) p.top[seq_head * p.group + i] = 0;
    return true;
}

// release_masses and clear_counters together, for heads that read stored data until they end.
__device__ void release_and_clear(const score_params &p, const draw_params &d, int seq_head, int thread) {
    clear_counters(p, d, seq_head, release_masses(d, seq_head, thread, -1), thread);
}

// Draws all heads, part by part. drawer.draw(seq_head, head of the group, part) waits for the masses, draws, releases the
// masses and clears the counters. It returns to thread 0 whether no part needs the seq_head's masses any more. In this case
// draw_all discards the masses. The first part of a thread block has the number blockIdx.x. The thread block takes the numbers
// of the others from a counter, each while it draws the part before.
template <typename Drawer>
__device__ void draw_all(const score_params &p, const draw_params &d, draw_space *s, int thread, const Drawer &drawer) {
    int n_each = p.group * d.parts, n = p.n_seqs * p.n_kv_heads * n_each, ticket = blockIdx.x, taken = 0;
#ifdef SL_LONG_CONTEXT
    if (thread == 0) {
        char *at = d.of_blocks + (size_t)blockIdx.x * LONG_BYTES;
        s->cum = (uint64_t *)at, s->first = (int *)(at + (ENTRIES + 1) * sizeof(uint64_t));
    }
    drawers_sync();
#endif
    sl_wait_previous();
    if (thread == 0) taken = sl_take_number(d.next_part);
    while (ticket < n) {
        int seq_head = ticket / n_each, rest = ticket % n_each;
        bool is_last = drawer.draw(seq_head, rest / d.parts, rest % d.parts);
        if (thread == 0) {
            s->is_dead = is_last;
            s->ticket = gridDim.x + taken;
            if (s->ticket < n) taken = sl_take_number(d.next_part);
        }
        drawers_sync(); // after this barrier, s may be written again
        if (s->is_dead) discard_stored(p, seq_head, p.rows[seq_head / p.n_kv_heads].position + 1, thread, DRAW_THREADS);
        ticket = s->ticket;
    }
    // Each thread block takes one number past the last part. So the thread block with the last of these numbers clears the
    // counter.
    if (thread == 0 && taken == (int)gridDim.x - 1 + max(n - (int)gridDim.x, 0)) *d.next_part = 0;
}

} // namespace

#endif
