// tests/engine/test_draft_checks.c - the checks of drafts that do not run the engine, passes of benches over several rows, and
// the sums of counts.
#include "base/hash.h"
#include "engine/draft/draft.h"
#include "engine/draft/draft_counts.h"
#include "engine/engine_internal.h"
#include "tests/support/models.h"
#include "tests/test.h"

#include <stdlib.h>
#include <string.h>

static sl_error err;

// 1 to 9 rows have the bits of steps, and the session is as after the steps.
static void rows(void) {
    model_fixture r = model_fixture_load("models/tiny", "dense",
                                         (sl_engine_options){.n_ctx = 600, .n_sequences = 2, .n_draft = 8, .device = "cpu"});
    int32_t *ids = test_ids(300, r.n_vocab, test_seed);
    sl_session *a = model_fixture_session(&r, 3), *b = model_fixture_session(&r, 3);
    CHECK_OK(sl_prefill(a, ids, 256, NULL, &err), err);
    CHECK_OK(sl_prefill(b, ids, 256, NULL, &err), err);
    for (int n = 1, at = 256; n <= 9; at += n++) {
        if (at + n > 300) break;
        CHECK_OK(sl_decode_rows(&a, 1, ids + at, n, &err), err);
        for (int i = 0; i < n; i++) CHECK_OK(sl_decode(&b, 1, ids + at + i, &err), err);
        CHECK_INT(sl_session_n_tokens(a), at + n);
        CHECK(!memcmp(sl_session_ids(a), ids, (size_t)(at + n) * sizeof *ids));
        CHECK(!memcmp(sl_session_last_logits(a), sl_session_last_logits(b), (size_t)r.n_vocab * sizeof(float)));
    }
    sl_session *both[] = {a, b}; // rows of two sessions
    CHECK_OK(sl_session_truncate(a, 256, &err), err);
    CHECK_OK(sl_session_truncate(b, 256, &err), err);
    CHECK_OK(sl_decode_rows(both, 2, ids + 256, 5, &err), err);
    float *of_five = malloc((size_t)r.n_vocab * sizeof *of_five);
    memcpy(of_five, sl_session_last_logits(a), (size_t)r.n_vocab * sizeof *of_five);
    CHECK(!memcmp(of_five, sl_session_last_logits(b), (size_t)r.n_vocab * sizeof *of_five));
    CHECK_OK(sl_session_truncate(b, 256, &err), err);
    for (int i = 0; i < 5; i++) CHECK_OK(sl_decode(&b, 1, ids + 256 + i, &err), err);
    CHECK(!memcmp(of_five, sl_session_last_logits(b), (size_t)r.n_vocab * sizeof *of_five));
    free(of_five);
    CHECK_OK(sl_decode_rows(&a, 1, ids + 261, 9, &err), err);
    int n = sl_session_n_tokens(a);
    CHECK_ERR(sl_decode_rows(&a, 1, ids, 10, &err), err, SL_ERR_ARG, "a pass of 10 rows: expected 1 to 9");
    CHECK_ERR(sl_decode_rows(&a, 1, ids, 0, &err), err, SL_ERR_ARG, "a pass of 0 rows");
    CHECK_ERR(sl_decode_rows(&a, 1, (int32_t[]){-1}, 1, &err), err, SL_ERR_ARG, "id -1");
    CHECK_INT(sl_session_n_tokens(a), n);
    CHECK_OK(sl_session_truncate(a, 250, &err), err);
    CHECK_ERR(sl_decode_rows(&a, 1, ids, 7, &err), err, SL_ERR_ARG,
              "a pass of 7 rows after 250 tokens: expected at most 6: rows of one page of 256");
    CHECK_OK(sl_decode_rows(&a, 1, ids, 6, &err), err);
    CHECK_OK(sl_engine_set_attention(r.engine, "santa-pps:epsilon=0.2", &err), err);
    CHECK_ERR(sl_decode_rows(&a, 1, ids, 2, &err), err, SL_ERR_UNSUPPORTED, "keeps a state");
    CHECK_OK(sl_decode_rows(&a, 1, ids, 1, &err), err);
    sl_session_free(a), sl_session_free(b), free(ids);
    model_fixture_close(&r);
}

static void checks(void) {
    model_fixture r =
        model_fixture_load("models/tiny", "dense", (sl_engine_options){.n_ctx = 256, .n_draft = 4, .device = "cpu"});
    sl_attn_plan plan;
    CHECK_INT(sl_engine_n_draft(r.engine), 4);
    CHECK_OK(sl_engine_check_draft(r.engine, "ngram:most=4", NULL, &err), err);
    CHECK_OK(sl_engine_check_draft(r.engine, "self:most=4:attn=topk:k=8", NULL, &err), err);
    CHECK_ERR(sl_engine_check_draft(r.engine, "ngram", NULL, &err), err, SL_ERR_ARG, "most=8: the engine takes at most 4");
    CHECK_ERR(sl_engine_check_draft(r.engine, "self:most=2:attn=tpk", NULL, &err), err, SL_ERR_ARG,
              "draft self:most=2:attn=tpk: attn tpk: unknown method");
    CHECK_ERR(sl_engine_check_draft(r.engine, "self:most=2:attn=santa-pps:epsilon=0.2", NULL, &err), err, SL_ERR_UNSUPPORTED,
              "santa-pps keeps a state from step to step");
    CHECK_OK(sl_plan_methods_of(r.engine, "santa-is:proposal=int8:epsilon=0.2", &plan, &err), err);
    CHECK_ERR(sl_engine_check_draft(r.engine, "ngram:most=4", &plan, &err), err, SL_ERR_UNSUPPORTED, "santa-is keeps a state");
    sl_attn_plan_free(&plan);
    CHECK_OK(sl_plan_methods_of(r.engine, "santa-is:S=16", &plan, &err), err);
    CHECK_OK(sl_engine_check_draft(r.engine, "ngram:most=4", &plan, &err), err);
    sl_attn_plan_free(&plan);
    model_fixture_close(&r);
}

static void sums(void) {
    sl_draft_counts a = {.n_steps = 5, .n_drafts = 3, .n_ngram_drafts = 2, .n_draft_tokens = 9, .n_accepted_tokens = 4},
                    b = {.n_steps = 1, .n_drafts = 1, .n_draft_tokens = 2, .n_accepted_tokens = 1};
    a.accepted_at[0] = 3, a.accepted_at[1] = 1, b.accepted_at[0] = 1, b.accepted_at[14] = 7;
    sl_draft_counts_add(&a, &b);
    json_t *got = sl_draft_counts_json(&a, "auto", 3),
           *want = json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:[i,i,i]}", "draft", "auto", "steps", 6, "draft_steps", 4,
                             "ngram_steps", 2, "drafted", 11, "accepted", 5, "accepted_at", 4, 1, 0);
    CHECK(json_equal(got, want));
    CHECK(a.accepted_at[14] == 7);
    json_decref(got), json_decref(want);
}

// Passes of 2 + n ms and drafts of 0.5 ms, of which the first ones take much longer.
static void costs(void) {
    sl_draft_costs c = {0};
    double fixed, each;
    for (int i = 0; i < 30; i++) sl_draft_costs_pass(&c, 1 + i % 5, i < 5 ? 300 : 3 + i % 5);
    sl_draft_costs_line(&c, &fixed, &each);
    CHECK_NEAR(fixed, 2, 1e-9);
    CHECK_NEAR(each, 1, 1e-9);
    sl_draft_costs_age(&c); // one pass counts more than all before it, but no more than twice what was expected
    sl_draft_costs_pass(&c, 5, 1000);
    sl_draft_costs_line(&c, &fixed, &each);
    CHECK(fixed + 5 * each > 7 && fixed + 5 * each <= 14 + 1e-9);
    for (int i = 0; i < 400; i++) sl_draft_costs_pass(&c, 1 + i % 5, 3 + i % 5);
    sl_draft_costs_method(&c, 7, 300);
    CHECK(sl_draft_costs_of_method(&c, 7) == 0);
    for (int i = 0; i < 3; i++) sl_draft_costs_method(&c, 7, 0.5);
    CHECK_NEAR(sl_draft_costs_of_method(&c, 7), 0.5, 1e-9);
    CHECK(sl_draft_costs_of_method(&c, 8) == 0);
}

// ---- the choice ----

enum { NONE = -1, SANTA_IS, STREAMING };
static const char *const methods[] = {"santa-is:S=64", "streaming:window=1024"}; // of `auto`

typedef struct chooser {
    sl_session *session;
    sl_sampler *sampler;
    sl_drafter *drafter;
} chooser;

static uint64_t key_of(const char *attn) {
    return sl_fnv1a(sl_fnv1a(SL_FNV1A_START, attn, strlen(attn)), "", 0);
}

// A pass takes `pass` ms and 0.01 for each row, and a draft ms[method].
static void set_costs(sl_engine *e, double pass, const double ms[2]) {
    e->draft_costs = (sl_draft_costs){0};
    for (int i = 0; i < 40; i++) sl_draft_costs_pass(&e->draft_costs, 1 + i % 4, pass + 0.01 * (1 + i % 4));
    for (int i = 0; i < 60; i++) sl_draft_costs_method(&e->draft_costs, key_of(methods[i % 2]), ms[i % 2]);
}

// The method that drafts the next pass: the pass measures its drafts, so the kept time of this method changes.
static int next_method(const chooser *c) {
    sl_engine *e = c->session->engine;
    sl_draft_job job = {.drafter = c->drafter, .session = c->session, .sampler = c->sampler, .most = 8, .ids = {100}};
    double before[2], after[2];
    for (int i = 0; i < 2; i++) before[i] = sl_draft_costs_of_method(&e->draft_costs, key_of(methods[i]));
    CHECK_OK(sl_engine_claim(e, &err), err);
    CHECK_OK(sl_drafts_make(&job, 1, &err), err);
    sl_engine_release(e);
    for (int i = 0; i < 2; i++) after[i] = sl_draft_costs_of_method(&e->draft_costs, key_of(methods[i]));
    CHECK_INT(job.n > 1, (before[0] != after[0]) + (before[1] != after[1]));
    sl_draft_settle(&job, 0, 0);
    return job.n == 1 ? NONE : before[0] != after[0] ? SANTA_IS : STREAMING;
}

// `auto` takes the method that makes more tokens in a millisecond, and none if no method promises a gain. Then it tries one
// after 48, 96 and 192 passes.
static void choice(void) {
    model_fixture r =
        model_fixture_load("models/tiny", "dense", (sl_engine_options){.n_ctx = 256, .n_draft = 8, .device = "cpu"});
    chooser c = {.session = model_fixture_session(&r, 1)};
    sl_sampling greedy = sl_sampling_default();
    greedy.temp = 0;
    int32_t ids[70];
    for (int i = 0; i < 70; i++) ids[i] = 10 + i; // nothing occurs twice
    CHECK_OK(sl_prefill(c.session, ids, 70, NULL, &err), err);
    CHECK_OK(sl_sampler_new(&greedy, r.n_vocab, &c.sampler, &err), err);
    CHECK_OK(sl_drafter_new(r.engine, "auto", &c.drafter, &err), err);
    CHECK_OK(sl_drafter_begin(c.drafter, c.session, &err), err);
    set_costs(r.engine, 10, (double[]){1, 5});
    CHECK_INT(next_method(&c), SANTA_IS);
    set_costs(r.engine, 10, (double[]){5, 1});
    CHECK_INT(next_method(&c), STREAMING);
    static const int pauses[] = {48, 96, 192, 192};
    int tried[2] = {0};
    for (int i = 0; i < 4; i++)
        for (int pass = 1; pass <= pauses[i]; pass++) {
            set_costs(r.engine, 1, (double[]){4, 4}); // longer than a pass
            int method = next_method(&c);
            CHECK_INT(method != NONE, pass == pauses[i]);
            if (method != NONE) tried[method]++;
        }
    CHECK(tried[0] == 2 && tried[1] == 2);
    set_costs(r.engine, 10, (double[]){1, 5});
    CHECK_INT(next_method(&c), SANTA_IS);
    CHECK_OK(sl_drafter_begin(c.drafter, c.session, &err), err);
    for (int pass = 1; pass <= pauses[0] + pauses[1]; pass++) { // without a time, streaming waits: no pass tries it
        set_costs(r.engine, 1, (double[]){4, 0});
        CHECK_INT(next_method(&c), pass == pauses[0] || pass == pauses[0] + pauses[1] ? SANTA_IS : NONE);
    }
    sl_drafter_free(c.drafter), sl_sampler_free(c.sampler), sl_session_free(c.session);
    model_fixture_close(&r);
}

static const test_case cases[] = {{"rows", NEEDS_NOTHING, rows},     {"checks", NEEDS_NOTHING, checks},
                                  {"sums", NEEDS_NOTHING, sums},     {"costs", NEEDS_NOTHING, costs},
                                  {"choice", NEEDS_NOTHING, choice}, {0}};
const test_suite suite_draft_checks = {"draft_checks", cases};
