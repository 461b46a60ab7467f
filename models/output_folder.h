// models/output_folder.h - a folder that is written under another name first, so that it is whole or does not exist.
#ifndef SLEIGH_OUTPUT_FOLDER_H
#define SLEIGH_OUTPUT_FOLDER_H

#include "base/arrays.h"
#include "base/error.h"

typedef struct sl_output_folder {
    char *path; // where the folder will be
    char *tmp;  // where it is until then: PATH.tmp.PID
} sl_output_folder;

// Makes the folder under its temporary name. SL_ERR_ARG: something exists at path that is not an empty folder.
// SL_ERR_IO: the empty folder at path cannot be replaced.
int sl_output_folder_begin(sl_output_folder *f, const char *path, sl_error *err);
// Copies the files of a model's folder that are neither weights nor config.json: tokenizer, chat templates, generation_config.
int sl_output_folder_copy(const sl_output_folder *f, const char *from, sl_error *err);
// Writes a file of the folder.
int sl_output_folder_put(const sl_output_folder *f, const char *name, const char *data, size_t n, sl_error *err);
// ok: the folder gets its name. Otherwise it is deleted. Frees *f. Call it also after an error of the begin.
int sl_output_folder_end(sl_output_folder *f, int ok, sl_error *err);

#endif
