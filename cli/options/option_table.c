// cli/options/option_table.c - the table of flags; see option_table.h.
#include "cli/options/option_table.h"
#include "cli/options/all_options.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define F(name) offsetof(cli_options, name)
#define RUNS CLI_RUNS
#define SAMPLES CLI_SAMPLES
#define ENGINES CLI_ENGINES
#define LOADS CLI_LOADS
#define INPUTS (CLI_GENERATE | CLI_TOKENIZE | CLI_DETOKENIZE | CLI_COMPARE)

// clang-format off
const cli_option cli_option_table[] = {
    {"Model", "-m --model", "DIR", OPT_STRING, F(run.model.path), 0, 0, NULL, LOADS, "folder of a Hugging Face model, a GGUF file, ORG/NAME for a model in the hub cache, or the name of an installed model (tiny, prose)"},
    {"Model", "--load-format", "auto,safetensors,dummy", OPT_CHOICE, F(run.model.load_format), 0, 0, "auto", ENGINES | CLI_INSPECT, "auto, safetensors: read the weights; dummy: make random ones (the folder needs only config.json)"},
    {"Model", "--weights", "FORMAT", OPT_STRING, F(run.model.weights), 0, 0, NULL, ENGINES | CLI_INSPECT, "round the linear layers of a model with plain weights to fp8, int8, int4 or int4:group=N when it is loaded (int4: 128 columns share a scale, and the output head becomes int8)"},
    {"Model", "--weights", "FORMAT", OPT_STRING, F(run.model.weights), 0, 0, NULL, CLI_QUANTIZE, "format of the linear layers: fp8, int8, int4 (128 columns share a scale) or int4:group=N"},
    {"Model", "--weights-head", "FORMAT", OPT_STRING, F(run.model.weights_head), 0, 0, NULL, CLI_QUANTIZE, "format of the output head, with the same choices, or bf16: not rounded (default: bf16)"},
    {"Model", "--weights-head", "FORMAT", OPT_STRING, F(run.model.weights_head), 0, 0, NULL, ENGINES | CLI_INSPECT, "format of the output head, and of an embedding that is tied to it: bf16 (not rounded), fp8, int8, int4 or int4:group=N (default: bf16; with --weights int4: int8)"},
    {"Model", "--weights-embedding", "FORMAT", OPT_STRING, F(run.model.weights_embedding), 0, 0, NULL, ENGINES | CLI_INSPECT, "format of an embedding that is not tied to the head, with the same choices (default: bf16)"},
    {"Model", "--activations", "auto,float,int16,int8,fp8", OPT_CHOICE, F(run.model.activations), 0, 0, "auto", ENGINES, "what weights are multiplied with: float: fp32 on a CPU, bf16 on a GPU; int16, int8: a CPU rounds the inputs of weights of 4 bits and of int8 to 16 or 8 bits, in groups of 32; fp8: prefills on a GPU round the inputs of fp8 weights; auto: int16, and fp8 where the checkpoint asks for it"},
    {"Model", "-c --ctx-size --ctx", "N", OPT_CTX, F(run.limits.n_ctx), 1, CLI_BIG, NULL, RUNS | CLI_INSPECT | CLI_EVAL | CLI_SERVE, "context size in tokens; 0: the model's limit (default: the smallest of the model's limit, what fits in memory and 32k)"},
    {"Model", "-np --parallel", "N", OPT_INT, F(serve.parallel), 1, 1024, "8", CLI_SERVE, "answers that are decoded together; further requests wait"},
    {"Model", "--kv-tokens", "N", OPT_INT, F(run.device.kv_tokens), 1, CLI_BIG, NULL, CLI_SERVE, "tokens of all answers and of the prefix cache together, for which the KV cache has memory (default: --parallel times --ctx-size)"},
    {"Model", "-a --alias --served-model-name", "NAME", OPT_STRING, F(serve.alias), 0, 0, NULL, CLI_SERVE, "name of the model in answers (default: the last part of --model)"},
    {"Model", "-c --ctx-size --ctx", "N", OPT_CTX, F(run.limits.n_ctx), 4, CLI_BIG, NULL, CLI_PERPLEXITY, "window size in tokens; 0: the model's limit (default: 512)"},
    {"Model", "--stride", "N", OPT_INT, F(perplexity.stride), 1, CLI_BIG, NULL, CLI_PERPLEXITY, "tokens from the start of one window to the start of the next (default: the window size)"},
    {"Model", "--windows", "N", OPT_INT, F(perplexity.windows), 1, CLI_BIG, NULL, CLI_PERPLEXITY, "score at most the first N windows of each text (default: all)"},
    {"Model", "--score", "N", OPT_INT, F(perplexity.score), 1, CLI_BIG, NULL, CLI_PERPLEXITY, "score the last N tokens of a window (default: its second half)"},
    {"Model", "--history", "N,...,all", OPT_INTS, F(perplexity.histories), 1, CLI_BIG, NULL, CLI_PERPLEXITY, "score the same tokens once for each N, when the model sees only the N tokens before them; all: every token of the window before them"},
    {"Model", "--segment", "N", OPT_INT, F(perplexity.segment), 1, CLI_BIG, NULL, CLI_PERPLEXITY, "with --history: tokens that are scored after one reading of their history (default: 512)"},
    {"Model", "-ub --ubatch-size", "N", OPT_INT, F(run.device.ubatch), 1, 65536, NULL, ENGINES, "tokens per prefill pass (default: 512; on a GPU: 2048)"},
    {"Model", "-t --threads", "N", OPT_INT, F(run.device.threads), 0, 1024, "0", ENGINES | CLI_QUANTIZE, "number of CPU threads; 0: one for each core"},
    {"Model", "--device", "DEVICE", OPT_STRING, F(run.device.name), 0, 0, "auto", ENGINES | CLI_INSPECT, "device to run on: cpu, cuda, cuda:N, or auto (a GPU if it can run the chosen methods)"},
    {"Model", "--kv-cache", "gpu,host,auto", OPT_CHOICE, F(run.device.kv_cache), 0, 0, "gpu", CLI_DECODES | CLI_BENCH, "where K and V lie with --device cuda: gpu; host: in host memory, from which a step fetches the rows that it draws (docs/cuda.md lists the methods); auto: host if the context does not fit on the GPU"},
    {"Model", "--kv-cache-dtype", "TYPE", OPT_STRING, F(run.device.kv_cache_dtype), 0, 0, "auto", ENGINES | CLI_INSPECT, "how K and V are stored: bf16, fp8 (fp8_e4m3) or int8, with a scale for each row and KV head; auto: bf16; on a GPU some methods need bf16"},
    {"Model", "-ctk --cache-type-k", "TYPE", OPT_STRING, F(run.device.cache_type_k), 0, 0, NULL, ENGINES | CLI_INSPECT, "how K is stored: bf16, fp8, or int8 (q8_0) (default: --kv-cache-dtype)"},
    {"Model", "-ctv --cache-type-v", "TYPE", OPT_STRING, F(run.device.cache_type_v), 0, 0, NULL, ENGINES | CLI_INSPECT, "how V is stored: bf16, fp8, or int8 (q8_0) (default: --kv-cache-dtype)"},
    {"Model", "--kv-gpu-memory", "SIZE", OPT_SIZE, F(run.device.kv_gpu_memory), 1, 1e18, NULL, CLI_DECODES | CLI_BENCH | CLI_INSPECT, "with --kv-cache host: most memory of the GPU for the cache, such as 20G: what methods choose rows from, the newest pages, hot rows (default: what is free)"},
    {"Model", "--host-memory", "SIZE", OPT_SIZE, F(run.device.host_memory), 1, 1e18, NULL, CLI_DECODES | CLI_BENCH | CLI_INSPECT, "with --kv-cache host: most host memory for K and V, such as 200G (default: what the control groups of the process leave; without a limit, what is free)"},
    {"Model", "--rope-scaling", "none,linear,llama3,yarn", OPT_CHOICE, F(run.model.rope.scaling), 0, 0, NULL, ENGINES | CLI_INSPECT, "run the model past its trained context: replace the RoPE scaling of config.json by this one; --ctx-size may then exceed max_position_embeddings"},
    {"Model", "--rope-scale", "X", OPT_FLOAT, F(run.model.rope.factor), 1, 1e6, NULL, ENGINES | CLI_INSPECT, "with --rope-scaling: factor of the context; linear divides every frequency by X, llama3 and yarn divide the low ones (default: config.json's, if it has the same scaling)"},
    {"Model", "--rope-theta --rope-freq-base", "X", OPT_FLOAT, F(run.model.rope.theta), 1, 1e12, NULL, ENGINES | CLI_INSPECT, "base of RoPE's frequencies (default: config.json's)"},
    {"Model", "--rope-original-ctx --yarn-orig-ctx", "N", OPT_INT, F(run.model.rope.original_ctx), 1, 1 << 28, NULL, ENGINES | CLI_INSPECT, "with --rope-scaling llama3 or yarn: tokens of the original context (default: config.json's, if it has the same scaling, else max_position_embeddings)"},
    {"Model", "--rope-low-freq-factor", "X", OPT_FLOAT, F(run.model.rope.low_freq_factor), 1e-3, 1e6, NULL, ENGINES | CLI_INSPECT, "with --rope-scaling llama3: frequencies with fewer turns within the original context are divided (default: config.json's, or 1)"},
    {"Model", "--rope-high-freq-factor", "X", OPT_FLOAT, F(run.model.rope.high_freq_factor), 1e-3, 1e6, NULL, ENGINES | CLI_INSPECT, "with --rope-scaling llama3: frequencies with more turns within the original context stay (default: config.json's, or 4)"},
    {"Model", "--yarn-attention-factor", "X", OPT_FLOAT, F(run.model.rope.attention_factor), 1e-3, 1e3, NULL, ENGINES | CLI_INSPECT, "with --rope-scaling yarn: factor of cosine and sine (default: 0.1 ln(--rope-scale) + 1)"},
    {"Model", "--yarn-beta-fast", "X", OPT_FLOAT, F(run.model.rope.beta_fast), 1e-3, 1e6, NULL, ENGINES | CLI_INSPECT, "with --rope-scaling yarn: frequencies with more turns within the original context stay (default: config.json's, or 32)"},
    {"Model", "--yarn-beta-slow", "X", OPT_FLOAT, F(run.model.rope.beta_slow), 1e-3, 1e6, NULL, ENGINES | CLI_INSPECT, "with --rope-scaling yarn: frequencies with fewer turns within the original context are divided (default: config.json's, or 1)"},
    {"Model", "-tp --tensor-parallel-size", "N", OPT_INT, F(run.model.tensor_parallel), 1, 8, "1", ENGINES | CLI_INSPECT, "processes that share the model on this host, 1, 2, 4 or 8: each has a part of the heads, the MLP and the vocabulary, and a GPU or some cores (docs/several-gpus.md)"},
    {"Model", "--mlock", NULL, OPT_FLAG, F(run.model.mlock), 0, 0, "0", ENGINES, "read all weights at the start and keep them in memory; on a GPU no effect"},

    {"Input", "-p --prompt", "TEXT", OPT_STRING, F(input.prompt), 0, 0, NULL, INPUTS, "input text"},
    {"Input", "-f --file", "FILE", OPT_STRING, F(input.file), 0, 0, NULL, INPUTS | CLI_PERPLEXITY, "read the input text from FILE, unchanged; - is standard input, the default"},
    {"Input", "-e --escape", NULL, OPT_SWITCH, F(input.escape), 0, 0, "0", RUNS | CLI_COMPARE | CLI_EVAL | CLI_TUNE | CLI_TOKENIZE, "replace \\n, \\t, \\r, \\\", \\', \\\\ and \\xHH in --prompt, --system-prompt and --stop"},
    {"Input", "--chat", NULL, OPT_FLAG, F(chat.is_on), 0, 0, "0", CLI_GENERATE | CLI_COMPARE | CLI_EVAL | CLI_TUNE, "wrap the prompt in the model's chat template"},
    {"Input", "--chat-template", "NAME", OPT_STRING, F(run.model.chat_template), 0, 0, NULL, RUNS | CLI_SERVE | CLI_COMPARE | CLI_EVAL | CLI_TUNE, "chat template: a built-in name, a name of the model (tool_use), or a file (default: the template of the model)"},
    {"Input", "--chat-template-kwargs", "JSON", OPT_STRING, F(chat.kwargs), 0, 0, NULL, RUNS | CLI_SERVE | CLI_COMPARE | CLI_EVAL | CLI_TUNE, "more variables of the chat template: {\"enable_thinking\": false}"},
    {"Input", "--tools", "FILE", OPT_STRING, F(chat.tools), 0, 0, NULL, RUNS, "JSON list of tools, for the chat template"},
    {"Input", "--parse-special", NULL, OPT_FLAG, F(chat.parse_special), 0, 0, "0", RUNS | CLI_COMPARE | CLI_EVAL | CLI_TUNE, "read special tokens inside messages; without it they are text"},
    {"Input", "-sys --system-prompt", "TEXT", OPT_STRING, F(chat.system), 0, 0, NULL, RUNS | CLI_COMPARE | CLI_EVAL | CLI_TUNE, "system message of the chat"},
    {"Input", "--prompt-cache", "FILE", OPT_STRING, F(cache.path), 0, 0, NULL, CLI_GENERATE, "begin with the session in FILE, if FILE exists, and prefill only what the prompt has in addition; then write the session of the prompt to FILE. A file of the same arithmetic changes no bit of the answer"},
    {"Input", "--prompt-cache", "FILE", OPT_STRING, F(cache.path), 0, 0, NULL, CLI_CHAT, "begin with the session in FILE, if FILE exists; at the end write the session of the conversation to FILE"},
    {"Input", "--prompt-cache-ro", NULL, OPT_FLAG, F(cache.read_only), 0, 0, "0", RUNS, "with --prompt-cache: read FILE, and do not write it"},
    {"Input", "--jsonl", "FILE", OPT_STRING, F(input.jsonl), 0, 0, NULL, CLI_GENERATE, "answer each line of FILE, {\"context\", \"question\", \"id\"} or {\"prompt\"}; print one JSON object per line"},
    {"Input", "--jsonl", "FILE", OPT_STRING, F(input.jsonl), 0, 0, NULL, CLI_COMPARE, "compare on each line of FILE, {\"context\", \"question\", \"id\"} or {\"prompt\"}; \"reference\" is the text to score"},
    {"Input", "--jsonl", "FILE", OPT_STRING, F(input.jsonl), 0, 0, NULL, CLI_PERPLEXITY, "score each line of FILE, {\"text\", \"id\"}, as a text of its own; - is standard input"},
    {"Input", "--reference", "FILE", OPT_STRING, F(compare.reference), 0, 0, NULL, CLI_COMPARE, "score the text of FILE after the prompt (default: score the answer of dense attention)"},
    {"Input", "--prompts", "FILE", OPT_STRING, F(input.prompts), 0, 0, NULL, CLI_GENERATE, "continue each line of FILE; print one JSON object per line"},
    {"Input", "-np --parallel", "N", OPT_INT, F(input.parallel), 1, 1024, "1", CLI_GENERATE, "with --prompts or --jsonl: decode N lines together; the next line takes the place of one that has ended"},
    {"Input", "-np --parallel", "N", OPT_INT, F(input.parallel), 1, 1024, "1", CLI_COMPARE, "with --no-texts: decode the next tokens of N prompts together as a batch; the results are equal"},
    {"Input", "--bos", NULL, OPT_FLAG, F(tokenize.bos), 0, 0, "0", CLI_TOKENIZE, "put the BOS token of the tokenizer first"},
    {"Input", "--plain", NULL, OPT_FLAG, F(tokenize.plain), 0, 0, "0", CLI_TOKENIZE, "treat the strings of special tokens as plain text"},
    {"Input", "--ids", "FILE", OPT_STRING, F(run.ids.path), 0, 0, NULL, CLI_LOGITS | CLI_GENERATE, "read the prompt from FILE as token ids, separated by commas or blanks; - is standard input"},
    {"Input", "--random-prompt", "N", OPT_INT, F(run.ids.n_random), 1, CLI_BIG, NULL, CLI_GENERATE, "use a prompt of N random token ids; --seed and --seq-id choose them"},

    {"Output", "-n --n-predict --predict", "N", OPT_INT, F(run.limits.n_predict), -1, CLI_BIG, "512", CLI_GENERATE, "maximum number of tokens to generate; -1: until the context is full"},
    {"Output", "-n --n-predict --predict", "N", OPT_INT, F(run.limits.n_predict), -1, CLI_BIG, "1024", CLI_CHAT, "maximum number of tokens of an answer; -1: until the context is full"},
    {"Output", "-n --n-predict --predict", "N", OPT_INT, F(compare.n_predict), 1, CLI_BIG, "64", CLI_COMPARE, "maximum number of tokens to generate"},
    {"Output", "--stop -r --reverse-prompt", "TEXT", OPT_LIST, F(run.limits.stops), 0, 0, NULL, SAMPLES | CLI_EVAL | CLI_TUNE, "stop before this text would appear in the output (may be repeated)"},
    {"Output", "--ignore-eos", NULL, OPT_FLAG, F(run.sampling.ignore_eos), 0, 0, "0", SAMPLES, "never generate an end-of-text token"},
    {"Output", "--display-prompt", NULL, OPT_SWITCH, F(output.display_prompt), 0, 0, "0", CLI_GENERATE, "write the prompt before the generated text; in JSON: write it and its ids in the fields prompt and prompt_ids"},
    {"Output", "--perf", NULL, OPT_SWITCH, F(output.perf), 0, 0, "1", CLI_GENERATE, "print statistics to stderr at the end"},
    {"Output", "-o --output", "text,json", OPT_CHOICE, F(output.format), 0, 0, "text", CLI_GENERATE, "text: write the text as it is generated; json: write one JSON object at the end (docs/output.md); --jsonl and --prompts always write JSON"},
    {"Output", "--logprobs", "N", OPT_INT, F(output.logprobs), 0, 20, NULL, CLI_GENERATE, "in JSON: also write the log-probability of each generated token and of the N most likely tokens"},
    {"Output", "-o --output", "FILE", OPT_STRING, F(output.path), 0, 0, NULL, CLI_LOGITS, "the .npy file to write: float32 [n_tokens, vocab]"},
    {"Output", "-o --output", "md,csv,json,jsonl", OPT_CHOICE, F(output.format), 0, 0, "md", CLI_METHODS | CLI_INSPECT | CLI_COMPARE | CLI_PERPLEXITY | CLI_QUANTIZE, "format of the tables (docs/output.md)"},
    {"Output", "--out", "DIR", OPT_STRING, F(output.path), 0, 0, NULL, CLI_QUANTIZE, "the folder to write; it must not exist, or be empty"},
    {"Output", "--max-shard-size", "SIZE", OPT_SIZE, F(quantize.shard_size), 1, 1e18, "5G", CLI_QUANTIZE, "most bytes of a file of weights, such as 2G; larger models have several files"},
    {"Output", "--tensors", NULL, OPT_FLAG, F(output.tensors), 0, 0, "0", CLI_INSPECT, "also list the tensors of the files: name, dtype, shape, bytes"},
    {"Output", "--plot", "FILE", OPT_STRING, F(output.plot), 0, 0, NULL, CLI_BENCH | CLI_COMPARE | CLI_EVAL, "plot the results into FILE, an .svg, .pdf or .png, with gnuplot; a .dat file next to FILE holds the numbers"},
    {"Output", "-o --output", "FILE", OPT_STRING, F(output.path), 0, 0, NULL, CLI_PLOT, "the picture to draw, an .svg, .pdf or .png (default: the name of the data file, as .svg)"},
    {"Output", "-o --output", "text,json", OPT_CHOICE, F(output.format), 0, 0, "text", CLI_TOKENIZE, "text: the ids, separated by commas; json: one JSON object with the ids and the text of each token (docs/output.md)"},

    {"Sampling", "-s --seed", "N", OPT_SEED, F(run.sampling.seed), 0, 4294967295.0, "0", SAMPLES | CLI_PERPLEXITY | CLI_BENCH | CLI_EVAL | CLI_TUNE, "seed for token sampling and for the draws of the attention methods; -1: a random seed, which a line on stderr shows"},
    {"Sampling", "--temp --temperature", "X", OPT_FLOAT, F(run.sampling.temp), 0, 1e6, "0.8", RUNS | CLI_SERVE, "sampling temperature; 0: greedy"},
    {"Sampling", "--temp --temperature", "X", OPT_FLOAT, F(run.sampling.temp), 0, 1e6, "0", CLI_COMPARE, "sampling temperature of the answers; 0: greedy"},
    {"Sampling", "--top-k", "N", OPT_INT, F(run.sampling.top_k), 0, CLI_BIG, "40", SAMPLES | CLI_EVAL | CLI_SERVE, "sample from the N most likely tokens only; 0: from all tokens"},
    {"Sampling", "--top-p", "X", OPT_FLOAT, F(run.sampling.top_p), 0, 1, "0.95", SAMPLES | CLI_EVAL | CLI_SERVE, "sample from the most likely tokens with a total probability of X; 1: from all tokens"},
    {"Sampling", "--min-p", "X", OPT_FLOAT, F(run.sampling.min_p), 0, 1, "0.05", SAMPLES | CLI_EVAL | CLI_SERVE, "drop tokens that are less likely than X times the most likely token; 0: drop none"},
    {"Sampling", "--repeat-penalty", "X", OPT_FLOAT, F(run.sampling.repeat_penalty), 1e-3, 1e3, "1", SAMPLES | CLI_EVAL | CLI_SERVE, "penalty factor on the logits of recent tokens; 1: off"},
    {"Sampling", "--repeat-last-n", "N", OPT_INT, F(run.sampling.repeat_last_n), -1, CLI_BIG, "64", SAMPLES | CLI_EVAL | CLI_SERVE, "number of recent tokens that the three penalties see; 0: off, -1: the whole context"},
    {"Sampling", "--presence-penalty", "X", OPT_FLOAT, F(run.sampling.presence_penalty), -1e3, 1e3, "0", SAMPLES | CLI_EVAL | CLI_SERVE, "subtract X from the logit of each recent token; 0: off"},
    {"Sampling", "--frequency-penalty", "X", OPT_FLOAT, F(run.sampling.frequency_penalty), -1e3, 1e3, "0", SAMPLES | CLI_EVAL | CLI_SERVE, "subtract X from the logit of a token for each recent occurrence; 0: off"},
    {"Sampling", "-l --logit-bias", "ID+BIAS", OPT_LIST, F(run.sampling.logit_bias), 0, 0, NULL, SAMPLES, "change the logit of a token: 15+1, 15-0.5, 15-inf (may be repeated)"},
    {"Sampling", "--grammar --grammar-file", "FILE", OPT_STRING, F(run.grammar.gbnf), 0, 0, NULL, RUNS, "the answer follows the GBNF grammar in FILE; a value with ::= is the grammar itself (docs/structured-output.md)"},
    {"Sampling", "-j --json-schema -jf --json-schema-file", "FILE", OPT_STRING, F(run.grammar.schema), 0, 0, NULL, RUNS, "the answer is JSON that the JSON schema in FILE allows; a value that begins with { is the schema itself"},
    {"Sampling", "--regex", "REGEX", OPT_STRING, F(run.grammar.regex), 0, 0, NULL, RUNS, "the whole answer matches this regular expression"},
    {"Sampling", "--choice", "TEXT", OPT_LIST, F(run.grammar.choices), 0, 0, NULL, RUNS, "the answer is one of the texts of this flag (repeat it for each)"},
    {"Sampling", "--grammar-after", "TEXT", OPT_STRING, F(run.grammar.after), 0, 0, NULL, RUNS, "with one of these flags: restrict only what follows TEXT in the answer, such as </think>"},

    {"Attention", "--attn", "SPEC", OPT_STRING, F(run.attention.attn), 0, 0, "dense", CLI_DECODES, "attention method for decoding, with parameters: santa-prop:S=128 (`sleigh methods` lists all); auto: dense below a measured length, the fastest method above it"},
    {"Attention", "--attn-layer", "RULE", OPT_LIST, F(run.attention.attn_layers), 0, 0, NULL, CLI_DECODES | CLI_EVAL, "use another method in some layers: 0=dense, 2-5=santa:S=64 (may be repeated)"},
    {"Attention", "--attn-prefill", "SPEC", OPT_STRING, F(run.attention.attn_prefill), 0, 0, "dense", CLI_DECODES, "attention method for prefill: dense, or a method that skips blocks of keys: sample:alpha_c=0.9, streaming:window=4k (`sleigh methods`: phase prefill); auto: dense below a measured length, above it sample or the method of --attn-profile"},
    {"Attention", "--attn-prefill", "SPEC,...", OPT_LIST, F(run.attention.attn_prefills), 0, 0, NULL, CLI_COMPARE | CLI_EVAL, "methods for prefill, as dense,sample:alpha_c=0.9,streaming; each method of --attn runs after each of them (may be repeated; default: dense)"},
    {"Attention", "--attn-prefill-layer", "RULE", OPT_LIST, F(run.attention.attn_prefill_layers), 0, 0, NULL, CLI_DECODES | CLI_COMPARE | CLI_EVAL, "prefill with another method in some layers: 0=dense, 5-7=threshold (may be repeated)"},
    {"Attention", "--prefill-check", "N", OPT_INT, F(run.attention.prefill_check), 0, 4096, "0", RUNS | CLI_PERPLEXITY | CLI_COMPARE | CLI_EVAL, "with --attn-prefill: compare N rows of each segment with dense attention, and report the share of their mass that the masks keep and their error"},
    {"Attention", "--prefill-segment", "N", OPT_INT, F(run.attention.prefill_segment), 128, CLI_BIG, "32768", CLI_DECODES | CLI_COMPARE | CLI_EVAL | CLI_TUNE, "with --attn-prefill: tokens that a mask is made for at once; a prompt is split at multiples of N. At least the prompt's length: one mask, as in the papers"},
    {"Attention", "--attn-profile", "FILE", OPT_STRING, F(run.attention.attn_profile), 0, 0, NULL, CLI_DECODES, "settings that `sleigh tune` found for this model: --attn-prefill=auto, the method of each layer, the table of --attn=auto; other flags take precedence"},
    {"Attention", "--attn-profile", "FILE", OPT_STRING, F(run.attention.attn_profile), 0, 0, NULL, CLI_COMPARE | CLI_EVAL, "settings that `sleigh tune` found for this model: what auto means in --attn-prefill, and the table of --attn=auto (--calibration takes precedence)"},
    {"Attention", "--S-schedule", "FILE", OPT_STRING, F(run.attention.schedule), 0, 0, NULL, CLI_DECODES, "set S for each layer: a file with lines of `layer S`"},
    {"Attention", "--exact-below", "N", OPT_STRING, F(run.attention.exact_below), 0, 0, "auto", RUNS | CLI_SERVE | CLI_BENCH, "decode steps of a sequence with fewer than N rows attend to every row, which takes less time than the draws of a method; auto: a number for each method (docs/methods.md); off: every step draws"},
    {"Attention", "--exact-below", "N", OPT_STRING, F(run.attention.exact_below), 0, 0, "off", CLI_COMPARE | CLI_PERPLEXITY | CLI_EVAL | CLI_TUNE, "decode steps of a sequence with fewer than N rows attend to every row; auto: a number for each method, as in generate; off: every step draws, so that the results show the method"},
    {"Attention", "--calibration", "FILE", OPT_STRING, F(run.attention.calibration), 0, 0, NULL, CLI_DECODES | CLI_COMPARE | CLI_EVAL | CLI_BENCH, "table for --attn=auto and --attn-prefill=auto; bench attn --calibrate writes it (default: the file for this device and model in ~/.cache/sleigh)"},
    {"Attention", "--auto-calibrate", NULL, OPT_SWITCH, F(run.attention.auto_calibrate), 0, 0, "1", CLI_DECODES | CLI_COMPARE | CLI_EVAL | CLI_BENCH, "with --attn=auto or --attn-prefill=auto on a GPU without a table: measure one in some seconds and keep it; without this, auto stays dense"},
    {"Attention", "--dense-prefix", "N", OPT_INT, F(input.dense_prefix), 0, CLI_BIG, NULL, CLI_GENERATE | CLI_COMPARE, "prefill the first N tokens with dense attention; decode the rest of the prompt token by token with --attn"},
    {"Attention", "--dense-prefix", "N", OPT_INT, F(perplexity.dense_prefix), 0, CLI_BIG, NULL, CLI_PERPLEXITY, "prefill the first N tokens of a window with dense attention; decode the rest token by token (default: half a window; with --attn dense: the whole window)"},
    {"Attention", "--question-dense", NULL, OPT_FLAG, F(input.question_dense), 0, 0, "0", CLI_GENERATE | CLI_COMPARE, "with --jsonl: also prefill the question with dense attention (set-up A)"},
    {"Attention", "--draft", "DRAFT", OPT_STRING, F(run.drafts.draft), 0, 0, NULL, RUNS | CLI_SERVE | CLI_EVAL, "guess the next tokens and verify several of them in one decode step, which changes no bit of the answer: ngram (copies what followed the same words before), self (decodes with a faster method and perhaps weights of fewer bits: self:attn=santa-is:S=64, self:weights=int4), model (decodes with --draft-model), ngram+self, ngram+model, auto, or none (docs/drafts.md)"},
    {"Attention", "-md --draft-model --model-draft", "DIR", OPT_STRING, F(run.drafts.model), 0, 0, NULL, RUNS | CLI_SERVE | CLI_EVAL | CLI_BENCH, "for --draft model: a smaller model with the same vocabulary, named as in --model"},
    {"Attention", "--stats", "FILE", OPT_STRING, F(run.stats.path), 0, 0, NULL, RUNS, "write a report on attention to FILE: one JSON line per decode step, layer and head"},
    {"Attention", "--stats-error", NULL, OPT_FLAG, F(run.stats.error), 0, 0, "0", RUNS, "with --stats: also report the error against dense attention on the same state"},
    {"Attention", "--stats-attn", "SPEC", OPT_LIST, F(run.stats.attns), 0, 0, NULL, RUNS, "with --stats: also run this method on the same states and report its error (may be repeated)"},
    {"Attention", "--stats-seeds", "N", OPT_INT, F(run.stats.n_seeds), 1, 1000, "1", RUNS, "with --stats-attn: number of seeds per method and step"},
    {"Attention", "--seq-id", "N", OPT_UINT32, F(run.sampling.seq_id), 0, 4294967295.0, "0", SAMPLES | CLI_EVAL | CLI_PERPLEXITY, "sequence number that keys the random numbers; with --jsonl: the number of the first line"},
    {"Attention", "--attn", "SPEC,...", OPT_LIST, F(run.attention.attns), 0, 0, NULL, CLI_COMPARE, "methods to compare with dense attention; `sleigh methods` lists them (may be repeated)"},
    {"Attention", "--texts", NULL, OPT_SWITCH, F(compare.texts), 0, 0, "1", CLI_COMPARE, "also let each method generate an answer; without it, each prompt needs a reference"},
    {"Attention", "--heads", NULL, OPT_SWITCH, F(compare.heads), 0, 0, "1", CLI_COMPARE, "also run each method on the states of the dense run and report the error of each head"},
    {"Attention", "--attention", NULL, OPT_SWITCH, F(compare.attention), 0, 0, "0", CLI_COMPARE, "also report how each head of dense attention spreads its mass over the rows of the dense run's steps"},

    {"Bench", "-p --n-prompt", "N,...", OPT_INTS, F(bench.n_prompts), 0, CLI_BIG, NULL, CLI_BENCH, "tests that prefill N tokens, as 512,1k or 512-4096*2; 0: none (default: 512)"},
    {"Bench", "-n --steps --n-gen", "N,...", OPT_INTS, F(bench.n_gens), 0, 1000000, NULL, CLI_BENCH, "tests that generate N tokens, one decode step each; 0: none (default: 128; bench decode: 32)"},
    {"Bench", "-pg --prompt-gen", "PP,TG", OPT_PAIRS, F(bench.pairs), 1, CLI_BIG, NULL, CLI_BENCH, "test that prefills PP tokens and then generates TG tokens, timed as one (may be repeated)"},
    {"Bench", "-d --depth --n-depth", "N,...", OPT_INTS, F(bench.depths), 0, CLI_BIG, NULL, CLI_BENCH, "tokens in the KV cache of each sequence before a test (default: 0; bench decode: 512, on a GPU 512,4k; bench attn: see below)"},
    {"Bench", "-b --batch", "N,...", OPT_INTS, F(bench.batches), 1, 1024, NULL, CLI_BENCH, "batch sizes: sequences are prefilled one by one and decode together (default: 1; bench decode on a GPU: 1,4; bench attn: see below); bench linear: rows of a step"},
    {"Bench", "--attn", "SPEC,...", OPT_LIST, F(run.attention.attns), 0, 0, NULL, CLI_BENCH, "methods to time; 'santa-prop:S={64,128}' means two methods (may be repeated; default: dense)"},
    {"Bench", "--phase", "decode,prefill,masks,all", OPT_CHOICE, F(bench.phase), 0, 0, "all", CLI_BENCH, "bench attn: phase to time; masks: sparse prefill of 32k and 128k tokens, by density, and the masks themselves (all: decode and prefill)"},
    {"Bench", "--calibrate", NULL, OPT_FLAG, F(bench.calibrate), 0, 0, "0", CLI_BENCH, "bench attn: time the candidates of --attn=auto and sparse prefill for the shape of --model, and write the table to --calibration"},
    {"Bench", "--mask-method", "SPEC", OPT_STRING, F(bench.mask_method), 0, 0, "sample", CLI_BENCH, "bench attn --calibrate: the method that --attn-prefill=auto takes above the crossover; it makes a mask: sample:alpha_c=0.9"},
    {"Bench", "--mask-density", "X", OPT_FLOAT, F(bench.mask_density), 0.01, 1, "0.5", CLI_BENCH, "bench attn --calibrate: share of the blocks in the random masks that stand for those of --mask-method"},
    {"Bench", "--cliffs", NULL, OPT_FLAG, F(bench.cliffs), 0, 0, "0", CLI_BENCH, "bench attn: time every method over its S, rows and sequences, and print where it is slower than dense attention, and where more rows or sequences take less time"},
    {"Bench", "--cliffs-seconds", "N", OPT_FLOAT, F(bench.cliffs_seconds), 0, 1e6, "300", CLI_BENCH, "bench attn --cliffs: stop after this time; the sizes in between come last"},
    {"Bench", "--query-deviation", "X", OPT_FLOAT, F(run.attention.query_deviation), 0, 100, "4", CLI_BENCH, "bench attn: standard deviation of the elements of queries, where that of keys is 1; 4: peaked attention, 1: flat attention"},
    {"Bench", "--query-spread", "X", OPT_FLOAT, F(bench.query_spread), 0, 4, "0", CLI_BENCH, "bench attn: standard deviation of the log of the channel scales of queries; with 0.78, bernoulli-group:B=8 reads 73% of the key features"},
    {"Bench", "--states", "DIR", OPT_STRING, F(bench.states), 0, 0, NULL, CLI_BENCH, "bench attn: queries, keys and values of a model, which scripts/measure/attention_states.py wrote into DIR, in place of normal numbers"},
    {"Bench", "--draft", "DRAFT,...", OPT_LIST, F(run.drafts.drafts), 0, 0, NULL, CLI_BENCH, "bench draft: also generate text with these drafts, and compare its time with that of plain decoding (may be repeated; default: none)"},
    {"Bench", "-r --repetitions", "N", OPT_INT, F(bench.repetitions), 1, 1000, NULL, CLI_BENCH, "repetitions of each test, all from the same depth (default: 5; bench decode: 1; bench linear: 20; bench attn: 40)"},
    {"Bench", "--ragged", NULL, OPT_FLAG, F(bench.ragged), 0, 0, "0", CLI_BENCH, "give sequence i of b a depth of (i + 1) / b of --depth, rounded down to an odd number"},
    {"Bench", "--copy", NULL, OPT_FLAG, F(bench.copy), 0, 0, "0", CLI_BENCH, "prefill one sequence and copy its rows to the others: a faster start, the same memory traffic in the tests"},
    {"Bench", "--fill", "prefill,random", OPT_CHOICE, F(bench.fill), 0, 0, "prefill", CLI_BENCH, "how the KV cache is filled to --depth: prefill random tokens; or write random rows without a prefill, for long contexts"},
    {"Bench", "--hot-hits", "X", OPT_FLOAT, F(bench.hot_hits), 0, 1, NULL, CLI_BENCH, "with --kv-cache host: this share of the drawn rows counts as found in the cache of hot rows; 0: every row is fetched. `generate` prints the share of a real text (default: what the cache holds)"},
    {"Bench", "--memory-rate", "X", OPT_FLOAT, F(bench.memory_rate), 0, 1e6, "0", CLI_BENCH, "memory rate of this device in GB/s, the base of \"% of peak\" and of floors; 0: measure it"},
    {"Bench", "-o --output", "md,csv,json,jsonl", OPT_CHOICE, F(output.format), 0, 0, "md", CLI_BENCH, "format of the results (docs/output.md)"},

    {"Eval", "--task", "TASK,...", OPT_STRING, F(tasks.tasks), 0, 0, "niah-single,niah-multikey,qa-2hop", CLI_EVAL | CLI_TUNE, "tasks to generate (see below), or all"},
    {"Eval", "--length", "N,...", OPT_INTS, F(tasks.lengths), 64, 1 << 24, "4k", CLI_EVAL, "tokens of the prompt and of the answer together"},
    {"Eval", "--samples", "N", OPT_INT, F(tasks.samples), 1, 1000000, NULL, CLI_EVAL, "questions for each task and length (default: 32; with --jsonl: all of the file)"},
    {"Eval", "--questions", "N", OPT_INT, F(eval.questions), 1, 256, "1", CLI_EVAL, "questions in a row about one text, for tasks that can ask several"},
    {"Eval", "--task-seed", "N", OPT_UINT32, F(tasks.seed), 0, 4294967295.0, "42", CLI_EVAL | CLI_TUNE, "seed for the generated texts"},
    {"Eval", "--haystack", "text,noise,needles", OPT_CHOICE, F(tasks.haystack), 0, 0, "text", CLI_EVAL | CLI_TUNE, "filler between the facts: varied sentences, a few repeated sentences, or other needles (niah tasks only)"},
    {"Eval", "--jsonl", "FILE", OPT_STRING, F(tasks.jsonl), 0, 0, NULL, CLI_EVAL, "read the questions from FILE instead of --task: RULER's JSONL, or lines with a reference answer"},
    {"Eval", "--grader", "NAME", OPT_STRING, F(eval.grader), 0, 0, NULL, CLI_EVAL, "grader of the answers, see below (default: the grader of the task or of the line)"},
    {"Eval", "--procedure", "NAME", OPT_STRING, F(eval.procedure), 0, 0, NULL, CLI_EVAL, "use the prompt and the grader of the SANTA paper: gsm8k-boxed, mmlu-boxed, gsm8k or mmlu"},
    {"Eval", "--attn", "SPEC,...", OPT_LIST, F(run.attention.attns), 0, 0, NULL, CLI_EVAL, "methods to evaluate; 'santa-prop:S={64,128}' means two methods (may be repeated; default: dense)"},
    {"Eval", "--question-dense", NULL, OPT_FLAG, F(tasks.question_dense), 0, 0, "0", CLI_EVAL | CLI_TUNE, "also prefill the question with dense attention (set-up A)"},
    {"Eval", "-n --n-predict --predict", "N", OPT_INT, F(tasks.n_predict), -1, CLI_BIG, "-1", CLI_EVAL | CLI_TUNE, "maximum number of tokens to generate; -1: the limit of the task"},
    {"Eval", "--temp --temperature", "X", OPT_FLOAT, F(run.sampling.temp), 0, 1e6, NULL, CLI_EVAL, "sampling temperature; 0: greedy (default: 0, also if the model's settings name another)"},
    {"Eval", "--out", "FILE", OPT_STRING, F(output.path), 0, 0, NULL, CLI_EVAL, "write one line per sample and method to FILE; if FILE exists, continue the run that it holds"},
    {"Eval", "--dump", "FILE", OPT_STRING, F(eval.dump), 0, 0, NULL, CLI_EVAL, "write the prompts to FILE in RULER's format and do not run the model"},
    {"Eval", "-o --output", "md,csv,json,jsonl", OPT_CHOICE, F(output.format), 0, 0, "md", CLI_EVAL | CLI_TUNE, "format of the table (docs/output.md)"},

    {"Tune", "--out", "FILE", OPT_STRING, F(output.path), 0, 0, NULL, CLI_TUNE, "the profile to write; FILE.log keeps every measurement, and the same command continues an interrupted run"},
    {"Tune", "--parts", "PART,...", OPT_STRING, F(tune.parts), 0, 0, "prefill,budgets", CLI_TUNE, "what to tune: prefill (the method for each length), budgets (the draws of each layer)"},
    {"Tune", "--measure", "score,kl", OPT_CHOICE, F(tune.measure), 0, 0, "score", CLI_TUNE, "score: share of right answers; kl: KL divergence of the next tokens from those of dense attention, for texts without questions"},
    {"Tune", "--jsonl", "FILE", OPT_STRING, F(tasks.jsonl), 0, 0, NULL, CLI_TUNE, "prompts from FILE instead of --task: questions as for eval; with --measure kl: lines {\"text\"}"},
    {"Tune", "--length", "N,...", OPT_INTS, F(tasks.lengths), 64, 1 << 24, "16k,32k,64k,128k", CLI_TUNE, "tokens of the prompt and of the answer together; a setting is for lengths from the middle between its length and the one below"},
    {"Tune", "--samples", "N", OPT_INT, F(tasks.samples), 1, 1000000, NULL, CLI_TUNE, "prompts of each task and length to tune on (default: 16)"},
    {"Tune", "--check", "N", OPT_INT, F(tune.check), 0, 1000000, "16", CLI_TUNE, "other prompts of each task and length, on which the result is measured; 0: none"},
    {"Tune", "--loss", "X", OPT_FLOAT, F(tune.loss), 0, 1e3, "0.01", CLI_TUNE, "largest loss that a method for prefill may have against dense prefill: of the mean score (0.01 is one point), or in nats with --measure kl"},
    {"Tune", "--attn-prefill", "SPEC,...", OPT_LIST, F(run.attention.attn_prefills), 0, 0, NULL, CLI_TUNE, "candidates for prefill (default: sample with alpha_c and alpha_s of 0.8, 0.9, 0.95, 0.98 and chunk_n of 1, 2, 4)"},
    {"Tune", "--attn", "SPEC", OPT_STRING, F(run.attention.attn), 0, 0, NULL, CLI_TUNE, "method whose draws are split over the layers; S is the mean of a layer (default: santa-prop:S=8)"},
    {"Tune", "--iterations", "N", OPT_INT, F(tune.iterations), 0, 1000000, "501", CLI_TUNE, "updates of the learned budgets"},
    {"Tune", "--episodes", "N", OPT_INT, F(tune.episodes), 1, 1000, "10", CLI_TUNE, "schedules that an update tries"},
    {"Tune", "--batch-questions", "N", OPT_INT, F(tune.batch_questions), 1, 100000, "16", CLI_TUNE, "prompts that give the reward of a schedule"},
    {"Tune", "--rate", "X", OPT_FLOAT, F(tune.rate), 0, 1e3, "0.02", CLI_TUNE, "learning rate of the logits"},
    {"Tune", "--score", "N", OPT_INT, F(tune.score), 1, CLI_BIG, NULL, CLI_TUNE, "with --measure kl: last tokens of a text, which are decoded and compared (default: 32)"},
    {"Tune", "--calibration", "FILE", OPT_STRING, F(run.attention.calibration), 0, 0, NULL, CLI_TUNE, "name this table of `bench attn --calibrate` in the profile, for --attn=auto"},

    {"Server", "--host", "ADDRESS", OPT_STRING, F(serve.host), 0, 0, "127.0.0.1", CLI_SERVE, "name or address to listen at; beyond loopback only with --api-key, --api-key-file or --insecure"},
    {"Server", "--port", "N", OPT_INT, F(serve.port), 0, 65535, "8080", CLI_SERVE, "port to listen at; 0: any free port, which a line on stderr shows"},
    {"Server", "--insecure", NULL, OPT_FLAG, F(serve.insecure), 0, 0, "0", CLI_SERVE, "serve every machine that reaches --host, without a key"},
    {"Server", "--api-key", "KEY", OPT_LIST, F(serve.api_keys), 0, 0, NULL, CLI_SERVE, "a key that clients must send (may be repeated); other users of this machine can see it, but not that of --api-key-file"},
    {"Server", "--api-key-file", "FILE", OPT_STRING, F(serve.api_key_file), 0, 0, NULL, CLI_SERVE, "read keys from FILE, one in a line"},
    {"Server", "--tls-cert --ssl-certfile --ssl-cert-file", "FILE", OPT_STRING, F(serve.tls_cert), 0, 0, NULL, CLI_SERVE, "certificate in PEM, with --tls-key: serve HTTPS"},
    {"Server", "--tls-key --ssl-keyfile --ssl-key-file", "FILE", OPT_STRING, F(serve.tls_key), 0, 0, NULL, CLI_SERVE, "key of --tls-cert in PEM"},
    {"Server", "--cors-origin", "ORIGIN", OPT_LIST, F(serve.cors_origins), 0, 0, NULL, CLI_SERVE, "origin of web pages that may call the server, as https://chat.example; *: every origin (may be repeated)"},
    {"Server", "--max-header", "SIZE", OPT_SIZE, F(serve.max_header), 1, 1e18, "16K", CLI_SERVE, "most bytes of request line and headers"},
    {"Server", "--max-body", "SIZE", OPT_SIZE, F(serve.max_body), 1, 1e18, "16M", CLI_SERVE, "most bytes of the body of a request"},
    {"Server", "--max-bodies", "SIZE", OPT_SIZE, F(serve.max_bodies), 1, 1e18, "256M", CLI_SERVE, "most bytes of all bodies that are being received, and of the bodies of all requests that wait or run"},
    {"Server", "--max-unread", "SIZE", OPT_SIZE, F(serve.max_unread), 1, 1e18, "1M", CLI_SERVE, "most bytes of a stream that wait for a slow reader; the server disconnects a slower one"},
    {"Server", "--max-connections", "N", OPT_INT, F(serve.max_connections), 1, 1000000, "1024", CLI_SERVE, "most open connections"},
    {"Server", "--max-address-connections", "N", OPT_INT, F(serve.max_address_connections), 0, 1000000, "0", CLI_SERVE, "most open connections of one address; 0: no limit"},
    {"Server", "--header-timeout", "SECONDS", OPT_FLOAT, F(serve.header_timeout), 0.1, 1e9, "10", CLI_SERVE, "time for the headers of a request"},
    {"Server", "--body-timeout", "SECONDS", OPT_FLOAT, F(serve.body_timeout), 0.1, 1e9, "60", CLI_SERVE, "time for the body of a request"},
    {"Server", "--read-timeout", "SECONDS", OPT_FLOAT, F(serve.read_timeout), 0.1, 1e9, "60", CLI_SERVE, "time for which a client may take no byte of its answer"},
    {"Server", "--idle-timeout", "SECONDS", OPT_FLOAT, F(serve.idle_timeout), 0.1, 1e9, "75", CLI_SERVE, "time between two requests of a connection"},
    {"Server", "--sse-interval", "SECONDS", OPT_FLOAT, F(serve.sse_interval), 0.1, 1e9, "15", CLI_SERVE, "a stream in which nothing was sent for so long gets a comment"},
    {"Server", "--drain-timeout", "SECONDS", OPT_FLOAT, F(serve.drain_timeout), 0, 1e9, "30", CLI_SERVE, "time for running answers after SIGTERM or Ctrl+C; a second signal ends the server at once"},
    {"Server", "--max-waiting", "N", OPT_INT, F(serve.max_waiting), 1, 1000000, "512", CLI_SERVE, "most requests that wait for their turn; further ones get the status 429"},
    {"Server", "--step-tokens", "N", OPT_INT, F(serve.step_tokens), 0, CLI_BIG, "0", CLI_SERVE, "between two decode steps, prefill at most the work of N tokens at the beginning of a prompt; 0: --ubatch-size"},
    {"Server", "--prefix-cache", NULL, OPT_SWITCH, F(serve.prefix_cache), 0, 0, "1", CLI_SERVE, "keep the rows of prompts for later prompts that begin equally; this changes no bit"},
    {"Server", "--keep-conversations", "N", OPT_INT, F(serve.keep_conversations), 0, 1000000, "8", CLI_SERVE, "most conversations (conversation_id) whose rows stay after an answer; their pages are given up when a request needs them"},
    {"Server", "--slot-save-path", "DIR", OPT_STRING, F(serve.slot_save_path), 0, 0, NULL, CLI_SERVE, "allow POST /slots/ID?action=save, restore and erase, with files in this folder"},

    {"General", "-q --quiet", NULL, OPT_FLAG, F(quiet), 0, 0, "0", ~0u, "write only errors to stderr"},
    {"General", "-h --help", NULL, OPT_FLAG, F(help), 0, 0, "0", ~0u, "show this help"},
};
// clang-format on
const int cli_n_options = sizeof cli_option_table / sizeof *cli_option_table;
_Static_assert(sizeof cli_option_table / sizeof *cli_option_table <= CLI_MAX_FLAGS, "cli_options.given has a byte per flag");

// ---- names ----

// Copies word i of s, which blanks separate. Returns 0 if there is none.
int cli_option_name(const char *s, int i, char *out, size_t size) {
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
const char *cli_option_long_name(const cli_option *opt, char buf[32]) {
    for (int i = 0; cli_option_name(opt->names, i, buf, 32); i++)
        if (!strncmp(buf, "--", 2)) return buf;
    return buf;
}

const char *cli_option_env(const cli_option *opt, char buf[48]) {
    char name[32];
    int n = snprintf(buf, 48, "SLEIGH_");
    for (const char *p = cli_option_long_name(opt, name) + 2; *p; p++)
        buf[n++] = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
    buf[n] = 0;
    return buf;
}

int cli_option_has_env(const cli_option *opt) {
    int is_file =
        opt->field == offsetof(cli_options, output.path) && !strncmp(opt->names, "-o ", 3); // SLEIGH_OUTPUT is a format
    return opt->field != offsetof(cli_options, help) && !is_file;
}

int cli_option_takes_value(const cli_option *opt) {
    return opt->type != OPT_FLAG && opt->type != OPT_SWITCH;
}
