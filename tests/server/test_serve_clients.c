// tests/server/test_serve_clients.c - `sleigh serve` as a process, with the official clients of OpenAI and Anthropic and with
// curl. serve_clients.py has the cases.
#include "tests/support/run_cli.h"
#include "tests/support/venv.h"

static void run_script(const char *python, const char *name) {
    char command[4096];
    snprintf(command, sizeof command, "exec '%s' tests/server/serve_clients.py '%s' '%s' %s", python, cli_binary(), tiny(),
             name);
    const result r = run_shell(command, (const char *const[]){NULL});
    if (r.code) FAIL("%s: %s", name, r.err);
}

static void process(void) {
    run_script("python3", "process");
}

static void start_errors(void) {
    run_script("python3", "errors");
}

static void use_openai(void) {
    run_script(venv_python("openai httpx2 pydantic"), "openai");
}

static void use_anthropic(void) {
    run_script(venv_python("anthropic httpx2 pydantic"), "anthropic");
}

static void use_curl(void) {
    if (RUN_SHELL("command -v curl", NULL).code) TEST_SKIP("needs curl");
    run_script("python3", "curl");
}

const test_suite suite_serve_clients = {"serve_clients", (const test_case[]){{"process", 0, process},
                                                                             {"start-errors", 0, start_errors},
                                                                             {"openai", 0, use_openai},
                                                                             {"anthropic", 0, use_anthropic},
                                                                             {"curl", 0, use_curl},
                                                                             {0}}};
