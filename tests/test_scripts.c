// tests/test_scripts.c - runs the scripts that check the tree: mutations, layers, names of files, and the commands that the
// pages print.
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

// Runs the commands of pages with the binary that is tested, and prints how many commands of each page ran.
static void run_commands(const char *pages) {
#ifdef __SANITIZE_ADDRESS__
    TEST_SKIP("takes minutes with sanitizers: %s", pages);
#else
    char script[600];
    const char *bin = getenv("SLEIGH_BIN");
    size_t n;
    snprintf(script, sizeof script, "scripts/check_commands.py --sleigh '%s' %s", bin ? bin : "build/sleigh", pages);
    run_script(script);
    for (char *line = strtok(slurp(in_tmp("said"), &n), "\n"); line; line = strtok(NULL, "\n"))
        if (line[0] == ' ') puts(line);
#endif
}

static void commands_of_readme(void) {
    run_commands("README.md CONTRIBUTING.md");
}

static void commands_of_docs(void) {
    run_commands("docs/*.md");
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
    {"commands-of-readme", NEEDS_NOTHING, commands_of_readme},
    {"commands-of-docs", NEEDS_NOTHING, commands_of_docs},
    {"mutations", NEEDS_NOTHING, mutations},
    {"layers", NEEDS_NOTHING, layers},
    {"names", NEEDS_NOTHING, names},
    {0},
};
extern const test_suite suite_scripts;
const test_suite suite_scripts = {"scripts", cases};
