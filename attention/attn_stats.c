// attention/attn_stats.c - see attn_stats.h.
#include "attention/attn_stats.h"

#include <math.h>
#include <string.h>

void sl_attn_stats_add(sl_attn_stats *to, const sl_attn_stats *from) {
#define ADD_SUM(NAME) to->NAME += from->NAME;
#define ADD_SHARE(NAME) to->NAME += from->NAME;
#define ADD_MOST(NAME) to->NAME = fmax(to->NAME, from->NAME);
#define ADD(NAME, KIND, REPORT, FIELD, GPU) ADD_##KIND(NAME)
    SL_ATTN_COUNTERS(ADD)
}

void sl_attn_stats_add_stated(sl_attn_stats *to, double stated_error, int certified) {
    to->stated++;
    to->certified += certified;
    if (!(stated_error <= SL_STATED_MOST)) {
        to->unbounded++;
        return;
    }
    to->stated_units += (uint64_t)(stated_error * SL_STATED_UNIT + 0.5);
    to->stated_most = fmax(to->stated_most, stated_error);
}

double sl_attn_stats_stated_mean(const sl_attn_stats *s) {
    uint64_t n = s->stated - s->unbounded;
    return n ? (double)s->stated_units / SL_STATED_UNIT / (double)n : NAN;
}

double sl_attn_stats_stated_most(const sl_attn_stats *s) {
    return s->stated > s->unbounded ? s->stated_most : NAN;
}

// ---- numbers of kernels ----

static uint64_t SUM_of(unsigned long long counted) {
    return counted;
}

static double SHARE_of(unsigned long long counted) {
    return (double)counted / 1024;
}

static double MOST_of(unsigned long long bits) {
    uint32_t word = (uint32_t)bits;
    float x;
    memcpy(&x, &word, sizeof x);
    return x;
}

sl_attn_stats sl_attn_stats_of_kernels(const sl_attn_cuda_stats *counted) {
    sl_attn_stats out = {0};
#define TAKE_HOST(NAME, KIND)
#define TAKE_KERNEL(NAME, KIND) out.NAME = KIND##_of(counted->NAME);
#define TAKE(NAME, KIND, REPORT, FIELD, GPU) TAKE_##GPU(NAME, KIND)
    SL_ATTN_COUNTERS(TAKE)
    return out;
}

// ---- names ----

const char *sl_attn_counter(const sl_attn_stats *s, int i, double *value) {
    int at = 0;
#define NAMED(NAME, KIND, REPORT, FIELD, GPU)                                                                                  \
    if (at++ == i) return *value = (double)s->NAME, #NAME;
    SL_ATTN_COUNTERS(NAMED)
    return NULL;
}
