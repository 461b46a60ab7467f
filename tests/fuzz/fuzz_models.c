// tests/fuzz/fuzz_models.c - a model folder: the header of a safetensors file, whole files and shards, config.json; the header
// of a bucket file; a GGUF file.
#include "models/safetensors_header.h"
#include "engine/engine.h"
#include "models/bucket_file.h"
#include "models/source.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char config_json[] =
    "{\"model_type\":\"llama\",\"vocab_size\":4,\"hidden_size\":8,\"intermediate_size\":8,\"num_hidden_layers\":1,"
    "\"num_attention_heads\":1,\"head_dim\":16,\"max_position_embeddings\":64,\"tie_word_embeddings\":true}";

// Reads every byte of every tensor: a byte outside the mapping faults.
static unsigned touch(const sl_tensors *t) {
    unsigned sum = 0;
    for (int i = 0; i < sl_tensors_count(t); i++) {
        const sl_tensor *x = sl_tensors_at(t, i);
        const unsigned char *data = x->packed.is_kept ? x->packed.data : x->data;
        size_t n = x->packed.is_kept ? x->packed.n_bytes : x->n_bytes;
        FUZZ_CHECK(x->n_dims >= 0 && x->n_dims <= SL_MAX_DIMS && sl_tensors_find(t, x->name) == x, x->name);
        for (size_t j = 0; j < n; j++) sum += data[j];
    }
    return sum;
}

// Writes the file of this header, with the bytes that its last tensor needs, if they are few. Returns the bytes; -1: too many.
static int64_t write_file(const char *name, const char *header, size_t n, const sl_header *h) {
    enum { MOST = 4096 };
    int64_t size = 0;
    for (int i = 0; i < h->n; i++)
        if (h->entries[i].end > size) size = h->entries[i].end;
    if (size > MOST) return -1;
    char *file = calloc(1, 8 + n + (size_t)size);
    FUZZ_CHECK(file != NULL, "memory");
    for (int i = 0; i < 8; i++) file[i] = (char)((uint64_t)n >> 8 * i);
    memcpy(file + 8, header, n);
    fuzz_write(name, file, 8 + n + (size_t)size);
    free(file);
    return size;
}

static void open_file(const char *header, size_t n, const sl_header *h) {
    int64_t size = write_file("model.safetensors", header, n, h);
    if (size < 0) return;
    sl_tensors *t;
    sl_error err = {0};
    if (fuzz_ok(sl_tensors_open(fuzz_dir(), &t, &err), &err)) {
        FUZZ_CHECK(sl_tensors_count(t) == h->n && sl_tensors_bytes(t) == (size_t)size, "tensors");
        touch(t);
        sl_tensors_close(t);
    }
    fuzz_remove("model.safetensors");
}

void fuzz_safetensors(const char *data, size_t n) {
    sl_header h;
    sl_error err = {0};
    char *text = malloc(n + 1); // of exactly this size, so that a read past the end faults
    FUZZ_CHECK(text != NULL, "memory");
    text = realloc(text, n ? n : 1);
    memcpy(text, data, n);
    if (fuzz_ok(sl_header_parse("model.safetensors", text, n, &h, &err), &err)) {
        for (int i = 0; i < h.n; i++) {
            const sl_header_entry *e = &h.entries[i];
            FUZZ_CHECK(e->name && e->n_dims >= 0 && e->n_dims <= SL_MAX_DIMS && e->begin >= 0 && e->end >= 0, e->name);
        }
        open_file(text, n, &h);
        sl_header_free(&h);
    }
    free(text);
}

// The input is the header of a bucket file for a model of one layer and one KV head without weights.
void fuzz_buckets(const char *data, size_t n) {
    const sl_config config = {
        .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 16, .rope_theta = 10000, .rope_factor = 1};
    sl_header h;
    sl_tensors *weights;
    sl_bucket_file *file;
    sl_error err = {0};
    if (!fuzz_ok(sl_header_parse(SL_BUCKET_FILE, data, n, &h, &err), &err)) return;
    int64_t size = write_file(SL_BUCKET_FILE, data, n, &h);
    sl_header_free(&h);
    if (size < 0) return;
    FUZZ_CHECK(!sl_tensors_declare(NULL, 0, &weights, &err), err.message);
    if (fuzz_ok(sl_bucket_file_open(fuzz_path(SL_BUCKET_FILE), &config, weights, &file, &err), &err)) {
        const sl_buckets *b = sl_bucket_file_get(file);
        touch(sl_bucket_file_tensors(file));
        FUZZ_CHECK(b->n_buckets >= 1 && b->n_buckets <= SL_BUCKETS_MOST && b->width % 16 == 0 && b->n_dense <= 1, "a size");
        FUZZ_CHECK(b->centroids && !b->width == !b->w1 && !b->w1 == !b->b1 && !b->w1 == !b->w2 && !b->w1 == !b->b2, "a part");
        sl_bucket_file_close(file);
    }
    sl_tensors_close(weights);
    fuzz_remove(SL_BUCKET_FILE);
}

void fuzz_model(const char *data, size_t n) {
    static const char *const names[] = {"model.safetensors",
                                        "a.safetensors",
                                        "b.safetensors",
                                        "model.safetensors.index.json",
                                        "config.json",
                                        "generation_config.json",
                                        NULL};
    sl_model *model;
    sl_error err = {0};
    fuzz_files(data, n, names[0], names);
    if (access(fuzz_path("config.json"), F_OK)) fuzz_write("config.json", config_json, sizeof config_json - 1);
    sl_tensors *t;
    if (fuzz_ok(sl_tensors_open(fuzz_dir(), &t, &err), &err)) {
        touch(t);
        sl_tensors_close(t);
    }
    err = (sl_error){0};
    if (fuzz_ok(sl_model_load(fuzz_dir(), &(sl_model_options){.flags = SL_MODEL_NO_TOKENIZER}, &model, &err), &err)) {
        touch(sl_model_tensors(model));
        FUZZ_CHECK(sl_model_decode_bytes(model) > 0, "decode bytes");
        sl_model_free(model);
    }
    fuzz_remove_files(names);
}

void fuzz_config(const char *data, size_t n) {
    static const char *const names[] = {"config.json", "generation_config.json", NULL};
    sl_config c;
    sl_error err = {0};
    float inv_freq[128];
    fuzz_files(data, n, names[0], names);
    if (fuzz_ok(sl_config_load(&SL_FOLDER(fuzz_dir()), &c, &err), &err)) {
        FUZZ_CHECK(c.n_vocab > 0 && c.hidden > 0 && c.n_ffn > 0 && c.n_layers > 0 && c.n_ctx > 0, "a size");
        FUZZ_CHECK(c.n_heads > 0 && c.n_kv_heads > 0 && c.n_heads % c.n_kv_heads == 0, "heads");
        FUZZ_CHECK(c.head_dim > 0 && c.head_dim <= 256 && c.head_dim % 16 == 0, "head_dim");
        FUZZ_CHECK(c.norm_eps >= 0 && c.norm_eps <= 1 && c.bos >= -1 && c.bos < c.n_vocab, "norm_eps or BOS");
        for (int i = 0; i < c.n_eos; i++) FUZZ_CHECK(c.eos[i] >= 0 && c.eos[i] < c.n_vocab, "EOS");
        sl_config_rope(&c, inv_freq);
        for (int i = 0; i < c.head_dim / 2; i++) FUZZ_CHECK(isfinite(inv_freq[i]) && inv_freq[i] >= 0, "a frequency");
    }
    fuzz_remove_files(names);
}

// The input is a GGUF file. Its documents are read as a model's load reads them, and small weights are unpacked.
void fuzz_gguf(const char *data, size_t n) {
    enum { MOST = 1 << 20 }; // bytes of unpacked weights
    const sl_model_options options = {.flags = SL_MODEL_PACKED};
    sl_source *source;
    sl_model *model;
    sl_error err = {0};
    fuzz_write("x.gguf", data, n);
    if (fuzz_ok(sl_source_open(fuzz_path("x.gguf"), &source, &err), &err)) {
        const sl_documents *d = sl_source_documents(source);
        sl_text text = {0};
        FUZZ_CHECK(sl_documents_have(d, "config.json") && sl_documents_have(d, "tokenizer_config.json"), "documents");
        FUZZ_CHECK(!sl_documents_text(d, "config.json", SIZE_MAX, &text, &err) && text.n > 2, err.message);
        sl_text_free(&text);
        sl_source_close(source);
        err = (sl_error){0};
        if (fuzz_ok(sl_model_load(fuzz_path("x.gguf"), &options, &model, &err), &err)) {
            const sl_tensors *t = sl_model_tensors(model);
            FUZZ_CHECK(sl_tensors_hash(t, 1) != 0, "hash");
            err = (sl_error){0};
            if (sl_tensors_bytes(t) < MOST && fuzz_ok(sl_model_materialise(model, 1, NULL, NULL, &err), &err)) touch(t);
            sl_model_free(model);
        }
    }
    fuzz_remove("x.gguf");
}
