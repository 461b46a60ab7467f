// engine/sleigh.h - the public interface of libsleigh: load a model, open sessions, prefill, decode.
//
//   sl_model    config, weights, tokenizer. Immutable, may be shared by engines and threads.
//   sl_engine   one device's KV pages, scratch memory and attention plan. One thread at a time.
//   sl_session  one mutable timeline: its tokens' KV rows and the logits that follow the last one. A batch is an array of
//               sessions of one engine, each with its own length.
//
// Functions return 0 or a negative sl_err with the reason in *err (engine/base/error.h).
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
    SL_MODEL_NO_TOKENIZER = 1, // leave the tokenizer out (a folder may not have one)
    SL_MODEL_DUMMY = 2, // random weights: of the folder only config.json is needed; a tokenizer is loaded where there is one
};

int sl_model_load(const char *dir, unsigned flags, sl_model **out, sl_error *err);
void sl_model_free(sl_model *model);
int sl_model_is_dummy(const sl_model *model);
// A dummy model has names and shapes alone, so that a GPU can make the weights where they are used
// (engine/backend/dummy_weights.h). This makes them in host memory, which an engine on the CPU needs; before the first engine.
// Progress is in MiB. Nothing to do for a model with weights. n_threads 0: every core; the same weights with any number.
int sl_model_materialise(sl_model *model, int n_threads, const sl_progress *progress, sl_error *err);
const sl_config *sl_model_config(const sl_model *model);
const sl_tokenizer *sl_model_tokenizer(const sl_model *model); // NULL: none
const struct sl_tensors *sl_model_tensors(const sl_model *model);
size_t sl_model_decode_bytes(const sl_model *model); // bytes of weights that one decode step reads
// Floating-point operations of a dense prefill of n tokens after n_from others, a multiply-add as two: what sl_prefill does,
// which leaves out the last layer of all tokens but the last.
double sl_model_prefill_flops(const sl_model *model, int n_from, int n);
int sl_model_is_eos(const sl_model *model, int32_t id);

// ---- engine ----

// 0 when sl_engine_options.device can be had here: SL_ERR_ARG for a name that is none, SL_ERR_DEVICE without such a GPU.
int sl_device_check(const char *device, sl_error *err);
int sl_device_is_gpu(const char *device); // 1: an engine on that device would run on a GPU
// "cpu", or the GPU's name as its driver gives it: what a calibration table is of (attention/auto.h).
int sl_device_name(const char *device, char *buf, size_t size, sl_error *err);
// What the bits of a result depend on there beside model and flags: the GPU's name, or the CPU's instruction set and the BLAS
// with the core type that it chose ("avx512, OpenBLAS 0.3.21 SkylakeX"; SLEIGH_ISA and OPENBLAS_CORETYPE force others).
int sl_device_arithmetic(const char *device, char *buf, size_t size, sl_error *err);

typedef struct sl_engine_options {
    int n_ctx;                   // tokens per sequence; 0: the least of the model's limit, what fits in memory and 32768
    int n_sequences;             // KV pages are reserved for this many sequences of n_ctx tokens; 0: 1
    int prefill_chunk;           // tokens of one prefill pass; 0: 512, on a GPU 2048
    const char *device;          // "auto" (a GPU where there is one), "cpu", "cuda", "cuda:1"; NULL: "cpu"
    const sl_progress *progress; // of weights on their way to a GPU; NULL: not wanted
    int n_threads;               // 0: every core
    uint32_t seed;               // of attention's draws
    const sl_attn_plan *attn;    // NULL: dense everywhere. Copied.
} sl_engine_options;

int sl_engine_new(const sl_model *model, const sl_engine_options *options, sl_engine **out, sl_error *err);
void sl_engine_free(sl_engine *engine); // after its sessions
int sl_engine_n_ctx(const sl_engine *engine);
int sl_engine_prefill_chunk(const sl_engine *engine); // tokens of one prefill pass
int sl_engine_set_attention(sl_engine *engine, const sl_attn_plan *plan, sl_error *err);
void sl_engine_describe(const sl_engine *engine, char *buf, size_t size); // "cpu: avx512bf16, 4 threads, OpenBLAS"
// Attention work done by decode steps since the last reset.
const sl_attn_stats *sl_engine_attn_stats(const sl_engine *engine);
void sl_engine_reset_stats(sl_engine *engine);

// For benches: steps from now on leave out these parts (SL_PART_... of engine/backend/backend.h), so that their logits mean
// nothing. 0: whole steps again. SL_ERR_UNSUPPORTED on the CPU.
int sl_engine_leave_out(sl_engine *engine, unsigned parts, sl_error *err);

// What one query head did in one decode step of one layer. Spec and report are lent for the call.
typedef struct sl_attn_record {
    uint32_t sequence, position, seed;
    int layer, head, n_kv;
    const sl_attn_spec *spec;
    const sl_attn_report *report;
} sl_attn_record;

typedef struct sl_observer {
    // Called within sl_decode, so it must not call the engine: layer by layer, first the running method's records
    // ([batch][head]), then those of each shadow and seed.
    void (*fn)(void *ctx, const sl_attn_record *record);
    void *ctx;
    int with_error; // fill the reports' error, cosine and bias: costs a dense step. Shadows imply it.
    // Shadows: methods that also run on the same queries and KV, with seeds seed, seed + 1, ...; their outputs are compared
    // with dense attention's and thrown away.
    const sl_attn_spec *shadows; // [n_shadows], copied
    int n_shadows, n_seeds;      // n_seeds 0: 1
} sl_observer;

// Observes every decode step from now on; NULL: no longer. Logits, statistics and the running method's state are the same to
// the bit with and without. SL_ERR_UNSUPPORTED or SL_ERR_MEMORY when a shadow cannot run here; the observer before stays then.
int sl_engine_observe(sl_engine *engine, const sl_observer *observer, sl_error *err);
// Largest n_ctx whose KV for n_sequences fits into the device's free memory beside the weights; 0: not even these. device: as
// in sl_engine_options.
int sl_engine_largest_ctx(const sl_model *model, const char *device, int n_sequences, int *n_ctx, sl_error *err);

// ---- session ----

// sequence: keys the random numbers of attention and of token sampling; the caller's own, never a batch slot.
int sl_session_new(sl_engine *engine, uint32_t sequence, sl_session **out, sl_error *err);
void sl_session_free(sl_session *s);
int sl_session_n_tokens(const sl_session *s);
uint32_t sl_session_sequence(const sl_session *s);
void sl_session_set_sequence(sl_session *s, uint32_t sequence);
// Forgets the tokens from n_tokens on. The logits are stale until the next prefill or decode.
int sl_session_truncate(sl_session *s, int n_tokens, sl_error *err);
// A new session that shares the first n_tokens of s.
int sl_session_fork(const sl_session *s, int n_tokens, uint32_t sequence, sl_session **out, sl_error *err);
// The same with rows of its own, for benches of memory traffic.
int sl_session_copy(const sl_session *s, int n_tokens, uint32_t sequence, sl_session **out, sl_error *err);
const float *sl_session_logits(const sl_session *s); // [n_vocab] after the last token
// SL_ERR_NOT_FINITE when one of them is NaN or infinite. The message names the first layer, KV head and position whose key is
// not finite. sl_sample and sl_step ask it of every row that they draw from.
int sl_session_check_logits(const sl_session *s, sl_error *err);

// Appends n tokens with dense attention, chunk by chunk. More tokens than the context holds: SL_ERR_CONTEXT, with both
// counts, and nothing is appended. The same logits to the bit whatever the chunk size.
int sl_prefill(sl_session *s, const int32_t *ids, int n, const sl_progress *progress, sl_error *err);
// The same, handing over the logits of every token: rows [first, first + n_rows) of [n][n_vocab]. A non-zero return of the
// callback stops and is returned.
typedef int (*sl_logits_fn)(void *ctx, int first, int n_rows, const float *logits, sl_error *err);
int sl_prefill_logits(sl_session *s, const int32_t *ids, int n, sl_logits_fn fn, void *ctx, const sl_progress *progress,
                      sl_error *err);
// One step: appends ids[i] to batch[i] with the plan's decode attention. All or none; a sequence's logits are equal to the
// bit alone and in any batch.
int sl_decode(sl_session *const *batch, int n, const int32_t *ids, sl_error *err);

// ---- the next token, and a step that begins with it ----

// Draws the token that follows each sequence from its logits, as sl_sampler_sample does with samplers[i]. ids: [n]. The logits
// must not be stale. Neither this nor sl_step tells the samplers what was drawn: sl_sampler_accept is the caller's.
// SL_ERR_ARG when n is out of the engine's range. SL_ERR_NOT_FINITE as sl_session_check_logits: no token is drawn then.
int sl_sample(sl_session *const *batch, int n, sl_sampler *const *samplers, int32_t *ids, sl_error *err);
// The same, and appends each token with one decode step of the batch, except those that are the model's end tokens (their
// sequences stay as they are, logits included). Leaves the state of sl_sample and sl_decode of the other tokens. On a GPU the
// tokens are handed back while the step still runs.
// All or none: after an error no sequence has changed. SL_ERR_ARG and SL_ERR_NOT_FINITE as sl_sample; SL_ERR_CONTEXT when a
// sequence has no room for another token, whatever it would draw (sl_sample still draws from it); SL_ERR_MEMORY when pages or
// method state run out.
int sl_step(sl_session *const *batch, int n, sl_sampler *const *samplers, int32_t *ids, sl_error *err);

// SL_ERR_IO with the file's name when a file of weights has changed since it was mapped: what was computed since may be wrong.
// A file that was cut short ends the process with SIGBUS before that, unless the program handles it, as the command line does.
int sl_model_check(const sl_model *model, sl_error *err);

// FNV-1a over the fp32 bytes of the logits.
uint64_t sl_logits_hash(const float *logits, int n_vocab);

#endif
