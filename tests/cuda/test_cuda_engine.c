// tests/cuda/test_cuda_engine.c - compares whole models on a GPU with the CPU. A session must have equal bits in every batch,
// with every chunk size of the prompt, and with recorded and newly queued steps. Tokens are sampled on the device. Errors must
// be reported before any upload.
#include "tests/support/gpu.h"

#ifdef SLEIGH_CUDA
#include "engine/engine.h"
#include "tests/support/models.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static sl_error err;

static model_fixture fixture_on(const char *device, const char *dir, int n_ctx, int n_sequences, int chunk) {
    return model_fixture_load(
        dir, NULL,
        (sl_engine_options){.n_ctx = n_ctx, .n_sequences = n_sequences, .prefill_chunk = chunk, .device = device, .seed = 1});
}

static void check_bits(const float *got, const float *want, int n, const char *what) {
    for (int i = 0; i < n; i++)
        if (memcmp(got + i, want + i, sizeof *got)) FAIL("%s: logit %d is %.9g, expected %.9g", what, i, got[i], want[i]);
}

// ---- compared with the CPU ----

// Activations are bf16 on the GPU and fp32 on the CPU. A layer has about 6 roundings. Each rounding is off by at most 2^-8 of a
// number, independently, and so adds a relative error of about 1.5e-3 (RMS). So 8 layers add up to 1.0e-2. The residual stream
// of a random model amplifies the error; the bound allows a factor of 2.4.
static const double LOGITS_RELATIVE = 2.5e-2;
// The scores of dummy weights have a deviation of 4, so a row with much mass has a score near 12. Its query and its key have
// rounding errors of 2^-9, which change the score by 0.03 and the row's probability by 3%. Three layers add up.
static const double DUMMY_LOGITS_RELATIVE = 0.1;

// Logits of n tokens: a prefill of all but the last n_decoded tokens, which are decoded one by one.
static float *all_logits(const char *device, const char *dir, const int32_t *ids, int n, int n_decoded, int chunk) {
    model_fixture r = fixture_on(device, dir, n, 1, chunk);
    logit_rows out = {malloc((size_t)n * r.n_vocab * sizeof(float)), r.n_vocab};
    sl_session *s = model_fixture_session(&r, 0);
    CHECK_OK(sl_prefill_logits(s, ids, n - n_decoded, keep_logits, &out, NULL, &err), err);
    for (int i = n - n_decoded; i < n; i++) {
        CHECK_OK(sl_decode(&s, 1, ids + i, &err), err);
        CHECK_OK(keep_logits(&out, i, 1, sl_session_logits(s, NULL), &err), err);
    }
    sl_session_free(s);
    model_fixture_close(&r);
    return out.data;
}

static void logits_of(const char *dir, int n) {
    sl_model *model;
    CHECK_OK(sl_model_load(dir, &(sl_model_options){.flags = SL_MODEL_NO_TOKENIZER}, &model, &err), err);
    int n_vocab = sl_model_config(model)->n_vocab;
    sl_model_free(model);
    int32_t *ids = test_ids(n, n_vocab, test_seed);
    enum { DECODED = 16 };
    float *want = all_logits("cpu", dir, ids, n, DECODED, 512), *got = all_logits("cuda", dir, ids, n, DECODED, 100);
    size_t prefilled = (size_t)(n - DECODED) * n_vocab, decoded = (size_t)DECODED * n_vocab;
    double e = relative_logits(got, want, prefilled), d = relative_logits(got + prefilled, want + prefilled, decoded);
    printf("      %s: relative error of %d rows of logits %.3g, of %d decode steps %.3g\n", dir, n - DECODED, e, DECODED, d);
    if (!(e <= LOGITS_RELATIVE && d <= LOGITS_RELATIVE))
        FAIL("%s: relative error of the logits %.3g, %.3g > %.3g", dir, e, d, LOGITS_RELATIVE);
    free(ids), free(want), free(got);
}

static void logits_tiny(void) {
    logits_of("models/tiny", 1200);
}

// The golden models whose shapes the kernels support. The others must be refused with the reason, before any upload.
static void logits_goldens(void) {
    static const char *const names[] = {"f16",     "f32",  "gqa",   "headdim80",  "mha",   "mistral",
                                        "sharded", "tied", "qwen2", "qwen2-tied", "qwen3", "qwen3-tied"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char dir[128];
        snprintf(dir, sizeof dir, "tests/goldens/%s", names[i]);
        sl_model *model;
        sl_engine *engine = NULL;
        CHECK_OK(sl_model_load(dir, &(sl_model_options){.flags = SL_MODEL_NO_TOKENIZER}, &model, &err), err);
        const sl_config *c = sl_model_config(model);
        int dim = c->head_dim, n_ctx = c->n_ctx, takes = dim == 64 || dim == 80 || dim == 96 || dim == 128;
        int rc = sl_engine_new(model, &(sl_engine_options){.n_ctx = n_ctx, .device = "cuda"}, &engine, &err);
        sl_engine_free(engine);
        sl_model_free(model);
        if (takes) {
            CHECK_OK(rc, err);
            logits_of(dir, n_ctx < 400 ? n_ctx : 400);
        } else
            CHECK_ERR(rc, err, SL_ERR_UNSUPPORTED, "on a GPU 64, 80, 96 and 128 are supported; use device cpu");
    }
}

// Logits of a model with dummy weights: of n tokens, and of a decode step. weights: sl_model_options.weights
static float *dummy_logits(const char *device, const char *dir, const char *weights, const int32_t *ids, int n, int *n_vocab) {
    sl_model *model;
    sl_engine *engine;
    sl_session *s;
    const sl_model_options options = {.flags = SL_MODEL_NO_TOKENIZER | SL_MODEL_DUMMY, .weights = weights};
    CHECK_OK(sl_model_load(dir, &options, &model, &err), err);
    if (weights || !sl_device_is_gpu(device)) CHECK_OK(sl_model_materialise(model, 0, NULL, NULL, &err), err);
    CHECK_OK(sl_engine_new(model, &(sl_engine_options){.n_ctx = n + 1, .device = device}, &engine, &err), err);
    CHECK_OK(sl_session_new(engine, 0, &s, &err), err);
    *n_vocab = sl_model_config(model)->n_vocab;
    logit_rows out = {malloc((size_t)(n + 1) * *n_vocab * sizeof(float)), *n_vocab};
    CHECK_OK(sl_prefill_logits(s, ids, n, keep_logits, &out, NULL, &err), err);
    CHECK_OK(sl_decode(&s, 1, ids, &err), err);
    memcpy(out.data + (size_t)n * *n_vocab, sl_session_logits(s, NULL), *n_vocab * sizeof(float));
    sl_session_free(s);
    sl_engine_free(engine);
    sl_model_free(model);
    return out.data;
}

typedef struct shape {
    int head_dim, n_heads, n_kv_heads, hidden, n_ffn, tied;
} shape;

// Compares the CPU and the GPU on a model of this shape, whose dummy weights have equal bits on both.
static void logits_of_shape(const shape *x, const char *weights, uint64_t seed) {
    enum { N = 300 };
    char path[256];
    int n_vocab;
    snprintf(path, sizeof path, "%s/config.json", test_tmp());
    FILE *f = fopen(path, "w");
    fprintf(f,
            "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_act\": \"silu\", "
            "\"vocab_size\": 1000, \"hidden_size\": %d, \"intermediate_size\": %d, \"num_hidden_layers\": 3, "
            "\"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"head_dim\": %d, \"rms_norm_eps\": 1e-5, "
            "\"max_position_embeddings\": 4096, \"rope_theta\": 10000, \"tie_word_embeddings\": %s}",
            x->hidden, x->n_ffn, x->n_heads, x->n_kv_heads, x->head_dim, x->tied ? "true" : "false");
    fclose(f);
    int32_t *ids = test_ids(N, 1000, seed);
    float *want = dummy_logits("cpu", test_tmp(), weights, ids, N, &n_vocab);
    float *got = dummy_logits("cuda", test_tmp(), weights, ids, N, &n_vocab);
    double e = relative_logits(got, want, (size_t)N * n_vocab);
    double step = relative_logits(got + (size_t)N * n_vocab, want + (size_t)N * n_vocab, n_vocab);
    printf("      head_dim %d, %d query heads, %d KV heads, %s: relative error of prefill %.3g, of a decode step %.3g\n",
           x->head_dim, x->n_heads, x->n_kv_heads, weights ? weights : "bf16", e, step);
    if (!(e <= DUMMY_LOGITS_RELATIVE && step <= DUMMY_LOGITS_RELATIVE))
        FAIL("relative error of the logits %.3g, %.3g", e, step);
    free(ids), free(want), free(got);
}

// Every head_dim and several groups.
static void logits_shapes(void) {
    static const shape shapes[] = {{64, 8, 8, 512, 1000, 0},  {64, 16, 2, 256, 512, 1}, {80, 4, 2, 320, 840, 0},
                                   {96, 6, 2, 576, 1536, 0},  {96, 3, 3, 288, 768, 1},  {128, 8, 1, 512, 1024, 0},
                                   {128, 12, 4, 768, 2056, 0}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) logits_of_shape(&shapes[i], NULL, test_seed + i);
}

// Weights that stay packed on the GPU, and int4 with groups of 48 columns, which become bf16 there.
static void logits_weights(void) {
    static const shape shapes[] = {{64, 8, 8, 512, 1000, 0}, {128, 6, 2, 768, 2304, 1}};
    static const char *const weights[] = {"fp8", "int8", "int4", "int4:group=32", "int4:group=256"};
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
        for (int j = 0; j < 2; j++)
            if (shapes[j].n_ffn % 256 == 0 || i < 2) logits_of_shape(&shapes[j], weights[i], test_seed + i);
    logits_of_shape(&(shape){64, 6, 2, 384, 960, 0}, "int4:group=48", test_seed);
}

// The CPU chooses 200 tokens greedily. With the same tokens before it, the GPU chooses the same token each time, except at
// near-ties: there the CPU's margin is within twice the difference of the two devices' logits of the two tokens.
static void greedy_tokens(void) {
    enum { N = 700, STEPS = 200 };
    model_fixture cpu = fixture_on("cpu", "models/tiny", N + STEPS, 1, 0),
                  gpu = fixture_on("cuda", "models/tiny", N + STEPS, 1, 0);
    int32_t *ids = test_ids(N, cpu.n_vocab, test_seed + 5);
    sl_session *a = model_fixture_session(&cpu, 0), *b = model_fixture_session(&gpu, 0);
    CHECK_OK(sl_prefill(a, ids, N, NULL, &err), err);
    CHECK_OK(sl_prefill(b, ids, N, NULL, &err), err);
    int n_ties = 0;
    for (int i = 0; i < STEPS; i++) {
        const float *want = sl_session_logits(a, NULL), *got = sl_session_logits(b, NULL);
        int32_t id = test_argmax(want, cpu.n_vocab), other = test_argmax(got, cpu.n_vocab);
        if (id != other) {
            double margin = want[id] - want[other], off = fabs(got[id] - want[id]) + fabs(got[other] - want[other]);
            if (!(margin <= 2 * off && margin < 0.5))
                FAIL("step %d: the GPU chooses token %d, the CPU chooses %d with a margin of %.3g", i, other, id, margin);
            n_ties++;
        }
        CHECK_OK(sl_decode(&a, 1, &id, &err), err);
        CHECK_OK(sl_decode(&b, 1, &id, &err), err);
    }
    printf("      %d of %d tokens differ, all near-ties\n", n_ties, STEPS);
    CHECK(n_ties <= STEPS / 20);
    sl_session_free(a), sl_session_free(b);
    model_fixture_close(&cpu), model_fixture_close(&gpu);
    free(ids);
}

// ---- equal bits ----

static void chunks_bits(void) {
    enum { N = 1100 };
    model_fixture r = fixture_on("cuda", "models/tiny", N, 1, N);
    int32_t *ids = test_ids(N, r.n_vocab, test_seed);
    int n_vocab = r.n_vocab;
    model_fixture_close(&r);
    float *want = all_logits("cuda", "models/tiny", ids, N, 0, N);
    static const int chunks[] = {1024, 300, 64, 17};
    for (int i = 0; i < 4; i++) {
        char what[64];
        snprintf(what, sizeof what, "chunks of %d", chunks[i]);
        float *got = all_logits("cuda", "models/tiny", ids, N, 0, chunks[i]);
        check_bits(got, want, N * n_vocab, what);
        free(got);
    }
    free(ids), free(want);
}

enum { BATCH = 20, STEPS = 24 }; // more rows than a linear layer takes at a time

static int length_of(int i) { // while it grows, the sequence crosses borders of pages and chunks
    static const int lengths[BATCH] = {1,   250,  255,  256, 257,  500, 511, 512, 31,  700,
                                       768, 1015, 1024, 3,   1000, 77,  2,   300, 511, 900};
    return lengths[i];
}

// Makes sequence i of the batch test, of at most `longest` tokens, and prefills it.
static sl_session *grown_to(model_fixture *r, int i, int longest) {
    int n = 1 + (length_of(i) - 1) % longest;
    int32_t *ids = test_ids(n, r->n_vocab, test_seed + i);
    sl_session *s = model_fixture_session(r, i);
    CHECK_OK(sl_prefill(s, ids, n, NULL, &err), err);
    free(ids);
    return s;
}

static sl_session *grown(model_fixture *r, int i) {
    return grown_to(r, i, 1024);
}

static int32_t fed(const model_fixture *r, int i, int step) {
    return (int32_t)((i * 131 + step * 17 + 7) % (r->n_vocab - 16));
}

static void check_batch(const char *dir, int longest, const char *attn, const char *cache) {
    const sl_engine_options options = {
        .n_ctx = longest + STEPS, .n_sequences = BATCH, .device = "cuda", .seed = 1, .kv_cache_dtype = cache};
    model_fixture r = model_fixture_load(dir, NULL, options);
    CHECK_OK(sl_engine_set_attention(r.engine, attn, &err), err);
    float *want = malloc((size_t)BATCH * r.n_vocab * sizeof *want);
    for (int i = 0; i < BATCH; i++) { // alone
        sl_session *s = grown_to(&r, i, longest);
        for (int step = 0; step < STEPS; step++) {
            int32_t id = fed(&r, i, step);
            CHECK_OK(sl_decode(&s, 1, &id, &err), err);
        }
        memcpy(want + (size_t)i * r.n_vocab, sl_session_logits(s, NULL), r.n_vocab * sizeof *want);
        sl_session_free(s);
    }
    for (int turn = 0; turn < 2; turn++) { // together, in two orders of the batch
        sl_session *batch[BATCH];
        int32_t ids[BATCH];
        for (int i = 0; i < BATCH; i++) batch[turn ? BATCH - 1 - i : i] = grown_to(&r, i, longest);
        for (int step = 0; step < STEPS; step++) {
            for (int i = 0; i < BATCH; i++) ids[turn ? BATCH - 1 - i : i] = fed(&r, i, step);
            CHECK_OK(sl_decode(batch, BATCH, ids, &err), err);
        }
        for (int i = 0; i < BATCH; i++) {
            sl_session *s = batch[turn ? BATCH - 1 - i : i];
            check_bits(sl_session_logits(s, NULL), want + (size_t)i * r.n_vocab, r.n_vocab, "in a batch of 20");
            sl_session_free(s);
        }
    }
    free(want);
    model_fixture_close(&r);
}

static void batch_bits(void) {
    check_batch("models/tiny", 1024, "dense", "bf16");
}
static void batch_bits_carried(void) { // thresholds from step to step
    check_batch("models/tiny", 1024, "santa-pps:S=16:budget=carried", "bf16");
    check_batch("models/tiny", 1024, "santa-pps:epsilon=0.3:certify=layer", "bf16");
    check_batch("models/tiny", 1024, "santa-is:proposal=int8:epsilon=0.3", "bf16");
}
static void batch_bits_qwen(void) { // biases; norms of heads
    check_batch("tests/goldens/qwen2", 300, "dense", "bf16");
    check_batch("tests/goldens/qwen2", 300, "dense", "fp8");
    check_batch("tests/goldens/qwen3-tied", 300, "dense", "bf16");
    check_batch("tests/goldens/qwen3-tied", 300, "dense", "fp8");
}

static void ignore_record(void *ctx, const sl_attn_record *record) {
    (void)ctx, (void)record;
}

// Without an observer, one kernel at the end of a step counts the errors that its layers stated. With one, a kernel counts
// after each launch. Both give the same counts.
static void stated_errors(void) {
    enum { DECODED = 30, STATING = 3 }; // STATING: layers
    sl_attention_work work[2];
    for (int observed = 0; observed < 2; observed++) {
        model_fixture r = fixture_on("cuda", "models/tiny", 1200, 2, 0);
        sl_attn_spec spec;
        sl_attn_plan plan;
        CHECK_OK(sl_attn_parse("santa-pps:epsilon=0.3:certify=layer", &spec, &err), err);
        CHECK_OK(sl_attn_plan_init(&plan, sl_model_config(r.model)->n_layers, &spec, &err), err);
        CHECK_INT(plan.n_layers, STATING + 1);
        CHECK_OK(sl_attn_plan_set(&plan, "attn_layer", "1=dense", &err), err);
        CHECK_OK(sl_attn_plan_set(&plan, "attn_layer", "2-3=santa-is:proposal=int8:epsilon=0.3", &err), err);
        CHECK_OK(sl_engine_set_plan(r.engine, &plan, &err), err);
        if (observed) CHECK_OK(sl_engine_observe(r.engine, &(sl_observer){.fn = ignore_record}, &err), err);
        sl_session *batch[2] = {grown(&r, 2), grown(&r, 12)};
        for (int step = 0; step < DECODED; step++) {
            int32_t ids[2] = {fed(&r, 2, step), fed(&r, 12, step)};
            CHECK_OK(sl_decode(batch, 2, ids, &err), err);
        }
        work[observed] = sl_engine_attention_work(r.engine);
        for (int i = 0; i < 2; i++) sl_session_free(batch[i]);
        sl_attn_plan_free(&plan);
        model_fixture_close(&r);
    }
    CHECK_INT(work[0].layer_steps, 2 * DECODED * STATING);
    CHECK(work[0].certified > 0 && work[0].stated_error > 0);
    CHECK_INT(work[1].layer_steps, work[0].layer_steps);
    CHECK_INT(work[1].certified, work[0].certified);
    CHECK_INT(work[1].unbounded, work[0].unbounded);
    CHECK(work[1].stated_error == work[0].stated_error && work[1].stated_error_max == work[0].stated_error_max);
}

// Device memory in use, in bytes.
static size_t taken(void) {
    size_t free = 0, total = 0;
    CHECK(cudaMemGetInfo(&free, &total) == cudaSuccess);
    return total - free;
}

// After a batch size has been recorded, its steps allocate no memory, even when contexts grow into new pages.
static void no_allocation(void) {
    model_fixture r = fixture_on("cuda", "models/tiny", 1200, 2, 0);
    sl_session *batch[2] = {grown(&r, 2), grown(&r, 12)};
    sl_sampling greedy = sl_sampling_default();
    sl_sampler *samplers[2];
    greedy.temp = 0;
    for (int i = 0; i < 2; i++) CHECK_OK(sl_sampler_new(&greedy, r.n_vocab, &samplers[i], &err), err);
    int32_t ids[2] = {3, 4};
    CHECK_OK(sl_decode(batch, 2, ids, &err), err);
    CHECK_OK(sl_step(batch, 2, samplers, ids, &err), err);
    size_t before = taken();
    for (int step = 0; step < 60; step++) {
        CHECK_OK(sl_decode(batch, 2, (int32_t[]){5, 6}, &err), err);
        CHECK_OK(sl_step(batch, 2, samplers, ids, &err), err);
    }
    CHECK_INT(taken(), before);
    for (int i = 0; i < 2; i++) sl_session_free(batch[i]), sl_sampler_free(samplers[i]);
    model_fixture_close(&r);
}

// Recorded steps and newly queued steps give equal bits. (A change of the attention plan discards the recordings.)
static void check_replay(const char *attn) {
    float *last[2];
    for (int afresh = 0; afresh < 2; afresh++) {
        model_fixture r = fixture_on("cuda", "models/tiny", 1200, 2, 0);
        CHECK_OK(sl_engine_set_attention(r.engine, attn, &err), err);
        sl_session *batch[2] = {grown(&r, 2), grown(&r, 12)};
        for (int step = 0; step < 100; step++) { // across borders of pages and chunks
            int32_t ids[2] = {fed(&r, 2, step), fed(&r, 12, step)};
            if (afresh) CHECK_OK(sl_engine_set_attention(r.engine, attn, &err), err);
            CHECK_OK(sl_decode(batch, 2, ids, &err), err);
        }
        last[afresh] = malloc(2 * r.n_vocab * sizeof **last);
        for (int i = 0; i < 2; i++) {
            memcpy(last[afresh] + i * r.n_vocab, sl_session_logits(batch[i], NULL), r.n_vocab * sizeof **last);
            sl_session_free(batch[i]);
        }
        if (afresh) check_bits(last[1], last[0], 2 * r.n_vocab, "run afresh");
        model_fixture_close(&r);
    }
    free(last[0]), free(last[1]);
}
static void replay_bits(void) {
    check_replay("dense");
    check_replay("santa-pps:S=16:budget=carried");
    check_replay("santa-is:proposal=int8:epsilon=0.3");
}

// The first step after a cut, and the first step of a fork, search for a threshold, as the first step of a session does.
static void thresholds_end_at_a_cut(void) {
    enum { N = 900 };
    model_fixture r = fixture_on("cuda", "models/tiny", 1200, 2, 0);
    CHECK_OK(sl_engine_set_attention(r.engine, "santa-pps:S=16:budget=carried", &err), err);
    sl_session *s = grown_to(&r, 3, N), *fork;
    int n = sl_session_n_tokens(s);
    float *first = malloc(r.n_vocab * sizeof *first);
    for (int turn = 0; turn < 3; turn++) {
        if (turn == 1) CHECK_OK(sl_session_truncate(s, n, &err), err);
        if (turn == 2) {
            CHECK_OK(sl_session_fork(s, n, 3, &fork, &err), err);
            sl_session_free(s);
            s = fork;
        }
        for (int step = 0; step < 5; step++) {
            int32_t id = fed(&r, 3, step);
            CHECK_OK(sl_decode(&s, 1, &id, &err), err);
        }
        if (turn == 0) memcpy(first, sl_session_logits(s, NULL), r.n_vocab * sizeof *first);
        check_bits(sl_session_logits(s, NULL), first, r.n_vocab, turn == 1 ? "after a cut" : "in a fork");
    }
    free(first);
    sl_session_free(s);
    model_fixture_close(&r);
}

// When a batch is larger than all earlier ones, buffers grow, and the recordings of smaller batches are discarded.
static void batch_grows(void) {
    enum { B = 6, N = 8 };
    float *last[2];
    for (int alone = 0; alone < 2; alone++) {
        model_fixture r = fixture_on("cuda", "models/tiny", 64, B, 0);
        sl_session *batch[B];
        for (int i = 0; i < B; i++) {
            batch[i] = model_fixture_session(&r, 0);
            CHECK_OK(sl_prefill(batch[i], (int32_t[]){5, 6}, 2, NULL, &err), err);
        }
        for (int step = 0; step < N; step++) {
            int32_t ids[B];
            for (int i = 0; i < B; i++) ids[i] = fed(&r, 0, step);
            int n = alone || step % 2 == 0 ? 1 : B; // the other sequences take fewer steps: only the first one is compared
            CHECK_OK(sl_decode(batch, n, ids, &err), err);
        }
        last[alone] = malloc(r.n_vocab * sizeof **last);
        memcpy(last[alone], sl_session_logits(batch[0], NULL), r.n_vocab * sizeof **last);
        if (alone) check_bits(last[1], last[0], r.n_vocab, "in batches that grow and shrink");
        for (int i = 0; i < B; i++) sl_session_free(batch[i]);
        model_fixture_close(&r);
    }
    free(last[0]), free(last[1]);
}

// A prefix that is shared by reference, then cut back and extended again.
static void prefix_bits(void) {
    enum { N = 600, CUT = 300 };
    model_fixture r = fixture_on("cuda", "models/tiny", 1024, 3, 0);
    int32_t *ids = test_ids(N, r.n_vocab, test_seed + 3), id = 5;
    sl_session *whole = model_fixture_session(&r, 0), *fork, *cut = model_fixture_session(&r, 0);
    CHECK_OK(sl_prefill(whole, ids, N, NULL, &err), err);
    CHECK_OK(sl_session_fork(whole, CUT, 0, &fork, &err), err);
    CHECK_OK(sl_prefill(fork, ids + CUT, N - CUT, NULL, &err), err);
    CHECK_OK(sl_prefill(cut, ids, CUT + 7, NULL, &err), err);
    CHECK_OK(sl_decode(&cut, 1, &id, &err), err);
    CHECK_OK(sl_session_truncate(cut, CUT, &err), err);
    CHECK_OK(sl_prefill(cut, ids + CUT, N - CUT, NULL, &err), err);
    check_bits(sl_session_logits(fork, NULL), sl_session_logits(whole, NULL), r.n_vocab, "forked prefix");
    check_bits(sl_session_logits(cut, NULL), sl_session_logits(whole, NULL), r.n_vocab, "cut prefix");
    sl_session *batch[3] = {whole, fork, cut};
    CHECK_OK(sl_decode(batch, 3, (int32_t[]){9, 9, 9}, &err), err);
    check_bits(sl_session_logits(fork, NULL), sl_session_logits(whole, NULL), r.n_vocab, "forked prefix, a step on");
    check_bits(sl_session_logits(cut, NULL), sl_session_logits(whole, NULL), r.n_vocab, "cut prefix, a step on");
    for (int i = 0; i < 3; i++) sl_session_free(batch[i]);
    model_fixture_close(&r);
    free(ids);
}

// ---- token sampling on the device ----

// Compares sl_step with sl_decode and sl_sampler_sample on the downloaded logits, for greedy and sampled sequences that end one
// by one.
static void steps(void) {
    enum { N_SEQS = 4, N_STEPS = 40 };
    model_fixture a = fixture_on("cuda", "models/tiny", 1200, N_SEQS, 0),
                  b = fixture_on("cuda", "models/tiny", 1200, N_SEQS, 0);
    sl_session *there[N_SEQS], *here[N_SEQS];
    sl_sampler *samplers[N_SEQS];
    for (int i = 0; i < N_SEQS; i++) {
        sl_sampling p = sl_sampling_default();
        p.temp = i == 0 ? 0 : 0.5f + 0.3f * i;
        if (i == 3) p.top_k = 0, p.min_p = 0.01f;
        p.seed = 11;
        there[i] = grown(&a, 4 + i), here[i] = grown(&b, 4 + i);
        CHECK_OK(sl_sampler_new(&p, a.n_vocab, &samplers[i], &err), err);
    }
    int n = N_SEQS;
    for (int step = 0; step < N_STEPS; step++) {
        int32_t got[N_SEQS], want[N_SEQS];
        if (step == 15) n = 3; // the last sequence ends
        if (step == 30) {      // the first sequence ends: the others move to other batch indices
            sl_session *s = there[0], *t = here[0];
            sl_sampler *p = samplers[0];
            for (int i = 0; i < 2; i++) there[i] = there[i + 1], here[i] = here[i + 1], samplers[i] = samplers[i + 1];
            there[2] = s, here[2] = t, samplers[2] = p;
            n = 2;
        }
        for (int i = 0; i < n; i++)
            want[i] = sl_sampler_sample(samplers[i], sl_session_logits(here[i], NULL), sl_session_sequence(here[i]),
                                        (uint32_t)sl_session_n_tokens(here[i]));
        CHECK_OK(sl_step(there, n, samplers, got, &err), err);
        sl_session *live[N_SEQS];
        int32_t ids[N_SEQS];
        int n_live = 0;
        for (int i = 0; i < n; i++) {
            CHECK_INT(got[i], want[i]);
            if (!sl_model_is_eos(b.model, want[i])) live[n_live] = here[i], ids[n_live++] = want[i];
        }
        if (n_live) CHECK_OK(sl_decode(live, n_live, ids, &err), err);
    }
    for (int i = 0; i < N_SEQS; i++) {
        CHECK_INT(sl_session_n_tokens(there[i]), sl_session_n_tokens(here[i]));
        check_bits(sl_session_logits(there[i], NULL), sl_session_logits(here[i], NULL), a.n_vocab, "after the steps");
        sl_session_free(there[i]), sl_session_free(here[i]), sl_sampler_free(samplers[i]);
    }
    model_fixture_close(&a), model_fixture_close(&b);
}

// ---- errors ----

static void errors(void) {
    sl_model *model;
    sl_engine *engine;
    CHECK_OK(sl_model_load("models/tiny", &(sl_model_options){.flags = SL_MODEL_NO_TOKENIZER}, &model, &err), err);
    sl_engine_options o = {.device = "cuda", .n_ctx = 131072, .n_sequences = 1000};
    CHECK_ERR(sl_engine_new(model, &o, &engine, &err), err, SL_ERR_MEMORY, "GiB are missing. The largest that fits is");
    o = (sl_engine_options){.device = "cuda:99"};
    CHECK_ERR(sl_engine_new(model, &o, &engine, &err), err, SL_ERR_DEVICE, "device cuda:99");
    o = (sl_engine_options){.device = "cuda", .n_ctx = 512, .attn = "magicpig"};
    CHECK_ERR(sl_engine_new(model, &o, &engine, &err), err, SL_ERR_UNSUPPORTED, "attn magicpig: not offered on a GPU");
    o = (sl_engine_options){.device = "cuda", .n_ctx = 512, .attn = "santa-pps:epsilon=0.2:certify=layer:on-miss=dense"};
    CHECK_ERR(sl_engine_new(model, &o, &engine, &err), err, SL_ERR_UNSUPPORTED, "on-miss dense is not offered on a GPU");
    o = (sl_engine_options){.device = "cuda", .n_ctx = 512, .attn = "santa-is:epsilon=0.2:proposal=int8:on-miss=dense"};
    CHECK_ERR(sl_engine_new(model, &o, &engine, &err), err, SL_ERR_UNSUPPORTED,
              "santa-is: on-miss dense is not offered on a GPU");
    o = (sl_engine_options){.device = "cuda", .n_ctx = 512, .attn = "santa-is:budget=carried"};
    CHECK_ERR(sl_engine_new(model, &o, &engine, &err), err, SL_ERR_UNSUPPORTED,
              "attn santa-is: budget carried is not offered on a GPU, where it gains nothing; use budget even, or device cpu");
    o = (sl_engine_options){.device = "cuda", .n_ctx = 256, .n_sequences = 2731, .attn = "santa-sys"};
    CHECK_ERR(sl_engine_new(model, &o, &engine, &err), err, SL_ERR_UNSUPPORTED, "attn santa-sys: 2731 sequences, at most 2730");
    sl_model_free(model);
}
#endif

static const test_case cases[] = {
    GPU_CASE("logits-tiny", logits_tiny),
    GPU_CASE("logits-goldens", logits_goldens),
    GPU_CASE("logits-shapes", logits_shapes),
    GPU_CASE("logits-weights", logits_weights),
    GPU_CASE("greedy-tokens", greedy_tokens),
    GPU_CASE("chunks-bits", chunks_bits),
    GPU_CASE("batch-bits", batch_bits),
    GPU_CASE("batch-bits-qwen", batch_bits_qwen),
    GPU_CASE("batch-bits-carried", batch_bits_carried),
    GPU_CASE("replay-bits", replay_bits),
    GPU_CASE("stated-errors", stated_errors),
    GPU_CASE("thresholds-end-at-a-cut", thresholds_end_at_a_cut),
    WHOLE_GPU_CASE("no-allocation", no_allocation),
    GPU_CASE("batch-grows", batch_grows),
    GPU_CASE("prefix-bits", prefix_bits),
    GPU_CASE("steps", steps),
    WHOLE_GPU_CASE("errors", errors),
    {0},
};
const test_suite suite_cuda_engine = {"cuda_engine", cases};
