// attention/cuda/prefill/prefill_masks.cu - masks for prefill on the GPU: sample, vertical-slash, streaming. They are equal to
// the masks of attention/prefill/ on the CPU, bit by bit, where the scores are equal. The host reads nothing.
//
// | step   | kernel                               | makes                                        |
// |--------|--------------------------------------|----------------------------------------------|
// | masses | row_masses_kernel, row_scales_kernel | integer masses of rows in key blocks, scales |
// | lists  | list_block_sums_kernel (sample)      | sums of the shares of columns and slashes    |
// |        | row_lines_kernel (vertical-slash)    | sums of the shares of keys and offsets       |
// | choice | choose_kernel                        | flags of the chosen key blocks and distances |
// | mask   | merge_kernel                         | the bits                                     |
// | report | kept_kernel                          | the least kept share of a sampled row        |
//
// A launch has as many heads as fit in MOST_SCRATCH bytes, at least one.
#include "attention/cuda/head_dim.cuh"
#include "attention/cuda/prefill/row_sums.cuh"
#include "attention/cuda/workspace.cuh"

#include <cub/block/block_scan.cuh>

namespace {

enum { THREADS = 256, WARPS = THREADS / 32, MERGE_THREADS = 128 };
const size_t MOST_SCRATCH = (size_t)256 << 20;

// How a list is cut.
struct choice {
    uint64_t share; // > 0: the fewest entries whose sums reach this share of the total, in units of 2^-32
    int most;       // share 0: the entries with the largest positive sums, this number
};

// What a method does.
struct shape {
    int n_chunks;   // tasks of a head
    int most_rows;  // sampled rows of a task
    bool in_tokens; // lists have sums of keys and offsets; otherwise of key blocks
    choice columns, slashes;
};

struct mask_params {
    row_sums_params sums;
    shape how;
    int n_words;                       // of a row of the mask
    int length, n_lists;               // entries of a list. The lists: columns of all tasks, then slashes of all tasks
    uint32_t *list;                    // [n_lists][length]
    uint8_t *flags;                    // [n_lists][n_blocks] 1: the key block, or the distance of the key block, is chosen
    uint64_t *bits;                    // [n_heads][n_queries][n_words]
    sl_attn_cuda_prefill_stats *stats; // [n_heads]; NULL: not wanted
};

// ---- lists ----

// Sums of key blocks and of 128 offsets, over the rows of a task. Grid: [entries / 8][lists]. A warp per entry.
__global__ void __launch_bounds__(THREADS) list_block_sums_kernel(const __grid_constant__ mask_params p) {
    int i = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    sl_start_next();
    sl_wait_previous();
    if (i >= p.length) return;
    int n_tasks = p.n_lists / 2, task = blockIdx.y % n_tasks;
    bool is_slash = (int)blockIdx.y >= n_tasks;
    task_rows t = rows_of_task(p.sums, task);
    uint32_t sum = 0;
    for (int row = lane; row < t.end; row += 32) {
        int diagonal = (t.row0 + row) / SL_MASK_BLOCK;
        if (i > diagonal) continue;
        block_shares x = shares_of(p.sums, task, row, is_slash ? diagonal - i : i);
        sum += is_slash ? x.low : x.low + x.high;
        if (is_slash && i < diagonal) sum += shares_of(p.sums, task, row, diagonal - i - 1).high;
    }
    sum = __reduce_add_sync(~0u, sum);
    if (lane == 0) p.list[(size_t)blockIdx.y * p.length + i] = sum;
}

// ---- choice ----

__device__ void flag_entry(const mask_params &p, int list, bool is_slash, int index) {
    uint8_t *flags = p.flags + (size_t)list * p.sums.n_blocks;
    int block = p.how.in_tokens ? index / SL_MASK_BLOCK : index;
    flags[block] = 1;
    // The offsets of a slash block, and an offset inside a block, cross the next key block too.
    if (is_slash && (!p.how.in_tokens || index % SL_MASK_BLOCK) && block + 1 < p.sums.n_blocks) flags[block + 1] = 1;
}

// A row of the list has no sums. One row for each of the first threads.
__device__ bool lacks_sums(const mask_params &p, int list) {
    int task = list % (p.n_lists / 2);
    return threadIdx.x < TASK_ROWS && p.sums.scales[task * TASK_ROWS + threadIdx.x].top == SL_REF_INVALID;
}

struct list_cut {
    uint32_t least;  // entries with a larger sum are chosen
    uint64_t before; // what they reach. Entries with the sum `least` follow, by index, until the choice is reached
};

struct chooser {
    typedef cub::BlockScan<uint64_t, THREADS> scan;
    struct memory {
        typename scan::TempStorage scan;
        uint32_t bins[256];
        uint64_t before;
        int digit;
    };
    const mask_params &p;
    const uint32_t *list;
    const choice c;
    memory &m;
    uint64_t wanted; // share * total, in units of 2^-32

    __device__ bool reached(uint64_t x) const { // x: a sum of the largest entries, or their number
        return c.share ? x << 32 >= wanted : x >= (uint64_t)c.most;
    }
    __device__ uint64_t worth(uint32_t sum) const { return c.share ? sum : 1; }
    __device__ uint64_t total() {
        uint64_t x = 0, before, all;
        for (int i = threadIdx.x; i < p.length; i += THREADS) x += list[i];
        scan(m.scan).ExclusiveSum(x, before, all);
        return all;
    }
    // Finds the sum where the choice is reached, digit by digit from the highest: the sums of the entries with each digit tell
    // in which digit. least 0: it is not reached, so all positive entries are chosen. reached(0) must be false.
    __device__ list_cut cut() {
        list_cut x = {0, 0};
        for (int shift = 24; shift >= 0; shift -= 8) {
            __syncthreads(); // all threads have read m
            m.bins[threadIdx.x] = 0;
            if (threadIdx.x == 0) m.digit = -1;
            __syncthreads();
            for (int i = threadIdx.x; i < p.length; i += THREADS) {
                uint32_t sum = list[i];
                if (sum && (shift == 24 || sum >> (shift + 8) == x.least))
                    atomicAdd(&m.bins[sum >> shift & 255], (uint32_t)worth(sum));
            }
            __syncthreads();
            int digit = 255 - threadIdx.x;
            uint64_t own = m.bins[digit], before;
            scan(m.scan).ExclusiveSum(own, before);
            before += x.before;
            if (!reached(before) && reached(before + own)) m.digit = digit, m.before = before;
            __syncthreads();
            if (m.digit < 0) return {0, 0};
            x.least = x.least << 8 | m.digit, x.before = m.before;
        }
        return x;
    }
    // Calls f(i) for the chosen entries.
    template <typename F> __device__ void each(F f) {
        wanted = c.share ? c.share * total() : 0;
        if (reached(0)) return;
        list_cut x = cut();
        uint64_t n_equal = 0, before, all;
        for (int from = 0; from < p.length; from += THREADS) {
            int i = from + threadIdx.x;
            uint32_t sum = i < p.length ? list[i] : 0;
            bool equal = sum && sum == x.least;
            __syncthreads(); // the scan before has read m
            scan(m.scan).ExclusiveSum((uint64_t)equal, before, all);
            if (equal ? !reached(x.before + (n_equal + before) * worth(sum)) : sum > x.least) f(i);
            n_equal += all;
        }
    }
};

// Grid: [lists]. Without sums every block is chosen.
__global__ void __launch_bounds__(THREADS) choose_kernel(const __grid_constant__ mask_params p) {
    __shared__ chooser::memory memory;
    sl_start_next();
    sl_wait_previous();
    int list = blockIdx.x;
    bool lacks = __syncthreads_or(lacks_sums(p, list)), is_slash = list >= p.n_lists / 2;
    uint8_t *flags = p.flags + (size_t)list * p.sums.n_blocks;
    for (int j = threadIdx.x; j < p.sums.n_blocks; j += THREADS) flags[j] = lacks;
    __syncthreads(); // the flags are clear
    if (lacks) return;
    chooser x = {p, p.list + (size_t)list * p.length, is_slash ? p.how.slashes : p.how.columns, memory, 0};
    x.each([&](int i) { flag_entry(p, list, is_slash, i); });
}

// ---- the mask ----

// The methods that read scores.
struct chosen_blocks {
    mask_params p;
    __device__ bool has(int head, int query_block, int j) const {
        const row_sums_params &s = p.sums;
        int q = query_block - s.first_block;
        int chunk = (int)(((long long)(q + 1) * s.n_chunks - 1) / s.n_queries), task = chunk * s.n_heads + head;
        return p.flags[(size_t)task * s.n_blocks + j] || p.flags[(size_t)(p.n_lists / 2 + task) * s.n_blocks + query_block - j];
    }
};

struct near_blocks { // streaming
    int sink, window;
    __device__ bool has(int, int query_block, int j) const {
        int oldest = query_block * SL_MASK_BLOCK + 1 - window; // of the block's first query
        return j < (sink + SL_MASK_BLOCK - 1) / SL_MASK_BLOCK || j >= max(oldest, 0) / SL_MASK_BLOCK;
    }
};

// Writes the bits of every row: the sink, the diagonal, and the blocks that `blocks` has. Grid: [query blocks][heads].
template <typename B>
__global__ void __launch_bounds__(MERGE_THREADS)
    merge_kernel(const B blocks, uint64_t *bits, int n_words, int first_block, int n_queries) {
    int query_block = first_block + blockIdx.x, lane = threadIdx.x % 32;
    uint32_t *row = (uint32_t *)(bits + ((size_t)blockIdx.y * n_queries + blockIdx.x) * n_words);
    sl_start_next();
    sl_wait_previous();
    for (int half = threadIdx.x / 32; half < 2 * n_words; half += MERGE_THREADS / 32) {
        int j = half * 32 + lane;
        bool has = j <= query_block && (j == 0 || j == query_block || blocks.has(blockIdx.y, query_block, j));
        uint32_t word = __ballot_sync(~0u, has);
        if (lane == 0) row[half] = word;
    }
}

// ---- the report ----

// Finds the least share of a task's rows that the mask keeps, in units of 2^-24. Grid: [tasks][4].
__global__ void __launch_bounds__(SCALE_ROWS *SCALE_GROUPS) kept_kernel(const __grid_constant__ mask_params p) {
    __shared__ uint64_t totals[SCALE_GROUPS][SCALE_ROWS], parts[SCALE_GROUPS][SCALE_ROWS];
    sl_start_next();
    sl_wait_previous();
    int task = blockIdx.x, r = threadIdx.x % SCALE_ROWS, row = blockIdx.y * SCALE_ROWS + r, g = threadIdx.x / SCALE_ROWS;
    task_rows t = rows_of_task(p.sums, task);
    int diagonal = row < t.end ? (t.row0 + row) / SL_MASK_BLOCK : -1;
    const uint64_t *bits = p.bits + ((size_t)t.head * p.sums.n_queries + diagonal - p.sums.first_block) * p.n_words;
    uint64_t total = 0, kept = 0;
    for (int b = g; b <= diagonal; b += SCALE_GROUPS) {
        block_shares x = shares_of(p.sums, task, row, b);
        total += x.low + x.high;
        if (bits[b / 64] >> (b % 64) & 1) kept += x.low + x.high;
    }
    totals[g][r] = total, parts[g][r] = kept;
    __syncthreads();
    if (g > 0 || row >= t.end) return;
    for (int i = 1; i < SCALE_GROUPS; i++) total += totals[i][r], kept += parts[i][r];
    int least = total ? (int)((kept << SL_SHARE_BITS) / total) : SL_MASK_NOT_SAMPLED; // a row without sums has no shares
    atomicMax(&p.stats[t.head].unkept, (unsigned)((1 << SL_SHARE_BITS) + 1 - least));
}

// ---- host ----

// Sets the sizes of n heads, and takes their arrays.
void lay_out(arena &a, mask_params &p, int n_heads) {
    row_sums_params &s = p.sums;
    size_t n_tasks = (size_t)s.n_chunks * n_heads, n_kv = s.first + s.n_tokens;
    s.n_heads = n_heads;
    p.n_lists = (int)(2 * n_tasks);
    p.length = p.how.in_tokens ? (int)n_kv : s.n_blocks;
    s.n_tiles = 0;
    for (int chunk = 0; chunk < s.n_chunks; chunk++) s.n_tiles += n_heads * tiles_of(rows_of_task(s, chunk * n_heads));
    s.mass = a.take<uint64_t>(n_tasks * s.n_blocks * TASK_ROWS);
    s.scales = a.take<sl_row_scale>(n_tasks * TASK_ROWS);
    p.list = a.take<uint32_t>((size_t)p.n_lists * p.length);
    p.flags = a.take<uint8_t>((size_t)p.n_lists * s.n_blocks);
    if (!p.how.in_tokens) return;
    s.column = p.list, s.offset = p.list + n_tasks * n_kv;
    sl_mass_octave(s.octave);
}

shape shape_of(const sl_attn_spec *spec, int n_queries) {
    shape how = {.n_chunks = 1, .most_rows = TASK_ROWS, .in_tokens = false, .columns = {}, .slashes = {}};
    if (sl_attn_has(spec, "columns")) { // vertical-slash
        how.most_rows = 64, how.in_tokens = true;
        how.columns.most = (int)sl_attn_get(spec, "columns"), how.slashes.most = (int)sl_attn_get(spec, "slashes");
    } else { // sample
        how.n_chunks = min((int)sl_attn_get(spec, "chunk_n"), n_queries);
        how.columns.share = sl_share_of(sl_attn_get(spec, "alpha_c"));
        how.slashes.share = sl_share_of(sl_attn_get(spec, "alpha_s"));
    }
    return how;
}

mask_params params_of(const sl_attn_geom *g, const sl_attn_spec *spec, int n_tokens, int first) {
    mask_params p = {};
    sl_prefill_mask m = sl_mask_of(g->n_heads, n_tokens, first + n_tokens);
    p.how = shape_of(spec, m.n);
    p.n_words = m.n_words;
    p.sums.n_tokens = n_tokens, p.sums.first = first, p.sums.n_blocks = m.first + m.n;
    p.sums.first_block = m.first, p.sums.n_queries = m.n;
    p.sums.n_chunks = p.how.n_chunks, p.sums.most_rows = p.how.most_rows;
    p.sums.group = g->n_heads / g->n_kv_heads, p.sums.n_kv_heads = g->n_kv_heads;
    p.sums.scale = sl_score_scale(g->head_dim);
    return p;
}

// Bytes of n heads.
size_t scratch_size(mask_params &p, int n_heads) {
    arena a = {NULL};
    lay_out(a, p, n_heads);
    return bytes_taken(a, NULL);
}

int heads_of_launch(mask_params &p, int n_heads) {
    while (n_heads > 1 && scratch_size(p, n_heads) > MOST_SCRATCH) n_heads = (n_heads + 1) / 2;
    return n_heads;
}

size_t mask_workspace(const sl_attn_geom *g, const sl_attn_spec *spec, int n_tokens, int n_kv) {
    // One block more, because a segment may begin and end inside a block. A shorter segment takes more heads at once.
    mask_params p = params_of(g, spec, n_tokens + SL_MASK_BLOCK, n_kv - n_tokens);
    return max(scratch_size(p, 1), min(scratch_size(p, g->n_heads), MOST_SCRATCH));
}

template <int D> void launch_masses(const row_sums_params &p, cudaStream_t stream) {
    dim3 grid(min(2 * sl_multiprocessors(), p.n_tiles)); // two thread blocks fit on a multiprocessor
    sl_launch(row_masses_kernel<D>, grid, dim3(SUM_THREADS), sum_shared_bytes<D>, stream, p);
    sl_launch(row_scales_kernel, dim3(p.n_chunks * p.n_heads, TASK_ROWS / SCALE_ROWS), dim3(SCALE_ROWS * SCALE_GROUPS), 0,
              stream, p);
    if (p.column) sl_launch(row_lines_kernel<D>, grid, dim3(SUM_THREADS), sum_shared_bytes<D>, stream, p);
}

void launch_heads(const sl_attn_cuda_mask_args *a, mask_params &p) {
    row_sums_params &s = p.sums;
    SL_WITH_HEAD_DIM(a->geom->head_dim, launch_masses, s, a->stream);
    if (!p.how.in_tokens)
        sl_launch(list_block_sums_kernel, dim3((p.length + WARPS - 1) / WARPS, p.n_lists), dim3(THREADS), 0, a->stream, p);
    sl_launch(choose_kernel, dim3(p.n_lists), dim3(THREADS), 0, a->stream, p);
    sl_launch(merge_kernel<chosen_blocks>, dim3(s.n_queries, s.n_heads), dim3(MERGE_THREADS), 0, a->stream, chosen_blocks{p},
              p.bits, p.n_words, s.first_block, s.n_queries);
    if (p.stats)
        sl_launch(kept_kernel, dim3(s.n_chunks * s.n_heads, TASK_ROWS / SCALE_ROWS), dim3(SCALE_ROWS * SCALE_GROUPS), 0,
                  a->stream, p);
}

void make_mask(const sl_attn_cuda_mask_args *a) {
    mask_params p = params_of(a->geom, a->spec, a->n_tokens, a->first);
    int most = heads_of_launch(p, a->geom->n_heads);
    for (int head = 0; head < a->geom->n_heads; head += most) {
        arena memory = {(char *)a->ws};
        lay_out(memory, p, min(most, a->geom->n_heads - head));
        p.sums.q = a->q, p.sums.q_stride = a->q_stride, p.sums.k = a->k, p.sums.pages = a->pages;
        p.sums.first_head = head;
        p.bits = a->mask->bits + (size_t)head * a->mask->n * a->mask->n_words;
        p.stats = a->stats ? a->stats + head : NULL;
        launch_heads(a, p);
    }
}

} // namespace

void sl_cuda_streaming_mask(const sl_attn_cuda_mask_args *a) {
    const sl_prefill_mask *m = a->mask;
    near_blocks blocks = {(int)sl_attn_get(a->spec, "sink"), (int)sl_attn_get(a->spec, "window")};
    sl_launch(merge_kernel<near_blocks>, dim3(m->n, m->n_heads), dim3(MERGE_THREADS), 0, a->stream, blocks, m->bits, m->n_words,
              m->first, m->n);
}

const sl_attn_cuda_ops sl_prefill_mask_cuda_ops = {.workspace = NULL,
                                                   .decode = NULL,
                                                   .needs = NULL,
                                                   .state = NULL,
                                                   .max_rows = 0,
                                                   .account = NULL,
                                                   .prefill = NULL,
                                                   .supports = NULL,
                                                   .mask = make_mask,
                                                   .mask_workspace = mask_workspace,
                                                   .offloaded = NULL,
                                                   .bytes = NULL};
