// attention/cuda/santa/take_all.cuh - take-all + PPS draws from one head's stored sizes, by one thread block on CUDA. It draws
// the rows and the 1 / pi_j of sl_draw_take_all (draw_take_all.c). The naive version is in tests/cuda/naive.h: naive_take_all.
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
// | solve_marked | where the candidates are too many: makes the same split, and marks the heavy rows (take_marked.cuh) |
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
#ifndef SLEIGH_TAKE_ALL_CUH
#define SLEIGH_TAKE_ALL_CUH

#include "attention/cuda/santa/take_marked.cuh"

namespace {

// ---- candidates ----

// Collects the rows of the listed blocks that are larger than `least` to s->found, and the number of rows of each warp to
// s->n_found. A few of the collected rows can be smaller. A warp takes eight blocks at a time. Four lanes take a block.
template <typename Space> __device__ void collect_rows(Space *s, int n_blocks, uint64_t least, int thread) {
    enum { AHEAD = 4 }; // pieces per lane that are loaded together
    const size_view &z = s->sizes;
    int lane = thread % 32, warp = thread / 32, quarter = lane % 4, n = 0;
    int from = n_blocks * warp / TAKE_WARPS, end = n_blocks * (warp + 1) / TAKE_WARPS;
    float limit = stored_limit(z, least);
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
        lane_rows x = rows_of_lane(z, sizes_of(ahead[0], packed), packed, limit, first + lane / 4 < end ? z.n - row : 0);
#pragma unroll
        for (int k = 1; k < AHEAD; k++) ahead[k - 1] = ahead[k], masses_ahead[k - 1] = masses_ahead[k];
        uint32_t mask = x.mask;
        int at = sl_scan_lanes(__popc(mask), lane), n_all = __shfl_sync(~0u, at, 31);
        for (at += n - __popc(mask); mask && at < WARP_CANDIDATES; mask &= mask - 1, at++) {
            int place = __ffs(mask) - 1;
            lane_row y = row_of_lane(z, x, place);
            s->found.row[warp][at] = (uint64_t)(row + place) << SIZE_BITS | y.size;
            s->found.before[warp][at] = size_before(s, b) + y.before + z.each * (uint64_t)(row % BLOCK + place);
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
    if (thread == 0) s->drawn = {.n_heavy = n_heavy, .k = light ? k : 0, .light = light, .listed = true};
    __syncthreads();
    return true;
}

// Ends a head that draws nothing.
__device__ void take_all_nothing(take_space *s, int thread) {
    asm volatile("cp.async.wait_all;" ::: "memory");
    if (thread == 0) s->drawn = {.n_heavy = 0, .k = 0, .light = 0, .listed = true};
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
    if (s->marks.role == READY) {
        wait_marks(s, thread);
        return;
    }
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
    solve_marked(s, S, least, thread);
}

// ---- draws ----

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
        // The sum of the uniform parts of a full block. The search does not go past the last block.
        uint64_t full = z.each * BLOCK;
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

// ---- turns of TAKE_THREADS rows: heavy rows, then light draws ----

// Number of turns for all drawn rows.
__device__ int turns_of(const take_space *s) {
    return ceil_div(s->drawn.n_heavy + s->drawn.k, TAKE_THREADS);
}

// Light draw number `number` of those that s->drawn describes, with the uniform numbers of a try (sl_try_index).
template <typename Space>
__device__ drawn_row light_row(const Space *s, bool shared, const sl_rng_id &id, int in_try, uint32_t number) {
    const take_all &r = s->drawn;
    uint32_t i = sl_try_index(in_try, shared ? 0 : number);
    uint64_t u = i < TAKE_THREADS ? s->uniform[i] : sl_draw_random(&id, i);
    uint64_t t = threshold(r.light, r.k, inverse_of(r.k), number, u);
    return r.listed ? find_listed(s, t) : find_marked(s, t);
}

// The thread's row in a turn of the rows that s->drawn describes. In a warp, lanes with rows come first, heavy rows come before
// light ones, and rows ascend. Equal neighbours are a light row that was drawn twice. If there are few rows, each warp gets 16
// of them, so that all warps load together. Draw m of the light rows uses number m of the try. With `shared`, all draws use
// number 0.
template <typename Space>
__device__ drawn_row row_of_turn(const Space *s, bool shared, const sl_rng_id &id, int in_try, int turn, int thread) {
    const take_all &r = s->drawn;
    int m = turn * TAKE_THREADS + thread;
    if (r.n_heavy + r.k <= TAKE_THREADS / 2) m = thread % 32 < 16 ? thread / 32 * 16 + thread % 32 : (int)TAKE_THREADS;
    if (m < r.n_heavy) return {r.listed ? s->heavy.row[m] : marked_row(s, m), 0};
    if (m >= r.n_heavy + r.k) return {-1, 0};
    return light_row(s, shared, id, in_try, m - r.n_heavy);
}

// 1 / pi of a row. Call it while loads are in flight.
__device__ float inverse_pi(const take_space *s, const drawn_row &x) {
    return x.size ? (float)((double)s->drawn.light * inverse_of(s->drawn.k) * inverse_of((double)x.size)) : 1;
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
