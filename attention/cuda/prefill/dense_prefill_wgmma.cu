// attention/cuda/prefill/dense_prefill_wgmma.cu - attention of a prompt's tokens on Hopper: dense, or with a mask of key
// blocks. The tensor memory accelerator (TMA) copies tiles, and wgmma multiplies them. dense_prefill.cuh states the formula.
// The overlaps are those of FlashAttention-3 (Shah et al., 2024, section 3). The naive versions are in tests/cuda/naive.h:
// naive_dense_prefill, naive_masked_prefill.
//
// With a mask a query tile is a query block, at its place in the sequence, and the loading warp walks the set bits of the
// block's row. Everything else is the same: a tile of keys is a key block.
//
// | role     | warps          | registers  | does                                                            |
// |----------|----------------|------------|-----------------------------------------------------------------|
// | load     | warp 0 of 4    | 24 to 40   | issues TMA copies of query tiles, K tiles, V tiles              |
// | compute  | 2 or 3 groups of 4 | 160 to 240 | a warpgroup has 64 tokens of the tile: scores, softmax, values, output |
//
// | shared memory, in order | bytes (DIM 128)  | contents                                              |
// |-------------------------|------------------|-------------------------------------------------------|
// | 2 query tiles           | 2 x 32 KB        | [2 warpgroups][64 tokens][128]; later the output      |
// | 2 K tiles               | 2 x 32 KB        | [128 keys][128], 128-byte swizzle                     |
// | 2 V tiles               | 2 x 32 KB        | [128 keys][128], 128-byte swizzle                     |
//
// Worked tile: DIM 128. Lane 0 of the loading warp issues two boxes of [128 keys][64 columns] for K. A warpgroup computes S
// [64][128] with 8 wgmma.m64n128k16; a lane holds 64 scores: 32 columns of rows lane / 4 and lane / 4 + 8 of its warp's 16
// rows. The softmax reduces over 4 lanes. 64 masses become 32 registers of bf16 pairs, operand a of O [64][128] += P [64][128]
// V [128][128]: 8 wgmma.
//
// The machine code exists for sm_90a only. For other architectures the kernel's body is empty, and
// sl_cuda_dense_prefill_wgmma_runs returns 0.
#include "attention/cuda/head_dim.cuh"
#include "attention/cuda/prefill/prefill_wgmma.cuh"

enum {
    N_STAGES = 2, // key tiles in flight, K and V each
    BAR_TURN = 1, // named barriers: + w: warpgroup w may issue its products
};

// Shared memory of a thread block. A tile of n rows lies as [padded / 64][n][64] elements with TMA's 128-byte swizzle: the
// 16-byte unit c of row r has the place c ^ (r % 8). Columns from D on are not used.
// masked: a tile has the 128 queries of a query block.
template <int D, bool masked> struct tiles {
    // Number of computing warpgroups: three if scores, masses and output fit in 160 registers a thread.
    static constexpr int n_wgs = D == 64 && !masked ? 3 : 2;
    static constexpr int threads = WG_THREADS * (n_wgs + 1);
    static constexpr int rows = WG_ROWS * n_wgs;
    static constexpr int padded = (D + COLUMNS - 1) / COLUMNS * COLUMNS;
    static constexpr int wg_bytes = WG_ROWS * padded * 2; // queries of one warpgroup, later its output
    static constexpr int q_bytes = n_wgs * wg_bytes;
    static constexpr int kv_bytes = KEYS * padded * 2;
    static constexpr int k_at = 2 * q_bytes, v_at = k_at + N_STAGES * kv_bytes; // two query tiles come first
    static constexpr int bytes = v_at + N_STAGES * kv_bytes + 1024;             // 1024 bytes more to align to 1024
    // The multiprocessor has 65536 registers. The loading warpgroup releases most of its registers for the other warpgroups.
    // The walk over a mask needs more than 24.
    static constexpr int load_registers = masked ? 40 : n_wgs == 2 ? 24 : 32;
    static constexpr int compute_registers = masked ? 232 : n_wgs == 2 ? 240 : 160;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// ---- the pieces of the kernel ----

typedef struct ring { // K and V tiles. full: the tile has landed. empty: no computing warp reads it any more
    uint64_t full[N_STAGES], empty[N_STAGES];
} ring;

typedef struct barriers {
    ring k, v, q;  // q: q: the two query tiles
    uint64_t tail; // the last tile of V has landed, but its rows after the end are not yet zero
} barriers;

template <> struct key_tiles<true> { // the set bits of a row of the mask
    int block, page, next, ahead;    // key block and page of the current tile, page and key block of the next tile
    const uint64_t *row;
    uint64_t word,
        mine;         // bits of the current word that are not visited; words of all lanes, which become current in this order
    int at, n_loaded; // key block of the current word's first bit; words of the row that lanes have loaded
    __device__ __forceinline__ int key(int) const { return block * KEYS; }
    // Finds the next set bit. There must be one.
    __device__ __forceinline__ void find(const prefill_params &p, int lane) {
        while (!word) {
            uint32_t some = __ballot_sync(~0u, mine != 0);
            if (some) {
                int from = __ffs(some) - 1;
                word = __shfl_sync(~0u, mine, from), at = (n_loaded - 32 + from) * 64;
                if (lane == from) mine = 0;
            } else {
                mine = n_loaded + lane < p.blocks.n_words ? row[n_loaded + lane] : 0;
                n_loaded += 32;
            }
        }
        ahead = at + __ffsll((long long)word) - 1;
        word &= word - 1;
        next = p.pages[ahead * KEYS / SL_PAGE];
    }
    template <typename W> __device__ __forceinline__ void begin(const prefill_params &p, const W &w, int lane) {
        row = mask_row(p.blocks, w.head, (p.first + w.token0) / KEYS);
        word = mine = 0, n_loaded = block = page = 0;
        find(p, lane);
    }
    template <typename W> __device__ __forceinline__ void step(const prefill_params &p, const W &w, int j, int lane) {
        block = ahead, page = next;
        if (j + 1 < w.n_keys) find(p, lane);
    }
};

// The loading warp: copies queries, then K and V tiles, until the rings are full. V is copied one tile later than K, because it
// is used later.
template <int D, bool masked>
static __device__ __forceinline__ void load(const prefill_params &p, uint32_t shared, barriers *bars, const CUtensorMap *q_map,
                                            const CUtensorMap *k_map, const CUtensorMap *v_map, int lane) {
    using T = tiles<D, masked>;
    work<T::rows, masked> w;
    int n_done = 0; // key tiles of the query tiles before
    uint32_t tail_parity = 0;
    for (int n = 0; w.next(p); n++) {
        barrier_wait(&bars->q.empty[n % 2], n / 2 % 2 ^ 1);
        if (lane == 0) load_queries<D, T::n_wgs>(shared + n % 2 * T::q_bytes, q_map, w.head, w.token0, &bars->q.full[n % 2]);
        int kv_head = w.head / (p.n_heads / p.n_kv_heads);
        int n_kv = p.first + p.n_tokens;
        key_tiles<masked> keys;
        keys.begin(p, w, lane);
        for (int j = 0; j <= w.n_keys; j++) {
            int key_v = keys.key(j - 1),
                row_v = (keys.page * p.n_kv_heads + kv_head) * SL_PAGE + key_v % SL_PAGE; // V tile j - 1
            if (j < w.n_keys) {
                keys.step(p, w, j, lane);
                int stage = (n_done + j) % N_STAGES;
                barrier_wait(&bars->k.empty[stage], (n_done + j) / N_STAGES % 2 ^ 1);
                int row = (keys.page * p.n_kv_heads + kv_head) * SL_PAGE + keys.key(j) % SL_PAGE;
                if (lane == 0) load_keys<D>(shared + T::k_at + stage * T::kv_bytes, k_map, row, &bars->k.full[stage]);
            }
            if (j == 0) continue;
            int stage = (n_done + j - 1) % N_STAGES;
            uint32_t v = shared + T::v_at + stage * T::kv_bytes;
            barrier_wait(&bars->v.empty[stage], (n_done + j - 1) / N_STAGES % 2 ^ 1);
            bool tail = key_v + KEYS > n_kv;
            uint64_t *landed = tail ? &bars->tail : &bars->v.full[stage];
            if (lane == 0) load_keys<D>(v, v_map, row_v, landed);
            if (!tail) continue;
            barrier_wait(landed, tail_parity);
            tail_parity ^= 1;
            clear_tail<D>(v, n_kv - key_v, lane);
            if (lane == 0) barrier_arrive(&bars->v.full[stage]);
        }
        n_done += w.n_keys;
    }
}

// Turns scores into masses 2^(scale (s - max)). With `hidden`, columns > last (> last + 8 for the second row) get the mass 0.
template <bool hidden>
static __device__ __forceinline__ void softmax(float (&s)[64], softmax_state &state, float scale, int last) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = state.max[r];
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 2 * r; e < 2 * r + 2; e++) {
                if (hidden && n * 8 + e % 2 > last + 8 * r) s[4 * n + e] = -INFINITY;
                top = fmaxf(top, s[4 * n + e]);
            }
        weigh_row(s, state, r, sl_quad_max(top), scale);
    }
}

// The state of a computing warpgroup from tile to tile.
template <int D> struct consumer {
    float o[D / 2];
    uint32_t p[32]; // masses of the newest tile; its V has landed, and its product with V is not yet issued
    softmax_state state;
    int n_done; // key tiles whose scores are computed; the last of them has not yet been multiplied by V
};

// Adds key tile j. The products for the scores of tile j and for the values of tile j - 1 are issued together. The softmax
// of tile j runs during the product with the values. While this warpgroup computes its softmax, other warpgroups use the
// tensor cores.
template <int D, bool masked, bool hidden>
static __device__ __forceinline__ void step(consumer<D> &c, uint32_t q, uint32_t shared, barriers *bars, int wg, int lane,
                                            float scale, int last) {
    using T = tiles<D, masked>;
    float s[64];
    int k_stage = c.n_done % N_STAGES, v_stage = (c.n_done - 1) % N_STAGES;
    named_sync(BAR_TURN + wg, 2 * WG_THREADS);
    barrier_wait(&bars->k.full[k_stage], c.n_done / N_STAGES % 2);
    issue_scores<D>(s, q, shared + T::k_at + k_stage * T::kv_bytes);
    issue_values<D>(c.o, c.p, shared + T::v_at + v_stage * T::kv_bytes);
    named_arrive(BAR_TURN + (wg + 1) % T::n_wgs, 2 * WG_THREADS);
    wgmma_wait<1>(s);
    if (lane == 0) barrier_arrive(&bars->k.empty[k_stage]);
    softmax<hidden>(s, c.state, scale, last);
    // Test the barrier here and not at the use of V: the assembler moves no arithmetic across the loop of a wait. So all of the
    // softmax runs during the product with V.
    pin(s);
    barrier_poll(&bars->v.full[k_stage], c.n_done / N_STAGES % 2);
    wgmma_wait<0>(c.o);
    if (lane == 0) barrier_arrive(&bars->v.empty[v_stage]);
    if (__any_sync(0xffffffff, c.state.keep[0] != 1 || c.state.keep[1] != 1))
#pragma unroll
        for (int i = 0; i < D / 2; i++) c.o[i] *= c.state.keep[i / 2 % 2];
    round_masses(c.p, s);
    c.n_done++;
}

template <int D, bool masked>
static __device__ __forceinline__ void compute(const prefill_params &p, uint32_t shared, barriers *bars,
                                               const CUtensorMap *out_map, int wg, int thread) {
    using T = tiles<D, masked>;
    int lane = thread % 32;
    int row = thread / 32 * 16 + lane / 4; // this lane's first row among the warpgroup's 64 rows
    work<T::rows, masked> w;
    consumer<D> c;
    c.n_done = 0;
    bool more = w.next(p);
    if (wg == T::n_wgs - 1) named_arrive(BAR_TURN, 2 * WG_THREADS); // lets warpgroup 0 begin
    for (int n = 0; more; n++) {
        uint32_t q = shared + n % 2 * T::q_bytes + wg * T::wg_bytes;
        int position = w.place(p, w.token0 + wg * WG_ROWS); // of the warpgroup's first token
        int last = position + row - lane % 4 * 2; // last visible column, relative to the lane's first column of tile 0
        int n_whole = min((position + 1) / KEYS, w.n_keys); // key tiles in which all tokens of the warpgroup see all rows
        float s[64];
        int stage = c.n_done % N_STAGES;
        barrier_wait(&bars->q.full[n % 2], n / 2 % 2);
        barrier_wait(&bars->k.full[stage], c.n_done / N_STAGES % 2);
        issue_scores<D>(s, q, shared + T::k_at + stage * T::kv_bytes);
#pragma unroll
        for (int i = 0; i < D / 2; i++) c.o[i] = 0;
        c.state = {{-INFINITY, -INFINITY}, {0, 0}, {0, 0}};
        wgmma_wait<0>(s);
        if (lane == 0) barrier_arrive(&bars->k.empty[stage]);
        softmax<true>(s, c.state, p.scale, last);
        barrier_wait(&bars->v.full[stage], c.n_done / N_STAGES % 2);
        round_masses(c.p, s);
        c.n_done++;
        if (n > 0 && thread == 0) { // when the output before has left shared memory, the loading warp may use its place
            tma_stores_read();
            barrier_arrive(&bars->q.empty[(n - 1) % 2]);
        }
        int j = 1;
        for (; j < n_whole; j++) step<D, masked, false>(c, q, shared, bars, wg, lane, p.scale, 0);
        for (; j < w.n_keys; j++) step<D, masked, true>(c, q, shared, bars, wg, lane, p.scale, last - j * KEYS);
        stage = (c.n_done - 1) % N_STAGES;
        issue_values<D>(c.o, c.p, shared + T::v_at + stage * T::kv_bytes);
        int head = w.head, token = w.token0 + wg * WG_ROWS;
        more = w.next(p);
        wgmma_wait<0>(c.o);
        if (lane == 0) barrier_arrive(&bars->v.empty[stage]);
        store<D, masked>(p, c.o, c.state.sum, q, out_map, head, token, wg, thread);
    }
    if (thread == 0) tma_stores_read(); // shared memory must exist until the stores have read it
}

#endif // __CUDA_ARCH_FEAT_SM90_ALL

// Causal attention for paged keys, with the two overlaps of FlashAttention-3 (step): dense, or with a mask of key blocks.
//
// Grid: one thread block per multiprocessor, each with its share of the query tiles (work).
// Preconditions: head_dim D; all pointers 16-byte aligned; q_stride a multiple of 8; pages hold rows [0, first + n_tokens);
// tensor maps and section_heads as the launcher makes them.
// Bytes: q and out once. K and V once for each query tile and head. Of the thread blocks that run together, all but the first
// one find them in the L2 cache.
// Order of reduction: tiles of 128 keys ascending. In a tile, a row's sum is the sum of four lanes' partial sums.
// Measured on one H100, November 2026, 32 heads of 128 over 8 KV heads: 680 TFLOP/s at 4k tokens, 727 at 8k, 689 at 32k (where
// power limits the clock), 670 for 2,048 tokens after 30,720, 690 for 8,192 after 24,576. cuBLAS multiplies large matrices at
// 795. cuDNN 9: 618 at 8k, 622 at 32k. At 8k with heads of 96: 620; of 80: 529; of 64: 524.
template <int D, bool masked>
__global__ void __launch_bounds__(tiles<D, masked>::threads, 1)
    dense_prefill_wgmma_kernel(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,
                               const __grid_constant__ CUtensorMap v_map, const __grid_constant__ CUtensorMap out_map,
                               const __grid_constant__ prefill_params p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using T = tiles<D, masked>;
    extern __shared__ unsigned char dynamic[];
    __shared__ barriers bars; // the only static shared memory; sl_cuda_dense_prefill_wgmma_runs tests whether the kernel has
                              // static shared memory
    uint32_t shared = (shared_address(dynamic) + 1023) & ~1023u;
    if (threadIdx.x == 0) {
        for (int i = 0; i < N_STAGES; i++) {
            barrier_init(&bars.k.full[i], 1);
            barrier_init(&bars.v.full[i], 1);
            barrier_init(&bars.q.full[i], 1);
            barrier_init(&bars.k.empty[i], T::n_wgs * WG_THREADS / 32);
            barrier_init(&bars.v.empty[i], T::n_wgs * WG_THREADS / 32);
            barrier_init(&bars.q.empty[i], T::n_wgs);
        }
        barrier_init(&bars.tail, 1);
        barriers_made();
    }
    __syncthreads();
    sl_start_next();
    sl_wait_previous();
    int wg = warp_group();
    if (wg == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(T::load_registers));
        if (threadIdx.x < 32) load<D, masked>(p, shared, &bars, &q_map, &k_map, &v_map, threadIdx.x);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(T::compute_registers));
        compute<D, masked>(p, shared, &bars, &out_map, wg - 1, threadIdx.x % WG_THREADS);
    }
#endif
}

template <int D, bool masked> static void launch_kernel(const sl_attn_cuda_prefill_args *args) {
    using T = tiles<D, masked>;
    const sl_attn_geom *geom = args->geom;
    int n_tiles = (args->n_tokens + T::rows - 1) / T::rows;
    int n_sms = sl_multiprocessors(), n_items = n_tiles * geom->n_heads, n_blocks = n_items < n_sms ? n_items : n_sms;
    prefill_params p = params_of(args, n_tiles, n_blocks);
    if (masked) {
        p.blocks = sl_cuda_order_query_blocks(args, p.section_heads);
        n_blocks = p.blocks.n_items < n_sms ? p.blocks.n_items : n_sms;
    }
    CUtensorMap q = head_map(args->q, geom, args->n_tokens, args->q_stride);
    CUtensorMap out = head_map(args->out, geom, args->n_tokens, (size_t)geom->n_heads * D);
    CUtensorMap k = page_map(args->k, geom, args->n_pages), v = page_map(args->v, geom, args->n_pages);
    sl_launch(dense_prefill_wgmma_kernel<D, masked>, dim3(n_blocks), dim3(T::threads), T::bytes, args->stream, q, k, v, out, p);
}

template <int D> static void launch(const sl_attn_cuda_prefill_args *args) {
    if (args->mask)
        launch_kernel<D, true>(args);
    else
        launch_kernel<D, false>(args);
}

void sl_cuda_dense_prefill_wgmma(const sl_attn_cuda_prefill_args *args) {
    SL_WITH_HEAD_DIM(args->geom->head_dim, launch, args);
}

int sl_cuda_dense_prefill_wgmma_runs(void) {
    cudaFuncAttributes attributes; // an empty kernel body has no barriers, so it has no static shared memory
    return cudaFuncGetAttributes(&attributes, dense_prefill_wgmma_kernel<128, false>) == cudaSuccess &&
           attributes.sharedSizeBytes > 0;
}
