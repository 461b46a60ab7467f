// models/llama.c - the Llama architecture: Llama 2, 3, 3.1, 3.2 and Mistral 7B, which differ only in their configs. Qwen2.5 and
// Qwen3 (models/qwen.c) use this file with biases of q, k and v, or with norms of q and k.
//
//   x = embed[id]
//   for each layer:  x += o attention(rope(q h), rope(k h), v h),       h = rmsnorm(x, attn_norm)
//                    x += down (silu(gate h) * (up h)),                 h = rmsnorm(x, mlp_norm)
//   logits = head rmsnorm(x, norm)
//
// The file calls the backend's operations. It knows nothing of devices, sessions or attention methods.
#include "models/llama.h"

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
    sl_weight head;  // [n_vocab][hidden]; a copy of embed if the config says tied
    layer_weights layers[];
} llama_weights;

size_t sl_llama_weights_size(const sl_config *c) {
    return sizeof(llama_weights) + c->n_layers * sizeof(layer_weights);
}

// q, k and v, their biases, and gate and up: one operation reads them together (sl_backend.qkv, .gate_up).
static void declare_layer(sl_model_weights *w, int i, layer_weights *l) {
    const sl_config *c = w->config;
    int q_dim = c->n_heads * c->head_dim, kv_dim = c->n_kv_heads * c->head_dim;
    sl_model_weights_add(w, &l->attn_norm, 0, c->hidden, 0, "model.layers.%d.input_layernorm.weight", i);
    sl_model_weights_add(w, &l->q, q_dim, c->hidden, 0, "model.layers.%d.self_attn.q_proj.weight", i);
    sl_model_weights_add(w, &l->k, kv_dim, c->hidden, SL_TENSOR_JOINED, "model.layers.%d.self_attn.k_proj.weight", i);
    sl_model_weights_add(w, &l->v, kv_dim, c->hidden, SL_TENSOR_JOINED, "model.layers.%d.self_attn.v_proj.weight", i);
    if (c->has_qkv_bias) {
        sl_model_weights_add(w, &l->q_bias, 0, q_dim, 0, "model.layers.%d.self_attn.q_proj.bias", i);
        sl_model_weights_add(w, &l->k_bias, 0, kv_dim, SL_TENSOR_JOINED, "model.layers.%d.self_attn.k_proj.bias", i);
        sl_model_weights_add(w, &l->v_bias, 0, kv_dim, SL_TENSOR_JOINED, "model.layers.%d.self_attn.v_proj.bias", i);
    }
    if (c->has_qk_norm) {
        sl_model_weights_add(w, &l->q_norm, 0, c->head_dim, 0, "model.layers.%d.self_attn.q_norm.weight", i);
        sl_model_weights_add(w, &l->k_norm, 0, c->head_dim, 0, "model.layers.%d.self_attn.k_norm.weight", i);
    }
    sl_model_weights_add(w, &l->o, c->hidden, q_dim, 0, "model.layers.%d.self_attn.o_proj.weight", i);
    sl_model_weights_add(w, &l->mlp_norm, 0, c->hidden, 0, "model.layers.%d.post_attention_layernorm.weight", i);
    sl_model_weights_add(w, &l->gate, c->n_ffn, c->hidden, 0, "model.layers.%d.mlp.gate_proj.weight", i);
    sl_model_weights_add(w, &l->up, c->n_ffn, c->hidden, SL_TENSOR_JOINED, "model.layers.%d.mlp.up_proj.weight", i);
    sl_model_weights_add(w, &l->down, c->hidden, c->n_ffn, 0, "model.layers.%d.mlp.down_proj.weight", i);
}

void sl_llama_declare(sl_model_weights *w) {
    const sl_config *c = w->config;
    llama_weights *model = w->fields;
    sl_model_weights_add(w, &model->embed, c->n_vocab, c->hidden, SL_TENSOR_LOOKUP, "model.embed_tokens.weight");
    for (int i = 0; i < c->n_layers; i++) declare_layer(w, i, &model->layers[i]);
    sl_model_weights_add(w, &model->norm, 0, c->hidden, 0, "model.norm.weight");
    if (c->tied)
        sl_model_weights_tie(w, &model->head, &model->embed, "lm_head.weight");
    else
        sl_model_weights_add(w, &model->head, c->n_vocab, c->hidden, 0, "lm_head.weight");
}

// ---- scratch memory of a pass. act: bf16 or fp32 (backend.h) ----

typedef struct scratch {
    float *x;   // [max_rows][hidden], the residual stream
    void *h;    // act [max_rows][hidden]: normed
    void *att;  // act [max_rows][n_heads * head_dim]
    void *act;  // act [max_rows][n_ffn]
    void *work; // act [max_rows][the larger of what qkv (sl_qkv) and gate_up need]
    void *q;    // of a segment (lay_out_segment), and x too; else NULL
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
    s->att = take(&at, base, act * q_dim);
    s->act = take(&at, base, act * c->n_ffn);
    s->work = take(&at, base, act * (qkv > gate_up ? qkv : gate_up));
    return at;
}

size_t sl_llama_scratch_size(const sl_config *c, const sl_backend *be, int max_rows) {
    scratch unused;
    return lay_out(c, be, max_rows, NULL, &unused);
}

// What a segment keeps from part to part: x, and the queries of a layer, act [n_rows][n_heads * head_dim].
static size_t lay_out_segment(const sl_config *c, const sl_backend *be, size_t n_rows, char *base, float **x, void **q) {
    size_t at = 0;
    *x = (float *)take(&at, base, n_rows * c->hidden * sizeof(float));
    *q = take(&at, base, n_rows * be->act_size * c->n_heads * c->head_dim);
    return at;
}

size_t sl_llama_segment_size(const sl_config *c, const sl_backend *be, int n_rows) {
    float *x;
    void *q;
    return lay_out_segment(c, be, n_rows, NULL, &x, &q);
}

// ---- a pass ----

static scratch scratch_of(const sl_batch *b) {
    scratch s;
    lay_out(b->weights->config, b->backend, b->max_rows, b->scratch, &s);
    s.q = NULL;
    if (b->segment) lay_out_segment(b->weights->config, b->backend, b->n_rows, b->segment, &s.x, &s.q);
    return s;
}

static const layer_weights *weights_of(const sl_batch *b, int layer) {
    return &((const llama_weights *)b->weights->fields)->layers[layer];
}

// Rows [from, from + n): stores K and V of all rows, and returns the queries of rows `first` on.
static sl_queries run_qkv(const sl_batch *b, int layer, int from, int n, int first, const scratch *s) {
    const sl_backend *be = b->backend;
    const sl_config *c = b->weights->config;
    const layer_weights *l = weights_of(b, layer);
    sl_kv_rows kv = b->open_layer ? b->open_layer(b, layer) : sl_kv_layer(b->kv, layer);
    if (b->segment) be->prepare_rope(be, &b->weights->rope, b->rows + from, n);
    be->rmsnorm(be, s->x + (size_t)from * c->hidden, &l->attn_norm, n, c->norm_eps, s->h);
    return be->qkv(be, &(sl_qkv){.q = &l->q,
                                 .k = &l->k,
                                 .v = &l->v,
                                 .n_rows = n,
                                 .first = first,
                                 .x = s->h,
                                 .rows = b->rows + from,
                                 .position = b->ranges[0].position + from,
                                 .mode = b->mode,
                                 .rope = &b->weights->rope,
                                 .n_heads = c->n_heads,
                                 .n_kv_heads = c->n_kv_heads,
                                 .k_layer = kv.k,
                                 .v_layer = kv.v,
                                 .work = s->work,
                                 .q_bias = c->has_qkv_bias ? &l->q_bias : NULL,
                                 .k_bias = c->has_qkv_bias ? &l->k_bias : NULL,
                                 .v_bias = c->has_qkv_bias ? &l->v_bias : NULL,
                                 .q_norm = c->has_qk_norm ? &l->q_norm : NULL,
                                 .k_norm = c->has_qk_norm ? &l->k_norm : NULL,
                                 .norm_eps = c->norm_eps});
}

// The rest of a layer for rows [from, from + n): attention, its output projection, and the MLP.
static void run_rest(const sl_batch *b, int layer, int from, int n, sl_queries q, const scratch *s) {
    const sl_backend *be = b->backend;
    const sl_config *c = b->weights->config;
    const layer_weights *l = weights_of(b, layer);
    int position = b->ranges[0].position + from;
    float *x = s->x + (size_t)from * c->hidden;
    b->attend(b, layer, from, n, q, s->att);
    be->linear(be, &l->o, s->att, n, b->mode, position, 1, x);
    be->rmsnorm(be, x, &l->mlp_norm, n, c->norm_eps, s->h);
    be->gate_up(be, &l->gate, &l->up, s->h, n, b->mode, position, s->work, s->act);
    be->linear(be, &l->down, s->act, n, b->mode, position, 1, x);
}

static int part_rows(const sl_batch *b, int from) {
    return b->n_rows - from < b->max_rows ? b->n_rows - from : b->max_rows;
}

// Queries of row `row` on, from the queries of row 0 on.
static sl_queries queries_from(const sl_batch *b, sl_queries q, int row) {
    return (sl_queries){.data = (const char *)q.data + row * q.stride * b->backend->act_size, .stride = q.stride};
}

// One layer of a segment, in parts. s->q has the queries of all rows that need queries, at their rows.
static void run_segment_layer(const sl_batch *b, int layer, int first, int first_query, const scratch *s) {
    const sl_backend *be = b->backend;
    size_t q_dim = (size_t)b->weights->config->n_heads * b->weights->config->head_dim, row = q_dim * be->act_size;
    const sl_queries all = {.data = s->q, .stride = q_dim};
    for (int from = 0; from < b->n_rows; from += b->max_rows) {
        int n = part_rows(b, from), skip = first_query > from ? first_query - from : 0;
        if (skip > n) skip = n;
        sl_queries q = run_qkv(b, layer, from, n, skip, s);
        char *to = (char *)s->q + (size_t)(from + skip) * row;
        if (skip < n) be->copy(be, to, row, q.data, q.stride * be->act_size, row, n - skip);
    }
    if (b->propose && first < b->n_rows) b->propose(b, layer, all);
    for (int from = first, n; from < b->n_rows; from += n) {
        n = part_rows(b, from);
        if (from + n < b->n_rows) n -= (b->ranges[0].position + from + n) % b->attend_step;
        run_rest(b, layer, from, n, queries_from(b, all, from), s);
    }
}

// One layer over the batch's rows. Rows before `first` only store K and V: in the last layer nothing reads more of them. A mask
// needs their queries too.
static void run_layer(const sl_batch *b, int layer, int first, const scratch *s) {
    int first_query = b->propose && first < b->n_rows ? 0 : first;
    if (b->segment) {
        run_segment_layer(b, layer, first, first_query, s);
        return;
    }
    sl_queries q = run_qkv(b, layer, 0, b->n_rows, first_query, s);
    if (first == b->n_rows) return;
    if (b->propose) b->propose(b, layer, q);
    run_rest(b, layer, first, b->n_rows - first, queries_from(b, q, first - first_query), s);
}

// The first row that attends in the last layer: logits need the last n_out rows.
static int first_of_last_layer(const sl_batch *b) {
    int first = b->n_rows - b->n_out;
    if (b->n_out) first -= (b->ranges[0].position + first) % b->attend_step;
    return first > 0 ? first : 0;
}

void sl_llama_logits(const sl_batch *b, int first, int n, float *out) {
    const sl_backend *be = b->backend;
    const sl_config *c = b->weights->config;
    const llama_weights *w = b->weights->fields;
    scratch s = scratch_of(b);
    int row = b->n_rows - b->n_out + first;
    be->rmsnorm(be, s.x + (size_t)row * c->hidden, &w->norm, n, c->norm_eps, s.h);
    be->linear(be, &w->head, s.h, n, b->logits_mode, b->ranges[0].position + row, 0, out);
}

void sl_llama_forward(const sl_batch *b) {
    const sl_backend *be = b->backend;
    const sl_config *c = b->weights->config;
    const llama_weights *w = b->weights->fields;
    scratch s = scratch_of(b);
    SL_CHECK(b->n_rows > 0 && (b->segment || b->n_rows <= b->max_rows) && b->n_out >= 0 && b->n_out <= b->n_rows);
    SL_CHECK(b->mode == SL_LINEAR_DECODE || b->n_ranges == 1); // the rows' positions follow from the first one
    if (!b->segment) be->prepare_rope(be, &b->weights->rope, b->rows, b->n_rows);
    be->embed(be, &w->embed, b->ids, b->n_rows, s.x);
    for (int i = 0; i < c->n_layers; i++) run_layer(b, i, i + 1 < c->n_layers ? 0 : first_of_last_layer(b), &s);
    if (b->n_out && b->logits) sl_llama_logits(b, 0, b->n_out, b->logits);
}

// ---- the tables ----

const sl_arch sl_arch_llama = {
    .model_type = "llama", .architecture = "LlamaForCausalLM", .read_config = read_llama, SL_LLAMA_LAYERS};
const sl_arch sl_arch_mistral = {
    .model_type = "mistral", .architecture = "MistralForCausalLM", .read_config = read_mistral, SL_LLAMA_LAYERS};
