// tests/base/test_thread_pool.c - the pool of threads (thread_pool.h), and engines in a child process after fork().
#include "base/thread_pool.h"
#include "tests/support/models.h"
#include "tests/support/threads.h"
#include "tests/test.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 4, TASKS = 5000 };

static sl_error err;

typedef struct job {
    atomic_int runs[TASKS];
    atomic_int is_used[THREADS]; // 1: a task with this thread's number runs
    atomic_int n_wrong, n_nested;
} job;

static void nested(void *ctx, size_t i, int thread) {
    job *j = ctx;
    (void)i;
    if (thread != 0 || sl_threads_n() != 1) atomic_fetch_add(&j->n_wrong, 1);
    atomic_fetch_add(&j->n_nested, 1);
}

static void task(void *ctx, size_t i, int thread) {
    job *j = ctx;
    if (thread < 0 || thread >= THREADS || atomic_exchange(&j->is_used[thread], 1)) {
        atomic_fetch_add(&j->n_wrong, 1);
        return;
    }
    atomic_fetch_add(&j->runs[i], 1);
    if (i % 1000 == 0) sl_parallel(3, nested, ctx);
    atomic_store(&j->is_used[thread], 0);
}

// Every task runs once, while threads spin and after they fell asleep.
static void tasks(void) {
    static const size_t counts[] = {0, 1, 2, 3, 4, 5, 7, 64, TASKS};
    static job j;
    for (int n = 1; n <= THREADS; n++) {
        test_threads(n);
        CHECK_INT(sl_threads_n(), n);
        for (int round = 0; round < 300; round++) {
            size_t count = counts[round % (sizeof counts / sizeof *counts)];
            memset(&j, 0, sizeof j);
            if (round % 50 == 49) usleep(2000);
            sl_parallel(count, task, &j);
            for (size_t i = 0; i < TASKS; i++)
                if (j.runs[i] != (i < count)) FAIL("%d threads, %zu tasks: task %zu ran %d times", n, count, i, j.runs[i]);
            CHECK_INT(j.n_wrong, 0);
            CHECK_INT(j.n_nested, 3 * ((count + 999) / 1000));
        }
    }
}

// Each of n tasks waits for the others, so n threads must run them.
static void meet(void *ctx, size_t i, int thread) {
    atomic_int *n_missing = ctx;
    (void)i, (void)thread;
    atomic_fetch_sub(n_missing, 1);
    for (int ms = 0; atomic_load(n_missing) > 0; ms++)
        if (usleep(1000), ms > 60000) atomic_store(n_missing, -1000); // a minute: no other thread comes
}

static void meetings(void) {
    for (int n = 2; n <= THREADS; n++) {
        atomic_int n_missing = n;
        test_threads(n);
        sl_parallel((size_t)n, meet, &n_missing);
        CHECK_INT(n_missing, 0);
    }
}

static double cpu_ms(void) {
    struct rusage u;
    CHECK_INT(getrusage(RUSAGE_SELF, &u), 0);
    return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e3 + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-3;
}

static void long_task(void *ctx, size_t i, int thread) {
    (void)ctx, (void)thread;
    if (i == 0) usleep(100000);
}

// Threads that wait for a job, and a caller that waits for threads, sleep. A pool that spins would use 100 ms per thread in
// every round. In a virtual machine the time of other guests may count as used, so one quiet round is enough.
static void waiting(void) {
    double least = INFINITY;
    test_threads(2);
    for (int round = 0; round < 10 && least > 20; round++) {
        double before = cpu_ms();
        sl_parallel(2, long_task, NULL); // one of the two threads waits for the other one
        usleep(100000);
        least = fmin(least, cpu_ms() - before);
    }
    if (least > 20) FAIL("two threads that wait for 200 ms used %.1f ms of processors", least);
}

static int run_child(void (*fn)(void *ctx), void *ctx) { // its exit status
    int status;
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(60); // a call that hangs
        fn(ctx);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}

typedef struct forked {
    model_fixture *r;
    sl_session *s;
    int32_t *ids;
    float *want; // logits after ids[0..N_IDS)
} forked;

enum { N_IDS = 70 };

static void fail_child(int line) {
    fprintf(stderr, "line %d: %s\n", line, err.message);
    _exit(1);
}
#define EXPECT(X)                                                                                                              \
    do                                                                                                                         \
        if (!(X)) fail_child(__LINE__);                                                                                        \
    while (0)

// The engine of the parent is refused; an engine of the child computes what the parent's computes.
static void use_engines(void *ctx) {
    forked *f = ctx;
    sl_engine *own;
    sl_session *s;
    sl_generated result;
    sl_generation options = sl_generation_default();
    EXPECT(sl_prefill(f->s, f->ids, 5, NULL, &err) == SL_ERR_ARG && strstr(err.message, "child after fork()"));
    EXPECT(sl_decode(&f->s, 1, f->ids, &err) == SL_ERR_ARG && strstr(err.message, "make a new engine in the child"));
    EXPECT(sl_session_new(f->r->engine, 1, &s, &err) == SL_ERR_ARG);
    EXPECT(sl_generate(f->r->engine, "x", &options, NULL, NULL, &result, &err) == SL_ERR_ARG);
    EXPECT(sl_engine_set_attention(f->r->engine, "dense", &err) == SL_ERR_ARG);
    EXPECT(sl_session_n_tokens(f->s) == N_IDS);
    sl_session_free(f->s);
    EXPECT(sl_engine_new(f->r->model, &(sl_engine_options){.n_ctx = 256, .n_threads = 2}, &own, &err) == 0);
    EXPECT(sl_session_new(own, 0, &s, &err) == 0 && sl_prefill(s, f->ids, N_IDS, NULL, &err) == 0);
    EXPECT(!memcmp(sl_session_logits(s, &err), f->want, f->r->n_vocab * sizeof(float)));
    sl_session_free(s), sl_engine_free(own), sl_engine_free(f->r->engine);
}

static void note_threads(void *ctx, int done, int total) {
    (void)done, (void)total;
    *(int *)ctx = sl_threads_n();
}

static void forks(void) {
    int n_threads = 0; // of the engine, during a call
    model_fixture r = model_fixture_load("models/tiny", "dense", (sl_engine_options){.n_ctx = 256, .n_threads = 2});
    forked f = {.r = &r, .s = model_fixture_session(&r, 0), .ids = test_ids(N_IDS, r.n_vocab, test_seed)};
    size_t bytes = r.n_vocab * sizeof(float);
    CHECK_OK(sl_prefill(f.s, f.ids, N_IDS, &(sl_progress){note_threads, &n_threads}, &err), err);
    CHECK(n_threads == 2 && sl_threads_n() == 1);
    f.want = malloc(bytes);
    memcpy(f.want, sl_session_logits(f.s, &err), bytes);
    CHECK_INT(run_child(use_engines, &f), 0);
    CHECK_OK(sl_decode(&f.s, 1, f.ids, &err), err); // the parent goes on
    free(f.want), free(f.ids);
    sl_session_free(f.s);
    model_fixture_close(&r);
}

static const test_case cases[] = {
    {"tasks", 0, tasks}, {"meetings", 0, meetings}, {"waiting", 0, waiting}, {"forks", 0, forks}, {0}};
const test_suite suite_thread_pool = {"thread_pool", cases};
