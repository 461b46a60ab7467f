// models/weights.h - the weights of a model: one list of tensors, from which they are bound to the files, declared without
// files (dummy weights), brought to a backend, and counted.
//
// The architecture fills the list (sl_arch.declare). Every entry has the name and the shape of a tensor, and the field of the
// architecture's struct where the weight goes.
#ifndef SLEIGH_WEIGHTS_H
#define SLEIGH_WEIGHTS_H

#include "engine/backend/backend.h"
#include "engine/base/progress.h"
#include "models/config.h"
#include "models/safetensors.h"

enum {
    SL_TENSOR_JOINED = 1, // one operation reads it together with the tensor declared before: both lie in one block (place)
    SL_TENSOR_LOOKUP = 2, // a decode step reads single rows of it: the embedding table
};

typedef struct sl_model_tensor {
    sl_tensor_shape shape;    // name, rows, columns
    unsigned flags;           // SL_TENSOR_...
    sl_weight *weight;        // where it goes, in `fields`
    const sl_weight *same_as; // the weight is another one again (tied embeddings); NULL: a tensor of the files
} sl_model_tensor;

typedef struct sl_model_weights {
    const sl_config *config; // not owned
    void *fields;            // the architecture's struct of sl_weight
    sl_rope rope;
    sl_model_tensor *tensors; // [n_tensors], in the order of declaration
    int n_tensors, capacity;
    int is_out_of_memory; // while tensors were added
} sl_model_weights;

// ---- for an architecture's declare ----

// Adds a tensor: a matrix [n_rows][n_cols], or with n_rows 0 a vector [n_cols]. The name is a printf format.
__attribute__((format(printf, 6, 7))) void sl_model_weights_add(sl_model_weights *w, sl_weight *to, int n_rows, int n_cols,
                                                                unsigned flags, const char *name, ...);
// *to is *from again, which is declared already.
void sl_model_weights_tie(sl_model_weights *w, sl_weight *to, const sl_weight *from);

// ---- for the engine ----

// Binds every tensor to the files, with dtype, rank and dimensions checked. config must outlive the weights.
int sl_model_weights_bind(const sl_config *config, const sl_tensors *tensors, sl_model_weights *out, sl_error *err);
// Declares the tensors that a bind would look for, and binds them: names, dtypes (BF16) and shapes, data NULL.
int sl_model_weights_declare(const sl_config *config, sl_tensors **tensors, sl_model_weights *out, sl_error *err);
// Brings weights where a backend wants them: *placed has weights whose data are the backend's. SL_ERR_MEMORY. Progress is in
// tensors.
int sl_model_weights_place(const sl_model_weights *w, const sl_backend *backend, const sl_progress *progress,
                           sl_model_weights *placed, sl_error *err);
void sl_model_weights_free(sl_model_weights *w);
int sl_model_weights_have_data(const sl_model_weights *w);       // 0: dummy weights that are not made yet
size_t sl_model_weights_decode_bytes(const sl_model_weights *w); // that a decode step reads

#endif
