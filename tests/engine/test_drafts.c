// tests/engine/test_drafts.c - drafts: the index of n-grams against a search of the whole text, the words of {draft}, passes of
// several rows against single steps, and generations with drafts against generations without. tests/engine/test_scheduler.c
// has batches of jobs with and without drafts.
#include "engine/draft/draft.h"
#include "engine/draft/ngram_index.h"
#include "engine/engine_internal.h"
#include "engine/stream.h"
#include "tests/support/gpu.h"
#include "tests/support/models.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static sl_error err;
static const char *device = "cpu";

// ---- the index ----

enum { TEXT = 300 };

// The longest end of ids[0..n) that occurred before, at most `max` ids, at its newest place.
static int search(const int32_t *ids, int n, int min, int max, int *next) {
    int most = 0;
    for (int end = n - 1; end > 0; end--) {
        int length = 0;
        while (length < max && length < end && ids[end - 1 - length] == ids[n - 1 - length]) length++;
        if (length > most) most = length, *next = end;
    }
    return most >= min ? most : 0;
}

// Random texts. A text grows, loses its last ids, and grows with other ids.
static void ngrams(void) {
    for (int round = 0; round < 60; round++) {
        int min = 1 + test_below(4), max = min + test_below(30), letters = 1 + test_below(4), n = 0, known = 0;
        int32_t ids[TEXT], copied[20];
        sl_ngram_index x;
        CHECK_OK(sl_ngram_init(&x, min, max, TEXT, &err), err);
        for (int step = 0; step < 80; step++) {
            if (test_below(8) == 0) n = test_below(n + 1);
            if (n < known) known = n;
            for (int more = test_below(9); more > 0 && n < TEXT; more--) ids[n++] = test_below(letters);
            sl_ngram_sync(&x, ids, n, test_below(known + 1));
            known = n;
            int next = -1, want_next = -1, length = sl_ngram_find(&x, &next), want = search(ids, n, min, max, &want_next);
            CHECK_INT(length, want);
            if (!length) continue;
            CHECK_INT(next, want_next);
            sl_ngram_copy(&x, next, 20, copied);
            for (int i = 0; i < 20; i++) CHECK_INT(copied[i], next + i < n ? ids[next + i] : copied[next + i - n]);
        }
        sl_ngram_free(&x);
    }
}

// ---- the words ----

static void words(void) {
    static const struct {
        const char *text;
        int has_ngram, n_methods, min, max, least, most;
        const char *attn, *weights;
    } good[] = {
        {"ngram", 1, 0, 3, 32, 0, 8, "", NULL},
        {"ngram:min=4:most=2", 1, 0, 4, 32, 0, 2, "", NULL},
        {"ngram:most=15:least=15:max=7", 1, 0, 3, 7, 15, 15, "", NULL},
        {"self", 0, 1, 3, 32, 0, 8, "santa-is:S=64", NULL},
        {"self:most=4:attn=topk:k=8", 0, 1, 3, 32, 0, 4, "topk:k=8", NULL},
        {"self:attn=quest:tokens=32", 0, 1, 3, 32, 0, 8, "quest:tokens=32", NULL},
        {"ngram:min=2+self:most=5:attn=bernoulli+santa:S=8", 1, 1, 2, 32, 0, 5, "bernoulli+santa:S=8", NULL},
        {"ngram+self", 1, 1, 3, 32, 0, 8, "santa-is:S=64", NULL},
        {"ngram+model:most=3", 1, 1, 3, 32, 0, 3, "dense", NULL},
        {"auto", 1, 2, 3, 32, 0, 8, "santa-is:S=64", NULL},
        {"self:weights=int4", 0, 1, 3, 32, 0, 8, "santa-is:S=64", "int4"},
        {"self:least=1:weights=fp8:most=4:attn=dense", 0, 1, 3, 32, 1, 4, "dense", "fp8"},
        {"ngram:min=2+self:attn=bernoulli+santa:S=8:weights=int8", 1, 1, 2, 32, 0, 8, "bernoulli+santa:S=8", "int8"},
        {"auto:weights=int4", 1, 2, 3, 32, 0, 8, "santa-is:S=64", "int4"},
    };
    static const char *const bad[] = {"",
                                      "none",
                                      "ngrams",
                                      "ngram:min=0",
                                      "ngram:min=33",
                                      "ngram:most=16",
                                      "ngram:k=3",
                                      "ngram:min=x",
                                      "self:most=0",
                                      "self:S=3",
                                      "ngram+",
                                      "self+ngram",
                                      "auto:max=3",
                                      "ngram:",
                                      "self:most= 4",
                                      "ngram:most=+4",
                                      "ngram:min=3x",
                                      "ngram:least=9",
                                      "self:weights=int3",
                                      "self:weights=int4:weights=int4",
                                      "self:attn=dense:weights=int44",
                                      "self:attn=dense:weights=int4:most=3",
                                      "self:weights=",
                                      "ngram:weights=int4",
                                      "ngram:weights=int4+self",
                                      "model:weights=int4",
                                      "model:attn=dense:weights=int4",
                                      "auto:weights=bf16",
                                      "auto:weights=int4:most=3"};
    sl_draft_spec spec;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        CHECK_OK(sl_draft_parse(good[i].text, &spec, &err), err);
        CHECK_INT(spec.has_ngram, good[i].has_ngram);
        CHECK_INT(spec.n_methods, good[i].n_methods);
        CHECK_INT(spec.min, good[i].min);
        CHECK_INT(spec.max, good[i].max);
        CHECK_INT(spec.least, good[i].least);
        CHECK_INT(spec.most, good[i].most);
        CHECK_STR(spec.attn[0], good[i].attn);
        CHECK_STR(spec.weights ? spec.weights : "", good[i].weights ? good[i].weights : "");
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_ERR(sl_draft_parse(bad[i], &spec, &err), err, SL_ERR_ARG, "expected ngram[:min=N][:max=N], self");
}

// ---- passes of several rows ----

enum { N_CTX = 1024, ROWS = 16, SESSIONS = 3 };

// Stores a row of K or of V, in the memory of the engine's device.
static void store_row(sl_engine *e, void *blocks, sl_format format, size_t block, int at, const float *row) {
    const sl_backend *be = e->device.backend;
    int dim = e->geom.head_dim;
    if (!be->is_device) {
        sl_kv_store(blocks, format, dim, block, at, row, 0);
        return;
    }
    char here[SL_PAGE * (256 + sizeof(float)) * 2];
    size_t size = sl_kv_block_bytes(format, dim);
    CHECK(size <= sizeof here);
    be->download(be, here, (char *)blocks + block * size, size);
    sl_kv_store(here, format, dim, 0, at, row, 0);
    be->upload(be, (char *)blocks + block * size, here, size);
}

// What a draft method may have left behind the session's rows: a pass must overwrite all of it.
static void spoil_rows(sl_engine *e, sl_session *s, int n) {
    int from = s->kv.n_tokens;
    CHECK_OK(sl_kv_reserve(&e->device.pool, &s->kv, from + n, &err), err);
    for (int layer = 0; layer < e->geom.n_layers; layer++) {
        sl_kv_rows kv = sl_kv_layer(&e->device.pool, layer);
        float row[256];
        for (int d = 0; d < e->geom.head_dim; d++) row[d] = test_below(2) ? NAN : (float)(test_below(2000) - 1000);
        for (int at = from; at < from + n; at++)
            for (int h = 0; h < e->geom.n_kv_heads; h++) {
                size_t block = (size_t)s->kv.pages[at / SL_PAGE] * e->geom.n_kv_heads + h;
                store_row(e, kv.k, kv.formats.k, block, at % SL_PAGE, row);
                store_row(e, kv.v, kv.formats.v, block, at % SL_PAGE, row);
            }
    }
}

// Runs of 1 to 16 rows of three sessions, also across the end of a page, against single steps. The first session has `first`
// tokens. page_extras: rows of full pages have another form, in page extras or on the host.
static void rows(const char *dir, const char *attn, sl_engine_options o, int first, int page_extras) {
    const int lengths[SESSIONS] = {first, 765, 511};
    // 765 and 4 more rows cross the end of a page; a plan with page extras may not.
    const int n_rows[SESSIONS] = {16, page_extras ? 3 : 5, 1};
    sl_engine *e = NULL;
    o.n_ctx = N_CTX, o.n_sequences = SESSIONS, o.device = device, o.n_threads = 2, o.prefill_chunk = 128;
    o.n_draft = ROWS - 1;
    model_fixture r = model_fixture_load(dir, attn, o);
    size_t n_vocab = (size_t)r.n_vocab;
    sl_run runs[SESSIONS];
    int32_t *ids[SESSIONS];
    e = r.engine;
    for (int i = 0; i < SESSIONS; i++) {
        ids[i] = test_ids(lengths[i] + ROWS, r.n_vocab, test_seed + (uint64_t)i);
        sl_session *s = model_fixture_session(&r, 7 + (uint32_t)i);
        CHECK_OK(sl_prefill(s, ids[i], lengths[i], NULL, &err), err);
        if (!e->device.pool.offload) spoil_rows(e, s, n_rows[i]);
        runs[i] = (sl_run){.session = s, .ids = ids[i] + lengths[i], .n = n_rows[i]};
    }
    CHECK_OK(sl_engine_claim(e, &err), err);
    CHECK_OK(sl_decode_runs_claimed(runs, SESSIONS, &err), err);
    float *got = malloc(SESSIONS * ROWS * n_vocab * sizeof *got);
    for (int i = 0; i < SESSIONS; i++) {
        for (int j = 0; j < n_rows[i]; j++) {
            if (j) sl_run_take(&runs[i], j);
            CHECK_INT(sl_session_n_tokens(runs[i].session), lengths[i] + j + 1);
            memcpy(got + ((size_t)i * ROWS + (size_t)j) * n_vocab, sl_session_last_logits(runs[i].session),
                   n_vocab * sizeof *got);
        }
    }
    sl_engine_release(e);
    for (int i = 0; i < SESSIONS; i++) {
        sl_session *s = model_fixture_session(&r, 7 + (uint32_t)i);
        CHECK_OK(sl_prefill(s, ids[i], lengths[i], NULL, &err), err);
        for (int j = 0; j < n_rows[i]; j++) {
            CHECK_OK(sl_decode(&s, 1, ids[i] + lengths[i] + j, &err), err);
            const float *row = got + ((size_t)i * ROWS + (size_t)j) * n_vocab;
            if (memcmp(row, sl_session_last_logits(s), n_vocab * sizeof *row))
                FAIL("%s: session %d of %d tokens: row %d of %d has other bits than a single step", attn, i, lengths[i], j,
                     n_rows[i]);
        }
        sl_session_free(s), sl_session_free(runs[i].session), free(ids[i]);
    }
    free(got);
    model_fixture_close(&r);
}

static void rows_have_the_bits_of_steps(void) {
    static const char *const methods[] = {"dense", "santa-prop:S=24", "topk:k=8", "santa-is:S=24", "quest:tokens=48"};
    for (int i = 0; i < 5; i++) rows("models/tiny", methods[i], (sl_engine_options){0}, 70, i >= 3);
    rows("models/tiny", "dense", (sl_engine_options){.kv_cache_dtype = "fp8"}, 70, 0);
    rows("models/tiny", "dense", (sl_engine_options){.kv_cache_dtype = "int8"}, 70, 0);
}

#ifdef SLEIGH_CUDA
// All families of kernels, types of cache, a cache on the host, biases, and norms of heads. With 70 tokens the new rows lie in
// one tile of 64 rows, with 60 in two, and with 500 they pass the end of a chunk of dense attention.
static void rows_on_gpu(void) {
    static const struct {
        const char *attn;
        int page_extras;
    } methods[] = {{"dense", 0},
                   {"streaming:window=100", 0},
                   {"santa-prop:S=24", 0},
                   {"santa-flash:S=24", 0},
                   {"bernoulli+santa:S=16", 1},
                   {"topk:k=8", 0},
                   {"random:S=30", 0},
                   {"santa-is:S=24", 1},
                   {"dense-q", 1},
                   {"quest:tokens=48", 1},
                   {"vattention", 1}};
    static const char *const byte_rows[] = {"dense", "streaming:window=100", "santa:S=24"};
    static const int firsts[] = {60, 70, 500};
    device = "cuda";
    for (int i = 0; i < 11; i++)
        for (int j = 0; j < (i ? 1 : 3); j++)
            rows("models/tiny", methods[i].attn, (sl_engine_options){0}, firsts[j], methods[i].page_extras);
    for (int i = 0; i < 6; i++)
        rows("models/tiny", byte_rows[i / 2], (sl_engine_options){.kv_cache_dtype = i % 2 ? "fp8" : "int8"}, firsts[i % 3], 0);
    rows("models/tiny", "santa-is:S=24", (sl_engine_options){.kv_cache = "host"}, 70, 1);
    rows("models/tiny", "quest:tokens=48", (sl_engine_options){.kv_cache = "host"}, 60, 1);
    device = "cpu";
}
#endif

// ---- generations ----

static sl_model *model;

typedef struct made {
    int32_t ids[160];
    char text[4096];
    size_t n_text;
    int n, n_tokens;
    sl_stop stop;
    double logprobs;
    uint64_t hash;
    sl_draft_counts counts;
    char line[512];
} made;

static made generate(sl_engine *e, const int32_t *ids, int n, sl_generation g) {
    sl_session *session;
    sl_stream *stream;
    made m = {0};
    CHECK_OK(sl_session_new(e, g.sequence, &session, &err), err);
    CHECK_OK(sl_prefill(session, ids, n, NULL, &err), err);
    CHECK_OK(sl_stream_new(session, &g, &stream, &err), err);
    CHECK_OK(sl_stream_begin(stream, 0, &err), err);
    while (sl_stream_is_running(stream)) {
        CHECK_OK(sl_streams_step(&stream, 1, &err), err);
        size_t n_text;
        const char *text = sl_stream_text(stream, &n_text);
        CHECK(m.n_text + n_text < sizeof m.text);
        memcpy(m.text + m.n_text, text, n_text);
        m.n_text += n_text;
    }
    const int32_t *sampled = sl_stream_ids(stream, &m.n);
    CHECK(m.n <= 160);
    memcpy(m.ids, sampled, (size_t)m.n * sizeof *sampled);
    int n_logprobs;
    const sl_token_logprobs *l = sl_stream_logprobs(stream, &n_logprobs);
    for (int i = 0; i < n_logprobs; i++) m.logprobs += l[i].sampled.at * (i + 1) + l[i].top[0].at;
    m.n_tokens = sl_session_n_tokens(session), m.stop = sl_stream_result(stream).stop;
    m.hash = sl_logits_hash(sl_session_last_logits(session), sl_model_n_vocab(model));
    m.counts = sl_stream_draft_counts(stream);
    sl_stream_describe_drafts(stream, m.line, sizeof m.line);
    sl_stream_free(stream), sl_session_free(session);
    return m;
}

static void check_same(const made *got, const made *want, const char *draft) {
    if (got->n != want->n || memcmp(got->ids, want->ids, (size_t)want->n * sizeof *want->ids))
        FAIL("%s: %d ids, %d without drafts, or others", draft, got->n, want->n);
    CHECK(got->n_text == want->n_text && !memcmp(got->text, want->text, want->n_text));
    CHECK_INT(got->n_tokens, want->n_tokens);
    CHECK_INT(got->stop, want->stop);
    CHECK(got->logprobs == want->logprobs);
    CHECK(got->hash == want->hash);
}

static sl_engine *engine_of(int n_ctx) { // the model drafts for itself, also with weights of 4 bits
    sl_engine *e;
    CHECK_OK(sl_engine_new(model,
                           &(sl_engine_options){.n_ctx = n_ctx,
                                                .n_draft = 15,
                                                .draft_model = model,
                                                .draft_weights = "int4",
                                                .device = device,
                                                .n_threads = 2,
                                                .prefill_chunk = 128},
                           &e, &err),
             err);
    return e;
}

// Greedy and sampled, with penalties, limits, stop strings inside of accepted runs, and a context that fills up: the same ids,
// text, log-probabilities, logits and session as without drafts.
static void same_generations(void) {
    static const char *const drafts[] = {"ngram:min=2:least=15:most=15",
                                         "ngram",
                                         "self:least=3:most=4:attn=topk:k=48",
                                         "self:least=1:attn=santa-is:S=128",
                                         "ngram+self:least=2:attn=streaming:window=64",
                                         "auto",
                                         "self:least=4:weights=int4:attn=dense",
                                         "auto:weights=int4",
                                         "model:least=4",
                                         "ngram+model:most=3:attn=topk:k=32"};
    sl_draft_counts all = {0};
    CHECK_OK(sl_model_load("models/tiny", NULL, &model, &err), err);
    sl_engine *e = engine_of(700);
    for (int round = 0; round < (SANITIZED ? 12 : 40); round++) {
        int n = round % 4 ? 40 + test_below(200) : 620 + test_below(78), period = 5 + test_below(30);
        int32_t *ids = test_ids(n, sl_model_n_vocab(model), test_seed + (uint64_t)round);
        for (int i = period; i < n; i++) ids[i] = ids[i - period];
        sl_generation g = sl_generation_default();
        g.sequence = (uint32_t)round, g.max_tokens = 1 + test_below(100), g.n_logprobs = 2;
        g.sampling.temp = round % 2 ? 0 : 0.7f, g.sampling.seed = (uint32_t)round;
        if (round % 5 == 1) g.sampling.repeat_penalty = 1.2f;
        sl_logit_bias bias[20]; // a GPU samples with up to 16 itself
        for (int i = 0; i < 20; i++) bias[i] = (sl_logit_bias){.id = 10 + i, .bias = (float)(i - 10)};
        if (round % 7 > 4) g.sampling.bias = bias, g.sampling.n_bias = round % 7 == 5 ? 3 : 20;
        made want = generate(e, ids, n, g);
        char part[4] = {0};
        const char *stops[] = {part};
        if (round % 3 == 2 && want.n_text > 12) { // a stop string of the text
            memcpy(part, want.text + test_below((int)want.n_text - 3), 3);
            int is_ascii = 1;
            for (int i = 0; i < 3; i++) is_ascii &= part[i] > 0;
            if (is_ascii) g.stop = stops, g.n_stop = 1, want = generate(e, ids, n, g);
        }
        g.draft = drafts[round % 10];
        made got = generate(e, ids, n, g);
        check_same(&got, &want, g.draft);
        CHECK(got.counts.n_accepted_tokens <= got.counts.n_draft_tokens);
        CHECK(strstr(got.line, "tokens a pass"));
        all.n_accepted_tokens += got.counts.n_accepted_tokens, all.n_ngram_drafts += got.counts.n_ngram_drafts;
        all.n_drafts += got.counts.n_drafts;
        free(ids);
    }
    CHECK(all.n_accepted_tokens > 100);
    CHECK(all.n_ngram_drafts > 10 && all.n_drafts > all.n_ngram_drafts + 10);
    sl_engine_free(e);
    sl_model_free(model);
}

// A draft model that is the model itself: nearly every draft is accepted, so a step makes nearly 1 + 4 tokens. Not every one,
// because a prefill rounds otherwise than steps.
static void draft_model(void) {
    enum { N = 120 };
    CHECK_OK(sl_model_load("models/tiny", NULL, &model, &err), err);
    sl_engine *e = engine_of(512);
    int32_t *ids = test_ids(60, sl_model_n_vocab(model), test_seed);
    sl_generation g = sl_generation_default();
    g.max_tokens = N, g.sampling.temp = 0;
    made want = generate(e, ids, 60, g);
    g.draft = "model:least=4:most=4";
    made got = generate(e, ids, 60, g);
    check_same(&got, &want, g.draft);
    CHECK(got.counts.n_accepted_tokens * 10 >= got.counts.n_draft_tokens * 9 && got.counts.n_draft_tokens > 4);
    free(ids), sl_engine_free(e), sl_model_free(model);
}

#ifdef SLEIGH_CUDA
static void same_generations_on_gpu(void) {
    device = "cuda";
    same_generations();
    device = "cpu";
}

static void draft_model_on_gpu(void) {
    device = "cuda";
    draft_model();
    device = "cpu";
}

// After two generations, which record passes of each size, a third one takes no more memory of the GPU.
static void memory_of(const char *draft) {
    size_t free_before = 0, free_after = 0, total;
    CHECK_OK(sl_model_load("models/tiny", NULL, &model, &err), err);
    sl_engine *e = engine_of(512);
    int32_t *ids = test_ids(100, sl_model_n_vocab(model), test_seed);
    for (int i = 20; i < 100; i++) ids[i] = ids[i - 20];
    sl_generation g = sl_generation_default();
    g.max_tokens = 100, g.sampling.temp = 0, g.draft = draft;
    for (int i = 0; i < 3; i++) {
        CHECK(cudaMemGetInfo(&free_before, &total) == cudaSuccess);
        made m = generate(e, ids, 100, g);
        CHECK(cudaMemGetInfo(&free_after, &total) == cudaSuccess);
        CHECK(m.counts.n_drafts > 5);
    }
    if (free_after < free_before) FAIL("%s: %zu bytes free, %zu before", draft, free_after, free_before);
    free(ids), sl_engine_free(e), sl_model_free(model);
}

static void memory_on_gpu(void) {
    device = "cuda";
    memory_of("ngram:min=1:least=5:most=5");
    memory_of("self:least=3:most=3:attn=santa-is:S=64");
    memory_of("model:least=3:most=3");
    device = "cpu";
}

// The warm-up records passes of 2 to 15 rows and measures some of them, and leaves sessions, pages and counts as they were. A
// second one does nothing.
static void warm_up_on_gpu(void) {
    double fixed, each;
    sl_engine *e;
    sl_session *s;
    CHECK_OK(sl_model_load("models/tiny", NULL, &model, &err), err);
    CHECK_OK(
        sl_engine_new(model, &(sl_engine_options){.n_ctx = 512, .n_sequences = 3, .n_draft = 4, .device = "cuda"}, &e, &err),
        err);
    int32_t *ids = test_ids(70, sl_model_n_vocab(model), test_seed);
    CHECK_OK(sl_session_new(e, 0, &s, &err), err);
    CHECK_OK(sl_prefill(s, ids, 69, NULL, &err), err);
    CHECK_OK(sl_decode(&s, 1, ids + 69, &err), err);
    int n_vocab = sl_model_n_vocab(model), n_free = e->device.pool.n_free;
    uint64_t hash = sl_logits_hash(sl_session_last_logits(s), n_vocab), dense = sl_engine_attention_work(e).dense_bytes;
    CHECK_OK(sl_decode(&s, 1, ids, &err), err);
    CHECK_OK(sl_session_truncate(s, 69, &err), err);
    CHECK_OK(sl_decode(&s, 1, ids + 69, &err), err); // the row of its logits lies where the warm-up writes
    dense *= 3;
    CHECK_OK(sl_drafts_warm_up(e, NULL, &err), err);
    CHECK_INT(e->plans.of_engine->draft_rows, 15);
    CHECK_INT(e->device.pool.n_free, n_free);
    CHECK(sl_logits_hash(sl_session_last_logits(s), n_vocab) == hash);
    CHECK_INT(sl_engine_attention_work(e).dense_bytes > dense * 0.95, 1);
    CHECK_INT(sl_engine_attention_work(e).dense_bytes < dense * 1.05, 1);
    sl_draft_costs_line(&e->draft_costs, &fixed, &each);
    double weight = e->draft_costs.weight;
    CHECK(weight > 0.1 && weight < 1 && fixed > 0.01 && fixed < 100 && each < fixed);
    CHECK_OK(sl_drafts_warm_up(e, NULL, &err), err);
    CHECK(e->draft_costs.weight == weight);
    free(ids), sl_session_free(s), sl_engine_free(e), sl_model_free(model);
}

// A pass of several rows counts the reads of attention that single steps count.
static void counts_on_gpu(void) {
    sl_attention_work work[2];
    int32_t *ids = NULL;
    for (int i = 0; i < 2; i++) {
        CHECK_OK(sl_model_load("models/tiny", NULL, &model, &err), err);
        sl_engine *e;
        sl_session *s;
        CHECK_OK(sl_engine_new(model, &(sl_engine_options){.n_ctx = 512, .n_draft = 4, .device = "cuda"}, &e, &err), err);
        if (!ids) ids = test_ids(100, sl_model_n_vocab(model), test_seed);
        CHECK_OK(sl_engine_set_attention(e, "santa-is:S=16", &err), err);
        CHECK_OK(sl_session_new(e, 0, &s, &err), err);
        CHECK_OK(sl_prefill(s, ids, 70, NULL, &err), err);
        sl_engine_reset_stats(e);
        if (i) CHECK_OK(sl_decode_rows(&s, 1, ids + 70, 5, &err), err);
        for (int j = 0; !i && j < 5; j++) CHECK_OK(sl_decode(&s, 1, ids + 70 + j, &err), err);
        work[i] = sl_engine_attention_work(e);
        sl_session_free(s), sl_engine_free(e), sl_model_free(model);
    }
    CHECK(work[0].bytes > 0 && work[0].bytes == work[1].bytes && work[0].dense_bytes == work[1].dense_bytes);
    CHECK(work[0].heads == work[1].heads);
    free(ids);
}
#endif

// What cannot be exact is refused by name.
static void refusals(void) {
    CHECK_OK(sl_model_load("models/tiny", NULL, &model, &err), err);
    sl_engine *e = engine_of(512), *without;
    sl_session *s;
    sl_stream *stream;
    sl_generation g = sl_generation_default();
    CHECK_OK(sl_session_new(e, 0, &s, &err), err);
    g.draft = "self:attn=santa-is:proposal=int8:epsilon=0.2";
    CHECK_ERR(sl_stream_new(s, &g, &stream, &err), err, SL_ERR_UNSUPPORTED, "santa-is keeps a state from step to step");
    g.draft = "ngram:most=x";
    CHECK_ERR(sl_stream_new(s, &g, &stream, &err), err, SL_ERR_ARG, "1 <= min <= max <= 64");
    g.draft = "ngram", g.attn = "santa-pps:epsilon=0.2";
    CHECK_OK(sl_stream_new(s, &g, &stream, &err), err);
    CHECK_OK(sl_prefill(s, (int32_t[]){1, 2, 3}, 3, NULL, &err), err);
    CHECK_ERR(sl_stream_begin(stream, 1, &err), err, SL_ERR_UNSUPPORTED, "santa-pps keeps a state from step to step");
    CHECK(!sl_stream_is_running(stream));
    sl_stream_free(stream), sl_session_free(s), sl_engine_free(e);
    CHECK_OK(sl_engine_new(model, &(sl_engine_options){.n_ctx = 256}, &without, &err), err);
    CHECK_OK(sl_session_new(without, 0, &s, &err), err);
    g.attn = NULL;
    CHECK_ERR(sl_stream_new(s, &g, &stream, &err), err, SL_ERR_ARG, "at most 0");
    g.draft = NULL;
    sl_session_free(s), sl_engine_free(without);
    sl_model *other;
    CHECK_OK(sl_model_load("models/prose", NULL, &other, &err), err);
    CHECK_ERR(sl_engine_new(model, &(sl_engine_options){.n_draft = 8, .draft_model = other, .n_ctx = 256}, &e, &err), err,
              SL_ERR_ARG, "draft_model prose: a vocabulary of 8192 tokens; expected 1024");
    sl_model_free(other);
    CHECK_ERR(sl_engine_new(model, &(sl_engine_options){.n_draft = 16}, &e, &err), err, SL_ERR_ARG,
              "n_draft 16: expected 0 to 15");
    sl_model_free(model);
}

static const test_case cases[] = {
    {"ngrams", NEEDS_NOTHING, ngrams},
    {"words", NEEDS_NOTHING, words},
    {"rows-have-the-bits-of-steps", NEEDS_NOTHING, rows_have_the_bits_of_steps},
    {"same-generations", NEEDS_NOTHING, same_generations},
    {"draft-model", NEEDS_NOTHING, draft_model},
    {"refusals", NEEDS_NOTHING, refusals},
    GPU_CASE("rows-on-gpu", rows_on_gpu),
    GPU_CASE("same-generations-on-gpu", same_generations_on_gpu),
    GPU_CASE("draft-model-on-gpu", draft_model_on_gpu),
    GPU_CASE("warm-up-on-gpu", warm_up_on_gpu),
    GPU_CASE("counts-on-gpu", counts_on_gpu),
    WHOLE_GPU_CASE("memory-on-gpu", memory_on_gpu),
    {0},
};
const test_suite suite_drafts = {"drafts", cases};
