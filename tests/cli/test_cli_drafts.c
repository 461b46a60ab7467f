// tests/cli/test_cli_drafts.c - --draft end to end: each command prints what it prints without drafts. The counts of drafts
// agree with each other. Commands that cannot have drafts refuse them.
#include "tests/support/gpu.h"
#include "tests/support/run_cli.h"

#include <math.h>
#include <stdlib.h>

static const char prompt[] = "The harbor is quiet. The boats are red. The harbor is quiet. The boats are red. The harbor is";
static const char *const drafts[] = {"ngram:min=2:least=4", "self:least=2:most=3:attn=topk:k=40",
                                     "ngram:min=2+self:least=1:attn=santa-is:S=64", "auto",
                                     "self:least=2:most=3:attn=topk:k=40:weights=int4"};
enum { N_DRAFTS = sizeof drafts / sizeof *drafts };
static const char *device = "cpu";

static json_int_t whole(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    if (!json_is_integer(v)) FAIL("%s: expected an integer", key);
    return json_integer_value(v);
}

static double sum_of(const json_t *list) {
    double sum = 0;
    for (size_t i = 0; i < json_array_size(list); i++) sum += json_number_value(json_array_get(list, i));
    return sum;
}

// The fields of an answer that drafts must not change.
static void check_answer(const json_t *got, const json_t *want, const char *draft) {
    static const char *const keys[] = {"index", "text", "ids",         "stopped", "n_prompt", "n_prefill", "n_feed",
                                       "attn",  "seed", "n_generated", "seq",     "logits",   "logprobs"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *a = json_object_get(got, keys[i]), *b = json_object_get(want, keys[i]);
        if (a != b && !json_equal((json_t *)a, (json_t *)b)) FAIL("%s: the field %s differs", draft, keys[i]);
    }
}

// The counts of drafts, against the steps and the tokens of the answer.
static void check_counts(const json_t *got, const json_t *want, const char *draft, int most) {
    const json_t *d = json_object_get(got, "drafts"), *places = json_object_get(d, "accepted_at");
    CHECK(!json_object_get(want, "drafts"));
    CHECK_STR(json_string_value(json_object_get(d, "draft")), draft);
    CHECK_INT(whole(d, "steps"), whole(got, "n_decode"));
    CHECK(whole(d, "draft_steps") <= whole(d, "steps") && whole(d, "ngram_steps") <= whole(d, "draft_steps"));
    CHECK(whole(d, "accepted") <= whole(d, "drafted") && whole(d, "drafted") <= most * whole(d, "draft_steps"));
    CHECK_INT(json_array_size(places), most);
    CHECK(sum_of(places) == (double)whole(d, "accepted"));
    for (int i = 0; i + 1 < most; i++)
        CHECK(json_integer_value(json_array_get(places, (size_t)i + 1)) <=
              json_integer_value(json_array_get(places, (size_t)i)));
    // An end token may be an accepted draft. It needs no step without drafts either.
    json_int_t made = whole(got, "n_decode") + whole(d, "accepted"), steps = whole(want, "n_decode");
    CHECK(made == steps || (made == steps + 1 && !strcmp(json_string_value(json_object_get(got, "stopped")), "eos")));
    CHECK_NEAR(number(got, "decode_tok_s") * number(got, "decode_ms"), 1e3 * (double)steps, 1e-2);
}

static int most_of(const char *draft) {
    return strstr(draft, "most=3") ? 3 : 8;
}

// Greedy and sampled, with log-probabilities.
static void generate(void) {
    static const char *const temps[] = {"0", "0.7"};
    json_int_t accepted = 0;
    for (int i = 0; i < 2 * N_DRAFTS; i++) {
        const char *draft = drafts[i % N_DRAFTS], *temp = temps[i / N_DRAFTS];
        result plain = RUN("generate", "-m", tiny(), "--device", device, "-p", prompt, "-n", "48", "--temp", temp, "-o", "json",
                           "--logprobs", "2", "--seed", "5"),
               own = RUN("generate", "-m", tiny(), "--device", device, "-p", prompt, "-n", "48", "--temp", temp, "-o", "json",
                         "--logprobs", "2", "--seed", "5", "--draft", draft);
        json_t *want = document(&plain), *got = document(&own);
        check_answer(got, want, draft);
        check_counts(got, want, draft, most_of(draft));
        accepted += whole(json_object_get(got, "drafts"), "accepted");
        CHECK_HAS(own.err, "\ndrafts: ");
        CHECK_HAS(own.err, "tokens a pass");
        CHECK_LACKS(plain.err, "\ndrafts: ");
        json_decref(want), json_decref(got);
    }
    CHECK(accepted > 40);
}

// The text goes to the terminal step by step. Stop strings, grammars and set-up B work with drafts. A model without a tokenizer
// prints the ids of all tokens of a step.
static void texts(void) {
    static const char *const more[][2] = {
        {"--ignore-eos", "-q"}, {"--stop", "boats"}, {"--regex", "[a-z ]{40,60}\\."}, {"--dense-prefix", "9"}};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        for (int j = 0; j < N_DRAFTS; j += 2) {
            result plain = RUN("generate", "-m", tiny(), "--device", device, "-p", prompt, "-n", "40", "--temp", "0.5",
                               more[i][0], more[i][1]),
                   own = RUN("generate", "-m", tiny(), "--device", device, "-p", prompt, "-n", "40", "--temp", "0.5",
                             more[i][0], more[i][1], "--draft", drafts[j]);
            CHECK_GOOD(plain);
            if (i)
                check_same(&own, &plain);
            else
                CHECK_STR(own.out, plain.out);
        }
    if (strcmp(device, "cpu")) return; // no GPU offers heads of 16 numbers
    static const char config[] =
        "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,"
        "\"num_key_value_heads\":2,\"intermediate_size\":96,\"vocab_size\":8,\"max_position_embeddings\":256}";
    spill(in_tmp("config.json"), config, strlen(config));
    result plain = RUN("generate", "-m", test_tmp(), "--load-format", "dummy", "--device", device, "--random-prompt", "60",
                       "-n", "70", "--temp", "0.3"),
           own = RUN("generate", "-m", test_tmp(), "--load-format", "dummy", "--device", device, "--random-prompt", "60", "-n",
                     "70", "--temp", "0.3", "--draft", "ngram:min=1:least=6");
    CHECK_GOOD(plain);
    CHECK_INT(count_of(plain.out, plain.n_out, ' '), 69);
    check_same(&own, &plain);
}

// Batches on the scheduler, and --jsonl line by line.
static void many(void) {
    static const char lines[] =
        "{\"prompt\": \"The harbor is quiet. The boats are red. The harbor is quiet. The boats\"}\n"
        "{\"context\": \"one two three one two three one two\", \"question\": \" three one\", \"seq\": 7}\n"
        "{\"prompt\": \"a b c d e f g a b c d e f g a b\", \"attn\": \"santa-prop:S=16\"}\n";
    spill(in_tmp("lines"), lines, strlen(lines));
    for (int i = 0; i < 4; i++) {
        const char *draft = drafts[i], *parallel = i % 2 ? "--parallel=2" : "--perf";
        result plain = RUN("generate", "-m", tiny(), "--device", device, "--jsonl", in_tmp("lines"), "-n", "30", parallel),
               own = RUN("generate", "-m", tiny(), "--device", device, "--jsonl", in_tmp("lines"), "-n", "30", parallel,
                         "--draft", draft);
        char *rest_got, *rest_want, *got_line = NULL, *want_line = NULL;
        CHECK_GOOD(plain);
        CHECK_GOOD(own);
        CHECK_HAS(own.err, "\ndrafts: ");
        for (int j = 0; j < 3; j++) {
            got_line = strtok_r(j ? NULL : own.out, "\n", &rest_got);
            want_line = strtok_r(j ? NULL : plain.out, "\n", &rest_want);
            CHECK(got_line && want_line);
            json_t *got = json_loads(got_line, 0, NULL), *want = json_loads(want_line, 0, NULL);
            check_answer(got, want, draft);
            check_counts(got, want, draft, most_of(draft));
            CHECK(whole(json_object_get(got, "group"), "steps") >= whole(got, "n_decode"));
            json_decref(got), json_decref(want);
        }
    }
}

// A session file is equal with drafts and without, and answers that begin with it have the drafts of any source.
static void prompt_cache(void) {
    result plain = RUN("generate", "-m", tiny(), "--device", device, "-p", prompt, "-n", "40", "--ignore-eos", "--temp", "0.5");
    for (int i = 0; i < N_DRAFTS; i++) {
        result own = RUN("generate", "-m", tiny(), "--device", device, "-p", prompt, "-n", "40", "--ignore-eos", "--temp",
                         "0.5", "--prompt-cache", in_tmp("cache"), "--draft", drafts[i]);
        CHECK_HAS(own.err, i ? " tokens from " : " tokens to ");
        check_same(&plain, &own);
    }
}

static void chat(void) {
    static const char input[] = "say a b c a b c a b c\nand again\n/stats\n";
    result plain =
               RUN_IN(input, "chat", "-m", tiny(), "--chat-template", "zephyr", "--device", device, "-n", "40", "--seed", "2"),
           own = RUN_IN(input, "chat", "-m", tiny(), "--chat-template", "zephyr", "--device", device, "-n", "40", "--seed", "2",
                        "--draft", "ngram:min=2:least=3");
    CHECK_GOOD(plain);
    check_same(&own, &plain);
    CHECK_HAS(own.err, "\ndrafts: ");
}

// The answers of an eval, which its records hold.
static void eval(void) {
    static const char *const keys[] = {"attn", "answer", "score", "n_prompt", "n_generated", "stopped"};
    for (int i = 0; i < 2; i++) {
        result r = RUN("eval", "-m", tiny(), "--device", device, "--task", "niah-single,qa-2hop", "--length", "512",
                       "--samples", "2", "--attn", "dense,topk:k=64", "--out", in_tmp(i ? "own" : "plain"), "--draft",
                       i ? "ngram:min=1:least=2" : "none");
        CHECK_GOOD(r);
    }
    size_t n;
    char *plain = slurp(in_tmp("plain"), &n), *own = slurp(in_tmp("own"), &n), *rest_plain, *rest_own;
    int n_lines = 0;
    char *a = strtok_r(plain, "\n", &rest_plain), *b = strtok_r(own, "\n", &rest_own);
    while ((a = strtok_r(NULL, "\n", &rest_plain)) && (b = strtok_r(NULL, "\n", &rest_own))) { // behind the settings
        json_t *want = json_loads(a, 0, NULL), *got = json_loads(b, 0, NULL);
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
            const json_t *x = json_object_get(got, keys[i]), *y = json_object_get(want, keys[i]);
            if (!y || !json_equal((json_t *)x, (json_t *)y)) FAIL("the field %s: %s, without drafts %s", keys[i], b, a);
        }
        json_decref(want), json_decref(got);
        n_lines++;
    }
    CHECK_INT(n_lines, 8);
    CHECK(!a);
}

static void errors(void) {
    static const struct {
        const char *draft, *flag, *value, *part;
    } cases[] = {
        {"ngrams", "-n", "1", "--draft ngrams: unknown source; expected ngram"},
        {"ngram:most=16", "-n", "1", "--draft ngram:most=16: "},
        {"self:attn=foo", "-n", "1", "--draft: attn foo: unknown method"},
        {"ngram", "--stats", "x.jsonl", "--draft ngram: expected no --stats"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        result r = RUN("generate", "-m", tiny(), "--device", device, "-p", "a", "--draft", cases[i].draft, cases[i].flag,
                       cases[i].value);
        check_error(&r, 2, cases[i].part);
    }
    result r =
        RUN("generate", "-m", tiny(), "--device", device, "-p", "a", "--draft", "ngram", "--attn", "santa-pps:epsilon=0.2");
    check_error(&r, 1, "--draft: --attn santa-pps keeps a state from step to step (layer 0)");
    r = RUN("generate", "-m", tiny(), "--device", device, "-p", "a", "--draft", "self:attn=santa-pps:epsilon=0.2");
    check_error(&r, 1, "--draft: --attn santa-pps keeps a state from step to step");
    r = RUN("generate", "-m", tiny(), "--device", device, "-p", "a", "--draft", "model");
    check_error(&r, 2, "--draft model needs --draft-model DIR");
    r = RUN("generate", "-m", tiny(), "--device", device, "-p", "a", "--draft", "ngram", "--draft-model", tiny());
    check_error(&r, 2, "flag --draft-model needs --draft model");
    r = RUN("generate", "-m", tiny(), "--device", device, "-p", "a", "--draft", "model", "--draft-model", "no-such");
    check_error(&r, 1, "--draft-model no-such: there is no such folder");
    r = RUN("generate", "-m", tiny(), "--device", device, "-p", "a", "--draft", "model", "--draft-model", "prose");
    check_error(&r, 2, "--draft-model prose: a vocabulary of 8192 tokens; expected 1024");
    r = RUN("perplexity", "-m", tiny(), "--draft", "ngram");
    check_error(&r, 2, "flag --draft does not belong to this command");
    r = RUN("generate", "-m", tiny(), "-p", "a", "--draft-max", "8");
    check_error(&r, 2, "--draft ngram:least=N:most=N");
    r = RUN("bench", "-m", tiny(), "--draft", "ngram");
    check_error(&r, 2, "flag --draft belongs to `sleigh bench draft`");
    r = RUN("bench", "draft", "-m", tiny(), "--batch", "2,4");
    check_error(&r, 2, "bench draft: --batch: expected one number");
    r = RUN("bench", "draft", "-m", tiny(), "--batch", "2", "--draft", "ngram");
    check_error(&r, 2, "bench draft: --batch 2: texts have one sequence; expected no --draft with it");
    r = RUN("bench", "draft", "-m", tiny(), "--ragged");
    check_error(&r, 2, "bench draft: expected no flag --ragged");
    r = RUN("generate", "-m", tiny(), "--device", device, "-p", "a", "--draft", "self:weights=int3");
    check_error(&r, 2, "or weights is not int4, int8 or fp8; expected ngram");
    r = RUN("generate", "-m", tiny(), "--device", device, "-p", "a", "--draft", "self:attn=dense:weights=int3");
    check_error(&r, 2, "weights= must be given once, as int4, int8 or fp8; expected ngram");
    r = RUN("generate", "-m", tiny(), "--device", device, "-p", "a", "--draft", "self:weights=int4:attn=dense:weights=int4");
    check_error(&r, 2, "weights= must be given once, as int4, int8 or fp8; expected ngram");
    r = RUN("generate", "-m", tiny(), "--device", device, "-p", "a", "--weights", "int4", "--draft", "self:weights=int4");
    check_error(&r, 2, "--draft weights=int4: the weights of tiny are int4 already (--weights); expected another format");
    char folder[300];
    snprintf(folder, sizeof folder, "%s/int8", test_tmp());
    r = RUN("quantize", "-m", tiny(), "--out", folder, "--weights", "int8");
    CHECK_GOOD(r);
    r = RUN("generate", "-m", folder, "--device", device, "-p", "a", "--draft", "self:weights=int4");
    check_error(&r, 2, "the weights of int8 are quantised already (compressed-tensors); expected plain weights");
    r = RUN("bench", "draft", "-m", tiny(), "--draft", "self:weights=int4,self:weights=int8");
    check_error(&r, 2, "--draft: weights=int4 and weights=int8: expected one format of all drafts");
    r = RUN("bench", "draft", "-m", tiny(), "--draft", "ngram,x");
    check_error(&r, 2, "--draft x: unknown source");
}

// The model drafts for itself: of five tokens, a step makes nearly all.
static void draft_model(void) {
    result plain = RUN("generate", "-m", tiny(), "--device", device, "-p", prompt, "-n", "60", "-o", "json", "--ignore-eos"),
           own = RUN("generate", "-m", tiny(), "--device", device, "-p", prompt, "-n", "60", "-o", "json", "--ignore-eos",
                     "--draft", "model:least=4:most=4", "-md", tiny());
    json_t *want = document(&plain), *got = document(&own);
    check_answer(got, want, "model:least=4:most=4");
    check_counts(got, want, "model:least=4:most=4", 4);
    CHECK(whole(json_object_get(got, "drafts"), "accepted") > 36);
    json_decref(want), json_decref(got);
}

// The variable, the word none, and what the shell completes.
static void words(void) {
    result r =
        RUN_SHELL("SLEIGH_DRAFT=ngram exec \"$0\" \"$@\"", "generate", "-m", tiny(), "--device", device, "-p", "a", "-n", "3");
    CHECK_GOOD(r);
    CHECK_HAS(r.err, "\ndrafts: ");
    r = RUN_SHELL("SLEIGH_DRAFT=ngram exec \"$0\" \"$@\"", "generate", "-m", tiny(), "--device", device, "-p", "a", "-n", "3",
                  "--draft", "none");
    CHECK_GOOD(r);
    CHECK_LACKS(r.err, "\ndrafts: ");
    r = RUN("help", "--bash");
    CHECK_HAS(r.out, "--draft) words='ngram self model ngram+self ngram+model auto none' ;;");
    CHECK_HAS(r.out, "decode attn draft linear ");
}

static void bench(void) {
    result r = RUN("bench", "draft", "-m", tiny(), "--device", device, "-d", "600,0", "-n", "24", "-r", "2", "--attn",
                   "dense,topk:k=32", "--draft", "ngram:least=2,self:least=1:attn=topk:k=64", "-o", "json");
    CHECK_GOOD(r);
    json_t *rows = document(&r);
    static const char *const tests[] = {"1 row", "2 rows", "3 rows", "5 rows", "9 rows", "text"};
    CHECK_INT(json_array_size(rows), 2 * 2 * 8);
    for (size_t i = 0; i < 32; i++) {
        const json_t *row = json_array_get(rows, i);
        CHECK_INT(whole(row, "depth"), i < 16 ? 1 : 512);
        CHECK(number(row, "ms") > 0);
        if (i % 8 < 6) CHECK_STR(json_string_value(json_object_get(row, "test")), tests[i % 8]);
        if (i % 8 < 5) CHECK(number(row, "ratio") > 0 && json_is_null(json_object_get(row, "speedup")));
        if (i % 8 == 0) CHECK(number(row, "ratio") == 1 && whole(row, "rows") == 1);
        if (i % 8 == 5) CHECK(number(row, "speedup") == 1 && number(row, "step_tokens") == 1);
        if (i % 8 == 7)
            CHECK(number(row, "step_tokens") > 1 && number(row, "acceptance") > 0 && number(row, "acceptance") <= 1);
        CHECK(json_is_array(json_object_get(row, "accepted_at")) == (i % 8 > 5));
        if (i % 8 > 5) {
            double plain = number(json_array_get(rows, i / 8 * 8 + 5), "ms");
            CHECK_NEAR(number(row, "speedup"), plain / number(row, "ms"), 1e-6);
        }
    }
    json_decref(rows);
    r = RUN("bench", "draft", "-m", tiny(), "--device", device, "-d", "512", "--fill", "random", "-r", "1");
    CHECK_GOOD(r);
    CHECK_HAS(r.out, "| 512 | dense | 9 rows |");
    r = RUN("bench", "draft", "-m", tiny(), "--device", device, "-d", "512", "-b", "2", "--fill", "random", "-r", "1");
    CHECK_GOOD(r);
    CHECK_HAS(r.out, "| 512 | 2 | dense | 9 rows |");
}

#ifdef SLEIGH_CUDA
static void on_gpu(void (*fn)(void)) {
    device = "cuda";
    fn();
    device = "cpu";
}

static void generate_gpu(void) {
    on_gpu(generate);
}
static void texts_gpu(void) {
    on_gpu(texts);
}
static void many_gpu(void) {
    on_gpu(many);
}
static void draft_model_gpu(void) {
    on_gpu(draft_model);
}
static void bench_gpu(void) {
    on_gpu(bench);
}

// A method that no GPU offers is refused by name. With --device auto, the run takes the CPU, and a line says why.
static void methods_gpu(void) {
    static const char draft[] = "self:least=1:attn=magicpig";
    result r = RUN("generate", "-m", tiny(), "--device", "cuda", "-p", "a", "-n", "3", "--draft", draft);
    check_error(&r, 1, "magicpig: not offered on a GPU");
    r = RUN("generate", "-m", tiny(), "--device", "auto", "-p", "a", "-n", "3", "--draft", draft);
    CHECK_GOOD(r);
    CHECK_HAS(r.err, "device: cpu, because a GPU does not offer magicpig");
    static const char *const pps[][2] = {{"santa-pps:budget=even", "ngram"},
                                         {"dense", "self:least=1:attn=santa-pps:budget=even"}};
    for (int i = 0; i < 2; i++) { // a GPU keeps its norms, a CPU keeps no state
        r = RUN("generate", "-m", tiny(), "--device", "auto", "-p", "a", "-n", "3", "--attn", pps[i][0], "--draft", pps[i][1]);
        CHECK_GOOD(r);
        CHECK_HAS(r.err, "device: cpu, because a GPU does not offer santa-pps with --draft\n");
        r = RUN("generate", "-m", tiny(), "--device", "cuda", "-p", "a", "-n", "3", "--attn", pps[i][0], "--draft", pps[i][1]);
        check_error(&r, 1, "santa-pps keeps a state from step to step");
    }
    r = RUN("generate", "-m", tiny(), "--device", "auto", "-p", "a", "-n", "3", "--draft", "auto");
    CHECK_GOOD(r);
    CHECK_LACKS(r.err, "device: cpu");
    r = RUN("generate", "-m", tiny(), "--device", "auto", "-p", "a", "-n", "3", "--draft", "model:attn=santa-pps:budget=even",
            "-md", tiny()); // its sessions may keep a state
    CHECK_GOOD(r);
    CHECK_LACKS(r.err, "device: cpu");
}
#endif

static const test_case cases[] = {
    {"generate", NEEDS_NOTHING, generate},
    {"texts", NEEDS_NOTHING, texts},
    {"many", NEEDS_NOTHING, many},
    {"prompt-cache", NEEDS_NOTHING, prompt_cache},
    {"chat", NEEDS_NOTHING, chat},
    {"eval", NEEDS_NOTHING, eval},
    {"errors", NEEDS_NOTHING, errors},
    {"words", NEEDS_NOTHING, words},
    {"draft_model", NEEDS_NOTHING, draft_model},
    {"bench", NEEDS_NOTHING, bench},
    GPU_CASE("generate-gpu", generate_gpu),
    GPU_CASE("texts-gpu", texts_gpu),
    GPU_CASE("many-gpu", many_gpu),
    GPU_CASE("draft-model-gpu", draft_model_gpu),
    GPU_CASE("bench-gpu", bench_gpu),
    GPU_CASE("methods-gpu", methods_gpu),
    {0},
};
const test_suite suite_cli_drafts = {"cli_drafts", cases};
