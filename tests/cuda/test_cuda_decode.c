// tests/cuda/test_cuda_decode.c - compares exact decode attention on CUDA with double precision, and checks that equal inputs
// give equal bits.
//
// The bound. Rounding to bf16 changes a number by at most 2^-8 of it. A mass is rounded before it multiplies V, and the rounded
// mass is summed. So the error of an output is at most 2^-8 sum_j p_j |v_j - out| <= 2^-7 A with A = sum_j p_j |v_j|. This
// bound needs roundings of one sign. They are independent, so the test allows half of the bound. Rounding the output adds 2^-8
// A: 2^-7 A in all for one value. An fp32 score is off by up to about n 2^-24 sum_i |q_i k_i|, which is far smaller. Errors of
// a head's values average out, so the test allows 2^-8 of the norm of a head's output.
//
// With a cache of fp8 or int8, v_j is the number that the row stands for, and the product of a mass with the scale of V is what
// is rounded. So the bound is the same. Rows after the end of a sequence have a scale of NaN.
#include "tests/support/gpu.h"
#include "tests/support/reference.h"

// clang-format off
#define SHAPES(X)                                               \
    X(64, 1) X(64, 2) X(64, 3) X(64, 4) X(64, 5) X(64, 6) X(64, 7) X(64, 8)                \
    X(80, 1) X(80, 2) X(80, 3) X(80, 4) X(80, 5) X(80, 6) X(80, 7) X(80, 8)                \
    X(96, 1) X(96, 2) X(96, 3) X(96, 4) X(96, 5) X(96, 6) X(96, 7) X(96, 8)                \
    X(128, 1) X(128, 2) X(128, 3) X(128, 4) X(128, 5) X(128, 6) X(128, 7) X(128, 8)
// clang-format on

#ifdef SLEIGH_CUDA
#include "attention/attention_cuda.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SEQS = 64, COUNTER_BYTES = 262144, GUARD = 4096 };

// A ref_cache and its copy on the device. The queries of both are rounded to bf16.
typedef struct device_cache {
    ref_cache host;
    const sl_attn_cuda_ops *ops;
    bf16 *k, *v, *q, *out; // q, out: [n][n_heads][head_dim], of one call
    sl_row *rows;          // [n]
    int32_t **pages;       // [n_seqs] page tables in device memory
    void *ws;
    size_t ws_size, row; // row: elements of one sequence's q
    int max_kv;
    int turn; // batch index i has the query of its sequence, rotated by i * turn elements
    int has_runs;
} device_cache;

static int longest(const ref_cache *c) {
    int n = 0;
    for (int s = 0; s < c->n_seqs; s++) n = c->seqs[s].n_tokens > n ? c->seqs[s].n_tokens : n;
    return n;
}

// Stores the rows in a format, and copies them to the device.
static device_cache upload(ref_cache host, sl_format f) {
    if (f != SL_BF16) ref_store_as(&host, f);
    const sl_attn_geom *g = &host.geom;
    device_cache d = {.host = host, .row = (size_t)g->n_heads * g->head_dim, .max_kv = longest(&host)};
    size_t bytes = (size_t)host.pool.n_pages * g->n_kv_heads * sl_kv_block_bytes(f, g->head_dim);
    d.ops = f == SL_BF16 ? &sl_dense_cuda_ops : sl_dense_cuda_ops.bytes;
    for (size_t i = 0; i < host.n_seqs * d.row; i++) host.q[i] = sl_bf16_to_f32(sl_f32_to_bf16(host.q[i]));
    d.k = gpu_copy(host.pool.k, bytes);
    d.v = gpu_copy(host.pool.v, bytes);
    d.q = gpu_new(MAX_SEQS * d.row * sizeof(bf16));
    d.out = gpu_new(MAX_SEQS * d.row * sizeof(bf16) + GUARD);
    d.rows = gpu_new(MAX_SEQS * sizeof(sl_row));
    d.pages = calloc(host.n_seqs, sizeof *d.pages);
    for (int s = 0; s < host.n_seqs; s++) d.pages[s] = gpu_copy(host.seqs[s].pages, host.seqs[s].n_pages * sizeof(int32_t));
    d.ws_size = d.ops->workspace(g, NULL, MAX_SEQS, 1, d.max_kv);
    d.ws = gpu_new(d.ws_size + GUARD);
    CHECK(cudaMemset(d.ws, 0, d.ws_size) == cudaSuccess);
    return d;
}

static void free_cache(device_cache *d) {
    ref_cache_free(&d->host);
    free(d->pages);
}

// Sequence order[i] gets batch index i, with lengths[i] of its rows (NULL: all rows).
static void place(device_cache *d, int n, const int *order, const int *lengths) {
    sl_row rows[MAX_SEQS];
    bf16 *q = malloc(n * d->row * sizeof *q);
    for (int i = 0; i < n; i++) {
        int s = order[i], length = lengths ? lengths[i] : d->host.seqs[s].n_tokens;
        rows[i] = (sl_row){.position = length - 1, .sequence = 7u * s, .pages = d->pages[s]};
        for (size_t j = 0; j < d->row; j++)
            q[i * d->row + j] = sl_f32_to_bf16(d->host.q[s * d->row + (j + (size_t)(i * d->turn)) % d->row]);
    }
    CHECK(cudaMemcpy(d->rows, rows, n * sizeof *rows, cudaMemcpyHostToDevice) == cudaSuccess);
    CHECK(cudaMemcpy(d->q, q, n * d->row * sizeof *q, cudaMemcpyHostToDevice) == cudaSuccess);
    free(q);
}

static void launch(const device_cache *d, int n, int max_kv, cudaStream_t stream) {
    d->ops->decode(&(sl_attn_cuda_decode_args){.geom = &d->host.geom,
                                               .n_seqs = n,
                                               .max_kv = max_kv,
                                               .rows = d->rows,
                                               .has_runs = d->has_runs,
                                               .q = d->q,
                                               .out = d->out,
                                               .k = d->k,
                                               .v = d->v,
                                               .format = d->host.pool.formats.k,
                                               .ws = d->ws,
                                               .stream = stream});
}

static bf16 *read_out(const device_cache *d, int n) {
    bf16 *out = malloc(n * d->row * sizeof *out);
    gpu_read(out, d->out, n * d->row * sizeof *out);
    return out;
}

static void check_untouched(const char *what, const void *device, size_t size, int byte) {
    unsigned char *bytes = malloc(size);
    gpu_read(bytes, device, size);
    for (size_t i = 0; i < size; i++)
        if (bytes[i] != byte) FAIL("%s: byte %zu is %02x", what, i, bytes[i]);
    free(bytes);
}

// One call with new output memory. Checks that nothing after the output is written, and that the workspace's counters are 0
// again.
static bf16 *decode(device_cache *d, int n, const int *order, const int *lengths, int max_kv) {
    size_t size = n * d->row * sizeof(bf16);
    place(d, n, order, lengths);
    CHECK(cudaMemset(d->out, 0xFF, size + GUARD) == cudaSuccess);
    launch(d, n, max_kv, NULL);
    gpu_sync("dense decode");
    check_untouched("after the output", (char *)d->out + size, GUARD, 0xFF);
    check_untouched("after the workspace", (char *)d->ws + d->ws_size, GUARD, 0xFF);
    check_untouched("counters of the workspace", d->ws, COUNTER_BYTES, 0);
    return read_out(d, n);
}

static void check_head(const device_cache *d, int s, int head, int n_kv, const bf16 *out) {
    int dim = d->host.geom.head_dim, kv_head = head / (d->host.geom.n_heads / d->host.geom.n_kv_heads);
    double *p = malloc(n_kv * sizeof *p), mu[256], absolute[256] = {0}, v[256], square = 0, norm = 0;
    ref_attention(&d->host, s, head, d->host.q + s * d->row + head * dim, n_kv, p, mu);
    for (int j = 0; j < n_kv; j++) {
        ref_value(&d->host, s, kv_head, j, v);
        for (int i = 0; i < dim; i++) absolute[i] += p[j] * fabs(v[i]);
    }
    free(p);
    for (int i = 0; i < dim; i++) {
        double got = sl_bf16_to_f32(out[i]), error = fabs(got - mu[i]);
        if (!(error <= absolute[i] / 128))
            FAIL("%d rows, sequence %d, head %d, dimension %d: got %.6g, expected %.6g +- %.2g", n_kv, s, head, i, got, mu[i],
                 absolute[i] / 128);
        square += error * error, norm += mu[i] * mu[i];
    }
    if (!(sqrt(square / norm) <= 1.0 / 256))
        FAIL("%d rows, sequence %d, head %d: relative error %.3g", n_kv, s, head, sqrt(square / norm));
}

static void check_out(const device_cache *d, int n, const int *order, const bf16 *out) {
    for (int i = 0; i < n; i++)
        for (int h = 0; h < d->host.geom.n_heads; h++)
            check_head(d, order[i], h, d->host.seqs[order[i]].n_tokens, out + i * d->row + h * d->host.geom.head_dim);
}

// Compares all sequences of a new cache, in order, with the reference.
static void check_cache(ref_cache host, sl_format f) {
    int order[MAX_SEQS] = {0};
    for (int s = 0; s < host.n_seqs; s++) order[s] = s;
    device_cache d = upload(host, f);
    bf16 *out = decode(&d, host.n_seqs, order, NULL, d.max_kv);
    check_out(&d, host.n_seqs, order, out);
    free(out);
    free_cache(&d);
}

// Each case of a format, and of both formats of bytes.
#define WITH_FORMATS(CASE)                                                                                                     \
    static void CASE(void) {                                                                                                   \
        CASE##_of(SL_BF16);                                                                                                    \
    }                                                                                                                          \
    static void bytes_##CASE(void) {                                                                                           \
        CASE##_of(SL_FP8);                                                                                                     \
        gpu_free_all();                                                                                                        \
        CASE##_of(SL_INT8);                                                                                                    \
    }

static void lengths_of(sl_format f) {
    static const int all[] = {1, 31, 63, 64, 65, 255, 256, 257, 1023, 1025, 4095, 4096, 8191, 16384, 16385, 32768, 32769};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        check_cache(ref_cache_new(8, 2, 128, 1, &all[i], 1, test_seed + i), f);
        gpu_free_all();
    }
}
WITH_FORMATS(lengths)

static void check_shape(int head_dim, int group, sl_format f) {
    static const int ragged[] = {300, 1, 2075, 64};
    check_cache(ref_cache_new(3 * group, 3, head_dim, 4, ragged, 1, test_seed + 100 * head_dim + group), f);
}

#define SHAPE_FN(DIM, GROUP)                                                                                                   \
    static void dim_##DIM##_group_##GROUP(void) {                                                                              \
        check_shape(DIM, GROUP, SL_BF16);                                                                                      \
    }                                                                                                                          \
    static void bytes_dim_##DIM##_group_##GROUP(void) {                                                                        \
        check_shape(DIM, GROUP, SL_FP8);                                                                                       \
        check_shape(DIM, GROUP, SL_INT8);                                                                                      \
    }
SHAPES(SHAPE_FN)

static void ragged_batch_of(sl_format f) {
    static const int ragged[16] = {5000, 1, 256, 511, 3, 4097, 64, 129, 1023, 2, 2048, 777, 65, 16, 1500, 300};
    check_cache(ref_cache_new(8, 2, 128, 16, ragged, 1, test_seed), f);
}
WITH_FORMATS(ragged_batch)

static void many_sequences_of(sl_format f) { // more than the 32 that a producer warp looks up at a time
    int some[MAX_SEQS];
    for (int i = 0; i < MAX_SEQS; i++) some[i] = 1 + i * 37 % 700;
    check_cache(ref_cache_new(4, 1, 64, MAX_SEQS, some, 1, test_seed), f);
}
WITH_FORMATS(many_sequences)

static void score_shapes_of(sl_format f) {
    static const double scales[] = {0, 0.1, 4, 100}; // flat, mild, peaked, large: scores up to about 400 nats
    static const int some[] = {700, 2049};
    for (int i = 0; i < 4; i++) check_cache(ref_cache_new(8, 2, 128, 2, some, scales[i], test_seed + i), f);
    for (int s = 0; s < 2; s++) { // the query has the direction of one key: this row has all the mass
        ref_cache c = ref_cache_new(8, 2, 128, 2, some, 1, test_seed);
        for (int h = 0; h < 8; h++)
            for (int i = 0; i < 128; i++)
                c.q[s * 8 * 128 + h * 128 + i] = 4 * sl_bf16_to_f32(ref_k_row(&c, s, h / 4, some[s] - 1 - 17 * h)[i]);
        check_cache(c, f);
    }
}
WITH_FORMATS(score_shapes)

// Rows of a tile have scales between 2^-40 and 2^20 times a normal one, and some rows are zeros or have subnormal numbers.
static void bytes_uneven_scales(void) {
    static const sl_format formats[] = {SL_FP8, SL_INT8};
    static const int n[] = {1000, 3000};
    for (int i = 0; i < 2; i++) {
        ref_cache c = ref_cache_new(8, 2, 64, 2, n, 1, test_seed);
        for (int s = 0; s < 2; s++)
            for (int h = 0; h < 2; h++)
                for (int j = 0; j < n[s]; j++) {
                    bf16 *v = (bf16 *)ref_v_row(&c, s, h, j), *k = (bf16 *)ref_k_row(&c, s, h, j);
                    double of_v = j % 31 == 5 ? 0 : j % 31 == 6 ? 0x1p-130 : exp2(j * 7 % 61 - 40), of_k = exp2(-(j * 5 % 21));
                    for (int d = 0; d < 64; d++)
                        v[d] = sl_f32_to_bf16((float)(sl_bf16_to_f32(v[d]) * of_v)),
                        k[d] = sl_f32_to_bf16((float)(sl_bf16_to_f32(k[d]) * of_k));
                }
        check_cache(c, formats[i]);
    }
}

// One row of 131,072 has about 2% of the mass, and a large value, and the values of the others are noise. Sums with few bits
// would lose it. query_scale: so small that the other rows have nearly equal masses.
static void bytes_needle(void) {
    static const sl_format formats[] = {SL_FP8, SL_INT8};
    static const int n = 131072, at = 77777;
    for (int i = 0; i < 2; i++) {
        ref_cache c = ref_cache_new(4, 1, 128, 1, &n, 0.05, test_seed);
        bf16 *k = (bf16 *)ref_k_row(&c, 0, 0, at), *v = (bf16 *)ref_v_row(&c, 0, 0, at);
        double square = 0, share = 0.02 * n;
        for (int d = 0; d < 128; d++) square += c.q[d] * c.q[d]; // of head 0
        for (int d = 0; d < 128; d++)
            k[d] = sl_f32_to_bf16((float)(c.q[d] * log(share) * sqrt(128) / square)), v[d] = sl_f32_to_bf16(d % 2 ? 8 : -8);
        device_cache d = upload(c, formats[i]);
        bf16 *out = decode(&d, 1, (int[]){0}, NULL, n);
        for (int h = 0; h < 4; h++) check_head(&d, 0, h, n, out + h * 128);
        CHECK(sl_bf16_to_f32(out[1]) > 0.1f && sl_bf16_to_f32(out[0]) < -0.1f);
        free(out);
        free_cache(&d);
    }
}

// A row of K or of V that is not finite makes its head's output NaN, and no other head's.
static void bytes_not_finite(void) {
    static const sl_format formats[] = {SL_FP8, SL_INT8};
    static const int n[] = {700, 300}, order[] = {0, 1};
    for (int i = 0; i < 4; i++) {
        ref_cache c = ref_cache_new(4, 2, 128, 2, n, 1, test_seed);
        bf16 *row = (bf16 *)(i % 2 ? ref_v_row(&c, 0, 1, 333) : ref_k_row(&c, 0, 1, 333));
        row[77] = 0x7F80;
        device_cache d = upload(c, formats[i / 2]);
        bf16 *out = decode(&d, 2, order, NULL, d.max_kv);
        for (int h = 0; h < 4; h++)
            for (int j = 0; j < 128; j++) CHECK_INT(isnan(sl_bf16_to_f32(out[h * 128 + j])) != 0, h >= 2);
        for (int h = 0; h < 4; h++) check_head(&d, 1, h, n[1], out + d.row + h * 128);
        free(out);
        free_cache(&d);
    }
}

// A sequence gives equal bits alone and in a batch of 16, at every batch index. Repeated calls give equal bits too.
static void equal_bits_of(sl_format f) {
    static const int ragged[16] = {3001, 1, 256, 511, 3, 4097, 64, 129, 1023, 2, 2048, 777, 65, 16, 1500, 300};
    device_cache d = upload(ref_cache_new(8, 2, 128, 16, ragged, 1, test_seed), f);
    int zero = 0;
    bf16 *alone = decode(&d, 1, &zero, NULL, 3001);
    check_out(&d, 1, &zero, alone);
    for (int slot = 0; slot < 16; slot++) {
        int order[16];
        for (int i = 0; i < 16; i++) order[i] = (i - slot + 16) % 16;
        bf16 *batch = decode(&d, 16, order, NULL, d.max_kv);
        if (memcmp(alone, batch + slot * d.row, d.row * sizeof *alone))
            FAIL("batch index %d differs from the sequence alone", slot);
        bf16 *again = decode(&d, 16, order, NULL, 32768);
        if (memcmp(again, batch, 16 * d.row * sizeof *batch)) FAIL("repeated call differs, batch index %d", slot);
        free(batch), free(again);
    }
    free(alone);
    free_cache(&d);
}
WITH_FORMATS(equal_bits)

// One captured graph is replayed while two sequences grow across borders of tiles, pages and chunks.
static void graph_grows_of(sl_format f) {
    static const int whole[2] = {17000, 1500}, order[2] = {0, 1};
    static const int grown[][2] = {{1, 1},      {2, 63},     {64, 64},    {65, 255},   {256, 256},   {257, 257},
                                   {1024, 511}, {1025, 512}, {4095, 512}, {4096, 513}, {16384, 513}, {16385, 1500}};
    device_cache d = upload(ref_cache_new(8, 2, 128, 2, whole, 1, test_seed), f);
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamCreate(&stream) == cudaSuccess);
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
    launch(&d, 2, d.max_kv, stream);
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    CHECK(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
    for (size_t i = 0; i < sizeof grown / sizeof *grown; i++) {
        int most = grown[i][0] > grown[i][1] ? grown[i][0] : grown[i][1];
        bf16 *fresh = decode(&d, 2, order, grown[i], most);
        check_head(&d, 0, 5, grown[i][0], fresh + 5 * 128);
        check_head(&d, 1, 2, grown[i][1], fresh + d.row + 2 * 128);
        CHECK(cudaMemset(d.out, 0xFF, 2 * d.row * sizeof(bf16)) == cudaSuccess);
        CHECK(cudaGraphLaunch(exec, stream) == cudaSuccess);
        bf16 *replayed = read_out(&d, 2);
        if (memcmp(fresh, replayed, 2 * d.row * sizeof *fresh)) FAIL("lengths %d, %d differ", grown[i][0], grown[i][1]);
        free(fresh), free(replayed);
    }
    cudaGraphExecDestroy(exec), cudaGraphDestroy(graph), cudaStreamDestroy(stream);
    free_cache(&d);
}
WITH_FORMATS(graph_grows)

// Neighbours of one sequence share reads of K and V, and each has the bits of a launch without runs. Runs cross borders of
// tiles, pages and chunks, and the end of the sequences that a warp looks up together.
static void check_runs(sl_format f, int n_kv_heads, int group, int dim) {
    enum { RUNS = 7 };
    static const int first[RUNS] = {1, 50, 250, 505, 4088, 8184, 700}, n_rows[RUNS] = {16, 1, 7, 9, 12, 16, 2};
    int lengths[RUNS], order[MAX_SEQS], n_kv[MAX_SEQS], n = 0;
    for (int i = 0; i < RUNS; i++) {
        lengths[i] = first[i] + n_rows[i] - 1;
        for (int j = 0; j < n_rows[i]; j++) order[n] = i, n_kv[n++] = first[i] + j;
    }
    CHECK(n <= MAX_SEQS);
    device_cache d = upload(ref_cache_new(group * n_kv_heads, n_kv_heads, dim, RUNS, lengths, 2, test_seed + dim + group), f);
    for (int skip = 0; skip < 24; skip += 5) {
        d.turn = 13, d.has_runs = 0;
        bf16 *want = decode(&d, n - skip, order + skip, n_kv + skip, d.max_kv);
        d.has_runs = 1;
        bf16 *got = decode(&d, n - skip, order + skip, n_kv + skip, d.max_kv);
        for (size_t i = 0; i < (n - skip) * d.row; i++)
            if (got[i] != want[i])
                FAIL("head_dim %d, group %d, %d rows, row %zu (%d keys), element %zu: %.9g, without runs %.9g", dim, group,
                     n - skip, i / d.row, n_kv[skip + i / d.row], i % d.row, sl_bf16_to_f32(got[i]), sl_bf16_to_f32(want[i]));
        free(want), free(got);
    }
    d.turn = 0;
    bf16 *out = decode(&d, n, order, n_kv, d.max_kv);
    for (int i = 0; i < n; i += 5)
        check_head(&d, order[i], i % d.host.geom.n_heads, n_kv[i], out + i * d.row + i % d.host.geom.n_heads * dim);
    free(out);
    free_cache(&d);
    gpu_free_all();
}

static void runs_of(sl_format f) {
    static const int shapes[][3] = {{2, 4, 128}, {8, 4, 128}, {2, 1, 64}, {2, 3, 80},
                                    {2, 4, 96},  {2, 5, 128}, {1, 7, 64}, {2, 8, 128}};
    for (int i = 0; i < 8; i++) check_runs(f, shapes[i][0], shapes[i][1], shapes[i][2]);
}
WITH_FORMATS(runs)

// A run in which K or V of one row, a wrong draft, is not finite. The rows before this row have the bits of launches of their
// own and are finite. The row and those after it see it, with and without runs. value: of the numbers that are not finite.
static void check_spoiled_runs(sl_format f, int n_kv_heads, int group, int dim, int is_v, bf16 value) {
    enum { RUNS = 6 };
    static const int first[RUNS] = {1, 58, 250, 505, 4088, 700}, n_rows[RUNS] = {16, 12, 7, 9, 12, 2},
                     bad[RUNS] = {5, 9, 1, 8, 3, 1};
    int lengths[RUNS], order[MAX_SEQS], n_kv[MAX_SEQS], n = 0, sees[MAX_SEQS], n_not_finite = 0;
    for (int i = 0; i < RUNS; i++) {
        lengths[i] = first[i] + n_rows[i] - 1;
        for (int j = 0; j < n_rows[i]; j++) sees[n] = j >= bad[i], order[n] = i, n_kv[n++] = first[i] + j;
    }
    ref_cache c = ref_cache_new(group * n_kv_heads, n_kv_heads, dim, RUNS, lengths, 1, test_seed + dim + group);
    for (int i = 0; i < RUNS; i++)
        for (int h = 0; h < n_kv_heads; h++) {
            int at = first[i] - 1 + bad[i];
            bf16 *row = (bf16 *)(is_v ? ref_v_row(&c, i, h, at) : ref_k_row(&c, i, h, at));
            for (int j = 0; j < dim; j += 3) row[j] = value;
        }
    device_cache d = upload(c, f);
    bf16 *want = decode(&d, n, order, n_kv, d.max_kv);
    d.has_runs = 1;
    bf16 *got = decode(&d, n, order, n_kv, d.max_kv);
    for (size_t i = 0; i < n * d.row; i++) {
        float x = sl_bf16_to_f32(got[i]), y = sl_bf16_to_f32(want[i]);
        n_not_finite += !isfinite(x);
        if (got[i] != want[i] && !(isnan(x) && isnan(y)))
            FAIL("head_dim %d, group %d, %s: row %zu (%d keys), element %zu: %.9g, without runs %.9g", dim, group,
                 is_v ? "V" : "K", i / d.row, n_kv[i / d.row], i % d.row, x, y);
        if (!sees[i / d.row] && !isfinite(x))
            FAIL("row %zu does not see the row that is not finite, and is %.9g", i / d.row, x);
    }
    CHECK(n_not_finite > 0);
    free(want), free(got);
    free_cache(&d);
    gpu_free_all();
}

static void spoiled_runs_of(sl_format f) {
    static const int shapes[][3] = {{2, 4, 128}, {2, 1, 64}, {2, 3, 80}, {1, 7, 96}, {2, 8, 128}};
    static const bf16 values[] = {0x7FC0, 0x7F80, 0xFF80}; // NaN, both infinities
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 6; j++) check_spoiled_runs(f, shapes[i][0], shapes[i][1], shapes[i][2], j / 3, values[j % 3]);
}
WITH_FORMATS(spoiled_runs)

// Calls of different shapes and formats use one workspace, one after the other.
static void shared_workspace(void) {
    static const int some[] = {2000, 300, 1, 900};
    static const int order[] = {0, 1, 2, 3};
    device_cache a = upload(ref_cache_new(8, 2, 128, 4, some, 1, test_seed), SL_BF16);
    device_cache b = upload(ref_cache_new(24, 3, 64, 4, some, 1, test_seed + 1), SL_FP8);
    b.ws = a.ws, b.ws_size = a.ws_size;
    for (int n = 1; n <= 4; n++) {
        bf16 *out = decode(&a, n, order, NULL, a.max_kv);
        check_out(&a, n, order, out);
        free(out);
        out = decode(&b, 5 - n, order + n - 1, NULL, b.max_kv);
        check_out(&b, 5 - n, order + n - 1, out);
        free(out);
    }
    free_cache(&a), free_cache(&b);
}

#endif

#define SHAPE_CASE(DIM, GROUP) GPU_CASE("dim_" #DIM "_group_" #GROUP, dim_##DIM##_group_##GROUP),
#define BYTES_SHAPE_CASE(DIM, GROUP) GPU_CASE("bytes_dim_" #DIM "_group_" #GROUP, bytes_dim_##DIM##_group_##GROUP),

static const test_case cases[] = {
    GPU_CASE("lengths", lengths),
    SHAPES(SHAPE_CASE) // every head_dim and group
    GPU_CASE("ragged_batch", ragged_batch),
    GPU_CASE("many_sequences", many_sequences),
    GPU_CASE("score_shapes", score_shapes),
    GPU_CASE("equal_bits", equal_bits),
    GPU_CASE("graph_grows", graph_grows),
    GPU_CASE("runs", runs),
    GPU_CASE("spoiled_runs", spoiled_runs),
    GPU_CASE("shared_workspace", shared_workspace),
    GPU_CASE("bytes_lengths", bytes_lengths),
    SHAPES(BYTES_SHAPE_CASE) GPU_CASE("bytes_ragged_batch", bytes_ragged_batch),
    GPU_CASE("bytes_many_sequences", bytes_many_sequences),
    GPU_CASE("bytes_score_shapes", bytes_score_shapes),
    GPU_CASE("bytes_uneven_scales", bytes_uneven_scales),
    GPU_CASE("bytes_needle", bytes_needle),
    GPU_CASE("bytes_not_finite", bytes_not_finite),
    GPU_CASE("bytes_equal_bits", bytes_equal_bits),
    GPU_CASE("bytes_graph_grows", bytes_graph_grows),
    GPU_CASE("bytes_runs", bytes_runs),
    GPU_CASE("bytes_spoiled_runs", bytes_spoiled_runs),
    {0},
};

const test_suite suite_cuda_decode = {"cuda_decode", cases};
