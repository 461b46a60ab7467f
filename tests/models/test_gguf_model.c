// tests/models/test_gguf_model.c - models and tokenizers of GGUF files against the folders that they were made of, and against
// the PyPI package gguf (scripts/goldens/make_gguf.py).
#include "engine/engine.h"
#include "models/gguf_tensors.h"
#include "models/source.h"
#include "models/weights.h"
#include "tests/support/gguf_file.h"
#include "tests/support/models.h"
#include "tests/support/npy.h"
#include "tests/support/run_cli.h"
#include "tests/support/tokens.h"
#include "tests/support/venv.h"
#include "tests/test.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static sl_error err;
static const sl_model_options no_tokenizer = {.flags = SL_MODEL_NO_TOKENIZER};

// ---- plain types: the bits of the folder ----

// The logits after these ids. From malloc.
static float *logits_of(const char *path, const int32_t *ids, int n, size_t *size) {
    model_fixture r = model_fixture_load(path, "dense", (sl_engine_options){.n_sequences = 1});
    sl_session *s = model_fixture_session(&r, 0);
    CHECK_OK(sl_prefill(s, ids, n, NULL, &err), err);
    *size = (size_t)r.n_vocab * sizeof(float);
    float *out = malloc(*size);
    memcpy(out, sl_session_logits(s, NULL), *size);
    sl_session_free(s);
    model_fixture_close(&r);
    return out;
}

static void check_bits(const char *name) {
    char folder[100], ids_file[120];
    int n;
    size_t size, other_size;
    gguf_file f = {0};
    snprintf(folder, sizeof folder, "tests/goldens/%s", name);
    snprintf(ids_file, sizeof ids_file, "%s/ids.json", folder);
    gguf_file_config(&f, folder);
    gguf_file_tensors(&f, folder, 0, INT32_MAX);
    gguf_file_write(&f, "x.gguf");
    int32_t *ids = test_read_ids(ids_file, &n);
    float *want = logits_of(folder, ids, n, &size), *got = logits_of(in_tmp("x.gguf"), ids, n, &other_size);
    CHECK_INT(other_size, size);
    if (memcmp(got, want, size)) FAIL("%s: the logits of the GGUF file differ from those of the folder", name);
    free(ids), free(want), free(got);
}

// fp32, fp16 and bf16; permuted rows (llama, mistral); biases (qwen2), norms of heads (qwen3), tied embeddings, yarn.
static void bits_of_folders(void) {
    static const char *const names[] = {"f32",  "f16",   "mistral",    "tied",       "headdim80", "eps",
                                        "yarn", "qwen2", "qwen2-tied", "qwen3-tied", "qwen3"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) check_bits(names[i]);
}

// The scaling of Llama 3.1 as factors of the frequencies. The factors are rounded to fp32, so a frequency may differ by two
// roundings: 2^-23.
static void rope_factors(void) {
    sl_source *source;
    sl_config folder, file;
    float want[SL_MOST_FREQUENCIES], got[SL_MOST_FREQUENCIES], plain[SL_MOST_FREQUENCIES], factors[SL_MOST_FREQUENCIES];
    char text[256];
    CHECK_OK(sl_config_load(&SL_FOLDER("tests/goldens/gqa"), &folder, &err), err);
    CHECK_INT(folder.rope_type, SL_ROPE_LLAMA3);
    sl_config_rope(&folder, want);
    sl_config unscaled = folder;
    unscaled.rope_type = SL_ROPE_PLAIN;
    sl_config_rope(&unscaled, plain);
    int n = folder.head_dim / 2, n_scaled = 0;
    for (int i = 0; i < n; i++) factors[i] = plain[i] / want[i];
    for (int round = 0; round < 3; round++) {
        const int64_t dims[1] = {round == 1 ? n - 1 : n};
        gguf_file f = {0};
        if (round == 2) factors[1] = 0;
        gguf_file_config(&f, "tests/goldens/gqa");
        gguf_file_tensor(&f, "rope_freqs.weight", 0, 1, dims, factors, (size_t)dims[0] * sizeof *factors);
        gguf_file_write(&f, "x.gguf");
        int rc = sl_source_open(in_tmp("x.gguf"), &source, &err);
        if (round == 1)
            CHECK_ERR(rc, err, SL_ERR_FORMAT,
                      "tensor rope_freqs.weight has type F32, 1 dimensions and 7 rows of numbers, expected type F32 and [8]");
        if (round == 2) CHECK_ERR(rc, err, SL_ERR_FORMAT, "tensor rope_freqs.weight: number 1 is 0, expected a number above 0");
        if (round) continue;
        CHECK_OK(sl_config_load(sl_source_documents(source), &file, &err), err);
        sl_source_close(source);
    }
    CHECK_INT(file.rope_type, SL_ROPE_FACTORS);
    sl_config_rope(&file, got);
    for (int i = 0; i < n; i++) {
        CHECK_NEAR(got[i], want[i], want[i] * 0x1p-23);
        n_scaled += got[i] != plain[i];
    }
    CHECK(n_scaled > 0);
    uint64_t hash = sl_config_hash(&file);
    sl_config_describe_rope(&file, text, sizeof text);
    CHECK(strstr(text, "frequency_factors, fnv1a:") != NULL);
    char other[256];
    file.rope_factors[n] += 1; // not a factor of this head
    sl_config_describe_rope(&file, other, sizeof other);
    CHECK_STR(other, text);
    CHECK(sl_config_hash(&file) == hash);
    file.rope_factors[n - 1] *= 1.5f;
    CHECK(sl_config_hash(&file) != hash); // other factors are another model
    sl_config_describe_rope(&file, other, sizeof other);
    CHECK(strcmp(other, text) != 0);
}

// ---- every type, against the package gguf ----

static void make_gguf(const char *modules, const char *what, const char *a, const char *b) {
    char line[2048];
    snprintf(line, sizeof line, "'%s' scripts/goldens/make_gguf.py %s '%s' %s", venv_python(modules), what, a, b);
    if (system(line)) FAIL("%s", line);
}

// fp16 rounds by 2^-11; and the package may round its fp32 numbers in another order.
static void check_numbers(const sl_tensor *got, const sl_tensor *want) {
    size_t n = want->n_bytes / 4;
    int is_fp32 = !strcmp(got->dtype_name, "F32"), is_bf16 = !strcmp(got->dtype_name, "BF16");
    double relative = !got->packed.type || got->packed.type->n_values == 1 ? 0 : is_fp32 ? 0x1p-22 : 0x1p-11 + 0x1p-22;
    CHECK(got->n_dims == want->n_dims && !memcmp(got->dims, want->dims, (size_t)got->n_dims * sizeof *got->dims));
    for (size_t i = 0; i < n; i++) {
        double x = is_fp32   ? ((const float *)got->data)[i]
                   : is_bf16 ? sl_bf16_to_f32(((const bf16 *)got->data)[i])
                             : sl_f16_to_f32(((const f16 *)got->data)[i]);
        double y = ((const float *)want->data)[i];
        if (!(fabs(x - y) <= relative * fabs(y))) FAIL("%s: number %zu is %.9g, expected %.9g", got->name, i, x, y);
    }
}

static void check_all(const sl_tensors *got, const sl_tensors *want) {
    CHECK_INT(sl_tensors_count(got), sl_tensors_count(want));
    for (int i = 0; i < sl_tensors_count(want); i++) {
        const sl_tensor *w = sl_tensors_at(want, i), *t = sl_tensors_find(got, w->name);
        CHECK(t && t->data);
        check_numbers(t, w);
    }
}

// The tensors as --weights reads them: quantised matrices become fp32, or fp16 if they need more than most_fp32 bytes.
static sl_tensors *unpacked(const char *file, size_t most_fp32) {
    sl_gguf g;
    sl_tensors *got;
    CHECK_OK(sl_gguf_open(file, &g, &err), err);
    CHECK_OK(sl_gguf_tensors(&g, 4, 2, 0, most_fp32, &got, &err), err);
    sl_gguf_close(&g);
    CHECK_OK(sl_tensors_unpack(got, NULL, NULL, &err), err);
    return got;
}

// Packed weights give the bits of the unpacked numbers, in the formats that keep them small.
static void check_weights(const sl_model *model, sl_format format, const sl_tensors *want) {
    const sl_model_weights *list = sl_model_weight_list(model);
    float row[512];
    for (int i = 0; i < list->n_tensors; i++) {
        const sl_weight *w = list->tensors[i].weight;
        const sl_tensor *t = sl_tensors_find(want, list->tensors[i].shape.name);
        if (w->n_rows > 1) CHECK_INT(w->format, format);
        for (size_t r = 0; r < (size_t)w->n_rows; r++) {
            size_t n = (size_t)w->n_cols;
            CHECK(n <= 512);
            sl_weight_widen(w, r, row);
            if (!strcmp(t->dtype_name, "F32") && memcmp(row, (const float *)t->data + r * n, n * sizeof *row))
                FAIL("%s: row %zu differs from the unpacked numbers", w->name, r);
        }
    }
}

static void numbers_of_types(void) {
    static const char *const types[] = {"F32",  "F16",  "BF16", "Q8_0", "Q4_0",   "Q4_1",  "Q5_0",
                                        "Q5_1", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"};
    static const sl_format formats[] = {SL_F32,   SL_F16,   SL_BF16,  SL_INT8, SL_INT4, SL_UINT4, SL_INT8,
                                        SL_UINT8, SL_UINT4, SL_UINT8, SL_INT8, SL_IQ4,  SL_IQ4};
    enum { N = sizeof types / sizeof *types };
    uint64_t hashes[N];
    make_gguf("gguf numpy", "types", in_tmp("t"), "");
    for (int i = 0; i < N; i++) {
        char name[40];
        sl_model *model, *other;
        sl_tensors *want, *as_fp32, *as_fp16;
        const sl_model_options packed = {.flags = SL_MODEL_NO_TOKENIZER | SL_MODEL_PACKED};
        snprintf(name, sizeof name, "t/%s.gguf", types[i]);
        CHECK_OK(sl_model_load(in_tmp(name), &packed, &model, &err), err);
        const sl_tensors *got = sl_model_tensors(model);
        const sl_tensor *v = sl_tensors_find(got, "model.layers.0.self_attn.v_proj.weight"),
                        *q = sl_tensors_find(got, "model.layers.0.self_attn.q_proj.weight");
        int is_plain = i < 3;
        CHECK(!v->data == !is_plain && !q->data && q->packed.n_heads == 4);
        CHECK_STR(q->packed.type->name, types[i]);
        hashes[i] = sl_tensors_hash(got, 1);
        for (int j = 0; j < i; j++) CHECK(hashes[j] != hashes[i]);
        CHECK_OK(sl_model_materialise(model, 1 + i % 3, NULL, NULL, &err), err);
        CHECK(sl_tensors_hash(got, 1) == hashes[i]); // the hash is that of the file
        CHECK(!v->data == !is_plain);
        snprintf(name, sizeof name, "t/%s", types[i]);
        CHECK_OK(sl_tensors_open(in_tmp(name), &want, &err), err);
        snprintf(name, sizeof name, "t/%s.gguf", types[i]);
        as_fp32 = unpacked(in_tmp(name), SL_GGUF_MOST_FP32), as_fp16 = unpacked(in_tmp(name), 0);
        CHECK_STR(sl_tensors_find(as_fp32, q->name)->dtype_name, is_plain ? types[i] : "F32");
        CHECK_STR(sl_tensors_find(as_fp16, q->name)->dtype_name, is_plain ? types[i] : "F16");
        check_all(as_fp32, want), check_all(as_fp16, want);
        CHECK_STR(q->dtype_name, is_plain ? types[i] : sl_formats[formats[i]].name);
        check_weights(model, formats[i], as_fp32);
        CHECK_OK(sl_model_load(in_tmp(name), &no_tokenizer, &other, &err), err); // the load makes them too, with every core
        check_weights(other, formats[i], as_fp32);
        sl_model_free(other), sl_model_free(model);
        sl_tensors_close(want), sl_tensors_close(as_fp32), sl_tensors_close(as_fp16);
    }
}

static int stop(void *ctx) {
    return ++*(int *)ctx > 3;
}

// An engine needs weights. A cancelled load leaves none. A number that is not finite is an error with the tensor's name.
static void unpacking(void) {
    unsigned char block[34 * 64] = {0};
    const int64_t dims[2] = {32, 64};
    sl_model *model;
    sl_engine *engine;
    gguf_file f = {0};
    int calls = 0;
    const sl_model_options packed = {.flags = SL_MODEL_NO_TOKENIZER | SL_MODEL_PACKED};
    gguf_file_config(&f, "tests/goldens/f16");
    gguf_file_tensors(&f, "tests/goldens/f16", 0, INT32_MAX);
    gguf_file_write(&f, "x.gguf");
    CHECK_OK(sl_model_load(in_tmp("x.gguf"), &packed, &model, &err), err);
    sl_engine_options o = sl_engine_options_default();
    o.device = "cpu";
    CHECK_ERR(sl_engine_new(model, &o, &engine, &err), err, SL_ERR_ARG,
              "the weights of a dummy or packed model are not made yet");
    CHECK_ERR(sl_model_materialise(model, 1, NULL, &(sl_cancel){stop, &calls}, &err), err, SL_ERR_CANCELLED, "cancelled");
    CHECK_ERR(sl_engine_new(model, &o, &engine, &err), err, SL_ERR_ARG, "are not made yet");
    CHECK_OK(sl_model_materialise(model, 1, NULL, NULL, &err), err);
    CHECK_OK(sl_engine_new(model, &o, &engine, &err), err);
    sl_engine_free(engine), sl_model_free(model);

    sl_gguf g;
    sl_tensors *t;
    block[34 * 5 + 1] = 0x7c, block[34 * 5 + 9] = 1; // the factor of block 5 is infinite, and one of its values is not 0
    gguf_file_tensor(&f, "blk.0.attn_v.weight", 8, 2, dims, block, sizeof block);
    gguf_file_write(&f, "x.gguf");
    CHECK_OK(sl_gguf_open(in_tmp("x.gguf"), &g, &err), err);
    CHECK_OK(sl_gguf_tensors(&g, 4, 2, 0, SL_GGUF_MOST_FP32, &t, &err), err);
    sl_gguf_close(&g);
    CHECK_ERR(sl_tensors_unpack(t, NULL, NULL, &err), err, SL_ERR_FORMAT,
              "tensor model.layers.0.self_attn.v_proj.weight: a number is not finite");
    sl_tensors_close(t);
}

// A scale or a minimum that is not finite, in a matrix that stays packed.
static void bad_blocks(void) {
    static const struct {
        int type, n_bytes, at; // at: the high byte of an fp16 number of block 5
    } bad[] = {{8, 34, 1}, {3, 20, 1}, {3, 20, 3}, {7, 24, 3}, {20, 18, 1}};
    const int64_t dims[2] = {32, 128};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        unsigned char blocks[34 * 128] = {0};
        sl_model *model;
        gguf_file f = {0};
        blocks[bad[i].n_bytes * 5 + bad[i].at] = 0x7c; // infinite
        gguf_file_config(&f, "tests/goldens/yarn");
        gguf_file_tensors(&f, "tests/goldens/yarn", 1, INT32_MAX); // without lm_head.weight
        gguf_file_tensor(&f, "output.weight", bad[i].type, 2, dims, blocks, (size_t)bad[i].n_bytes * 128);
        gguf_file_write(&f, "x.gguf");
        CHECK_ERR(sl_model_load(in_tmp("x.gguf"), &no_tokenizer, &model, &err), err, SL_ERR_FORMAT,
                  "x.gguf: tensor lm_head.weight: a number is not finite");
    }
}

static void unknown_tensor(void) {
    static const char *const names[] = {"blk.0.ffn_gate_exps.weight", "blk.0.attn_q.scale", "blk.-1.attn_q.weight",
                                        "blk.0.attn_q.weight2", "token_types.weight"};
    const int64_t dims[1] = {4};
    const float zeros[4] = {0};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char says[100];
        sl_model *model;
        gguf_file f = {0};
        gguf_file_config(&f, "tests/goldens/eps");
        gguf_file_tensors(&f, "tests/goldens/eps", 0, INT32_MAX);
        gguf_file_tensor(&f, names[i], 0, 1, dims, zeros, sizeof zeros);
        gguf_file_write(&f, "x.gguf");
        snprintf(says, sizeof says, "x.gguf: tensor %s is not supported", names[i]);
        CHECK_ERR(sl_model_load(in_tmp("x.gguf"), &no_tokenizer, &model, &err), err, SL_ERR_UNSUPPORTED, says);
    }
}

// ---- tokenizers ----

static sl_tokenizer *tokenizer_of(const char *path) {
    sl_source *source;
    sl_tokenizer *tok;
    CHECK_OK(sl_source_open(path, &source, &err), err);
    CHECK_OK(sl_tokenizer_load(sl_source_documents(source), &tok, &err), err);
    sl_source_close(source);
    return tok;
}

// Compares the ids of a GGUF file with those of the folder that it was made of, for all texts of a file. Returns their number.
static int compare_ids(const sl_tokenizer *want, const sl_tokenizer *got, const char *path) {
    char line[8192];
    int n = 0;
    FILE *f = fopen(path, "r");
    if (!f) FAIL("%s is missing", path);
    while (fgets(line, sizeof line, f)) {
        json_t *row = json_loads(line, JSON_ALLOW_NUL, NULL), *text = json_object_get(row, "text");
        for (unsigned flags = 0; flags < 4; flags++) { // SL_TOK_BOS, SL_TOK_PLAIN
            sl_ids a = {0}, b = {0};
            CHECK_OK(sl_tokenize(want, json_string_value(text), json_string_length(text), flags, &a, &err), err);
            CHECK_OK(sl_tokenize(got, json_string_value(text), json_string_length(text), flags, &b, &err), err);
            if (a.n != b.n || (a.n && memcmp(a.data, b.data, a.n * sizeof *a.data)))
                FAIL("%s, flags %u: %s gives other ids", path, flags, line);
            sl_ids_free(&a), sl_ids_free(&b);
        }
        json_decref(row);
        n++;
    }
    fclose(f);
    return n;
}

static void check_ids(const char *folder, const char *file, const char *const *vectors, int least) {
    char path[300];
    int n = 0;
    sl_tokenizer *want = tokens_load(folder), *got = tokenizer_of(in_tmp(file));
    CHECK_INT(sl_tokenizer_bos(got), sl_tokenizer_bos(want));
    if (sl_tokenizer_eos(want) >= 0) CHECK_INT(sl_tokenizer_eos(got), sl_tokenizer_eos(want));
    for (; *vectors; vectors++) {
        snprintf(path, sizeof path, "%s/%s", folder, *vectors);
        n += compare_ids(want, got, path);
    }
    CHECK(n >= least);
    sl_tokenizer_free(want), sl_tokenizer_free(got);
}

// Texts with strings of special tokens, blanks at their ends, and other scripts.
static void ids_of_folders(void) {
    static const char *const vectors[] = {"vectors.jsonl", NULL};
    make_gguf("gguf numpy sentencepiece", "tokenizers", test_tmp(),
              "tests/vocabularies/bpe tests/vocabularies/qwen tests/vocabularies/llama");
    check_ids("tests/vocabularies/bpe", "0.gguf", vectors, 60);
    check_ids("tests/vocabularies/qwen", "1.gguf", vectors, 60);
    check_ids("tests/vocabularies/llama", "2.gguf", vectors, 60);
}

static void ids_of_llama(void) { // Llama 2's and Llama 3's vocabularies
    static const char *const vectors[] = {"vectors.jsonl", "vectors-extra.jsonl", NULL};
    char folders[2][200], both[410];
    for (int i = 0; i < 2; i++) snprintf(folders[i], sizeof folders[i], "%.150s/tokenizers/llama%d", test_shared(), i + 2);
    snprintf(both, sizeof both, "'%s' '%s'", folders[0], folders[1]);
    make_gguf("gguf numpy sentencepiece", "tokenizers", test_tmp(), both);
    check_ids(folders[0], "0.gguf", vectors, 196);
    check_ids(folders[1], "1.gguf", vectors, 196);
}

// Chat prompts with the ids that Mistral's library gives: a blank before each text (v1), or at the start only (v2, v3).
static void ids_of_mistral(void) {
    static const struct {
        const char *file, *prompt;
        int32_t ids[12];
        int n;
    } cases[] = {
        {"tokenizer.model.v1",
         "<s>[INST] Hello the river [/INST]",
         {1, 733, 16289, 28793, 22557, 272, 7782, 733, 28748, 16289, 28793},
         11},
        {"mistral_instruct_tokenizer_240216.model.v2", "<s>[INST] Hello the river[/INST]", {1, 3, 23325, 1040, 8550, 4}, 6},
        {"mistral_instruct_tokenizer_240323.model.v3", "<s>[INST] Hello the river[/INST]", {1, 3, 23325, 1040, 8550, 4}, 6}};
    enum { N = sizeof cases / sizeof *cases };
    char path[PATH_MAX], folders[N * 300] = "", name[40];
    for (int i = 0; i < N; i++) {
        snprintf(path, sizeof path, "%s/%s", venv_file(VENV_MISTRAL), cases[i].file);
        snprintf(name, sizeof name, "%d", i);
        CHECK(!mkdir(in_tmp(name), 0700));
        size_t n = strlen(folders);
        snprintf(folders + n, sizeof folders - n, "'%s' ", in_tmp(name));
        snprintf(name, sizeof name, "%d/tokenizer.model", i);
        tokens_link(path, name);
    }
    make_gguf("gguf numpy sentencepiece", "tokenizers", test_tmp(), folders);
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "%d.gguf", i);
        sl_tokenizer *tok = tokenizer_of(in_tmp(name));
        tokens_expect_ids(tok, cases[i].prompt, strlen(cases[i].prompt), 0, cases[i].ids, (size_t)cases[i].n);
        sl_tokenizer_free(tok);
    }
}

static void bpe_values(gguf_file *f, const char *pre) {
    static const char *const texts[] = {"a", "b", "ab", "<s>", "<u>", "[PAD5]"}, *const merges[] = {"a b"};
    static const int types[] = {1, 1, 1, 3, 4, 5};
    gguf_file_config(f, "tests/goldens/eps");
    gguf_file_text(f, "tokenizer.ggml.model", "gpt2");
    if (pre) gguf_file_text(f, "tokenizer.ggml.pre", pre);
    gguf_file_texts(f, "tokenizer.ggml.tokens", texts, 6);
    gguf_file_ints(f, "tokenizer.ggml.token_type", types, 6);
    gguf_file_texts(f, "tokenizer.ggml.merges", merges, 1);
}

// What each name of a pre-tokenizer means, and what is refused.
static void pre_tokenizers(void) {
    static const struct {
        const char *pre, *holds; // a part of tokenizer.json
        int add_bos;
    } known[] = {
        {"llama-bpe", "\\\\p{N}{1,3}", 1},
        {"llama3", "\"ignore_merges\":true", 1},
        {"llama-v3", "\\\\p{N}{1,3}", 1},
        {"qwen2", "\"normalizer\":{\"type\":\"NFC\"}", 0},
        {"tekken", "\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]*[", 1},
        {"smollm", "{\"individual_digits\":true,\"type\":\"Digits\"}", 0},
        {"gpt-2", "\"use_regex\":true", 0},
        {"default", "[0-9][0-9][0-9]", 0},
    };
    sl_source *source;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        gguf_file f = {0};
        sl_text text = {0};
        bpe_values(&f, known[i].pre);
        gguf_file_int(&f, "tokenizer.ggml.bos_token_id", SL_GGUF_U32, 3);
        gguf_file_write(&f, "x.gguf");
        CHECK_OK(sl_source_open(in_tmp("x.gguf"), &source, &err), err);
        const sl_documents *d = sl_source_documents(source);
        CHECK_OK(sl_documents_text(d, "tokenizer.json", 1 << 20, &text, &err), err);
        CHECK_HAS(text.data, known[i].holds);
        CHECK_HAS(text.data, "\"vocab\":{\"a\":0,\"ab\":2,\"b\":1}"); // without the unused token
        CHECK_HAS(text.data,
                  "\"content\":\"<u>\",\"id\":4,\"lstrip\":false,\"normalized\":false,\"rstrip\":false,\"single_word\":"
                  "false,\"special\":false");
        CHECK_INT(strstr(text.data, "TemplateProcessing") != NULL, known[i].add_bos);
        sl_text_free(&text);
        sl_source_close(source);
    }
    static const struct {
        const char *pre, *says;
    } refused[] = {
        {"falcon3", "key tokenizer.ggml.pre is \"falcon3\", supported are llama-bpe, llama3, llama-v3, qwen2, tekken"},
        {NULL, "key tokenizer.ggml.pre is missing, supported are llama-bpe"},
        {"llama-bpe", "texts begin with BOS, but key tokenizer.ggml.bos_token_id is missing"}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        gguf_file f = {0};
        bpe_values(&f, refused[i].pre);
        gguf_file_write(&f, "x.gguf");
        int rc = sl_source_open(in_tmp("x.gguf"), &source, &err);
        if (rc != (strstr(refused[i].says, "supported") ? SL_ERR_UNSUPPORTED : SL_ERR_FORMAT) ||
            !strstr(err.message, refused[i].says))
            FAIL("\"%s\" lacks \"%s\"", err.message, refused[i].says);
    }
}

// Templates, end tokens and special tokens.
static void tokenizer_config(void) {
    static const char *const names[] = {"tool_use"};
    sl_source *source;
    sl_config config;
    sl_text text = {0};
    gguf_file f = {0};
    bpe_values(&f, "gpt-2");
    gguf_file_text(&f, "tokenizer.chat_template", "plain");
    gguf_file_text(&f, "tokenizer.chat_template.tool_use", "tools");
    gguf_file_texts(&f, "tokenizer.chat_templates", names, 1);
    gguf_file_int(&f, "tokenizer.ggml.bos_token_id", SL_GGUF_U32, 3);
    gguf_file_int(&f, "tokenizer.ggml.eos_token_id", SL_GGUF_U32, 3);
    gguf_file_int(&f, "tokenizer.ggml.eot_token_id", SL_GGUF_U32, 4);
    gguf_file_int(&f, "tokenizer.ggml.eom_token_id", SL_GGUF_U32, 5);
    gguf_file_int(&f, "tokenizer.ggml.add_bos_token", SL_GGUF_BOOL, 1);
    gguf_file_int(&f, "tokenizer.ggml.add_eos_token", SL_GGUF_BOOL, 0);
    gguf_file_write(&f, "x.gguf");
    CHECK_OK(sl_source_open(in_tmp("x.gguf"), &source, &err), err);
    CHECK_OK(sl_documents_text(sl_source_documents(source), "tokenizer_config.json", 1 << 20, &text, &err), err);
    CHECK_STR(text.data, "{\"add_bos_token\":true,\"add_eos_token\":false,\"bos_token\":\"<s>\",\"chat_template\":[{\"name\":"
                         "\"default\",\"template\":\"plain\"},{\"name\":\"tool_use\",\"template\":\"tools\"}],\"eos_token\":"
                         "\"<s>\"}");
    CHECK_OK(sl_config_load(sl_source_documents(source), &config, &err), err);
    CHECK(config.bos == 3 && config.n_eos == 3 && config.eos[0] == 3 && config.eos[1] == 4 && config.eos[2] == 5);
    sl_source_close(source);
    sl_text_free(&text);
}

static const test_case cases[] = {{"bits-of-folders", NEEDS_NOTHING, bits_of_folders},
                                  {"rope-factors", NEEDS_NOTHING, rope_factors},
                                  {"numbers-of-types", NEEDS_NOTHING, numbers_of_types},
                                  {"unpacking", NEEDS_NOTHING, unpacking},
                                  {"bad-blocks", NEEDS_NOTHING, bad_blocks},
                                  {"unknown-tensor", NEEDS_NOTHING, unknown_tensor},
                                  {"ids-of-folders", NEEDS_NOTHING, ids_of_folders},
                                  {"ids-of-llama", NEEDS_SHARED, ids_of_llama},
                                  {"ids-of-mistral", NEEDS_NOTHING, ids_of_mistral},
                                  {"pre-tokenizers", NEEDS_NOTHING, pre_tokenizers},
                                  {"tokenizer-config", NEEDS_NOTHING, tokenizer_config},
                                  {0}};

const test_suite suite_gguf_model = {"gguf_model", cases};
