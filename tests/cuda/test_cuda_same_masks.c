// tests/cuda/test_cuda_same_masks.c - masks of a whole prefill of the embedded model on the CPU and on a GPU: the share of
// equal blocks, over all layers and heads.
//
// On equal inputs the masks are equal bit by bit (test_cuda_masks.c). Here the inputs differ: the CPU has fp32 activations and
// queries, and the GPU bf16 ones, and the differences grow from layer to layer. So a sum that lies near a limit of a mask can
// fall on the other side.
#include "attention/prefill/prefill_mask.h"
#include "engine/engine.h"
#include "tests/support/gpu.h"
#include "tests/support/run_cli.h"
#include "tests/support/task_prompt.h"

#ifdef SLEIGH_CUDA
#include "attention/attention_cuda.h"
#endif

#include <stdlib.h>
#include <string.h>

enum { LAYERS = 4, HEADS = 8 };

static sl_error err;

// ---- a method that makes the masks of another one and keeps a copy ----

static struct {
    const sl_attn_method *method; // the other one
    sl_prefill_mask masks[LAYERS];
    int n; // masks that were made
} spy;

static sl_prefill_mask *next_mask(const sl_prefill_mask *made) {
    SL_CHECK(spy.n < LAYERS);
    sl_prefill_mask *to = &spy.masks[spy.n++];
    *to = *made, to->bits = malloc(sl_mask_bytes(made));
    SL_CHECK(to->bits);
    return to;
}

static void spy_mask(const sl_mask_args *args) {
    spy.method->cpu->mask(args);
    memcpy(next_mask(args->mask)->bits, args->mask->bits, sl_mask_bytes(args->mask));
}

#ifdef SLEIGH_CUDA
static void spy_cuda_mask(const sl_attn_cuda_mask_args *args) {
    spy.method->cuda->mask(args);
    cudaStreamSynchronize(args->stream);
    gpu_read(next_mask(args->mask)->bits, args->mask->bits, sl_mask_bytes(args->mask));
}
#endif

static void free_masks(sl_prefill_mask masks[LAYERS]) {
    for (int i = 0; i < LAYERS; i++) free(masks[i].bits);
    memset(masks, 0, LAYERS * sizeof *masks);
}

// ---- a prefill ----

// Fills masks with those of a prefill of the prompt by this method, one for each layer. The whole prompt is one segment.
static void prefill(const sl_model *model, const char *device, int chunk, const char *attn, const sl_ids *ids,
                    sl_prefill_mask masks[LAYERS]) {
    sl_attn_spec spec;
    sl_attn_plan plan;
    sl_engine *engine;
    sl_session *session;
    CHECK_OK(sl_attn_parse(attn, &spec, &err), err);
    spy.method = spec.method, spy.n = 0;
    sl_attn_ops cpu = *spec.method->cpu;
    cpu.mask = spy_mask;
    sl_attn_method method = *spec.method;
    method.cpu = &cpu;
#ifdef SLEIGH_CUDA
    sl_attn_cuda_ops cuda = *spec.method->cuda;
    cuda.mask = spy_cuda_mask;
    method.cuda = &cuda;
#endif
    spec.method = &method;
    const sl_engine_options options = {.n_ctx = (int)ids->n, .prefill_chunk = chunk, .device = device};
    CHECK_OK(sl_engine_new(model, &options, &engine, &err), err);
    CHECK_OK(sl_attn_plan_init(&plan, LAYERS, &spec, &err), err);
    CHECK_OK(sl_engine_set_prefill(engine, &plan, (int)ids->n, &err), err);
    CHECK_OK(sl_session_new(engine, 0, &session, &err), err);
    CHECK_OK(sl_prefill(session, ids->data, (int)ids->n, NULL, &err), err);
    CHECK_INT(spy.n, LAYERS);
    memcpy(masks, spy.masks, sizeof spy.masks);
    memset(spy.masks, 0, sizeof spy.masks);
    sl_session_free(session);
    sl_engine_free(engine);
    sl_attn_plan_free(&plan);
}

// ---- the comparison ----

typedef struct shares {
    double equal, density; // of the causal blocks of all layers and heads: equal in both; in the first mask
    double worst;          // the least share of equal blocks of a head
} shares;

static shares compare(const sl_prefill_mask a[LAYERS], const sl_prefill_mask b[LAYERS]) {
    shares s = {.worst = 1};
    uint64_t equal = 0, set = 0, causal = 0;
    for (int layer = 0; layer < LAYERS; layer++) {
        const sl_prefill_mask *x = &a[layer], *y = &b[layer];
        CHECK(x->n_heads == HEADS && sl_mask_bytes(x) == sl_mask_bytes(y) && x->n == y->n && x->first == 0 && y->first == 0);
        for (int head = 0; head < HEADS; head++) {
            uint64_t of_head = 0;
            for (int i = 0; i < x->n; i++)
                for (int j = 0; j <= i; j++) {
                    int has = sl_mask_has(sl_mask_row(x, head, i), j);
                    set += has, of_head += has == sl_mask_has(sl_mask_row(y, head, i), j);
                }
            double share = (double)of_head / sl_mask_causal(x);
            if (share < s.worst) s.worst = share;
            equal += of_head, causal += sl_mask_causal(x);
        }
    }
    s.equal = (double)equal / causal, s.density = (double)set / causal;
    return s;
}

static const char *const methods[] = {"sample", "sample:alpha_c=0.8:alpha_s=0.8", "sample:chunk_n=4",
                                      "vertical-slash:columns=64:slashes=256"};
enum { N_METHODS = 4, N_OF_PASSES = 2 };

static sl_model *load(int n_tokens, sl_ids *ids) {
    sl_model *model;
    CHECK_OK(sl_model_load(tiny(), NULL, &model, &err), err);
    task_prompt(model, "qa-2hop", n_tokens, ids);
    return model;
}

// On one device the masks are equal bit by bit, whatever the size of a pass is. This also tests the comparison itself.
static void passes(void) {
    sl_prefill_mask a[LAYERS], b[LAYERS];
    sl_ids ids = {0};
    sl_model *model = load(700, &ids);
    for (int m = 0; m < N_OF_PASSES; m++) {
        prefill(model, "cpu", 512, methods[m], &ids, a);
        prefill(model, "cpu", 130, methods[m], &ids, b);
        shares s = compare(a, b);
        CHECK(s.equal == 1 && s.worst == 1 && s.density > 0.1);
        uint64_t *row = sl_mask_row(&b[3], 7, 5); // one block of the last head
        row[0] ^= 1 << 4;
        s = compare(a, b);
        CHECK_NEAR(s.equal, 1 - 1.0 / (LAYERS * HEADS * 21), 1e-12); // 700 tokens have 21 causal blocks
        CHECK_NEAR(s.worst, 1 - 1.0 / 21, 1e-12);
        free_masks(a);
        free_masks(b);
    }
    sl_ids_free(&ids);
    sl_model_free(model);
}

#ifdef SLEIGH_CUDA
// `sample` with its default parameters must have 99.9% equal blocks. The other methods choose between scores
// that differ less. On the CPU, random relative errors of 0.5% in the queries leave 100% of the blocks of `sample` equal, and
// 99.68 to 100% of the blocks of the others. Errors of 2% leave 99.88%, and 99.58 to 100%. So the bound of the others is 99.5%.
static void devices(void) {
    enum { TOKENS = 8192 };
    sl_prefill_mask cpu[LAYERS], gpu[LAYERS];
    sl_ids ids = {0};
    sl_model *model = load(TOKENS, &ids);
    const char *too_different = NULL;
    for (int m = 0; m < N_METHODS; m++) {
        prefill(model, "cpu", 2048, methods[m], &ids, cpu);
        prefill(model, "cuda", 2048, methods[m], &ids, gpu);
        shares s = compare(cpu, gpu);
        printf("      %s, %zu tokens: %.4f%% of the blocks are equal, %.2f%% in the worst head; density %.1f%%\n", methods[m],
               ids.n, 100 * s.equal, 100 * s.worst, 100 * s.density);
        if (s.equal < (m == 0 ? 0.999 : 0.995)) too_different = methods[m];
        free_masks(cpu);
        free_masks(gpu);
    }
    sl_ids_free(&ids);
    sl_model_free(model);
    if (too_different) FAIL("%s: fewer equal blocks than expected", too_different);
}
#endif

static const test_case cases[] = {{"passes", 0, passes}, WHOLE_GPU_CASE("devices", devices), {0}};
extern const test_suite suite_cuda_same_masks;
const test_suite suite_cuda_same_masks = {"cuda_same_masks", cases};
