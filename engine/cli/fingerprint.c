// engine/cli/fingerprint.c - see fingerprint.h.
#include "engine/cli/fingerprint.h"
#include "engine/cli/cli.h"
#include "engine/cli/watch.h"

#include <stdint.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 4096, BLOCKS = 8 };

static void add(uint64_t *hash, const void *data, size_t n) { // FNV-1a
    const unsigned char *p = data;
    for (size_t i = 0; i < n; i++) *hash = (*hash ^ p[i]) * 1099511628211u;
}

static void write_out(uint64_t hash, char out[24]) {
    snprintf(out, 24, "fnv1a:%016llx", (unsigned long long)hash);
}

static const uint64_t basis = 14695981039346656037u;

// Files that are not there count as such.
static int hash_files(const char *dir, const char *const *names, char out[24], sl_error *err) {
    uint64_t hash = basis;
    int rc = 0;
    for (; !rc && *names; names++) {
        char path[4200];
        sl_text text = {0};
        snprintf(path, sizeof path, "%.4000s/%s", dir, *names);
        if (access(path, F_OK)) continue;
        rc = cli_read_file(path, &text, err);
        uint64_t n = text.n;
        add(&hash, *names, strlen(*names) + 1);
        add(&hash, &n, sizeof n);
        add(&hash, text.data, text.n);
        sl_text_free(&text);
    }
    write_out(hash, out);
    return rc;
}

static void hash_tensor(const sl_tensor *t, uint64_t *hash) {
    uint64_t n_dims = (uint64_t)t->n_dims;
    add(hash, t->name, strlen(t->name) + 1);
    add(hash, t->dtype_name, strlen(t->dtype_name) + 1);
    add(hash, &n_dims, sizeof n_dims);
    add(hash, t->dims, (size_t)t->n_dims * sizeof *t->dims);
    if (t->n_bytes <= BLOCKS * BLOCK) {
        add(hash, t->data, t->n_bytes);
        return;
    }
    size_t step = (t->n_bytes - BLOCK) / (BLOCKS - 1); // the first block begins the tensor, the last one ends it
    for (int i = 0; i < BLOCKS; i++) add(hash, (const char *)t->data + (i + 1 < BLOCKS ? i * step : t->n_bytes - BLOCK), BLOCK);
}

static int hash_weights(const char *dir, char out[24], sl_error *err) {
    sl_tensors *tensors;
    uint64_t hash = basis;
    int rc = sl_tensors_open(dir, &tensors, err);
    if (rc) return rc;
    rc = cli_watch(tensors, err);
    for (int i = 0; !rc && i < sl_tensors_count(tensors); i++) hash_tensor(sl_tensors_at(tensors, i), &hash);
    sl_tensors_close(tensors);
    write_out(hash, out);
    return rc;
}

int cli_fingerprint_read(const char *dir, int is_dummy, cli_fingerprint *out, sl_error *err) {
    static const char *const config[] = {"config.json", "generation_config.json", NULL};
    static const char *const tokenizer[] = {"tokenizer.json",      "tokenizer.model",    "tokenizer_config.json",
                                            "chat_template.jinja", "chat_template.json", NULL};
    int rc = hash_files(dir, config, out->config, err);
    if (!rc) rc = hash_files(dir, tokenizer, out->tokenizer, err);
    snprintf(out->weights, sizeof out->weights, "dummy");
    return rc || is_dummy ? rc : hash_weights(dir, out->weights, err);
}
