// models/weights.c - see weights.h.
#include "models/weights.h"
#include "models/arch.h"
#include "models/quant_bind.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

// ---- the list ----

static sl_model_tensor *add(sl_model_weights *w) { // NULL: out of memory; sets is_out_of_memory
    if (w->n_tensors == w->capacity) {
        int capacity = w->capacity ? 2 * w->capacity : 64;
        sl_model_tensor *grown = realloc(w->tensors, capacity * sizeof *grown);
        if (!grown) {
            w->is_out_of_memory = 1;
            return NULL;
        }
        w->tensors = grown;
        w->capacity = capacity;
    }
    return &w->tensors[w->n_tensors++];
}

void sl_model_weights_add(sl_model_weights *w, sl_weight *to, int n_rows, int n_cols, unsigned flags, const char *name, ...) {
    va_list args;
    sl_model_tensor *t = add(w);
    if (!t) return;
    *t = (sl_model_tensor){.shape = {.n_rows = n_rows, .n_cols = n_cols}, .flags = flags, .weight = to};
    va_start(args, name);
    int n = vsnprintf(t->shape.name, sizeof t->shape.name, name, args);
    va_end(args);
    SL_CHECK(n > 0 && (size_t)n < sizeof t->shape.name);
}

void sl_model_weights_tie(sl_model_weights *w, sl_weight *to, const sl_weight *from, unsigned flags, const char *name) {
    sl_model_tensor *t = add(w);
    if (!t) return;
    *t = (sl_model_tensor){.flags = flags, .weight = to, .same_as = from};
    SL_CHECK(strlen(name) < sizeof t->shape.name);
    strcpy(t->shape.name, name);
}

int sl_model_weights_init(const sl_config *c, sl_model_weights *w, sl_error *err) {
    *w = (sl_model_weights){.config = c, .rope = {.head_dim = c->head_dim, .scale = c->rope_attention}};
    w->fields = calloc(1, c->arch->weights_size(c));
    w->rope.inv_freq = malloc(c->head_dim / 2 * sizeof(float));
    if (w->fields) c->arch->declare(w);
    if (!w->fields || !w->rope.inv_freq || w->is_out_of_memory) {
        sl_model_weights_free(w);
        return sl_fail(err, SL_ERR_MEMORY, "%d layers: out of memory", c->n_layers);
    }
    sl_config_rope(c, w->rope.inv_freq);
    return 0;
}

void sl_model_weights_free(sl_model_weights *w) {
    free(w->tensors);
    free(w->fields);
    if (!w->shares_rope) free(w->rope.inv_freq);
    if (w->made) munmap(w->made, w->made_size);
    *w = (sl_model_weights){0};
}

// ---- bind to files, declare without files ----

// 1: the output head, also as an embedding that is tied to it.
static int is_head(const sl_config *c, const sl_model_tensor *t) {
    return (t->flags & SL_TENSOR_HEAD) || ((t->flags & SL_TENSOR_LOOKUP) && c->tied);
}

// A matrix that is rounded when it is made.
static void round_matrix(const sl_quantise_specs *specs, const sl_config *c, sl_model_tensor *t) {
    const sl_quantise_spec *round = is_head(c, t)                 ? &specs->head
                                    : t->flags & SL_TENSOR_LOOKUP ? &specs->embedding
                                                                  : &specs->linear;
    sl_format format = round->format;
    if (t->shape.n_rows == 0 || format == SL_BF16) return;
    t->recipe = (sl_recipe){.making = SL_MADE_ROUNDED, .plain = *t->weight};
    *t->weight = (sl_weight){.format = format,
                             .n_rows = t->shape.n_rows,
                             .n_cols = t->shape.n_cols,
                             .group = format == SL_INT4 && round->group < t->shape.n_cols ? round->group : t->shape.n_cols,
                             .scale_rows = 1,
                             .name = t->weight->name};
}

// The scheme of a matrix; NULL: it is plain. Writes the module: the name without ".weight".
static const sl_quant_scheme *scheme_of(const sl_quant *quant, const sl_model_tensor *t, char module[SL_TENSOR_NAME]) {
    size_t n = strlen(t->shape.name), n_end = strlen(".weight");
    if (!quant || !quant->method || !t->shape.n_rows || (t->flags & SL_TENSOR_LOOKUP)) return NULL;
    SL_CHECK(n > n_end && !strcmp(t->shape.name + n - n_end, ".weight"));
    snprintf(module, SL_TENSOR_NAME, "%.*s", (int)(n - n_end), t->shape.name);
    return sl_quant_find(quant, module, (t->flags & SL_TENSOR_HEAD) != 0);
}

static int bind_tensor(const sl_model_weights *w, const sl_tensors *tensors, const sl_quant *quant, sl_model_tensor *t,
                       sl_error *err) {
    const sl_tensor_shape *s = &t->shape;
    char module[SL_TENSOR_NAME];
    const sl_quant_scheme *scheme = scheme_of(quant, t, module);
    if (scheme && quant->round.has_head && (t->flags & SL_TENSOR_HEAD))
        return sl_fail(err, SL_ERR_ARG, "{weights_head} %s: the head of this model is quantised already (%.40s)",
                       sl_formats[quant->round.head.format].name, quant->method);
    if (scheme) return sl_quant_bind(scheme, tensors, module, s->n_rows, s->n_cols, t->weight, &t->recipe, err);
    int rc = sl_tensors_bind(tensors, s->name, s->n_rows, s->n_cols, t->weight, err);
    const sl_tensor *found = rc ? NULL : sl_tensors_find(tensors, s->name);
    if (found && found->packed.is_kept) t->recipe = (sl_recipe){.making = SL_MADE_BLOCKS, .q = found};
    if (!rc && quant) round_matrix(&quant->round, w->config, t);
    return rc;
}

// The embedding and the head keep plain inputs, unless a checkpoint asks for others.
static void set_inputs(sl_model_tensor *t, sl_activations activations) {
    sl_weight *w = t->weight;
    if (activations == SL_ACT_FP8 && w->format == SL_FP8 && w->inputs == SL_INPUTS_PLAIN && !t->same_as &&
        !(t->flags & (SL_TENSOR_LOOKUP | SL_TENSOR_HEAD)))
        w->inputs = w->group == w->n_cols ? SL_INPUTS_ROWS : SL_INPUTS_GROUPS;
    if (activations != SL_ACT_FP8 && activations != SL_ACT_AUTO) w->inputs = SL_INPUTS_PLAIN;
}

static void set_activations(sl_model_weights *w, sl_activations activations) {
    sl_activations of_integers = activations == SL_ACT_AUTO || activations == SL_ACT_FP8 ? SL_ACT_INT16 : activations;
    for (int i = 0; i < w->n_tensors; i++) {
        set_inputs(&w->tensors[i], activations);
        if (sl_format_takes_integers(w->tensors[i].weight->format) &&
            (w->config->tied || !(w->tensors[i].flags & SL_TENSOR_LOOKUP)))
            w->tensors[i].weight->activations = of_integers;
    }
}

// ---- the part of a rank (models/cut.h) ----

// Makes *t->weight the part of this rank. Call it after the bind, which gives the whole weight its data or its recipe.
static int cut_tensor(const sl_config *c, sl_model_tensor *t, sl_error *err) {
    int is_vector = t->shape.n_rows == 0 && !t->same_as;
    if (c->shard.n < 2 || !(t->flags & (SL_TENSOR_CUT_ROWS | SL_TENSOR_CUT_COLS))) return 0;
    t->cut = t->flags & SL_TENSOR_CUT_ROWS ? SL_CUT_ROWS : SL_CUT_COLS;
    t->whole = *t->weight;
    int rc = sl_cut_shape(t->weight, t->cut, is_vector, &c->shard, err);
    if (rc || is_vector || !t->whole.data) return rc;
    if (t->cut == SL_CUT_ROWS)
        *t->weight = sl_cut_rows(&t->whole, 0, &c->shard);
    else
        t->weight->data = NULL; // until it is copied
    return 0;
}

// 1: the recipe makes the part and not the whole weight: each row is rounded alone.
static int makes_part(const sl_model_tensor *t) {
    return t->cut == SL_CUT_NOT || (t->cut == SL_CUT_ROWS && t->recipe.making == SL_MADE_ROUNDED);
}

// Bytes of sl_model_weights.made that the tensor takes.
static size_t made_bytes(const sl_model_tensor *t) {
    if (makes_part(t)) return sl_recipe_bytes(&t->recipe, t->weight);
    if (t->same_as || (t->cut == SL_CUT_ROWS && t->recipe.making == SL_MADE_NOT)) return 0;
    return sl_cut_bytes(t->weight, t->recipe.zero != NULL, t->recipe.index != NULL);
}

// Makes the whole weight in memory of its own, and copies the part.
static int make_cut(const sl_model_tensor *t, const sl_shard *shard, const sl_recipe *r, const void *plain, char *memory,
                    sl_error *err) {
    sl_weight whole = t->whole;
    size_t size = sl_recipe_bytes(r, &whole);
    char *made = size ? aligned_alloc(64, size) : NULL;
    if (size && !made) return sl_fail(err, SL_ERR_MEMORY, "%s: %zu MiB cannot be allocated", whole.name, size >> 20);
    if (made) memset(made, 0, size);
    if (plain && r->making == SL_MADE_NOT) whole.data = plain;
    int rc = r->making == SL_MADE_NOT ? 0 : sl_recipe_make(r, &whole, made, err);
    if (!rc) rc = sl_cut_copy(&whole, t->cut, shard, t->weight, memory, err);
    free(made);
    return rc;
}

int sl_model_weights_bind(const sl_config *config, const sl_tensors *tensors, const sl_quant *quant, sl_model_weights *out,
                          sl_error *err) {
    if (quant && quant->round.has_embedding && config->tied)
        return sl_fail(err, SL_ERR_ARG,
                       "{weights_embedding} %s: this model's embedding is tied to its head; {weights_head} gives the format of "
                       "both",
                       sl_formats[quant->round.embedding.format].name);
    int rc = sl_model_weights_init(config, out, err);
    for (int i = 0; !rc && i < out->n_tensors; i++) {
        sl_model_tensor *t = &out->tensors[i];
        if (t->same_as)
            *t->weight = *t->same_as;
        else
            rc = bind_tensor(out, tensors, quant, t, err);
    }
    if (!rc && quant) set_activations(out, quant->activations);
    for (int i = 0; !rc && i < out->n_tensors; i++) rc = cut_tensor(config, &out->tensors[i], err);
    if (rc) sl_model_weights_free(out);
    return rc;
}

int sl_model_weights_declare(const sl_config *config, const sl_quant *quant, sl_tensors **tensors, sl_model_weights *out,
                             sl_error *err) {
    int n = 0, rc = sl_model_weights_init(config, out, err);
    if (rc) return rc;
    sl_tensor_shape *shapes = calloc(out->n_tensors, sizeof *shapes);
    for (int i = 0; shapes && i < out->n_tensors; i++)
        if (!out->tensors[i].same_as) shapes[n++] = out->tensors[i].shape;
    rc = shapes ? sl_tensors_declare(shapes, n, tensors, err)
                : sl_fail(err, SL_ERR_MEMORY, "%d tensors: out of memory", out->n_tensors);
    free(shapes);
    sl_model_weights_free(out);
    return rc ? rc : sl_model_weights_bind(config, *tensors, quant, out, err);
}

sl_activations sl_model_weights_activations(const sl_model_weights *w) {
    for (int i = 0; i < w->n_tensors; i++)
        if (w->tensors[i].weight->activations != SL_ACT_FLOAT) return w->tensors[i].weight->activations;
    return SL_ACT_FLOAT;
}

int sl_model_weights_n_rounded_inputs(const sl_model_weights *w) {
    int n = 0;
    for (int i = 0; i < w->n_tensors; i++) n += !w->tensors[i].same_as && w->tensors[i].weight->inputs != SL_INPUTS_PLAIN;
    return n;
}

int sl_model_weights_have_data(const sl_model_weights *w) {
    for (int i = 0; i < w->n_tensors; i++)
        if (!w->tensors[i].weight->data) return 0;
    return 1;
}

size_t sl_model_weights_bytes(const sl_model_weights *w) {
    size_t n = 0;
    for (int i = 0; i < w->n_tensors; i++)
        if (!w->tensors[i].same_as) n += sl_recipe_read_bytes(&w->tensors[i].recipe, w->tensors[i].weight);
    return n;
}

size_t sl_model_weights_decode_bytes(const sl_model_weights *w) {
    size_t n = 0;
    for (int i = 0; i < w->n_tensors; i++)
        if (!(w->tensors[i].flags & SL_TENSOR_LOOKUP))
            n += sl_recipe_read_bytes(&w->tensors[i].recipe, sl_model_tensor_of_file(&w->tensors[i]));
    return n;
}

// ---- make weights ----

size_t sl_model_weights_bytes_to_make(const sl_model_weights *w) {
    size_t n = 0;
    for (int i = 0; !w->made && i < w->n_tensors; i++) n += made_bytes(&w->tensors[i]);
    return n;
}

int sl_model_weights_allocate(sl_model_weights *w, sl_error *err) {
    size_t size = sl_model_weights_bytes_to_make(w);
    SL_CHECK(!w->made);
    if (!size) return 0;
    void *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) return sl_fail(err, SL_ERR_MEMORY, "quantised weights: %zu MiB cannot be allocated", size >> 20);
#ifdef MADV_HUGEPAGE
    madvise(map, size, MADV_HUGEPAGE);
#endif
    w->made = map;
    w->made_size = size;
    return 0;
}

int sl_model_weights_make(sl_model_weights *w, int i, const void *plain, sl_error *err) {
    sl_model_tensor *t = &w->tensors[i];
    const sl_shard *shard = &w->config->shard;
    size_t at = 0;
    for (int j = 0; j < i; j++) at += made_bytes(&w->tensors[j]);
    if (t->same_as) *t->weight = t->cut == SL_CUT_NOT ? *t->same_as : sl_cut_rows(t->same_as, 0, shard);
    if (t->same_as || (t->recipe.making == SL_MADE_NOT && t->cut != SL_CUT_COLS)) return 0;
    sl_recipe r = t->recipe;
    if (plain) r.plain.data = plain;
    if (!makes_part(t)) return make_cut(t, shard, &r, plain, w->made + at, err);
    if (t->cut != SL_CUT_NOT) r.plain = sl_cut_rows(&r.plain, 0, shard);
    return sl_recipe_make(&r, t->weight, w->made + at, err);
}

// ---- place on a backend ----

enum { MOST_JOINED = 8 };

// The weights of tensor i and of the tensors that are joined to it. Returns their number.
static int joined(const sl_model_weights *w, int i, sl_weight **group) {
    int n = 0;
    do {
        SL_CHECK(n < MOST_JOINED);
        group[n] = w->tensors[i + n].weight;
        n++;
    } while (i + n < w->n_tensors && (w->tensors[i + n].flags & SL_TENSOR_JOINED));
    return n;
}

// Bytes of tensor i and of the tensors that are joined to it, in the backend's memory. Writes the number of tensors.
static size_t placed_bytes(const sl_model_weights *w, const sl_backend *be, int i, int *n) {
    sl_weight *group[MOST_JOINED], copies[MOST_JOINED];
    *n = joined(w, i, group);
    for (int j = 0; j < *n; j++) {
        const sl_recipe *r = &w->tensors[i + j].recipe;
        copies[j] = *group[j];
        group[j] = &copies[j];
        // Zero points and orders decide how a backend stores a weight. Before it is made, assume that it gets them.
        if (!copies[j].data && r->zero) copies[j].zero = r->zero->data;
        if (!copies[j].data && r->index) copies[j].order = r->index->data;
    }
    return be->placed_bytes(be, group, *n, w->tensors[i].cut);
}

// 1: a tied tensor of which a rank has some rows, and which a device may store in another order than the whole tensor's.
static int is_apart(const sl_model_tensor *t, const sl_weight *whole) {
    return t->same_as && t->cut != SL_CUT_NOT && sl_formats[whole->format].has_scale;
}

size_t sl_model_weights_placed_bytes(const sl_model_weights *w, const sl_backend *be) {
    size_t total = 0;
    for (int i = 0, n = 1; i < w->n_tensors; i += n)
        if (w->tensors[i].same_as && !is_apart(&w->tensors[i], w->tensors[i].same_as))
            n = 1;
        else
            total += placed_bytes(w, be, i, &n);
    return total;
}

void sl_model_weights_matrix_bytes(const sl_model_weights *w, const sl_backend *be, size_t *layers, size_t *head) {
    *layers = *head = 0;
    for (int i = 0, n = 1; i < w->n_tensors; i += n) {
        const sl_model_tensor *t = &w->tensors[i];
        size_t *to = t->same_as || (t->flags & SL_TENSOR_HEAD) ? head : layers;
        n = 1;
        if (t->weight->n_rows == 1 || (t->flags & SL_TENSOR_LOOKUP)) continue; // a vector, or the embedding table
        *to += be->placed_bytes ? placed_bytes(w, be, i, &n) : sl_recipe_read_bytes(&t->recipe, t->weight);
    }
}

// Writes a line about the quantised weights that the backend has made bf16: each kind with its number.
static void log_unpacked(const sl_model_weights *w, const sl_model_weights *placed, const sl_log *log) {
    static const char *const kinds[] = {"", " with zero points", " with columns in another order"};
    int counts[SL_N_FORMATS][3] = {0}, n = 0;
    char text[400] = "";
    for (int i = 0; i < w->n_tensors; i++) {
        const sl_weight *x = w->tensors[i].weight;
        if (w->tensors[i].same_as || !sl_formats[x->format].has_scale || placed->tensors[i].weight->format != SL_BF16) continue;
        counts[x->format][x->zero ? 1 : x->order ? 2 : 0]++;
        n++;
    }
    for (int f = 0; f < SL_N_FORMATS; f++)
        for (int k = 0; k < 3; k++) {
            size_t at = strlen(text);
            if (counts[f][k])
                snprintf(text + at, sizeof text - at, "%s%d %s%s", at ? ", " : "", counts[f][k], sl_formats[f].name, kinds[k]);
        }
    if (n) sl_log_line(log, "%d quantised weight%s bf16 on this GPU: %s", n, n == 1 ? " is" : "s are", text);
}

// Writes a line about the weights whose inputs the backend does not round, although the checkpoint or the caller asks for it.
static void log_plain_inputs(const sl_model_weights *w, const sl_model_weights *placed, const sl_log *log) {
    int all = sl_model_weights_n_rounded_inputs(w), n = all - sl_model_weights_n_rounded_inputs(placed);
    if (n)
        sl_log_line(log,
                    "prefills on this GPU use bf16 activations, not fp8, with %d of %d weights that ask for fp8 (docs/cuda.md)",
                    n, all);
}

int sl_model_weights_place(const sl_model_weights *w, const sl_backend *be, const sl_progress *progress,
                           const sl_cancel *cancel, const sl_log *log, sl_model_weights *placed, sl_error *err) {
    int rc = sl_model_weights_init(w->config, placed, err);
    if (rc) return rc;
    for (int i = 0; i < w->n_tensors; i++) *placed->tensors[i].weight = *w->tensors[i].weight;
    if (!be->place) return 0;
    for (int i = 0, n; !rc && i < w->n_tensors; i += n) {
        const sl_model_tensor *t = &placed->tensors[i];
        sl_weight *group[MOST_JOINED];
        n = 1;
        rc = sl_cancel_poll(cancel, err);
        if (rc) break;
        if (t->same_as && !is_apart(&w->tensors[i], t->same_as))
            *t->weight = w->tensors[i].cut == SL_CUT_NOT ? *t->same_as : sl_cut_rows(t->same_as, 0, &w->config->shard);
        else
            rc = be->place(be, group, n = joined(placed, i, group), w->tensors[i].cut, err);
        if (!rc) sl_progress_report(progress, i + n, w->n_tensors);
    }
    if (rc)
        sl_model_weights_free(placed);
    else
        log_unpacked(w, placed, log), log_plain_inputs(w, placed, log);
    return rc;
}

// ---- a second list ----

static int is_rounded(const sl_model_weights *w, int i) {
    return w->tensors[i].recipe.making == SL_MADE_ROUNDED;
}

size_t sl_model_weights_rounded_bytes(const sl_model_weights *w, const sl_backend *be) {
    size_t total = 0;
    for (int i = 0, n; i < w->n_tensors; i += n) {
        n = 1;
        if (!is_rounded(w, i)) continue;
        total += be->placed_bytes ? placed_bytes(w, be, i, &n) : sl_recipe_bytes(&w->tensors[i].recipe, w->tensors[i].weight);
    }
    return total;
}

// Weights that are joined are all rounded, or none of them is: all are matrices, or all are vectors.
static int place_rounded(const sl_model_weights *w, const sl_backend *be, const sl_cancel *cancel, sl_model_weights *placed,
                         sl_error *err) {
    int rc = 0;
    for (int i = 0, n; !rc && i < w->n_tensors; i += n) {
        sl_weight *group[MOST_JOINED];
        n = 1;
        if (!is_rounded(w, i)) continue;
        rc = sl_cancel_poll(cancel, err);
        if (!rc) rc = be->place(be, group, n = joined(placed, i, group), w->tensors[i].cut, err);
    }
    return rc;
}

int sl_model_weights_place_rounded(const sl_model_weights *w, const sl_backend *be, const sl_model_weights *first,
                                   const sl_cancel *cancel, const sl_log *log, sl_model_weights *placed, sl_error *err) {
    int rc = sl_model_weights_init(w->config, placed, err);
    if (rc) return rc;
    free(placed->rope.inv_freq);
    placed->rope = first->rope, placed->shares_rope = 1;
    for (int i = 0; i < w->n_tensors; i++)
        *placed->tensors[i].weight = is_rounded(w, i) ? *w->tensors[i].weight : *first->tensors[i].weight;
    if (be->place) rc = place_rounded(w, be, cancel, placed, err);
    for (int i = 0; i < w->n_tensors; i++)
        if (placed->tensors[i].same_as) *placed->tensors[i].weight = *placed->tensors[i].same_as;
    if (rc)
        sl_model_weights_free(placed);
    else
        log_unpacked(w, placed, log);
    return rc;
}
