// attention/cuda/score_keys.cuh - exact scores of all keys, stored as masses, on CUDA. This is the first half of a decode
// kernel. The second half draws rows from the stored masses (draw_rows.cuh).
// The naive versions are in tests/cuda/naive.h: naive_score, naive_reference and naive_mass.
//
// Score s of a row is q.k log2(e) / sqrt(head_dim). A block of 32 rows stores its reference ref = ceil(max s), a bf16 mass
// 2^(s - ref) for each row ("row mass", w), and the integer sum of floor(2^30 w) ("block mass", packed with ref). masses.h
// defines the format. A work item is a page of one KV head.
//
// | role     | warps                 | does                                                                            |
// |----------|-----------------------|---------------------------------------------------------------------------------|
// | consumer | Config::WARPS, 4 or 8 | scores 32 rows of a tile for all heads of the group, and stores the masses      |
// | producer | 1                     | copies K, q (and norms) into ring stages; takes tickets for the next work items |
//
// | ring stage, in order | bytes                     | contents                                          |
// |----------------------|---------------------------|---------------------------------------------------|
// | K                    | TILE * 2 DIM              | [TILE][DIM] bf16; TILE is 64, or 128 (LONG)       |
// | K, with IS_BYTES     | 128 DIM                   | [128][DIM] bytes (stored_rows.cuh)                |
// | scales of K          | IS_BYTES: 4 * 128         | [128] fp32                                        |
// | norms                | SIZES: 2 TILE             | [TILE] bf16, not for tiles of the newest page     |
// | q                    | group * 2 DIM             | [group][DIM], only for the first tiles of an item |
//
// Worked tile: DIM 128, group 4, TILE 64. A stage has 16 KB of K and 1 KB of q. Two warps form a team, and two teams take tiles
// in turn. Warp w of a team scores rows 32 w .. 32 w + 31. Lane (g, q) = (lane / 4, lane % 4) loads 16-byte pieces q, q + 4, q
// + 8, q + 12 of its four rows 8 (g / 2) + g % 2 + {0, 2, 4, 6}: 16 loads. 16 mma.m16n8k16 give S [32 rows][8 heads]. Columns 4
// .. 7 are 0. The lane then holds 4 rows of heads 2 q, 2 q + 1. Shuffles over g give the maximum of each head, from which its
// reference follows. movmatrix transposes: lane (g, q) gets rows 8 q .. 8 q + 7 of head g and writes them as 16 bytes.
//
// A consumer warp adds to `done` of the seq_head when it has stored its part of a work item. Drawer warps wait until `done` is
// done_target.
//
// With SIZES the kernel also stores block masses of the sizes p |v|. The sizes follow from row masses and norms
// (cpu_kernels.h), so readers compute them again. The norms |v| come from the page extra. The newest page has no page extra.
// The session's state contains the norms of this page, and separate warps add the norm of the newest row (pps.cu,
// store_newest_norms).
#ifndef SLEIGH_SCORE_KEYS_CUH
#define SLEIGH_SCORE_KEYS_CUH

#include "attention/cuda/decode_ring.cuh"
#include "attention/cuda/exact_head.cuh"
#include "attention/cuda/key_query.cuh"
#include "attention/cuda/workspace.cuh"

#include <cuda_bf16.h>
#include <math.h>

namespace {

enum {
    BLOCK = 32,           // rows with one reference
    STAGES_MAX = 6,       // fewer where shared memory is short:
    SHARED_MOST = 115584, // bytes of a thread block, so that a thread block of a linear layer fits on the same multiprocessor
    REF_EMPTY = SL_REF_EMPTY,
};

// How keys are scored. Teams of consumer warps take tiles in turn. Each warp of a team has one block of 32 rows of the tile.
// SIZES and IS_BYTES need more warps, because they do more work per byte of K. LONG tiles need fewer and longer copies: 0.5%
// less time where K is many times the L2 cache. For a smaller K they cost time: the first tile arrives later, and the thread
// blocks' end times differ more. With IS_BYTES all tiles have 128 rows: these have the bytes of 64 rows of bf16.
template <bool WITH_SIZES, bool LONG> struct score_config {
    enum {
        SIZES = WITH_SIZES,
        TILE = LONG || IS_BYTES ? 128 : 64, // rows of K in a stage
        SIZE = TILE / BLOCK,
        TEAMS = (SIZES || IS_BYTES ? 8 : 4) / SIZE,
        WARPS = TEAMS * SIZE,
    };
};
typedef score_config<false, false> plain_config;
enum { CONSUMER_WARPS = plain_config::WARPS, TEAMS_MAX = score_config<true, false>::TEAMS, SHORT_TILE = plain_config::TILE };

// A work item is one page. Items have no results to merge, so small items cost little. With small items, all thread blocks end
// at nearly the same time.
struct page_items {
    __device__ int count(int n_kv) const { return ceil_div(n_kv, SL_PAGE); }
};

struct score_params {
    const sl_row *rows; // [n_seqs]
    const bf16 *q;      // [n_seqs][n_kv_heads][group][head_dim]
    const bf16 *k;      // [n_pages][n_kv_heads] blocks of 256 rows
    int n_seqs, n_kv_heads, group;
    int n_stages = 0;     // set by set_tiles
    int n_normal;         // the first tiles of a thread block, copied with the normal L2 policy (normal_tiles)
    bool masses_last_out; // stored masses leave the L2 cache last
    bool long_tiles;      // K is large enough for tiles of 128 rows
    bool is_fp8;          // IS_BYTES: the format of K and V, fp8 or int8
    int n_discarded;      // masses of seq_heads below this number are discarded from the L2 cache after the last draw from them
    float scale;          // log2(e) / sqrt(head_dim)
    int max_blocks;       // blocks of a sequence, even: the stride below
    int *next_item;       // counter: tickets, for all items but the first two of each thread block
    // Counters for the drawers. The drawers set both to 0 again. NULL: no kernel reads them.
    int *done;             // [n_seqs * n_kv_heads] grows by Config::WARPS for each stored page
    int *top;              // [n_seqs * n_kv_heads][group] the largest reference minus REF_EMPTY
    uint64_t *mass = NULL; // [n_seqs * n_kv_heads][group][max_blocks] ref << 48 | block mass
    bf16 *w = NULL;        // [n_seqs * n_kv_heads][max_blocks][group][32] row masses
    // With SIZES:
    const bf16 *norms = NULL; // [n_pages][n_kv_heads][256] |v| of all pages but the newest page of each sequence
    size_t state_at = 0;      // of this layer in a session's state: newest_norms [n_kv_heads]; quantised keys: layer_state.cuh
    int *newest_done =
        NULL; // [n_seqs * n_kv_heads] 1: the norms of the newest page are up to date. The drawers set it to 0 again
    uint64_t *size_mass = NULL; // block masses of sizes, as `mass`, with SIZE_UNIT_AT
};

// Query head `head` of a seq_head's group, for attend_exactly.
__device__ exact_head exact_head_of(const score_params &p, const bf16 *v, sl_attn_cuda_stats *stats, const sl_row &row,
                                    int seq_head, int head, int dim, const bf16 *host = NULL) {
    return make_exact_head(p.q + ((size_t)seq_head * p.group + head) * dim, p.k, v, row, p.n_kv_heads, seq_head, p.scale, stats,
                           host, p.is_fp8);
}

// Even, because readers load two block masses at a time.
static int block_stride(int max_kv) {
    return ceil_div(max_kv, 2 * BLOCK) * 2;
}

// |v| of the newest page of one seq_head. n: rows of the sequence whose norms were stored by earlier steps.
struct newest_norms {
    int n;
    int reserved[3];
    bf16 norm[SL_PAGE]; // 0 after the page's last row
};

__device__ newest_norms *newest_norms_of(const score_params &p, int seq_head) {
    return (newest_norms *)(p.rows[seq_head / p.n_kv_heads].state + p.state_at) + seq_head % p.n_kv_heads;
}

static size_t n_block_masses(const sl_attn_geom *geom, int n_seqs, int n_kv) {
    return (size_t)n_seqs * geom->n_heads * block_stride(n_kv);
}

// Takes the arrays of stored masses. They are the first arrays after the counters.
static inline void take_masses(arena *from, score_params *p, const sl_attn_geom *geom, int n_seqs, int n_kv) {
    size_t n_blocks = n_block_masses(geom, n_seqs, n_kv);
    p->mass = from->take<uint64_t>(n_blocks);
    p->w = from->take<bf16>(n_blocks * BLOCK);
}

// ---- policies of the L2 cache ----

// Whether K is many times the size of the L2 cache. L2 policies of K and of stored masses depend on this.
static bool floods_cache(size_t k_bytes) {
    return k_bytes >= 6 * sl_l2_bytes();
}

// K is read once, so its lines leave the cache first, and stored masses stay. But if K floods the cache, the first tiles of a
// thread block use the normal policy: they evict the changed lines of earlier kernels together (8 x 32k: 198 us; 204 us
// without). If K is smaller, it costs more to write these lines back than to leave them in the cache (1 x 32k: 5 us). In this
// case, stored masses leave the cache last: the masses of one layer overwrite the masses of the layer before, so they are never
// written to memory (1 x 128k: 2 us less; 8 x 32k would take 6 us more).
static int normal_tiles(size_t k_bytes, size_t tile) {
    return floods_cache(k_bytes) ? (int)(sl_l2_bytes() * 3 / 2 / sl_multiprocessors() / tile) : 0;
}

// Stored masses of a head are useless after its last draw. If they fill a large part of the cache, K would evict them, and each
// line would be written to memory (16 x 32k, santa-sys: 388 us; 369 us with discard). The masses of the last sequence are not
// discarded: the discard takes longer than the time that it saves, and the next layer overwrites these lines.
static int discarded_seq_heads(const sl_attn_cuda_decode_args *a) {
    size_t stored = (size_t)a->n_seqs * a->geom->n_heads * a->max_kv * sizeof(bf16);
    if (a->keeps_masses || stored < sl_l2_bytes() / 6) return 0;
    return (a->n_seqs - 1) * a->geom->n_kv_heads;
}

// Everything but the arrays of the workspace. The method's lay_out takes these arrays.
template <int DIM> static score_params score_params_of(const sl_attn_cuda_decode_args *a) {
    decode_counters counters = counters_of(a, 0);
    SL_CHECK(a->geom->n_heads <= GROUP_MAX * a->geom->n_kv_heads);
    SL_CHECK(IS_BYTES ? a->format == SL_FP8 || a->format == SL_INT8 : a->format == SL_BF16);
    size_t k_bytes = (size_t)a->n_seqs * a->geom->n_kv_heads * a->max_kv * counted_row(DIM);
    return {.rows = a->rows,
            .q = a->q,
            .k = a->k,
            .n_seqs = a->n_seqs,
            .n_kv_heads = a->geom->n_kv_heads,
            .group = a->geom->n_heads / a->geom->n_kv_heads,
            .n_normal = normal_tiles(k_bytes, (size_t)SHORT_TILE * counted_row(DIM)),
            .masses_last_out = !floods_cache(k_bytes),
            .long_tiles = k_bytes >= 4 * sl_l2_bytes(),
            .is_fp8 = a->format == SL_FP8,
            .n_discarded = discarded_seq_heads(a),
            .scale = sl_score_scale(DIM),
            .max_blocks = block_stride(a->max_kv),
            .next_item = counters.next_item,
            .done = counters.done,
            .top = counters.top};
}

// The value of `done` when all masses of a seq_head are stored.
__device__ int done_target(int n_consumer_warps, int n_kv) {
    return n_consumer_warps * ceil_div(n_kv, SL_PAGE);
}

// ---- stored masses ----

const uint64_t MASS_EMPTY = (uint64_t)REF_EMPTY << 48, MASS_MASK = (1ull << 36) - 1; // 32 masses of at most 2^30
enum {
    SIZE_UNIT_AT = 36, // first bit, in a block mass of sizes, of the reference of the sizes minus the reference of the masses
                       // plus SIZE_UNIT_MOST
    SIZE_UNIT_MOST = 126,
};

// The reference in a packed block mass.
__device__ __forceinline__ int ref_of(uint64_t packed) {
    return (int)((int64_t)packed >> 48);
}

// The reference of a block whose largest score, rounded up, is `most`. NaN gives SL_REF_INVALID.
__device__ __forceinline__ int ref_of_largest(float most) {
    return most <= SL_REF_MOST ? max((int)most, (int)REF_EMPTY) : (int)SL_REF_INVALID;
}

// The reference of the sizes minus the reference of the masses, from a packed block mass of sizes.
__device__ __forceinline__ int size_unit_of(uint64_t packed) {
    return (int)(packed >> SIZE_UNIT_AT & 0xff) - SIZE_UNIT_MOST;
}

// A block mass as a mass relative to the head's largest reference.
__device__ __forceinline__ uint64_t to_global(uint64_t in_block, int shift) {
    uint64_t x;
    asm("shr.u64 %0, %1, %2;" : "=l"(x) : "l"(in_block << 8), "r"(shift)); // 0 if shift is 64 or more
    return x;
}

// A packed block mass relative to the head's largest reference.
__device__ __forceinline__ uint64_t global_mass(uint64_t packed, int top) {
    return to_global(packed & MASS_MASK, top - ref_of(packed));
}

__device__ __forceinline__ uint32_t unit_mass(uint32_t w) { // bf16 in the low half: floor(w 2^30)
    return (uint32_t)(__uint_as_float(w << 16) * 0x1p30f);
}

// ---- shared memory ----

// The tile in a ring stage. Each team needs q of a new item, so the first tiles of an item, one for each team, bring q.
// Exception: consumers load q of a thread block's first item from global memory, because a copy after the first keys would
// arrive late.
struct tile_info {
    int seq_head; // -1: no more tiles
    int row;      // first row of the tile, counted in the sequence
    int pool;     // the same row, counted in the pool: K and V are pools of rows of DIM elements
    int n_kv;     // rows of the sequence
    short has_q;
    short done_amount; // the team's last tile of the item: how much each warp adds to `done`. It is 1, and more where other
                       // teams have no tile. Else 0
};

// Any team can take a stage. Each team has separate `full` barriers, so no team waits for a phase that another team consumes.
struct score_shared {
    uint64_t full[TEAMS_MAX][STAGES_MAX], empty[STAGES_MAX];
    tile_info info[STAGES_MAX];
    int first_seq_head; // of the thread block's first item; -1: it has none
};

// A ring stage in bytes.
template <int DIM, typename Config = plain_config> struct layout {
    enum {
        ROW = stored_row<DIM>, // of K
        Q_ROW = DIM * (int)sizeof(bf16),
        SCALES_AT = Config::TILE * ROW,
        SCALES = Config::TILE * STORED_SCALE,
        NORMS_AT = SCALES_AT + SCALES,
        NORMS = Config::SIZES ? Config::TILE * (int)sizeof(bf16) : 0,
        Q_AT = NORMS_AT + NORMS
    };
    static __host__ __device__ int stage(int group) { return ceil_div(Q_AT + group * Q_ROW, 128) * 128; }
    static int stages(int group, int others) { // others: bytes of shared memory without the stages
        int n = (SHARED_MOST - others) / stage(group);
        SL_CHECK(n >= SL_PAGE / Config::TILE); // needed by wait_previous
        return n < STAGES_MAX ? n : (int)STAGES_MAX;
    }
};

// Whether a launch uses tiles of 128 rows. few_draws: a head has few draws. With many draws, long tiles cost 3% (8 x 32k,
// santa-flash).
static inline bool uses_long_tiles(const score_params &p, bool few_draws) {
    return p.long_tiles && few_draws;
}

// Sets the parameters that depend on the tiles of a configuration. other_bytes: shared memory of the kernel without the stages.
// Returns the kernel's shared memory in bytes.
template <int DIM, typename Config> static size_t set_tiles(score_params *p, int other_bytes) {
    typedef layout<DIM, Config> at;
    p->n_normal = p->n_normal * SHORT_TILE / Config::TILE;
    p->n_stages = at::stages(p->group, other_bytes);
    return other_bytes + (size_t)p->n_stages * at::stage(p->group);
}

typedef stage_ring<score_shared *> ring;

// Makes the ring's barriers. Call it before the thread block's first __syncthreads. n_readers: threads that read a stage.
template <typename Config = plain_config> __device__ void score_begin(score_shared *shared, int n_readers) {
    barriers_make<Config::WARPS, Config::TEAMS * STAGES_MAX>(shared->full[0], FULL_ARRIVALS);
    barriers_make<Config::WARPS, STAGES_MAX>(shared->empty, n_readers);
    barriers_made();
}

// ---- producer ----

// A work item: a page of one seq_head. All lanes of the warp hold the same values.
struct score_item {
    int seq_head, head; // seq_head -1: there are no more items; head: KV head
    int from, n_kv;
    int32_t page;
};

struct producer {
    ring fill;
    seq_lookup lookup;
    score_item first, second;
    int n_issued; // tiles that were issued
    // Before the previous kernel has ended, the producer may read K of earlier tokens, norms of built pages, lengths and page
    // tables, because no kernel of the step writes these. It may not read q, the newest rows or the counters. So it copies q of
    // the first tiles later.
    int has_waited;
    uint64_t normal, leaves_first; // L2 policies
    template <typename Config> __device__ uint64_t *full() const {
        return &fill.head->full[n_issued % Config::TEAMS][fill.stage];
    }
};

// Called by one lane; before sm_90 by all lanes together.
__device__ void copy_part(uint32_t to, const void *from, int bytes, uint64_t *full, uint64_t policy) {
#if __CUDA_ARCH__ >= 900
    if (bytes) copy_bulk(to, from, bytes, full, policy);
#else
    copy_warp(to, from, bytes);
#endif
}

__device__ bool in_newest_page(const tile_info &info) {
    return info.row / SL_PAGE == (info.n_kv - 1) / SL_PAGE;
}

// Bytes that a tile brings in addition to its keys: q, and with SIZES norms.
template <int DIM, typename Config> __device__ int q_bytes(const score_params &p, const tile_info &info) {
    return info.has_q ? p.group * layout<DIM, Config>::Q_ROW : 0;
}
template <int DIM, typename Config> __device__ int norm_bytes(const tile_info &info) {
    return Config::SIZES && !in_newest_page(info) ? layout<DIM, Config>::NORMS : 0;
}

// Issues the copy of q into a stage whose barrier already expects the bytes.
template <int DIM, typename Config>
__device__ void copy_q(const score_params &p, const producer &to, const tile_info &info, int stage, uint64_t *full) {
    uint32_t at = shared_address(to.fill.stages + stage * to.fill.stage_bytes) + layout<DIM, Config>::Q_AT;
    copy_part(at, p.q + (size_t)info.seq_head * p.group * DIM, q_bytes<DIM, Config>(p, info), full, to.normal);
}

// Waits once for the previous kernel. Then issues the copies of q that had to wait: those of the tiles in stages 0, 1, ...
template <int DIM, typename Config> __device__ void wait_previous(const score_params &p, producer *to) {
    if (to->has_waited) return;
    sl_wait_previous();
    to->has_waited = 1;
    score_shared *shared = to->fill.head;
#pragma unroll 1
    for (int i = 0; threadIdx.x % 32 == 0 && i < to->n_issued; i++)
        copy_q<DIM, Config>(p, *to, shared->info[i], i, &shared->full[i % Config::TEAMS][i]);
    __syncwarp();
}

// Issues the copies of one tile: rows [info.row, info.row + TILE) of K, norms and q. It waits for the previous kernel when all
// stages are full, or when the tile holds a new row.
template <int DIM, typename Config> __device__ void produce_tile(const score_params &p, producer *to, const tile_info &info) {
    if (to->n_issued == to->fill.n_stages || has_new_rows(info.row, Config::TILE, info.n_kv)) wait_previous<DIM, Config>(p, to);
    ring *r = &to->fill;
    uint64_t *full = to->full<Config>();
    typedef layout<DIM, Config> at_stage;
    int k_bytes = Config::TILE * at_stage::ROW, leads = threadIdx.x % 32 == 0;
    barrier_wait(&r->head->empty[r->stage], r->parity ^ 1);
    if (leads) r->head->info[r->stage] = info;
    if (leads || FULL_ARRIVALS > 1) {
#if __CUDA_ARCH__ >= 900
        barrier_expect(full, k_bytes + at_stage::SCALES + q_bytes<DIM, Config>(p, info) + norm_bytes<DIM, Config>(info));
#endif
        uint32_t data = shared_address(r->data());
        uint64_t policy = to->n_issued < p.n_normal ? to->normal : to->leaves_first;
        copy_part(data, row_of_pool<DIM>(p.k, info.pool), k_bytes, full, policy);
        if (IS_BYTES) copy_part(data + at_stage::SCALES_AT, scale_of_pool<DIM>(p.k, info.pool), at_stage::SCALES, full, policy);
        if (Config::SIZES)
            copy_part(data + at_stage::NORMS_AT, p.norms + info.pool, norm_bytes<DIM, Config>(info), full,
                      to->normal); // drawers read some of the norms again
        if (to->has_waited) copy_q<DIM, Config>(p, *to, info, r->stage, full);
    }
#if __CUDA_ARCH__ < 900
    arrive_after_copies(full);
    if (leads) barrier_arrive(full);
#endif
    __syncwarp();
    to->n_issued++;
    r->advance();
}

// Looks up a work item.
__device__ score_item locate(const score_params &p, producer *to, int item) {
    item_place at = lookup_find(&to->lookup, p.rows, p.n_seqs, p.n_kv_heads, page_items(), item);
    if (at.seq < 0) return {.seq_head = -1};
    int head = at.local % p.n_kv_heads, page = at.local / p.n_kv_heads;
    return {.seq_head = at.seq * p.n_kv_heads + head,
            .head = head,
            .from = page * SL_PAGE,
            .n_kv = at.n_kv,
            .page = __ldg(at.pages + page)};
}

template <int DIM, typename Config>
__device__ void produce_tile_of(const score_params &p, producer *to, const score_item &u, int row, bool brings_q) {
    int end = min(u.n_kv - u.from, (int)SL_PAGE),
        idle = max((int)Config::TEAMS - ceil_div(end, Config::TILE), 0); // teams that have no tile of this item
    tile_info info = {.seq_head = u.seq_head,
                      .row = u.from + row,
                      .pool = (u.page * p.n_kv_heads + u.head) * SL_PAGE + row,
                      .n_kv = u.n_kv,
                      .has_q = row < Config::TEAMS * Config::TILE && brings_q,
                      .done_amount = (short)(row + Config::TEAMS * Config::TILE < end ? 0
                                             : row + Config::TILE < end               ? 1
                                                                                      : 1 + idle)};
    produce_tile<DIM, Config>(p, to, info);
}

// Tells one team that there are no more tiles.
template <typename Config> __device__ void produce_end(producer *to) {
    ring *r = &to->fill;
    uint64_t *full = to->full<Config>();
    barrier_wait(&r->head->empty[r->stage], r->parity ^ 1);
    if (threadIdx.x % 32 == 0) r->head->info[r->stage].seq_head = -1;
#if __CUDA_ARCH__ < 900
    arrive_after_copies(full);
#endif
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(full);
    to->n_issued++;
    r->advance();
}

// The first two items of a thread block have the numbers blockIdx.x and gridDim.x + blockIdx.x. The producer looks them up
// while other warps make the barriers, before the thread block's first __syncthreads.
__device__ producer produce_begin(const score_params &p, const ring &r) {
    producer to = {.fill = r, .normal = sl_l2_policy(SL_L2_ANY), .leaves_first = sl_l2_policy(SL_L2_FIRST_OUT)};
#if __CUDA_ARCH__ < 900
    sl_wait_previous();
    to.has_waited = 1;
#endif
    lookup_load(&to.lookup, p.rows, p.n_seqs, p.n_kv_heads, page_items(), 0, 0);
    to.first = locate(p, &to, blockIdx.x);
    to.second = locate(p, &to, gridDim.x + blockIdx.x);
    if (threadIdx.x % 32 == 0) r.head->first_seq_head = to.first.seq_head;
    return to;
}

// The thread block takes tickets for the other items. The producer takes a ticket in the middle of the item before, and looks
// up the page at the last tile of that item. It does both as late as the latency allows, so that all thread blocks end at
// nearly the same time.
template <int DIM, typename Config = plain_config> __device__ void produce(const score_params &p, producer to) {
    int lane = threadIdx.x % 32, ticket = -2; // lane 0: the last ticket
    score_item u = to.first, next = to.second;
    for (int n_done = 0; u.seq_head >= 0; u = next, n_done++) {
        int end = min(u.n_kv - u.from, (int)SL_PAGE), last = (end - 1) / Config::TILE * Config::TILE;
#pragma unroll 1 // the instructions of unrolled code would be read from memory while the first items run
        for (int row = 0; row < end; row += Config::TILE) {
            if (n_done > 0 && row == min(last, SL_PAGE / 2)) {
                wait_previous<DIM, Config>(p, &to);
                if (lane == 0)
                    ticket = atomicAdd(p.next_item, 1); // waits for the result; sl_take_number costs 2% (santa-flash)
            }
            if (n_done > 0 && row == last) next = locate(p, &to, 2 * gridDim.x + __shfl_sync(~0u, ticket, 0));
            produce_tile_of<DIM, Config>(p, &to, u, row, n_done > 0);
        }
    }
    wait_previous<DIM, Config>(p, &to);
    int all =
        __shfl_sync(~0u, to.lookup.end, 31); // all items. A thread block takes a ticket in each of its items but the first
    if (lane == 0 && ticket == all - min(all, (int)gridDim.x) - 1) *p.next_item = 0;
    for (int i = 0; i < Config::TEAMS; i++) produce_end<Config>(&to);
}

// ---- consumers ----

// One warp scores a block of 32 rows for all query heads of the group. Lane (g, q) = (lane / 4, lane % 4). In part t = 0 .. 3
// of the rows, row g of the mma's operand is row 8 (g / 2) + 2 t + g % 2. So after the transposition lane (head, q) has rows 8
// q .. 8 q + 7. F: the format of the rows, SL_BF16, SL_FP8 or SL_INT8.
template <int DIM, sl_format F = SL_BF16> struct scorer {
    std::conditional_t<F == SL_BF16, group_queries<DIM>, group_byte_queries<DIM>> queries;

    __device__ void begin(const char *q_rows, int group) { queries.load(q_rows, group); }

    // s[2 t + h]: the row of part t, head 2 q + h. Parts 0 and 1 are the two row halves of the first mma, 2 and 3 of the
    // second. Rows of bytes: without their scales.
    __device__ void scores(const char *k, float s[8]) const {
        enum { ROW = F == SL_BF16 ? DIM * (int)sizeof(bf16) : DIM, STEP = 2 * ROW };
        int g = threadIdx.x % 32 / 4;
        const char *row = k + (8 * (g / 2) + g % 2) * ROW;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float *c = s + 4 * half;
            c[0] = c[1] = c[2] = c[3] = 0;
            const char *upper = row + 2 * half * STEP, *lower = row + (2 * half + 1) * STEP;
            if constexpr (F == SL_BF16)
                queries.add_scores(c, c, upper, lower);
            else
                queries.template add_scores<F == SL_FP8>(c, c, upper, lower);
        }
    }
};

// Row within the block of the lane's part t.
__device__ int row_of_part(int t) {
    int g = threadIdx.x % 32 / 4;
    return 8 * (g / 2) + 2 * t + g % 2;
}

// Multiplies the scores of rows of bytes with the scales of K of the 32 rows. Scores of bf16 rows stay.
template <sl_format F> __device__ void scale_scores(const char *scales, float s[8]) {
#pragma unroll
    for (int i = 0; F != SL_BF16 && i < 8; i++) s[i] *= ((const float *)scales)[row_of_part(i / 2)];
}

// Row masses of a block. The lane holds rows 8 (lane % 4) .. + 7 of head lane / 4.
struct block_masses {
    uint4 w;
    uint64_t mass; // block mass
    int ref;
};

// The sum of eight row masses per lane over the four lanes of a head.
__device__ uint64_t mass_of_block(const uint4 &x) {
    const uint32_t pairs[4] = {x.x, x.y, x.z, x.w};
    uint64_t mass = 0;
#pragma unroll
    for (int t = 0; t < 4; t++) mass += (uint64_t)unit_mass(pairs[t] & 0xffff) + unit_mass(pairs[t] >> 16);
    mass += __shfl_xor_sync(~0u, mass, 1);
    mass += __shfl_xor_sync(~0u, mass, 2);
    return mass;
}

// Turns scores (in log2 units, -inf after the sequence's end) into masses.
__device__ block_masses to_masses(float s[8]) {
    int g = threadIdx.x % 32 / 4, ref[2];
    uint32_t x[4];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float most = sl_max_nan(sl_max_nan(s[h], s[2 + h]), sl_max_nan(s[4 + h], s[6 + h]));
        for (int step = 4; step < 32; step *= 2) most = sl_max_nan(most, __shfl_xor_sync(~0u, most, step));
        ref[h] = ref_of_largest(ceilf(most));
#pragma unroll
        for (int t = 0; t < 4; t++) s[2 * t + h] = ref[h] > REF_EMPTY ? exp2f(fminf(s[2 * t + h] - ref[h], 0.0f)) : 0;
    }
#pragma unroll
    for (int t = 0; t < 4; t++) {
        __nv_bfloat162 pair = __floats2bfloat162_rn(s[2 * t], s[2 * t + 1]);
        x[t] = sl_transpose_b16(*(uint32_t *)&pair);
    }
    uint4 w = make_uint4(x[0], x[1], x[2], x[3]);
    int even = __shfl_sync(~0u, ref[0], g / 2), odd = __shfl_sync(~0u, ref[1], g / 2);
    return {w, mass_of_block(w), g % 2 ? odd : even};
}

// Stores data that the drawers will read.
template <typename T> __device__ void store_result(const score_params &p, T *to, const T &x) {
    sl_store_l2(to, x, p.masses_last_out ? sl_l2_policy(SL_L2_LAST_OUT) : sl_l2_policy(SL_L2_ANY));
}

// Stores the block mass of block row / 32 and head lane / 4. Only lanes with lane % 4 == 0 call it.
__device__ void store_mass(const score_params &p, uint64_t *masses, int seq_head, int row, uint64_t packed) {
    store_result(p, masses + ((size_t)seq_head * p.group + threadIdx.x % 32 / 4) * p.max_blocks + row / BLOCK, packed);
}

// Stores the masses of rows [row, row + 32) of a sequence. Returns the reference of head lane / 4.
__device__ int store_block(const score_params &p, int seq_head, int row, const block_masses &x) {
    int g = threadIdx.x % 32 / 4, lane_q = threadIdx.x % 4;
    if (g >= p.group) return REF_EMPTY;
    size_t block = row / BLOCK;
    store_result(p, (uint4 *)(p.w + (((size_t)seq_head * p.max_blocks + block) * p.group + g) * BLOCK + 8 * lane_q), x.w);
    if (lane_q == 0) store_mass(p, p.mass, seq_head, row, (uint64_t)(uint16_t)x.ref << 48 | x.mass);
    return x.ref;
}

// ---- sizes ----

// The bits of two bf16 numbers.
__device__ __nv_bfloat162 as_bf16x2(uint32_t x) {
    return *(const __nv_bfloat162 *)&x;
}

// w |v| of two rows, rounded to bf16.
__device__ uint32_t product_of(uint32_t w, uint32_t norm) {
    __nv_bfloat162 x = __hmul2_rn(as_bf16x2(w), as_bf16x2(norm));
    return *(const uint32_t *)&x;
}

// Two products as sizes. unit: size_unit_of the block.
__device__ uint32_t size_of_product(uint32_t product, int unit) {
    uint32_t factor = (uint32_t)(127 - unit) << 7;
    __nv_bfloat162 x = __hmin2(__hmul2_rn(as_bf16x2(product), as_bf16x2(factor | factor << 16)), __float2bfloat162_rn(1.0f));
    return *(const uint32_t *)&x;
}

// The unit of a block's sizes, from the bits of its largest product (cpu_kernels.h, sizes).
__device__ int size_unit(uint32_t most) {
    return min(max((int)((most + 0x7f) >> 7) - 127, -SIZE_UNIT_MOST), (int)SIZE_UNIT_MOST);
}

// The reference of a block's sizes. ref: of its masses. is_empty: all sizes are 0.
__device__ int size_ref(int ref, int unit, bool is_empty) {
    return is_empty ? (int)REF_EMPTY : max(min(ref + unit, 32767), REF_EMPTY + 1);
}

// Stores the block mass of the block's sizes (cpu_kernels.h, sizes). norms: of rows 8 (lane % 4) .. + 7.
__device__ void store_sizes(const score_params &p, int seq_head, int row, const block_masses &x, const uint4 &norms) {
    uint4 y = {product_of(x.w.x, norms.x), product_of(x.w.y, norms.y), product_of(x.w.z, norms.z), product_of(x.w.w, norms.w)};
    uint32_t most = __vmaxu2(__vmaxu2(y.x, y.y), __vmaxu2(y.z, y.w)); // of bits: products are not negative
    for (int step = 1; step < 4; step *= 2) most = __vmaxu2(most, __shfl_xor_sync(~0u, most, step));
    most = max(most & 0xffff, most >> 16);
    int unit = size_unit(most), ref = size_ref(x.ref, unit, most == 0);
    y = {size_of_product(y.x, unit), size_of_product(y.y, unit), size_of_product(y.z, unit), size_of_product(y.w, unit)};
    uint64_t mass = mass_of_block(y) | (uint64_t)(unit + SIZE_UNIT_MOST) << SIZE_UNIT_AT | (uint64_t)(uint16_t)ref << 48;
    if (threadIdx.x % 4 == 0 && threadIdx.x % 32 / 4 < p.group) store_mass(p, p.size_mass, seq_head, row, mass);
}

// Discards the masses of a seq_head of n_kv rows after its last draw. thread: 0 .. n_threads - 1. These threads call the
// function together.
__device__ void discard_stored(const score_params &p, int seq_head, int n_kv, int thread, int n_threads) {
    if (seq_head >= p.n_discarded) return;
    size_t block = (size_t)p.group * BLOCK, n_blocks = ceil_div(n_kv, BLOCK), mass = seq_head * p.group * (size_t)p.max_blocks;
    sl_discard(p.w + seq_head * p.max_blocks * block, n_blocks * block * sizeof(bf16), thread, n_threads);
    for (int h = 0; h < p.group; h++, mass += p.max_blocks) {
        sl_discard(p.mass + mass, n_blocks * sizeof(uint64_t), thread, n_threads);
        if (p.size_mass) sl_discard(p.size_mass + mass, n_blocks * sizeof(uint64_t), thread, n_threads);
    }
}

// Acquire load: writes before the matching add_released are visible after it.
__device__ int load_acquired(const int *from) {
    int x;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
}

// Release add: earlier writes of this thread are visible to a thread that acquires the new value.
__device__ void add_released(int *to, int x) {
    asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}

// Finished work of a warp that is not yet added to `done`. Lane i has number i of it. A release waits until all threads can see
// all stores of the warp, which takes 1 to 2 us while memory is busy. So the warp releases several at a time.
struct announcements {
    int seq_head, amount; // of the lane
    int n;
};
enum { ANNOUNCED_TOGETHER = 8 };

// Adds the finished work of this warp to `done`.
__device__ void announce(const score_params &p, announcements *a) {
    __syncwarp();
    if (threadIdx.x % 32 < a->n) add_released(p.done + a->seq_head, a->amount);
    a->n = 0;
}

// The loop of a consumer warp: waits for a tile of its team, scores its block, stores the masses.
template <int DIM, typename Config, sl_format F> __device__ void consume_tiles(const score_params &p, ring r) {
    typedef layout<DIM, Config> at_stage;
    enum { TEAMS = Config::TEAMS, SIZE = Config::SIZE };
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, team = warp / SIZE, top = REF_EMPTY;
    int from = warp % SIZE * BLOCK; // first row of the warp, within the tile
    uint32_t parities = 0;          // bit i: the parity of the team's next phase of stage i
    announcements stored = {};
    scorer<DIM, F> a;
    sl_wait_previous(); // the drawers of the layer before may still read the stored masses
    int first_seq_head = r.head->first_seq_head;
    if (first_seq_head >= 0) a.begin((const char *)(p.q + (size_t)first_seq_head * p.group * DIM), p.group);
    for (r.stage = team;; r.stage += r.stage + TEAMS < r.n_stages ? TEAMS : TEAMS - r.n_stages) {
        barrier_wait(&r.head->full[team][r.stage], parities >> r.stage & 1);
        parities ^= 1u << r.stage;
        __syncwarp(); // mma needs a converged warp; lanes can leave the wait one by one
        tile_info info = r.head->info[r.stage];
        if (info.seq_head < 0) break;
        const char *k = r.data();
        float s[8];
        uint4 norms = {};
        int row = info.row + from, n_rows = info.n_kv - row;
        if (info.has_q) {
            a.begin(k + at_stage::Q_AT, p.group);
            top = REF_EMPTY;
        }
        a.scores(k + from * at_stage::ROW, s);
        scale_scores<F>(k + at_stage::SCALES_AT + from * STORED_SCALE, s);
        if (Config::SIZES && !in_newest_page(info)) norms = ((const uint4 *)(k + at_stage::NORMS_AT))[from / 8 + lane % 4];
        leave_stage(&r.head->empty[r.stage]);
        if (Config::SIZES && in_newest_page(info)) {
            const newest_norms *newest = newest_norms_of(p, info.seq_head);
            while (!load_acquired(p.newest_done + info.seq_head)) continue;
            __syncwarp();
            if (n_rows > 0) norms = __ldcg((const uint4 *)(newest->norm + row % SL_PAGE) + lane % 4);
        }
        if (n_rows > 0) {
#pragma unroll
            for (int i = 0; i < 8; i++) s[i] = row_of_part(i / 2) < n_rows ? s[i] * p.scale : -INFINITY;
            block_masses x = to_masses(s);
            top = max(top, store_block(p, info.seq_head, row, x));
            if (Config::SIZES) store_sizes(p, info.seq_head, row, x, norms);
        }
        if (!info.done_amount) continue;
        if (p.top && lane % 4 == 0 && lane / 4 < p.group)
            atomicMax(p.top + info.seq_head * p.group + lane / 4, top - REF_EMPTY);
        if (!p.done) continue;
        if (lane == stored.n) stored.seq_head = info.seq_head, stored.amount = info.done_amount;
        if (++stored.n == ANNOUNCED_TOGETHER) announce(p, &stored);
    }
    announce(p, &stored);
}

template <int DIM, typename Config = plain_config> __device__ void consume(const score_params &p, ring r) {
    if constexpr (!IS_BYTES)
        consume_tiles<DIM, Config, SL_BF16>(p, r);
    else if (p.is_fp8)
        consume_tiles<DIM, Config, SL_FP8>(p, r);
    else
        consume_tiles<DIM, Config, SL_INT8>(p, r);
}

} // namespace

#endif
