// engine/engine.h - what Sleigh's commands, benches and tests need of models, engines and sessions, in addition to sleigh.h:
// attention plans, observation, statistics, timing of parts. The library does not export these functions.
#ifndef SLEIGH_ENGINE_H
#define SLEIGH_ENGINE_H

#include "attention/attention.h"
#include "backend/sampler.h"
#include "base/comm.h"
#include "base/error.h"
#include "base/progress.h"
#include "kv/kv_place.h"
#include "kv/kv_rows.h"
#include "models/config.h"
#include "tokenizer/tokenizer.h"

struct sl_tensors;
struct sl_model_weights;
struct sl_bit_file;
struct sl_bucket_file;

// ---- model ----

// A flag of sl_model_load, beside SL_MODEL_NO_TOKENIZER. Random weights: the folder needs config.json only; its tokenizer is
// loaded when it has one.
// SL_MODEL_PACKED: the packed weights of a GGUF file get no memory yet, for callers that need no weights, or that call
// sl_model_materialise.
enum { SL_MODEL_DUMMY = 2, SL_MODEL_PACKED = 4 };

// The same as sl_model_load for a rank of a tensor-parallel run, one of 1, 2, 4 or 8 processes that share a model: loads its
// part. comm: of these ranks; it outlives the model. NULL: no engine can use the part. All ranks make the same calls of their
// engines with the same arguments, and the callbacks `cancel` give the same answer. Then all get the same logits, with the bits
// of one process. SL_ERR_UNSUPPORTED: the model cannot be divided so.
int sl_model_load_part(const char *path, const sl_model_options *options, const sl_shard *shard, sl_comm *comm, sl_model **out,
                       sl_error *err);
int sl_model_is_dummy(const sl_model *model);
// Makes the weights of a dummy model, the packed weights of a GGUF file or the quantised weights of a folder in host memory.
// Call it before the first engine. An engine on a GPU makes dummy weights itself (backend/dummy_weights.h), unless they are
// rounded. Progress is in MiB, of a folder in tensors. n_threads 0: every core. The number of threads does not change the
// weights. Does nothing for a model with weights. cancel: not for a dummy model; may be NULL.
int sl_model_materialise(sl_model *model, int n_threads, const sl_progress *progress, const sl_cancel *cancel, sl_error *err);
const sl_config *sl_model_config(const sl_model *model);
const sl_tokenizer *sl_model_tokenizer(const sl_model *model); // NULL: no tokenizer
const struct sl_tensors *sl_model_tensors(const sl_model *model);
// Opens the bucket file in the model's folder (models/bucket_file.h, with its errors), which the caller closes. SL_ERR_ARG also
// for a model with random weights. SL_ERR_IO: the folder has no such file.
int sl_model_open_buckets(const sl_model *model, struct sl_bucket_file **out, sl_error *err);
int sl_model_open_bits(const sl_model *model, struct sl_bit_file **out, sl_error *err); // the same for the bit file
const struct sl_model_weights *sl_model_weight_list(const sl_model *model);             // models/weights.h
// FNV-1a of the tensors (sl_tensors_hash), and of the formats that sl_model_options asks for.
uint64_t sl_model_weights_hash(const sl_model *model);
size_t sl_model_decode_bytes(const sl_model *model); // bytes of weights that one decode step reads
// Floating-point operations of sl_prefill of n tokens after n_from others. A multiply-add counts as two. (sl_prefill skips most
// of the last layer for every token except the last.)
double sl_model_prefill_flops(const sl_model *model, int n_from, int n);

// ---- engine ----

// Fills the unset fields of *s (sl_generation.sampling): from generation_config.json of the model, else from *otherwise.
void sl_sampling_complete(const sl_model *model, const sl_sampling *otherwise, sl_sampling *s);
int sl_device_is_gpu(const char *device); // 1: an engine on that device would run on a GPU
// Writes a description of the arithmetic, because the bits of a result depend on the arithmetic as well as on model and flags.
// On a GPU, writes the GPU's name. On the CPU, writes the instruction set, which the environment variable SLEIGH_ISA chooses.
int sl_device_arithmetic(const char *device, char *buf, size_t size, sl_error *err);

// sl_engine_new and sl_engine_set_attention with a plan, which can have another method in each layer. The plan is copied. plan
// NULL: options->attn in every layer.
int sl_engine_new_planned(const sl_model *model, const sl_engine_options *options, const sl_attn_plan *plan, sl_engine **out,
                          sl_error *err);
int sl_engine_set_plan(sl_engine *engine, const sl_attn_plan *plan, sl_error *err);
// sl_session_save and sl_session_load with the messages of a conversation, in JSON. save: [n] bytes of text; NULL: none. load:
// the text is appended to *messages, nothing if the file has none; messages NULL: not wanted.
int sl_session_save_chat(const sl_session *s, const char *path, const sl_text *messages, const sl_progress *progress,
                         sl_error *err);
int sl_session_load_chat(sl_engine *engine, const char *path, sl_session **out, sl_text *messages, const sl_progress *progress,
                         sl_error *err);
// Whether generations with these methods of decode steps can have these drafts (sl_generation.draft); attn NULL: only the text
// is checked. Does not run the engine, so another thread may call it meanwhile. SL_ERR_ARG: the text is malformed, or asks for
// more drafts than n_draft. SL_ERR_UNSUPPORTED: a method keeps a state from step to step. Errors of sl_attn_parse.
int sl_engine_check_draft(const sl_engine *engine, const char *draft, const sl_attn_plan *attn, sl_error *err);
int sl_engine_n_draft(const sl_engine *engine);
// Waits until all ranks that share the model have called it. Without ranks it returns at once.
void sl_engine_meet(const sl_engine *engine);
// 1: generations with this method can have drafts on a CPU, but not on a GPU, where the method keeps a state from step to step.
int sl_draft_needs_cpu(const sl_attn_spec *spec);
const sl_kv_layout *sl_engine_kv_layout(const sl_engine *engine); // where K and V lie
sl_kv_formats sl_engine_kv_formats(const sl_engine *engine);      // how their numbers are stored
// The same as sl_engine_largest_ctx, for o->device, o->n_sequences (0: 1) and the formats of the KV cache of *o.
int sl_engine_largest_ctx_with(const sl_model *model, const sl_engine_options *o, int *n_ctx, sl_error *err);
// The same as sl_engine_largest_ctx with kv_cache "host", for o->attn, o->n_sequences and the memory limits of *o. 0: not
// offered on this device or for this method.
int sl_engine_largest_ctx_offloaded(const sl_model *model, const sl_engine_options *o, int *n_ctx, sl_error *err);
// The bucket file, which the engine maps for the first method that needs it; NULL: no method has needed it.
const struct sl_tensors *sl_engine_bucket_tensors(const sl_engine *engine);
const struct sl_tensors *sl_engine_bit_tensors(const sl_engine *engine); // the same of the bit file
// Tokens of the first pass of sl_prefill(session, ids, n). Calls of sl_prefill that end where passes end give the bits of one
// call.
int sl_session_next_pass(const sl_session *session, int n);
// Sets the method that each layer prefills with: dense, or a method with sl_attn_ops.mask or .skip_distance. The plan is
// copied. If a layer is not dense, a prefill runs in segments of `segment` tokens, which begin at multiples of `segment`, layer
// by layer (sl_batch.segment). prefill_chunk divides the work of a layer, and does not change a bit. After an error the
// previous methods stay. SL_ERR_ARG: a method does not prefill; prefill_chunk or segment is less than 128. SL_ERR_UNSUPPORTED:
// the device does not offer a method. SL_ERR_MEMORY
int sl_engine_set_prefill(sl_engine *engine, const sl_attn_plan *plan, int segment, sl_error *err);
// What a query head did in sparse prefills. A share is in units of 2^-24; below 0: of no row.
typedef struct sl_prefill_report {
    uint64_t visited, causal; // key blocks that were visited, and those that dense attention visits
    int32_t kept;      // the estimated CRA: the least share of a row's mass that the mask kept, of rows that the method read
    int32_t measured;  // the measured CRA: the same of the checked rows
    uint64_t n_errors; // checked rows
    double errors, error_max; // |out - dense| / |dense| of their outputs: sum and maximum
} sl_prefill_report;
static inline double sl_prefill_share(int32_t share) { // NaN: of no row
    return share < 0 ? NAN : share * 0x1p-24;
}
static inline double sl_prefill_density(const sl_prefill_report *r) { // NaN: no sparse prefill
    return r->causal ? (double)r->visited / (double)r->causal : NAN;
}
static inline double sl_prefill_error(const sl_prefill_report *r) { // the mean; NaN: no row was checked
    return r->n_errors ? r->errors / (double)r->n_errors : NAN;
}
void sl_prefill_report_add(sl_prefill_report *to, const sl_prefill_report *from); // sums, least shares, greatest error
sl_prefill_report sl_prefill_report_none(void);
// Since the last reset: of a head, and of all layers and heads together.
sl_prefill_report sl_engine_prefill_report(const sl_engine *engine, int layer, int head);
sl_prefill_report sl_engine_prefill_total(const sl_engine *engine);
// One head in one segment of a sparse prefill.
typedef struct sl_prefill_record {
    uint32_t sequence;
    int position, n_tokens; // of the segment: its first token, and their number
    int layer, head;
    const sl_attn_spec *spec;
    const sl_prefill_report *report;
} sl_prefill_record;
typedef struct sl_prefill_observer {
    void (*fn)(void *ctx, const sl_prefill_record *record); // after each segment, layer by layer; NULL: only the reports
    void *ctx;
    int n_rows; // rows of each segment to check, at equal distances, the last row among them. 0: none. At most all are checked
} sl_prefill_observer;
// Observes every later sparse prefill; NULL: stops observing. An observer changes no bit. SL_ERR_MEMORY: the previous observer
// stays.
int sl_engine_observe_prefill(sl_engine *engine, const sl_prefill_observer *observer, sl_error *err);
// How many of its first n tokens a session may keep for another prompt that begins with these tokens. Rows of dense prefills
// and of decode steps depend only on the tokens before them. Rows of a segment of a sparse prefill depend on the whole segment,
// so a segment is kept whole or not at all.
// n_prefill >= 0: the prompt is prefilled up to token n_prefill, and its rows must be those of a session without other tokens
// before. So the function keeps only segments that such a prefill has too, with the methods that are set. SL_CONTINUES: the
// session continues a conversation, and keeps each segment that it has read to the end.
enum { SL_CONTINUES = -1 };
int sl_session_reusable(const sl_session *session, int n, int n_prefill);
int sl_session_common(const sl_session *session, const int32_t *ids, int n); // length of the common prefix
// How many tokens the session keeps for the prompt ids[0..n), n >= 1: of the common prefix those that sl_session_reusable
// allows. If n_prefill is not SL_CONTINUES, it keeps only prefilled tokens, and all n only if it has the logits that such a
// prefill leaves.
int sl_session_keep(const sl_session *session, const int32_t *ids, int n, int n_prefill);
int sl_session_n_prefilled(const sl_session *session); // the first tokens, up to the first that a decode step appended
// Pages of the KV cache that n sessions of one engine hold. A page that several of them share counts once.
int sl_sessions_n_pages(const sl_session *const *sessions, int n);
// The work of attention in decode steps since the last reset.
const sl_attn_stats *sl_engine_attn_stats(const sl_engine *engine);
void sl_engine_reset_stats(sl_engine *engine);

// For benches: later steps skip these parts (SL_PART_... of backend/backend.h). The logits of such steps are
// meaningless. 0: later steps are complete again. SL_ERR_UNSUPPORTED on the CPU.
int sl_engine_skip_parts(sl_engine *engine, unsigned parts, sl_error *err);

// For benches: runs the matrices of the layers in the next decode step of n sessions, and then the output head of their rows.
// Attention does not run, and the parts that sl_engine_skip_parts names do not either. The sessions keep their tokens and
// logits. `mark` is called before the layers, between layers and head, and after the head, with the stream of the device
// (sl_backend.stream); NULL: the CPU. On a device, layers and head are a recording each, and both run once more before the
// first mark. So the device does not wait for the host after a mark. Errors of sl_decode.
int sl_run_linear(sl_session *const *batch, int n, void (*mark)(void *ctx, void *stream), void *ctx, sl_error *err);
// Bytes of these matrices, with their scales, as they lie in the memory of the engine's device.
void sl_engine_linear_bytes(const sl_engine *engine, size_t *layers, size_t *head);

// For benches: one decode pass over the next tokens ids[0..n) of each session, which it appends with the bits of n steps. n: 1
// to 1 + n_draft. SL_ERR_ARG also: the tokens do not lie in one page of the cache, or some of their rows attend exactly and
// some do not (exact_below). SL_ERR_UNSUPPORTED: a method keeps a state from step to step. Errors of sl_decode.
int sl_decode_rows(sl_session *const *batch, int n_seqs, const int32_t *ids, int n, sl_error *err);

// For benches: of the rows that later steps draw, `share` counts as found in the cache of hot rows, whatever the cache holds.
// The logits of such steps are meaningless. Below 0: steps look rows up again. SL_ERR_ARG: there is no such cache.
int sl_engine_impose_hits(sl_engine *engine, double share, sl_error *err);

// How dense attention spreads its mass p over the rows in one decode step of one query head. The distance of the newest row is
// 0.
enum { SL_PROFILE_SINK = 4, SL_PROFILE_WINDOW = 256 };
typedef struct sl_attn_spread {
    double keys_entropy, keys_squares;     // effective keys: exp(-sum p ln p), and 1 / sum p^2
    double sink, window;                   // mass of the first 4 rows, and of the last 256 rows
    double distance_mean, distance_median; // sum p * distance; the least distance within which half of the mass lies
    double rows_90;                        // the fewest rows that hold 90% of the mass
} sl_attn_spread;

// What one query head did in one decode step of one layer. spec, report and profile are valid during the call only.
typedef struct sl_attn_record {
    uint32_t sequence, position, seed;
    int layer, head, n_kv;
    const sl_attn_spec *spec;
    const sl_attn_report *report;
    const sl_attn_spread *profile; // of dense attention on the step's state; NULL: a shadow's record, or not wanted
} sl_attn_record;

typedef struct sl_observer {
    // sl_decode and sl_step call fn, so fn must not call the engine. Records come layer by layer, for the sessions of each plan
    // in turn. Within a layer, the records of the running method ([batch][head]) come first, then the records of each shadow
    // and seed.
    void (*fn)(void *ctx, const sl_attn_record *record);
    void *ctx;
    int with_error;   // 1: fill error, cosine and bias of the reports; this costs a dense step. Set with shadows.
    int with_profile; // 1: fill profile of the running method's records; this costs a pass over all keys
    // Shadows are methods that also run on the same queries and KV, with seeds seed, seed + 1, ... Their outputs are compared
    // with dense attention's outputs, and not used otherwise.
    const sl_attn_spec *shadows; // [n_shadows], copied
    int n_shadows, n_seeds;      // n_seeds 0: 1
} sl_observer;

// Observes every later decode step; NULL: stops observing. An observer changes no bit of the logits, the statistics and the
// running method's state. SL_ERR_UNSUPPORTED or SL_ERR_MEMORY: a shadow cannot run on this engine, and the previous observer
// stays.
int sl_engine_observe(sl_engine *engine, const sl_observer *observer, sl_error *err);

// ---- session ----

// The same as sl_session_fork, but the new session gets a copy of every page. For benches of memory traffic.
int sl_session_copy(const sl_session *s, int n_tokens, uint32_t sequence, sl_session **out, sl_error *err);
// Gives an empty session n rows of normal random numbers (deviation 1) in every layer, which depend on the sequence. For
// benches: only the time of later steps has a meaning. The session has no logits until the next sl_decode.
int sl_session_fill(sl_session *s, int n, sl_error *err);
// Attention of the session's decode steps draws with this seed. A new session has the engine's. What a method keeps with pages
// depends on the engine's seed (the hash functions of magicpig).
void sl_session_set_seed(sl_session *s, uint32_t seed);
// The logits of the last prefill or step, for a hash of a run. A session that was cut since has them too; an empty one has
// zeros.
const float *sl_session_last_logits(const sl_session *s);
// SL_ERR_NOT_FINITE when a logit is NaN or infinite. The message names the layer, KV head and position of the first key that is
// not finite. sl_sample and sl_step check the logits of every session in the same way. SL_ERR_ARG: as sl_session_logits.
int sl_session_check_logits(const sl_session *s, sl_error *err);
// The same as sl_prefill, and calls fn with the logits of every token, in groups: rows [first, first + n_rows) of [n][n_vocab].
// When fn does not return 0, the prefill stops and returns the value of fn.
typedef int (*sl_logits_fn)(void *ctx, int first, int n_rows, const float *logits, sl_error *err);
int sl_prefill_logits(sl_session *s, const int32_t *ids, int n, sl_logits_fn fn, void *ctx, const sl_progress *progress,
                      sl_error *err);
// FNV-1a over the fp32 bytes of the logits.
uint64_t sl_logits_hash(const float *logits, int n_vocab);

#endif
