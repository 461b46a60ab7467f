// models/bit_file.c - see bit_file.h.
#include "models/bit_file.h"
#include "models/trained_file.h"

#include <stdlib.h>

struct sl_bit_file {
    sl_tensors *tensors;
    sl_key_bits bits;
};

static int read_bits(sl_bit_file *f, const char *path, const sl_config *c, const sl_tensors *weights, sl_error *err) {
    sl_key_bits *b = &f->bits;
    int rc = sl_trained_check(f->tensors, path, "scripts/train/train_bits.py", c, weights, err);
    if (!rc) rc = sl_trained_int(f->tensors, path, "bits", 32, SL_KEY_BITS_MOST, &b->n_bits, err);
    if (rc) return rc;
    if (b->n_bits % 32)
        return sl_fail(err, SL_ERR_FORMAT, "%s: metadata bits is %d, expected a multiple of 32", path, b->n_bits);
    const sl_trained_part parts[] = {
        {"wq", "BF16", {b->n_bits, c->head_dim}, 1, (const void **)&b->wq, NULL},
        {"wk", "BF16", {b->n_bits, c->head_dim}, 1, (const void **)&b->wk, NULL},
        {"bq", "F32", {b->n_bits}, 1, (const void **)&b->bq, NULL},
        {"bk", "F32", {b->n_bits}, 1, (const void **)&b->bk, NULL},
    };
    return sl_trained_bind(f->tensors, path, "bit", c, parts, sizeof parts / sizeof *parts, err);
}

int sl_bit_file_open(const char *path, const sl_config *c, const sl_tensors *weights, sl_bit_file **out, sl_error *err) {
    sl_bit_file *f = calloc(1, sizeof *f);
    int rc = f ? sl_tensors_open_file(path, &f->tensors, err) : sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path);
    if (!rc) rc = read_bits(f, path, c, weights, err);
    if (rc) {
        sl_bit_file_close(f);
        return rc;
    }
    *out = f;
    return 0;
}

void sl_bit_file_close(sl_bit_file *f) {
    if (!f) return;
    sl_tensors_close(f->tensors);
    free(f);
}

const sl_key_bits *sl_bit_file_get(const sl_bit_file *f) {
    return &f->bits;
}
const sl_tensors *sl_bit_file_tensors(const sl_bit_file *f) {
    return f->tensors;
}
