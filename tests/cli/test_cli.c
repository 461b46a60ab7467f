// tests/cli/test_cli.c - runs build/sleigh as a user does, and checks output, errors and exit codes.
//
// Runs $SLEIGH_BIN (default build/sleigh) on the embedded model. The cases do not judge the text of the model. They check that
// equal questions get equal answers and that each error is one line.
#include "attention/attention.h"
#include "cli/options/option_table.h"
#include "tests/support/bucket_plan.h"
#include "tests/support/run_cli.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void version(void) {
    result r = RUN("--version");
    CHECK_GOOD(r);
    CHECK_HAS(r.out, "sleigh 0.");
    CHECK_HAS(r.out, "compiler: ");
    CHECK_HAS(r.out, "backend: cpu");
    CHECK_STR(r.err, "");
}

static int longest_line(const char *text) {
    int longest = 0;
    for (const char *p = text; *p; p += strcspn(p, "\n") + (p[strcspn(p, "\n")] != 0))
        if ((int)strcspn(p, "\n") > longest) longest = (int)strcspn(p, "\n");
    return longest;
}

// Each flag stands below the heading of its group, with its whole help.
static void check_entries(const char *text) {
    char heading[100] = "", first[100], name[32], *words = strdup(text), *to = words;
    for (const char *p = text; *p; p++) // single blanks
        if (!isspace((unsigned char)*p) || (to > words && to[-1] != ' ')) *to++ = isspace((unsigned char)*p) ? ' ' : *p;
    *to = 0;
    for (const char *line = strstr(text, "\n\n"); line && *line; line += strcspn(line, "\n"), line += *line == '\n') {
        int is_flag = !strncmp(line, "  -", 3), found = 0;
        if (*line != ' ' && *line != '\n') snprintf(heading, sizeof heading, "%.*s", (int)strcspn(line, ":\n"), line);
        if (!is_flag || !strncmp(heading, "Parameters", 10)) continue;
        snprintf(first, sizeof first, "%.*s", (int)strcspn(line + 2, ", \n"), line + 2);
        if (!strncmp(first, "--[no-]", 7)) memmove(first + 2, first + 7, strlen(first + 7) + 1);
        for (int i = 0; i < cli_n_options && cli_option_name(cli_option_table[i].names, 0, name, sizeof name); i++)
            found |=
                !strcmp(name, first) && !strcmp(cli_option_table[i].group, heading) && strstr(words, cli_option_table[i].help);
        if (!found) FAIL("flag %s below \"%s\"", first, heading);
    }
    free(words);
}

static void help(void) {
    static const char *const commands[] = {"generate", "chat",    "tokenize",   "detokenize", "logits",  "inspect",
                                           "bench",    "compare", "perplexity", "eval",       "methods", "version"};
    result all = RUN("--help");
    CHECK_GOOD(all);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        CHECK_HAS(all.out, commands[i]);
        result r = RUN(commands[i], "--help");
        CHECK_GOOD(r);
        CHECK_HAS(r.out, "usage: sleigh ");
        CHECK(longest_line(r.out) <= 120);
        CHECK_HAS(r.out, commands[i]);
        check_entries(r.out);
    }
    result r = RUN("help", "generate");
    CHECK_GOOD(r);
    CHECK_HAS(r.out, "--repeat-penalty X");
    CHECK_HAS(r.out, "(default: 0.95)");
    CHECK_HAS(r.out, "SLEIGH_CTX_SIZE");
    CHECK_HAS(r.out, "--S N"); // a parameter of a method
}

static void usage_errors(void) {
    const char *m = tiny();
    static const struct {
        const char *args[6], *part;
    } cases[] = {
        {{"generat"}, "did you mean generate"},
        {{"frobnicate"}, "unknown command \"frobnicate\"; `sleigh --help` lists all commands"},
        {{"run", "M"}, "unknown command \"run\"; `sleigh generate` continues a prompt"},
        {{"-m", "M", "-p", "x"}, "flag -m stands before the command"},
        {{"generate", "M", "-p", "x"}, "give a model with --model"},
        {{"generate", "-p", "x"}, "--model is required"},
        {{"generate", "-m", "M", "--tmep", "1"}, "unknown flag --tmep; did you mean --temp"},
        {{"generate", "-m", "M", "--zzzzzzzz", "1"}, "unknown flag --zzzzzzzz"},
        {{"generate", "-m", "M", "--top-p= 0.5"}, "--top-p  0.5: expected a number from 0 to 1"},
        {{"generate", "-m", "M", "--seed", "-2"}, "--seed -2: expected -1 or a whole number from 0 to 4294967295"},
        {{"generate", "-m", "M", "-p"}, "flag -p needs a value"},
        {{"generate", "-m", "M", "--chat=1"}, "flag --chat takes no value"},
        {{"generate", "-m", "M", "hello"}, "unexpected argument \"hello\""},
        {{"generate", "-m", "M", "-p", "x", "--S=8"}, "--S: the chosen attention method (dense) has no such parameter"},
        {{"generate", "-m", "M", "-p", "x", "--attn=santaprop"}, "santa-prop"},
        {{"generate", "-m", "M", "-p", "x", "--attn=santa:Q=1"}, "Q"},
        {{"generate", "-m", "M", "-p", "x", "--attn=santa:S=0"}, "S"},
        {{"generate", "-m", "M", "-p", "x", "--attn-layer=99=dense"}, "99"},
        {{"generate", "-m", "M", "-p", "x", "--device=cuda:x"}, "--device cuda:x: expected auto, cpu, cuda or cuda:N"},
        {{"generate", "-m", "M", "-p", "x", "--device=tpu"}, "--device tpu: expected auto, cpu, cuda or cuda:N"},
        {{"generate", "-m", "M", "-p", "x", "-fy"}, "unknown flag -fy"},
        {{"generate", "-m", "M", "-p", "x", "--file=y"}, "--prompt and --file"},
        {{"generate", "-m", "M", "-p", "x", "-sys=y"}, "unknown flag -sys=y"},
        {{"generate", "-m", "M", "-p", "x", "--system-prompt=y"}, "needs --chat"},
        {{"generate", "-m", "M", "-p", "x", "--question-dense"}, "needs --jsonl"},
        {{"generate", "-m", "M", "-p", "x", "--jsonl=y"}, "--prompt cannot be used with --jsonl"},
        {{"generate", "-m", "M", "-p", "x", "--logit-bias=5*2"}, "--logit-bias 5*2"},
        {{"generate", "-m", "M", "-p", "x", "--logit-bias=9999+1"}, "9999"},
        {{"generate", "-m", "M", "-p", "x", "--dense-prefix=5000"}, "--dense-prefix 5000"},
        {{"generate", "-m", "M", "-p", "x", "-c=200k"}, "unknown flag -c=200k"},
        {{"generate", "-m", "M", "-p", "x", "--ctx-size=200k"}, "--ctx-size 204800"},
        {{"generate", "-m", "M", "-p", "x", "--bos"}, "--bos does not belong to this command"},
        {{"chat", "-m", "M", "--chat-template", "nope"}, "--chat-template nope: expected a file, or one of llama"},
        {{"tokenize", "-p", "x"}, "--model is required"},
        {{"tokenize", "-m", "M", "--temp", "1"}, "--temp does not belong to this command"},
        {{"logits", "-m", "M", "-o", "x.npy"}, "--ids is required"},
        {{"logits", "-m", "M", "--ids", "x"}, "--output is required"},
        {{"generate", "-m", "M", "--certify=layer"}, "--certify: the chosen attention method (dense) has no such parameter"},
        {{"generate", "-m", "M", "--attn=santa-pps", "--certify=both"}, "--certify both: expected one of layer,head"},
        {{"generate", "-m", "M", "--attn=santa-pps", "--on-miss=x"}, "--on-miss x: expected one of report,dense"},
        {{"generate", "-m", "M", "--attn=santa-pps", "--aim=0.3"}, "--aim 0.3: expected a number from 0.5 to 0.99"},
        {{"generate", "-m", "M", "--attn=santa-pps", "--budget=carry"},
         "--budget carry: expected one of even,variance,carried"},
        {{"generate", "-m", "M", "--attn=santa-is:epsilon=0.2"}, "found --proposal int4 with --epsilon 0.2, expected int8"},
        {{"methods", "-ngl", "9"}, "flag -ngl does not belong to this command"},
    };
    result r = run_args(NULL, (const char *const[]){NULL});
    CHECK_INT(r.code, 2);
    CHECK_INT(r.n_out, 0);
    CHECK_HAS(r.err, "usage: sleigh COMMAND");
    CHECK_HAS(r.err, "sleigh: error: no command given\n");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *args[8] = {0};
        for (int j = 0; j < 6 && cases[i].args[j]; j++) args[j] = strcmp(cases[i].args[j], "M") ? cases[i].args[j] : m;
        r = run_args("x", args);
        check_error(&r, 2, cases[i].part);
    }
}

static void environment(void) {
    const char *m = tiny();
    setenv("SLEIGH_TEMP", "7x", 1);
    result r = RUN("generate", "-m", m, "-p", "x");
    unsetenv("SLEIGH_TEMP");
    check_error(&r, 2, "SLEIGH_TEMP 7x");
    setenv("SLEIGH_N_PREDICT", "3", 1);
    setenv("SLEIGH_MODEL", m, 1);
    result by_env = RUN("generate", "-p", question, "--ignore-eos"),
           by_flag = RUN("generate", "-p", question, "--ignore-eos", "-n", "5");
    unsetenv("SLEIGH_N_PREDICT");
    unsetenv("SLEIGH_MODEL");
    CHECK_GOOD(by_env);
    CHECK_GOOD(by_flag);
    CHECK_INT(stat_count(&by_env, "decode"), 2);
    CHECK_INT(stat_count(&by_flag, "decode"), 4); // the flag takes precedence
    setenv("SLEIGH_LOGIT_BIAS", "999999+1", 1);   // not a token id
    result list_by_env = RUN("generate", "-m", m, "-p", "x", "-n", "1"),
           list_by_flag = RUN("generate", "-m", m, "-p", "x", "-n", "1", "-l", "15+1", "--top-p", "1");
    unsetenv("SLEIGH_LOGIT_BIAS");
    CHECK(list_by_env.code != 0);
    CHECK_GOOD(list_by_flag); // its list replaces that of the environment; --top-p takes its largest number
}

static void prompt_sources(void) {
    const char *m = tiny();
    spill(in_tmp("prompt"), question, strlen(question));
    result p = RUN("generate", "-m", m, "-n", "8", "-p", question),
           f = RUN("generate", "-m", m, "-n", "8", "-f", in_tmp("prompt"));
    result s = RUN_IN(question, "generate", "-m", m, "-n", "8");
    check_same(&p, &f);
    check_same(&p, &s);
    CHECK(p.n_out > 0);
    CHECK_HAS(p.err, "setup: A");
    CHECK_HAS(p.err, "sampling: greedy"); // generation_config.json has do_sample false
    CHECK_HAS(p.err, "attention: dense");
}

static void statistics(void) {
    char buf[256];
    result r = RUN("generate", "-m", tiny(), "-p", question, "-n", "6", "--ignore-eos");
    CHECK_GOOD(r);
    CHECK_INT(stat_count(&r, "decode"), 5);
    CHECK_HAS(stat_line(&r, "v_distinct", buf), "100.00%");
    CHECK_HAS(stat_line(&r, "kv_bytes", buf), "100.00%");
    CHECK_LACKS(r.err, "features:");
    CHECK_LACKS(r.err, "certified:");
    result fewer = RUN("generate", "-m", tiny(), "-p", long_text(20), "-n", "2", "--ignore-eos", "--attn=bernoulli");
    CHECK_GOOD(fewer);
    CHECK_HAS(stat_line(&fewer, "features", buf), "% of key features");
    result none = RUN("generate", "-m", tiny(), "-p", question, "-n", "6", "--ignore-eos", "--no-perf");
    CHECK_GOOD(none);
    CHECK_STR(none.out, r.out);
    CHECK_LACKS(none.err, "decode:");
}

// --attn-prefill: what the summary and the JSON say, and the errors. Chunks and -t change no bit.
static void sparse_prefill(void) {
    static const struct {
        const char *attn, *kept; // kept: the start of the line, NULL: there is none
    } cases[] = {{"sample:alpha_c=0.5:alpha_s=0.5", "prefill_kept: "},
                 {"vertical-slash:columns=4:slashes=8", "prefill_kept: "},
                 {"streaming:sink=4:window=20", NULL},
                 {"xattention:stride=8:threshold=0.3", NULL},
                 {"threshold:lambda=0.5", NULL}};
    char text[8192], setup[256], blocks[256];
    snprintf(text, sizeof text, "%s", long_text(26));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
#define ATTN "generate", "-m", tiny(), "-p", text, "-n", "2", "--temp", "0", "--attn-prefill", cases[i].attn
        result r = RUN(ATTN), in_parts = RUN(ATTN, "-ub", "128", "-t", "1");
        CHECK_GOOD(r);
        CHECK_GOOD(in_parts);
        snprintf(setup, sizeof setup, "prompt tokens with %s attention", cases[i].attn);
        CHECK_HAS(r.err, setup);
        unsigned long long visited, causal;
        CHECK(sscanf(stat_line(&r, "prefill_blocks", blocks), "%llu of %llu", &visited, &causal) == 2);
        CHECK(0 < visited && visited < causal);
        CHECK((strstr(r.err, "prefill_kept: ") != NULL) == (cases[i].kept != NULL));
        char want[256], got[256];
        snprintf(want, sizeof want, "%s", stat_line(&r, "logits", got));
        CHECK_STR(stat_line(&in_parts, "logits", got), want);
#undef ATTN
    }
    result dense = RUN("generate", "-m", tiny(), "-p", text, "-n", "1", "--attn-prefill", "dense");
    CHECK_GOOD(dense);
    CHECK(!strstr(dense.err, "prefill_blocks"));
}

static void refused_prefill(void) {
    static const struct {
        const char *flag, *value, *message;
    } cases[] = {
        {"--attn-prefill", "santa", "--attn-prefill santa: a method for decoding, which does not prefill (layer 0)"},
        {"--attn-prefill", "sampel", "--attn-prefill sampel: unknown method; did you mean sample?"},
        {"--attn-prefill", "sample:alpha=1", "--attn-prefill sample: unknown parameter \"alpha\"; did you mean alpha_c?"},
        {"--attn", "sample", "--attn sample: a method for prefill, which does not decode; use --attn-prefill"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        result r = RUN("generate", "-m", tiny(), "-p", "x", "-n", "1", cases[i].flag, cases[i].value);
        CHECK_INT(r.code, 2);
        CHECK_HAS(r.err, cases[i].message);
    }
    result r = RUN("generate", "-m", tiny(), "-p", "x", "-n", "1", "--attn-prefill", "sample", "-ub", "100");
    CHECK_INT(r.code, 2);
    CHECK_HAS(r.err, "--ubatch-size 100: expected at least 128 with --attn-prefill");
}

// The lines about stated errors: the value of the line `stated error`, up to the count of certified layer-steps, and its end.
// has: other parts of the lines; lacks: keys of lines that must not be there.
static void stated_errors(void) {
    static const struct {
        const char *attn[5], *start, *of, *end, *has, *lacks;
    } cases[] = {
        // 4 layers x 8 heads x 5 steps
        {{"--attn=santa-pps:epsilon=0.1:certify=head"}, NULL, NULL, NULL, "of 160 heads used dense attention", "stated error"},
        {{"--attn=santa-pps:epsilon=0.3:certify=layer"},
         "0.3 at delta 5%, ",
         " of 20 layer-steps certified (",
         "",
         "",
         "certified"},
        {{"--attn=santa-pps:epsilon=0.3:certify=layer:delta=0.2:bound=chi2"},
         "0.3 at delta 20%, ",
         " of 20 layer-steps",
         "",
         "",
         "certified"},
        {{"--attn=santa-pps", "--epsilon=0.25", "--certify=layer", "--on-miss=dense", "--aim=0.9"},
         "0.25 at delta 5%, ",
         " of 20 layer-steps certified (",
         " computed again with dense attention",
         "heads used dense attention: their layer's stated error needed it, or their scores",
         "certified"},
        {{"--attn=santa-is:proposal=int8:epsilon=0.3"},
         "0.3 at delta 5%, ",
         " of 20 layer-steps certified (",
         "",
         "",
         "certified"},
        {{"--attn=santa-pps:epsilon=0.3:certify=layer", "--attn-layer=1=dense",
          "--attn-layer=2=santa-pps:epsilon=0.2:certify=layer"},
         "",
         " of 15 layer-steps certified (",
         "",
         "",
         "certified"},
        {{"--attn=santa-pps:S=16:budget=carried"}, NULL, NULL, NULL, "", "stated error"},
    };
    const char *text = long_text(20);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *args[16] = {"generate", "-m", tiny(), "-p", text, "-n", "6", "--ignore-eos"};
        char buf[256], key[64];
        for (int j = 0; j < 5 && cases[i].attn[j]; j++) args[8 + j] = cases[i].attn[j];
        result r = run_args(NULL, args);
        CHECK_GOOD(r);
        CHECK_HAS(r.err, cases[i].has);
        snprintf(key, sizeof key, "\n%s:", cases[i].lacks);
        CHECK_LACKS(r.err, key);
        if (!cases[i].start) continue;
        const char *line = stat_line(&r, "stated error", buf);
        if (strncmp(line, cases[i].start, strlen(cases[i].start))) FAIL("%s: \"%s\"", args[8], line);
        line += strlen(cases[i].start);
        const char *of = line + strspn(line, "0123456789");
        if (of == line || strncmp(of, cases[i].of, strlen(cases[i].of))) FAIL("%s: \"%s\"", args[8], line);
        CHECK_HAS(line, ", mean 0.");
        CHECK_HAS(line, ", largest ");
        CHECK_STR(line + strlen(line) - strlen(cases[i].end), cases[i].end);
    }
}

static void display_prompt(void) {
    char both[1024];
    result plain = RUN("generate", "-m", tiny(), "-p", question, "-n", "4", "--no-display-prompt");
    result shown = RUN("generate", "-m", tiny(), "-p", question, "-n", "4", "--display-prompt");
    CHECK_GOOD(plain);
    CHECK_GOOD(shown);
    snprintf(both, sizeof both, "%s%s", question, plain.out);
    CHECK_STR(shown.out, both);
}

static void seeds(void) {
    const char *m = tiny();
    result a = RUN("generate", "-m", m, "-p", question, "-n", "40", "--temp", "1.5", "--ignore-eos", "--seed", "5");
    result b = RUN("generate", "-m", m, "-p", question, "-n", "40", "--temp", "1.5", "--ignore-eos", "--seed", "5", "-t", "1");
    result c = RUN("generate", "-m", m, "-p", question, "-n", "40", "--temp", "1.5", "--ignore-eos", "--seed", "6");
    result d =
        RUN("generate", "-m", m, "-p", question, "-n", "40", "--temp", "1.5", "--ignore-eos", "--seed", "5", "--seq-id", "1");
    check_same(&a, &b);
    CHECK_GOOD(c);
    CHECK_GOOD(d);
    CHECK(strcmp(a.out, c.out) && strcmp(a.out, d.out));
    CHECK_HAS(a.err, "seed 5");
}

static void attention_flags(void) {
    const char *m = tiny(), *text = long_text(20);
    result a = RUN("generate", "-m", m, "-p", text, "-n", "8", "--ignore-eos", "--attn", "santa-prop:S=8");
    result b = RUN("generate", "-m", m, "-p", text, "-n", "8", "--ignore-eos", "--attn", "santa-prop", "--S", "8");
    check_same(&a, &b);
    CHECK_HAS(a.err, "attention: santa-prop:S=8");
    char buf[256];
    CHECK_LACKS(stat_line(&a, "kv_bytes", buf), "100.00%");
    // 4 layers x 8 heads x 7 steps x 8 samples
    CHECK_STR(stat_line(&a, "samples", buf), "1792");
    result c = RUN("generate", "-m", m, "-p", text, "-n", "8", "--ignore-eos", "--attn-layer", "1-2=santa-prop", "--S=8");
    CHECK_GOOD(c);
    CHECK_HAS(c.err, "attention: 0=dense 1-2=santa-prop:S=8 3=dense");
    CHECK_STR(stat_line(&c, "samples", buf), "896");
    spill(in_tmp("schedule"), "# layer S\n0 16\n3 4\n", 19);
    result d =
        RUN("generate", "-m", m, "-p", text, "-n", "1", "--attn", "santa-prop", "--S=8", "--S-schedule", in_tmp("schedule"));
    CHECK_GOOD(d);
    CHECK_HAS(d.err, "attention: 0=santa-prop:S=16 1-2=santa-prop:S=8 3=santa-prop:S=4");
    static const char *const masks[] = {"sample", "threshold", "oracle:mass=0.9"};
    for (int i = 0; i < 3; i++) { // these methods have no decode
        result e = RUN("generate", "-m", m, "-p", text, "-n", "8", "--attn", masks[i]);
        CHECK(e.code == 2 && e.n_out == 0);
        CHECK_HAS(e.err, "a method for prefill, which does not decode");
    }
}

static void stop_strings(void) {
    const char *m = tiny();
    result full = RUN("generate", "-m", m, "-p", long_text(12), "-n", "40", "--ignore-eos");
    CHECK_GOOD(full);
    CHECK(full.n_out > 12);
    char stop[5] = {0}, buf[256], want[1024];
    snprintf(stop, sizeof stop, "%.4s", full.out + full.n_out / 2);
    snprintf(want, sizeof want, "%.*s", (int)(strstr(full.out, stop) - full.out), full.out);
    result cut = RUN("generate", "-m", m, "-p", long_text(12), "-n", "40", "--ignore-eos", "--stop", "never said", "-r", stop);
    CHECK_GOOD(cut);
    CHECK_STR(cut.out, want);
    int n_prompt, n_generated, n_context; // the context does not keep the token that completes a stop string
    CHECK_HAS(stat_line(&cut, "stopped", buf), "stop string");
    CHECK(sscanf(buf, "stop string, %d prompt tokens, %d generated, %d in", &n_prompt, &n_generated, &n_context) == 3);
    CHECK_INT(n_prompt, stat_count(&cut, "prefill"));
    CHECK_INT(n_context, n_prompt + n_generated - 1);
    CHECK_INT(stat_count(&cut, "decode"), n_generated);
}

static void dense_prefix(void) {
    const char *m = tiny(), *text = long_text(12), *attn = "--attn=santa-prop:S=16";
    char buf[256];
    result a = RUN("generate", "-m", m, "-p", text, "-n", "8", "--ignore-eos", attn);
    CHECK_GOOD(a);
    int n = stat_count(&a, "prefill");
    snprintf(buf, sizeof buf, "%d", n);
    result all = RUN("generate", "-m", m, "-p", text, "-n", "8", "--ignore-eos", attn, "--dense-prefix", buf);
    check_same(&a, &all);
    CHECK_HAS(all.err, "setup: B");
    result none = RUN("generate", "-m", m, "-p", text, "-n", "8", "--ignore-eos", attn, "--dense-prefix", "0");
    CHECK_GOOD(none);
    CHECK_INT(stat_count(&none, "prefill"), 0);
    CHECK_INT(stat_count(&none, "feed"), n);
    result part = RUN("generate", "-m", m, "-p", text, "-n", "8", "--ignore-eos", attn, "--dense-prefix", "100");
    CHECK_GOOD(part);
    CHECK_INT(stat_count(&part, "prefill"), 100);
    CHECK_INT(stat_count(&part, "feed"), n - 100);
}

static void tokenizing(void) {
    const char *m = tiny(), *text = "The caf\xc3\xa9 opens at 7:30.\n\n\tIt's  <|eot_id|> late \xf0\x9f\x8e\xbf";
    result t = RUN("tokenize", "-m", m, "-p", text);
    CHECK_GOOD(t);
    CHECK_HAS(t.out, ",1012,");
    CHECK_STR(t.err, "");
    result back = RUN_IN(t.out, "detokenize", "-m", m);
    CHECK_GOOD(back);
    CHECK_STR(back.out, text);
    result bos = RUN("tokenize", "-m", m, "-p", "A", "--bos");
    CHECK_STR(bos.out, "1008,65\n");
    result plain = RUN("tokenize", "-m", m, "-p", text, "--plain");
    CHECK_GOOD(plain);
    CHECK_LACKS(plain.out, "1012");
    result spaced = RUN("detokenize", "-m", m, "-p", "72 105,\n33");
    CHECK_GOOD(spaced);
    CHECK_STR(spaced.out, "Hi!");
    result none = RUN_IN("", "tokenize", "-m", m);
    CHECK_GOOD(none);
    CHECK_STR(none.out, "\n");
    result bad = RUN("detokenize", "-m", m, "-p", "72,x");
    check_error(&bad, 1, "byte 3");
    bad = RUN("detokenize", "-m", m, "-p", "72,99999");
    check_error(&bad, 1, "99999");
}

static void tokenizer_alone(void) { // a folder that holds only a tokenizer
    char cmd[1024];
    snprintf(cmd, sizeof cmd, "cp %s/tokenizer*.json %s/", tiny(), test_tmp());
    CHECK_INT(system(cmd), 0);
    result r = RUN("tokenize", "-m", test_tmp(), "-p", "Hi");
    CHECK_GOOD(r);
}

static int count_files(const char *part) { // in the folder of the case
    char cmd[512];
    int n = -1;
    snprintf(cmd, sizeof cmd, "ls '%s' | grep -c '%s'", test_tmp(), part);
    FILE *f = popen(cmd, "r");
    if (!f || fscanf(f, "%d", &n) != 1) n = -1;
    if (f) pclose(f);
    return n;
}

static void logits(void) {
    size_t n;
    spill(in_tmp("ids"), "1008, 84,104 101\n", 17);
    result r = RUN("logits", "-m", tiny(), "--ids", in_tmp("ids"), "-o", in_tmp("out.npy"));
    CHECK_GOOD(r);
    const char *npy = slurp(in_tmp("out.npy"), &n);
    CHECK(!memcmp(npy, "\x93NUMPY\x01\x00", 8));
    size_t head = 10 + (unsigned char)npy[8] + 256 * (unsigned char)npy[9];
    CHECK_INT(head % 64, 0);
    CHECK_INT(n, head + 4 * 1024 * sizeof(float));
    CHECK_HAS(npy + 10, "'shape': (4, 1024)");
    float last[1024];
    memcpy(last, npy + n - sizeof last, sizeof last);
    for (int i = 0; i < 1024; i++) CHECK(last[i] > -1e4f && last[i] < 1e4f);
    CHECK_INT(count_files("npy"), 1); // the temporary file is gone
}

static void logits_errors(void) {
    spill(in_tmp("ids"), "1008,5000", 9);
    result r = RUN("logits", "-m", tiny(), "--ids", in_tmp("ids"), "-o", in_tmp("out.npy"));
    check_error(&r, 1, "id 5000");
    spill(in_tmp("ids"), "1008,x", 6);
    r = RUN("logits", "-m", tiny(), "--ids", in_tmp("ids"), "-o", in_tmp("out.npy"));
    check_error(&r, 1, "byte 5");
    spill(in_tmp("ids"), "\n", 1);
    r = RUN("logits", "-m", tiny(), "--ids", in_tmp("ids"), "-o", in_tmp("out.npy"));
    check_error(&r, 1, "expected token ids, found none");
    static char many[2 * 131073];
    memset(many, '1', sizeof many);
    for (size_t i = 1; i < sizeof many; i += 2) many[i] = ' ';
    spill(in_tmp("ids"), many, sizeof many);
    r = RUN("logits", "-m", tiny(), "--ids", in_tmp("ids"), "-o", in_tmp("out.npy"));
    check_error(&r, 1, "expected at most 131072 tokens, this model's context; found 131073");
    CHECK_INT(count_files("npy"), 0);
    spill(in_tmp("ids"), "1008", 4);
    r = RUN("logits", "-m", tiny(), "--ids", in_tmp("ids"), "-o", in_tmp("no/such/out.npy"));
    check_error(&r, 1, "no/such/out.npy");
    r = RUN("logits", "-m", tiny(), "--ids", in_tmp("ids"), "-o", "/dev/full");
    check_error(&r, 1, "/dev/full");
}

static void context(void) {
    const char *m = tiny(), *text = long_text(40);
    char buf[256], counts[64];
    result fits = RUN("generate", "-m", m, "-p", text, "-n", "0");
    CHECK_GOOD(fits);
    CHECK_INT(fits.n_out, 0);
    snprintf(counts, sizeof counts, "%d tokens", stat_count(&fits, "prefill"));
    result over = RUN("generate", "-m", m, "-p", text, "-c", "256");
    check_error(&over, 1, counts);
    CHECK_HAS(over.err, "256");
    CHECK_INT(over.n_out, 0);
    result full = RUN("generate", "-m", m, "-p", question, "-c", "128", "--ignore-eos");
    CHECK_GOOD(full);
    CHECK_HAS(stat_line(&full, "stopped", buf), "context full");
    CHECK_HAS(buf, "128 in the context");
    result one = RUN("generate", "-m", m, "-p", question, "-n", "1", "--ignore-eos");
    snprintf(counts, sizeof counts, "%d", stat_count(&one, "prefill")); // a full context still gives one token
    result exact = RUN("generate", "-m", m, "-p", question, "-c", counts, "--ignore-eos");
    CHECK_GOOD(exact);
    CHECK_HAS(stat_line(&exact, "stopped", buf), "context full");
    CHECK_HAS(buf, "1 generated");
    CHECK_STR(exact.out, one.out);
}

static void bad_folders(void) {
    char cmd[1024];
    result r = RUN("generate", "-m", "/no/such/model", "-p", "x");
    check_error(&r, 1, "/no/such/model");
    r = RUN("generate", "-m", tiny(), "-f", "/no/such/file");
    check_error(&r, 1, "/no/such/file");
    r = RUN("generate", "-m", tiny(), "-p", "x", "--attn=santa", "--S-schedule=/no/such/file");
    check_error(&r, 1, "/no/such/file");
    snprintf(cmd, sizeof cmd, "cp %s/*.json %s/*.safetensors %s/", tiny(), tiny(), test_tmp());
    CHECK_INT(system(cmd), 0);
    CHECK_INT(chmod(in_tmp("model.safetensors"), 0600), 0);
    CHECK_INT(truncate(in_tmp("model.safetensors"), 100000), 0);
    r = RUN("generate", "-m", test_tmp(), "-p", "x");
    check_error(&r, 1, "model.safetensors");
    CHECK_INT(r.n_out, 0);
}

static void full_disk(void) {
    const char *const args[] = {"generate", "-m", tiny(), "-p", question, "-n", "8", NULL};
    result r = finish(start(NULL, 0, "/dev/full", args), "/dev/full");
    check_error(&r, 1, "standard output");
    const char *const methods[] = {"methods", NULL};
    r = finish(start(NULL, 0, "/dev/full", methods), "/dev/full");
    check_error(&r, 1, "standard output");
}

static void interrupt(void) {
    const char *const args[] = {"generate", "-m", tiny(), "-p", question, "--ignore-eos", "-n", "-1", NULL};
    char buf[256];
    pid_t pid = start(NULL, 0, NULL, args);
    wait_for_bytes(pid, in_tmp("stdout"), 1);
    kill(pid, SIGINT);
    result r = finish(pid, NULL);
    CHECK_INT(r.code, -SIGINT);
    CHECK_HAS(stat_line(&r, "stopped", buf), "interrupted");
    CHECK(r.n_out > 0);
}

static void chat(void) {
    const char *m = tiny();
    result r = RUN_IN("/help\nHello there\n/stats\nAnd who\\\nare you?\n/stats\n/ctx\n/attn santa-prop:S=4\nOnce "
                      "more\n/reset\n\n/ctx 2k\nHi\n/quit\nnot read\n",
                      "chat", "-m", m, "--chat-template", "llama3", "-n", "6", "-sys", "Be kind.");
    CHECK_GOOD(r);
    CHECK_HAS(r.err, "/read FILE");
    CHECK_HAS(r.err, "attention: santa-prop:S=4");
    CHECK_HAS(r.err, "of 2048 tokens");
    int lines = 0;
    for (const char *p = r.out; *p; p++) lines += *p == '\n';
    CHECK(lines >= 4); // at least one line per answer
    // The second turn prefills only the new tokens.
    const char *second = strstr(r.err, "stopped: ");
    CHECK(second != NULL);
    int n_first, n_second, n_prompt;
    result rest = r;
    n_first = stat_count(&r, "prefill");
    rest.err = strstr(r.err, "peak_rss") + 8;
    n_second = stat_count(&rest, "prefill");
    char buf[256];
    stat_line(&rest, "stopped", buf);
    CHECK(sscanf(strchr(buf, ',') + 2, "%d prompt", &n_prompt) == 1);
    CHECK(n_prompt >= n_first + n_second);
    spill(in_tmp("message"), "Hello there", 11);
    char script[256];
    snprintf(script, sizeof script, "/read %s\n", in_tmp("message"));
    result typed = RUN_IN("Hello there\n", "chat", "-m", m, "--chat-template", "llama3", "-n", "6");
    result file = RUN_IN(script, "chat", "-m", m, "--chat-template", "llama3", "-n", "6");
    CHECK_GOOD(typed);
    CHECK_GOOD(file);
    CHECK_STR(typed.out, file.out);
}

static void chat_errors(void) {
    const char *m = tiny();
    result r = RUN_IN("/sats\n", "chat", "-m", m, "--chat-template", "llama3");
    CHECK_INT(r.code, 2);
    CHECK_HAS(r.err, "did you mean /stats");
    r = RUN_IN("/attn nope\n", "chat", "-m", m, "--chat-template", "llama3");
    CHECK_INT(r.code, 2);
    CHECK_HAS(r.err, "nope");
    r = RUN_IN(long_text(40), "chat", "-m", m, "--chat-template", "llama3", "-c", "64", "-n", "1");
    check_error(&r, 1, "the context holds 64");
    r = RUN_SHELL("exec \"$0\" \"$@\" </", "chat", "-m", m, "--chat-template", "llama3"); // a folder
    check_error(&r, 1, "cannot read standard input: ");
    result one = RUN("generate", "-m", m, "--chat", "--chat-template", "llama3", "-p", "Hello there", "-n", "6");
    result repl = RUN_IN("Hello there\n", "chat", "-m", m, "--chat-template", "llama3", "-n", "6");
    CHECK_GOOD(one);
    CHECK_GOOD(repl);
    CHECK_INT(repl.n_out, one.n_out + 1);
    CHECK(!strncmp(repl.out, one.out, one.n_out));
}

// test_cli_inspect.c checks the other figures.
static void inspect(void) {
    result r = RUN("inspect", "-m", tiny(), "-c", "8k"), j = RUN("inspect", "-m", tiny(), "-o", "json");
    CHECK_GOOD(r);
    CHECK_HAS(r.out,
              "| 8192 tokens for each sequence | 42.50 MiB | 202.50 MiB |"); // weights of 10.5 MiB; 32 MiB for each sequence
    CHECK_LACKS(r.out, "| santa-prop |");
    CHECK_HAS(r.out, "| buckets of a KV head | 256 |\n");
    CHECK_HAS(r.out, "| centroids of keys | before and after RoPE |\n| classifier of queries | 128 -> 256 -> 256 |\n"
                     "| layers without buckets | 1 |\n");
    CHECK_HAS(r.out, "\n39 tensors; --tensors lists them\n");
    CHECK_LACKS(r.out, "model.embed_tokens.weight");
    json_t *root = document(&j);
    const json_t *buckets = json_object_get(root, "bucket_file"), *tensors = json_object_get(buckets, "tensors");
    double bytes = 0;
    for (size_t i = 0; i < json_array_size(tensors); i++) bytes += number(json_array_get(tensors, i), "bytes");
    CHECK(bytes > 1e5 && number(buckets, "bytes") == bytes && number(buckets, "buckets") == 256);
    CHECK(number(buckets, "width") == 256 && number(buckets, "dense_layers") == 1);
    CHECK(json_is_true(json_object_get(buckets, "roped")));
    char model[80];
    size_t n;
    snprintf(model, sizeof model, "\"model\":\"%s\"", json_string_value(json_object_get(root, "hash")));
    CHECK_HAS(slurp("models/tiny/saap.safetensors", &n) + 8, model); // the header of the file, which was trained for this model
    json_decref(root);
    j = RUN("inspect", "-m", "models/llama-3.1-8b", "--load-format", "dummy", "-o", "json");
    root = document(&j);
    CHECK(json_is_null(json_object_get(root, "hash")));
    json_decref(root);
}

// A model without a bucket file, with the file of another model, and with its own.
static void bucket_files(void) {
    char dir[600];
    size_t n;
    snprintf(dir, sizeof dir, "%s", in_tmp("model"));
    bucket_plan_link("models/prose", dir);
    result r = RUN("generate", "-m", dir, "-p", "The", "-n", "2", "--attn", "saap");
    check_error(&r, 1, "--attn saap: ");
    CHECK_HAS(r.err, "the model has no bucket file; scripts/train/train_saap.py makes it");
    r = RUN("inspect", "-m", dir);
    CHECK_GOOD(r);
    CHECK_LACKS(r.out, "bucket file");
    const char *data = slurp("models/tiny/saap.safetensors", &n);
    spill(in_tmp("model/saap.safetensors"), data, n);
    r = RUN("generate", "-m", dir, "-p", "The", "-n", "2", "--attn", "saap");
    check_error(&r, 1, "made for another model: metadata model is \"fnv1a:");
    r = RUN("inspect", "-m", dir);
    CHECK_GOOD(r);
    CHECK_HAS(r.out, "| unusable | ");
    CHECK_HAS(r.out, "made for another model");
    r = RUN("inspect", "-m", dir, "-o", "json");
    json_t *root = document(&r);
    const char *why = json_string_value(json_object_get(json_object_get(root, "bucket_file"), "error"));
    CHECK(why && strstr(why, "made for another model"));
    json_decref(root);
    r = RUN("generate", "-m", tiny(), "-p", question, "-n", "4", "--attn", "saap", "--l", "4", "--window", "20",
            "--dense-layers", "0");
    check_error(&r, 1, "--attn saap: found --dense-layers 0, expected at least 1");
    r = RUN("generate", "-m", tiny(), "-p", question, "-n", "4", "--attn", "saap-is:S=9", "--l", "4", "--window", "20");
    CHECK_GOOD(r);
}

static void methods(void) {
    json_error_t e;
    result r = RUN("methods"), j = RUN("methods", "-o", "json");
    CHECK_GOOD(r);
    CHECK_GOOD(j);
    json_t *list = json_loads(j.out, 0, &e);
    CHECK(list != NULL);
    size_t n = json_array_size(list), want = 0;
    json_decref(list);
    for (const sl_attn_method *const *m = sl_attn_methods; *m; m++, want++) CHECK_HAS(r.out, (*m)->name);
    CHECK_INT(n, want);
}

static const test_case cases[] = {
    {"version", NEEDS_NOTHING, version},
    {"help", NEEDS_NOTHING, help},
    {"usage_errors", NEEDS_NOTHING, usage_errors},
    {"environment", NEEDS_NOTHING, environment},
    {"prompt_sources", NEEDS_NOTHING, prompt_sources},
    {"statistics", NEEDS_NOTHING, statistics},
    {"stated_errors", NEEDS_NOTHING, stated_errors},
    {"sparse_prefill", NEEDS_NOTHING, sparse_prefill},
    {"refused_prefill", NEEDS_NOTHING, refused_prefill},
    {"display_prompt", NEEDS_NOTHING, display_prompt},
    {"seeds", NEEDS_NOTHING, seeds},
    {"attention_flags", NEEDS_NOTHING, attention_flags},
    {"stop_strings", NEEDS_NOTHING, stop_strings},
    {"dense_prefix", NEEDS_NOTHING, dense_prefix},
    {"tokenizing", NEEDS_NOTHING, tokenizing},
    {"tokenizer_alone", NEEDS_NOTHING, tokenizer_alone},
    {"logits", NEEDS_NOTHING, logits},
    {"logits_errors", NEEDS_NOTHING, logits_errors},
    {"context", NEEDS_NOTHING, context},
    {"bad_folders", NEEDS_NOTHING, bad_folders},
    {"full_disk", NEEDS_NOTHING, full_disk},
    {"interrupt", NEEDS_NOTHING, interrupt},
    {"chat", NEEDS_NOTHING, chat},
    {"chat_errors", NEEDS_NOTHING, chat_errors},
    {"inspect", NEEDS_NOTHING, inspect},
    {"bucket-files", NEEDS_NOTHING, bucket_files},
    {"methods", NEEDS_NOTHING, methods},
    {0},
};
extern const test_suite suite_cli;
const test_suite suite_cli = {"cli", cases};
