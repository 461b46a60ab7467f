// engine/cli/options.c - the table of flags, the parser of flags and the help texts; see options.h.
#include "engine/cli/options.h"
#include "attention/attention.h"
#include "engine/cli/grow.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum {
    OPT_STRING,
    OPT_INT,    // int, k suffix allowed
    OPT_UINT32, // uint32_t, k suffix allowed
    OPT_FLOAT,  // double
    OPT_FLAG,   // int, 1 if given
    OPT_SWITCH, // int, --name and --no-name
    OPT_LIST,   // cli_list, repeatable
    OPT_INTS,   // cli_ints, numbers and ranges separated by commas, k suffix allowed
    OPT_PAIRS,  // cli_ints, two numbers per flag, repeatable
    OPT_CHOICE, // const char *, one of the words in `value`
} option_type;

typedef struct option {
    const char *group; // heading in the help
    const char *names; // separated by blanks; the first long name gives the environment variable
    const char *value; // placeholder in the help; OPT_CHOICE: the choices
    option_type type;
    size_t field;
    double min, max; // OPT_INT, OPT_UINT32, OPT_FLOAT
    const char *def; // NULL: unset
    unsigned commands;
    const char *help;
} option;

#define F(name) offsetof(cli_options, name)
#define RUNS (CLI_GENERATE | CLI_CHAT)
#define SAMPLES (RUNS | CLI_COMPARE)
#define DECODES (RUNS | CLI_PERPLEXITY) // commands with one attention plan: --attn and its flags
#define ENGINES (SAMPLES | DECODES | CLI_LOGITS | CLI_BENCH | CLI_EVAL)
#define LOADS (ENGINES | CLI_TOKENIZE | CLI_DETOKENIZE | CLI_INSPECT)
#define INPUTS (CLI_GENERATE | CLI_TOKENIZE | CLI_DETOKENIZE | CLI_COMPARE)
#define BIG 2147483647.0

// clang-format off
static const option table[] = {
    {"Model", "-m --model", "DIR", OPT_STRING, F(model), 0, 0, NULL, LOADS, "folder of a Hugging Face model, or the name of an installed model (tiny)"},
    {"Model", "--load-format", "auto,dummy", OPT_CHOICE, F(load_format), 0, 0, "auto", ENGINES | CLI_INSPECT, "auto: read the weights; dummy: make random ones (the folder needs only config.json)"},
    {"Model", "-c --ctx-size --ctx", "N", OPT_INT, F(n_ctx), 1, BIG, NULL, RUNS | CLI_INSPECT | CLI_EVAL, "context size in tokens (default: the smallest of the model's limit, what fits in memory and 32k)"},
    {"Model", "-c --ctx-size --ctx", "N", OPT_INT, F(n_ctx), 4, BIG, NULL, CLI_PERPLEXITY, "window size in tokens (default: 512)"},
    {"Model", "--stride", "N", OPT_INT, F(stride), 1, BIG, NULL, CLI_PERPLEXITY, "tokens from the start of one window to the start of the next (default: the window size)"},
    {"Model", "-ub --ubatch-size", "N", OPT_INT, F(ubatch), 1, 65536, NULL, ENGINES, "tokens per prefill pass (default: 512; on a GPU: 2048)"},
    {"Model", "-t --threads", "N", OPT_INT, F(threads), 0, 1024, "0", ENGINES, "number of CPU threads; 0: one for each core"},
    {"Model", "--device", "DEVICE", OPT_STRING, F(device), 0, 0, "auto", ENGINES | CLI_INSPECT, "device to run on: cpu, cuda, cuda:N, or auto (a GPU if it can run the chosen methods)"},

    {"Input", "-p --prompt", "TEXT", OPT_STRING, F(prompt), 0, 0, NULL, INPUTS, "input text"},
    {"Input", "-f --file", "FILE", OPT_STRING, F(file), 0, 0, NULL, INPUTS | CLI_PERPLEXITY, "read the input text from FILE, unchanged; - is standard input, the default"},
    {"Input", "--chat", NULL, OPT_FLAG, F(chat), 0, 0, "0", CLI_GENERATE | CLI_COMPARE | CLI_EVAL, "wrap the prompt in the model's chat template"},
    {"Input", "--chat-template", "NAME", OPT_STRING, F(chat_template), 0, 0, NULL, RUNS | CLI_COMPARE | CLI_EVAL, "name of the chat template (default: the template of the model)"},
    {"Input", "-sys --system-prompt", "TEXT", OPT_STRING, F(system_prompt), 0, 0, NULL, RUNS | CLI_COMPARE | CLI_EVAL, "system message of the chat"},
    {"Input", "--jsonl", "FILE", OPT_STRING, F(jsonl), 0, 0, NULL, CLI_GENERATE, "answer each line of FILE, {\"context\", \"question\", \"id\"} or {\"prompt\"}; print one JSON object per line"},
    {"Input", "--jsonl", "FILE", OPT_STRING, F(jsonl), 0, 0, NULL, CLI_COMPARE, "compare on each line of FILE, {\"context\", \"question\", \"id\"} or {\"prompt\"}; \"reference\" is the text to score"},
    {"Input", "--reference", "FILE", OPT_STRING, F(reference), 0, 0, NULL, CLI_COMPARE, "score the text of FILE after the prompt (default: score the answer of dense attention)"},
    {"Input", "--prompts", "FILE", OPT_STRING, F(prompts), 0, 0, NULL, CLI_GENERATE, "continue each line of FILE; print one JSON object per line"},
    {"Input", "-np --parallel", "N", OPT_INT, F(parallel), 1, 1024, "1", CLI_GENERATE, "with --prompts or --jsonl: decode N lines together as a batch"},
    {"Input", "--bos", NULL, OPT_FLAG, F(bos), 0, 0, "0", CLI_TOKENIZE, "put the BOS token of the tokenizer first"},
    {"Input", "--plain", NULL, OPT_FLAG, F(plain), 0, 0, "0", CLI_TOKENIZE, "treat the strings of special tokens as plain text"},
    {"Input", "--ids", "FILE", OPT_STRING, F(ids), 0, 0, NULL, CLI_LOGITS | CLI_GENERATE, "read the prompt from FILE as token ids, separated by commas or blanks; - is standard input"},
    {"Input", "--random-prompt", "N", OPT_INT, F(random_prompt), 1, BIG, NULL, CLI_GENERATE, "use a prompt of N random token ids; --seed and --seq-id choose them"},

    {"Output", "-n --n-predict --predict", "N", OPT_INT, F(n_predict), -1, BIG, "-1", RUNS, "maximum number of tokens to generate; -1: no limit"},
    {"Output", "-n --n-predict --predict", "N", OPT_INT, F(n_predict), 1, BIG, "64", CLI_COMPARE, "maximum number of tokens to generate"},
    {"Output", "--stop -r --reverse-prompt", "TEXT", OPT_LIST, F(stops), 0, 0, NULL, SAMPLES | CLI_EVAL, "stop before this text would appear in the output (may be repeated)"},
    {"Output", "--ignore-eos", NULL, OPT_FLAG, F(ignore_eos), 0, 0, "0", SAMPLES, "never generate an end-of-text token"},
    {"Output", "--display-prompt", NULL, OPT_SWITCH, F(display_prompt), 0, 0, "0", CLI_GENERATE, "write the prompt before the generated text; in JSON: write it and its ids in the fields prompt and prompt_ids"},
    {"Output", "--perf", NULL, OPT_SWITCH, F(perf), 0, 0, "1", CLI_GENERATE, "print statistics to stderr at the end"},
    {"Output", "-o --output", "text,json", OPT_CHOICE, F(format), 0, 0, "text", CLI_GENERATE, "text: write the text as it is generated; json: write one JSON object at the end (docs/output.md); --jsonl and --prompts always write JSON"},
    {"Output", "--logprobs", "N", OPT_INT, F(logprobs), 0, 20, NULL, CLI_GENERATE, "in JSON: also write the log-probability of each generated token and of the N most likely tokens"},
    {"Output", "-o --output", "FILE", OPT_STRING, F(out), 0, 0, NULL, CLI_LOGITS, "the .npy file to write: float32 [n_tokens, vocab]"},
    {"Output", "-o --output", "md,csv,json,jsonl", OPT_CHOICE, F(format), 0, 0, "md", CLI_METHODS | CLI_INSPECT | CLI_COMPARE | CLI_PERPLEXITY, "format of the tables (docs/output.md)"},
    {"Output", "--plot", "FILE", OPT_STRING, F(plot), 0, 0, NULL, CLI_BENCH | CLI_COMPARE | CLI_EVAL, "plot the results into FILE, an .svg or .png, with gnuplot; a .dat file next to FILE holds the numbers"},
    {"Output", "-o --output", "text,json", OPT_CHOICE, F(format), 0, 0, "text", CLI_TOKENIZE, "text: the ids, separated by commas; json: one JSON object with the ids and the text of each token (docs/output.md)"},

    {"Sampling", "-s --seed", "N", OPT_UINT32, F(seed), 0, 4294967295.0, "0", SAMPLES | CLI_PERPLEXITY | CLI_BENCH | CLI_EVAL, "seed for token sampling and for the draws of the attention methods"},
    {"Sampling", "--temp --temperature", "X", OPT_FLOAT, F(temp), 0, 1e6, "0.8", RUNS, "sampling temperature; 0: greedy"},
    {"Sampling", "--temp --temperature", "X", OPT_FLOAT, F(temp), 0, 1e6, "0", CLI_COMPARE, "sampling temperature of the answers; 0: greedy"},
    {"Sampling", "--top-k", "N", OPT_INT, F(top_k), 0, BIG, "40", SAMPLES | CLI_EVAL, "sample from the N most likely tokens only; 0: from all tokens"},
    {"Sampling", "--top-p", "X", OPT_FLOAT, F(top_p), 0, 1, "0.95", SAMPLES | CLI_EVAL, "sample from the most likely tokens with a total probability of X; 1: from all tokens"},
    {"Sampling", "--min-p", "X", OPT_FLOAT, F(min_p), 0, 1, "0.05", SAMPLES | CLI_EVAL, "drop tokens that are less likely than X times the most likely token; 0: drop none"},
    {"Sampling", "--repeat-penalty", "X", OPT_FLOAT, F(repeat_penalty), 1e-3, 1e3, "1", SAMPLES, "penalty factor on the logits of recent tokens; 1: off"},
    {"Sampling", "--repeat-last-n", "N", OPT_INT, F(repeat_last_n), -1, BIG, "64", SAMPLES, "number of recent tokens that the three penalties see; 0: off, -1: the whole context"},
    {"Sampling", "--presence-penalty", "X", OPT_FLOAT, F(presence_penalty), -1e3, 1e3, "0", SAMPLES, "subtract X from the logit of each recent token; 0: off"},
    {"Sampling", "--frequency-penalty", "X", OPT_FLOAT, F(frequency_penalty), -1e3, 1e3, "0", SAMPLES, "subtract X from the logit of a token for each recent occurrence; 0: off"},
    {"Sampling", "-l --logit-bias", "ID+BIAS", OPT_LIST, F(logit_bias), 0, 0, NULL, SAMPLES, "change the logit of a token: 15+1, 15-0.5, 15-inf (may be repeated)"},

    {"Attention", "--attn", "SPEC", OPT_STRING, F(attn), 0, 0, "dense", DECODES, "attention method for decoding, with parameters: santa-prop:S=128 (`sleigh methods` lists all); auto: dense below a measured length, the fastest method above it"},
    {"Attention", "--attn-layer", "RULE", OPT_LIST, F(attn_layers), 0, 0, NULL, DECODES | CLI_EVAL, "use another method in some layers: 0=dense, 2-5=santa:S=64 (may be repeated)"},
    {"Attention", "--S-schedule", "FILE", OPT_STRING, F(schedule), 0, 0, NULL, DECODES, "set S for each layer: a file with lines of `layer S`"},
    {"Attention", "--calibration", "FILE", OPT_STRING, F(calibration), 0, 0, NULL, DECODES | CLI_COMPARE | CLI_EVAL | CLI_BENCH, "table for --attn=auto; bench attn --calibrate writes it (default: the file for this device and model in ~/.cache/sleigh)"},
    {"Attention", "--dense-prefix", "N", OPT_INT, F(dense_prefix), 0, BIG, NULL, CLI_GENERATE | CLI_COMPARE, "prefill the first N tokens with dense attention; decode the rest of the prompt token by token with --attn"},
    {"Attention", "--dense-prefix", "N", OPT_INT, F(dense_prefix), 0, BIG, NULL, CLI_PERPLEXITY, "prefill the first N tokens of a window with dense attention; decode the rest token by token (default: half a window; with --attn dense: the whole window)"},
    {"Attention", "--question-dense", NULL, OPT_FLAG, F(question_dense), 0, 0, "0", CLI_GENERATE | CLI_COMPARE, "with --jsonl: also prefill the question with dense attention (set-up A)"},
    {"Attention", "--stats", "FILE", OPT_STRING, F(stats), 0, 0, NULL, RUNS, "write a report on attention to FILE: one JSON line per decode step, layer and head"},
    {"Attention", "--stats-error", NULL, OPT_FLAG, F(stats_error), 0, 0, "0", RUNS, "with --stats: also report the error against dense attention on the same state"},
    {"Attention", "--stats-attn", "SPEC", OPT_LIST, F(stats_attn), 0, 0, NULL, RUNS, "with --stats: also run this method on the same states and report its error (may be repeated)"},
    {"Attention", "--stats-seeds", "N", OPT_INT, F(stats_seeds), 1, 1000, "1", RUNS, "with --stats-attn: number of seeds per method and step"},
    {"Attention", "--seq-id", "N", OPT_UINT32, F(seq_id), 0, 4294967295.0, "0", SAMPLES | CLI_EVAL | CLI_PERPLEXITY, "sequence number that keys the random numbers; with --jsonl: the number of the first line"},
    {"Attention", "--attn", "SPEC,...", OPT_LIST, F(attns), 0, 0, NULL, CLI_COMPARE, "methods to compare with dense attention; `sleigh methods` lists them (may be repeated)"},
    {"Attention", "--heads", NULL, OPT_SWITCH, F(heads), 0, 0, "1", CLI_COMPARE, "also run each method on the states of the dense run and report the error of each head"},

    {"Bench", "-p --n-prompt", "N,...", OPT_INTS, F(n_prompts), 0, BIG, NULL, CLI_BENCH, "tests that prefill N tokens, as 512,1k or 512-4096*2; 0: none (default: 512)"},
    {"Bench", "-n --steps --n-gen", "N,...", OPT_INTS, F(n_gens), 0, 1000000, NULL, CLI_BENCH, "tests that generate N tokens, one decode step each; 0: none (default: 128; bench decode: 32)"},
    {"Bench", "-pg --prompt-gen", "PP,TG", OPT_PAIRS, F(pairs), 1, BIG, NULL, CLI_BENCH, "test that prefills PP tokens and then generates TG tokens, timed as one (may be repeated)"},
    {"Bench", "-d --depth --n-depth", "N,...", OPT_INTS, F(depths), 0, BIG, NULL, CLI_BENCH, "tokens in the KV cache of each sequence before a test (default: 0; bench decode and bench attn: 512,4k)"},
    {"Bench", "-b --batch", "N,...", OPT_INTS, F(batches), 1, 1024, NULL, CLI_BENCH, "batch sizes: sequences are prefilled one by one and decode together (default: 1; bench decode and bench attn: 1,4)"},
    {"Bench", "--attn", "SPEC,...", OPT_LIST, F(attns), 0, 0, NULL, CLI_BENCH, "methods to time; 'santa-prop:S={64,128}' means two methods (may be repeated; default: dense)"},
    {"Bench", "--phase", "decode,prefill,all", OPT_CHOICE, F(phase), 0, 0, "all", CLI_BENCH, "bench attn: phase to time"},
    {"Bench", "--calibrate", NULL, OPT_FLAG, F(calibrate), 0, 0, "0", CLI_BENCH, "bench attn: time the candidates of --attn=auto for the shape of --model and write the table to --calibration"},
    {"Bench", "--query-deviation", "X", OPT_FLOAT, F(query_deviation), 0, 100, "4", CLI_BENCH, "bench attn: standard deviation of the elements of queries, where that of keys is 1; 4: peaked attention, 1: flat attention"},
    {"Bench", "--query-spread", "X", OPT_FLOAT, F(query_spread), 0, 4, "0", CLI_BENCH, "bench attn: standard deviation of the log of the channel scales of queries; with 0.78, bernoulli-group:B=8 reads 73% of the key features"},
    {"Bench", "-r --repetitions", "N", OPT_INT, F(repetitions), 1, 1000, NULL, CLI_BENCH, "repetitions of each test, all from the same depth (default: 5; bench decode: 1; bench attn: 40)"},
    {"Bench", "--ragged", NULL, OPT_FLAG, F(ragged), 0, 0, "0", CLI_BENCH, "give sequence i of b a depth of (i + 1) / b of --depth, rounded down to an odd number"},
    {"Bench", "--copy", NULL, OPT_FLAG, F(copy), 0, 0, "0", CLI_BENCH, "prefill one sequence and copy its rows to the others: a faster start, the same memory traffic in the tests"},
    {"Bench", "--memory-rate", "X", OPT_FLOAT, F(memory_rate), 0, 1e6, "0", CLI_BENCH, "memory rate of this device in GB/s, the base of \"% of peak\"; 0: measure it"},
    {"Bench", "-o --output", "md,csv,json,jsonl", OPT_CHOICE, F(format), 0, 0, "md", CLI_BENCH, "format of the results (docs/output.md)"},

    {"Eval", "--task", "TASK,...", OPT_STRING, F(task), 0, 0, "niah-single,niah-multikey,qa-2hop", CLI_EVAL, "tasks to generate (see below), or all"},
    {"Eval", "--length", "N,...", OPT_INTS, F(lengths), 64, 1 << 24, "4k", CLI_EVAL, "tokens of the prompt and of the answer together"},
    {"Eval", "--samples", "N", OPT_INT, F(samples), 1, 1000000, NULL, CLI_EVAL, "questions for each task and length (default: 32; with --jsonl: all of the file)"},
    {"Eval", "--questions", "N", OPT_INT, F(questions), 1, 256, "1", CLI_EVAL, "questions in a row about one text, for tasks that can ask several"},
    {"Eval", "--task-seed", "N", OPT_UINT32, F(task_seed), 0, 4294967295.0, "42", CLI_EVAL, "seed for the generated texts"},
    {"Eval", "--haystack", "text,noise,needles", OPT_CHOICE, F(haystack), 0, 0, "text", CLI_EVAL, "filler between the facts: varied sentences, a few repeated sentences, or other needles (niah tasks only)"},
    {"Eval", "--jsonl", "FILE", OPT_STRING, F(jsonl), 0, 0, NULL, CLI_EVAL, "read the questions from FILE instead of --task: RULER's JSONL, or lines with a reference answer"},
    {"Eval", "--grader", "NAME", OPT_STRING, F(grader), 0, 0, NULL, CLI_EVAL, "grader of the answers, see below (default: the grader of the task or of the line)"},
    {"Eval", "--procedure", "NAME", OPT_STRING, F(procedure), 0, 0, NULL, CLI_EVAL, "use the prompt and the grader of the SANTA paper: gsm8k-boxed, mmlu-boxed, gsm8k or mmlu"},
    {"Eval", "--attn", "SPEC,...", OPT_LIST, F(attns), 0, 0, NULL, CLI_EVAL, "methods to evaluate; 'santa-prop:S={64,128}' means two methods (may be repeated; default: dense)"},
    {"Eval", "--question-dense", NULL, OPT_FLAG, F(question_dense), 0, 0, "0", CLI_EVAL, "also prefill the question with dense attention (set-up A)"},
    {"Eval", "-n --n-predict --predict", "N", OPT_INT, F(n_predict), -1, BIG, "-1", CLI_EVAL, "maximum number of tokens to generate; -1: the limit of the task"},
    {"Eval", "--temp --temperature", "X", OPT_FLOAT, F(temp), 0, 1e6, NULL, CLI_EVAL, "sampling temperature; 0: greedy (default: 0, also if the model's settings name another)"},
    {"Eval", "--out", "FILE", OPT_STRING, F(out), 0, 0, NULL, CLI_EVAL, "write one line per sample and method to FILE; if FILE exists, continue the run that it holds"},
    {"Eval", "--dump", "FILE", OPT_STRING, F(dump), 0, 0, NULL, CLI_EVAL, "write the prompts to FILE in RULER's format and do not run the model"},
    {"Eval", "-o --output", "md,csv,json,jsonl", OPT_CHOICE, F(format), 0, 0, "md", CLI_EVAL, "format of the table (docs/output.md)"},

    {"General", "-h --help", NULL, OPT_FLAG, F(help), 0, 0, "0", ~0u, "show this help"},
};
// clang-format on
enum { N_OPTIONS = sizeof table / sizeof *table };
_Static_assert((int)N_OPTIONS <= (int)CLI_MAX_FLAGS, "cli_options.given has a byte per flag");

// ---- names ----

// Copies word i of s, which blanks separate. Returns 0 if there is none.
static int word_of(const char *s, int i, char *out, size_t size) {
    for (; *s; i--) {
        size_t n = strcspn(s, " ");
        if (i == 0) {
            snprintf(out, size, "%.*s", (int)n, s);
            return 1;
        }
        s += n + (s[n] == ' ');
    }
    return 0;
}

// The name in messages: the first long name.
static const char *long_name(const option *opt, char buf[32]) {
    for (int i = 0; word_of(opt->names, i, buf, 32); i++)
        if (!strncmp(buf, "--", 2)) return buf;
    return buf;
}

static const char *env_name(const option *opt, char buf[48]) {
    char name[32];
    int n = snprintf(buf, 48, "SLEIGH_");
    for (const char *p = long_name(opt, name) + 2; *p; p++) buf[n++] = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
    buf[n] = 0;
    return buf;
}

// Finds a flag of these commands (~0u: of any command). *value: 0 after --no-X, else 1.
static const option *find_option(const char *name, unsigned commands, int *value) {
    char word[40], negated[48];
    for (int i = 0; i < N_OPTIONS; i++) {
        if (!(table[i].commands & commands)) continue;
        for (int j = 0; word_of(table[i].names, j, word, sizeof word); j++) {
            *value = 1;
            if (!strcmp(word, name)) return &table[i];
            *value = 0;
            snprintf(negated, sizeof negated, "--no-%s", word + 2);
            if (table[i].type == OPT_SWITCH && !strcmp(negated, name)) return &table[i];
        }
    }
    return NULL;
}

static int is_param(const char *name) { // a parameter of any method
    for (const sl_attn_method *const *m = sl_attn_methods; *m; m++)
        for (const sl_attn_param *p = (*m)->params; p && p->name; p++)
            if (!strcmp(p->name, name)) return 1;
    return 0;
}

// Edit distance; a swap of two neighbours counts as one edit.
static int distance(const char *a, const char *b) {
    enum { MAX = 40 };
    int d[MAX + 1][MAX + 1], n = (int)strlen(a), m = (int)strlen(b);
    if (n > MAX || m > MAX) return 1000;
    for (int i = 0; i <= n; i++) {
        for (int j = 0; j <= m; j++) {
            if (!i || !j) {
                d[i][j] = i + j;
                continue;
            }
            int best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (d[i - 1][j] + 1 < best) best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best) best = d[i][j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    }
    return d[n][m];
}

const char *cli_nearest(const char *word, const char *const *names, int n) {
    const char *best = NULL;
    int least = (int)strlen(word) / 3 + 1;
    for (int i = 0; i < n; i++) {
        int d = distance(word, names[i]);
        if (d <= least && (!best || d < least)) best = names[i], least = d;
    }
    return best;
}

static int unknown_flag(const char *name, unsigned command, sl_error *err) {
    const char *names[CLI_MAX_FLAGS * 4];
    char words[CLI_MAX_FLAGS * 4][40];
    int n = 0, value;
    if (find_option(name, ~0u, &value))
        return sl_fail(err, SL_ERR_ARG, "flag %s does not belong to this command; --help lists its flags", name);
    for (int i = 0; i < N_OPTIONS; i++) {
        for (int j = 0; (table[i].commands & command) && word_of(table[i].names, j, words[n], sizeof words[n]); j++)
            names[n] = words[n], n++;
        if ((table[i].commands & command) && table[i].type == OPT_SWITCH) {
            char first[32];
            snprintf(words[n], sizeof words[n], "--no-%s", long_name(&table[i], first) + 2);
            names[n] = words[n], n++;
        }
    }
    const char *nearest = cli_nearest(name, names, n);
    if (nearest) return sl_fail(err, SL_ERR_ARG, "unknown flag %.100s; did you mean %s?", name, nearest);
    return sl_fail(err, SL_ERR_ARG, "unknown flag %.100s; --help lists all flags", name);
}

// ---- values ----

static void *field_of(cli_options *o, const option *opt) {
    return (char *)o + opt->field;
}

static int bad_value(const option *opt, const char *flag, const char *value, sl_error *err) {
    const char *kind = opt->type == OPT_FLOAT ? "a number" : "a whole number";
    if (opt->max >= BIG && opt->type != OPT_UINT32)
        return sl_fail(err, SL_ERR_ARG, "%s %.100s: expected %s, %g or more", flag, value, kind, opt->min);
    return sl_fail(err, SL_ERR_ARG, "%s %.100s: expected %s from %.10g to %.10g", flag, value, kind, opt->min, opt->max);
}

static int parse_number(const option *opt, const char *flag, const char *value, double *out, sl_error *err) {
    char *end;
    double number;
    errno = 0;
    if (opt->type == OPT_FLOAT)
        number = strtod(value, &end);
    else {
        long long whole = strtoll(value, &end, 10);
        int kilo = end != value && (*end == 'k' || *end == 'K');
        number = (double)whole * (kilo ? 1024 : 1);
        end += kilo;
    }
    if (end == value || *end || errno || isspace((unsigned char)*value) || !(number >= opt->min && number <= opt->max))
        return bad_value(opt, flag, value, err);
    *out = number;
    return 0;
}

static int set_number(cli_options *o, const option *opt, const char *flag, const char *value, sl_error *err) {
    double number = 0;
    int rc = parse_number(opt, flag, value, &number, err);
    if (rc) return rc;
    if (opt->type == OPT_FLOAT)
        *(double *)field_of(o, opt) = number;
    else if (opt->type == OPT_UINT32)
        *(uint32_t *)field_of(o, opt) = (uint32_t)number;
    else
        *(int *)field_of(o, opt) = (int)number;
    return 0;
}

static int by_size(const void *x, const void *y) {
    int a = *(const int *)x, b = *(const int *)y;
    return (a > b) - (a < b);
}

void cli_sort_ints(cli_ints *list) {
    qsort(list->at, list->n, sizeof *list->at, by_size);
}

static int add_int(cli_ints *list, const char *flag, double number, sl_error *err) {
    if (list->n == CLI_MAX_INTS) return sl_fail(err, SL_ERR_ARG, "%s: expected at most %d numbers", flag, CLI_MAX_INTS);
    list->at[list->n++] = (int)number;
    return 0;
}

// FIRST-LAST, FIRST-LAST+STEP or FIRST-LAST*FACTOR. Writes NULs over the signs in `word`.
static int add_range(cli_ints *list, const option *opt, const char *flag, const char *value, char *word, sl_error *err) {
    const option any = {.type = OPT_INT, .min = 1, .max = BIG};
    double first = 0, last = 0, by = 1;
    char *dash = strchr(word, '-'), *sign = dash + 1 + strcspn(dash + 1, "+*"), how = *sign;
    *dash = *sign = 0;
    int rc = parse_number(opt, flag, word, &first, err);
    if (!rc) rc = parse_number(opt, flag, dash + 1, &last, err);
    if (!rc && how) rc = parse_number(&any, flag, sign + 1, &by, err);
    if (rc) return rc;
    if (last < first || (how == '*' && (by < 2 || first < 1)))
        return sl_fail(err, SL_ERR_ARG, "%s %.100s: expected a rising range: FIRST-LAST, FIRST-LAST+STEP or FIRST-LAST*FACTOR",
                       flag, value);
    for (double x = first; !rc && x <= last; x = how == '*' ? x * by : x + by) rc = add_int(list, flag, x, err);
    return rc;
}

static int set_ints(cli_options *o, const option *opt, const char *flag, const char *value, sl_error *err) {
    cli_ints *list = field_of(o, opt);
    int rc = 0;
    list->n = 0;
    for (const char *p = value; !rc && p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
        char word[64];
        double number = 0;
        snprintf(word, sizeof word, "%.*s", (int)strcspn(p, ","), p);
        if (*word && strchr(word + 1, '-')) {
            rc = add_range(list, opt, flag, value, word, err);
            continue;
        }
        rc = parse_number(opt, flag, word, &number, err);
        if (!rc) rc = add_int(list, flag, number, err);
    }
    return rc;
}

// fresh: replaces the pairs from the environment.
static int add_pair(cli_options *o, const option *opt, const char *flag, const char *value, int fresh, sl_error *err) {
    cli_ints *list = field_of(o, opt);
    const char *comma = strchr(value, ',');
    char first[32];
    double a = 0, b = 0;
    if (fresh) list->n = 0;
    if (!comma) return sl_fail(err, SL_ERR_ARG, "%s %.100s: expected two numbers, for example 512,128", flag, value);
    snprintf(first, sizeof first, "%.*s", (int)(comma - value), value);
    int rc = parse_number(opt, flag, first, &a, err);
    if (!rc) rc = parse_number(opt, flag, comma + 1, &b, err);
    if (!rc) rc = add_int(list, flag, a, err);
    return rc ? rc : add_int(list, flag, b, err);
}

static int set_choice(cli_options *o, const option *opt, const char *flag, const char *value, sl_error *err) {
    size_t n = strlen(value);
    for (const char *p = opt->value; *p;) {
        size_t m = strcspn(p, ",");
        if (m == n && !memcmp(p, value, n)) {
            *(const char **)field_of(o, opt) = value;
            return 0;
        }
        p += m + (p[m] == ',');
    }
    return sl_fail(err, SL_ERR_ARG, "%s %.100s: expected one of %s", flag, value, opt->value);
}

static int list_add(cli_list *list, const char *item, sl_error *err) {
    const char **items = cli_grow(list->items, list->n, &list->cap, sizeof *items);
    if (!items) return sl_fail(err, SL_ERR_MEMORY, "command line: out of memory");
    list->items = items;
    list->items[list->n++] = item;
    return 0;
}

// source: CLI_BY_ENV, CLI_BY_FLAG, or 0 for a default.
static int set_value(cli_options *o, const option *opt, const char *flag, const char *value, int source, sl_error *err) {
    unsigned char *given = &o->given[opt - table];
    cli_list *list = field_of(o, opt);
    int rc = 0;
    switch (opt->type) {
    case OPT_STRING:
        *(const char **)field_of(o, opt) = value;
        break;
    case OPT_CHOICE:
        rc = set_choice(o, opt, flag, value, err);
        break;
    case OPT_INTS:
        rc = set_ints(o, opt, flag, value, err);
        break;
    case OPT_PAIRS:
        rc = add_pair(o, opt, flag, value, *given != source, err);
        break;
    case OPT_LIST:
        if (*given != source) list->n = 0; // flags replace the list from the environment
        rc = list_add(list, value, err);
        break;
    case OPT_FLAG:
    case OPT_SWITCH:
        if (strcmp(value, "0") && strcmp(value, "1"))
            return sl_fail(err, SL_ERR_ARG, "%s %.100s: expected 0 or 1", flag, value);
        *(int *)field_of(o, opt) = *value == '1';
        break;
    default:
        rc = set_number(o, opt, flag, value, err);
    }
    if (!rc) *given = (unsigned char)source;
    return rc;
}

// ---- the command line ----

static int takes_value(const option *opt) {
    return opt->type != OPT_FLAG && opt->type != OPT_SWITCH;
}

// Parses the flag at args[*i] and moves *i past it.
static int parse_flag(cli_options *o, int n, char **args, int *i, sl_error *err) {
    char name[64];
    const char *arg = args[(*i)++], *equals = !strncmp(arg, "--", 2) ? strchr(arg, '=') : NULL, *value = NULL;
    snprintf(name, sizeof name, "%.*s", equals ? (int)(equals - arg) : (int)strlen(arg), arg);
    int on = 1;
    const option *opt = find_option(name, o->command, &on);
    int param = !opt && !strncmp(name, "--", 2) && (o->command & DECODES) && is_param(name + 2);
    if (!opt && !param) return unknown_flag(name, o->command, err);
    if (opt && !takes_value(opt)) {
        if (equals) return sl_fail(err, SL_ERR_ARG, "flag %s takes no value", name);
        return set_value(o, opt, name, on ? "1" : "0", CLI_BY_FLAG, err);
    }
    if (equals)
        value = equals + 1;
    else if (*i < n)
        value = args[(*i)++];
    else
        return sl_fail(err, SL_ERR_ARG, "flag %s needs a value", name);
    if (opt) return set_value(o, opt, name, value, CLI_BY_FLAG, err);
    if (o->n_params == CLI_MAX_PARAMS)
        return sl_fail(err, SL_ERR_ARG, "flag %s: expected at most %d parameters of methods", name, CLI_MAX_PARAMS);
    cli_param *p = &o->params[o->n_params++];
    snprintf(p->name, sizeof p->name, "%.31s", name + 2);
    p->value = value;
    return 0;
}

static int parse_env(cli_options *o, sl_error *err) {
    for (int i = 0; i < N_OPTIONS; i++) {
        char name[48];
        const char *value = getenv(env_name(&table[i], name));
        if (!value || !(table[i].commands & o->command) || table[i].field == F(help)) continue;
        int rc = set_value(o, &table[i], name, value, CLI_BY_ENV, err);
        if (rc) return rc;
    }
    return 0;
}

int cli_options_parse(cli_options *o, unsigned command, int n, char **args, sl_error *err) {
    *o = (cli_options){.command = command, .dense_prefix = -1};
    // A default of this command replaces the default that another command has for the same field.
    for (int only_command = 0; only_command < 2; only_command++)
        for (int i = 0; i < N_OPTIONS; i++)
            if (table[i].def && (!only_command || (table[i].commands & command)))
                SL_CHECK(set_value(o, &table[i], table[i].names, table[i].def, 0, err) == 0);
    int rc = parse_env(o, err);
    for (int i = 0; !rc && i < n;) {
        if (args[i][0] == '-' && args[i][1])
            rc = parse_flag(o, n, args, &i, err);
        else if (command == CLI_BENCH && !o->what)
            o->what = args[i++];
        else
            rc = sl_fail(err, SL_ERR_ARG, "unexpected argument \"%.100s\"; give text with --prompt or --file", args[i]);
    }
    if (rc) cli_options_free(o);
    return rc;
}

void cli_options_free(cli_options *o) {
    free(o->stops.items);
    free(o->logit_bias.items);
    free(o->attn_layers.items);
    free(o->stats_attn.items);
    free(o->attns.items);
    o->stops = o->logit_bias = o->attn_layers = o->stats_attn = o->attns = (cli_list){0};
}

int cli_option_given(const cli_options *o, size_t field) {
    for (int i = 0; i < N_OPTIONS; i++)
        if (table[i].field == field && (table[i].commands & o->command)) return o->given[i];
    return 0;
}

const char *cli_given_flag(const cli_options *o, const cli_flag *flags, int n) {
    for (int i = 0; i < n; i++)
        if (cli_option_given(o, flags[i].field) == CLI_BY_FLAG) return flags[i].name;
    return NULL;
}

// ---- help ----

// Prints an entry of the help: `left` in the first column, and `text` in the second column, broken at blanks.
static void print_entry(const char *left, const char *text, FILE *out) {
    enum { INDENT = 39, WIDTH = 120 };
    int column = fprintf(out, "  %-36s", left);
    while (*text) {
        int n = (int)strcspn(text, " ");
        if (!strncmp(text, "(default: ", 10)) n = 10 + (int)strcspn(text + 10, " "); // keep the value with its label
        if (column + 1 + n > WIDTH && column > INDENT) column = fprintf(out, "\n%*s", INDENT - 1, "") - 1;
        column += fprintf(out, " %.*s", n, text);
        text += n + (text[n] == ' ');
    }
    fputc('\n', out);
}

static void help_option(const option *opt, FILE *out) {
    char left[96], word[32], env[48], text[512];
    int n = 0;
    for (int i = 0; word_of(opt->names, i, word, sizeof word); i++) {
        const char *no = opt->type == OPT_SWITCH ? "[no-]" : "";
        n += snprintf(left + n, sizeof left - n, "%s%s", i ? ", " : "", *no ? "--" : word);
        if (*no) n += snprintf(left + n, sizeof left - n, "%s%s", no, word + 2);
    }
    if (opt->value) snprintf(left + n, sizeof left - n, " %s", opt->value);
    const char *def = opt->type == OPT_SWITCH ? (*opt->def == '1' ? "yes" : "no") : takes_value(opt) ? opt->def : NULL;
    n = snprintf(text, sizeof text, "%s", opt->help);
    if (def) n += snprintf(text + n, sizeof text - n, " (default: %s)", def);
    if (opt->field != F(help)) snprintf(text + n, sizeof text - n, " [%s]", env_name(opt, env));
    print_entry(left, text, out);
}

// Prints the parameters of all methods: each name once, with the methods that have the parameter.
static void help_params(FILE *out) {
    fprintf(out, "\nParameters of the methods that --attn and --attn-layer choose (each with the methods that have it and "
                 "their defaults):\n");
    for (const sl_attn_method *const *m = sl_attn_methods; *m; m++) {
        for (const sl_attn_param *p = (*m)->params; p && p->name; p++) {
            int seen = 0;
            for (const sl_attn_method *const *before = sl_attn_methods; before != m; before++)
                for (const sl_attn_param *q = (*before)->params; q && q->name; q++) seen |= !strcmp(q->name, p->name);
            if (seen) continue;
            char left[96], def[64], text[1024];
            const char *value = p->choices ? p->choices : p->type == SL_PARAM_INT ? "N" : "X";
            snprintf(left, sizeof left, "--%s %s", p->name, value);
            int n = snprintf(text, sizeof text, "%s (", p->help);
            const char *comma = "";
            for (const sl_attn_method *const *other = m; *other; other++)
                for (const sl_attn_param *q = (*other)->params; q && q->name; q++) {
                    if (strcmp(q->name, p->name)) continue;
                    sl_attn_param_format(q, q->def, def, sizeof def);
                    n += snprintf(text + n, sizeof text - n, "%s%s: %s", comma, (*other)->name, def), comma = ", ";
                }
            snprintf(text + n, sizeof text - n, ")");
            print_entry(left, text, out);
        }
    }
}

void cli_help_command(const cli_command *c, FILE *out) {
    fprintf(out, "usage: sleigh %s %s\n\n%s\n", c->name, c->args, c->summary);
    const char *group = "";
    for (int i = 0; i < N_OPTIONS; i++) {
        if (!(table[i].commands & c->bit)) continue;
        if (strcmp(group, table[i].group)) fprintf(out, "\n%s:\n", group = table[i].group);
        help_option(&table[i], out);
    }
    if (c->bit & DECODES) help_params(out);
    if (c->notes) fprintf(out, "\n%s", c->notes);
    fprintf(out, "\nEach flag has an environment variable, shown in brackets; the flag takes precedence. In numbers, k and K "
                 "mean 1024.\n");
}
