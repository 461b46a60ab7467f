// tests/cli/test_cli_hub.c - models in the cache of the Hugging Face hub, and paths that hold no model (cli/hub.h).
#include "cli/hub.h"
#include "tests/support/run_cli.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static sl_error err;
static char path[CLI_PATH_SIZE];

// Runs a line of /bin/sh in the folder of the case.
static void shell(const char *line) {
    char cmd[2048];
    snprintf(cmd, sizeof cmd, "cd '%s' && %s", test_tmp(), line);
    if (system(cmd)) FAIL("%s", cmd);
}

// A cache with ORG/NAME at two commits, of which refs/main names the second, and ORG/ALONE with one commit and no refs/main.
static void make_cache(void) {
    shell("mkdir -p hub/models--ORG--NAME/refs hub/models--ORG--NAME/blobs hub/models--ORG--NAME/snapshots/0a "
          "hub/models--ORG--NAME/snapshots/1b hub/models--ORG--ALONE/snapshots/2c hub/datasets--ORG--DATA "
          "hub/models--plain/snapshots/3d"
          " && printf 1b > hub/models--ORG--NAME/refs/main && echo {} > hub/models--ORG--NAME/blobs/c0"
          " && ln -s ../../blobs/c0 hub/models--ORG--NAME/snapshots/1b/config.json"
          " && echo {} > hub/models--ORG--ALONE/snapshots/2c/config.json && echo {} > "
          "hub/models--plain/snapshots/3d/config.json");
    setenv("HF_HUB_CACHE", in_tmp("hub"), 1);
}

static void check_path(const char *name, const char *want) {
    char real[CLI_PATH_SIZE];
    CHECK_OK(cli_model_path(name, path, &err), err);
    CHECK(realpath(in_tmp(want), real) != NULL);
    CHECK_STR(path, real);
}

static void snapshots(void) {
    char name[64];
    make_cache();
    check_path("ORG/NAME", "hub/models--ORG--NAME/snapshots/1b");
    check_path("ORG/ALONE", "hub/models--ORG--ALONE/snapshots/2c");
    check_path("plain", "hub/models--plain/snapshots/3d");
    check_path(in_tmp("hub/models--ORG--NAME"), "hub/models--ORG--NAME/snapshots/1b");
    CHECK_OK(cli_model_path(in_tmp("hub/models--ORG--NAME/snapshots/1b"), path, &err), err);
    CHECK(cli_hub_name(path, name, sizeof name));
    CHECK_STR(name, "ORG/NAME");
    CHECK(!cli_hub_name("a/models/x", name, sizeof name) && !cli_hub_name("a/x/snapshots/1", name, sizeof name));
    shell("rm hub/models--ORG--NAME/refs/main"); // two snapshots, and nothing chooses one
    CHECK_ERR(cli_model_path("ORG/NAME", path, &err), err, SL_ERR_FORMAT, "expected refs/main or one folder in snapshots/");
    shell("printf 9f > hub/models--ORG--NAME/refs/main");
    CHECK_ERR(cli_model_path("ORG/NAME", path, &err), err, SL_ERR_FORMAT,
              "snapshots/9f is missing; repeat: hf download ORG/NAME");
    unsetenv("HF_HUB_CACHE");
}

// The variables of the hub, in the order of their precedence.
static void places(void) {
    static const char *const variables[][2] = {
        {"HOME", "home"}, {"XDG_CACHE_HOME", "xdg"}, {"HF_HOME", "hf"}, {"HF_HUB_CACHE", "cache"}};
    static const char *const below[] = {"home/.cache/huggingface/hub", "xdg/huggingface/hub", "hf/hub", "cache"};
    char *home = strdup(getenv("HOME") ? getenv("HOME") : "/"), cmd[512];
    unsetenv("XDG_CACHE_HOME"), unsetenv("HF_HOME"), unsetenv("HF_HUB_CACHE"), unsetenv("HUGGINGFACE_HUB_CACHE");
    for (int i = 0; i < 4; i++) {
        snprintf(cmd, sizeof cmd, "mkdir -p %s/models--A--B/snapshots/%d && touch %s/models--A--B/snapshots/%d/config.json",
                 below[i], i, below[i], i);
        shell(cmd);
        setenv(variables[i][0], in_tmp(variables[i][1]), 1);
        snprintf(cmd, sizeof cmd, "%s/models--A--B/snapshots/%d", below[i], i);
        check_path("A/B", cmd);
    }
    snprintf(cmd, sizeof cmd, "%s/models--A--B/snapshots/2", below[2]);
    setenv("HF_HUB_CACHE", "", 1); // an empty variable counts as none
    check_path("A/B", cmd);
    for (int i = 0; i < 4; i++) unsetenv(variables[i][0]);
    char path[CLI_PATH_SIZE];
    CHECK_ERR(cli_model_path("A/B", path, &err), err, SL_ERR_IO, "the hub cache (HOME is not set) does not hold this model");
    setenv("HOME", home, 1);
    free(home);
}

static void incomplete(void) {
    static const struct {
        const char *change, *part;
    } cases[] = {
        {"ln -s ../../blobs/none hub/models--ORG--NAME/snapshots/1b/model.safetensors", "model.safetensors is missing"},
        {"rm hub/models--ORG--NAME/blobs/c0", "config.json is missing"},
        {"rm hub/models--ORG--NAME/snapshots/1b/config.json", "config.json is missing"},
        {"touch hub/models--ORG--NAME/blobs/d1.incomplete", "blobs/ holds an .incomplete file"},
        {"touch hub/models--ORG--NAME/blobs/d1.12ab.incomplete", "blobs/ holds an .incomplete file"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        shell("rm -rf hub");
        make_cache();
        shell(cases[i].change);
        CHECK_ERR(cli_model_path("ORG/NAME", path, &err), err, SL_ERR_FORMAT, cases[i].part);
        CHECK_HAS(err.message, "repeat: hf download ORG/NAME");
        CHECK_ERR(cli_model_path(in_tmp("hub/models--ORG--NAME/snapshots/1b"), path, &err), err, SL_ERR_FORMAT, cases[i].part);
    }
    shell("rm -rf hub");
    make_cache();
    shell(
        "touch hub/models--ORG--NAME/blobs/c0.incomplete hub/models--ORG--NAME/blobs/c0.9.incomplete"); // c0 was finished later
    check_path("ORG/NAME", "hub/models--ORG--NAME/snapshots/1b");
    unsetenv("HF_HUB_CACHE");
}

// A GGUF file, and folders and snapshots that hold one. NAME:PART chooses a file by a part of its name.
static void gguf_files(void) {
    make_cache();
    shell("mkdir -p one two split folder hub/models--ORG--G-GGUF/snapshots/7 && touch one/m.gguf two/m-Q4_K_M.gguf "
          "two/m-Q8_0.gguf split/m-00001-of-00002.gguf split/m-00002-of-00002.gguf folder/config.json folder/m.gguf "
          "hub/models--ORG--G-GGUF/snapshots/7/g.q4_k_m.gguf hub/models--ORG--G-GGUF/snapshots/7/g.f16.gguf "
          "&& printf 'GGUF\\3' > weights.bin");
    check_path(in_tmp("one/m.gguf"), "one/m.gguf");
    check_path(in_tmp("one"), "one/m.gguf");
    check_path(in_tmp("weights.bin"), "weights.bin");
    check_path(in_tmp("split"), "split/m-00001-of-00002.gguf");
    check_path(in_tmp("folder"), "folder"); // config.json wins
    check_path("ORG/G-GGUF:Q4_K_M", "hub/models--ORG--G-GGUF/snapshots/7/g.q4_k_m.gguf");
    CHECK_ERR(cli_model_path(in_tmp("two"), path, &err), err, SL_ERR_ARG,
              "the folder holds 2 GGUF models, expected the path of one of them: m-Q4_K_M.gguf, m-Q8_0.gguf");
    CHECK_ERR(cli_model_path("ORG/G-GGUF", path, &err), err, SL_ERR_ARG, "one of them: g.f16.gguf, g.q4_k_m.gguf");
    unsetenv("HF_HUB_CACHE");
}

// Each wrong path gets a sentence that names the path, what is there, and what to give.
static void wrong_paths(void) {
    make_cache();
    shell("mkdir folder && mkdir -p none several/a several/b several/c && touch several/a/config.json "
          "several/b/config.json a.safetensors b.txt "
          "folder/config.json && mkdir -p odd/snapshots/1 odd/snapshots/2");
    static const struct {
        const char *name; // @: in the folder of the case
        int code;
        const char *parts[3];
    } cases[] = {
        {"@a.safetensors", SL_ERR_FORMAT, {"found a file, expected the folder that holds it: /tmp/"}},
        {"@folder/config.json", SL_ERR_FORMAT, {"found a file, expected the folder that holds it: ", "/folder"}},
        {"@odd", SL_ERR_FORMAT, {"/odd: expected refs/main or one folder in snapshots/; repeat: hf download ORG/NAME"}},
        {"@b.txt", SL_ERR_FORMAT, {"found a file, expected the folder of a Hugging Face model"}},
        {"@hub", SL_ERR_FORMAT, {"found a hub cache, expected one of its models: ORG/ALONE, ORG/NAME, plain"}},
        {"@", SL_ERR_FORMAT, {"found a hub cache"}}, // as $HF_HOME
        {"@none", SL_ERR_FORMAT, {"found a folder without config.json, expected the folder of a Hugging Face model"}},
        {"@several", SL_ERR_FORMAT, {"without config.json, expected one of its folders: a, b"}},
        {"ORG/OTHER", SL_ERR_IO, {"there is no such folder", "/hub) does not hold this model", "hf download ORG/OTHER"}},
        {"ORG/OTHER-GGUF", SL_ERR_IO, {"hf download ORG/OTHER-GGUF gets it"}},
        {"ORG/OTHER-GGUF:Q4_K_M", SL_ERR_IO, {"hf download ORG/OTHER-GGUF gets it"}},
        {"ORG/NAME:Q4_K_M", SL_ERR_IO, {"/snapshots/1b: no GGUF file has Q4_K_M in its name"}},
        {"OTHER", SL_ERR_IO, {"there is no such folder", "searched: "}},
        {"a b/c", SL_ERR_IO, {"there is no such folder, and no installed model"}},
        {"a/b/c", SL_ERR_IO, {"there is no such folder, and no installed model"}},
        {"-a/b", SL_ERR_IO, {"no installed model"}},
        {"a/", SL_ERR_IO, {"no installed model"}},
        {"OTHER/config.json", SL_ERR_IO, {"no installed model"}}, // no name of a model on the hub
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *name = *cases[i].name == '@' ? in_tmp(cases[i].name + 1) : cases[i].name;
        for (int j = 0; j < 3 && cases[i].parts[j]; j++)
            CHECK_ERR(cli_model_path(name, path, &err), err, cases[i].code, cases[i].parts[j]);
        if (strstr(name, "/folder/")) CHECK_STR(strrchr(err.message, '/'), "/folder");
    }
    unsetenv("HF_HUB_CACHE");
}

// A command runs with the name of a model in the cache, and each command says that a folder is missing.
static void commands(void) {
    char cmd[1024], whole[512];
    make_cache();
    CHECK(realpath(tiny(), whole) != NULL);
    snprintf(cmd, sizeof cmd, "cp '%s'/*.json hub/models--ORG--ALONE/snapshots/2c/", whole);
    shell(cmd);
    result want = RUN("tokenize", "-m", tiny(), "-p", "grass"), by_name = RUN("tokenize", "-m", "ORG/ALONE", "-p", "grass"),
           by_flag = RUN("tokenize", "-hf", "ORG/ALONE", "-p", "grass");
    CHECK_GOOD(by_name);
    CHECK_GOOD(by_flag);
    CHECK_STR(by_name.out, want.out);
    CHECK_STR(by_flag.out, want.out);
    unsetenv("HF_HUB_CACHE");
    static const char *const missing[][6] = {
        {"chat", "-m", "/no/folder"},    {"generate", "-m", "/no/folder", "-p", "x"}, {"bench", "-m", "/no/folder"},
        {"inspect", "-m", "/no/folder"}, {"tokenize", "-m", "/no/folder", "-p", "x"}, {"chat", "-m", "/no/folder", "-c", "0"}};
    for (size_t i = 0; i < sizeof missing / sizeof *missing; i++) {
        result r = run_args(NULL, missing[i]);
        check_error(&r, 1, "--model /no/folder: there is no such folder");
    }
}

static const test_case cases[] = {
    {"snapshots", NEEDS_NOTHING, snapshots},
    {"places", NEEDS_NOTHING, places},
    {"incomplete", NEEDS_NOTHING, incomplete},
    {"wrong_paths", NEEDS_NOTHING, wrong_paths},
    {"gguf_files", NEEDS_NOTHING, gguf_files},
    {"commands", NEEDS_NOTHING, commands},
    {0},
};
extern const test_suite suite_cli_hub;
const test_suite suite_cli_hub = {"cli_hub", cases};
