// models/bucket_file.c - see bucket_file.h.
#include "models/bucket_file.h"
#include "models/trained_file.h"

#include <stdlib.h>
#include <string.h>

struct sl_bucket_file {
    sl_tensors *tensors;
    float *inv_freq;
    sl_buckets buckets;
};

// ---- metadata ----

static int read_metadata(sl_bucket_file *f, const char *path, const sl_config *c, const sl_tensors *weights, sl_error *err) {
    sl_buckets *b = &f->buckets;
    int rc = sl_trained_check(f->tensors, path, "scripts/train/train_saap.py", c, weights, err);
    if (!rc) rc = sl_trained_int(f->tensors, path, "buckets", 1, SL_BUCKETS_MOST, &b->n_buckets, err);
    if (!rc) rc = sl_trained_int(f->tensors, path, "width", 0, SL_BUCKETS_WIDTH_MOST, &b->width, err);
    if (!rc) rc = sl_trained_int(f->tensors, path, "dense_layers", 0, c->n_layers, &b->n_dense, err);
    if (rc || b->width % 16 == 0) return rc;
    return sl_fail(err, SL_ERR_FORMAT, "%s: metadata width is %d, expected a multiple of 16", path, b->width);
}

// ---- tensors ----

enum { N_PARTS = 6 };

static void list_parts(sl_buckets *b, sl_trained_part out[N_PARTS]) {
    static const char none[] = "metadata width is 0";
    int C = b->n_buckets, W = b->width, d = b->head_dim, classifier = W ? 1 : -1;
    const sl_trained_part parts[N_PARTS] = {
        {"centroids", "BF16", {C, d}, 1, (const void **)&b->centroids, NULL},
        {"centroids_roped", "BF16", {C, d}, 0, (const void **)&b->roped, NULL},
        {"w1", "BF16", {W, d}, classifier, (const void **)&b->w1, none},
        {"b1", "F32", {W}, classifier, (const void **)&b->b1, none},
        {"w2", "BF16", {C, W}, classifier, (const void **)&b->w2, none},
        {"b2", "F32", {C}, classifier, (const void **)&b->b2, none},
    };
    memcpy(out, parts, sizeof parts);
}

// ---- the file ----

int sl_bucket_file_open(const char *path, const sl_config *c, const sl_tensors *weights, sl_bucket_file **out, sl_error *err) {
    sl_bucket_file *f = calloc(1, sizeof *f);
    if (f) f->inv_freq = malloc(c->head_dim / 2 * sizeof *f->inv_freq);
    int rc = f && f->inv_freq ? 0 : sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path);
    if (!rc) {
        sl_config_rope(c, f->inv_freq);
        f->buckets = (sl_buckets){
            .n_layers = c->n_layers, .n_kv_heads = c->n_kv_heads, .head_dim = c->head_dim, .inv_freq = f->inv_freq};
        rc = sl_tensors_open_file(path, &f->tensors, err);
    }
    if (!rc) rc = read_metadata(f, path, c, weights, err);
    if (!rc) {
        sl_trained_part parts[N_PARTS];
        list_parts(&f->buckets, parts);
        rc = sl_trained_bind(f->tensors, path, "bucket", c, parts, N_PARTS, err);
    }
    if (rc) {
        sl_bucket_file_close(f);
        return rc;
    }
    *out = f;
    return 0;
}

void sl_bucket_file_close(sl_bucket_file *f) {
    if (!f) return;
    sl_tensors_close(f->tensors);
    free(f->inv_freq);
    free(f);
}

const sl_buckets *sl_bucket_file_get(const sl_bucket_file *f) {
    return &f->buckets;
}
const sl_tensors *sl_bucket_file_tensors(const sl_bucket_file *f) {
    return f->tensors;
}
