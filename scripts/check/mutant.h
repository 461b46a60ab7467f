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

#define SL_MUTANTS_AT 0x680000000000 // where each process maps the file of the reached faults, so that kernels know its address

#ifdef __cplusplus
extern "C" {
#endif
__attribute__((weak)) int sl_mutant_now = -1;
// [SL_N_MUTANTS] 1: the code reached the fault. NULL: not wanted
__attribute__((weak)) volatile char *sl_mutants_reached;

__attribute__((constructor)) static void sl_mutant_start(void) {
    const char *now = getenv("SLEIGH_MUTANT"), *file = getenv("SLEIGH_MUTANTS_REACHED");
    if (now) sl_mutant_now = atoi(now);
    FILE *f = file && !sl_mutants_reached ? fopen(file, "r+b") : NULL;
    if (!f) return;
    void *map =
        mmap((void *)SL_MUTANTS_AT, SL_N_MUTANTS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, fileno(f), 0);
    if (map != (void *)SL_MUTANTS_AT) perror(file), abort();
    sl_mutants_reached = (volatile char *)map;
    fclose(f);
}
#ifdef __cplusplus
}
#endif

#ifdef __CUDACC__
// A kernel reads the number of the fault from this word. mutate.py writes it into a copy of the program, behind the mark.
struct sl_mutant_word {
    char mark[16];
    long long now; // -1: none, SL_MUTANTS_RECORD: none, and write down which faults are reached
};
static __constant__ sl_mutant_word sl_mutant_here = {"sleigh's mutant", -1}; // the compiler cannot know that nobody writes it
static __device__ char sl_mutants_seen[SL_N_MUTANTS]; // a copy of the file on the GPU: a write to the host's memory is slow
#define SL_MUTANTS_RECORD -2

// Maps the file for kernels, at the host's address.
static bool sl_mutants_map() {
    void *file = (void *)sl_mutants_reached, *there = NULL;
    if (!file) return false;
    cudaError_t rc = cudaHostRegister(file, SL_N_MUTANTS, cudaHostRegisterMapped | cudaHostRegisterPortable);
    if (rc == cudaSuccess) rc = cudaHostGetDevicePointer(&there, file, 0);
    if (rc == cudaSuccess && there == file) return true;
    fprintf(stderr, "mutant.h: kernels cannot write to the file of the reached faults: %s\n", cudaGetErrorString(rc));
    abort();
}

// The linker calls this function in place of cudaMalloc (--wrap). A process that launches kernels allocates memory for them
// before.
extern "C" cudaError_t __real_cudaMalloc(void **p, size_t size);
extern "C" __attribute__((weak)) cudaError_t __wrap_cudaMalloc(void **p, size_t size) {
    static const bool is_mapped = sl_mutants_map(); // once in a process
    (void)is_mapped;
    return __real_cudaMalloc(p, size);
}
#endif

SL_HOST_AND_DEVICE static inline int sl_mutant(int number) {
#ifdef __CUDA_ARCH__
    const long long now = sl_mutant_here.now;
    if (now == SL_MUTANTS_RECORD && !sl_mutants_seen[number]) {
        sl_mutants_seen[number] = 1;
        ((volatile char *)SL_MUTANTS_AT)[number] = 1;
    }
    return now == number;
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
