// attention/cuda/buckets/bucket_visit.cu - which buckets of keys a KV head visits, and the list of their rows, on CUDA. The
// CPU's propose_buckets.c states what is computed. bucket_scores.cu computes the scores.
//
// One kernel chooses and lists. Several thread blocks serve a KV head. Each of them chooses the buckets again, which takes less
// time than a kernel that waits for the choice of another one, and lists the rows of its own sections. A section is a full span
// of 4,096 positions, and the last section has the pages after the last full span. A section has its own memory, so thread
// blocks do not wait for each other. Rows of the sink and of the window are not listed.
//
// Before it waits for the scores, a thread block finds the lists of its spans and loads their offsets into the L2 cache.
//
// For saap-is it also counts the rows that may be drawn (bucket_draws.cu): those of a cell, or those of a page in a section
// without cells. Rows of a cell are the rows of its buckets less those of visited buckets. In a span that the sink or the
// window cuts, every row of the pages is looked at.
//
// Scores are fp32 sums in another order than the CPU's. So a bucket can be visited on one device only, where its score differs
// from the last visited score by less than the rounding of both.
#include "attention/cuda/buckets/bucket_step.cuh"

namespace {

enum {
    VISIT_THREADS = 512,
    VISIT_WARPS = VISIT_THREADS / 32,
    FEW_BUCKETS = 2 * VISIT_THREADS, // up to which a thread has two buckets
    LIST_AHEAD = 8,                  // rows that a lane loads together
    LIMITS = 3,                      // that a round of find_limit tries
};

// ---- the choice ----

struct visit_space {
    alignas(16) float heads[GROUP_MAX][VISIT_WARPS]; // of a query head and warp: the largest logit, then the sum of e^logit
    alignas(16) int below[2][LIMITS][VISIT_WARPS];   // of a limit and warp: keys below the limit
    uint32_t visited[VISIT_WORDS], equal[VISIT_WORDS];
    uint16_t ids[SL_BUCKETS_MOST];           // the visited buckets, ascending
    int slots[SECTIONS_MOST];                // of the lists of the thread block's sections; -1: no lists
    bool has_cells[SECTIONS_MOST];           // of the thread block's sections
    int page_count[VISIT_WARPS];             // listed rows of a page, or rows that may be drawn
    int cells[VISIT_WARPS][SL_BUCKET_CELLS]; // rows of a warp's section that may be drawn
};

// Combines the warps' numbers of a query head in the order of the warps.
__device__ float max_of_warps(const float *x) {
    float most = -INFINITY;
#pragma unroll
    for (int w = 0; w < VISIT_WARPS; w++) most = fmaxf(most, x[w]);
    return most;
}
__device__ float sum_of_warps(const float *x) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < VISIT_WARPS; w++) sum += x[w];
    return sum;
}

// score[i]: of bucket threadIdx.x + 512 i, the sum over the group's queries of softmax(logits). Buckets from C on: any number.
template <int EACH>
__device__ void add_probabilities(const bucket_step &p, visit_space *s, size_t seq_head, float score[EACH]) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float x[GROUP_MAX][EACH];
#pragma unroll
    for (int g = 0; g < GROUP_MAX; g++)
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int c = threadIdx.x + i * VISIT_THREADS;
            x[g][i] = g < p.group && c < p.C ? __ldcg(p.logits + (seq_head * p.group + g) * p.C + c) : -INFINITY;
        }
#pragma unroll
    for (int g = 0; g < GROUP_MAX; g++) {
        if (g >= p.group) break;
        float most = -INFINITY;
#pragma unroll
        for (int i = 0; i < EACH; i++) most = fmaxf(most, x[g][i]);
        most = sl_max_lanes(most);
        if (lane == 0) s->heads[g][warp] = most;
    }
    __syncthreads();
#pragma unroll
    for (int g = 0; g < GROUP_MAX; g++) {
        if (g >= p.group) break;
        float most = max_of_warps(s->heads[g]);
#pragma unroll
        for (int i = 0; i < EACH; i++) x[g][i] = threadIdx.x + i * VISIT_THREADS < p.C ? expf(x[g][i] - most) : 0;
    }
    __syncthreads(); // all threads have read the maxima
#pragma unroll
    for (int g = 0; g < GROUP_MAX; g++) {
        if (g >= p.group) break;
        float sum = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++) sum += x[g][i];
        sum = sl_sum_lanes(sum);
        if (lane == 0) s->heads[g][warp] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; i++) score[i] = 0;
#pragma unroll
    for (int g = 0; g < GROUP_MAX; g++) {
        if (g >= p.group) break;
        float sum = sum_of_warps(s->heads[g]);
#pragma unroll
        for (int i = 0; i < EACH; i++) score[i] += __fdiv_rn(x[g][i], sum);
    }
}

// Smaller keys are visited first: the order of propose_buckets.c.
__device__ uint32_t key_of(float score) {
    uint32_t bits = __float_as_uint(score);
    return isnan(score) ? ~0u : ~(bits >> 31 ? ~bits : bits | 0x80000000u);
}

// The largest limit with at most l keys below it, two bits in a round: the l-th smallest key, or a larger one if exactly l keys
// are below it. Ends early at a limit with exactly l keys below it. *n_below: the keys below the limit. Rounds take turns with
// two arrays of counts, so a round needs one barrier: when a thread writes an array again, it has passed the barrier of the
// round between, and every thread has read the array before that barrier.
template <int EACH> __device__ uint32_t find_limit(visit_space *s, const uint32_t key[EACH], int C, int l, int *n_below) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t limit = 0;
    *n_below = 0;
    for (int bit = 30; bit >= 0 && *n_below < l; bit -= 2) {
        int(*below)[VISIT_WARPS] = s->below[bit / 2 % 2];
        uint32_t first = limit;
#pragma unroll
        for (uint32_t j = 0; j < LIMITS; j++) {
            int n = 0;
#pragma unroll
            for (int i = 0; i < EACH; i++) n += (int)threadIdx.x + i * VISIT_THREADS < C && key[i] < first + ((j + 1) << bit);
            n = __reduce_add_sync(~0u, n);
            if (lane == 0) below[j][warp] = n;
        }
        __syncthreads();
#pragma unroll
        for (uint32_t j = 0; j < LIMITS; j++) {
            int n = 0;
#pragma unroll
            for (int w = 0; w < VISIT_WARPS; w++) n += below[j][w];
            if (n <= l) limit = first + ((j + 1) << bit), *n_below = n;
        }
    }
    return limit;
}

// Marks the l buckets of largest score, the lower bucket among equals, and lists them.
template <int EACH> __device__ void choose_buckets(const bucket_step &p, visit_space *s, size_t seq_head) {
    int C = p.C, lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_words = ceil_div(C, 32), n_below;
    float score[EACH];
    uint32_t key[EACH];
    if (p.w1)
        add_probabilities<EACH>(p, s, seq_head, score);
    else
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int c = threadIdx.x + i * VISIT_THREADS;
            score[i] = c < C ? __ldcg(p.score + seq_head * C + c) : 0;
        }
#pragma unroll
    for (int i = 0; i < EACH; i++) key[i] = key_of(score[i]);
    uint32_t limit = find_limit<EACH>(s, key, C, p.l, &n_below);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int word = warp + i * VISIT_WARPS;
        bool exists = (int)threadIdx.x + i * VISIT_THREADS < C;
        uint32_t below = __ballot_sync(~0u, exists && key[i] < limit), equal = __ballot_sync(~0u, exists && key[i] == limit);
        if (lane == 0 && word < n_words) s->visited[word] = below, s->equal[word] = equal;
    }
    __syncthreads();
    if (warp == 0) {
        int n_equal = 0, n_listed = 0, wanted = p.l - n_below;
        for (int first = 0; first < n_words; first += 32) {
            int w = first + lane;
            uint32_t taken = w < n_words ? s->visited[w] : 0, equal = w < n_words ? s->equal[w] : 0;
            int own = __popc(equal), before = n_equal + sl_scan_lanes(own, lane) - own;
            n_equal = __shfl_sync(~0u, before + own, 31);
            for (; equal && before < wanted; before++, equal &= equal - 1) taken |= equal & -equal;
            if (w < n_words) s->visited[w] = taken;
            if (w < n_words && blockIdx.x == 0) p.visited[seq_head * VISIT_WORDS + w] = taken;
            own = __popc(taken);
            int at = n_listed + sl_scan_lanes(own, lane) - own;
            n_listed = __shfl_sync(~0u, at + own, 31);
            for (; taken; taken &= taken - 1) s->ids[at++] = (uint16_t)(32 * w + __ffs(taken) - 1);
        }
    }
    __syncthreads();
}

// ---- the list of rows ----

// Finds the lists of the thread block's sections, and loads their offsets into the L2 cache.
template <bool DRAWS>
__device__ void find_lists(const bucket_step &p, visit_space *s, const visit_range &r, const sl_row &row, int seq_head) {
    int n_own = 0;
    for (int section = blockIdx.x; section < r.n_sections; section += gridDim.x) n_own++;
    for (int i = threadIdx.x; i < n_own; i += VISIT_THREADS) {
        int section = blockIdx.x + i * gridDim.x;
        s->slots[i] = slot_of(p, r, row, section);
        if (DRAWS) s->has_cells[i] = s->slots[i] >= 0 && cell_slot_of(p, r, row, section) >= 0;
    }
    __syncthreads();
    int lines = ceil_div((p.C + 1) * (int)sizeof(uint16_t), 128);
    for (int i = threadIdx.x; i < n_own * lines; i += VISIT_THREADS) {
        const sl_bucket_lists *lists = lists_of(p, seq_head, s->slots[i / lines]);
        if (lists) asm volatile("prefetch.global.L2 [%0];" ::"l"((const char *)lists->first + i % lines * 128));
    }
}

// Lists the rows of visited buckets of a span, by one warp. A lane finds the run of a bucket, and then the lanes share the
// rows. A lane loads LIST_AHEAD rows before it stores the first one: a load after a store would wait for the load before it,
// because the compiler cannot know that both arrays are distinct. *n_read: rows of the lane's runs.
__device__ int list_span(const bucket_step &p, const visit_space *s, const visit_range &r, const sl_row &row, int seq_head,
                         const sl_bucket_lists *lists, int section, int32_t *to, int *n_read) {
    int n = 0, lane = threadIdx.x % 32, base = section * SL_BUCKET_SPAN_ROWS;
    int page = lane < SL_BUCKET_SPAN ? pool_page(p, row, seq_head, section * SL_BUCKET_SPAN + lane) : 0;
    for (int first = 0; first < p.l; first += 32) {
        int own = 0, from = 0;
        if (first + lane < p.l) {
            int c = s->ids[first + lane];
            from = lists->first[c], own = lists->first[c + 1] - from;
            const uint16_t *rows = lists->row + from;
            *n_read += own;
            own = trim_run(r, base, &rows, own);
            from = (int)(rows - lists->row);
        }
        int end = sl_scan_lanes(own, lane), at = end - own, all = __shfl_sync(~0u, end, 31);
        for (int first_row = 0; first_row < all; first_row += 32 * LIST_AHEAD) { // every lane takes part in the search
            int k[LIST_AHEAD];
#pragma unroll
            for (int j = 0; j < LIST_AHEAD; j++) {
                int i = first_row + 32 * j + lane, run = 0; // run: the last run that begins at i or before
                for (int step = 16; step > 0; step /= 2)
                    if (__shfl_sync(~0u, at, run + step) <= i) run += step;
                int own_row = __shfl_sync(~0u, from - at, run) + i;
                k[j] = i < all ? __ldcg(lists->row + own_row) : 0;
            }
#pragma unroll
            for (int j = 0; j < LIST_AHEAD; j++) {
                int i = first_row + 32 * j + lane, pool = __shfl_sync(~0u, page, k[j] / SL_PAGE);
                if (i < all) to[n + i] = pool + k[j] % SL_PAGE;
            }
        }
        n += all;
    }
    return n;
}

// Eight of the sorted rows of a page, which a lane has.
struct page_part {
    int pool;         // first pool row of the page
    uint32_t visited; // bit i: row i lies between sink and window in a visited bucket
    uint32_t others;  // bit i: it lies there in another bucket
    uint4 buckets;    // two in each number
    uint2 rows;       // four in each number

    __device__ int bucket(int i) const {
        const uint32_t pairs[4] = {buckets.x, buckets.y, buckets.z, buckets.w};
        return pairs[i / 2] >> i % 2 * 16 & 0xffff;
    }
    __device__ int row(int i) const { return (i < 4 ? rows.x : rows.y) >> i % 4 * 8 & 255; }
};

// Loads rows 8 lane .. 8 lane + 7 of a page. No rows if the page is not before `end`.
__device__ page_part load_page_part(const bucket_step &p, const visit_space *s, const visit_range &r, const sl_row &row,
                                    int seq_head, int page, int end) {
    page_part part = {0, 0, 0, make_uint4(0, 0, 0, 0), make_uint2(0, 0)};
    int lane = threadIdx.x % 32;
    if (page >= end) return part;
    const sl_bucket_rows *rows = bucket_rows_of(p, row, seq_head, page);
    part.buckets = *(const uint4 *)(rows->bucket + 8 * lane), part.rows = *(const uint2 *)(rows->row + 8 * lane);
    part.pool = pool_page(p, row, seq_head, page);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int bucket = part.bucket(i), position = page * SL_PAGE + part.row(i);
        if (position < r.sink || position >= r.window) continue;
        if (s->visited[bucket / 32] >> bucket % 32 & 1)
            part.visited |= 1u << i;
        else
            part.others |= 1u << i;
    }
    return part;
}

// Adds up the pages' numbers of rows, by the thread block: *before of the pages before the warp's page. Returns the sum.
__device__ int sum_pages(visit_space *s, int own, int *before) {
    int warp = threadIdx.x / 32, all = 0;
    *before = 0;
    if (threadIdx.x % 32 == 31) s->page_count[warp] = own;
    __syncthreads();
    for (int w = 0; w < VISIT_WARPS; w++) {
        if (w < warp) *before += s->page_count[w];
        all += s->page_count[w];
    }
    return all;
}

// Lists the rows of visited buckets of pages [first, end), at most 16, by the thread block. A warp has a page.
__device__ int list_pages(const bucket_step &p, visit_space *s, const visit_range &r, const sl_row &row, int seq_head,
                          int first, int end, int32_t *to) {
    int lane = threadIdx.x % 32, before;
    page_part part = load_page_part(p, s, r, row, seq_head, first + threadIdx.x / 32, end);
    int at = sl_scan_lanes(__popc(part.visited), lane), all = sum_pages(s, at, &before);
    at += before - __popc(part.visited);
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (part.visited >> i & 1) to[at++] = part.pool + part.row(i);
    __syncthreads(); // before page_count changes
    return all;
}
static_assert((int)VISIT_WARPS == (int)SL_BUCKET_SPAN && sizeof(sl_bucket_rows) % 16 == 0, "a warp for each page");

// Counts what one thread read. rows: rows of K and V.
__device__ void count_read(const bucket_step &p, uint64_t rows, uint64_t bytes) {
    atomicAdd(&p.stats->k_rows, (unsigned long long)rows);
    atomicAdd(&p.stats->v_distinct, (unsigned long long)rows);
    atomicAdd(&p.stats->v_rows, (unsigned long long)rows * p.group);
    atomicAdd(&p.stats->samples, (unsigned long long)rows * p.group);
    atomicAdd(&p.stats->bytes, (unsigned long long)(bytes + 2 * rows * p.head_dim * sizeof(bf16)));
}

// Bytes of the numbers that score the buckets of a KV head.
__device__ uint64_t score_bytes(const bucket_step &p) {
    uint64_t C = p.C, W = p.W, d = p.head_dim;
    return p.w1 ? (W * d + C * W) * sizeof(bf16) + (W + C) * sizeof(float) : C * d * sizeof(bf16);
}

// ---- rows that may be drawn ----

// Counts the rows of the cells of a span that neither sink nor window cuts, by one warp.
__device__ void count_cells(const bucket_step &p, visit_space *s, const sl_bucket_lists *lists, int *count) {
    int lane = threadIdx.x % 32, *own = s->cells[threadIdx.x / 32];
    for (int cell = lane; cell < SL_BUCKET_CELLS; cell += 32) {
        int first, end;
        buckets_of_cell(cell, p.C, &first, &end);
        own[cell] = lists->first[end] - lists->first[first];
    }
    __syncwarp();
    for (int i = lane; i < p.l; i += 32) {
        int c = s->ids[i];
        atomicAdd(&own[sl_bucket_cell(c, p.C)], lists->first[c] - lists->first[c + 1]);
    }
    __syncwarp();
    for (int cell = lane; cell < SL_BUCKET_CELLS; cell += 32) count[cell] = own[cell];
    if (lane == 0) count[SL_BUCKET_CELLS] = 0;
    __syncwarp(); // before the warp's next section
}

// Counts the rows of pages [first, end), at most 16, by the thread block: of each cell, or of each page and of all.
__device__ void count_pages(const bucket_step &p, visit_space *s, const visit_range &r, const sl_row &row, int seq_head,
                            int first, int end, bool has_cells, int *count) {
    int tid = threadIdx.x, before;
    __syncthreads(); // all warps have counted their sections in s->cells
    if (tid < SL_BUCKET_CELLS) s->cells[0][tid] = 0;
    page_part part = load_page_part(p, s, r, row, seq_head, first + tid / 32, end);
    int all = sum_pages(s, sl_scan_lanes(__popc(part.others), tid % 32), &before); // the barrier follows the zeros
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (has_cells && part.others >> i & 1) atomicAdd(&s->cells[0][sl_bucket_cell(part.bucket(i), p.C)], 1);
    __syncthreads();
    if (tid < SL_BUCKET_CELLS) count[tid] = has_cells ? s->cells[0][tid] : tid < VISIT_WARPS ? s->page_count[tid] : 0;
    if (tid == 0) count[SL_BUCKET_CELLS] = has_cells ? 0 : all;
    __syncthreads();
}

// ---- the kernel ----

// Lists a section: by its lists, which the warp `owner` walks, or by the sorted rows of its pages. i: its number among the
// thread block's sections.
template <bool DRAWS>
__device__ void visit_section(const bucket_step &p, visit_space *s, const visit_range &r, const sl_row &row, int seq_head,
                              int section, int i) {
    int first = section * SL_BUCKET_SPAN, end = section < r.n_spans() ? first + SL_BUCKET_SPAN : ceil_div(r.window, SL_PAGE);
    int n = 0, n_read = 0, warp = threadIdx.x / 32, lane = threadIdx.x % 32, base = section * SL_BUCKET_SPAN_ROWS;
    size_t at = (size_t)seq_head * p.max_sections + section;
    int32_t *to = p.list + at * SL_BUCKET_SPAN_ROWS;
    const sl_bucket_lists *lists = lists_of(p, seq_head, s->slots[i]);
    bool is_owner = warp == i % VISIT_WARPS;
    if (p.l > 0 && lists && is_owner) n = list_span(p, s, r, row, seq_head, lists, section, to, &n_read);
    if (p.l > 0 && !lists) n = list_pages(p, s, r, row, seq_head, first, end, to);
    n_read = __reduce_add_sync(~0u, n_read);
    if (is_owner && lane == 0) {
        p.count[at] = n;
        if (p.stats && p.l > 0)
            count_read(p, n,
                       lists ? (n_read + 2 * (uint64_t)p.l) * sizeof(uint16_t) : max(end - first, 0) * sizeof(sl_bucket_rows));
    }
    if (!DRAWS) return;
    int *count = p.cell_count + at * CELL_COUNTS;
    if (!s->has_cells[i] || base < r.sink || base + SL_BUCKET_SPAN_ROWS > r.window)
        count_pages(p, s, r, row, seq_head, first, end, s->has_cells[i], count);
    else if (is_owner)
        count_cells(p, s, lists, count);
}

// Grid: (thread blocks of a head, sequences * KV heads). EACH: buckets of a thread. DRAWS: counts rows that may be drawn. Order
// of rows in a section: buckets, then positions; without lists pages, buckets, positions.
template <int EACH, bool DRAWS>
static __global__ void __launch_bounds__(VISIT_THREADS) visit_buckets_kernel(const bucket_step p) {
    __shared__ visit_space s;
    if (!p.scores && !DRAWS) sl_wait_previous(); // the first kernel of the step: bucket_scores.cu, order of the kernels
    sl_start_next();
    int seq_head = blockIdx.y;
    const sl_row row = p.rows[seq_head / p.n_kv_heads];
    const visit_range r = range_of(p, row);
    find_lists<DRAWS>(p, &s, r, row, seq_head);
    if (DRAWS && p.l == 0) {
        for (int w = threadIdx.x; w < VISIT_WORDS; w += VISIT_THREADS) s.visited[w] = 0;
        __syncthreads();
    }
    sl_wait_previous();
    if (p.l > 0 && r.n_sections > 0) choose_buckets<EACH>(p, &s, seq_head);
    if (blockIdx.x == 0 && threadIdx.x == 0 && p.stats)
        count_read(p, r.sink + (r.n_kv - r.window), r.n_sections > 0 && p.scores ? score_bytes(p) : 0);
    for (int i = 0, section = blockIdx.x; section < r.n_sections; section += gridDim.x, i++)
        visit_section<DRAWS>(p, &s, r, row, seq_head, section, i);
}

// ---- launch ----

template <bool DRAWS> static void launch_visit(const bucket_step &p, cudaStream_t stream) {
    int seq_heads = p.n_seqs * p.n_kv_heads, blocks = min(max(sl_multiprocessors() / seq_heads, 1), p.max_sections);
    sl_launch(p.C <= FEW_BUCKETS ? visit_buckets_kernel<2, DRAWS>
                                 : visit_buckets_kernel<SL_BUCKETS_MOST / VISIT_THREADS, DRAWS>,
              dim3(blocks, seq_heads), dim3(VISIT_THREADS), 0, stream, p);
}

} // namespace

void sl_cuda_visit_buckets(const bucket_step &p, bool draws, cudaStream_t stream) {
    if (draws)
        launch_visit<true>(p, stream);
    else
        launch_visit<false>(p, stream);
}
