// engine/cli/eval/eval_grade.h - from an answer's text to its score in [0, 1].
//
// Names with -boxed and -line are the procedures of the SANTA paper's Tables 21 to 24: where the answer is looked for.
#ifndef SLEIGH_EVAL_GRADE_H
#define SLEIGH_EVAL_GRADE_H

#include <jansson.h>
#include <stddef.h>

typedef enum {
    GRADE_NONE,         // not chosen
    GRADE_SUBSTRING,    // share of the references that occur, case ignored: RULER's string_match_all
    GRADE_ANY,          // 1 when one of them does: RULER's string_match_part (Table 25, qa)
    GRADE_WORDS,        // share of the references that occur as whole words (Table 25, fwe)
    GRADE_INTEGERS,     // share of the first n different integers that are references, n of them (Table 25, niah_multivalue)
    GRADE_EXACT,        // the whole answer, but for blanks at its ends
    GRADE_BOXED,        // the last \boxed{}, equal as a text or as a number
    GRADE_NUMERIC_BOX,  // Table 21: the last \boxed{}, else the last 200 bytes; their last number
    GRADE_CHOICE_BOX,   // Table 22: the same, else the last 300 bytes; the letter A-D that comes last
    GRADE_NUMERIC_LINE, // Table 23: the last line that is not blank, else the last 25 words; the first integer
    GRADE_CHOICE_LINE,  // Table 24: the last line, its first letter A-D, else the last of the last 10 words
} eval_grader;

eval_grader eval_grader_find(const char *name); // GRADE_NONE: unknown
const char *eval_grader_name(eval_grader grader);
int eval_grader_is_choice(eval_grader grader);

enum { EVAL_EXTRACT = 256 };
// Score of answer[0..n) against a list of strings. extracted: what was compared, cut to fit, of graders that look for one
// thing, else "".
double eval_grade(eval_grader grader, const char *answer, size_t n, const json_t *references, char extracted[EVAL_EXTRACT]);

#endif
