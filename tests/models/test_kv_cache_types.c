// tests/models/test_kv_cache_types.c - engines whose KV cache is fp8 or int8: equal bits in every chunk, batch, fork and file,
// logits close to those of a bf16 cache, memory, and what is refused.
#include "engine/engine_internal.h"
#include "tests/support/gpu.h"
#include "tests/support/models.h"
#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_CTX = 1024, LENGTH = 700, STEPS = 3 };
static sl_error err;

typedef struct types {
    const char *k, *v;
} types;
static const types all[] = {{"int8", "int8"}, {"fp8", "fp8"}, {"bf16", "int8"}, {"fp8", "bf16"}};
enum { N_TYPES = sizeof all / sizeof *all, N_GPU_TYPES = 2 }; // a GPU has the first two
static const char *const methods[] = {"dense", "santa-prop:S=32", "santa-is:S=32", "quest:tokens=64"};
enum { N_METHODS = sizeof methods / sizeof *methods };

static model_fixture open_on(const char *device, const char *attn, types t, int chunk) {
    return model_fixture_load("models/tiny", attn,
                              (sl_engine_options){.device = device,
                                                  .n_ctx = N_CTX,
                                                  .n_sequences = FIXTURE_BATCH,
                                                  .prefill_chunk = chunk,
                                                  .seed = 3,
                                                  .cache_type_k = t.k,
                                                  .cache_type_v = t.v});
}

static model_fixture open_model(const char *attn, types t, int chunk) {
    return open_on("cpu", attn, t, chunk);
}

static void check_equal(const sl_session *s, const float *want, int n_vocab, const char *what) {
    const float *got = sl_session_logits(s, &err);
    CHECK(got != NULL);
    if (memcmp(got, want, (size_t)n_vocab * sizeof *got)) FAIL("%s: other logits", what);
}

// Prefills `ids` and takes steps of the batch of the n sessions, which all have these ids. Returns the logits of the first one.
static float *run(model_fixture *r, sl_session **s, int n, const int32_t *ids) {
    float *out = malloc((size_t)r->n_vocab * sizeof *out);
    for (int i = 0; i < n; i++) CHECK_OK(sl_prefill(s[i], ids, LENGTH - i * 100, NULL, &err), err);
    for (int i = 0; i < STEPS; i++) {
        int32_t next[FIXTURE_BATCH];
        for (int j = 0; j < n; j++) next[j] = ids[LENGTH + i];
        CHECK_OK(sl_decode(s, n, next, &err), err);
    }
    memcpy(out, sl_session_logits(s[0], &err), (size_t)r->n_vocab * sizeof *out);
    return out;
}

// A sequence alone with a whole prefill; with another chunk; in a batch; as a fork; from a file.
static void check_bits(const char *device, const char *attn, types t) {
    static const int chunks[] = {100, 256};
    model_fixture r = open_on(device, attn, t, 512);
    int32_t *ids = test_ids(LENGTH + 2 * STEPS, r.n_vocab, test_seed);
    sl_session *s = model_fixture_session(&r, 5), *fork, *loaded;
    char path[300];
    float *want = run(&r, &s, 1, ids);
    for (int i = 0; i < 2; i++) {
        model_fixture other = open_on(device, attn, t, chunks[i]);
        sl_session *batch[FIXTURE_BATCH];
        for (int j = 0; j < FIXTURE_BATCH; j++) batch[j] = model_fixture_session(&other, 5 + (uint32_t)j);
        free(run(&other, batch, i ? FIXTURE_BATCH : 1, ids));
        check_equal(batch[0], want, r.n_vocab, i ? "a batch" : "a chunk");
        for (int j = 0; j < FIXTURE_BATCH; j++) sl_session_free(batch[j]);
        model_fixture_close(&other);
    }
    snprintf(path, sizeof path, "%s/session", test_tmp());
    CHECK_OK(sl_session_save(s, path, NULL, &err), err);
    CHECK_OK(sl_session_load(r.engine, path, &loaded, NULL, &err), err);
    CHECK_OK(sl_session_fork(s, LENGTH + STEPS, 5, &fork, &err), err);
    sl_session *three[] = {s, fork, loaded};
    for (int i = 0; i < STEPS; i++)
        for (int j = 0; j < 3; j++) CHECK_OK(sl_decode(&three[j], 1, &ids[LENGTH + STEPS + i], &err), err);
    check_equal(fork, sl_session_logits(s, &err), r.n_vocab, "a fork");
    check_equal(loaded, sl_session_logits(s, &err), r.n_vocab, "a file");
    for (int j = 0; j < 3; j++) sl_session_free(three[j]);
    free(ids), free(want);
    model_fixture_close(&r);
}

static void equal_bits(void) {
    for (int t = 0; t < N_TYPES; t++)
        for (int m = 0; m < N_METHODS; m++) check_bits("cpu", methods[m], all[t]);
}

// ---- close to bf16 ----

// KL(a || b) of the softmax of two rows of logits, in nats.
static double divergence(const float *a, const float *b, int n) {
    double most[2] = {a[0], b[0]}, sum[2] = {0}, kl = 0;
    for (int i = 0; i < n; i++) most[0] = fmax(most[0], a[i]), most[1] = fmax(most[1], b[i]);
    for (int i = 0; i < n; i++) sum[0] += exp(a[i] - most[0]), sum[1] += exp(b[i] - most[1]);
    for (int i = 0; i < n; i++) {
        double log_a = a[i] - most[0] - log(sum[0]), log_b = b[i] - most[1] - log(sum[1]);
        kl += exp(log_a) * (log_a - log_b);
    }
    return kl;
}

// Random tokens, which give flat distributions: the divergence from a bf16 cache is small, and it is not 0.
static void close_to_bf16(void) {
    model_fixture r = open_model("dense", (types){NULL, NULL}, 512);
    int32_t *ids = test_ids(LENGTH + STEPS, r.n_vocab, test_seed);
    sl_session *s = model_fixture_session(&r, 5);
    float *want = run(&r, &s, 1, ids);
    double kl[N_TYPES];
    for (int t = 0; t < N_TYPES; t++) {
        model_fixture other = open_model("dense", all[t], 512);
        sl_session *x = model_fixture_session(&other, 5);
        float *got = run(&other, &x, 1, ids);
        kl[t] = divergence(want, got, r.n_vocab);
        CHECK(kl[t] > 0 && kl[t] < (t == 0 ? 0.001 : 0.01));
        free(got);
        sl_session_free(x);
        model_fixture_close(&other);
    }
    free(ids), free(want);
    sl_session_free(s);
    model_fixture_close(&r);
}

// ---- memory ----

static void check_memory(const char *device, int n_types) {
    static const size_t want[N_TYPES] = {132 + 132, 132 + 132, 256 + 132, 132 + 256}; // of a token, layer and KV head
    for (int t = 0; t < n_types; t++) {
        model_fixture r = open_on(device, "dense", all[t], 512);
        const sl_config *c = sl_model_config(r.model);
        CHECK(r.engine->device.pool.n_bytes == want[t] * c->n_layers * c->n_kv_heads * FIXTURE_BATCH * N_CTX);
        CHECK(sl_engine_attention_work(r.engine).dense_bytes == 0);
        sl_session *s = model_fixture_session(&r, 5);
        CHECK_OK(sl_session_fill(s, 600, &err), err);
        int32_t id = 3;
        CHECK_OK(sl_decode(&s, 1, &id, &err), err);
        sl_attention_work work = sl_engine_attention_work(r.engine);
        CHECK(work.bytes == work.dense_bytes && work.bytes == want[t] * c->n_layers * c->n_kv_heads * 601);
        for (int i = 0; i < r.n_vocab; i++) CHECK(isfinite(sl_session_logits(s, &err)[i]));
        sl_session_free(s);
        model_fixture_close(&r);
    }
}

static void memory(void) {
    check_memory("cpu", N_TYPES);
}

// ---- on a GPU ----

#ifdef SLEIGH_CUDA
static void gpu_equal_bits(void) {
    for (int t = 0; t < N_GPU_TYPES; t++)
        for (int m = 0; m < N_METHODS; m++) check_bits("cuda", methods[m], all[t]);
}

static void gpu_memory(void) {
    check_memory("cuda", N_GPU_TYPES);
}

// The logits of an engine after a prefill and steps of a sequence: [*n_vocab].
static float *logits_on(const char *device, types t, int chunk, uint64_t seed, int *n_vocab) {
    model_fixture r = open_on(device, "dense", t, chunk);
    int32_t *ids = test_ids(LENGTH + STEPS, r.n_vocab, seed);
    sl_session *s = model_fixture_session(&r, 5);
    float *out = run(&r, &s, 1, ids);
    *n_vocab = r.n_vocab;
    free(ids);
    sl_session_free(s);
    model_fixture_close(&r);
    return out;
}

// A GPU computes with bf16 activations, so K and V differ from the CPU's by about one rounding to bf16, and many of their codes
// of 8 bits differ by one. So a cache of 8 bits has two errors: the one of a bf16 cache between the devices, and the one
// between a cache of 8 bits and a bf16 cache. KL grows with the square of an error, so the sum of both errors has at most twice
// the sum of both KLs. The KL of a single sequence varies by orders of magnitude: the test compares means, with a factor of 4.
static void gpu_close_to_cpu(void) {
    enum { SEEDS = 6 };
    const types bf16 = {NULL, NULL};
    double between = 0, kl[N_GPU_TYPES] = {0}, rounding[N_GPU_TYPES] = {0};
    int n_vocab;
    for (uint64_t seed = test_seed; seed < test_seed + SEEDS; seed++) {
        float *cpu = logits_on("cpu", bf16, 512, seed, &n_vocab), *gpu = logits_on("cuda", bf16, 300, seed, &n_vocab);
        between += divergence(cpu, gpu, n_vocab) / SEEDS;
        for (int t = 0; t < N_GPU_TYPES; t++) {
            float *want = logits_on("cpu", all[t], 512, seed, &n_vocab), *got = logits_on("cuda", all[t], 300, seed, &n_vocab);
            kl[t] += divergence(want, got, n_vocab) / SEEDS, rounding[t] += divergence(cpu, want, n_vocab) / SEEDS;
            free(want), free(got);
        }
        free(cpu), free(gpu);
    }
    for (int t = 0; t < N_GPU_TYPES; t++) {
        printf("      %s: KL between devices %.3g nats, of a bf16 cache %.3g, of the rounding %.3g\n", all[t].k, kl[t], between,
               rounding[t]);
        CHECK(kl[t] < 4 * (between + rounding[t]));
    }
}

// Prompts that are prefilled in one pass have the bits of prompts that are prefilled alone.
static void gpu_prompts_together(void) {
    static const int lengths[FIXTURE_BATCH] = {300, 1, 150}, before[FIXTURE_BATCH] = {0, 257, 100};
    for (int t = 0; t < N_GPU_TYPES; t++) {
        model_fixture r = open_on("cuda", "dense", all[t], 512);
        int32_t *ids = test_ids(LENGTH, r.n_vocab, test_seed);
        float *want = malloc(FIXTURE_BATCH * (size_t)r.n_vocab * sizeof *want);
        sl_session *s[FIXTURE_BATCH];
        for (int i = 0; i < FIXTURE_BATCH; i++) {
            s[i] = model_fixture_session(&r, 5);
            CHECK_OK(sl_prefill(s[i], ids, before[i] + lengths[i], NULL, &err), err);
            memcpy(want + (size_t)i * r.n_vocab, sl_session_logits(s[i], &err), r.n_vocab * sizeof *want);
            sl_session_free(s[i]);
        }
        sl_prefill_part parts[FIXTURE_BATCH];
        for (int i = 0; i < FIXTURE_BATCH; i++) {
            s[i] = model_fixture_session(&r, 5);
            if (before[i]) CHECK_OK(sl_prefill(s[i], ids, before[i], NULL, &err), err);
            parts[i] = (sl_prefill_part){s[i], ids + before[i], lengths[i]};
        }
        CHECK(sl_prefill_joins(r.engine));
        CHECK_OK(sl_prefill_together(parts, FIXTURE_BATCH, &err), err);
        for (int i = 0; i < FIXTURE_BATCH; i++) {
            check_equal(s[i], want + (size_t)i * r.n_vocab, r.n_vocab, "prompts together");
            sl_session_free(s[i]);
        }
        free(ids), free(want);
        model_fixture_close(&r);
    }
}

static void keep_error(void *ctx, const sl_attn_record *record) {
    double *most = ctx;
    if (!(record->report->error <= *most)) *most = record->report->error;
}

// An observer compares a shadow with dense attention over the same cache.
static void gpu_observed(void) {
    for (int t = 0; t < N_GPU_TYPES; t++) {
        model_fixture r = open_on("cuda", "dense", all[t], 512);
        int32_t *ids = test_ids(LENGTH + STEPS, r.n_vocab, test_seed);
        sl_attn_spec shadow;
        double most = -1;
        CHECK_OK(sl_attn_parse("streaming:window=1024", &shadow, &err), err); // every row
        const sl_observer observer = {
            .fn = keep_error, .ctx = &most, .with_error = 1, .shadows = &shadow, .n_shadows = 1, .n_seeds = 1};
        CHECK_OK(sl_engine_observe(r.engine, &observer, &err), err);
        sl_session *s = model_fixture_session(&r, 5);
        float *out = run(&r, &s, 1, ids);
        CHECK(most == 0);
        free(ids), free(out);
        sl_session_free(s);
        model_fixture_close(&r);
    }
}

static void gpu_refusals(void) {
    sl_engine *engine;
    sl_session *s;
    model_fixture r = open_on("cuda", "dense", all[1], 512);
    sl_engine_options o = {.device = "cuda", .kv_cache_dtype = "fp8", .cache_type_v = "bf16"};
    CHECK_ERR(sl_engine_new(r.model, &o, &engine, &err), err, SL_ERR_UNSUPPORTED,
              "cache_type_k is fp8 and cache_type_v is bf16, expected the same type on a GPU");
    o = (sl_engine_options){.device = "cuda", .kv_cache_dtype = "int8", .kv_cache = "host", .attn = "santa-is"};
    CHECK_ERR(sl_engine_new(r.model, &o, &engine, &err), err, SL_ERR_UNSUPPORTED,
              "a KV cache of int8 is not offered with kv_cache host; expected bf16 (kv_cache_dtype)");
    CHECK_ERR(sl_engine_set_attention(r.engine, "topk:k=64", &err), err, SL_ERR_UNSUPPORTED,
              "attn topk:k=64: not offered on a GPU with a KV cache of fp8 (layer 0); expected one of dense,");
    // A key that is not finite has its place in the message.
    const int32_t ids[] = {1, 2, 3};
    s = model_fixture_session(&r, 5);
    CHECK_OK(sl_prefill(s, ids, 3, NULL, &err), err);
    const float scale = NAN;
    sl_kv_run run = sl_kv_run_of(sl_kv_layer(&r.engine->device.pool, 2).k, SL_FP8, sl_model_config(r.model)->head_dim,
                                 (size_t)s->kv.pages[0] * 2 + 1);
    const sl_backend *be = r.engine->device.backend;
    be->upload(be, (float *)run.scale + 2, &scale, sizeof scale);
    CHECK_OK(sl_decode(&s, 1, ids, &err), err);
    CHECK_ERR(sl_session_check_logits(s, &err), err, SL_ERR_NOT_FINITE, "is in layer 2, KV head 1, position 2");
    sl_session_free(s);
    model_fixture_close(&r);
}
#endif

// ---- refusals ----

static void refusals(void) {
    sl_engine *engine;
    sl_session *loaded;
    char path[300];
    model_fixture r = open_model("dense", all[0], 512), fp8 = open_model("dense", all[1], 512);
    sl_engine_options o = {.kv_cache_dtype = "fp4"};
    CHECK_ERR(sl_engine_new(r.model, &o, &engine, &err), err, SL_ERR_ARG,
              "kv_cache_dtype fp4: expected auto, bf16, fp8, int8 or q8_0");
    o = (sl_engine_options){.kv_cache_dtype = "fp8", .cache_type_v = "q4_0"};
    CHECK_ERR(sl_engine_new(r.model, &o, &engine, &err), err, SL_ERR_ARG,
              "cache_type_v q4_0: expected auto, bf16, fp8, int8 or q8_0");
    o = (sl_engine_options){.kv_cache_dtype = "int8", .kv_cache = "host"};
    CHECK_ERR(sl_engine_new(r.model, &o, &engine, &err), err, SL_ERR_ARG, "kv_cache host: on the CPU");
    // A file of another type.
    sl_session *s = model_fixture_session(&r, 5);
    const int32_t ids[] = {1, 2, 3};
    snprintf(path, sizeof path, "%s/session", test_tmp());
    CHECK_OK(sl_prefill(s, ids, 3, NULL, &err), err);
    CHECK_OK(sl_session_save(s, path, NULL, &err), err);
    CHECK_ERR(sl_session_load(fp8.engine, path, &loaded, NULL, &err), err, SL_ERR_ARG,
              "tensor k is I8, expected F8_E4M3; pass the cache_type_k and cache_type_v of the run that wrote it");
    // A key that is not finite has its place in the message.
    float x[256] = {[9] = NAN};
    sl_kv_rows rows = sl_kv_layer(&r.engine->device.pool, 2);
    sl_kv_store(rows.k, SL_INT8, sl_model_config(r.model)->head_dim, (size_t)s->kv.pages[0] * 2 + 1, 2, x, 0);
    CHECK_OK(sl_decode(&s, 1, ids, &err), err);
    CHECK_ERR(sl_session_check_logits(s, &err), err, SL_ERR_NOT_FINITE, "is in layer 2, KV head 1, position 2");
    sl_session_free(s);
    model_fixture_close(&r), model_fixture_close(&fp8);
}

static const test_case cases[] = {
    {"equal-bits", NEEDS_SPEED, equal_bits},
    {"close-to-bf16", 0, close_to_bf16},
    {"memory", 0, memory},
    {"refusals", 0, refusals},
    GPU_CASE("gpu-equal-bits", gpu_equal_bits),
    GPU_CASE("gpu-memory", gpu_memory),
    GPU_CASE("gpu-close-to-cpu", gpu_close_to_cpu),
    GPU_CASE("gpu-prompts-together", gpu_prompts_together),
    GPU_CASE("gpu-observed", gpu_observed),
    GPU_CASE("gpu-refusals", gpu_refusals),
    {0},
};
const test_suite suite_kv_cache_types = {"kv_cache_types", cases};
