// attention/cuda/prefill/prefill_wgmma.cuh - parts of the prefill kernel for Hopper (dense_prefill_wgmma.cu): copies with TMA,
// products with wgmma, the lists of query tiles, the store of the output, tensor maps.
//
// The machine code exists for sm_90a only.
#ifndef SLEIGH_PREFILL_WGMMA_CUH
#define SLEIGH_PREFILL_WGMMA_CUH

#include "attention/cuda/prefill/dense_prefill.cuh"
#include "attention/cuda/prefill/query_blocks.cuh"
#include "backend/cuda/barrier.cuh"
#include "backend/cuda/device.cuh"

#include <cuda.h>
#include <math.h>

enum {
    KEYS = 128,   // rows of a key tile: half a page, so a tile lies in one page
    WG_ROWS = 64, // tokens of a warpgroup: the M of wgmma
    WG_THREADS = 128,
    COLUMNS = 64,  // number of elements in 128 bytes: the width of a swizzled block
    BAR_STORE = 4, // named barriers: + w: the warps of warpgroup w
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

// The thread's warpgroup. With the shuffle, the compiler knows that all lanes of a warp have the same value.
static __device__ __forceinline__ int warp_group(void) {
    return __shfl_sync(0xffffffff, threadIdx.x / WG_THREADS, 0);
}

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

// Starts the copy of the queries of N_WGS warpgroups. `bar` counts their bytes. Call it with one thread.
template <int D, int N_WGS>
static __device__ __forceinline__ void load_queries(uint32_t to, const CUtensorMap *map, int head, int token0, uint64_t *bar) {
    constexpr int wg_bytes = WG_ROWS * ((D + COLUMNS - 1) / COLUMNS * COLUMNS) * 2;
    barrier_expect(bar, N_WGS * wg_bytes);
#pragma unroll
    for (int g = 0; g < N_WGS; g++)
#pragma unroll
        for (int c = 0; c < D; c += COLUMNS)
            tma_load_head(to + g * wg_bytes + c * WG_ROWS * 2, map, c, head, token0 + g * WG_ROWS, bar);
}

// Starts the copy of a key tile, of K or V, that begins at row `row` of the map.
template <int D> static __device__ __forceinline__ void load_keys(uint32_t to, const CUtensorMap *map, int row, uint64_t *bar) {
    barrier_expect(bar, KEYS * ((D + COLUMNS - 1) / COLUMNS * COLUMNS) * 2);
#pragma unroll
    for (int c = 0; c < D; c += COLUMNS) tma_load(to + c * KEYS * 2, map, c, row, bar);
}

// Sets the rows from n_rows on of a tile of V to zero, and makes the zeros visible to products. All lanes of a warp call it.
template <int D> static __device__ __forceinline__ void clear_tail(uint32_t v, int n_rows, int lane) {
    for (int i = n_rows * 8 + lane; i < KEYS * 8; i += 32) // 16-byte units of 64 columns
#pragma unroll
        for (int c = 0; c < D; c += COLUMNS)
            asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(v + c * KEYS * 2 + i * 16), "r"(0) : "memory");
    fence_async();
    __syncwarp();
}

// ---- the work of a thread block ----

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

// ---- products and masses ----

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

// Turns the scores of row r into masses 2^(scale (s - max)). top: the highest score of this tile and the tiles before.
static __device__ __forceinline__ void weigh_row(float (&s)[64], softmax_state &state, int r, float top, float scale) {
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

static __device__ __forceinline__ void round_masses(uint32_t (&p)[32], const float (&s)[64]) {
#pragma unroll
    for (int i = 0; i < 32; i++) p[i] = sl_pack_bf16(s[2 * i], s[2 * i + 1]);
}

// ---- the output ----

// Writes the rows of a warpgroup whose first token is before the call. TMA cannot write a box that begins there.
template <int D>
static __device__ __forceinline__ void store_rows(const prefill_params &p, const float (&o)[D / 2], const float (&factor)[2],
                                                  int head, int token, int thread) {
    int lane = thread % 32, r = token + thread / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < D / 2; i += 2) {
        int half = i / 2 % 2, row = r + 8 * half;
        if (row >= 0 && row < p.n_tokens)
            *(uint32_t *)(p.out + ((size_t)row * p.n_heads + head) * D + i / 4 * 8 + lane % 4 * 2) =
                sl_pack_bf16(o[i] * factor[half], o[i + 1] * factor[half]);
    }
}

// out = o / sum. The output goes through the warpgroup's part of the query tile in shared memory. TMA does not write rows past
// n_tokens.
template <int D, bool masked>
static __device__ __forceinline__ void store(const prefill_params &p, const float (&o)[D / 2], const float (&sum)[2],
                                             uint32_t staged, const CUtensorMap *out_map, int head, int token, int wg,
                                             int thread) {
    float factor[2] = {1 / sl_quad_sum(sum[0]), 1 / sl_quad_sum(sum[1])};
    if (masked && token < 0) {
        store_rows<D>(p, o, factor, head, token, thread);
        named_sync(BAR_STORE + wg, WG_THREADS); // after this barrier, no warp's product reads the queries
        return;
    }
    named_sync(BAR_STORE + wg, WG_THREADS); // after this barrier, no warp's product reads the queries
    int lane = thread % 32, r = thread / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < D / 2; i += 2) {
        int n = i / 4, half = i / 2 % 2;
        uint32_t at = staged + n / 8 * WG_ROWS * 128 + (r + 8 * half) * 128 + ((n % 8) ^ (r % 8)) * 16 + lane % 4 * 4;
        uint32_t pair = sl_pack_bf16(o[i] * factor[half], o[i + 1] * factor[half]);
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

#endif // __CUDA_ARCH_FEAT_SM90_ALL

// ---- host ----

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

static prefill_params params_of(const sl_attn_cuda_prefill_args *args, int n_tiles, int n_blocks) {
    return {.pages = args->pages,
            .n_tokens = args->n_tokens,
            .first = args->first,
            .n_heads = args->geom->n_heads,
            .n_kv_heads = args->geom->n_kv_heads,
            .section_heads = section_heads(args, n_tiles, n_blocks, (int)sl_l2_bytes()),
            .scale = sl_score_scale(args->geom->head_dim),
            .blocks = {},
            .out = args->out};
}

#endif
