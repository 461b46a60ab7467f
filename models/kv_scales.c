// models/kv_scales.c - see kv_scales.h.
#include "models/kv_scales.h"
#include "models/recipe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// What programs call the scales of a layer, after "model.layers.N.self_attn.". "kv_scale" is one scale for K and V.
static const char *const names[2][5] = {{"k_scale", "k_proj.k_scale", "k_cache.scale", "qkv_proj.k_scale", "kv_scale"},
                                        {"v_scale", "v_proj.v_scale", "v_cache.scale", "qkv_proj.v_scale", "kv_scale"}};
enum { N_NAMES = sizeof names[0] / sizeof *names[0] };

int sl_kv_scales_is_name(const char *tensor) {
    int layer, end = 0;
    if (sscanf(tensor, "model.layers.%9d.self_attn.%n", &layer, &end) != 1 || !end) return 0;
    for (int i = 0; i < 2 * N_NAMES; i++)
        if (!strcmp(tensor + end, names[i / N_NAMES][i % N_NAMES])) return 1;
    return 0;
}

static const sl_tensor *find(const sl_tensors *tensors, int layer, int is_v) {
    const sl_tensor *t = NULL;
    for (int i = 0; !t && i < N_NAMES; i++) {
        char name[128];
        snprintf(name, sizeof name, "model.layers.%d.self_attn.%s", layer, names[is_v][i]);
        t = sl_tensors_find(tensors, name);
    }
    return t;
}

// out: [n_heads]
static int read_scales(const sl_tensor *t, int n_heads, float *out, sl_error *err) {
    int64_t n = 1;
    char shape[128];
    for (int i = 0; i < t->n_dims; i++) n *= t->dims[i];
    if (n != 1 && n != n_heads) {
        sl_format_dims(t->dims, t->n_dims, shape, sizeof shape);
        return sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s has shape %s, expected [1] or [%d]", t->file, t->name, shape,
                       n_heads);
    }
    if (strcmp(t->dtype_name, "F32") && strcmp(t->dtype_name, "BF16") && strcmp(t->dtype_name, "F16"))
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: tensor %s has dtype %s, expected BF16, F16 or F32", t->file, t->name,
                       t->dtype_name);
    for (int i = 0; i < n_heads; i++) {
        out[i] = sl_tensor_number(t, n == 1 ? 0 : (size_t)i);
        if (!(out[i] > 0) || isinf(out[i]))
            return sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s has the scale %g, expected a finite number above 0", t->file,
                           t->name, (double)out[i]);
    }
    return 0;
}

int sl_kv_scales_load(const sl_config *c, const sl_tensors *tensors, sl_kv_scales *out, sl_error *err) {
    const size_t n = (size_t)c->n_layers * (size_t)c->n_kv_heads;
    int rc = 0;
    *out = (sl_kv_scales){malloc(n * sizeof(float)), malloc(n * sizeof(float))};
    if (!out->k || !out->v) rc = sl_fail(err, SL_ERR_MEMORY, "scales of the KV cache: out of memory");
    for (int i = 0; !rc && i < 2 * c->n_layers; i++) {
        const sl_tensor *t = find(tensors, i / 2, i % 2);
        float *to = (i % 2 ? out->v : out->k) + (size_t)(i / 2) * (size_t)c->n_kv_heads;
        if (t)
            rc = read_scales(t, c->n_kv_heads, to, err);
        else
            rc = sl_fail(err, SL_ERR_FORMAT, "%s: tensor model.layers.%d.self_attn.%s is missing, which kv_cache_scheme needs",
                         sl_tensors_place(tensors), i / 2, names[i % 2][0]);
    }
    if (rc) sl_kv_scales_free(out);
    return rc;
}

void sl_kv_scales_free(sl_kv_scales *scales) {
    free(scales->k);
    free(scales->v);
    *scales = (sl_kv_scales){0};
}
