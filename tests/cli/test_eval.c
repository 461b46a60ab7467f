// tests/cli/test_eval.c - parts of sleigh eval that need no model: graders, files of questions, the file of scores.
#include "cli/eval/eval_grade.h"
#include "cli/eval/eval_records.h"
#include "cli/eval/eval_scores.h"
#include "cli/eval/eval_tasks.h"
#include "cli/eval/fingerprint.h"
#include "cli/resume_file.h"
#include "tests/support/run_cli.h"

#include <math.h>
#include <stdlib.h>

// ---- graders ----

static const struct {
    const char *grader, *answer, *references;
    double score;
    const char *extracted; // NULL: not checked
} grades[] = {
    {"substring", " 1234567.", "[\"1234567\"]", 1, ""},
    {"substring", "The numbers are 11, 22 and 44.", "[\"11\",\"22\",\"33\",\"44\"]", 0.75, ""},
    {"substring", "it lives in PARIS", "[\"Paris\"]", 1, ""},
    {"substring", "", "[\"Paris\"]", 0, ""},
    {"substring", "par is", "[\"Paris\"]", 0, ""},
    {"any", "with Ann in Rome.", "[\"Oslo\",\"rome\"]", 1, ""},
    {"any", "with Ann in Bonn.", "[\"Oslo\",\"rome\"]", 0, ""},
    {"words", "bada, badaku, zu", "[\"bada\",\"ku\",\"ZU\"]", 2.0 / 3, ""},
    {"words", "bada\xC3\xA9", "[\"bada\"]", 0, ""}, // a letter beyond ASCII follows
    {"integers", "7, 7, 8, 9, 10, 11", "[\"7\",\"8\",\"9\",\"10\"]", 1, ""},
    {"integers", "1 2 7 8 9 10", "[\"7\",\"8\",\"9\",\"10\"]", 0.5, ""}, // only the first four count
    {"integers", "7 7", "[\"7\",\"8\"]", 0.5, ""},                       // a repeated integer counts once
    {"integers", "7.5 and 8", "[\"7\",\"8\"]", 0.5, ""},
    {"integers", "none", "[\"7\",\"8\"]", 0, ""},
    {"exact", " with Ann in Rome.\n", "[\"with Ann in Rome.\"]", 1, "with Ann in Rome."},
    {"exact", "with Ann in rome.", "[\"with Ann in Rome.\"]", 0, NULL},
    {"boxed", "so \\boxed{3} and at last \\boxed{\\frac{1}{2}}.", "[\"0.5\"]", 1, "\\frac{1}{2}"},
    {"boxed", "\\boxed{a{b}c}", "[\"a{b}c\"]", 1, "a{b}c"},
    {"boxed", "\\boxed{ x + 1 }", "[\"x + 1\"]", 1, "x + 1"},
    {"boxed", "\\boxed{7} then \\boxed{8", "[\"7\"]", 1, "7"}, // the last box does not close
    {"boxed", "the answer is 7", "[\"7\"]", 0, ""},
    {"boxed", "\\boxed{3/4}", "[\"0.75\"]", 1, NULL},
    {"boxed", "\\boxed{1/0}", "[\"0\"]", 0, NULL},
    {"boxed", "\\boxed{-\\frac{6}{3}}", "[\"-2\"]", 1, NULL},
    {"numeric-boxed", "\\boxed{1,234}", "[\"1234\"]", 1, "1,234"},
    {"numeric-boxed", "\\boxed{\\$18.00}", "[\"18\"]", 1, NULL},
    {"numeric-boxed", "\\boxed{-5}", "[\"5\"]", 0, "-5"},
    {"numeric-boxed", "\\boxed{45\\%}", "[\"45\"]", 1, NULL},
    {"numeric-boxed", "\\boxed{x = 12}", "[\"12\"]", 1, "12"},
    {"numeric-boxed", "first 3, then 40 apples", "[\"40\"]", 1, "40"}, // no box: the last number
    {"numeric-boxed", "nothing", "[\"40\"]", 0, ""},
    {"numeric-line", "12 + 6 = 18\n\n18\n\n", "[\"18\"]", 1, "18"},
    {"numeric-line", "reasoning 5\n-1,050 dollars", "[\"-1050\"]", 1, "-1,050"},
    {"numeric-line",
     "\xE2\x88\x92"
     "7",
     "[\"-7\"]", 1, NULL}, // U+2212
    {"numeric-line", "pages 3-4", "[\"3\"]", 1, "3"},
    {"numeric-line", "a list 1,2,3", "[\"1\"]", 1, "1"},
    {"numeric-line", "about 1,23 of it", "[\"1\"]", 1, "1"}, // the comma does not separate thousands
    {"numeric-line", "so there are 9 of them\nthat is all", "[\"9\"]", 1,
     "9"}, // no number in the last line: look in the last words
    {"numeric-line", "1 a a a a a a a a a a a a a a a a a a a a a a a a\na b", "[\"1\"]", 0, ""}, // 26 words before the end
    {"numeric-line", "18.5", "[\"18\"]", 0, "18.5"},
    {"numeric-line", "B12 is a vitamin, 3 is not", "[\"3\"]", 1, "3"},
    {"numeric-line", "", "[\"18\"]", 0, ""},
    {"choice-boxed", "A or C? \\boxed{c}", "[\"C\"]", 1, "C"},
    {"choice-boxed", "\\boxed{\\text{B}}", "[\"B\"]", 1, "B"},
    {"choice-boxed", "First A, in the end D.", "[\"d\"]", 1, "D"}, // no box: the last letter
    {"choice-boxed", "It is a trick, so B", "[\"B\"]", 1, "B"},
    {"choice-boxed", "E", "[\"A\"]", 0, ""},
    {"choice-line", "I weighed A and B.\nC", "[\"C\"]", 1, "C"},
    {"choice-line", "thus\nThe answer is (B).", "[\"B\"]", 1, "B"},
    {"choice-line", "thus\nthe answer is a bird, B", "[\"B\"]", 1, "B"}, // a capital takes precedence over a lower-case word
    {"choice-line", "thus\nb", "[\"B\"]", 1, "B"},
    {"choice-line", "It must be D\nas I'd said", "[\"D\"]", 1, "D"}, // not the d of I'd
    {"choice-line", "D one two three four five six seven eight nine ten\nno letter here", "[\"D\"]", 0, ""},
    {"choice-line", "ABCD", "[\"A\"]", 0, ""},
    // ends and neighbours of a match
    {"substring", "Paris", "[\"Paris\"]", 1, ""},
    {"substring", "Pari", "[\"Paris\"]", 0, ""},
    {"any", "in Oslo", "[\"Oslo\"]", 1, ""},
    {"words", "bada", "[\"bada\"]", 1, ""},
    {"words", "bada1", "[\"bada\"]", 0, ""},
    {"words", "1bada", "[\"bada\"]", 0, ""},
    {"words", "badaku bada", "[\"bada\"]", 1, ""}, // only the second occurrence
    // digits after commas and points
    {"numeric-line", "1,234,567", "[\"1234567\"]", 1, "1,234,567"},
    {"numeric-line", "1,2345", "[\"1\"]", 1, "1"}, // a fourth digit
    {"numeric-line", "12,34", "[\"12\"]", 1, "12"},
    {"numeric-line", "1,234,56", "[\"1234\"]", 1, "1,234"},
    {"numeric-line", "1,234.5", "[\"1234.5\"]", 1, "1,234.5"},
    {"numeric-line", "1,23a", "[\"1\"]", 1, "1"},
    {"numeric-line", "0.125", "[\"0.125\"]", 1, "0.125"},
    {"numeric-line", "3.14159 or so", "[\"3.14159\"]", 1, "3.14159"},
    {"numeric-line", "3.14159", "[\"3.1416\"]", 0, NULL},
    {"numeric-line", "so 2. Then", "[\"2\"]", 1, "2"},
    // numbers are equal within 1e-9 of the larger number, or of 1
    {"numeric-line", "1.0000000009", "[\"1\"]", 1, NULL},
    {"numeric-line", "1.0000000011", "[\"1\"]", 0, NULL},
    {"numeric-line", "0.0000000009", "[\"0\"]", 1, NULL},
    {"numeric-line", "0.0000000011", "[\"0\"]", 0, NULL},
    {"numeric-line", "1000000000999", "[\"1000000000000\"]", 1, NULL},
    {"numeric-line", "1000000001001", "[\"1000000000000\"]", 0, NULL},
    {"numeric-line", "-1000000000999", "[\"-1000000000000\"]", 1, NULL},
    {"boxed", "\\boxed{2000000000}", "[\"2000000001\"]", 1, NULL},
    {"boxed", "\\boxed{2000000000}", "[\"2000000003\"]", 0, NULL},
    // signs, hyphens, names; also after a number
    {"numeric-boxed", "it takes 3-4", "[\"4\"]", 1, "4"},
    {"numeric-boxed", "from 3 to -4", "[\"-4\"]", 1, "-4"},
    {"numeric-boxed", "5 and x-7", "[\"7\"]", 1, "7"},
    {"numeric-boxed", "5 apples of B12", "[\"5\"]", 1, "5"},
    {"numeric-boxed", "so 12x3", "[\"12\"]", 1, "12"},
    {"integers", "7-8-9", "[\"7\",\"8\",\"9\"]", 1, ""},
    {"integers", "-7, 8", "[\"7\",\"8\"]", 0.5, ""},
    {"integers", "7.5, 7, 8", "[\"7\",\"8\"]", 1, ""}, // a fraction does not count as an integer
    // whole texts that are numbers
    {"boxed", "\\boxed{-$5}", "[\"-5\"]", 1, NULL},
    {"boxed", "\\boxed{$-5}", "[\"-5\"]", 1, NULL},
    {"boxed", "\\boxed{-\\$5\\%}", "[\"-5\"]", 1, NULL},
    {"boxed", "\\boxed{5.}", "[\"5\"]", 1, NULL},
    {"boxed", "\\boxed{\\dfrac{1}{4}}", "[\"0.25\"]", 1, NULL},
    {"boxed", "\\boxed{\\tfrac{ 3 }{4}}", "[\"3/4\"]", 1, NULL},
    {"boxed", "\\boxed{-1/2}", "[\"-0.5\"]", 1, NULL},
    {"boxed", "\\boxed{1/2x}", "[\"0.5\"]", 0, NULL},
    {"boxed", "\\boxed{\\frac{1}2}", "[\"0.5\"]", 0, NULL},
    {"boxed", "\\boxed{\\frac{1}}", "[\"1\"]", 0, NULL},
    {"boxed", "\\boxed{1 2}", "[\"1\"]", 0, NULL},
    // the 25th word from the end counts, the 26th does not; for letters the 10th and the 11th
    {"numeric-line", "1 a a a a a a a a a a a a a a a a a a a a a a\na b", "[\"1\"]", 1, "1"},
    {"numeric-line", "1 a a a a a a a a a a a a a a a a a a a a a a a\na b", "[\"1\"]", 0, ""},
    {"choice-line", "D 2 3 4 5 6 7 8\nno letter", "[\"D\"]", 1, "D"},
    {"choice-line", "D 2 3 4 5 6 7 8 9\nno letter", "[\"D\"]", 0, ""},
    {"choice-line", "A D\nno letter", "[\"D\"]", 1, "D"}, // the last letter
    {"choice-line", "so\nA or D", "[\"A\"]", 1, "A"},     // the first letter in the last line
    {"choice-line", "so\nB' or C", "[\"C\"]", 1, "C"},
    {"choice-line", "so\nC", "[\"CD\",\"B\"]", 0, "C"},
    {"choice-line", "so\n'B or C", "[\"C\"]", 1, "C"},
    {"boxed", "\\boxed{0.5}", "[\"\\\\frac{1}{2\"]", 0, NULL},
    {"boxed", "\\boxed{0.5}", "[\"\\\\frac{1}{2}\"]", 1, NULL},
    {"exact", "5.0", "[\"5\"]", 0, NULL}, // compared as text
    {"choice-boxed", "so \\boxed{B or A}", "[\"A\"]", 1, "A"},
};

static void graders(void) {
    for (size_t i = 0; i < sizeof grades / sizeof *grades; i++) {
        char extracted[EVAL_EXTRACT];
        json_t *references = json_loads(grades[i].references, 0, NULL);
        eval_grader grader = eval_grader_find(grades[i].grader);
        CHECK(references && grader != GRADE_NONE);
        CHECK_STR(eval_grader_name(grader), grades[i].grader);
        double score = eval_grade(grader, grades[i].answer, strlen(grades[i].answer), references, extracted);
        json_decref(references);
        if (fabs(score - grades[i].score) > 1e-12)
            FAIL("%s of \"%s\": %g (\"%s\"), expected %g", grades[i].grader, grades[i].answer, score, extracted,
                 grades[i].score);
        if (grades[i].extracted) CHECK_STR(extracted, grades[i].extracted);
    }
    CHECK_INT(eval_grader_find("none"), GRADE_NONE);
    CHECK_INT(eval_grader_find("numeric"), GRADE_NONE);
}

// A long answer without a box: the letter must be in its last 300 bytes, the number in its last 200. The extract never ends in
// an incomplete character.
static void grade_long(void) {
    char text[1024], extracted[EVAL_EXTRACT];
    json_t *references = json_loads("[\"B\"]", 0, NULL);
    memset(text, '.', sizeof text);
    text[1024 - 300] = 'B';
    double inside = eval_grade(GRADE_CHOICE_BOX, text, sizeof text, references, extracted);
    text[1024 - 300] = '.', text[1024 - 301] = 'B';
    double outside = eval_grade(GRADE_CHOICE_BOX, text, sizeof text, references, extracted);
    CHECK(inside == 1 && outside == 0);
    json_decref(references);
    references = json_loads("[\"7\"]", 0, NULL);
    text[1024 - 301] = '.', text[1024 - 200] = '7'; // a number: within 200
    inside = eval_grade(GRADE_NUMERIC_BOX, text, sizeof text, references, extracted);
    text[1024 - 200] = '.', text[1024 - 201] = '7';
    outside = eval_grade(GRADE_NUMERIC_BOX, text, sizeof text, references, extracted);
    CHECK(inside == 1 && outside == 0);
    memset(text, 'x', sizeof text);
    eval_grade(GRADE_EXACT, text, sizeof text, references, extracted);
    CHECK_INT(strlen(extracted), EVAL_EXTRACT - 1);
    for (int i = 0; i < 512; i++) memcpy(text + 2 * i, "\xC3\xA9", 2);
    eval_grade(GRADE_EXACT, text, sizeof text, references, extracted);
    CHECK_INT(strlen(extracted), EVAL_EXTRACT - 2);
    eval_grade(GRADE_EXACT, text, EVAL_EXTRACT - 3, references,
               extracted); // all of it fits, also an incomplete character at its end
    CHECK_INT(strlen(extracted), EVAL_EXTRACT - 3);
    CHECK(eval_grade(GRADE_WORDS, "so 78", 4, references, extracted) == 1); // bytes after the answer do not count
    CHECK(eval_grade(GRADE_NUMERIC_LINE, "so 78", 4, references, extracted) == 1);
    json_decref(references);
}

// ---- question files ----

static void read_file(const char *text, eval_grader grader, const char *procedure, eval_records *out) {
    sl_error e;
    spill(in_tmp("q.jsonl"), text, strlen(text));
    CHECK_OK(eval_records_read(in_tmp("q.jsonl"), grader, procedure ? eval_procedure_find(procedure) : NULL, -1, out, &e), e);
}

static void check_record(const eval_record *r, const char *context, const char *question, const char *reference,
                         const char *grader) {
    const eval_item *item = r->text.items;
    CHECK_STR(r->text.context.data ? r->text.context.data : "", context);
    CHECK_STR(item->question.data, question);
    CHECK_STR(json_string_value(json_array_get(item->references, 0)), reference);
    CHECK_STR(eval_grader_name(item->grader), grader);
}

static void records(void) {
    eval_records r;
    sl_error e;
    read_file(
        "{\"index\": 0, \"input\": \"Head.\\nBody.\\nWhat is it?\\n\", \"outputs\": [\"1\", \"2\"], \"length\": 9, "
        "\"answer_prefix\": \" It is\"}\n\n"
        "{\"input\": \"Head. Body. Ask?\", \"question\": \"Ask?\", \"outputs\": [3], \"task\": \"vt\", \"grader\": \"words\"}\n"
        "{\"question\": \"How many?\", \"answer\": \"9 + 9\\n#### 1,018\"}\n"
        "{\"context\": \"C.\", \"question\": \"Q\", \"choices\": [\"x\", \"y\", \"z\"], \"answer\": 2}\n"
        "{\"prompt\": \"P\", \"answer\": 2.5}",
        GRADE_NONE, NULL, &r);
    CHECK_INT(r.n, 5);
    check_record(&r.at[0], "Head.\nBody.\n", "What is it?\n", "1", "substring");
    CHECK_INT(json_array_size(r.at[0].text.items->references), 2);
    CHECK_STR(r.at[0].text.items->prefix.data, " It is");
    CHECK_STR(r.at[0].task, "q"); // the name of the file
    check_record(&r.at[1], "Head. Body. ", "Ask?", "3", "words");
    CHECK_STR(r.at[1].task, "vt");
    CHECK_INT(r.at[1].line, 3);
    check_record(&r.at[2], "", "How many?", "1,018", "any");
    check_record(&r.at[3], "C.", "Q\nA. x\nB. y\nC. z", "C", "choice-line");
    check_record(&r.at[4], "", "P", "2.5", "any");
    CHECK_STR(r.hash, "fnv1a:cc1065a89b8ac96d");
    for (int i = 0; i < 5; i++) CHECK_INT(r.at[i].text.items->n_predict, i == 3 ? 1024 : 128);
    eval_records_free(&r);
    CHECK_OK(eval_records_read(in_tmp("q.jsonl"), GRADE_BOXED, NULL, 0, &r, &e), e);
    CHECK(r.at[0].text.items->n_predict == 0 && r.at[4].text.items->n_predict == 0);
    eval_records_free(&r);
    read_file("{\"prompt\": \"a\", \"answer\": \"b\"}\n", GRADE_BOXED, NULL, &r);
    CHECK_INT(r.at[0].text.items->n_predict, 1024);
    eval_records_free(&r);
    read_file("{\"prompt\": \"a\", \"choices\": [\"x\", \"y\", \"z\", \"w\"], \"answer\": 3}\n"
              "{\"prompt\": \"a\", \"choices\": [\"x\", \"y\"], \"answer\": 0}\n"
              "{\"prompt\": \"a\", \"choices\": [\"x\", \"y\"], \"answers\": [\"b\", \"B\"], \"grader\": \"exact\"}\n"
              "{\"input\": \"All\\nsame.\", \"question\": \"All\\nsame.\", \"answer\": \"####7\"}\n"
              "{\"input\": \"One\\n Two \\n \\n\", \"question\": \"no end\", \"answer\": \"a #### b #### 7 \"}\n"
              "{\"input\": \"\\nTwo\", \"answer\": \"###\"}\n"
              "{\"input\": \"One\\nTwo\", \"question\": \"\", \"answer\": -7}\n",
              GRADE_NUMERIC_BOX, NULL, &r);
    check_record(&r.at[0], "", "a\nA. x\nB. y\nC. z\nD. w", "D", "numeric-boxed");
    check_record(&r.at[1], "", "a\nA. x\nB. y", "A", "numeric-boxed");
    check_record(&r.at[2], "", "a\nA. x\nB. y", "b", "exact");
    CHECK_INT(json_array_size(r.at[2].text.items->references), 1);
    check_record(&r.at[3], "", "All\nsame.", "7", "numeric-boxed");
    check_record(&r.at[4], "One\n", " Two \n \n", "7", "numeric-boxed"); // the text after the last ####
    check_record(&r.at[5], "\n", "Two", "###", "numeric-boxed");
    check_record(&r.at[6], "One\n", "Two", "-7", "numeric-boxed");
    CHECK(r.at[0].text.items->n_predict == 1024 && r.at[2].text.items->n_predict == 128);
    eval_records_free(&r);
    spill(in_tmp(".hidden"), "{\"prompt\": \"a\", \"answer\": \"b\"}", 30);
    CHECK_OK(eval_records_read(in_tmp(".hidden"), GRADE_NONE, NULL, 0, &r, &e), e);
    CHECK_STR(r.at[0].task, "."); // never empty
    eval_records_free(&r);
    read_file("{\"question\": \"How many?\", \"answer\": \"#### -3\"}\n", GRADE_NUMERIC_BOX, "gsm8k-boxed", &r);
    check_record(&r.at[0], "", "How many?\n\nPlease reason step by step, and put your final numeric answer within \\boxed{}.",
                 "-3", "numeric-boxed");
    eval_records_free(&r);
}

static void records_errors(void) {
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"{\"prompt\": \"a\", \"answer\": \"b\"}\n{\"prompt\"\n", "line 2: "},
        {"[1]\n", "line 1: expected an object"},
        {"{\"answer\": \"b\"}\n", "line 1: expected a string \"input\", \"prompt\" or \"question\""},
        {"{\"prompt\": \"\", \"answer\": \"b\"}\n", "line 1: expected a prompt that is not empty"},
        {"{\"prompt\": \"a\"}\n", "line 1: expected a reference: "},
        {"{\"prompt\": \"a\", \"outputs\": []}\n", "line 1: \"outputs\" or \"answers\": expected a list"},
        {"{\"prompt\": \"a\", \"outputs\": [\"x\", \" \"]}\n", "line 1: expected references that are not empty"},
        {"{\"prompt\": \"a\", \"answer\": null}\n", "line 1: expected a reference: "},
        {"{\"prompt\": \"a\", \"answer\": {}}\n", "line 1: expected a text or a number"},
        {"{\"prompt\": \"a\", \"answer\": \"b\", \"grader\": \"good\"}\n", "line 1: \"grader\": unknown"},
        {"{\"question\": \"a\", \"choices\": [\"x\", \"y\"], \"answer\": 4}\n", "line 1: \"answer\": expected 0 to 3"},
        {"{\"question\": \"a\", \"choices\": [\"x\", \"y\"], \"answer\": -1}\n", "line 1: \"answer\": expected 0 to 3"},
        {"{\"question\": \"a\", \"choices\": [\"x\"], \"answer\": 0}\n", "line 1: \"choices\": "},
        {"{\"question\": \"a\", \"choices\": [\"v\", \"w\", \"x\", \"y\", \"z\"], \"answer\": 0}\n", "line 1: \"choices\": "},
        {"{\"question\": \"a\", \"choices\": [\"v\", 5], \"answer\": 0}\n", "line 1: \"choices\": "},
        {"{\"question\": \"a\", \"answer\": \"b ####\"}\n", "line 1: expected references that are not empty"},
        {"\n{\"prompt\": \"a\", \"answer\": 0}\n\n{\"prompt\": 5}", "line 4: "},
        {"{\"prompt\": \"a\", \"context\": \"c\", \"answer\": 0}\n", "line 1: \"context\": "},
        {"{\"prompt\": \"a\", \"task\": 3, \"answer\": 0}\n", "line 1: \"task\": "},
        {"\n\n", "expected questions, found none"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sl_error e;
        eval_records r;
        spill(in_tmp("bad.jsonl"), cases[i].text, strlen(cases[i].text));
        CHECK_ERR(eval_records_read(in_tmp("bad.jsonl"), GRADE_NONE, NULL, -1, &r, &e), e, SL_ERR_FORMAT, cases[i].part);
    }
}

// ---- the file of scores ----

static json_t *settings_of(int seed) {
    return json_pack("{s:s, s:i}", "model", "m", "seed", seed);
}

static void add_line(char *file, const char *task, int length, int sample, const char *attn, double score) {
    sprintf(
        file + strlen(file),
        "{\"task\":\"%s\",\"length\":%d,\"sample\":%d,\"attn\":\"%s\",\"score\":%g,\"kv_bytes\":%d,\"kv_dense_bytes\":%d}\n",
        task, length, sample, attn, score, 10 + sample, 100 + sample);
}

// Two groups of two samples, two methods. Cells of other tasks, lengths, samples and methods are ignored.
static int open_scores(eval_scores *s, int seed, FILE **out, sl_error *e) {
    static char *names[] = {"dense", "topk:k=8"};
    json_t *settings = settings_of(seed);
    *s = (eval_scores){.n_groups = 2, .n_samples = 4, .n_methods = 2, .methods = names};
    s->groups = calloc(2, sizeof *s->groups);
    CHECK(s->groups);
    s->groups[0] = (eval_group){.task = "x", .length = 64, .n = 2};
    s->groups[1] = (eval_group){.task = "x", .length = 65, .first = 2, .n = 2};
    CHECK_OK(eval_scores_alloc(s, e), *e);
    int rc = eval_file_open(in_tmp("scores"), settings, s, out, e);
    json_decref(settings);
    return rc;
}

static void scores_file(void) {
    char file[4096] = "{\"sleigh_eval\":1,\"settings\":{\"seed\":7,\"model\":\"m\"}}\n";
    size_t n;
    FILE *out;
    sl_error e;
    eval_scores s;
    add_line(file, "x", 64, 1, "dense", 0.5);
    add_line(file, "x", 65, 0, "topk:k=8", 1);
    add_line(file, "x", 64, 2, "dense", 1);  // a sample beyond the group: not the first of the next group
    add_line(file, "x", 65, -1, "dense", 1); // nor a sample before the group
    add_line(file, "x", 63, 0, "topk:k=8", 1);
    add_line(file, "y", 64, 0, "dense", 1);
    add_line(file, "x", 66, 0, "dense", 1);
    add_line(file, "x", 64, 0, "dense,topk", 1);
    size_t whole = strlen(file);
    strcat(file, "{\"task\":\"x\",\"len"); // an incomplete line
    spill(in_tmp("scores"), file, strlen(file));
    CHECK_OK(open_scores(&s, 7, &out, &e), e);
    const double want[8] = {NAN, 0.5, NAN, NAN, NAN, NAN, 1, NAN};
    for (int i = 0; i < 8; i++) CHECK(isnan(want[i]) ? isnan(s.score[i]) : s.score[i] == want[i]);
    CHECK(s.bytes[1] == 11 && s.dense[1] == 101 && s.bytes[6] == 10 && s.dense[6] == 100 && s.bytes[0] == 0);
    CHECK_INT(eval_scores_missing(&s), 6);
    json_t *line = json_pack("{s:f}", "score", 0.1);
    CHECK_OK(cli_resume_add(out, "--out", "scores", line, &e), e);
    json_decref(line);
    const char *now = slurp(in_tmp("scores"), &n);
    CHECK(n > whole && !memcmp(now, file, whole));
    CHECK_STR(now + whole, "{\"score\":0.10000000000000001}\n"); // all digits
    FILE *other;
    eval_scores t;
    CHECK_ERR(open_scores(&t, 7, &other, &e), e, SL_ERR_IO, "another run writes to it");
    eval_scores_free(&t);
    fclose(out);
    eval_scores_free(&s);
    CHECK_ERR(open_scores(&s, 8, &out, &e), e, SL_ERR_ARG, "seed = 7, but this command has 8");
    eval_scores_free(&s);
    file[whole] = 0;
    add_line(file, "x", 65, 0, "topk:k=8", 0);
    spill(in_tmp("scores"), file, strlen(file));
    CHECK_ERR(open_scores(&s, 7, &out, &e), e, SL_ERR_FORMAT, "line 10: this sample and method occur twice");
    eval_scores_free(&s);
    file[whole] = 0;
    strcat(file, "{\"task\":\"x\"}\n");
    spill(in_tmp("scores"), file, strlen(file));
    CHECK_ERR(open_scores(&s, 7, &out, &e), e, SL_ERR_FORMAT, "line 10: expected a line with a sample");
    eval_scores_free(&s);
    static const char other_version[] = "{\"sleigh_eval\":2,\"settings\":{\"seed\":7,\"model\":\"m\"}}\n";
    spill(in_tmp("scores"), other_version, sizeof other_version - 1);
    CHECK_ERR(open_scores(&s, 7, &out, &e), e, SL_ERR_ARG, "expected a file that sleigh eval wrote");
    CHECK_STR(slurp(in_tmp("scores"), &n), other_version); // unchanged
    eval_scores_free(&s);
}

// Stated errors of layers in a line of the file. A line of a method without them may lack the fields, or have nulls.
static void stated_in_file(void) {
    static const struct {
        const char *fields;
        int good, stated, certified, unbounded;
        double mean, most;
    } cases[] = {
        {"\"layer_steps\":0,\"certified_share\":null,\"stated_error\":null", 1, 0, 0, 0, NAN, NAN},
        {"\"layer_steps\":8,\"certified_share\":0.75,\"stated_error\":0.2,\"stated_error_max\":0.5,\"unbounded_share\":0.125",
         1, 8, 6, 1, 0.2, 0.5},
        {"\"layer_steps\":3,\"certified_share\":0.33333333333333331,\"stated_error\":null,\"unbounded_share\":1.0", 1, 3, 1, 3,
         NAN, NAN},
        {"\"layer_steps\":-1", 0, 0, 0, 0, 0, 0},
        {"\"layer_steps\":8,\"certified_share\":1.5", 0, 0, 0, 0, 0, 0},
        {"\"layer_steps\":8,\"unbounded_share\":-0.1", 0, 0, 0, 0, 0, 0},
        {"\"layer_steps\":8,\"stated_error\":-1", 0, 0, 0, 0, 0, 0},
        {"\"layer_steps\":8,\"stated_error_max\":2000", 0, 0, 0, 0, 0, 0},
        {"\"layer_steps\":9000000000000000,\"stated_error\":1000", 0, 0, 0, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char file[4096] = "{\"sleigh_eval\":1,\"settings\":{\"seed\":7,\"model\":\"m\"}}\n";
        FILE *out = NULL;
        sl_error e;
        eval_scores s;
        sl_attn_stats sum;
        add_line(file, "x", 64, 1, "dense", 0.5);
        snprintf(file + strlen(file) - 2, sizeof file - strlen(file), ",%s}\n", cases[i].fields);
        spill(in_tmp("scores"), file, strlen(file));
        if (!cases[i].good) {
            CHECK_ERR(open_scores(&s, 7, &out, &e), e, SL_ERR_FORMAT, "line 2: expected shares from 0 to 1 and errors");
            eval_scores_free(&s);
            continue;
        }
        CHECK_OK(open_scores(&s, 7, &out, &e), e);
        eval_scores_sum_stated(&s, 0, 0, 4, &sum);
        CHECK_INT(sum.stated, cases[i].stated);
        CHECK_INT(sum.certified, cases[i].certified);
        CHECK_INT(sum.unbounded, cases[i].unbounded);
        double mean = sl_attn_stats_stated_mean(&sum), most = sl_attn_stats_stated_most(&sum);
        CHECK(isnan(cases[i].mean) ? isnan(mean) : fabs(mean - cases[i].mean) < 1e-9);
        CHECK(isnan(cases[i].most) ? isnan(most) : most == cases[i].most);
        fclose(out);
        eval_scores_free(&s);
    }
}

// Every name and every byte of a document of the tokenizer, and where a document ends, is part of the hash; other files are
// not.
static void fingerprints(void) {
    static const char *const documents[] = {
        "tokenizer.json",     "tokenizer.model",         "tokenizer.model.v1",  "tokenizer.model.v2", "tokenizer.model.v3",
        "tokenizer.model.v7", "tokenizer.model.v7m1",    "tokenizer.model.v11", "tekken.json",        "tokenizer_config.json",
        "added_tokens.json",  "special_tokens_map.json", "chat_template.jinja", "chat_template.json"};
    static const char *const pairs[][2] = {{"a", ""}, {"", "a"}, {"b", ""}, {"ab", ""}, {"a", "b"}, {"b", "a"}, {"", "ab"}};
    enum { N = 14, PAIRS = 7 };
    cli_fingerprint found[1 + N + PAIRS + 2], *f = &found[1 + N + PAIRS];
    size_t n;
    sl_error e;
    char *config = slurp("models/tiny/config.json", &n);
    spill(in_tmp("config.json"), config, n);
    for (int i = 0; i < 1 + N + PAIRS; i++) { // no document; each one; two
        const char *const *pair = i > N ? pairs[i - N - 1] : NULL;
        if (i && !pair) spill(in_tmp(documents[i - 1]), "a", 1);
        if (pair) spill(in_tmp(documents[2]), pair[0], strlen(pair[0])), spill(in_tmp(documents[3]), pair[1], strlen(pair[1]));
        CHECK_OK(cli_fingerprint_read(test_tmp(), 1, NULL, &found[i], &e), e);
        CHECK_STR(found[i].config, found[0].config);
        for (int j = 0; j < i; j++) CHECK(strcmp(found[i].tokenizer, found[j].tokenizer));
        if (i && !pair) remove(in_tmp(documents[i - 1]));
    }
    spill(in_tmp("other.json"), "{}", 2);
    CHECK_OK(cli_fingerprint_read(test_tmp(), 1, NULL, &f[0], &e), e);
    CHECK_STR(f[0].tokenizer, f[-1].tokenizer);
    CHECK_STR(f[0].config, f[-1].config);
    const sl_rope_options rope = {.theta = 20000};
    CHECK_OK(cli_fingerprint_read(test_tmp(), 1, &rope, &f[0], &e), e);
    spill(in_tmp("generation_config.json"), "{}", 2);
    CHECK_OK(cli_fingerprint_read(test_tmp(), 1, NULL, &f[1], &e), e);
    CHECK(strcmp(f[0].config, f[-1].config) && strcmp(f[1].config, f[-1].config));
}

static int one_token(void *ctx, const sl_text *context, const eval_item *item, int *n_tokens, sl_error *e) {
    (void)ctx, (void)context, (void)item, (void)e;
    *n_tokens = 1;
    return 0;
}

// A haystack of needles has a key in every sentence, and there are 20000 keys.
static void too_long(void) {
    const eval_maker maker = {.n_questions = 1, .n_predict = 1, .haystack = HAYSTACK_NEEDLES, .count = one_token};
    eval_text text;
    sl_error e;
    CHECK_ERR(eval_task_text(&maker, eval_task_find("niah-single"), 1 << 24, 0, &text, &e), e, SL_ERR_ARG,
              "--length 16777216: too long for task niah-single, which has only 20000 keys");
}

static const test_case cases[] = {
    {"too_long", NEEDS_NOTHING, too_long},
    {"graders", NEEDS_NOTHING, graders},
    {"grade_long", NEEDS_NOTHING, grade_long},
    {"fingerprints", NEEDS_NOTHING, fingerprints},
    {"records", NEEDS_NOTHING, records},
    {"records_errors", NEEDS_NOTHING, records_errors},
    {"scores_file", NEEDS_NOTHING, scores_file},
    {"stated_in_file", NEEDS_NOTHING, stated_in_file},
    {0},
};
const test_suite suite_eval = {"eval", cases};
