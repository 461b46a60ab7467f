// attention/cuda/quantised/dense_q.cu - dense-q on CUDA: attention over every row, with the scores of quantised keys in place
// of exact scores. It is the baseline of santa-is: santa-is must be faster. The first kernel stores masses
// (score_quantised.cuh). The second kernel reads all of V.
//
// mass_values_kernel: 8 warps with the same role. Shared memory: values_space. Worked block: DIM 128, group 4. A warp takes
// every eighth block of 32 rows. 16 lanes load a row of V (256 bytes), so a warp needs 16 loads for the block. Lane l computes
// the mass of row l for each head. Then each lane adds 16 rows x 8 columns x 4 heads.
#include "attention/cuda/partial_softmax.cuh"
#include "attention/cuda/quantised/quantised_scores.h"
#include "attention/cuda/head_dim.cuh"
#include "attention/cuda/lists/joined.h"
#include "attention/cuda/score_keys.cuh"

extern "C" {
#include "attention/stages/stages.h"
}

namespace {

enum {
    WARPS = 8,
    THREADS = 32 * WARPS,
    CHUNKS = 32, // of a seq_head at most
};

struct values_params {
    score_params score; // score.done: number of summed chunks of a seq_head; 0 between launches
    const bf16 *v;      // [n_pages][n_kv_heads][256][head_dim]
    bf16 *out;          // [n_seqs][n_kv_heads][group][head_dim]
    float *partial;     // [n_seqs * n_kv_heads][CHUNKS][group][head_dim + 2]
    sl_attn_cuda_stats *stats;
};

__device__ int value_rows_of(int n_kv) { // rows of a chunk
    return max(ceil_div(n_kv, CHUNKS * BLOCK) * BLOCK, (int)SL_PAGE);
}

// ---- values ----

template <int DIM, int HEADS> struct values_space {
    float row_mass[WARPS][BLOCK][HEADS];
    float sum[WARPS][HEADS][DIM];
    float total[WARPS][HEADS];
    int top[HEADS];
    int is_last;
    bool is_exact[HEADS]; // stored masses cannot represent the head
};

// Finds the chunk's largest reference of each head. Then sums mass * v over the rows of V to s->sum. A warp takes every
// WARPS-th block of 32 rows.
template <int DIM, int HEADS>
__device__ void sum_values(const values_params &p, values_space<DIM, HEADS> *s, const sl_row &row, int seq_head, int first,
                           int end) {
    enum { LANES = DIM / 8, ROWS = 32 / LANES, PASSES = (32 + ROWS - 1) / ROWS };
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, own = lane / LANES, group = p.score.group, n_kv = row.position + 1;
    const uint64_t *mass = p.score.mass + (size_t)seq_head * group * p.score.max_blocks;
    for (int h = warp; h < group; h += WARPS) {
        int top = REF_EMPTY;
        for (int b = first + lane; b < end; b += 32) top = max(top, ref_of(__ldcg(mass + (size_t)h * p.score.max_blocks + b)));
        top = __reduce_max_sync(~0u, top);
        if (lane == 0) s->top[h] = top;
    }
    __syncthreads();
    float sum[HEADS][8] = {}, total[HEADS] = {};
    for (int b = first + warp; b < end; b += WARPS) {
        const bf16 *w = p.score.w + ((size_t)seq_head * p.score.max_blocks + b) * group * BLOCK;
        size_t page = (size_t)__ldg(row.pages + b * BLOCK / SL_PAGE) * p.score.n_kv_heads + seq_head % p.score.n_kv_heads;
        const bf16 *v = p.v + (page * SL_PAGE + b * BLOCK % SL_PAGE) * DIM;
        int n = min(n_kv - b * BLOCK, (int)BLOCK);
        uint4 x[PASSES];
#pragma unroll
        for (int j = 0; j < PASSES; j++) {
            int i = j * ROWS + own;
            if (own < ROWS && i < n) x[j] = __ldcs((const uint4 *)(v + (size_t)i * DIM) + lane % LANES);
        }
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            float row_mass = 0;
            if (h < group) {
                int ref = ref_of(__ldcg(mass + (size_t)h * p.score.max_blocks + b));
                row_mass = __uint_as_float((uint32_t)__ldcg((const unsigned short *)w + h * BLOCK + lane) << 16) *
                           exp2f((float)(ref - s->top[h]));
            }
            s->row_mass[warp][lane][h] = row_mass;
            total[h] += row_mass; // mass of the lane's row
        }
        __syncwarp();
#pragma unroll
        for (int j = 0; j < PASSES; j++) {
            int i = j * ROWS + own;
            if (own >= ROWS || i >= n) continue;
            const uint32_t *pairs = (const uint32_t *)&x[j];
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                float c = s->row_mass[warp][i][h];
#pragma unroll
                for (int k = 0; k < 8; k++)
                    sum[h][k] += c * __uint_as_float(k % 2 ? pairs[k / 2] & 0xffff0000u : pairs[k / 2] << 16);
            }
        }
        __syncwarp();
    }
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        total[h] = sl_sum_lanes(total[h]);
        if (lane == 0) s->total[warp][h] = total[h];
#pragma unroll
        for (int k = 0; k < 8; k++) {
            float all = sum[h][k];
#pragma unroll
            for (int i = 1; i < ROWS; i++) all += __shfl_sync(~0u, sum[h][k], lane + i * LANES);
            if (lane < LANES) s->sum[warp][h][lane * 8 + k] = all;
        }
    }
    __syncthreads();
}

// out = sum_j w_j v_j / sum_j w_j from stored masses w.
//
// Grid: (CHUNKS, KV heads, sequences). Thread blocks past a sequence's last chunk end immediately.
// Preconditions: `done` is 0. `done` and next_item are 0 at the end.
// Bytes: V and the stored masses, once.
// Order of reduction: a warp's blocks of 32 rows in order, then the warps, then the chunks: the last thread block of a seq_head
// adds them.
template <int DIM, int HEADS> __global__ void __launch_bounds__(THREADS) mass_values_kernel(const values_params p) {
    extern __shared__ __align__(128) char memory[];
    values_space<DIM, HEADS> *s = (values_space<DIM, HEADS> *)memory;
    sl_start_next();
    const sl_row row = p.score.rows[blockIdx.z];
    int seq_head = blockIdx.z * gridDim.y + blockIdx.y, n_kv = row.position + 1, group = p.score.group;
    int rows = value_rows_of(n_kv), n_chunks = ceil_div(n_kv, rows), first = blockIdx.x * rows / BLOCK;
    sl_wait_previous();
    if (blockIdx.x + blockIdx.y + blockIdx.z + threadIdx.x == 0) *p.score.next_item = 0;
    if ((int)blockIdx.x >= n_chunks) return;
    sum_values(p, s, row, seq_head, first, min(first + rows / BLOCK, ceil_div(n_kv, BLOCK)));
    float *partial = p.partial + (size_t)seq_head * CHUNKS * group * (DIM + 2), *to = partial + blockIdx.x * group * (DIM + 2);
    for (int i = threadIdx.x; i < group * (DIM + 1); i += THREADS) {
        int h = i / (DIM + 1), d = i % (DIM + 1);
        float x = 0;
        for (int w = 0; w < WARPS; w++) x += d < DIM ? s->sum[w][h][d] : s->total[w][h];
        __stcg(to + h * (DIM + 2) + d, x);
        if (d == DIM) __stcg(to + h * (DIM + 2) + DIM + 1, (float)s->top[h]);
    }
    __syncthreads();
    if (threadIdx.x == 0) s->is_last = counts_last_part(p.score.done + seq_head, 1, n_chunks);
    __syncthreads();
    if (!s->is_last) return;
    for (int h = threadIdx.x / 32; h < group; h += WARPS) {
        float top = -INFINITY;
        for (int c = threadIdx.x % 32; c < n_chunks; c += 32)
            top = fmaxf(top, __ldcg(partial + ((size_t)c * group + h) * (DIM + 2) + DIM + 1));
        bool exact = is_beyond((int)sl_max_lanes(top));
        if (exact) attend_exactly<DIM>(exact_head_of(p.score, p.v, NULL, row, seq_head, h, DIM), s->sum[0][h]);
        if (threadIdx.x % 32 > 0) continue;
        s->is_exact[h] = exact;
        if (exact && p.stats) { // account_proposal_and_values has counted every row of V once
            atomicAdd(&p.stats->fallbacks, 1ull);
            atomicAdd(&p.stats->bytes, (unsigned long long)n_kv * 2 * DIM * sizeof(bf16));
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < group * DIM; i += THREADS) {
        const float *from = partial + i / DIM * (DIM + 2);
        float top = -INFINITY, x = 0, total = 0;
        for (int c = 0; c < n_chunks; c++) top = fmaxf(top, __ldcg(from + (size_t)c * group * (DIM + 2) + DIM + 1));
        for (int c = 0; c < n_chunks; c++, from += group * (DIM + 2)) {
            float factor = exp2f(__ldcg(from + DIM + 1) - top);
            x += factor * __ldcg(from + i % DIM), total += factor * __ldcg(from + DIM);
        }
        x = s->is_exact[i / DIM] ? s->sum[0][i / DIM][i % DIM] : x / total;
        p.out[(size_t)seq_head * group * DIM + i] = __bfloat16_as_ushort(__float2bfloat16_rn(x));
    }
}

// ---- launch ----

int needs(const sl_attn_spec *spec, sl_kv_need *out) {
    return sl_propose_quantised.needs(spec, out);
}

size_t lay_out(const sl_attn_geom *geom, int n_seqs, int n_kv, void *ws, values_params *p) {
    arena a = after_counters(ws);
    take_masses(&a, &p->score, geom, n_seqs, n_kv);
    p->partial = a.take<float>((size_t)n_seqs * geom->n_heads * CHUNKS * (geom->head_dim + 2));
    return bytes_taken(a, ws);
}

size_t workspace(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_seqs, int n_tokens, int n_kv) {
    if (spec->plus) return sl_joined_cuda_ops.workspace(geom, spec, n_seqs, n_tokens, n_kv);
    values_params p;
    return lay_out(geom, n_seqs, n_kv, NULL, &p);
}

template <int DIM, int HEADS> void launch_values(const sl_attn_cuda_decode_args *a, const values_params &p) {
    int chunks = ceil_div(a->max_kv, SL_PAGE);
    sl_launch(mass_values_kernel<DIM, HEADS>, dim3(chunks < CHUNKS ? chunks : (int)CHUNKS, a->geom->n_kv_heads, a->n_seqs),
              dim3(THREADS), sizeof(values_space<DIM, HEADS>), a->stream, p);
}

template <int DIM> void launch(const sl_attn_cuda_decode_args *a) {
    values_params p = {.score = score_params_of<DIM>(a), .v = a->v, .out = a->out, .partial = NULL, .stats = a->stats};
    lay_out(a->geom, a->n_seqs, a->max_kv, a->ws, &p);
    sl_cuda_store_quantised_masses(a, p.score.mass, p.score.w);
    if (p.score.group <= 4)
        launch_values<DIM, 4>(a, p);
    else
        launch_values<DIM, 8>(a, p);
}

void decode(const sl_attn_cuda_decode_args *args) {
    if (args->spec->plus) return sl_joined_cuda_ops.decode(args);
    SL_WITH_HEAD_DIM(args->geom->head_dim, launch, args);
}

void account_proposal_and_values(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_kv, sl_attn_stats *stats) {
    uint64_t k_rows = stats->k_rows;
    sl_cuda_account_quantised(geom, spec, n_kv, stats);
    if (spec->plus)
        stats->k_rows = k_rows; // as on the CPU, where no row of K is scored exactly; the kernels of a join count rows of V
    else
        count_rows_read(geom, 0, n_kv, stats);
}

} // namespace

const sl_attn_cuda_ops sl_dense_q_cuda_ops = {.workspace = workspace,
                                              .decode = decode,
                                              .needs = needs,
                                              .state = NULL,
                                              .max_rows = 0,
                                              .account = account_proposal_and_values,
                                              .prefill = NULL,
                                              .supports = NULL,
                                              .mask = NULL,
                                              .mask_workspace = NULL,
                                              .offloaded = NULL,
                                              .bytes = NULL};
