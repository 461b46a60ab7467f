// models/llama.c - the Llama architecture: Llama 2, 3, 3.1, 3.2 and Mistral 7B, which differ only in their configs. Qwen2.5 and
// Qwen3 (models/qwen.c) use this file with biases of q, k and v, or with norms of q and k.
//
//   x = embed[id]
//   for each layer:  x += o attention(rope(q h), rope(k h), v h),       h = rmsnorm(x, attn_norm)
//                    x += down (silu(gate h) * (up h)),                 h = rmsnorm(x, mlp_norm)
//   logits = head rmsnorm(x, norm)
//
// The file calls the backend's operations. It knows nothing of devices, sessions, attention methods or the parts of a pass:
// models/pass.c calls the two halves of a layer, run_qkv and run_rest.
#include "models/llama.h"
#include "models/pass.h"

// ---- config.json ----

int sl_llama_read_config(const sl_json_file *f, const sl_refused_field *refused, const sl_config_defaults *d, sl_config *c,
                         sl_error *err) {
    int rc = sl_config_check_string(f, "hidden_act", "silu", err);
    if (!rc) rc = sl_config_refuse(f, refused, err);
    if (!rc) rc = sl_config_refuse(f, sl_config_refused, err);
    if (!rc) rc = sl_config_read_shapes(f, d, c, err);
    if (!rc) rc = sl_config_read_rope(f, c, err);
    return rc ? rc : sl_config_read_window(f, d, c, err);
}

static const sl_refused_field refused_biases[] = {{"attention_bias", "false"}, {"mlp_bias", "false"}, {0}};

static int read_llama(const sl_json_file *f, sl_config *c, sl_error *err) {
    return sl_llama_read_config(f, refused_biases, &(sl_config_defaults){.n_ctx = 2048}, c, err);
}

static int read_mistral(const sl_json_file *f, sl_config *c, sl_error *err) {
    return sl_llama_read_config(f, refused_biases, &(sl_config_defaults){.n_kv_heads = 8, .n_ctx = 131072, .window = 4096}, c,
                                err);
}

// ---- tensors ----

typedef struct layer_weights {
    sl_weight attn_norm;              // [hidden]
    sl_weight q, k, v;                // [n_heads * head_dim][hidden], [n_kv_heads * head_dim][hidden] twice
    sl_weight q_bias, k_bias, v_bias; // [n_heads * head_dim], [n_kv_heads * head_dim] twice; if config.has_qkv_bias
    sl_weight q_norm, k_norm;         // [head_dim]; if config.has_qk_norm
    sl_weight o;                      // [hidden][n_heads * head_dim]
    sl_weight mlp_norm;               // [hidden]
    sl_weight gate, up;               // [n_ffn][hidden]
    sl_weight down;                   // [hidden][n_ffn]
} layer_weights;

typedef struct llama_weights {
    sl_weight embed; // [n_vocab][hidden]
    sl_weight norm;  // [hidden]
    sl_weight head;  // [n_vocab][hidden], of a rank [n_vocab / n][hidden]; a copy of embed if the config says tied
    layer_weights layers[];
} llama_weights;

size_t sl_llama_weights_size(const sl_config *c) {
    return sizeof(llama_weights) + c->n_layers * sizeof(layer_weights);
}

// q, k and v, their biases, and gate and up: one operation reads them together (sl_backend.qkv, .gate_up). A rank of a
// tensor-parallel run has the rows of its heads and of its part of the MLP, and the columns that read them.
static void declare_layer(sl_model_weights *w, int i, layer_weights *l) {
    const sl_config *c = w->config;
    const unsigned rows = SL_TENSOR_CUT_ROWS;
    int q_dim = c->n_heads * c->head_dim, kv_dim = c->n_kv_heads * c->head_dim;
    sl_model_weights_add(w, &l->attn_norm, 0, c->hidden, 0, "model.layers.%d.input_layernorm.weight", i);
    sl_model_weights_add(w, &l->q, q_dim, c->hidden, rows, "model.layers.%d.self_attn.q_proj.weight", i);
    sl_model_weights_add(w, &l->k, kv_dim, c->hidden, rows | SL_TENSOR_JOINED, "model.layers.%d.self_attn.k_proj.weight", i);
    sl_model_weights_add(w, &l->v, kv_dim, c->hidden, rows | SL_TENSOR_JOINED, "model.layers.%d.self_attn.v_proj.weight", i);
    if (c->has_qkv_bias) {
        sl_model_weights_add(w, &l->q_bias, 0, q_dim, rows, "model.layers.%d.self_attn.q_proj.bias", i);
        sl_model_weights_add(w, &l->k_bias, 0, kv_dim, rows | SL_TENSOR_JOINED, "model.layers.%d.self_attn.k_proj.bias", i);
        sl_model_weights_add(w, &l->v_bias, 0, kv_dim, rows | SL_TENSOR_JOINED, "model.layers.%d.self_attn.v_proj.bias", i);
    }
    if (c->has_qk_norm) {
        sl_model_weights_add(w, &l->q_norm, 0, c->head_dim, 0, "model.layers.%d.self_attn.q_norm.weight", i);
        sl_model_weights_add(w, &l->k_norm, 0, c->head_dim, 0, "model.layers.%d.self_attn.k_norm.weight", i);
    }
    sl_model_weights_add(w, &l->o, c->hidden, q_dim, SL_TENSOR_CUT_COLS, "model.layers.%d.self_attn.o_proj.weight", i);
    sl_model_weights_add(w, &l->mlp_norm, 0, c->hidden, 0, "model.layers.%d.post_attention_layernorm.weight", i);
    sl_model_weights_add(w, &l->gate, c->n_ffn, c->hidden, rows, "model.layers.%d.mlp.gate_proj.weight", i);
    sl_model_weights_add(w, &l->up, c->n_ffn, c->hidden, rows | SL_TENSOR_JOINED, "model.layers.%d.mlp.up_proj.weight", i);
    sl_model_weights_add(w, &l->down, c->hidden, c->n_ffn, SL_TENSOR_CUT_COLS, "model.layers.%d.mlp.down_proj.weight", i);
}

void sl_llama_declare(sl_model_weights *w) {
    const sl_config *c = w->config;
    llama_weights *model = w->fields;
    sl_model_weights_add(w, &model->embed, c->n_vocab, c->hidden, SL_TENSOR_LOOKUP, "model.embed_tokens.weight");
    for (int i = 0; i < c->n_layers; i++) declare_layer(w, i, &model->layers[i]);
    sl_model_weights_add(w, &model->norm, 0, c->hidden, 0, "model.norm.weight");
    if (c->tied)
        sl_model_weights_tie(w, &model->head, &model->embed, SL_TENSOR_CUT_ROWS, "lm_head.weight");
    else
        sl_model_weights_add(w, &model->head, c->n_vocab, c->hidden, SL_TENSOR_HEAD | SL_TENSOR_CUT_ROWS, "lm_head.weight");
}

// ---- scratch memory of a pass. act: bf16 or fp32 (backend.h) ----

typedef struct scratch {
    float *x;         // [max_rows][hidden], the residual stream; of a segment: sl_segment_x
    void *h;          // act [max_rows][hidden]: x after RMSNorm
    float *sums;      // [max_rows][hidden / SL_NORM_TILE]: sl_next_norm.sums
    void *att;        // act [max_rows][n_heads * head_dim]
    void *act;        // act [max_rows][n_ffn]
    void *work;       // act [max_rows][the larger of what qkv (sl_qkv) and gate_up need]
    sl_normed normed; // the input of the next qkv or gate_up, in h and sums
} scratch;

static char *take(size_t *at, char *base, size_t size) {
    char *p = base + *at;
    *at += sl_align(size);
    return p;
}

// Sets the pointers of *s to parts of the memory at base. Returns the size of all parts.
static size_t lay_out(const sl_config *c, const sl_backend *be, size_t rows, char *base, scratch *s) {
    size_t q_dim = (size_t)c->n_heads * c->head_dim, kv_dim = (size_t)c->n_kv_heads * c->head_dim, at = 0;
    size_t qkv = (q_dim + 2 * kv_dim) * (c->has_qkv_bias || c->has_qk_norm ? SL_QKV_PARTS : 1), gate_up = 2 * (size_t)c->n_ffn,
           act = rows * be->act_size;
    s->x = (float *)take(&at, base, rows * c->hidden * sizeof(float));
    s->h = take(&at, base, act * c->hidden);
    s->sums = (float *)take(&at, base, rows * (c->hidden / SL_NORM_TILE) * sizeof(float));
    s->att = take(&at, base, act * q_dim);
    s->act = take(&at, base, act * c->n_ffn);
    s->work = take(&at, base, act * (qkv > gate_up ? qkv : gate_up));
    return at;
}

size_t sl_llama_scratch_size(const sl_config *c, const sl_backend *be, int max_rows) {
    scratch unused;
    return lay_out(c, be, max_rows, NULL, &unused);
}

// ---- a pass ----

static scratch scratch_of(const sl_batch *b) {
    scratch s;
    lay_out(b->weights->config, b->backend, b->max_rows, b->scratch, &s);
    if (b->segment) s.x = sl_segment_x(b);
    return s;
}

static const layer_weights *weights_of(const sl_batch *b, int layer) {
    return &((const llama_weights *)b->weights->fields)->layers[layer];
}

static sl_queries run_qkv(const sl_batch *b, const sl_pass_part *part, int skip, sl_kv_rows kv, void *scratch_memory) {
    const sl_backend *be = b->backend;
    const sl_config *c = b->weights->config;
    const layer_weights *l = weights_of(b, part->layer);
    scratch *s = scratch_memory;
    if (!part->is_joined) {
        be->rmsnorm(be, s->x + (size_t)part->from * c->hidden, &l->attn_norm, part->n, c->norm_eps, s->h);
        s->normed = (sl_normed){.rows = s->h};
    }
    return be->qkv(be, &(sl_qkv){.q = &l->q,
                                 .k = &l->k,
                                 .v = &l->v,
                                 .n_rows = part->n,
                                 .first = skip,
                                 .x = s->normed,
                                 .rows = b->rows + part->from,
                                 .mode = b->mode,
                                 .rope = &b->weights->rope,
                                 .n_heads = c->n_heads,
                                 .n_kv_heads = c->n_kv_heads,
                                 .k_layer = kv.k,
                                 .v_layer = kv.v,
                                 .k_format = kv.formats.k,
                                 .v_format = kv.formats.v,
                                 .k_scales = kv.k_scales,
                                 .v_scales = kv.v_scales,
                                 .work = s->work,
                                 .q_bias = c->has_qkv_bias ? &l->q_bias : NULL,
                                 .k_bias = c->has_qkv_bias ? &l->k_bias : NULL,
                                 .v_bias = c->has_qkv_bias ? &l->v_bias : NULL,
                                 .q_norm = c->has_qk_norm ? &l->q_norm : NULL,
                                 .k_norm = c->has_qk_norm ? &l->k_norm : NULL,
                                 .norm_eps = c->norm_eps});
}

static void run_rest(const sl_batch *b, const sl_pass_part *part, sl_queries q, void *scratch_memory) {
    const sl_backend *be = b->backend;
    const sl_config *c = b->weights->config;
    const layer_weights *l = weights_of(b, part->layer);
    scratch *s = scratch_memory;
    float *x = s->x + (size_t)part->from * c->hidden;
    b->attend(b, part->layer, part->from, part->n, q, s->att);
    sl_next_norm norm = {.w = &l->mlp_norm, .eps = c->norm_eps, .rows = s->h, .sums = s->sums};
    s->normed = be->linear_norm(be, &l->o, s->att, part->n, b->mode, x, &norm);
    be->gate_up(be, &l->gate, &l->up, s->normed, part->n, b->mode, s->work, s->act);
    if (!part->is_joined) {
        be->linear(be, &l->down, s->act, part->n, b->mode, 1, x);
        return;
    }
    norm.w = &weights_of(b, part->layer + 1)->attn_norm; // for run_qkv of the next layer
    s->normed = be->linear_norm(be, &l->down, s->act, part->n, b->mode, x, &norm);
}

void sl_llama_logits(const sl_batch *b, int first, int n, float *out) {
    const sl_backend *be = b->backend;
    const sl_config *c = b->weights->config;
    const llama_weights *w = b->weights->fields;
    scratch s = scratch_of(b);
    int row = b->n_rows - b->n_out + first;
    if (b->out_rows)
        for (int i = 0; i < n; i++)
            be->rmsnorm(be, s.x + (size_t)b->out_rows[first + i] * c->hidden, &w->norm, 1, c->norm_eps,
                        (char *)s.h + (size_t)i * c->hidden * be->act_size);
    else
        be->rmsnorm(be, s.x + (size_t)row * c->hidden, &w->norm, n, c->norm_eps, s.h);
    be->linear(be, &w->head, s.h, n, b->logits_mode, 0, out);
    if (b->gather_logits) b->gather_logits(b, n, out);
}

void sl_llama_forward(const sl_batch *b) {
    static const sl_layer_halves halves = {.qkv = run_qkv, .rest = run_rest};
    const llama_weights *w = b->weights->fields;
    scratch s = scratch_of(b);
    sl_pass_begin(b);
    b->backend->embed(b->backend, &w->embed, b->ids, b->n_rows, s.x);
    sl_pass_layers(b, &halves, &s);
    if (b->n_out && b->logits) sl_llama_logits(b, 0, b->n_out, b->logits);
}

// ---- the tables ----

const sl_arch sl_arch_llama = {
    .model_type = "llama", .architecture = "LlamaForCausalLM", .read_config = read_llama, SL_LLAMA_LAYERS};
const sl_arch sl_arch_mistral = {
    .model_type = "mistral", .architecture = "MistralForCausalLM", .read_config = read_mistral, SL_LLAMA_LAYERS};
