// tokenizer/tokenizer.h - converts text to token ids and back. One interface for four formats, which the loader recognises by
// their names and content: BPE (tokenizer.json), Mistral's tekken.json, tiktoken rank files and SentencePiece models (both
// named tokenizer.model).
//
// Texts are bytes with a length: they may hold NUL. A tokenizer is immutable after loading; threads may share it.
#ifndef SLEIGH_TOKENIZER_H
#define SLEIGH_TOKENIZER_H

#include "base/documents.h"

typedef struct sl_tokenizer sl_tokenizer;

// Loads the tokenizer of a model: tokenizer.json if it is BPE, else tekken.json, else tokenizer.model.
int sl_tokenizer_load(const sl_documents *documents, sl_tokenizer **out, sl_error *err);
void sl_tokenizer_free(sl_tokenizer *tok);

const char *sl_tokenizer_kind(const sl_tokenizer *tok); // "bpe", "tiktoken", "tekken", "sentencepiece"
// Mistral's version of the control tokens, which decides the form of chat prompts: "v1", "v2", "v3", "v7", "v11", "v13", "v15".
// tekken.json gives it, or the name of the file: tokenizer.model.v3 is v3, tokenizer.model.v7m1 is v7. "": the version is not
// known.
const char *sl_tokenizer_version(const sl_tokenizer *tok);
int sl_tokenizer_n_vocab(const sl_tokenizer *tok);                     // largest id + 1
int32_t sl_tokenizer_bos(const sl_tokenizer *tok);                     // -1: none
int32_t sl_tokenizer_eos(const sl_tokenizer *tok);                     // -1: none
int sl_tokenizer_adds_bos(const sl_tokenizer *tok);                    // SL_TOK_BOS puts the BOS before a text
int32_t sl_tokenizer_find(const sl_tokenizer *tok, const char *piece); // id of a special or added token's string, or -1
int sl_tokenizer_is_special(const sl_tokenizer *tok, int32_t id);

// Appends the ids of text[0..n) to *ids. flags: SL_TOK_BOS, SL_TOK_PLAIN. A text that begins with the string
// of BOS gets no other BOS. A tokenizer with a normaliser (Qwen: NFC) normalises the text between added tokens first, so that
// its ids decode to the normalised text.
int sl_tokenize(const sl_tokenizer *tok, const char *text, size_t n, unsigned flags, sl_ids *ids, sl_error *err);

// The same for a text of which some parts come from a user, such as a chat prompt. A special token is found only where none of
// its bytes lies in plain[0..n_plain). The spans are in ascending order and do not overlap. The text between two added tokens
// is encoded whole, so an end of a span does not split a word.
int sl_tokenize_marked(const sl_tokenizer *tok, const char *text, size_t n, const sl_span *plain, size_t n_plain,
                       unsigned flags, sl_ids *ids, sl_error *err);

// Appends the text of all ids. `specials` 1 writes special tokens as their strings, 0 leaves them out. An id out of range is
// SL_ERR_ARG.
int sl_detokenize(const sl_tokenizer *tok, const int32_t *ids, size_t n, int specials, sl_text *text, sl_error *err);

// Appends the bytes of one id inside a text, special tokens as their strings. The bytes of one id may be a part of a UTF-8
// character. An id without a token, or out of range, has no bytes.
int sl_token_bytes(const sl_tokenizer *tok, int32_t id, sl_text *bytes, sl_error *err);

// Streaming: sl_detok_next appends the text that is complete. The stream stores the bytes of an unfinished UTF-8 character. It
// also stores whether it must still drop SentencePiece's first blank. Bytes that cannot become UTF-8 are written as U+FFFD.
typedef struct sl_detok_stream {
    const sl_tokenizer *tok;
    int specials; // write special tokens' strings
    int at_start; // no text decoded yet
    unsigned char held[4];
    int n_held;
} sl_detok_stream;
sl_detok_stream sl_detok_begin(const sl_tokenizer *tok, int specials, int at_start);
int sl_detok_next(sl_detok_stream *s, int32_t id, sl_text *text, sl_error *err);
int sl_detok_end(sl_detok_stream *s, sl_text *text, sl_error *err); // writes held bytes as U+FFFD

#endif
