// engine/cli/eval/eval_records.h - questions from a file: RULER's own JSONL, and lines with a reference and a grader.
//
// A line is an object with
//   "input"                        RULER's prompt; its context ends where "question" begins, else where its last line does
//   or "prompt"                    no context: prefilled densely as a whole
//   or "question" [and "context"]  with "choices": a list of texts, labelled A, B, ...
// and "outputs" or "answers" (a list) or "answer" (a text, a number; of choices an index or a letter; of GSM8K what follows
// ####). "answer_prefix", "task" and "grader" are optional.
#ifndef SLEIGH_EVAL_RECORDS_H
#define SLEIGH_EVAL_RECORDS_H

#include "engine/base/hash.h"
#include "engine/cli/eval/eval_tasks.h"
#include "engine/cli/options.h"

// How the SANTA paper asks (Tables 21 to 24).
typedef struct eval_procedure {
    const char *name;
    eval_grader grader;
    const char *system, *suffix; // the system message; what follows the question
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
    char hash[SL_HASH_TEXT]; // of the file
} eval_records;

// grader: of lines that name none; GRADE_NONE: by the references, GRADE_ANY for "answer", GRADE_SUBSTRING for a list. n_predict
// < 0: by the grader. Errors name file and line.
int eval_records_read(const char *path, eval_grader grader, const eval_procedure *procedure, int n_predict, eval_records *out,
                      sl_error *err);
void eval_records_free(eval_records *r);

#endif
