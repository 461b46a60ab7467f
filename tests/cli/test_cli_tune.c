#include "tests/test.h"
static const test_case cases[] = {{0}};
const test_suite suite_cli_tune = {"cli_tune", cases};
