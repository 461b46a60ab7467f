// engine/cli/eval/fingerprint.c - see fingerprint.h.
#include "engine/cli/eval/fingerprint.h"
#include "engine/base/hash.h"
#include "engine/cli/io.h"
#include "engine/cli/watch.h"
#include "models/config.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 4096, BLOCKS = 8 };

// Hashes the names and contents of the files that exist, and a text.
static int hash_files(const char *dir, const char *const *names, const char *text_after, char out[SL_HASH_TEXT],
                      sl_error *err) {
    uint64_t hash = SL_FNV1A_START;
    int rc = 0;
    for (; !rc && *names; names++) {
        char path[4200];
        sl_text text = {0};
        snprintf(path, sizeof path, "%.4000s/%s", dir, *names);
        if (access(path, F_OK)) continue;
        rc = cli_read_file(path, &text, err);
        uint64_t n = text.n;
        hash = sl_fnv1a(hash, *names, strlen(*names) + 1);
        hash = sl_fnv1a(hash, &n, sizeof n);
        hash = sl_fnv1a(hash, text.data, text.n);
        sl_text_free(&text);
    }
    sl_hash_text(sl_fnv1a(hash, text_after, strlen(text_after)), out);
    return rc;
}

// Describes RoPE if the options change it. Otherwise the text is empty, and the hash is that of the files.
static int describe_rope(const char *dir, const sl_rope_options *rope, char *buf, size_t size, sl_error *err) {
    sl_config config;
    *buf = 0;
    if (!rope) return 0;
    int rc = sl_config_load(dir, &config, err);
    if (!rc) rc = sl_config_change_rope(&config, rope, err);
    if (!rc && config.is_rope_changed) sl_config_describe_rope(&config, buf, size);
    return rc;
}

static void hash_tensor(const sl_tensor *t, uint64_t *hash) {
    uint64_t n_dims = (uint64_t)t->n_dims;
    *hash = sl_fnv1a(*hash, t->name, strlen(t->name) + 1);
    *hash = sl_fnv1a(*hash, t->dtype_name, strlen(t->dtype_name) + 1);
    *hash = sl_fnv1a(*hash, &n_dims, sizeof n_dims);
    *hash = sl_fnv1a(*hash, t->dims, (size_t)t->n_dims * sizeof *t->dims);
    if (t->n_bytes <= BLOCKS * BLOCK) {
        *hash = sl_fnv1a(*hash, t->data, t->n_bytes);
        return;
    }
    size_t step = (t->n_bytes - BLOCK) / (BLOCKS - 1); // the first block is at the start of the tensor, the last one at its end
    for (int i = 0; i < BLOCKS; i++)
        *hash = sl_fnv1a(*hash, (const char *)t->data + (i + 1 < BLOCKS ? i * step : t->n_bytes - BLOCK), BLOCK);
}

static int hash_weights(const char *dir, char out[SL_HASH_TEXT], sl_error *err) {
    sl_tensors *tensors;
    uint64_t hash = SL_FNV1A_START;
    int rc = sl_tensors_open(dir, &tensors, err);
    if (rc) return rc;
    rc = cli_watch(tensors, err);
    for (int i = 0; !rc && i < sl_tensors_count(tensors); i++) hash_tensor(sl_tensors_at(tensors, i), &hash);
    sl_tensors_close(tensors);
    sl_hash_text(hash, out);
    return rc;
}

int cli_fingerprint_read(const char *dir, int is_dummy, const sl_rope_options *rope, cli_fingerprint *out, sl_error *err) {
    static const char *const config[] = {"config.json", "generation_config.json", NULL};
    static const char *const tokenizer[] = {"tokenizer.json",      "tokenizer.model",    "tokenizer_config.json",
                                            "chat_template.jinja", "chat_template.json", NULL};
    char changed[256];
    int rc = describe_rope(dir, rope, changed, sizeof changed, err);
    if (!rc) rc = hash_files(dir, config, changed, out->config, err);
    if (!rc) rc = hash_files(dir, tokenizer, "", out->tokenizer, err);
    snprintf(out->weights, sizeof out->weights, "dummy");
    return rc || is_dummy ? rc : hash_weights(dir, out->weights, err);
}
