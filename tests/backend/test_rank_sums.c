// tests/backend/test_rank_sums.c - row-parallel products on the CPU: the tree of leaves (backend/cpu/leaves.h), and ranks that
// hold parts of the columns. The ranks are threads of this process.
#include "backend/cpu/cpu_ranks.h"
#include "backend/cpu/leaves.h"
#include "models/cut.h"
#include "tests/support/stored_weight.h"
#include "tests/test.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { OUTS = 37, KV_HEADS = 8, MOST_ROWS = 530 };

static sl_error err;

// ---- a communicator of threads ----

typedef struct thread_comm {
    sl_comm table;
    const float **parts; // [n], shared
    pthread_barrier_t *meeting;
} thread_comm;

static void meet(sl_comm *c) {
    pthread_barrier_wait(((thread_comm *)c)->meeting);
}

static void gather(sl_comm *c, const float *part, size_t n, float *all) {
    thread_comm *t = (thread_comm *)c;
    t->parts[c->rank] = part;
    meet(c);
    for (int i = 0; i < c->n; i++) memcpy(all + (size_t)i * n, t->parts[i], n * sizeof *part);
    meet(c);
}

// ---- products ----

static float *normals(size_t n, uint64_t seed) {
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (float)test_normal(&seed);
    return x;
}

static const sl_backend *open_backend(sl_comm *comm, int n_cols) {
    const sl_backend *be;
    int n = sl_comm_n(comm);
    const sl_shape shape = {OUTS, n_cols / n, KV_HEADS / n, KV_HEADS / n, n_cols / KV_HEADS};
    CHECK_OK(sl_cpu_open(1, &be, &err), err);
    if (comm) sl_cpu_use_comm(be, comm);
    CHECK_OK(be->prepare(be, &shape, &err), err);
    return be;
}

// A part of the columns. The caller frees *memory.
static sl_weight columns(const sl_weight *w, int rank, int n, char **memory) {
    const sl_shard shard = {rank, n};
    sl_weight part = *w;
    part.data = NULL;
    CHECK_OK(sl_cut_shape(&part, SL_CUT_COLS, 0, &shard, &err), err);
    *memory = aligned_alloc(64, sl_cut_bytes(&part, w->zero != NULL, 0));
    CHECK_OK(sl_cut_copy(w, SL_CUT_COLS, &shard, &part, *memory, &err), err);
    return part;
}

static float *columns_of(const float *x, int n_rows, int n_cols, int rank, int n) {
    size_t own = (size_t)(n_cols / n);
    float *part = malloc((size_t)n_rows * own * sizeof *part);
    for (int r = 0; r < n_rows; r++)
        memcpy(part + (size_t)r * own, x + (size_t)r * n_cols + (size_t)rank * own, own * sizeof *part);
    return part;
}

typedef struct rank_run {
    thread_comm comm;
    const sl_backend *be;
    sl_weight part; // the rank's columns
    char *memory;   // of the part
    float *x;       // [n_rows][part.n_cols]
    int n_rows;
    sl_linear_mode mode;
    float *out;
} rank_run;

// Checks nothing: a failed check leaves the test, which only its own thread may do.
static void *run_rank(void *ctx) {
    rank_run *r = ctx;
    r->be->linear(r->be, &r->part, r->x, r->n_rows, r->mode, 1, r->out);
    return NULL;
}

static void fill(float *out, size_t n) { // what the products are added to
    for (size_t i = 0; i < n; i++) out[i] = 0.25f * (float)(i % 7) - 0.5f;
}

static void check_equal(const float *a, const float *b, size_t n, const sl_weight *w, int n_ranks, int n_rows) {
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a))
            FAIL("%s, %d columns, %d ranks, %d rows: output %zu is %.9g, expected %.9g", test_stored_name(w), w->n_cols,
                 n_ranks, n_rows, i, (double)a[i], (double)b[i]);
}

static void check_ranks(const sl_weight *w, int n, int n_rows, sl_linear_mode mode) {
    float *x = normals((size_t)n_rows * w->n_cols, test_seed);
    size_t size = (size_t)n_rows * OUTS;
    float *want = malloc(size * sizeof *want);
    const sl_backend *be = open_backend(NULL, w->n_cols);
    const float *parts[KV_HEADS];
    pthread_barrier_t meeting;
    pthread_t threads[KV_HEADS];
    rank_run runs[KV_HEADS];
    fill(want, size);
    be->linear(be, w, x, n_rows, mode, 1, want);
    be->free(be);
    pthread_barrier_init(&meeting, NULL, (unsigned)n);
    for (int i = 0; i < n; i++) {
        runs[i] = (rank_run){.comm = {.table = {.rank = i, .n = n, .all_gather = gather}, .parts = parts, .meeting = &meeting},
                             .x = columns_of(x, n_rows, w->n_cols, i, n),
                             .n_rows = n_rows,
                             .mode = mode,
                             .out = malloc(size * sizeof *want)};
        runs[i].part = columns(w, i, n, &runs[i].memory);
        runs[i].be = open_backend(&runs[i].comm.table, w->n_cols);
        fill(runs[i].out, size);
    }
    for (int i = 0; i < n; i++) CHECK(!pthread_create(&threads[i], NULL, run_rank, &runs[i]));
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&meeting);
    for (int i = 0; i < n; i++) {
        check_equal(runs[i].out, want, size, w, n, n_rows);
        runs[i].be->free(runs[i].be);
        free(runs[i].out), free(runs[i].memory), free(runs[i].x);
    }
    free(x), free(want);
}

static int takes_cut(const test_storage *s, int n_cols, int n) {
    return !(s->parts & TEST_ORDER) && (!s->group || n_cols / n % s->group == 0);
}

// ---- cases ----

static void formats(void) {
    static const int cols[] = {1024, 3072}, ns[] = {2, 4, 8};
    int n_checked = 0;
    for (int i = 0; i < N_TEST_STORAGES; i++)
        for (int c = 0; c < 2; c++) {
            uint64_t seed = test_seed + (uint64_t)i;
            sl_weight w = test_stored_weight(test_storages[i], OUTS, cols[c], &seed);
            for (int k = 0; k < 3; k++) {
                if (!takes_cut(&test_storages[i], cols[c], ns[k])) continue;
                n_checked++;
                check_ranks(&w, ns[k], 1 + 2 * (k == 1), SL_LINEAR_DECODE);
                if (k == 0 && c == 0) check_ranks(&w, ns[k], 21, SL_LINEAR_PREFILL);
                if (!sl_format_takes_integers(w.format)) continue;
                w.activations = k == 1 ? SL_ACT_INT8 : SL_ACT_INT16;
                check_ranks(&w, ns[k], 1 + 2 * (k == 1), SL_LINEAR_DECODE);
                w.activations = SL_ACT_FLOAT;
            }
            test_stored_free(&w);
        }
    CHECK(n_checked > 60);
}

// More rows than a product of prefill takes at a time, and than the ranks exchange at a time.
static void rows(void) {
    static const int n_rows[] = {63, 64, 65, 512, MOST_ROWS};
    uint64_t seed = test_seed;
    sl_weight w = test_stored_weight((test_storage){SL_BF16, 0, 0}, OUTS, 1024, &seed);
    for (int i = 0; i < 5; i++) check_ranks(&w, 2 + 2 * (i % 2), n_rows[i], SL_LINEAR_PREFILL);
    check_ranks(&w, 8, 130, SL_LINEAR_DECODE);
    test_stored_free(&w);
}

// The sums of the leaves by themselves, added here.
static void tree(void) {
    enum { COLS = 2048, ROWS = 5, LEAVES = 8 };
    static const sl_format kinds[] = {SL_BF16, SL_INT8, SL_INT4};
    for (int i = 0; i < 6; i++) {
        uint64_t seed = test_seed;
        sl_linear_mode mode = i < 3 ? SL_LINEAR_DECODE : SL_LINEAR_PREFILL;
        test_storage kind = {kinds[i % 3], kinds[i % 3] == SL_INT4 ? 128 : 0, 0};
        sl_weight w = test_stored_weight(kind, OUTS, COLS, &seed);
        if (sl_format_takes_integers(w.format)) w.activations = SL_ACT_INT16;
        float *x = normals(ROWS * COLS, seed), leaf[LEAVES][ROWS * OUTS], out[ROWS * OUTS], got[ROWS * OUTS];
        const sl_backend *be = open_backend(NULL, COLS);
        CHECK_INT(sl_cpu_leaves(KV_HEADS, COLS), LEAVES);
        for (int l = 0; l < LEAVES; l++) {
            char *memory;
            sl_weight part = columns(&w, l, LEAVES, &memory);
            float *own = columns_of(x, ROWS, COLS, l, LEAVES);
            be->linear(be, &part, own, ROWS, mode, 0, leaf[l]);
            free(memory), free(own);
        }
        fill(got, ROWS * OUTS), fill(out, ROWS * OUTS);
        be->linear(be, &w, x, ROWS, mode, 1, got);
        for (int j = 0; j < ROWS * OUTS; j++)
            out[j] += ((leaf[0][j] + leaf[1][j]) + (leaf[2][j] + leaf[3][j])) +
                      ((leaf[4][j] + leaf[5][j]) + (leaf[6][j] + leaf[7][j]));
        check_equal(got, out, ROWS * OUTS, &w, 1, ROWS);
        be->free(be);
        free(x);
        test_stored_free(&w);
    }
}

// How many leaves a product has.
static void leaves(void) {
    static const struct {
        int kv_heads, cols, n;
    } cases[] = {{8, 14336, 8}, {8, 2048, 8}, {4, 18944, 4}, {3, 576, 1}, {2, 1024, 2},
                 {16, 1024, 8}, {8, 384, 1},  {8, 512, 4},   {6, 768, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK_INT(sl_cpu_leaves(cases[i].kv_heads, cases[i].cols), cases[i].n);
}

// Parts of rows and of columns have the numbers of the whole weight.
static void cuts(void) {
    enum { ROWS = 64, COLS = 1024 };
    for (int i = 0; i < 2 * N_TEST_STORAGES; i++) {
        const test_storage *s = &test_storages[i / 2];
        sl_cut cut = i % 2 ? SL_CUT_COLS : SL_CUT_ROWS;
        if (cut == SL_CUT_COLS && s->group && COLS / 4 % s->group) continue; // `refused`
        uint64_t seed = test_seed + (uint64_t)i;
        sl_weight w = test_stored_weight(*s, ROWS, COLS, &seed);
        for (int rank = 0; rank < 4; rank++) {
            const sl_shard shard = {rank, 4};
            sl_weight part = w;
            float whole[COLS], own[COLS];
            part.data = NULL;
            CHECK_OK(sl_cut_shape(&part, cut, 0, &shard, &err), err);
            char *memory = aligned_alloc(64, sl_cut_bytes(&part, w.zero != NULL, w.order != NULL));
            if (cut == SL_CUT_COLS && w.order) {
                CHECK_ERR(sl_cut_copy(&w, cut, &shard, &part, memory, &err), err, SL_ERR_UNSUPPORTED, "desc_act");
            } else {
                CHECK_OK(sl_cut_copy(&w, cut, &shard, &part, memory, &err), err);
                sl_weight in_place = cut == SL_CUT_ROWS ? sl_cut_rows(&w, 0, &shard) : part;
                for (int r = 0; r < part.n_rows; r++) {
                    int from = cut == SL_CUT_COLS ? rank * part.n_cols : 0;
                    sl_weight_widen(&w, (size_t)(cut == SL_CUT_ROWS ? rank * part.n_rows + r : r), whole);
                    sl_weight_widen(&part, (size_t)r, own);
                    CHECK(!memcmp(own, whole + from, (size_t)part.n_cols * sizeof *own));
                    sl_weight_widen(&in_place, (size_t)r, own);
                    CHECK(!memcmp(own, whole + from, (size_t)part.n_cols * sizeof *own));
                }
            }
            free(memory);
        }
        test_stored_free(&w);
    }
}

static void refused(void) {
    const sl_shard shard = {0, 4};
    sl_weight w = {.format = SL_INT4, .n_rows = 6, .n_cols = 1024, .group = 512, .scale_rows = 1, .name = "a.weight"};
    sl_weight part = w;
    CHECK_ERR(sl_cut_shape(&part, SL_CUT_COLS, 0, &shard, &err), err, SL_ERR_UNSUPPORTED,
              "a.weight has 1024 columns; expected a multiple of 2048");
    part = w;
    CHECK_ERR(sl_cut_shape(&part, SL_CUT_ROWS, 0, &shard, &err), err, SL_ERR_UNSUPPORTED,
              "a.weight has 6 rows; expected a multiple of 4");
    part = w, part.n_rows = 256, part.scale_rows = 128, part.group = 128;
    CHECK_ERR(sl_cut_shape(&part, SL_CUT_ROWS, 0, &shard, &err), err, SL_ERR_UNSUPPORTED,
              "a.weight has 256 rows; expected a multiple of 512");
}

static const test_case cases[] = {{"formats", NEEDS_NOTHING, formats},
                                  {"rows", NEEDS_NOTHING, rows},
                                  {"tree", NEEDS_NOTHING, tree},
                                  {"leaves", NEEDS_NOTHING, leaves},
                                  {"cuts", NEEDS_NOTHING, cuts},
                                  {"refused", NEEDS_NOTHING, refused},
                                  {0}};
extern const test_suite suite_rank_sums;
const test_suite suite_rank_sums = {"rank_sums", cases};
