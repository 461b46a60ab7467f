// models/source.h - a model as downloaded: gives its documents (config, tokenizer, chat template) and its tensors. Nothing
// above this file knows what the model's files look like.
//
// A source is a folder with config.json, a GGUF file, or a folder that holds one GGUF file (which may have several parts) and
// no config.json. Refuses a folder with several GGUF files, and lists them.
#ifndef SLEIGH_SOURCE_H
#define SLEIGH_SOURCE_H

#include "base/documents.h"
#include "models/safetensors.h"

typedef struct sl_source sl_source;

// path: a folder or a file. Reads no weights.
int sl_source_open(const char *path, sl_source **out, sl_error *err);
void sl_source_close(sl_source *s);                          // NULL is allowed
const sl_documents *sl_source_documents(const sl_source *s); // valid until the close
const char *sl_source_folder(const sl_source *s);            // where other files of the model lie
// Opens the tensors. The caller closes them with sl_tensors_close; they may outlive the source. Those of a GGUF file may be
// packed: sl_tensors_unpack (gguf_tensors.h) or recipes (recipe.h) make their numbers.
// keep_blocks: as in sl_gguf_tensors.
int sl_source_tensors(const sl_source *s, int keep_blocks, sl_tensors **out, sl_error *err);
// Finds the GGUF file of a folder: the only one, or the first part of the only one. SL_ERR_ARG: there are several; the message
// lists them. part: a part of the file's name, in upper or lower case ("Q4_K_M"); NULL: any name. *path is empty when the
// folder has no such file.
int sl_source_find_gguf(const char *dir, const char *part, char *path, size_t size, sl_error *err);

#endif
