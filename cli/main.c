// cli/main.c - the main function of build/sleigh: finds and runs the command, and turns its result into the exit code.
#include "base/nearest.h"
#include "cli/commands.h"
#include "cli/error_text.h"
#include "cli/options/all_options.h"
#include "cli/options/habits.h"
#include "cli/options/help.h"
#include "cli/io.h"
#include "cli/options/manual.h"
#include "cli/model_path.h"
#include "cli/output/progress_bar.h"
#include "cli/process.h"
#include "cli/rank_checks.h"
#include "cli/team_start.h"
#include "cli/watch.h"
#include "models/config.h"
#include "models/source.h"

#include <stdio.h>
#include <string.h>

// clang-format off
static const char generate_notes[] =
    "The prompt starts with the tokenizer's BOS token; --chat also puts the prompt into the chat template of the model.\n"
    "Only the generated text goes to stdout, or with -o json one JSON object. Ctrl+C ends the generation. Sampling values\n"
    "come from flags, else from generation_config.json (do_sample false: temperature 0), else from the defaults above;\n"
    "the values in use go to stderr. Statistics go to stderr at the end, one line each (--no-perf turns them off).\n"
    "docs/output.md explains every line and every field of the JSON.\n"
    "\n"
    "Set-ups: in set-up A, the default, the whole prompt is prefilled with dense attention, and --attn decodes the\n"
    "answer. In set-up B, --attn also decodes the end of the prompt: --dense-prefix N prefills only the first N tokens\n"
    "with dense attention, and --jsonl prefills only the context of each line and decodes its question with --attn.\n"
    "\n"
    "--jsonl and --prompts print one JSON object for each line, in the order of the input. --file reads one prompt,\n"
    "unchanged; llama-parallel reads a prompt per line, which is --prompts here. A line of --jsonl is {\"context\",\n"
    "\"question\"} or {\"prompt\"}, and may have \"id\", \"attn\": \"SPEC\" (the method of all layers), \"seq\" (the sequence number\n"
    "that keys the random numbers; default: --seq-id + i for line i, from 0) and \"logprobs\": N. Consecutive lines with\n"
    "the same context share one prefill, also if their methods differ.\n"
    "\n"
    "--parallel N decodes N lines together. When an answer ends, the next line takes its place (continuous batching). Lines\n"
    "with a common beginning prefill its full pages of 256 tokens once, if their prefill is dense. The answer to line i is\n"
    "the same as that of a run with only this prompt and --seq-id + i.\n"
    "\n"
    "--stats writes one line per decode step, layer and query head. The method that decodes comes first, then each\n"
    "--stats-attn method with each seed.\n";

static const char chat_notes[] =
    "On a terminal: arrow keys edit the line, Up shows earlier messages (also of earlier chats; the file is\n"
    "~/.local/state/sleigh/chat_history), Tab completes commands and file names. A pasted text of any size is one message,\n"
    "together with what is typed before and after it. Ctrl+C clears the line or ends an answer; Ctrl+D ends the chat. Other\n"
    "input is read as one message per line. A \\ at the end of a line continues the message. An answer that ends at the limit\n"
    "-n says so. Commands (/help explains them): /help /regen /clear /reset /system [TEXT] /temp [X] /attn [SPEC] /ctx [N]\n"
    "/read FILE /save FILE /load FILE /stats /quit /exit. /save and /load use JSON, [{\"role\", \"content\"}], as OpenAI's\n"
    "interface does.\n";

static const char bench_notes[] =
    "`sleigh bench` runs every combination of depths, batches, tests and methods, and names tests as llama-bench does. pp512\n"
    "is a prefill of 512 tokens; tg128 is 128 decode steps; pp512+tg128 is both in a row; \" @ d32768\" means that each\n"
    "sequence held that many tokens before. Lists take numbers and ranges: 512-4096*2 is 512,1024,2048,4096; 0-8k+2k; 1-4.\n"
    "Prefill is dense with every method, so a test without decoding runs once for all methods. Each sequence has different\n"
    "random ids (--seed) and is prefilled once: depths rise, and after each test the sequence is cut back to its depth.\n"
    "Decoding is greedy and never generates an end token. The first step is not timed. Tests run on the scheduler, as the\n"
    "server does; scheduler_share is the scheduler's own part of a step. docs/output.md explains the columns.\n"
    "json, jsonl and csv add version, commit, device, clocks, model, sizes and flags, the hash of the last logits of the\n"
    "first sequence, and floor_ms, the time to read the weights at the peak rate. md omits batch if it is 1 and attention\n"
    "if it is dense.\n"
    "\n"
    "`sleigh bench decode` times only decoding, in the form of Table 3 of the SANTA paper: seconds to prefill the batch to\n"
    "its depth, seconds of its decode steps, ms / output token, and the speedup over the first method. On a GPU it also shows\n"
    "the time of only the linear layers, and the time that a step saves without attention, or without the rest. These three\n"
    "parts overlap: their sum is not the time of a step.\n"
    "\n"
    "`sleigh bench draft` times decode passes over 1, 2, 3, 5 and 9 rows of one session, which verify 0 to 8 drafts, at each\n"
    "depth (rounded down to a multiple of 256). With --draft it also generates -n tokens after random sentences, with plain\n"
    "decoding and with each draft in turns, and compares times, ids and logits.\n"
    "\n"
    "`sleigh bench linear` times only the matrices of a decode step with -b rows: those of all layers, and the output head.\n"
    "The floor is the time to read their bytes, with the scales, at the peak rate. On a GPU the layers' matrices are one\n"
    "CUDA graph, of the kernels of a step. It takes -m, --load-format, --weights, --device, -t, -b, -r, --memory-rate and -o.\n"
    "\n"
    "--plot draws the rows of tests that only decode: step ms against depth, and, if there are several batches and methods,\n"
    "the speedup against the batch.\n"
    "\n"
    "`sleigh bench attn` times only the attention kernels of a GPU, in the shape of Llama-3.1-8B (32 query heads, 8 KV\n"
    "heads, dimension 128, bf16): decode over -b and -d (without both: 1 x 8k to 32 x 8k and a ragged batch; without one of\n"
    "them: -b 1,4 or -d 512,4k) and prefill. A time is the median over replays of a CUDA graph, with pages in random order\n"
    "and 512 MB written before each replay, so that K and V come from memory. The floor is the time to read the method's\n"
    "bytes at the rate of a read-only kernel. It takes --attn, -b, -d, -r, --phase, --query-deviation, --query-spread, -o\n"
    "and --plot (decode: us against rows).\n"
    "\n"
    "`sleigh bench attn --calibrate` times dense attention and the candidates of --attn=auto (or the methods of --attn) over\n"
    "numbers of sequences and rows, for the heads of --model (default: Llama-3.1-8B's), on a GPU or the CPU. It writes the\n"
    "table from which auto chooses (docs/bench.md). It also times dense prefill, the masks of --mask-method and prefill with\n"
    "random masks over -p tokens (-p 0: not), for the crossover of --attn-prefill=auto. It takes --calibration, -m, --attn,\n"
    "-b, -d, -p, -r, --device, -t, --mask-method, --mask-density and --query-deviation.\n"
    "\n"
    "`sleigh bench attn --cliffs` times every method that the device offers (or the methods of --attn) over S or the\n"
    "parameter in its place, from 1 to 8192, over rows and sequences, on flat and on peaked attention and with --states on\n"
    "that of a model. It prints the cells above 1.1 times the time of dense attention, and the places where more rows or\n"
    "sequences take less than 0.95 of the time (docs/bench.md). It takes -m, --attn, -b, -d, -r, --device, -t, --states,\n"
    "--query-deviation, --cliffs-seconds and -o.\n";

static const char compare_notes[] =
    "Dense attention answers each prompt first. Then each method of --attn answers it, from the same dense prefill. (With\n"
    "--no-texts, dense attention and the methods only decode a reference.) The tables (docs/compare.md):\n"
    "  texts          the answer of each method: the first token that differs from the dense answer, the share of equal\n"
    "                 tokens, the perplexity of the answer with dense attention\n"
    "  next tokens    each method decodes the tokens of the dense answer (or of the reference) on its own KV cache, along\n"
    "                 with dense attention: share of equal top-1 tokens (Wilson 95% interval), KL divergence (nats; mean with\n"
    "                 standard error, quantiles with 95% intervals), perplexity of question tokens and of answer tokens\n"
    "  heads          each method runs on the queries and the KV cache of each step of the dense run: relative L2 error,\n"
    "                 cosine and bias (the part of the error along the dense output) of the output of each head, rows and\n"
    "                 bytes read, effective samples, spread of the coefficients (standard deviation / mean); -o json has\n"
    "                 each layer and head\n"
    "  attention      with --attention: how each layer of dense attention spreads its mass over the tokens of the dense run:\n"
    "                 effective keys, share of the first 4 and of the last 256 tokens, distance, rows with 90% of the mass\n"
    "Standard errors are between prompts if there are at least 8, else between positions as if they were independent.\n"
    "\n"
    "Set-up A: the whole prompt is prefilled with dense attention, and the methods decode the answer. Set-up B: the methods\n"
    "also decode the question; --dense-prefix N selects it, and so does --jsonl with a context and a question.\n"
    "--question-dense selects set-up A again. --chat puts prompts into the chat template of the model.\n";

static const char perplexity_notes[] =
    "Windows of --ctx-size tokens start --stride tokens apart; the tokenizer's BOS replaces the first token of each window.\n"
    "The last --score tokens of a window are scored (default: its second half), but no token is scored twice. Tokens after\n"
    "the last whole window are not used. A text of --file with fewer tokens than a window is one window of its length. Dense\n"
    "attention takes a window in one pass. With another method, or with --dense-prefix, the scored tokens are decoded one by\n"
    "one. --jsonl scores many texts, for example books, and prints a row for each.\n"
    "\n"
    "--history shows whether the model uses distant tokens. Each history scores the same tokens. For a history of N, the\n"
    "scored tokens of a window are cut into segments of --segment tokens; for each segment, dense attention reads the N\n"
    "tokens before the segment (the BOS replaces the first of them), and then the segment, as a text that begins there. So a\n"
    "scored token has N to N + segment - 1 tokens before it. The table compares each history with the history before it.\n"
    "For example, -c 32k --score 4k --history 1k,4k,16k,all scores the tokens from 28k to 32k of each window four times.\n"
    "\n"
    "Standard errors are between texts if there are at least 8 texts, else between windows if there are at least 8 windows,\n"
    "else between tokens. Speed is printed to stderr.\n"
    "\n"
    "`mpirun -np N sleigh perplexity ...` shares the windows between N processes (docs/several-gpus.md).\n";

static const char eval_notes[] =
    "Tasks (like RULER's, in our words): niah-single, niah-multikey, niah-multivalue, niah-multiquery, vt (variable\n"
    "tracking), fwe (frequent coded words), cwe (common words), qa-1hop, qa-2hop. Without --chat, prompts are texts to\n"
    "complete, as in the training of the embedded model; with --chat, they are questions to an assistant. Sample i does not\n"
    "depend on --samples, --task or --threads. --questions N asks N consecutive samples about one text; intervals then treat\n"
    "the texts, not the samples, as independent.\n"
    "\n"
    "Lines of --jsonl: {\"input\", \"outputs\", \"answer_prefix\"} (RULER: the last line of input is the question), or {\"question\",\n"
    "\"answer\"} with \"context\" or \"choices\", or {\"prompt\", \"answer\"}; \"task\" and \"grader\" are optional. Graders: substring\n"
    "(share of the references found), any, words, integers, exact, boxed, numeric-boxed, choice-boxed, numeric-line,\n"
    "choice-line; docs/eval.md describes which part of the answer each grader reads.\n"
    "\n"
    "Set-up B is the default: the context is prefilled with dense attention; the method decodes the question and the answer.\n"
    "--question-dense selects set-up A. All methods start from the same prefilled context. Differences compare a method with\n"
    "the first method, on the same samples. Intervals are 95%: Wilson's for scores, Tango's for differences; p is from\n"
    "McNemar's exact test; \"all\" is the mean over the tasks of their mean scores.\n"
    "\n"
    "--out stores every answer. If FILE exists, the same command continues its run, and may add samples, tasks, lengths or\n"
    "methods. A file from other settings, other weights or another build is refused.\n"
    "\n"
    "`mpirun -np N sleigh eval ...` shares the texts between N processes (docs/several-gpus.md).\n";

static const char tune_notes[] =
    "tune measures settings on prompts and writes them into a profile, which --attn-profile reads (docs/tune.md).\n"
    "  prefill   for each --length, the candidate with the least work whose loss against dense prefill is at most --loss. The\n"
    "            work is counted in blocks, so it does not depend on the machine; the measured times stand beside it.\n"
    "  budgets   the draws of each layer at an equal total: uniform, by the variance of the layers, and learned from the\n"
    "            answers (REINFORCE, as in appendix K of the SANTA paper), at the first --length. The best on the prompts of\n"
    "            --check goes into the profile.\n"
    "\n"
    "The same flags and the same seed give the same profile, byte for byte. Times go to FILE.times.json, which\n"
    "--attn-prefill=auto reads on the device that measured them.\n";

static const char quantize_notes[] =
    "The folder holds a compressed-tensors checkpoint, which Sleigh and transformers (with the package compressed-tensors)\n"
    "load: pack-quantized for int4 and int8, float-quantized for fp8, scales in bf16. Tokenizer, chat templates and\n"
    "generation_config.json are copied. Norms, embeddings and, without --weights-head, the output head stay as they are.\n"
    "A load of the folder has the bits of the same --weights and --weights-head on the source.\n"
    "\n"
    "The table has, for each kind of tensor, the bytes before and after, the mean squared error of the rounded weights, and\n"
    "this error divided by the mean square of the weights. The folder has its name only when it is complete. Two runs write\n"
    "the same bytes.\n";

static const char serve_notes[] =
    "Endpoints: /v1/chat/completions, /v1/completions, /v1/responses, /v1/messages, /v1/messages/count_tokens, /tokenize,\n"
    "/detokenize, /apply-template, /v1/models, /health, /metrics, /props, /slots, and a web page at / (docs/api.md).\n"
    "\n"
    "Sampling flags and --attn set what a request gets that does not name another value. A request may name its own attention\n"
    "(`attn`, `attn_prefill`) and seed. Every answer has the bits of `sleigh generate` with the same prompt, methods, seed\n"
    "and sequence. docs/serving.md describes limits, keys, TLS, proxies and replicas.\n";

static const cli_command commands[] = {
    {"generate", "-m DIR [-p TEXT | -f FILE | < FILE] [flags]", "Continue a prompt.", CLI_GENERATE, generate_notes},
    {"chat", "-m DIR [flags]", "Talk to a chat model.", CLI_CHAT, chat_notes},
    {"serve", "-m DIR [--host ADDRESS] [--port N] [flags]", "Answer requests of OpenAI's, Anthropic's, vLLM's and llama.cpp's clients over HTTP.", CLI_SERVE, serve_notes},
    {"tokenize", "-m DIR [-p TEXT | -f FILE | < FILE] [flags]", "Convert text to token ids, separated by commas.", CLI_TOKENIZE, NULL},
    {"detokenize", "-m DIR [-p IDS | -f FILE | < FILE]", "Convert token ids, separated by commas or blanks, to text.", CLI_DETOKENIZE, NULL},
    {"logits", "-m DIR --ids FILE -o OUT.npy [flags]", "Write the logits of each token of a dense prefill to a NumPy file.", CLI_LOGITS, NULL},
    {"inspect", "-m DIR [-c N] [-o md|csv|json|jsonl]", "Show what a model folder holds and what the model costs to run.", CLI_INSPECT, NULL},
    {"bench", "[decode | draft | linear] -m DIR [flags] | attn [flags]", "Time prefill and decode steps, drafts, only matrices, or only attention on a GPU.", CLI_BENCH, bench_notes},
    {"compare", "-m DIR --attn SPEC,... [-p TEXT | -f FILE | --jsonl FILE] [flags]", "Compare attention methods with dense attention: answers, next tokens, outputs of heads.", CLI_COMPARE, compare_notes},
    {"perplexity", "-m DIR [-f FILE | --jsonl FILE] [--attn SPEC] [flags]", "Measure how well the model predicts texts (perplexity).", CLI_PERPLEXITY, perplexity_notes},
    {"eval", "-m DIR [--task LIST --length N | --jsonl FILE] [flags]", "Score the answers of attention methods on long-context tasks.", CLI_EVAL, eval_notes},
    {"tune", "-m DIR --out FILE [--task LIST --length N | --jsonl FILE] [flags]", "Find attention settings for a model and write them to a profile.", CLI_TUNE, tune_notes},
    {"quantize", "-m DIR --out DIR --weights FORMAT [flags]", "Write a model with rounded weights as a folder of Hugging Face.", CLI_QUANTIZE, quantize_notes},
    {"plot", "FILE.dat [-o FILE]", "Draw a picture again from the data file that --plot wrote.", CLI_PLOT, NULL},
    {"methods", "[-o md|csv|json|jsonl]", "List the attention methods and their parameters.", CLI_METHODS, NULL},
    {"version", "", "Print version, commit, compiler and backend.", CLI_VERSION, NULL},
};
// clang-format on
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static void help(FILE *out) {
    fprintf(out, "usage: sleigh COMMAND [flags]\n\nRun language models of the Llama and Qwen families with exact and sampled "
                 "attention.\n\n");
    for (int i = 0; i < N_COMMANDS; i++) fprintf(out, "  %-11s %s\n", commands[i].name, commands[i].summary);
    fprintf(out,
            "\nFirst steps:\n"
            "  sleigh generate -m tiny -n 8 -p \"The hidden number of the bay is 48213. What is the hidden number of the "
            "bay? Answer:\"\n"
            "  hf download meta-llama/Llama-3.1-8B-Instruct && sleigh chat -m meta-llama/Llama-3.1-8B-Instruct\n"
            "\n`sleigh COMMAND --help` lists the flags of a command; `sleigh help flags` lists flags of llama.cpp and vLLM;\n"
            "`sleigh --version` describes this build. Exit codes: 0 success, 2 usage error, 1 any other error,\n130 Ctrl+C.\n");
}

static const cli_command *find(const char *name) {
    if (!strcmp(name, "--version")) name = "version";
    for (int i = 0; i < N_COMMANDS; i++)
        if (!strcmp(commands[i].name, name)) return &commands[i];
    return NULL;
}

// What to do in place of a command of another program; NULL: the name is not known.
static const char *other_command(const char *name) {
    static const char *const others[][2] = {
        {"run", "`sleigh generate` continues a prompt, and `sleigh chat` is a conversation"},
        {"complete", "`sleigh generate` continues a prompt"},
        {"completion", "`sleigh generate` continues a prompt"},
        {"server", "`sleigh serve` is the server"},
        {"pull", "Sleigh does not download; `hf download ORG/NAME` does"},
        {"download", "Sleigh does not download; `hf download ORG/NAME` does"},
        {"convert", "Sleigh reads the folder of a Hugging Face model, and a GGUF file, as it is"},
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(others[i][0], name)) return others[i][1];
    return NULL;
}

static int unknown_command(const char *name, sl_error *err) {
    const char *names[N_COMMANDS], *other = other_command(name);
    if (*name == '-')
        return sl_fail(err, SL_ERR_ARG, "flag %.60s stands before the command; begin with `sleigh generate` or `sleigh chat`",
                       name);
    for (int i = 0; i < N_COMMANDS; i++) names[i] = commands[i].name;
    if (other) return sl_fail(err, SL_ERR_ARG, "unknown command \"%.60s\"; %s", name, other);
    const char *nearest = sl_nearest(name, names, N_COMMANDS);
    if (nearest) return sl_fail(err, SL_ERR_ARG, "unknown command \"%.60s\"; did you mean %s?", name, nearest);
    return sl_fail(err, SL_ERR_ARG, "unknown command \"%.60s\"; `sleigh --help` lists all commands", name);
}

static int is_help(const char *arg) {
    return !strcmp(arg, "--help") || !strcmp(arg, "-h");
}

// Replaces the values of flags that depend on the model: the name of --model, and --ctx-size 0. Opens the model's source.
static int complete(cli_options *o, char model[CLI_PATH_SIZE], sl_error *err) {
    sl_config config;
    int rc = o->run.model.path ? cli_model_path(o->run.model.path, model, err) : 0;
    if (rc || !o->run.model.path) return rc;
    o->run.model.path = model;
    rc = sl_source_open(model, &o->run.model.source, err);
    if (rc) return rc;
    if (!cli_given_by(&o->given, "--ctx-size") || o->run.limits.n_ctx) return 0;
    rc = sl_config_load(sl_source_documents(o->run.model.source), &config, err);
    if (!rc) rc = sl_config_change_rope(&config, &o->run.model.rope, err);
    if (!rc) o->run.limits.n_ctx = config.n_scaled;
    return rc;
}

// Connects the ranks that share a model, and gives all ranks rank 0's seed.
static int open_ranks(cli_options *o, const cli_command *c, sl_ranks **ranks, sl_error *err) {
    int n = c->bit & CLI_ENGINES ? o->run.model.tensor_parallel : 1; // inspect only computes
    int rc = cli_team_open(ranks, n, c->bit, &o->run.model.comm, err);
    if (!rc && n == 1) rc = cli_ranks_check_command(*ranks, c->bit, err);
    if (!rc && o->random_seed) rc = cli_ranks_share_seed(*ranks, &o->run.sampling.seed, err);
    if (!rc && n > 1) rc = cli_ranks_check_team(o, err);
    o->ranks = *ranks, o->input.comm = o->run.model.comm;
    return rc;
}

static int run_command(const cli_command *c, int n, char **args, sl_ranks **ranks, sl_error *err) {
    cli_options o;
    char model[CLI_PATH_SIZE];
    int rc = cli_options_parse(&o, c->bit, n, args, err);
    if (rc) return rc;
    if (o.help) {
        cli_help_command(c, stdout);
    } else {
        rc = open_ranks(&o, c, ranks, err);
        if (!rc && o.quiet && !sl_ranks_rank(*ranks)) rc = cli_silence(err); // the other ranks are silent
        if (!rc && o.run.model.comm) cli_say("ranks: %d processes share the model", o.run.model.tensor_parallel);
        if (!rc && strcmp(o.run.device.name, "cpu")) o.run.device.gpu = cli_ranks_gpu(*ranks);
        if (!rc) rc = complete(&o, model, err);
        if (!rc && o.run.model.comm) rc = cli_ranks_compare_model(*ranks, &o.run.model, err);
        if (!rc && *o.no_effect) cli_say("note: no effect here: %s", o.no_effect);
        if (!rc && o.random_seed)
            cli_say("note: --seed -1 chose %u; --seed %u repeats this run", o.run.sampling.seed, o.run.sampling.seed);
        if (!rc) rc = cli_command_run(&o, err);
        cli_team_close(o.run.model.comm);
    }
    cli_options_free(&o);
    return rc;
}

static int run(int argc, char **argv, sl_ranks **ranks, sl_error *err) {
    if (argc < 2) {
        help(stderr);
        return sl_fail(err, SL_ERR_ARG, "no command given");
    }
    int wants_help = !strcmp(argv[1], "help");
    if (is_help(argv[1]) || (argc == 2 && wants_help)) {
        help(stdout);
        return 0;
    }
    if (argc == 3 && wants_help && !strcmp(argv[2], "flags")) return cli_habits_print(stdout), 0;
    if (argc == 3 && wants_help && !strcmp(argv[2], "--man")) return cli_manual_man(commands, N_COMMANDS, stdout), 0;
    if (argc == 3 && wants_help && !strcmp(argv[2], "--bash")) return cli_manual_bash(commands, N_COMMANDS, stdout), 0;
    const cli_command *c = find(argv[1 + wants_help]);
    if (!c) return unknown_command(argv[1 + wants_help], err);
    if (!wants_help) return run_command(c, argc - 2, argv + 2, ranks, err);
    cli_help_command(c, stdout);
    return 0;
}

int main(int argc, char **argv) {
    sl_error err = {0}, why;
    sl_ranks *ranks = NULL;
    int rc = cli_process_begin(&err);
    if (!rc) rc = cli_ranks_open(argc, argv, &ranks, &err);
    if (!rc) rc = run(argc, argv, &ranks, &err);
    int changed = cli_watch_check(&why);
    if (changed) rc = changed, err = why; // a changed file of weights may be the cause of any other error
    if (!rc)
        rc = cli_flush(&err);
    else
        fflush(stdout);
    if (cli_output_closed() && !changed) cli_end_closed_output();
    // the other commands end with an error, and the other ranks without one
    int ends = cli_interrupted() && !sl_ranks_rank(ranks) && argc > 1 && !strcmp(argv[1], "generate");
    if (!rc) rc = sl_ranks_close(ranks, &err);
    if (!rc && ends) cli_end_interrupted();
    if (!rc) return 0;
    if (ranks) sl_ranks_fail(ranks, rc == SL_ERR_ARG ? 2 : 1, cli_error_text(&err));
    dprintf(cli_error_fd(), "sleigh: error: %s\n", cli_error_text(&err));
    if (ends) cli_end_interrupted();
    return rc == SL_ERR_ARG ? 2 : 1;
}
