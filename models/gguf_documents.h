// models/gguf_documents.h - the documents of a model, made of a GGUF file's metadata: what config.json, tokenizer.json or
// tokenizer.model, and tokenizer_config.json say in a folder.
//
// Refuses by name what the documents cannot say: other architectures, keys of an architecture that change the arithmetic and
// that Sleigh does not know, pre-tokenizers whose rules are not known. There is no generation_config.json.
#ifndef SLEIGH_GGUF_DOCUMENTS_H
#define SLEIGH_GGUF_DOCUMENTS_H

#include "base/arrays.h"
#include "models/gguf.h"

#include <jansson.h>

// config.json. The factors of rope_freqs.weight become rope_scaling {rope_type "frequency_factors", factors}.
int sl_gguf_config(const sl_gguf *g, json_t **out, sl_error *err);
// tokenizer.json of a byte-level BPE (tokenizer.ggml.model "gpt2"), or tokenizer.model of SentencePiece ("llama"). The other
// one is NULL, or empty. Without tokenizer.ggml.model both are. The caller frees *model, also after an error.
int sl_gguf_tokenizer(const sl_gguf *g, json_t **json, sl_text *model, sl_error *err);
// tokenizer_config.json: special tokens, whether the tokenizer adds them, chat templates.
int sl_gguf_tokenizer_config(const sl_gguf *g, json_t **out, sl_error *err);

// ---- parts of the above (gguf_vocab.c) ----

typedef struct sl_gguf_vocab {
    const sl_gguf_value *tokens, *types; // arrays of equal length; types NULL: all tokens are normal
} sl_gguf_vocab;

// Types of tokens, in tokenizer.ggml.token_type.
enum { SL_GGUF_NORMAL = 1, SL_GGUF_UNKNOWN, SL_GGUF_CONTROL, SL_GGUF_USER_DEFINED, SL_GGUF_UNUSED, SL_GGUF_BYTE };

int sl_gguf_vocab_open(const sl_gguf *g, sl_gguf_vocab *out, sl_error *err);
int sl_gguf_token_type(const sl_gguf *g, const sl_gguf_vocab *v, uint64_t i, int *type, sl_error *err);
// The id of a special token by its key: "bos_token_id" for tokenizer.ggml.bos_token_id. -1: not given.
int sl_gguf_token_id(const sl_gguf *g, const char *name, int *id, sl_error *err);
int sl_gguf_is_kind(const sl_gguf *g, const char *kind);                                            // tokenizer.ggml.model
sl_gguf_string sl_gguf_token_text(const sl_gguf_vocab *v, int id);                                  // id: within the vocabulary
int sl_gguf_sentencepiece(const sl_gguf *g, const sl_gguf_vocab *v, sl_text *model, sl_error *err); // gguf_spm.c

#endif
