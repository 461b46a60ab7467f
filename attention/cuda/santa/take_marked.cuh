// attention/cuda/santa/take_marked.cuh - heads with more heavy rows than the lists in shared memory hold, on CUDA. One bit for
// each row in global memory says whether the row is heavy. The time grows with the drawn rows and with the blocks that can
// have heavy rows.
//
// | step         | does                                                                                               |
// |--------------|----------------------------------------------------------------------------------------------------|
// | list_sizes   | sizes above a lower bound of kappa, in any order, to global memory                                 |
// | solve_marked | the heavy rows, in rounds over these sizes, or over all blocks if the sizes are too many           |
// | mark_rows    | for each block: its heavy rows, and their number and the light size before the block               |
// | marked_row   | heavy row number i                                                                                 |
// | find_marked  | the light row at a point of the light size                                                         |
//
// Sizes are integers, so their order does not change a sum.
//
// Worked head: n_kv 32768, S = 2048, scores with a deviation of 4. A warp has 128 of 1024 blocks. It lists those that can have
// heavy rows, and reads eight of them at a time: four lanes read a block, and a lane reads 8 rows. list_sizes finds 1437 sizes.
// A round over them takes one load of six sizes in each thread. The rounds end with 829 heavy rows and 1219 light draws. Then
// 2048 rows are eight turns of 256 rows. A thread finds its row by a search over 1024 running sums in shared memory and the
// mark of one block.
//
// Several thread blocks can draw rows of one head. One of them marks the rows, and the others wait for it (head_marks.role).
#ifndef SLEIGH_TAKE_MARKED_CUH
#define SLEIGH_TAKE_MARKED_CUH

#include "attention/cuda/santa/take_blocks.cuh"

namespace {

struct drawn_row {
    int row;       // -1: the thread has no row
    uint64_t size; // size of a light row; 0: a heavy row
};

// The entry of `cum` that contains a row.
__device__ int entry_of_row(const size_view &z, int row) {
    return row / BLOCK >> z.shift;
}

// ---- rows of a block ----

// Stored sizes above this times 2^shift can belong to a row of at least `least` in a block whose sizes are shifted by `shift`.
__device__ float stored_limit(const size_view &z, uint64_t least) {
    return least > z.each + 2 ? (float)(least - z.each - 2) * 0.99999f * 0x1p-38f : z.each ? -1 : 0;
}

// Eight rows of a block. Four lanes together have a block.
struct lane_rows {
    uint32_t mask;    // bit j: row j can have a size of at least `least`
    uint32_t mass[8]; // in-block masses
    uint64_t before;  // in-block mass before the first of the eight rows
    int shift;        // right shift from in-block masses to the units of the head
};

// w: the rows' stored sizes. packed: the block's mass. n: the first n of the eight rows count (0 or less: none).
__device__ lane_rows rows_of_lane(const size_view &z, const uint4 &w, uint64_t packed, float limit, int n) {
    const uint32_t pairs[4] = {w.x, w.y, w.z, w.w};
    int quarter = threadIdx.x % 4;
    lane_rows x = {.mask = 0, .mass = {}, .before = 0, .shift = z.top - ref_of(packed)};
    limit *= __uint_as_float((uint32_t)(127 + min(x.shift, 127)) << 23);
    uint64_t own = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        uint32_t stored = j % 2 ? pairs[j / 2] & 0xffff0000u : pairs[j / 2] << 16;
        x.mask |= (uint32_t)(__uint_as_float(stored) > limit) << j;
        own += x.mass[j] = unit_mass(stored >> 16);
    }
    x.mask &= n < 8 ? (1u << max(n, 0)) - 1 : 0xff;
    x.before = own;
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
        uint64_t before = __shfl_up_sync(~0u, x.before, step);
        if (quarter >= step) x.before += before;
    }
    x.before -= own;
    return x;
}

struct lane_row {
    uint64_t before, size; // size of the block's rows before the row, without uniform parts; its size
};

// Row i of the eight rows.
__device__ lane_row row_of_lane(const size_view &z, const lane_rows &x, int i) {
    uint64_t before = x.before, mass = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        if (j < i) before += x.mass[j];
        if (j == i) mass = x.mass[j];
    }
    return {to_global(before, x.shift), size_between(z, x.shift, before, mass)};
}

// ---- blocks that can have large rows ----

// Whether a row of a block can be larger than cut. A row can exceed largest_of by 1.
__device__ bool can_exceed(const size_view &z, uint64_t packed, uint64_t cut) {
    return largest_of(z, packed) >= cut && global_mass(packed, z.top) + z.each > cut;
}

// Calls visit(b, there, rows) for the blocks that can have rows larger than cut, in any order. A warp has eight blocks at a
// time, four lanes a block. there: the lane has a block; `rows` has its eight rows of this block, and rows.mask those that can
// be larger than cut. All lanes of a warp call visit together. Calls skip(b) for every other block. A warp first lists its
// blocks, and its lanes load the next blocks while they visit the last ones.
template <typename Space, typename Visit, typename Skip>
__device__ __forceinline__ void each_large(Space *s, uint64_t cut, int thread, const Visit &visit, const Skip &skip) {
    const size_view &z = s->sizes;
    int lane = thread % 32, quarter = lane % 4, n_blocks = z.n_blocks;
    uint16_t *large = s->marked.large[thread / 32];
    float limit = stored_limit(z, cut);
#pragma unroll 1
    for (int first = thread - lane; first < n_blocks;) {
        int n = 0;
#pragma unroll 1
        for (; first < n_blocks && n + 32 <= LARGE_BLOCKS; first += TAKE_THREADS) {
            int b = first + lane;
            bool is_large = b < n_blocks && can_exceed(z, mass_of(s, min(b, n_blocks - 1)), cut);
            uint32_t found = __ballot_sync(~0u, is_large);
            if (is_large) large[n + __popc(found & ((1u << lane) - 1))] = (uint16_t)b;
            if (!is_large && b < n_blocks) skip(b);
            n += __popc(found);
        }
        __syncwarp();
        int next = n > 0 ? large[min(lane / 4, n - 1)] : 0;
        uint64_t next_mass = mass_of(s, next);
        decltype(stored_piece(s, 0, 0)) next_piece = stored_piece(s, next, quarter);
#pragma unroll 1
        for (int i = 0; i < n; i += 8) {
            int b = next;
            bool there = i + lane / 4 < n;
            uint64_t packed = next_mass;
            decltype(next_piece) piece = next_piece;
            if (i + 8 < n) {
                next = large[min(i + 8 + lane / 4, n - 1)];
                next_mass = mass_of(s, next), next_piece = stored_piece(s, next, quarter);
            }
            lane_rows x = rows_of_lane(z, sizes_of(piece, packed), packed, limit, there ? z.n - b * BLOCK - 8 * quarter : 0);
            visit(b, there, x);
        }
        __syncwarp();
    }
}

// ---- which rows are heavy ----

struct heavy_sum {
    int n;         // heavy rows
    uint64_t size; // their size
};

// The sum of x over the threads. The function has only one barrier, so `turn` must alternate between 0 and 1 from call to call.
__device__ heavy_sum sum_takers(take_space *s, int turn, const heavy_sum &x, int thread) {
    heavy_sum all = {__reduce_add_sync(~0u, x.n), sum_lanes(x.size)};
    if (thread % 32 == 0) s->marked.count[turn][thread / 32] = all.n, s->marked.sum[turn][thread / 32] = all.size;
    __syncthreads();
    all = {0, 0};
#pragma unroll
    for (int i = 0; i < TAKE_WARPS; i++) all.n += s->marked.count[turn][i], all.size += s->marked.sum[turn][i];
    return all;
}

// The rows larger than cut. Reads the sizes of all blocks that can have such rows.
template <typename Space> __device__ __noinline__ heavy_sum split_blocks(Space *s, uint64_t cut, int turn, int thread) {
    heavy_sum own = {0, 0};
    each_large(
        s, cut, thread,
        [&](int, bool, const lane_rows &x) {
#pragma unroll 1
            for (uint32_t left = x.mask; left; left &= left - 1) {
                uint64_t size = row_of_lane(s->sizes, x, __ffs(left) - 1).size;
                if (size > cut) own.size += size, own.n++;
            }
            __syncwarp();
        },
        [](int) {});
    return sum_takers(s, turn, own, thread);
}

// The same from the n listed sizes.
__device__ heavy_sum split_listed(take_space *s, int n, uint64_t cut, int turn, int thread) {
    enum { AHEAD = 8 };
    heavy_sum own = {0, 0};
#pragma unroll 1
    for (int first = thread; first < n; first += AHEAD * TAKE_THREADS) {
        uint64_t x[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            x[j] = first + j * TAKE_THREADS < n ? __ldcg(s->marks.sizes + first + j * TAKE_THREADS) : 0;
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (x[j] > cut) own.size += x[j], own.n++;
    }
    return sum_takers(s, turn, own, thread);
}

// Lists the sizes above `least`, and a few smaller ones. Returns their number. Only the first marks.most of them are stored.
template <typename Space> __device__ int list_sizes(Space *s, uint64_t least, int thread) {
    int lane = thread % 32;
    if (thread == 0) s->marked.n_sizes = 0;
    __syncthreads();
    each_large(
        s, least, thread,
        [&](int, bool, const lane_rows &x) {
            uint32_t mask = x.mask;
            int at = sl_scan_lanes(__popc(mask), lane), n = __shfl_sync(~0u, at, 31), first = 0;
            if (lane == 0 && n > 0) first = atomicAdd(&s->marked.n_sizes, n);
            at += __shfl_sync(~0u, first, 0) - __popc(mask);
#pragma unroll 1
            for (; mask && at < s->marks.most; mask &= mask - 1, at++)
                __stcg(s->marks.sizes + at, row_of_lane(s->sizes, x, __ffs(mask) - 1).size);
            __syncwarp();
        },
        [](int) {});
    __syncthreads();
    return s->marked.n_sizes;
}

// ---- marks ----

__device__ block_mark load_mark(const take_space *s, int b) {
    uint4 x = __ldcg((const uint4 *)(s->marks.blocks + b));
    return {(uint64_t)x.y << 32 | x.x, x.z, x.w};
}

__device__ void store_mark(const take_space *s, int b, const block_mark &x) {
    __stcg((uint4 *)(s->marks.blocks + b), make_uint4((uint32_t)x.light, (uint32_t)(x.light >> 32), x.heavy, x.mask));
}

// Calls visit(b, mark, light size) for the thread's blocks in order. They are consecutive. The marks of blocks are those of
// mark_rows before it calls number_rows.
template <typename Visit> __device__ void each_mark(const take_space *s, int thread, const Visit &visit) {
    enum { AHEAD = 8 };
    const size_view &z = s->sizes;
    int each = ceil_div(z.n_blocks, (int)TAKE_THREADS), first = thread * each, end = min(first + each, z.n_blocks);
#pragma unroll 1
    for (int b = first; b < end; b += AHEAD) {
        block_mark x[AHEAD];
        uint64_t packed[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++) x[j] = load_mark(s, min(b + j, end - 1)), packed[j] = mass_of(s, min(b + j, end - 1));
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (b + j < end) visit(b + j, x[j], global_mass(packed[j], z.top) + each_of_block(z.each, b + j, z.n) - x[j].light);
    }
}

// Replaces the heavy size and the number of heavy rows of each block by the sums before the block. Also stores them for the
// entries of `cum`.
__device__ void number_rows(take_space *s, int thread) {
    int in_entry = (1 << s->sizes.shift) - 1;
    uint64_t light = 0, n = 0;
    each_mark(s, thread, [&](int, const block_mark &x, uint64_t own) { light += own, n += x.heavy; });
    light = scan_takers(s, 0, thread, light) - light;
    uint32_t before = (uint32_t)(scan_takers(s, 1, thread, n) - n);
    each_mark(s, thread, [&](int b, const block_mark &x, uint64_t own) {
        if ((b & in_entry) == 0) s->cum[b >> s->sizes.shift] = light, s->marked.heavy[b >> s->sizes.shift] = before;
        store_mark(s, b, {light, before, x.mask});
        light += own, before += x.heavy;
    });
    __syncthreads();
}

// Marks the rows larger than cut. After it, s->cum contains the light size before each entry. Call __syncthreads before.
template <typename Space> __device__ __noinline__ void mark_rows(Space *s, uint64_t cut, int thread) {
    each_large(
        s, cut, thread,
        [&](int b, bool there, const lane_rows &x) {
            uint32_t mask = x.mask;
            uint64_t heavy = 0;
#pragma unroll 1
            for (uint32_t left = mask; left; left &= left - 1) {
                uint64_t size = row_of_lane(s->sizes, x, __ffs(left) - 1).size;
                if (size > cut)
                    heavy += size;
                else
                    mask &= ~(left & -left);
            }
            __syncwarp();
            mask <<= 8 * (thread % 4);
#pragma unroll
            for (int step = 1; step < 4; step *= 2)
                mask |= __shfl_xor_sync(~0u, mask, step), heavy += __shfl_xor_sync(~0u, heavy, step);
            if (there && thread % 4 == 0) store_mark(s, b, {heavy, (uint32_t)__popc(mask), mask});
        },
        [&](int b) {
            store_mark(s, b, {0, 0, 0});
        });
    __syncthreads();
    number_rows(s, thread);
}

// Makes the marks known to the thread blocks that wait for them.
__device__ void publish_marks(take_space *s, int thread) {
    if (!s->marks.ready || thread > 0) return;
    const size_view &z = s->sizes;
    *s->marks.result = {s->drawn, z.shift, z.top, z.each, z.total};
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(s->marks.ready), "r"(1) : "memory");
}

// Waits for the marks of another thread block, and reads them.
__device__ __noinline__ void wait_marks(take_space *s, int thread) {
    if (thread == 0) {
        while (!load_acquired(s->marks.ready)) __nanosleep(20);
        const mark_result *from = s->marks.result;
        s->drawn = {.n_heavy = __ldcg(&from->drawn.n_heavy),
                    .k = __ldcg(&from->drawn.k),
                    .light = __ldcg((const unsigned long long *)&from->drawn.light),
                    .listed = false};
        s->sizes.shift = __ldcg(&from->shift), s->sizes.top = __ldcg(&from->top);
        s->sizes.each = __ldcg((const unsigned long long *)&from->each);
        s->sizes.total = __ldcg((const unsigned long long *)&from->total);
    }
    __syncthreads();
    for (int e = thread; e << s->sizes.shift < s->sizes.n_blocks; e += TAKE_THREADS) {
        block_mark x = load_mark(s, e << s->sizes.shift);
        s->cum[e] = x.light, s->marked.heavy[e] = x.heavy;
    }
    __syncthreads();
}

// Finds the heavy rows with S draws like solve_found, but for any number of heavy rows, and marks them. least: a lower bound of
// kappa. If kappa turns out to be below it, or the listed sizes are too many, every round reads all blocks. The function is not
// inlined, because its instructions would lie between those that run for every head.
template <typename Space> __device__ __noinline__ void solve_marked(Space *s, int S, uint64_t least, int thread) {
    __syncthreads(); // all threads have read what lies below `marked`
    if (s->marks.role != MARKS) {
        wait_marks(s, thread);
        return;
    }
    uint64_t total = s->sizes.total, cut;
    int n = list_sizes(s, least, thread), turn = 0;
    take_all r;
    for (bool listed = n <= s->marks.most;; listed = false) {
        cut = listed && n < S ? 0 : total / S; // 0: all listed rows are heavy at first (solve_found)
        for (r = {.n_heavy = -1, .k = S, .light = total, .listed = false};; turn ^= 1) {
            heavy_sum x = listed ? split_listed(s, n, cut, turn, thread) : split_blocks(s, cut, turn, thread);
            if (x.n == r.n_heavy) break;
            r.n_heavy = x.n, r.k = S - x.n, r.light = total - x.size, cut = r.light / r.k;
        }
        turn ^= 1;
        if (!listed || cut >= least) break;
    }
    if (r.light == 0) r.k = 0;
    __syncthreads();
    mark_rows(s, cut, thread);
    if (thread == 0) s->drawn = r;
    __syncthreads();
    publish_marks(s, thread);
}

// ---- draws ----

// Bit number i of the set bits of mask.
__device__ int set_bit(uint32_t mask, int i) {
    int at = 0;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        int n = __popc(mask & ((1u << step) - 1));
        if (i >= n) i -= n, mask >>= step, at += step;
    }
    return at;
}

// Heavy row number i.
__device__ __noinline__ int marked_row(const take_space *s, int i) {
    const size_view &z = s->sizes;
    int b = count_upto(s->marked.heavy + 1, entry_of_row(z, z.n - 1), (uint32_t)i) << z.shift;
#pragma unroll 1
    for (int step = 1 << z.shift >> 1; step > 0; step /= 2)
        if (b + step < z.n_blocks && load_mark(s, b + step).heavy <= (uint32_t)i) b += step;
    block_mark x = load_mark(s, b);
    return b * BLOCK + set_bit(x.mask, i - (int)x.heavy);
}

// The light row of block b at which the running light size of the block exceeds t. heavy: the block's heavy rows.
template <typename Space> __device__ drawn_row light_in_block(const Space *s, int b, uint32_t heavy, uint64_t t) {
    const size_view &z = s->sizes;
    decltype(stored_piece(s, 0, 0)) stored[4];
    uint64_t packed = mass_of(s, b), in_block = 0, before = 0, running = 0, found = 0;
    int shift = min(z.top - ref_of(packed), 63), row = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) stored[i] = stored_piece(s, b, i);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint4 w = sizes_of(stored[i], packed);
        const uint32_t pairs[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int j = 0; j < 8; j++) {
            in_block += (uint64_t)unit_mass(j % 2 ? pairs[j / 2] >> 16 : pairs[j / 2] & 0xffff) * 256;
            uint64_t up_to = in_block >> shift, size = up_to - before + z.each;
            before = up_to;
            if (running > t || heavy >> (8 * i + j) & 1) continue;
            running += size, row = 8 * i + j, found = size;
        }
    }
    return {b * BLOCK + row, found};
}

// The light row at which the running light size of the head exceeds t < light.
template <typename Space> __device__ __noinline__ drawn_row find_marked(const Space *s, uint64_t t) {
    const size_view &z = s->sizes;
    int b = count_upto(s->cum + 1, entry_of_row(z, z.n - 1), t) << z.shift;
#pragma unroll 1
    for (int step = 1 << z.shift >> 1; step > 0; step /= 2)
        if (b + step < z.n_blocks && load_mark(s, b + step).light <= t) b += step;
    block_mark x = load_mark(s, b);
    return light_in_block(s, b, x.mask, t - x.light);
}

} // namespace

#endif
