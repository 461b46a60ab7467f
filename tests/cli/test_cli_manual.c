// tests/cli/test_cli_manual.c - the man page and the completion of bash.
#include "cli/options/option_table.h"
#include "tests/support/run_cli.h"

#include <stdlib.h>

// Runs a line of bash. Its output is valid as long as a result.
static const char *bash(const char *line) {
    char command[4096];
    size_t n;
    if (system("bash -c '' 2>/dev/null")) TEST_SKIP("needs bash");
    spill(in_tmp("line"), line, strlen(line));
    snprintf(command, sizeof command, "bash '%s' >'%s' 2>&1", in_tmp("line"), in_tmp("said"));
    int status = system(command);
    const char *said = slurp(in_tmp("said"), &n);
    if (status) FAIL("%s", said);
    return said;
}

static void in_page(const result *r, const char *part) {
    if (!strstr(r->out, part)) FAIL("the page lacks \"%s\"", part);
}

static void man_page(void) {
    result r = RUN("help", "--man");
    CHECK_GOOD(r);
    in_page(&r, ".TH SLEIGH 1");
    for (int i = 0; i < cli_n_options; i++) { // the page has the help of every flag, up to its first minus
        char part[64];
        snprintf(part, sizeof part, "\n%.*s", (int)strcspn(cli_option_table[i].help, "-\\"), cli_option_table[i].help);
        in_page(&r, part);
    }
    in_page(&r, ".SH \"SLEIGH GENERATE\"");
    in_page(&r, ".B \\-c, \\-\\-ctx\\-size, \\-\\-ctx N\n");
    in_page(&r, "[SLEIGH_CTX_SIZE]");
    in_page(&r, ".B \\-\\-S N\n");               // a parameter of methods
    in_page(&r, ".B next tokens\neach method "); // an entry of the notes
    if (system("groff --version >/dev/null 2>&1")) TEST_SKIP("needs groff");
    spill(in_tmp("sleigh.1"), r.out, r.n_out);
    char line[300];
    snprintf(line, sizeof line, "groff -man -Tutf8 -ww '%s' 2>&1 >/dev/null", in_tmp("sleigh.1"));
    CHECK_STR(bash(line), ""); // no warning
}

// What a key TAB completes: words of the command line, the last one to complete; candidates that it has and lacks.
static void completion(void) {
    static const struct {
        const char *words, *has, *lacks; // has: in this order, as a part of the list between blanks
    } cases[] = {
        {"sleigh ''", " generate chat ", " --model "},
        {"sleigh ge", " generate ", " chat "},
        {"sleigh help per", " perplexity ", " generate "},
        {"sleigh generate --top", " --top-k --top-p ", " --temp "},
        {"sleigh generate --no-p", " --no-perf ", " --perf "},
        {"sleigh tokenize --", " --bos ", " --temp "},
        {"sleigh generate --bern", " --bernoulli-sampling ", " --B "}, // a parameter of methods
        {"sleigh bench ''", " decode attn ", " generate "},
        {"sleigh bench -r ''", " ", " decode "},
        {"sleigh compare -o ''", " md csv json ", " -o "},
        {"sleigh bench -o j", " json jsonl ", " md "},
        {"sleigh generate --attn santa-p", " santa-prop santa-pps ", " dense "},
        {"sleigh generate --attn = au", " auto ", " dense "}, // --attn=au
        {"sleigh compare --attn dense,santa-sy", " dense,santa-sys ", " dense,santa-strat "},
        {"sleigh generate --chat-template llama3.", " llama3.1 llama3.2 ", " llama3 "},
        {"sleigh generate --device c", " cpu cuda ", " auto "},
        {"sleigh generate --temp ''", " ", " --temp "},
        {"sleigh generate -f \"$tmp/a\"", "/a file ", " -f "},
        {"sleigh generate -m in", " installed ", " -m "},
    };
    char line[2048];
    result r = RUN("help", "--bash");
    CHECK_GOOD(r);
    spill(in_tmp("sleigh.bash"), r.out, r.n_out);
    spill(in_tmp("a file"), "", 0);
    snprintf(line, sizeof line, "mkdir '%s' && : >'%s/config.json'", in_tmp("installed"), in_tmp("installed"));
    bash(line);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(line, sizeof line,
                 "set -u; tmp='%s'; export SLEIGH_MODELS=$tmp; cd /; source \"$tmp/sleigh.bash\"; COMP_WORDS=(%s)\n"
                 "COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _sleigh; echo \" ${COMPREPLY[*]-} \"",
                 test_tmp(), cases[i].words);
        const char *said = bash(line);
        if (!strstr(said, cases[i].has)) FAIL("%s: \"%s\" lacks \"%s\"", cases[i].words, said, cases[i].has);
        if (strstr(said, cases[i].lacks)) FAIL("%s: \"%s\" has \"%s\"", cases[i].words, said, cases[i].lacks);
    }
}

static const test_case cases[] = {
    {"man_page", NEEDS_NOTHING, man_page},
    {"completion", NEEDS_NOTHING, completion},
    {0},
};
extern const test_suite suite_cli_manual;
const test_suite suite_cli_manual = {"cli_manual", cases};
