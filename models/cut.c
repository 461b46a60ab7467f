// models/cut.c - see cut.h.
#include "models/cut.h"

#include <string.h>

static size_t padded(size_t n) {
    return (n + 63) / 64 * 64;
}

static int refuse(const sl_weight *w, int n, const char *what, int found, int divisor, sl_error *err) {
    return sl_fail(err, SL_ERR_UNSUPPORTED, "{tensor_parallel} %d: %s has %d %s; expected a multiple of %d", n, w->name, found,
                   what, divisor);
}

int sl_cut_shape(sl_weight *w, sl_cut cut, int is_vector, const sl_shard *shard, sl_error *err) {
    int n = shard->n, by_rows = cut == SL_CUT_ROWS && !is_vector, values = sl_formats[w->format].n_values;
    int unit = by_rows ? (w->scale_rows > 1 ? w->scale_rows : 1) : w->group && w->group < w->n_cols ? w->group : values;
    int *dim = by_rows ? &w->n_rows : &w->n_cols;
    if (cut == SL_CUT_NOT) return 0;
    if (*dim % (n * unit)) return refuse(w, n, by_rows ? "rows" : "columns", *dim, n * unit, err);
    if (is_vector && w->data) w->data = sl_cut_rows(w, 1, shard).data;
    int is_one_group = w->group == w->n_cols;
    *dim /= n;
    if (!by_rows && is_one_group) w->group = w->n_cols;
    return 0;
}

sl_weight sl_cut_rows(const sl_weight *whole, int is_vector, const sl_shard *shard) {
    sl_weight w = *whole;
    int *dim = is_vector ? &w.n_cols : &w.n_rows, n = *dim / shard->n, first = n * shard->rank;
    size_t at = sl_weight_groups(whole) ? sl_weight_scale_at(whole, (size_t)first) : 0;
    w.data = is_vector ? (const char *)whole->data + sl_format_bytes(whole->format, (size_t)first)
                       : sl_weight_row(whole, (size_t)first);
    if (w.scale) w.scale += at;
    if (w.zero) w.zero += at;
    if (w.min) w.min += at;
    *dim = n;
    return w;
}

size_t sl_cut_bytes(const sl_weight *part, int has_zero, int has_order) {
    size_t n = sl_weight_scales(part);
    return padded((size_t)part->n_rows * sl_weight_row_bytes(part)) + padded(n * sizeof *part->scale) +
           (has_zero ? padded(n) : 0) + (sl_formats[part->format].has_min ? padded(n * sizeof *part->min) : 0) +
           (has_order ? padded((size_t)part->n_cols * sizeof *part->order) : 0);
}

static void *take(char **at, size_t n) {
    void *p = *at;
    *at += padded(n);
    return p;
}

// Copies n_rows runs of n bytes that begin `from` bytes after the begin of rows of `stride` bytes. data NULL: nothing
static void *copy_runs(char **at, const void *data, size_t n_rows, size_t stride, size_t from, size_t n) {
    char *to = data ? take(at, n_rows * n) : NULL;
    for (size_t r = 0; to && r < n_rows; r++) memcpy(to + r * n, (const char *)data + r * stride + from, n);
    return to;
}

int sl_cut_copy(const sl_weight *whole, sl_cut cut, const sl_shard *shard, sl_weight *part, char *memory, sl_error *err) {
    const sl_weight rows = cut == SL_CUT_ROWS ? sl_cut_rows(whole, 0, shard) : *whole;
    size_t n_rows = (size_t)part->n_rows, row = sl_weight_row_bytes(&rows), groups = (size_t)sl_weight_groups(&rows);
    size_t own_row = sl_weight_row_bytes(part), own = (size_t)sl_weight_groups(part),
           rank = cut == SL_CUT_COLS ? (size_t)shard->rank : 0;
    size_t n_scale_rows = own ? sl_weight_scales(part) / own : 0;
    size_t first = own == groups ? 0 : rank * own; // a row with one scale has it in every part
    char *at = memory;
    if (whole->order && cut == SL_CUT_COLS)
        return sl_fail(
            err, SL_ERR_UNSUPPORTED,
            "{tensor_parallel} %d: the columns of %s have another order (desc_act of GPTQ); expected a checkpoint without "
            "desc_act",
            shard->n, whole->name);
    part->data = copy_runs(&at, rows.data, n_rows, row, rank * own_row, own_row);
    part->scale = copy_runs(&at, rows.scale, n_scale_rows, groups * sizeof *part->scale, first * sizeof *part->scale,
                            own * sizeof *part->scale);
    part->zero = copy_runs(&at, rows.zero, n_scale_rows, groups, first, own);
    part->min =
        copy_runs(&at, rows.min, n_scale_rows, groups * sizeof *part->min, first * sizeof *part->min, own * sizeof *part->min);
    part->order = copy_runs(&at, rows.order, 1, 0, 0, (size_t)part->n_cols * sizeof *part->order);
    return 0;
}
