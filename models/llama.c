// models/llama.c - binds the Llama tensors and runs the layers. Knows the backend's operations and nothing of devices,
// sessions or attention methods: those are behind sl_llama_step.
#include "models/llama.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Calls fn for every tensor of the architecture, the place in model where it belongs included. Stops at an error.
typedef int (*tensor_fn)(void *ctx, const char *name, int n_rows, int n_cols, sl_weight *to, sl_error *err);

static int each_of_layer(const sl_config *c, int i, sl_llama_layer *layer, tensor_fn fn, void *ctx, sl_error *err) {
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
        char name[120];
        snprintf(name, sizeof name, "model.layers.%d.%s.weight", i, want[j].name);
        int rc = fn(ctx, name, want[j].n_rows, want[j].n_cols, want[j].to, err);
        if (rc) return rc;
    }
    return 0;
}

static int each_tensor(const sl_config *c, sl_llama *model, tensor_fn fn, void *ctx, sl_error *err) {
    int rc = fn(ctx, "model.embed_tokens.weight", c->n_vocab, c->hidden, &model->embed, err);
    for (int i = 0; !rc && i < c->n_layers; i++) rc = each_of_layer(c, i, &model->layers[i], fn, ctx, err);
    if (!rc) rc = fn(ctx, "model.norm.weight", 0, c->hidden, &model->norm, err);
    return rc || c->tied ? rc : fn(ctx, "lm_head.weight", c->n_vocab, c->hidden, &model->head, err);
}

static int new_llama(const sl_config *c, sl_llama *model, sl_error *err) {
    *model = (sl_llama){.rope.head_dim = c->head_dim};
    model->layers = calloc(c->n_layers, sizeof *model->layers);
    model->rope.inv_freq = malloc(c->head_dim / 2 * sizeof(float));
    if (!model->layers || !model->rope.inv_freq) {
        sl_llama_free(model);
        return sl_fail(err, SL_ERR_MEMORY, "%d layers: out of memory", c->n_layers);
    }
    sl_config_rope(c, model->rope.inv_freq);
    return 0;
}

static int bind_tensor(void *ctx, const char *name, int n_rows, int n_cols, sl_weight *to, sl_error *err) {
    return sl_tensors_bind(ctx, name, n_rows, n_cols, to, err);
}

int sl_llama_bind(const sl_tensors *tensors, const sl_config *c, sl_llama *model, sl_error *err) {
    int rc = new_llama(c, model, err);
    if (rc) return rc;
    rc = each_tensor(c, model, bind_tensor, (void *)tensors, err);
    if (rc)
        sl_llama_free(model);
    else if (c->tied)
        model->head = model->embed;
    return rc;
}

typedef struct shape_list {
    sl_tensor_shape *at;
    int n;
} shape_list;

static int list_shape(void *ctx, const char *name, int n_rows, int n_cols, sl_weight *to, sl_error *err) {
    shape_list *list = ctx;
    sl_tensor_shape *shape = &list->at[list->n++];
    (void)to, (void)err;
    *shape = (sl_tensor_shape){.n_rows = n_rows, .n_cols = n_cols};
    snprintf(shape->name, sizeof shape->name, "%s", name);
    return 0;
}

int sl_llama_shape(const sl_config *c, sl_tensors **tensors, sl_llama *model, sl_error *err) {
    enum { PER_LAYER = 9, OTHERS = 3 };
    shape_list list = {.at = calloc((size_t)c->n_layers * PER_LAYER + OTHERS, sizeof *list.at)};
    if (!list.at) return sl_fail(err, SL_ERR_MEMORY, "%d layers: out of memory", c->n_layers);
    int rc = new_llama(c, model, err);
    if (!rc) rc = each_tensor(c, model, list_shape, &list, err);
    sl_llama_free(model);
    if (!rc) rc = sl_tensors_declare(list.at, list.n, tensors, err);
    free(list.at);
    return rc ? rc : sl_llama_bind(*tensors, c, model, err);
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

// ---- on a backend ----

// The weights that an operation reads together lie one after the other: q, k, v; gate, up.
static int place_layer(const sl_backend *be, sl_llama_layer *l, sl_error *err) {
    int rc = be->place(be, (sl_weight *[]){&l->attn_norm, &l->mlp_norm}, 2, err);
    if (!rc) rc = be->place(be, (sl_weight *[]){&l->q, &l->k, &l->v}, 3, err);
    if (!rc) rc = be->place(be, (sl_weight *[]){&l->o}, 1, err);
    if (!rc) rc = be->place(be, (sl_weight *[]){&l->gate, &l->up}, 2, err);
    return rc ? rc : be->place(be, (sl_weight *[]){&l->down}, 1, err);
}

int sl_llama_place(const sl_llama *model, const sl_config *c, const sl_backend *be, const sl_progress *progress,
                   sl_llama *placed, sl_error *err) {
    *placed = *model;
    placed->layers = malloc(c->n_layers * sizeof *placed->layers);
    placed->rope.inv_freq = malloc(c->head_dim / 2 * sizeof(float));
    if (!placed->layers || !placed->rope.inv_freq) {
        sl_llama_free(placed);
        return sl_fail(err, SL_ERR_MEMORY, "%d layers: out of memory", c->n_layers);
    }
    memcpy(placed->layers, model->layers, c->n_layers * sizeof *placed->layers);
    memcpy(placed->rope.inv_freq, model->rope.inv_freq, c->head_dim / 2 * sizeof(float));
    if (!be->place) return 0;
    int rc = be->place(be, (sl_weight *[]){&placed->embed}, 1, err);
    for (int i = 0; !rc && i < c->n_layers; i++) {
        rc = place_layer(be, &placed->layers[i], err);
        sl_progress_report(progress, i + 1, c->n_layers + 1);
    }
    if (!rc) rc = be->place(be, (sl_weight *[]){&placed->norm}, 1, err);
    if (!rc && c->tied)
        placed->head = placed->embed;
    else if (!rc)
        rc = be->place(be, (sl_weight *[]){&placed->head}, 1, err);
    if (rc)
        sl_llama_free(placed);
    else
        sl_progress_report(progress, c->n_layers + 1, c->n_layers + 1);
    return rc;
}

static size_t take(size_t *at, size_t size) {
    size_t begin = *at;
    *at += (size + 255) / 256 * 256;
    return begin;
}

// The scratch's layout from base on; returns its size.
static size_t lay_out(const sl_config *c, const sl_backend *be, size_t rows, char *base, sl_llama_scratch *s) {
    size_t q_dim = (size_t)c->n_heads * c->head_dim, kv_dim = (size_t)c->n_kv_heads * c->head_dim, at = 0;
    size_t qkv = q_dim + 2 * kv_dim, gate_up = 2 * (size_t)c->n_ffn, act = rows * be->act_size;
    s->x = (float *)(base + take(&at, rows * c->hidden * sizeof(float)));
    s->h = base + take(&at, act * c->hidden);
    s->att = base + take(&at, act * q_dim);
    s->act = base + take(&at, act * c->n_ffn);
    s->work = base + take(&at, act * (qkv > gate_up ? qkv : gate_up));
    return at;
}

size_t sl_llama_scratch_size(const sl_config *c, const sl_backend *be, int max_rows) {
    sl_llama_scratch unused;
    return lay_out(c, be, max_rows, NULL, &unused);
}

int sl_llama_scratch_new(const sl_config *c, const sl_backend *be, int max_rows, sl_llama_scratch *s, sl_error *err) {
    *s = (sl_llama_scratch){.backend = be, .size = sl_llama_scratch_size(c, be, max_rows)};
    char *base = be->alloc(be, s->size);
    if (!base)
        return sl_fail(err, SL_ERR_MEMORY, "activations of %d rows: %zu MiB cannot be allocated; pass a smaller --ubatch-size",
                       max_rows, s->size >> 20);
    lay_out(c, be, max_rows, base, s);
    return 0;
}

void sl_llama_scratch_free(sl_llama_scratch *s) {
    if (s->x) s->backend->release(s->backend, s->x, s->size);
    *s = (sl_llama_scratch){0};
}

// One layer over the step's rows. The rows before `first` only leave their K and V: in the last layer nobody reads more.
static void run_layer(const sl_llama_layer *l, const sl_rope *rope, const sl_config *c, const sl_llama_step *t, int layer,
                      int first, sl_llama_scratch *s) {
    const sl_backend *be = t->backend;
    int n = t->n_rows - first, position = t->position + first;
    float *x = s->x + (size_t)first * c->hidden;
    sl_kv_rows kv = t->kv(t->ctx, layer);
    be->rmsnorm(be, s->x, &l->attn_norm, t->n_rows, c->norm_eps, s->h);
    sl_queries q = be->qkv(be, &(sl_qkv){.q = &l->q,
                                         .k = &l->k,
                                         .v = &l->v,
                                         .n_rows = t->n_rows,
                                         .first = first,
                                         .x = s->h,
                                         .rows = t->rows,
                                         .position = t->position,
                                         .mode = t->mode,
                                         .rope = rope,
                                         .n_heads = c->n_heads,
                                         .n_kv_heads = c->n_kv_heads,
                                         .k_layer = kv.k,
                                         .v_layer = kv.v,
                                         .work = s->work});
    if (n == 0) return;
    t->attend(t->ctx, layer, first, n, q, s->att);
    be->linear(be, &l->o, s->att, n, t->mode, position, 1, x);
    be->rmsnorm(be, x, &l->mlp_norm, n, c->norm_eps, s->h);
    be->gate_up(be, &l->gate, &l->up, s->h, n, t->mode, position, s->work, s->act);
    be->linear(be, &l->down, s->act, n, t->mode, position, 1, x);
}

void sl_llama_forward(const sl_llama *model, const sl_config *c, const sl_llama_step *t, sl_llama_scratch *s) {
    const sl_backend *be = t->backend;
    SL_CHECK(t->n_rows > 0 && t->n_out >= 0 && t->n_out <= t->n_rows);
    be->begin(be, &model->rope, t->rows, t->n_rows);
    be->embed(be, &model->embed, t->ids, t->n_rows, s->x);
    for (int i = 0; i < c->n_layers; i++) {
        int first = i + 1 < c->n_layers ? 0 : t->n_rows - t->n_out;
        run_layer(&model->layers[i], &model->rope, c, t, i, first, s);
    }
    if (t->n_out == 0) return;
    const float *x = s->x + (size_t)(t->n_rows - t->n_out) * c->hidden;
    be->rmsnorm(be, x, &model->norm, t->n_out, c->norm_eps, s->h);
}
