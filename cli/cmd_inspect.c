// cli/cmd_inspect.c - sleigh inspect: shows the contents of a model folder and the costs of the model. Reads samples of
// the weights, if the folder has a bucket file.
#include "attention/attention.h"
#include "cli/commands.h"
#include "cli/io.h"
#include "cli/output/model_name.h"
#include "cli/output/print_json.h"
#include "cli/output/rows.h"
#include "cli/run/load_model.h"
#include "cli/run/pick_device.h"
#include "kv/kv.h"
#include "models/bucket_file.h"
#include "models/dequant.h"
#include "models/safetensors.h"
#include "models/source.h"
#include "models/trained_file.h"
#include "models/weights.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct costs {
    const char *device;
    int n_ctx, largest_ctx, largest_offloaded; // largest_offloaded: with K and V in host memory; 0: not on this device
    double weights, decode_weights, kv_token, kv_ctx;
    int n_ranks;             // --tensor-parallel-size
    double rank_weights;     // bytes of the weights of one rank; `weights` has each tensor once
    double packed, unpacked; // bytes of the packed tensors of a GGUF file, in the file and in memory; 0: none
} costs;

static void count_packed(const sl_tensors *t, costs *k) {
    for (int i = 0; i < sl_tensors_count(t); i++) {
        const sl_tensor *x = sl_tensors_at(t, i);
        k->packed += (double)x->packed.n_bytes;
        if (x->packed.type) k->unpacked += (double)x->n_bytes;
    }
}

// Bytes of the weights of all ranks. Each tensor counts once, also one that every rank has: the ranks share the mapped file.
static double bytes_of_all(const sl_model_weights *w) {
    double sum = 0;
    for (int i = 0; i < w->n_tensors; i++) {
        const sl_model_tensor *t = &w->tensors[i];
        if (!t->same_as) sum += (double)sl_recipe_read_bytes(&t->recipe, sl_model_tensor_of_file(t));
    }
    return sum;
}

// Lengths and numbers of sequences of the table of memory. 6 sequences are the batch of the SANTA paper.
enum { MEMORY_LENGTHS = 3, MEMORY_BATCHES = 2 };
static const int memory_tokens[MEMORY_LENGTHS] = {8192, 32768, 131072}, memory_sequences[MEMORY_BATCHES] = {1, 6};

// Bytes of the weights and of the KV rows of n_sequences sequences.
static double memory_of(const costs *k, int n_tokens, int n_sequences) {
    return k->weights + k->kv_token * n_tokens * n_sequences;
}

static int costs_of(const sl_model *model, const cli_run_options *o, costs *out, sl_error *err) {
    const sl_config *c = sl_model_config(model);
    const char *device = cli_cache_device(&o->device);
    costs k = {.device = sl_device_is_gpu(device) ? "GPU" : "CPU"};
    k.n_ctx = o->limits.n_ctx ? o->limits.n_ctx : c->n_ctx < 32768 ? c->n_ctx : 32768;
    k.n_ranks = o->model.tensor_parallel;
    k.rank_weights = (double)sl_model_weights_bytes(sl_model_weight_list(model));
    k.weights = bytes_of_all(sl_model_weight_list(model));
    k.decode_weights = (double)sl_model_decode_bytes(model);
    sl_kv_formats formats;
    int rc = cli_kv_formats(&o->device, &formats, err);
    if (rc) return rc;
    k.kv_token = (double)sl_kv_bytes_per_token(c->n_layers, c->n_kv_heads, c->head_dim, formats);
    k.kv_ctx = k.kv_token * k.n_ctx;
    count_packed(sl_model_tensors(model), &k);
    *out = k;
    const sl_engine_options own = {.device = device,
                                   .kv_cache_dtype = o->device.kv_cache_dtype,
                                   .cache_type_k = o->device.cache_type_k,
                                   .cache_type_v = o->device.cache_type_v};
    rc = sl_engine_largest_ctx_with(model, &own, &out->largest_ctx, err);
    if (rc || !sl_device_is_gpu(device) || formats.k != SL_BF16) return rc; // rows in host memory are bf16
    const sl_engine_options offloaded = {
        .device = device, .attn = "santa-is", .kv_gpu_memory = o->device.kv_gpu_memory, .host_memory = o->device.host_memory};
    return sl_engine_largest_ctx_offloaded(model, &offloaded, &out->largest_offloaded, err);
}

// Writes "bpe, 1024 ids", or the reason why the model has no tokenizer.
static void describe_tokenizer(const sl_documents *documents, char *buf, size_t size) {
    sl_tokenizer *tok;
    sl_error err = {0};
    if (sl_tokenizer_load(documents, &tok, &err)) {
        snprintf(buf, size, "none (%.200s)", err.message);
        return;
    }
    snprintf(buf, size, "%s, %d ids", sl_tokenizer_kind(tok), sl_tokenizer_n_vocab(tok));
    sl_tokenizer_free(tok);
}

// ---- table ----

static int print_config(const cli_model_options *o, const sl_config *c, sl_error *err) {
    char tok[256], rope[256];
    describe_tokenizer(sl_source_documents(o->source), tok, sizeof tok);
    sl_config_describe_rope(c, rope, sizeof rope);
    int rc = cli_printf(err,
                        "| folder | %s |\n|---|---|\n| type | %s |\n| layers | %d |\n| hidden | %d |\n| feed-forward | %d |\n"
                        "| heads | %d, KV %d, dimension %d |\n| vocabulary | %d |\n| output head | %s |\n",
                        o->path, c->model_type, c->n_layers, c->hidden, c->n_ffn, c->n_heads, c->n_kv_heads, c->head_dim,
                        c->n_vocab, c->tied ? "tied to the embedding" : "separate");
    if (!rc)
        rc = cli_printf(err, "| RoPE | %s |\n| norm epsilon | %g |\n| context limit | %d%s |\n| BOS | %d |\n| EOS |", rope,
                        c->norm_eps, c->n_scaled, c->window && c->n_scaled == c->window ? ", the sliding window" : "", c->bos);
    for (int i = 0; !rc && i < c->n_eos; i++) rc = cli_printf(err, "%s%d", i ? ", " : " ", c->eos[i]);
    return rc ? rc : cli_printf(err, " |\n| tokenizer | %s |\n\n", tok);
}

static int print_costs(const costs *k, sl_error *err) {
    char a[32], b[32], c[32], d[32], e[32];
    int rc = cli_printf(
        err,
        "| costs | |\n|---|---|\n| weights | %.0f bytes, %s |\n| KV per token | %.0f bytes, %s |\n"
        "| KV at %d tokens | %.0f bytes, %s |\n| dense decode step at %d tokens reads | %.0f bytes, %s (weights: %s) |\n"
        "| largest context that fits now | %d tokens on the %s |\n",
        k->weights, cli_bytes(k->weights, a), k->kv_token, cli_bytes(k->kv_token, b), k->n_ctx, k->kv_ctx,
        cli_bytes(k->kv_ctx, c), k->n_ctx, k->decode_weights + k->kv_ctx, cli_bytes(k->decode_weights + k->kv_ctx, d),
        cli_bytes(k->decode_weights, e), k->largest_ctx, k->device);
    if (!rc && k->n_ranks > 1)
        rc = cli_printf(err, "| each of %d ranks has | %s of weights, %s of KV per token |\n", k->n_ranks,
                        cli_bytes(k->rank_weights, a), cli_bytes(k->kv_token / k->n_ranks, b));
    if (!rc && k->packed)
        rc = cli_printf(err, "| packed weights in the file | %.0f bytes, %s; in memory: %s |\n", k->packed,
                        cli_bytes(k->packed, a), cli_bytes(k->unpacked, b));
    if (!rc && k->largest_offloaded)
        rc = cli_printf(err, "| with `--kv-cache host --attn santa-is` | %d tokens |\n", k->largest_offloaded);
    return rc ? rc : cli_printf(err, "\n");
}

static int print_memory(const costs *k, int most, sl_error *err) {
    int rc = cli_printf(err, "| memory of weights and KV | 1 sequence | 6 sequences |\n|---|---|---|\n");
    for (int i = 0; !rc && i < MEMORY_LENGTHS && memory_tokens[i] <= most; i++) {
        char one[32], six[32];
        cli_bytes(memory_of(k, memory_tokens[i], memory_sequences[0]), one);
        cli_bytes(memory_of(k, memory_tokens[i], memory_sequences[1]), six);
        rc = cli_printf(err, "| %d tokens for each sequence | %s | %s |\n", memory_tokens[i], one, six);
    }
    return rc ? rc : cli_printf(err, "\n");
}

// Bytes that the page extras of a method with default parameters add to a token.
static double extras_of(const sl_attn_method *m, const sl_config *c) {
    sl_attn_spec spec;
    sl_kv_need needs[SL_MAX_NEEDS];
    double bytes = 0;
    if (sl_attn_parse(m->name, &spec, &(sl_error){0}) || !m->cpu || !m->cpu->needs) return 0;
    for (int n = m->cpu->needs(&spec, needs), i = 0; i < n; i++)
        bytes += (double)needs[i].kind->size(needs[i].arg, c->head_dim) / (needs[i].kind->span ? needs[i].kind->span : 1);
    return bytes * c->n_kv_heads * c->n_layers / SL_PAGE;
}

static int print_extras(const costs *k, const sl_config *c, sl_error *err) {
    int rc = cli_printf(err, "| method | page extras per token | share of the KV cache |\n|---|---|---|\n");
    for (const sl_attn_method *const *m = sl_attn_methods; !rc && *m; m++) {
        double bytes = extras_of(*m, c);
        char text[32];
        if (bytes > 0)
            rc = cli_printf(err, "| %s | %s | %.1f%% |\n", (*m)->name, cli_bytes(bytes, text), 100 * bytes / k->kv_token);
    }
    return rc ? rc : cli_printf(err, "\n");
}

static int print_tensors(const sl_tensors *t, sl_error *err) {
    int rc = cli_printf(err, "| tensor | dtype | shape | bytes |\n|---|---|---|---|\n");
    for (int i = 0; !rc && i < sl_tensors_count(t); i++) {
        const sl_tensor *x = sl_tensors_at(t, i);
        const char *type = x->packed.type ? x->packed.type->name : x->dtype_name;
        rc = cli_printf(err, "| %s | %s%s%s | [", x->name, type, x->packed.type ? ", in memory " : "",
                        x->packed.type ? x->dtype_name : "");
        for (int j = 0; !rc && j < x->n_dims; j++) rc = cli_printf(err, "%s%lld", j ? ", " : "", (long long)x->dims[j]);
        if (!rc) rc = cli_printf(err, "] | %zu |\n", x->packed.type ? x->packed.n_bytes : x->n_bytes);
    }
    return rc;
}

// The bucket file of the folder, or the reason why it cannot be used.
typedef struct bucket_file {
    int exists;
    sl_bucket_file *file; // NULL: error says why
    sl_error error;
} bucket_file;

static bucket_file open_buckets(const char *folder, const sl_model *model) {
    char path[4200];
    bucket_file f = {0};
    snprintf(path, sizeof path, "%.4000s/" SL_BUCKET_FILE, folder);
    f.exists = !access(path, F_OK);
    if (f.exists) sl_model_open_buckets(model, &f.file, &f.error);
    return f;
}

static int print_buckets(const bucket_file *f, int with_tensors, sl_error *err) {
    if (!f->exists) return 0;
    if (!f->file) return cli_printf(err, "| bucket file | |\n|---|---|\n| unusable | %s |\n\n", f->error.message);
    const sl_buckets *b = sl_bucket_file_get(f->file);
    double bytes = (double)sl_tensors_bytes(sl_bucket_file_tensors(f->file));
    char text[32], classifier[64] = "none";
    if (b->width) snprintf(classifier, sizeof classifier, "%d -> %d -> %d", b->head_dim, b->width, b->n_buckets);
    int rc =
        cli_printf(err,
                   "| bucket file | " SL_BUCKET_FILE " |\n|---|---|\n| size | %.0f bytes, %s |\n| buckets of a KV head | %d |\n"
                   "| centroids of keys | %s |\n| classifier of queries | %s |\n| layers without buckets | %d |\n\n",
                   bytes, cli_bytes(bytes, text), b->n_buckets, b->roped ? "before and after RoPE" : "before RoPE", classifier,
                   b->n_dense);
    if (!rc && with_tensors) rc = print_tensors(sl_bucket_file_tensors(f->file), err);
    return rc || !with_tensors ? rc : cli_printf(err, "\n");
}

// ---- JSON ----

static json_t *config_json(const cli_model_options *o, const sl_config *c) {
    char tok[256];
    describe_tokenizer(sl_source_documents(o->source), tok, sizeof tok);
    json_t *eos = json_array();
    for (int i = 0; i < c->n_eos; i++) json_array_append_new(eos, json_integer(c->eos[i]));
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:b, s:f, s:s, s:f, s:f, s:i, s:o, s:s}", "model_type",
                     c->model_type, "n_layers", c->n_layers, "hidden", c->hidden, "n_ffn", c->n_ffn, "n_heads", c->n_heads,
                     "n_kv_heads", c->n_kv_heads, "head_dim", c->head_dim, "n_vocab", c->n_vocab, "n_ctx", c->n_scaled, "tied",
                     c->tied, "rope_theta", (double)c->rope_theta, "rope_type", sl_config_rope_name(c), "rope_factor",
                     (double)c->rope_factor, "norm_eps", (double)c->norm_eps, "bos", c->bos, "eos", eos, "tokenizer", tok);
}

static json_t *tensors_json(const sl_tensors *t) {
    json_t *list = json_array();
    for (int i = 0; i < sl_tensors_count(t); i++) {
        const sl_tensor *x = sl_tensors_at(t, i);
        json_t *shape = json_array();
        for (int j = 0; j < x->n_dims; j++) json_array_append_new(shape, json_integer(x->dims[j]));
        json_t *row = json_pack("{s:s, s:s, s:o, s:I}", "name", x->name, "dtype", x->dtype_name, "shape", shape, "bytes",
                                (json_int_t)x->n_bytes);
        if (x->packed.type) { // in the file
            json_object_set_new(row, "file_dtype", json_string(x->packed.type->name));
            json_object_set_new(row, "file_bytes", json_integer((json_int_t)x->packed.n_bytes));
        }
        json_array_append_new(list, row);
    }
    return list;
}

static json_t *costs_json(const costs *k) {
    json_t *out =
        json_pack("{s:i, s:I, s:I, s:I, s:I, s:i, s:o, s:s}", "ctx", k->n_ctx, "weights_bytes", (json_int_t)k->weights,
                  "kv_bytes_per_token", (json_int_t)k->kv_token, "kv_bytes", (json_int_t)k->kv_ctx, "decode_step_bytes",
                  (json_int_t)(k->decode_weights + k->kv_ctx), "largest_ctx", k->largest_ctx, "largest_ctx_on_host",
                  k->largest_offloaded ? json_integer(k->largest_offloaded) : json_null(), "device", k->device);
    if (k->n_ranks > 1) json_object_set_new(out, "rank_weights_bytes", json_integer((json_int_t)k->rank_weights));
    return out;
}

static json_t *memory_json(const costs *k, int most) {
    json_t *list = json_array();
    for (int i = 0; i < MEMORY_LENGTHS && memory_tokens[i] <= most; i++)
        for (int j = 0; j < MEMORY_BATCHES; j++)
            json_array_append_new(list,
                                  json_pack("{s:i, s:i, s:I}", "tokens", memory_tokens[i], "sequences", memory_sequences[j],
                                            "bytes", (json_int_t)memory_of(k, memory_tokens[i], memory_sequences[j])));
    return list;
}

static json_t *extras_json(const sl_config *c) {
    json_t *list = json_array();
    for (const sl_attn_method *const *m = sl_attn_methods; *m; m++) {
        double bytes = extras_of(*m, c);
        if (bytes > 0) json_array_append_new(list, json_pack("{s:s, s:f}", "attn", (*m)->name, "bytes_per_token", bytes));
    }
    return list;
}

static json_t *buckets_json(const bucket_file *f) {
    if (!f->exists) return json_null();
    if (!f->file) return json_pack("{s:s, s:s}", "file", SL_BUCKET_FILE, "error", f->error.message);
    const sl_buckets *b = sl_bucket_file_get(f->file);
    const sl_tensors *t = sl_bucket_file_tensors(f->file);
    return json_pack("{s:s, s:I, s:i, s:i, s:i, s:b, s:o}", "file", SL_BUCKET_FILE, "bytes", (json_int_t)sl_tensors_bytes(t),
                     "buckets", b->n_buckets, "width", b->width, "dense_layers", b->n_dense, "roped", b->roped != NULL,
                     "tensors", tensors_json(t));
}

static json_t *hash_json(const sl_model *model) {
    char hash[SL_HASH_TEXT];
    sl_trained_hash(sl_model_config(model), sl_model_tensors(model), hash);
    return json_string(hash);
}

static int print_json(const cli_model_options *o, const cli_model_name *name, const sl_model *model, const costs *k,
                      const bucket_file *buckets, sl_error *err) {
    const sl_config *c = sl_model_config(model);
    json_t *out = json_object();
    json_object_set_new(out, "folder", cli_file_json(o->path));
    json_object_set_new(out, "hash", cli_is_dummy(o) ? json_null() : hash_json(model));
    json_object_set_new(out, "config", config_json(o, c));
    json_object_set_new(out, "costs", costs_json(k));
    json_object_set_new(out, "memory", memory_json(k, c->n_scaled));
    json_object_set_new(out, "page_extras", extras_json(c));
    json_object_set_new(out, "bucket_file", buckets_json(buckets));
    json_object_set_new(out, "tensors", tensors_json(sl_model_tensors(model)));
    return cli_print_json(cli_model_name_json(name, out), JSON_INDENT(1), err);
}

// csv, jsonl: one row, with the config and the costs only.
static int print_row(const char *format, const cli_model_name *name, json_t *config, json_t *costs, sl_error *err) {
    cli_rows table = {.format = format, .model = name};
    json_object_del(config, "model_type"); // a field of the model's name
    json_object_update(config, costs);
    json_decref(costs);
    return cli_rows_add(&table, config, err);
}

static int print_md(const cli_model_options *o, int with_tensors, const cli_model_name *name, const sl_model *model,
                    const costs *k, const bucket_file *buckets, sl_error *err) {
    const sl_config *c = sl_model_config(model);
    int rc = cli_print_model(name, err);
    if (!rc) rc = print_config(o, c, err);
    if (!rc) rc = print_costs(k, err);
    if (!rc) rc = print_memory(k, c->n_scaled, err);
    if (!rc) rc = print_extras(k, c, err);
    if (!rc) rc = print_buckets(buckets, with_tensors, err);
    if (!rc && with_tensors) return print_tensors(sl_model_tensors(model), err);
    int n = sl_tensors_count(sl_model_tensors(model));
    return rc ? rc : cli_printf(err, "%d tensor%s; --tensors lists them\n", n, n == 1 ? "" : "s");
}

int cmd_inspect(const cli_run_options *o, const cli_output_options *output, sl_error *err) {
    sl_model *model = NULL;
    int rc = cli_need_model(&o->model, err);
    sl_model_options options = cli_load_options(&o->model, 0);
    const sl_shard shard = {.rank = 0, .n = o->model.tensor_parallel};
    if (!rc &&
        sl_model_load_part(o->model.path, &options, &shard, NULL, &model, err)) { // the table says why there is no tokenizer
        options.flags |= SL_MODEL_NO_TOKENIZER, options.log = (sl_log){0};
        rc = sl_model_load_part(o->model.path, &options, &shard, NULL, &model, err);
    }
    if (rc) return rc;
    const sl_config *c = sl_model_config(model);
    costs k;
    rc = costs_of(model, o, &k, err);
    if (rc) {
        sl_model_free(model);
        return rc;
    }
    cli_model_name name;
    cli_model_name_of(model, o->model.path, &name);
    bucket_file buckets = open_buckets(o->model.path, model);
    if (!strcmp(output->format, "md"))
        rc = print_md(&o->model, output->tensors, &name, model, &k, &buckets, err);
    else if (!strcmp(output->format, "json"))
        rc = print_json(&o->model, &name, model, &k, &buckets, err);
    else
        rc = print_row(output->format, &name, config_json(&o->model, c), costs_json(&k), err);
    sl_bucket_file_close(buckets.file);
    sl_model_free(model);
    return rc;
}
