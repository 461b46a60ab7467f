// attention/cuda/take_all.cuh - take-all + PPS draws from one head's stored sizes, by one thread block on CUDA. It draws the
// rows and the 1 / pi_j of sl_draw_take_all (draw_take_all.c).
// The naive version is in tests/cuda/naive.h: naive_take_all.
//
// A row is heavy if its size exceeds kappa = light / (S - heavy). kappa only falls while rows become heavy. So the sets {size >
// kappa}, computed repeatedly, grow to the set that the CPU finds in order of size. Equal sizes are all heavy or all light.
// Nothing is sorted. Steps:
//
// | step         | does                                                                                               |
// |--------------|----------------------------------------------------------------------------------------------------|
// | find_blocks  | block masses give the total, running sums (cum), and a lower bound of kappa (find_bounds)          |
// | collect_rows | rows above the bound, the candidates, with their exact sizes, from few blocks                      |
// | solve_found  | repeats the split into heavy and light over the candidates, in registers                           |
// | solve_blocks | the same from all blocks, where the candidates are too many: equal result, more time               |
// | row_of_turn  | heavy rows, then light draws: a threshold on light sizes, moved by the heavy rows before it to all sizes |
//
// Worked head: n_kv 32768, S = 128, 256 threads. Each thread has 4 of 1024 blocks. The block masses lie in shared memory.
// Suppose that 32 blocks can contain heavy rows. Then each warp reads 4 blocks. Four lanes read a block, and a lane reads 8
// rows (16 bytes). The warp lists its candidates in found.row[warp]. Suppose that solve_found ends with n_heavy = 40 and k =
// 88. Then each of the 8 warps takes 16 of the 128 rows.
//
// All TAKE_THREADS threads of a thread block call these functions together. The time from the last score to the first row of V
// adds to the time of a step. It is a chain of about twenty short steps. So loads are issued together, barriers are few, and
// divisions run while loads are in flight. The first head's instructions are read from memory, 8 in each cache line. So code
// that runs once should be short rather than unrolled. Variants that are slower (`bench attn` at 1 x 32k): 512 threads (3 us
// more); each warp tests all candidates instead of one barrier per turn (3 us more, because the code is longer); a dummy head
// that loads the instructions ahead (6 us more).
//
// Owns: the choice of rows and their expected counts. The callers own the masses of rows and their addresses.
//
// The file has more than 800 lines, because the steps for long contexts (long_context.cuh) stand next to those that they
// replace.
#ifndef SLEIGH_TAKE_ALL_CUH
#define SLEIGH_TAKE_ALL_CUH

#include "attention/cuda/draw_rows.cuh"

namespace {

enum {
    TAKE_THREADS = 256,
    TAKE_WARPS = TAKE_THREADS / 32,
    OWN_ENTRIES = IS_LONG ? 16 : 4,            // of a thread
    TAKE_ENTRIES = OWN_ENTRIES * TAKE_THREADS, // entries of `cum`, the running sums of sizes
    WARP_CANDIDATES = 64,                      // candidates that one warp can hold
    CANDIDATES = TAKE_WARPS * WARP_CANDIDATES, // rows that can be heavy
    CANDIDATE_BLOCKS = 512,                    // blocks that can hold candidates
    KNOWN_LISTED = 128,                        // heavy rows that a warp lists at a known threshold
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
// derived space (pps.cu) defines stored_piece, sizes_of and size_of_row, which compute sizes from masses and norms.
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
    uint64_t cut;   // not listed: a row is heavy if its size exceeds `cut`
    bool listed;    // take_space.heavy lists the heavy rows
};

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
                uint64_t heavy_of[TAKE_ENTRIES]; // heavy rows not listed: size of the heavy rows of each entry
                struct {                         // of find_long
                    uint16_t block_of[TAKE_WARPS][CANDIDATE_BLOCKS]; // the listed blocks of each warp
                    int lowest[TAKE_WARPS];
                };
            };
        };
        known_lists lists; // of a head that does not search
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
                                 double alpha, const sl_rng_id &id, int thread) {
    if (thread == 0) {
        s->mass = (uint64_t *)memory;
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

// Inclusive scan of x over the threads, and the sum of all. The function has only one barrier, so `turn` must alternate between
// 0 and 1 from call to call.
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

// Size of the lane's row of block b. before: in-block mass before the row. mass: mass of the row. Sizes are differences of
// global masses, as on the CPU.
__device__ uint64_t size_between(const size_view &z, int shift, uint64_t before, uint64_t mass, bool there) {
    return to_global(before + mass, shift) - to_global(before, shift) + (there ? z.each : 0);
}

// stored_piece loads the data of sizes 8 i .. 8 i + 7 of block b. sizes_of returns these sizes as bf16. packed: the block's
// mass.
__device__ uint4 stored_piece(const take_space *s, int b, int i) {
    return __ldcg((const uint4 *)(s->sizes.w + (size_t)b * s->sizes.stride) + i);
}
__device__ uint4 sizes_of(const uint4 &stored, uint64_t packed) {
    return stored;
}

// The size of row `row` of block b, as bf16.
__device__ uint32_t size_of_row(const take_space *s, int b, int row) {
    return __ldcg((const unsigned short *)s->sizes.w + (size_t)b * s->sizes.stride + row);
}

// Size of row `lane` of block b; 0 after the last row. b is the same for all lanes of the warp.
template <typename Space> __device__ uint64_t size_of_lane(const Space *s, int b) {
    const size_view &z = s->sizes;
    int lane = threadIdx.x % 32;
    uint32_t mass = unit_mass(size_of_row(s, b, lane));
    uint64_t running = sl_scan_lanes((uint64_t)mass, lane);
    return size_between(z, z.top - ref_of(mass_of(s, b)), running - mass, mass, b * BLOCK + lane < z.n);
}

__device__ uint64_t sum_lanes(uint64_t x) { // x < 2^52
    uint32_t low = __reduce_add_sync(~0u, (uint32_t)x & 0x3ffffff), high = __reduce_add_sync(~0u, (uint32_t)(x >> 26));
    return ((uint64_t)high << 26) + low;
}

// ---- candidates ----

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

// The smallest reference of a block with largest_of(block) > least.
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

// Collects the rows of the listed blocks that are larger than `least` to s->found, and the number of rows of each warp to
// s->n_found. A few of the collected rows can be smaller. A warp takes eight blocks at a time. Four lanes take a block.
template <typename Space> __device__ void collect_rows(Space *s, int n_blocks, uint64_t least, int thread) {
    enum { AHEAD = 4 }; // pieces per lane that are loaded together
    const size_view &z = s->sizes;
    int lane = thread % 32, warp = thread / 32, quarter = lane % 4, n = 0;
    int from = n_blocks * warp / TAKE_WARPS, end = n_blocks * (warp + 1) / TAKE_WARPS;
    float limit = least > z.each + 2 ? (float)(least - z.each - 2) * 0.99999f : z.each ? -1 : 0; // a limit for stored sizes
    decltype(stored_piece(s, 0, 0)) ahead[AHEAD];
    uint64_t masses_ahead[AHEAD]; // IS_LONG, where they are not in shared memory
#pragma unroll 1
    for (int first = from; first < end; first += 8) {
        if ((first - from) % (8 * AHEAD) == 0) {
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                int b = s->block[min(first + 8 * k + lane / 4, end - 1)];
                if (first + 8 * k >= end) continue;
                ahead[k] = stored_piece(s, b, quarter);
                if (IS_LONG) masses_ahead[k] = mass_of(s, b);
            }
        }
        int b = s->block[min(first + lane / 4, end - 1)], row = b * BLOCK + 8 * quarter;
        uint64_t packed = IS_LONG ? masses_ahead[0] : mass_of(s, b);
        int shift = z.top - ref_of(packed);
        uint4 w = sizes_of(ahead[0], packed);
        const uint32_t pairs[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int k = 1; k < AHEAD; k++) ahead[k - 1] = ahead[k], masses_ahead[k - 1] = masses_ahead[k];
        float in_block =
            limit * __uint_as_float((uint32_t)(127 - 38 + min(shift, 128)) << 23); // the limit as a stored size of this block
        uint32_t mask = 0, mass[8];
        uint64_t running = 0; // first: in-block mass up to the lane's last row; later: before the lane's first row
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

// Finds the heavy rows among the collected ones. Returns false if these are too many, or if kappa lies below `least`. The
// candidates of a warp are in its registers.
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
    // Expected counts are concave in 1 / kappa, so kappa falls monotonically from the state where all candidates are heavy.
    uint64_t light = n < S ? 0 : total, before; // 0 at first: all candidates are heavy
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

// Calls visit(block) for the blocks of the warp that can have rows larger than cut, in any order. All lanes get the same block.
template <typename Space, typename Visit>
__device__ void each_large(const Space *s, uint64_t cut, int warp, const Visit &visit) {
    const size_view &z = s->sizes;
    if constexpr (IS_LONG) {
        int lane = threadIdx.x % 32;
        each_load<4>(z.mass, z.n_blocks, 32 * warp + lane, [&](int b, int left, uint64_t x, uint64_t y) {
            uint32_t first = __ballot_sync(~0u, left > 0 && largest_of(z, x) > cut);
            uint32_t second = __ballot_sync(~0u, left > 1 && largest_of(z, y) > cut);
            for (uint64_t large = (uint64_t)second << 32 | first; large; large &= large - 1) {
                int place = __ffsll((long long)large) - 1;
                visit(b + 2 * (place % 32 - lane) + place / 32);
            }
        });
    } else {
        for (int b = warp; b < z.n_blocks; b += TAKE_WARPS)
            if (largest_of(z, mass_of(s, b)) > cut) visit(b);
    }
}

// Number and total size of the rows larger than cut.
template <typename Space> __device__ void split(Space *s, uint64_t cut, int *n_heavy, uint64_t *heavy, int thread) {
    uint64_t sum = 0, all;
    int count = 0;
    each_large(s, cut, thread / 32, [&](int b) {
        uint64_t size = size_of_lane(s, b);
        if (size > cut) sum += size, count++;
    });
    scan_takers(s, 0, thread, count, &all);
    *n_heavy = (int)all;
    scan_takers(s, 1, thread, sum, heavy);
}

// Finds the heavy rows like solve_found, but reads the sizes of all blocks again in each round. After it, s->cum contains the
// light size before each entry. The function is not inlined, because its instructions would lie between those that run for
// every head.
template <typename Space> __device__ __noinline__ void solve_blocks(Space *s, int S, int thread) {
    enum { EACH = OWN_ENTRIES };
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
    each_large(s, r.cut, thread / 32, [&](int b) {
        uint64_t size = size_of_lane(s, b);
        if (size > r.cut) atomicAdd((unsigned long long *)&s->heavy_of[b >> z.shift], (unsigned long long)size);
    });
    __syncthreads();
    int n_entries = ceil_div(z.n_blocks, 1 << z.shift);
    uint64_t entry[EACH], own = 0, all;
    for (int i = 0; i < EACH; i++) {
        int e = thread * EACH + i;
        own += entry[i] = e < n_entries ? s->cum[e + 1] - s->cum[e] - s->heavy_of[e] : 0;
    }
    uint64_t running = scan_takers(s, 0, thread, own, &all) - own; // after the scan's barrier all threads have read s->cum
    for (int i = 0; i < EACH; i++) {
        s->cum[thread * EACH + i] = running;
        running += entry[i];
    }
    if (thread == 0) s->cum[TAKE_ENTRIES] = all;
    __syncthreads();
}

// Ends a head that draws nothing.
__device__ void take_all_nothing(take_space *s, int thread) {
    asm volatile("cp.async.wait_all;" ::: "memory");
    if (thread == 0) s->drawn = {.n_heavy = 0, .k = 0, .light = 0, .cut = 0, .listed = true};
    __syncthreads();
}

// Finds which rows of s->sizes are heavy with S draws, and stores the result to s->drawn. After it, s->cum contains the size
// before each entry, or the light size if heavy rows are not listed. other_top: in shared memory, the largest reference of rows
// that are not in these sizes. It becomes the unit if it is above the largest reference of the sizes by at most 8
// (sl_masses_truncate). NULL: there are no such rows.
template <typename Space> __device__ void take_all_solve(Space *s, int S, const int *other_top, int thread) {
    uint64_t least;
    int n;
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    int n_each = IS_LONG ? 0 : blocks_each(s->sizes.n_blocks);
    if (IS_LONG)
        n = find_long(s, S, other_top, &least, thread);
    else if (n_each == 2)
        n = find_blocks<2>(s, S, other_top, &least, thread);
    else if (n_each == 4)
        n = find_blocks<4>(s, S, other_top, &least, thread);
    else
        n = find_blocks<16>(s, S, other_top, &least, thread);
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
    int row;       // -1: the thread has no row
    uint64_t size; // size of a light row; 0: a heavy row
};

__device__ uint64_t add_mass(uint64_t sum, uint32_t w) { // w: bf16 in the low half. The sums are in-block masses times 2^8
    return sum + (uint64_t)unit_mass(w) * 256;
}

// The row of block b at which the running size exceeds t.
template <typename Space> __device__ drawn_row find_in_block(const Space *s, int b, uint64_t packed, uint64_t t) {
    const size_view &z = s->sizes;
    decltype(stored_piece(s, 0, 0)) stored[4];
    uint4 x[4];
#pragma unroll
    for (int i = 0; i < 4; i++) stored[i] = stored_piece(s, b, i);
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = sizes_of(stored[i], packed);
    uint4 own = x[0];
    uint64_t sum = 0, each = z.each, uniform = 0;         // uniform: sum of the uniform parts before the row
    int shift = min(z.top - ref_of(packed), 63), row = 0; // the search takes steps of eight rows, then of one row
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

// The first row whose running size exceeds t, in entries low .. high.
template <typename Space> __device__ drawn_row find_size(const Space *s, uint64_t t, int low, int high) {
    const size_view &z = s->sizes;
    int entry = low + count_upto(s->cum + low + 1, high - low, t), b = entry << z.shift;
    uint64_t packed = mass_of(s, b);
    t -= s->cum[entry];
    if (IS_LONG && z.shift > 0) {
        const head_view view = {.mass = z.mass, .n_blocks = z.n_blocks};
        uint64_t full = z.each * BLOCK; // uniform parts of a block; the last block is not passed
#pragma unroll 1
        for (int first = b, end = b; end == b; first += ENTRY_AHEAD) {
            uint64_t x[ENTRY_AHEAD];
            load_masses<ENTRY_AHEAD>(view, first, x);
            end = first + ENTRY_AHEAD;
#pragma unroll
            for (int j = 0; j < ENTRY_AHEAD; j++) {
                uint64_t size = global_mass(x[j], z.top) + full;
                if (b == first + j) {
                    packed = x[j];
                    if (size <= t && b + 1 < z.n_blocks) t -= size, b++;
                }
            }
        }
        return find_in_block(s, b, packed, t);
    }
    while (z.shift > 0) {
        uint64_t size = global_mass(packed, z.top) + each_of_block(z.each, b, z.n);
        if (size > t || b + 1 == z.n_blocks) break;
        t -= size;
        packed = mass_of(s, ++b);
    }
    return find_in_block(s, b, packed, t);
}

// The entry of `cum` that contains a row.
__device__ int entry_of_row(const size_view &z, int row) {
    return row / BLOCK >> z.shift;
}

// The first light row whose running light size exceeds t < light.
template <typename Space> __device__ drawn_row find_listed(const Space *s, uint64_t t) {
    const size_view &z = s->sizes;
    int n_heavy = s->drawn.n_heavy;
    int n = count_upto(s->heavy.light, n_heavy,
                       t); // number of heavy rows before the light row: the light size before each of them is at most t
    int low = n > 0 ? entry_of_row(z, s->heavy.row[n - 1]) : 0;
    int high = entry_of_row(z, n < n_heavy ? s->heavy.row[n] : z.n - 1);
    return find_size(s, n > 0 ? t + s->heavy.heavy[n - 1] : t, low, high);
}

// The same result if heavy rows are not listed: s->cum contains only light sizes.
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

// Heavy row number `lane` of block b, in ascending order. -1: the block has no such row. b is the same for all lanes of the
// warp.
template <typename Space> __device__ __noinline__ int heavy_row(const Space *s, int b) {
    if (b >= s->sizes.n_blocks || largest_of(s->sizes, mass_of(s, b)) <= s->drawn.cut) return -1;
    int lane = threadIdx.x % 32;
    uint32_t heavy = __ballot_sync(~0u, size_of_lane(s, b) > s->drawn.cut);
    return lane < __popc(heavy) ? b * BLOCK + (int)__fns(heavy, 0, lane + 1) : -1;
}

// ---- turns of TAKE_THREADS rows: unlisted heavy rows (a block for each warp), then listed heavy rows and light draws ----

// Number of turns for heavy rows that are not listed.
__device__ int heavy_turns(const take_space *s) {
    return s->drawn.listed ? 0 : ceil_div(s->sizes.n_blocks, TAKE_WARPS);
}

// Number of turns for all drawn rows.
__device__ int turns_of(const take_space *s) {
    return heavy_turns(s) + ceil_div((s->drawn.listed ? s->drawn.n_heavy : 0) + s->drawn.k, TAKE_THREADS);
}

// Light draw number `number` of those that s->drawn describes, with the uniform numbers of a try (sl_try_index).
template <typename Space>
__device__ drawn_row light_row(const Space *s, bool shared, const sl_rng_id &id, int in_try, uint32_t number) {
    const take_all &r = s->drawn;
    uint32_t i = sl_try_index(in_try, shared ? 0 : number);
    uint64_t u = i < TAKE_THREADS ? s->uniform[i] : sl_draw_random(&id, i);
    uint64_t t = threshold(r.light, r.k, inverse_of(r.k), number, u);
    return r.listed ? find_listed(s, t) : find_unlisted(s, t);
}

// The thread's row in a turn of the rows that s->drawn describes. In a warp, lanes with rows come first, heavy rows come before
// light ones, and rows ascend. Equal neighbours are a light row that was drawn twice. If there are few rows, each warp gets 16
// of them, so that all warps load together. Draw m of the light rows uses number m of the try. With `shared`, all draws use
// number 0.
template <typename Space>
__device__ drawn_row row_of_turn(const Space *s, bool shared, const sl_rng_id &id, int in_try, int turn, int thread) {
    const take_all &r = s->drawn;
    int n_listed = r.listed ? r.n_heavy : 0, n_heavy = heavy_turns(s), m = (turn - n_heavy) * TAKE_THREADS + thread;
    if (turn < n_heavy) return {heavy_row(s, turn * TAKE_WARPS + thread / 32), 0};
    if (n_listed + r.k <= TAKE_THREADS / 2) m = thread % 32 < 16 ? thread / 32 * 16 + thread % 32 : (int)TAKE_THREADS;
    if (m < n_listed) return {s->heavy.row[m], 0};
    if (m >= n_listed + r.k) return {-1, 0};
    return light_row(s, shared, id, in_try, m - n_listed);
}

// 1 / pi of a row. It needs two divisions, so call it while loads are in flight.
__device__ float inverse_pi(const take_space *s, const drawn_row &x) {
    return x.size ? (float)((double)s->drawn.light / s->drawn.k / (double)x.size) : 1;
}

// ---- order of the two kernels ----

// A thread block draws a query head as soon as the previous kernel has stored all masses of the seq_head. So the draws of the
// first sequences of a batch overlap the scores of the last sequences. Thread blocks start in order. The previous kernel calls
// sl_start_next when all its thread blocks are resident and the kernel before it has ended. So no thread block waits for a
// thread block that is not resident, and the counter that it reads belongs to this launch.

// Copies the sequence's page table to shared memory. take_all_solve waits for it. IS_LONG: the table stays in global memory,
// and thread 0 sets the pointer `to`.
template <typename Pages> __device__ __forceinline__ void copy_pages(Pages &to, const sl_row &row, int thread) {
    if constexpr (IS_LONG) {
        if (thread == 0) to = (int32_t *)row.pages;
    } else {
        for (int i = thread; i <= row.position / SL_PAGE; i += TAKE_THREADS)
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to + i)), "l"(row.pages + i)
                         : "memory");
    }
}

// Waits until the counter is `wanted`.
__device__ void wait_done(const int *done, int wanted, int thread) {
    if (thread == 0)
        while (load_acquired(done) != wanted) __nanosleep(20);
    __syncthreads();
}

// Counts that this thread block no longer reads the seq_head's counters and masses. Returns to thread 0 how many thread blocks
// called it before. The last one may set the counters to 0. The kernel must not end before the previous kernel, so thread
// blocks of the last seq_head wait for the end of that kernel.
__device__ int release_seq_head(int *drawn, bool is_last_seq_head, int thread) {
    if (is_last_seq_head) sl_wait_previous();
    return thread == 0 ? sl_take_number(drawn) : 0;
}

// ---- sums over the warps of a block ----

// Adds the row_sums of all lanes, over the warps in order. Returns column `thread`. columns: [TAKE_WARPS][DIM_MAX].
template <int DIM> __device__ float join_columns(float (*columns)[DIM_MAX], const row_sum &sum, int thread) {
    put_columns<DIM>(columns[thread / 32], sum, thread % 32);
    __syncthreads();
    float x = 0;
    for (int i = 0; thread < DIM && i < TAKE_WARPS; i++) x += columns[i][thread];
    return x;
}

} // namespace

#endif
