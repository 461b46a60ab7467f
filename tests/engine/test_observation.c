// tests/engine/test_observation.c - the arithmetic of observers: errors of heads and layers, tiles, sums of reports of
// prefills, checked rows, places of states; and the search for keys that are not finite.
#include "engine/engine_internal.h"
#include "tests/support/run_cli.h"

#include <math.h>
#include <stdlib.h>

static sl_error err;
static uint64_t seed;

static int below(int n) {
    return (int)(test_uniform(&seed) * n);
}

// ---- a very small model ----

enum { KEY_LAYERS = 2, KEY_HEADS = 2, QUERY_HEADS = 4, KEY_DIM = 32, VOCAB = 97, CTX = 700 };

static sl_model *load_model(void) {
    static const char config[] = "{\"model_type\":\"llama\",\"hidden_size\":32,\"num_hidden_layers\":2,\"num_attention_heads\":"
                                 "4,\"num_key_value_heads\":2,"
                                 "\"head_dim\":32,\"intermediate_size\":32,\"vocab_size\":97,\"max_position_embeddings\":2048}";
    sl_model *model;
    spill(in_tmp("config.json"), config, sizeof config - 1);
    CHECK_OK(sl_model_load(test_tmp(), &(sl_model_options){.flags = SL_MODEL_DUMMY}, &model, &err), err);
    CHECK_OK(sl_model_materialise(model, 1, NULL, NULL, &err), err);
    return model;
}

// ---- reports of decode steps ----

enum { HEADS = 3, DIM = 8, SEQS = 2, PAGES = 9 };

typedef struct records {
    sl_attn_report reports[HEADS];
    int n;
} records;

static void note_record(void *ctx, const sl_attn_record *r) {
    records *x = ctx;
    CHECK(r->head == x->n && r->layer == 4 && r->sequence == 77);
    x->reports[x->n++] = *r->report;
}

// error: |out - mu| / |mu|; cosine; bias: (out - mu).mu / |mu|^2; of a layer: the heads side by side. Each sum of 24 products
// of doubles has a relative error below 1e-14, and the result is rounded to fp32.
static void errors(void) {
    float dense[SEQS * HEADS * DIM], out[HEADS * DIM];
    uint32_t tiles[SEQS * HEADS];
    seed = test_seed;
    for (int round = 0; round < 200; round++) {
        records got = {0};
        sl_attn_report reports[HEADS] = {0};
        sl_engine e = {.geom = {.n_layers = 1, .n_heads = HEADS, .n_kv_heads = 1, .head_dim = DIM}};
        e.observation =
            (sl_observation){.observer = {.fn = note_record, .ctx = &got, .with_error = 1}, .dense = dense, .tiles = tiles};
        double scale = exp(4 * test_normal(&seed)), layer_error = 0, layer_norm = 0;
        for (int i = 0; i < SEQS * HEADS * DIM; i++) dense[i] = (float)test_normal(&seed);
        for (int i = 0; i < HEADS * DIM; i++) out[i] = (float)(scale * test_normal(&seed));
        for (int i = 0; i < SEQS * HEADS; i++) tiles[i] = 100 + (uint32_t)i;
        int which = below(SEQS);
        sl_observation_report(&e, &(sl_attn_record){.layer = 4, .sequence = 77}, which, reports, out);
        CHECK_INT(got.n, HEADS);
        for (int h = 0; h < HEADS; h++) {
            const float *mu = dense + (which * HEADS + h) * DIM, *o = out + h * DIM;
            double off = 0, dot = 0, along = 0, mu2 = 0, o2 = 0;
            for (int d = 0; d < DIM; d++) {
                off += pow((double)o[d] - mu[d], 2), along += ((double)o[d] - mu[d]) * mu[d];
                dot += (double)o[d] * mu[d], mu2 += (double)mu[d] * mu[d], o2 += (double)o[d] * o[d];
            }
            const sl_attn_report *r = &got.reports[h];
            CHECK_NEAR(r->error / (sqrt(off) / sqrt(mu2)), 1, 1e-6);
            CHECK_NEAR(r->cosine, dot / (sqrt(mu2) * sqrt(o2)), 1e-6);
            CHECK_NEAR(r->bias, along / mu2, 1e-6 * (1 + fabs(along / mu2) + fabs(dot / mu2)));
            CHECK_INT(r->tiles, 100 + which * HEADS + h);
            layer_error += off, layer_norm += mu2;
        }
        for (int h = 0; h < HEADS; h++) CHECK_NEAR(got.reports[h].layer_error / sqrt(layer_error / layer_norm), 1, 1e-6);
    }
}

// The fewest tiles with 90% of the mass, of all choices of tiles.
static void tiles_of_masses(void) {
    double masses[SEQS * HEADS * PAGES];
    uint32_t tiles[SEQS * HEADS];
    const sl_observation o = {.masses = masses, .tiles = tiles, .max_pages = PAGES};
    seed = test_seed;
    for (int round = 0; round < 300; round++) {
        int n = 1 + below(PAGES), head = below(SEQS * HEADS), fewest = n;
        double *own = masses + head * PAGES, share[PAGES], all = 0;
        for (int i = 0; i < SEQS * HEADS * PAGES; i++) masses[i] = 3 * test_normal(&seed) + 900;
        for (int i = 0; i < n; i++) all += share[i] = pow(2, own[i] - 900);
        for (int choice = 0; choice < 1 << n; choice++) {
            double sum = 0;
            int count = 0;
            for (int i = 0; i < n; i++)
                if (choice >> i & 1) sum += share[i], count++;
            if (sum >= 0.9 * all && count < fewest) fewest = count;
        }
        memset(tiles, 0xff, sizeof tiles);
        sl_observation_count_tiles(&o, head, 1, n);
        for (int i = 0; i < SEQS * HEADS; i++) CHECK_INT(tiles[i], i == head ? (uint32_t)fewest : UINT32_MAX);
    }
}

// Every layer, shadow and seed has a part of its own.
static void places_of_states(void) {
    enum { LAYERS = 3, SHADOWS = 2, SEEDS = 4, SIZE = 64 };
    char seen[LAYERS * SHADOWS * SEEDS] = {0};
    sl_engine e = {.geom = {.n_layers = LAYERS}};
    e.observation = (sl_observation){.observer = {.n_shadows = SHADOWS, .n_seeds = SEEDS}, .state_size = SIZE};
    CHECK_INT(sl_shadow_state_size(&e), sizeof seen * SIZE);
    for (int layer = 0; layer < LAYERS; layer++)
        for (int which = 0; which < SHADOWS * SEEDS; which++) {
            size_t at = sl_shadow_state_at(&e, layer, which);
            CHECK(at % SIZE == 0 && at / SIZE < sizeof seen && !seen[at / SIZE]++);
        }
}

// ---- shadows ----

enum { STEPS = 4, LENGTH = 300, MOST_RECORDS = 400 };

typedef struct heard { // records of shadows, in the order of the calls
    struct {
        uint32_t seed, v_rows, samples, tiles;
        int layer, head, position;
        float error, kappa;
    } x[MOST_RECORDS];
    int n;
} heard;

static void hear(void *ctx, const sl_attn_record *r) {
    heard *h = ctx;
    if (r->spec->method == &sl_method_dense) return; // the running method
    CHECK(h->n < MOST_RECORDS);
    h->x[h->n].seed = r->seed, h->x[h->n].layer = r->layer, h->x[h->n].head = r->head, h->x[h->n].position = r->position;
    h->x[h->n].error = r->report->error, h->x[h->n].kappa = r->report->kappa;
    h->x[h->n].v_rows = r->report->v_rows, h->x[h->n].samples = r->report->samples;
    h->x[h->n++].tiles = r->report->tiles;
}

// Observes a session of LENGTH tokens and STEPS steps.
static heard *observe(const sl_model *model, const sl_engine_options *o, const sl_attn_spec *shadows, int n_shadows,
                      int n_seeds) {
    heard *h = calloc(1, sizeof *h);
    sl_engine *e;
    sl_session *s;
    int32_t ids[LENGTH + STEPS];
    for (int i = 0; i < LENGTH + STEPS; i++) ids[i] = i * 37 % VOCAB;
    CHECK_OK(sl_engine_new(model, o, &e, &err), err);
    CHECK_OK(sl_session_new(e, 9, &s, &err), err);
    CHECK_OK(sl_prefill(s, ids, LENGTH, NULL, &err), err);
    const sl_observer observer = {
        .fn = hear, .ctx = h, .with_error = 1, .shadows = shadows, .n_shadows = n_shadows, .n_seeds = n_seeds};
    CHECK_OK(sl_engine_observe(e, &observer, &err), err);
    for (int i = 0; i < STEPS; i++) CHECK_OK(sl_decode(&s, 1, &ids[LENGTH + i], &err), err);
    sl_session_free(s), sl_engine_free(e);
    return h;
}

// Each shadow and seed reports what it reports alone, so their states from step to step are apart. Seed j is that of an engine
// with a seed higher by j. The length of the context does not change the reports.
static void shadows(void) {
    static const char *const texts[] = {"santa-pps:S=16:budget=carried", "santa-pps:S=8:budget=carried"};
    enum { SEEDS = 3, EACH = STEPS * KEY_LAYERS * QUERY_HEADS };
    sl_attn_spec specs[2];
    sl_model *model = load_model();
    for (int i = 0; i < 2; i++) CHECK_OK(sl_attn_parse(texts[i], &specs[i], &err), err);
    sl_engine_options o = {.n_ctx = CTX, .n_threads = 1, .seed = 3};
    heard *all = observe(model, &o, specs, 2, SEEDS);
    CHECK_INT(all->n, 2 * SEEDS * EACH);
    for (int i = 0; i < 2 * SEEDS; i++) {
        o.seed = 3 + (uint32_t)(i % SEEDS), o.n_ctx = CTX + 260 * i;
        heard *alone = observe(model, &o, &specs[i / SEEDS], 1, 0);
        CHECK_INT(alone->n, EACH);
        for (int k = 0; k < EACH; k++) { // in a step and layer: shadow by shadow, seed by seed
            int at = (k / QUERY_HEADS * 2 * SEEDS + i) * QUERY_HEADS + k % QUERY_HEADS;
            CHECK_INT(all->x[at].position, LENGTH + k / QUERY_HEADS / KEY_LAYERS);
            if (memcmp(&all->x[at], &alone->x[k], sizeof all->x[0]))
                FAIL("shadow %d, seed %d, record %d: error %g, alone %g", i / SEEDS, i % SEEDS, k, all->x[at].error,
                     alone->x[k].error);
        }
        free(alone);
    }
    free(all);
    // A shadow with the running method's specification does what that method does.
    heard *both = observe(model, &(sl_engine_options){.n_ctx = CTX, .n_threads = 1, .attn = texts[0]}, &specs[0], 1, 1);
    CHECK_INT(both->n, 2 * EACH);
    for (int k = 0; k < 2 * EACH; k++)
        if (k / QUERY_HEADS % 2) CHECK(!memcmp(&both->x[k], &both->x[k - QUERY_HEADS], sizeof both->x[0]));
    free(both);
    sl_model_free(model);
}

typedef struct profiles { // of two sessions
    sl_attn_spread x[2][STEPS * KEY_LAYERS * QUERY_HEADS];
    sl_attn_report reports[2][STEPS * KEY_LAYERS * QUERY_HEADS];
    int n[2];
} profiles;

static void note_profile(void *ctx, const sl_attn_record *r) {
    profiles *p = ctx;
    int i = (int)r->sequence, k = p->n[i]++;
    CHECK(k < STEPS * KEY_LAYERS * QUERY_HEADS && r->profile);
    p->x[i][k] = *r->profile;
    p->reports[i][k] = *r->report;
}

// Observes steps of one session, or of a batch of both.
static void observe_batch(const sl_model *model, int first, int n, profiles *p) {
    static const int lengths[] = {40, 500};
    const sl_engine_options o = {.n_ctx = CTX, .n_threads = 1, .n_sequences = 2, .attn = "topk:k=8"};
    sl_engine *e;
    sl_session *batch[2];
    int32_t ids[CTX];
    for (int i = 0; i < CTX; i++) ids[i] = i * 37 % VOCAB;
    CHECK_OK(sl_engine_new(model, &o, &e, &err), err);
    for (int i = 0; i < n; i++) {
        CHECK_OK(sl_session_new(e, (uint32_t)(first + i), &batch[i], &err), err);
        CHECK_OK(sl_prefill(batch[i], ids, lengths[first + i], NULL, &err), err);
    }
    const sl_observer observer = {.fn = note_profile, .ctx = p, .with_error = 1, .with_profile = 1};
    CHECK_OK(sl_engine_observe(e, &observer, &err), err);
    for (int i = 0; i < STEPS; i++) CHECK_OK(sl_decode(batch, n, (int32_t[]){i, i}, &err), err);
    for (int i = 0; i < n; i++) sl_session_free(batch[i]);
    sl_engine_free(e);
}

// A session in a batch has the profiles and reports that it has alone.
static void batches(void) {
    sl_model *model = load_model();
    profiles *p = calloc(2, sizeof *p);
    const int each = STEPS * KEY_LAYERS * QUERY_HEADS;
    observe_batch(model, 0, 2, &p[0]);
    CHECK(p[0].n[0] == each && p[0].n[1] == each);
    for (int i = 0; i < 2; i++) {
        p[1].n[i] = 0;
        observe_batch(model, i, 1, &p[1]);
    }
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < each; k++) {
            const sl_attn_report *in = &p[0].reports[i][k], *alone = &p[1].reports[i][k];
            CHECK(!memcmp(&p[0].x[i][k], &p[1].x[i][k], sizeof p->x[0][0]));
            CHECK(in->error == alone->error && in->tiles == alone->tiles && in->v_rows == alone->v_rows);
        }
    free(p);
    sl_model_free(model);
}

// ---- reports of prefills ----

static int32_t random_share(void) {
    return below(3) ? below(1 << SL_SHARE_BITS) : SL_MASK_NOT_SAMPLED;
}

static void check_least(int32_t got, const int32_t *shares, int n) {
    int32_t least = SL_MASK_NOT_SAMPLED;
    for (int i = 0; i < n; i++)
        if (shares[i] >= 0 && (least < 0 || shares[i] < least)) least = shares[i];
    CHECK_INT(got, least);
}

// Sums, least shares and greatest errors of reports in any order.
static void sums_of_reports(void) {
    enum { MOST = 6 };
    seed = test_seed;
    for (int round = 0; round < 2000; round++) {
        sl_prefill_report all = sl_prefill_report_none();
        int32_t kept[MOST], measured[MOST];
        uint64_t visited = 0, causal = 0, n_errors = 0;
        double errors = 0, most = 0;
        int n = below(MOST + 1), is_nan = 0;
        CHECK(isnan(sl_prefill_share(all.kept)) && isnan(sl_prefill_density(&all)) && isnan(sl_prefill_error(&all)));
        for (int i = 0; i < n; i++) {
            const sl_prefill_report r = {.visited = (uint64_t)below(50),
                                         .causal = 50 + (uint64_t)below(50),
                                         .kept = kept[i] = random_share(),
                                         .measured = measured[i] = random_share(),
                                         .n_errors = 1 + (uint64_t)below(9),
                                         .errors = below(64) / 8.0,
                                         .error_max = below(9) ? below(64) / 8.0 : NAN};
            sl_prefill_report_add(&all, &r);
            visited += r.visited, causal += r.causal, n_errors += r.n_errors, errors += r.errors;
            is_nan |= isnan(r.error_max) != 0;
            if (r.error_max > most) most = r.error_max;
        }
        CHECK(all.visited == visited && all.causal == causal && all.n_errors == n_errors && all.errors == errors);
        CHECK(is_nan ? isnan(all.error_max) : all.error_max == most);
        check_least(all.kept, kept, n), check_least(all.measured, measured, n);
        if (n) CHECK(sl_prefill_density(&all) == (double)visited / causal && sl_prefill_error(&all) == errors / n_errors);
        if (all.kept >= 0) CHECK(sl_prefill_share(all.kept) == all.kept / 16777216.0);
    }
}

// The rows to check: as many as asked for, or all; in order, at distances that differ by at most 1, the last row among them.
static void checked_rows(void) {
    for (int n = 1; n < 60; n++)
        for (int asked = 1; asked < 70; asked++) {
            const sl_engine e = {.prefill = {.observer = {.n_rows = asked}}};
            int n_rows = sl_prefill_n_checked(&e, n), before = -1;
            CHECK_INT(n_rows, asked < n ? asked : n);
            for (int i = 0; i < n_rows; i++) {
                int row = sl_prefill_checked_row(&e, n, i);
                CHECK(row - before >= n / n_rows && row - before <= (n + n_rows - 1) / n_rows);
                before = row;
            }
            CHECK_INT(before, n - 1);
        }
}

// ---- keys that are not finite ----

// Puts numbers into keys, and looks for the first that is not finite: by layer, then position, then KV head. Rows behind the
// last token do not count.
static void keys(void) {
    static const bf16 values[] = {0x7fc0, 0x7f80, 0xff80, 0xffff, 0x7f81, 0x7f7f, 0xff7f, 0x0001}; // the last three are finite
    const int lengths[] = {1, 255, 256, 257, 511, 600, CTX};
    const int32_t ids[CTX] = {3, 4, 5};
    sl_model *model = load_model();
    sl_engine *e;
    seed = test_seed;
    CHECK_OK(sl_engine_new(model, &(sl_engine_options){.n_ctx = CTX, .n_threads = 1}, &e, &err), err);
    for (int round = 0; round < 35; round++) {
        sl_session *s;
        char want[256] = "all keys of the cache are finite";
        int n = lengths[round % 7], n_bad = below(4), n_changes = below(4), least = INT32_MAX;
        CHECK_OK(sl_session_new(e, 9, &s, &err), err);
        CHECK_OK(sl_prefill(s, ids, n, NULL, &err), err);
        CHECK_OK(sl_session_check_logits(s, &err), err);
        for (int i = 0; i < s->kv.n_pages * KEY_LAYERS; i++) { // a pool gives pages again, with the rows of the last round
            size_t page = (size_t)KEY_HEADS * SL_PAGE * KEY_DIM;
            bf16 *k = sl_kv_layer(&e->device.pool, i % KEY_LAYERS).k + (size_t)s->kv.pages[i / KEY_LAYERS] * page;
            for (int j = 0; j < KEY_HEADS * SL_PAGE; j++)
                if (i / KEY_LAYERS * SL_PAGE + j % SL_PAGE >= n) memset(k + j * KEY_DIM, 0, KEY_DIM * sizeof *k);
        }
        for (int i = 0; i < n_changes; i++) {
            int layer = below(KEY_LAYERS), head = below(KEY_HEADS), which = below(8), most = s->kv.n_pages * SL_PAGE;
            int position = below(2) ? below(most) : (n + below(3) - 1 + most) % most;
            size_t block = (size_t)s->kv.pages[position / SL_PAGE] * KEY_HEADS + (size_t)head;
            sl_kv_layer(&e->device.pool, layer).k[(block * SL_PAGE + position % SL_PAGE) * KEY_DIM + 8 * i + below(8)] =
                values[which];
            int order = (layer * CTX + position) * KEY_HEADS + head;
            if (which > 4 || position >= n || order > least) continue;
            least = order;
            snprintf(want, sizeof want, "the first key that is not finite is in layer %d, KV head %d, position %d", layer, head,
                     position);
        }
        for (int i = 0; i < n_bad; i++) s->logits[7 * i + 1] = i == 1 ? NAN : i == 2 ? -INFINITY : INFINITY;
        int rc = sl_session_check_logits(s, &err);
        CHECK_INT(rc, n_bad ? SL_ERR_NOT_FINITE : 0);
        if (rc) {
            char text[400];
            snprintf(text, sizeof text, "sequence 9: %d of %d logits after %d tokens are not finite; %s", n_bad, VOCAB, n,
                     want);
            CHECK_STR(err.message, text);
        }
        sl_session_free(s);
    }
    sl_engine_free(e), sl_model_free(model);
}

static const test_case cases[] = {{"errors", 0, errors},
                                  {"tiles", 0, tiles_of_masses},
                                  {"places-of-states", 0, places_of_states},
                                  {"shadows", 0, shadows},
                                  {"batches", 0, batches},
                                  {"sums-of-reports", 0, sums_of_reports},
                                  {"checked-rows", 0, checked_rows},
                                  {"keys", 0, keys},
                                  {0}};
const test_suite suite_observation = {"observation", cases};
