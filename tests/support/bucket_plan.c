// tests/support/bucket_plan.c - see bucket_plan.h.
#include "tests/support/bucket_plan.h"
#include "base/hash.h"
#include "tests/test.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- numbers ----

static bf16 *unit_rows(size_t n_rows, int dim, uint64_t *seed) {
    bf16 *out = malloc(n_rows * dim * sizeof *out);
    for (size_t r = 0; r < n_rows; r++) {
        double x[256], square = 0;
        for (int d = 0; d < dim; d++) x[d] = test_normal(seed), square += x[d] * x[d];
        for (int d = 0; d < dim; d++) out[r * dim + d] = sl_f32_to_bf16((float)(x[d] / sqrt(square)));
    }
    return out;
}

static bf16 *normal_rows(size_t n, double scale, uint64_t *seed) {
    bf16 *out = malloc(n * sizeof *out);
    for (size_t i = 0; i < n; i++) out[i] = sl_f32_to_bf16((float)(scale * test_normal(seed)));
    return out;
}

static float *normal_numbers(size_t n, uint64_t *seed) {
    float *out = malloc(n * sizeof *out);
    for (size_t i = 0; i < n; i++) out[i] = (float)(0.1 * test_normal(seed));
    return out;
}

sl_buckets test_buckets_new(int n_layers, int n_kv_heads, int head_dim, int C, int W, int n_dense, uint64_t seed) {
    size_t heads = (size_t)n_layers * n_kv_heads;
    float *inv_freq = malloc(head_dim / 2 * sizeof *inv_freq);
    for (int i = 0; i < head_dim / 2; i++) inv_freq[i] = (float)pow(10000, -2.0 * i / head_dim);
    sl_buckets b = {.n_layers = n_layers,
                    .n_kv_heads = n_kv_heads,
                    .head_dim = head_dim,
                    .n_buckets = C,
                    .width = W,
                    .n_dense = n_dense,
                    .centroids = unit_rows(heads * C, head_dim, &seed),
                    .roped = unit_rows(heads * C, head_dim, &seed),
                    .inv_freq = inv_freq};
    if (W) {
        b.w1 = normal_rows(heads * W * head_dim, 1 / sqrt(head_dim), &seed), b.b1 = normal_numbers(heads * W, &seed);
        b.w2 = normal_rows(heads * C * W, 2 / sqrt(W), &seed), b.b2 = normal_numbers(heads * C, &seed);
    }
    b.bits = (sl_key_bits){.n_bits = TEST_KEY_BITS, .wk = unit_rows(heads * TEST_KEY_BITS, head_dim, &seed)};
    bf16 *wq = malloc(heads * TEST_KEY_BITS * head_dim * sizeof *wq);
    memcpy(wq, b.bits.wk, heads * TEST_KEY_BITS * head_dim * sizeof *wq); // as in a hash of the angle
    b.bits.wq = wq, b.bits.bq = normal_numbers(heads * TEST_KEY_BITS, &seed);
    b.bits.bk = normal_numbers(heads * TEST_KEY_BITS, &seed);
    return b;
}

void test_buckets_free(sl_buckets *b) {
    const void *parts[] = {b->centroids, b->roped,   b->w1,      b->w2,      b->b1,     b->b2,
                           b->inv_freq,  b->bits.wq, b->bits.wk, b->bits.bq, b->bits.bk};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) free((void *)parts[i]);
    *b = (sl_buckets){0};
}

// ---- files ----

bucket_plan bucket_plan_of(const sl_buckets *b, uint64_t model_hash) {
    int L = b->n_layers, H = b->n_kv_heads, C = b->n_buckets, W = b->width, d = b->head_dim;
    bucket_plan p = {
        .tensors = {{"centroids", "BF16", {L, H, C, d}, 4, b->centroids},
                    {b->roped ? "centroids_roped" : NULL, "BF16", {L, H, C, d}, 4, b->roped},
                    {W ? "w1" : NULL, "BF16", {L, H, W, d}, 4, b->w1},
                    {W ? "b1" : NULL, "F32", {L, H, W}, 3, b->b1},
                    {W ? "w2" : NULL, "BF16", {L, H, C, W}, 4, b->w2},
                    {W ? "b2" : NULL, "F32", {L, H, C}, 3, b->b2}},
        .texts = {
            {"format_version", "1"}, {.name = "buckets"}, {.name = "width"}, {.name = "dense_layers"}, {.name = "model"}}};
    snprintf(p.texts[1].text, sizeof p.texts[1].text, "%d", C);
    snprintf(p.texts[2].text, sizeof p.texts[2].text, "%d", W);
    snprintf(p.texts[3].text, sizeof p.texts[3].text, "%d", b->n_dense);
    sl_hash_text(model_hash, p.texts[4].text);
    return p;
}

bucket_plan bit_plan_of(const sl_buckets *b, uint64_t model_hash) {
    int L = b->n_layers, H = b->n_kv_heads, B = b->bits.n_bits, d = b->head_dim;
    bucket_plan p = {.tensors = {{"wq", "BF16", {L, H, B, d}, 4, b->bits.wq},
                                 {"wk", "BF16", {L, H, B, d}, 4, b->bits.wk},
                                 {"bq", "F32", {L, H, B}, 3, b->bits.bq},
                                 {"bk", "F32", {L, H, B}, 3, b->bits.bk}},
                     .texts = {{"format_version", "1"}, {.name = "bits"}, {.name = "model"}}};
    snprintf(p.texts[1].text, sizeof p.texts[1].text, "%d", B);
    sl_hash_text(model_hash, p.texts[2].text);
    return p;
}

static size_t size_of(const bucket_plan *p, int i) {
    size_t n = strcmp(p->tensors[i].dtype, "F32") ? 2 : 4;
    for (int j = 0; j < p->tensors[i].n_dims; j++) n *= (size_t)p->tensors[i].dims[j];
    return n;
}

void bucket_plan_write(const bucket_plan *p, const char *path) {
    char header[4096];
    size_t at = (size_t)snprintf(header, sizeof header, "{\"__metadata__\":{"), offset = 0;
    const char *comma = "";
    for (int i = 0; i < PLAN_TEXTS; i++) {
        if (!p->texts[i].name) continue;
        at += (size_t)snprintf(header + at, sizeof header - at, "%s\"%s\":\"%s\"", comma, p->texts[i].name, p->texts[i].text);
        comma = ",";
    }
    at += (size_t)snprintf(header + at, sizeof header - at, "}");
    for (int i = 0; i < PLAN_TENSORS; i++) {
        if (!p->tensors[i].name) continue;
        size_t end = offset + size_of(p, i);
        at += (size_t)snprintf(header + at, sizeof header - at, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", p->tensors[i].name,
                               p->tensors[i].dtype);
        for (int j = 0; j < p->tensors[i].n_dims; j++)
            at += (size_t)snprintf(header + at, sizeof header - at, "%s%d", j ? "," : "", p->tensors[i].dims[j]);
        at += (size_t)snprintf(header + at, sizeof header - at, "],\"data_offsets\":[%zu,%zu]}", offset, end);
        offset = end;
    }
    at += (size_t)snprintf(header + at, sizeof header - at, "}");
    CHECK(at + 8 < sizeof header);
    while (at % 8) header[at++] = ' ';
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL);
    for (int i = 0; i < 8; i++) fputc((int)((uint64_t)at >> (8 * i) & 0xff), f);
    CHECK(fwrite(header, 1, at, f) == at);
    for (int i = 0; i < PLAN_TENSORS; i++)
        if (p->tensors[i].name) CHECK(fwrite(p->tensors[i].data, 1, size_of(p, i), f) == size_of(p, i));
    fclose(f);
}

void bucket_plan_link(const char *from, const char *to) {
    char path[4200], real[4200], target[4200];
    CHECK(!mkdir(to, 0777) && realpath(from, real));
    DIR *dir = opendir(real);
    CHECK(dir != NULL);
    for (struct dirent *e; (e = readdir(dir));) {
        if (*e->d_name == '.' || !strcmp(e->d_name, "saap.safetensors")) continue;
        snprintf(target, sizeof target, "%.2000s/%.255s", real, e->d_name);
        snprintf(path, sizeof path, "%.2000s/%.255s", to, e->d_name);
        CHECK(!symlink(target, path));
    }
    closedir(dir);
}
