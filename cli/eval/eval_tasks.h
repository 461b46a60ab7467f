// cli/eval/eval_tasks.h - the long-context tasks that `sleigh eval` generates: RULER's kinds in our wording.
//
// A text is a context and the questions about it, which share a prefill. Text i of a task and length depends only on
// --task-seed. Its filler is as long as --length allows for context, question, chat template and generated tokens together,
// counted with the tokenizer of the model.
#ifndef SLEIGH_EVAL_TASKS_H
#define SLEIGH_EVAL_TASKS_H

#include "base/arrays.h"
#include "base/error.h"
#include "cli/eval/eval_grade.h"

#include <jansson.h>
#include <stdint.h>

// One question. The prompt is context, question and prefix. With a chat template the prefix starts the assistant's turn.
typedef struct eval_item {
    sl_text question, prefix;
    sl_text answer;     // the whole answer, for GRADE_EXACT
    json_t *references; // list of strings
    eval_grader grader;
    int n_predict;
} eval_item;

typedef struct eval_text {
    sl_text context;
    eval_item *items; // [n_items]
    int n_items;
} eval_text;
void eval_text_free(eval_text *text);

// Counts the tokens of the prompt of a context and an item.
typedef int (*eval_count_fn)(void *ctx, const sl_text *context, const eval_item *item, int *n_tokens, sl_error *err);

typedef enum { HAYSTACK_TEXT, HAYSTACK_NOISE, HAYSTACK_NEEDLES } eval_haystack;

typedef struct eval_maker {
    uint32_t seed;
    int instruct;    // wording: 0: text to complete, as in the training of the embedded model; 1: question to an assistant
    int n_questions; // per text, if the task can ask several
    int n_predict;   // < 0: the limit of the task
    eval_haystack haystack;
    eval_count_fn count;
    void *ctx;
} eval_maker;

int eval_task_find(const char *name);           // -1: unknown
const char *eval_task_name(int task);           // NULL: no such task
int eval_task_questions(int task, int n_asked); // questions per text if n_asked are requested
// Generates a text. SL_ERR_ARG: the facts without filler are longer than `length` tokens.
int eval_task_text(const eval_maker *maker, int task, int length, uint32_t number, eval_text *out, sl_error *err);

#endif
