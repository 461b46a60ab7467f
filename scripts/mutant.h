// scripts/mutant.h - the run-time switch of the mutation run. mutate.py includes it in every source file of its build.
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

// One byte for each fault: whether a test reached it. Kernels and the host see these bytes at one address.
#define SL_MUTANTS_REACHED ((volatile char *)0x200000000000)

#ifdef __cplusplus
extern "C" {
#endif
__attribute__((weak)) int sl_mutant_now = -1, sl_mutants_recorded;

__attribute__((constructor)) static void sl_mutant_start(void) {
    const char *now = getenv("SLEIGH_MUTANT"), *file = getenv("SLEIGH_MUTANTS_REACHED");
    if (now) sl_mutant_now = atoi(now);
    FILE *f = file && !sl_mutants_recorded ? fopen(file, "r+b") : NULL;
    if (!f) return;
    void *map =
        mmap((void *)SL_MUTANTS_REACHED, SL_N_MUTANTS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, fileno(f), 0);
    sl_mutants_recorded = map == (void *)SL_MUTANTS_REACHED;
    fclose(f);
}
#ifdef __cplusplus
}
#endif

#ifdef __CUDACC__
// A kernel reads the number of the fault from this word. mutate.py writes it into a copy of the program, behind the mark.
struct sl_mutant_word {
    char mark[16];
    long long now; // -1: none, -2: record what is reached
};
static __device__ const volatile sl_mutant_word sl_mutant_here = {"sleigh's mutant", -1};
static __device__ volatile char sl_mutants_seen[SL_N_MUTANTS]; // on the GPU, because a write to the host is slow
#endif

SL_HOST_AND_DEVICE static inline int sl_mutant(int number) {
#ifdef __CUDA_ARCH__
    long long now = sl_mutant_here.now;
    if (now == -2 && !sl_mutants_seen[number]) SL_MUTANTS_REACHED[number] = sl_mutants_seen[number] = 1;
    return now == number;
#else
    if (sl_mutants_recorded) SL_MUTANTS_REACHED[number] = 1;
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

#ifdef SLEIGH_CUDA
#include <cuda_runtime_api.h>
// Every program chooses its GPU first, so here kernels get access to SL_MUTANTS_REACHED.
static inline cudaError_t sl_mutant_set_device(int device) {
    cudaError_t failed = cudaSetDevice(device);
    if (!failed && sl_mutants_recorded)
        (void)cudaHostRegister((void *)SL_MUTANTS_REACHED, SL_N_MUTANTS, cudaHostRegisterMapped);
    if (!failed) (void)cudaGetLastError(); // a second registration fails
    return failed;
}
#define cudaSetDevice sl_mutant_set_device
#endif
#endif
