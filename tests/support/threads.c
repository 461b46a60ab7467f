// tests/support/threads.c - see threads.h.
#include "tests/support/threads.h"
#include "base/thread_pool.h"
#include "tests/test.h"

void test_threads(int n) {
    static sl_threads *pool; // that of the last call
    sl_error err;
    sl_threads_use(NULL);
    sl_threads_close(pool);
    pool = NULL;
    if (n > 1) CHECK_OK(sl_threads_open(n, &pool, &err), err);
    sl_threads_use(pool);
}
