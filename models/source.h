// models/source.h - a model as downloaded: gives its documents (config, tokenizer, chat template) and its tensors. Nothing
// above this file knows what the model's files look like.
#ifndef SLEIGH_SOURCE_H
#define SLEIGH_SOURCE_H

#include "engine/base/documents.h"
#include "models/safetensors.h"

typedef struct sl_source sl_source;

// path: a folder. Reads no weights.
int sl_source_open(const char *path, sl_source **out, sl_error *err);
void sl_source_close(sl_source *s); // NULL is allowed
const sl_documents *sl_source_documents(const sl_source *s); // valid until the close
// Opens the tensors. The caller closes them with sl_tensors_close; they may outlive the source.
int sl_source_tensors(const sl_source *s, sl_tensors **out, sl_error *err);

#endif
