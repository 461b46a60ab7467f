// attention/cuda/buckets/bucket_draws.cu - the draws of saap-is on CUDA: S rows for each query head from the rows that are not
// read exactly, by the cells of spans. The CPU's draw_unvisited.c states the sizes, the thresholds and the order of the rows.
//
// | kernel            | grid                             | writes                                                      |
// |-------------------|----------------------------------|-------------------------------------------------------------|
// | score_cells_kernel| (sections, sequences * KV heads) | scores of cells                                             |
// | draw_cells_kernel | (S / 32, query heads)            | rows and weights; eight lanes for each draw                 |
//
// Scores of cells do not depend on the visited buckets, so score_cells_kernel runs next to the second layer of the classifier.
// It waits for that layer only before it ends. visit_buckets_kernel counts the rows of cells that may be drawn. Every thread
// block of draw_cells_kernel adds up the sizes of its head, which takes less time than one more kernel.
//
// A section is that of bucket_visit.cu. A span without lists or cells, and the last section, have no cells: all of their rows
// have the mean size of the others.
//
// Scores are fp32 sums in another order than the CPU's, and sizes are fp32. So sizes differ by about 2^-20 of themselves, and
// few thresholds fall on a neighbouring row.
#include "attention/cuda/buckets/bucket_step.cuh"
#include "attention/cuda/head_dim.cuh"
#include "attention/random_counter.h"

namespace {

enum {
    CELL_WARPS = 8,
    CELL_THREADS = 32 * CELL_WARPS,
    WARP_CELLS = SL_BUCKET_CELLS / CELL_WARPS, // that a warp scores: the rows of an mma's second operand
    DRAW_WARPS = 8,
    DRAW_THREADS = 32 * DRAW_WARPS,
    DRAW_LANES = 8, // that share a draw
    BLOCK_DRAWS = DRAW_THREADS / DRAW_LANES,
    LANE_CELLS = SL_BUCKET_CELLS / DRAW_LANES,
    LANE_BUCKETS = SL_BUCKETS_MOST / SL_BUCKET_CELLS / DRAW_LANES, // of a cell, at most
    LANE_PAGES = SL_BUCKET_SPAN / DRAW_LANES,
    LANE_ROWS = SL_PAGE / DRAW_LANES,
};
static_assert((int)WARP_CELLS == 8 && (int)LANE_ROWS == 32 && (int)LANE_BUCKETS == 8, "the shares of lanes");

// ---- scores of cells ----

// The squares of a pair of bf16, as two pairs of bf16 whose sum is exact; part[2] is 0.
__device__ __forceinline__ void square(uint32_t pair, uint32_t part[3]) {
    float x = sl_widen((bf16)pair), y = sl_widen((bf16)(pair >> 16));
    split(make_float2(x * x, y * y), part);
}

// A lane's part of a row: pieces of neighbouring channels, the same ones of queries and cells.
template <int DIM> struct cell_lane {
    enum {
        REGS = DIM / 8,
        PIECE = DIM % 32 ? 4 : 8, // channels of a load
        PIECE_REGS = PIECE / 2,
    };

    // row: NULL: zeros. Past the L1 cache: bucket_scores.cu, order of the kernels.
    static __device__ void load(const bf16 *row, uint32_t to[REGS]) {
#pragma unroll
        for (int i = 0; i < REGS / PIECE_REGS; i++) {
            const bf16 *from = row + (4 * i + threadIdx.x % 4) * PIECE;
            if constexpr (PIECE == 8) {
                uint4 x = row ? __ldcg((const uint4 *)from) : make_uint4(0, 0, 0, 0);
                to[4 * i] = x.x, to[4 * i + 1] = x.y, to[4 * i + 2] = x.z, to[4 * i + 3] = x.w;
            } else {
                uint2 x = row ? __ldcg((const uint2 *)from) : make_uint2(0, 0);
                to[2 * i] = x.x, to[2 * i + 1] = x.y;
            }
        }
    }
};

// score = scale q . mean + (ln 2 / 2) scale^2 q^2 . variance: half the variance of a score in log2 units, as a mean of 2^score.
//
// A warp has eight cells of a section: their means and variances are the rows of the second operand of an mma. The inner
// product over channels has any order, so a lane loads whole pieces of a row (cell_lane). q is bf16. q^2 has 16 bits, so it is
// the sum of two bf16. Bytes: the cells of every span before the window, once for all query heads of a group.
template <int DIM> static __global__ void __launch_bounds__(CELL_THREADS, 2) score_cells_kernel(const bucket_draws p) {
    enum { REGS = cell_lane<DIM>::REGS };
    const bucket_step &v = p.visit;
    if (!v.scores) sl_wait_previous(); // the first kernel of the step: bucket_scores.cu, order of the kernels
    sl_start_next();
    int seq_head = blockIdx.y, warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const sl_row row = v.rows[seq_head / v.n_kv_heads];
    const visit_range r = range_of(v, row);
    const bf16 *queries = v.q + (size_t)seq_head * v.group * DIM;
    float half = 0.34657359f * p.scale * p.scale;
    uint32_t q[REGS];
    cell_lane<DIM>::load(g < v.group ? queries + g * DIM : NULL, q);
    int section = blockIdx.x, slot = section < r.n_spans() ? cell_slot_of(v, r, row, section) : -1;
    if (slot >= 0) {
        size_t block = (size_t)slot * v.n_kv_heads + seq_head % v.n_kv_heads;
        const bf16 *cell = (const bf16 *)(p.cells + block * p.cells_size) + (warp * WARP_CELLS + g) * 2 * DIM;
        uint32_t mean[REGS], variance[REGS];
        float by_mean[4] = {}, by_variance[4] = {};
        cell_lane<DIM>::load(cell, mean);
        cell_lane<DIM>::load(cell + DIM, variance);
#pragma unroll
        for (int i = 0; i < REGS; i += 2) sl_mma_bf16(by_mean, q[i], 0, q[i + 1], 0, mean[i], mean[i + 1]);
#pragma unroll
        for (int i = 0; i < REGS; i += 2) {
            uint32_t low[3], high[3];
            square(q[i], low), square(q[i + 1], high);
#pragma unroll
            for (int j = 0; j < 2; j++) sl_mma_bf16(by_variance, low[j], 0, high[j], 0, variance[i], variance[i + 1]);
        }
        float2 score = make_float2(by_mean[0] * p.scale + half * by_variance[0], by_mean[1] * p.scale + half * by_variance[1]);
        score = make_float2(isfinite(score.x) ? score.x : -INFINITY, isfinite(score.y) ? score.y : -INFINITY);
        size_t at = (((size_t)seq_head * v.group + g) * v.max_sections + section) * SL_BUCKET_CELLS + warp * WARP_CELLS + 2 * t;
        if (g < v.group) *(float2 *)(p.score + at) = score; // of head g and the warp's cells 2 t, 2 t + 1
    }
    sl_wait_previous(); // so that the kernels before this one have ended when it has
}

// ---- sizes ----

struct draw_plan {
    uint64_t total, rest, uniform; // of all rows; size of a row without cell; added to every size
    float most;                    // largest score of a cell with rows, log2
    int rows;                      // that may be drawn
};

struct draw_space {
    uint64_t start[SECTIONS_MOST + 1]; // size of the rows before a section
    int rows[SECTIONS_MOST];           // that may be drawn
    int slots[SECTIONS_MOST];          // of the lists of a section with cells; -1: the section has no cells
    uint32_t visited[VISIT_WORDS];
    uint64_t sums[DRAW_WARPS];
    float most[DRAW_WARPS];
};

// Size of a row of a cell, without the uniform part: at most 2^30.
__device__ uint32_t cell_size(float score, float most) {
    return score > -INFINITY ? (uint32_t)(0x1p30f * fminf(exp2f(score - most), 1.0f)) : 0;
}

__device__ uint64_t sum_sizes(draw_space *s, uint64_t x) {
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) s->sums[threadIdx.x / 32] = x;
    __syncthreads();
    uint64_t sum = 0;
    for (int w = 0; w < DRAW_WARPS; w++) sum += s->sums[w];
    return sum;
}

// The largest score of a cell with rows, by the thread block. count, score: of the head's first section.
__device__ float find_most(draw_space *s, int n_sections, const int *count, const float *score) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float most = -INFINITY;
#pragma unroll 4
    for (int i = warp; i < n_sections; i += DRAW_WARPS) {
        if (s->slots[i] < 0) continue;
#pragma unroll
        for (int cell = lane; cell < SL_BUCKET_CELLS; cell += 32) {
            int n = count[i * CELL_COUNTS + cell];
            float x = score[i * SL_BUCKET_CELLS + cell];
            most = fmaxf(most, n ? x : -INFINITY);
        }
    }
    most = sl_max_lanes(most);
    if (lane == 0) s->most[warp] = most;
    __syncthreads();
    for (int w = 0; w < DRAW_WARPS; w++) most = fmaxf(most, s->most[w]);
    return most;
}

// Sizes without the uniform part and rows of each section: s->start[i + 1] and s->rows[i], by the thread block.
__device__ void size_sections(draw_space *s, int n_sections, const int *count, const float *score, float most) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 4
    for (int i = warp; i < n_sections; i += DRAW_WARPS) {
        uint64_t size = 0;
        int rows = 0;
#pragma unroll
        for (int cell = lane; cell < SL_BUCKET_CELLS && s->slots[i] >= 0; cell += 32) {
            int n = count[i * CELL_COUNTS + cell];
            float x = score[i * SL_BUCKET_CELLS + cell];
            if (n) size += (uint64_t)n * cell_size(x, most);
            rows += n;
        }
        for (int step = 16; step > 0; step /= 2) size += __shfl_xor_sync(~0u, size, step);
        rows = __reduce_add_sync(~0u, rows);
        if (lane == 0) s->start[i + 1] = size, s->rows[i] = s->slots[i] >= 0 ? rows : count[i * CELL_COUNTS + SL_BUCKET_CELLS];
    }
    __syncthreads();
}

// Sizes of all rows of a head; s->start becomes the sizes before the sections. By the thread block.
__device__ draw_plan plan_draws(draw_space *s, int n_sections, const int *count, const float *score) {
    draw_plan plan = {0, 0, 0, find_most(s, n_sections, count, score), 0};
    size_sections(s, n_sections, count, score, plan.most);
    uint64_t size = 0, scored = 0, after = 0;
    for (int i = threadIdx.x; i < n_sections; i += DRAW_THREADS) {
        size += s->start[i + 1];
        if (s->slots[i] >= 0)
            scored += s->rows[i];
        else
            after += s->rows[i];
    }
    size = sum_sizes(s, size), scored = sum_sizes(s, scored), after = sum_sizes(s, after);
    plan.rest = scored ? size / scored : 0, plan.rows = (int)(scored + after);
    plan.total = size + plan.rest * after;
    if (plan.rows) plan.uniform = (uint64_t)(0.1 / (1 - 0.1) * (double)plan.total / (double)plan.rows) + 1;
    plan.total += plan.uniform * plan.rows;
    if (threadIdx.x < 32) {
        uint64_t before = 0;
        for (int first = 0; first < n_sections; first += 32) {
            int i = first + threadIdx.x;
            uint64_t own = 0;
            if (i < n_sections) own = s->start[i + 1] + s->rows[i] * (plan.uniform + (s->slots[i] >= 0 ? 0 : plan.rest));
            uint64_t end = before + sl_scan_lanes(own, threadIdx.x);
            if (i < n_sections) s->start[i + 1] = end;
            before = __shfl_sync(~0u, end, 31);
        }
        if (threadIdx.x == 0) s->start[0] = 0;
    }
    __syncthreads();
    return plan;
}

// ---- draws ----

// The sum over the lanes of the draw up to this lane.
template <typename T> __device__ T scan_draw(T x, int lane) {
    for (int step = 1; step < DRAW_LANES; step *= 2) {
        T before = __shfl_up_sync(~0u, x, step, DRAW_LANES);
        if (lane >= step) x += before;
    }
    return x;
}

// The lane of the draw that says yes; -1: none. All lanes of the warp call it.
__device__ int lane_that(bool yes) {
    uint32_t lanes = __ballot_sync(~0u, yes) >> threadIdx.x % 32 / DRAW_LANES * DRAW_LANES & ((1u << DRAW_LANES) - 1);
    return __ffs(lanes) - 1;
}

// One draw, which eight lanes share. Every lane of a warp takes part in every function; `here` says whether the function is
// that of the draw's section. The lane that finds the row has the position, the others -1.
struct cell_drawer {
    const bucket_draws &p;
    const draw_space *s;
    const sl_row &row;
    visit_range r;
    draw_plan plan;
    size_t head;
    int seq_head, lane; // lane: of the draw

    // The number of rows of a bucket in a span that may be drawn; *from: the first of them.
    __device__ int drawable_run(const sl_bucket_lists *lists, int base, int bucket, int *from) const {
        *from = lists->first[bucket];
        int n = lists->first[bucket + 1] - *from;
        if (s->visited[bucket / 32] >> bucket % 32 & 1) return 0;
        const uint16_t *rows = lists->row + *from;
        n = trim_run(r, base, &rows, n);
        *from = (int)(rows - lists->row);
        return max(n, 0);
    }

    // Row `index` of a cell.
    __device__ int row_of_cell(bool here, int section, int cell, uint64_t index) const {
        const sl_bucket_lists *lists = lists_of(p.visit, seq_head, here ? s->slots[section] : -1);
        int base = section * SL_BUCKET_SPAN_ROWS, first = 0, end = 0, n[LANE_BUCKETS], from[LANE_BUCKETS], own = 0;
        if (here) buckets_of_cell(cell, p.visit.C, &first, &end);
        int each = ceil_div(end - first, DRAW_LANES), begin = first + lane * each;
#pragma unroll
        for (int i = 0; i < LANE_BUCKETS; i++) {
            n[i] = here && i < each && begin + i < end ? drawable_run(lists, base, begin + i, &from[i]) : 0;
            own += n[i];
        }
        int before = scan_draw(own, lane) - own, rest = (int)index - before;
        if (!here || rest < 0 || rest >= own) return -1;
        int at = 0;
        bool found = false;
#pragma unroll
        for (int i = 0; i < LANE_BUCKETS; i++) {
            if (!found && rest < n[i])
                at = from[i] + rest, found = true;
            else if (!found)
                rest -= n[i];
        }
        return base + lists->row[at];
    }

    // A row of a section with cells; point: the size before the row, in the section.
    __device__ int draw_from_cells(bool here, int section, uint64_t point, uint64_t *size) const {
        const bucket_step &v = p.visit;
        const int *count = v.cell_count + ((size_t)seq_head * v.max_sections + section) * CELL_COUNTS + lane * LANE_CELLS;
        const float *score = p.score + (head * v.max_sections + section) * SL_BUCKET_CELLS + lane * LANE_CELLS;
        uint64_t each[LANE_CELLS], own = 0, index = 0;
        int n[LANE_CELLS], cell = 0;
#pragma unroll
        for (int i = 0; i < LANE_CELLS; i++) {
            n[i] = here ? count[i] : 0;
            each[i] = cell_size(here && n[i] ? score[i] : -INFINITY, plan.most) + plan.uniform;
            own += n[i] * each[i];
        }
        uint64_t end = scan_draw(own, lane), rest = point - (end - own);
        bool is_mine = here && point >= end - own && point < end;
        bool found = !is_mine;
#pragma unroll
        for (int i = 0; i < LANE_CELLS; i++) {
            if (!found && rest < n[i] * each[i])
                cell = lane * LANE_CELLS + i, *size = each[i], found = true;
            else if (!found)
                rest -= n[i] * each[i];
        }
        if (is_mine) index = rest / *size;
        int owner = lane_that(is_mine), from = max(owner, 0);
        cell = __shfl_sync(~0u, cell, from, DRAW_LANES), index = __shfl_sync(~0u, index, from, DRAW_LANES);
        *size = __shfl_sync(~0u, *size, from, DRAW_LANES);
        return row_of_cell(here && owner >= 0, section, cell, index);
    }

    // A row of a section without cells.
    __device__ int draw_from_pages(bool here, int section, uint64_t point, uint64_t *size) const {
        const bucket_step &v = p.visit;
        const int *count = v.cell_count + ((size_t)seq_head * v.max_sections + section) * CELL_COUNTS + lane * LANE_PAGES;
        if (here) *size = plan.rest + plan.uniform;
        int n[LANE_PAGES], own = 0, index = here ? (int)(point / *size) : 0, page = 0;
#pragma unroll
        for (int i = 0; i < LANE_PAGES; i++) n[i] = here ? count[i] : 0, own += n[i];
        int rest = index - (scan_draw(own, lane) - own);
        bool is_mine = here && rest >= 0 && rest < own;
        bool found = !is_mine;
#pragma unroll
        for (int i = 0; i < LANE_PAGES; i++) {
            if (!found && rest < n[i])
                page = section * SL_BUCKET_SPAN + lane * LANE_PAGES + i, found = true;
            else if (!found)
                rest -= n[i];
        }
        int owner = lane_that(is_mine), from = max(owner, 0);
        page = __shfl_sync(~0u, page, from, DRAW_LANES), rest = __shfl_sync(~0u, rest, from, DRAW_LANES);
        here &= owner >= 0;
        // Row `rest` of the page's rows that may be drawn. A lane has 32 of its sorted rows.
        const sl_bucket_rows *rows = here ? bucket_rows_of(v, row, seq_head, page) : NULL;
        uint32_t may = 0;
        for (int i = 0; i < LANE_ROWS && here; i++) {
            int bucket = rows->bucket[lane * LANE_ROWS + i], position = page * SL_PAGE + rows->row[lane * LANE_ROWS + i];
            bool is_visited = s->visited[bucket / 32] >> bucket % 32 & 1;
            if (position >= r.sink && position < r.window && !is_visited) may |= 1u << i;
        }
        rest -= scan_draw(__popc(may), lane) - __popc(may);
        if (!here || rest < 0 || rest >= __popc(may)) return -1;
        for (; rest > 0; rest--) may &= may - 1;
        return page * SL_PAGE + rows->row[lane * LANE_ROWS + __ffs(may) - 1];
    }

    // Draw m. *size: the size of its row.
    __device__ int draw(int m, uint64_t *size) const {
        sl_rng_id id = sl_attn_rng_id(row.seed, row.sequence, (uint32_t)row.position, p.layer,
                                      p.first_head + (int)(head % (p.visit.n_kv_heads * p.visit.group)));
        // floor((m W + floor(u W / 2^64)) / S), W < 2^53, m < S <= 2^16
        uint64_t W = plan.total, S = p.S, part = __umul64hi(sl_bucket_random(&id, m), W);
        uint64_t point = m * (W / S) + (m * (W % S) + part) / S;
        int section = 0, end = r.n_sections; // the last section that begins at the point or before
        while (end - section > 1) {
            int middle = (section + end) / 2;
            if (s->start[middle] <= point)
                section = middle;
            else
                end = middle;
        }
        point -= s->start[section];
        bool has_cells = s->slots[section] >= 0;
        int position = draw_from_cells(has_cells, section, point, size);
        if (__any_sync(~0u, !has_cells)) position = max(position, draw_from_pages(!has_cells, section, point, size));
        return position;
    }
};

static __global__ void __launch_bounds__(DRAW_THREADS) draw_cells_kernel(const bucket_draws p) {
    __shared__ draw_space s;
    sl_start_next();
    const bucket_step &v = p.visit;
    size_t head = blockIdx.y;
    int seq_head = (int)head / v.group, m = blockIdx.x * BLOCK_DRAWS + threadIdx.x / DRAW_LANES;
    const sl_row row = v.rows[seq_head / v.n_kv_heads];
    const visit_range r = range_of(v, row);
    for (int i = threadIdx.x; i < r.n_sections; i += DRAW_THREADS) {
        int slot = slot_of(v, r, row, i);
        s.slots[i] = cell_slot_of(v, r, row, i) < 0 ? -1 : slot;
    }
    sl_wait_previous();
    for (int w = threadIdx.x; w < VISIT_WORDS; w += DRAW_THREADS)
        s.visited[w] = v.l > 0 && w < ceil_div(v.C, 32) ? __ldcg(v.visited + (size_t)seq_head * VISIT_WORDS + w) : 0;
    __syncthreads();
    if (r.n_sections == 0) return;
    const int *count = v.cell_count + (size_t)seq_head * v.max_sections * CELL_COUNTS;
    const float *score = p.score + head * v.max_sections * SL_BUCKET_CELLS;
    draw_plan plan = plan_draws(&s, r.n_sections, count, score);
    if (blockIdx.x == 0 && threadIdx.x == 0 && head % v.group == 0) p.drawable[seq_head] = plan.rows;
    if (plan.rows == 0) return;
    cell_drawer d = {p, &s, row, r, plan, head, seq_head, (int)threadIdx.x % DRAW_LANES};
    uint64_t size = 1;
    int position = d.draw(min(m, p.S - 1), &size); // lanes without a draw repeat the last one
    if (position >= 0 && m < p.S) {
        p.draw[head * p.S + m] = pool_page(v, row, seq_head, position / SL_PAGE) + position % SL_PAGE;
        p.weight[head * p.S + m] = (float)log2((double)plan.total / ((double)p.S * (double)size));
    }
    if (!v.stats || blockIdx.x > 0 || threadIdx.x > 0) return;
    atomicAdd(&v.stats->v_rows, (unsigned long long)p.S);
    atomicAdd(&v.stats->samples, (unsigned long long)p.S);
    atomicAdd(&v.stats->bytes, (unsigned long long)(2 * (size_t)p.S * v.head_dim * sizeof(bf16)));
    if (head % v.group) return;
    atomicAdd(&v.stats->bytes, (unsigned long long)(r.n_spans() * p.cells_size));
}

// ---- launch ----

template <int DIM> static void launch_score_cells(const bucket_draws &p, cudaStream_t stream) {
    sl_launch(score_cells_kernel<DIM>, dim3(p.visit.max_sections, p.visit.n_seqs * p.visit.n_kv_heads), dim3(CELL_THREADS), 0,
              stream, p);
}

} // namespace

void sl_cuda_score_cells(const bucket_draws &p, cudaStream_t stream) {
    SL_WITH_HEAD_DIM(p.visit.head_dim, launch_score_cells, p, stream);
}

void sl_cuda_draw_cells(const bucket_draws &p, cudaStream_t stream) {
    sl_launch(draw_cells_kernel, dim3(ceil_div(p.S, BLOCK_DRAWS), p.visit.n_seqs * p.visit.n_kv_heads * p.visit.group),
              dim3(DRAW_THREADS), 0, stream, p);
}
