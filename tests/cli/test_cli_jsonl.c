// tests/cli/test_cli_jsonl.c - generate --jsonl and --stats end to end: fields of each line, methods and sequence numbers of
// lines, errors.
#include "attention/attention.h"
#include "cli/options/all_options.h"
#include "cli/output/stats.h"
#include "engine/engine_internal.h"
#include "tests/cli/fields.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>

static int parse_ids(const char *text, int *ids, int max) {
    int n = 0;
    for (char *end; n < max && *text && *text != '\n'; text = *end == ',' ? end + 1 : end)
        ids[n++] = (int)strtol(text, &end, 10);
    return n;
}

// Number of tokens of the context in context + question.
static int shared_tokens(const char *context, const char *whole) {
    static int a[8192], b[8192];
    result x = RUN("tokenize", "--bos", "-m", tiny(), "-p", context), y = RUN("tokenize", "--bos", "-m", tiny(), "-p", whole);
    CHECK_GOOD(x);
    CHECK_GOOD(y);
    int n = parse_ids(x.out, a, 8192), m = parse_ids(y.out, b, 8192), i = 0;
    while (i < n && i < m && a[i] == b[i]) i++;
    return i;
}

static json_t *line_json(const char *text, int index) {
    for (int i = 0; i < index && text; i++) text = strchr(text, '\n') ? strchr(text, '\n') + 1 : NULL;
    json_error_t e;
    json_t *line = text ? json_loads(text, JSON_DISABLE_EOF_CHECK, &e) : NULL;
    if (!line) FAIL("line %d of the output is no JSON: %s", index, text ? text : "(none)");
    return line;
}

// Three questions about two contexts in one session get the same answers as in a session for each question.
static void jsonl(void) {
    const char *m = tiny(), *attn = "--attn=santa-prop:S=12";
    static const char *const nulls[] = {"id", "attn", "seq", "prompt"}; // null means not given
    char contexts[3][2048], file[16384];
    static const char *const questions[] = {"What is the hidden number of house 3? Answer:",
                                            "What is the hidden number of house 5? Answer:", " Which one is house 2? Answer:"};
    size_t at = 0;
    for (int i = 0; i < 3; i++) {
        snprintf(contexts[i], sizeof contexts[i], "%.2047s", long_text(i < 2 ? 14 : 9));
        json_t *line = json_pack("{s:s, s:s}", "context", contexts[i], "question", questions[i]);
        if (i == 1) json_object_set_new(line, "id", json_string("second"));
        for (int k = 0; i == 2 && k < 4; k++) json_object_set_new(line, nulls[k], json_null());
        char *text = json_dumps(line, 0);
        at += (size_t)snprintf(file + at, sizeof file - at, "%s\n", text);
        free(text);
        json_decref(line);
    }
    spill(in_tmp("q.jsonl"), file, at);
    result r = RUN("generate", "-m", m, "--jsonl", in_tmp("q.jsonl"), "-n", "20", "--ignore-eos", attn, "--seq-id", "7");
    CHECK_GOOD(r);
    for (int i = 0; i < 3; i++) {
        char whole[4096], prefix[16], seq[16], answer[1024];
        snprintf(whole, sizeof whole, "%s%s", contexts[i], questions[i]);
        snprintf(prefix, sizeof prefix, "%d", shared_tokens(contexts[i], whole));
        snprintf(seq, sizeof seq, "%d", 7 + i);
        result alone =
            RUN("generate", "-m", m, "-p", whole, "-n", "20", "--ignore-eos", attn, "--dense-prefix", prefix, "--seq-id", seq);
        CHECK_GOOD(alone);
        json_t *line = line_json(r.out, i);
        snprintf(answer, sizeof answer, "%s", json_string_value(json_object_get(line, "text")));
        int n_prompt = (int)json_integer_value(json_object_get(line, "n_prompt"));
        double share = json_real_value(json_object_get(json_object_get(line, "group"), "kv_bytes_share"));
        int id_good =
            i == 1 ? json_is_string(json_object_get(line, "id")) : json_integer_value(json_object_get(line, "id")) == i;
        json_decref(line);
        CHECK_STR(answer, alone.out);
        CHECK_INT(n_prompt, stat_count(&alone, "prefill") + stat_count(&alone, "feed"));
        CHECK(id_good);
        CHECK(share > 0 && share < 1);
    }
    result dense = RUN("generate", "-m", m, "--jsonl", in_tmp("q.jsonl"), "-n", "4", attn, "--question-dense");
    CHECK_GOOD(dense);
    CHECK_HAS(dense.err, "setup: A");
}

static void jsonl_errors(void) {
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"{\"context\": \"a\", \"question\": \"b\"}\n{\"context\": \"a\"\n", "line 2: "},
        {"{\"context\": \"a\", \"question\": 3}\n", "line 1: expected an object with a string \"question\""},
        {"\n[1]\n", "line 2: expected an object with a string \"context\""},
        {"{\"context\": \"a\", \"question\": \"b\"}\n{\"context\": \"a\", \"question\": \"b\", \"attn\": \"santas\"}\n",
         "line 2: \"attn\": --attn santas: unknown method"},
        {"{\"context\": \"a\", \"question\": \"b\", \"attn\": \"\"}\n", "line 1: \"attn\": "},
        {"{\"context\": \"a\", \"question\": \"b\", \"attn\": 3}\n", "line 1: \"attn\": expected a string"},
        {"{\"context\": \"a\", \"question\": \"b\", \"attn\": \"santa:S=0\"}\n", "line 1: \"attn\": "},
        {"{\"context\": \"a\", \"question\": \"b\", \"seq\": -1}\n", "line 1: \"seq\": expected a whole number"},
        {"{\"context\": \"a\", \"question\": \"b\", \"seq\": 1.5}\n", "line 1: \"seq\": expected a whole number"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        spill(in_tmp("bad.jsonl"), cases[i].text, strlen(cases[i].text));
        result r = RUN("generate", "-m", tiny(), "--jsonl", in_tmp("bad.jsonl"), "-n", "1");
        check_error(&r, 1, cases[i].part);
        CHECK_INT(r.n_out, 0);
    }
}

// ---- --stats ----

static const char *const stats_fields[] = {
    "sequence",  "position",    "layer",          "head",         "n_kv",         "attn",    "seed",
    "k_rows",    "v_distinct",  "features",       "bytes",        "v_rows",       "samples", "budget",
    "ess",       "error",       "score_bound",    "error_bound",  "dense_bytes",  "tries",   "fallback",
    "cosine",    "bias",        "tiles",          "heavy_tail",   "kurtosis",     "kappa",   "stated_error",
    "certified", "layer_error", "standard_error", "largest_draw", "pareto_shape", "exact"};
enum { N_STATS_FIELDS = sizeof stats_fields / sizeof *stats_fields };

// A layer's error is one number, between the errors of its 8 heads. errors: the layer's, the least and the largest of its
// heads.
static void check_layer_error(const json_t *line, int i, double errors[3]) {
    const json_t *error = json_object_get(line, "error"), *layer = json_object_get(line, "layer_error");
    CHECK(json_is_number(error) == json_is_number(layer));
    double x = json_number_value(error), of_layer = json_number_value(layer);
    if (i % 8 == 0) errors[0] = of_layer, errors[1] = errors[2] = x;
    CHECK(of_layer == errors[0]);
    errors[1] = fmin(errors[1], x), errors[2] = fmax(errors[2], x);
    CHECK(i % 8 < 7 || (errors[1] <= of_layer * (1 + 1e-6) && of_layer <= errors[2] * (1 + 1e-6)));
}

// Reads a file of --stats; each line must have exactly the fields. Counts the lines of a method and seed.
static int count_stats(const char *path, const char *attn, int seed, int *n_lines, int *n_errors) {
    size_t n;
    int found = 0;
    double errors[3] = {0};
    *n_lines = *n_errors = 0;
    for (const char *p = slurp(path, &n); *p; (*n_lines)++) {
        json_error_t e;
        size_t length = strcspn(p, "\n");
        json_t *line = json_loadb(p, length, JSON_REJECT_DUPLICATES, &e);
        if (!line || p[length] != '\n') FAIL("line %d of --stats is no JSON: %s: %.300s", *n_lines + 1, e.text, p);
        for (int i = 0; i < N_STATS_FIELDS; i++)
            if (!json_object_get(line, stats_fields[i])) FAIL("line %d of --stats lacks %s", *n_lines + 1, stats_fields[i]);
        CHECK_INT(json_object_size(line), N_STATS_FIELDS);
        found += !strcmp(json_string_value(json_object_get(line, "attn")), attn) &&
                 json_integer_value(json_object_get(line, "seed")) == seed;
        *n_errors += json_is_number(json_object_get(line, "error"));
        check_layer_error(line, *n_lines, errors);
        json_decref(line);
        p += length + 1;
    }
    return found;
}

static void stats_file(void) {
    const char *m = tiny(), *text = long_text(12);
    char file[256]; // a copy, because in_tmp reuses its paths
    snprintf(file, sizeof file, "%s", in_tmp("stats.jsonl"));
    enum { LINES = 4 * 8 * 4 }; // layers x heads x steps
    int n, errors;
    result plain = RUN("generate", "-m", m, "-p", text, "-n", "5", "--ignore-eos", "--attn=santa-prop:S=12");
    result r = RUN("generate", "-m", m, "-p", text, "-n", "5", "--ignore-eos", "--attn=santa-prop:S=12", "--stats", file);
    check_same(&plain, &r);
    CHECK_INT(count_stats(file, "santa-prop:S=12", 0, &n, &errors), LINES);
    CHECK_INT(n, LINES);
    CHECK_INT(errors, 0); // null
    r = RUN("generate", "-m", m, "-p", text, "-n", "5", "--ignore-eos", "--attn=santa-prop:S=12", "--stats", file,
            "--stats-error");
    check_same(&plain, &r);
    CHECK_INT(count_stats(file, "santa-prop:S=12", 0, &n, &errors), LINES);
    CHECK_INT(errors, LINES);
    r = RUN("generate", "-m", m, "-p", text, "-n", "5", "--ignore-eos", "--attn=santa-prop:S=12", "--seed", "3", "--stats",
            file, "--stats-attn", "santa-sys:S=8", "--stats-attn", "quest:tokens=64", "--stats-seeds", "2");
    CHECK_GOOD(r);
    CHECK_INT(count_stats(file, "santa-sys:S=8", 3, &n, &errors), LINES);
    CHECK_INT(n, 5 * LINES);
    CHECK_INT(errors, n);
    CHECK_INT(count_stats(file, "santa-sys:S=8", 4, &n, &errors), LINES);
    CHECK_INT(count_stats(file, "quest:tokens=64", 4, &n, &errors), LINES);
    CHECK_INT(count_stats(file, "santa-prop:S=12", 3, &n, &errors), LINES);
    r = RUN_IN("Hello\n/ctx 2k\nHi\n", "chat", "-m", m, "--chat-template", "llama3", "-n", "3", "--stats", file);
    CHECK_GOOD(r); // /ctx makes a new engine, which is observed too
    count_stats(file, "dense", 0, &n, &errors);
    CHECK_INT(n, 4 * 8 * 2 * 2);
}

// A method's sums over the lines of --stats.
typedef struct layer_sums {
    int lines, kappas, layer_steps, certified;
    double stated, most;
} layer_sums;

static layer_sums sum_layers(const char *path, const char *attn) {
    size_t n;
    layer_sums s = {0};
    for (const char *p = slurp(path, &n); *p; p = strchr(p, '\n') + 1) {
        json_t *line = json_loads(p, JSON_DISABLE_EOF_CHECK, NULL);
        const json_t *certified = json_object_get(line, "certified"), *error = json_object_get(line, "stated_error");
        if (!strcmp(json_string_value(json_object_get(line, "attn")), attn)) {
            s.lines++;
            s.kappas += json_is_number(json_object_get(line, "kappa"));
            CHECK_INT(json_is_number(certified), json_is_number(error)); // tiny's layers have bounds in this text
            if (json_is_number(certified) && json_integer_value(json_object_get(line, "head")) == 0) {
                double x = json_number_value(error);
                s.layer_steps++, s.certified += json_number_value(certified) == 1;
                s.stated += x, s.most = x > s.most ? x : s.most;
            }
        }
        json_decref(line);
    }
    return s;
}

// The lines of a method that states an error of a layer add up to the figures of the answer. Shadows have such lines too.
static void stats_of_layers(void) {
    static const char *const running = "santa-pps:epsilon=0.3", *const shadow = "santa-is:proposal=int8:epsilon=0.3",
                             *const carried = "santa-pps:S=8", *const even = "santa-pps:S=8:budget=even";
    enum { LINES = 4 * 8 * 5, LAYER_STEPS = 4 * 5 };
    char file[256];
    snprintf(file, sizeof file, "%s", in_tmp("layers.jsonl"));
    result r =
        RUN("generate", "-m", tiny(), "-p", long_text(20), "-n", "6", "--ignore-eos", "-o", "json", "--attn", running,
            "--stats", file, "--stats-attn", shadow, "--stats-attn", carried, "--stats-attn", even, "--stats-attn", running);
    json_t *answer = document(&r);
    const json_t *group = json_object_get(answer, "group");
    layer_sums s = sum_layers(file, running); // of the method and of its shadow
    CHECK(s.lines == 2 * LINES && s.kappas == s.lines && s.layer_steps == 2 * LAYER_STEPS);
    CHECK_INT(number(group, "layer_steps"), LAYER_STEPS);
    CHECK_NEAR(number(group, "certified_share"), s.certified / 2.0 / LAYER_STEPS, 1e-9);
    CHECK_NEAR(number(group, "stated_error"), s.stated / 2 / LAYER_STEPS, 1e-7);
    CHECK_NEAR(number(group, "stated_error_max"), s.most, 1e-7 * s.most);
    CHECK(number(group, "unbounded_share") == 0);
    char buf[256];
    int certified, steps;
    double percent, mean, most;
    CHECK(sscanf(stat_line(&r, "stated error", buf),
                 "0.3 at delta 5%%, %d of %d layer-steps certified (%lf%%), mean %lf, largest %lf", &certified, &steps,
                 &percent, &mean, &most) == 5);
    CHECK(certified == s.certified / 2 && steps == LAYER_STEPS);
    CHECK_NEAR(percent, 100.0 * certified / steps, 5.1e-3);
    CHECK_NEAR(mean, number(group, "stated_error"), 5e-3 * mean);
    CHECK_NEAR(most, s.most, 5e-3 * most);
    s = sum_layers(file, shadow);
    CHECK(s.lines == LINES && s.kappas == LINES && s.layer_steps == LAYER_STEPS);
    s = sum_layers(file, carried);
    CHECK(s.lines == LINES && s.kappas == LINES && s.layer_steps == 0);
    s = sum_layers(file, even);
    CHECK(s.lines == LINES && s.kappas == 0 && s.layer_steps == 0);
    json_decref(answer);
    r = RUN("generate", "-m", tiny(), "-p", question, "-n", "2", "-o", "json", "--attn", even);
    answer = document(&r);
    group = json_object_get(answer, "group");
    CHECK_INT(number(group, "layer_steps"), 0);
    static const char *const unknown[] = {"certified_share", "stated_error", "stated_error_max", "unbounded_share"};
    for (int i = 0; i < 4; i++) CHECK(json_is_null(json_object_get(group, unknown[i])));
    json_decref(answer);
}

static void stats_errors(void) {
    const char *m = tiny();
    static const struct {
        const char *args[4], *part;
    } cases[] = {
        {{"--stats-attn=santa"}, "--stats-attn needs --stats FILE"},
        {{"--stats-error"}, "--stats-error needs --stats FILE"},
        {{"--stats-seeds=2"}, "--stats-seeds needs --stats FILE"},
        {{"--stats=/dev/null", "--stats-seeds=2"}, "--stats-seeds needs --stats-attn SPEC"},
        {{"--stats=/dev/null", "--stats-seeds=0"}, "--stats-seeds 0: expected a whole number"},
        {{"--stats=/dev/null", "--stats-attn=santasys"}, "--stats-attn santasys: "},
        {{"--stats=/dev/null", "--stats-attn=santa:S=0"}, "--stats-attn santa:S=0: "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *args[16] = {"generate", "-m", m, "-p", "x"};
        for (int j = 0; j < 4 && cases[i].args[j]; j++) args[5 + j] = cases[i].args[j];
        result r = run_args(NULL, args);
        check_error(&r, 2, cases[i].part);
    }
    result r = RUN("generate", "-m", m, "-p", "x", "--stats", in_tmp("no/such/file"));
    check_error(&r, 1, "no/such/file: No such file");
    r = RUN("generate", "-m", m, "-p", question, "-n", "3", "--stats", "/dev/full"); // the error occurs at the end
    check_error(&r, 1, "--stats: cannot write /dev/full: No space left on device");
    r = RUN("generate", "-m", m, "-p", question, "-n", "400", "--ignore-eos", "--stats",
            "/dev/full"); // the error occurs on the way
    check_error(&r, 1, "--stats: cannot write /dev/full: No space left on device");
    CHECK_LACKS(r.err, "stopped:");
}

// Each line has a method and a sequence number: each answer equals that with the same flags, and the context is prefilled once.
static void jsonl_methods(void) {
    const char *m = tiny(), *context = long_text(20), *ask = "What is the hidden number of house 3? Answer:";
    static const char *const specs[] = {NULL, "santa-sys:S=4", "quest:tokens=64", NULL, "santa-sys:S=4", "santa-sys:S=4"};
    static const int sequences[] = {0, 9, 9, 3, 9, 8}, same_as[] = {-1, -1, -1, -1, 1, -1};
    enum { N = 6 };
    char file[32768], answers[N][1024];
    size_t at = 0;
    for (int i = 0; i < N; i++) {
        json_t *line = json_pack("{s:s, s:s}", "context", context, "question", ask);
        if (specs[i]) json_object_set_new(line, "attn", json_string(specs[i]));
        if (sequences[i] != i) json_object_set_new(line, "seq", json_integer(sequences[i]));
        char *text = json_dumps(line, 0);
        at += (size_t)snprintf(file + at, sizeof file - at, "%s\n", text);
        free(text);
        json_decref(line);
    }
    spill(in_tmp("m.jsonl"), file, at);
    result r = RUN("generate", "-m", m, "--jsonl", in_tmp("m.jsonl"), "-n", "12", "--ignore-eos", "--attn-layer=1-2=santa:S=6");
    CHECK_GOOD(r);
    char whole[8192], prefix[16];
    snprintf(whole, sizeof whole, "%.8000s%s", context, ask);
    snprintf(prefix, sizeof prefix, "%d", shared_tokens(context, whole));
    for (int i = 0; i < N; i++) {
        char seq[16], attn[256], spec[64];
        snprintf(seq, sizeof seq, "%d", sequences[i]);
        snprintf(spec, sizeof spec, specs[i] ? "--attn=%s" : "--attn-layer=1-2=santa:S=6", specs[i]);
        json_t *line = line_json(r.out, i);
        snprintf(answers[i], sizeof answers[i], "%s", json_string_value(json_object_get(line, "text")));
        snprintf(attn, sizeof attn, "%s", json_string_value(json_object_get(line, "attn")));
        int n_prefill = (int)json_integer_value(json_object_get(line, "n_prefill"));
        json_decref(line);
        CHECK_STR(attn, specs[i] ? specs[i] : "0=dense 1-2=santa:S=6 3=dense");
        CHECK_INT(n_prefill, i ? 0 : atoi(prefix));
        if (same_as[i] >= 0) {
            CHECK_STR(answers[i], answers[same_as[i]]); // independent of the lines in between
            continue;
        }
        result alone =
            RUN("generate", "-m", m, "-p", whole, "-n", "12", "--ignore-eos", spec, "--dense-prefix", prefix, "--seq-id", seq);
        CHECK_GOOD(alone);
        CHECK_STR(answers[i], alone.out);
    }
}

static int prompt_tokens(const char *text, int index) {
    json_t *line = line_json(text, index);
    int n = (int)json_integer_value(json_object_get(line, "n_prompt"));
    json_decref(line);
    return n;
}

// A line of --chat is a message of the user or a conversation. Special tokens in messages are text without --parse-special.
static void chats(void) {
    static const char lines[] =
        "{\"prompt\":\"Hello there\"}\n{\"messages\":[{\"role\":\"user\",\"content\":\"Hello there\"}]}\n"
        "{\"context\":\"Hello \",\"question\":\"there\"}\n{\"prompt\":\"<|eot_id|>\"}\n";
    static const char tools[] = "[{\"type\":\"function\"}]", jinja[] = "{{ tools|tojson }}{{ mood }}{{ messages[0].content }}";
    const char *m = tiny();
    spill(in_tmp("c.jsonl"), lines, sizeof lines - 1);
    spill(in_tmp("tools.json"), tools, sizeof tools - 1);
    spill(in_tmp("t.jinja"), jinja, sizeof jinja - 1);
    result one =
        RUN("generate", "-m", m, "--chat", "-p", "Hello there", "-n", "6", "--temp", "0", "--ignore-eos", "-o", "json");
    result r = RUN("generate", "-m", m, "--chat", "--jsonl", in_tmp("c.jsonl"), "-n", "6", "--temp", "0", "--ignore-eos");
    result parsed = RUN("generate", "-m", m, "--chat", "--parse-special", "--jsonl", in_tmp("c.jsonl"), "-n", "6", "--temp",
                        "0", "--ignore-eos");
    CHECK_GOOD(one);
    CHECK_GOOD(r);
    CHECK_GOOD(parsed);
    json_t *want = line_json(one.out, 0);
    for (int i = 0; i < 3; i++) {
        json_t *line = line_json(r.out, i);
        CHECK(json_equal(json_object_get(line, "ids"), json_object_get(want, "ids")));
        CHECK(json_equal(json_object_get(line, "n_prompt"), json_object_get(want, "n_prompt")));
        json_decref(line);
    }
    json_decref(want);
    CHECK(prompt_tokens(r.out, 3) > prompt_tokens(parsed.out, 3) + 3);
    r = RUN("generate", "-m", m, "--chat", "--chat-template", in_tmp("t.jinja"), "--tools", in_tmp("tools.json"),
            "--chat-template-kwargs", "{\"mood\": \"calm\"}", "-p", "x", "-n", "1", "--display-prompt");
    CHECK_GOOD(r);
    CHECK_HAS(r.out, "[{\"type\": \"function\"}]calmx");
    r = RUN("generate", "-m", m, "--chat", "--chat-template-kwargs", "[1]", "-p", "x");
    check_error(&r, 2, "--chat-template-kwargs: expected a JSON object, found a list");
    r = RUN("generate", "-m", m, "--parse-special", "-p", "x");
    check_error(&r, 2, "flag --parse-special needs --chat");
}

// The fields of the lines of --stats, from made-up records whose numbers all differ.
static void want_step(fields *f, const sl_attn_record *r, int is_known) {
    const sl_attn_report *p = r->report;
    want(f, "sequence", r->sequence), want(f, "position", r->position), want(f, "layer", r->layer), want(f, "head", r->head);
    want(f, "n_kv", r->n_kv), want_text(f, "attn", "topk:k=4"), want(f, "seed", r->seed), want(f, "k_rows", p->k_rows);
    want(f, "v_rows", p->v_rows), want(f, "samples", p->samples), want(f, "budget", p->budget);
    want(f, "bytes", (double)p->bytes), want(f, "dense_bytes", (double)p->dense_bytes);
    want(f, "v_distinct", is_known ? 31 : (double)NAN), want(f, "features", p->features), want(f, "ess", p->ess);
    want(f, "score_bound", p->score_bound), want(f, "error_bound", p->error_bound), want(f, "kappa", p->kappa);
    want(f, "standard_error", p->standard_error), want(f, "largest_draw", p->largest_draw);
    want(f, "pareto_shape", p->pareto_shape), want(f, "stated_error", p->stated_error);
    want(f, "certified", is_known ? 1 : (double)NAN), want(f, "tries", p->tries), want(f, "fallback", p->fallback),
        want(f, "exact", p->exact);
    want(f, "heavy_tail", p->heavy_tail), want(f, "kurtosis", p->kurtosis), want(f, "error", p->error);
    want(f, "cosine", p->cosine), want(f, "bias", p->bias), want(f, "layer_error", p->layer_error), want(f, "tiles", p->tiles);
}

static void want_segment(fields *f, const sl_prefill_record *r, int is_checked) {
    want(f, "sequence", r->sequence), want(f, "position", r->position), want(f, "n_tokens", r->n_tokens);
    want(f, "layer", r->layer), want(f, "head", r->head), want_text(f, "attn_prefill", "topk:k=4");
    want(f, "blocks", is_checked ? 3 : 1), want(f, "dense_blocks", is_checked ? 4 : 2);
    want(f, "prefill_density", is_checked ? 0.75 : 0.5), want(f, "prefill_kept", 0.5);
    want(f, "prefill_cra", is_checked ? 0.25 : (double)NAN), want(f, "prefill_error", is_checked ? 2.5 : (double)NAN);
    want(f, "prefill_error_max", is_checked ? 5 : (double)NAN);
}

static void stats_lines(void) {
    char *args[] = {"--stats", (char *)in_tmp("s"), "--stats-error"};
    cli_options o;
    cli_stats stats;
    sl_model *model;
    sl_engine *engine;
    sl_attn_spec spec;
    sl_error e;
    CHECK_OK(cli_options_parse(&o, CLI_GENERATE, 3, args, &e), e);
    CHECK_OK(sl_model_load(tiny(), NULL, &model, &e), e);
    CHECK_OK(sl_engine_new(model, &(sl_engine_options){.n_ctx = 16, .n_threads = 1, .attn = "topk:k=4"}, &engine, &e), e);
    CHECK_OK(sl_attn_parse("topk:k=4", &spec, &e), e);
    CHECK_OK(cli_stats_open(&stats, &o.run.stats, &e), e);
    CHECK_OK(cli_stats_observe(&stats, engine, &e), e);
    const sl_observer *observer = &engine->observation.observer;
    CHECK(observer->with_error && !observer->n_shadows);
    const sl_attn_report known = {30,   31,   0.5f, 32,   33,   34, 35,   36, 1.5f,  2.5f,  3.5f,   37,    38, 41,
                                  4.5f, 5.5f, 6.5f, 7.5f, 8.5f, 1,  9.5f, 39, 10.5f, 0.25f, -11.5f, 12.5f, 40},
                         none = {SL_ATTN_NO_VALUES, .v_rows = 3};
    const sl_attn_record records[] = {{20, 21, 22, 23, 24, 25, &spec, &known, NULL}, {1, 2, 3, 4, 5, 6, &spec, &none, NULL}};
    const sl_prefill_report checked = {3, 4, 1 << 23, 1 << 22, 4, 10, 5}, unchecked = {1, 2, 1 << 23, -1, 0, 0, 0};
    const sl_prefill_record prefills[] = {{50, 51, 52, 53, 54, &spec, &checked}, {60, 61, 62, 63, 64, &spec, &unchecked}};
    for (int i = 0; i < 2; i++) observer->fn(observer->ctx, &records[i]);
    for (int i = 0; i < 2; i++) cli_stats_prefill(&stats, &prefills[i]);
    CHECK_OK(cli_stats_close(&stats, &e), e);
    size_t n;
    const char *line = slurp(in_tmp("s"), &n);
    for (int i = 0; i < 4; i++, line = strchr(line, '\n') + 1) {
        fields f = {.n = 0};
        json_t *row = json_loads(line, JSON_DISABLE_EOF_CHECK, NULL);
        if (i < 2)
            want_step(&f, &records[i], i == 0);
        else
            want_segment(&f, &prefills[i - 2], i == 2);
        check_fields(row, &f, 1e-8);
        json_decref(row);
    }
    CHECK_STR(line, "");
    sl_engine_free(engine);
    sl_model_free(model);
    cli_options_free(&o);
}

static const test_case cases[] = {
    {"stats_lines", NEEDS_NOTHING, stats_lines},
    {"jsonl", NEEDS_NOTHING, jsonl},
    {"chats", NEEDS_NOTHING, chats},
    {"jsonl_errors", NEEDS_NOTHING, jsonl_errors},
    {"jsonl_methods", NEEDS_NOTHING, jsonl_methods},
    {"stats_file", NEEDS_NOTHING, stats_file},
    {"stats_of_layers", NEEDS_NOTHING, stats_of_layers},
    {"stats_errors", NEEDS_NOTHING, stats_errors},
    {0},
};
const test_suite suite_cli_jsonl = {"cli_jsonl", cases};
