// tests/cuda/test_cuda_devices.c - two GPUs in one process: each backend allocates, launches and records on its GPU, whatever
// device the calling thread used before.
#include "tests/support/gpu.h"

#ifdef SLEIGH_CUDA
#include "backend/cuda/cuda.h"
#include "engine/engine_internal.h"
#include "tests/support/models.h"

#include <stdlib.h>
#include <string.h>

enum { GPUS = 2, PROMPT = 700, CHUNK = 300, STEPS = 12, N_CTX = 1024 };

static sl_error err;

static void set_device(int device) {
    if (cudaSetDevice(device) != cudaSuccess) FAIL("cudaSetDevice(%d)", device);
}

static void check_place(const void *p, int device, const char *what) {
    struct cudaPointerAttributes a;
    CHECK(cudaPointerGetAttributes(&a, p) == cudaSuccess);
    if (a.type != cudaMemoryTypeDevice || a.device != device) FAIL("%s lies on device %d, expected %d", what, a.device, device);
}

static size_t free_bytes(int device) {
    size_t free = 0, total = 0;
    set_device(device);
    CHECK(cudaMemGetInfo(&free, &total) == cudaSuccess);
    return free;
}

// ---- memory ----

// Every function of the backend that allocates, copies or queries, while the other GPU is the current device.
static void memory(void) {
    const sl_backend *be[GPUS];
    for (int g = 0; g < GPUS; g++) CHECK_OK(sl_cuda_init(g, &be[g], &err), err);
    for (int g = 0; g < GPUS; g++) {
        enum { N = 1 << 20 };
        unsigned char *host = malloc(N), *back = malloc(N);
        float *values = malloc(N * sizeof *values);
        for (int i = 0; i < N; i++) host[i] = (unsigned char)(i * 7 + g), values[i] = (float)(i + g);
        set_device(!g);
        char *p = be[g]->alloc(be[g], 2 * N);
        CHECK(p != NULL);
        check_place(p, g, "alloc's memory");
        set_device(!g);
        be[g]->upload(be[g], p, host, N);
        set_device(!g);
        be[g]->copy(be[g], p + N, N, p, N, N, 1);
        set_device(!g);
        be[g]->clear(be[g], p, N);
        set_device(!g);
        be[g]->download(be[g], back, p + N, N);
        CHECK(!memcmp(back, host, N));
        set_device(!g);
        be[g]->download(be[g], back, p, N);
        for (int i = 0; i < N; i++) CHECK_INT(back[i], 0);
        sl_weight w = {.data = values, .format = SL_F32, .n_rows = N / 1024, .n_cols = 1024, .name = "w"};
        set_device(!g);
        CHECK_OK(be[g]->place(be[g], (sl_weight *[]){&w}, 1, 0, &err), err);
        check_place(w.data, g, "a weight");
        // The free memory of GPU g, not of the current device.
        size_t before = be[g]->free_memory(be[g]);
        void *large = be[g]->alloc(be[g], (size_t)256 << 20);
        check_place(large, g, "alloc's memory");
        set_device(!g);
        CHECK(be[g]->free_memory(be[g]) + ((size_t)255 << 20) <= before);
        set_device(!g);
        be[g]->release(be[g], large, 0);
        CHECK_INT(be[g]->free_memory(be[g]), before);
        be[g]->release(be[g], p, 0);
        set_device(!g);
        CHECK_OK(be[g]->finish(be[g], &err), err);
        free(host), free(back), free(values);
    }
    for (int g = 0; g < GPUS; g++) {
        set_device(!g);
        be[g]->free(be[g]);
    }
}

// ---- engines ----

typedef struct run { // one engine with two sessions
    sl_engine *engine;
    sl_session *batch[2];
    sl_sampler *samplers[2];
} run;

static run start(const sl_model *model, const char *device, const char *method) {
    run r;
    sl_sampling sampled = sl_sampling_default();
    sampled.seed = 3;
    const sl_engine_options o = {
        .n_ctx = N_CTX, .n_sequences = 2, .prefill_chunk = CHUNK, .device = device, .seed = 1, .attn = method};
    CHECK_OK(sl_engine_new(model, &o, &r.engine, &err), err);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(sl_session_new(r.engine, 40 + i, &r.batch[i], &err), err);
        CHECK_OK(sl_sampler_new(&sampled, sl_model_n_vocab(model), &r.samplers[i], &err), err);
    }
    return r;
}

static void stop(run *r) {
    for (int i = 0; i < 2; i++) sl_session_free(r->batch[i]), sl_sampler_free(r->samplers[i]);
    sl_engine_free(r->engine);
}

static void check_bits(run r[GPUS], int n_vocab, const char *method, int step) {
    for (int i = 0; i < 2; i++) {
        const float *a = sl_session_logits(r[0].batch[i], NULL), *b = sl_session_logits(r[1].batch[i], NULL);
        if (memcmp(a, b, n_vocab * sizeof *a)) FAIL("%s: sequence %d differs between the GPUs after step %d", method, i, step);
    }
}

// Both engines do the same steps by turns: prefill in chunks, decode, and decode with tokens that the GPU samples. Step 0 of
// each kind is recorded, the others are replayed.
static void steps(run r[GPUS], const sl_model *model, const char *method) {
    int n_vocab = sl_model_config(model)->n_vocab;
    int32_t *ids = test_ids(PROMPT, n_vocab, test_seed), next[GPUS][2];
    for (int i = 0; i < 2; i++)
        for (int from = 0; from < PROMPT; from += CHUNK)
            for (int g = 0; g < GPUS; g++) {
                int n = PROMPT - from < CHUNK ? PROMPT - from : CHUNK;
                set_device(!g);
                CHECK_OK(sl_prefill(r[g].batch[i], ids + from, n - i, NULL, &err), err);
            }
    check_bits(r, n_vocab, method, -1);
    for (int step = 0; step < STEPS; step++) {
        for (int g = 0; g < GPUS; g++) {
            set_device(!g);
            CHECK_OK(sl_decode(r[g].batch, 2, (int32_t[]){70 + step, 71 + step}, &err), err);
        }
        check_bits(r, n_vocab, method, step);
        for (int g = 0; g < GPUS; g++) {
            set_device(!g);
            CHECK_OK(sl_step(r[g].batch, 2, r[g].samplers, next[g], &err), err);
        }
        CHECK(!memcmp(next[0], next[1], sizeof next[0]));
        check_bits(r, n_vocab, method, step);
    }
    free(ids);
}

static void engines(void) {
    static const char *const methods[] = {"dense", "santa-strat:S=128", "quest:tokens=256"};
    sl_model *model;
    CHECK_OK(sl_model_load("models/tiny", &(sl_model_options){.flags = SL_MODEL_NO_TOKENIZER}, &model, &err), err);
    for (size_t m = 0; m < sizeof methods / sizeof *methods; m++) {
        run r[GPUS];
        size_t free_0 = free_bytes(0);
        r[1] = start(model, "cuda:1", methods[m]); // with device 0 as the current device
        if (m > 0) CHECK_INT(free_bytes(0), free_0);
        set_device(1);
        r[0] = start(model, "cuda:0", methods[m]);
        for (int g = 0; g < GPUS; g++) {
            check_place(r[g].engine->device.pool.k, g, "the KV cache");
            check_place(r[g].engine->device.pass.logits, g, "the logits");
        }
        steps(r, model, methods[m]);
        for (int g = 0; g < GPUS; g++) {
            set_device(!g);
            stop(&r[g]);
        }
    }
    sl_model_free(model);
    set_device(0);
}

#endif

const test_suite suite_cuda_devices = {
    "cuda_devices", (const test_case[]){TWO_GPUS_CASE("memory", memory), TWO_GPUS_CASE("engines", engines), {0}}};
