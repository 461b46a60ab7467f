// tests/cli/test_cli_inspect.c - what `sleigh methods` prints of the registry, and every figure of `sleigh inspect`, from the
// files of the model: config.json, the header of model.safetensors, and the definitions of the costs.
#include "attention/attention.h"
#include "base/number.h"
#include "tests/cli/fields.h"
#include "tests/support/gguf_file.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

static double field(const json_t *o, const char *name) {
    const json_t *x = json_object_get(o, name);
    return json_is_boolean(x) ? json_is_true(x) : json_number_value(x);
}

static json_t *parsed(const result *r) {
    json_t *root = json_loads(r->out, 0, NULL);
    if (r->code || !root) FAIL("exit code %d: %s", r->code, r->err);
    return root;
}

// The header of the file: tensors by name.
static json_t *header(const char *folder) {
    char path[300];
    size_t n;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    const char *data = slurp(path, &n);
    json_t *h = json_loadb(data + 8, (size_t)(unsigned char)data[0] + ((size_t)(unsigned char)data[1] << 8), 0, NULL);
    CHECK(h != NULL);
    json_object_del(h, "__metadata__");
    return h;
}

// Checks the list of tensors. Returns the bytes of all tensors; *lookup: those of the embedding, *n_params: the numbers.
static double check_tensors(const json_t *list, const json_t *h, double *lookup, double *n_params) {
    double sum = 0;
    CHECK_INT(json_array_size(list), json_object_size(h));
    *n_params = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *got = json_array_get(list, i);
        const char *name = json_string_value(json_object_get(got, "name"));
        const json_t *t = json_object_get(h, name), *range = json_object_get(t, "data_offsets");
        double bytes = json_number_value(json_array_get(range, 1)) - json_number_value(json_array_get(range, 0));
        fields f = {0};
        want_text(&f, "name", name), want_text(&f, "dtype", json_string_value(json_object_get(t, "dtype")));
        want_list(&f, "shape"), want(&f, "bytes", bytes);
        check_fields(got, &f, 0);
        CHECK(json_equal(json_object_get(got, "shape"), json_object_get(t, "shape")));
        if (!strcmp(name, "model.embed_tokens.weight")) *lookup = bytes;
        sum += bytes, *n_params += bytes / 2;
    }
    return sum;
}

static int row_is(const char *md, const char *name, const char *cell) {
    char row[700];
    snprintf(row, sizeof row, "| %s | %s", name, cell);
    return strstr(md, row) != NULL;
}
#define CHECK_ROW(md, name, ...)                                                                                               \
    do {                                                                                                                       \
        char cell_[300];                                                                                                       \
        snprintf(cell_, sizeof cell_, __VA_ARGS__);                                                                            \
        if (!row_is(md, name, cell_)) FAIL("no row | %s | %s in %s", name, cell_, md);                                         \
    } while (0)

// A folder, what its files say, and what `inspect` says.
typedef struct inspected {
    const char *folder, *rope, *model_type, *tokenizer;
    json_t *c, *ids; // config.json; its ids of ends
    double layers, kv_heads, dim, most, kv, theta, weights, lookup, n_params;
    int n_ctx;
} inspected;

static void want_config(const inspected *x, fields *f) {
    const json_t *scaling = json_object_get(x->c, "rope_scaling");
    static const char *const same[][2] = {
        {"hidden", "hidden_size"}, {"n_ffn", "intermediate_size"},  {"n_heads", "num_attention_heads"},
        {"n_vocab", "vocab_size"}, {"tied", "tie_word_embeddings"}, {"norm_eps", "rms_norm_eps"},
        {"bos", "bos_token_id"}};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) want(f, same[i][0], field(x->c, same[i][1]));
    want(f, "n_layers", x->layers), want(f, "n_kv_heads", x->kv_heads), want(f, "head_dim", x->dim);
    want(f, "n_ctx", x->most), want(f, "rope_theta", x->theta), want_text(f, "rope_type", x->rope), want_list(f, "eos");
    want(f, "rope_factor", scaling ? field(scaling, "factor") : 1);
    want_text(f, "tokenizer", x->tokenizer), want_text(f, "model_type", x->model_type);
}

static void want_costs(const inspected *x, fields *f) {
    want(f, "ctx", x->n_ctx), want(f, "weights_bytes", x->weights), want(f, "kv_bytes_per_token", x->kv);
    want(f, "kv_bytes", x->kv * x->n_ctx), want(f, "decode_step_bytes", x->weights - x->lookup + x->kv * x->n_ctx);
    want(f, "largest_ctx", x->most), want(f, "largest_ctx_on_host", NAN), want_text(f, "device", "CPU");
}

static void check_memory(const inspected *x, const json_t *memory) {
    int n_memory = 0;
    for (int n = 8192; n <= 131072 && n <= x->most; n *= 4)
        for (int sequences = 1; sequences <= 6; sequences += 5) {
            fields m = {0};
            want(&m, "tokens", n), want(&m, "sequences", sequences), want(&m, "bytes", x->weights + x->kv * n * sequences);
            check_fields(json_array_get(memory, (size_t)n_memory++), &m, 0);
        }
    CHECK_INT(json_array_size(memory), n_memory);
}

// Bytes of a row and KV head: santa-pps a norm, Quest two keys for 16 rows, the other two codes and two fp16 scales a channel.
static void check_extras(const inspected *x, const json_t *list, const char *md) {
    const struct {
        const char *attn;
        double bytes;
    } extras[] = {{"santa-pps", 2},
                  {"quest", 2 * 2 * x->dim / 16},
                  {"santa-is", x->dim / 2 + 4 * x->dim / 256},
                  {"dense-q", x->dim / 2 + 4 * x->dim / 256}};
    for (size_t e = 0; e < sizeof extras / sizeof *extras; e++) {
        double bytes = extras[e].bytes * x->layers * x->kv_heads, got = 0;
        for (size_t i = 0; i < json_array_size(list); i++)
            if (!strcmp(json_string_value(json_object_get(json_array_get(list, i), "attn")), extras[e].attn))
                got = field(json_array_get(list, i), "bytes_per_token");
        CHECK_NEAR(got, bytes, 1e-9);
        char share[40], *at = strstr(md, extras[e].attn);
        snprintf(share, sizeof share, "| %.1f%% |\n", 100 * bytes / x->kv);
        CHECK(at && strstr(at, share) && strstr(at, share) < strchr(at, '\n'));
    }
}

static void check_page(const inspected *x, const char *m) {
    char name[100], *list = json_dumps(x->ids, 0); // "[1, 2]"
    CHECK_ROW(m, "folder", "%s |\n", x->folder);
    CHECK_ROW(m, "type", "%s |\n", x->model_type);
    CHECK_ROW(m, "layers", "%g |\n", x->layers);
    CHECK_ROW(m, "hidden", "%g |\n", field(x->c, "hidden_size"));
    CHECK_ROW(m, "feed-forward", "%g |\n", field(x->c, "intermediate_size"));
    CHECK_ROW(m, "heads", "%g, KV %g, dimension %g |\n", field(x->c, "num_attention_heads"), x->kv_heads, x->dim);
    CHECK_ROW(m, "vocabulary", "%g |\n", field(x->c, "vocab_size"));
    CHECK_ROW(m, "output head", "%s", field(x->c, "tie_word_embeddings") ? "tied" : "separate");
    CHECK_ROW(m, "RoPE", "theta %.9g", x->theta);
    CHECK_ROW(m, "norm epsilon", "%g |\n", field(x->c, "rms_norm_eps"));
    CHECK_ROW(m, "context limit", "%.0f |\n", x->most);
    CHECK_ROW(m, "BOS", "%g |\n", field(x->c, "bos_token_id"));
    CHECK_ROW(m, "EOS", "%.*s |\n", (int)strlen(list) - 2, list + 1);
    CHECK_ROW(m, "tokenizer", "%s |\n", x->tokenizer);
    CHECK_ROW(m, "weights", "%.0f bytes, ", x->weights);
    CHECK_ROW(m, "KV per token", "%.0f bytes, ", x->kv);
    CHECK(!strstr(m, "packed weights"));
    snprintf(name, sizeof name, "dense decode step at %d tokens reads", x->n_ctx);
    CHECK_ROW(m, name, "%.0f bytes, ", x->weights - x->lookup + x->kv * x->n_ctx);
    snprintf(name, sizeof name, "KV at %d tokens", x->n_ctx);
    CHECK_ROW(m, name, "%.0f bytes, ", x->kv * x->n_ctx);
    CHECK_ROW(m, "largest context that fits now", "%.0f tokens on the CPU |\n", x->most);
    free(list);
}

// n_ctx 0: the default of --ctx-size.
static void check_folder(const char *folder, const char *kind, const char *rope, int n_ctx) {
    char path[300], ctx[20], tokenizer[100];
    inspected x = {.folder = folder, .rope = rope};
    snprintf(path, sizeof path, "%s/config.json", folder);
    json_t *c = x.c = json_load_file(path, 0, NULL), *h = header(folder);
    snprintf(ctx, sizeof ctx, n_ctx ? "%d" : "cpu", n_ctx);
    const char *flag = n_ctx ? "-c" : "--device";
    result md = RUN("inspect", "-m", folder, flag, ctx, "--tensors"), j = RUN("inspect", "-m", folder, flag, ctx, "-o", "json"),
           line = RUN("inspect", "-m", folder, flag, ctx, "-o", "jsonl");
    json_t *root = parsed(&j), *row = parsed(&line), *config = json_object_get(root, "config");
    x.weights = check_tensors(json_object_get(root, "tensors"), h, &x.lookup, &x.n_params);
    x.layers = field(c, "num_hidden_layers"), x.kv_heads = field(c, "num_key_value_heads"), x.dim = field(c, "head_dim");
    x.most = field(c, "max_position_embeddings"), x.kv = x.layers * x.kv_heads * x.dim * 2 * 2;
    x.n_ctx = n_ctx ? n_ctx : x.most < 32768 ? (int)x.most : 32768;
    if (field(c, "tie_word_embeddings")) x.lookup = 0;
    const json_t *of = json_object_get(c, "rope_theta") ? c : json_object_get(c, "rope_parameters");
    x.theta = field(of, "rope_theta"), x.model_type = json_string_value(json_object_get(c, "model_type"));
    x.tokenizer = json_string_value(json_object_get(config, "tokenizer"));
    snprintf(tokenizer, sizeof tokenizer, kind ? "%s, %d ids" : "none (", kind, (int)field(c, "vocab_size"));
    CHECK(!strncmp(x.tokenizer, tokenizer, strlen(tokenizer)) && (!kind || !x.tokenizer[strlen(tokenizer)]));
    const json_t *eos = json_object_get(c, "eos_token_id");
    x.ids = json_is_array(eos) ? json_deep_copy(eos) : json_pack("[I]", json_integer_value(eos));
    CHECK(json_equal(x.ids, json_object_get(config, "eos")));

    fields f = {0}, costs = {0}, all = {0}; // all: the fields of the row
    want_config(&x, &f), want_costs(&x, &costs), want_config(&x, &all), want_costs(&x, &all);
    want_text(&all, "model", strrchr(folder, '/') + 1), want(&all, "n_params", x.n_params);
    want_text(&all, "dtype", "bf16"), want(&all, "dummy", 0);
    check_fields(config, &f, 1e-6), check_fields(json_object_get(root, "costs"), &costs, 0), check_fields(row, &all, 1e-6);
    check_memory(&x, json_object_get(root, "memory"));
    check_extras(&x, json_object_get(root, "page_extras"), md.out);
    check_page(&x, md.out);
    json_decref(x.ids), json_decref(c), json_decref(h), json_decref(root), json_decref(row);
}

static void folders(void) {
    check_folder("models/tiny", "bpe", "llama3", 0);
    check_folder("tests/goldens/yarn", NULL, "yarn", 100);
    check_folder("tests/goldens/mistral", NULL, "plain", 0);
    check_folder("tests/goldens/qwen3-tied", NULL, "plain", 0);
}

// A tensor of a GGUF file in blocks of 32 numbers with 34 bytes, beside tensors of bf16, which stay as they are.
static void packed(void) {
    enum { VOCAB = 128, HIDDEN = 32, BYTES = VOCAB * HIDDEN / 32 * 34 };
    static const int64_t dims[] = {HIDDEN, VOCAB};
    static const char blocks[BYTES];
    json_t *h = header("tests/goldens/yarn");
    gguf_file g = {0};
    gguf_file_config(&g, "tests/goldens/yarn");
    gguf_file_tensors(&g, "tests/goldens/yarn", 1, INT32_MAX);        // without lm_head.weight
    gguf_file_tensor(&g, "output.weight", 8, 2, dims, blocks, BYTES); // Q8_0
    gguf_file_write(&g, "x.gguf");
    result j = RUN("inspect", "-m", in_tmp("x.gguf"), "-o", "json"), md = RUN("inspect", "-m", in_tmp("x.gguf"), "--tensors");
    json_t *root = parsed(&j);
    const json_t *list = json_object_get(root, "tensors");
    double sum = 0;
    int n_packed = 0;
    CHECK_INT(json_array_size(list), json_object_size(h));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *t = json_array_get(list, i);
        int is_packed = !strcmp(json_string_value(json_object_get(t, "name")), "lm_head.weight");
        fields f = {0};
        want_text(&f, "name", json_string_value(json_object_get(t, "name"))), want_list(&f, "shape");
        want_text(&f, "dtype", is_packed ? "int8" : "BF16"), want(&f, "bytes", field(t, "bytes"));
        if (is_packed) want_text(&f, "file_dtype", "Q8_0"), want(&f, "file_bytes", BYTES);
        check_fields(t, &f, 0);
        sum += field(t, "bytes"), n_packed += is_packed;
    }
    CHECK_INT(n_packed, 1);
    CHECK_INT(field(json_object_get(root, "costs"), "weights_bytes"), sum);
    json_decref(root), json_decref(h);
    CHECK_ROW(md.out, "packed weights in the file", "%d bytes, 4.25 KiB; in memory: 4.50 KiB |\n", BYTES);
    CHECK_ROW(md.out, "lm_head.weight", "Q8_0, in memory int8 | [%d, %d] | %d |\n", VOCAB, HIDDEN, BYTES);
    CHECK_ROW(md.out, "model.norm.weight", "BF16 | [%d] | %d |\n", HIDDEN, 2 * HIDDEN);
}

// ---- methods ----

static void check_param(const sl_attn_param *p, const json_t *got, const char *row) {
    static const char *const types[] = {[SL_PARAM_INT] = "int", [SL_PARAM_FLOAT] = "float", [SL_PARAM_CHOICE] = "choice"};
    char def[SL_NUMBER_TEXT], low[SL_NUMBER_TEXT], high[SL_NUMBER_TEXT], word[64] = "", shown[400];
    fields f = {0};
    const char *at = p->choices;
    for (int i = 0; at && i < (int)p->def; i++) at = strchr(at, ',') + 1;
    if (at) snprintf(word, sizeof word, "%.*s", (int)strcspn(at, ","), at);
    want_text(&f, "name", p->name), want_text(&f, "type", types[p->type]), want_text(&f, "help", p->help);
    if (p->choices)
        want_text(&f, "choices", p->choices), want_text(&f, "default", word);
    else
        want(&f, "default", p->def), want(&f, "min", p->min), want(&f, "max", p->max);
    check_fields(got, &f, 0);
    sl_number_text(p->def, def), sl_number_text(p->min, low), sl_number_text(p->max, high);
    if (p->choices)
        snprintf(shown, sizeof shown, "--%s (%s, default %s): %s", p->name, p->choices, word, p->help);
    else
        snprintf(shown, sizeof shown, "--%s (%s to %s, default %s): %s", p->name, low, high, def, p->help);
    if (!strstr(row, shown)) FAIL("\"%s\" is not in %s", shown, row);
}

static void methods(void) {
    result j = RUN("methods", "-o", "json"), md = RUN("methods");
    json_t *root = parsed(&j);
    size_t n = 0;
    for (; sl_attn_methods[n]; n++) {
        const sl_attn_method *m = sl_attn_methods[n];
        const json_t *got = json_array_get(root, n), *params = json_object_get(got, "params");
        char begin[400], *row;
        fields f = {0};
        want_text(&f, "name", m->name), want_text(&f, "phase", sl_attn_phases(m)), want_text(&f, "summary", m->summary);
        want_text(&f, "mean", sl_attn_mean_name(m->mean)), want_list(&f, "params");
        m->source ? want_text(&f, "source", m->source) : want(&f, "source", NAN);
        m->caution ? want_text(&f, "caution", m->caution) : want(&f, "caution", NAN);
        want(&f, "cpu", m->cpu != NULL), want(&f, "cuda", m->cuda != NULL);
        check_fields(got, &f, 0);
        snprintf(begin, sizeof begin, "\n| %s | %s | %s%s | ", m->name, sl_attn_phases(m), sl_attn_mean_name(m->mean),
                 m->mean_of ? " (see caution)" : "");
        CHECK((row = strstr(md.out, begin)) != NULL);
        row = strndup(row + 1, strcspn(row + 1, "\n"));
        size_t i = 0;
        for (; m->params && m->params[i].name; i++) check_param(&m->params[i], json_array_get(params, i), row);
        CHECK_INT(json_array_size(params), i);
        free(row);
    }
    CHECK_INT(json_array_size(root), n);
    json_decref(root);
}

static const test_case cases[] = {
    {"methods", NEEDS_NOTHING, methods}, {"folders", NEEDS_NOTHING, folders}, {"packed", NEEDS_NOTHING, packed}, {0}};
const test_suite suite_cli_inspect = {"cli_inspect", cases};
