// cli/eval/eval_grade.h - graders: the text of an answer to a score in [0, 1].
//
// The graders *-boxed and *-line follow Tables 21 to 24 of the SANTA paper: these tables define which part of the text is the
// answer.
#ifndef SLEIGH_EVAL_GRADE_H
#define SLEIGH_EVAL_GRADE_H

#include <jansson.h>
#include <stddef.h>

typedef enum {
    GRADE_NONE,         // not chosen
    GRADE_SUBSTRING,    // share of the references that occur, case ignored; RULER's string_match_all
    GRADE_ANY,          // 1 if any reference occurs; RULER's string_match_part (Table 25, qa)
    GRADE_WORDS,        // share of the references that occur as whole words (Table 25, fwe)
    GRADE_INTEGERS,     // n references: share of the first n different integers that are references (Table 25, niah_multivalue)
    GRADE_EXACT,        // the whole answer, without blanks at its ends
    GRADE_BOXED,        // the last \boxed{}, equal as text or as number
    GRADE_NUMERIC_BOX,  // Table 21: the last number in the last \boxed{}, else in the last 200 bytes
    GRADE_CHOICE_BOX,   // Table 22: the last letter A-D in the last \boxed{}, else in the last 300 bytes
    GRADE_NUMERIC_LINE, // Table 23: the first number in the last line that is not blank, else in the last 25 words
    GRADE_CHOICE_LINE,  // Table 24: the first letter A-D in the last line, else the last one in the last 10 words
} eval_grader;

eval_grader eval_grader_find(const char *name); // GRADE_NONE: unknown
const char *eval_grader_name(eval_grader grader);
int eval_grader_is_choice(eval_grader grader);

enum { EVAL_EXTRACT = 256 };
// Score of answer[0..n) against a list of strings. extracted: the compared part of the answer, cut to fit, for graders that
// look for one part; else "".
double eval_grade(eval_grader grader, const char *answer, size_t n, const json_t *references, char extracted[EVAL_EXTRACT]);

#endif
