// base/documents.h - the documents of a model by name: config.json, tokenizer.json, tokenizer.model, ...
//
// They are the files of a folder as downloaded, or were made from one file that holds all of them. Readers of configs,
// tokenizers and templates see no difference.
#ifndef SLEIGH_DOCUMENTS_H
#define SLEIGH_DOCUMENTS_H

#include "base/arrays.h"

#include <jansson.h>

typedef struct sl_documents {
    const char *path; // the folder, or the file that the documents were made from
    json_t *made; // {name: document}: a string is the bytes of a document, another value its JSON. NULL: files of the folder
} sl_documents;

#define SL_FOLDER(dir) ((sl_documents){.path = (dir)})

enum { SL_DOCUMENT_PATH = 4200 }; // bytes of a buffer for sl_documents_path

int sl_documents_have(const sl_documents *d, const char *name); // 1: the document exists
// Writes the path of a document, for messages: "FOLDER/config.json", "FILE.gguf (config.json)".
void sl_documents_path(const sl_documents *d, const char *name, char buf[SL_DOCUMENT_PATH]);
// Loads a document that holds a JSON object. The caller owns a reference to *out. A document that does not exist is SL_ERR_IO;
// with `optional`, *out is NULL instead.
int sl_documents_json(const sl_documents *d, const char *name, int optional, json_t **out, sl_error *err);
// Appends the bytes of a document, of which there may be at most `most`. A document that does not exist is SL_ERR_IO. A made
// JSON document is written in one form: keys in the order of their bytes, no blanks.
int sl_documents_text(const sl_documents *d, const char *name, size_t most, sl_text *out, sl_error *err);

#endif
