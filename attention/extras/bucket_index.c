// attention/extras/bucket_index.c - see bucket_index.h.
#include "attention/extras/bucket_index.h"
#include "attention/cpu/cpu_kernels.h"
#include "attention/stages/stages.h"

#include <math.h>
#include <string.h>

void sl_rotate_back(const float *inv_freq, int head_dim, int position, const float *x, float *out) {
    int half = head_dim / 2;
    for (int i = 0; i < half; i++) {
        float angle = (float)position * inv_freq[i];
        float cosine = (float)cos((double)angle), sine = (float)sin((double)angle);
        float a = x[i], b = x[i + half];
        out[i] = a * cosine + b * sine;
        out[i + half] = b * cosine - a * sine;
    }
}

void sl_bucket_assign(const sl_buckets *b, int roped, int layer, int h, sl_kv_run k, int n_rows, int first, uint16_t *bucket) {
    const sl_attn_kernels *kernels = sl_attn_kernels_best();
    int dim = b->head_dim;
    const bf16 *centroids = (roped ? b->roped : b->centroids) + ((size_t)layer * b->n_kv_heads + h) * b->n_buckets * dim;
    float x[SL_PAGE * 256];
    for (int j = 0; j < n_rows; j++) {
        float *row = x + (size_t)j * dim;
        kernels->widen(sl_kv_run_from(k, dim, j), 1, dim, row);
        if (!roped) sl_rotate_back(b->inv_freq, dim, first + j, row, row);
        for (int d = 0; d < dim; d++) row[d] = sl_bf16_to_f32(sl_f32_to_bf16(row[d]));
    }
    kernels->nearest(x, n_rows, centroids, b->n_buckets, dim, bucket);
}

// Writes first[c], the number of rows in buckets below c, for c <= C. bucket: [n].
static void count_before(const uint16_t *bucket, int n, int C, uint16_t *first) {
    memset(first, 0, (C + 1) * sizeof *first);
    for (int i = 0; i < n; i++) first[bucket[i] + 1]++;
    for (int c = 0; c < C; c++) first[c + 1] += first[c];
}

// ---- bucket rows ----

static size_t rows_size(int roped, int head_dim) {
    (void)roped, (void)head_dim;
    return (sizeof(sl_bucket_rows) + 63) / 64 * 64;
}

static void rows_build(const sl_kv_page *page, void *out) {
    const sl_buckets *b = page->buckets;
    sl_bucket_rows *to = out;
    uint16_t bucket[SL_PAGE], at[SL_BUCKETS_MOST + 1];
    SL_CHECK(b != NULL);
    sl_bucket_assign(b, page->arg, page->layer, page->h, page->k, SL_PAGE, page->first, bucket);
    count_before(bucket, SL_PAGE, b->n_buckets, at);
    for (int j = 0; j < SL_PAGE; j++) {
        int i = at[bucket[j]]++;
        to->bucket[i] = bucket[j], to->row[i] = (uint8_t)j;
    }
}

const sl_kv_extra_kind sl_bucket_rows_kind = {
    .name = "bucket rows", .size = rows_size, .build = rows_build, .build_device = SL_ON_CUDA(sl_cuda_build_bucket_rows)};

// ---- bucket lists ----

static size_t lists_size(int roped, int head_dim) {
    (void)roped, (void)head_dim;
    return (sizeof(sl_bucket_lists) + 63) / 64 * 64;
}

static void lists_build(const sl_kv_page *page, void *out) {
    sl_bucket_lists *to = out;
    int C = page->buckets->n_buckets;
    uint16_t bucket[SL_BUCKET_SPAN_ROWS], at[SL_BUCKETS_MOST + 1];
    for (int i = 0; i < SL_BUCKET_SPAN; i++)
        memcpy(bucket + i * SL_PAGE, ((const sl_bucket_rows *)page->parts[i])->bucket, SL_PAGE * sizeof *bucket);
    count_before(bucket, SL_BUCKET_SPAN_ROWS, C, to->first);
    memcpy(at, to->first, C * sizeof *at);
    for (int i = 0; i < SL_BUCKET_SPAN; i++) { // rows of one bucket ascend in a page, and pages ascend
        const sl_bucket_rows *rows = page->parts[i];
        for (int j = 0; j < SL_PAGE; j++) to->row[at[rows->bucket[j]]++] = (uint16_t)(i * SL_PAGE + rows->row[j]);
    }
}

const sl_kv_extra_kind sl_bucket_lists_kind = {.name = "bucket lists",
                                               .span = SL_BUCKET_SPAN,
                                               .of = &sl_bucket_rows_kind,
                                               .size = lists_size,
                                               .build = lists_build,
                                               .build_device = SL_ON_CUDA(sl_cuda_build_bucket_lists)};

// ---- bucket cells ----

static size_t cells_size(int roped, int head_dim) {
    (void)roped;
    return (size_t)SL_BUCKET_CELLS * 2 * head_dim * sizeof(bf16);
}

// Adds k - centre, or its square, to the sum of each row's cell. centre, sum: [cells][dim]; count: [cells]
static void add_rows(const sl_kv_page *page, const float *centre, int squared, float *sum, int *count) {
    const sl_attn_kernels *kernels = sl_attn_kernels_best();
    int dim = page->head_dim;
    float k[256];
    for (int i = 0; i < SL_BUCKET_SPAN; i++) {
        const sl_bucket_rows *rows = page->parts[i];
        for (int j = 0; j < SL_PAGE; j++) {
            int cell = sl_bucket_cell(rows->bucket[j], page->buckets->n_buckets);
            float *to = sum + (size_t)cell * dim;
            const float *from = centre + (size_t)cell * dim;
            kernels->widen(sl_kv_run_from(page->k_parts[i], dim, rows->row[j]), 1, dim, k);
            for (int d = 0; d < dim; d++) {
                float x = k[d] - from[d];
                to[d] += squared ? x * x : x;
            }
            count[cell]++;
        }
    }
}

static void cells_build(const sl_kv_page *page, void *out) {
    float mean[SL_BUCKET_CELLS * 256] = {0}, sum[SL_BUCKET_CELLS * 256] = {0};
    int count[SL_BUCKET_CELLS] = {0}, dim = page->head_dim;
    bf16 *to = out;
    add_rows(page, mean, 0, sum, count);
    for (int i = 0; i < SL_BUCKET_CELLS * dim; i++) {
        int n = count[i / dim];
        mean[i] = n ? sum[i] / (float)n : 0;
        sum[i] = 0;
    }
    memset(count, 0, sizeof count);
    add_rows(page, mean, 1, sum, count);
    for (int cell = 0; cell < SL_BUCKET_CELLS; cell++)
        for (int d = 0; d < dim; d++) {
            int i = cell * dim + d;
            to[2 * cell * dim + d] = sl_f32_to_bf16(mean[i]);
            to[(2 * cell + 1) * dim + d] = sl_f32_to_bf16(count[cell] ? sum[i] / (float)count[cell] : 0);
        }
}

const sl_kv_extra_kind sl_bucket_cells_kind = {.name = "bucket cells",
                                               .span = SL_BUCKET_SPAN,
                                               .of = &sl_bucket_rows_kind,
                                               .size = cells_size,
                                               .build = cells_build,
                                               .build_device = SL_ON_CUDA(sl_cuda_build_bucket_cells)};
