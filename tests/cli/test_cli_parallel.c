// tests/cli/test_cli_parallel.c - generate --parallel end to end: the answer to a line does not depend on the other lines.
#include "cli/generate/answer.h"
#include "tests/support/run_cli.h"

#include <jansson.h>
#include <stdlib.h>

enum { N_PROMPTS = 7 };

// Prompts of different lengths around a page boundary. The model ends its answer to the last one by itself.
static const char *prompt(int i) {
    static const int sentences[N_PROMPTS] = {1, 9, 3, 20, 2, 13, 0};
    static char text[4096];
    if (sentences[i] == 0) return question;
    snprintf(text, sizeof text, "%.4000s", long_text(sentences[i]));
    for (char *p = text; *p; p++)
        if (*p == '\n') *p = ' ';
    return text;
}

static const char *write_prompts(void) {
    char file[32768];
    size_t at = 0;
    for (int i = 0; i < N_PROMPTS; i++)
        at += (size_t)snprintf(file + at, sizeof file - at, i == 3 ? "\n%s\r\n" : "%s\n", prompt(i));
    spill(in_tmp("prompts.txt"), file, at);
    return in_tmp("prompts.txt");
}

typedef struct answer {
    char text[1024], stopped[32], logits[24];
    int index, n_prompt, n_prefill, n_generated, steps;
    double decode_ms;
} answer;

static int integer(const json_t *o, const char *key) {
    if (!json_is_integer(json_object_get(o, key))) FAIL("no number \"%s\"", key);
    return (int)json_integer_value(json_object_get(o, key));
}

static int count_lines(const char *text) {
    int n = 0;
    for (; *text; text++) n += *text == '\n';
    return n;
}

static answer answer_of(const result *r, int line) {
    const char *text = r->out;
    for (int i = 0; i < line && text; i++) text = strchr(text, '\n') ? strchr(text, '\n') + 1 : NULL;
    json_error_t e;
    json_t *o = text ? json_loads(text, JSON_DISABLE_EOF_CHECK, &e) : NULL;
    if (!o) FAIL("line %d of the output is no JSON: %s", line, text ? text : "(none)");
    const json_t *group = json_object_get(o, "group");
    answer a = {.index = integer(o, "index"),
                .n_prompt = integer(o, "n_prompt"),
                .n_prefill = integer(o, "n_prefill"),
                .n_generated = integer(o, "n_generated"),
                .steps = integer(group, "steps"),
                .decode_ms = json_real_value(json_object_get(o, "decode_ms"))};
    snprintf(a.text, sizeof a.text, "%s", json_string_value(json_object_get(o, "text")));
    snprintf(a.stopped, sizeof a.stopped, "%s", json_string_value(json_object_get(o, "stopped")));
    snprintf(a.logits, sizeof a.logits, "%s", json_string_value(json_object_get(o, "logits")));
    CHECK(json_real_value(json_object_get(group, "prefill_ms")) > 0 && a.decode_ms >= 0);
    CHECK_INT(integer(group, "index"), 0);
    CHECK_INT(integer(group, "size"), count_lines(r->out));
    json_decref(o);
    return a;
}

// Runs all prompts in batches, and each prompt without a batch, with these flags. Returns how many generations ended for
// `reason`.
static int same_as_alone(const char *parallel, const char *const *flags, const char *reason) {
    const char *args[32] = {"generate", "-m",        tiny(),          "-c",  "2k",    "--seq-id",
                            "5",        "--prompts", write_prompts(), "-np", parallel};
    int n = 11, found = 0;
    for (; *flags; flags++) args[n++] = *flags;
    result all = run_args(NULL, args);
    CHECK_GOOD(all);
    CHECK_INT(count_lines(all.out), N_PROMPTS);
    for (int i = 0; i < N_PROMPTS; i++) {
        char seq[16], buf[256], want[64];
        snprintf(seq, sizeof seq, "%d", 5 + i);
        args[6] = seq, args[7] = "-p", args[8] = prompt(i), args[9] = "-t", args[10] = "2";
        result alone = run_args(NULL, args);
        CHECK_GOOD(alone);
        answer a = answer_of(&all, i);
        if (strcmp(a.text, alone.out)) FAIL("line %d in batches of %s: \"%s\", alone \"%s\"", i, parallel, a.text, alone.out);
        snprintf(want, sizeof want, "%s, %d prompt tokens, %d generated", a.stopped, a.n_prompt, a.n_generated);
        CHECK_HAS(stat_line(&alone, "stopped", buf), want);
        CHECK_HAS(stat_line(&alone, "logits", buf), a.logits);
        CHECK_INT(a.index, i);
        found += !strcmp(a.stopped, reason);
    }
    return found;
}

#define SAME(parallel, reason, ...) same_as_alone(parallel, (const char *const[]){__VA_ARGS__, NULL}, reason)

static void equal_to_alone(void) {
    CHECK_INT(SAME("3", "limit", "-n", "12"), N_PROMPTS); // greedy, from generation_config.json
    CHECK_INT(SAME("7", "limit", "-n", "10", "--ignore-eos", "--attn=santa-pps:S=12:budget=carried"), N_PROMPTS);
    CHECK_INT(SAME("3", "limit", "-n", "10", "--ignore-eos", "--attn=santa-pps:epsilon=0.3:certify=layer:on-miss=dense"),
              N_PROMPTS);
    CHECK(SAME("2", "limit", "-n", "16", "--temp", "1.2", "--repeat-penalty", "1.1") > 0);
    // some sequences end early; the batch continues
    CHECK(SAME("4", "eos", "-n", "24", "--temp", "1.5", "--min-p", "0", "--top-k", "0", "--logit-bias", "1012+12") > 0);
    CHECK(SAME("3", "eos", "-n", "24", "--temp", "1.5", "--min-p", "0", "--top-k", "0", "--logit-bias", "1012+12", "--seed",
               "3", "--attn=santa-prop:S=12") > 0);
    CHECK(SAME("4", "stop string", "-n", "40", "--ignore-eos", "--stop", "is", "--attn=santa-prop:S=12") > 0);
    CHECK_INT(SAME("5", "limit", "-n", "0"), N_PROMPTS);
    CHECK_INT(SAME("2", "limit", "-n", "1", "--ignore-eos"), N_PROMPTS);
    CHECK(SAME("3", "limit", "-n", "8", "--chat", "--chat-template", "llama3", "-sys", "Be kind.") > 0);
}

// Lines with a common beginning share its full pages, whose rows are prefilled once. No bit of an answer changes.
static void shared(void) {
    enum { N = 4 };
    static const int sentences[N] = {60, 60, 40, 60};
    static const char *const ends[N] = {" House 3:", " House 5:", " House 3:", " House 3:"};
    char file[32768];
    int n_prefill = 0, n_whole = 0;
    size_t at = 0;
    for (int i = 0; i < N; i++) {
        json_t *line = json_pack("{s:s, s:s}", "context", long_text(sentences[i]), "question", ends[i]);
        char *text = json_dumps(line, 0);
        at += (size_t)snprintf(file + at, sizeof file - at, "%s\n", text);
        free(text);
        json_decref(line);
    }
    spill(in_tmp("shared.jsonl"), file, at);
    result all = RUN("generate", "-m", tiny(), "--jsonl", in_tmp("shared.jsonl"), "-c", "2k", "-n", "6", "--ignore-eos", "-np",
                     "3"),
           one = RUN("generate", "-m", tiny(), "--jsonl", in_tmp("shared.jsonl"), "-c", "2k", "-n", "6", "--ignore-eos");
    CHECK_GOOD(all);
    CHECK_GOOD(one);
    const char *alone = one.out;
    for (int i = 0; i < N; i++, alone = strchr(alone, '\n') + 1) {
        answer a = answer_of(&all, i);
        json_t *want = json_loads(alone, JSON_DISABLE_EOF_CHECK, NULL);
        CHECK_STR(a.logits, json_string_value(json_object_get(want, "logits")));
        CHECK_STR(a.text, json_string_value(json_object_get(want, "text")));
        json_decref(want);
        CHECK(i == 0 || a.n_prefill < 256); // all lines begin with the sentences of line 2
        n_prefill += a.n_prefill, n_whole += a.n_prompt;
    }
    CHECK(n_prefill < n_whole / 2);
    CHECK_INT(stat_count(&all, "prefill"), n_prefill);
}

static void context_full(void) { // the longest sequence fills its context and ends; the others continue
    write_prompts();
    result r =
        RUN("generate", "-m", tiny(), "--prompts", in_tmp("prompts.txt"), "-np", "7", "--ignore-eos", "-n", "-1", "-c", "500");
    CHECK_GOOD(r);
    for (int i = 0; i < N_PROMPTS; i++) {
        answer a = answer_of(&r, i);
        CHECK_STR(a.stopped, "context full");
        CHECK_INT(a.n_prompt + a.n_generated, 501);
    }
}

static void report(void) {
    char buf[256];
    result r = RUN("generate", "-m", tiny(), "--prompts", write_prompts(), "-np", "3", "-n", "9", "--ignore-eos", "-c", "2k");
    CHECK_GOOD(r);
    CHECK_HAS(r.err, "parallel: 7 prompts, 3 at a time");
    CHECK_INT(stat_count(&r, "decode"), N_PROMPTS * 8);
    CHECK_HAS(stat_line(&r, "step", buf), ", 26 steps, 2.15 sequences a step");
    CHECK_HAS(stat_line(&r, "total", buf), ", 7 prompts in 1 group, 63 tokens generated, ");
    CHECK_INT(answer_of(&r, N_PROMPTS - 1).steps, 26);
    result quiet = RUN("generate", "-m", tiny(), "--prompts", in_tmp("prompts.txt"), "-n", "1", "--no-perf");
    CHECK_GOOD(quiet);
    CHECK_LACKS(quiet.err, "step:");
    result piped = RUN_IN("The grass\nThe sky\n", "generate", "-m", tiny(), "--prompts", "-", "-np", "2", "-n", "4");
    CHECK_GOOD(piped);
    CHECK_INT(count_lines(piped.out), 2);
}

// The totals of two groups, and their lines. The sequences of a group share its steps.
static void totals(void) {
    static const char want[] =
        "load: 7.50 ms\nprefill: 120.00 ms, 30 tokens, 250.00 tok/s\nfeed: 24.00 ms, 6 tokens, 250.00 tok/s\n"
        "decode: 160.00 ms, 40 tokens, 250.00 tok/s\n"
        "step: 6.400 ms per step of a sequence, 25 steps, 1.60 sequences a step\n"
        "token: 4.000 ms per token of the whole batch\n"
        "total: 304.00 ms, 3 prompts in 2 groups, 44 tokens generated, 144.74 tok/s\npeak_rss: ";
    const cli_timeline of = {
        .n_prefill = 20, .n_feed = 3, .n_decode = 5, .n_sampled = 6, .prefill_ms = 60, .feed_ms = 12, .decode_ms = 60};
    cli_totals all = {0}, two = cli_totals_of(&of),
               one = {.n_groups = 1,
                      .n_prompts = 2,
                      .n_prefill = 10,
                      .n_feed = 3,
                      .n_steps = 20,
                      .n_decode = 35,
                      .n_generated = 38,
                      .prefill_ms = 60,
                      .feed_ms = 12,
                      .decode_ms = 100};
    CHECK(two.n_steps == 5 && two.decode_ms == 60 && two.n_groups == 1 && two.n_prompts == 1);
    cli_totals_add(&all, &one);
    cli_totals_add(&all, &two);
    char path[256];
    size_t n;
    snprintf(path, sizeof path, "%s", in_tmp("lines"));
    FILE *f = fopen(path, "w");
    CHECK(f != NULL);
    cli_totals_print(&all, 7.5, f);
    // A time of 0 divides nothing, and each noun is singular.
    cli_totals_print(&(cli_totals){.n_groups = 1, .n_prompts = 1, .n_prefill = 1}, 0, f);
    fclose(f);
    const char *text = slurp(path, &n);
    if (strncmp(text, want, sizeof want - 1)) FAIL("got %s", text);
    CHECK_HAS(text,
              "\nprefill: 0.00 ms, 1 token, 0.00 tok/s\ndecode: 0.00 ms, 0 tokens, 0.00 tok/s\nstep: 0.000 ms per step of a "
              "sequence, 0 steps, 0.00 sequences a step\ntoken: 0.000 ms per token of the whole batch\ntotal: 0.00 ms, 1 "
              "prompt in 1 group, 0 tokens generated, 0.00 tok/s\n");
}

// Lines of --jsonl, some with prompts, get the same answers in batches as one after the other.
static void jsonl(void) {
    char file[32768];
    size_t at = 0;
    static const char *const specs[] = {NULL,
                                        NULL,
                                        "santa-sys:S=4",
                                        "santa-sys:S=4",
                                        "santa-sys:S=4",
                                        NULL,
                                        "santa-pps:epsilon=0.3:certify=layer",
                                        "santa-pps:epsilon=0.3:certify=layer"};
    enum { N = 8 };
    for (int i = 0; i < N; i++) {
        json_t *line = i % 2 ? json_pack("{s:s, s:s}", "prompt", prompt(i % N_PROMPTS), "id", "named")
                             : json_pack("{s:s, s:s}", "context", prompt(i % N_PROMPTS), "question", question);
        if (specs[i]) json_object_set_new(line, "attn", json_string(specs[i]));
        if (i == 4) json_object_set_new(line, "seq", json_integer(77));
        if (i == 0) json_object_set_new(line, "id", json_null()), json_object_set_new(line, "prompt", json_null());
        char *text = json_dumps(line, 0);
        at += (size_t)snprintf(file + at, sizeof file - at, "%s\n", text);
        free(text);
        json_decref(line);
    }
    spill(in_tmp("q.jsonl"), file, at);
    for (int dense = 0; dense < 2; dense++) {
        const char *last = dense ? "--question-dense" : "--perf";
        result one = RUN("generate", "-m", tiny(), "--jsonl", in_tmp("q.jsonl"), "-n", "12", "--temp", "1", "--attn=santa:S=9",
                         "-c", "2k", last);
        result two = RUN("generate", "-m", tiny(), "--jsonl", in_tmp("q.jsonl"), "-n", "12", "--temp", "1", "--attn=santa:S=9",
                         "-c", "2k", last, "-np", "2");
        CHECK_GOOD(one);
        CHECK_GOOD(two);
        CHECK_HAS(two.err, dense ? "setup: A" : "setup: B");
        CHECK(!strstr(one.out, "\"id\":null") && !strstr(two.out, "\"id\":null"));
        for (int i = 0; i < N; i++) {
            char want[64];
            answer a = answer_of(&two, i);
            const char *text = one.out;
            for (int j = 0; j < i; j++) text = strchr(text, '\n') + 1;
            json_t *o = json_loads(text, JSON_DISABLE_EOF_CHECK, NULL);
            CHECK(o && json_is_string(json_object_get(o, "id")) == i % 2);
            char other[1024];
            snprintf(other, sizeof other, "%s", json_string_value(json_object_get(o, "text")));
            snprintf(want, sizeof want, "%d %d", integer(o, "n_prompt"), integer(o, "n_generated"));
            json_decref(o);
            CHECK_STR(a.text, other);
            char got[64];
            snprintf(got, sizeof got, "%d %d", a.n_prompt, a.n_generated);
            CHECK_STR(got, want);
        }
    }
}

static void errors(void) {
    const char *m = tiny();
    static const struct {
        const char *args[6], *part;
        int code;
    } cases[] = {
        {{"-np", "2", "-p", "x"}, "--parallel needs --prompts FILE or --jsonl FILE", 2},
        {{"-np", "0", "--prompts", "x"}, "-np 0: expected a whole number from 1 to 1024", 2},
        {{"--prompts", "x", "--jsonl", "y"}, "--prompts and --jsonl: expected only one", 2},
        {{"--prompts", "x", "-p", "y"}, "--prompt cannot be used with --prompts", 2},
        {{"--prompts", "x", "--dense-prefix", "1"}, "--dense-prefix cannot be used with --prompts", 2},
        {{"--prompts", "x", "--question-dense"}, "--question-dense needs --jsonl", 2},
        {{"--prompts", "x", "-sys", "y"}, "--system-prompt needs --chat", 2},
        {{"--jsonl", "x", "-np", "2", "--ids", "y"}, "--ids cannot be used with --jsonl", 2},
        {{"--prompts", "/no/such/file"}, "cannot open /no/such/file", 1},
        {{"--prompts", "/dev/null"}, "/dev/null: expected prompts, found none", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *args[12] = {"generate", "-m", m};
        for (int j = 0; j < 6 && cases[i].args[j]; j++) args[3 + j] = cases[i].args[j];
        result r = run_args(NULL, args);
        check_error(&r, cases[i].code, cases[i].part);
        CHECK_INT(r.n_out, 0);
    }
    static const struct {
        const char *text, *part;
    } files[] = {
        {"{\"prompt\": 3}\n", "line 1: \"prompt\": expected a string"},
        {"{\"prompt\": \"a\", \"question\": \"b\"}\n", "line 1: expected \"prompt\" or \"question\", found both"},
        {"\n{\"id\": 3}\n", "line 2: expected an object with a string \"context\", or a string \"prompt\""},
        {"{\"context\": \"a\"}\n", "line 1: expected an object with a string \"question\""},
        {"{\"prompt\": \"a\"}\n{\"messages\": []}\n", "line 2: \"messages\": expected a list of messages"},
        {"{\"prompt\": \"a\", \"messages\": [{}]}\n", "line 1: expected \"messages\" or \"prompt\", found both"},
        {"{\"messages\": [{}], \"tools\": 3}\n", "line 1: \"tools\": expected a list of tools"},
        {"{\"messages\": [3]}\n", "line 1: message 1 is an integer, expected an object"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        spill(in_tmp("bad.jsonl"), files[i].text, strlen(files[i].text));
        result r = RUN("generate", "-m", m, "--jsonl", in_tmp("bad.jsonl"), "-np", "2", "-n", "1", "--chat", "--chat-template",
                       "llama3");
        check_error(&r, 1, files[i].part);
        CHECK_INT(r.n_out, 0);
    }
    spill(in_tmp("latin1"), "caf\xe9\n", 5);
    result r = RUN("generate", "-m", m, "--prompts", in_tmp("latin1"));
    check_error(&r, 1, "line 1: expected UTF-8 text");
}

static void too_long(void) { // found before any work; the message has file, line and both counts
    char want[128], fits[16];
    result second = RUN("generate", "-m", tiny(), "-p", prompt(1), "-n", "0");
    result fourth = RUN("generate", "-m", tiny(), "-p", prompt(3), "-n", "0"); // line 5, because one line is blank
    snprintf(fits, sizeof fits, "%d", stat_count(&second, "prefill"));
    snprintf(want, sizeof want, "prompts.txt: line 5: the prompt has %d tokens, but the context holds %s",
             stat_count(&fourth, "prefill"), fits);
    result r = RUN("generate", "-m", tiny(), "--prompts", write_prompts(), "-np", "2", "-c", fits, "-n", "1");
    check_error(&r, 1, want);
    CHECK_LACKS(r.err, "model: ");
    CHECK_INT(r.n_out, 0);
    r = RUN("generate", "-m", tiny(), "--prompts", in_tmp("prompts.txt"), "-np", "1024", "-c", "128k");
    check_error(&r, 1, "does not fit into memory with 1024 sequence(s)");
}

static const test_case cases[] = {
    {"equal-to-alone", NEEDS_SPEED, equal_to_alone},
    {"shared", 0, shared},
    {"context-full", NEEDS_SPEED, context_full},
    {"report", 0, report},
    {"totals", 0, totals},
    {"jsonl", 0, jsonl},
    {"errors", 0, errors},
    {"too-long", 0, too_long},
    {0},
};
extern const test_suite suite_cli_parallel;
const test_suite suite_cli_parallel = {"cli_parallel", cases};
