// tests/cli/test_cli_parallel.c - generate --parallel end to end: the answer to a line does not depend on the other lines.
#include "cli/generate/answer.h"
#include "tests/support/run_cli.h"

#include <jansson.h>
#include <stdlib.h>

enum { N_PROMPTS = 7 };

// Prompts of different lengths around a page boundary. The model ends its answer to the last one by itself.
static const char *prompt(int i) {
    static const int sentences[N_PROMPTS] = {1, 12, 3, 30, 2, 17, 0};
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
    char text[1024], stopped[32];
    int index, n_prompt, n_generated, group, size, steps;
    double decode_ms;
} answer;

static int integer(const json_t *o, const char *key) {
    if (!json_is_integer(json_object_get(o, key))) FAIL("no number \"%s\"", key);
    return (int)json_integer_value(json_object_get(o, key));
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
                .n_generated = integer(o, "n_generated"),
                .group = integer(group, "index"),
                .size = integer(group, "size"),
                .steps = integer(group, "steps"),
                .decode_ms = json_real_value(json_object_get(o, "decode_ms"))};
    snprintf(a.text, sizeof a.text, "%s", json_string_value(json_object_get(o, "text")));
    snprintf(a.stopped, sizeof a.stopped, "%s", json_string_value(json_object_get(o, "stopped")));
    CHECK(json_real_value(json_object_get(group, "prefill_ms")) > 0 && a.decode_ms >= 0);
    json_decref(o);
    return a;
}

static int count_lines(const char *text) {
    int n = 0;
    for (; *text; text++) n += *text == '\n';
    return n;
}

// Runs all prompts in batches, and each prompt without a batch, with these flags. Returns how many generations ended for
// `reason`.
static int same_as_alone(const char *parallel, const char *const *flags, const char *reason) {
    const char *args[32] = {"generate", "-m",        tiny(),          "-c",  "2k",    "--seq-id",
                            "5",        "--prompts", write_prompts(), "-np", parallel};
    int n = 11, found = 0, size = atoi(parallel);
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
        CHECK_INT(a.index, i);
        CHECK_INT(a.group, i / size);
        CHECK_INT(a.size, N_PROMPTS - i / size * size < size ? N_PROMPTS % size : size);
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

static void context_full(void) { // the longest sequence fills its context and ends; the others continue
    write_prompts();
    result r =
        RUN("generate", "-m", tiny(), "--prompts", in_tmp("prompts.txt"), "-np", "7", "--ignore-eos", "-n", "-1", "-c", "800");
    CHECK_GOOD(r);
    for (int i = 0; i < N_PROMPTS; i++) {
        answer a = answer_of(&r, i);
        CHECK_STR(a.stopped, "context full");
        CHECK_INT(a.n_prompt + a.n_generated, 801);
    }
}

static void report(void) {
    char buf[256];
    result r = RUN("generate", "-m", tiny(), "--prompts", write_prompts(), "-np", "3", "-n", "9", "--ignore-eos", "-c", "2k");
    CHECK_GOOD(r);
    CHECK_HAS(r.err, "parallel: 7 prompts in static batches of 3");
    CHECK_INT(stat_count(&r, "decode"), N_PROMPTS * 8);
    CHECK_HAS(stat_line(&r, "step", buf), ", 24 steps, 2.33 sequences a step");
    CHECK_HAS(stat_line(&r, "total", buf), ", 7 prompts in 3 groups, 63 tokens generated, ");
    result quiet = RUN("generate", "-m", tiny(), "--prompts", in_tmp("prompts.txt"), "-n", "1", "--no-perf");
    CHECK_GOOD(quiet);
    CHECK_LACKS(quiet.err, "step:");
    result piped = RUN_IN("The grass\nThe sky\n", "generate", "-m", tiny(), "--prompts", "-", "-np", "2", "-n", "4");
    CHECK_GOOD(piped);
    CHECK_INT(count_lines(piped.out), 2);
}

// The totals of two groups, and their lines: prefills add up, but the sequences of a group share the steps of the longest one.
static void totals(void) {
    static const char want[] =
        "load: 7.50 ms\nprefill: 120.00 ms, 30 tokens, 250.00 tok/s\nfeed: 24.00 ms, 6 tokens, 250.00 tok/s\n"
        "decode: 160.00 ms, 40 tokens, 250.00 tok/s\n"
        "step: 6.400 ms per step of a sequence, 25 steps, 1.60 sequences a step\n"
        "token: 4.000 ms per token of the whole batch\n"
        "total: 304.00 ms, 3 prompts in 2 groups, 44 tokens generated, 144.74 tok/s\npeak_rss: ";
    cli_timeline of[] = {
        {.n_prefill = 9, .n_feed = 1, .n_decode = 15, .n_sampled = 16, .prefill_ms = 50, .feed_ms = 4, .decode_ms = 99},
        {.n_prefill = 1, .n_feed = 2, .n_decode = 20, .n_sampled = 22, .prefill_ms = 10, .feed_ms = 8, .decode_ms = 100},
        {.n_prefill = 20, .n_feed = 3, .n_decode = 5, .n_sampled = 6, .prefill_ms = 60, .feed_ms = 12, .decode_ms = 60}};
    cli_timeline *const first[] = {&of[0], &of[1]}, *const second[] = {&of[2]};
    cli_totals all = {0}, one = cli_totals_of(first, 2), two = cli_totals_of(second, 1);
    CHECK(one.n_steps == 20 && one.decode_ms == 100 && one.n_groups == 1 && one.n_prompts == 2);
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
    static const int groups[] = {0, 0, 1, 1, 2, 3, 4, 4};
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
            CHECK_INT(a.group, groups[i]);
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
    {"equal-to-alone", 0, equal_to_alone},
    {"context-full", 0, context_full},
    {"report", 0, report},
    {"totals", 0, totals},
    {"jsonl", 0, jsonl},
    {"errors", 0, errors},
    {"too-long", 0, too_long},
    {0},
};
extern const test_suite suite_cli_parallel;
const test_suite suite_cli_parallel = {"cli_parallel", cases};
