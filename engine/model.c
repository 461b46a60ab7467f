// engine/model.c - sl_model: what a folder holds, loaded once and never changed.
#include "engine/internal.h"

#include <stdlib.h>

static int load(const char *dir, unsigned flags, sl_model *model, sl_error *err) {
    int rc = sl_config_load(dir, &model->config, err);
    if (!rc) rc = sl_tensors_open(dir, &model->tensors, err);
    if (!rc) rc = sl_llama_bind(model->tensors, &model->config, &model->llama, err);
    if (rc || (flags & SL_MODEL_NO_TOKENIZER)) return rc;
    rc = sl_tokenizer_load(dir, &model->tokenizer, err);
    if (rc) return rc;
    int n_vocab = sl_tokenizer_n_vocab(model->tokenizer);
    if (n_vocab > model->config.n_vocab)
        return sl_fail(err, SL_ERR_FORMAT, "%s: the tokenizer has ids up to %d, config.json's vocab_size is %d", dir,
                       n_vocab - 1, model->config.n_vocab);
    return 0;
}

int sl_model_load(const char *dir, unsigned flags, sl_model **out, sl_error *err) {
    sl_model *model = calloc(1, sizeof *model);
    if (!model) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", dir);
    int rc = load(dir, flags, model, err);
    if (rc) {
        sl_model_free(model);
        return rc;
    }
    *out = model;
    return 0;
}

void sl_model_free(sl_model *model) {
    if (!model) return;
    sl_tokenizer_free(model->tokenizer);
    sl_llama_free(&model->llama);
    sl_tensors_close(model->tensors);
    free(model);
}

const sl_config *sl_model_config(const sl_model *model) { return &model->config; }
const sl_tokenizer *sl_model_tokenizer(const sl_model *model) { return model->tokenizer; }
const sl_tensors *sl_model_tensors(const sl_model *model) { return model->tensors; }
size_t sl_model_decode_bytes(const sl_model *model) { return sl_llama_decode_bytes(&model->llama, &model->config); }

int sl_model_is_eos(const sl_model *model, int32_t id) {
    for (int i = 0; i < model->config.n_eos; i++)
        if (model->config.eos[i] == id) return 1;
    return 0;
}
