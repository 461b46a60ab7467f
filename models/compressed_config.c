// models/compressed_config.c - see compressed_config.h.
#include "models/compressed_config.h"
#include "base/documents.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

#define VERSION "0.20.1" // of compressed-tensors, with which scripts/measure/quantize_in_transformers.py loads such folders

static const char *layout_of(const sl_quantise_spec *s) {
    return s->format == SL_FP8 ? "float-quantized" : "pack-quantized";
}

// target: "Linear", or a pattern for names of modules. has_format: 1: the group has a format of its own.
static json_t *group_json(const sl_quantise_spec *s, const char *target, int has_format) {
    int is_int4 = s->format == SL_INT4;
    json_t *weights =
        json_pack("{s:i, s:s, s:b, s:s, s:b, s:o}", "num_bits", is_int4 ? 4 : 8, "type", s->format == SL_FP8 ? "float" : "int",
                  "symmetric", 1, "strategy", is_int4 ? "group" : "channel", "dynamic", 0, "group_size",
                  is_int4 ? json_integer(s->group) : json_null());
    json_t *group =
        json_pack("{s:[s], s:o, s:n, s:n}", "targets", target, "weights", weights, "input_activations", "output_activations");
    if (group && has_format) json_object_set_new(group, "format", json_string(layout_of(s)));
    return group;
}

static int is_same(const sl_quantise_spec *a, const sl_quantise_spec *b) {
    return a->format == b->format && (a->format != SL_INT4 || a->group == b->group);
}

static json_t *quantization_json(const sl_quantise_specs *specs) {
    const sl_quantise_spec *linear = &specs->linear, *head = &specs->head;
    int has_head = head->format != SL_BF16, has_group = has_head && !is_same(linear, head);
    int is_mixed = has_group && strcmp(layout_of(linear), layout_of(head));
    // The first group that fits takes a layer, and "Linear" fits the head too. So the head's group comes first.
    json_t *groups = json_object();
    if (has_group) json_object_set_new(groups, "group_0", group_json(head, "re:.*lm_head", is_mixed));
    json_object_set_new(groups, has_group ? "group_1" : "group_0", group_json(linear, "Linear", is_mixed));
    json_t *ignore = json_array();
    if (!has_head) json_array_append_new(ignore, json_string("lm_head"));
    return json_pack("{s:s, s:s, s:s, s:s, s:o, s:o, s:n}", "quant_method", "compressed-tensors", "format",
                     is_mixed ? "mixed-precision" : layout_of(linear), "quantization_status", "compressed", "version", VERSION,
                     "config_groups", groups, "ignore", ignore, "kv_cache_scheme");
}

// Appends a text of JSON, its lines after the first one indented by two blanks more.
static int append_indented(sl_text *out, const char *text, sl_error *err) {
    int rc = 0;
    for (size_t n; !rc && *text; text += n) {
        n = strcspn(text, "\n");
        n += text[n] == '\n';
        rc = sl_text_append(out, text, n, err);
        if (!rc && text[n - 1] == '\n') rc = sl_text_append(out, "  ", 2, err);
    }
    return rc;
}

static int check_tie(const sl_documents *d, const sl_quantise_specs *specs, sl_error *err) {
    json_t *root;
    int rc = sl_documents_json(d, "config.json", 0, &root, err);
    if (rc) return rc;
    int is_tied = json_is_true(sl_json_get(root, "tie_word_embeddings"));
    json_decref(root);
    if (!is_tied || specs->head.format == SL_BF16) return 0;
    return sl_fail(err, SL_ERR_ARG,
                   "{weights_head} %s: tie_word_embeddings of %s/config.json is true, and compressed-tensors has no rounded "
                   "embedding",
                   sl_formats[specs->head.format].name, d->path);
}

// The text of the other fields stays as it is: the new field comes before the last '}'.
int sl_compressed_config(const char *from, const sl_quantise_specs *specs, sl_text *out, sl_error *err) {
    enum { MOST = 64 << 20 };
    static const char blanks[] = " \t\r\n", field[] = ",\n  \"quantization_config\": ";
    const sl_documents d = SL_FOLDER(from);
    int rc = check_tie(&d, specs, err);
    if (!rc) rc = sl_documents_text(&d, "config.json", MOST, out, err);
    if (rc) return rc;
    while (out->n && strchr(blanks, out->data[out->n - 1])) out->n--;
    SL_CHECK(out->n && out->data[out->n - 1] == '}'); // the text is an object
    out->n--;
    while (out->n && strchr(blanks, out->data[out->n - 1])) out->n--;
    json_t *root = quantization_json(specs);
    char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    rc = text ? sl_text_append(out, field, strlen(field), err)
              : sl_fail(err, SL_ERR_MEMORY, "%s/config.json: out of memory", from);
    if (!rc) rc = append_indented(out, text, err);
    if (!rc) rc = sl_text_append(out, "\n}\n", 3, err);
    free(text);
    json_decref(root);
    return rc;
}
