// cli/bench/attn_timing.cu - see attn_timing.h.
#include "cli/bench/attn_timing.h"
#include "attention/attention_cuda.h"
#include "attention/extras/buckets.h"
#include "attention/prefill/prefill_mask.h"
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/device.cuh"
#include "cli/bench/random_mask.h"

#include <algorithm>
#include <cuda_bf16.h>
#include <functional>
#include <limits.h>
#include <math.h>
#include <numeric>
#include <random>
#include <stdlib.h>
#include <string.h>
#include <vector>

enum { WARM_UP = 10, MAX_BLOCKS = 32, BUCKETS = 1024, WIDTH = 1024 };
static const size_t FLUSH_BYTES = (size_t)512 << 20, READ_BYTES = (size_t)4 << 30;

struct sl_bench_attn {
    sl_attn_geom geom;
    sl_bench_attn_limits limits;
    int n_sms;
    void *blocks[MAX_BLOCKS]; // all device memory
    int n_blocks;
    float *flush;            // FLUSH_BYTES
    bf16 *k, *v;             // [n_pages][n_kv_heads][256][head_dim]
    bf16 *cache_k, *cache_v; // the same rows in the format of the cache; of bf16: k and v
    bf16 *q, *out;           // [max(n_seqs, n_tokens)][n_heads][head_dim]
    int n_steps;             // of a series
    bf16 *step_q;            // [n_steps][n_seqs][n_heads][head_dim]; with a model's states [n_steps][n_heads][head_dim]
    int32_t *pages;          // [n_pages] page ids in random order
    sl_row *rows;            // [n_seqs]
    sl_attn_cuda_stats *stats;
    struct { // page extras of the last method, for all pages
        sl_kv_need need;
        size_t size; // bytes per page and KV head
        void *data;
    } extras[SL_MAX_NEEDS];
    sl_buckets buckets;     // random; in device memory, from the first method with buckets on
    int32_t *index;         // [n_pages] 0, 1, ..
    int32_t *parts, *slots; // [n_pages] of spans: pages of the sequences' full spans; the span that a page ends, or -1
    uint32_t *never;        // target of a write that never happens; without this write the compiler would remove the loads
    cudaStream_t stream;
};

// ---- kernels ----

static __device__ uint32_t mix(uint64_t x) { // splitmix64
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return (uint32_t)(x ^ x >> 31);
}

static __device__ float normal(uint64_t seed, size_t i) { // Box-Muller method
    float u = (mix(seed + 2 * i) + 1.0f) * 0x1p-32f, angle = mix(seed + 2 * i + 1) * 0x1p-31f;
    return sqrtf(-2 * logf(fminf(u, 1))) * cospif(angle);
}

// Fills `to` with normal numbers of this deviation. Grid-stride loop.
static __global__ void fill_normal_kernel(bf16 *to, size_t n, uint64_t seed, float deviation) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        to[i] = __bfloat16_as_ushort(__float2bfloat16_rn(deviation * normal(seed, i)));
    }
}

// Scales the channels of queries differently, as in models; the heads of a group share scales: q *= e^(spread x - spread^2), x
// normal, which keeps the mean square. q: [n / row][row], row: the heads of one group. Grid-stride loop.
static __global__ void spread_kernel(bf16 *q, size_t n, int row, int head_dim, float spread, uint64_t seed) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        float x = spread * (normal(seed, i / row * head_dim + i % head_dim) - spread);
        q[i] = __bfloat16_as_ushort(__float2bfloat16_rn(__uint_as_float((uint32_t)q[i] << 16) * expf(x)));
    }
}

static __global__ void flush_kernel(float *to, size_t n) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) to[i] += 1;
}

static __global__ void empty_kernel() {}

// Reads n * 16 bytes, eight loads per thread at a time. n: a multiple of 8 * gridDim.x * blockDim.x.
static __global__ void read_kernel(const uint4 *from, size_t n, uint32_t *never) {
    size_t step = (size_t)gridDim.x * blockDim.x;
    uint32_t x = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += 8 * step) {
        uint4 y[8];
#pragma unroll
        for (int j = 0; j < 8; j++) y[j] = __ldcs(from + i + j * step);
#pragma unroll
        for (int j = 0; j < 8; j++) x ^= y[j].x ^ y[j].y ^ y[j].z ^ y[j].w;
    }
    if (x == 0x5EED5EED) *never = x; // keeps the compiler from removing the loads
}

// ---- memory ----

static int allocate(sl_bench_attn *b, size_t size, void *to, sl_error *err) {
    void *p = NULL;
    SL_CHECK(b->n_blocks < MAX_BLOCKS);
    int rc = sl_cuda_check(cudaMalloc(&p, size), "memory for the benchmark", err);
    if (rc) return rc;
    b->blocks[b->n_blocks++] = p;
    memcpy(to, &p, sizeof p);
    return 0;
}

static int fill(sl_bench_attn *b, bf16 *to, size_t n, uint64_t seed, double deviation, sl_error *err) {
    fill_normal_kernel<<<8 * b->n_sms, 256, 0, b->stream>>>(to, n, seed << 40, (float)deviation);
    return sl_cuda_check(cudaGetLastError(), "fill_normal_kernel", err);
}

static int spread(sl_bench_attn *b, bf16 *q, size_t n, sl_error *err) {
    const sl_attn_geom *g = &b->geom;
    spread_kernel<<<8 * b->n_sms, 256, 0, b->stream>>>(q, n, g->n_heads / g->n_kv_heads * g->head_dim, g->head_dim,
                                                       (float)b->limits.query_spread, (uint64_t)4 << 40);
    return sl_cuda_check(cudaGetLastError(), "spread_kernel", err);
}

static int shuffle_pages(sl_bench_attn *b, sl_error *err) {
    std::vector<int32_t> ids(b->limits.n_pages);
    uint64_t state = 1;
    for (size_t i = 0; i < ids.size(); i++) ids[i] = (int32_t)i;
    for (size_t i = ids.size() - 1; i > 0; i--) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        std::swap(ids[i], ids[(state >> 33) % (i + 1)]);
    }
    return sl_cuda_check(cudaMemcpy(b->pages, ids.data(), ids.size() * sizeof(int32_t), cudaMemcpyHostToDevice), "page table",
                         err);
}

static int number_pages(sl_bench_attn *b, sl_error *err) {
    std::vector<int32_t> numbers(b->limits.n_pages);
    std::iota(numbers.begin(), numbers.end(), 0);
    return sl_cuda_check(cudaMemcpy(b->index, numbers.data(), numbers.size() * sizeof(int32_t), cudaMemcpyHostToDevice),
                         "numbers of pages", err);
}

// Puts the rows of a model's states into page `page` of the pool: rows [first, first + 256) of every KV head.
static int fill_page(sl_bench_attn *b, int page, int first, sl_error *err) {
    const cli_attn_states *s = b->limits.states;
    const sl_attn_geom *g = &b->geom;
    size_t row = g->head_dim * sizeof(bf16), height = (size_t)g->n_kv_heads, n = std::min<int>(SL_PAGE, s->n_rows - first);
    size_t to = (size_t)page * g->n_kv_heads * SL_PAGE * g->head_dim, from = (size_t)first * g->head_dim;
    int rc = sl_cuda_check(
        cudaMemcpy2D(b->k + to, SL_PAGE * row, s->k + from, s->n_rows * row, n * row, height, cudaMemcpyHostToDevice), "keys",
        err);
    return rc ? rc
              : sl_cuda_check(cudaMemcpy2D(b->v + to, SL_PAGE * row, s->v + from, s->n_rows * row, n * row, height,
                                           cudaMemcpyHostToDevice),
                              "values", err);
}

// Every sequence has all rows of the states. Its pages follow each other in the page table.
static int fill_states(sl_bench_attn *b, sl_error *err) {
    const cli_attn_states *s = b->limits.states;
    int per_sequence = (s->n_rows + SL_PAGE - 1) / SL_PAGE, rc = 0;
    std::vector<int32_t> ids(b->limits.n_pages);
    rc = sl_cuda_check(cudaMemcpy(ids.data(), b->pages, ids.size() * sizeof(int32_t), cudaMemcpyDeviceToHost), "page table",
                       err);
    for (size_t i = 0; !rc && i < ids.size(); i++) rc = fill_page(b, ids[i], (int)i % per_sequence * SL_PAGE, err);
    size_t n = (size_t)s->n_steps * b->geom.n_heads * b->geom.head_dim;
    return rc ? rc : sl_cuda_check(cudaMemcpy(b->step_q, s->q, n * sizeof(bf16), cudaMemcpyHostToDevice), "queries", err);
}

static int is_bytes(const sl_bench_attn *b) {
    return b->limits.format != SL_BF16;
}

// The kernels of a method for the format of the cache.
static const sl_attn_cuda_ops *ops_of(const sl_bench_attn *b, const sl_attn_spec *spec) {
    return is_bytes(b) ? spec->method->cuda->bytes : spec->method->cuda;
}

// Stores the rows of k, or of v, in the format of the cache.
static int store(sl_bench_attn *b, bf16 *rows, bf16 **to, sl_error *err) {
    const sl_attn_geom *g = &b->geom;
    *to = rows;
    if (!is_bytes(b)) return 0;
    size_t n_blocks = (size_t)b->limits.n_pages * g->n_kv_heads;
    int rc = allocate(b, n_blocks * sl_kv_block_bytes(b->limits.format, g->head_dim), to, err);
    if (rc) return rc;
    sl_cuda_store_blocks(rows, b->limits.format, g->head_dim, (int)(n_blocks * SL_PAGE), *to, b->stream);
    return sl_cuda_check(cudaGetLastError(), "store_blocks_kernel", err);
}

static int allocate_all(sl_bench_attn *b, sl_error *err) {
    const sl_attn_geom *g = &b->geom;
    size_t pool = (size_t)b->limits.n_pages * g->n_kv_heads * SL_PAGE * g->head_dim;
    size_t q = (size_t)std::max(b->limits.n_seqs, b->limits.n_tokens) * g->n_heads * g->head_dim;
    const cli_attn_states *states = b->limits.states;
    b->n_steps = states ? states->n_steps : SL_BENCH_STEPS;
    size_t steps = (size_t)b->n_steps * (states ? 1 : b->limits.n_seqs) * g->n_heads * g->head_dim;
    int rc = allocate(b, FLUSH_BYTES, &b->flush, err);
    if (!rc) rc = allocate(b, pool * sizeof(bf16), &b->k, err);
    if (!rc) rc = allocate(b, pool * sizeof(bf16), &b->v, err);
    if (!rc) rc = allocate(b, q * sizeof(bf16), &b->q, err);
    if (!rc) rc = allocate(b, q * sizeof(bf16), &b->out, err);
    if (!rc) rc = allocate(b, steps * sizeof(bf16), &b->step_q, err);
    if (!rc) rc = allocate(b, b->limits.n_pages * sizeof(int32_t), &b->pages, err);
    if (!rc) rc = allocate(b, b->limits.n_pages * sizeof(int32_t), &b->index, err);
    if (!rc) rc = allocate(b, b->limits.n_seqs * sizeof(sl_row), &b->rows, err);
    if (!rc) rc = allocate(b, sizeof *b->stats, &b->stats, err);
    if (!rc) rc = allocate(b, sizeof(uint32_t), &b->never, err);
    if (!rc) rc = sl_cuda_check(cudaStreamCreate(&b->stream), "stream", err);
    if (!rc) rc = sl_cuda_check(cudaMemset(b->flush, 0, FLUSH_BYTES), "cudaMemset", err);
    if (!rc) rc = fill(b, b->k, pool, 1, 1, err);
    if (!rc) rc = fill(b, b->v, pool, 2, 1, err);
    if (!rc) rc = fill(b, b->q, q, 3, b->limits.query_deviation, err);
    if (!rc) rc = spread(b, b->q, q, err);
    if (!rc) rc = fill(b, b->step_q, steps, 5, b->limits.query_deviation, err);
    if (!rc) rc = spread(b, b->step_q, steps, err);
    if (!rc) rc = shuffle_pages(b, err);
    if (!rc) rc = number_pages(b, err);
    if (!rc && states) rc = fill_states(b, err);
    if (!rc) rc = store(b, b->k, &b->cache_k, err);
    return rc ? rc : store(b, b->v, &b->cache_v, err);
}

static int check_shape(const sl_attn_geom *g, sl_error *err) {
    int group = g->n_heads / g->n_kv_heads, dim = g->head_dim;
    int ok = (dim == 64 || dim == 80 || dim == 96 || dim == 128) && ((group >= 1 && group <= 4) || group == 8);
    return ok ? 0
              : sl_fail(err, SL_ERR_UNSUPPORTED,
                        "head_dim %d, %d query heads per KV head: a GPU supports head_dim 64, 80, 96 and 128, and 1 to 4 or 8 "
                        "query heads per KV head",
                        dim, group);
}

int sl_bench_attn_open(const sl_attn_geom *geom, const sl_bench_attn_limits *limits, sl_bench_attn **out, sl_error *err) {
    int n = 0;
    cudaError_t rc = cudaGetDeviceCount(&n);
    if (rc != cudaSuccess || n == 0)
        return sl_fail(err, SL_ERR_DEVICE, "bench needs a GPU: %s",
                       rc != cudaSuccess ? cudaGetErrorString(rc) : "CUDA lists none");
    sl_bench_attn *b = (sl_bench_attn *)calloc(1, sizeof *b);
    if (!b) return sl_fail(err, SL_ERR_MEMORY, "bench: out of memory");
    b->geom = *geom;
    b->limits = *limits;
    int failed = check_shape(geom, err);
    if (!failed) failed = sl_cuda_check(cudaSetDevice(limits->device), "choosing the GPU", err);
    cudaDeviceGetAttribute(&b->n_sms, cudaDevAttrMultiProcessorCount, limits->device);
    if (!failed) failed = allocate_all(b, err);
    if (failed) {
        sl_bench_attn_close(b);
        return failed;
    }
    *out = b;
    return 0;
}

void sl_bench_attn_close(sl_bench_attn *b) {
    if (!b) return;
    if (b->stream) cudaStreamDestroy(b->stream);
    for (int i = 0; i < SL_MAX_NEEDS; i++) cudaFree(b->extras[i].data);
    while (b->n_blocks > 0) cudaFree(b->blocks[--b->n_blocks]);
    free(b);
}

// ---- time ----

static int replay(sl_bench_attn *b, cudaGraphExec_t graph, cudaEvent_t begin, cudaEvent_t end, double *us, sl_error *err) {
    float ms = 0;
    flush_kernel<<<8 * b->n_sms, 256, 0, b->stream>>>(b->flush, FLUSH_BYTES / sizeof(float));
    cudaEventRecord(begin, b->stream);
    int rc = sl_cuda_check(cudaGraphLaunch(graph, b->stream), "replay", err);
    cudaEventRecord(end, b->stream);
    if (!rc) rc = sl_cuda_check(cudaEventSynchronize(end), "replay", err);
    if (!rc) rc = sl_cuda_check(cudaEventElapsedTime(&ms, begin, end), "replay", err);
    *us = 1e3 * ms;
    return rc;
}

// What is done around replay i of a graph.
struct around {
    int n_series, n_untimed;                 // replays of a series, and how many at its beginning are not timed
    std::function<int(int i)> before, after; // return 0 or an error
};

static int measure(sl_bench_attn *b, cudaGraphExec_t graph, int repetitions, sl_bench_attn_time *out, sl_error *err,
                   const around &a) {
    std::vector<double> times;
    cudaEvent_t begin, end;
    int rc = sl_cuda_check(cudaEventCreate(&begin), "event", err);
    if (rc) return rc;
    rc = sl_cuda_check(cudaEventCreate(&end), "event", err);
    for (int i = 0; !rc && times.size() < (size_t)repetitions; i++) {
        double us = 0;
        rc = a.before(i);
        if (!rc) rc = replay(b, graph, begin, end, &us, err);
        if (!rc) rc = a.after(i);
        if (i % a.n_series >= a.n_untimed) times.push_back(us);
    }
    std::sort(times.begin(), times.end());
    if (!rc) *out = {.us = times[repetitions / 2], .mean_us = std::accumulate(times.begin(), times.end(), 0.0) / repetitions};
    cudaEventDestroy(begin), cudaEventDestroy(end);
    return rc;
}

// Times the work that `launch` puts on the stream.
template <typename Launch>
static int time_graph(sl_bench_attn *b, int repetitions, sl_bench_attn_time *out, sl_error *err, Launch launch,
                      const around &a) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    int rc = sl_cuda_check(cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal), "capture", err);
    if (rc) return rc;
    launch();
    rc = sl_cuda_check(cudaStreamEndCapture(b->stream, &graph), "capture", err);
    if (!rc) rc = sl_cuda_check(cudaGetLastError(), "launch", err);
    if (rc) return rc;
    rc = sl_cuda_check(cudaGraphInstantiate(&exec, graph, 0), "graph", err);
    cudaGraphDestroy(graph);
    if (rc) return rc;
    rc = measure(b, exec, repetitions, out, err, a);
    cudaGraphExecDestroy(exec);
    return rc;
}

template <typename Launch>
static int time_graph(sl_bench_attn *b, int repetitions, sl_bench_attn_time *out, sl_error *err, Launch launch) {
    auto nothing = [](int) { return 0; };
    return time_graph(b, repetitions, out, err, launch, {INT_MAX, WARM_UP, nothing, nothing});
}

int sl_bench_attn_device_of(sl_bench_attn *b, sl_bench_attn_device *out, sl_error *err) {
    cudaDeviceProp properties;
    int device = 0;
    uint4 *from = NULL;
    *out = {};
    cudaGetDevice(&device);
    int rc = sl_cuda_check(cudaGetDeviceProperties(&properties, device), "device", err);
    if (rc) return rc;
    snprintf(out->name, sizeof out->name, "%s", properties.name);
    sl_bench_attn_time time = {};
    rc = time_graph(b, 15, &time, err, [&] { empty_kernel<<<1, 32, 0, b->stream>>>(); });
    out->empty_us = time.us;
    if (!rc) rc = sl_cuda_check(cudaMalloc(&from, READ_BYTES), "memory for the benchmark", err);
    for (int blocks = 1; !rc && blocks <= 8; blocks *= 2) { // thread blocks per SM; the best number differs between GPUs
        size_t pass = (size_t)8 * blocks * b->n_sms * 256, n = READ_BYTES / sizeof(uint4) / pass * pass;
        rc = time_graph(b, 9, &time, err, [&] { read_kernel<<<blocks * b->n_sms, 256, 0, b->stream>>>(from, n, b->never); });
        out->read_gb_s = std::max(out->read_gb_s, n * sizeof(uint4) / (time.us - out->empty_us) * 1e-3);
    }
    cudaFree(from);
    return rc;
}

int sl_bench_read_rate(int index, double *gb_s, sl_error *err) {
    const sl_attn_geom least = {1, 1, 1, 64, 0, NULL};
    const sl_bench_attn_limits limits = {1, 1, 1, 1, 0, index, NULL, SL_BF16};
    sl_bench_attn_device device;
    sl_bench_attn *b = NULL;
    int rc = sl_bench_attn_open(&least, &limits, &b, err);
    if (!rc) rc = sl_bench_attn_device_of(b, &device, err);
    sl_bench_attn_close(b);
    if (!rc) *gb_s = device.read_gb_s;
    return rc;
}

int sl_bench_pci_id(int index, char *buf, int size, sl_error *err) {
    return sl_cuda_check(cudaDeviceGetPCIBusId(buf, size, index), "the GPU's PCI id", err);
}

// ---- attention ----

// Makes the numbers of methods with buckets, for one layer: 1,024 random centroids of norm 1 for a KV head, and a classifier of
// width 1,024.
static int make_buckets(sl_bench_attn *b, sl_error *err) {
    const sl_attn_geom *g = &b->geom;
    const size_t heads = g->n_kv_heads, C = BUCKETS, W = WIDTH, dim = g->head_dim;
    if (b->geom.buckets) return 0;
    sl_buckets *m = &b->buckets;
    bf16 *centroids, *w1, *w2;
    float *b1, *b2, *inv_freq;
    std::vector<float> angles(dim / 2);
    for (size_t i = 0; i < dim / 2; i++) angles[i] = (float)pow(10000, -2.0 * i / dim);
    int rc = allocate(b, heads * C * dim * sizeof(bf16), &centroids, err);
    if (!rc) rc = allocate(b, heads * W * dim * sizeof(bf16), &w1, err);
    if (!rc) rc = allocate(b, heads * C * W * sizeof(bf16), &w2, err);
    if (!rc) rc = allocate(b, heads * W * sizeof(float), &b1, err);
    if (!rc) rc = allocate(b, heads * C * sizeof(float), &b2, err);
    if (!rc) rc = allocate(b, dim / 2 * sizeof(float), &inv_freq, err);
    if (!rc) rc = allocate(b, b->limits.n_pages * sizeof(int32_t), &b->parts, err);
    if (!rc) rc = allocate(b, b->limits.n_pages * sizeof(int32_t), &b->slots, err);
    if (!rc) rc = fill(b, centroids, heads * C * dim, 6, 1 / sqrt(dim), err);
    if (!rc) rc = fill(b, w1, heads * W * dim, 7, 1 / sqrt(dim), err);
    if (!rc) rc = fill(b, w2, heads * C * W, 8, 2 / sqrt(W), err);
    if (!rc) rc = sl_cuda_check(cudaMemset(b1, 0, heads * W * sizeof(float)), "classifier", err);
    if (!rc) rc = sl_cuda_check(cudaMemset(b2, 0, heads * C * sizeof(float)), "classifier", err);
    if (!rc)
        rc = sl_cuda_check(cudaMemcpy(inv_freq, angles.data(), dim / 2 * sizeof(float), cudaMemcpyHostToDevice), "RoPE", err);
    if (rc) return rc;
    m->n_layers = 1, m->n_kv_heads = g->n_kv_heads, m->head_dim = g->head_dim, m->n_buckets = BUCKETS, m->width = WIDTH;
    m->centroids = m->roped = centroids, m->w1 = w1, m->w2 = w2, m->b1 = b1, m->b2 = b2, m->inv_freq = inv_freq;
    b->geom.buckets = m;
    return 0;
}

// Lists the full spans of the sequences, whose pages follow each other in the page table. Returns 0 or an error.
static int list_spans(sl_bench_attn *b, int span, int n_seqs, const int *n_kv, int *n_spans, sl_error *err) {
    std::vector<int32_t> ids(b->limits.n_pages), slots(ids.size(), -1), parts;
    int rc = sl_cuda_check(cudaMemcpy(ids.data(), b->pages, ids.size() * sizeof(int32_t), cudaMemcpyDeviceToHost), "page table",
                           err);
    if (rc) return rc;
    for (int s = 0, first = 0; s < n_seqs; first += (n_kv[s++] + SL_PAGE - 1) / SL_PAGE)
        for (int i = span; i <= n_kv[s] / SL_PAGE; i += span) {
            slots[ids[first + i - 1]] = (int32_t)parts.size() / span;
            parts.insert(parts.end(), ids.begin() + first + i - span, ids.begin() + first + i);
        }
    *n_spans = (int)parts.size() / span;
    rc =
        sl_cuda_check(cudaMemcpy(b->parts, parts.data(), parts.size() * sizeof(int32_t), cudaMemcpyHostToDevice), "spans", err);
    return rc ? rc
              : sl_cuda_check(cudaMemcpy(b->slots, slots.data(), slots.size() * sizeof(int32_t), cudaMemcpyHostToDevice),
                              "spans", err);
}

// Builds page extra number i of a method for all pages, unless it is built already; of a span: for the spans of the sequences.
static int build_extra(sl_bench_attn *b, int i, const sl_kv_need *need, int n_seqs, const int *n_kv, sl_error *err) {
    const sl_attn_geom *g = &b->geom;
    int span = need->kind->span, n = b->limits.n_pages, rc = 0;
    if (!span && b->extras[i].data && b->extras[i].need.kind == need->kind && b->extras[i].need.arg == need->arg) return 0;
    if (span) rc = list_spans(b, span, n_seqs, n_kv, &n, err);
    size_t size = need->kind->size(need->arg, g->head_dim);
    cudaFree(b->extras[i].data);
    b->extras[i].data = NULL;
    if (!rc) rc = sl_cuda_check(cudaMalloc(&b->extras[i].data, size * std::max(n, 1) * g->n_kv_heads), need->kind->name, err);
    if (rc || n == 0) return rc;
    b->extras[i].need = *need, b->extras[i].size = size;
    sl_kv_device_build build = {};
    build.arg = need->arg, build.head_dim = g->head_dim, build.n_kv_heads = g->n_kv_heads, build.size = size;
    build.n = n, build.pages = b->pages, build.from = span ? b->parts : b->pages, build.index = b->index,
    build.buckets = g->buckets;
    build.k = b->cache_k, build.v = b->cache_v, build.format = b->limits.format;
    build.data = b->extras[i].data, build.stream = b->stream;
    if (span) build.parts = b->parts, build.slots = b->index, build.of = b->extras[0].data, build.of_size = b->extras[0].size;
    need->kind->build_device(&build);
    return sl_cuda_check(cudaStreamSynchronize(b->stream), need->kind->name, err);
}

// Workspace and state of a step, in one allocation.
typedef struct sl_bench_attn_memory {
    char *data;
    void *ws, *state;
    size_t state_size; // bytes per sequence
} sl_bench_attn_memory;

static int allocate_step_memory(sl_bench_attn *b, const sl_attn_spec *spec, int n_seqs, int longest, sl_bench_attn_memory *out,
                                sl_error *err) {
    const sl_attn_cuda_ops *ops = ops_of(b, spec);
    size_t ws = sl_align(ops->workspace(&b->geom, spec, n_seqs, 1, longest));
    out->state_size = ops->state ? sl_align(ops->state(&b->geom, spec)) : 0;
    size_t size = std::max<size_t>(ws + n_seqs * out->state_size, 1);
    int rc = sl_cuda_check(cudaMalloc(&out->data, size), "workspace", err);
    out->ws = out->data, out->state = out->data + ws;
    return rc ? rc : sl_cuda_check(cudaMemset(out->data, 0, size), "workspace", err);
}

// The steps of a series, before and after their replays.
struct steps {
    sl_bench_attn *b;
    int n, n_seqs;            // steps of the series, at most the rows of the shortest sequence
    std::vector<sl_row> rows; // of the last step
    sl_bench_attn_memory memory;
    std::vector<std::vector<bf16>> outputs; // of the first series

    // The rows, queries and state of step t. t = 0 clears the state.
    int set(int t, sl_error *err) {
        const sl_attn_geom *g = &b->geom;
        std::vector<sl_row> now = rows;
        size_t row = (size_t)g->n_heads * g->head_dim, step = b->limits.states ? 1 : b->limits.n_seqs;
        int query = b->n_steps - n + t;
        for (sl_row &r : now) r.position -= n - 1 - t;
        int rc = sl_cuda_check(cudaMemcpy(b->rows, now.data(), n_seqs * sizeof(sl_row), cudaMemcpyHostToDevice), "rows", err);
        for (int i = 0; !rc && i < n_seqs; i++)
            rc = sl_cuda_check(cudaMemcpy(b->q + i * row, b->step_q + (query * step + (b->limits.states ? 0 : i)) * row,
                                          row * sizeof(bf16), cudaMemcpyDeviceToDevice),
                               "queries", err);
        if (!rc && t == 0) rc = sl_cuda_check(cudaMemset(memory.state, 0, n_seqs * memory.state_size), "state", err);
        return rc;
    }
    // Checks that equal steps give equal bits.
    int check(int t, const sl_attn_spec *spec, sl_error *err) {
        std::vector<bf16> last((size_t)n_seqs * b->geom.n_heads * b->geom.head_dim);
        int rc = sl_cuda_check(cudaMemcpy(last.data(), b->out, last.size() * sizeof(bf16), cudaMemcpyDeviceToHost), "out", err);
        if (rc) return rc;
        if ((int)outputs.size() == t) outputs.push_back(last);
        if (!memcmp(outputs[t].data(), last.data(), last.size() * sizeof(bf16))) return 0;
        return sl_fail(err, SL_ERR_DEVICE, "attention %s, %d sequences: two replays of a step differ", spec->method->name,
                       n_seqs);
    }
};

// Mean bytes and share of key features that a timed step reads, as the method counts them. Reads that depend only on the number
// of rows are those of the last step. Also compares the outputs of the series with those of the replays.
static int count_reads(steps *series, const sl_attn_cuda_decode_args *args, int n_untimed, sl_bench_attn_result *out,
                       sl_error *err) {
    sl_bench_attn *b = series->b;
    const sl_attn_cuda_ops *ops = ops_of(b, args->spec);
    sl_attn_stats fixed = {};
    sl_attn_cuda_stats counted;
    int rc = 0, n = series->n - n_untimed;
    for (int t = 0; !rc && t < series->n; t++) {
        rc = series->set(t, err);
        if (!rc && t == n_untimed) rc = sl_cuda_check(cudaMemset(b->stats, 0, sizeof *b->stats), "counters", err);
        if (!rc) ops->decode(args), sl_cuda_end_step(args, 1, 0);
        if (!rc) rc = sl_cuda_check(cudaStreamSynchronize(b->stream), "decode", err);
        if (!rc) rc = series->check(t, args->spec, err);
    }
    if (!rc) rc = sl_cuda_check(cudaMemcpy(&counted, b->stats, sizeof counted, cudaMemcpyDeviceToHost), "counters", err);
    if (rc) return rc;
    for (int i = 0; ops->account && i < args->n_seqs; i++)
        ops->account(args->geom, args->spec, (int)series->rows[i].position + 1, &fixed);
    double heads = (double)args->n_seqs * args->geom->n_heads;
    out->bytes = (double)fixed.bytes + (double)counted.bytes / n;
    out->features = (fixed.features + (double)counted.features / 1024 / n) / heads;
    return 0;
}

// The specification that is timed: a method with buckets has no dense layer here, because there is one layer only.
static sl_attn_spec timed_spec(const sl_attn_spec *spec) {
    sl_attn_spec timed = *spec;
    if (spec->method->needs_buckets) timed.value[sl_attn_param_index(spec->method, "dense-layers")] = 0;
    return timed;
}

int sl_bench_attn_decode(sl_bench_attn *b, const sl_attn_spec *asked, int n_seqs, const int *n_kv, int repetitions,
                         sl_bench_attn_result *out, sl_error *err) {
    const sl_attn_spec of_layer = timed_spec(asked), *spec = &of_layer;
    const sl_attn_cuda_ops *ops = ops_of(b, spec);
    int most_seqs = sl_cuda_most_seqs(&b->geom, spec->method == &sl_method_dense);
    if (n_seqs > most_seqs)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "--attn %s: %d sequences; expected at most %d, the limit of a GPU for this model", spec->method->name,
                       n_seqs, most_seqs);
    int longest = *std::max_element(n_kv, n_kv + n_seqs), most = spec->plus ? spec->plus->cuda->max_rows : ops->max_rows;
    if (most && longest > most)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "--attn %s: --depth %d; expected at most %d, the limit of its kernels",
                       spec->method->name, longest, most);
    int n = std::min(b->n_steps, *std::min_element(n_kv, n_kv + n_seqs));
    steps series = {.b = b, .n = n, .n_seqs = n_seqs, .rows = std::vector<sl_row>(n_seqs), .memory = {}, .outputs = {}};
    std::vector<sl_row> &rows = series.rows;
    sl_bench_attn_memory &memory = series.memory;
    sl_kv_need need[SL_MAX_NEEDS];
    int page = 0;
    int rc = spec->method->needs_buckets ? make_buckets(b, err) : 0, n_needs = ops->needs ? ops->needs(spec, need) : 0;
    if (!rc) rc = allocate_step_memory(b, spec, n_seqs, longest, &memory, err);
    for (int i = 0; i < n_seqs; i++) {
        rows[i].position = n_kv[i] - 1, rows[i].sequence = (uint32_t)i, rows[i].pages = b->pages + page;
        rows[i].state = (char *)memory.state + i * memory.state_size;
        page += (n_kv[i] + SL_PAGE - 1) / SL_PAGE;
    }
    SL_CHECK(n_seqs <= b->limits.n_seqs && page <= b->limits.n_pages);
    for (int i = 0; !rc && i < n_needs; i++) rc = build_extra(b, i, &need[i], n_seqs, n_kv, err);
    sl_attn_cuda_decode_args args = {};
    args.geom = &b->geom, args.spec = spec;
    args.n_seqs = n_seqs, args.max_kv = longest;
    args.rows = b->rows, args.q = b->q, args.out = b->out;
    args.k = b->cache_k, args.v = b->cache_v, args.format = b->limits.format;
    for (int i = 0; i < n_needs; i++) {
        args.extra[i] = b->extras[i].data, args.extra_size[i] = b->extras[i].size;
        args.extra_slots[i] = need[i].kind->span ? b->slots : NULL;
    }
    args.stats = b->stats, args.ws = memory.ws, args.stream = b->stream;
    int n_untimed = std::min<int>(SL_BENCH_UNTIMED, n - 1);
    around a = {.n_series = n,
                .n_untimed = n_untimed,
                .before = [&](int i) { return series.set(i % n, err); },
                .after =
                    [&](int i) {
                        sl_cuda_end_step(&args, 1, 0); // a step of an engine ends once, not once for each layer
                        return series.check(i % n, spec, err);
                    }};
    if (!rc)
        rc = time_graph(
            b, repetitions, &out->time, err, [&] { ops->decode(&args); }, a);
    if (!rc) rc = count_reads(&series, &args, n_untimed, out, err);
    cudaFree(memory.data);
    return rc;
}

// ---- prefill ----

// `size` bytes of memory for a launch, filled with 0. *to: NULL after an error.
static int new_memory(size_t size, void **to, sl_error *err) {
    *to = NULL;
    int rc = sl_cuda_check(cudaMalloc(to, std::max<size_t>(size, 1)), "workspace", err);
    return rc ? rc : sl_cuda_check(cudaMemset(*to, 0, size), "workspace", err);
}

static sl_attn_cuda_prefill_args prefill_args(const sl_bench_attn *b, const sl_attn_spec *spec, int n_tokens, int first,
                                              void *ws) {
    SL_CHECK(n_tokens <= b->limits.n_tokens && (first + n_tokens + SL_PAGE - 1) / SL_PAGE <= b->limits.n_pages);
    sl_attn_cuda_prefill_args args = {};
    args.geom = &b->geom, args.spec = spec;
    args.n_tokens = n_tokens, args.first = first, args.n_pages = b->limits.n_pages;
    args.q = b->q, args.q_stride = (size_t)b->geom.n_heads * b->geom.head_dim, args.out = b->out;
    args.k = b->k, args.v = b->v, args.pages = b->pages;
    args.ws = ws, args.stream = b->stream;
    return args;
}

// Copies the first n_rows rows of the sequence to k and v as bf16, as the engine does before a prefill.
static void widen(const sl_bench_attn *b, int n_rows) {
    sl_attn_cuda_widen_args args = {};
    args.format = b->limits.format, args.n_rows = n_rows;
    args.n_kv_heads = b->geom.n_kv_heads, args.head_dim = b->geom.head_dim;
    args.k = b->cache_k, args.v = b->cache_v, args.pages = b->pages;
    args.to_k = b->k, args.to_v = b->v, args.stream = b->stream;
    sl_cuda_widen_rows(&args);
}

int sl_bench_attn_prefill(sl_bench_attn *b, const sl_attn_spec *spec, int n_tokens, int first, int repetitions,
                          sl_bench_attn_time *out, sl_error *err) {
    const sl_attn_cuda_ops *ops = spec->method->cuda;
    void *ws;
    int rc = new_memory(ops->workspace(&b->geom, spec, 1, n_tokens, first + n_tokens), &ws, err);
    sl_attn_cuda_prefill_args args = prefill_args(b, spec, n_tokens, first, ws);
    if (is_bytes(b)) args.pages = b->index; // of the copy
    if (!rc)
        rc = time_graph(b, repetitions, out, err, [&] {
            if (is_bytes(b)) widen(b, first + n_tokens);
            ops->prefill(&args);
        });
    cudaFree(ws);
    return rc;
}

int sl_bench_attn_masked(sl_bench_attn *b, int n_tokens, double density, int repetitions, double *reached,
                         sl_bench_attn_time *out, sl_error *err) {
    const sl_attn_spec dense = {&sl_method_dense, {}, NULL, {}};
    sl_prefill_mask m = sl_mask_of(b->geom.n_heads, n_tokens, n_tokens);
    std::vector<uint64_t> bits(sl_mask_bytes(&m) / sizeof(uint64_t));
    void *ws, *on_gpu = NULL;
    m.bits = bits.data();
    *reached = cli_random_mask(&m, density);
    int rc = new_memory(sl_cuda_query_blocks_workspace(&b->geom, n_tokens), &ws, err);
    if (!rc) rc = new_memory(sl_mask_bytes(&m), &on_gpu, err);
    if (!rc) rc = sl_cuda_check(cudaMemcpy(on_gpu, m.bits, sl_mask_bytes(&m), cudaMemcpyHostToDevice), "mask", err);
    m.bits = (uint64_t *)on_gpu;
    sl_attn_cuda_prefill_args args = prefill_args(b, &dense, n_tokens, 0, ws);
    args.mask = &m;
    if (!rc) rc = time_graph(b, repetitions, out, err, [&] { sl_method_dense.cuda->prefill(&args); });
    cudaFree(ws), cudaFree(on_gpu);
    return rc;
}

int sl_bench_attn_mask(sl_bench_attn *b, const sl_attn_spec *spec, int n_tokens, int repetitions, sl_bench_attn_time *out,
                       sl_error *err) {
    const sl_attn_cuda_ops *ops = spec->method->cuda;
    sl_prefill_mask m = sl_mask_of(b->geom.n_heads, n_tokens, n_tokens);
    void *ws, *bits = NULL;
    int rc = new_memory(ops->mask_workspace ? ops->mask_workspace(&b->geom, spec, n_tokens, n_tokens) : 0, &ws, err);
    if (!rc) rc = new_memory(sl_mask_bytes(&m), &bits, err);
    m.bits = (uint64_t *)bits;
    sl_attn_cuda_prefill_args p = prefill_args(b, spec, n_tokens, 0, ws);
    sl_attn_cuda_mask_args args = {};
    args.geom = p.geom, args.spec = spec, args.n_tokens = n_tokens;
    args.q = p.q, args.q_stride = p.q_stride, args.k = p.k, args.pages = p.pages;
    args.mask = &m, args.ws = ws, args.stream = b->stream;
    if (!rc) rc = time_graph(b, repetitions, out, err, [&] { ops->mask(&args); });
    cudaFree(ws), cudaFree(bits);
    return rc;
}
