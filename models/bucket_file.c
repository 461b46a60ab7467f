// models/bucket_file.c - see bucket_file.h.
#include "models/bucket_file.h"
#include "base/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sl_bucket_file {
    sl_tensors *tensors;
    float *inv_freq;
    sl_buckets buckets;
};

// ---- metadata ----

static int get_text(const sl_tensors *t, const char *path, const char *name, const char **out, sl_error *err) {
    *out = sl_tensors_metadata(t, name);
    return *out ? 0 : sl_fail(err, SL_ERR_FORMAT, "%s: metadata %s is missing", path, name);
}

static int get_int(const sl_tensors *t, const char *path, const char *name, int least, int most, int *out, sl_error *err) {
    const char *text;
    char *end;
    int rc = get_text(t, path, name, &text, err);
    if (rc) return rc;
    long x = strtol(text, &end, 10);
    if (end == text || *end || x < least || x > most)
        return sl_fail(err, SL_ERR_FORMAT, "%s: metadata %s is \"%.40s\", expected an integer from %d to %d", path, name, text,
                       least, most);
    *out = (int)x;
    return 0;
}

static int check_version(const sl_tensors *t, const char *path, sl_error *err) {
    const char *text;
    int rc = get_text(t, path, "format_version", &text, err);
    if (rc || !strcmp(text, "1")) return rc;
    return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: metadata format_version is \"%.40s\", expected 1", path, text);
}

static int check_model(const sl_tensors *t, const char *path, const sl_config *config, const sl_tensors *weights,
                       sl_error *err) {
    const char *text;
    char want[SL_HASH_TEXT];
    int rc = get_text(t, path, "model", &text, err);
    if (rc) return rc;
    sl_hash_text(sl_tensors_hash(weights, sl_config_hash(config)), want);
    if (!strcmp(text, want)) return 0;
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "%s: made for another model: metadata model is \"%.40s\", expected %s, the hash of this model's config and "
                   "weights; scripts/train/train_saap.py makes the file of a model",
                   path, text, want);
}

static int read_metadata(sl_bucket_file *f, const char *path, const sl_config *c, const sl_tensors *weights, sl_error *err) {
    sl_buckets *b = &f->buckets;
    int rc = check_version(f->tensors, path, err);
    if (!rc) rc = check_model(f->tensors, path, c, weights, err);
    if (!rc) rc = get_int(f->tensors, path, "buckets", 1, SL_BUCKETS_MOST, &b->n_buckets, err);
    if (!rc) rc = get_int(f->tensors, path, "width", 0, SL_BUCKETS_WIDTH_MOST, &b->width, err);
    if (!rc) rc = get_int(f->tensors, path, "dense_layers", 0, c->n_layers, &b->n_dense, err);
    if (rc || b->width % 16 == 0) return rc;
    return sl_fail(err, SL_ERR_FORMAT, "%s: metadata width is %d, expected a multiple of 16", path, b->width);
}

// ---- tensors ----

typedef struct part {
    const char *name, *dtype;
    int dims[2];     // after layers and KV heads; dims[1] 0: one dimension only
    int needed;      // 1: the file must have it; 0: it may; -1: it must not
    const void **to; // data; NULL where the file lacks it
} part;

enum { N_PARTS = 6 };

static void list_parts(sl_buckets *b, part out[N_PARTS]) {
    int C = b->n_buckets, W = b->width, d = b->head_dim, classifier = W ? 1 : -1;
    const part parts[N_PARTS] = {
        {"centroids", "BF16", {C, d}, 1, (const void **)&b->centroids},
        {"centroids_roped", "BF16", {C, d}, 0, (const void **)&b->roped},
        {"w1", "BF16", {W, d}, classifier, (const void **)&b->w1},
        {"b1", "F32", {W}, classifier, (const void **)&b->b1},
        {"w2", "BF16", {C, W}, classifier, (const void **)&b->w2},
        {"b2", "F32", {C}, classifier, (const void **)&b->b2},
    };
    memcpy(out, parts, sizeof parts);
}

static int bind(const sl_buckets *b, const char *path, const sl_tensors *t, const part *p, sl_error *err) {
    const sl_tensor *x = sl_tensors_find(t, p->name);
    const int64_t want[] = {b->n_layers, b->n_kv_heads, p->dims[0], p->dims[1]};
    int rank = p->dims[1] ? 4 : 3;
    *p->to = NULL;
    if (!x && p->needed <= 0) return 0;
    if (!x) return sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s is missing", path, p->name);
    if (p->needed < 0)
        return sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s: unexpected, because metadata width is 0", path, p->name);
    if (strcmp(x->dtype_name, p->dtype))
        return sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s has dtype %s, expected %s", path, p->name, x->dtype_name, p->dtype);
    if (x->n_dims != rank || memcmp(x->dims, want, rank * sizeof *want)) {
        char found[128], expected[128];
        sl_format_dims(x->dims, x->n_dims, found, sizeof found);
        sl_format_dims(want, rank, expected, sizeof expected);
        return sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s has shape %s, expected %s", path, p->name, found, expected);
    }
    *p->to = x->data;
    return 0;
}

static int bind_all(sl_bucket_file *f, const char *path, sl_error *err) {
    part parts[N_PARTS];
    list_parts(&f->buckets, parts);
    for (int i = 0; i < N_PARTS; i++) {
        int rc = bind(&f->buckets, path, f->tensors, &parts[i], err);
        if (rc) return rc;
    }
    for (int i = 0; i < sl_tensors_count(f->tensors); i++) {
        const char *name = sl_tensors_at(f->tensors, i)->name;
        int known = 0;
        for (int j = 0; j < N_PARTS; j++) known |= !strcmp(name, parts[j].name);
        if (!known) return sl_fail(err, SL_ERR_FORMAT, "%s: tensor %.100s: a bucket file has no such tensor", path, name);
    }
    return 0;
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
    if (!rc) rc = bind_all(f, path, err);
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
