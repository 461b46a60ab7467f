// models/weights.h - the weights of a model: one list of tensors. The list serves to bind weights to files, to declare weights
// without files (dummy weights), to place weights on a backend, and to count their bytes.
//
// The architecture fills the list (sl_arch.declare). An entry has the name and the shape of a tensor, and points to a field of
// the architecture's struct of weights.
#ifndef SLEIGH_WEIGHTS_H
#define SLEIGH_WEIGHTS_H

#include "backend/backend.h"
#include "base/log.h"
#include "base/progress.h"
#include "models/config.h"
#include "models/cut.h"
#include "models/quant_config.h"
#include "models/recipe.h"

enum {
    SL_TENSOR_JOINED = 1, // lies directly behind the tensor declared before: one operation reads both (sl_backend.place)
    SL_TENSOR_LOOKUP = 2, // the embedding table: a decode step reads single rows
    SL_TENSOR_HEAD = 4,   // the output head
    // What a rank of a tensor-parallel run has of the tensor (sl_config.shard). Without a mark: all of it.
    SL_TENSOR_CUT_ROWS = 8,  // a part of the rows; of a vector: of the elements
    SL_TENSOR_CUT_COLS = 16, // a part of the columns: its products are parts of sums, which an operation with `accumulate` adds
};

typedef struct sl_model_tensor {
    sl_tensor_shape shape;    // name, rows, columns
    unsigned flags;           // SL_TENSOR_...
    sl_weight *weight;        // a member of `fields`
    const sl_weight *same_as; // tied embeddings: *weight is a copy of *same_as, without rows; NULL: a tensor of the files
    sl_recipe recipe;         // how *weight is made; with a cut: how `whole` is made
    sl_cut cut;               // what *weight is of the tensor of the files
    sl_weight whole;          // with a cut: the tensor of the files
} sl_model_tensor;

// The weight of all ranks.
static inline const sl_weight *sl_model_tensor_of_file(const sl_model_tensor *t) {
    return t->cut == SL_CUT_NOT ? t->weight : &t->whole;
}

typedef struct sl_model_weights {
    const sl_config *config; // not owned
    void *fields;            // the architecture's struct of sl_weight
    sl_rope rope;
    sl_model_tensor *tensors; // [n_tensors], in the order of declaration
    int n_tensors, capacity;
    int is_out_of_memory; // 1: an sl_model_weights_add failed
    int shares_rope;      // 1: rope belongs to another list
    char *made;           // [made_size] memory of the weights that recipes make; NULL: none, or not made yet
    size_t made_size;
} sl_model_weights;

// ---- for an architecture's declare ----

// Adds a tensor: a matrix [n_rows][n_cols], or with n_rows 0 a vector [n_cols]. The name is a printf format.
__attribute__((format(printf, 6, 7))) void sl_model_weights_add(sl_model_weights *w, sl_weight *to, int n_rows, int n_cols,
                                                                unsigned flags, const char *name, ...);
// *to becomes a copy of *from (tied embeddings). from: declared before. name: of the tensor that the files may have for `to`.
void sl_model_weights_tie(sl_model_weights *w, sl_weight *to, const sl_weight *from, unsigned flags, const char *name);

// ---- for the engine ----

// Fills the list of the config's architecture. The weights have no data.
int sl_model_weights_init(const sl_config *config, sl_model_weights *out, sl_error *err);
// For a config with tied embeddings, before the bind: if the files have a head of their own with other numbers, config->tied
// becomes 0. The head of the files is what the model was trained with, and transformers uses it too. Writes a line when the
// files have a head.
int sl_model_settle_tie(sl_config *config, const sl_tensors *tensors, const sl_log *log, sl_error *err);
// After the bind: SL_ERR_UNSUPPORTED when the files have a tensor that no weight binds. Buffers of RoPE and heads of
// multi-token prediction are left out, with a line. has_kv_scales: sl_quant.has_kv_scales
int sl_model_weights_check_unbound(const sl_model_weights *w, const sl_tensors *tensors, int has_kv_scales, const sl_log *log,
                                   sl_error *err);
// Binds every tensor to the files, and checks dtype, rank and dimensions. A linear layer that quant says is quantised, or is to
// be rounded, gets a recipe. quant NULL: none. config: of the whole model. It must outlive the weights. With a shard, the
// weights become its part: see models/cut.h for the errors.
int sl_model_weights_bind(const sl_config *config, const sl_tensors *tensors, const sl_quant *quant, sl_model_weights *out,
                          sl_error *err);
// For a model without files: makes *tensors with the names, shapes and dtype (BF16) of the list, and binds them. Their data is
// NULL.
int sl_model_weights_declare(const sl_config *config, const sl_quant *quant, sl_tensors **tensors, sl_model_weights *out,
                             sl_error *err);
// What a CPU multiplies the weights with; SL_ACT_FLOAT also if no weight takes integers.
sl_activations sl_model_weights_activations(const sl_model_weights *w);
int sl_model_weights_n_rounded_inputs(const sl_model_weights *w); // weights whose inputs a prefill on a GPU may round
// Allocates the memory of the recipes. Call it once.
int sl_model_weights_allocate(sl_model_weights *w, sl_error *err);
// Follows the recipe of tensor i. plain: the data of a dummy weight that is rounded or whose columns are cut; NULL: the files
// have it.
int sl_model_weights_make(sl_model_weights *w, int i, const void *plain, sl_error *err);
// Makes *placed, a copy of w whose data lies in the backend's memory. SL_ERR_MEMORY. Progress is in tensors. Writes a line when
// the backend makes bf16 of quantised weights.
int sl_model_weights_place(const sl_model_weights *w, const sl_backend *backend, const sl_progress *progress,
                           const sl_cancel *cancel, const sl_log *log, sl_model_weights *placed, sl_error *err);
size_t sl_model_weights_placed_bytes(const sl_model_weights *w, const sl_backend *backend); // that the placing allocates
// The same for a second list of a model whose first list is placed already: only the weights that were rounded get memory. The
// others, and the rotations, are those of `first`, which must outlive *placed. (A backend keeps one table of rotations.) Writes
// a line when the backend makes bf16 of rounded weights.
int sl_model_weights_place_rounded(const sl_model_weights *w, const sl_backend *backend, const sl_model_weights *first,
                                   const sl_cancel *cancel, const sl_log *log, sl_model_weights *placed, sl_error *err);
size_t sl_model_weights_rounded_bytes(const sl_model_weights *w, const sl_backend *backend); // that this placing allocates
void sl_model_weights_free(sl_model_weights *w);
int sl_model_weights_have_data(const sl_model_weights *w);       // 0: weights that are not made yet
size_t sl_model_weights_bytes(const sl_model_weights *w);        // bytes of all weights, in the formats that operations read
size_t sl_model_weights_decode_bytes(const sl_model_weights *w); // bytes that a decode step reads, in all ranks together
// Bytes of the matrices that a decode step reads, with their scales, as the backend stores them: of all layers, and of the
// output head.
void sl_model_weights_matrix_bytes(const sl_model_weights *w, const sl_backend *backend, size_t *layers, size_t *head);
size_t sl_model_weights_bytes_to_make(const sl_model_weights *w); // bytes of the recipes; 0: they are made

#endif
