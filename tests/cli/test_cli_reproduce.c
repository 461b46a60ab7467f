// tests/cli/test_cli_reproduce.c - scripts/measure/reproduce.sh with a user's files: small versions of LongBench v2 and GSM8K,
// prompts in a chat template. Existing parts are not run again, and a report holds the existing parts.
#include "tests/support/run_cli.h"

#include <stdlib.h>
#include <unistd.h>

static const char long_bench[] = "{\"context\": \"The harbor has four lamps. The red lamp is broken. \", \"question\": \"Which "
                                 "lamp is broken?\", \"choices\": "
                                 "[\"the red one\", \"the blue one\", \"the green one\", \"none\"], \"answer\": \"A\"}\n"
                                 "{\"context\": \"Mara lives in the north. Tom lives in the south. \", \"question\": \"Who "
                                 "lives in the south?\", \"choices\": "
                                 "[\"Mara\", \"Tom\", \"nobody\", \"both\"], \"answer\": \"B\"}\n";
static const char gsm8k[] =
    "{\"question\": \"Tom has 3 apples and buys 4. How many has he?\", \"answer\": \"3 + 4 = 7\\n#### 7\"}\n"
    "{\"question\": \"A box holds 12 eggs. How many are in 2?\", \"answer\": \"#### 24\"}\n";

// Runs the script on these parts. Returns its messages; *report is the report.
static const char *reproduce(const char *parts, const char *files, const char **report) {
    char command[2048], log[256], path[256];
    const char *sleigh = getenv("SLEIGH_BIN"), *slash = sleigh ? strrchr(sleigh, '/') : NULL;
    size_t n;
    snprintf(log, sizeof log, "%s", in_tmp("log"));
    snprintf(command, sizeof command,
             "BIN='%.*s' SLEIGH_DEVICE=cpu THREADS=2 SIZES=1k:2 STATES=1k:1 CHAT=--chat PARTS='%s' RESULTS='%s' WORK='%s' %s "
             "sh scripts/measure/reproduce.sh '%s' 2>'%s'",
             slash ? (int)(slash - sleigh) : 5, slash ? sleigh : "build", parts, in_tmp("results"), in_tmp("work"), files,
             tiny(), log);
    int status = system(command);
    const char *said = slurp(log, &n);
    if (status) FAIL("exit status %d: %s", status, said);
    snprintf(path, sizeof path, "%s/reproduce-tiny.md", in_tmp("results"));
    *report = slurp(path, &n);
    return said;
}

static int count(const char *text, const char *part) {
    int n = 0;
    for (const char *p = text; (p = strstr(p, part)); p++) n++;
    return n;
}

static void files(void) {
    char given[600], path[256];
    const char *report, *said;
    if (access("scripts/measure/reproduce.sh", R_OK) || system("python3 -c '' 2>/dev/null"))
        TEST_SKIP("needs scripts/ and python3");
    snprintf(path, sizeof path, "%s", in_tmp("long.jsonl"));
    spill(path, long_bench, sizeof long_bench - 1);
    spill(in_tmp("gsm.jsonl"), gsm8k, sizeof gsm8k - 1);
    snprintf(given, sizeof given, "LONGBENCH='%s' GSM8K='%s'", path, in_tmp("gsm.jsonl"));

    said = reproduce("long-bench one-hot", given, &report);
    CHECK_INT(count(said, "reproduce: "), 1 + 5 + 1); // LongBench, no layer and each of four layers, the report
    CHECK_HAS(said, "reproduce: part 1 of 6, ? left: build/sleigh eval ");
    CHECK_HAS(said, "reproduce: part 6 of 6, ");
    CHECK_INT(count(said, "? left"), 1);
    CHECK_INT(count(said, " --chat "), 1 + 5);
    CHECK_HAS(said, " --grader choice-line --attn 'dense,");
    CHECK_HAS(said, "gsm.jsonl --procedure gsm8k --samples 2 --attn santa:S=256 --attn-layer=3=santa:S=1");
    CHECK_HAS(report, "## Table 18: budgets on LongBench v2\n\n    ");
    CHECK_INT(count(report, "\n| santa-"), 9); // methods of Table 18
    CHECK_HAS(report, "\n| dense | 0.0 (0.0 to 65.8) | 28.363 ");
    CHECK_HAS(report, "## Figure 8");
    CHECK_INT(count(report, " (0.0 to 65.8) |\n"), 5); // layers: the embedded model cannot do sums
    CHECK_LACKS(report, "## Table 28");

    said = reproduce("one-hot same-state", given, &report);
    CHECK_INT(count(said, "reproduce: "), 2 * 2 + 1);    // prompts and comparison of two tasks
    CHECK_HAS(said, "reproduce: part 1 of 4, ? left: "); // parts that exist are not counted
    CHECK_HAS(said, "compare -m ");
    CHECK_HAS(said, " --chat --jsonl ");
    CHECK_HAS(report, "## Table 18");
    CHECK_HAS(report, "## Table 28 at 1k");
    CHECK_HAS(report, "\n| QA2 | santa-is:S=256 | 0.");
    size_t n;
    snprintf(path, sizeof path, "%s/reproduce-tiny-error-fwe-1k.dat", in_tmp("results"));
    CHECK_HAS(slurp(path, &n), "# curve: santa-flash\n"); // the data of the plot
    snprintf(path, sizeof path, "%s/fwe-1k-records.jsonl", in_tmp("work"));
    CHECK_LACKS(slurp(path, &n), "Answer:"); // the wording for assistants has no answer prefix
}

static const test_case cases[] = {
    {"files", NEEDS_SPEED, files},
    {0},
};
extern const test_suite suite_cli_reproduce;
const test_suite suite_cli_reproduce = {"cli_reproduce", cases};
