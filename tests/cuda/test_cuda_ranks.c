// tests/cuda/test_cuda_ranks.c - ranks that share a model on GPUs: the exchange of parts (rank_sum.h), and linear layers whose
// columns lie on several ranks, to the bit of one rank. The ranks are streams of one GPU in this process;
// tests/cli/test_cli_team_cuda.c has ranks that are processes. SLEIGH_RANK_CALLS: the number of exchanges of `sums`.
#include "tests/support/gpu.h"
#include "tests/support/stored_weight.h"
#include "tests/test.h"

#ifdef SLEIGH_CUDA
#include "backend/cuda/cuda.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/cuda_ranks.h"
#include "backend/cuda/nccl.h"
#include "backend/cuda/packed_linear.h"
#include "models/cut.h"
#include "tests/support/rank_probe.h"
#include "tests/support/run_cli.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MOST_RANKS = SL_MOST_RANKS,
    CALLS = 10000,
    TOGETHER = 64,
    MOST_ROWS = 6,
    WIDE = 4096,
    NARROW = 64,
    ALREADY = 0x01010101
};

static sl_error err;

// ---- ranks ----

typedef struct ranks {
    int n;
    sl_exchange of[MOST_RANKS];
    float *slots[MOST_RANKS][2], *x[MOST_RANKS];
    cudaStream_t streams[MOST_RANKS];
    int *n_wrong;
} ranks;

static void check_cuda(cudaError_t rc, const char *what) {
    if (rc != cudaSuccess) FAIL("%s: %s", what, cudaGetErrorString(rc));
}

static void open_ranks(ranks *r, int n, uint32_t limit_ms) {
    *r = (ranks){.n = n, .n_wrong = gpu_zero(sizeof(int))};
    for (int i = 0; i < n; i++) {
        r->of[i] = (sl_exchange){.rank = i, .n = n, .state = gpu_zero(3 * sizeof(uint32_t)), .limit_ms = limit_ms};
        void *fault;
        check_cuda(cudaHostAlloc(&fault, sizeof(sl_exchange_fault), cudaHostAllocMapped), "cudaHostAlloc");
        r->of[i].fault = fault, r->of[i].fault->missing = 0;
        for (int s = 0; s < 2; s++) r->slots[i][s] = gpu_new(SL_EXCHANGE_SLOT);
        r->x[i] = gpu_new((size_t)MOST_RANKS * MOST_ROWS * WIDE * sizeof(float));
        check_cuda(cudaStreamCreateWithFlags(&r->streams[i], cudaStreamNonBlocking), "stream");
    }
    for (int i = 0; i < n; i++) {
        sl_exchange_flags *flags = gpu_zero(sizeof *flags);
        for (int j = 0; j < n; j++) r->of[j].flags[i] = flags;
    }
    gpu_sync("the ranks");
}

static void close_ranks(ranks *r) {
    for (int i = 0; i < r->n; i++) {
        cudaStreamDestroy(r->streams[i]);
        cudaFreeHost((void *)r->of[i].fault);
    }
}

// The exchange of a rank for a call, with its slots.
static sl_exchange exchange_of(const ranks *r, int rank, uint32_t call) {
    sl_exchange e = r->of[rank];
    for (int i = 0; i < r->n; i++) e.parts[i] = r->slots[i][call % 2];
    return e;
}

// A rank that waits for no other one: their flags say that they have begun all exchanges.
static void let_pass(ranks *r, int rank) {
    sl_exchange_flags flags;
    memset(flags, ALREADY & 0xff, sizeof flags);
    check_cuda(cudaMemcpy(r->of[rank].flags[rank], flags, sizeof flags, cudaMemcpyHostToDevice), "flags");
}

static void queue_sum(ranks *r, int rank, uint32_t call, int n_rows, int n_cols, uint32_t delay_ns) {
    const sl_cuda_rank_sum sum = {
        .exchange = exchange_of(r, rank, call), .n_rows = n_rows, .n_cols = n_cols, .x = r->x[rank], .x_stride = n_cols};
    probe_fill(call, rank, n_rows * n_cols, delay_ns, r->slots[rank][call % 2], r->x[rank], r->streams[rank]);
    sl_cuda_rank_sum_launch(&sum, r->streams[rank]);
    probe_check(call, r->n, n_rows * n_cols, r->x[rank], r->n_wrong, r->streams[rank]);
}

static void queue_gather(ranks *r, int rank, uint32_t call, int n_rows, int n_cols) {
    const sl_cuda_rank_gather gather = {
        .exchange = exchange_of(r, rank, call), .n_rows = n_rows, .n_cols = n_cols, .out = r->x[rank]};
    probe_fill(call, rank, n_rows * n_cols, 0, r->slots[rank][call % 2], NULL, r->streams[rank]);
    sl_cuda_rank_gather_launch(&gather, r->streams[rank]);
}

// CUDA loads a kernel at its first launch, and may wait for running kernels then. A kernel that waits for a rank whose launch
// comes later would never end.
static void load_kernels(int n) {
    ranks r;
    open_ranks(&r, n, 1000);
    let_pass(&r, 0);
    queue_sum(&r, 0, 0, 1, NARROW, 0);
    queue_gather(&r, 0, 1, 1, NARROW);
    gpu_sync("the first exchanges");
    close_ranks(&r);
}

// ---- sums and logits ----

static int n_wrong_of(const ranks *r) {
    int n;
    gpu_read(&n, r->n_wrong, sizeof n);
    for (int i = 0; i < r->n; i++)
        if (r->of[i].fault->missing) FAIL("rank %d of %d waited too long for rank %d", i, r->n, r->of[i].fault->missing - 1);
    return n;
}

// Many exchanges with random sizes and delays, launched in changing orders.
static void sums(void) {
    const char *calls = getenv("SLEIGH_RANK_CALLS");
    const int n_calls = calls ? atoi(calls) : CALLS;
    test_draw_from(test_seed);
    for (int n = 2; n <= MOST_RANKS; n *= 2) {
        ranks r;
        load_kernels(n);
        open_ranks(&r, n, SL_EXCHANGE_LIMIT_MS);
        for (int call = 0; call < n_calls; call++) {
            int n_rows = 1 + test_below(MOST_ROWS), n_cols = test_below(4) ? WIDE : NARROW, first = test_below(n);
            for (int i = 0; i < n; i++)
                queue_sum(&r, (first + i) % n, (uint32_t)call, n_rows, n_cols, test_below(4) ? 0 : (uint32_t)test_below(20000));
            if (call % TOGETHER == TOGETHER - 1) gpu_sync("sums");
        }
        CHECK_INT(n_wrong_of(&r), 0);
        float *x = malloc(NARROW * sizeof *x); // the host's tree, once
        for (int i = 0; i < n; i++) queue_sum(&r, i, (uint32_t)n_calls, 1, NARROW, 0);
        gpu_read(x, r.x[n - 1], NARROW * sizeof *x);
        for (uint32_t i = 0; i < NARROW; i++)
            CHECK(x[i] == probe_number((uint32_t)n_calls, PROBE_RESIDUAL, i) + probe_tree((uint32_t)n_calls, n, i));
        free(x);
        close_ranks(&r);
        gpu_free_all();
    }
}

static void logits(void) {
    static const int cols[] = {1, 125, 501, WIDE};
    for (int n = 2; n <= MOST_RANKS; n *= 2) {
        ranks r;
        load_kernels(n);
        open_ranks(&r, n, SL_EXCHANGE_LIMIT_MS);
        for (int c = 0; c < 4; c++) {
            const int n_rows = 1 + c, n_cols = cols[c], size = n_rows * n * n_cols;
            for (int i = 0; i < n; i++) queue_gather(&r, i, (uint32_t)c, n_rows, n_cols);
            float *all = malloc((size_t)size * sizeof *all);
            for (int i = 0; i < n; i++) {
                gpu_read(all, r.x[i], (size_t)size * sizeof *all);
                for (int k = 0; k < size; k++) {
                    int row = k / (n * n_cols), rank = k / n_cols % n;
                    CHECK(all[k] == probe_number((uint32_t)c, rank, (uint32_t)(row * n_cols + k % n_cols)));
                }
            }
            free(all);
        }
        CHECK_INT(n_wrong_of(&r), 0);
        close_ranks(&r);
        gpu_free_all();
    }
}

// A rank that does not come is named. Later exchanges do not wait for it again.
static void missing(void) {
    enum { LIMIT_MS = 60000 }; // of the second exchange: it would fail the case after a minute
    ranks r;
    load_kernels(4);
    open_ranks(&r, 4, 50);
    for (int call = 0; call < 2; call++) {
        for (int i = 0; i < 4; i++) // rank 2 does not come; rank 0 knows of the others already
            if (i != 2) queue_sum(&r, i, (uint32_t)call, 1, NARROW, 0);
        gpu_sync("a sum without a rank");
        for (int i = 0; i < 4; i++) CHECK_INT(r.of[i].fault->missing, i == 2 ? 0 : 3);
        for (int i = 0; i < 4; i++) r.of[i].limit_ms = LIMIT_MS;
    }
    close_ranks(&r);
}

// Parts that NCCL has brought: the kernel that adds them waits for no rank. The sums belong to some columns of the residual
// stream.
static void gathered(void) {
    enum { N_ROWS = 5, STRIDE = 3 * NARROW, FIRST = NARROW, N = N_ROWS * NARROW };
    for (int n = 1; n <= MOST_RANKS; n *= 2) {
        sl_exchange e = {.n = n, .has_all = 1};
        float *x = gpu_new(N_ROWS * STRIDE * sizeof *x), *host = malloc(N_ROWS * STRIDE * sizeof *host);
        for (int i = 0; i < n; i++) {
            float *part = gpu_new(N * sizeof *part);
            probe_fill(3, i, N, 0, part, NULL, 0);
            e.parts[i] = part;
        }
        probe_fill(4, 0, N_ROWS * STRIDE, 0, x, NULL, 0);
        sl_cuda_rank_sum_launch(
            &(sl_cuda_rank_sum){.exchange = e, .n_rows = N_ROWS, .n_cols = NARROW, .x = x + FIRST, .x_stride = STRIDE}, 0);
        gpu_read(host, x, N_ROWS * STRIDE * sizeof *host);
        for (int i = 0; i < N_ROWS * STRIDE; i++) {
            int row = i / STRIDE, col = i % STRIDE - FIRST, is_sum = col >= 0 && col < NARROW;
            float before = probe_number(4, 0, (uint32_t)i);
            CHECK(host[i] == (is_sum ? before + probe_tree(3, n, (uint32_t)(row * NARROW + col)) : before));
        }
        free(host);
    }
}

// NCCL with one rank: its sums and copies change nothing. (It refuses two ranks on one GPU.)
static void nccl(void) {
    char id[SL_NCCL_ID];
    sl_nccl *c;
    if (sl_nccl_id(id, &err)) test_skip("%.200s", err.message);
    float *part = gpu_new(WIDE * sizeof *part), *all = gpu_new(WIDE * sizeof *all), *host = malloc(WIDE * sizeof *host);
    probe_fill(1, 0, WIDE, 0, part, NULL, 0);
    gpu_sync("a part");
    CHECK_OK(sl_nccl_open(id, 0, 1, &c, &err), err);
    CHECK_OK(sl_nccl_all_reduce(c, part, WIDE, 0, &err), err);
    CHECK_OK(sl_nccl_all_gather(c, part, WIDE, all, 0, &err), err);
    gpu_read(host, all, WIDE * sizeof *host);
    for (uint32_t i = 0; i < WIDE; i++) CHECK(host[i] == probe_number(1, 0, i));
    sl_nccl_close(c);
    free(host);
}

// ---- a library in place of NCCL, and a rank that this process plays ----

// The test makes the library, whose functions call those of `stand_in`, and runs itself with the folder of the library in
// LD_LIBRARY_PATH.
static const char library[] =
    "typedef struct { char internal[128]; } unique_id;\n"
    "int (*stand_in_all_reduce)(const void *, void *, unsigned long, void *), (*stand_in_all_gather)(const void *, void *, "
    "unsigned long, void *);\n"
    "int ncclGetUniqueId(unique_id *id) { id->internal[0] = 'n'; return 0; }\n"
    "int ncclCommInitRank(void **comm, int n, unique_id id, int rank) { *comm = comm; return id.internal[0] != 'n' || rank >= "
    "n; "
    "}\n"
    "int ncclCommAbort(void *comm) { return !comm; }\n"
    "int ncclAllReduce(const void *a, void *b, unsigned long n, int type, int op, void *comm, void *stream) {\n"
    "    return type != 7 || op || !comm ? 4 : stand_in_all_reduce(a, b, n, stream);\n}\n"
    "int ncclAllGather(const void *a, void *b, unsigned long n, int type, void *comm, void *stream) {\n"
    "    return type != 7 || !comm ? 4 : stand_in_all_gather(a, b, n, stream);\n}\n"
    "const char *ncclGetErrorString(int rc) { return rc == 4 ? \"invalid argument\" : \"another error\"; }\n";

// 1: this process has the library, whose functions get the stand-ins. Else runs the case in such a process.
static int has_library(const char *name, void *all_reduce, void *all_gather) {
    const char *path = getenv("LD_LIBRARY_PATH"), *folder = in_tmp("nccl");
    char line[1500], self[300];
    if (path && strstr(path, "/sleigh-test-")) {
        void *lib = dlopen("libnccl.so.2", RTLD_NOW);
        if (!lib) FAIL("%s", dlerror());
        *(void **)dlsym(lib, "stand_in_all_reduce") = all_reduce, *(void **)dlsym(lib, "stand_in_all_gather") = all_gather;
        return 1;
    }
    if (system("cc --version >/dev/null 2>&1")) TEST_SKIP("needs cc");
    snprintf(line, sizeof line, "mkdir '%s' && cc -shared -fPIC -o '%s/libnccl.so.2' -x c -", folder, folder);
    FILE *cc = popen(line, "w");
    CHECK(cc && fwrite(library, 1, sizeof library - 1, cc) == sizeof library - 1);
    CHECK_INT(pclose(cc), 0);
    ssize_t size = readlink("/proc/self/exe", self, sizeof self - 1);
    CHECK(size > 0);
    self[size] = 0;
    snprintf(line, sizeof line, "LD_LIBRARY_PATH='%s':$LD_LIBRARY_PATH '%s' cuda_ranks/%s", folder, self, name);
    result r = RUN_SHELL(line, "");
    if (r.code) FAIL("exit code %d: %s%s", r.code, r.out, r.err);
    CHECK_HAS(r.out, "1 passed, 0 failed, 0 skipped");
    return 0;
}

static int double_numbers(const void *from, void *to, unsigned long n, void *stream) {
    (void)stream;
    if (n > 100) return 5;
    for (size_t i = 0; i < n; i++) ((float *)to)[i] = 2 * ((const float *)from)[i];
    return 0;
}
static int repeat_numbers(const void *from, void *to, unsigned long n, void *stream) {
    (void)stream;
    for (size_t i = 0; i < 2 * n; i++) ((float *)to)[i] = ((const float *)from)[i % n];
    return 0;
}

// The calls of the library and its errors. The numbers are in the host's memory.
static void library_calls(void) {
    if (!has_library("library_calls", (void *)double_numbers, (void *)repeat_numbers)) return;
    char id[SL_NCCL_ID];
    float part[3] = {1, 2, 3}, all[6];
    sl_nccl *c;
    CHECK_OK(sl_nccl_id(id, &err), err);
    CHECK_INT(sl_nccl_open(id, 2, 2, &c, &err), SL_ERR_DEVICE);
    CHECK_STR(err.message, "NCCL: the start of a communicator: another error");
    CHECK_OK(sl_nccl_open(id, 1, 2, &c, &err), err);
    CHECK_OK(sl_nccl_all_gather(c, part, 3, all, 0, &err), err);
    for (int i = 0; i < 6; i++) CHECK(all[i] == part[i % 3]);
    CHECK_OK(sl_nccl_all_reduce(c, part, 3, 0, &err), err);
    for (int i = 0; i < 3; i++) CHECK(part[i] == 2 * all[i]);
    CHECK_INT(sl_nccl_all_reduce(c, part, 101, 0, &err), SL_ERR_DEVICE);
    CHECK_STR(err.message, "NCCL: a sum: another error");
    sl_nccl_close(c);
}

// Rank 0 of two. The memory of rank 1's GPU cannot be mapped: it is this process's own.
typedef struct played {
    sl_comm comm;
    int shares_gpu; // 0: rank 1 has another GPU
    _Alignas(SL_COMM_BOARD) sl_exchange_flags board[2];
    char text[300];
    atomic_int has_failed;
} played;
static played team;

enum { CARD = sizeof(cudaIpcMemHandle_t) + 16 }; // bytes: the card of cuda_ranks.c ends with the number of the GPU

static void play_gather(sl_comm *c, const float *part, size_t n, float *all) {
    (void)c;
    for (int i = 0; i < 2; i++) memcpy(all + i * n, part, n * sizeof *part);
    if (n * sizeof *part == CARD && !team.shares_gpu) memset((char *)(all + 2 * n) - 16, 1, 16);
}

static void play_fail(sl_comm *c, const char *text) {
    (void)c;
    snprintf(team.text, sizeof team.text, "%s", text);
    atomic_store(&team.has_failed, 1);
}

static int add_on_gpu(const void *from, void *to, unsigned long n, void *stream) { // rank 1 has the same numbers
    float *x = malloc(n * sizeof *x);
    cudaMemcpyAsync(x, from, n * sizeof *x, cudaMemcpyDeviceToHost, stream);
    cudaStreamSynchronize(stream);
    for (size_t i = 0; i < n; i++) x[i] *= 2;
    cudaError_t rc = cudaMemcpyAsync(to, x, n * sizeof *x, cudaMemcpyHostToDevice, stream);
    free(x);
    return rc != cudaSuccess;
}

static void wait_for_failure(void *unused) {
    (void)unused;
    while (!atomic_load(&team.has_failed)) usleep(1000);
}

// As a kernel of NCCL does when rank 1 hangs, it does not end: only the end of the run ends it.
static int gather_on_gpu(const void *from, void *to, unsigned long n, void *stream) {
    if (team.board[0][0][1] != ALREADY) return cudaLaunchHostFunc(stream, wait_for_failure, NULL) != cudaSuccess;
    for (int i = 0; i < 2; i++)
        if (cudaMemcpyAsync((float *)to + i * n, from, n * sizeof(float), cudaMemcpyDeviceToDevice, stream)) return 1;
    return 0;
}

static void check_sum(const sl_backend *be, int n_rows, int is_prefill) {
    sl_cuda *c = sl_cuda_of(be);
    const int n = n_rows * WIDE;
    float *x = gpu_new(n * sizeof *x), *host = malloc(n * sizeof *host);
    gpu_sync("new memory"); // the backend's stream does not wait for its NaN
    probe_fill(7, 0, n, 0, sl_cuda_ranks_slot(c), x, c->stream);
    is_prefill ? sl_cuda_ranks_add_prefill(c, n_rows, WIDE, x, WIDE) : sl_cuda_ranks_add(c, n_rows, WIDE, x, NULL);
    CHECK_OK(sl_cuda_finish(be, &err), err);
    gpu_read(host, x, n * sizeof *host);
    for (uint32_t i = 0; i < (uint32_t)n; i++) CHECK(host[i] == probe_number(7, PROBE_RESIDUAL, i) + 2 * probe_number(7, 0, i));
    free(host);
}

// Ranks that meet in the host's memory, and then let NCCL bring their parts or add them. A rank that does not come is named,
// although an operation of NCCL waits for it.
static void without_peers(void) {
    const sl_backend *be;
    sl_cuda_links links;
    if (!has_library("without_peers", (void *)add_on_gpu, (void *)gather_on_gpu)) return;
    team.comm = (sl_comm){.n = 2, .all_gather = play_gather, .fail = play_fail, .board = team.board};
    CHECK_OK(sl_cuda_init(0, &be, &err), err);
    CHECK_OK(sl_cuda_use_comm(be, &team.comm, &links, &err), err);
    CHECK(links.is_one_each && !links.has_peers && links.has_nccl && links.n_sharing == 1);
    memset(team.board[0], ALREADY & 0xff, sizeof team.board[0]);
    check_sum(be, 1, 0);
    check_sum(be, 1, 1);             // few numbers: gathered
    check_sum(be, 64, 1);            // 1 MiB: added by NCCL
    CHECK(team.board[1][0][0] == 3); // what rank 1 would see
    memset(team.board[0], 0, sizeof team.board[0]);
    sl_cuda_of(be)->ranks->exchange.limit_ms = 100;
    sl_cuda_ranks_add(sl_cuda_of(be), 1, WIDE, gpu_new(WIDE * sizeof(float)), NULL);
    CHECK_INT(sl_cuda_finish(be, &err), SL_ERR_DEVICE);
    CHECK_HAS(err.message, "rank 1 of the 2 that share the model has sent no part of a sum");
    CHECK(atomic_load(&team.has_failed));
    CHECK_STR(team.text, err.message);
    be->free(be);
}

static void unconnected(void) {
    const sl_backend *be;
    sl_cuda_links links;
    team = (played){.comm = {.n = 2, .all_gather = play_gather, .board = team.board}, .shares_gpu = 1};
    CHECK_OK(sl_cuda_init(0, &be, &err), err);
    CHECK_ERR(sl_cuda_use_comm(be, &team.comm, &links, &err), err, SL_ERR_UNSUPPORTED,
              "rank 0 cannot map the memory of rank 1's GPU (");
    CHECK_HAS(err.message, "expected GPUs with peer access, or NCCL and a GPU for each rank");
    be->free(be);
}

// ---- linear layers whose columns lie on several ranks ----

enum { ROWS = SL_LINEAR_ROWS, OUT = 256 };

// The columns of a rank; rc of the cut. The caller frees *memory.
static int columns_of(const sl_weight *w, int rank, int n, sl_weight *part, char **memory) {
    const sl_shard shard = {rank, n};
    *part = *w, part->data = NULL, *memory = NULL;
    int rc = sl_cut_shape(part, SL_CUT_COLS, 0, &shard, &err);
    if (rc) return rc;
    *memory = aligned_alloc(64, sl_cut_bytes(part, w->zero != NULL, w->order != NULL));
    return sl_cut_copy(w, SL_CUT_COLS, &shard, part, *memory, &err);
}

// Sets the matrix of a launch: packed, or as it is. *copy: as sl_cuda_place would leave it
static void place(const sl_weight *w, int n_ranks, sl_cuda_linear *args, sl_weight *copy) {
    args->n_out = w->n_rows, args->n_in = w->n_cols, args->n_ranks = n_ranks;
    *copy = *w;
    if (!w->group) {
        copy->data = args->w = gpu_copy(w->data, (size_t)w->n_rows * w->n_cols * sizeof(bf16));
        return;
    }
    const sl_cuda_packing k = args->packing = sl_cuda_packing_of_part(w, n_ranks);
    size_t bytes = sl_packed_bytes(&k, SL_PIECE_ROWS), n_scales = sl_packed_scales(&k, SL_PIECE_ROWS);
    int n = w->n_rows / SL_PIECE_ROWS / k.n_beside;
    char *packed = malloc(n * bytes);
    float *scales = malloc(n * n_scales * sizeof *scales);
    for (int i = 0; i < n; i++) sl_cuda_pack_rows(w, &k, i, packed + i * bytes, scales + i * n_scales);
    copy->data = args->w = gpu_copy(packed, n * bytes);
    copy->scale = args->scale = gpu_copy(scales, n * n_scales * sizeof *scales);
    free(packed), free(scales);
}

static void multiply(const sl_weight *w, const sl_cuda_linear *args) {
    (w->group ? sl_cuda_packed_linear : sl_cuda_linear_decode)(args, 0);
}

typedef struct outputs { // of a linear layer and the norm behind it, in the GPU's memory
    float *x, *sums;
    bf16 *u;
} outputs;

static outputs new_outputs(void) {
    float *x = malloc(ROWS * OUT * sizeof *x);
    for (int i = 0; i < ROWS * OUT; i++) x[i] = 0.25f * (float)(i % 7) - 0.5f;
    outputs o = {gpu_copy(x, ROWS * OUT * sizeof *x), gpu_new(ROWS * OUT / SL_NORM_TILE * sizeof(float)),
                 gpu_new(ROWS * OUT * sizeof(bf16))};
    free(x);
    return o;
}

static void check_equal(const void *a, const void *b, size_t size, const sl_weight *w, int n_ranks, int n_rows,
                        const char *what) {
    char *own = malloc(size), *other = malloc(size);
    gpu_read(own, a, size);
    gpu_read(other, b, size);
    for (size_t i = 0; i < size; i++)
        if (own[i] != other[i])
            FAIL("%s, %d columns, %d ranks, %d rows: byte %zu of %s differs", test_stored_name(w), w->n_cols, n_ranks, n_rows,
                 i, what);
    free(own), free(other);
}

// The numbers of a rank's columns, as prefills take them.
static void check_widened(const sl_weight *whole, const sl_weight *part, int n_cols, int rank, int n) {
    bf16 *all = gpu_new((size_t)OUT * n_cols * n * sizeof *all), *own = gpu_new((size_t)OUT * n_cols * sizeof *own);
    bf16 *all_host = malloc((size_t)OUT * n_cols * n * sizeof *all), *own_host = malloc((size_t)OUT * n_cols * sizeof *own);
    sl_cuda_packed_widen(whole, 1, 0, OUT, all, 0);
    sl_cuda_packed_widen(part, n, 0, OUT, own, 0);
    gpu_read(all_host, all, (size_t)OUT * n_cols * n * sizeof *all);
    gpu_read(own_host, own, (size_t)OUT * n_cols * sizeof *own);
    for (int r = 0; r < OUT; r++)
        CHECK(!memcmp(own_host + (size_t)r * n_cols, all_host + ((size_t)r * n + rank) * n_cols, n_cols * sizeof *own));
    free(all_host), free(own_host);
}

static bf16 *random_numbers(int n, uint64_t *seed) {
    bf16 *x = malloc(n * sizeof *x);
    for (int i = 0; i < n; i++) x[i] = sl_f32_to_bf16((float)test_normal(seed));
    return x;
}

// Compares a layer of n ranks with that of one. Returns 0 if the columns cannot be cut.
static int check_layer(const sl_weight *w, const bf16 *x, const bf16 *next_w, int n, int n_rows) {
    ranks r = {.n = n};
    int own = w->n_cols / n, rc = 0;
    outputs one = new_outputs(), several = new_outputs();
    sl_cuda_linear args = {.x = gpu_copy(x, (size_t)n_rows * w->n_cols * sizeof *x),
                           .n_rows = n_rows,
                           .end = SL_LINEAR_ADD,
                           .out32 = one.x,
                           .out16 = one.u,
                           .next_w = gpu_copy(next_w, OUT * sizeof *next_w),
                           .next_sums = one.sums};
    sl_weight whole, placed;
    place(w, 1, &args, &whole);
    multiply(w, &args);
    sl_exchange e = {.rank = 0, .n = n, .state = gpu_zero(3 * sizeof(uint32_t)), .limit_ms = 1000};
    for (int i = 0; i < n; i++) e.flags[i] = gpu_new(sizeof *e.flags[i]);
    r.of[0] = e;
    let_pass(&r, 0);
    e.fault = gpu_zero(sizeof *e.fault);
    for (int rank = 0; !rc && rank < n; rank++) {
        sl_weight part;
        char *memory;
        rc = columns_of(w, rank, n, &part, &memory);
        bf16 *columns = malloc((size_t)n_rows * own * sizeof *columns);
        for (int i = 0; i < n_rows; i++)
            memcpy(columns + (size_t)i * own, x + (size_t)i * w->n_cols + (size_t)rank * own, own * sizeof *columns);
        sl_cuda_linear l = {.x = gpu_copy(columns, (size_t)n_rows * own * sizeof *columns),
                            .n_rows = n_rows,
                            .end = SL_LINEAR_STORE,
                            .out32 = gpu_new(ROWS * OUT * sizeof(float))};
        free(columns);
        if (!rc) {
            place(&part, n, &l, &placed);
            multiply(&part, &l);
            if (part.group && n_rows == 1) check_widened(&whole, &placed, own, rank, n);
        }
        e.parts[rank] = l.out32;
        free(memory);
    }
    if (!rc) {
        sl_cuda_rank_sum_launch(&(sl_cuda_rank_sum){.exchange = e,
                                                    .n_rows = n_rows,
                                                    .n_cols = OUT,
                                                    .x = several.x,
                                                    .x_stride = OUT,
                                                    .next_w = args.next_w,
                                                    .out16 = several.u,
                                                    .next_sums = several.sums},
                                0);
        check_equal(several.x, one.x, ROWS * OUT * sizeof(float), w, n, n_rows, "x");
        check_equal(several.u, one.u, (size_t)n_rows * OUT * sizeof(bf16), w, n, n_rows, "the normed rows");
        check_equal(several.sums, one.sums, (size_t)n_rows * OUT / SL_NORM_TILE * sizeof(float), w, n, n_rows, "the sums");
    }
    gpu_free_all();
    return !rc;
}

static int check_kind(test_storage kind, int n_cols) {
    static const int rows[] = {1, 8, 16, 30};
    uint64_t seed = test_seed + (uint64_t)n_cols;
    sl_weight w = test_stored_weight(kind, OUT, n_cols, &seed);
    bf16 *x = random_numbers(ROWS * n_cols, &seed), *next_w = random_numbers(OUT, &seed);
    int n_cut = 0, most = SL_LINEAR_ROWS;
    if (w.group) {
        sl_cuda_packing k = sl_cuda_packing_of(&w);
        most = sl_cuda_packed_rows(&k);
    }
    for (int n = 2; n <= SL_MOST_RANKS; n *= 2)
        for (int i = 0; i < 4; i++)
            if (rows[i] <= most) n_cut += check_layer(&w, x, next_w, n, rows[i]);
    free(x), free(next_w);
    test_stored_free(&w);
    return n_cut;
}

static void plain_columns(void) {
    CHECK_INT(check_kind((test_storage){SL_BF16, 0, 0}, 2048), 12);
    CHECK_INT(check_kind((test_storage){SL_BF16, 0, 0}, 3072), 12); // leaves of 3 chunks
    CHECK_INT(check_kind((test_storage){SL_BF16, 0, 0}, 1024), 12); // a rank of eight has one chunk
}

static void packed_columns(void) {
    int n_cut = 0, n_kinds = 0;
    for (int i = 0; i < N_TEST_STORAGES; i++) {
        if (test_storages[i].parts & TEST_ORDER) continue; // refused (models/cut.h)
        for (int n_cols = 2048; n_cols <= 3072; n_cols += 1024) n_cut += check_kind(test_storages[i], n_cols);
        n_kinds++;
    }
    CHECK(n_kinds >= 15 && n_cut >= 12 * n_kinds); // some groups do not divide by 8 ranks
}
#endif

// Needs no GPU.
#ifdef SLEIGH_CUDA
#define GPU_BUILD_CASE(NAME, FN)                                                                                               \
    { NAME, NEEDS_NOTHING, FN }
#else
#define GPU_BUILD_CASE(NAME, FN) GPU_CASE(NAME, FN)
#endif

// Cases with many exchanges have the whole GPU: ranks take turns with all processes on it, and wait in kernels.
static const test_case cases[] = {WHOLE_GPU_CASE("sums", sums),
                                  GPU_CASE("logits", logits),
                                  GPU_CASE("missing", missing),
                                  GPU_CASE("gathered", gathered),
                                  GPU_CASE("nccl", nccl),
                                  GPU_BUILD_CASE("library_calls", library_calls),
                                  GPU_CASE("without_peers", without_peers),
                                  GPU_CASE("unconnected", unconnected),
                                  WHOLE_GPU_CASE("plain-columns", plain_columns),
                                  WHOLE_GPU_CASE("packed-columns", packed_columns),
                                  {0}};
extern const test_suite suite_cuda_ranks;
const test_suite suite_cuda_ranks = {"cuda_ranks", cases};
