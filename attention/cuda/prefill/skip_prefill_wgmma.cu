// attention/cuda/prefill/skip_prefill_wgmma.cu - attention of a prompt's tokens on Hopper with the rule of `threshold`: exact
// scores, and no softmax and no values for key blocks of small scores. dense_prefill.cuh states the formula,
// sl_attn_prefill_args the rule. The naive version is in tests/cuda/naive.h: naive_masked_prefill, with the blocks that were
// not skipped.
//
// | role     | warps          | registers  | does                                                                |
// |----------|----------------|------------|---------------------------------------------------------------------|
// | load     | warp 0 of 4    | 40         | issues TMA copies of query tiles, of all K tiles, of V tiles by vote |
// | compute  | 2 groups of 4  | 232        | a warpgroup has 64 tokens of the query block: scores, vote, the rest |
//
// | shared memory, in order | bytes (DIM 128)  | contents                                              |
// |-------------------------|------------------|-------------------------------------------------------|
// | 2 query tiles           | 2 x 32 KB        | [2 warpgroups][64 tokens][128]; later the output      |
// | 3 K tiles               | 3 x 32 KB        | [128 keys][128], 128-byte swizzle                     |
// | 2 V tiles               | 2 x 32 KB        | [128 keys][128], 128-byte swizzle                     |
//
// Worked tile: DIM 128. The warpgroups compute S [64][128] of key block j each, and the largest score of each row. All 256
// threads vote in one barrier (bar.red). If each row is far below its running maximum, nothing else happens to the block.
// Otherwise a softmax makes masses. The product of masses and V is issued with the scores of block j + 1, as in
// dense_prefill_wgmma.cu, if V has had the time of a step to arrive.
//
// The loading warp learns each vote from a mailbox. It requests V of block j + 1 when block j is visited, because visited
// blocks are often neighbours, and V of block j itself if that was not yet requested. So a run of skipped blocks reads no V.
// The computing warps drop a requested V of a skipped block.
//
// The machine code exists for sm_90a only. sl_cuda_dense_prefill_wgmma_runs tells whether this build and GPU have it.
#include "attention/cuda/head_dim.cuh"
#include "attention/cuda/prefill/prefill_wgmma.cuh"

enum {
    K_STAGES = 3,
    V_STAGES = 2,
    N_VOTES = 4, // mailboxes. K of block j + 4 is requested after the loading warp has read vote j, so no vote is overwritten
    BAR_VOTE = 1
};
static_assert(N_VOTES > K_STAGES, "a mailbox is read before the computing warps can come to its next vote");

template <int D> struct tiles {
    static constexpr int n_wgs = 2, threads = WG_THREADS * (n_wgs + 1), rows = WG_ROWS * n_wgs;
    static constexpr int padded = (D + COLUMNS - 1) / COLUMNS * COLUMNS;
    static constexpr int wg_bytes = WG_ROWS * padded * 2, q_bytes = n_wgs * wg_bytes, kv_bytes = KEYS * padded * 2;
    static constexpr int k_at = 2 * q_bytes, v_at = k_at + K_STAGES * kv_bytes;
    static constexpr int bytes = v_at + V_STAGES * kv_bytes + 1024; // 1024 bytes more to align to 1024
    static constexpr int load_registers = 40, compute_registers = 232;
};

typedef sl_skip_params<prefill_params> skip_params;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// A place in a ring of N stages, and the parity of the phase in which the stage becomes full.
template <int N> struct place {
    int stage = 0;
    uint32_t parity = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == N) stage = 0, parity ^= 1;
    }
};

typedef struct barriers {
    uint64_t k_full[K_STAGES], k_empty[K_STAGES], v_full[V_STAGES], v_empty[V_STAGES], q_full[2], q_empty[2];
    uint64_t tail; // the last tile of V has landed, but its rows after the end are not yet zero
    uint64_t voted[N_VOTES];
    int is_visited[N_VOTES]; // the mailboxes
} barriers;

// ---- the loading warp ----

template <int D> struct loader {
    barriers *bars;
    uint32_t shared;
    const CUtensorMap *k_map, *v_map;
    int lane;
    place<K_STAGES> k;
    place<V_STAGES> v;
    place<N_VOTES> vote;
    uint32_t tail_parity = 0;

    __device__ __forceinline__ void load_k(int row) {
        barrier_wait(&bars->k_empty[k.stage], k.parity ^ 1);
        if (lane == 0) load_keys<D>(shared + tiles<D>::k_at + k.stage * tiles<D>::kv_bytes, k_map, row, &bars->k_full[k.stage]);
        k.advance();
    }
    // n_rows: rows of the tile that the sequence has; the others become 0.
    __device__ __forceinline__ void load_v(int row, int n_rows) {
        uint32_t to = shared + tiles<D>::v_at + v.stage * tiles<D>::kv_bytes;
        bool tail = n_rows < KEYS;
        uint64_t *full = &bars->v_full[v.stage], *landed = tail ? &bars->tail : full;
        barrier_wait(&bars->v_empty[v.stage], v.parity ^ 1);
        v.advance();
        if (lane == 0) load_keys<D>(to, v_map, row, landed);
        if (!tail) return;
        barrier_wait(landed, tail_parity);
        tail_parity ^= 1;
        clear_tail<D>(to, n_rows, lane);
        if (lane == 0) barrier_arrive(full);
    }
    __device__ __forceinline__ bool read_vote() {
        barrier_wait(&bars->voted[vote.stage], vote.parity);
        int is_visited = lane == 0 ? bars->is_visited[vote.stage] : 0;
        vote.advance();
        return __shfl_sync(~0u, is_visited, 0);
    }
};

template <int D>
static __device__ __forceinline__ void load(const prefill_params &p, uint32_t shared, barriers *bars, const CUtensorMap *q_map,
                                            const CUtensorMap *k_map, const CUtensorMap *v_map, int lane) {
    work<tiles<D>::rows, true> w;
    loader<D> to = {bars, shared, k_map, v_map, lane};
    for (int n = 0; w.next(p); n++) {
        barrier_wait(&bars->q_empty[n % 2], n / 2 % 2 ^ 1);
        if (lane == 0)
            load_queries<D, tiles<D>::n_wgs>(shared + n % 2 * tiles<D>::q_bytes, q_map, w.head, w.token0, &bars->q_full[n % 2]);
        int kv_head = w.head / (p.n_heads / p.n_kv_heads), n_kv = p.first + p.n_tokens;
        int pages = 0;  // lane l: the page of the newest key tile j with j % 32 == l
        int next_v = 0; // blocks before it need no request
        key_tiles<false> keys;
        keys.begin(p, w, lane);
        // K of block j, then V by the vote on block j - K_STAGES. K of block j waits for the scores of that block, too.
        for (int j = 0; j < w.n_keys + K_STAGES; j++) {
            if (j < w.n_keys) {
                keys.step(p, w, j, lane);
                if (j % 32 == lane) pages = keys.page;
                to.load_k((keys.page * p.n_kv_heads + kv_head) * SL_PAGE + keys.key(j) % SL_PAGE);
            }
            int block = j - K_STAGES;
            if (block < -1) continue;
            if (block >= 0 && !to.read_vote()) continue; // block 0 is always visited, so its V needs no vote
            for (int b = max(block, next_v); b < min(block + 2, w.n_keys); b++) {
                int page = __shfl_sync(~0u, pages, b % 32);
                to.load_v((page * p.n_kv_heads + kv_head) * SL_PAGE + b * KEYS % SL_PAGE, n_kv - b * KEYS);
            }
            next_v = block + 2;
        }
    }
}

// ---- the computing warps ----

// True in all threads of both warpgroups when `mine` is true in each of them.
static __device__ __forceinline__ bool all_agree(bool mine) {
    uint32_t all;
    asm volatile("{\n.reg .pred each, all;\n"
                 "setp.ne.u32 each, %1, 0;\n"
                 "bar.red.and.pred all, %2, %3, each;\n"
                 "selp.u32 %0, 1, 0, all;\n}"
                 : "=r"(all)
                 : "r"((uint32_t)mine), "r"(BAR_VOTE), "r"(2 * WG_THREADS)
                 : "memory");
    return __any_sync(~0u, all); // with the vote, the compiler knows that all lanes have the same value
}

// Sets columns > last (> last + 8 for the second row) to -infinity.
static __device__ __forceinline__ void hide(float (&s)[64], int last) {
#pragma unroll
    for (int i = 0; i < 64; i++)
        if (i / 4 * 8 + i % 2 > last + 8 * (i / 2 % 2)) s[i] = -INFINITY;
}

// The largest score of each row; NaN if one is NaN.
static __device__ __forceinline__ void find_tops(const float (&s)[64], float (&top)[2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float most[2] = {-INFINITY, -INFINITY};
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) most[e] = sl_max_nan(most[e], s[4 * n + 2 * r + e]);
        top[r] = sl_quad_max_nan(sl_max_nan(most[0], most[1]));
    }
}

// The state of a computing warpgroup.
template <int D> struct computer {
    float o[D / 2];
    uint32_t p[32]; // masses of the newest visited block, while is_pending
    softmax_state state;
    sl_row_rule rule[2];
    place<K_STAGES> k;
    place<V_STAGES> v, held; // of the next requested tile; of the tile that waits for its product with p
    place<N_VOTES> vote;
    bool exists[2];    // the call has the row
    bool is_pending;   // the product of p and V is not yet issued
    bool has_landed;   // V of the pending product was requested at least a step ago
    bool is_requested; // V of the next block is requested whatever the vote says
    int n_visited;

    __device__ __forceinline__ void begin(const prefill_params &p, int token) { // token: of the lane's first row
#pragma unroll
        for (int i = 0; i < D / 2; i++) o[i] = 0;
        state = {{-INFINITY, -INFINITY}, {0, 0}, {0, 0}};
#pragma unroll
        for (int r = 0; r < 2; r++) {
            rule[r] = {-INFINITY, 0};
            exists[r] = token + 8 * r >= 0 && token + 8 * r < p.n_tokens;
        }
        is_pending = has_landed = false, is_requested = true, n_visited = 0;
    }
};

// Call it when the pending product has ended.
template <int D> static __device__ __forceinline__ void end_product(computer<D> &c, barriers *bars, int lane) {
    if (lane == 0) barrier_arrive(&bars->v_empty[c.held.stage]);
    c.is_pending = false;
}

// Issues the pending product alone, and waits for it.
template <int D> static __device__ __forceinline__ void multiply(computer<D> &c, uint32_t shared, barriers *bars, int lane) {
    barrier_wait(&bars->v_full[c.held.stage], c.held.parity);
    issue_values<D>(c.o, c.p, shared + tiles<D>::v_at + c.held.stage * tiles<D>::kv_bytes);
    wgmma_wait<0>(c.o);
    end_product(c, bars, lane);
}

// What a skipped block leaves.
template <int D>
static __device__ __forceinline__ void skip(computer<D> &c, const float (&top)[2], float scale, barriers *bars, int lane) {
#pragma unroll
    for (int r = 0; r < 2; r++) sl_row_skips(&c.rule[r], top[r], scale);
    if (c.is_requested) { // drop V
        barrier_wait(&bars->v_full[c.v.stage], c.v.parity);
        if (lane == 0) barrier_arrive(&bars->v_empty[c.v.stage]);
        c.v.advance();
    }
    c.has_landed = true, c.is_requested = false;
}

// Keeps the masses s of a visited block for their product with V.
template <int D>
static __device__ __forceinline__ void keep_masses(computer<D> &c, const float (&s)[64], const float (&top)[2], float scale) {
#pragma unroll
    for (int r = 0; r < 2; r++) sl_row_visits(&c.rule[r], top[r], scale);
    if (__any_sync(0xffffffff, c.state.keep[0] != 1 || c.state.keep[1] != 1))
#pragma unroll
        for (int i = 0; i < D / 2; i++) c.o[i] *= c.state.keep[i / 2 % 2];
    round_masses(c.p, s);
    c.held = c.v, c.v.advance();
    c.is_pending = true, c.has_landed = c.is_requested, c.is_requested = true;
    c.n_visited++;
}

// One key block: scores, vote, and if a row needs the block, its masses. multiplies: with the scores, issues the pending
// product. hidden: columns > last are hidden.
//
// A wgmma under a condition that the compiler cannot prove to be equal in all lanes makes it wait after every wgmma. So the two
// values of `multiplies` have code of their own, and conditions go through a vote of the warp.
template <int D, bool multiplies>
static __device__ __forceinline__ void step(const skip_params &p, computer<D> &c, uint32_t q, uint32_t shared, barriers *bars,
                                            int wg, int thread, bool hidden, int last) {
    using T = tiles<D>;
    float s[64], top[2], scale = p.p.scale;
    int lane = thread % 32;
    barrier_wait(&bars->k_full[c.k.stage], c.k.parity);
    if (multiplies) barrier_wait(&bars->v_full[c.held.stage], c.held.parity);
    issue_scores<D>(s, q, shared + T::k_at + c.k.stage * T::kv_bytes);
    if (multiplies) issue_values<D>(c.o, c.p, shared + T::v_at + c.held.stage * T::kv_bytes);
    wgmma_wait<multiplies>(s);
    if (lane == 0) barrier_arrive(&bars->k_empty[c.k.stage]);
    c.k.advance();
    if (hidden) hide(s, last);
    find_tops(s, top);
    bool lets_skip = true;
#pragma unroll
    for (int r = 0; r < 2; r++) lets_skip &= !c.exists[r] || sl_is_far(c.rule[r], top[r], scale, p.distance);
    bool skips = all_agree(lets_skip);
    if (wg == 0 && thread == 0) {
        bars->is_visited[c.vote.stage] = !skips;
        barrier_arrive(&bars->voted[c.vote.stage]);
    }
    c.vote.advance();
    if (!skips)
#pragma unroll
        for (int r = 0; r < 2; r++) weigh_row(s, c.state, r, fmaxf(c.state.max[r], top[r]), scale);
    if (multiplies) {
        pin(s); // the softmax runs during the product
        wgmma_wait<0>(c.o);
        end_product(c, bars, lane);
    }
    if (skips) return skip(c, top, scale, bars, lane);
    if (!multiplies && __any_sync(~0u, c.is_pending)) multiply(c, shared, bars, lane);
    keep_masses(c, s, top, scale);
}

// What the rule says about the rows of a warpgroup, and how many blocks it left.
template <int D>
static __device__ __forceinline__ void report(const skip_params &p, const computer<D> &c, int head, int token, int lane,
                                              bool counts) {
    if (counts && p.stats) atomicAdd(&p.stats[head].visited, (unsigned long long)c.n_visited);
    if (!p.lost) return;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float share = sl_lost_share(c.rule[r], c.state.max[r], sl_quad_sum(c.state.sum[r]), p.p.scale);
        if (lane % 4 == 0 && c.exists[r]) p.lost[(size_t)(token + 8 * r) * p.p.n_heads + head] = share;
    }
}

template <int D>
static __device__ __forceinline__ void compute(const skip_params &p, uint32_t shared, barriers *bars,
                                               const CUtensorMap *out_map, int wg, int thread) {
    using T = tiles<D>;
    int lane = thread % 32;
    int row = thread / 32 * 16 + lane / 4; // this lane's first row among the warpgroup's 64 rows
    work<T::rows, true> w;
    computer<D> c;
    bool more = w.next(p.p);
    for (int n = 0; more; n++) {
        uint32_t q = shared + n % 2 * T::q_bytes + wg * T::wg_bytes;
        int head = w.head, token = w.token0 + wg * WG_ROWS; // of the warpgroup's first row
        int position = w.place(p.p, token);
        int last = position + row - lane % 4 * 2; // last visible column, relative to the lane's first column of block 0
        int n_whole = min((position + 1) / KEYS, w.n_keys); // key blocks in which all tokens of the warpgroup see all rows
        c.begin(p.p, token + row);
        barrier_wait(&bars->q_full[n % 2], n / 2 % 2);
        for (int j = 0; j < w.n_keys; j++) {
            if (__any_sync(~0u, c.is_pending && c.has_landed))
                step<D, true>(p, c, q, shared, bars, wg, thread, j >= n_whole, last - j * KEYS);
            else
                step<D, false>(p, c, q, shared, bars, wg, thread, j >= n_whole, last - j * KEYS);
            if (j == 0 && n > 0 && thread == 0) { // when the output before has left shared memory, its place may be used
                tma_stores_read();
                barrier_arrive(&bars->q_empty[(n - 1) % 2]);
            }
        }
        if (__any_sync(~0u, c.is_pending)) multiply(c, shared, bars, lane);
        more = w.next(p.p);
        report(p, c, head, token + row, lane, wg == 0 && thread == 0);
        store<D, true>(p.p, c.o, c.state.sum, q, out_map, head, token, wg, thread);
    }
    if (thread == 0) tma_stores_read(); // shared memory must exist until the stores have read it
}

#endif // __CUDA_ARCH_FEAT_SM90_ALL

// Causal attention for paged keys that skips the softmax and the values of key blocks by the rule of `threshold`.
//
// Grid: one thread block per multiprocessor, each with its share of the query blocks (work).
// Preconditions: those of dense_prefill_wgmma_kernel; the list of items has no mask (query_blocks.cuh).
// Bytes: q and out once. K once for each query block and head. V once for each visited block, and for the block after it. Of
// the thread blocks that run together, all but the first one find them in the L2 cache.
// Order of reduction: that of dense_prefill_wgmma_kernel without the skipped blocks. A call in which no block is skipped gives
// the bits of dense attention.
template <int D>
__global__ void __launch_bounds__(tiles<D>::threads, 1)
    skip_prefill_wgmma_kernel(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,
                              const __grid_constant__ CUtensorMap v_map, const __grid_constant__ CUtensorMap out_map,
                              const __grid_constant__ skip_params p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using T = tiles<D>;
    extern __shared__ unsigned char dynamic[];
    __shared__ barriers bars;
    uint32_t shared = (shared_address(dynamic) + 1023) & ~1023u;
    if (threadIdx.x == 0) {
        for (int i = 0; i < K_STAGES; i++) {
            barrier_init(&bars.k_full[i], 1);
            barrier_init(&bars.k_empty[i], T::n_wgs * WG_THREADS / 32);
        }
        for (int i = 0; i < V_STAGES; i++) {
            barrier_init(&bars.v_full[i], 1);
            barrier_init(&bars.v_empty[i], T::n_wgs * WG_THREADS / 32);
        }
        for (int i = 0; i < 2; i++) {
            barrier_init(&bars.q_full[i], 1);
            barrier_init(&bars.q_empty[i], T::n_wgs);
        }
        for (int i = 0; i < N_VOTES; i++) barrier_init(&bars.voted[i], 1);
        barrier_init(&bars.tail, 1);
        barriers_made();
    }
    __syncthreads();
    sl_start_next();
    sl_wait_previous();
    int wg = warp_group();
    if (wg == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(T::load_registers));
        if (threadIdx.x < 32) load<D>(p.p, shared, &bars, &q_map, &k_map, &v_map, threadIdx.x);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(T::compute_registers));
        compute<D>(p, shared, &bars, &out_map, wg - 1, threadIdx.x % WG_THREADS);
    }
#endif
}

template <int D> static void launch(const sl_attn_cuda_prefill_args *args) {
    using T = tiles<D>;
    const sl_attn_geom *geom = args->geom;
    int n_tiles = (args->n_tokens + T::rows - 1) / T::rows, n_sms = sl_multiprocessors();
    int n_blocks = n_tiles * geom->n_heads < n_sms ? n_tiles * geom->n_heads : n_sms;
    skip_params p = {params_of(args, n_tiles, n_blocks), args->skip_distance, args->lost, args->stats};
    p.p.blocks = sl_cuda_order_query_blocks(args, p.p.section_heads);
    n_blocks = p.p.blocks.n_items < n_sms ? p.p.blocks.n_items : n_sms;
    CUtensorMap q = head_map(args->q, geom, args->n_tokens, args->q_stride);
    CUtensorMap out = head_map(args->out, geom, args->n_tokens, (size_t)geom->n_heads * D);
    CUtensorMap k = page_map(args->k, geom, args->n_pages), v = page_map(args->v, geom, args->n_pages);
    sl_launch(skip_prefill_wgmma_kernel<D>, dim3(n_blocks), dim3(T::threads), T::bytes, args->stream, q, k, v, out, p);
}

void sl_cuda_skip_prefill_wgmma(const sl_attn_cuda_prefill_args *args) {
    SL_CHECK(!args->mask);
    SL_WITH_HEAD_DIM(args->geom->head_dim, launch, args);
}
