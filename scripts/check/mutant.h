// scripts/check/mutant.h - the run-time switch of the mutation run. mutate.py includes it in every source file of its build.
#ifndef SL_MUTANT_H
#define SL_MUTANT_H
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#ifdef __CUDACC__
#include <type_traits>
#define SL_HOST_AND_DEVICE __host__ __device__
#else
#define SL_HOST_AND_DEVICE
#endif

#ifdef __cplusplus
extern "C" {
#endif
__attribute__((weak)) int sl_mutant_now = -1;
// [SL_N_MUTANTS] 1: the host's code reached the fault. NULL: not wanted
__attribute__((weak)) volatile char *sl_mutants_reached;

__attribute__((constructor)) static void sl_mutant_start(void) {
    const char *now = getenv("SLEIGH_MUTANT"), *file = getenv("SLEIGH_MUTANTS_REACHED");
    if (now) sl_mutant_now = atoi(now);
    FILE *f = file && !sl_mutants_reached ? fopen(file, "r+b") : NULL;
    if (!f) return;
    void *map = mmap(NULL, SL_N_MUTANTS, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(f), 0);
    if (map != MAP_FAILED) sl_mutants_reached = (volatile char *)map;
    fclose(f);
}
#ifdef __cplusplus
}
#endif

#ifdef __CUDACC__
// A kernel reads the number of the fault from this word. mutate.py writes it into a copy of the program, behind the mark.
struct sl_mutant_word {
    char mark[16];
    long long now; // -1: none
};
static __constant__ sl_mutant_word sl_mutant_here = {"sleigh's mutant", -1}; // the compiler cannot know that nobody writes it
#endif

SL_HOST_AND_DEVICE static inline int sl_mutant(int number) {
#ifdef __CUDA_ARCH__
    return sl_mutant_here.now == number;
#else
    if (sl_mutants_reached) sl_mutants_reached[number] = 1;
    return sl_mutant_now == number;
#endif
}

// A fault that compiles only if a and b have one type.
#ifdef __CUDACC__
template <class A, class B, class = typename std::enable_if<std::is_same<A, B>::value>::type>
SL_HOST_AND_DEVICE static inline int sl_mutant_of(int number) {
    return sl_mutant(number);
}
#define SL_MUTANT(number, a, b, faulty, right) (sl_mutant_of<decltype(a + 0), decltype(b + 0)>(number) ? faulty : right)
#else
#define SL_MUTANT(number, a, b, faulty, right)                                                                                 \
    (__extension__({                                                                                                           \
        _Static_assert(__builtin_types_compatible_p(__typeof__(a + 0), __typeof__(b + 0)), "types");                           \
        sl_mutant(number) ? faulty : right;                                                                                    \
    }))
#endif

#endif
