// tests/cli/compare_cases.h - what the two files of the suite cli_compare share: records, compare's results for them, and the
// cases of test_cli_compare_forms.c.
#ifndef SLEIGH_TEST_COMPARE_CASES_H
#define SLEIGH_TEST_COMPARE_CASES_H

#include "tests/support/run_cli.h"

void compare_add_line(char *file, size_t size, json_t *line); // appends the line to a file in memory, and releases it
// Writes n contexts of different lengths with one question each. Returns the path.
const char *compare_spill_records(int n);
// The document of `compare` on these records. more: a further flag, or NULL.
json_t *compare_json(const char *records, const char *attn, const char *more);
const json_t *compare_item(const json_t *o, const char *list, size_t i); // o[list][i]

void case_parallel(void);
void case_set_ups(void);
void case_chats(void);
void case_tables(void);
void case_limits(void);
void case_plot(void);
void case_errors(void);

#endif
