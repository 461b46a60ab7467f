// cli/options/options.h - the flags of all commands, from one table (option_table.c), and their parser.
//
// Each flag is also an environment variable: SLEIGH_ and the first long name of the flag in capitals, with '_' for '-'
// (--ctx-size: SLEIGH_CTX_SIZE). The command line takes precedence. In numbers the suffix k or K means 1024. Each parameter of
// an attention method is a flag too (--S 128); the names come from the registry.
// Refuses unknown flags (and suggests the nearest name), flags of other commands, and values out of range.
#ifndef SLEIGH_OPTIONS_H
#define SLEIGH_OPTIONS_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

enum { // the bit of each command in cli_option.commands
    CLI_GENERATE = 1,
    CLI_CHAT = 2,
    CLI_TOKENIZE = 4,
    CLI_DETOKENIZE = 8,
    CLI_LOGITS = 16,
    CLI_INSPECT = 32,
    CLI_METHODS = 64,
    CLI_VERSION = 128,
    CLI_BENCH = 256,
    CLI_COMPARE = 512,
    CLI_PERPLEXITY = 1024,
    CLI_EVAL = 2048,
    CLI_PLOT = 4096,
    CLI_TUNE = 8192,
    // groups of commands
    CLI_RUNS = CLI_GENERATE | CLI_CHAT,
    CLI_SAMPLES = CLI_RUNS | CLI_COMPARE,
    CLI_DECODES = CLI_RUNS | CLI_PERPLEXITY, // with one attention plan: --attn and its flags
    CLI_ENGINES = CLI_SAMPLES | CLI_DECODES | CLI_LOGITS | CLI_BENCH | CLI_EVAL | CLI_TUNE,
    CLI_LOADS = CLI_ENGINES | CLI_TOKENIZE | CLI_DETOKENIZE | CLI_INSPECT
};

typedef struct cli_list {
    const char **items;
    int n, cap;
} cli_list;

enum { CLI_MAX_INTS = 128 };

typedef struct cli_ints { // 1,6,4k or 512-4096*2
    int at[CLI_MAX_INTS], n;
} cli_ints;
enum { CLI_ALL = 0 };               // the word `all` in a list of numbers above 0
void cli_sort_ints(cli_ints *list); // ascending

typedef struct cli_param { // a parameter of a method: --S=128
    char name[32];
    const char *value;
} cli_param;

enum { CLI_MAX_FLAGS = 160, CLI_MAX_PARAMS = 32 };

typedef struct cli_options {
    unsigned command;
    struct sl_source *source; // models/source.h: of --model; NULL without --model
    const char *model, *prompt, *file, *system_prompt, *chat_template, *chat_options, *tools, *jsonl, *attn, *schedule, *ids,
        *out, *format, *device, *stats, *load_format, *prompts, *phase, *plot, *reference, *task, *haystack, *grader,
        *procedure, *dump, *calibration, *states, *attn_prefill, *attn_profile, *prompt_cache, *parts, *measure, *rope_scaling,
        *mask_method, *kv_cache, *fill,
        *what; // what: the subject after `bench`, the file after `plot`
    int n_predict, n_ctx, ubatch, threads, top_k, repeat_last_n, dense_prefix, stats_seeds, random_prompt, parallel,
        repetitions, stride, windows, score, segment, samples, questions, logprobs, prefill_segment, prefill_check, check,
        iterations, episodes, batch_questions, rope_original_ctx;
    uint32_t seed, seq_id, task_seed;
    size_t kv_gpu_memory, host_memory; // bytes; 0: not given
    double loss, rate, memory_rate, hot_hits, mask_density, query_deviation, query_spread, temp, top_p, min_p, repeat_penalty,
        presence_penalty, frequency_penalty, rope_scale, rope_theta, rope_low_freq_factor, rope_high_freq_factor,
        yarn_attention_factor, yarn_beta_fast, yarn_beta_slow;
    int ignore_eos, chat, parse_special, display_prompt, perf, question_dense, bos, plain, stats_error, ragged, copy, texts,
        heads, attention, calibrate, auto_calibrate, prompt_cache_ro, escape, mlock, tensors, quiet, help;
    cli_list stops, logit_bias, attn_layers, attn_prefill_layers, stats_attn, attns, attn_prefills;
    cli_ints batches, depths, lengths, n_prompts, n_gens, histories, pairs; // pairs: prompt and generated tokens, alternating
    cli_param params[CLI_MAX_PARAMS];
    int n_params;
    cli_list owned;       // strings that values point into: texts after --escape
    char no_effect[1024]; // flags that were accepted and change nothing (habits.h), each with the reason; "": none
    int random_seed;      // 1: --seed -1
    unsigned char given[CLI_MAX_FLAGS]; // per row of the table: 0, CLI_BY_ENV, CLI_BY_FLAG
} cli_options;

enum { CLI_BY_ENV = 1, CLI_BY_FLAG = 2 };

typedef struct cli_command {
    const char *name, *args, *summary;
    unsigned bit;
    int (*run)(const cli_options *o, sl_error *err);
    const char *notes; // paragraphs at the end of the help; NULL: none
} cli_command;

// Fills *o with the defaults, the environment and args[0..n) for this command. Values point into args and the environment.
int cli_options_parse(cli_options *o, unsigned command, int n, char **args, sl_error *err);
void cli_options_free(cli_options *o);

// The source of a field: CLI_GIVEN(o, temp) is 0 for a default, CLI_BY_ENV or CLI_BY_FLAG.
#define CLI_GIVEN(o, field) cli_option_given((o), offsetof(cli_options, field))
int cli_option_given(const cli_options *o, size_t field);

// A flag and its field, for cli_given_flag.
typedef struct cli_flag {
    const char *name;
    size_t field;
} cli_flag;
#define CLI_FLAG(name, field)                                                                                                  \
    { name, offsetof(cli_options, field) }
#define CLI_N_FLAGS(flags) ((int)(sizeof(flags) / sizeof *(flags)))
// The name of the first of flags[0..n) that the command line gives; NULL: none.
const char *cli_given_flag(const cli_options *o, const cli_flag *flags, int n);

#endif
