// cli/attn/attn_profile.c - see attn_profile.h.
#include "cli/attn/attn_profile.h"
#include "base/json.h"
#include "base/whole_file.h"
#include "cli/error_text.h"
#include "cli/eval/fingerprint.h"
#include "cli/io.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char format[] = "sleigh attention profile 1", times_format[] = "sleigh prefill times 1";

// A tuned method must be 5% faster than dense prefill, because dense prefill has no error (attention/auto.c has the same rule).
#define FASTER 0.95

// ---- fields ----

// A place in the file: `where` is the path of an object, "" or "prefill.ranges[2].".
typedef struct place {
    const char *path;
    char where[96];
    const json_t *object;
} place;

static int wrong(const place *p, const char *field, const char *expected, sl_error *err) {
    return sl_fail(err, SL_ERR_FORMAT, "%s: field %s%s is %s, expected %s", p->path, p->where, field,
                   sl_json_type(sl_json_get(p->object, field)), expected);
}

// SL_ERR_FORMAT: the object has a key that is not in the list.
static int check_keys(const place *p, const char *const *known, sl_error *err) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)p->object, key, value) {
        int is_known = 0;
        for (const char *const *k = known; *k; k++) is_known |= !strcmp(*k, key);
        if (!is_known) return sl_fail(err, SL_ERR_FORMAT, "%s: unknown field %s%.60s", p->path, p->where, key);
    }
    return 0;
}

// Enters the object `field`. *out has object NULL when the field is not given.
static int enter(const place *p, const char *field, place *out, sl_error *err) {
    *out = (place){.path = p->path, .object = sl_json_get(p->object, field)};
    snprintf(out->where, sizeof out->where, "%.60s%s.", p->where, field);
    return !out->object || json_is_object(out->object) ? 0 : wrong(p, field, "an object", err);
}

static int get_text(const place *p, const char *field, const char **out, sl_error *err) {
    const json_t *v = sl_json_get(p->object, field);
    *out = json_string_value(v);
    return *out ? 0 : wrong(p, field, "a string", err);
}

static int get_count(const place *p, const char *field, int min, int *out, sl_error *err) {
    const json_t *v = sl_json_get(p->object, field);
    if (!json_is_integer(v)) return wrong(p, field, "an integer", err);
    if (json_integer_value(v) < min || json_integer_value(v) > INT_MAX - 1)
        return sl_fail(err, SL_ERR_FORMAT, "%s: field %s%s is %lld, expected %d or more", p->path, p->where, field,
                       (long long)json_integer_value(v), min);
    *out = (int)json_integer_value(v);
    return 0;
}

// Parses a method for decoding, or for prefill.
static int get_spec(const place *p, const char *field, const json_t *v, int prefills, sl_attn_spec *out, sl_error *err) {
    sl_error why;
    const char *text = json_string_value(v);
    if (!text)
        return sl_fail(err, SL_ERR_FORMAT, "%s: field %s%s is %s, expected a string", p->path, p->where, field,
                       sl_json_type(v));
    int rc = sl_attn_parse(text, out, &why);
    if (rc) return sl_fail(err, SL_ERR_FORMAT, "%s: field %s%s: %.700s", p->path, p->where, field, cli_error_text(&why));
    const sl_attn_ops *cpu = out->method->cpu;
    int fits = cpu && (prefills ? cpu->prefill || cpu->mask || cpu->skip_distance : cpu->decode != NULL);
    if (fits) return 0;
    return sl_fail(err, SL_ERR_FORMAT, "%s: field %s%s is %.200s, expected a method for %s", p->path, p->where, field, text,
                   prefills ? "prefill" : "decoding");
}

// ---- parts ----

static int read_range(const place *list, int i, const json_t *item, cli_attn_profile *out, sl_error *err) {
    static const char *const keys[] = {"from", "attn", "found", NULL};
    place p = {.path = list->path, .object = item};
    cli_prefill_range *r = &out->ranges[i];
    snprintf(p.where, sizeof p.where, "prefill.ranges[%d].", i);
    if (!json_is_object(item))
        return sl_fail(err, SL_ERR_FORMAT, "%s: field prefill.ranges[%d] is %s, expected an object", p.path, i,
                       sl_json_type(item));
    int rc = check_keys(&p, keys, err);
    if (!rc) rc = get_count(&p, "from", i ? out->ranges[i - 1].from + 1 : 1, &r->from, err);
    return rc ? rc : get_spec(&p, "attn", sl_json_get(item, "attn"), 1, &r->attn, err);
}

static int read_prefill(const place *root, cli_attn_profile *out, sl_error *err) {
    static const char *const keys[] = {"segment", "ranges", "found", NULL};
    place p;
    int rc = enter(root, "prefill", &p, err);
    if (rc || !p.object) return rc;
    const json_t *ranges = sl_json_get(p.object, "ranges");
    rc = check_keys(&p, keys, err);
    if (!rc) rc = get_count(&p, "segment", 128, &out->segment, err);
    if (!rc && (!json_array_size(ranges) || json_array_size(ranges) > CLI_PROFILE_RANGES))
        rc = wrong(&p, "ranges", "a list of 1 to 32 ranges", err);
    for (int i = 0; !rc && i < (int)json_array_size(ranges); i++) rc = read_range(&p, i, json_array_get(ranges, i), out, err);
    if (!rc) out->n_ranges = (int)json_array_size(ranges);
    return rc;
}

static int read_decode(const place *root, int n_layers, cli_attn_profile *out, sl_error *err) {
    static const char *const keys[] = {"layers", "found", NULL};
    const sl_attn_spec dense = {.method = &sl_method_dense};
    place p;
    int rc = enter(root, "decode", &p, err);
    if (rc || !p.object) return rc;
    const json_t *layers = sl_json_get(p.object, "layers");
    rc = check_keys(&p, keys, err);
    if (!rc && !json_is_array(layers)) rc = wrong(&p, "layers", "a list of methods", err);
    if (!rc && (int)json_array_size(layers) != n_layers)
        rc = sl_fail(err, SL_ERR_FORMAT, "%s: field decode.layers has %zu methods, expected %d, one for each layer", p.path,
                     json_array_size(layers), n_layers);
    if (!rc) rc = sl_attn_plan_init(&out->decode, n_layers, &dense, err);
    for (int i = 0; !rc && i < n_layers; i++) {
        char field[32];
        snprintf(field, sizeof field, "layers[%d]", i);
        rc = get_spec(&p, field, json_array_get(layers, i), 0, &out->decode.layer[i], err);
    }
    return rc;
}

static int read_auto(const place *root, cli_attn_profile *out, sl_error *err) {
    static const char *const keys[] = {"calibration", NULL};
    const char *file, *slash = strrchr(root->path, '/');
    place p;
    int rc = enter(root, "auto", &p, err);
    if (rc || !p.object) return rc;
    rc = check_keys(&p, keys, err);
    if (!rc) rc = get_text(&p, "calibration", &file, err);
    if (rc) return rc;
    int n_folder = *file == '/' || !slash ? 0 : (int)(slash - root->path + 1);
    int n = snprintf(out->calibration, sizeof out->calibration, "%.*s%s", n_folder, root->path, file);
    return n < CLI_PROFILE_PATH ? 0 : sl_fail(err, SL_ERR_FORMAT, "%s: auto.calibration: the path is too long", root->path);
}

static int check_model(const place *root, const char *model, int is_dummy, const sl_rope_options *rope, sl_error *err) {
    static const char *const keys[] = {"config", "weights", NULL};
    const char *config, *weights;
    cli_fingerprint own;
    place p;
    int rc = enter(root, "model", &p, err);
    if (!rc && !p.object) rc = wrong(root, "model", "an object", err);
    if (!rc) rc = check_keys(&p, keys, err);
    if (!rc) rc = get_text(&p, "config", &config, err);
    if (!rc) rc = get_text(&p, "weights", &weights, err);
    if (!rc) rc = cli_fingerprint_read(model, is_dummy, rope, &own, err);
    if (rc) return rc;
    int same_config = !strcmp(config, own.config);
    if (same_config && !strcmp(weights, own.weights)) return 0;
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "--attn-profile %s: made for a model with %s %.40s, but %.400s has %s; `sleigh tune` makes a profile for "
                   "this model",
                   root->path, same_config ? "weights" : "config", same_config ? weights : config, model,
                   same_config ? own.weights : own.config);
}

// Standard input is refused, because eval reads the profile twice: for its hash, and for its methods.
static int check_path(const char *path, sl_error *err) {
    if (!strcmp(path, "-"))
        return sl_fail(err, SL_ERR_ARG,
                       "--attn-profile -: expected the path of a file; a profile is not read from standard input");
    return access(path, R_OK) ? sl_fail(err, SL_ERR_IO, "--attn-profile %s: %s", path, strerror(errno)) : 0;
}

static int read_root(const char *path, json_t **out, sl_error *err) {
    json_error_t e;
    const char *text;
    int rc = check_path(path, err);
    *out = NULL;
    if (rc) return rc;
    *out = json_load_file(path, JSON_REJECT_DUPLICATES, &e);
    if (!*out) return sl_fail(err, SL_ERR_FORMAT, "--attn-profile %s: line %d: %s", path, e.line, e.text);
    text = json_string_value(sl_json_get(*out, "format"));
    if (text && !strcmp(text, format)) return 0;
    return sl_fail(err, SL_ERR_FORMAT, "--attn-profile %s: field format is %.60s, expected \"%s\"", path,
                   text ? text : sl_json_type(sl_json_get(*out, "format")), format);
}

// Writes and releases root. The same values give the same bytes.
static int write_json(const char *path, json_t *root, sl_error *err) {
    sl_whole_file w;
    if (!root) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path);
    FILE *f = sl_whole_file_open(&w, path, 0666);
    int ok = f && !json_dumpf(root, f, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) && fputc('\n', f) != EOF;
    json_decref(root);
    return sl_whole_file_close(&w, ok, err);
}

// ---- times ----

void cli_prefill_times_path(const char *profile, char buf[CLI_PROFILE_PATH]) {
    size_t n = strlen(profile);
    int is_json = n > 5 && !strcmp(profile + n - 5, ".json");
    snprintf(buf, CLI_PROFILE_PATH, "%.*s.times.json", (int)(is_json ? n - 5 : n), profile);
}

int cli_prefill_crossover(const cli_prefill_time *times, int n) {
    int crossover = INT_MAX;
    for (int i = n - 1; i >= 0 && times[i].ms <= FASTER * times[i].dense_ms; i--) crossover = times[i].from;
    return crossover;
}

int cli_prefill_times_write(const char *path, const char *device, const cli_prefill_time *times, int n, sl_error *err) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(
            list, json_pack("{s:i, s:f, s:f}", "from", times[i].from, "ms", times[i].ms, "dense_ms", times[i].dense_ms));
    return write_json(path, json_pack("{s:s, s:s, s:o}", "format", times_format, "device", device, "ranges", list), err);
}

// A file that is missing, or that another device wrote, leaves the crossover 0.
static int read_times(const char *profile, const char *device, cli_attn_profile *out, sl_error *err) {
    char path[CLI_PROFILE_PATH];
    json_error_t e;
    cli_prefill_time times[CLI_PROFILE_RANGES];
    cli_prefill_times_path(profile, path);
    if (access(path, F_OK)) return 0;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &e);
    const char *kind = json_string_value(sl_json_get(root, "format")), *name = json_string_value(sl_json_get(root, "device"));
    const json_t *list = sl_json_get(root, "ranges");
    int n = (int)json_array_size(list);
    int good = kind && name && !strcmp(kind, times_format) && n == out->n_ranges;
    for (int i = 0; good && i < n; i++) {
        const json_t *item = json_array_get(list, i), *ms = sl_json_get(item, "ms"), *dense = sl_json_get(item, "dense_ms");
        times[i] = (cli_prefill_time){(int)json_integer_value(sl_json_get(item, "from")), json_number_value(ms),
                                      json_number_value(dense)};
        good = json_is_number(ms) && json_is_number(dense) && times[i].from == out->ranges[i].from;
    }
    if (good && !strcmp(name, device)) out->crossover = cli_prefill_crossover(times, n);
    json_decref(root);
    return good ? 0
                : sl_fail(err, SL_ERR_FORMAT,
                          "%s: expected the times of the ranges of %s; run `sleigh tune` again, or remove it", path, profile);
}

// ---- a profile ----

int cli_attn_profile_read(const char *path, const char *model, int is_dummy, const sl_rope_options *rope, int n_layers,
                          const char *device, cli_attn_profile *out, sl_error *err) {
    static const char *const keys[] = {"format", "model", "prefill", "decode", "auto", NULL};
    json_t *root;
    *out = (cli_attn_profile){0};
    int rc = read_root(path, &root, err);
    const place p = {.path = path, .object = root};
    if (!rc) rc = check_keys(&p, keys, err);
    if (!rc) rc = check_model(&p, model, is_dummy, rope, err);
    if (!rc) rc = read_prefill(&p, out, err);
    if (!rc) rc = read_decode(&p, n_layers, out, err);
    if (!rc) rc = read_auto(&p, out, err);
    if (!rc && out->n_ranges) rc = read_times(path, device, out, err);
    json_decref(root);
    return rc;
}

int cli_attn_profile_hash(const char *path, char out[SL_HASH_TEXT], sl_error *err) {
    char times[CLI_PROFILE_PATH];
    sl_text text = {0};
    cli_prefill_times_path(path, times);
    int rc = check_path(path, err);
    if (!rc) rc = cli_read_file(path, &text, err);
    if (!rc && !access(times, F_OK)) rc = cli_read_file(times, &text, err);
    if (!rc) sl_hash_text(sl_fnv1a(SL_FNV1A_START, text.data, text.n), out);
    sl_text_free(&text);
    return rc;
}

void cli_attn_profile_free(cli_attn_profile *p) {
    sl_attn_plan_free(&p->decode);
}

const sl_attn_spec *cli_attn_profile_choose(const cli_attn_profile *p, int n_tokens) {
    static const sl_attn_spec dense = {.method = &sl_method_dense};
    const sl_attn_spec *found = &dense;
    for (int i = 0; i < p->n_ranges && p->ranges[i].from <= n_tokens; i++)
        if (p->ranges[i].from >= p->crossover) found = &p->ranges[i].attn;
    return found;
}

json_t *cli_attn_profile_model(const char *model, int is_dummy, const sl_rope_options *rope, sl_error *err) {
    cli_fingerprint own;
    if (cli_fingerprint_read(model, is_dummy, rope, &own, err)) return NULL;
    json_t *out = json_pack("{s:s, s:s}", "config", own.config, "weights", own.weights);
    if (!out) sl_fail(err, SL_ERR_MEMORY, "the profile: out of memory");
    return out;
}

int cli_attn_profile_write(const char *path, json_t *model, json_t *prefill, json_t *decode, json_t *calibration,
                           sl_error *err) {
    json_t *root = json_pack("{s:s, s:o}", "format", format, "model", model);
    int bad = !root;
    if (prefill) bad |= json_object_set_new(root, "prefill", prefill);
    if (decode) bad |= json_object_set_new(root, "decode", decode);
    if (calibration) bad |= json_object_set_new(root, "auto", json_pack("{s:o}", "calibration", calibration));
    if (bad) {
        json_decref(root);
        root = NULL;
    }
    return write_json(path, root, err);
}
