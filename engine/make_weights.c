// engine/make_weights.c - weights without data: dummy weights, weights that are packed in a GGUF file, quantised weights. A
// load or the caller makes them in host memory (sl_model_materialise).
#include "backend/dummy_weights.h"
#include "base/thread_pool.h"
#include "engine/engine_internal.h"
#include "models/gguf_tensors.h"

#include <stdlib.h>

int sl_model_is_dummy(const sl_model *model) {
    return model->is_dummy;
}

int sl_model_device_makes(const sl_model *model, const sl_backend *be) {
    return be->is_device && model->is_dummy && sl_quantise_is_plain(&model->quant.round);
}

// ---- bytes ----

size_t sl_model_bytes_to_allocate(const sl_model *model) {
    size_t all = sl_model_weights_bytes(&model->weights), allocated;
    sl_tensors_memory(model->tensors, &allocated);
    allocated += model->weights.made_size;
    return all > allocated ? all - allocated : 0;
}

// Bytes of the weights without data: what sl_model_materialise allocates. Dummy weights that are rounded are made one after the
// other.
static size_t bytes_to_make(const sl_model *model) {
    size_t n = sl_model_weights_bytes_to_make(&model->weights), largest = 0;
    if (!model->is_dummy) return n + sl_tensors_bytes_to_allocate(model->tensors);
    for (int i = 0; i < model->weights.n_tensors; i++) {
        const sl_model_tensor *t = &model->weights.tensors[i];
        size_t plain = sl_weight_bytes(t->recipe.making == SL_MADE_ROUNDED ? &t->recipe.plain : t->weight);
        if (t->same_as) continue;
        if (t->recipe.making == SL_MADE_NOT && !t->weight->data) n += plain;
        if (t->recipe.making == SL_MADE_ROUNDED && !t->recipe.plain.data && plain > largest) largest = plain;
    }
    return n + largest;
}

// ---- random numbers ----

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

// Makes numbers [first, first + n) of a tensor in pieces, to report progress. data: [first + n]
static void make_numbers(const sl_tensor *t, dummy_tables *tables, const sl_progress *progress, size_t *done, size_t total,
                         size_t first, size_t n, bf16 *data) {
    enum { PIECE = 1 << 23, MIB = 20 }; // elements: 16 MiB
    uint64_t key = sl_dummy_key(t->name);
    const bf16 *quantiles = t->n_dims > 1 ? quantiles_of(tables, sl_dummy_deviation(t->name, (int)t->dims[1])) : NULL;
    for (size_t i = first, end = first + n; i < end; i += PIECE) {
        size_t m = end - i < PIECE ? end - i : PIECE;
        if (quantiles)
            sl_dummy_fill(key, quantiles, i, m, data + i);
        else
            for (size_t j = 0; j < m; j++) data[i + j] = sl_dummy_vector(t->name);
        *done += m * sizeof *data;
        sl_progress_report(progress, (int)(*done >> MIB), (int)(total >> MIB));
    }
}

// Makes every weight: plain ones, unless only_rounded, in the memory of their tensors, and those that are rounded, or whose
// columns are cut, in a buffer. Of a plain tensor whose rows are cut only the part is made; the system commits no memory for
// the rest.
static int make_dummy(sl_model_weights *w, const sl_tensors *tensors, int only_rounded, const sl_progress *progress,
                      sl_error *err) {
    size_t done = 0, total = sl_tensors_bytes(tensors);
    dummy_tables tables = {.quantiles = malloc(2 * SL_DUMMY_QUANTILES * sizeof *tables.quantiles)};
    int rc = tables.quantiles ? 0 : sl_fail(err, SL_ERR_MEMORY, "dummy weights: out of memory");
    for (int i = 0; !rc && i < w->n_tensors; i++) {
        const sl_tensor *t = w->tensors[i].same_as ? NULL : sl_tensors_find(tensors, w->tensors[i].shape.name);
        const sl_model_tensor *m = &w->tensors[i];
        int is_rounded = t && m->recipe.making == SL_MADE_ROUNDED, is_part = t && m->cut == SL_CUT_ROWS && !is_rounded;
        int is_aside = is_rounded || (t && m->cut == SL_CUT_COLS);
        if (only_rounded && !is_rounded) continue;
        bf16 *buffer = is_aside ? malloc(t->n_bytes) : NULL;
        size_t n = t ? t->n_bytes / sizeof *buffer : 0, part = is_part ? n / (size_t)w->config->shard.n : n;
        if (is_aside && !buffer)
            rc = sl_fail(err, SL_ERR_MEMORY, "dummy weights: out of memory");
        else if (t) // the memory of sl_tensors_allocate is writable
            make_numbers(t, &tables, progress, &done, total, is_part ? part * (size_t)w->config->shard.rank : 0, part,
                         is_aside ? buffer : (bf16 *)t->data);
        if (!rc) rc = sl_model_weights_make(w, i, buffer, err);
        free(buffer);
    }
    free(tables.quantiles);
    return rc;
}

// ---- weights of files ----

static int make_quantised(sl_model_weights *w, const sl_progress *progress, const sl_cancel *cancel, sl_error *err) {
    int rc = 0;
    for (int i = 0; !rc && w->made && i < w->n_tensors; i++) {
        rc = sl_cancel_poll(cancel, err);
        if (!rc) rc = sl_model_weights_make(w, i, NULL, err);
        if (!rc) sl_progress_report(progress, i + 1, w->n_tensors);
    }
    return rc;
}

// The tensors get memory and numbers, and the weights are bound again.
static int make_weights(sl_model *model, const sl_progress *progress, const sl_cancel *cancel, sl_model_weights *out,
                        sl_error *err) {
    int rc =
        model->is_dummy ? sl_tensors_allocate(model->tensors, err) : sl_tensors_unpack(model->tensors, progress, cancel, err);
    *out = (sl_model_weights){0};
    if (!rc) rc = sl_model_weights_bind(&model->config, model->tensors, &model->quant, out, err);
    if (!rc) rc = sl_model_weights_allocate(out, err);
    if (!rc && model->is_dummy) rc = make_dummy(out, model->tensors, 0, progress, err);
    if (!rc && !model->is_dummy) rc = make_quantised(out, progress, cancel, err);
    if (!rc) return 0;
    sl_model_weights_free(out);
    if (model->is_dummy) sl_tensors_release(model->tensors); // another call allocates again
    return rc;
}

int sl_model_materialise(sl_model *model, int n_threads, const sl_progress *progress, const sl_cancel *cancel, sl_error *err) {
    if (sl_model_weights_have_data(&model->weights)) return 0;
    size_t total = bytes_to_make(model), room = sl_cpu_memory()->free_memory(sl_cpu_memory());
    if (total > room) // Linux would grant the memory and kill the process at its first use
        return sl_fail(err, SL_ERR_MEMORY, "%s of %zu MiB do not fit into memory: %zu MiB are free",
                       model->is_dummy ? "dummy weights" : "unpacked weights", total >> 20, room >> 20);
    sl_threads *threads;
    int rc = sl_threads_open(sl_model_threads(model, n_threads), &threads, err);
    if (rc) return rc;
    sl_threads *outside = sl_threads_use(threads);
    sl_model_weights made;
    rc = make_weights(model, progress, cancel, &made, err);
    sl_threads_use(outside);
    sl_threads_close(threads);
    if (rc) return rc;
    sl_model_weights_free(&model->weights);
    model->weights = made;
    model->weights.config = &model->part;
    return 0;
}

// ---- a second list ----

// SL_ERR_ARG: a matrix is packed in a GGUF file.
static int check_plain(const sl_model *model, const sl_model_weights *list, const char *format, sl_error *err) {
    for (int i = 0; !model->is_dummy && i < list->n_tensors; i++) {
        const sl_model_tensor *t = &list->tensors[i];
        if (t->recipe.making == SL_MADE_ROUNDED && !t->recipe.plain.data)
            return sl_fail(err, SL_ERR_ARG, "{draft} weights=%s: %s of %s is quantised already; expected plain weights", format,
                           t->shape.name, model->name);
    }
    return 0;
}

int sl_model_list_rounded(const sl_model *model, const char *format, sl_model_weights *out, sl_error *err) {
    sl_quant quant = {.activations = model->quant.activations};
    int rc = sl_quantise_parse(&(sl_quantise_texts){.weights = format}, &quant.round, err);
    if (rc) return rc;
    if (model->quant.method)
        return sl_fail(err, SL_ERR_ARG,
                       "{draft} weights=%s: the weights of %s are quantised already (%.40s); expected plain weights", format,
                       model->name, model->quant.method);
    if (model->quant.round.linear.format == quant.round.linear.format)
        return sl_fail(err, SL_ERR_ARG,
                       "{draft} weights=%s: the weights of %s are %s already ({weights}); expected another format", format,
                       model->name, format);
    rc = sl_model_weights_bind(&model->config, model->tensors, &quant, out, err);
    if (!rc) rc = check_plain(model, out, format, err);
    if (rc)
        sl_model_weights_free(out);
    else
        out->config = &model->part; // the dimensions of passes
    return rc;
}

int sl_model_make_rounded(const sl_model *model, sl_model_weights *list, const sl_cancel *cancel, sl_error *err) {
    int rc = sl_model_weights_allocate(list, err);
    if (rc) return rc;
    return model->is_dummy ? make_dummy(list, model->tensors, 1, NULL, err) : make_quantised(list, NULL, cancel, err);
}
