// engine/sleigh.h - the public interface of libsleigh: load a model, open sessions, prefill, decode.
//
//   sl_model    config, weights, tokenizer. Immutable. Engines and threads may share it.
//   sl_engine   the KV pages, scratch memory and attention plan of one device. One thread at a time.
//   sl_session  one mutable timeline: the KV rows of its tokens, and the logits after the last token. A batch is an array of
//               sessions of one engine, of any lengths.
//
// Functions return 0, or a negative sl_err with the reason in *err (engine/base/error.h).
#ifndef SLEIGH_H
#define SLEIGH_H

#include "attention/attention.h"
#include "engine/base/error.h"
#include "engine/base/progress.h"
#include "engine/backend/sampler.h"
#include "models/config.h"
#include "tokenizer/tokenizer.h"

#include <stddef.h>
#include <stdint.h>

#define SLEIGH_VERSION "0.1.0"

typedef struct sl_model sl_model;
typedef struct sl_engine sl_engine;
typedef struct sl_session sl_session;
struct sl_tensors;

// ---- model ----

enum {
    SL_MODEL_NO_TOKENIZER = 1, // do not load the tokenizer, which a folder may lack
    SL_MODEL_DUMMY = 2,        // random weights: the folder needs config.json only; its tokenizer is loaded when it has one
};

int sl_model_load(const char *dir, unsigned flags, sl_model **out, sl_error *err);
void sl_model_free(sl_model *model);
int sl_model_is_dummy(const sl_model *model);
// Makes the weights of a dummy model in host memory. Call it before the first engine on the CPU; a GPU makes its weights itself
// (engine/backend/dummy_weights.h). Progress is in MiB. n_threads 0: every core. The number of threads does not change the
// weights. Does nothing for a model with weights.
int sl_model_materialise(sl_model *model, int n_threads, const sl_progress *progress, sl_error *err);
const sl_config *sl_model_config(const sl_model *model);
const sl_tokenizer *sl_model_tokenizer(const sl_model *model); // NULL: no tokenizer
const struct sl_tensors *sl_model_tensors(const sl_model *model);
size_t sl_model_decode_bytes(const sl_model *model); // bytes of weights that one decode step reads
// Floating-point operations of sl_prefill of n tokens after n_from others. A multiply-add counts as two. (sl_prefill skips most
// of the last layer for every token except the last.)
double sl_model_prefill_flops(const sl_model *model, int n_from, int n);
int sl_model_is_eos(const sl_model *model, int32_t id);

// ---- engine ----

// Checks a name for sl_engine_options.device: SL_ERR_ARG when it is not a device name, SL_ERR_DEVICE when there is no such GPU.
int sl_device_check(const char *device, sl_error *err);
int sl_device_is_gpu(const char *device); // 1: an engine on that device would run on a GPU
// Writes "cpu", or the GPU's name from its driver. Calibration tables carry this name (attention/auto.h).
int sl_device_name(const char *device, char *buf, size_t size, sl_error *err);
// Writes a description of the arithmetic, because the bits of a result depend on the arithmetic as well as on model and flags.
// On a GPU, writes the GPU's name. On the CPU, writes the instruction set and the BLAS with its core type: "avx512, OpenBLAS
// 0.3.21 SkylakeX". The environment variables SLEIGH_ISA and OPENBLAS_CORETYPE choose the instruction set and the core type.
int sl_device_arithmetic(const char *device, char *buf, size_t size, sl_error *err);

typedef struct sl_engine_options {
    int n_ctx;          // tokens of a session; 0: the least of 32768, the model's limit and the most that fits in memory
    int n_sequences;    // KV pages are reserved for this many sessions of n_ctx tokens; 0: 1
    int prefill_chunk;  // tokens of one prefill pass; 0: 512, on a GPU 2048
    const char *device; // "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1"; NULL: "cpu"
    const sl_progress *progress; // of the upload of weights to a GPU, in tensors; NULL: no reports
    int n_threads;               // 0: every core
    uint32_t seed;               // of attention's draws
    const sl_attn_plan *attn;    // NULL: dense everywhere. Copied.
} sl_engine_options;

int sl_engine_new(const sl_model *model, const sl_engine_options *options, sl_engine **out, sl_error *err);
void sl_engine_free(sl_engine *engine); // free its sessions first
int sl_engine_n_ctx(const sl_engine *engine);
int sl_engine_prefill_chunk(const sl_engine *engine); // tokens of one prefill pass
// Sets the plan of all sessions of the engine, from their next decode step on. NULL: dense everywhere. The plan is copied.
// After an error the previous plan stays.
int sl_engine_set_attention(sl_engine *engine, const sl_attn_plan *plan, sl_error *err);
void sl_engine_describe(const sl_engine *engine, char *buf, size_t size); // "cpu: avx512bf16, 4 threads, OpenBLAS"
// The work of attention in decode steps since the last reset.
const sl_attn_stats *sl_engine_attn_stats(const sl_engine *engine);
void sl_engine_reset_stats(sl_engine *engine);

// For benches: later steps skip these parts (SL_PART_... of engine/backend/backend.h). The logits of such steps are
// meaningless. 0: later steps are complete again. SL_ERR_UNSUPPORTED on the CPU.
int sl_engine_skip_parts(sl_engine *engine, unsigned parts, sl_error *err);

// What one query head did in one decode step of one layer. spec and report are valid during the call only.
typedef struct sl_attn_record {
    uint32_t sequence, position, seed;
    int layer, head, n_kv;
    const sl_attn_spec *spec;
    const sl_attn_report *report;
} sl_attn_record;

typedef struct sl_observer {
    // sl_decode and sl_step call fn, so fn must not call the engine. Records come layer by layer. Within a layer, the records
    // of the running method ([batch][head]) come first, then the records of each shadow and seed.
    void (*fn)(void *ctx, const sl_attn_record *record);
    void *ctx;
    int with_error; // 1: fill error, cosine and bias of the reports; this costs a dense step. Set with shadows.
    // Shadows are methods that also run on the same queries and KV, with seeds seed, seed + 1, ... Their outputs are compared
    // with dense attention's outputs, and not used otherwise.
    const sl_attn_spec *shadows; // [n_shadows], copied
    int n_shadows, n_seeds;      // n_seeds 0: 1
} sl_observer;

// Observes every later decode step; NULL: stops observing. An observer changes no bit of the logits, the statistics and the
// running method's state. SL_ERR_UNSUPPORTED or SL_ERR_MEMORY: a shadow cannot run on this engine, and the previous observer
// stays.
int sl_engine_observe(sl_engine *engine, const sl_observer *observer, sl_error *err);
// *n_ctx: the largest context for which weights, scratch memory and the KV of n_sequences fit into the device's free memory; 0:
// the weights do not fit. device: as in sl_engine_options.
int sl_engine_largest_ctx(const sl_model *model, const char *device, int n_sequences, int *n_ctx, sl_error *err);

// ---- session ----

// sequence: keys the random numbers of attention and of token sampling. The caller chooses it; it is never a batch index.
int sl_session_new(sl_engine *engine, uint32_t sequence, sl_session **out, sl_error *err);
void sl_session_free(sl_session *s);
int sl_session_n_tokens(const sl_session *s);
uint32_t sl_session_sequence(const sl_session *s);
void sl_session_set_sequence(sl_session *s, uint32_t sequence);
// Keeps the first n_tokens tokens. The logits are stale until the next prefill or decode.
int sl_session_truncate(sl_session *s, int n_tokens, sl_error *err);
// A new session that shares the first n_tokens of s.
int sl_session_fork(const sl_session *s, int n_tokens, uint32_t sequence, sl_session **out, sl_error *err);
// The same as sl_session_fork, but the new session gets a copy of every page. For benches of memory traffic.
int sl_session_copy(const sl_session *s, int n_tokens, uint32_t sequence, sl_session **out, sl_error *err);
const float *sl_session_logits(const sl_session *s); // [n_vocab] after the last token
// SL_ERR_NOT_FINITE when a logit is NaN or infinite. The message names the layer, KV head and position of the first key that is
// not finite. sl_sample and sl_step check the logits of every session in the same way.
int sl_session_check_logits(const sl_session *s, sl_error *err);

// Appends n tokens with dense attention, chunk by chunk. SL_ERR_CONTEXT when the context has no room for n tokens; the message
// gives both counts, and nothing is appended. The chunk size does not change a bit of the logits.
int sl_prefill(sl_session *s, const int32_t *ids, int n, const sl_progress *progress, sl_error *err);
// The same as sl_prefill, and calls fn with the logits of every token, in groups: rows [first, first + n_rows) of [n][n_vocab].
// When fn does not return 0, the prefill stops and returns the value of fn.
typedef int (*sl_logits_fn)(void *ctx, int first, int n_rows, const float *logits, sl_error *err);
int sl_prefill_logits(sl_session *s, const int32_t *ids, int n, sl_logits_fn fn, void *ctx, const sl_progress *progress,
                      sl_error *err);
// One step: appends ids[i] to batch[i] with the decode attention of the plan. After an error no session has changed. The logits
// of a session have equal bits in every batch.
int sl_decode(sl_session *const *batch, int n, const int32_t *ids, sl_error *err);

// ---- token sampling, and a step that begins with it ----

// Samples the next token of each session from the session's logits, as sl_sampler_sample does with samplers[i]. ids: [n]. The
// logits must not be stale. sl_sample and sl_step do not add the token to the samplers' histories: the caller calls
// sl_sampler_accept. SL_ERR_ARG: the engine does not take batches of n sessions. SL_ERR_NOT_FINITE: as sl_session_check_logits;
// no token is sampled.
int sl_sample(sl_session *const *batch, int n, sl_sampler *const *samplers, int32_t *ids, sl_error *err);
// The same as sl_sample and then sl_decode of the sampled tokens. A session whose sampled token is an end token of the model
// does not change, and keeps its logits. On a GPU the call returns while the step still runs. After an error no session has
// changed. SL_ERR_ARG, SL_ERR_NOT_FINITE: as sl_sample. SL_ERR_CONTEXT: a session has no room for another token; this is an
// error even if the sampled token would be an end token (sl_sample does not need room). SL_ERR_MEMORY: no memory for pages or
// for the state of methods.
int sl_step(sl_session *const *batch, int n, sl_sampler *const *samplers, int32_t *ids, sl_error *err);

// SL_ERR_IO with the file's name when a file of weights has changed since it was mapped: later results may be wrong. When a
// file has become shorter, a read of the weights raises SIGBUS. SIGBUS ends the process, unless the program handles the signal;
// the command line handles it.
int sl_model_check(const sl_model *model, sl_error *err);

// FNV-1a over the fp32 bytes of the logits.
uint64_t sl_logits_hash(const float *logits, int n_vocab);

#endif
