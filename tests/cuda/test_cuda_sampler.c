// tests/cuda/test_cuda_sampler.c - token sampling on CUDA against backend/sampler.c, the reference: equal logits give
// equal tokens.
#include "tests/support/gpu.h"

#ifdef SLEIGH_CUDA
#include "backend/cuda/cuda_sampler.h"
#include "tests/support/models.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 16 };
static sl_error err;

// A batch on both devices. Each row has different settings and different logits.
typedef struct fixture {
    int n_rows, n_vocab;
    float *logits; // [n_rows][n_vocab]
    float *gpu_logits;
    sl_sampling params[MAX_ROWS];
    sl_sampler *samplers[MAX_ROWS];
    sl_row rows[MAX_ROWS], *gpu_rows;
    sl_cuda_sampling *gpu_sampling;
    int32_t *gpu_ids, *gpu_host_ids;
    void *ws;
} fixture;

static fixture fixture_new(int n_rows, int n_vocab, const sl_sampling *params) {
    fixture f = {.n_rows = n_rows, .n_vocab = n_vocab};
    size_t size = (size_t)n_rows * n_vocab * sizeof(float);
    sl_cuda_sampling sampling[MAX_ROWS];
    f.logits = malloc(size);
    f.gpu_logits = gpu_new(size);
    f.gpu_rows = gpu_new(sizeof f.rows);
    f.gpu_ids = gpu_new(MAX_ROWS * sizeof(int32_t));
    f.gpu_host_ids = gpu_new(MAX_ROWS * sizeof(int32_t));
    f.ws = gpu_new(sl_cuda_sampler_workspace(n_rows, n_vocab));
    for (int i = 0; i < n_rows; i++) {
        f.params[i] = params[i];
        CHECK(sl_cuda_can_sample(&params[i], n_vocab));
        CHECK_OK(sl_sampler_new(&params[i], n_vocab, &f.samplers[i], &err), err);
        sampling[i] = sl_cuda_sampling_of(&params[i]);
    }
    f.gpu_sampling = gpu_copy(sampling, n_rows * sizeof *sampling);
    return f;
}

static void fixture_free(fixture *f) {
    for (int i = 0; i < f->n_rows; i++) sl_sampler_free(f->samplers[i]);
    free(f->logits);
    gpu_free_all();
}

static void upload(void *to, const void *from, size_t size) {
    gpu_sync("kernels before an upload");
    if (cudaMemcpy(to, from, size, cudaMemcpyHostToDevice) != cudaSuccess) FAIL("cudaMemcpy");
}

static void upload_logits(fixture *f) {
    upload(f->gpu_logits, f->logits, (size_t)f->n_rows * f->n_vocab * sizeof(float));
}

static void launch(const fixture *f, cudaStream_t stream) {
    sl_cuda_sample(f->gpu_logits, f->gpu_rows, f->gpu_sampling, f->n_rows, f->n_vocab, f->gpu_ids, f->gpu_host_ids, f->ws,
                   stream);
}

static void gpu_sample(fixture *f, int32_t *ids) {
    upload(f->gpu_rows, f->rows, sizeof f->rows);
    launch(f, 0);
    gpu_read(ids, f->gpu_ids, f->n_rows * sizeof *ids);
}

// Samples one batch on both devices. Returns the number of tokens that differ.
static int compare(fixture *f) {
    int32_t ids[MAX_ROWS];
    int differ = 0;
    gpu_sample(f, ids);
    for (int i = 0; i < f->n_rows; i++) {
        const sl_row *row = &f->rows[i];
        int32_t want = sl_sampler_sample(f->samplers[i], f->logits + (size_t)i * f->n_vocab, row->sequence, row->position);
        if (ids[i] == want) continue;
        differ++;
        const sl_sampling *p = &f->params[i];
        printf("      vocabulary %d, row %d: temp %g, top-k %d, top-p %g, min-p %g, seed %u, sequence %u, position %d: "
               "token %d, the CPU has %d\n",
               f->n_vocab, i, p->temp, p->top_k, p->top_p, p->min_p, p->seed, row->sequence, row->position, ids[i], want);
    }
    return differ;
}

static sl_sampling settings(float temp, int top_k, float top_p, float min_p) {
    return (sl_sampling){.temp = temp, .top_k = top_k, .top_p = top_p, .min_p = min_p, .repeat_penalty = 1, .seed = 17};
}

// Kinds of logits: normal; peaked, as a model's logits are (a few far above the others); few distinct values; all equal;
// rising; falling; of all magnitudes; half of them banned.
enum { NORMAL, PEAKED, TIED, EQUAL, RISING, FALLING, WIDE, BANNED, N_KINDS };
static void fill(float *x, int n, int kind, uint64_t *state) {
    for (int i = 0; i < n; i++) {
        double g = test_normal(state);
        if (kind == NORMAL) x[i] = (float)(2 * g);
        if (kind == PEAKED) x[i] = (float)(-4 + 1.8 * g - 3 * log(1 - test_uniform(state)) * (i % 97 == 5));
        if (kind == TIED) x[i] = (float)(floor(2 * g) / 2);
        if (kind == EQUAL) x[i] = -1.5f;
        if (kind == RISING) x[i] = (float)(8.0 * i / n);
        if (kind == FALLING) x[i] = (float)(-8.0 * i / n);
        if (kind == WIDE) x[i] = (float)(g * exp(20 * test_normal(state)));
        if (kind == BANNED) x[i] = i % 4096 < 2048 ? -INFINITY : (float)g;
    }
}

static const int vocabularies[] = {1, 2, 255, 1000, 1024, 1025, 32000, 128256, 262208};
enum { N_VOCABULARIES = sizeof vocabularies / sizeof *vocabularies };

static void greedy(void) {
    sl_sampling params[MAX_ROWS];
    uint64_t state = test_seed;
    for (int i = 0; i < MAX_ROWS; i++)
        params[i] = settings(i % 4 == 3, i % 8 == 7 ? 40 : 0, 1, 0); // every fourth row is sampled
    for (int v = 0; v < N_VOCABULARIES; v++) {
        int n = vocabularies[v];
        fixture f = fixture_new(MAX_ROWS, n, params);
        for (int i = 0; i < MAX_ROWS; i++) {
            float *x = f.logits + (size_t)i * n;
            fill(x, n, NORMAL, &state);
            if (i / 4 == 1) // mostly NaN and -inf, with equal best logits
                for (int j = 0; j < n; j++) x[j] = j % 3 ? (j % 2 ? NAN : -INFINITY) : (float)(j / 600 % 3);
            if (i == 8 || i == 11)
                for (int j = 0; j < n; j++) x[j] = j % 2 ? NAN : -INFINITY;
            if (i == 9)
                for (int j = 0; j < n; j++) x[j] = -3;
            if (i == 10)
                for (int j = 0; j < n; j++) x[j] = j % 2 ? -0.0f : 0.0f;
            if (i == 12 || i == 15) x[n / 2] = x[n - 1] = INFINITY;
            if (i == 13) x[n / 3] = -INFINITY, x[n - 1] = x[n / 2] = 50;
        }
        upload_logits(&f);
        CHECK_INT(compare(&f), 0);
        fixture_free(&f);
    }
}

// Batches of rows with different settings, over all kinds of logits. Each batch has new sequences and positions.
static int mixed_samples(int n_rows, int n_vocab, const sl_sampling *params, int n_batches, int *n_samples, uint64_t *state) {
    fixture f = fixture_new(n_rows, n_vocab, params);
    int differ = 0;
    for (int b = 0; b < n_batches; b++) {
        if (b % 8 == 0) {
            for (int i = 0; i < n_rows; i++) fill(f.logits + (size_t)i * n_vocab, n_vocab, (b / 8 + i) % N_KINDS, state);
            upload_logits(&f);
        }
        for (int i = 0; i < n_rows; i++)
            f.rows[i] = (sl_row){.position = (int32_t)(test_uniform(state) * 131072), .sequence = (uint32_t)(b * 31 + i)};
        differ += compare(&f);
        *n_samples += n_rows;
    }
    fixture_free(&f);
    return differ;
}

static int batches_of(int n_vocab, int most) { // the CPU takes tens of milliseconds to sort the largest vocabularies
    return n_vocab > 200000 ? 4 : n_vocab > 50000 ? 16 : most;
}

static void short_lists(void) { // top-k leaves at most 1,024 candidates: the same additions as on the CPU
    sl_sampling params[MAX_ROWS] = {
        settings(0.8f, 40, 0.95f, 0.05f), settings(0, 0, 1, 0),          settings(1, 1, 1, 0),
        settings(1, 2, 0.5f, 0),          settings(0.7f, 40, 1, 0),      settings(1.5f, 64, 0.9f, 0),
        settings(1, 65, 1, 0.1f),         settings(2, 1024, 1, 0),       settings(1, 1023, 0.99f, 0.001f),
        settings(10, 512, 0.999f, 0),     settings(0.05f, 100, 1, 0),    settings(1e6f, 300, 0.3f, 0),
        settings(1, 1000, 0, 0),          settings(0.9f, 7, 0.6f, 0.2f), settings(1, 40, 1, 1),
        settings(1e-6f, 40, 0.95f, 0),
    };
    uint64_t state = test_seed;
    int differ = 0, n_samples = 0;
    for (int i = 0; i < MAX_ROWS; i++) params[i].seed = (uint32_t)test_seed + i;
    for (int v = 0; v < N_VOCABULARIES; v++)
        differ += mixed_samples(MAX_ROWS, vocabularies[v], params, batches_of(vocabularies[v], 120), &n_samples, &state);
    for (int n_rows = 1; n_rows < MAX_ROWS; n_rows++) differ += mixed_samples(n_rows, 5000, params, 8, &n_samples, &state);
    printf("      %d of %d tokens differ\n", differ, n_samples);
    CHECK_INT(differ, 0);
}

// More candidates: the sums over a row have another order. A token may differ when the random number lies within about 1e-14 of
// the border between two tokens. With 10,000 samples and 1e5 borders the probability of any difference is at most 1e-5.
static void long_lists(void) {
    sl_sampling params[MAX_ROWS] = {
        settings(1, 0, 1, 0),   settings(1, 0, 0.95f, 0),        settings(0.8f, 0, 1, 0.05f), settings(1, 0, 0.9f, 0.02f),
        settings(2, 0, 1, 0),   settings(0.6f, 0, 0.999f, 0),    settings(1, 5000, 1, 0),     settings(1, 5000, 0.8f, 0.001f),
        settings(100, 0, 1, 0), settings(1, 1025, 0.999f, 0),    settings(1e6f, 0, 0.5f, 0),  settings(0.3f, 0, 1, 1e-6f),
        settings(1, 0, 0, 0),   settings(1.5f, 0, 0.99f, 1e-4f), settings(1, 1 << 30, 1, 0),  settings(1e-6f, 0, 1, 0),
    };
    uint64_t state = test_seed;
    int differ = 0, n_samples = 0;
    for (int i = 0; i < MAX_ROWS; i++) params[i].seed = (uint32_t)test_seed + i;
    for (int v = 0; v < N_VOCABULARIES; v++)
        differ += mixed_samples(MAX_ROWS, vocabularies[v], params, batches_of(vocabularies[v], 64), &n_samples, &state);
    printf("      %d of %d tokens differ\n", differ, n_samples);
    CHECK_INT(differ, 0);
}

// One captured graph works for other positions and logits. Equal inputs give equal tokens.
static void graph_replay(void) {
    enum { N = 32000, ROWS = 4 };
    const sl_sampling params[ROWS] = {settings(0, 0, 1, 0), settings(1, 40, 0.95f, 0.05f), settings(1, 0, 0.9f, 0),
                                      settings(2, 0, 1, 0)};
    uint64_t state = test_seed;
    int32_t ids[2][ROWS];
    int changed = 0;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    fixture f = fixture_new(ROWS, N, params);
    CHECK(cudaStreamCreate(&stream) == cudaSuccess);
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
    launch(&f, stream);
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    CHECK(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
    for (int step = 0; step < 50; step++) {
        for (int i = 0; i < ROWS; i++) {
            fill(f.logits + (size_t)i * N, N, NORMAL, &state);
            f.rows[i] = (sl_row){.position = step, .sequence = (uint32_t)i};
        }
        upload_logits(&f);
        upload(f.gpu_rows, f.rows, sizeof f.rows);
        for (int again = 0; again < 2; again++) {
            CHECK(cudaGraphLaunch(exec, stream) == cudaSuccess);
            gpu_read(ids[again], f.gpu_ids, sizeof ids[again]);
        }
        CHECK(!memcmp(ids[0], ids[1], sizeof ids[0]));
        CHECK_INT(compare(&f), 0);
        gpu_read(ids[1], f.gpu_ids, sizeof ids[1]);
        CHECK(!memcmp(ids[0], ids[1], sizeof ids[0]));
        for (int i = 0; i < ROWS; i++) f.rows[i].position += 1000; // the same logits at other positions
        upload(f.gpu_rows, f.rows, sizeof f.rows);
        CHECK(cudaGraphLaunch(exec, stream) == cudaSuccess);
        gpu_read(ids[1], f.gpu_ids, sizeof ids[1]);
        CHECK_INT(ids[1][0], ids[0][0]);
        changed += ids[1][3] != ids[0][3];
    }
    CHECK(changed > 40);
    cudaGraphExecDestroy(exec), cudaGraphDestroy(graph), cudaStreamDestroy(stream);
    fixture_free(&f);
}

// The distribution of the tokens, without the CPU: Pearson's chi-square is below its mean (cells - 1) plus 5 standard
// deviations.
static void distribution(void) {
    enum { N = 1500, BATCHES = 1500, SAMPLES = BATCHES * MAX_ROWS };
    sl_sampling params[MAX_ROWS];
    double mass[N], sum = 0, chi = 0, rest = 0;
    int count[N] = {0}, cells = 0, rest_count = 0;
    int32_t ids[MAX_ROWS];
    uint64_t state = test_seed;
    for (int i = 0; i < MAX_ROWS; i++) params[i] = settings(1.2f, 0, 1, 0), params[i].seed = (uint32_t)test_seed;
    fixture f = fixture_new(MAX_ROWS, N, params);
    fill(f.logits, N, NORMAL, &state);
    for (int i = 1; i < MAX_ROWS; i++) memcpy(f.logits + i * N, f.logits, N * sizeof(float));
    upload_logits(&f);
    for (int i = 0; i < N; i++) sum += mass[i] = exp(f.logits[i] / 1.2);
    for (int b = 0; b < BATCHES; b++) {
        for (int i = 0; i < MAX_ROWS; i++) f.rows[i] = (sl_row){.position = b, .sequence = (uint32_t)i};
        gpu_sample(&f, ids);
        for (int i = 0; i < MAX_ROWS; i++) count[ids[i]]++;
    }
    for (int i = 0; i < N; i++) {
        double want = mass[i] / sum * SAMPLES;
        if (want < 5)
            rest += want, rest_count += count[i];
        else
            chi += (count[i] - want) * (count[i] - want) / want, cells++;
    }
    chi += (rest_count - rest) * (rest_count - rest) / rest, cells++;
    printf("      chi-square %.1f over %d cells, seed %llu\n", chi, cells, (unsigned long long)test_seed);
    CHECK(chi < cells + 5 * sqrt(2.0 * cells));
    fixture_free(&f);
}

static void biases(void) { // greedy and sampled rows; biases of -inf (bans), a ban of an infinite logit, two biases for one id
    enum { N = 3000 };
    static const sl_logit_bias bias[] = {{5, 2},           {0, -INFINITY}, {2999, 9},     {1024, -3},
                                         {1023, INFINITY}, {5, -1},        {7, -INFINITY}};
    sl_sampling params[MAX_ROWS];
    uint64_t state = test_seed;
    for (int i = 0; i < MAX_ROWS; i++) {
        params[i] = settings(i % 2 ? 0.7f : 0, i % 3 ? 0 : 40, i % 5 ? 1 : 0.9f, 0);
        params[i].bias = bias;
        params[i].n_bias = i < 14 ? i % 8 == 7 ? 4 : i % 8 : 7;
    }
    fixture f = fixture_new(MAX_ROWS, N, params);
    for (int i = 0; i < MAX_ROWS; i++) {
        float *x = f.logits + (size_t)i * N;
        fill(x, N, PEAKED, &state);
        x[0] = 30, x[7] = i % 4 == 3 ? INFINITY : 20;
    }
    upload_logits(&f);
    CHECK_INT(compare(&f), 0);
    fixture_free(&f);
}

static void can_sample(void) {
    const sl_logit_bias bias = {1, 2};
    sl_sampling p = sl_sampling_default();
    CHECK(sl_cuda_can_sample(&p, 128256));
    CHECK(!sl_cuda_can_sample(&p, SL_CUDA_SAMPLER_VOCAB + 1));
    p.presence_penalty = 0.5f;
    CHECK(!sl_cuda_can_sample(&p, 128256));
    p.repeat_last_n = 0; // no last tokens, so no penalty
    CHECK(sl_cuda_can_sample(&p, 128256));
    p.bias = &bias, p.n_bias = SL_CUDA_SAMPLER_BIASES;
    CHECK(sl_cuda_can_sample(&p, 128256));
    p.n_bias++;
    CHECK(!sl_cuda_can_sample(&p, 128256));
}

// A row with a logit that is NaN or infinite reports -1 to the host. A token is still sampled for this row, and the other rows
// do not change.
static void not_finite_rows_report(void) {
    static const float values[] = {NAN, INFINITY, -INFINITY};
    enum { ROWS = 4, VOCAB = 5000 };
    uint64_t state = test_seed;
    for (int greedy = 0; greedy < 2; greedy++)
        for (int k = 0; k < 3; k++) {
            sl_sampling params[ROWS];
            int32_t ids[ROWS], host_ids[ROWS], bad = k + 1;
            for (int i = 0; i < ROWS; i++) params[i] = settings(greedy ? 0 : 1, i % 2 ? 40 : 0, 0.95f, 0);
            fixture f = fixture_new(ROWS, VOCAB, params);
            fill(f.logits, ROWS * VOCAB, NORMAL, &state);
            for (int i = 0; i < ROWS; i++) f.rows[i] = (sl_row){.position = i, .sequence = 9};
            f.logits[bad * VOCAB + 1030 * k + 7] = values[k];
            upload_logits(&f);
            gpu_sample(&f, ids);
            gpu_read(host_ids, f.gpu_host_ids, sizeof host_ids);
            for (int i = 0; i < ROWS; i++) {
                CHECK(ids[i] >= 0 && ids[i] < VOCAB);
                CHECK_INT(host_ids[i], i == bad ? -1 : ids[i]);
            }
            fixture_free(&f);
        }
}

enum { LANES = 4, LANE_STEPS = 6 };

// Runs lanes [from, end) together. A lane's ids and the hash of its last logits go to ids and hashes.
static void run_lanes(int from, int end, int32_t ids[LANES][LANE_STEPS], uint64_t hashes[LANES]) {
    model_fixture r = model_fixture_load("models/tiny", "santa-sys:S=32",
                                         (sl_engine_options){.device = "cuda", .n_ctx = 512, .n_sequences = LANES, .seed = 3});
    static sl_logit_bias many[SL_CUDA_SAMPLER_BIASES + 1];
    for (int i = 0; i <= SL_CUDA_SAMPLER_BIASES; i++) many[i] = (sl_logit_bias){2 * i, i % 5 ? -2 : 3};
    sl_sampling params[LANES] = {settings(0, 0, 1, 0), settings(0.9f, 40, 1, 0), settings(0, 0, 1, 0),
                                 settings(0.9f, 0, 0.9f, 0)};
    params[1].repeat_penalty = 1.5f, params[1].repeat_last_n = -1;
    params[2].bias = many, params[2].n_bias = SL_CUDA_SAMPLER_BIASES + 1;
    sl_session *sessions[LANES];
    sl_sampler *samplers[LANES];
    int n = end - from;
    uint32_t allowed[32] = {0}; // every third token of the model's 1,024
    CHECK(r.n_vocab == 1024);
    for (int i = 0; i < r.n_vocab; i += 3) allowed[i / 32] |= 1u << i % 32;
    for (int i = 0; i < n; i++) {
        int32_t *prompt = test_ids(40 + from + i, r.n_vocab, test_seed + (uint64_t)(from + i));
        sessions[i] = model_fixture_session(&r, (uint32_t)(from + i));
        CHECK_OK(sl_prefill(sessions[i], prompt, 40 + from + i, NULL, &err), err);
        CHECK_OK(sl_sampler_new(&params[from + i], r.n_vocab, &samplers[i], &err), err);
        for (int j = 0; j < 40 + from + i; j++) CHECK_OK(sl_sampler_accept(samplers[i], prompt[j], &err), err);
        if (from + i != 2) CHECK_OK(sl_sampler_allow(samplers[i], allowed, &err), err);
        free(prompt);
    }
    for (int step = 0; step < LANE_STEPS; step++) {
        int32_t next[LANES];
        CHECK_OK((step + 1 < LANE_STEPS ? sl_step : sl_sample)(sessions, n, samplers, next, &err), err);
        for (int i = 0; i < n; i++) {
            ids[from + i][step] = next[i];
            CHECK(from + i == 2 || next[i] % 3 == 0);
            CHECK_OK(sl_sampler_accept(samplers[i], next[i], &err), err);
        }
    }
    for (int i = 0; i < n; i++) {
        hashes[from + i] = sl_logits_hash(sl_session_logits(sessions[i], NULL), r.n_vocab);
        sl_sampler_free(samplers[i]), sl_session_free(sessions[i]);
    }
    model_fixture_close(&r);
}

// A batch where the GPU samples two lanes, and the host two others, with penalties and with more biases than a GPU takes; three
// lanes sample from allowed tokens only. Each lane has the ids and logits that it has alone.
static void shared_with_the_host(void) {
    int32_t together[LANES][LANE_STEPS], alone[LANES][LANE_STEPS];
    uint64_t hashes[LANES], hashes_alone[LANES];
    run_lanes(0, LANES, together, hashes);
    for (int i = 0; i < LANES; i++) run_lanes(i, i + 1, alone, hashes_alone);
    CHECK(!memcmp(together, alone, sizeof alone) && !memcmp(hashes, hashes_alone, sizeof hashes));
}
#endif

static const test_case cases[] = {
    GPU_CASE("not-finite-rows-report", not_finite_rows_report),
    GPU_CASE("shared-with-the-host", shared_with_the_host),
    GPU_CASE("can-sample", can_sample),
    GPU_CASE("greedy", greedy),
    GPU_CASE("short-lists", short_lists),
    GPU_CASE("long-lists", long_lists),
    GPU_CASE("graph-replay", graph_replay),
    GPU_CASE("distribution", distribution),
    GPU_CASE("biases", biases),
    {0},
};
const test_suite suite_cuda_sampler = {"cuda_sampler", cases};
