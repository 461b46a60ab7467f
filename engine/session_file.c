// engine/session_file.c - sl_session_save and sl_session_load: a session as a file of the safetensors format.
//
// docs/session-file.md describes the tensors and the metadata. Page extras are not in the file: they are functions of the rows,
// so a load builds them again.
#include "engine/engine_internal.h"
#include "kv/kv_offload.h"
#include "base/hash.h"
#include "base/number.h"
#include "base/whole_file.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT "sleigh-session-3"

#define NO_CHECKSUM "0000000000000000" // the place of a number of 64 bits

enum { OTHER_PREFILL = -2 }; // version of a segment of methods that this engine does not prefill with

// ---- what a file must have in common with an engine ----

// What determines the values of K, V and the logits, besides the tokens.
typedef struct identity {
    char weights[SL_HASH_TEXT]; // sl_model_weights_hash, or "dummy", or "dummy " and a number of the formats
    char shape[320];
    char rope[256];
    const char *head;     // "tied": the embeddings, "own"
    char arithmetic[256]; // bits differ between different arithmetics
} identity;

static void identify(const sl_engine *e, identity *out) {
    const sl_config *c = &e->model->config;
    const sl_quantise_specs *round = &e->model->quant.round;
    sl_config_describe_rope(c, out->rope, sizeof out->rope);
    out->head = c->tied ? "tied" : "own";
    if (e->model->is_dummy && sl_quantise_is_plain(round))
        snprintf(out->weights, sizeof out->weights, "dummy");
    else if (e->model->is_dummy)
        snprintf(out->weights, sizeof out->weights, "dummy %016llx",
                 (unsigned long long)sl_quantise_hash(round, SL_FNV1A_START));
    else
        sl_hash_text(sl_model_weights_hash(e->model), out->weights);
    sl_print(out->shape, sizeof out->shape,
             "%s, %d layers, hidden %d, MLP %d, %d heads, %d KV heads, head_dim %d, vocabulary %d, norm_eps %.9g",
             c->model_type, c->n_layers, c->hidden, c->n_ffn, c->n_heads, c->n_kv_heads, c->head_dim, c->n_vocab,
             (double)c->norm_eps);
    if (e->device.backend->is_device)
        e->device.backend->describe(e->device.backend, out->arithmetic, sizeof out->arithmetic);
    else
        sl_cpu_arithmetic(out->arithmetic, sizeof out->arithmetic);
    sl_activations activations = sl_model_weights_activations(&e->model->weights);
    sl_engine_append_inputs(e, out->arithmetic, sizeof out->arithmetic);
    size_t n = strlen(out->arithmetic);
    if (!e->device.backend->is_device && activations != SL_ACT_FLOAT)
        snprintf(out->arithmetic + n, sizeof out->arithmetic - n, ", activations of %d bits",
                 activations == SL_ACT_INT8 ? 8 : 16);
}

// The methods of sparse prefills, layer by layer, and the segment. The caller frees *out with sl_text_free.
static int format_prefill(const sl_engine *e, sl_text *out, sl_error *err) {
    char text[256];
    int n = snprintf(text, sizeof text, "%d", e->prefill.segment_tokens), rc = sl_text_append(out, text, (size_t)n, err);
    for (int i = 0; !rc && e->prefill.segment_tokens && i < e->geom.n_layers; i++) {
        sl_attn_format(&e->prefill.plan.layer[i], text, sizeof text);
        rc = sl_text_append(out, " ", 1, err);
        if (!rc) rc = sl_text_append(out, text, strlen(text), err);
    }
    return rc;
}

// ---- rows ----

// The tensors of the cache, in the order of the file. A cache without scales has the first two.
enum { K, V, K_SCALE, V_SCALE, N_PARTS };

static sl_format format_of(const sl_engine *e, int part) {
    return part == K || part == K_SCALE ? e->device.formats.k : e->device.formats.v;
}
static int has_part(const sl_engine *e, int part) {
    return part < K_SCALE || sl_formats[format_of(e, part)].has_scale;
}
static size_t row_bytes(const sl_engine *e, int part) {
    return part < K_SCALE ? sl_format_bytes(format_of(e, part), (size_t)e->geom.head_dim) : sizeof(float);
}
static const char *part_name(int part) {
    static const char *const names[N_PARTS] = {"k", "v", "k_scale", "v_scale"};
    return names[part];
}
static const char *part_dtype(const sl_engine *e, int part) {
    if (part >= K_SCALE) return "F32";
    return format_of(e, part) == SL_FP8 ? "F8_E4M3" : format_of(e, part) == SL_INT8 ? "I8" : "BF16";
}
static int part_dims(const sl_engine *e, int part, int n_tokens, int64_t dims[4]) { // returns their number
    const sl_attn_geom *g = &e->geom;
    dims[0] = g->n_layers, dims[1] = g->n_kv_heads, dims[2] = n_tokens, dims[3] = g->head_dim;
    return part < K_SCALE ? 4 : 3;
}

typedef struct row_run { // a part's rows of one page, layer and KV head: [n] of row_bytes
    char *rows;
    size_t n_bytes, row; // bytes of all rows, and of one
    int offloaded;       // row i begins at rows + 2 i row, in host memory
} row_run;

// Run `page_index` of layer and head h of a part of a session's rows.
static row_run run_of(const sl_session *s, int part, int layer, int h, int page_index) {
    const sl_kv_pool *pool = &s->engine->device.pool;
    int left = s->kv.n_tokens - page_index * SL_PAGE, n = left < SL_PAGE ? left : SL_PAGE;
    size_t row = row_bytes(s->engine, part), n_bytes = (size_t)n * row;
    if (pool->offload) {
        bf16 *at = sl_kv_offloaded_row(pool, layer, s->kv.pages[page_index], h, 0);
        return (row_run){(char *)(at + (part == V ? pool->head_dim : 0)), n_bytes, row, 1};
    }
    const sl_kv_rows rows = sl_kv_layer(pool, layer);
    const void *of = part == K || part == K_SCALE ? rows.k : rows.v;
    size_t block = (size_t)s->kv.pages[page_index] * pool->n_kv_heads + h;
    sl_kv_run run = sl_kv_run_of(of, format_of(s->engine, part), pool->head_dim, block);
    return (row_run){(char *)(part < K_SCALE ? run.data : run.scale), n_bytes, row, 0};
}

// Calls fn with each run, in the order of the file: part by part [n_layers][n_kv_heads][n_tokens]. fn returns 0 to stop.
typedef int (*run_fn)(void *ctx, const sl_backend *be, row_run run);
static int each_run(const sl_session *s, run_fn fn, void *ctx, const sl_progress *progress) {
    const sl_kv_pool *pool = &s->engine->device.pool;
    int n_pages = sl_kv_pages_of(s->kv.n_tokens), ok = 1;
    for (int i = 0; ok && i < N_PARTS * pool->n_layers; i++) {
        if (!has_part(s->engine, i / pool->n_layers)) continue;
        for (int h = 0; ok && h < pool->n_kv_heads; h++)
            for (int p = 0; ok && p < n_pages; p++)
                ok = fn(ctx, s->engine->device.backend, run_of(s, i / pool->n_layers, i % pool->n_layers, h, p));
        // Scales are few bytes, and are not reported. A report after an error would change errno.
        if (ok && i < 2 * pool->n_layers) sl_progress_report(progress, i + 1, 2 * pool->n_layers);
    }
    return ok;
}

// ---- writing ----

typedef struct writer {
    FILE *f;
    const sl_text *messages; // NULL: none
    void *bounce;            // a run in host memory
    sl_text header;
    size_t at;             // bytes of data that the header has declared
    size_t checksum_at;    // the place of the checksum in the header
    uint64_t checksum;     // of the data so far
    unsigned char rest[8]; // the last n_rest bytes of the data so far, which are not in the checksum yet
    size_t n_rest;
    int rc; // 0, or the error of the header or of the device
    sl_error *err;
} writer;

__attribute__((format(printf, 2, 3))) static void add(writer *w, const char *format, ...) {
    char text[1024];
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    SL_CHECK(n >= 0 && n < (int)sizeof text);
    if (!w->rc) w->rc = sl_text_append(&w->header, text, (size_t)n, w->err);
}

// The texts are plain: no quotes, backslashes and control characters.
static void add_metadata(writer *w, const char *key, const char *value) {
    add(w, "%s\"%s\":\"", w->header.n && w->header.data[w->header.n - 1] == '{' ? "" : ",", key);
    if (!w->rc) w->rc = sl_text_append(&w->header, value, strlen(value), w->err);
    add(w, "\"");
}

static void add_number(writer *w, const char *key, long long value) {
    char text[32];
    snprintf(text, sizeof text, "%lld", value);
    add_metadata(w, key, text);
}

static void add_tensor(writer *w, const char *name, const char *dtype, const char *shape, size_t n_bytes) {
    add(w, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}", name, dtype, shape, w->at, w->at + n_bytes);
    w->at += n_bytes;
}

static void add_all_metadata(writer *w, const sl_session *s, const identity *own, const sl_text *prefill) {
    char key[32], text[256];
    add(w, "{\"__metadata__\":{");
    add_metadata(w, "format", FORMAT);
    add_metadata(w, "checksum", NO_CHECKSUM); // known at the end
    w->checksum_at = w->header.n - strlen(NO_CHECKSUM) - 1;
    add_metadata(w, "weights", own->weights);
    add_metadata(w, "shape", own->shape);
    add_metadata(w, "rope", own->rope);
    add_metadata(w, "head", own->head);
    add_metadata(w, "arithmetic", own->arithmetic);
    add_number(w, "sequence", s->sequence);
    add_number(w, "n_prefilled", s->n_prefilled);
    add_metadata(w, "prefill", prefill->data);
    for (int i = 0; i < s->engine->geom.n_layers; i++) {
        if (!s->state[i].data) continue;
        snprintf(key, sizeof key, "state.%d", i);
        sl_attn_format(&s->state[i].spec, text, sizeof text);
        add_metadata(w, key, text);
    }
    add(w, "}");
}

static void add_all_tensors(writer *w, const sl_session *s) {
    const sl_engine *e = s->engine;
    char shape[96], name[32];
    size_t n_rows = (size_t)e->geom.n_layers * e->geom.n_kv_heads * s->kv.n_tokens;
    for (int part = 0; part < N_PARTS; part++) {
        int64_t dims[4];
        int n_dims = part_dims(e, part, s->kv.n_tokens, dims), n = 0;
        for (int i = 0; i < n_dims; i++)
            n += snprintf(shape + n, sizeof shape - (size_t)n, "%s%lld", i ? "," : "", (long long)dims[i]);
        if (has_part(e, part)) add_tensor(w, part_name(part), part_dtype(e, part), shape, n_rows * row_bytes(e, part));
    }
    snprintf(shape, sizeof shape, "%d", s->kv.n_tokens);
    add_tensor(w, "ids", "I32", shape, (size_t)s->kv.n_tokens * sizeof(int32_t));
    if (s->has_logits) {
        snprintf(shape, sizeof shape, "%d", e->model->config.n_vocab);
        add_tensor(w, "logits", "F32", shape, (size_t)e->model->config.n_vocab * sizeof(float));
    }
    if (s->n_segments) {
        snprintf(shape, sizeof shape, "%d,3", s->n_segments);
        add_tensor(w, "segments", "I32", shape, (size_t)s->n_segments * 3 * sizeof(int32_t));
    }
    for (int i = 0; i < e->geom.n_layers; i++) {
        if (!s->state[i].data) continue;
        snprintf(name, sizeof name, "state.%d", i);
        snprintf(shape, sizeof shape, "%zu", s->state[i].size);
        add_tensor(w, name, "U8", shape, s->state[i].size);
    }
    if (w->messages) {
        snprintf(shape, sizeof shape, "%zu", w->messages->n);
        add_tensor(w, "messages", "U8", shape, w->messages->n);
    }
    add(w, "}");
    while (!w->rc && w->header.n % 8) add(w, " ");
}

// Writes data. The checksum takes groups of 8 bytes, wherever calls divide the data.
static int write_bytes(writer *w, const void *data, size_t n) {
    const unsigned char *p = data;
    size_t left = n;
    for (; left && w->n_rest; p++, left--) {
        w->rest[w->n_rest++] = *p;
        if (w->n_rest == 8) w->checksum = sl_checksum(w->checksum, w->rest, 8), w->n_rest = 0;
    }
    if (!w->n_rest) {
        w->checksum = sl_checksum(w->checksum, p, left / 8 * 8);
        w->n_rest = left % 8;
        memcpy(w->rest, p + left / 8 * 8, w->n_rest);
    }
    return fwrite(data, 1, n, w->f) == n;
}

static int write_checksum(writer *w) {
    char text[sizeof NO_CHECKSUM];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)sl_checksum(w->checksum, w->rest, w->n_rest));
    return !fseek(w->f, (long)(8 + w->checksum_at), SEEK_SET) && fwrite(text, 1, strlen(text), w->f) == strlen(text);
}

static int write_run(void *ctx, const sl_backend *be, row_run run) {
    writer *w = ctx;
    for (size_t at = 0; run.offloaded && at < run.n_bytes; at += run.row)
        memcpy((char *)w->bounce + at, run.rows + 2 * at, run.row);
    if (run.offloaded) return write_bytes(w, w->bounce, run.n_bytes);
    if (be->is_device) be->download(be, w->bounce, run.rows, run.n_bytes);
    return write_bytes(w, be->is_device ? w->bounce : run.rows, run.n_bytes);
}

static int write_segments(const sl_session *s, writer *w) {
    int ok = 1;
    for (int i = 0; ok && i < s->n_segments; i++) {
        const struct sl_segment *g = &s->segments[i];
        int version = g->version < 0 ? g->version : g->version == s->engine->prefill.version ? 0 : OTHER_PREFILL;
        const int32_t out[3] = {g->first, g->end, version};
        ok = write_bytes(w, out, sizeof out);
    }
    return ok;
}

static int write_states(const sl_session *s, writer *w) {
    const sl_backend *be = s->engine->device.backend;
    int ok = 1;
    for (int i = 0; ok && i < s->engine->geom.n_layers; i++) {
        const struct sl_method_state *state = &s->state[i];
        if (!state->data) continue;
        void *host = be->is_device ? malloc(state->size) : state->data;
        if (be->is_device && host) be->download(be, host, state->data, state->size);
        ok = host && write_bytes(w, host, state->size);
        if (be->is_device) free(host);
    }
    return ok;
}

// add_all_tensors has the same order of tensors.
static int write_all(const sl_session *s, writer *w, const sl_progress *progress) {
    unsigned char size[8];
    for (int i = 0; i < 8; i++) size[i] = (unsigned char)((uint64_t)w->header.n >> 8 * i);
    int ok = fwrite(size, sizeof size, 1, w->f) == 1 && fwrite(w->header.data, 1, w->header.n, w->f) == w->header.n;
    ok = ok && each_run(s, write_run, w, progress);
    ok = ok && write_bytes(w, s->ids, (size_t)s->kv.n_tokens * sizeof *s->ids);
    if (ok && s->has_logits)
        ok = write_bytes(w, sl_session_last_logits(s), (size_t)s->engine->model->config.n_vocab * sizeof(float));
    ok = ok && write_segments(s, w) && write_states(s, w);
    ok = ok && (!w->messages || write_bytes(w, w->messages->data, w->messages->n));
    ok = ok && write_checksum(w);
    int why = errno;
    w->rc = s->engine->device.backend->finish(s->engine->device.backend, w->err); // a copy from the GPU may have failed
    errno = why;                                                                  // for sl_whole_file_close
    return ok && !w->rc;
}

int sl_session_save_chat(const sl_session *s, const char *path, const sl_text *messages, const sl_progress *progress,
                         sl_error *err) {
    sl_engine *e = s->engine;
    identity own;
    sl_text prefill = {0};
    sl_whole_file file;
    writer w = {.messages = messages, .err = err};
    if (s->kv.n_tokens == 0) return sl_fail(err, SL_ERR_ARG, "%s: the session to save is empty", path);
    int rc = sl_engine_check_whole(e, "a session file", err);
    if (!rc) rc = sl_engine_enter(e, err);
    if (rc) return rc;
    identify(e, &own);
    sl_kv_write_out(&e->device.pool, &s->kv); // the host reads the rows below
    rc = e->device.pool.offload ? e->device.backend->finish(e->device.backend, err) : 0;
    if (!rc) rc = sl_check_ids(e, s->ids, s->kv.n_tokens, err);
    if (!rc) rc = format_prefill(e, &prefill, err);
    if (!rc && !(w.bounce = malloc((size_t)SL_PAGE * e->device.pool.head_dim * sizeof(bf16))))
        rc = sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path);
    if (!rc) {
        add_all_metadata(&w, s, &own, &prefill);
        add_all_tensors(&w, s);
        rc = w.rc;
    }
    if (!rc) {
        sl_error of_file;
        w.f = sl_whole_file_open(&file, path, 0666);
        rc = sl_whole_file_close(&file, w.f && write_all(s, &w, progress), &of_file);
        if (rc && !w.rc && err) *err = of_file;
        if (w.rc) rc = w.rc;
    }
    sl_engine_leave(e);
    free(w.bounce);
    sl_text_free(&w.header);
    sl_text_free(&prefill);
    return rc;
}

int sl_session_save(const sl_session *s, const char *path, const sl_progress *progress, sl_error *err) {
    return sl_session_save_chat(s, path, NULL, progress, err);
}

// ---- reading ----

typedef struct reader {
    const char *path;
    const sl_tensors *tensors;
    const sl_engine *engine;
    identity own;
    int n_tokens;
} reader;

static const char *metadata(const reader *r, const char *key) {
    const char *value = sl_tensors_metadata(r->tensors, key);
    return value ? value : "missing";
}

static int expect_metadata(const reader *r, const char *key, const char *expected, sl_error *err) {
    const char *found = metadata(r, key);
    if (!strcmp(found, expected)) return 0;
    return sl_fail(err, sl_tensors_metadata(r->tensors, key) ? SL_ERR_ARG : SL_ERR_FORMAT,
                   "%s: metadata %s is %.200s, expected %.200s", r->path, key, found, expected);
}

static int read_number(const reader *r, const char *key, long long max, long long *out, sl_error *err) {
    const char *text = metadata(r, key);
    char *end;
    *out = strtoll(text, &end, 10);
    if (end != text && !*end && *out >= 0 && *out <= max) return 0;
    return sl_fail(err, SL_ERR_FORMAT, "%s: metadata %s is %.60s, expected a number from 0 to %lld", r->path, key, text, max);
}

// A tensor of this dtype and number of bytes, whose shape begins with dims. NULL with the reason in *err
static const sl_tensor *find(const reader *r, const char *name, const char *dtype, int n_dims, const int64_t *dims,
                             sl_error *err) {
    const sl_tensor *t = sl_tensors_find(r->tensors, name);
    char found[160] = "", expected[160] = "";
    if (!t) {
        sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s is missing", r->path, name);
        return NULL;
    }
    if (!strcmp(t->dtype_name, dtype) && t->n_dims == n_dims && !memcmp(t->dims, dims, (size_t)n_dims * sizeof *dims)) return t;
    sl_format_dims(t->dims, t->n_dims, found, sizeof found);
    sl_format_dims(dims, n_dims, expected, sizeof expected);
    sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s is %s %s, expected %s %s", r->path, name, t->dtype_name, found, dtype, expected);
    return NULL;
}

static int check_file(reader *r, sl_error *err) {
    int rc = expect_metadata(r, "format", FORMAT, err);
    if (!rc) rc = expect_metadata(r, "shape", r->own.shape, err);
    if (!rc) rc = expect_metadata(r, "weights", r->own.weights, err);
    if (!rc) rc = expect_metadata(r, "rope", r->own.rope, err);
    if (!rc) rc = expect_metadata(r, "head", r->own.head, err);
    for (int part = K; !rc && part <= V; part++) {
        const sl_tensor *t = sl_tensors_find(r->tensors, part_name(part));
        if (t && strcmp(t->dtype_name, part_dtype(r->engine, part)))
            rc =
                sl_fail(err, SL_ERR_ARG,
                        "%s: tensor %s is %s, expected %s; pass the {cache_type_k} and {cache_type_v} of the run that wrote it",
                        r->path, part_name(part), t->dtype_name, part_dtype(r->engine, part));
    }
    const sl_tensor *ids = sl_tensors_find(r->tensors, "ids");
    if (rc) return rc;
    if (!ids || strcmp(ids->dtype_name, "I32") || ids->n_dims != 1 || ids->dims[0] < 1 || ids->dims[0] > INT32_MAX)
        return sl_fail(err, SL_ERR_FORMAT, "%s: expected a tensor ids of dtype I32 with one dimension", r->path);
    if (ids->dims[0] > r->engine->n_ctx)
        return sl_fail(err, SL_ERR_CONTEXT, "%s: the session has %lld tokens, and {n_ctx} is %d", r->path,
                       (long long)ids->dims[0], r->engine->n_ctx);
    r->n_tokens = (int)ids->dims[0];
    const int32_t *id = (const int32_t *)ids->data;
    int bad = sl_find_bad_id(r->engine, id, r->n_tokens);
    return bad == r->n_tokens ? 0
                              : sl_fail(err, SL_ERR_FORMAT, "%s: tensor ids: token %d is %d, expected 0 to %d", r->path, bad,
                                        id[bad], r->engine->model->config.n_vocab - 1);
}

// Of the bytes of all tensors.
static int check_checksum(const reader *r, sl_error *err) {
    const sl_tensor_file *f = sl_tensors_file(r->tensors, 0);
    uint64_t n_header = 0; // at most the size of the file, or the file would not be open
    char found[sizeof NO_CHECKSUM];
    for (int i = 0; i < 8; i++) n_header |= (uint64_t)(unsigned char)f->map[i] << 8 * i;
    size_t begin = 8 + (size_t)n_header;
    snprintf(found, sizeof found, "%016llx", (unsigned long long)sl_checksum(0, f->map + begin, f->size - begin));
    if (!strcmp(found, metadata(r, "checksum"))) return 0;
    return sl_fail(err, SL_ERR_FORMAT, "%s: the tensors have the checksum %s, expected %.60s: the file is damaged", r->path,
                   found, metadata(r, "checksum"));
}

static int read_run(void *ctx, const sl_backend *be, row_run run) {
    const char **from = ctx;
    for (size_t at = 0; run.offloaded && at < run.n_bytes; at += run.row) memcpy(run.rows + 2 * at, *from + at, run.row);
    if (!run.offloaded) be->upload(be, run.rows, *from, run.n_bytes);
    *from += run.n_bytes;
    return 1;
}

static int read_rows(const reader *r, sl_session *s, const sl_progress *progress, sl_error *err) {
    sl_kv_pool *pool = &s->engine->device.pool;
    const char *from = NULL, *end = NULL, *before = NULL;
    for (int part = 0; part < N_PARTS; part++) {
        int64_t dims[4];
        int n_dims = part_dims(s->engine, part, r->n_tokens, dims);
        if (!has_part(s->engine, part)) continue;
        const sl_tensor *t = find(r, part_name(part), part_dtype(s->engine, part), n_dims, dims, err);
        if (!t) return SL_ERR_FORMAT;
        if (part == K) from = end = t->data;
        if (t->data != end)
            return sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s does not follow tensor %s", r->path, part_name(part), before);
        end += t->n_bytes, before = part_name(part);
    }
    int rc = sl_kv_reserve(pool, &s->kv, r->n_tokens, err);
    if (!rc && pool->offload)
        rc = s->engine->device.backend->finish(s->engine->device.backend, err); // no kernel writes these pages any more
    if (rc) return rc;
    s->kv.n_tokens = r->n_tokens;
    memcpy(s->ids, sl_tensors_find(r->tensors, "ids")->data, (size_t)r->n_tokens * sizeof *s->ids);
    each_run(s, read_run, &from, progress);
    sl_kv_publish(pool, &s->kv);
    return s->engine->device.backend->finish(s->engine->device.backend, err);
}

static int read_logits(const reader *r, sl_session *s, sl_error *err) {
    const int64_t shape[] = {s->engine->model->config.n_vocab};
    if (!sl_tensors_find(r->tensors, "logits")) return 0;
    const sl_tensor *t = find(r, "logits", "F32", 1, shape, err);
    if (!t) return SL_ERR_FORMAT;
    memcpy(s->logits, t->data, t->n_bytes);
    s->has_logits = 1, s->n_logits++;
    return 0;
}

// A segment keeps its version if this engine prefills with the methods of the file.
static int read_segments(const reader *r, sl_session *s, sl_error *err) {
    const sl_tensor *t = sl_tensors_find(r->tensors, "segments");
    sl_text own = {0};
    if (!t) return 0;
    int64_t n = t->n_dims ? t->dims[0] : 0;
    if (!find(r, "segments", "I32", 2, (const int64_t[]){n, 3}, err)) return SL_ERR_FORMAT;
    if (n < 1 || n > r->n_tokens)
        return sl_fail(err, SL_ERR_FORMAT, "%s: %lld segments, expected 1 to %d", r->path, (long long)n, r->n_tokens);
    s->segments = malloc((size_t)n * sizeof *s->segments);
    if (!s->segments) return sl_fail(err, SL_ERR_MEMORY, "%lld segments: out of memory", (long long)n);
    s->cap_segments = (int)n;
    int rc = format_prefill(s->engine, &own, err), is_same = !rc && !strcmp(own.data, metadata(r, "prefill"));
    sl_text_free(&own);
    for (int i = 0, before = 0; !rc && i < n; i++) {
        const int32_t *g = (const int32_t *)t->data + 3 * i;
        if (g[0] < before || g[1] <= g[0] || g[1] > r->n_tokens || g[2] > 0 || g[2] < OTHER_PREFILL)
            return sl_fail(err, SL_ERR_FORMAT, "%s: segment %d has tokens %d to %d and version %d, expected %d to %d at most",
                           r->path, i, g[0], g[1] - 1, g[2], before, r->n_tokens - 1);
        int version = g[2] < 0 ? g[2] : is_same ? s->engine->prefill.version : OTHER_PREFILL;
        s->segments[s->n_segments++] = (struct sl_segment){g[0], g[1], version};
        before = g[1];
    }
    return rc;
}

// The states of the layers whose method is the engine's. The other layers begin as after a prefill.
static int read_states(const reader *r, sl_session *s, sl_error *err) {
    const sl_backend *be = s->engine->device.backend;
    int rc = sl_session_sync_state(s, err);
    if (rc || strcmp(metadata(r, "arithmetic"), r->own.arithmetic)) return rc;
    for (int i = 0; i < s->engine->geom.n_layers; i++) {
        struct sl_method_state *state = &s->state[i];
        char name[32], spec[256];
        snprintf(name, sizeof name, "state.%d", i);
        sl_attn_format(&state->spec, spec, sizeof spec);
        if (!state->data || strcmp(metadata(r, name), spec)) continue;
        const sl_tensor *t = find(r, name, "U8", 1, (const int64_t[]){(int64_t)state->size}, err);
        if (!t) return SL_ERR_FORMAT;
        be->upload(be, state->data, t->data, state->size);
    }
    return be->finish(be, err);
}

static int read_session(const reader *r, sl_session *s, const sl_progress *progress, sl_error *err) {
    long long sequence = 0, n_prefilled = 0;
    int rc = read_number(r, "sequence", UINT32_MAX, &sequence, err);
    if (!rc) rc = read_number(r, "n_prefilled", r->n_tokens, &n_prefilled, err);
    if (!rc) rc = read_rows(r, s, progress, err);
    if (!rc) rc = read_logits(r, s, err);
    if (!rc) rc = read_segments(r, s, err);
    if (!rc) rc = read_states(r, s, err);
    if (rc) return rc;
    s->sequence = (uint32_t)sequence;
    s->n_prefilled = (int)n_prefilled;
    sl_session_build_extras(s);
    return 0;
}

static int read_messages(const reader *r, sl_text *out, sl_error *err) {
    const sl_tensor *t = sl_tensors_find(r->tensors, "messages");
    if (!t || !out) return 0;
    if (!find(r, "messages", "U8", 1, (const int64_t[]){t->n_dims ? t->dims[0] : 0}, err)) return SL_ERR_FORMAT;
    return sl_text_append(out, t->data, t->n_bytes, err);
}

// The methods that format_prefill wrote.
static int read_prefill(const reader *r, sl_session_head *out, sl_error *err) {
    char text[256], *end;
    const char *at = metadata(r, "prefill");
    const sl_attn_spec dense = {.method = &sl_method_dense};
    long segment = strtol(at, &end, 10);
    if (end == at || segment < 0 || segment > INT32_MAX)
        return sl_fail(err, SL_ERR_FORMAT, "%s: metadata prefill is %.60s, expected the tokens of a segment first", r->path,
                       at);
    out->segment = (int)segment;
    if (!segment) return 0;
    int n_layers = r->engine->geom.n_layers, rc = sl_attn_plan_init(&out->prefill, n_layers, &dense, err);
    for (int i = 0; !rc && i < n_layers; i++) {
        end += *end == ' ';
        size_t n = strcspn(end, " ");
        snprintf(text, sizeof text, "%.*s", (int)n, end);
        end += n;
        rc = sl_attn_parse(text, &out->prefill.layer[i], err);
    }
    return rc;
}

int sl_session_read_head(const sl_engine *e, const char *path, sl_session_head *out, sl_error *err) {
    reader r = {.path = path, .engine = e};
    sl_tensors *tensors = NULL;
    *out = (sl_session_head){0};
    identify(e, &r.own);
    int rc = sl_tensors_open_file(path, &tensors, err);
    r.tensors = tensors;
    if (!rc) rc = check_file(&r, err);
    if (!rc) rc = expect_metadata(&r, "arithmetic", r.own.arithmetic, err);
    if (!rc) rc = read_prefill(&r, out, err);
    out->n_tokens = r.n_tokens;
    sl_tensors_close(tensors);
    if (rc) sl_attn_plan_free(&out->prefill);
    return rc;
}

int sl_session_load_chat(sl_engine *engine, const char *path, sl_session **out, sl_text *messages, const sl_progress *progress,
                         sl_error *err) {
    reader r = {.path = path, .engine = engine};
    sl_tensors *tensors = NULL;
    sl_session *s = NULL;
    int rc = sl_engine_check_whole(engine, "a session file", err);
    if (!rc) rc = sl_engine_enter(engine, err);
    if (rc) return rc;
    identify(engine, &r.own);
    rc = sl_tensors_open_file(path, &tensors, err);
    r.tensors = tensors;
    if (!rc) rc = check_file(&r, err);
    if (!rc) rc = check_checksum(&r, err);
    if (!rc) rc = sl_session_new(engine, 0, &s, err);
    if (!rc) rc = read_session(&r, s, progress, err);
    if (!rc) rc = read_messages(&r, messages, err);
    if (!rc) rc = sl_tensor_file_check(sl_tensors_file(tensors, 0), err);
    if (!rc && strcmp(metadata(&r, "arithmetic"), r.own.arithmetic))
        sl_engine_log(engine, "%s was written by %.200s; its rows have other bits than those of %.200s", path,
                      metadata(&r, "arithmetic"), r.own.arithmetic);
    sl_tensors_close(tensors);
    sl_engine_leave(engine);
    if (rc) {
        sl_session_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

int sl_session_load(sl_engine *engine, const char *path, sl_session **out, const sl_progress *progress, sl_error *err) {
    return sl_session_load_chat(engine, path, out, NULL, progress, err);
}
