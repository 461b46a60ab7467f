// models/quantise.c - see quantise.h.
#include "models/quantise.h"
#include "base/hash.h"
#include "base/number.h"
#include "base/thread_pool.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

// ---- the option ----

// option: its name in messages. may_be_bf16: "bf16" is a format too.
static int parse(const char *option, const char *text, int may_be_bf16, sl_quantise_spec *out, sl_error *err) {
    static const char group[] = "int4:group=";
    *out = (sl_quantise_spec){.format = SL_BF16, .group = SL_QUANTISE_GROUP};
    if (!text || (may_be_bf16 && !strcmp(text, sl_formats[SL_BF16].name))) return 0;
    for (int f = SL_FP8; f <= SL_INT4; f++)
        if (!strcmp(text, sl_formats[f].name)) {
            out->format = (sl_format)f;
            return 0;
        }
    if (!strncmp(text, group, sizeof group - 1)) {
        char *end;
        long n = strtol(text + sizeof group - 1, &end, 10);
        out->format = SL_INT4, out->group = (int)n;
        if (!*end && n >= SL_WEIGHT_GROUP && n <= 1 << 20 && n % SL_WEIGHT_GROUP == 0) return 0;
    }
    return sl_fail(err, SL_ERR_ARG, "{%s} %.40s: expected %sfp8, int8, int4 or int4:group=N, N a multiple of %d", option, text,
                   may_be_bf16 ? "bf16, " : "", SL_WEIGHT_GROUP);
}

int sl_quantise_parse(const sl_quantise_texts *texts, sl_quantise_specs *out, sl_error *err) {
    const sl_quantise_texts none = {0}, *t = texts ? texts : &none;
    *out = (sl_quantise_specs){.has_head = t->head != NULL, .has_embedding = t->embedding != NULL};
    int rc = parse("weights", t->weights, 0, &out->linear, err);
    if (!rc) rc = parse("weights_head", t->head, 1, &out->head, err);
    if (!rc) rc = parse("weights_embedding", t->embedding, 1, &out->embedding, err);
    if (!rc && !out->has_head && out->linear.format == SL_INT4) out->head.format = SL_INT8;
    return rc;
}

int sl_quantise_is_plain(const sl_quantise_specs *s) {
    return s->linear.format == SL_BF16 && s->head.format == SL_BF16 && s->embedding.format == SL_BF16;
}

static uint64_t hash_spec(const sl_quantise_spec *s, uint64_t hash) {
    hash = sl_fnv1a(hash, sl_formats[s->format].name, strlen(sl_formats[s->format].name));
    return sl_fnv1a(hash, &s->group, sizeof s->group);
}

uint64_t sl_quantise_hash(const sl_quantise_specs *s, uint64_t hash) {
    static const char version[] = "2"; // of the rounding: another version gives other numbers
    if (sl_quantise_is_plain(s)) return hash;
    hash = hash_spec(&s->linear, sl_fnv1a(hash, version, strlen(version)));
    return s->has_head || s->has_embedding ? hash_spec(&s->embedding, hash_spec(&s->head, hash)) : hash;
}

// ---- the numbers of a scale ----

static const float magic = 0x1.8p23f; // x + magic is rounded to an integer, if the size of x is below 2^22

// The integer nearest to x, ties to even; the size of x is below 2^22.
static inline float nearest(float x) {
    return (x + magic) - magic;
}

// The number q of the format nearest to x; half: 8 or 128 of the integer formats.
static inline float round_to(sl_format f, float half, float x) {
    if (f == SL_FP8) return sl_fp8_to_f32(sl_f32_to_fp8(x));
    x = x < -half ? -half : x > half - 1 ? half - 1 : x;
    return nearest(x);
}

enum { LANES = 4 };
typedef float lanes __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t masks __attribute__((vector_size(LANES * 4), may_alias));

// y where the mask is set, else x.
static inline lanes choose(masks mask, lanes y, lanes x) {
    return (lanes)(((masks)y & mask) | ((masks)x & ~mask));
}

// The squared errors of LANES numbers of an integer format. round_to does the same for one number.
static inline lanes integer_errors(float half, float scale, float inverse, const float *x) {
    const lanes values = *(const lanes *)x, zero = {0};
    lanes y = values * inverse;
    y = choose(y < zero - half, zero - half, y);
    y = choose(y > zero + (half - 1), zero + (half - 1), y);
    lanes d = values - scale * ((y + magic) - magic);
    return d * d;
}

static float error_of(sl_format f, float half, float scale, const float *x, int n) {
    float inverse = 1 / scale, total = 0;
    lanes sum = {0};
    int i = 0;
    for (; f != SL_FP8 && i + LANES <= n; i += LANES) sum += integer_errors(half, scale, inverse, x + i);
    for (int j = 0; j < LANES; j++) total += sum[j];
    for (; i < n; i++) {
        float d = x[i] - scale * round_to(f, half, x[i] * inverse);
        total += d * d;
    }
    return total;
}

// The scale with the least error. The candidates give the number of the largest size a fraction of the format's range, or clip
// it.
static float best_scale(sl_format f, float half, const float *x, int n) {
    static const float fractions[] = {1, 0.9f, 0.95f, 0.85f, 0.8f, 0.75f, 1.05f};
    size_t n_fractions = f == SL_FP8 ? 2 : sizeof fractions / sizeof *fractions; // floats do not depend much on the scale
    float largest = 0, best = 1, least = INFINITY;
    for (int i = 0; i < n; i++) largest = fabsf(x[i]) > fabsf(largest) ? x[i] : largest;
    if (fabsf(largest) < 0x1p-100f) return 1; // zeros, and numbers whose inverse scale would overflow
    for (size_t k = 0; k < n_fractions; k++) {
        float exact = f == SL_FP8 ? fabsf(largest) / 448 * fractions[k] : -largest / half * fractions[k];
        float scale = sl_bf16_to_f32(sl_f32_to_bf16(exact)), e = error_of(f, half, scale, x, n);
        if (e < least) least = e, best = scale;
    }
    return best;
}

// ---- rows ----

typedef struct rows_call {
    const sl_weight *plain, *to;
    float *wide; // [threads][n_cols]
    atomic_int is_finite;
} rows_call;

static void store(sl_format f, uint8_t *row, int i, float x) {
    if (f == SL_FP8) {
        row[i] = sl_f32_to_fp8(x);
    } else if (f == SL_INT8) {
        row[i] = (uint8_t)(int8_t)round_to(f, 128, x);
    } else {
        sl_nibble_put(row, i, (unsigned)(round_to(f, 8, x) + 8));
    }
}

static void round_row(void *ctx, size_t r, int thread) {
    rows_call *c = ctx;
    const sl_weight *to = c->to;
    float *x = c->wide + (size_t)thread * (size_t)to->n_cols, half = to->format == SL_INT4 ? 8 : 128;
    uint8_t *row = (uint8_t *)sl_weight_row(to, r);
    sl_weight_widen(c->plain, r, x);
    for (int i = 0; i < to->n_cols; i++)
        if (!isfinite(x[i])) {
            c->is_finite = 0;
            x[i] = 0;
        }
    for (int from = 0, g = 0; from < to->n_cols; from += to->group, g++) {
        int n = to->n_cols - from < to->group ? to->n_cols - from : to->group;
        float scale = best_scale(to->format, half, x + from, n), inverse = 1 / scale;
        ((float *)to->scale)[sl_weight_scale_at(to, r) + (size_t)g] = scale;
        for (int i = from; i < from + n; i++) store(to->format, row, i, x[i] * inverse);
    }
}

int sl_quantise(const sl_weight *plain, const sl_weight *to, sl_error *err) {
    rows_call c = {.plain = plain, .to = to, .is_finite = 1};
    sl_weight_check_plain(plain);
    SL_CHECK(to->scale_rows == 1 && to->n_rows == plain->n_rows && to->n_cols == plain->n_cols);
    c.wide = malloc((size_t)sl_threads_n() * (size_t)to->n_cols * sizeof *c.wide);
    if (!c.wide) return sl_fail(err, SL_ERR_MEMORY, "tensor %s: out of memory", plain->name);
    sl_parallel((size_t)to->n_rows, round_row, &c);
    free(c.wide);
    return c.is_finite ? 0 : sl_fail(err, SL_ERR_FORMAT, "tensor %s: a number is not finite", plain->name);
}
