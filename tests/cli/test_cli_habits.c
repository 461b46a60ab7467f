// tests/cli/test_cli_habits.c - flags that users of llama.cpp and vLLM type from habit (cli/options/habits.h): every row is
// run, and the manual shows the rows. Also the flags of Sleigh that come from these programs: --escape, --mlock, --quiet, -s
// -1, -c 0.
#include "cli/options/habits.h"
#include "cli/options/all_options.h"
#include "cli/options/option_table.h"
#include "tests/support/pty.h"
#include "tests/support/run_cli.h"

#include <jansson.h>
#include <stdlib.h>
#include <unistd.h>

static sl_error err;

// ---- the rows ----

static const char *value_for(const cli_habit *h) {
    static char word[32];
    if (!h->value) return NULL;
    if (!h->accepts) return cli_habit_optional(h) ? "off" : "zz";
    snprintf(word, sizeof word, "%.*s", (int)strcspn(h->accepts, ","), h->accepts);
    return word;
}

// A refused row: a usage error for each name, which shows the text of the row.
static void refused(void) {
    for (int i = 0; i < cli_n_habits; i++) {
        const cli_habit *h = &cli_habits[i];
        unsigned command = h->commands & ~(h->commands - 1); // the first one
        char name[48], want[256];
        for (int j = 0; h->type == HABIT_REFUSED && cli_option_name(h->names, j, name, sizeof name); j++) {
            const char *value = value_for(h);
            char *args[] = {name, (char *)value};
            int first = 0;
            cli_options o;
            CHECK_ERR(cli_options_parse(&o, command, value ? 2 : 1, args, &err), err, SL_ERR_ARG, h->text);
            CHECK_HAS(err.message, name);
            if (cli_habit_find(name, command, &first) != h) continue; // an earlier row has the name, so the value is needed
            CHECK_ERR(cli_options_parse(&o, command, 1, args, &err), err, SL_ERR_ARG, name);
            snprintf(want, sizeof want, "flag %s: %s", name, h->text);
            CHECK_STR(err.message, want);
        }
    }
}

// The first command that has the row, with few flags and a short run.
static int start_of(const cli_habit *h, const char **args) {
    static const char *const starts[][12] = {
        {"generate", "-m", "M", "-p", "Hello", "-n", "2"},
        {"chat", "-m", "M", "-n", "1"},
        {"bench", "-m", "M", "-p", "4", "-n", "1", "-r", "1"},
    };
    static const unsigned commands[] = {CLI_GENERATE, CLI_CHAT, CLI_BENCH};
    for (int i = 0, n = 0; i < 3; i++) {
        if (!(h->commands & commands[i])) continue;
        for (; starts[i][n]; n++) args[n] = strcmp(starts[i][n], "M") ? starts[i][n] : tiny();
        return n;
    }
    FAIL("%s: no command of this test has the row", h->names);
}

// A row without effect: a note on stderr names all flags and the reason once; stdout does not change.
static void no_effect(void) {
    char plain[64];
    snprintf(plain, sizeof plain, "%s", RUN("generate", "-m", tiny(), "-p", "Hello", "-n", "2").out);
    for (int i = 0; i < cli_n_habits; i++) {
        const cli_habit *h = &cli_habits[i];
        if (h->type != HABIT_NOTHING || h->commands == CLI_SERVE) continue; // a server would run until a signal
        const char *args[40] = {0};
        char names[16][48];
        int n = start_of(h, args), n_names = 0;
        for (; cli_option_name(h->names, n_names, names[n_names], sizeof names[0]); n_names++) {
            args[n++] = names[n_names];
            if (h->value) args[n++] = value_for(h);
        }
        result r = run_args("Hello\n", args);
        CHECK_GOOD(r);
        CHECK_HAS(r.err, "note: no effect here: ");
        const char *reason = strstr(r.err, h->text);
        CHECK(reason && !strstr(reason + 1, h->text));
        for (int j = 0; j < n_names; j++) CHECK_HAS(r.err, names[j]);
        if (h->commands & CLI_GENERATE) CHECK_STR(r.out, plain);
    }
}

static int same_field(const cli_option *opt, const cli_options *a, const cli_options *b) {
    const char *x = (const char *)a + opt->field, *y = (const char *)b + opt->field;
    if (opt->type == OPT_STRING || opt->type == OPT_CHOICE) {
        const char *s = *(const char *const *)x, *t = *(const char *const *)y;
        return s == t || (s && t && !strcmp(s, t));
    }
    if (opt->type == OPT_LIST) {
        const cli_list *s = (const cli_list *)x, *t = (const cli_list *)y;
        for (int i = 0; i < s->n && i < t->n; i++)
            if (strcmp(s->items[i], t->items[i])) return 0;
        return s->n == t->n;
    }
    return opt->type == OPT_FLOAT ? *(const double *)x == *(const double *)y : *(const int *)x == *(const int *)y;
}

// A row that stands for another flag: both command lines give the same values.
static void same(void) {
    for (int i = 0; i < cli_n_habits; i++) {
        const cli_habit *h = &cli_habits[i];
        char name[48];
        for (int j = 0; h->type == HABIT_SAME && cli_option_name(h->names, j, name, sizeof name); j++) {
            const char *value = h->value && !h->accepts ? "7" : value_for(h), *by_target = h->as_value ? h->as_value : value;
            unsigned command = h->commands & (0u - h->commands); // the first command of the row
            int is_off = h->as_value && !strcmp(h->as_value, "0"),
                is_switch = is_off || (h->as_value && !strcmp(h->as_value, "1"));
            char off[48];
            snprintf(off, sizeof off, "--no-%s", h->target + 2);
            char *from[] = {name, (char *)value}, *to[] = {is_off ? off : (char *)h->target, (char *)by_target};
            cli_options a, b;
            CHECK(command);
            CHECK_OK(cli_options_parse(&a, command, value ? 2 : 1, from, &err), err);
            CHECK_OK(cli_options_parse(&b, command, is_switch ? 1 : 2, to, &err), err);
            for (int k = 0; k < cli_n_options; k++) {
                const cli_option *opt = &cli_option_table[k];
                if (!(opt->commands & command)) continue;
                if (a.given.rows[k] != b.given.rows[k] || !same_field(opt, &a, &b))
                    FAIL("%s and %s: %s", name, h->target, opt->names);
            }
            CHECK_STR(a.no_effect, "");
            cli_options_free(&a);
            cli_options_free(&b);
        }
    }
}

// No row is hidden by a flag of the same command or by an earlier row, and the last row of a name takes every value.
static void reachable(void) {
    for (int i = 0; i < cli_n_habits; i++) {
        const cli_habit *h = &cli_habits[i];
        char name[48], word[48];
        for (int j = 0; cli_option_name(h->names, j, name, sizeof name); j++) {
            for (int k = 0; k < cli_n_options; k++)
                for (int l = 0; (cli_option_table[k].commands & h->commands) && h->commands != ~0u &&
                                cli_option_name(cli_option_table[k].names, l, word, sizeof word);
                     l++)
                    if (!strcmp(word, name)) FAIL("%s is a flag of Sleigh and a habitual flag", name);
            for (unsigned bit = 1; bit && bit <= CLI_EVAL; bit <<= 1) {
                const cli_habit *last = NULL, *row;
                if (!(h->commands & bit)) continue;
                for (int at = 0; (row = cli_habit_find(name, bit, &at)); at++) {
                    if (last && !last->accepts) FAIL("%s: the row \"%s\" is never reached", name, row->text);
                    if (last && !last->value != !row->value) FAIL("%s: rows with and without a value", name);
                    last = row;
                }
                if (last->accepts) FAIL("%s: expected a last row for all other values", name);
            }
        }
    }
}

static void manual(void) {
    size_t n;
    result r = RUN("help", "flags");
    CHECK_GOOD(r);
    const char *at = strstr(slurp("docs/flags.md", &n), r.out);
    if (!at || at[r.n_out] == '|') FAIL("docs/flags.md lacks the output of `sleigh help flags`, or has more rows");
}

// ---- the flags of the issue, one by one ----

static void one_by_one(void) {
    static const struct {
        const char *args[5];
        int code;
        const char *part; // of stderr
    } cases[] = {
        {{"-ngl", "0"}, 0, "backend: cpu"},
        {{"-ngl", "99"}, 0, "-ngl 99 (all layers run on the same device"},
        {{"-fa"}, 0, "no effect here: -fa ("},
        {{"-fa", "off"}, 2, "-fa off: expected one of on,auto,1,true; attention never"},
        {{"-fa", "-n", "1"}, 0, "1 generated"}, // -n is not the value of -fa
        {{"-e"}, 0, "stopped: "},
        {{"-ctk", "bf16", "-ctv", "q8_0"}, 0, "stopped: "},
        {{"-ctk", "f16"}, 2, "--cache-type-k f16: expected auto, bf16, fp8, int8 or q8_0"},
        {{"--kv_cache_dtype", "fp8_e4m3"}, 0, "stopped: "},
        {{"--kv-cache-dtype", "fp8_e5m2"}, 2, "--kv-cache-dtype fp8_e5m2: expected auto, bf16, fp8, int8 or q8_0"},
        {{"--mlock"}, 0, "stopped: "},
        {{"-hf", "ORG/NAME"}, 1, "hf download ORG/NAME"},
        {{"-hf", "ORG/NAME:Q4_K_M"}, 1, "hf download ORG/NAME gets it"},
        {{"--dtype=auto"}, 0, "--dtype auto ("},
        {{"--dtype", "float16"}, 2, "--dtype float16: expected one of auto,bfloat16; "},
        {{"--max-tokens", "1"}, 0, "1 generated"},
        {{"--max_tokens", "1"}, 0, "1 generated"},
        {{"--max-tokens", "1.5"}, 2, "--max-tokens 1.5: expected a whole number"},
        {{"--max-model-len", "2k"}, 0, "context 2048 of"},
        {{"--max-model-len"}, 2, "flag --max-model-len needs a value"},
        {{"-tp", "2"}, 0, "ranks: 2 processes share the model"},
        {{"-pp", "2"}, 2, "-pp 2: expected 1; --tensor-parallel-size shares a model"},
        {{"-s", "-1"}, 0, "note: --seed -1 chose "},
        {{"-c", "0"}, 0, "context 131072 of 131072 tokens"},
        {{"--simple-io=1"}, 2, "flag --simple-io takes no value"},
        {{"--no-escape"}, 0, "stopped: "},
        {{"--flash-atn"}, 2, "unknown flag --flash-atn; did you mean --flash-attn?"},
        {{"--slot-save-patx"}, 2, "unknown flag --slot-save-patx; --help"}, // a refused flag is no suggestion
        {{"--no-"}, 2, "unknown flag --no-"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *args[16] = {"generate", "-m", tiny(), "-p", "Hello", "-n", "2"};
        for (int n = 7, j = 0; j < 5 && cases[i].args[j]; j++) args[n++] = cases[i].args[j];
        result r = run_args(NULL, args);
        if (cases[i].code) check_error(&r, cases[i].code, cases[i].part);
        if (!cases[i].code) CHECK_GOOD(r);
        CHECK_HAS(r.err, cases[i].part);
    }
}

static void escapes(void) {
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"a\\nb", "a\nb"},          {"\\t\\r\\\\\\'\\\"", "\t\r\\'\""}, {"\\x41\\x7e", "A~"},
        {"\\xC3\\xa9", "\xc3\xa9"}, {"\\q \\x4 \\x", "\\q \\x4 \\x"},   {"end\\", "end\\"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *args[] = {"-p", (char *)cases[i].text, "-e", "-sys", (char *)cases[i].text, "--stop", (char *)cases[i].text};
        cli_options o;
        CHECK_OK(cli_options_parse(&o, CLI_GENERATE, 7, args, &err), err);
        CHECK_STR(o.input.prompt, cases[i].want);
        CHECK_STR(o.chat.system, cases[i].want);
        CHECK_STR(o.run.limits.stops.items[0], cases[i].want);
        cli_options_free(&o);
        CHECK_OK(cli_options_parse(&o, CLI_GENERATE, 2, args, &err), err); // without -e nothing changes
        CHECK_STR(o.input.prompt, cases[i].text);
        cli_options_free(&o);
    }
    char *args[] = {"-e", "-p", "a\\x00b"};
    cli_options o;
    CHECK_ERR(cli_options_parse(&o, CLI_GENERATE, 3, args, &err), err, SL_ERR_ARG, "--prompt: expected text without \\x00");
    result r = RUN("generate", "-m", tiny(), "-e", "-p", "a\\nb", "-n", "1", "--display-prompt");
    CHECK_GOOD(r);
    CHECK_HAS(r.out, "a\nb");
}

// The seed that --seed -1 chooses repeats the run; two runs choose different seeds.
static void random_seed(void) {
    unsigned seeds[2];
    char text[16];
    result r[2];
    for (int i = 0; i < 2; i++) {
        r[i] = RUN("generate", "-m", tiny(), "-p", question, "-n", "30", "--temp", "1.5", "--ignore-eos", "-s", "-1");
        CHECK_GOOD(r[i]);
        CHECK(sscanf(strstr(r[i].err, "chose "), "chose %u; --seed", &seeds[i]) == 1);
    }
    CHECK(seeds[0] != seeds[1]); // fails once in 4 billion runs
    snprintf(text, sizeof text, "%u", seeds[1]);
    result again = RUN("generate", "-m", tiny(), "-p", question, "-n", "30", "--temp", "1.5", "--ignore-eos", "-s", text);
    check_same(&again, &r[1]);
}

// ---- --quiet ----

static void quiet(void) {
    const char *m = tiny();
    char text[256], lines[256];
    snprintf(text, sizeof text, "%s", in_tmp("text"));
    snprintf(lines, sizeof lines, "%s", in_tmp("lines"));
    spill(text, long_text(8), strlen(long_text(8)));
    spill(lines, "{\"prompt\": \"Hello\"}\n", 20);
    const char *const runs[][16] = {
        {"generate", "-m", m, "-p", "Hello", "-n", "2", "-q", "-fa", "-s", "-1"},
        {"generate", "-m", m, "--jsonl", lines, "-n", "2", "--quiet"},
        {"generate", "-m", m, "--jsonl", lines, "-np", "2", "-n", "2", "--log-disable"},
        {"chat", "-m", m, "-n", "1", "-q"},
        {"bench", "-m", m, "-p", "4", "-n", "1", "-r", "1", "-q"},
        {"compare", "-m", m, "-p", "Hello", "-n", "2", "--attn", "streaming", "-q"},
        {"perplexity", "-m", m, "-f", text, "-c", "64", "-q"},
        {"eval", "-m", m, "--length", "256", "--samples", "1", "--task", "niah-single", "-q"},
    };
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        result r = run_args("Hello\n", runs[i]);
        CHECK_GOOD(r);
        CHECK_STR(r.err, "");
        CHECK(r.n_out > 0);
    }
    result r = RUN("generate", "-m", m, "-p", "Hello", "-c", "2", "-q"); // errors stay
    check_error(&r, 1, "the context holds 2");
    CHECK(!strncmp(r.err, "sleigh: error: ", 15));
    setenv("SLEIGH_QUIET", "1", 1);
    r = RUN("generate", "-m", m, "-p", "Hello", "-n", "2");
    unsetenv("SLEIGH_QUIET");
    CHECK_GOOD(r);
    CHECK_STR(r.err, "");
}

// In a terminal the dialogue of chat stays, the description of the model does not.
static void quiet_chat(void) {
    PTY_START((pty_options){0}, "chat", "-m", tiny(), "-n", "2", "--quiet");
    pty_expect("> ");
    pty_type("/ctx\r");
    pty_expect("context: 0 of ");
    pty_type("/nothing\r");
    pty_expect("error: unknown command");
    pty_type("/quit\r");
    CHECK_INT(pty_finish(), 0);
    CHECK_LACKS(pty_seen(), "model: ");
    CHECK(pty_modes_are_restored());
}

// ---- other defaults ----

static void limits(void) {
    char buf[256];
    result r = RUN("generate", "-m", tiny(), "-p", question, "--ignore-eos");
    CHECK_GOOD(r);
    CHECK_HAS(stat_line(&r, "stopped", buf), "limit, ");
    CHECK_HAS(buf, "512 generated");
    CHECK_HAS(buf, "; -n N sets another limit, -n -1 none");
    r = RUN("generate", "-m", tiny(), "-p", question, "--ignore-eos", "-n", "3");
    CHECK_LACKS(stat_line(&r, "stopped", buf), "-n N");
}

static void mlock_limit(void) {
#ifdef __SANITIZE_ADDRESS__
    TEST_SKIP("AddressSanitizer replaces mlock by a function that does nothing");
#endif
    // root may lock all memory, unless it gives up the right
    const char *shell =
        getuid() ? "ulimit -l 64 && exec \"$0\" \"$@\"" : "ulimit -l 64 && exec setpriv --bounding-set=-ipc_lock \"$0\" \"$@\"";
    if (!getuid() && system("setpriv --bounding-set=-ipc_lock true 2> /dev/null"))
        TEST_SKIP("needs setpriv, or another user than root");
    result r = RUN_SHELL(shell, "generate", "-m", tiny(), "-p", "x", "-n", "1", "--mlock");
    check_error(&r, 1, "--mlock: cannot lock ");
    CHECK_HAS(r.err, "64.00 KiB (ulimit -l)");
}

// A folder with the tokenizer of the embedded model and the shape of a larger model.
static void make_assistant(int n_layers, int with_template) {
    char cmd[1024];
    json_error_t e;
    snprintf(cmd, sizeof cmd, "cp %s/*.json %s/", tiny(), test_tmp());
    CHECK_INT(system(cmd), 0);
    json_t *config = json_load_file(in_tmp("config.json"), 0, &e),
           *tok = json_load_file(in_tmp("tokenizer_config.json"), 0, &e);
    CHECK(config && tok);
    json_object_set_new(config, "num_hidden_layers", json_integer(n_layers));
    if (!with_template) json_object_del(tok, "chat_template");
    CHECK(!json_dump_file(config, in_tmp("config.json"), 0) && !json_dump_file(tok, in_tmp("tokenizer_config.json"), 0));
    json_decref(config);
    json_decref(tok);
}

static void chat_hint(void) {
    static const char hint[] = "hint: this model has a chat template (tokenizer_config.json); --chat puts the prompt into it\n";
    static const struct {
        int n_layers, with_template;
        const char *prompt, *flag;
        int hints;
    } cases[] = {
        {9, 1, "Hello", "--perf", 1},
        {9, 1, "Hello", "--chat", 0},
        {9, 1, "<|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|>", "--perf", 0},
        {9, 1, "[INST] Hello [/INST]", "--perf", 0},
        {9, 0, "Hello", "--perf", 0},
        {7, 1, "Hello", "--perf", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        make_assistant(cases[i].n_layers, cases[i].with_template);
        result r = RUN("generate", "-m", test_tmp(), "--load-format", "dummy", "-p", cases[i].prompt, "-n", "1", cases[i].flag);
        CHECK_GOOD(r);
        CHECK_INT(strstr(r.err, hint) != NULL, cases[i].hints);
    }
}

static const test_case cases[] = {
    {"refused", NEEDS_NOTHING, refused},     {"no_effect", NEEDS_SPEED, no_effect},
    {"same", NEEDS_NOTHING, same},           {"reachable", NEEDS_NOTHING, reachable},
    {"manual", NEEDS_NOTHING, manual},       {"one_by_one", NEEDS_NOTHING, one_by_one},
    {"escapes", NEEDS_NOTHING, escapes},     {"random_seed", NEEDS_NOTHING, random_seed},
    {"quiet", NEEDS_NOTHING, quiet},         {"quiet_chat", NEEDS_NOTHING, quiet_chat},
    {"limits", NEEDS_NOTHING, limits},       {"mlock_limit", NEEDS_NOTHING, mlock_limit},
    {"chat_hint", NEEDS_NOTHING, chat_hint}, {0},
};
extern const test_suite suite_cli_habits;
const test_suite suite_cli_habits = {"cli_habits", cases};
