// engine/cli/eval/eval_tasks.h - the long-context tasks that `sleigh eval` makes itself: RULER's kinds in our own wording.
//
// A text is what shares a prefill: a context and the questions about it. Text i of a task and length follows from --task-seed
// alone, whatever else is asked for. Its filler is as long as --length allows: context, question, chat template and generated
// tokens together, counted with the model's tokenizer.
#ifndef SLEIGH_EVAL_TASKS_H
#define SLEIGH_EVAL_TASKS_H

#include "engine/base/arrays.h"
#include "engine/base/error.h"
#include "engine/cli/eval/eval_grade.h"

#include <jansson.h>
#include <stdint.h>

// One question. The prompt is context, question and prefix; with a chat template the prefix begins the assistant's turn.
typedef struct eval_item {
    sl_text question, prefix;
    sl_text answer;     // the whole answer, as GRADE_EXACT wants it
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

// Tokens of the prompt that these make.
typedef int (*eval_count_fn)(void *ctx, const sl_text *context, const eval_item *item, int *n_tokens, sl_error *err);

typedef enum { HAYSTACK_TEXT, HAYSTACK_NOISE, HAYSTACK_NEEDLES } eval_haystack;

typedef struct eval_maker {
    uint32_t seed;
    int instruct;    // wording: 0 completes "... Answer:", as the embedded model was trained to; 1 asks an assistant
    int n_questions; // of a text, where the task can ask more than one
    int n_predict;   // < 0: the task's own
    eval_haystack haystack;
    eval_count_fn count;
    void *ctx;
} eval_maker;

int eval_task_find(const char *name);           // -1: unknown
const char *eval_task_name(int task);           // NULL: no more
int eval_task_questions(int task, int n_asked); // of a text, when n_asked are wanted
// SL_ERR_ARG when the facts alone are longer than `length` tokens.
int eval_task_text(const eval_maker *maker, int task, int length, uint32_t number, eval_text *out, sl_error *err);

#endif
