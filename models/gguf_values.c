// models/gguf_values.c - reads the values of a GGUF file's metadata. See gguf.h.
#include "models/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    size_t size; // 0: no fixed size
} value_types[] = {
    [SL_GGUF_U8] = {"u8", 1},         [SL_GGUF_I8] = {"i8", 1},       [SL_GGUF_U16] = {"u16", 2}, [SL_GGUF_I16] = {"i16", 2},
    [SL_GGUF_U32] = {"u32", 4},       [SL_GGUF_I32] = {"i32", 4},     [SL_GGUF_F32] = {"f32", 4}, [SL_GGUF_BOOL] = {"bool", 1},
    [SL_GGUF_STRING] = {"string", 0}, [SL_GGUF_ARRAY] = {"array", 0}, [SL_GGUF_U64] = {"u64", 8}, [SL_GGUF_I64] = {"i64", 8},
    [SL_GGUF_F64] = {"f64", 8},
};

const char *sl_gguf_type_name(sl_gguf_type type) {
    return value_types[type].name;
}

size_t sl_gguf_type_size(sl_gguf_type type) {
    return value_types[type].size;
}

static int by_key(const void *a, const void *b) {
    return strcmp(((const sl_gguf_value *)a)->key, ((const sl_gguf_value *)b)->key);
}

const sl_gguf_value *sl_gguf_find(const sl_gguf *g, const char *key) {
    const sl_gguf_value want = {.key = (char *)key};
    return g->n_values ? bsearch(&want, g->values, (size_t)g->n_values, sizeof want, by_key) : NULL;
}

static int is_int(sl_gguf_type type) {
    return type <= SL_GGUF_I32 || type == SL_GGUF_U64 || type == SL_GGUF_I64;
}

static int wrong_type(const sl_gguf *g, const sl_gguf_value *v, const char *want, sl_error *err) {
    return sl_fail(err, SL_ERR_FORMAT, "%s: key %.200s has type %s%s%s, expected %s", g->path, v->key,
                   sl_gguf_type_name(v->type), v->type == SL_GGUF_ARRAY ? " of " : "",
                   v->type == SL_GGUF_ARRAY ? sl_gguf_type_name(v->item_type) : "", want);
}

static int missing(const sl_gguf *g, const char *key, sl_error *err) {
    return sl_fail(err, SL_ERR_FORMAT, "%s: key %s is missing", g->path, key);
}

static uint64_t bits_at(const char *at, size_t size) {
    uint64_t x = 0;
    for (size_t i = size; i-- > 0;) x = x << 8 | (unsigned char)at[i];
    return x;
}

// An integer of 64 bits without a sign that is larger than LLONG_MAX becomes LLONG_MAX: no getter allows such a number.
static long long int_of(sl_gguf_type type, const char *at) {
    switch (type) {
    case SL_GGUF_U8:
        return (long long)bits_at(at, 1);
    case SL_GGUF_I8:
        return (int8_t)bits_at(at, 1);
    case SL_GGUF_U16:
        return (long long)bits_at(at, 2);
    case SL_GGUF_I16:
        return (int16_t)bits_at(at, 2);
    case SL_GGUF_U32:
        return (long long)bits_at(at, 4);
    case SL_GGUF_I32:
        return (int32_t)bits_at(at, 4);
    case SL_GGUF_U64:
        return bits_at(at, 8) > INT64_MAX ? INT64_MAX : (long long)bits_at(at, 8);
    default:
        return (int64_t)bits_at(at, 8);
    }
}

int sl_gguf_int(const sl_gguf *g, const char *key, long long min, long long max, const long long *def, long long *out,
                sl_error *err) {
    const sl_gguf_value *v = sl_gguf_find(g, key);
    if (!v) {
        if (!def) return missing(g, key, err);
        *out = *def;
        return 0;
    }
    if (!is_int(v->type)) return wrong_type(g, v, "an integer", err);
    *out = int_of(v->type, v->at);
    if (*out >= min && *out <= max) return 0;
    return sl_fail(err, SL_ERR_FORMAT, "%s: key %s is %lld, expected %lld to %lld", g->path, key, *out, min, max);
}

static float f32_of(const char *at) {
    uint32_t u = (uint32_t)bits_at(at, 4);
    float x;
    memcpy(&x, &u, 4);
    return x;
}

int sl_gguf_float(const sl_gguf *g, const char *key, double min, double max, const double *def, double *out, sl_error *err) {
    const sl_gguf_value *v = sl_gguf_find(g, key);
    if (!v) {
        if (!def) return missing(g, key, err);
        *out = *def;
        return 0;
    }
    if (v->type == SL_GGUF_F32) {
        *out = f32_of(v->at);
    } else if (v->type == SL_GGUF_F64) {
        uint64_t u = bits_at(v->at, 8);
        memcpy(out, &u, 8);
    } else {
        return wrong_type(g, v, "f32 or f64", err);
    }
    if (*out >= min && *out <= max) return 0; // not NaN
    return sl_fail(err, SL_ERR_FORMAT, "%s: key %s is %g, expected %g to %g", g->path, key, *out, min, max);
}

int sl_gguf_bool(const sl_gguf *g, const char *key, int def, int *out, sl_error *err) {
    const sl_gguf_value *v = sl_gguf_find(g, key);
    *out = def;
    if (!v) return 0;
    if (v->type != SL_GGUF_BOOL) return wrong_type(g, v, "bool", err);
    *out = *v->at;
    return 0;
}

int sl_gguf_text(const sl_gguf *g, const char *key, sl_gguf_string *out, sl_error *err) {
    const sl_gguf_value *v = sl_gguf_find(g, key);
    *out = (sl_gguf_string){0};
    if (!v) return 0;
    if (v->type != SL_GGUF_STRING) return wrong_type(g, v, "string", err);
    const char *at = v->at;
    *out = sl_gguf_next_string(&at);
    return 0;
}

int sl_gguf_array(const sl_gguf *g, const char *key, sl_gguf_type item_type, const sl_gguf_value **out, sl_error *err) {
    char want[40];
    *out = sl_gguf_find(g, key);
    if (!*out) return 0;
    if ((*out)->type == SL_GGUF_ARRAY &&
        ((*out)->item_type == item_type || (item_type == SL_GGUF_I32 && is_int((*out)->item_type))))
        return 0;
    snprintf(want, sizeof want, "array of %s", item_type == SL_GGUF_I32 ? "integers" : sl_gguf_type_name(item_type));
    return wrong_type(g, *out, want, err);
}

long long sl_gguf_int_at(const sl_gguf_value *array, uint64_t i) {
    SL_CHECK(is_int(array->item_type) && i < array->n);
    return int_of(array->item_type, array->at + i * sl_gguf_type_size(array->item_type));
}

float sl_gguf_float_at(const sl_gguf_value *array, uint64_t i) {
    SL_CHECK(array->item_type == SL_GGUF_F32 && i < array->n);
    return f32_of(array->at + 4 * i);
}

sl_gguf_string sl_gguf_next_string(const char **at) {
    sl_gguf_string s = {*at + 8, (size_t)bits_at(*at, 8)};
    *at = s.at + s.n;
    return s;
}

int sl_gguf_equals(sl_gguf_string s, const char *text) {
    return s.at && s.n == strlen(text) && !memcmp(s.at, text, s.n);
}
