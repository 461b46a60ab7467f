// tests/cli/test_cli_eval_texts.c - cases of the suite cli_eval: the contents of the texts that eval makes, read by an
// independent reader.
#include "tests/cli/eval_cases.h"

#include <stdlib.h>

enum { MAX_FACTS = 2048, WORD = 64 };

// ---- an independent reader of the tasks' texts ----

typedef struct fact {
    char a[WORD], b[WORD];
    const char *at, *end; // position in the text
} fact;

static fact facts[MAX_FACTS];

// Finds every `before A middle B after` in a text, with the shortest A and B, without line breaks.
static int find_facts(const char *text, const char *before, const char *middle, const char *after) {
    int n = 0;
    for (const char *p = text; (p = strstr(p, before)); n++) {
        const char *a = p + strlen(before), *b = strstr(a, middle), *end = b ? strstr(b + strlen(middle), after) : NULL;
        if (!end || b - a >= WORD || end - b >= WORD + (long)strlen(middle)) FAIL("cut short: %.100s", p);
        CHECK(n < MAX_FACTS);
        facts[n] = (fact){.at = p, .end = end + strlen(after)};
        snprintf(facts[n].a, WORD, "%.*s", (int)(b - a), a);
        snprintf(facts[n].b, WORD, "%.*s", (int)(end - b - (long)strlen(middle)), b + strlen(middle));
        p = end;
    }
    return n;
}

static void check_references(const json_t *line, char want[][WORD], int n) {
    const json_t *outputs = json_object_get(line, "outputs");
    if ((int)json_array_size(outputs) != n)
        FAIL("%s: %zu references, expected %d", eval_line_text(line, "task"), json_array_size(outputs), n);
    for (int i = 0; i < n; i++) CHECK_STR(json_string_value(json_array_get(outputs, (size_t)i)), want[i]);
}

// Needles: the values of the keys that the question names, in the order of the question; values of one key in the order of the
// text.
static void check_needles(const json_t *line, int n_needles) {
    const char *text = eval_line_text(line, "input"), *asked = eval_line_text(line, "question"),
               *p = strstr(asked, " for ") + 5;
    char want[8][WORD];
    int n = find_facts(text, " One of the special magic numbers for ", " is: ", "."), n_want = 0;
    CHECK_INT(n, n_needles);
    for (int i = 1; i < n; i++) CHECK(facts[i].at > facts[i - 1].end); // facts do not overlap
    while (strncmp(p, "mentioned", 9)) {
        char key[WORD];
        size_t size = strcspn(p, ", ");
        snprintf(key, sizeof key, "%.*s", (int)size, p);
        for (int i = 0; i < n && strcmp(key, "and"); i++)
            if (!strcmp(facts[i].a, key)) CHECK(n_want < 8), strcpy(want[n_want++], facts[i].b);
        p += size + strspn(p + size, ", ");
    }
    check_references(line, want, n_want);
    for (int i = 0; i < n_want; i++) CHECK(strlen(want[i]) == 7 && strspn(want[i], "0123456789") == 7);
}

static void check_variables(const json_t *line) {
    char value[WORD], want[8][WORD];
    int n = find_facts(eval_line_text(line, "input"), " VAR ", " = ", "."), n_want = 0;
    CHECK(sscanf(eval_line_text(line, "question"), "Which variables hold %63[0-9]?", value) == 1);
    for (int i = 0; i < n; i++) { // in the order of the text, each after the variable that it copies
        int holds = !strcmp(facts[i].b, value);
        for (int j = 0; j < n_want; j++) holds |= !strncmp(facts[i].b, "VAR ", 4) && !strcmp(facts[i].b + 4, want[j]);
        if (holds) CHECK(n_want < 8), strcpy(want[n_want++], facts[i].a);
    }
    CHECK_INT(n_want, 5);
    check_references(line, want, n_want);
}

static void check_one_hop(const json_t *line) {
    char name[WORD], want[1][WORD], job[WORD];
    const char *asked = eval_line_text(line, "question");
    int asks_job = sscanf(asked, "What is the job of %63[^?]", name) == 1;
    if (!asks_job) {
        CHECK(sscanf(asked, "Where does %63[^?]", name) == 1);
        *strstr(name, " work") = 0;
    }
    char before[WORD + 16];
    snprintf(before, sizeof before, " %s works in ", name);
    CHECK_INT(find_facts(eval_line_text(line, "input"), before, " as a ", "."), 1);
    strcpy(want[0], facts[0].a);
    strcpy(job, facts[0].b);
    if (asks_job) strcpy(want[0], job);
    check_references(line, want, 1);
}

static void check_two_hop(const json_t *line) {
    char name[WORD], before[WORD + 16], want[1][WORD];
    const char *text = eval_line_text(line, "input");
    CHECK(sscanf(eval_line_text(line, "question"), "Where does %63[^?]", name) == 1);
    *strstr(name, " live") = 0;
    snprintf(before, sizeof before, " %s lives with", name);
    CHECK_INT(find_facts(text, before, " ", "."), 1);
    snprintf(before, sizeof before, " %s lives in", facts[0].b);
    CHECK_INT(find_facts(text, before, " ", "."), 1);
    strcpy(want[0], facts[0].b);
    check_references(line, want, 1);
}

// The n most frequent words between the introduction and the end; the next word must be rarer.
static void check_words(const json_t *line, int n) {
    static char words[MAX_FACTS][WORD];
    static int counts[MAX_FACTS];
    int n_words = 0;
    char want[16][WORD];
    const char *p = strstr(eval_line_text(line, "input"), "appears. ") + 9, *end = strstr(p, " This is the end");
    CHECK(end);
    while (p < end) {
        char word[WORD];
        size_t size = strcspn(p, " ");
        snprintf(word, sizeof word, "%.*s", (int)(p + size >= end ? end - p - 1 : (long)size),
                 p); // without the full stop of the last word
        p += size + 1;
        if (!strcmp(word, "...") || (word[strlen(word) - 1] == '.' && strspn(word, "0123456789") == strlen(word) - 1)) continue;
        int i = 0;
        while (i < n_words && strcmp(words[i], word)) i++;
        if (i == n_words) {
            CHECK(n_words < MAX_FACTS);
            strcpy(words[n_words], word), counts[n_words++] = 0;
        }
        counts[i]++;
    }
    const json_t *outputs = json_object_get(line, "outputs");
    CHECK_INT(json_array_size(outputs), n);
    int least = 1 << 30, most = 0;
    for (int i = 0; i < n_words; i++) {
        int asked = 0;
        for (int k = 0; k < n; k++) asked |= !strcmp(words[i], json_string_value(json_array_get(outputs, (size_t)k)));
        if (asked && counts[i] < least) least = counts[i];
        if (!asked && counts[i] > most) most = counts[i];
    }
    CHECK(n_words > n && least > most);
    for (int k = 0; k < n; k++) snprintf(want[k], WORD, "%s", json_string_value(json_array_get(outputs, (size_t)k)));
    for (int k = 0; k < n; k++)
        for (int j = 0; j < k; j++) CHECK(strcmp(want[k], want[j]));
}

static void check_line(const json_t *line) {
    const char *task = eval_line_text(line, "task");
    if (!strcmp(task, "niah-single"))
        check_needles(line, 1);
    else if (!strcmp(task, "niah-multikey"))
        check_needles(line, 16);
    else if (!strncmp(task, "niah-multi", 10))
        check_needles(line, 4);
    else if (!strcmp(task, "vt"))
        check_variables(line);
    else if (!strcmp(task, "qa-1hop"))
        check_one_hop(line);
    else if (!strcmp(task, "qa-2hop"))
        check_two_hop(line);
    else
        check_words(line, 3);
}

static int n_tokens(const char *text, const char *flag) {
    result r = RUN_IN(text, "tokenize", "-m", tiny(), flag);
    CHECK_GOOD(r);
    int n = 1;
    for (const char *p = r.out; *p; p++) n += *p == ',';
    return n;
}

void case_eval_texts(void) {
    enum { SAMPLES = 3, TASKS = 9, LENGTHS = 2 };
    static const int lengths[] = {1024, 3000};
    result r = RUN("eval", "-m", tiny(), "--task", "all", "--length", "1k,3000", "--samples", "3", "--dump", in_tmp("d.jsonl"));
    CHECK_GOOD(r);
    CHECK_INT(r.n_out, 0);
    CHECK_INT(eval_lines_read(in_tmp("d.jsonl")), TASKS * LENGTHS * SAMPLES);
    for (int i = 0; i < n_eval_lines; i++) {
        int length = lengths[i / SAMPLES % LENGTHS];
        CHECK_INT(eval_line_int(eval_lines[i], "index"), i % SAMPLES);
        check_line(eval_lines[i]);
        // at most --length; shorter by at most one sentence, or for lists of words by the jumps of two ranks
        static char whole[65536];
        snprintf(whole, sizeof whole, "%s%s", eval_line_text(eval_lines[i], "input"),
                 eval_line_text(eval_lines[i], "answer_prefix"));
        int prompt = n_tokens(whole, "--bos"), all = eval_line_int(eval_lines[i], "length");
        CHECK(all - prompt >= 24 && all - prompt <= 96); // generated tokens
        if (all > length || all < length - 60) FAIL("%s: %d tokens of %d", eval_line_text(eval_lines[i], "task"), all, length);
    }
}

// A sample does not depend on the other samples. Another seed gives another sample.
void case_eval_seeds(void) {
    const char *m = tiny();
    char few[256], many[256], other[256];
    snprintf(few, sizeof few, "%s", in_tmp("few")), snprintf(many, sizeof many, "%s", in_tmp("many"));
    snprintf(other, sizeof other, "%s", in_tmp("other"));
    result r =
        RUN("eval", "-m", m, "--task", "qa-2hop", "--length", "900", "--samples", "5", "--questions", "2", "--dump", few);
    CHECK_GOOD(r);
    r = RUN("eval", "-m", m, "--task", "vt,qa-2hop", "--length", "2k,900", "--samples", "12", "--questions", "2", "--dump",
            many, "-t", "1");
    CHECK_GOOD(r);
    r = RUN("eval", "-m", m, "--task", "qa-2hop", "--length", "900", "--samples", "5", "--questions", "2", "--task-seed", "43",
            "--dump", other);
    CHECK_GOOD(r);
    const char *a = eval_lines_select(few, "", 5);
    CHECK_INT(eval_lines_read(many), 48);
    int same = 0;
    for (int i = 0; i < n_eval_lines; i++) { // lines of qa-2hop at 900 tokens, in order
        char *text = json_dumps(eval_lines[i], JSON_COMPACT);
        size_t n = strlen(text);
        if (!strcmp(eval_line_text(eval_lines[i], "task"), "qa-2hop") && eval_line_int(eval_lines[i], "length") <= 900 &&
            same < 5) {
            CHECK(!strncmp(a, text, n) && a[n] == '\n');
            a += n + 1, same++;
        }
        free(text);
    }
    CHECK_INT(same, 5);
    CHECK(strcmp(eval_lines_select(few, "", 5), eval_lines_select(other, "", 5)));
    CHECK_INT(eval_lines_read(few), 5); // two questions about each text
    CHECK_INT(strncmp(eval_line_text(eval_lines[0], "input"), eval_line_text(eval_lines[1], "input"), 2000), 0);
    CHECK(strcmp(eval_line_text(eval_lines[0], "question"), eval_line_text(eval_lines[1], "question")));
    CHECK(strncmp(eval_line_text(eval_lines[1], "input"), eval_line_text(eval_lines[2], "input"), 2000));
}

// Haystacks, and the wording for assistants, whose length includes the chat template.
void case_eval_wordings(void) {
    const char *m = tiny();
    static const char *const haystacks[][2] = {{"noise", "again"}, {"needles", "magic numbers"}};
    for (int i = 0; i < 2; i++) {
        result r = RUN("eval", "-m", m, "--task", "niah-multikey", "--length", "1k", "--samples", "2", "--haystack",
                       haystacks[i][0], "--grader", "exact", "--dump", in_tmp("h"));
        CHECK_GOOD(r);
        CHECK_INT(eval_lines_read(in_tmp("h")), 2);
        const char *text = eval_line_text(eval_lines[0], "input");
        CHECK_STR(eval_line_text(eval_lines[0], "grader"), "exact");
        int n = find_facts(text, " One of the special magic numbers for ", " is: ", ".");
        CHECK(i ? n > 30 : n == 16);
        CHECK_HAS(text, haystacks[i][1]);
        CHECK(eval_line_int(eval_lines[0], "length") > 960 && eval_line_int(eval_lines[0], "length") <= 1024);
    }
    result r = RUN("eval", "-m", m, "--task", "niah-single", "--length", "128k", "--samples", "1", "--dump", in_tmp("long"));
    CHECK_GOOD(r);
    CHECK_INT(eval_lines_read(in_tmp("long")), 1);
    CHECK(eval_line_int(eval_lines[0], "length") > 131072 - 40 && eval_line_int(eval_lines[0], "length") <= 131072);
    r = RUN("eval", "-m", m, "--chat", "--task", "niah-single,vt,cwe,fwe,qa-2hop", "--length", "2k", "--samples", "1", "--dump",
            in_tmp("c"));
    CHECK_GOOD(r);
    CHECK_INT(eval_lines_read(in_tmp("c")), 5);
    CHECK_HAS(eval_line_text(eval_lines[0], "input"), "The secret code of ");
    CHECK_LACKS(eval_line_text(eval_lines[0], "input"), "Answer:");
    CHECK_INT(json_array_size(json_object_get(eval_lines[1], "outputs")), 5);
    CHECK_INT(json_array_size(json_object_get(eval_lines[2], "outputs")), 10);
    for (int i = 0; i < 5; i++) {
        int plain = n_tokens(eval_line_text(eval_lines[i], "input"), "--bos"), all = eval_line_int(eval_lines[i], "length");
        CHECK(all <= 2048 && all > 1900 && all - plain > 30 + 5); // with the tokens of the template
    }
    r = RUN("eval", "-m", m, "--chat", "--task", "niah-single", "--length", "600", "--samples", "1", "--attn", "dense,topk:k=8",
            "-o", "csv", "-n", "4");
    CHECK_GOOD(r);
    CHECK_HAS(r.out, "\"niah-single\",600,\"topk:k=8\",1,1,");
}
