// attention/cuda/prefill_masks.cu - masks for prefill on the GPU: sample, vertical-slash, xattention, streaming. They are those
// of attention/prefill/ on the CPU, bit by bit, where the bf16 scores are equal. The host reads nothing.
//
// | step               | kernel                                  | makes                                            |
// |--------------------|-----------------------------------------|--------------------------------------------------|
// | sums               | row_sums.cuh, three kernels             | integer sums of shares                           |
// | lists              | list_block_sums_kernel, list_sums_kernel| (sum, index) of columns and slashes, or of pairs |
// | sort               | cub::DeviceSegmentedRadixSort           | each list by sum descending, index ascending     |
// | choice             | choose_kernel                           | flags of the chosen key blocks and distances     |
// | mask               | merge_kernel                            | the bits                                         |
// | report             | kept_kernel                             | the least kept share of a sampled row            |
//
// A launch has as many heads as fit in MOST_SCRATCH bytes, at least one.
#include "attention/cuda/head_dim.cuh"
#include "attention/cuda/row_sums.cuh"
#include "attention/cuda/workspace.cuh"
#include "attention/prefill/row_sums.h"

#include <cub/block/block_scan.cuh>
#include <cub/device/device_segmented_radix_sort.cuh>

namespace {

enum { THREADS = 256, WARPS = THREADS / 32, MERGE_THREADS = 128 };
const size_t MOST_SCRATCH = (size_t)256 << 20;

// How a list is cut.
struct choice {
    uint64_t share; // > 0: the fewest entries whose sums reach this share of the total, in units of 2^-32
    int most;       // share 0: the first entries with a positive sum, at most this number
};

// What a method does.
struct shape {
    int stride;              // row_sums.h
    int n_chunks;            // tasks of a head
    int most_rows;           // sampled rows of a task with stride 1
    bool in_tokens;          // lists have sums of keys and offsets; otherwise of key blocks
    choice columns, slashes; // stride > 1: columns only, and a list for each query block
};

struct mask_params {
    row_sums_params sums;
    shape how;
    int n_words;         // of a row of the mask
    int length, n_lists; // entries of a list. Stride 1: columns of all tasks, then slashes of all tasks. Else: query blocks
    uint64_t *entries;   // [n_lists][length] sum << 32 | index
    uint64_t *sorted;    // [n_lists][length]
    int *offsets;        // [n_lists + 1]
    uint8_t *flags;      // [n_lists][n_blocks] 1: the key block, or the distance of the key block, is chosen
    uint64_t *bits;      // [n_heads][n_queries][n_words]
    sl_attn_cuda_prefill_stats *stats; // [n_heads]; NULL: not wanted
    void *temporary;                   // of the sort
    size_t temporary_size;
};

// Clears the marks of scores without sums. Grid: [n / 256].
__global__ void __launch_bounds__(THREADS) clear_kernel(int *bad, int n) {
    int i = blockIdx.x * THREADS + threadIdx.x;
    sl_start_next();
    sl_wait_previous();
    if (i < n) bad[i] = 0;
}

// ---- lists ----

__device__ void put_entry(const mask_params &p, int list, int i, uint32_t sum) {
    p.entries[(size_t)list * p.length + i] = (uint64_t)sum << 32 | (uint32_t)i;
    if (i < p.sums.n_blocks) p.flags[(size_t)list * p.sums.n_blocks + i] = 0;
    if (i == 0) p.offsets[list] = list * p.length;
    if (i == 0 && list == p.n_lists - 1) p.offsets[p.n_lists] = p.n_lists * p.length;
}

// Sums of key blocks and of 128 offsets. Grid: [entries / 8][lists]. A warp per entry.
__global__ void __launch_bounds__(THREADS) list_block_sums_kernel(const mask_params p) {
    int i = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32, n_kv = p.sums.first + p.sums.n_tokens;
    sl_start_next();
    sl_wait_previous();
    if (i >= p.length) return;
    int n_tasks = p.n_lists / 2, task = blockIdx.y % n_tasks;
    bool is_slash = (int)blockIdx.y >= n_tasks;
    task_rows t = rows_of_task(p.sums, task, 1);
    uint32_t sum = 0;
    for (int x = lane; x < SL_MASK_BLOCK; x += 32) {
        int offset = i * SL_MASK_BLOCK + x;
        if (is_slash && offset < n_kv)
            sum += p.sums.slash[(size_t)task * n_kv + offset];
        else if (!is_slash && i < key_blocks_of(t, 1))
            sum += p.sums.block[((size_t)task * p.sums.n_blocks + i) * TASK_ROWS + x];
    }
    sum = __reduce_add_sync(~0u, sum);
    if (lane == 0) put_entry(p, blockIdx.y, i, sum);
}

// Sums of keys and of offsets, or of the pairs of a query block. Grid: [entries / 256][lists].
__global__ void __launch_bounds__(THREADS) list_sums_kernel(const mask_params p) {
    int i = blockIdx.x * THREADS + threadIdx.x, list = blockIdx.y, n_kv = p.sums.first + p.sums.n_tokens;
    sl_start_next();
    sl_wait_previous();
    if (i >= p.length) return;
    uint32_t sum = 0;
    if (p.how.stride > 1) {
        int query_block = p.sums.first_block + list % p.sums.n_queries;
        if (i <= query_block) sum = p.sums.pair[(size_t)list * p.sums.n_blocks + i];
    } else {
        int n_tasks = p.n_lists / 2, task = list % n_tasks;
        task_rows t = rows_of_task(p.sums, task, 1);
        const uint32_t *from = list < n_tasks ? p.sums.column : p.sums.slash;
        if (i < t.row0 + t.end) sum = from[(size_t)task * n_kv + i];
    }
    put_entry(p, list, i, sum);
}

// ---- choice ----

__device__ void flag_entry(const mask_params &p, int list, bool is_slash, int index) {
    uint8_t *flags = p.flags + (size_t)list * p.sums.n_blocks;
    int block = p.how.in_tokens ? index / SL_MASK_BLOCK : index;
    flags[block] = 1;
    // The offsets of a slash block, and an offset inside a block, cross the next key block too.
    if (is_slash && (!p.how.in_tokens || index % SL_MASK_BLOCK) && block + 1 < p.sums.n_blocks) flags[block + 1] = 1;
}

// Grid: [lists]. An entry is chosen by the sum of the entries before it.
__global__ void __launch_bounds__(THREADS) choose_kernel(const mask_params p) {
    typedef cub::BlockScan<uint64_t, THREADS> scan;
    __shared__ typename scan::TempStorage memory;
    sl_start_next();
    sl_wait_previous();
    int list = blockIdx.x;
    bool is_slash = p.how.stride == 1 && list >= p.n_lists / 2;
    choice c = is_slash ? p.how.slashes : p.how.columns;
    const uint64_t *sorted = p.sorted + (size_t)list * p.length;
    uint64_t total = 0, before = 0, sum, part;
    for (int from = 0; from < p.length; from += THREADS) {
        uint64_t x = from + (int)threadIdx.x < p.length ? sorted[from + threadIdx.x] >> 32 : 0;
        total += x;
    }
    scan(memory).InclusiveSum(total, sum, part); // part: of all threads
    total = part;
    for (int from = 0; from < p.length; from += THREADS) {
        int i = from + threadIdx.x;
        uint64_t entry = i < p.length ? sorted[i] : 0;
        __syncthreads(); // the scan before has read `memory`
        scan(memory).ExclusiveSum(entry >> 32, sum, part);
        bool chosen = c.most ? i < c.most && entry >> 32 : (before + sum) << 32 < c.share * total;
        if (i < p.length && chosen) flag_entry(p, list, is_slash, (int)(uint32_t)entry);
        before += part;
    }
}

// ---- the mask ----

// The methods that read scores.
struct chosen_blocks {
    mask_params p;
    __device__ bool has(int head, int query_block, int j) const {
        const row_sums_params &s = p.sums;
        int q = query_block - s.first_block;
        if (p.how.stride > 1) {
            int list = head * s.n_queries + q;
            return s.bad[list] || p.flags[(size_t)list * s.n_blocks + j];
        }
        int chunk = (int)(((long long)(q + 1) * s.n_chunks - 1) / s.n_queries), task = chunk * s.n_heads + head;
        return s.bad[task] || p.flags[(size_t)task * s.n_blocks + j] ||
               p.flags[(size_t)(p.n_lists / 2 + task) * s.n_blocks + query_block - j];
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

// Finds the least share of a task's rows that the mask keeps, in units of 2^-24. Grid: [tasks].
__global__ void __launch_bounds__(TASK_ROWS *SCALE_GROUPS) kept_kernel(const mask_params p) {
    __shared__ uint64_t sums[SCALE_GROUPS][TASK_ROWS], parts[SCALE_GROUPS][TASK_ROWS];
    sl_start_next();
    sl_wait_previous();
    int task = blockIdx.x, row = threadIdx.x % TASK_ROWS, g = threadIdx.x / TASK_ROWS;
    task_rows t = rows_of_task(p.sums, task, 1);
    int diagonal = row < t.end ? (t.row0 + row) / SL_MASK_BLOCK : -1;
    const uint32_t *block = p.sums.block + (size_t)task * p.sums.n_blocks * TASK_ROWS + row;
    uint64_t total = 0, kept = 0;
    for (int b = g; b <= diagonal; b += SCALE_GROUPS) {
        const uint64_t *bits = p.bits + ((size_t)t.head * p.sums.n_queries + diagonal - p.sums.first_block) * p.n_words;
        uint32_t share = block[(size_t)b * TASK_ROWS];
        total += share;
        if (bits[b / 64] >> (b % 64) & 1) kept += share;
    }
    sums[g][row] = total, parts[g][row] = kept;
    __syncthreads();
    if (g > 0 || row >= t.end) return;
    for (int i = 1; i < SCALE_GROUPS; i++) total += sums[i][row], kept += parts[i][row];
    bool bad = p.sums.bad[task];
    int least = bad ? SL_MASK_NOT_SAMPLED : total ? (int)((kept << SL_SHARE_BITS) / total) : 1 << SL_SHARE_BITS;
    atomicMax(&p.stats[t.head].unkept, (unsigned)((1 << SL_SHARE_BITS) + 1 - least));
}

// ---- host ----

cudaError_t sort(const mask_params &p, void *temporary, size_t *bytes, cudaStream_t stream) {
    return cub::DeviceSegmentedRadixSort::SortKeysDescending(temporary, *bytes, (const uint64_t *)p.entries, p.sorted,
                                                             (long long)p.n_lists * p.length, p.n_lists, p.offsets,
                                                             p.offsets + 1, 32, 64, stream);
}

// Sets the sizes of n heads, and takes their arrays.
void lay_out(arena &a, mask_params &p, int n_heads) {
    row_sums_params &s = p.sums;
    size_t n_tasks = (size_t)s.n_chunks * n_heads, n_queries = (size_t)n_heads * s.n_queries, n_kv = s.first + s.n_tokens;
    bool with_rows = p.how.stride == 1;
    s.n_heads = n_heads;
    p.n_lists = (int)(with_rows ? 2 * n_tasks : n_queries);
    p.length = p.how.in_tokens ? (int)n_kv : s.n_blocks;
    s.mass = a.take<uint64_t>(n_tasks * s.n_blocks * TASK_ROWS);
    s.ref = a.take<int16_t>(n_tasks * s.n_blocks * TASK_ROWS);
    s.scales = a.take<row_scale>(n_tasks * TASK_ROWS);
    s.bad = a.take<int>(with_rows ? n_tasks : n_queries);
    s.block = with_rows ? a.take<uint32_t>(n_tasks * s.n_blocks * TASK_ROWS) : NULL;
    s.column = with_rows && p.how.in_tokens ? a.take<uint32_t>(n_tasks * n_kv) : NULL;
    s.slash = with_rows ? a.take<uint32_t>(n_tasks * n_kv) : NULL;
    s.pair = with_rows ? NULL : a.take<uint32_t>(n_queries * s.n_blocks);
    p.entries = a.take<uint64_t>((size_t)p.n_lists * p.length);
    p.sorted = a.take<uint64_t>((size_t)p.n_lists * p.length);
    p.offsets = a.take<int>(p.n_lists + 1);
    p.flags = a.take<uint8_t>((size_t)p.n_lists * s.n_blocks);
    p.temporary_size = 0;
    sort(p, NULL, &p.temporary_size, 0);
    p.temporary = a.take<char>(p.temporary_size);
}

shape shape_of(const sl_attn_spec *spec, int n_queries) {
    shape how = {.stride = 1, .n_chunks = 1, .most_rows = TASK_ROWS, .in_tokens = false, .columns = {}, .slashes = {}};
    if (sl_attn_has(spec, "stride")) { // xattention
        how.stride = sl_attn_get(spec, "stride") > 0 ? 16 : 8, how.n_chunks = (n_queries + how.stride - 1) / how.stride;
        how.columns.share = sl_share_of(sl_attn_get(spec, "threshold"));
    } else if (sl_attn_has(spec, "columns")) { // vertical-slash
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
    p.sums.scale = sl_score_scale(g->head_dim) / (float)p.how.stride;
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

template <int D, int STRIDE> void launch_sums(const row_sums_params &p, cudaStream_t stream) {
    enum { TILES = 8 }; // of a thread block
    int n_tasks = p.n_chunks * p.n_heads, n_tiles = (p.n_blocks + STRIDE - 1) / STRIDE;
    dim3 grid((n_tiles + TILES - 1) / TILES, n_tasks);
    sl_launch(row_masses_kernel<D, STRIDE>, grid, dim3(SUM_THREADS), sum_shared_bytes<D>, stream, p);
    sl_launch(row_scales_kernel<STRIDE>, dim3(n_tasks), dim3(TASK_ROWS * SCALE_GROUPS), 0, stream, p);
    sl_launch(row_shares_kernel<D, STRIDE>, grid, dim3(SUM_THREADS), sum_shared_bytes<D>, stream, p);
}

template <int D> void launch_strided_sums(const mask_params &p, cudaStream_t stream) {
    if (p.how.stride == 1)
        launch_sums<D, 1>(p.sums, stream);
    else if (p.how.stride == 8)
        launch_sums<D, 8>(p.sums, stream);
    else
        launch_sums<D, 16>(p.sums, stream);
}

void launch_heads(const sl_attn_cuda_mask_args *a, mask_params &p) {
    row_sums_params &s = p.sums;
    int n_bad = s.n_heads * (p.how.stride == 1 ? s.n_chunks : s.n_queries);
    sl_launch(clear_kernel, dim3((n_bad + THREADS - 1) / THREADS), dim3(THREADS), 0, a->stream, s.bad, n_bad);
    SL_WITH_HEAD_DIM(a->geom->head_dim, launch_strided_sums, p, a->stream);
    if (p.how.stride == 1 && !p.how.in_tokens)
        sl_launch(list_block_sums_kernel, dim3((p.length + WARPS - 1) / WARPS, p.n_lists), dim3(THREADS), 0, a->stream, p);
    else
        sl_launch(list_sums_kernel, dim3((p.length + THREADS - 1) / THREADS, p.n_lists), dim3(THREADS), 0, a->stream, p);
    sort(p, p.temporary, &p.temporary_size, a->stream); // a failure stays CUDA's last error
    sl_launch(choose_kernel, dim3(p.n_lists), dim3(THREADS), 0, a->stream, p);
    sl_launch(merge_kernel<chosen_blocks>, dim3(s.n_queries, s.n_heads), dim3(MERGE_THREADS), 0, a->stream, chosen_blocks{p},
              p.bits, p.n_words, s.first_block, s.n_queries);
    if (p.stats && p.how.stride == 1)
        sl_launch(kept_kernel, dim3(s.n_chunks * s.n_heads), dim3(TASK_ROWS * SCALE_GROUPS), 0, a->stream, p);
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
                                                   .mask_workspace = mask_workspace};
