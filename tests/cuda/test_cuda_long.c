// tests/cuda/test_cuda_long.c - contexts of more than 131,072 rows on a GPU: every method that selects or draws rows. The
// kernels for these contexts keep their arrays in global memory (attention/cuda/long_context.cuh), and also serve short
// sequences of an engine with a long context.
#include "tests/support/gpu.h"

#ifdef SLEIGH_CUDA
#include "tests/support/decode_check.h"

static const char *const specs[] = {"santa:S=128",
                                    "santa-strat:S=300",
                                    "santa-sys:S=128",
                                    "santa-prop:S=128",
                                    "santa-prop:S=4096",
                                    "santa-flash:S=128",
                                    "bernoulli-group:B=8+santa-sys:S=128",
                                    "bernoulli:B=8+santa-prop:S=600",
                                    "santa-pps:S=128:budget=even",
                                    "santa-pps:S=128:budget=carried",
                                    "santa-pps:epsilon=0.3:certify=head",
                                    "santa-pps:epsilon=0.3:certify=layer",
                                    "santa-is:S=128:budget=even",
                                    "santa-is:proposal=int8:epsilon=0.3",
                                    "topk:k=300",
                                    "topp:p=0.5",
                                    "quest:tokens=2048",
                                    "topk:k=3000+santa-sys:S=600",
                                    "quest:tokens=2048+santa-prop:S=128",
                                    "streaming:window=5000+santa-flash:S=128",
                                    "random:S=200",
                                    "vattention:epsilon=0.3:base=0.002:top=0.002",
                                    "vattention:epsilon=0.3:base=0.002:top=0.002:predictor=quest",
                                    "vattention:epsilon=0.3:base=0.002:top=0.002:predictor=int4"};
enum { N_SPECS = sizeof specs / sizeof *specs };

// Two steps, so that a layer carries its threshold. fixture_check does not know how many draws a head has planned by its own
// norm: with a stated error of each head, and in a layer's first step with rows to draw. Then the error must be at most twice
// the stated one. least_kv: as in fixture_new_for.
static void check(ref_cache *c, const char *attn, int least_kv) {
    decode_fixture r = fixture_new_for(c, attn, 29, least_kv);
    fixture_launch_after(&r, 1);
    fixture_check_masses(&r);
    if (!sl_attn_states_error(&r.spec) || !sl_attn_has(&r.spec, "aim") || (!least_kv && sl_attn_certifies_layer(&r.spec)))
        fixture_check(&r);
    else
        for (int i = 0; i < c->n_seqs * c->geom.n_heads; i++)
            CHECK(fixture_error(&r, i / c->geom.n_heads, i % c->geom.n_heads, NULL) < 2 * sl_attn_get(&r.spec, "epsilon"));
    fixture_free(&r);
}

static void check_all(int n_heads, int n_kv_heads, int dim, int n_seqs, const int *lengths, double scale, int least_kv) {
    ref_cache c = ref_cache_new(n_heads, n_kv_heads, dim, n_seqs, lengths, scale, test_seed);
    ref_add_to_values(&c, 1); // without a mean, a stated error needs every row
    for (int k = 0; k < N_SPECS; k++) check(&c, specs[k], least_kv);
    ref_cache_free(&c);
}

// An engine for long contexts decodes short sequences.
static void short_sequences(void) {
    static const int all[] = {1, 31, 33, 256, 257, 4097, 40000};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check_all(8, 2, 128, 1, &all[i], i % 3 == 0 ? 0 : i % 3 == 1 ? 1 : 4, SL_CUDA_SHORT_ROWS + 1);
    check_all(8, 2, 64, FIXTURE_SEQS, fixture_ragged, 3, SL_CUDA_LONG_ROWS);
}

static void rows_131073(void) {
    static const int n[] = {SL_CUDA_SHORT_ROWS + 1, 700};
    check_all(4, 2, 64, 2, n, 2, 0);
}

static void rows_200000(void) {
    static const int n = 200000;
    check_all(8, 1, 64, 1, &n, 4, 0);
    check_all(2, 1, 80, 1, &n, 0, 0);
}

static void rows_2097152(void) {
    static const int n = SL_CUDA_LONG_ROWS;
    check_all(2, 1, 64, 1, &n, 3, 0);
}
#endif

static const test_case cases[] = {
    GPU_CASE("short-sequences", short_sequences),
    GPU_CASE("rows-131073", rows_131073),
    GPU_CASE("rows-200000", rows_200000),
    WHOLE_GPU_CASE("rows-2097152", rows_2097152),
    {0},
};
const test_suite suite_cuda_long = {"cuda_long", cases};
