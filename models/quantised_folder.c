// models/quantised_folder.c - see quantised_folder.h.
#include "models/quantised_folder.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "models/compressed_config.h"
#include "models/output_folder.h"
#include "models/tensors_writer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A tensor of the model, and what it becomes.
typedef struct item {
    const sl_tensor *from;
    const sl_model_tensor *rounded; // NULL: the tensor is copied
    sl_folder_kind *kind;
    int file, data, scale, shape; // file: its number, from 0; data, scale, shape: tensors of its writer
} item;

typedef struct run {
    const sl_folder_job *job;
    sl_output_folder out;
    item *items; // [n]
    int n, n_files;
    size_t done, total; // bytes of the model's tensors
    sl_error *err;
} run;

static int out_of_memory(const run *r) {
    return sl_fail(r->err, SL_ERR_MEMORY, "%s: out of memory", r->job->to);
}

// ---- the plan ----

static const sl_model_tensor *rounded_of(const sl_model_weights *w, const char *name) {
    for (int i = 0; i < w->n_tensors; i++)
        if (!w->tensors[i].same_as && w->tensors[i].recipe.making == SL_MADE_ROUNDED && !strcmp(w->tensors[i].shape.name, name))
            return &w->tensors[i];
    return NULL;
}

// The largest group up to `group` that divides the columns of all matrices with this format; 0: none.
static int fitting_group(const sl_model_weights *w, int group) {
    for (int g = group / SL_WEIGHT_GROUP * SL_WEIGHT_GROUP; g > 0; g -= SL_WEIGHT_GROUP) {
        int fits = 1;
        for (int i = 0; i < w->n_tensors; i++)
            if (w->tensors[i].weight->format == SL_INT4 && w->tensors[i].weight->n_cols % g) fits = 0;
        if (fits) return g;
    }
    return 0;
}

static int check_matrix(const run *r, const item *it) {
    const sl_weight *w = it->rounded->weight;
    int is_head = (it->rounded->flags & (SL_TENSOR_HEAD | SL_TENSOR_LOOKUP)) != 0, values = w->format == SL_INT4 ? 8 : 4;
    int group = is_head ? r->job->specs->head.group : r->job->specs->linear.group;
    const char *option = is_head ? "weights_head" : "weights", *name = sl_formats[w->format].name;
    if (it->rounded->flags & SL_TENSOR_LOOKUP)
        return sl_fail(r->err, SL_ERR_ARG, "{%s} %s: compressed-tensors has no rounded embedding, and tensor %s of %s is one",
                       option, name, it->from->name, it->from->file);
    if (w->format == SL_INT4 && w->n_cols % group) {
        int fits = fitting_group(r->job->weights, group);
        char hint[40] = "int8";
        if (fits) snprintf(hint, sizeof hint, "int4:group=%d", fits);
        return sl_fail(r->err, SL_ERR_ARG,
                       "{%s} int4:group=%d: tensor %s of %s has %d columns, expected a multiple of the group; %s fits", option,
                       group, it->from->name, it->from->file, w->n_cols, hint);
    }
    if (w->format == SL_FP8 || w->n_cols % values == 0) return 0;
    return sl_fail(r->err, SL_ERR_UNSUPPORTED, "{%s} %s: tensor %s of %s has %d columns, expected a multiple of %d", option,
                   name, it->from->name, it->from->file, w->n_cols, values);
}

// "up_proj" of "model.layers.0.mlp.up_proj.weight"
static void kind_name(const char *tensor, char name[SL_TENSOR_NAME]) {
    const char *end = strrchr(tensor, '.'), *from = tensor;
    if (!end) end = tensor + strlen(tensor);
    for (const char *p = tensor; p < end; p++)
        if (*p == '.') from = p + 1;
    snprintf(name, SL_TENSOR_NAME, "%.*s%s", (int)(end - from), from, *end && strcmp(end, ".weight") ? end : "");
}

static sl_folder_kind *kind_of(sl_folder_report *report, const item *it) {
    char name[SL_TENSOR_NAME];
    kind_name(it->from->name, name);
    for (int i = 0; i < report->n_kinds; i++)
        if (!strcmp(report->kinds[i].name, name)) return &report->kinds[i];
    sl_folder_kind *kind = &report->kinds[report->n_kinds++];
    *kind = (sl_folder_kind){.format = it->rounded ? sl_formats[it->rounded->weight->format].name : "plain"};
    strcpy(kind->name, name);
    return kind;
}

static size_t scale_bytes(const sl_weight *w) {
    return sl_weight_scales(w) * sizeof(bf16);
}

enum { SHAPE_BYTES = 2 * sizeof(int64_t) }; // of weight_shape

static size_t bytes_of(const item *it) {
    const sl_weight *w = it->rounded ? it->rounded->weight : NULL;
    if (!w) return it->from->n_bytes;
    return (size_t)w->n_rows * sl_weight_row_bytes(w) + scale_bytes(w) + (w->format == SL_FP8 ? 0 : SHAPE_BYTES);
}

static int plan(run *r, sl_folder_report *report) {
    size_t in_file = 0;
    int n = sl_tensors_count(r->job->tensors), rc = 0;
    r->items = calloc((size_t)n + 1, sizeof *r->items);
    report->kinds = calloc((size_t)n + 1, sizeof *report->kinds);
    if (!r->items || !report->kinds) return out_of_memory(r);
    for (; !rc && r->n < n; r->n++) {
        item *it = &r->items[r->n];
        it->from = sl_tensors_at(r->job->tensors, r->n);
        it->rounded = rounded_of(r->job->weights, it->from->name);
        if (it->rounded) rc = check_matrix(r, it);
        size_t bytes = bytes_of(it);
        if (in_file && in_file + bytes > r->job->most_bytes) r->n_files++, in_file = 0;
        in_file += bytes;
        it->file = r->n_files;
        it->kind = kind_of(report, it);
        it->kind->n_tensors++;
        it->kind->bytes_in += it->from->n_bytes, it->kind->bytes_out += bytes;
        r->total += it->from->n_bytes;
    }
    report->n_files = ++r->n_files;
    return rc;
}

// ---- the tensors of a file ----

static int declare_part(sl_tensors_writer *w, const item *it, const char *part, const char *dtype, int64_t rows, int64_t cols,
                        size_t n_bytes, int *out, sl_error *err) {
    char name[SL_TENSOR_NAME + 16];
    size_t n = strlen(it->from->name) - strlen("weight"); // the name of a matrix ends so
    snprintf(name, sizeof name, "%.*s%s", (int)n, it->from->name, part);
    *out = sl_tensors_writer_declare(w, name, dtype, (const int64_t[]){rows, cols}, cols ? 2 : 1, n_bytes, err);
    return *out < 0 ? *out : 0;
}

static int declare(sl_tensors_writer *w, item *it, sl_error *err) {
    const sl_tensor *t = it->from;
    if (!it->rounded) {
        it->data = sl_tensors_writer_declare(w, t->name, t->dtype_name, t->dims, t->n_dims, t->n_bytes, err);
        return it->data < 0 ? it->data : 0;
    }
    const sl_weight *x = it->rounded->weight;
    int is_packed = x->format != SL_FP8, word = x->format == SL_INT4 ? 8 : x->format == SL_INT8 ? 4 : 1;
    int rc = declare_part(w, it, is_packed ? "weight_packed" : "weight", is_packed ? "I32" : "F8_E4M3", x->n_rows,
                          x->n_cols / word, (size_t)x->n_rows * sl_weight_row_bytes(x), &it->data, err);
    if (!rc) rc = declare_part(w, it, "weight_scale", "BF16", x->n_rows, sl_weight_groups(x), scale_bytes(x), &it->scale, err);
    if (!rc && is_packed) rc = declare_part(w, it, "weight_shape", "I64", 2, 0, SHAPE_BYTES, &it->shape, err);
    return rc;
}

// ---- the data ----

// Counts bytes of the model as done.
static int advance(run *r, size_t n) {
    enum { MIB = 20 };
    r->done += n;
    sl_progress_report(r->job->progress, (int)(r->done >> MIB), (int)(r->total >> MIB));
    return sl_cancel_poll(r->job->cancel, r->err);
}

static int copy(run *r, sl_tensors_writer *w, const item *it) {
    enum { PIECE = 32 << 20 };
    int rc = 0;
    for (size_t at = 0, n; !rc && at < it->from->n_bytes; at += n) {
        n = it->from->n_bytes - at < PIECE ? it->from->n_bytes - at : PIECE;
        rc = sl_tensors_writer_put(w, it->data, at, (const char *)it->from->data + at, n, r->err);
        if (!rc) rc = advance(r, n);
    }
    return rc;
}

// Some rows of a matrix.
typedef struct rows_job {
    sl_weight plain, rounded;
    float *wide;          // [threads][2][n_cols]
    double *error, *size; // [n_rows] sums of squares
} rows_job;

static void measure_row(void *ctx, size_t row, int thread) {
    const rows_job *b = ctx;
    size_t n = (size_t)b->plain.n_cols;
    float *x = b->wide + 2 * n * (size_t)thread, *y = x + n;
    double error = 0, size = 0;
    sl_weight_widen(&b->plain, row, x);
    sl_weight_widen(&b->rounded, row, y);
    for (size_t i = 0; i < n; i++) {
        error += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        size += (double)x[i] * x[i];
    }
    b->error[row] = error, b->size[row] = size;
}

// Changes the rows to what the file holds: int8 is stored as q + 128, scales as bf16.
static void to_file_format(const sl_weight *w, uint8_t *data, float *scale) {
    size_t n_bytes = (size_t)w->n_rows * sl_weight_row_bytes(w), n_scales = sl_weight_scales(w);
    bf16 *stored = (bf16 *)scale; // in place
    for (size_t i = 0; w->format == SL_INT8 && i < n_bytes; i++) data[i] ^= 128;
    for (size_t i = 0; i < n_scales; i++) {
        bf16 x = sl_f32_to_bf16(scale[i]);
        memcpy(stored + i, &x, sizeof x);
    }
}

// Rounds and writes rows [first, first + b->plain.n_rows) of a matrix.
static int write_rows(run *r, sl_tensors_writer *w, const item *it, int first, rows_job *b) {
    const sl_weight *x = it->rounded->weight, *plain = &it->rounded->recipe.plain;
    size_t row_bytes = sl_weight_row_bytes(x), row_scales = (size_t)sl_weight_groups(x), n = (size_t)b->plain.n_rows;
    sl_error why;
    b->plain.data = sl_weight_row(plain, (size_t)first);
    int rc = sl_quantise(&b->plain, &b->rounded, &why);
    if (rc) return sl_fail(r->err, (sl_err)rc, "%s: %s", it->from->file, why.message);
    sl_parallel(n, measure_row, b);
    for (size_t i = 0; i < n; i++) it->kind->error += b->error[i], it->kind->size += b->size[i];
    it->kind->n_values += (double)n * x->n_cols;
    to_file_format(&b->rounded, (uint8_t *)b->rounded.data, (float *)b->rounded.scale);
    rc = sl_tensors_writer_put(w, it->data, (size_t)first * row_bytes, b->rounded.data, n * row_bytes, r->err);
    if (!rc)
        rc = sl_tensors_writer_put(w, it->scale, (size_t)first * row_scales * sizeof(bf16), b->rounded.scale,
                                   n * row_scales * sizeof(bf16), r->err);
    return rc ? rc : advance(r, n * sl_weight_row_bytes(plain));
}

static int round_matrix(run *r, sl_tensors_writer *w, const item *it) {
    enum { ELEMENTS = 8 << 20 };
    const sl_weight *x = it->rounded->weight;
    const int64_t shape[2] = {x->n_rows, x->n_cols};
    int step = ELEMENTS / x->n_cols + 1, rc = 0;
    if (step > x->n_rows) step = x->n_rows;
    size_t n_scales = (size_t)step * (size_t)sl_weight_groups(x), n_cols = (size_t)x->n_cols;
    void *data = malloc((size_t)step * sl_weight_row_bytes(x));
    float *scale = malloc(n_scales * sizeof *scale), *wide = malloc(2 * (size_t)sl_threads_n() * n_cols * sizeof *wide);
    double *sums = malloc(2 * (size_t)step * sizeof *sums);
    if (!data || !scale || !wide || !sums) rc = out_of_memory(r);
    for (int first = 0; !rc && first < x->n_rows; first += step) {
        rows_job b = {.plain = it->rounded->recipe.plain, .rounded = *x, .wide = wide, .error = sums, .size = sums + step};
        b.plain.n_rows = b.rounded.n_rows = x->n_rows - first < step ? x->n_rows - first : step;
        b.rounded.data = data, b.rounded.scale = scale;
        rc = write_rows(r, w, it, first, &b);
    }
    if (!rc && x->format != SL_FP8) rc = sl_tensors_writer_put(w, it->shape, 0, shape, sizeof shape, r->err);
    free(data), free(scale), free(wide), free(sums);
    return rc;
}

// ---- files ----

static void file_name(const run *r, int file, char name[64]) {
    if (r->n_files == 1)
        strcpy(name, "model.safetensors");
    else
        snprintf(name, 64, "model-%05d-of-%05d.safetensors", file + 1, r->n_files);
}

static int write_file(run *r, int file, json_t *map) {
    char path[4400], name[64];
    sl_tensors_writer w;
    file_name(r, file, name);
    snprintf(path, sizeof path, "%.4000s/%s", r->out.tmp, name);
    int rc = sl_tensors_writer_init(&w, path, r->err);
    for (int i = 0; !rc && i < r->n; i++)
        if (r->items[i].file == file) rc = declare(&w, &r->items[i], r->err);
    for (int i = 0; !rc && i < w.n; i++)
        if (json_object_set_new(map, w.tensors[i].name, json_string(name))) rc = out_of_memory(r);
    if (!rc) rc = sl_tensors_writer_begin(&w, r->err);
    for (int i = 0; !rc && i < r->n; i++) {
        const item *it = &r->items[i];
        if (it->file == file) rc = it->rounded ? round_matrix(r, &w, it) : copy(r, &w, it);
    }
    int closed = sl_tensors_writer_end(&w, !rc, r->err);
    return rc ? rc : closed;
}

static int put_json(const run *r, const char *name, json_t *root) {
    char *text = root ? json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    int rc = text ? sl_output_folder_put(&r->out, name, text, strlen(text), r->err) : out_of_memory(r);
    free(text);
    json_decref(root);
    return rc;
}

static int write_files(run *r, const sl_folder_report *report) {
    json_t *map = json_object();
    size_t bytes = 0;
    int rc = map ? 0 : out_of_memory(r);
    for (int i = 0; !rc && i < r->n_files; i++) rc = write_file(r, i, map);
    for (int i = 0; i < report->n_kinds; i++) bytes += report->kinds[i].bytes_out;
    if (!rc && r->n_files > 1)
        rc = put_json(r, "model.safetensors.index.json",
                      json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)bytes, "weight_map", map));
    json_decref(map);
    return rc;
}

static int write_config(const run *r) {
    sl_text text = {0};
    int rc = sl_compressed_config(r->job->from, r->job->specs, &text, r->err);
    if (!rc) rc = sl_output_folder_put(&r->out, "config.json", text.data, text.n, r->err);
    sl_text_free(&text);
    return rc;
}

int sl_quantised_folder_write(const sl_folder_job *job, sl_folder_report *report, sl_error *err) {
    run r = {.job = job, .err = err};
    *report = (sl_folder_report){0};
    int rc = plan(&r, report);
    if (!rc) rc = sl_output_folder_begin(&r.out, job->to, err);
    if (!rc) rc = write_config(&r);
    if (!rc) rc = sl_output_folder_copy(&r.out, job->from, err);
    if (!rc) rc = write_files(&r, report);
    int ended = sl_output_folder_end(&r.out, !rc, err);
    free(r.items);
    return rc ? rc : ended;
}

void sl_folder_report_free(sl_folder_report *report) {
    free(report->kinds);
    *report = (sl_folder_report){0};
}
