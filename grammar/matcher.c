// grammar/matcher.c - which tokens may follow a state, and generations.
//
// The tokens that may follow come from a walk through the trie that leaves a branch where the state is dead. Inside a string
// most tokens may follow, and the walk takes a millisecond. So the places of a state in a rule with many first bytes are walked
// as if their rule had no callers. The result, the inner set, holds for all callers: in it are the tokens that stay in the rule
// until it ends. The walk also lists its exits, the nodes of the trie at which the rule can end. For the callers of a state
// only the tokens below the exits are walked. Sets and inner sets are kept by state.
#include "grammar/grammar_internal.h"

#include <stdlib.h>
#include <string.h>

enum { WIDE = 64 }; // first bytes of a place that gets an inner set

typedef struct token_set {
    struct token_set *newer, *older;
    uint32_t state;
    uint32_t *bits;  // [n_words]
    uint32_t *exits; // [n_exits] nodes of the trie after which the state can end
    uint32_t n_exits, cap_exits;
    int depth; // the depth of the deepest state on the walks
} token_set;

struct sl_grammar_run {
    sl_matcher *m;
    sl_grammar_run *next, **link; // the list of the matcher's runs; what points to this run
    uint32_t state, moved;        // moved: the state in an automaton that becomes the matcher's
    int has_ended;
};

struct sl_matcher {
    const sl_grammar *g;
    const sl_token_trie *trie;
    sl_automaton a;
    size_t most_bytes, set_bytes;
    token_set *newest, *oldest;
    token_set **sets; // [cap_sets] by state, NULL: none
    size_t cap_sets;
    uint8_t *wide;  // [g->n_nodes] the node has WIDE first bytes
    uint32_t *path; // [most_depth + 1] states on the way to a node of the trie
    sl_keys places; // the places of a state, with the same callers
    sl_ids named;   // the tokens that the grammar names, each once
    sl_grammar_run *runs;
};

// ---- kept sets ----

static void unlink_set(sl_matcher *m, token_set *s) {
    *(s->newer ? &s->newer->older : &m->newest) = s->older;
    *(s->older ? &s->older->newer : &m->oldest) = s->newer;
}

static void link_newest(sl_matcher *m, token_set *s) {
    s->newer = NULL;
    s->older = m->newest;
    *(m->newest ? &m->newest->newer : &m->oldest) = s;
    m->newest = s;
}

static size_t bytes_of(const sl_matcher *m, const token_set *s) {
    return sizeof *s + ((size_t)m->trie->n_words + s->cap_exits) * sizeof(uint32_t);
}

static void free_set(token_set *s) {
    if (!s) return;
    free(s->bits), free(s->exits);
    free(s);
}

static void drop_oldest(sl_matcher *m) {
    token_set *s = m->oldest;
    unlink_set(m, s);
    m->set_bytes -= bytes_of(m, s);
    m->sets[s->state] = NULL;
    free_set(s);
}

static token_set *find_set(sl_matcher *m, uint32_t state) {
    token_set *s = state < m->cap_sets ? m->sets[state] : NULL;
    if (s) unlink_set(m, s), link_newest(m, s);
    return s;
}

static int keep_set(sl_matcher *m, token_set *s, sl_error *err) {
    if (s->state >= m->cap_sets) {
        size_t cap = 2 * (size_t)s->state + 64;
        token_set **grown = realloc(m->sets, cap * sizeof *grown);
        if (!grown) return sl_fail(err, SL_ERR_MEMORY, "%zu sets of tokens: out of memory", cap);
        memset(grown + m->cap_sets, 0, (cap - m->cap_sets) * sizeof *grown);
        m->sets = grown;
        m->cap_sets = cap;
    }
    m->sets[s->state] = s;
    m->set_bytes += bytes_of(m, s);
    link_newest(m, s);
    while (m->set_bytes > m->most_bytes / 2 && m->oldest != s) drop_oldest(m);
    return 0;
}

static token_set *new_set(const sl_matcher *m, uint32_t state, sl_error *err) {
    token_set *s = calloc(1, sizeof *s);
    if (s) s->bits = calloc((size_t)m->trie->n_words, sizeof *s->bits);
    if (s && s->bits) return s->state = state, s;
    free_set(s);
    sl_fail(err, SL_ERR_MEMORY, "a set of %d tokens: out of memory", m->trie->n_vocab);
    return NULL;
}

// ---- walks ----

static int push_exit(token_set *s, uint32_t node, sl_error *err) {
    if (s->n_exits == s->cap_exits) {
        uint32_t cap = s->cap_exits ? 2 * s->cap_exits : 64, *grown = realloc(s->exits, cap * sizeof *grown);
        if (!grown) return sl_fail(err, SL_ERR_MEMORY, "%u tokens of a grammar: out of memory", cap);
        s->exits = grown;
        s->cap_exits = cap;
    }
    s->exits[s->n_exits++] = node;
    return 0;
}

// Adds the tokens of the trie's nodes [from, to), which begin at `state`, to a set.
static int walk(sl_matcher *m, uint32_t state, uint32_t from, uint32_t to, int wants_exits, token_set *set, sl_error *err) {
    const sl_trie_node *nodes = m->trie->nodes;
    sl_automaton *a = &m->a;
    const uint8_t *class_of = m->g->class_of;
    size_t n_classes = (size_t)m->g->n_classes;
    int rc = 0;
    if (from >= to || state == SL_STATE_DEAD) return 0;
    if (a->facts[state].depth > set->depth) set->depth = a->facts[state].depth;
    m->path[nodes[from].depth] = state;
    for (uint32_t i = from; i < to;) {
        const sl_trie_node *x = &nodes[i];
        uint32_t before = m->path[x->depth], s = a->next[before * n_classes + class_of[x->byte]];
        if (s == SL_STATE_UNKNOWN && (rc = sl_automaton_step(a, before, x->byte, &s, err))) return rc;
        if (s == SL_STATE_DEAD) {
            i = x->skip;
            continue;
        }
        for (uint32_t k = x->token; k < x[1].token; k++) {
            uint32_t id = (uint32_t)m->trie->sorted[k];
            set->bits[id / 32] |= 1u << id % 32;
        }
        if (a->facts[s].depth > set->depth) set->depth = a->facts[s].depth;
        if (wants_exits && a->facts[s].can_end && (rc = push_exit(set, i, err))) return rc;
        m->path[x->depth + 1] = s;
        i++;
    }
    return 0;
}

static int find_tokens(sl_matcher *m, uint32_t state, token_set **out, sl_error *err);

// Returns the state that holds the places keys[n]. Their rule gets these callers.
static int state_of(sl_matcher *m, const uint64_t *keys, size_t n, uint32_t callers, uint32_t *state, sl_error *err) {
    int rc = 0;
    m->places.n = 0;
    for (size_t i = 0; !rc && i < n; i++) rc = sl_keys_push(&m->places, sl_key(sl_key_node(keys[i]), callers), err);
    return rc ? rc : sl_automaton_state(&m->a, &m->places, state, err);
}

// Adds the tokens of the places keys[n] by their inner set.
static int add_inner(sl_matcher *m, const uint64_t *keys, size_t n, token_set *set, sl_error *err) {
    uint32_t callers = sl_key_callers(keys[0]), state, after;
    const sl_trie_node *nodes = m->trie->nodes;
    token_set *inner;
    int rc = state_of(m, keys, n, 0, &state, err);
    if (!rc) rc = find_tokens(m, state, &inner, err);
    if (rc) return rc;
    for (int i = 0; i < m->trie->n_words; i++) set->bits[i] |= inner->bits[i];
    int depth = inner->depth + m->a.depth[callers];
    if (depth > set->depth) set->depth = depth;
    rc = sl_automaton_after(&m->a, callers, &after, err);
    for (uint32_t i = 0; !rc && i < inner->n_exits; i++)
        rc = walk(m, after, inner->exits[i] + 1, nodes[inner->exits[i]].skip, 0, set, err);
    return rc;
}

static int is_wide(const sl_matcher *m, const uint64_t *keys, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (m->wide[sl_key_node(keys[i])]) return 1;
    return 0;
}

// keys: [n] of a state; sorted, so places with the same callers stand together
static int add_places(sl_matcher *m, const uint64_t *keys, size_t n, token_set *set, sl_error *err) {
    int rc = 0;
    for (size_t from = 0, to; !rc && from < n; from = to) {
        uint32_t state, callers = sl_key_callers(keys[from]);
        for (to = from + 1; to < n && sl_key_callers(keys[to]) == callers;) to++;
        if (is_wide(m, keys + from, to - from)) {
            rc = add_inner(m, keys + from, to - from, set, err);
        } else {
            rc = state_of(m, keys + from, to - from, callers, &state, err);
            if (!rc) rc = walk(m, state, 0, m->trie->n_nodes, 0, set, err);
        }
    }
    return rc;
}

static int compute(sl_matcher *m, token_set *set, sl_error *err) {
    size_t n;
    const uint64_t *keys = sl_state_keys(&m->a, set->state, &n);
    int rc = 0, is_split = n > 0 && sl_key_callers(keys[n - 1]) != 0 && is_wide(m, keys, n);
    if (is_split) {
        sl_keys copy = {0}; // new states move the keys of the automaton
        for (size_t i = 0; !rc && i < n; i++) rc = sl_keys_push(&copy, keys[i], err);
        if (!rc) rc = add_places(m, copy.data, copy.n, set, err);
        free(copy.data);
        if (rc || set->depth <= SL_GRAMMAR_MOST_DEPTH) return rc;
        memset(set->bits, 0, (size_t)m->trie->n_words * sizeof *set->bits); // the limit of depth tells the places apart
    }
    return walk(m, set->state, 0, m->trie->n_nodes, !is_split, set, err);
}

// Replaces a state by the state of its places' twins, which has the same tokens.
static int to_twins(sl_matcher *m, uint32_t *state, sl_error *err) {
    size_t n;
    const uint64_t *keys = sl_state_keys(&m->a, *state, &n);
    int rc = 0;
    m->places.n = 0;
    for (size_t i = 0; !rc && i < n; i++)
        rc = sl_keys_push(&m->places, sl_key(m->g->nodes[sl_key_node(keys[i])].twin, sl_key_callers(keys[i])), err);
    if (rc) return rc;
    sl_keys_sort(&m->places);
    return sl_automaton_state(&m->a, &m->places, state, err);
}

// *out: the tokens that may follow a state, without end tokens. Valid until the next call.
static int find_tokens(sl_matcher *m, uint32_t state, token_set **out, sl_error *err) {
    *out = find_set(m, state);
    if (*out) return 0;
    int rc = m->trie->most_depth <= SL_TWIN_BYTES ? to_twins(m, &state, err) : 0;
    if (rc) return rc;
    *out = find_set(m, state);
    if (*out) return 0;
    token_set *set = new_set(m, state, err);
    if (!set) return SL_ERR_MEMORY;
    rc = compute(m, set, err);
    if (!rc) rc = keep_set(m, set, err);
    if (rc) return free_set(set), rc;
    *out = set;
    return 0;
}

// ---- tokens that the grammar names ----

static int is_named(const sl_matcher *m, int32_t id) {
    for (size_t i = 0; i < m->named.n; i++)
        if (m->named.data[i] == id) return 1;
    return 0;
}

static int find_named(sl_matcher *m, sl_error *err) {
    int rc = 0;
    for (int32_t i = 0; !rc && i < m->g->n_nodes; i++) {
        const sl_node *x = &m->g->nodes[i];
        if (x->kind != SL_NODE_TOKEN || is_named(m, x->a)) continue;
        if (x->a < 0 || x->a >= m->trie->n_vocab)
            return sl_fail(err, SL_ERR_ARG, "token %d of the grammar: expected 0 to %d", x->a, m->trie->n_vocab - 1);
        rc = sl_ids_push(&m->named, x->a, err);
    }
    return rc;
}

// Such a token is allowed where the grammar names it, never because of its bytes.
static void allow_named(const sl_matcher *m, uint32_t state, uint32_t *bits) {
    size_t n;
    const uint64_t *keys = sl_state_keys(&m->a, state, &n);
    for (size_t i = 0; i < m->named.n; i++) bits[m->named.data[i] / 32] &= ~(1u << m->named.data[i] % 32);
    for (size_t i = 0; m->named.n && i < n; i++) {
        const sl_node *x = &m->g->nodes[sl_key_node(keys[i])];
        if (x->kind == SL_NODE_TOKEN) bits[x->a / 32] |= 1u << x->a % 32;
    }
}

// ---- matchers ----

int sl_matcher_new(const sl_grammar *g, const sl_token_trie *trie, size_t most_bytes, sl_matcher **out, sl_error *err) {
    sl_matcher *m = calloc(1, sizeof *m);
    *out = NULL;
    if (m) {
        m->wide = calloc((size_t)g->n_nodes, 1);
        m->path = malloc(((size_t)trie->most_depth + 1) * sizeof *m->path);
    }
    if (!m || !m->wide || !m->path) return sl_matcher_free(m), sl_fail(err, SL_ERR_MEMORY, "a matcher: out of memory");
    m->g = g;
    m->trie = trie;
    m->most_bytes = most_bytes ? most_bytes : (size_t)64 << 20;
    for (int32_t i = 0; i < g->n_nodes; i++) {
        int n = 0;
        for (int k = 0; g->nodes[i].kind == SL_NODE_BYTES && k < 8; k++)
            n += __builtin_popcount(g->sets[g->nodes[i].a].bits[k]);
        m->wide[i] = n >= WIDE;
    }
    int rc = find_named(m, err);
    if (!rc) rc = sl_automaton_new(g, &m->a, err);
    if (rc) return sl_matcher_free(m), rc;
    *out = m;
    return 0;
}

void sl_matcher_free(sl_matcher *m) {
    if (!m) return;
    while (m->oldest) drop_oldest(m);
    sl_automaton_free(&m->a);
    free(m->sets), free(m->wide), free(m->path), free(m->places.data);
    sl_ids_free(&m->named);
    free(m);
}

size_t sl_matcher_bytes(const sl_matcher *m) {
    return m->set_bytes + sl_automaton_bytes(&m->a) + m->cap_sets * sizeof *m->sets;
}

// Begins a call. When the states take too much memory, drops all states and sets but the states of the runs.
static int begin(sl_matcher *m, sl_error *err) {
    sl_automaton a;
    int rc = 0;
    sl_automaton_begin(&m->a);
    if (sl_automaton_bytes(&m->a) <= m->most_bytes / 2) return 0;
    rc = sl_automaton_new(m->g, &a, err);
    for (sl_grammar_run *run = m->runs; !rc && run; run = run->next)
        rc = sl_automaton_move(&m->a, run->state, &a, &run->moved, err);
    if (rc) return sl_automaton_free(&a), rc;
    for (sl_grammar_run *run = m->runs; run; run = run->next) run->state = run->moved;
    while (m->oldest) drop_oldest(m);
    sl_automaton_free(&m->a);
    m->a = a;
    return 0;
}

// ---- runs ----

int sl_grammar_run_new(sl_matcher *m, sl_grammar_run **out, sl_error *err) {
    sl_grammar_run *run = *out = calloc(1, sizeof *run);
    if (!run) return sl_fail(err, SL_ERR_MEMORY, "a generation with a grammar: out of memory");
    *run = (sl_grammar_run){.m = m, .next = m->runs, .link = &m->runs, .state = m->a.start};
    if (m->runs) m->runs->link = &run->next;
    m->runs = run;
    return 0;
}

int sl_grammar_run_copy(const sl_grammar_run *run, sl_grammar_run **out, sl_error *err) {
    int rc = sl_grammar_run_new(run->m, out, err);
    if (rc) return rc;
    (*out)->state = run->state;
    (*out)->has_ended = run->has_ended;
    return 0;
}

void sl_grammar_run_free(sl_grammar_run *run) {
    if (!run) return;
    *run->link = run->next;
    if (run->next) run->next->link = run->link;
    free(run);
}

void sl_grammar_run_reset(sl_grammar_run *run) {
    run->state = run->m->a.start;
    run->has_ended = 0;
}

static int check_open(const sl_grammar_run *run, sl_error *err) {
    return run->has_ended ? sl_fail(err, SL_ERR_ARG, "the text of the grammar has ended: expected a run that goes on") : 0;
}

int sl_grammar_allowed(sl_grammar_run *run, uint32_t *bits, sl_error *err) {
    sl_matcher *m = run->m;
    const sl_token_trie *trie = m->trie;
    token_set *s;
    uint32_t any = 0;
    int rc = check_open(run, err);
    if (!rc) rc = begin(m, err);
    if (!rc) rc = find_tokens(m, run->state, &s, err);
    if (rc) return rc;
    memcpy(bits, s->bits, (size_t)trie->n_words * sizeof *bits);
    allow_named(m, run->state, bits);
    for (int i = 0; i < trie->n_ends && m->a.facts[run->state].can_end; i++)
        bits[trie->ends[i] / 32] |= 1u << trie->ends[i] % 32;
    for (int i = 0; i < trie->n_words; i++) any |= bits[i];
    return any ? 0 : sl_fail(err, SL_ERR_UNSUPPORTED, "no token of the vocabulary can go on with a text of the grammar");
}

// *state: the run's state after more bytes
static int advance(const sl_grammar_run *run, const char *bytes, size_t n, uint32_t *state, sl_error *err) {
    int rc = begin(run->m, err);
    *state = run->state;
    for (size_t i = 0; !rc && i < n; i++) rc = sl_automaton_step(&run->m->a, *state, (unsigned char)bytes[i], state, err);
    return rc;
}

static int advance_token(const sl_grammar_run *run, int32_t id, uint32_t *state, sl_error *err) {
    int rc = begin(run->m, err);
    return rc ? rc : sl_automaton_step_token(&run->m->a, run->state, id, state, err);
}

int sl_grammar_accept(sl_grammar_run *run, int32_t id, sl_error *err) {
    const sl_token_trie *trie = run->m->trie;
    int is_end = 0, rc = check_open(run, err);
    if (rc) return rc;
    for (int i = 0; i < trie->n_ends; i++) is_end |= trie->ends[i] == id;
    if (is_end && sl_grammar_can_end(run)) return run->has_ended = 1, 0;
    int has_bytes = id >= 0 && id < trie->n_vocab && trie->from[id] < trie->from[id + 1];
    uint32_t state = SL_STATE_DEAD;
    if (is_named(run->m, id))
        rc = advance_token(run, id, &state, err);
    else if (has_bytes)
        rc = advance(run, trie->bytes.data + trie->from[id], trie->from[id + 1] - trie->from[id], &state, err);
    if (!rc && state == SL_STATE_DEAD) rc = sl_fail(err, SL_ERR_ARG, "token %d: expected a token that the grammar allows", id);
    if (!rc) run->state = state;
    return rc;
}

int sl_grammar_accept_bytes(sl_grammar_run *run, const char *bytes, size_t n, sl_error *err) {
    uint32_t state;
    int rc = check_open(run, err);
    if (!rc) rc = advance(run, bytes, n, &state, err);
    if (!rc && state == SL_STATE_DEAD)
        rc = sl_fail(err, SL_ERR_ARG, "\"%.*s\": expected a text that the grammar allows", (int)n, bytes);
    if (!rc) run->state = state;
    return rc;
}

int sl_grammar_can_end(const sl_grammar_run *run) {
    return run->has_ended || run->m->a.facts[run->state].can_end;
}

int sl_grammar_must_end(const sl_grammar_run *run) {
    size_t n;
    sl_state_keys(&run->m->a, run->state, &n);
    return run->has_ended || (n == 1 && sl_grammar_can_end(run));
}
