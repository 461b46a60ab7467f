// backend/cpu/blas_reserve.c - see blas_reserve.h.
//
// Process-wide state, which a lock guards: the number of buffers that OpenBLAS has mapped for Sleigh, and the number of threads
// of the calls that run at this moment. Engines of several threads run together, so their calls share the buffers. In a child
// process after fork(), no call runs.
#include "backend/cpu/blas_reserve.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

// Functions that OpenBLAS exports, in the static and in the shared library. Other BLAS libraries do not have them.
__attribute__((weak)) void *blas_memory_alloc(int place);
__attribute__((weak)) void blas_memory_free(void *buffer);

enum {
    BLAS_BUFFER = 128 << 20, // bytes: BUFFER_SIZE of OpenBLAS on x86-64 and ARM
    MOST_THREADS = 1024,
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int n_buffers, n_running;

// ---- fork() ----

static void before_fork(void) {
    pthread_mutex_lock(&lock);
}

static void in_parent(void) {
    pthread_mutex_unlock(&lock);
}

static void in_child(void) {
    n_running = 0;
    pthread_mutex_unlock(&lock);
}

static void watch_forks(void) {
    pthread_atfork(before_fork, in_parent, in_child);
}

// ---- buffers ----

// Checks that the memory can be mapped, in the pieces in which OpenBLAS will map it: the system may refuse one large mapping
// and accept many small ones.
static int check_room(int n_new, sl_error *err) {
    void *piece[MOST_THREADS];
    int n = 0, failed = 0;
    while (!failed && n < n_new && n < MOST_THREADS) {
        piece[n] = mmap(NULL, BLAS_BUFFER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (piece[n] == MAP_FAILED)
            failed = errno;
        else
            n++;
    }
    for (int i = 0; i < n; i++) munmap(piece[i], BLAS_BUFFER);
    if (!failed) return 0;
    return sl_fail(
        err, SL_ERR_MEMORY,
        "not enough memory for OpenBLAS: it needs %d MiB of address space for %d threads, %d MiB per thread: %s; use "
        "fewer {n_threads}, or raise the limit (ulimit -v)",
        n_new * (BLAS_BUFFER >> 20), n_running, BLAS_BUFFER >> 20, strerror(failed));
}

// Takes n buffers at the same time, so that OpenBLAS maps as many, and gives them back. Returns the number of buffers that
// OpenBLAS could not provide.
static int hold_buffers(int n) {
    void *held[MOST_THREADS];
    int missing = 0;
    for (int i = 0; i < n; i++)
        if (!(held[i] = blas_memory_alloc(0))) missing++;
    for (int i = 0; i < n; i++)
        if (held[i]) blas_memory_free(held[i]);
    return missing;
}

// The calling thread holds the lock. n_running includes the threads of this call.
static int reserve(int n_threads, sl_error *err) {
    int n_new = n_running - n_buffers;
    if (n_running > MOST_THREADS)
        return sl_fail(err, SL_ERR_ARG, "engines with %d threads run at the same time: expected at most %d", n_running,
                       MOST_THREADS);
    if (n_new <= 0 || !blas_memory_alloc || !blas_memory_free) return 0;
    // Other calls may hold their buffers at this moment, so OpenBLAS may map buffers that it does not need later.
    int rc = check_room(n_new + n_running - n_threads, err);
    if (rc) return rc;
    if (hold_buffers(n_running))
        return sl_fail(err, SL_ERR_MEMORY, "OpenBLAS has no buffers for %d threads; use fewer {n_threads}", n_running);
    n_buffers = n_running;
    return 0;
}

int sl_cpu_reserve(int n_threads, sl_error *err) {
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&lock);
    n_running += n_threads;
    int rc = reserve(n_threads, err);
    if (rc) n_running -= n_threads;
    pthread_mutex_unlock(&lock);
    return rc;
}

void sl_cpu_unreserve(int n_threads) {
    pthread_mutex_lock(&lock);
    n_running -= n_threads;
    pthread_mutex_unlock(&lock);
}
