// cli/bench/attn_states.c - see attn_states.h.
#include "cli/bench/attn_states.h"
#include "base/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int read_header(cli_attn_states *s, const char *dir, sl_error *err) {
    char path[1024];
    const char *source = NULL;
    json_t *root = NULL;
    int rc = sl_json_load(dir, "states.json", 0, &root, err);
    snprintf(path, sizeof path, "%s/states.json", dir);
    sl_json_file f = {path, root};
    s->geom.n_layers = 1;
    if (!rc) rc = sl_json_int(&f, "n_heads", 1, 1024, NULL, &s->geom.n_heads, err);
    if (!rc) rc = sl_json_int(&f, "n_kv_heads", 1, s->geom.n_heads, NULL, &s->geom.n_kv_heads, err);
    if (!rc) rc = sl_json_int(&f, "head_dim", 16, 256, NULL, &s->geom.head_dim, err);
    if (!rc) rc = sl_json_int(&f, "n_rows", 1, 1 << 24, NULL, &s->n_rows, err);
    if (!rc) rc = sl_json_int(&f, "n_steps", 1, s->n_rows, NULL, &s->n_steps, err);
    if (!rc) rc = sl_json_string(&f, "source", &source, err);
    if (!rc) snprintf(s->source, sizeof s->source, "%s", source ? source : dir);
    if (!rc && s->geom.n_heads % s->geom.n_kv_heads)
        rc = sl_fail(err, SL_ERR_FORMAT, "%s: found n_heads %d, expected a multiple of n_kv_heads, %d", path, s->geom.n_heads,
                     s->geom.n_kv_heads);
    json_decref(root);
    return rc;
}

// Reads a file of exactly n bf16 numbers.
static int read_numbers(const char *dir, const char *name, size_t n, bf16 **out, sl_error *err) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    *out = malloc(n * sizeof **out);
    if (!*out) return sl_fail(err, SL_ERR_MEMORY, "%s: %zu bytes: out of memory", path, n * sizeof **out);
    FILE *f = fopen(path, "rb");
    if (!f) return sl_fail(err, SL_ERR_IO, "cannot read %s: %s", path, strerror(errno));
    size_t found = fread(*out, sizeof **out, n, f);
    int more = found == n && getc(f) != EOF;
    fclose(f);
    if (found == n && !more) return 0;
    return sl_fail(err, SL_ERR_FORMAT, "%s: found %s%zu numbers, expected %zu (states.json)", path, more ? "more than " : "",
                   found, n);
}

int cli_attn_states_read(cli_attn_states *s, const char *dir, sl_error *err) {
    *s = (cli_attn_states){0};
    int rc = read_header(s, dir, err);
    size_t row = (size_t)s->geom.head_dim, kv = s->geom.n_kv_heads * (size_t)s->n_rows * row;
    if (!rc) rc = read_numbers(dir, "q.bf16", (size_t)s->n_steps * s->geom.n_heads * row, &s->q, err);
    if (!rc) rc = read_numbers(dir, "k.bf16", kv, &s->k, err);
    if (!rc) rc = read_numbers(dir, "v.bf16", kv, &s->v, err);
    if (rc) cli_attn_states_free(s);
    return rc;
}

void cli_attn_states_free(cli_attn_states *s) {
    free(s->q);
    free(s->k);
    free(s->v);
    *s = (cli_attn_states){0};
}
