// tokenizer/jinja/jinja_parse.c - the tree of a template. The grammar and its order of operators are those of Jinja 3.1.
#include "tokenizer/jinja/jinja_internal.h"

#include <stdio.h>
#include <string.h>

typedef struct parser {
    j_base *b;
    const j_token *at;
    int reads;   // J_READS_...: special names that the macro around reads
    int n_loops; // around the statement, in this macro
    j_list names;
} parser;

// ---- tokens ----

static _Noreturn void unexpected(parser *p, const char *expected) {
    const j_token *t = p->at;
    p->b->line = t->line;
    if (t->type == T_END) sl_j_fail(p->b, SL_ERR_FORMAT, "the template ends, expected %s", expected);
    if (t->type == T_DATA) sl_j_fail(p->b, SL_ERR_FORMAT, "a text, expected %s", expected);
    sl_j_fail(p->b, SL_ERR_FORMAT, "unexpected '%.*s', expected %s", (int)(t->n < 40 ? t->n : 40), t->s, expected);
}

static int is_name(const j_token *t, const char *name) {
    return t->type == T_NAME && t->n == strlen(name) && !memcmp(t->s, name, t->n);
}
static int is_operator(const j_token *t, const char *text) {
    return t->type == T_OPERATOR && t->n == strlen(text) && !memcmp(t->s, text, t->n);
}
static int skip_name(parser *p, const char *name) {
    int is = is_name(p->at, name);
    p->at += is;
    return is;
}
static int skip_operator(parser *p, const char *text) {
    int is = is_operator(p->at, text);
    p->at += is;
    return is;
}
static void expect_operator(parser *p, const char *text) {
    char quoted[16];
    snprintf(quoted, sizeof quoted, "'%s'", text);
    if (!skip_operator(p, text)) unexpected(p, quoted);
}
static const j_string *take_name(parser *p) {
    if (p->at->type != T_NAME) unexpected(p, "a name");
    const j_token *t = p->at++;
    return sl_j_string(p->b, t->s, t->n);
}

static j_node *node(parser *p, j_kind kind, int line) {
    j_node *n = sl_j_alloc(p->b, sizeof *n);
    *n = (j_node){.kind = kind, .line = line};
    sl_j_step(p->b, 1);
    return n;
}
static j_node *constant(parser *p, j_value v, int line) {
    j_node *n = node(p, N_CONST, line);
    n->value = v;
    return n;
}
static void append(j_node ***tail, j_node *n) {
    **tail = n;
    *tail = &n->next;
}

// ---- expressions, from the weakest operator to the strongest ----

static j_node *expression(parser *p);
static j_node *unary(parser *p, int with_filter);

// Expressions with commas between them make a tuple. until: a name that ends it, or NULL.
static int ends_tuple(const parser *p, const char *until) {
    return p->at->type == T_VARIABLE_END || p->at->type == T_BLOCK_END || is_operator(p->at, ")") ||
           (until && is_name(p->at, until));
}

static j_node *logical_or(parser *p);

static j_node *tuple(parser *p, int with_condition, const char *until, int in_brackets) {
    int line = p->at->line, is_tuple = 0;
    j_node *first = NULL, **tail = &first;
    while (!first || is_tuple) {
        if (ends_tuple(p, until)) break;
        append(&tail, with_condition ? expression(p) : logical_or(p));
        if (!skip_operator(p, ",")) break;
        is_tuple = 1;
    }
    if (!is_tuple && first) return first;
    if (!is_tuple && !in_brackets) unexpected(p, "an expression");
    j_node *n = node(p, N_TUPLE, line);
    n->list = first;
    return n;
}

// The arguments of a call, filter or test: list, list2 of keywords, b: *args, c: **kwargs.
static void call_arguments(parser *p, j_node *n) {
    j_node **tail = &n->list, **tail2 = &n->list2;
    expect_operator(p, "(");
    for (int first = 1; !is_operator(p->at, ")"); first = 0) {
        if (!first) {
            expect_operator(p, ",");
            if (is_operator(p->at, ")")) break;
        }
        if (skip_operator(p, "*")) {
            if (n->b || n->c) unexpected(p, "one *argument before keywords");
            n->b = expression(p);
        } else if (skip_operator(p, "**")) {
            if (n->c) unexpected(p, "one **argument");
            n->c = expression(p);
        } else if (p->at->type == T_NAME && is_operator(p->at + 1, "=")) {
            if (n->c) unexpected(p, "no argument after **");
            j_node *pair = node(p, N_PAIR, p->at->line);
            pair->name = take_name(p);
            p->at++;
            pair->a = expression(p);
            append(&tail2, pair);
        } else {
            if (n->b || n->c || n->list2) unexpected(p, "a keyword argument");
            append(&tail, expression(p));
        }
    }
    expect_operator(p, ")");
}

static j_node *subscribed(parser *p) {
    int line = p->at->line;
    j_node *start = is_operator(p->at, ":") ? NULL : expression(p);
    if (!skip_operator(p, ":")) return start;
    j_node *n = node(p, N_SLICE, line);
    n->b = start;
    if (!is_operator(p->at, ":") && !is_operator(p->at, "]") && !is_operator(p->at, ",")) n->c = expression(p);
    if (skip_operator(p, ":") && !is_operator(p->at, "]") && !is_operator(p->at, ",")) n->d = expression(p);
    return n;
}

static j_node *subscript(parser *p, j_node *value) {
    int line = p->at->line;
    if (skip_operator(p, ".")) {
        j_node *n = node(p, p->at->type == T_INT ? N_ITEM : N_ATTRIBUTE, line);
        n->a = value;
        if (p->at->type == T_INT)
            n->b = constant(p, p->at++->value, line);
        else
            n->name = take_name(p);
        return n;
    }
    expect_operator(p, "[");
    j_node *first = NULL, **tail = &first;
    while (!is_operator(p->at, "]")) {
        if (first) expect_operator(p, ",");
        append(&tail, subscribed(p));
    }
    expect_operator(p, "]");
    if (first && !first->next && first->kind == N_SLICE) {
        first->a = value;
        return first;
    }
    j_node *n = node(p, N_ITEM, line);
    n->a = value;
    n->b = first;
    if (!first || first->next) {
        n->b = node(p, N_TUPLE, line);
        n->b->list = first;
    }
    return n;
}

static j_node *call(parser *p, j_node *function) {
    j_node *n = node(p, N_CALL, p->at->line);
    n->a = function;
    call_arguments(p, n);
    return n;
}

static j_node *postfix(parser *p, j_node *n) {
    for (;;) {
        if (is_operator(p->at, ".") || is_operator(p->at, "["))
            n = subscript(p, n);
        else if (is_operator(p->at, "("))
            n = call(p, n);
        else
            return n;
    }
}

static const j_string *dotted_name(parser *p) {
    const j_string *name = take_name(p);
    if (is_operator(p->at, ".")) unexpected(p, "the end of the name of a filter or test");
    return name;
}

static j_node *filter(parser *p, j_node *value) { // at the name
    j_node *n = node(p, N_FILTER, p->at->line);
    n->a = value;
    n->name = dotted_name(p);
    if (is_operator(p->at, "(")) call_arguments(p, n);
    return n;
}

static j_node *primary(parser *p);

static j_node *test(parser *p, j_node *value) { // after `is`
    int line = p->at->line, negated = skip_name(p, "not");
    j_node *n = node(p, N_TEST, line);
    n->a = value;
    n->name = dotted_name(p);
    j_token_type t = p->at->type;
    if (is_operator(p->at, "(")) {
        call_arguments(p, n);
    } else if ((t == T_NAME || t == T_STRING || t == T_INT || t == T_FLOAT || is_operator(p->at, "[") ||
                is_operator(p->at, "{")) &&
               !is_name(p->at, "else") && !is_name(p->at, "or") && !is_name(p->at, "and")) {
        if (is_name(p->at, "is")) unexpected(p, "one test; tests with `is` cannot be chained");
        n->list = postfix(p, primary(p));
    }
    if (!negated) return n;
    j_node *not = node(p, N_NOT, line);
    not ->a = n;
    return not ;
}

static j_node *filters(parser *p, j_node *n) {
    for (;;) {
        if (skip_operator(p, "|"))
            n = filter(p, n);
        else if (skip_name(p, "is"))
            n = test(p, n);
        else if (is_operator(p->at, "("))
            n = call(p, n);
        else
            return n;
    }
}

static j_node *list_display(parser *p) {
    j_node *n = node(p, N_LIST, p->at->line), **tail = &n->list;
    expect_operator(p, "[");
    while (!is_operator(p->at, "]")) {
        if (n->list) expect_operator(p, ",");
        if (is_operator(p->at, "]")) break;
        append(&tail, expression(p));
    }
    expect_operator(p, "]");
    return n;
}

static j_node *dict_display(parser *p) {
    j_node *n = node(p, N_DICT, p->at->line), **tail = &n->list;
    expect_operator(p, "{");
    while (!is_operator(p->at, "}")) {
        if (n->list) expect_operator(p, ",");
        if (is_operator(p->at, "}")) break;
        j_node *pair = node(p, N_PAIR, p->at->line);
        pair->a = expression(p);
        expect_operator(p, ":");
        pair->b = expression(p);
        append(&tail, pair);
    }
    expect_operator(p, "}");
    return n;
}

static void note_name(parser *p, const j_string *name) {
    if (sl_j_equals(name, "caller")) p->reads |= J_READS_CALLER;
    if (sl_j_equals(name, "kwargs")) p->reads |= J_READS_KWARGS;
    if (sl_j_equals(name, "varargs")) p->reads |= J_READS_VARARGS;
    for (size_t i = 0; i < p->names.n; i++)
        if (sl_j_same(p->names.items[i].s, name)) return;
    sl_j_push(p->b, &p->names, sl_j_text(name));
}

static j_node *primary(parser *p) {
    const j_token *t = p->at;
    if (t->type == T_NAME) {
        p->at++;
        if (is_name(t, "true") || is_name(t, "True")) return constant(p, sl_j_bool(1), t->line);
        if (is_name(t, "false") || is_name(t, "False")) return constant(p, sl_j_bool(0), t->line);
        if (is_name(t, "none") || is_name(t, "None")) return constant(p, sl_j_none(), t->line);
        j_node *n = node(p, N_NAME, t->line);
        n->name = sl_j_string(p->b, t->s, t->n);
        note_name(p, n->name);
        return n;
    }
    if (t->type == T_STRING) { // neighbouring strings are one
        j_buffer text = {0};
        if (t[1].type != T_STRING) return p->at++, constant(p, t->value, t->line);
        for (; p->at->type == T_STRING; p->at++) sl_j_put_string(p->b, &text, p->at->value.s);
        return constant(p, sl_j_text(sl_j_buffer_string(p->b, &text)), t->line);
    }
    if (t->type == T_INT || t->type == T_FLOAT) return p->at++, constant(p, t->value, t->line);
    if (is_operator(t, "[")) return list_display(p);
    if (is_operator(t, "{")) return dict_display(p);
    if (!skip_operator(p, "(")) unexpected(p, "an expression");
    j_node *n = tuple(p, 1, NULL, 1);
    expect_operator(p, ")");
    return n;
}

static j_node *unary(parser *p, int with_filter) {
    int line = p->at->line;
    j_node *n;
    sl_j_enter(p->b);
    if (is_operator(p->at, "-") || is_operator(p->at, "+")) {
        n = node(p, is_operator(p->at, "-") ? N_NEGATIVE : N_POSITIVE, line);
        p->at++;
        n->a = unary(p, 0);
    } else {
        n = primary(p);
    }
    n = postfix(p, n);
    if (with_filter) n = filters(p, n);
    sl_j_leave(p->b);
    return n;
}

static j_node *binary(parser *p, j_kind kind, j_op op, j_node *left, j_node *right, int line) {
    j_node *n = node(p, kind, line);
    n->op = op;
    n->a = left;
    n->b = right;
    return n;
}

static j_node *power(parser *p) {
    int line = p->at->line;
    j_node *left = unary(p, 1);
    while (skip_operator(p, "**")) left = binary(p, N_BINARY, J_POW, left, unary(p, 1), line);
    return left;
}

static j_node *product(parser *p) {
    static const char *const texts[] = {"*", "//", "/", "%"};
    static const j_op ops[] = {J_MUL, J_FLOOR_DIV, J_DIV, J_MOD};
    int line = p->at->line;
    j_node *left = power(p);
    for (size_t i = 0; i < 4; i++)
        if (skip_operator(p, texts[i])) {
            left = binary(p, N_BINARY, ops[i], left, power(p), line);
            i = (size_t)-1;
        }
    return left;
}

static j_node *concatenation(parser *p) {
    int line = p->at->line;
    j_node *first = product(p);
    if (!is_operator(p->at, "~")) return first;
    j_node *n = node(p, N_CONCAT, line), **tail = &n->list;
    append(&tail, first);
    while (skip_operator(p, "~")) append(&tail, product(p));
    return n;
}

static j_node *sum(parser *p) {
    int line = p->at->line;
    j_node *left = concatenation(p);
    while (is_operator(p->at, "+") || is_operator(p->at, "-")) {
        j_op op = is_operator(p->at++, "+") ? J_ADD : J_SUB;
        left = binary(p, N_BINARY, op, left, concatenation(p), line);
    }
    return left;
}

static int comparison(parser *p, j_op *op) {
    static const char *const texts[] = {"==", "!=", "<", "<=", ">", ">="};
    static const j_op ops[] = {J_EQ, J_NE, J_LT, J_LE, J_GT, J_GE};
    for (size_t i = 0; i < 6; i++)
        if (skip_operator(p, texts[i])) return *op = ops[i], 1;
    if (skip_name(p, "in")) return *op = J_IN, 1;
    if (!is_name(p->at, "not") || !is_name(p->at + 1, "in")) return 0;
    p->at += 2;
    return *op = J_NOT_IN, 1;
}

static j_node *compare(parser *p) {
    int line = p->at->line;
    j_node *first = sum(p), *n = NULL, **tail = NULL;
    for (j_op op; comparison(p, &op);) {
        if (!n) {
            n = node(p, N_COMPARE, line);
            n->a = first;
            tail = &n->list;
        }
        j_node *operand = node(p, N_OPERAND, p->at->line);
        operand->op = op;
        operand->a = sum(p);
        append(&tail, operand);
    }
    return n ? n : first;
}

static j_node *logical_not(parser *p) {
    int line = p->at->line;
    if (!skip_name(p, "not")) return compare(p);
    j_node *n = node(p, N_NOT, line);
    sl_j_enter(p->b);
    n->a = logical_not(p);
    sl_j_leave(p->b);
    return n;
}

static j_node *logical_and(parser *p) {
    int line = p->at->line;
    j_node *left = logical_not(p);
    while (skip_name(p, "and")) left = binary(p, N_AND, J_ADD, left, logical_not(p), line);
    return left;
}

static j_node *logical_or(parser *p) {
    int line = p->at->line;
    j_node *left = logical_and(p);
    while (skip_name(p, "or")) left = binary(p, N_OR, J_ADD, left, logical_and(p), line);
    return left;
}

static j_node *expression(parser *p) {
    int line = p->at->line;
    sl_j_enter(p->b);
    j_node *left = logical_or(p);
    while (skip_name(p, "if")) {
        j_node *n = node(p, N_CONDITION, line);
        n->a = logical_or(p);
        n->b = left;
        if (skip_name(p, "else")) n->c = expression(p);
        left = n;
    }
    sl_j_leave(p->b);
    return left;
}

// ---- targets of assignments ----

static j_node *target_name(parser *p, int with_namespace) {
    int line = p->at->line;
    if (skip_operator(p, "(")) {
        j_node *n = node(p, N_TUPLE, line), **tail = &n->list;
        sl_j_enter(p->b);
        while (!is_operator(p->at, ")")) {
            append(&tail, target_name(p, with_namespace));
            if (!skip_operator(p, ",")) break;
        }
        expect_operator(p, ")");
        sl_j_leave(p->b);
        return n->list && !n->list->next && !is_operator(p->at - 2, ",") ? n->list : n;
    }
    j_node *n = node(p, N_NAME, line);
    n->name = take_name(p);
    static const char *const constants[] = {"true", "false", "none", "True", "False", "None"};
    for (size_t i = 0; i < 6; i++)
        if (sl_j_equals(n->name, constants[i])) unexpected(p, "a name that can be assigned to");
    if (with_namespace && skip_operator(p, ".")) {
        n->kind = N_ATTRIBUTE_OF_NAMESPACE;
        n->a = node(p, N_CONST, line);
        n->a->value = sl_j_text(take_name(p));
    }
    return n;
}

static j_node *target(parser *p, int with_namespace) {
    int line = p->at->line;
    j_node *first = target_name(p, with_namespace);
    if (!is_operator(p->at, ",")) return first;
    j_node *n = node(p, N_TUPLE, line), **tail = &n->list;
    append(&tail, first);
    while (skip_operator(p, ",") && (p->at->type == T_NAME || is_operator(p->at, "(")) && !is_name(p->at, "in"))
        append(&tail, target_name(p, with_namespace));
    return n;
}

// ---- statements ----

static j_node *statements(parser *p, const char *const *ends);

// The statements up to one of the names. The tag ends at the parser's place, after the name. Returns the name's index in *end.
static j_node *body(parser *p, const char *const *ends, int *end) {
    skip_operator(p, ":");
    if (p->at->type != T_BLOCK_END) unexpected(p, "the end of the tag");
    p->at++;
    j_node *list = statements(p, ends);
    if (p->at->type == T_END) {
        char expected[80];
        snprintf(expected, sizeof expected, "'%s'", ends[0]);
        unexpected(p, expected);
    }
    for (*end = 0; !is_name(p->at, ends[*end]); ++*end) {
    }
    p->at++;
    return list;
}

static j_node *body_until(parser *p, const char *end) {
    const char *const ends[] = {end, NULL};
    int which;
    return body(p, ends, &which);
}

static j_node *parse_if(parser *p, int line) {
    static const char *const ends[] = {"endif", "elif", "else", NULL};
    j_node *first = node(p, N_IF, line), *n = first;
    for (int end;;) {
        n->a = tuple(p, 0, NULL, 0);
        n->list = body(p, ends, &end);
        if (end == 2) first->list2 = body_until(p, "endif");
        if (end != 1) return first;
        n->b = node(p, N_IF, p->at->line); // the chain of elif
        n = n->b;
    }
}

static j_node *parse_for(parser *p, int line) {
    static const char *const ends[] = {"endfor", "else", NULL};
    j_node *n = node(p, N_FOR, line);
    int end;
    n->a = target(p, 0);
    if (!skip_name(p, "in")) unexpected(p, "'in'");
    n->b = tuple(p, 0, "recursive", 0);
    if (skip_name(p, "if")) n->c = expression(p);
    n->flags = skip_name(p, "recursive");
    p->n_loops++;
    n->list = body(p, ends, &end);
    p->n_loops--;
    if (end == 1) n->list2 = body_until(p, "endfor");
    return n;
}

static j_node *parse_set(parser *p, int line) {
    j_node *to = target(p, 1);
    j_node *n = node(p, N_SET, line);
    n->a = to;
    if (skip_operator(p, "=")) {
        n->b = tuple(p, 1, NULL, 0);
        return n;
    }
    n->kind = N_SET_BLOCK;
    while (skip_operator(p, "|")) n->b = filter(p, n->b);
    n->list = body_until(p, "endset");
    return n;
}

static void signature(parser *p, j_node *n) {
    j_node **tail = &n->list2;
    expect_operator(p, "(");
    while (!is_operator(p->at, ")")) {
        if (n->list2) expect_operator(p, ",");
        j_node *parameter = node(p, N_PAIR, p->at->line);
        parameter->name = take_name(p);
        if (skip_operator(p, "="))
            parameter->a = expression(p);
        else if (n->c)
            unexpected(p, "a default of this parameter, because the one before has a default");
        if (parameter->a) n->c = parameter;
        append(&tail, parameter);
    }
    expect_operator(p, ")");
}

// The body of a macro or call block: notes which special names it reads.
static void macro_body(parser *p, j_node *n, const char *end) {
    int outer = p->reads, loops = p->n_loops;
    p->reads = 0;
    p->n_loops = 0;
    n->list = body_until(p, end);
    n->flags = p->reads;
    p->reads |= outer;
    p->n_loops = loops;
}

static j_node *parse_macro(parser *p, int line) {
    j_node *n = node(p, N_MACRO, line);
    n->name = take_name(p);
    signature(p, n);
    macro_body(p, n, "endmacro");
    return n;
}

static j_node *parse_call(parser *p, int line) {
    j_node *n = node(p, N_CALL_BLOCK, line);
    if (is_operator(p->at, "(")) signature(p, n);
    n->a = expression(p);
    if (n->a->kind != N_CALL) unexpected(p, "a call");
    macro_body(p, n, "endcall");
    return n;
}

static j_node *parse_filter_block(parser *p, int line) {
    j_node *n = node(p, N_FILTER_BLOCK, line);
    n->b = filter(p, NULL);
    while (skip_operator(p, "|")) n->b = filter(p, n->b);
    n->list = body_until(p, "endfilter");
    return n;
}

static j_node *parse_with(parser *p, int line) {
    j_node *n = node(p, N_WITH, line), **tail = &n->list2;
    while (p->at->type != T_BLOCK_END) {
        if (n->list2) expect_operator(p, ",");
        j_node *pair = node(p, N_PAIR, p->at->line);
        pair->a = target_name(p, 0);
        expect_operator(p, "=");
        pair->b = expression(p);
        append(&tail, pair);
    }
    n->list = body_until(p, "endwith");
    return n;
}

static j_node *print_node(parser *p, j_node *value, int line) {
    j_node *n = node(p, N_PRINT, line);
    n->a = value;
    return n;
}

static j_node *statement(parser *p) {
    int line = p->at->line;
    static const char *const unsupported[] = {"block", "extends", "include", "import", "from", "autoescape"};
    if (p->at->type != T_NAME) unexpected(p, "the name of a tag");
    if (skip_name(p, "if")) return parse_if(p, line);
    if (skip_name(p, "for")) return parse_for(p, line);
    if (skip_name(p, "set")) return parse_set(p, line);
    if (skip_name(p, "macro")) return parse_macro(p, line);
    if (skip_name(p, "call")) return parse_call(p, line);
    if (skip_name(p, "filter")) return parse_filter_block(p, line);
    if (skip_name(p, "with")) return parse_with(p, line);
    if (skip_name(p, "print")) return print_node(p, expression(p), line);
    if (skip_name(p, "generation")) {
        j_node *n = node(p, N_GENERATION, line);
        int loops = p->n_loops; // the block is a function in Python: a loop outside does not end in it
        p->n_loops = 0;
        n->list = body_until(p, "endgeneration");
        p->n_loops = loops;
        return n;
    }
    if (is_name(p->at, "break") || is_name(p->at, "continue")) {
        if (!p->n_loops) unexpected(p, "a loop around it");
        return node(p, is_name(p->at++, "break") ? N_BREAK : N_CONTINUE, line);
    }
    for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++)
        if (is_name(p->at, unsupported[i])) {
            p->b->line = line;
            sl_j_fail(p->b, SL_ERR_UNSUPPORTED, "the tag '%s' is not supported", unsupported[i]);
        }
    unexpected(p, "a known tag");
}

// Up to a tag that begins with one of the names; the parser is then at the name. ends NULL: to the end of the template.
static j_node *statements(parser *p, const char *const *ends) {
    j_node *first = NULL, **tail = &first;
    sl_j_enter(p->b);
    for (; p->at->type != T_END;) {
        const j_token *t = p->at++;
        if (t->type == T_DATA) {
            j_node *n = node(p, N_TEXT, t->line);
            n->value = sl_j_text(sl_j_string(p->b, t->s, t->n));
            append(&tail, n);
        } else if (t->type == T_VARIABLE_BEGIN) {
            append(&tail, print_node(p, tuple(p, 1, NULL, 0), t->line));
            if (p->at++->type != T_VARIABLE_END) p->at--, unexpected(p, "'}}'");
        } else {
            int is_end = 0;
            for (size_t i = 0; ends && ends[i]; i++) is_end |= is_name(p->at, ends[i]);
            if (is_end) break;
            append(&tail, statement(p));
            if (p->at++->type != T_BLOCK_END) p->at--, unexpected(p, "'%}'");
        }
    }
    sl_j_leave(p->b);
    return first;
}

void sl_j_parse(j_base *b, const char *text, size_t n, j_tree *out) {
    parser p = {.b = b};
    p.at = sl_j_lex(b, text, n);
    out->body = statements(&p, NULL);
    out->names = p.names;
}
