// tests/server/test_page.c - the web page (server/page/page.h): its bytes in the program, its policy, and its use in headless
// Chromium (page_browser.py) with a mock server (page_mock.py).
#include "server/page/page.h"
#include "tests/support/run_cli.h"

#include <stdlib.h>
#include <unistd.h>

static void bytes(void) {
    size_t n;
    const char *file = slurp("server/page/index.html", &n);
    CHECK_INT(server_page_size, n);
    CHECK(!memcmp(server_page, file, n));
    CHECK(!memchr(file, 0, n));
}

// Runs a line of shell, whose output is in the file "said".
static const char *said(const char *line, int *failed) {
    char command[600];
    size_t n;
    if (system("python3 -c '' 2>/dev/null")) TEST_SKIP("needs python3");
    snprintf(command, sizeof command, "PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=tests/server %s >'%s' 2>&1", line, in_tmp("said"));
    *failed = system(command) != 0;
    return slurp(in_tmp("said"), &n);
}

static void policy(void) { // the Makefile's hashes against Python's
    int failed;
    const char *want = said("python3 -c 'import page_mock; print(page_mock.policy(), end=\"\")'", &failed);
    CHECK(!failed);
    CHECK_STR(server_page_policy, want);
}

static void browser(void) {
    int failed;
    if (system("command -v chromium >/dev/null 2>&1")) TEST_SKIP("needs chromium (Debian's package)");
    const char *lines = said("timeout 300 python3 tests/server/page_browser.py", &failed);
    if (failed) FAIL("%s", strstr(lines, "FAIL") ? strstr(lines, "FAIL") : lines);
}

static const test_case cases[] = {{"bytes", 0, bytes}, {"policy", 0, policy}, {"browser", 0, browser}, {0}};
const test_suite suite_page = {"page", cases};
