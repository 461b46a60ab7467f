// attention/stages/propose_quantised.c - scores from a second copy of the keys in 8, 4 or 3 bits (docs/methods-theory.md,
// santa-is, dense-q).
//
// The keys of a page are quantised per channel, asymmetrically: k = zero + step * code. zero and step are f16, rounded
// outwards, so every key lies within half a step of its code. A channel that f16 cannot represent (a key that is NaN, or a
// range beyond 65504 levels of 65504) has a step of NaN, and so all scores of the page are NaN. The newest page has no copy:
// its scores are exact.
//
// The page extra of one KV head: step [head_dim], zero [head_dim] in f16, then planes of codes. A plane holds `width` bits of
// each code (int8: 8; int4: 4; int3: low 2, high 1) for groups of 16 rows, in lines of 64 bytes, 4 bytes per row.
// Bits [width t, width (t + 1)) of byte b of row r in line u belong to channel 4 (u * 8 / width + t) + b. So a vector register
// has one row in each lane, and codes are never unpacked to memory.
#include "attention/stages/stages.h"

#include <math.h>
#include <string.h>

typedef struct plane {
    int width, shift; // bits of a code: [shift, shift + width)
} plane;

static int planes_of(int bits, plane out[2]) {
    out[0] = (plane){bits == 3 ? 2 : bits, 0};
    out[1] = (plane){1, 2};
    return bits == 3 ? 2 : 1;
}

static int plane_lines(int width, int head_dim) { // number of 64-byte lines, each with codes of 16 rows
    return (head_dim * width + 31) / 32;
}

static size_t size(int bits, int head_dim) {
    plane p[2];
    size_t bytes = 2 * (size_t)head_dim * sizeof(f16);
    for (int i = 0, n = planes_of(bits, p); i < n; i++)
        bytes += (size_t)plane_lines(p[i].width, head_dim) * 64 * (SL_PAGE / 16);
    return (bytes + 63) / 64 * 64;
}

// ---- building a page ----

static f16 f16_toward_zero(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    uint32_t sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
    if (magnitude >= 0x477fe000) return (f16)(sign | 0x7bff); // 65504, the largest
    if (magnitude < 0x38800000) {                             // below 2^-14: a multiple of 2^-24
        float size = fabsf(x) * 0x1p24f;
        return (f16)(sign | (uint32_t)size);
    }
    return (f16)(sign | (magnitude - 0x38000000) >> 13);
}

enum { F16_NAN = 0x7e00 };

static f16 f16_below(float x) {
    f16 h = f16_toward_zero(x);
    // Only negative x are rounded away from zero, and never to infinity.
    return sl_f16_to_f32(h) > x && h != 0xfbff ? (f16)(h + 1) : h;
}
static f16 f16_above(float x) {
    f16 h = f16_toward_zero(x);
    return sl_f16_to_f32(h) < x && h != 0x7bff ? (f16)(h + 1) : h;
}

static void build(const sl_kv_page *page, void *out) {
    int bits = page->arg, head_dim = page->head_dim;
    sl_kv_run k = page->k;
    f16 *step = out, *zero = step + head_dim;
    uint8_t *at = (uint8_t *)(zero + head_dim);
    int levels = (1 << bits) - 1, n_planes;
    float rows[SL_PAGE * 256];
    plane p[2];
    memset(out, 0, size(bits, head_dim));
    n_planes = planes_of(bits, p);
    sl_kv_widen(k, head_dim, SL_PAGE, rows);
    for (int c = 0; c < head_dim; c++) {
        float low = INFINITY, high = -INFINITY;
        int n_nan = 0;
        for (int j = 0; j < SL_PAGE; j++) {
            float x = rows[j * head_dim + c] + 0.0f; // -0 becomes 0, because fminf may return either zero
            low = fminf(low, x), high = fmaxf(high, x);
            n_nan += isnan(x);
        }
        zero[c] = f16_below(low);
        float from = sl_f16_to_f32(zero[c]);
        step[c] = f16_above(fmaxf((high - from) / (float)levels, 2 * (from - low))); // from > low only past the range of f16
        float width = sl_f16_to_f32(step[c]), inverse = width > 0 ? 1 / width : 0;
        if (n_nan || high > from + width * ((float)levels + 0.5f) || low < from - width * 0.5f) step[c] = F16_NAN, inverse = 0;
        for (int j = 0; j < SL_PAGE; j++) {
            int code = (int)lrintf((rows[j * head_dim + c] - from) * inverse);
            code = code < 0 ? 0 : code > levels ? levels : code;
            uint8_t *to = at;
            for (int i = 0; i < n_planes; i++) {
                int per_byte = 8 / p[i].width, n_units = plane_lines(p[i].width, head_dim), word = c / 4;
                int part = (code >> p[i].shift) & ((1 << p[i].width) - 1);
                to[((size_t)(j / 16) * n_units + word / per_byte) * 64 + j % 16 * 4 + c % 4] |=
                    (uint8_t)(part << (p[i].width * (word % per_byte)));
                to += (size_t)n_units * 64 * (SL_PAGE / 16);
            }
        }
    }
}

const sl_kv_extra_kind sl_quantised_keys = {
    .name = "quantised keys",
    .size = size,
    .build = build,
    .build_device = SL_ON_CUDA(sl_cuda_build_quantised),
};

// ---- the proposal ----

// The parameter is --bits of dense-q, or --proposal of santa-is. The other method with this proposal is vattention with
// --predictor=int4.
static int bits_of(const sl_attn_spec *spec) {
    static const int bits[] = {8, 4, 3};
    if (sl_attn_has(spec, "predictor")) return 4;
    return bits[(int)sl_attn_get(spec, sl_attn_has(spec, "bits") ? "bits" : "proposal")];
}

static int needs(const sl_attn_spec *spec, sl_kv_need *out) {
    *out = (sl_kv_need){&sl_quantised_keys, bits_of(spec)};
    return 1;
}

// The state of a step: the error bound of every page for every head of the group.
static size_t state(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_kv) {
    (void)spec;
    return (size_t)sl_kv_pages_of(n_kv) * (geom->n_heads / geom->n_kv_heads) * sizeof(float);
}

static void score(const sl_group *g, int page, float *out) {
    float *bound = (float *)g->state + (size_t)page * g->n;
    int bits = bits_of(g->args->spec);
    if (page >= sl_kv_n_built(g->kv)) {
        for (int i = 0; i < g->n; i++) bound[i] = 0;
        sl_score_exact(g, page, out);
        return;
    }
    const f16 *step = sl_kv_extra(g->kv, (sl_kv_need){&sl_quantised_keys, bits}, page, g->h), *zero = step + g->head_dim;
    sl_quant_query q[SL_MAX_GROUP];
    for (int i = 0; i < g->n; i++) {
        g->kernels->quantise_query(g->q + (size_t)i * g->head_dim, step, zero, g->head_dim, bits, g->scale, &q[i]);
        bound[i] = q[i].bound;
    }
    g->kernels->score_quantised(q, g->n, (const uint8_t *)(zero + g->head_dim), g->head_dim, bits, out, SL_CHUNK);
}

static uint64_t bytes(const sl_group *g) {
    int n_built = sl_kv_n_built(g->kv);
    return n_built * (uint64_t)size(bits_of(g->args->spec), g->head_dim) + sl_newest_bytes(g);
}

float sl_quantised_bound(const sl_head *x, int page) {
    return ((const float *)x->group->state)[(size_t)page * x->group->n + x->index];
}

static void report(const sl_head *x) {
    float most = 0;
    for (int page = 0; page <= sl_kv_n_built(x->group->kv); page++) {
        float bound = sl_quantised_bound(x, page);
        most = isnan(bound) ? INFINITY : fmaxf(most, bound);
        if (isinf(most)) break;
    }
    x->report->score_bound = most * 0.69314718f; // from log2 units
}

const sl_proposal sl_propose_quantised = {
    .unit = 1, .needs = needs, .state = state, .score = score, .bytes = bytes, .report = report};
