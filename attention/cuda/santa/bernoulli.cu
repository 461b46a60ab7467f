// attention/cuda/santa/bernoulli.cu - Bernoulli qK^T on CUDA, in one kernel: scores from only the key features that a sampled
// query needs. The method runs alone and then reads all of V. Or it runs with a sampler of the SANTA family
// (`bernoulli-group+santa-sys`).
// The naive versions are in tests/cuda/naive.h: naive_bernoulli_feature and naive_bernoulli_score.
//
// Full pages of keys are stored feature by feature (page_extras.cu), 512 contiguous bytes for each feature. The kernel does not
// read features whose counts are 0.
//
// | role     | warps, alone / DRAWN | does                                                                              |
// |----------|----------------------|-----------------------------------------------------------------------------------|
// | consumer | 4 / 8                | scores 64 rows of a page per warp, in the CPU's order of sums                     |
// |          |                      | then DRAWN: stores masses; alone: sums V                                          |
// | drawer   | 4                    | DRAWN: draws rows (samplers.cuh); alone: merges the items' sums                   |
// | sampler  | 1                    | samples the counts of the next item; adds finished items to `done`                |
// | issuer   | 2                    | copies columns of features (or rows of the newest page, or V) into ring stages    |
//
// | shared memory, in order | bytes (DIM 128, HEADS 4) | contents                                                             |
// |-------------------------|--------------------------|----------------------------------------------------------------------|
// | block_shared            | about 22 KB              | barriers, stage_infos, items, draw_space, sampled queries, q, masses |
// | ring stages             | 6 x 16512                | 32 columns of 512 bytes, or 64 rows in 8 groups of eight             |
//
// Worked page: DIM 128, group 4, 40 used features. Two stages bring 32 and 8 columns. One copy brings a run of neighbouring
// features. Lane l of consumer warp w has rows 64 w + 2 l and 64 w + 2 l + 1. For each feature it loads 4 bytes and computes 2
// x 4 fma with 4 coefficients. With a sampler, half a warp has a block of 32 rows, and shuffles give each head's reference and
// block mass.
//
// Before `done` may grow, all threads must see the stored data. That takes about a microsecond. So the sampler warp waits for
// it, and consumers do not.
#include "attention/cuda/head_dim.cuh"
#include "attention/cuda/santa/sample_queries.cuh"
#include "attention/cuda/santa/samplers.cuh"
#include "attention/stages/stages.h"

namespace {

enum {
    ISSUER_WARPS = 2,                     // warps that issue copies
    COLUMN = SL_PAGE * (int)sizeof(bf16), // bytes of one feature in a page
    COLUMNS_MAX = 32,                     // of a stage
    PART = 64,           // rows of a page that a consumer warp scores; rows of V or of the newest keys in a stage
    OCTETS = PART / 8,   // copies of such rows; each copy brings eight rows
    OCTET_PAD = 16,      // bytes between two copies: puts row i of all octets into different banks
    STAGES = 6,          // of all rings
    AHEAD = 3,           // most items whose counts are sampled and that are not yet finished
    P_STRIDE = PART + 8, // stride of masses from head to head; puts heads into different banks
    ITEMS_WANTED = 128,  // items of a long sequence, over all its KV heads
    CHUNK_ROWS_MAX = 4096,
};
static_assert((int)PART * (int)CONSUMER_WARPS == (int)SL_PAGE, "a part for each consumer of a team");

// With a sampler, pages are independent, so two teams of consumers take pages in turn. Each team has a ring and an issuer.
// Alone there is one team with one ring, and the two issuers fill its stages in turn.
template <bool DRAWN> struct warp_roles {
    enum {
        TEAMS = DRAWN ? 2 : 1,
        RING = STAGES / TEAMS, // stages of a ring
        ISSUERS_OF_RING = ISSUER_WARPS / TEAMS,
        SCORE_WARPS = TEAMS * CONSUMER_WARPS,
        SAMPLER = SCORE_WARPS + DRAW_WARPS, // the warp that samples counts; the issuers follow it
        THREADS = 32 * (SAMPLER + 1 + ISSUER_WARPS),
    };
};

// The warp's part of a page.
__device__ int own_part() {
    return threadIdx.x / 32 % CONSUMER_WARPS;
}

// A work item is several pages. The counts are sampled once for an item.
struct chunk_rule {
    int n_kv_heads;
    __device__ int rows(int n_kv) const { // rows of an item
        int wanted = max(ITEMS_WANTED / n_kv_heads, 1), rows = ceil_div(max(n_kv, 1), wanted);
        return ceil_div(min(rows, (int)CHUNK_ROWS_MAX), SL_PAGE) * SL_PAGE;
    }
    __device__ int count(int n_kv) const { return ceil_div(n_kv, rows(n_kv)); }
};

struct bernoulli_params {
    score_params score; // score.k: for the newest page
    draw_params draw;
    const bf16 *columns; // [n_pages][n_kv_heads][head_dim][256]
    query_sampling sampling;
    sampler kind;   // draws rows of V
    int max_chunks; // alone: most chunks of a sequence, the stride below
    float2 *ml;     // [n_seqs * n_kv_heads][max_chunks][4][group] alone: maximum (log2) and sum of a warp's masses of an item
    float *o;       // [n_seqs * n_kv_heads][max_chunks][4][group][head_dim] sum of mass * v
};

enum stage_kind { COLUMNS, KEY_ROWS, VALUE_ROWS };

// The contents of a ring stage.
struct __align__(16) stage_info {
    int seq_head; // -1: no more stages
    int row;      // first row of its page, counted in the sequence
    int n_kv;     // of the sequence
    short kind;   // COLUMNS: [n][256], features from number `first` on. Others: [8][8 rows + pad], part `first` of the page
    short first, n;
    short begins; // 1: the first stage of its page
    short scored; // 1: the last stage of the keys of its page
    short last;   // 1: the team's last stage of its item
    short chunk;  // of the sequence
    short which;  // number of the sampled queries
};

// Rows [from, end) of one seq_head: a work item.
struct chunk_item {
    int seq, seq_head; // seq_head -1: there are no more items
    int from, end, n_kv;
    int chunk; // of the sequence
};

template <int DIM, int HEADS> struct block_shared {
    uint64_t full[STAGES], empty[STAGES];
    stage_info info[STAGES];
    uint64_t ready[AHEAD], free[AHEAD]; // ready: item and sampled queries are stored. free: consumers have finished the item
    chunk_item items[AHEAD];
    draw_space draw;
    sampled<DIM, HEADS> queries[AHEAD];
    __align__(16) bf16 q[HEADS * DIM];
    float most[CONSUMER_WARPS][GROUP_MAX];                          // alone: largest scores of a page's parts
    __align__(16) bf16 masses[CONSUMER_WARPS][GROUP_MAX][P_STRIDE]; // alone: row 8 b + r of a part at 8 r + b
};

// Bytes of rows in a stage.
template <int DIM> struct part {
    enum {
        ROW = DIM * (int)sizeof(bf16),
        OCTET = 8 * ROW + OCTET_PAD,
        STAGE = (OCTETS * OCTET > COLUMNS_MAX * COLUMN ? OCTETS * OCTET : COLUMNS_MAX * COLUMN) + 127 & ~127,
    };
};

// The stages of one team.
struct team_shared {
    uint64_t *full, *empty;
    stage_info *info;
};
typedef stage_ring<team_shared> team_ring;

// The ring of one team.
template <int DIM, bool DRAWN, int HEADS> __device__ team_ring ring_of(block_shared<DIM, HEADS> *shared, int team) {
    int first = team * warp_roles<DRAWN>::RING;
    char *stages = (char *)shared + (sizeof(*shared) + 127) / 128 * 128;
    return {.head = {shared->full + first, shared->empty + first, shared->info + first},
            .stages = stages + first * part<DIM>::STAGE,
            .n_stages = warp_roles<DRAWN>::RING,
            .stage_bytes = part<DIM>::STAGE};
}

// ---- producer ----

// The state of an issuer warp.
template <bool DRAWN> struct feed {
    team_ring fill;
    int turn;                            // this issuer's number among the issuers of the ring
    int n_issued;                        // stages of the ring that all its issuers have opened
    int n_normal;                        // the first of them, copied with the normal L2 policy (score_keys.cuh, normal_tiles)
    __device__ uint64_t policy() const { // policy of the open stage
        return sl_l2_policy(n_issued > n_normal ? SL_L2_FIRST_OUT : SL_L2_ANY);
    }
};

// Waits for an empty stage and announces its bytes. Returns false if another issuer fills the stage.
template <bool DRAWN> __device__ bool open_stage(feed<DRAWN> *to, const stage_info &info, int bytes) {
    team_ring *r = &to->fill;
    if (to->n_issued++ % warp_roles<DRAWN>::ISSUERS_OF_RING != to->turn) return false;
    barrier_wait(&r->head.empty[r->stage], r->parity ^ 1);
    if (threadIdx.x % 32 == 0) {
        r->head.info[r->stage] = info;
#if __CUDA_ARCH__ >= 900
        barrier_expect(&r->head.full[r->stage], bytes);
#endif
    }
    __syncwarp();
    return true;
}

// Call it after the copies of the stage are issued. Goes on to the next stage.
template <bool DRAWN> __device__ void close_stage(feed<DRAWN> *to, bool mine) {
    team_ring *r = &to->fill;
#if __CUDA_ARCH__ < 900
    uint64_t *full = &r->head.full[r->stage];
    if (mine) arrive_after_copies(full);
    if (mine && threadIdx.x % 32 == 0) barrier_arrive(full);
#endif
    r->advance();
}

// Every lane copies `bytes` bytes (0: none) from `from` to `to`, which is 16-byte aligned.
__device__ void copy_lanes(uint64_t *full, uint32_t to, const void *from, int bytes, uint64_t policy) {
#if __CUDA_ARCH__ >= 900
    if (bytes) copy_bulk(to, from, bytes, full, policy);
#else
    for (uint32_t lanes = __ballot_sync(~0u, bytes > 0); lanes; lanes &= lanes - 1) {
        int i = __ffs(lanes) - 1;
        const void *x = (const void *)__shfl_sync(~0u, (unsigned long long)from, i);
        copy_warp(__shfl_sync(~0u, to, i), x, __shfl_sync(~0u, bytes, i));
    }
    (void)full, (void)policy;
#endif
}

// Copies the columns of the used features of one page of one KV head, [DIM][256]. One copy brings a run of neighbouring
// columns.
template <int DIM, int HEADS, bool DRAWN>
__device__ void produce_columns(feed<DRAWN> *to, const sampled<DIM, HEADS> &q, const bf16 *page, stage_info info) {
    int lane = threadIdx.x % 32, n_stages = max(ceil_div(q.n, COLUMNS_MAX), 1);
    short last = info.last;
    for (int i = 0; i < n_stages; i++) {
        int first = i * COLUMNS_MAX, n = min((int)COLUMNS_MAX, q.n - first);
        info.kind = COLUMNS, info.first = (short)first, info.n = (short)n;
        info.begins = i == 0, info.scored = i == n_stages - 1, info.last = info.scored ? last : 0;
        bool mine = open_stage(to, info, n * COLUMN);
        int feature = lane < n ? q.feature[first + lane] : -1, before = __shfl_up_sync(~0u, feature, 1);
        bool leads = lane < n && (lane == 0 || feature != before + 1);
        uint32_t later = __ballot_sync(~0u, leads) & ~(~0u >> (31 - lane)); // leaders after this lane's run
        int run = (later ? __ffs(later) - 1 : n) - lane;
        copy_lanes(&to->fill.head.full[to->fill.stage], shared_address(to->fill.data()) + lane * COLUMN,
                   page + feature * SL_PAGE, mine && leads ? run * COLUMN : 0, to->policy());
        close_stage(to, mine);
    }
}

// Copies the first n_rows rows of one page of one KV head, [256][DIM], in whole octets.
template <int DIM, bool DRAWN>
__device__ void produce_rows(feed<DRAWN> *to, const bf16 *page, int n_rows, stage_kind kind, stage_info info) {
    int lane = threadIdx.x % 32, n_stages = ceil_div(n_rows, PART);
    short last = info.last;
    for (int i = 0; i < n_stages; i++) {
        int n = ceil_div(min(n_rows - i * PART, (int)PART), 8), bytes = 8 * part<DIM>::ROW;
        info.kind = (short)kind, info.first = (short)i;
        info.begins = kind == KEY_ROWS && i == 0, info.scored = kind == KEY_ROWS && i == n_stages - 1;
        info.last = i == n_stages - 1 ? last : 0;
        bool mine = open_stage(to, info, n * bytes);
        copy_lanes(&to->fill.head.full[to->fill.stage], shared_address(to->fill.data()) + lane * part<DIM>::OCTET,
                   page + (i * PART + lane * 8) * DIM, mine && lane < n ? bytes : 0, to->policy());
        close_stage(to, mine);
    }
}

// Counts the reads of one seq_head's keys.
template <int DIM> __device__ void count_keys(const bernoulli_params &p, int n_kv, int n_features) {
    if (!p.draw.stats || threadIdx.x % 32 > 0) return;
    int n_full = (n_kv - 1) / SL_PAGE * SL_PAGE;
    unsigned long long elements = (unsigned long long)n_full * n_features + (unsigned long long)(n_kv - n_full) * DIM;
    atomicAdd(&p.draw.stats->bytes, elements * sizeof(bf16));
    atomicAdd(&p.draw.stats->features, (unsigned long long)(n_features * 1024 * p.score.group + DIM / 2) / DIM);
}

// Samples the counts of the thread block's items. An item takes the place of a finished item, and the finished item is added to
// `done` first. The first item has the number blockIdx.x. The thread block takes tickets for the others.
template <int DIM, int HEADS> __device__ void sample_items(const bernoulli_params &p, block_shared<DIM, HEADS> *shared) {
    int lane = threadIdx.x % 32, item = blockIdx.x, ticket = -1, n_kv_heads = p.score.n_kv_heads, group = p.score.group;
    chunk_rule rule = {n_kv_heads};
    seq_lookup lookup;
    lookup_load(&lookup, p.score.rows, p.score.n_seqs, n_kv_heads, rule, 0, 0);
    sl_wait_previous(); // q decides which keys are read
    for (int n = 0, n_ended = 0; n_ended < AHEAD; n++) {
        item_place at = lookup_find(&lookup, p.score.rows, p.score.n_seqs, n_kv_heads, rule, item);
        int which = n % AHEAD;
        chunk_item span = {.seq_head = -1}, before = shared->items[which];
        barrier_wait(&shared->free[which], n / AHEAD % 2 ^ 1);
        if (lane == 0 && n >= AHEAD)
            add_released(p.score.done + before.seq_head, CONSUMER_WARPS * ceil_div(before.end - before.from, SL_PAGE));
        if (at.seq >= 0) {
            if (lane == 0) ticket = sl_take_number(p.score.next_item);
            int rows = rule.rows(at.n_kv), kv_head = at.local % n_kv_heads;
            span.seq = at.seq, span.seq_head = at.seq * n_kv_heads + kv_head, span.n_kv = at.n_kv;
            span.chunk = at.local / n_kv_heads, span.from = span.chunk * rows, span.end = min(span.from + rows, at.n_kv);
            const uint4 *q = (const uint4 *)(p.score.q + (size_t)span.seq_head * group * DIM);
            for (int k = lane; k < group * DIM / 8; k += 32) ((uint4 *)shared->q)[k] = __ldcg(q + k);
            __syncwarp();
            sampled<DIM, HEADS> *queries = &shared->queries[which];
            sample_queries<DIM, HEADS>(p.sampling, group, rng_of(p.draw, p.score.rows[span.seq], kv_head * group), shared->q,
                                       queries);
            if (span.from == 0) count_keys<DIM>(p, at.n_kv, queries->n);
            item = gridDim.x + __shfl_sync(~0u, ticket, 0);
        }
        __syncwarp(); // all lanes have read q
        if (n_ended == 0) {
            if (lane == 0) shared->items[which] = span;
            barrier_arrive(&shared->ready[which]); // each lane arrives, because each lane has written
        }
        n_ended += at.seq < 0;
    }
    int n_items = __shfl_sync(~0u, lookup.end, 31);
    if (lane == 0 && ticket == n_items - 1) *p.score.next_item = 0; // an item takes one ticket, so this was the last one
}

// Issues a team's pages of K (alone: and of V) of an item. which: number of the sampled queries. before: pages of earlier
// items.
template <int DIM, int HEADS, bool DRAWN>
__device__ void produce_item(const bernoulli_params &p, block_shared<DIM, HEADS> *shared, feed<DRAWN> *to, const chunk_item &u,
                             int which, int team, int before) {
    int lane = threadIdx.x % 32, kv_head = u.seq_head % p.score.n_kv_heads;
    const int32_t *pages = p.score.rows[u.seq].pages;
    int32_t id =
        u.from + lane * SL_PAGE < u.end ? pages[u.from / SL_PAGE + lane] : 0; // an item has at most CHUNK_ROWS_MAX rows
    stage_info info = {.seq_head = u.seq_head, .n_kv = u.n_kv, .chunk = (short)u.chunk, .which = (short)which};
    enum { TEAMS = warp_roles<DRAWN>::TEAMS };
    int n_pages = ceil_div(u.end - u.from, SL_PAGE), first = (team + before) % TEAMS;
    if (first >= n_pages) // the team has no page of the item
        for (int i = 0; i < CONSUMER_WARPS; i++) barrier_arrive(&shared->free[which]);
    for (int i = first; i < n_pages; i += TEAMS) {
        size_t block = (size_t)__shfl_sync(~0u, id, i) * p.score.n_kv_heads + kv_head;
        int row = u.from + i * SL_PAGE, n_rows = min(u.n_kv - row, (int)SL_PAGE);
        bool last = i + TEAMS >= n_pages;
        info.row = row, info.last = DRAWN && last;
        if (row + SL_PAGE < u.n_kv)
            produce_columns(to, shared->queries[which], p.columns + block * SL_PAGE * DIM, info);
        else
            produce_rows<DIM>(to, p.score.k + block * SL_PAGE * DIM, n_rows, KEY_ROWS, info);
        info.last = last;
        if (!DRAWN) produce_rows<DIM>(to, p.draw.v + block * SL_PAGE * DIM, n_rows, VALUE_ROWS, info);
    }
}

// The loop of an issuer warp: takes items from the sampler warp and issues its team's pages.
template <int DIM, int HEADS, bool DRAWN>
__device__ void produce(const bernoulli_params &p, block_shared<DIM, HEADS> *shared, int own) {
    enum { TEAMS = warp_roles<DRAWN>::TEAMS };
    int team = own % TEAMS, n_pages = 0;
    feed<DRAWN> to = {
        .fill = ring_of<DIM, DRAWN>(shared, team), .turn = own / TEAMS, .n_issued = 0, .n_normal = p.score.n_normal / TEAMS};
    sl_wait_previous(); // the newest row
    for (int n = 0;; n++) {
        barrier_wait(&shared->ready[n % AHEAD], n / AHEAD % 2);
        __syncwarp();
        chunk_item u = shared->items[n % AHEAD];
        if (u.seq_head < 0) break;
        produce_item<DIM, HEADS, DRAWN>(p, shared, &to, u, n % AHEAD, team, n_pages);
        n_pages += ceil_div(u.end - u.from, SL_PAGE);
    }
    close_stage(&to, open_stage(&to, stage_info{.seq_head = -1}, 0));
}

// ---- consumers ----
//
// Warp w has rows 64 w .. 64 w + 63 of a page. Its lane l has rows 2 l and 2 l + 1 of these, for all heads. s[i][h]: the score
// of row 2 l + i for head h.

// A barrier of the consumer warps of the only team.
__device__ void consumers_sync() {
    asm volatile("bar.sync 2, %0;" ::"n"(32 * CONSUMER_WARPS) : "memory");
}

// Adds N columns from x on, times their coefficients.
template <int N, int HEADS> __device__ void add_some(const char *x, const float (*coef)[HEADS], float s[2][HEADS]) {
    uint32_t both[N];
#pragma unroll
    for (int i = 0; i < N; i++) both[i] = *(const uint32_t *)(x + i * COLUMN);
#pragma unroll
    for (int i = 0; i < N; i++) {
        float even = __uint_as_float(both[i] << 16), odd = __uint_as_float(both[i] & 0xffff0000u);
#pragma unroll
        for (int h = 0; h < HEADS; h += 4) {
            float4 c = *(const float4 *)&coef[i][h];
            s[0][h] = fmaf(c.x, even, s[0][h]), s[0][h + 1] = fmaf(c.y, even, s[0][h + 1]);
            s[0][h + 2] = fmaf(c.z, even, s[0][h + 2]), s[0][h + 3] = fmaf(c.w, even, s[0][h + 3]);
            s[1][h] = fmaf(c.x, odd, s[1][h]), s[1][h + 1] = fmaf(c.y, odd, s[1][h + 1]);
            s[1][h + 2] = fmaf(c.z, odd, s[1][h + 2]), s[1][h + 3] = fmaf(c.w, odd, s[1][h + 3]);
        }
    }
}

// Adds the columns of a stage to the scores of the lane's two rows.
template <int DIM, int HEADS>
__device__ void add_columns(const sampled<DIM, HEADS> &q, const char *data, const stage_info &info, float s[2][HEADS]) {
    enum { N = 64 / HEADS }; // as many loads as registers permit: they hide the latency
    const char *x = data + own_part() * PART * sizeof(bf16) + threadIdx.x % 32 * 4;
    const float(*coef)[HEADS] = q.coef + info.first;
    int n = info.n;
    for (; n >= N; n -= N, x += N * COLUMN, coef += N) add_some<N>(x, coef, s);
    if (n & 8) add_some<8>(x, coef, s), x += 8 * COLUMN, coef += 8; // only with 4 HEADS
    if (n & 4) add_some<4>(x, coef, s), x += 4 * COLUMN, coef += 4;
    if (n & 2) add_some<2>(x, coef, s), x += 2 * COLUMN, coef += 2;
    if (n & 1) add_some<1>(x, coef, s);
}

// The warp's part of the newest page.
template <int DIM, int HEADS> __device__ void add_rows(const sampled<DIM, HEADS> &q, const char *data, float s[2][HEADS]) {
    int row = threadIdx.x % 32 * 2;
    const bf16 *x = (const bf16 *)(data + row / 8 * part<DIM>::OCTET + row % 8 * part<DIM>::ROW);
#pragma unroll 4
    for (int i = 0; i < q.n; i++) {
        int feature = q.feature[i];
        float even = sl_widen(x[feature]), odd = sl_widen(x[DIM + feature]);
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            float c = q.coef[i][h];
            s[0][h] = fmaf(c, even, s[0][h]), s[1][h] = fmaf(c, odd, s[1][h]);
        }
    }
}

// x[h] becomes the largest x[h] of 2 * step lanes; NaN if x[h] of one lane is NaN.
template <int HEADS> __device__ void max_heads(float x[HEADS], int step) {
    for (; step > 0; step /= 2)
#pragma unroll
        for (int h = 0; h < HEADS; h++) x[h] = sl_max_nan(x[h], __shfl_xor_sync(~0u, x[h], step));
}

// The head whose block mass a lane sums in store_part. The block is that of its half warp.
template <int HEADS> __device__ int head_of_lane() {
    return threadIdx.x % 16 / (16 / HEADS);
}

// Turns scores into stored masses (masses.h). Half a warp has a block of 32 rows. Returns the reference of the lane's head.
template <int HEADS> __device__ int store_part(const score_params &p, const stage_info &info, float s[2][HEADS]) {
    int lane = threadIdx.x % 32, row = info.row + own_part() * PART + 2 * lane, block = row / BLOCK;
    bool there = block * BLOCK < info.n_kv;
    float most[HEADS];
    int ref[HEADS];
    uint64_t mass[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        s[0][h] = row < info.n_kv ? s[0][h] * p.scale : -INFINITY,
        s[1][h] = row + 1 < info.n_kv ? s[1][h] * p.scale : -INFINITY;
        most[h] = sl_max_nan(s[0][h], s[1][h]);
    }
    max_heads<HEADS>(most, 8);
    uint32_t *w = (uint32_t *)(p.w + ((size_t)info.seq_head * p.max_blocks + block) * p.group * BLOCK) + lane % 16;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        ref[h] = ref_of_largest(ceilf(most[h]));
        bool filled = ref[h] > REF_EMPTY;
        __nv_bfloat162 pair = __floats2bfloat162_rn(filled ? exp2f(fminf(s[0][h] - ref[h], 0.0f)) : 0.0f,
                                                    filled ? exp2f(fminf(s[1][h] - ref[h], 0.0f)) : 0.0f);
        mass[h] = pair_mass(*(uint32_t *)&pair);
        if (there && h < p.group) store_result(p, w + h * (BLOCK / 2), *(uint32_t *)&pair);
    }
    // Sums over half a warp. Each step halves the number of heads of a lane, down to one head.
    int head = head_of_lane<HEADS>();
#pragma unroll
    for (int n = HEADS / 2, step = 8; step > 0; n /= 2, step /= 2) {
        bool upper = lane & step && n;
#pragma unroll
        for (int h = 0; h < n; h++) {
            uint64_t away = upper ? mass[h] : mass[n + h];
            mass[h] = (upper ? mass[n + h] : mass[h]) + __shfl_xor_sync(~0u, away, step);
            ref[h] = upper ? ref[n + h] : ref[h];
        }
        if (n == 0) mass[0] += __shfl_xor_sync(~0u, mass[0], step);
    }
    if (there && lane % (16 / HEADS) == 0 && head < p.group)
        store_result(p, p.mass + ((size_t)info.seq_head * p.group + head) * p.max_blocks + block,
                     (uint64_t)(uint16_t)ref[0] << 48 | mass[0]);
    return ref[0];
}

// Online softmax over an item's pages, and the sum of V as an mma: columns of V by rows, times rows by heads. All consumer
// warps have the same maxima. Of every 64 rows of V a warp takes rows 8 b + 2 warp and 8 b + 2 warp + 1, b = 0 .. 7.
template <int DIM, int HEADS> struct attention {
    float m[HEADS], l[HEADS];     // l: sum over the lane's rows
    float own[2], o[DIM / 16][4]; // heads 2 (lane % 4) and + 1. own: maxima; o: columns 16 i + lane / 4 and + 8

    __device__ void begin() {
        own[0] = own[1] = -INFINITY;
#pragma unroll
        for (int h = 0; h < HEADS; h++) m[h] = -INFINITY, l[h] = 0;
#pragma unroll
        for (int i = 0; i < DIM / 16; i++) o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0;
    }

    // Turns the scores of a page into masses, in shared memory.
    __device__ void softmax(block_shared<DIM, HEADS> *shared, const stage_info &info, float scale, const float s[2][HEADS]) {
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = 2 * lane;
        int n_rows = info.n_kv - info.row - warp * PART; // of the part
        float most[HEADS];
#pragma unroll
        for (int h = 0; h < HEADS; h++)
            most[h] = fmaxf(row < n_rows ? s[0][h] : -INFINITY, row + 1 < n_rows ? s[1][h] : -INFINITY);
        max_heads<HEADS>(most, 16);
#pragma unroll
        for (int h = 0; h < HEADS; h++)
            if (lane == h) shared->most[warp][h] = most[h] * scale;
        consumers_sync();
        bf16 *to = &shared->masses[warp][0][row % 8 * 8 + row / 8];
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            float before = m[h];
            for (int w = 0; w < CONSUMER_WARPS; w++) m[h] = fmaxf(m[h], shared->most[w][h]); // finite: the page has a row
            // No fma here: m is a rounded product. The exact product of a huge score can exceed m by more than the exponent
            // range of a float.
            float even = row < n_rows ? exp2f(__fmul_rn(s[0][h], scale) - m[h]) : 0,
                  odd = row + 1 < n_rows ? exp2f(__fmul_rn(s[1][h], scale) - m[h]) : 0;
            bf16 a = __bfloat16_as_ushort(__float2bfloat16_rn(even)), b = __bfloat16_as_ushort(__float2bfloat16_rn(odd));
            to[h * P_STRIDE] = a, to[h * P_STRIDE + 8] = b;
            l[h] = l[h] * exp2f(before - m[h]) + (sl_widen(a) + sl_widen(b));
        }
        float factor[2] = {1, 1};
        if (lane % 4 * 2 < HEADS)
            for (int i = 0; i < 2; i++) {
                float before = own[i];
                for (int w = 0; w < CONSUMER_WARPS; w++) own[i] = fmaxf(own[i], shared->most[w][lane % 4 * 2 + i]);
                factor[i] = exp2f(before - own[i]);
            }
#pragma unroll
        for (int i = 0; i < DIM / 16; i++)
            o[i][0] *= factor[0], o[i][1] *= factor[1], o[i][2] *= factor[0], o[i][3] *= factor[1];
        consumers_sync();
    }

    // Adds part info.first of the page's values.
    __device__ void add_values(const block_shared<DIM, HEADS> *shared, const char *data, const stage_info &info) {
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4, matrix = lane / 8;
        int n_rows = info.n_kv - info.row - info.first * PART;
        const uint32_t *w = (const uint32_t *)shared->masses[info.first][g];
        uint32_t low = w[8 * warp + q], high = w[8 * warp + 4 + q];
        uint32_t at =
            shared_address(data) + lane % 8 * part<DIM>::OCTET + (2 * warp + matrix / 2) * part<DIM>::ROW + matrix % 2 * 16;
        uint32_t keep[2] = {~0u, ~0u}; // clears rows after the sequence's end, whose memory can hold NaN
        for (int i = 0; i < 2 && n_rows < PART; i++) {
            int row = 16 * q + 2 * warp + i;
            keep[i] = (row < n_rows ? 0xffff : 0) | (row + 8 < n_rows ? 0xffff0000u : 0);
        }
#pragma unroll
        for (int i = 0; i < DIM / 16; i++) {
            uint32_t a[4];
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                         : "r"(at + i * 32)
                         : "memory");
            sl_mma_bf16(o[i], a[0] & keep[0], a[1] & keep[0], a[2] & keep[1], a[3] & keep[1], low, high);
        }
    }

    // Stores the warp's sums of the item to the workspace.
    __device__ void store(const bernoulli_params &p, const stage_info &info) {
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = p.score.group;
        size_t first = (((size_t)info.seq_head * p.max_chunks + info.chunk) * CONSUMER_WARPS + warp) * group;
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            float sum = sl_sum_lanes(l[h]);
            if (lane == 0 && h < group) __stcg(p.ml + first + h, make_float2(m[h], sum));
        }
#pragma unroll
        for (int i = 0; i < DIM / 16; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int h = lane % 4 * 2 + j % 2;
                if (h < group) __stcg(p.o + (first + h) * DIM + 16 * i + lane / 4 + j / 2 * 8, o[i][j]);
            }
    }
};

// The loop of a consumer warp: waits for its team's next stage and scores it. Then it stores masses, or sums V.
template <int DIM, int HEADS, bool DRAWN> __device__ void consume(const bernoulli_params &p, block_shared<DIM, HEADS> *shared) {
    team_ring r = ring_of<DIM, DRAWN>(shared, threadIdx.x / 32 / CONSUMER_WARPS);
    int fresh = 1,
        top = REF_EMPTY; // fresh: the team's next stage begins an item; top: largest reference of the item and the lane's head
    float s[2][HEADS];
    attention<DIM, HEADS> a;
    sl_wait_previous(); // the drawers of the layer before may still read masses that this kernel overwrites
    for (;; r.advance()) {
        barrier_wait(&r.head.full[r.stage], r.parity);
        __syncwarp(); // mma needs a converged warp; lanes can leave the wait one by one
        stage_info info = r.head.info[r.stage];
        if (info.seq_head < 0) return;
        const sampled<DIM, HEADS> &q = shared->queries[info.which];
        if (!DRAWN && fresh) a.begin();
        if (fresh) top = REF_EMPTY;
        if (info.begins)
#pragma unroll
            for (int h = 0; h < HEADS; h++) s[0][h] = s[1][h] = 0;
        if (info.kind == COLUMNS)
            add_columns(q, r.data(), info, s);
        else if (info.kind == VALUE_ROWS)
            a.add_values(shared, r.data(), info);
        else if (info.first == own_part())
            add_rows(q, r.data(), s);
        leave_stage(&r.head.empty[r.stage]);
        if (info.scored && DRAWN) top = max(top, store_part(p.score, info, s));
        if (info.scored && !DRAWN) a.softmax(shared, info, p.score.scale, s);
        fresh = info.last;
        if (!info.last) continue;
        if (!DRAWN) a.store(p, info);
        int head_of_group = head_of_lane<HEADS>();
        if (DRAWN && threadIdx.x % (16 / HEADS) == 0 && head_of_group < p.score.group)
            atomicMax(p.score.top + info.seq_head * p.score.group + head_of_group, top - REF_EMPTY);
        barrier_arrive(&shared->free[info.which]); // after this thread's stores
    }
}

// ---- merging, without a sampler ----

// out = sum_i 2^(m_i - m) o_i / sum_i 2^(m_i - m) l_i over the warps' sums i of a seq_head's items, for one query head.
template <int DIM> __device__ void merge_head(const bernoulli_params &p, draw_space *s, int seq_head, int head, int thread) {
    enum { LANES = DIM / 8, ROWS = 32 / LANES };
    int n_kv = p.score.rows[seq_head / p.score.n_kv_heads].position + 1, group = p.score.group;
    int lane = thread % 32, warp = thread / 32, n = CONSUMER_WARPS * chunk_rule{p.score.n_kv_heads}.count(n_kv);
    size_t first = (size_t)seq_head * p.max_chunks * CONSUMER_WARPS * group + head;
    wait_scored(p.score, seq_head, n_kv, thread);
    float most = -INFINITY, total = 0;
    for (int i = lane; i < n; i += 32) most = fmaxf(most, __ldcg(p.ml + first + (size_t)i * group).x);
    most = sl_max_lanes(most);
    for (int i = lane; i < n; i += 32) {
        float2 ml = __ldcg(p.ml + first + (size_t)i * group);
        total += rescale(ml.x, most) * ml.y;
    }
    total = sl_sum_lanes(total);
    row_sum sum = {};
    int end = n * (warp + 1) / DRAW_WARPS;
#pragma unroll 4
    for (int i = n * warp / DRAW_WARPS + lane / LANES; lane / LANES < ROWS && i < end; i += ROWS) {
        size_t at = first + (size_t)i * group;
        const float4 *o = (const float4 *)(p.o + at * DIM) + lane % LANES * 2;
        float4 a = __ldcg(o), b = __ldcg(o + 1);
        float c = rescale(__ldcg(p.ml + at).x, most) / total, x[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
        for (int k = 0; k < 8; k++) sum.x[k] += c * x[k];
    }
    write_head<DIM>(p.draw, s, sum_rows<DIM>(s, sum, thread), seq_head * group + head, 0, thread);
    release_and_clear(p.score, p.draw, seq_head, thread);
}

// The `drawer` of draw_all: draws one part of a query head, or merges the head's sums.
template <int DIM, bool DRAWN> struct bernoulli_drawer {
    const bernoulli_params &p;
    draw_space *space;
    int thread;
    __device__ bool draw(int seq_head, int head, int part) const {
        if (DRAWN) return draw_head<DIM>(p.score, p.draw, p.kind, space, seq_head, head, part, thread);
        merge_head<DIM>(p, space, seq_head, head, thread);
        return false;
    }
};

// out = softmax(q' K^T / sqrt(DIM)) V, or sum_m v_(row m) / S over rows drawn from that softmax. q': the group's sampled
// queries.
//
// Grid: one thread block per multiprocessor, for any lengths. All thread blocks must be resident at the same time, because
// drawers wait for other thread blocks.
// Preconditions: the counters are 0 at the start. They are 0 again at the end. Before the previous kernel has ended, the kernel
// reads only lengths and page tables, because q decides which keys it reads.
// Bytes: 512 bytes of each full page of K for every feature that a head of the group uses; all keys of the newest page. DRAWN:
// 2 + 1/4 bytes of masses for each row and query head, and the drawn rows of V. Alone: V, and 16 (DIM + 2) bytes of partial
// sums for each item and query head.
// Order of reduction: the features of a score are added in ascending order, as on the CPU. Alone: the mma adds the rows of a
// page, then pages are added in order, then the four warps' sums of each item. DRAWN: as in santa.cu.
// Measured (H100 80GB, 22 November 2026, results/h100-sampled.md): at 8 x 32k, the kernel reaches 75% (with santa-sys) and
// 87% (alone) of the rate of a kernel that only reads. It loses time because runs of columns are many small copies, and because
// a thread block reads no keys before it has sampled its first counts.
template <int DIM, int HEADS, bool DRAWN> __global__ void __maxnreg__(128) bernoulli_ring_kernel(const bernoulli_params p) {
    extern __shared__ __align__(128) char memory[];
    typedef block_shared<DIM, HEADS> shared_type;
    shared_type *shared = (shared_type *)memory;
    typedef warp_roles<DRAWN> at;
    barriers_make<CONSUMER_WARPS, STAGES>(shared->full, FULL_ARRIVALS);
    barriers_make<CONSUMER_WARPS, STAGES>(shared->empty, 32 * CONSUMER_WARPS);
    barriers_make<CONSUMER_WARPS, AHEAD>(shared->free, 32 * at::SCORE_WARPS);
    barriers_make<CONSUMER_WARPS, AHEAD>(shared->ready, 32);
    barriers_made();
    __syncthreads();
    sl_start_next();
    int warp = threadIdx.x / 32, thread = threadIdx.x - 32 * at::SCORE_WARPS;
    if (warp < at::SCORE_WARPS)
        consume<DIM, HEADS, DRAWN>(p, shared);
    else if (warp < at::SAMPLER)
        draw_all(p.score, p.draw, &shared->draw, thread, bernoulli_drawer<DIM, DRAWN>{p, &shared->draw, thread});
    else if (warp == at::SAMPLER)
        sample_items<DIM, HEADS>(p, shared);
    else
        produce<DIM, HEADS, DRAWN>(p, shared, warp - at::SAMPLER - 1);
}

// ---- launch ----

int max_chunks_of(int n_kv_heads, int n_kv) { // most chunks of a sequence of up to n_kv rows
    return max(min(max(ITEMS_WANTED / n_kv_heads, 1), ceil_div(n_kv, SL_PAGE)), ceil_div(n_kv, CHUNK_ROWS_MAX));
}

// S: draws of a head; 0 without a sampler.
size_t lay_out(const sl_attn_geom *geom, int S, int n_seqs, int n_kv, void *ws, bernoulli_params *p) {
    arena a = after_counters(ws);
    size_t n_sums = (size_t)n_seqs * geom->n_heads * max_chunks_of(geom->n_kv_heads, n_kv) * CONSUMER_WARPS;
    if (S) {
        take_masses(&a, &p->score, geom, n_seqs, n_kv);
        take_draw_arrays(&a, &p->draw, geom, n_seqs, S);
    } else {
        p->o = a.take<float>(n_sums * geom->head_dim);
        p->ml = a.take<float2>(n_sums);
    }
    return bytes_taken(a, ws);
}

// Draws of a head; 0 without a sampler.
int draws_of(const sl_attn_spec *spec) {
    return spec->plus ? (int)sl_attn_get(spec, "S") : 0;
}

// Whether the long kernels serve a launch: those with a sampler, from the first row that the short ones cannot represent.
bool is_for_long(const sl_attn_spec *spec, int max_kv) {
    return !IS_LONG && spec->plus && max_kv > ROWS_MAX;
}

size_t workspace(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_seqs, int n_tokens, int n_kv) {
    if (is_for_long(spec, n_kv)) return sl_bernoulli_long_cuda_ops.workspace(geom, spec, n_seqs, n_tokens, n_kv);
    bernoulli_params p;
    return lay_out(geom, draws_of(spec), n_seqs, n_kv, NULL, &p);
}

template <int DIM, int HEADS, bool DRAWN> void launch_kernel(const sl_attn_cuda_decode_args *a, bool is_shared) {
    int S = draws_of(a->spec);
    bernoulli_params p = {.score = score_params_of<DIM>(a),
                          .draw = draw_params_of(a, S),
                          .columns = (const bf16 *)a->extra[0],
                          .sampling = {.B = (int)sl_attn_get(a->spec, "B"),
                                       .iid = sl_attn_get(a->spec, "bernoulli-sampling") == 1,
                                       .shared = is_shared},
                          .kind = INDEPENDENT,
                          .max_chunks = max_chunks_of(a->geom->n_kv_heads, a->max_kv),
                          .ml = NULL,
                          .o = NULL};
    lay_out(a->geom, S, a->n_seqs, a->max_kv, a->ws, &p);
    SL_CHECK(!DRAWN || (sampler_of(a->spec->plus, &p.kind) && a->max_kv <= ROWS_MAX));
    size_t bytes = (sizeof(block_shared<DIM, HEADS>) + 127) / 128 * 128;
    sl_launch(bernoulli_ring_kernel<DIM, HEADS, DRAWN>, dim3(sl_multiprocessors()), dim3(warp_roles<DRAWN>::THREADS),
              bytes + (size_t)STAGES * part<DIM>::STAGE, a->stream, p);
}

template <int DIM> void launch(const sl_attn_cuda_decode_args *a, bool is_shared) {
    bool few = a->geom->n_heads <= 4 * a->geom->n_kv_heads;
    if (IS_LONG || a->spec->plus) {
        few ? launch_kernel<DIM, 4, true>(a, is_shared) : launch_kernel<DIM, GROUP_MAX, true>(a, is_shared);
    } else if constexpr (!IS_LONG) { // without a sampler, the short kernels serve every length
        few ? launch_kernel<DIM, 4, false>(a, is_shared) : launch_kernel<DIM, GROUP_MAX, false>(a, is_shared);
    }
}

template <bool SHARED> void decode(const sl_attn_cuda_decode_args *a) {
    if (is_for_long(a->spec, a->max_kv))
        return (SHARED ? sl_bernoulli_group_long_cuda_ops : sl_bernoulli_long_cuda_ops).decode(a);
    SL_WITH_HEAD_DIM(a->geom->head_dim, launch, a, SHARED);
}

int needs(const sl_attn_spec *, sl_kv_need *out) {
    *out = {&sl_keys_by_feature, 0};
    return 1;
}

// Without a sampler, counts V and the rows of the newest page. The kernel counts the other reads.
void account_values(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_kv, sl_attn_stats *stats) {
    if (spec->plus) return;
    count_rows_read(geom, 0, n_kv, stats);
    stats->k_rows += (uint64_t)((n_kv - 1) % SL_PAGE + 1) * geom->n_kv_heads;
}

} // namespace

#define OPS(SHARED)                                                                                                            \
    {                                                                                                                          \
        .workspace = workspace, .decode = decode<SHARED>, .needs = needs, .state = NULL, .max_rows = 0,                        \
        .account = account_values, .prefill = NULL, .supports = NULL, .mask = NULL, .mask_workspace = NULL, .offloaded = NULL, \
        .bytes = NULL                                                                                                          \
    }
#ifdef SL_LONG_CONTEXT
const sl_attn_cuda_ops sl_bernoulli_long_cuda_ops = OPS(false), sl_bernoulli_group_long_cuda_ops = OPS(true);
#else
const sl_attn_cuda_ops sl_bernoulli_cuda_ops = OPS(false), sl_bernoulli_group_cuda_ops = OPS(true);
#endif
