// tests/backend/test_prefill_product.c - the matrix product of prefill on the CPU: the order of its sums, which decides its
// bits, on every instruction set of this machine, and its rounding errors.
#include "backend/cpu/cpu_ops.h"
#include "tests/support/threads.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const isas[] = {"avx512", "avx2", "portable"};
static sl_error err;

static const sl_backend *backend_of(const char *isa, int threads) { // NULL: this processor does not have it
    const sl_backend *be = NULL;
    setenv("SLEIGH_ISA", isa, 1);
    int rc = sl_cpu_open(threads, &be, &err);
    unsetenv("SLEIGH_ISA");
    test_threads(threads);
    return rc ? NULL : be;
}

static void restore(void) {
    CHECK_OK(sl_cpu_choose(&err), err);
}

static float *normals(size_t n, uint64_t seed) {
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (float)test_normal(&seed);
    return x;
}

static sl_weight fp32(const float *w, int n_rows, int n_cols) {
    return (sl_weight){.data = w, .format = SL_F32, .n_rows = n_rows, .n_cols = n_cols};
}

// One product after the other in a leaf of `leaf` columns; then the leaves in their order.
static float sum_of(const float *w, const float *x, int n, int leaf, int is_fused) {
    float sum = 0;
    for (int from = 0; from < n; from += leaf) {
        float part = 0;
        for (int i = from; i < n && i < from + leaf; i++) part = is_fused ? fmaf(w[i], x[i], part) : w[i] * x[i] + part;
        sum = from ? sum + part : part;
    }
    return sum;
}

// ---- the order of a sum ----

static void check_order(const sl_backend *be, const char *isa, int n_rows, int n_outs, int n, int accumulate) {
    float *x = normals((size_t)n_rows * n, test_seed), *w = normals((size_t)n_outs * n, test_seed + 1);
    size_t size = (size_t)n_rows * n_outs;
    float *out = malloc((size + 1) * sizeof *out);
    sl_weight weight = fp32(w, n_outs, n);
    for (size_t i = 0; i <= size; i++) out[i] = 0.3f;
    be->linear(be, &weight, x, n_rows, SL_LINEAR_PREFILL, accumulate, out);
    for (size_t i = 0; i < size; i++) {
        float want = sum_of(w + i % n_outs * n, x + i / n_outs * n, n, SL_PREFILL_STRIP, strcmp(isa, "portable") != 0);
        if (accumulate) want = 0.3f + want;
        if (memcmp(&want, out + i, sizeof want))
            FAIL("%s, %d columns, %d outputs, row %zu of %d, output %zu: %.9g, expected %.9g", isa, n, n_outs, i / n_outs,
                 n_rows, i % n_outs, (double)out[i], (double)want);
    }
    CHECK(out[size] == 0.3f);
    free(x), free(w), free(out);
}

static void order(void) {
    static const int cols[] = {1, 15, 16, 191, 192, 193, 400, 1030}, outs[] = {1, 3, 12, 13, 48, 49, 65},
                     rows[] = {1, 13, 16, 17, 31, 32, 33, 70};
    for (int i = 0; i < 3; i++) {
        const sl_backend *be = backend_of(isas[i], 2);
        for (int c = 0; be && c < 8; c++)
            for (int r = 0; r < 8; r++) check_order(be, isas[i], rows[r], outs[(c + r) % 7], cols[c], r % 2);
        if (be) be->free(be);
    }
    restore();
}

// The order of a weight's columns applies to x.
static void ordered_columns(void) {
    enum { ROWS = 35, OUTS = 20, N = 400 };
    float *x = normals(ROWS * N, test_seed), *w = normals(OUTS * N, test_seed + 1), *in_order = malloc(ROWS * N * sizeof *x),
          got[ROWS * OUTS], want[ROWS * OUTS];
    int32_t columns[N];
    for (int i = 0; i < N; i++) columns[i] = (7 * i + 3) % N;
    for (int i = 0; i < ROWS * N; i++) in_order[i] = x[i / N * N + columns[i % N]];
    for (int i = 0; i < 3; i++) {
        const sl_backend *be = backend_of(isas[i], 2);
        if (!be) continue;
        sl_weight plain = fp32(w, OUTS, N), ordered = plain;
        ordered.order = columns;
        be->linear(be, &ordered, x, ROWS, SL_LINEAR_PREFILL, 0, got);
        be->linear(be, &plain, in_order, ROWS, SL_LINEAR_PREFILL, 0, want);
        if (memcmp(got, want, sizeof got)) FAIL("%s: other bits than with ordered rows", isas[i]);
        be->free(be);
    }
    free(x), free(w), free(in_order);
    restore();
}

// ---- equal bits ----

enum { ROWS = 2 * SL_PREFILL_ROWS + 70, OUTS = 110, N = 250 };

// A row has equal bits in every batch and with any number of threads. Two instruction sets differ only if one is portable.
static void equal_bits(void) {
    static const int chunks[] = {1, 13, 100, SL_PREFILL_ROWS + 1, ROWS}, threads[] = {1, 2, 9};
    float *x = normals((size_t)ROWS * N, test_seed), *w = normals(OUTS * N, test_seed + 1);
    size_t size = (size_t)ROWS * OUTS * sizeof(float);
    float *first = malloc(size), *got = malloc(size);
    sl_weight weight = fp32(w, OUTS, N);
    for (int i = 0, has_first = 0; i < 3; i++) {
        int is_portable = !strcmp(isas[i], "portable");
        for (int t = 0; t < 3; t++) {
            const sl_backend *be = backend_of(isas[i], threads[t]);
            for (int c = 0; be && c < 5; c++) {
                memset(got, 0xff, size);
                for (int r = 0, rows; r < ROWS; r += rows) {
                    rows = ROWS - r < chunks[c] ? ROWS - r : chunks[c];
                    be->linear(be, &weight, x + (size_t)r * N, rows, SL_LINEAR_PREFILL, 0, got + (size_t)r * OUTS);
                }
                if (!has_first || (is_portable && !t && !c)) memcpy(first, got, size);
                has_first = 1;
                if (memcmp(first, got, size))
                    FAIL("%s, %d threads, %d rows at a time: other bits", isas[i], threads[t], chunks[c]);
            }
            if (be) be->free(be);
        }
    }
    free(x), free(w), free(first), free(got);
    restore();
}

// A row of infinities and NaN changes no other row.
static void rows_apart(void) {
    enum { MANY = 40, BAD = 17 };
    float *x = normals(MANY * N, test_seed), *w = normals(OUTS * N, test_seed + 1), want[MANY * OUTS], got[MANY * OUTS];
    sl_weight weight = fp32(w, OUTS, N);
    for (int i = 0; i < 3; i++) {
        const sl_backend *be = backend_of(isas[i], 1);
        if (!be) continue;
        x[BAD * N] = 1, x[BAD * N + 1] = 1;
        be->linear(be, &weight, x, MANY, SL_LINEAR_PREFILL, 0, want);
        x[BAD * N] = INFINITY, x[BAD * N + 1] = NAN;
        be->linear(be, &weight, x, MANY, SL_LINEAR_PREFILL, 0, got);
        for (int j = 0; j < MANY * OUTS; j++) {
            int is_bad = j / OUTS == BAD;
            if (is_bad ? !isnan(got[j]) : got[j] != want[j])
                FAIL("%s: row %d, output %d is %g", isas[i], j / OUTS, j % OUTS, (double)got[j]);
        }
        be->free(be);
    }
    free(x), free(w);
    restore();
}

// ---- rounding errors ----

// The root mean square error of sums of n = 21 leaves of L columns. After i products a sum has a size of about sqrt(i), and
// rounding it adds an error of e sqrt(i). So one chain has an error of e n L / sqrt(2), and n leaves with their n additions
// have e sqrt(n L (L + n + 1) / 2), which is 4.3 times smaller.
static void errors(void) {
    enum { COLS = 21 * SL_PREFILL_STRIP, MANY = 32, FEW = 32 };
    float *x = normals((size_t)MANY * COLS, test_seed), *w = normals((size_t)FEW * COLS, test_seed + 1), got[MANY * FEW];
    sl_weight weight = fp32(w, FEW, COLS);
    for (int i = 0; i < 3; i++) {
        const sl_backend *be = backend_of(isas[i], 1);
        double ours = 0, chain = 0;
        if (!be) continue;
        be->linear(be, &weight, x, MANY, SL_LINEAR_PREFILL, 0, got);
        for (int j = 0; j < MANY * FEW; j++) {
            const float *a = w + (size_t)(j % FEW) * COLS, *b = x + (size_t)(j / FEW) * COLS;
            double want = 0;
            for (int k = 0; k < COLS; k++) want += (double)a[k] * b[k];
            ours += pow(got[j] - want, 2), chain += pow(sum_of(a, b, COLS, COLS, 1) - want, 2);
        }
        if (!(ours > 0 && sqrt(ours) < 0.5 * sqrt(chain)))
            FAIL("%s: error %g, one chain has %g", isas[i], sqrt(ours / (MANY * FEW)), sqrt(chain / (MANY * FEW)));
        be->free(be);
    }
    free(x), free(w);
    restore();
}

static const test_case cases[] = {
    {"order", NEEDS_NOTHING, order},           {"ordered_columns", NEEDS_NOTHING, ordered_columns},
    {"equal_bits", NEEDS_NOTHING, equal_bits}, {"rows_apart", NEEDS_NOTHING, rows_apart},
    {"errors", NEEDS_NOTHING, errors},         {0},
};
extern const test_suite suite_prefill_product;
const test_suite suite_prefill_product = {"prefill_product", cases};
