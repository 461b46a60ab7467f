// attention/cuda/santa/samplers.cuh - the samplers of the SANTA family on CUDA: which rows the drawer warps draw from stored
// masses. The naive versions are in tests/cuda/naive.h: naive_draw_systematic and naive_draw_independent.
//
// The draws are the same as in draw_samplers.c: integer thresholds on integer masses. So equal stored masses give equal rows.
#ifndef SLEIGH_SAMPLERS_CUH
#define SLEIGH_SAMPLERS_CUH

#include "attention/cuda/santa/draw_rows.cuh"

#include <type_traits>

namespace {

enum sampler { INDEPENDENT, STRATIFIED, SYSTEMATIC, TILES_PROPORTIONAL, TILES_UNIFORM };

// ---- budgets of tiles ----

// Returns q and r with W S = q mass + r, 0 <= r < mass. mass < 2^60, q < 2^32.
__device__ uint32_t divide(uint64_t W, int S, uint64_t mass, uint64_t *r) {
    uint32_t q = (uint32_t)((double)W * inverse_of((double)mass) * S); // the error is at most 1
    int64_t rest = (int64_t)(W * (uint64_t)S - q * mass);              // between -mass and 2 mass, although both products wrap
    if (rest < 0) {
        q--;
        rest += (int64_t)mass;
    } else if (rest >= (int64_t)mass) {
        q++;
        rest -= (int64_t)mass;
    }
    *r = (uint64_t)rest;
    return q;
}

// A bit for each of a thread's tiles.
template <int EACH> using tile_bits = std::conditional_t<EACH <= 32, uint32_t, uint64_t>;
__device__ int count_bits(uint32_t x) {
    return __popc(x);
}
__device__ int count_bits(uint64_t x) {
    return __popcll(x);
}

// Selects the `wanted` largest values of all threads. On ties it selects the lower tile. Bit i of the result: the function
// selects tile thread * EACH + i, which has the value x[i]. Preconditions: at least `wanted` values are not 0; values are below
// 2^n_bits; the last call of sum_threads before this call had turn 0. The function finds the smallest selected value bit by
// bit.
template <int EACH>
__device__ tile_bits<EACH> select_largest(draw_space *s, const uint64_t x[EACH], int n_bits, int wanted, int thread) {
    typedef tile_bits<EACH> bits;
    bits open = ~(bits)0 >> (8 * sizeof(bits) - EACH), chosen = 0;
    int n_open = EACH * DRAW_THREADS;
    for (int bit = n_bits - 1, turn = 1; bit >= 0 && wanted < n_open; bit--, turn ^= 1) {
        bits ones = 0;
#pragma unroll(EACH <= 4 ? EACH : 1)
        for (int i = 0; i < EACH; i++) ones |= (bits)(x[i] >> bit & 1) << i;
        ones &= open;
        int n = EACH == 1 ? count_threads(ones) : sum_threads(s, turn, thread, count_bits(ones));
        if (n >= wanted) {
            open = ones, n_open = n;
        } else {
            chosen |= ones, open &= ~ones;
            wanted -= n, n_open -= n;
        }
    }
    if (wanted == n_open) return chosen | open;
    uint64_t all;
    int before = (int)scan_threads(s, thread, count_bits(open), &all) - count_bits(open);
    for (; open && before < wanted; open &= open - 1, before++) chosen |= open & -open; // ties
    return chosen;
}

// Stores to s->first how many draws come before each tile. Returns the total number of draws. There are at most TILES_MAX
// tiles. A thread has EACH consecutive tiles.
template <int EACH> __device__ int plan_each(draw_space *s, const head_view &h, sampler kind, int S, int thread) {
    int T = tiles_of(h), each = max(1, (2 * S + T) / (2 * T)), n[EACH], own = 0;
    uint64_t remainder[EACH] = {}, all;
#pragma unroll(EACH <= 4 ? EACH : 1)
    for (int i = 0; i < EACH; i++) {
        int t = thread * EACH + i;
        uint64_t W = tile_begin(s, h, t + 1) - tile_begin(s, h, t);
        n[i] = kind == TILES_PROPORTIONAL && W > 0 ? (int)divide(W, S, h.total, &remainder[i]) : W > 0 ? each : 0;
        own += n[i];
    }
    if (kind == TILES_PROPORTIONAL) {
        int left = S - sum_threads(s, 0, thread, own);
        tile_bits<EACH> more = left ? select_largest<EACH>(s, remainder, 64 - __clzll(h.total), left, thread) : 0;
        own += count_bits(more);
#pragma unroll(EACH <= 4 ? EACH : 1)
        for (int i = 0; i < EACH; i++) n[i] += more >> i & 1;
    }
    int before = (int)scan_threads(s, thread, own, &all) - own;
#pragma unroll(EACH <= 4 ? EACH : 1)
    for (int i = 0; i < EACH; i++) {
        s->first[thread * EACH + i] = before;
        before += n[i];
    }
    if (thread == 0) s->first[EACH * DRAW_THREADS] = (int)all;
    drawers_sync();
    return (int)all;
}

__device__ int plan_tiles(draw_space *s, const head_view &h, sampler kind, int S, int thread) {
    if (h.n_blocks <= DRAW_THREADS * TILE_BLOCKS) return plan_each<1>(s, h, kind, S, thread);
    return plan_each<TILES_MAX / DRAW_THREADS>(s, h, kind, S, thread);
}

struct draw {
    int pool;   // pool row
    float coef; // factor of the row of V; it includes the normaliser
};

// The uniform number of draw m, for samplers whose number does not depend on the masses. Other samplers get 0.
__device__ uint64_t uniform_of(sampler kind, int m, const sl_rng_id &id) {
    return kind < TILES_PROPORTIONAL ? sl_draw_random(&id, kind == SYSTEMATIC ? 0 : m) : 0;
}

// Draw m of S. share: 1.0 / S.
__device__ draw draw_row(const draw_space *s, const head_view &h, sampler kind, int S, double share, int m, uint64_t u,
                         const sl_rng_id &id) {
    uint64_t begin = 0, W = h.total;
    float coef = (float)share;
    if (kind == INDEPENDENT) S = 1, share = 1, m = 0;
    if (kind >= TILES_PROPORTIONAL) {
        int tile = count_upto(s->first + 1, tiles_of(h) - 1, m);
        begin = tile_begin(s, h, tile), W = tile_begin(s, h, tile + 1) - begin;
        m -= s->first[tile], S = s->first[tile + 1] - s->first[tile], share = inverse_of(S);
        u = sl_draw_random(&id, tile);
        if (kind == TILES_UNIFORM) coef = (float)((double)W / ((double)S * (double)h.total));
    }
    return {find_row(s, h, begin + threshold(W, S, share, m, u)), coef};
}

// The first of n draws that belongs to part `part`. n < 2^28.
__device__ int part_of(int n, int part, int parts) {
    return (unsigned)(n * part) / parts;
}

// Draws one part of a query head and sums its rows. Returns to thread 0 whether this part was the last one of its seq_head.
template <int DIM>
__device__ bool draw_head(const score_params &p, const draw_params &d, sampler kind, draw_space *s, int seq_head, int head,
                          int part, int thread) {
    const sl_row row = p.rows[seq_head / p.n_kv_heads];
    int S = d.S, index = seq_head * p.group + head, n_read = 0;
    sl_rng_id id = rng_of(d, row, seq_head % p.n_kv_heads * p.group + head);
    head_view h = view_of(p, row, seq_head, head);
    uint64_t u = uniform_of(kind, part_of(S, part, d.parts) + thread, id);
    double share = 1.0 / S; // `u` and `share` are computed before the wait, while keys are still scored
    wait_scored(p, seq_head, row.position + 1, thread);
    load_head(s, &h, thread);
    bool exact = is_beyond(h.top_ref);
    int n = h.total == 0 || exact ? 0 : kind < TILES_PROPORTIONAL ? S : plan_tiles(s, h, kind, S, thread);
    int from = part_of(n, part, d.parts), end = part_of(n, part + 1, d.parts);
    row_sum sum = {};
    int n_released = from == end ? release_masses(d, seq_head, thread, -1) : 0;
    for (int m = from; m < end; m += DRAW_THREADS) {
        draw x = m + thread < end ? draw_row(s, h, kind, S, share, m + thread, u, id) : draw{-1, 0};
        if (m + DRAW_THREADS >= end)
            n_released = release_masses(d, seq_head, thread, x.pool);
        else
            u = uniform_of(kind, m + DRAW_THREADS + thread, id);
        n_read += gather<DIM>(value_rows(p, d.v), s, thread, x.pool, known_factor{x.coef}, &sum);
    }
    float x = exact ? exact_column<DIM>(exact_head_of(p, d.v, d.stats, row, seq_head, head, DIM), s, part, thread)
                    : sum_rows<DIM>(s, sum, thread);
    write_head<DIM>(d, s, x, index, part, thread);
    bool is_last = clear_counters(p, d, seq_head, n_released, thread);
    if (d.stats && thread % 32 == 0) {
        atomicAdd(&d.stats->v_rows, (unsigned long long)n_read);
        atomicAdd(&d.stats->bytes, (unsigned long long)n_read * counted_row(DIM));
        if (thread == 0) atomicAdd(&d.stats->samples, (unsigned long long)(end - from));
    }
    return is_last;
}

// The `drawer` of draw_all: draws one part of a query head. Params: of a kernel, with the members `score`, `draw` and `kind`.
template <int DIM, typename Params> struct sampler_drawer {
    const Params &p;
    draw_space *space;
    int thread;
    __device__ bool draw(int seq_head, int head, int part) const {
        return draw_head<DIM>(p.score, p.draw, p.kind, space, seq_head, head, part, thread);
    }
};

// Finds the sampler of a method of the SANTA family. Returns 0 if the method has none.
static inline int sampler_of(const sl_attn_method *m, sampler *out) {
    const sl_attn_cuda_ops *const ops[] = {&sl_santa_cuda_ops, &sl_santa_strat_cuda_ops, &sl_santa_sys_cuda_ops,
                                           &sl_santa_prop_cuda_ops, &sl_santa_flash_cuda_ops};
    for (int i = INDEPENDENT; i <= TILES_UNIFORM; i++)
        if (m->cuda == ops[i]) return *out = (sampler)i, 1;
    return 0;
}

} // namespace

#endif
