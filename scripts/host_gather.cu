// scripts/host_gather.cu - three ways to bring random rows of K and V from host memory to a kernel:
//   zero copy      the GPU's threads read each row where it lies (attention/cuda/host_rows.cuh does this)
//   read staged    host threads gather the rows into a block of pinned memory; the GPU's threads read this block
//   copy staged    host threads gather as before; the copy engine brings the block to the GPU in pieces
// It prints a table of times of one layer beside those of the bytes alone: a copy of a block of this size. In the two staged
// ways a kernel writes its list of rows to host memory and waits inside the kernel, so that a CUDA graph can contain it.
//
//     make build/host-gather && build/host-gather [GIB [THREADS]]     # 16 GiB of rows; a thread for each core but one
//
// Without a GPU it prints only what host threads take to gather. Every time is the median of launches that draw new rows: of
// many GiB, almost none is still in a cache. Every launch is checked: the sum of all words that the kernel saw must be that of
// the listed rows.
#include <algorithm>
#include <atomic>
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

#define OK(call)                                                                                                               \
    do {                                                                                                                       \
        cudaError_t e_ = (call);                                                                                               \
        if (e_ != cudaSuccess) {                                                                                               \
            fprintf(stderr, "host-gather: %s: %s\n", #call, cudaGetErrorString(e_));                                           \
            exit(1);                                                                                                           \
        }                                                                                                                      \
    } while (0)

enum {
    ROW_WORDS = 64, // of 8 bytes: K and V of a row of head_dim 128 in bf16
    LIST = 32,      // rows of a list: those of a warp
    AHEAD = 8,      // rows that a warp requests together, and that a host thread prefetches
    PIECE = 16,     // lists of a piece that the copy engine copies: 256 KiB
    MAX_ROWS = 1 << 15,
    LAUNCHES = 33,
    WARM_UP = 3
};

static __host__ __device__ uint64_t mix(uint64_t x) { // splitmix64
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

// Row `i` of a launch. Word w of row r has the value mix(r) + w.
static __host__ __device__ uint32_t row_of(uint32_t launch, uint32_t i, uint32_t n_all) {
    return (uint32_t)(mix((uint64_t)launch << 32 | i) % n_all);
}

enum way { ZERO_COPY, READ_STAGED, COPY_STAGED, N_WAYS };
static const char *const way_names[N_WAYS] = {"zero copy", "read staged", "copy staged"};

// What the kernel and the host threads share. Pinned memory, except arrived and sum.
struct shared_memory {
    const uint64_t *rows; // [n_all][ROW_WORDS]
    uint32_t n_all;
    volatile uint64_t *lists; // [MAX_ROWS] launch << 32 | row. Each word tells its launch, so no fence is needed
    uint64_t *staged;         // [MAX_ROWS][ROW_WORDS]
    volatile uint32_t *ready; // [MAX_ROWS / LIST] the last launch whose list is in `staged`
    uint64_t *copied;         // [MAX_ROWS][ROW_WORDS] memory of the GPU
    uint32_t *arrived;        // memory of the GPU: [MAX_ROWS / LIST / PIECE] the last launch whose piece is in `copied`
    unsigned long long *sum;  // memory of the GPU: of all words
};

// ---- the GPU ----

// Sums AHEAD rows at a time. A row is 512 bytes: 16 for each lane. from(i): where row i of the list begins. AGAIN: the
// host has changed these bytes since the last launch, so the load does not use caches.
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

__device__ bool has_launch(const volatile uint32_t *at, uint32_t launch) {
    bool has = *at == launch;
    __threadfence_system();
    return has;
}

// One layer: warp w has list w.
template <way WAY> __global__ void layer_kernel(shared_memory m, uint32_t launch) {
    int lane = threadIdx.x % 32;
    uint32_t list = (blockIdx.x * blockDim.x + threadIdx.x) / 32, first = list * LIST;
    uint32_t row = row_of(launch, first + lane, m.n_all);
    uint64_t sum;
    if (WAY == ZERO_COPY) {
        sum = sum_list<false>([&](int i) { return m.rows + (size_t)__shfl_sync(~0u, row, i) * ROW_WORDS; });
    } else {
        m.lists[first + lane] = (uint64_t)launch << 32 | row;
        if (WAY == READ_STAGED)
            while (!has_launch(m.ready + list, launch)) __nanosleep(500);
        else
            while (!has_launch(m.arrived + list / PIECE, launch)) __nanosleep(100);
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
static void gather_list(const shared_memory &m, uint32_t list) {
    const volatile uint64_t *rows = m.lists + list * LIST;
    uint64_t *to = m.staged + (size_t)list * LIST * ROW_WORDS;
    for (int i = 0; i < AHEAD; i++) prefetch_row(m.rows + (size_t)(uint32_t)rows[i] * ROW_WORDS);
    for (int i = 0; i < LIST; i++) {
        if (i + AHEAD < LIST) prefetch_row(m.rows + (size_t)(uint32_t)rows[i + AHEAD] * ROW_WORDS);
        memcpy(to + i * ROW_WORDS, m.rows + (size_t)(uint32_t)rows[i] * ROW_WORDS, 8 * ROW_WORDS);
    }
}

static bool has_arrived(const shared_memory &m, uint32_t list, uint32_t launch) {
    for (int i = 0; i < LIST; i++)
        if ((uint32_t)(m.lists[list * LIST + i] >> 32) != launch) return false;
    return true;
}

using host_clock = std::chrono::steady_clock;

// Threads that gather the lists of launches as they arrive. Thread t has the pieces t, t + n, ..
struct gatherers {
    shared_memory m;
    std::vector<std::thread> threads;
    std::vector<host_clock::time_point> finish; // of each thread
    std::atomic<uint32_t> launch{0};            // gather this launch; ~0: end
    std::atomic<uint32_t> n_lists{0}, n_done{0};
    way with = READ_STAGED;
    int device = -1; // -1: none
    decltype(&cuStreamWriteValue32) write_value = NULL;

    void copy_piece(uint32_t piece, uint32_t n, uint32_t now, cudaStream_t stream) {
        size_t at = (size_t)piece * PIECE * LIST * ROW_WORDS, bytes = (size_t)n * LIST * ROW_WORDS * 8;
        OK(cudaMemcpyAsync(m.copied + at, m.staged + at, bytes, cudaMemcpyHostToDevice, stream));
        if (write_value((CUstream)stream, (CUdeviceptr)(m.arrived + piece), now, 0) != CUDA_SUCCESS) {
            fprintf(stderr, "host-gather: cuStreamWriteValue32 failed\n");
            exit(1);
        }
    }

    void gather_pieces(uint32_t thread, uint32_t now, cudaStream_t stream) {
        for (uint32_t piece = thread; piece * PIECE < n_lists; piece += (uint32_t)threads.size()) {
            uint32_t first = piece * PIECE, n = std::min<uint32_t>(PIECE, n_lists - first);
            for (uint32_t list = first; list < first + n; list++) {
                while (!has_arrived(m, list, now)) pause_thread();
                gather_list(m, list);
                std::atomic_thread_fence(std::memory_order_release);
                m.ready[list] = now;
            }
            if (with == COPY_STAGED) copy_piece(piece, n, now, stream);
        }
    }

    void work(uint32_t thread) {
        cudaStream_t stream = NULL;
        if (device >= 0) {
            OK(cudaSetDevice(device));
            OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        }
        for (uint32_t last = 0, now;; last = now) {
            while ((now = launch.load(std::memory_order_acquire)) == last) pause_thread();
            if (now == ~0u) break;
            gather_pieces(thread, now, stream);
            finish[thread] = host_clock::now();
            n_done.fetch_add(1, std::memory_order_release);
        }
        if (stream) OK(cudaStreamDestroy(stream));
    }

    void begin(uint32_t n_threads) {
        cudaDriverEntryPointQueryResult found;
        if (device >= 0) // not linked, so that the program starts without a driver
            OK(cudaGetDriverEntryPointByVersion("cuStreamWriteValue32", (void **)&write_value, 12000, cudaEnableDefault,
                                                &found));
        threads.resize(n_threads);
        finish.resize(n_threads);
        for (uint32_t t = 0; t < n_threads; t++) threads[t] = std::thread(&gatherers::work, this, t);
    }
    void post(uint32_t now, uint32_t lists) {
        n_lists = lists;
        n_done = 0;
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
        threads.clear();
    }
};

// ---- measurements ----

static double median(std::vector<double> x) {
    std::sort(x.begin(), x.end());
    return x[x.size() / 2];
}

static uint64_t expected_sum(const shared_memory &m, uint32_t launch, uint32_t n_rows) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n_rows; i++) sum += ROW_WORDS * mix(row_of(launch, i, m.n_all)) + ROW_WORDS * (ROW_WORDS - 1) / 2;
    return sum;
}

static void check_sum(const char *what, uint64_t found, uint64_t expected) {
    if (found == expected) return;
    fprintf(stderr, "host-gather: %s: the sum of the rows is %016llx; expected %016llx\n", what, (unsigned long long)found,
            (unsigned long long)expected);
    exit(1);
}

static uint32_t next_launch = 1;

// Microseconds in which the threads gather n_rows rows, without a GPU.
static double time_host(gatherers &g, uint32_t n_rows) {
    std::vector<double> us;
    for (int i = 0; i < LAUNCHES; i++) {
        uint32_t now = next_launch++;
        uint64_t sum = 0;
        for (uint32_t j = 0; j < n_rows; j++) g.m.lists[j] = (uint64_t)now << 32 | row_of(now, j, g.m.n_all);
        host_clock::time_point begin = host_clock::now();
        g.post(now, n_rows / LIST);
        std::chrono::duration<double, std::micro> time = g.wait() - begin;
        for (size_t w = 0; w < (size_t)n_rows * ROW_WORDS; w++) sum += g.m.staged[w];
        check_sum("host threads", sum, expected_sum(g.m, now, n_rows));
        if (i >= WARM_UP) us.push_back(time.count());
    }
    return median(us);
}

static void launch_layer(way with, const shared_memory &m, uint32_t now, uint32_t n_rows) {
    enum { THREADS = 256 };
    uint32_t blocks = n_rows / THREADS;
    if (with == ZERO_COPY) layer_kernel<ZERO_COPY><<<blocks, THREADS>>>(m, now);
    if (with == READ_STAGED) layer_kernel<READ_STAGED><<<blocks, THREADS>>>(m, now);
    if (with == COPY_STAGED) layer_kernel<COPY_STAGED><<<blocks, THREADS>>>(m, now);
    OK(cudaGetLastError());
}

// Microseconds of a layer of n_rows rows on the GPU.
static double time_layer(gatherers &g, way with, uint32_t n_rows) {
    std::vector<double> us;
    cudaEvent_t begin, end;
    OK(cudaEventCreate(&begin));
    OK(cudaEventCreate(&end));
    g.with = with;
    for (int i = 0; i < LAUNCHES; i++) {
        uint32_t now = next_launch++;
        float ms;
        unsigned long long sum = 0;
        OK(cudaMemcpy(g.m.sum, &sum, sizeof sum, cudaMemcpyHostToDevice));
        if (with != ZERO_COPY) g.post(now, n_rows / LIST);
        OK(cudaEventRecord(begin));
        launch_layer(with, g.m, now, n_rows);
        OK(cudaEventRecord(end));
        OK(cudaEventSynchronize(end));
        if (with != ZERO_COPY) g.wait();
        OK(cudaEventElapsedTime(&ms, begin, end));
        OK(cudaMemcpy(&sum, g.m.sum, sizeof sum, cudaMemcpyDeviceToHost));
        check_sum(way_names[with], sum, expected_sum(g.m, now, n_rows));
        if (i >= WARM_UP) us.push_back(ms * 1e3);
    }
    OK(cudaEventDestroy(begin));
    OK(cudaEventDestroy(end));
    return median(us);
}

// Microseconds of a copy of n_rows rows that lie together.
static double time_copy(const shared_memory &m, uint32_t n_rows) {
    std::vector<double> us;
    cudaEvent_t begin, end;
    OK(cudaEventCreate(&begin));
    OK(cudaEventCreate(&end));
    for (int i = 0; i < LAUNCHES; i++) {
        float ms;
        OK(cudaEventRecord(begin));
        OK(cudaMemcpyAsync(m.copied, m.staged, (size_t)n_rows * ROW_WORDS * 8, cudaMemcpyHostToDevice));
        OK(cudaEventRecord(end));
        OK(cudaEventSynchronize(end));
        OK(cudaEventElapsedTime(&ms, begin, end));
        if (i >= WARM_UP) us.push_back(ms * 1e3);
    }
    OK(cudaEventDestroy(begin));
    OK(cudaEventDestroy(end));
    return median(us);
}

// ---- set-up ----

template <typename T> static T *host_memory(size_t n, bool has_gpu) {
    void *p = mmap(NULL, n * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        fprintf(stderr, "host-gather: cannot map %zu MiB of host memory\n", (n * sizeof(T)) >> 20);
        exit(1);
    }
    if (has_gpu) OK(cudaHostRegister(p, n * sizeof(T), cudaHostRegisterMapped));
    return (T *)p;
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
            for (uint32_t row = t; row < n_all; row += n_threads)
                for (uint32_t w = 0; w < ROW_WORDS; w++) rows[(size_t)row * ROW_WORDS + w] = mix(row) + w;
        });
    for (std::thread &t : threads) t.join();
}

static shared_memory make_memory(size_t gib, bool has_gpu, uint32_t n_threads) {
    shared_memory m = {};
    m.n_all = (uint32_t)((gib << 30) / (8 * ROW_WORDS));
    fprintf(stderr, "host-gather: %zu GiB of rows\n", gib);
    uint64_t *rows = host_memory<uint64_t>((size_t)m.n_all * ROW_WORDS, has_gpu);
    fill_rows(rows, m.n_all, n_threads);
    m.rows = rows;
    m.lists = host_memory<uint64_t>(MAX_ROWS, has_gpu);
    m.staged = host_memory<uint64_t>((size_t)MAX_ROWS * ROW_WORDS, has_gpu);
    m.ready = host_memory<uint32_t>(MAX_ROWS / LIST, has_gpu);
    if (!has_gpu) return m;
    m.copied = gpu_memory<uint64_t>((size_t)MAX_ROWS * ROW_WORDS);
    m.arrived = gpu_memory<uint32_t>(MAX_ROWS / LIST / PIECE);
    m.sum = gpu_memory<unsigned long long>(1);
    return m;
}

static void print_table(shared_memory m, int device, uint32_t n_threads) {
    static const uint32_t sizes[] = {2048, 4096, 8192, 32768};
    printf("| rows | MB | threads | host threads alone, us | ns a row |");
    if (device >= 0)
        for (const char *name : way_names) printf(" %s, us |", name);
    printf("%s\n|---|---|---|---|---|%s\n", device >= 0 ? " one copy, us |" : "", device >= 0 ? "---|---|---|---|" : "");
    for (uint32_t t = 1;; t = std::min(2 * t, n_threads)) {
        gatherers g;
        g.m = m, g.device = device;
        g.begin(t);
        for (uint32_t n : sizes) {
            double us = (g.with = READ_STAGED, time_host(g, n));
            printf("| %u | %.1f | %u | %.1f | %.1f |", n, n * ROW_WORDS * 8e-6, t, us, 1e3 * us / n);
            for (int i = 0; device >= 0 && i < N_WAYS; i++) printf(" %.1f |", time_layer(g, (way)i, n));
            if (device >= 0) printf(" %.1f |", time_copy(m, n));
            printf("\n");
            fflush(stdout);
        }
        g.end();
        if (t == n_threads) break;
    }
}

int main(int argc, char **argv) {
    int n_devices = 0, n_cores = (int)std::thread::hardware_concurrency();
    long gib = argc > 1 ? atol(argv[1]) : 16, n_threads = argc > 2 ? atol(argv[2]) : std::max(n_cores - 1, 1);
    if (gib < 1 || gib > 1024 || n_threads < 1 || n_threads > 256) {
        fprintf(stderr, "usage: host-gather [GIB [THREADS]]; GIB from 1 to 1024, THREADS from 1 to 256\n");
        return 2;
    }
    bool has_gpu = cudaGetDeviceCount(&n_devices) == cudaSuccess && n_devices > 0;
    if (!has_gpu) fprintf(stderr, "host-gather: no GPU; measuring host threads only\n");
    print_table(make_memory((size_t)gib, has_gpu, (uint32_t)n_threads), has_gpu ? 0 : -1, (uint32_t)n_threads);
    return 0;
}
