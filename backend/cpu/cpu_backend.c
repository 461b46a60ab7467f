// backend/cpu/cpu_backend.c - the CPU backend: chooses the instruction set and splits the work over threads.
//
// Each engine has a CPU backend of its own: a number of threads, the scratch memory of prefill, and the other ranks of a
// tensor-parallel run. Process-wide state: the instruction set, which SLEIGH_ISA chooses.
#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/cpu_ranks.h"
#include "backend/cpu/int_ops.h"
#include "backend/dummy_weights.h"
#include "base/host_cpus.h"
#include "base/host_memory.h"
#include "base/thread_pool.h"
#include "kv/kv.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    MOST_THREADS = 1024,
    SMALL = 1 << 14,   // elements below which threads cost more than they save
    INT_ROWS = 64,     // rows of x that are rounded to integers at a time
    ORDERED_ROWS = 64, // rows of x that are brought into the order of a weight's columns at a time
    SENT_ROWS = 64,    // rows whose sums the ranks exchange at a time
};

// The object behind the const sl_backend of an engine.
typedef struct cpu_backend {
    sl_backend table; // first, so that a pointer to it is a pointer to the object
    int n_threads;
    char *scratch; // grow_scratch
    size_t scratch_size;
    int n_kv_heads; // of the model, in all ranks; 0 before `prepare`: sums have one leaf
    sl_comm *comm;  // the ranks that share the model; NULL: one rank
    float *part;    // with comm: [SL_PREFILL_ROWS][hidden] this rank's sums, then [n][SENT_ROWS][hidden] those of all ranks
} cpu_backend;

static _Atomic(const sl_cpu_ops *) chosen_ops;

static const sl_cpu_ops *ops(void) {
    return atomic_load_explicit(&chosen_ops, memory_order_relaxed);
}

// The table of the best instruction set that is not above the chosen one: all give equal bits.
static const sl_int_ops *int_ops(void) {
#if defined(__x86_64__)
    if (ops() == &sl_cpu_ops_avx512 && __builtin_cpu_supports("avx512vnni")) return &sl_int_ops_avx512;
    if (ops() != &sl_cpu_ops_portable) return &sl_int_ops_avx2;
#endif
    return &sl_int_ops_portable;
}

static cpu_backend *self(const sl_backend *be) {
    return (cpu_backend *)be;
}

static const sl_cpu_ops *const all_ops[] = {
#if defined(__x86_64__)
    &sl_cpu_ops_avx512,
    &sl_cpu_ops_avx2,
#endif
    &sl_cpu_ops_portable,
};

int sl_cpu_has(const char *isa) {
#if defined(__x86_64__)
    if (!strcmp(isa, "avx512"))
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq");
    if (!strcmp(isa, "avx2"))
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#endif
    return !strcmp(isa, "portable");
}

const char *sl_cpu_isa(void) {
    return ops()->isa;
}

int sl_cpu_choose(sl_error *err) {
    const char *forced = getenv("SLEIGH_ISA");
    for (size_t i = 0; i < sizeof all_ops / sizeof *all_ops; i++) {
        if (forced && *forced && strcmp(forced, all_ops[i]->isa)) continue;
        if (!sl_cpu_has(all_ops[i]->isa)) continue;
        atomic_store(&chosen_ops, all_ops[i]);
        return 0;
    }
    return sl_fail(err, SL_ERR_ARG, "SLEIGH_ISA=%s: expected avx512, avx2 or portable, and one that this processor has",
                   forced);
}

int sl_cpu_cores(void) {
    int n = sl_host_cpus("");
    return n < MOST_THREADS ? n : MOST_THREADS;
}

void sl_cpu_arithmetic(char *buf, size_t size) {
    snprintf(buf, size, "%s", ops()->isa);
}

static void describe(const sl_backend *be, char *buf, size_t size) {
    int n = self(be)->n_threads;
    snprintf(buf, size, "%s, %d thread%s", ops()->isa, n, n == 1 ? "" : "s");
}

static void embed(const sl_backend *be, const sl_weight *table, const int32_t *ids, int n_rows, float *x) {
    (void)be;
    int n = table->n_cols;
    SL_CHECK(!table->order);
    for (int r = 0; r < n_rows; r++) ops()->widen(table, (size_t)ids[r], 0, n, x + (size_t)r * n);
}

// Runs the tasks on the threads of the pool, or on the calling thread if the work is small.
static void spread(int is_large, size_t n, sl_task task, void *ctx) {
    if (is_large)
        sl_parallel(n, task, ctx);
    else
        for (size_t i = 0; i < n; i++) task(ctx, i, 0);
}

typedef struct norm_call {
    const float *x;
    const sl_weight *w;
    float eps;
    float *out;
} norm_call;

static void norm_row(void *ctx, size_t r, int thread) {
    (void)thread;
    const norm_call *c = ctx;
    ops()->rmsnorm(c->x + r * c->w->n_cols, c->w, c->eps, c->out + r * c->w->n_cols);
}

static void rmsnorm(const sl_backend *be, const float *x, const sl_weight *w, int n_rows, float eps, void *out) {
    (void)be;
    sl_weight_check_plain(w);
    spread((size_t)n_rows * w->n_cols > SMALL, n_rows, norm_row, &(norm_call){x, w, eps, out});
}

// ---- linear layers ----

typedef struct linear_call {
    const sl_weight *w;
    const float *x;
    int n_rows, n_leaves, accumulate;
    float *out;
} linear_call;

enum { STEP = 16 }; // outputs that one thread computes at a time

static void decode_piece(void *ctx, size_t p, int thread) {
    (void)thread;
    const linear_call *c = ctx;
    int from = (int)p * STEP, to = from + STEP < c->w->n_rows ? from + STEP : c->w->n_rows;
    ops()->linear(c->w, c->x, c->n_rows, from, to, c->n_leaves, c->accumulate, c->out);
}

static void linear_decode(const sl_weight *w, const float *x, int n_rows, int n_leaves, int accumulate, float *out) {
    linear_call c = {.w = w, .x = x, .n_rows = n_rows, .n_leaves = n_leaves, .accumulate = accumulate, .out = out};
    spread((size_t)w->n_rows * w->n_cols > SMALL, (w->n_rows + STEP - 1) / STEP, decode_piece, &c);
}

// The blocks of INT_ROWS rows, in bytes.
static size_t blocks_size(int n_cols) { // for int8, which has the most blocks
    return (size_t)INT_ROWS * (((size_t)n_cols + SL_INT_BYTES - 1) / SL_INT_BYTES) * sizeof(sl_int_block);
}

// The parts of the scratch memory, in bytes, each a multiple of 64. Prefill: a part for each thread, and packed rows.
static size_t parts_size(const cpu_backend *c) {
    return (size_t)c->n_threads * SL_PREFILL_PART * sizeof(float);
}
static size_t packed_size(int n_cols) {
    return (size_t)SL_PREFILL_ROWS * n_cols * sizeof(float);
}
static size_t ordered_size(int n_cols) {
    return (size_t)ORDERED_ROWS * n_cols * sizeof(float);
}

static char *grow_scratch(cpu_backend *c, int n_cols) { // NULL: no memory
    size_t size = parts_size(c) + packed_size(n_cols) + ordered_size(n_cols) + blocks_size(n_cols);
    if (size > c->scratch_size) {
        free(c->scratch);
        c->scratch = aligned_alloc(64, size);
        c->scratch_size = c->scratch ? size : 0;
    }
    return c->scratch;
}

// SL_ERR_UNSUPPORTED: a leaf of a row-parallel weight would lie on two ranks. what: names the columns
static int check_leaves(const cpu_backend *c, const char *what, int n_cols, sl_error *err) {
    int n = sl_comm_n(c->comm), all = n * n_cols;
    if (sl_cpu_leaves(c->n_kv_heads, all) >= n) return 0;
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "{tensor_parallel} %d: this model has %d %s; on the CPU, each rank needs a multiple of %d of them", n, all,
                   what, SL_LEAF_UNIT);
}

// Allocates the scratch memory that prefills of this shape need, so that no prefill fails for lack of memory.
static int prepare(const sl_backend *be, const sl_shape *shape, sl_error *err) {
    cpu_backend *c = self(be);
    int q_dim = shape->n_heads * shape->head_dim, n = shape->hidden > shape->n_ffn ? shape->hidden : shape->n_ffn;
    c->n_kv_heads = shape->n_kv_heads * sl_comm_n(c->comm);
    int rc = check_leaves(c, "columns of attention (query heads x head_dim)", q_dim, err);
    if (!rc) rc = check_leaves(c, "columns of the MLP (intermediate_size)", shape->n_ffn, err);
    if (rc) return rc;
    free(c->part);
    size_t rows = SL_PREFILL_ROWS + (size_t)sl_comm_n(c->comm) * SENT_ROWS;
    c->part = c->comm ? malloc(rows * (size_t)shape->hidden * sizeof *c->part) : NULL;
    if (grow_scratch(c, n > q_dim ? n : q_dim) && (c->part || !c->comm)) return 0;
    return sl_fail(err, SL_ERR_MEMORY, "scratch memory for prefills on %d threads cannot be allocated", c->n_threads);
}

enum { MOST_WEIGHTS = 3 }; // q, k and v

typedef struct prefill_call {
    const sl_weight *w[MOST_WEIGHTS];
    float *out[MOST_WEIGHTS];
    const float *x;
    int n_weights, n_rows, step, n_leaves, accumulate;
    float *packed;
    float *parts; // [thread][SL_PREFILL_PART]
} prefill_call;

static void pack_block(void *ctx, size_t block, int thread) {
    (void)thread;
    const prefill_call *c = ctx;
    ops()->pack(c->w[0], c->x, c->n_rows, c->n_leaves, (int)block, c->packed);
}

static size_t n_pieces(const prefill_call *c, int weight) {
    return (size_t)(c->w[weight]->n_rows + c->step - 1) / (size_t)c->step;
}

static void prefill_piece(void *ctx, size_t p, int thread) {
    const prefill_call *c = ctx;
    int i = 0;
    for (; p >= n_pieces(c, i); i++) p -= n_pieces(c, i);
    int from = (int)p * c->step, to = from + c->step < c->w[i]->n_rows ? from + c->step : c->w[i]->n_rows;
    ops()->prefill(c->w[i], c->packed, c->n_rows, from, to, c->n_leaves, c->accumulate, c->out[i],
                   c->parts + SL_PREFILL_PART * (size_t)thread);
}

// Outputs of one piece. Many threads get smaller pieces, so that each has some.
static int prefill_step(int n_outs, int n_threads) {
    enum { LEAST = 12 }; // a multiple of the outputs of each instruction set's tile
    int step = SL_PREFILL_OUTS;
    while (step > LEAST && n_outs < 2 * step * n_threads) step -= LEAST;
    return step;
}

// Multiplies x by weights with equal orders of their columns, so that x is packed once. all: the members before n_rows.
static void linear_prefill(cpu_backend *c, prefill_call all, int n_rows) {
    int n = all.w[0]->n_cols, n_outs = 0;
    char *scratch = grow_scratch(c, n);
    SL_CHECK(scratch != NULL); // because prepare has allocated the memory
    SL_CHECK(sl_threads_n() <= c->n_threads);
    for (int i = 0; i < all.n_weights; i++) n_outs += all.w[i]->n_rows;
    all.step = prefill_step(n_outs, c->n_threads);
    all.parts = (float *)scratch, all.packed = (float *)(scratch + parts_size(c));
    size_t pieces = 0;
    for (int i = 0; i < all.n_weights; i++) pieces += n_pieces(&all, i);
    for (; n_rows > 0; n_rows -= all.n_rows) {
        all.n_rows = n_rows < SL_PREFILL_ROWS ? n_rows : SL_PREFILL_ROWS;
        size_t blocks = (size_t)(all.n_rows + ops()->tile_rows - 1) / (size_t)ops()->tile_rows;
        spread((size_t)all.n_rows * n > SMALL, blocks, pack_block, &all);
        sl_parallel(pieces, prefill_piece, &all);
        all.x += (size_t)all.n_rows * n;
        for (int i = 0; i < all.n_weights; i++) all.out[i] += (size_t)all.n_rows * all.w[i]->n_rows;
    }
}

// ---- activations of 8 and 16 bits ----

typedef struct int_call {
    const sl_weight *w;
    const float *x;
    sl_int_block *blocks; // [n_rows][sl_int_blocks(w)]
    int n_rows, step, n_leaves, accumulate;
    float *out;
} int_call;

static void quantise_row(void *ctx, size_t r, int thread) {
    (void)thread;
    const int_call *c = ctx;
    int_ops()->quantise(c->w, c->x + r * c->w->n_cols, c->blocks + r * sl_int_blocks(c->w));
}

static void int_piece(void *ctx, size_t p, int thread) {
    (void)thread;
    const int_call *c = ctx;
    int from = (int)p * c->step, to = from + c->step < c->w->n_rows ? from + c->step : c->w->n_rows;
    int_ops()->linear(c->w, c->blocks, c->n_rows, from, to, c->n_leaves, c->accumulate, c->out);
}

// An output depends on its row of x and on nothing else, so prefill and decode have equal bits.
static void linear_int(cpu_backend *c, const sl_weight *w, const float *x, int n_rows, int n_leaves, int accumulate,
                       float *out) {
    enum { MANY = 16, MANY_STEP = 64 }; // rows of x with which more outputs at a time keep them in the cache
    char *scratch = grow_scratch(c, w->n_cols);
    SL_CHECK(scratch != NULL); // because prepare has allocated the memory
    sl_int_block *blocks = (sl_int_block *)(scratch + c->scratch_size - blocks_size(w->n_cols));
    for (int r = 0, rows; r < n_rows; r += rows) {
        rows = n_rows - r < INT_ROWS ? n_rows - r : INT_ROWS;
        int step = rows < MANY ? STEP : MANY_STEP;
        int_call call = {w, x + (size_t)r * w->n_cols, blocks, rows, step, n_leaves, accumulate, out + (size_t)r * w->n_rows};
        spread((size_t)rows * w->n_cols > SMALL, (size_t)rows, quantise_row, &call);
        spread((size_t)w->n_rows * w->n_cols > SMALL, (size_t)(w->n_rows + step - 1) / step, int_piece, &call);
    }
}

// x has the order of the weight's columns.
static void linear_in_order(cpu_backend *c, const sl_weight *w, const float *x, int n_rows, int n_leaves, int accumulate,
                            float *out) {
    if (w->activations != SL_ACT_FLOAT)
        linear_int(c, w, x, n_rows, n_leaves, accumulate, out);
    else
        linear_decode(w, x, n_rows, n_leaves, accumulate, out);
}

// A weight whose columns have another order: some rows of x at a time are brought into this order.
static void linear_ordered(cpu_backend *c, const sl_weight *w, const float *x, int n_rows, int n_leaves, int accumulate,
                           float *out) {
    int n = w->n_cols;
    SL_CHECK(grow_scratch(c, n) != NULL); // because prepare has allocated the memory
    float *ordered = (float *)(c->scratch + parts_size(c) + packed_size(n));
    for (int r = 0, rows; r < n_rows; r += rows) {
        rows = n_rows - r < ORDERED_ROWS ? n_rows - r : ORDERED_ROWS;
        for (int j = 0; j < rows; j++)
            for (int i = 0; i < n; i++) ordered[(size_t)j * n + i] = x[(size_t)(r + j) * n + w->order[i]];
        linear_in_order(c, w, ordered, rows, n_leaves, accumulate, out + (size_t)r * w->n_rows);
    }
}

static void product(cpu_backend *c, const sl_weight *w, const float *x, int n_rows, sl_linear_mode mode, int n_leaves,
                    int accumulate, float *out) {
    const prefill_call all = {.w = {w}, .out = {out}, .x = x, .n_weights = 1, .n_leaves = n_leaves, .accumulate = accumulate};
    if (mode == SL_LINEAR_PREFILL && w->activations == SL_ACT_FLOAT)
        linear_prefill(c, all, n_rows);
    else
        (w->order ? linear_ordered : linear_in_order)(c, w, x, n_rows, n_leaves, accumulate, out);
}

// ---- row-parallel products: the columns of the weight lie on all ranks ----

enum { SUM_STEP = 4096 };

typedef struct sum_call {
    float *all; // [n][size], changed
    int n;
    size_t size;
    float *out;
} sum_call;

// Adds the ranks' sums as the top of the tree of leaves (leaves.h), and then this sum to out.
static void sum_piece(void *ctx, size_t piece, int thread) {
    (void)thread;
    const sum_call *c = ctx;
    size_t from = piece * SUM_STEP, left = c->size - from, n = left < SUM_STEP ? left : SUM_STEP;
    sl_add_leaves(c->n, c->size, 1, n, n, c->all + from);
    for (size_t i = 0; i < n; i++) c->out[from + i] += c->all[from + i];
}

// part: [n_rows][n_outs] this rank's sums
static void add_ranks(cpu_backend *c, const float *part, int n_rows, int n_outs, float *out) {
    float *all = c->part + (size_t)SL_PREFILL_ROWS * (size_t)n_outs;
    for (int r = 0, rows; r < n_rows; r += rows) {
        rows = n_rows - r < SENT_ROWS ? n_rows - r : SENT_ROWS;
        size_t size = (size_t)rows * (size_t)n_outs;
        c->comm->all_gather(c->comm, part + (size_t)r * n_outs, size, all);
        sum_call call = {.all = all, .n = c->comm->n, .size = size, .out = out + (size_t)r * n_outs};
        spread(size > SMALL, (size + SUM_STEP - 1) / SUM_STEP, sum_piece, &call);
    }
}

// out += x w^T, summed over the ranks. w, x: this rank's columns
static void linear_residual(cpu_backend *c, const sl_weight *w, const float *x, int n_rows, sl_linear_mode mode, float *out) {
    int n = sl_comm_n(c->comm), n_leaves = c->n_kv_heads ? sl_cpu_leaves(c->n_kv_heads, w->n_cols * n) / n : 1;
    if (!c->comm) {
        product(c, w, x, n_rows, mode, n_leaves, 1, out);
        return;
    }
    for (int r = 0, rows; r < n_rows; r += rows) {
        rows = n_rows - r < SL_PREFILL_ROWS ? n_rows - r : SL_PREFILL_ROWS;
        product(c, w, x + (size_t)r * w->n_cols, rows, mode, n_leaves, 0, c->part);
        add_ranks(c, c->part, rows, w->n_rows, out + (size_t)r * w->n_rows);
    }
}

// A product that is added to `out` is one that is added to the residual stream.
static void linear(const sl_backend *be, const sl_weight *w, const void *x, int n_rows, sl_linear_mode mode, int accumulate,
                   float *out) {
    if (accumulate)
        linear_residual(self(be), w, x, n_rows, mode, out);
    else
        product(self(be), w, x, n_rows, mode, 1, 0, out);
}

// Several weights and the same rows: out[i] = x w[i]^T.
static void linear_several(const sl_backend *be, int n, const sl_weight *const *w, const void *x, int n_rows,
                           sl_linear_mode mode, float *const *out) {
    int is_packed_once = mode == SL_LINEAR_PREFILL;
    prefill_call all = {.x = x, .n_weights = n, .n_leaves = 1};
    for (int i = 0; i < n; i++) {
        all.w[i] = w[i], all.out[i] = out[i];
        is_packed_once &= w[i]->activations == SL_ACT_FLOAT && !w[i]->order;
    }
    if (is_packed_once)
        linear_prefill(self(be), all, n_rows);
    else
        for (int i = 0; i < n; i++) linear(be, w[i], x, n_rows, mode, 0, out[i]);
}

static sl_normed linear_norm(const sl_backend *be, const sl_weight *w, const void *x, int n_rows, sl_linear_mode mode,
                             float *out, const sl_next_norm *norm) {
    linear(be, w, x, n_rows, mode, 1, out);
    rmsnorm(be, out, norm->w, n_rows, norm->eps, norm->rows);
    return (sl_normed){.rows = norm->rows};
}

// The layout of Hugging Face: dimension i is rotated with dimension i + head_dim / 2.
static void rotate(float *x, const float *cosine, const float *sine, int half) {
    for (int i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        x[i] = a * cosine[i] - b * sine[i];
        x[i + half] = b * cosine[i] + a * sine[i];
    }
}

static void rope_row(const sl_rope *rope, const sl_row *row, int n_heads, int n_kv_heads, float *q, float *k, const float *v,
                     sl_kv_rows layer) {
    int dim = rope->head_dim, half = dim / 2;
    float cosine[128], sine[128];
    for (int i = 0; i < half; i++) { // the angle in fp32, as transformers computes it
        float angle = (float)row->position * rope->inv_freq[i];
        cosine[i] = (float)cos((double)angle) * rope->scale;
        sine[i] = (float)sin((double)angle) * rope->scale;
    }
    for (int h = 0; h < n_heads; h++) rotate(q + h * dim, cosine, sine, half);
    for (int h = 0; h < n_kv_heads; h++) {
        size_t block = (size_t)row->pages[row->position / SL_PAGE] * n_kv_heads + h;
        rotate(k + h * dim, cosine, sine, half);
        sl_kv_store(layer.k, layer.formats.k, dim, block, row->position % SL_PAGE, k + h * dim,
                    layer.k_scales ? layer.k_scales[h] : 0);
        sl_kv_store(layer.v, layer.formats.v, dim, block, row->position % SL_PAGE, v + h * dim,
                    layer.v_scales ? layer.v_scales[h] : 0);
    }
}

enum { FEW_ROWS = 8 }; // rows of heads that one thread handles

typedef struct rope_call {
    const sl_rope *rope;
    const sl_row *rows;
    int n_heads, n_kv_heads;
    float *q, *k;
    const float *v;
    sl_kv_rows layer;
} rope_call;

static void rope_rows(void *ctx, size_t r, int thread) {
    (void)thread;
    const rope_call *c = ctx;
    size_t q_row = (size_t)c->n_heads * c->rope->head_dim, kv_row = (size_t)c->n_kv_heads * c->rope->head_dim;
    rope_row(c->rope, &c->rows[r], c->n_heads, c->n_kv_heads, c->n_heads ? c->q + r * q_row : NULL,
             c->n_kv_heads ? c->k + r * kv_row : NULL, c->n_kv_heads ? c->v + r * kv_row : NULL, c->layer);
}

void sl_cpu_rope_append(const sl_rope *rope, const sl_row *rows, int n_rows, int n_heads, int n_kv_heads, float *q, float *k,
                        const float *v, sl_kv_rows layer) {
    rope_call c = {rope, rows, n_heads, n_kv_heads, q, k, v, layer};
    SL_CHECK(rope->head_dim <= 256);
    spread(n_rows > FEW_ROWS, n_rows, rope_rows, &c);
}

typedef struct heads_call {
    float *x;
    int n_heads, head_dim;
    const sl_weight *bias, *norm;
    float eps;
} heads_call;

static void finish_row(void *ctx, size_t r, int thread) {
    (void)thread;
    const heads_call *c = ctx;
    for (int h = 0; h < c->n_heads; h++) {
        float *head = c->x + (r * c->n_heads + h) * c->head_dim, wide[256];
        if (c->bias) {
            ops()->widen(c->bias, 0, h * c->head_dim, c->head_dim, wide);
            for (int i = 0; i < c->head_dim; i++) head[i] += wide[i];
        }
        if (c->norm) ops()->rmsnorm(head, c->norm, c->eps, head);
    }
}

// x [n_rows][n_heads][head_dim]: adds the bias [n_heads * head_dim], then norms each head. NULL: no bias, no norm.
static void finish_heads(float *x, int n_rows, int n_heads, int head_dim, const sl_weight *bias, const sl_weight *norm,
                         float eps) {
    heads_call c = {x, n_heads, head_dim, bias, norm, eps};
    if (bias || norm) spread(n_rows > FEW_ROWS, n_rows, finish_row, &c);
}

static sl_queries qkv(const sl_backend *be, const sl_qkv *a) {
    size_t q_dim = a->q->n_rows, kv_dim = a->k->n_rows;
    int n = a->n_rows - a->first, dim = a->rope->head_dim;
    float *q = a->work, *k = q + a->n_rows * q_dim, *v = k + a->n_rows * kv_dim;
    const float *x = a->x.rows;
    const sl_kv_rows layer = {a->k_layer, a->v_layer, {a->k_format, a->v_format}, a->k_scales, a->v_scales};
    // q, too, if all rows need it
    linear_several(be, a->first ? 2 : 3, (const sl_weight *[]){a->k, a->v, a->q}, x, a->n_rows, a->mode, (float *[]){k, v, q});
    finish_heads(k, a->n_rows, a->n_kv_heads, dim, a->k_bias, a->k_norm, a->norm_eps);
    finish_heads(v, a->n_rows, a->n_kv_heads, dim, a->v_bias, NULL, 0);
    sl_cpu_rope_append(a->rope, a->rows, a->n_rows, 0, a->n_kv_heads, NULL, k, v, layer);
    if (n && a->first) linear(be, a->q, x + (size_t)a->first * a->q->n_cols, n, a->mode, 0, q);
    finish_heads(q, n, a->n_heads, dim, a->q_bias, a->q_norm, a->norm_eps);
    sl_cpu_rope_append(a->rope, a->rows + a->first, n, a->n_heads, 0, q, NULL, NULL, layer);
    return (sl_queries){.data = q, .stride = q_dim};
}

typedef struct swiglu_call {
    float *gate;
    const float *up;
    size_t n;
} swiglu_call;

enum { SWIGLU_STEP = 4096 };

static void swiglu_piece(void *ctx, size_t piece, int thread) {
    (void)thread;
    const swiglu_call *c = ctx;
    size_t i = piece * SWIGLU_STEP, left = c->n - i;
    ops()->swiglu(c->gate + i, c->up + i, left < SWIGLU_STEP ? left : SWIGLU_STEP);
}

void sl_cpu_swiglu(float *gate, const float *up, size_t n) {
    spread(n > SMALL, (n + SWIGLU_STEP - 1) / SWIGLU_STEP, swiglu_piece, &(swiglu_call){gate, up, n});
}

static void gate_up(const sl_backend *be, const sl_weight *gate, const sl_weight *up, sl_normed x, int n_rows,
                    sl_linear_mode mode, void *work, void *out) {
    linear_several(be, 2, (const sl_weight *[]){gate, up}, x.rows, n_rows, mode, (float *[]){out, work});
    sl_cpu_swiglu(out, work, (size_t)n_rows * gate->n_rows);
}

// ---- host memory ----

static size_t free_memory(const sl_backend *be) {
    (void)be;
    return sl_host_memory_free("");
}

// The system commits memory page by page at first touch, so unused parts of a KV cache take no memory.
static void *map_memory(const sl_backend *be, size_t size) {
    (void)be;
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
#ifdef MADV_HUGEPAGE
    madvise(p, size, MADV_HUGEPAGE);
#endif
    return p;
}

static void release(const sl_backend *be, void *p, size_t size) {
    (void)be;
    if (p) munmap(p, size);
}

static void copy_runs(const sl_backend *be, void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                      size_t height) {
    (void)be;
    for (size_t i = 0; i < height; i++) memcpy((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width);
}

static void clear(const sl_backend *be, void *p, size_t size) {
    (void)be;
    memset(p, 0, size);
}

static void copy_bytes(const sl_backend *be, void *to, const void *from, size_t size) {
    (void)be;
    memcpy(to, from, size);
}

// The specification of move_pages.
static void move_pages(const sl_backend *be, const sl_page_move *m) {
    (void)be;
    size_t run = (size_t)m->n_kv_heads * m->page_rows, row = (size_t)m->head_dim * sizeof(bf16);
    for (int layer = 0; layer < m->n_layers; layer++)
        for (int i = 0; i < m->n; i++) {
            bf16 *k = m->k + layer * m->k_layer + m->at[i] * run * m->head_dim;
            bf16 *v = m->v + layer * m->k_layer + m->at[i] * run * m->head_dim;
            bf16 *rows = m->rows + layer * m->rows_layer + m->page[i] * run * 2 * m->head_dim;
            for (size_t j = 0; j < run; j++, k += m->head_dim, v += m->head_dim, rows += 2 * m->head_dim) {
                memcpy(m->to_host ? rows : k, m->to_host ? k : rows, row);
                memcpy(m->to_host ? rows + m->head_dim : v, m->to_host ? v : rows + m->head_dim, row);
            }
        }
}

static void aside(const sl_backend *be) {
    (void)be;
}

static void fill(const sl_backend *be, uint64_t key, const bf16 *quantiles, size_t from, size_t n, bf16 *out) {
    (void)be;
    sl_dummy_fill(key, quantiles, from, n, out);
}

static void store_rows(const sl_backend *be, const bf16 *rows, sl_format format, int head_dim, int n_rows, void *blocks) {
    (void)be;
    float x[256];
    SL_CHECK(head_dim <= 256);
    for (int i = 0; i < n_rows; i++, rows += head_dim) {
        for (int d = 0; d < head_dim; d++) x[d] = sl_bf16_to_f32(rows[d]);
        sl_kv_store(blocks, format, head_dim, (size_t)(i / SL_PAGE), i % SL_PAGE, x, 0);
    }
}

// ---- a step: every operation has ended when its call returns ----

static void forget(const sl_backend *be) {
    (void)be;
}

static void prepare_rope(const sl_backend *be, const sl_rope *rope, const sl_row *rows, int n_rows) {
    (void)be, (void)rope, (void)rows, (void)n_rows;
}

static int finish(const sl_backend *be, sl_error *err) {
    (void)be, (void)err;
    return 0;
}

// ---- life ----

static void free_backend(const sl_backend *be) {
    free(self(be)->part);
    free(self(be)->scratch);
    free(self(be));
}

// Without threads and ranks: the memory of the host, and the start of every backend.
static const cpu_backend blank = {.table = {
                                      .name = "cpu",
                                      .act_size = sizeof(float),
                                      .describe = describe,
                                      .prepare = prepare,
                                      .free = free_backend,
                                      .free_memory = free_memory,
                                      .alloc = map_memory,
                                      .release = release,
                                      .copy = copy_runs,
                                      .clear = clear,
                                      .upload = copy_bytes,
                                      .download = copy_bytes,
                                      .alloc_host = map_memory,
                                      .release_host = release,
                                      .move_pages = move_pages,
                                      .aside_begin = aside,
                                      .aside_end = aside,
                                      .fill = fill,
                                      .store_rows = store_rows,
                                      .finish = finish,
                                      .forget = forget,
                                      .prepare_rope = prepare_rope,
                                      .embed = embed,
                                      .rmsnorm = rmsnorm,
                                      .linear = linear,
                                      .linear_norm = linear_norm,
                                      .qkv = qkv,
                                      .gate_up = gate_up,
                                  }};

const sl_backend *sl_cpu_memory(void) {
    return &blank.table;
}

void sl_cpu_use_comm(const sl_backend *be, sl_comm *comm) {
    self(be)->comm = comm;
}

int sl_cpu_check_threads(int n_threads, sl_error *err) {
    if (n_threads >= 0 && n_threads <= MOST_THREADS) return 0;
    return sl_fail(err, SL_ERR_ARG, "{n_threads} %d: expected 1 to %d, or 0 for every core", n_threads, MOST_THREADS);
}

int sl_cpu_open(int n_threads, const sl_backend **out, sl_error *err) {
    int rc = sl_cpu_check_threads(n_threads, err);
    if (!rc) rc = sl_cpu_choose(err);
    if (rc) return rc;
    cpu_backend *c = calloc(1, sizeof *c);
    if (!c) return sl_fail(err, SL_ERR_MEMORY, "CPU backend: out of memory");
    *c = blank;
    c->n_threads = n_threads ? n_threads : sl_cpu_cores();
    *out = &c->table;
    return 0;
}
