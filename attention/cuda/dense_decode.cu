// attention/cuda/dense_decode.cu - exact decode attention on CUDA: one new token per sequence, paged K and V. One pass over the
// rows of a KV head serves all query heads of its group.
// The naive version is in tests/cuda/naive.h: naive_dense_decode.
//
// Owns: the cut of a context into chunks, the distribution of chunks over thread blocks, the merge of results. streaming reads
// only the first `sink` and the last `window` rows: the kernel skips all tiles between them. Refuses (SL_CHECK): a head_dim
// other than 64, 80, 96, 128; groups of more than 8 heads.
//
// A step with drafts has several rows of one sequence, which are neighbours (a run, SL_CUDA_RUN_MOST). An instance of the
// kernel with RUN_SETS sets of consumer warps reads K and V once for the rows of a run. Each set has 8 columns of the mma:
// query heads of the run's rows. Every row keeps its own order of reduction, so its bits are those of the instance with one
// set. This holds also if a row of K or V after it in the run, of a draft, is not finite (add_last_tile).
//
// The file is compiled again for a cache of fp8 or int8 (stored_rows.cuh). There a tile has twice the rows, and twice the
// consumer warps, because they convert the numbers too. The file is long because it is one kernel, whose roles share the layout
// of a tile.
//
// | role     | warps            | does                                                                                      |
// |----------|------------------|-------------------------------------------------------------------------------------------|
// | consumer | 4; fp8, int8: 8  | online softmax over an item; each warp takes 16 rows of every tile                        |
// | finisher | 4; fp8, int8: 2  | adds the consumers' results, stores the sum; merges the chunks of a finished seq_head     |
// | producer | 1                | copies K, V and q into ring stages, across the borders of items; takes tickets            |
//
// | shared memory, in order | bytes (DIM 128, group 4) | fp8, int8 | contents                                              |
// |-------------------------|--------------------------|-----------|-------------------------------------------------------|
// | block_shared            | about 1 KB               | the same  | barriers, tile_infos, the consumers' (m, l)           |
// | merge                   | 8192                     | 8192      | [PARTS][group][DIM] float, for finishers              |
// | ring stages             | 3 x 33920                | 3 x 34944 | K [TILE][DIM], blocks of V [16][DIM] + pad, scales, q |
//
// Worked tile: DIM 128, group 4. The producer copies K (16 KB), V rows 0-15, 16-31, 32-47, 48-63 (4 KB each, with 32 bytes
// between two of them), q (1 KB, with the first tile of an item). Consumer warp w takes rows 4 w .. 4 w + 3 of each V block, so
// 16 rows. Its lane (g, q) = (lane / 4, lane % 4) loads 16-byte pieces q, q + 4, q + 8, q + 12 of the K rows
// 16 (g / 2) + 4 w + g % 2 and that + 2. 8 mma.m16n8k16 give S [16 rows][8 heads], columns 4 .. 7 are 0. Each lane holds 2 rows
// of heads 2 q, 2 q + 1. The softmax reduces over g, rounds 2^(s - m) to bf16 and transposes it with movmatrix. 8 mma add
// V^T [128 dims][16 rows] P^T [16 rows][8 heads] to o: each mma leaves a lane 4 elements of [16 dims][8 heads].
//
// With fp8 or int8, K has 128 rows of 128 bytes, and V has 8 blocks of 2 KB with 16 bytes between two of them. Warp w takes
// rows 2 w and 2 w + 1 of each V block. The scales of the tile's rows lie between V and q. Four ldmatrix.trans load the warp's
// V: the eight rows of a matrix are in eight blocks, so in different banks. The matrix instructions multiply the stored numbers
// as bf16, exactly, and add in fp32. (The fp8 instructions add with fewer bits, and lose needles in long contexts.) A score is
// multiplied by the scale of K, and a mass by the scale of V.
#include "attention/cuda/head_dim.cuh"
#include "attention/cuda/decode_ring.cuh"
#include "attention/cuda/key_query.cuh"
#include "attention/cuda/lists/joined.h"
#include "attention/cuda/mma_tiles.cuh"
#include "attention/cuda/partial_softmax.cuh"
#include "attention/cuda/workspace.cuh"

#include <cuda_bf16.h>
#include <type_traits>

namespace {

enum {
    TILE = IS_BYTES ? 128 : 64, // rows of K and V in a ring stage, 16 for each consumer warp
    V_ROWS = 16,                // rows of V in one copy
    V_PAD = IS_BYTES ? 16 : 32, // bytes between two copies: puts the rows that a warp reads together into different banks
    STAGES_MAX = 12,
    CONSUMER_WARPS = TILE / 16,
    PARTS = 4, // results of an item that the finishers add: consumer warp i adds the result of warp i + PARTS to its own
    RUN_SETS = IS_BYTES ? 2 : 3, // sets of consumer warps for runs
    FLIGHT_BYTES = 64 << 10,     // bytes in flight; half of it costs 7%, three times as much costs 3% (8 x 32k)
    // Stages in addition to those in flight. There is only one, so that a thread block of linear.cu also fits on the
    // multiprocessor, up to groups of 5 (DIM 128; IS_BYTES: 6). Such a thread block takes a little over half of the shared
    // memory.
    SPARE = 1,
    RUN_SPARE = 2,      // with runs: consumers hold a stage longer, and no thread block of linear.cu fits in any case
    ITEMS_WANTED = 128, // chunks of a long sequence, over all its KV heads
    CHUNKS_MAX = 64,    // of a seq_head
    CHUNK_ROWS_MAX = 4096,
    CHUNK_ROWS_MIN = 512,   // 256 rows cost 5% at 16 x 4k
    CHUNK_ROWS_SHORT = 256, // the least for a context of fewer than SHORT rows; 512 rows cost 10% at 1 x 1k
    SHORT = 4096,
    MERGE = 16, // chunks that are read together
};

// A work item is one chunk of one seq_head. A long context is cut into equal chunks. If there is a single sequence, their
// number is enough for one wave of thread blocks: more chunks would only add partial results. A very long context gets more
// chunks, because the last items of a ragged batch would otherwise be long. A short context gets shorter chunks, so that all
// thread blocks have work. The chunks depend only on the sequence's length and the model. So a result never depends on the
// batch or on the grid.
__device__ int chunk_rows_of(int n_kv, int n_kv_heads) {
    int wanted = min(max(ITEMS_WANTED / n_kv_heads, 1), (int)CHUNKS_MAX),
        least = n_kv < SHORT ? CHUNK_ROWS_SHORT : CHUNK_ROWS_MIN;
    int rows = min(max(ceil_div(n_kv, wanted), least), (int)CHUNK_ROWS_MAX);
    return ceil_div(max(rows, ceil_div(n_kv, CHUNKS_MAX)), TILE) * TILE;
}

// The rows that are read: all tiles that contain one of the first `sink` rows or of the last `window` rows. These rows are
// numbered without a gap.
struct row_subset {
    int sink, window; // window INT_MAX: all rows
    __host__ __device__ int sink_end() const { return ceil_div(sink, TILE) * TILE; }
    __host__ __device__ int skipped(int n_kv) const { // rows between sink_end and the window's first tile
        return sink < n_kv && window < n_kv - sink ? max((n_kv - window) / TILE * TILE - sink_end(), 0) : 0;
    }
};

// The work items of a sequence (decode_ring.cuh).
struct chunk_rule {
    row_subset subset;
    int n_kv_heads;
    __device__ int count(int n_kv) const {
        int n_read = n_kv - subset.skipped(n_kv);
        return ceil_div(n_read, chunk_rows_of(n_read, n_kv_heads));
    }
};

// The work items of runs (SL_CUDA_RUN_MOST). Neighbours with equal chunks share them, up to `most` rows.
struct run_rule {
    int n_kv_heads, most;
    // How many rows share the items of the lane's row, this one included; 0: they are those of a row before it.
    __device__ int rows(const seq_lookup &lookup) const {
        int lane = threadIdx.x % 32, chunk = chunk_rows_of(lookup.n_kv, n_kv_heads);
        uint32_t up_to = (2u << lane) - 1; // the lane, and the lanes before it
        uint64_t pages_before = __shfl_up_sync(~0u, (unsigned long long)lookup.pages, 1);
        int n_kv_before = __shfl_up_sync(~0u, lookup.n_kv, 1), chunk_before = __shfl_up_sync(~0u, chunk, 1);
        bool goes_on = lane > 0 && pages_before == (uint64_t)lookup.pages && n_kv_before > 0 && n_kv_before + 1 == lookup.n_kv;
        int first = 31 - __clz(__ballot_sync(~0u, !goes_on) & up_to); // lane of the run's first row
        bool leads = !goes_on || (lane - first) % most == 0 || chunk != chunk_before;
        uint32_t after = __ballot_sync(~0u, leads) & ~up_to;
        return leads ? (after ? __ffs(after) - 1 : 32) - lane : 0;
    }
};

__device__ __forceinline__ int items_of_lane(const run_rule &rule, const seq_lookup &lookup) {
    int n_rows = rule.rows(lookup);
    return n_rows && lookup.n_kv ? ceil_div(lookup.n_kv + n_rows - 1, chunk_rows_of(lookup.n_kv, rule.n_kv_heads)) : 0;
}

struct decode_params {
    const sl_row *rows; // [n_seqs]
    row_subset subset;
    const bf16 *q;     // [n_seqs][n_kv_heads][group][head_dim]
    const bf16 *k, *v; // [n_pages][n_kv_heads] blocks of 256 rows
    bf16 *out;         // [n_seqs][n_kv_heads][group][head_dim]
    int n_seqs, n_kv_heads, group;
    int run_most;           // with runs: rows that share work items, at most
    int n_stages, n_flight; // stages of the ring; stages that may be in flight
    float scale;            // log2(e) / sqrt(head_dim)
    int max_chunks;         // of any sequence: the stride below
    int *next_item;         // counter: tickets, for all items but the first one of each thread block
    int *done;              // [n_seqs * n_kv_heads] counter: finished items
    float2 *ml;             // [n_seqs * n_kv_heads][max_chunks][group] maximum (log2) and sum of a chunk's masses
    float *o;               // [n_seqs * n_kv_heads][max_chunks][group][head_dim] sum of mass * v
};

// The tile in a ring stage.
struct alignas(16) tile_info {
    int seq_head;            // -1: no more tiles
    int n_rows;              // valid rows from the tile's first row to the item's end; can exceed TILE
    int is_first, is_last;   // the tile is the first, the last one of its item
    int skip_from, skip_end; // rows of the tile in [skip_from, skip_end) are skipped
    int chunk, n_chunks;     // of the sequence
};

// With runs, a tile_info is of the run's first row, n_rows goes to the end of its sequence, and can be negative, and these
// numbers lie in skip_from and skip_end.
struct run_info {
    int n_left; // rows from the tile's first row to the end of the chunk
    int n_rows; // of the run
    int spare;  // rows with a higher number in the run have a chunk more, in which the rows up to this one have no rows
    __device__ run_info(const tile_info &t) : n_left(t.skip_from), n_rows(t.skip_end & 255), spare(t.skip_end >> 8) {}
    // Valid rows of row i of the run, from the tile's first row to the item's end.
    __device__ int valid(const tile_info &t, int i) const { return min(n_left, t.n_rows + i); }
    __device__ int n_chunks(const tile_info &t, int i) const { return t.n_chunks + (i > spare); }
};

// With runs, at the end: the last item of the thread block, and a bit for each of its rows that is not merged yet.
template <int SETS> struct unmerged {
    tile_info last;
    uint32_t last_rows;
};
template <> struct unmerged<1> {};

// The beginning of shared memory. SETS: sets of consumer warps; 1: without runs.
template <int SETS> struct block_shared : unmerged<SETS> {
    uint64_t full[STAGES_MAX], empty[STAGES_MAX];
    tile_info info[STAGES_MAX];
    // The consumers' results of an item, for the finishers: m and l. The sums o are in `merge`, which follows this struct.
    uint64_t item_full, item_empty;
    uint64_t half_full; // the results of the consumer warps from PARTS on
    tile_info item;     // the last tile of the item
    float2 ml[PARTS][SETS * GROUP_MAX];
    int is_last[SETS > 1 ? SL_CUDA_RUN_MOST : 1]; // of each row of the run
};

template <int SETS> struct block_size {
    enum {
        SHARED = (sizeof(block_shared<SETS>) + 127) / 128 * 128,
        // With three sets, 16 warps: a thread gets 128 registers, with 17 warps only 96.
        FINISHER_WARPS = IS_BYTES   ? 2
                         : SETS > 1 ? 3
                                    : 4,
        FINISHERS = 32 * FINISHER_WARPS,
        THREADS = 32 * (CONSUMER_WARPS * SETS + FINISHER_WARPS + 1),
        // The compiler plans registers for this many threads, so a thread gets 96. Then the registers of a thread block of
        // linear.cu fit beside the registers of this one.
        BOUND = IS_BYTES && SETS == 1 ? 608 : THREADS,
    };
};

template <int DIM> struct layout {
    enum {
        ROW = stored_row<DIM>, // without the scale
        Q_ROW = DIM * (int)sizeof(bf16),
        V_BLOCK = V_ROWS * ROW + V_PAD,
        // Order in a stage: K [TILE][DIM], blocks of V [V_ROWS][DIM], the scales of K and of V [TILE] each, q [group][DIM].
        V_AT = TILE * ROW,
        SCALES_AT = V_AT + TILE / V_ROWS * V_BLOCK,
        SCALES = IS_BYTES * TILE * (int)sizeof(float), // bytes of the scales of K; V has as many
        Q_AT = SCALES_AT + 2 * SCALES,
        COPIED = 2 * (TILE * ROW + SCALES), // bytes of all copies without q
    };
    // n_columns: query heads of the rows that share an item
    static __host__ __device__ int stage(int n_columns) { return ceil_div(Q_AT + n_columns * Q_ROW, 128) * 128; }
    static __host__ __device__ int merge(int n_columns) { return PARTS * n_columns * DIM * (int)sizeof(float); }
};

// ---- producer ----

template <int SETS> using ring = stage_ring<block_shared<SETS> *>;

// Where the rows of a tile and their scales begin in K and V.
template <int DIM> struct tile_source {
    const char *k, *v;
    const float *k_scales, *v_scales; // only with IS_BYTES

    __device__ tile_source(const decode_params &p, size_t block, int row)
        : k(row_of_block<DIM>(p.k, block, row)), v(row_of_block<DIM>(p.v, block, row)), k_scales(NULL), v_scales(NULL) {
        if (IS_BYTES) k_scales = scale_of_block<DIM>(p.k, block, row), v_scales = scale_of_block<DIM>(p.v, block, row);
    }
    // Calls copy(to, from, bytes) for every copy of the tile but q. stage: in shared memory
    template <typename Copy> __device__ __forceinline__ void each_copy(uint32_t stage, Copy copy) const {
        typedef layout<DIM> at;
        copy(stage, k, TILE * at::ROW);
#pragma unroll
        for (int i = 0; i < TILE / V_ROWS; i++)
            copy(stage + at::V_AT + i * at::V_BLOCK, v + i * V_ROWS * at::ROW, V_ROWS * at::ROW);
        if (!IS_BYTES) return;
        copy(stage + at::SCALES_AT, k_scales, at::SCALES);
        copy(stage + at::SCALES_AT + at::SCALES, v_scales, at::SCALES);
    }
};

// The copies of q into a stage, one for each row of a run, which come with the first tile of an item.
struct q_copy {
    const bf16 *from;
    uint32_t to;  // shared memory
    int bytes;    // 0: there is no copy
    int n;        // copies
    size_t apart; // elements in `from`
    uint64_t *full;

    // Calls copy(to, from, bytes) for every copy.
    template <typename Copy> __device__ __forceinline__ void each(Copy copy) const {
        for (int i = 0; i < n; i++) copy(to + i * bytes, from + i * apart, bytes);
    }
};

// The producer's state. `landed` is n_flight tiles behind `fill`, to limit the bytes in flight. If more bytes are in flight
// than the memory latency needs, every access waits longer: most of all, accesses to partial results and counters.
template <int SETS> struct producer {
    ring<SETS> fill, landed;
    int n_issued; // tiles that were issued
    int ticket;   // lane 0: of the item after the next one; -1: none was taken
    // Before the previous kernel has ended, the producer may read K and V of earlier tokens, lengths and page tables
    // (attention_cuda.h). It may not read q, the newest rows or the counters. `q` is the copy that waits until it may start.
    int has_waited;
    q_copy q;
    // K and V leave the L2 cache first, so partial results, counters and page tables stay. Kernels of santa first evict the
    // changed lines of earlier kernels with the normal policy (normal_tiles). After the weights of a linear layer there are few
    // of them, and the normal policy only costs time here (results/tried.md).
    uint64_t policy;
};

// The warp arrives at `full`, after lane 0 has written the tile_info. Before sm_90, the phase also waits for the lanes' copies.
__device__ void end_stage(uint64_t *full) {
#if __CUDA_ARCH__ < 900
    arrive_after_copies(full);
#endif
    if (threadIdx.x % 32 == 0) barrier_arrive(full);
}

// Takes the ticket of a later item. The warp uses the ticket only after it has issued the copies of an item, so it does not
// wait for the atomic.
template <int SETS> __device__ void take_ticket(const decode_params &p, producer<SETS> *to) {
    if (threadIdx.x % 32 == 0) to->ticket = sl_take_number(p.next_item);
}

// Waits once for the previous kernel. Then issues the copy of q and takes the ticket, which had to wait.
template <int SETS> __device__ void wait_previous(const decode_params &p, producer<SETS> *to) {
    if (to->has_waited) return;
    sl_wait_previous();
    to->has_waited = 1;
#if __CUDA_ARCH__ >= 900
    if (to->q.bytes && elect_lane())
        to->q.each([&](uint32_t at, const bf16 *x, int bytes) { copy_bulk(at, x, bytes, to->q.full, to->policy); });
#endif
    take_ticket(p, to);
}

// One lane issues all copies of a tile. The bulk copy engine takes its operands from registers of the warp, so copies that
// several lanes issue run one after the other, each after a loop that finds the next lane.
template <int DIM, int SETS>
__device__ void produce_tile(const decode_params &p, producer<SETS> *to, const tile_info &info, const tile_source<DIM> &from) {
    ring<SETS> *r = &to->fill;
    uint64_t *full = &r->head->full[r->stage];
    uint32_t stage = shared_address(r->data());
    q_copy q = {};
    if (info.is_first)
        q = {p.q + (size_t)info.seq_head * p.group * DIM,
             stage + layout<DIM>::Q_AT,
             p.group * layout<DIM>::Q_ROW,
             SETS > 1 ? run_info(info).n_rows : 1,
             (size_t)p.n_kv_heads * p.group * DIM,
             full};
    if (to->n_issued >= p.n_flight) {
        wait_previous(p, to);
        barrier_wait(&to->landed.head->full[to->landed.stage], to->landed.parity);
        to->landed.advance();
    }
    barrier_wait(&r->head->empty[r->stage], r->parity ^ 1);
#if __CUDA_ARCH__ >= 900
    if (elect_lane()) {
        r->head->info[r->stage] = info;
        barrier_expect(full, layout<DIM>::COPIED + q.n * q.bytes);
        from.each_copy(stage, [&](uint32_t at, const void *x, int bytes) { copy_bulk(at, x, bytes, full, to->policy); });
        if (to->has_waited) q.each([&](uint32_t at, const bf16 *x, int bytes) { copy_bulk(at, x, bytes, full, to->policy); });
    }
    __syncwarp();
#else
    if (threadIdx.x % 32 == 0) r->head->info[r->stage] = info;
    from.each_copy(stage, copy_warp);
    q.each(copy_warp);
    end_stage(full);
#endif
    if (q.bytes && !to->has_waited) to->q = q;
    to->n_issued++;
    r->advance();
}

// Issues the tiles of rows [from, end) of one KV head in order. n_kv: rows of the sequence that are read. `skipped` other rows
// begin at sink_end. run: 1, or rows that share the item. chunk_end: of the chunk, with a run.
template <int DIM, int SETS>
__device__ void produce_item(const decode_params &p, producer<SETS> *to, const int32_t *pages, int from, int end, int n_kv,
                             int skipped, int run, int chunk_end, int head, tile_info info) {
    int lane = threadIdx.x % 32, held = INT_MIN; // lane i holds the id of page held + i
    int32_t id = 0;
    for (int at = from; at < end; at += TILE) {
        int row = at < p.subset.sink_end() ? at : at + skipped, page = row / SL_PAGE;
        if (page >= held + 32) {
            held = page;
            if ((held + lane) * SL_PAGE < n_kv + skipped + run - 1) id = pages[held + lane];
        }
        size_t block = (size_t)__shfl_sync(~0u, id, page - held) * p.n_kv_heads + head;
        info.is_first = at == from, info.is_last = at + TILE >= end;
        if (SETS > 1) {
            info.n_rows = n_kv - at, info.skip_from = chunk_end - at; // skip_end is set: run_info
        } else {
            info.n_rows = end - at;
            info.skip_from = max(min(p.subset.sink - row, (int)TILE), 0);
            info.skip_end = max(min(n_kv + skipped - p.subset.window - row, (int)TILE), 0);
        }
        if (has_new_rows(at, TILE, n_kv)) wait_previous(p, to);
        produce_tile<DIM, SETS>(p, to, info, {p, block, row % SL_PAGE});
    }
}

// The work items of a launch.
template <int SETS> __device__ std::conditional_t<SETS == 1, chunk_rule, run_rule> rule_of(const decode_params &p) {
    if constexpr (SETS == 1)
        return {p.subset, p.n_kv_heads};
    else
        return {p.n_kv_heads, p.run_most};
}

// Produces all items of this thread block. The first has the number blockIdx.x. The thread block takes tickets for the others.
// lookup: of the first 32 sequences.
template <int DIM, int SETS> __device__ void produce(const decode_params &p, const ring<SETS> &r, seq_lookup lookup) {
    int lane = threadIdx.x % 32, item = blockIdx.x, run = 1;
    const auto rule = rule_of<SETS>(p);
    producer<SETS> to = {.fill = r, .landed = r, .ticket = -1, .policy = sl_l2_policy(SL_L2_FIRST_OUT)};
    for (;;) {
        item_place at = lookup_find(&lookup, p.rows, p.n_seqs, p.n_kv_heads, rule, item);
        if (at.seq < 0) break;
        if (to.has_waited) take_ticket(p, &to);
        int skipped = p.subset.skipped(at.n_kv), n_kv = at.n_kv - skipped, rows = chunk_rows_of(n_kv, p.n_kv_heads);
        int head = at.local % p.n_kv_heads, chunk = at.local / p.n_kv_heads;
        tile_info info = {.seq_head = at.seq * p.n_kv_heads + head, .chunk = chunk, .n_chunks = ceil_div(n_kv, rows)};
        if constexpr (SETS > 1) {
            run = __shfl_sync(~0u, rule.rows(lookup), at.seq - lookup.first_seq);
            info.skip_end = run | min(rows * info.n_chunks - n_kv, (int)SL_CUDA_RUN_MOST) << 8;
        }
        int chunk_end = chunk * rows + rows;
        produce_item<DIM, SETS>(p, &to, at.pages, chunk * rows, min(chunk_end, n_kv + run - 1), n_kv, skipped, run, chunk_end,
                                head, info);
        wait_previous(p, &to);
        item = gridDim.x + __shfl_sync(~0u, to.ticket, 0);
    }
    int n_items = __shfl_sync(~0u, lookup.end, 31);
    if (lane == 0 && to.ticket == n_items - 1) *p.next_item = 0; // an item takes one ticket, so this was the last one
    ring<SETS> *end = &to.fill;
    barrier_wait(&end->head->empty[end->stage], end->parity ^ 1);
    if (lane == 0) end->head->info[end->stage].seq_head = -1;
    end_stage(&end->head->full[end->stage]);
}

// ---- consumers ----
// A warp takes 16 rows: rows 4 warp .. 4 warp + 3 of each V block b = 0 .. 3 (IS_BYTES: below). Operands of mma.m16n8k16, lane
// (g, q) = (lane / 4, lane % 4):
//   scores  S^T [16 rows][8 heads] = K [16][DIM] Q^T [DIM][8]
//   output  O^T [16 dims][8 heads] += V^T [16][16 rows] P^T [16 rows][8]
// An operand's index may stand for any row or dim. The code chooses:
// - Rows: indices 2 b + e and 8 + 2 b + e are rows e and 2 + e of the warp's four rows in block b. So the V rows of a lane are
//   neighbours, and the blocks of the four lanes lie in different banks. IS_BYTES: indices b and 8 + b are the warp's two rows
//   in block b = 0 .. 7.
// - Dims of K and q: key_query.cuh.
// - Dims of V: 8 numbers of a lane are dims g and g + 8 of four mma. IS_BYTES: dims 2 g and 2 g + 1 of a piece of 16 bytes are
//   dims g and g + 8 of its mma. An ldmatrix that takes two bytes as one element leaves them in this order: word h of a piece
//   has rows 2 q and 2 q + 1 of half h of the operand, two dims of each.

// Reductions over the eight lanes of equal q. Every lane gets the same bits.
__device__ float max_over_rows(float x) {
    for (int step = 4; step < 32; step *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
    return x;
}

__device__ float sum_over_rows(float x) {
    for (int step = 4; step < 32; step *= 2) x += __shfl_xor_sync(~0u, x, step);
    return x;
}

// Runs: every set of consumer warps reads each tile. Set i has the columns 8 i .. 8 i + 7. Column c is head c % group of row c
// / group of the run. A column of an mma depends on the same column of q and of P only, and on all rows of V: a mass of 0
// times a row of V that is not finite is NaN. Only in the tiles in which rows of the run end are there rows of V that some
// columns may not see: add_last_tile. So a row has the bits that it has without its neighbours.

// The warp's number in its set.
template <int SETS> __device__ int warp_of_set() {
    return SETS == 1 ? threadIdx.x / 32 : threadIdx.x / 32 % CONSUMER_WARPS;
}

// The first of the lane's two rows of scores in a tile. The second row is ROW_STEP rows further on. warp: of the set
enum { ROW_STEP = IS_BYTES ? 1 : 2, BLOCK_ROWS = TILE / CONSUMER_WARPS / (IS_BYTES ? 8 : 4) };
__device__ int score_row(int warp) {
    int g = threadIdx.x % 32 / 4;
    return IS_BYTES ? V_ROWS * g + BLOCK_ROWS * warp : V_ROWS * (g / 2) + BLOCK_ROWS * warp + g % 2;
}

// The scales of the lane's two rows of scores. The scales of rows after the end can be anything.
struct row_scales {
    float k[2], v[2];
    // scales: of K [TILE], then of V [TILE]
    __device__ void load(const float *scales, int row) {
        float2 of_k = *(const float2 *)(scales + row), of_v = *(const float2 *)(scales + TILE + row);
        k[0] = of_k.x, k[1] = of_k.y, v[0] = of_v.x, v[1] = of_v.y;
    }
};

// 1 / scale for the terms of a row in l; 0: the scale is so small that a product can be 0 although the mass is not.
__device__ float inverse_of(float scale) {
    const float least = 0x1p-64f;
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(scale));
    return scale < least ? 0 : y;
}

// Masses of two heads for one row: operand b of the product with V, and the terms of l. Masses are rounded to bf16 for the
// product. The sum l uses the rounded masses too. So the rounding error cancels if one row has nearly all the mass.
struct rounded_masses {
    __nv_bfloat162 product;
    float term[2];

    __device__ rounded_masses(float a, float b) : product(__floats2bfloat162_rn(a, b)) {
        term[0] = __low2float(product), term[1] = __high2float(product);
    }
    // Of a cache of fp8 or int8: the products have the scale of V, and the terms do not.
    __device__ rounded_masses(float a, float b, float scale_a, float scale_b) : rounded_masses(a * scale_a, b * scale_b) {
        float inverse_a = inverse_of(scale_a), inverse_b = inverse_of(scale_b);
        term[0] = inverse_a == 0 ? a : term[0] * inverse_a, term[1] = inverse_b == 0 ? b : term[1] * inverse_b;
    }
};

// 2^x. With bytes, masses below 2^-126 become 0, which saves instructions.
__device__ float mass_of(float x) {
    return IS_BYTES ? sl_exp2(x) : exp2f(x);
}

// A warp's running attention over its rows of an item. Lane (g, q) has heads 2 q and 2 q + 1. FP8: of a cache of bytes.
template <int DIM, bool FP8, int SETS> struct attention {
    enum {
        PIECES = DIM / 16,          // of 16 dims, for one mma
        V_WORDS = IS_BYTES ? 2 : 4, // of the lane's part of a piece of 16 rows
        V_LOADS = DIM / 64,         // bf16: loads of 8 numbers, each for four mma; then REST numbers
        REST = DIM % 64 / 8,        // 0, 2 or 4
    };
    typedef uint32_t values[PIECES][V_WORDS];
    std::conditional_t<IS_BYTES, group_byte_queries<DIM>, group_queries<DIM>> queries;
    float o[PIECES][4];
    float m[2], l[2]; // l: of the lane's own rows
    int run_row[2];   // with runs: of the lane's columns

    // first: column of the set. n_columns: of the item
    __device__ void begin(const char *q_rows, int first, int n_columns, int group) {
        queries.load(q_rows + first * layout<DIM>::Q_ROW, n_columns - first);
#pragma unroll
        for (int h = 0; SETS > 1 && h < 2; h++) run_row[h] = (first + threadIdx.x % 4 * 2 + h) / group;
#pragma unroll
        for (int i = 0; i < PIECES; i++) o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0;
        m[0] = m[1] = -INFINITY;
        l[0] = l[1] = 0;
    }

    // s[0], s[1]: operand row g, the lane's two heads. s[2], s[3]: operand row g + 8.
    __device__ void scores(const char *k, float s[4]) const {
        const char *a_row = k + score_row(warp_of_set<SETS>()) * layout<DIM>::ROW, *b_row = a_row + ROW_STEP * layout<DIM>::ROW;
        float odd[4] = {0, 0, 0, 0};
        s[0] = s[1] = s[2] = s[3] = 0;
        if constexpr (IS_BYTES)
            queries.template add_scores<FP8>(s, odd, a_row, b_row);
        else
            queries.add_scores(s, odd, a_row, b_row);
#pragma unroll
        for (int i = 0; i < 4; i++) s[i] += odd[i];
    }

    // Turns scores into masses 2^(s scale - m). masses: operand b of the product with V. scales: of the tile (IS_BYTES).
    __device__ void softmax(float s[4], float scale, const tile_info &info, const row_scales &scales, uint32_t masses[2]) {
        int row = score_row(warp_of_set<SETS>());
        float factor[2];
        bool exists[2][2]; // row r for column h
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int j = row + ROW_STEP * r;
                exists[r][h] = SETS > 1 ? j < run_info(info).valid(info, run_row[h])
                                        : j < info.n_rows && (j < info.skip_from || j >= info.skip_end);
            }
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[i] = exists[i / 2][i % 2] ? s[i] * (IS_BYTES ? scale * scales.k[i / 2] : scale) : -INFINITY;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float most = fmaxf(m[h], max_over_rows(fmaxf(s[h], s[2 + h]))), base = most == -INFINITY ? 0 : most;
            factor[h] = mass_of(m[h] - base);
            m[h] = most;
            s[h] = mass_of(s[h] - base);
            s[2 + h] = mass_of(s[2 + h] - base);
        }
        rounded_masses rounded[2] = {{s[0], s[1]}, {s[2], s[3]}};
#pragma unroll
        for (int r = 0; IS_BYTES && r < 2; r++)
            rounded[r] = {s[2 * r], s[2 * r + 1], exists[r][0] ? scales.v[r] : 1, exists[r][1] ? scales.v[r] : 1};
#pragma unroll
        for (int h = 0; h < 2; h++) l[h] = l[h] * factor[h] + (rounded[0].term[h] + rounded[1].term[h]);
#pragma unroll
        for (int r = 0; r < 2; r++) masses[r] = sl_transpose_b16(*(uint32_t *)&rounded[r].product);
        if (!__any_sync(~0u, factor[0] != 1 || factor[1] != 1)) return;
#pragma unroll
        for (int i = 0; i < PIECES; i++) o[i][0] *= factor[0], o[i][1] *= factor[1], o[i][2] *= factor[0], o[i][3] *= factor[1];
    }

    // bf16: the lane's part of row r of V, at `row`. x[i][r] has two neighbouring dims of mma i.
    __device__ void load_row(const char *row, int r, values x) {
        int g = threadIdx.x % 32 / 4;
#pragma unroll
        for (int i = 0; i < V_LOADS; i++) {
            uint4 y = *(const uint4 *)(row + i * 128 + g * 16);
            x[4 * i][r] = y.x, x[4 * i + 1][r] = y.y, x[4 * i + 2][r] = y.z, x[4 * i + 3][r] = y.w;
        }
        const char *rest = row + (V_LOADS * 64 + g * REST) * sizeof(bf16);
        if constexpr (REST == 2) x[4 * V_LOADS][r] = *(const uint32_t *)rest;
        if constexpr (REST == 4) {
            uint2 y = *(const uint2 *)rest;
            x[4 * V_LOADS][r] = y.x, x[4 * V_LOADS + 1][r] = y.y;
        }
    }

    // bf16: rows after the sequence's end become 0, because their memory can hold NaN. Bytes: no byte becomes NaN
    // (widen_upper_bytes), and these rows have the mass 0.
    __device__ void load_values(const char *v, int n_rows, values x) {
        int lane = threadIdx.x % 32, warp = warp_of_set<SETS>();
        if constexpr (IS_BYTES) {
            // Matrix i of an ldmatrix is half i % 2 of the operand's rows, of piece i / 2. Lane l has the address of row l % 8
            // of matrix l / 8.
            const char *at =
                v + lane % 8 * layout<DIM>::V_BLOCK + (BLOCK_ROWS * warp + lane / 8 % 2) * layout<DIM>::ROW + lane / 16 * 16;
#pragma unroll
            for (int i = 0; i + 1 < PIECES; i += 2) load_matrices_transposed(x[i], (const bf16 *)(at + i * 16));
            if (PIECES % 2) load_two_transposed(x[PIECES - 1], (const bf16 *)(at + (PIECES - 1) * 16));
            return;
        }
        int lane_q = lane % 4, row = V_ROWS * lane_q + BLOCK_ROWS * warp;
        const char *base = v + lane_q * layout<DIM>::V_BLOCK + BLOCK_ROWS * warp * layout<DIM>::ROW;
#pragma unroll
        for (int r = 0; r < V_WORDS; r++) load_row(base + r * layout<DIM>::ROW, r, x);
        if (n_rows >= TILE) return;
#pragma unroll
        for (int r = 0; r < V_WORDS; r++)
#pragma unroll
            for (int i = 0; i < PIECES; i++) x[i][r] = row + r < n_rows ? x[i][r] : 0;
    }

    // Adds the products with one piece of V to y.
    static __device__ __forceinline__ void add_piece(float y[4], const uint32_t x[V_WORDS], const uint32_t masses[2]) {
        uint32_t a[2], b[2]; // of rows 0 .. 7 and 8 .. 15 of the operand: dims 0 .. 7, then dims 8 .. 15
        if constexpr (IS_BYTES) {
            widen_bytes<FP8>(x[0], a);
            widen_bytes<FP8>(x[1], b);
        } else {
            a[0] = __byte_perm(x[0], x[1], 0x5410), a[1] = __byte_perm(x[0], x[1], 0x7632);
            b[0] = __byte_perm(x[2], x[3], 0x5410), b[1] = __byte_perm(x[2], x[3], 0x7632);
        }
        sl_mma_bf16(y, a[0], a[1], b[0], b[1], masses[0], masses[1]);
    }

    __device__ void add_values(const values x, const uint32_t masses[2]) {
#pragma unroll
        for (int i = 0; i < PIECES; i++) add_piece(o[i], x[i], masses);
    }

    // A tile at `k`. Rows from n_rows on do not exist.
    __device__ __forceinline__ void add_tile(const char *k, float scale, const tile_info &info, int n_rows) {
        float s[4];
        uint32_t masses[2];
        values x;
        row_scales scales;
        if (IS_BYTES) scales.load((const float *)(k + layout<DIM>::SCALES_AT), score_row(warp_of_set<SETS>()));
        this->scores(k, s);
        load_values(k + layout<DIM>::V_AT, n_rows, x); // before the softmax, which hides the latency
        softmax(s, scale, info, scales, masses);
        add_values(x, masses);
    }

    // The same for a tile in which a row of the run ends before the last one (bf16). For each row of the run that has columns
    // in this set, the products are computed with 0 for the rows of V that it may not see. The row keeps only its own columns
    // of these products. first: the first column of the set. The path begins with the scores, because a branch before the
    // products alone costs every tile up to 5%. The path adds 0.4 to 0.9 us to a launch: 5 rows of 1 x 30k take 53.1 us, and
    // 52.2 without it (H200, 1 December 2026).
    __device__ __forceinline__ void add_last_tile(const char *k, float scale, const tile_info &info, int n_rows, int first,
                                                  int n_columns, int group) {
        const int row = V_ROWS * (threadIdx.x % 4) + BLOCK_ROWS * warp_of_set<SETS>(),
                  last = min(first + GROUP_MAX, n_columns) - 1;
        float s[4];
        uint32_t masses[2];
        values x;
        this->scores(k, s);
        load_values(k + layout<DIM>::V_AT, n_rows, x);
        softmax(s, scale, info, {}, masses);
#pragma unroll 1
        for (int j = first / group; j <= last / group; j++) {
            const int n_seen = run_info(info).valid(info, j);
#pragma unroll
            for (int i = 0; i < PIECES; i++) {
                uint32_t seen[V_WORDS];
                float y[4] = {o[i][0], o[i][1], o[i][2], o[i][3]};
#pragma unroll
                for (int r = 0; r < V_WORDS; r++) seen[r] = row + r < n_seen ? x[i][r] : 0;
                add_piece(y, seen, masses);
                if (run_row[0] == j) o[i][0] = y[0], o[i][2] = y[2];
                if (run_row[1] == j) o[i][1] = y[1], o[i][3] = y[3];
            }
        }
    }

    // Stores o [n_columns][DIM], m and l of this warp to shared memory. adds: adds the result that lies there. first: column of
    // the set.
    __device__ void store(float *to, float2 *ml, int first, int n_columns, bool adds) const {
        int g = threadIdx.x % 32 / 4, lane_q = threadIdx.x % 4;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float l_sum = sum_over_rows(l[h]);
            int head = first + 2 * lane_q + h;
            bool real = head < n_columns;
            float2 there = adds && real ? ml[head] : make_float2(-INFINITY, 0);
            float most = fmaxf(m[h], there.x), own = rescale(m[h], most), other = rescale(there.x, most);
            __syncwarp();
            if (!real) continue;
            if (g == 0) ml[head] = make_float2(most, own * l_sum + other * there.y);
#pragma unroll
            for (int i = 0; i < PIECES; i++) {
                int dim = IS_BYTES          ? i * 16 + g * 2
                          : i < 4 * V_LOADS ? i / 4 * 64 + g * 8 + i % 4 * 2
                                            : V_LOADS * 64 + g * REST + i % 4 * 2;
                float2 *at = (float2 *)(to + head * DIM + dim), y = adds ? *at : make_float2(0, 0);
                *at = make_float2(own * o[i][h] + other * y.x, own * o[i][2 + h] + other * y.y);
            }
        }
    }
};

// Passes an item's result to the finishers. seq_head -1: there are no more items. first: column of the set. n_columns: of the
// item.
template <int DIM, bool FP8, int SETS>
__device__ void pass_to_finishers(const attention<DIM, FP8, SETS> &a, block_shared<SETS> *shared, float *merge,
                                  const tile_info &info, int first, int n_columns, int *parity) {
    int warp = warp_of_set<SETS>(), part = warp % PARTS;
    bool is_half = CONSUMER_WARPS > PARTS && info.seq_head >= 0;
    barrier_wait(&shared->item_empty, *parity ^ 1);
    if (warp < PARTS && is_half) barrier_wait(&shared->half_full, *parity);
    *parity ^= 1;
    if (info.seq_head >= 0 && (SETS == 1 || first < n_columns))
        a.store(merge + part * n_columns * DIM, shared->ml[part], first, n_columns, is_half && warp < PARTS);
    if (threadIdx.x == 0) shared->item = info;
    if (warp < PARTS)
        barrier_arrive(&shared->item_full);
    else if (is_half)
        barrier_arrive(&shared->half_full);
}

template <int DIM, bool FP8, int SETS> __device__ void consume(const decode_params &p, ring<SETS> r, float *merge) {
    attention<DIM, FP8, SETS> a;
    const int first = SETS > 1 ? threadIdx.x / 32 / CONSUMER_WARPS * GROUP_MAX : 0;
    for (int parity = 0;; r.advance()) {
        barrier_wait(&r.head->full[r.stage], r.parity);
        tile_info info = r.head->info[r.stage];
        if (info.seq_head < 0) return pass_to_finishers(a, r.head, merge, info, first, 0, &parity);
        const int n_run = SETS > 1 ? run_info(info).n_rows : 1, n_columns = n_run * p.group;
        if (SETS > 1 && first >= n_columns) { // the set has no columns
            barrier_arrive(&r.head->empty[r.stage]);
            if (info.is_last) pass_to_finishers(a, r.head, merge, info, first, n_columns, &parity);
            continue;
        }
        const char *k = r.data();
        if (info.is_first) a.begin(k + layout<DIM>::Q_AT, first, n_columns, p.group);
        const int n_rows = SETS > 1 ? run_info(info).valid(info, n_run - 1) : info.n_rows;
        if (SETS > 1 && !IS_BYTES && run_info(info).valid(info, 0) < min(n_rows, (int)TILE))
            a.add_last_tile(k, p.scale, info, n_rows, first, n_columns, p.group);
        else
            a.add_tile(k, p.scale, info, n_rows);
        leave_stage(&r.head->empty[r.stage]);
        if (info.is_last) pass_to_finishers(a, r.head, merge, info, first, n_columns, &parity);
    }
}

// ---- finishers ----

// Adds the consumers' results of an item in the warps' order and stores the sum to the workspace. The consumers' results lie
// in shared memory. n_run: rows of the item.
template <int DIM, int SETS>
__device__ void store_item(const decode_params &p, const block_shared<SETS> *shared, const float *merge, const tile_info &info,
                           int n_run, int thread) {
    int n_columns = n_run * p.group;
    for (int i = thread; i < n_columns * DIM / 4; i += block_size<SETS>::FINISHERS) {
        int h = i / (DIM / 4), row = SETS > 1 ? h / p.group : 0; // h: column
        if (SETS > 1 && info.chunk >= run_info(info).n_chunks(info, row)) continue;
        size_t item = (size_t)(info.seq_head + row * p.n_kv_heads) * p.max_chunks + info.chunk,
               to = item * p.group + h % p.group;
        float4 sum = make_float4(0, 0, 0, 0);
        float2 ml = add_parts<PARTS>([&](int w) { return shared->ml[w][h]; },
                                     [&](int w) { return *(const float4 *)(merge + w * n_columns * DIM + i * 4); }, &sum);
        __stcg((float4 *)(p.o + to * DIM) + i % (DIM / 4), sum);
        if (i % (DIM / 4) == 0) __stcg(p.ml + to, ml);
    }
}

// out = sum_i 2^(m_i - m) o_i / sum_i 2^(m_i - m) l_i over the sequence's chunks i in order, 16 at a time: four channels of a
// seq_head, those from 4 i on of its [group][DIM].
template <int DIM> __device__ void merge_chunks(const decode_params &p, int seq_head, int n_chunks, int i) {
    size_t first = (size_t)seq_head * p.max_chunks * p.group;
    const float4 *o = (const float4 *)(p.o + first * DIM) + i; // the next chunk lies group * DIM / 4 further on
    const float2 *ml = p.ml + first + i / (DIM / 4);
    float4 sum = make_float4(0, 0, 0, 0);
    float most = -INFINITY, l = 0;
    for (int c = 0; c < n_chunks; c += MERGE) {
        float4 x[MERGE];
        float2 y[MERGE];
#pragma unroll
        for (int j = 0; j < MERGE; j++) { // __ldcg: the L1 cache is not coherent with writes of other multiprocessors
            bool real = c + j < n_chunks;
            y[j] = real ? __ldcg(ml + (c + j) * p.group) : make_float2(-INFINITY, 0);
            x[j] = real ? __ldcg(o + (c + j) * (p.group * DIM / 4)) : make_float4(0, 0, 0, 0);
        }
        float before = most;
#pragma unroll
        for (int j = 0; j < MERGE; j++) most = fmaxf(most, y[j].x);
        float factor = exp2f(before - most);
        sum.x *= factor, sum.y *= factor, sum.z *= factor, sum.w *= factor, l *= factor;
#pragma unroll
        for (int j = 0; j < MERGE; j++) {
            float w = exp2f(y[j].x - most);
            add_scaled(&sum, w, x[j]);
            l += w * y[j].y;
        }
    }
    __nv_bfloat162 out[2] = {__floats2bfloat162_rn(sum.x / l, sum.y / l), __floats2bfloat162_rn(sum.z / l, sum.w / l)};
    *((uint2 *)(p.out + (size_t)seq_head * p.group * DIM) + i) = *(uint2 *)out;
}

// Merges the chunks of rows of an item's run. rows: a bit for each.
template <int DIM>
__device__ void merge_rows(const decode_params &p, const tile_info &info, uint32_t rows, int thread, int n_threads) {
    int each = p.group * DIM / 4;
    for (int i = thread; i < __popc(rows) * each; i += n_threads) {
        uint32_t left = rows;
        for (int skip = i / each; skip > 0; skip--) left &= left - 1;
        int row = __ffs(left) - 1;
        merge_chunks<DIM>(p, info.seq_head + row * p.n_kv_heads, run_info(info).n_chunks(info, row), i % each);
    }
}

template <int SETS> __device__ void finishers_sync() {
    asm volatile("bar.sync 1, %0;" ::"n"((int)block_size<SETS>::FINISHERS) : "memory");
}

// Takes items from the consumers. So the consumers continue with the next item and do not wait for the store and the atomic.
// These take microseconds while memory is busy. The thread block whose item is the last one of a seq_head merges the seq_head's
// items. With runs it merges them when the next item comes, or after its last item: then all warps merge (merge_last), because
// the rows of a run end together, and nothing else is left to do.
template <int DIM, int SETS>
__device__ void finish(const decode_params &p, block_shared<SETS> *shared, const float *merge, int thread) {
    enum { FINISHERS = block_size<SETS>::FINISHERS };
    tile_info before = {}; // with runs: the last item, and its rows that are not merged yet
    uint32_t rows = 0;
    sl_wait_previous(); // finishers write memory that earlier kernels may still read
    for (int parity = 0;; parity ^= 1) {
        barrier_wait(&shared->item_full, parity);
        tile_info info = shared->item;
        if (info.seq_head < 0) break;
        const run_info run = info;
        const int n_run = SETS > 1 ? run.n_rows : 1;
        if (SETS > 1) merge_rows<DIM>(p, before, rows, thread, FINISHERS);
        store_item<DIM, SETS>(p, shared, merge, info, n_run, thread);
        barrier_arrive(&shared->item_empty);
        finishers_sync<SETS>();
        if (thread < n_run) {
            int n_chunks = SETS > 1 ? run.n_chunks(info, thread) : info.n_chunks, *done = p.done + info.seq_head;
            shared->is_last[thread] = info.chunk < n_chunks && counts_last_part(done + thread * p.n_kv_heads, 1, n_chunks);
        }
        finishers_sync<SETS>();
        if (SETS == 1) {
            for (int i = thread; shared->is_last[0] && i < p.group * DIM / 4; i += FINISHERS)
                merge_chunks<DIM>(p, info.seq_head, info.n_chunks, i);
            continue;
        }
        before = info, rows = 0;
        for (int i = 0; i < n_run; i++) rows |= (uint32_t)shared->is_last[i] << i;
    }
    if constexpr (SETS > 1)
        if (thread == 0) shared->last = before, shared->last_rows = rows;
}

// With runs, after the last item: all warps but the producer merge what the finishers have left.
template <int DIM, int SETS> __device__ void merge_last(const decode_params &p, const block_shared<SETS> *shared) {
    enum { N_THREADS = block_size<SETS>::THREADS - 32 };
    asm volatile("bar.sync 2, %0;" ::"n"((int)N_THREADS) : "memory");
    merge_rows<DIM>(p, shared->last, shared->last_rows, threadIdx.x, N_THREADS);
}

// out = softmax(q K^T / sqrt(DIM)) V for every query head, exactly.
//
// Grid: one thread block per multiprocessor, for any lengths. Thread blocks take items (chunk_rows_of) in order.
// Preconditions: the counters are 0 at the start. They are 0 again at the end. Before the previous kernel has ended, the kernel
// reads only K and V of earlier tokens, lengths and page tables.
// SETS > 1: neighbours of one sequence (runs) share items, so K and V of a run of up to run_most rows are read once.
// Bytes: reads K and V of every sequence once. Writes and reads 4 (DIM + 2) bytes of partial results for each query head and
// chunk, in the L2 cache.
// Order of reduction: a warp's rows of a tile, its tiles, the consumer warps (IS_BYTES: first warps i and i + 4), the chunks,
// each in order. The order depends only on the sequence's length. Error: scores, sums and o are fp32. Masses are rounded to
// bf16. With the rounding of the output the error is at most 2^-7 sum_j p_j |v_j| (tests/cuda/test_cuda_decode.c), about 2^-9
// of a head's norm. With fp8 or int8 the mass times the scale of V is rounded in place of the mass, so the bound is the same.
// Rate: results/h200.md has the times beside those of cuDNN and FlashAttention-3. Below 32k the latency of three dependent
// reads (row, page, K) and of the merge dominates. In `sleigh bench attn`, 6 x 30k takes 114 us with fp8 and 127 with int8, and
// the bytes take 89 (H200, 30 November 2026).
template <int DIM, bool FP8, int SETS>
__global__ void __launch_bounds__(block_size<SETS>::BOUND, 1) dense_decode_ring_kernel(const decode_params p) {
    enum { CONSUMERS = CONSUMER_WARPS * SETS };
    extern __shared__ __align__(128) char memory[];
    block_shared<SETS> *shared = (block_shared<SETS> *)memory;
    float *merge = (float *)(memory + block_size<SETS>::SHARED);
    int warp = threadIdx.x / 32, most_columns = (SETS > 1 ? p.run_most : 1) * p.group;
    seq_lookup lookup;
    if (warp == CONSUMERS + block_size<SETS>::FINISHER_WARPS)
        lookup_load(&lookup, p.rows, p.n_seqs, p.n_kv_heads, rule_of<SETS>(p), 0, 0);
    barriers_make<CONSUMER_WARPS, 1>(&shared->item_full, 32 * PARTS * SETS);
    if (CONSUMER_WARPS > PARTS) barriers_make<CONSUMER_WARPS, 1>(&shared->half_full, 32 * (CONSUMER_WARPS - PARTS) * SETS);
    barriers_make<CONSUMER_WARPS, 1>(&shared->item_empty, block_size<SETS>::FINISHERS);
    barriers_make<CONSUMER_WARPS, STAGES_MAX>(shared->full, FULL_ARRIVALS);
    barriers_make<CONSUMER_WARPS, STAGES_MAX>(shared->empty, 32 * CONSUMERS);
    barriers_made();
    __syncthreads();
    sl_start_next(); // the producer and the finishers wait for the previous kernel; consumers access only shared memory
    ring<SETS> r = {shared, (char *)merge + layout<DIM>::merge(most_columns), p.n_stages, layout<DIM>::stage(most_columns), 0,
                    0};
    if (warp < CONSUMERS)
        consume<DIM, FP8, SETS>(p, r, merge);
    else if (warp < CONSUMERS + block_size<SETS>::FINISHER_WARPS)
        finish<DIM, SETS>(p, shared, merge, threadIdx.x - 32 * CONSUMERS);
    else
        produce<DIM, SETS>(p, r, lookup);
    if constexpr (SETS > 1)
        if (warp < CONSUMERS + block_size<SETS>::FINISHER_WARPS) merge_last<DIM, SETS>(p, shared);
}

// ---- launch ----

int max_chunks_of(int n_kv) { // most chunks of a sequence of up to n_kv rows
    return min(ceil_div(n_kv, CHUNK_ROWS_SHORT), (int)CHUNKS_MAX);
}

size_t lay_out(const sl_attn_geom *geom, int n_seqs, int n_kv, void *ws, decode_params *p) {
    arena a = after_counters(ws);
    size_t n_sums = (size_t)n_seqs * max_chunks_of(n_kv) * geom->n_heads;
    p->o = a.take<float>(n_sums * geom->head_dim);
    p->ml = a.take<float2>(n_sums);
    return bytes_taken(a, ws);
}

template <int DIM, int SETS> void launch_sets(const sl_attn_cuda_decode_args *a, row_subset subset) {
    int group = a->geom->n_heads / a->geom->n_kv_heads, run_most = min(SETS * GROUP_MAX / group, (int)SL_CUDA_RUN_MOST);
    int most_columns = (SETS > 1 ? run_most : 1) * group;
    int n_sms = sl_multiprocessors(), shared = sl_device_get(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    int fixed = block_size<SETS>::SHARED + layout<DIM>::merge(most_columns), stage = layout<DIM>::stage(most_columns);
    int tile = 2 * TILE * layout<DIM>::ROW; // bytes of K and V
    int n_flight = max(FLIGHT_BYTES / tile, 1);
    int n_stages = min(min(n_flight + (SETS > 1 ? RUN_SPARE : SPARE), (shared - fixed) / stage), (int)STAGES_MAX);
    SL_CHECK(n_stages > 0);
    decode_counters counters = counters_of(a, 1);
    decode_params p = {.rows = a->rows,
                       .subset = subset,
                       .q = a->q,
                       .k = a->k,
                       .v = a->v,
                       .out = a->out,
                       .n_seqs = a->n_seqs,
                       .n_kv_heads = a->geom->n_kv_heads,
                       .group = group,
                       .run_most = run_most,
                       .n_stages = n_stages,
                       .n_flight = min(n_stages, n_flight),
                       .scale = sl_score_scale(DIM),
                       .max_chunks = max_chunks_of(a->max_kv),
                       .next_item = counters.next_item,
                       .done = counters.done,
                       .ml = NULL,
                       .o = NULL};
    lay_out(a->geom, a->n_seqs, a->max_kv, a->ws, &p);
    size_t bytes = fixed + (size_t)n_stages * stage;
    auto kernel = dense_decode_ring_kernel<DIM, false, SETS>;
    if constexpr (IS_BYTES) kernel = a->format == SL_FP8 ? dense_decode_ring_kernel<DIM, true, SETS> : kernel;
    sl_launch(kernel, dim3(n_sms), dim3(block_size<SETS>::THREADS), bytes, a->stream, p);
}

template <int DIM> void launch(const sl_attn_cuda_decode_args *a, row_subset subset) {
    SL_CHECK(a->geom->n_heads <= GROUP_MAX * a->geom->n_kv_heads);
    if (a->has_runs && subset.window == INT_MAX)
        launch_sets<DIM, RUN_SETS>(a, subset);
    else
        launch_sets<DIM, 1>(a, subset);
}

size_t workspace(const sl_attn_geom *geom, const sl_attn_spec *, int n_seqs, int n_tokens, int n_kv) {
    decode_params p;
    return n_tokens > 1 ? 0 : lay_out(geom, n_seqs, n_kv, NULL, &p);
}

void decode_subset(const sl_attn_cuda_decode_args *args, row_subset subset) {
    SL_CHECK(IS_BYTES ? args->format == SL_FP8 || args->format == SL_INT8 : args->format == SL_BF16);
    SL_WITH_HEAD_DIM(args->geom->head_dim, launch, args, subset);
}

void decode(const sl_attn_cuda_decode_args *args) {
    decode_subset(args, {0, INT_MAX});
}

// ---- streaming ----

row_subset subset_of(const sl_attn_spec *spec) {
    return {(int)sl_attn_get(spec, "sink"), (int)sl_attn_get(spec, "window")};
}

int most_rows(const sl_attn_spec *spec, int n_kv) { // most rows that are read of a sequence of up to n_kv rows
    row_subset subset = subset_of(spec);
    return min(n_kv, subset.sink_end() + subset.window + TILE);
}

size_t streaming_workspace(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_seqs, int n_tokens, int n_kv) {
    if (spec->plus) return sl_joined_cuda_ops.workspace(geom, spec, n_seqs, n_tokens, n_kv);
    return workspace(geom, spec, n_seqs, 1, most_rows(spec, n_kv));
}

void streaming_decode(const sl_attn_cuda_decode_args *args) {
    if (args->spec->plus) return sl_joined_cuda_ops.decode(args);
    sl_attn_cuda_decode_args few = *args;
    few.max_kv = most_rows(args->spec, args->max_kv);
    decode_subset(&few, subset_of(args->spec));
}

void account_streaming(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_kv, sl_attn_stats *stats) {
    stats->features += geom->n_heads;
    if (spec->plus) return; // the kernels of a join count its rows
    row_subset subset = subset_of(spec);
    uint64_t sink = min(subset.sink, n_kv), rows = sink + min((uint64_t)subset.window, n_kv - sink);
    count_rows_read(geom, rows, rows, stats);
    stats->samples += rows * geom->n_heads;
}

// Exact attention reads every row.
void account_all_rows(const sl_attn_geom *geom, const sl_attn_spec *, int n_kv, sl_attn_stats *stats) {
    count_rows_read(geom, n_kv, n_kv, stats);
    stats->features += geom->n_heads;
}

} // namespace

// ---- tables ----

#if defined SL_BYTE_ROWS
#define STREAMING_OPS sl_streaming_bytes_cuda_ops
#define DENSE_OPS sl_dense_bytes_cuda_ops
#define BYTE_OPS(NAME) NULL
#else
#define STREAMING_OPS sl_streaming_cuda_ops
#define DENSE_OPS sl_dense_cuda_ops
#define BYTE_OPS(NAME) &sl_##NAME##_bytes_cuda_ops

size_t sl_cuda_dense_workspace(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_seqs, int n_tokens, int n_kv) {
    return workspace(geom, spec, n_seqs, n_tokens, n_kv);
}

void sl_cuda_dense_decode(const sl_attn_cuda_decode_args *args) {
    decode(args);
}
#endif

const sl_attn_cuda_ops STREAMING_OPS = {.workspace = streaming_workspace,
                                        .decode = streaming_decode,
                                        .needs = NULL,
                                        .state = NULL,
                                        .max_rows = 0,
                                        .account = account_streaming,
                                        .prefill = NULL,
                                        .supports = NULL,
                                        .mask = IS_BYTES ? NULL : sl_cuda_streaming_mask,
                                        .mask_workspace = NULL,
                                        .offloaded = NULL,
                                        .bytes = BYTE_OPS(streaming)};

const sl_attn_cuda_ops DENSE_OPS = {.workspace = workspace,
                                    .decode = decode,
                                    .needs = NULL,
                                    .state = NULL,
                                    .max_rows = 0,
                                    .account = account_all_rows,
                                    .prefill = IS_BYTES ? NULL : sl_cuda_dense_prefill,
                                    .supports = NULL,
                                    .mask = NULL,
                                    .mask_workspace = NULL,
                                    .offloaded = NULL,
                                    .bytes = BYTE_OPS(dense)};
