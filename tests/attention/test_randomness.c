// tests/attention/test_randomness.c - the random numbers of every method that draws, through decode: each head, layer,
// position, sequence, seed and tile has different numbers, at the documented place of the counter (attention/random_counter.h).
#include "attention/stages/stages.h"
#include "tests/support/counters.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- the documented counter ----

static void run(ref_cache *c, const counter_method *m, const sl_rng_id *id) { // sequence s has id->sequence + s
    for (int s = 0; s < c->n_seqs; s++)
        c->queries[s].sequence = id->sequence + (uint32_t)s, c->queries[s].position = id->position;
    ref_decode(c, m->attn, 0, c->n_seqs, id->seed, (int)id->layer);
}

static const float *out_of(const ref_cache *c, int s, int head) {
    return c->out + ((size_t)s * c->geom.n_heads + head) * COUNTER_DIM;
}

static void documented_counter(void) {
    enum { HEADS = 24, KV_HEADS = 3, SEQS = 2 };
    static const sl_rng_id who[] = {{1, 1000, 7, 0, 0},
                                    {1, 1000, 7, 1, 0},
                                    {1, 1000, 7, 300, 0},
                                    {1, 1000, 70000, 0, 0},
                                    {1, 70000, 7, 300, 0},
                                    {90000, 3, 1, 17, 0},
                                    {0xfffffff0, 0x80000000, 0x80000001, 65535, 0}};
    ref_cache c = counter_cache(HEADS, KV_HEADS, SEQS);
    for (int m = 0; m < N_COUNTER_METHODS; m++)
        for (size_t i = 0; i < sizeof who / sizeof *who; i++) {
            run(&c, &counter_methods[m], &who[i]);
            for (int index = 0; index < SEQS * HEADS; index++) {
                double want[COUNTER_DIM];
                sl_rng_id id = who[i];
                int s = index / HEADS, budget = (int)c.reports[index].budget;
                id.sequence += (uint32_t)s, id.head = (uint32_t)(index % HEADS);
                counter_expect(&c, &counter_methods[m], s, index % HEADS, &id, budget, want);
                if (counter_methods[m].kind == COUNTER_PERMUTATION)
                    CHECK(budget > 2 * (int)ceil(0.01 * (COUNTER_ROWS - 1)) &&
                          budget < COUNTER_ROWS - 1); // more rows than the base sample
                for (int d = 0; d < COUNTER_DIM; d++)
                    if (!(fabs(out_of(&c, s, index % HEADS)[d] - want[d]) < 1e-4))
                        FAIL("%s, call %zu, sequence %d, head %d, channel %d: got %g, expected %g", counter_methods[m].attn, i,
                             s, index % HEADS, d, out_of(&c, s, index % HEADS)[d], want[d]);
            }
        }
    ref_cache_free(&c);
}

// ---- shards ----

// A shard holds the query heads 2 to 5 and the KV heads 1 and 2 of a model of 6 and 3. Its head h gives the bits of the
// model's head h + 2. Methods with hash functions are not in the list: their hashes belong to pages, which know the KV heads of
// one shard.
static void first_head(void) {
    enum { HEADS = 6, KV_HEADS = 3, GROUP = HEADS / KV_HEADS, FIRST = GROUP, N = 2048 };
    static const char *const more[] = {"bernoulli:B=2", "bernoulli-group:B=2", "bernoulli:B=2:bernoulli-sampling=iid",
                                       "santa-pps:epsilon=0.3:delta=0.1", "vattention:sink=4:window=16:base=0.02:top=0.02"};
    enum { N_MORE = sizeof more / sizeof *more };
    const int lengths[1] = {N};
    ref_cache model = ref_cache_new(HEADS, KV_HEADS, COUNTER_DIM, 1, lengths, 1, test_seed);
    ref_cache shard = ref_cache_new(HEADS - FIRST, KV_HEADS - 1, COUNTER_DIM, 1, lengths, 1, test_seed);
    size_t row = COUNTER_DIM * sizeof(bf16);
    ref_add_to_values(&model, 1); // without a mean, a stated error needs every row
    memcpy(shard.q, model.q + FIRST * COUNTER_DIM, (HEADS - FIRST) * COUNTER_DIM * sizeof *shard.q);
    for (int h = 0; h < KV_HEADS - 1; h++)
        for (int j = 0; j < N; j++) {
            memcpy((bf16 *)ref_k_row(&shard, 0, h, j), ref_k_row(&model, 0, h + 1, j), row);
            memcpy((bf16 *)ref_v_row(&shard, 0, h, j), ref_v_row(&model, 0, h + 1, j), row);
        }
    for (int m = 0; m < N_COUNTER_METHODS + N_MORE; m++) {
        if (m >= N_MORE && counter_methods[m - N_MORE].kind == COUNTER_PERMUTATION)
            continue; // it reads every row of these caches
        const char *attn = m < N_MORE ? more[m] : counter_methods[m - N_MORE].attn;
        int differ = 0;
        for (int first = 0; first <= FIRST;
             first += FIRST) { // 0: the numbers of the first heads; FIRST: those of its own heads
            shard.geom.first_head = first;
            ref_decode(&shard, attn, 0, 1, 7, 3);
            ref_decode(&model, attn, 0, 1, 7, 3);
            for (int h = 0; h < HEADS - FIRST; h++) {
                int same = !memcmp(out_of(&shard, 0, h), out_of(&model, 0, h + FIRST), COUNTER_DIM * sizeof(float));
                if (first && !same) FAIL("%s: head %d of the shard differs from head %d of the model", attn, h, h + FIRST);
                differ += !first && !same;
            }
        }
        if (differ == 0) FAIL("%s: the first head changes nothing", attn);
    }
    ref_cache_free(&model), ref_cache_free(&shard);
}

// ---- no number is used twice ----

enum { MOST = 1 << 16, N_HEADS = 16 };
typedef struct log_of_head {
    uint32_t *index; // [MOST]
    int n;
    sl_uniform of;
} log_of_head;
static log_of_head logs[N_HEADS];
static void (*logged_run)(sl_head *x);

static uint64_t next_logged(const void *ctx, uint32_t index) {
    log_of_head *l = (log_of_head *)ctx;
    if (l->n++ < MOST) l->index[l->n - 1] = index;
    return l->of.next(l->of.ctx, index);
}

static void run_logged(sl_head *x) {
    log_of_head *l = &logs[x->id.head];
    l->n = 0, l->of = x->u;
    x->u = (sl_uniform){next_logged, l};
    logged_run(x);
}

static int by_index(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

// The pilot and the tries of santa-pps: number m of try i has the index i << 20 | m. Every try uses its first numbers.
static void check_tries(const log_of_head *l, const sl_attn_report *report, int *n_second) {
    int used[4] = {0};
    for (int i = 0; i < l->n; i++) {
        uint32_t try = l->index[i] >> 20, m = l->index[i] & 0xfffff;
        CHECK(try < 4);
        CHECK_INT(m, used[try]++);
    }
    CHECK(used[0] > 0); // the pilot: there is no previous step
    for (int i = 1; i <= 3; i++) CHECK_INT(used[i] > 0, (int)report->tries >= i);
    *n_second += report->tries > 1;
}

static void every_number_once(void) {
    static const char *const specs[] = {"santa:S=200",
                                        "santa-strat:S=200",
                                        "santa-sys:S=200",
                                        "santa-prop:S=200",
                                        "santa-flash",
                                        "santa-pps:S=200",
                                        "santa-is:S=200",
                                        "random:S=200",
                                        "vattention:verify=denominator:epsilon=0.03",
                                        "vattention:bound=hoeffding:verify=denominator:epsilon=0.3",
                                        "santa-pps:certify=head:epsilon=0.25:delta=0.2",
                                        "santa-pps:certify=head:epsilon=0.4:delta=0.2:bound=bernstein"};
    static const int n = 6000;
    sl_error err;
    int n_second = 0;
    ref_cache c = ref_cache_new(N_HEADS, 2, 64, 1, &n, 1, test_seed);
    for (int i = 0; i < 2 * n; i++) { // along one channel, a quarter negative: estimates vary enough for second tries
        bf16 *v = (bf16 *)ref_v_row(&c, 0, i % 2, i / 2);
        memset(v, 0, 64 * sizeof *v);
        v[0] = sl_f32_to_bf16(i % 8 < 2 ? -1 : 1);
    }
    for (int h = 0; h < N_HEADS; h++) logs[h].index = malloc(MOST * sizeof *logs[h].index);
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        sl_attn_spec spec;
        CHECK_OK(sl_attn_parse(specs[i], &spec, &err), err);
        sl_draw draw = *spec.method->stages->draw;
        sl_composition stages = *spec.method->stages;
        sl_attn_method logged = *spec.method;
        logged_run = draw.run, draw.run = run_logged, stages.draw = &draw, logged.stages = &stages, spec.method = &logged;
        for (uint32_t seed = 0; seed < 3; seed++) {
            ref_decode_spec(&c, &spec, 0, 1, (uint32_t)test_seed + seed, 2);
            for (int h = 0; h < N_HEADS; h++) {
                if (sl_attn_states_error(&spec) && !strncmp(specs[i], "santa-pps", 9))
                    check_tries(&logs[h], &c.reports[h], &n_second);
                CHECK(logs[h].n > 0 && logs[h].n <= MOST);
                qsort(logs[h].index, logs[h].n, sizeof *logs[h].index, by_index);
                for (int j = 1; j < logs[h].n; j++)
                    if (logs[h].index[j] == logs[h].index[j - 1])
                        FAIL("%s, head %d: number %u is used twice", specs[i], h, logs[h].index[j]);
            }
        }
    }
    CHECK(n_second > 0);
    for (int h = 0; h < N_HEADS; h++) free(logs[h].index);
    ref_cache_free(&c);
}

// ---- hash functions of MagicPIG ----

// Projection i of a layer and KV head: a normal number from two words of key (seed, 0), counter (i, layer << 16 | head, 0, 2).
// Sequences share pages, so the counter has neither the sequence nor the position. Every KV head of a cache has other
// projections.
static void hash_functions(void) {
    static const uint32_t who[][3] = {{1, 0, 0}, {1, 0, 1},   {1, 1, 0},
                                      {2, 0, 0}, {1, 0, 300}, {9, 300, 17}}; // seed, layer, head
    enum { DIM = 64, N = DIM * 16 * 4, ALL = 6 };                            // one set of 16 tables of 4 bits
    static float p[ALL][N];
    static const int n = 600;
    sl_error err;
    sl_attn_spec spec;
    sl_kv_need need;
    CHECK_OK(sl_attn_parse("magicpig:K=4:L=16", &spec, &err), err);
    CHECK_INT(spec.method->cpu->needs(&spec, &need), 1);
    CHECK_INT(need.kind->shared_size(need.arg, DIM), sizeof p[0]);
    for (int i = 0; i < ALL; i++) {
        need.kind->share(need.arg, DIM, who[i][0], (int)who[i][1], (int)who[i][2], p[i]);
        for (uint32_t j = 0; j < N; j++) {
            sl_philox4 r = sl_philox(who[i][0], 0, j, (who[i][1] << 16) + who[i][2], 0, 2);
            double u = (r.v[0] + 0.5) * 0x1p-32, v = (r.v[1] + 0.5) * 0x1p-32;
            CHECK_NEAR(p[i][j], sqrt(-2 * log(u)) * cos(2 * 3.14159265358979323846 * v), 1e-5);
        }
        for (int j = 0; j < i; j++) CHECK(memcmp(p[i], p[j], sizeof p[0]));
    }
    ref_cache c = ref_cache_new(4, 2, DIM, 1, &n, 1, test_seed);
    c.pool.seed = 1;
    ref_decode(&c, "magicpig:K=4:L=16", 0, 1, 1, 0);
    for (int h = 0; h < 2; h++) CHECK(!memcmp(sl_kv_shared(&c.queries[0].kv, need, h), p[h], sizeof p[0]));
    ref_cache_free(&c);
}

// ---- no two uses share a counter ----

// Marks a number. Fails if it was marked before.
static void mark(uint8_t *bits, uint32_t i, const char *what) {
    if (bits[i / 8] >> i % 8 & 1) FAIL("%s: index %u is used twice", what, i);
    bits[i / 8] |= (uint8_t)(1 << i % 8);
}

// All indices of a try of a head with 2^21 rows, which has at most 2^20 draws, and of twice as many draws; then the trials of
// bernoulli with the largest B and head_dim.
static void index_packing(void) {
    enum { ROWS = 1 << 21, DIM = 256, B = 1024 };
    const uint32_t most = sl_try_index(SL_TRIES - 1, ROWS - 1);
    uint8_t *bits = calloc(most / 8 + 1, 1);
    for (int i = 0; i < SL_TRIES; i++)
        for (uint32_t m = 0; m < ROWS; m++) {
            uint32_t at = sl_try_index(i, m);
            CHECK(at <= most);
            mark(bits, at, "tries");
        }
    for (uint32_t m = 0; m < 1 << 20; m += 4097) // numbers of earlier releases stay
        for (uint32_t i = 0; i < SL_TRIES; i++) CHECK_INT(sl_try_index((int)i, m), i << 20 | m);
    memset(bits, 0, most / 8 + 1);
    CHECK(sl_trial_index(B - 1, DIM - 1, DIM) <= most);
    for (int t = 0; t < B; t++)
        for (int i = 0; i < DIM; i++) mark(bits, sl_trial_index(t, i, DIM), "trials");
    free(bits);
    const uint32_t edge[] = {0, 1, (1 << 20) - 1, 1 << 20, (1 << 22) - 1, 1 << 22, SL_TRY_DRAWS / 2, SL_TRY_DRAWS - 1};
    enum { EDGES = sizeof edge / sizeof *edge };
    for (int a = 0; a < EDGES * SL_TRIES; a++)
        for (int b = 0; b < a; b++)
            CHECK(sl_try_index(a % SL_TRIES, edge[a / SL_TRIES]) != sl_try_index(b % SL_TRIES, edge[b / SL_TRIES]));
}

static const test_case cases[] = {
    {"documented-counter", 0, documented_counter}, {"first-head", 0, first_head},
    {"every-number-once", 0, every_number_once},   {"hash-functions", 0, hash_functions},
    {"index-packing", 0, index_packing},           {0},
};
const test_suite suite_randomness = {"randomness", cases};
