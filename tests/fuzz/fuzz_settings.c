// tests/fuzz/fuzz_settings.c - lists and rules of --attn, --S-schedule, and files that Sleigh writes: results of
// eval --out, the table of --attn=auto and the data files of pictures.
#include "attention/auto.h"
#include "cli/attn/attn_list.h"
#include "cli/eval/eval_scores.h"
#include "cli/output/plot_data.h"
#include "cli/output/plot_script.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

// ---- --attn ----

enum { LAYERS = 6 };

static int same_values(const sl_attn_method *m, const double *a, const double *b) {
    for (int i = 0; m->params && m->params[i].name; i++)
        if (a[i] != b[i]) return 0;
    return 1;
}

// Formats a specification and parses the text again. The result must be the same specification.
static void check_spec(const sl_attn_spec *spec) {
    char name[CLI_ATTN_NAME], again[CLI_ATTN_NAME];
    sl_attn_spec back;
    sl_error err = {0};
    sl_attn_format(spec, name, sizeof name);
    FUZZ_CHECK(strlen(name) < sizeof name - 1, name);
    FUZZ_CHECK(!sl_attn_parse(name, &back, &err), err.message);
    sl_attn_format(&back, again, sizeof again);
    FUZZ_CHECK(back.method == spec->method && back.plus == spec->plus && !strcmp(name, again), name);
    FUZZ_CHECK(same_values(spec->method, spec->value, back.value), name);
    FUZZ_CHECK(!spec->plus || same_values(spec->plus, spec->plus_value, back.plus_value), name);
}

static void check_list(const char *text) {
    cli_list items = {.items = &text, .n = 1};
    cli_attn_list list;
    sl_error err = {0};
    if (fuzz_ok(cli_attn_list_parse("--attn", &items, &list, &err), &err)) {
        for (int i = 0; i < list.n; i++) {
            char curve[CLI_ATTN_NAME];
            check_spec(&list.specs[i]);
            cli_attn_curve(&list, i, curve);
            FUZZ_CHECK(strlen(curve) <= strlen(list.names[i]), curve);
        }
    }
    cli_attn_list_free(&list);
}

static sl_attn_plan plan_of(const char *text) {
    sl_attn_spec spec;
    sl_attn_plan plan;
    sl_error err = {0};
    FUZZ_CHECK(!sl_attn_parse(text, &spec, &err) && !sl_attn_plan_init(&plan, LAYERS, &spec, &err), err.message);
    return plan;
}

static void check_rule(const char *text) {
    sl_attn_plan plan = plan_of("dense");
    sl_error err = {0};
    if (fuzz_ok(sl_attn_plan_set(&plan, "attn_layer", text, &err), &err))
        for (int i = 0; i < LAYERS; i++) check_spec(&plan.layer[i]);
    sl_attn_plan_free(&plan);
}

// Lengthens every comment: a comment must not change the result.
static void write_longer(const char *data, size_t n) {
    static const char more[] = " 5 7";
    char *text = malloc(n * 300 + 1), *to = text;
    FUZZ_CHECK(text != NULL, "memory");
    for (size_t i = 0, comment = 0; i <= n; i++) {
        int end = i == n || data[i] == '\n';
        if (!end && data[i] == '#') comment = 1;
        for (int j = 0; end && comment && j < 70; j++) to = stpcpy(to, more);
        if (end) comment = 0;
        if (i < n) *to++ = data[i];
    }
    fuzz_write("schedule", text, (size_t)(to - text));
    free(text);
}

static void check_schedule(const char *data, size_t n) {
    sl_attn_plan plan = plan_of("santa-prop:S=64"), same = plan_of("santa-prop:S=64");
    sl_error err = {0};
    fuzz_write("schedule", data, n);
    if (fuzz_ok(sl_attn_plan_schedule(&plan, fuzz_path("schedule"), &err), &err)) {
        for (int i = 0; i < LAYERS; i++) check_spec(&plan.layer[i]);
        if (!memchr(data, 0, n)) {
            write_longer(data, n);
            FUZZ_CHECK(!sl_attn_plan_schedule(&same, fuzz_path("schedule"), &err), err.message);
            for (int i = 0; i < LAYERS; i++) FUZZ_CHECK(same.layer[i].value[0] == plan.layer[i].value[0], "a comment counts");
        }
    }
    fuzz_remove("schedule");
    sl_attn_plan_free(&plan);
    sl_attn_plan_free(&same);
}

// The first byte selects: '=' a rule of --attn-layer, '#' a schedule, any other byte is part of a list.
void fuzz_attn(const char *data, size_t n) {
    if (n && *data == '#') {
        check_schedule(data + 1, n - 1);
        return;
    }
    char *text = strndup(data, n);
    FUZZ_CHECK(text != NULL, "memory");
    if (*text == '=')
        check_rule(text + 1);
    else
        check_list(text);
    free(text);
}

// ---- results ----

static void check_results(const char *data, size_t n) {
    static char dense[] = "dense", prop[] = "santa-prop:S=64";
    char *methods[] = {dense, prop};
    eval_group groups[] = {{"niah-single", 4096, 0, 4}, {"qa", 0, 4, 3}};
    eval_scores s = {.groups = groups, .n_groups = 2, .n_samples = 7, .methods = methods, .n_methods = 2};
    FILE *f = NULL;
    sl_error err = {0};
    json_t *settings = json_pack("{s:s, s:i, s:n}", "model", "m", "seed", 0, "system-prompt");
    FUZZ_CHECK(settings && !eval_scores_alloc(&s, &err), err.message);
    fuzz_write("out", data, n);
    if (fuzz_ok(eval_file_open(fuzz_path("out"), settings, &s, &f, &err), &err)) {
        for (int i = 0; i < 14; i++) FUZZ_CHECK(isnan(s.score[i]) || (s.score[i] >= 0 && s.score[i] <= 1), "a score");
        fclose(f);
    } else { // a file of another format must not change
        struct stat st;
        FUZZ_CHECK(!stat(fuzz_path("out"), &st) && (size_t)st.st_size == n, "the file was changed");
    }
    s.groups = NULL;
    eval_scores_free(&s);
    json_decref(settings);
    fuzz_remove("out");
}

static void same_table(const sl_auto_table *a, const sl_auto_table *b) {
    FUZZ_CHECK(a->n_specs == b->n_specs && a->n_points == b->n_points && a->n_heads == b->n_heads, "the table");
    FUZZ_CHECK(!strcmp(a->device, b->device) && !strcmp(a->date, b->date) && a->automatic == b->automatic, a->device);
    for (int i = 0; i < a->n_points; i++)
        FUZZ_CHECK(a->points[i].n_kv == b->points[i].n_kv && a->points[i].n_seqs == b->points[i].n_seqs, "a point");
}

static void check_table(const char *data, size_t n) {
    sl_auto_table table, again;
    sl_error err = {0};
    fuzz_write("table.json", data, n);
    if (fuzz_ok(sl_auto_read(fuzz_path("table.json"), 0, &table, &err), &err)) {
        static const char *const requests[] = {"auto", "auto:epsilon=0.1"};
        for (int i = 0; i < 6; i++) {
            char text[512];
            sl_attn_spec request;
            sl_auto_choice choice;
            FUZZ_CHECK(!sl_attn_parse(requests[i & 1], &request, &err), err.message);
            sl_auto_choose(&table, &request, 1 << i, 512 << 2 * i, &choice);
            sl_auto_choice_format(&table, &request, &choice, text, sizeof text);
            check_spec(&choice.spec);
        }
        for (int i = 0; i < table.n_specs; i++) check_spec(&table.specs[i]);
        FUZZ_CHECK(!sl_auto_write(&table, fuzz_path("table.json"), &err), err.message);
        FUZZ_CHECK(!sl_auto_read(fuzz_path("table.json"), 0, &again, &err), err.message);
        same_table(&table, &again);
        sl_auto_free(&again);
    }
    sl_auto_free(&table);
    fuzz_remove("table.json");
}

// A file of results begins with {"s. Every other input is a table.
void fuzz_results(const char *data, size_t n) {
    if (n > 3 && !memcmp(data, "{\"s", 3))
        check_results(data, n);
    else
        check_table(data, n);
}

// ---- data files of pictures ----

// The script of a file that was read is complete, and what Sleigh writes from the file can be read again.
void fuzz_plot(const char *data, size_t n) {
    cli_plot_data plot, again;
    sl_error err = {0};
    fuzz_write("plot.dat", data, n);
    if (fuzz_ok(cli_plot_read(fuzz_path("plot.dat"), &plot, &err), &err)) {
        char *script = NULL;
        size_t size = 0;
        FILE *f = open_memstream(&script, &size);
        FUZZ_CHECK(f != NULL, "open_memstream");
        cli_plot_script(f, "x.svg", plot.title, plot.panels, plot.n);
        FUZZ_CHECK(!fclose(f) && strstr(script, "unset multiplot\nset output\n"), script);
        free(script);
        FUZZ_CHECK(!cli_plot_write(fuzz_path("again.dat"), plot.title, plot.panels, plot.n, &err), err.message);
        FUZZ_CHECK(!cli_plot_read(fuzz_path("again.dat"), &again, &err), err.message);
        FUZZ_CHECK(again.n == plot.n, again.title);
        cli_plot_data_free(&again);
        fuzz_remove("again.dat");
    }
    cli_plot_data_free(&plot);
    fuzz_remove("plot.dat");
}
