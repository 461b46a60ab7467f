// attention/cuda/santa/take_known.cuh - take-all + PPS draws at a known threshold kappa, by one thread block on CUDA. It draws
// the rows, counts and 1 / pi_j of sl_draw_at (draw_take_all.c). Nothing is searched, and nothing is selected in turns.
//
// | step           | does                                                                                                |
// |----------------|-----------------------------------------------------------------------------------------------------|
// | known_blocks   | the units of sizes and masses, kappa as an integer, the size before each entry, the blocks that     |
// |                | can have a row of at least kappa: their size and their reference are large enough                   |
// | list_heavy     | the heavy rows of these blocks, with the light size before each of them                             |
// | take_rows      | heavy rows, and for point m of the light size the light row at it                                   |
//
// Point m is m kappa + floor(u_m kappa / 2^64). The light row at a point is found as in take_all.cuh: the heavy rows before it
// move the point to the running size of all rows.
//
// Worked head: n_kv 32768, S = 128, 256 threads. Each thread has 4 of 1024 blocks. Suppose that 48 blocks can have heavy rows.
// Each warp reads 6 of them at once: four lanes read a block. Suppose that 45 rows are heavy and that 90 points lie below the
// light size. Then each of the 8 warps takes 17 or 18 rows. A thread with a point reads the sizes of one block. The chain of
// dependent reads: block masses, blocks that can have heavy rows, blocks of points, rows of V.
//
// The lists have KNOWN_LISTED rows for each warp. Where a warp finds more, the rows are marked (take_marked.cuh).
#ifndef SLEIGH_TAKE_KNOWN_CUH
#define SLEIGH_TAKE_KNOWN_CUH

#include "attention/cuda/santa/take_all.cuh"

namespace {

static_assert(ROWS_MAX / BLOCK <= 1 << 16, "known_rows.block");
const uint64_t KAPPA_MOST = 1ull << 62; // kappa is at most this; no row is heavy

// The shared memory of a head, in addition to its take_space, whose `lists` it uses.
struct known_rows {
    uint64_t kappa; // in units of size
    uint64_t total; // the unit of the layer's kappa, in units of 2^total_exponent sizes
    int total_exponent;
    int each_warp;                                   // blocks of a warp: its listed blocks begin at block[warp * each_warp]
    int n_blocks[TAKE_WARPS];                        // listed blocks of each warp
    context_array<uint16_t, ROWS_MAX / BLOCK> block; // blocks that can have heavy rows, ascending
    int n_heavy[TAKE_WARPS];                         // heavy rows of each warp
    uint64_t heavy[TAKE_WARPS];                      // their size
};

// 2^e; 0 below the normal numbers, 2^1023 above them.
__device__ double power_of_two(int e) {
    return __hiloint2double((1023 + min(max(e, -1023), 1023)) << 20, 0);
}

// A unit of size in the unit of the layer's kappa (sl_masses_share). It takes a division, so call it after the draws.
__device__ double unit_of(const known_rows *r) {
    return 1.0 / (double)r->total * power_of_two(-r->total_exponent);
}

// ---- blocks ----

// The masses of blocks whose total is the unit of kappa, if these are not the sizes: the total of `mass` is 1. of_warp, top:
// [TAKE_WARPS] in shared memory. After known_blocks, of_warp[i] is a part of the total, and top[i] is its unit.
struct total_masses {
    const uint64_t *mass; // [n_blocks], 16-byte aligned
    int n_blocks;         // at least the blocks with sizes
    uint64_t *of_warp;
    int *top;
};

// IS_LONG: the thread block's place for listed blocks. listed: [thread blocks][max_blocks]. One thread calls it.
__device__ void place_listed(known_rows *r, uint16_t *listed, int max_blocks) {
#ifdef SL_LONG_CONTEXT
    r->block = listed + (size_t)(blockIdx.y * gridDim.x + blockIdx.x) * max_blocks;
#endif
}

// Takes the places of n_blocks thread blocks.
static inline uint16_t *take_listed(arena *from, size_t n_blocks, int n_kv) {
    return IS_LONG ? from->take<uint16_t>(n_blocks * block_stride(n_kv)) : NULL;
}

// Loads the thread's EACH blocks. Blocks past the last one are empty.
template <int EACH> __device__ void load_own(const uint64_t *mass, int n_blocks, int first, uint64_t x[EACH]) {
    const head_view view = {.mass = mass, .n_blocks = n_blocks};
    load_masses<EACH>(view, first, x);
}

// Loads EACH blocks, in whole cache lines over the warp. Each block has one thread.
template <int EACH> __device__ void load_any(const uint64_t *mass, int n_blocks, int thread, uint64_t x[EACH]) {
    const head_view view = {.mass = mass, .n_blocks = n_blocks};
#pragma unroll
    for (int i = 0; i < EACH; i += 2) load_masses<2>(view, 2 * thread + i * TAKE_THREADS, x + i);
}

// kappa as an integer of at least 1, in units of size (carried.c, draw_carried). kappa 0: no row is heavy.
__device__ uint64_t kappa_in_units(double kappa, uint64_t total, int exponent) {
    double units = kappa * ((double)total * power_of_two(exponent));
    if (!(kappa > 0) || !(units < (double)KAPPA_MOST)) return KAPPA_MOST;
    return units < 1 ? 1 : (uint64_t)units;
}

// The smallest reference of a block that can contain a row of at least kappa. The size of a row exceeds 2^(38 - top + ref) +
// each by at most 1.
__device__ int least_reference(uint64_t kappa, int top, uint64_t each) {
    if (kappa <= each + 1) return REF_EMPTY;
    uint64_t least = kappa - each - 1;
    return top - 38 + (least > 1 ? 64 - __clzll((long long)(least - 1)) : 0);
}

// Finds the unit (top), the total, the size before each entry (s->cum) and the blocks that can contain a row of at least kappa.
// Stores the block masses to s->mass.
template <int EACH, typename Space>
__device__ void known_blocks_of(Space *s, known_rows *r, double kappa, const total_masses &masses, int thread) {
    enum { SHIFT = EACH > 4 ? 2 : 0, N = 1 << SHIFT };
    int lane = thread % 32, warp = thread / 32, first = thread * EACH, n_blocks = s->sizes.n_blocks, n = s->sizes.n;
    int top = REF_EMPTY, mass_top = REF_EMPTY;
    uint64_t x[EACH], y[EACH], own = 0, own_mass = 0, before = 0, total = 0, total_mass = 0;
    load_any<EACH>(masses.mass, masses.n_blocks, thread, y);
    if (EACH > 4) { // in whole cache lines; a thread's own 16 block masses are a line
        take_all_begin(s, thread);
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncthreads();
        own_masses<EACH>(s, thread, x);
    } else {
        load_own<EACH>(s->sizes.mass, n_blocks, first, x);
    }
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        top = max(top, ref_of(x[j]));
        mass_top = max(mass_top, ref_of(y[j]));
    }
    top = __reduce_max_sync(~0u, top);
    mass_top = __reduce_max_sync(~0u, mass_top);
    if (lane == 0) s->ints[warp] = top;
    if (lane == 0) masses.top[warp] = mass_top;
#pragma unroll
    for (int j = 0; EACH <= 4 && j < EACH; j += 2)
        if (first + j < n_blocks) *(ulonglong2 *)(s->mass + place_of(first) + j) = make_ulonglong2(x[j], x[j + 1]);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TAKE_WARPS; i++) {
        top = max(top, s->ints[i]);
        mass_top = max(mass_top, masses.top[i]);
    }
    if (EACH > 4) own_masses<EACH>(s, thread, x); // spares registers
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        own += global_mass(x[j], top);
        own_mass += global_mass(y[j], mass_top);
    }
    uint64_t running = sl_scan_lanes(own, lane);
    own_mass = sum_lanes(own_mass);
    if (lane == 31) s->scan[0][warp] = running;
    if (lane == 31) masses.of_warp[warp] = own_mass;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TAKE_WARPS; i++) {
        if (i == warp) before = total;
        total += s->scan[0][i];
        total_mass += masses.of_warp[i];
    }
    uint64_t each = (uint64_t)(s->sizes.share * (double)total);
    total += each * (uint64_t)n;
    running += before - own + each * (uint64_t)min(first * BLOCK, n);
    int exponent = mass_top - top;
    uint64_t known = kappa_in_units(kappa, total_mass, exponent);
    uint32_t mask = 0;
    int least = least_reference(known, top, each);
    if (EACH > 4) own_masses<EACH>(s, thread, x);
#pragma unroll
    for (int j = 0; j < EACH; j++) { // entries past the last block are equal to the total
        uint64_t size = global_mass(x[j], top) + each_of_block(each, first + j, n);
        if (j % N == 0) s->cum[(first + j) / N] = running;
        running += size;
        mask |= (uint32_t)(size >= known && ref_of(x[j]) >= least) << j;
    }
    int at = sl_scan_lanes(__popc(mask), lane), list = warp * 32 * EACH + at - __popc(mask);
#pragma unroll 1
    for (; mask; mask &= mask - 1) r->block[list++] = (uint16_t)(first + __ffs(mask) - 1);
    if (lane == 31) r->n_blocks[warp] = at;
    if (thread < TAKE_WARPS) masses.top[thread] = mass_top;
    if (thread == 0) {
        s->sizes.shift = SHIFT, s->sizes.top = top, s->sizes.each = each, s->sizes.total = total;
        s->cum[TAKE_THREADS * EACH / N] = total;
        s->drawn = {.n_heavy = 0, .k = 1, .light = known, .listed = true}; // light / k is kappa, for inverse_pi
        r->kappa = known, r->each_warp = 32 * EACH;
        r->total = total_mass, r->total_exponent = exponent;
    }
    __syncthreads();
}

// known_blocks_of with any number of blocks.
template <typename Space>
__device__ void known_long(Space *s, known_rows *r, double kappa, const total_masses &masses, int thread) {
    const uint64_t *mass = s->sizes.mass;
    int lane = thread % 32, warp = thread / 32, n = s->sizes.n, n_blocks = s->sizes.n_blocks;
    int shift = entry_shift(n_blocks), top = largest_of_warp(mass, n_blocks, thread), mass_top = REF_EMPTY, n_own = 0;
    uint64_t own_mass = 0, before = 0, total = 0, total_mass = 0;
    mass_top = largest_of_warp(masses.mass, masses.n_blocks, thread);
    if (lane == 0) s->ints[warp] = top;
    if (lane == 0) masses.top[warp] = mass_top;
    __syncthreads();
    for (int i = 0; i < TAKE_WARPS; i++) {
        top = max(top, s->ints[i]);
        mass_top = max(mass_top, masses.top[i]);
    }
    uint64_t own = sum_entries(s, shift, top, thread, [](int, int, uint64_t, uint64_t) {});
    each_load<8>(masses.mass, masses.n_blocks, thread,
                 [&](int, int, uint64_t x, uint64_t y) { own_mass += global_mass(x, mass_top) + global_mass(y, mass_top); });
    own_mass = sum_lanes(own_mass);
    if (lane == 0) s->scan[0][warp] = own;
    if (lane == 0) masses.of_warp[warp] = own_mass;
    __syncthreads();
    for (int i = 0; i < TAKE_WARPS; i++) {
        if (i == warp) before = total;
        total += s->scan[0][i];
        total_mass += masses.of_warp[i];
    }
    uint64_t each = (uint64_t)(s->sizes.share * (double)total);
    int exponent = mass_top - top, each_warp = blocks_of_warp(n_blocks);
    total += each * (uint64_t)n;
    finish_entries(s, shift, before, each, total, thread);
    uint64_t known = kappa_in_units(kappa, total_mass, exponent);
    int least = least_reference(known, top, each);
    auto is_listed = [&](int b, uint64_t x) {
        return ref_of(x) >= least && global_mass(x, top) + each_of_block(each, b, n) >= known;
    };
    each_load<8>(mass, n_blocks, thread, [&](int b, int left, uint64_t x, uint64_t y) {
        bool lists_x = left > 0 && is_listed(b, x), lists_y = left > 1 && is_listed(b + 1, y);
        uint32_t first = __ballot_sync(~0u, lists_x), second = __ballot_sync(~0u, lists_y);
        int at = warp * each_warp + n_own + place_of_lane(first, second, lane);
        if (lists_x) r->block[at++] = (uint16_t)b;
        if (lists_y) r->block[at] = (uint16_t)(b + 1);
        n_own += __popc(first) + __popc(second);
    });
    if (lane == 0) r->n_blocks[warp] = n_own;
    if (thread < TAKE_WARPS) masses.top[thread] = mass_top;
    if (thread == 0) {
        s->sizes.shift = shift, s->sizes.top = top, s->sizes.each = each, s->sizes.total = total;
        s->drawn = {.n_heavy = 0, .k = 1, .light = known, .listed = true}; // light / k is kappa, for inverse_pi
        r->kappa = known, r->each_warp = each_warp;
        r->total = total_mass, r->total_exponent = exponent;
    }
    __syncthreads();
}

template <typename Space>
__device__ void known_blocks(Space *s, known_rows *r, double kappa, const total_masses &masses, int thread) {
    int n_each = IS_LONG ? 0 : blocks_each(masses.n_blocks);
    if (IS_LONG)
        known_long(s, r, kappa, masses, thread);
    else if (n_each == 2)
        known_blocks_of<2>(s, r, kappa, masses, thread);
    else if (n_each == 4)
        known_blocks_of<4>(s, r, kappa, masses, thread);
    else
        known_blocks_of<16>(s, r, kappa, masses, thread);
}

// Listed block number i.
__device__ int listed_block(const known_rows *r, int i) {
    int warp = 0;
#pragma unroll
    for (int k = 0; k + 1 < TAKE_WARPS; k++)
        if (warp == k && i >= r->n_blocks[k]) i -= r->n_blocks[k], warp++;
    return r->block[warp * r->each_warp + i];
}

__device__ int listed_blocks(const known_rows *r) {
    int n = 0;
#pragma unroll
    for (int i = 0; i < TAKE_WARPS; i++) n += r->n_blocks[i];
    return n;
}

// ---- heavy rows ----

// Lists the heavy rows of the listed blocks [from, end). n_heavy and heavy also count rows that do not fit. A warp takes eight
// blocks at a time, four lanes a block. Call __syncthreads before and after.
template <typename Space> __device__ void list_heavy(Space *s, known_rows *r, int from, int end, int thread) {
    const size_view &z = s->sizes;
    int lane = thread % 32, warp = thread / 32, quarter = lane % 4, count = 0, n = end - from;
    uint64_t kappa = r->kappa, heavy = 0;
    end = from + n * (warp + 1) / TAKE_WARPS, from += n * warp / TAKE_WARPS;
    float limit = stored_limit(z, kappa);
    int next = from < end ? listed_block(r, min(from + lane / 4, end - 1)) : 0; // the lane's next block
    uint64_t next_mass = mass_of(s, next);
    decltype(stored_piece(s, 0, 0)) next_piece = stored_piece(s, next, quarter);
#pragma unroll 1
    for (int first = from; first < end; first += 8) {
        int b = next, row = b * BLOCK + 8 * quarter;
        uint64_t packed = next_mass;
        decltype(next_piece) piece = next_piece;
        if (first + 8 < end) { // the loads of the next blocks are in flight meanwhile
            next = listed_block(r, min(first + 8 + lane / 4, end - 1));
            next_mass = mass_of(s, next), next_piece = stored_piece(s, next, quarter);
        }
        lane_rows x = rows_of_lane(z, sizes_of(piece, packed), packed, limit, first + lane / 4 < end ? z.n - row : 0);
        uint32_t mask = x.mask;
        uint64_t own_heavy = 0;
#pragma unroll 1 // few lanes have a row that is nearly as large as kappa
        for (uint32_t left = mask; left; left &= left - 1) {
            uint64_t size = row_of_lane(z, x, __ffs(left) - 1).size;
            if (size < kappa)
                mask &= ~(left & -left);
            else
                own_heavy += size;
        }
        __syncwarp();
        int at = sl_scan_lanes(__popc(mask), lane);
        uint64_t up_to = sl_scan_lanes(own_heavy, lane), all_heavy = __shfl_sync(~0u, up_to, 31);
        int place = count + at - __popc(mask);
        count += __shfl_sync(~0u, at, 31), up_to += heavy - own_heavy, heavy += all_heavy;
        uint64_t of_block = mask ? size_before(s, b) : 0;
#pragma unroll 1
        for (; mask && place < KNOWN_LISTED; mask &= mask - 1, place++) {
            int i = __ffs(mask) - 1;
            lane_row y = row_of_lane(z, x, i);
            s->lists.row[warp][place] = row + i;
            s->lists.before[warp][place] = of_block + y.before + z.each * (uint64_t)(8 * quarter + i) - up_to;
            s->lists.up_to[warp][place] = up_to += y.size;
        }
    }
    if (lane == 0) r->n_heavy[warp] = count, r->heavy[warp] = heavy;
}

// The split of a head at kappa.
struct known_split {
    int n_heavy;
    uint64_t light; // size of the light rows
    float k;        // steps of kappa; the last digits can be wrong, because an exact division takes longer
    bool is_listed; // all heavy rows are listed
};

__device__ float steps_of(uint64_t light, uint64_t kappa) {
    return __fdividef((float)light, (float)kappa);
}

// Whether heavy rows and steps of kappa are at most `most` together (carried.c, draw_carried).
__device__ bool fits_in(const known_split &x, uint64_t kappa, double most) {
    return (double)x.light <= (most - x.n_heavy) * (double)kappa;
}

// After list_heavy of all listed blocks.
template <typename Space> __device__ known_split split_known(const Space *s, const known_rows *r) {
    known_split x = {.n_heavy = 0, .light = s->sizes.total, .k = 0, .is_listed = true};
#pragma unroll
    for (int i = 0; i < TAKE_WARPS; i++)
        x.n_heavy += r->n_heavy[i], x.light -= r->heavy[i], x.is_listed &= r->n_heavy[i] <= KNOWN_LISTED;
    x.k = steps_of(x.light, r->kappa);
    return x;
}

// ---- draws ----

// Uniform number `index`, for heads with more than TAKE_THREADS points. Not inlined, because few heads need it.
__device__ __noinline__ uint64_t later_random(sl_rng_id id, uint32_t index) {
    return sl_draw_random(&id, index);
}

// Point m. shared: all points have one uniform number.
template <typename Space>
__device__ uint64_t point_of(const Space *s, const known_rows *r, bool shared, const sl_rng_id &id, uint32_t m) {
    uint32_t i = shared ? 0 : m;
    uint64_t u = i < TAKE_THREADS ? s->uniform[i] : later_random(id, i);
    return m * r->kappa + __umul64hi(u, r->kappa);
}

// The light row at t.
template <typename Space> __device__ drawn_row find_known(const Space *s, const known_rows *r, uint64_t t) {
    const size_view &z = s->sizes;
    uint64_t passed = 0, move = 0; // move: size of the heavy rows before the row
    int list = -1, low = 0;
#pragma unroll
    for (int i = 0; i < TAKE_WARPS; i++) { // a list without rows has no first row
        if (r->n_heavy[i] > 0 && s->lists.before[i][0] <= t + passed) list = i, move = passed;
        passed += r->heavy[i];
    }
    if (list >= 0) {
        int last = count_upto(s->lists.before[list], r->n_heavy[list], t + move) - 1;
        move += s->lists.up_to[list][last], low = entry_of_row(z, s->lists.row[list][last]);
    }
    return find_size(s, t + move, low, entry_of_row(z, z.n - 1));
}

// Heavy row number i of the lists.
__device__ int listed_row(const take_space *s, const known_rows *r, int i) {
    int warp = 0;
#pragma unroll
    for (int k = 0; k + 1 < TAKE_WARPS; k++)
        if (warp == k && i >= r->n_heavy[k]) i -= r->n_heavy[k], warp++;
    return s->lists.row[warp][i];
}

// A bound of the rows of a head. The last points may lie past its light size. k can be one too small.
__device__ int rows_of(const known_split &x) {
    return x.n_heavy + (int)x.k + 2;
}

// Turns of at most TAKE_THREADS rows.
__device__ int turns_of(const known_split &x) {
    return ceil_div(rows_of(x), (int)TAKE_THREADS);
}

// Marks the heavy rows of a head whose lists are too short. Call __syncthreads before.
template <typename Space> __device__ void mark_known(Space *s, const known_rows *r, int thread) {
    mark_rows(s, r->kappa - 1, thread);
}

// The thread's row in turn number `turn` of n_turns: heavy rows come first, then light rows. *m: the point of a light row. In a
// warp, lanes with rows come first. Equal neighbours are a light row that was drawn twice. All turns have the same number of
// rows, and so have all warps, so that all of them load together. MARKED: the head's marks are known (mark_known, or the marks
// of another thread block that wait_marks has read); else all heavy rows are listed.
template <bool MARKED, typename Space>
__device__ drawn_row row_of_known(const Space *s, const known_rows *r, const known_split &x, bool shared, const sl_rng_id &id,
                                  int n_turns, int turn, int thread, uint32_t *m) {
    int lane = thread % 32, warp = thread / 32, n = rows_of(x);
    int n_each = n_turns == 1 ? n : ceil_div(n, n_turns); // a division of integers takes many instructions
    int n_warp = ceil_div(n_each, (int)TAKE_WARPS), own = warp * n_warp + lane, i = turn * n_each + own;
    *m = 0;
    if (lane >= n_warp || own >= n_each || i >= n) return {-1, 0};
    if (i < x.n_heavy) return {MARKED ? marked_row(s, i) : listed_row(s, r, i), 0};
    *m = (uint32_t)(i - x.n_heavy);
    uint64_t t = point_of(s, r, shared, id, *m);
    if (t >= x.light) return {-1, 0};
    return MARKED ? find_marked(s, t) : find_known(s, r, t);
}

// Calls add(row, m) for all turns of a head. All threads call it together.
template <bool MARKED, typename Space, typename Add>
__device__ void take_rows(const Space *s, const known_rows *r, const known_split &x, bool shared, const sl_rng_id &id,
                          int thread, const Add &add) {
    int n_turns = turns_of(x);
#pragma unroll 1
    for (int turn = 0; turn < n_turns; turn++) {
        uint32_t m;
        drawn_row row = row_of_known<MARKED>(s, r, x, shared, id, n_turns, turn, thread, &m);
        add(row, m);
    }
}

// take_rows of a head whose rows are listed and all fit into one turn. It is not a loop, because the compiler would compute the
// addresses of the loop before it, and keep them in local memory.
template <typename Space, typename Add>
__device__ void take_turn(const Space *s, const known_rows *r, const known_split &x, bool shared, const sl_rng_id &id,
                          int thread, const Add &add) {
    uint32_t m;
    drawn_row row = row_of_known<false>(s, r, x, shared, id, 1, 0, thread, &m);
    add(row, m);
}

} // namespace

#endif
