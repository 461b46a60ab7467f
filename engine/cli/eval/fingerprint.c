// engine/cli/eval/fingerprint.c - see fingerprint.h.
#include "engine/cli/eval/fingerprint.h"
#include "engine/base/hash.h"
#include "engine/cli/watch.h"
#include "models/config.h"
#include "models/source.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

// Hashes the names and contents of the files that exist, and a text.
static int hash_files(const sl_documents *d, const char *const *names, const char *text_after, char out[SL_HASH_TEXT],
                      sl_error *err) {
    uint64_t hash = SL_FNV1A_START;
    int rc = 0;
    for (; !rc && *names; names++) {
        sl_text text = {0};
        if (!sl_documents_have(d, *names)) continue;
        rc = sl_documents_text(d, *names, SIZE_MAX, &text, err);
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
static int describe_rope(const sl_documents *d, const sl_rope_options *rope, char *buf, size_t size, sl_error *err) {
    sl_config config;
    *buf = 0;
    if (!rope) return 0;
    int rc = sl_config_load(d, &config, err);
    if (!rc) rc = sl_config_change_rope(&config, rope, err);
    if (!rc && config.is_rope_changed) sl_config_describe_rope(&config, buf, size);
    return rc;
}

static int hash_weights(const sl_source *source, char out[SL_HASH_TEXT], sl_error *err) {
    sl_tensors *tensors;
    int rc = sl_source_tensors(source, &tensors, err);
    if (rc) return rc;
    rc = cli_watch(tensors, err);
    if (!rc) sl_hash_text(sl_tensors_hash(tensors, SL_FNV1A_START), out);
    sl_tensors_close(tensors);
    return rc;
}

int cli_fingerprint_read(const char *model, int is_dummy, const sl_rope_options *rope, cli_fingerprint *out, sl_error *err) {
    static const char *const config[] = {"config.json", "generation_config.json", NULL};
    static const char *const tokenizer[] = {"tokenizer.json",      "tokenizer.model",    "tokenizer_config.json",
                                            "chat_template.jinja", "chat_template.json", NULL};
    char changed[256];
    sl_source *source;
    int rc = sl_source_open(model, &source, err);
    if (rc) return rc;
    const sl_documents *d = sl_source_documents(source);
    rc = describe_rope(d, rope, changed, sizeof changed, err);
    if (!rc) rc = hash_files(d, config, changed, out->config, err);
    if (!rc) rc = hash_files(d, tokenizer, "", out->tokenizer, err);
    snprintf(out->weights, sizeof out->weights, "dummy");
    if (!rc && !is_dummy) rc = hash_weights(source, out->weights, err);
    sl_source_close(source);
    return rc;
}
