// tests/cuda/test_cuda_take_known.c - compares take-all + PPS draws at a known threshold on a GPU with the CPU's (sl_draw_at):
// the split into heavy and light rows, rows, counts and expected counts from the same stored sizes.
#include "tests/support/gpu.h"

#ifdef SLEIGH_CUDA
#include "attention/attention_cuda.h"
#include "tests/support/draw_inputs.h"
#include "tests/support/gpu_draws.h"
#include "tests/support/take_known_probe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PROBLEMS = 24 };

typedef struct problem {
    sl_masses size;
    int shared;
    double alpha, kappa, total; // kappa: as a share of the total of the masses, before alpha
    sl_rng_id id;
    sl_take_all want; // filled by run
} problem;

// kappa in units of size, by the rule of carried.c.
static uint64_t kappa_of(const problem *p) {
    double units = p->kappa * p->total;
    return units < 1 ? 1 : units < 0x1p62 ? (uint64_t)units : (uint64_t)1 << 62;
}

static void check(const problem *p, const take_known_result *r, const int32_t *row, const float *inv_pi) {
    int n = p->size.n, most = (int)(p->want.n_heavy + p->want.k) + 1;
    char what[100];
    sl_draws d = {.row = malloc(most * sizeof *d.row),
                  .count = malloc(most * sizeof *d.count),
                  .inv_pi = malloc(most * sizeof *d.inv_pi)};
    sl_draw_at(&p->size, r->kappa, p->shared, sl_uniform_philox(&p->id), &d);
    CHECK(r->kappa == kappa_of(p) && r->light == p->want.light);
    CHECK_INT(r->n_heavy, p->want.n_heavy);
    for (int i = 0; i < r->n_entries; i++) CHECK(row[i] < n);
    snprintf(what, sizeof what, "n %d, kappa %g, %s, alpha %g", n, p->kappa, p->shared ? "sys" : "strat", p->alpha);
    check_same_draws(what, &d, row, inv_pi, r->n_entries);
    free(d.row), free(d.count), free(d.inv_pi);
}

static void (*const on_gpu_of[])(const take_known_problem *, int) = {take_known_on_gpu, take_known_on_gpu_long};

// Draws all problems of one length, with the code for long contexts and, if their length allows it, with the code for short
// ones. Returns the number of problems whose heavy rows fitted into the lists.
static int run(problem *problems, int n_problems) {
    take_known_problem on_gpu[MOST_PROBLEMS];
    int n_listed = 0;
    for (int i = 0; i < n_problems; i++) {
        problem *p = &problems[i];
        size_t n_blocks = p->size.n_blocks;
        uint64_t *mass = gpu_block_masses(&p->size);
        if (p->alpha > 0) sl_masses_mix(&p->size, p->alpha);
        p->want = sl_split_sizes(&p->size, kappa_of(p));
        int most = 2 * (p->want.n_heavy + p->want.k) + 1024; // the last turn is short
        on_gpu[i] = (take_known_problem){.mass = mass,
                                         .w = gpu_copy(p->size.stored, n_blocks * SL_BLOCK * sizeof(bf16)),
                                         .n = p->size.n,
                                         .shared = p->shared,
                                         .alpha = p->alpha,
                                         .kappa = p->kappa,
                                         .id = p->id,
                                         .row = gpu_new(most * sizeof(int32_t)),
                                         .inv_pi = gpu_new(most * sizeof(float)),
                                         .most = most,
                                         .listed = gpu_new(n_blocks * sizeof(uint16_t)),
                                         .marks = gpu_new(n_blocks * 16),
                                         .result = gpu_new(sizeof(take_known_result))};
    }
    const take_known_problem *device = gpu_copy(on_gpu, n_problems * sizeof *on_gpu);
    int first = problems[0].size.n > SL_CUDA_SHORT_ROWS;
    for (int j = first * n_problems; j < 2 * n_problems; j++) {
        int i = j % n_problems;
        if (i == 0) {
            on_gpu_of[j / n_problems](device, n_problems);
            gpu_sync("take_known_on_gpu");
        }
        take_known_result r;
        gpu_read(&r, on_gpu[i].result, sizeof r);
        CHECK(r.n_entries <= on_gpu[i].most);
        int32_t *row = malloc(r.n_entries * sizeof *row + 1);
        float *inv_pi = malloc(r.n_entries * sizeof *inv_pi + 1);
        gpu_read(row, on_gpu[i].row, r.n_entries * sizeof *row);
        gpu_read(inv_pi, on_gpu[i].inv_pi, r.n_entries * sizeof *inv_pi);
        check(&problems[i], &r, row, inv_pi);
        if (j / n_problems == first) n_listed += r.n_listed;
        free(row), free(inv_pi);
    }
    gpu_free_all();
    return n_listed;
}

// Thresholds from the size of all rows to a small share of it, and thresholds that are equal to the size of a row.
static int run_sizes(const sl_masses *size, uint32_t seed, int *n_run) {
    static const double rows[] = {0.5, 1, 7, 128, 1000, 20000};
    int n_listed = 0;
    for (int mixed = 0; mixed < 2; mixed++) {
        problem problems[MOST_PROBLEMS];
        int n = 0;
        sl_masses all = *size;
        if (mixed) sl_masses_mix(&all, 0.01);
        for (int i = 0; i < MOST_PROBLEMS / 2; i++) {
            double total = (double)sl_masses_total(size), kappa = 1 / rows[i / 2];
            if (i % 4 == 3) kappa = (double)sl_masses_of_row(&all, (int)((uint64_t)i * 7919 % (uint64_t)all.n)) / total;
            problem p = {.size = *size,
                         .shared = i % 2,
                         .alpha = mixed ? 0.01 : 0,
                         .kappa = kappa,
                         .total = total,
                         .id = {.seed = seed, .sequence = 3, .position = 17, .layer = 2, .head = (uint32_t)i}};
            if (!(total > 0) || kappa * total < 1 || 1 / kappa > 4e4) continue; // a head never draws so many rows
            problems[n++] = p;
        }
        n_listed += n ? run(problems, n) : 0, *n_run += n;
    }
    return n_listed;
}

static void shapes_and_lengths(void) {
    int n_listed = 0, n = 0;
    for (int k = 0; k < N_SHAPES; k++)
        for (int l = 0; l < N_LENGTHS; l++) {
            sample s = sample_new(lengths[l], shapes[k], test_seed + 10 * k + l);
            n_listed += run_sizes(&s.sizes, (uint32_t)(100 * k + l), &n);
            sample_free(&s);
        }
    CHECK(n_listed < n && n_listed > n / 2); // some heads have marks
    printf("      heavy rows fitted into the lists of %d of %d heads\n", n_listed, n);
}

// Sizes on both sides of the limits of threads and entries: 512 and 1024 blocks.
static void awkward_lengths(void) {
    static const int n[] = {1, 31, 32, 33, 255, 256, 257, 16384, 16385, 32768, 32769, 131072};
    int n_run = 0;
    for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
        sample s = sample_new(n[i], i % 2 ? PEAKED : FLAT, test_seed + i);
        run_sizes(&s.sizes, (uint32_t)i, &n_run);
        sample_free(&s);
    }
}

// Contexts that only the code for long contexts supports.
static void long_contexts(void) {
    static const int n[] = {131073, 200000, 1 << 21};
    int n_run = 0;
    for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
        sample s = sample_new(n[i], i == 1 ? FLAT : PEAKED, test_seed + i);
        run_sizes(&s.sizes, (uint32_t)i, &n_run);
        sample_free(&s);
    }
    CHECK(n_run > 30);
}

// One value: a threshold of this size makes every row heavy, and the next larger threshold makes every row light.
static void ties(void) {
    static const int n[] = {40, 1000, 5000, 70000};
    for (int i = 0; i < 4; i++) {
        sample s = sample_new(n[i], FLAT, test_seed + i);
        for (int b = 0; b < s.sizes.n_blocks; b++) {
            s.sizes.ref[b] = 0;
            s.sizes.cum[b + 1] = 0;
            for (int j = 0; j < SL_BLOCK; j++) {
                bf16 w = b * SL_BLOCK + j < s.sizes.n ? sl_f32_to_bf16(0.75f) : 0;
                s.sizes.stored[b * SL_BLOCK + j] = w;
                s.sizes.cum[b + 1] += (uint32_t)(sl_bf16_to_f32(w) * 0x1p30f);
            }
        }
        sl_masses_finish(&s.sizes);
        double size = (double)sl_masses_of_row(&s.sizes, 0), total = (double)sl_masses_total(&s.sizes);
        problem problems[2] = {{.size = s.sizes, .kappa = (size + 0.25) / total, .total = total},
                               {.size = s.sizes, .kappa = (size + 1.25) / total, .total = total}};
        run(problems, 2);
        CHECK(problems[0].want.n_heavy == n[i] && problems[1].want.n_heavy == 0);
        sample_free(&s);
    }
}
#endif

static const test_case cases[] = {
    GPU_CASE("shapes-and-lengths", shapes_and_lengths),
    GPU_CASE("awkward-lengths", awkward_lengths),
    GPU_CASE("long-contexts", long_contexts),
    GPU_CASE("ties", ties),
    {0},
};
const test_suite suite_cuda_take_known = {"cuda_take_known", cases};
