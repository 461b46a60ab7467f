// cli/tune/tune_budgets.c - the draws of each layer at an equal total: uniform, by variance, learned; see tune.h and
// docs/tune.md.
#include "attention/budgets/layer_budgets.h"
#include "base/philox.h"
#include "cli/output/progress_bar.h"
#include "cli/output/summary.h"
#include "cli/tune/tune.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { UNIFORM, BY_VARIANCE, LEARNED, N_SCHEDULES, TEXT = 4096 };

static const char *const schedule_names[N_SCHEDULES] = {"uniform", "variance", "learned"};

typedef struct budgets {
    tune *t;
    int n_layers, total, length, n_train, n_check;
    tune_prompt **train, **check;
    char attn[256];             // the method with the mean S
    double *error;              // [n_layers] of the relative output, mean over the prompts
    double *theta;              // [n_layers]
    int *s;                     // [episodes][n_layers] drawn schedules
    double *reward;             // [episodes]
    int *order;                 // [n_train]
    int *schedule[N_SCHEDULES]; // [n_layers]
} budgets;

static void step(tune *t) {
    cli_progress_update(&t->progress, ++t->n_done, t->n_planned);
}

static int make_plan(const budgets *b, const int *s, sl_attn_plan *plan, sl_error *err) {
    int rc = sl_attn_plan_init(plan, b->n_layers, &b->t->method, err), at = sl_attn_param_index(b->t->method.method, "S");
    for (int l = 0; !rc && l < b->n_layers; l++) plan->layer[l].value[at] = s[l] > 0 ? s[l] : 1; // a layer needs a draw
    return rc;
}

static void format(const budgets *b, const int *s, char buf[TEXT]) { // "12,3,9,8"
    size_t n = 0;
    for (int l = 0; l < b->n_layers && n < TEXT; l++) n += (size_t)snprintf(buf + n, TEXT - n, "%s%d", l ? "," : "", s[l]);
}

// ---- the variance rule ----

static int measure_errors(budgets *b, sl_error *err) {
    double *error = calloc((size_t)b->n_layers, sizeof *error);
    int rc = error ? 0 : sl_fail(err, SL_ERR_MEMORY, "errors of %d layers: out of memory", b->n_layers);
    for (int i = 0; !rc && i < b->n_train; i++) {
        cli_progress_item(&b->t->progress, "errors of layers");
        rc = tune_layer_errors(b->t, b->train[i], error, err);
        for (int l = 0; !rc && l < b->n_layers; l++) b->error[l] += error[l] / b->n_train;
        if (!rc) step(b->t);
    }
    free(error);
    return rc;
}

// ---- learning ----

// The first n of b->order become the prompts of an episode: a uniform draw without replacement.
static void choose_prompts(budgets *b, int update, int episode, int n) {
    const sl_rng_id id = {
        .seed = b->t->o.run->sampling.seed, .sequence = (uint32_t)episode, .position = (uint32_t)update, .layer = 1};
    for (int i = 0; i < b->n_train; i++) b->order[i] = i;
    for (int i = 0; i < n; i++) {
        int j = i + (int)(sl_rng_u64(&id, (uint32_t)i, SL_STREAM_TUNE) % (uint64_t)(b->n_train - i)), x = b->order[i];
        b->order[i] = b->order[j], b->order[j] = x;
    }
}

// An episode: the mean reward of some prompts that decode with the schedule.
static int run_episode(budgets *b, int update, int episode, sl_error *err) {
    tune *t = b->t;
    const int *s = b->s + (size_t)episode * b->n_layers;
    int n = t->o.tune->batch_questions < b->n_train ? t->o.tune->batch_questions : b->n_train;
    char name[512], draws[64];
    snprintf(draws, sizeof draws, "learn/%d/%d", update, episode);
    snprintf(name, sizeof name, "%s/%s/%d tokens/%d of %d prompts/%d episodes/rate %g/%.120s", draws, b->attn, b->length, n,
             b->n_train, t->o.tune->episodes, t->o.tune->rate, t->o.tasks->jsonl ? "lines" : t->o.tasks->tasks);
    json_t *value = tune_find(t, name), *list = json_array();
    for (int l = 0; l < b->n_layers; l++) json_array_append_new(list, json_integer(s[l]));
    int rc = 0;
    if (value && !json_equal(json_object_get(value, "budgets"), list))
        rc = sl_fail(err, SL_ERR_FORMAT, "%s: the schedule of %s is not that of this run; remove the file", t->log_path, draws);
    if (!value) {
        sl_attn_plan plan = {0};
        double sum = 0, x;
        rc = make_plan(b, s, &plan, err);
        choose_prompts(b, update, episode, n);
        for (int i = 0; !rc && i < n; i++) {
            rc = tune_decode(t, b->train[b->order[i]], &plan, NULL, draws, &x, err);
            if (!rc) sum += tune_reward(t, x);
        }
        sl_attn_plan_free(&plan);
        if (!rc) rc = tune_record(t, name, json_pack("{s:O, s:f}", "budgets", list, "reward", sum / n), err);
        value = rc ? NULL : tune_find(t, name);
    }
    b->reward[episode] = json_number_value(json_object_get(value, "reward"));
    json_decref(list);
    if (!rc) step(t);
    return rc;
}

static int learn(budgets *b, double *p, sl_error *err) {
    const tune *t = b->t;
    int rc = 0;
    for (int u = 0; !rc && u < t->o.tune->iterations; u++) {
        char item[64];
        snprintf(item, sizeof item, "update %d of %d", u + 1, t->o.tune->iterations);
        cli_progress_item(&b->t->progress, item);
        sl_layer_budgets_policy(b->theta, b->n_layers, p);
        for (int e = 0; !rc && e < t->o.tune->episodes; e++) {
            sl_layer_budgets_draw(p, b->n_layers, b->total, t->o.run->sampling.seed, (uint32_t)u, (uint32_t)e,
                                  b->s + (size_t)e * b->n_layers);
            rc = run_episode(b, u, e, err);
        }
        if (!rc) sl_layer_budgets_learn(b->theta, b->n_layers, b->total, t->o.tune->rate, b->s, b->reward, t->o.tune->episodes);
    }
    sl_layer_budgets_policy(b->theta, b->n_layers, p);
    return rc;
}

// ---- the table ----

// Measures a plan on the prompts of --check. spread: the standard error of the mean.
static int measure_plan(budgets *b, const sl_attn_plan *plan, const char *text, double *mean, double *spread, sl_error *err) {
    tune *t = b->t;
    cli_values values = {0};
    int rc = 0;
    for (int i = 0; !rc && i < b->n_check; i++) {
        char name[TEXT + 512];
        double x;
        snprintf(name, sizeof name, "check/%s/%s/%s", b->attn, text, b->check[i]->name);
        cli_progress_item(&t->progress, text);
        rc = tune_decode(t, b->check[i], plan, name, "check", &x, err);
        if (!rc) rc = cli_values_add(&values, x, err);
        if (!rc) step(t);
    }
    if (!rc) rc = cli_values_end_group(&values, err);
    cli_estimate e = cli_values_mean(&values);
    *mean = e.at, *spread = e.error;
    cli_values_free(&values);
    return rc;
}

static int print(budgets *b, const char *setting, double mean, double spread, double dense, const char *verdict,
                 sl_error *err) {
    tune *t = b->t;
    json_t *row = json_pack("{s:s, s:i, s:s, s:s, s:i, s:f, s:o, s:f, s:s}", "part", "budgets", "length", b->length, "setting",
                            setting, "prompts", b->t->o.tune->check ? "check" : "tune", "n", b->n_check, "x", mean, "x_se",
                            cli_number(spread), "loss", tune_is_kl(t) ? mean : dense - mean, "result", verdict);
    if (!row) return sl_fail(err, SL_ERR_MEMORY, "a row: out of memory");
    if (!tune_is_kl(t)) {
        cli_interval share = cli_share(mean * b->n_check, b->n_check);
        json_object_set_new(row, "low", json_real(share.low)), json_object_set_new(row, "high", json_real(share.high));
    }
    return tune_print(t, row, err);
}

// Measures the schedules, prints them, and returns the best one: of equal values the first, because it is the simplest.
static int compare(budgets *b, double value[N_SCHEDULES], int *best, sl_error *err) {
    const sl_attn_spec dense = {.method = &sl_method_dense};
    double mean[N_SCHEDULES + 1], spread[N_SCHEDULES + 1];
    char text[TEXT], setting[TEXT + 16];
    int rc = 0;
    *best = UNIFORM;
    for (int k = 0; !rc && k <= N_SCHEDULES; k++) { // the last is dense attention
        sl_attn_plan plan = {0};
        if (k < N_SCHEDULES) format(b, b->schedule[k], text);
        rc = k < N_SCHEDULES ? make_plan(b, b->schedule[k], &plan, err) : sl_attn_plan_init(&plan, b->n_layers, &dense, err);
        if (!rc) rc = measure_plan(b, &plan, k < N_SCHEDULES ? text : "dense", &mean[k], &spread[k], err);
        sl_attn_plan_free(&plan);
        if (!rc && k < N_SCHEDULES) value[k] = mean[k];
        if (!rc && k < N_SCHEDULES && tune_reward(b->t, mean[k]) > tune_reward(b->t, mean[*best])) *best = k;
    }
    if (!rc) rc = print(b, "dense", mean[N_SCHEDULES], spread[N_SCHEDULES], mean[N_SCHEDULES], "", err);
    for (int k = 0; !rc && k < N_SCHEDULES; k++) {
        format(b, b->schedule[k], text);
        snprintf(setting, sizeof setting, "%s S=%s", schedule_names[k], text);
        rc = print(b, setting, mean[k], spread[k], mean[N_SCHEDULES], k == *best ? "chosen" : "", err);
    }
    return rc;
}

// ---- the part of the profile ----

static json_t *ints(const int *x, int n) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(list, json_integer(x[i]));
    return list;
}

static json_t *make_part(budgets *b, const double *value, int best, sl_error *err) {
    sl_attn_plan plan;
    char text[256];
    json_t *layers = json_array(), *list = json_object();
    if (make_plan(b, b->schedule[best], &plan, err)) return NULL;
    for (int l = 0; l < b->n_layers; l++) {
        sl_attn_format(&plan.layer[l], text, sizeof text);
        json_array_append_new(layers, json_string(text));
    }
    sl_attn_plan_free(&plan);
    for (int k = 0; k < N_SCHEDULES; k++)
        json_object_set_new(list, schedule_names[k],
                            json_pack("{s:o, s:f}", "budgets", ints(b->schedule[k], b->n_layers), "value", value[k]));
    return json_pack("{s:o, s:{s:s, s:i, s:i, s:s, s:s, s:o}}", "layers", layers, "found", "attn", b->attn, "total", b->total,
                     "length", b->length, "measure", b->t->o.tune->measure, "chosen", schedule_names[best], "schedules", list);
}

static int alloc(budgets *b, sl_error *err) {
    size_t n = (size_t)b->n_layers;
    b->train = calloc((size_t)b->t->n_prompts, sizeof *b->train);
    b->check = calloc((size_t)b->t->n_prompts, sizeof *b->check);
    b->order = calloc((size_t)b->t->n_prompts, sizeof *b->order);
    b->error = calloc(n, sizeof *b->error);
    b->theta = calloc(2 * n, sizeof *b->theta); // the policy follows the logits
    b->s = calloc((size_t)b->t->o.tune->episodes * n, sizeof *b->s);
    b->reward = calloc((size_t)b->t->o.tune->episodes, sizeof *b->reward);
    int ok = b->train && b->check && b->order && b->error && b->theta && b->s && b->reward;
    for (int k = 0; k < N_SCHEDULES; k++) ok &= (b->schedule[k] = calloc(n, sizeof *b->schedule[k])) != NULL;
    return ok ? 0 : sl_fail(err, SL_ERR_MEMORY, "schedules of %d layers: out of memory", b->n_layers);
}

static void free_budgets(budgets *b) {
    free(b->train), free(b->check), free(b->order), free(b->error), free(b->theta), free(b->s), free(b->reward);
    for (int k = 0; k < N_SCHEDULES; k++) free(b->schedule[k]);
}

int tune_budgets_part(tune *t, json_t **out, sl_error *err) {
    budgets b = {.t = t, .n_layers = sl_model_config(t->run.model)->n_layers};
    double value[N_SCHEDULES], *policy;
    int best = 0, rc = alloc(&b, err), S = (int)sl_attn_get(&t->method, "S");
    b.length = tune_first_length(t);
    if (!rc) b.n_train = tune_select(t, b.length, 0, b.train);
    if (!rc) b.n_check = tune_select(t, b.length, 1, b.check);
    if (!rc && !b.n_check) b.n_check = tune_select(t, b.length, 0, b.check);
    b.total = S * b.n_layers, policy = b.theta + b.n_layers;
    sl_attn_format(&t->method, b.attn, sizeof b.attn);
    if (!rc) rc = measure_errors(&b, err);
    if (!rc) rc = learn(&b, policy, err);
    if (!rc) {
        for (int l = 0; l < b.n_layers; l++) b.schedule[UNIFORM][l] = S;
        sl_layer_budgets_by_variance(b.error, b.n_layers, b.total, b.schedule[BY_VARIANCE]);
        sl_layer_budgets_round(policy, b.n_layers, b.total, b.schedule[LEARNED]);
        rc = compare(&b, value, &best, err);
    }
    *out = rc ? NULL : make_part(&b, value, best, err);
    free_budgets(&b);
    return rc;
}
