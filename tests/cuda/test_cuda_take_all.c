// tests/cuda/test_cuda_take_all.c - compares take-all + PPS draws on a GPU with the CPU's: rows, counts and expected counts
// from the same stored sizes.
#include "tests/support/gpu.h"

#ifdef SLEIGH_CUDA
#include "tests/support/take_all_probe.h"
#include "attention/attention_cuda.h"
#include "tests/support/draw_inputs.h"
#include "tests/support/gpu_draws.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PROBLEMS = 16 };

typedef struct problem {
    sl_masses size;
    int S, shared, most; // most: sizes that can be listed (take_marked.cuh)
    double alpha;
    sl_rng_id id;
} problem;

// Compares the GPU's draws with the CPU's. When light sizes are only a few units of mass, rounding decides: the CPU orders rows
// by rank, and rows of equal rank may differ by one unit.
static void check(const problem *p, const int *result, uint64_t light, const int32_t *row, const float *inv_pi) {
    int n = p->size.n, S = p->S;
    char what[100];
    sl_draws d = {.row = malloc(n * sizeof *d.row),
                  .count = malloc(n * sizeof *d.count),
                  .inv_pi = malloc(n * sizeof *d.inv_pi),
                  .scratch = malloc(2 * (size_t)S * sizeof *d.scratch)};
    sl_take_all want = sl_draw_take_all(&p->size, S, p->shared, sl_uniform_philox(&p->id), &d);
    for (int i = 0; i < result[0]; i++) CHECK(row[i] < n);
    // 64-bit masses cannot distinguish light rows of a few units
    if (!want.k || light / (unsigned)want.k >= 64 || light == want.light) {
        if (want.k == result[2]) CHECK(light == want.light && result[1] == want.n_heavy);
        snprintf(what, sizeof what, "n %d, S %d, %s, alpha %g", n, S, p->shared ? "sys" : "strat", p->alpha);
        check_same_draws(what, &d, row, inv_pi, result[0]);
    }
    free(d.row), free(d.count), free(d.inv_pi), free(d.scratch);
}

static void (*const on_gpu_of[])(const take_all_problem *, int) = {take_all_on_gpu, take_all_on_gpu_long};

// Draws all problems of one length, with the code for long contexts and, if their length allows it, with the code for short
// ones. Returns the number of problems whose candidates fitted in shared memory.
static int run(problem *problems, int n_problems) {
    take_all_problem on_gpu[MOST_PROBLEMS];
    int n_listed = 0;
    for (int i = 0; i < n_problems; i++) {
        problem *p = &problems[i];
        size_t most = p->size.n + p->S + 1024, n_blocks = p->size.n_blocks;
        on_gpu[i] = (take_all_problem){.mass = gpu_block_masses(&p->size),
                                       .w = gpu_copy(p->size.stored, n_blocks * SL_BLOCK * sizeof(bf16)),
                                       .n = p->size.n,
                                       .S = p->S,
                                       .shared = p->shared,
                                       .alpha = p->alpha,
                                       .id = p->id,
                                       .row = gpu_new(most * sizeof(int32_t)),
                                       .inv_pi = gpu_new(most * sizeof(float)),
                                       .result = gpu_new(4 * sizeof(int)),
                                       .light = gpu_new(sizeof(uint64_t)),
                                       .marks = gpu_new(n_blocks * TAKE_ALL_MARK),
                                       .mark_result = gpu_new(TAKE_ALL_RESULT),
                                       .sizes = gpu_new(p->most * sizeof(uint64_t)),
                                       .most = p->most,
                                       .ready = gpu_zero(2 * sizeof(int))};
        if (p->alpha > 0) sl_masses_mix(&p->size, p->alpha);
    }
    const take_all_problem *device = gpu_copy(on_gpu, n_problems * sizeof *on_gpu);
    int first = problems[0].size.n > SL_CUDA_SHORT_ROWS;
    for (int j = first * n_problems; j < 2 * n_problems; j++) {
        int i = j % n_problems;
        if (i == 0) {
            on_gpu_of[j / n_problems](device, n_problems);
            gpu_sync("take_all_on_gpu");
        }
        int result[4];
        uint64_t light;
        gpu_read(result, on_gpu[i].result, sizeof result);
        gpu_read(&light, on_gpu[i].light, sizeof light);
        int32_t *row = malloc(result[0] * sizeof *row + 1);
        float *inv_pi = malloc(result[0] * sizeof *inv_pi + 1);
        gpu_read(row, on_gpu[i].row, result[0] * sizeof *row);
        gpu_read(inv_pi, on_gpu[i].inv_pi, result[0] * sizeof *inv_pi);
        check(&problems[i], result, light, row, inv_pi);
        if (j / n_problems == first) n_listed += result[3];
        free(row), free(inv_pi);
    }
    gpu_free_all();
    return n_listed;
}

static int run_sizes(const sl_masses *size, uint32_t seed) { // every budget and kind of draw
    static const int budgets[] = {1, 2, 7, 128, 1000, 4096};
    int n_listed = 0;
    for (int mixed = 0; mixed < 2; mixed++) {
        problem problems[12];
        for (int i = 0; i < 12; i++)
            problems[i] = (problem){.size = *size,
                                    .S = budgets[i / 2],
                                    .shared = i % 2,
                                    .most = (i / 2 + seed) % 2 ? 8192 : 50, // listed sizes suffice, or they do not
                                    .alpha = mixed ? 0.01 : 0,
                                    .id = {.seed = seed, .sequence = 3, .position = 17, .layer = 2, .head = (uint32_t)i}};
        n_listed += run(problems, 12);
    }
    return n_listed;
}

static void shapes_and_lengths(void) {
    int n_listed = 0, n = 0;
    for (int k = 0; k < N_SHAPES; k++)
        for (int l = 0; l < N_LENGTHS; l++, n += 24) {
            sample s = sample_new(lengths[l], shapes[k], test_seed + 10 * k + l);
            n_listed += run_sizes(&s.sizes, (uint32_t)(100 * k + l));
            sample_free(&s);
        }
    printf("      candidates fitted in %d of %d\n", n_listed, n);
}

// With few distinct sizes, rows tie at the limit of the heavy rows.
static void ties(void) {
    static const int n[] = {40, 1000, 5000, 70000};
    for (int i = 0; i < 8; i++) {
        sample s = sample_new(n[i / 2], FLAT, test_seed + i);
        uint64_t seed = test_seed + i;
        for (int b = 0; b < s.sizes.n_blocks; b++) {
            s.sizes.ref[b] = 0;
            s.sizes.cum[b + 1] = 0;
            for (int j = 0; j < SL_BLOCK; j++) { // one value; or powers of four, with 1 first in each block
                float x = i % 2 ? ldexpf(1, -2 * (int)(8 * sqrt(test_uniform(&seed))) * (j > 0)) : 0.75f;
                bf16 w = b * SL_BLOCK + j < s.sizes.n ? sl_f32_to_bf16(x) : 0;
                s.sizes.stored[b * SL_BLOCK + j] = w;
                s.sizes.cum[b + 1] += (uint32_t)(sl_bf16_to_f32(w) * 0x1p30f);
            }
        }
        sl_masses_finish(&s.sizes);
        run_sizes(&s.sizes, 7 + i);
        sample_free(&s);
    }
}

// Contexts that only the code for long contexts supports.
static void long_contexts(void) {
    static const int n[] = {131073, 200000, 1 << 21};
    for (int i = 0; i < 3; i++) {
        sample s = sample_new(n[i], i == 1 ? FLAT : PEAKED, test_seed + i);
        run_sizes(&s.sizes, (uint32_t)i);
        sample_free(&s);
    }
}

// Sizes as attention has them: at S = 128 the candidates fit when there are more blocks than draws.
static void candidates_fit(void) {
    static const double spreads[] = {0.5, 1, 2, 4};
    static const int n[] = {8192, 32768, 131072};
    for (int i = 0; i < 12; i++) {
        sample s = sample_new(n[i % 3], FLAT, test_seed + i);
        uint64_t seed = test_seed + 3 * i;
        float *score = malloc(n[i % 3] * sizeof *score);
        for (int j = 0; j < n[i % 3]; j++) score[j] = (float)(1.4426950408889634 * spreads[i / 3] * test_normal(&seed));
        for (int j = 0; j < n[i % 3]; j += 256)
            sl_attn_kernels_best()->masses(score + j, 256, s.sizes.stored + j, s.sizes.ref + j / SL_BLOCK,
                                           s.sizes.cum + j / SL_BLOCK + 1);
        sl_masses_finish(&s.sizes);
        problem p = {.size = s.sizes, .S = 128, .most = 1024, .id = {.seed = 5, .head = (uint32_t)i}};
        CHECK_INT(run(&p, 1), 1);
        free(score);
        sample_free(&s);
    }
}
#endif

static const test_case cases[] = {
    GPU_CASE("shapes-and-lengths", shapes_and_lengths),
    GPU_CASE("long-contexts", long_contexts),
    GPU_CASE("ties", ties),
    GPU_CASE("candidates-fit", candidates_fit),
    {0},
};
const test_suite suite_cuda_take_all = {"cuda_take_all", cases};
