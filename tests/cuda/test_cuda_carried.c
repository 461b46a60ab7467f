// tests/cuda/test_cuda_carried.c - thresholds that a layer carries from step to step on a GPU
// (attention/cuda/santa/carried.cuh). The draws and the steps of the heads are the CPU's, from the masses that the kernel
// stored and its threshold. Thresholds follow threshold.h. The batch and the slot change no bit. Stated errors of a layer hold.
#include "tests/support/gpu.h"

#ifdef SLEIGH_CUDA
#include "tests/support/decode_check.h"
#include "tests/support/draw_inputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- steps ----

static sl_threshold_step sum_of_steps(const decode_fixture *r, int s) {
    int n = r->c->geom.n_heads;
    sl_threshold_step sum = {0}, *steps = malloc(n * sizeof *steps);
    fixture_steps(r, s, steps);
    for (int h = 0; h < n; h++) {
        sum.total += steps[h].total, sum.rows += steps[h].rows, sum.light += steps[h].light, sum.k += steps[h].k;
        sum.kappa = fmax(sum.kappa, steps[h].kappa);
        sum.spared_k += steps[h].spared_k, sum.spared_B += steps[h].spared_B;
        sum.B += steps[h].B, sum.trace_squares += steps[h].trace_squares, sum.squares += steps[h].squares;
    }
    free(steps);
    return sum;
}

static void check_on(ref_cache *c, const char *attn, int n_before) {
    decode_fixture r = fixture_new(c, attn, 23);
    fixture_launch_after(&r, n_before);
    fixture_check_masses(&r);
    fixture_check(&r);
    fixture_free(&r);
}

static void check(int n_heads, int n_kv_heads, int dim, int n_seqs, const int *lengths, double scale, const char *attn) {
    ref_cache c = ref_cache_new(n_heads, n_kv_heads, dim, n_seqs, lengths, scale, test_seed);
    check_on(&c, attn, 3);
    ref_cache_free(&c);
}

// A context of at most 4 S rows searches in every step.
static void lengths_of_context(void) {
    static const int all[] = {1, 2, 31, 255, 256, 257, 512, 513, 514, 515, 1000, 4097, 8192, 32768, 32769, 131072};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        double scale = i % 3 == 0 ? 0 : i % 3 == 1 ? 1 : 4;
        check(4, 1, all[i] > 50000 ? 64 : 128, 1, &all[i], scale, "santa-pps:S=128:budget=carried");
        check(4, 1, 64, 1, &all[i], scale, "santa-pps:S=16:budget=carried:pps=sys");
    }
}

static void shapes_of_model(void) {
    static const int dims[] = {64, 80, 96, 128}, groups[] = {1, 4, 8}, n[] = {700, 1, 2049};
    for (int d = 0; d < 4; d++)
        for (int g = 0; g < 3; g++) check(2 * groups[g], 2, dims[d], 3, n, 2, "santa-pps:S=64:budget=carried");
}

static void samples(void) {
    static const int n = 9000;
    static const char *const specs[] = {"santa-pps:S=1:budget=carried", "santa-pps:S=3:budget=carried",
                                        "santa-pps:S=300:budget=carried", "santa-pps:S=1000:budget=carried",
                                        "santa-pps:S=2000:budget=carried"};
    for (int i = 0; i < 5; i++) check(4, 2, 128, 1, &n, i % 2 ? 1 : 3, specs[i]);
}

// More heads than multiprocessors: the heads of the last sequences have several thread blocks, the others one.
static void late_heads(void) {
    static const int n[] = {700, 1500, 300, 600, 2300};
    check(32, 8, 64, 5, n, 1, "santa-is:proposal=int8:epsilon=0.03");
}

// Sizes of a stated error from quantised keys. With few rows, heads take every row. The steps before the newest one have a
// built page: the GPU's plan of a search can differ from the CPU's by a draw.
static void importance_stated(void) {
    static const int all[] = {1, 256, 260, 513, 1000, 8192, 32769}, ragged[] = {1, 5000, 256, 261, 31, 9000};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        double scale = i % 3 == 0 ? 0 : i % 3 == 1 ? 1 : 4;
        check(8, 2, 128, 1, &all[i], scale, "santa-is:proposal=int8:epsilon=0.3");
        check(4, 4, 64, 1, &all[i], scale, "santa-is:proposal=int8:epsilon=0.02:bound=clt");
    }
    check(8, 1, 80, 6, ragged, 3, "santa-is:proposal=int8:epsilon=0.2");
    check(6, 2, 96, 6, ragged, 1, "santa-is:proposal=int8:epsilon=0.5:bound=clt");
}

// ---- thresholds ----

// Compares the threshold of each step with the rule of threshold.h, computed on the host from the steps of the step before.
// nvcc contracts products and sums, so the last bits may differ.
static void thresholds_follow_the_rule(void) {
    static const int n[] = {6000, 600, 300};
    static const char *const specs[] = {"santa-pps:S=100:budget=carried", "santa-pps:epsilon=0.3:certify=layer",
                                        "santa-pps:epsilon=0.3:certify=layer:bound=clt",
                                        "santa-pps:epsilon=0.3:certify=layer:bound=bernstein",
                                        "santa-is:proposal=int8:epsilon=0.3"};
    for (int k = 0; k < 5; k++) {
        ref_cache c = ref_cache_new(8, 2, 64, 3, n, 2, test_seed);
        ref_add_to_values(&c, 1);
        decode_fixture r = fixture_new(&c, specs[k], 3);
        sl_threshold before[3];
        sl_threshold_step sum[3];
        for (int back = 6; back >= 0; back--) {
            fixture_go_back(&r, back);
            fixture_decode(&r);
            for (int s = 0; s < 3; s++) {
                sl_threshold t = {.margin = 0.8, .spread = 1}, got = fixture_threshold(&r, s);
                if (back < 6 && k == 0) t = before[s], sl_threshold_budget(&t, &sum[s], 100 * 8);
                if (back < 6 && k > 0) {
                    sl_stated stated = sl_stated_of(0.05, (sl_stated_bound)sl_attn_get(&r.spec, "bound"));
                    t = before[s];
                    sl_threshold_error(&t, &sum[s], &stated, 0.3 / 1.3, 0.75);
                }
                if (k == 0 && r.rows[s].position < 400) t.kappa = 0;
                CHECK_INT(got.next, back < 6 ? r.rows[s].position : 0);
                CHECK_NEAR(got.kappa, t.kappa, 1e-13 * t.kappa);
                CHECK_NEAR(got.margin, t.margin, 1e-13);
                CHECK_NEAR(got.spread, t.spread, 1e-13);
                CHECK(back == 6 || (k == 0 && n[s] == 300) || got.kappa > 0);
                before[s] = got, sum[s] = sum_of_steps(&r, s);
            }
        }
        fixture_free(&r);
        ref_cache_free(&c);
    }
}

// The rows of a layer approach S for each head.
static void rows_approach_the_budget(void) {
    static const int n = 9000;
    ref_cache c = ref_cache_new(16, 4, 64, 1, &n, 2, test_seed);
    decode_fixture r = fixture_new(&c, "santa-pps:S=100:budget=carried", 3);
    fixture_launch_after(&r, 30);
    double rows = sum_of_steps(&r, 0).rows / 16;
    printf("      %.1f expected rows a head, %.1f draws\n", rows, r.stats.samples / 16.0);
    CHECK(rows > 95 && rows < 105);
    CHECK(fabs(r.stats.samples / 16.0 - rows) < 2); // the last steps of kappa draw a row or none
    fixture_free(&r);
    ref_cache_free(&c);
}

// A head that would take more than 4 S rows searches for 4 S draws. Every head but the first one has nearly all its mass on one
// row, so the threshold that gives them S rows is too low for the first head.
static void a_head_at_its_ceiling(void) {
    static const int n = 5000;
    ref_cache c = ref_cache_new(16, 16, 64, 1, &n, 60, test_seed);
    for (int d = 0; d < 64; d++) c.q[d] *= 0.002f;
    decode_fixture r = fixture_new(&c, "santa-pps:S=32:budget=carried", 3);
    sl_threshold_step steps[16];
    fixture_launch_after(&r, 30);
    fixture_check(&r);
    fixture_steps(&r, 0, steps);
    CHECK(steps[0].rows == 128);
    printf("      %.0f rows in head 0, %.1f in head 1\n", steps[0].rows, steps[1].rows);
    fixture_free(&r);
    ref_cache_free(&c);
}

// A step that does not follow the step before searches: after a cut, in a fork (both clear the state), or after a prefill.
static void a_gap_searches(void) {
    static const int n = 3000;
    ref_cache c = ref_cache_new(8, 2, 64, 1, &n, 2, test_seed);
    decode_fixture r = fixture_new(&c, "santa-pps:S=64:budget=carried", 3);
    size_t bytes = 8 * 64 * sizeof(bf16);
    bf16 *first = malloc(bytes);
    fixture_launch(&r);
    memcpy(first, r.out, bytes);
    CHECK(fixture_threshold(&r, 0).kappa == 0);
    fixture_seed(&r, 3); // clears the state
    for (int back = 9; back > 4; back--) {
        fixture_go_back(&r, back);
        fixture_decode(&r);
        CHECK((fixture_threshold(&r, 0).kappa > 0) == (back < 9));
    }
    fixture_go_back(&r, 0);
    fixture_launch(&r);
    CHECK(fixture_threshold(&r, 0).kappa == 0 && !memcmp(first, r.out, bytes));
    fixture_decode(&r); // a step twice
    CHECK(!memcmp(first, r.out, bytes));
    free(first);
    fixture_free(&r);
    ref_cache_free(&c);
}

// A head with a score that is not a number attends to every row. It says nothing about the next threshold.
static void a_head_out_of_range(void) {
    static const int n = 3000;
    ref_cache c = ref_cache_new(8, 2, 64, 1, &n, 2, test_seed);
    c.q[5 * 64 + 7] = NAN;
    c.q[6 * 64 + 3] = 1e30f;
    decode_fixture r = fixture_new(&c, "santa-pps:S=64:budget=carried", 3);
    sl_threshold_step steps[8], none = {0};
    fixture_launch_after(&r, 4);
    fixture_steps(&r, 0, steps);
    for (int h = 0; h < 8; h++) {
        CHECK(!memcmp(&steps[h], &none, sizeof none) == (h == 5 || h == 6));
        CHECK(isnan(sl_bf16_to_f32(r.out[h * 64])) == (h == 5));
    }
    CHECK_INT(r.stats.fallbacks, 2);
    CHECK(fixture_threshold(&r, 0).kappa > 0 && isfinite(fixture_threshold(&r, 0).kappa));
    fixture_free(&r);
    ref_cache_free(&c);
}

// ---- equal bits ----

// Sequences in a batch have the bits of the same sequences alone, in another order. Their thresholds are equal too.
static void compare_with_alone(int n_heads, int n_kv_heads, int n_seqs, const int *n, double scale, const char *attn) {
    enum { DIM = 64, STEPS = 4 };
    size_t each = (size_t)n_heads * DIM;
    ref_cache c = ref_cache_new(n_heads, n_kv_heads, DIM, n_seqs, n, scale, test_seed);
    decode_fixture r = fixture_new(&c, attn, 7);
    bf16 *together = malloc(n_seqs * each * sizeof *together);
    int carries = sl_carries_threshold(&r.spec);
    sl_threshold kept[FIXTURE_SEQS] = {0};
    fixture_launch_after(&r, STEPS);
    memcpy(together, r.out, n_seqs * each * sizeof *together);
    for (int s = 0; s < n_seqs && carries; s++) kept[s] = fixture_threshold(&r, s);
    fixture_seed(&r, 7); // clears the state
    for (int s = n_seqs - 1; s >= 0; s--) {
        for (int back = STEPS; back >= 0; back--) {
            fixture_go_back(&r, back);
            fixture_decode_alone(&r, s);
        }
        sl_threshold t = carries ? fixture_threshold(&r, s) : kept[s];
        if (memcmp(r.out, together + s * each, each * sizeof *together) || memcmp(&t, &kept[s], sizeof t))
            FAIL("%s, sequence %d: other bits than in the batch", attn, s);
    }
    free(together);
    fixture_free(&r);
    ref_cache_free(&c);
}

static void batch_and_slot(void) {
    static const char *const specs[] = {"santa-pps:S=48:budget=carried", "santa-pps:epsilon=0.3:certify=layer:bound=chi2",
                                        "santa-is:proposal=int8:epsilon=0.3"};
    static const int n[] = {2000, 700, 5000, 257};
    for (int k = 0; k < 3; k++) compare_with_alone(8, 2, 4, n, 2, specs[k]);
}

// More heads than two for each multiprocessor, with many lists: in the batch, roaming thread blocks take lists. A sequence
// alone has thread blocks of its own for the lists of a head.
static void shared_lists(void) {
    static const int n[] = {3000, 700, 5000, 1300, 2600, 4000, 900, 3300, 2000, 6000};
    compare_with_alone(32, 8, 10, n, 1, "santa-is:proposal=int8:epsilon=0.02");
    compare_with_alone(32, 8, 10, n, 1, "santa-is:S=1500:budget=even");
}

// ---- a stated error of a layer ----

// Decodes the newest rows with many seeds. Certified layers must not exceed epsilon more often than delta.
static void stated(const char *method, const char *bound, double epsilon, double delta, int like) {
    enum { HEADS = 8, DIM = 64, SEEDS = 40, BEFORE = 25 };
    static const int n = 4000;
    char attn[96];
    snprintf(attn, sizeof attn, "%s:epsilon=%g:delta=%g:bound=%s", method, epsilon, delta, bound);
    ref_cache c = ref_cache_new(HEADS, 2, DIM, 1, &n, 1.5, test_seed + like);
    ref_add_to_values(&c, like ? 0.3 : 1);
    double mu[HEADS][128], square = 0;
    int certified = 0, exceeded = 0, stated_layers = 0;
    decode_fixture r = fixture_new(&c, attn, 5);
    for (uint32_t seed = 0; seed < SEEDS; seed++) {
        fixture_seed(&r, seed);
        fixture_launch_after(&r, BEFORE);
        double off = 0;
        for (int h = 0; h < HEADS; h++) {
            if (seed == 0) fixture_error(&r, 0, h, mu[h]);
            for (int d = 0; d < DIM; d++) {
                double x = sl_bf16_to_f32(r.out[h * DIM + d]) - mu[h][d];
                off += x * x, square += seed == 0 ? mu[h][d] * mu[h][d] : 0;
            }
        }
        stated_layers += (int)r.stats.stated, certified += (int)r.stats.certified;
        exceeded += r.stats.certified && sqrt(off / square) > epsilon + 0x1p-8;
        double own = sl_attn_stats_stated_mean(&r.stats);
        CHECK(own > 0 && own < 3 * epsilon);
        CHECK(r.stats.certified == (own <= epsilon));
    }
    printf("      %s: %d of %d layers certified, %d exceed epsilon, %.0f draws a head\n", attn, certified, stated_layers,
           exceeded, r.stats.samples / (double)HEADS);
    CHECK_INT(stated_layers, SEEDS);
    CHECK(certified > 0);
    CHECK(exceeded <= 3 * delta * certified + 2);
    fixture_free(&r);
    ref_cache_free(&c);
}
static void stated_clt(void) {
    stated("santa-pps:certify=layer", "clt", 0.2, 0.1, 0);
    stated("santa-pps:certify=layer", "clt", 0.3, 0.2, 1);
}
static void stated_chi2(void) {
    stated("santa-pps:certify=layer", "chi2", 0.2, 0.2, 0);
    stated("santa-pps:certify=layer", "chi2", 0.3, 0.2, 1);
}
static void stated_bernstein(void) {
    stated("santa-pps:certify=layer", "bernstein", 0.3, 0.2, 0);
}

static void stated_importance(void) {
    stated("santa-is:proposal=int8", "clt", 0.3, 0.2, 0);
    stated("santa-is:proposal=int8", "chi2", 0.2, 0.2, 0);
    stated("santa-is:proposal=int8", "chi2", 0.3, 0.2, 1);
}

// The CPU's pairs and squares from the masses that the kernel stored. The spread of a step alone (threshold.h) may differ by a
// quarter: a draw more in the search of one head moves the points of its other draws, so that other rows are compared. The
// directions of two rows are nearly independent here, and a pair that counts as parallel adds 64 times as much as usual.
static void pairs_of(const char *attn) {
    static const int n[] = {3001, 6000};
    enum { HEADS = 16, DIM = 64, SEQS = 2 };
    ref_cache c = ref_cache_new(HEADS, 4, DIM, SEQS, n, 1.5, test_seed);
    ref_add_to_values(&c, 0.5);
    decode_fixture r = fixture_new(&c, attn, 5);
    size_t size = r.spec.method->cpu->state(&c.geom, &r.spec);
    double before[SEQS] = {1, 1}; // the smoothed spread before the step
    for (int s = 0; s < SEQS; s++) c.queries[s].state = calloc(1, size);
    for (int back = 8; back >= 0; back--) {
        fixture_go_back(&r, back);
        for (int s = 0; s < SEQS; s++) c.queries[s].position = n[s] - 1 - back, c.queries[s].kv.n_kv = n[s] - back;
        fixture_launch(&r);
        sl_attn_stats cpu = ref_decode(&c, attn, 0, SEQS, 5, FIXTURE_LAYER);
        printf("      step %d: %llu draws, on the CPU %llu; certified %llu, %llu; epsilon' %.4f, %.4f\n", 8 - back,
               (unsigned long long)r.stats.samples, (unsigned long long)cpu.samples, (unsigned long long)r.stats.certified,
               (unsigned long long)cpu.certified, sl_attn_stats_stated_mean(&r.stats), sl_attn_stats_stated_mean(&cpu));
        CHECK_INT(r.stats.stated, SEQS);
        CHECK(fabs((double)r.stats.samples / cpu.samples - 1) < 0.05);
        CHECK(fabs(sl_attn_stats_stated_mean(&r.stats) / sl_attn_stats_stated_mean(&cpu) - 1) < 0.05);
        for (int s = 0; s < SEQS; s++) {
            const sl_layer_state *state = c.queries[s].state;
            double spread = fixture_threshold(&r, s).spread; // before this step
            CHECK(back == 8 ? spread == 1 : fabs(state->threshold.spread / spread - 1) < 0.5);
            const sl_threshold_step sum = sum_of_steps(&r, s);
            double own = (state->threshold.spread - 0.7 * before[s]) / 0.3, got = sum.trace_squares / (sum.B * sum.B);
            if (!(fabs(got / own - 1) < 0.25))
                FAIL("%s, step %d, sequence %d: the spread is %.4g, on the CPU %.4g", attn, 8 - back, s, got, own);
            before[s] = state->threshold.spread;
        }
    }
    for (int s = 0; s < SEQS; s++) free(c.queries[s].state);
    fixture_free(&r);
    ref_cache_free(&c);
}
static void pairs_are_the_cpus(void) {
    pairs_of("santa-pps:epsilon=0.3:certify=layer:bound=chi2");
    pairs_of("santa-is:proposal=int8:epsilon=0.3:bound=chi2");
    pairs_of("santa-is:proposal=int8:epsilon=0.08:bound=chi2"); // thread blocks share the lists of a head
}
#endif

static const test_case cases[] = {
    GPU_CASE("lengths", lengths_of_context),
    GPU_CASE("shapes", shapes_of_model),
    GPU_CASE("samples", samples),
    GPU_CASE("santa-is-late-heads", late_heads),
    GPU_CASE("santa-is-stated", importance_stated),
    GPU_CASE("thresholds-follow-the-rule", thresholds_follow_the_rule),
    GPU_CASE("rows-approach-the-budget", rows_approach_the_budget),
    GPU_CASE("a-head-at-its-ceiling", a_head_at_its_ceiling),
    GPU_CASE("a-gap-searches", a_gap_searches),
    GPU_CASE("a-head-out-of-range", a_head_out_of_range),
    GPU_CASE("batch-and-slot", batch_and_slot),
    GPU_CASE("shared-lists", shared_lists),
    GPU_CASE("stated-clt", stated_clt),
    GPU_CASE("stated-chi2", stated_chi2),
    GPU_CASE("stated-bernstein", stated_bernstein),
    GPU_CASE("stated-importance", stated_importance),
    GPU_CASE("pairs-are-the-cpus", pairs_are_the_cpus),
    {0},
};
const test_suite suite_cuda_carried = {"cuda_carried", cases};
