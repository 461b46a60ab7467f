// cli/eval/eval_records.h - reads questions from a file: RULER's JSONL, or lines with a reference and a grader.
//
// A line is an object with
//   "input"                        RULER's prompt; the context ends where "question" begins, else where the last line begins
//   or "prompt"                    without a context: dense attention prefills all of it
//   or "question" [and "context"]  with "choices": a list of texts, labelled A, B, ...
// and "outputs" or "answers" (a list) or "answer" (a text or a number; an index or a letter if there are choices; in GSM8K the
// text after ####). "answer_prefix", "task" and "grader" are optional.
#ifndef SLEIGH_EVAL_RECORDS_H
#define SLEIGH_EVAL_RECORDS_H

#include "base/hash.h"
#include "cli/eval/eval_tasks.h"
#include "cli/options/options.h"

// The prompts and graders of the SANTA paper (Tables 21 to 24).
typedef struct eval_procedure {
    const char *name;
    eval_grader grader;
    const char *system, *suffix; // system message; text after the question
} eval_procedure;
const eval_procedure *eval_procedure_find(const char *name); // NULL: unknown
const char *eval_procedure_names(void);

typedef struct eval_record {
    char *task;
    eval_text text; // one item
    int line;
} eval_record;

typedef struct eval_records {
    eval_record *at;
    int n, cap;
    char hash[SL_HASH_TEXT]; // hash of the file
} eval_records;

// grader: for lines that name none; GRADE_NONE: chosen by the references, GRADE_ANY for "answer", GRADE_SUBSTRING for a list.
// n_predict < 0: chosen by the grader. Errors name file and line.
int eval_records_read(const char *path, eval_grader grader, const eval_procedure *procedure, int n_predict, eval_records *out,
                      sl_error *err);
void eval_records_free(eval_records *r);

#endif
