// cli/eval/fingerprint.c - see fingerprint.h.
#include "cli/eval/fingerprint.h"
#include "base/hash.h"
#include "cli/watch.h"
#include "models/config.h"
#include "models/source.h"
#include "models/weights.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

int cli_put_formats(json_t *s, const cli_run_options *o, sl_kv_formats cache) {
    const cli_model_options *model = &o->model;
    int bad = 0;
    if (model->weights) bad |= json_object_set_new(s, "weights-format", json_string(model->weights));
    if (model->weights_head) bad |= json_object_set_new(s, "weights-head", json_string(model->weights_head));
    if (model->weights_embedding) bad |= json_object_set_new(s, "weights-embedding", json_string(model->weights_embedding));
    if (strcmp(model->activations, "auto")) bad |= json_object_set_new(s, "activations", json_string(model->activations));
    if (cache.k != SL_BF16 || cache.v != SL_BF16)
        bad |= json_object_set_new(s, "k-format", json_string(sl_formats[cache.k].name)) |
               json_object_set_new(s, "v-format", json_string(sl_formats[cache.v].name));
    return bad;
}

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

// What Sleigh makes of the config: another version of Sleigh, other options or other tensors may read the same files in another
// way.
static void describe_reading(const sl_config *config, char *buf, size_t size) {
    sl_config_describe_rope(config, buf, size);
    size_t n = strlen(buf);
    snprintf(buf + n, size - n, "; window %d; head %s", config->window, config->tied ? "tied" : "own");
}

// Also settles whether the head is tied.
static int hash_weights(const sl_source *source, sl_config *config, char out[SL_HASH_TEXT], sl_error *err) {
    sl_tensors *tensors;
    int rc = sl_source_tensors(source, 1, &tensors, err);
    if (rc) return rc;
    rc = cli_watch(tensors, err);
    if (!rc) rc = sl_model_settle_tie(config, tensors, NULL, err);
    if (!rc) sl_hash_text(sl_tensors_hash(tensors, SL_FNV1A_START), out);
    sl_tensors_close(tensors);
    return rc;
}

int cli_fingerprint_read(const char *model, int is_dummy, const sl_rope_options *rope, cli_fingerprint *out, sl_error *err) {
    static const char *const config[] = {"config.json", "generation_config.json", NULL};
    static const char *const tokenizer[] = {
        "tokenizer.json",     "tokenizer.model",         "tokenizer.model.v1",  "tokenizer.model.v2", "tokenizer.model.v3",
        "tokenizer.model.v7", "tokenizer.model.v7m1",    "tokenizer.model.v11", "tekken.json",        "tokenizer_config.json",
        "added_tokens.json",  "special_tokens_map.json", "chat_template.jinja", "chat_template.json", NULL};
    char reading[320];
    sl_config c;
    sl_source *source;
    int rc = sl_source_open(model, &source, err);
    if (rc) return rc;
    const sl_documents *d = sl_source_documents(source);
    rc = sl_config_load(d, &c, err);
    if (!rc && rope) rc = sl_config_change_rope(&c, rope, err);
    snprintf(out->weights, sizeof out->weights, "dummy");
    if (!rc && !is_dummy) rc = hash_weights(source, &c, out->weights, err);
    if (!rc) {
        describe_reading(&c, reading, sizeof reading);
        rc = hash_files(d, config, reading, out->config, err);
    }
    if (!rc) rc = hash_files(d, tokenizer, "", out->tokenizer, err);
    sl_source_close(source);
    return rc;
}
