// tests/engine/test_sessions.c - random sequences of calls on sessions of a very small model, against a model of what a session
// must know: which tokens a prefill appended, which segment a token was read in, whether there are logits, which state a method
// keeps. At the end of a sequence, a second engine repeats the history of each session, and the logits must have equal bits.
#include "engine/engine_internal.h"
#include "tests/support/run_cli.h"

#include <math.h>
#include <stdlib.h>

static sl_error err;

enum {
    N_CTX = 700,
    SLOTS = 3,
    MOST_SEGMENTS = 512,
    MOST_SEGMENT = 200,
    VOCAB = 97,
    HEAD_DIM = 32,
    SEQUENCES = 80,
    OPS = 16,
    END = 7,
    OTHER = 11
};

static const char *const attns[] = {"dense", "quest:tokens=64", "santa-pps:S=16:budget=carried",
                                    "santa-pps:S=8:budget=carried"};
static const char *const prefills[][2] = { // of layer 0 and layer 1
    {"dense", "dense"},
    {"streaming:window=64", "streaming:window=64"},
    {"streaming:window=64", "streaming:window=64:sink=8"}};
enum { N_ATTNS = sizeof attns / sizeof *attns, N_PREFILLS = sizeof prefills / sizeof *prefills };

// ---- the model ----

typedef struct segment { // of one session; the tokens that were read together, even if some of them are cut off now
    int first, end, version, plan, size;
    int32_t ids[MOST_SEGMENT];
} segment;

typedef struct token {
    int32_t id;
    int is_prefilled, segment, attn; // segment: -1: none
    int is_fresh;                    // 1: the method's state was empty before this token
    uint32_t sequence;
} token;

typedef struct expected { // of a session
    token tokens[N_CTX];
    int n, has_logits, is_fresh;
    int attn; // of the state; -1: none yet
    uint32_t sequence;
} expected;

typedef struct world {
    sl_model *model;
    sl_engine *engine, *other; // other: repeats histories
    sl_session *sessions[SLOTS];
    expected want[SLOTS], saved;
    segment segments[MOST_SEGMENTS];
    int n_segments, version, plan, size, attn; // size: of a segment, 0: none
    int saved_plan, saved_size, saved_version;
    int left;                // calls until sl_cancel asks to stop
    sl_sampler *samplers[2]; // which always choose the end token, or OTHER
    sl_prefill_record seen[N_CTX];
    int n_seen;            // passes of sparse prefills
    sl_prefill_report sum; // of them
    uint64_t seed;
} world;

static int below(world *w, int n) {
    return (int)(test_uniform(&w->seed) * n);
}

static int n_prefilled(const expected *x) {
    int n = 0;
    while (n < x->n && x->tokens[n].is_prefilled) n++;
    return n;
}

// The end of the tokens of x that were read together with token i.
static int end_of(const expected *x, int i) {
    int end = i;
    while (end < x->n && x->tokens[end].segment == x->tokens[i].segment) end++;
    return end;
}

// The segment that n divides, or whose end was cut off at n; NULL: none
static const segment *divided(const world *w, const expected *x, int n) {
    int g = n ? x->tokens[n - 1].segment : -1;
    return g < 0 || (end_of(x, n - 1) == n && w->segments[g].end == n) ? NULL : &w->segments[g];
}

// n, or the beginning of the segment that n divides; that may be the cut end of another segment.
static int undivided(const world *w, const expected *x, int n) {
    const segment *g = divided(w, x, n);
    return g ? undivided(w, x, g->first) : n;
}

static int reusable(const world *w, const expected *x, int n, int n_prefill) {
    int at = 0;
    if (n_prefill == SL_CONTINUES) return undivided(w, x, n);
    while (at < n && !w->size && x->tokens[at].segment < 0) at++;
    while (at < n && w->size && x->tokens[at].segment >= 0) {
        const segment *g = &w->segments[x->tokens[at].segment];
        int end = at + w->size < n_prefill ? at + w->size : n_prefill;
        if (g->first != at || g->end != end || end_of(x, at) != end || end > n || g->version != w->version) break;
        at = end;
    }
    return at;
}

static void append(world *w, expected *x, int32_t id, int is_prefilled, int group) {
    int is_fresh = x->is_fresh || x->attn != w->attn;
    x->tokens[x->n++] = (token){id, is_prefilled, group, w->attn, is_fresh, x->sequence};
    x->is_fresh = 0, x->attn = w->attn, x->has_logits = 1;
}

static void append_prefill(world *w, expected *x, const int32_t *ids, int n) {
    for (int i = 0, m; i < n; i += m) {
        int group = w->size ? w->n_segments++ : -1;
        m = w->size ? w->size - x->n % w->size : n;
        if (m > n - i) m = n - i;
        CHECK(w->n_segments <= MOST_SEGMENTS);
        if (group >= 0) {
            segment *g = &w->segments[group];
            *g = (segment){.first = x->n, .end = x->n + m, .version = w->version, .plan = w->plan, .size = w->size};
            memcpy(g->ids, ids + i, (size_t)m * sizeof *ids);
        }
        for (int j = 0; j < m; j++) append(w, x, ids[i + j], 1, group);
    }
}

// ---- checks ----

static const float *logits_of(const sl_session *s) {
    return sl_session_logits(s, &err);
}

// Each page that a session holds is counted, and the others are free.
static void check_pool(const world *w) {
    const sl_kv_pool *pool = &w->engine->device.pool;
    int refs[SLOTS * 3] = {0}, n_free = 0;
    CHECK_INT(pool->n_pages, SLOTS * 3);
    for (int i = 0; i < SLOTS; i++) {
        const sl_session *s = w->sessions[i];
        if (s) CHECK_INT(s->kv.n_pages, (w->want[i].n + SL_PAGE - 1) / SL_PAGE);
        for (int j = 0; s && j < s->kv.n_pages; j++) refs[s->kv.pages[j]]++;
    }
    for (int i = 0; i < pool->n_pages; i++) {
        CHECK_INT(pool->refs[i], refs[i]);
        n_free += refs[i] == 0;
    }
    CHECK_INT(pool->n_free, n_free);
}

static void check_session(world *w, int slot) {
    const sl_session *s = w->sessions[slot];
    const expected *x = &w->want[slot];
    CHECK_INT(sl_session_n_tokens(s), x->n);
    for (int i = 0; i < x->n; i++) CHECK_INT(sl_session_ids(s)[i], x->tokens[i].id);
    CHECK_INT(sl_session_n_prefilled(s), n_prefilled(x));
    CHECK_INT(sl_session_sequence(s), x->sequence);
    CHECK_INT(logits_of(s) != NULL, x->has_logits);
    for (int i = 0; i < 6; i++) {
        int n = i ? below(w, x->n + 1) : x->n, n_prefill = i % 2 ? n + below(w, 3) * below(w, 200) : SL_CONTINUES;
        if (i == 5 && x->n) n = end_of(x, below(w, x->n)), n_prefill = n;
        int got = sl_session_reusable(s, n, n_prefill), wanted = reusable(w, x, n, n_prefill);
        if (got != wanted)
            FAIL("%d of %d tokens for %d (segments of %d): reusable are %d, expected %d", n, x->n, n_prefill, w->size, got,
                 wanted);
    }
}

static void set_attn(sl_engine *e, int attn) {
    CHECK_OK(sl_engine_set_attention(e, attns[attn], &err), err);
}

static void set_prefill(sl_engine *e, int plan, int size) {
    sl_attn_plan made;
    sl_attn_spec spec[2];
    for (int i = 0; i < 2; i++) CHECK_OK(sl_attn_parse(prefills[plan][i], &spec[i], &err), err);
    CHECK_OK(sl_attn_plan_init(&made, 2, &spec[0], &err), err);
    made.layer[1] = spec[1];
    CHECK_OK(sl_engine_set_prefill(e, &made, size, &err), err);
    sl_attn_plan_free(&made);
}

static int same_call(const token *a, const token *b) {
    return b->is_prefilled && b->segment < 0 && a->attn == b->attn && a->sequence == b->sequence && !b->is_fresh;
}

// Empties the states of a session: replaces it by a fork, which has no states. If a fork would divide a segment, the session is
// cut instead, and no token is removed.
static void empty_state(sl_session **s) {
    sl_session *made;
    int n = sl_session_n_tokens(*s);
    if (sl_session_fork(*s, n, 0, &made, &err)) {
        CHECK_OK(sl_session_truncate(*s, n, &err), err);
        return;
    }
    sl_session_free(*s);
    *s = made;
}

// A session of the other engine with the history of x.
static sl_session *repeat(world *w, const expected *x) {
    sl_session *s;
    CHECK_OK(sl_session_new(w->other, 0, &s, &err), err);
    for (int i = 0, end; i < x->n; i = end) {
        const token *t = &x->tokens[i];
        int32_t ids[N_CTX];
        if (t->is_fresh) empty_state(&s);
        set_attn(w->other, t->attn);
        sl_session_set_sequence(s, t->sequence);
        end = i + 1;
        if (!t->is_prefilled) {
            CHECK_OK(sl_decode(&s, 1, &t->id, &err), err);
        } else if (t->segment >= 0) {
            const segment *g = &w->segments[t->segment];
            set_prefill(w->other, g->plan, g->size);
            CHECK_OK(sl_prefill(s, g->ids, g->end - g->first, NULL, &err), err);
            end = end_of(x, i);
            if (end < g->end) CHECK_OK(sl_session_truncate(s, end, &err), err);
        } else {
            set_prefill(w->other, 0, 128);
            while (end < x->n && same_call(t, &x->tokens[end])) end++;
            for (int j = i; j < end; j++) ids[j - i] = x->tokens[j].id;
            CHECK_OK(sl_prefill(s, ids, end - i, NULL, &err), err);
        }
    }
    return s;
}

static void check_bits(world *w, int slot) {
    const expected *x = &w->want[slot];
    sl_session *s = w->sessions[slot];
    if (x->n == 0) return;
    sl_session *again = repeat(w, x);
    const size_t size = VOCAB * sizeof(float);
    if (x->has_logits && memcmp(logits_of(s), logits_of(again), size)) FAIL("%d tokens: other logits", x->n);
    if (x->n < N_CTX) {
        const int32_t id = 5;
        if (x->is_fresh) empty_state(&again);
        set_attn(w->other, w->attn);
        sl_session_set_sequence(again, x->sequence);
        CHECK_OK(sl_decode(&s, 1, &id, &err), err);
        CHECK_OK(sl_decode(&again, 1, &id, &err), err);
        if (memcmp(logits_of(s), logits_of(again), size)) FAIL("%d tokens, %s: other bits in a step", x->n, attns[w->attn]);
    }
    sl_session_free(again);
}

// ---- calls ----

static int length(world *w, int most) { // at and around the ends of pages and segments, or any
    static const int borders[] = {0, 1, 128, 200, 256, 400, 512, N_CTX};
    int n = below(w, 2) ? below(w, most + 1) : borders[below(w, 8)] + below(w, 3) - 1;
    return n < 0 ? 0 : n > most ? most : n;
}

static void random_ids(world *w, int32_t *ids, int n) {
    for (int i = 0; i < n; i++) ids[i] = below(w, VOCAB);
}

static void prefill(world *w, int slot) {
    expected *x = &w->want[slot];
    int32_t ids[N_CTX];
    int most = N_CTX - x->n, n = below(w, 3) ? below(w, 150) + 1 : length(w, N_CTX) - x->n;
    if (most == 0) return;
    n = n < 1 ? 1 : n > most ? most : n;
    random_ids(w, ids, n);
    int first = w->n_segments;
    w->n_seen = 0, w->sum = sl_prefill_report_none();
    sl_engine_reset_stats(w->engine);
    CHECK_OK(sl_prefill(w->sessions[slot], ids, n, NULL, &err), err);
    append_prefill(w, x, ids, n);
    CHECK_INT(w->n_seen, w->n_segments - first); // the observer hears of each segment
    const sl_prefill_report all = sl_engine_prefill_total(w->engine);
    CHECK(all.visited == w->sum.visited && all.causal == w->sum.causal && (all.causal > 0) == (w->size > 0));
    for (int i = 0; i < w->n_seen; i++) {
        const segment *g = &w->segments[first + i];
        CHECK(w->seen[i].position == g->first && w->seen[i].n_tokens == g->end - g->first &&
              w->seen[i].sequence == x->sequence);
    }
}

static int refuse(void *ctx, int first, int n_rows, const float *logits, sl_error *e) {
    (void)n_rows, (void)logits, (void)e;
    return first >= *(int *)ctx ? SL_ERR_FORMAT : 0;
}

// Calls that fail, and leave the session as it was.
static void fail(world *w, int slot) {
    expected *x = &w->want[slot];
    sl_session *s = w->sessions[slot];
    int32_t ids[N_CTX + 1], bad = below(w, 2) ? VOCAB : -1;
    float before[VOCAB];
    int n = N_CTX - x->n, first = below(w, n + 1), is_run = 0;
    random_ids(w, ids, N_CTX + 1);
    if (x->has_logits) memcpy(before, logits_of(s), sizeof before);
    CHECK_INT(sl_prefill(s, ids, n + 1, NULL, &err), SL_ERR_CONTEXT);
    CHECK_INT(sl_prefill(s, ids, 0, NULL, &err), SL_ERR_ARG);
    CHECK_INT(sl_decode(&s, 1, &bad, &err), SL_ERR_ARG);
    CHECK_INT(sl_session_truncate(s, x->n + 1, &err), SL_ERR_ARG);
    CHECK_INT(sl_session_truncate(s, -1, &err), SL_ERR_ARG);
    for (int i = 0; i < 2; i++) CHECK_INT(sl_session_fork(s, i ? -1 : x->n + 1, 0, &(sl_session *){NULL}, &err), SL_ERR_ARG);
    CHECK_INT(sl_decode((sl_session *[]){s, s}, 2, ids, &err), SL_ERR_ARG);
    if (n == 0) CHECK_INT(sl_decode(&s, 1, ids, &err), SL_ERR_CONTEXT);
    w->left = 0;
    if (n) CHECK_INT(sl_decode(&s, 1, ids, &err), SL_ERR_CANCELLED);
    w->left = below(w, 3);
    if (n > w->left * MOST_SEGMENT + MOST_SEGMENT) {
        CHECK_INT(sl_prefill(s, ids, n, NULL, &err), SL_ERR_CANCELLED);
        is_run = 1;
    }
    w->left = 1 << 30;
    if (n && first < n && below(w, 2)) {
        if (first > n - 64) first = n - 64 < 0 ? 0 : n - 64; // fn gets at most 64 rows
        CHECK_INT(sl_prefill_logits(s, ids, n, refuse, &first, NULL, &err), SL_ERR_FORMAT);
        is_run = 1;
    }
    if (is_run && x->attn != w->attn) x->attn = w->attn, x->is_fresh = 1;
    if (x->has_logits) CHECK(!memcmp(before, logits_of(s), sizeof before));
}

static int keep_last(void *ctx, int first, int n_rows, const float *logits, sl_error *e) {
    (void)first, (void)e;
    memcpy(ctx, logits + (size_t)(n_rows - 1) * VOCAB, VOCAB * sizeof *logits);
    return 0;
}

// lm_head rounds the last of many rows in another way than a single row. So a step follows, and the test knows the bits of a
// step.
static void prefill_logits(world *w, int slot) {
    expected *x = &w->want[slot];
    sl_session *s = w->sessions[slot];
    int32_t ids[N_CTX];
    float last[VOCAB];
    int n = 1 + below(w, 140);
    if (n >= N_CTX - x->n) return;
    random_ids(w, ids, n + 1);
    CHECK_OK(sl_prefill_logits(s, ids, n, keep_last, last, NULL, &err), err);
    append_prefill(w, x, ids, n);
    CHECK(logits_of(s) && !memcmp(last, logits_of(s), sizeof last));
    CHECK_OK(sl_decode(&s, 1, &ids[n], &err), err);
    append(w, x, ids[n], 0, -1);
}

static void decode(world *w) {
    sl_session *batch[SLOTS];
    int32_t ids[SLOTS];
    int n = 0, which = below(w, SLOTS + 1); // SLOTS: all of them
    for (int i = 0; i < SLOTS; i++) {
        if (!w->sessions[i] || w->want[i].n == N_CTX || (which < SLOTS && which != i)) continue;
        batch[n] = w->sessions[i], ids[n] = below(w, VOCAB);
        append(w, &w->want[i], ids[n++], 0, -1);
    }
    if (n) CHECK_OK(sl_decode(batch, n, ids, &err), err);
}

// Sampled tokens: an end token changes nothing. A session without room is an error, whatever the token is.
static void step(world *w) {
    sl_session *batch[SLOTS];
    sl_sampler *samplers[SLOTS];
    int32_t ids[SLOTS];
    int n = 0, slots[SLOTS], is_other[SLOTS], is_full = 0;
    for (int i = 0; i < SLOTS; i++) {
        if (!w->sessions[i] || !w->want[i].has_logits) continue;
        is_other[n] = below(w, 2), is_full |= w->want[i].n == N_CTX;
        batch[n] = w->sessions[i], samplers[n] = w->samplers[is_other[n]], slots[n++] = i;
    }
    if (!n) return;
    CHECK_INT(sl_step(batch, n, samplers, ids, &err), is_full ? SL_ERR_CONTEXT : 0);
    for (int i = 0; i < n && !is_full; i++) {
        CHECK_INT(ids[i], is_other[i] ? OTHER : END);
        if (is_other[i]) append(w, &w->want[slots[i]], OTHER, 0, -1);
    }
}

static void cut(world *w, int slot) {
    expected *x = &w->want[slot];
    int n = length(w, x->n);
    CHECK_OK(sl_session_truncate(w->sessions[slot], n, &err), err);
    if (n < x->n) x->has_logits = 0;
    x->n = n, x->is_fresh = 1;
}

static void check_pages(const sl_session *from, const sl_session *to, int is_copy) {
    for (int i = 0; i < to->kv.n_pages; i++)
        CHECK_INT(from->kv.pages[i] == to->kv.pages[i], !is_copy && (i + 1) * SL_PAGE <= to->kv.n_tokens);
}

static void fork_to(world *w, int slot, int to) {
    const expected *x = &w->want[slot];
    sl_session *made = NULL;
    int n = length(w, x->n), is_copy = below(w, 2), sequence = below(w, 9), at = undivided(w, x, n);
    if (below(w, 4)) n = at;
    sl_session_free(w->sessions[to]);
    w->sessions[to] = NULL;
    int rc = (is_copy ? sl_session_copy : sl_session_fork)(w->sessions[slot], n, (uint32_t)sequence, &made, &err);
    CHECK_INT(rc, n == at ? 0 : SL_ERR_ARG);
    if (rc) {
        char text[300], or_end[20] = "";
        int end = end_of(x, n - 1);
        if (!divided(w, x, end)) snprintf(or_end, sizeof or_end, " or %d", end);
        snprintf(
            text, sizeof text,
            "fork at %d tokens: attn_prefill read the tokens %d to %d together, so another sequence cannot share a part of "
            "their rows; fork at %d%s",
            n, divided(w, x, n)->first, end - 1, at, or_end);
        CHECK_STR(err.message, text);
        return;
    }
    check_pages(w->sessions[slot], made, is_copy);
    w->sessions[to] = made;
    w->want[to] = *x;
    expected *y = &w->want[to];
    y->has_logits = n == x->n && x->has_logits;
    y->n = n, y->attn = -1, y->is_fresh = 1, y->sequence = (uint32_t)sequence;
    if (y->has_logits) CHECK(!memcmp(logits_of(made), logits_of(w->sessions[slot]), VOCAB * sizeof(float)));
}

static void note_progress(void *ctx, int done, int total) { // each layer of K, then of V
    CHECK_INT(done, ++*(int *)ctx);
    CHECK_INT(total, 4);
}

static void save(world *w, int slot) {
    const expected *x = &w->want[slot];
    int n_done = 0, rc = sl_session_save(w->sessions[slot], in_tmp("session"), &(sl_progress){note_progress, &n_done}, &err);
    CHECK_INT(rc, x->n ? 0 : SL_ERR_ARG);
    if (rc) return;
    CHECK_INT(n_done, 4);
    size_t size;
    CHECK_INT(slurp(in_tmp("session"), &size)[0] % 8, 0); // the lowest byte of the header's size: the data are aligned
    w->saved = *x;
    w->saved_plan = w->plan, w->saved_size = w->size, w->saved_version = w->version;
}

static void load(world *w, int to) {
    const expected *x = &w->saved;
    int n_done = 0, is_same = w->saved_plan == w->plan && w->saved_size == w->size;
    if (!x->n) return;
    sl_session_free(w->sessions[to]);
    CHECK_OK(sl_session_load(w->engine, in_tmp("session"), &w->sessions[to], &(sl_progress){note_progress, &n_done}, &err),
             err);
    CHECK_INT(n_done, 4);
    expected *y = &w->want[to];
    *y = *x;
    y->is_fresh = x->is_fresh || x->attn != w->attn, y->attn = w->attn;
    for (int i = 0, end; i < x->n; i = end) { // the segments get a version of this engine
        end = i + 1;
        if (x->tokens[i].segment < 0) continue;
        end = end_of(x, i);
        segment *g = &w->segments[w->n_segments++];
        *g = w->segments[x->tokens[i].segment];
        g->version = is_same && g->version == w->saved_version ? w->version : -1;
        for (int j = i; j < end; j++) y->tokens[j].segment = w->n_segments - 1;
    }
}

static void change_prefill(world *w) {
    int plan = w->plan && below(w, 2) ? 3 - w->plan : below(w, N_PREFILLS); // often the one that differs in layer 1 only
    int size = w->size && below(w, 2) ? w->size : below(w, 2) ? 128 : MOST_SEGMENT;
    set_prefill(w->engine, plan, size);
    if (plan == 0) size = 0;
    w->version += plan != w->plan || size != w->size;
    w->plan = plan, w->size = size;
}

static void run_op(world *w) {
    int slot = below(w, 4) % SLOTS, to = (slot + 1 + below(w, SLOTS - 1)) % SLOTS, what = below(w, 22);
    if (what == 0) change_prefill(w);
    if (what == 1) set_attn(w->engine, w->attn = below(w, N_ATTNS));
    if (what == 2) {
        if (below(w, 2)) change_prefill(w);
        load(w, to);
    }
    if (what <= 5 && what >= 3) decode(w);
    if (!w->sessions[slot]) {
        w->want[slot] = (expected){.attn = -1, .is_fresh = 1, .sequence = (uint32_t)slot};
        CHECK_OK(sl_session_new(w->engine, (uint32_t)slot, &w->sessions[slot], &err), err);
    }
    if (what >= 6 && what <= 10) prefill(w, slot);
    if (what == 11 || what == 12) cut(w, slot);
    if (what == 13 || what == 14) fork_to(w, slot, to);
    if (what == 15) save(w, slot);
    if (what == 16) fail(w, slot);
    if (what == 17) sl_session_set_sequence(w->sessions[slot], w->want[slot].sequence = UINT32_MAX - (uint32_t)below(w, 9));
    if (what == 18) {
        save(w, slot);
        if (!below(w, 3)) change_prefill(w);
        load(w, to);
    }
    if (what == 19) prefill(w, slot), decode(w);
    if (what == 20) prefill_logits(w, slot);
    if (what == 21) step(w);
    for (int i = 0; i < SLOTS; i++)
        if (w->sessions[i]) check_session(w, i);
    check_pool(w);
}

// ---- the suite ----

static int is_cancelled(void *ctx) {
    return --*(int *)ctx < 0;
}

static sl_engine *engine_of(const sl_model *model, int *left) {
    sl_engine *e;
    const sl_engine_options o = {.n_ctx = N_CTX,
                                 .n_sequences = SLOTS,
                                 .prefill_chunk = 128,
                                 .n_threads = 1,
                                 .seed = 3,
                                 .cancel = {left ? is_cancelled : NULL, left}};
    CHECK_OK(sl_engine_new(model, &o, &e, &err), err);
    return e;
}

static sl_model *load_model(void) {
    static const char config[] =
        "{\"model_type\":\"llama\",\"hidden_size\":32,\"num_hidden_layers\":2,\"num_attention_heads\":2,\"num_key_value_"
        "heads\":1,"
        "\"head_dim\":32,\"intermediate_size\":32,\"vocab_size\":97,\"max_position_embeddings\":2048,\"eos_token_id\":7}";
    sl_model *model;
    spill(in_tmp("config.json"), config, sizeof config - 1);
    CHECK_OK(sl_model_load(test_tmp(), &(sl_model_options){.flags = SL_MODEL_DUMMY}, &model, &err), err);
    CHECK_OK(sl_model_materialise(model, 1, NULL, NULL, &err), err);
    return model;
}

static const bf16 *row_of(const sl_session *s, int is_v, int layer, int position) {
    const sl_kv_rows rows = sl_kv_layer(&s->engine->device.pool, layer);
    return (is_v ? rows.v : rows.k) + ((size_t)s->kv.pages[position / SL_PAGE] * SL_PAGE + position % SL_PAGE) * HEAD_DIM;
}

// Rows of random numbers of deviation 1, which depend on the sequence, the layer, the page and the kind.
static void fill(void) {
    sl_model *model = load_model();
    sl_engine *e = engine_of(model, NULL);
    sl_session *s[3];
    const int32_t id = 5;
    double sum = 0, squares = 0;
    for (int i = 0; i < 3; i++) {
        CHECK_OK(sl_session_new(e, i == 2, &s[i], &err), err);
        CHECK_ERR(sl_session_fill(s[i], 0, &err), err, SL_ERR_ARG, "0 random rows: expected 1 to n_ctx 700");
        CHECK_ERR(sl_session_fill(s[i], N_CTX + 1, &err), err, SL_ERR_ARG, "701 random rows");
        CHECK_OK(sl_session_fill(s[i], i ? N_CTX : N_CTX - 1, &err), err);
        CHECK_ERR(sl_session_fill(s[i], 1, &err), err, SL_ERR_ARG, "expected an empty session, found");
        CHECK(!logits_of(s[i]) && sl_session_n_tokens(s[i]) == N_CTX - !i && sl_session_n_prefilled(s[i]) == N_CTX - !i);
    }
    const size_t size = HEAD_DIM * sizeof(bf16);
    for (int at = 0; at < N_CTX - 1; at++) {
        CHECK(!memcmp(row_of(s[0], at % 2, 1, at), row_of(s[1], at % 2, 1, at), size)); // equal sequences
        CHECK(memcmp(row_of(s[0], at % 2, 1, at), row_of(s[2], at % 2, 1, at), size));
        CHECK(memcmp(row_of(s[0], 0, 1, at), row_of(s[0], 1, 1, at), size));
        CHECK(memcmp(row_of(s[0], 0, 1, at), row_of(s[0], 0, 0, at), size));
        if (at >= SL_PAGE) CHECK(memcmp(row_of(s[0], 0, 1, at), row_of(s[0], 0, 1, at - SL_PAGE), size));
        for (int d = 0; d < HEAD_DIM; d++) {
            double x = sl_bf16_to_f32(row_of(s[0], 0, 0, at)[d]);
            sum += x, squares += x * x;
        }
    }
    const double n =
        (N_CTX - 1.0) * HEAD_DIM; // the deviation of the mean is 1 / sqrt(n), that of the squares' mean sqrt(2 / n)
    CHECK_NEAR(sum / n, 0, 5 / sqrt(n));
    CHECK_NEAR(squares / n, 1, 5 * sqrt(2 / n));
    CHECK_OK(sl_decode(&s[0], 1, &id, &err), err);
    CHECK(logits_of(s[0]) && sl_session_n_prefilled(s[0]) == N_CTX - 1);
    for (int i = 0; i < 3; i++) sl_session_free(s[i]);
    sl_engine_free(e), sl_model_free(model);
}

static void see(void *ctx, const sl_prefill_record *r) {
    world *w = ctx;
    sl_prefill_report_add(&w->sum, r->report);
    if (r->layer == 0 && r->head == 0) w->seen[w->n_seen++] = *r;
    CHECK(w->n_seen < N_CTX);
}

static void random_calls(void) {
    const sl_logit_bias bias[] = {{END, 1e9f}, {OTHER, 1e9f}};
    world *w = calloc(1, sizeof *w);
    CHECK(w);
    w->seed = test_seed, w->left = 1 << 30;
    w->model = load_model();
    w->engine = engine_of(w->model, &w->left), w->other = engine_of(w->model, NULL);
    CHECK_OK(sl_engine_observe_prefill(w->engine, &(sl_prefill_observer){.fn = see, .ctx = w}, &err), err);
    for (int i = 0; i < 2; i++) {
        sl_sampling greedy = sl_sampling_default();
        greedy.temp = 0, greedy.bias = &bias[i], greedy.n_bias = 1;
        CHECK_OK(sl_sampler_new(&greedy, VOCAB, &w->samplers[i], &err), err);
    }
    for (int i = 0; i < SEQUENCES; i++) {
        for (int k = 0; k < OPS; k++) run_op(w);
        for (int slot = 0; slot < SLOTS; slot++) {
            if (w->sessions[slot]) check_bits(w, slot);
            sl_session_free(w->sessions[slot]);
            w->sessions[slot] = NULL;
        }
        check_pool(w);
        w->n_segments = 0, w->saved.n = 0;
    }
    for (int i = 0; i < 2; i++) sl_sampler_free(w->samplers[i]);
    sl_engine_free(w->engine), sl_engine_free(w->other), sl_model_free(w->model);
    free(w);
}

static const test_case cases[] = {{"random-calls", 0, random_calls}, {"fill", 0, fill}, {0}};
const test_suite suite_sessions = {"sessions", cases};
