// models/quantised_folder.h - writes a model as a folder of Hugging Face with a compressed-tensors checkpoint (sleigh
// quantize).
//
// int4 and int8 are pack-quantized (weight_packed, weight_scale, weight_shape), fp8 is float-quantized (weight, weight_scale),
// without activations. The stored numbers are those of sl_quantise, so a load of the folder gives the bits of a load that
// rounds. Tensors that are not rounded are copied as they are. Memory holds a few rows of one matrix at a time.
#ifndef SLEIGH_QUANTISED_FOLDER_H
#define SLEIGH_QUANTISED_FOLDER_H

#include "base/progress.h"
#include "models/weights.h"

typedef struct sl_folder_job {
    const char *from;                // the model's folder
    const char *to;                  // the folder to write: it must not exist, or be empty
    const sl_quantise_specs *specs;  // linear.format is not SL_BF16
    const sl_model_weights *weights; // bound with these specs, not made
    const sl_tensors *tensors;
    size_t most_bytes;           // of the data of a file, except of a file with one tensor
    const sl_progress *progress; // in MiB of the model's tensors
    const sl_cancel *cancel;
} sl_folder_job;

// The tensors with the same last part of their names: all q_proj, all input_layernorm.
typedef struct sl_folder_kind {
    char name[SL_TENSOR_NAME];
    const char *format; // "int4"; "plain"
    int n_tensors;
    size_t bytes_in, bytes_out;
    double n_values, error, size; // error: sum of the squared errors; size: sum of the squared numbers; 0 if plain
} sl_folder_kind;

typedef struct sl_folder_report {
    sl_folder_kind *kinds; // [n_kinds], in the order in which they occur
    int n_kinds, n_files;
} sl_folder_report;

// The threads of the calling thread's pool share the work; their number changes no byte. After an error nothing is left of the
// folder. SL_ERR_ARG: something is at `to`; a group does not divide the columns of a matrix; the head is tied and to be
// rounded. SL_ERR_UNSUPPORTED: the format cannot hold a matrix. SL_ERR_FORMAT: a number is not finite. SL_ERR_CANCELLED. Free
// the report also after an error.
int sl_quantised_folder_write(const sl_folder_job *job, sl_folder_report *report, sl_error *err);
void sl_folder_report_free(sl_folder_report *report);

#endif
