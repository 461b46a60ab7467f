// tests/cli/test_cli_model_path.c - the search for the folder that --model names.
#include "cli/model_path.h"
#include "tests/support/run_cli.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static sl_error err;
static char path[CLI_PATH_SIZE];

// A folder in the case's folder with a config.json, or without.
static const char *make_folder(const char *name, int with_config) {
    CHECK(!mkdir(in_tmp(name), 0700));
    char config[300];
    snprintf(config, sizeof config, "%s/config.json", name);
    if (with_config) spill(in_tmp(config), "{}", 2);
    return in_tmp(name);
}

static void order(void) {
    make_folder("test-a", 1); // no other folder near the tests has this name
    make_folder("test-a/b", 1);
    make_folder("empty", 0);
    setenv("SLEIGH_MODELS", test_tmp(), 1);
    CHECK_ERR(cli_model_path(in_tmp("empty"), path, &err), err, SL_ERR_FORMAT, "found a folder without config.json");
    static const char *const found[][2] = {
        {"test-a", "test-a"}, {"models/test-a", "test-a"}, {"test-a/b", "test-a/b"}, {"models/test-a/b", "test-a/b"}};
    for (size_t i = 0; i < sizeof found / sizeof *found; i++) {
        CHECK_OK(cli_model_path(found[i][0], path, &err), err);
        CHECK_STR(path, in_tmp(found[i][1]));
    }
    CHECK_ERR(cli_model_path("empty", path, &err), err, SL_ERR_IO, "--model empty: there is no such folder");
    char real[CLI_PATH_SIZE], searched[CLI_PATH_SIZE + 20];
    snprintf(searched, sizeof searched, "searched: %s", realpath(test_tmp(), real));
    CHECK_HAS(err.message, searched);
    static const char *const refused[] = {"test-a/../test-a", "./test-a", "../test-a", "/test-a", "test-a/.", ""};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        CHECK_ERR(cli_model_path(refused[i], path, &err), err, SL_ERR_IO, "there is no such folder");
        CHECK_LACKS(err.message, "searched");
    }
    static char longest[2 * CLI_PATH_SIZE];
    memset(longest, 'a', sizeof longest - 1);
    CHECK_ERR(cli_model_path(longest, path, &err), err, SL_ERR_IO, "there is no such folder");
    unsetenv("SLEIGH_MODELS");
}

// The program in a build folder finds the embedded model from every folder.
static void every_folder(void) {
    if (strcmp(tiny(), "models/tiny")) TEST_SKIP("needs models/tiny");
    static const char *const names[] = {"tiny", "models/tiny"};
    result want = RUN("tokenize", "-m", tiny(), "-p", "grass");
    CHECK_GOOD(want);
    for (int i = 0; i < 2; i++) {
        result r = RUN_SHELL("bin=$(realpath \"$0\"); cd /; unset SLEIGH_MODELS; exec \"$bin\" \"$@\"", "tokenize", "-m",
                             names[i], "-p", "grass");
        CHECK_GOOD(r);
        CHECK_STR(r.out, want.out);
    }
    result r = RUN("chat", "-m", "no-such-model");
    check_error(&r, 1, "--model no-such-model: there is no such folder");
}

static const test_case cases[] = {
    {"order", NEEDS_NOTHING, order},
    {"every_folder", NEEDS_NOTHING, every_folder},
    {0},
};
extern const test_suite suite_cli_model_path;
const test_suite suite_cli_model_path = {"cli_model_path", cases};
