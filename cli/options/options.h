// cli/options/options.h - the flags of the commands as small structs, one for each purpose.
//
// The parser (options.c) fills them from the table of flags (option_table.h). A function takes the structs that it needs. Only
// the table, the parser, the manual and the dispatch of commands know all of them together (all_options.h).
//
// A field NAME_given says where a value comes from: 0 for a default, CLI_BY_ENV or CLI_BY_FLAG.
#ifndef SLEIGH_OPTIONS_H
#define SLEIGH_OPTIONS_H

#include "engine/sleigh.h"

#include <stddef.h>
#include <stdint.h>

// ---- values ----

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

// ---- what was given ----

enum { CLI_MAX_FLAGS = 220, CLI_MAX_PARAMS = 32 };
enum { CLI_BY_ENV = 1, CLI_BY_FLAG = 2 };

// The flags that were given, to refuse combinations of flags.
typedef struct cli_given {
    unsigned command;                  // its bit (option_table.h)
    unsigned char rows[CLI_MAX_FLAGS]; // per row of the table: 0, CLI_BY_ENV, CLI_BY_FLAG
} cli_given;
// Of the flag with this name, --temp: 0, CLI_BY_ENV or CLI_BY_FLAG. 0 also: the command has no such flag.
int cli_given_by(const cli_given *given, const char *name);
// The first of these names, which a NULL ends, that the command line gives; NULL: none.
const char *cli_given_flag(const cli_given *given, const char *const *names);

// ---- a run: what cli_run_open needs ----

typedef struct cli_model_options {
    struct sl_source *source; // models/source.h: of --model; NULL without --model
    const char *path;         // --model
    const char *load_format, *chat_template;
    const char *weights, *weights_head, *weights_embedding; // NULL: not given
    const char *activations;
    sl_rope_options rope;
    int mlock;
    int tensor_parallel;  // ranks that share the model
    struct sl_comm *comm; // of these ranks (cli/rank_team.h); NULL: this process has the whole model
} cli_model_options;

typedef struct cli_device_options { // device, threads and memory
    const char *name;               // --device
    const char *gpu;                // what cuda means; NULL: "cuda"
    const char *kv_cache, *kv_cache_dtype, *cache_type_k, *cache_type_v;
    size_t kv_gpu_memory, host_memory; // bytes; 0: not given
    int kv_tokens;                     // for the command serve; 0: not given
    int ubatch, threads;
} cli_device_options;

typedef struct cli_limit_options {
    int n_ctx;     // 0: not given
    int n_predict; // of generate and chat; negative: no limit
    int n_predict_given;
    cli_list stops;
} cli_limit_options;

typedef struct cli_attention_options {
    int has_plan; // 1: the command decodes with one plan, of --attn and its flags
    const char *attn, *attn_prefill;
    int attn_given, attn_prefill_given;
    cli_list attn_layers, attn_prefill_layers;
    cli_param params[CLI_MAX_PARAMS];
    int n_params;
    cli_list attns, attn_prefills; // --attn and --attn-prefill of commands that take several methods
    const char *schedule, *attn_profile, *calibration;
    const char *exact_below; // --exact-below: a number, auto or off
    int auto_calibrate;
    double query_deviation; // of the queries that a calibration times
    int prefill_segment, prefill_segment_given;
    int prefill_check;
} cli_attention_options;

typedef struct cli_sampling_options {
    uint32_t seed, seq_id;
    double temp, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
    int top_k, repeat_last_n;
    int temp_given, top_p_given, min_p_given, repeat_penalty_given, top_k_given, repeat_last_n_given;
    int ignore_eos;
    cli_list logit_bias;
} cli_sampling_options;

typedef struct cli_grammar_options { // at most one of the first four
    const char *gbnf, *schema, *regex;
    cli_list choices;
    const char *after;
} cli_grammar_options;

typedef struct cli_stats_options { // --stats and its flags
    const char *path;              // NULL: no file
    cli_list attns;
    int error, n_seeds, n_seeds_given;
} cli_stats_options;

typedef struct cli_draft_options {
    const char *draft, *model; // --draft, --draft-model; NULL: not given
    cli_list drafts;           // --draft of commands that take several
    int by_request;            // 1: later requests may ask for drafts, whatever the flag says
} cli_draft_options;

typedef struct cli_ids_options { // a prompt of ids, not of text
    const char *path;            // --ids
    int n_random;                // --random-prompt; 0: not given
} cli_ids_options;

typedef struct cli_run_options {
    cli_model_options model;
    cli_device_options device;
    cli_limit_options limits;
    cli_attention_options attention;
    cli_sampling_options sampling;
    cli_grammar_options grammar;
    cli_stats_options stats;
    cli_draft_options drafts;
    cli_ids_options ids;
} cli_run_options;

// ---- input and output ----

typedef struct cli_input_options {
    const char *prompt, *file;
    int prompt_given, file_given;
    const char *jsonl, *prompts; // files of many prompts
    int parallel, parallel_given;
    int dense_prefix;   // first tokens of the prompt, which are prefilled; negative: not given
    int question_dense; // 1: the question is prefilled too
    int escape;
    struct sl_comm *comm; // as in cli_model_options: the first rank reads standard input for all
} cli_input_options;

typedef struct cli_chat_options { // the messages in the chat template
    int is_on;                    // --chat
    const char *system, *kwargs, *tools;
    int parse_special;
} cli_chat_options;

typedef struct cli_cache_options { // --prompt-cache
    const char *path;
    int read_only;
} cli_cache_options;

typedef struct cli_output_options {
    const char *format, *path; // path: of --out, or --output FILE
    const char *plot;
    int display_prompt, perf, logprobs, logprobs_given, tensors;
} cli_output_options;

// ---- one command ----

typedef struct cli_tokenize_options {
    int bos, plain;
} cli_tokenize_options;

typedef struct cli_bench_options {
    cli_ints batches, depths, n_prompts, n_gens, pairs; // pairs: prompt and generated tokens, alternating; n 0: not given
    const char *phase, *mask_method, *states, *fill;
    int calibrate, cliffs, repetitions, ragged, copy; // repetitions 0: not given
    double mask_density, query_spread, memory_rate, hot_hits, cliffs_seconds;
    int hot_hits_given;
} cli_bench_options;

typedef struct cli_compare_options {
    const char *reference;
    int n_predict, texts, heads, attention;
} cli_compare_options;

typedef struct cli_perplexity_options {
    int stride, windows, score, segment, dense_prefix; // 0, dense_prefix negative: not given
    cli_ints histories;
} cli_perplexity_options;

typedef struct cli_task_options { // the questions of eval and tune
    const char *tasks, *jsonl, *haystack;
    cli_ints lengths;
    uint32_t seed;      // --task-seed
    int samples;        // 0: not given
    int n_predict;      // negative: the limit of the task
    int question_dense; // 1: the question is prefilled too
} cli_task_options;

typedef struct cli_eval_options {
    const char *grader, *procedure, *dump;
    int questions;
} cli_eval_options;

typedef struct cli_tune_options {
    const char *parts, *measure;
    int check, iterations, episodes, batch_questions, score; // score 0: not given
    double loss, rate;
} cli_tune_options;

typedef struct cli_quantize_options {
    size_t shard_size; // bytes
} cli_quantize_options;

typedef struct cli_serve_options {
    const char *alias, *host, *api_key_file, *tls_cert, *tls_key, *slot_save_path;
    cli_list api_keys, cors_origins;
    int port, insecure, parallel;
    size_t max_header, max_body, max_bodies, max_unread;                                          // bytes
    int max_connections, max_address_connections;                                                 // 0: no limit
    double header_timeout, body_timeout, read_timeout, idle_timeout, sse_interval, drain_timeout; // seconds
    int keep_conversations;
    int max_waiting, step_tokens, prefix_cache; // step_tokens 0: not given
} cli_serve_options;

#endif
