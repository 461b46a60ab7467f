// tests/test_scripts.c - what scripts/ holds of the sources and must be kept current with them.
#include "tests/cli.h"

#include <stdlib.h>
#include <unistd.h>

// Every mutation's text stands in its file once, and its suites exist.
static void mutations(void) {
    char command[512];
    size_t n;
    if (access("scripts/mutate.py", R_OK) || system("python3 -c '' 2>/dev/null")) TEST_SKIP("needs scripts/ and python3");
    snprintf(command, sizeof command, "python3 scripts/mutate.py --self-test >'%s' 2>&1", in_tmp("said"));
    if (system(command)) FAIL("%s", slurp(in_tmp("said"), &n));
}

static const test_case cases[] = {{"mutations", NEEDS_NOTHING, mutations}, {0}};
extern const test_suite suite_scripts;
const test_suite suite_scripts = {"scripts", cases};
