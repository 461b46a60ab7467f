// tokenizer/jinja/jinja_run.c - statements of templates: loops, assignments, macros; and the functions of the language.
//
// Python's Jinja decides at compile time in which frame a name lies. Here a name is looked up in the scopes around the
// statement, which gives the same values: each turn of a loop, each call of a macro and each block has a scope of its own, and
// an assignment writes to the innermost scope.
#include "tokenizer/jinja/jinja_internal.h"

#include <string.h>

typedef struct j_variable j_variable;
struct j_variable {
    const j_string *name;
    j_value value;
    j_variable *next;
};

typedef enum { GO_ON, BREAK, CONTINUE } flow;

// ---- scopes ----

j_scope *sl_j_scope_new(j_run *r, j_scope *parent) {
    j_scope *s = sl_j_alloc(&r->base, sizeof *s);
    *s = (j_scope){.parent = parent};
    return s;
}

const j_value *sl_j_lookup(const j_scope *scope, const j_string *name) {
    for (; scope; scope = scope->parent)
        for (const j_variable *v = scope->variables; v; v = v->next)
            if (sl_j_same(v->name, name)) return &v->value;
    return NULL;
}

void sl_j_assign(j_run *r, j_scope *scope, const j_string *name, j_value value) {
    for (j_variable *v = scope->variables; v; v = v->next)
        if (sl_j_same(v->name, name)) {
            v->value = value;
            return;
        }
    j_variable *v = sl_j_alloc(&r->base, sizeof *v);
    *v = (j_variable){.name = name, .value = value, .next = scope->variables};
    scope->variables = v;
}

static void assign_in_namespace(j_run *r, const j_node *target, j_value value) {
    j_base *b = &r->base;
    const j_value *ns = sl_j_lookup(r->scope, target->name);
    const j_string *field = target->a->value.s;
    if (!ns || ns->type != J_NAMESPACE) sl_j_fail(b, SL_ERR_ARG, "cannot assign attribute on non-namespace object");
    if (field->s[0] == '_')
        sl_j_fail(b, SL_ERR_ARG, "the field '%.*s' of a namespace begins with an underscore", (int)field->n, field->s);
    sl_j_dict_set(b, ns->dict, target->a->value, value);
}

static void assign(j_run *r, const j_node *target, j_value value) {
    j_base *b = &r->base;
    size_t n = 0;
    if (target->kind == N_ATTRIBUTE_OF_NAMESPACE) {
        assign_in_namespace(r, target, value);
        return;
    }
    if (target->kind == N_NAME) {
        sl_j_assign(r, r->scope, target->name, value);
        return;
    }
    if (!sl_j_is_iterable(value)) sl_j_fail(b, SL_ERR_ARG, "cannot unpack non-iterable %s object", sl_j_type_name(value));
    j_list all = sl_j_elements(b, value);
    for (const j_node *t = target->list; t; t = t->next) n++;
    if (all.n != n)
        sl_j_fail(b, SL_ERR_ARG,
                  all.n < n ? "not enough values to unpack (expected %zu, got %zu)"
                            : "too many values to unpack (expected %zu, got %zu)",
                  n, all.n);
    n = 0;
    for (const j_node *t = target->list; t; t = t->next) assign(r, t, all.items[n++]);
}

// ---- blocks ----

static flow exec_list(j_run *r, const j_node *n);

// Runs a list in a new scope below `parent`.
static flow exec_inside(j_run *r, const j_node *list, j_scope *parent) {
    j_scope *outer = r->scope;
    r->scope = sl_j_scope_new(r, parent);
    flow f = exec_list(r, list);
    r->scope = outer;
    return f;
}

// The output of a list that runs in the current scope.
static j_value captured(j_run *r, const j_node *list) {
    j_buffer text = {0}, *outer = r->out;
    r->out = &text;
    exec_list(r, list);
    r->out = outer;
    return sl_j_text(sl_j_buffer_string(&r->base, &text));
}

// Applies the filters of a filter block or set block.
static j_value filtered(j_run *r, const j_node *filter, j_value v) {
    j_args args;
    if (!filter) return v;
    sl_j_enter(&r->base);
    v = filtered(r, filter->a, v);
    sl_j_eval_args(r, filter, &args);
    r->base.line = filter->line;
    v = sl_j_filter(r, filter->name, v, &args);
    sl_j_leave(&r->base);
    return v;
}

static j_value captured_and_filtered(j_run *r, const j_node *n) {
    j_scope *outer = r->scope;
    r->scope = sl_j_scope_new(r, outer);
    j_value v = filtered(r, n->b, captured(r, n->list));
    r->scope = outer;
    return v;
}

// ---- loops ----

int sl_j_loop_has(j_run *r, j_loop *loop, size_t n) {
    j_scope *outer = r->scope;
    j_value item;
    while (loop->items.n < n && sl_j_next(&r->base, loop->source, &item)) {
        int admitted = 1;
        if (loop->node->c) {
            r->scope = sl_j_scope_new(r, loop->scope);
            assign(r, loop->node->a, item);
            admitted = sl_j_true(&r->base, sl_j_eval(r, loop->node->c));
            r->scope = outer;
        }
        if (admitted) sl_j_push(&r->base, &loop->items, item);
    }
    return loop->items.n >= n;
}

static void run_loop(j_run *r, const j_node *n, j_value over, j_scope *scope, int depth) {
    static const j_string loop_name = {.s = "loop", .n = 4};
    j_base *b = &r->base;
    j_scope *outer = r->scope;
    int none_finished = 1; // Jinja's else runs also if break or continue ended every turn
    j_loop *loop = sl_j_alloc(b, sizeof *loop);
    *loop = (j_loop){.node = n, .scope = scope, .depth = depth};
    loop->source = over.type == J_ITERATOR ? over : sl_j_iterator(b, sl_j_elements(b, over));
    for (; sl_j_loop_has(r, loop, loop->at + 1); loop->at++) {
        r->scope = sl_j_scope_new(r, scope);
        assign(r, n->a, loop->items.items[loop->at]);
        sl_j_assign(r, r->scope, &loop_name, (j_value){.type = J_LOOP, .loop = loop});
        flow f = exec_list(r, n->list);
        r->scope = outer;
        if (f == BREAK) break;
        if (f == GO_ON) none_finished = 0;
    }
    if (none_finished && n->list2) exec_inside(r, n->list2, scope);
}

j_value sl_j_call_loop(j_run *r, j_loop *loop, const j_args *args) {
    j_base *b = &r->base;
    j_buffer text = {0}, *outer = r->out;
    j_value a[1];
    if (!loop->node->flags) sl_j_fail(b, SL_ERR_ARG, "The loop must have the 'recursive' marker to be called recursively.");
    sl_j_take_args(b, "loop", args, "iterable", a);
    sl_j_enter(b);
    r->out = &text;
    run_loop(r, loop->node, a[0], loop->scope, loop->depth + 1);
    r->out = outer;
    sl_j_leave(b);
    return sl_j_text(sl_j_buffer_string(b, &text));
}

// ---- macros ----

static const char *macro_name(const j_macro *m, char buf[80]) {
    const j_string *name = m->node->name;
    snprintf(buf, 80, "'%.*s'", name ? (int)(name->n < 70 ? name->n : 70) : 4, name ? name->s : "None");
    return buf;
}

// What the call gives to a parameter; NULL: nothing. *used: the keyword arguments that a parameter took.
static const j_value *argument(const j_args *args, size_t index, const j_string *name, unsigned char *used) {
    if (index < args->n) return &args->items[index];
    for (size_t k = 0; k < args->n_names; k++)
        if (sl_j_same(args->names[k], name)) {
            used[k] = 1;
            return &args->values[k];
        }
    return NULL;
}

static void bind_rest(j_run *r, const j_macro *m, const j_args *args, const unsigned char *used, size_t n_parameters,
                      int explicit_caller) {
    static const j_string caller = {.s = "caller", .n = 6}, kwargs = {.s = "kwargs", .n = 6},
                          varargs = {.s = "varargs", .n = 7};
    j_base *b = &r->base;
    char buf[80];
    j_value rest = sl_j_dict_new(b, J_DICT);
    int reads = m->node->flags, has_caller = 0;
    for (size_t k = 0; k < args->n_names; k++) {
        if (used[k]) continue;
        if ((reads & J_READS_CALLER) && !explicit_caller && sl_j_same(args->names[k], &caller)) {
            sl_j_assign(r, r->scope, &caller, args->values[k]);
            has_caller = args->values[k].type != J_NONE;
        } else if (reads & J_READS_KWARGS) {
            sl_j_dict_set(b, rest.dict, sl_j_text(args->names[k]), args->values[k]);
        } else {
            sl_j_fail(b, SL_ERR_ARG, "macro %s takes no keyword argument '%.*s'", macro_name(m, buf), (int)args->names[k]->n,
                      args->names[k]->s);
        }
    }
    if ((reads & J_READS_CALLER) && !explicit_caller && !has_caller)
        sl_j_assign(r, r->scope, &caller, sl_j_undefined(b, "No caller defined"));
    if (reads & J_READS_KWARGS) sl_j_assign(r, r->scope, &kwargs, rest);
    size_t n_more = args->n > n_parameters ? args->n - n_parameters : 0;
    if (reads & J_READS_VARARGS)
        sl_j_assign(r, r->scope, &varargs, sl_j_list_new(b, J_TUPLE, n_more ? args->items + n_parameters : NULL, n_more));
    else if (n_more)
        sl_j_fail(b, SL_ERR_ARG, "macro %s takes not more than %zu argument(s)", macro_name(m, buf), n_parameters);
}

j_value sl_j_call_macro(j_run *r, const j_macro *m, const j_args *args) {
    j_base *b = &r->base;
    j_scope *outer = r->scope;
    size_t n = 0;
    int explicit_caller = 0, line = b->line;
    unsigned char *used = sl_j_alloc(b, args->n_names + 1);
    memset(used, 0, args->n_names + 1);
    sl_j_enter(b);
    r->scope = sl_j_scope_new(r, m->scope);
    for (const j_node *p = m->node->list2; p; p = p->next) {
        const j_value *given = argument(args, n++, p->name, used);
        explicit_caller |= sl_j_equals(p->name, "caller");
        if (given) sl_j_assign(r, r->scope, p->name, *given);
    }
    bind_rest(r, m, args, used, n, explicit_caller);
    n = 0;
    memset(used, 0, args->n_names + 1);
    for (const j_node *p = m->node->list2; p; p = p->next) { // defaults may read the parameters before them
        if (argument(args, n++, p->name, used)) continue;
        j_value v =
            p->a ? sl_j_eval(r, p->a) : sl_j_undefined(b, "parameter '%.*s' was not provided", (int)p->name->n, p->name->s);
        sl_j_assign(r, r->scope, p->name, v);
    }
    j_value text = captured(r, m->node->list);
    r->scope = outer;
    b->line = line;
    sl_j_leave(b);
    return text;
}

static j_value macro_value(j_run *r, const j_node *n) {
    j_macro *m = sl_j_alloc(&r->base, sizeof *m);
    *m = (j_macro){.node = n, .scope = r->scope};
    return (j_value){.type = J_MACRO, .macro = m};
}

static void exec_call_block(j_run *r, const j_node *n) {
    static const j_string caller = {.s = "caller", .n = 6};
    j_base *b = &r->base;
    j_args args;
    j_value f = sl_j_eval(r, n->a->a);
    sl_j_eval_args(r, n->a, &args);
    args.names = sl_j_grow(b, args.names, args.n_names * sizeof *args.names, (args.n_names + 1) * sizeof *args.names);
    args.values = sl_j_grow(b, args.values, args.n_names * sizeof *args.values, (args.n_names + 1) * sizeof *args.values);
    args.names[args.n_names] = &caller;
    args.values[args.n_names++] = macro_value(r, n);
    b->line = n->line;
    sl_j_put_string(b, r->out, sl_j_str(b, sl_j_call(r, f, &args)));
}

// ---- statements ----

static flow exec_if(j_run *r, const j_node *first) {
    for (const j_node *n = first; n; n = n->b)
        if (sl_j_true(&r->base, sl_j_eval(r, n->a))) return exec_list(r, n->list);
    return exec_list(r, first->list2);
}

static void exec_with(j_run *r, const j_node *n) {
    j_scope *outer = r->scope, *inner = sl_j_scope_new(r, outer);
    for (const j_node *p = n->list2; p; p = p->next) {
        j_value v = sl_j_eval(r, p->b);
        r->scope = inner;
        assign(r, p->a, v);
        r->scope = outer;
    }
    r->scope = inner;
    exec_list(r, n->list);
    r->scope = outer;
}

static flow exec(j_run *r, const j_node *n) {
    j_base *b = &r->base;
    flow f = GO_ON;
    sl_j_step(b, 1);
    b->line = n->line;
    switch (n->kind) {
    case N_TEXT:
        sl_j_put_string(b, r->out, n->value.s);
        break;
    case N_PRINT:
        sl_j_put_string(b, r->out, sl_j_str(b, sl_j_eval(r, n->a)));
        break;
    case N_IF:
        return exec_if(r, n);
    case N_FOR:
        run_loop(r, n, sl_j_eval(r, n->b), r->scope, 0);
        break;
    case N_SET:
        assign(r, n->a, sl_j_eval(r, n->b));
        break;
    case N_SET_BLOCK:
        assign(r, n->a, captured_and_filtered(r, n));
        break;
    case N_MACRO:
        sl_j_assign(r, r->scope, n->name, macro_value(r, n));
        break;
    case N_CALL_BLOCK:
        exec_call_block(r, n);
        break;
    case N_FILTER_BLOCK:
        sl_j_put_string(b, r->out, sl_j_str(b, captured_and_filtered(r, n)));
        break;
    case N_WITH:
        exec_with(r, n);
        break;
    case N_GENERATION:
        exec_inside(r, n->list, r->scope);
        break;
    default:
        f = n->kind == N_BREAK ? BREAK : CONTINUE;
    }
    return f;
}

static flow exec_list(j_run *r, const j_node *n) {
    flow f = GO_ON;
    sl_j_enter(&r->base);
    for (; n && f == GO_ON; n = n->next) f = exec(r, n);
    sl_j_leave(&r->base);
    return f;
}

void sl_j_exec(j_run *r, const j_node *body) {
    exec_list(r, body);
}

// ---- functions of the language ----

typedef enum { F_RAISE, F_STRFTIME, F_NAMESPACE, F_RANGE, F_DICT, F_CYCLER, F_JOINER, F_LIPSUM, N_FUNCTIONS } function_id;
static const char *const functions[N_FUNCTIONS] = {"raise_exception", "strftime_now", "namespace", "range", "dict",
                                                   "cycler",          "joiner",       "lipsum"};

int sl_j_function_id(const j_string *name) {
    for (int i = 0; i < N_FUNCTIONS; i++)
        if (sl_j_equals(name, functions[i])) return i;
    return -1;
}

static j_value f_range(j_base *b, const j_args *args) {
    int64_t v[3] = {0, 0, 1};
    if (!args->n || args->n > 3 || args->n_names) sl_j_fail(b, SL_ERR_ARG, "range expected 1 to 3 arguments");
    for (size_t i = 0; i < args->n; i++) v[args->n == 1 ? 1 : i] = sl_j_int_arg(b, "range", args->items[i]);
    if (!v[2]) sl_j_fail(b, SL_ERR_ARG, "range() arg 3 must not be zero");
    long double n =
        v[2] > 0 ? ((long double)v[1] - v[0] + v[2] - 1) / v[2] : ((long double)v[0] - v[1] - v[2] - 1) / -(long double)v[2];
    if (n >= 100001) sl_j_fail(b, SL_ERR_ARG, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).");
    j_range *made = sl_j_alloc(b, sizeof *made);
    *made = (j_range){.start = v[0], .stop = v[1], .step = v[2], .n = n > 0 ? (size_t)n : 0};
    return (j_value){.type = J_RANGE, .range = made};
}

static j_value f_dict(j_base *b, const j_args *args, j_type type) {
    j_value made = sl_j_dict_new(b, type);
    if (args->n > 1) sl_j_fail(b, SL_ERR_ARG, "dict expected at most 1 argument, got %zu", args->n);
    if (args->n && args->items[0].type == J_DICT) {
        const j_dict *d = args->items[0].dict;
        for (size_t i = 0; i < d->n; i++) sl_j_dict_set(b, made.dict, d->pairs[i].key, d->pairs[i].value);
    } else if (args->n) {
        j_list all = sl_j_elements(b, args->items[0]);
        for (size_t i = 0; i < all.n; i++) {
            j_list pair = sl_j_elements(b, all.items[i]);
            if (pair.n != 2)
                sl_j_fail(b, SL_ERR_ARG, "dictionary update sequence element #%zu has length %zu; 2 is required", i, pair.n);
            sl_j_dict_set(b, made.dict, pair.items[0], pair.items[1]);
        }
    }
    for (size_t i = 0; i < args->n_names; i++) sl_j_dict_set(b, made.dict, sl_j_text(args->names[i]), args->values[i]);
    for (size_t i = 0; type == J_NAMESPACE && i < made.dict->n; i++) {
        const j_value *key = &made.dict->pairs[i].key;
        if (key->type == J_STRING && key->s->n && key->s->s[0] == '_')
            sl_j_fail(b, SL_ERR_ARG, "the field '%.*s' of a namespace begins with an underscore", (int)key->s->n, key->s->s);
    }
    return made;
}

static j_value f_cycler(j_base *b, const j_args *args, int is_joiner) {
    j_cycler *c = sl_j_alloc(b, sizeof *c);
    j_value a[1];
    *c = (j_cycler){0};
    if (is_joiner) {
        sl_j_take_args(b, "joiner", args, "sep", a);
        sl_j_push(b, &c->items, sl_j_given(a[0]) ? a[0] : sl_j_text(sl_j_literal(b, ", ")));
        return (j_value){.type = J_JOINER, .cycler = c};
    }
    if (!args->n || args->n_names) sl_j_fail(b, SL_ERR_ARG, "at least one item has to be provided");
    for (size_t i = 0; i < args->n; i++) sl_j_push(b, &c->items, args->items[i]);
    return (j_value){.type = J_CYCLER, .cycler = c};
}

j_value sl_j_call_function(j_run *r, int id, const j_args *args) {
    j_base *b = &r->base;
    j_value a[1];
    const j_string *text;
    switch ((function_id)id) {
    case F_RAISE:
        sl_j_take_args(b, functions[id], args, "message", a);
        text = sl_j_given(a[0]) ? sl_j_str(b, a[0]) : sl_j_literal(b, "");
        sl_j_fail(b, SL_ERR_ARG, "the template refuses these messages: %.*s", (int)(text->n < 500 ? text->n : 500), text->s);
    case F_STRFTIME:
        sl_j_take_args(b, functions[id], args, "format", a);
        return sl_j_text(sl_j_strftime(b, sl_j_string_arg(b, functions[id], a[0]), r->now));
    case F_RANGE:
        return f_range(b, args);
    case F_NAMESPACE:
    case F_DICT:
        return f_dict(b, args, id == F_DICT ? J_DICT : J_NAMESPACE);
    case F_CYCLER:
    case F_JOINER:
        return f_cycler(b, args, id == F_JOINER);
    default:
        sl_j_fail(b, SL_ERR_UNSUPPORTED, "the function %s is not supported", functions[id]);
    }
}
