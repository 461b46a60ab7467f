// tests/support/threads.h - the threads of a test that calls methods and operations without an engine.
#ifndef SLEIGH_TEST_THREADS_H
#define SLEIGH_TEST_THREADS_H

// From now on, sl_parallel of this thread has n threads. Without a call it has 1.
void test_threads(int n);

#endif
