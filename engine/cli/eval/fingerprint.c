// engine/cli/eval/fingerprint.c - see fingerprint.h.
#include "engine/cli/eval/fingerprint.h"
#include "engine/base/hash.h"
#include "engine/cli/io.h"
#include "engine/cli/watch.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

// Hashes the names and contents of the files that exist.
static int hash_files(const char *dir, const char *const *names, char out[SL_HASH_TEXT], sl_error *err) {
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
    sl_hash_text(hash, out);
    return rc;
}

static int hash_weights(const char *dir, char out[SL_HASH_TEXT], sl_error *err) {
    sl_tensors *tensors;
    int rc = sl_tensors_open(dir, &tensors, err);
    if (rc) return rc;
    rc = cli_watch(tensors, err);
    if (!rc) sl_hash_text(sl_tensors_hash(tensors, SL_FNV1A_START), out);
    sl_tensors_close(tensors);
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
