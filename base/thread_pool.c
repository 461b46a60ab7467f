// base/thread_pool.c - see thread_pool.h.
//
// A job is open while threads may begin to work on it. The calling thread opens a job, works, closes the job when no task is
// left, and waits for the threads inside. A thread that comes later finds the job closed.
#include "base/thread_pool.h"
#include "base/host_cpus.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    LINE = 64,    // bytes of a cache line
    RUNS = 32,    // runs of a thread, if there are enough tasks: the last one ends up to 3% of the job's time after the others
    SPIN_US = 50, // about the time of a sleep and a wake-up, so a wait takes at most twice the time of the best choice
};

// Bits of sl_threads.gate; the bits below count the threads inside, without the calling thread.
#define OPEN (1u << 31)
#define WAITING (1u << 30) // the calling thread sleeps until the last thread leaves

// A run is some consecutive tasks, whose data often lie side by side. The runs i, i + n_shares, i + 2 n_shares ... of a job
// belong to share i. A thread takes the runs of its own share first, so that equal jobs find their data in the caches of the
// same cores. Then it takes runs of other shares.
typedef struct share {
    alignas(LINE) atomic_size_t n_taken;
} share;

struct sl_threads {
    int n;
    int spins; // 0: more threads than cores, so a waiting thread would take the core that a working thread needs
    pid_t process;
    pthread_t *ids; // [n - 1]
    int n_started;
    // The job. Threads read these fields only while they are inside.
    size_t n_tasks, run, n_runs, n_shares; // run: tasks of a run
    sl_task task;
    void *ctx;
    share *shares; // [n]
    alignas(LINE) _Atomic uint32_t gate;
    alignas(LINE) _Atomic uint32_t jobs; // number of the newest job
    _Atomic uint32_t n_asleep;
    atomic_int next_number, ends;
};

// Thread-local: the pool that the calling thread's jobs use.
static _Thread_local sl_threads *current;

// ---- waits ----

static void futex_wait(_Atomic uint32_t *word, uint32_t value) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static void pause_core(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

// Spins until *word has the value (is_equal 1) or another value (0), but at most for SPIN_US.
static void spin(const sl_threads *t, _Atomic uint32_t *word, uint32_t value, int is_equal) {
    if (!t->spins) return;
    int64_t end = now_ns() + SPIN_US * 1000;
    do
        for (int i = 0; i < 16; i++) {
            if ((atomic_load_explicit(word, memory_order_acquire) == value) == is_equal) return;
            pause_core();
        }
    while (now_ns() < end);
}

// ---- a job ----

static void do_run(sl_threads *t, size_t r, int me) {
    size_t end = (r + 1) * t->run < t->n_tasks ? (r + 1) * t->run : t->n_tasks;
    for (size_t i = r * t->run; i < end; i++) t->task(t->ctx, i, me);
}

static void work(sl_threads *t, int me) {
    size_t n_shares = t->n_shares;
    for (size_t k = 0; k < n_shares; k++) {
        size_t s = ((size_t)me + k) % n_shares, n = (t->n_runs - s + n_shares - 1) / n_shares, i;
        share *from = &t->shares[s];
        while (atomic_load_explicit(&from->n_taken, memory_order_relaxed) < n &&
               (i = atomic_fetch_add_explicit(&from->n_taken, 1, memory_order_relaxed)) < n)
            do_run(t, s + i * n_shares, me);
    }
}

static int enter(sl_threads *t) { // 0: no job is open
    uint32_t gate = atomic_load(&t->gate);
    while (gate & OPEN)
        if (atomic_compare_exchange_weak(&t->gate, &gate, gate + 1)) return 1;
    return 0;
}

static void leave(sl_threads *t) {
    if (atomic_fetch_sub(&t->gate, 1) - 1 == WAITING) futex_wake(&t->gate, 1);
}

static void *run_thread(void *pool) {
    sl_threads *t = pool;
    int me = 1 + atomic_fetch_add(&t->next_number, 1);
    for (uint32_t seen = 0;;) {
        spin(t, &t->jobs, seen, 0);
        if (atomic_load(&t->jobs) == seen) {
            atomic_fetch_add(&t->n_asleep, 1);
            while (atomic_load(&t->jobs) == seen) futex_wait(&t->jobs, seen);
            atomic_fetch_sub(&t->n_asleep, 1);
        }
        seen = atomic_load(&t->jobs);
        if (atomic_load(&t->ends)) return NULL;
        if (!enter(t)) continue;
        work(t, me);
        leave(t);
    }
}

// Announces a job, or the end, to at most n threads that sleep, and to all that spin.
static void announce(sl_threads *t, int n) {
    atomic_fetch_add(&t->jobs, 1);
    if (atomic_load(&t->n_asleep)) futex_wake(&t->jobs, n);
}

static void close_job(sl_threads *t) {
    uint32_t gate = atomic_fetch_and(&t->gate, ~OPEN) & ~OPEN;
    if (gate) spin(t, &t->gate, 0, 1);
    while ((gate = atomic_load(&t->gate)) & ~WAITING)
        if (gate & WAITING || atomic_compare_exchange_strong(&t->gate, &gate, gate | WAITING))
            futex_wait(&t->gate, gate | WAITING);
    atomic_store(&t->gate, 0);
}

static void run_job(sl_threads *t, size_t n, sl_task task, void *ctx) {
    size_t most = (size_t)t->n * RUNS;
    t->n_tasks = n, t->task = task, t->ctx = ctx;
    t->run = n > most ? n / most : 1;
    t->n_runs = (n + t->run - 1) / t->run;
    t->n_shares = t->n_runs < (size_t)t->n ? t->n_runs : (size_t)t->n;
    for (size_t i = 0; i < t->n_shares; i++) atomic_store_explicit(&t->shares[i].n_taken, 0, memory_order_relaxed);
    atomic_store(&t->gate, OPEN);
    announce(t, (int)t->n_shares - 1);
    work(t, 0);
    close_job(t);
}

void sl_parallel(size_t n, sl_task task, void *ctx) {
    sl_threads *t = current;
    current = NULL; // in a task
    if (t && t->n > 1 && n > 1)
        run_job(t, n, task, ctx);
    else
        for (size_t i = 0; i < n; i++) task(ctx, i, 0);
    current = t;
}

// ---- life ----

// Starts the threads with the signals blocked that other processes send. A fault of a thread itself, such as SIGBUS after a
// file of weights became shorter, reaches the handler of the program. Returns 0 or an error number.
static int start(sl_threads *t) {
    static const int own[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
    pthread_attr_t attr;
    sigset_t all, before;
    int failed = pthread_attr_init(&attr);
    if (failed) return failed;
    pthread_attr_setstacksize(&attr, SL_THREAD_STACK);
    sigfillset(&all);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) sigdelset(&all, own[i]);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (!failed && t->n_started < t->n - 1) {
        failed = pthread_create(&t->ids[t->n_started], &attr, run_thread, t);
        t->n_started += !failed;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return failed;
}

int sl_threads_open(int n, sl_threads **out, sl_error *err) {
    SL_CHECK(n > 0);
    sl_threads *t = aligned_alloc(LINE, sizeof *t);
    if (t) {
        *t = (sl_threads){.n = n, .spins = n <= sl_host_cpus(""), .process = getpid()};
        t->ids = malloc((size_t)n * sizeof *t->ids);
        t->shares = aligned_alloc(LINE, (size_t)n * sizeof *t->shares);
    }
    int failed = !t || !t->ids || !t->shares ? ENOMEM : start(t);
    if (failed) {
        int started = t ? t->n_started : 0;
        sl_threads_close(t);
        return sl_fail(err, SL_ERR_MEMORY, "%d of %d threads could be started: %s; use fewer {n_threads}", started + 1, n,
                       strerror(failed));
    }
    *out = t;
    return 0;
}

void sl_threads_close(sl_threads *t) {
    if (!t) return;
    if (t->process == getpid()) {
        atomic_store(&t->ends, 1);
        announce(t, t->n);
        for (int i = 0; i < t->n_started; i++) pthread_join(t->ids[i], NULL);
    }
    free(t->ids);
    free(t->shares);
    free(t);
}

sl_threads *sl_threads_use(sl_threads *t) {
    sl_threads *before = current;
    current = t;
    return before;
}

int sl_threads_n(void) {
    return current ? current->n : 1;
}
