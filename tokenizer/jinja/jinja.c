// tokenizer/jinja/jinja.c - parses and renders templates: sets up the memory of a parse or a run, and turns its error into an
// sl_error.
#include "tokenizer/jinja/jinja.h"
#include "tokenizer/jinja/jinja_internal.h"

#include <stdlib.h>
#include <string.h>

struct sl_jinja {
    char *name;
    sl_text text;
    j_block *blocks; // the memory of the tree
    j_tree tree;
};

enum {
    MOST_PARSE_BYTES = 256 << 20,
    MOST_PARSE_STEPS = 20000000,
    MOST_PARSE_DEPTH = 150,
    MOST_RUN_BYTES = 1 << 30,
    MOST_RUN_STEPS = 200000000,
    MOST_RUN_DEPTH = 1200
};

static int report(const j_base *b, const char *name, sl_error *err) {
    return sl_fail(err, b->code, "%.200s: line %d: %s", name, b->line, b->text);
}

static int parse(sl_jinja *t, const char *text, size_t n, sl_error *err) {
    j_base b = {.most_bytes = MOST_PARSE_BYTES, .most_steps = MOST_PARSE_STEPS, .most_depth = MOST_PARSE_DEPTH, .line = 1};
    int rc = 0;
    if (setjmp(b.out))
        rc = report(&b, t->name, err);
    else
        sl_j_parse(&b, text, n, &t->tree);
    t->blocks = b.blocks;
    return rc;
}

int sl_jinja_parse(const char *name, const char *text, size_t n, sl_jinja **out, sl_error *err) {
    sl_jinja *t = calloc(1, sizeof *t);
    if (!t || !(t->name = strdup(name))) {
        free(t);
        return sl_fail(err, SL_ERR_MEMORY, "%.200s: out of memory", name);
    }
    int rc = sl_text_append(&t->text, text, n, err);
    if (!rc) rc = parse(t, text, n, err);
    if (rc) {
        sl_jinja_free(t);
        return rc;
    }
    *out = t;
    return 0;
}

void sl_jinja_free(sl_jinja *t) {
    if (!t) return;
    sl_j_free_all(t->blocks);
    sl_text_free(&t->text);
    free(t->name);
    free(t);
}

const char *sl_jinja_text(const sl_jinja *t, size_t *n) {
    *n = t->text.n;
    return t->text.data;
}

int sl_jinja_reads(const sl_jinja *t, const char *name) {
    for (size_t i = 0; i < t->tree.names.n; i++)
        if (sl_j_equals(t->tree.names.items[i].s, name)) return 1;
    return 0;
}

// ---- rendering ----

static void set_variables(j_run *r, const json_t *object, int mark) {
    const char *name;
    size_t n;
    json_t *value;
    json_object_keylen_foreach((json_t *)object, name, n, value)
        sl_j_assign(r, r->scope, sl_j_string(&r->base, name, n), sl_j_from_json(&r->base, value, mark));
}

static void run(j_run *r, const sl_jinja *t, const sl_jinja_input *in, j_buffer *out) {
    r->scope = sl_j_scope_new(r, NULL);
    r->out = out;
    if (in->plain) set_variables(r, in->plain, 0);
    if (in->marked) set_variables(r, in->marked, 1);
    sl_j_exec(r, t->tree.body);
}

static int copy_output(const j_buffer *text, const char *name, sl_jinja_output *out, sl_error *err) {
    int rc = sl_text_append(&out->text, text->s, text->n, err);
    if (rc || !text->mark) return rc;
    out->marks = malloc(text->n + 1);
    if (!out->marks) return sl_fail(err, SL_ERR_MEMORY, "%.200s: out of memory", name);
    memcpy(out->marks, text->mark, text->n);
    return 0;
}

static int render(j_run *r, const sl_jinja *t, const sl_jinja_input *in, sl_jinja_output *out, sl_error *err) {
    j_buffer text = {0}; // not read after a longjmp
    if (setjmp(r->base.out)) return report(&r->base, t->name, err);
    run(r, t, in, &text);
    return copy_output(&text, t->name, out, err);
}

int sl_jinja_render(const sl_jinja *t, const sl_jinja_input *in, sl_jinja_output *out, sl_error *err) {
    j_run r = {.now = in->now};
    r.base.most_bytes = in->limits.most_bytes ? in->limits.most_bytes : MOST_RUN_BYTES;
    r.base.most_steps = in->limits.most_steps ? in->limits.most_steps : MOST_RUN_STEPS;
    r.base.most_depth = MOST_RUN_DEPTH;
    r.base.line = 1;
    int rc = render(&r, t, in, out, err);
    sl_j_free_all(r.base.blocks);
    return rc;
}

void sl_jinja_output_free(sl_jinja_output *out) {
    sl_text_free(&out->text);
    free(out->marks);
    *out = (sl_jinja_output){0};
}
