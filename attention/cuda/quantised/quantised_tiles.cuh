// attention/cuda/quantised/quantised_tiles.cuh - tiles of quantised keys on CUDA: how a sequence is cut, the stages in shared
// memory, and the two warps that fill them (score_quantised.cuh).
//
// | role    | warps | does                                                                                          |
// |---------|-------|-----------------------------------------------------------------------------------------------|
// | planner | 1     | takes tickets, looks up the items, and lists the copies of their tiles; a lane plans one tile |
// | issuer  | 1     | waits for a stage, describes the tile, and starts its two or three copies                     |
// The work has two warps, because the instructions of one warp would limit the rate of all tiles of the multiprocessor.
#ifndef SLEIGH_QUANTISED_TILES_CUH
#define SLEIGH_QUANTISED_TILES_CUH

#include "attention/cuda/head_dim.cuh"
#include "attention/cuda/offloaded_rows.cuh"
#include "attention/cuda/quantised/list_queue.cuh"

namespace {

enum {
    PAIRS =
        4, // of consumer warps: two warps per scheduler of the multiprocessor; one warp per scheduler would wait for its mma
    PAIR_THREADS = 64,
    QUANTISED_STAGES = 8,
    // Shared memory of a thread block. It is more than half of a multiprocessor's, although linear.cu demands less than half.
    // Reason: each pair scores a stage, while IN_FLIGHT other stages are on the way. A thread block of the linear layer before
    // attention (up to 8 rows) still fits on the same multiprocessor. The linear layer after attention waits for the draws
    // anyway.
    QUANTISED_SHARED = 139600,
    // Tiles of a thread block that are on the way from memory, at most. More would fill the queues of the memory, and the loads
    // of the thread blocks that draw at the same time would wait there (one H100, 6 x 32k, int4 keys: 74 us; 77 us without this
    // limit; int8 keys: no difference). Before the previous kernel has ended, nothing draws, and all stages are filled.
    IN_FLIGHT = 3,
    EXACT_ROWS = BLOCK, // rows of K and V in a tile of the newest page
    NEWEST_TILES = SL_PAGE / EXACT_ROWS,
    FIRST_ITEMS = 8,  // items of a thread block that follow from blockIdx.x
    TICKET_TILES = 4, // tiles of one ticket, if they have codes
    BATCH_TILES = 16, // most tiles that the planner lists at a time
    WOVEN = 2,        // items whose tiles take turns (woven)
};

struct quantised_params {
    score_params score;
    const char *codes; // [n_pages][n_kv_heads][size], the page extra
    int size;
    // NULL: the method does not need the sums of the newest page.
    const bf16 *v; // [n_pages][n_kv_heads] blocks of 256 rows
    float *newest; // [n_seqs * n_heads][NEWEST_TILES][head_dim + 2]: sum of mass * v; then the sum's reference; then the sum of
                   // masses
    cleared_ints cleared; // for the kernel that draws
};

// ---- how a sequence is cut ----

// Number of pages with a quantised copy: all pages but the newest one.
__device__ int built_pages(int n_kv) {
    return (n_kv - 1) / SL_PAGE;
}

// Number of tiles of the newest page.
__device__ int newest_tiles(int n_kv) {
    return (n_kv - 1) % SL_PAGE / EXACT_ROWS + 1;
}

// ---- tiles ----

// A tile of quantised keys. The bits of codes lie in planes of words: [16-row group][64-byte unit][16 rows][4 bytes]. A unit
// has 4 channels of 8-bit codes, 8 channels of 4-bit codes, or bits of 16 or 32 channels of 3-bit codes.
template <int DIM, int BITS> struct tile {
    enum {
        ROWS = BITS == 8 ? 128 : 256, // rows of a tile; with 8-bit codes half a page
        TILES = SL_PAGE / ROWS,       // tiles of a page
        BLOCKS = ROWS / BLOCK / 2,    // blocks of 32 rows for each of the two warps
        UNITS = (DIM * (BITS == 3 ? 2 : BITS) + 31) / 32,
        UNITS2 = BITS == 3 ? (DIM + 31) / 32 : 0, // of the second plane
        PLANE_AT = 4 * DIM,                       // after steps and zeros
        PLANE = UNITS * 64 * ROWS / 16,
        PLANE2_AT = PLANE_AT + PLANE,
        PLANE2 = UNITS2 * 64 * ROWS / 16,
        BYTES = PLANE2_AT + PLANE2,
        V_AT = EXACT_ROWS * layout<DIM>::ROW, // after K of a tile of the newest page
        SCALES_AT = 2 * V_AT,                 // IS_BYTES: the scales of K, then the scales of V
        SCALES = EXACT_ROWS * STORED_SCALE,
        EXACT_BYTES = SCALES_AT + 2 * SCALES,
        Q_AT = (int)BYTES > (int)EXACT_BYTES ? (int)BYTES : (int)EXACT_BYTES,
    };
    static __host__ __device__ int norms_at(int group) { return Q_AT + group * layout<DIM>::Q_ROW; }
    template <bool SIZES> static __host__ __device__ int stage(int group) {
        return ceil_div(norms_at(group) + (SIZES ? ROWS * (int)sizeof(bf16) : 0), 128) * 128;
    }
    static __host__ int stages(int stage_bytes, int others) { // others: bytes of shared memory without the stages
        int n = (QUANTISED_SHARED - others) / stage_bytes;
        SL_CHECK(n >= PAIRS); // end_pair needs it: consumers never release a stage with the mark of the end
        return n < QUANTISED_STAGES ? n : (int)QUANTISED_STAGES;
    }
};

// A tile in a stage.
struct __align__(16) tile_place {
    int seq_head; // -1: there are no more tiles
    int row;      // first row, counted in the sequence
    int n_kv;     // rows of the sequence
    short stage;  // set by the issuer
    short space;  // the parity of the item's number among the items of its pair, set by the issuer
};

// Any pair can take a stage. A pair takes whole items, so it quantises the queries once for each page. Its tile number i has
// the barrier full[pair][i % QUANTISED_STAGES] and the description tile[pair][i % QUANTISED_STAGES], which names the stage. So
// no pair waits for a phase that another pair consumes. All unreleased tiles have stages of their own, so at most
// QUANTISED_STAGES tiles of a pair are on the way.
struct ring_shared {
    uint64_t full[PAIRS][QUANTISED_STAGES], empty[QUANTISED_STAGES];
    tile_place tile[PAIRS][QUANTISED_STAGES];
    int query_for[QUANTISED_STAGES]; // the place of the stage's tile, if the tile brings queries; else -1
    int issued[IN_FLIGHT];           // of the last tiles: place * 2 + the parity of its phase
};

struct page_ring {
    ring_shared *head;
    char *stages;
    int n_stages, stage_bytes;
    __device__ char *data(int stage) const { return stages + stage * stage_bytes; }
};

// ---- planning ----

// A work item is a quantised page of a seq_head, or one tile of its newest page.
struct quantised_items {
    __device__ int count(int n_kv) const { return n_kv > 0 ? built_pages(n_kv) + newest_tiles(n_kv) : 0; }
};

// A tile, as the planner lists it for the issuer.
struct planned_tile {
    tile_place place;          // seq_head -1: there is no such item
    int exact;                 // of the newest page
    int has_query;             // the tile is the first one of its item: the copy of the queries belongs to this tile
    const void *from, *second; // codes and norms, or K and V
    int bytes, second_bytes;   // bytes 0: the item has no such tile
    int at, second_at;         // in the stage
};

// Batch number i has the place i % 2. The first batch has the first items of the thread block. Every later batch has the items
// of one ticket.
struct planned_batches {
    uint64_t full[2], empty[2];
    __align__(64) planned_tile tile[2][BATCH_TILES]; // racecheck takes 64 bytes with a barrier as one piece of memory
};

// Plans part `part` of item `number` of all items. The items of a sequence are in the order of pages, and the KV heads of a
// page follow each other. The tiles of the newest page are an exception: they come after half of the pages. IS_OFFLOADED: all
// items of a KV head follow each other. So the bus fetches the drawn rows of the first heads while the keys of later heads are
// scored.
template <int DIM, int BITS, bool SIZES>
__device__ planned_tile plan_tile(const quantised_params &p, seq_lookup *lookup, int number, int part) {
    typedef tile<DIM, BITS> of;
    int n_heads = p.score.n_kv_heads;
    item_place at = lookup_find_each(lookup, p.score.rows, p.score.n_seqs, n_heads, quantised_items(), number);
    planned_tile x = {.place = {-1, 0, 0}};
    if (at.seq < 0) return x;
    int n_built = built_pages(at.n_kv), n_tiles = newest_tiles(at.n_kv), n_items = quantised_items().count(at.n_kv);
    int index = IS_OFFLOADED ? at.local % n_items : at.local / n_heads,
        kv_head = IS_OFFLOADED ? at.local / n_items : at.local % n_heads;
    int tile = index - n_built / 2, page = tile < 0 ? index : tile < n_tiles ? n_built : index - n_tiles;
    size_t pool = (size_t)__ldg(at.pages + page) * n_heads + kv_head;
    x.exact = page == n_built, x.has_query = part == 0;
    int row = x.exact ? tile * EXACT_ROWS : part * of::ROWS;
    x.place = {at.seq * n_heads + kv_head, page * SL_PAGE + row, at.n_kv};
    if (x.exact) {
        x.from = row_of_block<DIM>(p.score.k, pool, row), x.second = row_of_block<DIM>(p.v, pool, row), x.second_at = of::V_AT;
        if (part == 0) x.bytes = of::V_AT, x.second_bytes = p.newest ? (int)of::V_AT : 0;
    } else { // the steps and zeros lie before the codes of the first part
        x.at = part ? (int)of::PLANE_AT : 0, x.bytes = (part ? 0 : (int)of::PLANE_AT) + of::PLANE + of::PLANE2;
        x.from = p.codes + pool * p.size + x.at + part * of::PLANE;
        if (SIZES) {
            x.second = p.score.norms + pool * SL_PAGE + row, x.second_at = of::norms_at(p.score.group);
            x.second_bytes = of::ROWS * (int)sizeof(bf16);
        }
    }
    return x;
}

struct woven_tile {
    int item, part; // number of the item in the batch; part of the item
};

// The item and the part of tile number i of a batch. An item has TILES tiles. The planner and the issuer take the tiles of
// WOVEN items in turns: first part 0 of both items, then part 1 of both items. Reason: a pair of consumers scores one tile at a
// time. Two neighbouring tiles of one pair would arrive together. The second tile would wait in its stage, and fewer stages
// would be on the way from memory.
template <int TILES> __device__ woven_tile woven(int i) {
    return {i / (WOVEN * TILES) * WOVEN + i % WOVEN, i % (WOVEN * TILES) / WOVEN};
}

// The planner: lists the first items of the thread block, which follow from blockIdx.x, and then the items of tickets, until an
// item does not exist. Thread blocks take tickets, because those that share a multiprocessor with draws are slower. The first
// batch is listed before the thread block's first __syncthreads, which the planner calls here. The loop is not unrolled: the
// first batch loads its instructions from memory, so later batches find them in the cache.
template <int DIM, int BITS, bool SIZES> __device__ void plan_pages(const quantised_params &p, planned_batches *batches) {
    enum { TILES = tile<DIM, BITS>::TILES, ITEMS = TICKET_TILES / TILES };
    static_assert(FIRST_ITEMS * TILES <= BATCH_TILES && TICKET_TILES <= BATCH_TILES, "a batch");
    static_assert(FIRST_ITEMS % WOVEN == 0 && ITEMS % WOVEN == 0, "whole groups of woven items");
    int lane = threadIdx.x % 32, ticket = 0, first = (int)blockIdx.x, step = (int)gridDim.x, n = FIRST_ITEMS * TILES;
#if __CUDA_ARCH__ < 900
    sl_wait_previous();
#endif
    seq_lookup lookup;
    lookup_load(&lookup, p.score.rows, p.score.n_seqs, p.score.n_kv_heads, quantised_items(), 0, 0);
    bool more = true;
#pragma unroll 1
    for (int batch = 0; more; batch++) {
        woven_tile tile = woven<TILES>(min(lane, n - 1));
        planned_tile own = plan_tile<DIM, BITS, SIZES>(p, &lookup, first + tile.item * step, tile.part);
        more = __shfl_sync(~0u, own.place.seq_head, n - 1) >= 0;
        if (batch > 0) barrier_wait(&batches->empty[batch % 2], batch / 2 % 2 ^ 1);
        if (lane < n) batches->tile[batch % 2][lane] = own;
        if (batch == 0) __syncthreads();
        __syncwarp();
        if (lane == 0) barrier_arrive(&batches->full[batch % 2]);
        if (batch == 0) { // the launch before sets next_item to 0
            sl_wait_previous();
            if (lane == 0) ticket = sl_take_number(p.score.next_item);
        }
        first = FIRST_ITEMS * (int)gridDim.x + __shfl_sync(~0u, ticket, 0) * ITEMS, step = 1, n = TICKET_TILES;
        if (lane == 0 && more) ticket = sl_take_number(p.score.next_item);
    }
}

// ---- issuing ----

struct page_issuer {
    page_ring r;
    int stage, parity; // of the next tile
    int n_issued;      // tiles
    int item;          // number of the tile's item; the pairs take items in turn
    uint32_t numbers;  // a byte for each pair: the number of its next tile, modulo 2 * QUANTISED_STAGES
    int has_waited;
    uint64_t normal, leaves_first; // L2 policies: normal_tiles
    __device__ int pair() const { return item % PAIRS; }
    __device__ int number() const { return numbers >> 8 * pair() & 0xff; } // of the tile among those of its pair
    __device__ int place() const { return pair() * QUANTISED_STAGES + number() % QUANTISED_STAGES; }
    __device__ uint64_t *full() const { return r.head->full[0] + place(); }
    // One thread calls it: writes what the consumers need to find the tile.
    __device__ void describe(const tile_place &tile, bool has_query) const {
        r.head->tile[0][place()] = {tile.seq_head, tile.row, tile.n_kv, (short)stage, (short)(item / PAIRS % 2)};
        r.head->query_for[stage] = has_query ? place() : -1;
        r.head->issued[n_issued % IN_FLIGHT] = place() * 2 + number() / QUANTISED_STAGES;
    }
    // Waits until fewer than IN_FLIGHT tiles are on the way from memory.
    __device__ void wait_landed() const {
        if (n_issued < IN_FLIGHT) return;
        int tile = r.head->issued[n_issued % IN_FLIGHT]; // number n_issued - IN_FLIGHT
        barrier_wait(r.head->full[0] + tile / 2, tile % 2);
        __syncwarp(); // all lanes have read `issued`
    }
    __device__ void advance() {
        numbers = (numbers + (1u << 8 * pair())) & (2 * QUANTISED_STAGES - 1) * 0x01010101u;
        n_issued++;
        if (++stage == r.n_stages) stage = 0, parity ^= 1;
    }
};
static_assert(PAIRS == 4 && QUANTISED_STAGES == 8, "page_issuer.numbers");

// One thread calls the function.
template <int DIM, int BITS>
__device__ void copy_query(const quantised_params &p, const page_ring &r, int stage, uint64_t *full, int seq_head) {
#if __CUDA_ARCH__ >= 900
    copy_bulk(shared_address(r.data(stage)) + tile<DIM, BITS>::Q_AT, p.score.q + (size_t)seq_head * p.score.group * DIM,
              p.score.group * layout<DIM>::Q_ROW, full);
#endif
}

// Waits for the previous kernel. Then issues the copies that had to wait: q of the tiles in stages 0, 1, ...
template <int DIM, int BITS> __device__ void wait_previous(const quantised_params &p, page_issuer *to) {
    sl_wait_previous();
    to->has_waited = 1;
    const page_ring &r = to->r;
#pragma unroll 1
    for (int i = 0; threadIdx.x % 32 == 0 && i < to->n_issued; i++) {
        int place = r.head->query_for[i];
        if (place >= 0) copy_query<DIM, BITS>(p, r, i, r.head->full[0] + place, r.head->tile[0][place].seq_head);
    }
    __syncwarp();
}

// The address of the scale of row `row` of the sequence, in the newest page. The scales of the next rows follow it. rows: the
// address of the row itself.
template <int DIM> __device__ const void *scales_of_rows(const void *rows, int row) {
    const char *block = (const char *)rows - row % SL_PAGE * DIM;
    return scale_of_block<DIM>((const bf16 *)block, 0, row % SL_PAGE);
}

// Issues a tile, which all lanes know.
template <int DIM, int BITS> __device__ void issue_tile(const quantised_params &p, page_issuer *to, const planned_tile &x) {
    barrier_wait(&to->r.head->empty[to->stage], to->parity ^ 1);
    if (to->has_waited) to->wait_landed();
    uint64_t *full = to->full();
    uint32_t data = shared_address(to->r.data(to->stage));
    int q_bytes = x.has_query ? p.score.group * layout<DIM>::Q_ROW : 0;
    int scale_bytes = IS_BYTES && x.exact ? (int)tile<DIM, BITS>::SCALES : 0; // of K, and of V
    if (threadIdx.x % 32 == 0) {
        to->describe(x.place, x.has_query);
#if __CUDA_ARCH__ >= 900
        uint64_t policy = to->n_issued < p.score.n_normal ? to->normal : to->leaves_first;
        barrier_expect(full, x.bytes + x.second_bytes + q_bytes + (x.second_bytes ? 2 : 1) * scale_bytes);
        copy_bulk(data + x.at, x.from, x.bytes, full, policy);
        if (x.second_bytes) copy_bulk(data + x.second_at, x.second, x.second_bytes, full, policy);
        if (scale_bytes) {
            uint32_t at = data + tile<DIM, BITS>::SCALES_AT;
            copy_bulk(at, scales_of_rows<DIM>(x.from, x.place.row), scale_bytes, full, policy);
            if (x.second_bytes)
                copy_bulk(at + scale_bytes, scales_of_rows<DIM>(x.second, x.place.row), scale_bytes, full, policy);
        }
        if (x.has_query && to->has_waited) copy_query<DIM, BITS>(p, to->r, to->stage, full, x.place.seq_head);
#endif
    }
    __syncwarp();
#if __CUDA_ARCH__ < 900
    copy_warp(data + x.at, x.from, x.bytes);
    copy_warp(data + x.second_at, x.second, x.second_bytes);
    if (scale_bytes) {
        uint32_t at = data + tile<DIM, BITS>::SCALES_AT;
        copy_warp(at, scales_of_rows<DIM>(x.from, x.place.row), scale_bytes);
        if (x.second_bytes) copy_warp(at + scale_bytes, scales_of_rows<DIM>(x.second, x.place.row), scale_bytes);
    }
    copy_warp(data + tile<DIM, BITS>::Q_AT, p.score.q + (size_t)x.place.seq_head * p.score.group * DIM, q_bytes);
    arrive_after_copies(full);
    if (threadIdx.x % 32 == 0) barrier_arrive(full);
#endif
    to->advance();
}

// Tells one pair that there are no more tiles.
__device__ void end_pair(page_issuer *to) {
    uint64_t *full = to->full();
    barrier_wait(&to->r.head->empty[to->stage], to->parity ^ 1);
    if (threadIdx.x % 32 == 0) to->describe({-1, 0, 0}, false);
#if __CUDA_ARCH__ < 900
    arrive_after_copies(full);
#endif
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(full);
    to->advance();
}

// The loop of the issuer: issues the tiles of all batches, up to the first item that does not exist.
template <int DIM, int BITS>
__device__ void issue_pages(const quantised_params &p, const page_ring &r, planned_batches *batches) {
    enum { TILES = tile<DIM, BITS>::TILES };
    page_issuer to = {.r = r, .normal = sl_l2_policy(SL_L2_ANY), .leaves_first = sl_l2_policy(SL_L2_FIRST_OUT)};
#if __CUDA_ARCH__ < 900
    wait_previous<DIM, BITS>(p, &to);
#endif
    bool more = true;
    for (int batch = 0, first = 0; more; batch++) { // first: the first item of the batch
        int n = batch ? (int)TICKET_TILES : FIRST_ITEMS * TILES;
        barrier_wait(&batches->full[batch % 2], batch / 2 % 2);
        __syncwarp();
#pragma unroll 1
        for (int i = 0; i < n; i++) {
            const planned_tile x = batches->tile[batch % 2][i];
            more &= x.place.seq_head >= 0;
            to.item = first + woven<TILES>(i).item;
            // Two copies must wait for the previous kernel: the newest row, and q of a tile that is not the first one of its
            // stage.
            if (!to.has_waited && (x.exact || to.n_issued >= r.n_stages)) wait_previous<DIM, BITS>(p, &to);
            if (x.bytes > 0) issue_tile<DIM, BITS>(p, &to, x);
        }
        first += n / TILES;
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(&batches->empty[batch % 2]);
    }
    if (!to.has_waited) wait_previous<DIM, BITS>(p, &to);
    for (to.item = 0; to.item < PAIRS; to.item++) end_pair(&to);
}

} // namespace

#endif
