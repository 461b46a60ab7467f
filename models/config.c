// models/config.c - reads and checks config.json and generation_config.json. The architecture reads its own fields.
#include "models/config.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/number.h"
#include "models/arch.h"
#include "models/quant_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static int check_architecture(const sl_json_file *f, const char *want, sl_error *err) {
    const json_t *list = sl_json_get(f->root, "architectures");
    const char *first = json_string_value(json_array_get(list, 0));
    if (!list || (json_is_array(list) && !json_array_size(list))) return 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (name && !strcmp(name, want)) return 0;
    }
    return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: field architectures begins with \"%s\", expected a list with \"%s\"", f->path,
                   first ? first : "(no string)", want);
}

// Finds the architecture and calls its read_config.
static int read_arch(const sl_json_file *f, sl_config *c, sl_error *err) {
    const char *type;
    char known[256];
    int rc = sl_json_string(f, "model_type", &type, err);
    if (rc) return rc;
    c->arch = type ? sl_arch_find(type) : NULL;
    sl_arch_list(known, sizeof known);
    if (!c->arch)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: field model_type is \"%s\", supported are %s%s", f->path,
                       type ? type : "(missing)", known,
                       sl_json_get(f->root, "text_config") ? "; a model whose config is in text_config is not supported" : "");
    snprintf(c->model_type, sizeof c->model_type, "%s", type);
    rc = check_architecture(f, c->arch->architecture, err);
    return rc ? rc : c->arch->read_config(f, c, err);
}

int sl_config_add_eos(sl_config *c, int32_t id) {
    for (int i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id) return 1;
    if (id < 0 || id >= c->n_vocab || c->n_eos == SL_MAX_EOS) return 0;
    c->eos[c->n_eos++] = id;
    return 1;
}

static int add_eos(const sl_json_file *f, sl_config *c, const json_t *v, sl_error *err) {
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= c->n_vocab)
        return sl_fail(err, SL_ERR_FORMAT, "%s: field eos_token_id: expected ids from 0 to %d", f->path, c->n_vocab - 1);
    if (sl_config_add_eos(c, (int32_t)json_integer_value(v))) return 0;
    return sl_fail(err, SL_ERR_FORMAT, "%s: field eos_token_id: more than %d ids", f->path, SL_MAX_EOS);
}

static int read_eos(const sl_json_file *f, sl_config *c, sl_error *err) {
    const json_t *v = sl_json_get(f->root, "eos_token_id");
    if (!v) return 0;
    if (!json_is_array(v)) return add_eos(f, c, v, err);
    int rc = 0;
    for (size_t i = 0; !rc && i < json_array_size(v); i++) rc = add_eos(f, c, json_array_get(v, i), err);
    return rc;
}

static int read_generation(const sl_json_file *f, sl_config *c, sl_error *err) {
    const double none = NAN;
    const long long unset = -2;
    int rc = read_eos(f, c, err);
    if (!rc) rc = sl_json_float(f, "temperature", 0, 1e6, &none, &c->gen_temp, err);
    if (!rc) rc = sl_json_float(f, "top_p", 0, 1, &none, &c->gen_top_p, err);
    if (!rc) rc = sl_json_float(f, "min_p", 0, 1, &none, &c->gen_min_p, err);
    if (!rc) rc = sl_json_float(f, "repetition_penalty", 1e-6, 1e6, &none, &c->gen_repeat_penalty, err);
    if (!rc) rc = sl_json_int(f, "top_k", -1, 1 << 30, &unset, &c->gen_top_k, err);
    if (!rc) c->gen_top_k = c->gen_top_k == unset ? -1 : c->gen_top_k < 0 ? 0 : c->gen_top_k; // -1 in the file: off
    return rc ? rc : sl_json_bool(f, "do_sample", -1, &c->gen_do_sample, err);
}

static int read_config(const sl_json_file *f, sl_config *c, sl_error *err) {
    const long long none = -1;
    int rc = read_arch(f, c, err);
    if (!rc) rc = sl_json_int(f, "bos_token_id", 0, c->n_vocab - 1, &none, &c->bos, err);
    return rc ? rc : read_eos(f, c, err);
}

int sl_config_load(const sl_documents *documents, sl_config *config, sl_error *err) {
    *config = (sl_config){.gen_temp = NAN,
                          .gen_top_p = NAN,
                          .gen_min_p = NAN,
                          .gen_repeat_penalty = NAN,
                          .gen_top_k = -1,
                          .gen_do_sample = -1,
                          .rope_factor = 1,
                          .rope_attention = 1};
    char path[SL_DOCUMENT_PATH];
    json_t *root;
    int rc = sl_documents_json(documents, "config.json", 0, &root, err);
    if (rc) return rc;
    sl_documents_path(documents, "config.json", path);
    rc = read_config(&(sl_json_file){path, root}, config, err);
    json_decref(root);
    if (rc) return rc;
    rc = sl_documents_json(documents, "generation_config.json", 1, &root, err);
    if (root) {
        sl_documents_path(documents, "generation_config.json", path);
        rc = read_generation(&(sl_json_file){path, root}, config, err);
        json_decref(root);
    }
    sl_quant quant;
    if (!rc) rc = sl_quant_load(documents, NULL, &quant, err);
    if (!rc) sl_quant_free(&quant);
    return rc;
}

const char *sl_config_limit(const sl_config *c) {
    if (c->window && c->n_ctx == c->window) return "sliding_window";
    return c->n_ctx > c->n_trained ? "the largest position in fp32" : "max_position_embeddings";
}

// ---- the hash ----

uint64_t sl_config_hash(const sl_config *c) {
    char text[1024];
    int n = sl_print(text, sizeof text,
                     "model_type=%s\nvocab_size=%d\nhidden_size=%d\nintermediate_size=%d\nnum_hidden_layers=%d\n"
                     "num_attention_heads=%d\nnum_key_value_heads=%d\nhead_dim=%d\nrms_norm_eps=%.9g\n"
                     "tie_word_embeddings=%d\nrope_theta=%.9g\nrope_type=%s\nfactor=%.9g\nlow_freq_factor=%.9g\n"
                     "high_freq_factor=%.9g\noriginal_max_position_embeddings=%d\n",
                     c->model_type, c->n_vocab, c->hidden, c->n_ffn, c->n_layers, c->n_heads, c->n_kv_heads, c->head_dim,
                     c->norm_eps, c->tied, c->rope_theta, sl_config_rope_name(c), c->rope_factor, c->rope_low_freq,
                     c->rope_high_freq, c->rope_original_ctx);
    SL_CHECK(n > 0 && (size_t)n < sizeof text);
    if (c->rope_type == SL_ROPE_YARN || c->rope_type == SL_ROPE_FACTORS) {
        sl_config_describe_rope(c, text + n, sizeof text - (size_t)n);
        n = (int)strlen(text);
    }
    return sl_fnv1a(SL_FNV1A_START, text, (size_t)n);
}

int sl_config_of_shard(const sl_config *c, sl_config *out, sl_error *err) {
    const struct {
        const char *what;
        int size;
    } dims[] = {{"query heads (num_attention_heads)", c->n_heads},
                {"KV heads (num_key_value_heads)", c->n_kv_heads},
                {"columns of the MLP (intermediate_size)", c->n_ffn},
                {"tokens (vocab_size)", c->n_vocab}};
    int n = c->shard.n > 1 ? c->shard.n : 1;
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        if (dims[i].size % n)
            return sl_fail(
                err, SL_ERR_UNSUPPORTED,
                "{tensor_parallel} %d: this model has %d %s, which do not divide by %d; expected a number that divides "
                "them",
                n, dims[i].size, dims[i].what, n);
    *out = *c;
    out->n_heads /= n, out->n_kv_heads /= n, out->n_ffn /= n;
    return 0;
}
