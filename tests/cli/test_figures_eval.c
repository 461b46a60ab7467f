// tests/cli/test_figures_eval.c - every figure and every column of sleigh eval and sleigh perplexity, computed again from
// made-up records: the lines of a file of --out, and negative log-likelihoods of tokens.
#include "cli/commands.h"
#include "cli/eval/eval_table.h"
#include "cli/options/all_options.h"
#include "cli/perplexity/perplexity_print.h"
#include "cli/resume_file.h"
#include "tests/cli/fields.h"

#include <math.h>
#include <stdlib.h>

static sl_error err;

static const cli_model_name model = {.name = "made", .type = "llama", .dtype = "bf16", .n_params = 1234};

static void want_model(fields *f) {
    want_text(f, "model", "made"), want_text(f, "model_type", "llama"), want(f, "n_params", 1234);
    want_text(f, "dtype", "bf16"), want(f, "dummy", 0);
}

// ---- eval ----

enum { GROUPS = 3, SAMPLES = 42, METHODS = 4, PREFILLS = 2, LAYERS = 2, HEADS = 3, N_PREFILL = 6 };

// Groups of 20 samples about 10 texts, of 10 texts (thirds of a point), and of 12 samples about 4 texts.
static const eval_group groups[GROUPS] = {{"x", 64, 0, 20}, {"x", 2048, 20, 10}, {"z", 0, 30, 12}};
static const int per_text[GROUPS] = {2, 1, 3};
static char *methods[METHODS] = {"dense", "topk:k=8", "dense", "topk:k=8"}, *prefills[PREFILLS] = {"dense", "sample"};
static const char *const prefill_names[N_PREFILL] = {"ttft_ms",     "prefill_density", "prefill_kept",
                                                     "prefill_cra", "prefill_error",   "prefill_error_max"};

typedef struct cell { // a line of the file
    double score, prefill[N_PREFILL], stated_error, most;
    int bytes, dense, stated, certified, unbounded;
} cell;

typedef struct made {
    cell cells[METHODS][SAMPLES];
    int is_left_out[SAMPLES]; // no method may count it
    sl_prefill_report heads[METHODS][GROUPS][LAYERS * HEADS];
    int lists_prefill;
    eval_scores scores;
    json_t *settings;
    const char *format;
} made;

static int group_of(int i) {
    return i < 20 ? 0 : i < 30 ? 1 : 2;
}

static int text_of(int i) { // within its group
    return (i - groups[group_of(i)].first) / per_text[group_of(i)];
}

enum { MIXED, EQUAL, BY_TEXT, WITHIN_TEXT, KINDS }; // how the scores of the samples depend on the texts

static cell make_cell(int m, int i, int kind) {
    cell c = {.score = group_of(i) == 1 ? test_below(4) / 3.0 : test_draw() < 0.75 - 0.2 * (m % 2)};
    if (kind != MIXED) c.score = kind == EQUAL ? m % 3 / 2.0 : kind == BY_TEXT ? text_of(i) * (m + 2) % 5 < 2 : i % 2 == m % 2;
    c.bytes = 100 + test_below(400), c.dense = 900 + test_below(90);
    for (int k = 0; k < N_PREFILL; k++) c.prefill[k] = m < METHODS / PREFILLS || test_draw() < 0.3 ? (double)NAN : test_draw();
    if (m % 2)
        c.stated = 8 + test_below(5), c.certified = test_below(8), c.unbounded = test_below(3), c.stated_error = test_draw(),
        c.most = 1 + test_draw();
    return c;
}

static json_t *number_or_null(double x) {
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *line_of(const made *x, int m, int i) {
    const cell *c = &x->cells[m][i];
    const eval_group *g = &groups[group_of(i)];
    json_t *line =
        json_pack("{s:s, s:i, s:i, s:s, s:f, s:i, s:i}", "task", g->task, "length", g->length, "sample", i - g->first, "attn",
                  methods[m], "score", c->score, "kv_bytes", c->bytes, "kv_dense_bytes", c->dense);
    json_object_set_new(line, "attn_prefill", json_string(prefills[m / (METHODS / PREFILLS)]));
    for (int k = 0; k < N_PREFILL; k++) json_object_set_new(line, prefill_names[k], number_or_null(c->prefill[k]));
    json_object_set_new(line, "layer_steps", json_integer(c->stated));
    if (!c->stated) return line;
    json_object_set_new(line, "certified_share", json_real((double)c->certified / c->stated));
    json_object_set_new(line, "unbounded_share", json_real((double)c->unbounded / c->stated));
    json_object_set_new(line, "stated_error", json_real(c->stated_error)),
        json_object_set_new(line, "stated_error_max", json_real(c->most));
    return line;
}

// n_missing: samples without a line of one method.
static void make(made *x, int lists_prefill, int n_missing, int kind) {
    *x = (made){.lists_prefill = lists_prefill};
    eval_scores *s = &x->scores;
    *s = (eval_scores){.n_groups = GROUPS,
                       .n_samples = SAMPLES,
                       .methods = methods,
                       .n_methods = METHODS,
                       .prefills = prefills,
                       .n_prefills = PREFILLS,
                       .lists_prefill = lists_prefill};
    s->groups = malloc(sizeof groups);
    memcpy(s->groups, groups, sizeof groups);
    CHECK_OK(eval_scores_alloc(s, &err), err);
    CHECK_OK(eval_scores_alloc_heads(s, LAYERS, HEADS, &err), err);
    for (int i = 0; i < SAMPLES; i++) s->cluster[i] = text_of(i);
    for (int k = 0; k < n_missing; k++) x->is_left_out[5 * k] = 1;
    x->settings = json_pack("{s:i}", "seed", 7);
    FILE *out;
    CHECK_OK(eval_file_open(in_tmp("lines"), x->settings, s, &out, &err), err); // a new file
    for (int m = 0; m < METHODS; m++)
        for (int i = 0; i < SAMPLES; i++) {
            x->cells[m][i] = make_cell(m, i, kind);
            if (x->is_left_out[i] && m == 1 + i % 2) continue;
            json_t *line = line_of(x, m, i);
            CHECK_OK(cli_resume_add(out, "--out", "lines", line, &err), err);
            json_decref(line);
        }
    fclose(out);
    CHECK_OK(eval_file_open(in_tmp("lines"), x->settings, s, &out, &err), err);
    fclose(out);
    CHECK_INT(eval_scores_missing(s), n_missing);
    for (int m = 0; m < METHODS; m++)
        for (int i = 0; i < SAMPLES; i++) {
            sl_prefill_report one[LAYERS * HEADS];
            int g = group_of(i);
            for (int h = 0; h < LAYERS * HEADS; h++) {
                sl_prefill_report *sum = &x->heads[m][g][h];
                one[h] = (sl_prefill_report){.visited = (uint64_t)test_below(50),
                                             .causal = 50,
                                             .kept = test_below(1 << 24),
                                             .measured = test_below(1 << 24),
                                             .n_errors = (uint64_t)test_below(3),
                                             .errors = test_draw(),
                                             .error_max = test_draw()};
                if (i == groups[g].first) *sum = (sl_prefill_report){.kept = 1 << 24, .measured = 1 << 24};
                sum->visited += one[h].visited, sum->causal += one[h].causal, sum->n_errors += one[h].n_errors,
                    sum->errors += one[h].errors;
                if (one[h].kept < sum->kept) sum->kept = one[h].kept;
                if (one[h].measured < sum->measured) sum->measured = one[h].measured;
                sum->error_max = fmax(sum->error_max, one[h].error_max);
            }
            if (m < 3 || i)
                eval_scores_add_heads(s, m, g,
                                      m < METHODS / PREFILLS ? NULL : one); // one answer of method 3 is of an earlier run
        }
}

// ---- figures of eval ----

typedef struct sums { // of a method over samples
    double x[SAMPLES];
    int text[SAMPLES], n, n_texts;
} sums;

// The scores of a group's samples, minus those of the first method if is_difference.
static sums values_of(const made *x, int m, int g, int is_difference) {
    sums s = {.n = 0};
    for (int i = groups[g].first; i < groups[g].first + groups[g].n; i++) {
        if (x->is_left_out[i]) continue;
        s.n_texts += !s.n || s.text[s.n - 1] != text_of(i);
        s.text[s.n] = text_of(i), s.x[s.n++] = x->cells[m][i].score - (is_difference ? x->cells[0][i].score : 0);
    }
    return s;
}

// The number of independent samples that would give the mean the same variance: the variance of one value divided by the
// variance of the mean, which the sums of the texts show. At least as many as if all samples of a text were equal. At most all
// samples, if scores are whole.
static double worth_of(const sums *s, double variance) {
    double mean = mean_of_values(s->x, s->n), squares = 0, sizes = 0, is_whole = 1;
    for (int i = 0; i < s->n;) {
        double off = 0, size = 0;
        for (int text = s->text[i]; i < s->n && s->text[i] == text; i++, size++) {
            off += s->x[i] - mean;
            if (s->x[i] != floor(s->x[i])) is_whole = 0;
        }
        squares += off * off, sizes += size * size;
    }
    double least = s->n * s->n / sizes;
    if (s->n_texts < 8 || squares < 1e-9) return least;
    double of_mean = squares * s->n_texts / (s->n_texts - 1) / s->n / s->n, worth = variance / of_mean;
    if (is_whole && worth > s->n) worth = s->n;
    return worth < least ? least : worth;
}

static cli_interval interval_of(const made *x, int m, int g, int is_difference) {
    sums s = values_of(x, m, g, is_difference);
    double mean = mean_of_values(s.x, s.n), gain = 0, loss = 0;
    for (int i = 0; i < s.n; i++) *(s.x[i] > 0 ? &gain : &loss) += fabs(s.x[i]) / s.n;
    if (is_difference && !m) return (cli_interval){0, 0, 0};
    double n = worth_of(&s, is_difference ? gain + loss - mean * mean : mean * (1 - mean));
    cli_interval i = is_difference ? cli_paired_shares(gain * n, loss * n, n) : cli_share(mean * n, n);
    i.at = mean;
    return i;
}

static void want_interval(fields *f, const char *name, cli_interval i) {
    char key[64];
    want(f, name, i.at);
    snprintf(key, sizeof key, "%s_low", name), want(f, key, i.low);
    snprintf(key, sizeof key, "%s_high", name), want(f, key, i.high);
}

// A mean of group means; the distances to the ends of the intervals add up like errors.
static cli_interval over_groups(const made *x, int m, int is_difference) {
    cli_interval all = {0, 0, 0};
    double low = 0, high = 0;
    for (int g = 0; g < GROUPS; g++) {
        cli_interval i = interval_of(x, m, g, is_difference);
        all.at += i.at / GROUPS, low = hypot(low, (i.at - i.low) / GROUPS), high = hypot(high, (i.high - i.at) / GROUPS);
    }
    return (cli_interval){all.at, all.at - low, all.at + high};
}

static double exact_p(int a, int b) { // twice the smaller tail of a + b fair coins
    double tail = 0, coin = pow(0.5, a + b);
    for (int k = 0; k <= (a < b ? a : b); coin *= (double)(a + b - k) / (k + 1), k++) tail += coin;
    return fmin(1, 2 * tail);
}

// The row of a group, or of all groups (g = GROUPS).
static void want_row(fields *f, const made *x, int m, int g) {
    int first = g < GROUPS ? g : 0, end = g < GROUPS ? g + 1 : GROUPS, n = 0, n_texts = 0, better = 0, worse = 0;
    double bytes = 0, dense = 0, stated = 0, certified = 0, unbounded = 0, errors = 0, most = 0;
    for (int k = first; k < end; k++) {
        sums d = values_of(x, m, k, 1);
        n += d.n, n_texts += d.n_texts;
        for (int i = 0; i < d.n;) {
            double sum = 0;
            for (int text = d.text[i]; i < d.n && d.text[i] == text; i++) sum += d.x[i];
            better += sum > 1e-9, worse += sum < -1e-9;
        }
    }
    f->n = 0;
    want_text(f, "task", g < GROUPS ? groups[g].task : "all"), want(f, "length", g < GROUPS ? groups[g].length : 0);
    want_text(f, "attn", methods[m]), want(f, "samples", n), want(f, "texts", n_texts);
    want_interval(f, "score", g < GROUPS ? interval_of(x, m, g, 0) : over_groups(x, m, 0));
    want_interval(f, "difference", g < GROUPS ? interval_of(x, m, g, 1) : over_groups(x, m, 1));
    want(f, "better", better), want(f, "worse", worse), want(f, "p_value", exact_p(better, worse));
    double known[N_PREFILL][SAMPLES];
    int n_known[N_PREFILL] = {0};
    for (int i = 0; i < SAMPLES; i++) {
        const cell *c = &x->cells[m][i];
        if (x->is_left_out[i] || group_of(i) < first || group_of(i) >= end) continue;
        bytes += c->bytes, dense += c->dense, stated += c->stated, certified += c->certified, unbounded += c->unbounded;
        errors += c->stated_error * (c->stated - c->unbounded), most = fmax(most, c->most);
        for (int k = 0; k < N_PREFILL; k++)
            if (!isnan(c->prefill[k])) known[k][n_known[k]++] = c->prefill[k];
    }
    want(f, "kv_bytes_share", bytes / dense), want(f, "layer_steps", stated), want(f, "certified_share", certified / stated);
    want(f, "unbounded_share", unbounded / stated), want(f, "stated_error", errors / (stated - unbounded));
    want(f, "stated_error_max", stated > 0 ? most : (double)NAN);
    if (!x->lists_prefill) return;
    want_text(f, "attn_prefill", prefills[m / (METHODS / PREFILLS)]);
    for (int k = 0; k < N_PREFILL; k++) { // CRAs: the least; error_max: the greatest; else the mean
        double share = k == 2 || k == 3 ? 0 : 1, edge = n_known[k] ? quantile_of(known[k], n_known[k], share) : (double)NAN;
        want(f, prefill_names[k], k == 2 || k == 3 || k == 5 ? edge : mean_of_values(known[k], n_known[k]));
    }
}

static int print_scores(void *ctx, sl_error *e) {
    made *x = ctx;
    eval_scores part, *s = &x->scores;
    static eval_summary summary[METHODS * (GROUPS + 1)];
    const eval_source source = {.settings = x->settings, .model = &model, .n_planned = SAMPLES};
    if (eval_scores_missing(s)) {
        if (eval_scores_complete(s, &part, e)) return SL_ERR_MEMORY;
        s = &part;
    }
    eval_summarise(s, summary);
    int rc = eval_print(s, summary, &source, x->format, e);
    if (s == &part) eval_scores_free(&part);
    return rc;
}

static void check_heads(const made *x, const json_t *lists, int m, int g) {
    static const char *const names[] = {"density", "kept", "cra", "error", "error_max"};
    int first = g < GROUPS ? g : 0, end = g < GROUPS ? g + 1 : GROUPS, is_known = m >= METHODS / PREFILLS && !x->is_left_out[0];
    if (m == 3 && first == 0) is_known = 0; // an answer of this group is of an earlier run
    CHECK(json_is_null(lists) == !is_known);
    for (int h = 0; is_known && h < LAYERS * HEADS; h++) {
        sl_prefill_report s = {.kept = 1 << 24, .measured = 1 << 24};
        for (int k = first; k < end; k++) {
            const sl_prefill_report *r = &x->heads[m][k][h];
            s.visited += r->visited, s.causal += r->causal, s.n_errors += r->n_errors, s.errors += r->errors;
            s.kept = s.kept < r->kept ? s.kept : r->kept, s.measured = s.measured < r->measured ? s.measured : r->measured;
            s.error_max = fmax(s.error_max, r->error_max);
        }
        const double all[] = {(double)s.visited / (double)s.causal, s.kept / 16777216.0, s.measured / 16777216.0,
                              s.errors / (double)s.n_errors, s.error_max};
        for (int j = 0; j < 5; j++) {
            const json_t *layer = json_array_get(json_object_get(lists, names[j]), (size_t)(h / HEADS));
            CHECK_NEAR(json_number_value(json_array_get(layer, (size_t)(h % HEADS))), all[j], 1e-8 * all[j]);
        }
    }
}

static void check_json(made *x, int is_partial) {
    static fields f;
    x->format = "json";
    json_t *out = json_loads(capture(print_scores, x), JSON_REJECT_DUPLICATES, NULL), *rows = json_object_get(out, "rows");
    f.n = 0;
    want_model(&f), want_text(&f, "version", SLEIGH_VERSION), want_text(&f, "commit", cli_commit()), want_list(&f, "settings");
    want(&f, "interrupted", is_partial), want_list(&f, "rows");
    check_fields(out, &f, 0);
    CHECK_INT(json_array_size(rows), METHODS * (GROUPS + 1));
    for (int k = 0; k < METHODS * (GROUPS + 1); k++) {
        const json_t *row = json_array_get(rows, (size_t)k), *heads = json_object_get(row, "prefill_heads");
        want_row(&f, x, k / (GROUPS + 1), k % (GROUPS + 1));
        if (json_is_null(heads)) want(&f, "prefill_heads", NAN);
        if (json_is_object(heads)) want_list(&f, "prefill_heads");
        check_fields(row, &f, 1e-8);
        if (x->lists_prefill) check_heads(x, heads, k / (GROUPS + 1), k % (GROUPS + 1));
    }
    json_decref(out);
    x->format = "jsonl";
    const char *line = capture(print_scores, x);
    for (int k = 0; k < METHODS * (GROUPS + 1); k++, line = strchr(line, '\n') + 1) {
        json_t *row = json_loads(line, JSON_DISABLE_EOF_CHECK, NULL);
        want_row(&f, x, k / (GROUPS + 1), k % (GROUPS + 1)), want_model(&f);
        check_fields(row, &f, 1e-8);
        json_decref(row);
    }
    CHECK_STR(line, "");
}

// The md tables show a row for each method, with a column for each group.
static void check_md(made *x, int is_partial) {
    static const char *const titles[] = {"x 64", "x 2k", "z", "all"};
    static fields rows[METHODS];
    static char cells[2][GROUPS + 1][128];
    column columns[2][24];
    int n[2] = {0};
    char head[128];
    x->format = "md";
    const char *md = capture(print_scores, x);
    for (int m = 0; m < METHODS; m++) {
        want_row(&rows[m], x, m, GROUPS);
        for (int g = 0; g <= GROUPS; g++) {
            static fields one;
            want_row(&one, x, m, g);
            for (int d = 0; d < 2; d++) {
                char key[16];
                const char *name = d ? "difference" : "score";
                snprintf(key, sizeof key, "%c%d", "sd"[d], g);
                for (int end = 0; end < 3; end++) {
                    char from[32], to[32];
                    const char *suffix = end == 0 ? "" : end == 1 ? "_low" : "_high";
                    snprintf(from, sizeof from, "%s%s", name, suffix), snprintf(to, sizeof to, "%s%s", key, suffix);
                    want(&rows[m], to, wanted(&one, from));
                }
            }
        }
    }
    for (int d = 0; d < 2; d++) {
        columns[d][n[d]++] = (column){"method", "{attn}"};
        if (x->lists_prefill) columns[d][n[d]++] = (column){"prefill", "{attn_prefill}"};
        for (int g = 0; g <= GROUPS; g++) {
            const char *form = d ? "%+.2f" : "%.1f";
            char key = "sd"[d];
            snprintf(cells[d][g], sizeof cells[d][g], "{%c%d*100:%s} ({%c%d_low*100:%s} to {%c%d_high*100:%s})", key, g, form,
                     key, g, form, key, g, form);
            columns[d][n[d]++] = (column){titles[g], cells[d][g]};
        }
    }
    columns[1][n[1]++] = (column){"p (McNemar)", "{p_value:%.2g}"};
    columns[0][n[0]++] = (column){"KV bytes %", "{kv_bytes_share*100:%.1f}"};
    if (x->lists_prefill) {
        static const column more[] = {{"TTFT ms", "{ttft_ms:%.1f}"},
                                      {"density %", "{prefill_density*100:%.1f}"},
                                      {"estimated CRA %", "{prefill_kept*100:%.1f}"},
                                      {"CRA %", "{prefill_cra*100:%.1f}"},
                                      {"prefill error", "{prefill_error:%.4f}"}};
        for (int i = 0; i < 5; i++) columns[0][n[0]++] = more[i];
    }
    columns[0][n[0]++] = (column){"layer-steps certified %", "{certified_share*100:%.1f}"};
    columns[0][n[0]++] = (column){"stated error", "{stated_error:%.3f}"};
    check_table(md, columns[0], n[0], rows, METHODS);
    check_table(strstr(md, "Difference to"), columns[1], n[1], rows + 1, METHODS - 1);
    snprintf(head, sizeof head, ", %.0f samples of %.0f texts%s\n", wanted(&rows[0], "samples"), wanted(&rows[0], "texts"),
             is_partial ? "; interrupted, 42 samples were planned" : "");
    CHECK_HAS(md, head);
}

static void eval(void) {
    static made x;
    test_draw_from(test_seed);
    for (int k = 0; k < 3 * KINDS; k++) {
        make(&x, k % 3 != 1, k % 3 == 2 ? 5 : 0, k / 3);
        check_json(&x, k % 3 == 2);
        check_md(&x, k % 3 == 2);
        eval_scores_free(&x.scores);
        json_decref(x.settings);
        remove(in_tmp("lines"));
    }
}

// ---- perplexity ----

enum { MOST_ROWS = 12, MOST_SCORED = 20, HISTORIES = 3 };

typedef struct scored {
    cli_options o;
    perplexity p;
    perplexity_text texts[MOST_ROWS];
    int n_rows, n_of[MOST_ROWS], windows_of[MOST_ROWS];
    double nll[HISTORIES][MOST_ROWS][MOST_SCORED];
} scored;

static int print_rows(void *ctx, sl_error *e) {
    scored *x = ctx;
    perplexity *p = &x->p;
    int rc = 0;
    perplexity_print_begin(p);
    for (int r = 0; !rc && r < x->n_rows; r++) {
        for (int h = 0; !rc && h < p->n_histories; h++) {
            cli_values *v = &p->histories[h].nll;
            for (int i = 0; !rc && i < x->n_of[r]; i++) {
                rc = cli_values_add(v, x->nll[h][r][i], e);
                // windows are groups, unless there are 8 texts or more
                int ends = !x->o.input.jsonl ||
                           (p->groups_are_texts ? i + 1 == x->n_of[r] : (i + 1) % (x->n_of[r] / x->windows_of[r]) == 0);
                if (!rc && ends && (x->o.input.jsonl || i + 1 == x->n_of[r])) rc = cli_values_end_group(v, e);
            }
        }
        if (!rc) rc = x->o.input.jsonl ? perplexity_print_text(p, r, e) : perplexity_print_window(p, r, e);
    }
    return rc ? rc : perplexity_print_end(p, e);
}

// The values of the first n rows after a history, minus those after another one (-1: none).
static cli_values row_values(const scored *x, int h, int minus, int from, int end) {
    cli_values v = {0};
    for (int r = from; r < end; r++) {
        int n_windows = x->o.input.jsonl && !x->p.groups_are_texts ? x->windows_of[r] : 1;
        for (int i = 0; i < x->n_of[r]; i++) {
            add_value(&v, x->nll[h][r][i] - (minus < 0 ? 0 : x->nll[minus][r][i]));
            if ((i + 1) % (x->n_of[r] / n_windows) == 0) end_group(&v);
        }
    }
    return v;
}

static void want_nll(fields *f, const char *suffix, const cli_values *v, int with_error) {
    char key[64];
    double mean = mean_of_values(v->x, v->n), error = error_of(v);
    snprintf(key, sizeof key, "nll%s", suffix), want(f, key, mean);
    snprintf(key, sizeof key, "ppl%s", suffix), want(f, key, exp(mean));
    snprintf(key, sizeof key, "nll%s_se", suffix);
    if (with_error) want(f, key, error);
    snprintf(key, sizeof key, "ppl%s_se", suffix);
    if (with_error) want(f, key, exp(mean) * error);
}

static const char *const ids[] = {"book", "page"};

static void want_text_row(fields *f, const scored *x, int r, int is_md) {
    f->n = 0;
    if (x->o.input.jsonl)
        want(f, "text", r), want_text(f, "id", ids[r % 2]), want(f, "tokens", 1000 + r), want(f, "windows", x->windows_of[r]);
    else
        want(f, "window", r), want(f, "first_token", r * 35);
    want(f, "scored", x->n_of[r]), want_text(f, "attn", "topk:k=4");
    for (int h = 0; x->o.perplexity.histories.n && is_md && h < HISTORIES; h++) {
        char key[16];
        cli_values v = row_values(x, h, -1, r, r + 1);
        snprintf(key, sizeof key, "h%d", h), want(f, key, exp(mean_of_values(v.x, v.n)));
        cli_values_free(&v);
    }
    if (x->o.perplexity.histories.n) return want_list(f, "histories");
    cli_values alone = row_values(x, 0, -1, r, r + 1), so_far = row_values(x, 0, -1, 0, r + 1);
    want_nll(f, "", &alone, 0), want_nll(f, "_so_far", &so_far, 1), want(f, "scored_so_far", so_far.n);
    cli_values_free(&alone), cli_values_free(&so_far);
}

static int total(const int *x, int n) {
    int sum = 0;
    for (int i = 0; i < n; i++) sum += x[i];
    return sum;
}

// Histories of 5 and 40 tokens and of all, in segments of 9, in windows of 64 tokens, of which the last 20 are scored.
static void want_history(fields *f, const scored *x, int h) {
    f->n = 0;
    want_text(f, "history", (const char *[]){"5", "40", "all"}[h]), want(f, "history_fewest", (const int[]){5, 40, 44}[h]);
    want(f, "history_most", (const int[]){13, 48, 63}[h]), want(f, "texts", x->o.input.jsonl ? x->n_rows : 1);
    want(f, "windows", total(x->windows_of, x->n_rows)), want(f, "scored", total(x->n_of, x->n_rows)),
        want_text(f, "attn", "topk:k=4");
    cli_values v = row_values(x, h, -1, 0, x->n_rows), more = row_values(x, h, h - 1, 0, h ? x->n_rows : 0);
    want_nll(f, "", &v, 1), want_mean(f, "ln_ppl_ratio", &more, 1);
    cli_values_free(&v), cli_values_free(&more);
}

static fields text_rows[MOST_ROWS], table[HISTORIES];

static void check_document(const scored *x, const char *text) {
    static fields f;
    char device[256];
    const perplexity *p = &x->p;
    const char *texts = x->o.input.jsonl ? "texts" : "windows";
    double tokens = 0;
    json_t *out = json_loads(text, JSON_REJECT_DUPLICATES, NULL), *list = json_object_get(out, texts);
    for (int r = 0; r < (x->o.input.jsonl ? x->n_rows : 1); r++) tokens += 1000 + r;
    f.n = 0;
    sl_engine_describe(p->run.engine, device, sizeof device);
    want_model(&f), want_text(&f, "version", SLEIGH_VERSION), want_text(&f, "commit", cli_commit());
    want_text(&f, "device", device), want_text(&f, "file", x->o.input.jsonl ? x->o.input.jsonl : "-"), want(&f, "seed", 6);
    want_text(&f, "attn", "topk:k=4"), want(&f, "n_ctx", 64), want(&f, "stride", 35), want(&f, "n_score", 20);
    want(&f, "n_dense", 11), want(&f, "tokens", tokens), want(&f, "scored", total(x->n_of, x->n_rows));
    want_list(&f, texts), want(&f, "interrupted", total(x->windows_of, x->n_rows) < p->n_planned);
    cli_values all = row_values(x, 0, -1, 0, x->n_rows);
    if (x->o.perplexity.histories.n) want(&f, "segment", 9), want_list(&f, "histories");
    if (!x->o.perplexity.histories.n) want_nll(&f, "", &all, 1);
    cli_values_free(&all);
    check_fields(out, &f, 1e-8);
    CHECK_INT(json_array_size(list), x->n_rows);
    for (int r = 0; r < x->n_rows; r++) {
        const json_t *row = json_array_get(list, (size_t)r), *after = json_object_get(row, "histories");
        check_fields(row, &text_rows[r], 1e-8);
        CHECK_INT(json_array_size(after), x->o.perplexity.histories.n);
        for (int h = 0; h < x->o.perplexity.histories.n; h++) {
            cli_values v = row_values(x, h, -1, r, r + 1);
            f.n = 0;
            want_text(&f, "history", (const char *[]){"5", "40", "all"}[h]), want_nll(&f, "", &v, 0);
            check_fields(json_array_get(after, (size_t)h), &f, 1e-8);
            cli_values_free(&v);
        }
    }
    for (int h = 0; h < x->o.perplexity.histories.n; h++)
        check_fields(json_array_get(json_object_get(out, "histories"), (size_t)h), &table[h], 1e-8);
    json_decref(out), json_decref(p->rows);
}

static void check_lines(const scored *x, const char *text) {
    for (int r = 0; r < (x->o.perplexity.histories.n ? HISTORIES : x->n_rows); r++, text = strchr(text, '\n') + 1) {
        json_t *row = json_loads(text, JSON_DISABLE_EOF_CHECK, NULL);
        fields *own = x->o.perplexity.histories.n ? &table[r] : &text_rows[r];
        want_model(own);
        check_fields(row, own, 1e-8);
        json_decref(row);
    }
    CHECK_STR(text, "");
}

static void check_perplexity_tables(const scored *x, const char *text) {
    static const column of_windows[] = {{"window", "{window}"}, {"first token", "{first_token}"}, {"scored", "{scored}"}},
                        of_texts[] = {{"text", "{text}"}, {"id", "{id}"}, {"windows", "{windows}"}, {"scored", "{scored}"}},
                        after[] = {{"perplexity after 5", "{h0:%.4f}"},
                                   {"perplexity after 40", "{h1:%.4f}"},
                                   {"perplexity after all", "{h2:%.4f}"}},
                        of_histories[] = {{"history", "{history}"},
                                          {"tokens before a scored token: fewest", "{history_fewest}"},
                                          {"most", "{history_most}"},
                                          {"scored", "{scored}"},
                                          {"perplexity", "{ppl:%.4f} ± {ppl_se:%.4f}"},
                                          {"ln(perplexity / row above)",
                                           "{ln_ppl_ratio:%.5f} ± {ln_ppl_ratio_se:%.5f} ({ln_ppl_ratio_low:%.5f} to "
                                           "{ln_ppl_ratio_high:%.5f})"}};
    column columns[8];
    int n = x->o.input.jsonl ? 4 : 3;
    char line[200];
    double tokens = 0;
    for (int r = 0; r < (x->o.input.jsonl ? x->n_rows : 1); r++) tokens += 1000 + r;
    memcpy(columns, x->o.input.jsonl ? of_texts : of_windows, (size_t)n * sizeof *columns);
    if (x->o.perplexity.histories.n) {
        memcpy(columns + n, after, sizeof after), n += 3;
    } else {
        columns[n++] = (column){x->o.input.jsonl ? "perplexity of the text" : "perplexity of the window", "{ppl:%.4f}"};
        columns[n++] = (column){"perplexity so far", "{ppl_so_far:%.4f} ± {ppl_so_far_se:%.4f}"};
    }
    check_table(text, columns, n, text_rows, x->n_rows);
    if (x->o.perplexity.histories.n) check_table(text, of_histories, 6, table, HISTORIES);
    cli_values all = row_values(x, 0, -1, 0, x->n_rows);
    double mean = mean_of_values(all.x, all.n);
    n = snprintf(line, sizeof line, "\n");
    if (!x->o.perplexity.histories.n)
        n += snprintf(line + n, sizeof line - (size_t)n, "perplexity: %.4f ± %.4f, ", exp(mean), exp(mean) * error_of(&all));
    snprintf(line + n, sizeof line - (size_t)n, "%d of %.0f tokens scored in %d windows of 64", total(x->n_of, x->n_rows),
             tokens, total(x->windows_of, x->n_rows));
    CHECK_HAS(text, line);
    cli_values_free(&all);
}

static void check_perplexity(scored *x) {
    static const char *const formats[] = {"json", "jsonl", "md"};
    static void (*const checks[])(const scored *x, const char *text) = {check_document, check_lines, check_perplexity_tables};
    perplexity *p = &x->p, fresh = *p;
    for (int format = 0; format < 3; format++) {
        x->o.output.format = formats[format];
        *p = fresh;
        const char *text = capture(print_rows, x);
        for (int r = 0; r < x->n_rows; r++) want_text_row(&text_rows[r], x, r, format == 2);
        for (int h = 0; h < HISTORIES; h++) want_history(&table[h], x, h);
        checks[format](x, text);
        for (int h = 0; h < p->n_histories; h++) cli_values_free(&p->histories[h].nll);
    }
}

static void perplexities(void) {
    test_draw_from(test_seed);
    for (int k = 0; k < 5; k++) { // windows; 9 texts; 3 texts; with histories: windows, texts
        static scored x;
        char *args[] = {"-s", "6", "--history", "5,40,all"};
        int is_texts = k == 1 || k == 2 || k == 4, with_histories = k > 2;
        sl_model *loaded;
        x = (scored){.n_rows = k == 2 ? 3 : 9};
        CHECK_OK(cli_options_parse(&x.o, CLI_PERPLEXITY, with_histories ? 4 : 2, args, &err), err);
        if (is_texts) x.o.input.jsonl = "texts.jsonl";
        perplexity *p = &x.p;
        const cli_perplexity_flags flags = {&x.o.run, &x.o.input, &x.o.perplexity, &x.o.output, NULL};
        *p = (perplexity){.o = &flags,
                          .texts = x.texts,
                          .n_texts = is_texts ? x.n_rows + (k == 1) : 1,
                          .n_ctx = 64,
                          .stride = 35,
                          .segment = 9,
                          .first = 43,
                          .n_dense = 11,
                          .groups_are_texts = is_texts && x.n_rows >= 8,
                          .n_histories = with_histories ? HISTORIES : 1,
                          .name = model,
                          .attn = "topk:k=4"};
        for (int h = 0; h < HISTORIES; h++) {
            p->histories[h].n_tokens = with_histories ? (const int[]){5, 40, CLI_ALL}[h] : CLI_ALL;
            snprintf(p->histories[h].name, sizeof p->histories[h].name, "%s", (const char *[]){"5", "40", "all"}[h]);
        }
        for (int r = 0; r < x.n_rows; r++) {
            x.windows_of[r] = is_texts ? 1 + r % 2 : 1, x.n_of[r] = x.windows_of[r] * (4 + test_below(5));
            x.texts[r].id = json_string(ids[r % 2]), x.texts[r].ids.n = 1000 + (size_t)r,
            x.texts[r].n_windows = x.windows_of[r];
            for (int h = 0; h < HISTORIES; h++)
                for (int i = 0; i < x.n_of[r]; i++) x.nll[h][r][i] = 3 * test_draw();
        }
        x.texts[x.n_rows].ids.n = 5000; // k = 1: a text that was not complete
        p->n_planned = total(x.windows_of, x.n_rows) + (k == 1);
        CHECK_OK(sl_model_load(tiny(), NULL, &loaded, &err), err);
        CHECK_OK(sl_engine_new(loaded, &(sl_engine_options){.n_ctx = 16, .n_threads = 1}, &p->run.engine, &err), err);
        check_perplexity(&x);
        for (int r = 0; r < x.n_rows; r++) json_decref(x.texts[r].id);
        sl_engine_free(p->run.engine), sl_model_free(loaded);
        cli_options_free(&x.o);
    }
}

static const test_case cases[] = {{"eval", 0, eval}, {"perplexity", 0, perplexities}, {0}};
extern const test_suite suite_figures_eval;
const test_suite suite_figures_eval = {"figures_eval", cases};
