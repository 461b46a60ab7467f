// attention/cuda/santa/take_blocks.cuh - the first step of take-all + PPS draws (take_all.cuh): the shared memory of a head,
// the masses of its blocks and rows, and find_blocks, which finds the total, the running sums, and the blocks that can have
// heavy rows.
//
// Up to 131,072 rows the block masses lie in shared memory. Above (long_context.cuh), find_long reads them from global memory.
//
// Owns: the running sums `cum` and the list of blocks. take_all.cuh and take_known.cuh choose rows from them.
#ifndef SLEIGH_TAKE_BLOCKS_CUH
#define SLEIGH_TAKE_BLOCKS_CUH

#include "attention/cuda/santa/draw_rows.cuh"

namespace {

enum {
    TAKE_THREADS = 256,
    TAKE_WARPS = TAKE_THREADS / 32,
    OWN_ENTRIES = IS_LONG ? 16 : 4,            // entries of `cum` for each thread
    TAKE_ENTRIES = OWN_ENTRIES * TAKE_THREADS, // entries of `cum`, the running sums of sizes
    WARP_CANDIDATES = 64,                      // candidates that one warp can hold
    CANDIDATES = TAKE_WARPS * WARP_CANDIDATES, // rows that can be heavy
    CANDIDATE_BLOCKS = 512,                    // blocks that can hold candidates
    KNOWN_LISTED = 128,                        // heavy rows that a warp lists at a known threshold
    LARGE_BLOCKS = 512,                        // blocks that a warp lists at a time (take_marked.cuh)
    S_MOST_LISTED = 4096,                      // so a sum of S sizes is below 2^53, and S * size is below 2^64
    OCTAVES = 32,                              // octaves below the largest size; sizes below them are not counted
    OCTAVE_PLACES = 128,                       // the place of an octave is its reference modulo this
    OCTAVE_COLUMNS = 8,
    SIZE_BITS = 40, // bits of a candidate's size: at most 2^38 plus a uniform part
    // IS_LONG:
    LOAD_BLOCKS = 64, // block masses of one load of a warp: 512 bytes
    ENTRY_AHEAD = 8,  // block masses of an entry in flight
};
static_assert((int)TAKE_ENTRIES * LOAD_BLOCKS >= ROWS_MAX / BLOCK, "an entry divides LOAD_BLOCKS");
static_assert(OCTAVE_PLACES * OCTAVE_COLUMNS * sizeof(uint32_t) == TAKE_THREADS * sizeof(uint4), "clear_octaves");
const uint64_t SIZE_MASK = (1ull << SIZE_BITS) - 1;

// The sizes of one head (masses.h), or the data from which sizes follow. `typename Space` is a take_space or derives from it. A
// derived space (pps.cu) defines stored_piece and sizes_of, which compute sizes from masses and norms.
struct size_view {
    const uint64_t *mass; // [n_blocks] ref << 48 | block mass
    const bf16 *w;        // the 32 sizes of block b begin at b * stride, 16-byte aligned
    int stride, n;        // n: rows, at most ROWS_MAX
    int n_blocks;
    double share; // a row's uniform part, as a fraction of the total (sl_masses_mix)
    // Found by take_all_solve:
    int shift, top; // an entry is 2^shift blocks; sizes are in units of 2^(top - 38)
    uint64_t each, total;
};

// The result of take_all_solve: which rows are drawn.
struct take_all {
    int n_heavy, k; // n_heavy heavy rows and k light draws
    uint64_t light; // sum of the light rows' sizes
    bool listed;    // take_space.heavy lists the heavy rows; false: take_space.marks has them
};

// ---- heavy rows in global memory (take_marked.cuh) ----

// 16 bytes.
struct block_mark {
    uint64_t light; // size of the light rows before the block
    uint32_t heavy; // number of heavy rows before the block
    uint32_t mask;  // bit j: row j of the block is heavy
};

// What the thread blocks of a head need in addition.
struct mark_result {
    take_all drawn;
    int shift, top; // as in size_view
    uint64_t each, total;
};

// MARKS: the thread block marks its head. WAITS: another thread block does, if the lists are too short. READY: it has.
enum mark_role { MARKS, WAITS, READY };

// The memory of a head.
struct head_marks {
    block_mark *blocks;  // [n_blocks]
    uint64_t *sizes;     // [most]
    int most;            // sizes that can be listed; more of them cost time
    mark_result *result; // with `ready`
    int *ready;          // 1: the rows are marked. NULL: no thread block waits
    mark_role role;
};

// The memory of all heads. Block marks have the places of block masses.
struct all_marks {
    block_mark *blocks;
    uint64_t *sizes; // [heads][most]
    int most;
    mark_result *results; // [heads]; NULL: no thread block waits
    int *ready;           // [heads]
    // at: number of the head's first block among the block masses of all heads.
    __device__ head_marks of_head(int head, size_t at, mark_role role) const {
        return {blocks + at, sizes + (size_t)head * most, most, results ? results + head : NULL, ready ? ready + head : NULL,
                role};
    }
};

// Sizes that are likely to lie above the lower bound of kappa with S draws, at most.
static inline int most_listed_sizes(int S) {
    return S < 512 ? 1024 : S < 8192 ? 2 * S : 16384;
}

// Takes the memory of n_heads heads with n_blocks block masses in all.
static inline all_marks take_marks(arena *from, int S, size_t n_heads, size_t n_blocks) {
    all_marks m = {.blocks = from->take<block_mark>(n_blocks),
                   .sizes = NULL,
                   .most = most_listed_sizes(S),
                   .results = NULL,
                   .ready = NULL};
    m.sizes = from->take<uint64_t>(n_heads * m.most);
    return m;
}

// Heavy rows at a known threshold (take_known.cuh), listed by each warp. Rows ascend over all warps.
struct known_lists {
    __align__(16) int row[TAKE_WARPS][KNOWN_LISTED];
    uint64_t before[TAKE_WARPS][KNOWN_LISTED]; // size of all rows before this row, without the warp's heavy rows
    uint64_t up_to[TAKE_WARPS][KNOWN_LISTED];  // size of the warp's heavy rows up to and including this row
};

// The shared memory of a head.
struct take_space { // views lie in shared memory, because rows of V in flight need the registers
    uint64_t *mass; // [take_all_memory], block b at place_of(b); IS_LONG: not used, sizes.mass stays in global memory
    size_view sizes;
    head_marks marks;
    take_all drawn;
    uint64_t uniform[TAKE_THREADS];                               // the head's first TAKE_THREADS uniform numbers
    uint64_t cum[TAKE_ENTRIES + 1];                               // size before each entry
    uint64_t scan[2][TAKE_WARPS];                                 // of the two turns
    __align__(16) int ints[TAKE_WARPS], n_listed[TAKE_WARPS];     // of the warps
    __align__(16) uint32_t octave[OCTAVE_PLACES][OCTAVE_COLUMNS]; // sums of block masses in units of 2^24; lanes share columns
    union {
        struct {
            int block[CANDIDATE_BLOCKS];           // ascending
            __align__(16) int n_found[TAKE_WARPS]; // candidates of each warp
            int heavy_count[2][TAKE_WARPS];        // heavy candidates of each warp, of the two turns
            uint64_t heavy_sum[2][TAKE_WARPS];
            struct {
                uint64_t row[TAKE_WARPS][WARP_CANDIDATES];    // row << 40 | size, ascending
                uint64_t before[TAKE_WARPS][WARP_CANDIDATES]; // size of all rows before this row
            } found;
            union {
                struct {
                    uint64_t light[CANDIDATES]; // size of the light rows before this row
                    uint64_t heavy[CANDIDATES]; // size of the heavy rows up to and including this row
                    int row[CANDIDATES];        // ascending
                } heavy;
                struct {                                             // of find_long
                    uint16_t block_of[TAKE_WARPS][CANDIDATE_BLOCKS]; // the listed blocks of each warp
                    int lowest[TAKE_WARPS];
                };
            };
        };
        known_lists lists;                            // of a head that does not search
        struct {                                      // of a head with marks
            uint16_t large[TAKE_WARPS][LARGE_BLOCKS]; // blocks that can have heavy rows
            uint32_t heavy[TAKE_ENTRIES + 1];         // number of heavy rows before each entry of `cum`
            int n_sizes, count[2][TAKE_WARPS];
            uint64_t sum[2][TAKE_WARPS];
        } marked;
    };
};

// ---- masses of blocks ----

// Consecutive blocks of a thread.
__host__ __device__ int blocks_each(int n_blocks) {
    return n_blocks <= 2 * TAKE_THREADS ? 2 : n_blocks <= 4 * TAKE_THREADS ? 4 : 16;
}

// The place of block b. Two extra places after every 16 put the masses of threads that have 16 blocks each into different
// banks.
__host__ __device__ int place_of(int b) {
    return b + b / 16 * 2;
}

// Bytes of take_space.mass for contexts of up to n_blocks blocks.
__host__ __device__ int take_all_memory(int n_blocks) {
    return IS_LONG ? 0 : ceil_div(place_of(n_blocks) + 2, 2) * 2 * (int)sizeof(uint64_t);
}

// The packed mass of block b.
__device__ uint64_t mass_of(const take_space *s, int b) {
    return IS_LONG ? __ldcg(s->sizes.mass + b) : s->mass[place_of(b)];
}

// Each of the TAKE_THREADS threads clears 16 bytes.
__device__ void clear_octaves(take_space *s, int thread) {
    ((uint4 *)s->octave)[thread] = make_uint4(0, 0, 0, 0);
}

// Prepares a head before its sizes are stored, with its first uniform numbers. n: rows. mass: [n_blocks], 16-byte aligned.
// memory: take_all_memory bytes. alpha: share of the uniform part, as in sl_masses_mix. Call __syncthreads between this and
// take_all_begin.
__device__ void take_all_prepare(take_space *s, void *memory, const uint64_t *mass, const bf16 *w, int stride, int n,
                                 double alpha, const head_marks &marks, const sl_rng_id &id, int thread) {
    if (thread == 0) {
        s->mass = (uint64_t *)memory;
        s->marks = marks;
        s->sizes = {
            .mass = mass, .w = w, .stride = stride, .n = n, .n_blocks = ceil_div(n, BLOCK), .share = alpha / (1 - alpha) / n};
    }
    clear_octaves(s, thread);
    s->uniform[thread] = sl_draw_random(&id, thread);
}

// Issues the loads of the block masses in whole lines. They bypass the L1 cache, because it can contain outdated lines.
// take_all_solve waits for them.
__device__ void take_all_begin(take_space *s, int thread) {
    if (IS_LONG) return;
    const uint64_t *mass = s->sizes.mass;
    uint32_t to = shared_address(s->mass);
    for (int b = 2 * thread; b < s->sizes.n_blocks; b += 2 * TAKE_THREADS)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + place_of(b) * 8), "l"(mass + b) : "memory");
}

// Inclusive scan of x over the threads. The function has only one barrier, so `turn` must alternate between 0 and 1 from call
// to call.
__device__ uint64_t scan_takers(take_space *s, int turn, int thread, uint64_t x) {
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
    return x;
}

// ---- sizes of rows ----

// An upper bound of the sizes in a block.
__device__ uint64_t largest_of(uint64_t packed, int top, uint64_t each) {
    return to_global(1u << 30, top - ref_of(packed)) + each;
}
__device__ uint64_t largest_of(const size_view &z, uint64_t packed) {
    return largest_of(packed, z.top, z.each);
}

// The sum of the uniform parts of block b's rows.
__device__ uint64_t each_of_block(uint64_t each, int b, int n) {
    return each > 0 ? each * (uint64_t)max(min(n - b * BLOCK, (int)BLOCK), 0) : 0;
}

// Size of a row. before: in-block mass before the row. mass: mass of the row. Sizes are differences of global masses, as on the
// CPU.
__device__ uint64_t size_between(const size_view &z, int shift, uint64_t before, uint64_t mass) {
    return to_global(before + mass, shift) - to_global(before, shift) + z.each;
}

// stored_piece loads the data of sizes 8 i .. 8 i + 7 of block b. sizes_of returns these sizes as bf16. packed: the block's
// mass.
__device__ uint4 stored_piece(const take_space *s, int b, int i) {
    return __ldcg((const uint4 *)(s->sizes.w + (size_t)b * s->sizes.stride) + i);
}
__device__ uint4 sizes_of(const uint4 &stored, uint64_t packed) {
    return stored;
}

__device__ uint64_t sum_lanes(uint64_t x) { // x < 2^52
    uint32_t low = __reduce_add_sync(~0u, (uint32_t)x & 0x3ffffff), high = __reduce_add_sync(~0u, (uint32_t)(x >> 26));
    return ((uint64_t)high << 26) + low;
}

// ---- bounds and blocks ----

// Bounds from block masses, in units of the largest size.
struct bounds {
    uint64_t least;     // kappa is at least this
    uint64_t each_most; // a row's uniform part is at most this
};

// A lower bound of kappa. Consider a block of mass M whose rows have sizes of at most U. By concavity, its expected count is at
// least that of M / U rows of size U: min(M / U, M / kappa). The function finds the largest kappa whose expected counts sum to
// S. Octave o holds blocks of U = 2^(38 - o). With a uniform part e: min(1, (z + e) / kappa) >= e / kappa + (1 - e / kappa)
// min(1, z / kappa). Masses were rounded down to units. This loses at most 1/32 of a mass, because a block with rows has a mass
// of at least 2^29, that is 32 units. find_blocks can count a block of another warp that is OCTAVE_PLACES octaves smaller as a
// large block. Then the bound is too high, and solve_found detects this.
__device__ bounds find_bounds(const take_space *s, int top, int S) {
    int lane = threadIdx.x % 32, n = s->sizes.n;
    const uint4 *own_octave = (const uint4 *)s->octave[(top - lane) & (OCTAVE_PLACES - 1)];
    uint4 x = own_octave[0], y = own_octave[1];
    uint32_t sum = (x.x + x.y) + (x.z + x.w) + ((y.x + y.y) + (y.z + y.w));
    float fall = __uint_as_float((uint32_t)(127 - lane) << 23), t = __uint_as_float((uint32_t)(127 + lane) << 23);
    float above = (float)sum / 64, below = above * fall; // t: 2^38 / kappa; above: sum of M / U of octaves up to `lane`
    float own = below;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        float a = __shfl_up_sync(~0u, above, step), b = __shfl_down_sync(~0u, below, step);
        if (lane >= step) above += a;
        if (lane + step < 32) below += b;
    }
    float share = (float)s->sizes.share, total = __shfl_sync(~0u, below, 0); // total: mass of all blocks, rounded down
    float uniform = fminf(share * total * 0.9999f * t, 1);
    float count = n * uniform + (1 - uniform) * (above + t * (below - own));
    bounds b = {0, share > 0 ? (uint64_t)(share * 0x1p38f * (1.04f * total + 0.001f)) + 1 : 0};
    uint32_t enough = __ballot_sync(~0u, count >= S);
    if (!enough) return b;
    int o = __ffs(enough) - 1;
    float count1 = __shfl_sync(~0u, count, o), count0 = __shfl_sync(~0u, count, max(o - 1, 0));
    float t1 = __shfl_sync(~0u, t, o),
          t0 = o ? t1 / 2 : 0; // the count is concave between t0 and t1, so the chord lies below it
    if (o == 0) count0 = 0;
    b.least = (uint64_t)__fdividef(0x1p38f * 0.999f, t0 + __fdividef(S - count0, count1 - count0) * (t1 - t0));
    return b;
}

// Size of all rows before block b. All blocks of the entry that lie before b are full.
__device__ uint64_t size_before(const take_space *s, int b) {
    const size_view &z = s->sizes;
    int entry = b >> z.shift, first = entry << z.shift;
    uint64_t sum = s->cum[entry] + z.each * (uint64_t)((b - first) * BLOCK);
    if constexpr (IS_LONG) {
        const head_view view = {.mass = z.mass, .n_blocks = b};
#pragma unroll 1
        for (int i = first; i < b; i += ENTRY_AHEAD) {
            uint64_t x[ENTRY_AHEAD];
            load_masses<ENTRY_AHEAD>(view, i, x);
#pragma unroll
            for (int j = 0; j < ENTRY_AHEAD; j++) sum += global_mass(x[j], z.top);
        }
    } else {
        for (int i = first; i < b; i++) sum += global_mass(mass_of(s, i), z.top);
    }
    return sum;
}

// Loads the thread's EACH blocks. Blocks past the last one are empty.
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

// ---- IS_LONG: a warp has consecutive blocks and reads them in whole cache lines, two blocks a lane ----

// The smallest shift with which TAKE_ENTRIES entries of 2^shift blocks cover all blocks.
__device__ int entry_shift(int n_blocks) {
    int shift = 0;
    while ((int)TAKE_ENTRIES << shift < n_blocks) shift++;
    return shift;
}

// The blocks of a warp: [first, end). A warp has whole loads, so its blocks begin with an entry.
struct block_range {
    int first, end;
};

__device__ int blocks_of_warp(int n_blocks) {
    return ceil_div(n_blocks, TAKE_WARPS * LOAD_BLOCKS) * LOAD_BLOCKS;
}

__device__ block_range range_of_warp(int n_blocks, int thread) {
    int each = blocks_of_warp(n_blocks), first = thread / 32 * each;
    return {first, min(first + each, n_blocks)};
}

// Calls visit(b, left, x, y) for the loads of the warp in order. All lanes call it together. A lane has the masses x and y of
// blocks b and b + 1. left: blocks of the warp from b on. Blocks after the warp's last one are empty. visit has no branch
// around it, so the calls for AHEAD loads overlap.
template <int AHEAD, typename Visit>
__device__ void each_load(const uint64_t *mass, int n_blocks, int thread, const Visit &visit) {
    block_range own = range_of_warp(n_blocks, thread);
    const head_view view = {.mass = mass, .n_blocks = own.end};
#pragma unroll 1
    for (int b = own.first + thread % 32 * 2; b - thread % 32 * 2 < own.end; b += AHEAD * LOAD_BLOCKS) {
        uint64_t x[AHEAD][2];
#pragma unroll
        for (int j = 0; j < AHEAD; j++) load_masses<2>(view, b + j * LOAD_BLOCKS, x[j]);
#pragma unroll
        for (int j = 0; j < AHEAD; j++) visit(b + j * LOAD_BLOCKS, own.end - b - j * LOAD_BLOCKS, x[j][0], x[j][1]);
    }
}

// The largest reference of the warp's blocks.
__device__ int largest_of_warp(const uint64_t *mass, int n_blocks, int thread) {
    int top = REF_EMPTY;
    each_load<8>(mass, n_blocks, thread, [&](int, int, uint64_t x, uint64_t y) { top = max(top, max(ref_of(x), ref_of(y))); });
    return __reduce_max_sync(~0u, top);
}

// Stores to s->cum the mass before each entry of the warp, counted from the warp's first block. Returns the mass of the warp's
// blocks. Calls visit for each load.
template <typename Visit> __device__ uint64_t sum_entries(take_space *s, int shift, int top, int thread, const Visit &visit) {
    int in_entry = (1 << shift) - 1;
    uint64_t running = 0;
    each_load<8>(s->sizes.mass, s->sizes.n_blocks, thread, [&](int b, int left, uint64_t x, uint64_t y) {
        uint64_t own = global_mass(x, top), both = own + global_mass(y, top), up_to = sl_scan_lanes(both, thread % 32);
        uint64_t before = running + up_to - both;
        if (left > 0 && (b & in_entry) == 0) s->cum[b >> shift] = before;
        if (left > 1 && shift == 0) s->cum[b + 1] = before + own;
        running += __shfl_sync(~0u, up_to, 31);
        visit(b, left, x, y);
    });
    return running;
}

// Adds what comes before the warp's blocks, and the uniform parts, to s->cum. Entries past the last block become the total.
// Call __syncthreads before and after.
__device__ void finish_entries(take_space *s, int shift, uint64_t before, uint64_t each, uint64_t total, int thread) {
    block_range own = range_of_warp(s->sizes.n_blocks, thread);
    for (int e = (own.first >> shift) + thread % 32; e << shift < own.end; e += 32)
        s->cum[e] += before + each * (uint64_t)((e << shift) * BLOCK);
    for (int e = ceil_div(s->sizes.n_blocks, 1 << shift) + thread; e <= TAKE_ENTRIES; e += TAKE_THREADS) s->cum[e] = total;
}

// Where a lane's block b stands in a list of blocks in ascending order. The lanes of `first` list their block b, the lanes of
// `second` their block b + 1.
__device__ int place_of_lane(uint32_t first, uint32_t second, int lane) {
    uint32_t lower = (1u << lane) - 1;
    return __popc(first & lower) + __popc(second & lower);
}

// Returns the smallest reference r for which largest_of of a block with reference r is above `least`.
__device__ int reference_above(uint64_t least, int top, uint64_t each) {
    return least < each ? (int)REF_EMPTY : top - 38 + 64 - __clzll((long long)(least - each));
}

// find_blocks with any number of blocks. It reads all block masses twice: first for the largest reference and the octaves, then
// for the sums and the list. In the first pass, the largest reference that a lane has read so far decides which blocks are
// counted. If a counted block turns out to be OCTAVE_PLACES octaves below the largest one, the pass is repeated.
__device__ int find_long(take_space *s, int S, const int *other_top, uint64_t *least, int thread) {
    const uint64_t *mass = s->sizes.mass;
    int lane = thread % 32, warp = thread / 32, n_blocks = s->sizes.n_blocks, shift = entry_shift(n_blocks);
    int top = REF_EMPTY, n_own = 0, n_listed = 0, n_before = 0;
    uint64_t before = 0, total = 0;
    for (;;) {
        int lowest = SL_REF_INVALID;   // reference of a counted block
        auto count = [&](uint64_t x) { // adds 0 for a block far below the largest one
            int ref = ref_of(x);
            uint32_t units = top - ref < OCTAVES ? (uint32_t)((x & MASS_MASK) >> 24) : 0;
            if (units) lowest = min(lowest, ref);
            atomicAdd(&s->octave[ref & (OCTAVE_PLACES - 1)][lane % OCTAVE_COLUMNS], units);
        };
        each_load<8>(mass, n_blocks, thread, [&](int, int, uint64_t x, uint64_t y) {
            top = max(top, max(ref_of(x), ref_of(y)));
            count(x), count(y);
        });
        top = __reduce_max_sync(~0u, top), lowest = __reduce_min_sync(~0u, lowest);
        if (lane == 0) s->ints[warp] = top, s->lowest[warp] = lowest;
        __syncthreads();
        for (int i = 0; i < TAKE_WARPS; i++) top = max(top, s->ints[i]), lowest = min(lowest, s->lowest[i]);
        if (other_top && *other_top > top && *other_top - top <= 8) top = *other_top;
        if (top - lowest < OCTAVE_PLACES) break;
        __syncthreads();
        clear_octaves(s, thread);
        __syncthreads();
    }
    bounds bound = find_bounds(s, top, S);
    int least_ref = reference_above(bound.least, top, bound.each_most);
    uint64_t own = sum_entries(s, shift, top, thread, [&](int b, int left, uint64_t x, uint64_t y) {
        bool lists_x = left > 0 && ref_of(x) >= least_ref, lists_y = left > 1 && ref_of(y) >= least_ref;
        uint32_t first = __ballot_sync(~0u, lists_x), second = __ballot_sync(~0u, lists_y);
        int at = n_own + place_of_lane(first, second, lane);
        if (lists_x && at < CANDIDATE_BLOCKS) s->block_of[warp][at] = (uint16_t)b;
        at += lists_x;
        if (lists_y && at < CANDIDATE_BLOCKS) s->block_of[warp][at] = (uint16_t)(b + 1);
        n_own += __popc(first) + __popc(second);
    });
    if (lane == 0) s->scan[0][warp] = own, s->n_listed[warp] = n_own;
    __syncthreads();
    for (int i = 0; i < TAKE_WARPS; i++) {
        if (i == warp) before = total, n_before = n_listed;
        total += s->scan[0][i], n_listed += s->n_listed[i];
    }
    uint64_t each = (uint64_t)(s->sizes.share * (double)total);
    total += each * (uint64_t)s->sizes.n;
    finish_entries(s, shift, before, each, total, thread);
    bool fits = n_listed <= CANDIDATE_BLOCKS;
    for (int i = lane; fits && i < n_own; i += 32) s->block[n_before + i] = s->block_of[warp][i];
    if (thread == 0) s->sizes.shift = shift, s->sizes.top = top, s->sizes.each = each, s->sizes.total = total;
    clear_octaves(s, thread);
    __syncthreads();
    *least = bound.least;
    return fits ? n_listed : -1;
}

// Finds the unit (top), the total, the sizes before each entry (s->cum), a lower bound of kappa (*least), and the blocks that
// can contain rows above this bound (s->block). Returns the number of these blocks, or -1 if they are too many. Precondition:
// s->octave is 0. It is 0 again at the end.
template <int EACH> __device__ int find_blocks(take_space *s, int S, const int *other_top, uint64_t *least, int thread) {
    enum { SHIFT = EACH > 4 ? 2 : 0, N = 1 << SHIFT };
    int lane = thread % 32, warp = thread / 32, first = thread * EACH, top = REF_EMPTY;
    uint64_t x[EACH], own = 0, before = 0, total = 0;
    own_masses<EACH>(s, thread, x);
#pragma unroll
    for (int j = 0; j < EACH; j++) top = max(top, ref_of(x[j]));
    top = __reduce_max_sync(~0u, top);
#pragma unroll
    for (int j = 0; j < EACH; j++) { // blocks far below the warp's largest block are not counted
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
    for (int j = 0; j < EACH; j++) { // entries past the last block are equal to the total
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

} // namespace

#endif
