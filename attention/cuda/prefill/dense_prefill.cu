// attention/cuda/prefill/dense_prefill.cu - attention of a prompt's tokens on any GPU from sm_80, dense or with a mask of key
// blocks, and the choice between this kernel and the kernel for Hopper (dense_prefill_wgmma.cu). dense_prefill.cuh states the
// formula of both. The naive versions are in tests/cuda/naive.h: naive_dense_prefill, naive_masked_prefill.
//
// 4 warps with the same role: each warp has 32 tokens of a tile of 128 tokens.
//
// | shared memory, in order | bytes               | contents                              |
// |-------------------------|---------------------|---------------------------------------|
// | q                       | 128 * 2 (DIM + 8)   | [128 tokens][DIM + 8]; later the output |
// | k                       | 64 * 2 (DIM + 8)    | [64 keys][DIM + 8]                    |
// | v                       | 64 * 2 (DIM + 8)    | [64 keys][DIM + 8]                    |
//
// Worked tile: DIM 128. 128 threads copy 64 keys of 256 bytes: thread t has the 16-byte column t % 16 of rows t / 16, + 8, ...
// A warp computes S [32][64] with 2 x 8 x 8 mma.m16n8k16; a lane holds 2 x 8 x 4 of the scores: those of rows lane / 4 and lane
// / 4 + 8 of both blocks of 16 rows. The softmax reduces over 4 lanes. The masses are packed to bf16 in the same registers, and
// become operand a of O [32][128] += P [32][64] V [64][128].
#include "attention/cuda/head_dim.cuh"
#include "attention/cuda/prefill/dense_prefill.cuh"
#include "attention/cuda/mma_tiles.cuh"
#include "attention/cuda/prefill/query_blocks.cuh"

#include <math.h>

enum { N_WARPS = 4, ROWS = N_WARPS * WARP_ROWS, KEYS = TILE_KEYS, THREADS = 32 * N_WARPS };

typedef struct prefill_params {
    const bf16 *q;     // [n_tokens][q_stride]
    size_t q_stride;   // elements from token to token
    bf16 *out;         // [n_tokens][n_heads][head_dim]
    const bf16 *k, *v; // [n_pages][n_kv_heads][256][head_dim]
    const int32_t *pages;
    int n_tokens, first, n_heads, n_kv_heads;
    float scale;         // sl_score_scale
    query_blocks blocks; // with a mask; dense attention does not read it
} prefill_params;

template <int D> static constexpr size_t shared_bytes = (size_t)(ROWS + 2 * KEYS) * tile_stride<D> * sizeof(bf16);

// o += p v. p: the masses in s, rounded to bf16. v: [KEYS][D] in shared memory.
template <int D>
static __device__ __forceinline__ void add_values(float o[BLOCKS][D / 8][4], const float s[BLOCKS][KEYS / 8][4], const bf16 *v,
                                                  int lane) {
    constexpr int stride = tile_stride<D>;
    const bf16 *vp = v + (lane % 16) * stride + lane / 16 * 8;
#pragma unroll
    for (int j = 0; j < KEYS / 16; j++) {
        uint32_t a[BLOCKS][4], b[4];
#pragma unroll
        for (int i = 0; i < BLOCKS; i++) {
            a[i][0] = sl_pack_bf16(s[i][2 * j][0], s[i][2 * j][1]);
            a[i][1] = sl_pack_bf16(s[i][2 * j][2], s[i][2 * j][3]);
            a[i][2] = sl_pack_bf16(s[i][2 * j + 1][0], s[i][2 * j + 1][1]);
            a[i][3] = sl_pack_bf16(s[i][2 * j + 1][2], s[i][2 * j + 1][3]);
        }
#pragma unroll
        for (int d = 0; d < D / 8; d += 2) {
            load_matrices_transposed(b, vp + j * 16 * stride + d * 8);
#pragma unroll
            for (int i = 0; i < BLOCKS; i++) {
                mma(o[i][d], a[i], b[0], b[1]);
                mma(o[i][d + 1], a[i], b[2], b[3]);
            }
        }
    }
}

// A lane's part of the softmax of its rows. Row 2 b + r is row lane / 4 + 8 r of block b.
typedef struct softmax_state {
    float max[2 * BLOCKS]; // the masses of the row are relative to it (sl_raise_max)
    float sum[2 * BLOCKS]; // of the masses so far, in this lane's columns
} softmax_state;

// Turns scores into masses 2^(scale (s - max)), and scales the state and o to the new maximum.
template <int D>
static __device__ __forceinline__ void softmax(float s[BLOCKS][KEYS / 8][4], float o[BLOCKS][D / 8][4], softmax_state &state,
                                               float scale) {
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float top = state.max[2 * b + r], sum = 0;
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) top = fmaxf(top, fmaxf(s[b][n][2 * r], s[b][n][2 * r + 1]));
            top = sl_quad_max(top);
            float keep = sl_raise_max(&state.max[2 * b + r], top, scale), shift = state.max[2 * b + r] * scale;
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int e = 2 * r; e < 2 * r + 2; e++) {
                    s[b][n][e] = sl_exp2(fmaf(s[b][n][e], scale, -shift));
                    sum += s[b][n][e];
                }
            state.sum[2 * b + r] = state.sum[2 * b + r] * keep + sum;
            if (__any_sync(0xffffffff, keep != 1))
#pragma unroll
                for (int d = 0; d < D / 8; d++) o[b][d][2 * r] *= keep, o[b][d][2 * r + 1] *= keep;
        }
}

// Sets scores of keys after a row's position to -infinity. last: the last visible column of the lane's first row.
static __device__ __forceinline__ void mask(float s[BLOCKS][KEYS / 8][4], int last, int lane) {
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (n * 8 + lane % 4 * 2 + e % 2 > last + 16 * b + e / 2 * 8) s[b][n][e] = -INFINITY;
}

// out = o / sum. The output goes through the warp's rows of the query tile in shared memory, so that lanes store 16-byte pieces
// of rows.
template <int D>
static __device__ __forceinline__ void store(const prefill_params &p, float o[BLOCKS][D / 8][4], const softmax_state &state,
                                             bf16 *staged, int token0, int head, int lane) {
    constexpr int stride = tile_stride<D>;
    __syncwarp(); // other lanes may still read these rows as queries
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float factor = 1 / sl_quad_sum(state.sum[2 * b + r]);
            bf16 *row = staged + (16 * b + 8 * r + lane / 4) * stride + lane % 4 * 2;
#pragma unroll
            for (int d = 0; d < D / 8; d++)
                *(uint32_t *)(row + d * 8) = sl_pack_bf16(o[b][d][2 * r] * factor, o[b][d][2 * r + 1] * factor);
        }
    __syncwarp();
    for (int i = lane; i < WARP_ROWS * (D / 8); i += 32) {
        int row = i / (D / 8), c = i % (D / 8) * 8;
        if (token0 + row >= 0 && token0 + row < p.n_tokens)
            *(uint4 *)(p.out + ((size_t)(token0 + row) * p.n_heads + head) * D + c) =
                *(const uint4 *)(staged + row * stride + c);
    }
}

// Starts the copy of a tile of keys (from = p.k) or values (p.v) that begins at row `key` of the sequence.
template <int D>
static __device__ __forceinline__ void load_keys(const prefill_params &p, bf16 *to, const bf16 *from, int key, int kv_head,
                                                 int n_kv) {
    size_t at = ((size_t)p.pages[key / SL_PAGE] * p.n_kv_heads + kv_head) * SL_PAGE + key % SL_PAGE;
    load_tile<D, KEYS, THREADS>(to, from + at * D, D, 0, n_kv - key);
}

// The first key of the tile after the tile at `key`. With a mask, `row` is that of the query block, and a key block is two
// tiles. Past the row's last set bit the result is at least `end`.
template <bool masked> static __device__ __forceinline__ int next_tile(const uint64_t *row, int key, int end) {
    if (!masked || (key + KEYS) % SL_MASK_BLOCK) return key + KEYS;
    int block = (key + KEYS) / SL_MASK_BLOCK;
    while (block * SL_MASK_BLOCK < end) {
        uint64_t word = row[block / 64] >> (block % 64);
        if (word) return (block + __ffsll((long long)word) - 1) * SL_MASK_BLOCK;
        block = (block / 64 + 1) * 64;
    }
    return end;
}

// Causal attention with mma.sync: the online softmax of FlashAttention-2 (Dao, 2023, section 3.1).
//
// Grid: dense [n_heads][query tiles], longest tiles first. Thread block (h, y) has head h and the tile of 128 tokens that is
// y-th from the end. With a mask [items] (query_blocks.cuh). Heads of a group are neighbours and find their keys in the L2
// cache. A tile of keys has 64 rows, a quarter of a page. The copy of V runs during q k^T. The copy of the next K runs during
// softmax and p v. Every mask has the first key block.
// Preconditions: head_dim D; q, out, k, v 16-byte aligned; q_stride a multiple of 8; pages hold rows [0, first + n_tokens).
// Bytes: q and out once. K and V once for each query tile and head; all tiles but the first one find them in the L2 cache.
// Order of reduction: tiles of 64 keys ascending. In a tile, a row's sum is the sum of four lanes' partial sums.
// Measured on one H100, November 2026, 8k tokens, 32 heads: 345 TFLOP/s with head_dim 128, 310 with 96, 265 with 80, 279 with
// 64 (FlashAttention-2: 322 with 128).
template <int D, bool masked> __global__ void __launch_bounds__(THREADS) dense_prefill_mma_kernel(const prefill_params p) {
    constexpr int stride = tile_stride<D>;
    extern __shared__ __align__(16) unsigned char shared[];
    bf16 *q = (bf16 *)shared, *k = q + ROWS * stride, *v = k + KEYS * stride;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.x;
    int token0 = ((int)gridDim.y - 1 - (int)blockIdx.y) * ROWS;
    const uint64_t *mask_bits = NULL;
    sl_start_next();
    sl_wait_previous();
    if (masked) {
        uint64_t item = p.blocks.items[blockIdx.x];
        head = item_head(item), token0 = item_block(item) * ROWS - p.first % ROWS; // negative: the call begins inside the block
        mask_bits = mask_row(p.blocks, head, (p.first + token0) / ROWS);
    }
    int n_kv = p.first + min(token0 + ROWS, p.n_tokens); // rows that the tile's tokens see
    int row0 = p.first + token0 + warp * WARP_ROWS;      // the warp's first position
    int kv_head = head / (p.n_heads / p.n_kv_heads);
    load_tile<D, ROWS, THREADS>(q, p.q + token0 * (ptrdiff_t)p.q_stride + (size_t)head * D, p.q_stride, -token0,
                                p.n_tokens - token0);
    load_keys<D>(p, k, p.k, 0, kv_head, n_kv);

    float s[BLOCKS][KEYS / 8][4], o[BLOCKS][D / 8][4] = {};
    softmax_state state;
#pragma unroll
    for (int i = 0; i < 2 * BLOCKS; i++) state.max[i] = -INFINITY, state.sum[i] = 0;
    for (int key = 0, next; key < n_kv; key = next) {
        next = next_tile<masked>(mask_bits, key, n_kv);
        copies_landed();
        __syncthreads(); // K has landed, and no thread reads the V of the tile before
        load_keys<D>(p, v, p.v, key, kv_head, n_kv);
        clear(s);
        add_scores<D>(s, q + warp * WARP_ROWS * stride, k, lane);
        copies_landed();
        __syncthreads(); // V has landed, and no thread reads K
        if (next < n_kv) load_keys<D>(p, k, p.k, next, kv_head, n_kv);
        if (key + KEYS - 1 > row0) mask(s, row0 + lane / 4 - key, lane);
        softmax<D>(s, o, state, p.scale);
        add_values<D>(o, s, v, lane);
    }
    store<D>(p, o, state, q + warp * WARP_ROWS * stride, token0 + warp * WARP_ROWS, head, lane);
}

// ---- host ----

static prefill_params params_of(const sl_attn_cuda_prefill_args *args) {
    return {.q = args->q,
            .q_stride = args->q_stride,
            .out = args->out,
            .k = args->k,
            .v = args->v,
            .pages = args->pages,
            .n_tokens = args->n_tokens,
            .first = args->first,
            .n_heads = args->geom->n_heads,
            .n_kv_heads = args->geom->n_kv_heads,
            .scale = sl_score_scale(args->geom->head_dim),
            .blocks = {}};
}

template <int D, bool masked> static void launch_kernel(const sl_attn_cuda_prefill_args *args) {
    prefill_params p = params_of(args);
    dim3 grid(p.n_heads, (p.n_tokens + ROWS - 1) / ROWS);
    if (masked) {
        p.blocks = sl_cuda_order_query_blocks(args, p.n_heads);
        grid = dim3(p.blocks.n_items);
    }
    sl_launch(dense_prefill_mma_kernel<D, masked>, grid, dim3(THREADS), shared_bytes<D>, args->stream, p);
}

template <int D> static void launch(const sl_attn_cuda_prefill_args *args) {
    if (args->mask)
        launch_kernel<D, true>(args);
    else
        launch_kernel<D, false>(args);
}

void sl_cuda_dense_prefill_mma(const sl_attn_cuda_prefill_args *args) {
    SL_WITH_HEAD_DIM(args->geom->head_dim, launch, args);
}

void sl_cuda_dense_prefill(const sl_attn_cuda_prefill_args *args) {
    if (sl_cuda_dense_prefill_wgmma_runs())
        sl_cuda_dense_prefill_wgmma(args);
    else
        sl_cuda_dense_prefill_mma(args);
}
