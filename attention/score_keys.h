// attention/score_keys.h - exact scores of all keys as stored weights, on CUDA: the first half of a decode kernel whose second
// half draws from them (draw_rows.h).
//
// A producer warp streams K through a ring, consumer warps turn scores into stored weights (stages.h: bf16 beside a power of
// two for each block of 32 rows, and integer masses). When a warp has stored its part of a unit it adds 1 to the unit's KV
// head.
//
// With SIZES, sizes p |v| are stored beside the weights, in the same form. log2 |v| comes from the page extra, but for the
// newest page of a sequence, which has none yet: there from the drawers, who are idle at first (store_newest_norms).
#ifndef SLEIGH_SCORE_KEYS_H
#define SLEIGH_SCORE_KEYS_H

#include "attention/decode_ring.h"

#include <cuda_bf16.h>
#include <math.h>

namespace {

enum {
    BLOCK = 32,    // rows that share a reference
    CONSUMERS = 4, // warps, a block of rows each
    TILE = 128,    // rows of K in a stage
    GROUP_MAX = 8, // query heads of a KV head: the columns of an mma
    STAGES_MAX = 6,
    FLIGHT = 2,  // stages on their way
    SPARE = 1,   // and others: few, so that a block of a linear layer fits beside this one
    UNITS = 128, // of a long sequence, over all its KV heads
    CHUNK_ROWS_MIN = 256,
    CHUNK_ROWS_MAX = 4096,
    REF_EMPTY = -32768,
    COUNTERS = 65536, // of the workspace, before the masses: `next`, draw_rows.h's ticket, `done`, draw_rows.h's `drawn`
};

__device__ int chunk_rows_of(int n_kv, int n_kv_heads, int tile) { // of whole tiles
    int wanted = max(UNITS / n_kv_heads, 1), rows = ceil_div(max(n_kv, 1), wanted);
    return ceil_div(min(max(rows, (int)CHUNK_ROWS_MIN), (int)CHUNK_ROWS_MAX), tile) * tile;
}

struct chunk_rule {
    int n_kv_heads, tile;
    __device__ int operator()(int n_kv) const { return chunk_rows_of(n_kv, n_kv_heads, tile); }
};

struct score_params {
    const sl_row *rows; // [n_seqs]
    const bf16 *q;      // [n_seqs][n_kv_heads][group][head_dim]
    const bf16 *k;      // [n_pages][n_kv_heads][256][head_dim]
    int n_seqs, n_kv_heads, group;
    int tile; // rows; a unit is whole ones
    int n_stages;
    float scale;    // log2(e) / sqrt(head_dim)
    int max_blocks; // of a sequence, even: the stride below
    int *next;      // units handed out beyond each block's first; 0 between launches
    int *done;      // [n_seqs * n_kv_heads] warps that have stored a unit of it; whoever draws sets it to 0 again
    uint64_t *mass; // [n_seqs * n_kv_heads][group][max_blocks] ref << 48 | in-block mass
    bf16 *w;        // [n_seqs * n_kv_heads][max_blocks][group][32]
    // With SIZES:
    const float *norms = NULL;  // [n_pages][n_kv_heads][256] log2 |v| of all pages but each sequence's newest
    float *newest = NULL;       // [n_seqs * n_kv_heads][256] the same of the newest page
    int *newest_done = NULL;    // [n_seqs * n_kv_heads] 1: it is stored; whoever draws sets it to 0 again
    uint64_t *size_mass = NULL; // as mass
    bf16 *size_w = NULL;        // as w
};

// Even, so that masses can be read two at a time.
static int block_stride(int max_kv) {
    return ceil_div(max_kv, 2 * BLOCK) * 2;
}

static size_t score_workspace(const sl_attn_geom *geom, int n_seqs, int n_kv) {
    size_t blocks = (size_t)n_seqs * geom->n_heads * block_stride(n_kv);
    return COUNTERS * sizeof(int) + blocks * (sizeof(uint64_t) + BLOCK * sizeof(bf16));
}

template <int DIM> static score_params score_params_of(const sl_attn_cuda_decode_args *a) {
    int *counters = (int *)a->ws, max_blocks = block_stride(a->max_kv);
    uint64_t *mass = (uint64_t *)(counters + COUNTERS);
    SL_CHECK(a->geom->n_heads <= GROUP_MAX * a->geom->n_kv_heads && 2 + 2 * a->n_seqs * a->geom->n_kv_heads <= COUNTERS);
    return {.rows = a->rows,
            .q = a->q,
            .k = a->k,
            .n_seqs = a->n_seqs,
            .n_kv_heads = a->geom->n_kv_heads,
            .group = a->geom->n_heads / a->geom->n_kv_heads,
            .tile = TILE,
            .n_stages = FLIGHT + SPARE,
            .scale = (float)(1.4426950408889634 / sqrt((double)DIM)),
            .max_blocks = max_blocks,
            .next = counters,
            .done = counters + 2,
            .mass = mass,
            .w = (bf16 *)(mass + (size_t)a->n_seqs * a->geom->n_heads * max_blocks)};
}

// What `done` of a sequence's KV heads comes to.
__device__ int score_done(const score_params &p, int n_kv) {
    return CONSUMERS * ceil_div(n_kv, chunk_rows_of(n_kv, p.n_kv_heads, p.tile));
}

// ---- stored masses ----

const uint64_t MASS_EMPTY = (uint64_t)REF_EMPTY << 48;

__device__ __forceinline__ int ref_of(uint64_t packed) {
    return (int)((int64_t)packed >> 48);
}

// In-block mass as global mass beside the largest reference.
__device__ __forceinline__ uint64_t to_global(uint64_t in_block, int shift) {
    return shift < 64 ? in_block << 8 >> shift : 0;
}

__device__ __forceinline__ uint64_t global_mass(uint64_t packed, int top) {
    return to_global(packed & 0xffffffffffffull, top - ref_of(packed));
}

__device__ __forceinline__ uint32_t unit_mass(uint32_t w) { // of a bf16 in the low half: floor(w 2^30)
    return (uint32_t)(__uint_as_float(w << 16) * 0x1p30f);
}

// ---- shared memory ----

struct tile_info {
    int slot;        // sequence * n_kv_heads + KV head; -1: no more tiles
    int row;         // of the sequence: the tile's first
    int pool;        // the same row of the pool: of K and V as rows of DIM
    int n_kv;        // of the sequence
    int first, last; // tile of its unit
};

struct score_head {
    uint64_t full[STAGES_MAX], empty[STAGES_MAX];
    tile_info info[STAGES_MAX];
};

template <int DIM, bool SIZES = false> struct layout {
    enum {
        ROW = DIM * (int)sizeof(bf16),
        NORMS_AT = TILE * ROW,
        NORMS = SIZES ? TILE * (int)sizeof(float) : 0,
        Q_AT = NORMS_AT + NORMS
    };
    static __host__ __device__ int stage(int group) { return ceil_div(Q_AT + group * ROW, 128) * 128; }
};

struct ring {
    score_head *head;
    char *stages;
    int n_stages, stage_bytes;
    int stage, parity;
    __device__ char *data() const { return stages + stage * stage_bytes; }
    __device__ void advance() {
        if (++stage == n_stages) stage = 0, parity ^= 1;
    }
};

// Before the block's first __syncthreads.
__device__ void score_begin(const score_params &p, score_head *head) {
    if (threadIdx.x > 0) return;
    for (int i = 0; i < p.n_stages; i++) {
        barrier_init(&head->full[i], FULL_ARRIVALS);
        barrier_init(&head->empty[i], 32 * CONSUMERS);
    }
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async;" ::: "memory");
#endif
}

// ---- producer ----

struct held_copy { // what the kernel in front may still write
    const void *from;
    uint32_t to;
    int bytes;
    uint64_t *full;
};

struct producer {
    ring next, landed;
    int n_asked, ticket, has_waited;
    held_copy q, norms[FLIGHT]; // lane 0: what had to wait
};

// Waits for the kernel in front, once, and asks for what had to wait: q, and the block's first ticket.
__device__ void wait_previous(const score_params &p, producer *to) {
    if (to->has_waited) return;
    sl_wait_previous();
    to->has_waited = 1;
    if (threadIdx.x % 32 == 0) {
#if __CUDA_ARCH__ >= 900
        if (to->q.bytes) copy_bulk(to->q.to, to->q.from, to->q.bytes, to->q.full);
#pragma unroll
        for (int i = 0; i < FLIGHT; i++)
            if (to->norms[i].bytes) copy_bulk(to->norms[i].to, to->norms[i].from, to->norms[i].bytes, to->norms[i].full);
#endif
        to->ticket = atomicAdd(p.next, 1);
    }
}

__device__ bool in_newest_page(const tile_info &info) {
    return info.row / SL_PAGE == (info.n_kv - 1) / SL_PAGE;
}

// Asks for rows [info.row, info.row + TILE) of K, with SIZES for their norms, and with a unit's first tile for q.
template <int DIM, bool SIZES> __device__ void produce_tile(const score_params &p, producer *to, const tile_info &info) {
    typedef layout<DIM, SIZES> at_stage;
    if (to->n_asked >= FLIGHT) {
        wait_previous(p, to);
        barrier_wait(&to->landed.head->full[to->landed.stage], to->landed.parity);
        to->landed.advance();
    }
    ring *r = &to->next;
    barrier_wait(&r->head->empty[r->stage], r->parity ^ 1);
    uint64_t *full = &r->head->full[r->stage];
    uint32_t at = shared_address(r->data());
    const bf16 *k = p.k + (size_t)info.pool * DIM;
    held_copy q = {p.q + (size_t)info.slot * p.group * DIM, at + at_stage::Q_AT, info.first ? p.group * at_stage::ROW : 0,
                   full};
    held_copy norms = {p.norms + info.pool, at + at_stage::NORMS_AT, SIZES && !in_newest_page(info) ? at_stage::NORMS : 0,
                       full};
    int k_bytes = TILE * at_stage::ROW;
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % 32 == 0) {
        r->head->info[r->stage] = info;
        barrier_expect(full, k_bytes + q.bytes + norms.bytes);
        copy_bulk(at, k, k_bytes, full);
        if (to->has_waited) {
            if (q.bytes) copy_bulk(q.to, q.from, q.bytes, full);
            if (norms.bytes) copy_bulk(norms.to, norms.from, norms.bytes, full);
        } else {
            if (q.bytes) to->q = q;
#pragma unroll
            for (int i = 0; SIZES && i < FLIGHT; i++)
                if (i == to->n_asked) to->norms[i] = norms;
        }
    }
    __syncwarp();
#else
    if (threadIdx.x % 32 == 0) r->head->info[r->stage] = info;
    copy_warp(at, k, k_bytes);
    copy_warp(q.to, q.from, q.bytes);
    copy_warp(norms.to, norms.from, norms.bytes);
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(full)) : "memory");
    if (threadIdx.x % 32 == 0) barrier_arrive(full);
#endif
    to->n_asked++;
    r->advance();
}

template <int DIM, bool SIZES = false> __device__ void produce(const score_params &p, const ring &r) {
    int lane = threadIdx.x % 32, unit = blockIdx.x;
    producer to = {.next = r, .landed = r, .ticket = -1};
#if __CUDA_ARCH__ < 900
    wait_previous(p, &to);
#endif
    chunk_rule rule = {p.n_kv_heads, p.tile};
    window w;
    window_load(&w, p.rows, p.n_seqs, p.n_kv_heads, rule, 0, 0);
    bool fresh = true; // the ticket behind the first unit is taken by wait_previous
    for (int i; (i = window_find(&w, p.rows, p.n_seqs, p.n_kv_heads, rule, unit)) >= 0;) {
        if (!fresh && lane == 0) to.ticket = atomicAdd(p.next, 1);
        fresh = false;
        int before = __shfl_sync(~0u, w.end, max(i - 1, 0)), local = unit - (i ? before : w.first_unit);
        int n_kv = __shfl_sync(~0u, w.n_kv, i), rows = __shfl_sync(~0u, w.chunk_rows, i);
        int head = local % p.n_kv_heads, from = local / p.n_kv_heads * rows, end = min(from + rows, n_kv);
        const int32_t *pages = (const int32_t *)__shfl_sync(~0u, (unsigned long long)w.pages, i);
        for (int row = from; row < end; row += TILE) {
            int page = pages[row / SL_PAGE] * p.n_kv_heads + head;
            tile_info info = {.slot = (w.first_seq + i) * p.n_kv_heads + head,
                              .row = row,
                              .pool = page * SL_PAGE + row % SL_PAGE,
                              .n_kv = n_kv,
                              .first = row == from,
                              .last = row + TILE >= end};
            if (row + TILE >= n_kv) wait_previous(p, &to); // the newest row
            produce_tile<DIM, SIZES>(p, &to, info);
        }
        wait_previous(p, &to);
        unit = gridDim.x + __shfl_sync(~0u, to.ticket, 0);
    }
    int n_units = __shfl_sync(~0u, w.end, 31);
    if (lane == 0 && to.ticket == n_units - 1) *p.next = 0; // a ticket is taken per unit, so this was the last of all
    ring *end = &to.next;
    barrier_wait(&end->head->empty[end->stage], end->parity ^ 1);
    if (lane == 0) end->head->info[end->stage].slot = -1;
#if __CUDA_ARCH__ >= 900
    __syncwarp();
    if (lane == 0) barrier_arrive(&end->head->full[end->stage]);
#else
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(&end->head->full[end->stage]))
                 : "memory");
    if (lane == 0) barrier_arrive(&end->head->full[end->stage]);
#endif
}

// ---- consumers ----

__device__ void mma(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ uint32_t transpose(uint32_t x) { // [row g][heads 2q, 2q + 1] to [head g][rows 2q, 2q + 1]
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

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
                mma(c, a.x, b.x, a.y, b.y, q[2 * i][0], q[2 * i][1]);
                mma(c, a.z, b.z, a.w, b.w, q[2 * i + 1][0], q[2 * i + 1][1]);
            }
            if (K_STEPS % 2) {
                uint2 a = *(const uint2 *)(a_row + K_LOADS * 64 + lane_q * 8),
                      b = *(const uint2 *)(b_row + K_LOADS * 64 + lane_q * 8);
                mma(c, a.x, b.x, a.y, b.y, q[K_STEPS - 1][0], q[K_STEPS - 1][1]);
            }
        }
    }
};

// Row (of a block) of the lane's part t.
__device__ int row_of_part(int t) {
    int g = threadIdx.x % 32 / 4;
    return 8 * (g / 2) + 2 * t + g % 2;
}

// Scores in log2 units to stored weights; s: of rows [row, row + 32) of a sequence, -inf past its end.
__device__ void store_block(const score_params &p, int slot, int row, float s[8], bf16 *weights, uint64_t *masses) {
    int lane = threadIdx.x % 32, g = lane / 4, lane_q = lane % 4, ref[2];
    uint32_t x[4];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float most = fmaxf(fmaxf(s[h], s[2 + h]), fmaxf(s[4 + h], s[6 + h]));
        for (int step = 4; step < 32; step *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
        most = ceilf(most);
        ref[h] = most > REF_EMPTY ? (int)fminf(most, 32767.0f) : (int)REF_EMPTY;
#pragma unroll
        for (int t = 0; t < 4; t++) s[2 * t + h] = most > REF_EMPTY ? exp2f(fminf(s[2 * t + h] - ref[h], 0.0f)) : 0;
    }
#pragma unroll
    for (int t = 0; t < 4; t++) {
        __nv_bfloat162 pair = __floats2bfloat162_rn(s[2 * t], s[2 * t + 1]);
        x[t] = transpose(*(uint32_t *)&pair);
    }
    uint64_t mass = 0;
#pragma unroll
    for (int t = 0; t < 4; t++) mass += (uint64_t)unit_mass(x[t] & 0xffff) + unit_mass(x[t] >> 16);
    mass += __shfl_xor_sync(~0u, mass, 1);
    mass += __shfl_xor_sync(~0u, mass, 2);
    int even = __shfl_sync(~0u, ref[0], g / 2), odd = __shfl_sync(~0u, ref[1], g / 2);
    if (g >= p.group) return;
    size_t block = row / BLOCK;
    bf16 *w = weights + (((size_t)slot * p.max_blocks + block) * p.group + g) * BLOCK + 8 * lane_q;
    __stcg((uint4 *)w, make_uint4(x[0], x[1], x[2], x[3]));
    if (lane_q == 0)
        __stcg((unsigned long long *)masses + ((size_t)slot * p.group + g) * p.max_blocks + block,
               (unsigned long long)(uint16_t)(g % 2 ? odd : even) << 48 | mass);
}

__device__ int load_acquired(const int *from) {
    int x;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
}

__device__ void add_released(int *to, int x) {
    asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}

template <int DIM, bool SIZES = false> __device__ void consume(const score_params &p, ring r) {
    typedef layout<DIM, SIZES> at_stage;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    scorer<DIM> a;
    sl_wait_previous(); // the drawers of the layer before may still read the stored weights
    for (;; r.advance()) {
        barrier_wait(&r.head->full[r.stage], r.parity);
        tile_info info = r.head->info[r.stage];
        if (info.slot < 0) return;
        const char *k = r.data();
        float s[8], norm = 0;
        int row = info.row + warp * BLOCK, n_rows = info.n_kv - row;
        if (info.first) a.begin(k + at_stage::Q_AT, p.group);
        a.scores(k + warp * BLOCK * at_stage::ROW, s);
        if (SIZES && !in_newest_page(info)) norm = ((const float *)(k + at_stage::NORMS_AT))[warp * BLOCK + lane];
        barrier_arrive(&r.head->empty[r.stage]);
        if (SIZES && in_newest_page(info)) {
            while (load_acquired(p.newest_done + info.slot) == 0) continue;
            if (lane < n_rows) norm = __ldcg(p.newest + (size_t)info.slot * SL_PAGE + row % SL_PAGE + lane);
        }
        if (n_rows > 0) {
            float size[8];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                s[i] = row_of_part(i / 2) < n_rows ? s[i] * p.scale : -INFINITY;
                if (SIZES) size[i] = s[i] + __shfl_sync(~0u, norm, row_of_part(i / 2));
            }
            store_block(p, info.slot, row, s, p.w, p.mass);
            if (SIZES) store_block(p, info.slot, row, size, p.size_w, p.size_mass);
        }
        if (!info.last) continue;
        __syncwarp();
        if (lane == 0) add_released(p.done + info.slot, 1);
    }
}

} // namespace

#endif
