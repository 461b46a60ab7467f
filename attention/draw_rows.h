// attention/draw_rows.h - drawing rows from stored weights and summing their rows of V, on CUDA: what the drawer warps of
// decode kernels do.
//
// Drawers take query heads in order, wait until all units of the head's KV head are stored (score_keys.h), draw, gather the
// rows of V and write the output, while others go on scoring: only the last heads' draws are not covered.
#ifndef SLEIGH_DRAW_ROWS_H
#define SLEIGH_DRAW_ROWS_H

#include "attention/score_keys.h"
#include "engine/philox.h"

namespace {

enum {
    DRAWERS = 4, // warps
    DRAW_THREADS = 32 * DRAWERS,
    ENTRIES = 512,   // running masses in shared memory
    TILE_BLOCKS = 8, // of a sampler's tile: 256 rows
    TILES_MAX = 512, // of a context
    DIM_MAX = 128,
};

struct draw_params {
    const bf16 *v; // [n_pages][n_kv_heads][256][head_dim]
    bf16 *out;     // [n_seqs][n_kv_heads][group][head_dim]
    int layer;
    int S;
    int *ticket; // query heads handed out to drawers
    int *drawn;  // [n_seqs * n_kv_heads] heads drawn. Both are 0 between launches
    sl_attn_cuda_stats *stats;
};

static draw_params draw_params_of(const sl_attn_cuda_decode_args *a) {
    int *counters = (int *)a->ws, n_slots = a->n_seqs * a->geom->n_kv_heads;
    return {.v = a->v,
            .out = a->out,
            .layer = a->layer,
            .S = (int)sl_attn_get(a->spec, "S"),
            .ticket = counters + 1,
            .drawn = counters + 2 + n_slots,
            .stats = a->stats};
}

// Whose draws these are; head: of the model.
__device__ sl_rng_id rng_of(const draw_params &p, const sl_row &row, int head) {
    sl_rng_id id;
    id.seed = row.seed, id.sequence = row.sequence, id.position = (uint32_t)row.position;
    id.layer = (uint32_t)p.layer, id.head = (uint32_t)head;
    return id;
}

struct draw_space {
    uint64_t cum[ENTRIES + 1];     // mass before each entry
    uint64_t remainder[TILES_MAX]; // of largest-remainder budgets
    int first[TILES_MAX + 1];      // draws before each tile
    uint64_t scan[DRAWERS];
    int ints[DRAWERS];
    int ticket;
    int row[DRAW_THREADS];
    float coef[DRAW_THREADS];
    float sums[DRAWERS][DIM_MAX]; // of the drawers' warps
};

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

// Query head `head` of the group of a sequence's KV head, of n_kv rows.
__device__ head_view view_of(const score_params &p, int slot, int head, int n_kv) {
    return {.mass = p.mass + ((size_t)slot * p.group + head) * p.max_blocks,
            .w = p.w + ((size_t)slot * p.max_blocks * p.group + head) * BLOCK,
            .stride = p.group * BLOCK,
            .n_blocks = ceil_div(n_kv, BLOCK)};
}

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

// Adds the rows in s->row and s->coef [32 warp, 32 warp + 32) of one warp to its sum: neighbours that are equal are read once.
// Returns how many rows were read.
template <int DIM>
__device__ int gather(const bf16 *v, int n_kv_heads, draw_space *s, const int32_t *pages, int kv_head, int thread,
                      float4 *sum) {
    enum { AHEAD = 8, LANES = DIM / 4 };
    int lane = thread % 32, warp = thread / 32 * 32, row = s->row[warp + lane];
    float coef = s->coef[warp + lane];
    bool first = row >= 0 && (lane == 0 || row != s->row[warp + lane - 1]);
    uint32_t heads = __ballot_sync(~0u, first), there = __ballot_sync(~0u, row >= 0);
    uint32_t later = heads & ~(~0u >> (31 - lane)); // heads behind this lane
    int run = (later ? __ffs(later) - 1 : __popc(there)) - lane, n = __popc(heads), at = __popc(heads & ((1u << lane) - 1));
    __syncwarp();
    if (first) {
        size_t page = (size_t)pages[row / SL_PAGE] * n_kv_heads + kv_head;
        s->row[warp + at] = (int)page * SL_PAGE + row % SL_PAGE; // of the pool
        s->coef[warp + at] = coef * run;
    }
    __syncwarp();
    for (int i = 0; i < n; i += AHEAD) {
        uint2 x[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            x[j] = i + j < n && lane < LANES ? __ldg((const uint2 *)(v + (size_t)s->row[warp + i + j] * DIM) + lane)
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
// The sum over the warps' sums, in their order, to out [DIM].
template <int DIM> __device__ void write_head(draw_space *s, const float4 &sum, bf16 *out, int thread) {
    int lane = thread % 32;
    if (lane < DIM / 4) *(float4 *)(s->sums[thread / 32] + lane * 4) = sum;
    drawers_sync();
    if (thread < DIM) {
        float x = 0;
        for (int i = 0; i < DRAWERS; i++) x += s->sums[i][thread];
        out[thread] = __bfloat16_as_ushort(__float2bfloat16_rn(x));
    }
    drawers_sync(); // sums are free again
}

__device__ int load_acquired(const int *from) {
    int x;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
}

// Head by head: waits for its stored weights, then draw_head(slot, head of the group).
template <typename DrawHead>
__device__ void draw_all(const score_params &p, const draw_params &d, draw_space *s, int thread, DrawHead draw_head) {
    int n_heads = p.n_seqs * p.n_kv_heads * p.group;
    sl_wait_previous();
    for (;;) {
        if (thread == 0) s->ticket = atomicAdd(d.ticket, 1);
        drawers_sync();
        int ticket = s->ticket, slot = ticket / p.group;
        if (ticket >= n_heads) {
            if (thread == 0 && ticket == n_heads + (int)gridDim.x - 1) *d.ticket = 0; // every block takes one too many
            return;
        }
        if (thread == 0) {
            int wanted = score_done(p, p.rows[slot / p.n_kv_heads].position + 1);
            while (load_acquired(p.done + slot) != wanted) __nanosleep(100);
        }
        drawers_sync();
        draw_head(slot, ticket % p.group);
        if (thread == 0 && atomicAdd(d.drawn + slot, 1) == p.group - 1) p.done[slot] = d.drawn[slot] = 0;
    }
}

} // namespace

#endif
