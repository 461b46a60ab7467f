// models/llama.c - binds the Llama tensors and runs the layers. Knows the backend's operations and nothing of devices,
// sessions or attention methods: those are behind sl_llama_step.
#include "models/llama.h"

#include <stdio.h>
#include <stdlib.h>

static int bind_layer(const sl_tensors *tensors, const sl_config *c, int i, sl_llama_layer *layer, sl_error *err) {
    int q_dim = c->n_heads * c->head_dim, kv_dim = c->n_kv_heads * c->head_dim;
    struct {
        const char *name;
        int n_rows, n_cols;
        sl_weight *to;
    } want[] = {
        {"input_layernorm", 0, c->hidden, &layer->attn_norm}, {"self_attn.q_proj", q_dim, c->hidden, &layer->q},
        {"self_attn.k_proj", kv_dim, c->hidden, &layer->k},   {"self_attn.v_proj", kv_dim, c->hidden, &layer->v},
        {"self_attn.o_proj", c->hidden, q_dim, &layer->o},    {"post_attention_layernorm", 0, c->hidden, &layer->mlp_norm},
        {"mlp.gate_proj", c->n_ffn, c->hidden, &layer->gate}, {"mlp.up_proj", c->n_ffn, c->hidden, &layer->up},
        {"mlp.down_proj", c->hidden, c->n_ffn, &layer->down},
    };
    for (size_t j = 0; j < sizeof want / sizeof *want; j++) {
        char name[128];
        snprintf(name, sizeof name, "model.layers.%d.%s.weight", i, want[j].name);
        int rc = sl_tensors_bind(tensors, name, want[j].n_rows, want[j].n_cols, want[j].to, err);
        if (rc) return rc;
    }
    return 0;
}

int sl_llama_bind(const sl_tensors *tensors, const sl_config *c, sl_llama *model, sl_error *err) {
    *model = (sl_llama){.rope.head_dim = c->head_dim};
    model->layers = calloc(c->n_layers, sizeof *model->layers);
    model->rope.inv_freq = malloc(c->head_dim / 2 * sizeof(float));
    if (!model->layers || !model->rope.inv_freq) {
        sl_llama_free(model);
        return sl_fail(err, SL_ERR_MEMORY, "%d layers: out of memory", c->n_layers);
    }
    sl_config_rope(c, model->rope.inv_freq);
    int rc = sl_tensors_bind(tensors, "model.embed_tokens.weight", c->n_vocab, c->hidden, &model->embed, err);
    for (int i = 0; !rc && i < c->n_layers; i++) rc = bind_layer(tensors, c, i, &model->layers[i], err);
    if (!rc) rc = sl_tensors_bind(tensors, "model.norm.weight", 0, c->hidden, &model->norm, err);
    if (!rc && c->tied)
        model->head = model->embed;
    else if (!rc)
        rc = sl_tensors_bind(tensors, "lm_head.weight", c->n_vocab, c->hidden, &model->head, err);
    if (rc) sl_llama_free(model);
    return rc;
}

void sl_llama_free(sl_llama *model) {
    free(model->layers);
    free(model->rope.inv_freq);
    *model = (sl_llama){0};
}

static size_t weight_bytes(const sl_weight *w) {
    return (size_t)w->n_rows * w->n_cols * sl_dtype_size(w->dtype);
}

size_t sl_llama_decode_bytes(const sl_llama *model, const sl_config *c) {
    size_t n = weight_bytes(&model->norm) + weight_bytes(&model->head); // of the embedding one row is read
    for (int i = 0; i < c->n_layers; i++) {
        const sl_llama_layer *l = &model->layers[i];
        n += weight_bytes(&l->attn_norm) + weight_bytes(&l->q) + weight_bytes(&l->k) + weight_bytes(&l->v) +
             weight_bytes(&l->o) + weight_bytes(&l->mlp_norm) + weight_bytes(&l->gate) + weight_bytes(&l->up) +
             weight_bytes(&l->down);
    }
    return n;
}

int sl_llama_scratch_new(const sl_config *c, int max_rows, sl_llama_scratch *s, sl_error *err) {
    size_t q_dim = (size_t)c->n_heads * c->head_dim, kv_dim = (size_t)c->n_kv_heads * c->head_dim;
    size_t n = max_rows * (2 * (size_t)c->hidden + 2 * q_dim + 2 * kv_dim + 2 * (size_t)c->n_ffn);
    *s = (sl_llama_scratch){.x = aligned_alloc(64, (n * sizeof(float) + 63) / 64 * 64)};
    if (!s->x)
        return sl_fail(err, SL_ERR_MEMORY, "activations of %d rows: %zu MiB cannot be allocated; pass a smaller --ubatch-size",
                       max_rows, n * sizeof(float) >> 20);
    s->normed = s->x + (size_t)max_rows * c->hidden;
    s->q = s->normed + (size_t)max_rows * c->hidden;
    s->att = s->q + max_rows * q_dim;
    s->k = s->att + max_rows * q_dim;
    s->v = s->k + max_rows * kv_dim;
    s->gate = s->v + max_rows * kv_dim;
    s->up = s->gate + (size_t)max_rows * c->n_ffn;
    return 0;
}

void sl_llama_scratch_free(sl_llama_scratch *s) {
    free(s->x);
    *s = (sl_llama_scratch){0};
}

// One layer over the step's rows. The rows before `first` only leave their K and V: in the last layer nobody reads more.
static void run_layer(const sl_llama_layer *l, const sl_rope *rope, const sl_config *c, const sl_llama_step *t, int layer,
                      int first, sl_llama_scratch *s) {
    const sl_backend *be = t->backend;
    int n = t->n_rows - first;
    float *x = s->x + (size_t)first * c->hidden, *normed = s->normed + (size_t)first * c->hidden;
    be->rmsnorm(s->x, &l->attn_norm, t->n_rows, c->norm_eps, s->normed);
    be->linear(&l->k, s->normed, t->n_rows, t->mode, t->rows[0].position, 0, s->k);
    be->linear(&l->v, s->normed, t->n_rows, t->mode, t->rows[0].position, 0, s->v);
    be->rope_append(rope, t->rows, t->n_rows, 0, c->n_kv_heads, NULL, s->k, s->v, t->k_layer(t->ctx, layer),
                    t->v_layer(t->ctx, layer));
    if (n == 0) return;
    int position = t->rows[first].position;
    be->linear(&l->q, normed, n, t->mode, position, 0, s->q);
    be->rope_append(rope, t->rows + first, n, c->n_heads, 0, s->q, NULL, NULL, NULL, NULL);
    t->attend(t->ctx, layer, first, n, s->q, s->att);
    be->linear(&l->o, s->att, n, t->mode, position, 1, x);
    be->rmsnorm(x, &l->mlp_norm, n, c->norm_eps, normed);
    be->linear(&l->gate, normed, n, t->mode, position, 0, s->gate);
    be->linear(&l->up, normed, n, t->mode, position, 0, s->up);
    be->swiglu(s->gate, s->up, (size_t)n * c->n_ffn);
    be->linear(&l->down, s->gate, n, t->mode, position, 1, x);
}

void sl_llama_forward(const sl_llama *model, const sl_config *c, const sl_llama_step *t, sl_llama_scratch *s) {
    SL_CHECK(t->n_rows > 0 && t->n_out >= 0 && t->n_out <= t->n_rows);
    t->backend->embed(&model->embed, t->ids, t->n_rows, s->x);
    for (int i = 0; i < c->n_layers; i++) {
        int first = i + 1 < c->n_layers ? 0 : t->n_rows - t->n_out;
        run_layer(&model->layers[i], &model->rope, c, t, i, first, s);
    }
    if (t->n_out == 0) return;
    const float *x = s->x + (size_t)(t->n_rows - t->n_out) * c->hidden;
    t->backend->rmsnorm(x, &model->norm, t->n_out, c->norm_eps, s->normed);
}
