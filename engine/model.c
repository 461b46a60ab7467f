// engine/model.c - sl_model: the config, weights and tokenizer of a folder, loaded once and then constant.
#include "backend/dummy_weights.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "engine/engine_internal.h"
#include "models/bucket_file.h"
#include "models/gguf_tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int has_tokenizer(const sl_documents *d) {
    return sl_documents_have(d, "tokenizer.json") || sl_documents_have(d, "tokenizer.model");
}

// Copies a path without slashes at its end. From malloc.
static char *copy_dir(const char *dir) {
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/') n--;
    return strndup(dir, n);
}

// Loads the tokenizer, whose EOS is an end token beside the config's. The tokenizer may have ids that the model lacks: only
// their use in a prompt is an error.
static int load_tokenizer(const sl_documents *documents, const sl_model_options *o, sl_model *model, sl_error *err) {
    sl_config *c = &model->config;
    int rc = sl_tokenizer_load(documents, &model->tokenizer, err);
    if (rc) return rc;
    int n_ids = sl_tokenizer_n_vocab(model->tokenizer), bos = sl_tokenizer_bos(model->tokenizer);
    if (n_ids > c->n_vocab)
        sl_log_line(&o->log, "%s: the tokenizer has ids up to %d, and vocab_size is %d; a prompt must not hold the ids above",
                    model->dir, n_ids - 1, c->n_vocab);
    if (c->bos >= 0 && bos >= 0 && c->bos != bos)
        sl_log_line(&o->log, "%s: bos_token_id of config.json is %d, but the tokenizer's BOS is %d, which Sleigh uses",
                    model->dir, c->bos, bos);
    sl_config_add_eos(c, sl_tokenizer_eos(model->tokenizer));
    return 0;
}

// Loads the chat template, whose end of a turn is an end token. A model may have a template that Sleigh cannot use: only a chat
// needs it.
static int load_template(const char *name, sl_model *model, sl_error *err) {
    int rc = sl_chat_load(sl_source_documents(model->source), name, &model->chat, err);
    if (rc) return name || rc == SL_ERR_MEMORY ? rc : 0;
    sl_config_add_eos(&model->config, sl_chat_end_of_turn(model->chat, model->tokenizer));
    return 0;
}

static int load(const char *dir, const sl_model_options *o, sl_model *model, sl_error *err) {
    model->dir = copy_dir(dir);
    if (!model->dir) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", dir);
    model->name = strrchr(model->dir, '/') && model->dir[1] ? strrchr(model->dir, '/') + 1 : model->dir;
    model->is_dummy = (o->flags & SL_MODEL_DUMMY) != 0;
    int rc = sl_cancel_poll(&o->cancel, err);
    if (!rc) rc = sl_source_open(model->dir, &model->source, err);
    const sl_documents *documents = rc ? NULL : sl_source_documents(model->source);
    if (!rc) rc = sl_config_load(documents, &model->config, err);
    if (!rc) rc = sl_config_change_rope(&model->config, &o->rope, err);
    if (!rc && model->is_dummy)
        rc = sl_model_weights_declare(&model->config, &model->tensors, &model->weights, err);
    else if (!rc) {
        rc = sl_source_tensors(model->source, &model->tensors, err);
        if (!rc) rc = sl_model_settle_tie(&model->config, model->tensors, &o->log, err);
        if (!rc) rc = sl_model_weights_bind(&model->config, model->tensors, &model->weights, err);
        if (!rc) rc = sl_model_weights_check_unbound(&model->weights, model->tensors, &o->log, err);
    }
    if (rc || (o->flags & SL_MODEL_NO_TOKENIZER) || (model->is_dummy && !has_tokenizer(documents))) return rc;
    rc = sl_cancel_poll(&o->cancel, err);
    if (!rc) rc = load_tokenizer(documents, o, model, err);
    return rc ? rc : load_template(o->chat_template, model, err);
}

int sl_model_load(const char *dir, const sl_model_options *options, sl_model **out, sl_error *err) {
    const sl_model_options unset = {0};
    sl_model *model = calloc(1, sizeof *model);
    if (!model) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", dir);
    atomic_init(&model->n_users, 1);
    const sl_model_options *o = options ? options : &unset;
    int rc = load(dir, o, model, err);
    if (!rc && model->tokenizer && !model->config.n_eos)
        sl_log_line(&o->log,
                    "%s: no end token is known (eos_token_id, eos_token, chat template), so an answer ends only at its limit",
                    dir);
    if (!rc && !model->is_dummy && !(o->flags & SL_MODEL_PACKED))
        rc = sl_model_materialise(model, 0, &o->progress, &o->cancel, err);
    if (rc) {
        sl_model_free(model);
        return rc;
    }
    *out = model;
    return 0;
}

void sl_model_use(const sl_model *model) {
    atomic_fetch_add(&((sl_model *)model)->n_users, 1); // the count is no part of what the caller sees as constant
}

void sl_model_free(sl_model *model) {
    if (!model || atomic_fetch_sub(&model->n_users, 1) > 1) return;
    sl_tokenizer_free(model->tokenizer);
    sl_chat_template_free(model->chat);
    sl_model_weights_free(&model->weights);
    sl_tensors_close(model->tensors);
    sl_source_close(model->source);
    free(model->dir);
    free(model);
}

// ---- weights without data: dummy weights, and those that are packed in a GGUF file ----

int sl_model_is_dummy(const sl_model *model) {
    return model->is_dummy;
}

size_t sl_model_bytes_to_allocate(const sl_model *model) {
    size_t all = sl_tensors_bytes(model->tensors), allocated;
    sl_tensors_memory(model->tensors, &allocated);
    return all > allocated ? all - allocated : 0;
}

// The quantiles of the two deviations of a model's matrices (sl_dummy_deviation), which are made once, not once for a tensor.
typedef struct dummy_tables {
    double deviation[2]; // 0: not made
    bf16 *quantiles;     // [2][SL_DUMMY_QUANTILES]
} dummy_tables;

static const bf16 *quantiles_of(dummy_tables *t, double deviation) {
    int i = t->deviation[0] && t->deviation[0] != deviation;
    bf16 *quantiles = t->quantiles + i * SL_DUMMY_QUANTILES;
    if (t->deviation[i] != deviation) sl_dummy_quantiles(deviation, quantiles);
    t->deviation[i] = deviation;
    return quantiles;
}

// Makes a tensor in pieces, to report progress.
static void make_tensor(const sl_tensor *t, dummy_tables *tables, const sl_progress *progress, size_t *done, size_t total) {
    enum { PIECE = 1 << 23, MIB = 20 }; // elements: 16 MiB
    bf16 *data = (bf16 *)t->data;       // writable: sl_tensors_allocate
    size_t n = t->n_bytes / sizeof *data;
    uint64_t key = sl_dummy_key(t->name);
    const bf16 *quantiles = t->n_dims > 1 ? quantiles_of(tables, sl_dummy_deviation(t->name, (int)t->dims[1])) : NULL;
    for (size_t i = 0; i < n; i += PIECE) {
        size_t m = n - i < PIECE ? n - i : PIECE;
        if (quantiles)
            sl_dummy_fill(key, quantiles, i, m, data + i);
        else
            for (size_t j = 0; j < m; j++) data[i + j] = sl_dummy_vector(t->name);
        *done += m * sizeof *data;
        if (progress && progress->fn) progress->fn(progress->ctx, (int)(*done >> MIB), (int)(total >> MIB));
    }
}

static int make_dummy(sl_model *model, const sl_progress *progress, sl_error *err) {
    size_t done = 0, total = sl_tensors_bytes(model->tensors);
    dummy_tables tables = {.quantiles = malloc(2 * SL_DUMMY_QUANTILES * sizeof *tables.quantiles)};
    int rc = tables.quantiles ? sl_tensors_allocate(model->tensors, err)
                              : sl_fail(err, SL_ERR_MEMORY, "dummy weights: out of memory");
    for (int i = 0; !rc && i < sl_tensors_count(model->tensors); i++)
        make_tensor(sl_tensors_at(model->tensors, i), &tables, progress, &done, total);
    free(tables.quantiles);
    return rc;
}

int sl_model_materialise(sl_model *model, int n_threads, const sl_progress *progress, const sl_cancel *cancel, sl_error *err) {
    if (sl_model_weights_have_data(&model->weights)) return 0;
    size_t total = sl_tensors_bytes_to_allocate(model->tensors), room = sl_cpu_memory()->free_memory(sl_cpu_memory());
    if (total > room) // Linux would grant the memory and kill the process at its first use
        return sl_fail(err, SL_ERR_MEMORY, "%s of %zu MiB do not fit into memory: %zu MiB are free",
                       model->is_dummy ? "dummy weights" : "unpacked weights", total >> 20, room >> 20);
    sl_threads *threads;
    int rc = sl_threads_open(n_threads > 0 ? n_threads : sl_cpu_cores(), &threads, err);
    if (rc) return rc;
    sl_threads *outside = sl_threads_use(threads);
    rc = model->is_dummy ? make_dummy(model, progress, err) : sl_tensors_unpack(model->tensors, progress, cancel, err);
    sl_threads_use(outside);
    sl_threads_close(threads);
    sl_model_weights bound;
    if (!rc) rc = sl_model_weights_bind(&model->config, model->tensors, &bound, err);
    if (rc) return rc;
    sl_model_weights_free(&model->weights);
    model->weights = bound;
    return 0;
}

int sl_model_check(const sl_model *model, sl_error *err) {
    int rc = 0;
    for (int i = 0; !rc && i < sl_tensors_n_files(model->tensors); i++)
        rc = sl_tensor_file_check(sl_tensors_file(model->tensors, i), err);
    return rc;
}

// ---- the bucket file ----

int sl_model_open_buckets(const sl_model *model, sl_bucket_file **out, sl_error *err) {
    char path[4200];
    snprintf(path, sizeof path, "%.4000s/" SL_BUCKET_FILE, sl_source_folder(model->source));
    if (model->is_dummy) return sl_fail(err, SL_ERR_ARG, "%s: a bucket file belongs to weights, and these are random", path);
    if (access(path, R_OK))
        return sl_fail(err, SL_ERR_IO, "%s: the model has no bucket file; scripts/train/train_saap.py makes it", path);
    return sl_bucket_file_open(path, &model->config, model->tensors, out, err);
}

// ---- access ----

const char *sl_model_name(const sl_model *model) {
    return model->name;
}
const char *sl_model_type(const sl_model *model) {
    return model->config.model_type;
}
int sl_model_n_ctx(const sl_model *model) {
    return model->config.n_ctx;
}
int sl_model_n_vocab(const sl_model *model) {
    return model->config.n_vocab;
}
const sl_config *sl_model_config(const sl_model *model) {
    return &model->config;
}
const sl_tokenizer *sl_model_tokenizer(const sl_model *model) {
    return model->tokenizer;
}
const sl_tensors *sl_model_tensors(const sl_model *model) {
    return model->tensors;
}
size_t sl_model_decode_bytes(const sl_model *model) {
    return sl_model_weights_decode_bytes(&model->weights);
}

double sl_model_prefill_flops(const sl_model *model, int n_from, int n) {
    const sl_config *c = &model->config;
    double q_dim = (double)c->n_heads * c->head_dim, kv_dim = (double)c->n_kv_heads * c->head_dim;
    double kv = 2.0 * 2 * kv_dim * c->hidden;                                 // of a token and layer: K and V
    double rest = 2.0 * (2 * q_dim * c->hidden + 3.0 * c->n_ffn * c->hidden); // of a token and layer: the other linear layers
    double pairs = (double)n * n_from + 0.5 * n * (n + 1.0);                  // of query and key in attention
    double last = rest + 4 * q_dim * (n_from + n) + 2.0 * c->n_vocab * c->hidden; // of the last token: the last layer, lm_head
    return (double)n * c->n_layers * kv + (c->n_layers - 1) * (n * rest + 4 * q_dim * pairs) + last;
}

int sl_model_is_eos(const sl_model *model, int32_t id) {
    for (int i = 0; i < model->config.n_eos; i++)
        if (model->config.eos[i] == id) return 1;
    return 0;
}
