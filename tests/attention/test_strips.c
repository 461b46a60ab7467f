// tests/attention/test_strips.c - how much of dense attention's mass the strongest columns and slashes hold, on the states of
// the embedded model: the shape of Figure 7 of the SampleAttention paper. The case prints the table of
// results/sparse-prefill.
//
// A column is a key, a slash an offset between query and key. For each head, the columns of the largest sums over all rows are
// kept, as many slashes, and always column 0 and offset 0. The CRA of a head is the least share of a row's mass that they hold.
#include "attention/prefill/prefill_mask.h"
#include "engine/engine.h"
#include "tests/support/run_cli.h"
#include "tests/support/task_prompt.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 2048, LAYERS = 4, HEADS = 8, N_HEADS = LAYERS * HEADS, DIM = 128, N_SHARES = 9 };
static const double shares[N_SHARES] = {0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 1};

static sl_error err;

typedef struct held { // of a head, for each share: of the rows
    double least[N_SHARES], mean[N_SHARES];
} held;

static struct {
    int n; // heads that are done
    held heads[N_HEADS];
} found;

// ---- one head ----

typedef struct strips {
    int n;
    float *mass;            // [n][n] probabilities; 0 past the diagonal
    double *column, *slash; // [n] sums over rows
} strips;

static float dot(const float *q, const bf16 *k) {
    float sum[8] = {0};
    for (int i = 0; i < DIM; i += 8)
        for (int j = 0; j < 8; j++) sum[j] += q[i + j] * sl_bf16_to_f32(k[i + j]);
    return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
}

static void fill(strips *s, const sl_mask_args *a, int head) {
    int n_kv_heads = a->geom->n_kv_heads, kv_head = head / (HEADS / n_kv_heads);
    for (int i = 0; i < s->n; i++) {
        const float *q = a->q + ((size_t)i * HEADS + head) * DIM;
        float *row = s->mass + (size_t)i * s->n, most = -INFINITY;
        double total = 0;
        for (int j = 0; j <= i; j++) {
            const bf16 *page = sl_kv_k_run(&a->kv, n_kv_heads, DIM, j / SL_PAGE, kv_head).data;
            row[j] = dot(q, page + (size_t)(j % SL_PAGE) * DIM) * sl_score_scale(DIM);
            most = row[j] > most ? row[j] : most;
        }
        for (int j = 0; j <= i; j++) total += row[j] = exp2f(row[j] - most);
        for (int j = 0; j <= i; j++) {
            row[j] = (float)(row[j] / total);
            s->column[j] += row[j], s->slash[i - j] += row[j];
        }
    }
}

static int falling(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a < b) - (a > b);
}

// The sum that the k-th largest of n sums has.
static double kth(const double *sums, int n, int k) {
    double *sorted = malloc(n * sizeof *sorted);
    memcpy(sorted, sums, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, falling);
    double x = sorted[k - 1];
    free(sorted);
    return x;
}

static void measure(const strips *s, held *out) {
    for (int r = 0; r < N_SHARES; r++) {
        int k = (int)ceil(shares[r] * s->n);
        double column = kth(s->column, s->n, k), slash = kth(s->slash, s->n, k), sum = 0, least = 1;
        for (int i = 0; i < s->n; i++) {
            double kept = 0;
            for (int j = 0; j <= i; j++)
                if (j == 0 || j == i || s->column[j] >= column || s->slash[i - j] >= slash)
                    kept += s->mass[(size_t)i * s->n + j];
            sum += kept, least = kept < least ? kept : least;
        }
        out->mean[r] = sum / s->n, out->least[r] = least;
    }
}

// ---- the heads of a prefill ----

// A method whose mask has every block, and that measures the heads on the way.
static void measure_layer(const sl_mask_args *a) {
    size_t n = (size_t)a->n_tokens;
    for (int head = 0; head < HEADS; head++) {
        strips s = {a->n_tokens, calloc(n * n, sizeof *s.mass), calloc(n, sizeof *s.column), calloc(n, sizeof *s.slash)};
        SL_CHECK(found.n < N_HEADS && s.mass && s.column && s.slash);
        fill(&s, a, head);
        measure(&s, &found.heads[found.n++]);
        free(s.mass), free(s.column), free(s.slash);
        for (int i = 0; i < a->mask->n; i++) sl_mask_add(a->mask, head, i, 0, i);
    }
}

static void prefill(void) {
    const sl_attn_ops cpu = {.mask = measure_layer};
    const sl_attn_method method = {.name = "strips", .mean = SL_MEAN_BIASED, .cpu = &cpu};
    const sl_attn_spec spec = {.method = &method};
    sl_model *model;
    sl_engine *engine;
    sl_session *session;
    sl_attn_plan plan;
    sl_ids ids = {0};
    CHECK_OK(sl_model_load(tiny(), NULL, &model, &err), err);
    task_prompt(model, "qa-2hop", TOKENS, &ids);
    const sl_engine_options options = {.n_ctx = TOKENS, .n_threads = 1};
    CHECK_OK(sl_engine_new(model, &options, &engine, &err), err);
    CHECK_OK(sl_attn_plan_init(&plan, LAYERS, &spec, &err), err);
    CHECK_OK(sl_engine_set_prefill(engine, &plan, TOKENS, &err), err);
    CHECK_OK(sl_session_new(engine, 0, &session, &err), err);
    CHECK_OK(sl_prefill(session, ids.data, (int)ids.n, NULL, &err), err);
    sl_session_free(session);
    sl_engine_free(engine);
    sl_model_free(model);
    sl_attn_plan_free(&plan);
    sl_ids_free(&ids);
}

// Quantile q of a figure over the heads.
static double over_heads(int is_least, int r, double q) {
    double x[N_HEADS];
    for (int h = 0; h < N_HEADS; h++) x[h] = is_least ? found.heads[h].least[r] : found.heads[h].mean[r];
    qsort(x, N_HEADS, sizeof *x, falling);
    return x[(int)((1 - q) * (N_HEADS - 1) + 0.5)];
}

static void figure(void) {
    found.n = 0;
    prefill();
    CHECK_INT(found.n, N_HEADS);
    printf("      | columns and slashes, each %% | CRA %%: median head | worst head | mean over rows %%: median head | worst "
           "head |\n");
    for (int r = 0; r < N_SHARES; r++)
        printf("      | %g | %.1f | %.1f | %.1f | %.1f |\n", 100 * shares[r], 100 * over_heads(1, r, 0.5),
               100 * over_heads(1, r, 0), 100 * over_heads(0, r, 0.5), 100 * over_heads(0, r, 0));
    CHECK(over_heads(0, 2, 0.5) > 0.5); // 1% of the strips hold most of the mass of the median head
    for (int h = 0; h < N_HEADS; h++) {
        const held *x = &found.heads[h];
        CHECK_NEAR(x->least[N_SHARES - 1], 1, 1e-4); // all strips hold the whole mass
        for (int r = 0; r < N_SHARES; r++) {
            CHECK(x->least[r] <= x->mean[r] && x->mean[r] <= 1 + 1e-4);
            // More strips hold more, and a share of strips holds more than that share of the mass.
            if (r) CHECK(x->least[r] >= x->least[r - 1] && x->mean[r] >= x->mean[r - 1]);
            CHECK(x->mean[r] >= shares[r] - 1e-4);
        }
    }
}

static const test_case cases[] = {{"figure", NEEDS_SPEED, figure}, {0}};
extern const test_suite suite_strips;
const test_suite suite_strips = {"strips", cases};
