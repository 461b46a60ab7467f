// tests/test_scripts.c - runs the scripts that check the tree: mutations, layers, names of files.
#include "tests/support/run_cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void run_script(const char *script) {
    char command[600];
    size_t n;
    if (access("scripts/mutate.py", R_OK) || system("python3 -c '' 2>/dev/null")) TEST_SKIP("needs scripts/ and python3");
    snprintf(command, sizeof command, "python3 %s >'%s' 2>&1", script, in_tmp("said"));
    if (system(command)) FAIL("%s", slurp(in_tmp("said"), &n));
}

// Every mutation's old text occurs in its file, and its suites exist.
static void mutations(void) {
    run_script("scripts/mutate.py --self-test");
}

// No file includes a file of a higher layer, and no includes form a circle. The same holds for the calls between the objects of
// the build that is tested.
static void layers(void) {
    char script[500], build[400];
    const char *bin = getenv("SLEIGH_BIN"), *slash = bin ? strrchr(bin, '/') : NULL;
    snprintf(build, sizeof build, "%.*s", slash ? (int)(slash - bin) : 0, bin ? bin : "");
    snprintf(script, sizeof script, "scripts/check_layers.py %s%s%s", slash ? "'" : "", build, slash ? "'" : "");
    run_script(script);
}

// Every source file that README, CONTRIBUTING, a page of docs/, a script or a comment names exists.
static void names(void) {
    run_script("scripts/check_names.py");
    run_script("scripts/check_names.py --sources");
}

static const test_case cases[] = {
    {"mutations", NEEDS_NOTHING, mutations}, {"layers", NEEDS_NOTHING, layers}, {"names", NEEDS_NOTHING, names}, {0}};
extern const test_suite suite_scripts;
const test_suite suite_scripts = {"scripts", cases};
