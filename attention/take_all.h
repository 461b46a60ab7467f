// attention/take_all.h - take-all + PPS draws from one head's stored sizes, on CUDA: sl_draw_take_all (draw_pps.c), the same
// rows and the same 1 / pi_j, by the drawers of a block (draw_rows.h).
//
// A row is heavy when its size exceeds kappa = light / (S - heavy). kappa only falls as rows become heavy, so that the
// sets {size > kappa}, taken again and again, grow to the very set that the CPU finds in order of size; equal sizes are all
// heavy or all light. Nothing is sorted. A bound on kappa from below follows from masses and references of blocks alone
// (least_heavy); only rows above it, the candidates, are then asked again and again, in registers. Where they are too many,
// blocks are read anew each time: as right, and slower. Light draws are thresholds on light sizes; the heavy rows that lie
// before one, a list in order, turn it into a threshold on all sizes.
//
// Owns: rows and their expected counts. What they weigh, and whose rows they are, is the caller's.
#ifndef SLEIGH_TAKE_ALL_H
#define SLEIGH_TAKE_ALL_H

#include "attention/draw_rows.h"

namespace {

enum {
    CANDIDATES = 256,       // rows that may be heavy
    CANDIDATE_BLOCKS = 256, // that hold them
    OF_WARP = 96,           // candidates that one warp may find
    S_MOST_LISTED = 4096,   // then S sizes are below 2^53, and double precision compares them exactly
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
    int n_blocks;
    // found by take_all_solve
    int shift, top;
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
    size_view sizes;
    take_all drawn;
    uint32_t octave[4][OCTAVES];             // sums of in-block mass by reference, in units of 2^24; a column for lane % 4
    int block[CANDIDATE_BLOCKS];             // ascending
    uint64_t block_before[CANDIDATE_BLOCKS]; // size of all rows before it
    int n_found[DRAWERS];                    // candidates of each warp
    int heavy_count[2][DRAWERS];             // of those, by turns
    uint64_t heavy_sum[2][DRAWERS];
    union {
        struct {
            uint64_t row[DRAWERS][OF_WARP];    // row << 40 | size, ascending
            uint64_t before[DRAWERS][OF_WARP]; // size of all rows before it
        } found;
        struct {
            uint64_t row[CANDIDATES];   // row << 40 | size, ascending
            uint64_t light[CANDIDATES]; // of the light rows before it
            uint64_t heavy[CANDIDATES]; // of the heavy rows up to and including it
        } heavy;
    };
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

__device__ uint64_t each_of_block(uint64_t each, int b, int n) {
    return each * (uint64_t)max(min(n - b * BLOCK, (int)BLOCK), 0);
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

// Rows larger than `least`, and few others, of the listed blocks, to s->found: eight blocks of a warp at a time, four lanes a
// block.
__device__ void collect_rows(take_space *s, int n_blocks, uint64_t least, int thread) {
    const size_view &z = s->sizes;
    int lane = thread % 32, warp = thread / 32, quarter = lane % 4, n = 0;
    int from = n_blocks * warp / DRAWERS, end = n_blocks * (warp + 1) / DRAWERS;
    float limit = least > z.each + 2 ? (float)(least - z.each - 2) * 0.99999f : z.each ? -1 : 0; // of what is stored
    uint64_t packed = 0, next_packed = 0;
    uint4 w, next_w = make_uint4(0, 0, 0, 0);
    for (int i = from + lane / 4 - 8; i - lane / 4 < end && from < end; i += 8) { // what comes next is on its way meanwhile
        int b = s->block[max(min(i, end - 1), from)], next = s->block[min(i + 8, end - 1)], row = b * BLOCK + 8 * quarter;
        packed = next_packed, w = next_w;
        next_packed = __ldcg(z.mass + next), next_w = __ldcg((const uint4 *)(z.w + (size_t)next * z.stride) + quarter);
        if (i - lane / 4 < from) continue;
        const uint32_t pairs[4] = {w.x, w.y, w.z, w.w};
        int shift = z.top - ref_of(packed);
        float in_block = limit * __uint_as_float((uint32_t)(127 - 38 + min(shift, 128)) << 23); // limit of a stored size
        uint32_t mask = 0, u[8];
        uint64_t sum = 0;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            uint32_t x = j % 2 ? pairs[j / 2] & 0xffff0000u : pairs[j / 2] << 16;
            mask |= (uint32_t)(__uint_as_float(x) > in_block && row + j < z.n) << j;
            sum += u[j] = unit_mass(x >> 16);
        }
        if (i >= end) mask = 0;
        uint64_t one = __shfl_up_sync(~0u, sum, 1), both = sum + (quarter >= 1 ? one : 0);
        uint64_t two = __shfl_up_sync(~0u, both, 2), before = both - sum + (quarter >= 2 ? two : 0); // quarters before
        int at = n, own = __popc(mask);
        for (int step = 1; step < 32; step *= 2) {
            int x = __shfl_up_sync(~0u, own, step);
            if (lane >= step) own += x;
        }
        at += own - __popc(mask);
        n += __shfl_sync(~0u, own, 31);
        uint64_t base = s->block_before[min(i, end - 1)];
#pragma unroll
        for (int j = 0; j < 8; j++) {
            uint64_t start = to_global(before, shift);
            before += u[j];
            if (mask >> j & 1 && at < OF_WARP) {
                s->found.row[warp][at] = (uint64_t)(row + j) << SIZE_BITS | (to_global(before, shift) - start + z.each);
                s->found.before[warp][at++] = base + start + z.each * (uint64_t)(row + j - b * BLOCK);
            }
        }
    }
    if (lane == 0) s->n_found[warp] = n;
}

// Of sizes in entries of 2^SHIFT blocks: the unit, the total, sizes before each entry to d->cum, *least, a bound on kappa, and
// the blocks that may hold larger rows to s->block. Returns their number, or -1: too many.
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
    if (lane == 0) d->ints[thread / 32] = top;
    s->octave[thread / 32][lane] = 0;
    drawers_sync();
    top = max(max(d->ints[0], d->ints[1]), max(d->ints[2], d->ints[3]));
    if (s->sizes.other_top > top && s->sizes.other_top - top <= 8) top = s->sizes.other_top;
#pragma unroll 1
    for (int i = 0; i < BLOCKS; i += N) {
        if (BLOCKS > N) load_masses<N>(masses, first + i, x); // again: so many do not fit
#pragma unroll
        for (int j = 0; j < N; j++) {
            int octave = top - ref_of(x[j]);
            uint64_t units = (x[j] & 0xffffffffffffull) >> 24;
            own += global_mass(x[j], top);
            if (octave >= OCTAVES) units = octave < 64 ? units >> (octave - (OCTAVES - 1)) : 0, octave = OCTAVES - 1;
            if (units) atomicAdd(&s->octave[lane % 4][octave], (uint32_t)units);
        }
    }
    uint64_t running = scan_threads(d, thread, own, &total) - own;
    if (s->sizes.alpha > 0) each = (uint64_t)(s->sizes.alpha / (1 - s->sizes.alpha) * (double)total / n);
    if (thread == 0) {
        s->sizes.shift = SHIFT, s->sizes.top = top, s->sizes.each = each;
        s->sizes.total = d->cum[ENTRIES] = total + each * (uint64_t)n;
    }
    *least = least_heavy(s, n, each, S);
    running += each * (uint64_t)min(first * BLOCK, n);
#pragma unroll 1
    for (int i = 0; i < BLOCKS; i += N) {
        if (BLOCKS > N) load_masses<N>(masses, first + i, x);
#pragma unroll
        for (int j = 0; j < N; j++) {
            int b = first + i + j;
            mask |= (uint32_t)(b < masses.n_blocks && largest_of(x[j], top, each) > *least) << (i + j);
            if (j % PER_ENTRY == 0) d->cum[b / PER_ENTRY] = running;
            running += global_mass(x[j], top) + each_of_block(each, b, n);
        }
    }
    int at = (int)scan_threads(d, thread, __popc(mask), &all) - __popc(mask);
    if (all > CANDIDATE_BLOCKS) return -1;
#pragma unroll 1
    for (int i = 0; i < BLOCKS; i += N) {
        if (!(mask >> i & ((1u << N) - 1))) continue;
        if (BLOCKS > N) load_masses<N>(masses, first + i, x);
        running = d->cum[(first + i) / PER_ENTRY];
#pragma unroll
        for (int j = 0; j < N; j++) {
            if (mask >> (i + j) & 1) s->block[at] = first + i + j, s->block_before[at++] = running;
            running += global_mass(x[j], top) + each_of_block(each, first + i + j, n);
        }
    }
    drawers_sync();
    return (int)all;
}

// ---- which rows are heavy ----

// From the rows found, all that are larger than `least`. False: they are too many, or kappa lies below. A warp keeps what it
// has found in registers.
__device__ bool solve_found(draw_space *d, take_space *s, int S, uint64_t least, int thread) {
    enum { EACH = OF_WARP / 32 };
    int lane = thread % 32, warp = thread / 32, n = 0, own = s->n_found[warp];
    uint64_t x[EACH], before[EACH], total = s->sizes.total, all;
    bool fits = S <= S_MOST_LISTED;
    for (int i = 0; i < DRAWERS; i++) fits &= s->n_found[i] <= OF_WARP, n += s->n_found[i];
    if (!fits || n > CANDIDATES) return false;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        bool there = i * 32 + lane < own;
        x[i] = there ? s->found.row[warp][i * 32 + lane] : 0, before[i] = there ? s->found.before[warp][i * 32 + lane] : 0;
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
            if ((double)(x[i] & SIZE_MASK) * k > limit) sum += x[i] & SIZE_MASK, count++;
        count = __reduce_add_sync(~0u, count), sum = sum_lanes(sum);
        if (lane == 0) s->heavy_count[turn][warp] = count, s->heavy_sum[turn][warp] = sum;
        drawers_sync();
        count = place = 0, sum = 0;
        for (int i = 0; i < DRAWERS; i++) {
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
        bool is_heavy = (double)(x[i] & SIZE_MASK) * k > limit;
        uint32_t heavy = __ballot_sync(~0u, is_heavy);
        int at = place + __popc(heavy & ((1u << lane) - 1));
        if (is_heavy) s->heavy.row[at] = x[i], s->heavy.light[at] = before[i];
        place += __popc(heavy);
    }
    drawers_sync();
    int first = 2 * thread;
    uint64_t y[2] = {first < n_heavy ? s->heavy.row[first] & SIZE_MASK : 0,
                     first + 1 < n_heavy ? s->heavy.row[first + 1] & SIZE_MASK : 0};
    uint64_t running = scan_threads(d, thread, y[0] + y[1], &all) - y[0] - y[1];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (first + i >= n_heavy) break;
        s->heavy.light[first + i] -= running;
        s->heavy.heavy[first + i] = running += y[i];
    }
    if (thread == 0)
        s->drawn = {
            .n_heavy = n_heavy, .k = light ? k : 0, .light = light, .cut = 0, .kappa = (double)light / k, .listed = true};
    drawers_sync();
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

// The same from all blocks, each time anew; light sizes before each entry to d->cum.
__device__ void solve_blocks(draw_space *d, take_space *s, int S, int thread) {
    enum { EACH = ENTRIES / DRAW_THREADS };
    const size_view &z = s->sizes;
    take_all r = {.n_heavy = 0, .k = S, .light = z.total, .cut = z.total / S, .kappa = 0, .listed = false};
    for (;;) {
        int n_heavy;
        uint64_t heavy;
        split(d, z, r.cut, &n_heavy, &heavy, thread);
        if (n_heavy == r.n_heavy) break;
        r.n_heavy = n_heavy, r.k = S - n_heavy, r.light = z.total - heavy, r.cut = r.light / r.k;
    }
    r.kappa = (double)r.light / r.k;
    if (r.light == 0) r.k = 0;
    if (thread == 0) s->drawn = r;
    uint64_t entry[EACH], own = 0, all;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int e = thread * EACH + i;
        entry[i] = e << z.shift < z.n_blocks ? d->cum[e + 1] - d->cum[e] : 0;
#pragma unroll 1
        for (int b = e << z.shift; b < min((e + 1) << z.shift, z.n_blocks); b++) {
            uint64_t packed = __ldcg(z.mass + b);
            if (largest_of(z, packed) <= r.cut) continue;
            block_sizes sizes(z, b, packed);
            sizes.walk([&](int, uint64_t size) { entry[i] -= size > r.cut ? size : 0; });
        }
        own += entry[i];
    }
    uint64_t running = scan_threads(d, thread, own, &all) - own;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        d->cum[thread * EACH + i] = running;
        running += entry[i];
    }
    if (thread == 0) d->cum[ENTRIES] = all;
    drawers_sync();
}

// Which rows of s->sizes are heavy with S draws, to s->drawn. d->cum then holds the sizes before each entry; where heavy rows
// are not listed, the light sizes. Called by all drawers together.
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
    if (s->sizes.total == 0) { // nothing to draw
        if (thread == 0) s->drawn = {.n_heavy = 0, .k = 0, .light = 0, .cut = 0, .kappa = 0, .listed = true};
        drawers_sync();
        return;
    }
    if (n >= 0) collect_rows(s, n, least, thread);
    drawers_sync();
    if (n < 0 || !solve_found(d, s, S, least, thread)) solve_blocks(d, s, S, thread);
}

// ---- draws ----

struct light_row {
    int row;
    uint64_t size;
};

// The entry of running sizes that holds t.
__device__ int find_entry(const draw_space *d, const size_view &z, uint64_t t) {
    int low = 0, high = ceil_div(z.n_blocks, 1 << z.shift); // cum[low] <= t < cum[high]
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (d->cum[middle] <= t)
            low = middle;
        else
            high = middle;
    }
    return low;
}

// The first row whose running size exceeds t.
__device__ light_row find_size(const draw_space *d, const size_view &z, uint64_t t) {
    int entry = find_entry(d, z, t), b = entry << z.shift;
    uint64_t packed = __ldcg(z.mass + b), each = z.each;
    block_sizes sizes(z, b, packed); // asked for before it is known whether this is the block
    t -= d->cum[entry];
    for (bool moved = false;; moved = true) {
        uint64_t size = global_mass(packed, z.top) + each_of_block(each, b, z.n);
        if (size > t || b + 1 == z.n_blocks) {
            if (moved) sizes = block_sizes(z, b, packed);
            break;
        }
        t -= size;
        packed = __ldcg(z.mass + ++b);
    }
    const uint4 *x = sizes.w;
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
__device__ light_row find_listed(const draw_space *d, const take_space *s, uint64_t t) {
    int low = 0, high = s->drawn.n_heavy; // heavy rows before it: those with no more than t before them
    while (low < high) {
        int middle = (low + high) / 2;
        if (s->heavy.light[middle] <= t)
            low = middle + 1;
        else
            high = middle;
    }
    return find_size(d, s->sizes, low ? t + s->heavy.heavy[low - 1] : t);
}

// The same where d->cum holds light sizes alone.
__device__ light_row find_unlisted(const draw_space *d, const size_view &z, uint64_t cut, uint64_t t) {
    int low = find_entry(d, z, t);
    uint64_t running = d->cum[low];
    light_row found = {-1, 0};
    for (int b = low << z.shift; b < z.n_blocks && found.row < 0; b++) {
        block_sizes sizes(z, b, __ldcg(z.mass + b));
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
                row = (int)(s->heavy.row[m] >> SIZE_BITS);
            } else if (m < n) {
                uint32_t number = m - n_listed;
                uint64_t u = sl_rng_u64(&id, index | (shared ? 0 : number), SL_STREAM_ATTENTION);
                uint64_t t = threshold(r.light, r.k, number, u);
                light_row x = r.listed ? find_listed(d, s, t) : find_unlisted(d, z, r.cut, t);
                row = x.row, inv_pi = (float)(r.kappa / (double)x.size);
            }
            m += DRAW_THREADS;
        }
        take(row, inv_pi, is_heavy);
    }
}

} // namespace

#endif
