// tests/cli/test_cli_answer.c - the JSON object of an answer: generate -o json, --jsonl and --prompts, with and without
// --parallel, print the same fields with the same values; --logprobs gives the log-softmax of the raw logits.
#include "cli/generate/answer.h"
#include "cli/options/all_options.h"
#include "engine/engine_internal.h"
#include "models/source.h"
#include "tests/cli/fields.h"
#include "tests/support/npy.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>

// Line `index` of the output.
static json_t *line_of(const result *r, int index) {
    const char *text = r->out;
    json_error_t e;
    CHECK_GOOD(*r);
    for (int i = 0; i < index && text; i++) text = strchr(text, '\n') ? strchr(text, '\n') + 1 : NULL;
    json_t *line = text ? json_loads(text, JSON_DISABLE_EOF_CHECK | JSON_REJECT_DUPLICATES, &e) : NULL;
    if (!line) FAIL("line %d of the output is no JSON: %s", index, text ? text : "(none)");
    return line;
}

static const char *text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    if (!text) FAIL("no text \"%s\"", key);
    return text;
}

static long long whole(const json_t *object, const char *key) {
    if (!json_is_integer(json_object_get(object, key))) FAIL("no whole number \"%s\"", key);
    return json_integer_value(json_object_get(object, key));
}

// "1,2,3" of a list of ids
static const char *ids_text(const json_t *ids) {
    static char text[8192];
    size_t i, at = 0;
    json_t *id;
    *text = 0;
    json_array_foreach(ids, i, id) at +=
        (size_t)snprintf(text + at, sizeof text - at, i ? ",%lld" : "%lld", (long long)json_integer_value(id));
    return text;
}

static const char *save_ids(const char *name, const json_t *ids) {
    const char *text = ids_text(ids);
    spill(in_tmp(name), text, strlen(text));
    return in_tmp(name);
}

// ---- one prompt ----

// The lines of counts: shares of dense attention in all steps, from `from` tokens on, in 4 layers of 8 heads with 2 KV heads.
// group: the same shares of a run whose every token after `from` was a step of the group.
static void check_counts(const result *r, int from, const json_t *group) {
    static const char *const names[] = {"k_rows", "v_rows", "v_distinct", "kv_bytes"};
    static const int scale[] = {4 * 2, 4 * 8, 4 * 2, 4 * 2 * 128 * 2 * 2}; // for a token of the context
    char buf[256], field[40];
    long long n, dense, tokens = 0, bytes = 0, step;
    double percent, rate;
    int to;
    const char *in_context = strstr(stat_line(r, "stopped", buf), "generated, ");
    CHECK(in_context && sscanf(in_context, "generated, %d in", &to) == 1);
    for (int i = from + 1; i <= to; i++) tokens += i;
    for (int i = 0; i < 4; i++) {
        CHECK(sscanf(stat_line(r, names[i], buf), "%lld of %lld, %lf%%", &n, &dense, &percent) == 3);
        CHECK_INT(dense, scale[i] * tokens);
        CHECK_NEAR(percent, 100.0 * (double)n / (double)dense, 5.1e-3);
        snprintf(field, sizeof field, "%s_share", names[i]);
        if (group) CHECK_NEAR(number(group, field), (double)n / (double)dense, 1e-9);
        bytes = n;
    }
    // a step reads the weights without the embedding
    double weights = 2.0 * (1024 * 256 + 256 + 4 * (2 * 256 + 256 * 128 * (8 + 2 + 2 + 8) + 3 * 256 * 768));
    CHECK(sscanf(stat_line(r, "bandwidth", buf), "%lf GB/s, %lld bytes a step", &rate, &step) == 2);
    CHECK_NEAR((double)step, weights + (double)bytes / (to - from), 1);
    double ms = 0, x;
    for (int i = 0; i < 2; i++) {
        const char *line = strstr(r->err, i ? "\ndecode: " : "\nfeed: "); // no feed, no line
        if (line && sscanf(strchr(line, ' '), "%lf ms", &x) == 1) ms += x;
    }
    CHECK_NEAR(rate, (double)step * (to - from) / ms * 1e-6, 0.02 * rate + 0.01);
}

static void same_as_text(void) {
    char buf[256], want[128];
    result text = RUN("generate", "-m", tiny(), "-p", question, "-n", "12", "--temp", "1", "--seed", "3", "--seq-id", "9",
                      "--attn=santa-prop:S=12", "--dense-prefix", "4", "--ignore-eos"),
           json = RUN("generate", "-m", tiny(), "-p", question, "-n", "12", "--temp", "1", "--seed", "3", "--seq-id", "9",
                      "--attn=santa-prop:S=12", "--dense-prefix", "4", "--ignore-eos", "-o", "json", "--display-prompt");
    CHECK_GOOD(text);
    json_t *o = line_of(&json, 0), *group = json_object_get(o, "group");
    CHECK_INT(count_of(json.out, json.n_out, '\n'), 1);
    CHECK_STR(text_of(o, "text"), text.out);
    CHECK_STR(text_of(o, "model"), "tiny");
    CHECK_STR(text_of(o, "attn"), "santa-prop:S=12");
    CHECK_STR(text_of(o, "logits"), stat_line(&text, "logits", buf));
    CHECK_STR(text_of(o, "logits"), stat_line(&json, "logits", buf));
    snprintf(want, sizeof want, "%s, %lld prompt tokens, %lld generated", text_of(o, "stopped"), whole(o, "n_prompt"),
             whole(o, "n_generated"));
    CHECK_HAS(stat_line(&text, "stopped", buf), want);
    CHECK(whole(o, "seed") == 3 && whole(o, "seq") == 9 && whole(o, "n_generated") == 12 && whole(o, "n_prefill") == 4);
    CHECK_INT(whole(o, "n_prefill") + whole(o, "n_feed"), whole(o, "n_prompt"));
    CHECK_INT(stat_count(&json, "feed"), whole(o, "n_feed"));
    CHECK_INT(stat_count(&json, "decode"), whole(o, "n_decode"));
    CHECK_NEAR(number(o, "decode_tok_s") * number(o, "decode_ms"), 1e3 * number(o, "n_decode"), 1e-3);
    check_counts(&text, 4, NULL);
    result whole_prefill =
        RUN("generate", "-m", tiny(), "-p", question, "-n", "5", "--attn=santa-pps:S=4", "--ignore-eos", "-o", "json");
    json_t *other = line_of(&whole_prefill, 0);
    check_counts(&whole_prefill, (int)whole(other, "n_prompt"), json_object_get(other, "group"));
    json_decref(other);
    CHECK(number(group, "v_rows_share") > 0 && number(group, "v_rows_share") < 1 && number(group, "samples") > 0);
    CHECK(whole(group, "size") == 1 && whole(group, "steps") == whole(o, "n_decode"));
    // the ids are those of the texts
    CHECK_INT(json_array_size(json_object_get(o, "ids")), 12);
    result back = RUN("detokenize", "-m", tiny(), "-p", ids_text(json_object_get(o, "ids")));
    CHECK_GOOD(back);
    CHECK_STR(back.out, text.out);
    result prompt = RUN("tokenize", "--bos", "-m", tiny(), "-p", question);
    CHECK_GOOD(prompt);
    prompt.out[strcspn(prompt.out, "\n")] = 0;
    CHECK_STR(ids_text(json_object_get(o, "prompt_ids")), prompt.out);
    CHECK_HAS(text_of(o, "prompt"), question);
    CHECK_HAS(text_of(o, "prompt"), "<|begin_of_text|>");
    json_decref(o);
    // the same prompt as ids gives the same answer
    spill(in_tmp("ids"), prompt.out, strlen(prompt.out));
    json = RUN("generate", "-m", tiny(), "--ids", in_tmp("ids"), "-n", "12", "--temp", "1", "--seed", "3", "--seq-id", "9",
               "--attn=santa-prop:S=12", "--dense-prefix", "4", "--ignore-eos", "-o", "json");
    o = line_of(&json, 0);
    CHECK_STR(text_of(o, "text"), text.out);
    CHECK(!json_object_get(o, "prompt") && !json_object_get(o, "logprobs"));
    json_decref(o);
}

// The ids hold the tokens that ended the answer; the text does not.
static void ends(void) {
    result r =
        RUN("generate", "-m", tiny(), "-p", question, "-n", "8", "--logit-bias", "1012+100", "-o", "json", "--logprobs", "0");
    json_t *o = line_of(&r, 0);
    CHECK_STR(text_of(o, "stopped"), "eos");
    CHECK_STR(text_of(o, "text"), "");
    CHECK_STR(ids_text(json_object_get(o, "ids")), "1012");
    const json_t *token = json_array_get(json_object_get(o, "logprobs"), 0);
    CHECK(number(token, "id") == 1012 && number(token, "logprob") < -1); // of the logits without the bias
    CHECK_HAS(text_of(token, "token"), "<|");
    json_decref(o);
    r = RUN("generate", "-m", tiny(), "-p", question, "-n", "40", "--temp", "0", "--stop", "13", "-o", "json");
    o = line_of(&r, 0);
    CHECK_STR(text_of(o, "stopped"), "stop string");
    CHECK_STR(text_of(o, "text"), " 482");
    char buf[256];
    CHECK_STR(text_of(o, "logits"), stat_line(&r, "logits", buf)); // also if a stop string cut the last token off
    result back = RUN("detokenize", "-m", tiny(), "-p", ids_text(json_object_get(o, "ids")));
    CHECK_GOOD(back);
    CHECK_STR(back.out, " 48213");
    json_decref(o);
    r = RUN("generate", "-m", tiny(), "-p", question, "-n", "0", "-o", "json", "--logprobs", "3");
    o = line_of(&r, 0);
    CHECK(!json_array_size(json_object_get(o, "ids")) && !json_array_size(json_object_get(o, "logprobs")));
    CHECK(whole(o, "n_generated") == 0 && json_is_null(json_object_get(json_object_get(o, "group"), "v_rows_share")));
    json_decref(o);
}

// ---- one schema ----

static void check_same_keys(const json_t *a, const json_t *b) {
    void *x = json_object_iter((json_t *)a), *y = json_object_iter((json_t *)b);
    for (; x && y; x = json_object_iter_next((json_t *)a, x), y = json_object_iter_next((json_t *)b, y)) {
        CHECK_STR(json_object_iter_key(x), json_object_iter_key(y));
        if (json_is_object(json_object_iter_value(x))) check_same_keys(json_object_iter_value(x), json_object_iter_value(y));
    }
    CHECK(!x && !y);
}

// Everything but times and what depends on the other lines.
static void check_same_answer(const json_t *a, const json_t *b) {
    static const char *const keys[] = {"index",    "id",          "model", "text", "ids", "stopped", "n_prompt", "n_feed",
                                       "n_decode", "n_generated", "attn",  "seed", "seq", "logits",  "logprobs"};
    check_same_keys(a, b);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!json_equal(json_object_get(a, keys[i]), json_object_get(b, keys[i]))) FAIL("\"%s\" differs", keys[i]);
}

static void one_schema(void) {
    enum { N = 4 };
    char file[4096];
    size_t at = 0;
    for (int i = 0; i < N; i++)
        at += (size_t)snprintf(file + at, sizeof file - at, "{\"context\": \"%s\", \"question\": \" %s\", \"id\": [%d]%s}\n",
                               i < 2 ? "The sky is blue." : "The grass is green.", question, i,
                               i == 1 ? ", \"logprobs\": 2" : "");
    spill(in_tmp("q.jsonl"), file, at);
    result one = RUN("generate", "-m", tiny(), "--jsonl", in_tmp("q.jsonl"), "-n", "7", "--logprobs", "0", "--temp", "1",
                     "--attn=santa-sys:S=8", "-o", "json"),
           two = RUN("generate", "-m", tiny(), "--jsonl", in_tmp("q.jsonl"), "-n", "7", "--logprobs", "0", "--temp", "1",
                     "--attn=santa-sys:S=8", "-np", "3");
    CHECK_INT(count_of(one.out, one.n_out, '\n'), N);
    for (int i = 0; i < N; i++) {
        char text[512], seq[16];
        json_t *a = line_of(&one, i), *b = line_of(&two, i);
        check_same_answer(a, b);
        CHECK_INT(whole(json_object_get(a, "group"), "size"), 1);
        CHECK_INT(whole(json_object_get(a, "group"), "index"), i);
        CHECK_INT(whole(json_object_get(b, "group"), "size"), N);
        const json_t *token = json_array_get(json_object_get(a, "logprobs"), 0);
        CHECK_INT(json_array_size(json_object_get(token, "top_logprobs")), i == 1 ? 2 : 0); // a line decides before the flag
        CHECK(whole(b, "n_prefill") >= whole(a, "n_prefill") && (i != 1 || whole(a, "n_prefill") == 0));
        // the same prompt alone
        snprintf(text, sizeof text, "%s %s", i < 2 ? "The sky is blue." : "The grass is green.", question);
        snprintf(seq, sizeof seq, "%d", i);
        char prefix[16];
        snprintf(prefix, sizeof prefix, "%lld", whole(b, "n_prefill"));
        result alone = RUN("generate", "-m", tiny(), "-p", text, "-n", "7", "--logprobs", i == 1 ? "2" : "0", "--temp", "1",
                           "--attn=santa-sys:S=8", "--seq-id", seq, "--dense-prefix", prefix, "-o", "json");
        json_t *c = line_of(&alone, 0);
        json_object_set(c, "index", json_object_get(a, "index")), json_object_set(c, "id", json_object_get(a, "id"));
        check_same_answer(c, b);
        json_decref(a), json_decref(b), json_decref(c);
    }
    spill(in_tmp("prompts"), "The sky\nThe grass\n", 18);
    result three = RUN("generate", "-m", tiny(), "--prompts", in_tmp("prompts"), "-n", "2", "--logprobs", "0");
    json_t *a = line_of(&one, 0), *b = line_of(&three, 1);
    check_same_keys(a, b);
    CHECK_INT(whole(b, "id"), 1);
    json_decref(a), json_decref(b);
    CHECK_HAS(one.err, "\ntotal: ");
    // answers of --parallel are one group, whose counts go up to the end of an answer; the first one takes part in all steps
    snprintf(file, sizeof file, "The sky\n%s\n", question);
    spill(in_tmp("prompts"), file, strlen(file));
    three = RUN("generate", "-m", tiny(), "--prompts", in_tmp("prompts"), "-np", "2", "-n", "12", "--temp", "0", "--stop", "13",
                "--ignore-eos");
    a = line_of(&three, 0), b = line_of(&three, 1);
    CHECK(whole(a, "n_decode") == 11 && whole(b, "n_decode") < 11);
    CHECK_INT(whole(json_object_get(a, "group"), "steps"), 11);
    CHECK(whole(json_object_get(b, "group"), "steps") < 11);
    CHECK(number(json_object_get(a, "group"), "decode_ms") == number(a, "decode_ms"));
    json_decref(a), json_decref(b);
    spill(in_tmp("prompts"), "The sky\nThe grass\n", 18);
    three = RUN("generate", "-m", tiny(), "--prompts", in_tmp("prompts"), "-n", "2", "--display-prompt");
    b = line_of(&three, 1);
    CHECK_STR(text_of(b, "prompt"), "<|begin_of_text|>The grass");
    json_decref(b);
}

// ---- log-probabilities ----

enum { TOP = 4 };

// Checks the tokens of an answer against the logits of a dense prefill of prompt and answer.
static void check_logprobs(const json_t *o, const char *device, double tolerance) {
    const json_t *prompt = json_object_get(o, "prompt_ids"), *ids = json_object_get(o, "ids");
    size_t n_prompt = json_array_size(prompt), n = json_array_size(ids);
    json_t *all = json_array(), *token;
    char npy[256];
    json_array_extend(all, (json_t *)prompt), json_array_extend(all, (json_t *)ids);
    snprintf(npy, sizeof npy, "%s", in_tmp("logits.npy"));
    result r = RUN("logits", "-m", tiny(), "--ids", save_ids("all", all), "-o", npy, "--device", device);
    CHECK_GOOD(r);
    test_array logits = test_read_npy(npy);
    size_t i;
    CHECK_INT(json_array_size(json_object_get(o, "logprobs")), n);
    json_array_foreach(json_object_get(o, "logprobs"), i, token) {
        const float *row = logits.data + (n_prompt + i - 1) * (size_t)logits.n_cols;
        double sum = 0, last = 0;
        for (int j = 0; j < logits.n_cols; j++) sum += exp(row[j]);
        int id = (int)whole(token, "id");
        CHECK_INT(id, json_integer_value(json_array_get(ids, i)));
        CHECK_NEAR(number(token, "logprob"), row[id] - log(sum), tolerance);
        const json_t *top = json_object_get(token, "top_logprobs");
        CHECK_INT(json_array_size(top), TOP);
        for (int j = 0; j < TOP; j++) {
            const json_t *x = json_array_get(top, (size_t)j);
            double at = number(x, "logprob");
            int better = 0; // tokens that are certainly more likely
            CHECK_NEAR(at, row[whole(x, "id")] - log(sum), tolerance);
            for (int k = 0; k < logits.n_cols; k++) better += row[k] - log(sum) > at + 2 * tolerance;
            CHECK(at <= last && better <= j);
            last = at;
        }
    }
    free(logits.data);
    json_decref(all);
}

// The bytes of the tokens are the bytes of the text.
static void check_bytes(const json_t *o) {
    char text[4096];
    size_t i, k, n = 0;
    json_t *token, *byte;
    json_array_foreach(json_object_get(o, "logprobs"), i, token) json_array_foreach(json_object_get(token, "bytes"), k, byte)
        text[n++] = (char)json_integer_value(byte);
    text[n] = 0;
    CHECK_STR(text, text_of(o, "text"));
}

static void check_device(const char *device, double tolerance) {
    static const char *const flags[][6] = {{"--temp", "0"},
                                           {"--temp", "1.7", "--repeat-penalty", "1.5", "--logit-bias", "310+3"}};
    for (int i = 0; i < 2; i++) {
        const char *args[32] = {"generate",         "-m", tiny(), "-p",         question, "-n",       "9",    "--ignore-eos",
                                "--display-prompt", "-o", "json", "--logprobs", "4",      "--device", device, NULL};
        for (int j = 0; j < 6 && flags[i][j]; j++) args[15 + j] = flags[i][j];
        result r = run_args(NULL, args);
        json_t *o = line_of(&r, 0);
        check_logprobs(o, device, tolerance);
        check_bytes(o);
        json_decref(o);
        // log-probabilities do not change the answer
        args[9] = "--no-perf", args[10] = "--perf", args[11] = args[12] = "--no-perf", args[8] = "--no-display-prompt";
        result plain = run_args(NULL, args);
        CHECK_GOOD(plain);
        o = line_of(&r, 0);
        CHECK_STR(plain.out, text_of(o, "text"));
        json_decref(o);
    }
}

// A prefill and decode steps sum in different orders, and K and V are rounded to bf16 after the sums. A sum that lies close to
// the middle of two bf16 numbers then rounds to the other one, which changed a log-probability by 0.005.
static void logprobs(void) {
    check_device("cpu", 0.02);
}

static void logprobs_gpu(void) {
    // Activations are bf16: a prefill and decode steps round them in different sums, 2^-9 of logits of about 30 in each of the
    // model's 4 layers. Logits of another position differ by more than 1.
    check_device("cuda", 0.5);
    spill(in_tmp("prompts"), "The sky is\nThe grass is very\nHello\n", 35);
    result one = RUN("generate", "-m", tiny(), "--prompts", in_tmp("prompts"), "-np", "3", "-n", "6", "--logprobs", "3",
                     "--device", "cuda"),
           two = RUN("generate", "-m", tiny(), "--prompts", in_tmp("prompts"), "-np", "1", "-n", "6", "--logprobs", "3",
                     "--device", "cuda");
    for (int i = 0; i < 3; i++) {
        json_t *a = line_of(&one, i), *b = line_of(&two, i);
        check_same_answer(a, b);
        json_decref(a), json_decref(b);
    }
}

// A token with a part of a character: the text is replaced, the bytes are exact.
static void parts_of_characters(void) {
    result id = RUN("tokenize", "-m", tiny(), "-p", "\xe2\x98\x83"); // a snowman: bytes without a token of their own
    CHECK_GOOD(id);
    CHECK(strchr(id.out, ',') != NULL);
    char bias[32];
    snprintf(bias, sizeof bias, "%d+100", atoi(id.out));
    result r = RUN("generate", "-m", tiny(), "-p", question, "-n", "2", "--logit-bias", bias, "-o", "json", "--logprobs", "1");
    json_t *o = line_of(&r, 0);
    const json_t *token = json_array_get(json_object_get(o, "logprobs"), 0), *bytes = json_object_get(token, "bytes");
    CHECK_STR(text_of(token, "token"), "\xef\xbf\xbd");
    CHECK_INT(json_integer_value(json_array_get(bytes, 0)), 0xe2);
    CHECK_STR(text_of(o, "text"), "\xef\xbf\xbd\xef\xbf\xbd");
    json_decref(o);
}

// A model without a tokenizer: ids and log-probabilities, no texts of tokens.
static void no_tokenizer(void) {
    result r = RUN("generate", "-m", "tests/goldens/gqa", "--random-prompt", "3", "-n", "2", "--load-format", "dummy", "-o",
                   "json", "--logprobs", "1", "--display-prompt", "--ignore-eos");
    json_t *o = line_of(&r, 0);
    const json_t *token = json_array_get(json_object_get(o, "logprobs"), 0);
    CHECK(json_is_null(json_object_get(token, "token")) && json_is_null(json_object_get(o, "prompt")));
    CHECK_INT(json_array_size(json_object_get(o, "prompt_ids")), 3);
    CHECK_STR(text_of(o, "model"), "gqa");
    json_decref(o);
}

static void errors(void) {
    static const struct {
        const char *args[6], *part;
    } cases[] = {
        {{"-p", "x", "--logprobs", "3"}, "flag --logprobs needs -o json, --jsonl FILE or --prompts FILE"},
        {{"-p", "x", "-o", "json", "--logprobs", "21"}, "--logprobs 21: expected a whole number from 0 to 20"},
        {{"-p", "x", "-o", "md"}, "-o md: expected one of text,json"},
        {{"--jsonl", "x", "-o", "text"}, "-o text cannot be used with --jsonl, which writes JSON"},
        {{"--prompts", "x", "-o", "text"}, "-o text cannot be used with --prompts, which writes JSON"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *args[12] = {"generate", "-m", tiny()};
        for (int j = 0; j < 6 && cases[i].args[j]; j++) args[3 + j] = cases[i].args[j];
        result r = run_args(NULL, args);
        check_error(&r, 2, cases[i].part);
    }
    static const char *const lines[] = {"21", "-1", "1.5", "true", "\"3\""};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char line[64];
        snprintf(line, sizeof line, "{\"prompt\": \"x\", \"logprobs\": %s}\n", lines[i]);
        result r = RUN_IN(line, "generate", "-m", tiny(), "--jsonl", "-", "-n", "1");
        check_error(&r, 1, "line 1: \"logprobs\": expected a whole number from 0 to 20");
    }
}

// ---- every field, from made-up counts ----

typedef struct made {
    cli_run run;
    cli_timeline t;
    cli_totals totals;
    cli_answer answer;
} made;

static int print_made(void *ctx, sl_error *e) {
    const made *m = ctx;
    return cli_answer_print(&m->answer, e);
}

static void want_prefill(fields *f, double density, double kept, double cra, double error, double most) {
    want(f, "prefill_density", density), want(f, "prefill_kept", kept), want(f, "prefill_cra", cra);
    want(f, "prefill_error", error), want(f, "prefill_error_max", most);
}

// The lines on stderr of the same answer.
static void check_lines(made *m) {
    char want[4096], path[256];
    size_t n;
    double bytes = (double)sl_model_decode_bytes(m->run.model) * (12 + 13) + 50;
    sl_attn_stats *stats = (sl_attn_stats *)sl_engine_attn_stats(m->run.engine);
    stats->steps = 8, stats->features = 6;
    m->run.load_ms = 7.5, m->t.prefill_flops = 3.1e9, m->t.n_prompt = 19;
    snprintf(path, sizeof path, "%s", in_tmp("lines"));
    FILE *f = fopen(path, "w");
    CHECK(f != NULL);
    cli_timeline_stats(&m->t, f);
    fclose(f);
    snprintf(
        want, sizeof want,
        "load: 7.50 ms\nprefill: 15.50 ms, 11 tokens, 709.68 tok/s, 200.0 GFLOP/s\nprefill_blocks: 32 of 256, 12.50%%\n"
        "prefill_kept: 12.50%% of the mass of a sampled row, at least\nprefill_cra: 6.25%% of the mass of a checked row, at "
        "least\n"
        "prefill_error: 15.5000 mean, 31.0000 at most, of 32 checked outputs\nfeed: 16.50 ms, 12 tokens, 727.27 tok/s\n"
        "decode: 26.00 ms, 13 steps, 500.00 tok/s\nbandwidth: %.2f GB/s, %.0f bytes a step\nk_rows: 10 of 100, 10.00%%\n"
        "v_rows: 20 of 160, 12.50%%\nv_distinct: 30 of 100, 30.00%%\nkv_bytes: 50 of 250, 20.00%%\n"
        "host_rows: 60 fetched, 70 of the hot rows, 53.85%% hits\nsamples: 40\nfeatures: 75.00%% of key features\n"
        "stated error: 6 of 8 layer-steps certified (75.00%%), mean 0.5, largest 0.75, 2 unbounded\nlogits: %016llx\n"
        "stopped: limit, 19 prompt tokens, 14 generated, 2 in the context; -n N sets another limit, -n -1 none\npeak_rss: ",
        bytes / (16.5 + 26) / 1e6, bytes / 25, (unsigned long long)cli_timeline_logits_hash(&m->t));
    const char *text = slurp(path, &n);
    if (strncmp(text, want, strlen(want))) FAIL("got\n%s\nexpected\n%s", text, want);
}

static void check_counters(const json_t *row, const sl_attn_stats *s) {
    const json_t *counters = json_object_get(row, "counters");
    size_t n = 0;
    double value;
    for (const char *name; (name = sl_attn_counter(s, (int)n, &value)); n++)
        CHECK_NEAR(json_number_value(json_object_get(counters, name)), value, 1e-9 * value);
    CHECK_INT(json_object_size(counters), n);
}

static void fields_of_answer(void) {
    static const sl_attn_stats none;
    char *args[] = {"-m", (char *)tiny(), "--device", "cpu", "-t", "1", "-c", "16", "--seed", "6", "--attn", "topk:k=4", "-q"};
    char hash[24];
    cli_options o;
    made m = {.totals = {2, 3, 4, 5, 6, 7, 8, 9.5, 10.5, 28}};
    sl_error e;
    CHECK_OK(cli_options_parse(&o, CLI_GENERATE, 13, args, &e), e);
    CHECK_OK(sl_source_open(o.run.model.path, &o.run.model.source, &e), e);
    CHECK_OK(cli_run_open(&m.run, &o.run, 1, &e), e);
    CHECK_OK(cli_timeline_open(&m.t, &m.run, 77, &e), e);
    CHECK_OK(cli_timeline_prefill(&m.t, (const int32_t[]){5, 6}, 2, &e), e);
    sl_attn_stats *stats = (sl_attn_stats *)sl_engine_attn_stats(m.run.engine);
    *stats = (sl_attn_stats){.k_rows = 10,
                             .v_rows = 20,
                             .v_distinct = 30,
                             .samples = 40,
                             .bytes = 50,
                             .fetched = 60,
                             .hits = 70,
                             .dense_k_rows = 100,
                             .dense_v_rows = 160,
                             .dense_bytes = 250,
                             .stated = 8,
                             .certified = 6,
                             .unbounded = 2,
                             .stated_units = 3ull * SL_STATED_UNIT,
                             .stated_most = 0.75};
    m.run.engine->prefill.reports[0] = (sl_prefill_report){3, 4, 1 << 23, 1 << 22, 2, 5, 4};
    sl_prefill_report heads[32];
    for (int i = 0; i < 32; i++) heads[i] = (sl_prefill_report){1, 8, 1 << 21, 1 << 20, 1, i, i};
    sl_prefill_report *own = m.t.prefill;
    m.t.prefill = heads;
    m.t.n_prefill = 11, m.t.n_feed = 12, m.t.n_decode = 13, m.t.n_sampled = 14;
    m.t.prefill_ms = 15.5, m.t.feed_ms = 16.5, m.t.decode_ms = 26, m.t.stopped = "limit", m.t.n_logprobs = -1;
    sl_text text = {.data = "made", .n = 4};
    sl_ids prompt = {.data = (int32_t[]){1, 2, 3}, .n = 3};
    cli_model_name name = {.name = "tiny"};
    json_t *id = json_string("line");
    m.answer = (cli_answer){
        .model = &name, .index = 21, .group = 22, .id = id, .prompt = &prompt, .text = &text, .t = &m.t, .totals = &m.totals};
    json_t *row = json_loads(capture(print_made, &m), JSON_REJECT_DUPLICATES, NULL);
    fields f = {.n = 0}, g = {.n = 0};
    want(&f, "index", 21), want_text(&f, "id", "line"), want_text(&f, "model", "tiny"), want_text(&f, "text", "made");
    want_list(&f, "ids"), want_text(&f, "stopped", "limit"), want(&f, "n_prompt", 3), want(&f, "n_prefill", 11),
        want(&f, "n_feed", 12);
    want(&f, "n_decode", 13), want(&f, "n_generated", 14), want(&f, "prefill_ms", 15.5), want(&f, "feed_ms", 16.5);
    want(&f, "decode_ms", 26), want(&f, "decode_tok_s", 500), want_text(&f, "attn", "topk:k=4"),
        want_text(&f, "attn_prefill", "dense");
    want(&f, "seed", 6), want(&f, "seq", 77), want_list(&f, "prefill_heads"), want_list(&f, "group"), want_list(&f, "counters");
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)cli_timeline_logits_hash(&m.t)), want_text(&f, "logits", hash);
    want_prefill(&f, 1 / 8.0, 1 / 8.0, 1 / 16.0, 15.5, 31);
    check_fields(row, &f, 1e-8);
    want(&g, "index", 22), want(&g, "size", 3), want(&g, "steps", 6), want(&g, "prefill_ms", 9.5), want(&g, "feed_ms", 10.5);
    want(&g, "decode_ms", 28), want(&g, "decode_tok_s", 250), want(&g, "k_rows_share", 0.1), want(&g, "v_rows_share", 0.125);
    want(&g, "v_distinct_share", 0.3), want(&g, "kv_bytes_share", 0.2), want(&g, "samples", 40), want(&g, "fetched_rows", 60);
    want(&g, "hot_rows", 70), want(&g, "layer_steps", 8), want(&g, "certified_share", 0.75), want(&g, "unbounded_share", 0.25);
    want(&g, "stated_error", 0.5), want(&g, "stated_error_max", 0.75), want_prefill(&g, 0.75, 0.5, 0.25, 2.5, 4);
    want_list(&g, "counters");
    check_fields(json_object_get(row, "group"), &g, 1e-8);
    check_counters(json_object_get(row, "group"), stats);
    check_counters(row, &none);
    json_decref(row), json_decref(id);
    check_lines(&m);
    m.t.prefill = own;
    cli_timeline_close(&m.t);
    cli_run_close(&m.run);
    cli_options_free(&o);
}

static const test_case cases[] = {
    {"fields", NEEDS_NOTHING, fields_of_answer},
    {"same-as-text", NEEDS_NOTHING, same_as_text},
    {"ends", NEEDS_NOTHING, ends},
    {"one-schema", NEEDS_NOTHING, one_schema},
    {"logprobs", NEEDS_NOTHING, logprobs},
    {"logprobs-gpu", NEEDS_GPU, logprobs_gpu},
    {"parts-of-characters", NEEDS_NOTHING, parts_of_characters},
    {"no-tokenizer", NEEDS_NOTHING, no_tokenizer},
    {"errors", NEEDS_NOTHING, errors},
    {0},
};
extern const test_suite suite_cli_answer;
const test_suite suite_cli_answer = {"cli_answer", cases};
