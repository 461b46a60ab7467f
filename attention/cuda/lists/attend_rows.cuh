// attention/cuda/lists/attend_rows.cuh - attention over listed rows, on CUDA: the last kernel of methods that read few rows of
// a long context. The naive version is in tests/cuda/naive.h: naive_sum_of_rows.
// F: the format of the rows. Scales of rows of bytes multiply the scores and the masses (stored_rows.cuh).
//
// select_rows.cuh and vattention.cu write up to three lists of rows for each query head to the workspace. This kernel reads the
// listed rows, in chunks that several thread blocks share, and merges the chunks' results in order. Where rows have stored
// masses (score_keys.cuh), it reads only V. Otherwise it reads and scores their keys too (SCORES). It also counts the distinct
// rows.
//
// Worked 16 rows: DIM 128, SCORES. A warp has 16 rows. Lanes 2 i and 2 i + 1 hold the address of row i. The warp issues 16
// loads of K and 16 of V. A lane l loads 8 bytes each time: dims 4 l .. 4 l + 3. Each lane multiplies its 4 dims of q with 16
// rows. sum_rows adds the products over the lanes. After it, lanes 2 i and 2 i + 1 hold the score of row i. `raise` finds the
// new maximum. Each lane then adds 4 dims of 16 rows.
#ifndef SLEIGH_ATTEND_ROWS_CUH
#define SLEIGH_ATTEND_ROWS_CUH

#include "attention/cuda/partial_softmax.cuh"
#include "attention/cuda/score_keys.cuh"

namespace {

enum {
    ATTEND_WARPS = 8,
    ATTEND_THREADS = 32 * ATTEND_WARPS,
    LISTS = 3,
    BATCH_ROWS = 16, // rows that a warp loads together
    CHUNK_ROWS = BATCH_ROWS * ATTEND_WARPS,
    CHUNKS = 32, // of a list at most
    // Sums of mass, mass^2, |mass * v|^2, mass^3, mass^4, |mass * v|^4.
    MOMENT_SUMS = 6,
    // Most thread blocks of a launch for each multiprocessor. Without this limit most thread blocks of a large batch have no
    // rows: 14 us more at 8 x 32k.
    BLOCKS_PER_SM = 8,
};

// ---- lists ----

// The lists of one query head. An entry stands for `unit` consecutive rows. The newest unit, which can have fewer rows, is the
// last of its list.
struct head_plan {
    int at[LISTS + 1]; // list i: entries [at[i], at[i + 1])
    int top;           // the largest reference of its masses. is_beyond(top): the lists are empty, and the head attends exactly
    float factor;      // 1 / pi of the rows of lists 1 and 2; in list 0 pi is 1
    float hi;          // vattention: log2 of an upper bound of the masses outside list 0, relative to 2^top
};

// The lists of all query heads, in the workspace.
struct row_lists {
    head_plan *plan; // [n_seqs * n_heads]
    int32_t *list;   // [n_seqs * n_heads][capacity] ascending entries
    uint32_t *mask;  // [n_seqs * n_heads][mask_words] bit i: entry i is in a list
    int capacity, mask_words, unit;
    int least_rows; // of a chunk, except a list's last chunk
    // Contexts whose bits of entries do not fit into shared memory: [n_seqs * n_heads][head_memory], in place of it. NULL: they
    // fit.
    int *memory;
};

// Ints in global memory for the arrays of a head that grow with the context: two bits and a reference for each entry, and
// vattention's bits of fixed and drawn rows. A multiple of 64.
static __host__ __device__ size_t head_memory(int mask_words) {
    return ((size_t)mask_words * 7 / 2 + 8448 + 63) / 64 * 64; // 8448: counts of ranks (select_words), and roundings
}

static row_lists take_lists(arena *from, int n_heads, int capacity, int n_entries, int unit, int least_rows = CHUNK_ROWS) {
    row_lists l = {};
    l.capacity = capacity, l.mask_words = ceil_div(n_entries, 32), l.unit = unit, l.least_rows = least_rows;
    l.plan = from->take<head_plan>(n_heads);
    l.list = from->take<int32_t>((size_t)n_heads * capacity);
    l.mask = from->take<uint32_t>((size_t)n_heads * l.mask_words);
    l.memory = n_entries > SL_CUDA_SHORT_ROWS ? from->take<int>(n_heads * head_memory(l.mask_words)) : NULL;
    return l;
}

// Rows of n_entries entries of a list. Its last entry is the newest unit, which can have fewer than `unit` rows.
__device__ int rows_of(int n_entries, int unit, int n_kv) {
    return n_entries * unit - (n_entries > 0 ? (unit - n_kv % unit) % unit : 0);
}

// Rows of a chunk of a list. least: row_lists.least_rows, a multiple of CHUNK_ROWS.
__host__ __device__ int list_chunk_rows(int n_rows, int least) {
    return max(ceil_div(ceil_div(n_rows, CHUNKS), CHUNK_ROWS) * CHUNK_ROWS, least);
}
__host__ __device__ int list_chunks(int n_rows, int least) { // at least 1
    return max(ceil_div(n_rows, list_chunk_rows(n_rows, least)), 1);
}

// ---- parameters ----

struct attend_params {
    const sl_row *rows; // [n_seqs]
    const bf16 *q;      // [n_seqs][n_kv_heads][group][head_dim]
    const bf16 *k, *v;  // [n_pages][n_kv_heads] blocks of 256 rows
    bf16 *out;          // [n_seqs][n_kv_heads][group][head_dim]; NULL: only partial results are wanted
    int n_kv_heads, group;
    float scale; // log2(e) / sqrt(head_dim)
    row_lists lists;
    int first_list;       // first list of this launch; the grid gives the number of lists
    int n_lists;          // lists to merge, including those of earlier launches
    const uint64_t *mass; // stored masses as in score_params, used where this kernel does not score
    const bf16 *w;
    int max_blocks;
    int max_chunks;
    int n_workers;    // thread blocks that share the chunks of a list. One more thread block counts, if stats are wanted
    float2 *ml;       // [n_seqs * n_heads][LISTS][max_chunks] maximum (log2) and sum of a chunk's masses
    float *o;         // [n_seqs * n_heads][LISTS][max_chunks][head_dim] sum of mass * v
    double *moments;  // [n_seqs * n_heads][LISTS][max_chunks][MOMENT_SUMS]
    int *done;        // [n_seqs * n_heads] counter: finished chunks
    bool skips_empty; // heads without rows in first_list have an output already
    int reads_k;      // for the statistics: 1: this kernel reads rows of K
    int reads_newest; // 1: the scores have counted K of the newest page already, because it has no page extra
    sl_attn_cuda_stats *stats;
    const bf16 *host; // IS_OFFLOADED: offloaded_rows.rows
};

static inline void take_partials(arena *from, attend_params *p, int n_heads, int head_dim, int capacity_rows,
                                 int with_moments) {
    p->max_chunks = min(ceil_div(capacity_rows, CHUNK_ROWS), (int)CHUNKS);
    size_t n = (size_t)n_heads * LISTS * p->max_chunks;
    p->ml = from->take<float2>(n);
    p->o = from->take<float>(n * head_dim);
    p->moments = with_moments ? from->take<double>(MOMENT_SUMS * n) : NULL;
}

// Everything but the lists and the memory of partial results.
static inline attend_params attend_params_of(const sl_attn_cuda_decode_args *a) {
    attend_params p = {};
    p.rows = a->rows, p.q = a->q, p.k = a->k, p.v = a->v, p.out = a->out, p.host = a->offloaded_rows;
    p.n_kv_heads = a->geom->n_kv_heads, p.group = a->geom->n_heads / a->geom->n_kv_heads;
    p.scale = sl_score_scale(a->geom->head_dim);
    p.n_lists = 1;
    p.stats = a->stats;
    p.done = counters_of(a, 0).lists_done;
    return p;
}

// ---- the rows of a warp ----

// 2^x for an integer x <= 0; 0 below the normal numbers.
__device__ __forceinline__ float power_of_two(int x) {
    return x < -126 ? 0 : __int_as_float((x + 127) << 23);
}

// The moments of masses that are multiplied by factor.
__device__ __forceinline__ void scale_moments(double sums[MOMENT_SUMS], double factor) {
    double square = factor * factor;
    sums[0] *= factor, sums[1] *= square, sums[2] *= square, sums[3] *= square * factor, sums[4] *= square * square;
    sums[5] *= square * square;
}

// One warp's attention over rows, 16 at a time. A lane has four dims of every row. Lanes 2 i and 2 i + 1 hold the address and
// the mass of row i of the 16.
template <int DIM, bool SCORES, bool MOMENTS, sl_format F> struct attender {
    enum { SHARE = 32 / BATCH_ROWS, LANES = DIM / 4, OF_ROWS = 0 }; // OF_ROWS 1: an entry of a list is one row
    float q[4], o[4];
    float m, l; // l: of the lane's rows
    double sums[MOMENT_SUMS];

    __device__ void begin(const bf16 *q_row) {
        int lane = threadIdx.x % 32;
        widen4(SCORES && lane < LANES ? *((const uint2 *)q_row + lane) : make_uint2(0, 0), q);
        o[0] = o[1] = o[2] = o[3] = 0;
        m = -INFINITY, l = 0;
        for (int i = 0; i < MOMENT_SUMS; i++) sums[i] = 0;
    }

    // Sums s[i] over the lanes. The lanes that hold row i get the sum. In each step a lane passes the sums of half of its rows
    // to another lane.
    static __device__ float sum_rows(float s[BATCH_ROWS]) {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int step = 16; step >= SHARE; step /= 2) {
            bool upper = lane & step;
#pragma unroll
            for (int i = 0; i < BATCH_ROWS / 2; i++) {
                const int n = step / SHARE; // rows that remain
                if (i >= n) continue;
                float give = upper ? s[i] : s[i + n], keep = upper ? s[i + n] : s[i];
                s[i] = keep + __shfl_xor_sync(~0u, give, step);
            }
        }
        return s[0] + __shfl_xor_sync(~0u, s[0], 1);
    }

    // Raises the reference m to the largest score of the 16 rows, if this is larger, and rescales the sums.
    __device__ void raise(float score) {
        float next = score;
#pragma unroll
        for (int step = SHARE; step < 32; step *= 2) next = fmaxf(next, __shfl_xor_sync(~0u, next, step));
        next = fmaxf(m, next);
        float factor = exp2f(m - next);
        m = next, l *= factor;
        o[0] *= factor, o[1] *= factor, o[2] *= factor, o[3] *= factor;
        if (MOMENTS) scale_moments(sums, factor);
    }

    __device__ void fetch(const attend_params &, int) {} // `add` loads the rows itself

    // Adds 16 rows. row: the lane's pool row, or -1. row_mass: its mass, if this kernel does not score the rows.
    __device__ void add(const attend_params &p, int row, float row_mass) {
        int lane = threadIdx.x % 32;
        four_numbers x[BATCH_ROWS], y[BATCH_ROWS];
        uint64_t policy = sl_l2_policy(SL_L2_FIRST_OUT); // draw_rows.cuh, gather: why these rows leave the L2 cache first
        float k_scale = IS_BYTES && SCORES && row >= 0 ? __ldg(scale_of_pool<DIM>(p.k, row)) : 1;
        float v_scale = IS_BYTES && row >= 0 ? __ldg(scale_of_pool<DIM>(p.v, row)) : 1;
#pragma unroll
        for (int i = 0; i < BATCH_ROWS; i++) {
            int at = __shfl_sync(~0u, row, i * SHARE);
            bool real = at >= 0 && lane < LANES;
            if (SCORES)
                x[i] = real ? load_part((const four_numbers *)k_of_row<DIM>(p.k, p.host, at) + lane, policy) : four_numbers{};
            y[i] = real ? load_part((const four_numbers *)v_of_row<DIM>(p.v, p.host, at) + lane, policy) : four_numbers{};
        }
        count_fetched(p.stats, row, SHARE);
        if (SCORES) {
            float s[BATCH_ROWS];
#pragma unroll
            for (int i = 0; i < BATCH_ROWS; i++) {
                float k[4];
                widen4(x[i], k, F == SL_FP8);
                s[i] = q[0] * k[0] + q[1] * k[1] + q[2] * k[2] + q[3] * k[3];
            }
            float score = sum_rows(s) * p.scale;
            if (IS_BYTES) score *= k_scale;
            score = row >= 0 ? score : -INFINITY;
            raise(score);
            row_mass = exp2f(score - m);
        } else {
            m = 0;
        }
        l += row_mass;
        if (MOMENTS) {
            double square = (double)row_mass * row_mass;
            sums[0] += row_mass, sums[1] += square, sums[3] += square * row_mass, sums[4] += square * square;
        }
        float squares[BATCH_ROWS];
#pragma unroll
        for (int i = 0; i < BATCH_ROWS; i++) {
            float v[4], own = __shfl_sync(~0u, IS_BYTES ? row_mass * v_scale : row_mass, i * SHARE);
            widen4(y[i], v, F == SL_FP8);
            o[0] += own * v[0], o[1] += own * v[1], o[2] += own * v[2], o[3] += own * v[3];
            if (MOMENTS) sums[2] += squares[i] = own * own * (v[0] * v[0] + v[1] * v[1] + v[2] * v[2] + v[3] * v[3]);
        }
        if (MOMENTS) {
            double square = sum_rows(squares); // |mass * v|^2 of the lane's row
            sums[5] += square * square;
        }
    }
};

// ---- which rows ----

// The rows of one list of one query head.
struct row_source {
    const int32_t *pages, *list;
    int kv_head, n_kv_heads, unit, n, newest; // newest: the number of the newest page
    const uint64_t *mass;                     // of the head
    const bf16 *w;
    int stride, top;

    // Returns the pool row of row i of the list, and finds its stored mass.
    template <bool SCORES> __device__ int find(int i, float *row_mass) const {
        int row = __ldcg(list + i / unit) * unit + i % unit;
        if (!SCORES) {
            int ref = ref_of(__ldcg(mass + row / BLOCK));
            bf16 x = __ldcg((const unsigned short *)w + (size_t)(row / BLOCK) * stride + row % BLOCK);
            *row_mass = __uint_as_float((uint32_t)x << 16) * power_of_two(ref - top);
        }
        return mark_row((pages[row / SL_PAGE] * n_kv_heads + kv_head) * SL_PAGE + row % SL_PAGE, row / SL_PAGE, newest);
    }
};

// The rows of list `list` of query head `head`, counted over all sequences.
__device__ row_source source_of(const attend_params &p, const sl_row &row, int seq_head, int head, int list) {
    const head_plan *plan = p.lists.plan + head;
    int from = list > 0 ? plan->at[list] : 0; // the entries of the first list can be loaded without waiting for the plan
    return {.pages = row.pages,
            .list = p.lists.list + (size_t)head * p.lists.capacity + from,
            .kv_head = seq_head % p.n_kv_heads,
            .n_kv_heads = p.n_kv_heads,
            .unit = p.lists.unit,
            .n = rows_of(plan->at[list + 1] - from, p.lists.unit, row.position + 1),
            .newest = row.position / SL_PAGE,
            .mass = p.mass + (size_t)head * p.max_blocks,
            .w = p.w + ((size_t)seq_head * p.max_blocks * p.group + head % p.group) * BLOCK,
            .stride = p.group * BLOCK,
            .top = plan->top};
}

// ---- merging results ----

template <int DIM> struct attend_space {
    float o[ATTEND_WARPS][DIM];
    float2 ml[ATTEND_WARPS]; // of the warps
    double moments[ATTEND_WARPS][MOMENT_SUMS];
    float2 parts[LISTS * CHUNKS]; // (maximum, sum) of all chunks
    float factor[LISTS];
    int first[LISTS + 1]; // first part of each list
    int is_last;
};

__device__ double sum_lanes(double x) {
    for (int step = 16; step >= 1; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    return x;
}

// Stores a warp's result to shared memory.
template <int DIM, bool SCORES, bool MOMENTS, sl_format F>
__device__ void store_warp(const attender<DIM, SCORES, MOMENTS, F> &a, attend_space<DIM> *s) {
    typedef attender<DIM, SCORES, MOMENTS, F> type;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float l = a.l;
    for (int step = type::SHARE; step < 32; step *= 2) l += __shfl_xor_sync(~0u, l, step);
    if (lane == 0) s->ml[warp] = make_float2(a.m, l);
    if (lane < type::LANES) *(float4 *)&s->o[warp][4 * lane] = make_float4(a.o[0], a.o[1], a.o[2], a.o[3]);
    if constexpr (MOMENTS) {
#pragma unroll
        for (int i = 0; i < MOMENT_SUMS; i++) {
            double sum = sum_lanes(a.sums[i]) / (i == 2 ? 1 : (int)type::SHARE); // SHARE lanes hold the mass of a row
            if (lane == 0) s->moments[warp][i] = sum;
        }
    }
}

__device__ void store_bf16(bf16 *to, float x) {
    *to = __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

// Adds the warps' results in order. Stores the output if this is the only chunk. Otherwise stores a partial result.
template <int DIM, bool MOMENTS>
__device__ void merge_warps(const attend_params &p, const attend_space<DIM> *s, size_t head, int list, int chunk, bool is_all) {
    size_t at = (head * LISTS + list) * p.max_chunks + chunk;
    int d = threadIdx.x;
    if (d >= DIM) return;
    float o = 0;
    float2 ml = add_parts<ATTEND_WARPS>([&](int w) { return s->ml[w]; }, [&](int w) { return s->o[w][d]; }, &o);
    if (is_all) return store_bf16(p.out + head * DIM + d, ml.y == 0 ? 0 : o / ml.y); // 0 / 0: no row was listed
    __stcg(p.o + at * DIM + d, o);
    if (d == 0) __stcg(p.ml + at, ml);
    if (!MOMENTS || d > 0) return;
    double sums[MOMENT_SUMS] = {};
    for (int w = 0; w < ATTEND_WARPS; w++) {
        double own[MOMENT_SUMS];
        for (int j = 0; j < MOMENT_SUMS; j++) own[j] = s->moments[w][j];
        scale_moments(own, rescale(s->ml[w].x, ml.x));
        for (int j = 0; j < MOMENT_SUMS; j++) sums[j] += own[j];
    }
    for (int j = 0; j < MOMENT_SUMS; j++) __stcg(p.moments + at * MOMENT_SUMS + j, sums[j]);
}

// out = sum_c f_c 2^(m_c - m) o_c / sum_c f_c 2^(m_c - m) l_c over the chunks c of the head's lists. A warp adds every eighth
// chunk, then the warps are added in order.
template <int DIM> __device__ void merge_chunks(const attend_params &p, attend_space<DIM> *s, size_t head, int n_kv) {
    if (threadIdx.x == 0) {
        s->first[0] = 0;
        const head_plan *plan = p.lists.plan + head;
        for (int list = 0; list < p.n_lists; list++) {
            int n_rows = rows_of(plan->at[list + 1] - plan->at[list], p.lists.unit, n_kv);
            s->first[list + 1] = s->first[list] + list_chunks(n_rows, p.lists.least_rows);
            s->factor[list] = list > 0 ? plan->factor : 1;
        }
    }
    __syncthreads();
    int n = s->first[p.n_lists], i = threadIdx.x;
    for (int list = 0; list < p.n_lists; list++)
        if (i >= s->first[list] && i < s->first[list + 1])
            s->parts[i] = __ldcg(p.ml + (head * LISTS + list) * p.max_chunks + i - s->first[list]);
    __syncthreads();
    int warp = i / 32, lane = i % 32, list = 0;
    float4 o = make_float4(0, 0, 0, 0);
    float most = -INFINITY, l = 0, sum = 0;
    for (int c = 0; c < n; c++) most = fmaxf(most, s->parts[c].x);
    for (int c = warp; c < n; c += ATTEND_WARPS) {
        while (c >= s->first[list + 1]) list++;
        size_t at = (head * LISTS + list) * p.max_chunks + c - s->first[list];
        float factor = s->factor[list] * rescale(s->parts[c].x, most);
        float4 x = lane < DIM / 4 ? __ldcg((const float4 *)(p.o + at * DIM) + lane) : make_float4(0, 0, 0, 0);
        add_scaled(&o, factor, x);
        l += factor * s->parts[c].y;
    }
    if (lane < DIM / 4) *(float4 *)&s->o[warp][4 * lane] = o;
    if (lane == 0) s->ml[warp].y = l;
    __syncthreads();
    if (i >= DIM) return;
    l = 0;
    for (int w = 0; w < ATTEND_WARPS; w++) sum += s->o[w][i], l += s->ml[w].y;
    store_bf16(p.out + head * DIM + i, l == 0 ? 0 : sum / l);
}

// ---- statistics ----

// Counts the entries that at least one head of the group reads, as the CPU reports them (decode.c).
__device__ void count_distinct(const attend_params &p, int seq_head, int row_bytes) {
    __shared__ int sums[2];
    int n_kv = p.rows[seq_head / p.n_kv_heads].position + 1, unit = p.lists.unit, newest = (n_kv - 1) / SL_PAGE * SL_PAGE;
    const uint32_t *mask = p.lists.mask + (size_t)seq_head * p.group * p.lists.mask_words;
    int n_entries = ceil_div(n_kv, unit), n_words = ceil_div(n_entries, 32), first_fresh = newest / unit, n = 0, n_fresh = 0;
    for (int i = threadIdx.x; i < n_words; i += ATTEND_THREADS) {
        uint32_t any = 0;
        for (int h = 0; h < p.group; h++) any |= __ldcg(mask + (size_t)h * p.lists.mask_words + i);
        uint32_t fresh = i >= first_fresh / 32 ? any & (i > first_fresh / 32 ? ~0u : ~0u << first_fresh % 32) : 0;
        int short_of = i == n_words - 1 && any >> (n_entries - 1) % 32 & 1 ? n_entries * unit - n_kv : 0; // the newest unit
        n += __popc(any) * unit - short_of, n_fresh += __popc(fresh) * unit - short_of;
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
    atomicAdd(&p.stats->bytes, (unsigned long long)(refined + sums[0]) * row_bytes);
}

// ---- heads that stored masses cannot represent ----

// Exact attention by one warp. The function counts the keys of the head, because count_distinct counts only rows of lists.
template <int DIM, sl_format F>
__device__ void attend_beyond(const attend_params &p, attend_space<DIM> *s, const sl_row &row, int seq_head, int head) {
    const exact_head h =
        make_exact_head(p.q + (size_t)head * DIM, p.k, p.v, row, p.n_kv_heads, seq_head, p.scale, NULL, p.host, F == SL_FP8);
    attend_exactly<DIM>(h, s->o[0]);
    for (int d = threadIdx.x; d < DIM; d += 32) store_bf16(p.out + (size_t)head * DIM + d, s->o[0][d]);
    if (!p.stats || threadIdx.x > 0) return;
    atomicAdd(&p.stats->fallbacks, 1ull);
    if (!p.reads_k) atomicAdd(&p.stats->bytes, (unsigned long long)h.n_kv * counted_row(DIM));
}

// ---- the kernel ----

// What a thread block does. a: the attender of the warp.
template <int DIM, bool SCORES, bool MOMENTS, sl_format F, typename Attender>
__device__ __forceinline__ void attend_lists(const attend_params &p, attend_space<DIM> &s, Attender &a) {
    int head = blockIdx.y, seq_head = head / p.group, list = p.first_list + blockIdx.z, n_done = 0;
    const sl_row row = p.rows[seq_head / p.n_kv_heads];
    if ((int)blockIdx.x == p.n_workers) {
        if (head % p.group == 0) count_distinct(p, seq_head, counted_row(DIM));
        return;
    }
    row_source from = source_of(p, row, seq_head, head, list);
    if (Attender::OF_ROWS) from.unit = 1;                   // a constant: no divisions
    if (from.n == 0 && is_beyond(p.lists.plan[head].top)) { // only a head with an empty list waits for the load of `top`
        if (p.out && blockIdx.x == 0 && threadIdx.x < 32) attend_beyond<DIM, F>(p, &s, row, seq_head, head);
        return;
    }
    if (p.skips_empty && from.n == 0) return;
    int n_chunks = list_chunks(from.n, p.lists.least_rows), chunk_rows = list_chunk_rows(from.n, p.lists.least_rows);
    bool is_all = p.n_lists == 1 && n_chunks == 1 && p.out;
    for (int chunk = blockIdx.x; chunk < n_chunks; chunk += p.n_workers, n_done++) {
        int at = chunk * chunk_rows + threadIdx.x / 32 * BATCH_ROWS, end = min((chunk + 1) * chunk_rows, from.n);
        int lane_row = threadIdx.x % 32 / (32 / BATCH_ROWS);
        float row_mass = 0, next_mass = 0;
        int next = at + lane_row < end ? from.find<SCORES>(at + lane_row, &next_mass) : -1;
        a.begin(p.q + (size_t)head * DIM);
        for (; at < end; at += CHUNK_ROWS) {
            int place = next, ahead = at + CHUNK_ROWS + lane_row;
            row_mass = next_mass, next_mass = 0;
            a.fetch(p, place);
            next = ahead < end ? from.find<SCORES>(ahead, &next_mass) : -1;
            a.add(p, place, row_mass);
        }
        store_warp(a, &s);
        __syncthreads();
        merge_warps<DIM, MOMENTS>(p, &s, head, list, chunk, is_all);
        __syncthreads();
    }
    if (is_all || !p.out || n_done == 0) return;
    if (threadIdx.x == 0) // a launch that writes the output has one list, and n_chunks counts its chunks
        s.is_last = counts_last_part(p.done + head, n_done, n_chunks);
    __syncthreads();
    if (s.is_last) merge_chunks(p, &s, head, row.position + 1);
}

// out = sum_j f_j e_j v_j / sum_j f_j e_j over the rows j of a query head's lists. e_j: the stored mass, or 2^(q.k_j scale).
// f_j: the factor of the list.
//
// Grid: (workers that take the chunks of a list in turn, and one thread block more that counts; query heads; lists). The grid
// depends only on max_kv, the number of sequences and the specification. A thread block has eight warps; a warp has 16 rows of
// K and V in flight.
// Bytes: the rows of V, and of K with SCORES, once per query head. Rows that several heads of a group list come from the L2
// cache for all but the first reader. Partial results stay in the L2 cache.
// Order of reduction: a lane's rows, the lanes of a row, the warps, the chunks, the lists, each in order. Chunks depend only on
// the list's length.
template <int DIM, bool SCORES, bool MOMENTS, sl_format F>
__global__ void __launch_bounds__(ATTEND_THREADS, SCORES ? 2 : 3) attend_rows_kernel(const attend_params p) {
    __shared__ __align__(16) attend_space<DIM> s;
    sl_start_next();
    sl_wait_previous();
    attender<DIM, SCORES, MOMENTS, F> a;
    attend_lists<DIM, SCORES, MOMENTS, F>(p, s, a);
}

// Thread blocks that share the chunks of a list.
static inline int attend_workers(const attend_params &p, int n_lists, int blocks_per_sm) {
    return min(ceil_div(blocks_per_sm * sl_multiprocessors(), n_lists), p.max_chunks);
}

// n_heads: of all sequences. A launch that writes the output has one list, and counts distinct rows.
template <int DIM, bool SCORES, bool MOMENTS, sl_format F = SL_BF16>
static void launch_attend(attend_params p, int n_heads, int n_lists, cudaStream_t stream) {
    p.n_workers = attend_workers(p, n_heads * n_lists, BLOCKS_PER_SM);
    dim3 grid(p.n_workers + (p.out && p.stats), n_heads, n_lists);
    sl_launch(attend_rows_kernel<DIM, SCORES, MOMENTS, F>, grid, dim3(ATTEND_THREADS), 0, stream, p);
}

} // namespace

#endif
