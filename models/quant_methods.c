// models/quant_methods.c - readers of the descriptions of AWQ, GPTQ, block FP8 and ModelOpt. See quant_methods.h.
#include "models/quant_methods.h"
#include "models/quant_compressed.h"
#include "models/quant_fields.h"

#include <stdio.h>
#include <string.h>

// Every linear layer has the scheme.
static int add_for_all(sl_quant *q, const sl_json_file *f, const sl_quant_scheme *scheme, sl_error *err) {
    int rc = sl_quant_add_scheme(q, f->path, scheme, err);
    return rc ? rc : sl_quant_add_rule(q, f->path, SL_NAME_CLASS, "", 0, err);
}

static int check_bits(const sl_json_file *f, const char *field, int bits, sl_error *err) {
    if (bits == 4) return 0;
    return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: field %s is %d, supported is 4", f->path, field, bits);
}

// *group: the columns that share a scale, or -1: all.
static int read_group(const sl_json_file *f, const char *field, long long missing, int *group, sl_error *err) {
    int rc = sl_json_int(f, field, -1, 1 << 20, &missing, group, err);
    if (rc || *group == -1 || (*group > 0 && *group % SL_WEIGHT_GROUP == 0)) return rc;
    return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: field %s is %d, supported are -1 and multiples of %d", f->path, field, *group,
                   SL_WEIGHT_GROUP);
}

static void set_group(sl_quant_scheme *s, int group) {
    s->strategy = group > 0 ? SL_QUANT_GROUP : SL_QUANT_CHANNEL;
    s->group = group;
}

// ---- AWQ ----

static int read_awq(const sl_json_file *f, sl_quant *q, sl_error *err) {
    static const char *const known[] = {"quant_method",     "bits",    "w_bit",   "group_size", "q_group_size",
                                        "zero_point",       "version", "do_fuse", "backend",    "modules_to_not_convert",
                                        "fuse_max_seq_len", NULL};
    static const char *const refused[] = {"modules_to_fuse", "exllama_config", NULL}, *const versions[] = {"gemm", "GEMM",
                                                                                                           NULL};
    const char *bits_name = sl_json_get(f->root, "w_bit") ? "w_bit" : "bits";
    const char *group_name = sl_json_get(f->root, "q_group_size") ? "q_group_size" : "group_size";
    const long long four = 4;
    sl_quant_scheme s = {.layout = SL_QUANT_AWQ, .format = SL_INT4, .has_zero = 1};
    int bits, group, has_zero, rc = sl_quant_check_fields(f, known, refused, err);
    if (!rc) rc = sl_quant_check_string(f, "version", versions, err);
    if (!rc) rc = sl_json_int(f, bits_name, 1, 16, &four, &bits, err);
    if (!rc) rc = check_bits(f, bits_name, bits, err);
    if (!rc) rc = read_group(f, group_name, 128, &group, err);
    if (!rc) rc = sl_json_bool(f, "zero_point", 1, &has_zero, err);
    if (!rc && !has_zero) rc = sl_fail(err, SL_ERR_UNSUPPORTED, "%s: field zero_point is false, supported is true", f->path);
    if (!rc) rc = sl_quant_add_rules(q, f, "modules_to_not_convert", SL_NAME_PART, -1, err);
    if (rc) return rc;
    set_group(&s, group);
    return add_for_all(q, f, &s, err);
}

// ---- GPTQ ----

// dynamic: {"-:REGEX": {}} leaves modules plain; other entries change their parameters.
static int read_dynamic(const sl_json_file *f, sl_quant *q, sl_error *err) {
    const json_t *dynamic = sl_json_get(f->root, "dynamic");
    const char *key;
    json_t *value;
    if (dynamic && !json_is_object(dynamic))
        return sl_fail(err, SL_ERR_FORMAT, "%s: field dynamic is %s, expected an object", f->path, sl_json_type(dynamic));
    json_object_foreach((json_t *)dynamic, key, value) {
        if (strncmp(key, "-:", 2))
            return sl_fail(err, SL_ERR_UNSUPPORTED,
                           "%s: field dynamic has \"%.100s\", supported are names that begin with -:", f->path, key);
        int rc = sl_quant_add_rule(q, f->path, SL_NAME_REGEX, key + 2, -1, err);
        if (rc) return rc;
    }
    return 0;
}

static int read_gptq_format(const sl_json_file *f, int *is_first, sl_error *err) {
    static const char *const formats[] = {"gptq", "gptq_v2", NULL}, *const words[] = {"int32", "torch.int32", NULL};
    const char *field = sl_json_get(f->root, "checkpoint_format") ? "checkpoint_format" : "format", *format;
    int rc = sl_quant_check_string(f, field, formats, err);
    if (!rc) rc = sl_quant_check_string(f, "pack_dtype", words, err);
    if (!rc) rc = sl_json_string(f, field, &format, err);
    *is_first = !rc && (!format || !strcmp(format, "gptq"));
    return rc;
}

static int read_gptq(const sl_json_file *f, sl_quant *q, sl_error *err) {
    static const char *const known[] = {"quant_method",
                                        "bits",
                                        "group_size",
                                        "desc_act",
                                        "sym",
                                        "lm_head",
                                        "static_groups",
                                        "checkpoint_format",
                                        "format",
                                        "pack_dtype",
                                        "dynamic",
                                        "true_sequential",
                                        "damp_percent",
                                        "damp_auto_increment",
                                        "model_name_or_path",
                                        "model_file_base_name",
                                        "dataset",
                                        "tokenizer",
                                        "block_name_to_quantize",
                                        "module_name_preceding_first_block",
                                        "batch_size",
                                        "pad_token_id",
                                        "use_cuda_fp16",
                                        "model_seqlen",
                                        "cache_block_outputs",
                                        "meta",
                                        "backend",
                                        "mse",
                                        "max_input_length",
                                        "disable_exllama",
                                        "act_group_aware",
                                        "use_exllama",
                                        "exllama_config",
                                        "modules_in_block_to_quantize",
                                        NULL};
    static const char *const refused[] = {"rotation", "is_marlin_format", NULL};
    sl_quant_scheme s = {.layout = SL_QUANT_GPTQ, .format = SL_INT4, .has_zero = 1};
    int bits, group, rc = sl_quant_check_fields(f, known, refused, err);
    if (!rc) rc = read_gptq_format(f, &s.zero_offset, err);
    if (!rc) rc = sl_json_int(f, "bits", 1, 16, NULL, &bits, err);
    if (!rc) rc = check_bits(f, "bits", bits, err);
    if (!rc) rc = read_group(f, "group_size", 128, &group, err);
    if (!rc) rc = sl_json_bool(f, "lm_head", 0, &q->quantises_head, err);
    if (!rc) rc = read_dynamic(f, q, err);
    if (rc) return rc;
    set_group(&s, group);
    return add_for_all(q, f, &s, err);
}

// ---- FP8 with one scale for a tensor or a block ----

static int read_block(const sl_json_file *f, const char *field, int block[2], sl_error *err) {
    const json_t *v = sl_json_get(f->root, field);
    for (size_t i = 0; i < 2; i++) {
        block[i] = (int)json_integer_value(json_array_get(v, i));
        if (json_array_size(v) == 2 && block[i] >= SL_WEIGHT_GROUP && block[i] <= 1 << 20 && block[i] % SL_WEIGHT_GROUP == 0)
            continue;
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: field %s: expected two multiples of %d, such as [128, 128]", f->path,
                       field, SL_WEIGHT_GROUP);
    }
    return 0;
}

static int read_fp8(const sl_json_file *f, sl_quant *q, sl_error *err) {
    static const char *const known[] = {"quant_method",   "activation_scheme",      "fmt", "weight_block_size",
                                        "ignored_layers", "modules_to_not_convert", NULL};
    static const char *const refused[] = {NULL}, *const schemes[] = {"dynamic", "static", NULL}, *const fmt[] = {"e4m3", NULL};
    sl_quant_scheme s = {.layout = SL_QUANT_BYTES, .format = SL_FP8, .strategy = SL_QUANT_TENSOR, .scale_name = "weight_scale"};
    const char *activations;
    int rc = sl_quant_check_fields(f, known, refused, err);
    if (!rc) rc = sl_quant_check_string(f, "activation_scheme", schemes, err);
    if (!rc) rc = sl_json_string(f, "activation_scheme", &activations, err);
    if (rc) return rc;
    s.inputs = activations && !strcmp(activations, "static") ? SL_INPUTS_STATIC : SL_INPUTS_ROWS;
    if (!rc) rc = sl_quant_check_string(f, "fmt", fmt, err);
    if (!rc && sl_json_get(f->root, "weight_block_size")) {
        s.strategy = SL_QUANT_BLOCK, s.scale_name = "weight_scale_inv";
        rc = read_block(f, "weight_block_size", s.block, err);
        if (s.inputs == SL_INPUTS_ROWS) s.inputs = SL_INPUTS_GROUPS;
    }
    if (!rc) rc = sl_quant_add_rules(q, f, "ignored_layers", SL_NAME_PART, -1, err);
    if (!rc) rc = sl_quant_add_rules(q, f, "modules_to_not_convert", SL_NAME_PART, -1, err);
    q->has_activations = 1;
    return rc ? rc : add_for_all(q, f, &s, err);
}

// ---- ModelOpt ----

// config_groups repeats quant_algo: one group, of every linear layer. *group: the columns that share a scale; 0: not given.
static int read_groups(const sl_json_file *f, int *group, sl_error *err) {
    const json_t *groups = sl_json_get(f->root, "config_groups");
    const json_t *first = json_object_iter_value(json_object_iter((json_t *)groups)), *targets = sl_json_get(first, "targets");
    const char *target = json_string_value(json_array_get(targets, 0));
    *group = (int)json_integer_value(sl_json_get(sl_json_get(first, "weights"), "group_size"));
    if (!groups || (json_object_size(groups) == 1 && json_array_size(targets) == 1 && target && !strcmp(target, "Linear")))
        return 0;
    return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: field config_groups: expected one group with the targets [\"Linear\"]",
                   f->path);
}

// The groups of NVFP4 have 16 columns.
static int check_fp4_group(const sl_json_file *f, int group, sl_error *err) {
    const long long missing = group ? group : 16;
    int rc = sl_json_int(f, "group_size", 0, 1 << 20, &missing, &group, err);
    if (rc || group == 16) return rc;
    return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: field group_size is %d, supported is 16", f->path, group);
}

static int read_modelopt(const sl_json_file *f, sl_quant *q, sl_error *err) {
    static const char *const known[] = {"group_size", // FP8 has none
                                        "quant_method",        "quant_algo",      "exclude_modules", "ignore", "producer",
                                        "kv_cache_quant_algo", "kv_cache_scheme", "config_groups",   NULL};
    static const char *const refused[] = {"group_size", NULL};
    static const char *const algorithms[] = {"FP8", "NVFP4", "W4A16_NVFP4", NULL}, *const caches[] = {"FP8", NULL};
    const sl_quant_scheme fp8 = {.layout = SL_QUANT_BYTES,
                                 .format = SL_FP8,
                                 .strategy = SL_QUANT_TENSOR,
                                 .scale_name = "weight_scale",
                                 .inputs = SL_INPUTS_STATIC};
    const sl_quant_scheme fp4 = {.layout = SL_QUANT_FP4,
                                 .format = SL_FP4,
                                 .strategy = SL_QUANT_GROUP,
                                 .group = 16,
                                 .q_name = "weight",
                                 .global = SL_GLOBAL_FACTOR};
    const char *algorithm;
    int group, rc = sl_json_string(f, "quant_algo", &algorithm, err);
    if (!rc && !algorithm) rc = sl_fail(err, SL_ERR_FORMAT, "%s: field quant_algo is missing", f->path);
    if (!rc) rc = sl_quant_check_string(f, "quant_algo", algorithms, err);
    int is_fp8 = !rc && !strcmp(algorithm, "FP8");
    if (!rc) rc = sl_quant_check_fields(f, known + is_fp8, refused, err);
    if (!rc) rc = sl_quant_check_string(f, "kv_cache_quant_algo", caches, err);
    if (!rc) rc = sl_quant_read_kv_scheme(f, &q->has_kv_scales, err);
    if (!rc && json_is_string(sl_json_get(f->root, "kv_cache_quant_algo"))) q->has_kv_scales = 1;
    if (!rc) rc = read_groups(f, &group, err);
    if (!rc && !is_fp8) rc = check_fp4_group(f, group, err);
    if (!rc) rc = sl_quant_add_rules(q, f, "exclude_modules", SL_NAME_WILDCARD, -1, err);
    if (!rc) rc = sl_quant_add_rules(q, f, "ignore", SL_NAME_WILDCARD, -1, err);
    q->has_activations = !rc && strcmp(algorithm, "W4A16_NVFP4");
    q->quantises_head = 1;
    return rc ? rc : add_for_all(q, f, is_fp8 ? &fp8 : &fp4, err);
}

// ---- the methods ----

int sl_quant_read_method(const sl_json_file *f, sl_quant *q, sl_error *err) {
    static const struct {
        const char *method;
        int (*read)(const sl_json_file *f, sl_quant *q, sl_error *err);
    } methods[] = {{"awq", read_awq},
                   {"compressed-tensors", sl_quant_read_compressed},
                   {"fp8", read_fp8},
                   {"gptq", read_gptq},
                   {"modelopt", read_modelopt}};
    char list[200] = "";
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        if (!strcmp(q->method, methods[i].method)) return methods[i].read(f, q, err);
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "", methods[i].method);
    }
    return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: field quant_method is \"%.60s\", supported are %s", f->path, q->method, list);
}
