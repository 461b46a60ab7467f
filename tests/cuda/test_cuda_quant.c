// tests/cuda/test_cuda_quant.c - whole models with quantised weights on a GPU, against the CPU: checkpoints of every layout,
// GGUF files whose matrices have different types, and a real GGUF file. Their weights stay packed in the GPU's memory. A
// session has equal bits in every batch, and with every chunk size of the prompt.
#include "tests/support/gpu.h"

#ifdef SLEIGH_CUDA
#include "engine/engine.h"
#include "tests/support/gguf_file.h"
#include "tests/support/models.h"
#include "tests/support/run_cli.h"
#include "tests/support/tensor_file.h"
#include "tests/support/tokens.h"
#include "tests/support/venv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static sl_error err;

// Activations are bf16 on the GPU and fp32 on the CPU, and a prefill rounds the numbers of the weights to bf16 too: about 9
// roundings of a layer, each of which adds a relative error of about 1.5e-3 (RMS), independently. The residual stream amplifies
// the error, most where attention is peaked: large weights make peaked attention. The bound allows a factor of 5.
static double bound_of(int n_layers) {
    return 5 * 1.5e-3 * sqrt(9.0 * n_layers);
}

// ---- a model on a device ----

// path: a folder or a GGUF file. lines: what the load and the placing say
static model_fixture model_on(const char *device, const char *path, int n_ctx, int n_sequences, int chunk, test_lines *lines) {
    model_fixture r;
    *lines = (test_lines){0};
    const sl_log log = {.fn = test_note_line, .ctx = lines};
    const sl_model_options o = {.flags = SL_MODEL_NO_TOKENIZER, .activations = "float", .log = log};
    const sl_engine_options e = {
        .n_ctx = n_ctx, .n_sequences = n_sequences, .prefill_chunk = chunk, .device = device, .seed = 1, .log = log};
    CHECK_OK(sl_model_load(path, &o, &r.model, &err), err);
    CHECK_OK(sl_engine_new(r.model, &e, &r.engine, &err), err);
    r.n_vocab = sl_model_n_vocab(r.model);
    return r;
}

// Logits of n tokens, of which the last n_decoded are decoded one by one.
static float *logits_of(model_fixture *r, const int32_t *ids, int n, int n_decoded) {
    logit_rows out = {malloc((size_t)n * r->n_vocab * sizeof(float)), r->n_vocab};
    sl_session *s = model_fixture_session(r, 0);
    CHECK_OK(sl_prefill_logits(s, ids, n - n_decoded, keep_logits, &out, NULL, &err), err);
    for (int i = n - n_decoded; i < n; i++) {
        CHECK_OK(sl_decode(&s, 1, ids + i, &err), err);
        CHECK_OK(keep_logits(&out, i, 1, sl_session_logits(s, NULL), &err), err);
    }
    sl_session_free(s);
    return out.data;
}

// The GPU's logits are close to the CPU's. said: what the placing says about weights that became bf16; NULL: no weight did
static void check_logits(const char *path, const char *name, const char *said) {
    enum { N = 180, DECODED = 12 };
    test_lines lines;
    model_fixture cpu = model_on("cpu", path, N, 1, 0, &lines), gpu = model_on("cuda", path, N, 1, 50, &lines);
    const char *line = strstr(lines.text, "bf16 on this GPU");
    if (said ? !strstr(lines.text, said) : line != NULL) FAIL("%s: %s", name, lines.text);
    int32_t *ids = test_ids(N, cpu.n_vocab, test_seed);
    float *want = logits_of(&cpu, ids, N, DECODED), *got = logits_of(&gpu, ids, N, DECODED);
    size_t n = (size_t)(N - DECODED) * cpu.n_vocab;
    double e = relative_logits(got, want, n), step = relative_logits(got + n, want + n, (size_t)DECODED * cpu.n_vocab);
    printf("      %s: relative error of prefill %.3g, of decode steps %.3g\n", name, e, step);
    double bound = bound_of(sl_model_config(cpu.model)->n_layers);
    if (!(e <= bound && step <= bound)) FAIL("%s: relative error of the logits %.3g, %.3g > %.3g", name, e, step, bound);
    model_fixture_close(&cpu), model_fixture_close(&gpu);
    free(ids), free(want), free(got);
}

static void check_equal(const float *got, const float *want, size_t n, const char *name, const char *what) {
    for (size_t i = 0; i < n; i++)
        if (memcmp(got + i, want + i, sizeof *got))
            FAIL("%s, %s: logit %zu is %.9g, expected %.9g", name, what, i, got[i], want[i]);
}

// Prompts in chunks and whole; a sequence alone and in batches, some larger than a launch.
static void check_bits(const char *path, const char *name) {
    enum { N = 90, BATCH = 19, STEPS = 3 };
    test_lines lines;
    model_fixture whole = model_on("cuda", path, N, BATCH, N, &lines), parts = model_on("cuda", path, N, 1, 17, &lines);
    const size_t n_vocab = (size_t)whole.n_vocab;
    int32_t *ids = test_ids(N, whole.n_vocab, test_seed + 1);
    float *want = logits_of(&whole, ids, N - STEPS, 0), *got = logits_of(&parts, ids, N - STEPS, 0);
    check_equal(got, want, (N - STEPS) * n_vocab, name, "prefill in chunks");
    free(want), free(got);
    want = malloc(BATCH * n_vocab * sizeof *want);
    for (int n = 1; n <= BATCH; n = n == 1 ? 5 : n == 5 ? 12 : n == 12 ? BATCH : BATCH + 1) {
        for (int first = 0; first < (n == 1 ? BATCH : 1); first++) { // sequence i has 4 i + 1 tokens before the steps
            sl_session *batch[BATCH];
            for (int i = 0; i < n; i++) {
                batch[i] = model_fixture_session(&whole, (uint32_t)(first + i));
                CHECK_OK(sl_prefill(batch[i], ids, 4 * (first + i) + 1, NULL, &err), err);
            }
            for (int step = 0; step < STEPS; step++) {
                int32_t next[BATCH];
                for (int i = 0; i < n; i++) next[i] = ids[(first + i + 7 * step) % N];
                CHECK_OK(sl_decode(batch, n, next, &err), err);
            }
            for (int i = 0; i < n; i++) {
                const float *logits = sl_session_logits(batch[i], NULL);
                if (n == 1)
                    memcpy(want + (size_t)first * n_vocab, logits, n_vocab * sizeof *want);
                else
                    check_equal(logits, want + (size_t)i * n_vocab, n_vocab, name, "in a batch");
            }
            for (int i = 0; i < n; i++) sl_session_free(batch[i]);
        }
    }
    free(want), free(ids);
    model_fixture_close(&whole), model_fixture_close(&parts);
}

// ---- checkpoints ----

// Every layout of make_quantised.py. Those with an order have another one for each matrix: gate and up become bf16, because one
// kernel reads both.
static void checkpoints(void) {
    static const char *const names[] = {"ct-fp8-tensor",
                                        "ct-fp8-rows",
                                        "ct-fp8-channel",
                                        "ct-fp8-block",
                                        "ct-int8",
                                        "ct-int8-zeros",
                                        "ct-int4",
                                        "ct-int4-channel",
                                        "ct-int4-zeros",
                                        "ct-int4-order",
                                        "ct-int4-head",
                                        "ct-int8-packed",
                                        "ct-mixed",
                                        "ct-int8-packed-zeros",
                                        "fp8-block",
                                        "fp8-tensor",
                                        "modelopt",
                                        "ct-nvfp4",
                                        "ct-mxfp4",
                                        "ct-nvfp4-weights",
                                        "ct-mixed-fp4",
                                        "modelopt-nvfp4",
                                        "modelopt-nvfp4-groups",
                                        "awq",
                                        "awq-part",
                                        "gptq",
                                        "gptq-zeros",
                                        "gptq-v2",
                                        "gptq-channel",
                                        "gptq-order",
                                        "gptq-part"};
    static const char *const for_bits[] = {"ct-int4-order", "ct-int8-packed-zeros", "ct-nvfp4", "ct-mxfp4", "awq",
                                           "gptq-order"};
    char line[2048], path[512];
    snprintf(line, sizeof line, "mkdir '%s/made' && '%s' scripts/goldens/make_quantised.py '%s/made' 64", test_tmp(),
             venv_python("numpy"), test_tmp());
    if (system(line)) FAIL("%s", line);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/made/%s", test_tmp(), names[i]);
        check_logits(path, names[i],
                     strstr(names[i], "-order")
                         ? "4 quantised weights are bf16 on this GPU: 4 int4 with columns in another order"
                         : NULL);
    }
    for (size_t i = 0; i < sizeof for_bits / sizeof *for_bits; i++) {
        snprintf(path, sizeof path, "%s/made/%s", test_tmp(), for_bits[i]);
        check_bits(path, for_bits[i]);
    }
}

// ---- GGUF files ----

static void put_half(uint8_t *to, double x) {
    f16 half = sl_f32_to_f16((float)x);
    memcpy(to, &half, sizeof half);
}

// Writes the scale of a block of random bytes; its minimum gives numbers with a mean near 0.
static void put_scales(const sl_block_type *type, uint8_t *block, double d) {
    double middle = type->format == SL_UINT4 ? 7.5 : 15.5;
    put_half(block + (strcmp(type->name, "Q6_K") ? 0 : 208), d);
    if (sl_formats[type->format].has_min) put_half(block + 2, type->n_values == 256 ? d * middle : -d * middle);
}

// Adds a matrix of random blocks. The numbers have a deviation of about 1 / sqrt(n_cols).
static void add_blocks(gguf_file *f, const char *name, int id, int n_rows, int n_cols, uint64_t *seed) {
    const sl_block_type *type = sl_block_type_find(id);
    size_t n = (size_t)n_rows * n_cols / type->n_values;
    uint8_t *data = malloc(n * type->n_bytes);
    double squares = 0;
    for (size_t i = 0; i < n * type->n_bytes; i++) data[i] = (uint8_t)(256 * test_uniform(seed));
    for (size_t i = 0; i < n && i < 64; i++) {
        float y[SL_BLOCK_MOST];
        put_scales(type, data + i * type->n_bytes, 1);
        sl_block_unpack(type, data + i * type->n_bytes, y);
        for (int j = 0; j < type->n_values; j++) squares += (double)y[j] * y[j] / type->n_values;
    }
    double d = 1 / sqrt(squares / (n < 64 ? n : 64) * n_cols);
    for (size_t i = 0; i < n; i++) put_scales(type, data + i * type->n_bytes, d * (0.5 + test_uniform(seed)));
    gguf_file_tensor(f, name, id, 2, (const int64_t[]){n_cols, n_rows}, data, n * type->n_bytes);
    free(data);
}

static void add_ones(gguf_file *f, const char *name, int n) {
    float *x = malloc((size_t)n * sizeof *x);
    for (int i = 0; i < n; i++) x[i] = 1;
    gguf_file_tensor(f, name, 0, 1, (const int64_t[]){n}, x, (size_t)n * sizeof *x);
    free(x);
}

enum { Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q4_K = 12, Q5_K = 13, Q6_K = 14, IQ4_NL = 20, IQ4_XS = 23 };

typedef struct layer_types {
    int q, k, v, o, gate, up, down;
} layer_types;

// A model of random blocks. arch: llama, or qwen3, which norms the heads of q and k. n_layers: of `layers`
static void write_model(const char *file, const char *arch, int hidden, int n_ffn, int head_dim, int embed, int head,
                        const layer_types *layers, int n_layers) {
    enum { HEADS = 4, KV_HEADS = 2, VOCAB = 320 };
    const int q_dim = HEADS * head_dim, kv_dim = KV_HEADS * head_dim;
    uint64_t seed = test_seed;
    char path[512], name[64];
    gguf_file f = {0};
    snprintf(path, sizeof path, "%s/config.json", test_tmp());
    FILE *out = fopen(path, "w");
    fprintf(out,
            "{\"model_type\": \"%s\", \"num_hidden_layers\": %d, \"max_position_embeddings\": 512, \"hidden_size\": %d, "
            "\"intermediate_size\": %d, \"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"head_dim\": %d, "
            "\"vocab_size\": %d, \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000}",
            arch, n_layers, hidden, n_ffn, HEADS, KV_HEADS, head_dim, VOCAB);
    fclose(out);
    gguf_file_config(&f, test_tmp());
    add_blocks(&f, "token_embd.weight", embed, VOCAB, hidden, &seed);
    add_blocks(&f, "output.weight", head, VOCAB, hidden, &seed);
    add_ones(&f, "output_norm.weight", hidden);
    for (int i = 0; i < n_layers; i++) {
        const layer_types *l = &layers[i];
        const struct {
            const char *name;
            int type, n_rows, n_cols;
        } parts[] = {{"attn_q", l->q, q_dim, hidden},      {"attn_k", l->k, kv_dim, hidden},
                     {"attn_v", l->v, kv_dim, hidden},     {"attn_output", l->o, hidden, q_dim},
                     {"ffn_gate", l->gate, n_ffn, hidden}, {"ffn_up", l->up, n_ffn, hidden},
                     {"ffn_down", l->down, hidden, n_ffn}};
        for (size_t j = 0; j < sizeof parts / sizeof *parts; j++) {
            snprintf(name, sizeof name, "blk.%d.%s.weight", i, parts[j].name);
            add_blocks(&f, name, parts[j].type, parts[j].n_rows, parts[j].n_cols, &seed);
        }
        snprintf(name, sizeof name, "blk.%d.attn_norm.weight", i);
        add_ones(&f, name, hidden);
        snprintf(name, sizeof name, "blk.%d.ffn_norm.weight", i);
        add_ones(&f, name, hidden);
        for (int is_k = 0; is_k < 2 && !strcmp(arch, "qwen3"); is_k++) {
            snprintf(name, sizeof name, "blk.%d.attn_%c_norm.weight", i, is_k ? 'k' : 'q');
            add_ones(&f, name, head_dim);
        }
    }
    gguf_file_write(&f, file);
}

// Every type; q, k and v of one, two and three types, as in Q4_K_M and Q5_K_M files.
static void gguf_types(void) {
    static const layer_types k_quants[] = {{Q4_K, Q4_K, Q6_K, Q4_K, Q4_K, Q4_K, Q6_K},
                                           {Q4_K, Q4_K, Q4_K, Q4_K, Q4_K, Q4_K, Q4_K},
                                           {Q5_K, Q5_K, Q6_K, Q5_K, Q5_K, Q5_K, Q6_K},
                                           {IQ4_XS, Q6_K, Q6_K, IQ4_XS, Q6_K, Q6_K, IQ4_XS},
                                           {Q8_0, Q5_K, Q4_K, Q6_K, Q8_0, Q8_0, Q5_K}};
    static const layer_types small[] = {{Q4_0, Q4_0, Q4_0, Q4_0, Q4_0, Q4_0, Q4_0},
                                        {Q4_1, Q4_1, Q5_1, Q4_1, Q4_1, Q4_1, Q5_1},
                                        {Q5_0, Q8_0, Q5_0, Q5_0, Q5_0, Q5_0, Q8_0}, // Q5_0 and Q8_0 are stored alike
                                        {IQ4_NL, Q4_0, IQ4_NL, IQ4_NL, Q5_1, Q5_1, Q5_0},
                                        {Q4_1, Q8_0, Q4_1, Q8_0, IQ4_NL, IQ4_NL, Q4_1}};
    write_model("k.gguf", "llama", 512, 768, 64, Q6_K, Q6_K, k_quants, 5);
    check_logits(in_tmp("k.gguf"), "K types", NULL);
    check_bits(in_tmp("k.gguf"), "K types");
    write_model("k128.gguf", "llama", 256, 512, 128, Q4_K, Q8_0, k_quants, 5);
    check_logits(in_tmp("k128.gguf"), "K types, head_dim 128", NULL);
    write_model("qwen3.gguf", "qwen3", 512, 768, 64, Q6_K, Q6_K, k_quants, 5);
    check_logits(in_tmp("qwen3.gguf"), "K types, norms of heads", NULL);
    check_bits(in_tmp("qwen3.gguf"), "K types, norms of heads");
    write_model("small.gguf", "llama", 288, 672, 80, Q8_0, Q4_1, small, 5); // columns in parts of 128
    check_logits(in_tmp("small.gguf"), "small types", NULL);
    check_bits(in_tmp("small.gguf"), "small types");
}

// One kernel reads gate and up, so they need one format.
static void gguf_mixed_gate(void) {
    static const layer_types layers[] = {{Q4_K, Q6_K, Q5_K, Q4_K, Q4_K, Q6_K, Q4_K}};
    write_model("x.gguf", "llama", 256, 512, 64, Q6_K, Q6_K, layers, 1);
    check_logits(in_tmp("x.gguf"), "gate and up of two types", "2 quantised weights are bf16 on this GPU: 1 int8, 1 uint4");
}

// SmolLM2-135M-Instruct: Q4_1 with 576 columns, and an embedding of another type, tied to the head.
static void gguf_real(void) {
    check_logits(venv_file(VENV_SMOLLM2), "SmolLM2", NULL);
    check_bits(venv_file(VENV_SMOLLM2), "SmolLM2");
}
#endif

static const test_case cases[] = {
    GPU_CASE("checkpoints", checkpoints),
    GPU_CASE("gguf-types", gguf_types),
    GPU_CASE("gguf-mixed-gate", gguf_mixed_gate),
    GPU_CASE("gguf-real", gguf_real),
    {0},
};
extern const test_suite suite_cuda_quant;
const test_suite suite_cuda_quant = {"cuda_quant", cases};
