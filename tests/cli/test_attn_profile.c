#include "tests/test.h"
static const test_case cases[] = {{0}};
const test_suite suite_attn_profile = {"attn_profile", cases};
