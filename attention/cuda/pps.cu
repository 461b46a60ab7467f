// attention/cuda/pps.cu - santa-pps on CUDA, in two kernels. The first stores exact scores of all keys. The second always takes
// rows with a large p |v|, and draws other rows in proportion to p |v|. A head has S draws, or as many as a stated error needs.
// The naive versions are in tests/cuda/naive.h: naive_score, naive_mass, naive_take_all and naive_sum_of_rows.
//
// | kernel           | role           | warps | does                                                                  |
// |------------------|----------------|-------|-----------------------------------------------------------------------|
// | pps_score_kernel | consumer       | 8     | stores masses p, block masses of p and of sizes p |v| (score_keys.cuh) |
// |                  | norms          | 3     | norms of the newest page, for the session's state                     |
// |                  | producer       | 1     | copies K, norms and q into ring stages                                |
// | pps_draw_kernel  | all            | 8     | one query head: heavy rows and light draws (take_all.cuh), rows of V  |
//
// | shared memory of pps_draw_kernel | bytes                | contents                                        |
// |----------------------------------|----------------------|-------------------------------------------------|
// | block_shared                     | SHARED_BYTES         | sized_space, head, columns, page table, row, coef |
// | block masses of sizes            | take_all_memory      | [n_blocks], padded (place_of)                   |
//
// The draw kernel computes sizes from masses and norms when it needs them. With a stated error it draws again until the head is
// certified. After MOST_TRIES tries it sums over every row. The bounds, tries and uniform numbers are those of draw_pps.c.
#include "attention/cuda/head_dim.cuh"
#include "attention/cuda/norms.cuh"
#include "attention/cuda/take_all.cuh"

extern "C" {
#include "attention/stages.h"
#include "engine/base/quantile.h"
}

namespace {

enum {
    SCORE_WARPS = score_config<true, false>::WARPS,
    NORM_THREADS = 96,
    SCORE_THREADS = 32 * (1 + SCORE_WARPS) + NORM_THREADS,
    PILOT = 128,    // draws of the pilot, which plans the first try of a session
    MOST_TRIES = 3, // after so many tries the head reads all rows
    FEW = 30,       // with fewer draws the central limit theorem is not used
};

// The state of a head from step to step.
struct head_state {
    uint32_t next; // position of the next step; the state is valid only at this position. 0: empty
    float norm;    // norm of the head's output
};

struct pps_params {
    score_params score;
    draw_params draw;
    bool shared; // one uniform number for all light draws
    // Query heads in [late, late_end) wait for the end of the scores before they read V. These heads run on multiprocessors
    // that still score keys. The heads of the last sequence must read V before them, while memory is idle (6 x 30k: 1.1 us
    // less).
    int late, late_end;
    size_t head_state_at; // of this layer in a session's state, after newest_norms: head_state [n_heads], with a stated error
    double share;         // epsilon / (1 + epsilon); 0: S draws
    int bernstein;
    double z[MOST_TRIES] = {}, log_term[MOST_TRIES] = {}; // of try i + 1: z(1 - delta / 2), ln(2 / delta)
};

// The query head of a thread block.
struct head {
    sl_row row;
    head_view masses;          // without running masses
    int top[TAKE_WARPS];       // largest reference of each warp's blocks
    uint64_t mass[TAKE_WARPS]; // sum of the warp's block masses, relative to `top`
    sl_rng_id id;
    int n;
};

// A take_space whose sizes are computed from masses and norms.
struct sized_space : take_space {
    const bf16 *norms, *newest; // norms: of the KV head, page i of the pool at i * stride. newest: of the newest page
    const int32_t *page;        // of the sequence, in shared memory
    int stride, n_built;        // n_built: rows of built pages
};

struct block_shared {
    sized_space take;
    head at;
    float columns[TAKE_WARPS][DIM_MAX];
    float square[TAKE_WARPS];
    int32_t page[TILES_MAX];
    int row[TAKE_THREADS]; // pool rows; a warp writes only 32 places: its lanes'
    float coef[TAKE_THREADS];
};
enum {
    SCORE_SHARED_BYTES = (sizeof(score_shared) + 127) / 128 * 128,
    SHARED_BYTES = (sizeof(block_shared) + 15) / 16 * 16, // block masses follow
};

// ---- norms of the newest page ----

// Stores the norms of rows that are new since the last step. In most steps there is one new row. Each seq_head has one warp. In
// a new page, the norms after the last row become 0.
template <int DIM> __device__ void store_newest_norms(const score_params &p, const bf16 *v, int thread) {
    sl_wait_previous(); // the newest row
    sl_start_next();    // from now on the draw kernel may read `done`, which the previous launch must have set to 0
    int lane = thread % 32, n_seq_heads = p.n_seqs * p.n_kv_heads;
    for (int seq_head = thread / 32 * gridDim.x + blockIdx.x; seq_head < n_seq_heads;
         seq_head += NORM_THREADS / 32 * gridDim.x) {
        const sl_row row = p.rows[seq_head / p.n_kv_heads];
        newest_norms *norms = newest_norms_of(p, seq_head);
        int page = row.position / SL_PAGE, first = page * SL_PAGE, from = min(max(norms->n, first), row.position);
        int end = from == first ? first + SL_PAGE : row.position + 1;
        const bf16 *values = v + ((size_t)row.pages[page] * p.n_kv_heads + seq_head % p.n_kv_heads) * SL_PAGE * DIM;
        for (int j = from + lane; j < end; j += 32)
            __stcg(norms->norm + j - first, j <= row.position ? sl_norm_of_row(values + (j - first) * DIM, DIM) : (bf16)0);
        __syncwarp();
        if (lane > 0) continue;
        norms->n = row.position + 1;
        add_released(p.newest_done + seq_head, 1);
    }
}

// ---- sizes, computed from masses and norms ----

// The stored data from which 8 sizes follow.
struct sized_piece {
    uint4 w, norms;
};

// Norms of the rows from `row` on, in the page extra or in the session's state.
__device__ const bf16 *norms_of(const sized_space *s, int row) {
    return row < s->n_built ? s->norms + (size_t)s->page[row / SL_PAGE] * s->stride + row % SL_PAGE
                            : s->newest + row - s->n_built;
}

__device__ sized_piece stored_piece(const sized_space *s, int b, int i) {
    return {stored_piece((const take_space *)s, b, i), __ldcg((const uint4 *)norms_of(s, b * BLOCK) + i)};
}

__device__ uint4 sizes_of(const sized_piece &x, uint64_t packed) {
    int unit = size_unit_of(packed);
    return {size_of_product(product_of(x.w.x, x.norms.x), unit), size_of_product(product_of(x.w.y, x.norms.y), unit),
            size_of_product(product_of(x.w.z, x.norms.z), unit), size_of_product(product_of(x.w.w, x.norms.w), unit)};
}

__device__ uint32_t size_of_row(const sized_space *s, int b, int row) {
    uint32_t norm = __ldcg(norms_of(s, b * BLOCK) + row);
    return size_of_product(product_of(size_of_row((const take_space *)s, b, row), norm), size_unit_of(mass_of(s, b))) & 0xffff;
}

// ---- one query head ----

// Sums all block masses. Each warp sums a part of them.
__device__ void sum_masses(head *x, int thread) {
    uint64_t packed[8], sum = 0;
    int top = REF_EMPTY;
    for (int first = thread * 8; first - thread * 8 < x->masses.n_blocks; first += 8 * TAKE_THREADS) {
        int before = top;
        load_masses<8>(x->masses, first, packed);
#pragma unroll
        for (int j = 0; j < 8; j++) top = max(top, ref_of(packed[j]));
        top = __reduce_max_sync(~0u, top);
        sum = top - before < 64 ? sum >> (top - before) : 0;
#pragma unroll
        for (int j = 0; j < 8; j++) sum += global_mass(packed[j], top);
    }
    sum = sum_lanes(sum);
    if (thread % 32 == 0) x->top[thread / 32] = top, x->mass[thread / 32] = sum;
}

// 2^e; 0 below the normal numbers.
__device__ double power_of_two(int e) {
    return __hiloint2double((1023 + max(e, -1023)) << 20, 0);
}

struct normaliser {
    int top; // 2^top is the unit of masses
    double inverse;
};

// The largest reference of the head's masses.
__device__ int largest_reference(const head &x) {
    int top = REF_EMPTY;
    for (int i = 0; i < TAKE_WARPS; i++) top = max(top, x.top[i]);
    return top;
}

__device__ normaliser normaliser_of(const head &x) {
    int top = largest_reference(x);
    double sum = 0;
    for (int i = 0; i < TAKE_WARPS; i++) sum += (double)x.mass[i] * power_of_two(x.top[i] - top - 38);
    return {top, 1 / sum};
}

// p_j of row j. The normaliser is the same for all rows. It is computed here, because the row mass is in flight at this place.
__device__ double probability_of(const head &x, int j) {
    int ref = ref_of(__ldcg(x.masses.mass + j / BLOCK));
    bf16 w = __ldcg(x.masses.w + (size_t)(j / BLOCK) * x.masses.stride + j % BLOCK);
    normaliser z = normaliser_of(x);
    return (double)__uint_as_float((uint32_t)w << 16) * power_of_two(ref - z.top) * z.inverse;
}

// p_j / pi_j of a row, computed while rows of V are in flight (gather).
struct pps_factor {
    enum { IS_LATE = 1 };
    const block_shared *s;
    const drawn_row &x;
    __device__ float find() const { return x.row < 0 ? 0 : (float)(probability_of(s->at, x.row) * inverse_pi(&s->take, x)); }
};

// Adds this thread's row of the sequence, times p_j / pi_j, to the sum. Returns how many rows its warp read.
template <int DIM> __device__ int add_row(const pps_params &p, block_shared *s, const drawn_row &x, row_sum *sum, int thread) {
    int row = x.row,
        pool = row < 0 ? -1 : (s->page[row / SL_PAGE] * p.score.n_kv_heads + s->at.masses.kv_head) * SL_PAGE + row % SL_PAGE;
    return gather<DIM, 8>(p.draw.v, s, thread, pool, pps_factor{s, x}, sum);
}

// Column `thread` of the sum over the rows of s->take.drawn.
template <int DIM> __device__ float sum_draws(const pps_params &p, block_shared *s, uint32_t index, int *n_read, int thread) {
    row_sum sum = {};
    *n_read = 0;
    for (int turn = 0; turn < turns_of(&s->take); turn++) {
        drawn_row x = row_of_turn(&s->take, p.shared, s->at.id, index, turn, thread);
        *n_read += add_row<DIM>(p, s, x, &sum, thread);
    }
    return join_columns<DIM>(s->columns, sum, thread);
}

// Column `thread` of the sum over all rows.
template <int DIM> __device__ float sum_all(const pps_params &p, block_shared *s, int *n_read, int thread) {
    row_sum sum = {};
    *n_read = 0;
    for (int j = thread; j - thread < s->at.n; j += TAKE_THREADS)
        *n_read += add_row<DIM>(p, s, {j < s->at.n ? j : -1, 0}, &sum, thread);
    return join_columns<DIM>(s->columns, sum, thread);
}

// Column `thread` of exact attention.
template <int DIM> __device__ float exact_column(const pps_params &p, block_shared *s, int seq_head, int h, int thread) {
    if (thread < 32)
        attend_exactly<DIM>(exact_head_of(p.score, p.draw.v, p.draw.stats, s->at.row, seq_head, h, DIM), s->columns[0]);
    __syncthreads();
    return thread < DIM ? s->columns[0][thread] : 0;
}

// ---- a stated error ----

// Error bound of k draws from light rows of total size `light`, in try i.
__device__ double error_bound(const pps_params &p, int i, double light, int k) {
    if (light <= 0) return 0;
    double kappa = light / k, B = kappa * light;
    if (!p.bernstein && k >= FEW) return p.z[i - 1] * sqrt(B);
    return sqrt(2 * B * p.log_term[i - 1]) + 4.0 / 3 * kappa * p.log_term[i - 1];
}

// The largest kappa whose bound is within target.
__device__ double widest_kappa(const pps_params &p, int i, double light, double target) {
    enum { MARGIN = FEW + 4 }; // when k is rounded to an integer, more rows can become heavy, and fewer light draws remain
    double a = 4.0 / 3 * p.log_term[i - 1], b = sqrt(2 * light * p.log_term[i - 1]), x = target / p.z[i - 1];
    double root = 2 * target / (b + sqrt(b * b + 4 * a * target)), kappa = root * root; // solves a root^2 + b root = target
    return p.bernstein ? kappa : fmax(kappa, fmin(x * x / light, light / MARGIN));
}

// Returns a number of draws with which the bound is within target. It is near the smallest such number. 0: the number is more
// than half of the rows. The light size and kappa approach their limits from the safe side, so the plan is valid after any
// number of rounds.
__device__ int plan(const pps_params &p, block_shared *s, int i, double target, int thread) {
    enum { MOST_ROUNDS = 12 };
    const size_view &z = s->take.sizes;
    uint64_t light = z.total, heavy;
    double kappa = 0;
    int n_heavy = 0;
    for (int round = 0; round < MOST_ROUNDS && light > 0; round++) {
        kappa = widest_kappa(p, i, (double)light, target);
        split(&s->take, (uint64_t)kappa, &n_heavy, &heavy, thread);
        if (z.total - heavy == light) break;
        light = z.total - heavy;
    }
    double S = n_heavy + (light > 0 ? ceil((double)light / kappa) : 0);
    return S <= z.n / 2 ? max((int)S, 1) : 0;
}

__device__ float norm_of(block_shared *s, float x, int thread) { // norm of a vector; each thread has one element, x
    x *= x;
    for (int step = 1; step < 32; step *= 2) x += __shfl_xor_sync(~0u, x, step);
    __syncthreads();
    if (thread % 32 == 0) s->square[thread / 32] = x;
    __syncthreads();
    x = 0;
    for (int i = 0; i < TAKE_WARPS; i++) x += s->square[i];
    return sqrtf(x);
}

struct outcome {
    int n_read; // rows that the warp read for the head's output
    int n_samples, tries;
    bool dense;
};

// Column `thread` of the head's output. Try 0 is the pilot.
template <int DIM> __device__ float certify(const pps_params &p, block_shared *s, head_state *before, outcome *o, int thread) {
    const take_all &r = s->take.drawn;
    bool planned = before->next && before->next == (uint32_t)s->at.row.position;
    float norm = planned ? before->norm : 0, out = 0;
    for (int i = 0, S = PILOT;; i++) {             // ends by break
        take_all_solve(&s->take, S, NULL, thread); // the pilot's call also finds the total size
        normaliser z = normaliser_of(s->at);
        double unit = exp2((double)(s->take.sizes.top - z.top - 38)) * z.inverse; // of sizes, relative to the output
        if (i > 0 || !planned) {
            out = sum_draws<DIM>(p, s, sl_try_index(i, 0), &o->n_read, thread);
            norm = norm_of(s, out, thread);
            o->n_samples = r.n_heavy + r.k, o->tries = i;
        }
        if (i > 0 && unit * error_bound(p, i, (double)r.light, r.k) <= p.share * norm) break;
        if (i < MOST_TRIES) S = plan(p, s, i + 1, (i ? 0.8 : 0.95) * p.share * norm / unit, thread);
        if (i < MOST_TRIES && S > 0) continue;
        o->dense = true;
        out = sum_all<DIM>(p, s, &o->n_read, thread);
        o->n_samples = s->at.n;
        break;
    }
    norm = norm_of(s, out, thread);
    if (thread == 0) *before = {(uint32_t)s->at.row.position + 1, norm};
    return out;
}

// ---- the kernels ----

// Adds a head's counts to the statistics.
__device__ void count(sl_attn_cuda_stats *stats, const outcome &o, int row_bytes, int thread) {
    if (!stats || thread % 32 > 0) return;
    atomicAdd(&stats->v_rows, (unsigned long long)o.n_read);
    atomicAdd(&stats->bytes, (unsigned long long)o.n_read * row_bytes);
    if (thread > 0) return;
    atomicAdd(&stats->samples, (unsigned long long)o.n_samples);
    if (o.tries) atomicAdd(&stats->tries, (unsigned long long)o.tries);
    if (o.dense) atomicAdd(&stats->fallbacks, 1ull);
}

// Stores masses and block masses of sizes for all rows of all heads.
//
// Grid: one thread block per multiprocessor, for any lengths.
// Preconditions: as in santa_ring_kernel (santa.cu). Before the previous kernel has ended, the kernel also reads page extras.
// Bytes: reads K and the norms (2 bytes for each row and KV head) once, and the newest row's V. Writes 2 + 1/2 bytes of masses
// for each row and query head.
template <int DIM, typename Config> __global__ void __maxnreg__(144) pps_score_kernel(const score_params p, const bf16 *v) {
    extern __shared__ __align__(128) char memory[];
    score_shared *shared = (score_shared *)memory;
    ring r = {shared, memory + SCORE_SHARED_BYTES, p.n_stages, layout<DIM, Config>::stage(p.group), 0, 0};
    int warp = threadIdx.x / 32;
    producer to;
    if (warp == SCORE_WARPS + NORM_THREADS / 32) to = produce_begin(p, r);
    score_begin<Config>(shared, 32 * Config::SIZE);
    __syncthreads();
    if (warp < SCORE_WARPS)
        consume<DIM, Config>(p, r);
    else if (warp < SCORE_WARPS + NORM_THREADS / 32)
        store_newest_norms<DIM>(p, v, threadIdx.x - 32 * SCORE_WARPS);
    else
        produce<DIM, Config>(p, to);
}

// out = sum_j c_j (p_j / pi_j) v_j, c_j from S draws of take-all + PPS with size p_j |v_j|. CERTIFIED: S is as large as a
// stated error needs.
//
// Grid: one thread block per query head of all sequences.
// Preconditions: `released` is 0. `released`, `done` and newest_done are 0 at the end. Before the previous kernel has ended,
// the kernel reads only lengths, page tables and the masses that `done` announces.
// Bytes: block masses; row masses (from the L2 cache) and norms of blocks with candidates or draws; drawn rows of V. CERTIFIED:
// the same again for each try.
// Order of reduction: masses are integers. A warp adds its rows of each TAKE_THREADS rows in order, heavy rows before light
// rows. Then the sums of the warps are added in order. With 96 registers a thread, a thread block fits on a multiprocessor that
// also runs a thread block of the scores, and the kernel with S draws has no spills.
template <int DIM, bool CERTIFIED> __global__ void __maxnreg__(96) pps_draw_kernel(const pps_params p) {
    extern __shared__ __align__(128) char memory[];
    block_shared *s = (block_shared *)memory;
    const score_params &scores = p.score;
    int thread = threadIdx.x, index = blockIdx.x, seq_head = index / scores.group, h = index % scores.group;
    outcome o = {};
    float out;
    sl_start_next();
    const sl_row row = scores.rows[seq_head / scores.n_kv_heads];
    head_view masses = view_of(scores, row, seq_head, h);
    sl_rng_id id = rng_of(p.draw, row, seq_head % scores.n_kv_heads * scores.group + h);
    copy_pages(s->page, row, thread);
    if (thread == 0) {
        s->at.row = row, s->at.n = row.position + 1, s->at.masses = masses, s->at.id = id;
        s->take.norms = scores.norms + masses.kv_head * SL_PAGE, s->take.stride = scores.n_kv_heads * SL_PAGE;
        s->take.newest = newest_norms_of(scores, seq_head)->norm, s->take.n_built = row.position / SL_PAGE * SL_PAGE;
        s->take.page = s->page;
    }
    take_all_prepare(&s->take, memory + SHARED_BYTES, scores.size_mass + (masses.mass - scores.mass), masses.w, masses.stride,
                     row.position + 1, 0, id, thread);
    wait_done(scores.done + seq_head, done_target(SCORE_WARPS, row.position + 1), thread);
    take_all_begin(&s->take, thread);
    sum_masses(&s->at, thread);
    if (!CERTIFIED) take_all_solve(&s->take, p.draw.S, NULL, thread);
    if (CERTIFIED) __syncthreads(); // all warps have stored their largest references
    if (is_beyond(largest_reference(s->at))) {
        out = exact_column<DIM>(p, s, seq_head, h, thread);
    } else if (CERTIFIED) {
        out = certify<DIM>(p, s, (head_state *)(row.state + p.head_state_at) + s->at.id.head - p.draw.first_head, &o, thread);
    } else {
        if (index >= p.late && index < p.late_end) sl_wait_previous();
        out = sum_draws<DIM>(p, s, 0, &o.n_read, thread);
        o.n_samples = s->take.drawn.n_heavy + s->take.drawn.k;
    }
    int before = release_seq_head(p.draw.released + seq_head, seq_head == scores.n_seqs * scores.n_kv_heads - 1, thread);
    if (thread < DIM) p.draw.out[(size_t)index * DIM + thread] = __bfloat16_as_ushort(__float2bfloat16_rn(out));
    count(p.draw.stats, o, DIM * sizeof(bf16), thread);
    before = thread < 32 ? __shfl_sync(~0u, before, 0) : 0;
    if (thread < 32 && before == scores.group - 1) { // the last head of the seq_head
        if (thread == 0) p.draw.released[seq_head] = scores.done[seq_head] = scores.newest_done[seq_head] = 0;
        discard_stored(scores, seq_head, row.position + 1, thread, 32);
    }
}

// ---- launch ----

// Whether the method has a stated error.
int certifies(const sl_attn_spec *spec) {
    return sl_attn_get(spec, "epsilon") > 0;
}

size_t lay_out(const sl_attn_geom *geom, int n_seqs, int n_kv, void *ws, pps_params *p) {
    arena a = after_counters(ws);
    take_masses(&a, &p->score, geom, n_seqs, n_kv);
    p->score.size_mass = a.take<uint64_t>(n_block_masses(geom, n_seqs, n_kv));
    return bytes_taken(a, ws);
}

size_t workspace(const sl_attn_geom *geom, const sl_attn_spec *, int n_seqs, int, int n_kv) {
    pps_params p;
    return lay_out(geom, n_seqs, n_kv, NULL, &p);
}

template <int DIM> pps_params params_of(const sl_attn_cuda_decode_args *a) {
    double epsilon = sl_attn_get(a->spec, "epsilon"), delta = sl_attn_get(a->spec, "delta");
    int n_heads = a->n_seqs * a->geom->n_heads;
    pps_params p = {.score = score_params_of<DIM>(a),
                    .draw = draw_params_of(a, (int)sl_attn_get(a->spec, "S")),
                    .shared = !certifies(a->spec) && sl_attn_get(a->spec, "pps") == 1,
                    .late = n_heads - sl_multiprocessors(),
                    .late_end = n_heads - a->geom->n_heads,
                    .head_state_at = a->state_at + a->geom->n_kv_heads * sizeof(newest_norms),
                    .share = epsilon / (1 + epsilon),
                    .bernstein = sl_attn_get(a->spec, "bound") == 1};
    SL_CHECK(a->max_kv <= DRAW_ROWS_MAX && a->extra[0] && a->extra_size[0] == SL_PAGE * sizeof(bf16));
    p.draw.parts = 1;
    p.score.top = NULL;
    p.score.norms = (const bf16 *)a->extra[0];
    p.score.state_at = a->state_at;
    p.score.newest_done = p.draw.merged; // no head is drawn in parts, so `merged` is free
    lay_out(a->geom, a->n_seqs, a->max_kv, a->ws, &p);
    for (int i = 0; i < MOST_TRIES; i++) {
        double of_try = delta / exp2(i + 1);
        p.z[i] = sl_normal_quantile(1 - of_try / 2), p.log_term[i] = log(2 / of_try);
    }
    return p;
}

template <int DIM, bool LONG> void launch_score(const sl_attn_cuda_decode_args *a, score_params p) {
    typedef score_config<true, LONG> config;
    size_t bytes = set_tiles<DIM, config>(&p, SCORE_SHARED_BYTES);
    sl_launch(pps_score_kernel<DIM, config>, dim3(sl_multiprocessors()), dim3(SCORE_THREADS), bytes, a->stream, p, a->v);
}

template <int DIM> void launch(const sl_attn_cuda_decode_args *a) {
    pps_params p = params_of<DIM>(a);
    if (uses_long_tiles(p.score, true))
        launch_score<DIM, true>(a, p.score);
    else
        launch_score<DIM, false>(a, p.score);
    sl_launch(certifies(a->spec) ? pps_draw_kernel<DIM, true> : pps_draw_kernel<DIM, false>, dim3(a->n_seqs * a->geom->n_heads),
              dim3(TAKE_THREADS), SHARED_BYTES + take_all_memory(ceil_div(a->max_kv, BLOCK)), a->stream, p);
}

void decode(const sl_attn_cuda_decode_args *args) {
    SL_WITH_HEAD_DIM(args->geom->head_dim, launch, args);
}

int needs(const sl_attn_spec *, sl_kv_need *out) {
    out[0] = {&sl_page_norms, 0};
    return 1;
}

size_t state(const sl_attn_geom *geom, const sl_attn_spec *spec) {
    size_t bytes = geom->n_kv_heads * sizeof(newest_norms) + (certifies(spec) ? geom->n_heads * sizeof(head_state) : 0);
    return (bytes + 15) / 16 * 16;
}

// Counts all keys and norms. The kernel counts the rows of V.
void account_keys_and_norms(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_kv, sl_attn_stats *stats) {
    account_all_keys(geom, spec, n_kv, stats);
    stats->bytes += (uint64_t)n_kv * geom->n_kv_heads * sizeof(bf16);
}

} // namespace

const sl_attn_cuda_ops sl_santa_pps_cuda_ops = {.workspace = workspace,
                                                .decode = decode,
                                                .needs = needs,
                                                .state = state,
                                                .max_rows = DRAW_ROWS_MAX,
                                                .account = account_keys_and_norms,
                                                .prefill = NULL};
