// tests/cli/test_cli_eval.c - sleigh eval end to end: interrupted and continued runs, tables. test_cli_eval_texts.c has the
// cases of the suite about the contents of the texts.
#include "tests/cli/eval_cases.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>

// ---- files of lines ----

int n_eval_lines;
json_t *eval_lines[EVAL_LINES];

int eval_lines_read(const char *path) {
    size_t n;
    const char *p = slurp(path, &n);
    while (n_eval_lines) json_decref(eval_lines[--n_eval_lines]);
    for (; *p; n_eval_lines++) {
        size_t size = strcspn(p, "\n");
        CHECK(n_eval_lines < EVAL_LINES && p[size] == '\n');
        if (!(eval_lines[n_eval_lines] = json_loadb(p, size, JSON_REJECT_DUPLICATES, NULL))) FAIL("no JSON: %.200s", p);
        p += size + 1;
    }
    return n_eval_lines;
}

const char *eval_line_text(const json_t *line, const char *key) {
    const char *text = json_string_value(json_object_get(line, key));
    if (!text) FAIL("no text \"%s\"", key);
    return text;
}

int eval_line_int(const json_t *line, const char *key) {
    if (!json_is_integer(json_object_get(line, key))) FAIL("no number \"%s\"", key);
    return (int)json_integer_value(json_object_get(line, key));
}

// Joins the lines of a file in which `key` is `value`.
const char *eval_lines_select(const char *path, const char *part, int max) {
    static char out[4][1 << 20];
    static int next;
    char *to = out[next++ % 4];
    size_t n, at = 0;
    int found = 0;
    for (const char *p = slurp(path, &n); *p;) {
        size_t size = strcspn(p, "\n") + 1;
        char *line = strndup(p, size);
        int good = line && strstr(line, part) && found++ < max && at + size < sizeof out[0];
        if (good) memcpy(to + at, line, size), at += size;
        free(line);
        p += size;
    }
    to[at] = 0;
    return to;
}

// ---- runs ----

#define SMALL                                                                                                                  \
    "eval", "-m", tiny(), "--task", "niah-single,qa-2hop", "--length", "600", "--samples", "4", "--questions", "2", "--attn"

// The embedded model solves the tasks of its training; sampled values give the same scores.
static void answers(void) {
    result r = RUN(SMALL, "dense,santa-pps:S=64,streaming:window=64", "--task-seed", "3", "-o", "json");
    CHECK_GOOD(r);
    json_t *table = json_loads(r.out, 0, NULL);
    const json_t *rows = json_object_get(table, "rows");
    CHECK_INT(json_array_size(rows), 9);
    for (size_t i = 0; i < 9; i++) {
        const json_t *row = json_array_get(rows, i);
        double score = json_real_value(json_object_get(row, "score")),
               share = json_real_value(json_object_get(row, "kv_bytes_share"));
        CHECK_STR(eval_line_text(row, "task"), i % 3 == 0 ? "niah-single" : i % 3 == 1 ? "qa-2hop" : "all");
        CHECK_INT(eval_line_int(row, "samples"), i % 3 == 2 ? 8 : 4);
        CHECK_INT(eval_line_int(row, "texts"), i % 3 == 0 ? 4 : i % 3 == 1 ? 2 : 6);
        if (i < 6) CHECK(score == 1 && number(row, "p_value") == 1); // dense and santa-pps: all right
        if (i == 8)
            CHECK(score < 1 &&
                  json_real_value(json_object_get(row, "difference")) == score - 1); // the method does not see the needle
        CHECK(i < 3 ? share == 1 : share < 0.7);
    }
    json_decref(table);
}

static void plot(void) {
    static const char *const methods[] = {"dense", "santa:S=4", "santa:S=64", "streaming:sink=4:window=64"};
    size_t n;
    result r = RUN(SMALL, "dense,santa:S={4,64},streaming:window=64", "-o", "csv", "--plot", in_tmp("p.svg"));
    CHECK_GOOD(r);
    const char *data = slurp(in_tmp("p.dat"), &n);
    CHECK_HAS(data, "# curve: dense\n100 100 58.9982684 100\n\n\n# curve: santa\n");
    for (int i = 0; i < 4; i++) { // the rows of "all", in percent
        char name[64];
        double row[4], point[4]; // share, score, low, high
        snprintf(name, sizeof name, "\"all\",0,\"%s\",8,6,", methods[i]);
        const char *at = strstr(r.out, name);
        CHECK(at && sscanf(at + strlen(name), "%lf,%lf,%lf,%*f,%*f,%*f,%lf", &row[1], &row[2], &row[3], &row[0]) == 4);
        int found = 0;
        for (const char *line = data; !found && (line = strchr(line, '\n')); line++) {
            found = sscanf(line, "%lf %lf %lf %lf", &point[0], &point[1], &point[2], &point[3]) == 4;
            for (int j = 0; found && j < 4; j++) found = fabs(point[j] - 100 * row[j]) < 1e-5;
        }
        if (!found) FAIL("%s is not in the picture's figures", methods[i]);
    }
    const char *curve = strstr(data, "# curve: santa\n"); // each point has its S
    double s[2];
    CHECK(curve && sscanf(curve, "# curve: santa\n%*f %*f %*f %*f %lf\n%*f %*f %*f %*f %lf", &s[0], &s[1]) == 2);
    CHECK(s[0] + s[1] == 4 + 64 && (s[0] == 4 || s[0] == 64));
}

// A rule for all layers equals the method. The file keeps its rules.
static void layers(void) {
    result rule = RUN(SMALL, "dense", "--attn-layer", "0-3=streaming:window=64", "-o", "csv", "--out", in_tmp("o")),
           method = RUN(SMALL, "streaming:window=64", "-o", "csv");
    CHECK_GOOD(rule);
    CHECK_GOOD(method);
    CHECK(strstr(rule.out, "\"all\",0,\"dense\",8,6,") != NULL);
    CHECK_STR(strstr(rule.out, "\"all\",0,\"dense\"") + strlen("\"all\",0,\"dense\""),
              strstr(method.out, "\"all\",0,\"streaming:") + strlen("\"all\",0,\"streaming:sink=4:window=64\""));
    CHECK_LACKS(rule.out, ",8,6,1.0,");
    result r = RUN(SMALL, "dense", "--out", in_tmp("o"));
    check_error(&r, 2, "attn-layer");
    r = RUN(SMALL, "dense", "--attn-layer", "9=dense");
    check_error(&r, 2, "--attn-layer 9=dense: expected layers from 0 to 3");
}

static void threads(void) {
    char one[256], two[256];
    size_t n, m;
    snprintf(one, sizeof one, "%s", in_tmp("one")), snprintf(two, sizeof two, "%s", in_tmp("two"));
    static const char attn[] = "dense,santa:S=4,santa-pps:epsilon=0.3:certify=layer";
    result a = RUN(SMALL, attn, "--out", one, "-t", "1", "-o", "json");
    result b = RUN(SMALL, attn, "--out", two, "-t", "2", "-o", "json");
    CHECK_GOOD(a);
    CHECK_GOOD(b);
    CHECK_STR(a.out, b.out);
    const char *x = slurp(one, &n), *y = slurp(two, &m);
    CHECK_STR(x, y);
    result c = RUN(SMALL, attn, "--out", one, "-o", "json"); // nothing is left: the model is not loaded
    CHECK_GOOD(c);
    CHECK_STR(c.out, a.out);
    CHECK_LACKS(c.err, "backend:");
    c = RUN(SMALL, attn, "--seed", "5", "--out", in_tmp("five")); // other random numbers, the same questions
    CHECK_GOOD(c);
    const char *z = slurp(in_tmp("five"), &n);
    CHECK(strcmp(strchr(x, '\n'), strchr(z, '\n')));
    CHECK(
        !strcmp(eval_lines_select(one, "\"attn\":\"dense\"", 99), eval_lines_select(in_tmp("five"), "\"attn\":\"dense\"", 99)));
}

// An uninterrupted run with its file at `whole`, and the name of another file.
typedef struct two_files {
    char whole[256], cut[256];
    result run;
    const char *text; // [n] contents of the file
    size_t n;
} two_files;

static two_files run_whole(void) {
    two_files f;
    snprintf(f.whole, sizeof f.whole, "%s", in_tmp("whole"));
    snprintf(f.cut, sizeof f.cut, "%s", in_tmp("cut"));
    f.run = RUN(SMALL, "dense,santa:S=4", "--out", f.whole);
    CHECK_GOOD(f.run);
    f.text = slurp(f.whole, &f.n);
    return f;
}

// Checks that the same command completes the other file to the same bytes.
static void check_goes_on(const two_files *f) {
    size_t n;
    result r = RUN(SMALL, "dense,santa:S=4", "--out", f->cut);
    CHECK_GOOD(r);
    CHECK_STR(r.out, f->run.out);
    CHECK_STR(slurp(f->cut, &n), f->text);
}

// A file that is cut at any byte is completed to the bytes of an uninterrupted run. Then more samples and methods are added.
static void resume(void) {
    const two_files f = run_whole();
    size_t head = strcspn(f.text, "\n") + 1, n;
    const size_t cuts[] = {head, f.n / 2, f.n - 1};
    CHECK_INT(eval_lines_read(f.whole), 1 + 16);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        spill(f.cut, f.text, cuts[i]);
        check_goes_on(&f);
    }
    result more = RUN("eval", "-m", tiny(), "--task", "niah-single,qa-2hop", "--length", "600", "--samples", "7", "--questions",
                      "2", "--attn", "dense,santa:S=4,topk:k=8", "--out", f.cut, "-o", "csv");
    CHECK_GOOD(more);
    CHECK_HAS(more.err, "samples: 14 with 3 methods each, 26 of 42 answers left");
    CHECK_INT(eval_lines_read(f.cut), 1 + 42);      // one question about the last text of qa-2hop
    CHECK(!strncmp(slurp(f.cut, &n), f.text, f.n)); // the old part stays
    for (int i = 1; i < n_eval_lines; i++) {
        int per_text = strcmp(eval_line_text(eval_lines[i], "task"), "qa-2hop") ? 1 : 2;
        CHECK_INT(eval_line_int(eval_lines[i], "text"), eval_line_int(eval_lines[i], "sample") / per_text);
        for (int j = 1; j < i; j++)
            CHECK(strcmp(eval_line_text(eval_lines[i], "attn"), eval_line_text(eval_lines[j], "attn")) ||
                  strcmp(eval_line_text(eval_lines[i], "task"), eval_line_text(eval_lines[j], "task")) ||
                  eval_line_int(eval_lines[i], "sample") != eval_line_int(eval_lines[j], "sample"));
    }
}

// A run is interrupted while it writes, by a signal that it handles and by one that it cannot handle. The completed file has
// the same bytes.
static void interrupted(void) {
    static const int signals[] = {SIGINT, SIGKILL};
    const two_files f = run_whole();
    for (int i = 0; i < 2; i++) {
        const char *const args[] = {SMALL, "dense,santa:S=4", "--out", f.cut, NULL};
        size_t n;
        CHECK(remove(f.cut) == 0 || errno == ENOENT);
        pid_t pid = start(NULL, 0, NULL, args);
        wait_for_bytes(pid, f.cut, 1000);
        kill(pid, signals[i]);
        result r = finish(pid, NULL);
        if (r.code == 0) FAIL("the run was over before signal %d", signals[i]);
        if (signals[i] == SIGINT) check_error(&r, 1, "interrupted; run the same command to continue");
        slurp(f.cut, &n);
        CHECK(n >= 1000 && n < f.n);
        check_goes_on(&f);
    }
}

static void refusals(void) {
    static const struct {
        const char *args[3], *part;
    } other[] = {
        {{"--seed", "1"}, "seed = 0, but this command has 1"},
        {{"--task-seed", "1"}, "task-seed = 42, but this command has 1"},
        {{"--questions", "2"}, "questions = 1, but this command has 2"},
        {{"--question-dense"}, "question-dense = false, but this command has true"},
        {{"--haystack", "noise"}, "haystack = \"text\", but this command has \"noise\""},
        {{"-n", "5"}, "n-predict = -1, but this command has 5"},
        {{"--temp", "1"}, "temp = 0.0, but this command has 1.0"},
        {{"--grader", "exact"}, "grader = (not set), but this command has \"exact\""},
    };
    char path[256];
    snprintf(path, sizeof path, "%s", in_tmp("out"));
    result r = RUN("eval", "-m", tiny(), "--task", "niah-single", "--length", "600", "--samples", "1", "--out", path);
    CHECK_GOOD(r);
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        r = RUN("eval", "-m", tiny(), "--task", "niah-single", "--length", "600", "--samples", "1", "--out", path,
                other[i].args[0], other[i].args[1]);
        check_error(&r, 2, other[i].part);
    }
    r = RUN("eval", "-m", tiny(), "--task", "niah-single", "--length", "600", "--samples", "1", "--out", path, "--temp", "0");
    CHECK_GOOD(r); // the default
}

// Dumped prompts have RULER's format. Read back, each gets the same answer and score.
static void ruler_file(void) {
    char dump[256], direct[256], back[256];
    snprintf(dump, sizeof dump, "%s", in_tmp("ruler.jsonl"));
    snprintf(direct, sizeof direct, "%s", in_tmp("direct")), snprintf(back, sizeof back, "%s", in_tmp("back"));
    for (int a = 0; a < 2; a++) {
        const char *dense = a ? "--question-dense" : "--seed=0"; // set-up B is the default
        result r =
            RUN("eval", "-m", tiny(), "--task", "niah-multivalue,vt", "--length", "600", "--samples", "2", "--dump", dump);
        CHECK_GOOD(r);
        char one[300], two[300];
        snprintf(one, sizeof one, "%s%d", direct, a), snprintf(two, sizeof two, "%s%d", back, a);
        result x = RUN("eval", "-m", tiny(), "--task", "niah-multivalue,vt", "--length", "600", "--samples", "2", "--attn",
                       "dense,topk:k=16", "--out", one, "-n", "40", dense);
        result y = RUN("eval", "-m", tiny(), "--jsonl", dump, "--attn", "dense,topk:k=16", "--out", two, "-n", "40", "--stop",
                       "\n", dense, "-o", "csv");
        CHECK_GOOD(x);
        CHECK_GOOD(y);
        CHECK_HAS(x.err, a ? "setup: A" : "setup: B");
        CHECK_HAS(y.out, "\"vt\",0,\"topk:k=16\",2,2,");
        CHECK_INT(eval_lines_read(one), 9);
        char answers[9][512];
        double scores[9];
        for (int i = 1; i < 9; i++) {
            snprintf(answers[i], sizeof answers[i], "%s", eval_line_text(eval_lines[i], "answer"));
            scores[i] = json_number_value(json_object_get(eval_lines[i], "score"));
        }
        CHECK_INT(eval_lines_read(two), 9);
        for (int i = 1; i < 9; i++) {
            CHECK_STR(eval_line_text(eval_lines[i], "answer"), answers[i]);
            CHECK(json_number_value(json_object_get(eval_lines[i], "score")) == scores[i]);
        }
    }
}

static void questions(void) {
    static const char file[] =
        "{\"question\": \"2 + 2?\", \"answer\": \"It is\\n#### 4\", \"task\": \"sums\"}\n"
        "{\"context\": \" One of the special magic numbers for blue-cat is: 1234567. This is the end of the text.\\n\", "
        "\"question\": \"What is the special magic number for blue-cat mentioned in the text? Answer:\", \"answer\": "
        "\"1234567.\", \"grader\": \"exact\", \"task\": \"needles\"}\n";
    spill(in_tmp("q.jsonl"), file, sizeof file - 1);
    result r = RUN("eval", "-m", tiny(), "--jsonl", in_tmp("q.jsonl"), "--stop", "\n", "-n", "16", "--procedure", "gsm8k",
                   "--chat", "--out", in_tmp("o"));
    CHECK_GOOD(r);
    CHECK_HAS(r.out, "| method | needles | sums | all | KV bytes % |");
    r = RUN("eval", "-m", tiny(), "--jsonl", in_tmp("q.jsonl"), "--stop", "\n", "-n", "16", "--grader", "numeric-line", "-o",
            "csv");
    CHECK_GOOD(r);
    CHECK_HAS(r.out, "\"needles\",0,\"dense\",1,1,1.0,0.206549314,1.0,0.0,0.0,0.0,1.0,0,0,1.0,0,,,,\n");
    char more[2048]; // the first line of each task
    snprintf(more, sizeof more, "%s%s{\"question\": \"3\", \"answer\": 3}", file, file);
    spill(in_tmp("m.jsonl"), more, strlen(more));
    r = RUN("eval", "-m", tiny(), "--jsonl", in_tmp("m.jsonl"), "--samples", "1", "--dump", in_tmp("d"));
    CHECK_GOOD(r);
    static const char *const tasks[] = {"m", "needles", "sums"};
    CHECK_INT(eval_lines_read(in_tmp("d")), 3);
    for (int i = 0; i < 3; i++) CHECK_STR(eval_line_text(eval_lines[i], "task"), tasks[i]);
    spill(in_tmp("q.jsonl"), file, sizeof file - 2); // another content
    r = RUN("eval", "-m", tiny(), "--jsonl", in_tmp("q.jsonl"), "--stop", "\n", "-n", "16", "--procedure", "gsm8k", "--chat",
            "--out", in_tmp("o"));
    check_error(&r, 2, "jsonl = \"fnv1a:");
}

// ---- the parts of an answer ----

static uint32_t fnv32(const char *text) {
    uint32_t hash = 2166136261u;
    for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 16777619u;
    return hash;
}

// Context and question of a line of a dump.
static json_t *record_of(const json_t *line, uint32_t sequence) {
    const char *input = eval_line_text(line, "input"), *asked = eval_line_text(line, "question");
    char whole[1024];
    snprintf(whole, sizeof whole, "%s%s", asked, eval_line_text(line, "answer_prefix"));
    return json_pack("{s:s#, s:s, s:I}", "context", input, (int)(strlen(input) - strlen(asked)), "question", whole, "seq",
                     (json_int_t)sequence);
}

// The settings for sampling of a model have no effect without --temp, in eval also its penalty.
static void greedy(void) {
    char command[1024], hot[256];
    snprintf(hot, sizeof hot, "%s", in_tmp("tiny"));
    snprintf(command, sizeof command, "mkdir %s && cp -s \"$PWD\"/%s/* %s && rm %s/generation_config.json", hot, tiny(), hot,
             hot);
    CHECK_INT(system(command), 0);
    static const char settings[] = "{\"do_sample\": true, \"temperature\": 50.0, \"eos_token_id\": [1009, 1012]";
    result r[4];
    for (int i = 0; i < 4; i++) {
        const char *model = i % 2 ? hot : tiny();
        char config[200];
        snprintf(config, sizeof config, "%s%s}", settings, i < 2 ? ", \"repetition_penalty\": 9.0" : "");
        spill(in_tmp("tiny/generation_config.json"), config, strlen(config));
        r[i] = i < 2 ? RUN("eval", "-m", model, "--task", "qa-2hop", "--length", "600", "--samples", "1", "-o", "csv")
                     : RUN("compare", "-m", model, "-p", question, "--attn", "dense", "-n", "8", "--no-heads");
        CHECK_GOOD(r[i]);
    }
    CHECK_STR(r[0].out, r[1].out);
    CHECK_STR(r[2].out, r[3].out);
}

// An answer equals that of generate for the same prompt, set-up and penalties, with random numbers keyed by the name of the
// sample and --seq-id. The penalties change an answer, and a file of results with other penalties is refused.
static void as_generate(void) {
    char file[32768] = "", name[64];
    result dump = RUN("eval", "-m", tiny(), "--task", "qa-2hop", "--length", "600", "--samples", "3", "--dump", in_tmp("d"));
    CHECK_GOOD(dump);
    CHECK_INT(eval_lines_read(in_tmp("d")), 3);
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "qa-2hop/600/%d", i);
        json_t *record = record_of(eval_lines[i], 5 + fnv32(name));
        char *line = json_dumps(record, JSON_COMPACT);
        snprintf(file + strlen(file), sizeof file - strlen(file), "%s\n", line);
        json_decref(record), free(line);
    }
    spill(in_tmp("records"), file, strlen(file));
    char plain[3][256];
    int n_changed = 0;
    for (int a = 0; a < 3; a++) {
        static const char *const flags[3] = {NULL, "--question-dense", "--repeat-penalty"}, *const files[3] = {"b", "a", "c"};
        const char *flag = flags[a], *value_of = a == 2 ? "1.4" : NULL; // NULL ends the command line
        result said = RUN("generate", "-m", tiny(), "--jsonl", in_tmp("records"), "-n", "24", "--stop", "\n", "--temp", "0",
                          "--attn", "santa:S=1", "--seed", "3", flag, value_of, "--repeat-last-n", "-1", "--frequency-penalty",
                          "0.3"),
               r = RUN("eval", "-m", tiny(), "--task", "qa-2hop", "--length", "600", "--samples", "3", "-n", "24", "--attn",
                       "santa:S=1", "--seed", "3", "--seq-id", "5", "--out", in_tmp(files[a]), flag, value_of,
                       "--repeat-last-n", "-1", "--frequency-penalty", "0.3");
        CHECK_GOOD(said);
        CHECK_GOOD(r);
        CHECK_INT(eval_lines_read(in_tmp(files[a])), 4);
        const char *line = said.out, *key;
        json_t *value;
        for (int i = 1; i < 4; i++, line = strchr(line, '\n') + 1) {
            json_t *want = json_loads(line, JSON_DISABLE_EOF_CHECK, NULL);
            const char *answer = eval_line_text(eval_lines[i], "answer");
            CHECK_STR(answer, eval_line_text(want, "text"));
            if (a == 0) snprintf(plain[i - 1], sizeof plain[0], "%s", answer);
            if (a == 2) n_changed += strcmp(answer, plain[i - 1]) != 0;
            json_object_foreach(eval_lines[i], key, value) { // the fields that both have
                const json_t *same = json_object_get(want, key);
                int is_same = !same || !strcmp(key, "text") || json_equal(value, same);
                if (!is_same && !(json_is_real(value) && fabs(number(want, key) - json_real_value(value)) < 1e-8))
                    FAIL("%s: %s", key, line);
            }
            json_decref(want);
        }
    }
    CHECK(n_changed > 0);
    result other = RUN("eval", "-m", tiny(), "--task", "qa-2hop", "--length", "600", "--samples", "3", "-n", "24", "--attn",
                       "santa:S=1", "--seed", "3", "--seq-id", "5", "--out", in_tmp("c"), "--repeat-penalty", "1.1",
                       "--repeat-last-n", "-1", "--frequency-penalty", "0.3");
    check_error(&other, 2, "repeat-penalty");
}

// A context is prefilled with dense attention even if a method has decoded its first tokens before.
static void longer_context(void) {
    static const char said[] = "The hidden number of the harbor is 48213. The grass is green. The sky is blue and wide.",
                      fed[] = " The hidden number of the tower is 7312. The lantern stood beside the river.",
                      asked[] = " The hidden number of the tower is";
    char file[2048], answers[2][1024];
    for (int both = 0; both < 2; both++) {
        int at = 0;
        if (both)
            at = snprintf(file, sizeof file, "{\"context\":\"%s\",\"question\":\"%s%s\",\"answer\":\"1\"}\n", said, fed, asked);
        snprintf(file + at, sizeof file - at, "{\"context\":\"%s%s\",\"question\":\"%s\",\"answer\":\"1\"}\n", said, fed,
                 asked);
        spill(in_tmp("q.jsonl"), file, strlen(file));
        remove(in_tmp("o"));
        result r = RUN("eval", "-m", tiny(), "--jsonl", in_tmp("q.jsonl"), "--attn", "dense,streaming:sink=1:window=1", "-n",
                       "24", "--out", in_tmp("o"), "--attn-prefill", "dense");
        CHECK_GOOD(r);
        CHECK_INT(eval_lines_read(in_tmp("o")), 3 + 2 * both);
        // Only the prefill of a whole prompt has a time. A prefill that begins after rows of another answer has none.
        CHECK(json_is_number(json_object_get(eval_lines[1], "ttft_ms")) &&
              json_is_null(json_object_get(eval_lines[2], "ttft_ms")));
        if (both) CHECK(json_is_null(json_object_get(eval_lines[3], "ttft_ms")));
        snprintf(answers[both], sizeof answers[both], "%s",
                 eval_line_text(eval_lines[1 + 2 * both], "answer")); // answer of dense attention to the last record
    }
    CHECK_STR(answers[1], answers[0]);
    CHECK(strlen(answers[0]) > 20);
}

static uint64_t fnv64(const char *path) {
    uint64_t hash = 14695981039346656037u;
    size_t n;
    const char *p = slurp(path, &n);
    for (size_t i = 0; i < n; i++) hash = (hash ^ (unsigned char)p[i]) * 1099511628211u;
    return hash;
}

// The exact bytes of the texts of a seed. If they change, GENERATOR in cmd_eval.c must change, because files of --out depend on
// them.
static void golden(void) {
    static const struct {
        const char *args[10];
        uint64_t hash;
    } goldens[] = {
        {{"--task", "all", "--length", "1200,4100", "--samples", "3", "--questions", "2"}, 0x0da72f615c412144},
        {{"--task", "all", "--length", "1500", "--samples", "2", "--task-seed", "4294967295", "--chat"}, 0x48cfd93a139d46aa},
        {{"--task", "niah-multikey,niah-multiquery,vt", "--length", "1k", "--samples", "4", "--haystack", "noise"},
         0xf491739ffb67064d},
        {{"--task", "niah-multikey,vt", "--length", "1500", "--questions", "20", "--haystack", "needles"}, 0x1e5e0e601313fb34},
    };
    for (size_t i = 0; i < sizeof goldens / sizeof *goldens; i++) {
        const char *args[20] = {"eval", "-m", tiny(), "--dump", in_tmp("texts")};
        memcpy(args + 5, goldens[i].args, sizeof goldens[i].args);
        result r = run_args(NULL, args);
        CHECK_GOOD(r);
        uint64_t hash = fnv64(in_tmp("texts"));
        if (hash != goldens[i].hash)
            FAIL("dump %zu: %016llx, expected %016llx", i, (unsigned long long)hash, (unsigned long long)goldens[i].hash);
    }
    CHECK_INT(eval_lines_read(in_tmp("texts")), 64); // 32 samples by default
}

static void errors(void) {
    const char *m = tiny();
    static const struct {
        const char *args[5];
        int code;
        const char *part;
    } cases[] = {
        {{"--dump", "x", "--plot", "x.svg"}, 2, "flag --plot cannot be used with --dump"},
        {{"--plot", "x.jpg"}, 2, "--plot x.jpg: expected a file name"},
        {{"--task", "niah"}, 2, "--task niah: unknown"},
        {{"--task", "vt,vt"}, 2, "--task vt with --length 4096 is named twice"},
        {{"--length", "128", "--task", "qa-2hop"}, 2, "--length 128: task qa-2hop needs at least "},
        {{"--length", "128", "--task", "fwe"},
         2,
         "task fwe needs at least 222 tokens for its facts, its question and 32 generated"},
        {{"--attn", "dense,santas"}, 2, "unknown method"},
        {{"--grader", "best"}, 2, "--grader best: unknown"},
        {{"--procedure", "mmlu"}, 2, "--procedure needs --jsonl"},
        {{"--jsonl", "x", "--length", "1k"}, 2, "--length cannot be used with --jsonl"},
        {{"--jsonl", "/no/such"}, 1, "cannot open /no/such"},
        {{"--system-prompt", "x"}, 2, "--system-prompt needs --chat"},
        {{"--out", "/no/such/file"}, 1, "--out: cannot write /no/such/file"},
        {{"--dump", "/dev/full", "--samples", "1"}, 1, "cannot write /dev/full"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *args[12] = {"eval", "-m", m};
        for (int j = 0; j < 5 && cases[i].args[j]; j++) args[3 + j] = cases[i].args[j];
        result r = run_args(NULL, args);
        if (cases[i].code == 2 && strstr(r.err, "backend:")) FAIL("%s: found out late", cases[i].part);
        CHECK_INT(r.code, cases[i].code);
        CHECK_HAS(r.err, cases[i].part);
    }
    result r = RUN("eval", "--task", "vt");
    check_error(&r, 2, "--model is required");
}

static const test_case cases[] = {
    {"texts", NEEDS_NOTHING, case_eval_texts},
    {"seeds", NEEDS_NOTHING, case_eval_seeds},
    {"wordings", NEEDS_NOTHING, case_eval_wordings},
    {"answers", NEEDS_NOTHING, answers},
    {"plot", NEEDS_NOTHING, plot},
    {"layers", NEEDS_NOTHING, layers},
    {"threads", NEEDS_SPEED, threads},
    {"resume", NEEDS_SPEED, resume},
    {"interrupted", NEEDS_SPEED, interrupted},
    {"refusals", NEEDS_NOTHING, refusals},
    {"ruler_file", NEEDS_SPEED, ruler_file},
    {"questions", NEEDS_NOTHING, questions},
    {"greedy", NEEDS_NOTHING, greedy},
    {"as_generate", NEEDS_NOTHING, as_generate},
    {"longer_context", NEEDS_NOTHING, longer_context},
    {"golden", NEEDS_NOTHING, golden},
    {"errors", NEEDS_NOTHING, errors},
    {0},
};
const test_suite suite_cli_eval = {"cli_eval", cases};
