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

// Stored sizes of one head (stages.h).
struct size_view {
    const uint64_t *mass; // [n_blocks] ref << 48 | in-block mass; 16-byte aligned
    const bf16 *w;        // block b's 32 sizes begin at b * stride; 16-byte aligned
    int stride, n;        // rows, at most 131072
    double alpha;         // p <- (1 - alpha) p + alpha / n: sl_weights_mix
    int other_top;        // largest reference of rows beyond these: stays the unit where at most 8 above (sl_weights_keep)
    // found by take_all_solve
    int n_blocks, shift, top;
    uint64_t each, total;
};

struct take_all {
    int n_heavy, k; // n_heavy + k draws in all
    uint64_t light; // total size of the light rows
    uint64_t cut;   // a row is heavy if its size exceeds it
    bool listed;    // the heavy rows are take_space.candidate[0 .. n_heavy)
};

struct take_space { // views lie here, not in registers, which rows of V on their way fill
    size_view sizes;
    take_all drawn;
    uint32_t octave[4][OCTAVES];    // sums of in-block mass by reference, in units of 2^24; a column for lane % 4
    int block[CANDIDATE_BLOCKS];    // ascending
    uint64_t candidate[CANDIDATES]; // row << 40 | size, ascending; in the end the heavy rows alone
};

// What take_all_solve draws from; called by one thread, before a drawers_sync.
__device__ void take_all_of(take_space *s, const uint64_t *mass, const bf16 *w, int stride, int n, double alpha = 0,
                            int other_top = REF_EMPTY) {
    s->sizes = {.mass = mass, .w = w, .stride = stride, .n = n, .alpha = alpha, .other_top = other_top};
    s->sizes.n_blocks = ceil_div(n, BLOCK);
}

// ---- sizes of rows ----

// No row of the block is larger.
__device__ uint64_t largest_of(uint64_t packed, int top, uint64_t each) {
    return to_global(1u << 30, top - ref_of(packed)) + each;
}
__device__ uint64_t largest_of(const size_view &z, uint64_t packed) {
    return largest_of(packed, z.top, z.each);
}

struct block_sizes {
    uint4 w[4];
    int shift, n_rows; // of the block
    uint64_t each;
    __device__ block_sizes(const size_view &z, int b, uint64_t packed)
        : shift(z.top - ref_of(packed)), n_rows(z.n - b * BLOCK), each(z.each) {
        const uint4 *from = (const uint4 *)(z.w + (size_t)b * z.stride);
#pragma unroll
        for (int i = 0; i < 4; i++) w[i] = __ldcg(from + i);
    }
    // f(i, size) for the block's 32 rows in order; rows past the last have size 0.
    template <typename F> __device__ void walk(F f) const {
        const uint32_t *pairs = (const uint32_t *)w;
        uint64_t in_block = 0, before = 0;
#pragma unroll
        for (int i = 0; i < BLOCK; i++) {
            in_block += unit_mass(i % 2 ? pairs[i / 2] >> 16 : pairs[i / 2] & 0xffff);
            uint64_t running = to_global(in_block, shift);
            f(i, running - before + (i < n_rows ? each : 0));
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
__device__ uint64_t least_heavy(const take_space *s, int n, uint64_t each, int S) {
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
    float uniform = fminf((float)each * 0x1p-38f * t, 1);
    float count = n * uniform + (1 - uniform) * (above + t * (below - own));
    uint32_t enough = __ballot_sync(~0u, count >= S);
    if (!enough) return 0;
    int o = __ffs(enough) - 1;
    float count1 = __shfl_sync(~0u, count, o), count0 = o ? __shfl_sync(~0u, count, o - 1) : 0;
    float t1 = exp2f((float)o), t0 = o ? t1 / 2 : 0; // concave in between: the chord lies below
    return (uint64_t)(0x1p38f * 0.999f / (t0 + (S - count0) / (count1 - count0) * (t1 - t0)));
}

// The rows in s->block[0 .. n_blocks) larger than `least`, to s->candidate; their number, or -1: too many.
__device__ int collect_rows(draw_space *d, take_space *s, int n_blocks, uint64_t least, int thread) {
    int n = 0;
    for (int i = thread; i - thread < n_blocks; i += DRAW_THREADS) {
        int b = s->block[min(i, n_blocks - 1)];
        block_sizes sizes(s->sizes, b, __ldcg(s->sizes.mass + b));
        uint32_t mask = 0;
        sizes.walk([&](int j, uint64_t size) { mask |= (uint32_t)(size > least) << j; });
        if (i >= n_blocks) mask = 0;
        uint64_t all;
        int at = n + (int)scan_threads(d, thread, __popc(mask), &all) - __popc(mask);
        n += (int)all;
        if (n > CANDIDATES) return -1;
        if (mask)
            sizes.walk([&](int j, uint64_t size) {
                if (mask >> j & 1) s->candidate[at++] = (uint64_t)(b * BLOCK + j) << SIZE_BITS | size;
            });
    }
    drawers_sync();
    return n;
}

// Of sizes in entries of 2^SHIFT blocks: the unit, the total, the entries' sizes to d->cum, *least, and the blocks that may
// hold larger rows to s->block. Returns their number, or -1: too many. A thread asks for all its masses at once.
template <int SHIFT> __device__ int find_blocks(draw_space *d, take_space *s, int S, uint64_t *least, int thread) {
    enum { EACH = ENTRIES / DRAW_THREADS, BLOCKS = EACH << SHIFT, N = BLOCKS < 8 ? BLOCKS : 8, PER_ENTRY = 1 << SHIFT };
    int first = thread * BLOCKS, top = REF_EMPTY, lane = thread % 32, n = s->sizes.n;
    head_view masses = {.mass = s->sizes.mass, .n_blocks = s->sizes.n_blocks};
    uint64_t x[N], own = 0, total, each = 0, all;
    uint32_t mask = 0;
#pragma unroll 1
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
    if (s->sizes.other_top > top && s->sizes.other_top - top <= 8) top = s->sizes.other_top;
#pragma unroll 1
    for (int i = 0; i < BLOCKS; i += N) {
        if (BLOCKS > N) load_masses<N>(masses, first + i, x); // again: so many do not fit
        uint64_t entry = 0;
#pragma unroll
        for (int j = 0; j < N; j++) {
            int octave = top - ref_of(x[j]);
            uint64_t units = (x[j] & 0xffffffffffffull) >> 24;
            entry += global_mass(x[j], top);
            if (octave >= OCTAVES) units = octave < 64 ? units >> (octave - (OCTAVES - 1)) : 0, octave = OCTAVES - 1;
            if (units) atomicAdd(&s->octave[lane % 4][octave], (uint32_t)units);
            if ((j + 1) % PER_ENTRY) continue;
            d->cum[(first + i + j) / PER_ENTRY] = entry;
            own += entry, entry = 0;
        }
    }
    scan_threads(d, thread, own, &total);
    if (s->sizes.alpha > 0) each = (uint64_t)(s->sizes.alpha / (1 - s->sizes.alpha) * (double)total / n);
    for (int i = 0; each && i < EACH; i++) {
        int rows = n - (thread * EACH + i) * PER_ENTRY * BLOCK;
        d->cum[thread * EACH + i] += each * (uint64_t)max(min(rows, PER_ENTRY * BLOCK), 0);
    }
    if (thread == 0)
        s->sizes.shift = SHIFT, s->sizes.top = top, s->sizes.each = each, s->sizes.total = total + each * (uint64_t)n;
    *least = least_heavy(s, n, each, S);
#pragma unroll 1
    for (int i = 0; i < BLOCKS; i += N) {
        if (BLOCKS > N) load_masses<N>(masses, first + i, x);
#pragma unroll
        for (int j = 0; j < N; j++)
            mask |= (uint32_t)(first + i + j < masses.n_blocks && largest_of(x[j], top, each) > *least) << (i + j);
    }
    int at = (int)scan_threads(d, thread, __popc(mask), &all) - __popc(mask);
    if (all > CANDIDATE_BLOCKS) return -1;
    for (; mask; mask &= mask - 1) s->block[at++] = first + __ffs(mask) - 1;
    drawers_sync();
    return (int)all;
}

// ---- which rows are heavy ----

// From n candidates, all rows above `least`; each warp finds the same. False: kappa lies below, so they were not all.
__device__ bool solve_candidates(draw_space *d, take_space *s, int S, int n, uint64_t least, int thread) {
    enum { EACH = CANDIDATES / 32 };
    int lane = thread % 32, warp = thread / 32;
    uint64_t x[EACH], sum = 0, total = s->sizes.total;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        x[i] = i * 32 + lane < n ? s->candidate[i * 32 + lane] : 0;
        sum += x[i] & SIZE_MASK;
    }
    // Expected counts are concave in 1 / kappa: from the tangent where all candidates are heavy, kappa is approached from
    // above.
    uint64_t light = n < S ? total - sum_lanes(sum) : total, k = n < S ? S - n : S;
    for (int n_heavy = -1;;) {
        int count = 0;
        sum = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if ((x[i] & SIZE_MASK) * k > light) sum += x[i] & SIZE_MASK, count++;
        count = __reduce_add_sync(~0u, count);
        light = total - sum_lanes(sum), k = S - count;
        if (count == n_heavy) break;
        n_heavy = count;
    }
    if (light < least * k) return false;
    uint64_t cut = light / k;
    drawers_sync(); // all have read the candidates
    if (thread == 0) s->drawn = {.n_heavy = S - (int)k, .k = light ? (int)k : 0, .light = light, .cut = cut, .listed = true};
    int at = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        uint64_t size = x[i] & SIZE_MASK;
        uint32_t heavy = __ballot_sync(~0u, size > cut);
        if (i % DRAWERS == warp && size > cut) {
            s->candidate[at + __popc(heavy & ((1u << lane) - 1))] = x[i];
            int entry = (int)(x[i] >> SIZE_BITS) / BLOCK >> s->sizes.shift;
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
        sizes.walk([&](int, uint64_t size) {
            if (size > cut) sum += size, count++;
        });
    }
    scan_threads(d, thread, count, &all);
    *n_heavy = (int)all;
    scan_threads(d, thread, sum, heavy);
}

// The same from all blocks, each time anew; light entries to d->cum.
__device__ void solve_blocks(draw_space *d, take_space *s, int S, int thread) {
    const size_view &z = s->sizes;
    take_all r = {.n_heavy = 0, .k = S, .light = z.total, .cut = z.total / S, .listed = false};
    for (;;) {
        int n_heavy;
        uint64_t heavy;
        split(d, z, r.cut, &n_heavy, &heavy, thread);
        if (n_heavy == r.n_heavy) break;
        r.n_heavy = n_heavy, r.k = S - n_heavy, r.light = z.total - heavy, r.cut = r.light / r.k;
    }
    if (r.light == 0) r.k = 0;
    if (thread == 0) s->drawn = r;
    enum { EACH = ENTRIES / DRAW_THREADS };
    for (int b = thread * EACH << z.shift; b < min((thread + 1) * EACH << z.shift, z.n_blocks); b++) {
        uint64_t packed = __ldcg(z.mass + b), heavy = 0;
        if (largest_of(z, packed) <= r.cut) continue;
        block_sizes sizes(z, b, packed);
        sizes.walk([&](int, uint64_t size) {
            if (size > r.cut) heavy += size;
        });
        d->cum[b >> z.shift] -= heavy;
    }
}

// d->cum from light sizes of entries to those before each.
__device__ void scan_entries(draw_space *d, int thread) {
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
    if (thread == 0) d->cum[ENTRIES] = all;
    drawers_sync();
}

// Which rows of s->sizes are heavy with S draws, to s->drawn; d->cum then holds the light sizes before each entry. Called by
// all drawers together.
__device__ void take_all_solve(draw_space *d, take_space *s, int S, int thread) {
    uint64_t least;
    int n, n_blocks = s->sizes.n_blocks;
    if (n_blocks <= ENTRIES)
        n = find_blocks<0>(d, s, S, &least, thread);
    else if (n_blocks <= ENTRIES * 2)
        n = find_blocks<1>(d, s, S, &least, thread);
    else if (n_blocks <= ENTRIES * 4)
        n = find_blocks<2>(d, s, S, &least, thread);
    else
        n = find_blocks<3>(d, s, S, &least, thread);
    n = n > 0 ? collect_rows(d, s, n, least, thread) : n;
    if (s->sizes.total == 0) { // nothing to draw
        if (thread == 0) s->drawn = {.listed = true};
    } else if (n < 0 || !solve_candidates(d, s, S, n, least, thread)) {
        solve_blocks(d, s, S, thread);
    }
    scan_entries(d, thread);
}

// ---- draws ----

struct light_row {
    int row;
    uint64_t size;
};

// The first light row whose running light size exceeds t < r.light.
__device__ light_row find_light(const draw_space *d, const size_view &z, uint64_t cut, uint64_t t) {
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
    for (int b = low << z.shift; b < z.n_blocks && found.row < 0; b++) {
        uint64_t packed = __ldcg(z.mass + b);
        block_sizes sizes(z, b, packed);
        uint64_t next = running + global_mass(packed, z.top) + z.each * (uint64_t)min(sizes.n_rows, (int)BLOCK);
        if (largest_of(z, packed) <= cut && next <= t) { // all light, and all before
            running = next;
            continue;
        }
        sizes.walk([&](int i, uint64_t size) {
            if (size > cut) return;
            running += size;
            if (found.row < 0 && running > t) found = {b * BLOCK + i, size};
        });
    }
    return found;
}

// The lane's heavy row of block b, a warp's block; they come first and ascend. -1: no more.
__device__ int heavy_row(const size_view &z, uint64_t cut, int b) {
    int lane = threadIdx.x % 32;
    uint64_t own = 0, packed = b < z.n_blocks ? __ldcg(z.mass + b) : MASS_EMPTY;
    if (b < z.n_blocks && largest_of(z, packed) > cut) {
        block_sizes sizes(z, b, packed);
        sizes.walk([&](int i, uint64_t size) { own = i == lane ? size : own; });
    }
    uint32_t heavy = __ballot_sync(~0u, own > cut);
    return lane < __popc(heavy) ? b * BLOCK + (int)__fns(heavy, 0, lane + 1) : -1;
}

// The rows that s->drawn stands for: take(row, 1 / pi, is_heavy), called by all drawers together; a warp's rows come first and
// ascend, heavy ones before light ones, and neighbours may be equal: a light row drawn twice. row is -1 where there is none.
// Draw m of the light rows has uniform number `index` | m, or all have number `index` (shared).
template <typename Take>
__device__ void take_all_draw(draw_space *d, const take_space *s, bool shared, const sl_rng_id &id, uint32_t index, int thread,
                              Take take) {
    const size_view &z = s->sizes;
    const take_all &r = s->drawn;
    // Heavy rows that are not listed come first, four blocks at a time.
    int n_blocks = r.listed ? 0 : z.n_blocks, n_listed = r.listed ? r.n_heavy : 0, n = n_listed + r.k;
    for (int b = 0, m = thread; b < n_blocks || m - thread < n;) {
        int row = -1;
        float inv_pi = 1;
        bool is_heavy = b < n_blocks || m < n_listed;
        if (b < n_blocks) {
            row = heavy_row(z, r.cut, b + thread / 32);
            b += DRAWERS;
        } else {
            if (m < n_listed) {
                row = (int)(s->candidate[m] >> SIZE_BITS);
            } else if (m < n) {
                uint32_t number = m - n_listed;
                uint64_t u = sl_rng_u64(&id, index | (shared ? 0 : number), SL_STREAM_ATTENTION);
                light_row x = find_light(d, z, r.cut, threshold(r.light, r.k, number, u));
                row = x.row, inv_pi = (float)((double)r.light / r.k / (double)x.size);
            }
            m += DRAW_THREADS;
        }
        take(row, inv_pi, is_heavy);
    }
}

} // namespace

#endif
