// models/rope.c - RoPE: the fields of config.json, the options that replace them, and the frequencies.
//
// With theta the base and d the head dimension, pair i of a head (dimensions i and i + d / 2) turns by position * f_i, and
// unscaled f_i = theta^(-2 i / d). A scaling changes f_i, so that the angles of a long context stay in the range of the trained
// one:
//
//   linear  f_i / factor
//   llama3  by the wavelength: short ones stay, long ones are divided by factor (llama3_scaled)
//   yarn    by the turns of the pair within the original context: those with many turns stay, those with few are divided by
//           factor (yarn_kept; Peng et al., "YaRN", section 3.2). Cosine and sine are multiplied by rope_attention, so a score
//           is multiplied by its square (section 3.4).
//   frequency_factors  f_i / factor i. A GGUF file has the scaling of Llama 3.1 in this form (rope_freqs.weight).
//
// The arithmetic is that of transformers: frequencies in fp32, yarn's bounds in double precision.
#include "attention/attention.h"
#include "base/hash.h"
#include "base/number.h"
#include "models/config_fields.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const type_names[] = {[SL_ROPE_PLAIN] = "plain",
                                         [SL_ROPE_LINEAR] = "linear",
                                         [SL_ROPE_LLAMA3] = "llama3",
                                         [SL_ROPE_YARN] = "yarn",
                                         [SL_ROPE_FACTORS] = "frequency_factors"};
enum { N_TYPES = sizeof type_names / sizeof *type_names };

static const double most_factor = 1e6, least_turns = 1e-3, most_turns = 1e6;

const char *sl_config_rope_name(const sl_config *c) {
    return type_names[c->rope_type];
}

// The factor of cosine and sine that the YaRN paper recommends (equation 22).
static double default_attention(double factor, double mscale) {
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

// ---- config.json ----

static int check_freq_factors(const sl_config *c, const sl_json_file *f, sl_error *err) {
    if (c->rope_high_freq > c->rope_low_freq) return 0;
    return sl_fail(err, SL_ERR_FORMAT, "%s: rope_scaling: high_freq_factor %g is not above low_freq_factor %g", f->path,
                   c->rope_high_freq, c->rope_low_freq);
}

static int read_original_ctx(const sl_json_file *f, const sl_json_file *r, const long long *def, sl_config *c, sl_error *err) {
    static const char name[] = "original_max_position_embeddings"; // beside rope_scaling, the field takes precedence
    return sl_json_int(sl_json_get(f->root, name) ? f : r, name, 1, 1 << 28, def, &c->rope_original_ctx, err);
}

static int read_llama3(const sl_json_file *f, const sl_json_file *r, sl_config *c, sl_error *err) {
    const long long trained = c->n_trained;
    int rc = sl_json_float(r, "low_freq_factor", least_turns, most_turns, NULL, &c->rope_low_freq, err);
    if (!rc) rc = sl_json_float(r, "high_freq_factor", least_turns, most_turns, NULL, &c->rope_high_freq, err);
    if (!rc) rc = read_original_ctx(f, r, &trained, c, err);
    return rc ? rc : check_freq_factors(c, f, err);
}

static int check_betas(const sl_config *c, const sl_json_file *f, sl_error *err) {
    if (c->rope_beta_fast > c->rope_beta_slow && c->rope_theta > 1) return 0;
    return sl_fail(err, SL_ERR_FORMAT,
                   "%s: rope_scaling: yarn needs rope_theta above 1 and beta_fast above beta_slow; found %g, %g, %g", f->path,
                   c->rope_theta, c->rope_beta_fast, c->rope_beta_slow);
}

static int read_yarn(const sl_json_file *f, const sl_json_file *r, sl_config *c, sl_error *err) {
    const double fast = 32, slow = 1, none = 0;
    const long long trained = c->n_trained;
    float mscale, mscale_all, attention;
    int rc = read_original_ctx(f, r, &trained, c, err);
    if (!rc) rc = sl_json_float(r, "beta_fast", least_turns, most_turns, &fast, &c->rope_beta_fast, err);
    if (!rc) rc = sl_json_float(r, "beta_slow", least_turns, most_turns, &slow, &c->rope_beta_slow, err);
    if (!rc) rc = sl_json_float(r, "mscale", 0, 1e3, &none, &mscale, err);
    if (!rc) rc = sl_json_float(r, "mscale_all_dim", 0, 1e3, &none, &mscale_all, err);
    if (!rc) rc = sl_json_float(r, "attention_factor", 1e-6, 1e3, &none, &attention, err);
    if (!rc) rc = sl_json_bool(r, "truncate", 1, &c->rope_truncate, err);
    if (rc) return rc;
    double given = default_attention(c->rope_factor, 1);
    if (mscale && mscale_all) given = default_attention(c->rope_factor, mscale) / default_attention(c->rope_factor, mscale_all);
    c->rope_attention = attention ? attention : (float)given;
    return check_betas(c, f, err);
}

static int read_factors(const sl_json_file *r, sl_config *c, sl_error *err) {
    const json_t *list = sl_json_get(r->root, "factors");
    if (json_array_size(list) != (size_t)c->head_dim / 2)
        return sl_fail(err, SL_ERR_FORMAT, "%s: rope_scaling: field factors has %zu numbers, expected %d", r->path,
                       json_array_size(list), c->head_dim / 2);
    for (int i = 0; i < c->head_dim / 2; i++) {
        double x = json_number_value(json_array_get(list, (size_t)i));
        c->rope_factors[i] = (float)x;
        if (!(x >= 1e-6 && x <= most_factor))
            return sl_fail(err, SL_ERR_FORMAT, "%s: rope_scaling: factor %d is %g, expected 1e-06 to %g", r->path, i, x,
                           most_factor);
    }
    return 0;
}

static int find_type(const char *name, sl_rope_type *out) { // 0: unknown
    for (int i = SL_ROPE_LINEAR; i < N_TYPES; i++)
        if (!strcmp(type_names[i], name)) {
            *out = (sl_rope_type)i;
            return 1;
        }
    return 0;
}

// The keys of rope_scaling and rope_parameters, and the types that read them. transformers goes on without a key that it does
// not know; then the frequencies are not those of the model's authors.
enum { LINEAR = 1 << SL_ROPE_LINEAR, LLAMA3 = 1 << SL_ROPE_LLAMA3, YARN = 1 << SL_ROPE_YARN, EVERY = ~0 };
static const struct {
    const char *name;
    int types;
} keys[] = {
    {"rope_type", EVERY},
    {"type", EVERY},
    {"rope_theta", EVERY},
    {"original_max_position_embeddings", EVERY},
    {"finetuned", EVERY}, // says how the weights were made
    {"factor", LINEAR | LLAMA3 | YARN},
    {"low_freq_factor", LLAMA3},
    {"high_freq_factor", LLAMA3},
    {"attention_factor", YARN},
    {"beta_fast", YARN},
    {"beta_slow", YARN},
    {"mscale", YARN},
    {"mscale_all_dim", YARN},
    {"truncate", YARN},
    {"factors", 1 << SL_ROPE_FACTORS},
};

static int check_keys(const sl_json_file *r, const char *field, const char *type, int type_bit, sl_error *err) {
    const char *key;
    json_t *value;
    json_object_foreach(r->root, key, value) {
        int found = 0, is_read = 0;
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
            if (!strcmp(key, keys[i].name)) found = 1, is_read = (keys[i].types & type_bit) != 0;
        if (is_read || json_is_null(value) || (json_is_number(value) && json_number_value(value) == 1)) continue; // 1: neutral
        if (!found) return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: field %s.%.60s is not supported", r->path, field, key);
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: field %s.%s has no effect, because rope_type is %s%s%s", r->path, field,
                       key, type ? "\"" : "", type ? type : "missing", type ? "\"" : "");
    }
    return 0;
}

// The object that holds the scaling: rope_scaling, unless it is null or empty, else rope_parameters.
static int find_object(const sl_json_file *f, sl_json_file *r, const char **field, sl_error *err) {
    static const char *const fields[] = {"rope_scaling", "rope_parameters"};
    *r = (sl_json_file){f->path, NULL};
    for (int i = 0; i < 2; i++) {
        json_t *v = sl_json_get(f->root, fields[i]);
        if (v && !json_is_object(v))
            return sl_fail(err, SL_ERR_FORMAT, "%s: field %s is %s, expected an object", f->path, fields[i], sl_json_type(v));
        if (r->root || !json_object_size(v)) continue;
        r->root = v;
        *field = fields[i];
    }
    return 0;
}

// rope_theta of the object, else of the file. With both objects, transformers takes 10000 where only rope_parameters has one.
static int read_theta(const sl_json_file *f, const sl_json_file *r, sl_config *c, sl_error *err) {
    const double theta = 10000;
    const json_t *parameters = sl_json_get(f->root, "rope_parameters"), *other = sl_json_get(parameters, "rope_theta");
    int rc = sl_json_float(sl_json_get(r->root, "rope_theta") ? r : f, "rope_theta", 1, 1e12, &theta, &c->rope_theta, err);
    if (rc || !r->root || r->root == parameters || !other || (float)json_number_value(other) == c->rope_theta) return rc;
    return sl_fail(err, SL_ERR_FORMAT,
                   "%s: rope_theta is %g, and %g in rope_parameters, which rope_scaling replaces; expected one value", f->path,
                   (double)c->rope_theta, json_number_value(other));
}

static int read_type(const sl_json_file *r, const char *field, const char **type, sl_error *err) {
    const char *older; // older files use "type"
    int rc = sl_json_string(r, "rope_type", type, err);
    if (!rc) rc = sl_json_string(r, "type", &older, err);
    if (rc || !older) return rc;
    if (*type && strcmp(*type, older))
        return sl_fail(err, SL_ERR_FORMAT, "%s: field %s has rope_type \"%s\" and type \"%s\"", r->path, field, *type, older);
    *type = older;
    return 0;
}

int sl_config_read_rope(const sl_json_file *f, sl_config *c, sl_error *err) {
    const char *field = "rope_scaling", *type;
    sl_json_file r;
    int rc = find_object(f, &r, &field, err);
    if (!rc) rc = read_theta(f, &r, c, err);
    if (!rc) rc = read_type(&r, field, &type, err);
    if (rc) return rc;
    if (type && strcmp(type, "default") && !find_type(type, &c->rope_type))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "%s: field %s has rope_type \"%s\", supported are \"default\", \"linear\", \"llama3\" and \"yarn\"",
                       f->path, field, type);
    rc = check_keys(&r, field, type, 1 << c->rope_type, err);
    if (rc || c->rope_type == SL_ROPE_PLAIN) return rc;
    if (c->rope_type == SL_ROPE_FACTORS) return read_factors(&r, c, err);
    rc = sl_json_float(&r, "factor", 1, most_factor, NULL, &c->rope_factor, err);
    if (!rc && c->rope_type == SL_ROPE_LLAMA3) rc = read_llama3(f, &r, c, err);
    if (!rc && c->rope_type == SL_ROPE_YARN) rc = read_yarn(f, &r, c, err);
    return rc;
}

// ---- options in place of config.json ----

static int check_range(const char *option, double x, double least, double most, sl_error *err) {
    if (x == 0 || (x >= least && x <= most)) return 0; // not NaN
    char text[3][SL_NUMBER_TEXT];
    return sl_fail(err, SL_ERR_ARG, "{%s} %s: expected %s to %s", option, sl_number_text(x, text[0]),
                   sl_number_text(least, text[1]), sl_number_text(most, text[2]));
}

// Each option of a scaling, in the order of the messages.
enum { N_OPTIONS = 7 };
typedef struct rope_option {
    const char *name;
    double value, least, most;
    unsigned types; // bit i: a parameter of type i
} rope_option;

static int check_options(const sl_rope_options *o, int has_type, sl_rope_type type, sl_error *err) {
    const unsigned linear = 1u << SL_ROPE_LINEAR, llama3 = 1u << SL_ROPE_LLAMA3, yarn = 1u << SL_ROPE_YARN;
    const rope_option options[N_OPTIONS] = {
        {"rope_scale", o->factor, 1, most_factor, linear | llama3 | yarn},
        {"rope_original_ctx", o->original_ctx, 1, 1 << 28, llama3 | yarn},
        {"rope_low_freq_factor", o->low_freq_factor, least_turns, most_turns, llama3},
        {"rope_high_freq_factor", o->high_freq_factor, least_turns, most_turns, llama3},
        {"yarn_attention_factor", o->attention_factor, 1e-3, 1e3, yarn},
        {"yarn_beta_fast", o->beta_fast, least_turns, most_turns, yarn},
        {"yarn_beta_slow", o->beta_slow, least_turns, most_turns, yarn},
    };
    int rc = check_range("rope_theta", o->theta, 1, 1e12, err);
    for (int i = 0; !rc && i < N_OPTIONS; i++) {
        const rope_option *p = &options[i];
        rc = check_range(p->name, p->value, p->least, p->most, err);
        if (rc || !p->value || (has_type && p->types >> type & 1)) continue;
        rc = sl_fail(err, SL_ERR_ARG, "{%s} %g needs {rope_scaling} %s", p->name, p->value,
                     p->types == llama3  ? "llama3"
                     : p->types == yarn  ? "yarn"
                     : p->types & linear ? "linear, llama3 or yarn"
                                         : "llama3 or yarn");
    }
    return rc;
}

static float given(double option, float otherwise) {
    return option ? (float)option : otherwise;
}

// Fills the parameters of the type in o->scaling. `before` is the config of the file. If it has the same type, its values are
// the defaults.
static int set_scaling(sl_config *c, const sl_config *before, const sl_rope_options *o, sl_error *err) {
    int same = c->rope_type == before->rope_type;
    if (!o->factor && !same)
        return sl_fail(err, SL_ERR_ARG, "{rope_scaling} %s needs {rope_scale}: how many times the trained context", o->scaling);
    double file_factor = same ? before->rope_factor : 1;
    c->rope_factor = given(o->factor, before->rope_factor);
    c->n_scaled = (int)fmin(before->n_trained * fmax(c->rope_factor / file_factor, 1), SL_MOST_POSITIONS);
    if (c->rope_type == SL_ROPE_LINEAR) return 0;
    c->rope_original_ctx = o->original_ctx ? o->original_ctx : same ? before->rope_original_ctx : before->n_trained;
    if (c->rope_type == SL_ROPE_LLAMA3) {
        c->rope_low_freq = given(o->low_freq_factor, same ? before->rope_low_freq : 1);
        c->rope_high_freq = given(o->high_freq_factor, same ? before->rope_high_freq : 4);
        if (c->rope_high_freq > c->rope_low_freq) return 0;
        return sl_fail(err, SL_ERR_ARG, "{rope_high_freq_factor} %g: expected more than {rope_low_freq_factor}, which is %g",
                       c->rope_high_freq, c->rope_low_freq);
    }
    double scaled = (double)c->rope_original_ctx * c->rope_factor;
    c->n_scaled = (int)fmin(fmax(scaled, before->n_trained), SL_MOST_POSITIONS);
    c->rope_beta_fast = given(o->beta_fast, same ? before->rope_beta_fast : 32);
    c->rope_beta_slow = given(o->beta_slow, same ? before->rope_beta_slow : 1);
    c->rope_truncate = same ? before->rope_truncate : 1;
    c->rope_attention = same && !o->factor ? before->rope_attention : (float)default_attention(c->rope_factor, 1);
    c->rope_attention = given(o->attention_factor, c->rope_attention);
    if (c->rope_theta <= 1)
        return sl_fail(err, SL_ERR_ARG, "{rope_theta} %g: {rope_scaling} yarn needs more than 1", c->rope_theta);
    if (c->rope_beta_fast > c->rope_beta_slow) return 0;
    return sl_fail(err, SL_ERR_ARG, "{yarn_beta_fast} %g: expected more than {yarn_beta_slow}, which is %g", c->rope_beta_fast,
                   c->rope_beta_slow);
}

int sl_config_change_rope(sl_config *c, const sl_rope_options *o, sl_error *err) {
    const sl_config before = *c;
    sl_rope_type type = SL_ROPE_PLAIN;
    if (o->scaling && strcmp(o->scaling, "none") && (!find_type(o->scaling, &type) || type == SL_ROPE_FACTORS))
        return sl_fail(err, SL_ERR_ARG, "{rope_scaling} %.40s: expected none, linear, llama3 or yarn", o->scaling);
    int rc = check_options(o, o->scaling != NULL, type, err);
    if (rc) return rc;
    c->is_rope_changed = o->scaling || o->theta;
    c->rope_theta = given(o->theta, c->rope_theta);
    if (!o->scaling) return 0;
    c->rope_type = type, c->rope_factor = 1, c->rope_attention = 1;
    c->rope_original_ctx = 0, c->rope_low_freq = 0, c->rope_high_freq = 0;
    c->n_ctx = c->n_trained > SL_MOST_POSITIONS ? c->n_trained : SL_MOST_POSITIONS;
    rc = type == SL_ROPE_PLAIN ? 0 : set_scaling(c, &before, o, err);
    if (c->window && c->window < c->n_ctx) c->n_ctx = c->window;
    if (c->n_scaled > c->n_ctx) c->n_scaled = c->n_ctx;
    return rc;
}

void sl_config_describe_rope(const sl_config *c, char *buf, size_t size) {
    int n = sl_print(buf, size, "theta %.9g, %s", (double)c->rope_theta, sl_config_rope_name(c));
    if (c->rope_type == SL_ROPE_FACTORS) {
        char hash[SL_HASH_TEXT];
        sl_hash_text(sl_fnv1a(SL_FNV1A_START, c->rope_factors, (size_t)c->head_dim / 2 * sizeof(float)), hash);
        sl_print(buf + n, size - (size_t)n, ", %s", hash);
        return;
    }
    if (c->rope_type != SL_ROPE_PLAIN) n += sl_print(buf + n, size - (size_t)n, ", factor %.9g", (double)c->rope_factor);
    if (c->rope_type == SL_ROPE_LLAMA3)
        sl_print(buf + n, size - (size_t)n, ", original context %d, frequency factors %.9g and %.9g", c->rope_original_ctx,
                 (double)c->rope_low_freq, (double)c->rope_high_freq);
    if (c->rope_type == SL_ROPE_YARN)
        sl_print(buf + n, size - (size_t)n, ", original context %d, attention factor %.9g, beta %.9g and %.9g%s",
                 c->rope_original_ctx, (double)c->rope_attention, (double)c->rope_beta_fast, (double)c->rope_beta_slow,
                 c->rope_truncate ? "" : ", not truncated");
}

// ---- frequencies ----

// Llama 3.1's rule. A frequency with a wavelength below original / high does not change. A frequency with a wavelength above
// original / low is divided by factor. Between the two wavelengths the result is interpolated linearly in original /
// wavelength.
static float llama3_scaled(const sl_config *c, float freq) {
    const float pi2 = 6.283185307179586f;
    float wavelength = pi2 / freq, original = (float)c->rope_original_ctx;
    if (wavelength < original / c->rope_high_freq) return freq;
    if (wavelength > original / c->rope_low_freq) return freq / c->rope_factor;
    float smooth = (original / wavelength - c->rope_low_freq) / (c->rope_high_freq - c->rope_low_freq);
    return (1 - smooth) * freq / c->rope_factor + smooth * freq;
}

// The pair, as a real number, whose frequency makes `turns` turns within the original context.
static double pair_of_turns(const sl_config *c, double turns) {
    const double pi2 = 6.283185307179586;
    return c->head_dim * log(c->rope_original_ctx / (turns * pi2)) / (2 * log((double)c->rope_theta));
}

// 1: pair i keeps its frequency; 0: the frequency is divided by factor; between the pairs of beta_fast and beta_slow turns the
// share falls linearly.
static float yarn_kept(const sl_config *c, int i) {
    double low = pair_of_turns(c, c->rope_beta_fast), high = pair_of_turns(c, c->rope_beta_slow);
    if (c->rope_truncate) low = floor(low), high = ceil(high);
    low = fmax(low, 0), high = fmin(high, c->head_dim - 1);
    if (low == high) high += 0.001;
    float ramp = ((float)i - (float)low) / (float)(high - low);
    return 1 - fminf(fmaxf(ramp, 0), 1);
}

void sl_config_rope(const sl_config *c, float *inv_freq) {
    for (int i = 0; i < c->head_dim / 2; i++) {
        float exponent = (float)(2 * i) / (float)c->head_dim, power = powf(c->rope_theta, exponent);
        float freq = 1.0f / power;
        if (c->rope_type == SL_ROPE_LINEAR) freq /= c->rope_factor;
        if (c->rope_type == SL_ROPE_FACTORS) freq /= c->rope_factors[i];
        if (c->rope_type == SL_ROPE_LLAMA3) freq = llama3_scaled(c, freq);
        if (c->rope_type == SL_ROPE_YARN) {
            float kept = yarn_kept(c, i);
            freq = 1.0f / (c->rope_factor * power) * (1 - kept) + freq * kept;
        }
        inv_freq[i] = freq;
    }
}
