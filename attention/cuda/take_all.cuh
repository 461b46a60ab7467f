// attention/cuda/take_all.cuh - take-all + PPS draws from one head's stored sizes, on CUDA: sl_draw_take_all (draw_take_all.c),
// the same rows and the same 1 / pi_j, by a block of threads.
//
// A row is heavy when its size exceeds kappa = light / (S - heavy). kappa only falls as rows become heavy, so that the
// sets {size > kappa}, taken again and again, grow to the very set that the CPU finds in order of size; equal sizes are all
// heavy or all light. Nothing is sorted. A bound on kappa from below follows from masses and references of blocks alone
// (find_bounds); only rows above it, the candidates, are then asked again and again, in registers. Where they are too many,
// blocks are read anew each time: as right, and slower. Light draws are thresholds on light sizes; the heavy rows that lie
// before one, a list in order, turn it into a threshold on all sizes.
//
// All TAKE_THREADS threads of a block call these functions together; masses of blocks lie in shared memory. What matters is the
// way from the last score to the rows of V: it is a chain of some twenty short steps, so loads go out together, barriers are
// few, divisions wait until memory has to be waited for. And a first head's instructions come from memory, 8 in a line: code
// that runs once is better short than unrolled.
//
// Lost, by `bench attn` at 1 x 32k: 512 threads (3 us more), each warp asking all candidates in place of a barrier a turn (3 us
// more: its code is longer), and walking through a made-up head while waiting, to have the instructions there (6 us more).
//
// Owns: rows and their expected counts. What they weigh, and whose rows they are, is the caller's.
#ifndef SLEIGH_TAKE_ALL_CUH
#define SLEIGH_TAKE_ALL_CUH

#include "attention/cuda/draw_rows.cuh"

namespace {

enum {
    TAKE_THREADS = 256, // threads
    TAKE_WARPS = TAKE_THREADS / 32,
    TAKE_ENTRIES = 4 * TAKE_THREADS,           // of running sizes
    WARP_CANDIDATES = 64,                      // candidates that one warp may find
    CANDIDATES = TAKE_WARPS * WARP_CANDIDATES, // rows that may be heavy
    CANDIDATE_BLOCKS = 512,                    // that hold them
    S_MOST_LISTED = 4096,                      // then S sizes are below 2^53, and products of S with one below 2^64
    OCTAVES = 32,                              // below the largest size; what is smaller does not count
    OCTAVE_PLACES = 128,                       // an octave's is that of its reference, modulo these
    OCTAVE_COLUMNS = 8,
    SIZE_BITS = 40, // of a candidate: a size is at most 2^38, and a uniform part of it
};
static_assert(OCTAVE_PLACES * OCTAVE_COLUMNS * sizeof(uint32_t) == TAKE_THREADS * sizeof(uint4), "clear_octaves");
const uint64_t SIZE_MASK = (1ull << SIZE_BITS) - 1;

// Stored sizes of one head (stages.h), or what they follow from: `typename Space` is a take_space or derives from it, and with
// stored_piece, sizes_of and size_of_row of its own sizes are made from what is stored (pps.cu).
struct size_view {
    const uint64_t *mass; // [n_blocks] ref << 48 | in-block mass
    const bf16 *w;        // block b's 32 sizes begin at b * stride; 16-byte aligned
    int stride, n;        // rows, at most 131072
    int n_blocks;
    double share; // a row's uniform part, of the total: sl_masses_mix
    // found by take_all_solve
    int shift, top; // an entry is 2^shift blocks; the unit
    uint64_t each, total;
};

struct take_all {
    int n_heavy, k; // n_heavy + k draws in all
    uint64_t light; // total size of the light rows
    uint64_t cut;   // a row is heavy if its size exceeds it
    bool listed;    // the heavy rows are in take_space.heavy
};

struct take_space { // views lie here, not in registers, which rows of V on their way fill
    uint64_t *mass; // [take_all_memory] block b's at place_of(b)
    size_view sizes;
    take_all drawn;
    uint64_t uniform[TAKE_THREADS];                               // the first numbers of the head's draws
    uint64_t cum[TAKE_ENTRIES + 1];                               // size before each entry
    uint64_t scan[2][TAKE_WARPS];                                 // by turns
    __align__(16) int ints[TAKE_WARPS], n_listed[TAKE_WARPS];     // of the warps
    __align__(16) uint32_t octave[OCTAVE_PLACES][OCTAVE_COLUMNS]; // sums of in-block mass, in units of 2^24, each of some lanes
    int block[CANDIDATE_BLOCKS];                                  // ascending
    __align__(16) int n_found[TAKE_WARPS];                        // candidates of each warp
    int heavy_count[2][TAKE_WARPS];                               // of those, by turns
    uint64_t heavy_sum[2][TAKE_WARPS];
    struct {
        uint64_t row[TAKE_WARPS][WARP_CANDIDATES];    // row << 40 | size, ascending
        uint64_t before[TAKE_WARPS][WARP_CANDIDATES]; // size of all rows before it
    } found;
    union {
        struct {
            uint64_t light[CANDIDATES]; // of the light rows before it
            uint64_t heavy[CANDIDATES]; // of the heavy rows up to and including it
            int row[CANDIDATES];        // ascending
        } heavy;
        uint64_t heavy_of[TAKE_ENTRIES]; // heavy sizes of an entry, where they are not listed
    };
};

// ---- masses of blocks ----

// Blocks of a thread, in order.
__host__ __device__ int blocks_each(int n_blocks) {
    return n_blocks <= 2 * TAKE_THREADS ? 2 : n_blocks <= 4 * TAKE_THREADS ? 4 : 16;
}

// Two places more for each 16 keep the banks of threads that have as many apart.
__host__ __device__ int place_of(int b) {
    return b + b / 16 * 2;
}

// Bytes of take_space.mass for contexts of up to n_blocks.
__host__ __device__ int take_all_memory(int n_blocks) {
    return ceil_div(place_of(n_blocks) + 2, 2) * 2 * (int)sizeof(uint64_t);
}

__device__ uint64_t mass_of(const take_space *s, int b) {
    return s->mass[place_of(b)];
}

__device__ void clear_octaves(take_space *s, int thread) {
    ((uint4 *)s->octave)[thread] = make_uint4(0, 0, 0, 0);
}

// What can be done before the sizes are there: whose they will be, and the first uniform numbers of the head's draws, of index
// 0 on. n rows; mass: [n_blocks] 16-byte aligned; memory: take_all_memory bytes; alpha: of the uniform part, sl_masses_mix's.
// The caller's __syncthreads comes between this and take_all_begin.
__device__ void take_all_prepare(take_space *s, void *memory, const uint64_t *mass, const bf16 *w, int stride, int n,
                                 double alpha, const sl_rng_id &id, int thread) {
    if (thread == 0) {
        s->mass = (uint64_t *)memory;
        s->sizes = {
            .mass = mass, .w = w, .stride = stride, .n = n, .n_blocks = ceil_div(n, BLOCK), .share = alpha / (1 - alpha) / n};
    }
    clear_octaves(s, thread);
    s->uniform[thread] = sl_draw_random(&id, thread);
}

// Asks for the masses, whole lines at a time, past the L1 cache, which may hold the line from before; take_all_solve waits for
// them.
__device__ void take_all_begin(take_space *s, int thread) {
    const uint64_t *mass = s->sizes.mass;
    uint32_t to = shared_address(s->mass);
    for (int b = 2 * thread; b < s->sizes.n_blocks; b += 2 * TAKE_THREADS)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + place_of(b) * 8), "l"(mass + b) : "memory");
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
    return each > 0 ? each * (uint64_t)max(min(n - b * BLOCK, (int)BLOCK), 0) : 0;
}

// Size of the lane's row of block b, in-block mass being `before` and `mass` more with the row. Sizes are differences of global
// masses, as the CPU's are.
__device__ uint64_t size_between(const size_view &z, int shift, uint64_t before, uint64_t mass, bool there) {
    return to_global(before + mass, shift) - to_global(before, shift) + (there ? z.each : 0);
}

// Stored sizes 8 i .. 8 i + 7 of block b, as they are stored; and as bf16, packed: the block's mass.
__device__ uint4 stored_piece(const take_space *s, int b, int i) {
    return __ldcg((const uint4 *)(s->sizes.w + (size_t)b * s->sizes.stride) + i);
}
__device__ uint4 sizes_of(const uint4 &stored, uint64_t packed) {
    return stored;
}

// Row `row` of block b, as bf16.
__device__ uint32_t size_of_row(const take_space *s, int b, int row) {
    return __ldcg((const unsigned short *)s->sizes.w + (size_t)b * s->sizes.stride + row);
}

// Size of the lane's row of block b, the warp's; 0 past the last.
template <typename Space> __device__ uint64_t size_of_lane(const Space *s, int b) {
    const size_view &z = s->sizes;
    int lane = threadIdx.x % 32;
    uint32_t mass = unit_mass(size_of_row(s, b, lane));
    uint64_t running = sl_scan_lanes((uint64_t)mass, lane);
    return size_between(z, z.top - ref_of(mass_of(s, b)), running - mass, mass, b * BLOCK + lane < z.n);
}

__device__ uint64_t sum_lanes(uint64_t x) { // of numbers below 2^52
    uint32_t low = __reduce_add_sync(~0u, (uint32_t)x & 0x3ffffff), high = __reduce_add_sync(~0u, (uint32_t)(x >> 26));
    return ((uint64_t)high << 26) + low;
}

// ---- candidates ----

// What masses in octaves tell, in rows of the largest size.
struct bounds {
    uint64_t least;     // kappa is not below it
    uint64_t each_most; // nor a row's uniform part above this
};

// kappa is not below `least`: by concavity a block of mass M whose rows are at most U has an expected count of at least that of
// M / U rows of size U, min(M / U, M / kappa), and the largest kappa whose expected counts come to S is sought. Octave o holds
// blocks of U = 2^(38 - o). With a uniform part e, min(1, (z + e) / kappa) >= e / kappa + (1 - e / kappa) min(1, z / kappa).
// Masses were rounded down to units, by a 32th at most, for a block's mass is more than half of its largest row. A block of
// another warp, OCTAVE_PLACES octaves below, may be taken for a large one: the bound is then too high, which solve_found sees.
__device__ bounds find_bounds(const take_space *s, int top, int S) {
    int lane = threadIdx.x % 32, n = s->sizes.n;
    const uint4 *own_octave = (const uint4 *)s->octave[(top - lane) & (OCTAVE_PLACES - 1)];
    uint4 x = own_octave[0], y = own_octave[1];
    uint32_t sum = (x.x + x.y) + (x.z + x.w) + ((y.x + y.y) + (y.z + y.w));
    float fall = __uint_as_float((uint32_t)(127 - lane) << 23), t = __uint_as_float((uint32_t)(127 + lane) << 23);
    float above = (float)sum / 64, below = above * fall; // t: 2^38 / kappa; above: counts of octaves <= lane
    float own = below;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        float a = __shfl_up_sync(~0u, above, step), b = __shfl_down_sync(~0u, below, step);
        if (lane >= step) above += a;
        if (lane + step < 32) below += b;
    }
    float share = (float)s->sizes.share, total = __shfl_sync(~0u, below, 0); // of all, rounded down
    float uniform = fminf(share * total * 0.9999f * t, 1);
    float count = n * uniform + (1 - uniform) * (above + t * (below - own));
    bounds b = {0, share > 0 ? (uint64_t)(share * 0x1p38f * (1.04f * total + 0.001f)) + 1 : 0};
    uint32_t enough = __ballot_sync(~0u, count >= S);
    if (!enough) return b;
    int o = __ffs(enough) - 1;
    float count1 = __shfl_sync(~0u, count, o), count0 = __shfl_sync(~0u, count, max(o - 1, 0));
    float t1 = __shfl_sync(~0u, t, o), t0 = o ? t1 / 2 : 0; // concave in between: the chord lies below
    if (o == 0) count0 = 0;
    b.least = (uint64_t)__fdividef(0x1p38f * 0.999f, t0 + __fdividef(S - count0, count1 - count0) * (t1 - t0));
    return b;
}

// Size of all rows before block b.
__device__ uint64_t size_before(const take_space *s, int b) {
    const size_view &z = s->sizes;
    int entry = b >> z.shift;
    uint64_t sum = s->cum[entry];
    for (int i = entry << z.shift; i < b; i++) sum += global_mass(mass_of(s, i), z.top) + each_of_block(z.each, i, z.n);
    return sum;
}

// The thread's EACH blocks; those past the last are empty.
template <int EACH> __device__ void own_masses(const take_space *s, int thread, uint64_t x[EACH]) {
    int first = thread * EACH, n_own = s->sizes.n_blocks - first;
    const uint64_t *mass = s->mass + place_of(first);
#pragma unroll
    for (int j = 0; j < EACH; j += 2) {
        ulonglong2 both = make_ulonglong2(MASS_EMPTY, MASS_EMPTY);
        if (j < n_own) both = *(const ulonglong2 *)(mass + j);
        x[j] = both.x, x[j + 1] = j + 1 < n_own ? both.y : MASS_EMPTY;
    }
}

// The unit, the total, sizes before each entry to s->cum, *least, a bound on kappa, and the blocks that may hold larger rows to
// s->block. Returns their number, or -1: too many. precondition: octaves are 0; they are again at the end.
template <int EACH> __device__ int find_blocks(take_space *s, int S, const int *other_top, uint64_t *least, int thread) {
    enum { SHIFT = EACH > 4 ? 2 : 0, N = 1 << SHIFT };
    int lane = thread % 32, warp = thread / 32, first = thread * EACH, top = REF_EMPTY;
    uint64_t x[EACH], own = 0, before = 0, total = 0;
    own_masses<EACH>(s, thread, x);
#pragma unroll
    for (int j = 0; j < EACH; j++) top = max(top, ref_of(x[j]));
    top = __reduce_max_sync(~0u, top);
#pragma unroll
    for (int j = 0; j < EACH; j++) { // a block far below its warp's largest counts for nothing
        uint32_t units = (uint32_t)((x[j] & MASS_MASK) >> 24);
        int ref = ref_of(x[j]);
        if (units && top - ref < OCTAVES) atomicAdd(&s->octave[ref & (OCTAVE_PLACES - 1)][lane % OCTAVE_COLUMNS], units);
    }
    if (lane == 0) s->ints[warp] = top;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TAKE_WARPS; i++) top = max(top, s->ints[i]);
    if (other_top && *other_top > top && *other_top - top <= 8) top = *other_top;
#pragma unroll
    for (int j = 0; j < EACH; j++) own += global_mass(x[j], top);
    bounds bound = find_bounds(s, top, S);
    uint32_t mask = 0;
#pragma unroll
    for (int j = 0; j < EACH; j++)
        mask |= (uint32_t)(first + j < s->sizes.n_blocks && largest_of(x[j], top, bound.each_most) > bound.least) << j;
    uint64_t running = sl_scan_lanes(own, lane);
    int at = sl_scan_lanes(__popc(mask), lane), n_listed = 0, n_before = 0;
    if (lane == 31) s->scan[0][warp] = running, s->n_listed[warp] = at;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TAKE_WARPS; i++) {
        if (i == warp) before = total, n_before = n_listed;
        total += s->scan[0][i], n_listed += s->n_listed[i];
    }
    int n = s->sizes.n;
    uint64_t each = (uint64_t)(s->sizes.share * (double)total);
    total += each * (uint64_t)n;
    running += before - own + each * (uint64_t)min(first * BLOCK, n);
    at += n_before - __popc(mask);
#pragma unroll
    for (int j = 0; j < EACH; j++) { // entries past the last hold the total
        if (j % N == 0) s->cum[(first + j) / N] = running;
        running += global_mass(x[j], top) + each_of_block(each, first + j, n);
    }
    if (thread == 0) {
        s->sizes.shift = SHIFT, s->sizes.top = top, s->sizes.each = each, s->sizes.total = total;
        s->cum[TAKE_THREADS * EACH / N] = total;
    }
    bool fit = n_listed <= CANDIDATE_BLOCKS;
    for (; fit && mask; mask &= mask - 1) s->block[at++] = first + __ffs(mask) - 1;
    clear_octaves(s, thread);
    __syncthreads();
    *least = bound.least;
    return fit ? n_listed : -1;
}

// Rows larger than `least`, and few others, of the listed blocks, to s->found, and how many each warp found: a warp has eight
// blocks at a time, four lanes a block.
template <typename Space> __device__ void collect_rows(Space *s, int n_blocks, uint64_t least, int thread) {
    enum { AHEAD = 4 }; // times eight blocks, asked for together
    const size_view &z = s->sizes;
    int lane = thread % 32, warp = thread / 32, quarter = lane % 4, n = 0;
    int from = n_blocks * warp / TAKE_WARPS, end = n_blocks * (warp + 1) / TAKE_WARPS;
    float limit = least > z.each + 2 ? (float)(least - z.each - 2) * 0.99999f : z.each ? -1 : 0; // of what is stored
    decltype(stored_piece(s, 0, 0)) ahead[AHEAD];
#pragma unroll 1
    for (int first = from; first < end; first += 8) {
        if ((first - from) % (8 * AHEAD) == 0) {
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                int b = s->block[min(first + 8 * k + lane / 4, end - 1)];
                if (first + 8 * k < end) ahead[k] = stored_piece(s, b, quarter);
            }
        }
        int b = s->block[min(first + lane / 4, end - 1)], row = b * BLOCK + 8 * quarter;
        uint64_t packed = mass_of(s, b);
        int shift = z.top - ref_of(packed);
        uint4 w = sizes_of(ahead[0], packed);
        const uint32_t pairs[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int k = 1; k < AHEAD; k++) ahead[k - 1] = ahead[k];
        float in_block = limit * __uint_as_float((uint32_t)(127 - 38 + min(shift, 128)) << 23); // limit of a stored size
        uint32_t mask = 0, mass[8];
        uint64_t running = 0; // in-block mass up to the lane's last row, then before its first
#pragma unroll
        for (int j = 0; j < 8; j++) {
            uint32_t x = j % 2 ? pairs[j / 2] & 0xffff0000u : pairs[j / 2] << 16;
            mask |= (uint32_t)(__uint_as_float(x) > in_block && row + j < z.n) << j;
            running += mass[j] = unit_mass(x >> 16);
        }
        if (first + lane / 4 >= end) mask = 0;
        uint64_t own = running;
#pragma unroll
        for (int step = 1; step < 4; step *= 2) {
            uint64_t before = __shfl_up_sync(~0u, running, step);
            if (quarter >= step) running += before;
        }
        running -= own;
        int at = sl_scan_lanes(__popc(mask), lane), n_all = __shfl_sync(~0u, at, 31);
        for (at += n - __popc(mask); mask && at < WARP_CANDIDATES; mask &= mask - 1, at++) {
            int place = __ffs(mask) - 1;
            uint64_t before = running, size = 0;
#pragma unroll
            for (int j = 0; j < 8; j++) {
                if (j < place) before += mass[j];
                if (j == place) size = mass[j];
            }
            s->found.row[warp][at] = (uint64_t)(row + place) << SIZE_BITS | size_between(z, shift, before, size, true);
            s->found.before[warp][at] = size_before(s, b) + to_global(before, shift) + z.each * (uint64_t)(row % BLOCK + place);
        }
        n += n_all;
    }
    if (lane == 0) s->n_found[warp] = n;
}

// ---- which rows are heavy ----

// From the rows found, all that are larger than `least`. False: they are too many, or kappa lies below. A warp keeps what it
// has found in registers.
__device__ bool solve_found(take_space *s, int S, uint64_t least, int thread) {
    enum { EACH = WARP_CANDIDATES / 32 };
    int lane = thread % 32, warp = thread / 32, n = 0, own = s->n_found[warp];
    uint64_t x[EACH], total = s->sizes.total;
    bool fits = S <= S_MOST_LISTED;
#pragma unroll
    for (int i = 0; i < TAKE_WARPS; i++) fits &= s->n_found[i] <= WARP_CANDIDATES, n += s->n_found[i];
    if (!fits) return false;
#pragma unroll
    for (int i = 0; i < EACH; i++) x[i] = i * 32 + lane < own ? s->found.row[warp][i * 32 + lane] : 0;
    // Expected counts are concave in 1 / kappa: from the line where all that were found are heavy, kappa falls to its place.
    uint64_t light = n < S ? 0 : total, before; // at first 0: all are heavy
    int k = S, n_heavy = -1, at;
#pragma unroll 1
    for (int turn = 0;; turn ^= 1) {
        uint64_t sum = 0;
        int count = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if ((x[i] & SIZE_MASK) * (unsigned)k > light) sum += x[i] & SIZE_MASK, count++;
        count = __reduce_add_sync(~0u, count), sum = sum_lanes(sum);
        if (lane == 0) s->heavy_count[turn][warp] = count, s->heavy_sum[turn][warp] = sum;
        __syncthreads();
        count = at = 0, sum = before = 0;
#pragma unroll
        for (int i = 0; i < TAKE_WARPS; i++) {
            if (i == warp) at = count, before = sum;
            count += s->heavy_count[turn][i], sum += s->heavy_sum[turn][i];
        }
        if (count == n_heavy) break;
        light = total - sum, k = S - count, n_heavy = count;
    }
    if (light < least * (unsigned)k) return false;
#pragma unroll 1
    for (int i = 0; i * 32 < own; i++) {
        uint64_t y = i * 32 + lane < own ? s->found.row[warp][i * 32 + lane] : 0, size = y & SIZE_MASK;
        bool is_heavy = size * (unsigned)k > light;
        uint32_t heavy = __ballot_sync(~0u, is_heavy);
        uint64_t up_to = before + sl_scan_lanes(is_heavy ? size : 0, lane);
        int place = at + __popc(heavy & ((1u << lane) - 1));
        if (is_heavy) {
            s->heavy.row[place] = (int)(y >> SIZE_BITS), s->heavy.heavy[place] = up_to;
            s->heavy.light[place] = s->found.before[warp][i * 32 + lane] - (up_to - size);
        }
        at += __popc(heavy), before = __shfl_sync(~0u, up_to, 31);
    }
    if (thread == 0) s->drawn = {.n_heavy = n_heavy, .k = light ? k : 0, .light = light, .cut = 0, .listed = true};
    __syncthreads();
    return true;
}

// Number and size of the rows larger than cut.
template <typename Space> __device__ void split(Space *s, uint64_t cut, int *n_heavy, uint64_t *heavy, int thread) {
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
template <typename Space> __device__ __noinline__ void solve_blocks(Space *s, int S, int thread) {
    enum { EACH = TAKE_ENTRIES / TAKE_THREADS };
    const size_view &z = s->sizes;
    take_all r = {.n_heavy = 0, .k = S, .light = z.total, .cut = z.total / S, .listed = false};
    for (;;) {
        int n_heavy;
        uint64_t heavy;
        split(s, r.cut, &n_heavy, &heavy, thread);
        if (n_heavy == r.n_heavy) break;
        r.n_heavy = n_heavy, r.k = S - n_heavy, r.light = z.total - heavy, r.cut = r.light / r.k;
    }
    if (r.light == 0) r.k = 0;
    if (thread == 0) s->drawn = r;
    for (int e = thread; e < TAKE_ENTRIES; e += TAKE_THREADS) s->heavy_of[e] = 0;
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
    asm volatile("cp.async.wait_all;" ::: "memory");
    if (thread == 0) s->drawn = {.n_heavy = 0, .k = 0, .light = 0, .cut = 0, .listed = true};
    __syncthreads();
}

// Which rows of s->sizes are heavy with S draws, to s->drawn. s->cum then holds the sizes before each entry; where heavy rows
// are not listed, the light sizes. other_top: the largest reference of rows beyond these, in shared memory since before, which
// stays the unit where it is at most 8 above (sl_masses_truncate); NULL: there are none.
template <typename Space> __device__ void take_all_solve(Space *s, int S, const int *other_top, int thread) {
    uint64_t least;
    int n;
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    switch (blocks_each(s->sizes.n_blocks)) {
    case 2:
        n = find_blocks<2>(s, S, other_top, &least, thread);
        break;
    case 4:
        n = find_blocks<4>(s, S, other_top, &least, thread);
        break;
    default:
        n = find_blocks<16>(s, S, other_top, &least, thread);
    }
    if (s->sizes.total == 0) {
        take_all_nothing(s, thread);
        return;
    }
    if (n >= 0) {
        collect_rows(s, n, least, thread);
        __syncthreads();
        if (solve_found(s, S, least, thread)) return;
    }
    solve_blocks(s, S, thread);
}

// ---- draws ----

struct drawn_row {
    int row;       // -1: there is none
    uint64_t size; // of a light row; 0: it is taken whole
};

__device__ uint64_t add_mass(uint64_t sum, uint32_t w) { // of a bf16 in the low half; sums of in-block mass, times 2^8
    return sum + (uint64_t)unit_mass(w) * 256;
}

// Row of block b at which its running size exceeds t.
template <typename Space> __device__ drawn_row find_in_block(const Space *s, int b, uint64_t packed, uint64_t t) {
    const size_view &z = s->sizes;
    decltype(stored_piece(s, 0, 0)) stored[4];
    uint4 x[4];
#pragma unroll
    for (int i = 0; i < 4; i++) stored[i] = stored_piece(s, b, i);
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = sizes_of(stored[i], packed);
    uint4 own = x[0];
    uint64_t sum = 0, each = z.each, uniform = 0;         // of rows before the sought one
    int shift = min(z.top - ref_of(packed), 63), row = 0; // eight rows, then one
#pragma unroll
    for (int i = 0; i < 3; i++) {
        const uint32_t pairs[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
        uint64_t next = sum;
#pragma unroll
        for (int j = 0; j < 8; j++) next = add_mass(next, j % 2 ? pairs[j / 2] >> 16 : pairs[j / 2] & 0xffff);
        if (row == 8 * i && (next >> shift) + uniform + 8 * each <= t)
            sum = next, uniform += 8 * each, own = x[i + 1], row = 8 * (i + 1);
    }
    const uint32_t pairs[4] = {own.x, own.y, own.z, own.w};
    uint64_t next = sum;
    int step = 0;
#pragma unroll
    for (int j = 0; j < 7; j++) {
        next = add_mass(next, j % 2 ? pairs[j / 2] >> 16 : pairs[j / 2] & 0xffff), uniform += each;
        if ((next >> shift) + uniform <= t) sum = next, step++;
    }
    uint32_t pair = step < 4 ? (step < 2 ? own.x : own.y) : (step < 6 ? own.z : own.w);
    next = add_mass(sum, step % 2 ? pair >> 16 : pair & 0xffff);
    return {b * BLOCK + row + step, (next >> shift) - (sum >> shift) + each};
}

// The first row whose running size exceeds t, in an entry from `low` to `high`.
template <typename Space> __device__ drawn_row find_size(const Space *s, uint64_t t, int low, int high) {
    const size_view &z = s->sizes;
    int entry = low + count_upto(s->cum + low + 1, high - low, t), b = entry << z.shift;
    uint64_t packed = mass_of(s, b);
    t -= s->cum[entry];
    for (; z.shift > 0;) {
        uint64_t size = global_mass(packed, z.top) + each_of_block(z.each, b, z.n);
        if (size > t || b + 1 == z.n_blocks) break;
        t -= size;
        packed = mass_of(s, ++b);
    }
    return find_in_block(s, b, packed, t);
}

__device__ int entry_of_row(const size_view &z, int row) {
    return row / BLOCK >> z.shift;
}

// The first light row whose running light size exceeds t < light.
template <typename Space> __device__ drawn_row find_listed(const Space *s, uint64_t t) {
    const size_view &z = s->sizes;
    int n_heavy = s->drawn.n_heavy;
    int n = count_upto(s->heavy.light, n_heavy, t); // heavy rows before it: those with no more than t before them
    int low = n > 0 ? entry_of_row(z, s->heavy.row[n - 1]) : 0;
    int high = entry_of_row(z, n < n_heavy ? s->heavy.row[n] : z.n - 1);
    return find_size(s, n > 0 ? t + s->heavy.heavy[n - 1] : t, low, high);
}

// The same where s->cum holds light sizes alone.
template <typename Space> __device__ __noinline__ drawn_row find_unlisted(const Space *s, uint64_t t) {
    const size_view &z = s->sizes;
    int low = count_upto(s->cum + 1, entry_of_row(z, z.n - 1), t);
    uint64_t running = s->cum[low], cut = s->drawn.cut, in_block = 0;
    drawn_row found = {-1, 0};
    for (int row = low << z.shift << 5; row < z.n && found.row < 0; row += 8) { // eight rows at a time
        if (row % BLOCK == 0) in_block = 0;
        uint64_t packed = mass_of(s, row / BLOCK);
        int shift = z.top - ref_of(packed);
        uint4 w = sizes_of(stored_piece(s, row / BLOCK, row % BLOCK / 8), packed);
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
template <typename Space> __device__ __noinline__ int heavy_row(const Space *s, int b) {
    if (b >= s->sizes.n_blocks || largest_of(s->sizes, mass_of(s, b)) <= s->drawn.cut) return -1;
    int lane = threadIdx.x % 32;
    uint32_t heavy = __ballot_sync(~0u, size_of_lane(s, b) > s->drawn.cut);
    return lane < __popc(heavy) ? b * BLOCK + (int)__fns(heavy, 0, lane + 1) : -1;
}

// ---- turns of TAKE_THREADS rows: heavy rows that were not listed, a block for each warp, then listed ones and draws ----

__device__ int heavy_turns(const take_space *s) {
    return s->drawn.listed ? 0 : ceil_div(s->sizes.n_blocks, TAKE_WARPS);
}

__device__ int turns_of(const take_space *s) {
    return heavy_turns(s) + ceil_div((s->drawn.listed ? s->drawn.n_heavy : 0) + s->drawn.k, TAKE_THREADS);
}

// Thread's row of a turn of those that s->drawn stands for. A warp's rows come first and ascend, heavy ones before light ones;
// neighbours may be equal: a light row drawn twice. Few rows are shared out among all warps, which ask for theirs at once. Draw
// m of the light rows has uniform number `index` | m, or all have number `index` (shared).
template <typename Space>
__device__ drawn_row row_of_turn(const Space *s, bool shared, const sl_rng_id &id, uint32_t index, int turn, int thread) {
    const take_all &r = s->drawn;
    int n_listed = r.listed ? r.n_heavy : 0, n_heavy = heavy_turns(s), m = (turn - n_heavy) * TAKE_THREADS + thread;
    if (turn < n_heavy) return {heavy_row(s, turn * TAKE_WARPS + thread / 32), 0};
    if (n_listed + r.k <= TAKE_THREADS / 2) m = thread % 32 < 16 ? thread / 32 * 16 + thread % 32 : (int)TAKE_THREADS;
    if (m < n_listed) return {s->heavy.row[m], 0};
    if (m >= n_listed + r.k) return {-1, 0};
    uint32_t number = m - n_listed, i = index | (shared ? 0 : number);
    uint64_t u = i < TAKE_THREADS ? s->uniform[i] : sl_draw_random(&id, i);
    uint64_t t = threshold(r.light, r.k, inverse_of(r.k), number, u);
    return r.listed ? find_listed(s, t) : find_unlisted(s, t);
}

// 1 / pi of a row. Two divisions: best asked for while memory is waited for.
__device__ float inverse_pi(const take_space *s, const drawn_row &x) {
    return x.size ? (float)((double)s->drawn.light / s->drawn.k / (double)x.size) : 1;
}

// ---- when a head can be drawn, and when all have been ----

// A block takes a query head as soon as the kernel in front has stored all of its KV head, so the draws of a batch's first
// sequences lie beside the scores of its last. Blocks run in order. The kernel in front lets these blocks start (sl_start_next)
// when all its blocks have a place and what came before it has ended: so nobody waits for a block that has no place, and the
// counter is not one that an earlier launch has yet to set to 0.

// Copies the sequence's page table to shared memory; take_all_solve waits for it.
__device__ void copy_pages(int32_t *to, const sl_row &row, int thread) {
    for (int i = thread; i <= row.position / SL_PAGE; i += TAKE_THREADS)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to + i)), "l"(row.pages + i) : "memory");
}

// Until the counter has come to `wanted`.
__device__ void wait_done(const int *done, int wanted, int thread) {
    if (thread == 0)
        while (load_acquired(done) != wanted) __nanosleep(20);
    __syncthreads();
}

// A block no longer asks for a KV head's counters. How many blocks did so before it, in thread 0; the last may set them to 0.
// The kernel must not end before the one in front: the last blocks wait for that.
__device__ int release_seq_head(int *drawn, bool is_last_seq_head, int thread) {
    if (is_last_seq_head) sl_wait_previous();
    return thread == 0 ? sl_take_number(drawn) : 0;
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
