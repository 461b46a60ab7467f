// tokenizer/jinja/jinja_internal.h - the interfaces between the parts of the template language. Only tokenizer/jinja*.c
// includes it.
//
// The parts, lowest first: jinja_memory.c, jinja_cases.c, jinja_text.c (strings), jinja_value.c, jinja_format.c (values as
// text), jinja_lex.c, jinja_parse.c, jinja_methods.c, jinja_filters.c, jinja_tests.c, jinja_eval.c, jinja_run.c (statements),
// jinja.c.
//
// All memory of a parse or of a run is one arena. An error leaves the parse or the run by longjmp, and the arena is then freed
// as a whole. So functions return values, and no function can lose an error or a piece of memory.
#ifndef SLEIGH_JINJA_INTERNAL_H
#define SLEIGH_JINJA_INTERNAL_H

#include "base/arrays.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdint.h>
#include <time.h>

// ---- jinja_memory.c ----

typedef struct j_block j_block;

// The memory and the errors of a parse or a run.
typedef struct j_base {
    jmp_buf out;
    j_block *blocks;
    size_t n_bytes, most_bytes;
    size_t n_steps, most_steps;
    int depth, most_depth;
    int line;    // of the template, for messages
    sl_err code; // of the error, with its text
    char text[600];
} j_base;

// All of it lies until the arena is freed. Never NULL.
void *sl_j_alloc(j_base *b, size_t n);
void *sl_j_grow(j_base *b, void *old, size_t n_old, size_t n_new);
void sl_j_free_all(j_block *blocks);
_Noreturn void sl_j_fail(j_base *b, sl_err code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
// Calls fn. Returns 0, or 1 after an error, which b->code and b->text describe.
int sl_j_try(j_base *b, void (*fn)(void *ctx), void *ctx);
void sl_j_step(j_base *b, size_t n); // counts n steps; fails beyond the limit
void sl_j_enter(j_base *b);          // one level deeper; fails beyond the limit
static inline void sl_j_leave(j_base *b) {
    b->depth--;
}

// ---- values ----

typedef enum {
    J_UNDEFINED,
    J_NONE,
    J_BOOL,
    J_INT,
    J_FLOAT,
    J_STRING,
    J_LIST,
    J_TUPLE,
    J_DICT,
    J_VIEW,     // keys, values or items of a dict
    J_ITERATOR, // what Python gives as a generator: it can be read once
    J_RANGE,
    J_NAMESPACE,
    J_MACRO,
    J_FUNCTION, // of the language
    J_METHOD,   // of a value
    J_LOOP,
    J_CYCLER,
    J_JOINER
} j_type;

typedef struct j_string {
    const char *s;
    const unsigned char *mark; // [n], 1: the byte comes from a message; NULL: no byte does
    size_t n;
    int safe; // a string of the filters safe and escape: '+' escapes the other string, as Python's Markup does
} j_string;

typedef struct j_value j_value;
typedef struct j_list j_list;
typedef struct j_dict j_dict;
typedef struct j_iterator j_iterator;
typedef struct j_range j_range;
typedef struct j_macro j_macro;
typedef struct j_method j_method;
typedef struct j_loop j_loop;
typedef struct j_cycler j_cycler;
typedef struct j_node j_node;
typedef struct j_scope j_scope;
typedef struct j_run j_run;
typedef struct j_args j_args;

struct j_value {
    j_type type;
    union {
        int64_t i; // J_BOOL, J_INT, J_FUNCTION
        double f;
        const j_string *s;
        const j_list *list; // J_LIST, J_TUPLE, J_VIEW
        j_dict *dict;       // J_DICT, J_NAMESPACE
        j_iterator *iterator;
        const j_range *range;
        const j_macro *macro;
        const j_method *method;
        j_loop *loop;
        j_cycler *cycler; // J_CYCLER, J_JOINER
        const char *why;  // J_UNDEFINED: the message of an operation with it; NULL: none
    };
};

struct j_list {
    j_value *items;
    size_t n;
    const char *view; // J_VIEW: Python's name of its type
};

typedef struct j_pair {
    j_value key, value;
} j_pair;

struct j_dict { // in the order of insertion
    j_pair *pairs;
    size_t n, cap;
};

struct j_iterator {
    j_list list;
    size_t at;
    const char *failed; // the error of the element after the last one; NULL: the iterator ends there
    sl_err code;
};

struct j_range {
    int64_t start, stop, step;
    size_t n;
};

struct j_method {
    j_value self;
    int id; // an index in the names of jinja_methods.c
};

struct j_cycler {
    j_list items; // a joiner's text is item 0
    size_t at;
};

static inline j_value sl_j_none(void) {
    return (j_value){.type = J_NONE};
}
static inline j_value sl_j_bool(int x) {
    return (j_value){.type = J_BOOL, .i = x != 0};
}
static inline j_value sl_j_int(int64_t x) {
    return (j_value){.type = J_INT, .i = x};
}
static inline j_value sl_j_float(double x) {
    return (j_value){.type = J_FLOAT, .f = x};
}
static inline j_value sl_j_text(const j_string *s) {
    return (j_value){.type = J_STRING, .s = s};
}
static inline int sl_j_is_number(j_value v) {
    return v.type == J_BOOL || v.type == J_INT || v.type == J_FLOAT;
}
static inline int sl_j_is_whole(j_value v) {
    return v.type == J_BOOL || v.type == J_INT;
}

// ---- jinja_text.c: strings, by characters as in Python ----

// A text that grows. Marks begin with the first marked byte.
typedef struct j_buffer {
    char *s;
    unsigned char *mark;
    size_t n, cap;
} j_buffer;

void sl_j_put(j_base *b, j_buffer *out, const char *s, const unsigned char *mark, size_t n);
void sl_j_put_text(j_base *b, j_buffer *out, const char *s); // without marks
void sl_j_put_string(j_base *b, j_buffer *out, const j_string *s);
const j_string *sl_j_buffer_string(j_base *b, const j_buffer *buffer);

const j_string *sl_j_string(j_base *b, const char *s, size_t n);                 // copies
const j_string *sl_j_literal(j_base *b, const char *s);                          // does not copy
const j_string *sl_j_part(j_base *b, const j_string *s, size_t from, size_t to); // bytes
int sl_j_equals(const j_string *a, const char *text);
int sl_j_same(const j_string *a, const j_string *b);
int sl_j_order(const j_string *a, const j_string *b); // as strcmp, by code points
// The length in bytes of the character at s. A byte that is not UTF-8 is a character.
size_t sl_j_char(const char *s, size_t n, uint32_t *code);
size_t sl_j_n_chars(j_base *b, const j_string *s);
size_t sl_j_offset(const j_string *s, size_t n_chars); // the byte of a character
int sl_j_is_space(uint32_t code);                      // str.isspace
// The first place of `what` in bytes [from, to) of s; SIZE_MAX: none. last: the last place.
size_t sl_j_find(j_base *b, const j_string *s, size_t from, size_t to, const j_string *what, int last);
const j_string *sl_j_strip(j_base *b, const j_string *s, const j_string *chars, int left, int right); // chars NULL: white space
const j_string *sl_j_replace(j_base *b, const j_string *s, const j_string *old, const j_string *new, int64_t most);
// J_TITLE is the filter, and J_TITLE_WORDS the method.
typedef enum { J_UPPER, J_LOWER, J_CAPITALIZE, J_TITLE, J_TITLE_WORDS, J_SWAP } j_case;
const j_string *sl_j_case(j_base *b, const j_string *s, j_case to);
const j_string *sl_j_escape(j_base *b, const j_string *s); // HTML, as markupsafe's escape
// The lists of str.split, rsplit (separator NULL: white space; most < 0: no limit) and splitlines.
j_value sl_j_split(j_base *b, const j_string *s, const j_string *separator, int64_t most, int from_right);
j_value sl_j_split_lines(j_base *b, const j_string *s, int keep_ends);
// The case of one character above U+007F, from Python's tables (jinja_cases.c): a text of several characters; NULL: *single.
const char *sl_j_case_of(uint32_t c, j_case to, uint32_t *single);
size_t sl_j_encode(uint32_t c, char text[4]); // as UTF-8; returns the length
int sl_j_is_printable(uint32_t c);            // str.isprintable
typedef enum { J_IS_ALPHA, J_IS_DIGIT, J_IS_ALNUM, J_IS_SPACE, J_IS_UPPER, J_IS_LOWER } j_class;
int sl_j_is_class(j_base *b, const j_string *s, j_class c);

// ---- jinja_value.c ----

const char *sl_j_type_name(j_value v); // Python's name of the type
j_value sl_j_undefined(j_base *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
// Fails with the reason of an undefined value, if v is one.
void sl_j_defined(j_base *b, j_value v);
int sl_j_true(j_base *b, j_value v);
int sl_j_equal(j_base *b, j_value x, j_value y);
int sl_j_compare(j_base *b, j_value x, j_value y, const char *op); // < 0, 0, > 0; 2: a NaN
int sl_j_contains(j_base *b, j_value container, j_value x);
int sl_j_identical(j_value x, j_value y);
void sl_j_check_key(j_base *b, j_value key); // fails if Python cannot hash the value

j_value sl_j_list_new(j_base *b, j_type type, const j_value *items, size_t n); // copies the items
void sl_j_push(j_base *b, j_list *list, j_value v);                            // list: a growing one, of zeros at first
j_value sl_j_list_of(j_base *b, j_list list, j_type type);
j_value sl_j_iterator(j_base *b, j_list list);
j_value sl_j_dict_new(j_base *b, j_type type);
void sl_j_dict_set(j_base *b, j_dict *d, j_value key, j_value value);
const j_value *sl_j_dict_get(j_base *b, const j_dict *d, j_value key); // NULL: no such key
const j_value *sl_j_dict_find(const j_dict *d, const char *key, size_t n);
j_value sl_j_view(j_base *b, const j_dict *d, int keys, int values);

size_t sl_j_length(j_base *b, j_value v); // fails as len()
int sl_j_has_length(j_value v);
int sl_j_is_iterable(j_value v);
// All elements, as `for` takes them. An iterator is then at its end.
j_list sl_j_elements(j_base *b, j_value v);
int sl_j_next(j_base *b, j_value v, j_value *out); // of an iterator; 0: its end
j_value sl_j_range_at(const j_range *r, size_t i);
// v[key] without attributes; *found 0: a LookupError or TypeError
j_value sl_j_index(j_base *b, j_value v, j_value key, int *found);
j_value sl_j_slice(j_base *b, j_value v, j_value start, j_value stop, j_value step);

j_value sl_j_from_json(j_base *b, const json_t *json, int mark);

// ---- jinja_format.c ----

const j_string *sl_j_str(j_base *b, j_value v);  // str()
const j_string *sl_j_repr(j_base *b, j_value v); // repr()
void sl_j_put_repr(j_base *b, j_buffer *out, j_value v);
enum { J_FLOAT_TEXT = 64 };
void sl_j_float_text(double x, char out[J_FLOAT_TEXT]); // repr() of a float
int sl_j_parse_float(const char *s, size_t n, double *out);
int sl_j_parse_int(const char *s, size_t n, int base, int64_t *out); // 0: not an integer; -1: too large
typedef struct j_json {
    int indent; // -1: one line
    const j_string *indent_text, *item_separator, *key_separator;
    int ascii, sort;
} j_json;
void sl_j_put_json(j_base *b, j_buffer *out, j_value v, const j_json *o);
const j_string *sl_j_percent(j_base *b, const j_string *format, j_value args);      // format % args
const j_string *sl_j_format(j_base *b, const j_string *format, const j_args *args); // format.format(args)
const j_string *sl_j_strftime(j_base *b, const j_string *format, time_t now);

// ---- jinja_lex.c ----

typedef enum {
    T_END,
    T_DATA,
    T_VARIABLE_BEGIN,
    T_VARIABLE_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,
    T_STRING,
    T_INT,
    T_FLOAT,
    T_OPERATOR
} j_token_type;

typedef struct j_token {
    j_token_type type;
    int line;
    const char *s; // of the name, operator or text
    size_t n;
    j_value value; // of a string or number
} j_token;

j_token *sl_j_lex(j_base *b, const char *text, size_t n); // ended by T_END

// ---- jinja_parse.c: the tree ----

typedef enum {
    // expressions
    N_CONST,
    N_NAME,
    N_LIST,
    N_TUPLE,
    N_DICT,
    N_ATTRIBUTE,
    N_ITEM,
    N_SLICE,
    N_CALL,
    N_FILTER,
    N_TEST,
    N_NOT,
    N_NEGATIVE,
    N_POSITIVE,
    N_AND,
    N_OR,
    N_BINARY,
    N_COMPARE,
    N_OPERAND,
    N_CONCAT,
    N_CONDITION,
    N_ATTRIBUTE_OF_NAMESPACE, // the target of an assignment
    // statements
    N_TEXT,
    N_PRINT,
    N_IF,
    N_FOR,
    N_SET,
    N_SET_BLOCK,
    N_MACRO,
    N_CALL_BLOCK,
    N_FILTER_BLOCK,
    N_WITH,
    N_GENERATION,
    N_BREAK,
    N_CONTINUE,
    N_PAIR // of a dict, keyword, parameter, or a name of `with`
} j_kind;

typedef enum { J_ADD, J_SUB, J_MUL, J_DIV, J_FLOOR_DIV, J_MOD, J_POW, J_EQ, J_NE, J_LT, J_LE, J_GT, J_GE, J_IN, J_NOT_IN } j_op;

enum { J_READS_CALLER = 1, J_READS_KWARGS = 2, J_READS_VARARGS = 4 };

struct j_node {
    j_kind kind;
    int line;
    j_op op;
    int flags;            // N_MACRO, N_CALL_BLOCK: J_READS_...; N_FOR: 1: recursive
    const j_string *name; // of a name, attribute, filter, test, macro, keyword, parameter
    j_value value;        // N_CONST, N_TEXT
    j_node *a, *b, *c, *d;
    j_node *list, *list2; // linked by next
    j_node *next;
};

typedef struct j_tree {
    j_node *body;
    j_list names; // that expressions read
} j_tree;

void sl_j_parse(j_base *b, const char *text, size_t n, j_tree *out);

// ---- the run ----

struct j_scope {
    j_scope *parent;
    struct j_variable *variables;
};

struct j_macro {
    const j_node *node; // N_MACRO or N_CALL_BLOCK
    j_scope *scope;     // where it was defined
};

struct j_loop {
    j_value source; // an iterator
    j_list items;   // those taken from the source that the loop's condition admits
    size_t at;      // of the present one
    int depth;
    int has_changed; // loop.changed was called with `last`
    j_value last;
    const j_node *node; // N_FOR
    j_scope *scope;     // around the loop
};

struct j_run {
    j_base base;
    j_scope *scope;
    j_buffer *out;
    time_t now;
};

// The arguments of a call. keys: [n_keys] names of keyword arguments.
struct j_args {
    j_value *items;
    size_t n;
    const j_string **names;
    j_value *values;
    size_t n_names;
};

// Distributes arguments to parameters: names is a list like "width first blank". Fills out[]: [number of names], J_UNDEFINED
// with why NULL where an argument is not given. Returns how many are given. Fails where an argument has no parameter.
int sl_j_take_args(j_base *b, const char *what, const j_args *args, const char *names, j_value *out);
static inline int sl_j_given(j_value v) {
    return v.type != J_UNDEFINED || v.why != NULL;
}
const j_string *sl_j_string_arg(j_base *b, const char *what, j_value v); // fails if v is not a string
int64_t sl_j_int_arg(j_base *b, const char *what, j_value v);

// ---- jinja_methods.c ----

// The attribute of a value that is not an element: a method, or an undefined value that names what the sandbox forbids.
// Returns 0 if the type has no such attribute.
int sl_j_attribute(j_run *r, j_value v, const char *name, size_t n, j_value *out);
j_value sl_j_call_method(j_run *r, const j_method *m, const j_args *args);

// ---- jinja_filters.c and jinja_tests.c ----

j_value sl_j_filter(j_run *r, const j_string *name, j_value v, const j_args *args);
int sl_j_test(j_run *r, const j_string *name, j_value v, const j_args *args);

// ---- jinja_eval.c ----

j_value sl_j_eval(j_run *r, const j_node *n);
void sl_j_eval_args(j_run *r, const j_node *n, j_args *out);
j_value sl_j_get_attribute(j_run *r, j_value v, const j_string *name); // v.name
j_value sl_j_get_item(j_run *r, j_value v, j_value key);               // v[key]
j_value sl_j_call(j_run *r, j_value f, const j_args *args);
j_value sl_j_add(j_base *b, j_value x, j_value y);

// ---- jinja_run.c ----

void sl_j_exec(j_run *r, const j_node *body);
const j_value *sl_j_lookup(const j_scope *scope, const j_string *name); // NULL: no such variable
void sl_j_assign(j_run *r, j_scope *scope, const j_string *name, j_value v);
j_scope *sl_j_scope_new(j_run *r, j_scope *parent);
j_value sl_j_call_macro(j_run *r, const j_macro *m, const j_args *args);
int sl_j_loop_has(j_run *r, j_loop *loop, size_t n);                // takes elements until the loop has n; 0: it has fewer
j_value sl_j_call_loop(j_run *r, j_loop *loop, const j_args *args); // loop(...) of a recursive loop
int sl_j_function_id(const j_string *name);                         // of a function of the language; -1: none
j_value sl_j_call_function(j_run *r, int id, const j_args *args);
const char *sl_j_function_name(int id);

#endif
