// attention/cuda/buckets/bucket_index.cu - builds the index of rows by bucket on CUDA (attention/extras/bucket_index.h states
// the contents). The results have the same bits as the CPU's.
//
// A product of two bf16 is exact in fp32, and every inner product sums in the order of the channels. So a fused multiply-add
// gives the CPU's bits, and tensor cores, which do not state the order of their sums, do not.
//
// Bytes are of one KV head, and of one page or span. C: number of buckets.
//
// | kernel           | bytes                                                    | order of reduction                     |
// |------------------|----------------------------------------------------------|----------------------------------------|
// | assign_kernel    | K once; 16 C head_dim of centroids, mostly from the L2   | channels ascending, with fused sums    |
// |                  | cache; writes 512                                        |                                        |
// | sort_rows_kernel | 512; writes 768                                          | integers                               |
// | lists_kernel     | 12,288, then again from the L2 cache; writes 2 C + 8,194 | integers                               |
// | cells_kernel     | K over all cells, then again from the L2 cache; writes   | pages, then bucket rows: the sum, then |
// |                  | 4 head_dim for each cell                                 | the squared distances to the mean      |
//
// Grids depend on the number of pages only. A prefill of 2,048 tokens builds 8 pages at a time, a decode step at most one.
#include "attention/attention_cuda.h"
#include "attention/extras/bucket_index.h"
#include "attention/cuda/buckets/rotate_back.cuh"
#include "backend/cuda/device.cuh"

#include <cuda_bf16.h>
#include <math.h>

namespace {

// ---- the nearest centroid ----

enum {
    ASSIGN_ROWS = 32,       // rows of a thread block
    ASSIGN_CENTROIDS = 128, // centroids that a thread block compares at a time
    ASSIGN_CHANNELS = 32,   // channels of them in shared memory
    ASSIGN_THREADS = 128,
    ROWS_EACH = 4, // rows of a thread
    LANES = 16,    // threads that share rows; each has 8 centroids
    DIM_MOST = 128,
};

struct assign_params {
    const int32_t *pages, *from, *index;
    const bf16 *k, *centroids; // centroids: of the layer
    const float *inv_freq;     // NULL: the keys are compared as they are
    int head_dim, n_kv_heads, n_buckets;
    char *data; // sl_bucket_rows; bucket[j] becomes the bucket of row j
    size_t size;
};

struct assign_space {
    float x[DIM_MOST][ASSIGN_ROWS];                    // rows by channel
    float centroid[ASSIGN_CHANNELS][ASSIGN_CENTROIDS]; // by channel
};

// Loads the rows of the thread block. A row before RoPE is rounded to bf16.
__device__ void load_rows(const assign_params &p, assign_space *s, int first, int position) {
    int half = p.head_dim / 2;
    size_t block = (size_t)p.from[blockIdx.x] * p.n_kv_heads + blockIdx.y;
    for (int i = threadIdx.x; i < ASSIGN_ROWS * half; i += ASSIGN_THREADS) {
        int j = i / half, d = i % half;
        const bf16 *row = p.k + (block * SL_PAGE + first + j) * p.head_dim;
        float a = sl_widen(row[d]), b = sl_widen(row[d + half]);
        if (p.inv_freq) {
            rotate_pair_back(p.inv_freq[d], position + j, &a, &b);
            a = sl_widen(__bfloat16_as_ushort(__float2bfloat16_rn(a)));
            b = sl_widen(__bfloat16_as_ushort(__float2bfloat16_rn(b)));
        }
        s->x[d][j] = a, s->x[d + half][j] = b;
    }
}

// Loads channels [from, from + 32) of centroids [c, c + 128); 0 past the last centroid or channel.
__device__ void load_centroids(const assign_params &p, assign_space *s, const bf16 *centroids, int c, int from) {
    for (int i = threadIdx.x; i < ASSIGN_CENTROIDS * ASSIGN_CHANNELS / 2; i += ASSIGN_THREADS) {
        int r = i / (ASSIGN_CHANNELS / 2), d = i % (ASSIGN_CHANNELS / 2) * 2;
        uint32_t pair = c + r < p.n_buckets && from + d < p.head_dim
                            ? *(const uint32_t *)(centroids + (size_t)(c + r) * p.head_dim + from + d)
                            : 0;
        s->centroid[d][r] = sl_widen((bf16)pair), s->centroid[d + 1][r] = sl_widen((bf16)(pair >> 16));
    }
}

// bucket[j] of 32 rows of a page. A thread has 4 rows, and of every 128 centroids those of numbers 4 l .. 4 l + 3 and 64 + 4 l
// .. 64 + 4 l + 3 for its lane l of 16. It meets its centroids in ascending order.
//
// Grid: (pages, KV heads, page rows / 32).
__global__ void __launch_bounds__(ASSIGN_THREADS) assign_kernel(const assign_params p) {
    __shared__ __align__(16) assign_space s;
    sl_start_next();
    sl_wait_previous();
    size_t block = (size_t)p.pages[blockIdx.x] * p.n_kv_heads + blockIdx.y;
    int first = blockIdx.z * ASSIGN_ROWS, lane = threadIdx.x % LANES, own = threadIdx.x / LANES * ROWS_EACH;
    const bf16 *centroids = p.centroids + (size_t)blockIdx.y * p.n_buckets * p.head_dim;
    float most[ROWS_EACH];
    int bucket[ROWS_EACH];
#pragma unroll
    for (int r = 0; r < ROWS_EACH; r++) most[r] = -INFINITY, bucket[r] = 0;
    load_rows(p, &s, first, p.index[blockIdx.x] * SL_PAGE + first);
    for (int c = 0; c < p.n_buckets; c += ASSIGN_CENTROIDS) {
        float dot[ROWS_EACH][8] = {};
        for (int from = 0; from < p.head_dim; from += ASSIGN_CHANNELS) {
            int n = min(p.head_dim - from, (int)ASSIGN_CHANNELS);
            __syncthreads();
            load_centroids(p, &s, centroids, c, from);
            __syncthreads();
#pragma unroll 4
            for (int d = 0; d < n; d++) {
                const float4 x4 = *(const float4 *)&s.x[from + d][own];
                const float4 low = *(const float4 *)&s.centroid[d][4 * lane];
                const float4 high = *(const float4 *)&s.centroid[d][ASSIGN_CENTROIDS / 2 + 4 * lane];
                const float x[ROWS_EACH] = {x4.x, x4.y, x4.z, x4.w};
                const float y[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
                for (int r = 0; r < ROWS_EACH; r++)
#pragma unroll
                    for (int i = 0; i < 8; i++) dot[r][i] = __fmaf_rn(x[r], y[i], dot[r][i]);
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS_EACH; r++)
#pragma unroll
            for (int i = 0; i < 8; i++) {
                int at = c + i / 4 * (ASSIGN_CENTROIDS / 2) + 4 * lane + i % 4;
                if (at < p.n_buckets && dot[r][i] > most[r]) most[r] = dot[r][i], bucket[r] = at;
            }
    }
    sl_bucket_rows *out = (sl_bucket_rows *)(p.data + block * p.size);
#pragma unroll
    for (int r = 0; r < ROWS_EACH; r++) {
        for (int step = 1; step < LANES; step *= 2) {
            float other = __shfl_xor_sync(~0u, most[r], step);
            int at = __shfl_xor_sync(~0u, bucket[r], step);
            if (other > most[r] || (other == most[r] && at < bucket[r])) most[r] = other, bucket[r] = at;
        }
        if (lane == 0) out->bucket[first + own + r] = (uint16_t)bucket[r];
    }
}

// Sorts the rows of a page by bucket, rows of one bucket in ascending order. Grid: (pages, KV heads), one thread for each row.
__global__ void __launch_bounds__(SL_PAGE) sort_rows_kernel(const int32_t *pages, char *data, size_t size) {
    __shared__ int key[SL_PAGE];
    sl_start_next();
    sl_wait_previous();
    size_t block = (size_t)pages[blockIdx.x] * gridDim.y + blockIdx.y;
    sl_bucket_rows *out = (sl_bucket_rows *)(data + block * size);
    int j = threadIdx.x, bucket = __ldcg(out->bucket + j), rank = 0;
    key[j] = bucket * SL_PAGE + j;
    __syncthreads();
    for (int i = 0; i < SL_PAGE; i++) rank += key[i] < key[j];
    out->bucket[rank] = (uint16_t)bucket;
    out->row[rank] = (uint8_t)j;
}

// ---- lists of a span ----

enum { LIST_THREADS = SL_PAGE, LIST_WARPS = LIST_THREADS / 32 };

struct lists_params {
    const int32_t *parts, *slots;
    const char *rows; // sl_bucket_rows of all pages
    size_t rows_size;
    int n_buckets;
    char *data;
    size_t size;
};

__device__ const sl_bucket_rows *rows_of_part(const int32_t *parts, const char *rows, size_t size, int i) {
    int page = parts[blockIdx.x * SL_BUCKET_SPAN + i];
    return (const sl_bucket_rows *)(rows + ((size_t)page * gridDim.y + blockIdx.y) * size);
}

// Counts the rows of every bucket, adds the counts up, and then places the rows page by page: a row lies behind the rows of its
// bucket in earlier pages. Grid: (spans, KV heads), a thread for each row of a page.
__global__ void __launch_bounds__(LIST_THREADS) lists_kernel(const lists_params p) {
    __shared__ int at[SL_BUCKETS_MOST + 1], sums[LIST_WARPS], begin[SL_PAGE];
    sl_start_next();
    sl_wait_previous();
    sl_bucket_lists *out = (sl_bucket_lists *)(p.data + ((size_t)p.slots[blockIdx.x] * gridDim.y + blockIdx.y) * p.size);
    int j = threadIdx.x, C = p.n_buckets;
    for (int c = j; c <= C; c += LIST_THREADS) at[c] = 0;
    __syncthreads();
    for (int i = 0; i < SL_BUCKET_SPAN; i++) atomicAdd(&at[rows_of_part(p.parts, p.rows, p.rows_size, i)->bucket[j]], 1);
    __syncthreads();
    for (int from = 0, before = 0; from <= C; from += LIST_THREADS) { // at[c] becomes the number of rows below bucket c
        int own = from + j < C ? at[from + j] : 0, sum = sl_scan_lanes(own, j % 32);
        if (j % 32 == 31) sums[j / 32] = sum;
        __syncthreads();
        for (int w = 0; w < j / 32; w++) sum += sums[w];
        if (from + j <= C) {
            at[from + j] = before + sum - own;
            out->first[from + j] = (uint16_t)(before + sum - own);
        }
        for (int w = 0; w < LIST_WARPS; w++) before += sums[w];
        __syncthreads();
    }
    for (int i = 0; i < SL_BUCKET_SPAN; i++) {
        const sl_bucket_rows *rows = rows_of_part(p.parts, p.rows, p.rows_size, i);
        int bucket = rows->bucket[j];
        bool starts = j == 0 || rows->bucket[j - 1] != bucket, ends = j == SL_PAGE - 1 || rows->bucket[j + 1] != bucket;
        if (starts) begin[j] = at[bucket] - j; // of the run
        __syncthreads();
        int run = j;
        for (int step = SL_PAGE / 2; step > 0; step /= 2) // the first j of the bucket
            if (run >= step && rows->bucket[run - step] == bucket) run -= step;
        int to = begin[run] + j;
        out->row[to] = (uint16_t)(i * SL_PAGE + rows->row[j]);
        __syncthreads();
        if (ends) at[bucket] = to + 1;
        __syncthreads();
    }
}

// ---- cells of a span ----

struct cells_params {
    const int32_t *parts, *from, *slots; // from: [spans][SL_BUCKET_SPAN] places of the parts in k
    const char *rows;                    // sl_bucket_rows of all pages
    size_t rows_size;
    const bf16 *k;
    int n_buckets, head_dim;
    char *data;
    size_t size;
};

// Adds k - centre, or its square, over the rows of one cell in the order of the CPU (pages, then bucket rows). Returns the
// number of rows. A thread adds one channel.
__device__ int add_rows(const cells_params &p, int cell, float centre, bool squared, float *sum) {
    int n = 0;
    *sum = 0;
    for (int i = 0; i < SL_BUCKET_SPAN; i++) {
        const sl_bucket_rows *rows = rows_of_part(p.parts, p.rows, p.rows_size, i);
        const bf16 *k = p.k + ((size_t)p.from[blockIdx.x * SL_BUCKET_SPAN + i] * gridDim.y + blockIdx.y) * SL_PAGE * p.head_dim;
        int from = 0, end = SL_PAGE; // the first row of the cell
        while (from < end) {
            int middle = (from + end) / 2;
            if (sl_bucket_cell(rows->bucket[middle], p.n_buckets) < cell)
                from = middle + 1;
            else
                end = middle;
        }
        for (; from < SL_PAGE && sl_bucket_cell(rows->bucket[from], p.n_buckets) == cell; from++, n++) {
            float x = __fsub_rn(sl_widen(k[(size_t)rows->row[from] * p.head_dim + threadIdx.x]), centre);
            *sum = __fadd_rn(*sum, squared ? __fmul_rn(x, x) : x);
        }
    }
    return n;
}

// Grid: (spans, KV heads, cells), a thread for each channel.
__global__ void __launch_bounds__(DIM_MOST) cells_kernel(const cells_params p) {
    sl_start_next();
    sl_wait_previous();
    if ((int)threadIdx.x >= p.head_dim) return;
    bf16 *out = (bf16 *)(p.data + ((size_t)p.slots[blockIdx.x] * gridDim.y + blockIdx.y) * p.size);
    int cell = blockIdx.z;
    float sum;
    int n = add_rows(p, cell, 0, false, &sum);
    float mean = n ? __fdiv_rn(sum, (float)n) : 0;
    add_rows(p, cell, mean, true, &sum);
    float variance = n ? __fdiv_rn(sum, (float)n) : 0;
    out[2 * cell * p.head_dim + threadIdx.x] = __bfloat16_as_ushort(__float2bfloat16_rn(mean));
    out[(2 * cell + 1) * p.head_dim + threadIdx.x] = __bfloat16_as_ushort(__float2bfloat16_rn(variance));
}

} // namespace

void sl_cuda_build_bucket_rows(const sl_kv_device_build *b) {
    const sl_buckets *m = b->buckets;
    SL_CHECK(b->format == SL_BF16);
    SL_CHECK(m != NULL && b->head_dim <= DIM_MOST && b->head_dim % 2 == 0);
    size_t heads = (size_t)b->layer * m->n_kv_heads;
    assign_params p = {.pages = b->pages,
                       .from = b->from,
                       .index = b->index,
                       .k = b->k,
                       .centroids = (b->arg ? m->roped : m->centroids) + heads * m->n_buckets * m->head_dim,
                       .inv_freq = b->arg ? NULL : m->inv_freq,
                       .head_dim = b->head_dim,
                       .n_kv_heads = b->n_kv_heads,
                       .n_buckets = m->n_buckets,
                       .data = (char *)b->data,
                       .size = b->size};
    cudaStream_t stream = (cudaStream_t)b->stream;
    sl_launch(assign_kernel, dim3(b->n, b->n_kv_heads, SL_PAGE / ASSIGN_ROWS), dim3(ASSIGN_THREADS), 0, stream, p);
    sl_launch(sort_rows_kernel, dim3(b->n, b->n_kv_heads), dim3(SL_PAGE), 0, stream, b->pages, (char *)b->data, b->size);
}

void sl_cuda_build_bucket_lists(const sl_kv_device_build *b) {
    lists_params p = {.parts = b->parts,
                      .slots = b->slots,
                      .rows = (const char *)b->of,
                      .rows_size = b->of_size,
                      .n_buckets = b->buckets->n_buckets,
                      .data = (char *)b->data,
                      .size = b->size};
    sl_launch(lists_kernel, dim3(b->n, b->n_kv_heads), dim3(LIST_THREADS), 0, (cudaStream_t)b->stream, p);
}

void sl_cuda_build_bucket_cells(const sl_kv_device_build *b) {
    SL_CHECK(b->format == SL_BF16);
    SL_CHECK(b->head_dim <= DIM_MOST);
    cells_params p = {.parts = b->parts,
                      .from = b->from,
                      .slots = b->slots,
                      .rows = (const char *)b->of,
                      .rows_size = b->of_size,
                      .k = b->k,
                      .n_buckets = b->buckets->n_buckets,
                      .head_dim = b->head_dim,
                      .data = (char *)b->data,
                      .size = b->size};
    sl_launch(cells_kernel, dim3(b->n, b->n_kv_heads, SL_BUCKET_CELLS), dim3(DIM_MOST), 0, (cudaStream_t)b->stream, p);
}
