// grammar/rule_graph.c - completes the graph of a grammar: cuts off what never ends, refuses left recursion, orders the rules,
// and joins bytes that no set tells apart.
#include "grammar/grammar_internal.h"

#include <stdlib.h>
#include <string.h>

// ---- users ----

void sl_grammar_use(const sl_grammar *g) {
    atomic_fetch_add(&((sl_grammar *)g)->n_users, 1); // the count is no part of what the caller sees as constant
}

void sl_grammar_free(sl_grammar *g) {
    if (!g || atomic_fetch_sub(&g->n_users, 1) > 1) return;
    free(g->nodes), free(g->edges), free(g->sets), free(g->start), free(g->nullable);
    free(g);
}

static int equal_nodes(const sl_grammar *g, const sl_node *x, const sl_grammar *h, const sl_node *y) {
    if (x->kind != y->kind || x->b != y->b) return 0;
    if (x->kind == SL_NODE_BYTES) return !memcmp(&g->sets[x->a], &h->sets[y->a], sizeof *g->sets);
    if (x->kind == SL_NODE_SPLIT) return !memcmp(g->edges + x->a, h->edges + y->a, (size_t)x->b * sizeof *g->edges);
    return x->a == y->a;
}

int sl_grammar_equal(const sl_grammar *a, const sl_grammar *b) {
    if (a == b) return 1;
    if (a->n_nodes != b->n_nodes || a->n_rules != b->n_rules || a->root != b->root) return 0;
    if (memcmp(a->start, b->start, (size_t)a->n_rules * sizeof *a->start)) return 0;
    for (int32_t i = 0; i < a->n_nodes; i++)
        if (!equal_nodes(a, &a->nodes[i], b, &b->nodes[i])) return 0;
    return 1;
}

// ---- which nodes lead to the end of their rule: by some text; by the empty text ----

typedef struct links { // for each node, the nodes whose property may follow from it
    int32_t *first;    // [n_nodes + 1]
    int32_t *from;
} links;

typedef void (*link_fn)(void *ctx, int32_t to, int32_t from);

static void each_link(const sl_grammar *g, link_fn fn, void *ctx) {
    for (int32_t i = 0; i < g->n_nodes; i++) {
        const sl_node *x = &g->nodes[i];
        for (int32_t k = 0; x->kind == SL_NODE_SPLIT && k < x->b; k++) fn(ctx, g->edges[x->a + k], i);
        if (x->kind == SL_NODE_CALL) fn(ctx, g->start[x->a], i);
        if (x->kind == SL_NODE_CALL || x->kind == SL_NODE_BYTES || x->kind == SL_NODE_TOKEN) fn(ctx, x->b, i);
    }
}

static void count_link(void *ctx, int32_t to, int32_t from) {
    (void)from;
    ((links *)ctx)->first[to + 1]++;
}

static void add_link(void *ctx, int32_t to, int32_t from) {
    links *l = ctx;
    l->from[--l->first[to + 1]] = from; // leaves first[to + 1] at the first link of `to`
}

static int make_links(const sl_grammar *g, links *l, sl_error *err) {
    size_t n = (size_t)g->n_nodes;
    l->first = calloc(n + 2, sizeof *l->first);
    if (!l->first) return sl_fail(err, SL_ERR_MEMORY, "a grammar of %zu nodes: out of memory", n);
    each_link(g, count_link, l);
    for (size_t i = 0; i < n; i++) l->first[i + 1] += l->first[i];
    size_t n_links = (size_t)l->first[n];
    l->first[n + 1] = l->first[n];
    l->from = malloc((n_links + 1) * sizeof *l->from);
    if (!l->from) return sl_fail(err, SL_ERR_MEMORY, "a grammar of %zu nodes: out of memory", n);
    each_link(g, add_link, l);
    return 0;
}

// Whether the node has the property, by what has it already. by_bytes 0: only the empty text counts, without tokens.
static int holds(const sl_grammar *g, const uint8_t *has, int32_t node, int by_bytes) {
    static const sl_byte_set empty;
    const sl_node *x = &g->nodes[node];
    if (x->kind == SL_NODE_BYTES) return by_bytes && has[x->b] && memcmp(&g->sets[x->a], &empty, sizeof empty);
    if (x->kind == SL_NODE_TOKEN) return by_bytes && has[x->b];
    if (x->kind == SL_NODE_CALL) return has[g->start[x->a]] && has[x->b];
    for (int32_t i = 0; x->kind == SL_NODE_SPLIT && i < x->b; i++)
        if (has[g->edges[x->a + i]]) return 1;
    return x->kind == SL_NODE_END;
}

static void spread(const sl_grammar *g, const links *l, int by_bytes, int32_t *todo, uint8_t *has) {
    int32_t n = 0;
    has[0] = 1;
    todo[n++] = 0;
    while (n > 0) {
        int32_t node = todo[--n];
        for (int32_t i = l->first[node + 1]; i < l->first[node + 2]; i++)
            if (!has[l->from[i]] && holds(g, has, l->from[i], by_bytes)) todo[n++] = l->from[i], has[l->from[i]] = 1;
    }
}

static void cut_edges(sl_grammar *g, const uint8_t *ends) {
    for (int32_t i = 0; i < g->n_nodes; i++) {
        sl_node *x = &g->nodes[i];
        int32_t n = 0;
        if (x->kind != SL_NODE_SPLIT) continue;
        for (int32_t k = 0; k < x->b; k++)
            if (ends[g->edges[x->a + k]]) g->edges[x->a + n++] = g->edges[x->a + k];
        x->b = n;
    }
}

// ---- the order of the rules ----

typedef struct order {
    const sl_grammar *g;
    const sl_rule_name *names;
    uint8_t *seen;   // [n_nodes]
    int32_t *todo;   // [n_nodes]
    sl_ids firsts;   // for each rule, the rules that it can begin with; a rule can occur several times
    int32_t *from;   // [n_rules + 1] the part of a rule in firsts
    int32_t *n_left; // [n_rules] entries of a rule in the firsts of rules without a number
    int32_t *number; // [n_rules] -1: none yet
    int32_t *queue;  // [n_rules]
} order;

static void visit(order *o, int32_t node, int32_t *n) {
    if (!o->seen[node]) o->todo[(*n)++] = node;
    o->seen[node] = 1;
}

// A node belongs to one rule, so all rules together visit a node once.
static int find_firsts(order *o, int32_t rule, const uint8_t *ends, sl_error *err) {
    const sl_grammar *g = o->g;
    int32_t n = 0;
    int rc = 0;
    if (ends[g->start[rule]]) visit(o, g->start[rule], &n);
    while (!rc && n > 0) {
        const sl_node *x = &g->nodes[o->todo[--n]];
        for (int32_t i = 0; x->kind == SL_NODE_SPLIT && i < x->b; i++) visit(o, g->edges[x->a + i], &n);
        if (x->kind != SL_NODE_CALL) continue;
        rc = sl_ids_push(&o->firsts, x->a, err);
        if (g->nullable[x->a]) visit(o, x->b, &n);
    }
    return rc;
}

// Some rules have no number, because each of them is the first of another one. Going back from rule to rule ends in a circle.
static int left_recursion(const order *o, sl_error *err) {
    int32_t rule = 0, *before = o->queue;
    for (int32_t r = 0; r < o->g->n_rules; r++)
        for (int32_t i = o->from[r]; o->number[r] < 0 && i < o->from[r + 1]; i++) before[o->firsts.data[i]] = r;
    while (o->number[rule] >= 0) rule++;
    for (int32_t i = 0; i < o->g->n_rules; i++) rule = before[rule];
    return sl_fail(err, SL_ERR_UNSUPPORTED, "rule %.100s is left-recursive: expected a rule that does not begin with itself",
                   o->names[rule].text);
}

static int number_rules(order *o, const uint8_t *ends, sl_error *err) {
    int32_t n_rules = o->g->n_rules, n_queue = 0;
    int rc = 0;
    for (int32_t r = 0; !rc && r < n_rules; r++) {
        rc = find_firsts(o, r, ends, err);
        o->from[r + 1] = (int32_t)o->firsts.n;
        o->number[r] = -1;
    }
    if (rc) return rc;
    for (size_t i = 0; i < o->firsts.n; i++) o->n_left[o->firsts.data[i]]++;
    for (int32_t r = 0; r < n_rules; r++)
        if (o->n_left[r] == 0) o->queue[n_queue++] = r;
    for (int32_t k = 0; k < n_queue; k++) {
        int32_t r = o->queue[k];
        o->number[r] = k;
        for (int32_t i = o->from[r]; i < o->from[r + 1]; i++)
            if (--o->n_left[o->firsts.data[i]] == 0) o->queue[n_queue++] = o->firsts.data[i];
    }
    return n_queue < n_rules ? left_recursion(o, err) : 0;
}

static void renumber(sl_grammar *g, const order *o) {
    int32_t *start = o->n_left; // it is not needed any more
    uint8_t *nullable = o->seen;
    memcpy(start, g->start, (size_t)g->n_rules * sizeof *start);
    memcpy(nullable, g->nullable, (size_t)g->n_rules);
    for (int32_t r = 0; r < g->n_rules; r++) {
        g->start[o->number[r]] = start[r];
        g->nullable[o->number[r]] = nullable[r];
    }
    for (int32_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].kind == SL_NODE_CALL) g->nodes[i].a = o->number[g->nodes[i].a];
    g->root = o->number[g->root];
}

static int order_rules(sl_grammar *g, const sl_rule_name *names, const uint8_t *ends, sl_error *err) {
    size_t n_rules = (size_t)g->n_rules, n_nodes = (size_t)g->n_nodes;
    int32_t *memory = calloc(4 * n_rules + 1 + n_nodes, sizeof *memory);
    order o = {.g = g, .names = names, .seen = calloc(n_nodes + n_rules, 1)};
    int rc = memory && o.seen ? 0 : sl_fail(err, SL_ERR_MEMORY, "a grammar of %zu rules: out of memory", n_rules);
    if (!rc) {
        o.from = memory, o.n_left = o.from + n_rules + 1, o.number = o.n_left + n_rules, o.queue = o.number + n_rules;
        o.todo = o.queue + n_rules;
        rc = number_rules(&o, ends, err);
    }
    if (!rc) renumber(g, &o);
    free(memory), free(o.seen);
    sl_ids_free(&o.firsts);
    return rc;
}

// ---- classes of bytes ----

// Splits the classes by one set after another.
static void make_classes(sl_grammar *g) {
    g->n_classes = 1;
    for (int32_t i = 0; i < g->n_nodes; i++) {
        int split[256], n_classes = g->n_classes; // split[c]: the new class of those bytes of class c that are in the set
        if (g->nodes[i].kind != SL_NODE_BYTES || n_classes == 256) continue;
        const sl_byte_set *set = &g->sets[g->nodes[i].a];
        int has[256] = {0}, lacks[256] = {0};
        for (unsigned x = 0; x < 256; x++) (sl_byte_set_has(set, x) ? has : lacks)[g->class_of[x]] = 1;
        for (int c = 0; c < n_classes; c++) split[c] = has[c] && lacks[c] ? g->n_classes++ : c;
        for (unsigned x = 0; x < 256; x++)
            if (sl_byte_set_has(set, x)) g->class_of[x] = (uint8_t)split[g->class_of[x]];
    }
    for (int x = 255; x >= 0; x--) g->byte_of[g->class_of[x]] = (uint8_t)x;
}

int sl_grammar_complete(sl_grammar *g, const sl_rule_name *names, sl_error *err) {
    links l = {0};
    size_t n_nodes = (size_t)g->n_nodes;
    int32_t *todo = malloc(n_nodes * sizeof *todo);
    uint8_t *ends = calloc(n_nodes, 1), *empty = calloc(n_nodes, 1);
    g->nullable = calloc((size_t)g->n_rules, 1);
    int rc = todo && ends && empty && g->nullable
                 ? make_links(g, &l, err)
                 : sl_fail(err, SL_ERR_MEMORY, "a grammar of %zu nodes: out of memory", n_nodes);
    if (!rc) {
        spread(g, &l, 1, todo, ends);
        spread(g, &l, 0, todo, empty);
        cut_edges(g, ends);
        for (int32_t r = 0; r < g->n_rules; r++) g->nullable[r] = empty[g->start[r]];
        if (!ends[g->start[g->root]])
            rc = sl_fail(err, SL_ERR_UNSUPPORTED, "no text follows the grammar: rule %.100s never ends", names[g->root].text);
    }
    if (!rc) rc = order_rules(g, names, ends, err);
    if (!rc) make_classes(g);
    free(todo), free(ends), free(empty), free(l.first), free(l.from);
    return rc;
}
