// tests/attention/certified_cases.h - the cases of test_threshold_rules.c, for the table of the suite certified.
#ifndef SLEIGH_TEST_CERTIFIED_CASES_H
#define SLEIGH_TEST_CERTIFIED_CASES_H

void case_draws_at_a_threshold(void);
void case_equal_and_empty_rows(void);
void case_chi_square_quantiles(void);
void case_lines_among_many(void);
void case_error_bounds(void);
void case_spreads(void);
void case_steps_without_draws(void);
void case_threshold_moves(void);
void case_controllers_reach_their_aims(void);

#endif
