// tests/cuda/test_cuda_pps.c - santa-pps on a GPU. Stored masses and sizes agree with double precision. The CPU's draws from
// the masses and sizes that the kernel stored give the kernel's output. Stated errors hold.
#include "tests/support/gpu.h"

#ifdef SLEIGH_CUDA
#include "tests/support/decode_check.h"
#include "tests/support/draw_inputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- a fixed number of draws, compared with the CPU ----

static void check(int n_heads, int n_kv_heads, int dim, int n_seqs, const int *lengths, double scale, int S) {
    ref_cache c = ref_cache_new(n_heads, n_kv_heads, dim, n_seqs, lengths, scale, test_seed);
    for (int k = 0; k < 2; k++) {
        char attn[64];
        snprintf(attn, sizeof attn, "santa-pps:S=%d:pps=%s:budget=even", S, k ? "sys" : "strat");
        fixture_try_on(&c, attn);
    }
    ref_cache_free(&c);
}

static void lengths_of_context(void) {
    static const int all[] = {1, 31, 32, 33, 255, 256, 257, 1000, 4097, 8192, 32768, 32769};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check(8, 2, 128, 1, &all[i], i % 3 == 0 ? 0 : i % 3 == 1 ? 1 : 4, 128);
}

static void samples(void) {
    static const int n = 3000, S[] = {1, 3, 127, 128, 129, 1000, 4096};
    for (size_t i = 0; i < sizeof S / sizeof *S; i++) check(4, 1, 128, 1, &n, i % 2 ? 1 : 4, S[i]);
}

static void shapes_of_model(void) {
    static const int dims[] = {64, 80, 96, 128}, groups[] = {1, 2, 3, 4, 5, 6, 7, 8}, n[] = {700, 1, 2049};
    for (int d = 0; d < 4; d++)
        for (int g = 0; g < 8; g++) check(2 * groups[g], 2, dims[d], 3, n, 2, 64);
}

// K and V of the second and third batch are larger than several L2 caches, so the kernels choose long tiles.
static void ragged_batch(void) {
    check(8, 2, 128, FIXTURE_SEQS, fixture_ragged, 3, 128);
    check(8, 4, 128, FIXTURE_SEQS, fixture_ragged, 3, 128);
    check(8, 8, 80, FIXTURE_SEQS, fixture_ragged, 2, 100);
}

// A session stores the norms of the newest page from step to step. After steps at earlier rows, of this page and of the page
// before, they equal the norms that a first step computes.
static void kept_norms(void) {
    static const int n[] = {700, 513, 2049, 300, 1}, before[] = {290, 40, 39, 1};
    ref_cache c = ref_cache_new(8, 2, 128, 5, n, 2, test_seed);
    decode_fixture r = fixture_new(&c, "santa-pps:S=64:budget=even", 5);
    for (int i = 0; i < 4; i++) {
        for (int s = 0; s < 5; s++) r.rows[s].position = n[s] > before[i] ? n[s] - 1 - before[i] : 0;
        fixture_upload_rows(&r);
        fixture_decode(&r);
    }
    for (int s = 0; s < 5; s++) r.rows[s].position = n[s] - 1;
    fixture_upload_rows(&r);
    fixture_launch(&r);
    fixture_check_masses(&r);
    fixture_check(&r);
    fixture_free(&r);
    ref_cache_free(&c);
}

// ---- compared with dense attention ----

static void enough_rows_is_dense(void) { // stored masses are bf16: each is off by at most 2^-8, independently
    static const int n[] = {1, 31, 255, 256, 257, 1500};
    ref_cache c = ref_cache_new(8, 2, 128, 6, n, 2, test_seed);
    decode_fixture r = fixture_new(&c, "santa-pps:S=1500:budget=even", 5);
    fixture_launch(&r);
    for (int i = 0; i < 48; i++)
        CHECK(fixture_error(&r, i / 8, i % 8, NULL) < 0x1p-7); // masses and the output are rounded, by 2^-8 each
    CHECK_INT(r.stats.samples, 8 * (1 + 31 + 255 + 256 + 257 + 1500));
    CHECK_INT(r.stats.v_rows, r.stats.samples);
    fixture_free(&r);
    ref_cache_free(&c);
}

static void one_hot_is_exact(void) {
    static const int n = 3000;
    ref_cache c = ref_cache_new(4, 4, 128, 1, &n, 400, test_seed);
    decode_fixture r = fixture_new(&c, "santa-pps:budget=even", 5);
    double *p = malloc(n * sizeof *p), mu[128];
    int n_one_hot = 0;
    fixture_launch(&r);
    for (int head = 0; head < 4; head++) {
        int best = 0;
        ref_attention(&c, 0, head, c.q + head * 128, n, p, mu);
        for (int j = 0; j < n; j++)
            if (p[j] > p[best]) best = j;
        if (p[best] <= 1 - 1e-9) continue;
        CHECK(!memcmp(r.out + head * 128, ref_v_row(&c, 0, head, best), 128 * sizeof(bf16)));
        n_one_hot++;
    }
    CHECK(n_one_hot > 0);
    free(p);
    fixture_free(&r);
    ref_cache_free(&c);
}

// ---- a stated error ----

// Values have one channel, and a quarter of them are negative. These are the hardest values for a stated error (test_pps.c).
static void set_along_one_channel(ref_cache *c, uint64_t seed) {
    for (int s = 0; s < c->n_seqs; s++)
        for (int h = 0; h < c->geom.n_kv_heads; h++)
            for (int j = 0; j < c->seqs[s].n_tokens; j++) {
                bf16 *v = (bf16 *)ref_v_row(c, s, h, j);
                double size = 0.5 + test_uniform(&seed), sign = test_uniform(&seed) < 0.25 ? -1 : 1;
                for (int d = 0; d < c->geom.head_dim; d++) v[d] = sl_f32_to_bf16(d ? 0 : (float)(sign * size));
            }
}

// Decodes two positions; the second is planned with the output of the first. Certified heads must not exceed epsilon more often
// than delta.
static void stated(const char *bound, double epsilon, double delta, int hardest) {
    enum { SEEDS = 30, HEADS = 8, SEQS = 2 };
    static const double scales[] = {0.3, 1, 3};
    static const int n[SEQS] = {2001, 8000};
    int certified[2] = {0}, exceeded[2] = {0}, dense_heads = 0, tries = 0;
    char attn[96];
    snprintf(attn, sizeof attn, "santa-pps:certify=head:epsilon=%g:delta=%g:bound=%s", epsilon, delta, bound);
    for (int k = 0; k < 3; k++) {
        ref_cache c = ref_cache_new(HEADS, HEADS, 64, SEQS, n, scales[k], test_seed + k);
        if (hardest)
            set_along_one_channel(&c, test_seed + k);
        else
            ref_add_to_values(&c, 1);
        decode_fixture r = fixture_new(&c, attn, 5);
        double mu[2][SEQS * HEADS][128], *p = malloc(8000 * sizeof *p);
        for (int x = 0; x < 2 * SEQS * HEADS; x++) {
            int head = x / 2; // counted over the batch
            ref_attention(&c, head / HEADS, head % HEADS, c.q + head * 64, n[head / HEADS] - 1 + x % 2, p, mu[x % 2][head]);
        }
        for (uint32_t i = 0; i < SEEDS; i++) {
            fixture_seed(&r, i);
            for (int step = 0; step < 2; step++) { // first without the newest row, then with it
                for (int s = 0; s < SEQS; s++) r.rows[s].position = n[s] - 2 + step;
                fixture_upload_rows(&r);
                fixture_launch(&r);
                tries += (int)r.stats.tries, dense_heads += (int)r.stats.fallbacks;
                certified[step] += SEQS * HEADS - (int)r.stats.fallbacks;
                for (int x = 0; x < SEQS * HEADS; x++) {
                    float got[64];
                    for (int d = 0; d < 64; d++) got[d] = sl_bf16_to_f32(r.out[x * 64 + d]);
                    exceeded[step] += ref_relative(got, mu[step][x], 64) > epsilon + 0x1p-8;
                }
            }
        }
        free(p);
        fixture_free(&r);
        ref_cache_free(&c);
    }
    check_certified(exceeded, certified, 500, epsilon, delta, bound);
    printf("      %d heads attended to all rows, %.2f tries per head\n", dense_heads,
           tries / (double)(certified[0] + certified[1] + dense_heads));
}
static void stated_clt(void) {
    stated("clt", 0.3, 0.1, 0);
}
static void hardest_clt(void) {
    stated("clt", 0.2, 0.2, 1);
}
static void hardest_bernstein(void) {
    stated("bernstein", 0.25, 0.2, 1);
}

enum { LIKE_HEADS = 16, LIKE_KV_HEADS = 4, LIKE_SEQS = 2, LIKE_DIM = 64 };

// Decodes the row that lies `back` rows before the newest row, on both devices. Counts the heads whose outputs differ by
// roundings only.
static int step_of_both(decode_fixture *r, const char *attn, const int *n, int back, sl_attn_stats *cpu) {
    ref_cache *c = r->c;
    int same = 0;
    for (int s = 0; s < LIKE_SEQS; s++) {
        r->rows[s].position = c->queries[s].position = n[s] - 1 - back;
        c->queries[s].kv.n_kv = n[s] - back;
    }
    fixture_upload_rows(r);
    fixture_launch(r);
    *cpu = ref_decode(c, attn, 0, LIKE_SEQS, 5, FIXTURE_LAYER);
    for (int i = 0; i < LIKE_SEQS * LIKE_HEADS; i++) {
        double want[LIKE_DIM];
        float got[LIKE_DIM];
        for (int d = 0; d < LIKE_DIM; d++) {
            want[d] = c->out[i * LIKE_DIM + d];
            got[d] = sl_bf16_to_f32(r->out[i * LIKE_DIM + d]);
        }
        same += ref_relative(got, want, LIKE_DIM) < 0x1p-7;
    }
    return same;
}

// Compares rows, tries and outputs with the CPU's in three steps: without an earlier step, with an earlier step that plans this
// step, and with an earlier step that is too old to plan with. A stored mass in ten thousand differs by its last bit, which may
// change a plan by one row. The values of the KV heads have different sizes.
//
// hardest: with the values of set_along_one_channel. The error of their estimated norm can be as large as the error bound, so
// some heads need a second try. If the first tries differ by one row, the second plans differ by more, so the limits are wider.
static void like_the_cpu(const char *attn, int hardest) {
    static const int n[LIKE_SEQS] = {3001, 6000}, back[] = {5, 4, 0};
    ref_cache c = ref_cache_new(LIKE_HEADS, LIKE_KV_HEADS, LIKE_DIM, LIKE_SEQS, n, 1.5, test_seed);
    if (hardest)
        set_along_one_channel(&c, test_seed);
    else
        ref_add_to_values(&c, 1);
    for (int s = 0; !hardest && s < LIKE_SEQS; s++)
        for (int j = 0; j < n[s]; j++) {
            bf16 *v = (bf16 *)ref_v_row(&c, s, 1, j);
            for (int d = 0; d < LIKE_DIM; d++) v[d] = sl_f32_to_bf16(64 * sl_bf16_to_f32(v[d]));
        }
    decode_fixture r = fixture_new(&c, attn, 5);
    size_t size = r.spec.method->cpu->state(&c.geom, &r.spec);
    for (int s = 0; s < LIKE_SEQS; s++) c.queries[s].state = calloc(1, size);
    int second_tries = 0;
    for (int i = 0; i < 3; i++) {
        sl_attn_stats cpu;
        int heads = LIKE_SEQS * LIKE_HEADS, same = step_of_both(&r, attn, n, back[i], &cpu);
        printf(
            "      %s, step %d: %llu rows, %llu tries, %llu fall-backs; on the CPU %llu, %llu, %llu; %d of %d outputs equal\n",
            attn, i, (unsigned long long)r.stats.samples, (unsigned long long)r.stats.tries,
            (unsigned long long)r.stats.fallbacks, (unsigned long long)cpu.samples, (unsigned long long)cpu.tries,
            (unsigned long long)cpu.fallbacks, same, heads);
        CHECK(same >= heads / 2);
        CHECK(fabs((double)r.stats.samples / cpu.samples - 1) < (hardest ? 0.1 : 0.05));
        CHECK(fabs((double)r.stats.tries - cpu.tries) <= (hardest ? 4 : 2));
        CHECK(fabs((double)r.stats.fallbacks - cpu.fallbacks) <= 1);
        second_tries += (int)r.stats.tries - heads;
    }
    if (hardest) CHECK(second_tries > 0);
    for (int s = 0; s < LIKE_SEQS; s++) free(c.queries[s].state);
    fixture_free(&r);
    ref_cache_free(&c);
}
static void plans_are_the_cpus(void) {
    like_the_cpu("santa-pps:certify=head:epsilon=0.2", 0);
    like_the_cpu("santa-pps:certify=head:epsilon=0.3:bound=bernstein", 0);
    like_the_cpu("santa-pps:certify=head:epsilon=0.2:delta=0.2", 1);
    like_the_cpu("santa-pps:certify=head:epsilon=0.25:delta=0.2:bound=bernstein", 1);
}

// The number of rows rises as epsilon falls. With an epsilon that draws cannot reach, every head attends to all rows exactly.
static void rows_rise_as_epsilon_falls(void) {
    static const int n = 8000;
    static const char *const specs[] = {"santa-pps:certify=head:epsilon=0.4", "santa-pps:certify=head:epsilon=0.2",
                                        "santa-pps:certify=head:epsilon=0.1", "santa-pps:certify=head:epsilon=0.05",
                                        "santa-pps:certify=head:epsilon=0.001"};
    uint64_t before = 0;
    for (int i = 0; i < 5; i++) {
        ref_cache c = ref_cache_new(8, 2, 64, 1, &n, 1.5, test_seed);
        ref_add_to_values(&c, 1);
        decode_fixture r = fixture_new(&c, specs[i], 3);
        fixture_launch(&r);
        printf("      %s: %llu rows, %llu tries, %llu fall-backs\n", specs[i], (unsigned long long)r.stats.v_rows,
               (unsigned long long)r.stats.tries, (unsigned long long)r.stats.fallbacks);
        CHECK(r.stats.v_rows > before);
        before = r.stats.v_rows;
        if (i == 4) CHECK_INT(r.stats.fallbacks, 8);
        for (int h = 0; i == 4 && h < 8; h++) CHECK(fixture_error(&r, 0, h, NULL) < 0x1p-7);
        fixture_free(&r);
        ref_cache_free(&c);
    }
}
#endif

static const test_case cases[] = {
    GPU_CASE("lengths", lengths_of_context),
    GPU_CASE("samples", samples),
    GPU_CASE("shapes", shapes_of_model),
    GPU_CASE("ragged-batch", ragged_batch),
    GPU_CASE("kept-norms", kept_norms),
    GPU_CASE("enough-rows-is-dense", enough_rows_is_dense),
    GPU_CASE("one-hot-is-exact", one_hot_is_exact),
    GPU_CASE("stated-clt", stated_clt),
    GPU_CASE("hardest-clt", hardest_clt),
    GPU_CASE("hardest-bernstein", hardest_bernstein),
    GPU_CASE("plans-are-the-cpus", plans_are_the_cpus),
    GPU_CASE("rows-rise-as-epsilon-falls", rows_rise_as_epsilon_falls),
    {0},
};
const test_suite suite_cuda_pps = {"cuda_pps", cases};
