// models/unbound.c - the tensors of a folder that no weight binds: a head beside tied embeddings, and all others. See
// weights.h.
#include "base/log.h"
#include "models/kv_scales.h"
#include "models/weights.h"

#include <stdlib.h>
#include <string.h>

// ---- tied embeddings ----

static int are_equal(const sl_tensor *a, const sl_tensor *b) {
    return a->n_dims == b->n_dims && !memcmp(a->dims, b->dims, (size_t)a->n_dims * sizeof *a->dims) &&
           !strcmp(a->dtype_name, b->dtype_name) && a->n_bytes == b->n_bytes && !memcmp(a->data, b->data, a->n_bytes);
}

// The name of the tensor that `weight` is bound to.
static const char *name_of(const sl_model_weights *w, const sl_weight *weight) {
    for (int i = 0; i < w->n_tensors; i++)
        if (w->tensors[i].weight == weight) return w->tensors[i].shape.name;
    return "";
}

// The two tensors of a tie; NULL: the files lack one of them, or there is no tie.
static const sl_tensor *find_tied(const sl_model_weights *w, const sl_tensors *tensors, const sl_tensor **same_as) {
    for (int i = 0; i < w->n_tensors; i++) {
        const sl_model_tensor *t = &w->tensors[i];
        if (!t->same_as) continue;
        *same_as = sl_tensors_find(tensors, name_of(w, t->same_as));
        return *same_as ? sl_tensors_find(tensors, t->shape.name) : NULL;
    }
    return NULL;
}

int sl_model_settle_tie(sl_config *config, const sl_tensors *tensors, const sl_log *log, sl_error *err) {
    sl_model_weights w;
    const sl_tensor *embed;
    int rc = config->tied ? sl_model_weights_init(config, &w, err) : 0;
    if (rc || !config->tied) return rc;
    const sl_tensor *head = find_tied(&w, tensors, &embed);
    if (head && !are_equal(head, embed)) {
        config->tied = 0;
        sl_log_line(log, "%s: tensor %s differs from %s and is used, although config.json says tie_word_embeddings", head->file,
                    head->name, embed->name);
    } else if (head)
        sl_log_line(log, "%s: tensor %s equals %s, so one of them is read", head->file, head->name, embed->name);
    sl_model_weights_free(&w);
    return 0;
}

// ---- all others ----

// A pattern of names that change nothing. '*' stands for any text.
static const struct {
    const char *pattern, *why;
} ignored[] = {
    {"*rotary_emb.inv_freq", "Sleigh computes RoPE from config.json"},
    {"*rotary_emb.cos_cached", "Sleigh computes RoPE from config.json"},
    {"*rotary_emb.sin_cached", "Sleigh computes RoPE from config.json"},
    {"mtp.*", "Sleigh has no multi-token prediction"},
    {"model.mtp.*", "Sleigh has no multi-token prediction"},
    {"model.mtp_layers.*", "Sleigh has no multi-token prediction"},
};
enum { N_IGNORED = sizeof ignored / sizeof *ignored };

static int matches(const char *pattern, const char *name) {
    size_t n = strlen(pattern) - 1, m = strlen(name);
    if (*pattern == '*') return m >= n && !strcmp(name + m - n, pattern + 1);
    return !strncmp(name, pattern, n);
}

static int find_ignored(const char *name) { // -1: none
    for (int i = 0; i < N_IGNORED; i++)
        if (matches(ignored[i].pattern, name)) return i;
    return -1;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

// The bytes of a name up to its last '.': the module that the tensor belongs to.
static size_t module_size(const char *name) {
    const char *dot = strrchr(name, '.');
    return dot ? (size_t)(dot - name) : 0;
}

// What the tensor belongs to, for the message.
static const char *describe(const sl_model_weights *w, const char *name) {
    static const char layers[] = "model.layers.";
    size_t n = module_size(name);
    for (int i = 0; n && i < w->n_tensors; i++)
        if (!strncmp(w->tensors[i].shape.name, name, n + 1)) return "part of a module that Sleigh computes without it";
    if (strncmp(name, layers, sizeof layers - 1)) return "no part of the architecture";
    return atoi(name + sizeof layers - 1) < w->config->n_layers ? "an unknown part of a layer"
                                                                : "of a layer beyond num_hidden_layers";
}

// Writes the names of the tensors that a weight is made of. Returns their number.
static int list_parts(const sl_model_tensor *t, const char **out) {
    const sl_recipe *r = &t->recipe;
    const sl_tensor *parts[] = {r->q, r->scale, r->global, r->zero, r->index};
    int n = 0;
    if (!r->q) out[n++] = t->shape.name; // also a head that equals the embeddings
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i]) out[n++] = parts[i]->name;
    for (int i = 0; i < SL_RECIPE_UNUSED; i++)
        if (r->unused[i]) out[n++] = r->unused[i]->name;
    return n;
}

// 1: a bias of zeros of a quantised layer. Some programs write one for every layer that they quantise.
static int is_zero_bias(const sl_model_weights *w, const sl_tensor *t) {
    size_t n = module_size(t->name);
    int found = 0;
    if (strcmp(t->name + n, ".bias")) return 0;
    for (int i = 0; i < w->n_tensors && !found; i++) {
        const sl_tensor *q = w->tensors[i].recipe.q;
        found = q && t->data && !strncmp(q->name, t->name, n + 1); // a bias of a GGUF file may have no data yet
    }
    for (size_t i = 0; found && i < t->n_bytes; i++) found = !((const char *)t->data)[i];
    return found;
}

int sl_model_weights_check_unbound(const sl_model_weights *w, const sl_tensors *tensors, int has_kv_scales, const sl_log *log,
                                   sl_error *err) {
    enum { MOST_PARTS = 5 + SL_RECIPE_UNUSED }; // of a weight
    int counts[N_IGNORED] = {0}, rc = 0, n = 0, n_zero = 0;
    const char **bound = malloc(MOST_PARTS * (size_t)w->n_tensors * sizeof *bound), *first[N_IGNORED] = {0};
    if (!bound) return sl_fail(err, SL_ERR_MEMORY, "%d tensors: out of memory", w->n_tensors);
    for (int i = 0; i < w->n_tensors; i++) n += list_parts(&w->tensors[i], bound + n);
    qsort(bound, (size_t)n, sizeof *bound, by_name);
    for (int i = 0; !rc && i < sl_tensors_count(tensors); i++) {
        const sl_tensor *t = sl_tensors_at(tensors, i);
        if (bsearch(&t->name, bound, (size_t)n, sizeof *bound, by_name)) continue;
        if (has_kv_scales && sl_kv_scales_is_name(t->name)) continue;
        if (is_zero_bias(w, t)) {
            n_zero++;
            continue;
        }
        int k = find_ignored(t->name);
        if (k < 0)
            rc = sl_fail(err, SL_ERR_UNSUPPORTED, "%s: tensor %s: Sleigh would not use it; it is %s", t->file, t->name,
                         describe(w, t->name));
        else if (!counts[k]++)
            first[k] = t->name;
    }
    for (int k = 0; !rc && k < N_IGNORED; k++)
        if (counts[k])
            sl_log_line(log, "%d tensor%s like %s: not used; %s", counts[k], counts[k] == 1 ? "" : "s", first[k],
                        ignored[k].why);
    if (!rc && n_zero)
        sl_log_line(log, "%d bias%s of quantised layers: not used; the numbers are 0", n_zero, n_zero == 1 ? "" : "es");
    free(bound);
    return rc;
}
