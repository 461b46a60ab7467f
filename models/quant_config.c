// models/quant_config.c - finds the description of a quantised checkpoint. See quant_config.h. The readers of the methods are
// in quant_methods.c.
#include "models/quant_config.h"
#include "base/json.h"
#include "models/quant_methods.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- the description ----

static int is_empty(const json_t *v) {
    return !v || (json_is_object(v) && !json_object_size(v));
}

static int read_method(const sl_json_file *f, const char *missing, sl_quant *out, sl_error *err) {
    const char *method;
    int rc = sl_json_string(f, "quant_method", &method, err);
    if (rc) return rc;
    if (!method) method = missing;
    if (!method) return sl_fail(err, SL_ERR_FORMAT, "%s: field quant_method is missing", f->path);
    out->method = strdup(method);
    if (!out->method) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", f->path);
    return sl_quant_read_method(f, out, err);
}

// An object of a document: `name` of config.json, or the whole document.
static int read_document(const sl_documents *d, const char *document, const char *name, const char *missing, sl_quant *out,
                         sl_error *err) {
    char path[SL_DOCUMENT_PATH], where[SL_DOCUMENT_PATH + 64];
    json_t *root;
    int rc = sl_documents_json(d, document, 1, &root, err);
    if (rc || !root) return rc;
    json_t *object = name ? sl_json_get(root, name) : root;
    sl_documents_path(d, document, path);
    snprintf(where, sizeof where, "%s%s%s", path, name ? ": " : "", name ? name : "");
    if (object && !json_is_object(object))
        rc = sl_fail(err, SL_ERR_FORMAT, "%s: field %s is %s, expected an object", path, name, sl_json_type(object));
    else if (!is_empty(object))
        rc = read_method(&(sl_json_file){where, object}, missing, out, err);
    json_decref(root);
    return rc;
}

// {"producer": ..., "quantization": {...}}
static int read_modelopt(const sl_documents *d, sl_quant *out, sl_error *err) {
    return read_document(d, "hf_quant_config.json", "quantization", "modelopt", out, err);
}

int sl_quant_load(const sl_documents *d, const sl_quantise_texts *round, sl_quant *out, sl_error *err) {
    *out = (sl_quant){0};
    int rc = sl_quantise_parse(round, &out->round, err);
    if (!rc) rc = read_document(d, "config.json", "quantization_config", NULL, out, err);
    if (!rc && !out->method) rc = read_document(d, "config.json", "compression_config", "compressed-tensors", out, err);
    if (!rc && !out->method) rc = read_modelopt(d, out, err);
    if (!rc && !out->method) rc = read_document(d, "quantize_config.json", NULL, "gptq", out, err);
    if (!rc && out->method && out->round.linear.format != SL_BF16)
        rc = sl_fail(err, SL_ERR_ARG, "{weights} %.40s: the weights of %.300s are quantised already (%.40s)", round->weights,
                     d->path, out->method);
    if (rc) sl_quant_free(out);
    return rc;
}
