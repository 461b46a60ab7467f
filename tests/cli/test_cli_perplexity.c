// tests/cli/test_cli_perplexity.c - sleigh perplexity end to end, compared with logits of library sessions in long double:
// prefill passes, decode steps, strides; texts of --jsonl; histories; formats; errors.
#include "engine/engine.h"
#include "tests/support/run_cli.h"
#include "tests/support/models.h"

#include <math.h>
#include <stdlib.h>

static sl_error err;

static const char *spill_text(void) {
    const char *path = in_tmp("text.txt"), *text = long_text(26);
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

static void set_text(text_ids *t, const char *text) {
    t->ids.n = 0;
    CHECK_OK(sl_tokenize(sl_model_tokenizer(t->model), text, strlen(text), SL_TOK_BOS, &t->ids, &err), err);
    CHECK(t->ids.data[0] == sl_tokenizer_bos(sl_model_tokenizer(t->model)));
}

static text_ids open_text(void) {
    text_ids t = {0};
    CHECK_OK(sl_model_load(tiny(), NULL, &t.model, &err), err);
    set_text(&t, long_text(26));
    CHECK(t.ids.n > 512);
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

// Sum of -log p of the tokens of a window of n tokens from first + 1 on. n_dense < n: the method decodes the rest.
static double window_sum(const text_ids *t, sl_engine *engine, int at, int n, int first, int n_dense, uint32_t sequence) {
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

// Checks the windows: their tokens, and the values of these. (test_figures_eval.c checks the figures over them.) from: index in
// a window of the token before the first scored one.
static void check_windows(const text_ids *t, const json_t *out, int n_ctx, int stride, int from, int n_dense,
                          const char *attn) {
    int n_windows = ((int)t->ids.n - n_ctx) / stride + 1, n = 0;
    double total = 0;
    const json_t *rows = json_object_get(out, "windows");
    sl_engine *engine = new_engine(t, n_ctx, attn);
    CHECK_INT(json_array_size(rows), n_windows);
    CHECK(n_windows >= 4);
    for (int i = 0; i < n_windows; i++) {
        const json_t *row = json_array_get(rows, (size_t)i);
        int first = i && n_ctx - stride - 1 > from ? n_ctx - stride - 1 : from, count = n_ctx - 1 - first;
        double sum = window_sum(t, engine, i * stride, n_ctx, first, n_dense, 7 + (uint32_t)i);
        total += sum, n += count;
        CHECK_INT(number(row, "first_token"), i * stride);
        CHECK_INT(number(row, "scored"), count);
        check_close("nll of a window", number(row, "nll"), sum / count);
    }
    CHECK_INT(number(out, "scored"), n);
    CHECK_INT(number(out, "tokens"), (int)t->ids.n);
    check_close("nll", number(out, "nll"), total / n);
    sl_engine_free(engine);
}

#define PERPLEXITY(...) RUN("perplexity", "-m", tiny(), "-f", spill_text(), "--seed", "3", "--seq-id", "7", __VA_ARGS__)

static void dense(void) { // one prefill pass per window; adjacent and overlapping windows
    text_ids t = open_text();
    result r = PERPLEXITY("-c", "101", "-o", "json"),
           over = PERPLEXITY("-c", "100", "--stride", "45", "-ub", "32", "-o", "json");
    json_t *out = document(&r), *overlapping = document(&over);
    check_windows(&t, out, 101, 101, 50, 101, "dense");
    check_windows(&t, overlapping, 100, 45, 50, 100, "dense");
    CHECK_HAS(r.err, "each in one prefill with dense attention");
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
    check_windows(&t, out, 64, 64, 32, 32, "santa:S=2");
    check_windows(&t, pps, 64, 64, 32, 3, "santa-pps:S=4:budget=variance");
    check_windows(&t, slow, 64, 64, 32, 32, "dense");
    CHECK(number(slow, "n_dense") == 32 && number(fast, "n_dense") == 64);
    CHECK_NEAR(number(slow, "ppl"), number(fast, "ppl"), 1e-3 * number(fast, "ppl"));
    CHECK(number(out, "ppl") > number(slow, "ppl") + 3 * number(slow, "ppl_se"));
    CHECK_HAS(r.err, "prefill of 32 with dense attention, the rest decoded");
    json_decref(out), json_decref(pps), json_decref(slow), json_decref(fast);
    close_text(&t);
}

// The last tokens of each window: a tail that is shorter and one that is longer than half; a method decodes the tail.
static void scored_tail(void) {
    text_ids t = open_text();
    result tail = PERPLEXITY("-c", "100", "--score", "9", "-o", "json"),
           most = PERPLEXITY("-c", "100", "--score", "99", "--stride", "80", "-o", "json"),
           decoding = PERPLEXITY("-c", "64", "--score", "5", "--attn", "santa:S=2", "-o", "json"),
           limited = PERPLEXITY("-c", "100", "--score", "9", "--windows", "2", "-o", "json"),
           chunks = PERPLEXITY("-c", "100", "--score", "9", "--chunks", "2", "-o", "json");
    json_t *few = document(&tail), *many = document(&most), *decoded = document(&decoding), *two = document(&limited);
    check_windows(&t, few, 100, 100, 90, 100, "dense");
    check_windows(&t, many, 100, 80, 0, 100, "dense");
    check_windows(&t, decoded, 64, 64, 58, 58, "santa:S=2");
    CHECK(number(few, "n_score") == 9 && number(many, "n_score") == 99 && number(decoded, "n_dense") == 58);
    CHECK_INT(json_array_size(json_object_get(two, "windows")), 2);
    const json_t *second = json_array_get(json_object_get(few, "windows"), 1);
    CHECK(number(two, "ppl") == number(second, "ppl_so_far") && !json_is_true(json_object_get(two, "interrupted")));
    CHECK_STR(chunks.out, limited.out);
    json_decref(few), json_decref(many), json_decref(decoded), json_decref(two);
    close_text(&t);
}

// ---- texts of a file ----

// n texts; text i begins after sentence i, and every third text is half as long.
static const char *text_at(int i) {
    static char text[16384];
    const char *whole = long_text(60);
    for (int skip = i; skip; skip--) whole = strchr(whole, '.') + 2;
    snprintf(text, sizeof text, "%.*s", i % 3 ? 1500 : 800, whole);
    return text;
}

static const char *spill_texts(int n) {
    static char path[256];
    snprintf(path, sizeof path, "%s", in_tmp("texts.jsonl"));
    FILE *f = fopen(path, "w");
    for (int i = 0; f && i < n; i++) {
        json_t *line = json_pack("{s:s}", "text", text_at(i));
        if (i % 2) json_object_set_new(line, "id", json_sprintf("book %d", i));
        json_dumpf(line, f, JSON_COMPACT);
        fputs("\n\n", f);
        json_decref(line);
    }
    CHECK(f && !fclose(f));
    return path;
}

#define TEXTS(n, ...) RUN("perplexity", "-m", tiny(), "--jsonl", spill_texts(n), "--seed", "3", "--seq-id", "7", __VA_ARGS__)

// A row for each text. With 8 texts the error is between texts, with 7 between their windows.
static void texts(void) {
    text_ids t = open_text();
    sl_engine *engine = new_engine(&t, 64, "santa:S=2");
    double sums[8][2], mean[2] = {0}, squares[2] = {0}; // [text][window]; 7 and 8 texts
    for (int n = 8; n >= 7; n--) {
        result r = TEXTS(n, "-c", "64", "--windows", "2", "--stride", "50", "--attn", "santa:S=2", "-o", "json");
        json_t *out = document(&r), *rows = json_object_get(out, "texts");
        double tokens = 0, se = 0;
        CHECK_INT(json_array_size(rows), n);
        for (int i = 0; i < n; i++) {
            const json_t *row = json_array_get(rows, (size_t)i), *id = json_object_get(row, "id");
            set_text(&t, text_at(i));
            tokens += (double)t.ids.n;
            for (int w = 0; n == 8 && w < 2; w++) // the last 50 tokens of a window overlap with no earlier one
                sums[i][w] = window_sum(&t, engine, w * 50, 64, 32, 32, 7 + (uint32_t)(2 * i + w));
            CHECK(number(row, "text") == i && number(row, "tokens") == (double)t.ids.n && number(row, "windows") == 2);
            CHECK_INT(number(row, "scored"), 2 * 31);
            check_close("nll of a text", number(row, "nll"), (sums[i][0] + sums[i][1]) / 62);
            mean[8 - n] += (sums[i][0] + sums[i][1]) / n / 62;
            if (i % 2)
                CHECK_STR(json_string_value(id), i == 1 ? "book 1" : i == 3 ? "book 3" : i == 5 ? "book 5" : "book 7");
            else
                CHECK_INT(json_integer_value(id), i);
        }
        check_close("nll", number(out, "nll"), mean[8 - n]);
        for (int i = 0; i < n; i++) // the sums of groups against their size times the mean
            squares[8 - n] += n == 8 ? pow(sums[i][0] + sums[i][1] - 62 * mean[0], 2)
                                     : pow(sums[i][0] - 31 * mean[1], 2) + pow(sums[i][1] - 31 * mean[1], 2);
        se = n == 8 ? sqrt(squares[0] * 8 / 7) / (62 * 8) : sqrt(squares[1] * 14 / 13) / (62 * 7);
        check_close("nll_se", number(out, "nll_se"), se);
        CHECK(number(out, "tokens") == tokens);
        CHECK_HAS(json_string_value(json_object_get(out, "file")), "texts.jsonl");
        json_decref(out);
    }
    sl_engine_free(engine);
    result md = TEXTS(3, "-c", "64", "--windows", "2"), csv = TEXTS(3, "-c", "64", "--windows", "2", "-o", "csv");
    CHECK_GOOD(md);
    CHECK_HAS(md.out, "\n| 1 | book 1 | 2 | 62 | ");
    CHECK_HAS(md.out, " tokens scored in 6 windows of 64 from 3 texts, attention dense\n");
    CHECK_GOOD(csv);
    CHECK_INT(count_of(csv.out, csv.n_out, '\n'), 4);
    size_t n;
    result piped = RUN_IN(slurp(spill_texts(3), &n), "perplexity", "-m", tiny(), "--jsonl", "-", "-c", "64", "--windows", "2");
    CHECK_STR(piped.out, md.out);
    close_text(&t);
}

// ---- histories ----

// Sum of -log p of tokens [99 - n_score + 1, 99] of a window of 100 tokens, each segment read after n_history tokens.
static double history_sum(const text_ids *t, sl_engine *engine, int at, int n_score, int n_history, int segment) {
    double sum = 0;
    for (int i = 100 - n_score; i < 100; i += segment) {
        int end = i + segment < 100 ? i + segment : 100, n = n_history + end - i;
        sum += window_sum(t, engine, at + end - n, n, n_history - 1, n, 7);
    }
    return sum;
}

// Histories 1, 33, 75 and all of 2 texts, with segments of 10 of the 25 scored tokens.
static void histories(void) {
    static const int sizes[] = {1, 33, 75}, fewest[] = {1, 33, 75, 75}, most[] = {10, 42, 84, 99};
    enum { N = 2, ALL = 3 };
    text_ids t = open_text();
    sl_engine *engine = new_engine(&t, 100, "dense");
    result r =
        TEXTS(N, "-c", "100", "--windows", "1", "--score", "25", "--history", "1,33,75,all", "--segment", "10", "-o", "json");
    json_t *out = document(&r), *rows = json_object_get(out, "texts"), *table = json_object_get(out, "histories");
    double sums[ALL + 1] = {0};
    CHECK(json_array_size(rows) == N && json_array_size(table) == ALL + 1);
    for (int i = 0; i < N; i++) {
        const json_t *list = json_object_get(json_array_get(rows, (size_t)i), "histories");
        set_text(&t, text_at(i));
        for (int h = 0; h <= ALL; h++) {
            double sum = h == ALL ? window_sum(&t, engine, 0, 100, 74, 100, 7) : history_sum(&t, engine, 0, 25, sizes[h], 10);
            check_close("nll of a text", number(json_array_get(list, (size_t)h), "nll"), sum / 25);
            sums[h] += sum / 25 / N;
        }
    }
    for (int h = 0; h <= ALL; h++) {
        const json_t *row = json_array_get(table, (size_t)h);
        check_close("nll", number(row, "nll"), sums[h]);
        CHECK(number(row, "history_fewest") == fewest[h] && number(row, "history_most") == most[h]);
    }
    CHECK_HAS(r.err,
              "2 windows of 100 tokens from 2 texts, the last 25 tokens of each scored after 4 histories, in segments of 10\n");
    json_decref(out);
    sl_engine_free(engine);
    close_text(&t);
}

// The history of all tokens has the figures of a run without --history. So has the longest history if a window has one segment.
// The windows of a text may overlap.
static void whole_history(void) {
    result plain = PERPLEXITY("-c", "90", "--score", "40", "--stride", "33", "-o", "json"),
           all = PERPLEXITY("-c", "90", "--score", "40", "--stride", "33", "--history", "all", "-o", "jsonl"),
           first = PERPLEXITY("-c", "90", "--score", "40", "--windows", "1", "--history", "all,50", "-o", "csv");
    json_t *out = document(&plain), *row = document(&all);
    static const char *const same[] = {"scored", "nll", "nll_se", "ppl", "ppl_se"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) CHECK(number(out, same[i]) == number(row, same[i]));
    CHECK_INT(number(row, "windows"), (double)json_array_size(json_object_get(out, "windows")));
    CHECK_GOOD(first);
    CHECK_INT(count_of(first.out, first.n_out, '\n'), 3);
    CHECK_HAS(first.out, ",\"50\",50,89,1,1,40,\"dense\",");
    CHECK_HAS(first.out, ",0.0,0.0,0.0,0.0\n"); // equal bits
    json_decref(out), json_decref(row);
}

// ---- output and errors ----

static void piped(void) {
    result csv = PERPLEXITY("-c", "200", "-o", "csv");
    size_t n;
    CHECK_GOOD(csv);
    CHECK_INT(count_of(csv.out, csv.n_out, ','), count_of(csv.out, csv.n_out, '\n') * 15);
    result piped = RUN_IN(slurp(spill_text(), &n), "perplexity", "-m", tiny(), "-c", "200", "-o", "csv");
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
        {{"-c", "64", "--dense-prefix", "33"},
         "--dense-prefix 33: expected at most 32, so that --attn predicts every scored token"},
        {{"-c", "200k"}, "--ctx-size 204800: expected 1 to 131072"},
        {{"-c", "3"}, "-c 3: expected"},
        {{"--attn", "santta"}, "santta"},
        {{"--S", "4"}, "flag --S: the chosen attention method"},
        {{"-p", "x"}, "flag -p does not belong to this command"},
        {{"-c", "64", "--score", "64"}, "--score 64: expected at most 63, because the first token of a window is not scored"},
        {{"--score", "0"}, "--score 0: expected a whole number, 1 or more"},
        {{"--windows", "0"}, "--windows 0: expected a whole number, 1 or more"},
        {{"--history", "16,most"}, "--history most: expected whole numbers, 1 or more, or all"},
        {{"--history", "0"}, "expected whole numbers, 1 or more, or all"},
        {{"--history", "16,,all"}, "expected whole numbers, 1 or more, or all"},
        {{"-c", "64", "--history", "33,34"},
         "--history 34: expected at most 33, the tokens of a window before the scored ones"},
        {{"--history", "16", "--attn", "santa"}, "--history: expected dense attention in every layer"},
        {{"--history", "16", "--dense-prefix", "1"},
         "--history: expected dense attention in every layer and no --dense-prefix"},
        {{"--segment", "16"}, "flag --segment needs --history"},
        {{"--jsonl", "x"}, "flag --file cannot be used with --jsonl"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *args[12] = {"perplexity", "-m", tiny(), "-f", spill_text()};
        memcpy(args + 5, cases[i].args, sizeof cases[i].args);
        result r = run_args(NULL, args);
        check_error(&r, 2, cases[i].part);
    }
    static const struct {
        const char *lines, *part;
    } files[] = {
        {"", "lines.jsonl: expected texts, found none"},
        {"{\"text\": \"The sky is blue.\"}\n\n{\"prompt\": \"x\"}\n",
         "lines.jsonl: line 3: expected an object with a string \"text\""},
        {"[]\n", "lines.jsonl: line 1: expected an object with a string \"text\""},
        {"{\"text\": 5}\n", "lines.jsonl: line 1: expected an object with a string \"text\""},
        {"{\"text\": \n", "lines.jsonl: line 1: "},
        {"{\"text\": \"The sky is blue. The sky is blue.\"}\n{\"text\": \"The sky.\"}\n", "lines.jsonl: line 2: the text has "},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        spill(in_tmp("lines.jsonl"), files[i].lines, strlen(files[i].lines));
        result r = RUN("perplexity", "-m", tiny(), "--jsonl", in_tmp("lines.jsonl"), "-c", "8");
        check_error(&r, 1, files[i].part);
        CHECK_INT(r.n_out, 0);
    }
    result r = RUN_IN("a b c d e f g h", "perplexity", "-m", tiny(), "--score", "2");
    check_error(&r, 1, " tokens; expected at least 512, the window size");
    r = RUN_IN("a b c d e f g h", "perplexity", "-m", tiny(), "--history", "1");
    check_error(&r, 1, " tokens; expected at least 512, the window size");
    r = RUN("perplexity", "-m", tiny(), "--jsonl", in_tmp("missing"));
    check_error(&r, 1, "missing");
    r = RUN("perplexity", "-m", tiny(), "-f", in_tmp("missing"));
    check_error(&r, 1, "missing");
    r = RUN("perplexity", "-f", in_tmp("missing"));
    check_error(&r, 2, "flag --model is required");
}

static const test_case cases[] = {
    {"dense", 0, dense},
    {"decoded", NEEDS_SPEED, decoded},
    {"scored-tail", 0, scored_tail},
    {"texts", NEEDS_SPEED, texts},
    {"histories", 0, histories},
    {"whole-history", 0, whole_history},
    {"piped", 0, piped},
    {"sizes", 0, sizes},
    {"short-text", 0, short_text},
    {"errors", 0, errors},
    {0},
};
const test_suite suite_cli_perplexity = {"cli_perplexity", cases};
