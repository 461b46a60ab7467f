// base/thread_pool.h - threads that share the work of a call, and sleep between calls.
//
// A pool never makes a call wait for a thread that has not begun: the calling thread takes the tasks that no other thread
// takes. A thread that waits spins for SPIN_US microseconds and then sleeps. So a machine that is busy with other programs
// slows a call down by little more than the time that it takes away.
#ifndef SLEIGH_THREAD_POOL_H
#define SLEIGH_THREAD_POOL_H

#include "base/error.h"

#include <stddef.h>

enum { SL_THREAD_STACK = 4 << 20 }; // bytes of stack of a thread of a pool; the largest frames take a twentieth

typedef struct sl_threads sl_threads;

// A pool of n threads: the calling thread and n - 1 new ones, which get no signals of other processes. SL_ERR_MEMORY: the
// system has no threads.
int sl_threads_open(int n, sl_threads **out, sl_error *err);
// No call may use the pool. In a child process after fork(), in which the threads do not exist, only frees the memory.
void sl_threads_close(sl_threads *t);

// Lets the calling thread use the pool in sl_parallel until the next call of this function. NULL: none. Two threads must not
// use a pool at the same time. Returns the pool before.
sl_threads *sl_threads_use(sl_threads *t);

// The threads of the calling thread's pool; 1 without a pool, and in a task.
int sl_threads_n(void);

// Runs task(ctx, i, thread) for each i below n, and returns when all have ended. thread is below sl_threads_n(); at any time,
// one task runs with this number. Low i begin first. Without a pool, and in a task, the calling thread runs all tasks in order.
typedef void (*sl_task)(void *ctx, size_t i, int thread);
void sl_parallel(size_t n, sl_task task, void *ctx);

#endif
