// tokenizer/tokenizer_internal.h - the interfaces between the parts of a tokenizer. Only tokenizer/* and its tests include it.
//
// The parts, lowest first: pretokenize.c, normalize.c, bpe.c, spm_check.c, sentencepiece.cc, added_tokens.c; the readers
// bpe_json.c and tiktoken.c; tokenizer.c.
#ifndef SLEIGH_TOKENIZER_INTERNAL_H
#define SLEIGH_TOKENIZER_INTERNAL_H

#include "engine/base/documents.h"

// ---- pretokenize.c: splits text by the pattern of a pre-tokenizer ----

typedef struct sl_pattern sl_pattern; // compiled, immutable

int sl_pattern_new(const char *file, const char *regex, sl_pattern **out, sl_error *err);
void sl_pattern_free(sl_pattern *p);
// Calls fn for every piece of text[0..n), in order and without gaps. A piece is a match or the text between two matches. A run
// of bytes that are not UTF-8 is a separate piece.
typedef int (*sl_piece_fn)(void *ctx, const char *piece, size_t n, sl_error *err);
int sl_pattern_split(const sl_pattern *p, const char *text, size_t n, sl_piece_fn fn, void *ctx, sl_error *err);
extern const char sl_pattern_llama3[], sl_pattern_gpt2[];

// ---- normalize.c: Unicode normalisation form C ----

int sl_nfc_is(const char *text, size_t n); // 1: the text is in form C; 0: it may not be
// Appends text[0..n) in form C. Bytes that are not UTF-8 stay as they are.
int sl_nfc_append(const char *text, size_t n, sl_text *out, sl_error *err);

// ---- bpe.c: byte-level BPE ----

typedef struct sl_bpe sl_bpe;

// Makes an empty vocabulary for ids from 0 to n_vocab - 1 and at most n_tokens tokens.
int sl_bpe_new(int n_vocab, size_t n_tokens, int ignore_merges, sl_bpe **out, sl_error *err);
void sl_bpe_free(sl_bpe *bpe);
int sl_bpe_add(sl_bpe *bpe, const char *file, int32_t id, const char *bytes, size_t n, sl_error *err); // once per id
int32_t sl_bpe_find(const sl_bpe *bpe, const char *bytes, size_t n);                                   // -1: no such token
// Adds the merge of rank `rank`: it joins two tokens into the token of their joined bytes. SL_ERR_FORMAT if one of the three
// tokens is unknown.
int sl_bpe_merge(sl_bpe *bpe, const char *file, int32_t rank, int32_t left, int32_t right, sl_error *err);
int sl_bpe_finish(sl_bpe *bpe, const char *file, sl_error *err); // every byte must be a token
int sl_bpe_encode(const sl_bpe *bpe, const char *piece, size_t n, sl_ids *ids, sl_error *err);
const char *sl_bpe_bytes(const sl_bpe *bpe, int32_t id, size_t *n); // NULL: no such token
// For tests: returns the sum of the distances between the entries of both hash tables and their first slots. *n: the number of
// entries.
uint64_t sl_bpe_displaced(const sl_bpe *bpe, size_t *n);

// ---- spm_check.c: checks a SentencePiece model before the library reads it ----

typedef enum {
    SL_SPM_STRIP_NONE,
    SL_SPM_STRIP_ONE,
    SL_SPM_STRIP_ALL
} sl_spm_strip; // how many blanks decoding drops at the start

typedef struct sl_spm_model {
    sl_text proto; // the input of the library: pieces, settings of the trainer and of the normaliser
    sl_spm_strip strip;
    int growth; // the most bytes that the normaliser writes for one byte of a text
} sl_spm_model;

// Checks everything that the library does not check: the extents of the protobuf, pieces, scores, types, the trie of the
// normaliser's rules. The caller frees out->proto, also after an error.
int sl_spm_check(const char *file, const char *data, size_t n, sl_spm_model *out, sl_error *err);

// ---- sentencepiece.cc: C functions over the C++ library ----

typedef struct sl_spm sl_spm;

#ifdef __cplusplus
extern "C" {
#endif
typedef enum { SL_SPM_NORMAL, SL_SPM_UNKNOWN, SL_SPM_CONTROL, SL_SPM_BYTE, SL_SPM_UNUSED } sl_spm_kind;
int sl_spm_load(const char *file, const sl_spm_model *model, sl_spm **out, sl_error *err);
void sl_spm_free(sl_spm *spm); // NULL is allowed
int sl_spm_n(const sl_spm *spm);
int sl_spm_bos(const sl_spm *spm); // -1: none
int sl_spm_eos(const sl_spm *spm);
const char *sl_spm_piece(const sl_spm *spm, int id, sl_spm_kind *kind);
int sl_spm_encode(const sl_spm *spm, const char *text, size_t n, sl_ids *ids, sl_error *err);
#ifdef __cplusplus
}
#endif

// ---- the tokenizer ----

enum { SL_MOST_TOKEN_ID = (1 << 24) - 1, SL_MOST_MODEL_FILE = 64 << 20 }; // the largest published tokenizer.model has 5 MB

typedef struct sl_added { // a token whose text is cut out before the model sees the text
    char *text;
    size_t n;
    int32_t id;
    int special; // SL_TOK_PLAIN does not parse it; detokenizing leaves it out by default
} sl_added;

typedef struct sl_tokenizer sl_tokenizer; // the same declaration as in tokenizer.h
struct sl_tokenizer {
    const char *kind;
    int n_vocab;
    int32_t bos, eos;
    int add_bos;
    sl_added *added; // sl_tokenizer_index sorts them by bytes
    int n_added, cap_added;
    int first_added[257]; // [first_added[b], first_added[b + 1]) in `added` are the tokens whose first byte is b
    int32_t *added_of;    // [n_added_of], index in `added` by id, -1: none
    int32_t n_added_of;
    // byte-level BPE
    int nfc; // normalise the text between added tokens to form C
    sl_pattern *pattern;
    sl_bpe *bpe;
    // SentencePiece
    sl_spm *spm;
    sl_spm_strip strip;
};

// ---- added_tokens.c ----

int sl_tokenizer_add(sl_tokenizer *tok, const char *file, int32_t id, const char *text, size_t n, int special, sl_error *err);
int sl_tokenizer_index(sl_tokenizer *tok, const char *file,
                       sl_error *err); // call it after the last add; refuses equal ids or texts
const sl_added *sl_tokenizer_added(const sl_tokenizer *tok, int32_t id); // NULL: id is not an added token
// The added token at the start of text[0..n), the longest one if there are several; NULL: none. A special token counts only if
// it lies in the first n_special bytes.
const sl_added *sl_tokenizer_added_at(const sl_tokenizer *tok, const char *text, size_t n, size_t n_special);

// ---- bpe_json.c and tiktoken.c: the readers ----

// *is_bpe 0: there is no tokenizer.json, or one of another kind; then *err says which kind.
int sl_bpe_json_load(const sl_documents *documents, int *is_bpe, sl_tokenizer *tok, sl_error *err);
int sl_tiktoken_load(const char *path, const char *data, size_t n, sl_tokenizer *tok, sl_error *err);

#endif
