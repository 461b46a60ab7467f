// tests/cli/test_cli_compare.c - sleigh compare end to end: compares its figures with library sessions (one engine each, all
// logits kept) and with the texts and --stats of generate. Also: dense against dense.
// test_cli_compare_forms.c has the cases about batches, set-ups, templates, tables, pictures and errors.
#include "engine/engine.h"
#include "tests/cli/compare_cases.h"
#include "tests/support/gpu.h"
#include "tests/support/models.h"

#include <math.h>
#include <stdlib.h>

enum { N_NEW = 20, MAX_STEPS = 256 };

static sl_error err;

// ---- records, and compare's results for them ----

void compare_add_line(char *file, size_t size, json_t *line) {
    char *text = json_dumps(line, 0);
    size_t at = strlen(file);
    if ((size_t)snprintf(file + at, size - at, "%s\n", text) >= size - at) FAIL("records of more than %zu bytes", size);
    free(text);
    json_decref(line);
}

// Writes n contexts of different lengths with one question each. long_one: sentences of the last context; 0: like the others.
static const char *spill_lengths(int n, int long_one) {
    static char file[65536];
    char context[4096], asked[256];
    *file = 0;
    for (int i = 0; i < n; i++) {
        snprintf(context, sizeof context, "%s", long_text(long_one && i + 1 == n ? long_one : 4 + i));
        snprintf(asked, sizeof asked, "What is the hidden number of house %d? Answer:", i % 4);
        compare_add_line(file, sizeof file, json_pack("{s:s, s:s, s:i}", "context", context, "question", asked, "id", 10 + i));
    }
    static char path[256]; // in_tmp reuses its paths
    snprintf(path, sizeof path, "%s", in_tmp("records.jsonl"));
    spill(path, file, strlen(file));
    return path;
}

const char *compare_spill_records(int n) {
    return spill_lengths(n, 0);
}

json_t *compare_json(const char *records, const char *attn, const char *more) {
    result r = RUN("compare", "-m", tiny(), "--jsonl", records, "--attn", attn, "-n", "20", "--ignore-eos", "-o", "json", more);
    return document(&r);
}

const json_t *compare_item(const json_t *o, const char *list, size_t i) {
    const json_t *found = json_array_get(json_object_get(o, list), i);
    if (!found) FAIL("\"%s\" has no item %zu", list, i);
    return found;
}

static int ids_of(const json_t *row, const char *key, int32_t *ids) {
    const json_t *list = json_object_get(row, key);
    int n = (int)json_array_size(list);
    CHECK(n <= MAX_STEPS);
    for (int i = 0; i < n; i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
    return n;
}

// Nine digits are printed.
static void check_close(const char *what, double got, double want) {
    if (!(fabs(got - want) <= 2e-8 * fabs(want) + 1e-12)) FAIL("%s: got %.12g, expected %.12g", what, got, want);
}

// ---- the same figures from the library ----

typedef struct lab {
    sl_model *model;
    int n_vocab;
} lab;

// Decodes path[n_dense..n - 1) in one session with one method. Returns the logits after each: [n - 1 - n_dense][n_vocab].
// Adds the work of attention to *total.
static float *forced_logits(const lab *l, const char *attn, const int32_t *path, int n, int n_dense, uint32_t sequence,
                            sl_attn_stats *total) {
    sl_engine *engine;
    sl_session *s;
    CHECK_OK(sl_engine_new(l->model, &(sl_engine_options){.n_ctx = n, .n_threads = 2, .attn = attn}, &engine, &err), err);
    CHECK_OK(sl_session_new(engine, sequence, &s, &err), err);
    CHECK_OK(sl_prefill(s, path, n_dense, NULL, &err), err);
    float *out = malloc((size_t)(n - 1 - n_dense) * l->n_vocab * sizeof *out);
    for (int i = n_dense; i < n - 1; i++) {
        CHECK_OK(sl_decode(&s, 1, &path[i], &err), err);
        memcpy(out + (size_t)(i - n_dense) * l->n_vocab, sl_session_logits(s, NULL), l->n_vocab * sizeof *out);
    }
    sl_attn_stats_add(total, sl_engine_attn_stats(engine));
    sl_session_free(s);
    sl_engine_free(engine);
    return out;
}

static void softmax(const float *logits, int n, long double *p) {
    long double sum = 0;
    for (int i = 0; i < n; i++) sum += p[i] = expl(logits[i] - (long double)logits[test_argmax(logits, n)]);
    for (int i = 0; i < n; i++) p[i] /= sum;
}

typedef struct expected {
    int n, n_top1, n_part[2];
    double kl[MAX_STEPS], nll[2], dense_nll[2];
} expected;

static void add_steps(expected *e, const lab *l, const float *dense, const float *method, const int32_t *next, int n,
                      int n_question) {
    long double *p = malloc(l->n_vocab * sizeof *p), *q = malloc(l->n_vocab * sizeof *q);
    for (int i = 0; i < n; i++) {
        const float *a = dense + (size_t)i * l->n_vocab, *b = method + (size_t)i * l->n_vocab;
        long double kl = 0;
        softmax(a, l->n_vocab, p);
        softmax(b, l->n_vocab, q);
        for (int j = 0; j < l->n_vocab; j++) kl += p[j] * (logl(p[j]) - logl(q[j]));
        CHECK(e->n < MAX_STEPS);
        e->kl[e->n++] = (double)kl;
        e->n_top1 += test_argmax(a, l->n_vocab) == test_argmax(b, l->n_vocab);
        int part = i >= n_question;
        double nll = -(double)logl(q[next[i]]), dense_nll = -(double)logl(p[next[i]]);
        e->n_part[part]++;
        e->nll[part] += nll, e->dense_nll[part] += dense_nll;
    }
    free(p), free(q);
}

// The means of one prompt.
static void check_prompt(const json_t *own, const json_t *dense, const expected *e) {
    double kl = 0, nll = e->nll[0] + e->nll[1] - e->dense_nll[0] - e->dense_nll[1];
    for (int i = 0; i < e->n; i++) kl += e->kl[i];
    CHECK_INT(number(own, "positions"), e->n);
    check_close("kl of a prompt", number(own, "kl"), kl / e->n);
    check_close("top1 of a prompt", number(own, "top1"), (double)e->n_top1 / e->n);
    CHECK_NEAR(number(own, "ln_ppl_ratio"), nll / e->n, 1e-8);
    check_close("ppl_question of a prompt", number(own, "ppl_question"), exp(e->nll[0] / e->n_part[0]));
    check_close("ppl_answer of a prompt", number(own, "ppl_answer"), exp(e->nll[1] / e->n_part[1]));
    check_close("dense ppl_answer of a prompt", number(dense, "ppl_answer"), exp(e->dense_nll[1] / e->n_part[1]));
    check_close("dense ppl_question of a prompt", number(dense, "ppl_question"), exp(e->dense_nll[0] / e->n_part[0]));
}

static void check_certificates(const json_t *row, const sl_attn_stats *read) {
    CHECK_INT(number(row, "layer_steps"), read->stated);
    if (!read->stated) return;
    check_close("certified_share", number(row, "certified_share"), (double)read->certified / (double)read->stated);
    check_close("unbounded_share", number(row, "unbounded_share"), (double)read->unbounded / (double)read->stated);
    check_close("stated_error", number(row, "stated_error"), sl_attn_stats_stated_mean(read));
    check_close("stated_error_max", number(row, "stated_error_max"), sl_attn_stats_stated_most(read));
}

// Ids of context, question and an optional text after them, as one text.
static int prompt_ids(const lab *l, const char *record_text, int32_t *out) {
    sl_ids ids = {0};
    CHECK_OK(sl_tokenize(sl_model_tokenizer(l->model), record_text, strlen(record_text), SL_TOK_BOS, &ids, &err), err);
    int n = (int)ids.n;
    CHECK(n < 2048);
    memcpy(out, ids.data, n * sizeof *out);
    sl_ids_free(&ids);
    return n;
}

// ---- cases ----

// Two prompts, the second with a reference instead of the answer; a path longer than a turn; a method with state.
static void next_tokens(void) {
    static const char *const methods[] = {"santa-prop:S=12", "santa-pps:S=8:budget=variance", "santa-pps:S=8:budget=carried",
                                          "santa-pps:epsilon=0.3:certify=layer"};
    static const char list[] =
        "santa-prop:S=12,santa-pps:S=8:budget=variance,santa-pps:S=8:budget=carried,santa-pps:epsilon=0.3:certify=layer";
    enum { N_METHODS = 4 };
    char reference[2048];
    snprintf(reference, sizeof reference, " 17281. The grass is green and not blue.\n%s", long_text(7));
    char context[2048], file[8192] = "", whole[2][4096];
    static const char *const asked[] = {"What is the hidden number of house 3? Answer:", "Which house has it? Answer:"};
    for (int i = 0; i < 2; i++) {
        snprintf(context, sizeof context, "%s", long_text(5 + 2 * i));
        snprintf(whole[i], sizeof whole[i], "%s%s", context, asked[i]);
        json_t *line = json_pack("{s:s, s:s}", "context", context, "question", asked[i]);
        json_object_set_new(line, "reference", i ? json_string(reference) : json_null());
        compare_add_line(file, sizeof file, line);
    }
    spill(in_tmp("two.jsonl"), file, strlen(file));
    json_t *out = compare_json(in_tmp("two.jsonl"), list, NULL);
    lab l;
    float *dense[2] = {NULL}; // the same for every method
    CHECK_OK(sl_model_load(tiny(), NULL, &l.model, &err), err);
    l.n_vocab = sl_model_config(l.model)->n_vocab;
    for (int m = 0; m < N_METHODS; m++) {
        sl_attn_stats read = {0}, unused = {0};
        expected e = {0};
        for (int i = 0; i < 2; i++) {
            int32_t path[2048 + MAX_STEPS];
            const json_t *prompt = compare_item(out, "prompts", (size_t)i);
            int n_prompt = prompt_ids(&l, whole[i], path), n_dense = (int)number(prompt, "n_dense"), n;
            CHECK_INT(number(prompt, "n_prompt"), n_prompt);
            CHECK(n_dense > n_prompt / 2 && n_dense < n_prompt);
            if (i) {
                char longer[8192];
                snprintf(longer, sizeof longer, "%s%s", whole[i], reference);
                n = prompt_ids(&l, longer, path); // the prompt's tokens are a prefix, because no merge crosses the blank
            } else {
                n = n_prompt + ids_of(json_object_get(prompt, "dense"), "ids", path + n_prompt);
                CHECK_INT(n, n_prompt + N_NEW);
            }
            if (!dense[i]) dense[i] = forced_logits(&l, "dense", path, n, n_dense, (uint32_t)i, &unused);
            float *method = forced_logits(&l, methods[m], path, n, n_dense, (uint32_t)i, &read);
            expected alone = {0};
            add_steps(&alone, &l, dense[i], method, path + n_dense + 1, n - 1 - n_dense, n_prompt - n_dense - 1);
            check_prompt(compare_item(prompt, "methods", (size_t)m), json_object_get(prompt, "dense"), &alone);
            add_steps(&e, &l, dense[i], method, path + n_dense + 1, n - 1 - n_dense, n_prompt - n_dense - 1);
            free(method);
        }
        CHECK(e.n > 128 + 2 * N_NEW); // more than a turn
        CHECK_INT(number(compare_item(out, "methods", (size_t)m), "positions"), e.n);
        check_certificates(compare_item(out, "methods", (size_t)m), &read);
    }
    free(dense[0]), free(dense[1]);
    sl_model_free(l.model);
    json_decref(out);
}

static void dense_with_dense(void) {
    json_t *out = compare_json(compare_spill_records(2), "streaming:window=8:sink=2,dense", NULL);
    static const char *const zeros[] = {"kl",           "kl_se",           "kl_median", "kl_90_high", "kl_99", "kl_max",
                                        "ln_ppl_ratio", "ln_ppl_ratio_se", "l2",        "l2_90",      "bias"},
                             *const ones[] = {"top1", "top1_high", "agreement", "kv_bytes_share", "bytes_share"};
    const json_t *row = compare_item(out, "methods", 1);
    for (size_t i = 0; i < sizeof zeros / sizeof *zeros; i++)
        if (number(row, zeros[i]) != 0) FAIL("%s: %g", zeros[i], number(row, zeros[i]));
    for (size_t i = 0; i < sizeof ones / sizeof *ones; i++)
        if (number(row, ones[i]) != 1) FAIL("%s: %.17g", ones[i], number(row, ones[i]));
    CHECK(number(row, "ppl_answer") == number(row, "ppl_answer_dense") && number(row, "identical") == 2);
    CHECK(number(row, "common_prefix") == N_NEW && number(row, "positions") > 2 * (N_NEW - 1));
    json_decref(out);
}

typedef struct head_sums {
    double n, error, cosine, bias, k_rows, v_rows, v_distinct, samples, ess, spread, bytes, dense_bytes;
} head_sums;

typedef struct tile_sums {
    double n, error, cosine;
} tile_sums;

static void check_reads(const json_t *row, const head_sums *h) {
    CHECK_NEAR(number(row, "bias"), h->bias / h->n, 1e-8);
    check_close("k_rows", number(row, "k_rows"), h->k_rows / h->n);
    check_close("v_rows", number(row, "v_rows"), h->v_rows / h->n);
    check_close("v_distinct", number(row, "v_distinct"), h->v_distinct / h->n);
    check_close("samples", number(row, "samples"), h->samples / h->n);
    check_close("ess", number(row, "ess"), h->ess / h->n);
    CHECK_NEAR(number(row, "coefficient_spread"), h->spread / h->n,
               1e-4); // ess has nine digits and is close to the number of rows
    check_close("bytes", number(row, "bytes"), h->bytes / h->n);
    check_close("bytes_share", number(row, "bytes_share"), h->bytes / h->dense_bytes);
}

// Heads with their mass in 1, 2, 3 to 4, 5 to 8 or more tiles.
static int tile_row(double tiles) {
    return tiles <= 1 ? 0 : tiles <= 2 ? 1 : tiles <= 4 ? 2 : tiles <= 8 ? 3 : 4;
}

// Averages the --stats of generate for the same dense run and shadows.
static void heads(void) {
    enum { LAYERS = 4, HEADS = 8 };
    static const char *const methods[] = {"santa-prop:S=12", "santa-is:S=16"};
    static head_sums sums[2][LAYERS * HEADS];
    tile_sums tiles[2][5] = {0};
    memset(sums, 0, sizeof sums);
    char file[256];
    snprintf(file, sizeof file, "%s", in_tmp("stats.jsonl"));
    const char *records = spill_lengths(2, 70); // in the second prompt, heads have their mass in up to five tiles
    json_t *out = compare_json(records, "santa-prop:S=12,santa-is:S=16", NULL);
    result r = RUN("generate", "-m", tiny(), "--jsonl", records, "-n", "20", "--ignore-eos", "--temp", "0", "--stats", file,
                   "--stats-attn", methods[0], "--stats-attn", methods[1]);
    CHECK_GOOD(r);
    size_t size;
    int n = 0;
    for (const char *line = slurp(file, &size); *line; line = strchr(line, '\n') + 1) {
        json_t *record = json_loads(line, JSON_DISABLE_EOF_CHECK, NULL);
        const char *attn = json_string_value(json_object_get(record, "attn"));
        int m = !strcmp(attn, methods[0]) ? 0 : !strcmp(attn, methods[1]) ? 1 : -1;
        if (m >= 0) {
            head_sums *h = &sums[m][(int)number(record, "layer") * HEADS + (int)number(record, "head")];
            h->n++, n++;
            h->error += number(record, "error"), h->cosine += number(record, "cosine"), h->bias += number(record, "bias");
            h->v_rows += number(record, "v_rows"), h->ess += number(record, "ess"), h->bytes += number(record, "bytes");
            h->k_rows += number(record, "k_rows"), h->v_distinct += number(record, "v_distinct");
            h->samples += number(record, "samples"), h->dense_bytes += number(record, "dense_bytes");
            h->spread += sqrt(fmax(number(record, "v_rows") / number(record, "ess") - 1, 0));
            if (number(record, "layer") == LAYERS - 1) {
                tile_sums *t = &tiles[m][tile_row(number(record, "tiles"))];
                t->n++, t->error += number(record, "error"), t->cosine += number(record, "cosine");
            }
        }
        json_decref(record);
    }
    for (size_t m = 0; m < 2; m++) {
        const json_t *row = compare_item(out, "methods", m);
        CHECK_INT(number(row, "head_outputs"), n / 2);
        CHECK_INT(json_array_size(json_object_get(row, "heads")), LAYERS * HEADS);
        for (int i = 0; i < LAYERS * HEADS; i++) {
            const json_t *head = compare_item(row, "heads", (size_t)i);
            const head_sums *h = &sums[m][i];
            CHECK(number(head, "layer") == i / HEADS && number(head, "head") == i % HEADS);
            check_close("l2", number(head, "l2"), h->error / h->n);
            check_close("cosine", number(head, "cosine"), h->cosine / h->n);
            check_reads(head, h);
        }
        for (int i = 0; i < 5; i++) {
            const json_t *tile = compare_item(row, "tiles", (size_t)i);
            const tile_sums *t = &tiles[m][i];
            CHECK_INT(number(tile, "head_outputs"), t->n);
            if (t->n > 0) check_close("l2 by tiles", number(tile, "l2"), t->error / t->n);
            if (t->n > 0) check_close("cosine by tiles", number(tile, "cosine"), t->cosine / t->n);
            if (i < 4 && !(t->n > 0)) FAIL("tiles %d: none", i);
        }
    }
    json_decref(out);
}

#ifdef SLEIGH_CUDA
// Compares the tables of a GPU with those of the CPU; tests/cuda/test_cuda_observe.c gives the tolerances and their reasons.
static void heads_on_gpu(void) {
    static const char *const devices[] = {"cpu", "cuda"};
    static const char *const known[] = {"l2", "cosine", "v_rows", "k_rows", "samples"};
    const char *records = compare_spill_records(2);
    json_t *out[2];
    for (int i = 0; i < 2; i++) {
        result r = RUN("compare", "-m", tiny(), "--jsonl", records, "-n", "20", "--ignore-eos", "--device", devices[i],
                       "--attn", "santa-flash:S=64,topk:k=32", "-o", "json");
        out[i] = document(&r);
    }
    for (size_t m = 0; m < 2; m++) {
        const json_t *want = compare_item(out[0], "methods", m), *got = compare_item(out[1], "methods", m);
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            CHECK_NEAR(number(got, known[i]), number(want, known[i]), 0.003 + 0.1 * number(want, known[i]));
        CHECK_INT(number(got, "head_outputs"), number(want, "head_outputs"));
        CHECK_INT(json_array_size(json_object_get(got, "heads")), json_array_size(json_object_get(want, "heads")));
        CHECK(json_is_null(json_object_get(got, "ess")) && json_is_null(json_object_get(got, "coefficient_spread")));
        CHECK(json_is_null(json_object_get(got, "v_distinct")) == (m == 0)); // sampled methods do not count them on a GPU
        CHECK(number(compare_item(got, "tiles", 0), "head_outputs") > 0);
    }
    json_decref(out[0]), json_decref(out[1]);
    for (int i = 0; i < 2; i++) { // generate gives the same
        char line[256];
        result r = RUN("generate", "-m", tiny(), "-p", question, "-n", "4", "--ignore-eos", "--device", "cuda", "--attn",
                       i ? "topk:k=4" : "santa-sys:S=4");
        CHECK_GOOD(r);
        CHECK(!strcmp(stat_line(&r, "v_distinct", line), "-") == (i == 0));
        r = RUN("generate", "-m", tiny(), "--jsonl", records, "-n", "4", "--device", "cuda", "--attn",
                i ? "topk:k=4" : "santa-sys:S=4");
        CHECK_GOOD(r);
        CHECK((strstr(r.out, "\"v_distinct_share\":null") != NULL) == (i == 0));
    }
}
#endif

// Dense attention's score of each answer is that of a run that decodes the answer's tokens. A sampled answer has another score
// than dense attention's answer.
static void answers_with_dense(void) {
    enum { N = 3, METHODS = 2 };
    static const char attn[] = "streaming:window=8:sink=2,dense";
    const char *records = compare_spill_records(N);
    result r = RUN("compare", "-m", tiny(), "--jsonl", records, "--attn", attn, "-n", "9", "--temp", "0.8", "--ignore-eos",
                   "--no-heads", "-o", "json");
    json_t *out = document(&r);
    double nll[METHODS + 1][N], sum[METHODS + 1] = {0};
    lab l;
    CHECK_OK(sl_model_load(tiny(), NULL, &l.model, &err), err);
    l.n_vocab = sl_model_config(l.model)->n_vocab;
    for (size_t i = 0; i < N; i++)
        for (int m = 0; m <= METHODS; m++) {
            const json_t *prompt = compare_item(out, "prompts", i);
            const json_t *own = m < METHODS ? compare_item(prompt, "methods", (size_t)m) : json_object_get(prompt, "dense");
            char text[4096];
            int32_t path[2048];
            snprintf(text, sizeof text, "%sWhat is the hidden number of house %d? Answer:", long_text(4 + (int)i), (int)i % 4);
            int n_prompt = prompt_ids(&l, text, path), n = n_prompt + ids_of(own, "ids", path + n_prompt);
            CHECK_INT(n - n_prompt, 9);
            float *logits = forced_logits(&l, "dense", path, n, n_prompt - 1, 0, &(sl_attn_stats){0});
            long double p[4096];
            nll[m][i] = 0;
            CHECK(l.n_vocab <= 4096);
            for (int j = n_prompt; j < n; j++) {
                softmax(logits + (size_t)(j - n_prompt) * l.n_vocab, l.n_vocab, p);
                nll[m][i] -= (double)logl(p[path[j]]) / 9;
            }
            free(logits);
            CHECK_NEAR(number(own, "text_nll"), nll[m][i], 1e-3); // a prefill rounds in another order than decode steps
            nll[m][i] = number(own, "text_nll");
            sum[m] += nll[m][i];
        }
    sl_model_free(l.model);
    CHECK(sum[0] > sum[1] + 0.1 * N && sum[1] == sum[2]);
    json_decref(out);
}

// ---- without texts ----

typedef struct observed {
    double l2[4];               // sums of a layer
    sl_attn_spread profile[32]; // [4 layers][8 heads] sums
    int n[4], n_steps;
} observed;

static void add_observed(void *ctx, const sl_attn_record *r) {
    observed *o = ctx;
    if (r->profile) {
        double *to = (double *)&o->profile[r->layer * 8 + r->head];
        for (size_t i = 0; i < sizeof *r->profile / sizeof *to; i++) to[i] += ((const double *)r->profile)[i];
        o->n_steps += r->layer == 0 && r->head == 0;
        CHECK(r->profile->keys_squares >= 1 && r->profile->keys_entropy <= r->n_kv * (1 + 1e-9));
        return;
    }
    o->l2[r->layer] += r->report->error, o->n[r->layer]++;
}

// Decodes the path with dense attention, with an observer that has one shadow.
static void observe_path(const lab *l, const char *attn, const int32_t *path, int n, int n_dense, observed *to) {
    sl_engine *engine;
    sl_session *s;
    sl_attn_spec shadow;
    CHECK_OK(sl_attn_parse(attn, &shadow, &err), err);
    CHECK_OK(sl_engine_new(l->model, &(sl_engine_options){.n_ctx = n, .n_threads = 2}, &engine, &err), err);
    CHECK_OK(sl_session_new(engine, 0, &s, &err), err);
    CHECK_OK(sl_prefill(s, path, n_dense, NULL, &err), err);
    const sl_observer o = {.fn = add_observed, .ctx = to, .with_profile = 1, .shadows = &shadow, .n_shadows = 1};
    CHECK_OK(sl_engine_observe(engine, &o, &err), err);
    for (int i = n_dense; i < n - 1; i++) CHECK_OK(sl_decode(&s, 1, &path[i], &err), err);
    sl_session_free(s);
    sl_engine_free(engine);
}

static void check_profiles(const json_t *out, const observed *o) {
    static const char *const names[] = {"keys_entropy",  "keys_squares",    "sink",   "window",
                                        "distance_mean", "distance_median", "rows_90"};
    CHECK_INT(number(out, "steps"), o->n_steps);
    CHECK_INT(json_array_size(json_object_get(out, "attention")), 32);
    for (int i = 0; i < 32; i++) {
        const json_t *row = compare_item(out, "attention", (size_t)i);
        CHECK(number(row, "layer") == i / 8 && number(row, "head") == i % 8);
        for (size_t j = 0; j < sizeof names / sizeof *names; j++)
            check_close(names[j], number(row, names[j]), ((const double *)&o->profile[i])[j] / o->n_steps);
    }
}

// --no-texts: the methods decode the reference, as with texts, and do not generate. Heads and attention are those of a dense
// run over the reference.
static void without_texts(void) {
    static const char reference[] = " 17281. The grass is green and not blue.\nThe hidden number of house 9 is 17.";
    static const char *const same[] = {"positions",     "top1",       "top1_low",   "kl",
                                       "kl_se",         "kl_90",      "kl_max",     "ppl_question",
                                       "ppl_answer_se", "ppl_answer", "step_bytes", "ln_ppl_ratio"};
    static const char *const unknown[] = {"agreement", "common_prefix", "kv_bytes_share", "text_nll", "text_nll_dense"};
    static observed seen;
    char file[8192] = "", whole[4096], path_name[256];
    int32_t path[2048];
    lab l;
    compare_add_line(file, sizeof file,
                     json_pack("{s:s, s:s, s:s}", "context", long_text(6), "question", "Which?", "reference", reference));
    snprintf(path_name, sizeof path_name, "%s", in_tmp("one.jsonl"));
    spill(path_name, file, strlen(file));
    json_t *with = compare_json(path_name, "santa-prop:S=12,topk:k=8", "--no-heads");
    json_t *out[2];
    for (int i = 0; i < 2; i++) {
        result r = RUN("compare", "-m", tiny(), "--jsonl", path_name, "--attn", "santa-prop:S=12,topk:k=8", "-n", "90000", "-o",
                       "json", "--no-texts", i ? "--no-heads" : "--attention");
        out[i] = document(&r);
    }
    CHECK_OK(sl_model_load(tiny(), NULL, &l.model, &err), err);
    l.n_vocab = sl_model_config(l.model)->n_vocab;
    snprintf(whole, sizeof whole, "%sWhich?%s", long_text(6), reference);
    int n = prompt_ids(&l, whole, path), n_dense = (int)number(compare_item(out[0], "prompts", 0), "n_dense");
    seen = (observed){0};
    observe_path(&l, "santa-prop:S=12", path, n, n_dense, &seen);
    sl_model_free(l.model);
    check_profiles(out[0], &seen);
    const json_t *row = compare_item(out[0], "methods", 0);
    CHECK_INT(json_array_size(json_object_get(row, "layers")), 4);
    for (int i = 0; i < 4; i++) check_close("l2", number(compare_item(row, "layers", (size_t)i), "l2"), seen.l2[i] / seen.n[i]);
    for (int i = 0; i < 2; i++) {
        const json_t *prompt = compare_item(out[i], "prompts", 0), *dense = json_object_get(prompt, "dense");
        CHECK(json_is_null(json_object_get(dense, "text")) && json_array_size(json_object_get(dense, "ids")) == 0);
        CHECK(json_is_null(json_object_get(dense, "stopped")) && json_is_null(json_object_get(dense, "text_nll")));
        for (size_t m = 0; m < 2; m++) {
            const json_t *got = compare_item(out[i], "methods", m), *want = compare_item(with, "methods", m);
            const json_t *own = compare_item(prompt, "methods", m),
                         *twin = compare_item(compare_item(with, "prompts", 0), "methods", m);
            for (size_t j = 0; j < sizeof same / sizeof *same; j++) CHECK(number(got, same[j]) == number(want, same[j]));
            CHECK(number(own, "kl") == number(twin, "kl") && number(own, "ppl_answer") == number(twin, "ppl_answer"));
            for (size_t j = 0; j < sizeof unknown / sizeof *unknown; j++) CHECK(json_is_null(json_object_get(got, unknown[j])));
            CHECK(json_is_null(json_object_get(own, "text")) && json_is_null(json_object_get(own, "agreement")));
        }
        json_decref(out[i]);
    }
    json_decref(with);
}

// The bytes of next tokens are those of the steps of this comparison alone: generate counts the same bytes for the same tokens.
// The last turn of the path has one step.
static void step_bytes(void) {
    result r = RUN("compare", "-m", tiny(), "-p", question, "--attn", "topk:k=2,dense", "-n", "102", "--ignore-eos", "-o",
                   "json", "--no-heads", "--dense-prefix", "3");
    json_t *out = document(&r);
    const json_t *topk = compare_item(out, "methods", 0), *dense = compare_item(out, "methods", 1),
                 *prompt = compare_item(out, "prompts", 0);
    int n = (int)number(prompt, "n_prompt") + 102 - 1, n_steps = n - 3;
    double rows = 0, bytes = 2.0 * 2 * 128 * 2 * 4; // of a row: K and V, 2 KV heads, 128 elements of 2 bytes, 4 layers
    for (int i = 4; i <= n; i++) rows += i;
    CHECK_INT(n_steps, 128 + 1);
    CHECK_INT(number(topk, "positions"), n_steps);
    check_close("step_bytes", number(dense, "step_bytes"), bytes * rows / n_steps);
    CHECK(number(dense, "step_bytes_share") == 1);
    check_close("step_bytes_share", number(topk, "step_bytes_share"), number(topk, "step_bytes") / number(dense, "step_bytes"));
    CHECK(number(topk, "step_bytes_share") > 0.5 && number(topk, "step_bytes_share") < 0.9); // all keys, and few values
    json_decref(out);
}

// Each answer and its bytes are those of generate. The figures of answers of different lengths count the tokens that both have.
static void lengths(void) {
    static const char *const methods[] = {"streaming:sink=2:window=8", "santa:S=2", "topk:k=2"};
    int n_shorter = 0, n_longer = 0;
    result r = RUN("compare", "-m", tiny(), "-p", question, "--attn", "streaming:window=8:sink=2,santa:S=2,topk:k=2", "-n",
                   "30", "--stop", "a", "--seq-id", "4", "--no-heads", "-o", "json");
    json_t *out = document(&r);
    const json_t *dense = json_object_get(compare_item(out, "prompts", 0), "dense");
    for (size_t m = 0; m < 3; m++) {
        const json_t *own = compare_item(compare_item(out, "prompts", 0), "methods", m), *row = compare_item(out, "methods", m);
        int32_t a[MAX_STEPS], b[MAX_STEPS];
        int n_a = ids_of(dense, "ids", a), n_b = ids_of(own, "ids", b), n = n_a < n_b ? n_a : n_b, same = 0, first = -1;
        for (int i = 0; i < n; i++) same += a[i] == b[i];
        while (first + 1 < n && a[first + 1] == b[first + 1]) first++;
        CHECK(n > 0);
        n_shorter += n_b<n_a, n_longer += n_b> n_a;
        check_close("agreement", number(own, "agreement"), (double)same / n);
        check_close("common_prefix", number(row, "common_prefix"), first + 1);
        int is_same = n_a == n_b && first + 1 == n;
        const json_t *differs = json_object_get(own, "differs_at");
        CHECK(is_same ? json_is_null(differs) : json_integer_value(differs) == first + 1);
        CHECK(number(row, "identical") == is_same && json_is_null(json_object_get(row, "l2")));
        result alone = RUN("generate", "-m", tiny(), "-p", question, "--attn", methods[m], "-n", "30", "--stop", "a",
                           "--seq-id", "4", "--temp", "0");
        char line[256];
        unsigned long long bytes, all;
        CHECK_GOOD(alone);
        CHECK_STR(json_string_value(json_object_get(own, "text")), alone.out);
        CHECK(sscanf(stat_line(&alone, "kv_bytes", line), "%llu of %llu", &bytes, &all) == 2 && bytes < all);
        check_close("kv_bytes_share", number(row, "kv_bytes_share"), (double)bytes / (double)all);
    }
    CHECK(n_shorter > 0 && n_longer > 0);
    json_decref(out);
}

// The first letters of the reference continue the last word of the prompt: the path is the joint text, scored from the first
// different token.
static void merged_reference(void) {
    static const char begun[] = "The numb", end[] = "er is 48213.";
    lab l;
    int32_t a[256], b[256];
    char whole[256];
    CHECK_OK(sl_model_load(tiny(), NULL, &l.model, &err), err);
    snprintf(whole, sizeof whole, "%s%s", begun, end);
    int n_a = prompt_ids(&l, begun, a), n_b = prompt_ids(&l, whole, b), same = 0;
    while (same < n_a && a[same] == b[same]) same++;
    CHECK(same < n_a);
    sl_model_free(l.model);
    spill(in_tmp("ref.txt"), end, sizeof end - 1);
    result r =
        RUN("compare", "-m", tiny(), "-p", begun, "--attn", "dense", "-n", "2", "--reference", in_tmp("ref.txt"), "-o", "json");
    json_t *out = document(&r);
    CHECK_INT(number(compare_item(out, "methods", 0), "positions"), n_b - same - 1);
    CHECK_INT(number(compare_item(out, "methods", 0), "answer_tokens"), n_b - same - 1);
    CHECK(number(compare_item(out, "methods", 0), "kl") == 0);
    json_decref(out);
}

static const test_case cases[] = {
    {"next-tokens", NEEDS_SPEED, next_tokens},
    {"dense-with-dense", 0, dense_with_dense},
    {"heads", NEEDS_SPEED, heads},
    GPU_CASE("heads-on-gpu", heads_on_gpu),
    {"answers-with-dense", 0, answers_with_dense},
    {"without-texts", 0, without_texts},
    {"parallel", 0, case_parallel},
    {"step-bytes", 0, step_bytes},
    {"lengths", 0, lengths},
    {"merged-reference", 0, merged_reference},
    {"set-ups", 0, case_set_ups},
    {"chats", 0, case_chats},
    {"tables", 0, case_tables},
    {"limits", 0, case_limits},
    {"plot", 0, case_plot},
    {"errors", 0, case_errors},
    {0},
};
const test_suite suite_cli_compare = {"cli_compare", cases};
