// attention/cuda/score_keys.cuh - exact scores of all keys as stored weights, on CUDA: the first half of a decode kernel whose
// second half draws from them (draw_rows.cuh).
//
// A producer warp streams K through a ring, consumer warps turn scores into stored weights (stages.h: bf16 beside a power of
// two for each block of 32 rows, and integer masses). Units of work are pages of one KV head. When a warp has stored its part
// of a unit, its KV head's count grows; drawers wait for all of it (score_done).
//
// With SIZES, masses of sizes p |v| are stored too; the sizes themselves follow from weights and norms (cpu_kernels.h), and
// whoever needs one makes it again. |v| comes from the page extra, but for the newest page of a sequence, which has none yet:
// its norms are kept from step to step, and warps of their own add the newest row's (pps.cu's store_newest_norms).
#ifndef SLEIGH_SCORE_KEYS_CUH
#define SLEIGH_SCORE_KEYS_CUH

#include "attention/cuda/decode_ring.cuh"
#include "attention/cuda/exact_head.cuh"

#include <cuda_bf16.h>
#include <math.h>

namespace {

enum {
    BLOCK = 32,           // rows that share a reference
    GROUP_MAX = 8,        // query heads of a KV head: the columns of an mma
    STAGES_MAX = 6,       // fewer where shared memory ends:
    SHARED_MOST = 115584, // bytes of a block, so that one of a linear layer fits beside it
    REF_EMPTY = SL_REF_EMPTY,
    COUNTERS =
        65536, // of the workspace, before the masses: `next`, draw_rows.cuh's ticket, `done`, its `drawn`, `top`, `merged`
};

// How keys are scored. Teams of consumer warps take tiles by turns; a warp has a block of its team's tile. With SIZES there is
// more to do. LONG tiles are fewer and longer copies, 0.5% less where K is many times what the L2 cache holds; where it is
// less, the first comes later and blocks end further apart, which costs more.
template <bool WITH_SIZES, bool LONG> struct form {
    enum {
        SIZES = WITH_SIZES,
        TILE = LONG ? 128 : 64, // rows of K in a stage
        SIZE = TILE / BLOCK,
        TEAMS = (SIZES ? 8 : 4) / SIZE,
        WARPS = TEAMS * SIZE,
    };
};
typedef form<false, false> plain_form;
enum { CONSUMERS = plain_form::WARPS, TEAMS_MAX = form<true, false>::TEAMS, SHORT_TILE = plain_form::TILE };

// Nothing is merged, so small units cost little, and blocks end together.
struct page_units {
    __device__ int operator()(int n_kv) const { return ceil_div(n_kv, SL_PAGE); }
};

struct score_params {
    const sl_row *rows; // [n_seqs]
    const bf16 *q;      // [n_seqs][n_kv_heads][group][head_dim]
    const bf16 *k;      // [n_pages][n_kv_heads][256][head_dim]
    int n_seqs, n_kv_heads, group;
    int n_stages = 0; // the launch's to say
    int n_normal;     // tiles of a block that the L2 cache treats as any data (produce_tile)
    bool keeps;       // what is stored leaves the L2 cache last
    bool long_tiles;  // with_form
    int n_discarded;  // KV heads, the first: their stored weights are discarded once they have been drawn from
    float scale;      // log2(e) / sqrt(head_dim)
    int max_blocks;   // of a sequence, even: the stride below
    int *next;        // units handed out beyond each block's first two; 0 between launches
    // NULL: nobody asks. Whoever draws sets both to 0 again.
    int *done;      // [n_seqs * n_kv_heads] grows by form::WARPS for each page stored
    int *top;       // [n_seqs * n_kv_heads][group] the largest reference, less REF_EMPTY
    uint64_t *mass; // [n_seqs * n_kv_heads][group][max_blocks] ref << 48 | in-block mass
    bf16 *w;        // [n_seqs * n_kv_heads][max_blocks][group][32]
    // With SIZES:
    const bf16 *norms = NULL;   // [n_pages][n_kv_heads][256] |v| of all pages but each sequence's newest
    size_t state_at = 0;        // of this layer in a sequence's state: newest_norms [n_kv_heads]
    int *newest_done = NULL;    // [n_seqs * n_kv_heads] 1: they are up to date; whoever draws sets it to 0 again
    uint64_t *size_mass = NULL; // as mass, with SIZE_UNIT_AT
};

// Query head `head` of the group of a sequence's KV head, for attend_exactly.
__device__ exact_head exact_head_of(const score_params &p, const bf16 *v, sl_attn_cuda_stats *stats, const sl_row &row,
                                    int slot, int head, int dim) {
    return {.q = p.q + ((size_t)slot * p.group + head) * dim,
            .k = p.k,
            .v = v,
            .pages = row.pages,
            .n_kv_heads = p.n_kv_heads,
            .kv_head = slot % p.n_kv_heads,
            .n_kv = row.position + 1,
            .scale = p.scale,
            .stats = stats};
}

// Even, so that masses can be read two at a time.
static int block_stride(int max_kv) {
    return ceil_div(max_kv, 2 * BLOCK) * 2;
}

// |v| of the newest page of a sequence and KV head: n rows of the sequence had theirs when a step last asked.
struct newest_norms {
    int n;
    int reserved[3];
    bf16 norm[SL_PAGE]; // 0 behind the page's last row
};

__device__ newest_norms *newest_norms_of(const score_params &p, int slot) {
    return (newest_norms *)(p.rows[slot / p.n_kv_heads].state + p.state_at) + slot % p.n_kv_heads;
}

static size_t score_workspace(const sl_attn_geom *geom, int n_seqs, int n_kv) {
    size_t blocks = (size_t)n_seqs * geom->n_heads * block_stride(n_kv);
    return COUNTERS * sizeof(int) + blocks * (sizeof(uint64_t) + BLOCK * sizeof(bf16));
}

// ---- what the L2 cache keeps ----

// K is many times what the cache holds: how it is read, and how long what is stored stays, go by this.
static bool floods_cache(size_t k_bytes) {
    return k_bytes >= 6 * sl_l2_bytes();
}

// K is read once, and leaves the cache first, so that stored weights stay. But where it floods the cache, a block's first tiles
// are treated as any data, which pushes an earlier kernel's changed lines out at once (8 x 32k: 198 us, 204 without). Where K
// is less, writing these lines would take longer than they are in the way (1 x 32k: 5 us), and what is stored leaves the cache
// last: a layer's weights and masses overwrite those of the layer before, and nothing is written to memory (1 x 128k: 2 us
// less; 8 x 32k: 6 us more).
static int normal_tiles(size_t k_bytes, size_t tile) {
    return floods_cache(k_bytes) ? (int)(sl_l2_bytes() * 3 / 2 / sl_multiprocessors() / tile) : 0;
}

// Stored weights and masses of a head are of no use once it is drawn. Where they are a good part of the cache, they would be
// written to memory when K pushes them out (16 x 32k, santa-sys: 388 us, discarded 369). At the end that would take longer than
// it spares: the last sequence's stay, and the next layer's overwrite them.
static int discarded_slots(const sl_attn_cuda_decode_args *a) {
    size_t stored = (size_t)a->n_seqs * a->geom->n_heads * a->max_kv * sizeof(bf16);
    if (a->keeps_stored || stored < sl_l2_bytes() / 6) return 0;
    return (a->n_seqs - 1) * a->geom->n_kv_heads;
}

template <int DIM> static score_params score_params_of(const sl_attn_cuda_decode_args *a) {
    int *counters = (int *)a->ws, max_blocks = block_stride(a->max_kv), n_slots = a->n_seqs * a->geom->n_kv_heads;
    uint64_t *mass = (uint64_t *)(counters + COUNTERS);
    SL_CHECK(a->geom->n_heads <= GROUP_MAX * a->geom->n_kv_heads);
    SL_CHECK(2 + 2 * n_slots + a->n_seqs * a->geom->n_heads <= COUNTERS);
    size_t k_bytes = (size_t)n_slots * a->max_kv * DIM * sizeof(bf16);
    return {.rows = a->rows,
            .q = a->q,
            .k = a->k,
            .n_seqs = a->n_seqs,
            .n_kv_heads = a->geom->n_kv_heads,
            .group = a->geom->n_heads / a->geom->n_kv_heads,
            .n_normal = normal_tiles(k_bytes, SHORT_TILE * DIM * sizeof(bf16)),
            .keeps = !floods_cache(k_bytes),
            .long_tiles = k_bytes >= 4 * sl_l2_bytes(),
            .n_discarded = discarded_slots(a),
            .scale = (float)(1.4426950408889634 / sqrt((double)DIM)),
            .max_blocks = max_blocks,
            .next = counters,
            .done = counters + 2,
            .top = counters + 2 + 2 * n_slots,
            .mass = mass,
            .w = (bf16 *)(mass + (size_t)a->n_seqs * a->geom->n_heads * max_blocks)};
}

// Calls f(form) with the form that suits the size of K. few_draws: of a head; with many, long tiles cost 3% (8 x 32k,
// santa-flash).
template <bool SIZES, typename F> static void with_form(score_params *p, bool few_draws, F f) {
    if (p->long_tiles && few_draws) {
        p->n_normal = p->n_normal * SHORT_TILE / form<SIZES, true>::TILE;
        f(form<SIZES, true>());
    } else {
        f(form<SIZES, false>());
    }
}

// What `done` of a sequence's KV heads comes to.
template <bool SIZES = false> __device__ int score_done(int n_kv) {
    return form<SIZES, false>::WARPS * ceil_div(n_kv, SL_PAGE);
}

// ---- stored masses ----

const uint64_t MASS_EMPTY = (uint64_t)REF_EMPTY << 48, MASS_MASK = (1ull << 36) - 1; // 32 masses of 2^30
enum {
    SIZE_UNIT_AT = 36, // bit of a size mass: its reference, less that of the weights, plus
    SIZE_UNIT_MOST = 126,
};

__device__ __forceinline__ int ref_of(uint64_t packed) {
    return (int)((int64_t)packed >> 48);
}

// Of a block whose largest score, rounded up, is `most`; NaN too.
__device__ __forceinline__ int ref_of_largest(float most) {
    return most <= SL_REF_MOST ? max((int)most, (int)REF_EMPTY) : (int)SL_REF_INVALID;
}

__device__ __forceinline__ int size_unit_of(uint64_t packed) {
    return (int)(packed >> SIZE_UNIT_AT & 0xff) - SIZE_UNIT_MOST;
}

// In-block mass as global mass beside the largest reference.
__device__ __forceinline__ uint64_t to_global(uint64_t in_block, int shift) {
    uint64_t x;
    asm("shr.u64 %0, %1, %2;" : "=l"(x) : "l"(in_block << 8), "r"(shift)); // 0 from 64 on
    return x;
}

__device__ __forceinline__ uint64_t global_mass(uint64_t packed, int top) {
    return to_global(packed & MASS_MASK, top - ref_of(packed));
}

__device__ __forceinline__ uint32_t unit_mass(uint32_t w) { // of a bf16 in the low half: floor(w 2^30)
    return (uint32_t)(__uint_as_float(w << 16) * 0x1p30f);
}

// ---- shared memory ----

// What a stage holds. Teams of consumers take tiles by turns, so a unit's first tiles, one for each team, bring its q (but for
// a block's first unit, where consumers fetch it: behind the first keys it would come late), and its last ones end it.
struct tile_info {
    int slot; // sequence * n_kv_heads + KV head; -1: no more tiles
    int row;  // of the sequence: the tile's first
    int pool; // the same row of the pool: of K and V as rows of DIM
    int n_kv; // of the sequence
    short first;
    short last; // 0, or what `done` grows by for each warp: more than 1 for teams that have no tile of the unit
};

// A stage is taken by any team, so each has full barriers of its own: none is asked for a phase that another waits for.
struct score_head {
    uint64_t full[TEAMS_MAX][STAGES_MAX], empty[STAGES_MAX];
    tile_info info[STAGES_MAX];
    int first_slot; // of the block's first unit; -1: it has none
};

template <int DIM, typename Form = plain_form> struct layout {
    enum {
        ROW = DIM * (int)sizeof(bf16),
        NORMS_AT = Form::TILE * ROW,
        NORMS = Form::SIZES ? Form::TILE * (int)sizeof(bf16) : 0,
        Q_AT = NORMS_AT + NORMS
    };
    static __host__ __device__ int stage(int group) { return ceil_div(Q_AT + group * ROW, 128) * 128; }
    static int stages(int group, int others) { // beside `others` bytes of shared memory
        int n = (SHARED_MOST - others) / stage(group);
        SL_CHECK(n >= SL_PAGE / Form::TILE); // wait_previous
        return n < STAGES_MAX ? n : (int)STAGES_MAX;
    }
};

typedef stage_ring<score_head *> ring;

// Before the block's first __syncthreads. n_readers: threads that take a stage.
template <typename Form = plain_form> __device__ void score_begin(score_head *head, int n_readers) {
    barriers_make<Form::WARPS, Form::TEAMS * STAGES_MAX>(head->full[0], FULL_ARRIVALS);
    barriers_make<Form::WARPS, STAGES_MAX>(head->empty, n_readers);
    barriers_made();
}

// ---- producer ----

// A page of one KV head of one sequence. Whole warp alike.
struct score_unit {
    int slot, head; // sequence * n_kv_heads + KV head, -1: there are no more; KV head
    int from, n_kv;
    int32_t page;
};

struct producer {
    ring next;
    window w;
    score_unit first, second;
    int n_asked; // tiles
    // Until the kernel in front has ended, K of earlier tokens, norms of built pages, lengths and page tables may be read, for
    // no kernel of the step writes them; not q, the newest rows or the counters. So of the first tiles q is copied later.
    int has_waited;
    uint64_t normal, leaves_first; // L2 policies: normal_tiles
    template <typename Form> __device__ uint64_t *full() const { return &next.head->full[n_asked % Form::TEAMS][next.stage]; }
};

// By one thread; before sm_90 by all lanes together.
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

// Beside a tile's keys: q, and with SIZES norms.
template <int DIM, typename Form> __device__ int q_bytes(const score_params &p, const tile_info &info) {
    return info.first ? p.group * layout<DIM, Form>::ROW : 0;
}
template <int DIM, typename Form> __device__ int norm_bytes(const tile_info &info) {
    return Form::SIZES && !in_newest_page(info) ? layout<DIM, Form>::NORMS : 0;
}

// Asks for q, for a stage whose barrier expects it.
template <int DIM, typename Form>
__device__ void copy_q(const score_params &p, const producer &to, const tile_info &info, int stage, uint64_t *full) {
    uint32_t at = shared_address(to.next.stages + stage * to.next.stage_bytes) + layout<DIM, Form>::Q_AT;
    copy_part(at, p.q + (size_t)info.slot * p.group * DIM, q_bytes<DIM, Form>(p, info), full, to.normal);
}

// Waits for the kernel in front, once, and asks for what had to wait, of tiles that are in stages 0, 1, ...
template <int DIM, typename Form> __device__ void wait_previous(const score_params &p, producer *to) {
    if (to->has_waited) return;
    sl_wait_previous();
    to->has_waited = 1;
    score_head *head = to->next.head;
#pragma unroll 1
    for (int i = 0; threadIdx.x % 32 == 0 && i < to->n_asked; i++)
        copy_q<DIM, Form>(p, *to, head->info[i], i, &head->full[i % Form::TEAMS][i]);
    __syncwarp();
}

// Asks for rows [info.row, info.row + TILE) of K and what belongs to them. All stages fill before the kernel in front is waited
// for, unless one is to hold the newest row.
template <int DIM, typename Form> __device__ void produce_tile(const score_params &p, producer *to, const tile_info &info) {
    if (to->n_asked == to->next.n_stages || info.row + Form::TILE >= info.n_kv) wait_previous<DIM, Form>(p, to);
    ring *r = &to->next;
    uint64_t *full = to->full<Form>();
    int k_bytes = Form::TILE * layout<DIM, Form>::ROW, leads = threadIdx.x % 32 == 0;
    barrier_wait(&r->head->empty[r->stage], r->parity ^ 1);
    if (leads) r->head->info[r->stage] = info;
    if (leads || FULL_ARRIVALS > 1) {
#if __CUDA_ARCH__ >= 900
        barrier_expect(full, k_bytes + q_bytes<DIM, Form>(p, info) + norm_bytes<DIM, Form>(info));
#endif
        uint32_t data = shared_address(r->data());
        copy_part(data, p.k + (size_t)info.pool * DIM, k_bytes, full, to->n_asked < p.n_normal ? to->normal : to->leaves_first);
        if (Form::SIZES)
            copy_part(data + layout<DIM, Form>::NORMS_AT, p.norms + info.pool, norm_bytes<DIM, Form>(info), full,
                      to->normal); // who draws reads some of them again
        if (to->has_waited) copy_q<DIM, Form>(p, *to, info, r->stage, full);
    }
#if __CUDA_ARCH__ < 900
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(full)) : "memory");
    if (leads) barrier_arrive(full);
#endif
    __syncwarp();
    to->n_asked++;
    r->advance();
}

__device__ score_unit locate(const score_params &p, producer *to, int unit) {
    unit_place at = window_find(&to->w, p.rows, p.n_seqs, p.n_kv_heads, page_units(), unit);
    if (at.seq < 0) return {.slot = -1};
    int head = at.local % p.n_kv_heads, page = at.local / p.n_kv_heads;
    return {.slot = at.seq * p.n_kv_heads + head,
            .head = head,
            .from = page * SL_PAGE,
            .n_kv = at.n_kv,
            .page = __ldg(at.pages + page)};
}

template <int DIM, typename Form>
__device__ void produce_tile_of(const score_params &p, producer *to, const score_unit &u, int row, bool brings_q) {
    int end = min(u.n_kv - u.from, (int)SL_PAGE),
        idle = max((int)Form::TEAMS - ceil_div(end, Form::TILE), 0); // teams without a tile
    tile_info info = {.slot = u.slot,
                      .row = u.from + row,
                      .pool = (u.page * p.n_kv_heads + u.head) * SL_PAGE + row,
                      .n_kv = u.n_kv,
                      .first = row < Form::TEAMS * Form::TILE && brings_q,
                      .last = (short)(row + Form::TEAMS * Form::TILE < end ? 0
                                      : row + Form::TILE < end             ? 1
                                                                           : 1 + idle)};
    produce_tile<DIM, Form>(p, to, info);
}

// Tells a team that there are no more tiles.
template <typename Form> __device__ void produce_end(producer *to) {
    ring *r = &to->next;
    uint64_t *full = to->full<Form>();
    barrier_wait(&r->head->empty[r->stage], r->parity ^ 1);
    if (threadIdx.x % 32 == 0) r->head->info[r->stage].slot = -1;
#if __CUDA_ARCH__ < 900
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(full)) : "memory");
#endif
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(full);
    to->n_asked++;
    r->advance();
}

// The first two units of a block are its own number and that plus the grid's size. They are looked up while barriers are made:
// this comes before the block's first __syncthreads.
__device__ producer produce_begin(const score_params &p, const ring &r) {
    producer to = {.next = r, .normal = sl_l2_policy(SL_L2_ANY), .leaves_first = sl_l2_policy(SL_L2_FIRST_OUT)};
#if __CUDA_ARCH__ < 900
    sl_wait_previous();
    to.has_waited = 1;
#endif
    window_load(&to.w, p.rows, p.n_seqs, p.n_kv_heads, page_units(), 0, 0);
    to.first = locate(p, &to, blockIdx.x);
    to.second = locate(p, &to, gridDim.x + blockIdx.x);
    if (threadIdx.x % 32 == 0) r.head->first_slot = to.first.slot;
    return to;
}

// The other units are handed out in order as blocks get to them, as late as the answer can be there in time: one is asked for
// in the middle of the unit before it, and its page looked up before that ends.
template <int DIM, typename Form = plain_form> __device__ void produce(const score_params &p, producer to) {
    int lane = threadIdx.x % 32, ticket = -2; // lane 0: the last one
    score_unit u = to.first, next = to.second;
    for (int n_units = 0; u.slot >= 0; u = next, n_units++) {
        int end = min(u.n_kv - u.from, (int)SL_PAGE), last = (end - 1) / Form::TILE * Form::TILE;
#pragma unroll 1 // a block's first units run this from memory
        for (int row = 0; row < end; row += Form::TILE) {
            if (n_units > 0 && row == min(last, SL_PAGE / 2)) {
                wait_previous<DIM, Form>(p, &to);
                if (lane == 0) ticket = atomicAdd(p.next, 1); // waited for here; sl_take_number: santa-flash takes 2% more
            }
            if (n_units > 0 && row == last) next = locate(p, &to, 2 * gridDim.x + __shfl_sync(~0u, ticket, 0));
            produce_tile_of<DIM, Form>(p, &to, u, row, n_units > 0);
        }
    }
    wait_previous<DIM, Form>(p, &to);
    int all = __shfl_sync(~0u, to.w.end, 31); // units; a block takes a ticket for each of its own but the first
    if (lane == 0 && ticket == all - min(all, (int)gridDim.x) - 1) *p.next = 0;
    for (int i = 0; i < Form::TEAMS; i++) produce_end<Form>(&to);
}

// ---- consumers ----

// A warp's block of 32 rows against the group's queries, lane (g, q) = (lane / 4, lane % 4). Part t = 0..3 of the operands'
// rows holds row 8 (g / 2) + 2 t + g % 2 as its row g, so that after a transposition lane (head, q) has rows 8 q .. 8 q + 7.
template <int DIM> struct scorer {
    enum { K_STEPS = DIM / 16, K_LOADS = DIM / 32 }; // loads of 16 bytes, two k-steps each; DIM % 32 == 16: one of 8 more
    uint32_t q[K_STEPS][2];

    __device__ void begin(const char *q_rows, int group) {
        int g = threadIdx.x % 32 / 4, lane_q = threadIdx.x % 4;
        const char *row = q_rows + g * DIM * sizeof(bf16);
#pragma unroll
        for (int i = 0; i < K_LOADS; i++) {
            uint4 x = g < group ? *(const uint4 *)(row + i * 64 + lane_q * 16) : make_uint4(0, 0, 0, 0);
            q[2 * i][0] = x.x, q[2 * i][1] = x.y, q[2 * i + 1][0] = x.z, q[2 * i + 1][1] = x.w;
        }
        if (K_STEPS % 2) {
            uint2 x = g < group ? *(const uint2 *)(row + K_LOADS * 64 + lane_q * 8) : make_uint2(0, 0);
            q[K_STEPS - 1][0] = x.x, q[K_STEPS - 1][1] = x.y;
        }
    }

    // s[2 t + h]: part t's row, head 2 q + h. Parts 0, 1 are the first product's row halves, 2, 3 the second's.
    __device__ void scores(const char *k, float s[8]) const {
        int g = threadIdx.x % 32 / 4, lane_q = threadIdx.x % 4;
        const char *row = k + (8 * (g / 2) + g % 2) * layout<DIM>::ROW;
        enum { STEP = 2 * layout<DIM>::ROW };
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float *c = s + 4 * half;
            const char *a_row = row + 2 * half * STEP, *b_row = a_row + STEP;
            c[0] = c[1] = c[2] = c[3] = 0;
#pragma unroll
            for (int i = 0; i < K_LOADS; i++) {
                uint4 a = *(const uint4 *)(a_row + i * 64 + lane_q * 16), b = *(const uint4 *)(b_row + i * 64 + lane_q * 16);
                sl_mma_bf16(c, a.x, b.x, a.y, b.y, q[2 * i][0], q[2 * i][1]);
                sl_mma_bf16(c, a.z, b.z, a.w, b.w, q[2 * i + 1][0], q[2 * i + 1][1]);
            }
            if (K_STEPS % 2) {
                uint2 a = *(const uint2 *)(a_row + K_LOADS * 64 + lane_q * 8),
                      b = *(const uint2 *)(b_row + K_LOADS * 64 + lane_q * 8);
                sl_mma_bf16(c, a.x, b.x, a.y, b.y, q[K_STEPS - 1][0], q[K_STEPS - 1][1]);
            }
        }
    }
};

// Row (of a block) of the lane's part t.
__device__ int row_of_part(int t) {
    int g = threadIdx.x % 32 / 4;
    return 8 * (g / 2) + 2 * t + g % 2;
}

// Stored weights of a block: of head lane / 4 its rows 8 (lane % 4) .. + 7.
struct weighed {
    uint4 w;
    uint64_t mass; // of the block
    int ref;
};

// The sum of the masses of eight bf16 a lane over a head's four lanes.
__device__ uint64_t mass_of_block(const uint4 &x) {
    const uint32_t pairs[4] = {x.x, x.y, x.z, x.w};
    uint64_t mass = 0;
#pragma unroll
    for (int t = 0; t < 4; t++) mass += (uint64_t)unit_mass(pairs[t] & 0xffff) + unit_mass(pairs[t] >> 16);
    mass += __shfl_xor_sync(~0u, mass, 1);
    mass += __shfl_xor_sync(~0u, mass, 2);
    return mass;
}

// Scores in log2 units, -inf past the sequence's end, to stored weights.
__device__ weighed weigh_block(float s[8]) {
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

// What drawers will ask for.
template <typename T> __device__ void store_result(const score_params &p, T *to, const T &x) {
    sl_store_l2(to, x, p.keeps ? sl_l2_policy(SL_L2_LAST_OUT) : sl_l2_policy(SL_L2_ANY));
}

// Of block row / 32 of head lane / 4; lane % 4 == 0.
__device__ void store_mass(const score_params &p, uint64_t *masses, int slot, int row, uint64_t packed) {
    store_result(p, masses + ((size_t)slot * p.group + threadIdx.x % 32 / 4) * p.max_blocks + row / BLOCK, packed);
}

// Of rows [row, row + 32) of a sequence. Returns the reference of head lane / 4.
__device__ int store_block(const score_params &p, int slot, int row, const weighed &x) {
    int g = threadIdx.x % 32 / 4, lane_q = threadIdx.x % 4;
    if (g >= p.group) return REF_EMPTY;
    size_t block = row / BLOCK;
    store_result(p, (uint4 *)(p.w + (((size_t)slot * p.max_blocks + block) * p.group + g) * BLOCK + 8 * lane_q), x.w);
    if (lane_q == 0) store_mass(p, p.mass, slot, row, (uint64_t)(uint16_t)x.ref << 48 | x.mass);
    return x.ref;
}

// ---- sizes ----

__device__ __nv_bfloat162 as_bf16x2(uint32_t x) {
    return *(const __nv_bfloat162 *)&x;
}

// w |v| of two rows, rounded.
__device__ uint32_t product_of(uint32_t w, uint32_t norm) {
    __nv_bfloat162 x = __hmul2_rn(as_bf16x2(w), as_bf16x2(norm));
    return *(const uint32_t *)&x;
}

// Two products as sizes; unit: size_unit_of the block.
__device__ uint32_t size_of_product(uint32_t product, int unit) {
    uint32_t factor = (uint32_t)(127 - unit) << 7;
    __nv_bfloat162 x = __hmin2(__hmul2_rn(as_bf16x2(product), as_bf16x2(factor | factor << 16)), __float2bfloat162_rn(1.0f));
    return *(const uint32_t *)&x;
}

// The masses of a block's sizes (cpu_kernels.h's size). norms: of rows 8 (lane % 4) .. + 7.
__device__ void store_sizes(const score_params &p, int slot, int row, const weighed &x, const uint4 &norms) {
    uint4 y = {product_of(x.w.x, norms.x), product_of(x.w.y, norms.y), product_of(x.w.z, norms.z), product_of(x.w.w, norms.w)};
    uint32_t most = __vmaxu2(__vmaxu2(y.x, y.y), __vmaxu2(y.z, y.w)); // not below 0: ordered as integers are
    for (int step = 1; step < 4; step *= 2) most = __vmaxu2(most, __shfl_xor_sync(~0u, most, step));
    most = max(most & 0xffff, most >> 16);
    int unit = min(max((int)((most + 0x7f) >> 7) - 127, -SIZE_UNIT_MOST), (int)SIZE_UNIT_MOST);
    int ref = most ? max(min(x.ref + unit, 32767), REF_EMPTY + 1) : (int)REF_EMPTY;
    y = {size_of_product(y.x, unit), size_of_product(y.y, unit), size_of_product(y.z, unit), size_of_product(y.w, unit)};
    uint64_t mass = mass_of_block(y) | (uint64_t)(unit + SIZE_UNIT_MOST) << SIZE_UNIT_AT | (uint64_t)(uint16_t)ref << 48;
    if (threadIdx.x % 4 == 0 && threadIdx.x % 32 / 4 < p.group) store_mass(p, p.size_mass, slot, row, mass);
}

// All heads of a KV head of n_kv rows have been drawn. thread: of n_threads that come here together.
__device__ void discard_stored(const score_params &p, int slot, int n_kv, int thread, int n_threads) {
    if (slot >= p.n_discarded) return;
    size_t block = (size_t)p.group * BLOCK, n_blocks = ceil_div(n_kv, BLOCK), mass = slot * p.group * (size_t)p.max_blocks;
    sl_discard(p.w + slot * p.max_blocks * block, n_blocks * block * sizeof(bf16), thread, n_threads);
    for (int h = 0; h < p.group; h++, mass += p.max_blocks) {
        sl_discard(p.mass + mass, n_blocks * sizeof(uint64_t), thread, n_threads);
        if (p.size_mass) sl_discard(p.size_mass + mass, n_blocks * sizeof(uint64_t), thread, n_threads);
    }
}

__device__ int load_acquired(const int *from) {
    int x;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
}

__device__ void add_released(int *to, int x) {
    asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}

// Units that a warp has stored and not yet announced: lane i has number i. An announcement waits until all stores of the warp
// are seen by everyone, a microsecond or two while memory is busy, so there is one for several units.
struct announcements {
    int slot, amount; // of the lane
    int n;
};
enum { ANNOUNCED_AT_ONCE = 8 };

__device__ void announce(const score_params &p, announcements *a) {
    __syncwarp();
    if (threadIdx.x % 32 < a->n) add_released(p.done + a->slot, a->amount);
    a->n = 0;
}

template <int DIM, typename Form = plain_form> __device__ void consume(const score_params &p, ring r) {
    typedef layout<DIM, Form> at_stage;
    enum { TEAMS = Form::TEAMS, SIZE = Form::SIZE };
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, team = warp / SIZE, top = REF_EMPTY;
    int from = warp % SIZE * BLOCK; // row of the tile
    uint32_t parities = 0;          // a bit for each stage: of its next phase of this team
    announcements stored = {};
    scorer<DIM> a;
    sl_wait_previous(); // the drawers of the layer before may still read the stored weights
    int first_slot = r.head->first_slot;
    if (first_slot >= 0) a.begin((const char *)(p.q + (size_t)first_slot * p.group * DIM), p.group);
    for (r.stage = team;; r.stage += r.stage + TEAMS < r.n_stages ? TEAMS : TEAMS - r.n_stages) {
        barrier_wait(&r.head->full[team][r.stage], parities >> r.stage & 1);
        parities ^= 1u << r.stage;
        __syncwarp(); // for mma: lanes may have left the wait one by one
        tile_info info = r.head->info[r.stage];
        if (info.slot < 0) break;
        const char *k = r.data();
        float s[8];
        uint4 norms = {};
        int row = info.row + from, n_rows = info.n_kv - row;
        if (info.first) {
            a.begin(k + at_stage::Q_AT, p.group);
            top = REF_EMPTY;
        }
        a.scores(k + from * at_stage::ROW, s);
        if (Form::SIZES && !in_newest_page(info)) norms = ((const uint4 *)(k + at_stage::NORMS_AT))[from / 8 + lane % 4];
        leave_stage(&r.head->empty[r.stage]);
        if (Form::SIZES && in_newest_page(info)) {
            const newest_norms *newest = newest_norms_of(p, info.slot);
            while (!load_acquired(p.newest_done + info.slot)) continue;
            __syncwarp();
            if (n_rows > 0) norms = __ldcg((const uint4 *)(newest->norm + row % SL_PAGE) + lane % 4);
        }
        if (n_rows > 0) {
#pragma unroll
            for (int i = 0; i < 8; i++) s[i] = row_of_part(i / 2) < n_rows ? s[i] * p.scale : -INFINITY;
            weighed x = weigh_block(s);
            top = max(top, store_block(p, info.slot, row, x));
            if (Form::SIZES) store_sizes(p, info.slot, row, x, norms);
        }
        if (!info.last) continue;
        if (p.top && lane % 4 == 0 && lane / 4 < p.group) atomicMax(p.top + info.slot * p.group + lane / 4, top - REF_EMPTY);
        if (!p.done) continue;
        if (lane == stored.n) stored.slot = info.slot, stored.amount = info.last;
        if (++stored.n == ANNOUNCED_AT_ONCE) announce(p, &stored);
    }
    announce(p, &stored);
}

} // namespace

#endif
