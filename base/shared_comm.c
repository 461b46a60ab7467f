// base/shared_comm.c - see shared_comm.h.
//
// Each rank has two slots in the shared memory, which it fills in turns: exchange k + 2 fills the slot of exchange k again. A
// rank arrives at the barrier of exchange k + 1 only after it has read the slots of exchange k. So an exchange needs one
// barrier.
#include "base/shared_comm.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    SLOT = 1 << 20, // bytes that a rank sends at a time
    LINE = 64,      // bytes of a cache line
    SPINS = 2000,   // looks at the barrier before a rank sleeps
};

typedef struct shared { // zeros at the start
    _Alignas(SL_COMM_BOARD) char boards[SL_MOST_RANKS][SL_COMM_BOARD];
    _Alignas(LINE) _Atomic uint32_t n_arrived;
    _Alignas(LINE) _Atomic uint32_t turn; // grows with each barrier
    _Atomic uint32_t n_asleep;            // ranks that sleep until `turn` grows, or are about to
    _Alignas(LINE) char slots[];          // [2][n][SLOT]
} shared;

typedef struct shared_comm {
    sl_comm table; // first, so that a pointer to it is a pointer to the object
    sl_ranks *ranks;
    shared *memory;
    size_t size;
    int next; // which of its slots this rank fills next
} shared_comm;

// Sleeps until the barrier's turn is another one, or a signal comes. Both sides write one word and then read the other one, so
// either the last rank sees that this one sleeps, or the kernel sees the new turn.
static void sleep_at(shared *m, uint32_t turn) {
    atomic_fetch_add(&m->n_asleep, 1);
    syscall(SYS_futex, &m->turn, FUTEX_WAIT, turn, NULL, NULL, 0);
    atomic_fetch_sub(&m->n_asleep, 1);
}

// The wait has no limit: the ranks of a server wait here for a request. When a rank dies or is stopped, base/ranks.h ends the
// run.
static void barrier(sl_comm *comm) {
    shared *m = ((shared_comm *)comm)->memory;
    uint32_t turn = atomic_load(&m->turn);
    if (atomic_fetch_add(&m->n_arrived, 1) + 1 == (uint32_t)comm->n) {
        atomic_store(&m->n_arrived, 0);
        atomic_store(&m->turn, turn + 1);
        if (atomic_load(&m->n_asleep)) syscall(SYS_futex, &m->turn, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
        return;
    }
    for (int i = 0; i < SPINS; i++) { // ranks with cores of their own arrive within microseconds
        if (atomic_load_explicit(&m->turn, memory_order_acquire) != turn) return;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    while (atomic_load(&m->turn) == turn) sleep_at(m, turn);
}

static char *slot_of(const shared_comm *c, int rank) {
    return c->memory->slots + ((size_t)c->next * (size_t)c->table.n + (size_t)rank) * SLOT;
}

static void all_gather(sl_comm *comm, const float *part, size_t n_floats, float *all) {
    shared_comm *c = (shared_comm *)comm;
    enum { MOST = SLOT / sizeof(float) };
    for (size_t at = 0, n; at < n_floats; at += n) {
        n = n_floats - at < MOST ? n_floats - at : MOST;
        memcpy(slot_of(c, comm->rank), part + at, n * sizeof *part);
        barrier(comm);
        for (int i = 0; i < comm->n; i++) memcpy(all + (size_t)i * n_floats + at, slot_of(c, i), n * sizeof *part);
        c->next ^= 1;
    }
}

static void broadcast(sl_comm *comm, void *data, size_t n_bytes) {
    shared_comm *c = (shared_comm *)comm;
    for (size_t at = 0, n; at < n_bytes; at += n) {
        n = n_bytes - at < SLOT ? n_bytes - at : SLOT;
        if (!comm->rank) memcpy(slot_of(c, 0), (char *)data + at, n);
        barrier(comm);
        if (comm->rank) memcpy((char *)data + at, slot_of(c, 0), n);
        c->next ^= 1;
    }
}

static void fail(sl_comm *comm, const char *text) {
    sl_ranks_fail(((shared_comm *)comm)->ranks, 1, text);
}

// ---- life ----

static int cannot_share(const shared_comm *c, int number, sl_error *err) {
    return sl_fail(err, SL_ERR_IO, "shared memory of %zu KiB for %d ranks: %s", c->size >> 10, c->table.n, strerror(number));
}

// Makes memory without a name, which ends with the last process that uses it. All of it is allocated here: without room for it,
// a write to it would kill the process.
static int make_memory(const shared_comm *c, int *fd, sl_error *err) {
    int number;
    *fd = memfd_create("sleigh", MFD_CLOEXEC);
    if (*fd < 0) return cannot_share(c, errno, err);
    do number = posix_fallocate(*fd, 0, (off_t)c->size);
    while (number == EINTR);
    return number ? cannot_share(c, number, err) : 0;
}

static int map_memory(shared_comm *c, int fd, sl_error *err) {
    void *p = mmap(NULL, c->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) return cannot_share(c, errno, err);
    c->memory = p, c->table.board = c->memory->boards;
    return 0;
}

static int receive_text(sl_ranks *r, int from, sl_text *out, sl_error *err) {
    int got;
    return sl_ranks_receive(r, from, -1, out, &got, err);
}

// The first rank makes the memory and sends the path of its file descriptor; the others answer when they have mapped it.
static int share_memory(sl_ranks *r, int first, shared_comm *c, sl_error *err) {
    char path[64];
    sl_text text = {0};
    int fd = -1, rc = 0;
    if (c->table.rank == 0) {
        rc = make_memory(c, &fd, err);
        if (!rc) rc = map_memory(c, fd, err);
        snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)getpid(), fd);
        for (int i = 1; !rc && i < c->table.n; i++) rc = sl_ranks_send(r, first + i, path, strlen(path) + 1, err);
        for (int i = 1; !rc && i < c->table.n; i++) rc = receive_text(r, first + i, &text, err);
    } else {
        rc = receive_text(r, first, &text, err);
        if (!rc && (fd = open(text.data, O_RDWR | O_CLOEXEC)) < 0) rc = cannot_share(c, errno, err);
        if (!rc) rc = map_memory(c, fd, err);
        if (!rc) rc = sl_ranks_send(r, first, "", 0, err);
    }
    if (fd >= 0) close(fd);
    sl_text_free(&text);
    return rc;
}

int sl_shared_comm_open(sl_ranks *r, int first, int n, sl_comm **out, sl_error *err) {
    for (int i = 1; i < n; i++)
        if (!sl_ranks_same_host(r, first, first + i))
            return sl_fail(err, SL_ERR_UNSUPPORTED,
                           "%s is on another host than rank %d; expected the %d ranks that share a model "
                           "on one host",
                           sl_ranks_name(r, first + i), first, n);
    shared_comm *c = calloc(1, sizeof *c);
    if (!c) return sl_fail(err, SL_ERR_MEMORY, "%d ranks: out of memory", n);
    c->table =
        (sl_comm){.rank = sl_ranks_rank(r) - first, .n = n, .all_gather = all_gather, .broadcast = broadcast, .fail = fail};
    c->ranks = r;
    c->size = sizeof *c->memory + 2 * (size_t)n * SLOT;
    int rc = share_memory(r, first, c, err);
    if (rc)
        sl_shared_comm_close(&c->table);
    else
        *out = &c->table;
    return rc;
}

void sl_shared_comm_close(sl_comm *comm) {
    shared_comm *c = (shared_comm *)comm;
    if (c && c->memory) munmap(c->memory, c->size);
    free(c);
}
