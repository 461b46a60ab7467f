// sleigh.h - the public interface of libsleigh. A program that embeds Sleigh needs this header only. docs/embed.md explains it.
//
//   sl_model    config, weights, tokenizer. Immutable. Engines and threads may share it.
//   sl_engine   the KV pages, scratch memory, threads and attention methods of one device. One thread at a time.
//   sl_session  one mutable timeline: the KV rows of its tokens, and the logits after the last token. A batch is an array of
//               sessions of one engine, of any lengths.
//   sl_stream   one generation of text in a session.
//   sl_chat     a conversation in a session of its own.
//   sl_grammar  the texts that an answer may be. Immutable. Engines and threads may share it.
//
// Errors. Functions that can fail return 0 or a negative sl_err, and write the reason to *err (err may be NULL). After an error
// no object has changed and *out is as before, unless the comment says otherwise. The library never prints or exits.
//
// Lifetime. Objects count their users. sl_..._free ends the caller's use; the object lives until its last user ends: an engine
// uses its model, a session and a chat use their engine, a stream uses its session and its grammar. So objects can be freed in
// any order, each of them once. NULL is allowed.
//
// Threads. Engines in different threads may run at the same time, also with one model. A call that runs an engine (sl_prefill,
// sl_decode, sl_sample, sl_step, sl_session_sync, sl_streams_step, sl_generate, sl_chat_say, sl_chat_again,
// sl_engine_set_attention, sl_session_save, sl_session_load) returns SL_ERR_ARG while another call runs the same engine. A call
// from a callback of that other call returns SL_ERR_ARG too. The calls that do not run an engine must not overlap with other
// calls with the same engine, its sessions, its streams and its chats.
#ifndef SLEIGH_H
#define SLEIGH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SL_API __attribute__((visibility("default"))) // the shared library exports these functions and no others
#else
#define SL_API
#endif

#define SLEIGH_VERSION "0.1.0"
SL_API const char *sl_version(void); // of the library; SLEIGH_VERSION: of this header

// ---- errors ----

typedef enum sl_err {
    SL_OK = 0,
    SL_ERR_IO = -1,          // the operating system reported an error: open, read, write, mmap
    SL_ERR_FORMAT = -2,      // the content of a file is malformed or truncated
    SL_ERR_UNSUPPORTED = -3, // well-formed, but Sleigh does not support it
    SL_ERR_ARG = -4,         // an argument is out of range or unknown, or the call is not allowed in this state
    SL_ERR_MEMORY = -5,      // no memory, or no free KV pages
    SL_ERR_CONTEXT = -6,     // the context has no room for the tokens
    SL_ERR_DEVICE = -7,      // the GPU or its driver failed
    SL_ERR_NOT_FINITE = -8,  // a value of the model became NaN or infinite
    SL_ERR_CANCELLED = -9,   // the caller's sl_cancel asked to stop
    SL_ERR_BUSY = -10        // too many requests wait already, or what one of them uses
} sl_err;

enum { SL_ERROR_OPTIONS = 4 };

typedef struct sl_error {
    sl_err code;
    char message[1024]; // one line of printable UTF-8: the file, tensor or option, the found value, the expected value
    // Where the message names options (fields of the structs below): bytes [at, at + n). A program with flags can print the
    // names of its flags there.
    int n_options;
    struct {
        uint16_t at, n;
    } options[SL_ERROR_OPTIONS];
} sl_error;

// ---- callbacks: the library calls them on the thread that called the library; fn NULL: no calls ----

typedef void (*sl_progress_fn)(void *ctx, int done, int total);
typedef struct sl_progress {
    sl_progress_fn fn;
    void *ctx;
} sl_progress;

typedef struct sl_log {
    void (*fn)(void *ctx, const char *line); // line: without a newline, valid during the call
    void *ctx;
} sl_log;

// The library asks before each part of a load, before each tensor of an upload, before each chunk of a prefill, and before each
// decode step. When fn does not return 0, the call returns SL_ERR_CANCELLED. A cancelled call has changed nothing.
typedef struct sl_cancel {
    int (*fn)(void *ctx);
    void *ctx;
} sl_cancel;

// ---- model ----

typedef struct sl_model sl_model;

enum {
    SL_MODEL_NO_TOKENIZER = 1 // do not load the tokenizer, which a folder may lack
};

// RoPE in place of what config.json says, to run a model past the context that it was trained on. NULL or 0: the value of
// config.json where this file has the same scaling, else the default. A scaling replaces the one of config.json.
typedef struct sl_rope_options {
    const char *scaling;                      // "none", "linear", "llama3", "yarn"; NULL: as config.json says
    double theta;                             // the base of the frequencies
    double factor;                            // linear, llama3, yarn: how many times the original context; at least 1
    int original_ctx;                         // llama3, yarn: tokens of the original context; default: max_position_embeddings
    double low_freq_factor, high_freq_factor; // llama3: turns within the original context; default: 1 and 4
    double attention_factor;                  // yarn: factor of cosine and sine; default: 0.1 ln(factor) + 1
    double beta_fast, beta_slow;              // yarn: turns within the original context; default: 32 and 1
} sl_rope_options;

typedef struct sl_model_options {
    unsigned flags; // SL_MODEL_...
    sl_cancel cancel;
    const char *chat_template; // as sl_chat_options.template_name; a chat may choose another one
    sl_rope_options rope;      // with rope.scaling, a session may have more tokens than max_position_embeddings
    sl_log log;                // lines about decisions of the load, such as tensors that are not used
    sl_progress progress;      // of the unpacking of a GGUF file, in MiB of unpacked weights; of quantised weights, in tensors
    // Rounds the linear layers of a folder with plain weights to "fp8", "int8", "int4" or "int4:group=N" (docs/loading.md);
    // NULL: the weights stay as they are
    const char *weights;
    // The same for the output head (and an embedding that is tied to it), and for an embedding that is not tied; also "bf16":
    // not rounded. NULL: not rounded, except that the head becomes int8 where `weights` is int4
    const char *weights_head, *weights_embedding;
    // What weights are multiplied with (docs/loading.md). "float": fp32 on a CPU, bf16 on a GPU. "int16", "int8": a CPU rounds
    // the inputs of weights of 4 bits and of integers to 16 or 8 bits; a GPU refuses them. "fp8": prefills on a GPU round the
    // inputs of fp8 weights to fp8, decode steps do not; a CPU refuses it. NULL, "auto": int16 on a CPU, and on a GPU fp8 in
    // prefills where the checkpoint asks for it
    const char *activations;
} sl_model_options;

// Loads a folder of Hugging Face: config.json, *.safetensors, tokenizer files. The weights stay in the mapped files. Or loads a
// GGUF file: quantised matrices are sorted into arrays in memory, and stay packed (docs/loading.md). options NULL: no flags.
SL_API int sl_model_load(const char *path, const sl_model_options *options, sl_model **out, sl_error *err);
SL_API void sl_model_free(sl_model *model);
SL_API const char *sl_model_name(const sl_model *model); // last part of the path
SL_API const char *sl_model_type(const sl_model *model); // model_type of config.json: "llama"
SL_API int sl_model_n_ctx(const sl_model *model);        // most tokens of a session
SL_API int sl_model_n_vocab(const sl_model *model);
SL_API int sl_model_is_eos(const sl_model *model, int32_t id); // 1: an end token
// SL_ERR_IO with the file's name when a file of weights has changed since it was mapped: later results may be wrong. When a
// file has become shorter, a read of the weights raises SIGBUS. SIGBUS ends the process, unless the program handles the signal.
SL_API int sl_model_check(const sl_model *model, sl_error *err);

enum {
    SL_TOK_BOS = 1,     // tokenize: begin with the model's BOS, if its post-processor (or SentencePiece trainer) adds one
    SL_TOK_PLAIN = 2,   // tokenize: read the strings of special tokens as text
    SL_TOK_SPECIALS = 4 // detokenize: write special tokens as their strings; otherwise they are left out
};
// *ids: [*n_ids], for text[0..n), which may hold NUL. The caller frees *ids with sl_free. SL_ERR_ARG: no tokenizer.
SL_API int sl_model_tokenize(const sl_model *model, const char *text, size_t n, unsigned flags, int32_t **ids, int *n_ids,
                             sl_error *err);
// *text: *n bytes and a NUL. The caller frees *text with sl_free. SL_ERR_ARG: an id is out of range, or there is no tokenizer.
SL_API int sl_model_detokenize(const sl_model *model, const int32_t *ids, int n_ids, unsigned flags, char **text, size_t *n,
                               sl_error *err);
SL_API void sl_free(void *p);

// ---- engine ----

typedef struct sl_engine sl_engine;

typedef struct sl_engine_options {
    int n_ctx;       // tokens of a session; 0: the least of 32768, the model's limit and the most that fits in memory
    int n_sequences; // most sessions of a batch; 0: 1
    // Tokens for which the cache has KV pages (of 256 tokens), over all sessions; 0: n_sequences x n_ctx. An engine may have
    // more sessions than fit: a call that finds no free page returns SL_ERR_MEMORY and changes nothing.
    int kv_tokens;
    int prefill_chunk;           // tokens of one prefill pass; 0: 512, on a GPU 2048
    int n_draft;                 // most drafts of a session in a step (sl_generation.draft), 0 to SL_MAX_DRAFT
    const sl_model *draft_model; // for the draft source "model": a smaller model of the same vocabulary; NULL: none
    // For drafts of the model itself with weights in fewer bits ("self:weights=int4"): copies of its matrices in this format,
    // "int4", "int8" or "fp8"; NULL: none
    const char *draft_weights;
    const char *device; // "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1"; NULL: "cpu"
    const char *attn;   // attention of decode steps: "dense", "santa-prop:S=128" (docs/methods.md); NULL: "dense"
    // A decode step of a sequence of fewer rows attends to every row, with the bits of "dense", because with few rows this
    // takes less time than a method's draws. -1: a number for each method (docs/methods.md); 0: no step does. Dense attention
    // and K and V in host memory are not concerned.
    int exact_below;
    // Where K and V lie on a GPU. "gpu": in its memory. "host": in page-locked host memory, from which decode steps fetch the
    // rows that they draw; only methods that read few rows are offered. "auto": on the host, if the context does not fit on the
    // GPU. NULL: "gpu"
    const char *kv_cache;
    // How K and V are stored. kv_cache_dtype: "auto", "bf16", "fp8" (e4m3) or "int8" ("q8_0"), of both; NULL: "auto", which is
    // bf16. cache_type_k, cache_type_v: the same of K or V alone; NULL, "auto": as kv_cache_dtype. fp8 and int8 have a scale
    // for each row and KV head. A GPU needs the same format for K and V, and some methods need bf16 there (docs/use.md).
    const char *kv_cache_dtype, *cache_type_k, *cache_type_v;
    size_t kv_gpu_memory; // "host": most bytes of the GPU for the cache: page extras, newest pages, hot rows; 0: what is free
    size_t host_memory;   // "host": most bytes of host memory; 0: what the control groups leave, without a limit what is free
    uint32_t seed;        // of attention's draws
    int n_threads;        // threads of this engine on the CPU; 0: one for each core that this process may use (docs/costs.md)
    sl_progress progress; // of the upload of weights to a GPU, in tensors
    sl_cancel cancel;     // of sl_engine_new, and of every later call that runs the engine
    sl_log log;           // lines about decisions of the library, such as the context that fits into memory
} sl_engine_options;

enum { SL_MAX_DRAFT = 15 };

SL_API sl_engine_options sl_engine_options_default(void); // zeros, device "auto", exact_below -1
// options NULL: the default. The strings are copied.
SL_API int sl_engine_new(const sl_model *model, const sl_engine_options *options, sl_engine **out, sl_error *err);
// A child process after fork() cannot use the engines of its parent: the calls return SL_ERR_ARG, and sl_engine_free and
// sl_session_free do nothing. The child can make an engine of its own, of the same model.
SL_API void sl_engine_free(sl_engine *engine);
SL_API int sl_engine_n_ctx(const sl_engine *engine);
// Sets the attention of all sessions that have none of their own (sl_generation.attn), from their next decode step on. attn: as
// in sl_engine_options. After an error the previous methods stay.
SL_API int sl_engine_set_attention(sl_engine *engine, const char *attn, sl_error *err);
SL_API void sl_engine_describe(const sl_engine *engine, char *buf, size_t size); // "cpu: avx512, 4 threads"

// What the attention of decode steps read, in bytes of K, V and what methods keep beside them.
typedef struct sl_attention_work {
    uint64_t bytes, dense_bytes; // read; what dense attention reads
    uint64_t heads, fallbacks;   // query heads served; heads whose method attended to every row instead
    uint64_t exact_heads;        // heads of sequences with fewer rows than exact_below
    // Of methods that state an error epsilon' of a layer in each step: stated errors; those that are certified, epsilon' <=
    // epsilon; those without a bound. Then the mean and the largest epsilon' with a bound; NaN: none.
    uint64_t layer_steps, certified, unbounded;
    double stated_error, stated_error_max;
} sl_attention_work;
SL_API sl_attention_work sl_engine_attention_work(const sl_engine *engine); // since the engine was made

// SL_ERR_ARG when device is not a device name, SL_ERR_DEVICE when there is no such GPU.
SL_API int sl_device_check(const char *device, sl_error *err);
// Writes "cpu", or the GPU's name from its driver.
SL_API int sl_device_name(const char *device, char *buf, size_t size, sl_error *err);
// *n_ctx: the largest context for which weights, scratch memory and the KV of n_sequences fit into the device's free memory; 0:
// the weights do not fit. device: as in sl_engine_options.
SL_API int sl_engine_largest_ctx(const sl_model *model, const char *device, int n_sequences, int *n_ctx, sl_error *err);

// ---- session ----

typedef struct sl_session sl_session;

// sequence: keys the random numbers of attention and of token sampling. The caller chooses it; it is never a batch index.
SL_API int sl_session_new(sl_engine *engine, uint32_t sequence, sl_session **out, sl_error *err);
SL_API void sl_session_free(sl_session *s);
SL_API int sl_session_n_tokens(const sl_session *s);
SL_API const int32_t *sl_session_ids(const sl_session *s); // [n_tokens], valid until the next call with the session
SL_API uint32_t sl_session_sequence(const sl_session *s);
SL_API void sl_session_set_sequence(sl_session *s, uint32_t sequence);
// Keeps the first n_tokens tokens. With fewer tokens than before, the session has no logits until the next sl_prefill or
// sl_decode.
SL_API int sl_session_truncate(sl_session *s, int n_tokens, sl_error *err);
// A new session that shares the KV rows of the first n_tokens tokens of s. It has logits if it has all tokens of s.
SL_API int sl_session_fork(const sl_session *s, int n_tokens, uint32_t sequence, sl_session **out, sl_error *err);
// Writes the session to a file, which replaces a file at `path` when it is whole: the rows of its tokens, its logits, and what
// its attention methods keep from step to step. progress: in layers of K, then of V; NULL: no reports. SL_ERR_IO: the file
// cannot be written. docs/session-file.md has the format.
SL_API int sl_session_save(const sl_session *s, const char *path, const sl_progress *progress, sl_error *err);
// A new session from a file of sl_session_save. It continues with the bits of the saved session, if model, device, seed and
// methods are the same. SL_ERR_ARG: the file is of another model or another type of cache; SL_ERR_FORMAT: the file is
// damaged; SL_ERR_CONTEXT: it has more tokens than n_ctx.
SL_API int sl_session_load(sl_engine *engine, const char *path, sl_session **out, const sl_progress *progress, sl_error *err);
// [n_vocab], after the last token; valid until the next call with the session. NULL with SL_ERR_ARG in *err: the session has no
// logits, because it is empty or was truncated.
SL_API const float *sl_session_logits(const sl_session *s, sl_error *err);

// Appends n tokens with dense attention, chunk by chunk. SL_ERR_CONTEXT when the context has no room for n tokens; the message
// gives both counts. The chunk size does not change a bit of the logits. progress: in tokens; NULL: no reports. After
// SL_ERR_CANCELLED the session has the tokens and logits of before.
SL_API int sl_prefill(sl_session *s, const int32_t *ids, int n, const sl_progress *progress, sl_error *err);
// Makes the session hold the tokens ids[0..n), with logits after the last one: keeps the common prefix, and appends the rest
// with sl_prefill. *n_kept: tokens whose rows were in the session already; NULL: not wanted. SL_ERR_ARG, SL_ERR_CONTEXT:
// nothing has changed. After another error, SL_ERR_CANCELLED too, the session holds a prefix of ids, and may have no logits.
SL_API int sl_session_sync(sl_session *s, const int32_t *ids, int n, const sl_progress *progress, int *n_kept, sl_error *err);
// One step: appends ids[i] to batch[i] with the engine's attention. After an error no session has changed. The logits of a
// session have equal bits in every batch. SL_ERR_ARG: too many sessions, a session twice, or sessions of different engines.
SL_API int sl_decode(sl_session *const *batch, int n, const int32_t *ids, sl_error *err);

// ---- token sampling, and a step that begins with it ----

typedef struct sl_logit_bias {
    int32_t id;
    float bias;
} sl_logit_bias;

// In the order of their use: bias, penalties, top-k, top-p, min-p, temperature.
typedef struct sl_sampling {
    float temp;                // 0.8; 0: greedy
    int top_k;                 // 40; 0: off
    float top_p;               // 0.95; 1: off
    float min_p;               // 0.05; 0: off
    float repeat_penalty;      // 1: off
    int repeat_last_n;         // 64; 0: off, -1: the whole context. With a penalty of the model: -1
    float presence_penalty;    // 0: off
    float frequency_penalty;   // 0: off
    const sl_logit_bias *bias; // [n_bias]
    int n_bias;
    uint32_t seed;
} sl_sampling;

SL_API sl_sampling sl_sampling_default(void); // the values in the comments above
// The same with what generation_config.json of the model says in place of these values.
SL_API sl_sampling sl_model_sampling(const sl_model *model);

typedef struct sl_sampler sl_sampler; // one for each session: scratch memory, and the token history of the penalties

// n_vocab: of the model. params is copied. SL_ERR_ARG: a parameter is out of range.
SL_API int sl_sampler_new(const sl_sampling *params, int n_vocab, sl_sampler **out, sl_error *err);
SL_API void sl_sampler_free(sl_sampler *s);
// Call for every token that enters the context, of the prompt and generated. SL_ERR_ARG: the id is out of range.
SL_API int sl_sampler_accept(sl_sampler *s, int32_t id, sl_error *err);
SL_API void sl_sampler_truncate(sl_sampler *s, int n_tokens); // keeps the first n_tokens of the history, or all
// Later samples are tokens of `allowed` only: bit i % 32 of word i / 32 stands for token i. [(n_vocab + 31) / 32] words,
// copied, at least one bit set. NULL: every token, which is the default. Other tokens count as logits of -inf, before all
// parameters.
SL_API int sl_sampler_allow(sl_sampler *s, const uint32_t *allowed, sl_error *err);

// Samples the next token of each session from the session's logits with samplers[i]. ids: [n]. The samplers' histories do not
// change: the caller calls sl_sampler_accept. SL_ERR_ARG: as sl_decode, or a session has no logits. SL_ERR_NOT_FINITE: a logit
// is NaN or infinite; the message names the layer, KV head and position of the first key that is not finite.
SL_API int sl_sample(sl_session *const *batch, int n, sl_sampler *const *samplers, int32_t *ids, sl_error *err);
// The same as sl_sample and then sl_decode of the sampled tokens. A session whose sampled token is an end token of the model
// does not change, and keeps its logits. On a GPU the call returns while the step still runs. After an error no session has
// changed. SL_ERR_CONTEXT: a session has no room for another token; this is an error even if the sampled token would be an end
// token (sl_sample does not need room).
SL_API int sl_step(sl_session *const *batch, int n, sl_sampler *const *samplers, int32_t *ids, sl_error *err);

// ---- structured output ----

typedef struct sl_grammar sl_grammar;

typedef enum sl_grammar_kind {
    SL_GRAMMAR_GBNF,        // text: the notation of llama.cpp, with a rule "root"
    SL_GRAMMAR_JSON_SCHEMA, // text: a schema in JSON. The answer is the JSON text of a value that the schema allows
    SL_GRAMMAR_JSON_OBJECT, // the answer is any JSON object; text is not read
    SL_GRAMMAR_REGEX,       // text: a regular expression that the whole answer matches
    SL_GRAMMAR_CHOICE       // text: a JSON list of strings. The answer is one of them
} sl_grammar_kind;

// Reads a grammar from text [n]; docs/structured-output.md has the dialects. SL_ERR_FORMAT: the text is malformed, or has what
// the dialect does not know; the message names line and column, or the place in a schema. SL_ERR_UNSUPPORTED: a keyword of a
// schema is not supported, the grammar is left-recursive or too large, or no text follows it.
SL_API int sl_grammar_new(sl_grammar_kind kind, const char *text, size_t n, sl_grammar **out, sl_error *err);
SL_API void sl_grammar_free(sl_grammar *g);

// ---- text in, text out ----

// Receives generated text piece by piece: text[0..n) of whole UTF-8 characters, without a NUL at its end. When it does not
// return 0, the generation ends with SL_STOP_CALLER. One more call can follow, with text that waited.
typedef int (*sl_text_fn)(void *ctx, const char *text, size_t n);

typedef enum sl_stop {
    SL_STOP_END,     // the model sampled an end token, or the grammar allows no further text
    SL_STOP_STRING,  // a stop string appeared; the text ends before it
    SL_STOP_LENGTH,  // max_tokens
    SL_STOP_CONTEXT, // the context is full
    SL_STOP_CALLER,  // sl_text_fn, sl_cancel or sl_stream_end asked to stop; the text so far is valid
    SL_STOP_ERROR    // the grammar cannot go on: sl_stream_error. sl_generate and chats return this error
} sl_stop;

typedef struct sl_generation {
    // A float that is NaN and an int that is SL_UNSET have the value of sl_model_sampling.
    sl_sampling sampling;
    // Attention of the decode steps, as in sl_engine_options; NULL: the engine's. What a method keeps beside K and V stays with
    // the engine, which has room for 32 kinds of it.
    const char *attn;
    int max_tokens;          // 0: until another reason to stop
    const char *const *stop; // [n_stop] stop strings
    int n_stop;
    // The session that sl_generate or a chat makes gets this sequence. A stream keeps the sequence of its session.
    uint32_t sequence;
    sl_progress progress; // sl_generate and chats report the prefill of a prompt here, in tokens
    // A stream records the log-probability of each token and of so many alternatives, 0 to SL_MAX_LOGPROBS. -1: it records
    // none. sl_generate and chats never record them.
    int n_logprobs;
    // Tokens are sampled only if the text then follows the grammar, or can still become a text that does. An end token is
    // sampled only where the text follows it. max_tokens and a stop string can end a text before. NULL: any text
    const sl_grammar *grammar;
    // The grammar begins behind this text of the answer, such as "</think>", and until then every token may come, an end token
    // too. Special tokens count as their strings. If the token that ends the text has more bytes, the grammar begins with them;
    // white space among them that the grammar does not allow is skipped. NULL: the grammar begins at once
    const char *grammar_after;
    // A stream guesses next tokens, and verifies several of them in one decode step. Text, ids, log-probabilities and logits
    // have the bits of a generation without drafts. "ngram[:min=3][:max=32]": copies what followed the longest end of the text,
    // of `min` to `max` tokens, that occurred before. "self[:attn=santa-is:S=64]": decodes with another attention method.
    // "model[:attn=dense]": decodes with the draft model of the engine. "ngram+self...", "ngram+model...": what promises more.
    // "auto": these, with two methods. The number of drafts adapts to the measured acceptance and times, between least=0 and
    // most=8. Attention that keeps a state from step to step is refused. NULL: no drafts
    const char *draft;
} sl_generation;

enum { SL_UNSET = -2147483647 - 1, SL_MAX_LOGPROBS = 20 };

// max_tokens 1024, n_logprobs -1; of the sampling, only presence_penalty and frequency_penalty (0: off) and the seed (0) are
// set.
SL_API sl_generation sl_generation_default(void);

typedef struct sl_generated {
    sl_stop stop;
    int n_prompt;    // tokens in the context before the generated ones
    int n_reused;    // of these, tokens whose KV rows were in the session already; sl_stream_begin: 0
    int n_generated; // tokens, without the end token
    int n_steps;     // decode steps; a step with accepted drafts makes several tokens
} sl_generated;

typedef struct sl_logprob {
    int32_t id;
    double at; // log-softmax of the model's logits, before penalties, biases and temperature
} sl_logprob;

typedef struct sl_token_logprobs {
    sl_logprob sampled, top[SL_MAX_LOGPROBS]; // top: [n_top] in falling order; of equal tokens the lowest id comes first
    int n_top;
} sl_token_logprobs;

// What the drafts of a generation came to.
typedef struct sl_draft_counts {
    uint64_t n_steps;                           // decode steps
    uint64_t n_drafts, n_ngram_drafts;          // of these, steps with drafts, and with drafts of the source ngram
    uint64_t n_draft_tokens, n_accepted_tokens; // drafts
    uint64_t accepted_at[SL_MAX_DRAFT];         // accepted drafts by their place in the step
} sl_draft_counts;

// One generation as an object, so that a program can run many side by side, take text as it comes, and end each when it wants.
// It samples tokens from the logits of its session, appends them to the session, and makes text of them, until a reason to
// stop. Three kinds of last token are not in the session: an end token of the model, the token at a limit (SL_STOP_LENGTH,
// SL_STOP_CONTEXT), and the token that completes a stop string. To continue after SL_STOP_LENGTH, append the last of
// sl_stream_ids with sl_prefill. A model without a tokenizer gives ids and no text.
typedef struct sl_stream sl_stream;

// options as in sl_generate, and copied. SL_ERR_ARG: stop strings or a grammar, but the model has no tokenizer. With
// options->attn the call runs the engine.
SL_API int sl_stream_new(sl_session *session, const sl_generation *options, sl_stream **out, sl_error *err);
SL_API void sl_stream_free(sl_stream *s);
// Sets the options of later generations. SL_ERR_ARG also while the stream runs. After an error the previous options stay.
SL_API int sl_stream_set_options(sl_stream *s, const sl_generation *options, sl_error *err);
// Begins a generation after the tokens of the session, which the penalties see. at_start: no text precedes the generated text,
// so a tokenizer of the SentencePiece kind omits the first blank. SL_ERR_ARG: a stream of this session runs already.
// SL_ERR_UNSUPPORTED: no token of the model can begin a text of the grammar.
SL_API int sl_stream_begin(sl_stream *s, int at_start, sl_error *err);
// Each running stream of the n streams makes one token, and with sl_generation.draft perhaps several. The streams belong to one
// engine, and at most n_sequences of them run. Their tokens do not depend on each other, and their attention may differ. It
// returns the errors of sl_sample and sl_step, and then no stream has changed. If memory is missing after the step, it returns
// SL_ERR_MEMORY, and the streams have ended. A stream whose grammar cannot go on ends with SL_STOP_ERROR, which is no error of
// the call.
SL_API int sl_streams_step(sl_stream *const *streams, int n, sl_error *err);
SL_API int sl_stream_is_running(const sl_stream *s); // 0: it has ended, or not begun
// The text that the last sl_streams_step with this stream completed: [*n] whole UTF-8 characters, without a NUL at its end. It
// is often empty: a character can need several tokens, and text that may begin a stop string waits. The results of this
// function and of the two last ones are valid until the next call with the stream.
SL_API const char *sl_stream_text(const sl_stream *s, size_t *n);
// Ends a running generation with SL_STOP_CALLER. sl_stream_text then has the text that waited. Does nothing otherwise.
SL_API int sl_stream_end(sl_stream *s, sl_error *err);
// SL_STOP_ERROR: why. SL_ERR_UNSUPPORTED: no token can go on with the text, or the grammar is too ambiguous. SL_ERR_ARG: the
// logit biases leave no token that the grammar allows, or the text behind grammar_after does not fit. SL_ERR_MEMORY
SL_API const sl_error *sl_stream_error(const sl_stream *s);
SL_API sl_generated sl_stream_result(const sl_stream *s); // the counts so far; its stop is valid once the stream has ended
// What the attention of the generation's decode steps read. SL_ERR_UNSUPPORTED on a GPU, whose kernels count for the whole
// batch.
SL_API int sl_stream_attention_work(const sl_stream *s, sl_attention_work *out, sl_error *err);
SL_API sl_draft_counts sl_stream_draft_counts(const sl_stream *s); // zeros without drafts
SL_API const int32_t *sl_stream_ids(const sl_stream *s, int *n);   // the sampled tokens [*n], an end token included
SL_API const sl_token_logprobs *sl_stream_logprobs(const sl_stream *s, int *n); // [*n]: one for each sampled token, or 0

// Continues a text in a session of its own. options NULL: the default. on_text NULL: the text is dropped. *result may be NULL.
// SL_ERR_CANCELLED: only before the first token; later the generation ends with SL_STOP_CALLER.
SL_API int sl_generate(sl_engine *engine, const char *prompt, const sl_generation *options, sl_text_fn on_text, void *ctx,
                       sl_generated *result, sl_error *err);

// ---- chat ----

typedef struct sl_chat sl_chat;

typedef struct sl_chat_options {
    const char *system_prompt; // NULL: none
    const char *template_name; // "llama3.1", "qwen3", ..., or the path of a Jinja file; NULL: the template of the model
    sl_generation generation;  // of every answer
    int parse_special;         // 1: special tokens inside messages are read; 0: they are text
} sl_chat_options;

typedef struct sl_message {
    const char *role; // "system", "user", "assistant"
    const char *content;
    size_t n; // bytes of content
} sl_message;

SL_API sl_chat_options sl_chat_options_default(void);
// options NULL: the default. The options are copied. The chat has one session of the engine.
SL_API int sl_chat_open(sl_engine *engine, const sl_chat_options *options, sl_chat **out, sl_error *err);
SL_API void sl_chat_free(sl_chat *chat);
// Adds a message of the user and generates the answer, which becomes the next message. The tokens that the new prompt shares
// with the session stay in the KV cache; only the others are prefilled. After an error the messages are unchanged.
SL_API int sl_chat_say(sl_chat *chat, const char *text, sl_text_fn on_text, void *ctx, sl_generated *result, sl_error *err);
// Answers the last message of the user. If it has an answer, the new one replaces it, and draws with the next sequence number.
// SL_ERR_ARG: there is no message of the user.
SL_API int sl_chat_again(sl_chat *chat, sl_text_fn on_text, void *ctx, sl_generated *result, sl_error *err);
SL_API int sl_chat_n_messages(const sl_chat *chat);
// Message i, valid until the messages change; content ends with a NUL. NULL: i is out of range.
SL_API const sl_message *sl_chat_message(const sl_chat *chat, int i);
// Replaces all messages, the system prompt included. The messages are copied. SL_ERR_ARG: a role is unknown.
SL_API int sl_chat_set_messages(sl_chat *chat, const sl_message *messages, int n, sl_error *err);
SL_API int sl_chat_reset(sl_chat *chat, sl_error *err); // back to the system prompt of the options
SL_API int sl_chat_set_generation(sl_chat *chat, const sl_generation *options, sl_error *err); // of later answers
SL_API sl_session *sl_chat_session(const sl_chat *chat); // owned by the chat; for its counts only

#ifdef __cplusplus
}
#endif

#endif
