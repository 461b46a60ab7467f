// tests/attention/test_importance.c - importance sampling and subsets, in addition to test_proposals.c: every instruction set,
// keys that f16 cannot hold, one-hot attention, a newest page that outweighs the others, p of topp, the mean of random.
#include "attention/cpu/cpu_kernels.h"
#include "attention/stages/stages.h"
#include "tests/support/reference.h"
#include "tests/test.h"
#include "tests/support/draw_inputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static sl_error err;

static void set_key(ref_cache *c, int h, int j, int d, double x) {
    ((bf16 *)ref_k_row(c, 0, h, j))[d] = sl_f32_to_bf16((float)x);
}

// ---- quantised keys ----

// Channels of every kind: constant, zero, huge, subnormal in f16, with an outlier.
static void spoil(ref_cache *c, int h) {
    for (int j = 0; j < c->seqs[0].n_tokens; j++) {
        const bf16 *k = ref_k_row(c, 0, h, j);
        set_key(c, h, j, 0, 3.5), set_key(c, h, j, 1, 0);
        set_key(c, h, j, 2, 1e4 * sl_bf16_to_f32(k[2])), set_key(c, h, j, 3, 1e-6 * sl_bf16_to_f32(k[3]));
        if (j == 7) set_key(c, h, j, 5, 500);
    }
}

// Scores of every page, on every instruction set: within the stated bound of the exact score in double precision. The sum of
// about a hundred fp32 terms errs by at most 128 * 2^-24 < 1e-5 of the sum of their magnitudes.
static void check_page(const ref_cache *c, const sl_attn_kernels *kernels, sl_kv_need need, int bits, int page, int h) {
    int dim = c->geom.head_dim, group = c->geom.n_heads / c->geom.n_kv_heads;
    const f16 *step = sl_kv_extra(&c->queries[0].kv, need, page, h), *zero = step + dim;
    static float score[SL_MAX_GROUP * SL_PAGE];
    sl_quant_query q[SL_MAX_GROUP];
    float scale = (float)(1.4426950408889634 / sqrt(dim));
    for (int i = 0; i < group; i++) kernels->quantise_query(c->q + (h * group + i) * dim, step, zero, dim, bits, scale, &q[i]);
    kernels->score_quantised(q, group, (const uint8_t *)(zero + dim), dim, bits, score, SL_PAGE);
    for (int i = 0; i < group; i++)
        for (int j = 0; j < SL_PAGE; j++) {
            const float *x = c->q + (h * group + i) * dim;
            double want = 0, size = 0;
            for (int d = 0; d < dim; d++) {
                double k = sl_bf16_to_f32(ref_k_row(c, 0, h, page * SL_PAGE + j)[d]);
                want += x[d] * k * scale;
                size += fabs(x[d]) * scale * (fabs(k) + fabs(sl_f16_to_f32(zero[d])));
            }
            double off = fabs(score[i * SL_PAGE + j] - want);
            if (!(off <= q[i].bound + 1e-5 * size))
                FAIL("%s, %d bits, head_dim %d, head %d of %d, row %d: off by %g, bound %g", kernels->isa, bits, dim, i, group,
                     page * SL_PAGE + j, off, q[i].bound);
        }
}

static void bounds_on_every_isa(void) {
    static const char *const isas[] = {"portable", "avx2", "avx512"};
    static const int bits[] = {8, 4, 3}, n = 600;
    static const struct { int heads, kv_heads, dim; } g[] = {{1, 1, 64}, {6, 2, 80}, {8, 2, 96}, {8, 1, 128}, {9, 3, 64}};
    for (int i = 0; i < 5; i++) {
        ref_cache c = ref_cache_new(g[i].heads, g[i].kv_heads, g[i].dim, 1, &n, 1, test_seed + i);
        spoil(&c, 0);
        for (int b = 0; b < 3; b++) {
            char attn[32];
            sl_attn_spec spec;
            sl_kv_need need;
            snprintf(attn, sizeof attn, "dense-q:bits=%d", bits[b]);
            ref_decode(&c, attn, 0, 1, 1, 0); // builds the quantised keys
            CHECK_OK(sl_attn_parse(attn, &spec, &err), err);
            spec.method->cpu->needs(&spec, &need);
            for (int k = 0; k < 3; k++)
                for (int page = 0; page < 2 && sl_attn_kernels_named(isas[k]); page++)
                    for (int h = 0; h < g[i].kv_heads; h++)
                        check_page(&c, sl_attn_kernels_named(isas[k]), need, bits[b], page, h);
        }
        ref_cache_free(&c);
    }
}

// Keys beyond 65,504 in both directions: steps and zeros stay finite, the bound holds, and the draws correct the proposal.
static void keys_beyond_f16(void) {
    static const int n = 600, bits[] = {8, 4, 3};
    static const double far[] = {-70000, 70000, -90000, 300000};
    for (int i = 0; i < 4; i++) {
        ref_cache c = ref_cache_new(4, 2, 64, 1, &n, 1, test_seed + i);
        for (int head = 0; head < 4; head++) c.q[head * 64 + 9] *= 1e-5f; // scores stay moderate
        for (int h = 0; h < 2; h++) set_key(&c, h, 100, 9, far[i]), set_key(&c, h, 300, 9, far[i]);
        for (int b = 0; b < 3; b++) {
            char attn[64];
            sl_attn_spec spec;
            sl_kv_need need;
            snprintf(attn, sizeof attn, "dense-q:bits=%d", bits[b]);
            ref_decode(&c, attn, 0, 1, 1, 0);
            for (int d = 0; d < 4 * 64; d++)
                if (!isfinite(c.out[d])) FAIL("%s, key %g: output %g", attn, far[i], c.out[d]);
            CHECK_OK(sl_attn_parse(attn, &spec, &err), err);
            spec.method->cpu->needs(&spec, &need);
            for (int h = 0; h < 2; h++) check_page(&c, sl_attn_kernels_named("portable"), need, bits[b], 0, h);
            snprintf(attn, sizeof attn, "santa-is:S=600:proposal=int%d", bits[b]);
            ref_decode(&c, attn, 0, 1, 1, 0);
            for (int head = 0; head < 4; head++) CHECK(ref_error(&c, 0, head) < 1e-5);
        }
        ref_cache_free(&c);
    }
}

// ---- santa-is ----

// One key along the query, 40 times as long as the others: the output is v_j, rounded once to bf16.
static void one_hot_is_exact(void) {
    static const int n = 1500, hot[] = {0, 255, 256, 700, 1499};
    static const char *const methods[] = {"santa-is:S=8",
                                          "santa-is:S=8:proposal=int3",
                                          "santa-is:S=1:proposal=int8",
                                          "santa-pps:S=1",
                                          "santa-pps:S=16",
                                          "topk:k=1",
                                          "topp:p=0.5"};
    for (int i = 0; i < 5; i++) {
        ref_cache c = ref_cache_new(4, 4, 64, 1, &n, 1, test_seed + i);
        for (int head = 0; head < 4; head++)
            for (int d = 0; d < 64; d++) set_key(&c, head, hot[i], d, 40 * c.q[head * 64 + d]);
        for (int m = 0; m < 7; m++) {
            ref_decode(&c, methods[m], 0, 1, 3, 0);
            for (int head = 0; head < 4; head++)
                for (int d = 0; d < 64; d++)
                    if (sl_f32_to_bf16(c.out[head * 64 + d]) != ref_v_row(&c, 0, head, hot[i])[d])
                        FAIL("%s, hot row %d, head %d: %g, expected %g", methods[m], hot[i], head, c.out[head * 64 + d],
                             sl_bf16_to_f32(ref_v_row(&c, 0, head, hot[i])[d]));
        }
        ref_cache_free(&c);
    }
}

// The newest page outweighs all others by more than 2^60. Rows of the others are still drawn, S + r in all.
static void a_heavy_newest_page(void) {
    static const int n = 530;
    ref_cache c = ref_cache_new(2, 2, 64, 1, &n, 1, test_seed);
    for (int head = 0; head < 2; head++)
        for (int d = 0; d < 64; d++) set_key(&c, head, 525, d, 40 * c.q[head * 64 + d]);
    ref_decode(&c, "santa-is:S=10", 0, 1, 1, 0);
    for (int head = 0; head < 2; head++) {
        CHECK_INT(c.reports[head].samples, 10 + 18);
        CHECK(ref_error(&c, 0, head) < 1e-5);
    }
    ref_cache_free(&c);
}

// Rows are cut off and written again: page extras of their pages are built again, and decode gives the bits of a fresh cache.
static void rewritten_pages(void) {
    static const int n = 900, keep = 300;
    static const char *const methods[] = {"dense-q",          "dense-q:bits=3",    "santa-is:S=40", "santa-pps:S=40",
                                          "quest:tokens=128", "magicpig:K=4:L=40", "bernoulli:B=4"};
    ref_cache fresh = ref_cache_new(4, 2, 64, 1, &n, 1, test_seed), used = ref_cache_new(4, 2, 64, 1, &n, 1, test_seed + 1);
    memcpy(used.q, fresh.q, 4 * 64 * sizeof *used.q);
    used.queries[0].sequence = fresh.queries[0].sequence;
    for (int cut = 2; cut > 0; cut--) { // all rows, then the rows after `keep`
        for (int m = 0; m < 7; m++) ref_decode(&used, methods[m], 0, 1, 4, 0);
        int from = cut == 2 ? 0 : keep;
        sl_kv_truncate(&used.pool, &used.seqs[0], from);
        CHECK_OK(sl_kv_reserve(&used.pool, &used.seqs[0], n, &err), err);
        used.seqs[0].n_tokens = n;
        used.queries[0].kv = sl_kv_view_of(&used.pool, &used.seqs[0], 0, n);
        for (int j = from; j < n; j++)
            for (int h = 0; h < 2; h++) {
                size_t row = 64 * sizeof(bf16);
                if (cut == 1) set_key(&fresh, h, j, j % 64, 2);
                memcpy((bf16 *)ref_k_row(&used, 0, h, j), ref_k_row(&fresh, 0, h, j), row);
                memcpy((bf16 *)ref_v_row(&used, 0, h, j), ref_v_row(&fresh, 0, h, j), row);
            }
        ref_cache again = ref_cache_new(4, 2, 64, 1, &n, 1, test_seed); // the same rows, no page extra built
        memcpy(again.pool.k, fresh.pool.k, fresh.pool.n_bytes / 2);
        for (int m = 0; m < 7; m++) {
            ref_decode(&used, methods[m], 0, 1, 4, 0);
            ref_decode(&again, methods[m], 0, 1, 4, 0);
            if (memcmp(used.out, again.out, 4 * 64 * sizeof *used.out))
                FAIL("%s: rows from %d on written anew: not the bits of a fresh cache", methods[m], from);
        }
        ref_cache_free(&again);
    }
    ref_cache_free(&fresh), ref_cache_free(&used);
}

// ---- subsets ----

// The fewest rows with mass p, in double precision. The relative rounding error of a stored mass (bf16) has a root mean
// square of about 2^-9. So the mass of the rows differs from p by less than 2^-8 and the mass of one row. Rows next to the cut
// may differ by one row of the mass at the cut.
static void top_p(void) {
    static const int n = 1500;
    static const double shares[] = {0.3, 0.9, 0.99};
    static double p[1500], sorted[1500];
    ref_cache c = ref_cache_new(8, 2, 64, 1, &n, 2, test_seed);
    for (int i = 0; i < 3; i++) {
        char attn[32];
        snprintf(attn, sizeof attn, "topp:p=%g", shares[i]);
        ref_decode(&c, attn, 0, 1, 1, 0);
        for (int head = 0; head < 8; head++) {
            double mu[64], out[64] = {0}, mass = 0;
            int rows[2] = {0}, kept = (int)c.reports[head].v_rows;
            ref_attention(&c, 0, head, c.q + head * 64, n, p, mu);
            memcpy(sorted, p, sizeof p);
            for (int a = 1; a < n; a++) // insertion sort, descending
                for (int b = a; b > 0 && sorted[b] > sorted[b - 1]; b--) {
                    double t = sorted[b];
                    sorted[b] = sorted[b - 1], sorted[b - 1] = t;
                }
            for (int e = 0; e < 2; e++) {
                double sum = 0, want = shares[i] + (e ? 0x1p-8 : -0x1p-8);
                while (rows[e] < n && sum < want) sum += sorted[rows[e]++];
            }
            if (kept < rows[0] || kept > rows[1])
                FAIL("%s head %d: %d rows, expected %d to %d", attn, head, kept, rows[0], rows[1]);
            for (int j = 0; j < n; j++) {
                if (p[j] < sorted[kept - 1]) continue;
                mass += p[j];
                for (int d = 0; d < 64; d++) out[d] += p[j] * sl_bf16_to_f32(ref_v_row(&c, 0, head / 4, j)[d]);
            }
            for (int d = 0; d < 64; d++) out[d] /= mass;
            double norm = 0; // |v| is about sqrt(64), and below 12
            for (int d = 0; d < 64; d++) norm += out[d] * out[d];
            CHECK(ref_relative(c.out + head * 64, out, 64) < 0x1p-7 + 2 * 12 * sorted[kept - 1] / mass / sqrt(norm));
        }
    }
    ref_cache_free(&c);
}

// S uniform rows with replacement, self-normalised: consistent. The mean square error is compared with the first order of the
// ratio estimator, sum_j p_j^2 n |v_j - mu|^2 / S. Flat attention keeps the second order small. 320 outputs: 5 standard errors
// < 40%.
static void random_error(void) {
    static const int n = 400;
    enum { S = 2000 };
    const int R = 40;
    ref_cache c = ref_cache_new(8, 2, 64, 1, &n, 0.3, test_seed);
    static double p[400];
    for (int head = 0; head < 8; head++) {
        double mu[64], want = 0, got = 0;
        ref_attention(&c, 0, head, c.q + head * 64, n, p, mu);
        for (int j = 0; j < n; j++)
            for (int d = 0; d < 64; d++)
                want += p[j] * p[j] * n * pow(sl_bf16_to_f32(ref_v_row(&c, 0, head / 4, j)[d]) - mu[d], 2) / S;
        for (int r = 0; r < R; r++) {
            ref_decode(&c, "random:S=2000", 0, 1, (uint32_t)r, 0);
            CHECK_INT(c.reports[head].samples, S);
            for (int d = 0; d < 64; d++) got += pow(c.out[head * 64 + d] - mu[d], 2) / R;
        }
        CHECK_NEAR(got / want, 1, 0.4);
    }
    ref_cache_free(&c);
}

static const test_case cases[] = {
    {"bounds-on-every-isa", 0, bounds_on_every_isa},
    {"keys-beyond-f16", 0, keys_beyond_f16},
    {"one-hot-is-exact", 0, one_hot_is_exact},
    {"a-heavy-newest-page", 0, a_heavy_newest_page},
    {"rewritten-pages", 0, rewritten_pages},
    {"top-p", 0, top_p},
    {"random-error", 0, random_error},
    {0},
};
const test_suite suite_importance = {"importance", cases};
