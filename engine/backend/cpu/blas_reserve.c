// engine/backend/cpu/blas_reserve.c - see blas_reserve.h.
//
// Process-wide state, which a lock guards: the number of buffers that OpenBLAS has mapped for Sleigh, and the number of threads
// of the calls that run at this moment. Engines of several threads run together, so their calls share the buffers. Each thread
// that calls the library has a team of OpenMP threads of its own.
#include "engine/backend/cpu/blas_reserve.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
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
static int n_buffers, n_running;
static _Thread_local int n_team = 1; // threads that OpenMP has started for the calling thread, and the calling thread itself

// The value in bytes of an environment variable such as OMP_STACKSIZE. The text is a number and a unit, as libgomp reads them.
// A number without a unit is in KiB. 0: the variable is not set, or libgomp would not accept it.
static size_t stack_of(const char *name) {
    const char *text = getenv(name);
    char *end;
    if (!text) return 0;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    if (end == text || errno || strchr(text, '-')) return 0;
    while (isspace((unsigned char)*end)) end++;
    int unit = tolower((unsigned char)*end), shift = unit == 'b' ? 0 : unit == 'm' ? 20 : unit == 'g' ? 30 : 10;
    if (*end && !strchr("bkmg", unit)) return 0;
    if (*end) end++;
    while (isspace((unsigned char)*end)) end++;
    return *end || n > SIZE_MAX >> shift ? 0 : (size_t)n << shift;
}

// Bytes of stack that OpenMP gives a thread: OMP_STACKSIZE, or the default of the system.
static size_t thread_stack(void) {
    pthread_attr_t attr;
    size_t size = stack_of("OMP_STACKSIZE");
    if (!size) size = stack_of("GOMP_STACKSIZE");
    if (size || pthread_getattr_default_np(&attr)) return size ? size : SL_CPU_STACK;
    pthread_attr_getstacksize(&attr, &size);
    pthread_attr_destroy(&attr);
    return size;
}

// Checks that the memory can be mapped, in the pieces in which OpenBLAS and OpenMP will map it: the system may refuse one large
// mapping and accept many small ones.
static int check_room(int n_new_buffers, int n_stacks, size_t stack, sl_error *err) {
    void *piece[2 * MOST_THREADS];
    size_t size[2 * MOST_THREADS], total = 0;
    int n = 0, failed = 0;
    for (int i = 0; !failed && i < n_new_buffers + n_stacks; i++) {
        size[n] = i < n_new_buffers ? BLAS_BUFFER : stack;
        piece[n] = mmap(NULL, size[n], PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (piece[n] == MAP_FAILED)
            failed = errno;
        else
            n++;
    }
    for (int i = 0; i < n; i++) munmap(piece[i], size[i]);
    if (!failed) return 0;
    total = (size_t)n_new_buffers * BLAS_BUFFER + (size_t)n_stacks * stack;
    return sl_fail(err, SL_ERR_MEMORY,
                   "not enough memory for OpenBLAS: it needs %zu MiB of address space for %d threads, %d MiB per thread and "
                   "the threads' stacks: %s; use fewer {n_threads}, or raise the limit (ulimit -v)",
                   total >> 20, n_running, BLAS_BUFFER >> 20, strerror(failed));
}

// Each thread of the team holds a buffer until every thread has one, and the calling thread holds n_extra more. So OpenBLAS
// maps as many buffers. Returns the number of buffers that OpenBLAS could not provide.
static int hold_buffers(int n_threads, int n_extra) {
    void *extra[MOST_THREADS];
    atomic_int missing = 0;
    int has_buffers = blas_memory_alloc && blas_memory_free;
    for (int i = 0; has_buffers && i < n_extra; i++)
        if (!(extra[i] = blas_memory_alloc(0))) missing++;
#pragma omp parallel num_threads(n_threads)
    {
        void *buffer = has_buffers ? blas_memory_alloc(0) : NULL;
        if (has_buffers && !buffer) missing++;
#pragma omp barrier
        if (buffer) blas_memory_free(buffer);
    }
    for (int i = 0; has_buffers && i < n_extra; i++)
        if (extra[i]) blas_memory_free(extra[i]);
    return missing;
}

// The calling thread holds the lock. n_running includes n_threads.
static int reserve(int n_threads, sl_error *err) {
    size_t stack = thread_stack();
    int n_new = n_running - n_buffers, n_stacks = n_threads - n_team, n_extra = n_running - n_threads;
    int has_buffers = blas_memory_alloc && blas_memory_free;
    if (n_new <= 0 && n_stacks <= 0) return 0;
    if (n_running > MOST_THREADS)
        return sl_fail(err, SL_ERR_ARG, "engines with %d threads run at the same time: expected at most %d", n_running,
                       MOST_THREADS);
    if (n_threads > 1 && stack < SL_CPU_STACK)
        return sl_fail(err, SL_ERR_ARG, "threads have stacks of %zu KiB (OMP_STACKSIZE, or ulimit -s): expected at least %d",
                       stack >> 10, SL_CPU_STACK >> 10);
    // Other calls may hold their buffers at this moment, so OpenBLAS may map n_extra buffers that it does not need later.
    int n_maps = has_buffers && n_new > 0 ? n_new + n_extra : 0;
    int rc = check_room(n_maps < MOST_THREADS ? n_maps : MOST_THREADS, n_stacks > 0 ? n_stacks : 0, stack, err);
    if (rc) return rc;
    if (hold_buffers(n_threads, n_new > 0 ? n_extra : 0))
        return sl_fail(err, SL_ERR_MEMORY, "OpenBLAS has no buffers for %d threads; use fewer {n_threads}", n_running);
    if (n_new > 0) n_buffers = n_running;
    if (n_stacks > 0) n_team = n_threads;
    return 0;
}

int sl_cpu_reserve(int n_threads, sl_error *err) {
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
