// backend/cuda/packed_linear.cu - the linear layers of a decode step with quantised weights, and their numbers in bf16 for
// prefills. See linear.h and packed.h. The naive version is naive_linear in tests/cuda/naive.h.
//
// With 4 or 8 bits a number, the time of a matrix is only partly the time of its bytes: each number must also become a bf16,
// and with small matrices the latency from one kernel to the next counts. Therefore
//   - a lane reads 16 bytes that hold its own numbers only (packed.h). It waits for its own copies, never for other lanes.
//   - a stored integer becomes a bf16 with one AND-OR and one subtraction for two numbers (int4): 128 + u is the bf16 with
//     bits 0x4300 | u. Scales multiply fp32 sums, so the matrix instructions see exact integers.
//   - 8 warps share n_in, so that two of them can hide each other's latency in each quarter of a multiprocessor.
//   - as in linear.cu, the rings fill before the previous kernel has ended, and two kernels' thread blocks fit on a
//     multiprocessor.
#include "backend/cuda/linear_endings.cuh"
#include "backend/cuda/packed.h"
#include "backend/cuda/packed_linear.h"

namespace {

enum {
    WARPS = 8, // of a thread block; each sums a part of n_in
    THREADS = 32 * WARPS,
    LEAVES = 16,                // equal parts of n_in, whose sums are added as a binary tree
    RING_BYTES = 108 << 10,     // of shared memory, with the parts of sums: two thread blocks fit on a multiprocessor
    MOST_STAGES = 16,           // of a ring
    MOST_REGISTERS = 128,       // of a thread: two thread blocks fit on a multiprocessor
    PIECE_ROWS = SL_PIECE_ROWS, // of W
    PIECE_COLS = SL_PIECE_COLS, // of W
};

// Copies from device memory to shared memory asynchronously. policy: the L2 cache evicts weights first.
__device__ __forceinline__ void copy_16(uint32_t to, const void *from, uint64_t policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "l"(policy)
                 : "memory");
}
template <int BYTES> __device__ __forceinline__ void copy_small(uint32_t to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(BYTES) : "memory");
}
template <int N> __device__ __forceinline__ void load_shared(uint32_t (&to)[N], uint32_t at) { // N = 4, or 1
    if constexpr (N == 4)
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(at)
                     : "memory");
    else
        asm volatile("ld.shared.b32 %0, [%1];" : "=r"(to[0]) : "r"(at) : "memory");
}

__device__ __forceinline__ uint32_t and_or(uint32_t x, uint32_t mask, uint32_t bits) { // x & mask | bits in one instruction
    uint32_t y;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(x), "r"(mask), "r"(bits));
    return y;
}
__device__ __forceinline__ __nv_bfloat162 as_pair(uint32_t x) {
    return *(__nv_bfloat162 *)&x;
}
__device__ __forceinline__ uint32_t as_bits(__nv_bfloat162 x) {
    return *(uint32_t *)&x;
}

// How a format's words become numbers. unpack: columns 4 half to 4 half + 3 of a lane's 8, as two pairs.
template <sl_format F> struct packing;

template <> struct packing<SL_INT4> {
    enum { WORDS = 1 }; // of 8 columns
    uint32_t mask = 0x000f000fu, magic = 0x43004300u;
    // The compiler would put two constants into two instructions; registers fit into one.
    __device__ packing() { asm volatile("" : "+r"(mask), "+r"(magic)); }
    __device__ __forceinline__ void unpack(const uint32_t *w, int half, uint32_t (&pair)[2]) const {
        const __nv_bfloat162 bias = __floats2bfloat162_rn(136, 136); // 128, and 8 of the stored q + 8
#pragma unroll
        for (int i = 0; i < 2; i++) pair[i] = as_bits(__hsub2(as_pair(and_or(w[0] >> (8 * half + 4 * i), mask, magic)), bias));
    }
};

template <> struct packing<SL_INT8> { // 2^23 + u is the fp32 number with bits 0x4b000000 | u
    enum { WORDS = 2 };
    __device__ __forceinline__ void unpack(const uint32_t *w, int half, uint32_t (&pair)[2]) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float a = __uint_as_float(__byte_perm(w[half], 0x4b000000u, 0x7540 + 2 * i)) - (0x1p23f + 128);
            const float b = __uint_as_float(__byte_perm(w[half], 0x4b000000u, 0x7541 + 2 * i)) - (0x1p23f + 128);
            pair[i] = sl_pack_bf16(a, b);
        }
    }
};

// The bits of an e4m3 number, moved to the places of bf16's sign, exponent and mantissa, are the number times 2^-120. This
// holds for its subnormal numbers too.
template <> struct packing<SL_FP8> {
    enum { WORDS = 2 };
    uint32_t mask = 0x07f007f0u;
    __device__ packing() { asm volatile("" : "+r"(mask)); }
    __device__ __forceinline__ void unpack(const uint32_t *w, int half, uint32_t (&pair)[2]) const {
        const __nv_bfloat162 raise = as_pair(0x7b807b80u); // 2^120
        const uint32_t high = w[half], low = high << 8;
        pair[0] = as_bits(__hmul2(as_pair(and_or(high >> 4, mask, high & 0x80008000u)), raise));
        pair[1] = as_bits(__hmul2(as_pair(and_or(low >> 4, mask, low & 0x80008000u)), raise));
    }
};

// Constants of a kernel. SCALES: of a row and piece. TILES: that use one load of x. NT: rows of x, divided by 8.
template <sl_format F, int SCALES, int TILES, int NT> struct sizes {
    enum {
        PIECE = F == SL_INT4 ? 512 : 1024, // bytes
        COPIES = PIECE / 512,
        SCALE_AT = 2 * PIECE, // of a stage: two pieces, then the scales of each lane for both
        SCALE_BYTES = 4 * SCALES,
        STAGE = SCALE_AT + 2 * 32 * SCALE_BYTES,
        PARTS = WARPS * TILES * NT * 32 * (int)sizeof(float4),
        FITTING = (RING_BYTES - PARTS) / WARPS / STAGE,
        STAGES = FITTING < MOST_STAGES ? FITTING : MOST_STAGES,
        BYTES = WARPS * STAGES * STAGE + PARTS,
    };
};

// Where the two halves of a tile lie (ending::rows), in groups of 8 rows of W. The halves of all tiles are `apart` groups
// apart.
template <sl_linear_end END> struct halves {
    enum { STEP = END == SL_LINEAR_STORE || END == SL_LINEAR_ADD ? 2 : 1 }; // from a tile to the next one
    static __device__ __forceinline__ int apart(const sl_cuda_linear &p) {
        if (END == SL_LINEAR_SWIGLU) return p.n_out / 2 / PIECE_ROWS;
        return END == SL_LINEAR_ROPE_APPEND ? p.head_dim / 2 / PIECE_ROWS : 1;
    }
};

// The weights of one lane in flight. The order of fetches is the order of use: for each TILES tiles, for each piece of the
// warp, for each of these tiles. Addresses grow step by step, because a product for each fetch would take as long as the
// numbers.
template <sl_linear_end END, sl_format F, int SCALES, int TILES, int NT> struct packed_ring {
    typedef sizes<F, SCALES, TILES, NT> S;
    typedef halves<END> H;
    enum { SET = PIECE_ROWS * SCALES }; // scales of 8 rows of W
    const sl_cuda_linear &p;
    const int first, last, end;           // the warp's pieces [first, last); `end`: the tile after the last one
    const uint32_t stages, scales;        // the lane's addresses in shared memory
    const uint32_t row_bytes, row_scales; // of 8 rows of W; row_scales counts numbers
    uint32_t from, column;                // offset of the next fetch in p.w; that of tile `tile` in the same piece
    uint32_t scale, set;                  // the same in p.scale
    int tile, n, i, piece;                // the next fetch: `piece` of tile + i, i < n <= TILES
    int in_head, in_head_of_column;       // SL_LINEAR_ROPE_APPEND: the place of tile + i, and of `tile`, among a head's tiles
    int pieces_left;                      // with the same scales
    uint32_t fill, read;                  // offsets of the next stage to fill, and to read
    uint64_t policy;

    __device__ packed_ring(const sl_cuda_linear &p, const void *shared, int warp, int lane, int first, int last, int begin,
                           int end)
        : p(p), first(first), last(last), end(first < last ? end : begin),
          stages((uint32_t)__cvta_generic_to_shared(shared) + warp * S::STAGES * S::STAGE + lane * 16),
          scales((uint32_t)__cvta_generic_to_shared(shared) + warp * S::STAGES * S::STAGE + S::SCALE_AT +
                 lane * S::SCALE_BYTES),
          row_bytes(p.packing.n_pieces * S::PIECE), row_scales(p.packing.n_sets * SET), tile(begin), n(min(TILES, end - begin)),
          i(0), in_head(0), fill(0), read(0), policy(sl_l2_policy(SL_L2_FIRST_OUT)) {
        int row = begin * H::STEP;
        if (END == SL_LINEAR_ROPE_APPEND) {
            const int apart = H::apart(p);
            row = begin / apart * 2 * apart + begin % apart, in_head = begin % apart;
        }
        in_head_of_column = in_head;
        column = row * row_bytes + lane * 16;
        set = row * row_scales + lane / 4 * SCALES;
        start_columns();
    }

    __device__ __forceinline__ void start_columns() { // `column` and `set` are those of piece 0
        const int sets = first / p.packing.pieces;
        piece = first;
        pieces_left = (sets + 1) * p.packing.pieces - first;
        from = column += first * S::PIECE;
        scale = set += sets * SET;
    }

    __device__ __forceinline__ void next_tile() {
        from += H::STEP * row_bytes, scale += H::STEP * row_scales, i++;
        if (END != SL_LINEAR_ROPE_APPEND || ++in_head < H::apart(p)) return;
        from += H::apart(p) * row_bytes, scale += H::apart(p) * row_scales, in_head = 0;
    }

    __device__ __forceinline__ void next_piece() {
        i = 0;
        if (++piece < last) {
            from = column += S::PIECE, in_head = in_head_of_column;
            if (--pieces_left == 0) set += SET, pieces_left = p.packing.pieces;
            scale = set;
            return;
        }
        column = from - (last - 1) * S::PIECE; // `from` and `scale` are those of the next tile
        set = scale - (last - 1) / p.packing.pieces * SET;
        in_head_of_column = in_head;
        tile += n, n = min(TILES, end - tile);
        start_columns();
    }

    __device__ __forceinline__ void fetch_half(int half) {
        const uint32_t to = stages + fill + half * S::PIECE;
        const char *at = (const char *)p.w + (from + half * H::apart(p) * row_bytes);
#pragma unroll
        for (int c = 0; c < S::COPIES; c++) copy_16(to + c * 512, at + c * 512, policy);
        copy_small<S::SCALE_BYTES>(scales + fill + half * 32 * S::SCALE_BYTES,
                                   p.scale + (scale + half * H::apart(p) * row_scales));
    }

    // Fetches the next piece of a tile, if there is one. Closes a group of copies in both cases, because next() counts the
    // groups.
    __device__ __forceinline__ void fetch() {
        if (tile < end) {
            const bool is_lone = H::STEP == 2 && (tile + i) * TILE + PIECE_ROWS == p.n_out; // no second half; nothing stores it
            fetch_half(0);
            if (!is_lone) fetch_half(1);
            fill = fill + S::STAGE == S::STAGES * S::STAGE ? 0 : fill + S::STAGE;
            next_tile();
            if (i == n) next_piece();
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    // Waits for the oldest stage and reads it: w[0] of row g of the first half of the tile, w[1] of the second half.
    __device__ __forceinline__ void next(uint32_t (&w)[2][S::COPIES][4], uint32_t (&s)[2][SCALES]) {
        asm volatile("cp.async.wait_group %0;" ::"n"(S::STAGES - 1) : "memory");
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int c = 0; c < S::COPIES; c++) load_shared<4>(w[half][c], stages + read + half * S::PIECE + c * 512);
            load_shared<SCALES>(s[half], scales + read + half * 32 * S::SCALE_BYTES);
        }
        read = read + S::STAGE == S::STAGES * S::STAGE ? 0 : read + S::STAGE;
    }
};

__device__ __forceinline__ float4 add(float4 a, float4 b) {
    return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

// sum += a piece of 16 rows of W times a piece of x. An instruction multiplies 4 columns of each lane. Neighbouring
// instructions add to different sums (CHAINS), so that one need not wait for the one before it.
template <sl_format F, int SCALES, int NT>
__device__ __forceinline__ void multiply(const packing<F> &unpacker, const uint32_t (&w)[2][packing<F>::WORDS][4],
                                         const uint32_t (&scale)[2][SCALES], const x_chunk<NT> &x, float4 (&sum)[NT]) {
    constexpr int CHAINS = SCALES == 1 ? 2 : SCALES, WORDS = packing<F>::WORDS;
    float4 products[CHAINS][NT] = {};
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int u = 0; u < STEPS; u++) {
            uint32_t lo[2], hi[2];
            unpacker.unpack(&w[0][0][0] + u * WORDS, half, lo);
            unpacker.unpack(&w[1][0][0] + u * WORDS, half, hi);
#pragma unroll
            for (int nt = 0; nt < NT; nt++)
                sl_mma_bf16(&products[u % CHAINS][nt].x, lo[0], hi[0], lo[1], hi[1], half ? x[nt][u].z : x[nt][u].x,
                            half ? x[nt][u].w : x[nt][u].y);
        }
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
        if (SCALES == 1) products[0][nt] = add(products[0][nt], products[1][nt]);
#pragma unroll
        for (int s = 0; s < SCALES; s++) {
            const float a = __uint_as_float(scale[0][s]), b = __uint_as_float(scale[1][s]);
            sum[nt].x += a * products[s][nt].x, sum[nt].y += a * products[s][nt].y;
            sum[nt].z += b * products[s][nt].z, sum[nt].w += b * products[s][nt].w;
        }
    }
}

// y = W x, then the ending.
//
// Grid: one thread block per multiprocessor. Thread block b computes the tiles (16 rows of W each) [n_tiles b / grid,
// n_tiles (b + 1) / grid), TILES at a time. NT: 1 for up to 8 rows of x, 2 for up to 16.
//
//   warp w    loads the pieces of leaves 2 w and 2 w + 1 of all tiles: W by cp.async to its ring, x to registers. It computes
//             these two leaves of the sums. It ends tile w / NT for rows 8 (w % NT) to + 7 of x: adds 8 parts, stores y.
//
// Shared memory (bytes): rings [WARPS][STAGES][STAGE], parts [WARPS][TILES][NT][32] float4, kv_row [16] size_t, factor [16]
// float (static).
//
// Needs: x 16-byte aligned, n_in a multiple of 8; with RoPE head_dim a multiple of 16; a matrix below 4 GiB.
// Bytes: W and its scales once from device memory, x once per TILES tiles (2 n_rows n_in) from L2.
// Rate: the 128 matrices of the layers of Llama-3.1-8B, with the norms between them, take as one graph, in multiples of the
// time of their bytes for 1, 8 and 16 rows: int4 in groups of 128 1.93, 2.07, 3.27 (1.57, 1.68, 2.66 ms); fp8 1.30, 1.40, 2.26
// (1.99, 2.15, 3.47 ms; H200, 30 November 2026). Without arithmetic and without x the rings alone take 1.34 with int4. With
// more than 8 rows no register is left for the next x. Reduction order: leaf l has the pieces [n l / 16, n (l + 1) / 16) of the
// n pieces of a row. A leaf adds its pieces in order. Within a piece an instruction adds 16 products to a running sum, one for
// each scale; with one scale there is a sum for every second 32 columns, which are then added. Leaves are added as a binary
// tree: 0 + 1, 2 + 3, ... The order depends on n_in and the group size only, so other rows of x, and the place of a row in x,
// do not change the bits of the row.
template <sl_linear_end END, sl_format F, int SCALES, int TILES, int NT>
__global__ void __maxnreg__(MOST_REGISTERS) packed_linear_kernel(const __grid_constant__ sl_cuda_linear p, int n_tiles) {
    typedef sizes<F, SCALES, TILES, NT> S;
    extern __shared__ __align__(16) char shared[];
    __shared__ size_t kv_row[SL_PACKED_ROWS];
    __shared__ float factor[SL_PACKED_ROWS];
    float4 *parts = (float4 *)(shared + WARPS * S::STAGES * S::STAGE);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int n_pieces = p.packing.n_pieces;
    const int first = n_pieces * (2 * warp) / LEAVES, middle = n_pieces * (2 * warp + 1) / LEAVES,
              last = n_pieces * (2 * warp + 2) / LEAVES;
    const int begin = n_tiles * blockIdx.x / gridDim.x, end = n_tiles * (blockIdx.x + 1) / gridDim.x;
    const packing<F> unpacker;

    packed_ring<END, F, SCALES, TILES, NT> weights(p, shared, warp, lane, first, last, begin, end);
    for (int s = 0; s < S::STAGES; s++) weights.fetch();
    sl_start_next(); // the rings of the next kernel fill while this kernel computes
    sl_wait_previous();

    // The address of a token's row in the pages takes two dependent loads. Issue the load of x between them, to hide latency.
    const bool has_row = END == SL_LINEAR_ROPE_APPEND && threadIdx.x < p.n_rows;
    const int32_t position = has_row ? __ldcg(&p.rows[threadIdx.x].position) : 0;
    const int32_t *pages = has_row ? (const int32_t *)__ldcg((const uintptr_t *)&p.rows[threadIdx.x].pages) : nullptr;
    constexpr bool AHEAD = NT == 1; // registers hold the next piece of x beside the one in use
    x_chunk<NT> x, x_next;
    if (first < last) load_x<NT>(p, lane, first, x);
    if (END != SL_LINEAR_ADD) find_factors<WARPS>(p, warp, lane, factor);
    const int32_t page = has_row ? __ldcg(pages + position / SL_PAGE) : 0;

    for (int tile = begin; tile < end; tile += TILES) {
        const int n = min(TILES, end - tile);
        static_assert(TILES * NT <= WARPS, "a warp ends one tile at most");
        const int own = warp / NT, own_col = warp % NT * 8 + 2 * t; // what the warp ends: rows own_col, own_col + 1 of x
        float2 before[2] = {};
        for (int c = 0; c < 2; c++)
            if (own < n && own_col + c < p.n_rows) before[c] = ending<END>::before(p, tile + own, g, own_col + c);
        const ushort2 next_w = own < n ? next_weights<END>(p, tile + own, g) : ushort2{0, 0};

#pragma unroll 1
        for (int leaf = 0, piece = first; leaf < 2; leaf++) {
            float4 sum[TILES][NT] = {};
            for (; piece < (leaf ? last : middle); piece++) {
                const int next_piece = piece + 1 < last ? piece + 1 : first; // after the last one: for the next tiles
                if (AHEAD) load_x<NT>(p, lane, next_piece, x_next);
#pragma unroll
                for (int i = 0; i < TILES; i++) {
                    if (i >= n) continue;
                    uint32_t w[2][S::COPIES][4], scale[2][SCALES];
                    weights.next(w, scale);
                    weights.fetch(); // into the stage that next() has just read
                    multiply<F, SCALES, NT>(unpacker, w, scale, x, sum[i]);
                }
                if (!AHEAD) load_x<NT>(p, lane, next_piece, x);
#pragma unroll
                for (int nt = 0; AHEAD && nt < NT; nt++)
#pragma unroll
                    for (int u = 0; u < STEPS; u++) x[nt][u] = x_next[nt][u];
            }
            float4 *part = parts + warp * TILES * NT * 32 + lane;
#pragma unroll
            for (int i = 0; i < TILES; i++)
#pragma unroll
                for (int nt = 0; nt < NT; nt++)
                    part[(i * NT + nt) * 32] = leaf ? add(part[(i * NT + nt) * 32], sum[i][nt]) : sum[i][nt];
        }

        if (has_row) kv_row[threadIdx.x] = kv_row_of(p, threadIdx.x, page, position);
        __syncthreads();
        if (own < n) {
            float4 y[WARPS];
#pragma unroll
            for (int w = 0; w < WARPS; w++) y[w] = parts[((w * TILES + own) * NT + warp % NT) * 32 + lane];
#pragma unroll
            for (int step = 1; step < WARPS; step *= 2)
#pragma unroll
                for (int w = 0; w < WARPS; w += 2 * step) y[w] = add(y[w], y[w + step]);
            end_tile<END>(p, tile + own, lane, warp % NT * 8, y[0], before, next_w, factor, kv_row);
        }
        if (tile + TILES < end) __syncthreads(); // the parts have been read
    }
}

template <sl_linear_end END, sl_format F, int SCALES, int TILES, int NT>
void launch(const sl_cuda_linear &p, cudaStream_t stream) {
    int shared = sizes<F, SCALES, TILES, NT>::BYTES, n_tiles = n_tiles_of<END>(p);
    // The rule of linear.cu. Without sums the kernel before is an RMSNorm, whose block does not fit beside two of these blocks.
    if (END == SL_LINEAR_ADD || !p.sums) shared = max(shared, over_half());
    sl_launch(packed_linear_kernel<END, F, SCALES, TILES, NT>, dim3(min(n_tiles, sl_multiprocessors())), dim3(THREADS), shared,
              stream, p, n_tiles);
}

template <sl_linear_end END, sl_format F, int SCALES> void launch(const sl_cuda_linear &p, cudaStream_t stream) {
    // A thread block has 2 or 3 tiles of an attention matrix of an 8B model, and 14 of gate and up.
    constexpr int TILES = END == SL_LINEAR_ADD ? 2 : END == SL_LINEAR_ROPE_APPEND ? 3 : 5;
    if (p.n_rows <= 8)
        launch<END, F, SCALES, TILES, 1>(p, stream);
    else
        launch<END, F, SCALES, 3, 2>(p, stream);
}

// ---- the numbers themselves ----

// The numbers of columns 32 u + 8 t to 32 u + 8 t + 7 of row `row`, from piece `piece`, lane t of the row.
template <sl_format F>
__device__ void numbers(const char *data, const float *scale, const sl_cuda_packing &k, int row, int piece, int u, int t,
                        float (&out)[8]) {
    constexpr int WORDS = packing<F>::WORDS, PIECE = sizes<F, 1, 1, 1>::PIECE;
    const int g = row % PIECE_ROWS, at = u * WORDS;
    const char *from = data + ((size_t)(row / PIECE_ROWS) * k.n_pieces + piece) * PIECE + (4 * g + t) * 16;
    const size_t set = (size_t)(row / PIECE_ROWS) * k.n_sets + piece / k.pieces;
    const float factor = scale[(set * PIECE_ROWS + g) * k.per_piece + (k.per_piece == 4 ? u : 0)];
    uint32_t w[WORDS];
    for (int i = 0; i < WORDS; i++) w[i] = *(const uint32_t *)(from + at / 4 * 512 + (at % 4 + i) * 4);
    const packing<F> unpacker;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t pair[2];
        unpacker.unpack(w, half, pair);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            out[4 * half + 2 * i] = sl_widen((bf16)pair[i]) * factor;
            out[4 * half + 2 * i + 1] = sl_widen((bf16)(pair[i] >> 16)) * factor;
        }
    }
}

// Grid: x: pieces and rows, 256 threads. Thread i has 8 columns.
template <sl_format F>
__global__ void widen_kernel(const char *data, const float *scale, sl_cuda_packing k, int n_cols, int first, int n_rows,
                             bf16 *out) {
    const int vectors = n_cols / 8, i = blockIdx.x * blockDim.x + threadIdx.x;
    sl_start_next();
    sl_wait_previous();
    if (i >= n_rows * vectors) return;
    const int row = i / vectors, col = i % vectors * 8;
    float x[8];
    numbers<F>(data, scale, k, first + row, col / PIECE_COLS, col % PIECE_COLS / 32, col % 32 / 8, x);
    *(uint4 *)(out + (size_t)row * n_cols + col) =
        uint4{sl_pack_bf16(x[0], x[1]), sl_pack_bf16(x[2], x[3]), sl_pack_bf16(x[4], x[5]), sl_pack_bf16(x[6], x[7])};
}

// Grid: x: pieces, a warp each. A lane reads its 32 bytes of a piece, and writes them as four runs of 8 columns of its row.
// Bytes: 2 per number.
__global__ void fp8_rows_kernel(const char *data, int n_pieces, int n_cols, int n, uint8_t *out) {
    const int piece = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    sl_start_next();
    sl_wait_previous();
    if (piece >= n) return;
    const uint4 *from = (const uint4 *)(data + (size_t)piece * 1024) + lane;
    const uint4 w[2] = {from[0], from[32]};
    const int col = piece % n_pieces * PIECE_COLS + lane % 4 * 8;
    uint8_t *to = out + (size_t)(piece / n_pieces * PIECE_ROWS + lane / 4) * n_cols + col;
    const auto in_order = [](uint32_t x) { return __byte_perm(x, 0, 0x2031); }; // c2 c0 c3 c1 to c0 c1 c2 c3
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (col + 64 * half < n_cols) *(uint2 *)(to + 64 * half) = {in_order(w[half].x), in_order(w[half].y)};
        if (col + 64 * half + 32 < n_cols) *(uint2 *)(to + 64 * half + 32) = {in_order(w[half].z), in_order(w[half].w)};
    }
}

// Grid: x: blocks of 128 rows; a thread has a block of 128 columns, and those 128 blocks further on. stride: scales of a row of
// blocks of `out`.
__global__ void block_scales_kernel(const float *scale, int n_sets, int stride, float *out) {
    sl_start_next();
    sl_wait_previous();
    for (int i = threadIdx.x; i < stride; i += blockDim.x)
        out[blockIdx.x * stride + i] =
            i < n_sets ? scale[((size_t)blockIdx.x * (128 / PIECE_ROWS) * n_sets + i) * PIECE_ROWS] : 0;
}

// Grid: x: rows of x; y: 8 columns a thread.
template <sl_format F>
__global__ void packed_embed_kernel(const char *data, const float *scale, sl_cuda_packing k, int n_cols, const int32_t *ids,
                                    float *out) {
    const int col = (blockIdx.y * blockDim.x + threadIdx.x) * 8;
    sl_start_next();
    sl_wait_previous();
    if (col >= n_cols) return;
    float x[8];
    numbers<F>(data, scale, k, ids[blockIdx.x], col / PIECE_COLS, col % PIECE_COLS / 32, col % 32 / 8, x);
    float4 *to = (float4 *)(out + (size_t)blockIdx.x * n_cols + col);
    to[0] = {x[0], x[1], x[2], x[3]}, to[1] = {x[4], x[5], x[6], x[7]};
}

// Calls with_format(the format as a constant).
template <typename Fn> void by_format(sl_format f, Fn with_format) {
    SL_CHECK(f == SL_INT4 || f == SL_INT8 || f == SL_FP8);
    if (f == SL_INT4) with_format(std::integral_constant<sl_format, SL_INT4>());
    if (f == SL_INT8) with_format(std::integral_constant<sl_format, SL_INT8>());
    if (f == SL_FP8) with_format(std::integral_constant<sl_format, SL_FP8>());
}

} // namespace

int sl_cuda_packed_fits(const sl_cuda_packing *packing, int n_rows, int n_cols) {
    const int fixed = SL_PACKED_ROWS * (int)(sizeof(size_t) + sizeof(float)); // kv_row, factor
    return RING_BYTES + fixed <= sl_device_get(cudaDevAttrMaxSharedMemoryPerBlockOptin) && n_cols <= SL_PACKED_COLS &&
           sl_packed_bytes(packing, n_rows) < UINT32_MAX; // offsets have 32 bits
}

void sl_cuda_packed_linear(const sl_cuda_linear *args, cudaStream_t stream) {
    const sl_cuda_linear &p = *args;
    SL_CHECK(p.n_rows <= SL_PACKED_ROWS && p.n_out % PIECE_ROWS == 0);
    SL_CHECK(p.end != SL_LINEAR_SWIGLU || p.n_out % TILE == 0);
    SL_CHECK(p.packing.per_piece == 1 || p.packing.format == SL_INT4);
    by_format(p.packing.format, [&](auto format) {
        by_ending(p, [&](auto end) {
            if (p.packing.per_piece == 1)
                launch<end(), format(), 1>(p, stream);
            else if constexpr (format() == SL_INT4)
                launch<end(), format(), 4>(p, stream);
        });
    });
}

void sl_cuda_packed_widen(const void *data, const float *scale, const sl_cuda_packing *packing, int n_cols, int first,
                          int n_rows, bf16 *out, cudaStream_t stream) {
    SL_CHECK(first % PIECE_ROWS == 0 && n_rows % PIECE_ROWS == 0 && n_cols % 8 == 0);
    const int n = n_rows * (n_cols / 8);
    by_format(packing->format, [&](auto format) {
        sl_launch(widen_kernel<format()>, dim3((n + 255) / 256), dim3(256), 0, stream, (const char *)data, scale, *packing,
                  n_cols, first, n_rows, out);
    });
}

void sl_cuda_packed_fp8_rows(const void *data, const sl_cuda_packing *packing, int n_cols, int first, int n_rows, uint8_t *out,
                             cudaStream_t stream) {
    SL_CHECK(packing->format == SL_FP8 && first % PIECE_ROWS == 0 && n_rows % PIECE_ROWS == 0 && n_cols % 8 == 0);
    const int n = n_rows / PIECE_ROWS * packing->n_pieces;
    sl_launch(fp8_rows_kernel, dim3((n + 7) / 8), dim3(256), 0, stream, (const char *)data + sl_packed_bytes(packing, first),
              packing->n_pieces, n_cols, n, out);
}

void sl_cuda_packed_block_scales(const float *scale, const sl_cuda_packing *packing, int first, int n_rows, float *out,
                                 cudaStream_t stream) {
    SL_CHECK(packing->pieces == 1 && packing->per_piece == 1 && first % 128 == 0 && n_rows % 128 == 0);
    sl_launch(block_scales_kernel, dim3(n_rows / 128), dim3(128), 0, stream, scale + (size_t)first * packing->n_sets,
              packing->n_sets, (packing->n_sets + 3) / 4 * 4, out);
}

void sl_cuda_packed_embed(const void *data, const float *scale, const sl_cuda_packing *packing, int n_cols, const int32_t *ids,
                          int n_rows, float *x, cudaStream_t stream) {
    SL_CHECK(n_cols % 8 == 0);
    by_format(packing->format, [&](auto format) {
        sl_launch(packed_embed_kernel<format()>, dim3(n_rows, (n_cols / 8 + 127) / 128), dim3(128), 0, stream,
                  (const char *)data, scale, *packing, n_cols, ids, x);
    });
}
