// attention/santa.cu - the SANTA family on CUDA: exact scores of all keys, S drawn rows of V, in one kernel.
//
// A block has a producer warp that streams K through a ring, consumer warps that turn scores into stored weights (stages.h:
// bf16 beside a power of two for each block of 32 rows, and integer masses), and drawer warps. Drawers take query heads in
// order, wait until all units of the head's KV head are stored, draw, gather the rows of V and write the output, while the
// others go on streaming: only the last heads' draws are not covered.
//
// The draws are draw_samplers.c's: integer thresholds on integer masses, so equal stored weights give equal rows.
#include "attention/decode_ring.h"
#include "engine/philox.h"

#include <cuda_bf16.h>
#include <math.h>

namespace {

enum sampler { INDEPENDENT, STRATIFIED, SYSTEMATIC, TILES_PROPORTIONAL, TILES_UNIFORM };

enum {
    BLOCK = 32,    // rows that share a reference
    CONSUMERS = 4, // warps, a block of rows each
    TILE = 128,    // rows of K in a stage
    DRAWERS = 4,   // warps
    DRAW_THREADS = 32 * DRAWERS,
    THREADS = 32 * (1 + CONSUMERS) + DRAW_THREADS,
    GROUP_MAX = 8, // query heads of a KV head: the columns of an mma
    STAGES_MAX = 6,
    FLIGHT = 2,  // stages on their way
    SPARE = 1,   // and others: few, so that a block of a linear layer fits beside this one
    UNITS = 128, // of a long sequence, over all its KV heads
    CHUNK_ROWS_MIN = 256,
    CHUNK_ROWS_MAX = 4096,
    ENTRIES = 512,   // running masses in shared memory
    TILE_BLOCKS = 8, // of a sampler's tile: 256 rows
    TILES_MAX = 512, // of a context
    COUNTERS = 65536,
    REF_EMPTY = -32768,
};

__device__ int chunk_rows_of(int n_kv, int n_kv_heads) {
    int wanted = max(UNITS / n_kv_heads, 1), rows = ceil_div(max(n_kv, 1), wanted);
    return ceil_div(min(max(rows, (int)CHUNK_ROWS_MIN), (int)CHUNK_ROWS_MAX), TILE) * TILE;
}

struct chunk_rule {
    int n_kv_heads;
    __device__ int operator()(int n_kv) const { return chunk_rows_of(n_kv, n_kv_heads); }
};

struct santa_params {
    const sl_row *rows; // [n_seqs]
    const bf16 *q;      // [n_seqs][n_kv_heads][group][head_dim]
    const bf16 *k, *v;  // [n_pages][n_kv_heads][256][head_dim]
    bf16 *out;          // [n_seqs][n_kv_heads][group][head_dim]
    int n_seqs, n_kv_heads, group, layer;
    int n_stages;
    float scale;    // log2(e) / sqrt(head_dim)
    int max_blocks; // of a sequence: the stride below
    int S;
    sampler kind;
    int *next;      // units handed out beyond each block's first
    int *ticket;    // query heads handed out to drawers
    int *done;      // [n_seqs * n_kv_heads] warps that have stored a unit of it
    int *drawn;     // [n_seqs * n_kv_heads] heads drawn. All four are 0 between launches
    uint64_t *mass; // [n_seqs * n_kv_heads][group][max_blocks] ref << 48 | in-block mass
    bf16 *w;        // [n_seqs * n_kv_heads][max_blocks][group][32]
    sl_attn_cuda_stats *stats;
};

// ---- stored masses ----

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
    int n_kv;        // of the sequence
    int first, last; // tile of its unit
};

struct draw_space {
    uint64_t cum[ENTRIES + 1];     // mass before each entry
    uint64_t remainder[TILES_MAX]; // of largest-remainder budgets
    int first[TILES_MAX + 1];      // draws before each tile
    uint64_t scan[DRAWERS];
    int ints[DRAWERS];
    int ticket;
    int row[DRAW_THREADS];
    float coef[DRAW_THREADS];
};

struct shared_head {
    uint64_t full[STAGES_MAX], empty[STAGES_MAX];
    tile_info info[STAGES_MAX];
    draw_space draw;
};
enum { HEAD_BYTES = (sizeof(shared_head) + 127) / 128 * 128 };

template <int DIM> struct layout {
    enum { ROW = DIM * (int)sizeof(bf16), Q_AT = TILE * ROW };
    static __host__ __device__ int stage(int group) { return ceil_div(Q_AT + group * ROW, 128) * 128; }
    static __host__ __device__ int sums() { return DRAWERS * DIM * (int)sizeof(float); } // of the drawers' warps
};

struct ring {
    shared_head *head;
    char *stages;
    int n_stages, stage_bytes;
    int stage, parity;
    __device__ char *data() const { return stages + stage * stage_bytes; }
    __device__ void advance() {
        if (++stage == n_stages) stage = 0, parity ^= 1;
    }
};

// ---- producer ----

struct producer {
    ring next, landed;
    int n_asked, ticket, has_waited;
    const void *q; // lane 0: what of q had to wait, and where it goes
    uint32_t q_to;
    int q_bytes;
    uint64_t *q_full;
};

#if __CUDA_ARCH__ >= 900
enum { FULL_ARRIVALS = 1 };
__device__ void copy_bulk(uint32_t to, const void *from, int bytes, uint64_t *full) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(shared_address(full))
                 : "memory");
}
#else
enum { FULL_ARRIVALS = 33 };
__device__ void copy_warp(uint32_t to, const void *from, int bytes) {
    for (int at = threadIdx.x % 32 * 16; at < bytes; at += 32 * 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + at), "l"((const char *)from + at) : "memory");
}
#endif

// Waits for the kernel in front, once, and asks for what had to wait: q, and the block's first ticket.
__device__ void wait_previous(const santa_params &p, producer *to) {
    if (to->has_waited) return;
    sl_wait_previous();
    to->has_waited = 1;
    if (threadIdx.x % 32 == 0) {
#if __CUDA_ARCH__ >= 900
        if (to->q_bytes) copy_bulk(to->q_to, to->q, to->q_bytes, to->q_full);
#endif
        to->ticket = atomicAdd(p.next, 1);
    }
}

// Asks for rows [info.row, info.row + TILE) of K, from `rows` on, and with a unit's first tile for q.
template <int DIM> __device__ void produce_tile(const santa_params &p, producer *to, const tile_info &info, const bf16 *rows) {
    if (to->n_asked >= FLIGHT) {
        wait_previous(p, to);
        barrier_wait(&to->landed.head->full[to->landed.stage], to->landed.parity);
        to->landed.advance();
    }
    ring *r = &to->next;
    barrier_wait(&r->head->empty[r->stage], r->parity ^ 1);
    uint64_t *full = &r->head->full[r->stage];
    uint32_t at = shared_address(r->data());
    const bf16 *q = p.q + (size_t)info.slot * p.group * DIM;
    int k_bytes = TILE * layout<DIM>::ROW, q_bytes = info.first ? p.group * layout<DIM>::ROW : 0;
    to->n_asked++;
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % 32 == 0) {
        r->head->info[r->stage] = info;
        barrier_expect(full, k_bytes + q_bytes);
        copy_bulk(at, rows, k_bytes, full);
        if (q_bytes && to->has_waited)
            copy_bulk(at + layout<DIM>::Q_AT, q, q_bytes, full);
        else if (q_bytes)
            to->q = q, to->q_to = at + layout<DIM>::Q_AT, to->q_bytes = q_bytes, to->q_full = full;
    }
    __syncwarp();
#else
    if (threadIdx.x % 32 == 0) r->head->info[r->stage] = info;
    copy_warp(at, rows, k_bytes);
    copy_warp(at + layout<DIM>::Q_AT, q, q_bytes);
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(full)) : "memory");
    if (threadIdx.x % 32 == 0) barrier_arrive(full);
#endif
    r->advance();
}

template <int DIM> __device__ void produce(const santa_params &p, const ring &r) {
    int lane = threadIdx.x % 32, unit = blockIdx.x;
    producer to = {.next = r, .landed = r, .ticket = -1};
#if __CUDA_ARCH__ < 900
    wait_previous(p, &to);
#endif
    chunk_rule rule = {p.n_kv_heads};
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
            tile_info info = {.slot = (w.first_seq + i) * p.n_kv_heads + head,
                              .row = row,
                              .n_kv = n_kv,
                              .first = row == from,
                              .last = row + TILE >= end};
            if (row + TILE >= n_kv) wait_previous(p, &to); // the newest row
            size_t page = (size_t)pages[row / SL_PAGE] * p.n_kv_heads + head;
            produce_tile<DIM>(p, &to, info, p.k + (page * SL_PAGE + row % SL_PAGE) * DIM);
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

// Scores to stored weights: of the block of rows [row, row + 32) of the sequence, of which the first n_rows are there.
__device__ void store_block(const santa_params &p, const tile_info &info, int row, float s[8]) {
    int lane = threadIdx.x % 32, g = lane / 4, lane_q = lane % 4, n_rows = info.n_kv - row;
    int ref[2];
    uint32_t x[4];
#pragma unroll
    for (int i = 0; i < 8; i++) s[i] = 8 * (g / 2) + i / 2 * 2 + g % 2 < n_rows ? s[i] * p.scale : -INFINITY;
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
    bf16 *w = p.w + (((size_t)info.slot * p.max_blocks + block) * p.group + g) * BLOCK + 8 * lane_q;
    __stcg((uint4 *)w, make_uint4(x[0], x[1], x[2], x[3]));
    if (lane_q == 0)
        __stcg((unsigned long long *)p.mass + ((size_t)info.slot * p.group + g) * p.max_blocks + block,
               (unsigned long long)(uint16_t)(g % 2 ? odd : even) << 48 | mass);
}

__device__ void add_released(int *to, int x) {
    asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}

template <int DIM> __device__ void consume(const santa_params &p, ring r) {
    int warp = threadIdx.x / 32;
    scorer<DIM> a;
    sl_wait_previous(); // the drawers of the layer before may still read the stored weights
    for (;; r.advance()) {
        barrier_wait(&r.head->full[r.stage], r.parity);
        tile_info info = r.head->info[r.stage];
        if (info.slot < 0) return;
        const char *k = r.data();
        float s[8];
        if (info.first) a.begin(k + layout<DIM>::Q_AT, p.group);
        a.scores(k + warp * BLOCK * layout<DIM>::ROW, s);
        barrier_arrive(&r.head->empty[r.stage]);
        int row = info.row + warp * BLOCK;
        if (row < info.n_kv) store_block(p, info, row, s);
        if (!info.last) continue;
        __syncwarp();
        if (threadIdx.x % 32 == 0) add_released(p.done + info.slot, 1);
    }
}

// ---- drawers ----

__device__ void drawers_sync() {
    asm volatile("bar.sync 1, %0;" ::"n"(32 * DRAWERS) : "memory");
}

// One query head's stored weights, as its drawer sees them.
struct head_view {
    const uint64_t *mass; // [n_blocks]
    const bf16 *w;        // block b's 32 weights begin at b * stride
    int stride, n_blocks;
    int shift, n_entries; // an entry of running mass holds 2^shift blocks
    int top;
    uint64_t total;
};

// Inclusive scan of x over the drawers' threads, and the sum of all.
__device__ uint64_t scan_threads(draw_space *s, int thread, uint64_t x, uint64_t *all) {
    int lane = thread % 32, warp = thread / 32;
    for (int step = 1; step < 32; step *= 2) {
        uint64_t before = __shfl_up_sync(~0u, x, step);
        if (lane >= step) x += before;
    }
    drawers_sync();
    if (lane == 31) s->scan[warp] = x;
    drawers_sync();
    uint64_t sum = 0;
    for (int i = 0; i < DRAWERS; i++) {
        if (i == warp) x += sum;
        sum += s->scan[i];
    }
    *all = sum;
    return x;
}

__device__ int max_threads(draw_space *s, int thread, int x) {
    x = __reduce_max_sync(~0u, x);
    drawers_sync();
    if (thread % 32 == 0) s->ints[thread / 32] = x;
    drawers_sync();
    for (int i = 0; i < DRAWERS; i++) x = max(x, s->ints[i]);
    return x;
}

// The largest reference, and running masses by entries.
__device__ void load_head(draw_space *s, head_view *h, int thread) {
    int top = REF_EMPTY;
    for (int b = thread; b < h->n_blocks; b += DRAW_THREADS) top = max(top, ref_of(__ldcg(h->mass + b)));
    h->top = max_threads(s, thread, top);
    for (h->shift = 0; h->n_blocks > ENTRIES << h->shift;) h->shift++;
    h->n_entries = ceil_div(h->n_blocks, 1 << h->shift);
    enum { EACH = ENTRIES / DRAW_THREADS };
    uint64_t x[EACH], own = 0;
    for (int i = 0; i < EACH; i++) {
        int first = (thread * EACH + i) << h->shift;
        x[i] = own;
        for (int b = first; b < min(first + (1 << h->shift), h->n_blocks); b++) own += global_mass(__ldcg(h->mass + b), h->top);
    }
    uint64_t before = scan_threads(s, thread, own, &h->total) - own;
    for (int i = 0; i < EACH; i++)
        if (thread * EACH + i <= h->n_entries) s->cum[thread * EACH + i] = before + x[i];
    if (thread == 0) s->cum[h->n_entries] = h->total;
    drawers_sync();
}

__device__ uint64_t tile_begin(const draw_space *s, const head_view &h, int tile) {
    return s->cum[min(tile * TILE_BLOCKS >> h.shift, h.n_entries)];
}

// floor((m mass + floor(u mass / 2^64)) / S): by 32 bits at a time.
__device__ uint64_t threshold(uint64_t mass, int S, uint32_t m, uint64_t u) {
    uint64_t low = m * mass, high = __umul64hi(m, mass), add = __umul64hi(u, mass);
    low += add;
    high += low < add;
    uint64_t rest = high % (unsigned)S << 32 | low >> 32, q = rest / (unsigned)S;
    rest = rest % (unsigned)S << 32 | (uint32_t)low;
    return q << 32 | rest / (unsigned)S;
}

// The row at threshold t < total: the first whose running mass exceeds it.
__device__ int find_row(const draw_space *s, const head_view &h, uint64_t t) {
    int low = 0, high = h.n_entries; // cum[low] <= t < cum[high]
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (s->cum[middle] <= t)
            low = middle;
        else
            high = middle;
    }
    uint64_t running = s->cum[low], packed = 0;
    int b = low << h.shift;
    for (;; b++) {
        packed = __ldcg(h.mass + b);
        uint64_t next = running + global_mass(packed, h.top);
        if (next > t || b + 1 == h.n_blocks) break;
        running = next;
    }
    const uint4 *w = (const uint4 *)(h.w + (size_t)b * h.stride);
    uint4 x[4] = {__ldcg(w), __ldcg(w + 1), __ldcg(w + 2), __ldcg(w + 3)};
    const uint32_t *pairs = (const uint32_t *)x;
    uint64_t in_block = 0;
    int shift = h.top - ref_of(packed), row = -1;
#pragma unroll
    for (int i = 0; i < BLOCK; i++) {
        in_block += unit_mass(i % 2 ? pairs[i / 2] >> 16 : pairs[i / 2] & 0xffff);
        if (row < 0 && running + to_global(in_block, shift) > t) row = i;
    }
    return b * BLOCK + row;
}

// ---- budgets of tiles ----

// W S = q mass + r: q < 2^32, r < mass.
__device__ uint32_t divide(uint64_t W, int S, uint64_t mass, uint64_t *r) {
    uint32_t q = (uint32_t)((double)W / (double)mass * S);
    uint64_t low = W * (uint64_t)S, high = __umul64hi(W, (uint64_t)S);
    uint64_t part = q * mass, part_high = __umul64hi(q, mass);
    int64_t rest_high = (int64_t)(high - part_high - (low < part));
    uint64_t rest = low - part;
    while (rest_high < 0) { // the estimate was one too large
        q--;
        rest += mass;
        rest_high += rest < mass;
    }
    while (rest_high > 0 || rest >= mass) {
        q++;
        rest_high -= rest < mass;
        rest -= mass;
    }
    *r = rest;
    return q;
}

// Draws before each tile to s->first; returns how many there are in all. T tiles, at most TILES_MAX.
__device__ int plan_tiles(draw_space *s, const head_view &h, sampler kind, int S, int thread) {
    int T = ceil_div(h.n_blocks, TILE_BLOCKS), each = max(1, (2 * S + T) / (2 * T));
    uint64_t sum = 0, all, own = 0;
    for (int t = thread; t < T; t += DRAW_THREADS) {
        uint64_t W = tile_begin(s, h, t + 1) - tile_begin(s, h, t);
        int n = W > 0 ? each : 0;
        if (kind == TILES_PROPORTIONAL) n = (int)divide(W, S, h.total, &s->remainder[t]);
        s->first[t] = n;
        sum += n;
    }
    scan_threads(s, thread, sum, &all);
    int left = kind == TILES_PROPORTIONAL ? S - (int)all : 0; // for the largest remainders, the lower tile on ties
    for (int t = thread; left > 0 && t < T; t += DRAW_THREADS) {
        int rank = 0;
        uint64_t mine = s->remainder[t];
        for (int i = 0; i < T; i++) rank += s->remainder[i] > mine || (s->remainder[i] == mine && i < t);
        s->first[t] += rank < left;
    }
    drawers_sync();
    enum { EACH = TILES_MAX / DRAW_THREADS };
    int n[EACH];
    for (int i = 0; i < EACH; i++) {
        int t = thread * EACH + i;
        n[i] = t < T ? s->first[t] : 0;
        own += n[i];
    }
    int before = (int)(scan_threads(s, thread, own, &all) - own);
    for (int i = 0; i < EACH; i++) {
        int t = thread * EACH + i;
        if (t < T) s->first[t] = before;
        before += n[i];
    }
    if (thread == 0) s->first[T] = (int)all;
    drawers_sync();
    return (int)all;
}

struct draw {
    int row;
    float coef; // of its row of V, the normaliser included
};

// Draw number m of n.
__device__ draw draw_row(const draw_space *s, const head_view &h, sampler kind, int S, int m, const sl_rng_id &id) {
    if (kind < TILES_PROPORTIONAL) {
        uint64_t u = sl_rng_u64(&id, kind == SYSTEMATIC ? 0 : m, SL_STREAM_ATTENTION);
        uint64_t t = kind == INDEPENDENT ? threshold(h.total, 1, 0, u) : threshold(h.total, S, m, u);
        return {find_row(s, h, t), 1.0f / S};
    }
    int low = 0, high = ceil_div(h.n_blocks, TILE_BLOCKS); // first[low] <= m < first[high]
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (s->first[middle] <= m)
            low = middle;
        else
            high = middle;
    }
    uint64_t begin = tile_begin(s, h, low), W = tile_begin(s, h, low + 1) - begin,
             u = sl_rng_u64(&id, low, SL_STREAM_ATTENTION);
    int n = s->first[low + 1] - s->first[low];
    int row = find_row(s, h, begin + threshold(W, n, m - s->first[low], u));
    return {row, kind == TILES_PROPORTIONAL ? 1.0f / S : (float)((double)W / ((double)n * (double)h.total))};
}

// Adds the rows in s->row and s->coef [32 warp, 32 warp + 32) of one warp to its sum: neighbours that are equal are read once.
// Returns how many rows were read.
template <int DIM>
__device__ int gather(const santa_params &p, draw_space *s, const int32_t *pages, int kv_head, int thread, float4 *sum) {
    enum { AHEAD = 8, LANES = DIM / 4 };
    int lane = thread % 32, warp = thread / 32 * 32, row = s->row[warp + lane];
    float coef = s->coef[warp + lane];
    bool first = row >= 0 && (lane == 0 || row != s->row[warp + lane - 1]);
    uint32_t heads = __ballot_sync(~0u, first), there = __ballot_sync(~0u, row >= 0);
    uint32_t later = heads & ~(~0u >> (31 - lane)); // heads behind this lane
    int run = (later ? __ffs(later) - 1 : __popc(there)) - lane, n = __popc(heads), at = __popc(heads & ((1u << lane) - 1));
    __syncwarp();
    if (first) {
        size_t page = (size_t)pages[row / SL_PAGE] * p.n_kv_heads + kv_head;
        s->row[warp + at] = (int)page * SL_PAGE + row % SL_PAGE; // of the pool
        s->coef[warp + at] = coef * run;
    }
    __syncwarp();
    for (int i = 0; i < n; i += AHEAD) {
        uint2 x[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            x[j] = i + j < n && lane < LANES ? __ldg((const uint2 *)(p.v + (size_t)s->row[warp + i + j] * DIM) + lane)
                                             : make_uint2(0, 0);
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            float c = i + j < n ? s->coef[warp + i + j] : 0;
            sum->x += c * __uint_as_float(x[j].x << 16), sum->y += c * __uint_as_float(x[j].x & 0xffff0000u);
            sum->z += c * __uint_as_float(x[j].y << 16), sum->w += c * __uint_as_float(x[j].y & 0xffff0000u);
        }
    }
    return n;
}

// One query head: its draws, and their rows' sum to p.out.
template <int DIM>
__device__ void draw_head(const santa_params &p, draw_space *s, float *sums, int slot, int head, int thread) {
    const sl_row row = p.rows[slot / p.n_kv_heads];
    int kv_head = slot % p.n_kv_heads, warp = thread / 32, lane = thread % 32;
    head_view h = {.mass = p.mass + ((size_t)slot * p.group + head) * p.max_blocks,
                   .w = p.w + ((size_t)slot * p.max_blocks * p.group + head) * BLOCK,
                   .stride = p.group * BLOCK,
                   .n_blocks = ceil_div(row.position + 1, BLOCK)};
    sl_rng_id id;
    id.seed = row.seed, id.sequence = row.sequence, id.position = (uint32_t)row.position, id.layer = (uint32_t)p.layer;
    id.head = (uint32_t)(kv_head * p.group + head);
    load_head(s, &h, thread);
    int n = h.total == 0 ? 0 : p.kind < TILES_PROPORTIONAL ? p.S : plan_tiles(s, h, p.kind, p.S, thread), n_read = 0;
    float4 sum = make_float4(0, 0, 0, 0);
    for (int m = 0; m < n; m += DRAW_THREADS) {
        draw d = m + thread < n ? draw_row(s, h, p.kind, p.S, m + thread, id) : draw{-1, 0};
        __syncwarp(); // a warp's 32 places are its own
        s->row[thread] = d.row, s->coef[thread] = d.coef;
        __syncwarp();
        n_read += gather<DIM>(p, s, row.pages, kv_head, thread, &sum);
    }
    if (lane < DIM / 4) *(float4 *)(sums + warp * DIM + lane * 4) = sum;
    drawers_sync();
    if (thread < DIM) {
        float x = 0;
        for (int i = 0; i < DRAWERS; i++) x += sums[i * DIM + thread];
        p.out[((size_t)slot * p.group + head) * DIM + thread] = __bfloat16_as_ushort(__float2bfloat16_rn(x));
    }
    if (p.stats && lane == 0) {
        atomicAdd(&p.stats->v_rows, (unsigned long long)n_read);
        if (warp == 0) atomicAdd(&p.stats->samples, (unsigned long long)n);
    }
    drawers_sync(); // sums are free again
}

__device__ int load_acquired(const int *from) {
    int x;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
}

template <int DIM> __device__ void draw_all(const santa_params &p, draw_space *s, float *sums, int thread) {
    int n_heads = p.n_seqs * p.n_kv_heads * p.group;
    sl_wait_previous();
    for (;;) {
        if (thread == 0) s->ticket = atomicAdd(p.ticket, 1);
        drawers_sync();
        int ticket = s->ticket, slot = ticket / p.group;
        if (ticket >= n_heads) {
            if (thread == 0 && ticket == n_heads + (int)gridDim.x - 1) *p.ticket = 0; // every block takes one too many
            return;
        }
        if (thread == 0) {
            int n_kv = p.rows[slot / p.n_kv_heads].position + 1;
            int wanted = CONSUMERS * ceil_div(n_kv, chunk_rows_of(n_kv, p.n_kv_heads));
            while (load_acquired(p.done + slot) != wanted) __nanosleep(100);
        }
        drawers_sync();
        draw_head<DIM>(p, s, sums, slot, ticket % p.group, thread);
        if (thread == 0 && atomicAdd(p.drawn + slot, 1) == p.group - 1) p.done[slot] = p.drawn[slot] = 0;
    }
}

// out = sum_m v_(row m) / S over S rows drawn from softmax(q K^T / sqrt(DIM)) (flash: tiles weighted by their exact mass).
//
// grid: a block for each multiprocessor, whatever the lengths; all of them are there at once, which the drawers' wait needs.
// precondition: counters are 0, and are 0 again at the end. K below each sequence's newest row, lengths and page tables are
// read while the kernel in front may still run, everything else after it. bytes: K once, 2 + 1/4 a row and query head of stored
// weights (written, and partly read from the L2 cache), drawn rows of V. order of reduction: masses are integers; a head's
// draws, a warp's 32 of each 128 in order, then the warps in order.
template <int DIM> __global__ void __launch_bounds__(THREADS, 1) santa_ring_kernel(const santa_params p) {
    extern __shared__ __align__(128) char memory[];
    shared_head *head = (shared_head *)memory;
    float *sums = (float *)(memory + HEAD_BYTES);
    if (threadIdx.x == 0) {
        for (int i = 0; i < p.n_stages; i++) {
            barrier_init(&head->full[i], FULL_ARRIVALS);
            barrier_init(&head->empty[i], 32 * CONSUMERS);
        }
#if __CUDA_ARCH__ >= 900
        asm volatile("fence.proxy.async;" ::: "memory");
#endif
    }
    __syncthreads();
    sl_start_next();
    ring r = {head, memory + HEAD_BYTES + layout<DIM>::sums(), p.n_stages, layout<DIM>::stage(p.group), 0, 0};
    int warp = threadIdx.x / 32;
    if (warp < CONSUMERS)
        consume<DIM>(p, r);
    else if (warp < CONSUMERS + DRAWERS)
        draw_all<DIM>(p, &head->draw, sums, threadIdx.x - 32 * CONSUMERS);
    else
        produce<DIM>(p, r);
}

// ---- launch ----

template <int DIM> void launch(const sl_attn_cuda_decode_args *a, sampler kind) {
    int group = a->geom->n_heads / a->geom->n_kv_heads, n_slots = a->n_seqs * a->geom->n_kv_heads;
    int device, n_sms, max_blocks = ceil_div(a->max_kv, BLOCK);
    SL_CHECK(group <= GROUP_MAX && 2 + 2 * n_slots <= COUNTERS && ceil_div(max_blocks, TILE_BLOCKS) <= TILES_MAX);
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, device);
    int *counters = (int *)a->ws;
    uint64_t *mass = (uint64_t *)(counters + COUNTERS);
    santa_params p = {.rows = a->rows,
                      .q = a->q,
                      .k = a->k,
                      .v = a->v,
                      .out = a->out,
                      .n_seqs = a->n_seqs,
                      .n_kv_heads = a->geom->n_kv_heads,
                      .group = group,
                      .layer = a->layer,
                      .n_stages = FLIGHT + SPARE,
                      .scale = (float)(1.4426950408889634 / sqrt((double)DIM)),
                      .max_blocks = max_blocks,
                      .S = (int)sl_attn_get(a->spec, "S"),
                      .kind = kind,
                      .next = counters,
                      .ticket = counters + 1,
                      .done = counters + 2,
                      .drawn = counters + 2 + n_slots,
                      .mass = mass,
                      .w = (bf16 *)(mass + (size_t)n_slots * group * max_blocks),
                      .stats = a->stats};
    size_t bytes = HEAD_BYTES + layout<DIM>::sums() + (size_t)p.n_stages * layout<DIM>::stage(group);
    sl_launch(santa_ring_kernel<DIM>, dim3(n_sms), dim3(THREADS), bytes, a->stream, p);
}

void launch_dim(const sl_attn_cuda_decode_args *a, sampler kind) {
    switch (a->geom->head_dim) {
    case 64:
        return launch<64>(a, kind);
    case 80:
        return launch<80>(a, kind);
    case 96:
        return launch<96>(a, kind);
    case 128:
        return launch<128>(a, kind);
    default:
        SL_CHECK(!"head_dim 64, 80, 96 or 128");
    }
}

size_t workspace(const sl_attn_geom *geom, const sl_attn_spec *, int n_seqs, int, int n_kv) {
    size_t blocks = (size_t)n_seqs * geom->n_heads * ceil_div(n_kv, BLOCK);
    return COUNTERS * sizeof(int) + blocks * (sizeof(uint64_t) + BLOCK * sizeof(bf16));
}

// All keys; what is drawn of V the kernel counts.
void account(const sl_attn_geom *geom, const sl_attn_spec *, int n_kv, sl_attn_stats *stats) {
    stats->k_rows += (uint64_t)n_kv * geom->n_kv_heads;
    stats->bytes += (uint64_t)n_kv * geom->n_kv_heads * geom->head_dim * sizeof(bf16);
    stats->features += geom->n_heads;
}

template <sampler KIND> void decode(const sl_attn_cuda_decode_args *args) {
    launch_dim(args, KIND);
}

} // namespace

#define OPS(KIND)                                                                                                              \
    { .workspace = workspace, .decode = decode<KIND>, .needs = NULL, .state = NULL, .account = account, .prefill = NULL }
const sl_attn_cuda_ops sl_santa_cuda_ops = OPS(INDEPENDENT), sl_santa_strat_cuda_ops = OPS(STRATIFIED),
                       sl_santa_sys_cuda_ops = OPS(SYSTEMATIC), sl_santa_prop_cuda_ops = OPS(TILES_PROPORTIONAL),
                       sl_santa_flash_cuda_ops = OPS(TILES_UNIFORM);
