// tests/attention/test_sparse.c - quest and magicpig from end to end, against plain double precision: the units that Quest
// reads, the frequency of MagicPIG's candidates and the output from them, and page extras of a sequence that was cut back or
// forked. test_proposals.c tests the scores of single rows.
#include "attention/stages/stages.h"
#include "tests/support/reference.h"
#include "tests/test.h"
#include "tests/support/draw_inputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static sl_error err;

static double dot_bf16(const float *q, const bf16 *k, int dim) {
    double sum = 0;
    for (int d = 0; d < dim; d++) sum += (double)q[d] * sl_bf16_to_f32(k[d]);
    return sum;
}

// ---- Quest: units that are read ----

// The largest score within the channel bounds of a unit, in log2 units.
static double bound_of(const ref_cache *c, int head, int unit) {
    int dim = c->geom.head_dim, n = c->seqs[0].n_tokens, h = head / (c->geom.n_heads / c->geom.n_kv_heads);
    double sum = 0;
    for (int d = 0; d < dim; d++) {
        double most = -INFINITY;
        for (int j = unit * 16; j < n && j < (unit + 1) * 16; j++)
            most = fmax(most, c->q[head * dim + d] * (double)sl_bf16_to_f32(ref_k_row(c, 0, h, j)[d]));
        sum += most;
    }
    return sum * 1.4426950408889634 / sqrt(dim);
}

// Every unit has a value channel of its own, so the output shows the units that were read.
static void mark_units(ref_cache *c) {
    for (int h = 0; h < c->geom.n_kv_heads; h++)
        for (int j = 0; j < c->seqs[0].n_tokens; j++)
            for (int d = 0; d < c->geom.head_dim; d++) ((bf16 *)ref_v_row(c, 0, h, j))[d] = sl_f32_to_bf16(d == j / 16 ? 1 : 0);
}

// n_sink: first units that are read whatever their bound.
static void check_units(const ref_cache *c, int head, int n_wanted, int n_sink) {
    int dim = c->geom.head_dim, newest = (c->seqs[0].n_tokens - 1) / 16, n_read = 0;
    const float *out = c->out + head * dim;
    double least = INFINITY, most = -INFINITY; // smallest bound of the units that were read, largest of the others
    for (int u = 0; u <= newest; u++) {
        double bound = bound_of(c, head, u);
        if (out[u] > 0 && u != newest && u >= n_sink) least = fmin(least, bound);
        if (out[u] == 0) most = fmax(most, bound);
        if (u < n_sink) CHECK(out[u] > 0);
        n_read += out[u] > 0;
    }
    CHECK_INT(n_read, n_wanted);
    CHECK(out[newest] > 0);
    // Masses are bf16: two bounds within a rounding step of each other may swap.
    if (!(least >= most - 0.012)) FAIL("head %d: a unit of bound %g was read, one of %g was not", head, least, most);
}

static void largest_units(void) {
    static const struct {
        int heads, kv_heads, dim, n;
    } cases[] = {
        {1, 1, 64, 1000}, {6, 2, 80, 1279}, {8, 2, 128, 1500}, {8, 1, 128, 257},
        {8, 1, 64, 255},  {4, 4, 64, 31},   {4, 1, 64, 1},     {9, 3, 64, 1023},
    };
    static const int tokens[] = {16, 31, 48, 256, 512, 1024};
    for (int i = 0; i < 8; i++) {
        int n_units = (cases[i].n + 15) / 16;
        ref_cache c = ref_cache_new(cases[i].heads, cases[i].kv_heads, cases[i].dim, 1, &cases[i].n, 1, test_seed + i);
        mark_units(&c);
        for (int t = 0; t < 6; t++) {
            for (int sink = 0; sink <= 81 && sink <= tokens[t] / 16 * 16 - 16; sink += 27) { // 0, 2, 4 and 6 units
                char attn[60];
                snprintf(attn, sizeof attn, "quest:tokens=%d:sink=%d", tokens[t], sink);
                ref_decode(&c, attn, 0, 1, 1, 0);
                for (int head = 0; head < cases[i].heads; head++)
                    check_units(&c, head, tokens[t] / 16 < n_units ? tokens[t] / 16 : n_units, (sink + 15) / 16);
            }
        }
        ref_cache_free(&c);
    }
}

static void sink_too_large(void) {
    sl_attn_spec spec;
    CHECK_OK(sl_attn_parse("quest:tokens=63:sink=32", &spec, &err), err);
    CHECK_ERR(sl_attn_parse("quest:tokens=63:sink=33", &spec, &err), err, SL_ERR_ARG,
              "sink 33: expected at most 32 with tokens 63");
}

// The bound of a unit may lie far above its rows, and far above the best rows of other units. With a budget for all rows,
// bounds must have no effect. Here the bounds of one page are hundreds of octaves above all scores.
static void whole_budget_ignores_bounds(void) {
    enum { N = 1000, DIM = 64 };
    static const int n = N;
    ref_cache c = ref_cache_new(8, 2, DIM, 1, &n, 1, test_seed);
    for (int h = 0; h < 2; h++)
        for (int j = 32; j < 48; j++) // row j has a huge entry of either sign in channel pairs; its terms cancel
            for (int d = 0; d < DIM; d++)
                ((bf16 *)ref_k_row(&c, 0, h, j))[d] = sl_f32_to_bf16((d + j) % 2 ? 1500.0f : -1500.0f);
    for (int head = 0; head < 8; head++)
        for (int d = 0; d < DIM; d += 2) c.q[head * DIM + d + 1] = c.q[head * DIM + d];
    ref_decode(&c, "quest:tokens=1008", 0, 1, 1, 0);
    for (int head = 0; head < 8; head++) {
        CHECK_INT(c.reports[head].v_rows, N);
        CHECK(ref_error(&c, 0, head) < 1e-5);
    }
    ref_cache_free(&c);
}

// ---- MagicPIG: frequency of candidates ----

typedef struct hashed {
    sl_kv_need need;
    int L;
    const float *centre, *norm; // of page 0, KV head 0
    const uint16_t *sig;        // [L][256]
    uint16_t *query;            // [L][256], the first `group` in use
} hashed;

// Page 0 as the proposal stored it, and the signatures of the queries of KV head 0.
static hashed hashed_of(ref_cache *c, const char *attn) {
    sl_attn_spec spec;
    hashed x;
    ref_decode(c, attn, 0, 1, 1, 0);
    CHECK_OK(sl_attn_parse(attn, &spec, &err), err);
    const sl_proposal *propose = sl_composition_of(&spec).propose;
    sl_attn_decode_args args = {.geom = &c->geom, .spec = &spec, .n_seqs = 1, .seqs = c->queries};
    sl_group g = sl_group_of(&args, 0, 0);
    CHECK_INT(propose->needs(&spec, &x.need), 1);
    x.L = (int)sl_attn_get(&spec, "L");
    x.query = g.state = calloc(1, propose->state(&c->geom, &spec, g.kv->n_kv));
    propose->begin(&g);
    x.centre = (const float *)sl_kv_extra(&c->queries[0].kv, x.need, 0, 0) + 16 + c->geom.head_dim;
    x.norm = x.centre + c->geom.head_dim;
    x.sig = (const uint16_t *)(x.norm + SL_PAGE);
    return x;
}

static double cosine_of(const ref_cache *c, const hashed *x, const float *q, const bf16 *k) {
    double dot = 0, square = 0, q_square = 0;
    for (int d = 0; d < c->geom.head_dim; d++) {
        double from = sl_bf16_to_f32(k[d]) - (double)x->centre[d];
        dot += q[d] * from, square += from * from, q_square += (double)q[d] * q[d];
    }
    return dot / sqrt(square * q_square);
}

// 512 tables in 32 sets of 16 are 32 independent sets of projections. For each set, the share of (query, key) pairs that match
// in at least `hits` of 16 tables, by classes of the cosine. The mean over the sets is the mean of pi, within 4 standard
// errors. The standard error comes from the spread over sets, because pairs of one set share projections.
static void candidates_are_as_likely_as_stated(void) {
    enum { K = 4, SETS = 32, EACH = 16, DIM = 64, CLASSES = 3 };
    static const int n = 300;
    ref_cache c = ref_cache_new(8, 1, DIM, 1, &n, 1, test_seed);
    for (int j = 0; j < 256; j++) // away from the origin, so that centring has an effect; half of the keys lean towards a query
        for (int d = 0; d < DIM; d++) {
            bf16 *k = (bf16 *)ref_k_row(&c, 0, 0, j);
            k[d] = sl_f32_to_bf16(sl_bf16_to_f32(k[d]) + (d % 5 ? 0 : 3.0f) + (j % 2 ? c.q[j / 2 % 8 * DIM + d] : 0));
        }
    hashed x = hashed_of(&c, "magicpig:K=4:L=512");
    for (int hits = 1; hits <= 2; hits++) {
        double share[CLASSES][SETS] = {{0}}, want[CLASSES] = {0};
        int pairs[CLASSES] = {0};
        for (int head = 0; head < 8; head++)
            for (int j = 0; j < 256; j++) {
                double cosine = cosine_of(&c, &x, c.q + head * DIM, ref_k_row(&c, 0, 0, j));
                int class = cosine < 0 ? 0 : cosine < 0.3 ? 1 : 2;
                pairs[class]++;
                want[class] += sl_hash_probability(cosine, K, EACH, hits);
                for (int t = 0, found = 0; t < x.L; t++) {
                    found = (t % EACH ? found : 0) + (x.sig[t * 256 + j] == x.query[t * 256 + head]);
                    if (t % EACH == EACH - 1) share[class][t / EACH] += found >= hits;
                }
            }
        for (int class = 0; class < CLASSES; class ++) {
            double sum = 0, square = 0;
            for (int i = 0; i < SETS; i++) {
                double s = share[class][i] / pairs[class];
                sum += s / SETS, square += s * s / SETS;
            }
            CHECK(pairs[class] >= 100);
            CHECK_NEAR(sum, want[class] / pairs[class], 4 * sqrt((square - sum * sum) / (SETS - 1)));
        }
    }
    free(x.query);
    ref_cache_free(&c);
}

// ---- MagicPIG: from candidates to the output ----

// Bits in double precision. A bit that rounding could flip is taken from `stored`; every other bit must equal it.
static unsigned signature(const double *x, const float *projections, int dim, int K, int t, const uint16_t *stored) {
    unsigned bits = 0;
    const float *p = projections + (size_t)(t / 16) * dim * 16 * K + t % 16 * K; // [set][dim][16 K]
    for (int b = 0; b < K; b++) {
        double dot = 0, size = 0;
        for (int d = 0; d < dim; d++) dot += x[d] * p[(size_t)d * 16 * K + b], size += fabs(x[d] * p[(size_t)d * 16 * K + b]);
        unsigned bit = fabs(dot) < 1e-5 * size ? *stored >> (K - 1 - b) & 1 : dot > 0;
        bits = bits << 1 | bit;
    }
    CHECK_INT(*stored, bits);
    return bits;
}

typedef struct lsh {
    const char *attn;
    int K, L, hits, sink, window;
} lsh;

// The output of query head i of KV head 0 from candidates, masses and centres that are all computed here. Stored signatures
// decide only on bits that rounding could flip.
static void check_output(ref_cache *c, const lsh *m, int head, const hashed *x) {
    int dim = c->geom.head_dim, n = c->seqs[0].n_tokens, n_pages = (n - 1) / 256;
    const float *projections = sl_kv_shared(&c->queries[0].kv, x->need, 0), *q = c->q + head * dim;
    double centre[128] = {0}, from[128], total = 0, out[128] = {0};
    uint16_t own[512];
    for (int d = 0; d < dim; d++) from[d] = q[d];
    for (int t = 0; t < m->L; t++) own[t] = (uint16_t)signature(from, projections, dim, m->K, t, &x->query[t * 256 + head]);
    for (int j = 0, sum_n = 0; j < n; j++) {
        const bf16 *k = ref_k_row(c, 0, 0, j);
        double pi = 1;
        if (j % 256 == 0 && j / 256 < n_pages) {
            for (int d = 0; d < dim; d++) centre[d] *= sum_n;
            for (int i = j; i < j + 256; i++, sum_n++)
                for (int d = 0; d < dim; d++) centre[d] += sl_bf16_to_f32(ref_k_row(c, 0, 0, i)[d]);
            for (int d = 0; d < dim; d++) centre[d] /= sum_n;
        }
        if (j >= m->sink && j < n - m->window && j < n_pages * 256) {
            const float *block = sl_kv_extra(&c->queries[0].kv, x->need, j / 256, 0);
            const uint16_t *sig = (const uint16_t *)(block + 16 + 2 * dim + 256) + j % 256;
            double dot = 0, square = 0, q_square = 0;
            int found = 0;
            for (int d = 0; d < dim; d++) {
                from[d] = sl_bf16_to_f32(k[d]) - centre[d];
                dot += q[d] * from[d], square += from[d] * from[d], q_square += (double)q[d] * q[d];
            }
            for (int t = 0; t < m->L; t++) found += signature(from, projections, dim, m->K, t, sig + t * 256) == own[t];
            if (found < m->hits) continue;
            double p = pow(1 - acos(dot / sqrt(square * q_square)) / 3.14159265358979323846, m->K);
            pi = 1 - pow(1 - p, m->L) - (m->hits == 2 ? m->L * p * pow(1 - p, m->L - 1) : 0);
        }
        double weight = exp(dot_bf16(q, k, dim) / sqrt(dim)) / pi;
        total += weight;
        for (int d = 0; d < dim; d++) out[d] += weight * sl_bf16_to_f32(ref_v_row(c, 0, 0, j)[d]);
    }
    for (int d = 0; d < dim; d++) out[d] /= total;
    double off = ref_relative(c->out + head * dim, out, dim);
    if (!(off < 1e-4)) FAIL("%s, head %d: %g from the reference", m->attn, head, off);
}

static void candidates_are_weighted(void) {
    static const lsh methods[] = {
        {"magicpig:K=6:L=30", 6, 30, 2, 4, 64},
        {"magicpig:K=4:L=5:hits=1:sink=0:window=0", 4, 5, 1, 0, 0},
        {"magicpig:K=16:L=17:hits=1:sink=10:window=500", 16, 17, 1, 10, 500},
        {"magicpig:K=1:L=1:hits=1:sink=300:window=1", 1, 1, 1, 300, 1},
    };
    static const int n = 800;
    ref_cache c = ref_cache_new(4, 1, 80, 1, &n, 1, test_seed);
    for (int j = 0; j < n; j++)
        for (int d = 0; d < 80; d += 7) {
            bf16 *k = (bf16 *)ref_k_row(&c, 0, 0, j);
            k[d] = sl_f32_to_bf16(sl_bf16_to_f32(k[d]) - 2);
        }
    for (int i = 0; i < 4; i++) {
        hashed x = hashed_of(&c, methods[i].attn);
        for (int head = 0; head < 4; head++) check_output(&c, &methods[i], head, &x);
        free(x.query);
    }
    ref_cache_free(&c);
}

static void one_hit_tends_to_dense(void) {
    static const int lengths[] = {1, 256, 257, 1500};
    ref_cache c = ref_cache_new(8, 2, 64, 4, lengths, 1, test_seed);
    ref_decode(&c, "magicpig:K=1:L=200:hits=1", 0, 4, 1, 0);
    for (int s = 0; s < 4; s++)
        for (int head = 0; head < 8; head++) CHECK(ref_error(&c, s, head) < 1e-5);
    double last = INFINITY; // the error falls on the way
    for (int L = 4; L <= 256; L *= 4) {
        char attn[48];
        double sum = 0;
        snprintf(attn, sizeof attn, "magicpig:K=6:L=%d:hits=1", L);
        ref_decode(&c, attn, 3, 1, 1, 0);
        for (int head = 0; head < 8; head++) sum += pow(ref_error(&c, 3, head), 2);
        if (!(sum < last)) FAIL("L=%d: squared error %g, before %g", L, sum, last);
        last = sum;
    }
    ref_cache_free(&c);
}

// ---- page extras of sequences that change ----

static void check_same_extras(const ref_cache *a, int s, const ref_cache *b, const char *attn) {
    sl_attn_spec spec;
    sl_kv_need need[SL_MAX_NEEDS];
    CHECK_OK(sl_attn_parse(attn, &spec, &err), err);
    int n_needs = spec.method->cpu->needs(&spec, need);
    CHECK(n_needs > 0);
    for (int i = 0; i < n_needs; i++)
        for (int page = 0; page < sl_kv_n_built(&b->queries[0].kv); page++)
            for (int h = 0; h < a->geom.n_kv_heads; h++)
                if (memcmp(sl_kv_extra(&a->queries[s].kv, need[i], page, h), sl_kv_extra(&b->queries[0].kv, need[i], page, h),
                           need[i].kind->size(need[i].arg, a->geom.head_dim)))
                    FAIL("%s: \"%s\" of page %d differs from one that was built from scratch", attn, need[i].kind->name, page);
}

// A sequence is cut back inside a page and continued. Another sequence shares its first pages and continues differently. Both
// must hold the page extras of a fresh sequence with the same rows, and give equal bits.
static void extras_follow_their_rows(void) {
    static const char *const methods[] = {"quest:tokens=256", "magicpig:K=5:L=33"};
    enum { N = 1100, CUT = 300, AGAIN = 1050, FORK = 700, FORKED = 900, ROW = 8 * 64 };
    static const int two[] = {N, 1}, again = AGAIN, forked = FORKED;
    for (int m = 0; m < 2; m++) {
        ref_cache a = ref_cache_new(8, 2, 64, 2, two, 1, test_seed), b = ref_cache_new(8, 2, 64, 1, &again, 1, test_seed + 1),
                  f = ref_cache_new(8, 2, 64, 1, &forked, 1, test_seed + 2);
        ref_write_rows(&a, 0, 0, N, 100);
        ref_decode(&a, methods[m], 0, 1, 1, 0);
        sl_kv_truncate(&a.pool, &a.seqs[0], CUT);
        ref_set_length(&a, 0, AGAIN);
        ref_write_rows(&a, 0, CUT, AGAIN, 77);
        ref_decode(&a, methods[m], 0, 1, 1, 0);
        ref_write_rows(&b, 0, 0, CUT, 100), ref_write_rows(&b, 0, CUT, AGAIN, 77);
        memcpy(b.q, a.q, ROW * sizeof *b.q);
        ref_decode(&b, methods[m], 0, 1, 1, 0);
        check_same_extras(&a, 0, &b, methods[m]);
        if (memcmp(a.out, b.out, ROW * sizeof *a.out)) FAIL("%s: other bits after truncation", methods[m]);

        sl_kv_seq_free(&a.pool, &a.seqs[1]);
        CHECK_OK(sl_kv_fork(&a.pool, &a.seqs[0], &a.seqs[1], FORK, &err), err);
        ref_set_length(&a, 1, FORKED);
        ref_write_rows(&a, 1, FORK, FORKED, 5);
        ref_decode(&a, methods[m], 0, 2, 1, 0);
        ref_write_rows(&f, 0, 0, CUT, 100), ref_write_rows(&f, 0, CUT, FORK, 77), ref_write_rows(&f, 0, FORK, FORKED, 5);
        memcpy(f.q, a.q + ROW, ROW * sizeof *f.q);
        ref_decode(&f, methods[m], 0, 1, 1, 0);
        check_same_extras(&a, 1, &f, methods[m]);
        check_same_extras(&a, 0, &b, methods[m]); // the fork did not change its parent
        if (memcmp(a.out + ROW, f.out, ROW * sizeof *f.out)) FAIL("%s: other bits after a fork", methods[m]);
        ref_cache_free(&a), ref_cache_free(&b), ref_cache_free(&f);
    }
}

static const test_case cases[] = {
    {"largest-units", 0, largest_units},
    {"sink-too-large", 0, sink_too_large},
    {"whole-budget-ignores-bounds", 0, whole_budget_ignores_bounds},
    {"candidates-are-as-likely-as-stated", 0, candidates_are_as_likely_as_stated},
    {"candidates-are-weighted", 0, candidates_are_weighted},
    {"one-hit-tends-to-dense", 0, one_hit_tends_to_dense},
    {"extras-follow-their-rows", 0, extras_follow_their_rows},
    {0},
};
const test_suite suite_sparse = {"sparse", cases};
