// grammar/grammar_internal.h - the interfaces between the parts of a grammar. Only grammar/* and its tests include it.
//
// The parts, lowest first: utf8_ranges.c, key_sets.c, expressions.c (what readers build), rule_graph.c (the finished grammar),
// automaton.c (states), token_trie.c, matcher.c; text_reader.c and the readers regex.c, json_texts.c, number_range.c,
// schema_merge.c, json_schema.c, gbnf.c; grammar_texts.c.
#ifndef SLEIGH_GRAMMAR_INTERNAL_H
#define SLEIGH_GRAMMAR_INTERNAL_H

#include "base/arrays.h"
#include "grammar/grammar.h"

#include <stdatomic.h>

enum {
    SL_GRAMMAR_MOST_NODES = 1 << 19,
    SL_GRAMMAR_MOST_RULES = 1 << 15,
    SL_GRAMMAR_MOST_EXPRS = 1 << 20,
    SL_GRAMMAR_MOST_SETS = 4096,     // different sets of bytes
    SL_GRAMMAR_MOST_NESTING = 128,   // brackets in a text, schemas in a schema
    SL_GRAMMAR_MOST_DEPTH = 1024,    // rules that a text may be within; deeper ones are not entered
    SL_GRAMMAR_MOST_VISITS = 1 << 21 // nodes that one call visits, less than 0.1 s
};

// ---- characters ----

typedef struct sl_char_range { // code points from lo to hi
    uint32_t lo, hi;
} sl_char_range;

enum { SL_MOST_CHAR = 0x10ffff };

// Sorts and joins ranges[n] and cuts surrogates and numbers above SL_MOST_CHAR out. Returns the new n, at most n + 1: ranges
// has room for n + 1.
int sl_ranges_normalise(sl_char_range *ranges, int n);
// Writes the characters that are not in ranges[n], which are normalised. out: [n + 2]. Returns their number.
int sl_ranges_invert(const sl_char_range *ranges, int n, sl_char_range *out);

// Several code points as sequences of n bytes: byte i of a sequence lies between lo[i] and hi[i].
typedef struct sl_byte_ranges {
    unsigned char lo[4], hi[4];
    int n;
} sl_byte_ranges;
typedef void (*sl_byte_ranges_fn)(void *ctx, const sl_byte_ranges *r);
void sl_utf8_ranges(sl_char_range range, sl_byte_ranges_fn fn, void *ctx);
int sl_utf8_write(uint32_t c, char out[4]); // bytes written
// Reads the character at s[0..n), n > 0. Returns its bytes; 0: no valid UTF-8.
int sl_utf8_read(const char *s, size_t n, uint32_t *c);

// ---- expressions: what a reader builds ----

typedef int32_t sl_expr; // an index; an expression may be a part of several others
typedef struct sl_builder sl_builder;

// After the first error all functions do nothing and return a valid index. So a reader checks sl_builder_failed at its ends and
// in its loops.
int sl_builder_new(sl_builder **out, sl_error *err);
int sl_builder_failed(const sl_builder *b); // the code of the first error, 0: none
sl_error *sl_builder_error(sl_builder *b);
// Stores the code of an error that the caller has written to sl_builder_error(b). Returns the empty expression.
sl_expr sl_builder_fail(sl_builder *b, int code);

sl_expr sl_expr_literal(sl_builder *b, const char *bytes, size_t n); // n 0: the empty text
sl_expr sl_expr_class(sl_builder *b, const sl_char_range *ranges, int n);
sl_expr sl_expr_sequence(sl_builder *b, const sl_expr *parts, size_t n);
sl_expr sl_expr_choice(sl_builder *b, const sl_expr *parts, size_t n); // n 0: nothing matches
sl_expr sl_expr_repeat(sl_builder *b, sl_expr e, int min, int max);    // max -1: no limit
sl_expr sl_expr_rule(sl_builder *b, int rule);
sl_expr sl_expr_token(sl_builder *b, int32_t id);
// The same for a growing list of parts, which they free.
void sl_parts_push(sl_builder *b, sl_ids *parts, sl_expr e);
sl_expr sl_parts_sequence(sl_builder *b, sl_ids *parts);
sl_expr sl_parts_choice(sl_builder *b, sl_ids *parts);

typedef struct sl_char_set { // a growing list of ranges
    sl_char_range *data;
    int n, cap;
} sl_char_set;
void sl_char_set_add(sl_builder *b, sl_char_set *set, uint32_t lo, uint32_t hi);
// One character of a set. chars: makes the expression of normalised ranges; sl_expr_class, or one that writes characters as a
// JSON string does. Frees the set.
typedef sl_expr (*sl_chars_fn)(sl_builder *b, const sl_char_range *ranges, int n);
sl_expr sl_expr_set(sl_builder *b, sl_char_set *set, int is_inverted, sl_chars_fn chars);

// A part that messages about the size of the grammar name. It has no such part in it. sl_builder_leave returns the expression
// e, which was made since sl_builder_enter, with this name.
void sl_builder_enter(sl_builder *b, const char *place);
sl_expr sl_builder_leave(sl_builder *b, sl_expr e);

#define SL_LITERAL(b, text) sl_expr_literal(b, text, sizeof(text) - 1)
#define SL_PARTS(...) (const sl_expr[]){__VA_ARGS__}, sizeof((const sl_expr[]){__VA_ARGS__}) / sizeof(sl_expr)
#define SL_SEQUENCE(b, ...) sl_expr_sequence(b, SL_PARTS(__VA_ARGS__))
#define SL_CHOICE(b, ...) sl_expr_choice(b, SL_PARTS(__VA_ARGS__))

// A rule has a name for messages and a body. A rule without a body matches nothing.
int sl_builder_rule(sl_builder *b, const char *name, size_t n);
void sl_builder_define(sl_builder *b, int rule, sl_expr body);
// Both free b. *out is NULL after an error.
int sl_builder_finish(sl_builder *b, int root, sl_grammar **out);
int sl_builder_finish_with(sl_builder *b, const char *name, sl_expr body, sl_grammar **out); // a new rule is the root

// ---- text_reader.c: what the readers of GBNF and of regular expressions share ----

typedef struct sl_text_reader {
    sl_builder *b;
    const char *what, *text; // what: for messages
    size_t n, at;
    int has_lines; // messages name lines, and blanks may stand in {m, n}
    int depth;     // open brackets
} sl_text_reader;

__attribute__((format(printf, 3, 4))) int sl_refuse_at(sl_text_reader *r, size_t at, const char *fmt, ...); // returns 0
#define SL_REFUSE(r, ...) sl_refuse_at(r, (r)->at, __VA_ARGS__)

int sl_is_done(const sl_text_reader *r); // the text ends, or an error
int sl_has(const sl_text_reader *r, const char *token);
int sl_take(sl_text_reader *r, const char *token); // 1: it was there, and the reader is behind it
uint32_t sl_take_char(sl_text_reader *r);
uint32_t sl_take_hex(sl_text_reader *r, int n_digits);
void sl_check_char(sl_text_reader *r, size_t at, uint32_t c); // refuses surrogates and numbers above SL_MOST_CHAR
// * + ? {m} {m,} {m,n}; *max -1: no limit. Returns 0: there is none. Without has_lines a { before no digit is a character.
int sl_take_repetition(sl_text_reader *r, int *min, int *max);
typedef sl_expr (*sl_read_fn)(sl_text_reader *r);
sl_expr sl_read_choice(sl_text_reader *r, sl_read_fn sequence);   // sequences with | between them
sl_expr sl_read_brackets(sl_text_reader *r, sl_read_fn sequence); // behind (: a choice and )

// ---- regex.c ----

// The texts that a regular expression [n] matches. what: for messages. chars: how a character is written. is_search: the match
// may be any part of the text; else it is the whole text.
sl_expr sl_regex_read(sl_builder *b, const char *what, const char *text, size_t n, sl_chars_fn chars, int is_search);

// ---- json_texts.c: the parts of JSON texts ----

typedef struct sl_json_rules { // rules that all JSON texts share; -1: not made yet
    int space, escape, string, integer, number, value, object;
    int is_python; // 1: the texts are literals of Python: True, False and None, and strings without JSON's escapes \/ and pairs
} sl_json_rules;
#define SL_JSON_RULES_NONE                                                                                                     \
    (sl_json_rules) {                                                                                                          \
        -1, -1, -1, -1, -1, -1, -1, 0                                                                                          \
    }

sl_expr sl_expr_json_space(sl_builder *b, sl_json_rules *r);     // between brackets and values
sl_expr sl_expr_json_comma(sl_builder *b, sl_json_rules *r);     // "," and space
sl_expr sl_expr_json_colon(sl_builder *b);                       // ":" and at most one blank
sl_expr sl_expr_json_character(sl_builder *b, sl_json_rules *r); // one character of a string
sl_expr sl_expr_json_string(sl_builder *b, sl_json_rules *r);
sl_expr sl_expr_json_integer(sl_builder *b, sl_json_rules *r);
sl_expr sl_expr_json_number(sl_builder *b, sl_json_rules *r);
sl_expr sl_expr_json_boolean(sl_builder *b, const sl_json_rules *r);
sl_expr sl_expr_json_null(sl_builder *b, const sl_json_rules *r);
sl_expr sl_expr_json_value(sl_builder *b, sl_json_rules *r);
sl_expr sl_expr_json_object(sl_builder *b, sl_json_rules *r);
// A list of min to max items (-1: no limit). item: an expression of one node, a rule
sl_expr sl_expr_json_array(sl_builder *b, sl_json_rules *r, sl_expr item, int min, int max);
// One character of normalised ranges inside a string: with escapes where JSON needs them. No NUL.
sl_expr sl_expr_json_class(sl_builder *b, const sl_char_range *ranges, int n);
// The compact text of a value.
sl_expr sl_expr_json_constant(sl_builder *b, const sl_json_rules *r, const json_t *value);
// A string that is none of the strings names[n], written without escapes.
sl_expr sl_expr_json_other_string(sl_builder *b, const char *const *names, size_t n);

// ---- number_range.c ----

typedef struct sl_bound { // a limit of a number
    int is_set, is_exclusive, is_negative;
    uint64_t whole;    // the magnitude: whole.fraction
    char fraction[64]; // digits without zeros at the end
} sl_bound;

// Returns 0: the number has more than 18 digits before the point or 40 behind it.
int sl_bound_read(const json_t *number, sl_bound *out);
// Numbers without an exponent from lo to hi.
sl_expr sl_expr_json_range(sl_builder *b, const sl_bound *lo, const sl_bound *hi, int is_integer);

// ---- json_schema.c ----

// The JSON texts of a schema; as_arguments: its objects as the arguments of a call in Python, (a=1, b="x"). what: for messages,
// before the JSON pointer of a place in it
sl_expr sl_schema_read(sl_builder *b, const char *what, const json_t *schema, int as_arguments);

// ---- schema_merge.c ----

typedef struct sl_schema_reader {
    sl_builder *b;
    const char *what;
    const json_t *root; // the schema whose parts $ref names
    json_t *made;       // a list of all schemas that merging made
    json_t *refs;       // the rule of each $ref
    sl_text path;       // the JSON pointer of the schema that is being read
    int depth;
    int as_arguments; // the schema that is being read is written as the arguments of a call in Python
    sl_json_rules rules;
} sl_schema_reader;

__attribute__((format(printf, 3, 4))) sl_expr sl_schema_refuse(sl_schema_reader *r, sl_err code, const char *fmt, ...);
int sl_schema_enter(sl_schema_reader *r, const char *part, size_t *before); // 0: nests too deep
void sl_schema_leave(sl_schema_reader *r, size_t before);
// Whether a keyword does not restrict values. SL_ERR_UNSUPPORTED, by its name: it does, and the reader does not know it.
int sl_schema_is_annotation(sl_schema_reader *r, const char *keyword);
// The part of the root that a $ref names; NULL after an error.
const json_t *sl_schema_resolve(sl_schema_reader *r, const json_t *ref);
// A schema of the values that both allow, without $ref and allOf at its top, and with enum in place of const; NULL after an
// error. Lives as long as the reader. without: a keyword of `a` that does not count; NULL: none.
const json_t *sl_schema_merge(sl_schema_reader *r, const json_t *a, const char *without, const json_t *b);
// 1: no value that the grammar of one schema writes is allowed by the other.
int sl_schema_are_disjoint(sl_schema_reader *r, const json_t *a, const json_t *b);

enum {
    SL_NULL = 1,
    SL_BOOLEAN = 2,
    SL_INTEGER = 4,
    SL_FRACTION = 8,
    SL_STRING = 16,
    SL_ARRAY = 32,
    SL_OBJECT = 64,
    SL_ANY = 127
};
// The types that a schema allows, and those that its grammar writes: without type and enum, the types that its keywords are
// for.
int sl_schema_types(sl_schema_reader *r, const json_t *schema, int *written);
int sl_schema_type_of(const json_t *value);

// ---- the finished grammar: a graph of nodes for each rule ----

typedef enum {
    SL_NODE_END,   // the rule ends. Only node 0.
    SL_NODE_BYTES, // one byte of set a, then node b
    SL_NODE_SPLIT, // one of the b nodes from edges[a]
    SL_NODE_CALL,  // a text of rule a, then node b
    SL_NODE_TOKEN  // the token with the id a, then node b
} sl_node_kind;

// The copies of a repeated part differ only in how many copies follow. So all copies with more than SL_TWIN_BYTES copies behind
// them are followed by the same texts of SL_TWIN_BYTES bytes: their nodes have the same twins, in one of these copies.
enum { SL_TWIN_BYTES = 256 };

typedef struct sl_node {
    int32_t kind, a, b, twin; // twin: may be the node itself
} sl_node;

typedef struct sl_byte_set {
    uint32_t bits[8];
} sl_byte_set;

static inline int sl_byte_set_has(const sl_byte_set *s, unsigned byte) {
    return s->bits[byte / 32] >> byte % 32 & 1;
}

struct sl_grammar {
    atomic_int n_users;
    sl_node *nodes; // [n_nodes]; every node but those that nothing reaches has a text that leads to the end of its rule
    int32_t *edges;
    sl_byte_set *sets;
    int32_t *start;    // [n_rules]: a rule that can begin with another rule has the smaller number
    uint8_t *nullable; // [n_rules]: the empty text follows the rule
    int n_nodes, n_rules, root;
    uint8_t class_of[256]; // bytes of one class are in the same sets
    uint8_t byte_of[256];  // [n_classes] a byte of the class
    int n_classes;
};

typedef struct sl_rule_name {
    char *text;
} sl_rule_name;

// Completes g: nodes, edges, sets, start, root. Cuts nodes off that never reach an end, refuses left recursion, numbers the
// rules, makes classes. names: [n_rules] for messages
int sl_grammar_complete(sl_grammar *g, const sl_rule_name *names, sl_error *err);

// ---- sets of keys, found again by content ----

typedef struct sl_keys { // a growing array
    uint64_t *data;
    size_t n, cap;
} sl_keys;
int sl_keys_push(sl_keys *keys, uint64_t key, sl_error *err);
void sl_keys_sort(sl_keys *keys); // and drops repeated keys

typedef struct sl_key_sets {
    sl_keys all;
    uint32_t *from; // [n + 1]: set i is all.data[from[i]..from[i + 1])
    uint32_t *slots;
    uint32_t n, cap, n_slots;
} sl_key_sets;
// *id: the set with these sorted keys; a set that is not there gets the next number.
int sl_key_sets_find(sl_key_sets *s, const sl_keys *keys, uint32_t *id, sl_error *err);
void sl_key_sets_free(sl_key_sets *s);
size_t sl_key_sets_bytes(const sl_key_sets *s);

// ---- states ----

// Callers say where the text goes on when a rule ends: a set of keys. A state is a set of keys too. A key is a node and the
// callers of its rule. The key 0 is the end of the grammar: node 0 with callers 0, of which no caller is left.
static inline uint64_t sl_key(int32_t node, uint32_t callers) {
    return (uint64_t)callers << 32 | (uint32_t)node;
}
static inline int32_t sl_key_node(uint64_t key) {
    return (int32_t)(uint32_t)key;
}
static inline uint32_t sl_key_callers(uint64_t key) {
    return (uint32_t)(key >> 32);
}

enum { SL_STATE_DEAD = 0 }; // no text follows
#define SL_STATE_UNKNOWN UINT32_MAX

typedef struct sl_visited { // keys of one closure
    uint64_t *keys;
    uint32_t *rounds; // a slot is used if its round is the current one
    uint32_t round, n, n_slots;
} sl_visited;

typedef struct sl_pending { // a call that waits until all calls of its rule are known
    uint64_t key;
    int32_t next;
} sl_pending;

typedef struct sl_state_facts {
    uint16_t depth;  // rules that the text is within; UINT16_MAX: the limit of depth has cut places off
    uint8_t can_end; // the text follows the grammar
} sl_state_facts;

typedef struct sl_automaton {
    const sl_grammar *g;
    sl_key_sets callers, states;
    uint32_t *next;        // [states][n_classes] the state after a byte
    uint32_t *after;       // [callers] the state when the rule has ended
    uint16_t *depth;       // [callers] rules that the text is within
    sl_state_facts *facts; // [states]
    int is_cut;            // the limit has cut a place off the closure
    size_t cap_states, cap_callers;
    uint32_t start;
    long n_visits; // since the last sl_automaton_begin
    // memory of a closure
    sl_keys todo, found, gathered;
    sl_visited visited;
    sl_pending *pending;
    int32_t *first_pending; // [n_rules] index in pending, -1: none
    int32_t n_pending, cap_pending;
    uint32_t *rules_pending; // a bit for each rule
} sl_automaton;

int sl_automaton_new(const sl_grammar *g, sl_automaton *a, sl_error *err); // after an error too, free it
void sl_automaton_free(sl_automaton *a);
size_t sl_automaton_bytes(const sl_automaton *a);
// A public call begins: counts visits from 0.
static inline void sl_automaton_begin(sl_automaton *a) {
    a->n_visits = 0;
}
int sl_automaton_step(sl_automaton *a, uint32_t state, unsigned char byte, uint32_t *to, sl_error *err);
int sl_automaton_after(sl_automaton *a, uint32_t callers, uint32_t *to, sl_error *err);
// The state after a token that the grammar names. It is not kept in `next`, because few places name tokens.
int sl_automaton_step_token(sl_automaton *a, uint32_t state, int32_t id, uint32_t *to, sl_error *err);
// The state of sorted keys whose nodes are of kind SL_NODE_BYTES or SL_NODE_TOKEN, or key 0.
int sl_automaton_state(sl_automaton *a, const sl_keys *keys, uint32_t *state, sl_error *err);
// The same state in another automaton of the same grammar.
int sl_automaton_move(const sl_automaton *from, uint32_t state, sl_automaton *to, uint32_t *moved, sl_error *err);

static inline const uint64_t *sl_state_keys(const sl_automaton *a, uint32_t state, size_t *n) {
    *n = a->states.from[state + 1] - a->states.from[state];
    return a->states.all.data + a->states.from[state];
}
// ---- the trie of the tokens' bytes ----

typedef struct sl_trie_node {
    uint32_t skip;  // the first node behind those below this one
    uint32_t token; // tokens of this node: sorted[token] to the token of the next node
    uint16_t depth; // bytes before the byte
    uint8_t byte;
} sl_trie_node;

struct sl_token_trie {
    sl_trie_node *nodes; // [n_nodes + 1] from the first to the last token in the order of bytes; the last node only ends lists
    uint32_t n_nodes;
    int32_t *sorted; // tokens with bytes in the order of bytes
    int32_t *ends;   // [n_ends]
    int n_ends, n_vocab, n_words, most_depth;
    sl_text bytes;  // the bytes of all tokens
    uint32_t *from; // [n_vocab + 1] bytes of a token; none for special and end tokens
};

#endif
