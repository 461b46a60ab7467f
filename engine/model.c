// engine/model.c - sl_model: the config, weights and tokenizer of a folder, loaded once and then constant.
#include "base/hash.h"
#include "base/log.h"
#include "engine/engine_internal.h"
#include "models/bit_file.h"
#include "models/bucket_file.h"

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

static int parse_activations(const char *text, sl_activations *out, sl_error *err) {
    static const char *const names[] = {[SL_ACT_FLOAT] = "float",
                                        [SL_ACT_INT8] = "int8",
                                        [SL_ACT_INT16] = "int16",
                                        [SL_ACT_AUTO] = "auto",
                                        [SL_ACT_FP8] = "fp8"};
    *out = SL_ACT_AUTO;
    if (!text) return 0;
    for (int i = 0; i <= SL_ACT_FP8; i++)
        if (!strcmp(text, names[i])) return *out = (sl_activations)i, 0;
    return sl_fail(err, SL_ERR_ARG, "{activations} %.40s: expected auto, float, int16, int8 or fp8", text);
}

// Reads how the weights are quantised, and which format the caller asks for.
static int load_quant(const sl_documents *documents, const sl_model_options *o, sl_model *model, sl_error *err) {
    const sl_quantise_texts round = {o->weights, o->weights_head, o->weights_embedding};
    int rc = sl_quant_load(documents, &round, &model->quant, err);
    if (!rc) rc = parse_activations(o->activations, &model->quant.activations, err);
    if (!rc && model->is_dummy && model->quant.method)
        rc = sl_fail(err, SL_ERR_UNSUPPORTED, "%s: random weights cannot have the quantisation of this folder (%s)", model->dir,
                     model->quant.method);
    if (!rc && model->quant.has_kv_scales)
        sl_log_line(&o->log, "%s: the folder has scales of a KV cache of fp8; the option kv_cache_dtype fp8 uses them",
                    model->dir);
    if (!rc && model->quant.has_activations)
        sl_log_line(&o->log,
                    "%s: the folder asks for quantised activations; Sleigh uses those of fp8, in prefills on a GPU, unless the "
                    "option activations is float",
                    model->dir);
    return rc;
}

int sl_model_asks_integers(const sl_model *model) {
    return model->quant.activations == SL_ACT_INT8 || model->quant.activations == SL_ACT_INT16;
}

static int check_activations(const sl_model *model, sl_error *err) {
    if (model->quant.activations == SL_ACT_FP8 && !sl_model_weights_n_rounded_inputs(&model->weights))
        return sl_fail(err, SL_ERR_ARG, "{activations} fp8: expected weights of fp8 ({weights} fp8), and %s has none",
                       model->dir);
    if (!sl_model_asks_integers(model) || sl_model_weights_activations(&model->weights) != SL_ACT_FLOAT) return 0;
    return sl_fail(err, SL_ERR_ARG, "{activations}: expected weights of integers or of 4 bits ({weights}), and %s has none",
                   model->dir);
}

// Keeps the scales of the KV heads of this rank of a tensor-parallel run.
static void take_kv_scales(sl_model *model) {
    const sl_config *c = &model->config;
    size_t n = (size_t)model->part.n_kv_heads, all = (size_t)c->n_kv_heads, first = (size_t)c->shard.rank * n;
    if (!model->kv_scales.k || n == all) return;
    for (size_t i = 0; i < (size_t)c->n_layers; i++) {
        memmove(model->kv_scales.k + i * n, model->kv_scales.k + i * all + first, n * sizeof(float));
        memmove(model->kv_scales.v + i * n, model->kv_scales.v + i * all + first, n * sizeof(float));
    }
}

static int check_shard(const sl_shard *s, sl_error *err) {
    if (s->n == 0 && s->rank == 0) return 0;
    if ((s->n == 1 || s->n == 2 || s->n == 4 || s->n == 8) && s->rank >= 0 && s->rank < s->n) return 0;
    return sl_fail(err, SL_ERR_ARG, "{tensor_parallel} %d: expected 1, 2, 4 or 8", s->n);
}

static int load(const char *dir, const sl_model_options *o, const sl_shard *shard, sl_model *model, sl_error *err) {
    model->dir = copy_dir(dir);
    if (!model->dir) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", dir);
    model->name = strrchr(model->dir, '/') && model->dir[1] ? strrchr(model->dir, '/') + 1 : model->dir;
    model->is_dummy = (o->flags & SL_MODEL_DUMMY) != 0;
    int rc = sl_cancel_poll(&o->cancel, err);
    if (!rc) rc = sl_source_open(model->dir, &model->source, err);
    const sl_documents *documents = rc ? NULL : sl_source_documents(model->source);
    if (!rc) rc = sl_config_load(documents, &model->config, err);
    if (!rc) rc = sl_config_change_rope(&model->config, &o->rope, err);
    if (!rc) rc = check_shard(shard, err);
    model->config.shard = *shard;
    if (!rc) rc = sl_config_of_shard(&model->config, &model->part, err); // before the weights are read
    if (!rc) rc = load_quant(documents, o, model, err);
    if (!rc && model->is_dummy)
        rc = sl_model_weights_declare(&model->config, &model->quant, &model->tensors, &model->weights, err);
    else if (!rc) {
        int rounds = !sl_quantise_is_plain(&model->quant.round); // rounding needs unpacked numbers
        rc = sl_source_tensors(model->source, !rounds, &model->tensors, err);
        if (!rc) rc = sl_model_settle_tie(&model->config, model->tensors, &o->log, err);
        if (!rc) rc = sl_model_weights_bind(&model->config, model->tensors, &model->quant, &model->weights, err);
        if (!rc) rc = sl_model_weights_check_unbound(&model->weights, model->tensors, model->quant.has_kv_scales, &o->log, err);
        if (!rc && model->quant.has_kv_scales) rc = sl_kv_scales_load(&model->config, model->tensors, &model->kv_scales, err);
    }
    if (!rc) {
        take_kv_scales(model);
        model->weights.config = &model->part;
    }
    if (!rc) rc = check_activations(model, err);
    if (rc || (o->flags & SL_MODEL_NO_TOKENIZER) || (model->is_dummy && !has_tokenizer(documents))) return rc;
    rc = sl_cancel_poll(&o->cancel, err);
    if (!rc) rc = load_tokenizer(documents, o, model, err);
    return rc ? rc : load_template(o->chat_template, model, err);
}

int sl_model_load(const char *dir, const sl_model_options *options, sl_model **out, sl_error *err) {
    return sl_model_load_part(dir, options, &(sl_shard){0}, NULL, out, err);
}

int sl_model_load_part(const char *dir, const sl_model_options *options, const sl_shard *shard, sl_comm *comm, sl_model **out,
                       sl_error *err) {
    const sl_model_options unset = {0};
    sl_model *model = calloc(1, sizeof *model);
    if (!model) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", dir);
    atomic_init(&model->n_users, 1);
    const sl_model_options *o = options ? options : &unset;
    SL_CHECK(!comm || (comm->n == shard->n && comm->rank == shard->rank));
    model->comm = comm;
    int rc = load(dir, o, shard, model, err);
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
    sl_quant_free(&model->quant);
    sl_kv_scales_free(&model->kv_scales);
    sl_tensors_close(model->tensors);
    sl_source_close(model->source);
    free(model->dir);
    free(model);
}

int sl_model_check(const sl_model *model, sl_error *err) {
    int rc = 0;
    for (int i = 0; !rc && i < sl_tensors_n_files(model->tensors); i++)
        rc = sl_tensor_file_check(sl_tensors_file(model->tensors, i), err);
    return rc;
}

// ---- the bucket file and the bit file ----

// Writes the path of a file in the model's folder. kind, script: for messages.
static int find_trained(const sl_model *model, const char *name, const char *kind, const char *script, char path[4200],
                        sl_error *err) {
    snprintf(path, 4200, "%.4000s/%s", sl_source_folder(model->source), name);
    if (model->is_dummy) return sl_fail(err, SL_ERR_ARG, "%s: a %s file belongs to weights, and these are random", path, kind);
    if (!access(path, R_OK)) return 0;
    return sl_fail(err, SL_ERR_IO, "%s: the model has no %s file; scripts/train/%s makes it", path, kind, script);
}

int sl_model_open_buckets(const sl_model *model, sl_bucket_file **out, sl_error *err) {
    char path[4200];
    int rc = find_trained(model, SL_BUCKET_FILE, "bucket", "train_saap.py", path, err);
    return rc ? rc : sl_bucket_file_open(path, &model->config, model->tensors, out, err);
}

int sl_model_open_bits(const sl_model *model, sl_bit_file **out, sl_error *err) {
    char path[4200];
    int rc = find_trained(model, SL_BIT_FILE, "bit", "train_bits.py", path, err);
    return rc ? rc : sl_bit_file_open(path, &model->config, model->tensors, out, err);
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
const sl_model_weights *sl_model_weight_list(const sl_model *model) {
    return &model->weights;
}
uint64_t sl_model_weights_hash(const sl_model *model) {
    uint64_t hash = sl_tensors_hash(model->tensors, SL_FNV1A_START);
    return sl_quantise_hash(&model->quant.round, hash);
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
