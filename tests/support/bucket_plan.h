// tests/support/bucket_plan.h - bucket files and bit files (models/bucket_file.h, models/bit_file.h) with random numbers, good
// ones and broken ones, and the same numbers in memory.
#ifndef SLEIGH_TEST_BUCKET_PLAN_H
#define SLEIGH_TEST_BUCKET_PLAN_H

#include "attention/extras/buckets.h"

#include <stdint.h>

enum { PLAN_TENSORS = 7, PLAN_TEXTS = 5, TEST_KEY_BITS = 96 };

// Random centroids of norm 1, a random classifier and random projections to bits, for every layer, from malloc. width 0: no
// classifier
sl_buckets test_buckets_new(int n_layers, int n_kv_heads, int head_dim, int n_buckets, int width, int n_dense, uint64_t seed);
void test_buckets_free(sl_buckets *b);

// What a file will hold. A test may change it before it is written.
typedef struct bucket_plan {
    struct {
        const char *name, *dtype; // name NULL: the file lacks it
        int dims[5], n_dims;
        const void *data;    // of at least the size of dtype and dims
    } tensors[PLAN_TENSORS]; // centroids, centroids_roped, w1, b1, w2, b2, and one more
    struct {
        const char *name; // NULL: the file lacks it
        char text[64];
    } texts[PLAN_TEXTS]; // format_version, buckets, width, dense_layers, model
} bucket_plan;

bucket_plan bucket_plan_of(const sl_buckets *b, uint64_t model_hash);
bucket_plan bit_plan_of(const sl_buckets *b, uint64_t model_hash); // of a bit file (models/bit_file.h): wq, wk, bq, bk
void bucket_plan_write(const bucket_plan *plan, const char *path);
// Makes the folder `to` with links to the files of the model folder `from`, except for a bucket file.
void bucket_plan_link(const char *from, const char *to);

#endif
