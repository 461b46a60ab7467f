// tests/cli/test_figures_tune.c - every choice and every figure of sleigh tune, made again from a log of made-up measurements:
// the work of the methods, which candidates are dropped, the best method of each length, the schedules of the layers.
#include "attention/budgets/layer_budgets.h"
#include "attention/prefill/prefill_mask.h"
#include "cli/commands.h"
#include "cli/options/all_options.h"
#include "cli/output/progress_bar.h"
#include "cli/process.h"
#include "cli/tune/tune.h"
#include "models/source.h"
#include "tests/cli/fields.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>

enum { LENGTHS = 3, MOST = 24, CANDIDATES = 4 };
static sl_error err;

// ---- work ----

// The key blocks up to the end of each of `chunks` parts of a segment's query blocks. At most one part for each block.
static double blocks_at_ends(int first, int end, int chunks) {
    double sum = 0;
    int n = end - first;
    for (int c = 0; c < (chunks < n ? chunks : n); c++) sum += first + (c + 1) * n / (chunks < n ? chunks : n);
    return sum;
}

// The work of an estimator, query block by query block. A block of 128 x 128 has scores and sums of V: a half each.
static double estimator(const char *name, int parameter, int n, int segment) {
    double sum = 0;
    for (int at = 0; at < n; at += segment) {
        int last_row = (at + segment < n ? at + segment : n) - 1, first = at / 128, end = last_row / 128 + 1;
        if (!strcmp(name, "sample")) sum += blocks_at_ends(first, end, parameter) / 2;
        if (!strcmp(name, "vertical-slash")) sum += end / 2.0;
        for (int i = first; i < end && !strcmp(name, "xattention"); i++) sum += (i + 1) / 2.0 / parameter;
    }
    return sum;
}

static void work(void) {
    static const struct {
        const char *attn, *name;
        int parameter;
    } rows[] = {{"sample:chunk_n=1", "sample", 1},
                {"sample:chunk_n=3", "sample", 3},
                {"vertical-slash", "vertical-slash", 0},
                {"xattention:stride=8", "xattention", 8},
                {"xattention:stride=16", "xattention", 16},
                {"streaming", "", 0},
                {"threshold", "threshold", 0},
                {"dense", "dense", 0},
                {"oracle", NULL, 0},
                {"topk", NULL, 0}};
    static const int lengths[] = {1, 127, 128, 129, 600, 1024, 3000}, segments[] = {256, 512, 32768};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int k = 0; k < 7 * 3; k++) {
            sl_attn_spec spec;
            int n = lengths[k / 3], segment = segments[k % 3], n_blocks = (n + 127) / 128;
            CHECK_OK(sl_attn_parse(rows[i].attn, &spec, &err), err);
            double all = n_blocks * (n_blocks + 1) / 2.0, got = tune_estimator_blocks(&spec, n, segment),
                   want = rows[i].name ? estimator(rows[i].name, rows[i].parameter, n, segment) : -1;
            CHECK_NEAR(got, want, 1e-9 * all);
            if (!rows[i].name) continue;
            double share = !strcmp(rows[i].name, "dense")       ? 1
                           : !strcmp(rows[i].name, "threshold") ? 0.5 + 0.5 * 0.3 // all scores, V of 30% of the blocks
                                                                : 0.3 + want / all;
            CHECK_NEAR(tune_work(&spec, n, segment, 6, 20), share, 1e-12);
        }
}

// ---- a run of tune with a complete log ----

typedef struct made {
    cli_options o; // the flags of t
    tune t;
    tune_prompt prompts[MOST];
    json_t *part;
    int (*run)(tune *t, json_t **out, sl_error *err);
} made;

static void take_flags(tune *t, const cli_options *o) {
    const cli_tune_flags flags = {&o->run, &o->tasks, &o->chat, &o->tune, &o->output, &o->given};
    tune_take_flags(t, &flags);
}

static tune_value value_of(const made *m, const char *attn, const tune_prompt *p) {
    char name[512];
    snprintf(name, sizeof name, "prefill/%s/%s", attn, p->name);
    const json_t *v = json_object_get(m->t.log, name);
    CHECK(v != NULL);
    return (tune_value){number(v, "x"), number(v, "visited"), number(v, "causal"), number(v, "ms")};
}

static double some_score(int is_coarse, int is_kl) {
    return is_kl ? test_draw() * test_draw() : is_coarse ? test_below(5) / 4.0 : test_draw();
}

static void make(made *m, int k) {
    char *args[] = {"--attn-prefill", "sample:chunk_n=2,streaming:window=64,threshold,xattention", "--length", "400,900,2000"};
    static const cli_ints lengths = {.at = {400, 900, 2000}, .n = LENGTHS};
    tune *t = &m->t;
    *m = (made){.run = tune_prefill_part};
    CHECK_OK(cli_options_parse(&m->o, CLI_TUNE, 4, args, &err), err);
    take_flags(t, &m->o);
    CHECK_OK(cli_attn_list_parse("--attn-prefill", &t->run_options.attention.attn_prefills, &t->candidates, &err), err);
    CHECK_INT(t->candidates.n, CANDIDATES);
    t->task_options.lengths = lengths, m->o.output.format = "jsonl", t->tune_options.measure = k % 3 == 2 ? "kl" : "score";
    t->tune_options.loss = k % 2 ? 0.25 : 0.2 * test_draw(), t->run_options.attention.prefill_segment = 1024,
    t->tune_options.check = k % 4 > 0;
    t->prompts = m->prompts, t->log = json_object();
    for (int i = 0; i < LENGTHS; i++) // sometimes a length without prompts
        for (int j = 0, n = i && test_below(5) == 0 ? 0 : 1 + test_below(6);
             j < n + (n ? t->tune_options.check * (1 + test_below(2)) : 0); j++) {
            tune_prompt *p = &m->prompts[t->n_prompts++];
            p->length = lengths.at[i], p->is_check = j >= n, p->ids.n = (size_t)(lengths.at[i] - test_below(90));
            snprintf(p->name, sizeof p->name, "made/%d/%d", p->length, j);
        }
    for (int i = 0; i < t->n_prompts; i++)
        for (int c = -1; c < CANDIDATES; c++) {
            char name[512];
            int is_kl = tune_is_kl(t), causal = c < 0 ? 0 : 100 + test_below(400),
                visited = c == 1 && k % 5 == 4 ? causal : test_below(causal + 1); // as much work as dense prefill
            double x = c < 0 && is_kl ? 0 : some_score(k % 2, is_kl);
            if (c >= 0 && !is_kl && test_below(3)) x = value_of(m, "dense", &m->prompts[i]).x; // many lose nothing
            snprintf(name, sizeof name, "prefill/%s/%s", c < 0 ? "dense" : t->candidates.names[c], m->prompts[i].name);
            json_object_set_new(
                t->log, name,
                json_pack("{s:f, s:i, s:i, s:f}", "x", x, "visited", visited, "causal", causal, "ms", 1 + 100 * test_draw()));
        }
}

static int run_part(void *ctx, sl_error *e) {
    made *m = ctx;
    tune *t = &m->t;
    tune_open_table(t);
    t->rows.model = NULL;
    cli_progress_begin_run(&t->progress, "tune", "measurements", t->n_planned, 0, 0);
    int rc = m->run(t, &m->part, e);
    cli_progress_end(&t->progress);
    return rc ? rc : cli_rows_end(&t->rows, e);
}

static void drop(made *m) {
    cli_attn_list_free(&m->t.candidates), cli_options_free(&m->o);
    json_decref(m->t.log), json_decref(m->part);
}

// The next row of the output.
static const char *check_row(const char *text, const fields *f) {
    json_t *row = json_loads(text, JSON_DISABLE_EOF_CHECK, NULL);
    if (!row) FAIL("expected a row of %s", f->at[2].text);
    check_fields(row, f, 1e-8);
    json_decref(row);
    return strchr(text, '\n') + 1;
}

static void want_row(fields *f, const tune *t, const char *part, int length, const char *setting, const char *of, int n,
                     double x, const char *result) {
    cli_interval share = cli_share(x * n, n);
    f->n = 0;
    want_text(f, "part", part), want(f, "length", length), want_text(f, "setting", setting), want_text(f, "prompts", of);
    want(f, "n", n), want(f, "x", x), want_text(f, "result", result);
    want(f, "low", tune_is_kl(t) ? (double)NAN : share.low), want(f, "high", tune_is_kl(t) ? (double)NAN : share.high);
}

// ---- prefill ----

typedef struct candidate {
    int n, is_dense;
    double x, loss, density, work, ms;
    const char *attn, *dropped;
} candidate;

// Measures on prompts one by one; stops as soon as the candidate cannot be the choice. limit: the least work so far.
static candidate measured(const made *m, const char *attn, int length, int is_check, double limit) {
    const tune *t = &m->t;
    double ms[MOST], visited = 0, causal = 0, gain = 0, allowed = t->tune_options.loss + 1e-12;
    candidate c = {.attn = attn, .is_dense = !strcmp(attn, "dense")};
    sl_attn_spec spec;
    int n = 0;
    CHECK_OK(sl_attn_parse(attn, &spec, &err), err);
    for (int i = 0; i < t->n_prompts; i++) {
        if (t->prompts[i].length != length || t->prompts[i].is_check != is_check) continue;
        gain += 1 - value_of(m, "dense", &t->prompts[i]).x, n++;
    }
    for (int i = 0; i < t->n_prompts && !c.dropped; i++) {
        const tune_prompt *p = &t->prompts[i];
        if (p->length != length || p->is_check != is_check) continue;
        tune_value v = value_of(m, attn, p), dense = value_of(m, "dense", p);
        ms[c.n++] = v.ms, c.x += v.x, c.loss += tune_is_kl(t) ? v.x : dense.x - v.x;
        visited += v.visited, causal += v.causal, gain -= 1 - dense.x;
        c.work += c.is_dense ? 1 : tune_work(&spec, (int)p->ids.n, 1024, v.visited, v.causal);
        if (c.is_dense || is_check) continue;
        if (c.loss - (tune_is_kl(t) ? 0 : gain) > allowed * n)
            c.dropped = "the loss is too large";
        else if (c.work > limit * n)
            c.dropped = "another has less work";
    }
    if (c.n) c.ms = median_of(ms, c.n);
    c.x /= c.n, c.loss /= c.n, c.work /= c.n, c.density = c.is_dense ? 1 : visited / causal;
    return c;
}

static const char *check_prefill_row(const char *text, const made *m, int length, const char *of, const candidate *c,
                                     const char *result) {
    fields f;
    want_row(&f, &m->t, "prefill", length, c->attn, of, c->n, c->x, result);
    want(&f, "x_se", NAN), want(&f, "loss", c->loss), want(&f, "density", c->density), want(&f, "work", c->work);
    want(&f, "prefill_ms", c->ms);
    return check_row(text, &f);
}

static void check_prefill(made *m) {
    static const int from[LENGTHS] = {300, 650, 1450};
    tune *t = &m->t;
    const char *text = capture(run_part, m);
    int k = 0;
    for (int i = 0; i < LENGTHS; i++) {
        int length = t->task_options.lengths.at[i];
        candidate dense = measured(m, "dense", length, 0, INFINITY), best = dense, check = measured(m, "dense", length, 1, 0);
        if (!dense.n) continue;
        text = check_prefill_row(text, m, length, "tune", &dense, "");
        for (int j = 0; j < CANDIDATES; j++) {
            candidate c = measured(m, t->candidates.names[j], length, 0, best.work);
            int is_best = !c.dropped && c.work < best.work;
            text = check_prefill_row(text, m, length, "tune", &c,
                                     is_best     ? "best so far"
                                     : c.dropped ? c.dropped
                                                 : "another has less work");
            if (is_best) best = c;
        }
        text = check_prefill_row(text, m, length, "tune", &best, "chosen");
        if (check.n) {
            text = check_prefill_row(text, m, length, "check", &check, "");
            check = measured(m, best.attn, length, 1, INFINITY);
            text = check_prefill_row(text, m, length, "check", &check, "chosen");
        }
        const json_t *range = json_array_get(json_object_get(m->part, "ranges"), (size_t)k);
        fields f = {.n = 0}, found = {.n = 0};
        want(&f, "from", from[i]), want_text(&f, "attn", best.attn), want_list(&f, "found"), check_fields(range, &f, 0);
        want(&found, "length", length), want_text(&found, "measure", t->tune_options.measure),
            want(&found, "allowed_loss", t->tune_options.loss);
        want(&found, "prompts", best.n), want(&found, "dense", dense.x), want(&found, "value", best.x);
        want(&found, "density", best.density), want(&found, "work", best.work);
        if (check.n) want(&found, "check_loss", check.loss);
        check_fields(json_object_get(range, "found"), &found, 1e-9);
        CHECK(t->times[k].from == from[i] && t->times[k].ms == best.ms && t->times[k].dense_ms == dense.ms);
        k++;
    }
    CHECK_STR(text, "");
    CHECK_INT(t->n_times, k);
    CHECK_INT(json_array_size(json_object_get(m->part, "ranges")), k);
    CHECK_INT(number(m->part, "segment"), 1024);
    CHECK_INT(t->n_done, t->n_planned);
}

static void prefill(void) {
    test_draw_from(test_seed);
    for (int k = 0; k < 40; k++) {
        static made m;
        make(&m, k);
        for (int i = 0; i < m.t.n_prompts; i++) m.t.n_planned += m.t.prompts[i].is_check ? 2 : 1 + CANDIDATES;
        check_prefill(&m);
        drop(&m);
    }
}

// ---- budgets ----

enum { LAYERS = 4, SCHEDULES = 3 };

static void put(made *m, const char *name, json_t *value) {
    json_object_set_new(m->t.log, name, value);
}

static json_t *list_of(const int *x) {
    return json_pack("[i, i, i, i]", x[0], x[1], x[2], x[3]);
}

// The values of the prompts of one length, that are for tuning or for the check.
static cli_values values_of(made *m, const char *setting, int length, int is_check) {
    cli_values v = {0};
    for (int i = 0; i < m->t.n_prompts; i++) {
        char name[512];
        const tune_prompt *p = &m->prompts[i];
        if (p->length != length || p->is_check != is_check) continue;
        snprintf(name, sizeof name, "check/santa:S=5/%s/%s", setting, p->name);
        if (!json_object_get(m->t.log, name)) put(m, name, json_pack("{s:f}", "x", some_score(i % 2, tune_is_kl(&m->t))));
        add_value(&v, number(json_object_get(m->t.log, name), "x"));
    }
    return v;
}

// Splits the draws by the rules of docs/tune.md, from measurements that it adds to the log.
static void make_schedules(made *m, int length, int schedule[SCHEDULES][LAYERS]) {
    tune *t = &m->t;
    double error[LAYERS] = {0}, theta[LAYERS] = {0}, p[LAYERS], reward[4];
    int n = 0, s[4][LAYERS];
    char name[512];
    for (int i = 0; i < t->n_prompts; i++) n += t->prompts[i].length == length && !t->prompts[i].is_check;
    for (int i = 0; i < t->n_prompts; i++) {
        double one[LAYERS];
        if (t->prompts[i].length != length || t->prompts[i].is_check) continue;
        for (int l = 0; l < LAYERS; l++) one[l] = pow(test_draw(), 3), error[l] += one[l] / n;
        snprintf(name, sizeof name, "error/santa:S=5/%s", t->prompts[i].name);
        put(m, name, json_pack("{s:[f, f, f, f]}", "error", one[0], one[1], one[2], one[3]));
    }
    for (int u = 0; u < t->tune_options.iterations; u++) {
        sl_layer_budgets_policy(theta, LAYERS, p);
        for (int e = 0; e < t->tune_options.episodes; e++) {
            int n_batch = t->tune_options.batch_questions < n ? t->tune_options.batch_questions : n;
            reward[e] = test_draw();
            sl_layer_budgets_draw(p, LAYERS, 5 * LAYERS, 7, (uint32_t)u, (uint32_t)e, s[e]);
            snprintf(name, sizeof name, "learn/%d/%d/santa:S=5/%d tokens/%d of %d prompts/%d episodes/rate %g/%s", u, e, length,
                     n_batch, n, t->tune_options.episodes, t->tune_options.rate, t->task_options.jsonl ? "lines" : "qa-1hop");
            put(m, name, json_pack("{s:o, s:f}", "budgets", list_of(s[e]), "reward", reward[e]));
        }
        sl_layer_budgets_learn(theta, LAYERS, 5 * LAYERS, t->tune_options.rate, *s, reward, t->tune_options.episodes);
    }
    sl_layer_budgets_policy(theta, LAYERS, p);
    for (int l = 0; l < LAYERS; l++) schedule[0][l] = 5;
    sl_layer_budgets_by_variance(error, LAYERS, 5 * LAYERS, schedule[1]);
    sl_layer_budgets_round(p, LAYERS, 5 * LAYERS, schedule[2]);
}

static void check_budgets(made *m) {
    static const char *const names[SCHEDULES] = {"uniform", "variance", "learned"};
    tune *t = &m->t;
    int length = t->task_options.lengths.at[LENGTHS - 1], schedule[SCHEDULES][LAYERS], best = 0, has_check = 0;
    char setting[SCHEDULES + 1][64] = {"", "", "", "dense"}, row[96], method[32];
    fields f = {.n = 0};
    for (int i = 0; i < t->n_prompts; i++) length = t->prompts[i].length < length ? t->prompts[i].length : length;
    for (int i = 0; i < t->n_prompts; i++) has_check |= t->prompts[i].length == length && t->prompts[i].is_check;
    make_schedules(m, length, schedule);
    cli_values v[SCHEDULES + 1];
    double mean[SCHEDULES + 1];
    for (int i = 0; i <= SCHEDULES; i++) {
        const int *s = schedule[i];
        if (i < SCHEDULES) snprintf(setting[i], sizeof *setting, "%d,%d,%d,%d", s[0], s[1], s[2], s[3]);
        v[i] = values_of(m, setting[i], length, has_check);
        mean[i] = mean_of_values(v[i].x, v[i].n);
        if (i < SCHEDULES && (tune_is_kl(t) ? mean[i] < mean[best] : mean[i] > mean[best])) best = i;
    }
    m->run = tune_budgets_part;
    const char *text = capture(run_part, m);
    for (int i = -1; i < SCHEDULES; i++) {
        int at = i < 0 ? SCHEDULES : i;
        snprintf(row, sizeof row, i < 0 ? "dense" : "%s S=%s", i < 0 ? "" : names[i], setting[at]);
        want_row(&f, t, "budgets", length, row, t->tune_options.check ? "check" : "tune", v[at].n, mean[at],
                 i == best ? "chosen" : "");
        want(&f, "x_se", error_of(&v[at])), want(&f, "loss", tune_is_kl(t) ? mean[at] : mean[SCHEDULES] - mean[at]);
        want(&f, "density", NAN), want(&f, "work", NAN), want(&f, "prefill_ms", NAN);
        text = check_row(text, &f);
    }
    CHECK_STR(text, "");
    const json_t *layers = json_object_get(m->part, "layers"), *found = json_object_get(m->part, "found"),
                 *all = json_object_get(found, "schedules");
    for (int l = 0; l < LAYERS; l++) {
        snprintf(method, sizeof method, "santa:S=%d", schedule[best][l]);
        CHECK_STR(json_string_value(json_array_get(layers, (size_t)l)), method);
    }
    f.n = 0;
    want_text(&f, "attn", "santa:S=5"), want(&f, "total", 5 * LAYERS), want(&f, "length", length);
    want_text(&f, "measure", t->tune_options.measure), want_text(&f, "chosen", names[best]), want_list(&f, "schedules");
    check_fields(found, &f, 0);
    CHECK_INT(json_object_size(all), SCHEDULES);
    for (int i = 0; i < SCHEDULES; i++) {
        json_t *budgets = list_of(schedule[i]);
        CHECK_NEAR(number(json_object_get(all, names[i]), "value"), mean[i], 1e-12);
        CHECK(json_equal(json_object_get(json_object_get(all, names[i]), "budgets"), budgets));
        json_decref(budgets);
    }
    for (int i = 0; i <= SCHEDULES; i++) cli_values_free(&v[i]);
}

static void budgets(void) {
    sl_model *loaded;
    CHECK_OK(sl_model_load(tiny(), NULL, &loaded, &err), err);
    test_draw_from(test_seed);
    for (int k = 0; k < 30; k++) {
        static made m;
        make(&m, k);
        tune *t = &m.t;
        CHECK_OK(sl_attn_parse("santa:S=5", &t->method, &err), err);
        t->run.model = loaded, t->run_options.sampling.seed = 7, t->tune_options.iterations = k % 3,
        t->tune_options.episodes = 2 + k % 2, t->tune_options.batch_questions = 1 + k % 4;
        t->tune_options.rate = 0.3, t->task_options.tasks = "qa-1hop", t->task_options.jsonl = k % 5 ? NULL : "file";
        check_budgets(&m);
        drop(&m);
    }
    sl_model_free(loaded);
}

// ---- prompts of a file ----

// The length with the greatest lower end at or below n tokens; 0: there is none.
static int length_of(int n) {
    return n >= 75 ? 100 : n >= 35 ? 50 : n >= 15 ? 20 : 0; // 3/4 of the first, and the middles
}

// Of the lines of a length, the first --samples are for tuning, the next --check for the check, and the others are left out.
static void prompts(void) {
    sl_model *loaded;
    static char file[1 << 16];
    CHECK_OK(sl_model_load(tiny(), NULL, &loaded, &err), err);
    test_draw_from(test_seed);
    for (int k = 0; k < 12; k++) {
        static made m;
        tune *t = &m.t;
        static const cli_ints lengths = {.at = {20, 50, 100}, .n = 3};
        int is_kl = k % 2, n_lines = 5 + test_below(16), n_of[101] = {0}, n_all[30], n_context[30], at = 0;
        m = (made){0};
        *file = 0;
        CHECK_OK(cli_options_parse(&m.o, CLI_TUNE, 0, NULL, &err), err);
        take_flags(t, &m.o);
        t->run.model = loaded, t->prompter.tok = sl_model_tokenizer(loaded);
        t->task_options.lengths = lengths, t->tune_options.measure = is_kl ? "kl" : "score",
        t->task_options.samples = 1 + test_below(3), t->tune_options.check = test_below(3), t->tune_options.score = 5;
        t->task_options.question_dense = k % 3 == 0, t->task_options.jsonl = in_tmp("lines");
        for (int i = 0; i < n_lines; i++) {
            sl_ids ids = {0}, head = {0};
            char *text = malloc(2048), whole[2048];
            snprintf(text, 2048, "%.*s", 30 + test_below(400), long_text(12));
            json_t *line = is_kl ? json_pack("{s:s}", "text", text)
                                 : json_pack("{s:s, s:s, s:s}", "context", text, "question", " What is it?", "answer", "x");
            snprintf(whole, sizeof whole, "%s%s", text, is_kl ? "" : " What is it?");
            CHECK_OK(sl_tokenize(t->prompter.tok, whole, strlen(whole), SL_TOK_BOS, &ids, &err), err);
            CHECK_OK(sl_tokenize(t->prompter.tok, text, strlen(text), SL_TOK_BOS, &head, &err), err);
            n_all[i] = (int)ids.n, n_context[i] = 0;
            while ((size_t)n_context[i] < head.n && head.data[n_context[i]] == ids.data[n_context[i]]) n_context[i]++;
            if (is_kl) n_context[i] = n_all[i] - 5;
            if (!is_kl && t->task_options.question_dense) n_context[i] = n_all[i];
            char *dumped = json_dumps(line, 0);
            strcat(strcat(file, dumped), "\n");
            free(dumped), free(text), json_decref(line), sl_ids_free(&ids), sl_ids_free(&head);
        }
        spill(t->task_options.jsonl, file, strlen(file));
        CHECK_OK(tune_make_prompts(t, &err), err);
        for (int i = 0; i < n_lines; i++) {
            int length = length_of(n_all[i]), before = n_of[length]++;
            char name[32];
            if (!length || before >= t->task_options.samples + t->tune_options.check) continue;
            CHECK(at < t->n_prompts);
            const tune_prompt *p = &t->prompts[at++];
            snprintf(name, sizeof name, "line/%d", i + 1);
            CHECK_STR(p->name, name);
            CHECK_INT(p->length, length);
            CHECK_INT(p->is_check, before >= t->task_options.samples);
            CHECK_INT(p->ids.n, n_all[i]);
            CHECK_INT(p->n_context, n_context[i]);
            CHECK((p->item == NULL) == is_kl);
        }
        CHECK_INT(t->n_prompts, at);
        CHECK_INT(tune_first_length(t), n_of[20] ? 20 : n_of[50] ? 50 : 100);
        tune_free_prompts(t), eval_prompter_free(&t->prompter), eval_records_free(&t->records), cli_options_free(&m.o);
    }
    sl_model_free(loaded);
}

// ---- the work that a run plans ----

static struct {
    cli_progress last;
    int n_bad;       // reports in which work was taken back, or a next token counted as more than one step
    int n, stop, rc; // reports; the report at which Ctrl+C is pressed, or 0; what the command returned
} seen;

static void watch(const cli_progress *p) {
    double more = p->rest.done - seen.last.rest.done;
    if (!p->is_run) return;
    seen.n_bad += more < 0 || (!strcmp(p->item, "next tokens") && !strcmp(seen.last.item, p->item) && more > 1);
    seen.last = *p;
    if (++seen.n == seen.stop) raise(SIGINT);
}

typedef struct command {
    int bit;
    const char *flags; // @: a file of the case
} command;

static int run_command(void *ctx, sl_error *e) {
    const command *c = ctx;
    char text[512], paths[4][256], *args[32] = {"-m", (char *)tiny()};
    int n = 2, n_paths = 0;
    cli_options o;
    cli_progress after;
    snprintf(text, sizeof text, "%s", c->flags);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " "), n++) {
        args[n] = word;
        if (*word == '@') snprintf(args[n] = paths[n_paths++], sizeof *paths, "%s", in_tmp(word + 1));
    }
    seen.n_bad = seen.n = 0, seen.last = (cli_progress){.done = 0};
    remove(in_tmp("profile.log"));
    int rc = cli_options_parse(&o, c->bit, n, args, e);
    if (!rc) rc = sl_source_open(o.run.model.path, &o.run.model.source, e);
    cli_progress_watch = watch;
    if (!rc) rc = cli_command_run(&o, e);
    cli_progress_watch = NULL;
    cli_progress_begin(&after, "after", "");
    seen.n_bad += after.outer != NULL; // the run did not end its own progress
    cli_progress_end(&after);
    signal(SIGINT, SIG_DFL);
    cli_clear_interrupt();
    cli_options_free(&o);
    seen.rc = rc;
    return seen.stop ? 0 : rc;
}

// A run reports all the work that it planned, and no other work. least: of the prefills.
static void check_planned(int bit, double least, const char *flags) {
    const cli_work *prefill = &seen.last.prefill, *rest = &seen.last.rest;
    capture(run_command, &(command){bit, flags});
    if (seen.last.done != seen.last.total || seen.n_bad || prefill->done < least * prefill->total ||
        prefill->done > 1.02 * prefill->total || rest->done != (rest->total > 0 ? rest->total : 0))
        FAIL("%s: %d of %d units, %d bad reports, prefill %g of %g, rest %g of %g", flags, seen.last.done, seen.last.total,
             seen.n_bad, prefill->done, prefill->total, rest->done, rest->total);
}

// After Ctrl+C the command of the last check_planned ends soon, with this error.
static void check_interrupts(int bit, const char *flags) {
    for (int i = 1, n = seen.n; i < 3; i++) {
        seen.stop = n * i / 3;
        capture(run_command, &(command){bit, flags});
        CHECK_INT(seen.rc, SL_ERR_IO);
        if (seen.n > seen.stop + 5) FAIL("%s: %d reports after the interruption", flags, seen.n - seen.stop);
    }
    seen.stop = 0;
}

static void planned_perplexity(void) {
    char lines[4096], *words = strdup(long_text(20));
    spill(in_tmp("text"), words, strlen(words));
    for (char *at = words; (at = strchr(at, '\n'));) *at = ' ';
    spill(in_tmp("two"), lines, (size_t)sprintf(lines, "{\"text\": \"%.600s\"}\n{\"text\": \"%.700s\"}\n", words, words));
    free(words);
    check_planned(CLI_PERPLEXITY, 0.98, "-f @text -c 64 --stride 50");
    check_planned(CLI_PERPLEXITY, 0.98, "-f @text -c 64 --attn topk:k=4 --windows 3");
    static const char segments[] = "--jsonl @two -c 64 --stride 40 --score 30 --history 5,all --segment 9 --windows 2";
    check_planned(CLI_PERPLEXITY, 0.98, segments);
    check_interrupts(CLI_PERPLEXITY, segments);
}

static void planned_compare(void) {
#define ASK(X) "{\"context\": \"The harbor is" X " green.\", \"question\": \"Is it?\", \"reference\": \" Yes, it is.\"}\n"
    spill(in_tmp("asks"), ASK("") ASK(" very"), strlen(ASK("") ASK(" very")));
    static const char texts[] = "--jsonl @asks --attn topk:k=4,dense -n 5 --ignore-eos --no-heads";
    check_planned(CLI_COMPARE, 0.98, "--jsonl @asks --attn topk:k=4 --no-texts --no-heads");
    check_planned(CLI_COMPARE, 0.98, "--jsonl @asks --attn topk:k=4 --no-texts");
    check_interrupts(CLI_COMPARE, "--jsonl @asks --attn topk:k=4 --no-texts");
    check_planned(CLI_COMPARE, 0.98, texts);
    check_interrupts(CLI_COMPARE, texts);
}

static void planned_tune(void) {
    static const char part[] =
        "--length 256 --task niah-single --samples 2 --check 0 --iterations 0 -n 2 --attn-prefill streaming --out @profile";
    check_planned(CLI_TUNE, 1,
                  "--length 256 --task niah-single --samples 2 --check 1 --iterations 1 --episodes 2 -n 2 --attn-prefill "
                  "streaming:window=64,sample --out @profile");
    check_planned(CLI_TUNE, 1, part);
    check_interrupts(CLI_TUNE, part);
}

static void planned_eval(void) { // a text is up to 60 tokens shorter than --length
    static const char whole[] = "--task niah-single,vt --length 600 --samples 2 -n 4 --question-dense";
    check_planned(CLI_EVAL, 0.8, "--task niah-single --length 300,600 --samples 1 -n 4 --question-dense --out @out");
    check_planned(CLI_EVAL, 0.8, "--task niah-single --length 300,600 --samples 2 -n 4 --question-dense --out @out");
    check_planned(CLI_EVAL, 0.8, whole);
    check_interrupts(CLI_EVAL, whole);
}

// ---- the log ----

static int open_log(tune *t, const cli_options *o) {
    take_flags(t, o);
    snprintf(t->device, sizeof t->device, "a device");
    t->model = (cli_model_name){.name = "made"};
    t->run.device = "cpu";
    snprintf(t->log_path, sizeof t->log_path, "%s", in_tmp("log"));
    int rc = tune_open_log(t, &err);
    json_decref(t->settings);
    return rc;
}

static void close_log(tune *t) {
    json_decref(t->log);
    if (t->log_file) fclose(t->log_file);
}

// A log belongs to settings that change measurements: a run with another setting refuses it, and a run with other flags does
// not.
static void logs(void) {
    static const struct {
        char *args[2];
        const char *key; // NULL: measurements do not depend on it
    } rows[] = {{{"--seed", "3"}, "seed"},
                {{"--task-seed", "3"}, "task-seed"},
                {{"--n-predict", "9"}, "n-predict"},
                {{"--haystack", "noise"}, "haystack"},
                {{"--measure", "kl"}, "measure"},
                {{"--score", "3"}, "score"},
                {{"--prefill-segment", "512"}, "prefill-segment"},
                {{"--question-dense", NULL}, "question-dense"},
                {{"--stop", "x"}, "stop"},
                {{"--system-prompt", "x"}, "system-prompt"},
                {{"--chat", NULL}, "chat"},
                {{"--samples", "3"}, NULL},
                {{"--loss", "0.5"}, NULL},
                {{"--parts", "prefill"}, NULL}};
    char *plain[] = {"-m", (char *)tiny()};
    cli_options o;
    tune t;
    CHECK_OK(cli_options_parse(&o, CLI_TUNE, 2, plain, &err), err);
    CHECK_OK(sl_source_open(o.run.model.path, &o.run.model.source, &err), err);
    CHECK_OK(open_log(&t, &o), err);
    CHECK_OK(tune_record(&t, "one", json_pack("{s:i}", "x", 5), &err), err);
    close_log(&t);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *args[] = {"-m", (char *)tiny(), rows[i].args[0], rows[i].args[1]}, want[64];
        cli_options other;
        CHECK_OK(cli_options_parse(&other, CLI_TUNE, rows[i].args[1] ? 4 : 3, args, &err), err);
        CHECK_OK(sl_source_open(other.run.model.path, &other.run.model.source, &err), err);
        int rc = open_log(&t, &other);
        snprintf(want, sizeof want, "was written with %s = ", rows[i].key);
        if (rows[i].key)
            CHECK_ERR(rc, err, SL_ERR_ARG, want);
        else
            CHECK_OK(rc, err);
        if (!rows[i].key) CHECK(number(tune_find(&t, "one"), "x") == 5 && !tune_find(&t, "two"));
        close_log(&t), cli_options_free(&other);
    }
    for (int i = 0; i < 3; i++) { // the bytes of the file of --jsonl count
        o.tasks.jsonl = in_tmp("lines"), spill(o.tasks.jsonl, i < 2 ? "a" : "b", 1);
        if (!i) remove(in_tmp("log"));
        int rc = open_log(&t, &o);
        if (i < 2)
            CHECK_OK(rc, err);
        else
            CHECK_ERR(rc, err, SL_ERR_ARG, "was written with jsonl = ");
        close_log(&t);
    }
    static const char *const bad[] = {"{\"name\": \"a\"}", "{\"name\": \"a\", \"value\": 1}", "{\"name\": 1, \"value\": {}}",
                                      "{\"name\": \"a\", \"value\": {}, \"more\": 1}"};
    o.tasks.jsonl = NULL;
    for (int i = 0; i < 4; i++) {
        remove(in_tmp("log"));
        CHECK_OK(open_log(&t, &o), err);
        fprintf(t.log_file, "%s\n", bad[i]);
        close_log(&t);
        CHECK_ERR(open_log(&t, &o), err, SL_ERR_FORMAT, "line 2: expected a measurement");
        close_log(&t);
    }
    cli_options_free(&o);
}

static const test_case cases[] = {{"logs", 0, logs},
                                  {"planned-perplexity", 0, planned_perplexity},
                                  {"planned-compare", 0, planned_compare},
                                  {"planned-eval", 0, planned_eval},
                                  {"planned-tune", 0, planned_tune},
                                  {"prompts", 0, prompts},
                                  {"work", 0, work},
                                  {"prefill", 0, prefill},
                                  {"budgets", 0, budgets},
                                  {0}};
extern const test_suite suite_figures_tune;
const test_suite suite_figures_tune = {"figures_tune", cases};
