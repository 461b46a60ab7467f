// grammar/automaton.c - the states of a text in a grammar, made when a text first reaches them.
//
// A state is the set of all places in the grammar where the text may be. A place is a node and the callers of its rule. All
// calls of a rule at one position of the text share one set of callers, so an ambiguous grammar has few places. A call at the
// end of a rule adds no callers: the called rule gets the callers of the calling one, so a list by right recursion has a
// bounded depth. Equal sets of callers, and equal states, are found again.
#include "grammar/grammar_internal.h"

#include <stdlib.h>
#include <string.h>

// ---- sets that grow ----

static int grow_visited(sl_visited *v, sl_error *err) {
    uint32_t n_slots = v->n_slots ? 2 * v->n_slots : 256;
    sl_visited w = {.round = v->round, .n_slots = n_slots};
    w.keys = malloc(n_slots * sizeof *w.keys), w.rounds = calloc(n_slots, sizeof *w.rounds);
    if (!w.keys || !w.rounds) {
        free(w.keys), free(w.rounds);
        return sl_fail(err, SL_ERR_MEMORY, "%u places in a grammar: out of memory", n_slots);
    }
    for (uint32_t i = 0; i < v->n_slots; i++) {
        if (v->rounds[i] != v->round) continue;
        uint32_t at = (uint32_t)(v->keys[i] * 0x9e3779b97f4a7c15u >> 32) & (n_slots - 1);
        while (w.rounds[at] == w.round) at = (at + 1) & (n_slots - 1);
        w.keys[at] = v->keys[i], w.rounds[at] = w.round;
        w.n++;
    }
    free(v->keys), free(v->rounds);
    *v = w;
    return 0;
}

static void next_round(sl_visited *v) {
    v->n = 0;
    if (++v->round) return;
    if (v->rounds) memset(v->rounds, 0, v->n_slots * sizeof *v->rounds); // the counter has run over
    v->round = 1;
}

// *is_new: the key was not there.
static int mark(sl_visited *v, uint64_t key, int *is_new, sl_error *err) {
    int rc = 2 * v->n >= v->n_slots ? grow_visited(v, err) : 0;
    if (rc) return rc;
    uint32_t at = (uint32_t)(key * 0x9e3779b97f4a7c15u >> 32) & (v->n_slots - 1);
    while (v->rounds[at] == v->round && v->keys[at] != key) at = (at + 1) & (v->n_slots - 1);
    *is_new = v->rounds[at] != v->round;
    v->keys[at] = key, v->rounds[at] = v->round;
    v->n += (uint32_t)*is_new;
    return 0;
}

static int grow_states(sl_automaton *a, sl_error *err) {
    size_t cap = a->cap_states ? 2 * a->cap_states : 64, n_classes = (size_t)a->g->n_classes;
    uint32_t *next = realloc(a->next, cap * n_classes * sizeof *next);
    if (!next) return sl_fail(err, SL_ERR_MEMORY, "%zu states of a grammar: out of memory", cap);
    memset(next + a->cap_states * n_classes, 0xff, (cap - a->cap_states) * n_classes * sizeof *next);
    a->next = next;
    sl_state_facts *facts = realloc(a->facts, cap * sizeof *facts);
    if (!facts) return sl_fail(err, SL_ERR_MEMORY, "%zu states of a grammar: out of memory", cap);
    a->facts = facts;
    a->cap_states = cap;
    return 0;
}

static int grow_callers(sl_automaton *a, sl_error *err) {
    size_t cap = a->cap_callers ? 2 * a->cap_callers : 64;
    uint32_t *after = realloc(a->after, cap * sizeof *after);
    if (after) a->after = after;
    uint16_t *depth = realloc(a->depth, cap * sizeof *depth);
    if (depth) a->depth = depth;
    if (!after || !depth) return sl_fail(err, SL_ERR_MEMORY, "%zu callers of a grammar: out of memory", cap);
    memset(after + a->cap_callers, 0xff, (cap - a->cap_callers) * sizeof *after);
    a->cap_callers = cap;
    return 0;
}

int sl_automaton_state(sl_automaton *a, const sl_keys *keys, uint32_t *state, sl_error *err) {
    uint32_t n = a->states.n;
    int rc = a->states.n == a->cap_states ? grow_states(a, err) : 0;
    if (!rc) rc = sl_key_sets_find(&a->states, keys, state, err);
    if (rc || a->states.n == n) return rc;
    a->n_visits += a->g->n_classes; // a new state costs time and memory for each class
    uint16_t depth = 0;
    for (size_t i = 0; i < keys->n; i++)
        if (a->depth[sl_key_callers(keys->data[i])] > depth) depth = a->depth[sl_key_callers(keys->data[i])];
    a->facts[*state] = (sl_state_facts){depth, keys->n > 0 && keys->data[0] == 0};
    return 0;
}

static const uint64_t *keys_of(const sl_automaton *a, uint32_t callers, size_t *n) {
    *n = a->callers.from[callers + 1] - a->callers.from[callers];
    return a->callers.all.data + a->callers.from[callers];
}

// keys: sorted
static int find_callers(sl_automaton *a, const sl_keys *keys, uint32_t *callers, sl_error *err) {
    uint32_t n = a->callers.n;
    int rc = n == a->cap_callers ? grow_callers(a, err) : 0, depth = 0;
    if (!rc) rc = sl_key_sets_find(&a->callers, keys, callers, err);
    if (rc || a->callers.n == n) return rc;
    for (size_t i = 0; i < keys->n; i++) {
        uint32_t c = sl_key_callers(keys->data[i]);
        if (keys->data[i] && a->depth[c] >= depth) depth = a->depth[c] + 1;
    }
    a->depth[*callers] = (uint16_t)depth;
    return 0;
}

// ---- the closure: from the places behind a byte to the places before the next one ----

static int push_pending(sl_automaton *a, int32_t rule, uint64_t key, sl_error *err) {
    if (a->n_pending == a->cap_pending) {
        int32_t cap = a->cap_pending ? 2 * a->cap_pending : 64;
        sl_pending *grown = realloc(a->pending, (size_t)cap * sizeof *grown);
        if (!grown) return sl_fail(err, SL_ERR_MEMORY, "%d calls of rules: out of memory", cap);
        a->pending = grown;
        a->cap_pending = cap;
    }
    a->pending[a->n_pending] = (sl_pending){key, a->first_pending[rule]};
    a->first_pending[rule] = a->n_pending++;
    a->rules_pending[rule / 32] |= 1u << rule % 32;
    return 0;
}

static int count_visits(sl_automaton *a, size_t n, sl_error *err) {
    a->n_visits += (long)n;
    if (a->n_visits <= SL_GRAMMAR_MOST_VISITS) return 0;
    return sl_fail(err, SL_ERR_UNSUPPORTED, "the grammar is too ambiguous: one token needs more than %d visits of its parts",
                   SL_GRAMMAR_MOST_VISITS);
}

static int call(sl_automaton *a, const sl_node *x, uint32_t callers, sl_error *err) {
    size_t n;
    if (x->b != 0 && a->depth[callers] >= SL_GRAMMAR_MOST_DEPTH) return a->is_cut = 1, 0;
    if (x->b != 0) return push_pending(a, x->a, sl_key(x->b, callers), err);
    int rc = count_visits(a, a->callers.from[callers + 1] - a->callers.from[callers], err);
    const uint64_t *keys = keys_of(a, callers, &n);
    for (size_t i = 0; !rc && i < n; i++) rc = push_pending(a, x->a, keys[i], err);
    return rc;
}

// Visits all places of a->todo and those that they lead to without a byte or a call.
static int visit_all(sl_automaton *a, sl_error *err) {
    const sl_grammar *g = a->g;
    int rc = 0, is_new;
    while (!rc && a->todo.n > 0) {
        uint64_t key = a->todo.data[--a->todo.n];
        const sl_node *x = &g->nodes[sl_key_node(key)];
        uint32_t callers = sl_key_callers(key);
        size_t n = 0;
        rc = mark(&a->visited, key, &is_new, err);
        if (!rc) rc = count_visits(a, 1, err);
        if (rc || !is_new) continue;
        switch (x->kind) {
        case SL_NODE_BYTES:
        case SL_NODE_TOKEN:
            rc = sl_keys_push(&a->found, key, err);
            break;
        case SL_NODE_SPLIT:
            for (int32_t i = 0; !rc && i < x->b; i++) rc = sl_keys_push(&a->todo, sl_key(g->edges[x->a + i], callers), err);
            break;
        case SL_NODE_CALL:
            rc = call(a, x, callers, err);
            if (!rc && g->nullable[x->a]) rc = sl_keys_push(&a->todo, sl_key(x->b, callers), err);
            break;
        default:
            if (key == 0) rc = sl_keys_push(&a->found, 0, err);
            const uint64_t *keys = keys_of(a, callers, &n);
            for (size_t i = 0; !rc && i < n; i++) rc = sl_keys_push(&a->todo, keys[i], err);
        }
    }
    return rc;
}

// Begins a rule: all its calls are known, because rules that can begin with it have smaller numbers.
static int begin_rule(sl_automaton *a, int32_t rule, sl_error *err) {
    uint32_t callers = 0;
    int rc = 0;
    a->gathered.n = 0;
    for (int32_t i = a->first_pending[rule]; !rc && i >= 0; i = a->pending[i].next)
        rc = sl_keys_push(&a->gathered, a->pending[i].key, err);
    a->first_pending[rule] = -1;
    if (rc) return rc;
    sl_keys_sort(&a->gathered);
    rc = find_callers(a, &a->gathered, &callers, err);
    if (!rc) rc = sl_keys_push(&a->todo, sl_key(a->g->start[rule], callers), err);
    return rc ? rc : visit_all(a, err);
}

// rc: of the visits before. After an error the pending calls are only cleared.
static int begin_rules(sl_automaton *a, int rc, sl_error *err) {
    for (int32_t word = 0; word <= (a->g->n_rules - 1) / 32; word++)
        while (a->rules_pending[word]) {
            int32_t rule = 32 * word + __builtin_ctz(a->rules_pending[word]);
            a->rules_pending[word] &= a->rules_pending[word] - 1;
            if (!rc) rc = begin_rule(a, rule, err);
            a->first_pending[rule] = -1;
        }
    a->n_pending = 0;
    return rc;
}

// *state: the state of the places in a->todo.
static int close_places(sl_automaton *a, uint32_t *state, sl_error *err) {
    a->found.n = 0;
    a->is_cut = 0;
    next_round(&a->visited);
    int rc = begin_rules(a, visit_all(a, err), err);
    a->todo.n = 0;
    if (rc) return rc;
    sl_keys_sort(&a->found);
    rc = sl_automaton_state(a, &a->found, state, err);
    if (!rc && a->is_cut) a->facts[*state].depth = UINT16_MAX;
    return rc;
}

// ---- states ----

int sl_automaton_new(const sl_grammar *g, sl_automaton *a, sl_error *err) {
    const sl_keys none = {0};
    uint64_t end = 0;
    uint32_t id;
    size_t n_rules = (size_t)g->n_rules;
    *a = (sl_automaton){.g = g};
    a->first_pending = malloc(n_rules * sizeof *a->first_pending);
    a->rules_pending = calloc(n_rules / 32 + 1, sizeof *a->rules_pending);
    if (!a->first_pending || !a->rules_pending) return sl_fail(err, SL_ERR_MEMORY, "%zu rules: out of memory", n_rules);
    memset(a->first_pending, 0xff, n_rules * sizeof *a->first_pending);
    int rc = find_callers(a, &(sl_keys){&end, 1, 1}, &id, err);
    if (!rc) rc = sl_automaton_state(a, &none, &id, err); // SL_STATE_DEAD
    for (int i = 0; !rc && i < g->n_classes; i++) a->next[i] = SL_STATE_DEAD;
    if (!rc) rc = sl_keys_push(&a->todo, sl_key(g->start[g->root], 0), err);
    return rc ? rc : close_places(a, &a->start, err);
}

void sl_automaton_free(sl_automaton *a) {
    sl_key_sets_free(&a->callers), sl_key_sets_free(&a->states);
    free(a->next), free(a->after), free(a->depth), free(a->facts);
    free(a->todo.data), free(a->found.data), free(a->gathered.data), free(a->visited.keys), free(a->visited.rounds);
    free(a->pending), free(a->first_pending), free(a->rules_pending);
    *a = (sl_automaton){0};
}

size_t sl_automaton_bytes(const sl_automaton *a) {
    return sl_key_sets_bytes(&a->callers) + sl_key_sets_bytes(&a->states) +
           a->cap_states * ((size_t)a->g->n_classes * sizeof *a->next + sizeof *a->facts) +
           a->cap_callers * (sizeof *a->after + sizeof *a->depth);
}

int sl_automaton_step(sl_automaton *a, uint32_t state, unsigned char byte, uint32_t *to, sl_error *err) {
    const sl_grammar *g = a->g;
    size_t at = (size_t)state * (size_t)g->n_classes + g->class_of[byte], n;
    *to = a->next[at];
    if (*to != SL_STATE_UNKNOWN) return 0;
    const uint64_t *keys = sl_state_keys(a, state, &n);
    int rc = count_visits(a, n, err);
    for (size_t i = 0; !rc && i < n; i++) {
        const sl_node *x = &g->nodes[sl_key_node(keys[i])];
        if (x->kind == SL_NODE_BYTES && sl_byte_set_has(&g->sets[x->a], byte))
            rc = sl_keys_push(&a->todo, sl_key(x->b, sl_key_callers(keys[i])), err);
    }
    if (rc) return a->todo.n = 0, rc;
    rc = close_places(a, to, err);
    if (!rc) a->next[at] = *to;
    return rc;
}

int sl_automaton_step_token(sl_automaton *a, uint32_t state, int32_t id, uint32_t *to, sl_error *err) {
    size_t n;
    const uint64_t *keys = sl_state_keys(a, state, &n);
    int rc = count_visits(a, n, err);
    for (size_t i = 0; !rc && i < n; i++) {
        const sl_node *x = &a->g->nodes[sl_key_node(keys[i])];
        if (x->kind == SL_NODE_TOKEN && x->a == id) rc = sl_keys_push(&a->todo, sl_key(x->b, sl_key_callers(keys[i])), err);
    }
    return rc ? (a->todo.n = 0, rc) : close_places(a, to, err);
}

int sl_automaton_after(sl_automaton *a, uint32_t callers, uint32_t *to, sl_error *err) {
    *to = a->after[callers];
    if (*to != SL_STATE_UNKNOWN) return 0;
    int rc = sl_keys_push(&a->todo, sl_key(0, callers), err);
    if (!rc) rc = close_places(a, to, err);
    if (!rc) a->after[callers] = *to;
    return rc;
}

// ---- moving a state ----

// Callers refer to callers with smaller numbers.
static int move_callers(const sl_automaton *from, uint32_t *number, sl_automaton *to, sl_error *err) {
    sl_keys keys = {0};
    int rc = 0;
    size_t n;
    for (uint32_t c = from->callers.n; c-- > 0;) { // marks what is needed
        const uint64_t *k = keys_of(from, c, &n);
        for (size_t i = 0; number[c] && i < n; i++) number[sl_key_callers(k[i])] = 1;
    }
    for (uint32_t c = 0; !rc && c < from->callers.n; c++) {
        const uint64_t *k = keys_of(from, c, &n);
        if (!number[c]) continue;
        keys.n = 0;
        for (size_t i = 0; !rc && i < n; i++)
            rc = sl_keys_push(&keys, sl_key(sl_key_node(k[i]), c == 0 ? 0 : number[sl_key_callers(k[i])]), err);
        if (!rc) sl_keys_sort(&keys), rc = find_callers(to, &keys, &number[c], err);
    }
    free(keys.data);
    return rc;
}

int sl_automaton_move(const sl_automaton *from, uint32_t state, sl_automaton *to, uint32_t *moved, sl_error *err) {
    size_t n;
    const uint64_t *k = sl_state_keys(from, state, &n);
    uint32_t *number = calloc(from->callers.n, sizeof *number); // first 1 for callers that are needed, then their new numbers
    sl_keys keys = {0};
    if (!number) return sl_fail(err, SL_ERR_MEMORY, "%u callers of a grammar: out of memory", from->callers.n);
    number[0] = 1;
    for (size_t i = 0; i < n; i++) number[sl_key_callers(k[i])] = 1;
    int rc = move_callers(from, number, to, err);
    for (size_t i = 0; !rc && i < n; i++)
        rc = sl_keys_push(&keys, sl_key(sl_key_node(k[i]), number[sl_key_callers(k[i])]), err);
    if (!rc) sl_keys_sort(&keys), rc = sl_automaton_state(to, &keys, moved, err);
    free(number), free(keys.data);
    return rc;
}
