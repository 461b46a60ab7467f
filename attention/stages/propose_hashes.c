// attention/stages/propose_hashes.c - locality-sensitive hashing (MagicPIG, arXiv:2410.16179): the proposal and the draw. A row
// is a candidate when the hash of its key equals the hash of the query in at least `hits` of L tables. Over random projections,
// the probability of a candidate follows from the angle between query and key. So candidates are a sample with known expected
// counts.
//
// Keys are centred. This does not change the softmax, and it spreads the angles of the keys. The centre of a page is the mean
// of all keys of the sequence up to the end of the page. The centre depends only on the prefix, so sequences can share pages.
// The first `sink` rows, the last `window` rows and the newest page are always taken.
//
// The hash functions depend on the seed of the engine, the layer and the KV head. They do not depend on the sequence or the
// position, because signatures are part of pages that sequences share. So candidates of two sequences, and of two steps, are
// not independent.
//
// The page extra of one KV head: number of keys so far [16; only the first is used], sum of keys [head_dim], centre [head_dim],
// |k_j - centre| [256], all in fp32; then a 16-bit signature per table and row, [L][256]. A key that is not finite makes the
// sums of its page and of all later pages NaN, and so their scores.
#include "attention/stages/stages.h"
#include "base/normal.h"

#include <math.h>
#include <string.h>

enum { TABLES = 16, MOST_TABLES = 512, MAX_DIM = 256 }; // TABLES: tables of one GEMM

static int n_bits(int arg) {
    return arg & 0xff;
}
static int n_tables(int arg) {
    return arg >> 8;
}
static int columns(int arg) { // of one GEMM: TABLES tables of K bits
    return TABLES * n_bits(arg);
}

// ---- random projections ----

static size_t n_projections(int arg, int head_dim) { // of one KV head
    return (size_t)((n_tables(arg) + TABLES - 1) / TABLES) * head_dim * columns(arg);
}

static size_t shared_size(int arg, int head_dim) {
    return n_projections(arg, head_dim) * sizeof(float);
}

// out: [ceil(L / 16)][head_dim][16 K] standard normal numbers.
static void share(int arg, int head_dim, uint32_t seed, int layer, int head, void *out) {
    float *p = out;
    for (size_t i = 0; i < n_projections(arg, head_dim); i++)
        p[i] = (float)sl_normal_of_words(sl_hash_random(seed, (uint32_t)i, layer, head));
}

// Signatures of x [rows][head_dim], rows a multiple of 8 and at most 256: sig[t * 256 + row].
static void hash_rows(const sl_attn_kernels *kernels, const float *projections, int arg, int head_dim, const float *x, int rows,
                      uint16_t *sig) {
    float dots[8 * TABLES * 16];
    int K = n_bits(arg), n = columns(arg);
    for (int set = 0; set * TABLES < n_tables(arg); set++) {
        const float *p = projections + (size_t)set * head_dim * n;
        for (int r = 0; r < rows; r += 8) {
            kernels->gemm(x + (size_t)r * head_dim, head_dim, p, n, 8, n, head_dim, 0, dots, n);
            for (int t = 0; t < TABLES && set * TABLES + t < n_tables(arg); t++)
                for (int i = 0; i < 8; i++) {
                    unsigned bits = 0;
                    for (int b = 0; b < K; b++) bits = bits << 1 | (dots[i * n + t * K + b] > 0);
                    sig[(size_t)(set * TABLES + t) * SL_PAGE + r + i] = (uint16_t)bits;
                }
        }
    }
}

// ---- a page ----

typedef struct hashed_page {
    float *count, *sum, *centre, *norm;
    uint16_t *sig;
} hashed_page;

static hashed_page page_at(const void *block, int head_dim) {
    float *f = (float *)block;
    return (hashed_page){f, f + 16, f + 16 + head_dim, f + 16 + 2 * head_dim, (uint16_t *)(f + 16 + 2 * head_dim + SL_PAGE)};
}

static size_t size(int arg, int head_dim) {
    size_t bytes = (16 + 2 * (size_t)head_dim + SL_PAGE) * sizeof(float) + (size_t)n_tables(arg) * SL_PAGE * sizeof(uint16_t);
    return (bytes + 63) / 64 * 64;
}

static void build(const sl_kv_page *from, void *out) {
    float x[SL_PAGE * MAX_DIM];
    int head_dim = from->head_dim;
    const void *before = from->before;
    hashed_page page = page_at(out, head_dim), last = page_at(before, head_dim);
    sl_kv_widen(from->k, head_dim, SL_PAGE, x);
    *page.count = SL_PAGE + (before ? *last.count : 0);
    for (int c = 0; c < head_dim; c++) {
        float sum = before ? last.sum[c] : 0;
        for (int j = 0; j < SL_PAGE; j++) sum += x[j * head_dim + c];
        page.sum[c] = sum;
        page.centre[c] = sum / *page.count;
    }
    for (int j = 0; j < SL_PAGE; j++) {
        float square = 0;
        for (int c = 0; c < head_dim; c++) {
            float d = x[j * head_dim + c] - page.centre[c];
            x[(size_t)j * head_dim + c] = d;
            square += d * d;
        }
        page.norm[j] = sqrtf(square);
    }
    hash_rows(sl_attn_kernels_best(), from->shared, from->arg, head_dim, x, SL_PAGE, page.sig);
}

static const sl_kv_extra_kind hashed_keys = {
    .name = "hashed keys", .chained = 1, .size = size, .shared_size = shared_size, .share = share, .build = build};

// ---- the proposal: mass 1 for candidates and for rows that are always taken, mass 0 for others ----

static sl_kv_need need_of(const sl_attn_spec *spec) {
    return (sl_kv_need){&hashed_keys, (int)sl_attn_get(spec, "L") << 8 | (int)sl_attn_get(spec, "K")};
}
static int needs(const sl_attn_spec *spec, sl_kv_need *out) {
    *out = need_of(spec);
    return 1;
}

static int always_taken(const sl_group *g, int j) {
    const sl_attn_spec *spec = g->args->spec;
    return j < (int)sl_attn_get(spec, "sink") || j >= g->kv->n_kv - (int)sl_attn_get(spec, "window") ||
           j >= sl_kv_n_built(g->kv) * SL_PAGE;
}

// The state of a step: signatures of the queries of the group, [L][256]. Only the first `group` of each 256 are used.
static size_t state(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_kv) {
    (void)geom, (void)n_kv;
    return (size_t)sl_attn_get(spec, "L") * SL_PAGE * sizeof(uint16_t);
}

static void begin(sl_group *g) {
    float x[SL_MAX_GROUP * MAX_DIM] = {0};
    sl_kv_need need = need_of(g->args->spec);
    memcpy(x, g->q, (size_t)g->n * g->head_dim * sizeof *x);
    hash_rows(g->kernels, sl_kv_shared(g->kv, need, g->h), need.arg, g->head_dim, x, (g->n + 7) / 8 * 8, g->state);
}

static void score(const sl_group *g, int page, float *out) {
    const sl_attn_spec *spec = g->args->spec;
    int built = page < sl_kv_n_built(g->kv), least = 1 + (int)sl_attn_get(spec, "hits");
    int first = page * SL_PAGE, n = sl_page_rows(g->kv, page), sink = (int)sl_attn_get(spec, "sink");
    int window = g->kv->n_kv - (int)sl_attn_get(spec, "window");
    uint16_t hits[SL_PAGE];
    hashed_page x = {0};
    float taken = 0; // score of candidates; NaN if a key of the prefix is not finite
    if (built) x = page_at(sl_kv_extra(g->kv, need_of(spec), page, g->h), g->head_dim);
    for (int c = 0; built && c < g->head_dim; c++) taken += 0 * x.sum[c];
    for (int i = 0; i < g->n; i++) {
        float *to = out + (size_t)i * SL_CHUNK;
        if (built) g->kernels->count_matches(x.sig, (const uint16_t *)g->state + i, (int)sl_attn_get(spec, "L"), hits);
        for (int j = 0; j < n; j++) {
            int is_taken = !built || hits[j] >= least || first + j < sink || first + j >= window;
            to[j] = is_taken || isnan(taken) ? taken : -INFINITY;
        }
    }
}

static uint64_t bytes(const sl_group *g) {
    int n_built = sl_kv_n_built(g->kv);
    uint64_t row = (uint64_t)sl_attn_get(g->args->spec, "L") * sizeof(uint16_t);
    return n_built * (uint64_t)SL_PAGE * row + sl_newest_bytes(g);
}

const sl_proposal sl_propose_hashes = {
    .unit = 1, .needs = needs, .state = state, .begin = begin, .score = score, .bytes = bytes};

// ---- the draw: every row of positive mass, with the probability that it is a candidate ----

double sl_hash_probability(double cosine, int K, int L, int hits) {
    double theta = acos(fmin(fmax(cosine, -1), 1)), table = pow(1 - theta / 3.14159265358979323846, K);
    double none = pow(1 - table, L);
    return hits == 1 ? 1 - none : 1 - none - L * table * pow(1 - table, L - 1);
}

static void run(sl_head *x) {
    x->draws.n = x->draws.n_draws = sl_masses_largest(&x->masses, x->masses.n, x->draws.row);
    for (int i = 0; i < x->draws.n; i++) x->draws.count[i] = 1, x->draws.inv_pi[i] = 1;
}

static void expect(sl_head *x) {
    const sl_group *g = x->group;
    const sl_attn_spec *spec = g->args->spec;
    int K = (int)sl_attn_get(spec, "K"), L = (int)sl_attn_get(spec, "L"), hits = 1 + (int)sl_attn_get(spec, "hits"), at = -1;
    double q_norm = sl_norm(x->q, g->head_dim), q_centre = 0;
    hashed_page page = {0};
    for (int i = 0; i < x->draws.n; i++) {
        int j = x->draws.row[i];
        if (always_taken(g, j)) continue;
        if (j / SL_PAGE != at) {
            page = page_at(sl_kv_extra(g->kv, need_of(spec), at = j / SL_PAGE, g->h), g->head_dim);
            q_centre = 0;
            for (int c = 0; c < g->head_dim; c++) q_centre += (double)x->q[c] * page.centre[c];
        }
        double norm = q_norm * page.norm[j % SL_PAGE], cosine = norm > 0 ? (x->score[i] / g->scale - q_centre) / norm : 0;
        double p = sl_hash_probability(cosine, K, L, hits);
        x->draws.inv_pi[i] = (float)(1 / fmax(p, 1e-12)); // the row is a candidate, so p > 0 up to rounding
    }
}

static size_t capacity(const sl_attn_spec *spec, int n_kv) {
    (void)spec;
    return n_kv;
}
static int no_budget(const sl_attn_spec *spec, int n_kv) {
    (void)spec, (void)n_kv;
    return 0;
}

const sl_draw sl_draw_candidates = {.budget = no_budget, .capacity = capacity, .run = run, .expect = expect};
