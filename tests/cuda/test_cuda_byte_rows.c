// tests/cuda/test_cuda_byte_rows.c - methods that draw or select rows of a cache of fp8 or int8 on a GPU (stored_rows.cuh). The
// checks are those of a bf16 cache, over the numbers q * scale of the rows: stored masses agree with double precision or with
// the CPU's scores, and the output is that of the rows that the CPU draws from these masses. Rows after the end of a sequence
// have a scale of NaN.
#include "tests/support/gpu.h"

#ifdef SLEIGH_CUDA
#include "tests/support/decode_check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const sl_format formats[] = {SL_FP8, SL_INT8};
enum { N_FORMATS = sizeof formats / sizeof *formats };

// n_before: steps before the step that is checked, for methods that carry a threshold.
typedef struct subject {
    const char *attn;
    int n_before;
} subject;

static const subject subjects[] = {
    {"santa:S=128", 0},
    {"santa-strat:S=128", 0},
    {"santa-sys:S=128", 0},
    {"santa-sys:S=1000", 0}, // drawn in parts
    {"santa-prop:S=128", 0},
    {"santa-flash:S=600", 0},
    {"santa-pps:S=128:budget=even", 0},
    {"santa-pps:S=64:pps=sys:budget=even", 0},
    {"santa-pps:S=64:budget=carried", 3},
    {"santa-is:S=128:budget=even", 0},
    {"santa-is:S=600:proposal=int8:budget=even", 0},
    {"santa-is:S=128:proposal=int3:budget=even", 0},
    {"santa-is:proposal=int8:epsilon=0.3", 3},
    {"quest:tokens=512", 0},
};
enum { N_SUBJECTS = sizeof subjects / sizeof *subjects };

// As fixture_ragged, but no sequence gets its first built page in the steps before: a search of the GPU can differ from the
// CPU's by a draw.
static const int ragged[FIXTURE_SEQS] = {1, 5000, 256, 261, 31, 9000, 1024, 77, 4096, 300, 2, 20000, 512, 513, 100, 3333};

static ref_cache new_cache(sl_format f, int n_heads, int n_kv_heads, int dim, int n_seqs, const int *lengths, double scale) {
    ref_cache c = ref_cache_new(n_heads, n_kv_heads, dim, n_seqs, lengths, scale, test_seed);
    ref_store_as(&c, f);
    return c;
}

// least_kv: as in fixture_new_for.
static void check(ref_cache *c, const char *attn, int n_before, int least_kv) {
    decode_fixture r = fixture_new_for(c, attn, 23, least_kv);
    fixture_launch_after(&r, n_before);
    fixture_check_masses(&r);
    fixture_check(&r);
    fixture_free(&r);
}

static void check_all(int n_heads, int n_kv_heads, int dim, int n_seqs, const int *lengths, double scale, int least_kv) {
    for (int f = 0; f < N_FORMATS; f++) {
        ref_cache c = new_cache(formats[f], n_heads, n_kv_heads, dim, n_seqs, lengths, scale);
        for (int i = 0; i < N_SUBJECTS; i++) check(&c, subjects[i].attn, subjects[i].n_before, least_kv);
        ref_cache_free(&c);
    }
}

// Borders of blocks (32), tiles (128) and pages (256).
static void lengths_of_context(void) {
    static const int all[] = {1, 31, 33, 127, 128, 129, 255, 256, 260, 513, 1000, 4095, 4097, 32769};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check_all(8, 2, 128, 1, &all[i], i % 3 == 0 ? 0 : i % 3 == 1 ? 1 : 4, 0);
}

// Without steps before, the newest row may be the first of a page.
static void first_row_of_page(void) {
    static const int n = 257;
    for (int f = 0; f < N_FORMATS; f++) {
        ref_cache c = new_cache(formats[f], 8, 2, 128, 1, &n, 2);
        for (int i = 0; i < N_SUBJECTS; i++)
            if (!subjects[i].n_before) check(&c, subjects[i].attn, 0, 0);
        ref_cache_free(&c);
    }
}

static void shapes_of_model(void) {
    static const int dims[] = {64, 80, 96, 128}, groups[] = {1, 3, 4, 8}, n[] = {700, 1, 2049};
    for (int d = 0; d < 4; d++)
        for (int g = 0; g < 4; g++) check_all(2 * groups[g], 2, dims[d], 3, n, 2, 0);
}

static void ragged_batch(void) {
    check_all(8, 2, 128, FIXTURE_SEQS, ragged, 3, 0);
    check_all(8, 8, 80, FIXTURE_SEQS, ragged, 2, 0);
}

// The kernels for more than 131,072 rows, also with short sequences.
static void long_contexts(void) {
    static const int n[] = {SL_CUDA_SHORT_ROWS + 1, 700}, some[] = {1, 33, 256, 4097, 40000}, most = 200000;
    check_all(4, 2, 64, 2, n, 2, 0);
    check_all(2, 1, 80, 1, &most, 1, 0);
    for (int i = 0; i < 5; i++) check_all(8, 2, 128, 1, &some[i], i % 2 ? 1 : 4, SL_CUDA_SHORT_ROWS + 1);
}

// Rows of one page have scales between 2^-20 and 2^20 times a normal one.
static void uneven_scales(void) {
    static const int n[] = {1000, 3000};
    for (int f = 0; f < N_FORMATS; f++) {
        ref_cache c = ref_cache_new(8, 2, 64, 2, n, 1, test_seed);
        for (int s = 0; s < 2; s++)
            for (int h = 0; h < 2; h++)
                for (int j = 0; j < n[s]; j++) {
                    bf16 *v = (bf16 *)ref_v_row(&c, s, h, j), *k = (bf16 *)ref_k_row(&c, s, h, j);
                    float v_factor = (float)exp2(j * 7 % 41 - 20), k_factor = (float)exp2(-(j * 5 % 21));
                    for (int d = 0; d < 64; d++)
                        v[d] = sl_f32_to_bf16(sl_bf16_to_f32(v[d]) * v_factor),
                        k[d] = sl_f32_to_bf16(sl_bf16_to_f32(k[d]) * k_factor);
                }
        ref_store_as(&c, formats[f]);
        for (int i = 0; i < N_SUBJECTS; i++) check(&c, subjects[i].attn, subjects[i].n_before, 0);
        ref_cache_free(&c);
    }
}

// ---- stated errors ----

// A threshold of the layer draws the CPU's rows. A head that plans its own draws must have at most twice the stated error.
static void stated_errors(void) {
    static const char *const by_layer[] = {"santa-pps:epsilon=0.3:certify=layer",
                                           "santa-pps:epsilon=0.3:certify=layer:bound=clt",
                                           "santa-is:proposal=int8:epsilon=0.2:bound=clt"};
    static const int n[] = {6000, 700};
    for (int f = 0; f < N_FORMATS; f++) {
        ref_cache c = ref_cache_new(8, 2, 64, 2, n, 2, test_seed);
        ref_add_to_values(&c, 1); // without a mean, a stated error needs every row
        ref_store_as(&c, formats[f]);
        for (int i = 0; i < 3; i++) check(&c, by_layer[i], 3, 0);
        decode_fixture r = fixture_new(&c, "santa-pps:epsilon=0.3:certify=head", 3);
        fixture_launch_after(&r, 1);
        fixture_check_masses(&r);
        for (int i = 0; i < 2 * 8; i++) CHECK(fixture_error(&r, i / 8, i % 8, NULL) < 0.6);
        fixture_free(&r);
        ref_cache_free(&c);
    }
}

// A session stores the norms of the newest page from step to step. They equal the norms that a first step computes.
static void kept_norms(void) {
    static const int n[] = {700, 513, 2049, 300, 1}, before[] = {290, 40, 39, 1};
    for (int f = 0; f < N_FORMATS; f++) {
        ref_cache c = new_cache(formats[f], 8, 2, 128, 5, n, 2);
        decode_fixture r = fixture_new(&c, "santa-pps:S=64:budget=even", 5);
        for (int i = 0; i < 4; i++) {
            fixture_go_back(&r, before[i]);
            fixture_decode(&r);
        }
        fixture_go_back(&r, 0);
        fixture_launch(&r);
        fixture_check_masses(&r);
        fixture_check(&r);
        fixture_free(&r);
        ref_cache_free(&c);
    }
}

// ---- bits ----

// Repeated steps and each sequence alone give the bits of the batch.
static void equal_bits(void) {
    enum { HEADS = 8, DIM = 128, ROW = HEADS * DIM, RUNS = 20 };
    bf16 *batch = malloc(FIXTURE_SEQS * ROW * sizeof *batch);
    for (int f = 0; f < N_FORMATS; f++) {
        ref_cache c = ref_cache_new(HEADS, 2, DIM, FIXTURE_SEQS, fixture_ragged, 2, test_seed);
        ref_add_to_values(&c, 1);
        ref_store_as(&c, formats[f]);
        for (int k = 0; k < N_SUBJECTS; k++) {
            decode_fixture r = fixture_new(&c, subjects[k].attn, 5);
            for (int i = 0; i < RUNS; i++) {
                fixture_seed(&r, 5);
                fixture_decode(&r);
                if (i == 0) memcpy(batch, r.out, FIXTURE_SEQS * ROW * sizeof *batch);
                if (memcmp(batch, r.out, FIXTURE_SEQS * ROW * sizeof *batch))
                    FAIL("%s: run %d has other bits", subjects[k].attn, i);
            }
            fixture_free(&r);
            r = fixture_new(&c, subjects[k].attn, 5); // its workspace has not been used by a batch
            for (int s = 0; s < FIXTURE_SEQS; s++) {
                fixture_decode_alone(&r, s);
                if (memcmp(batch + s * ROW, r.out, ROW * sizeof *batch))
                    FAIL("%s: sequence %d of %d rows alone has other bits", subjects[k].attn, s, fixture_ragged[s]);
            }
            fixture_free(&r);
        }
        ref_cache_free(&c);
    }
    free(batch);
}

// ---- heads out of the range of stored masses, and NaN ----

static int is_nan(const bf16 *out, int dim) {
    int n = 0;
    for (int d = 0; d < dim; d++) n += isnan(sl_bf16_to_f32(out[d])) != 0;
    return n == dim ? 1 : n == 0 ? 0 : -1;
}

// One head of each of two sequences has huge scores: it attends to every row exactly. The other heads keep their bits.
static void fall_back(void) {
    enum { HEADS = 8, DIM = 80, ROW = HEADS * DIM, SEQS = 3 };
    static const int n[SEQS] = {300, 1500, 2049}, bad[SEQS] = {1, -1, 6};
    bf16 plain[SEQS * ROW];
    for (int f = 0; f < N_FORMATS; f++) {
        ref_cache c = ref_cache_new(HEADS, 2, DIM, SEQS, n, 1, test_seed);
        ref_add_to_values(&c, 1);
        ref_store_as(&c, formats[f]);
        for (int k = 0; k < N_SUBJECTS; k++) {
            const char *attn = subjects[k].attn;
            decode_fixture r = fixture_new(&c, attn, 5);
            fixture_launch(&r);
            if (!sl_attn_states_error(&r.spec)) CHECK_INT(r.stats.fallbacks, 0);
            memcpy(plain, r.out, sizeof plain);
            fixture_free(&r);
            float *q = malloc(SEQS * ROW * sizeof *q);
            memcpy(q, c.q, SEQS * ROW * sizeof *q);
            for (int s = 0; s < SEQS; s++)
                for (int d = 0; d < DIM && bad[s] >= 0; d++) c.q[s * ROW + bad[s] * DIM + d] *= s ? -1e6f : 1e5f;
            r = fixture_new(&c, attn, 5);
            fixture_launch(&r);
            CHECK(r.stats.fallbacks >= 2);
            for (int i = 0; i < SEQS * HEADS; i++) {
                if (i % HEADS == bad[i / HEADS]) {
                    double error = fixture_error(&r, i / HEADS, i % HEADS, NULL);
                    if (!(error < 0x1p-8)) FAIL("%s, sequence %d: the huge head is off by %g", attn, i / HEADS, error);
                } else if (memcmp(plain + i * DIM, r.out + i * DIM, DIM * sizeof *plain)) {
                    FAIL("%s, sequence %d: head %d has other bits when another head is huge", attn, i / HEADS, i % HEADS);
                }
            }
            fixture_free(&r);
            memcpy(c.q, q, SEQS * ROW * sizeof *q);
            free(q);
        }
        ref_cache_free(&c);
    }
}

// A row that is not finite has a scale of NaN. So the heads of its KV head are NaN, for a row of a built page and of the newest
// page. in_v: the row is of V. Only methods that draw in proportion to p |v| always read such a row.
static void check_not_finite(int in_v) {
    enum { HEADS = 8, DIM = 128, SEQS = 3 };
    static const int n[SEQS] = {300, 1500, 2049}, row[SEQS] = {299, -1, 700};
    for (int f = 0; f < N_FORMATS; f++) {
        ref_cache c = ref_cache_new(HEADS, 2, DIM, SEQS, n, 1, test_seed);
        for (int s = 0; s < SEQS; s++)
            if (row[s] >= 0) ((bf16 *)(in_v ? ref_v_row : ref_k_row)(&c, s, 1, row[s]))[7] = s ? 0x7f80 : 0x7fc0;
        ref_store_as(&c, formats[f]);
        for (int k = 0; k < N_SUBJECTS; k++) {
            if (in_v && strncmp(subjects[k].attn, "santa-pps", 9)) continue;
            decode_fixture r = fixture_new(&c, subjects[k].attn, 5);
            fixture_launch(&r);
            for (int i = 0; i < SEQS * HEADS; i++) {
                int s = i / HEADS, want = row[s] >= 0 && i % HEADS >= HEADS / 2;
                if (is_nan(r.out + i * DIM, DIM) != want)
                    FAIL("%s, sequence %d, head %d: NaN expected: %d", subjects[k].attn, s, i % HEADS, want);
            }
            fixture_free(&r);
        }
        ref_cache_free(&c);
    }
}

static void not_finite(void) {
    check_not_finite(0);
}
static void not_finite_values(void) {
    check_not_finite(1);
}

// ---- counts ----

// Bytes of rows with their scales.
static void bytes_read(void) {
    enum { HEADS = 8, KV_HEADS = 2, DIM = 96, N = 2000, BUILT = N / SL_PAGE * SL_PAGE, ROW = DIM + 4 };
    static const int n = N;
    for (int f = 0; f < N_FORMATS; f++) {
        ref_cache c = new_cache(formats[f], HEADS, KV_HEADS, DIM, 1, &n, 2);
        decode_fixture r = fixture_new(&c, "santa-prop:S=64", 5);
        fixture_launch(&r);
        CHECK_INT(r.stats.bytes, (N * KV_HEADS + r.stats.v_rows) * ROW);
        fixture_free(&r);
        r = fixture_new(&c, "santa-pps:S=64:budget=even", 5);
        fixture_launch(&r);
        CHECK_INT(r.stats.bytes, (N * KV_HEADS + r.stats.v_rows) * ROW + N * KV_HEADS * 2);
        fixture_free(&r);
        r = fixture_new(&c, "santa-is:S=64:budget=even", 5);
        fixture_launch(&r);
        uint64_t pages = BUILT / SL_PAGE * KV_HEADS * r.args.extra_size[0], newest = (N - BUILT) * KV_HEADS;
        uint64_t drawn = r.stats.k_rows - newest;
        CHECK_INT(r.stats.bytes, pages + 2 * (newest + drawn) * ROW);
        fixture_free(&r);
        for (int d = 0; d < HEADS * DIM; d++) c.q[d] *= 1e6f;
        r = fixture_new(&c, "santa-sys:S=64", 5);
        fixture_launch(&r);
        CHECK_INT(r.stats.fallbacks, HEADS);
        CHECK_INT(r.stats.bytes, N * (KV_HEADS + 2 * HEADS) * ROW);
        fixture_free(&r);
        ref_cache_free(&c);
    }
}

// A method without kernels for rows of bytes says so.
static void offered(void) {
    for (const sl_attn_method *const *m = sl_attn_methods; *m; m++) {
        if (!(*m)->cuda || !(*m)->cuda->bytes || !strcmp((*m)->name, "dense") || !strcmp((*m)->name, "streaming")) continue;
        int listed = 0;
        for (int k = 0; k < N_SUBJECTS; k++)
            listed |= strlen((*m)->name) == strcspn(subjects[k].attn, ":") &&
                      !strncmp(subjects[k].attn, (*m)->name, strlen((*m)->name));
        if (!listed) FAIL("%s has kernels for rows of bytes but is not in the list", (*m)->name);
    }
    for (int k = 0; k < N_SUBJECTS; k++) {
        sl_attn_spec spec;
        sl_error err;
        CHECK_OK(sl_attn_parse(subjects[k].attn, &spec, &err), err);
        if (!spec.method->cuda->bytes) FAIL("%s has no kernels for rows of bytes", subjects[k].attn);
    }
}
#endif

static const test_case cases[] = {
    GPU_CASE("offered", offered),
    GPU_CASE("lengths", lengths_of_context),
    GPU_CASE("first-row-of-page", first_row_of_page),
    GPU_CASE("shapes", shapes_of_model),
    GPU_CASE("ragged-batch", ragged_batch),
    GPU_CASE("long", long_contexts),
    GPU_CASE("uneven-scales", uneven_scales),
    GPU_CASE("stated-errors", stated_errors),
    GPU_CASE("kept-norms", kept_norms),
    GPU_CASE("equal-bits", equal_bits),
    GPU_CASE("fall-back", fall_back),
    GPU_CASE("not-finite", not_finite),
    GPU_CASE("not-finite-values", not_finite_values),
    GPU_CASE("bytes-read", bytes_read),
    {0},
};
const test_suite suite_cuda_byte_rows = {"cuda_byte_rows", cases};
