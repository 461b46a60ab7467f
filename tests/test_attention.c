// tests/test_attention.c - the registry, the grammar of --attn, and the plan of layers.
#include "attention/attention.h"
#include "tests/test.h"

#include <ctype.h>
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
        CHECK(m->summary && m->source && m->cpu && m->cpu->workspace && m->cpu->decode);
        for (const char *p = m->name; *p; p++) CHECK(islower((unsigned char)*p) || isdigit((unsigned char)*p) || *p == '-');
        for (int j = 0; j < i; j++) CHECK(strcmp(m->name, sl_attn_methods[j]->name));
        int n = 0;
        for (const sl_attn_param *p = m->params; p && p->name; p++, n++) CHECK(p->min <= p->def && p->def <= p->max && p->help);
        CHECK(n <= SL_ATTN_MAX_PARAMS);
    }
    CHECK(!sl_attn_find("nothing"));
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
    for (int i = 0; sl_attn_methods[i]; i++) { // what is formatted parses to the same
        char text[256];
        sl_attn_spec a = parse(sl_attn_methods[i]->name), b;
        sl_attn_format(&a, text, sizeof text);
        b = parse(text);
        CHECK(b.method == a.method && !memcmp(a.value, b.value, sizeof a.value));
    }
}

static void refusals(void) {
    static const struct {
        const char *text;
        int code;
        const char *part;
    } bad[] = {
        {"santa-porp", SL_ERR_ARG, "\"santa-prop\""},
        {"", SL_ERR_ARG, "unknown method"},
        {"densee:S=1", SL_ERR_ARG, "\"dense\""},
        {"dense:S=4", SL_ERR_ARG, "no parameters"},
        {"santa:T=4", SL_ERR_ARG, "\"S\""},
        {"santa:S", SL_ERR_ARG, "NAME=VALUE"},
        {"santa:S=0", SL_ERR_ARG, "from 1 to 65536"},
        {"santa:S=65537", SL_ERR_ARG, "65536"},
        {"santa:S=1.5", SL_ERR_ARG, "integer"},
        {"santa:S=", SL_ERR_ARG, "--S"},
        {"santa:S=4x", SL_ERR_ARG, "4x"},
        {"santa:S=nan", SL_ERR_ARG, "nan"},
        {"santa:S=-1", SL_ERR_ARG, "-1"},
        {"dense+santa:S=4", SL_ERR_UNSUPPORTED, "no score method"},
        {"santa:S= 4", SL_ERR_ARG, "--S"},
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

static void plan_rules(void) {
    sl_attn_plan plan;
    sl_attn_spec all = parse("santa-prop:S=64");
    CHECK_OK(sl_attn_plan_init(&plan, 6, &all, &err), err);
    CHECK_OK(sl_attn_plan_set(&plan, "0=dense", &err), err);
    CHECK_OK(sl_attn_plan_set(&plan, "2-4=santa:S=9", &err), err);
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
        CHECK_ERR(sl_attn_plan_set(&plan, bad[i].rule, &err), err, SL_ERR_ARG, bad[i].part);
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
    CHECK_OK(sl_attn_plan_set(&plan, "1=dense", &err), err);
    CHECK_ERR(schedule(&plan, "1 4\n"), err, SL_ERR_ARG, "no parameters");
    CHECK_ERR(sl_attn_plan_schedule(&plan, "/nowhere/schedule", &err), err, SL_ERR_IO, "/nowhere/schedule");
    sl_attn_plan_free(&plan);
}

static void listing(void) {
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    sl_attn_list(f);
    fclose(f);
    for (int i = 0; sl_attn_methods[i]; i++)
        CHECK(strstr(text, sl_attn_methods[i]->name) && strstr(text, sl_attn_methods[i]->summary));
    free(text);
}

static const test_case cases[] = {
    {"registry", 0, registry},
    {"values", 0, values},
    {"refusals", 0, refusals},
    {"plan-rules", 0, plan_rules},
    {"schedules", 0, schedules},
    {"listing", 0, listing},
    {0},
};
const test_suite suite_attention = {"attention", cases};
