// tests/models/test_thresholds.c - sessions of methods that carry a threshold from step to step: equal runs give equal bits,
// and the first step after a cut or a fork searches for the threshold.
#include "engine/engine.h"
#include "tests/support/models.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static sl_error err;

static const char *const methods[] = {
    "santa-pps:S=16:budget=carried",
    "santa-pps:S=16:budget=carried:pps=sys",
    "santa-is:S=16:budget=carried",
    "santa-pps:epsilon=0.3:certify=layer",
    "santa-pps:epsilon=0.3:certify=layer:bound=chi2:on-miss=dense",
    "santa-is:proposal=int8:epsilon=0.3",
};
enum { N_METHODS = sizeof methods / sizeof *methods, B = 4, STEPS = 6, LAYERS = 4, HEADS = 8, SEED = 7 };
static const int lengths[B] = {40, 255, 300, 520}; // rows; the second sequence begins a page during the steps

static model_fixture open_tiny(const char *attn, int n_threads) {
    return model_fixture_load("models/tiny", attn,
                              (sl_engine_options){.n_ctx = 1024, .n_sequences = B, .n_threads = n_threads, .seed = SEED});
}

static sl_session *prefilled(model_fixture *r, int which) {
    sl_session *s = model_fixture_session(r, 100 + (uint32_t)which);
    int32_t *ids = test_ids(lengths[which], r->n_vocab, test_seed + (uint64_t)which);
    CHECK_OK(sl_prefill(s, ids, lengths[which], NULL, &err), err);
    free(ids);
    return s;
}

static void decode(sl_session *s, int32_t id) {
    CHECK_OK(sl_decode(&s, 1, &id, &err), err);
}

static int equal_logits(const sl_session *a, const sl_session *b, int n_vocab) {
    return !memcmp(sl_session_logits(a, NULL), sl_session_logits(b, NULL), (size_t)n_vocab * sizeof(float));
}

// ---- equal bits ----

// Decodes sequences [first, end) as one batch. Writes their last logits to out [B][n_vocab].
static void run(model_fixture *r, int first, int end, float *out) {
    sl_session *batch[B];
    for (int i = first; i < end; i++) batch[i] = prefilled(r, i);
    for (int step = 0; step < STEPS; step++) {
        int32_t ids[B];
        for (int i = first; i < end; i++) ids[i] = test_argmax(sl_session_logits(batch[i], NULL), r->n_vocab);
        CHECK_OK(sl_decode(batch + first, end - first, ids + first, &err), err);
    }
    for (int i = first; i < end; i++) {
        memcpy(out + (size_t)i * r->n_vocab, sl_session_logits(batch[i], NULL), (size_t)r->n_vocab * sizeof *out);
        sl_session_free(batch[i]);
    }
}

// Together and alone, with one thread and with all threads: equal logits and equal statistics.
static void equal_runs(void) {
    for (int m = 0; m < N_METHODS; m++) {
        sl_attn_stats want;
        float *out[2] = {0};
        for (int alone = 0; alone < 2; alone++) {
            model_fixture r = open_tiny(methods[m], alone);
            size_t n = (size_t)B * r.n_vocab;
            out[alone] = malloc(n * sizeof **out);
            for (int i = 0; i < (alone ? B : 1); i++) run(&r, i, alone ? i + 1 : B, out[alone]);
            const sl_attn_stats *got = sl_engine_attn_stats(r.engine);
            CHECK_INT(got->steps, B * STEPS * LAYERS * HEADS);
            CHECK_INT(got->stated, strstr(methods[m], "epsilon") ? B * STEPS * LAYERS : 0);
            CHECK(got->certified + got->unbounded <= got->stated);
            if (!alone) want = *got;
            if (alone && memcmp(&want, got, sizeof want))
                FAIL("%s: a batch and its sequences have other statistics", methods[m]);
            if (alone && memcmp(out[0], out[1], n * sizeof **out)) FAIL("%s: a sequence alone gives other bits", methods[m]);
            model_fixture_close(&r);
        }
        free(out[0]), free(out[1]);
    }
}

// ---- the first step of a session, of a fork, and after a cut or a prefill ----

enum { CUT = 3 };

// After a cut and in a fork the first step gives the bits of a session that has never stepped, and other bits than the session
// that went on. The steps after it give equal bits too. A prefill between two steps has the same effect as a fork.
static void cut_and_fork(void) {
    for (int m = 0; m < N_METHODS; m++) {
        model_fixture r = open_tiny(methods[m], 0);
        sl_session *on = prefilled(&r, 3), *cut, *fork;
        CHECK_OK(sl_session_fork(on, lengths[3], sl_session_sequence(on), &cut, &err), err);
        for (int i = 0; i < CUT; i++) decode(on, 70 + i), decode(cut, 70 + i);
        decode(cut, 60);
        CHECK(sl_session_n_tokens(cut) == lengths[3] + CUT + 1);
        CHECK_OK(sl_session_truncate(cut, lengths[3] + CUT, &err), err);
        CHECK_OK(sl_session_fork(on, lengths[3] + CUT, sl_session_sequence(on), &fork, &err), err);
        for (int i = 0; i < STEPS; i++) {
            decode(on, 80 + i), decode(cut, 80 + i), decode(fork, 80 + i);
            if (!equal_logits(cut, fork, r.n_vocab)) FAIL("%s: step %d: a cut and a fork give other bits", methods[m], i);
            if (i == 0 && equal_logits(on, fork, r.n_vocab)) FAIL("%s: a fork does not search", methods[m]);
        }
        sl_session_free(fork);
        CHECK_OK(sl_prefill(on, (int32_t[]){90}, 1, NULL, &err), err);
        CHECK_OK(sl_session_fork(on, sl_session_n_tokens(on), sl_session_sequence(on), &fork, &err), err);
        decode(on, 91), decode(fork, 91);
        if (!equal_logits(on, fork, r.n_vocab)) FAIL("%s: a step after a prefill does not search", methods[m]);
        sl_session_free(fork);
        CHECK_OK(sl_session_truncate(cut, sl_session_n_tokens(cut) - 1, &err), err); // the position of the next step stays
        CHECK_OK(sl_prefill(cut, (int32_t[]){92}, 1, NULL, &err), err);
        CHECK_OK(sl_session_fork(cut, sl_session_n_tokens(cut), sl_session_sequence(cut), &fork, &err), err);
        decode(cut, 93), decode(fork, 93);
        if (!equal_logits(cut, fork, r.n_vocab)) FAIL("%s: a step after a cut and a prefill does not search", methods[m]);
        sl_session_free(on), sl_session_free(cut), sl_session_free(fork);
        model_fixture_close(&r);
    }
}

typedef struct kappas { // of a sequence's last step
    float at[LAYERS][HEADS];
} kappas;

static void note_kappa(void *ctx, const sl_attn_record *r) {
    ((kappas *)ctx)->at[r->layer][r->head] = r->report->kappa;
}

// 1: in every layer, most heads have one kappa, up to its rounding in units of a head. A head at the ceiling of rows searches
// alone.
static int is_shared(const kappas *k) {
    int shared = 1;
    for (int i = 0; i < LAYERS; i++) {
        int most = 0;
        for (int h = 0; h < HEADS; h++) {
            int n = 0;
            for (int g = 0; g < HEADS; g++) n += fabs(k->at[i][g] / k->at[i][h] - 1) < 1e-3;
            if (n > most) most = n;
        }
        shared &= most > HEADS / 2;
    }
    return shared;
}

// Each head of a searching step finds its own kappa. The heads of another step have the kappa that the layer carried. A step
// searches if the step before it is not the session's last one. (santa-is states kappa in units of a head's estimated mass.)
static void who_searches(void) {
    for (int m = 0; m < N_METHODS; m++) {
        kappas seen;
        if (strstr(methods[m], "santa-is")) continue;
        model_fixture r = open_tiny(methods[m], 0);
        sl_session *s = prefilled(&r, 3), *fork;
        const sl_observer observer = {.fn = note_kappa, .ctx = &seen};
        CHECK_OK(sl_engine_observe(r.engine, &observer, &err), err);
        for (int i = 0; i < 3; i++) {
            decode(s, 70 + i);
            if (is_shared(&seen) != (i > 0)) FAIL("%s: step %d", methods[m], i);
        }
        CHECK_OK(sl_session_fork(s, sl_session_n_tokens(s), 9, &fork, &err), err);
        decode(fork, 80);
        if (is_shared(&seen)) FAIL("%s: a fork does not search", methods[m]);
        decode(s, 80);
        if (!is_shared(&seen)) FAIL("%s: a session searches after its fork", methods[m]);
        CHECK_OK(sl_session_truncate(s, sl_session_n_tokens(s) - 1, &err), err);
        decode(s, 81);
        if (is_shared(&seen)) FAIL("%s: a step after a cut does not search", methods[m]);
        CHECK_OK(sl_prefill(s, (int32_t[]){82}, 1, NULL, &err), err);
        decode(s, 83);
        if (is_shared(&seen)) FAIL("%s: a step after a prefill does not search", methods[m]);
        sl_session_free(s), sl_session_free(fork);
        model_fixture_close(&r);
    }
}

// ---- the reports of a layer ----

typedef struct sums {
    const char *attn;
    float epsilon;
    uint64_t layers, certified, unbounded, dense;
    double sum, most;
    sl_attn_report first; // of the layer
} sums;

static void note_report(void *ctx, const sl_attn_record *r) {
    sums *s = ctx;
    const sl_attn_report *p = r->report;
    CHECK(p->kappa >= 0);
    if (s->epsilon == 0) {
        CHECK(isnan(p->stated_error) && !p->certified);
        return;
    }
    if (r->head == 0) s->first = *p, s->layers++, s->certified += p->certified;
    CHECK(p->stated_error == s->first.stated_error && p->certified == s->first.certified); // equal for all heads of a layer
    if (strstr(s->attn, "on-miss=dense") && !p->certified)
        CHECK(p->fallback && p->stated_error == 0);
    else
        CHECK_INT(p->certified, p->stated_error <= s->epsilon * (1 + 1e-6f));
    if (r->head) return;
    if (!(p->stated_error <= SL_STATED_MOST))
        s->unbounded++;
    else
        s->sum += p->stated_error, s->most = fmax(s->most, p->stated_error);
}

// The statistics are those of the reports, with the names of sleigh.h too.
static void statistics(void) {
    for (int m = 0; m < N_METHODS; m++) {
        sums s = {.attn = methods[m], .epsilon = strstr(methods[m], "epsilon") ? 0.3f : 0};
        model_fixture r = open_tiny(methods[m], 0);
        const sl_observer observer = {.fn = note_report, .ctx = &s};
        float *out = malloc((size_t)B * r.n_vocab * sizeof *out);
        CHECK_OK(sl_engine_observe(r.engine, &observer, &err), err);
        run(&r, 0, B, out);
        const sl_attention_work work = sl_engine_attention_work(r.engine);
        CHECK(work.layer_steps == s.layers && work.certified == s.certified && work.unbounded == s.unbounded);
        if (s.layers) {
            CHECK(s.layers == B * STEPS * LAYERS && s.certified > 0 && s.certified < s.layers);
            CHECK_NEAR(work.stated_error, s.sum / (double)(s.layers - s.unbounded), 1e-8);
            CHECK(work.stated_error_max == s.most && work.stated_error < work.stated_error_max);
        } else {
            CHECK(isnan(work.stated_error) && isnan(work.stated_error_max));
        }
        model_fixture_close(&r);
        free(out);
    }
}

static const test_case cases[] = {
    {"equal-runs", NEEDS_SPEED, equal_runs},
    {"cut-and-fork", 0, cut_and_fork},
    {"who-searches", 0, who_searches},
    {"statistics", 0, statistics},
    {0},
};
const test_suite suite_thresholds = {"thresholds", cases};
