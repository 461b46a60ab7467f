// scripts/measure/host_gather.cu - three ways to bring random rows of K and V from host memory to a kernel:
//   zero copy      the GPU's threads read each row where it lies, as the engine does (attention/cuda/host_rows.cuh)
//   read staged    host threads gather the rows into one block of pinned memory, and the GPU's threads read this block
//   copy staged    host threads gather the rows as before, and the copy engine brings the block to the GPU in pieces
// In the two staged ways a kernel writes its list of rows to host memory and waits inside the kernel, so that a CUDA graph can
// contain it. The table has the time of one layer. Its last column is one copy of as many bytes that lie together.
//
//     make build/host-gather && build/host-gather [GIB [THREADS]]     # 16 GiB of rows; a thread for each core but one
//
// GIB should be many times the last cache of the processor, so that almost no row is in a cache. Without a GPU the program
// times only the host threads. A time is the median of LAUNCHES - WARM_UP launches. Each launch draws new rows, and is checked:
// the sum of all words that were brought must be the sum of the listed rows. The program needs CUDA 12.5 or newer.
#include "base/philox.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <cuda_runtime.h>
#include <sys/mman.h>
#include <thread>
#include <vector>

enum {
    ROW_WORDS = 64,      // of 8 bytes: K and V of a row of head_dim 128 in bf16
    LIST = 32,           // rows of a list. Each warp has one list
    WARPS = 8,           // of a thread block
    PIECE = WARPS,       // lists of a piece, which the copy engine copies at a time: those of a thread block, 128 KiB
    ROWS = WARPS * LIST, // of a thread block
    AHEAD = 8,           // rows that a warp requests together, and that a host thread prefetches
    COPY_STREAMS = 4,    // fewer than the GPU's hardware queues, so that no copy queues behind the kernel that waits for it
    MAX_ROWS = 1 << 15,  // of a launch; a multiple of ROWS, as all sizes are
    LAUNCHES = 33,
    WARM_UP = 3,
    LIMIT_S = 5, // a kernel waits no longer for the host
};

// Ends the program at once: other threads and a kernel may still run.
[[noreturn]] static void fail(const char *what, const char *reason) {
    fprintf(stderr, "host-gather: error: %s: %s\n", what, reason);
    fflush(NULL);
    _Exit(1);
}

#define OK(call)                                                                                                               \
    do {                                                                                                                       \
        cudaError_t e_ = (call);                                                                                               \
        if (e_ != cudaSuccess) fail(#call, cudaGetErrorString(e_));                                                            \
    } while (0)

// A random word, uniform over 64 bits.
static SL_HOST_DEVICE uint64_t random_word(uint32_t key, uint32_t i) {
    sl_philox4 x = sl_philox(key, 0, i, 0, 0, 0);
    return (uint64_t)x.v[0] << 32 | x.v[1];
}

// Row `i` of a launch. Launches have numbers from 1 on.
static SL_HOST_DEVICE uint32_t row_of(uint32_t launch, uint32_t i, uint32_t n_all) {
    return (uint32_t)(random_word(launch, i) % n_all);
}

// Word 0 of a row. Word w has this value plus w.
static SL_HOST_DEVICE uint64_t first_word(uint32_t row) {
    return random_word(0, row);
}

enum way { ZERO_COPY, READ_STAGED, COPY_STAGED, N_WAYS };
static const char *const way_names[N_WAYS] = {"zero copy", "read staged", "copy staged"};

// What the kernel and the host threads share. With a GPU the host memory is pinned.
struct buffers {
    // Host memory:
    const uint64_t *rows; // [n_all][ROW_WORDS]
    uint32_t n_all;
    volatile uint64_t *lists; // [MAX_ROWS] launch << 32 | row. Each word tells its launch, so no fence is needed
    uint64_t *staged;         // [MAX_ROWS][ROW_WORDS]
    volatile uint32_t *ready; // [MAX_ROWS / LIST] the last launch whose list is in `staged`
    // Memory of the GPU:
    uint64_t *copied;        // [MAX_ROWS][ROW_WORDS]
    uint32_t *arrived;       // [MAX_ROWS / ROWS] the last launch whose piece is in `copied`
    unsigned long long *sum; // of all words
};

// ---- the GPU ----

// The lane's part of the sum of a list. A row is 512 bytes: 16 for each lane. from(i): where row i of the list begins. AGAIN:
// the host has changed these bytes since the last launch, so the loads do not use caches.
template <bool AGAIN, typename From> __device__ uint64_t sum_list(From from) {
    uint64_t sum = 0;
#pragma unroll 1
    for (int first = 0; first < LIST; first += AHEAD) {
        ulonglong2 x[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const ulonglong2 *at = (const ulonglong2 *)from(first + j) + threadIdx.x % 32;
            x[j] = AGAIN ? __ldcv(at) : __ldcg(at);
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++) sum += x[j].x + x[j].y;
    }
    return sum;
}

// Waits until *at is `launch`. After LIMIT_S it gives up, and the sum is wrong.
__device__ void wait_for_launch(const volatile uint32_t *at, uint32_t launch, unsigned pause_ns) {
    uint64_t begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do {
        if (*at == launch) break;
        __nanosleep(pause_ns);
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - begin < LIMIT_S * 1000000000ull);
    __threadfence_system();
}

// *sum += all words of the rows of a launch. Warp w of the grid has list w. Grid: n_rows / ROWS thread blocks. Bytes: 512 a row
// over the bus; COPY_STAGED: from memory of the GPU. Threads of one warp wait for a thread block, so that few requests for the
// flags go over the bus.
template <way WAY> __global__ void __launch_bounds__(32 * WARPS) sum_rows_kernel(buffers m, uint32_t launch) {
    int lane = threadIdx.x % 32;
    uint32_t first = (blockIdx.x * blockDim.x + threadIdx.x) / 32 * LIST;
    uint32_t row = row_of(launch, first + lane, m.n_all);
    uint64_t sum;
    if (WAY == ZERO_COPY) {
        sum = sum_list<false>([&](int i) { return m.rows + (size_t)__shfl_sync(~0u, row, i) * ROW_WORDS; });
    } else {
        m.lists[first + lane] = (uint64_t)launch << 32 | row;
        if (WAY == READ_STAGED && threadIdx.x < WARPS) wait_for_launch(m.ready + blockIdx.x * WARPS + threadIdx.x, launch, 500);
        if (WAY == COPY_STAGED && threadIdx.x == 0) wait_for_launch(m.arrived + blockIdx.x, launch, 100);
        __syncthreads();
        const uint64_t *block = (WAY == READ_STAGED ? m.staged : m.copied) + (size_t)first * ROW_WORDS;
        sum = sum_list<WAY == READ_STAGED>([&](int i) { return block + i * ROW_WORDS; });
    }
    for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (lane == 0) atomicAdd(m.sum, (unsigned long long)sum);
}

// ---- host threads ----

static void pause_thread() { // in a loop that waits for memory
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
}

static void prefetch_row(const uint64_t *row) {
    for (int w = 0; w < ROW_WORDS; w += 8) __builtin_prefetch(row + w);
}

// Gathers a list that has arrived.
static void gather_list(const buffers &m, uint32_t list) {
    const volatile uint64_t *rows = m.lists + list * LIST;
    uint64_t *to = m.staged + (size_t)list * LIST * ROW_WORDS;
    for (int i = 0; i < AHEAD; i++) prefetch_row(m.rows + (size_t)(uint32_t)rows[i] * ROW_WORDS);
    for (int i = 0; i < LIST; i++) {
        if (i + AHEAD < LIST) prefetch_row(m.rows + (size_t)(uint32_t)rows[i + AHEAD] * ROW_WORDS);
        memcpy(to + i * ROW_WORDS, m.rows + (size_t)(uint32_t)rows[i] * ROW_WORDS, 8 * ROW_WORDS);
    }
}

static bool has_arrived(const buffers &m, uint32_t list, uint32_t launch) {
    for (int i = 0; i < LIST; i++)
        if ((uint32_t)(m.lists[list * LIST + i] >> 32) != launch) return false;
    return true;
}

using host_clock = std::chrono::steady_clock;

// Threads that gather the lists of a launch as they arrive, and take them in order: one at a time, or with COPY_STAGED a piece.
struct gatherers {
    buffers m;
    std::vector<std::thread> threads;
    std::vector<host_clock::time_point> finish; // of each thread
    std::atomic<uint32_t> launch{0};            // gather this launch; ~0: end
    std::atomic<uint32_t> n_lists{0}, next_list{0}, n_done{0};
    way with = READ_STAGED;
    cudaStream_t streams[COPY_STREAMS] = {};
    decltype(&cuStreamWriteValue32) write_value = NULL;

    void copy_piece(uint32_t piece, uint32_t now) {
        cudaStream_t stream = streams[piece % COPY_STREAMS];
        size_t at = (size_t)piece * ROWS * ROW_WORDS;
        OK(cudaMemcpyAsync(m.copied + at, m.staged + at, ROWS * ROW_WORDS * 8, cudaMemcpyHostToDevice, stream));
        if (write_value((CUstream)stream, (CUdeviceptr)(m.arrived + piece), now, 0) != CUDA_SUCCESS)
            fail("cuStreamWriteValue32", "the driver refuses it");
    }

    void gather_launch(uint32_t now) {
        uint32_t step = with == COPY_STAGED ? (uint32_t)PIECE : 1, first;
        while ((first = next_list.fetch_add(step)) < n_lists) {
            for (uint32_t list = first; list < first + step; list++) {
                while (!has_arrived(m, list, now)) pause_thread();
                gather_list(m, list);
                std::atomic_thread_fence(std::memory_order_release);
                m.ready[list] = now;
            }
            if (with == COPY_STAGED) copy_piece(first / PIECE, now);
        }
    }

    void work(uint32_t thread) {
        for (uint32_t last = 0, now;; last = now) {
            while ((now = launch.load(std::memory_order_acquire)) == last) pause_thread();
            if (now == ~0u) break;
            gather_launch(now);
            finish[thread] = host_clock::now();
            n_done.fetch_add(1, std::memory_order_release);
        }
    }

    void begin(uint32_t n_threads, bool has_gpu) {
        threads.resize(n_threads);
        finish.resize(n_threads);
        if (has_gpu) { // the driver's function is not linked, so that the program starts without a driver
            cudaDriverEntryPointQueryResult found;
            OK(cudaGetDriverEntryPointByVersion("cuStreamWriteValue32", (void **)&write_value, 12000, cudaEnableDefault,
                                                &found));
            if (found != cudaDriverEntryPointSuccess) fail("cuStreamWriteValue32", "the driver does not have it");
            for (cudaStream_t &s : streams) OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
        }
        for (uint32_t t = 0; t < n_threads; t++) threads[t] = std::thread(&gatherers::work, this, t);
    }
    void post(way how, uint32_t now, uint32_t n_rows) {
        with = how, n_lists = n_rows / LIST, next_list = 0, n_done = 0;
        launch.store(now, std::memory_order_release);
    }
    host_clock::time_point wait() {                                     // returns when the last thread finished
        while (n_done.load(std::memory_order_acquire) < threads.size()) // asleep, because a thread may need this core
            std::this_thread::sleep_for(std::chrono::microseconds(20));
        return *std::max_element(finish.begin(), finish.end());
    }
    void end() {
        launch = ~0u;
        for (std::thread &t : threads) t.join();
        for (cudaStream_t s : streams)
            if (s) OK(cudaStreamDestroy(s));
    }
};

// ---- measurements ----

static uint32_t next_launch = 1;

// The median of LAUNCHES - WARM_UP times.
template <typename Time> static double median_of(Time time) {
    std::vector<double> us;
    for (int i = 0; i < LAUNCHES; i++) {
        double x = time(next_launch++);
        if (i >= WARM_UP) us.push_back(x);
    }
    std::sort(us.begin(), us.end());
    return us[us.size() / 2];
}

static void check_sum(const char *what, const buffers &m, uint32_t launch, uint32_t n_rows, uint64_t found) {
    uint64_t expected = 0;
    char reason[128];
    for (uint32_t i = 0; i < n_rows; i++)
        expected += ROW_WORDS * first_word(row_of(launch, i, m.n_all)) + ROW_WORDS * (ROW_WORDS - 1) / 2;
    snprintf(reason, sizeof reason, "the sum of %u rows is %016llx; expected %016llx", n_rows, (unsigned long long)found,
             (unsigned long long)expected);
    if (found != expected) fail(what, reason);
}

// Microseconds in which the host threads alone gather n_rows rows.
static double time_host(gatherers &g, uint32_t n_rows) {
    return median_of([&](uint32_t now) {
        uint64_t sum = 0;
        for (uint32_t i = 0; i < n_rows; i++) g.m.lists[i] = (uint64_t)now << 32 | row_of(now, i, g.m.n_all);
        host_clock::time_point begin = host_clock::now();
        g.post(READ_STAGED, now, n_rows);
        std::chrono::duration<double, std::micro> time = g.wait() - begin;
        for (size_t w = 0; w < (size_t)n_rows * ROW_WORDS; w++) sum += g.m.staged[w];
        check_sum("host threads", g.m, now, n_rows, sum);
        return time.count();
    });
}

// Microseconds of `work` in the default stream.
template <typename Work> static double time_gpu(Work work) {
    static cudaEvent_t begin, end;
    float ms;
    if (!begin) OK(cudaEventCreate(&begin));
    if (!end) OK(cudaEventCreate(&end));
    OK(cudaEventRecord(begin));
    work();
    OK(cudaGetLastError());
    OK(cudaEventRecord(end));
    OK(cudaEventSynchronize(end));
    OK(cudaEventElapsedTime(&ms, begin, end));
    return ms * 1e3;
}

// Microseconds of a layer of n_rows rows. g: NULL with ZERO_COPY
static double time_layer(way with, const buffers &m, gatherers *g, uint32_t n_rows) {
    static void (*const kernels[N_WAYS])(buffers, uint32_t) = {sum_rows_kernel<ZERO_COPY>, sum_rows_kernel<READ_STAGED>,
                                                               sum_rows_kernel<COPY_STAGED>};
    return median_of([&](uint32_t now) {
        unsigned long long sum = 0;
        OK(cudaMemset(m.sum, 0, sizeof sum));
        if (g) g->post(with, now, n_rows);
        double us = time_gpu([&] { kernels[with]<<<n_rows / ROWS, 32 * WARPS>>>(m, now); });
        OK(cudaMemcpy(&sum, m.sum, sizeof sum, cudaMemcpyDeviceToHost));
        check_sum(way_names[with], m, now, n_rows, sum);
        if (g) g->wait();
        return us;
    });
}

static double time_copy(const buffers &m, uint32_t n_rows) {
    return median_of([&](uint32_t) {
        return time_gpu(
            [&] { OK(cudaMemcpyAsync(m.copied, m.staged, (size_t)n_rows * ROW_WORDS * 8, cudaMemcpyHostToDevice)); });
    });
}

// ---- set-up ----

// Host memory in huge pages, if the system has them: as good as it can be for host threads.
template <typename T> static T *host_memory(size_t n) {
    size_t huge = 2 << 20, bytes = (n * sizeof(T) + huge - 1) / huge * huge;
    char *p = (char *)mmap(NULL, bytes + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) fail("host memory", strerror(errno));
    p += huge - (uintptr_t)p % huge;
    madvise(p, bytes, MADV_HUGEPAGE); // without huge pages the program still runs
    return (T *)p;
}

template <typename T> static void pin(T *p, size_t n) {
    OK(cudaHostRegister((void *)p, n * sizeof(T), cudaHostRegisterMapped));
}

template <typename T> static T *gpu_memory(size_t n) {
    void *p;
    OK(cudaMalloc(&p, n * sizeof(T)));
    OK(cudaMemset(p, 0, n * sizeof(T)));
    return (T *)p;
}

static void fill_rows(uint64_t *rows, uint32_t n_all, uint32_t n_threads) {
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < n_threads; t++)
        threads.emplace_back([=] {
            for (uint32_t row = t; row < n_all; row += n_threads) {
                uint64_t first = first_word(row);
                for (uint32_t w = 0; w < ROW_WORDS; w++) rows[(size_t)row * ROW_WORDS + w] = first + w;
            }
        });
    for (std::thread &t : threads) t.join();
}

static buffers make_buffers(size_t gib, bool has_gpu, uint32_t n_threads) {
    buffers m = {};
    m.n_all = (uint32_t)((gib << 30) / (8 * ROW_WORDS));
    fprintf(stderr, "host-gather: %zu GiB of rows\n", gib);
    uint64_t *rows = host_memory<uint64_t>((size_t)m.n_all * ROW_WORDS);
    fill_rows(rows, m.n_all, n_threads);
    m.rows = rows;
    m.lists = host_memory<uint64_t>(MAX_ROWS);
    m.staged = host_memory<uint64_t>((size_t)MAX_ROWS * ROW_WORDS);
    m.ready = host_memory<uint32_t>(MAX_ROWS / LIST);
    if (!has_gpu) return m;
    pin(rows, (size_t)m.n_all * ROW_WORDS);
    pin(m.lists, MAX_ROWS);
    pin(m.staged, (size_t)MAX_ROWS * ROW_WORDS);
    pin(m.ready, MAX_ROWS / LIST);
    m.copied = gpu_memory<uint64_t>((size_t)MAX_ROWS * ROW_WORDS);
    m.arrived = gpu_memory<uint32_t>(MAX_ROWS / ROWS);
    m.sum = gpu_memory<unsigned long long>(1);
    return m;
}

static void print_table(const buffers &m, bool has_gpu, uint32_t n_threads) {
    enum { N_SIZES = 4 };
    static const uint32_t sizes[N_SIZES] = {2048, 4096, 8192, 32768};
    double zero_copy[N_SIZES] = {}, copy[N_SIZES] = {};
    printf("| rows | MB | threads | host threads alone, us | ns a row |%s\n|---|---|---|---|---|%s\n",
           has_gpu ? " zero copy, us | read staged, us | copy staged, us | one copy, us |" : "",
           has_gpu ? "---|---|---|---|" : "");
    for (int i = 0; has_gpu && i < N_SIZES; i++)
        zero_copy[i] = time_layer(ZERO_COPY, m, NULL, sizes[i]), copy[i] = time_copy(m, sizes[i]);
    for (uint32_t t = 1;; t = std::min(2 * t, n_threads)) {
        gatherers g;
        g.m = m;
        g.begin(t, has_gpu);
        for (int i = 0; i < N_SIZES; i++) {
            double us = time_host(g, sizes[i]);
            printf("| %u | %.1f | %u | %.1f | %.1f |", sizes[i], sizes[i] * ROW_WORDS * 8e-6, t, us, 1e3 * us / sizes[i]);
            if (has_gpu) {
                double read = time_layer(READ_STAGED, m, &g, sizes[i]), copied = time_layer(COPY_STAGED, m, &g, sizes[i]);
                printf(" %.1f | %.1f | %.1f | %.1f |", zero_copy[i], read, copied, copy[i]);
            }
            printf("\n");
            fflush(stdout);
        }
        g.end();
        if (t == n_threads) break;
    }
}

int main(int argc, char **argv) {
    int n_devices = 0;
    long gib = argc > 1 ? atol(argv[1]) : 16;
    long n_threads = argc > 2 ? atol(argv[2]) : std::max((int)std::thread::hardware_concurrency() - 1, 1);
    if (argc > 3 || gib < 1 || gib > 1024 || n_threads < 1 || n_threads > 256) {
        fprintf(stderr, "usage: host-gather [GIB [THREADS]]; GIB from 1 to 1024, THREADS from 1 to 256\n");
        return 2;
    }
    cudaError_t e = cudaGetDeviceCount(&n_devices);
    if (e != cudaSuccess && e != cudaErrorNoDevice && e != cudaErrorInsufficientDriver) OK(e);
    if (e != cudaSuccess) fprintf(stderr, "host-gather: %s; measuring host threads only\n", cudaGetErrorString(e));
    print_table(make_buffers((size_t)gib, e == cudaSuccess, (uint32_t)n_threads), e == cudaSuccess, (uint32_t)n_threads);
    return 0;
}
