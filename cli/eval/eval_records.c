// cli/eval/eval_records.c - see eval_records.h.
#include "cli/eval/eval_records.h"
#include "base/hash.h"
#include "base/json.h"
#include "cli/grow.h"
#include "cli/io.h"
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const eval_procedure procedures[] = {
    {"gsm8k-boxed", GRADE_NUMERIC_BOX, NULL,
     "\n\nPlease reason step by step, and put your final numeric answer within \\boxed{}."},
    {"mmlu-boxed", GRADE_CHOICE_BOX, NULL, "\n\nAnswer briefly. Put your final answer as a single letter inside \\boxed{}."},
    {"gsm8k", GRADE_NUMERIC_LINE,
     "You are a precise mathematician. Explain your reasoning step by step, then output ONLY the final number on a new line.",
     ""},
    {"mmlu", GRADE_CHOICE_LINE,
     "You are a knowledgeable and concise subject-matter expert. Work through the problem step by step. Finally, on a new "
     "line, "
     "output ONLY the single capital letter (A, B, C, or D) that corresponds to the correct choice.",
     ""},
};
enum { N_PROCEDURES = sizeof procedures / sizeof *procedures };

const eval_procedure *eval_procedure_find(const char *name) {
    for (int i = 0; i < N_PROCEDURES; i++)
        if (!strcmp(procedures[i].name, name)) return &procedures[i];
    return NULL;
}

const char *eval_procedure_names(void) {
    return "gsm8k-boxed, mmlu-boxed, gsm8k, mmlu";
}

void eval_records_free(eval_records *r) {
    for (int i = 0; i < r->n; i++) {
        free(r->at[i].task);
        eval_text_free(&r->at[i].text);
    }
    free(r->at);
    *r = (eval_records){0};
}

typedef struct reader {
    const char *path;
    int line;
    eval_grader grader;
    const eval_procedure *procedure;
    int n_predict;
    sl_error *err;
} reader;

static int bad(const reader *r, const char *what) {
    return sl_fail(r->err, SL_ERR_FORMAT, "%s: line %d: %s", r->path, r->line, what);
}

static int append_json(const reader *r, sl_text *to, const json_t *text) {
    return sl_text_append(to, json_string_value(text), json_string_length(text), r->err);
}

// ---- the prompt ----

// Start of the last line that is not blank.
static size_t last_line(const char *text, size_t n) {
    while (n && strchr(" \t\r\n", text[n - 1])) n--;
    while (n && text[n - 1] != '\n') n--;
    return n;
}

static int read_input(const reader *r, const json_t *input, const json_t *question, eval_text *text) {
    const char *p = json_string_value(input), *q = json_string_value(question);
    size_t n = json_string_length(input), m = json_string_length(question), at = last_line(p, n);
    if (q && m && m <= n && !memcmp(p + n - m, q, m)) at = n - m;
    int rc = sl_text_append(&text->context, p, at, r->err);
    return rc ? rc : sl_text_append(&text->items->question, p + at, n - at, r->err);
}

static int read_choices(const reader *r, const json_t *choices, sl_text *question) {
    size_t n = json_array_size(choices);
    if (n < 2 || n > 4) return bad(r, "\"choices\": expected a list of two to four texts");
    int rc = 0;
    for (size_t i = 0; !rc && i < n; i++) {
        const json_t *choice = json_array_get(choices, i);
        if (!json_is_string(choice)) return bad(r, "\"choices\": expected a list of two to four texts");
        char label[] = {'\n', (char)('A' + i), '.', ' '};
        rc = sl_text_append(question, label, sizeof label, r->err);
        if (!rc) rc = append_json(r, question, choice);
    }
    return rc;
}

static int read_prompt(const reader *r, const json_t *record, eval_text *text) {
    const json_t *input = sl_json_get(record, "input"), *prompt = sl_json_get(record, "prompt"),
                 *question = sl_json_get(record, "question"), *context = sl_json_get(record, "context"),
                 *prefix = sl_json_get(record, "answer_prefix"), *choices = sl_json_get(record, "choices");
    eval_item *item = text->items;
    const json_t *asked = input ? input : prompt ? prompt : question;
    if (!json_is_string(asked)) return bad(r, "expected a string \"input\", \"prompt\" or \"question\"");
    if (!json_string_length(asked)) return bad(r, "expected a prompt that is not empty");
    if (prefix && !json_is_string(prefix)) return bad(r, "\"answer_prefix\": expected a string");
    if (context && (asked != question || !json_is_string(context)))
        return bad(r, "\"context\": expected a string together with a \"question\"");
    int rc = 0;
    if (asked == input)
        rc = read_input(r, input, question, text);
    else {
        if (context) rc = append_json(r, &text->context, context);
        if (!rc) rc = append_json(r, &item->question, asked);
    }
    if (!rc && choices) rc = read_choices(r, choices, &item->question);
    const char *suffix = r->procedure ? r->procedure->suffix : "";
    if (!rc) rc = sl_text_append(&item->question, suffix, strlen(suffix), r->err);
    return rc || !prefix ? rc : append_json(r, &item->prefix, prefix);
}

// ---- the references ----

// Adds a reference as text. Answers of GSM8K end in "#### 18".
static int add_reference(const reader *r, const json_t *value, int is_choice, eval_item *item) {
    char number[64];
    const char *text = json_string_value(value);
    size_t n = json_string_length(value);
    if (json_is_integer(value) && is_choice) {
        if (json_integer_value(value) < 0 || json_integer_value(value) > 3)
            return bad(r, "\"answer\": expected 0 to 3, the index of a choice");
        snprintf(number, sizeof number, "%c", (char)('A' + json_integer_value(value)));
        text = number;
    } else if (json_is_integer(value)) {
        snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value));
        text = number;
    } else if (json_is_real(value)) {
        snprintf(number, sizeof number, "%.15g", json_real_value(value));
        text = number;
    }
    if (!text) return bad(r, "expected a text or a number as reference");
    if (text == number) n = strlen(number);
    for (size_t i = n; i-- > 0 && n >= 4;)
        if (i + 4 <= n && !memcmp(text + i, "####", 4)) {
            text += i + 4, n -= i + 4;
            break;
        }
    while (n && strchr(" \t\r\n", *text)) text++, n--;
    while (n && strchr(" \t\r\n", text[n - 1])) n--;
    if (!n) return bad(r, "expected references that are not empty");
    if (json_array_append_new(item->references, json_stringn(text, n)))
        return sl_fail(r->err, SL_ERR_MEMORY, "%s: out of memory", r->path);
    return 0;
}

static int read_references(const reader *r, const json_t *record, eval_item *item) {
    const json_t *outputs = sl_json_get(record, "outputs"), *answers = sl_json_get(record, "answers"),
                 *answer = sl_json_get(record, "answer"), *name = sl_json_get(record, "grader");
    const json_t *list = outputs ? outputs : answers, *value;
    size_t i;
    item->grader = name ? eval_grader_find(json_is_string(name) ? json_string_value(name) : "") : r->grader;
    if (name && item->grader == GRADE_NONE) return bad(r, "\"grader\": unknown grader; `sleigh eval --help` lists all graders");
    int rc = 0;
    if (list && (!json_is_array(list) || !json_array_size(list)))
        return bad(r, "\"outputs\" or \"answers\": expected a list that is not empty");
    if (!list && !answer) return bad(r, "expected a reference: \"outputs\", \"answers\" or \"answer\"");
    int is_choice = sl_json_get(record, "choices") || eval_grader_is_choice(item->grader);
    if (item->grader == GRADE_NONE) item->grader = is_choice ? GRADE_CHOICE_LINE : list ? GRADE_SUBSTRING : GRADE_ANY;
    if (!list || item->grader == GRADE_EXACT)
        return add_reference(r, answer ? answer : json_array_get(list, 0), is_choice, item);
    json_array_foreach(list, i, value) if (!rc) rc = add_reference(r, value, is_choice, item);
    return rc;
}

// ---- lines ----

static int read_record(const reader *r, const json_t *record, eval_record *out) {
    enum { SHORT = 128, LONG = 1024 };
    const json_t *task = sl_json_get(record, "task");
    const char *slash = strrchr(r->path, '/'), *name = slash ? slash + 1 : r->path;
    if (task && !json_is_string(task)) return bad(r, "\"task\": expected a string");
    size_t n = strcspn(name, ".");
    out->line = r->line;
    out->task = task ? strdup(json_string_value(task)) : strndup(name, n ? n : 1);
    out->text.items = calloc(1, sizeof *out->text.items);
    out->text.n_items = out->text.items != NULL;
    if (!out->task || !out->text.items || !(out->text.items->references = json_array()))
        return sl_fail(r->err, SL_ERR_MEMORY, "%s: out of memory", r->path);
    int rc = read_prompt(r, record, &out->text);
    if (!rc) rc = read_references(r, record, out->text.items);
    eval_grader grader = out->text.items->grader;
    out->text.items->n_predict = r->n_predict >= 0 ? r->n_predict : grader >= GRADE_BOXED ? LONG : SHORT;
    return rc;
}

static int next_record(eval_records *out, eval_record **record, sl_error *err) {
    eval_record *grown = cli_grow(out->at, out->n, &out->cap, sizeof *grown);
    if (!grown) return sl_fail(err, SL_ERR_MEMORY, "--jsonl: out of memory");
    out->at = grown;
    *record = &out->at[out->n++];
    **record = (eval_record){0};
    return 0;
}

static int read_lines(reader *r, const sl_text *file, eval_records *out) {
    int rc = 0;
    for (const char *p = file->data, *end = p + file->n; !rc && p < end;) {
        const char *newline = memchr(p, '\n', (size_t)(end - p));
        size_t n = newline ? (size_t)(newline - p) : (size_t)(end - p);
        r->line++;
        if (strspn(p, " \t\r") < n) {
            json_error_t e;
            eval_record *record = NULL;
            json_t *value = json_loadb(p, n, JSON_REJECT_DUPLICATES, &e);
            if (!value) return bad(r, e.text);
            rc = json_is_object(value) ? next_record(out, &record, r->err) : bad(r, "expected an object");
            if (!rc) rc = read_record(r, value, record);
            json_decref(value);
        }
        p += n + 1;
    }
    return rc || out->n ? rc : sl_fail(r->err, SL_ERR_FORMAT, "%s: expected questions, found none", r->path);
}

int eval_records_read(const char *path, eval_grader grader, const eval_procedure *procedure, int n_predict, eval_records *out,
                      sl_error *err) {
    reader r = {.path = path, .grader = grader, .procedure = procedure, .n_predict = n_predict, .err = err};
    sl_text file = {0};
    *out = (eval_records){0};
    int rc = cli_read_file(path, &file, err);
    if (!rc) rc = read_lines(&r, &file, out);
    sl_hash_text(sl_fnv1a(SL_FNV1A_START, file.data, file.n), out->hash);
    sl_text_free(&file);
    if (rc) eval_records_free(out);
    return rc;
}
