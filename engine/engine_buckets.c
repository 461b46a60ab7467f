// engine/engine_buckets.c - the bucket file and the bit file of an engine's model, for methods that need them. On a device the
// tensors of the bucket file are copied to the device. No method of a device reads the bit file.
#include "engine/engine_internal.h"
#include "models/bit_file.h"
#include "models/bucket_file.h"

#include <stdlib.h>

struct sl_device_buckets {
    sl_buckets buckets; // arrays in the backend's memory
    struct {
        void *data;
        size_t size;
    } parts[7];
    int n_parts;
};

// A copy of n bytes of host memory in the backend's memory. *ok becomes 0 when there is no memory.
static const void *copy_part(const sl_backend *be, struct sl_device_buckets *d, const void *from, size_t n, int *ok) {
    if (!from || !*ok) return NULL;
    void *to = be->alloc(be, n);
    *ok = to != NULL;
    if (!to) return NULL;
    be->upload(be, to, from, n);
    d->parts[d->n_parts].data = to, d->parts[d->n_parts++].size = n;
    return to;
}

static void free_copies(sl_device *device) {
    struct sl_device_buckets *d = device->buckets;
    for (int i = 0; d && i < d->n_parts; i++) device->backend->release(device->backend, d->parts[i].data, d->parts[i].size);
    free(d);
    device->buckets = NULL;
}

static int copy_to_device(sl_device *device, const sl_buckets *b, sl_error *err) {
    size_t heads = (size_t)b->n_layers * b->n_kv_heads, C = b->n_buckets, W = b->width, dim = b->head_dim, all = 0;
    struct sl_device_buckets *d = device->buckets = calloc(1, sizeof *d);
    const sl_backend *be = device->backend;
    int ok = d != NULL;
    if (ok) {
        d->buckets = *b;
        d->buckets.centroids = copy_part(be, d, b->centroids, heads * C * dim * sizeof(bf16), &ok);
        d->buckets.roped = copy_part(be, d, b->roped, heads * C * dim * sizeof(bf16), &ok);
        d->buckets.w1 = copy_part(be, d, b->w1, heads * W * dim * sizeof(bf16), &ok);
        d->buckets.w2 = copy_part(be, d, b->w2, heads * C * W * sizeof(bf16), &ok);
        d->buckets.b1 = copy_part(be, d, b->b1, heads * W * sizeof(float), &ok);
        d->buckets.b2 = copy_part(be, d, b->b2, heads * C * sizeof(float), &ok);
        d->buckets.inv_freq = copy_part(be, d, b->inv_freq, dim / 2 * sizeof(float), &ok);
    }
    if (ok) return 0;
    for (int i = 0; d && i < d->n_parts; i++) all += d->parts[i].size;
    free_copies(device);
    return sl_fail(err, SL_ERR_MEMORY, "the bucket file: out of memory on the device, after %zu MiB of it", all >> 20);
}

// Lets the arrays begin with KV head `first`, the first one of this rank. The heads of all ranks stay behind each other, so
// layer l begins l n_kv_heads heads further on.
static void skip_heads(sl_buckets *b, size_t first) {
    size_t C = b->n_buckets, W = b->width, dim = b->head_dim, B = b->bits.n_bits;
    if (b->centroids) b->centroids += first * C * dim;
    if (b->roped) b->roped += first * C * dim;
    if (b->w1) b->w1 += first * W * dim, b->b1 += first * W, b->w2 += first * C * W, b->b2 += first * C;
    if (B) b->bits.wq += first * B * dim, b->bits.wk += first * B * dim, b->bits.bq += first * B, b->bits.bk += first * B;
}

// What the open files have, for methods and page extras.
static void publish(sl_engine *e) {
    const sl_config *c = &e->model->config;
    e->trained = (sl_buckets){.n_layers = c->n_layers, .n_kv_heads = c->n_kv_heads, .head_dim = c->head_dim};
    if (e->bucket_file) e->trained = e->device.buckets ? e->device.buckets->buckets : *sl_bucket_file_get(e->bucket_file);
    if (e->bit_file) e->trained.bits = *sl_bit_file_get(e->bit_file);
    skip_heads(&e->trained, (size_t)(c->shard.rank * e->model->part.n_kv_heads));
    e->geom.buckets = e->device.pool.buckets = &e->trained;
}

static int open_buckets(sl_engine *e, sl_error *err) {
    int rc = sl_model_open_buckets(e->model, &e->bucket_file, err);
    if (rc || !e->device.backend->is_device) return rc;
    rc = copy_to_device(&e->device, sl_bucket_file_get(e->bucket_file), err);
    if (rc) {
        sl_bucket_file_close(e->bucket_file);
        e->bucket_file = NULL;
    }
    return rc;
}

int sl_engine_need_buckets(sl_engine *e, const sl_attn_spec *spec, sl_error *err) {
    sl_error why;
    int buckets = sl_attn_reads_buckets(spec) && !e->bucket_file, bits = sl_attn_reads_key_bits(spec) && !e->bit_file;
    if (!buckets && !bits) return 0;
    SL_CHECK(!(buckets && bits)); // no method reads both files
    int rc = buckets ? open_buckets(e, &why) : sl_model_open_bits(e->model, &e->bit_file, &why);
    if (rc) return sl_fail(err, rc, "{attn} %s: %s", spec->method->name, why.message);
    publish(e);
    return 0;
}

int sl_engine_need_buckets_of(sl_engine *e, const sl_attn_plan *plan, sl_error *err) {
    int rc = 0;
    for (int i = 0; !rc && i < plan->n_layers; i++) rc = sl_engine_need_buckets(e, &plan->layer[i], err);
    return rc;
}

const sl_tensors *sl_engine_bucket_tensors(const sl_engine *e) {
    return e->bucket_file ? sl_bucket_file_tensors(e->bucket_file) : NULL;
}

const sl_tensors *sl_engine_bit_tensors(const sl_engine *e) {
    return e->bit_file ? sl_bit_file_tensors(e->bit_file) : NULL;
}

void sl_engine_close_buckets(sl_engine *e) {
    free_copies(&e->device);
    sl_bucket_file_close(e->bucket_file);
    sl_bit_file_close(e->bit_file);
    e->bucket_file = NULL, e->bit_file = NULL;
}
