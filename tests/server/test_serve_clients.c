// tests/server/test_serve_clients.c - `sleigh serve` as a process, with the official clients of OpenAI and Anthropic and with
// curl (serve_clients.py has the cases), with hostile clients, and behind HAProxy.
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

// Small forms of measurements: the scripts compare nothing with times here.
static void run_measurement(const char *script, const char *flags) {
    char command[4096];
    snprintf(command, sizeof command, "exec python3 scripts/measure/%s --sleigh '%s' -m '%s' %s", script, cli_binary(), tiny(),
             flags);
    const result r = run_shell(command, (const char *const[]){NULL});
    if (r.code) FAIL("%s: %s%s", script, r.out, r.err);
}

// Slow and hostile clients beside real ones, of which none may fail; then short requests of all kinds. No descriptor stays
// open.
static void abuse(void) {
    run_measurement("serve_abuse.py",
                    "--clients 3 --tokens 20 --slow 150 --hostile 30 --pause 0.3 --slow-pause 0.1 --seconds 2 "
                    "--requests 150 --most-ratio 1e9 --most-growth 1e9");
}

// kill -9 of a replica behind HAProxy: only the requests that it was answering fail.
static void replicas(void) {
    if (RUN_SHELL("command -v haproxy", NULL).code) TEST_SKIP("needs haproxy");
    run_measurement("serve_replicas.py", "--clients 6 --requests 24 --tokens 100");
}

const test_suite suite_serve_clients = {"serve_clients", (const test_case[]){{"process", 0, process},
                                                                             {"start-errors", 0, start_errors},
                                                                             {"openai", 0, use_openai},
                                                                             {"anthropic", 0, use_anthropic},
                                                                             {"curl", 0, use_curl},
                                                                             {"abuse", 0, abuse},
                                                                             {"replicas", 0, replicas},
                                                                             {0}}};
