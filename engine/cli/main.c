// engine/cli/main.c - build/sleigh: finds the command, parses its flags, runs it, turns its result into the exit code.
#include "engine/cli/cli.h"
#include "engine/cli/process.h"
#include "engine/cli/watch.h"

#include <string.h>

static const char generate_notes[] =
    "The prompt is taken as it is, with the tokenizer's BOS in front; --chat wraps it in the model's template. Only the\n"
    "generated text goes to stdout. Ctrl+C ends the generation. generation_config.json's sampling values win over the\n"
    "defaults above (do_sample false: temperature 0), flags win over both; what is used is printed on stderr.\n"
    "\n"
    "Lines on stderr at the end (key, colon, values; --no-perf leaves them out):\n"
    "  load        ms until the model is ready\n"
    "  prefill     ms, tokens prefilled densely, tok/s\n"
    "  feed        ms, prompt tokens fed through --attn (--dense-prefix), tok/s\n"
    "  decode      ms, decode steps, tok/s of generation alone; the step after a stop string counts, its token is taken back\n"
    "  bandwidth   GB/s: weights and K and V rows that all decode steps read, over their time\n"
    "  k_rows, v_rows, v_distinct, kv_bytes   what attention's decode steps read, what dense would have, the share;\n"
    "              v_rows counts per query head, v_distinct a row that heads share once (-: not counted, samplers on a GPU)\n"
    "  samples     draws made by the sampling methods\n"
    "  features    share of the key features that proposals read (only when below 100%)\n"
    "  certified   methods with a stated error: draws a head until certified, heads that went dense instead\n"
    "  logits      hash of the last logits (FNV-1a over fp32)\n"
    "  stopped     eos, stop string, limit, context full or interrupted; tokens of the prompt and generated\n"
    "  peak_rss    MiB\n"
    "\n"
    "Set-ups: A, the default: the whole prompt is prefilled densely and --attn decodes what is generated. B: --dense-prefix\n"
    "N prefills only N tokens densely; --jsonl prefills each line's context densely and sends the question through --attn.\n"
    "\n"
    "--jsonl writes per line {\"id\", \"text\", \"attn\", \"n_prompt\", \"n_prefill\", \"n_generated\", \"prefill_ms\", "
    "\"decode_ms\",\n"
    "\"decode_tok_s\", \"v_rows_share\", \"v_distinct_share\", \"kv_bytes_share\", \"stopped\"}. Lines in a row with one "
    "context\n"
    "prefill it once, whatever their methods. A line's \"attn\": \"SPEC\" is its method in all layers (without it: the "
    "flags'),\n"
    "its \"seq\" the sequence that keys its random numbers (without it: line i, from 0, uses --seq-id + i).\n"
    "\n"
    "--parallel N answers the lines of --prompts FILE, or of --jsonl FILE, in static batches: N prompts are prefilled one by\n"
    "one and decoded together; one that ends leaves the batch, and the next N begin when all have ended. A line's answer is\n"
    "that of the same prompt alone with its --seq-id + i. --prompts is a flag of its own because -f, whose lines "
    "llama-parallel\n"
    "takes as prompts, is one prompt byte for byte here; prompts with line breaks go into --jsonl as {\"prompt\"}. Output per\n"
    "line, in input order: {\"index\", \"id\", \"text\", \"attn\", \"n_prompt\", \"n_generated\", \"stopped\", \"prefill_ms\", "
    "\"feed_ms\",\n"
    "\"decode_ms\", \"group\": {\"index\", \"size\", \"steps\", \"prefill_ms\", \"feed_ms\", \"decode_ms\", "
    "\"kv_bytes_share\"}}. A line of\n"
    "another \"attn\" begins a group. On stderr at the end, over all groups:\n"
    "  decode      ms, tokens of decode steps, tok/s\n"
    "  step        ms per step, which is the time between two tokens of one sequence; steps, sequences a step\n"
    "  token       ms per token of the whole batch: decode time over tokens of all sequences\n"
    "  total       ms, prompts, groups, tokens generated, tok/s, prefill included\n"
    "\n"
    "--stats writes per decode step, layer and query head {\"sequence\", \"position\", \"layer\", \"head\", \"n_kv\", "
    "\"attn\", \"seed\"}\n"
    "and the report of docs/methods.md, first of the method that decodes, then of each --stats-attn method and seed.\n";

static const char chat_notes[] =
    "Reads messages from standard input, a line each (a \\ at the end continues it). Commands: /help, /ctx [N], /read FILE,\n"
    "/attn SPEC, /reset, /stats, /quit. Ctrl+C ends an answer, not the program.\n";

static const char bench_notes[] =
    "Without a word: every combination of depths, batches, tests and methods, in llama-bench's shape. pp512 is a prefill of "
    "512\n"
    "tokens, tg128 are 128 decode steps, pp512+tg128 is one after the other, \" @ d32768\" says that each sequence held that "
    "many\n"
    "tokens before. Lists take numbers and ranges: 512-4096*2 is 512,1024,2048,4096; 0-8k+2k; 1-4. Prefill is dense with "
    "every\n"
    "method, so tests that only prefill are made once. Each sequence has its own random ids (from --seed) and is prefilled "
    "once:\n"
    "depths go upwards, and after each test the sequence is cut back to its depth. Decoding is greedy, never to an end token, "
    "and\n"
    "begins with a step that is not timed. Columns (md leaves out --batch and --attn where they are 1 and dense):\n"
    "  tok/s           tokens of the whole batch a second: mean and standard deviation over -r repetitions; their median\n"
    "  step ms         median over steps: the time between two tokens of one sequence\n"
    "  ms / output token   decode time / (steps x batch): per token of the whole batch\n"
    "  GB/s            weights and rows of the KV cache that a step reads, over its time\n"
    "  % of peak       of --memory-rate, else of what a pass that only reads measures at the start; more than 100 where "
    "weights\n"
    "                  and cache stay in the processor's caches\n"
    "  J / token       from the GPU's energy counter (NVML), on the CPU RAPL's of all packages, where it can be read and the "
    "test\n"
    "                  ran for 250 ms at least\n"
    "json, jsonl and csv also have version, commit, device, driver, clocks, model, sizes and flags, the first sequence's hash "
    "of the\n"
    "last logits, and floor_ms: what reading the weights alone takes at the peak; no attention method makes a step shorter.\n"
    "\n"
    "bench decode is decoding alone, as Table 3 of the SANTA paper has it: seconds that the batch's prefills to the depth "
    "took,\n"
    "seconds of its decode steps, ms / output token, and how many times that goes into the first method's. On a GPU also a "
    "step's\n"
    "linear layers alone, and what leaving out attention, or the rest, saves: they overlap, so the three are not the step.\n"
    "\n"
    "--plot draws the rows that decode alone: step ms against depth, and with several batches and methods the speedup against "
    "the\n"
    "batch.\n"
    "\n"
    "bench attn times the attention kernels of a GPU alone, at the shape of Llama-3.1-8B (32 query heads, 8 KV heads,\n"
    "dimension 128, bf16): decode over -b and -d (neither given: 1 x 8k to 32 x 8k, ragged) and prefill; -r is 25. A time is\n"
    "the median over replays of a CUDA graph, pages shuffled, with 512 MB written before each, so that K and V come from\n"
    "memory. The floor is the bytes that the method reads at the rate of a kernel that only reads. Takes --attn,\n"
    "-b, -d, -r, --phase, --query-deviation, --query-spread, -o and --plot (decode, us against rows).\n"
    "\n"
    "bench attn --calibrate times dense attention and the candidates of --attn=auto (or of --attn) over numbers of sequences\n"
    "and rows, for the heads of --model (default Llama-3.1-8B's), on a GPU or the CPU, and writes the table that auto chooses\n"
    "by (docs/bench.md). Takes --calibration, -m, --attn, -b, -d, -r, --device, -t and --query-deviation.\n";

static const char compare_notes[] =
    "Each prompt is answered with dense attention and then with every method of --attn, from the same dense prefill (docs/"
    "compare.md):\n"
    "  texts          each method's own answer: where its tokens first differ from dense attention's, the share of equal ones\n"
    "  next tokens    methods decode the tokens of the dense answer (or of a reference), their own KV behind them, beside "
    "dense\n"
    "                 attention: share of equal top-1 tokens (Wilson 95% interval), KL divergence (nats; mean with its "
    "standard\n"
    "                 error, quantiles with 95% intervals), perplexity of the question's tokens and of the answer's\n"
    "  heads          every method on the queries and KV of each step of the dense run: relative L2 error, cosine and bias\n"
    "                 (the error's part along dense attention's output) of each head's output, rows and bytes read, effective\n"
    "                 samples, spread of the weights (standard deviation over mean); -o json has every layer and head\n"
    "Standard errors are between prompts where there are 8 or more, else between positions as if they were independent.\n"
    "\n"
    "Set-ups: A: a prompt is prefilled densely, methods decode the answer. B: --dense-prefix N, or --jsonl with context and\n"
    "question: methods decode the question too; --question-dense makes it A. --chat puts prompts into the model's template.\n";

static const char perplexity_notes[] =
    "Windows of --ctx-size tokens begin --stride apart, each with the tokenizer's BOS in the place of its first token. The "
    "first\n"
    "half of a window is not scored, nor is what an earlier window scored; tokens after the last whole window are left out.\n"
    "Dense attention takes a window in one pass. With another method, or --dense-prefix, the scored half is decoded token by\n"
    "token. The standard error is between windows where there are 8 or more, else between tokens. Speed is on stderr.\n";

static const char eval_notes[] =
    "Tasks (RULER's kinds, our wording): niah-single, niah-multikey, niah-multivalue, niah-multiquery, vt (variables), fwe\n"
    "(frequent coded words), cwe (common words), qa-1hop, qa-2hop. Without --chat they are worded as texts to complete, as "
    "the\n"
    "embedded model was trained; with it as questions to an assistant. Sample i is the same whatever --samples, --task and\n"
    "--threads say. --questions N asks N samples in a row about one text; intervals then go by texts, not samples.\n"
    "\n"
    "Lines of --jsonl: {\"input\", \"outputs\", \"answer_prefix\"} (RULER: the last line of input is the question), or\n"
    "{\"question\", \"answer\"} with \"context\" or \"choices\", or {\"prompt\", \"answer\"}; \"task\" and \"grader\" at "
    "will.\n"
    "Graders: substring (share of the references found), any, words, integers, exact, boxed, numeric-boxed, choice-boxed,\n"
    "numeric-line, choice-line; docs/eval.md says where each looks.\n"
    "\n"
    "Set-up B, the default: a context is prefilled densely, question and answer go through the method. --question-dense: A.\n"
    "Every method is asked on the same prefilled context; differences are to the first one, on the same samples. Intervals "
    "are\n"
    "95%: Wilson's of scores, Tango's of differences; p is McNemar's exact test; \"all\" is the mean of the tasks' means.\n"
    "\n"
    "--out keeps every answer. The same command goes on from a file that is there, with more --samples, tasks, lengths or\n"
    "methods too; a file that other settings, weights or another build made is refused.\n";

// clang-format off
static const cli_command commands[] = {
    {"generate", "-m DIR [-p TEXT | -f FILE | < FILE] [flags]", "Continues a prompt.", CLI_GENERATE, cmd_generate, generate_notes},
    {"chat", "-m DIR [flags]", "A conversation with a chat model.", CLI_CHAT, cmd_chat, chat_notes},
    {"tokenize", "-m DIR [-p TEXT | -f FILE | < FILE] [flags]", "Text to token ids, comma-separated.", CLI_TOKENIZE, cmd_tokenize, NULL},
    {"detokenize", "-m DIR [-p IDS | -f FILE | < FILE]", "Token ids (separated by commas or blanks) to text.", CLI_DETOKENIZE, cmd_detokenize, NULL},
    {"logits", "-m DIR --ids FILE -o OUT.npy [flags]", "The logits of every token of one dense prefill, as a NumPy file.", CLI_LOGITS, cmd_logits, NULL},
    {"inspect", "-m DIR [-c N] [-o md|json]", "What a model folder holds and what it costs to run.", CLI_INSPECT, cmd_inspect, NULL},
    {"bench", "[decode] -m DIR [flags] | attn [flags]", "Times the engine: prefill and decode steps, or attention alone on a GPU.", CLI_BENCH, cmd_bench, bench_notes},
    {"compare", "-m DIR --attn SPEC,... [-p TEXT | -f FILE | --jsonl FILE] [flags]", "What attention methods change: texts, next tokens, heads, against dense.", CLI_COMPARE, cmd_compare, compare_notes},
    {"perplexity", "-m DIR -f FILE [--attn SPEC] [flags]", "How well a text is predicted, window by window.", CLI_PERPLEXITY, cmd_perplexity, perplexity_notes},
    {"eval", "-m DIR [--task LIST --length N | --jsonl FILE] [flags]", "How well methods answer: long-context tasks, with intervals.", CLI_EVAL, cmd_eval, eval_notes},
    {"methods", "[-o md|json]", "The attention methods and their parameters.", CLI_METHODS, cmd_methods, NULL},
    {"version", "", "Version, commit, compiler and backend.", CLI_VERSION, cmd_version, NULL},
};
// clang-format on
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static void help(FILE *out) {
    fprintf(out,
            "usage: sleigh COMMAND [flags]\n\nRuns language models of the Llama family with exact and sampled attention.\n\n");
    for (int i = 0; i < N_COMMANDS; i++) fprintf(out, "  %-11s %s\n", commands[i].name, commands[i].summary);
    fprintf(out, "\n`sleigh COMMAND --help` lists a command's flags; `sleigh --version` says what this build is.\n"
                 "Exit codes: 0 good, 2 usage error, 1 everything else.\n");
}

static const cli_command *find(const char *name) {
    if (!strcmp(name, "--version")) name = "version";
    for (int i = 0; i < N_COMMANDS; i++)
        if (!strcmp(commands[i].name, name)) return &commands[i];
    return NULL;
}

static int unknown_command(const char *name, sl_error *err) {
    const char *names[N_COMMANDS];
    for (int i = 0; i < N_COMMANDS; i++) names[i] = commands[i].name;
    const char *nearest = cli_nearest(name, names, N_COMMANDS);
    if (nearest) return sl_fail(err, SL_ERR_ARG, "unknown command \"%.60s\"; did you mean %s?", name, nearest);
    return sl_fail(err, SL_ERR_ARG, "unknown command \"%.60s\"; `sleigh --help` lists them", name);
}

static int is_help(const char *arg) {
    return !strcmp(arg, "--help") || !strcmp(arg, "-h");
}

static int run(int argc, char **argv, sl_error *err) {
    if (argc < 2) return sl_fail(err, SL_ERR_ARG, "no command; `sleigh --help` lists them");
    if (is_help(argv[1]) || (argc == 2 && !strcmp(argv[1], "help"))) {
        help(stdout);
        return 0;
    }
    int wants_help = !strcmp(argv[1], "help");
    const cli_command *c = find(argv[1 + wants_help]);
    if (!c) return unknown_command(argv[1 + wants_help], err);
    cli_options o;
    int rc = wants_help ? 0 : cli_options_parse(&o, c->bit, argc - 2, argv + 2, err);
    if (rc) return rc;
    if (wants_help || o.help)
        cli_help_command(c, stdout);
    else
        rc = c->run(&o, err);
    if (!wants_help) cli_options_free(&o);
    return rc;
}

int main(int argc, char **argv) {
    sl_error err = {0}, why;
    int rc = cli_process_begin(argv, &err);
    if (!rc) rc = run(argc, argv, &err);
    int changed = cli_watch_check(&why);
    if (changed) rc = changed, err = why; // whatever else went wrong may follow from it
    if (!rc)
        rc = cli_flush(&err);
    else
        fflush(stdout);
    if (!rc) return 0;
    for (char *p = err.message; *p; p++)
        if ((unsigned char)*p < ' ') *p = '?'; // one line, whatever a file name held
    fprintf(stderr, "sleigh: error: %s\n", err.message);
    return rc == SL_ERR_ARG ? 2 : 1;
}
