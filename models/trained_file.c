// models/trained_file.c - see trained_file.h.
#include "models/trained_file.h"

#include <stdlib.h>
#include <string.h>

// ---- metadata ----

static int get_text(const sl_tensors *t, const char *path, const char *name, const char **out, sl_error *err) {
    *out = sl_tensors_metadata(t, name);
    return *out ? 0 : sl_fail(err, SL_ERR_FORMAT, "%s: metadata %s is missing", path, name);
}

int sl_trained_int(const sl_tensors *t, const char *path, const char *name, int least, int most, int *out, sl_error *err) {
    const char *text;
    char *end;
    int rc = get_text(t, path, name, &text, err);
    if (rc) return rc;
    long x = strtol(text, &end, 10);
    if (end == text || *end || x < least || x > most)
        return sl_fail(err, SL_ERR_FORMAT, "%s: metadata %s is \"%.40s\", expected an integer from %d to %d", path, name, text,
                       least, most);
    *out = (int)x;
    return 0;
}

void sl_trained_hash(const sl_config *config, const sl_tensors *weights, char out[SL_HASH_TEXT]) {
    sl_hash_text(sl_tensors_hash(weights, sl_config_hash(config)), out);
}

int sl_trained_check(const sl_tensors *t, const char *path, const char *script, const sl_config *config,
                     const sl_tensors *weights, sl_error *err) {
    const char *text;
    char want[SL_HASH_TEXT];
    int rc = get_text(t, path, "format_version", &text, err);
    if (!rc && strcmp(text, "1"))
        rc = sl_fail(err, SL_ERR_UNSUPPORTED, "%s: metadata format_version is \"%.40s\", expected 1", path, text);
    if (!rc) rc = get_text(t, path, "model", &text, err);
    if (rc) return rc;
    sl_trained_hash(config, weights, want);
    if (!strcmp(text, want)) return 0;
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "%s: made for another model: metadata model is \"%.40s\", expected %s, the hash of this model's config and "
                   "weights; %s makes the file of a model",
                   path, text, want, script);
}

// ---- tensors ----

static int bind(const sl_tensors *t, const char *path, const sl_config *c, const sl_trained_part *p, sl_error *err) {
    const sl_tensor *x = sl_tensors_find(t, p->name);
    const int64_t want[] = {c->n_layers, c->n_kv_heads, p->dims[0], p->dims[1]};
    int rank = p->dims[1] ? 4 : 3;
    *p->to = NULL;
    if (!x && p->needed <= 0) return 0;
    if (!x) return sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s is missing", path, p->name);
    if (p->needed < 0) return sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s: unexpected, because %s", path, p->name, p->because);
    if (strcmp(x->dtype_name, p->dtype))
        return sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s has dtype %s, expected %s", path, p->name, x->dtype_name, p->dtype);
    if (x->n_dims != rank || memcmp(x->dims, want, rank * sizeof *want)) {
        char found[128], expected[128];
        sl_format_dims(x->dims, x->n_dims, found, sizeof found);
        sl_format_dims(want, rank, expected, sizeof expected);
        return sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s has shape %s, expected %s", path, p->name, found, expected);
    }
    *p->to = x->data;
    return 0;
}

int sl_trained_bind(const sl_tensors *t, const char *path, const char *kind, const sl_config *c, const sl_trained_part *parts,
                    int n, sl_error *err) {
    for (int i = 0; i < n; i++) {
        int rc = bind(t, path, c, &parts[i], err);
        if (rc) return rc;
    }
    for (int i = 0; i < sl_tensors_count(t); i++) {
        const char *name = sl_tensors_at(t, i)->name;
        int known = 0;
        for (int j = 0; j < n; j++) known |= !strcmp(name, parts[j].name);
        if (!known) return sl_fail(err, SL_ERR_FORMAT, "%s: tensor %.100s: a %s file has no such tensor", path, name, kind);
    }
    return 0;
}
