#include "tests/test.h"
static const test_case cases[] = {{0}};
extern const test_suite suite_cli_output;
const test_suite suite_cli_output = {"cli_output", cases};
