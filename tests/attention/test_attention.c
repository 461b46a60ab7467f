// tests/attention/test_attention.c - the registry, the grammar of --attn, and the plan of layers.
#include "attention/attention.h"
#include "tests/support/reference.h"
#include "tests/support/threads.h"
#include "tests/test.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static sl_error err;

static sl_attn_spec parse(const char *text) {
    sl_attn_spec spec;
    CHECK_OK(sl_attn_parse(text, &spec, &err), err);
    return spec;
}

static void registry(void) {
    CHECK_STR(sl_attn_methods[0]->name, "dense");
    for (int i = 0; sl_attn_methods[i]; i++) {
        const sl_attn_method *m = sl_attn_methods[i];
        CHECK(sl_attn_find(m->name) == m);
        CHECK(m->summary && m->source && m->cpu);
        if (m->cpu->decode) CHECK(m->cpu->workspace);
        if (!m->cpu->decode) CHECK(!m->cpu->mask != !m->cpu->skip_distance && !m->cpu->needs && !m->cpu->state);
        for (const char *p = m->name; *p; p++) CHECK(islower((unsigned char)*p) || isdigit((unsigned char)*p) || *p == '-');
        for (int j = 0; j < i; j++) CHECK(strcmp(m->name, sl_attn_methods[j]->name));
        int n = 0;
        for (const sl_attn_param *p = m->params; p && p->name; p++, n++) CHECK(p->min <= p->def && p->def <= p->max && p->help);
        CHECK(n <= SL_ATTN_MAX_PARAMS);
    }
    CHECK(!sl_attn_find("nothing"));
}

static void check_round_trip(const char *name) { // a formatted specification parses to the same specification
    char text[256];
    sl_attn_spec a = parse(name), b;
    sl_attn_format(&a, text, sizeof text);
    b = parse(text);
    CHECK(b.method == a.method && !memcmp(a.value, b.value, sizeof a.value));
    CHECK(b.plus == a.plus && !memcmp(a.plus_value, b.plus_value, sizeof a.plus_value));
}

// A buffer that is too short holds the beginning of the text.
static void check_cut(const char *name) {
    char text[256];
    sl_attn_spec a = parse(name);
    sl_attn_format(&a, text, sizeof text);
    for (size_t size = 1; size <= strlen(text) + 1; size++) { // a buffer that is too short holds the beginning
        char cut[300];
        memset(cut, '#', sizeof cut);
        sl_attn_format(&a, cut, size);
        CHECK(memchr(cut, 0, size) && !strncmp(cut, text, strlen(cut)) && strlen(cut) + 2 >= size);
        for (size_t i = size; i < sizeof cut; i++) CHECK(cut[i] == '#');
    }
}

// Different numbers have different texts, and no text is longer than needed.
static void digits(void) {
    static const char *const texts[] = {"vattention:epsilon=0.05",
                                        "vattention:epsilon=0.050000001",
                                        "vattention:epsilon=0.05000000000000001",
                                        "vattention:epsilon=0.1:delta=0.012345678901234567:top=0.3:base=0.20000000000000004",
                                        "santa-pps:epsilon=0.1:delta=1e-09",
                                        "quest:tokens=1048575"};
    static const char *const same[] = {"quest:tokens=1048575", "santa-pps:epsilon=0.1:delta=1e-09"};
    char text[256], other[256];
    check_cut("bernoulli:B=8+santa-prop:S=128");
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        check_round_trip(texts[i]), check_cut(texts[i]);
        sl_attn_spec a = parse(texts[i]), b = parse(texts[i ? i - 1 : 1]);
        sl_attn_format(&a, text, sizeof text), sl_attn_format(&b, other, sizeof other);
        CHECK(strcmp(text, other));
    }
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        sl_attn_spec a = parse(same[i]);
        sl_attn_format(&a, text, sizeof text);
        CHECK_STR(text, same[i]);
    }
    uint64_t state = test_seed;
    for (int i = 0; i < 2000; i++) { // all digits of a double
        snprintf(other, sizeof other, "vattention:epsilon=%.17g", 1e-4 + 0.5 * test_uniform(&state));
        check_round_trip(other);
    }
}

static void values(void) {
    sl_attn_spec spec = parse("santa-prop");
    CHECK_INT(sl_attn_get(&spec, "S"), 128);
    spec = parse("santa-flash");
    CHECK_INT(sl_attn_get(&spec, "S"), 2048);
    spec = parse("santa-sys:S=17");
    CHECK_INT(sl_attn_get(&spec, "S"), 17);
    spec = parse("santa:S=2k");
    CHECK_INT(sl_attn_get(&spec, "S"), 2048);
    CHECK_OK(sl_attn_set(&spec, "S", "64K", &err), err);
    CHECK_INT(sl_attn_get(&spec, "S"), 65536);
    spec = parse("bernoulli-group:B=4+santa-pps:S=64:budget=variance");
    CHECK(sl_attn_has(&spec, "B") && sl_attn_has(&spec, "S") && !sl_attn_has(&spec, "k"));
    CHECK_INT(sl_attn_get(&spec, "B"), 4);
    CHECK_INT(sl_attn_get(&spec, "S"), 64);
    CHECK_INT(sl_attn_get(&spec, "budget"), 1);
    CHECK_OK(sl_attn_set(&spec, "budget", "even", &err), err);
    CHECK_INT(sl_attn_get(&spec, "budget"), 0);
    for (int i = 0; sl_attn_methods[i]; i++) check_round_trip(sl_attn_methods[i]->name);
    check_round_trip("bernoulli:B=3:bernoulli-sampling=iid+santa-pps:S=64:budget=variance:pps=sys");
}

static void refusals(void) {
    static const struct {
        const char *text;
        int code;
        const char *part;
    } bad[] = {
        {"santa-porp", SL_ERR_ARG, "did you mean santa-prop?"},
        {"", SL_ERR_ARG, "unknown method"},
        {"densee:S=1", SL_ERR_ARG, "did you mean dense?"},
        {"dense:S=4", SL_ERR_ARG, "no parameters"},
        {"santa:T=4", SL_ERR_ARG, "unknown parameter \"T\"; expected one of S, budget"},
        {"santa-prop:budgte=even", SL_ERR_ARG, "did you mean budget?"},
        {"santa:S", SL_ERR_ARG, "NAME=VALUE"},
        {"santa:S=0", SL_ERR_ARG, "from 1 to 65536"},
        {"santa:S=65537", SL_ERR_ARG, "65536"},
        {"santa:S=1.5", SL_ERR_ARG, "integer"},
        {"santa:S=", SL_ERR_ARG, "S "},
        {"santa:S=4x", SL_ERR_ARG, "4x"},
        {"santa:S=nan", SL_ERR_ARG, "nan"},
        {"santa:S=-1", SL_ERR_ARG, "-1"},
        {"dense+santa:S=4", SL_ERR_UNSUPPORTED, "takes a set of rows"},
        {"santa:S= 4", SL_ERR_ARG, "S "},
        {"santa-prop:budget=odd", SL_ERR_ARG, "even,variance"},
        {"santa-prop:budget=1", SL_ERR_ARG, "even,variance"},
        {"santa-prop:tile=128k", SL_ERR_ARG, "64,128,256,512"},
        {"santa-sys:tile=64", SL_ERR_ARG, "tile"},
        {"santa-sys:value=sums", SL_ERR_ARG, "counts,adds"},
        {"santa-flash:value=adds", SL_ERR_ARG, "value"},
        {"vattention:epsilon=0", SL_ERR_ARG, "0.0001"},
        {"bernoulli+dense", SL_ERR_UNSUPPORTED, "draw rows of V"},
        {"bernoulli+santa-is", SL_ERR_UNSUPPORTED, "draw rows of V"},
        {"sample+santa", SL_ERR_UNSUPPORTED, "takes a set of rows"},
        {"bernoulli+sample", SL_ERR_UNSUPPORTED, "draw rows of V"},
        {"sample:alpha_c=1.01", SL_ERR_ARG, "from 0 to 1"},
        {"santa+santa", SL_ERR_UNSUPPORTED, "takes a set of rows"},
        {"bernoulli+", SL_ERR_ARG, "unknown method"},
        {"bernoulli+santa-prop:B=8", SL_ERR_ARG, "\"B\""},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        sl_attn_spec spec;
        CHECK_ERR(sl_attn_parse(bad[i].text, &spec, &err), err, bad[i].code, bad[i].part);
    }
    char text[1024];
    sl_attn_spec spec;
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = 0;
    CHECK_ERR(sl_attn_parse(text, &spec, &err), err, SL_ERR_ARG, "characters");
}

static void phases(void) {
    static const char *const want[][2] = {
        {"dense", "decode, prefill"}, {"streaming", "decode, prefill"}, {"santa-pps", "decode"},
        {"sample", "prefill"},        {"threshold", "prefill"},         {"oracle", "prefill"},
        {"bigbird", "prefill"},       {"hash-sparse", "prefill"},       {"hyperattention", "prefill"}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        sl_attn_spec spec = parse(want[i][0]);
        CHECK_STR(sl_attn_phases(spec.method), want[i][1]);
        if (strstr(want[i][1], "decode"))
            CHECK_OK(sl_attn_check_decode(&spec, &err), err);
        else
            CHECK_ERR(sl_attn_check_decode(&spec, &err), err, SL_ERR_ARG, "a method for prefill");
    }
}

static void plan_rules(void) {
    sl_attn_plan plan;
    sl_attn_spec all = parse("santa-prop:S=64");
    CHECK_OK(sl_attn_plan_init(&plan, 6, &all, &err), err);
    CHECK_OK(sl_attn_plan_set(&plan, "attn_layer", "0=dense", &err), err);
    CHECK_OK(sl_attn_plan_set(&plan, "attn_layer", "2-4=santa:S=9", &err), err);
    static const char *const want[] = {"dense", "santa-prop", "santa", "santa", "santa", "santa-prop"};
    for (int i = 0; i < 6; i++) CHECK_STR(plan.layer[i].method->name, want[i]);
    CHECK_INT(sl_attn_get(&plan.layer[3], "S"), 9);
    CHECK_INT(sl_attn_get(&plan.layer[5], "S"), 64);
    static const struct {
        const char *rule, *part;
    } bad[] = {
        {"6=dense", "0 to 5"},           {"3-2=dense", "in order"},    {"=dense", "LAYER=METHOD"},
        {"1", "LAYER=METHOD"},           {"-1=dense", "LAYER=METHOD"}, {"1-=dense", "LAYER=METHOD"},
        {"1=nothing", "unknown method"}, {"1x=dense", "LAYER=METHOD"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_ERR(sl_attn_plan_set(&plan, "attn_layer", bad[i].rule, &err), err, SL_ERR_ARG, bad[i].part);
    for (int i = 0; i < 6; i++) CHECK_STR(plan.layer[i].method->name, want[i]); // a refused rule changes nothing
    sl_attn_plan_free(&plan);
}

static int schedule(sl_attn_plan *plan, const char *content) {
    char path[256];
    snprintf(path, sizeof path, "%s/schedule", test_tmp());
    FILE *f = fopen(path, "w");
    CHECK(f && fputs(content, f) >= 0);
    fclose(f);
    return sl_attn_plan_schedule(plan, path, &err);
}

static void schedules(void) {
    sl_attn_plan plan;
    sl_attn_spec all = parse("santa-prop");
    CHECK_OK(sl_attn_plan_init(&plan, 3, &all, &err), err);
    CHECK_OK(schedule(&plan, "# layer S\n0 16\n\n2 1k # the last\n"), err);
    CHECK_INT(sl_attn_get(&plan.layer[0], "S"), 16);
    CHECK_INT(sl_attn_get(&plan.layer[1], "S"), 128);
    CHECK_INT(sl_attn_get(&plan.layer[2], "S"), 1024);
    CHECK_ERR(schedule(&plan, "0 16\n3 4\n"), err, SL_ERR_ARG, "line 2");
    CHECK_ERR(schedule(&plan, "0 16 7\n"), err, SL_ERR_ARG, "line 1");
    CHECK_ERR(schedule(&plan, "0\n"), err, SL_ERR_ARG, "LAYER S");
    CHECK_ERR(schedule(&plan, "1 4\n1 5\n"), err, SL_ERR_ARG, "twice");
    CHECK_ERR(schedule(&plan, "1 0\n"), err, SL_ERR_ARG, "65536");
    char comment[512]; // the part of a line after its 255th byte must not be read as a line
    for (int n = 250; n < 260; n++) {
        snprintf(comment, sizeof comment, "#%*s0 7\n1 9\n", n, "");
        CHECK_OK(schedule(&plan, comment), err);
        CHECK_INT(sl_attn_get(&plan.layer[0], "S"), 16);
        CHECK_INT(sl_attn_get(&plan.layer[1], "S"), 9);
    }
    snprintf(comment, sizeof comment, "%070d5\n", 0); // one word, not layer 0 and S = 5
    CHECK_ERR(schedule(&plan, comment), err, SL_ERR_ARG, "line 1: expected \"LAYER S\"");
    CHECK_OK(sl_attn_plan_set(&plan, "attn_layer", "1=dense", &err), err);
    CHECK_ERR(schedule(&plan, "1 4\n"), err, SL_ERR_ARG, "no parameters");
    CHECK_ERR(sl_attn_plan_schedule(&plan, "/nowhere/schedule", &err), err, SL_ERR_IO, "/nowhere/schedule");
    sl_attn_plan_free(&plan);
}

// Every row of the Markdown table has six cells: a "|" of a text must be escaped, or it would end the cell.
static void listing(void) {
    char *text = NULL;
    size_t n;
    int n_rows = 0;
    FILE *f = open_memstream(&text, &n);
    sl_attn_list(f);
    fclose(f);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"), n_rows++) {
        int n_bars = 0;
        char plain[4096], *to = plain;
        CHECK(strlen(line) < sizeof plain);
        for (const char *c = line; *c; c++) {
            if (*c == '\\' && c[1] == '|')
                c++;
            else
                n_bars += *c == '|';
            *to++ = *c;
        }
        *to = 0;
        CHECK_INT(n_bars, 8);
        if (n_rows < 2) continue; // the heading
        const sl_attn_method *m = sl_attn_methods[n_rows - 2];
        if (!strstr(plain, m->name) || !strstr(plain, m->summary)) FAIL("row %d lacks %s: %s", n_rows, m->name, m->summary);
    }
    CHECK(n_rows > 2 && !sl_attn_methods[n_rows - 2]);
    free(text);
}

// One and many threads, alone and in a ragged batch of 16 sequences: equal bits.
static void check_bits(ref_cache *c, const char *attn) {
    size_t row = (size_t)c->geom.n_heads * c->geom.head_dim, bytes = c->n_seqs * row * sizeof(float);
    float *want = malloc(bytes);
    test_threads(3);
    ref_decode(c, attn, 0, c->n_seqs, 9, 2);
    memcpy(want, c->out, bytes);
    for (size_t i = 0; i < c->n_seqs * row; i++)
        if (!isfinite(want[i])) FAIL("%s: output %zu is not finite", attn, i);
    test_threads(1);
    ref_decode(c, attn, 0, c->n_seqs, 9, 2);
    if (memcmp(want, c->out, bytes)) FAIL("%s: one thread gives other bits", attn);
    for (int s = 0; s < c->n_seqs; s++) {
        memset(c->out, 0xff, bytes);
        ref_decode(c, attn, s, 1, 9, 2);
        if (memcmp(want + s * row, c->out + s * row, row * sizeof *want))
            FAIL("%s: sequence %d alone gives other bits", attn, s);
    }
    free(want);
}

// Every method of the registry, and parameters that change the path through the code.
static void same_bits(void) {
    static const char *const more[] = {
        "santa-pps:epsilon=0.3",
        "santa-pps:pps=sys",
        "santa-prop:tile=64",
        "santa-flash:tile=512:S=300",
        "santa-prop:value=adds",
        "santa-pps:budget=variance",
        "santa-is:proposal=int3",
        "santa-is:proposal=int8:S=40",
        "dense-q:bits=3",
        "quest:tokens=128",
        "magicpig:K=6:L=40:hits=1",
        "vattention:sink=16:window=16",
        "streaming:window=100",
        "bernoulli:bernoulli-sampling=iid",
        "bernoulli-group:B=4+santa-prop:S=32",
        "bernoulli:B=4+santa-pps:S=32",
        "topk:k=100+santa-sys:S=16",
        "quest:tokens=128+santa-prop:S=16",
        "streaming:window=300+santa-pps:S=16",
        "saap:l=2:window=100:dense-layers=0+santa-sys:S=16:budget=variance",
        "vattention:predictor=int4:sink=16:window=16",
        "vattention:predictor=quest:sink=16:window=16",
        "vattention:bound=hoeffding:sink=16:window=16",
    };
    int n[16];
    for (int i = 0; i < 16; i++) n[i] = ((const int[]){1, 31, 255, 256, 257, 1023, 1025, 2000})[i % 8] + i / 8;
    ref_cache c = ref_cache_new(8, 2, 64, 16, n, 2, test_seed);
    for (int i = 0; sl_attn_methods[i]; i++)
        if (sl_attn_methods[i]->cpu->decode) check_bits(&c, sl_attn_methods[i]->name);
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) check_bits(&c, more[i]);
    ref_cache_free(&c);
}

static const test_case cases[] = {
    {"registry", 0, registry},   {"phases", 0, phases},
    {"values", 0, values},       {"digits", 0, digits},
    {"refusals", 0, refusals},   {"plan-rules", 0, plan_rules},
    {"schedules", 0, schedules}, {"listing", 0, listing},
    {"same-bits", 0, same_bits}, {0},
};
const test_suite suite_attention = {"attention", cases};
