// attention/cuda/dense_prefill_wgmma.cu - attention of a prompt's tokens on Hopper: dense, or with a mask of key blocks. The
// tensor memory accelerator (TMA) copies tiles, and wgmma multiplies them. dense_prefill.cuh states the formula. The overlaps
// are those of FlashAttention-3 (Shah et al., 2024, section 3).
// The naive versions are in tests/cuda/naive.h: naive_dense_prefill, naive_masked_prefill.
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
#include "attention/cuda/dense_prefill.cuh"
#include "attention/cuda/query_blocks.cuh"
#include "engine/backend/cuda/barrier.cuh"
#include "engine/backend/cuda/device.cuh"

#include <cuda.h>
#include <math.h>

enum {
    KEYS = 128,   // rows of a key tile: half a page, so a tile lies in one page
    N_STAGES = 2, // key tiles in flight, K and V each
    WG_ROWS = 64, // tokens of a warpgroup: the M of wgmma
    WG_THREADS = 128,
    COLUMNS = 64,  // number of elements in 128 bytes: the width of a swizzled block
    BAR_TURN = 1,  // named barriers: + w: warpgroup w may issue its products
    BAR_STORE = 4, // + w: the warps of warpgroup w
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

typedef struct prefill_params {
    const int32_t *pages;
    int n_tokens, first, n_heads, n_kv_heads;
    int section_heads;   // heads that are computed together (work)
    float scale;         // sl_score_scale
    query_blocks blocks; // with a mask; dense attention does not read it
    bf16 *out;           // with a mask; dense attention writes with TMA only
} prefill_params;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// ---- barriers ----

// Named barriers. All lanes of a warp call them together.
static __device__ __forceinline__ void named_sync(int id, int n_threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n_threads) : "memory");
}
static __device__ __forceinline__ void named_arrive(int id, int n_threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(n_threads) : "memory");
}

// ---- TMA ----

// Copies the box of `map` at (column, row) to shared memory. `bar` counts its bytes. Columns and rows past the map's end are
// zeros.
static __device__ __forceinline__ void tma_load(uint32_t to, const CUtensorMap *map, int column, int row, uint64_t *bar) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            to),
        "l"(map), "r"(column), "r"(row), "r"(shared_address(bar))
        : "memory");
}
// tma_load_head does the same for maps of heads. tma_store_head copies back to global memory; it does not write columns and
// tokens past the map's end.
static __device__ __forceinline__ void tma_load_head(uint32_t to, const CUtensorMap *map, int column, int head, int token,
                                                     uint64_t *bar) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
                 "[%5];" ::"r"(to),
                 "l"(map), "r"(column), "r"(head), "r"(token), "r"(shared_address(bar))
                 : "memory");
}
static __device__ __forceinline__ void tma_store_head(const CUtensorMap *map, int column, int head, int token, uint32_t from) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(map), "r"(column),
                 "r"(head), "r"(token), "r"(from)
                 : "memory");
}
static __device__ __forceinline__ void tma_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until the stores have read shared memory. Then it may be written again.
static __device__ __forceinline__ void tma_stores_read() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
// Makes this thread's ordinary writes to shared memory visible to TMA and wgmma.
static __device__ __forceinline__ void fence_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- wgmma: a warpgroup's product, c [64][N] += a [64][16] b [16][N] ----
//
// Accumulator: warp w of the group has rows 16 w .. 16 w + 15. Element 4 n + e of a lane is in row lane / 4 + 8 (e / 2) and
// column 8 n + lane % 4 * 2 + e % 2. Operand `a` in registers has the same layout, two bf16 a register.

static __device__ __forceinline__ void wgmma_fence() { // call it before the first product that reads newly written registers
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// The compiler can move arithmetic across the waits below. pin(x) keeps code that computes x before the call, and code that
// uses x after the call.
template <int N> static __device__ __forceinline__ void pin(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(x[i])::"memory");
}
// Waits until at most n_pending of the committed groups still run. After it, x is valid.
template <int n_pending, int N> static __device__ __forceinline__ void wgmma_wait(float (&x)[N]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n_pending) : "memory");
    pin(x);
}

// Descriptor of a tile in shared memory with the 128-byte swizzle: its address, the bytes from one block of 64 columns to the
// next (the hardware reads this number only for V, whose columns are the product's N), and the bytes from 8 rows to the next 8,
// all in units of 16.
static __device__ __forceinline__ uint64_t descriptor(uint32_t address, int block_bytes) {
    return (uint64_t)1 << 62 | (uint64_t)(1024 / 16) << 32 | (uint64_t)(block_bytes / 16) << 16 | (address & 0x3ffff) / 16;
}

// clang-format off
#define F4(C, I) "+f"(C[I]), "+f"(C[I + 1]), "+f"(C[I + 2]), "+f"(C[I + 3])
#define F8(C, I) F4(C, I), F4(C, I + 4)
#define F32(C) F8(C, 0), F8(C, 8), F8(C, 16), F8(C, 24)
#define F40(C) F32(C), F8(C, 32)
#define F48(C) F40(C), F8(C, 40)
#define F64(C) F48(C), F8(C, 48), F8(C, 56)
#define C32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
            "%24, %25, %26, %27, %28, %29, %30, %31"
#define C40 C32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define C48 C40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define C64 C48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
// clang-format on

// c = a b^T (+ c). a and b: [.][16] in shared memory.
template <bool add> static __device__ __forceinline__ void wgmma_keys(float (&c)[64], uint64_t a, uint64_t b) {
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" C64 "}, %64, %65, add, 1, 1, 0, 0;\n}"
                 : F64(c)
                 : "l"(a), "l"(b), "n"(add));
}

// wgmma_values: c += a b. a: registers. b: [16][N] in shared memory.
#define WGMMA_VALUES(N, F, C, A, B)                                                                                            \
    static __device__ __forceinline__ void wgmma_values(float(&c)[N / 2], const uint32_t *a, uint64_t b) {                     \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" C "}, {" A "}, " B ", 1, 1, 1, 1;"           \
                     : F(c)                                                                                                    \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                    \
    }
WGMMA_VALUES(64, F32, C32, "%32, %33, %34, %35", "%36")
WGMMA_VALUES(80, F40, C40, "%40, %41, %42, %43", "%44")
WGMMA_VALUES(96, F48, C48, "%48, %49, %50, %51", "%52")
WGMMA_VALUES(128, F64, C64, "%64, %65, %66, %67", "%68")

// ---- the pieces of the kernel ----

typedef struct ring { // K and V tiles. full: the tile has landed. empty: no computing warp reads it any more
    uint64_t full[N_STAGES], empty[N_STAGES];
} ring;

typedef struct barriers {
    ring k, v, q;  // q: q: the two query tiles
    uint64_t tail; // the last tile of V has landed, but its rows after the end are not yet zero
} barriers;

// The query tiles of a thread block, one after the other. The heads are cut into sections. The keys and values of a section fit
// in the L2 cache (section_heads). In a section, tiles are in order of falling length. Round by round, each thread block gets
// one tile, in rising order of thread blocks in even rounds and in falling order in odd rounds. So all thread blocks get about
// the same number of keys, and thread blocks read the same keys at the same time.
static __device__ __forceinline__ int turn_in_round(int n_rounds) {
    int n_blocks = gridDim.x, block = blockIdx.x;
    return n_rounds * n_blocks + (n_rounds % 2 ? n_blocks - 1 - block : block);
}

template <int ROWS, bool masked> struct work { // dense
    int token0, head, n_keys;                  // first token of the tile; key tiles that its last token sees
    int section = 0,
        n_rounds = 0; // of the next tile: first head of its section; tiles that each thread block already has of this section
    __device__ __forceinline__ bool next(const prefill_params &p) {
        int n_tiles = (p.n_tokens + ROWS - 1) / ROWS;
        for (; section < p.n_heads; section += p.section_heads, n_rounds = 0) {
            int n_heads = min(p.section_heads, p.n_heads - section), i = turn_in_round(n_rounds);
            if (i >= n_tiles * n_heads) continue;
            n_rounds++;
            token0 = (n_tiles - 1 - i / n_heads) * ROWS;
            head = section + i % n_heads;
            n_keys = (p.first + min(token0 + ROWS, p.n_tokens) + KEYS - 1) / KEYS;
            return true;
        }
        return false;
    }
    // The position of token `token` of the tile's call. Tile j of the keys has the rows from KEYS * j on.
    __device__ __forceinline__ int place(const prefill_params &p, int token) const { return p.first + token; }
};

// The list of query blocks has sections and falling lengths already (order_query_blocks). n_keys: set bits of the block's row.
template <int ROWS> struct work<ROWS, true> {
    int token0, head, n_keys; // token0 is negative when the call begins inside the query block
    int n_rounds = 0;
    uint64_t ahead; // the next item. It is loaded one tile early
    __device__ __forceinline__ void fetch(const prefill_params &p) {
        int i = turn_in_round(n_rounds++);
        ahead = i < p.blocks.n_items ? p.blocks.items[i] : 0;
    }
    __device__ __forceinline__ bool next(const prefill_params &p) {
        if (n_rounds == 0) fetch(p);
        if (item_length(ahead) == 0) return false;
        token0 = item_block(ahead) * ROWS - p.first % ROWS;
        head = item_head(ahead), n_keys = item_length(ahead);
        fetch(p);
        return true;
    }
    // The diagonal is the last key tile. So these are places of queries in a sequence that has only the visited blocks.
    __device__ __forceinline__ int place(const prefill_params &, int token) const {
        return (n_keys - 1) * KEYS + token - token0;
    }
};

// The key tiles of a query tile, in ascending order. step(j) makes tile j the current one, for j = 0, 1, .. key(j) is then the
// tile's first row in the sequence. The page of a tile is loaded one tile early.
template <bool masked> struct key_tiles { // all of them
    int page, next;                       // of the current tile and of the next tile
    __device__ __forceinline__ int key(int j) const { return j * KEYS; }
    template <typename W> __device__ __forceinline__ void begin(const prefill_params &p, const W &, int) {
        page = next = p.pages[0];
    }
    template <typename W> __device__ __forceinline__ void step(const prefill_params &p, const W &, int j, int) {
        if (j % 2) return;
        page = next;
        if ((j + 2) * KEYS < p.first + p.n_tokens) next = p.pages[(j + 2) * KEYS / SL_PAGE];
    }
};

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
        if (lane == 0) {
            barrier_expect(&bars->q.full[n % 2], T::q_bytes);
#pragma unroll
            for (int g = 0; g < T::n_wgs; g++)
#pragma unroll
                for (int c = 0; c < D; c += COLUMNS)
                    tma_load_head(shared + n % 2 * T::q_bytes + g * T::wg_bytes + c * WG_ROWS * 2, q_map, c, w.head,
                                  w.token0 + g * WG_ROWS, &bars->q.full[n % 2]);
        }
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
                if (lane == 0) {
                    barrier_expect(&bars->k.full[stage], T::kv_bytes);
#pragma unroll
                    for (int c = 0; c < D; c += COLUMNS)
                        tma_load(shared + T::k_at + stage * T::kv_bytes + c * KEYS * 2, k_map, c, row, &bars->k.full[stage]);
                }
            }
            if (j == 0) continue;
            int stage = (n_done + j - 1) % N_STAGES;
            uint32_t v = shared + T::v_at + stage * T::kv_bytes;
            barrier_wait(&bars->v.empty[stage], (n_done + j - 1) / N_STAGES % 2 ^ 1);
            bool tail = key_v + KEYS > n_kv;
            uint64_t *landed = tail ? &bars->tail : &bars->v.full[stage];
            if (lane == 0) {
                barrier_expect(landed, T::kv_bytes);
#pragma unroll
                for (int c = 0; c < D; c += COLUMNS) tma_load(v + c * KEYS * 2, v_map, c, row_v, landed);
            }
            if (!tail) continue;
            barrier_wait(landed, tail_parity);
            tail_parity ^= 1;
            for (int i = (n_kv - key_v) * 8 + lane; i < KEYS * 8; i += 32) // 16-byte units of 64 columns
#pragma unroll
                for (int c = 0; c < D; c += COLUMNS)
                    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(v + c * KEYS * 2 + i * 16), "r"(0)
                                 : "memory");
            fence_async();
            __syncwarp();
            if (lane == 0) barrier_arrive(&bars->v.full[stage]);
        }
        n_done += w.n_keys;
    }
}

// s = q k^T
template <int D> static __device__ __forceinline__ void issue_scores(float (&s)[64], uint32_t q, uint32_t k) {
    uint64_t a = descriptor(q, 16), b = descriptor(k, 16);
    wgmma_fence();
    wgmma_keys<false>(s, a, b);
#pragma unroll
    for (int d = 16; d < D; d += 16)
        wgmma_keys<true>(s, a + (d / COLUMNS * WG_ROWS * 128 + d % COLUMNS * 2) / 16,
                         b + (d / COLUMNS * KEYS * 128 + d % COLUMNS * 2) / 16);
    wgmma_commit();
}

// o += p v
template <int D> static __device__ __forceinline__ void issue_values(float (&o)[D / 2], const uint32_t (&p)[32], uint32_t v) {
    uint64_t b = descriptor(v, KEYS * 128);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < KEYS; j += 16) wgmma_values(o, p + j / 4, b + j * 128 / 16);
    wgmma_commit();
}

// A lane's part of the softmax of two rows: rows lane / 4 and lane / 4 + 8 of its warp's 16 rows.
typedef struct softmax_state {
    float max[2];  // reference of the row's masses (sl_raise_max)
    float sum[2];  // sum of the masses so far, in this lane's columns
    float keep[2]; // factor of the last tile for the sums of the tiles before
} softmax_state;

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
        top = sl_quad_max(top);
        state.keep[r] = sl_raise_max(&state.max[r], top, scale);
        float shift = state.max[r] * scale, sum = 0;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 4 * n + 2 * r; e < 4 * n + 2 * r + 2; e++) {
                s[e] = sl_exp2(fmaf(s[e], scale, -shift));
                sum += s[e];
            }
        state.sum[r] = fmaf(state.sum[r], state.keep[r], sum);
    }
}

static __device__ __forceinline__ void round_masses(uint32_t (&p)[32], const float (&s)[64]) {
#pragma unroll
    for (int i = 0; i < 32; i++) p[i] = sl_pack_bf16(s[2 * i], s[2 * i + 1]);
}

// The state of a computing warpgroup from tile to tile.
template <int D> struct consumer {
    float o[D / 2];
    uint32_t p[32]; // masses of the newest tile; its V has landed, and its product with V is not yet issued
    softmax_state state;
    int n_done; // key tiles whose scores are computed; the last of them has not yet been multiplied by V
};

// Adds key tile j. The products for the scores of tile j and for the values of tile j - 1 are issued together. The softmax of
// tile j runs during the product with the values. While this warpgroup computes its softmax, other warpgroups use the tensor
// cores.
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

// Writes the rows of a warpgroup whose first token is before the call. TMA cannot write a box that begins there.
template <int D>
static __device__ __forceinline__ void store_rows(const prefill_params &p, const consumer<D> &c, const float (&factor)[2],
                                                  int head, int token, int thread) {
    int lane = thread % 32, r = token + thread / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < D / 2; i += 2) {
        int half = i / 2 % 2, row = r + 8 * half;
        if (row >= 0 && row < p.n_tokens)
            *(uint32_t *)(p.out + ((size_t)row * p.n_heads + head) * D + i / 4 * 8 + lane % 4 * 2) =
                sl_pack_bf16(c.o[i] * factor[half], c.o[i + 1] * factor[half]);
    }
}

// out = o / sum. The output goes through the warpgroup's part of the query tile in shared memory. TMA does not write rows past
// n_tokens.
template <int D, bool masked>
static __device__ __forceinline__ void store(const prefill_params &p, const consumer<D> &c, uint32_t staged,
                                             const CUtensorMap *out_map, int head, int token, int wg, int thread) {
    float factor[2] = {1 / sl_quad_sum(c.state.sum[0]), 1 / sl_quad_sum(c.state.sum[1])};
    if (masked && token < 0) {
        store_rows<D>(p, c, factor, head, token, thread);
        named_sync(BAR_STORE + wg, WG_THREADS); // after this barrier, no warp's product reads the queries
        return;
    }
    named_sync(BAR_STORE + wg, WG_THREADS); // after this barrier, no warp's product reads the queries
    int lane = thread % 32, r = thread / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < D / 2; i += 2) {
        int n = i / 4, half = i / 2 % 2;
        uint32_t at = staged + n / 8 * WG_ROWS * 128 + (r + 8 * half) * 128 + ((n % 8) ^ (r % 8)) * 16 + lane % 4 * 4;
        uint32_t pair = sl_pack_bf16(c.o[i] * factor[half], c.o[i + 1] * factor[half]);
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(pair) : "memory");
    }
    fence_async();
    named_sync(BAR_STORE + wg, WG_THREADS);
    if (thread == 0) {
#pragma unroll
        for (int d = 0; d < D; d += COLUMNS) tma_store_head(out_map, d, head, token, staged + d * WG_ROWS * 2);
        tma_commit();
    }
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
        store<D, masked>(p, c, q, out_map, head, token, wg, thread);
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
    int wg = __shfl_sync(0xffffffff, threadIdx.x / WG_THREADS,
                         0); // with the shuffle, the compiler knows that all lanes have the same value
    if (wg == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(T::load_registers));
        if (threadIdx.x < 32) load<D, masked>(p, shared, &bars, &q_map, &k_map, &v_map, threadIdx.x);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(T::compute_registers));
        compute<D, masked>(p, shared, &bars, &out_map, wg - 1, threadIdx.x % WG_THREADS);
    }
#endif
}

// A map of bf16 in n_dims dimensions of sizes size[]. The first dimension is contiguous. Neighbours in dimension i + 1 are
// stride[i] elements apart. A box has 64 columns, and box_rows elements of the last dimension.
static CUtensorMap tensor_map(const bf16 *data, int n_dims, const cuuint64_t *size, const size_t *stride, int box_rows) {
    typedef CUresult encode_fn(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *,
                               const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                               CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    void *encode = NULL; // found at run time, so the program does not link against the driver
    cudaDriverEntryPointQueryResult found;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found);
    SL_CHECK(encode != NULL); // every driver that supports CUDA 12 and Hopper has the function
    cuuint64_t bytes[2];
    cuuint32_t box[3] = {COLUMNS, 1, 1}, step[3] = {1, 1, 1};
    for (int i = 0; i + 1 < n_dims; i++) bytes[i] = stride[i] * sizeof(bf16);
    box[n_dims - 1] = box_rows;
    CUtensorMap map;
    CUresult rc = ((encode_fn *)encode)(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, n_dims, (void *)data, size, bytes, box, step,
                                        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    SL_CHECK(rc == CUDA_SUCCESS); // data and rows are 16-byte aligned
    return map;
}
// [n_tokens][n_heads][head_dim]; the heads of a token are contiguous, and tokens are `stride` elements apart.
static CUtensorMap head_map(const bf16 *data, const sl_attn_geom *geom, int n_tokens, size_t stride) {
    cuuint64_t size[3] = {(cuuint64_t)geom->head_dim, (cuuint64_t)geom->n_heads, (cuuint64_t)n_tokens};
    size_t strides[2] = {(size_t)geom->head_dim, stride};
    return tensor_map(data, 3, size, strides, WG_ROWS);
}
// [n_pages * n_kv_heads * 256][head_dim].
static CUtensorMap page_map(const bf16 *data, const sl_attn_geom *geom, int n_pages) {
    cuuint64_t size[2] = {(cuuint64_t)geom->head_dim, (cuuint64_t)n_pages * geom->n_kv_heads * SL_PAGE};
    size_t stride[1] = {(size_t)geom->head_dim};
    return tensor_map(data, 2, size, stride, KEYS);
}

// Number of heads of a section. The keys and values of a section fit in two thirds of the L2 cache, and sections have about
// equal sizes. If sections would leave thread blocks idle in their last rounds, there is one section with all heads.
static int section_heads(const sl_attn_cuda_prefill_args *args, int n_tiles, int n_blocks, int l2_bytes) {
    int n_heads = args->geom->n_heads, n_kv_heads = args->geom->n_kv_heads, n_kv = args->first + args->n_tokens;
    size_t bytes = (size_t)n_kv * n_kv_heads * args->geom->head_dim * 2 * sizeof(bf16), limit = (size_t)l2_bytes / 3 * 2;
    int n_sections = (int)((bytes + limit - 1) / limit);
    int heads = (n_kv_heads + n_sections - 1) / n_sections * (n_heads / n_kv_heads);
    n_sections = (n_heads + heads - 1) / heads;
    int n_rounds = (n_tiles * n_heads + n_blocks - 1) / n_blocks;
    int more = (n_tiles * heads + n_blocks - 1) / n_blocks * n_sections - n_rounds; // additional rounds, of the shortest tiles
    return (long long)more * (args->first + 1) * 64 <= (long long)n_rounds * n_kv ? heads : n_heads;
}

template <int D, bool masked> static void launch_kernel(const sl_attn_cuda_prefill_args *args) {
    using T = tiles<D, masked>;
    const sl_attn_geom *geom = args->geom;
    int n_tiles = (args->n_tokens + T::rows - 1) / T::rows;
    int n_sms = sl_multiprocessors(), l2_bytes = (int)sl_l2_bytes();
    int n_blocks = n_tiles * geom->n_heads < n_sms ? n_tiles * geom->n_heads : n_sms;
    prefill_params p = {
        .pages = args->pages,
        .n_tokens = args->n_tokens,
        .first = args->first,
        .n_heads = geom->n_heads,
        .n_kv_heads = geom->n_kv_heads,
        .section_heads = section_heads(args, n_tiles, n_blocks, l2_bytes),
        .scale = sl_score_scale(D),
        .blocks = {},
        .out = args->out,
    };
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
