// models/gguf_tensors.c - see gguf_tensors.h.
#include "models/gguf_tensors.h"
#include "base/thread_pool.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- names ----

static const struct {
    const char *file, *name;
    int is_permuted; // 1: rows of query heads; 2: rows of key heads
} layer_names[] = {
    {"attn_norm", "input_layernorm", 0},    {"attn_q", "self_attn.q_proj", 1},
    {"attn_k", "self_attn.k_proj", 2},      {"attn_v", "self_attn.v_proj", 0},
    {"attn_q_norm", "self_attn.q_norm", 0}, {"attn_k_norm", "self_attn.k_norm", 0},
    {"attn_output", "self_attn.o_proj", 0}, {"ffn_norm", "post_attention_layernorm", 0},
    {"ffn_gate", "mlp.gate_proj", 0},       {"ffn_up", "mlp.up_proj", 0},
    {"ffn_down", "mlp.down_proj", 0},
};

static const char *const model_names[][2] = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
};

// Writes the name of Hugging Face. Returns is_permuted of the table; -1: unknown.
static int rename_tensor(const char *file_name, char *name, size_t size) {
    char part[64], kind[8];
    int layer, end = 0;
    for (size_t i = 0; i < sizeof model_names / sizeof *model_names; i++)
        if (!strcmp(file_name, model_names[i][0])) {
            snprintf(name, size, "%s", model_names[i][1]);
            return 0;
        }
    if (sscanf(file_name, "blk.%4d.%63[a-z_].%7[a-z]%n", &layer, part, kind, &end) != 3 || file_name[end] || layer < 0 ||
        (strcmp(kind, "weight") && strcmp(kind, "bias")))
        return -1;
    for (size_t i = 0; i < sizeof layer_names / sizeof *layer_names; i++)
        if (!strcmp(part, layer_names[i].file)) {
            snprintf(name, size, "model.layers.%d.%s.%s", layer, layer_names[i].name, kind);
            return layer_names[i].is_permuted;
        }
    return -1;
}

// ---- the list ----

static int is_plain(const sl_block_type *type) { // the backends read it as it is
    return type->n_values == 1;
}

static int64_t count_values(const sl_gguf_tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->n_dims; i++) n *= t->dims[i];
    return n;
}

// 1: the quantised matrices need at most `most` bytes as fp32.
static int fit_as_fp32(const sl_gguf *g, size_t most) {
    size_t n = 0;
    for (int i = 0; i < g->n_tensors; i++)
        if (!is_plain(g->tensors[i].type)) n += 4 * (size_t)count_values(&g->tensors[i]);
    return n <= most;
}

typedef struct choice { // how quantised matrices are stored
    int keep_blocks;    // 1: packed
    int wide;           // 1: unpacked into fp32; 0: into fp16
} choice;

// Bytes of the weight that a recipe makes of a matrix.
static size_t kept_bytes(const sl_gguf_tensor *t) {
    const sl_block_type *type = t->type;
    size_t rows = (size_t)t->dims[1], cols = (size_t)t->dims[0], n_scales = rows * (cols / (size_t)type->group);
    return rows * sl_format_bytes(type->format, cols) + n_scales * sizeof(float) * (sl_formats[type->format].has_min ? 2 : 1);
}

// heads: whose rows are permuted; 0: none.
static int convert(const sl_gguf_tensor *from, int heads, choice how, const char *name, sl_tensor *to, sl_error *err) {
    int64_t n_rows = from->dims[from->n_dims - 1];
    *to = (sl_tensor){.name = strdup(name), .file = from->file, .n_dims = from->n_dims};
    if (!to->name) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", from->file);
    for (int i = 0; i < from->n_dims; i++) to->dims[i] = from->dims[from->n_dims - 1 - i];
    if (heads && (n_rows % (2 * heads) || (from->n_dims == 1 && !is_plain(from->type))))
        return sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s has %lld rows of type %s, expected a multiple of %d for %d heads",
                       from->file, from->name, (long long)n_rows, from->type->name, 2 * heads, heads);
    int plain = is_plain(from->type), kept = how.keep_blocks && !plain && from->n_dims == 2;
    int as_fp32 = !strcmp(from->type->name, "F32") || (!plain && (how.wide || from->n_dims == 1));
    snprintf(to->dtype_name, sizeof to->dtype_name, "%s",
             kept      ? sl_formats[from->type->format].name
             : plain   ? from->type->name
             : as_fp32 ? "F32"
                       : "F16");
    to->n_bytes = kept ? kept_bytes(from) : (size_t)count_values(from) * (as_fp32 ? 4 : 2);
    if (plain && !heads) {
        to->data = from->data;
        return 0;
    }
    to->packed.type = from->type;
    to->packed.data = from->data;
    to->packed.n_bytes = from->n_bytes;
    to->packed.n_heads = heads;
    to->packed.is_kept = kept;
    return 0;
}

int sl_gguf_tensors(sl_gguf *g, int n_heads, int n_kv_heads, int keep_blocks, size_t most_fp32, sl_tensors **out,
                    sl_error *err) {
    sl_tensor *tensors = calloc((size_t)g->n_tensors + 1, sizeof *tensors);
    choice how = {keep_blocks, fit_as_fp32(g, most_fp32)};
    int n = 0, rc = tensors ? 0 : sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", g->path);
    for (int i = 0; !rc && i < g->n_tensors; i++) {
        const sl_gguf_tensor *from = &g->tensors[i];
        char name[160];
        if (!strcmp(from->name, "rope_freqs.weight")) continue; // a part of config.json (gguf_config.c)
        int permuted = rename_tensor(from->name, name, sizeof name);
        if (permuted < 0) {
            rc = sl_fail(err, SL_ERR_UNSUPPORTED, "%s: tensor %s is not supported", from->file, from->name);
        } else {
            rc = convert(from, permuted == 1 ? n_heads : permuted == 2 ? n_kv_heads : 0, how, name, &tensors[n], err);
            n++;
        }
    }
    if (rc) {
        for (int i = 0; i < n; i++) free((char *)tensors[i].name);
        free(tensors);
        return rc;
    }
    sl_tensor_file *files = g->files;
    int n_files = g->n_files;
    g->files = NULL, g->n_files = 0;
    return sl_tensors_of_files(files, n_files, tensors, n, out, err);
}

// ---- numbers ----

// The row of the file that holds row r: in the file, row 2 i + p of a head is row p * (n / 2) + i of Hugging Face, with n rows
// of a head.
static int64_t row_in_file(int64_t r, int64_t n) {
    int64_t head = r / n, p = r % n / (n / 2), i = r % (n / 2);
    return head * n + 2 * i + p;
}

// Makes n numbers of a quantised row. Returns 0 when one of them is not finite.
static int unpack_row(const sl_block_type *type, const unsigned char *from, int64_t n, int as_fp32, void *to) {
    float y[SL_BLOCK_MOST];
    int is_finite = 1;
    for (int64_t at = 0; at < n; at += type->n_values, from += type->n_bytes) {
        sl_block_unpack(type, from, y);
        for (int j = 0; j < type->n_values; j++) is_finite &= fabsf(y[j]) < (as_fp32 ? INFINITY : 65520);
        if (as_fp32)
            memcpy((float *)to + at, y, (size_t)type->n_values * sizeof *y);
        else
            for (int j = 0; j < type->n_values; j++) ((f16 *)to)[at + j] = sl_f32_to_f16(y[j]);
    }
    return is_finite;
}

typedef struct unpacker {
    const sl_tensor *t;
    int64_t n_rows, n_cols, head_rows; // head_rows 0: the rows are in order
    size_t row_size, file_row_size;    // bytes
    int as_fp32;
    char *to;
} unpacker;

static unpacker unpacker_of(const sl_tensor *t) {
    unpacker u = {.t = t, .n_rows = t->dims[0], .n_cols = 1, .to = (char *)t->data, .as_fp32 = !strcmp(t->dtype_name, "F32")};
    for (int i = 1; i < t->n_dims; i++) u.n_cols *= t->dims[i];
    if (t->n_dims == 1 && !t->packed.n_heads) u.n_rows = 1, u.n_cols = t->dims[0];
    if (t->packed.n_heads) u.head_rows = u.n_rows / t->packed.n_heads;
    u.row_size = (size_t)u.n_cols * (u.as_fp32 ? 4 : 2);
    u.file_row_size = (size_t)(u.n_cols / t->packed.type->n_values) * t->packed.type->n_bytes;
    return u;
}

static const unsigned char *file_row(const unpacker *u, int64_t r) {
    return u->t->packed.data + (size_t)(u->head_rows ? row_in_file(r, u->head_rows) : r) * u->file_row_size;
}

static int make_row(const unpacker *u, int64_t r) {
    const sl_block_type *type = u->t->packed.type;
    const unsigned char *from = file_row(u, r);
    char *to = u->to + (size_t)r * u->row_size;
    if (!is_plain(type)) return unpack_row(type, from, u->n_cols, u->as_fp32, to);
    memcpy(to, from, u->row_size);
    return 1;
}

typedef struct rows_call {
    const unpacker *u;
    int64_t first;
    atomic_int is_finite;
} rows_call;

static void make_rows(void *ctx, size_t i, int thread) {
    (void)thread;
    rows_call *c = ctx;
    if (!make_row(c->u, c->first + (int64_t)i)) c->is_finite = 0;
}

static int not_finite(const sl_tensor *t, const char *also, sl_error *err) {
    return sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s: a number is not finite%s (the file is damaged?)", t->file, t->name,
                   also);
}

// Makes a tensor in pieces, to report progress and to ask whether to stop.
static int unpack(const sl_tensor *t, const sl_progress *progress, const sl_cancel *cancel, size_t *done, size_t total,
                  sl_error *err) {
    enum { PIECE = 16 << 20, MIB = 20 };
    unpacker u = unpacker_of(t);
    int64_t step = u.row_size < PIECE ? (int64_t)(PIECE / u.row_size) : 1;
    rows_call c = {.u = &u, .is_finite = 1};
    for (int64_t first = 0; first < u.n_rows; first += step) {
        int64_t end = first + step < u.n_rows ? first + step : u.n_rows;
        int rc = sl_cancel_poll(cancel, err);
        if (rc) return rc;
        c.first = first;
        sl_parallel((size_t)(end - first), make_rows, &c);
        *done += (size_t)(end - first) * u.row_size;
        sl_progress_report(progress, (int)(*done >> MIB), (int)(total >> MIB));
    }
    if (c.is_finite) return 0;
    return not_finite(t, u.as_fp32 ? "" : ", or beyond 65504", err);
}

int sl_tensors_unpack(sl_tensors *t, const sl_progress *progress, const sl_cancel *cancel, sl_error *err) {
    size_t total = sl_tensors_bytes_to_allocate(t), done = 0;
    if (!total) return 0;
    int rc = sl_tensors_allocate(t, err);
    for (int i = 0; !rc && i < sl_tensors_count(t); i++)
        if (sl_tensors_at(t, i)->packed.type && !sl_tensors_at(t, i)->packed.is_kept)
            rc = unpack(sl_tensors_at(t, i), progress, cancel, &done, total, err);
    if (rc) sl_tensors_release(t);
    return rc;
}

// ---- blocks that become a weight ----

typedef struct split_call {
    unpacker u;
    uint8_t *data;
    float *scale, *min;
    atomic_int is_finite;
} split_call;

static void split_row(void *ctx, size_t r, int thread) {
    (void)thread;
    split_call *c = ctx;
    const sl_block_type *type = c->u.t->packed.type;
    const unsigned char *from = file_row(&c->u, (int64_t)r);
    size_t n_blocks = (size_t)(c->u.n_cols / type->n_values), n_scales = (size_t)(type->n_values / type->group);
    size_t block_bytes = sl_format_bytes(type->format, (size_t)type->n_values), first = r * n_blocks * n_scales;
    uint8_t *data = c->data + r * n_blocks * block_bytes;
    int has_min = sl_formats[type->format].has_min, is_finite = 1;
    for (size_t i = 0, at = first; i < n_blocks; i++, at += n_scales)
        sl_block_split(type, from + i * type->n_bytes, data + i * block_bytes, c->scale + at, has_min ? c->min + at : NULL);
    for (size_t i = first; i < first + n_blocks * n_scales; i++)
        is_finite &= isfinite(c->scale[i]) && (!has_min || isfinite(c->min[i]));
    if (!is_finite) c->is_finite = 0;
}

int sl_gguf_split(const sl_tensor *t, uint8_t *data, float *scale, float *min, sl_error *err) {
    split_call c = {.u = unpacker_of(t), .data = data, .scale = scale, .min = min, .is_finite = 1};
    sl_parallel((size_t)c.u.n_rows, split_row, &c);
    return c.is_finite ? 0 : not_finite(t, "", err);
}
