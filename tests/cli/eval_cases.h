// tests/cli/eval_cases.h - what the two files of the suite cli_eval share: files of lines, and the cases of
// test_cli_eval_texts.c.
#ifndef SLEIGH_TEST_EVAL_CASES_H
#define SLEIGH_TEST_EVAL_CASES_H

#include "tests/support/run_cli.h"

#include <jansson.h>

enum { EVAL_LINES = 512 };

// The lines of the file of the last eval_lines_read. They are static, because a failed check jumps out of a case and would leak
// them.
extern json_t *eval_lines[EVAL_LINES];
extern int n_eval_lines;

int eval_lines_read(const char *path); // returns their number
const char *eval_line_text(const json_t *line, const char *key);
int eval_line_int(const json_t *line, const char *key);
const char *eval_lines_select(const char *path, const char *part, int max); // joins the first lines that hold `part`

void case_eval_texts(void);
void case_eval_seeds(void);
void case_eval_wordings(void);

#endif
