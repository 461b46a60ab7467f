// attention/cuda/offloaded_rows.cuh - rows of K and V in host memory (kv/kv_offload.h), which the threads of a kernel fetch
// themselves. The Makefile compiles decode kernels a second time, with SL_OFFLOADED_ROWS. There the rows of
// full pages lie on the host, K and V of a row side by side. The rows of the newest page lie in k and v.
//
// Kernels that read lists of rows (attend_rows.cuh, attend_buckets.cuh) read them where they lie, K and V with loads or copies
// to shared memory that are in flight together. fetch_rows copies the drawn rows of a warp to memory of the GPU, and the kernel
// then reads the copies as it reads rows on the GPU. A row of head_dim 128 is 512 bytes: the 32 lanes of a warp request it with
// one load, so K and V of a row are fetched together. Rows that the cache of hot rows has are copied from there (hot_rows.cuh).
// In one gather alone, a cold row costs 33 to 38 ns of the bus at any size up to 512 bytes (H200, November 2026), so the number
// of rows sets the time, and not their bytes. A warp has FETCH_AHEAD loads in flight.
#ifndef SLEIGH_OFFLOADED_ROWS_CUH
#define SLEIGH_OFFLOADED_ROWS_CUH

#include "attention/cuda/hot_rows.cuh"
#include "attention/cuda/stored_rows.cuh"
#include "backend/cuda/device.cuh"

namespace {

#ifdef SL_OFFLOADED_ROWS
enum { IS_OFFLOADED = 1 };
#else
enum { IS_OFFLOADED = 0 };
#endif

static_assert(!IS_OFFLOADED || !IS_BYTES, "rows in host memory are bf16");

enum { FETCH_AHEAD = 8 };

// K and V of row i begin at rows + 2 i head_dim.
struct offloaded_rows {
    const bf16 *rows = NULL; // of this layer: [n_pages][n_kv_heads][256][2][head_dim], host memory
    bf16 *fetched = NULL;    // [n_seqs][n_heads][n_lists][TAKE_THREADS][2][head_dim], memory of the GPU
    int *listed = NULL;      // [n_seqs][n_heads][n_lists][TAKE_THREADS] the rows in `fetched`: pool row + 1; 0: none. For
                             // keep_hot_kernel; not used without a cache of hot rows
    int n_kv_heads = 0;
    sl_kv_hot_rows hot = {};
    sl_attn_cuda_stats *stats = NULL;
};

// Rows of V with rows of K between them: row i begins at v + 2 i head_dim. Another thread of the warp may have written them.
struct paired_rows {
    const bf16 *v;
};

// Rows of V in the format of the cache (draw_rows.cuh, value_rows).
struct byte_rows {
    const bf16 *blocks;
    bool is_fp8;
};

// Eight numbers of a row of V, without a policy of the L2 cache and with one.
template <int DIM> __device__ uint4 load_piece(const bf16 *v, int row, int piece) {
    return __ldg((const uint4 *)(v + (size_t)row * DIM) + piece);
}
template <int DIM> __device__ uint4 load_piece(const paired_rows &rows, int row, int piece) {
    return __ldcg((const uint4 *)(rows.v + (size_t)row * 2 * DIM) + piece);
}
template <int DIM> __device__ uint4 load_piece(const bf16 *v, int row, int piece, uint64_t policy) {
    return sl_load_l2((const uint4 *)(v + (size_t)row * DIM) + piece, policy);
}
template <int DIM> __device__ uint4 load_piece(const paired_rows &rows, int row, int piece, uint64_t) {
    return load_piece<DIM>(rows, row, piece);
}
template <int DIM> __device__ uint2 load_piece(const byte_rows &rows, int row, int piece) {
    return __ldg((const uint2 *)row_of_pool<DIM>(rows.blocks, row) + piece);
}
template <int DIM> __device__ uint2 load_piece(const byte_rows &rows, int row, int piece, uint64_t policy) {
    return sl_load_l2((const uint2 *)row_of_pool<DIM>(rows.blocks, row) + piece, policy);
}

// ---- rows that a kernel reads where they lie ----

enum { IN_FRAME = 1 << 30 }; // a mark of pool rows: IS_OFFLOADED: the row is in k and v, not on the host

// A pool row of the page with number `page` of a sequence, whose newest page has number `newest`.
__device__ __forceinline__ int mark_row(int row, int page, int newest) {
    return IS_OFFLOADED && page == newest ? row | IN_FRAME : row;
}

// Whether a marked row is on the host.
__device__ __forceinline__ bool is_offloaded(int row) {
    return IS_OFFLOADED && row >= 0 && !(row & IN_FRAME);
}

// K and V of a marked row. k, v: of the layer. host: offloaded_rows.rows
template <int DIM> __device__ __forceinline__ const bf16 *k_of_row(const bf16 *k, const bf16 *host, int row) {
    if (IS_BYTES) return (const bf16 *)row_of_pool<DIM>(k, row);
    return is_offloaded(row) ? host + (size_t)row * 2 * DIM : k + (size_t)(IS_OFFLOADED ? row & ~IN_FRAME : row) * DIM;
}
template <int DIM> __device__ __forceinline__ const bf16 *v_of_row(const bf16 *v, const bf16 *host, int row) {
    if (IS_BYTES) return (const bf16 *)row_of_pool<DIM>(v, row);
    return is_offloaded(row) ? host + (size_t)row * 2 * DIM + DIM : v + (size_t)(IS_OFFLOADED ? row & ~IN_FRAME : row) * DIM;
}

// A part of such a row.
template <typename T> __device__ __forceinline__ T load_part(const T *from, uint64_t policy) {
    return IS_OFFLOADED ? __ldcg(from) : sl_load_l2(from, policy);
}

// Counts the rows on the host that the warp reads. `row` of n_lanes lanes is the same row.
__device__ __forceinline__ void count_fetched(sl_attn_cuda_stats *stats, int row, int n_lanes) {
    if (!IS_OFFLOADED || !stats) return;
    int n = __popc(__ballot_sync(~0u, is_offloaded(row))) / n_lanes;
    if (n > 0 && threadIdx.x % 32 == 0) atomicAdd(&stats->fetched, (unsigned long long)n);
}

// ---- rows that a kernel fetches first ----

// Loads what, with IS_OFFLOADED, another lane of the warp has written.
template <typename T> __device__ __forceinline__ T load_written(const T *from) {
    return IS_OFFLOADED ? __ldcg(from) : __ldg(from);
}

// Where the lane's row is read: in the cache, or on the host. *is_hit: in the cache.
template <int DIM> __device__ const bf16 *source_of(const offloaded_rows &p, int row, bool *is_hit) {
    *is_hit = false;
    if (row < 0) return NULL;
    if (p.hot.n_sets > 0 && p.hot.imposed < 0) {
        size_t set = hot_set_of(p.hot, p.n_kv_heads, row);
        int way = hot_way(p.hot, set, hot_tag_of(p.hot, p.n_kv_heads, row));
        *is_hit = way >= 0;
        if (*is_hit) return hot_row<DIM>(p.hot, set, way);
    } else if (p.hot.n_sets > 0) { // for benches: any row of the cache
        uint32_t x = ((uint32_t)row * 0x9e3779b1u ^ blockIdx.x * 0x85ebca6bu) * 0xc2b2ae35u;
        *is_hit = (int)(x >> 16) < p.hot.imposed;
        if (*is_hit) return hot_row<DIM>(p.hot, hot_set_of(p.hot, p.n_kv_heads, row), x % SL_HOT_WAYS);
    }
    return p.rows + (size_t)row * 2 * DIM;
}

// Copies the warp's rows to places first_place + 0, 1, .., one for each thread of the thread block, and lists them. row: the
// lane's pool row; -1: none. Lanes without a row come last. Equal neighbours are fetched once and share a place. Returns the
// lane's place in the thread block; -1: none. s->row: as in `gather`. A later call of the warp overwrites its places and their
// list.
template <int DIM, typename Space>
__device__ int fetch_rows(const offloaded_rows &p, Space *s, size_t first_place, int thread, int row) {
    enum { PIECES = DIM / 4, AT_ONCE = 32 / PIECES }; // pieces of 16 bytes in a row; rows of one load of the warp
    int lane = thread % 32, warp = thread / 32 * 32, own = lane / PIECES, piece = lane % PIECES;
    int before = __shfl_up_sync(~0u, row, 1);
    bool leads = row >= 0 && (lane == 0 || row != before);
    uint32_t leaders = __ballot_sync(~0u, leads);
    int n = __popc(leaders), rank = __popc(leaders & (~0u >> (31 - lane))) - 1;
    if (n == 0) return -1;
    if (leads) s->row[warp + rank] = lane;
    __syncwarp();
    int leader = s->row[warp + min(lane, n - 1)], listed = __shfl_sync(~0u, row, leader); // of place `lane`
    bool is_hit;
    const bf16 *source = source_of<DIM>(p, lane < n ? listed : -1, &is_hit);
    int n_hits = __popc(__ballot_sync(~0u, is_hit));
    if (p.hot.n_sets > 0) __stcg(p.listed + first_place + thread, lane < n ? listed + 1 : 0);
    if (p.stats && lane == 0) {
        atomicAdd(&p.stats->fetched, (unsigned long long)(n - n_hits));
        if (n_hits > 0) atomicAdd(&p.stats->hits, (unsigned long long)n_hits);
    }
    uint4 *places = (uint4 *)(p.fetched + (first_place + warp) * 2 * DIM) + piece;
#pragma unroll 1
    for (int first = 0; first < n; first += FETCH_AHEAD * AT_ONCE) {
        uint4 x[FETCH_AHEAD];
#pragma unroll
        for (int j = 0; j < FETCH_AHEAD; j++) {
            int i = first + j * AT_ONCE + own;
            const uint4 *from = (const uint4 *)__shfl_sync(~0u, (unsigned long long)source, min(i, 31)) + piece;
            x[j] = make_uint4(0, 0, 0, 0);
            if (own < AT_ONCE && i < n) x[j] = __ldcg(from);
        }
#pragma unroll
        for (int j = 0; j < FETCH_AHEAD; j++) {
            int i = first + j * AT_ONCE + own;
            if (own < AT_ONCE && i < n) __stcg(places + i * PIECES, x[j]);
        }
    }
    __syncwarp(); // the other lanes read the places, and s->row may be written again
    return row < 0 ? -1 : warp + rank;
}

// Takes the rows that a launch has fetched into the cache of hot rows. A query head has n_lists lists of n_places places.
static inline void keep_hot_rows(const offloaded_rows &p, const sl_attn_cuda_decode_args *a, int n_lists, int n_places) {
    if (!IS_OFFLOADED || p.hot.n_sets == 0) return;
    const sl_cuda_hot_lists lists = {.hot = p.hot,
                                     .n_seqs = a->n_seqs,
                                     .n_kv_heads = a->geom->n_kv_heads,
                                     .group = a->geom->n_heads / a->geom->n_kv_heads,
                                     .n_lists = n_lists,
                                     .places = n_places,
                                     .listed = p.listed,
                                     .fetched = p.fetched};
    sl_cuda_keep_hot_rows(&lists, a->geom->head_dim, a->stream);
}

} // namespace

#endif
