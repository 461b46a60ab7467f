// cli/eval/eval_tasks.c - see eval_tasks.h. A text starts as a draft of facts, questions and references. Then filler is
// added: n sentences between the facts, or n words. A bisection with the tokenizer finds n.
//
// All random numbers are from Philox: key (--task-seed, name of the task), counter (text, length, index). Facts, places, filler
// and words use separate streams, so more filler changes nothing else.
#include "cli/eval/eval_tasks.h"
#include "cli/eval/eval_prose.h"
#include "cli/eval/eval_words.h"
#include "cli/grow.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- the tasks and their wording ----

enum { NIAH_SINGLE, NIAH_MULTIKEY, NIAH_MULTIVALUE, NIAH_MULTIQUERY, VT, FWE, CWE, QA_1HOP, QA_2HOP, N_TASKS };

enum { PLAIN, INSTRUCT };

static const struct {
    const char *name;
    int one_question;
    int n_predict[2]; // for the plain and the instruct wording
    eval_grader grader;
} tasks[N_TASKS] = {
    [NIAH_SINGLE] = {"niah-single", 1, {24, 128}, GRADE_SUBSTRING},
    [NIAH_MULTIKEY] = {"niah-multikey", 0, {24, 128}, GRADE_SUBSTRING},
    [NIAH_MULTIVALUE] = {"niah-multivalue", 0, {64, 128}, GRADE_SUBSTRING},
    [NIAH_MULTIQUERY] = {"niah-multiquery", 0, {96, 128}, GRADE_SUBSTRING},
    [VT] = {"vt", 0, {48, 30}, GRADE_SUBSTRING},
    [FWE] = {"fwe", 1, {32, 50}, GRADE_WORDS},
    [CWE] = {"cwe", 1, {48, 120}, GRADE_WORDS},
    [QA_1HOP] = {"qa-1hop", 0, {32, 32}, GRADE_ANY},
    [QA_2HOP] = {"qa-2hop", 0, {32, 32}, GRADE_ANY},
};

// {0}, {1}, {2} are placeholders. The plain wording is exactly that of the embedded model's training
// (scripts/train/tiny_text.py).
static const struct {
    const char *intro_needles, *intro_people, *intro_variables, *intro_coded, *intro_list, *end;
    const char *needle, *assign, *copy, *works, *lives_with, *lives_in;
    const char *ask_one, *ask_values, *ask_keys, *ask_variables, *ask_coded, *ask_list, *ask_place, *ask_job, *ask_home;
    const char *say_one, *say_values, *say_keys, *say_variables, *say_coded, *say_list, *say_place, *say_job, *say_home;
    int n_letters, n_common; // letters of a variable's name; number of words that cwe asks for
} wordings[2] = {
    [PLAIN] =
        {
            .intro_needles =
                "Some special magic numbers are hidden in the text below. Remember them, because there will be questions "
                "about them later.",
            .intro_people = "Read the notes below. There will be questions about people and places.",
            .intro_variables = "The text below sets some variables. Keep track of their values.",
            .intro_coded = "Read the coded words below and count how often each one appears.",
            .intro_list = "Read the numbered words below and count how often each one appears.",
            .end = " This is the end of the text.\n",
            .needle = " One of the special magic numbers for {0} is: {1}.",
            .assign = " VAR {0} = {1}.",
            .copy = " VAR {0} = VAR {1}.",
            .works = " {0} works in {1} as a {2}.",
            .lives_with = " {0} lives with {1}.",
            .lives_in = " {0} lives in {1}.",
            .ask_one = "What is the special magic number for {0} mentioned in the text?",
            .ask_values = "What are all the special magic numbers for {0} mentioned in the text?",
            .ask_keys = "What are the special magic numbers for {0} mentioned in the text?",
            .ask_variables = "Which variables hold {0}?",
            .ask_coded = "Which three coded words appear most often?",
            .ask_list = "Which three words appear most often?",
            .ask_place = "Where does {0} work?",
            .ask_job = "What is the job of {0}?",
            .ask_home = "Where does {0} live?",
            .say_one = " Answer:",
            .say_values = " Answer:",
            .say_keys = " Answer:",
            .say_variables = " Answer:",
            .say_coded = " Answer:",
            .say_list = " Answer:",
            .say_place = " Answer:",
            .say_job = " Answer:",
            .say_home = " Answer:",
            .n_letters = 3,
            .n_common = 3,
        },
    [INSTRUCT] =
        {
            .intro_needles =
                "Below is a long text. A few of its sentences tell the secret code that belongs to a name. Keep those codes "
                "in mind: you will be asked about them when the text is over.\n\n",
            .intro_people =
                "Below are notes about people: where they work and live. Read them with care, a question follows.\n\n",
            .intro_variables =
                "Below is a long text in which variables are given values, here and there. Keep track of which variable "
                "holds what.\n\n",
            .intro_coded =
                "Below is a text in a code of made-up words. Count how often each of them occurs; the dots are noise.\n\n",
            .intro_list =
                "Below is a numbered list of words. Some of them occur far more often than the others; find out which.\n\n",
            .end = "\n\nThat was the whole text.\n",
            .needle = " The secret code of {0} is {1}.",
            .assign = " VAR {0} = {1}.",
            .copy = " VAR {0} = VAR {1}.",
            .works = " {0} works in {1} as a {2}.",
            .lives_with = " {0} lives with {1}.",
            .lives_in = " {0} lives in {1}.",
            .ask_one = "Which secret code does the text give for {0}?",
            .ask_values = "The text gives several secret codes for {0}. Which are they? List all of them.",
            .ask_keys = "Which secret codes does the text give for {0}? List all of them.",
            .ask_variables =
                "Which variables hold the value {0}, directly or through other variables? List the names of all five.",
            .ask_coded = "Which three coded words occur most often? Do not explain.",
            .ask_list = "Which ten words occur most often in the list?",
            .ask_place = "In which city does {0} work? Reply with the name of the city only.",
            .ask_job = "What is the job of {0}? Reply with the name of the job only.",
            .ask_home =
                "In which city does {0} live? People who live together live in the same city. Reply with the city only.",
            .say_one = "The secret code of {0} in the text is",
            .say_values = "The secret codes of {0} in the text are",
            .say_keys = "The secret codes in the text of {0} are",
            .say_variables = "The five variables that hold {0} are:",
            .say_coded = "The three most frequent coded words are:",
            .say_list = "The ten most frequent words are:",
            .say_place = "City:",
            .say_job = "Job:",
            .say_home = "City:",
            .n_letters = 5,
            .n_common = 10,
        },
};

int eval_task_find(const char *name) {
    for (int i = 0; i < N_TASKS; i++)
        if (!strcmp(tasks[i].name, name)) return i;
    return -1;
}

const char *eval_task_name(int task) {
    return task >= 0 && task < N_TASKS ? tasks[task].name : NULL;
}

int eval_task_questions(int task, int n_asked) {
    return tasks[task].one_question ? 1 : n_asked;
}

void eval_text_free(eval_text *text) {
    for (int i = 0; i < text->n_items; i++) {
        eval_item *item = &text->items[i];
        sl_text_free(&item->question), sl_text_free(&item->prefix), sl_text_free(&item->answer);
        json_decref(item->references);
    }
    free(text->items);
    sl_text_free(&text->context);
    *text = (eval_text){0};
}

// ---- a draft ----

typedef struct fact {
    sl_text text;
    double place; // position in the filler, in [0, 1)
} fact;

typedef struct draft {
    const eval_maker *maker;
    int task, wording, length;
    prose p; // random numbers and the first error
    eval_text *out;
    const char *intro, *end;
    fact *facts;
    int n_facts, cap;
    unsigned char *keys, *people; // 1: used already
    int n_keys;
    // filler
    sl_text *units; // sentences; for fwe and cwe words, with the words of the answer first
    int n_units, cap_units;
} draft;

static void add(draft *d, sl_text *to, const char *text, size_t n) {
    prose_put(&d->p, to, text, n);
}

static void add_str(draft *d, sl_text *to, const char *text) {
    add(d, to, text, strlen(text));
}

// Appends the pattern with {0}, {1}, {2} replaced by a, b, c.
static void fill_in(draft *d, sl_text *to, const char *pattern, const char *a, const char *b, const char *c) {
    const char *const values[] = {a, b, c};
    for (const char *p = pattern; *p;) {
        size_t n = strcspn(p, "{");
        add(d, to, p, n);
        p += n;
        if (!*p) break;
        add_str(d, to, values[p[1] - '0']);
        p += 3;
    }
}

static void *grow(draft *d, void *array, int n, int *cap, size_t size) {
    if (d->p.rc) return array;
    void *grown = cli_grow(array, n, cap, size);
    if (!grown) d->p.rc = sl_fail(d->p.err, SL_ERR_MEMORY, "task %s: out of memory", tasks[d->task].name);
    return grown ? grown : array;
}

static void add_fact(draft *d, double place, const char *pattern, const char *a, const char *b, const char *c) {
    d->facts = grow(d, d->facts, d->n_facts, &d->cap, sizeof *d->facts);
    if (d->p.rc) return;
    fact *f = &d->facts[d->n_facts++];
    *f = (fact){.place = place};
    fill_in(d, &f->text, pattern, a, b, c);
}

static sl_text *add_unit(draft *d) {
    d->units = grow(d, d->units, d->n_units, &d->cap_units, sizeof *d->units);
    if (d->p.rc) return NULL;
    d->units[d->n_units] = (sl_text){0};
    return &d->units[d->n_units++];
}

static void refer(draft *d, eval_item *item, const char *reference) {
    if (!d->p.rc && json_array_append_new(item->references, json_string(reference)))
        d->p.rc = sl_fail(d->p.err, SL_ERR_MEMORY, "task %s: out of memory", tasks[d->task].name);
}

// Sets the texts of the item. The caller adds references and answer.
static void ask(draft *d, eval_item *item, const char *question, const char *prefix, const char *about) {
    item->grader = tasks[d->task].grader;
    item->n_predict = d->maker->n_predict >= 0 ? d->maker->n_predict : tasks[d->task].n_predict[d->wording];
    fill_in(d, &item->question, question, about, "", "");
    fill_in(d, &item->prefix, prefix, about, "", "");
}

// ---- keys, names and numbers ----

enum { KEY_LETTERS = 6, MAX_KEYS = 20000, NAME = 96 };

// Makes an unused key of short words, like most keys in the training of the embedded model.
static void new_key(draft *d, char out[NAME]) {
    const eval_words *w = &eval_vocabulary;
    if (d->n_keys++ == MAX_KEYS && !d->p.rc)
        d->p.rc = sl_fail(d->p.err, SL_ERR_ARG, "--length %d: too long for task %s, which has only %d keys", d->length,
                          tasks[d->task].name, MAX_KEYS);
    for (out[0] = 0; !d->p.rc;) {
        uint32_t a = prose_below(&d->p, (uint32_t)w->adjectives.n), b = prose_below(&d->p, (uint32_t)w->nouns.n);
        const char *adjective = w->adjectives.words[a], *noun = w->nouns.words[b];
        unsigned char *taken = &d->keys[a * w->nouns.n + b];
        if (*taken || strlen(adjective) > KEY_LETTERS || strlen(noun) > KEY_LETTERS) continue;
        *taken = 1;
        snprintf(out, NAME, "%s-%s", adjective, noun);
        return;
    }
}

static void new_person(draft *d, char out[NAME]) {
    const eval_words *w = &eval_vocabulary;
    for (;;) {
        uint32_t a = prose_below(&d->p, (uint32_t)w->names.n), b = prose_below(&d->p, (uint32_t)w->surnames.n);
        unsigned char *taken = &d->people[a * w->surnames.n + b];
        if (*taken) continue;
        *taken = 1;
        snprintf(out, NAME, "%s %s", w->names.words[a], w->surnames.words[b]);
        return;
    }
}

static void new_number(draft *d, uint32_t from, uint32_t below, char out[NAME]) {
    snprintf(out, NAME, "%u", from + prose_below(&d->p, below - from));
}

// ---- the facts of each task ----

static void draft_needles(draft *d, int n_keys, int n_values) {
    char key[NAME], value[NAME];
    int many = n_values > 1;
    for (int k = 0; k < n_keys && !d->p.rc; k++) {
        eval_item *item = k < d->out->n_items ? &d->out->items[k] : NULL;
        new_key(d, key);
        if (item && many) ask(d, item, wordings[d->wording].ask_values, wordings[d->wording].say_values, key);
        if (item && !many) ask(d, item, wordings[d->wording].ask_one, wordings[d->wording].say_one, key);
        double *places = prose_sorted(&d->p, n_values); // ascending: the answer lists the values in the order of the text
        for (int v = 0; v < n_values && !d->p.rc; v++) {
            new_number(d, 1000000, 10000000, value);
            add_fact(d, places[v], wordings[d->wording].needle, key, value, "");
            if (!item) continue;
            refer(d, item, value);
            add_str(d, &item->answer, v ? ", " : "");
            add_str(d, &item->answer, value);
        }
        free(places);
        if (item) add_str(d, &item->answer, ".");
    }
}

static void draft_multiquery(draft *d) {
    enum { ASKED = 4 };
    char key[NAME], value[NAME];
    for (int i = 0; i < d->out->n_items && !d->p.rc; i++) {
        eval_item *item = &d->out->items[i];
        sl_text list = {0};
        for (int k = 0; k < ASKED; k++) {
            new_key(d, key);
            new_number(d, 1000000, 10000000, value);
            add_fact(d, prose_unit(&d->p), wordings[d->wording].needle, key, value, "");
            refer(d, item, value);
            add_str(d, &list, k == 0 ? "" : k + 1 < ASKED ? ", " : " and ");
            add_str(d, &list, key);
            fill_in(d, &item->answer, k ? ", {0}: {1}" : "{0}: {1}", key, value, "");
        }
        add_str(d, &item->answer, ".");
        if (!d->p.rc) ask(d, item, wordings[d->wording].ask_keys, wordings[d->wording].say_keys, list.data);
        sl_text_free(&list);
    }
}

static void draft_variables(draft *d) {
    enum { CHAIN = 5 };
    char name[CHAIN][NAME], value[NAME];
    for (int i = 0; i < d->out->n_items && !d->p.rc; i++) {
        eval_item *item = &d->out->items[i];
        double *places = prose_sorted(&d->p, CHAIN);
        new_number(d, 10000, 99999, value);
        ask(d, item, wordings[d->wording].ask_variables, wordings[d->wording].say_variables, value);
        for (int k = 0; k < CHAIN && !d->p.rc; k++) {
            int n = wordings[d->wording].n_letters;
            for (int c = 0; c < n; c++) name[k][c] = (char)('A' + prose_below(&d->p, 26));
            name[k][n] = 0;
            int again = !strcmp(name[k], "VAR"); // there are only 26^3 names
            for (int f = 0; f < d->n_facts; f++) again |= strstr(d->facts[f].text.data, name[k]) != NULL;
            if (again) {
                k--;
                continue;
            }
            add_fact(d, places[k], k ? wordings[d->wording].copy : wordings[d->wording].assign, name[k],
                     k ? name[k - 1] : value, "");
            refer(d, item, name[k]);
            fill_in(d, &item->answer, k ? ", {0}" : "{0}", name[k], "", "");
        }
        add_str(d, &item->answer, ".");
        free(places);
    }
}

static void draft_one_hop(draft *d, int n) {
    char name[NAME];
    for (int i = 0; i < n && !d->p.rc; i++) {
        new_person(d, name);
        const char *place = prose_word(&d->p, &eval_vocabulary.places), *job = prose_word(&d->p, &eval_vocabulary.jobs);
        add_fact(d, prose_unit(&d->p), wordings[d->wording].works, name, place, job);
        int asks_job = (int)prose_below(&d->p, 2);
        if (i >= d->out->n_items) continue;
        eval_item *item = &d->out->items[i];
        if (asks_job)
            ask(d, item, wordings[d->wording].ask_job, wordings[d->wording].say_job, name);
        else
            ask(d, item, wordings[d->wording].ask_place, wordings[d->wording].say_place, name);
        refer(d, item, asks_job ? job : place);
        fill_in(d, &item->answer, "{0}.", asks_job ? job : place, "", "");
    }
}

static void draft_two_hop(draft *d, int n) {
    char a[NAME], b[NAME];
    for (int i = 0; i < n && !d->p.rc; i++) {
        new_person(d, a);
        new_person(d, b);
        const char *place = prose_word(&d->p, &eval_vocabulary.places);
        add_fact(d, prose_unit(&d->p), wordings[d->wording].lives_with, a, b, "");
        add_fact(d, prose_unit(&d->p), wordings[d->wording].lives_in, b, place, "");
        if (i >= d->out->n_items) continue;
        eval_item *item = &d->out->items[i];
        ask(d, item, wordings[d->wording].ask_home, wordings[d->wording].say_home, a);
        refer(d, item, place);
        fill_in(d, &item->answer, d->wording == PLAIN ? "with {0} in {1}." : "{1}.", b, place, "");
    }
}

// The words of the answer are units [from, from + n).
static void draft_answer_words(draft *d, int from, int n, const char *question, const char *prefix) {
    eval_item *item = d->out->items;
    ask(d, item, question, prefix, "");
    for (int i = from; i < from + n && !d->p.rc; i++) {
        refer(d, item, d->units[i].data);
        fill_in(d, &item->answer, i > from ? ", {0}" : "{0}", d->units[i].data, "", "");
    }
    add_str(d, &item->answer, ".");
}

// Words of ranks 1, 2, ... of Zipf's law. Rank 1 is the noise "...".
static void draft_coded(draft *d) {
    int n_words = d->length / 50 > 12 ? d->length / 50 : 12;
    sl_text *unit = add_unit(d);
    if (unit) add_str(d, unit, "...");
    while (!d->p.rc && d->n_units <= n_words) {
        char word[PROSE_CODED];
        prose_coded(&d->p, word);
        int again = 0;
        for (int i = 0; i < d->n_units; i++) again |= !strcmp(d->units[i].data, word);
        if (again || !(unit = add_unit(d))) continue;
        add_str(d, unit, word);
    }
    draft_answer_words(d, 1, 3, wordings[d->wording].ask_coded, wordings[d->wording].say_coded);
}

static void draft_list(draft *d) {
    int n = wordings[d->wording].n_common;
    int rare = d->length / 6 < 8000 ? d->length / 6 : 8000; // more words than fit if each occurs three times
    for (int i = 0; i < n + rare && !d->p.rc; i++) {
        char word[NAME];
        sl_text *unit = add_unit(d);
        new_key(d, word);
        if (unit) add_str(d, unit, word);
    }
    draft_answer_words(d, 0, n, wordings[d->wording].ask_list, wordings[d->wording].say_list);
}

static void draft_task(draft *d) {
    int n = d->out->n_items;
    const char *people = wordings[d->wording].intro_people;
    d->intro = wordings[d->wording].intro_needles;
    d->end = wordings[d->wording].end;
    prose_stream(&d->p, PROSE_FACTS);
    switch (d->task) {
    case NIAH_SINGLE:
        draft_needles(d, 1, 1);
        break;
    case NIAH_MULTIKEY:
        draft_needles(d, n > 16 ? n : 16, 1);
        break;
    case NIAH_MULTIVALUE:
        draft_needles(d, n, 4);
        break;
    case NIAH_MULTIQUERY:
        draft_multiquery(d);
        break;
    case VT:
        d->intro = wordings[d->wording].intro_variables;
        draft_variables(d);
        break;
    case FWE:
        d->intro = wordings[d->wording].intro_coded;
        draft_coded(d);
        break;
    case CWE:
        d->intro = wordings[d->wording].intro_list;
        draft_list(d);
        break;
    case QA_1HOP:
        d->intro = people;
        draft_one_hop(d, 2 * n + 14);
        break;
    default:
        d->intro = people;
        draft_two_hop(d, n + 7);
    }
}

// ---- composition: a context with n units ----

static int by_place(const void *a, const void *b) {
    double x = ((const fact *)a)->place, y = ((const fact *)b)->place;
    return (x > y) - (x < y);
}

// Chooses a gap for each fact from its place: gap i is in front of unit i, 0 <= i <= n. Gaps differ if there are enough.
static void choose_gaps(const draft *d, int n, int *gap) {
    int k = d->n_facts, distinct = k <= n + 1;
    for (int i = 0; i < k; i++) {
        gap[i] = (int)(d->facts[i].place * (n + 1));
        if (distinct && i && gap[i] <= gap[i - 1]) gap[i] = gap[i - 1] + 1;
    }
    for (int i = k - 1; distinct && i >= 0; i--)
        if (gap[i] > n - (k - 1 - i)) gap[i] = n - (k - 1 - i);
}

static void compose_scattered(draft *d, int n) {
    sl_text *to = &d->out->context;
    int *gap = malloc((size_t)(d->n_facts + 1) * sizeof *gap), at = 0;
    if (!gap) {
        d->p.rc = sl_fail(d->p.err, SL_ERR_MEMORY, "task %s: out of memory", tasks[d->task].name);
        return;
    }
    choose_gaps(d, n, gap);
    for (int i = 0; i <= n; i++) {
        for (; at < d->n_facts && gap[at] == i; at++) add(d, to, d->facts[at].text.data, d->facts[at].text.n);
        if (i < n) add(d, to, d->units[i].data, d->units[i].n);
    }
    free(gap);
}

// Writes each unit u counts[u] times, in random order. numbered: "1. a 2. b".
static void compose_words(draft *d, const int *counts, int numbered) {
    sl_text *to = &d->out->context;
    size_t n = 0, at = 0;
    for (int u = 0; u < d->n_units; u++) n += (size_t)counts[u];
    int *order = malloc((n + 1) * sizeof *order);
    if (!order) {
        d->p.rc = sl_fail(d->p.err, SL_ERR_MEMORY, "task %s: out of memory", tasks[d->task].name);
        return;
    }
    for (int u = 0; u < d->n_units; u++)
        for (int i = 0; i < counts[u]; i++) order[at++] = u;
    prose_stream(&d->p, PROSE_ORDER);
    for (size_t i = n; i > 1; i--) {
        size_t j = prose_below(&d->p, (uint32_t)i);
        int other = order[j];
        order[j] = order[i - 1], order[i - 1] = other;
    }
    for (size_t i = n; !numbered && i-- > 0 && !order[n - 1];) { // not "..." last: with the full stop it would be another token
        int other = order[i];
        order[i] = order[n - 1], order[n - 1] = other;
    }
    for (size_t i = 0; i < n; i++) {
        char number[32];
        snprintf(number, sizeof number, " %zu.", i + 1);
        if (numbered) add_str(d, to, number);
        add_str(d, to, " ");
        add(d, to, d->units[order[i]].data, d->units[order[i]].n);
    }
    add_str(d, to, ".");
    free(order);
}

// fwe: n words in total; rank r has the share r^-2 / sum. cwe: n rare words, three times each.
static void count_words(const draft *d, int n, int *counts) {
    double sum = 0;
    int is_short = d->length < 4096, n_common = wordings[d->wording].n_common;
    for (int u = 0; u < d->n_units; u++) sum += 1.0 / ((u + 1.0) * (u + 1.0));
    for (int u = 0; u < d->n_units; u++) {
        if (d->task == FWE)
            counts[u] = (int)(n / ((u + 1.0) * (u + 1.0)) / sum);
        else if (u < n_common)
            counts[u] = is_short ? 10 : 30;
        else
            counts[u] = u - n_common >= n ? 0 : is_short ? 1 : 3;
    }
}

static void compose(draft *d, int n) {
    d->out->context.n = 0;
    add_str(d, &d->out->context, d->intro);
    if (d->task == FWE || d->task == CWE) {
        int *counts = calloc((size_t)d->n_units + 1, sizeof *counts);
        if (!counts) {
            d->p.rc = sl_fail(d->p.err, SL_ERR_MEMORY, "task %s: out of memory", tasks[d->task].name);
            return;
        }
        count_words(d, n, counts);
        compose_words(d, counts, d->task == CWE);
        free(counts);
    } else {
        compose_scattered(d, n);
    }
    add_str(d, &d->out->context, d->end);
}

// ---- filler up to the length ----

static int count(draft *d, const sl_text *context, const eval_item *item) {
    int n = 0;
    if (!d->p.rc) d->p.rc = d->maker->count(d->maker->ctx, context, item, &n, d->p.err);
    return n;
}

// Makes more sentences than the text can need. Joined sentences have slightly fewer tokens than the sum of single ones.
static void make_filler(draft *d) {
    const sl_text none = {0};
    prose_stream(&d->p, PROSE_FILLER);
    prose_noise noise = {0};
    eval_haystack haystack =
        d->maker->haystack == HAYSTACK_NEEDLES && d->task > NIAH_MULTIQUERY ? HAYSTACK_TEXT : d->maker->haystack;
    if (haystack == HAYSTACK_NOISE) prose_begin_noise(&d->p, &noise);
    eval_item alone = {0}; // counts a sentence as a prompt, minus the tokens that every prompt has
    int empty = count(d, &none, &alone);
    for (int tokens = 0, i = 0; tokens - tokens / 16 < d->length && !d->p.rc; i++) {
        sl_text *unit = add_unit(d);
        if (!unit) return;
        if (haystack == HAYSTACK_NEEDLES) {
            char key[NAME], value[NAME];
            new_key(d, key);
            new_number(d, 1000000, 10000000, value);
            fill_in(d, unit, wordings[d->wording].needle, key, value, "");
        } else if (haystack == HAYSTACK_NOISE) {
            prose_noise_sentence(&noise, i, &d->p, unit);
        } else {
            add_str(d, unit, i && prose_below(&d->p, 12) == 0 ? "\n" : " ");
            prose_sentence(&d->p, unit);
        }
        alone.question = *unit;
        tokens += count(d, &none, &alone) - empty;
    }
}

// Tokens of the longest prompt of the draft with n units, with the generated tokens.
static int longest(draft *d, int n) {
    int most = 0;
    compose(d, n);
    for (int i = 0; i < d->out->n_items && !d->p.rc; i++) {
        int tokens = count(d, &d->out->context, &d->out->items[i]) + d->out->items[i].n_predict;
        if (tokens > most) most = tokens;
    }
    return most;
}

// Tokens of the prompt with n units and question `which`, with the generated tokens.
static int with_question(draft *d, int n, int which) {
    compose(d, n);
    return count(d, &d->out->context, &d->out->items[which]) + d->out->items[which].n_predict;
}

static int longest_question(draft *d) {
    const sl_text none = {0};
    int which = 0;
    for (int i = 0, most = 0; i < d->out->n_items && !d->p.rc; i++) {
        int n = count(d, &none, &d->out->items[i]);
        if (n > most) most = n, which = i;
    }
    return which;
}

// The smallest n for a valid text of this task.
static int least_units(const draft *d) {
    if (d->task != FWE) return 0;
    for (int n = 60;; n++) { // ranks 1 to 5 have different counts
        int *counts = malloc((size_t)d->n_units * sizeof *counts), distinct = 1;
        if (!counts) return n;
        count_words(d, n, counts);
        for (int u = 0; u < 4; u++) distinct &= counts[u] > counts[u + 1];
        free(counts);
        if (distinct) return n;
    }
}

static void fit(draft *d) {
    int low = least_units(d), which = longest_question(d);
    int high = d->task == FWE ? d->length : d->task == CWE ? d->n_units - wordings[d->wording].n_common : d->n_units;
    int least = longest(d, low);
    if (!d->p.rc && least > d->length)
        d->p.rc = sl_fail(d->p.err, SL_ERR_ARG,
                          "--length %d: task %s needs at least %d tokens for its facts, its question and %d generated tokens",
                          d->length, tasks[d->task].name, least, d->out->items[0].n_predict);
    while (!d->p.rc && low < high) {
        int middle = low + (high - low + 1) / 2;
        if (with_question(d, middle, which) <= d->length)
            low = middle;
        else
            high = middle - 1;
    }
    while (!d->p.rc && longest(d, low) > d->length && low > 0) low--; // after this text, another question may be longer
}

static void draft_free(draft *d) {
    for (int i = 0; i < d->n_facts; i++) sl_text_free(&d->facts[i].text);
    for (int i = 0; i < d->n_units; i++) sl_text_free(&d->units[i]);
    free(d->facts), free(d->units), free(d->keys), free(d->people);
}

static int draft_begin(draft *d) {
    const eval_words *w = &eval_vocabulary;
    int n = eval_task_questions(d->task, d->maker->n_questions);
    d->keys = calloc(w->adjectives.n * w->nouns.n, 1);
    d->people = calloc(w->names.n * w->surnames.n, 1);
    d->out->items = calloc((size_t)n, sizeof *d->out->items);
    if (!d->keys || !d->people || !d->out->items) return sl_fail(d->p.err, SL_ERR_MEMORY, "task: out of memory");
    for (d->out->n_items = 0; d->out->n_items < n; d->out->n_items++)
        if (!(d->out->items[d->out->n_items].references = json_array()))
            return sl_fail(d->p.err, SL_ERR_MEMORY, "task: out of memory");
    return 0;
}

int eval_task_text(const eval_maker *maker, int task, int length, uint32_t number, eval_text *out, sl_error *err) {
    *out = (eval_text){0};
    draft d = {.maker = maker, .task = task, .wording = maker->instruct ? INSTRUCT : PLAIN, .length = length, .out = out};
    d.p = prose_begin(maker->seed, tasks[task].name, number, (uint32_t)length, err);
    int rc = draft_begin(&d);
    if (!rc) {
        draft_task(&d);
        if (d.n_facts) qsort(d.facts, (size_t)d.n_facts, sizeof *d.facts, by_place);
        if (!d.p.rc && task != FWE && task != CWE) make_filler(&d);
        if (!d.p.rc) fit(&d);
        rc = d.p.rc;
    }
    draft_free(&d);
    if (rc) eval_text_free(out);
    return rc;
}
