// tests/backend/test_backend.c - compares the CPU backend's operations with double precision, on every instruction set of this
// machine.
#include "backend/cpu/cpu_ops.h"
#include "base/thread_pool.h"
#include "kv/kv.h"
#include "engine/engine.h"
#include "tests/support/threads.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const isas[] = {"avx512", "avx2", "portable"};
static const sl_format formats[] = {SL_BF16, SL_F16, SL_F32};
static const float SENTINEL = 9876.5f;
enum { GUARD = 32 };
static sl_error err;

static const sl_backend *opened; // by the last call of backend_of

static void restore(void) {
    if (opened) opened->free(opened);
    opened = NULL;
    CHECK_OK(sl_cpu_choose(&err), err);
}

static const sl_backend *backend_of(const char *isa, int threads) { // NULL: this processor does not have it
    restore();
    setenv("SLEIGH_ISA", isa, 1);
    if (sl_cpu_open(threads, &opened, &err)) opened = NULL;
    unsetenv("SLEIGH_ISA");
    test_threads(threads ? threads : sl_cpu_cores());
    return opened;
}

// A weight [n_rows][n_cols] of that format, and the same numbers in fp32.
static sl_weight make_weight(sl_format format, int n_rows, int n_cols, uint64_t seed, float **wide) {
    size_t n = (size_t)n_rows * n_cols;
    char *data = malloc(n * 4);
    *wide = malloc(n * 4);
    for (size_t i = 0; i < n; i++) {
        float x = (float)test_normal(&seed);
        bf16 b = sl_f32_to_bf16(x);
        f16 h = (f16)(test_uniform(&seed) * 65536);
        if ((h >> 10 & 31) > 16) h &= 0x83ff; // huge numbers, infinities and NaN become subnormals
        (*wide)[i] = format == SL_BF16 ? sl_bf16_to_f32(b) : format == SL_F16 ? sl_f16_to_f32(h) : x;
        if (format == SL_BF16)
            memcpy(data + 2 * i, &b, 2);
        else if (format == SL_F16)
            memcpy(data + 2 * i, &h, 2);
        else
            memcpy(data + 4 * i, &x, 4);
    }
    return (sl_weight){.data = data, .format = format, .n_rows = n_rows, .n_cols = n_cols};
}

static float *normals(size_t n, uint64_t seed) {
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (float)test_normal(&seed);
    return x;
}

// The sum of n products in fp32, in any order, has an error below n 2^-24 times the sum of the magnitudes.
static void check_linear(const float *out, const float *x, const float *w, int n_rows, int n_outs, int n, float before) {
    for (int r = 0; r < n_rows; r++)
        for (int o = 0; o < n_outs; o++) {
            double want = before, size = fabs(before);
            for (int i = 0; i < n; i++) {
                double y = (double)x[(size_t)r * n + i] * w[(size_t)o * n + i];
                want += y, size += fabs(y);
            }
            CHECK_NEAR(out[(size_t)r * n_outs + o], want, (n + 1) * 0x1p-24 * size);
        }
    for (int i = 0; i < GUARD; i++) CHECK(out[(size_t)n_rows * n_outs + i] == SENTINEL);
}

static void linear_of(const sl_backend *be, sl_linear_mode mode) {
    static const int cols[] = {16, 80, 250, 1030}, outs[] = {1, 5, 33, 130}, rows[] = {1, 2, 3, 7, 16, 17, 70};
    for (int d = 0; d < 3; d++)
        for (int c = 0; c < 4; c++)
            for (int r = 0; r < 7; r++) {
                int n = cols[c], n_outs = outs[(c + r) % 4], accumulate = r % 2;
                float *wide, *x = normals((size_t)rows[r] * n, test_seed + r);
                sl_weight w = make_weight(formats[d], n_outs, n, test_seed + c, &wide);
                size_t size = (size_t)rows[r] * n_outs;
                float *out = malloc((size + GUARD) * sizeof *out);
                for (size_t i = 0; i < size + GUARD; i++) out[i] = i < size ? 0.5f : SENTINEL;
                be->linear(be, &w, x, rows[r], mode, accumulate, out);
                check_linear(out, x, wide, rows[r], n_outs, n, accumulate ? 0.5f : 0);
                free(x), free(wide), free((void *)w.data), free(out);
            }
}

static void linear(void) {
    for (int i = 0; i < 3; i++) {
        const sl_backend *be = backend_of(isas[i], 0);
        if (!be) continue;
        linear_of(be, SL_LINEAR_DECODE);
        linear_of(be, SL_LINEAR_PREFILL);
    }
    restore();
}

// Checks equal bits. Decode: a row alone and in a batch. Prefill: a whole prompt and chunks. Both with many threads and with 1.
static void linear_bits_of(const char *isa, int N) {
    enum { ROWS = 150, OUTS = 200 };
    const sl_backend *be = backend_of(isa, 0);
    if (!be) return;
    float *wide, *x = normals((size_t)ROWS * N, test_seed), *want = malloc(ROWS * OUTS * 4), *got = malloc(ROWS * OUTS * 4);
    sl_weight w = make_weight(SL_BF16, OUTS, N, test_seed, &wide);
    be->linear(be, &w, x, 23, SL_LINEAR_DECODE, 0, want);
    for (int r = 0; r < 23; r++) be->linear(be, &w, x + (size_t)r * N, 1, SL_LINEAR_DECODE, 0, got + r * OUTS);
    if (memcmp(want, got, 23 * OUTS * 4)) FAIL("%s, %d columns: a row alone gives other bits", isa, N);
    be = backend_of(isa, 1);
    be->linear(be, &w, x, 23, SL_LINEAR_DECODE, 0, got);
    if (memcmp(want, got, 23 * OUTS * 4)) FAIL("%s, %d columns: one thread gives other bits", isa, N);
    be = backend_of(isa, 0);
    be->linear(be, &w, x, ROWS, SL_LINEAR_PREFILL, 0, want);
    static const int chunks[] = {1, 17, 64, 100};
    for (int c = 0; c < 4; c++) {
        be = backend_of(isa, c % 2);
        for (int r = 0; r < ROWS; r += chunks[c]) {
            int n = ROWS - r < chunks[c] ? ROWS - r : chunks[c];
            be->linear(be, &w, x + (size_t)r * N, n, SL_LINEAR_PREFILL, 0, got + r * OUTS);
        }
        if (memcmp(want, got, ROWS * OUTS * 4)) FAIL("%s, %d columns: chunks of %d give other bits", isa, N, chunks[c]);
    }
    free(x), free(wide), free((void *)w.data), free(want), free(got);
}

static void linear_bits(void) {
    static const int cols[] = {16, 250, 256, 1030}; // with and without a tail of the vector width
    for (int i = 0; i < 3; i++)
        for (int c = 0; c < 4; c++) linear_bits_of(isas[i], cols[c]);
    restore();
}

// linear_norm has the bits of linear and rmsnorm, and gives complete rows.
static void linear_norm(void) {
    enum { ROWS = 19, OUTS = 130, N = 250 };
    for (int i = 0; i < 3; i++)
        for (int mode = SL_LINEAR_DECODE; mode <= SL_LINEAR_PREFILL; mode++) {
            const sl_backend *be = backend_of(isas[i], 0);
            if (!be) continue;
            float *wide, *norm_wide, *x = normals(ROWS * N, test_seed), *want = normals(ROWS * OUTS, 1),
                                     *got = normals(ROWS * OUTS, 1), normed[ROWS * OUTS], rows[ROWS * OUTS];
            sl_weight w = make_weight(SL_BF16, OUTS, N, test_seed, &wide), norm = make_weight(SL_BF16, 1, OUTS, 2, &norm_wide);
            be->linear(be, &w, x, ROWS, (sl_linear_mode)mode, 1, want);
            be->rmsnorm(be, want, &norm, ROWS, 1e-5f, normed);
            sl_normed h = be->linear_norm(be, &w, x, ROWS, (sl_linear_mode)mode, got,
                                          &(sl_next_norm){.w = &norm, .eps = 1e-5f, .rows = rows});
            CHECK(h.rows == rows && !h.sums);
            CHECK(!memcmp(want, got, ROWS * OUTS * sizeof *want) && !memcmp(rows, normed, sizeof normed));
            free(x), free(wide), free(norm_wide), free(want), free(got), free((void *)w.data), free((void *)norm.data);
        }
    restore();
}

static void small_ops(void) {
    static const int sizes[] = {16, 80, 250, 1030};
    for (int i = 0; i < 3; i++) {
        const sl_backend *be = backend_of(isas[i], 0);
        if (!be) continue;
        for (int d = 0; d < 3; d++)
            for (int s = 0; s < 4; s++) {
                int n = sizes[s];
                float *wide, *x = normals(3 * n, test_seed + s), *out = malloc((3 * n + GUARD) * 4),
                             *g = normals(3 * n, test_seed + 9);
                sl_weight table = make_weight(formats[d], 5, n, test_seed, &wide);
                for (int j = 0; j < 3 * n + GUARD; j++) out[j] = SENTINEL;
                be->rmsnorm(be, x, &(sl_weight){.data = table.data, .format = formats[d], .n_rows = 1, .n_cols = n}, 3, 1e-5f,
                            out);
                for (int r = 0; r < 3; r++) {
                    double sum = 0;
                    for (int j = 0; j < n; j++) sum += (double)x[r * n + j] * x[r * n + j];
                    for (int j = 0; j < n;
                         j++) { // relative errors: n 2^-24 of the sum, half of it of the root, three roundings
                        double want = x[r * n + j] / sqrt(sum / n + 1e-5) * wide[j];
                        CHECK_NEAR(out[r * n + j], want, fabs(want) * (n / 2 + 4) * 0x1p-24);
                    }
                }
                CHECK(out[3 * n] == SENTINEL);
                be->embed(be, &table, (const int32_t[]){4, 0, 2}, 3, out);
                for (int j = 0; j < n; j++)
                    CHECK(out[j] == wide[4 * n + j] && out[n + j] == wide[j] && out[2 * n + j] == wide[2 * n + j]);
                CHECK(out[3 * n] == SENTINEL);
                for (int j = 0; j < 3 * n; j++) g[j] *= j % 5 == 0 ? 60 : 3; // large and small arguments
                memcpy(out, g, 3 * n * 4);
                sl_cpu_swiglu(out, x, 3 * n);
                for (int j = 0; j < 3 * n; j++) { // relative error of 2^x 2e-7, absolute error of its argument |g| 2^-24
                    double want = g[j] / (1 + exp(-(double)g[j])) * x[j];
                    CHECK_NEAR(out[j], want, fabs(want) * (1e-6 + fabs(g[j]) * 0x1p-22) + 1e-35);
                }
                CHECK(out[3 * n] == SENTINEL);
                free(x), free(out), free(g), free((void *)table.data), free(wide);
            }
    }
    restore();
}

static void rope_append(void) {
    static const int dims[] = {64, 80, 128}, positions[] = {0, 1, 300, 131071};
    enum { HEADS = 3, KV = 2, PAGES = 512 };
    CHECK_OK(sl_cpu_choose(&err), err);
    for (int d = 0; d < 3; d++) {
        int dim = dims[d], half = dim / 2;
        float inv_freq[64], *q = normals(4 * HEADS * dim, test_seed), *k = normals(4 * KV * dim, test_seed + 1),
                            *v = normals(4 * KV * dim, test_seed + 2);
        float *q0 = normals(4 * HEADS * dim, test_seed), *k0 = normals(4 * KV * dim, test_seed + 1);
        bf16 *cache = calloc(2 * (size_t)3 * KV * SL_PAGE * dim, sizeof *cache),
             *v_cache = cache + (size_t)3 * KV * SL_PAGE * dim;
        int32_t pages[PAGES] = {[0] = 2, [1] = 0, [511] = 1};
        sl_row rows[4];
        for (int i = 0; i < half; i++) inv_freq[i] = 1 / powf(500000, 2.0f * i / dim);
        for (int r = 0; r < 4; r++) rows[r] = (sl_row){.position = positions[r], .pages = pages};
        sl_cpu_rope_append(&(sl_rope){.head_dim = dim, .inv_freq = inv_freq, .scale = 1}, rows, 4, HEADS, KV, q, k, v,
                           (sl_kv_rows){.k = cache, .v = v_cache});
        for (int r = 0; r < 4; r++)
            for (int i = 0; i < half; i++) {
                double angle = (float)positions[r] * inv_freq[i], c = cos(angle), s = sin(angle);
                for (int h = 0; h < HEADS; h++) { // two products of numbers below 6, cos and sin rounded to fp32
                    const float *x = q0 + (r * HEADS + h) * dim, *y = q + (r * HEADS + h) * dim;
                    CHECK_NEAR(y[i], x[i] * c - x[i + half] * s, 6 * 4 * 0x1p-24);
                    CHECK_NEAR(y[i + half], x[i + half] * c + x[i] * s, 6 * 4 * 0x1p-24);
                }
                for (int h = 0; h < KV; h++) { // rounded to bf16: a relative error of at most 2^-8
                    const float *x = k0 + (r * KV + h) * dim;
                    size_t at = (((size_t)pages[positions[r] / 256] * KV + h) * 256 + positions[r] % 256) * dim + i;
                    double want = x[i] * c - x[i + half] * s;
                    CHECK_NEAR(sl_bf16_to_f32(cache[at]), want, fabs(want) * 0x1p-8 + 1e-5);
                    CHECK_INT(v_cache[at], sl_f32_to_bf16(v[(r * KV + h) * dim + i]));
                }
            }
        free(q), free(k), free(v), free(q0), free(k0), free(cache);
    }
}

// ---- biases and norms of q, k and v ----

enum { QKV_ROWS = 70, QKV_IN = 40, QKV_PAGES = 3 };

typedef struct qkv_model { // weights of one layer, and the same numbers in fp32
    int n_heads, n_kv_heads, head_dim, has_bias, has_norm;
    sl_weight w[3], bias[3], norm[2]; // q, k, v
    float *wide_w[3], *wide_bias[3], *wide_norm[2];
} qkv_model;

static qkv_model make_qkv(int n_heads, int n_kv_heads, int head_dim, sl_format format, int has_bias, int has_norm) {
    qkv_model m = {n_heads, n_kv_heads, head_dim, has_bias, has_norm, {{0}}, {{0}}, {{0}}, {0}, {0}, {0}};
    for (int i = 0; i < 3; i++) {
        int n = (i ? n_kv_heads : n_heads) * head_dim;
        m.w[i] = make_weight(format, n, QKV_IN, test_seed + i, &m.wide_w[i]);
        m.bias[i] = make_weight(format, 1, n, test_seed + 10 + i, &m.wide_bias[i]);
        if (i < 2) m.norm[i] = make_weight(format, 1, head_dim, test_seed + 20 + i, &m.wide_norm[i]);
    }
    return m;
}

static void free_qkv(qkv_model *m) {
    for (int i = 0; i < 3; i++) {
        free((void *)m->w[i].data), free(m->wide_w[i]), free((void *)m->bias[i].data), free(m->wide_bias[i]);
        if (i < 2) free((void *)m->norm[i].data), free(m->wide_norm[i]);
    }
}

// One head of a row in double precision: the product, the bias, the norm (which < 2), and RoPE (which < 2).
static void reference_head(const qkv_model *m, int which, int head, const float *x, float eps, const float *inv_freq,
                           int position, double *out) {
    int dim = m->head_dim, half = dim / 2;
    double sum = 0;
    for (int i = 0; i < dim; i++) {
        size_t o = (size_t)head * dim + i;
        out[i] = m->has_bias ? m->wide_bias[which][o] : 0;
        for (int j = 0; j < QKV_IN; j++) out[i] += (double)x[j] * m->wide_w[which][o * QKV_IN + j];
        sum += out[i] * out[i];
    }
    if (which == 2) return;
    for (int i = 0; i < dim && m->has_norm; i++) out[i] *= m->wide_norm[which][i] / sqrt(sum / dim + eps);
    for (int i = 0; i < half; i++) {
        double angle = (float)position * inv_freq[i], a = out[i], b = out[i + half];
        out[i] = a * cos(angle) - b * sin(angle), out[i + half] = b * cos(angle) + a * sin(angle);
    }
}

// The errors of the products, of the norm and of the rotation are below 2^-18 of the largest value of the head.
static void check_head(const float *got, const double *want, int dim, double rounding) {
    double size = 0;
    for (int i = 0; i < dim; i++) size = fmax(size, fabs(want[i]));
    for (int i = 0; i < dim; i++) CHECK_NEAR(got[i], want[i], size * 0x1p-18 + fabs(want[i]) * rounding);
}

static void check_qkv(const sl_backend *be, const qkv_model *m, sl_linear_mode mode, int n_rows, int first) {
    enum { POSITION = 250 };
    int dim = m->head_dim, q_dim = m->n_heads * dim, kv_dim = m->n_kv_heads * dim;
    size_t cache = (size_t)QKV_PAGES * m->n_kv_heads * SL_PAGE * dim;
    float *x = normals((size_t)n_rows * QKV_IN, test_seed + 5), inv_freq[128], got[256];
    float *work = calloc((size_t)n_rows * (q_dim + 2 * kv_dim), sizeof *work);
    bf16 *k = calloc(cache, sizeof *k), *v = calloc(cache, sizeof *v);
    const int32_t pages[] = {2, 0};
    sl_row rows[QKV_ROWS];
    for (int i = 0; i < dim / 2; i++) inv_freq[i] = 1 / powf(10000, 2.0f * i / dim);
    for (int r = 0; r < n_rows; r++) rows[r] = (sl_row){.position = POSITION + r, .pages = pages};
    sl_rope rope = {.head_dim = dim, .inv_freq = inv_freq, .scale = 1};
    sl_qkv a = {.q = &m->w[0],
                .k = &m->w[1],
                .v = &m->w[2],
                .n_rows = n_rows,
                .first = first,
                .x = {.rows = x},
                .rows = rows,
                .mode = mode,
                .rope = &rope,
                .n_heads = m->n_heads,
                .n_kv_heads = m->n_kv_heads,
                .k_layer = k,
                .v_layer = v,
                .work = work,
                .norm_eps = 1e-3f};
    if (m->has_bias) a.q_bias = &m->bias[0], a.k_bias = &m->bias[1], a.v_bias = &m->bias[2];
    if (m->has_norm) a.q_norm = &m->norm[0], a.k_norm = &m->norm[1];
    sl_queries q = be->qkv(be, &a);
    for (int r = 0; r < n_rows; r++) {
        double want[256];
        for (int h = 0; h < m->n_heads && r >= first; h++) {
            reference_head(m, 0, h, x + r * QKV_IN, a.norm_eps, inv_freq, POSITION + r, want);
            check_head((const float *)q.data + (r - first) * q.stride + h * dim, want, dim, 0);
        }
        for (int h = 0; h < 2 * m->n_kv_heads; h++) {
            int which = 1 + h / m->n_kv_heads, place = POSITION + r;
            size_t at =
                (((size_t)pages[place / SL_PAGE] * m->n_kv_heads + h % m->n_kv_heads) * SL_PAGE + place % SL_PAGE) * dim;
            reference_head(m, which, h % m->n_kv_heads, x + r * QKV_IN, a.norm_eps, inv_freq, place, want);
            for (int i = 0; i < dim; i++) got[i] = sl_bf16_to_f32((which == 1 ? k : v)[at + i]);
            check_head(got, want, dim, 0x1p-8);
        }
    }
    free(x), free(work), free(k), free(v);
}

static void qkv(void) {
    static const int shapes[][3] = {{7, 1, 64}, {4, 2, 16}, {3, 3, 80}, {5, 1, 128}, {2, 1, 256}};
    for (int i = 0; i < 3; i++) {
        const sl_backend *be = backend_of(isas[i], 0);
        if (!be) continue;
        for (int s = 0; s < 5; s++)
            for (int parts = 0; parts < 4; parts++) {
                qkv_model m =
                    make_qkv(shapes[s][0], shapes[s][1], shapes[s][2], formats[(s + parts) % 3], parts & 1, parts / 2);
                check_qkv(be, &m, SL_LINEAR_DECODE, 3, 0);
                check_qkv(be, &m, SL_LINEAR_PREFILL, QKV_ROWS, s % 2 ? QKV_ROWS - 1 : 0);
                free_qkv(&m);
            }
    }
    restore();
}

static void init_errors(void) {
    const sl_backend *be;
    CHECK_ERR(sl_cpu_open(-1, &be, &err), err, SL_ERR_ARG, "n_threads -1");
    CHECK_ERR(sl_cpu_open(5000, &be, &err), err, SL_ERR_ARG, "1 to 1024");
    setenv("SLEIGH_ISA", "mmx", 1);
    int rc = sl_cpu_open(0, &be, &err);
    unsetenv("SLEIGH_ISA");
    CHECK_INT(rc, SL_ERR_ARG);
    CHECK(strstr(err.message, "SLEIGH_ISA=mmx"));
    restore();
}

// A description of the arithmetic changes no number of threads, and refuses a device that does not exist.
static void arithmetic(void) {
    char text[256];
    test_threads(3);
    CHECK_OK(sl_device_arithmetic("cpu", text, sizeof text, &err), err);
    CHECK_INT(sl_threads_n(), 3);
    CHECK_ERR(sl_device_arithmetic("gpu", text, sizeof text, &err), err, SL_ERR_ARG, "device gpu");
    CHECK_ERR(sl_device_arithmetic("cuda:999", text, sizeof text, &err), err, SL_ERR_DEVICE, "device cuda:999");
}

static const test_case cases[] = {
    {"linear", 0, linear},           {"linear-bits", 0, linear_bits}, {"linear-norm", 0, linear_norm},
    {"small-ops", 0, small_ops},     {"rope-append", 0, rope_append}, {"qkv", 0, qkv},
    {"init-errors", 0, init_errors}, {"arithmetic", 0, arithmetic},   {0},
};
const test_suite suite_backend = {"backend", cases};
