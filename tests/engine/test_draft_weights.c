// tests/engine/test_draft_weights.c - copies of a model's weights in fewer bits for its own drafts: their numbers, what they
// share with the model, and what is refused. tests/engine/test_drafts.c has the bits of generations.
#include "engine/draft/draft_weights.h"
#include "tests/support/gpu.h"
#include "tests/support/models.h"
#include "tests/test.h"

#include <stdlib.h>
#include <string.h>

static sl_error err;

static sl_model *load(const char *dir, const char *weights, unsigned flags) {
    sl_model *model;
    const sl_model_options o = {.flags = flags | SL_MODEL_NO_TOKENIZER, .weights = weights};
    CHECK_OK(sl_model_load(dir, &o, &model, &err), err);
    CHECK_OK(sl_model_materialise(model, 2, NULL, NULL, &err), err);
    return model;
}

static sl_engine *open_engine(const sl_model *model, const char *device, const char *format) {
    sl_engine *e;
    const sl_engine_options o = {
        .n_ctx = 256, .n_draft = 4, .draft_weights = format, .device = device, .n_threads = 2, .prefill_chunk = 64};
    CHECK_OK(sl_engine_new(model, &o, &e, &err), err);
    return e;
}

// The copies have the numbers of a load with {weights}. What is not rounded lies in the memory of the model.
static void check_copies(const char *dir, const char *format, unsigned flags) {
    sl_model *model = load(dir, NULL, flags), *rounded = load(dir, format, flags);
    sl_engine *e = open_engine(model, "cpu", format);
    const sl_model_weights *copies = &e->device.draft_weights, *want = &rounded->weights, *own = &e->device.weights;
    size_t n_bytes = 0;
    int n_shared = 0;
    CHECK_INT(copies->n_tensors, want->n_tensors);
    CHECK(copies->rope.inv_freq == own->rope.inv_freq);
    for (int i = 0; i < copies->n_tensors; i++) {
        const sl_weight *a = copies->tensors[i].weight, *b = want->tensors[i].weight;
        CHECK_INT(a->format, b->format);
        CHECK_INT(a->group, b->group);
        CHECK_INT(a->activations, b->activations);
        CHECK(!memcmp(a->data, b->data, (size_t)a->n_rows * sl_weight_row_bytes(a)));
        if (a->scale) CHECK(!memcmp(a->scale, b->scale, sl_weight_scales(a) * sizeof *a->scale));
        if (a->data == own->tensors[i].weight->data)
            n_shared++;
        else if (!copies->tensors[i].same_as)
            n_bytes += sl_weight_bytes(a);
    }
    CHECK(n_shared > 0 && n_shared < copies->n_tensors);
    CHECK(e->device.draft_bytes >= n_bytes && e->device.draft_bytes < n_bytes + 64 * (size_t)copies->n_tensors);
    sl_engine_free(e), sl_model_free(rounded), sl_model_free(model);
}

static void copies(void) {
    static const char *const formats[] = {"int4", "int8", "fp8"};
    for (int i = 0; i < 3; i++) {
        check_copies("models/tiny", formats[i], 0);
        check_copies("tests/goldens/gqa", formats[i], 0);
        check_copies("models/tiny", formats[i], SL_MODEL_DUMMY);
    }
}

// Generates `n` tokens at the temperature 1, and returns the share of drafts that were accepted.
static double acceptance(sl_engine *e, const char *draft, uint64_t *hash) {
    int32_t *ids = test_ids(80, sl_model_n_vocab(e->model), test_seed);
    sl_generation g = sl_generation_default();
    sl_session *s;
    sl_stream *stream;
    g.max_tokens = 120, g.draft = draft, g.sampling.temp = 1, g.sampling.seed = 3;
    CHECK_OK(sl_session_new(e, 5, &s, &err), err);
    CHECK_OK(sl_prefill(s, ids, 80, NULL, &err), err);
    CHECK_OK(sl_stream_new(s, &g, &stream, &err), err);
    CHECK_OK(sl_stream_begin(stream, 0, &err), err);
    while (sl_stream_is_running(stream)) CHECK_OK(sl_streams_step(&stream, 1, &err), err);
    const sl_draft_counts c = sl_stream_draft_counts(stream);
    *hash = sl_logits_hash(sl_session_last_logits(s), sl_model_n_vocab(e->model));
    sl_stream_free(stream), sl_session_free(s), free(ids);
    CHECK(!draft || c.n_draft_tokens > 40);
    return draft ? (double)c.n_accepted_tokens / (double)c.n_draft_tokens : 1;
}

// Dense drafts with the model's own weights are all accepted. With the copies some are not, which shows that drafts read them;
// the text is that of plain decoding.
static void acceptances(const char *device) {
    sl_model *model = load("models/prose", NULL, 0);
    sl_engine *e = open_engine(model, device, "int4");
    uint64_t want, got[2];
    acceptance(e, NULL, &want);
    double own = acceptance(e, "self:least=3:most=3:attn=dense", &got[0]),
           copy = acceptance(e, "self:least=3:most=3:weights=int4:attn=dense", &got[1]);
    CHECK(got[0] == want && got[1] == want);
    CHECK(own == 1);
    CHECK(copy > 0.2 && copy < 0.98);
    sl_engine_free(e), sl_model_free(model);
}

static void drafts_read_them(void) {
    acceptances("cpu");
}

#ifdef SLEIGH_CUDA
static void drafts_read_them_on_gpu(void) {
    acceptances("cuda");
}
#endif

static size_t few_bytes(const sl_backend *be) {
    (void)be;
    return 3 << 20;
}
static size_t stored_bytes(const sl_backend *be, sl_weight *const *weights, int n, sl_cut cut) {
    size_t bytes = 0;
    (void)be, (void)cut;
    for (int i = 0; i < n; i++) bytes += sl_weight_bytes(weights[i]);
    return bytes;
}

// A device of 3 MiB: neither the copies nor the model's weights fit.
static void memory(void) {
    static const sl_backend small = {.name = "small", .is_device = 1, .free_memory = few_bytes, .placed_bytes = stored_bytes};
    sl_model *model = load("models/tiny", NULL, 0);
    sl_engine e = {.model = model, .device.backend = &small};
    CHECK_ERR(
        sl_draft_weights_list(&e, "int4", &err), err, SL_ERR_MEMORY,
        "draft weights=int4: the copies of the weights need 0.00 GiB of GPU memory beside 0.01 GiB of the model's weights; "
        "0.00 GiB are free");
    CHECK(e.device.draft_bytes > 2 << 20 && e.device.draft_bytes < 4 << 20);
    sl_model_weights_free(&e.rounded), sl_model_free(model);
}

static void refusals(void) {
    sl_model *model = load("models/tiny", NULL, 0), *int4 = load("models/tiny", "int4", 0);
    sl_engine_options o = {.n_ctx = 256, .n_draft = 4, .draft_weights = "int4", .device = "cpu"};
    sl_engine *e;
    CHECK_ERR(sl_engine_new(int4, &o, &e, &err), err, SL_ERR_ARG, "draft weights=int4: the weights of tiny are int4 already");
    o.draft_weights = "int3";
    CHECK_ERR(sl_engine_new(model, &o, &e, &err), err, SL_ERR_ARG, "draft_weights int3: expected int4, int8 or fp8");
    o.draft_weights = "int8", o.n_draft = 0;
    CHECK_ERR(sl_engine_new(model, &o, &e, &err), err, SL_ERR_ARG,
              "draft_weights int8: expected n_draft 1 to 15 with it, found 0");
    e = open_engine(int4, "cpu", "int8"); // not the text's format
    CHECK_OK(sl_engine_check_draft(e, "self:most=2:weights=int8", NULL, &err), err);
    CHECK_ERR(sl_engine_check_draft(e, "self:most=2:weights=int4", NULL, &err), err, SL_ERR_ARG,
              "draft self:most=2:weights=int4: expected copies of the weights in int4, found int8");
    sl_engine_free(e);
    e = open_engine(model, "cpu", NULL);
    CHECK_ERR(sl_engine_check_draft(e, "auto:weights=fp8", NULL, &err), err, SL_ERR_ARG, "found none (draft_weights)");
    sl_engine_free(e), sl_model_free(int4), sl_model_free(model);
}

static const test_case cases[] = {{"copies", NEEDS_NOTHING, copies},
                                  {"drafts-read-them", NEEDS_NOTHING, drafts_read_them},
                                  {"memory", NEEDS_NOTHING, memory},
                                  {"refusals", NEEDS_NOTHING, refusals},
                                  GPU_CASE("drafts-read-them-on-gpu", drafts_read_them_on_gpu),
                                  {0}};
const test_suite suite_draft_weights = {"draft_weights", cases};
