// attention/santa_is.cu - santa-is on CUDA: quantised keys propose, S rows are drawn and corrected with their exact keys, in
// one kernel.
//
// A block has a producer warp and consumer warps that turn quantised pages into stored weights (score_quantised.h), and drawer
// warps. These take query heads in order, wait until the head's KV head is scored, draw by take-all + PPS (take_all.h: the
// CPU's rows, given the same stored weights), read the drawn rows of K and V, and sum.
//
// Owns: the sums. They differ from combine.c's in this: rows of the newest page keep the weights that were stored, exact scores
// rounded to bf16 as dense attention's are.
#include "attention/head_dim.h"
#include "attention/score_quantised.h"
#include "attention/take_all.h"

extern "C" {
#include "attention/stages.h"
}

namespace {

enum {
    THREADS = 32 * (1 + CONSUMERS) + DRAW_THREADS,
    LISTS_MAX = 8, // of a head's draws
    NEWEST = 2,    // lists of the newest page: 256 rows
    DEPTH = 4,     // turns of 128 rows that are found, and asked for, before the first of them is summed
};

struct is_params {
    quantised_params keys;
    draw_params draw; // parts: blocks that share a head
    int n_lists;      // of drawn rows: list i has every n_lists-th 128 of them
};

struct shared_head {
    quantised_head keys;
    draw_space draw;
    take_space take;
    float2 sums[DRAWERS];           // largest score and sum of a warp's weights
    uint4 q[DIM_MAX / 8];           // of the head
    int place[DEPTH][DRAW_THREADS]; // rows of the pool that were drawn, -1: none; each thread reads its own
    float inv_pi[DEPTH][DRAW_THREADS];
};
enum { HEAD_BYTES = (sizeof(shared_head) + 127) / 128 * 128 };

// ---- sums of weight * v beside a power of two ----

struct weighted {
    float top, total, x; // weights are 2^-top of what they were; x: a column
};

// Always by the same instructions: equal lists give equal bits, whichever blocks they were summed by.
__device__ void add_list(weighted *to, const weighted &list) {
    if (list.top == -INFINITY) return;
    float top = fmaxf(to->top, list.top), a = exp2f(to->top - top), b = exp2f(list.top - top);
    to->total = fmaf(to->total, a, __fmul_rn(list.total, b));
    to->x = fmaf(to->x, a, __fmul_rn(list.x, b));
    to->top = top;
}

// What a warp has summed of its list.
struct warp_sum {
    float top, total;
    row_sum sum;
};

// The list of all warps, thread's column of it.
template <int DIM> __device__ weighted join_warps(shared_head *s, warp_sum *own, int thread) {
    if (thread % 32 == 0) s->sums[thread / 32] = make_float2(own->top, own->total);
    drawers_sync();
    weighted list = {.top = -INFINITY, .total = 0, .x = 0};
    for (int i = 0; i < DRAWERS; i++) list.top = fmaxf(list.top, s->sums[i].x);
    float factor = own->top == -INFINITY ? 0 : exp2f(own->top - list.top);
#pragma unroll
    for (int k = 0; k < 8; k++) own->sum.x[k] *= factor;
    for (int i = 0; i < DRAWERS; i++)
        if (s->sums[i].x != -INFINITY) list.total += s->sums[i].y * exp2f(s->sums[i].x - list.top);
    list.x = sum_rows<DIM>(&s->draw, own->sum, thread);
    return list;
}

// ---- rows of a warp: places [32 warp, 32 warp + 32) of s->row and s->coef ----

__device__ void prefetch(const bf16 *row, int bytes) {
    for (int at = 0; at < bytes; at += 128) asm volatile("prefetch.global.L2 [%0];" ::"l"((const char *)row + at));
}

// Neighbours that are equal become one row. Returns how many are left.
__device__ int merge_equal(draw_space *s, int row, float coef, int thread) {
    int lane = thread % 32, warp = thread / 32 * 32, before = __shfl_up_sync(~0u, row, 1);
    bool first = row >= 0 && (lane == 0 || row != before);
    uint32_t heads = __ballot_sync(~0u, first), there = __ballot_sync(~0u, row >= 0);
    uint32_t later = heads & ~(~0u >> (31 - lane)); // heads behind this lane
    int run = (later ? __ffs(later) - 1 : __popc(there)) - lane, at = __popc(heads & ((1u << lane) - 1));
    __syncwarp(); // the places were read
    if (first) s->row[warp + at] = row, s->coef[warp + at] = coef * run;
    __syncwarp();
    return __popc(heads);
}

// Exact scores of the warp's n rows, lane i's that of row i, times p.score.scale; The query is the
// products' column 0.
template <int DIM> __device__ float score_rows(const is_params &p, const draw_space *s, const uint4 *q, int n, int thread) {
    enum { LOADS = scorer<DIM>::K_LOADS, ODD = scorer<DIM>::K_STEPS % 2 };
    int lane = thread % 32, warp = thread / 32 * 32, lane_q = lane % 4;
    float c[2][4] = {}, score = 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int place = half * 16 + lane / 4;
        const char *k = (const char *)p.keys.score.k + lane_q * 16;
        const char *upper = k + (size_t)s->row[warp + min(place, n - 1)] * layout<DIM>::ROW;
        const char *lower = k + (size_t)s->row[warp + min(place + 8, n - 1)] * layout<DIM>::ROW;
        uint4 a[LOADS], b[LOADS];
        uint2 a_rest, b_rest;
#pragma unroll
        for (int j = 0; j < LOADS; j++)
            a[j] = __ldg((const uint4 *)(upper + j * 64)), b[j] = __ldg((const uint4 *)(lower + j * 64));
        if (ODD)
            a_rest = __ldg((const uint2 *)(upper + LOADS * 64 - lane_q * 8)),
            b_rest = __ldg((const uint2 *)(lower + LOADS * 64 - lane_q * 8));
#pragma unroll
        for (int j = 0; j < LOADS; j++) {
            uint4 y = lane < 4 ? q[j * 4 + lane] : make_uint4(0, 0, 0, 0);
            mma(c[half], a[j].x, b[j].x, a[j].y, b[j].y, y.x, y.y);
            mma(c[half], a[j].z, b[j].z, a[j].w, b[j].w, y.z, y.w);
        }
        if (ODD) {
            uint2 y = lane < 4 ? ((const uint2 *)q)[LOADS * 8 + lane] : make_uint2(0, 0);
            mma(c[half], a_rest.x, b_rest.x, a_rest.y, b_rest.y, y.x, y.y);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) { // place 8 i + g is in lane 4 g
        float x = __shfl_sync(~0u, c[i / 2][i % 2 * 2], lane % 8 * 4);
        if (lane / 8 == i) score = x;
    }
    return score * p.keys.score.scale;
}

// Adds n rows of V times their s->coef, in order.
template <int DIM> __device__ void add_rows(const bf16 *v, const draw_space *s, int n, int thread, row_sum *sum) {
    enum { LANES = DIM / 8, ROWS = 32 / LANES, PASSES = (32 + ROWS - 1) / ROWS };
    int lane = thread % 32, warp = thread / 32 * 32, own = lane / LANES; // < ROWS, but for lanes past the last whole row
    uint4 x[PASSES];
#pragma unroll
    for (int j = 0; j < PASSES; j++) {
        int i = j * ROWS + own;
        if (own < ROWS && i < n) x[j] = __ldg((const uint4 *)(v + (size_t)s->row[warp + i] * DIM) + lane % LANES);
    }
#pragma unroll
    for (int j = 0; j < PASSES; j++) {
        int i = j * ROWS + own;
        if (own >= ROWS || i >= n) continue;
        float c = s->coef[warp + i];
        const uint32_t *pairs = (const uint32_t *)&x[j];
#pragma unroll
        for (int k = 0; k < 8; k++) sum->x[k] += c * __uint_as_float(k % 2 ? pairs[k / 2] & 0xffff0000u : pairs[k / 2] << 16);
    }
    __syncwarp();
}

__device__ float sum_floats(float x) {
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    return x;
}

// Adds a warp's drawn rows: lane's row of the pool (-1: none; those at the end) with 1 / pi. Returns how many were read.
template <int DIM>
__device__ int add_drawn(const is_params &p, draw_space *s, const uint4 *q, int row, float inv_pi, int thread, warp_sum *to) {
    int lane = thread % 32, n = merge_equal(s, row, inv_pi, thread);
    if (n == 0) return 0;
    float score = score_rows<DIM>(p, s, q, n, thread), top = lane < n ? score : -INFINITY;
    for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
    top = fmaxf(top, to->top);
    float factor = exp2f(to->top - top), weight = lane < n ? s->coef[thread] * exp2f(score - top) : 0;
    to->top = top;
    to->total = fmaf(to->total, factor, sum_floats(weight));
#pragma unroll
    for (int k = 0; k < 8; k++) to->sum.x[k] *= factor;
    s->coef[thread] = weight;
    __syncwarp();
    add_rows<DIM>(p.draw.v, s, n, thread, &to->sum);
    return n;
}

// Adds a block of the newest page's rows with their stored weights. h: of the whole sequence
template <int DIM>
__device__ void add_newest(const is_params &p, draw_space *s, const head_view &h, int b, int n_kv, int thread, warp_sum *to) {
    int lane = thread % 32, row = b * BLOCK + lane, ref;
    if (b >= h.n_blocks || (ref = ref_of(__ldcg(h.mass + b))) == REF_EMPTY) return;
    float weight = __uint_as_float((uint32_t)__ldcg((const unsigned short *)h.w + (size_t)b * h.stride + lane) << 16);
    s->row[thread] = (__ldg(h.pages + b * BLOCK / SL_PAGE) * h.n_kv_heads + h.kv_head) * SL_PAGE + row % SL_PAGE;
    s->coef[thread] = weight;
    __syncwarp();
    to->top = (float)ref;
    to->total = sum_floats(weight); // 0 past the last row
    add_rows<DIM>(p.draw.v, s, min(n_kv - b * BLOCK, (int)BLOCK), thread, &to->sum);
}

// ---- a query head ----

// Which rows are heavy.
__device__ void solve(const is_params &p, shared_head *s, int slot, int head, int thread) {
    if (thread / 32 == 0) { // the newest page's largest reference goes into the unit of sizes
        const sl_row row = p.keys.score.rows[slot / p.keys.score.n_kv_heads];
        head_view h = view_of(p.keys.score, row, slot, head);
        int n_built = row.position / SL_PAGE * SL_PAGE, b = n_built / BLOCK + thread, top = REF_EMPTY;
        if (b < h.n_blocks) top = ref_of(__ldcg(h.mass + b));
        top = __reduce_max_sync(~0u, top);
        // 0.01: every row keeps a chance, however wrong its proposal
        if (thread == 0) take_all_of(&s->take, h.mass, h.w, h.stride, n_built, 0.01, top);
    }
    drawers_sync();
    take_all_solve(&s->draw, &s->take, p.draw.S, thread);
}

// Turns of 128 rows: heavy rows that were not listed, four blocks a turn, then listed ones and draws.
__device__ int heavy_turns(const take_space &s) {
    return s.drawn.listed ? 0 : ceil_div(s.sizes.n_blocks, DRAWERS);
}
__device__ int turns_of(const take_space &s) {
    return heavy_turns(s) + ceil_div((s.drawn.listed ? s.drawn.n_heavy : 0) + s.drawn.k, DRAW_THREADS);
}

// Thread's row of a turn, -1: it has none, and to *inv_pi its 1 / pi. A warp's rows come first and ascend, heavy ones before
// light ones; neighbours may be equal.
__device__ int row_of_turn(const shared_head *s, const sl_rng_id &id, int turn, int thread, float *inv_pi) {
    const take_all &r = s->take.drawn;
    int n_listed = r.listed ? r.n_heavy : 0, n_heavy = heavy_turns(s->take), m = (turn - n_heavy) * DRAW_THREADS + thread;
    *inv_pi = 1;
    if (turn < n_heavy) return heavy_row(s->take.sizes, r.cut, turn * DRAWERS + thread / 32);
    if (m < n_listed) return (int)(s->take.heavy.row[m] >> SIZE_BITS);
    if (m >= n_listed + r.k) return -1;
    uint64_t t = threshold(r.light, r.k, m - n_listed, sl_rng_u64(&id, m - n_listed, SL_STREAM_ATTENTION));
    light_row x = r.listed ? find_listed(&s->draw, &s->take, t) : find_unlisted(&s->draw, s->take.sizes, r.cut, t);
    *inv_pi = (float)(r.kappa / (double)x.size);
    return x.row;
}

// The last block to come of those that share a head adds their lists in order.
template <int DIM>
__device__ bool gather_lists(const is_params &p, shared_head *s, int index, int n_lists, int thread, weighted *all) {
    drawers_sync(); // all have stored theirs
    if (thread == 0) {
        s->draw.is_last = add_ordered(p.draw.merged + index, 1) == p.draw.parts - 1;
        if (s->draw.is_last) p.draw.merged[index] = 0;
    }
    drawers_sync();
    if (!s->draw.is_last) return false;
    const float *lists = p.draw.partial + (size_t)index * n_lists * (DIM + 2);
    for (int i = 0; i < n_lists; i++, lists += DIM + 2)
        add_list(all, {__ldcg(lists + DIM), __ldcg(lists + DIM + 1), thread < DIM ? __ldcg(lists + thread) : 0});
    return true;
}

// Row j of a KV head, of the pool.
__device__ int pool_row(const is_params &p, int slot, int j) {
    const int32_t *pages = p.keys.score.rows[slot / p.keys.score.n_kv_heads].pages;
    return (__ldg(pages + j / SL_PAGE) * p.keys.score.n_kv_heads + slot % p.keys.score.n_kv_heads) * SL_PAGE + j % SL_PAGE;
}

// A list's sum: to the head's, or where others sum too to memory.
template <int DIM>
__device__ void finish_list(const is_params &p, int index, int list, const weighted &sum, int thread, weighted *all) {
    if (p.draw.parts == 1) {
        add_list(all, sum);
        return;
    }
    float *to = p.draw.partial + ((size_t)index * (p.n_lists + NEWEST) + list) * (DIM + 2);
    if (thread < DIM) __stcg(to + thread, sum.x);
    if (thread == 0) __stcg(to + DIM, sum.top), __stcg(to + DIM + 1, sum.total);
}

// Where a block is in its lists: turns list, list + n_lists, ... of list after list.
struct cursor {
    int list, turn;
    __device__ bool ended(int n_lists, int n_turns) const { return list >= n_lists || turn >= n_turns; }
    __device__ void advance(int n_lists, int parts, int n_turns) {
        turn += n_lists;
        if (turn >= n_turns) list += parts, turn = list;
    }
};

// Every parts-th list of one query head's drawn rows from `part` on. Returns rows read, and in *n_drawn draws, of this warp.
template <int DIM>
__device__ int sum_drawn(const is_params &p, shared_head *s, int slot, int head, int part, int thread, weighted *all,
                         int *n_drawn) {
    const sl_row row = p.keys.score.rows[slot / p.keys.score.n_kv_heads];
    int n_heads = p.keys.score.n_kv_heads, index = slot * p.keys.score.group + head,
        n_turns = row.position >= SL_PAGE ? turns_of(s->take) : 0, n_read = 0;
    sl_rng_id id = rng_of(p.draw, row, slot % n_heads * p.keys.score.group + head);
    const weighted none = {.top = -INFINITY, .total = 0, .x = 0};
    for (int list = part; list < p.n_lists; list += p.draw.parts)
        if (list >= n_turns) finish_list<DIM>(p, index, list, none, thread, all);
    warp_sum own = {.top = -INFINITY, .total = 0, .sum = {}};
    cursor find = {part, part}, sum = find;
    while (!sum.ended(p.n_lists, n_turns)) {
        int n = 0;
        for (; n < DEPTH && !find.ended(p.n_lists, n_turns); n++, find.advance(p.n_lists, p.draw.parts, n_turns)) {
            int j = row_of_turn(s, id, find.turn, thread, &s->inv_pi[n][thread]), pool = -1;
            if (j >= 0) {
                pool = (__ldg(row.pages + j / SL_PAGE) * n_heads + slot % n_heads) * SL_PAGE + j % SL_PAGE;
                prefetch(p.keys.score.k + (size_t)pool * DIM, layout<DIM>::ROW);
                prefetch(p.draw.v + (size_t)pool * DIM, layout<DIM>::ROW);
            }
            s->place[n][thread] = pool;
            *n_drawn += __popc(__ballot_sync(~0u, j >= 0));
        }
        for (int i = 0; i < n; i++) {
            n_read += add_drawn<DIM>(p, &s->draw, s->q, s->place[i][thread], s->inv_pi[i][thread], thread, &own);
            int list = sum.list;
            sum.advance(p.n_lists, p.draw.parts, n_turns);
            if (sum.list == list) continue;
            finish_list<DIM>(p, index, list, join_warps<DIM>(s, &own, thread), thread, all);
            own = {.top = -INFINITY, .total = 0, .sum = {}};
        }
    }
    return n_read;
}

// Every parts-th list of one query head from `part` on.
template <int DIM, int BITS>
__device__ void draw_head(const is_params &p, shared_head *s, int slot, int head, int part, int thread) {
    const score_params &score = p.keys.score;
    int n_kv = score.rows[slot / score.n_kv_heads].position + 1, index = slot * score.group + head;
    if (thread < DIM / 8) s->q[thread] = __ldg((const uint4 *)(score.q + (size_t)index * DIM) + thread);
    for (int i = part; i < p.n_lists + NEWEST; i += p.draw.parts) {
        int j = built_pages(n_kv) * SL_PAGE + (i - p.n_lists) * DRAW_THREADS + thread;
        if (i >= p.n_lists && j < n_kv) prefetch(p.draw.v + (size_t)pool_row(p, slot, j) * DIM, layout<DIM>::ROW);
    }
    if (thread == 0)
        while (load_acquired(score.done + slot) != pages_done<DIM, BITS>(n_kv)) __nanosleep(20);
    drawers_sync();
    weighted all = {.top = -INFINITY, .total = 0, .x = 0};
    int n_read = 0, n_drawn = 0;
    if (part < p.n_lists) {
        if (n_kv > SL_PAGE) solve(p, s, slot, head, thread);
        n_read = sum_drawn<DIM>(p, s, slot, head, part, thread, &all, &n_drawn);
    }
    const sl_row row = score.rows[slot / score.n_kv_heads];
    head_view h = view_of(score, row, slot, head);
    for (int i = part; i < p.n_lists + NEWEST; i += p.draw.parts) {
        if (i < p.n_lists) continue;
        warp_sum own = {.top = -INFINITY, .total = 0, .sum = {}};
        int b = built_pages(n_kv) * (SL_PAGE / BLOCK) + (i - p.n_lists) * DRAWERS + thread / 32;
        add_newest<DIM>(p, &s->draw, h, b, n_kv, thread, &own);
        finish_list<DIM>(p, index, i, join_warps<DIM>(s, &own, thread), thread, &all);
    }
    if ((p.draw.parts == 1 || gather_lists<DIM>(p, s, index, p.n_lists + NEWEST, thread, &all)) && thread < DIM)
        p.draw.out[(size_t)index * DIM + thread] = __bfloat16_as_ushort(__float2bfloat16_rn(all.x / all.total));
    close_head(score, p.draw, slot, thread);
    if (p.draw.stats && thread % 32 == 0) {
        atomicAdd(&p.draw.stats->k_rows, (unsigned long long)n_read);
        atomicAdd(&p.draw.stats->v_rows, (unsigned long long)n_read);
        atomicAdd(&p.draw.stats->bytes, (unsigned long long)n_read * 2 * DIM * sizeof(bf16));
        atomicAdd(&p.draw.stats->samples, (unsigned long long)n_drawn);
    }
}

// out = sum_j c_j e^{s_j} / pi_j v_j / sum_j c_j e^{s_j} / pi_j over S rows drawn in proportion to a mixture of 0.99 e^{s~_j}
// and 0.01 / n, s~ the scores of quantised keys, and all rows of the newest page.
//
// grid: a block for each multiprocessor, whatever the lengths; all of them are there at once, which the drawers' wait needs.
// precondition: counters are 0, and are 0 again at the end. Built pages, K below each sequence's newest row, lengths and page
// tables are read while the kernel in front may still run, everything else after it. bytes: the quantised pages, K and V of the
// newest page, 2 + 1/4 a row and query head of stored weights (written, and partly read from the L2 cache), drawn rows of K
// and V. order of reduction: masses are integers; a warp's 32 rows of a list of 128 in order, then the warps, then the lists.
// measured: H100, 2026-11-21, int4, S = 256, peaked: 165 us at 8 x 32k, 36% of the memory rate. The drawers set it: about 50 us
// a head, one head a block at a time. A block's first tile takes consumers 3 to 4 times as long as later ones (instructions are
// fetched for the first time), which short sequences feel.
template <int DIM, int BITS> __global__ void __maxnreg__(144) santa_is_kernel(const is_params p) {
    extern __shared__ __align__(128) char memory[];
    shared_head *head = (shared_head *)memory;
    quantised_begin(p.keys, &head->keys);
    __syncthreads();
    sl_start_next();
    page_ring r = {&head->keys, memory + HEAD_BYTES, p.keys.score.n_stages, tile<DIM, BITS>::stage(p.keys.score.group)};
    int warp = threadIdx.x / 32, thread = threadIdx.x - 32 * CONSUMERS;
    if (warp < CONSUMERS)
        consume_pages<DIM, BITS>(p.keys, r);
    else if (warp < CONSUMERS + DRAWERS)
        draw_all(p.keys.score, p.draw, &head->draw, thread,
                 [&](int slot, int h, int part) { draw_head<DIM, BITS>(p, head, slot, h, part, thread); });
    else
        produce_pages<DIM, BITS>(p.keys, r);
}

// ---- launch ----

int lists_of(const sl_attn_spec *spec) {
    int n = ceil_div((int)sl_attn_get(spec, "S"), (int)DRAW_THREADS);
    return n < LISTS_MAX ? n : (int)LISTS_MAX;
}

size_t workspace(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_seqs, int, int n_kv) {
    size_t lists = (size_t)n_seqs * geom->n_heads * (lists_of(spec) + NEWEST);
    return score_workspace(geom, n_seqs, n_kv) + lists * (geom->head_dim + 2) * sizeof(float);
}

// Where heads are few, several blocks share one.
int parts_of(int n_heads, int n_lists) {
    int parts = sl_multiprocessors() / n_heads;
    return parts < 1 ? 1 : parts < n_lists ? parts : n_lists;
}

template <int DIM, int BITS> void launch(const sl_attn_cuda_decode_args *a) {
    is_params p = {.keys = quantised_params_of<DIM, BITS>(a), .draw = draw_params_of(a), .n_lists = lists_of(a->spec)};
    p.draw.parts = parts_of(a->n_seqs * a->geom->n_heads, p.n_lists + NEWEST);
    SL_CHECK(a->max_kv <= ENTRIES * BLOCK * 8);
    size_t bytes = HEAD_BYTES + (size_t)p.keys.score.n_stages * tile<DIM, BITS>::stage(p.keys.score.group);
    sl_launch(santa_is_kernel<DIM, BITS>, dim3(sl_multiprocessors()), dim3(THREADS), bytes, a->stream, p);
}

void decode(const sl_attn_cuda_decode_args *args) {
    with_bits((int)sl_attn_get(args->spec, "proposal"),
              [&](auto bits) { sl_with_head_dim(args->geom->head_dim, [&](auto dim) { launch<dim, bits>(args); }); });
}

int needs(const sl_attn_spec *spec, sl_kv_need *out) {
    return sl_propose_quantised.needs(spec, out);
}

// Quantised pages and the newest page; the kernel counts what is drawn.
void account(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_kv, sl_attn_stats *stats) {
    sl_kv_need need;
    needs(spec, &need);
    uint64_t n_built = (n_kv - 1) / SL_PAGE, newest = n_kv - n_built * SL_PAGE;
    uint64_t pages = n_built * need.kind->size(need.arg, geom->head_dim);
    stats->k_rows += newest * geom->n_kv_heads;
    stats->v_rows += newest * geom->n_heads;
    stats->samples += newest * geom->n_heads;
    stats->bytes += (pages + 2 * newest * geom->head_dim * sizeof(bf16)) * geom->n_kv_heads;
    stats->features += geom->n_heads;
}

} // namespace

const sl_attn_cuda_ops sl_santa_is_cuda_ops = {.workspace = workspace,
                                               .decode = decode,
                                               .needs = needs,
                                               .state = NULL,
                                               .max_rows = DRAW_ROWS_MAX,
                                               .account = account,
                                               .prefill = NULL};
