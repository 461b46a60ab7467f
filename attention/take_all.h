// attention/take_all.h - take-all + PPS draws from one head's stored sizes, on CUDA: sl_draw_take_all (draw_pps.c), the same
// rows and the same 1 / pi_j, by a block of threads.
//
// A row is heavy when its size exceeds kappa = light / (S - heavy). kappa only falls as rows become heavy, so that the
// sets {size > kappa}, taken again and again, grow to the very set that the CPU finds in order of size; equal sizes are all
// heavy or all light. Nothing is sorted. A bound on kappa from below follows from masses and references of blocks alone
// (least_heavy); only rows above it, the candidates, are then asked again and again, in registers. Where they are too many,
// blocks are read anew each time: as right, and slower. Light draws are thresholds on light sizes; the heavy rows that lie
// before one, a list in order, turn it into a threshold on all sizes.
//
// All TAKERS threads of a block call these functions together; masses of blocks lie in shared memory. What matters is the way
// from the last score to the rows of V: it is a chain of some twenty short steps, so loads go out together, barriers are few.
//
// Lost, by `bench attn` at 1 x 32k: 512 threads (3 us more), and walking through a made-up head while waiting, to have the
// instructions there (6 us more).
//
// Owns: rows and their expected counts. What they weigh, and whose rows they are, is the caller's.
#ifndef SLEIGH_TAKE_ALL_H
#define SLEIGH_TAKE_ALL_H

#include "attention/draw_rows.h"

namespace {

enum {
    TAKERS = 256, // threads
    TAKE_WARPS = TAKERS / 32,
    TAKE_ENTRIES = 4 * TAKERS,         // of running sizes
    OF_WARP = 96,                      // candidates that one warp may find
    CANDIDATES = TAKE_WARPS * OF_WARP, // rows that may be heavy
    CANDIDATE_BLOCKS = 512,            // that hold them
    S_MOST_LISTED = 4096,              // then S sizes are below 2^53, and double precision compares them exactly
    OCTAVE_COLUMNS = 8,
    OCTAVES = 32,   // below the largest size; what is smaller counts as the last
    SIZE_BITS = 40, // of a candidate: a size is at most 2^38, and a uniform part of it
};
static_assert((int)OCTAVE_COLUMNS * (int)OCTAVES == (int)TAKERS, "find_blocks");
const uint64_t SIZE_MASK = (1ull << SIZE_BITS) - 1;

// Stored sizes of one head (stages.h).
struct size_view {
    const bf16 *w; // block b's 32 sizes begin at b * stride; 16-byte aligned
    int stride, n; // rows, at most 131072
    double ratio;  // alpha / (1 - alpha), where p <- (1 - alpha) p + alpha / n: sl_weights_mix
    int n_blocks;
    int log_each; // a thread has 2^log_each blocks, in order
    // found by take_all_solve
    int shift, top; // an entry is 2^shift blocks; the unit
    uint64_t each, total;
};

struct take_all {
    int n_heavy, k; // n_heavy + k draws in all
    uint64_t light; // total size of the light rows
    uint64_t cut;   // a row is heavy if its size exceeds it
    double kappa;   // light / k
    bool listed;    // the heavy rows are in take_space.heavy
};

struct take_space { // views lie here, not in registers, which rows of V on their way fill
    uint64_t *mass; // [take_all_memory] ref << 48 | in-block mass of block b at place_of(b)
    size_view sizes;
    take_all drawn;
    uint64_t uniform[TAKERS];                 // the first numbers of the head's draws: take_all_uniforms
    uint64_t cum[TAKE_ENTRIES + 1];           // size before each entry
    uint64_t scan[2][TAKE_WARPS];             // by turns
    int ints[TAKE_WARPS];                     // of the warps
    uint32_t octave[OCTAVE_COLUMNS][OCTAVES]; // sums of in-block mass by reference, in units of 2^24, each of some lanes
    int block[CANDIDATE_BLOCKS];              // ascending
    int n_found[TAKE_WARPS];                  // candidates of each warp
    int heavy_count[2][TAKE_WARPS];           // of those, by turns
    uint64_t heavy_sum[2][TAKE_WARPS];
    union {
        struct {
            uint64_t row[TAKE_WARPS][OF_WARP];    // row << 40 | size, ascending
            uint64_t before[TAKE_WARPS][OF_WARP]; // size of all rows before it
        } found;
        struct {
            uint64_t row[CANDIDATES];   // row << 40 | size, ascending
            uint64_t light[CANDIDATES]; // of the light rows before it
            uint64_t heavy[CANDIDATES]; // of the heavy rows up to and including it
        } heavy;
        uint64_t heavy_of[TAKE_ENTRIES]; // heavy sizes of an entry, where they are not listed
    };
};

// ---- masses of blocks ----

__host__ __device__ int log_each_of(int n_blocks) {
    int log_each = 1;
    while (TAKERS << log_each < n_blocks) log_each++;
    return log_each;
}

// Threads walk through their own blocks side by side: two places more for each of them keep their banks apart.
__host__ __device__ int place_of(int b, int log_each) {
    return b + (b >> log_each) * 2;
}

// Bytes of take_space.mass for contexts of up to n_blocks.
__host__ __device__ int take_all_memory(int n_blocks) {
    return (ceil_div(n_blocks, 2) * 2 + 2 * TAKERS) * (int)sizeof(uint64_t);
}

__device__ uint64_t mass_of(const take_space *s, int b) {
    return s->mass[place_of(b, s->sizes.log_each)];
}

// Whose sizes to draw from: n rows; mass: [n_blocks] 16-byte aligned. Asks for the masses, which take_all_solve waits for;
// memory: take_all_memory bytes. alpha: size_view.ratio's.
__device__ void take_all_begin(take_space *s, void *memory, const uint64_t *mass, const bf16 *w, int stride, int n,
                               double alpha, int thread) {
    int n_blocks = ceil_div(n, BLOCK), log_each = log_each_of(n_blocks);
    uint32_t to = shared_address(memory);
    for (int b = 2 * thread; b < n_blocks; b += 2 * TAKERS)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + place_of(b, log_each) * 8), "l"(mass + b)
                     : "memory");
    if (thread > 0) return;
    s->mass = (uint64_t *)memory;
    s->sizes = {.w = w, .stride = stride, .n = n, .ratio = alpha / (1 - alpha), .n_blocks = n_blocks, .log_each = log_each};
}

// Makes the first uniform numbers of the head's draws, of index 0 on, while scores are waited for.
__device__ void take_all_uniforms(take_space *s, const sl_rng_id &id, int thread) {
    s->uniform[thread] = sl_rng_u64(&id, thread, SL_STREAM_ATTENTION);
}

// Inclusive scan of x over the threads, and the sum of all. One barrier: calls alternate between turns 0 and 1.
__device__ uint64_t scan_takers(take_space *s, int turn, int thread, uint64_t x, uint64_t *all) {
    int lane = thread % 32, warp = thread / 32;
    x = sl_scan_lanes(x, lane);
    if (lane == 31) s->scan[turn][warp] = x;
    __syncthreads();
    uint64_t sum = 0;
#pragma unroll
    for (int i = 0; i < TAKE_WARPS; i++) {
        if (i == warp) x += sum;
        sum += s->scan[turn][i];
    }
    *all = sum;
    return x;
}

// ---- sizes of rows ----

// No row of the block is larger.
__device__ uint64_t largest_of(uint64_t packed, int top, uint64_t each) {
    return to_global(1u << 30, top - ref_of(packed)) + each;
}
__device__ uint64_t largest_of(const size_view &z, uint64_t packed) {
    return largest_of(packed, z.top, z.each);
}

__device__ uint64_t each_of_block(uint64_t each, int b, int n) {
    return each * (uint64_t)max(min(n - b * BLOCK, (int)BLOCK), 0);
}

// Size of the lane's row of block b, in-block mass being `before` and `mass` more with the row. Sizes are differences of global
// masses, as the CPU's are.
__device__ uint64_t size_between(const size_view &z, int shift, uint64_t before, uint64_t mass, bool there) {
    return to_global(before + mass, shift) - to_global(before, shift) + (there ? z.each : 0);
}

// Size of the lane's row of block b, the warp's; 0 past the last.
__device__ uint64_t size_of_lane(const take_space *s, int b) {
    const size_view &z = s->sizes;
    int lane = threadIdx.x % 32;
    uint32_t mass = unit_mass(__ldcg((const unsigned short *)z.w + (size_t)b * z.stride + lane));
    uint64_t running = sl_scan_lanes((uint64_t)mass, lane);
    return size_between(z, z.top - ref_of(mass_of(s, b)), running - mass, mass, b * BLOCK + lane < z.n);
}

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
    uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < OCTAVE_COLUMNS; i++) sum += s->octave[i][lane];
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

// Size of all rows before block b.
__device__ uint64_t size_before(const take_space *s, int b) {
    const size_view &z = s->sizes;
    int entry = b >> z.shift;
    uint64_t sum = s->cum[entry];
    for (int i = entry << z.shift; i < b; i++) sum += global_mass(mass_of(s, i), z.top) + each_of_block(z.each, i, z.n);
    return sum;
}

// Rows larger than `least`, and few others, of the listed blocks, to s->found, and how many each warp found: numbers of rows,
// then their sizes. Eight blocks of a warp at a time, four lanes a block.
__device__ void collect_rows(take_space *s, int n_blocks, uint64_t least, int thread) {
    enum { AHEAD = 4 }; // times eight blocks, asked for together
    const size_view &z = s->sizes;
    int lane = thread % 32, warp = thread / 32, quarter = lane % 4, n = 0;
    int from = n_blocks * warp / TAKE_WARPS, end = n_blocks * (warp + 1) / TAKE_WARPS;
    float limit = least > z.each + 2 ? (float)(least - z.each - 2) * 0.99999f : z.each ? -1 : 0; // of what is stored
    uint4 w[AHEAD];
#pragma unroll 1
    for (int first = from; first < end; first += 8) {
        if ((first - from) % (8 * AHEAD) == 0) {
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                int b = s->block[min(first + 8 * k + lane / 4, end - 1)];
                w[k] = *((const uint4 *)(z.w + (size_t)b * z.stride) + quarter);
            }
        }
        int b = s->block[min(first + lane / 4, end - 1)], row = b * BLOCK + 8 * quarter;
        const uint32_t pairs[4] = {w[0].x, w[0].y, w[0].z, w[0].w};
#pragma unroll
        for (int k = 1; k < AHEAD; k++) w[k - 1] = w[k];
        int shift = z.top - ref_of(mass_of(s, b));
        float in_block = limit * __uint_as_float((uint32_t)(127 - 38 + min(shift, 128)) << 23); // limit of a stored size
        uint32_t mask = 0;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            uint32_t x = j % 2 ? pairs[j / 2] & 0xffff0000u : pairs[j / 2] << 16;
            mask |= (uint32_t)(__uint_as_float(x) > in_block && row + j < z.n) << j;
        }
        if (first + lane / 4 >= end) mask = 0;
        int own = __popc(mask), at = n - own;
        own = sl_scan_lanes(own, lane);
        n += __shfl_sync(~0u, own, 31);
        for (at += own; mask && at < OF_WARP; mask &= mask - 1) s->found.row[warp][at++] = row + __ffs(mask) - 1;
    }
    if (lane == 0) s->n_found[warp] = n;
    __syncwarp();
#pragma unroll 1
    for (int i = lane; i < min(n, (int)OF_WARP); i += 32) { // a row's weight is that of its block's rows up to it
        int row = (int)s->found.row[warp][i], b = row / BLOCK, at = row % BLOCK, shift = z.top - ref_of(mass_of(s, b));
        const uint4 *from = (const uint4 *)(z.w + (size_t)b * z.stride);
        uint64_t before = 0, mass = 0;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint4 x = from[k];
            const uint32_t pairs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (int j = 0; j < 8; j++) {
                uint32_t own = unit_mass(j % 2 ? pairs[j / 2] >> 16 : pairs[j / 2] & 0xffff);
                if (8 * k + j < at) before += own;
                if (8 * k + j == at) mass = own;
            }
        }
        s->found.row[warp][i] = (uint64_t)row << SIZE_BITS | size_between(z, shift, before, mass, true);
        s->found.before[warp][i] = size_before(s, b) + to_global(before, shift) + z.each * (uint64_t)at;
    }
}

// The unit, the total, sizes before each entry to s->cum, *least, a bound on kappa, and the blocks that may hold larger rows to
// s->block. Returns their number, or -1: too many.
__device__ int find_blocks(take_space *s, int S, const int *other_top, uint64_t *least, int thread) {
    enum { N = 4 }; // blocks of a thread that are looked at together: each is a chain of its own
    int log_each = s->sizes.log_each, shift = max(log_each - 2, 0), lane = thread % 32, n = s->sizes.n;
    int first = thread << log_each, n_places = 1 << log_each, n_own = min(s->sizes.n_blocks - first, n_places), top = REF_EMPTY;
    const uint64_t *mass = s->mass + place_of(first, log_each);
    uint64_t x[N], own = 0, total, each = 0, all;
    uint32_t mask = 0;
    auto load = [&](int i) {
#pragma unroll
        for (int j = 0; j < N; j++) x[j] = i + j < n_own ? mass[i + j] : MASS_EMPTY;
    };
#pragma unroll 1
    for (int i = 0; i < n_own; i += N) {
        load(i);
#pragma unroll
        for (int j = 0; j < N; j++) top = max(top, ref_of(x[j]));
    }
    top = __reduce_max_sync(~0u, top);
    if (lane == 0) s->ints[thread / 32] = top;
    s->octave[thread / OCTAVES][thread % OCTAVES] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TAKE_WARPS; i++) top = max(top, s->ints[i]);
    if (other_top && *other_top > top && *other_top - top <= 8) top = *other_top;
#pragma unroll 1
    for (int i = 0; i < n_own; i += N) {
        load(i);
#pragma unroll
        for (int j = 0; j < N; j++) {
            int octave = top - ref_of(x[j]);
            uint32_t units = (uint32_t)((x[j] & 0xffffffffffffull) >> 24);
            own += global_mass(x[j], top);
            if (octave >= OCTAVES)
                units = octave < 2 * OCTAVES - 1 ? units >> (octave - (OCTAVES - 1)) : 0, octave = OCTAVES - 1;
            if (units) atomicAdd(&s->octave[lane % OCTAVE_COLUMNS][octave], units);
        }
    }
    uint64_t running = scan_takers(s, 0, thread, own, &total) - own;
    if (s->sizes.ratio > 0) each = (uint64_t)(s->sizes.ratio * (double)total / n);
    total += each * (uint64_t)n;
    running += each * (uint64_t)min(first * BLOCK, n);
    *least = least_heavy(s, n, each, S);
#pragma unroll 1
    for (int i = 0; i < n_places; i += N) { // entries past the last hold the total
        load(i);
#pragma unroll
        for (int j = 0; j < N; j++) {
            bool is_place = i + j < n_places;
            if (is_place && ((i + j) & ((1 << shift) - 1)) == 0) s->cum[(first + i + j) >> shift] = running;
            mask |= (uint32_t)(i + j < n_own && largest_of(x[j], top, each) > *least) << (i + j);
            running += global_mass(x[j], top) + each_of_block(each, first + i + j, is_place ? n : 0);
        }
    }
    int at = (int)scan_takers(s, 1, thread, __popc(mask), &all) - __popc(mask);
    if (thread == 0) {
        s->sizes.shift = shift, s->sizes.top = top, s->sizes.each = each, s->sizes.total = total;
        s->cum[TAKERS << log_each >> shift] = total;
    }
    bool fit = all <= CANDIDATE_BLOCKS;
    for (; fit && mask; mask &= mask - 1) s->block[at++] = first + __ffs(mask) - 1;
    __syncthreads();
    return fit ? (int)all : -1;
}

// ---- which rows are heavy ----

// From the rows found, all that are larger than `least`. False: they are too many, or kappa lies below. A warp keeps what it
// has found in registers.
__device__ bool solve_found(take_space *s, int S, uint64_t least, int thread) {
    enum { EACH = OF_WARP / 32 };
    int lane = thread % 32, warp = thread / 32, n = 0, own = s->n_found[warp];
    uint64_t x[EACH], before[EACH], total = s->sizes.total, all;
    double size[EACH];
    bool fits = S <= S_MOST_LISTED;
    for (int i = 0; i < TAKE_WARPS; i++) fits &= s->n_found[i] <= OF_WARP, n += s->n_found[i];
    if (!fits || n > CANDIDATES) return false;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        bool there = i * 32 + lane < own;
        x[i] = there ? s->found.row[warp][i * 32 + lane] : 0, before[i] = there ? s->found.before[warp][i * 32 + lane] : 0;
        size[i] = (double)(x[i] & SIZE_MASK);
    }
    // Expected counts are concave in 1 / kappa: from the line where all that were found are heavy, kappa falls to its place.
    uint64_t light = n < S ? 0 : total; // at first 0: all are heavy
    int k = S, n_heavy = -1, place = 0;
    for (int turn = 0;; turn ^= 1) {
        double limit = (double)light;
        uint64_t sum = 0;
        int count = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (i * 32 < own && size[i] * k > limit) sum += x[i] & SIZE_MASK, count++;
        count = __reduce_add_sync(~0u, count), sum = sum_lanes(sum);
        if (lane == 0) s->heavy_count[turn][warp] = count, s->heavy_sum[turn][warp] = sum;
        __syncthreads();
        count = place = 0, sum = 0;
        for (int i = 0; i < TAKE_WARPS; i++) {
            if (i == warp) place = count;
            count += s->heavy_count[turn][i], sum += s->heavy_sum[turn][i];
        }
        light = total - sum, k = S - count;
        if (count == n_heavy) break;
        n_heavy = count;
    }
    if (light < least * (unsigned)k) return false;
    double limit = (double)light;
#pragma unroll
    for (int i = 0; i < EACH; i++) { // all have long read what was found
        bool is_heavy = size[i] * k > limit;
        uint32_t heavy = __ballot_sync(~0u, is_heavy);
        int at = place + __popc(heavy & ((1u << lane) - 1));
        if (is_heavy) s->heavy.row[at] = x[i], s->heavy.light[at] = before[i];
        place += __popc(heavy);
    }
    __syncthreads();
    enum { OF_THREAD = CANDIDATES / TAKERS };
    int first = OF_THREAD * thread;
    uint64_t y[OF_THREAD], sum = 0;
#pragma unroll
    for (int i = 0; i < OF_THREAD; i++) sum += y[i] = first + i < n_heavy ? s->heavy.row[first + i] & SIZE_MASK : 0;
    uint64_t running = scan_takers(s, 0, thread, sum, &all) - sum;
#pragma unroll
    for (int i = 0; i < OF_THREAD; i++) {
        if (first + i >= n_heavy) break;
        s->heavy.light[first + i] -= running;
        s->heavy.heavy[first + i] = running += y[i];
    }
    if (thread == 0)
        s->drawn = {
            .n_heavy = n_heavy, .k = light ? k : 0, .light = light, .cut = 0, .kappa = (double)light / k, .listed = true};
    __syncthreads();
    return true;
}

// Number and size of the rows larger than cut.
__device__ void split(take_space *s, uint64_t cut, int *n_heavy, uint64_t *heavy, int thread) {
    uint64_t sum = 0, all;
    int count = 0;
    for (int b = thread / 32; b < s->sizes.n_blocks; b += TAKE_WARPS) {
        if (largest_of(s->sizes, mass_of(s, b)) <= cut) continue;
        uint64_t size = size_of_lane(s, b);
        if (size > cut) sum += size, count++;
    }
    scan_takers(s, 0, thread, count, &all);
    *n_heavy = (int)all;
    scan_takers(s, 1, thread, sum, heavy);
}

// The same from all blocks, each time anew; light sizes before each entry to s->cum. Apart from the rest, so that its
// instructions do not lie between theirs.
__device__ __noinline__ void solve_blocks(take_space *s, int S, int thread) {
    enum { EACH = TAKE_ENTRIES / TAKERS };
    const size_view &z = s->sizes;
    take_all r = {.n_heavy = 0, .k = S, .light = z.total, .cut = z.total / S, .kappa = 0, .listed = false};
    for (;;) {
        int n_heavy;
        uint64_t heavy;
        split(s, r.cut, &n_heavy, &heavy, thread);
        if (n_heavy == r.n_heavy) break;
        r.n_heavy = n_heavy, r.k = S - n_heavy, r.light = z.total - heavy, r.cut = r.light / r.k;
    }
    r.kappa = (double)r.light / r.k;
    if (r.light == 0) r.k = 0;
    if (thread == 0) s->drawn = r;
    for (int e = thread; e < TAKE_ENTRIES; e += TAKERS) s->heavy_of[e] = 0;
    __syncthreads();
    for (int b = thread / 32; b < z.n_blocks; b += TAKE_WARPS) {
        if (largest_of(z, mass_of(s, b)) <= r.cut) continue;
        uint64_t size = size_of_lane(s, b);
        if (size > r.cut) atomicAdd((unsigned long long *)&s->heavy_of[b >> z.shift], (unsigned long long)size);
    }
    __syncthreads();
    int n_entries = ceil_div(z.n_blocks, 1 << z.shift);
    uint64_t entry[EACH], own = 0, all;
    for (int i = 0; i < EACH; i++) {
        int e = thread * EACH + i;
        own += entry[i] = e < n_entries ? s->cum[e + 1] - s->cum[e] - s->heavy_of[e] : 0;
    }
    uint64_t running = scan_takers(s, 0, thread, own, &all) - own; // and all have read s->cum
    for (int i = 0; i < EACH; i++) {
        s->cum[thread * EACH + i] = running;
        running += entry[i];
    }
    if (thread == 0) s->cum[TAKE_ENTRIES] = all;
    __syncthreads();
}

// There is nothing to draw.
__device__ void take_all_nothing(take_space *s, int thread) {
    if (thread == 0) s->drawn = {.n_heavy = 0, .k = 0, .light = 0, .cut = 0, .kappa = 0, .listed = true};
    __syncthreads();
}

// Which rows of s->sizes are heavy with S draws, to s->drawn. s->cum then holds the sizes before each entry; where heavy rows
// are not listed, the light sizes. other_top: the largest reference of rows beyond these, in shared memory since before, which
// stays the unit where it is at most 8 above (sl_weights_keep); NULL: there are none.
__device__ void take_all_solve(take_space *s, int S, const int *other_top, int thread) {
    uint64_t least;
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    int n = find_blocks(s, S, other_top, &least, thread);
    if (s->sizes.total == 0) {
        take_all_nothing(s, thread);
        return;
    }
    if (n >= 0) collect_rows(s, n, least, thread);
    __syncthreads();
    if (n < 0 || !solve_found(s, S, least, thread)) solve_blocks(s, S, thread);
}

// ---- draws ----

struct light_row {
    int row;
    uint64_t size;
};

// The entry of running sizes that holds t.
__device__ int find_entry(const take_space *s, uint64_t t) {
    return find_between(s->cum, ceil_div(s->sizes.n_blocks, 1 << s->sizes.shift), t);
}

// The first row whose running size exceeds t.
__device__ light_row find_size(const take_space *s, uint64_t t) {
    const size_view &z = s->sizes;
    int entry = find_entry(s, t), b = entry << z.shift;
    uint64_t packed = mass_of(s, b), each = z.each;
    t -= s->cum[entry];
    for (;;) {
        uint64_t size = global_mass(packed, z.top) + each_of_block(each, b, z.n);
        if (size > t || b + 1 == z.n_blocks) break;
        t -= size;
        packed = mass_of(s, ++b);
    }
    uint4 x[4];
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = __ldcg((const uint4 *)(z.w + (size_t)b * z.stride) + i);
    uint4 own = x[0];
    uint64_t sum = 0, before, after = ~0ull;
    int shift = z.top - ref_of(packed), row = 0; // eight rows, then one
#pragma unroll
    for (int i = 0; i < 3; i++) {
        uint64_t next = sum + pair_mass(x[i].x) + pair_mass(x[i].y) + pair_mass(x[i].z) + pair_mass(x[i].w);
        if (row == 8 * i && to_global(next, shift) + each * (8 * (i + 1)) <= t) sum = next, own = x[i + 1], row = 8 * (i + 1);
    }
    const uint32_t pairs[4] = {own.x, own.y, own.z, own.w};
    before = sum;
    int first = row;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        sum += unit_mass(i % 2 ? pairs[i / 2] >> 16 : pairs[i / 2] & 0xffff);
        if (to_global(sum, shift) + each * (uint64_t)(first + i + 1) <= t)
            before = sum, row++;
        else
            after = min(after, sum);
    }
    return {b * BLOCK + row, to_global(after, shift) - to_global(before, shift) + each};
}

// The first light row whose running light size exceeds t < light.
__device__ light_row find_listed(const take_space *s, uint64_t t) {
    int low = 0, high = s->drawn.n_heavy; // heavy rows before it: those with no more than t before them
    while (low < high) {
        int middle = (low + high) / 2;
        if (s->heavy.light[middle] <= t)
            low = middle + 1;
        else
            high = middle;
    }
    return find_size(s, low ? t + s->heavy.heavy[low - 1] : t);
}

// The same where s->cum holds light sizes alone.
__device__ __noinline__ light_row find_unlisted(const take_space *s, uint64_t t) {
    const size_view &z = s->sizes;
    int low = find_entry(s, t);
    uint64_t running = s->cum[low], cut = s->drawn.cut, in_block = 0;
    light_row found = {-1, 0};
    for (int row = low << z.shift << 5; row < z.n && found.row < 0; row += 8) { // eight rows at a time
        if (row % BLOCK == 0) in_block = 0;
        int shift = z.top - ref_of(mass_of(s, row / BLOCK));
        uint4 w = __ldcg((const uint4 *)(z.w + (size_t)(row / BLOCK) * z.stride) + row % BLOCK / 8);
        const uint32_t pairs[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint32_t mass = unit_mass(i % 2 ? pairs[i / 2] >> 16 : pairs[i / 2] & 0xffff);
            uint64_t size = size_between(z, shift, in_block, mass, row + i < z.n);
            in_block += mass;
            if (size > cut) continue;
            running += size;
            if (found.row < 0 && running > t) found = {row + i, size};
        }
    }
    return found;
}

// The lane's heavy row of block b, a warp's block; they come first and ascend. -1: no more.
__device__ __noinline__ int heavy_row(const take_space *s, int b) {
    if (b >= s->sizes.n_blocks || largest_of(s->sizes, mass_of(s, b)) <= s->drawn.cut) return -1;
    int lane = threadIdx.x % 32;
    uint32_t heavy = __ballot_sync(~0u, size_of_lane(s, b) > s->drawn.cut);
    return lane < __popc(heavy) ? b * BLOCK + (int)__fns(heavy, 0, lane + 1) : -1;
}

// ---- turns of TAKERS rows: heavy rows that were not listed, a block for each warp, then listed ones and draws ----

__device__ int heavy_turns(const take_space *s) {
    return s->drawn.listed ? 0 : ceil_div(s->sizes.n_blocks, TAKE_WARPS);
}

__device__ int turns_of(const take_space *s) {
    return heavy_turns(s) + ceil_div((s->drawn.listed ? s->drawn.n_heavy : 0) + s->drawn.k, TAKERS);
}

// Thread's row of a turn of those that s->drawn stands for, -1: it has none, and to *inv_pi its 1 / pi. A warp's rows come
// first and ascend, heavy ones before light ones; neighbours may be equal: a light row drawn twice. Draw m of the light rows
// has uniform number `index` | m, or all have number `index` (shared).
__device__ int row_of_turn(const take_space *s, bool shared, const sl_rng_id &id, uint32_t index, int turn, int thread,
                           float *inv_pi) {
    const take_all &r = s->drawn;
    int n_listed = r.listed ? r.n_heavy : 0, n_heavy = heavy_turns(s), m = (turn - n_heavy) * TAKERS + thread;
    *inv_pi = 1;
    if (turn < n_heavy) return heavy_row(s, turn * TAKE_WARPS + thread / 32);
    if (m < n_listed) return (int)(s->heavy.row[m] >> SIZE_BITS);
    if (m >= n_listed + r.k) return -1;
    uint32_t number = m - n_listed, i = index | (shared ? 0 : number);
    uint64_t u = i < TAKERS ? s->uniform[i] : sl_rng_u64(&id, i, SL_STREAM_ATTENTION);
    uint64_t t = threshold(r.light, r.k, number, u);
    light_row x = r.listed ? find_listed(s, t) : find_unlisted(s, t);
    *inv_pi = (float)(r.kappa / (double)x.size);
    return x.row;
}

// ---- when a head can be drawn, and when all have been ----

// A block takes a query head as soon as the kernel in front has stored all of its KV head, so the draws of a batch's first
// sequences lie beside the scores of its last. Blocks run in order. The kernel in front lets these blocks start (sl_start_next)
// when all its blocks have a place and what came before it has ended: so nobody waits for a block that has no place, and the
// counter is not one that an earlier launch has yet to set to 0.

// Until the counter has come to `wanted`.
__device__ void wait_done(const int *done, int wanted, int thread) {
    if (thread == 0)
        while (load_acquired(done) != wanted) __nanosleep(20);
    __syncthreads();
}

// A block no longer asks for a KV head's counters. How many blocks did so before it, in thread 0; the last may set them to 0.
// The kernel must not end before the one in front: the last blocks wait for that.
__device__ int leave_slot(int *drawn, bool is_last_slot, int thread) {
    if (is_last_slot) sl_wait_previous();
    return thread == 0 ? atomicAdd(drawn, 1) : 0;
}

// ---- sums over the warps of a block ----

// The sum over the warps, in their order, of a lane's row_sum: thread's column of it. columns: [TAKE_WARPS][DIM_MAX]
template <int DIM> __device__ float join_columns(float (*columns)[DIM_MAX], const row_sum &sum, int thread) {
    put_columns<DIM>(columns[thread / 32], sum, thread % 32);
    __syncthreads();
    float x = 0;
    for (int i = 0; thread < DIM && i < TAKE_WARPS; i++) x += columns[i][thread];
    return x;
}

} // namespace

#endif
