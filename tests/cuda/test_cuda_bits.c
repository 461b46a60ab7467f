// tests/cuda/test_cuda_bits.c - every decode method on a GPU must give equal bits: in 100 runs of a ragged batch, in runs after
// other steps, and for each of the 16 sequences in a batch of 1.
#include "tests/support/gpu.h"

#ifdef SLEIGH_CUDA
#include "tests/support/decode_check.h"

#include <stdlib.h>
#include <string.h>

enum { RUNS = 100, HEADS = 8, KV_HEADS = 2, DIM = 128, ROW = HEADS * DIM };

static const char *const specs[] = {
    "dense",
    "streaming:sink=4:window=300",
    "santa:S=128",
    "santa-strat:S=128",
    "santa-sys:S=128",
    "santa-prop:S=128",
    "santa-flash:S=600",
    "santa-sys:S=1000", // drawn in parts
    "santa-pps:S=128:budget=even",
    "santa-pps:S=128:pps=sys:budget=even",
    "santa-pps:epsilon=0.3:certify=head",
    "santa-pps:epsilon=0.3:certify=head:bound=bernstein",
    "santa-pps:S=64:budget=carried",
    "santa-pps:epsilon=0.3:certify=layer:bound=chi2",
    "santa-is:S=256:budget=even",
    "santa-is:S=600:budget=even",
    "santa-is:S=128:proposal=int8:budget=even",
    "santa-is:S=128:proposal=int3:budget=even",
    "dense-q:bits=8",
    "dense-q:bits=4",
    "dense-q:bits=3",
    "bernoulli:B=8",
    "bernoulli:B=3:bernoulli-sampling=iid",
    "bernoulli-group:B=8",
    "bernoulli-group:B=5:bernoulli-sampling=iid",
    "bernoulli-group:B=8+santa:S=100",
    "bernoulli-group:B=2+santa-strat:S=128",
    "bernoulli-group:B=8+santa-sys:S=128",
    "bernoulli-group:B=8+santa-prop:S=128",
    "bernoulli:B=8+santa-flash:S=600",
    "topk:k=128",
    "topp:p=0.9",
    "quest:tokens=512",
    "topk:k=300+santa-sys:S=64",
    "topp:p=0.9+santa:S=100",
    "quest:tokens=512:sink=16+santa-prop:S=600",
    "dense-q:bits=4+santa-sys:S=128",
    "streaming:sink=4:window=300+santa-flash:S=64",
    "random:S=100",
    "vattention:epsilon=0.2",
    "vattention:epsilon=0.2:predictor=quest",
    "vattention:epsilon=0.2:predictor=int4",
    "saap:l=3:window=100:dense-layers=0",
    "saap-kmeans:l=3:window=100:dense-layers=0:rope=1",
    "saap-is:S=64:l=3:window=100:dense-layers=0",
};
enum { N_SPECS = sizeof specs / sizeof *specs };

// The list has every method of the registry that decodes on a GPU.
static void all_methods(void) {
    for (const sl_attn_method *const *m = sl_attn_methods; *m; m++) {
        int listed = !(*m)->cuda || !(*m)->cuda->decode;
        for (int k = 0; k < N_SPECS; k++) {
            size_t n = strcspn(specs[k], ":+");
            listed |= strlen((*m)->name) == n && !strncmp(specs[k], (*m)->name, n);
        }
        if (!listed) FAIL("%s decodes on a GPU but is not in the list", (*m)->name);
    }
}

// Values have a mean that is not 0, so that a stated error does not need every row.
static ref_cache ragged_cache(void) {
    ref_cache c = ref_cache_new(HEADS, KV_HEADS, DIM, FIXTURE_SEQS, fixture_ragged, 2, test_seed);
    ref_add_to_values(&c, 1);
    return c;
}

static void runs(void) {
    ref_cache c = ragged_cache();
    bf16 *first = malloc(FIXTURE_SEQS * ROW * sizeof *first);
    for (int k = 0; k < N_SPECS; k++) {
        decode_fixture r = fixture_new(&c, specs[k], 5);
        for (int i = 0; i < RUNS; i++) {
            fixture_seed(&r, 5); // also clears the state of the step before
            fixture_decode(&r);
            if (i == 0) memcpy(first, r.out, FIXTURE_SEQS * ROW * sizeof *first);
            if (memcmp(first, r.out, FIXTURE_SEQS * ROW * sizeof *first)) FAIL("%s: run %d has other bits", specs[k], i);
        }
        fixture_free(&r);
    }
    free(first);
    ref_cache_free(&c);
}

// Steps so small that several run on the GPU at the same time. Each step uses the workspace as the step before left it.
static void queued(void) {
    static const int lengths[] = {1, 300, 700};
    enum { N = 3, QUEUED = 64 };
    ref_cache c = ref_cache_new(HEADS, KV_HEADS, DIM, N, lengths, 2, test_seed);
    bf16 once[N * ROW];
    for (int k = 0; k < N_SPECS; k++) {
        decode_fixture r = fixture_new(&c, specs[k], 5);
        fixture_decode(&r);
        memcpy(once, r.out, sizeof once);
        fixture_seed(&r, 5);
        fixture_decode_queued(&r, QUEUED);
        if (memcmp(once, r.out, sizeof once)) FAIL("%s: a step after other steps has other bits", specs[k]);
        fixture_free(&r);
    }
    ref_cache_free(&c);
}

static void alone(void) {
    ref_cache c = ragged_cache();
    bf16 *batch = malloc(FIXTURE_SEQS * ROW * sizeof *batch);
    for (int k = 0; k < N_SPECS; k++) {
        decode_fixture r = fixture_new(&c, specs[k], 5);
        fixture_decode(&r);
        memcpy(batch, r.out, FIXTURE_SEQS * ROW * sizeof *batch);
        fixture_free(&r);
        r = fixture_new(&c, specs[k], 5); // its workspace has not been used by a batch
        for (int s = 0; s < FIXTURE_SEQS; s++) {
            fixture_decode_alone(&r, s);
            if (memcmp(batch + s * ROW, r.out, ROW * sizeof *batch))
                FAIL("%s: sequence %d of %d rows alone has other bits", specs[k], s, fixture_ragged[s]);
        }
        fixture_free(&r);
    }
    free(batch);
    ref_cache_free(&c);
}

// A batch whose stored masses take 20 MB, at least a sixth of an L2 cache of up to 120 MB (A100, H100, H200): the kernel
// discards masses after their draws.
static void discarded(void) {
    enum { MANY = 32 };
    static const char *const some[] = {"santa-sys:S=128", "santa-prop:S=1000", "santa-pps:S=128", "santa-pps:epsilon=0.3",
                                       "bernoulli-group:B=8+santa-sys:S=128"};
    ref_cache c = ref_cache_new(MANY, MANY / 4, DIM, FIXTURE_SEQS, fixture_ragged, 2, test_seed);
    ref_add_to_values(&c, 1);
    size_t bytes = (size_t)FIXTURE_SEQS * MANY * DIM * sizeof(bf16);
    bf16 *kept = malloc(bytes);
    for (size_t k = 0; k < sizeof some / sizeof *some; k++) {
        decode_fixture r = fixture_new(&c, some[k], 5);
        fixture_decode(&r);
        memcpy(kept, r.out, bytes);
        r.args.keeps_masses = 0;
        for (int i = 0; i < 20; i++) {
            fixture_seed(&r, 5);
            fixture_decode_queued(&r, 1 + (i % 2 && !strstr(some[k], "epsilon")));
            if (memcmp(kept, r.out, bytes)) FAIL("%s: run %d has other bits than with masses kept", some[k], i);
        }
        fixture_free(&r);
    }
    free(kept);
    ref_cache_free(&c);
}
#endif

static const test_case cases[] = {
    GPU_CASE("all-methods", all_methods), GPU_CASE("runs", runs),
    GPU_CASE("queued", queued),           GPU_CASE("alone", alone),
    GPU_CASE("discarded", discarded),     {0},
};
const test_suite suite_cuda_bits = {"cuda_bits", cases};
