// models/pass.c - see pass.h. The file knows segments, `propose` and `attend_step` of an sl_batch, and no arithmetic of a
// layer.
#include "models/pass.h"

static size_t query_size(const sl_config *c) { // numbers of a row
    return (size_t)c->n_heads * c->head_dim;
}

// ---- the memory of a segment ----

typedef struct segment { // what it keeps from part to part
    float *x;            // [n_rows][hidden]
    char *q;             // act [n_rows][n_heads * head_dim], the queries of a layer
    size_t size;         // bytes of both
} segment;

static segment lay_out(const sl_config *c, const sl_backend *be, size_t n_rows, char *base) {
    size_t x_size = sl_align(n_rows * c->hidden * sizeof(float)), q_size = sl_align(n_rows * be->act_size * query_size(c));
    return (segment){.x = (float *)base, .q = base + x_size, .size = x_size + q_size};
}

static segment segment_of(const sl_batch *b) {
    return lay_out(b->weights->config, b->backend, b->n_rows, b->segment);
}

size_t sl_segment_size(const sl_config *c, const sl_backend *be, int n_rows) {
    return lay_out(c, be, n_rows, NULL).size;
}

float *sl_segment_x(const sl_batch *b) {
    return segment_of(b).x;
}

// ---- a layer ----

// Queries of row `row` on, from the queries of row 0 on.
static sl_queries queries_from(const sl_batch *b, sl_queries q, int row) {
    return (sl_queries){.data = (const char *)q.data + row * q.stride * b->backend->act_size, .stride = q.stride};
}

static int part_rows(const sl_batch *b, int from) {
    return b->n_rows - from < b->max_rows ? b->n_rows - from : b->max_rows;
}

// The first row whose query is needed, when row `first` is the first that attends. A mask needs the queries of all rows.
static int first_query_of(const sl_batch *b, int first) {
    return b->propose && first < b->n_rows ? 0 : first;
}

// One layer of a segment, in parts. The segment's memory gets the queries of all rows that need queries, at their rows.
static void run_segment_layer(const sl_batch *b, const sl_layer_halves *halves, int layer, int first, sl_kv_rows kv,
                              void *scratch) {
    const sl_backend *be = b->backend;
    size_t stride = query_size(b->weights->config), row = stride * be->act_size;
    const sl_queries all = {.data = segment_of(b).q, .stride = stride};
    int first_query = first_query_of(b, first);
    for (int from = 0; from < b->n_rows; from += b->max_rows) {
        int n = part_rows(b, from), skip = first_query > from ? first_query - from : 0;
        if (skip > n) skip = n;
        const sl_pass_part part = {.layer = layer, .from = from, .n = n};
        be->prepare_rope(be, &b->weights->rope, b->rows + from, n);
        sl_queries q = halves->qkv(b, &part, skip, kv, scratch);
        char *to = (char *)all.data + (size_t)(from + skip) * row;
        if (skip < n) be->copy(be, to, row, q.data, q.stride * be->act_size, row, n - skip);
    }
    if (b->propose && first < b->n_rows) b->propose(b, layer, all);
    for (int from = first, n; from < b->n_rows; from += n) {
        n = part_rows(b, from);
        if (from + n < b->n_rows) n -= (b->ranges[0].position + from + n) % b->attend_step;
        const sl_pass_part part = {.layer = layer, .from = from, .n = n};
        halves->rest(b, &part, queries_from(b, all, from), scratch);
    }
}

// One layer over the batch's rows. Rows before `first` only store K and V: in the last layer nothing reads more of them.
static void run_layer(const sl_batch *b, const sl_layer_halves *halves, int layer, int first, void *scratch) {
    int first_query = first_query_of(b, first);
    sl_kv_rows kv = b->open_layer ? b->open_layer(b, layer) : sl_kv_layer(b->kv, layer);
    if (b->segment) {
        run_segment_layer(b, halves, layer, first, kv, scratch);
        return;
    }
    const sl_pass_part all = {.layer = layer, .n = b->n_rows, .is_joined = layer > 0};
    const sl_pass_part rest = {
        .layer = layer, .from = first, .n = b->n_rows - first, .is_joined = layer + 1 < b->weights->config->n_layers};
    sl_queries q = halves->qkv(b, &all, first_query, kv, scratch);
    if (first == b->n_rows) return;
    if (b->propose) b->propose(b, layer, q);
    halves->rest(b, &rest, queries_from(b, q, first - first_query), scratch);
}

// ---- a pass ----

// The first row that attends in the last layer: logits need the last n_out rows.
static int first_of_last_layer(const sl_batch *b) {
    int first = b->out_rows ? 0 : b->n_rows - b->n_out;
    if (b->n_out) first -= (b->ranges[0].position + first) % b->attend_step;
    return first > 0 ? first : 0;
}

void sl_pass_begin(const sl_batch *b) {
    SL_CHECK(b->n_rows > 0 && (b->segment || b->n_rows <= b->max_rows) && b->n_out >= 0 && b->n_out <= b->n_rows);
    SL_CHECK(b->mode == SL_LINEAR_DECODE || b->n_ranges == 1 || b->backend->is_device);
    if (!b->segment) b->backend->prepare_rope(b->backend, &b->weights->rope, b->rows, b->n_rows);
}

void sl_pass_layers(const sl_batch *b, const sl_layer_halves *halves, void *scratch) {
    int n_layers = b->weights->config->n_layers;
    for (int i = 0; i < n_layers; i++) run_layer(b, halves, i, i + 1 < n_layers ? 0 : first_of_last_layer(b), scratch);
}
