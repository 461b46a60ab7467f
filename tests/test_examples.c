// tests/test_examples.c - sleigh.h alone is enough to embed Sleigh: the header compiles by itself, the shared library exports
// what the header declares, and the programs of examples/ compile, link and answer.
#include "tests/support/run_cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char fact[] = "One of the special magic numbers for tender-garlic is: 4711823. The full studio never broke a pale "
                           "garlic again. What is the special magic number for tender-garlic mentioned in the text? Answer:";

// Runs a shell command and returns what it printed.
static const char *shell(const char *command, int want_status) {
    char line[2600];
    size_t n;
    snprintf(line, sizeof line, "{ %s; } >'%s' 2>&1", command, in_tmp("said"));
    int status = system(line);
    const char *said = slurp(in_tmp("said"), &n);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != want_status) FAIL("%s: %s", command, said);
    return said;
}

// Makes a folder with sleigh.h alone.
static void copy_header(void) {
    char command[1000];
    snprintf(command, sizeof command, "mkdir '%s' && cp engine/sleigh.h '%s'", in_tmp("include"), in_tmp("include"));
    shell(command, 0);
}

static void need_compilers(void) {
    if (system("cc --version >/dev/null 2>&1") || system("c++ --version >/dev/null 2>&1")) TEST_SKIP("needs cc and c++");
}

static void header_alone(void) {
    static const char *const languages[] = {"cc -x c -std=c99", "cc -x c -std=c11", "c++ -x c++ -std=c++11",
                                            "c++ -x c++ -std=c++17"};
    char command[1000];
    need_compilers();
    copy_header();
    spill(in_tmp("one.c"), "#include <sleigh.h>\n#include <sleigh.h>\n", 40);
    for (size_t i = 0; i < sizeof languages / sizeof *languages; i++) {
        snprintf(command, sizeof command, "%s -Wall -Wextra -pedantic -Werror -fsyntax-only -I'%s' '%s'", languages[i],
                 in_tmp("include"), in_tmp("one.c"));
        shell(command, 0);
    }
}

// Makes links to the build's shared library. Returns the path of the one to link with.
static const char *shared_library(void) {
#ifdef __SANITIZE_ADDRESS__
    TEST_SKIP("a build with sanitizers has no shared library");
#endif
    static char path[500];
    char command[2000], build[400];
    const char *bin = getenv("SLEIGH_BIN"), *slash = bin ? strrchr(bin, '/') : NULL;
    snprintf(build, sizeof build, "%.*s", slash ? (int)(slash - bin) : 5, slash ? bin : "build");
    snprintf(path, sizeof path, "%s/libsleigh.so." SLEIGH_VERSION, build);
    if (access(path, R_OK)) TEST_SKIP("needs %s", path);
    snprintf(command, sizeof command,
             "mkdir '%s' && for name in libsleigh.so libsleigh.so.0; do ln -s \"$(realpath '%s')\" '%s'/$name; done",
             in_tmp("lib"), path, in_tmp("lib"));
    shell(command, 0);
    return path;
}

// The exported functions are those with SL_API.
static void exported_functions(void) {
    char command[2000];
    const char *library = shared_library();
    if (system("nm --version >/dev/null 2>&1")) TEST_SKIP("needs nm");
    snprintf(command, sizeof command,
             "grep -o '^SL_API [^(]*(' engine/sleigh.h | grep -o 'sl_[a-z_0-9]*($' | tr -d '(' | sort >'%s'; "
             "nm -D --defined-only '%s' | sed 's/.* //' | sort | diff '%s' - && wc -l <'%s'",
             in_tmp("declared"), library, in_tmp("declared"), in_tmp("declared"));
    CHECK(atoi(shell(command, 0)) > 40);
}

static void example(const char *compiler, const char *source) {
    char command[2000];
    need_compilers();
    shared_library();
    copy_header();
    snprintf(command, sizeof command, "%s -Wall -Wextra -pedantic -Werror -I'%s' %s -o '%s' -L'%s' -lsleigh -Wl,-rpath,'%s'",
             compiler, in_tmp("include"), source, in_tmp("embed"), in_tmp("lib"), in_tmp("lib"));
    shell(command, 0);
    snprintf(command, sizeof command, "'%s' models/tiny '%s'", in_tmp("embed"), fact);
    CHECK_HAS(shell(command, 0), "4711823");
    snprintf(command, sizeof command, "'%s' /nowhere question", in_tmp("embed"));
    CHECK_HAS(shell(command, 1), "/nowhere/config.json");
    snprintf(command, sizeof command, "'%s'", in_tmp("embed"));
    CHECK_HAS(shell(command, 2), "usage: embed MODEL_FOLDER");
}

static void example_c(void) {
    example("cc -std=c11", "examples/embed.c");
}

static void example_cc(void) {
    example("c++ -std=c++17", "examples/embed.cc");
}

// docs/embed.md prints examples/embed.c.
static void page(void) {
    size_t n;
    CHECK_HAS(slurp("docs/embed.md", &n), slurp("examples/embed.c", &n));
}

static const test_case cases[] = {
    {"header-alone", NEEDS_NOTHING, header_alone},
    {"exported-functions", NEEDS_NOTHING, exported_functions},
    {"page", NEEDS_NOTHING, page},
    {"embed.c", NEEDS_NOTHING, example_c},
    {"embed.cc", NEEDS_NOTHING, example_cc},
    {0},
};
extern const test_suite suite_examples;
const test_suite suite_examples = {"examples", cases};
