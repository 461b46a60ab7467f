// cli/options/habits.c - see habits.h.
#include "cli/options/habits.h"
#include "cli/options/option_table.h"

#include <string.h>

#define GEN CLI_GENERATE
#define CHAT CLI_CHAT
#define RUNS CLI_RUNS
#define SAMPLES CLI_SAMPLES
#define ENGINES CLI_ENGINES
#define BUT_BENCH (CLI_ENGINES & ~(unsigned)CLI_BENCH)

// clang-format off
const cli_habit cli_habits[] = {
    // the same under another name
    {"-hf -hfr --hf-repo", "ORG/NAME", NULL, HABIT_SAME, CLI_LOADS, "--model", NULL, "`--model ORG/NAME`: the model of this name in the hub cache. Sleigh does not download; an error shows the command that does."},
    {"--max-tokens --max-new-tokens", "N", NULL, HABIT_SAME, RUNS | CLI_COMPARE | CLI_EVAL, "--n-predict", NULL, "`--n-predict N`"},
    {"--max-num-seqs", "N", NULL, HABIT_SAME, CLI_SERVE, "--parallel", NULL, "`--parallel N`"},
    {"--enable-prefix-caching", NULL, NULL, HABIT_SAME, CLI_SERVE, "--prefix-cache", "1", "`--prefix-cache`, the default"},
    {"--no-enable-prefix-caching --no-cache-prompt", NULL, NULL, HABIT_SAME, CLI_SERVE, "--prefix-cache", "0", "`--no-prefix-cache`"},
    {"--max-model-len", "N", NULL, HABIT_SAME, RUNS | CLI_SERVE | CLI_EVAL | CLI_INSPECT, "--ctx-size", NULL, "`--ctx-size N`"},
    {"--max-num-batched-tokens", "N", NULL, HABIT_SAME, ENGINES, "--ubatch-size", NULL, "`--ubatch-size N`"},
    {"--repetition-penalty", "X", NULL, HABIT_SAME, SAMPLES | CLI_EVAL | CLI_SERVE, "--repeat-penalty", NULL, "`--repeat-penalty X`"},
    {"-bf --binary-file", "FILE", NULL, HABIT_SAME, GEN | CLI_COMPARE | CLI_PERPLEXITY, "--file", NULL, "`--file FILE`"},
    {"--guided-json", "FILE", NULL, HABIT_SAME, RUNS, "--json-schema", NULL, "`--json-schema FILE`"},
    {"--guided-regex", "REGEX", NULL, HABIT_SAME, RUNS, "--regex", NULL, "`--regex REGEX`"},
    {"--guided-choice", "TEXT", NULL, HABIT_SAME, RUNS, "--choice", NULL, "`--choice TEXT`"},
    {"--chunks", "N", NULL, HABIT_SAME, CLI_PERPLEXITY, "--windows", NULL, "`--windows N`"},
    {"-npp", "N,...", NULL, HABIT_SAME, CLI_BENCH, "--n-prompt", NULL, "`--n-prompt N,...`"},
    {"-ntg", "N,...", NULL, HABIT_SAME, CLI_BENCH, "--n-gen", NULL, "`--n-gen N,...`"},
    {"-npl", "N,...", NULL, HABIT_SAME, CLI_BENCH, "--batch", NULL, "`--batch N,...`: sequences that decode together"},
    {"-ngl --gpu-layers --n-gpu-layers", "N", "0", HABIT_SAME, ENGINES, "--device", "cpu", "`--device cpu`"},
    {"-dev", "DEVICE", "none", HABIT_SAME, ENGINES, "--device", "cpu", "`--device cpu`"},
    {"-dev", "DEVICE", NULL, HABIT_SAME, ENGINES, "--device", NULL, "`--device DEVICE`"},
    {"-lm --load-mode", "MODE", "mlock", HABIT_SAME, ENGINES, "--mlock", "1", "`--mlock`"},
    {"--log-disable", NULL, NULL, HABIT_SAME, ~0u, "--quiet", "1", "`--quiet`"},
    {"-lv --verbosity --log-verbosity", "N", "0,1", HABIT_SAME, ENGINES, "--quiet", "1", "`--quiet`"},
    {"--usage", NULL, NULL, HABIT_SAME, ~0u, "--help", "1", "`--help`"},

    // no effect
    {"-ngl --gpu-layers --n-gpu-layers", "N", NULL, HABIT_NOTHING, ENGINES, NULL, NULL, "all layers run on the same device; --device chooses it"},
    {"-fa --flash-attn", "[on,off,auto]", "on,auto,1,true", HABIT_NOTHING, ENGINES, NULL, NULL, "attention never stores the matrix of scores; --attn chooses the method"},
    {"-i --interactive -if --interactive-first -cnv --conversation", NULL, NULL, HABIT_NOTHING, CHAT, NULL, NULL, "chat is a conversation"},
    {"-no-cnv --no-conversation", NULL, NULL, HABIT_NOTHING, GEN, NULL, NULL, "generate is not a conversation"},
    {"-v --verbose --log-verbose", NULL, NULL, HABIT_NOTHING, ~0u, NULL, NULL, "all messages are on stderr without it; --quiet leaves them out"},
    {"-lv --verbosity --log-verbosity", "N", NULL, HABIT_NOTHING, ENGINES, NULL, NULL, "all messages are on stderr without it; --quiet leaves them out"},
    {"--log-prefix --log-timestamps --no-log-prefix --no-log-timestamps", NULL, NULL, HABIT_NOTHING, ENGINES, NULL, NULL, "messages have one form"},
    {"--log-colors", "[on,off,auto]", NULL, HABIT_NOTHING, ENGINES, NULL, NULL, "messages have no colours"},
    {"-co --color", "[on,off,auto]", NULL, HABIT_NOTHING, GEN, NULL, NULL, "generated text has no colours"},
    {"-co --color", "[on,off,auto]", "on,auto,1,true", HABIT_NOTHING, CHAT, NULL, NULL, "chat uses colours on a terminal; set NO_COLOR=1 to turn colours off"},
    {"-cb --cont-batching", NULL, NULL, HABIT_NOTHING, CLI_SERVE, NULL, NULL, "the server always batches continuously"},
    {"--enable-auto-tool-choice --metrics --props --slots --cache-prompt", NULL, NULL, HABIT_NOTHING, CLI_SERVE, NULL, NULL, "the server always has this"},
    {"--tool-call-parser --reasoning-parser", "NAME", NULL, HABIT_NOTHING, CLI_SERVE, NULL, NULL, "the chat template tells the format"},
    {"--simple-io", NULL, NULL, HABIT_NOTHING, RUNS, NULL, NULL, "input and output have their simple form if they are no terminal"},
    {"--dtype", "TYPE", "auto,bfloat16", HABIT_NOTHING, ENGINES, NULL, NULL, "weights keep the type of the files, and a GPU rounds other weights to bf16; --kv-cache-dtype sets the type of the KV cache"},
    {"--mmap --no-mmap -dio --direct-io -ndio --no-direct-io", NULL, NULL, HABIT_NOTHING, BUT_BENCH, NULL, NULL, "files of weights are always mapped; --mlock reads and locks them at the start"},
    {"-mmp --mmap", "0,1", NULL, HABIT_NOTHING, CLI_BENCH, NULL, NULL, "files of weights are always mapped"},
    {"-lm --load-mode", "MODE", "mmap", HABIT_NOTHING, ENGINES, NULL, NULL, "files of weights are always mapped"},
    {"-b --batch-size", "N", NULL, HABIT_NOTHING, BUT_BENCH, NULL, NULL, "a prefill pass has one size, that of --ubatch-size"},
    {"-tb --threads-batch", "N", NULL, HABIT_NOTHING, ENGINES, NULL, NULL, "--threads also serves the prefill"},
    {"--keep --n-keep", "N", NULL, HABIT_NOTHING, RUNS, NULL, NULL, "the context is never shifted, so all tokens stay"},
    {"--no-context-shift", NULL, NULL, HABIT_NOTHING, RUNS, NULL, NULL, "the context is never shifted"},
    {"--jinja --no-jinja", NULL, NULL, HABIT_NOTHING, RUNS | CLI_SERVE | CLI_EVAL | CLI_COMPARE, NULL, NULL, "Sleigh interprets the model's template; --chat-template names another"},
    {"--warmup --no-warmup", NULL, NULL, HABIT_NOTHING, BUT_BENCH, NULL, NULL, "there is no run before the prompt"},
    {"--no-warmup", NULL, NULL, HABIT_NOTHING, CLI_BENCH, NULL, NULL, "the first step is never timed"},
    {"--offline", NULL, NULL, HABIT_NOTHING, ENGINES, NULL, NULL, "Sleigh never uses the network"},
    {"-fit --fit", "[on,off]", NULL, HABIT_NOTHING, BUT_BENCH, NULL, NULL, "the default of --ctx-size fits into memory"},
    {"-kvo --kv-offload --op-offload", NULL, NULL, HABIT_NOTHING, BUT_BENCH, NULL, NULL, "KV cache and operations are on the device of --device"},
    {"-sm --split-mode", "MODE", "none,layer", HABIT_NOTHING, ENGINES, NULL, NULL, "a process uses one GPU"},
    {"-mg --main-gpu", "N", "0", HABIT_NOTHING, ENGINES, NULL, NULL, "--device cuda:N chooses a GPU"},
    {"-pp --pipeline-parallel-size -dp --data-parallel-size", "N", "1", HABIT_NOTHING, ENGINES, NULL, NULL, "a process uses one GPU"},
    {"--gpu-memory-utilization", "X", NULL, HABIT_NOTHING, ENGINES, NULL, NULL, "the KV cache is as large as --ctx-size needs, not a share of the memory"},
    {"--max-num-seqs", "N", NULL, HABIT_NOTHING, GEN, NULL, NULL, "--parallel N sets the number of sequences that decode together"},
    {"-cb --cont-batching", NULL, NULL, HABIT_NOTHING, GEN, NULL, NULL, "--parallel always decodes so"},
    {"--swap-space --cpu-offload-gb", "GB", "0", HABIT_NOTHING, ENGINES, NULL, NULL, "nothing moves between device and host"},
    {"--enforce-eager", NULL, NULL, HABIT_NOTHING, ENGINES, NULL, NULL, "a recorded step gives the same bits"},
    {"--enable-prefix-caching --no-enable-prefix-caching", NULL, NULL, HABIT_NOTHING, RUNS, NULL, NULL, "chat, --jsonl and --parallel keep common prefixes in the KV cache; this changes no bit"},
    {"--enable-chunked-prefill --no-enable-chunked-prefill", NULL, NULL, HABIT_NOTHING, ENGINES, NULL, NULL, "a prefill has passes of --ubatch-size tokens; their size changes no bit"},
    {"--trust-remote-code", NULL, NULL, HABIT_NOTHING, CLI_LOADS, NULL, NULL, "Sleigh runs no code of a model folder"},
    {"--tokenizer-mode", "MODE", "auto", HABIT_NOTHING, CLI_LOADS, NULL, NULL, "there is one tokenizer"},
    {"--disable-log-stats --disable-log-requests", NULL, NULL, HABIT_NOTHING, ENGINES, NULL, NULL, "--quiet leaves out all messages"},
    {"--mirostat --dry-multiplier --xtc-probability --dynatemp-range", "X", "0,0.0", HABIT_NOTHING, SAMPLES, NULL, NULL, "0 turns this sampler off, and Sleigh does not have it"},
    {"--typical --typical-p", "X", "1,1.0", HABIT_NOTHING, SAMPLES, NULL, NULL, "1 turns this sampler off, and Sleigh does not have it"},

    // refused
    {"-i --interactive -if --interactive-first -cnv --conversation -mli --multiline-input", NULL, NULL, HABIT_REFUSED, GEN, NULL, NULL, "for a conversation run `sleigh chat -m DIR`"},
    {"-no-cnv --no-conversation -st --single-turn", NULL, NULL, HABIT_REFUSED, CHAT, NULL, NULL, "for one answer run `sleigh generate -m DIR --chat -p TEXT`"},
    {"-st --single-turn", NULL, NULL, HABIT_REFUSED, GEN, NULL, NULL, "--chat answers the prompt as one message"},
    {"-mli --multiline-input", NULL, NULL, HABIT_REFUSED, CHAT, NULL, NULL, "a \\ at the end of a line continues the message; pasted lines are one message"},
    {"-p --prompt -f --file", "TEXT", NULL, HABIT_REFUSED, CHAT, NULL, NULL, "type the message, or run `sleigh generate -m DIR --chat -p TEXT`"},
    {"--in-prefix --in-suffix", "TEXT", NULL, HABIT_REFUSED, RUNS, NULL, NULL, "--chat-template NAME puts messages into a template"},
    {"--in-prefix-bos", NULL, NULL, HABIT_REFUSED, RUNS, NULL, NULL, "--chat-template NAME puts messages into a template"},
    {"--chat-template-file", "FILE", NULL, HABIT_REFUSED, RUNS, NULL, NULL, "--chat-template takes a name or a file"},
    {"-sysf --system-prompt-file", "FILE", NULL, HABIT_REFUSED, RUNS, NULL, NULL, "--system-prompt \"$(cat FILE)\" reads the text from FILE"},
    {"-mu --model-url -hff --hf-file -hft --hf-token -dr --docker-repo --download-dir", "VALUE", NULL, HABIT_REFUSED, CLI_LOADS, NULL, NULL, "Sleigh does not download; `hf download ORG/NAME` and --model ORG/NAME do this"},
    {"--revision --code-revision --tokenizer-revision", "REVISION", NULL, HABIT_REFUSED, CLI_LOADS, NULL, NULL, "--model takes the folder of a snapshot"},
    {"--tokenizer --tokenizer-mode", "VALUE", NULL, HABIT_REFUSED, CLI_LOADS, NULL, NULL, "the tokenizer is in the folder of --model"},
    {"--quantization", "METHOD", NULL, HABIT_REFUSED, CLI_LOADS, NULL, NULL, "the folder says how its weights are quantised; --weights rounds the weights of another model"},
    {"--output-tensor-type", "TYPE", NULL, HABIT_REFUSED, ENGINES, NULL, NULL, "--weights-head gives the format of the output head: bf16, fp8, int8 or int4"},
    {"--output-tensor-type", "TYPE", NULL, HABIT_REFUSED, CLI_QUANTIZE, NULL, NULL, "--weights-head gives the format of the output head: bf16, fp8, int8 or int4"},
    {"--token-embedding-type", "TYPE", NULL, HABIT_REFUSED, ENGINES, NULL, NULL, "--weights-embedding gives the format of the embedding: bf16, fp8, int8 or int4"},
    {"--token-embedding-type", "TYPE", NULL, HABIT_REFUSED, CLI_QUANTIZE, NULL, NULL, "the embedding stays as it is in the source, because compressed-tensors has no rounded embedding"},
    {"-fa --flash-attn", "[on,off,auto]", NULL, HABIT_REFUSED, ENGINES, NULL, NULL, "attention never stores the matrix of scores; --attn chooses the method"},
    {"-co --color", "[on,off,auto]", NULL, HABIT_REFUSED, CHAT, NULL, NULL, "set NO_COLOR=1 to turn colours off"},
    {"--dtype", "TYPE", NULL, HABIT_REFUSED, ENGINES, NULL, NULL, "weights keep the type of the files, and a GPU rounds other weights to bf16; --kv-cache-dtype sets the type of the KV cache"},
    {"-lm --load-mode", "MODE", NULL, HABIT_REFUSED, ENGINES, NULL, NULL, "files of weights are always mapped"},
    {"-nkvo --no-kv-offload", NULL, NULL, HABIT_REFUSED, ENGINES, NULL, NULL, "--kv-cache host keeps K and V in host memory; --device cpu runs on the CPU"},
    {"-cmoe --cpu-moe --no-op-offload", NULL, NULL, HABIT_REFUSED, ENGINES, NULL, NULL, "weights are on one device; --device cpu runs on the CPU"},
    {"-ts --tensor-split -ot --override-tensor -ncmoe --n-cpu-moe", "VALUE", NULL, HABIT_REFUSED, ENGINES, NULL, NULL, "weights and KV cache are on one device, which --device chooses"},
    {"-sm --split-mode", "MODE", NULL, HABIT_REFUSED, ENGINES, NULL, NULL, "a process uses one GPU, which --device cuda:N chooses; --tensor-parallel-size shares a model between processes"},
    {"-mg --main-gpu", "N", NULL, HABIT_REFUSED, ENGINES, NULL, NULL, "--device cuda:N chooses a GPU"},
    {"-pp --pipeline-parallel-size -dp --data-parallel-size", "N", NULL, HABIT_REFUSED, ENGINES, NULL, NULL, "--tensor-parallel-size shares a model between processes, with a GPU each; mpirun -np N runs eval and perplexity on N GPUs, and --device cuda:N chooses one"},
    {"--swap-space --cpu-offload-gb", "GB", NULL, HABIT_REFUSED, ENGINES, NULL, NULL, "weights are on one device; --kv-cache host keeps K and V in host memory"},
    {"--numa -C --cpu-mask -Cr --cpu-range", "VALUE", NULL, HABIT_REFUSED, ENGINES, NULL, NULL, "run Sleigh under numactl or taskset"},
    {"--attention-backend", "NAME", NULL, HABIT_REFUSED, ENGINES, NULL, NULL, "--attn chooses the method of attention"},
    {"--rope-freq-scale", "X", NULL, HABIT_REFUSED, ENGINES, NULL, NULL, "--rope-scaling linear --rope-scale N divides the frequencies by N, which is 1/X"},
    {"--yarn-attn-factor", "X", NULL, HABIT_REFUSED, ENGINES, NULL, NULL, "--yarn-attention-factor sets the whole factor; llama.cpp multiplies X by 0.1 ln(scale) + 1"},
    {"--yarn-ext-factor", "X", NULL, HABIT_REFUSED, ENGINES, NULL, NULL, "--rope-scaling yarn mixes both frequencies as the paper does, and linear divides all of them"},
    {"--hf-overrides --override-kv", "VALUE", NULL, HABIT_REFUSED, ENGINES, NULL, NULL, "Sleigh takes shapes from config.json; --rope-scaling and --rope-theta change RoPE"},
    {"--context-shift", NULL, NULL, HABIT_REFUSED, RUNS, NULL, NULL, "a full context ends the answer; --ctx-size sets its size"},
    {"-gan --grp-attn-n -gaw --grp-attn-w", "N", NULL, HABIT_REFUSED, RUNS, NULL, NULL, "--rope-scaling extends the context beyond the model's limit"},
    {"--slot-save-path", "DIR", NULL, HABIT_REFUSED, RUNS, NULL, NULL, "--prompt-cache FILE keeps the session of a prompt; generate --jsonl prefills a common context once"},
    {"--prompt-cache-all", NULL, NULL, HABIT_REFUSED, RUNS, NULL, NULL, "generate --prompt-cache FILE keeps the prompt, and chat keeps the whole conversation"},
    {"--lora --lora-scaled --control-vector --control-vector-scaled --lora-modules", "VALUE", NULL, HABIT_REFUSED, ENGINES, NULL, NULL, "merge the adapter into the weights first, and give the merged folder to --model"},
    {"--enable-lora", NULL, NULL, HABIT_REFUSED, ENGINES, NULL, NULL, "merge the adapter into the weights first, and give the merged folder to --model"},
    {"-hfd --hf-repo-draft", "ORG/NAME", NULL, HABIT_SAME, RUNS | CLI_SERVE | CLI_EVAL | CLI_BENCH, "--draft-model", NULL, "`--draft-model ORG/NAME`, with `--draft model`"},
    {"--speculative-config --spec-type", "VALUE", NULL, HABIT_REFUSED, ENGINES, NULL, NULL, "--draft chooses where drafts come from: ngram, self, model or auto"},
    {"--draft-max --draft-n --draft-min --draft-n-min", "N", NULL, HABIT_REFUSED, ENGINES, NULL, NULL, "--draft ngram:least=N:most=N has both limits; the number adapts between them"},
    {"--mirostat --mirostat-lr --mirostat-ent --dry-multiplier --xtc-probability --dynatemp-range --typical --typical-p --top-nsigma --top-n-sigma --samplers --sampler-seq --sampling-seq", "VALUE", NULL, HABIT_REFUSED, SAMPLES, NULL, NULL, "Sleigh has the samplers --temp, --top-k, --top-p and --min-p, in a fixed order"},
    {"-sp --special", NULL, NULL, HABIT_REFUSED, RUNS, NULL, NULL, "generated text leaves out special tokens; `sleigh detokenize` prints them"},
    {"--verbose-prompt", NULL, NULL, HABIT_REFUSED, RUNS, NULL, NULL, "`sleigh tokenize` prints the token ids of a prompt"},
    {"--log-file", "FILE", NULL, HABIT_REFUSED, ENGINES, NULL, NULL, "messages go to stderr; 2> FILE puts them into a file"},
    {"--list-devices", NULL, NULL, HABIT_REFUSED, ENGINES, NULL, NULL, "`sleigh version` shows what this build runs on"},
    {"--host --port --api-key --alias --served-model-name", "VALUE", NULL, HABIT_REFUSED, ENGINES & ~(unsigned)CLI_SERVE, NULL, NULL, "`sleigh serve` is the server"},
};
// clang-format on
const int cli_n_habits = sizeof cli_habits / sizeof *cli_habits;

static int has_word(const char *words, char separator, const char *word) {
    const char ends[] = {separator, 0};
    size_t n = strlen(word);
    for (size_t m; *words; words += m + (words[m] != 0)) {
        m = strcspn(words, ends);
        if (m == n && !memcmp(words, word, n)) return 1;
    }
    return 0;
}

const cli_habit *cli_habit_find(const char *name, unsigned command, int *i) {
    for (; *i < cli_n_habits; ++*i)
        if ((cli_habits[*i].commands & command) && has_word(cli_habits[*i].names, ' ', name)) return &cli_habits[*i];
    return NULL;
}

int cli_habit_accepts(const cli_habit *h, const char *value) {
    return !value || !h->accepts || has_word(h->accepts, ',', value);
}

int cli_habit_optional(const cli_habit *h) {
    return *h->value == '[';
}

int cli_habit_is_value(const char *word) {
    static const char words[] = "on,off,auto,0,1,true,false";
    return has_word(words, ',', word) || !strcmp(word, "0,1") || !strcmp(word, "1,0"); // 0,1: a list of llama-bench
}

// ---- the table for readers ----

static void print_names(const cli_habit *h, FILE *out) {
    char name[48];
    for (int i = 0; cli_option_name(h->names, i, name, sizeof name); i++) fprintf(out, "%s%s", i ? ", " : "`", name);
    fprintf(out, "%s%s`", h->value ? " " : "", h->value ? h->value : "");
    if (h->accepts) fprintf(out, " with %s", h->accepts);
}

static void print_commands(unsigned commands, FILE *out) {
    static const struct {
        unsigned bits;
        const char *name;
    } sets[] = {{~0u, "all"},
                {CLI_LOADS, "all with --model"},
                {CLI_ENGINES, "all that run a model"},
                {BUT_BENCH, "all that run a model, but not bench"}},
      names[] = {{CLI_GENERATE, "generate"},     {CLI_CHAT, "chat"}, {CLI_BENCH, "bench"},     {CLI_COMPARE, "compare"},
                 {CLI_PERPLEXITY, "perplexity"}, {CLI_EVAL, "eval"}, {CLI_INSPECT, "inspect"}, {CLI_QUANTIZE, "quantize"}};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        if (sets[i].bits == commands) {
            fputs(sets[i].name, out);
            return;
        }
    const char *comma = "";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].bits & commands) fprintf(out, "%s%s", comma, names[i].name), comma = ", ";
}

void cli_habits_print(FILE *out) {
    static const char *const titles[] = {[HABIT_SAME] = "The same under another name",
                                         [HABIT_NOTHING] = "Accepted without effect; a line on stderr names them",
                                         [HABIT_REFUSED] = "Refused, with the flag or command to use"};
    for (int type = HABIT_SAME; type <= HABIT_REFUSED; type++) {
        fprintf(out, "%s## %s\n\n| flag | commands | Sleigh |\n|---|---|---|\n", type ? "\n" : "", titles[type]);
        for (int i = 0; i < cli_n_habits; i++) {
            if ((int)cli_habits[i].type != type) continue;
            fputs("| ", out);
            print_names(&cli_habits[i], out);
            fputs(" | ", out);
            print_commands(cli_habits[i].commands, out);
            fprintf(out, " | %s |\n", cli_habits[i].text);
        }
    }
}
