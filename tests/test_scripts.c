// tests/test_scripts.c - what scripts/ holds of the sources and must be kept current with them.
#include "tests/support/run_cli.h"

#include <stdlib.h>
#include <unistd.h>

static void run_script(const char *script) {
    char command[600];
    size_t n;
    if (access("scripts/mutate.py", R_OK) || system("python3 -c '' 2>/dev/null")) TEST_SKIP("needs scripts/ and python3");
    snprintf(command, sizeof command, "python3 %s >'%s' 2>&1", script, in_tmp("said"));
    if (system(command)) FAIL("%s", slurp(in_tmp("said"), &n));
}

// Every mutation's text stands in its file once, and its suites exist.
static void mutations(void) {
    run_script("scripts/mutate.py --self-test");
}

// No file includes a file of a higher layer, and no includes form a circle.
static void layers(void) {
    run_script("scripts/check_layers.py");
}

static const test_case cases[] = {{"mutations", NEEDS_NOTHING, mutations}, {"layers", NEEDS_NOTHING, layers}, {0}};
extern const test_suite suite_scripts;
const test_suite suite_scripts = {"scripts", cases};
