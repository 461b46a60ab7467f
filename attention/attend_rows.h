// attention/attend_rows.h - attention over rows that were picked one by one, on CUDA: the last kernel of methods that read a
// few rows of a long context.
//
// Whoever picks (select_rows.h, vattention.cu) leaves up to three lists of rows for each query head in the workspace; here they
// are read, in chunks that many blocks share, and the chunks' results merged in order. Rows come with their stored weight
// (score_keys.h), so that V alone is read, or without one: then their keys are read and scored too. What is counted of
// distinct rows is counted here, beside the work.
#ifndef SLEIGH_ATTEND_ROWS_H
#define SLEIGH_ATTEND_ROWS_H

#include "attention/score_keys.h"

namespace {

enum {
    ATTENDERS = 8, // warps
    ATTEND_THREADS = 32 * ATTENDERS,
    LISTS = 3,
    CHUNK_ROWS = 16 * ATTENDERS, // the least: one batch of loads for each warp
    CHUNKS = 32,                 // of a list at most
    HEADS_SHARED = 4,            // query heads that a block serves where all of a KV head read the same rows
};

// ---- lists ----

// What was picked for one query head. An entry stands for `unit` consecutive rows; the newest unit, which may have fewer, is
// the last of its list.
struct head_plan {
    int at[LISTS + 1]; // list i: entries [at[i], at[i + 1])
    int top;           // the largest reference of its stored weights
    float factor;      // 1 / pi of the rows of lists 1 and 2; list 0 has pi = 1
    float hi;          // vattention: log2 of what no row that was left to chance exceeds, beside 2^top
};

struct row_lists {
    head_plan *plan; // [n_seqs * n_heads]
    int32_t *list;   // [n_seqs * n_heads][capacity] ascending entries
    uint32_t *mask;  // [n_seqs * n_heads][mask_words] bit i: entry i is in one of the lists
    int capacity, mask_words, unit;
};

// Memory that is handed out piece by piece; from NULL on it only measures.
struct arena {
    char *at;
    template <typename T> T *take(size_t n) {
        T *p = (T *)at;
        at += (n * sizeof(T) + 255) / 256 * 256;
        return p;
    }
};

static row_lists take_lists(arena *from, int n_heads, int capacity, int n_entries, int unit) {
    row_lists l = {};
    l.capacity = capacity, l.mask_words = ceil_div(n_entries, 32), l.unit = unit;
    l.plan = from->take<head_plan>(n_heads);
    l.list = from->take<int32_t>((size_t)n_heads * capacity);
    l.mask = from->take<uint32_t>((size_t)n_heads * l.mask_words);
    return l;
}

__device__ int rows_of(const head_plan &plan, int list, int unit, int n_kv) {
    int n = plan.at[list + 1] - plan.at[list];
    return n * unit - (n > 0 ? (unit - n_kv % unit) % unit : 0);
}

__host__ __device__ int list_chunk_rows(int n_rows) {
    return max(ceil_div(ceil_div(n_rows, CHUNKS), CHUNK_ROWS), 1) * CHUNK_ROWS;
}
__host__ __device__ int list_chunks(int n_rows) { // one of no rows too
    return max(ceil_div(n_rows, list_chunk_rows(n_rows)), 1);
}

// ---- parameters ----

struct attend_params {
    const sl_row *rows; // [n_seqs]
    const bf16 *q;      // [n_seqs][n_kv_heads][group][head_dim]
    const bf16 *k, *v;  // [n_pages][n_kv_heads][256][head_dim]
    bf16 *out;          // [n_seqs][n_kv_heads][group][head_dim]; NULL: partial results are all that is wanted
    int n_kv_heads, group;
    float scale;          // log2(e) / sqrt(head_dim)
    row_lists lists;      // plan NULL: every head reads the first `sink` rows and the last `window`
    int sink, window;     //
    int first_list;       // of this launch; its number of lists is the grid's
    int n_lists;          // to merge, those of earlier launches included
    const uint64_t *mass; // stored weights, as score_params has them; used where rows are not scored here
    const bf16 *w;
    int max_blocks;
    int max_chunks;
    float2 *ml;       // [n_seqs * n_heads][LISTS][max_chunks] maximum (log2) and sum of a chunk's weights
    float *o;         // [n_seqs * n_heads][LISTS][max_chunks][head_dim] sum of weight * v
    double *moments;  // [n_seqs * n_heads][LISTS][max_chunks][3] sums of weight, weight^2, |weight * v|^2
    int *done;        // [n_seqs * n_heads] chunks finished; 0 between launches
    int reads_k;      // of what is counted: rows of K are refined,
    int reads_newest; // the newest page's, which an index lacks, have been read before
    sl_attn_cuda_stats *stats;
};

static void take_partials(arena *from, attend_params *p, int n_heads, int head_dim, int capacity_rows, int with_moments) {
    p->max_chunks = min(ceil_div(capacity_rows, CHUNK_ROWS), (int)CHUNKS);
    size_t n = (size_t)n_heads * LISTS * p->max_chunks;
    p->ml = from->take<float2>(n);
    p->o = from->take<float>(n * head_dim);
    p->moments = with_moments ? from->take<double>(3 * n) : NULL;
}

// All but the lists and the partial results' memory.
static attend_params attend_params_of(const sl_attn_cuda_decode_args *a) {
    attend_params p = {};
    p.rows = a->rows, p.q = a->q, p.k = a->k, p.v = a->v, p.out = a->out;
    p.n_kv_heads = a->geom->n_kv_heads, p.group = a->geom->n_heads / a->geom->n_kv_heads;
    p.scale = (float)(1.4426950408889634 / sqrt((double)a->geom->head_dim));
    p.n_lists = 1;
    p.stats = a->stats;
    int n_heads = a->n_seqs * a->geom->n_heads;
    SL_CHECK(2 + 3 * n_heads <= COUNTERS);
    p.done = (int *)a->ws + COUNTERS - n_heads; // behind score_keys.h's
    return p;
}

// ---- a warp's rows ----

// 2^x for an integer x <= 0; 0 below the normal numbers.
__device__ __forceinline__ float power_of_two(int x) {
    return x < -126 ? 0 : __int_as_float((x + 127) << 23);
}

// Rows in batches, a row's dims over the lanes, four each. Row i of a batch belongs to lanes [SHARE i, SHARE (i + 1)): these
// know its place and its weight.
template <int DIM, int HEADS, bool SCORES, bool MOMENTS> struct attender {
    enum { BATCH = HEADS == 1 ? 16 : 8, SHARE = 32 / BATCH, LANES = DIM / 4 };
    float q[HEADS][4], o[HEADS][4];
    float m[HEADS], l[HEADS]; // l: of the lane's rows
    double e, squares, ev_squares;

    __device__ void begin(const attend_params &p, size_t head, int n_heads) {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            uint2 x =
                SCORES && h < n_heads && lane < LANES ? *((const uint2 *)(p.q + (head + h) * DIM) + lane) : make_uint2(0, 0);
            q[h][0] = __uint_as_float(x.x << 16), q[h][1] = __uint_as_float(x.x & 0xffff0000u);
            q[h][2] = __uint_as_float(x.y << 16), q[h][3] = __uint_as_float(x.y & 0xffff0000u);
            o[h][0] = o[h][1] = o[h][2] = o[h][3] = 0;
            m[h] = -INFINITY, l[h] = 0;
        }
        e = squares = ev_squares = 0;
    }

    // The sums of s[i] over the lanes, to the lanes that own row i, by halves: in each step a lane gives away the rows of the
    // other half.
    static __device__ float sum_rows(float s[BATCH]) {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int step = 16; step >= SHARE; step /= 2) {
            bool upper = lane & step;
#pragma unroll
            for (int i = 0; i < BATCH / 2; i++) {
                const int n = step / SHARE; // rows that remain
                if (i >= n) continue;
                float give = upper ? s[i] : s[i + n], keep = upper ? s[i + n] : s[i];
                s[i] = keep + __shfl_xor_sync(~0u, give, step);
            }
        }
#pragma unroll
        for (int step = SHARE / 2; step >= 1; step /= 2) s[0] += __shfl_xor_sync(~0u, s[0], step);
        return s[0];
    }

    // From here on weights are measured from the larger of m and the batch's largest score.
    __device__ void raise(int h, float score) {
        float next = score;
#pragma unroll
        for (int step = SHARE; step < 32; step *= 2) next = fmaxf(next, __shfl_xor_sync(~0u, next, step));
        next = fmaxf(m[h], next);
        float factor = exp2f(m[h] - next);
        m[h] = next, l[h] *= factor;
        o[h][0] *= factor, o[h][1] *= factor, o[h][2] *= factor, o[h][3] *= factor;
        if (MOMENTS) e *= factor, squares *= (double)factor * factor, ev_squares *= (double)factor * factor;
    }

    // row: the lane's row of the pool, -1: none; weight: its weight, where rows are not scored.
    __device__ void add(const attend_params &p, int row, float weight) {
        int lane = threadIdx.x % 32;
        uint2 x[BATCH], y[BATCH];
        float c[HEADS];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            int at = __shfl_sync(~0u, row, i * SHARE);
            bool real = at >= 0 && lane < LANES;
            if (SCORES) x[i] = real ? __ldg((const uint2 *)(p.k + (size_t)at * DIM) + lane) : make_uint2(0, 0);
            y[i] = real ? __ldg((const uint2 *)(p.v + (size_t)at * DIM) + lane) : make_uint2(0, 0);
        }
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            c[h] = weight;
            if (SCORES) {
                float s[BATCH];
#pragma unroll
                for (int i = 0; i < BATCH; i++)
                    s[i] = q[h][0] * __uint_as_float(x[i].x << 16) + q[h][1] * __uint_as_float(x[i].x & 0xffff0000u) +
                           q[h][2] * __uint_as_float(x[i].y << 16) + q[h][3] * __uint_as_float(x[i].y & 0xffff0000u);
                float score = sum_rows(s) * p.scale;
                score = row >= 0 ? score : -INFINITY;
                raise(h, score);
                c[h] = exp2f(score - m[h]);
            }
            l[h] += c[h];
        }
        if (!SCORES) m[0] = 0;
        if (MOMENTS) e += c[0], squares += (double)c[0] * c[0];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            float v[4] = {__uint_as_float(y[i].x << 16), __uint_as_float(y[i].x & 0xffff0000u), __uint_as_float(y[i].y << 16),
                          __uint_as_float(y[i].y & 0xffff0000u)};
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                float own = __shfl_sync(~0u, c[h], i * SHARE);
                o[h][0] += own * v[0], o[h][1] += own * v[1], o[h][2] += own * v[2], o[h][3] += own * v[3];
                if (MOMENTS) ev_squares += own * own * (v[0] * v[0] + v[1] * v[1] + v[2] * v[2] + v[3] * v[3]);
            }
        }
    }
};

// ---- which rows ----

// The rows of one list of one query head, or of the ranges.
struct row_source {
    const int32_t *pages, *list; // list NULL: rows i below `from`, i + skip from there on
    int kv_head, n_kv_heads, unit, n, from, skip;
    const uint64_t *mass; // of the head
    const bf16 *w;
    int stride, top;

    // Row i's place in the pool, and its stored weight.
    template <bool SCORES> __device__ int find(int i, float *weight) const {
        int row = list ? __ldcg(list + i / unit) * unit + i % unit : i < from ? i : i + skip;
        if (!SCORES) {
            int ref = ref_of(__ldcg(mass + row / BLOCK));
            bf16 x = __ldcg((const unsigned short *)w + (size_t)(row / BLOCK) * stride + row % BLOCK);
            *weight = __uint_as_float((uint32_t)x << 16) * power_of_two(ref - top);
        }
        return (pages[row / SL_PAGE] * n_kv_heads + kv_head) * SL_PAGE + row % SL_PAGE;
    }
};

__device__ int list_rows(const attend_params &p, size_t head, int list, int n_kv) {
    if (p.lists.plan) return rows_of(p.lists.plan[head], list, p.lists.unit, n_kv);
    int sink = min(p.sink, n_kv);
    return sink + min(p.window, n_kv - sink);
}

__device__ row_source source_of(const attend_params &p, int slot, int head, int list) {
    const sl_row &row = p.rows[slot / p.n_kv_heads];
    int n_kv = row.position + 1;
    row_source s = {.pages = row.pages, .kv_head = slot % p.n_kv_heads, .n_kv_heads = p.n_kv_heads};
    s.n = list_rows(p, head, list, n_kv);
    s.from = p.sink, s.skip = n_kv - s.n;
    if (!p.lists.plan) return s;
    const head_plan *plan = p.lists.plan + head;
    s.list = p.lists.list + (size_t)head * p.lists.capacity + __ldcg(&plan->at[list]);
    s.unit = p.lists.unit;
    s.mass = p.mass + (size_t)head * p.max_blocks;
    s.w = p.w + ((size_t)slot * p.max_blocks * p.group + head % p.group) * BLOCK;
    s.stride = p.group * BLOCK, s.top = __ldcg(&plan->top);
    return s;
}

// ---- results ----

template <int DIM, int HEADS> struct attend_space {
    float o[ATTENDERS][HEADS][DIM];
    float2 ml[ATTENDERS][HEADS];
    double moments[ATTENDERS][3];
    int is_last;
};

__device__ double sum_lanes(double x) {
    for (int step = 16; step >= 1; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    return x;
}

// A warp's result to shared memory.
template <int DIM, int HEADS, bool SCORES, bool MOMENTS>
__device__ void leave(const attender<DIM, HEADS, SCORES, MOMENTS> &a, attend_space<DIM, HEADS> *s) {
    typedef attender<DIM, HEADS, SCORES, MOMENTS> type;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        float l = a.l[h];
        for (int step = type::SHARE; step < 32; step *= 2) l += __shfl_xor_sync(~0u, l, step);
        if (lane == 0) s->ml[warp][h] = make_float2(a.m[h], l);
        if (lane < type::LANES) *(float4 *)&s->o[warp][h][4 * lane] = make_float4(a.o[h][0], a.o[h][1], a.o[h][2], a.o[h][3]);
    }
    if (!MOMENTS) return;
    double e = sum_lanes(a.e) / type::SHARE, squares = sum_lanes(a.squares) / type::SHARE, ev = sum_lanes(a.ev_squares);
    if (lane == 0) s->moments[warp][0] = e, s->moments[warp][1] = squares, s->moments[warp][2] = ev;
}

// Sums of partial results (m, l, o): from m[i] to the largest of all.
__device__ float relative(float m, float most) {
    return m == -INFINITY ? 0 : exp2f(m - most);
}

__device__ void store_bf16(bf16 *to, float x) {
    *to = __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

// One dim of one head, over its lists and their chunks, in order.
template <int DIM> __device__ float merge_dim(const attend_params &p, size_t head, int n_kv, int d) {
    float most = -INFINITY, l = 0, o = 0;
    for (int list = 0; list < p.n_lists; list++) {
        size_t first = (head * LISTS + list) * p.max_chunks;
        int n = list_chunks(list_rows(p, head, list, n_kv));
        float factor = list > 0 ? __ldcg(&p.lists.plan[head].factor) : 1, before = most;
        for (int c = 0; c < n; c++) most = fmaxf(most, __ldcg(p.ml + first + c).x);
        l *= relative(before, most), o *= relative(before, most);
#pragma unroll 8
        for (int c = 0; c < n; c++) {
            float2 ml = __ldcg(p.ml + first + c);
            float scale = factor * relative(ml.x, most);
            l += scale * ml.y, o += scale * __ldcg(p.o + (first + c) * DIM + d);
        }
    }
    return l > 0 ? o / l : 0; // nothing was picked
}

// The warps' results, in their order: the output, where this chunk is all there is, or a partial result.
template <int DIM, int HEADS, bool MOMENTS>
__device__ void merge_warps(const attend_params &p, const attend_space<DIM, HEADS> *s, size_t head, int n_heads, int list,
                            int chunk, bool is_all) {
    for (int i = threadIdx.x; i < n_heads * DIM; i += ATTEND_THREADS) {
        int h = i / DIM, d = i % DIM;
        size_t at = ((head + h) * LISTS + list) * p.max_chunks + chunk;
        float most = -INFINITY, l = 0, o = 0;
        for (int w = 0; w < ATTENDERS; w++) most = fmaxf(most, s->ml[w][h].x);
        for (int w = 0; w < ATTENDERS; w++) {
            float factor = relative(s->ml[w][h].x, most);
            l += factor * s->ml[w][h].y, o += factor * s->o[w][h][d];
        }
        if (is_all) {
            store_bf16(p.out + (head + h) * DIM + d, l > 0 ? o / l : 0);
            continue;
        }
        __stcg(p.o + at * DIM + d, o);
        if (d == 0) __stcg(p.ml + at, make_float2(most, l));
        if (!MOMENTS || i > 0) continue;
        double sums[3] = {0, 0, 0};
        for (int w = 0; w < ATTENDERS; w++) {
            double factor = relative(s->ml[w][0].x, most);
            sums[0] += factor * s->moments[w][0];
            sums[1] += factor * factor * s->moments[w][1], sums[2] += factor * factor * s->moments[w][2];
        }
        for (int j = 0; j < 3; j++) __stcg(p.moments + at * 3 + j, sums[j]);
    }
}

// ---- what is counted ----

// Entries that at least one head of the group reads, as the CPU reports them (decode.c).
__device__ void count_distinct(const attend_params &p, int slot, int head_dim) {
    __shared__ int sums[2];
    int n_kv = p.rows[slot / p.n_kv_heads].position + 1, unit = p.lists.unit, newest = (n_kv - 1) / SL_PAGE * SL_PAGE;
    const uint32_t *mask = p.lists.mask + (size_t)slot * p.group * p.lists.mask_words;
    int n = 0, n_fresh = 0, n_words = ceil_div(ceil_div(n_kv, unit), 32);
    for (int i = threadIdx.x; i < n_words; i += ATTEND_THREADS) {
        uint32_t any = 0;
        for (int h = 0; h < p.group; h++) any |= __ldcg(mask + (size_t)h * p.lists.mask_words + i);
        for (; any; any &= any - 1) {
            int row = (i * 32 + __ffs(any) - 1) * unit, rows = min(unit, n_kv - row);
            n += rows, n_fresh += row >= newest ? rows : 0;
        }
    }
    if (threadIdx.x < 2) sums[threadIdx.x] = 0;
    __syncthreads();
    n = __reduce_add_sync(~0u, n), n_fresh = __reduce_add_sync(~0u, n_fresh);
    if (threadIdx.x % 32 == 0) atomicAdd(&sums[0], n), atomicAdd(&sums[1], n_fresh);
    __syncthreads();
    if (threadIdx.x > 0) return;
    int refined = p.reads_k ? sums[0] - (p.reads_newest ? sums[1] : 0) : 0;
    atomicAdd(&p.stats->v_distinct, (unsigned long long)sums[0]);
    atomicAdd(&p.stats->k_rows, (unsigned long long)refined);
    atomicAdd(&p.stats->bytes, (unsigned long long)(refined + sums[0]) * head_dim * sizeof(bf16));
}

// ---- the kernel ----

__device__ int add_acquired(int *to, int x) { // and what whoever added before has written is seen
    int before;
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;" : "=r"(before) : "l"(to), "r"(x) : "memory");
    return before;
}

// out = sum_j f_j e_j v_j / sum_j f_j e_j over the rows j of a query head's lists: e_j its stored weight, or 2^(q.k_j scale);
// f_j the list's factor.
//
// grid: (chunks of a list, and one more where rows are counted; query heads, or parts of HEADS heads of a KV head; lists), from
// max_kv and the specification alone: blocks without rows end at once. Eight warps; a warp has 16 rows (8 with several heads)
// of K and V on their way at a time.
// bytes: the rows of V, and of K where they are scored, once for each query head (each HEADS heads); of rows that several heads
// picked all but the first reader's come from the L2 cache. Partial results stay there.
// order of reduction: a lane's rows, the lanes of a row, the warps, the chunks, the lists, each in order; chunks follow from
// the list's length alone.
template <int DIM, int HEADS, bool SCORES, bool MOMENTS>
__global__ void __launch_bounds__(ATTEND_THREADS, SCORES ? 2 : 3) attend_rows_kernel(const attend_params p) {
    typedef attender<DIM, HEADS, SCORES, MOMENTS> type;
    __shared__ __align__(16) attend_space<DIM, HEADS> s;
    sl_start_next();
    sl_wait_previous();
    int parts = HEADS > 1 ? ceil_div(p.group, HEADS) : p.group, slot = blockIdx.y / parts;
    int head = slot * p.group + blockIdx.y % parts * HEADS, n_heads = min(HEADS, (slot + 1) * p.group - head);
    int list = p.first_list + blockIdx.z, chunk = blockIdx.x, n_kv = p.rows[slot / p.n_kv_heads].position + 1;
    if (chunk == p.max_chunks) {
        if (blockIdx.z == 0 && blockIdx.y % parts == 0) count_distinct(p, slot, DIM);
        return;
    }
    row_source from = source_of(p, slot, head, list);
    int n_chunks = list_chunks(from.n), rows = list_chunk_rows(from.n), end = min((chunk + 1) * rows, from.n);
    if (chunk >= n_chunks) return;
    type a;
    a.begin(p, head, n_heads);
    int lane_row = threadIdx.x % 32 / type::SHARE;
    for (int i = chunk * rows + threadIdx.x / 32 * type::BATCH; i < end; i += ATTENDERS * type::BATCH) {
        float weight = 0;
        int row = i + lane_row < end ? from.find<SCORES>(i + lane_row, &weight) : -1;
        a.add(p, row, weight);
    }
    leave(a, &s);
    __syncthreads();
    bool is_all = p.n_lists == 1 && n_chunks == 1 && p.out;
    merge_warps<DIM, HEADS, MOMENTS>(p, &s, head, n_heads, list, chunk, is_all);
    if (is_all || !p.out) return;
    __syncthreads();
    if (threadIdx.x == 0) { // the last list alone is counted: the others belong to earlier launches
        s.is_last = add_acquired(p.done + head, 1) == n_chunks - 1;
        if (s.is_last) p.done[head] = 0;
    }
    __syncthreads();
    if (!s.is_last) return;
    for (int i = threadIdx.x; i < n_heads * DIM; i += ATTEND_THREADS)
        store_bf16(p.out + (size_t)head * DIM + i, merge_dim<DIM>(p, head + i / DIM, n_kv, i % DIM));
}

// n_slots: sequences times KV heads. Counts distinct rows with the launch that writes the output.
template <int DIM, int HEADS, bool SCORES, bool MOMENTS>
static void launch_attend(const attend_params &p, int n_slots, int n_lists, cudaStream_t stream) {
    bool counts = p.lists.plan && p.out && p.stats;
    dim3 grid(p.max_chunks + counts, n_slots * (HEADS > 1 ? ceil_div(p.group, HEADS) : p.group), n_lists);
    sl_launch(attend_rows_kernel<DIM, HEADS, SCORES, MOMENTS>, grid, dim3(ATTEND_THREADS), 0, stream, p);
}

} // namespace

#endif
