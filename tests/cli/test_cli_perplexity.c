// tests/cli/test_cli_perplexity.c - sleigh perplexity end to end, compared with logits of library sessions in long double:
// prefill passes, decode steps, strides; formats; errors.
#include "engine/engine.h"
#include "tests/support/run_cli.h"
#include "tests/support/models.h"

#include <math.h>
#include <stdlib.h>

static sl_error err;

static const char *spill_text(void) {
    const char *path = in_tmp("text.txt"), *text = long_text(40);
    spill(path, text, strlen(text));
    return path;
}

static void check_close(const char *what, double got, double want) { // nine digits are printed
    if (!(fabs(got - want) <= 2e-8 * fabs(want))) FAIL("%s: got %.12g, expected %.12g", what, got, want);
}

typedef struct text_ids {
    sl_model *model;
    sl_ids ids;
    int n_vocab;
} text_ids;

static text_ids open_text(void) {
    text_ids t = {0};
    const char *text = long_text(40);
    CHECK_OK(sl_model_load(tiny(), NULL, &t.model, &err), err);
    CHECK_OK(sl_tokenize(sl_model_tokenizer(t.model), text, strlen(text), SL_TOK_BOS, &t.ids, &err), err);
    CHECK(t.ids.n > 800 && t.ids.data[0] == sl_tokenizer_bos(sl_model_tokenizer(t.model)));
    t.n_vocab = sl_model_config(t.model)->n_vocab;
    return t;
}

static void close_text(text_ids *t) {
    sl_ids_free(&t->ids);
    sl_model_free(t->model);
}

static double nll(const float *logits, int n, int32_t next) {
    long double sum = 0;
    for (int i = 0; i < n; i++) sum += expl((long double)logits[i] - logits[next]);
    return (double)logl(sum);
}

typedef struct row_sum {
    const int32_t *ids;
    int first, last, n_vocab;
    double sum;
} row_sum;

static int add_rows(void *ctx, int first, int n_rows, const float *logits, sl_error *e) {
    row_sum *r = ctx;
    (void)e;
    for (int i = first; i < first + n_rows; i++)
        if (i >= r->first && i < r->last) r->sum += nll(logits + (size_t)(i - first) * r->n_vocab, r->n_vocab, r->ids[i + 1]);
    return 0;
}

// Sum of -log p of the tokens of a window from first + 1 on. n_dense < n: the method decodes the rest.
static double window_sum(const text_ids *t, sl_engine *engine, int at, int first, int n_dense, uint32_t sequence) {
    int n = sl_engine_n_ctx(engine);
    sl_session *s;
    int32_t *ids = malloc(n * sizeof *ids);
    memcpy(ids, t->ids.data + at, n * sizeof *ids);
    ids[0] = t->ids.data[0];
    row_sum r = {.ids = ids, .first = first, .last = n - 1, .n_vocab = t->n_vocab};
    CHECK_OK(sl_session_new(engine, sequence, &s, &err), err);
    CHECK_OK(sl_prefill_logits(s, ids, n_dense, add_rows, &r, NULL, &err), err);
    for (int i = n_dense; i < n - 1; i++) {
        CHECK_OK(sl_decode(&s, 1, &ids[i], &err), err);
        add_rows(&r, i, 1, sl_session_logits(s, NULL), &err);
    }
    sl_session_free(s);
    free(ids);
    return r.sum;
}

static sl_engine *new_engine(const text_ids *t, int n_ctx, const char *attn) {
    sl_engine *engine;
    const sl_engine_options o = {.n_ctx = n_ctx, .n_threads = 2, .attn = attn, .seed = 3};
    CHECK_OK(sl_engine_new(t->model, &o, &engine, &err), err);
    return engine;
}

// Checks the figures of each window and of the text. With 8 or more windows the standard error is from their sums.
static void check_windows(const text_ids *t, const json_t *out, int n_ctx, int stride, int n_dense, const char *attn) {
    int n_windows = ((int)t->ids.n - n_ctx) / stride + 1, n = 0;
    double *sums = malloc(n_windows * sizeof *sums), total = 0, squares = 0;
    int *counts = malloc(n_windows * sizeof *counts);
    const json_t *rows = json_object_get(out, "windows");
    sl_engine *engine = new_engine(t, n_ctx, attn);
    CHECK_INT(json_array_size(rows), n_windows);
    CHECK(n_windows >= 8);
    for (int i = 0; i < n_windows; i++) {
        const json_t *row = json_array_get(rows, (size_t)i);
        int first = i && n_ctx - stride - 1 > n_ctx / 2 ? n_ctx - stride - 1 : n_ctx / 2;
        sums[i] = window_sum(t, engine, i * stride, first, n_dense, 7 + (uint32_t)i);
        counts[i] = n_ctx - 1 - first;
        total += sums[i], n += counts[i];
        CHECK_INT(number(row, "first_token"), i * stride);
        CHECK_INT(number(row, "scored"), counts[i]);
        check_close("nll of a window", number(row, "nll"), sums[i] / counts[i]);
        check_close("ppl_so_far", number(row, "ppl_so_far"), exp(total / n));
        squares = 0;
        for (int j = 0; j <= i; j++) squares += pow(sums[j] - counts[j] * total / n, 2);
        if (i + 1 < 8) continue; // before, the error is between tokens
        double se = sqrt(squares * (i + 1) / i) / n;
        check_close("nll_so_far_se", number(row, "nll_so_far_se"), se);
        check_close("ppl_so_far_se", number(row, "ppl_so_far_se"), exp(total / n) * se);
    }
    double error = sqrt(squares * n_windows / (n_windows - 1)) / n;
    CHECK_INT(number(out, "scored"), n);
    CHECK_INT(number(out, "tokens"), (int)t->ids.n);
    check_close("nll", number(out, "nll"), total / n);
    check_close("nll_se", number(out, "nll_se"), error);
    check_close("ppl", number(out, "ppl"), exp(total / n));
    check_close("ppl_se", number(out, "ppl_se"), exp(total / n) * error);
    free(sums), free(counts);
    sl_engine_free(engine);
}

#define PERPLEXITY(...) RUN("perplexity", "-m", tiny(), "-f", spill_text(), "--seed", "3", "--seq-id", "7", __VA_ARGS__)

static void dense(void) { // one prefill pass per window; adjacent and overlapping windows
    text_ids t = open_text();
    result r = PERPLEXITY("-c", "101", "-o", "json"),
           over = PERPLEXITY("-c", "100", "--stride", "45", "-ub", "32", "-o", "json");
    json_t *out = document(&r), *overlapping = document(&over);
    check_windows(&t, out, 101, 101, 101, "dense");
    check_windows(&t, overlapping, 100, 45, 100, "dense");
    CHECK_HAS(r.err, "each in one dense prefill pass");
    CHECK_HAS(r.err, " tok/s");
    json_decref(out), json_decref(overlapping);
    close_text(&t);
}

// With a method, which changes the figure. Dense decode steps give the figure of dense passes.
static void decoded(void) {
    text_ids t = open_text();
    result r = PERPLEXITY("-c", "64", "--attn", "santa:S=2", "-o", "json"),
           early = PERPLEXITY("-c", "64", "--attn", "santa-pps:S=4:budget=variance", "--dense-prefix", "3", "-o", "json"),
           steps = PERPLEXITY("-c", "64", "--dense-prefix", "32", "-o", "json"), pass = PERPLEXITY("-c", "64", "-o", "json");
    json_t *out = document(&r), *pps = document(&early), *slow = document(&steps), *fast = document(&pass);
    check_windows(&t, out, 64, 64, 32, "santa:S=2");
    check_windows(&t, pps, 64, 64, 3, "santa-pps:S=4:budget=variance");
    check_windows(&t, slow, 64, 64, 32, "dense");
    CHECK(number(slow, "n_dense") == 32 && number(fast, "n_dense") == 64);
    CHECK_NEAR(number(slow, "ppl"), number(fast, "ppl"), 1e-3 * number(fast, "ppl"));
    CHECK(number(out, "ppl") > number(slow, "ppl") + 3 * number(slow, "ppl_se"));
    CHECK_HAS(r.err, "prefill of 32 with dense attention, the rest decoded");
    json_decref(out), json_decref(pps), json_decref(slow), json_decref(fast);
    close_text(&t);
}

static void tables(void) {
    result md = PERPLEXITY("-c", "300"), csv = PERPLEXITY("-c", "300", "-o", "csv"),
           json = PERPLEXITY("-c", "300", "-o", "json");
    CHECK_GOOD(md);
    CHECK_GOOD(csv);
    json_t *out = document(&json);
    int windows = (int)json_array_size(json_object_get(out, "windows"));
    CHECK(windows >= 2 && windows < 8);
    CHECK_INT(count_of(md.out, md.n_out, '|'), (windows + 2) * 6);
    CHECK_INT(count_of(csv.out, csv.n_out, '\n'), windows + 1);
    CHECK_INT(count_of(csv.out, csv.n_out, ','), (windows + 1) * 15);
    CHECK(!strncmp(md.out, "model: tiny (llama, 5.51 M parameters, bf16)\n\n", 46));
    char line[128];
    snprintf(line, sizeof line, "perplexity: %.4f ± %.4f, %.0f of %.0f tokens scored in %d windows of 300, attention dense\n",
             number(out, "ppl"), number(out, "ppl_se"), number(out, "scored"), number(out, "tokens"), windows);
    CHECK_HAS(md.out, line);
    json_decref(out);
    const char *text = spill_text();
    size_t n;
    result piped = RUN_IN(slurp(text, &n), "perplexity", "-m", tiny(), "-c", "300", "-o", "csv");
    CHECK_STR(piped.out, csv.out); // dense attention uses no random numbers
}

// A text of exactly one window; windows of 512 tokens by default; a stride of one window.
static void sizes(void) {
    text_ids t = open_text();
    char whole[16];
    snprintf(whole, sizeof whole, "%d", (int)t.ids.n);
    result one = PERPLEXITY("-c", whole, "-o", "csv"), standard = PERPLEXITY("--stride", "512");
    CHECK_GOOD(one);
    CHECK_INT(count_of(one.out, one.n_out, '\n'), 2);
    CHECK_GOOD(standard);
    CHECK_HAS(standard.out, "in 1 window of 512, ");
    CHECK_LACKS(standard.err, "window:");
    close_text(&t);
}

// A text that is shorter than a window is one window of its length.
static void short_text(void) {
    text_ids t = open_text();
    char whole[16], said[160];
    int n = (int)t.ids.n;
    snprintf(whole, sizeof whole, "%d", n);
    result r = PERPLEXITY("-c", "8k", "-o", "csv"), same = PERPLEXITY("-c", whole, "-o", "csv"),
           forward = PERPLEXITY("-c", "8k", "--stride", "4k", "--attn", "santa:S=64", "-o", "json");
    CHECK_GOOD(r);
    CHECK_STR(r.out, same.out);
    snprintf(said, sizeof said,
             "window: the text has %d tokens, fewer than the 8192 of --ctx-size; it is one window of %d tokens\n", n, n);
    CHECK_HAS(r.err, said);
    CHECK_LACKS(same.err, "window:");
    json_t *out = document(&forward);
    CHECK(number(out, "n_ctx") == n && number(out, "stride") == n && number(out, "n_dense") == n / 2);
    CHECK_INT(number(out, "scored"), n - 1 - n / 2);
    json_decref(out);
    close_text(&t);
    r = RUN_IN("a", "perplexity", "-m", tiny());
    check_error(&r, 1, " tokens; expected at least 4");
    r = RUN_IN("a b c d e f", "perplexity", "-m", tiny());
    CHECK_GOOD(r);
}

static void errors(void) {
    static const struct {
        const char *args[4], *part;
    } cases[] = {
        {{"-c", "64", "--stride", "65"}, "--stride 65: expected at most 64, the window size"},
        {{"-c", "64", "--dense-prefix", "33"}, "--dense-prefix 33: expected at most 32, half a window"},
        {{"-c", "200k"}, "--ctx-size 204800: expected 1 to 131072"},
        {{"-c", "3"}, "-c 3: expected"},
        {{"--attn", "santta"}, "santta"},
        {{"--S", "4"}, "flag --S: the chosen attention method"},
        {{"-p", "x"}, "flag -p does not belong to this command"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *args[12] = {"perplexity", "-m", tiny(), "-f", spill_text()};
        memcpy(args + 5, cases[i].args, sizeof cases[i].args);
        result r = run_args(NULL, args);
        check_error(&r, 2, cases[i].part);
    }
    result r = RUN("perplexity", "-m", tiny(), "-f", in_tmp("missing"));
    check_error(&r, 1, "missing");
    r = RUN("perplexity", "-f", in_tmp("missing"));
    check_error(&r, 2, "flag --model is required");
}

static const test_case cases[] = {
    {"dense", 0, dense},
    {"decoded", 0, decoded},
    {"tables", 0, tables},
    {"sizes", 0, sizes},
    {"short-text", 0, short_text},
    {"errors", 0, errors},
    {0},
};
const test_suite suite_cli_perplexity = {"cli_perplexity", cases};
