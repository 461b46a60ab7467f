// attention/cuda/lists/select_rows.cuh - selects the entries with the largest stored masses, on CUDA. One thread block works on
// one query head. The naive version is in tests/cuda/naive.h: naive_is_among_largest.
//
// An entry is a row, or a unit of 16 rows (Quest). The rank of a mass is its distance below 2^top in steps of bf16 numbers, 128
// per octave. Equal ranks are equal masses. All ranks from 64 octaves on are counted as one rank. The thread block counts ranks
// in shared memory, finds the rank at which the budget ends ("the cut"), and marks all entries of smaller rank, and the first
// entries of this rank. All counts are integers, so equal stored masses give the rows of the CPU (stored_masses).
//
// | shared memory, in order | ints              | contents                                                        |
// |-------------------------|-------------------|-----------------------------------------------------------------|
// | counts of ranks         | select_words      | [RANKS]; later the bit words `above` and `equal` [n_blocks] each |
// | references              | max_blocks / 2    | [n_blocks] int16                                                |
//
// From 131,073 entries on (GLOBAL) only the counts lie in shared memory. The bit words and references lie in global memory
// (row_lists.memory).
//
// Worked head: n_kv 32768, k = 128. 512 threads load 1024 references and find the top. Suppose that 128 references are at least
// top - 1. Then no selected mass has a rank above 256, and the thread block reads only blocks whose reference is at least top -
// 2. A thread loads 8 pieces of 8 masses (16 bytes) at a time. find_cut: a warp sums 128 ranks, then one warp finds the cut.
// mark_ranks reads the masses again.
#ifndef SLEIGH_SELECT_ROWS_CUH
#define SLEIGH_SELECT_ROWS_CUH

#include "attention/cuda/lists/attend_rows.cuh"

// Threads of a thread block. 256 threads in place of 512 take 5 us more at 1 x 32k, and 250 us in place of 263 at 32 x 8k.
#ifndef SL_SELECT_THREADS
#define SL_SELECT_THREADS 512
#endif

namespace {

enum {
    SELECT_THREADS = SL_SELECT_THREADS,
    SELECT_WARPS = SELECT_THREADS / 32,
    RANKS = 64 * 128 + 1,
    RANK_GROUPS = 65,
    PIECES_AHEAD = 8, // pieces of 8 masses that a thread has in flight
};

// The stored masses of one query head.
struct stored_masses {
    const bf16 *w; // the 32 row masses of block b begin at b * stride
    int stride, n, n_blocks;
    const int16_t *ref; // [n_blocks] references of the blocks
    int top;            // the largest reference
};

struct select_space {
    int scan[SELECT_WARPS];
    int ints[SELECT_WARPS];
    int groups[RANK_GROUPS + 1];
    int group, before; // group of ranks that contains the cut; entries of the groups before it
    double mass_before, wanted;
    int cut, at_cut, n_cut;
};

// The selected entries: all whose rank is below `cut`, and the first at_cut of the n_cut entries whose rank is `cut`.
struct cut_rule {
    int cut, at_cut, n_cut;
};

// ---- over the thread block ----

// The largest x of the thread block.
__device__ int max_block(select_space *s, int x) {
    x = __reduce_max_sync(~0u, x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) s->ints[threadIdx.x / 32] = x;
    __syncthreads();
    for (int i = 0; i < SELECT_WARPS; i++) x = max(x, s->ints[i]);
    return x;
}

// Exclusive scan of x over the threads, and the sum of all.
__device__ int scan_block(select_space *s, int x, int *all) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, through = sl_scan_lanes(x, lane);
    __syncthreads();
    if (lane == 31) s->scan[warp] = through;
    __syncthreads();
    int of_warp = lane < SELECT_WARPS ? s->scan[lane] : 0, warps = sl_scan_lanes(of_warp, lane);
    *all = __shfl_sync(~0u, warps, 31);
    return through - x + __shfl_sync(~0u, warps - of_warp, warp);
}

// ---- ranks ----

// Returns the stored masses of query head `head` of the group. n: entries. ref: [n_blocks]; the function writes it.
__device__ stored_masses open_masses(select_space *s, const score_params &p, int seq_head, int head, int n, int16_t *ref) {
    stored_masses h = {.w = p.w + ((size_t)seq_head * p.max_blocks * p.group + head) * BLOCK,
                       .stride = p.group * BLOCK,
                       .n = n,
                       .n_blocks = ceil_div(n, BLOCK),
                       .ref = ref,
                       .top = REF_EMPTY};
    const uint64_t *mass = p.mass + ((size_t)seq_head * p.group + head) * p.max_blocks;
#pragma unroll 4
    for (int b = threadIdx.x; b < h.n_blocks; b += SELECT_THREADS) {
        ref[b] = (int16_t)ref_of(__ldcg(mass + b));
        h.top = max(h.top, (int)ref[b]);
    }
    h.top = max_block(s, h.top);
    return h;
}

// An upper bound of the ranks of the k largest entries. Reason: each of the k blocks with the largest references contains a
// mass above 2^(reference - 1).
__device__ int lowest_rank(select_space *s, const stored_masses &h, int k) {
    if (k > h.n_blocks) return RANKS - 1;
    for (int i = threadIdx.x; i <= RANK_GROUPS; i += SELECT_THREADS) s->groups[i] = 0;
    __syncthreads();
    for (int b = threadIdx.x; b < h.n_blocks; b += SELECT_THREADS) {
        if (h.ref[b] != REF_EMPTY) atomicAdd(&s->groups[min(h.top - h.ref[b], 64)], 1);
    }
    __syncthreads();
    int lane = threadIdx.x % 32, low = s->groups[2 * lane], n = sl_scan_lanes(low + s->groups[2 * lane + 1], lane);
    uint32_t reached = __ballot_sync(~0u, n >= k), first = reached ? __ffs(reached) - 1 : 0; // a lane has two octaves
    int octave = 2 * first + (__shfl_sync(~0u, n - s->groups[2 * lane + 1], first) < k);
    return reached ? min((octave + 1) * 128, RANKS - 1) : RANKS - 1;
}

// Calls visitor.visit(piece, eight masses, base) for every piece of 8 entries. A mass w > 0, as bits, has rank base - w. The
// masses are 0 if no entry of the piece's block can have a rank up to `last`.
template <typename Visitor> __device__ void for_pieces(const stored_masses &h, int last, Visitor &visitor) {
    int n = h.n_blocks * (BLOCK / 8);
    for (int first = threadIdx.x; first < n; first += SELECT_THREADS * PIECES_AHEAD) {
        uint4 x[PIECES_AHEAD];
#pragma unroll
        for (int j = 0; j < PIECES_AHEAD; j++) {
            int i = first + j * SELECT_THREADS;
            bool wanted = i < n && (last == RANKS - 1 || (h.top - h.ref[i / 4]) * 128 <= last);
            x[j] = wanted ? __ldcg((const uint4 *)(h.w + (size_t)(i / 4) * h.stride) + i % 4) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int j = 0; j < PIECES_AHEAD; j++) {
            int i = first + j * SELECT_THREADS;
            if (i < n) visitor.visit(i, x[j], (h.top - h.ref[i / 4]) * 128 + 0x3f80);
        }
    }
}

// The i-th of eight row masses, as bits.
__device__ __forceinline__ int mass_at(const uint4 &x, int i) {
    uint32_t word = i / 2 == 0 ? x.x : i / 2 == 1 ? x.y : i / 2 == 2 ? x.z : x.w;
    return i % 2 ? word >> 16 : word & 0xffff;
}

// Entries that a selection takes whatever their masses are, so they have no rank.
struct no_entries {
    __device__ int count() const { return 0; }
    __device__ uint32_t bits(int) const { return 0; }
};
// Of Quest: the first n_sink units and the newest one (top_units in draw_rank.c). newest -1: there is none.
struct fixed_units {
    int n_sink, newest;
    __device__ int count() const { return n_sink + (newest >= 0); }
    // Bit i: unit 8 piece + i is one of them.
    __device__ uint32_t bits(int piece) const {
        uint32_t sink = (1u << min(max(n_sink - 8 * piece, 0), 8)) - 1;
        return sink | (newest >> 3 == piece ? 1u << (newest & 7) : 0);
    }
};

// A visitor of for_pieces: counts the entries of each rank up to `last`.
template <typename Fixed> struct rank_counter {
    int last, *count;
    Fixed fixed;
    __device__ void visit(int piece, const uint4 &x, int base) {
        uint32_t without = fixed.bits(piece);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int w = mass_at(x, i), rank = min(base - w, RANKS - 1);
            if (w > 0 && rank <= last && !(without >> i & 1)) atomicAdd(count + rank, 1);
        }
    }
};

// count[r] = number of entries of rank r, for r up to `last`.
template <typename Fixed> __device__ void count_ranks(const stored_masses &h, int last, int *count, const Fixed &fixed) {
    for (int i = threadIdx.x; i < ceil_div(last + 1, 128) * 128; i += SELECT_THREADS) count[i] = 0; // in groups of 128
    __syncthreads();
    rank_counter<Fixed> visitor = {last, count, fixed};
    for_pieces(h, last, visitor);
    __syncthreads();
}

// Finds the rank at which a budget ends. The budget is k entries (by_mass false), or the share p of the mass. Rank 128 g + i is
// the mass (256 - i) 2^-(g + 8), so within a group of 128 ranks masses are integers.
__device__ cut_rule find_cut(select_space *s, const int *count, int last, bool by_mass, int k, double p) {
    int lane = threadIdx.x % 32, n_groups = last / 128 + 1;
    for (int g = threadIdx.x / 32; g < n_groups; g += SELECT_WARPS) {
        int sum = 0;
        for (int i = lane; i < 128 && 128 * g + i <= last; i += 32) sum += count[128 * g + i] * (by_mass ? 256 - i : 1);
        sum = __reduce_add_sync(~0u, sum);
        if (lane == 0) s->groups[g] = sum;
    }
    __syncthreads();
    if (by_mass && threadIdx.x == 0) {
        int g = 0;
        double total = 0, sum = 0;
        for (int i = 0; i < n_groups; i++) total += s->groups[i] * ldexp(1.0, -(i + 8));
        total *= p;
        for (; g < n_groups - 1 && sum + s->groups[g] * ldexp(1.0, -(g + 8)) < total; g++)
            sum += s->groups[g] * ldexp(1.0, -(g + 8));
        s->group = g, s->before = 0, s->mass_before = sum, s->wanted = total;
    }
    if (!by_mass && threadIdx.x < 32) { // a lane has three groups
        int n[3], sum = 0;
        for (int i = 0; i < 3; i++) sum += n[i] = 3 * lane + i < n_groups - 1 ? s->groups[3 * lane + i] : 0;
        int before = sl_scan_lanes(sum, lane) - sum, g = 3 * lane;
        uint32_t reached = __ballot_sync(~0u, before + sum >= k);
        if (reached ? lane == __ffs(reached) - 1 : lane == 31) {
            for (int i = 0; reached && i < 2 && before + n[i] < k; i++) before += n[i], g++;
            if (!reached) before += sum, g = n_groups - 1;
            s->group = min(g, n_groups - 1), s->before = before, s->mass_before = 0, s->wanted = 0;
        }
    }
    __syncthreads();
    if (threadIdx.x < 32) { // a lane has four ranks
        int g = s->group, n[4], sum = 0;
        double unit = ldexp(1.0, -(g + 8)), need = by_mass ? (s->wanted - s->mass_before) / unit : k - s->before;
        for (int i = 0; i < 4; i++) {
            int rank = 128 * g + 4 * lane + i;
            n[i] = rank <= last ? count[rank] : 0;
            sum += n[i] * (by_mass ? 256 - 4 * lane - i : 1);
        }
        int before = sl_scan_lanes(sum, lane);
        uint32_t reached = __ballot_sync(~0u, before >= need);
        before -= sum;
        if (reached ? lane == __ffs(reached) - 1 : lane == 31) {
            s->cut = last, s->at_cut = INT_MAX, s->n_cut = count[last]; // the budget covers all entries
            for (int i = 0; reached && i < 4; i++) {
                int each = by_mass ? 256 - 4 * lane - i : 1;
                if (before + n[i] * each >= need) {
                    s->cut = 128 * g + 4 * lane + i, s->n_cut = n[i];
                    s->at_cut = min((int)ceil((need - before) / each), n[i]);
                    break;
                }
                before += n[i] * each;
            }
        }
    }
    __syncthreads();
    return {s->cut, s->at_cut, s->n_cut};
}

// Bit i: mass i of the eight, as bits, is above `limit`. Masses and the limit are below 2^15, so a subtraction of two masses at
// a time clears the top bit of each half whose mass is above the limit.
__device__ __forceinline__ uint32_t masses_above(const uint4 &x, int limit) {
    const uint32_t from = (uint32_t)limit * 0x10001u | 0x80008000u, words[4] = {x.x, x.y, x.z, x.w};
    uint32_t even = 0; // bits 2 i and 2 i + 16: masses 2 i and 2 i + 1 are not above
#pragma unroll
    for (int i = 0; i < 4; i++) even |= ((from - words[i]) & 0x80008000u) >> (15 - 2 * i);
    return ~(even | even >> 15) & 0xff;
}

// A visitor of for_pieces: marks entries whose rank is below the cut or that are fixed, and entries whose rank is the cut.
template <typename Fixed> struct rank_marker {
    int cut;
    uint32_t *above, *equal;
    Fixed fixed;
    __device__ void visit(int piece, const uint4 &x, int base) {
        enum { ABOVE_ALL = 0x3f81 };                         // no mass is above 1
        int limit = min(max(base - cut, 0), (int)ABOVE_ALL); // masses above it have smaller ranks
        int last = cut == RANKS - 1 ? 0 : max(limit - 1, 0); // the last rank has all smaller masses
        uint32_t over = masses_above(x, limit) | fixed.bits(piece), on = masses_above(x, last) & ~over;
        ((uint8_t *)above)[piece] = (uint8_t)over, ((uint8_t *)equal)[piece] = (uint8_t)on;
    }
};

// Bit i of above[b]: entry 32 b + i has a rank below the cut, or is fixed. Bit i of equal[b]: its rank is the cut. [n_blocks]
// each.
template <typename Fixed>
__device__ void mark_ranks(const stored_masses &h, int cut, uint32_t *above, uint32_t *equal, const Fixed &fixed) {
    rank_marker<Fixed> visitor = {cut, above, equal, fixed};
    for_pieces(h, cut, visitor);
    __syncthreads();
}

__device__ uint32_t first_bits(uint32_t x, int n) { // the n lowest set bits of x
    if (n <= 0) return 0;
    if (n >= __popc(x)) return x;
    uint32_t bits = 0;
    for (; n > 0; n--) bits |= x & -x, x &= x - 1;
    return bits;
}

// above[b] |= the first at_cut entries of equal.
__device__ void take_equal(select_space *s, const cut_rule &c, int n_blocks, uint32_t *above, const uint32_t *equal) {
    if (c.at_cut >= c.n_cut) {
        for (int b = threadIdx.x; b < n_blocks; b += SELECT_THREADS) above[b] |= equal[b];
    } else {
        int before = 0, all;
        for (int b = threadIdx.x; b - (int)threadIdx.x < n_blocks; b += SELECT_THREADS) {
            uint32_t on = b < n_blocks ? equal[b] : 0;
            int at = before + scan_block(s, __popc(on), &all);
            if (b < n_blocks) above[b] |= first_bits(on, c.at_cut - at);
            before += all;
        }
    }
    __syncthreads();
}

// Lists the entries whose bits are set in words [n_words] and not in `without` (NULL: empty), in ascending order. Returns their
// number.
__device__ int list_entries(select_space *s, int n_words, int32_t *to, const uint32_t *words, const uint32_t *without) {
    int before = 0, all;
    for (int b = threadIdx.x; b - (int)threadIdx.x < n_words; b += SELECT_THREADS) {
        uint32_t x = b < n_words ? words[b] & (without ? ~without[b] : ~0u) : 0;
        int32_t *at = to + before + scan_block(s, __popc(x), &all);
        for (; x; x &= x - 1) *at++ = b * 32 + __ffs(x) - 1;
        before += all;
    }
    return before;
}

// Shared memory, in ints, of a selection from n_words * 32 entries: counts of ranks, and later two bits for every entry.
enum { COUNT_INTS = (RANKS + 127) / 128 * 128 };
__host__ __device__ int select_words(int n_words) {
    return max((int)COUNT_INTS, 2 * n_words + 2);
}

// Selects the fixed entries, and of the others the k largest (by_mass false), or the fewest that hold the share p of their
// mass, as bits in above and equal [n_blocks], which follows it. count: COUNT_INTS ints; `above` may lie over them. Returns the
// cut.
template <typename Fixed = no_entries>
__device__ cut_rule select_largest(select_space *s, const stored_masses &h, int *count, uint32_t *above, bool by_mass, int k,
                                   double p, const Fixed &fixed = Fixed()) {
    int last = by_mass ? RANKS - 1 : lowest_rank(s, h, k + fixed.count()); // the k others are among so many of all entries
    count_ranks(h, last, count, fixed);
    cut_rule c = find_cut(s, count, last, by_mass, k, p);
    mark_ranks(h, c.cut, above, above + h.n_blocks, fixed);
    return c;
}

// ---- the kernel of methods that use the selected entries as they are ----

enum selection { LARGEST, REACHING, LARGEST_UNITS };

struct select_params {
    score_params score; // masses of entries
    row_lists lists;
    selection kind;
    int k;      // LARGEST, LARGEST_UNITS: budget of entries
    double p;   // REACHING: share of the mass
    int n_sink; // LARGEST_UNITS: first units that are always selected, within the budget
    sl_attn_cuda_stats *stats;
};

// Entries that a head selects at most, of n_entries entries of `unit` rows: `tokens` of quest, k of topk; topp has no such
// limit.
static inline int most_selected(const sl_attn_spec *spec, int n_entries, int unit) {
    const char *budget = unit > 1 ? "tokens" : "k";
    return sl_attn_has(spec, budget) ? min((int)sl_attn_get(spec, budget) / unit, n_entries) : n_entries;
}

// The selection of topk, topp and quest. stats: NULL if the selected rows are not yet the rows of V that a step reads.
static inline select_params select_params_of(const sl_attn_spec *spec, const score_params &score, const row_lists &lists,
                                             sl_attn_cuda_stats *stats) {
    bool by_mass = sl_attn_has(spec, "p"), by_unit = lists.unit > 1;
    return {.score = score,
            .lists = lists,
            .kind = by_mass   ? REACHING
                    : by_unit ? LARGEST_UNITS
                              : LARGEST,
            .k = by_mass ? 0 : (int)sl_attn_get(spec, by_unit ? "tokens" : "k") / lists.unit,
            .p = by_mass ? sl_attn_get(spec, "p") : 0,
            .n_sink = by_unit ? ceil_div((int)sl_attn_get(spec, "sink"), lists.unit) : 0,
            .stats = stats};
}

// Word b of a mask of n entries that has all bits set.
__device__ uint32_t all_entries(int n, int b) {
    return n - 32 * b >= 32 ? ~0u : (1u << n % 32) - 1;
}

// Plans a head that attends exactly: an empty list, and all entries in its mask. n: its entries.
__device__ void plan_beyond(const row_lists &lists, int head, int top, int n, int n_kv, sl_attn_cuda_stats *stats) {
    for (int b = threadIdx.x; b < ceil_div(n, 32); b += SELECT_THREADS)
        lists.mask[(size_t)head * lists.mask_words + b] = all_entries(n, b);
    if (threadIdx.x > 0) return;
    head_plan plan = {{0, 0, 0, 0}, top, 1, 0};
    lists.plan[head] = plan;
    if (!stats) return;
    atomicAdd(&stats->v_rows, (unsigned long long)n_kv);
    atomicAdd(&stats->samples, (unsigned long long)n_kv);
}

// Writes the mask and list 0 of a query head.
//
// Grid: a thread block per query head.
// Bytes: the head's stored masses twice, from the L2 cache.
// Order of reduction: counts, marks and the masses of an octave are integers, so their order has no effect.
template <bool GLOBAL> static __global__ void __launch_bounds__(SELECT_THREADS, 2) select_rows_kernel(const select_params p) {
    extern __shared__ __align__(16) int shared[];
    __shared__ select_space s;
    sl_start_next();
    sl_wait_previous();
    int *memory = GLOBAL ? p.lists.memory + blockIdx.x * head_memory(p.lists.mask_words) : shared, head = blockIdx.x,
        seq_head = head / p.score.group, n_kv = p.score.rows[seq_head / p.score.n_kv_heads].position + 1;
    int unit = p.lists.unit;
    stored_masses h = open_masses(&s, p.score, seq_head, head % p.score.group, ceil_div(n_kv, unit),
                                  (int16_t *)(memory + select_words(p.score.max_blocks)));
    uint32_t *above = (uint32_t *)memory, *equal = above + h.n_blocks;
    if (is_beyond(h.top)) {
        plan_beyond(p.lists, head, h.top, h.n, n_kv, p.stats);
        return;
    }
    if (p.kind == LARGEST_UNITS && p.k >= h.n) {
        for (int b = threadIdx.x; b < h.n_blocks; b += SELECT_THREADS) above[b] = all_entries(h.n, b);
        __syncthreads();
    } else {
        fixed_units fixed = {p.n_sink, p.kind == LARGEST_UNITS ? h.n - 1 : -1};
        cut_rule c = select_largest(&s, h, shared, above, p.kind == REACHING, p.k - fixed.count(), p.p, fixed);
        take_equal(&s, c, h.n_blocks, above, equal);
    }
    int n = list_entries(&s, h.n_blocks, p.lists.list + (size_t)head * p.lists.capacity, above, NULL);
    for (int b = threadIdx.x; b < h.n_blocks; b += SELECT_THREADS)
        p.lists.mask[(size_t)head * p.lists.mask_words + b] = above[b];
    if (threadIdx.x > 0) return;
    head_plan plan = {{0, n, n, n}, h.top, 1, 0};
    p.lists.plan[head] = plan;
    if (!p.stats) return;
    int rows = rows_of(n, unit, n_kv);
    atomicAdd(&p.stats->v_rows, (unsigned long long)rows);
    atomicAdd(&p.stats->samples, (unsigned long long)rows);
}

static inline void launch_select(const select_params &p, int n_heads, cudaStream_t stream) {
    bool global = p.lists.memory != NULL;
    size_t bytes = select_words(p.score.max_blocks) * sizeof(int) + p.score.max_blocks * sizeof(int16_t);
    if (global) bytes = COUNT_INTS * sizeof(int);
    sl_launch(global ? select_rows_kernel<true> : select_rows_kernel<false>, dim3(n_heads), dim3(SELECT_THREADS), bytes, stream,
              p);
}

// ---- exact scores of all keys ----

enum { SCORE_SHARED_BYTES = (sizeof(score_shared) + 127) / 128 * 128 };

// Stores the masses w_j = bf16(2^(s_j - ref)) of every key and query head (masses.h).
//
// Grid: one thread block per multiprocessor. Warps: 4 consumers and a producer, as in santa.cu.
// Bytes: K once, and 2.25 bytes of stored masses per row and query head.
template <int DIM> __global__ void __launch_bounds__(32 * (1 + CONSUMER_WARPS), 1) score_keys_kernel(const score_params p) {
    extern __shared__ __align__(128) char stages[];
    score_shared *shared = (score_shared *)stages;
    ring r = {shared, stages + SCORE_SHARED_BYTES, p.n_stages, layout<DIM>::stage(p.group), 0, 0};
    producer to;
    if (threadIdx.x / 32 == CONSUMER_WARPS) to = produce_begin(p, r);
    score_begin(shared, 32 * plain_config::SIZE);
    __syncthreads();
    sl_start_next();
    if (threadIdx.x / 32 < CONSUMER_WARPS)
        consume<DIM>(p, r);
    else
        produce<DIM>(p, to);
}

template <int DIM> static void launch_score(score_params p, cudaStream_t stream) {
    p.n_stages = layout<DIM>::stages(p.group, SCORE_SHARED_BYTES);
    p.done = p.top = NULL; // readers wait for the kernel's end
    size_t bytes = SCORE_SHARED_BYTES + (size_t)p.n_stages * layout<DIM>::stage(p.group);
    sl_launch(score_keys_kernel<DIM>, dim3(sl_multiprocessors()), dim3(32 * (1 + CONSUMER_WARPS)), bytes, stream, p);
}

} // namespace

#endif
