// attention/cuda/bucket_draws.cuh - the draws of saap-is on CUDA: S rows for each query head from the rows that are not read
// exactly, by the cells of spans. The CPU's draw_unvisited.c states the sizes, the thresholds and the order of the rows.
//
// | kernel            | grid                             | writes                                                      |
// |-------------------|----------------------------------|-------------------------------------------------------------|
// | score_cells_kernel| (sections, sequences * KV heads) | scores of cells, numbers of their rows that may be drawn    |
// | size_cells_kernel | query heads                      | the largest score, the sizes' sums, sums before each section|
// | draw_cells_kernel | (S / 8, query heads)             | rows and weights; a warp for each draw                      |
//
// A section is that of bucket_visit.cuh. A span without lists, and the last section, have no cells: all of their rows have the
// mean size of the others.
//
// Scores are fp32 sums in another order than the CPU's. So sizes differ by about 2^-20 of themselves, and few thresholds fall
// on a neighbouring row.
#ifndef SLEIGH_BUCKET_DRAWS_CUH
#define SLEIGH_BUCKET_DRAWS_CUH

#include "attention/cuda/attend_buckets.cuh"
#include "attention/random_counter.h"

namespace {

enum {
    CELL_THREADS = 256,
    CELL_WARPS = CELL_THREADS / 32,
    CELL_COUNTS = SL_BUCKET_CELLS + 1, // the last one: rows of a section without cells
    SIZE_THREADS = 512,
    SIZE_WARPS = SIZE_THREADS / 32,
};

struct draw_plan {
    uint64_t total, rest, uniform; // of all rows; size of a row without cell; added to every size
    float most;                    // largest score of a cell with rows, log2
    int rows;                      // that may be drawn
};

struct draw_params {
    visit_params visit;
    const char *cells; // page extra
    size_t cells_size;
    const int32_t *cell_slots; // of cells
    float scale;               // log2(e) / sqrt(head_dim)
    int S, layer, first_head;
    int *count;      // [n_seqs * n_kv_heads][max_sections][CELL_COUNTS] rows that may be drawn
    float *score;    // [n_seqs * n_heads][max_sections][64] log2; -inf: no score
    uint64_t *start; // [n_seqs * n_heads][max_sections + 1] size of the rows before a section
    draw_plan *plan; // [n_seqs * n_heads]
    int *drawable;   // [n_seqs * n_kv_heads] rows that may be drawn
    int32_t *draw;   // [n_seqs * n_heads][S] pool rows
    float *weight;   // [n_seqs * n_heads][S] log2 of 1 / pi
};

// ---- rows that may be drawn ----

__device__ bool is_visited(const visit_params &p, size_t seq_head, int bucket) {
    return p.l > 0 && __ldcg(p.visited + seq_head * VISIT_WORDS + bucket / 32) >> bucket % 32 & 1;
}

// The number of rows of a bucket in a span that may be drawn; *rows: the first of them.
__device__ int drawable_run(const visit_params &p, const visit_range &r, const sl_bucket_lists *lists, size_t seq_head,
                            int base, int bucket, const uint16_t **rows) {
    int from = lists->first[bucket], n = lists->first[bucket + 1] - from;
    *rows = lists->row + from;
    return is_visited(p, seq_head, bucket) ? 0 : max(trim_run(r, base, rows, n), 0);
}

// Pages of a section without cells: [*first, *end).
__device__ void pages_of(const visit_range &r, int section, int *first, int *end) {
    *first = section * SL_BUCKET_SPAN;
    *end = section < r.n_spans() ? *first + SL_BUCKET_SPAN : ceil_div(r.window, SL_PAGE);
}

// 1: row i of a page's sorted rows may be drawn. *position: its position.
__device__ int may_draw(const visit_params &p, const visit_range &r, const sl_row &row, int seq_head, int page, int i,
                        int *position) {
    const sl_bucket_rows *rows = bucket_rows_of(p, row, seq_head, page);
    *position = page * SL_PAGE + rows->row[i];
    return *position >= r.sink && *position < r.window && !is_visited(p, seq_head, rows->bucket[i]);
}

// The cells of a span, [64][2][head_dim], and its lists; NULL: the section has no cells.
__device__ const bf16 *cells_of(const draw_params &p, const visit_range &r, const sl_row &row, int seq_head, int section,
                                const sl_bucket_lists **lists) {
    const visit_params &v = p.visit;
    *lists = lists_of(v, seq_head, slot_of(v, r, row, section));
    if (!*lists) return NULL;
    int slot = __ldcg(p.cell_slots + row.pages[(section + 1) * SL_BUCKET_SPAN - 1]);
    size_t block = (size_t)slot * v.n_kv_heads + seq_head % v.n_kv_heads;
    return slot < 0 ? NULL : (const bf16 *)(p.cells + block * p.cells_size);
}

// ---- scores of cells ----

// Bytes: the cells of every span before the window, once for all query heads of a group.
static __global__ void __launch_bounds__(CELL_THREADS) score_cells_kernel(const draw_params p) {
    __shared__ float q[GROUP_MAX][VISIT_DIM_MOST];
    __shared__ int count[CELL_COUNTS];
    sl_start_next();
    sl_wait_previous();
    const visit_params &v = p.visit;
    int seq_head = blockIdx.y, dim = v.head_dim, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const sl_row row = v.rows[seq_head / v.n_kv_heads];
    visit_range r = range_of(v, row);
    float half = 0.34657359f * p.scale * p.scale; // ln 2 / 2: the variance of a score in log2 units, as a mean of 2^score
    for (int i = threadIdx.x; i < v.group * dim; i += CELL_THREADS)
        q[i / dim][i % dim] = sl_widen(v.q[(size_t)seq_head * v.group * dim + i]);
    for (int section = blockIdx.x; section < r.n_sections; section += gridDim.x) {
        const sl_bucket_lists *lists;
        const bf16 *cells = cells_of(p, r, row, seq_head, section, &lists);
        int base = section * SL_BUCKET_SPAN_ROWS, n = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < CELL_COUNTS; i += CELL_THREADS) count[i] = 0;
        __syncthreads();
        if (cells) {
            for (int c = threadIdx.x; c < v.C; c += CELL_THREADS) {
                const uint16_t *rows;
                int own = drawable_run(v, r, lists, seq_head, base, c, &rows);
                if (own) atomicAdd(&count[sl_bucket_cell(c, v.C)], own);
            }
        } else {
            int first, end, position;
            pages_of(r, section, &first, &end);
            for (int page = first; page < end; page++) n += may_draw(v, r, row, seq_head, page, threadIdx.x, &position);
            atomicAdd(&count[SL_BUCKET_CELLS], n);
        }
        __syncthreads();
        size_t at = (size_t)seq_head * v.max_sections + section;
        for (int i = threadIdx.x; i < CELL_COUNTS; i += CELL_THREADS) p.count[at * CELL_COUNTS + i] = count[i];
        for (int cell = warp; cell < SL_BUCKET_CELLS && cells; cell += CELL_WARPS) {
            const bf16 *mean = cells + 2 * cell * dim, *variance = mean + dim;
            float sum[GROUP_MAX] = {};
            for (int d = 2 * lane; d < dim; d += 64) {
                uint32_t a = *(const uint32_t *)(mean + d), b = *(const uint32_t *)(variance + d);
                float m0 = p.scale * sl_widen((bf16)a), m1 = p.scale * sl_widen((bf16)(a >> 16));
                float v0 = half * sl_widen((bf16)b), v1 = half * sl_widen((bf16)(b >> 16));
#pragma unroll
                for (int g = 0; g < GROUP_MAX; g++)
                    if (g < v.group) {
                        float x = q[g][d], y = q[g][d + 1];
                        sum[g] += x * (m0 + x * v0) + y * (m1 + y * v1);
                    }
            }
#pragma unroll
            for (int g = 0; g < GROUP_MAX; g++) {
                if (g >= v.group) break;
                float score = sl_sum_lanes(sum[g]);
                if (lane == 0)
                    p.score[(((size_t)seq_head * v.group + g) * v.max_sections + section) * SL_BUCKET_CELLS + cell] =
                        isfinite(score) ? score : -INFINITY;
            }
        }
    }
}
static_assert((int)CELL_THREADS == (int)SL_PAGE, "one thread for each row of a page");

// ---- sizes ----

// Size of a row of a cell, without the uniform part.
__device__ uint64_t cell_size(float score, float most) {
    return score > -INFINITY ? (uint64_t)floor((double)(1 << 30) * fmin(exp2((double)score - most), 1.0)) : 0;
}

struct size_space {
    uint64_t sums[SIZE_WARPS];
    float most[SIZE_WARPS];
    draw_plan plan;
};

__device__ uint64_t sum_sizes(size_space *s, uint64_t x) {
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) s->sums[threadIdx.x / 32] = x;
    __syncthreads();
    uint64_t sum = 0;
    for (int w = 0; w < SIZE_WARPS; w++) sum += s->sums[w];
    return sum;
}

// Size of the rows of a section, by one warp.
__device__ uint64_t section_size(const draw_plan &plan, const int *count, const float *score) {
    int lane = threadIdx.x % 32;
    uint64_t sum = lane == 0 ? __ldcg(count + SL_BUCKET_CELLS) * (plan.rest + plan.uniform) : 0;
    for (int cell = lane; cell < SL_BUCKET_CELLS; cell += 32) {
        uint64_t n = __ldcg(count + cell);
        if (n) sum += n * (cell_size(__ldcg(score + cell), plan.most) + plan.uniform);
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    return sum;
}

static __global__ void __launch_bounds__(SIZE_THREADS) size_cells_kernel(const draw_params p) {
    __shared__ size_space s;
    sl_start_next();
    sl_wait_previous();
    const visit_params &v = p.visit;
    size_t head = blockIdx.x, seq_head = head / v.group;
    visit_range r = range_of(v, v.rows[seq_head / v.n_kv_heads]);
    const int *count = p.count + seq_head * v.max_sections * CELL_COUNTS;
    const float *score = p.score + head * v.max_sections * SL_BUCKET_CELLS;
    int n = r.n_sections * SL_BUCKET_CELLS, warp = threadIdx.x / 32;
    float most = -INFINITY;
    for (int i = threadIdx.x; i < n; i += SIZE_THREADS)
        if (__ldcg(count + i / SL_BUCKET_CELLS * CELL_COUNTS + i % SL_BUCKET_CELLS)) most = fmaxf(most, __ldcg(score + i));
    most = sl_max_lanes(most);
    if (threadIdx.x % 32 == 0) s.most[warp] = most;
    __syncthreads();
    for (int w = 0; w < SIZE_WARPS; w++) most = fmaxf(most, s.most[w]);
    uint64_t rows = 0, total = 0, after = 0;
    for (int i = threadIdx.x; i < n; i += SIZE_THREADS) {
        uint64_t own = __ldcg(count + i / SL_BUCKET_CELLS * CELL_COUNTS + i % SL_BUCKET_CELLS);
        rows += own;
        if (own) total += own * cell_size(__ldcg(score + i), most);
    }
    for (int i = threadIdx.x; i < r.n_sections; i += SIZE_THREADS) after += __ldcg(count + i * CELL_COUNTS + SL_BUCKET_CELLS);
    rows = sum_sizes(&s, rows), total = sum_sizes(&s, total), after = sum_sizes(&s, after);
    if (threadIdx.x == 0) {
        draw_plan plan = {0, rows ? total / rows : 0, 0, most, (int)(rows + after)};
        plan.total = total + plan.rest * after;
        if (plan.rows) plan.uniform = (uint64_t)(0.1 / (1 - 0.1) * (double)plan.total / (double)plan.rows) + 1;
        plan.total += plan.uniform * plan.rows;
        s.plan = p.plan[head] = plan;
        if (head % v.group == 0) p.drawable[seq_head] = plan.rows;
    }
    __syncthreads();
    uint64_t *start = p.start + head * (v.max_sections + 1);
    for (int i = warp; i < r.n_sections; i += SIZE_WARPS) {
        uint64_t size = section_size(s.plan, count + i * CELL_COUNTS, score + (size_t)i * SL_BUCKET_CELLS);
        if (threadIdx.x % 32 == 0) start[i + 1] = size;
    }
    __syncthreads();
    if (threadIdx.x >= 32) return;
    uint64_t before = 0;
    if (threadIdx.x == 0) start[0] = 0;
    for (int first = 0; first < r.n_sections; first += 32) {
        int i = first + threadIdx.x;
        uint64_t end = before + sl_scan_lanes(i < r.n_sections ? __ldcg(start + i + 1) : 0, threadIdx.x);
        if (i < r.n_sections) start[i + 1] = end;
        before = __shfl_sync(~0u, end, 31);
    }
}

// ---- draws ----

// The position of draw m of a head, by one warp. *size: the size of its row.
struct cell_drawer {
    const draw_params &p;
    const sl_row &row;
    visit_range r;
    draw_plan plan;
    size_t head, seq_head;

    // The section that has the threshold; *point becomes the size behind the section's first row.
    __device__ int find_section(uint64_t *point) const {
        const uint64_t *start = p.start + head * (p.visit.max_sections + 1);
        int lane = threadIdx.x % 32, n = 0;
        for (int first = 0; first < r.n_sections; first += 32) { // sections that begin at the threshold or before
            bool before = first + lane < r.n_sections && __ldcg(start + first + lane) <= *point;
            n += __popc(__ballot_sync(~0u, before));
        }
        *point -= __ldcg(start + n - 1);
        return n - 1;
    }

    // The lane whose share of the lanes' sizes has the point: a lane has n rows of size `each`. *index: the row of the lane.
    static __device__ int find_lane(uint64_t n, uint64_t each, uint64_t *point, uint64_t *index) {
        int lane = threadIdx.x % 32;
        uint64_t end = sl_scan_lanes(n * each, lane);
        uint32_t after = __ballot_sync(~0u, end > *point);
        if (!after) { // the point lies behind these lanes
            *point -= __shfl_sync(~0u, end, 31);
            return -1;
        }
        int to = __ffs(after) - 1;
        *index = __shfl_sync(~0u, each ? (*point - (end - n * each)) / each : 0, to);
        return to;
    }

    __device__ int draw_from_cells(int section, const sl_bucket_lists *lists, uint64_t point, uint64_t *size) const {
        const visit_params &v = p.visit;
        int lane = threadIdx.x % 32, cell = -1, C = v.C, base = section * SL_BUCKET_SPAN_ROWS;
        const int *count = p.count + (seq_head * v.max_sections + section) * CELL_COUNTS;
        const float *score = p.score + (head * v.max_sections + section) * SL_BUCKET_CELLS;
        uint64_t index = 0;
        for (int first = 0; cell < 0 && first < SL_BUCKET_CELLS; first += 32) {
            uint64_t n = __ldcg(count + first + lane);
            uint64_t each = n ? cell_size(__ldcg(score + first + lane), plan.most) + plan.uniform : 0;
            int to = find_lane(n, each, &point, &index);
            if (to >= 0) cell = first + to, *size = __shfl_sync(~0u, each, to);
        }
        if (cell < 0) return -1;
        bool is_few = C < SL_BUCKET_CELLS;
        int from = is_few ? cell : ceil_div(cell * C, SL_BUCKET_CELLS);
        int end = is_few ? cell + 1 : ceil_div((cell + 1) * C, SL_BUCKET_CELLS);
        for (int first = from; first < end; first += 32) {
            const uint16_t *rows = NULL;
            uint64_t own = 0;
            int c = first + lane, n = c < end ? drawable_run(v, r, lists, seq_head, base, c, &rows) : 0;
            int to = find_lane(n, 1, &index, &own);
            if (to >= 0) return __shfl_sync(~0u, lane == to ? base + rows[own] : 0, to);
        }
        return -1;
    }

    __device__ int draw_from_pages(int section, uint64_t point, uint64_t *size) const {
        int first, end, lane = threadIdx.x % 32, position;
        *size = plan.rest + plan.uniform;
        uint64_t index = point / *size, own;
        pages_of(r, section, &first, &end);
        for (int i = first * SL_PAGE; i < end * SL_PAGE; i += 32) {
            int n = may_draw(p.visit, r, row, (int)seq_head, i / SL_PAGE, i % SL_PAGE + lane, &position);
            int to = find_lane(n, 1, &index, &own);
            if (to >= 0) return __shfl_sync(~0u, position, to);
        }
        return -1;
    }

    __device__ int draw(int m, uint64_t *size) const {
        sl_rng_id id = sl_attn_rng_id(row.seed, row.sequence, (uint32_t)row.position, p.layer,
                                      p.first_head + (int)(head % (p.visit.n_kv_heads * p.visit.group)));
        // floor((m W + floor(u W / 2^64)) / S), W < 2^53, m < S <= 2^16
        uint64_t W = plan.total, S = p.S, part = __umul64hi(sl_bucket_random(&id, m), W);
        uint64_t point = m * (W / S) + (m * (W % S) + part) / S;
        int section = find_section(&point);
        const sl_bucket_lists *lists;
        return cells_of(p, r, row, (int)seq_head, section, &lists) ? draw_from_cells(section, lists, point, size)
                                                                   : draw_from_pages(section, point, size);
    }
};

static __global__ void __launch_bounds__(CELL_THREADS) draw_cells_kernel(const draw_params p) {
    sl_start_next();
    sl_wait_previous();
    const visit_params &v = p.visit;
    size_t head = blockIdx.y, seq_head = head / v.group;
    int m = blockIdx.x * CELL_WARPS + threadIdx.x / 32;
    const sl_row row = v.rows[seq_head / v.n_kv_heads];
    cell_drawer d = {p, row, range_of(v, row), p.plan[head], head, seq_head};
    if (m >= p.S || d.r.n_sections == 0 || d.plan.rows == 0) return;
    uint64_t size = 1;
    int position = d.draw(m, &size);
    if (threadIdx.x % 32) return;
    p.draw[head * p.S + m] = position < 0 ? -1 : pool_page(v, row, (int)seq_head, position / SL_PAGE) + position % SL_PAGE;
    p.weight[head * p.S + m] = (float)log2((double)d.plan.total / ((double)p.S * (double)size));
    if (!v.stats || m > 0) return;
    atomicAdd(&v.stats->v_rows, (unsigned long long)p.S);
    atomicAdd(&v.stats->samples, (unsigned long long)p.S);
    atomicAdd(&v.stats->bytes, (unsigned long long)(2 * (size_t)p.S * v.head_dim * sizeof(bf16)));
    if (head % v.group) return;
    atomicAdd(&v.stats->bytes, (unsigned long long)(d.r.n_spans() * p.cells_size));
}

// ---- launch ----

// The arrays of the workspace.
static void take_draws(arena *a, draw_params *p, int n_seqs) {
    const visit_params &v = p->visit;
    size_t seq_heads = (size_t)n_seqs * v.n_kv_heads, heads = seq_heads * v.group;
    p->count = a->take<int>(seq_heads * v.max_sections * CELL_COUNTS);
    p->score = a->take<float>(heads * v.max_sections * SL_BUCKET_CELLS);
    p->start = a->take<uint64_t>(heads * (v.max_sections + 1));
    p->plan = a->take<draw_plan>(heads);
    p->drawable = a->take<int>(seq_heads);
    p->draw = a->take<int32_t>(heads * p->S);
    p->weight = a->take<float>(heads * p->S);
}

static void launch_draws(const draw_params &p, cudaStream_t stream) {
    int seq_heads = p.visit.n_seqs * p.visit.n_kv_heads, heads = seq_heads * p.visit.group;
    sl_launch(score_cells_kernel, dim3(min(p.visit.max_sections, 64), seq_heads), dim3(CELL_THREADS), 0, stream, p);
    sl_launch(size_cells_kernel, dim3(heads), dim3(SIZE_THREADS), 0, stream, p);
    sl_launch(draw_cells_kernel, dim3(ceil_div(p.S, CELL_WARPS), heads), dim3(CELL_THREADS), 0, stream, p);
}

} // namespace

#endif
