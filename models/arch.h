// models/arch.h - the table of a model architecture, and the input of one pass.
//
// An architecture is one const sl_arch in one file (models/llama.c), and a word in the list of models/arch.c. The table says
// which config.json it reads, which tensors it has, how much scratch memory a pass needs, and how token ids become logits. The
// engine reaches an architecture through its table only. docs/add-an-architecture.md shows how to add one.
#ifndef SLEIGH_ARCH_H
#define SLEIGH_ARCH_H

#include "backend/backend.h"
#include "kv/kv.h"
#include "models/config.h"
#include "models/weights.h"

struct sl_json_file;
typedef struct sl_batch sl_batch;

// ---- the input of one pass: a chunk of a prefill, or a decode step ----

// Consecutive rows of one session within a pass. A chunk of a prefill is one range of many rows. A decode step is a range for
// each session: of its next token, and of the drafts that follow. On a device, a pass of a dense prefill may have ranges of
// several sessions. The engine makes no pass of both kinds.
typedef struct sl_row_range {
    struct sl_session *session; // only the engine reads it
    int first, n_rows;          // rows [first, first + n_rows) of the batch
    int position;               // of row `first`; the next rows follow
    int is_decode; // 1: rows that attend with the session's plan, each to its own past. 0: prefill, dense attention
} sl_row_range;

struct sl_batch {
    const sl_model_weights *weights;
    const sl_backend *backend;
    void *scratch; // arch->scratch_size(config, backend, max_rows) bytes of the backend's memory
    int max_rows;
    // sl_segment_size(config, backend, n) bytes of the backend's memory (models/pass.h), n >= n_rows: the pass is a segment of
    // a prefill. It goes layer by layer: all rows' queries and keys, then `propose`, then the rest of the layer, in parts of
    // max_rows rows. NULL: a pass of at most max_rows rows.
    void *segment;
    int n_rows;
    const int32_t *ids; // [n_rows], the backend's memory
    const sl_row *rows; // [n_rows], the backend's memory
    const sl_kv_pool *kv;
    int n_ranges;
    const sl_row_range *ranges; // [n_ranges], ascending; together they are rows [0, n_rows)
    sl_linear_mode mode;        // of the layers' linear operations. On the CPU SL_LINEAR_PREFILL needs a batch of one range
    // Attention of rows [first, first + n) in one layer, after their K and V are stored. out: act [n][n_heads * head_dim]. The
    // engine's runner for the backend: engine/attend/attn_runner_host.c, engine/attend/attn_runner_cuda.c.
    void (*attend)(const sl_batch *batch, int layer, int first, int n, sl_queries q, void *out);
    // Returns where the pass stores K and V of a layer. Called before the first qkv of each layer, layer by layer. NULL: the
    // layer of `kv`
    sl_kv_rows (*open_layer)(const sl_batch *batch, int layer);
    // Called once in a layer that attends, before attend, with the queries of all rows, also of rows that do not attend. NULL:
    // not called
    void (*propose)(const sl_batch *batch, int layer, sl_queries q);
    // Calls of attend in a layer begin and end at positions that are multiples of attend_step, where rows of the batch have
    // such positions. At most max_rows
    int attend_step;
    // Logits of n_out rows: of rows out_rows [n_out], or, if out_rows is NULL, of the last ones. n_out 0: the pass fills the KV
    // cache only.
    int n_out;
    const int *out_rows;
    sl_linear_mode logits_mode; // of lm_head
    float *logits;              // [n_out][n_vocab], the backend's memory; NULL: the caller calls arch->logits afterwards
    // Of a rank whose output head has a part of the vocabulary: out has room for [n][n_vocab] and begins with the logits of the
    // part, [n][n_vocab / ranks], which become those of all ranks. NULL: the head is whole
    void (*gather_logits)(const sl_batch *batch, int n, float *out);
};

// ---- an architecture ----

typedef struct sl_arch {
    const char *model_type;   // field model_type of config.json: "llama"
    const char *architecture; // the first word of its field architectures: "LlamaForCausalLM"
    // Reads and checks the fields of config.json (models/config_fields.h). *c holds the defaults, and arch.
    // Refuses by name every field that changes the arithmetic and that this architecture does not understand.
    int (*read_config)(const struct sl_json_file *f, sl_config *c, sl_error *err);
    // The struct of sl_weight that forward reads: its bytes for this config, and the list of its tensors
    // (sl_model_weights_add). From this list weights are bound to files, made (dummy weights), placed on a backend and counted.
    size_t (*weights_size)(const sl_config *c);
    void (*declare)(sl_model_weights *w);
    size_t (*scratch_size)(const sl_config *c, const sl_backend *be, int max_rows); // bytes of a pass of up to max_rows rows
    // Runs a pass: embeds the ids, runs the layers, which store K and V, and writes batch->logits. On a device it queues the
    // operations. What it queues depends on the numbers in *batch only, never on a sequence's length.
    void (*forward)(const sl_batch *batch);
    // After forward with logits NULL: the final norm and lm_head of rows [first, first + n) of the n_out rows, to
    // out [n][n_vocab]. For callers that want more rows of logits than they have memory for at once.
    void (*logits)(const sl_batch *batch, int first, int n, float *out);
} sl_arch;

const sl_arch *sl_arch_find(const char *model_type); // NULL: unknown
// `"llama", "mistral"`, for messages.
void sl_arch_list(char *buf, size_t size);

#endif
