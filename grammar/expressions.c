// grammar/expressions.c - what the readers build: expressions and rules, and the graph of nodes that they become.
#include "grammar/grammar_internal.h"
#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

typedef enum { LITERAL, CLASS, SEQUENCE, CHOICE, REPEAT, RULE, PLACE, TOKEN } expr_kind;

typedef struct expr {
    expr_kind kind;
    // a: LITERAL: offset in texts; CLASS: index in ranges; SEQUENCE, CHOICE: index in parts; REPEAT, PLACE: e; RULE: its number;
    // TOKEN: its id
    // n: LITERAL, CLASS, SEQUENCE, CHOICE: how many; PLACE: offset of its name in places
    int32_t a, n;
    int min, max; // REPEAT
} expr;

enum { SET_SLOTS = 4 * SL_GRAMMAR_MOST_SETS, MOST_EMITTED = 4 * SL_GRAMMAR_MOST_NODES };

struct sl_builder {
    int rc;
    sl_error *err;
    const char *place; // what is being read; NULL: no part that has a name
    expr *exprs;
    int32_t n_exprs, cap_exprs;
    sl_text texts, places;
    sl_char_range *ranges;
    int32_t n_ranges, cap_ranges;
    sl_ids parts, bodies; // bodies: [n_rules] the expression of a rule, -1: none
    sl_rule_name *names;  // [n_rules]
    int32_t cap_names;
    // the graph
    sl_grammar *g;
    int32_t cap_nodes, n_sets, n_emitted;
    sl_ids edges;
    uint16_t *set_slots; // [SET_SLOTS] a set's number + 1
};

static sl_expr fail_size(sl_builder *b, int32_t most, const char *what) {
    const char *place = b->place ? b->place : "";
    return sl_builder_fail(b, sl_fail(b->err, SL_ERR_UNSUPPORTED, "%s%sthe grammar has more than %d %s", place,
                                      *place ? ": with it " : "", most, what));
}

// Makes room for one more element. Returns 0 after an error.
static int room(sl_builder *b, void *array, int32_t n, int32_t *cap, size_t size, int32_t most, const char *what) {
    void **data = array;
    if (b->rc || n < *cap) return !b->rc;
    int32_t grown = *cap ? 2 * *cap : 64;
    if (n >= most) return fail_size(b, most, what), 0;
    void *p = realloc(*data, (size_t)grown * size);
    if (!p) return sl_builder_fail(b, sl_fail(b->err, SL_ERR_MEMORY, "a grammar of %d %s: out of memory", grown, what)), 0;
    *data = p;
    *cap = grown;
    return 1;
}

static sl_expr add(sl_builder *b, expr e) {
    if (!room(b, &b->exprs, b->n_exprs, &b->cap_exprs, sizeof e, SL_GRAMMAR_MOST_EXPRS, "parts")) return 0;
    b->exprs[b->n_exprs] = e;
    return b->n_exprs++;
}

static void free_builder(sl_builder *b) {
    for (size_t i = 0; i < b->bodies.n; i++) free(b->names[i].text);
    free(b->names), free(b->exprs), free(b->ranges), free(b->set_slots);
    sl_text_free(&b->texts), sl_text_free(&b->places), sl_ids_free(&b->parts), sl_ids_free(&b->bodies), sl_ids_free(&b->edges);
    sl_grammar_free(b->g);
    free(b);
}

int sl_builder_new(sl_builder **out, sl_error *err) {
    sl_builder *b = *out = calloc(1, sizeof *b);
    if (!b) return sl_fail(err, SL_ERR_MEMORY, "a grammar: out of memory");
    b->err = err;
    add(b, (expr){LITERAL, 0, 0, 0, 0}); // expression 0 is the empty text
    int rc = b->rc;
    if (rc) free_builder(b);
    return rc;
}

int sl_builder_failed(const sl_builder *b) {
    return b->rc;
}

sl_error *sl_builder_error(sl_builder *b) {
    return b->err;
}

sl_expr sl_builder_fail(sl_builder *b, int code) {
    if (!b->rc) b->rc = code;
    return 0;
}

// ---- expressions ----

sl_expr sl_expr_literal(sl_builder *b, const char *bytes, size_t n) {
    if (b->rc || n == 0) return 0;
    if (b->texts.n + n > SL_GRAMMAR_MOST_NODES) return fail_size(b, SL_GRAMMAR_MOST_NODES, "bytes of text");
    int32_t at = (int32_t)b->texts.n;
    sl_builder_fail(b, sl_text_append(&b->texts, bytes, n, b->err));
    return add(b, (expr){LITERAL, at, (int32_t)n, 0, 0});
}

sl_expr sl_expr_class(sl_builder *b, const sl_char_range *ranges, int n) {
    int32_t at = b->n_ranges;
    for (int i = 0; i < n + 1; i++) { // sl_ranges_normalise may need one more
        if (!room(b, &b->ranges, b->n_ranges, &b->cap_ranges, sizeof *ranges, SL_GRAMMAR_MOST_EXPRS, "ranges of characters"))
            return 0;
        if (i < n) b->ranges[b->n_ranges++] = ranges[i];
    }
    n = sl_ranges_normalise(b->ranges + at, n);
    b->n_ranges = at + n;
    return add(b, (expr){CLASS, at, n, 0, 0});
}

void sl_char_set_add(sl_builder *b, sl_char_set *set, uint32_t lo, uint32_t hi) {
    if (!room(b, &set->data, set->n, &set->cap, sizeof *set->data, SL_GRAMMAR_MOST_EXPRS, "ranges of characters")) return;
    set->data[set->n++] = (sl_char_range){lo, hi};
}

sl_expr sl_expr_set(sl_builder *b, sl_char_set *set, int is_inverted, sl_chars_fn chars) {
    sl_char_range *inverted = malloc(((size_t)set->n + 3) * sizeof *inverted);
    sl_char_set_add(b, set, 0, 0), set->n--; // room for one more
    sl_expr e = 0;
    if (!inverted) sl_builder_fail(b, sl_fail(b->err, SL_ERR_MEMORY, "a set of characters: out of memory"));
    if (!b->rc) {
        int n = sl_ranges_normalise(set->data, set->n);
        int n_inverted = sl_ranges_normalise(inverted, sl_ranges_invert(set->data, n, inverted));
        e = is_inverted ? chars(b, inverted, n_inverted) : chars(b, set->data, n);
    }
    free(inverted), free(set->data);
    *set = (sl_char_set){0};
    return e;
}

static sl_expr add_list(sl_builder *b, expr_kind kind, const sl_expr *parts, size_t n) {
    int32_t at = (int32_t)b->parts.n;
    if (b->rc || n == 1) return b->rc ? 0 : parts[0];
    if (b->parts.n + n > SL_GRAMMAR_MOST_EXPRS) return fail_size(b, SL_GRAMMAR_MOST_EXPRS, "parts");
    for (size_t i = 0; i < n; i++) sl_parts_push(b, &b->parts, parts[i]);
    return add(b, (expr){kind, at, (int32_t)n, 0, 0});
}

sl_expr sl_expr_sequence(sl_builder *b, const sl_expr *parts, size_t n) {
    return add_list(b, SEQUENCE, parts, n);
}

sl_expr sl_expr_choice(sl_builder *b, const sl_expr *parts, size_t n) {
    return add_list(b, CHOICE, parts, n);
}

void sl_parts_push(sl_builder *b, sl_ids *parts, sl_expr e) {
    if (!b->rc) b->rc = sl_ids_push(parts, e, b->err);
}

sl_expr sl_parts_sequence(sl_builder *b, sl_ids *parts) {
    sl_expr e = sl_expr_sequence(b, parts->data, parts->n);
    sl_ids_free(parts);
    return e;
}

sl_expr sl_parts_choice(sl_builder *b, sl_ids *parts) {
    sl_expr e = sl_expr_choice(b, parts->data, parts->n);
    sl_ids_free(parts);
    return e;
}

sl_expr sl_expr_repeat(sl_builder *b, sl_expr e, int min, int max) {
    return min == 1 && max == 1 ? e : add(b, (expr){REPEAT, e, 0, min, max});
}

sl_expr sl_expr_rule(sl_builder *b, int rule) {
    return add(b, (expr){RULE, rule, 0, 0, 0});
}

sl_expr sl_expr_token(sl_builder *b, int32_t id) {
    return add(b, (expr){TOKEN, id, 0, 0, 0});
}

void sl_builder_enter(sl_builder *b, const char *place) {
    b->place = place;
}

sl_expr sl_builder_leave(sl_builder *b, sl_expr e) {
    int32_t at = (int32_t)b->places.n;
    if (!b->rc) b->rc = sl_text_append(&b->places, b->place, strlen(b->place) + 1, b->err);
    b->place = NULL;
    return add(b, (expr){PLACE, e, at, 0, 0});
}

int sl_builder_rule(sl_builder *b, const char *name, size_t n) {
    int32_t rule = (int32_t)b->bodies.n;
    if (!room(b, &b->names, rule, &b->cap_names, sizeof *b->names, SL_GRAMMAR_MOST_RULES, "rules")) return 0;
    char *text = strndup(name, n);
    if (!text) return sl_builder_fail(b, sl_fail(b->err, SL_ERR_MEMORY, "a rule of a grammar: out of memory"));
    sl_builder_fail(b, sl_ids_push(&b->bodies, -1, b->err));
    if (b->rc) return free(text), 0;
    b->names[rule].text = text;
    return rule;
}

void sl_builder_define(sl_builder *b, int rule, sl_expr body) {
    if (!b->rc) b->bodies.data[rule] = body;
}

// ---- the graph: an expression and the node behind it become a node ----

static int32_t add_node(sl_builder *b, sl_node_kind kind, int32_t x, int32_t y) {
    sl_grammar *g = b->g;
    if (!room(b, &g->nodes, g->n_nodes, &b->cap_nodes, sizeof *g->nodes, SL_GRAMMAR_MOST_NODES, "nodes")) return 0;
    g->nodes[g->n_nodes] = (sl_node){kind, x, y, g->n_nodes};
    return g->n_nodes++;
}

static int32_t add_split(sl_builder *b, const int32_t *to, size_t n) {
    int32_t at = (int32_t)b->edges.n;
    for (size_t i = 0; i < n; i++) sl_parts_push(b, &b->edges, to[i]);
    return add_node(b, SL_NODE_SPLIT, at, (int32_t)n);
}

static int32_t find_set(sl_builder *b, const sl_byte_set *set) {
    uint32_t slot = (uint32_t)sl_fnv1a(SL_FNV1A_START, set, sizeof *set) % SET_SLOTS;
    for (; b->set_slots[slot]; slot = (slot + 1) % SET_SLOTS)
        if (!memcmp(&b->g->sets[b->set_slots[slot] - 1], set, sizeof *set)) return b->set_slots[slot] - 1;
    if (b->n_sets == SL_GRAMMAR_MOST_SETS) return fail_size(b, SL_GRAMMAR_MOST_SETS, "different sets of bytes");
    b->g->sets[b->n_sets] = *set;
    b->set_slots[slot] = (uint16_t)++b->n_sets;
    return b->n_sets - 1;
}

static int32_t add_bytes(sl_builder *b, unsigned lo, unsigned hi, int32_t next) {
    sl_byte_set set = {{0}};
    for (unsigned i = lo; i <= hi; i++) set.bits[i / 32] |= 1u << i % 32;
    return add_node(b, SL_NODE_BYTES, find_set(b, &set), next);
}

// A class becomes a set of first bytes for each node that may follow them. Equal nodes behind a first byte are one node.
typedef struct class_graph {
    sl_builder *b;
    int32_t next;
    sl_byte_set set[64]; // a range of characters has at most 8 sequences with different nodes behind the first byte, and
    int32_t to[64];      // the sequences of several ranges are mostly equal
    int n;
    sl_ids nodes;      // the nodes of full sets
    sl_key_sets later; // what nodes of later bytes have: a range of bytes and the next node
    sl_ids later_nodes;
} class_graph;

static int32_t find_bytes(class_graph *c, unsigned lo, unsigned hi, int32_t next) {
    uint64_t key = (uint64_t)next << 16 | lo << 8 | hi;
    uint32_t id = 0;
    int rc = sl_key_sets_find(&c->later, &(sl_keys){&key, 1, 1}, &id, c->b->err);
    if (rc) return sl_builder_fail(c->b, rc);
    if (id == c->later_nodes.n) sl_parts_push(c->b, &c->later_nodes, add_bytes(c->b, lo, hi, next));
    return c->b->rc ? 0 : c->later_nodes.data[id];
}

// A part more of the graph. The number of nodes does not bound the time, because parts can share nodes or have none.
static void count_emitted(sl_builder *b) {
    if (++b->n_emitted > MOST_EMITTED) fail_size(b, MOST_EMITTED, "repeated parts");
}

static void flush_class(class_graph *c) {
    for (int i = 0; i < c->n; i++)
        sl_parts_push(c->b, &c->nodes, add_node(c->b, SL_NODE_BYTES, find_set(c->b, &c->set[i]), c->to[i]));
    c->n = 0;
}

static void add_sequence(void *ctx, const sl_byte_ranges *r) {
    class_graph *c = ctx;
    int32_t to = c->next;
    count_emitted(c->b);
    if (c->b->rc) return;
    for (int i = r->n - 1; i > 0; i--) to = find_bytes(c, r->lo[i], r->hi[i], to);
    int at = 0;
    while (at < c->n && c->to[at] != to) at++;
    if (at == (int)(sizeof c->to / sizeof *c->to)) flush_class(c), at = 0;
    if (at == c->n) {
        c->set[c->n] = (sl_byte_set){{0}};
        c->to[c->n++] = to;
    }
    for (unsigned x = r->lo[0]; x <= r->hi[0]; x++) c->set[at].bits[x / 32] |= 1u << x % 32;
}

static int32_t emit_class(sl_builder *b, const expr *e, int32_t next) {
    class_graph c = {.b = b, .next = next};
    for (int32_t i = 0; i < e->n && !b->rc; i++) sl_utf8_ranges(b->ranges[e->a + i], add_sequence, &c);
    flush_class(&c);
    int32_t node = c.nodes.n == 1 ? c.nodes.data[0] : add_split(b, c.nodes.data, c.nodes.n);
    sl_ids_free(&c.nodes), sl_ids_free(&c.later_nodes);
    sl_key_sets_free(&c.later);
    return node;
}

static int32_t emit(sl_builder *b, sl_expr index, int32_t next);

// 1: every text of the expression has a byte, or a token. 0: not, or it takes more than *n_left expressions to see it.
static int has_bytes(const sl_builder *b, sl_expr index, int *n_left) {
    const expr *e = &b->exprs[index];
    int n = 0;
    if ((*n_left)-- <= 0) return 0;
    if (e->kind == RULE) return b->bodies.data[e->a] >= 0 && has_bytes(b, b->bodies.data[e->a], n_left);
    if (e->kind == PLACE) return has_bytes(b, e->a, n_left);
    if (e->kind == REPEAT) return e->min > 0 && has_bytes(b, e->a, n_left);
    if (e->kind == LITERAL) return e->n > 0;
    if (e->kind == CLASS || e->kind == TOKEN) return 1;
    for (int32_t i = 0; i < e->n; i++) n += has_bytes(b, b->parts.data[e->a + i], n_left);
    return e->kind == SEQUENCE ? n > 0 : n == e->n;
}

// n copies of e, one behind the other. is_optional: node `next` may follow each of them.
static int32_t emit_copies(sl_builder *b, sl_expr e, int n, int is_optional, int32_t next) {
    enum { MOST_SEEN = 100 };
    int n_left = MOST_SEEN, has_twins = n > SL_TWIN_BYTES && has_bytes(b, e, &n_left);
    int32_t node = next, twins = 0;
    for (int i = 0; i < n && !b->rc; i++) { // i copies follow
        int32_t first = b->g->n_nodes;
        node = emit(b, e, node);
        if (is_optional) node = add_split(b, (const int32_t[]){node, next}, 2);
        if (i == SL_TWIN_BYTES) twins = first;
        for (int32_t k = first; has_twins && i > SL_TWIN_BYTES && k < b->g->n_nodes; k++)
            b->g->nodes[k].twin = twins + (k - first);
    }
    return node;
}

static int32_t emit_repeat(sl_builder *b, const expr *e, int32_t next) {
    int32_t node = next;
    if (e->max < 0) { // the node of a loop is there before its body
        node = add_split(b, (const int32_t[]){next, next}, 2);
        int32_t edge = (int32_t)b->edges.n - 2, body = emit(b, e->a, node);
        if (!b->rc) b->edges.data[edge] = body;
    }
    if (e->max > e->min) node = emit_copies(b, e->a, e->max - e->min, 1, node);
    return emit_copies(b, e->a, e->min, 0, node);
}

static int32_t emit_choice(sl_builder *b, const expr *e, int32_t next) {
    sl_ids nodes = {0};
    for (int32_t i = 0; i < e->n && !b->rc; i++) sl_parts_push(b, &nodes, emit(b, b->parts.data[e->a + i], next));
    int32_t node = b->rc ? 0 : add_split(b, nodes.data, nodes.n);
    sl_ids_free(&nodes);
    return node;
}

static int32_t emit_place(sl_builder *b, const expr *e, int32_t next) {
    b->place = b->places.data + e->n;
    next = emit(b, e->a, next);
    b->place = NULL;
    return next;
}

// The node of a text of the expression with node `next` behind it. Readers bound the depth of expressions.
static int32_t emit(sl_builder *b, sl_expr index, int32_t next) {
    const expr e = b->exprs[index];
    count_emitted(b);
    if (b->rc) return 0;
    switch (e.kind) {
    case LITERAL:
        for (int32_t i = e.n - 1; i >= 0 && !b->rc; i--) {
            unsigned char byte = (unsigned char)b->texts.data[e.a + i];
            next = add_bytes(b, byte, byte, next);
        }
        return next;
    case CLASS:
        return emit_class(b, &e, next);
    case SEQUENCE:
        for (int32_t i = e.n - 1; i >= 0 && !b->rc; i--) next = emit(b, b->parts.data[e.a + i], next);
        return next;
    case CHOICE:
        return emit_choice(b, &e, next);
    case REPEAT:
        return emit_repeat(b, &e, next);
    case TOKEN:
        return add_node(b, SL_NODE_TOKEN, e.a, next);
    case PLACE:
        return emit_place(b, &e, next);
    default:
        return add_node(b, SL_NODE_CALL, e.a, next);
    }
}

static int emit_rules(sl_builder *b) {
    sl_grammar *g = b->g = calloc(1, sizeof *g);
    size_t n_rules = b->bodies.n;
    if (g) g->start = calloc(n_rules + 1, sizeof *g->start), g->sets = calloc(SL_GRAMMAR_MOST_SETS, sizeof *g->sets);
    b->set_slots = calloc(SET_SLOTS, sizeof *b->set_slots);
    if (g) atomic_init(&g->n_users, 1);
    if (!g || !g->start || !g->sets || !b->set_slots) return sl_fail(b->err, SL_ERR_MEMORY, "a grammar: out of memory");
    add_node(b, SL_NODE_END, 0, 0);
    for (size_t i = 0; i < n_rules && !b->rc; i++)
        g->start[i] = b->bodies.data[i] < 0 ? add_split(b, NULL, 0) : emit(b, b->bodies.data[i], 0);
    g->n_rules = (int)n_rules;
    g->edges = b->edges.data;
    b->edges = (sl_ids){0};
    return b->rc;
}

int sl_builder_finish(sl_builder *b, int root, sl_grammar **out) {
    *out = NULL;
    if (!b->rc) sl_builder_fail(b, emit_rules(b));
    if (!b->rc) b->g->root = root;
    if (!b->rc) b->rc = sl_grammar_complete(b->g, b->names, b->err);
    int rc = b->rc;
    if (!rc) *out = b->g, b->g = NULL;
    free_builder(b);
    return rc;
}

int sl_builder_finish_with(sl_builder *b, const char *name, sl_expr body, sl_grammar **out) {
    int root = sl_builder_rule(b, name, strlen(name));
    sl_builder_define(b, root, body);
    return sl_builder_finish(b, root, out);
}
