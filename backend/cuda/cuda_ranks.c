// backend/cuda/cuda_ranks.c - see cuda_ranks.h: the exchange memory of the ranks, and the exchanges that a pass queues.
//
// Ranks on different GPUs, and ranks on one GPU, map each other's memory in the same way (cudaIpc). Ranks on one GPU take
// turns on it, as any processes do. NCCL (nccl.h) takes a GPU for each rank.
//
// A wait of an exchange has a limit, and names the rank that has not come. A kernel of NCCL has none, and ncclCommAbort itself
// can hang when another rank does. Therefore the ranks meet in an exchange without data before each operation of NCCL, and a
// thread of the host ends the run when a meeting fails: the host may be in a call of CUDA that waits for the kernel of NCCL.
#include "backend/cuda/cuda_ranks.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/cuda_error.h"
#include "backend/cuda/linear.h"
#include "backend/cuda/nccl.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    WATCH_MS = 50, // between two looks at the fault
    MEMORY = 2 * SL_EXCHANGE_SLOT + (int)sizeof(sl_exchange_flags),
    MOST_ONE_SHOT = 512 << 10, // bytes of a part; beyond, NCCL is faster, because it does not send all parts to all ranks
};

// ---- start ----

// What a rank tells the others; multiples of 4 bytes.
typedef struct card {
    cudaIpcMemHandle_t memory;
    char gpu[16]; // its number in the world
} card;

typedef struct second_card {
    char id[SL_NCCL_ID]; // of rank 0: the communicator
    int32_t has_peers, has_nccl;
} second_card;

static int make_memory(sl_cuda_ranks *r, card *own, sl_error *err) {
    static const char what[] = "memory that ranks share";
    int rc = sl_cuda_check(cudaMalloc((void **)&r->memory, MEMORY), what, err);
    if (!rc) rc = sl_cuda_check(cudaMemset(r->memory, 0, MEMORY), what, err);
    if (!rc) rc = sl_cuda_check(cudaMalloc((void **)&r->exchange.state, 3 * sizeof(uint32_t)), what, err);
    if (!rc) rc = sl_cuda_check(cudaMemset(r->exchange.state, 0, 3 * sizeof(uint32_t)), what, err);
    if (!rc) rc = sl_cuda_check(cudaHostAlloc((void **)&r->fault, sizeof *r->fault, cudaHostAllocMapped), what, err);
    if (!rc) r->fault->missing = 0, r->exchange.fault = r->fault;
    if (!rc && cudaIpcGetMemHandle(&own->memory, r->memory) != cudaSuccess) cudaGetLastError(); // then no rank can map it
    return rc ? rc : sl_cuda_check(cudaDeviceSynchronize(), what, err); // it is zero before others see it
}

static int map_memory(sl_cuda_ranks *r, int rank, const card *cards, sl_error *err) {
    char *at = r->memory;
    if (rank != r->exchange.rank) {
        cudaError_t rc = cudaIpcOpenMemHandle((void **)&at, cards[rank].memory, cudaIpcMemLazyEnablePeerAccess);
        if (rc != cudaSuccess) {
            cudaGetLastError();
            return sl_fail(err, SL_ERR_UNSUPPORTED, "rank %d cannot map the memory of rank %d's GPU (%s)", r->exchange.rank,
                           rank, cudaGetErrorString(rc));
        }
    }
    for (int slot = 0; slot < 2; slot++) r->slots[rank][slot] = (float *)(at + slot * SL_EXCHANGE_SLOT);
    r->exchange.flags[rank] = (sl_exchange_flags *)(at + 2 * SL_EXCHANGE_SLOT);
    return 0;
}

static void gather_cards(sl_comm *comm, const void *own, size_t size, void *all) {
    comm->all_gather(comm, own, size / sizeof(float), all); // floats are only copied
}

// Tells all ranks whether one has failed. So no rank waits for a rank that has given up.
static int agree(sl_comm *comm, int rc, sl_error *err) {
    int32_t own = rc, all[SL_MOST_RANKS];
    gather_cards(comm, &own, sizeof own, all);
    for (int i = 0; !rc && i < comm->n; i++)
        if (all[i]) return sl_fail(err, all[i], "{tensor_parallel} %d: rank %d cannot join the others", comm->n, i);
    return rc;
}

static void count_gpus(const sl_comm *comm, const card *cards, sl_cuda_links *out) {
    out->is_one_each = 1, out->n_sharing = 0;
    for (int i = 0; i < comm->n; i++)
        for (int j = 0; j < comm->n; j++) {
            int is_same = !memcmp(cards[i].gpu, cards[j].gpu, sizeof cards[i].gpu);
            if (is_same && i != j) out->is_one_each = 0;
            if (i == comm->rank) out->n_sharing += is_same;
        }
}

// Finds how all ranks can be connected. has_peers: this rank maps the memory of the others
static void find_links(sl_comm *comm, int has_peers, sl_cuda_links *out, second_card *cards) {
    second_card own = {.has_peers = has_peers};
    own.has_nccl = out->is_one_each && !sl_nccl_id(own.id, &out->why_not);
    gather_cards(comm, &own, sizeof own, cards);
    out->has_peers = out->has_nccl = 1;
    for (int i = 0; i < comm->n; i++) {
        out->has_peers &= cards[i].has_peers, out->has_nccl &= cards[i].has_nccl;
        if (own.has_nccl && !cards[i].has_nccl) sl_fail(&out->why_not, SL_ERR_UNSUPPORTED, "rank %d has no NCCL", i);
    }
}

// Puts the flags into memory of the host, where ranks whose memory cannot be mapped meet.
static int map_board(sl_cuda_ranks *r, sl_error *err) {
    static const char what[] = "memory that ranks share";
    sl_exchange_flags *flags = r->comm->board, *mapped;
    _Static_assert(sizeof *flags == SL_COMM_BOARD, "the board of a rank has its flags");
    memset(flags[r->exchange.rank], 0, sizeof *flags); // an engine before this one may have used them
    int n = r->exchange.n, rc = sl_cuda_check(cudaHostRegister(flags, n * sizeof *flags, cudaHostRegisterMapped), what, err);
    if (rc) return rc;
    r->board = flags;
    rc = sl_cuda_check(cudaHostGetDevicePointer((void **)&mapped, flags, 0), what, err);
    for (int i = 0; !rc && i < n; i++) r->exchange.flags[i] = mapped + i;
    return rc;
}

static int open_nccl(sl_cuda_ranks *r, const sl_cuda_links *links, const char *id, sl_error *err) {
    int n = r->exchange.n, rc = sl_nccl_open(id, r->exchange.rank, n, &r->nccl, err);
    if (rc || links->has_peers) return rc;
    for (int slot = 0; slot < 2; slot++) r->slots[r->exchange.rank][slot] = (float *)(r->memory + slot * SL_EXCHANGE_SLOT);
    rc = map_board(r, err);
    if (rc) return rc;
    return sl_cuda_check(cudaMalloc((void **)&r->gathered, (size_t)n * SL_EXCHANGE_SLOT), "memory for the parts of ranks", err);
}

// A thread. The fault lies in memory of the host, so it calls no function of CUDA.
static void *watch(void *ctx) {
    const sl_cuda *c = ctx;
    sl_cuda_ranks *r = c->ranks;
    sl_error err;
    while (!atomic_load(&r->is_closing)) {
        if (sl_cuda_ranks_check(c, &err)) {
            r->comm->fail(r->comm, err.message);
            break;
        }
        nanosleep(&(struct timespec){.tv_nsec = WATCH_MS * 1000000l}, NULL);
    }
    return NULL;
}

// Starts NCCL, and the thread that ends the run when a meeting fails.
static int start_nccl(sl_cuda *c, const sl_cuda_links *links, const char *id, sl_error *err) {
    int rc = open_nccl(c->ranks, links, id, err);
    if (rc) return rc;
    rc = pthread_create(&c->ranks->watch, NULL, watch, c);
    if (rc) return sl_fail(err, SL_ERR_MEMORY, "a thread beside NCCL: %s", strerror(rc));
    c->ranks->is_watched = 1;
    return 0;
}

static void stop_nccl(sl_cuda_ranks *r) {
    atomic_store(&r->is_closing, 1);
    if (r->is_watched) pthread_join(r->watch, NULL);
    sl_nccl_close(r->nccl);
    r->is_watched = 0, r->nccl = NULL;
}

int sl_cuda_use_comm(const sl_backend *be, sl_comm *comm, sl_cuda_links *out, sl_error *err) {
    sl_cuda *c = sl_cuda_of(be);
    sl_cuda_ranks *r = calloc(1, sizeof *r);
    card own = {0}, cards[SL_MOST_RANKS];
    second_card second[SL_MOST_RANKS];
    sl_error why = {0};
    if (!r) return sl_fail(err, SL_ERR_MEMORY, "{tensor_parallel} %d: out of memory", comm->n);
    sl_cuda_use(c);
    *out = (sl_cuda_links){0};
    r->comm = comm;
    r->exchange = (sl_exchange){.rank = comm->rank, .n = comm->n, .limit_ms = SL_EXCHANGE_LIMIT_MS};
    c->ranks = r;
    memcpy(own.gpu, &c->props.uuid, sizeof own.gpu);
    int rc = agree(comm, make_memory(r, &own, err), err), unmapped = 0;
    if (rc) return rc;
    gather_cards(comm, &own, sizeof own, cards);
    count_gpus(comm, cards, out);
    r->n_sharing = out->n_sharing;
    for (int i = 0; !unmapped && i < comm->n; i++) unmapped = map_memory(r, i, cards, &why);
    find_links(comm, !unmapped, out, second);
    if (!out->has_peers && !out->has_nccl)
        rc = sl_fail(err, SL_ERR_UNSUPPORTED,
                     "{tensor_parallel} %d: %.200s; expected GPUs with peer access, or NCCL and a GPU for each rank", comm->n,
                     unmapped ? why.message : "another rank cannot map the memory of this rank's GPU");
    rc = agree(comm, rc, err);
    if (rc) return rc;
    if (!out->has_nccl) return 0;
    rc = agree(comm, start_nccl(c, out, second[0].id, &out->why_not), &out->why_not);
    if (rc && out->has_peers) { // the ranks can do without it
        stop_nccl(r);
        out->has_nccl = 0;
        return 0;
    }
    return rc ? sl_fail(err, SL_ERR_DEVICE, "{tensor_parallel} %d: %.900s", comm->n, out->why_not.message) : 0;
}

void sl_cuda_ranks_free(sl_cuda *c) {
    if (!c->ranks) return;
    stop_nccl(c->ranks);
    cudaFree(c->ranks->gathered);
    if (c->ranks->board) cudaHostUnregister(c->ranks->board);
    cudaFree(c->ranks->exchange.state); // not `memory`: a rank does not know when the others last read it
    cudaFreeHost((void *)c->ranks->fault);
    free(c->ranks);
}

// ---- exchanges ----

float *sl_cuda_ranks_slot(const sl_cuda *c) {
    return c->ranks->slots[c->ranks->exchange.rank][c->ranks->next_slot];
}

int sl_cuda_ranks_rows(int n_cols) {
    return SL_EXCHANGE_SLOT / (int)sizeof(float) / n_cols;
}

// Queues a wait until all ranks have come this far. The operation of NCCL that follows then waits for a rank only if the rank's
// process dies or is stopped in between, or its GPU fails. A dead or stopped process is silent, which ends the run
// (base/ranks.h). A failed GPU is an error of its own rank, which ends the run too. Nothing ends the run if a GPU hangs,
// without an error, within the operation itself.
static void queue_meeting(sl_cuda *c) {
    sl_cuda_rank_sum_launch(&(sl_cuda_rank_sum){.exchange = c->ranks->exchange, .n_cols = 4}, c->stream);
}

// An exchange of this rank's part [n], which is in the next slot.
static sl_exchange next_exchange(sl_cuda *c, size_t n) {
    sl_cuda_ranks *r = c->ranks;
    sl_exchange e = r->exchange;
    if (r->gathered) {
        sl_error err;
        queue_meeting(c);
        if (sl_nccl_all_gather(r->nccl, sl_cuda_ranks_slot(c), n, r->gathered, c->stream, &err) && !c->first_error.code)
            c->first_error = err;
        e.has_all = 1;
        for (int i = 0; i < e.n; i++) e.parts[i] = r->gathered + (size_t)i * n;
        return e;
    }
    for (int i = 0; i < e.n; i++) e.parts[i] = r->slots[i][r->next_slot];
    r->next_slot ^= 1;
    return e;
}

void sl_cuda_ranks_add(sl_cuda *c, int n_rows, int n_cols, float *x, const sl_next_norm *norm) {
    sl_cuda_rank_sum a = {
        .exchange = next_exchange(c, (size_t)n_rows * n_cols), .n_rows = n_rows, .n_cols = n_cols, .x = x, .x_stride = n_cols};
    if (norm) a.next_w = norm->w->data, a.out16 = norm->rows, a.next_sums = norm->sums;
    sl_cuda_rank_sum_launch(&a, c->stream);
}

// NCCL leaves the sum in the slot of each rank, which no other rank reads. So this slot stays the next one.
void sl_cuda_ranks_add_prefill(sl_cuda *c, int n_rows, int n_cols, float *x, int x_stride) {
    sl_cuda_ranks *r = c->ranks;
    size_t n = (size_t)n_rows * n_cols;
    sl_error err;
    sl_cuda_rank_sum a = {.n_rows = n_rows, .n_cols = n_cols, .x = x, .x_stride = x_stride};
    if (!r->nccl || n * sizeof(float) <= MOST_ONE_SHOT) {
        a.exchange = next_exchange(c, n);
    } else {
        queue_meeting(c);
        if (sl_nccl_all_reduce(r->nccl, sl_cuda_ranks_slot(c), n, c->stream, &err) && !c->first_error.code)
            c->first_error = err;
        a.exchange = (sl_exchange){.n = 1, .has_all = 1, .parts = {sl_cuda_ranks_slot(c)}};
    }
    sl_cuda_rank_sum_launch(&a, c->stream);
}

void sl_cuda_ranks_begin_step(sl_cuda *c) {
    if (c->ranks && c->ranks->next_slot) sl_cuda_ranks_add(c, 0, 4, NULL, NULL);
}

void sl_cuda_gather_logits(const sl_backend *be, int n_rows, int n_part, float *logits) {
    sl_cuda *c = sl_cuda_of(be);
    int n = c->ranks->exchange.n, most = sl_cuda_ranks_rows(n_part);
    sl_cuda_use(c);
    if (c->skipped_parts & SL_PART_LINEAR) return;
    // The last rows first: their logits overwrite no part of the rows before.
    for (int end = n_rows, rows; end > 0; end -= rows) {
        rows = end < most ? end : most;
        sl_cuda_rank_copy(logits + (size_t)(end - rows) * n_part, (size_t)rows * n_part, sl_cuda_ranks_slot(c), c->stream);
        sl_cuda_rank_gather_launch(&(sl_cuda_rank_gather){.exchange = next_exchange(c, (size_t)rows * n_part),
                                                          .n_rows = rows,
                                                          .n_cols = n_part,
                                                          .out = logits + (size_t)(end - rows) * n_part * n},
                                   c->stream);
    }
}
