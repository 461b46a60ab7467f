// attention/take_all.h - take-all + PPS draws from one head's stored sizes, on CUDA: sl_draw_take_all (draw_pps.c), the same
// rows and the same 1 / pi_j, by the drawers of a block (draw_rows.h).
//
// A row is heavy when its size exceeds kappa = light / (S - heavy). kappa only falls as rows become heavy, so that the
// sets {size > kappa}, taken again and again, grow to the very set that the CPU finds in order of size; equal sizes are all
// heavy or all light. Nothing is sorted. A bound on kappa from below follows from masses and references of blocks alone
// (least_heavy); only rows above it, the candidates, are then asked again and again, in registers. Where they are too many,
// blocks are read anew each time: as right, and slower.
//
// Owns: rows and their expected counts. What they weigh, and whose rows they are, is the caller's.
#ifndef SLEIGH_TAKE_ALL_H
#define SLEIGH_TAKE_ALL_H

#include "attention/draw_rows.h"

namespace {

enum {
    CANDIDATES = 384,       // rows that may be heavy
    CANDIDATE_BLOCKS = 384, // that hold them
    OCTAVES = 32,           // below the largest size; what is smaller counts as the last
    SIZE_BITS = 40,         // of a candidate: a size is at most 2^38, and a uniform part of it
};
const uint64_t SIZE_MASK = (1ull << SIZE_BITS) - 1;

struct take_space {
    uint32_t octave[4][OCTAVES];    // sums of in-block mass by reference, in units of 2^24; a column for lane % 4
    int block[CANDIDATE_BLOCKS];    // ascending
    uint64_t candidate[CANDIDATES]; // row << 40 | size, ascending; in the end the heavy rows alone
};

// Stored sizes of one head (stages.h).
struct size_view {
    const uint64_t *mass; // [n_blocks] ref << 48 | in-block mass; 16-byte aligned
    const bf16 *w;        // block b's 32 sizes begin at b * stride; 16-byte aligned
    int stride, n;        // rows, at most 131072
    double alpha;         // p <- (1 - alpha) p + alpha / n: sl_weights_mix
    int other_top;        // largest reference of rows beyond these: stays the unit where at most 8 above (sl_weights_keep)
    // filled by take_all_solve
    int n_blocks, shift, top;
    uint64_t each, total;
};

__device__ size_view size_view_of(const uint64_t *mass, const bf16 *w, int stride, int n) {
    return {.mass = mass, .w = w, .stride = stride, .n = n, .other_top = REF_EMPTY, .n_blocks = ceil_div(n, BLOCK)};
}

struct take_all {
    int n_heavy, k; // n_heavy + k draws in all
    uint64_t light; // total size of the light rows
    uint64_t cut;   // a row is heavy if its size exceeds it
    bool listed;    // the heavy rows are take_space.candidate[0 .. n_heavy)
};

// ---- sizes of rows ----

// No row of the block is larger.
__device__ uint64_t largest_of(const size_view &z, uint64_t packed) {
    return to_global(1u << 30, z.top - ref_of(packed)) + z.each;
}

__device__ uint64_t each_of_rows(const size_view &z, int from, int n) {
    return z.each * (uint64_t)max(min(n, z.n - from), 0);
}

struct block_sizes {
    uint4 w[4];
    int shift;
    __device__ block_sizes(const size_view &z, int b, uint64_t packed) : shift(z.top - ref_of(packed)) {
        const uint4 *from = (const uint4 *)(z.w + (size_t)b * z.stride);
#pragma unroll
        for (int i = 0; i < 4; i++) w[i] = __ldcg(from + i);
    }
    // f(i, size) for the block's 32 rows in order.
    template <typename F> __device__ void walk(uint64_t each, F f) const {
        const uint32_t *pairs = (const uint32_t *)w;
        uint64_t in_block = 0, before = 0;
#pragma unroll
        for (int i = 0; i < BLOCK; i++) {
            in_block += unit_mass(i % 2 ? pairs[i / 2] >> 16 : pairs[i / 2] & 0xffff);
            uint64_t running = to_global(in_block, shift);
            f(i, running - before + each);
            before = running;
        }
    }
};

__device__ uint64_t sum_lanes(uint64_t x) { // of numbers below 2^52
    uint32_t low = __reduce_add_sync(~0u, (uint32_t)x & 0x3ffffff), high = __reduce_add_sync(~0u, (uint32_t)(x >> 26));
    return ((uint64_t)high << 26) + low;
}

// ---- candidates ----

// kappa is not below this: by concavity a block of mass M whose rows are at most U has an expected count of at least that of
// M / U rows of size U, min(M / U, M / kappa), and the largest kappa whose expected counts come to S is sought. Octave o holds
// blocks of U = 2^(38 - o). With a uniform part e, min(1, (z + e) / kappa) >= e / kappa + (1 - e / kappa) min(1, z / kappa).
__device__ uint64_t least_heavy(const take_space *s, const size_view &z, int S) {
    int lane = threadIdx.x % 32;
    uint32_t sum = s->octave[0][lane] + s->octave[1][lane] + s->octave[2][lane] + s->octave[3][lane];
    float t = exp2f((float)lane), above = (float)sum / 64,
          below = above / t; // t: 2^38 / kappa; above: counts of octaves <= lane
    float own = below;
    for (int step = 1; step < 32; step *= 2) {
        float a = __shfl_up_sync(~0u, above, step), b = __shfl_down_sync(~0u, below, step);
        if (lane >= step) above += a;
        if (lane + step < 32) below += b;
    }
    float uniform = fminf((float)z.each * 0x1p-38f * t, 1);
    float count = z.n * uniform + (1 - uniform) * (above + t * (below - own));
    uint32_t enough = __ballot_sync(~0u, count >= S);
    if (!enough) return 0;
    int o = __ffs(enough) - 1;
    float count1 = __shfl_sync(~0u, count, o), count0 = o ? __shfl_sync(~0u, count, o - 1) : 0;
    float t1 = exp2f((float)o), t0 = o ? t1 / 2 : 0; // concave in between: the chord lies below
    return (uint64_t)(0x1p38f * 0.999f / (t0 + (S - count0) / (count1 - count0) * (t1 - t0)));
}

// The rows in s->block[0 .. n_blocks) larger than `least`, to s->candidate; their number, or -1: too many.
__device__ int collect_rows(draw_space *d, take_space *s, const size_view &z, int n_blocks, uint64_t least, int thread) {
    int n = 0;
    for (int i = thread; i - thread < n_blocks; i += DRAW_THREADS) {
        bool there = i < n_blocks;
        int b = s->block[there ? i : 0];
        block_sizes sizes(z, b, __ldcg(z.mass + b));
        uint32_t mask = 0;
        sizes.walk(z.each, [&](int j, uint64_t size) { mask |= (uint32_t)(size > least) << j; });
        if (!there) mask = 0;
        if (z.n - b * BLOCK < BLOCK) mask &= (1u << (z.n - b * BLOCK)) - 1;
        uint64_t all;
        int at = n + (int)scan_threads(d, thread, __popc(mask), &all) - __popc(mask);
        n += (int)all;
        if (n > CANDIDATES) return -1;
        if (mask)
            sizes.walk(z.each, [&](int j, uint64_t size) {
                if (mask >> j & 1) s->candidate[at++] = (uint64_t)(b * BLOCK + j) << SIZE_BITS | size;
            });
    }
    drawers_sync();
    return n;
}

// Of sizes in entries of 2^SHIFT blocks: the unit, the total, the entries' sizes to d->cum, and the rows larger than *least, a
// bound on kappa, to s->candidate. Returns their number, or -1: too many. A thread asks for all its masses at once.
template <int SHIFT>
__device__ int find_candidates(draw_space *d, take_space *s, size_view *z, int S, uint64_t *least, int thread) {
    enum { EACH = ENTRIES / DRAW_THREADS, BLOCKS = EACH << SHIFT, N = BLOCKS < 8 ? BLOCKS : 8, PER_ENTRY = 1 << SHIFT };
    int first = thread * BLOCKS, top = REF_EMPTY, lane = thread % 32;
    head_view masses = {.mass = z->mass, .n_blocks = z->n_blocks};
    uint64_t x[N], entry[EACH] = {}, own = 0;
    uint32_t mask = 0;
#pragma unroll
    for (int i = 0; i < BLOCKS; i += N) {
        load_masses<N>(masses, first + i, x);
#pragma unroll
        for (int j = 0; j < N; j++) top = max(top, ref_of(x[j]));
    }
    top = __reduce_max_sync(~0u, top);
    if (lane == 0) d->ints[0][thread / 32] = top;
    s->octave[thread / 32][lane] = 0;
    drawers_sync();
    top = max(max(d->ints[0][0], d->ints[0][1]), max(d->ints[0][2], d->ints[0][3]));
    z->top = top = z->other_top > top && z->other_top - top <= 8 ? z->other_top : top;
    z->shift = SHIFT;
#pragma unroll
    for (int i = 0; i < BLOCKS; i += N) {
        if (BLOCKS > N) load_masses<N>(masses, first + i, x); // again: so many do not fit
#pragma unroll
        for (int j = 0; j < N; j++) {
            int octave = top - ref_of(x[j]);
            uint64_t units = (x[j] & 0xffffffffffffull) >> 24;
            entry[(i + j) / PER_ENTRY] += global_mass(x[j], top);
            if (octave >= OCTAVES) units = octave < 64 ? units >> (octave - (OCTAVES - 1)) : 0, octave = OCTAVES - 1;
            if (units) atomicAdd(&s->octave[lane % 4][octave], (uint32_t)units);
        }
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) own += entry[i];
    scan_threads(d, thread, own, &z->total);
    if (z->alpha > 0) z->each = (uint64_t)(z->alpha / (1 - z->alpha) * (double)z->total / z->n);
    z->total += z->each * (uint64_t)z->n;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        d->cum[thread * EACH + i] = entry[i] + each_of_rows(*z, (thread * EACH + i) * PER_ENTRY * BLOCK, PER_ENTRY * BLOCK);
    *least = least_heavy(s, *z, S);
#pragma unroll
    for (int i = 0; i < BLOCKS; i += N) {
        if (BLOCKS > N) load_masses<N>(masses, first + i, x);
#pragma unroll
        for (int j = 0; j < N; j++) mask |= (uint32_t)(first + i + j < z->n_blocks && largest_of(*z, x[j]) > *least) << (i + j);
    }
    uint64_t all;
    int at = (int)scan_threads(d, thread, __popc(mask), &all) - __popc(mask);
    if (all > CANDIDATE_BLOCKS) return -1;
    for (; mask; mask &= mask - 1) s->block[at++] = first + __ffs(mask) - 1;
    drawers_sync();
    return collect_rows(d, s, *z, (int)all, *least, thread);
}

// ---- which rows are heavy ----

// From n candidates, all rows above `least`; each warp finds the same. False: kappa lies below, so they were not all.
__device__ bool solve_candidates(draw_space *d, take_space *s, const size_view &z, int S, int n, uint64_t least, take_all *r,
                                 int thread) {
    enum { EACH = CANDIDATES / 32 };
    int lane = thread % 32, warp = thread / 32;
    uint64_t x[EACH], sum = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        x[i] = i * 32 + lane < n ? s->candidate[i * 32 + lane] : 0;
        sum += x[i] & SIZE_MASK;
    }
    // Expected counts are concave in 1 / kappa: from the tangent where all candidates are heavy, kappa is approached from
    // above.
    uint64_t light = n < S ? z.total - sum_lanes(sum) : z.total, k = n < S ? S - n : S;
    for (int n_heavy = -1;;) {
        int count = 0;
        sum = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if ((x[i] & SIZE_MASK) * k > light) sum += x[i] & SIZE_MASK, count++;
        count = __reduce_add_sync(~0u, count);
        light = z.total - sum_lanes(sum), k = S - count;
        if (count == n_heavy) break;
        n_heavy = count;
    }
    if (light < least * k) return false;
    *r = {.n_heavy = S - (int)k, .k = light ? (int)k : 0, .light = light, .cut = light / k, .listed = true};
    drawers_sync(); // all have read the candidates
    int at = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        uint64_t size = x[i] & SIZE_MASK;
        uint32_t heavy = __ballot_sync(~0u, size > r->cut);
        if (i % DRAWERS == warp && size > r->cut) {
            s->candidate[at + __popc(heavy & ((1u << lane) - 1))] = x[i];
            int entry = (int)(x[i] >> SIZE_BITS) / BLOCK >> z.shift;
            atomicAdd((unsigned long long *)&d->cum[entry], 0 - size);
        }
        at += __popc(heavy);
    }
    return true;
}

// Number and size of the rows larger than cut.
__device__ void split(draw_space *d, const size_view &z, uint64_t cut, int *n_heavy, uint64_t *heavy, int thread) {
    uint64_t sum = 0, all;
    int count = 0;
    for (int b = thread; b < z.n_blocks; b += DRAW_THREADS) {
        uint64_t packed = __ldcg(z.mass + b);
        if (largest_of(z, packed) <= cut) continue;
        block_sizes sizes(z, b, packed);
        sizes.walk(z.each, [&](int i, uint64_t size) {
            if (size > cut && b * BLOCK + i < z.n) sum += size, count++;
        });
    }
    scan_threads(d, thread, count, &all);
    *n_heavy = (int)all;
    scan_threads(d, thread, sum, heavy);
}

// The same from all blocks, each time anew; light entries to d->cum.
__device__ take_all solve_blocks(draw_space *d, const size_view &z, int S, int thread) {
    take_all r = {.n_heavy = 0, .k = S, .light = z.total, .cut = z.total / S, .listed = false};
    for (;;) {
        int n_heavy;
        uint64_t heavy;
        split(d, z, r.cut, &n_heavy, &heavy, thread);
        if (n_heavy == r.n_heavy) break;
        r.n_heavy = n_heavy, r.k = S - n_heavy, r.light = z.total - heavy, r.cut = r.light / r.k;
    }
    if (r.light == 0) r.k = 0;
    enum { EACH = ENTRIES / DRAW_THREADS };
    for (int b = thread * EACH << z.shift; b < min((thread + 1) * EACH << z.shift, z.n_blocks); b++) {
        uint64_t packed = __ldcg(z.mass + b), heavy = 0;
        if (largest_of(z, packed) <= r.cut) continue;
        block_sizes sizes(z, b, packed);
        sizes.walk(z.each, [&](int i, uint64_t size) {
            if (size > r.cut && b * BLOCK + i < z.n) heavy += size;
        });
        d->cum[b >> z.shift] -= heavy;
    }
    return r;
}

// d->cum from light sizes of entries to those before each.
__device__ void scan_entries(draw_space *d, const take_all &r, int thread) {
    enum { EACH = ENTRIES / DRAW_THREADS };
    uint64_t x[EACH], own = 0, all;
    drawers_sync();
#pragma unroll
    for (int i = 0; i < EACH; i++) own += x[i] = d->cum[thread * EACH + i];
    uint64_t running = scan_threads(d, thread, own, &all) - own;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        d->cum[thread * EACH + i] = running;
        running += x[i];
    }
    if (thread == 0) d->cum[ENTRIES] = r.light;
    drawers_sync();
}

// Which rows are heavy with S draws; d->cum then holds the light sizes before each entry. Called by all drawers together.
__device__ take_all take_all_solve(draw_space *d, take_space *s, size_view *z, int S, int thread) {
    uint64_t least;
    int n;
    if (z->n_blocks <= ENTRIES)
        n = find_candidates<0>(d, s, z, S, &least, thread);
    else if (z->n_blocks <= ENTRIES * 2)
        n = find_candidates<1>(d, s, z, S, &least, thread);
    else if (z->n_blocks <= ENTRIES * 4)
        n = find_candidates<2>(d, s, z, S, &least, thread);
    else
        n = find_candidates<3>(d, s, z, S, &least, thread);
    take_all r = {.listed = true};
    if (z->total == 0) return r; // nothing to draw
    if (n < 0 || !solve_candidates(d, s, *z, S, n, least, &r, thread)) r = solve_blocks(d, *z, S, thread);
    scan_entries(d, r, thread);
    return r;
}

// ---- draws ----

struct light_row {
    int row;
    uint64_t size;
};

// The first light row whose running light size exceeds t < r.light.
__device__ light_row find_light(const draw_space *d, const size_view &z, const take_all &r, uint64_t t) {
    int low = 0, high = ceil_div(z.n_blocks, 1 << z.shift); // cum[low] <= t < cum[high]
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (d->cum[middle] <= t)
            low = middle;
        else
            high = middle;
    }
    uint64_t running = d->cum[low];
    light_row found = {-1, 0};
    for (int b = low << z.shift; b < z.n_blocks; b++) {
        uint64_t packed = __ldcg(z.mass + b);
        block_sizes sizes(z, b, packed);
        uint64_t next = running + global_mass(packed, z.top) + each_of_rows(z, b * BLOCK, BLOCK);
        if (largest_of(z, packed) <= r.cut && next <= t) { // all light, and all before
            running = next;
            continue;
        }
        sizes.walk(z.each, [&](int i, uint64_t size) {
            if (size > r.cut) return;
            running += size;
            if (found.row < 0 && running > t) found = {b * BLOCK + i, size};
        });
        if (found.row >= 0) break;
    }
    return found;
}

// The rows that take_all_solve's drawers draw: take(row, 1 / pi, is_heavy), called by all drawers together; a warp's rows come
// first and ascend, heavy ones before light ones, and neighbours may be equal: a light row drawn twice. row is -1 where there
// is none. Draw m of the light rows has uniform number `index` | m, or all have number `index` (shared).
template <typename Take>
__device__ void take_all_draw(draw_space *d, const take_space *s, const size_view &z, const take_all &r, bool shared,
                              const sl_rng_id &id, uint32_t index, int thread, Take take) {
    int lane = thread % 32, warp = thread / 32;
    for (int b = warp; !r.listed && b - warp < z.n_blocks; b += DRAWERS) { // heavy rows, four blocks at a time
        uint64_t size = 0, packed = b < z.n_blocks ? __ldcg(z.mass + b) : MASS_EMPTY;
        if (b < z.n_blocks && largest_of(z, packed) > r.cut) {
            block_sizes sizes(z, b, packed);
            sizes.walk(z.each, [&](int i, uint64_t x) { size = i == lane ? x : size; });
        }
        uint32_t heavy = __ballot_sync(~0u, size > r.cut && b * BLOCK + lane < z.n);
        take(lane < __popc(heavy) ? b * BLOCK + (int)__fns(heavy, 0, lane + 1) : -1, 1.0f, true);
    }
    int n_listed = r.listed ? r.n_heavy : 0;
    double kappa = (double)r.light / r.k;
    for (int m = thread; m - thread < n_listed + r.k; m += DRAW_THREADS) {
        int row = -1;
        float inv_pi = 1;
        if (m < n_listed) {
            row = (int)(s->candidate[m] >> SIZE_BITS);
        } else if (m < n_listed + r.k) {
            uint32_t number = m - n_listed;
            uint64_t u = sl_rng_u64(&id, index | (shared ? 0 : number), SL_STREAM_ATTENTION);
            light_row x = find_light(d, z, r, threshold(r.light, r.k, number, u));
            row = x.row, inv_pi = (float)(kappa / (double)x.size);
        }
        take(row, inv_pi, m < n_listed);
    }
}

} // namespace

#endif
