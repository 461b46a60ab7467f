// tests/attention/test_proposals.c - proposals that are not exact (quantised keys, page bounds, hashes), their page extras, and
// the methods that draw from them. Double precision judges the scores; for quantised keys the test decodes the documented
// layout itself.
#include "attention/cpu/cpu_kernels.h"
#include "attention/stages/stages.h"
#include "tests/support/reference.h"
#include "tests/test.h"
#include "tests/support/draw_inputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static sl_error err;
static const int lengths_of[] = {1, 31, 255, 256, 257, 1500};
static const struct { int heads, kv_heads, dim; } geometries[] = {{1, 1, 64}, {6, 2, 80}, {8, 2, 128}, {8, 1, 96}, {9, 3, 64}};
enum { N_GEOMETRIES = 5, N_SEQS = 6 };

// Writes the proposal's scores of one sequence and KV head, [group][n_units], into out.
static int scores_of(ref_cache *c, const char *attn, int s, int h, double *out, sl_attn_report *report) {
    sl_attn_spec spec;
    ref_decode(c, attn, s, 1, 1, 0); // builds the page extras
    CHECK_OK(sl_attn_parse(attn, &spec, &err), err);
    const sl_proposal *propose = sl_composition_of(&spec).propose;
    sl_attn_decode_args args = {.geom = &c->geom, .spec = &spec, .seed = 1, .n_seqs = 1, .seqs = c->queries + s};
    sl_group g = sl_group_of(&args, 0, h);
    g.state = propose->state ? calloc(1, propose->state(&c->geom, &spec, g.kv->n_kv) + 64) : NULL;
    if (propose->begin) propose->begin(&g);
    int n = (g.kv->n_kv + propose->unit - 1) / propose->unit, per_page = SL_PAGE / propose->unit;
    float *score = malloc(SL_MAX_GROUP * SL_CHUNK * sizeof *score);
    for (int page = 0; page * SL_PAGE < g.kv->n_kv; page++) {
        propose->score(&g, page, score);
        for (int i = 0; i < g.n; i++)
            for (int j = 0; j < per_page && page * per_page + j < n; j++)
                out[(size_t)i * n + page * per_page + j] = score[i * SL_CHUNK + j];
    }
    for (int i = 0; report && propose->report && i < g.n; i++) {
        sl_head x = {.group = &g, .index = i, .report = &report[i]};
        propose->report(&x);
    }
    free(score), free(g.state);
    return n;
}

// q_head . k_j * log2(e) / sqrt(d)
static double exact_score(const ref_cache *c, int s, int head, int j) {
    int dim = c->geom.head_dim, h = head / (c->geom.n_heads / c->geom.n_kv_heads);
    const bf16 *k = ref_k_row(c, s, h, j);
    const float *q = c->queries[s].q + head * dim;
    double dot = 0;
    for (int d = 0; d < dim; d++) dot += (double)q[d] * sl_bf16_to_f32(k[d]);
    return dot * 1.4426950408889634 / sqrt(dim);
}

// ---- quantised keys ----

// Keys of every kind: constant, zero, huge and tiny channels, an outlier.
static void spoil_channels(ref_cache *c, int s, int h) {
    for (int j = 0; j < c->seqs[s].n_tokens; j++) {
        bf16 *k = (bf16 *)ref_k_row(c, s, h, j);
        k[0] = sl_f32_to_bf16(3.5f), k[1] = 0;
        k[2] = sl_f32_to_bf16(1e4f * sl_bf16_to_f32(k[2])), k[3] = sl_f32_to_bf16(1e-6f * sl_bf16_to_f32(k[3]));
        k[4] = sl_f32_to_bf16(-60 + 0.1f * sl_bf16_to_f32(k[4]));
        if (j == 7) k[5] = sl_f32_to_bf16(500);
    }
}

static void quantised_scores(void) {
    static const char *const specs[] = {"dense-q:bits=8", "dense-q:bits=4", "dense-q:bits=3"};
    for (int g = 0; g < N_GEOMETRIES; g++) {
        ref_cache c =
            ref_cache_new(geometries[g].heads, geometries[g].kv_heads, geometries[g].dim, N_SEQS, lengths_of, 1, test_seed + g);
        int group = geometries[g].heads / geometries[g].kv_heads;
        spoil_channels(&c, 5, 0);
        double *score = malloc((size_t)group * 1500 * sizeof *score), spread[3] = {0};
        for (int b = 0; b < 3; b++)
            for (int s = 0; s < N_SEQS; s++)
                for (int h = 0; h < geometries[g].kv_heads; h++) {
                    sl_attn_report report[SL_MAX_GROUP] = {0};
                    int n = scores_of(&c, specs[b], s, h, score, report);
                    for (int i = 0; i < group; i++)
                        for (int j = 0; j < n; j++) {
                            double want = exact_score(&c, s, h * group + i, j), off = fabs(score[i * n + j] - want);
                            double bound = report[i].score_bound / 0.6931471805599453;
                            if (j >= (lengths_of[s] - 1) / 256 * 256) bound = 0; // the newest page is exact
                            if (!(off <= bound * (1 + 1e-5) + 1e-4 * (1 + fabs(want))))
                                FAIL("%s n=%d row %d: score %g, exact %g, bound %g", specs[b], n, j, score[i * n + j], want,
                                     bound);
                            if (s == 5 && h == geometries[g].kv_heads - 1 && geometries[g].kv_heads > 1) spread[b] += off * off;
                        }
                }
        CHECK(spread[0] <= spread[1] && spread[1] <= spread[2]);
        free(score);
        ref_cache_free(&c);
    }
}

// The code of a key by the layout that propose_quantised.c documents.
static int code_at(const uint8_t *planes, int bits, int dim, int row, int c) {
    int widths[2] = {bits == 3 ? 2 : bits, 1}, code = 0, shift = 0;
    for (int p = 0; p < (bits == 3 ? 2 : 1); p++) {
        int w = widths[p], per_unit = 4 * (8 / w), n_units = (dim + per_unit - 1) / per_unit;
        uint8_t byte = planes[((row / 16) * n_units + c / per_unit) * 64 + row % 16 * 4 + c % 4];
        code |= (byte >> (w * (c % per_unit / 4)) & ((1 << w) - 1)) << shift;
        planes += (size_t)n_units * 64 * 16;
        shift += w;
    }
    return code;
}

// The error bound of a page for one query by the documented formula, in log2 units: half a step of every channel, plus the
// rounding of the query to half a unit of its largest term times |code - middle|. *keys: the first part alone.
static double documented_bound(const float *q, const f16 *step, int dim, int bits, double *keys) {
    double sum = 0, most = 0, middle = ((1 << bits) - 1) / 2.0, levels = bits == 8 ? 127 * 128 : 127;
    for (int d = 0; d < dim; d++) {
        double size = fabs(q[d] * (double)sl_f16_to_f32(step[d])) * 1.4426950408889634 / sqrt(dim);
        sum += size, most = fmax(most, size);
    }
    *keys = 0.5 * sum;
    return *keys + 0.5 * most / levels * middle * dim;
}

static sl_kv_need quantised_pages(ref_cache *c, int bits) { // builds the quantised keys
    char attn[32];
    sl_attn_spec spec;
    sl_kv_need need;
    snprintf(attn, sizeof attn, "dense-q:bits=%d", bits);
    ref_decode(c, attn, 0, 1, 1, 0);
    CHECK_OK(sl_attn_parse(attn, &spec, &err), err);
    CHECK_INT(spec.method->cpu->needs(&spec, &need), 1);
    return need;
}

// One page of one KV head on every instruction set: bounds equal the documented ones, and they hold. A sum of about a hundred
// fp32 terms errs by at most 1e-5 of the sum of their magnitudes. Returns the smallest share of the keys' part of the bound
// that the largest error of a head reaches.
static double check_page_bounds(const ref_cache *c, sl_kv_need need, int page, int h) {
    static const char *const isas[] = {"portable", "avx2", "avx512"};
    static float score[SL_MAX_GROUP * SL_PAGE];
    int dim = c->geom.head_dim, group = c->geom.n_heads / c->geom.n_kv_heads;
    const f16 *step = sl_kv_extra(&c->queries[0].kv, need, page, h), *zero = step + dim;
    double least = INFINITY;
    for (int k = 0; k < 3; k++) {
        const sl_attn_kernels *kernels = sl_attn_kernels_named(isas[k]);
        if (!kernels) continue;
        for (int i = 0; i < group; i++) {
            const float *q = c->q + (h * group + i) * dim;
            sl_quant_query x;
            double keys, worst = 0, want = documented_bound(q, step, dim, need.arg, &keys);
            kernels->quantise_query(q, step, zero, dim, need.arg, (float)(1.4426950408889634 / sqrt(dim)), &x);
            if (!(fabs(x.bound / want - 1) < 1e-5))
                FAIL("%s, %d bits, page %d, head %d: bound %g, documented %g", isas[k], need.arg, page, i, x.bound, want);
            kernels->score_quantised(&x, 1, (const uint8_t *)(zero + dim), dim, need.arg, score, SL_PAGE);
            for (int j = 0; j < SL_PAGE; j++) {
                double exact = exact_score(c, 0, h * group + i, page * SL_PAGE + j), size = 0, off = fabs(score[j] - exact);
                for (int d = 0; d < dim; d++) {
                    double key = fabs(sl_bf16_to_f32(ref_k_row(c, 0, h, page * SL_PAGE + j)[d]));
                    size += fabs(q[d]) * (key + fabs(sl_f16_to_f32(zero[d]))) * 1.4426950408889634 / sqrt(dim);
                }
                if (!(off <= want + 1e-5 * size))
                    FAIL("%s, %d bits, page %d, row %d: off by %g, bound %g", isas[k], need.arg, page, j, off, want);
                worst = fmax(worst, off);
            }
            least = fmin(least, worst / keys);
        }
    }
    return least;
}

// Each page in turn has the largest bound, and reports must have this bound.
static void the_worst_page_is_reported(void) {
    static const int bits[] = {8, 4, 3}, n = 900;
    static const char *const specs[2][3] = {{"dense-q:bits=8", "dense-q:bits=4", "dense-q:bits=3"},
                                            {"santa-is:proposal=int8", "santa-is:proposal=int4", "santa-is:proposal=int3"}};
    for (int worst = 0; worst < 3; worst++) {
        ref_cache c = ref_cache_new(6, 2, 80, 1, &n, 1, test_seed + worst);
        for (int h = 0; h < 2; h++)
            for (int j = worst * SL_PAGE; j < (worst + 1) * SL_PAGE; j++)
                for (int d = 0; d < 80; d++) {
                    bf16 *k = (bf16 *)ref_k_row(&c, 0, h, j) + d;
                    *k = sl_f32_to_bf16(2 * sl_bf16_to_f32(*k));
                }
        for (int b = 0; b < 3; b++) {
            sl_kv_need need = quantised_pages(&c, bits[b]);
            for (int page = 0; page < 3; page++)
                for (int h = 0; h < 2; h++) check_page_bounds(&c, need, page, h);
            for (int m = 0; m < 2; m++) {
                ref_decode(&c, specs[m][b], 0, 1, 1, 0);
                for (int head = 0; head < 6; head++) {
                    double keys, most = 0;
                    int at = -1;
                    for (int page = 0; page < 3; page++) {
                        const f16 *step = sl_kv_extra(&c.queries[0].kv, need, page, head / 3);
                        double bound = documented_bound(c.q + head * 80, step, 80, bits[b], &keys);
                        if (bound > most) most = bound, at = page;
                    }
                    CHECK_INT(at, worst);
                    CHECK_NEAR(c.reports[head].score_bound / (most * 0.6931471805599453), 1, 1e-5);
                }
            }
        }
        ref_cache_free(&c);
    }
}

// Keys half a step from the next code in every channel, with errors that add up: the error equals the keys' part of the bound.
// A bound that is a tenth too small does not hold here.
static void bounds_are_met(void) {
    static const int bits[] = {8, 4, 3}, n = 257;
    for (int b = 0; b < 3; b++) {
        int levels = (1 << bits[b]) - 1;
        ref_cache c = ref_cache_new(2, 1, 64, 1, &n, 1, test_seed);
        for (int i = 0; i < 2 * 64; i++) c.q[i] = (i * 7 % 64 < 31) != (i >= 64) ? 1.5f : -1.5f; // head 1 is minus head 0
        for (int j = 0; j < n; j++)
            for (int d = 0; d < 64; d++) { // codes c + 1/2 round to even: up from an odd c, down from an even c
                double half = levels / 2 + 0.5 - ((c.q[d] < 0) != (j % 2)), code = j == 0 ? 0 : j == 1 ? levels : half;
                ((bf16 *)ref_k_row(&c, 0, 0, j))[d] = sl_f32_to_bf16((float)ldexp(code, -6));
            }
        double share = check_page_bounds(&c, quantised_pages(&c, bits[b]), 0, 0);
        if (!(share > 0.999)) FAIL("%d bits: the largest error is %g of half a step in all channels", bits[b], share);
        ref_cache_free(&c);
    }
}

// The zero of a channel is the largest f16 that is not above the smallest key. The step is the smallest f16 that reaches the
// largest key in the number of levels. A wider step could compensate a zero above the smallest key: bounds would hold, but
// would be coarser.
static void check_outward(const ref_cache *c, sl_kv_need need, int page, int h, int d) {
    int dim = c->geom.head_dim, levels = (1 << need.arg) - 1;
    const f16 *step = sl_kv_extra(&c->queries[0].kv, need, page, h), *zero = step + dim;
    double low = INFINITY, high = -INFINITY;
    for (int j = 0; j < SL_PAGE; j++) {
        double k = sl_bf16_to_f32(ref_k_row(c, 0, h, page * SL_PAGE + j)[d]);
        low = fmin(low, k), high = fmax(high, k);
    }
    double from = sl_f16_to_f32(zero[d]), width = sl_f16_to_f32(step[d]), least = (high - from) / levels; // least: in fp32
    double above = sl_f16_to_f32((f16)(zero[d] & 0x8000 ? zero[d] - 1 : zero[d] + 1));                    // the next f16
    double below = sl_f16_to_f32((f16)(step[d] - 1));
    if (!(from <= low && above > low)) FAIL("%d bits, channel %d: zero %g, least key %g", need.arg, d, from, low);
    if (!(width >= least * (1 - 1e-6) && below < least * (1 + 1e-6)))
        FAIL("%d bits, channel %d: step %g, expected the 16-bit number not below %g", need.arg, d, width, least);
}

// Channels so small that steps and zeros are a few multiples of 2^-24, the smallest f16. Rounded outwards, every key lies
// within half a step of its code. No large channel hides an error.
static void small_channels(void) {
    static const int bits[] = {8, 4, 3}, n = 513;
    static const double sizes[] = {1, 1e-5, 2e-6, 4e-7, 1e-7};
    for (int i = 0; i < 5; i++) {
        ref_cache c = ref_cache_new(4, 2, 80, 1, &n, 1 / sizes[i], test_seed + i);
        for (int h = 0; h < 2; h++)
            for (int j = 0; j < n; j++)
                for (int d = 0; d < 80; d++) { // away from 0 on both sides
                    bf16 *k = (bf16 *)ref_k_row(&c, 0, h, j) + d;
                    *k = sl_f32_to_bf16((float)(sizes[i] * (sl_bf16_to_f32(*k) + (d % 3 - 1) * 6)));
                }
        for (int b = 0; b < 3; b++) {
            sl_kv_need need = quantised_pages(&c, bits[b]);
            for (int page = 0; page < 2; page++)
                for (int h = 0; h < 2; h++) {
                    const f16 *step = sl_kv_extra(&c.queries[0].kv, need, page, h), *zero = step + 80;
                    check_page_bounds(&c, need, page, h);
                    for (int d = 0; d < 80; d++) check_outward(&c, need, page, h, d);
                    for (int j = 0; j < SL_PAGE; j++)
                        for (int d = 0; d < 80; d++) {
                            double width = sl_f16_to_f32(step[d]),
                                   k = sl_bf16_to_f32(ref_k_row(&c, 0, h, page * SL_PAGE + j)[d]);
                            double got =
                                sl_f16_to_f32(zero[d]) + width * code_at((const uint8_t *)(zero + 80), bits[b], 80, j, d);
                            if (!(fabs(got - k) <= 0.5 * width * (1 + 1e-5)))
                                FAIL("%d bits, size %g, channel %d: key %g, code %g, step %g", bits[b], sizes[i], d, k, got,
                                     width);
                        }
                }
        }
        ref_cache_free(&c);
    }
}

// dense-q is dense attention on the dequantised keys zero + step * code.
static void dense_on_dequantised_keys(void) {
    static const int bits[] = {8, 4, 3}, n = 700;
    static double p[700], mu[80];
    float exact[80];
    ref_cache c = ref_cache_new(8, 2, 80, 1, &n, 1, test_seed);
    for (int b = 0; b < 3; b++) {
        char attn[32];
        snprintf(attn, sizeof attn, "dense-q:bits=%d", bits[b]);
        ref_decode(&c, attn, 0, 1, 1, 0);
        sl_attn_spec spec;
        sl_kv_need need;
        CHECK_OK(sl_attn_parse(attn, &spec, &err), err);
        CHECK_INT(spec.method->cpu->needs(&spec, &need), 1);
        for (int head = 0; head < 8; head++) {
            double weight, sum = 0, out[80] = {0};
            for (int j = 0; j < n; j++) {
                double dot = 0;
                for (int d = 0; d < 80; d++) {
                    double k = sl_bf16_to_f32(ref_k_row(&c, 0, head / 4, j)[d]);
                    if (j < 512) {
                        const f16 *step = sl_kv_extra(&c.queries[0].kv, need, j / 256, head / 4), *zero = step + 80;
                        double got =
                            sl_f16_to_f32(zero[d]) +
                            (double)sl_f16_to_f32(step[d]) * code_at((const uint8_t *)(zero + 80), bits[b], 80, j % 256, d);
                        CHECK(fabs(got - k) <= 0.5 * sl_f16_to_f32(step[d]) * (1 + 1e-5) + 1e-12);
                        k = got;
                    }
                    dot += c.q[head * 80 + d] * k;
                }
                weight = exp(dot / sqrt(80)), sum += weight;
                for (int d = 0; d < 80; d++) out[d] += weight * sl_bf16_to_f32(ref_v_row(&c, 0, head / 4, j)[d]);
            }
            for (int d = 0; d < 80; d++) out[d] /= sum;
            double off =
                ref_relative(c.out + head * 80, out, 80); // the query is rounded too: to 1 part in 254 of its largest term
            ref_attention(&c, 0, head, c.q + head * 80, n, p, mu);
            for (int d = 0; d < 80; d++) exact[d] = (float)mu[d];
            double away =
                ref_relative(exact, out, 80); // effect of the rounding of keys: the error must be at least three quarters of it
            if (!(off < 0.25 * away)) FAIL("%d bits, head %d: error %g, exact keys are %g away", bits[b], head, off, away);
        }
    }
    ref_cache_free(&c);
}

static void equal_integers(void) { // dot products are integers: equal on every instruction set
    static const char *const isas[] = {"portable", "avx2", "avx512"};
    uint64_t seed = test_seed;
    enum { DIM = 80 };
    static uint8_t planes[2 * 64 * 16 * 20];
    for (size_t i = 0; i < sizeof planes; i++) planes[i] = (uint8_t)(test_uniform(&seed) * 256);
    sl_quant_query q[5] = {0};
    for (int g = 0; g < 5; g++) {
        for (int d = 0; d < DIM; d++) {
            q[g].high[d] = (int8_t)(test_uniform(&seed) * 255 - 127), q[g].low[d] = (int8_t)(test_uniform(&seed) * 127 - 64);
        }
        q[g].scale = 0.01f, q[g].bias = 0.5f, q[g].sum = 77 * g;
    }
    for (int bits = 3; bits <= 8; bits += bits == 3 ? 1 : 4) {
        float want[5 * 256], got[5 * 256];
        sl_attn_kernels_named("portable")->score_quantised(q, 5, planes, DIM, bits, want, 256);
        for (int i = 1; i < 3; i++) {
            const sl_attn_kernels *k = sl_attn_kernels_named(isas[i]);
            if (!k) continue;
            k->score_quantised(q, 5, planes, DIM, bits, got, 256);
            for (int j = 0; j < 5 * 256; j++)
                CHECK_NEAR(got[j], want[j], 1e-6 * (1 + fabs(want[j]))); // one fused rounding apart
        }
    }
}

// ---- santa-is ----

static void importance_limits(void) {
    for (int g = 0; g < N_GEOMETRIES; g++) {
        ref_cache c =
            ref_cache_new(geometries[g].heads, geometries[g].kv_heads, geometries[g].dim, N_SEQS, lengths_of, 2, test_seed + g);
        ref_decode(&c, "santa-is:S=1500", 0, N_SEQS, 5, 0); // every row: dense
        for (int s = 0; s < N_SEQS; s++)
            for (int head = 0; head < geometries[g].heads; head++) CHECK(ref_error(&c, s, head) < 1e-5);
        ref_decode(&c, "santa-is:S=20", 0, N_SEQS, 5, 0); // S + r draws, r rows in the newest page; r alone is dense
        for (int s = 0; s < N_SEQS; s++) {
            int newest = lengths_of[s] - (lengths_of[s] - 1) / 256 * 256;
            for (int head = 0; head < geometries[g].heads; head++) {
                CHECK_INT(c.reports[s * geometries[g].heads + head].samples, (lengths_of[s] > 256 ? 20 : 0) + newest);
                if (lengths_of[s] <= 256) CHECK(ref_error(&c, s, head) < 1e-5);
            }
        }
        ref_cache_free(&c);
    }
}

// A self-normalised estimate has a bias that falls as 1 / S. Rows with a proposal that is too small have the value 1, the
// others -1. So the bias has one direction and exceeds the noise, and bias times S is seen to be constant. A wrong expected
// count leaves a bias that does not fall.
static void importance_bias(void) {
    static const int n = 600, budgets[] = {4, 8, 16};
    enum { HEADS = 8, DIM = 64 };
    const int R = 3000 / SCALE;
    ref_cache c = ref_cache_new(HEADS, HEADS, DIM, 1, &n, 1.5, test_seed);
    double p[600], mu[DIM], proposed[600], scaled[3], noise[3];
    for (int h = 0; h < HEADS; h++) {
        CHECK_INT(scores_of(&c, "santa-is:proposal=int3", 0, h, proposed, NULL), n);
        for (int j = 0; j < n; j++) {
            bf16 *v = (bf16 *)ref_v_row(&c, 0, h, j);
            memset(v, 0, DIM * sizeof *v);
            v[0] = sl_f32_to_bf16(exact_score(&c, 0, h, j) > proposed[j] ? 1 : -1);
        }
    }
    for (int b = 0; b < 3; b++) {
        double mean[HEADS] = {0}, square[HEADS] = {0}, bias = 0, variance = 0;
        char attn[64];
        snprintf(attn, sizeof attn, "santa-is:S=%d:proposal=int3", budgets[b]);
        for (int r = 0; r < R; r++) {
            ref_decode(&c, attn, 0, 1, (uint32_t)(test_seed + r), 0);
            for (int h = 0; h < HEADS; h++) mean[h] += c.out[h * DIM] / R, square[h] += pow(c.out[h * DIM], 2) / R;
        }
        for (int h = 0; h < HEADS; h++) {
            ref_attention(&c, 0, h, c.q + h * DIM, n, p, mu);
            bias += (mean[h] - mu[0]) / HEADS;
            variance += (square[h] - mean[h] * mean[h]) / R / HEADS / HEADS;
        }
        scaled[b] = bias * budgets[b], noise[b] = sqrt(variance) * budgets[b];
        printf("      S = %d: bias times S %.4f, standard error %.4f\n", budgets[b], scaled[b], noise[b]);
    }
    CHECK(fabs(scaled[0]) > 3 * noise[0]); // there is a bias: 16 standard errors of 3,000 runs
    for (int b = 1; b < 3; b++) {
        double ratio = scaled[b] / scaled[0], error = 5 * hypot(noise[b], noise[0]) / fabs(scaled[0]);
        if (!(ratio > 0.6 - error && ratio < 1.5 + error))
            FAIL("bias times S: %.4f at S=4, %.4f at S=%d", scaled[0], scaled[b], budgets[b]);
    }
    ref_cache_free(&c);
}

static void
one_bad_proposal_is_corrected(void) { // an outlier makes the proposal of a page coarse; the error still falls with S
    static const int n = 2000;
    ref_cache c = ref_cache_new(8, 2, 64, 1, &n, 1, test_seed);
    for (int h = 0; h < 2; h++)
        for (int d = 0; d < 64; d += 3) ((bf16 *)ref_k_row(&c, 0, h, 300))[d] = sl_f32_to_bf16(d % 2 ? 40 : -40);
    double last = INFINITY;
    for (int S = 64; S <= 1024; S *= 4) {
        double sum = 0;
        char attn[64];
        snprintf(attn, sizeof attn, "santa-is:S=%d:proposal=int3", S);
        for (uint32_t seed = 0; seed < 10; seed++) {
            ref_decode(&c, attn, 0, 1, seed, 0);
            for (int head = 0; head < 8; head++) sum += pow(ref_error(&c, 0, head), 2) / 80;
        }
        if (!(sum < 0.6 * last)) FAIL("S=%d: mean square error %g, before %g", S, sum, last);
        last = sum;
    }
    ref_cache_free(&c);
}

// ---- page bounds ----

static void bounds_hold(void) {
    for (int g = 0; g < N_GEOMETRIES; g++) {
        ref_cache c =
            ref_cache_new(geometries[g].heads, geometries[g].kv_heads, geometries[g].dim, N_SEQS, lengths_of, 1, test_seed + g);
        int group = geometries[g].heads / geometries[g].kv_heads, dim = geometries[g].dim;
        double *score = malloc((size_t)group * 100 * sizeof *score);
        for (int s = 0; s < N_SEQS; s++)
            for (int h = 0; h < geometries[g].kv_heads; h++) {
                int n = scores_of(&c, "quest", s, h, score, NULL);
                CHECK_INT(n, (lengths_of[s] + 15) / 16);
                for (int i = 0; i < group; i++)
                    for (int u = 0; u < n; u++) {
                        double want = 0, top = -INFINITY;
                        const float *q = c.queries[s].q + (size_t)(h * group + i) * dim;
                        int end = (u + 1) * 16 < lengths_of[s] ? (u + 1) * 16 : lengths_of[s];
                        for (int d = 0; d < dim; d++) {
                            double best = -INFINITY;
                            for (int j = u * 16; j < end; j++)
                                best = fmax(best, q[d] * (double)sl_bf16_to_f32(ref_k_row(&c, s, h, j)[d]));
                            want += best;
                        }
                        want *= 1.4426950408889634 / sqrt(dim);
                        for (int j = u * 16; j < end; j++) top = fmax(top, exact_score(&c, s, h * group + i, j));
                        CHECK_NEAR(score[i * n + u], want, 1e-5 * (1 + fabs(want)));
                        CHECK(score[i * n + u] >= top - 1e-5 * (1 + fabs(top)));
                    }
            }
        free(score);
        ref_cache_free(&c);
    }
}

static void quest_budgets(void) {
    ref_cache c = ref_cache_new(8, 2, 64, N_SEQS, lengths_of, 2, test_seed);
    ref_decode(&c, "quest:tokens=2048", 0, N_SEQS, 1, 0);
    for (int s = 0; s < N_SEQS; s++)
        for (int head = 0; head < 8; head++) CHECK(ref_error(&c, s, head) < 1e-5);
    ref_decode(&c, "quest:tokens=64", 0, N_SEQS, 1, 0);
    for (int s = 0; s < N_SEQS; s++)
        for (int head = 0; head < 8; head++) { // the newest unit may be short
            int n = lengths_of[s], most = n < 64 ? n : 48 + (n % 16 ? n % 16 : 16);
            CHECK_INT(c.reports[s * 8 + head].v_rows, most);
        }
    ref_decode(&c, "quest:tokens=16", 5, 1, 1, 0); // the newest unit alone
    double p[1500], mu[64];
    for (int head = 0; head < 8; head++) {
        double sum = 0, out[64] = {0};
        ref_attention(&c, 5, head, c.queries[5].q + head * 64, 1500, p, mu);
        for (int j = 1488; j < 1500; j++)
            for (int d = 0; d < 64; d++) sum += d ? 0 : p[j], out[d] += p[j] * sl_bf16_to_f32(ref_v_row(&c, 5, head / 4, j)[d]);
        for (int d = 0; d < 64; d++) CHECK_NEAR(c.queries[5].out[head * 64 + d], out[d] / sum, 1e-4);
    }
    ref_cache_free(&c);
}

// ---- hashes ----

// A hash bit is the sign of a random projection: two vectors agree in it with probability 1 - theta / pi. Over all tables and
// rows of a few hundred (query, key) pairs, the share of matching tables must be the mean of p^K. The standard error comes from
// the spread over pairs and tables. All pairs share the K projections of a table, so tables are the independent samples.
static void hash_probabilities(void) {
    enum { K = 4, L = 512, DIM = 64 };
    static const int n = 300;
    ref_cache c = ref_cache_new(1, 1, DIM, 1, &n, 1, test_seed);
    sl_attn_spec spec;
    sl_kv_need need;
    CHECK_OK(sl_attn_parse("magicpig:K=4:L=512:sink=0:window=0", &spec, &err), err);
    ref_decode(&c, "magicpig:K=4:L=512:sink=0:window=0", 0, 1, 1, 0);
    spec.method->cpu->needs(&spec, &need);
    const float *block = sl_kv_extra(&c.queries[0].kv, need, 0, 0), *centre = block + 16 + DIM, *norm = centre + DIM;
    const uint16_t *sig = (const uint16_t *)(norm + SL_PAGE);
    for (int d = 0; d < DIM; d++) {
        double mean = 0;
        for (int j = 0; j < 256; j++) mean += sl_bf16_to_f32(ref_k_row(&c, 0, 0, j)[d]) / 256.0;
        CHECK_NEAR(centre[d], mean, 1e-5);
    }
    double sum = 0, square = 0, want = 0;
    for (int t = 0; t < L; t++) { // pairs of keys, whose signatures are both stored
        int match = 0, pairs = 0;
        for (int a = 0; a < 256; a += 2, pairs++) match += sig[t * 256 + a] == sig[t * 256 + a + 1];
        double share = (double)match / pairs;
        sum += share / L, square += share * share / L;
    }
    for (int a = 0; a < 256; a += 2) {
        double dot = 0;
        for (int d = 0; d < DIM; d++)
            dot += (sl_bf16_to_f32(ref_k_row(&c, 0, 0, a)[d]) - centre[d]) *
                   (sl_bf16_to_f32(ref_k_row(&c, 0, 0, a + 1)[d]) - centre[d]);
        double cosine = dot / norm[a] / norm[a + 1];
        CHECK_NEAR(sl_hash_probability(cosine, K, 1, 1), pow(1 - acos(cosine) / 3.14159265358979, K), 1e-9);
        want += sl_hash_probability(cosine, K, 1, 1) / 128;
    }
    CHECK_NEAR(sum, want, 4 * sqrt((square - sum * sum) / L));
    double p = pow(0.7, 6), none = pow(1 - p, 20); // cos = cos(0.3 pi)
    CHECK_NEAR(sl_hash_probability(cos(0.3 * 3.14159265358979), 6, 20, 1), 1 - none, 1e-6);
    CHECK_NEAR(sl_hash_probability(cos(0.3 * 3.14159265358979), 6, 20, 2), 1 - none - 20 * p * pow(1 - p, 19), 1e-6);
    ref_cache_free(&c);
}

static void hashes_tend_to_dense(void) { // more tables, more candidates; short hashes make every row a candidate
    static const int n = 1500;
    static const char *const specs[] = {"magicpig:K=8:L=20", "magicpig:K=8:L=100", "magicpig:K=8:L=500", "magicpig:K=1:L=200"};
    ref_cache c = ref_cache_new(8, 2, 64, 1, &n, 1, test_seed);
    double last = INFINITY;
    for (int i = 0; i < 4; i++) {
        double sum = 0;
        ref_decode(&c, specs[i], 0, 1, 1, 0);
        for (int head = 0; head < 8; head++) sum += pow(ref_error(&c, 0, head), 2) / 8;
        if (!(sum < last)) FAIL("%s: mean square error %g, before %g", specs[i], sum, last);
        last = sum;
    }
    CHECK(last < 1e-8);
    ref_cache_free(&c);
}

// ---- subsets ----

static void subsets(void) {
    ref_cache c = ref_cache_new(8, 2, 64, N_SEQS, lengths_of, 2, test_seed);
    static const char *const whole[] = {"topk:k=1500", "topp:p=1", "streaming:window=1500"};
    for (int i = 0; i < 3; i++) {
        ref_decode(&c, whole[i], 0, N_SEQS, 1, 0);
        for (int s = 0; s < N_SEQS; s++)
            for (int head = 0; head < 8; head++) CHECK(ref_error(&c, s, head) < (i == 2 ? 1e-5 : 0x1p-8));
    }
    double p[1500], mu[64];
    int n_near = 0;
    for (int i = 0; i < 2; i++) { // sink 4 and window 60; the rows above the 20th score
        ref_decode(&c, i ? "topk:k=20" : "streaming:window=60", 5, 1, 1, 0);
        for (int head = 0; head < 8; head++) {
            double sum = 0, out[64] = {0}, cut = 0, next = 0;
            ref_attention(&c, 5, head, c.queries[5].q + head * 64, 1500, p, mu);
            for (int k = 0; i && k <= 20; k++) { // the 20th score, and the next one
                if (k == 20) cut = next;
                double before = next;
                next = 0;
                for (int j = 0; j < 1500; j++)
                    if ((k == 0 || p[j] < before) && p[j] > next) next = p[j];
            }
            for (int j = 0; j < 1500; j++) {
                if (i ? p[j] < cut : j >= 4 && j < 1440) continue;
                sum += p[j];
                for (int d = 0; d < 64; d++) out[d] += p[j] * sl_bf16_to_f32(ref_v_row(&c, 5, head / 4, j)[d]);
            }
            for (int d = 0; d < 64; d++) out[d] /= sum;
            // The relative error of a mass (bf16) is at most 2^-8. Rows whose masses are closer than that may swap at the cut.
            if (i && next > cut * (1 - 0x1p-7))
                n_near++;
            else
                CHECK(ref_relative(c.queries[5].out + head * 64, out, 64) < (i ? 0x1p-7 : 1e-5));
            CHECK_INT(c.reports[head].v_rows, i ? 20 : 64);
        }
    }
    CHECK(n_near <= 6);
    ref_cache_free(&c);
}

static void uniform_rows(void) { // every row equally often, n rows and R S draws: 5 standard errors for the worst of n rows
    enum { N = 500, S = 16, R = 4000 };
    int32_t row[S], count[S];
    float inv_pi[S];
    uint64_t scratch[64];
    bf16 w[512] = {0};
    int16_t ref[16];
    uint64_t cum[17] = {0};
    double seen[N] = {0};
    for (int b = 0; b < 16; b++) ref[b] = SL_REF_EMPTY;
    sl_masses masses = {.n = N, .n_blocks = 16, .stored = w, .ref = ref, .cum = cum, .top = SL_REF_EMPTY, .uniform = 1u << 30};
    sl_draws draws = {.row = row, .count = count, .inv_pi = inv_pi, .scratch = scratch};
    for (uint32_t r = 0; r < R; r++) {
        sl_draw_independent(&masses, S, (sl_uniform){uniform_random, &r}, &draws);
        for (int i = 0; i < draws.n; i++) {
            CHECK(row[i] >= 0 && row[i] < N);
            CHECK_NEAR(inv_pi[i], (double)N / S, 1e-3);
            seen[row[i]] += count[i];
        }
    }
    double want = (double)S * R / N;
    for (int j = 0; j < N; j++) CHECK_NEAR(seen[j], want, 5 * sqrt(want));
}

static const test_case cases[] = {
    {"quantised-scores", 0, quantised_scores},
    {"the-worst-page-is-reported", 0, the_worst_page_is_reported},
    {"bounds-are-met", 0, bounds_are_met},
    {"small-channels", 0, small_channels},
    {"dense-on-dequantised-keys", 0, dense_on_dequantised_keys},
    {"equal-integers", 0, equal_integers},
    {"importance-limits", 0, importance_limits},
    {"importance-bias", 0, importance_bias},
    {"one-bad-proposal-is-corrected", 0, one_bad_proposal_is_corrected},
    {"bounds-hold", 0, bounds_hold},
    {"quest-budgets", 0, quest_budgets},
    {"hash-probabilities", 0, hash_probabilities},
    {"hashes-tend-to-dense", 0, hashes_tend_to_dense},
    {"subsets", 0, subsets},
    {"uniform-rows", 0, uniform_rows},
    {0},
};
const test_suite suite_proposals = {"proposals", cases};
