// cli/tune/tune_prefill.c - for each length, the method for prefill with the least work within the stated loss; see
// tune.h.
//
// A candidate is measured prompt by prompt, and dropped as soon as no result of the prompts that are left could make it the
// choice: its loss is too large even if the other answers are all right, or its work is above that of a candidate that passed.
// So a drop never changes the choice.
#include "attention/prefill/prefill_mask.h"
#include "cli/output/progress_bar.h"
#include "cli/output/summary.h"
#include "cli/tune/tune.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- work ----

// Key blocks that the sampled rows of a segment see. The last queries of each chunk see the keys up to the end of the chunk.
// first, n: query blocks of the segment.
static double sampled_blocks(int first, int n, int chunks) {
    double sum = 0;
    if (chunks > n) chunks = n;
    for (int c = 1; c <= chunks; c++) sum += first + c * n / chunks;
    return sum;
}

double tune_estimator_blocks(const sl_attn_spec *spec, int n, int segment) {
    const char *name = spec->method->name;
    int chunks = !strcmp(name, "sample") ? (int)sl_attn_get(spec, "chunk_n") : 1;
    // Scores are half of a block's work: `sample` computes those of 128 queries once, `vertical-slash` those of 64 queries
    // twice.
    double of_block = !strcmp(name, "sample") || !strcmp(name, "vertical-slash") ? 0.5 : 0, sum = 0;
    double stride = strcmp(name, "xattention") ? 0 : sl_attn_get(spec, "stride") > 0 ? 16 : 8;
    if (of_block == 0 && stride == 0 && strcmp(name, "streaming") && strcmp(name, "dense") && strcmp(name, "threshold"))
        return -1;
    for (int at = 0; at < n; at += segment) {
        int end = at + segment < n ? at + segment : n, first = at / SL_MASK_BLOCK, last = (end - 1) / SL_MASK_BLOCK;
        if (of_block > 0) sum += of_block * sampled_blocks(first, last - first + 1, chunks);
        // (128 / stride)^2 scores of stride x head_dim products a block: 1 / stride of one of a block's two products
        for (int i = first; stride > 0 && i <= last; i++) sum += 0.5 * (i + 1) / stride;
    }
    return sum;
}

double tune_work(const sl_attn_spec *spec, int n, int segment, double visited, double causal) {
    double blocks = 0, density = visited / causal;
    if (spec->method == &sl_method_dense) return 1;
    for (int i = 0; i <= (n - 1) / SL_MASK_BLOCK; i++) blocks += i + 1;
    // `threshold` computes the scores of every block, half of the work, and V of the blocks that it does not skip.
    if (spec->method->cpu && spec->method->cpu->skip_distance) return (1 + density) / 2;
    return density + tune_estimator_blocks(spec, n, segment) / blocks;
}

// ---- one candidate ----

typedef struct result {
    const char *attn;
    int n;
    double x, loss, density, work; // means over the prompts
    double ms;                     // median
    const char *dropped;           // why it cannot be the choice; NULL: it passed on every prompt
} result;

static double loss_of(const tune *t, double dense, double x) {
    return tune_is_kl(t) ? x : dense - x;
}

static void step(tune *t) {
    cli_progress_update(&t->progress, ++t->n_done, t->n_planned);
}

// From which a method cannot be the choice; infinite: it can.
typedef struct limits {
    double loss, work; // the allowed loss; the work of a candidate that passed
} limits;

static const limits no_limits = {INFINITY, INFINITY};

// Measures a method on prompts[0..n). dense: [n] values of dense prefill.
static int measure(tune *t, tune_prompt **prompts, int n, const double *dense, const char *attn, limits most, result *out,
                   sl_error *err) {
    double x = 0, loss = 0, visited = 0, causal = 0, work = 0, *ms = calloc((size_t)n, sizeof *ms);
    sl_attn_spec spec;
    int rc = ms ? sl_attn_parse(attn, &spec, err) : sl_fail(err, SL_ERR_MEMORY, "%d prompts: out of memory", n);
    double allowed = (most.loss + 1e-12) * n; // rounding must not turn an allowed loss into a forbidden one
    *out = (result){.attn = attn};
    for (int i = 0; !rc && i < n && !out->dropped; i++) {
        tune_value v;
        double best = 0; // the largest gain that the prompts after i can bring
        cli_progress_item(&t->progress, attn);
        rc = tune_prefill(t, prompts[i], attn, &v, err);
        if (rc) break;
        if (causal + v.causal == 0) v.visited = v.causal = 1; // dense prefill counts no blocks
        x += v.x, loss += loss_of(t, dense ? dense[i] : v.x, v.x), ms[out->n++] = v.ms;
        visited += v.visited, causal += v.causal;
        work += tune_work(&spec, (int)prompts[i]->ids.n, t->o.run->attention.prefill_segment, v.visited, v.causal);
        for (int j = i + 1; j < n && dense && !tune_is_kl(t); j++) best += 1 - dense[j];
        if (dense && loss - best > allowed) out->dropped = "the loss is too large";
        if (!out->dropped && work > most.work * n) out->dropped = "another has less work";
        step(t);
    }
    if (!rc) {
        t->n_planned -= n - out->n;
        out->x = x / out->n, out->loss = loss / out->n, out->density = visited / causal, out->work = work / out->n;
        out->ms = cli_median(ms, out->n);
    }
    free(ms);
    return rc;
}

// result: the last column
static int print(tune *t, int length, const char *prompts, const result *r, const char *verdict, sl_error *err) {
    json_t *row = json_pack("{s:s, s:i, s:s, s:s, s:i, s:f, s:f, s:f, s:f, s:f, s:s}", "part", "prefill", "length", length,
                            "setting", r->attn, "prompts", prompts, "n", r->n, "x", r->x, "loss", r->loss, "density",
                            r->density, "work", r->work, "prefill_ms", r->ms, "result", verdict);
    if (!row) return sl_fail(err, SL_ERR_MEMORY, "a row: out of memory");
    if (!tune_is_kl(t)) {
        cli_interval share = cli_share(r->x * r->n, r->n);
        json_object_set_new(row, "low", json_real(share.low)), json_object_set_new(row, "high", json_real(share.high));
    }
    return tune_print(t, row, err);
}

// ---- one length ----

typedef struct group { // prompts of one length
    tune_prompt **at;
    int n;
    double *dense; // [n]
    result of_dense;
} group;

static int measure_dense(tune *t, int length, int is_check, group *g, sl_error *err) {
    *g = (group){.at = calloc((size_t)t->n_prompts, sizeof *g->at)};
    if (g->at) g->n = tune_select(t, length, is_check, g->at);
    g->dense = calloc((size_t)g->n + 1, sizeof *g->dense);
    if (!g->at || !g->dense) return sl_fail(err, SL_ERR_MEMORY, "%d prompts: out of memory", t->n_prompts);
    if (!g->n) return 0;
    int rc = measure(t, g->at, g->n, NULL, "dense", no_limits, &g->of_dense, err);
    for (int i = 0; !rc && i < g->n; i++) {
        tune_value v;
        rc = tune_prefill(t, g->at[i], "dense", &v, err); // from the log
        g->dense[i] = v.x;
    }
    return rc ? rc : print(t, length, is_check ? "check" : "tune", &g->of_dense, "", err);
}

static void free_group(group *g) {
    free(g->at), free(g->dense);
}

static int tune_length(tune *t, int i, json_t *ranges, sl_error *err) {
    int length = t->o.tasks->lengths.at[i], from = tune_range_from(&t->o.tasks->lengths, i);
    group train, check = {0};
    result best, r;
    int rc = measure_dense(t, length, 0, &train, err);
    if (!rc && !train.n) {
        cli_say("note: no prompt of %d tokens or more for --length %d", from, length);
        free_group(&train);
        return 0;
    }
    best = train.of_dense;
    for (int c = 0; !rc && c < t->candidates.n; c++) {
        rc = measure(t, train.at, train.n, train.dense, t->candidates.names[c], (limits){t->o.tune->loss, best.work}, &r, err);
        int is_best = !rc && !r.dropped && r.work < best.work;
        if (is_best) best = r;
        if (!rc)
            rc = print(t, length, "tune", &r, is_best ? "best so far" : r.dropped ? r.dropped : "another has less work", err);
    }
    if (!rc) rc = print(t, length, "tune", &best, "chosen", err);
    if (!rc) rc = measure_dense(t, length, 1, &check, err);
    if (!rc && check.n) {
        rc = measure(t, check.at, check.n, check.dense, best.attn, no_limits, &r, err); // the check drops nothing
        if (!rc) rc = print(t, length, "check", &r, "chosen", err);
    }
    if (!rc) {
        json_t *found = json_pack("{s:i, s:s, s:f, s:i, s:f, s:f, s:f, s:f}", "length", length, "measure", t->o.tune->measure,
                                  "allowed_loss", t->o.tune->loss, "prompts", best.n, "dense", train.of_dense.x, "value",
                                  best.x, "density", best.density, "work", best.work);
        if (found && check.n) json_object_set_new(found, "check_loss", json_real(r.loss));
        json_array_append_new(ranges, json_pack("{s:i, s:s, s:o}", "from", from, "attn", best.attn, "found", found));
        t->times[t->n_times++] = (cli_prefill_time){from, best.ms, train.of_dense.ms};
    }
    free_group(&train), free_group(&check);
    return rc;
}

int tune_prefill_part(tune *t, json_t **out, sl_error *err) {
    json_t *ranges = json_array();
    int rc = ranges ? 0 : sl_fail(err, SL_ERR_MEMORY, "the profile: out of memory");
    for (int i = 0; !rc && i < t->o.tasks->lengths.n; i++) rc = tune_length(t, i, ranges, err);
    *out = rc || !json_array_size(ranges)
               ? NULL
               : json_pack("{s:i, s:O}", "segment", t->o.run->attention.prefill_segment, "ranges", ranges);
    json_decref(ranges);
    return rc;
}
