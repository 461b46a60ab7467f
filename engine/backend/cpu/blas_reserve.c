// engine/backend/cpu/blas_reserve.c - see blas_reserve.h.
//
// Process-wide state: the number of threads that memory was reserved for. The lock of the caller guards it.
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

static int n_reserved;

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
static int check_room(int n_buffers, int n_stacks, size_t stack, sl_error *err) {
    void *piece[2 * MOST_THREADS];
    size_t size[2 * MOST_THREADS], total = 0;
    int n = 0, failed = 0;
    for (int i = 0; !failed && i < n_buffers + n_stacks; i++) {
        size[n] = i < n_buffers ? BLAS_BUFFER : stack;
        piece[n] = mmap(NULL, size[n], PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (piece[n] == MAP_FAILED)
            failed = errno;
        else
            n++;
    }
    for (int i = 0; i < n; i++) munmap(piece[i], size[i]);
    if (!failed) return 0;
    total = (size_t)n_buffers * BLAS_BUFFER + (size_t)n_stacks * stack;
    return sl_fail(err, SL_ERR_MEMORY,
                   "not enough memory for OpenBLAS: it needs %zu MiB of address space for %d threads, %d MiB per thread and "
                   "the threads' stacks: %s; pass fewer --threads, or raise the limit (ulimit -v)",
                   total >> 20, n_stacks + 1, BLAS_BUFFER >> 20, strerror(failed));
}

int sl_cpu_reserve(int n_threads, sl_error *err) {
    size_t stack = thread_stack();
    int n_new = n_threads - n_reserved, has_buffers = blas_memory_alloc && blas_memory_free;
    if (n_new <= 0) return 0;
    if (n_threads > 1 && stack < SL_CPU_STACK)
        return sl_fail(err, SL_ERR_ARG, "threads have stacks of %zu KiB (OMP_STACKSIZE, or ulimit -s): expected at least %d",
                       stack >> 10, SL_CPU_STACK >> 10);
    int rc = check_room(has_buffers ? n_new : 0, n_new - (n_reserved == 0), stack, err);
    if (rc) return rc;
    atomic_int missing = 0;
// Each thread holds its buffer until every thread has one. So OpenBLAS maps one buffer per thread.
#pragma omp parallel num_threads(n_threads)
    {
        void *buffer = has_buffers ? blas_memory_alloc(0) : NULL;
        if (has_buffers && !buffer) missing++;
#pragma omp barrier
        if (buffer) blas_memory_free(buffer);
    }
    if (missing) return sl_fail(err, SL_ERR_MEMORY, "OpenBLAS has no buffers for %d threads; pass fewer --threads", n_threads);
    n_reserved = n_threads;
    return 0;
}
